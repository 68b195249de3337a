"""Run plans: look in the cache, call for what is missing, store, aggregate.

One lane per model, so that a slow model never holds up another, at the pace that the model allows.
The estimate depends only on the samples, never on the order in which they arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import stamina

from heretix.core import telemetry
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
    ServerAbsentError,
    StoppedError,
    StoreError,
)
from heretix.core.event_loop import run_in_thread
from heretix.measurement.execution import Execution, begin, close, finish, make_sample
from heretix.measurement.pacing import Limits, Pace
from heretix.sample import Sample
from heretix.store import LEASE_S, SampleWriter, Store
from heretix.store.batches import select_holding_batches
from heretix.store.db import WAIT_S, RetryPolicy, chunked
from heretix.store.samples import (
    Keyed,
    Leases,
    release_all_leases,
    save_samples,
    select_answers,
    select_unleased,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from heretix.measurement.budget import Escrow
    from heretix.measurement.record import RunRecord
    from heretix.plan import Plan, PlannedSample
    from heretix.providers.base import Provider, Reply, Request
    from heretix.providers.catalog import Hold, ModelId, Spending
    from heretix.store.spool import Spool

DEFAULT_CONCURRENCY: Final = 256
"""As far as a lane's window may grow by itself when nobody set it."""
_PLANS_AHEAD: Final = 32
"""Plans that a lane begins at a time: enough for one look-up to serve many."""
_LEASED_AHEAD: Final = 8
"""Samples at the least that are leased at a time, however narrow the window."""
_AWAITED: Final = 4096
"""Samples of others that may be waited for before no further plan is begun."""
_GATHER_S: Final = 0.1
POLL_S: Final = 0.1
POLL_CAP_S: Final = 2.0
_REJECTS_EVERY_CALL: Final = frozenset({401, 402, 403, 404})
"""A wrong key, an empty account or an unknown model: the next call would fail alike, so the lane
ends at once."""
_ABSENT_S: Final = 2.0
"""Time that a server of this machine has to begin to listen, if it never answered."""
_FAILED_IN_A_ROW: Final = 20
"""Samples that failed for good, one after the other, before the provider is taken as down."""
_REJECTED_CLAIMS: Final = 3
"""Claims of which nothing but rejections came. One alone may be what a model won't talk about."""
_CHARS_PER_TOKEN: Final = 4
_log: Final = logging.getLogger(__name__)
_Kept = TypeVar("_Kept", bound=Keyed)


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


class Caller:
    """All calls of a process to one model: each in its turn, paid for, and tried again."""

    def __init__(self, session: Session, provider: Provider, *, limits: Limits) -> None:
        self.most = min(limits.concurrency, provider.max_concurrency)
        """Calls that may ever be in flight."""
        self.pace = Pace(replace(limits, concurrency=self.most))
        self.provider = provider
        self.retry = session.retry
        self.answered = False
        self.idle: set[asyncio.Task[Any]] = set()
        """Tasks that wait for a turn or to try again: no call of theirs is in flight."""
        self.halted: HeretixError | None = None
        """Reason why nothing is called for any more."""
        self._model: ModelId | None = None
        self._session = session

    async def serve(self, model: ModelId) -> None:
        """Call `model` from now on, at the rate that others share."""
        if self._model is None and (rate_id := self._session.rate_ids.get(model)) is not None:
            await self.pace.share(self._session.store, rate_id)
        self._model = model

    @property
    def name(self) -> str:
        """The model, as identities have it."""
        return self._model.identity if self._model is not None else ""

    @contextlib.asynccontextmanager
    async def holding(self, trial: SampleCall) -> AsyncIterator[Hold]:
        """Hold the money for a call while it is made; where there is none, halt."""
        spending, escrow = self._session.spending, self._session.escrow
        assert self._model is not None, "a call is made for a plan or a question"
        hold = spending.hold(self._model, trial.request)
        if escrow is not None:
            try:
                await escrow.reserve(hold.bound_micros)
            except BudgetReachedError as exc:
                self.halt(exc)
                raise NotCalledError from exc
        try:
            yield hold
        except BaseException as exc:
            hold.failure = exc
            raise
        finally:
            cost = spending.settle(hold)
            if escrow is not None:
                escrow.settle(hold.bound_micros, cost, presumed=hold.presumed)
            if telemetry.watchers and hold.sent:
                untold = hold.presumed or spending.price_of(self._model) is None
                trial.tell(hold, None if untold else float(cost) / 1e6)

    def count_call(self) -> None:
        """A call is made now."""
        self._session.spending.calls += 1

    def halt(self, reason: HeretixError) -> None:
        """Start nothing new: the calls in flight come home, and are kept."""
        self.halted = self.halted or reason
        # Whoever waits for a turn, for minutes perhaps, would only be sent away when it comes.
        for task in self.idle - {asyncio.current_task()}:
            task.cancel()

    def check_open(self) -> None:
        """Raise when no further call may be made."""
        if self.halted is not None:
            raise NotCalledError

    async def require_lease(self, cache_key: str) -> None:
        """Raise unless the call is still ours to pay for."""
        if not await self._session.leases.confirm(cache_key):
            raise LostLeaseError


class Lane(Caller):
    """All plans of one model."""

    def __init__(
        self, runner: Runner, provider: Provider, writer: SampleWriter[Sample], *, limits: Limits
    ) -> None:
        super().__init__(runner, provider, limits=limits)
        self._runner = runner
        self._writer = writer
        self._tasks = asyncio.Semaphore(self.most)
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
                while (executions := await upcoming) is not None and self.halted is None:
                    # The next plans are made ready while these are called for.
                    upcoming = calls.create_task(self._prepare(chunks))
                    for execution in executions:
                        self._runner.observer.on_planned(execution.plan, len(execution.held))
                    for execution in executions:
                        if execution.complete:
                            await self._complete.put(execution)
                    await self._hand_out(_order_by_prompt(executions), calls)
                    await self._settle(calls, most=_AWAITED)
                await self._settle(calls, most=0)
                while self._calls and self.halted is None:
                    # One of them may find that it lost its lease, and then waits for another's.
                    await self._wait_for_calls(0)
                    await self._settle(calls, most=0)
            self._all_called.set()
            await self._complete.put(None)
        if self._given_up:
            # Other lanes may go on for hours, and other processes may want what this one left.
            with _HaltOnStoreError(self):
                await self._runner.leases.release(self._given_up)
        if self.halted is None and self._in_batches:
            names = ", ".join(f"`{name}`" for name in sorted(set(self._in_batches.values())))
            return BatchPendingError(
                f"{len(self._in_batches)} samples are on their way in batch {names}. Everything "
                "else that was answered is stored; `heretix batch collect` gets the rest, or "
                "`heretix batch cancel` frees them"
            )
        return self.halted

    async def _prepare(self, chunks: Iterator[list[Plan]]) -> list[Execution] | None:
        """Begin the next plans; None when there are no more."""
        plans = next(chunks, None)
        if plans is None or self.halted is not None:
            return None
        runner, model = self._runner, plans[0].model
        price = runner.spending.price_of(model)
        with _HaltOnStoreError(self):
            await self.serve(model)
            return await run_in_thread(
                begin, runner.store, plans, use_cache=runner.use_cache, price=price
            )
        return None

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
                    if self.halted is None:
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
        await self._wait_for_calls(self.pace.limit + ahead)
        if not left or self.halted is not None:
            return None
        part = [left.pop() for _ in range(min(ahead, len(left)))]
        with _HaltOnStoreError(self):
            return part, *await self._lease([planned.cache_key for _, planned in part])
        return None

    async def _wait_for_calls(self, most: int) -> None:
        """Wait until no more than `most` samples are under way."""
        while self._calls > most and self.halted is None:
            self._call_ended.clear()
            await self._call_ended.wait()

    async def _lease(self, keys: Sequence[str]) -> tuple[set[str], dict[str, Sample]]:
        """Take leases; then look again, since a sample may have been stored just before. Whoever
        let leases lapse may have been given answers that it couldn't store yet."""
        leases = self._runner.leases
        taken, lapsed = await leases.claim(keys)
        if lapsed:
            await self._runner.drain_spools(lapsed)
        stored = await run_in_thread(self._read_stored, sorted(taken)) if taken else {}
        if stored:
            await leases.release(list(stored))
        return taken - stored.keys(), stored

    def _read_stored(self, keys: Sequence[str]) -> dict[str, Sample]:
        """Read what needs no call: all answers, or without the cache the new ones."""
        found = self._runner.store.read(select_answers, keys)
        return {key: sample for key, sample in found.items() if self._is_counted(sample)}

    def _is_counted(self, sample: Sample) -> bool:
        return self._runner.use_cache or sample.created_at >= self._since

    async def _call(self, execution: Execution, planned: PlannedSample) -> None:
        key, sample, lost = planned.cache_key, None, False
        try:
            sample = await self._sample(execution.plan, planned)
            self._runner.give_up_if_idle()
            if sample is not None:
                # The place is held until the store and the aggregation take the sample: when
                # they are slow, calls slow down, and nothing piles up in memory.
                await self._writer.put(sample)
                self._runner.observer.on_sampled(execution.plan, sample)
                await self._receive(execution, sample, reused=False)
                if not sample.failed:
                    # Other plans of this lane wait for the same answer.
                    for other, _ in self._awaited.pop(key, ()):
                        await self._receive(other, sample, reused=True)
        except LostLeaseError:
            lost = True
            self._awaited.setdefault(key, []).append((execution, planned))
        except StoreError as exc:
            self.halt(exc)
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
            self._runner.observer.on_shared(execution.plan, sample)
        else:
            execution.held[sample.cache_key] = sample
        if execution.complete:
            await self._complete.put(execution)

    async def _sample(self, plan: Plan, planned: PlannedSample) -> Sample | None:
        """One sample, answered or failed for good; None when the lane stopped before the call."""
        trial = SampleCall(self, planned.cache_key, plan.request(planned))
        reply: Reply | None = None
        error: str | None = None
        try:
            reply = await trial.run()
        except NotCalledError:
            return None
        except ProviderError as exc:
            if isinstance(exc, RejectedError) and exc.status in _REJECTS_EVERY_CALL:
                self.halt(exc)
                return None
            if isinstance(exc, ServerAbsentError) and not self.answered:
                self.halt(exc)
                return None
            error = f"{type(exc).__name__}: {exc}"
            self._count_failure(plan, exc)
        except StoreError as exc:
            self.halt(exc)
            return None
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

    def halt(self, reason: HeretixError) -> None:
        """Start nothing new; `run` returns the reason once the calls in flight are home."""
        super().halt(reason)
        self._call_ended.set()

    async def _settle(self, calls: asyncio.TaskGroup, *, most: int) -> None:
        """Wait until no more than `most` samples of others are awaited."""
        pause_s = POLL_S
        while len(self._awaited) > most and self.halted is None:
            before = len(self._awaited)
            with _HaltOnStoreError(self):
                await self._poll(calls)
                await self._leave_to_batches()
            pause_s = POLL_S if len(self._awaited) < before else min(POLL_CAP_S, pause_s * 1.5)
            if len(self._awaited) > most:
                await asyncio.sleep(pause_s)

    async def _poll(self, calls: asyncio.TaskGroup) -> None:
        """See which awaited samples have come, and take over those that were given up."""
        stored = await run_in_thread(self._read_stored, list(self._awaited))
        for key, sample in stored.items():
            for execution, _ in self._awaited.pop(key, ()):
                await self._receive(execution, sample, reused=True)
        free = await run_in_thread(self._runner.store.read, select_unleased, list(self._awaited))
        given_up = [pair for key in free for pair in self._awaited.pop(key, ())]
        if given_up:
            await self._hand_out(given_up, calls)

    async def _leave_to_batches(self) -> None:
        """Don't wait for what a batch is to bring, which can take a day; all else is called for."""
        held = await run_in_thread(
            self._runner.store.read, select_holding_batches, list(self._awaited)
        )
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
            with _HaltOnStoreError(self):
                await self._store_records(ready)

    async def _store_records(self, ready: Sequence[Execution]) -> None:
        if not ready:
            return
        # A record must never name a sample that the store doesn't hold yet.
        await self._writer.flush()
        overtaken = self._writer.overtaken
        for execution in ready if overtaken else ():
            for key in execution.held.keys() & overtaken.keys():
                # Without the cache an answer from before the run is no answer of this run.
                if self._is_counted(overtaken[key]):
                    execution.yield_to(overtaken[key])
        for record in await run_in_thread(finish, self._runner.keeping, ready):
            self._runner.observer.on_finished(record)


class _HaltOnStoreError:
    """Halts a lane where the store fails: its calls in flight still come home, and are kept."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> bool:
        if isinstance(exc, StoreError):
            self._lane.halt(exc)
            return True
        return False


def _order_by_prompt(executions: Sequence[Execution]) -> list[tuple[Execution, PlannedSample]]:
    """List what executions lack, equal prompts together: a model that still holds one needn't read
    it again, whichever plan asks for it."""
    alike: dict[str, list[tuple[Execution, PlannedSample]]] = {}
    for execution in executions:
        for planned in execution.missing:
            prompt = execution.plan.prompts[planned.paraphrase_idx]
            alike.setdefault(prompt.sha256, []).append((execution, planned))
    return [pair for pairs in alike.values() for pair in pairs]


class NotCalledError(Exception):
    """The caller was halted before the call was made."""


class LostLeaseError(Exception):
    """The lease ran out: somebody else may pay for the answer by now, or has."""


class SampleCall:
    """The calls that one answer takes."""

    def __init__(self, caller: Caller, cache_key: str, request: Request) -> None:
        self._caller = caller
        self._cache_key = cache_key
        self.request = request
        self._guess = (len(request.system) + len(request.user)) / _CHARS_PER_TOKEN
        self._spent_s = 0.0
        """In calls and between them. Waiting for a turn isn't the answer's fault."""
        self.attempts = 0
        self.latency_ms = 0

    async def run(self) -> Reply:
        """Answer, or raise: the error of the last try, `NotCalledError` or `LostLeaseError`."""
        task = asyncio.current_task()
        assert task is not None, "an answer is called for in a task of its own"
        self._caller.idle.add(task)
        try:
            return await self._call_with_retries(task)
        finally:
            self._caller.idle.discard(task)

    async def _call_with_retries(self, task: asyncio.Task[Any]) -> Reply:
        # Nearly every call succeeds at once, and setting the library up costs as much as the
        # rest of an answer's bookkeeping: it is called upon when there is something to retry.
        attempts = self._caller.retry.attempts
        try:
            return await self._call_once(task)
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
                return await self._call_once(task)
        raise AssertionError("a retry context ends with a reply or an exception")

    async def _call_once(self, task: asyncio.Task[Any]) -> Reply:
        self._caller.check_open()
        pace = self._caller.pace
        async with pace.call(self._guess) as reserved, self._caller.holding(self) as hold:
            # The turn may have come late, and the process may have slept meanwhile.
            await self._caller.require_lease(self._cache_key)
            self._caller.check_open()
            self.attempts += 1
            self._caller.count_call()
            clock = asyncio.get_running_loop().time
            begun_s = clock()
            self._caller.idle.discard(task)
            hold.sent = True
            try:
                reply = hold.reply = await self._caller.provider.ask(self.request)
            finally:
                self._caller.idle.add(task)
                self._spent_s += clock() - begun_s
                self.latency_ms = round((clock() - begun_s) * 1000)
            self._caller.answered = True
            tokens = (reply.tokens_in or 0) + (reply.tokens_out or 0)
            pace.note_reply(reply.rate_limits, tokens, reserved=reserved)
            return reply

    def tell(self, hold: Hold, cost_usd: float | None) -> None:
        """Tell those who watch of a call that was made."""
        reply, failure = hold.reply, hold.failure
        telemetry.tell(
            telemetry.CallEnded(
                model=self._caller.name,
                cache_key=self._cache_key,
                attempt=self.attempts,
                latency_ms=self.latency_ms,
                tokens_in=reply.tokens_in if reply else None,
                tokens_out=reply.tokens_out if reply else None,
                cost_usd=cost_usd,
                response_id=reply.response_id if reply else None,
                error=f"{type(failure).__name__}: {failure}" if failure else None,
            )
        )

    def _wait_s(self, exc: Exception) -> bool | float:
        if not isinstance(exc, RetryableError):
            return False
        wait_s = self._caller.retry.wait_s(self.attempts, exc)
        self._spent_s += wait_s
        absent = isinstance(exc, ServerAbsentError) and not self._caller.answered
        most_s = _ABSENT_S if absent else self._caller.retry.timeout_s
        return wait_s if self._spent_s <= most_s else False


class Observer(Protocol):
    """Observer of a run; the command line's display is one."""

    def on_planned(self, plan: Plan, cached: int) -> None:
        """A plan was taken up; `cached` of its samples need no call."""

    def on_extended(self, plan: Plan, more: int, cached: int) -> None:
        """A plan goes on, larger by `more` samples, `cached` of which need no call."""

    def on_sampled(self, plan: Plan, sample: Sample) -> None:
        """A call ended, well or badly, and its sample was handed to the store."""

    def on_shared(self, plan: Plan, sample: Sample) -> None:
        """Another process paid for a sample meanwhile, and it was taken from the store."""

    def on_heard(self, counts: Counts) -> None:
        """Other machines measure; this is how far all of them are."""

    def on_finished(self, record: RunRecord) -> None:
        """A plan has its record, and the record is stored."""


class NullObserver:
    """An observer that does nothing; others may override what they care for."""

    def on_planned(self, plan: Plan, cached: int) -> None:
        """Do nothing."""

    def on_extended(self, plan: Plan, more: int, cached: int) -> None:
        """Do nothing."""

    def on_sampled(self, plan: Plan, sample: Sample) -> None:
        """Do nothing."""

    def on_shared(self, plan: Plan, sample: Sample) -> None:
        """Do nothing."""

    def on_heard(self, counts: Counts) -> None:
        """Do nothing."""

    def on_finished(self, record: RunRecord) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of what a process has measured: all that it tells another one."""

    done: int = 0
    cached: int = 0
    failed: int = 0
    more: int = 0
    """Samples beyond those that were planned at first, for the sake of precision."""
    in_flight: int = 0
    window: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cut_off: int = 0
    presumed_micros: int = 0
    spooled: int = 0
    untold: int = 0
    """1 where the cost of a call isn't known."""
    doing: str = "measuring"


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a run at this moment."""

    in_flight: int
    window: int
    """Calls that may be in flight."""
    spent_usd: float | None


class Session:
    """State that the calls of a process share: store, leases, budgets, answers on their way."""

    def __init__(
        self,
        store: Store,
        *,
        spending: Spending,
        caps: Mapping[str, int] | None = None,
        rate_ids: Mapping[ModelId, str] | None = None,
        replace: bool = False,
        spools: bool = True,
        retry: Retry | None = None,
        lease_s: float = LEASE_S,
        wait_s: float = WAIT_S,
    ) -> None:
        """`caps` are budgets in millionths of a dollar, by name, that every call counts against;
        `rate_ids` the rates, by model, that other processes draw from too. With `replace` answers
        take the place of older ones; with `spools` they are kept on disk until the store has them.
        A store that is away is waited for, for `wait_s` at the most."""
        self.tell: Callable[[str], None] = _log.warning
        """Is called with what people should know, from any thread."""
        # What is asked of the store to make calls isn't waited for any more once the calls stop;
        # what keeps their answers is, until the last of them is home.
        self._keeping = RetryPolicy(self._tell, wait_s=wait_s)
        self._asking = self._keeping.fork()
        self.store, self.keeping = (
            store.with_retries(self._asking),
            store.with_retries(self._keeping),
        )
        self.stopped = False
        """True once it was asked to stop."""
        self.spooled = 0
        """Answers that are kept on this machine, since the store couldn't be given them."""
        self._kept: set[str] = set()
        """Their keys."""
        self.spending = spending
        self.caps = dict(caps or {})
        self.rate_ids = dict(rate_ids or {})
        self.escrow: Escrow | None = None
        self.retry = retry or Retry()
        self.leases = Leases(self.store, lease_s=lease_s)
        self.callers: list[Caller] = []
        self._replace = replace
        self._spools = spools

    @property
    def in_flight(self) -> int:
        """Calls in flight."""
        return sum(caller.pace.in_flight for caller in self.callers)

    def stop(self) -> int:
        """Start nothing new, and let the calls in flight come home: how many there are.

        To be called in the event loop.
        """
        self.stopped = True
        self._asking.give_up()
        for caller in self.callers:
            caller.halt(make_stopped_error())
        self.give_up_if_idle()
        return self.in_flight

    def give_up_if_idle(self) -> None:
        """Wait for a store that is away no longer, once nothing is called for any more and no call
        is in flight."""
        if self.stopped and not self.in_flight:
            self._keeping.give_up()

    def drop(self) -> None:
        """Wait for nothing: threads go on to their end, and mustn't wait for the store."""
        self._asking.give_up()
        self._keeping.give_up()

    @contextlib.asynccontextmanager
    async def opened(
        self, save: Callable[..., dict[str, _Kept]], of: type[_Kept]
    ) -> AsyncIterator[SampleWriter[_Kept]]:
        """Hold leases and money while answers are called for, and `save` them as they come."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._release)
            await self.drain_spools()
            if self.stopped:
                raise make_stopped_error()
            await self._open_escrow(stack)
            writer = await stack.enter_async_context(self._writing(save, of))
            heart = asyncio.create_task(self.leases.keep())
            stack.callback(heart.cancel)
            yield writer

    async def _open_escrow(self, stack: contextlib.AsyncExitStack) -> None:
        if not self.caps:
            return
        from heretix.measurement.budget import Escrow

        self.escrow = escrow = Escrow(self.store, self.caps)
        await escrow.open()
        stack.push_async_callback(self._suppress_store_errors, escrow.close)
        keeping = asyncio.create_task(escrow.keep())
        stack.callback(keeping.cancel)

    @contextlib.asynccontextmanager
    async def _writing(
        self, save: Callable[..., dict[str, _Kept]], of: type[_Kept]
    ) -> AsyncIterator[SampleWriter[_Kept]]:
        """Write answers as they come; what the store can't be given stays on this machine."""
        spool: Spool[_Kept] | None = None
        if self._spools:
            from heretix.store.spool import Spool

            spool = Spool(self.store, replace=self._replace, owner=self.leases.owner, of=of)
        writer = SampleWriter(
            self.keeping,
            save=save,
            owner=self.leases.owner,
            replace=self._replace,
            spool=spool,
            on_error=self._fail,
        )
        try:
            async with writer:
                yield writer
        finally:
            if spool is not None:
                kept = spool.count
                self.spooled += kept
                if kept:
                    self._kept = {answer.cache_key for answer in writer.unsaved}
                    self.tell(
                        f"{kept:,} answers are kept in {spool.folder}, since the store couldn't "
                        "take them; the next run on this store brings them in"
                    )
                await run_in_thread(spool.close)

    def _tell(self, text: str) -> None:
        self.tell(text)

    def _fail(self, reason: HeretixError) -> None:
        for caller in self.callers:
            caller.halt(reason)

    async def drain_spools(self, owners: Collection[str] = ()) -> None:
        """Bring in what a process that is gone was paid for and couldn't store; and one of
        `owners`, which may be there and stand still."""
        if owners or self.store.spools:
            from heretix.store.spool import drain_spools

            if found := await run_in_thread(drain_spools, self.store, owners):
                self.tell(f"brought in {found:,} answers that another process couldn't store")

    async def _release(self) -> None:
        # Leases end by themselves; what ended the calls mustn't be hidden by failing to end them.
        # Those on answers that are kept here are left: whoever takes them over brings them in.
        release = partial(release_all_leases, owner=self.leases.owner, but=self._kept)
        await self._suppress_store_errors(lambda: run_in_thread(self.store.write, release))

    async def _suppress_store_errors(self, work: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(StoreError):
            await work()


class Runner(Session):
    """Measures plans against one store."""

    def __init__(
        self,
        store: Store,
        *,
        spending: Spending,
        caps: Mapping[str, int] | None = None,
        budget_id: str | None = None,
        limits: Limits | None = None,
        rate_ids: Mapping[ModelId, str] | None = None,
        use_cache: bool = True,
        since: str | None = None,
        retry: Retry | None = None,
        observer: Observer | None = None,
        lease_s: float = LEASE_S,
        wait_s: float = WAIT_S,
    ) -> None:
        """Without the cache, answers count that were made `since` then, or since the run began.
        `budget_id` names the account's own budget, which other runs may share."""
        super().__init__(
            store,
            spending=spending,
            caps=caps,
            rate_ids=rate_ids,
            replace=not use_cache,
            # Where somebody is paid.
            spools=bool(rate_ids),
            retry=retry,
            lease_s=lease_s,
            wait_s=wait_s,
        )
        if spending.budget_usd is not None:
            self.caps[budget_id or f"run:{uuid.uuid4()}"] = round(spending.budget_usd * 1e6)
        self.use_cache = use_cache
        self.since = since
        self.observer: Observer = observer or NullObserver()
        self.elsewhere = (0, 0)
        """Calls in flight and windows of other machines that work for this run."""
        self._limits = limits or Limits(concurrency=DEFAULT_CONCURRENCY, fixed=False)

    @property
    def in_flight(self) -> int:
        """Calls in flight, here and elsewhere."""
        return super().in_flight + self.elsewhere[0]

    @property
    def status(self) -> Status:
        """Status of the run."""
        return Status(
            in_flight=self.in_flight,
            window=self.elsewhere[1] + sum(caller.pace.limit for caller in self.callers),
            spent_usd=self.spending.spent_usd,
        )

    async def run(self, lanes: Sequence[tuple[Provider, Iterable[Plan]]]) -> None:
        """Measure every lane's plans, or raise `StoppedError`. The caller closes the providers.

        When it is cancelled, calls in flight are dropped, and every sample that had arrived is
        committed before the cancellation goes on, or kept on this machine. A lane that has to stop
        lets the others end.
        """
        work = asyncio.ensure_future(self._run(lanes))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            self.drop()
            work.cancel()
            await asyncio.wait([work])
            raise
        work.result()

    async def _run(self, lanes: Sequence[tuple[Provider, Iterable[Plan]]]) -> None:
        async with self.opened(save_samples, Sample) as writer:
            opened = [Lane(self, provider, writer, limits=self._limits) for provider, _ in lanes]
            self.callers = [*opened]
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(lane.run(plans))
                        for lane, (_, plans) in zip(opened, lanes, strict=True)
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
                    self.observer.on_finished(record)


def make_stopped_error() -> StoppedError:
    """The error that a run ends with that was asked to stop."""
    return StoppedError(
        "stopped; everything that was answered is stored, and the same command continues"
    )


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a task group: the first trouble ended the other tasks."""
    first = group.exceptions[0]
    return _first_cause(first) if isinstance(first, BaseExceptionGroup) else first


class Tally(NullObserver):
    """Counts what happens, and has it shown now and then."""

    def __init__(self, total: int, show: Callable[[Tally], None], every_s: float) -> None:
        self.total = total
        self._more = 0
        self.done = 0
        self.cached = 0
        self.failed = 0
        self.doing = "measuring"
        self.runner: Runner | None = None
        self.tell: Callable[[str], None] = _log.warning
        """Is called with what people should know, from any thread."""
        self._show = show
        self._every_s = every_s
        self._begun = time.monotonic()
        self._shown = self._begun

    def on_planned(self, plan: Plan, cached: int) -> None:
        """Count what needs no call."""
        self.cached += cached
        self._advance(cached)

    def on_extended(self, plan: Plan, more: int, cached: int) -> None:
        """Expect so many more."""
        self.total += more
        self.on_planned(plan, cached)

    def on_sampled(self, plan: Plan, sample: Sample) -> None:
        """Count a call that ended."""
        self.doing = f"measuring {plan.label}"
        self.failed += sample.failed
        self._advance(1)

    def on_shared(self, plan: Plan, sample: Sample) -> None:
        """Count what another process paid for."""
        self.cached += 1
        self._advance(1)

    def on_heard(self, counts: Counts) -> None:
        """Take over the counts of other machines."""
        self.done, self.cached, self.failed = counts.done, counts.cached, counts.failed
        self.total += counts.more - self._more
        self._more, self.doing = counts.more, counts.doing
        self._advance(0)

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
        """Say what it took, in one line: dollars, tokens, calls, seconds."""
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
