"""The library: measure a claim, measure many, load what was measured."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heretix.config import RunConfig
from heretix.core.errors import NoEstimateError
from heretix.core.event_loop import run_async
from heretix.core.settings import Settings
from heretix.measurement.measurement import prepare
from heretix.measurement.record import Artifact, RunRecord, write_artifact
from heretix.measurement.verify import read_artifacts
from heretix.store import Store

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from heretix.measurement.runner import Observer
    from heretix.plan import Plan
    from heretix.sample import Sample

__all__ = ["Belief", "load", "measure", "measure_async", "measure_many"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Belief:
    """What a model believes of a claim. `record` holds everything that was measured."""

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
        if self.record.aggregates.prob_true_rpl is None:
            raise NoEstimateError(self.record.reason or "no estimate")
        return self.record.aggregates.prob_true_rpl

    @property
    def ci(self) -> tuple[float, float]:
        """The 95% interval of `prob`."""
        if self.record.aggregates.ci95 is None:
            raise NoEstimateError(self.record.reason or "no estimate")
        return self.record.aggregates.ci95

    @property
    def stability(self) -> float:
        """1/(1 + IQR of the template means in log-odds): 1 when all wordings agree."""
        if self.record.aggregates.stability_score is None:
            raise NoEstimateError(self.record.reason or "no estimate")
        return self.record.aggregates.stability_score

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
            return f"{self.model}: no estimate ({self.record.reason})"
        lo, hi = belief.ci95
        return f"{self.model}: p={belief.prob_true_rpl:.3f} [{lo:.3f}, {hi:.3f}] {self.claim!r}"


class _Collector:
    """Keeps the records, and passes everything on."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self.records: dict[tuple[str, str], RunRecord] = {}

    def planned(self, plan: Plan, cached: int) -> None:
        if self._observer:
            self._observer.planned(plan, cached)

    def sampled(self, plan: Plan, sample: Sample) -> None:
        if self._observer:
            self._observer.sampled(plan, sample)

    def shared(self, plan: Plan, sample: Sample) -> None:
        if self._observer:
            self._observer.shared(plan, sample)

    def finished(self, record: RunRecord) -> None:
        self.records[record.claim, record.model] = record
        if self._observer:
            self._observer.finished(record)


def measure(
    claim: str, *, model: str | None = None, store: str | None = None, **options: Any
) -> Belief:
    """Measure one claim with one model and return the belief.

    Options are the keys of a configuration file (K, R, T, B, seed, prompts_file, …). Without a
    model, the first provider with a key is asked, else the embedded demonstration model. Works
    in a script, a notebook and inside a running event loop.
    """
    return _wait(measure_async(claim, model=model, store=store, **options))


def measure_many(
    claims: Iterable[str],
    *,
    models: Iterable[str] | None = None,
    store: str | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> list[Belief]:
    """Measure claims × models; beliefs come claim by claim, in the order given.

    A claim given twice is measured once, and stands in the result once for each model.
    """
    names = tuple(models) if models is not None else None
    return _wait(_measure(tuple(claims), names, store, observer, options))


async def measure_async(
    claim: str, *, model: str | None = None, store: str | None = None, **options: Any
) -> Belief:
    """`measure` for code that has an event loop of its own."""
    beliefs = await _measure((claim,), (model,) if model else None, store, None, options)
    return beliefs[0]


def load(path: str | Path) -> list[Belief]:
    """Read the beliefs in an artifact (JSON) or a file of artifacts (JSONL)."""
    return [Belief(run) for artifact in read_artifacts(path) for run in artifact.runs]


async def _measure(
    claims: tuple[str, ...],
    models: tuple[str, ...] | None,
    store: str | None,
    observer: Observer | None,
    options: dict[str, Any],
) -> list[Belief]:
    settings = Settings.from_env()
    config = RunConfig.parse({**options, "models": models})
    measurement = prepare(config, settings, claims=claims)
    collector = _Collector(observer)
    with Store.open(store or settings.db) as opened:
        await measurement.run(opened, observer=collector)
    return [
        Belief(collector.records[claim.text, model.identity])
        for claim in measurement.claims
        for model in measurement.models
    ]


def _wait(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end, beside a loop that already runs in this thread if there is one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_async(work)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, run_async, work).result()
