"""A study: many claims measured at once, what they say together of a model, and its record.

The mathematics stands in `calibration`, `coherence` and `design`. Here are the claims with what is
known of them, the one measuring service, and a record that holds every number the results follow
from: `verify_study` derives them again.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from heretix.belief.estimator import (
    DEFAULT_TRIM,
    mean,
    order_templates,
    trim_cut,
    trimmed_mean,
)
from heretix.belief.logodds import sigmoid
from heretix.belief.student import mean_t, paired_template_t
from heretix.claims_file import WrittenNumber, read_cells
from heretix.config import AUTO, ON_A_CLUSTER, Claim, EvidenceConfig, RunConfig, check_claim
from heretix.core.canonical import sha256_json
from heretix.core.clock import utc_now
from heretix.core.errors import ClaimError, ConfigError, NoEstimateError, RecordError
from heretix.core.lenses import LENSES, NUL, RPL, LensCode
from heretix.core.validation import explain, find_faults
from heretix.core.yaml_lines import YamlFault, hint, load
from heretix.measurement.record import RunRecord
from heretix.measurement.service import Measurement, RunName, prepare
from heretix.measurement.vector import logits_by_stem
from heretix.measurement.verify import Mismatch, Verification, compare_leaves, is_same_value
from heretix.plan import DEFAULT_T
from heretix.readouts import DISTRIBUTION, SAMPLED, Readout
from heretix.store.runs import RunFilter, find_record, select_record, select_runs_page
from heretix.studies.calibration import (
    Calibration,
    Comparison,
    Forecast,
    calibrate,
    compare_models,
)
from heretix.studies.coherence import (
    Acquiescence,
    NegationPair,
    Rule,
    check_conjunction,
    check_disjunction,
    check_entailment,
    check_paraphrase,
    compare_negation,
    expect_violation,
    summarise_pairs,
)
from heretix.studies.design import VarianceComponents, estimate_components
from heretix.version import VERSION

if TYPE_CHECKING:
    from heretix.core.settings import Settings
    from heretix.store import Store

SCHEMA: Final = "heretix-study/1"
LOCAL: Final = "local"
PLAIN: Final = "plain"
"""The packaged claims: everyday facts with their negations, half of them false."""

Kind = Literal["calibration", "coherence", "variance", "card"]
Relation = Literal["negation", "entailment", "paraphrase", "conjunction", "disjunction"]
Logits = dict[str, list[float]]
M = TypeVar("M", bound=BaseModel)

_STRICT: Final = ConfigDict(frozen=True, extra="forbid", strict=True)
# A column of numbers in which some are missing is written with a point.
_LABELS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "1.0", "true"), True),
    **dict.fromkeys(("0", "0.0", "false"), False),
}
_OTHERS: Final[Mapping[Relation, tuple[str, ...]]] = {
    "negation": ("negation",),
    "entailment": ("entails",),
    "paraphrase": ("paraphrase",),
    "conjunction": ("other", "both"),
    "disjunction": ("other", "either"),
}
"""Columns beside `claim` that a relation needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A claim, and what is known of it: its truth, or how it is related to other claims."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    claim: str
    label: bool | None = None
    relation: Relation | None = None
    others: tuple[str, ...] = ()
    """Of a conjunction or disjunction the second claim, then the compound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request for a study: what it measures, and of which kind it is."""

    kind: Kind
    items: tuple[Item, ...]
    config: RunConfig
    name: str | None = None
    readouts: tuple[Readout, ...] = ()
    """Ways in which answers are taken; as the configuration says where empty."""

    def configs(self) -> tuple[RunConfig, ...]:
        """The configuration for each read-out. Where answers are sampled too, repeats and
        temperature are theirs: the others ask each wording of the plan once."""
        wanted = tuple(dict.fromkeys(self.readouts)) or (self.config.readout,)
        if len(wanted) > 1 and self.config.budget_usd is not None:
            raise ConfigError(
                "`budget_usd` is for one read-out at a time, got "
                f"{', '.join(wanted)}; leave it out, or take one after the other"
            )
        return tuple(self._config_of(readout, SAMPLED in wanted) for readout in wanted)

    def _config_of(self, readout: Readout, beside_sampled: bool) -> RunConfig:
        if readout == SAMPLED or not beside_sampled:
            return self.config.override(readout=readout)
        config = self.config
        given = {name: getattr(config, name) for name in config.model_fields_set}
        for name in ("preset", "R", "temperature"):
            given.pop(name, None)
        given["K"] = min(config.K, config.T or DEFAULT_T)
        return RunConfig.parse({**given, "readout": readout})


class StudyRun(BaseModel):
    """Part of a run that a study uses, and the digest of the run's own record."""

    model_config = _STRICT

    claim: str
    model: str
    provider: str
    lens: LensCode
    readout: Readout = SAMPLED
    variant: str | None = None
    """`sham` where irrelevant text of the same length was shown."""
    demonstration: bool
    execution_id: str
    run_id: str
    run_sha256: str
    prob_true: float | None
    """As published; null without an estimate."""
    ci95: tuple[float, float] | None
    """The frozen interval, as published: the run's own record derives it again."""
    logits: Logits
    """Compliant answers in log-odds, by the number of the wording."""
    calls: int
    cost_usd: float | None

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a variant that there isn't: older records keep their hash."""
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key != "variant" or value}


class StudyPlan(BaseModel):
    """The bank and the plan of one read-out."""

    model_config = _STRICT

    readout: Readout
    prompt_version: str
    sampling: dict[str, int | None]


class Subject(NamedTuple):
    """Beliefs that are looked at together: of one model, under one lens, by one read-out."""

    model: str
    lens: str
    readout: Readout


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOf:
    """Calibration of one subject; why it has none, where it has none."""

    model: str
    lens: str
    readout: Readout
    left_out: int
    """Claims without an estimate."""
    calibration: Calibration | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """One subject minus another, paired by claim."""

    a: str
    b: str
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResults:
    """Every subject, and every pair of them."""

    kind: Literal["calibration"]
    subjects: tuple[CalibrationOf, ...]
    comparisons: tuple[Between, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOf:
    """A claim with its negation."""

    claim: str
    pair: NegationPair


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOf:
    """A rule of probability about a claim and its relatives."""

    claim: str
    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class CoherenceOf:
    """Coherence of one model by one read-out."""

    model: str
    readout: Readout
    left_out: int
    """Items of which a side has no estimate."""
    pairs: tuple[PairOf, ...]
    rules: tuple[RuleOf, ...]
    summary: Acquiescence | None
    """None with fewer than two pairs."""
    as_said: Calibration | None
    """Against labels, where at least two pairs have one: beliefs as they were said …"""
    freed: Calibration | None
    """… and free of acquiescence."""
    gain: Comparison | None
    """Freed minus said, paired by claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoherenceResults:
    """Every model by every read-out, and each read-out against sampled answers."""

    kind: Literal["coherence"]
    subjects: tuple[CoherenceOf, ...]
    comparisons: tuple[Between, ...]
    """Against labels: beliefs as said, then freed of acquiescence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceOf:
    """Variance components of one subject."""

    model: str
    lens: str
    readout: Readout
    left_out: int
    components: VarianceComponents | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceResults:
    """Every subject."""

    kind: Literal["variance"]
    subjects: tuple[VarianceOf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """One of the four standards for belief: a number with its interval, or why there is none."""

    name: Literal["accuracy", "coherence", "uniformity", "evidence", "evidence_minus_sham"]
    """The last is the placebo of use of evidence: how far documents go beyond irrelevant text."""
    value: float | None
    lo: float | None
    hi: float | None
    n_claims: int
    reason: str | None = None
    scatter_alone: float | None = None
    """Of coherence: the violation that scatter of wordings gives a model that obeys probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOf:
    """The card of one model by one read-out."""

    model: str
    readout: Readout
    left_out: int
    standards: tuple[Standard, ...]

    @property
    def placebo(self) -> str | None:
        """The cause of movements under documents: as of a lens in an artifact; else None."""
        found = {one.name: one for one in self.standards}
        moved, beyond = found["evidence"], found.get("evidence_minus_sham")
        if moved.value is None or moved.lo is None or moved.hi is None:
            return None
        if beyond is None or beyond.value is None or beyond.lo is None or beyond.hi is None:
            return "unchecked"
        if moved.lo <= 0 <= moved.hi:
            return "unmoved"
        same_way = beyond.lo > 0 if moved.value > 0 else beyond.hi < 0
        return "evidence_driven" if same_way else "any_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardResults:
    """Every model's card."""

    kind: Literal["card"]
    subjects: tuple[CardOf, ...]


Results = Annotated[
    CalibrationResults | CoherenceResults | VarianceResults | CardResults,
    Field(discriminator="kind"),
]


class StudyRecord(BaseModel):
    """Record of a study: measured and concluded. Everything in `results` follows from the rest."""

    model_config = _STRICT

    schema_: Literal["heretix-study/1"] = Field(alias="schema")
    name: str | None
    made_at: str
    heretix_version: str
    plans: tuple[StudyPlan, ...]
    """One for each read-out."""
    items: tuple[Item, ...]
    runs: tuple[StudyRun, ...]
    results: Results
    sha256: str
    """Of the canonical JSON of everything above."""

    @property
    def kind(self) -> Kind:
        """Kind of the study."""
        return self.results.kind

    @property
    def usable(self) -> bool:
        """Every subject has a result."""
        return all(_has_result(subject) for subject in self.results.subjects)

    def to_json(self) -> str:
        """The record as the text that `--out` writes."""
        return self.model_dump_json(by_alias=True, indent=2)


def read_study(path: str | Path) -> StudyRecord:
    """Read a record that a study wrote."""
    text = _read_text(Path(path), "study")
    try:
        return StudyRecord.model_validate_json(text)
    except ValidationError as exc:
        problem = explain(exc.errors(include_url=False)[0])
        raise RecordError(
            f"`{path}` must be a record of schema {SCHEMA!r}: {problem}; give what "
            "`heretix study … --out` wrote"
        ) from exc


def is_study(path: str | Path) -> bool:
    """Tell a study's record from an artifact, by its first line of JSON."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return SCHEMA in file.read(200)
    except (OSError, UnicodeDecodeError):
        return False


# Claims with what is known of them.


def read_items(source: str | Path, kind: Kind) -> tuple[Item, ...]:
    """Read claims from any file of claims, or standard input (`-`); `plain` are the packaged ones.

    Columns: `claim`; `label` (1/0, true/false); `negation`, `entails`, `paraphrase`, or `other`
    with `both` or `either`.
    """
    packaged = resources.files("heretix.studies").joinpath("plain.jsonl")
    with resources.as_file(packaged) as plain:
        path = str(plain if str(source) == PLAIN else source)
        rows = read_cells(path, "claims")
    return check_items([make_item(row, f"{source} {where}") for where, row in rows], kind)


def make_item(row: Mapping[str, Any], where: str = "claims") -> Item:
    """Read one row: its claim, its label, and the relation that its columns name."""
    if not isinstance(row, Mapping):
        raise ClaimError(f"{where}: a row must have columns, such as `claim`, got {row!r}")
    given = {name: value for name, value in row.items() if value not in (None, "")}
    try:
        if "claim" not in row:
            there = ", ".join(map(str, row)) or "no column at all"
            raise ClaimError(f"a row must have a column `claim`, got {there}")
        claim = _read_claim(given, "claim")
        found = [name for name, needs in _OTHERS.items() if needs[-1] in given]
        if len(found) > 1:
            raise ClaimError(f"`claim` must have one relation, got {', '.join(found)}")
        needs = _OTHERS[found[0]] if found else ()
        if lacking := [name for name in needs if name not in given]:
            raise ClaimError(f"`{needs[-1]}` needs `{lacking[0]}` beside it")
        others = tuple(_read_claim(given, name) for name in needs)
    except ClaimError as exc:
        raise ClaimError(f"{where}: {exc}") from exc
    label = given.get("label")
    if label is not None and str(label).lower() not in _LABELS:
        raise ClaimError(f"{where}: `label` must be 1, 0, true or false, got {label!r}")
    return Item(
        claim=claim,
        label=None if label is None else _LABELS[str(label).lower()],
        relation=found[0] if found else None,
        others=others,
    )


def _read_claim(row: Mapping[str, Any], column: str) -> str:
    text = row.get(column, "")
    if not isinstance(text, str) or isinstance(text, WrittenNumber):
        raise ClaimError(f"`{column}` must be text, got {text!r}")
    return check_claim(text)


def check_items(items: Iterable[Item], kind: Kind) -> tuple[Item, ...]:
    """Refuse claims that the study can't use; the same row twice counts once."""
    chosen = tuple(dict.fromkeys(items))
    if kind == "calibration" and (bare := next((i for i in chosen if i.label is None), None)):
        raise ClaimError(f"`label` is missing for {bare.claim!r}: calibration needs 1 or 0 for all")
    if kind == "coherence" and (bare := next((i for i in chosen if i.relation is None), None)):
        raise ClaimError(
            f"`negation` is missing for {bare.claim!r}: coherence needs it, or `entails`, "
            "`paraphrase`, or `other` with `both` or `either`"
        )
    # What a calibration or variance study doesn't measure can't collide.
    texts = [item.claim for item in chosen]
    if kind in ("coherence", "card"):
        texts += [text for item in chosen for text in item.others]
    if twice := next((text for text, n in Counter(texts).items() if n > 1), None):
        raise ClaimError(f"`claim` must stand once in a study, got {twice!r} twice; drop one")
    if not chosen:
        raise ClaimError("`claims` is empty: give at least two")
    return chosen


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"`{what}` {path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"`{what}` {path} isn't UTF-8 text; save it as UTF-8") from exc


# One file that declares a study.

_PLAN_KEYS: Final = (
    *("preset", "K", "R", "T", "B", "seed", "prompt_version", "prompts_file"),
    *("language", "temperature", "reasoning_effort", "base_url", "max_output_tokens"),
    *("concurrency", "rpm", "tpm", "budget_usd", "on"),
)


class StudyFile(BaseModel):
    """A study as it stands in a YAML file: claims × models × lenses × read-outs, and the plan."""

    model_config = _STRICT

    study: Kind
    name: str | None = None
    claims: str
    """A file, relative to this one, or `plain`."""
    models: list[str] = Field(min_length=1)
    lenses: list[LensCode] = Field(default=[RPL], min_length=1)
    readouts: list[Readout] = Field(default=[SAMPLED], min_length=1)
    on: str = Field(default=LOCAL, pattern=rf"^{LOCAL}$|{ON_A_CLUSTER}")
    """Place to measure: this process, or a cluster, as the `on` of a configuration."""
    plan: dict[str, Any] = Field(default_factory=dict)
    """Keys of a configuration: preset, K, R, T, budget_usd, …"""
    evidence: EvidenceConfig | None = None


def read_request(path: str | Path) -> Request:
    """Read a study file. A mistake in it is told with its line and the nearest known key."""
    path = Path(path)
    declared = read_yaml(path, StudyFile)
    claims, plan = declared.claims, declared.plan
    if declared.on != LOCAL:
        plan = {**plan, "on": declared.on}
    if claims != PLAIN and not Path(claims).is_absolute():
        claims = str(path.parent / claims)
    return Request(
        kind=declared.study,
        items=read_items(claims, declared.study),
        config=make_config(
            plan,
            declared.models,
            source=str(path),
            lenses=declared.lenses,
            evidence=declared.evidence,
        ),
        name=declared.name or path.stem,
        readouts=tuple(declared.readouts),
    )


def make_config(
    plan: Mapping[str, Any],
    models: Sequence[str],
    *,
    source: str,
    lenses: Sequence[str] = (RPL,),
    evidence: EvidenceConfig | None = None,
) -> RunConfig:
    """Make the configuration of a plan's keys; what a study decides itself is no key of it."""
    for key in plan:
        if key not in _PLAN_KEYS:
            near = hint(str(key), _PLAN_KEYS)
            raise ConfigError(f"`{source}`: unknown key `plan.{key}`{near}")
    if plan.get("language") == AUTO:
        raise ConfigError(f"`{source}`: `plan.language` must name one: a study has one bank")
    values: dict[str, Any] = {**plan, "models": tuple(models), "lenses": tuple(lenses)}
    if evidence is not None:
        values["evidence"] = evidence
    return RunConfig.parse(values, source=f"`{source}`")


def read_yaml(path: Path, record: type[M], *, inner: Sequence[str] = ()) -> M:
    """Read a file of one record; `inner` are keys further in, for hints at misspelt ones."""
    text = _read_text(path, "file")
    try:
        document = load(text)
        if not isinstance(document.values, dict):
            raise YamlFault(1, "must hold `key: value` lines")
        try:
            return record.model_validate(document.values)
        except ValidationError as exc:
            faults = find_faults(exc, document, known=[*record.model_fields, *inner])
            raise ConfigError("\n".join(fault.at(str(path)) for fault in faults)) from exc
    except YamlFault as fault:
        raise ConfigError(fault.at(str(path))) from fault


# Measuring.


def prepare_study(
    request: Request, settings: Settings, *, mock: bool = False, calls: bool = True
) -> tuple[Measurement, ...]:
    """Prepare a study's measurements; relatives are measured in their claim's wordings.

    `distribution` stands beside `sampled`, whose prompts it asks; any other read-out is a
    measurement of its own.
    """
    if request.kind == "coherence" and request.config.lenses != (RPL,):
        raise ConfigError(
            f"`lenses` of a coherence study must be {RPL}, got {', '.join(request.config.lenses)}: "
            "documents for a claim aren't those for its negation"
        )
    shown = [lens for lens in request.config.lenses if LENSES[lens].needs_documents]
    if request.kind == "card" and len(shown) > 1:
        raise ConfigError(
            f"`lenses` of a card must hold one with documents, got {', '.join(shown)}: use of "
            "evidence is one number; make a card for each"
        )
    configs = request.configs()
    once = next((one for one in configs if one.readout == SAMPLED and one.R < 2), None)
    if request.kind in ("variance", "card") and once is not None:
        raise ConfigError(
            f"`R` must be at least 2 to tell wordings from repeats, got {once.R}; "
            "leave the preset out, or give R"
        )
    claims = [item.claim for item in request.items]
    related = request.items if request.kind in ("coherence", "card") else ()
    siblings = tuple((Claim(item.claim), Claim(other)) for item in related for other in item.others)
    budget_id = f"run:{uuid.uuid4()}"
    found = {
        config.readout: replace(
            prepare(config, settings, claims=claims, mock=mock, calls=calls),
            siblings=siblings,
            budget_id=budget_id,
        )
        for config in configs
    }
    one = found.get(SAMPLED)
    # A cluster's parts are cut by claim, for one read-out each.
    here = one is not None and one.config.until_width is None and one.config.on is None
    if here and DISTRIBUTION in found:
        found[SAMPLED] = replace(found[SAMPLED], beside=found.pop(DISTRIBUTION))
    return tuple(found.values())


def add_placebo(kind: Kind, measurement: Measurement) -> Measurement:
    """Add irrelevant text of the same length to what a card measures beside its documents."""
    if kind != "card" or not measurement.bundles:
        return measurement
    # Imported as needed: most studies show no documents.
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.experiments import list_irrelevant_documents, make_sham

    found = [
        (claim, measurement.bundles.get((claim.text, lens)))
        for claim in measurement.claims
        for lens in measurement.config.lenses
    ]
    shams = [
        (claim, make_sham(bundle, list_irrelevant_documents(claim.text)))
        for claim, bundle in found
        if isinstance(bundle, Bundle)
    ]
    return replace(measurement, variants=tuple(shams))


def finish_study(
    request: Request,
    measured: Sequence[tuple[Measurement, Mapping[RunName, str]]],
    store: Store,
) -> StudyRecord:
    """Read the runs of each measurement from the store, conclude, and make the record."""
    runs: list[StudyRun] = []
    plans = []
    for measurement, executions in measured:
        for one in (measurement, measurement.beside):
            if one is None:
                continue
            config = one.config
            plans.append(
                StudyPlan(
                    readout=config.readout,
                    prompt_version=one.bank.version,
                    sampling={"K": config.K, "R": config.R, "T": config.T},
                )
            )
        runs += [read_run(store, ref) for ref in executions.values()]
    models = [model.identity for model in measured[0][0].models]
    readouts = [plan.readout for plan in plans]
    # Sampled answers stand first, whatever was asked first: the others are held against them.
    readouts.sort(key=lambda readout: readout != SAMPLED)
    runs.sort(
        key=lambda run: (
            models.index(run.model),
            readouts.index(run.readout),
            run.lens,
            run.claim,
            run.variant or "",
        )
    )
    draft = StudyRecord(
        schema=SCHEMA,
        name=request.name,
        made_at=utc_now(),
        heretix_version=VERSION,
        plans=tuple(plans),
        items=request.items,
        runs=tuple(runs),
        results=conclude(request.kind, request.items, runs),
        sha256="",
    )
    return draft.model_copy(update={"sha256": digest_study(draft)})


def study_run(run: RunRecord) -> StudyRun:
    """Take from a run what studies use."""
    return StudyRun(
        claim=run.claim,
        model=run.model,
        provider=run.provider,
        lens=run.lens,
        readout=run.readout.name if run.readout else SAMPLED,
        variant=run.evidence.variant if run.evidence else None,
        demonstration=run.demonstration,
        execution_id=run.execution_id,
        run_id=run.run_id,
        run_sha256=run.sha256,
        prob_true=run.aggregates.prob_true_rpl,
        ci95=run.aggregates.ci95,
        logits=dict(sorted(logits_by_stem(run).items())),
        calls=run.usage.called,
        cost_usd=run.usage.cost_usd,
    )


def read_run(store: Store, ref: str) -> StudyRun:
    """Read what studies use of a stored run."""
    return study_run(RunRecord.model_validate_json(store.read(find_record, ref).record_json))


def read_logits(
    store: Store, *, claim: str | None = None, model: str | None = None, limit: int = 200
) -> list[StudyRun]:
    """Read the latest stored raw priors with an estimate, of a claim or a model."""
    wanted = RunFilter(claim=claim, model=model, lens=RPL)
    rows = store.read(select_runs_page, wanted, limit=limit, after=None)
    chosen = [row for row in rows if row.prob_true_rpl is not None and row.variant is None]
    return [read_run(store, row.execution_id) for row in chosen]


# Concluding: pure functions of items and runs.

_ByClaim = Mapping[str, StudyRun]


def conclude(kind: Kind, items: Sequence[Item], runs: Sequence[StudyRun]) -> Results:
    """Work out the results of a study."""
    by_subject: dict[Subject, dict[str, StudyRun]] = {}
    shams: dict[str, dict[tuple[str, str], StudyRun]] = {}
    for run in runs:
        if run.variant is not None:
            if run.prob_true is not None:
                shams.setdefault(run.model, {})[run.lens, run.claim] = run
            continue
        subject = Subject(run.model, run.lens, run.readout)
        by_subject.setdefault(subject, {})[run.claim] = run
    measured = {
        subject: {claim: run for claim, run in found.items() if run.prob_true is not None}
        for subject, found in by_subject.items()
    }
    if kind == "calibration":
        return _conclude_calibration(items, measured)
    if kind == "variance":
        return VarianceResults(
            kind="variance",
            subjects=tuple(
                _variance_of(subject, items, found) for subject, found in measured.items()
            ),
        )
    raw = {subject: found for subject, found in measured.items() if subject.lens == RPL}
    if kind == "coherence":
        subjects = tuple(_coherence_of(subject, items, found) for subject, found in raw.items())
        return CoherenceResults(
            kind="coherence", subjects=subjects, comparisons=_compare_to_sampled(items, subjects)
        )
    return CardResults(
        kind="card",
        subjects=tuple(
            _card_of(
                subject,
                items,
                {s.lens: f for s, f in measured.items() if s == subject._replace(lens=s.lens)},
                shams.get(subject.model, {}),
            )
            for subject in raw
        ),
    )


def _conclude_calibration(
    items: Sequence[Item], measured: Mapping[Subject, _ByClaim]
) -> CalibrationResults:
    forecasts = {
        subject: _forecasts(items, {claim: run.prob_true for claim, run in found.items()})
        for subject, found in measured.items()
    }
    subjects = []
    for subject, rows in forecasts.items():
        fitted, reason = _try_calibrate(rows)
        subjects.append(
            CalibrationOf(
                **subject._asdict(),
                left_out=len(items) - len(rows),
                calibration=fitted,
                reason=reason,
            )
        )
    # A model is named by what tells subjects apart.
    several = [len(set(column)) > 1 for column in zip(*forecasts, strict=True)]
    comparisons: list[Between] = []
    for pair in itertools.combinations(forecasts, 2):
        a, b = (" ".join([one.model, *itertools.compress(one[1:], several[1:])]) for one in pair)
        comparisons += _compare(a, b, *(forecasts[one] for one in pair))
    return CalibrationResults(
        kind="calibration", subjects=tuple(subjects), comparisons=tuple(comparisons)
    )


def _compare(
    a: str, b: str, rows_a: Sequence[Forecast], rows_b: Sequence[Forecast]
) -> Iterator[Between]:
    """Compare two subjects where they share enough claims."""
    with contextlib.suppress(NoEstimateError):
        yield Between(a=a, b=b, comparison=compare_models(rows_a, rows_b))


def _compare_to_sampled(
    items: Sequence[Item], subjects: Sequence[CoherenceOf]
) -> tuple[Between, ...]:
    """Hold each read-out of a model against its sampled answers, as said and freed."""
    sampled = {one.model: one for one in subjects if one.readout == SAMPLED}
    comparisons: list[Between] = []
    for one in subjects:
        base = sampled.get(one.model)
        if base is None or base is one:
            continue
        for what, rows in (("as said", _forecast_said), ("freed", _forecast_freed)):
            a, b = (f"{side.model} {side.readout} {what}" for side in (base, one))
            comparisons += _compare(a, b, rows(items, base.pairs), rows(items, one.pairs))
    return tuple(comparisons)


def _forecast_said(items: Sequence[Item], pairs: Sequence[PairOf]) -> list[Forecast]:
    return _forecasts(items, {one.claim: one.pair.prob_claim for one in pairs})


def _forecast_freed(items: Sequence[Item], pairs: Sequence[PairOf]) -> list[Forecast]:
    return _forecasts(items, {one.claim: one.pair.prob_free for one in pairs})


def _forecasts(items: Sequence[Item], probs: Mapping[str, float | None]) -> list[Forecast]:
    return [
        Forecast(claim=item.claim, prob=prob, outcome=item.label)
        for item in items
        if item.label is not None and (prob := probs.get(item.claim)) is not None
    ]


def _try_calibrate(rows: Sequence[Forecast]) -> tuple[Calibration | None, str | None]:
    try:
        return calibrate(rows), None
    except NoEstimateError as exc:
        return None, str(exc)


def _variance_of(subject: Subject, items: Sequence[Item], found: _ByClaim) -> VarianceOf:
    own = [found[item.claim].logits for item in items if item.claim in found]
    if subject.readout != SAMPLED:
        # Log-probabilities hold no chance: a repeat would say the same.
        own = [{stem: values * 2 for stem, values in logits.items()} for logits in own]
    components, reason = None, None
    try:
        components = estimate_components(own)
    except NoEstimateError as exc:
        reason = str(exc)
    return VarianceOf(
        **subject._asdict(),
        left_out=len(items) - len(own),
        components=components,
        reason=reason,
    )


def _coherence_of(subject: Subject, items: Sequence[Item], found: _ByClaim) -> CoherenceOf:
    pairs: list[PairOf] = []
    rules: list[RuleOf] = []
    left_out = 0
    for item in items:
        sides = [found[text].logits for text in (item.claim, *item.others) if text in found]
        try:
            if len(sides) != 1 + len(item.others):
                raise NoEstimateError("a side has no estimate")
            if item.relation == "negation":
                pairs.append(PairOf(claim=item.claim, pair=compare_negation(*sides)))
            else:
                rules += [RuleOf(claim=item.claim, rule=r) for r in _check_rules(item, sides)]
        except NoEstimateError:
            left_out += 1
    said, freed = _forecast_said(items, pairs), _forecast_freed(items, pairs)
    return CoherenceOf(
        model=subject.model,
        readout=subject.readout,
        left_out=left_out,
        pairs=tuple(pairs),
        rules=tuple(rules),
        summary=summarise_pairs([one.pair for one in pairs]) if len(pairs) > 1 else None,
        as_said=_try_calibrate(said)[0],
        freed=_try_calibrate(freed)[0],
        gain=compare_models(said, freed) if len(said) > 1 else None,
    )


def _check_rules(item: Item, sides: Sequence[Logits]) -> tuple[Rule, ...]:
    if item.relation == "entailment":
        return (check_entailment(*sides),)
    if item.relation == "paraphrase":
        return (check_paraphrase(*sides),)
    return (check_conjunction if item.relation == "conjunction" else check_disjunction)(*sides)


def _card_of(
    subject: Subject,
    items: Sequence[Item],
    found: Mapping[str, _ByClaim],
    shams: Mapping[tuple[str, str], StudyRun],
) -> CardOf:
    raw = found[RPL]
    coherence = _coherence_of(subject, [item for item in items if item.relation == "negation"], raw)
    labelled = _forecasts(items, {claim: run.prob_true for claim, run in raw.items()})
    fitted, reason = _try_calibrate(labelled)
    variance = _variance_of(subject, items, raw)
    components = variance.components
    coherent = _standard(
        "coherence",
        coherence.summary and coherence.summary.violation,
        len(coherence.pairs),
        "needs at least 2 claims with a `negation`",
    )
    if coherent.value is not None:
        alone = expect_violation([one.pair for one in coherence.pairs])
        coherent = replace(coherent, scatter_alone=alone)
    return CardOf(
        model=subject.model,
        readout=subject.readout,
        left_out=sum(item.claim not in raw for item in items),
        standards=(
            _standard("accuracy", fitted and fitted.auroc, len(labelled), reason),
            coherent,
            _standard(
                "uniformity",
                components and components.template_interval,
                components.n_runs if components else 0,
                variance.reason or "needs at least 2 claims",
            ),
            *_judge_use_of_evidence(items, found, shams),
        ),
    )


def _standard(name: Any, score: Any, n_claims: int, reason: str | None) -> Standard:
    if score is None or score.value is None:
        reason = (score.reason if score is not None else None) or reason
        return Standard(name=name, value=None, lo=None, hi=None, n_claims=n_claims, reason=reason)
    return Standard(name=name, value=score.value, lo=score.lo, hi=score.hi, n_claims=n_claims)


def _judge_use_of_evidence(
    items: Sequence[Item],
    found: Mapping[str, _ByClaim],
    shams: Mapping[tuple[str, str], StudyRun],
) -> Iterator[Standard]:
    """Measure how far documents move beliefs to the truth, in log-odds, against the empty frame;
    where it was tried, against irrelevant text, too."""
    shown = [lens for lens in found if LENSES[lens].needs_documents]
    if not shown or NUL not in found:
        reason = f"needs lenses with documents and {NUL}: --lens RPL,NUL,MEL with --corpus"
        yield _standard("evidence", None, 0, reason)
        return
    lens = shown[0]
    own_shams = {claim: run for (of, claim), run in shams.items() if of == lens}
    reason = f"needs at least 2 labelled claims with documents for {lens}"
    moves = _measure_moves_to_truth(items, found[NUL], found[lens])
    yield _standard("evidence", mean_t(moves) if len(moves) > 1 else None, len(moves), reason)
    if own_shams:
        beyond = _measure_moves_to_truth(items, own_shams, found[lens])
        found_t = mean_t(beyond) if len(beyond) > 1 else None
        yield _standard("evidence_minus_sham", found_t, len(beyond), reason)


def _measure_moves_to_truth(items: Sequence[Item], base: _ByClaim, moved: _ByClaim) -> list[float]:
    """List by how much each labelled claim moved in the right direction, in log-odds."""
    moves = []
    for item in items:
        before, after = base.get(item.claim), moved.get(item.claim)
        if item.label is None or before is None or after is None:
            continue
        with contextlib.suppress(NoEstimateError):
            shift = paired_template_t(before.logits, after.logits).diff_logit.value
            moves.append(shift if item.label else -shift)
    return moves


def _has_result(subject: CalibrationOf | CoherenceOf | VarianceOf | CardOf) -> bool:
    if isinstance(subject, CalibrationOf):
        return subject.calibration is not None
    if isinstance(subject, CoherenceOf):
        return bool(subject.pairs or subject.rules)
    if isinstance(subject, VarianceOf):
        return subject.components is not None
    return any(standard.value is not None for standard in subject.standards)


# Verifying.


def _center(logits: Logits) -> float:
    """The published belief: the trimmed mean over template means."""
    means = [mean(values) for values in order_templates(logits).values()]
    return sigmoid(trimmed_mean(means, trim_cut(len(means), center="trimmed", trim=DEFAULT_TRIM)))


def digest_study(record: StudyRecord) -> str:
    """SHA-256 over all of a record but its own digest."""
    return sha256_json(record.model_dump(mode="json", by_alias=True, exclude={"sha256"}))


def verify_study(record: StudyRecord, store: Store | None = None) -> Verification:
    """Derive results and beliefs again from the record; a store tells whether its runs agree."""
    differences = []
    if (derived := digest_study(record)) != record.sha256:
        differences.append(Mismatch("sha256", record.sha256, derived))
    again = record.model_copy(update={"results": conclude(record.kind, record.items, record.runs)})
    sides = [one.model_dump(mode="json", by_alias=True) for one in (record, again)]
    for run in sides[1]["runs"]:
        if run["prob_true"] is not None:
            run["prob_true"] = _center(run["logits"])
    pairs = list(compare_leaves("", *sides))
    differences += [pair for pair in pairs if not is_same_value(pair.recorded, pair.derived)]
    notes = []
    if store is not None:
        held = 0
        for number, run in enumerate(record.runs):
            kept = store.read(select_record, run.execution_id)
            if kept is None:
                continue
            held += 1
            stored = study_run(RunRecord.model_validate_json(kept.record_json))
            both = [one.model_dump(mode="json") for one in (run, stored)]
            leaves = compare_leaves(f"runs[{number}]", *both)
            differences += [leaf for leaf in leaves if leaf.recorded != leaf.derived]
        notes.append(f"{held} of {len(record.runs)} runs are in {store.name}")
    return Verification(
        execution_id=record.name or record.kind,
        run_id=record.sha256[:12],
        checked=len(pairs) + 1,
        differences=tuple(differences),
        notes=tuple(notes),
    )
