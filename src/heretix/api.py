"""The library: measure a claim, measure many, load what was measured."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeVar, get_args, overload

from heretix.config import EvidenceConfig, RunConfig, check_shown, parse_lenses
from heretix.core.clock import utc_now
from heretix.core.errors import (
    ConfigError,
    InsufficientEvidenceError,
    MissingPartError,
    NoEstimateError,
    StoppedError,
)
from heretix.core.event_loop import run_async
from heretix.core.lenses import SHOWING
from heretix.core.settings import Settings
from heretix.measurement.record import Artifact, RunRecord, write_artifact, write_texts
from heretix.measurement.runner import make_stopped_error
from heretix.measurement.service import (
    Measurement,
    Results,
    add_checks,
    assemble,
    gather_evidence,
    keep_bundles,
    prepare,
    require_evidence,
    run_names,
)
from heretix.measurement.service import measure as run_measurement
from heretix.measurement.verify import Comparison, read_artifacts
from heretix.measurement.verify import compare as compare_runs
from heretix.report.export import arrow_schema, columns_of, load_arrow, make_storable, read_pages
from heretix.report.words import missing_reason, no_estimate_reason
from heretix.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from heretix.config import Claim
    from heretix.measurement.record import MetricsRecord, SampleRecord
    from heretix.measurement.runner import Observer, Runner
    from heretix.providers.catalog import ModelId
    from heretix.readouts import Readout
    from heretix.report.notebook import Bar
    from heretix.studies.panel import Panel as Declared
    from heretix.studies.panel import PanelReport
    from heretix.studies.study import Kind, Request, StudyRecord
    from heretix.studies.study import Results as StudyResults

__all__ = [
    "Belief",
    "BeliefDifference",
    "BeliefVector",
    "Beliefs",
    "Panel",
    "Study",
    "compare",
    "frame",
    "load",
    "measure",
    "measure_async",
    "measure_many",
    "panel",
    "resume",
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
        plain = (run for run in self.artifact.runs if not (run.evidence and run.evidence.variant))
        return {run.lens: Belief(run) for run in plain}

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
        from heretix.report.document import vector_html

        missing = [f"<div>{code}: {escape(said)}</div>" for code, said in self.missing.items()]
        return "".join([vector_html(self.artifact), *missing])

    def __repr__(self) -> str:
        plain = self.beliefs.items()
        probs = {lens: belief.record.aggregates.prob_true_rpl for lens, belief in plain}
        shown = ", ".join(
            f"{lens}={'none' if prob is None else f'{prob:.3f}'}" for lens, prob in probs.items()
        )
        return f"BeliefVector({_cut(self.claim)}, model={self.model!r}, {shown})"

    def __str__(self) -> str:
        lines = [f"{code} {belief}" for code, belief in self.beliefs.items()]
        unmeasured = self.missing.keys() - self.beliefs.keys()
        return "\n".join(lines + [f"{code} {self.missing[code]}" for code in sorted(unmeasured)])


Measured = Belief | BeliefVector
_M = TypeVar("_M", bound=Measured)


class Beliefs(list[_M]):
    """Many beliefs or vectors: a list that a notebook shows as a table."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> _M: ...
    @overload
    def __getitem__(self, at: slice) -> Beliefs[_M]: ...
    def __getitem__(self, at: SupportsIndex | slice) -> _M | Beliefs[_M]:
        """Return a belief; of a slice, which is shown as a table as well, these."""
        return (
            Beliefs(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)
        )

    @property
    def records(self) -> list[RunRecord]:
        """The record of every belief, those of the vectors included."""
        return [belief.record for one in self for belief in _beliefs_of(one)]

    def to_frame(self, *, as_: FrameKind = "pandas") -> Any:
        """A row a belief, as `heretix.frame(beliefs)` gives them."""
        return frame(self, as_=as_)

    def _repr_html_(self) -> str:
        from heretix.report.document import beliefs_html

        return beliefs_html(self.records)


def _beliefs_of(one: Measured) -> tuple[Belief, ...]:
    return tuple(one.beliefs.values()) if isinstance(one, BeliefVector) else (one,)


@dataclass(frozen=True, slots=True)
class BeliefDifference:
    """Belief `b` minus belief `a`, over the wordings that both were asked in."""

    a: Belief
    b: Belief
    found: Comparison

    @property
    def value(self) -> float:
        """The difference of the two probabilities."""
        return self.found.difference.diff_prob

    @property
    def ci(self) -> tuple[float, float]:
        """The 95% interval, by the frozen bootstrap; the t interval beside it is in `found`."""
        return self.found.difference.diff_prob_lo, self.found.difference.diff_prob_hi

    @property
    def sentence(self) -> str:
        """The finding in words, never stronger than the intervals."""
        from heretix.report.findings import difference_finding

        return difference_finding(self.a.record, self.b.record, self.found).sentence

    def _repr_html_(self) -> str:
        from heretix.report.document import difference_html

        return difference_html(self.a.record, self.b.record, self.found)

    def __repr__(self) -> str:
        lo, hi = self.ci
        return f"BeliefDifference({self.value:+.3f}, ci=({lo:+.3f}, {hi:+.3f}))"

    def __str__(self) -> str:
        return self.sentence


def compare(a: Belief, b: Belief) -> BeliefDifference:
    """Compare two beliefs: two models, lenses, claims or days. Shared wordings are paired."""
    for name, one in (("a", a), ("b", b)):
        if not isinstance(one, Belief):
            raise ConfigError(f"`{name}` must be a Belief, got {type(one).__name__}")
        if one.record.aggregates.prob_true_rpl is None:
            raise NoEstimateError(no_estimate_reason(one.record.reason) or "no estimate")
    return BeliefDifference(a, b, compare_runs(a.record, b.record))


@dataclass(frozen=True, slots=True)
class Study:
    """Study of many claims. `record` holds every number that its results follow from."""

    record: StudyRecord

    @property
    def results(self) -> StudyResults:
        """Findings, subject by subject."""
        return self.record.results

    @property
    def sentences(self) -> list[str]:
        """The findings in words, one a subject, never stronger than their intervals."""
        from heretix.report.studies import study_findings

        return study_findings(self.record)

    def to_frame(self, *, as_: FrameKind = "pandas") -> Any:
        """A row a run: claim, label, belief."""
        from heretix.report.studies import STUDY_COLUMNS, study_rows

        return _frame(STUDY_COLUMNS, study_rows(self.record), as_)

    def save(self, path: str | Path) -> None:
        """Write the record, which `heretix verify` and `heretix report` read."""
        write_texts(Path(path), [self.record.to_json()])

    def _repr_html_(self) -> str:
        from heretix.report.notebook import study_html

        return study_html(self.record)

    def __str__(self) -> str:
        return "\n".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Panel:
    """Panel until now: the same claims in waves. `report` says what moved, since when, how much."""

    report: PanelReport

    @property
    def sentence(self) -> str:
        """The finding in words."""
        from heretix.report.findings import panel_finding

        return panel_finding(self.report).sentence

    def to_frame(self, *, as_: FrameKind = "pandas") -> Any:
        """A row a belief a wave."""
        rows = [
            {"claim": one.claim, "model": one.model, "lens": one.lens, **point.row()}
            for one in self.report.series
            for point in one.points
        ]
        from heretix.studies.panel import POINT_COLUMNS

        return _frame((*_OF_BELIEF, *POINT_COLUMNS), rows, as_)

    def _repr_html_(self) -> str:
        from heretix.report.notebook import panel_html

        return panel_html(self.report)

    def __str__(self) -> str:
        return self.sentence


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
        found: object = [what] if isinstance(what, Measured) else what
        given: list[Any] = list(found) if isinstance(found, Iterable) else [found]
        if not all(isinstance(one, Measured) for one in given):
            raise ConfigError(f"`what` must be a table's name or beliefs, got {what!r:.80}")
        beliefs = [belief for one in given for belief in _beliefs_of(one)]
        return _frame(_BELIEF_COLUMNS, [belief.to_dict() for belief in beliefs], as_)
    columns = columns_of(what)
    with Store.open(store or Settings.from_env().db, create=False) as opened:
        rows = [row for page in read_pages(opened, what, only) for row in page]
    return _frame(columns, rows, as_)


def _frame(columns: Sequence[tuple[str, str]], rows: list[dict[str, Any]], as_: str) -> Any:
    if as_ not in get_args(FrameKind):
        raise ConfigError(f"`as_` must be one of {', '.join(get_args(FrameKind))}, got {as_!r}")
    table = load_arrow().Table.from_pylist(make_storable(rows), schema=arrow_schema(columns))
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
    call = _Call((claim,), (model,) if model else None, store, None, options)
    return _wait(call.run(), call.stop, _ONWARD)[0]


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
    _require_list("claims", claims, "texts", 'the column, as in table["claim"]')
    call = _Call(tuple(claims), _read_models(models), store, observer, options)
    return _wait(call.run(), call.stop, _ONWARD)


def _require_list(name: str, given: object, of: str, instead: str) -> None:
    """Refuse one text and tables: letters, keys and names of columns iterate, and are no claims."""
    if isinstance(given, str):
        raise ConfigError(f"`{name}` must be a list of {of}, got one text: [{given[:40]!r}]")
    if isinstance(given, Mapping) or hasattr(given, "columns") or not isinstance(given, Iterable):
        kind = type(given).__name__
        raise ConfigError(
            f"`{name}` must be a list of {of}, got a {kind}; of a table, give {instead}"
        )


def _read_models(models: Iterable[str] | None) -> tuple[str, ...] | None:
    if models is None:
        return None
    _require_list("models", models, "texts", 'the column, as in table["model"]')
    return tuple(models)


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
    return (await _Call((claim,), (model,) if model else None, store, None, options).run())[0]


def load(path: str | Path) -> list[Belief]:
    """Read the beliefs in an artifact (JSON) or a file of artifacts (JSONL)."""
    return Beliefs(Belief(run) for artifact in read_artifacts(path) for run in artifact.runs)


def study(
    kind: Kind,
    claims: str | Path | Iterable[Mapping[str, Any]],
    *,
    models: Iterable[str] | None = None,
    readouts: Iterable[Readout] = (),
    store: str | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> Study:
    """Measure a study: "calibration", "coherence", "variance" or "card".

    `claims` is a file, `plain` for the packaged ones, or rows with the columns of such a file.
    `readouts` are compared; options are those of `measure`.
    """
    # Imported when used: most who measure have no study in mind.
    from heretix.studies import study as studies

    if kind not in get_args(studies.Kind):
        raise ConfigError(
            f"`kind` must be one of {', '.join(get_args(studies.Kind))}, got {kind!r}"
        )
    if isinstance(claims, str | Path):
        items = studies.read_items(claims, kind)
    else:
        _require_list("claims", claims, "rows", 'its rows, as in table.to_dict("records")')
        items = studies.check_items([studies.make_item(row) for row in claims], kind)
    config = RunConfig.parse({**_fold_evidence(options), "models": _read_models(models)})
    request = studies.Request(kind=kind, items=items, config=config, readouts=tuple(readouts))
    stopping = Stopping()
    return Study(_wait(_study(request, store, observer, stopping), stopping.stop))


async def _study(
    request: Request, store: str | None, observer: Observer | None, stopping: Stopping
) -> StudyRecord:
    from heretix.studies.study import add_placebo, finish_study, prepare_study

    settings = _settings(store)
    bar = _make_bar(observer)
    measured = [
        (add_placebo(request.kind, await gather_evidence(one)), Results(observer or bar))
        for one in prepare_study(request, settings)
    ]
    with Store.open(settings.db) as opened, _showing(bar, *(one for one, _ in measured)):
        for measurement, results in measured:
            runner = stopping.watch(measurement.runner(opened, observer=results))
            await run_measurement(measurement, opened, results, runner=runner)
        done = [(measurement, results.executions) for measurement, results in measured]
        return finish_study(request, done, opened)


def _settings(store: str | None) -> Settings:
    """Read the settings of the environment, with another store where one is named."""
    settings = Settings.from_env()
    return replace(settings, db=store) if store else settings


def panel(
    source: str | Path,
    *,
    run: bool = False,
    store: str | None = None,
    observer: Observer | None = None,
) -> Panel:
    """Read a panel from the store, by its file or its name; with `run`, measure a wave first.

    A wave that was interrupted is gone on with, as `heretix panel run` does.
    """
    # Imported when used: most who measure have no panel in mind.
    from heretix.studies import panel as panels

    settings = _settings(store)
    path, stopping = Path(source), Stopping()
    declared = panels.load_panel(path) if run or path.is_file() else None
    if declared is not None and run:
        wave = _wave(declared, settings, observer, stopping)
        _wait(wave, stopping.stop)
    with Store.open(settings.db, create=False) as opened:
        return Panel(panels.read_panel(opened, declared.name if declared else str(source)))


async def _wave(
    declared: Declared, settings: Settings, observer: Observer | None, stopping: Stopping
) -> None:
    from heretix.studies.panel import keep_wave, prepare_panel, prepare_wave

    bar = _make_bar(observer)
    results = Results(observer or bar)
    with Store.open(settings.db) as opened:
        measurement = prepare_panel(declared, settings)
        wave, measurement = await prepare_wave(declared, measurement, opened)
        with _showing(bar, measurement):
            runner = stopping.watch(measurement.runner(opened, observer=results))
            await run_measurement(measurement, opened, results, runner=runner)
        keep_wave(declared, opened, wave, results.executions.values())


def _make_bar(observer: Observer | None) -> Bar | None:
    """Make a bar where a notebook asks, and nobody else watches."""
    if observer is not None or "IPython" not in sys.modules:
        return None
    from heretix.report.notebook import make_bar

    return make_bar()


@contextlib.contextmanager
def _showing(bar: Bar | None, *measurements: Measurement) -> Iterator[None]:
    """Show how far these measurements are, and at the end what they took."""
    if bar is None:
        yield
        return
    bar.begin(sum(measurement.attempts for measurement in measurements))
    try:
        yield
    finally:
        bar.end()


class _Call:
    """One call of `measure` or `measure_many`, which can be interrupted and gone on with."""

    def __init__(
        self,
        claims: tuple[str, ...],
        models: tuple[str, ...] | None,
        store: str | None,
        observer: Observer | None,
        options: dict[str, Any],
    ) -> None:
        self._settings = _settings(store)
        self._bundles = options.pop("bundles", ())
        self._config = RunConfig.parse({**_fold_evidence(options), "models": models})
        check_shown(options.keys() & EvidenceConfig.model_fields, self._config.lenses)
        self._claims = claims
        self._store = self._settings.db
        self._bar = _make_bar(observer)
        self._results = Results(observer or self._bar, keep_records=True)
        self._measurement: Measurement | None = None
        self._since = utc_now()
        self.stopping = Stopping()

    async def run(self) -> list[Measured]:
        """Measure, or go on where it was interrupted."""
        global _interrupted  # noqa: PLW0603
        measurement = self._measurement or await self._prepare()
        self.stopping = Stopping()
        try:
            with Store.open(self._store) as opened, _showing(self._bar, measurement):
                runner = self.stopping.watch(measurement.runner(opened, observer=self._results))
                await run_measurement(measurement, opened, self._results, runner=runner)
        except (StoppedError, KeyboardInterrupt, asyncio.CancelledError):
            _interrupted = self
            # Without the cache, too, what was answered since it began is called for once.
            since = self._since if self._settings.no_cache else None
            self._measurement = replace(measurement, since=since)
            raise
        return self.collect()

    async def _prepare(self) -> Measurement:
        measurement = prepare(self._config, self._settings, claims=self._claims)
        measurement = await gather_evidence(measurement, bundles=self._bundles)
        measurement = add_checks(measurement)
        with Store.open(self._store) as opened:
            keep_bundles(opened, measurement)
            require_evidence(measurement)
        self._measurement = measurement
        return measurement

    def stop(self) -> bool:
        """Stop what runs now; False where it is to be interrupted."""
        return self.stopping.stop()

    def collect(self) -> list[Measured]:
        """Collect what is measured by now, in the order of claims and models."""
        measurement, lenses = self._measurement, self._config.lenses
        if measurement is None:
            return []
        vectors = len(lenses) > 1 or not set(lenses).isdisjoint(SHOWING)
        done = {name[:2] for name in self._results.records}
        return Beliefs(
            _vector(measurement, claim, model, self._results)
            if vectors
            else _belief(claim, model, self._results)
            for claim in measurement.claims
            for model in measurement.models
            if (claim.text, model.identity) in done
        )


class Stopping:
    """Hands an interrupt on to a runner: the first stops it, the second interrupts."""

    def __init__(self) -> None:
        self._runner: Runner | None = None

    def watch(self, runner: Runner) -> Runner:
        """Interrupt this from now on; where the last one was stopped at its very end, at once."""
        if self._runner is not None and self._runner.stopped:
            raise make_stopped_error()
        self._runner = runner
        return runner

    def stop(self) -> bool:
        """Start nothing new; False where whoever works is to be interrupted."""
        if self._runner is None or self._runner.stopped:
            return False
        flying = self._runner.stop()
        waited = f"; {flying} in flight are waited for, interrupt again to drop them"
        self._runner.tell(f"stopping: no more calls are made{waited if flying else ''}")
        return True


_interrupted: _Call | None = None
"""The call that was interrupted last."""


def resume(*, calls: bool = True) -> list[Measured]:
    """Go on with the `measure` or `measure_many` that was interrupted last in this process.

    Exactly the missing calls are made. With `calls=False` none is: it returns what was finished.
    """
    if _interrupted is None:
        raise ConfigError("nothing was interrupted here; `heretix resume` lists what a store has")
    call = _interrupted
    return _wait(call.run(), call.stop, _ONWARD) if calls else call.collect()


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
    if values.get("lenses", ...) is None:  # As the signature has it: RPL alone.
        del values["lenses"]
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


_ONWARD: Final = "; heretix.resume() goes on, heretix.resume(calls=False) has what is finished"


def _wait(work: Coroutine[Any, Any, _T], stop: Callable[[], bool], onward: str = "") -> _T:
    """Run to the end, beside a loop that already runs in this thread if there is one.

    An interrupt calls `stop`: nothing more is called for, and calls in flight come home. Another
    one interrupts.
    """
    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run_async(work, stop=stop)
        return _run_in_thread(work, stop)
    except StoppedError as exc:
        # As an interrupt, which no loop over claims takes for a failure and goes on.
        raise KeyboardInterrupt(f"{exc}{onward}") from exc


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have Ctrl-C raise here: the loop of this thread, which waits, may hear of it instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_in_thread(work: Coroutine[Any, Any, _T], stop: Callable[[], bool]) -> _T:
    """Run in a thread; an interrupt comes to the one that waits here."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def note_task() -> _T:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work

    def heed() -> None:
        _, task = running[0]
        if not stop() and task is not None:
            task.cancel()

    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool, _interruptible():
        future = pool.submit(context.run, run_async, note_task())
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                for loop, _ in running:
                    with contextlib.suppress(RuntimeError):
                        loop.call_soon_threadsafe(heed)
            except CancelledError:
                raise KeyboardInterrupt from None
