"""The artifact: the canonical record of what an execution planned, got and concluded."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from heretix.core.canonical import canonical_json, sha256_hex
from heretix.core.errors import ConfigError, RecordError
from heretix.core.lenses import LensCode
from heretix.core.validation import make_adapter
from heretix.plan import PrecisionStep
from heretix.prompts.bank import ShownItem
from heretix.sample import Attempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SCHEMA: Final = "heretix-artifact/1"

Prob = float | None


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def fill(cls, *sources: object, **given: Any) -> Self:
        """Take values from attributes of the same names; what no source has is None."""
        for name in cls.model_fields.keys() - given.keys():
            given[name] = next((getattr(s, name) for s in sources if hasattr(s, name)), None)
        return cls(**given)


def _drop_null(content: dict[str, Any], name: str) -> dict[str, Any]:
    if content.get(name, True) is None:
        del content[name]
    return content


class PluginRecord(_Record):
    """A part that another package brought, and its version."""

    kind: Literal["providers", "search", "metrics", "banks", "commands"]
    name: str
    package: str
    version: str


class _Extensible(_Record):
    """A record with parts that some lack: plug-ins, and what older versions put nothing beside.

    A part that isn't there is left out, so that older records keep their digests.
    """

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        for name in ("plugins", "beside", "readout"):
            if not content.get(name, True):
                del content[name]
        return content


class Prompts(_Record):
    """The whole bank, so that every prompt can be rendered again from the record alone."""

    bank_sha256: str
    source: str
    system: str
    user_template: str
    paraphrases: list[str]


class Sampling(_Record):
    """Number of samples."""

    K: int
    R: int
    T: int
    N: int


class Sampler(_Record):
    """Templates and their slots."""

    T_bank: int
    rotation_offset: int
    tpl_indices: list[int]
    seq: list[int]
    template_include: list[int] | None
    template_exclude: list[int] | None


class SentOptions(_Record):
    """Options sent besides the prompt; null was left to the provider."""

    max_output_tokens: int
    temperature: float | None
    reasoning_effort: str | None
    base_url: str | None


class Aggregation(_Record):
    """Method that made samples a belief."""

    agg: Literal["clustered", "simple"]
    method: str
    B: int
    center: Literal["trimmed", "mean"]
    trim: float
    bootstrap_seed: int
    bootstrap_seed_text: str | None = None
    """The seed where it is over 2^53, which common JSON tools round; left out else."""
    seed_source: Literal["config", "environment", "derived"]
    n_templates: int
    counts_by_template: dict[str, int]
    imbalance_ratio: float | None
    template_iqr_logit: float | None

    @model_serializer(mode="wrap")
    def _leave_out_no_text(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _drop_null(handler(self), "bootstrap_seed_text")


class Balance(_Record):
    """Compliant samples per template index."""

    counts: dict[str, int]
    imbalance_ratio: float | None
    planned_imbalance_ratio: float


class Aggregates(_Record):
    """The belief. Without an estimate the numbers are null; the rates always stand."""

    prob_true_rpl: Prob
    ci95: tuple[float, float] | None
    ci_width: float | None
    stability_score: float | None
    stability_band: Literal["high", "medium", "low"] | None
    is_stable: bool | None
    rpl_compliance_rate: float
    cache_hit_rate: float


class TemplateRow(_Record):
    """One template's answers."""

    paraphrase_idx: int
    prompt_sha256: str
    n: int
    mean_logit: float
    prob: float
    sd_logit: float | None
    min_prob: float
    max_prob: float
    trimmed: bool
    influence_prob: float | None
    """Change of the estimate without this template."""


class DiagnosticsRecord(_Record):
    """Beside the estimate, under names of their own; they never change it."""

    variance_between: float | None
    variance_within: float | None
    between_share: float | None
    variance_note: str | None
    paraphrase_range_prob: float | None
    paraphrase_sd_prob: float | None
    templates: list[TemplateRow]


class TemplateTRecord(_Record):
    """The interval of the belief by Student's t over wordings (`template_t`), about its center."""

    ci95: tuple[float, float]
    ci_width: float
    se_logit: float
    df: float


class BesideRecord(_Record):
    """Beside the frozen estimate: another interval, and what answers of exactly 0 or 1 weigh."""

    template_t: TemplateTRecord | None
    """Null where trimming leaves a single wording, and for the legacy aggregation."""
    n_extreme: int
    """Answers of exactly 0 or 1; of distributions, those that hold them for at all likely (.5%)."""
    extreme_share: float
    """Of the answers; of a distribution, the mean probability of exactly 0 and 1."""
    center_clamped: float
    """The belief with every answer held within [.005, .995]."""
    clamp_sensitive: bool
    """True where it lies further from the published one than half that interval is wide."""


class Served(_Record):
    """A model that answered, as its provider named it."""

    provider_model_id: str | None
    fingerprint: str | None
    samples: int


class PriceRecord(_Record):
    """Dollars per million tokens, as decimal text, and the day they were seen."""

    input_usd_per_mtok: str
    output_usd_per_mtok: str
    as_of: str | None


class InVain(_Record):
    """Answers that were paid for and not used: others had come before, and the first one stays."""

    calls: int
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None


class Usage(_Record):
    """Cost of the execution; tokens count the calls made now, not what the cache held."""

    attempted: int
    compliant: int
    noncompliant: dict[str, int]
    failed: int
    from_cache: int
    called: int
    tokens_in: int | None
    tokens_out: int | None
    price: PriceRecord | None
    """Price that the cost was counted with; null where it isn't known."""
    cost_usd: float | None
    """Cost of the calls made now, by the provider's own token counts; null where unknown."""
    in_vain: InVain | None = None
    """Payment on top for answers that came too late; left out where there were none."""

    @model_serializer(mode="wrap")
    def _leave_out_nothing_in_vain(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _drop_null(handler(self), "in_vain")


class EvidenceRecord(_Record):
    """Bundle that a lens showed, in full, and what the answers did with it."""

    frame_version: str
    system: str
    user_template: str
    no_documents: str
    clauses: dict[str, str]
    bundle_id: str | None
    variant: str | None
    """Change of the bundle by an experiment; null is the bundle as it is."""
    order: list[str] | None = None
    """Ids of the whole bundle, in whose order an experiment's items stand; null is their own."""
    items: list[ShownItem]
    quotes_given: int
    """Malformed ones included: they can't be verified."""
    quotes_verified: int
    """Quotes of some length that stand in the item they name, word for word."""
    quotes_cut: int
    """Quotes that the limit on their length ended inside a word, and whose words before it stand
    in the item: neither verified nor made up."""
    verified_quote_rate: float | None
    """Of the quotes that weren't cut."""
    trusted: bool | None
    """False when too many quotes were made up; null when there were none to check."""
    used: dict[str, int]
    """Number of answers that named each item."""


class ReadoutRecord(_Record):
    """Reading of log-probabilities, beside the belief that it gave."""

    name: Literal["distribution", "truth_token"]
    prob_mean: float | None
    """The other center: of the wordings' mean probabilities, where the belief is of their mean
    log-odds."""
    missing_mass: float | None
    """Mean, over the wordings that count, of the probability that isn't accounted for: of numbers
    unknown, or of neither word."""
    missing_mass_max: float | None
    extreme_mass: float | None = None
    """Of a distribution, the mean probability of exactly 0 and 1. Where it is left out, an older
    version wrote the record: there, each wording's mean was held as if it were an answer."""

    @model_serializer(mode="wrap")
    def _leave_out_no_mass(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _drop_null(handler(self), "extreme_mass")


class PrecisionRecord(_Record):
    """The stopping rule of an adaptive measurement, and how it went."""

    until_width: float
    min_compliance: float
    max_samples: int
    steps: list[PrecisionStep]
    """This run is the last of them."""
    stopped: Literal["gates_passed", "max_samples", "interrupted"] | None
    """Reason why it stopped; null when a larger step followed, in records from before one
    execution took all steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(Attempt):
    """One attempt and what it gave, in its place of the plan."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    slot: int
    from_cache: bool
    compliant: bool


def read_sample(content: Any) -> SampleRecord:
    """Read a sample that stands outside of a run."""
    # Not strict: what was JSON has the text of an enum's member, and not the member.
    sample: SampleRecord = make_adapter(SampleRecord).validate_python(content, strict=False)
    return sample


class ReasonRecord(_Record):
    """Reason why a value is missing: a code, and what its sentence needs.

    The sentences stand in `heretix.report.words`: a record outlives its wording.
    """

    code: Literal[
        "calls_failed",
        "insufficient_evidence",
        "no_pair",
        "one_template",
        "too_few_samples",
        "too_few_stems",
    ]
    params: dict[str, Any] = Field(default_factory=dict)


class RunRecord(_Extensible):
    """One claim measured by one model in one execution."""

    execution_id: str
    run_id: str
    claim: str
    claim_id: str | None
    model: str
    provider: str
    provider_model_id: str | None
    """The model served, when all samples name the same one."""
    served: list[Served]
    demonstration: bool
    """True when the model only shows that the machine works: not a belief worth quoting."""
    lens: LensCode
    """Lens that the model was shown; RPL is nothing."""
    readout: ReadoutRecord | None = None
    """Left out where answers were sampled."""
    evidence: EvidenceRecord | None
    prompt_version: str
    prompts: Prompts
    sampling: Sampling
    sampler: Sampler
    options: SentOptions
    aggregation: Aggregation
    paraphrase_balance: Balance
    aggregates: Aggregates
    diagnostics: DiagnosticsRecord | None
    beside: BesideRecord | None = None
    """Null without an estimate, and in records of older versions; left out then."""
    precision: PrecisionRecord | None
    """Null unless the run's size was chosen by `until_width`."""
    usage: Usage
    status: Literal["ok", "no_estimate"]
    reason: ReasonRecord | None
    started_at: str
    finished_at: str
    heretix_version: str
    plugins: list[PluginRecord] = Field(default_factory=list)
    """Plug-ins that had a part: the provider, the bank. Left out where there was none."""
    samples: list[SampleRecord]
    sha256: str
    """SHA-256 of the canonical JSON of everything above."""


class LensRecord(_Extensible):
    """One line of the belief vector."""

    lens: LensCode
    run_id: str | None
    execution_id: str | None
    model: str
    prob_true: Prob
    ci95: tuple[float, float] | None
    beside: BesideRecord | None = None
    bundle_id: str | None
    trusted: bool | None
    status: Literal["ok", "no_estimate", "insufficient_evidence"]
    reason: ReasonRecord | None


class MetricRecord(_Record):
    """A number with its 95% interval from the joint bootstrap."""

    value: float
    lo: float
    hi: float


class InformationRecord(MetricRecord):
    """Signed bits."""

    corrected: float
    p_value: float


class TRecord(MetricRecord):
    """A number by Student's t over wordings: interval and p-value are of one statistic."""

    p_value: float
    """Two-sided, of 0."""


class TwinsRecord(_Record):
    """A difference by the paired t of plain means, and by its robust twin."""

    paired_template_t: TRecord
    paired_template_t_trimmed: TRecord


PlaceboVerdict = Literal["evidence_driven", "any_text", "unmoved", "unchecked"]


class PlaceboRecord(_Record):
    """Comparison of a lens with irrelevant text of the same length: which moved the belief more."""

    verdict: PlaceboVerdict
    """By the paired t: `evidence_driven` where lens minus sham leaves 0 out; else `any_text`, or
    `unmoved` where lens minus raw prior holds 0; `unchecked` without a sham of this very bundle."""
    minus_sham: TwinsRecord | None
    """The lens minus its sham; null where it is unchecked."""


class MetricsBesideRecord(_Record):
    """Beside the frozen intervals: the same metrics by Student's t over the shared wordings."""

    movement: dict[str, TwinsRecord]
    evidence_effect: dict[str, TwinsRecord]
    wrapper_effect: TwinsRecord | None
    shock_index: TwinsRecord | None
    """The movement of HEL, folded at 0."""
    amplification_gap: TwinsRecord | None
    directed_gap: TwinsRecord | None
    information_gain: dict[str, TwinsRecord]
    """The movement and the ends of its interval in bits, with the raw prior held where it is."""
    placebo: dict[str, PlaceboRecord] = Field(default_factory=dict)
    """By lens that shows documents."""

    def find_cause(self, lens: str) -> PlaceboVerdict:
        """The cause of a movement under a lens: evidence only where it went further than the sham.

        Where irrelevant text went further the same way, evidence pulled against the movement.
        """
        placebo = self.placebo[lens]
        if placebo.verdict != "evidence_driven" or placebo.minus_sham is None:
            return placebo.verdict
        moved = self.movement[lens].paired_template_t
        against = moved.value * placebo.minus_sham.paired_template_t.value < 0
        if not against:
            return placebo.verdict
        return "unmoved" if moved.lo <= 0 <= moved.hi else "any_text"


class ConcentrationRecord(_Record):
    """Effective number of sources of a bundle."""

    herfindahl: float
    effective_sources: float
    publishers: int


class PluginMetricRecord(_Record):
    """A plug-in's number; null, with a reason, where it had none to give."""

    value: float | None
    lo: float | None
    hi: float | None
    reason: str | None
    package: str
    version: str


class MetricsRecord(_Extensible):
    """Metrics between the lenses of one claim and model."""

    reason: ReasonRecord | None
    """Reason why there are no differences, where there are none."""
    missing: dict[str, ReasonRecord] = Field(default_factory=dict)
    """By lens: why it has no differences, beside others that do."""
    stems: int | None
    movement: dict[str, MetricRecord]
    """By lens: its belief minus the raw prior."""
    evidence_effect: dict[str, MetricRecord]
    """By lens: its belief minus NUL, the frame without documents."""
    wrapper_effect: MetricRecord | None
    """NUL minus the raw prior."""
    shock_index: MetricRecord | None
    amplification_gap: MetricRecord | None
    directed_gap: MetricRecord | None
    """Null where the published interval of the raw prior holds 1/2: it leans to neither side."""
    information_gain: dict[str, InformationRecord]
    dispersion_bits: MetricRecord | None
    noise_floor: float | None
    """Distance that two raw priors exceed in one case of twenty; null with one replicate."""
    source_concentration: dict[str, ConcentrationRecord]
    plugins: dict[str, PluginMetricRecord] = Field(default_factory=dict)
    """Metrics of plug-ins, by name. Left out where there are none."""
    beside: MetricsBesideRecord | None = None
    """Null without differences, and in records of older versions; left out then."""


class ExperimentRecord(_Extensible):
    """A lens as it is against a variant of it; the difference is the lens minus the variant."""

    variant: str
    """`without:E03`, `canary`, `swapped`, `sham`, `policy:VERSION`, or `negation`, whose belief
    counts as its complement."""
    model: str
    lens: LensCode
    execution_id: str
    prob_whole: Prob
    prob_changed: Prob
    difference: MetricRecord | None
    beside: TwinsRecord | None = None
    """The difference by Student's t; left out without one, and in records of older versions."""
    reason: ReasonRecord | None


class RowRecord(_Record):
    """Row of a file of claims that an artifact answers: samples are shared, a row is not."""

    number: int
    """From 1, in the order of the file."""
    id: str | None
    columns: dict[str, Any]
    """The user's own, besides the claim and its id."""


class Artifact(_Record):
    """Artifact of `--out`: one or more runs, and metrics between those that share a claim."""

    schema_: Literal["heretix-artifact/1"] = Field(alias="schema")
    claim: str | None = None
    """The claim of a belief vector; a run of another claim is that of its negation."""
    runs: list[RunRecord] = Field(min_length=1)
    lenses: list[LensRecord] | None = None
    bundles: list[dict[str, Any]] | None = None
    """Bundles that the lenses showed, another policy's too, and those too small to be shown."""
    metrics: dict[str, MetricsRecord] | None = None
    """By model."""
    experiments: list[ExperimentRecord] | None = None
    plugins: list[PluginRecord] | None = None
    """Plug-ins that had a part in the vector: the search, metrics. A run names its own."""
    row: RowRecord | None = None
    """Left out unless the claim came from a file."""

    @classmethod
    def of(cls, runs: Sequence[RunRecord]) -> Artifact:
        """An artifact that holds these runs."""
        return cls(schema=SCHEMA, runs=list(runs))


def digest_of(run: RunRecord) -> str:
    """SHA-256 over all of a run but its own digest: any changed character shows."""
    content = run.model_dump(mode="json", exclude={"sha256"})
    return sha256_hex(canonical_json(content).encode())


def reissue(run: RunRecord, claim: str, claim_id: str | None) -> RunRecord:
    """Give a record of `claim` the id that another row of the same claim has."""
    if run.claim != claim or run.claim_id == claim_id:
        return run
    other = run.model_copy(update={"claim_id": claim_id})
    return other.model_copy(update={"sha256": digest_of(other)})


_SCHEMA_FILE: Final = "artifact-1.schema.json"
"""As published with the package; `python -m heretix.measurement.record` writes it anew."""


def artifact_schema() -> dict[str, Any]:
    """The schema that the record's types imply."""
    schema = Artifact.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def packaged_schema() -> dict[str, Any]:
    """The schema that the package ships."""
    text = (resources.files(__package__) / _SCHEMA_FILE).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def artifact_json(artifact: Artifact, *, indent: int | None = 2) -> str:
    """An artifact as JSON text."""
    # Fields of the lenses are left out of artifacts that have none.
    content = artifact.model_dump(mode="json", by_alias=True)
    for name in ("claim", "lenses", "bundles", "metrics", "experiments", "plugins", "row"):
        if content[name] is None:
            del content[name]
    return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)


TABLES: Final = frozenset({".csv", ".tsv", ".parquet"})
"""Endings of files that hold beliefs as a table, and not as artifacts."""


_PACKED: Final = ".gz"
_LINES: Final = frozenset({".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"})
# Pipes and devices have no ending.
_ARTIFACTS: Final = _LINES | {"", ".json", ".json.gz"}


def check_target(
    path: Path, *, lines: bool = False, tables: bool = False, option: str = "--out"
) -> None:
    """Refuse, before any call is paid for, a place that can't be written."""
    ending = path.suffix.lower()
    if ending == _PACKED:
        ending = f"{path.with_suffix('').suffix.lower()}{_PACKED}"
    if tables and not lines and (ending not in _ARTIFACTS | TABLES or str(path) == "-"):
        raise ConfigError(
            f"`{option}` must end in .json for the artifact, or .csv, .tsv or .parquet for a "
            f"table, got {path.name!r}; standard output has it with --json"
        )
    if lines and ending not in _LINES | (TABLES if tables else set()):
        more = "; .csv, .tsv or .parquet for a table" if tables else ""
        raise ConfigError(
            f"`--out` must end in .jsonl for a file of claims (one artifact a line{more}), "
            f"got {path.name!r}"
        )
    try:
        if path.is_dir():
            raise ConfigError(f"`{option}` must be a file, got the directory {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"`{option}` {path}: {exc.strerror}") from exc
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ConfigError(f"`{option}` {path} can't be written: permission denied")
    if not path.exists():
        try:
            _make_temporary(path).unlink()
        except OSError as exc:
            raise ConfigError(f"`{option}` {path} can't be written: {exc.strerror}") from exc


def write_artifact(path: Path, artifact: Artifact) -> None:
    """Write one artifact."""
    write_texts(path, [artifact_json(artifact)])


def write_lines(path: Path, artifacts: Iterable[Artifact]) -> None:
    """Write artifacts one a line."""
    write_texts(path, (artifact_json(artifact, indent=None) for artifact in artifacts))


def _make_temporary(path: Path) -> Path:
    """Make an empty file in the folder of a target, to be moved into its place."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(descriptor)
    return Path(name)


def write_texts(path: Path, texts: Iterable[str]) -> None:
    """Write beside the target and move into place: a reader sees the old file or the new one."""
    # A pipe or a device can't be replaced; it is written to as it is.
    in_place = path.exists() and not path.is_file()
    target = path
    try:
        if not in_place:
            target = _make_temporary(path)
        with _open_text(target, packed=path.suffix.lower() == _PACKED) as file:
            file.writelines(f"{text}\n" for text in texts)
        if not in_place:
            target.chmod(0o644)
            target.replace(path)
    except OSError as exc:
        raise RecordError(f"`{path}` can't be written: {exc.strerror}") from exc
    finally:
        if target is not path:
            target.unlink(missing_ok=True)


@contextmanager
def _open_text(path: Path, *, packed: bool) -> Iterator[IO[str]]:
    """Open a file to write text to; `packed` by gzip, the same bytes for the same text."""
    with path.open("wb") as raw:
        file = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if packed else raw
        with io.TextIOWrapper(file, encoding="utf-8") as text:
            yield text


if __name__ == "__main__":
    target = Path(__file__).with_name(_SCHEMA_FILE)
    target.write_text(json.dumps(artifact_schema(), indent=2) + "\n", encoding="utf-8")
