"""The library: measure a claim, measure many, load what was measured."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from heretix.config import EvidenceConfig, RunConfig, parse_lenses
from heretix.core.errors import ConfigError, InsufficientEvidenceError, NoEstimateError
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
from heretix.report.words import missing_reason, no_estimate_reason
from heretix.store import Store

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from heretix.config import Claim
    from heretix.measurement.record import MetricsRecord
    from heretix.measurement.runner import Observer
    from heretix.providers.catalog import ModelId

__all__ = ["Belief", "BeliefVector", "load", "measure", "measure_async", "measure_many"]

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

    def save(self, path: str | Path) -> None:
        """Write the artifact of this belief."""
        write_artifact(Path(path), Artifact.of([self.record]))

    def _repr_html_(self) -> str:
        # Imported as needed: drawing brings charts along.
        from heretix.report.document import belief_html

        return belief_html(self.record)

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

    def __str__(self) -> str:
        lines = [f"{code} {belief}" for code, belief in self.beliefs.items()]
        unmeasured = self.missing.keys() - self.beliefs.keys()
        return "\n".join(lines + [f"{code} {self.missing[code]}" for code in sorted(unmeasured)])


Measured = Belief | BeliefVector


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
