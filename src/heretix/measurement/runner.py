"""Run plans: look in the cache, call for what is missing, store, aggregate."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from heretix.core.errors import StoreError
from heretix.measurement.lane import Lane, Retry
from heretix.measurement.pacing import Limits
from heretix.store import LEASE_S, SampleWriter, Store, new_owner
from heretix.store.samples import extend_leases, release_all_leases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from heretix.measurement.pacing import Spending
    from heretix.measurement.record import RunRecord
    from heretix.plan import Plan
    from heretix.providers.base import Provider
    from heretix.sample import Sample

# From plans to records: look in the cache, call for what is missing, store, aggregate.
#
# One lane per model, so that a slow model never holds up another. The estimate depends only on the
# samples, never on the order in which they arrived.

DEFAULT_CONCURRENCY: Final = 256
"""As far as a lane's window may grow by itself when nobody set it."""


class Observer(Protocol):
    """Somebody who watches a run; the command line's display is one."""

    def planned(self, plan: Plan, cached: int) -> None:
        """A plan was taken up; `cached` of its samples need no call."""

    def sampled(self, plan: Plan, sample: Sample) -> None:
        """A call ended, well or badly, and its sample was handed to the store."""

    def shared(self, plan: Plan, sample: Sample) -> None:
        """Another process paid for a sample meanwhile, and it was taken from the store."""

    def finished(self, record: RunRecord) -> None:
        """A plan has its record, and the record is stored."""


class Silence:
    """An observer that does nothing; others may override what they care for."""

    def planned(self, plan: Plan, cached: int) -> None:
        """Do nothing."""

    def sampled(self, plan: Plan, sample: Sample) -> None:
        """Do nothing."""

    def shared(self, plan: Plan, sample: Sample) -> None:
        """Do nothing."""

    def finished(self, record: RunRecord) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a run is doing at this moment."""

    in_flight: int
    window: int
    """Calls that may be in flight."""
    spent_usd: float | None


class Runner:
    """Measures plans against one store."""

    def __init__(
        self,
        store: Store,
        *,
        spending: Spending,
        limits: Limits | None = None,
        use_cache: bool = True,
        retry: Retry | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.store = store
        self.spending = spending
        self.use_cache = use_cache
        self.retry = retry or Retry()
        self.observer: Observer = observer or Silence()
        self.owner = new_owner()
        self._limits = limits or Limits(concurrency=DEFAULT_CONCURRENCY, fixed=False)
        self._lanes: list[Lane] = []

    @property
    def status(self) -> Status:
        """How the run is doing."""
        return Status(
            in_flight=sum(lane.pace.in_flight for lane in self._lanes),
            window=sum(lane.pace.limit for lane in self._lanes),
            spent_usd=self.spending.spent_usd,
        )

    async def run(self, lanes: Sequence[tuple[Provider, Iterable[Plan]]]) -> None:
        """Measure every lane's plans. The caller closes the providers.

        When it is cancelled, calls in flight are dropped, and every sample that had arrived is
        committed before the cancellation goes on. A lane that has to stop lets the others end.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._release)
            writer = await stack.enter_async_context(SampleWriter(self.store, owner=self.owner))
            heart = asyncio.create_task(self._keep_leases())
            stack.callback(heart.cancel)
            self._lanes = [
                Lane(self, provider, writer, limits=self._limits) for provider, _ in lanes
            ]
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(lane.run(plans))
                        for lane, (_, plans) in zip(self._lanes, lanes, strict=True)
                    ]
            except BaseExceptionGroup as exc:
                raise _first_cause(exc) from exc
        for task in tasks:
            if (reason := task.result()) is not None:
                raise reason

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 4)
            # A store in trouble shows at the next sample; a missed beat alone does no harm.
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(self.store.write, extend_leases, self.owner)

    def _release(self) -> None:
        # Leases end by themselves; what ended the run mustn't be hidden by failing to end them.
        with contextlib.suppress(StoreError):
            self.store.write(release_all_leases, self.owner)


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a task group: the first trouble ended the other tasks."""
    first = group.exceptions[0]
    return _first_cause(first) if isinstance(first, BaseExceptionGroup) else first


# How a run is doing, in numbers: for the command line, jobs, and whoever else watches one.


class Tally(Silence):
    """Counts what happens, and has it shown now and then."""

    def __init__(self, total: int, show: Callable[[Tally], None], every_s: float) -> None:
        self.total = total
        self.done = 0
        self.cached = 0
        self.failed = 0
        self.doing = "measuring"
        self.runner: Runner | None = None
        self._show = show
        self._every_s = every_s
        self._begun = time.monotonic()
        self._shown = self._begun

    def planned(self, plan: Plan, cached: int) -> None:
        """Count what needs no call."""
        self.cached += cached
        self._advance(cached)

    def sampled(self, plan: Plan, sample: Sample) -> None:
        """Count a call that ended."""
        self.doing = f"measuring {plan.label}"
        self.failed += sample.failed
        self._advance(1)

    def shared(self, plan: Plan, sample: Sample) -> None:
        """Count what another process paid for."""
        self.cached += 1
        self._advance(1)

    @property
    def rate(self) -> float:
        """Calls a second since the beginning."""
        elapsed = time.monotonic() - self._begun
        return (self.done - self.cached) / elapsed if elapsed > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds to go, if it goes on like this; None before there is anything to go by."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for programs."""
        status = self.runner.status if self.runner else None
        return {
            "done": self.done,
            "total": self.total,
            "cached": self.cached,
            "failed": self.failed,
            "in_flight": status.in_flight if status else 0,
            "window": status.window if status else 0,
            "spent_usd": status.spent_usd if status else None,
            "per_second": round(self.rate, 2),
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
        }

    def notes(self) -> str:
        """The numbers, for people."""
        status = self.runner.status if self.runner else None
        parts = [f"{self.rate:,.1f}/s"]
        if status:
            parts.append(f"{status.in_flight} in flight")
            if status.spent_usd is None:
                parts.append("cost unknown")
            elif status.spent_usd:
                parts.append(f"${status.spent_usd:,.4f}")
        parts += [f"{self.cached:,} cached"] if self.cached else []
        parts += [f"{self.failed:,} failed"] if self.failed else []
        return ", ".join(parts)

    def _advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self._shown >= self._every_s:
            self._shown = now
            self._show(self)
