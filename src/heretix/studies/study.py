"""A study: many claims measured at once, what they say together of a model, and its record.

The mathematics stands in `calibration`, `coherence` and `design`. Here are the claims with what is
known of them, the one measuring service, and a record that holds every number the results follow
from: `verify_study` derives them again.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heretix.belief.estimator import (
    DEFAULT_TRIM,
    mean,
    order_templates,
    trim_cut,
    trimmed_mean,
)
from heretix.belief.logodds import sigmoid
from heretix.belief.student import TInterval, mean_t
from heretix.belief.template_t import paired_template_t
from heretix.config import Claim, EvidenceConfig, RunConfig, check_claim
from heretix.core.canonical import sha256_json
from heretix.core.clock import utc_now
from heretix.core.errors import ClaimError, ConfigError, NoEstimateError, RecordError
from heretix.core.lenses import LENSES, NUL, RPL, LensCode
from heretix.core.validation import find_faults
from heretix.core.yaml_lines import YamlFault, hint, load
from heretix.measurement.record import RunRecord
from heretix.measurement.service import Measurement, RunName, prepare
from heretix.measurement.vector import logits_by_stem
from heretix.measurement.verify import Mismatch, Verification, compare_leaves, same_value
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
    summarise_pairs,
)
from heretix.studies.design import VarianceComponents, estimate_components
from heretix.version import VERSION

if TYPE_CHECKING:
    from heretix.core.settings import Settings
    from heretix.store import Store

SCHEMA: Final = "heretix-study/1"
PLAIN: Final = "plain"
"""The packaged claims: everyday facts with their negations, half of them false."""

Kind = Literal["calibration", "coherence", "variance", "card"]
Relation = Literal["negation", "entailment", "paraphrase", "conjunction", "disjunction"]
Logits = dict[str, list[float]]
M = TypeVar("M", bound=BaseModel)

_STRICT: Final = ConfigDict(frozen=True, extra="forbid", strict=True)
_LABELS: Final[Mapping[str, bool]] = {"1": True, "true": True, "0": False, "false": False}
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
    """What a study measures, and of which kind it is."""

    kind: Kind
    items: tuple[Item, ...]
    config: RunConfig
    name: str | None = None


class StudyRun(BaseModel):
    """What a study uses of a run, and the digest of the run's own record."""

    model_config = _STRICT

    claim: str
    model: str
    provider: str
    lens: LensCode
    demonstration: bool
    execution_id: str
    run_id: str
    run_sha256: str
    prob_true: float | None
    """As published; null without an estimate."""
    logits: Logits
    """Compliant answers in log-odds, by the number of the wording."""
    calls: int
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOf:
    """Calibration of one model under one lens; why it has none, where it has none."""

    model: str
    lens: str
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
    """Coherence of one model."""

    model: str
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
    """Every model."""

    kind: Literal["coherence"]
    subjects: tuple[CoherenceOf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceOf:
    """Variance components of one model under one lens."""

    model: str
    lens: str
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

    name: Literal["accuracy", "coherence", "uniformity", "evidence"]
    value: float | None
    lo: float | None
    hi: float | None
    n_claims: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOf:
    """The card of one model."""

    model: str
    left_out: int
    standards: tuple[Standard, ...]


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
    """What a study measured and concluded. Everything in `results` follows from the rest."""

    model_config = _STRICT

    schema_: Literal["heretix-study/1"] = Field(alias="schema")
    name: str | None
    made_at: str
    heretix_version: str
    prompt_version: str
    sampling: dict[str, int | None]
    items: tuple[Item, ...]
    runs: tuple[StudyRun, ...]
    results: Results
    sha256: str
    """Of the canonical JSON of everything above."""

    @property
    def kind(self) -> Kind:
        """Which study it is."""
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
        first = exc.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise RecordError(
            f"`{path}` must be a record of schema {SCHEMA!r}: `{where}` {first['msg']}; give what "
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
    """Read claims from .jsonl or .csv; `plain` are the packaged ones.

    Columns: `claim`; `label` (1/0, true/false); `negation`, `entails`, `paraphrase`, or `other`
    with `both` or `either`.
    """
    if str(source) == PLAIN:
        packaged = resources.files("heretix.studies").joinpath("plain.jsonl")
        rows = _json_rows(packaged.read_text(encoding="utf-8"), PLAIN)
    else:
        path = Path(source)
        readers = {".jsonl": _json_rows, ".ndjson": _json_rows, ".csv": _csv_rows}
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise ConfigError(
                f"`claims` must be a file that ends in .jsonl or .csv, or {PLAIN}, got {source!s}"
            )
        rows = reader(_read_text(path, "claims"), str(path))
    return check_items([make_item(row, where) for where, row in rows], kind)


def make_item(row: Mapping[str, Any], where: str = "claims") -> Item:
    """Read one row: its claim, its label, and the relation that its columns name."""
    given = {name: value for name, value in row.items() if value not in (None, "")}
    try:
        claim = check_claim(str(given.get("claim", "")))
        found = [name for name, needs in _OTHERS.items() if needs[-1] in given]
        if len(found) > 1:
            raise ClaimError(f"`claim` must have one relation, got {', '.join(found)}")
        needs = _OTHERS[found[0]] if found else ()
        if lacking := [name for name in needs if name not in given]:
            raise ClaimError(f"`{needs[-1]}` needs `{lacking[0]}` beside it")
        others = tuple(check_claim(str(given[name])) for name in needs)
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


_Row = tuple[str, Mapping[str, Any]]
"""Where it stands, and what it holds."""


def _json_rows(text: str, source: str) -> list[_Row]:
    rows: list[_Row] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source} line {number}"
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise ConfigError(f"`claims` {where}: not JSON ({exc})") from exc
        if not isinstance(row, dict):
            raise ConfigError(f"`claims` {where}: must be an object with a text `claim`")
        rows.append((where, row))
    return rows


def _csv_rows(text: str, source: str) -> list[_Row]:
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    try:
        return [(f"{source} line {reader.line_num}", row) for row in reader]
    except csv.Error as exc:
        raise ConfigError(f"`claims` {source} line {reader.line_num}: {exc}") from exc


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
    *("temperature", "reasoning_effort", "base_url", "max_output_tokens"),
    *("concurrency", "rpm", "tpm", "budget_usd"),
)


class StudyFile(BaseModel):
    """A study as it stands in a YAML file: claims × models × lenses, and the plan."""

    model_config = _STRICT

    study: Kind
    name: str | None = None
    claims: str
    """A file, relative to this one, or `plain`."""
    models: list[str] = Field(min_length=1)
    lenses: list[LensCode] = Field(default=[RPL], min_length=1)
    plan: dict[str, Any] = Field(default_factory=dict)
    """Keys of a configuration: preset, K, R, T, budget_usd, …"""
    evidence: EvidenceConfig | None = None


def read_request(path: str | Path) -> Request:
    """Read a study file. A mistake in it is told with its line and the nearest known key."""
    path = Path(path)
    declared = read_yaml(path, StudyFile)
    claims = declared.claims
    if claims != PLAIN and not Path(claims).is_absolute():
        claims = str(path.parent / claims)
    return Request(
        kind=declared.study,
        items=read_items(claims, declared.study),
        config=make_config(
            declared.plan,
            declared.models,
            source=str(path),
            lenses=declared.lenses,
            evidence=declared.evidence,
        ),
        name=declared.name or path.stem,
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
    values: dict[str, Any] = {**plan, "models": tuple(models), "lenses": tuple(lenses)}
    if evidence is not None:
        values["evidence"] = evidence
    return RunConfig.parse(values, source=f"`{source}`")


def read_yaml(path: Path, record: type[M]) -> M:
    """Read a file of one record."""
    text = _read_text(path, "file")
    try:
        document = load(text)
        if not isinstance(document.values, dict):
            raise YamlFault(1, "must hold `key: value` lines")
        try:
            return record.model_validate(document.values)
        except ValidationError as exc:
            faults = find_faults(exc, document, known=list(record.model_fields))
            raise ConfigError("\n".join(fault.at(str(path)) for fault in faults)) from exc
    except YamlFault as fault:
        raise ConfigError(fault.at(str(path))) from fault


# Measuring.


def prepare_study(
    request: Request, settings: Settings, *, mock: bool = False, calls: bool = True
) -> Measurement:
    """Prepare the one measurement of a study; relatives are measured in their claim's wordings."""
    if request.kind == "coherence" and request.config.lenses != (RPL,):
        raise ConfigError(
            f"`lenses` of a coherence study must be {RPL}, got {', '.join(request.config.lenses)}: "
            "documents for a claim aren't those for its negation"
        )
    if request.kind in ("variance", "card") and request.config.R < 2:
        raise ConfigError(
            f"`R` must be at least 2 to tell wordings from repeats, got {request.config.R}; "
            "leave the preset out, or give R"
        )
    claims = [item.claim for item in request.items]
    measurement = prepare(request.config, settings, claims=claims, mock=mock, calls=calls)
    if request.kind not in ("coherence", "card"):
        return measurement
    siblings = tuple(
        (Claim(item.claim), Claim(other)) for item in request.items for other in item.others
    )
    return replace(measurement, siblings=siblings)


def finish_study(
    request: Request, measurement: Measurement, executions: Mapping[RunName, str], store: Store
) -> StudyRecord:
    """Read the measured runs from the store, conclude, and make the record."""
    order = [model.identity for model in measurement.models]
    names = sorted(executions, key=lambda name: (order.index(name[1]), name[2], name[0]))
    runs = tuple(read_run(store, executions[name]) for name in names)
    config = measurement.config
    draft = StudyRecord(
        schema=SCHEMA,
        name=request.name,
        made_at=utc_now(),
        heretix_version=VERSION,
        prompt_version=measurement.bank.version,
        sampling={"K": config.K, "R": config.R, "T": config.T},
        items=request.items,
        runs=runs,
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
        demonstration=run.demonstration,
        execution_id=run.execution_id,
        run_id=run.run_id,
        run_sha256=run.sha256,
        prob_true=run.aggregates.prob_true_rpl,
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
    by_subject: dict[tuple[str, str], dict[str, StudyRun]] = {}
    for run in runs:
        by_subject.setdefault((run.model, run.lens), {})[run.claim] = run
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
                _variance_of(model, lens, items, found) for (model, lens), found in measured.items()
            ),
        )
    raw = {model: found for (model, lens), found in measured.items() if lens == RPL}
    if kind == "coherence":
        subjects = tuple(_coherence_of(model, items, found) for model, found in raw.items())
        return CoherenceResults(kind="coherence", subjects=subjects)
    return CardResults(
        kind="card",
        subjects=tuple(
            _card_of(model, items, {lens: f for (m, lens), f in measured.items() if m == model})
            for model in raw
        ),
    )


def _conclude_calibration(
    items: Sequence[Item], measured: Mapping[tuple[str, str], _ByClaim]
) -> CalibrationResults:
    forecasts = {
        subject: _forecasts(items, {claim: run.prob_true for claim, run in found.items()})
        for subject, found in measured.items()
    }
    subjects = []
    for (model, lens), rows in forecasts.items():
        fitted, reason = _try_calibrate(rows)
        left_out = len(items) - len(rows)
        subjects.append(
            CalibrationOf(
                model=model, lens=lens, left_out=left_out, calibration=fitted, reason=reason
            )
        )
    several_lenses = len({lens for _, lens in forecasts}) > 1
    comparisons = []
    for one, other in itertools.combinations(forecasts, 2):
        names = [f"{m} {lens}" if several_lenses else m for m, lens in (one, other)]
        try:
            found = compare_models(forecasts[one], forecasts[other])
        except NoEstimateError:
            continue
        comparisons.append(Between(a=names[0], b=names[1], comparison=found))
    return CalibrationResults(
        kind="calibration", subjects=tuple(subjects), comparisons=tuple(comparisons)
    )


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


def _variance_of(model: str, lens: str, items: Sequence[Item], found: _ByClaim) -> VarianceOf:
    own = [found[item.claim].logits for item in items if item.claim in found]
    components, reason = None, None
    try:
        components = estimate_components(own)
    except NoEstimateError as exc:
        reason = str(exc)
    return VarianceOf(
        model=model,
        lens=lens,
        left_out=len(items) - len(own),
        components=components,
        reason=reason,
    )


def _coherence_of(model: str, items: Sequence[Item], found: _ByClaim) -> CoherenceOf:
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
    said = _forecasts(items, {one.claim: one.pair.prob_claim for one in pairs})
    freed = _forecasts(items, {one.claim: one.pair.prob_free for one in pairs})
    return CoherenceOf(
        model=model,
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


def _card_of(model: str, items: Sequence[Item], found: Mapping[str, _ByClaim]) -> CardOf:
    raw = found[RPL]
    coherence = _coherence_of(model, [item for item in items if item.relation == "negation"], raw)
    labelled = _forecasts(items, {claim: run.prob_true for claim, run in raw.items()})
    fitted, reason = _try_calibrate(labelled)
    variance = _variance_of(model, RPL, items, raw)
    components = variance.components
    return CardOf(
        model=model,
        left_out=sum(item.claim not in raw for item in items),
        standards=(
            _standard("accuracy", fitted and fitted.auroc, len(labelled), reason),
            _standard(
                "coherence",
                coherence.summary and coherence.summary.violation,
                len(coherence.pairs),
                "needs at least 2 claims with a `negation`",
            ),
            _standard(
                "uniformity",
                components and components.template_interval,
                components.n_runs if components else 0,
                variance.reason or "needs at least 2 claims",
            ),
            _use_of_evidence(items, found),
        ),
    )


def _standard(name: Any, score: Any, n_claims: int, reason: str | None) -> Standard:
    if score is None or score.value is None:
        reason = (score.reason if score is not None else None) or reason
        return Standard(name=name, value=None, lo=None, hi=None, n_claims=n_claims, reason=reason)
    return Standard(name=name, value=score.value, lo=score.lo, hi=score.hi, n_claims=n_claims)


def _use_of_evidence(items: Sequence[Item], found: Mapping[str, _ByClaim]) -> Standard:
    """How far documents move the belief towards the truth, in log-odds, against the empty frame."""
    shown = [lens for lens in found if LENSES[lens].needs_documents]
    if not shown or NUL not in found:
        reason = f"needs lenses with documents and {NUL}: --lens RPL,NUL,MEL with --corpus"
        return _standard("evidence", None, 0, reason)
    moves = []
    for item in items:
        sides = [found[lens].get(item.claim) for lens in (NUL, shown[0])]
        base, moved = sides
        if item.label is None or base is None or moved is None:
            continue
        try:
            shift = paired_template_t(base.logits, moved.logits).diff_logit.value
        except NoEstimateError:
            continue
        moves.append(shift if item.label else -shift)
    moved_by: TInterval | None = mean_t(moves) if len(moves) > 1 else None
    reason = f"needs at least 2 labelled claims with documents for {shown[0]}"
    return _standard("evidence", moved_by, len(moves), reason)


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
    differences += [pair for pair in pairs if not same_value(pair.recorded, pair.derived)]
    notes = []
    if store is not None:
        held = 0
        for number, run in enumerate(record.runs):
            kept = store.read(select_record, run.execution_id)
            if kept is None:
                continue
            held += 1
            stored = study_run(RunRecord.model_validate_json(kept.record_json))
            if stored != run:
                path = f"runs[{number}].run_sha256"
                differences.append(Mismatch(path, run.run_sha256, stored.run_sha256))
        notes.append(f"{held} of {len(record.runs)} runs are in {store.name}")
    return Verification(
        execution_id=record.name or record.kind,
        run_id=record.sha256[:12],
        checked=len(pairs) + 1,
        differences=tuple(differences),
        notes=tuple(notes),
    )
