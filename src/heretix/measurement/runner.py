"""Run plans: look in the cache, call for what is missing, store, aggregate.

One lane per model, so that a slow model never holds up another, at the pace that the model allows.
The estimate depends only on the samples, never on the order in which they arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import stamina

from heretix.core.clock import utc_now
from heretix.core.errors import (
    BatchPendingError,
    BudgetReachedError,
    HeretixError,
    ProviderDownError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    RetryableError,
    StoreError,
)
from heretix.core.event_loop import in_thread
from heretix.measurement.budget import Escrow, Hold, Spending, holding, run_budget
from heretix.measurement.execution import Execution, begin, close, finish, make_sample
from heretix.store import LEASE_S, SampleWriter, Store
from heretix.store.batches import select_holding_batches
from heretix.store.db import chunked
from heretix.store.samples import Leases, release_all_leases, select_answers, select_unleased

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from heretix.measurement.record import RunRecord
    from heretix.plan import Plan, PlannedSample
    from heretix.providers.base import Provider, RateLimits, Reply, Request
    from heretix.providers.catalog import ModelId
    from heretix.sample import Sample

DEFAULT_CONCURRENCY: Final = 256
"""As far as a lane's window may grow by itself when nobody set it."""
_FIRST_WINDOW: Final = 16
_ERROR_SHARE: Final = 0.3
"""Of the last calls: above this share of server errors, the provider is taken as overloaded."""
_RECENT: Final = 100
"""Calls that are looked back on: so many that one random failure in ten never looks like three."""
_TYPICAL: Final = 50
"""Answers whose median latency is what calls typically take."""
_SLOWER: Final = 2.0
"""Typical calls this many times slower than they were at best: more would only queue up."""
_HEADROOM: Final = 0.95
"""Part of a provider's stated rate that is used: clocks differ, and others may share the key."""
_PAUSE_CAP_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits set by the user. `fixed` keeps the window at `concurrency` until trouble comes."""

    concurrency: int
    fixed: bool = True
    rpm: float | None = None
    tpm: float | None = None


class _Rate:
    """Spreads amounts evenly over time: no more than `per_minute`, and no bursts."""

    def __init__(self, per_minute: float | None) -> None:
        self.per_minute = per_minute
        self._free_at = 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self._free_at - now) if self.per_minute else 0.0

    def take(self, amount: float, now: float) -> float:
        """Use some of the rate; how much was used is returned, since there may be no rate yet.

        A negative amount gives back.
        """
        if not self.per_minute:
            return 0.0
        self._free_at = max(self._free_at, now) + amount * 60.0 / self.per_minute
        return amount


class Pace:
    """The brakes of one model: as fast as it lets us, and no faster. Belongs to one event loop.

    Three brakes, each for its own reason. The *window* bounds calls in flight and adapts to what
    the provider bears: it doubles while all is well, steps up once trouble has been seen, and
    halves on "too many requests" (additive increase, multiplicative decrease). The *rates* hold to
    requests and tokens per minute, from the configuration or from the provider's own headers. The
    *pause* obeys `Retry-After`: when one call is told to wait, all of them wait.

    A call takes a place in the window, then waits for the rates and the pause; both in the order
    of asking.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] | None = None) -> None:
        self._most = limits.concurrency
        first = limits.concurrency if limits.fixed else min(_FIRST_WINDOW, limits.concurrency)
        self._limit = float(first)
        self._growing_fast = True
        self._clock = clock or asyncio.get_running_loop().time
        self._places = 0
        """Places of the window that are taken, by calls in flight and those about to be."""
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._gate = asyncio.Lock()
        """Only the next in the queue watches the clock; the others wait behind it."""
        self._at_gate = 0
        self._requests = _Rate(limits.rpm)
        self._tokens = _Rate(limits.tpm)
        self._rates_given = (limits.rpm is not None, limits.tpm is not None)
        self._paused_until = 0.0
        self._recent: deque[bool] = deque(maxlen=_RECENT)
        self._latencies_s: deque[float] = deque(maxlen=_TYPICAL)
        self._best_s = float("inf")
        self._last_cut = -1.0
        self._average_tokens: float | None = None

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""
        return max(1, int(self._limit))

    @contextlib.asynccontextmanager
    async def call(self, tokens: float = 0.0) -> AsyncIterator[float]:
        """Wait for a turn, then hold a place while the call runs. Learns from how it ends.

        `tokens` is a guess at what the call will take, used until replies have told. Yields the
        tokens that were set aside, for `heard`.
        """
        reserved = await self._turn(tokens)
        begun = self._clock()
        self.in_flight += 1
        try:
            yield reserved
        except RetryableError as exc:
            self._failed(exc, begun)
            raise
        else:
            self._succeeded(self._clock() - begun)
        finally:
            self.in_flight -= 1
            self._leave()

    def heard(
        self, limits: RateLimits | None, tokens: int | None, *, reserved: float = 0.0
    ) -> None:
        """Take note of what a reply said of the provider's limits, and of the tokens it took."""
        if limits is not None:
            rpm_given, tpm_given = self._rates_given
            if limits.rpm and not rpm_given:
                self._requests.per_minute = limits.rpm * _HEADROOM
            if limits.tpm and not tpm_given:
                self._tokens.per_minute = limits.tpm * _HEADROOM
        if tokens:
            # What a call takes is known when it is over; the next ones make up the difference.
            self._tokens.take(tokens - reserved, self._clock())
            average = self._average_tokens
            self._average_tokens = tokens if average is None else 0.9 * average + 0.1 * tokens

    async def _turn(self, tokens: float) -> float:
        await self._take_place()
        self._at_gate += 1
        try:
            async with self._gate:
                # Time is what is waited for, not an event, and each wait may find a longer one.
                while (wait_s := self._wait_s(now := self._clock())) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(wait_s)
                self._requests.take(1.0, now)
                average = self._average_tokens
                return self._tokens.take(tokens if average is None else average, now)
        except BaseException:
            self._leave()
            raise
        finally:
            self._at_gate -= 1

    async def _take_place(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._hand_out()
        try:
            await future
        except asyncio.CancelledError:
            # A place that was given to somebody who left goes to the next.
            if future.done() and not future.cancelled():
                self._leave()
            raise

    def _wait_s(self, now: float) -> float:
        rates = (self._requests.wait_s(now), self._tokens.wait_s(now))
        return max(self._paused_until - now, *rates, 0.0)

    def _leave(self) -> None:
        self._places -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free places to those who wait. The place is counted here and not when they move,
        so that nobody who comes in between can take it."""
        while self._waiting and self._places < self.limit:
            future = self._waiting.popleft()
            if not future.done():
                self._places += 1
                future.set_result(None)

    def _succeeded(self, latency_s: float) -> None:
        self._recent.append(True)
        self._latencies_s.append(latency_s)
        if self._limit >= self._most:
            return
        if self._at_gate or self._places < self._limit - 1:
            return  # The window isn't what holds us back; a wider one would teach nothing.
        if not self._is_slower():
            step = 1.0 if self._growing_fast else 1 / self._limit
            self._limit = min(self._most, self._limit + step)

    def _is_slower(self) -> bool:
        """Tell that calls typically take longer than they did at best.

        Medians are compared: answers differ in length, and a single quick one says nothing.
        """
        if len(self._latencies_s) < _FIRST_WINDOW:
            return False
        typical_s = statistics.median(self._latencies_s)
        self._best_s = min(self._best_s, typical_s)
        return typical_s > _SLOWER * self._best_s + 0.05

    def _failed(self, exc: RetryableError, begun: float) -> None:
        self._recent.append(False)
        if isinstance(exc, RateLimitedError):
            if exc.retry_after_s is not None:
                until = self._clock() + min(exc.retry_after_s, _PAUSE_CAP_S)
                self._paused_until = max(self._paused_until, until)
            self._cut(begun)
        elif len(self._recent) == _RECENT and self._recent.count(False) > _ERROR_SHARE * _RECENT:
            self._cut(begun)

    def _cut(self, begun: float) -> None:
        """Halve the window, once for all calls that were in flight together."""
        self._growing_fast = False
        if begun <= self._last_cut:
            return
        self._last_cut = self._clock()
        self._limit = max(1.0, self._limit / 2)
        # What comes next is judged by itself: a provider that has become slower for good would
        # else never look quick enough for the window to grow again.
        self._recent.clear()
        self._latencies_s.clear()
        self._best_s = float("inf")


_PLANS_AHEAD: Final = 32
"""Plans that a lane begins at a time: enough for one look-up to serve many."""
_LEASED_AHEAD: Final = 8
"""Samples at the least that are leased at a time, however narrow the window."""
_AWAITED: Final = 4096
"""Samples of others that may be waited for before no further plan is begun."""
_GATHER_S: Final = 0.1
_POLL_S: Final = 0.1
_POLL_CAP_S: Final = 2.0
_REJECTS_EVERY_CALL: Final = frozenset({401, 402, 403, 404})
"""A wrong key, an empty account or an unknown model: the next call would fail alike, so the lane
ends at once."""
_FAILED_IN_A_ROW: Final = 20
"""Samples that failed for good, one after the other, before the provider is taken as down."""
_REJECTED_CLAIMS: Final = 3
"""Claims of which nothing but rejections came. One alone may be what a model won't talk about."""
_CHARS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retry policy of a call: bounded in tries and in time, waits with full jitter."""

    attempts: int = 6
    timeout_s: float = 300.0
    wait_initial_s: float = 0.5
    wait_max_s: float = 30.0

    def wait_s(self, failures: int, exc: Exception) -> float:
        """Seconds before the next try, after so many failures."""
        if isinstance(exc, RateLimitedError) and exc.retry_after_s is not None:
            # The whole lane pauses for that long; the jitter keeps it from waking as one.
            return random.uniform(0.0, self.wait_initial_s)  # noqa: S311
        ceiling = min(self.wait_max_s, self.wait_initial_s * 2**failures)
        return random.uniform(0.0, ceiling)  # noqa: S311


class Lane:
    """All plans of one model."""

    def __init__(
        self, runner: Runner, provider: Provider, writer: SampleWriter, *, limits: Limits
    ) -> None:
        most = min(limits.concurrency, provider.max_concurrency)
        self.pace = Pace(replace(limits, concurrency=most))
        self.retry = runner.retry
        self._runner = runner
        self.provider = provider
        self._model: ModelId | None = None
        self._writer = writer
        self._tasks = asyncio.Semaphore(most)
        self._calls = 0
        """Samples that are called for, or wait for their turn or for the store to take them."""
        self._call_ended = asyncio.Event()
        self._complete: asyncio.Queue[Execution | None] = asyncio.Queue(maxsize=_PLANS_AHEAD)
        self._all_called = asyncio.Event()
        self._awaited: dict[str, list[tuple[Execution, PlannedSample]]] = {}
        """Samples that somebody else has a lease on, and who waits for them."""
        self._in_batches: dict[str, str] = {}
        """Samples that were left to a batch, each with the batch."""
        self._given_up: list[str] = []
        """Keys that the lane has leases on and won't call for any more."""
        self.idle: set[asyncio.Task[None]] = set()
        """Tasks that wait for a turn or to try again: no call of theirs is in flight."""
        self._halted: HeretixError | None = None
        self._failed_in_a_row = 0
        self._failing_claims: set[str] = set()
        self._since = runner.since or utc_now()

    async def run(self, plans: Iterable[Plan]) -> HeretixError | None:
        """Measure the plans; each is finished as its last sample arrives.

        Returns why the lane had to stop before all were done, or None.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._finish_all())
            async with asyncio.TaskGroup() as calls:
                chunks = chunked(plans, _PLANS_AHEAD)
                upcoming = calls.create_task(self._prepare(chunks))
                while (executions := await upcoming) is not None and self._halted is None:
                    # The next plans are made ready while these are called for.
                    upcoming = calls.create_task(self._prepare(chunks))
                    for execution in executions:
                        self._runner.observer.planned(execution.plan, len(execution.held))
                    for execution in executions:
                        if execution.complete:
                            await self._complete.put(execution)
                    missing = [(e, planned) for e in executions for planned in e.missing]
                    await self._hand_out(missing, calls)
                    await self._settle(calls, most=_AWAITED)
                await self._settle(calls, most=0)
                while self._calls and self._halted is None:
                    # One of them may find that it lost its lease, and then waits for another's.
                    await self._until_calls(0)
                    await self._settle(calls, most=0)
            self._all_called.set()
            await self._complete.put(None)
        if self._given_up:
            # Other lanes may go on for hours, and other processes may want what this one left.
            await self._runner.leases.release(self._given_up)
        if self._halted is None and self._in_batches:
            names = ", ".join(f"`{name}`" for name in sorted(set(self._in_batches.values())))
            return BatchPendingError(
                f"{len(self._in_batches)} samples are on their way in batch {names}. Everything "
                "else that was answered is stored; `heretix batch collect` gets the rest, or "
                "`heretix batch cancel` frees them"
            )
        return self._halted

    async def _prepare(self, chunks: Iterator[list[Plan]]) -> list[Execution] | None:
        """Begin the next plans; None when there are no more."""
        plans = next(chunks, None)
        if plans is None or self._halted is not None:
            return None
        runner = self._runner
        self._model = plans[0].model
        price = runner.spending.price_of(self._model)
        return await in_thread(begin, runner.store, plans, use_cache=runner.use_cache, price=price)

    async def _hand_out(
        self, missing: Sequence[tuple[Execution, PlannedSample]], calls: asyncio.TaskGroup
    ) -> None:
        """Call for what nobody else is paying for, and wait for the rest.

        Leases are taken as they are needed, about two windows of them: whoever is cut off leaves
        little to wait for, and nothing is kept from others that isn't called for soon.
        """
        left = list(reversed(missing))
        upcoming = calls.create_task(self._lease_next(left))
        while (leased := await upcoming) is not None:
            # The next ones are leased while these are called for.
            upcoming = calls.create_task(self._lease_next(left))
            part, mine, stored = leased
            for execution, planned in part:
                key = planned.cache_key
                if key in stored:
                    await self._receive(execution, stored[key], reused=True)
                elif key not in mine:
                    self._awaited.setdefault(key, []).append((execution, planned))
                else:
                    # Once only: a second plan that wants the same sample waits for the first.
                    mine.discard(key)
                    await self._tasks.acquire()
                    if self._halted is None:
                        self._calls += 1
                        calls.create_task(self._call(execution, planned))
                    else:
                        self._tasks.release()
                        self._given_up.append(key)

    async def _lease_next(
        self, left: list[tuple[Execution, PlannedSample]]
    ) -> tuple[list[tuple[Execution, PlannedSample]], set[str], dict[str, Sample]] | None:
        """Take leases on the next that are left, half a window of them, when they will be called
        for soon; with them, what is ours to call for and what is stored. None when none is left."""
        ahead = max(_LEASED_AHEAD, self.pace.limit // 2)
        await self._until_calls(self.pace.limit + ahead)
        if not left or self._halted is not None:
            return None
        part = [left.pop() for _ in range(min(ahead, len(left)))]
        return part, *await self._lease([planned.cache_key for _, planned in part])

    async def _until_calls(self, most: int) -> None:
        """Wait until no more than `most` samples are under way."""
        while self._calls > most and self._halted is None:
            self._call_ended.clear()
            await self._call_ended.wait()

    async def _lease(self, keys: Sequence[str]) -> tuple[set[str], dict[str, Sample]]:
        """Take leases; then look again, since a sample may have been stored just before."""
        leases = self._runner.leases
        taken = await leases.claim(keys)
        stored = await in_thread(self._stored, sorted(taken)) if taken else {}
        if stored:
            await leases.release(list(stored))
        return taken - stored.keys(), stored

    def _stored(self, keys: Sequence[str]) -> dict[str, Sample]:
        """Read what needs no call: all answers, or without the cache the new ones."""
        found = self._runner.store.read(select_answers, keys)
        return {key: sample for key, sample in found.items() if self._counts(sample)}

    def _counts(self, sample: Sample) -> bool:
        return self._runner.use_cache or sample.created_at >= self._since

    async def _call(self, execution: Execution, planned: PlannedSample) -> None:
        key, sample, lost = planned.cache_key, None, False
        try:
            sample = await self._sample(execution.plan, planned)
            if sample is not None:
                # The place is held until the store and the aggregation take the sample: when
                # they are slow, calls slow down, and nothing piles up in memory.
                await self._writer.put(sample)
                self._runner.observer.sampled(execution.plan, sample)
                await self._receive(execution, sample, reused=False)
                if not sample.failed:
                    # Other plans of this lane wait for the same answer.
                    for other, _ in self._awaited.pop(key, ()):
                        await self._receive(other, sample, reused=True)
        except _LostLeaseError:
            lost = True
            self._awaited.setdefault(key, []).append((execution, planned))
        finally:
            self._calls -= 1
            self._call_ended.set()
            self._tasks.release()
            self._runner.leases.forget(key)
            if sample is None and not lost:
                self._given_up.append(key)

    async def _receive(self, execution: Execution, sample: Sample, *, reused: bool) -> None:
        if reused:
            execution.reuse(sample)
            self._runner.observer.shared(execution.plan, sample)
        else:
            execution.held[sample.cache_key] = sample
        if execution.complete:
            await self._complete.put(execution)

    async def _sample(self, plan: Plan, planned: PlannedSample) -> Sample | None:
        """One sample, answered or failed for good; None when the lane stopped before the call."""
        trial = _Trial(self, planned.cache_key, plan.request(planned))
        reply: Reply | None = None
        error: str | None = None
        try:
            reply = await trial.run()
        except _StoppedError:
            return None
        except ProviderError as exc:
            if isinstance(exc, RejectedError) and exc.status in _REJECTS_EVERY_CALL:
                self.halt(exc)
                return None
            error = f"{type(exc).__name__}: {exc}"
            self._count_failure(plan, exc)
        else:
            self._failed_in_a_row = 0
            self._failing_claims.clear()
        return make_sample(
            plan,
            planned,
            reply=reply,
            error=error,
            attempts=trial.attempts,
            latency_ms=trial.latency_ms,
            created_at=utc_now(),
        )

    def _count_failure(self, plan: Plan, exc: ProviderError) -> None:
        self._failed_in_a_row += 1
        self._failing_claims.add(plan.claim)
        if self._failed_in_a_row < _FAILED_IN_A_ROW:
            return
        if isinstance(exc, RejectedError) and len(self._failing_claims) < _REJECTED_CLAIMS:
            return
        self.halt(
            ProviderDownError(
                f"{self._failed_in_a_row} samples in a row failed, the last with: {exc}. "
                "Everything that was answered is stored; the same command continues"
            )
        )

    @contextlib.asynccontextmanager
    async def holding(self, request: Request) -> AsyncIterator[Hold]:
        """Hold the money for a call while it is made; where there is none, halt."""
        runner = self._runner
        assert self._model is not None, "a call is made for a plan"
        try:
            async with holding(runner.spending, runner.escrow, self._model, request) as hold:
                yield hold
        except BudgetReachedError as exc:
            self.halt(exc)
            raise _StoppedError from exc

    def count_call(self) -> None:
        """A call is made now."""
        self._runner.spending.calls += 1

    def halt(self, reason: HeretixError) -> None:
        """Start nothing new; `run` returns `reason` once the calls in flight are home."""
        self._halted = self._halted or reason
        self._call_ended.set()
        # Whoever waits for a turn, for minutes perhaps, would only be sent away when it comes.
        for task in self.idle - {asyncio.current_task()}:
            task.cancel()

    def check_open(self) -> None:
        """Raise when no further call may be made."""
        if self._halted is not None:
            raise _StoppedError

    async def require_lease(self, cache_key: str) -> None:
        """Raise unless the call is still ours to pay for."""
        if not await self._runner.leases.confirm(cache_key):
            raise _LostLeaseError

    async def _settle(self, calls: asyncio.TaskGroup, *, most: int) -> None:
        """Wait until no more than `most` samples of others are awaited."""
        pause_s = _POLL_S
        while len(self._awaited) > most and self._halted is None:
            before = len(self._awaited)
            await self._poll(calls)
            await self._leave_to_batches()
            pause_s = _POLL_S if len(self._awaited) < before else min(_POLL_CAP_S, pause_s * 1.5)
            if len(self._awaited) > most:
                await asyncio.sleep(pause_s)

    async def _poll(self, calls: asyncio.TaskGroup) -> None:
        """See which awaited samples have come, and take over those that were given up."""
        stored = await in_thread(self._stored, list(self._awaited))
        for key, sample in stored.items():
            for execution, _ in self._awaited.pop(key, ()):
                await self._receive(execution, sample, reused=True)
        free = await in_thread(self._runner.store.read, select_unleased, list(self._awaited))
        given_up = [pair for key in free for pair in self._awaited.pop(key, ())]
        if given_up:
            await self._hand_out(given_up, calls)

    async def _leave_to_batches(self) -> None:
        """Don't wait for what a batch is to bring, which can take a day; all else is called for."""
        held = await in_thread(self._runner.store.read, select_holding_batches, list(self._awaited))
        for key, batch_id in held.items():
            # A call of this lane may have brought it while the store was asked.
            if self._awaited.pop(key, None) is not None:
                self._in_batches[key] = batch_id

    async def _finish_all(self) -> None:
        """Turn complete executions into stored records, as many at a time as are ready."""
        ended = False
        while not ended:
            batch = [await self._complete.get()]
            # A few may come together: their records are stored in one transaction.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_S):
                    while not (self._complete.full() or self._all_called.is_set()):  # noqa: ASYNC110
                        await asyncio.sleep(_GATHER_S / 10)
            while not self._complete.empty():
                batch.append(self._complete.get_nowait())
            ready = [execution for execution in batch if execution is not None]
            ended = len(ready) < len(batch)
            if not ready:
                continue
            # A record must never name a sample that the store doesn't hold yet.
            await self._writer.flush()
            overtaken = self._writer.overtaken
            for execution in ready if overtaken else ():
                for key in execution.held.keys() & overtaken.keys():
                    # Without the cache an answer from before the run is no answer of this run.
                    if self._counts(overtaken[key]):
                        execution.yield_to(overtaken[key])
            for record in await in_thread(finish, self._runner.store, ready):
                self._runner.observer.finished(record)


class _StoppedError(Exception):
    """The lane stopped before the call was made."""


class _LostLeaseError(Exception):
    """Somebody else may pay for the sample by now, or has."""


class _Trial:
    """The calls that one sample takes."""

    def __init__(self, lane: Lane, cache_key: str, request: Request) -> None:
        self._lane = lane
        self._cache_key = cache_key
        self._request = request
        self._guess = (len(request.system) + len(request.user)) / _CHARS_PER_TOKEN
        self._spent_s = 0.0
        """In calls and between them. Waiting for a turn isn't the sample's fault."""
        self.attempts = 0
        self.latency_ms = 0

    async def run(self) -> Reply:
        task = asyncio.current_task()
        assert task is not None, "a sample is called for in a task of its own"
        self._lane.idle.add(task)
        try:
            return await self._first_or_retried(task)
        finally:
            self._lane.idle.discard(task)

    async def _first_or_retried(self, task: asyncio.Task[None]) -> Reply:
        # Nearly every call succeeds at once, and setting the library up costs as much as the
        # rest of a sample's bookkeeping: it is called upon when there is something to retry.
        attempts = self._lane.retry.attempts
        try:
            return await self._once(task)
        except RetryableError as exc:
            wait_s = self._wait_s(exc)
            if attempts == 1 or wait_s is False:
                raise
        await asyncio.sleep(wait_s)
        # The bound in time is kept by `_wait_s`: the library would count the queue as well.
        async for attempt in stamina.retry_context(
            on=self._wait_s, attempts=attempts - 1, timeout=None
        ):
            with attempt:
                return await self._once(task)
        raise AssertionError("a retry context ends with a reply or an exception")

    async def _once(self, task: asyncio.Task[None]) -> Reply:
        self._lane.check_open()
        pace = self._lane.pace
        async with pace.call(self._guess) as reserved, self._lane.holding(self._request) as hold:
            # The turn may have come late, and the process may have slept meanwhile.
            await self._lane.require_lease(self._cache_key)
            self._lane.check_open()
            self.attempts += 1
            self._lane.count_call()
            clock = asyncio.get_running_loop().time
            begun_s = clock()
            self._lane.idle.discard(task)
            hold.sent = True
            try:
                reply = hold.reply = await self._lane.provider.ask(self._request)
            finally:
                self._lane.idle.add(task)
                self._spent_s += clock() - begun_s
                self.latency_ms = round((clock() - begun_s) * 1000)
            tokens = (reply.tokens_in or 0) + (reply.tokens_out or 0)
            pace.heard(reply.rate_limits, tokens, reserved=reserved)
            return reply

    def _wait_s(self, exc: Exception) -> bool | float:
        if not isinstance(exc, RetryableError):
            return False
        wait_s = self._lane.retry.wait_s(self.attempts, exc)
        self._spent_s += wait_s
        return wait_s if self._spent_s <= self._lane.retry.timeout_s else False


class Observer(Protocol):
    """Observer of a run; the command line's display is one."""

    def planned(self, plan: Plan, cached: int) -> None:
        """A plan was taken up; `cached` of its samples need no call."""

    def extended(self, plan: Plan, more: int, cached: int) -> None:
        """A plan goes on, larger by `more` samples, `cached` of which need no call."""

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

    def extended(self, plan: Plan, more: int, cached: int) -> None:
        """Do nothing."""

    def sampled(self, plan: Plan, sample: Sample) -> None:
        """Do nothing."""

    def shared(self, plan: Plan, sample: Sample) -> None:
        """Do nothing."""

    def finished(self, record: RunRecord) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a run at this moment."""

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
        caps: Mapping[str, int] | None = None,
        limits: Limits | None = None,
        use_cache: bool = True,
        since: str | None = None,
        retry: Retry | None = None,
        observer: Observer | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        """Without the cache, answers count that were made `since` then, or since the run began."""
        self.store = store
        self.spending = spending
        self.caps = dict(caps or {})
        """Budgets in millionths of a dollar, by name, that every call counts against."""
        if spending.budget_usd is not None:
            self.caps[run_budget()] = round(spending.budget_usd * 1e6)
        self.escrow: Escrow | None = None
        self.use_cache = use_cache
        self.since = since
        self.retry = retry or Retry()
        self.observer: Observer = observer or Silence()
        self.leases = Leases(self.store, lease_s=lease_s)
        self._limits = limits or Limits(concurrency=DEFAULT_CONCURRENCY, fixed=False)
        self._lanes: list[Lane] = []

    @property
    def status(self) -> Status:
        """Status of the run."""
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
            await self._open_escrow(stack)
            writer = await stack.enter_async_context(
                SampleWriter(self.store, owner=self.leases.owner, replace=not self.use_cache)
            )
            heart = asyncio.create_task(self.leases.keep())
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

    def close(self, plans: Mapping[ModelId, Iterable[Plan]]) -> None:
        """End executions with steps that are measured, because no larger one will be."""
        for model, steps in plans.items():
            for chunk in chunked(steps, _PLANS_AHEAD):
                price = self.spending.price_of(model)
                for record in close(self.store, chunk, use_cache=self.use_cache, price=price):
                    self.observer.finished(record)

    async def _open_escrow(self, stack: contextlib.AsyncExitStack) -> None:
        if not self.caps:
            return
        self.escrow = escrow = Escrow(self.store, self.caps)
        await escrow.open()
        stack.callback(escrow.close)
        keeping = asyncio.create_task(escrow.keep())
        stack.callback(keeping.cancel)

    def _release(self) -> None:
        # Leases end by themselves; what ended the run mustn't be hidden by failing to end them.
        with contextlib.suppress(StoreError):
            self.store.write(release_all_leases, self.leases.owner)


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a task group: the first trouble ended the other tasks."""
    first = group.exceptions[0]
    return _first_cause(first) if isinstance(first, BaseExceptionGroup) else first


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

    def extended(self, plan: Plan, more: int, cached: int) -> None:
        """Expect so many more."""
        self.total += more
        self.planned(plan, cached)

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
        return (self.done - self.cached) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

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
            **(self.runner.spending.totals if self.runner else {}),
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

    def account(self) -> str:
        """What it took, in one line: dollars, tokens, calls, seconds."""
        if self.runner is None:
            return f"no calls · {self.elapsed_s:,.1f} s"
        spending = self.runner.spending
        spent, totals = spending.spent_usd, spending.totals
        dollars = "cost unknown" if spent is None else f"${spent:,.4f}"
        if spending.cut_off and spending.presumed_micros:
            most = f"up to ${spending.presumed_micros / 1e6:,.4f}"
            dollars += f", and {most} for {spending.cut_off} calls whose cost wasn't told"
        tokens = f"{totals['tokens_in']:,} tokens in, {totals['tokens_out']:,} out"
        calls = f"{totals['calls']:,} call{'' if totals['calls'] == 1 else 's'}"
        return f"{dollars} · {tokens} · {calls} · {self.elapsed_s:,.1f} s"

    def _advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self._shown >= self._every_s:
            self._shown = now
            self._show(self)
