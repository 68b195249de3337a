"""The library: measure a claim, measure many, load what was measured."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, overload

from heretix.config import EvidenceConfig, RunConfig, parse_lenses
from heretix.core.errors import (
    ConfigError,
    InsufficientEvidenceError,
    MissingPartError,
    NoEstimateError,
)
from heretix.core.event_loop import run_async
from heretix.core.lenses import needs_documents
from heretix.core.settings import Settings
from heretix.measurement.record import Artifact, RunRecord, write_artifact
from heretix.measurement.service import (
    Measurement,
    Results,
    assemble,
    gather_evidence,
    keep_bundles,
    prepare,
    require_evidence,
    run_names,
)
from heretix.measurement.service import measure as run_measurement
from heretix.measurement.verify import read_artifacts
from heretix.report.export import arrow_schema, columns_of, load_arrow, read_pages, storable
from heretix.report.words import missing_reason, no_estimate_reason
from heretix.store import Store

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from heretix.config import Claim
    from heretix.measurement.record import MetricsRecord, SampleRecord
    from heretix.measurement.runner import Observer
    from heretix.providers.catalog import ModelId
    from heretix.studies.study import Kind, Request, StudyRecord

__all__ = [
    "Belief",
    "BeliefVector",
    "frame",
    "load",
    "measure",
    "measure_async",
    "measure_many",
    "study",
]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Belief:
    """Belief of a model in a claim. `record` holds everything that was measured."""

    record: RunRecord

    @property
    def claim(self) -> str:
        """The claim, as measured."""
        return self.record.claim

    @property
    def model(self) -> str:
        """The model, as it stands in identities."""
        return self.record.model

    @property
    def prob(self) -> float:
        """Probability of truth. Raises `NoEstimateError` when too few samples were usable."""
        return self._require(self.record.aggregates.prob_true_rpl)

    @property
    def ci(self) -> tuple[float, float]:
        """The 95% interval of `prob`."""
        return self._require(self.record.aggregates.ci95)

    @property
    def stability(self) -> float:
        """1/(1 + IQR of the template means in log-odds): 1 when all wordings agree."""
        return self._require(self.record.aggregates.stability_score)

    def _require(self, value: _T | None) -> _T:
        if value is None:
            raise NoEstimateError(no_estimate_reason(self.record.reason) or "no estimate")
        return value

    def to_dict(self) -> dict[str, Any]:
        """The belief as one flat row; a number that there isn't is None, with the `reason`."""
        record, belief = self.record, self.record.aggregates
        ci_lo, ci_hi = belief.ci95 or (None, None)
        return {
            "claim": record.claim,
            "claim_id": record.claim_id,
            "model": record.model,
            "lens": record.lens,
            "prob": belief.prob_true_rpl,
            "ci_lo": ci_lo,
            "ci_hi": ci_hi,
            "ci_width": belief.ci_width,
            "stability": belief.stability_score,
            "stability_band": belief.stability_band,
            "compliance": belief.rpl_compliance_rate,
            **record.sampling.model_dump(),
            "calls": record.usage.called,
            "tokens_in": record.usage.tokens_in,
            "tokens_out": record.usage.tokens_out,
            "cost_usd": record.usage.cost_usd,
            "status": record.status,
            "reason": no_estimate_reason(record.reason) or None,
            "finished_at": record.finished_at,
            "run_id": record.run_id,
            "execution_id": record.execution_id,
        }

    def to_frame(self, *, as_: FrameKind = "pandas") -> Any:
        """The belief's samples as a data frame, one row each; `frame(beliefs)` has a row a belief.

        `as_` is "pandas", "polars" or "arrow".
        """
        return _frame(_SAMPLE_COLUMNS, [_sample_row(self, s) for s in self.record.samples], as_)

    def save(self, path: str | Path) -> None:
        """Write the artifact of this belief."""
        write_artifact(Path(path), Artifact.of([self.record]))

    def _repr_html_(self) -> str:
        # Imported as needed: drawing brings charts along.
        from heretix.report.document import belief_html

        return belief_html(self.record)

    def __repr__(self) -> str:
        belief = self.record.aggregates
        found = f"no estimate: {no_estimate_reason(self.record.reason)!r}"
        if belief.prob_true_rpl is not None and belief.ci95 is not None:
            found = (
                f"prob={belief.prob_true_rpl:.3f}, ci=({belief.ci95[0]:.3f}, {belief.ci95[1]:.3f})"
            )
        return f"Belief({_cut(self.claim)}, model={self.model!r}, lens={self.record.lens}, {found})"

    def __str__(self) -> str:
        belief = self.record.aggregates
        if belief.prob_true_rpl is None or belief.ci95 is None:
            return f"{self.model}: no estimate ({no_estimate_reason(self.record.reason)})"
        lo, hi = belief.ci95
        return f"{self.model}: p={belief.prob_true_rpl:.3f} [{lo:.3f}, {hi:.3f}] {self.claim!r}"


@dataclass(frozen=True, slots=True)
class BeliefVector:
    """Beliefs of a model in a claim under several lenses, and what lies between them."""

    artifact: Artifact

    @property
    def claim(self) -> str:
        """The claim, as measured."""
        return self.artifact.runs[0].claim

    @property
    def model(self) -> str:
        """The model, as it stands in identities."""
        return self.artifact.runs[0].model

    @property
    def beliefs(self) -> dict[str, Belief]:
        """The beliefs by lens code, of every lens that was measured."""
        return {run.lens: Belief(run) for run in self.artifact.runs}

    @property
    def missing(self) -> dict[str, str]:
        """Reason why a lens has no number, by lens code: too little evidence, or no estimate."""
        lines = self.artifact.lenses or ()
        return {line.lens: missing_reason(line.reason) for line in lines if line.prob_true is None}

    @property
    def metrics(self) -> MetricsRecord:
        """Shock Index, Amplification Gap and the others, with their intervals."""
        return (self.artifact.metrics or {})[self.model]

    def __getitem__(self, lens: str) -> Belief:
        """Return the belief under a lens. `InsufficientEvidenceError` where it has no documents."""
        found = self.beliefs.get(lens)
        if found is None and lens in self.missing:
            raise InsufficientEvidenceError(self.missing[lens])
        if found is None:
            measured = ", ".join(self.beliefs)
            raise ConfigError(f"`lens` must be one that was measured ({measured}), got {lens!r}")
        return found

    def save(self, path: str | Path) -> None:
        """Write the artifact of this vector: runs, bundles and metrics."""
        write_artifact(Path(path), self.artifact)

    def _repr_html_(self) -> str:
        from heretix.report.document import belief_html

        return "".join(
            [belief_html(run) for run in self.artifact.runs]
            + [f"<div>{code}: {escape(said)}</div>" for code, said in self.missing.items()]
        )

    def __repr__(self) -> str:
        probs = {run.lens: run.aggregates.prob_true_rpl for run in self.artifact.runs}
        shown = ", ".join(
            f"{lens}={'none' if prob is None else f'{prob:.3f}'}" for lens, prob in probs.items()
        )
        return f"BeliefVector({_cut(self.claim)}, model={self.model!r}, {shown})"

    def __str__(self) -> str:
        lines = [f"{code} {belief}" for code, belief in self.beliefs.items()]
        unmeasured = self.missing.keys() - self.beliefs.keys()
        return "\n".join(lines + [f"{code} {self.missing[code]}" for code in sorted(unmeasured)])


Measured = Belief | BeliefVector
FrameKind = Literal["pandas", "polars", "arrow"]
_REPR_CHARS = 60


def _cut(claim: str) -> str:
    """A claim in one short line."""
    return repr(claim if len(claim) <= _REPR_CHARS else f"{claim[: _REPR_CHARS - 1]}…")


def frame(
    what: str | Belief | BeliefVector | Iterable[Belief | BeliefVector],
    *,
    only: str | None = None,
    store: str | None = None,
    as_: FrameKind = "pandas",
) -> Any:
    """A data frame of a table ("runs", "executions", "samples", "transfers") or of beliefs.

    A table is read from the store; `only` chooses rows: runs and executions by text in the claim,
    model or id, samples by run, transfers by episode. Beliefs give one row each, of `to_dict()`.
    `as_` is "pandas", "polars" or "arrow"; each is imported when it is asked for.
    """
    if not isinstance(what, str):
        given = [what] if isinstance(what, Belief | BeliefVector) else what
        beliefs = [
            belief
            for one in given
            for belief in (one.beliefs.values() if isinstance(one, BeliefVector) else (one,))
        ]
        return _frame(_BELIEF_COLUMNS, [belief.to_dict() for belief in beliefs], as_)
    columns = columns_of(what)
    with Store.open(store or Settings.from_env().db, create=False) as opened:
        rows = [row for page in read_pages(opened, what, only) for row in page]
    return _frame(columns, rows, as_)


def _frame(columns: Sequence[tuple[str, str]], rows: list[dict[str, Any]], as_: str) -> Any:
    if as_ not in get_args(FrameKind):
        raise ConfigError(f"`as_` must be one of {', '.join(get_args(FrameKind))}, got {as_!r}")
    table = load_arrow().Table.from_pylist(storable(rows), schema=arrow_schema(columns))
    if as_ == "arrow":
        return table
    try:
        library = import_module(as_)
    except ImportError as exc:
        raise MissingPartError(
            f"`as_={as_}` needs {as_}, which isn't installed: `pip install {as_}`, or ask for "
            "another frame"
        ) from exc
    return table.to_pandas() if as_ == "pandas" else library.from_arrow(table)


_BELIEF_COLUMNS: Final = (
    *((name, "string") for name in ("claim", "claim_id", "model", "lens")),
    *((name, "float64") for name in ("prob", "ci_lo", "ci_hi", "ci_width", "stability")),
    ("stability_band", "string"),
    ("compliance", "float64"),
    *((name, "int64") for name in ("K", "R", "T", "N", "calls", "tokens_in", "tokens_out")),
    ("cost_usd", "float64"),
    *((name, "string") for name in ("status", "reason", "finished_at", "run_id", "execution_id")),
)
_OF_BELIEF: Final = (("claim", "string"), ("model", "string"), ("lens", "string"))
_SAMPLE_COLUMNS: Final = (
    *_OF_BELIEF,
    ("slot", "int64"),
    ("from_cache", "bool_"),
    ("compliant", "bool_"),
    *columns_of("samples"),
)


def _sample_row(belief: Belief, sample: SampleRecord) -> dict[str, Any]:
    values = {**asdict(sample), "run_id": belief.record.run_id}
    values |= {name: getattr(belief.record, name) for name, _ in _OF_BELIEF}
    return {name: values[name] for name, _ in _SAMPLE_COLUMNS}


@overload
def measure(
    claim: str,
    *,
    lenses: str | Sequence[str],
    model: str | None = None,
    store: str | None = None,
    **options: Any,
) -> Measured: ...
@overload
def measure(
    claim: str,
    *,
    lenses: None = None,
    model: str | None = None,
    store: str | None = None,
    **options: Any,
) -> Belief: ...
def measure(
    claim: str, *, model: str | None = None, store: str | None = None, **options: Any
) -> Measured:
    """Measure one claim with one model and return the belief; with several lenses, the vector.

    Options are the keys of a configuration file (K, R, T, B, seed, prompts_file, …), and those of
    its `evidence` (corpus, search, policy, documents, as_of, judge, …). Without a model, the first
    provider with a key is asked, else the embedded demonstration model. Works in a script, a
    notebook and inside a running event loop.

    `lenses` are codes ("RPL,MEL,HEL", a list, or "all"). Lenses that show documents search the
    demonstration corpus unless told otherwise; `bundles` are shown instead of searching. A lens
    without enough evidence is in the vector's `missing`, with the reason; when that is so of every
    lens that shows documents, `InsufficientEvidenceError` is raised and nothing is called.
    """
    return _wait(_measure((claim,), (model,) if model else None, store, None, options))[0]


@overload
def measure_many(
    claims: Iterable[str],
    *,
    lenses: str | Sequence[str],
    models: Iterable[str] | None = None,
    store: str | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> list[Measured]: ...
@overload
def measure_many(
    claims: Iterable[str],
    *,
    lenses: None = None,
    models: Iterable[str] | None = None,
    store: str | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> list[Belief]: ...
def measure_many(
    claims: Iterable[str],
    *,
    models: Iterable[str] | None = None,
    store: str | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> list[Belief] | list[Measured]:
    """Measure claims × models; beliefs (or vectors) come claim by claim, in the order given.

    A claim given twice is measured once, and stands in the result once for each model.
    `InsufficientEvidenceError` is raised only when no claim has enough evidence for any lens.
    """
    names = tuple(models) if models is not None else None
    return _wait(_measure(tuple(claims), names, store, observer, options))


@overload
async def measure_async(
    claim: str,
    *,
    lenses: str | Sequence[str],
    model: str | None = None,
    store: str | None = None,
    **options: Any,
) -> Measured: ...
@overload
async def measure_async(
    claim: str,
    *,
    lenses: None = None,
    model: str | None = None,
    store: str | None = None,
    **options: Any,
) -> Belief: ...
async def measure_async(
    claim: str, *, model: str | None = None, store: str | None = None, **options: Any
) -> Measured:
    """`measure` for code that has an event loop of its own."""
    return (await _measure((claim,), (model,) if model else None, store, None, options))[0]


def load(path: str | Path) -> list[Belief]:
    """Read the beliefs in an artifact (JSON) or a file of artifacts (JSONL)."""
    return [Belief(run) for artifact in read_artifacts(path) for run in artifact.runs]


def study(
    kind: Kind,
    claims: str | Path | Iterable[Mapping[str, Any]],
    *,
    models: Iterable[str] | None = None,
    store: str | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> StudyRecord:
    """Measure a study ("calibration", "coherence", "variance", "card") and return its record.

    `claims` is a file, `plain` for the packaged ones, or rows with the columns of such a file.
    Options are those of `measure`.
    """
    # Imported when used: most who measure have no study in mind.
    from heretix.studies import study as studies

    items = (
        studies.read_items(claims, kind)
        if isinstance(claims, str | Path)
        else studies.check_items([studies.make_item(row) for row in claims], kind)
    )
    names = tuple(models) if models is not None else None
    config = RunConfig.parse({**_fold_evidence(options), "models": names})
    return _wait(_study(studies.Request(kind=kind, items=items, config=config), store, observer))


async def _study(request: Request, store: str | None, observer: Observer | None) -> StudyRecord:
    from heretix.studies.study import finish_study, prepare_study

    settings = Settings.from_env()
    measurement = await gather_evidence(prepare_study(request, settings))
    results = Results(observer)
    with Store.open(store or settings.db) as opened:
        await run_measurement(measurement, opened, results)
        return finish_study(request, measurement, results.executions, opened)


async def _measure(
    claims: tuple[str, ...],
    models: tuple[str, ...] | None,
    store: str | None,
    observer: Observer | None,
    options: dict[str, Any],
) -> list[Measured]:
    settings = Settings.from_env()
    bundles = options.pop("bundles", ())
    config = RunConfig.parse({**_fold_evidence(options), "models": models})
    measurement = prepare(config, settings, claims=claims)
    measurement = await gather_evidence(measurement, bundles=bundles)
    results = Results(observer, keep_records=True)
    with Store.open(store or settings.db) as opened:
        keep_bundles(opened, measurement)
        require_evidence(measurement)
        await run_measurement(measurement, opened, results)
    vectors = len(config.lenses) > 1 or needs_documents(config.lenses)
    return [
        _vector(measurement, claim, model, results) if vectors else _belief(claim, model, results)
        for claim in measurement.claims
        for model in measurement.models
    ]


def _belief(claim: Claim, model: ModelId, results: Results) -> Belief:
    of = (claim.text, model.identity)
    return next(Belief(run) for name, run in results.records.items() if name[:2] == of)


def _vector(
    measurement: Measurement, claim: Claim, model: ModelId, results: Results
) -> BeliefVector:
    alone = replace(measurement, models=(model,))
    names = run_names(alone, claim.text)
    runs = [results.records[name] for name in names if name in results.records]
    return BeliefVector(assemble(alone, claim, runs))


def _fold_evidence(options: Mapping[str, Any]) -> dict[str, Any]:
    """Put the options of evidence where a configuration has them, and lists where tuples stand."""
    named = {name: value for name, value in options.items() if name in EvidenceConfig.model_fields}
    values = {name: value for name, value in options.items() if name not in named}
    evidence = {**(values.pop("evidence", None) or {}), **named}
    if isinstance(documents := evidence.get("documents"), str | Path):
        evidence["documents"] = (documents,)
    if "documents" in evidence:
        evidence["documents"] = tuple(str(source) for source in evidence["documents"])
    if evidence:
        values["evidence"] = evidence
    if isinstance(lenses := values.get("lenses"), str):
        given = bool(evidence.get("documents"))
        values["lenses"] = parse_lenses(lenses, with_documents=given)
    return values


def _wait(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end, beside a loop that already runs in this thread if there is one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_async(work)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, run_async, work).result()
