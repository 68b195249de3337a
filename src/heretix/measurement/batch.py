"""Batches: submit what isn't stored yet at half price, ask about them, collect what came back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self, TypeVar

import stamina

from heretix.core.clock import utc_now, utc_text
from heretix.core.errors import (
    BudgetReachedError,
    CallTimeoutError,
    ConfigError,
    HeretixError,
    ProviderError,
    RateLimitedError,
    RecordError,
    RejectedError,
    RetryableError,
    ServerError,
    StoreBusyError,
    StoreError,
    UnconfirmedError,
    UsageError,
)
from heretix.core.lenses import RPL
from heretix.measurement.execution import Execution, begin, finish, make_sample
from heretix.measurement.runner import Observer, Retry, Silence
from heretix.measurement.service import bank_of, replan
from heretix.providers.base import Reply
from heretix.providers.batch import SUBMISSION_WINDOW, BatchProvider, BatchState
from heretix.providers.catalog import (
    ModelId,
    Options,
    open_batch_provider,
    parse_model,
    sent_options,
)
from heretix.providers.prices import Price, PriceTable, cost_micros, load_prices
from heretix.store import LEASE_S, Store, new_owner
from heretix.store.batches import (
    BATCH_LEASE_S,
    Batch,
    BatchUsage,
    abandon_batch,
    close_batch,
    confirm_batch,
    draw_batch,
    find_batch,
    note_batch,
    save_batch_samples,
    select_batch_keys,
    select_batch_usage,
    select_open_batches,
    select_own_samples,
    select_pending_samples,
    select_provider_batch_ids,
    select_ready_executions,
    select_waiting_executions,
)
from heretix.store.db import chunked
from heretix.store.runs import select_bank
from heretix.store.samples import claim_leases, extend_leases, release_all_leases, select_samples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import TracebackType

    from heretix.core.settings import Settings
    from heretix.measurement.service import Measurement
    from heretix.plan import Plan, PlannedSample
    from heretix.prompts.bank import Bank
    from heretix.providers.batch import BatchLimits
    from heretix.sample import Sample
    from heretix.store.batches import OwnSample, WaitingExecution

# The desk at which batches are handled: asked about, confirmed, given up, cancelled.
#
# A crash between a submission and the note that it was taken must not make anybody pay twice. So a
# batch is written down before it is submitted, and one that was never confirmed is looked for at
# the
# provider: it is taken up again if it is there, and its samples are free again if it never came.

_T = TypeVar("_T")
_RETRY_AFTER_CAP_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """A batch, as far as it is known now."""

    batch: Batch
    usage: BatchUsage
    cost_usd: float | None
    """What the answers that it has brought cost, at the batch price. None where that is unknown,
    as it is before any were collected."""
    state: BatchState | None = None
    """What the provider said, if it was asked."""
    trouble: HeretixError | None = None
    """Why no more is known."""


class BatchDesk:
    """Handles the batches of one store; an async context manager."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        retry: Retry | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.retry = retry or Retry()
        self._now = now or (lambda: datetime.now(UTC))
        self._prices: PriceTable | None = None
        self._providers: dict[tuple[str, str | None], BatchProvider] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for provider in self._providers.values():
            await provider.aclose()
        self._providers.clear()

    @property
    def now(self) -> datetime:
        """The time."""
        return self._now()

    def provider(self, model: ModelId, base_url: str | None) -> BatchProvider:
        """The provider that takes batches for `model`."""
        known = (model.identity, base_url)
        if known not in self._providers:
            self._providers[known] = open_batch_provider(
                model, self.settings, options=Options(base_url=base_url)
            )
        return self._providers[known]

    def provider_of(self, batch: Batch) -> BatchProvider:
        """The provider that a batch was submitted to."""
        return self.provider(parse_model(batch.model), batch.base_url)

    def price_of(self, model: ModelId) -> Price | None:
        """The price of `model` in a batch; None where it isn't known."""
        if self._prices is None:
            self._prices = load_prices(self.settings)
        price = self._prices.find(model)
        return None if price is None else price.batched()

    async def patiently(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call that may be repeated, and repeat it while that is worth it."""
        failures = 0

        def wait_s(exc: Exception) -> bool | float:
            nonlocal failures
            if not isinstance(exc, RetryableError):
                return False
            failures += 1
            stated = exc.retry_after_s if isinstance(exc, RateLimitedError) else None
            return min(stated or 0.0, _RETRY_AFTER_CAP_S) + self.retry.wait_s(failures, exc)

        async for attempt in stamina.retry_context(
            on=wait_s,
            attempts=self.retry.attempts,
            timeout=self.retry.timeout_s,
            wait_jitter=0.0,
        ):
            with attempt:
                return await call()
        raise AssertionError("a retry context ends with a result or an exception")

    @contextlib.asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        """Keep other processes off a batch. One that dies lets go by itself, as with samples."""
        owner = new_owner()
        if not await asyncio.to_thread(self.store.write, claim_leases, [name], owner):
            raise StoreBusyError(
                f"`{name}` is being worked on by another process; wait for it, then try again"
            )
        heart = asyncio.create_task(self._keep(owner))
        try:
            yield
        finally:
            heart.cancel()
            with contextlib.suppress(StoreError):
                self.store.write(release_all_leases, owner)

    async def look(self, batch: Batch) -> BatchView:
        """Ask the provider about an open batch, and find out about one that wasn't confirmed."""
        try:
            return await self._look(batch)
        except (ProviderError, UsageError, StoreBusyError) as exc:
            return self.view(self.store.read(find_batch, batch.batch_id), trouble=exc)

    async def settle(self, batch: Batch) -> Batch:
        """Find out what became of a submission that was never confirmed. Needs `holding`."""
        provider = self.provider_of(batch)
        since = datetime.fromisoformat(batch.submitted_at)
        sightings = await self.patiently(
            lambda: provider.find(batch.batch_id, size=batch.requests, since=since)
        )
        known = self.store.read(select_provider_batch_ids, batch.provider)
        undecided = None
        for sighting in sightings:
            name = sighting.provider_batch_id
            if name in known:
                continue
            ours = sighting.certain or await self._is_ours(batch, provider, name)
            if ours:
                self.store.write(confirm_batch, batch.batch_id, name, now=utc_text(self.now))
                return self.store.read(find_batch, batch.batch_id)
            undecided = name if ours is None else undecided
        self._leave_unconfirmed(batch, since, undecided)
        return self.store.read(find_batch, batch.batch_id)

    async def cancel(self, batch: Batch) -> BatchView:
        """End a batch early. What was answered until then is paid, and can be collected."""
        async with self.holding(batch.batch_id):
            batch = self.store.read(find_batch, batch.batch_id)
            if batch.state == "submitting":
                batch = await self.settle(batch)
            if batch.state == "submitted":
                assert batch.provider_batch_id is not None
                name, provider = batch.provider_batch_id, self.provider_of(batch)
                await self.patiently(lambda: provider.cancel(name))
        return await self.look(batch)

    async def ask(self, batch: Batch) -> BatchState | None:
        """What the provider says of a batch that it confirmed; None when it is gone for good."""
        assert batch.provider_batch_id is not None
        name, provider = batch.provider_batch_id, self.provider_of(batch)
        try:
            state = await self.patiently(lambda: provider.status(name))
        except RejectedError as exc:
            age = self.now - datetime.fromisoformat(batch.submitted_at)
            if exc.status != 404 or age < timedelta(seconds=BATCH_LEASE_S):
                raise
            note = "the provider no longer knows it; the same command submits its samples again"
            self.store.write(abandon_batch, batch.batch_id, note=note, now=utc_text(self.now))
            return None
        expires_at = utc_text(state.expires_at) if state.expires_at else None
        if expires_at != batch.expires_at:
            self.store.write(
                note_batch,
                batch.batch_id,
                now=utc_text(self.now),
                note=batch.note,
                expires_at=expires_at,
            )
        return state

    def view(
        self,
        batch: Batch,
        *,
        state: BatchState | None = None,
        trouble: HeretixError | None = None,
    ) -> BatchView:
        """A batch with what it has brought and cost."""
        usage = self.store.read(select_batch_usage, batch.batch_id)
        price = self.price_of(parse_model(batch.model))
        cost = None
        if price is not None and usage.tokens_in is not None and usage.tokens_out is not None:
            cost = cost_micros(price, usage.tokens_in, usage.tokens_out) / 1e6
        return BatchView(batch=batch, usage=usage, cost_usd=cost, state=state, trouble=trouble)

    async def _look(self, batch: Batch) -> BatchView:
        if batch.state == "submitting":
            async with self.holding(batch.batch_id):
                batch = self.store.read(find_batch, batch.batch_id)
                if batch.state == "submitting":
                    batch = await self.settle(batch)
        state = await self.ask(batch) if batch.state == "submitted" else None
        return self.view(self.store.read(find_batch, batch.batch_id), state=state)

    async def _is_ours(self, batch: Batch, provider: BatchProvider, name: str) -> bool | None:
        """Whether a batch without our name on it is this one; None while it can't be told."""
        state = await self.patiently(lambda: provider.status(name))
        if not state.ended:
            return None
        if state.problem is not None:
            return False
        keys = self.store.read(select_batch_keys, batch.batch_id)
        async with contextlib.aclosing(provider.results(name)) as results:
            found = {result.custom_id async for result in results} - {None}
        return bool(found) and found <= keys

    def _leave_unconfirmed(self, batch: Batch, since: datetime, undecided: str | None) -> None:
        now = utc_text(self.now)
        if undecided is not None:
            note = f"not confirmed; {undecided} may be it, which shows when that has ended"
            self.store.write(note_batch, batch.batch_id, note=note, now=now)
        elif self.now - since > SUBMISSION_WINDOW:
            note = "it never reached the provider; the same command submits its samples again"
            self.store.write(abandon_batch, batch.batch_id, note=note, now=now)
        else:
            until = utc_text(since + SUBMISSION_WINDOW)
            note = f"not confirmed, and not at the provider yet; it is given up after {until}"
            self.store.write(note_batch, batch.batch_id, note=note, now=now)

    async def _keep(self, owner: str) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 4)
            # A store in trouble shows at the next write; a missed beat alone does no harm.
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(self.store.write, extend_leases, owner)


# From a measurement to batches at providers: what isn't stored yet is submitted, at half price.

_PLANS_AHEAD: Final = 64


@dataclass(slots=True)
class Submission:
    """What was submitted."""

    batches: list[str] = field(default_factory=list)
    """Batches that the providers took."""
    requests: int = 0
    """Samples in them."""
    elsewhere: int = 0
    """Samples that other batches or live runs are getting already."""
    executions: int = 0
    """Executions that wait for samples."""
    finished: int = 0
    """Executions that needed none."""


async def submit(
    desk: BatchDesk,
    measurement: Measurement,
    *,
    observer: Observer | None = None,
    limits: BatchLimits | None = None,
) -> Submission:
    """Submit what a measurement lacks. Runs that lack nothing get their records at once.

    `limits` makes batches smaller than the providers' own limits do. Raises what ended it early:
    batches that were taken stay, and the same measurement submitted again sends only the rest.
    """
    if measurement.config.lenses != (RPL,):
        # A plan is made again from what the store has of it, which is no evidence yet.
        raise ConfigError(
            f"`lenses` must be RPL in a batch, got {', '.join(measurement.config.lenses)}; "
            "measure the others without `--batch`"
        )
    submission = Submission()
    submitters = [
        _Submitter(desk, measurement, model, submission, observer or Silence(), limits)
        for model in measurement.models
    ]
    _check_budget(desk, measurement)
    # What a crash left behind comes first: its samples are either on their way or free again.
    for batch in desk.store.read(select_open_batches):
        if batch.state == "submitting":
            await desk.look(batch)
    measurement.register_bank(desk.store)
    for submitter in submitters:
        await submitter.run()
    return submission


def _check_budget(desk: BatchDesk, measurement: Measurement) -> None:
    """A batch can't be stopped by what it has cost so far: its most must fit."""
    budget_usd = measurement.config.budget_usd
    if budget_usd is None:
        return
    most_usd = 0.0
    for model in measurement.models:
        price = desk.price_of(model)
        if price is None:
            raise ConfigError(
                f"`budget_usd` can't be kept: the batch price of {model} isn't known; "
                "put it into a table of yours and name that with HERETIX_PRICES"
            )
        share = replace(measurement, models=(model,)).estimate(desk.store)
        most_usd += cost_micros(price, share.tokens_in, share.tokens_out_max) / 1e6
    if most_usd > budget_usd:
        raise BudgetReachedError(
            f"`budget_usd` must cover the most that the batches may cost, ${most_usd:.4f}, "
            f"got {budget_usd:g}; allow more, or lower `max_output_tokens`. Nothing was submitted"
        )


class _Draft:
    """A batch that is being filled."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.wanted: list[tuple[str, str]] = []
        self.executions: dict[str, Execution] = {}
        self._size_bytes = 0

    def has_room(self, entry: bytes, limits: BatchLimits) -> bool:
        size = self._size_bytes + len(entry) + 1
        return len(self.entries) < limits.requests and size <= limits.size_bytes

    def add(self, execution: Execution, key: str, entry: bytes) -> None:
        if key not in self.entries:
            self.entries[key] = entry
            self._size_bytes += len(entry) + 1
        self.wanted.append((execution.execution_id, key))
        self.executions[execution.execution_id] = execution


class _Submitter:
    """Submits the plans of one model: a batch has one model only."""

    def __init__(
        self,
        desk: BatchDesk,
        measurement: Measurement,
        model: ModelId,
        submission: Submission,
        observer: Observer,
        limits: BatchLimits | None,
    ) -> None:
        self._desk = desk
        self._measurement = measurement
        self._model = model
        self._submission = submission
        self._observer = observer
        self._use_cache = not measurement.settings.no_cache
        self._base_url = sent_options(model, Options(base_url=measurement.config.base_url)).base_url
        self._provider = desk.provider(model, self._base_url)
        self._limits = limits or self._provider.limits
        self._draft = _Draft()

    async def run(self) -> None:
        price = self._desk.price_of(self._model)
        for plans in chunked(self._measurement.plans(self._model), _PLANS_AHEAD):
            executions = await asyncio.to_thread(
                begin, self._desk.store, plans, use_cache=self._use_cache, price=price
            )
            complete = [execution for execution in executions if execution.complete]
            for execution in executions:
                self._observer.planned(execution.plan, len(execution.held))
                await self._take_up(execution)
            await self._finish(complete)
        await self._send()

    async def _take_up(self, execution: Execution) -> None:
        missing = execution.missing
        self._submission.executions += bool(missing)
        for planned in missing:
            entry = self._provider.encode(planned.cache_key, execution.plan.request(planned))
            if self._draft.entries and not self._draft.has_room(entry, self._limits):
                await self._send()
            self._draft.add(execution, planned.cache_key, entry)

    async def _send(self) -> None:
        """Write the draft down, submit it, and write down that it was taken."""
        draft, self._draft = self._draft, _Draft()
        if not draft.entries:
            return
        desk, now = self._desk, utc_text(self._desk.now)
        batch = Batch(
            batch_id=f"batch-{uuid.uuid4()}",
            provider=self._model.provider,
            model=self._model.identity,
            base_url=self._base_url,
            provider_batch_id=None,
            state="submitting",
            requests=len(draft.entries),
            submitted_at=now,
            updated_at=now,
        )
        async with desk.holding(batch.batch_id):
            drawn = await asyncio.to_thread(
                desk.store.write, draw_batch, batch, draft.wanted, use_cache=self._use_cache
            )
            self._submission.elsewhere += drawn.elsewhere
            if drawn.owned:
                entries = [draft.entries[key] for key in draft.entries if key in drawn.owned]
                name = await self._deliver(batch, entries)
                desk.store.write(confirm_batch, batch.batch_id, name, now=utc_text(desk.now))
                self._submission.batches.append(batch.batch_id)
                self._submission.requests += len(entries)
        for execution_id, key in draft.wanted:
            if key in drawn.stored:
                draft.executions[execution_id].reuse(drawn.stored[key])
        late = [e for e in draft.executions.values() if e.complete]
        self._submission.executions -= len(late)
        await self._finish(late)

    async def _deliver(self, batch: Batch, entries: Sequence[bytes]) -> str:
        """Submit until the provider has it, or said no, or can't be asked."""
        desk, provider = self._desk, self._provider
        failures = 0
        while True:
            try:
                return await desk.patiently(lambda: provider.submit(batch.batch_id, entries))
            except UnconfirmedError as exc:
                failures += 1
                name = await self._look_for(batch, len(entries), exc)
                if name is not None:
                    return name
                if failures >= desk.retry.attempts:
                    raise self._refused(batch, exc) from exc
                await asyncio.sleep(desk.retry.wait_s(failures, exc))
            except ProviderError as exc:
                raise self._refused(batch, exc) from exc

    async def _look_for(self, batch: Batch, size: int, failure: UnconfirmedError) -> str | None:
        """The name of a batch that was made all the same; None when the provider said no, and
        has none.

        Anything else is left as it is, for `heretix batch status` to find out.
        """
        desk, provider = self._desk, self._provider
        since = datetime.fromisoformat(batch.submitted_at)
        known = desk.store.read(select_provider_batch_ids, batch.provider)
        try:
            sightings = await desk.patiently(
                lambda: provider.find(batch.batch_id, size=size, since=since)
            )
        except ProviderError:
            raise self._unclear(batch, failure) from failure
        fresh = [s for s in sightings if s.provider_batch_id not in known]
        certain = next((s.provider_batch_id for s in fresh if s.certain), None)
        answered = failure.status is not None and failure.status >= 400
        if certain is None and (fresh or not answered):
            raise self._unclear(batch, failure) from failure
        return certain

    def _refused(self, batch: Batch, exc: ProviderError) -> ProviderError:
        """Free the samples of a batch that wasn't taken, and say so."""
        desk = self._desk
        desk.store.write(abandon_batch, batch.batch_id, note=str(exc), now=utc_text(desk.now))
        taken = len(self._submission.batches)
        kept = f"{taken} batches were taken before; " if taken else ""
        message = f"{exc}. {kept}the same command submits the rest"
        return _like(exc, message)

    def _unclear(self, batch: Batch, exc: UnconfirmedError) -> ProviderError:
        """Leave a batch unconfirmed, and say how to find out."""
        desk = self._desk
        note = f"not confirmed: {exc}"
        desk.store.write(note_batch, batch.batch_id, note=note, now=utc_text(desk.now))
        return UnconfirmedError(
            f"{exc}. Whether `{batch.batch_id}` was taken isn't known; `heretix batch status` "
            "finds out, and until then nothing in it is sent again",
            status=exc.status,
        )

    async def _finish(self, executions: Sequence[Execution]) -> None:
        if executions:
            records = await asyncio.to_thread(finish, self._desk.store, executions)
            for record in records:
                self._observer.finished(record)
            self._submission.finished += len(records)


def _like(exc: ProviderError, message: str) -> ProviderError:
    """An error of the same kind with other words."""
    return type(exc)(message, status=exc.status)


# From batches that have ended to stored samples and records.
#
# Collecting can be done as often as one likes: a sample is stored once, a record written once, and
# what an interruption left undone is done the next time.

_SAVED_TOGETHER: Final = 500
_FINISHED_TOGETHER: Final = 64
_PLANS_KEPT: Final = 2048
_FINISHING: Final = "batch-records"
"""Held while records are written, so that two processes don't write the same one."""


@dataclass(slots=True)
class Collection:
    """What was collected."""

    views: list[BatchView] = field(default_factory=list)
    """Every batch that was looked at, as it is now."""
    finished: int = 0
    """Executions that got their records."""
    waiting: int = 0
    """Executions that no batch brings any more samples: a live run was getting the ones that they
    lack, or their submission was cut short."""
    troubles: list[HeretixError] = field(default_factory=list)
    """Why some executions couldn't be finished."""

    @property
    def open(self) -> list[BatchView]:
        """Batches of which something may still come."""
        return [view for view in self.views if view.batch.is_open]


async def collect(
    desk: BatchDesk,
    batches: Sequence[Batch],
    *,
    observer: Observer | None = None,
    every_s: float | None = None,
) -> Collection:
    """Store what has come, and write the records that it completes.

    With `every_s`, the open ones are asked about so often until all have ended; a provider that
    can't be reached for a while doesn't end that, one that refuses does.
    """
    observer = observer or Silence()
    collection = Collection()
    over: dict[str, BatchView] = {}
    plans = _Plans(desk)
    left = list(batches)
    while True:
        views = [await _collect(desk, batch, plans, observer) for batch in left]
        over.update((view.batch.batch_id, view) for view in views)
        await _finish_ready(desk, plans, observer, collection)
        left = [view.batch for view in views if _is_worth_waiting_for(view)]
        if every_s is None or not left:
            break
        await asyncio.sleep(every_s)
    collection.views = list(over.values())
    return collection


def _is_worth_waiting_for(view: BatchView) -> bool:
    passing = view.trouble is None or isinstance(view.trouble, RetryableError | StoreBusyError)
    return view.batch.is_open and passing


async def _collect(desk: BatchDesk, batch: Batch, plans: _Plans, observer: Observer) -> BatchView:
    view = await desk.look(batch)
    if view.state is None or not view.state.ended or view.batch.state != "submitted":
        return view
    try:
        async with desk.holding(batch.batch_id):
            batch = desk.store.read(find_batch, batch.batch_id)
            # Another process may have been quicker.
            if batch.state == "submitted":
                await _Collector(desk, batch, view.state, plans, observer).run()
    except (ProviderError, UsageError, StoreBusyError) as exc:
        return desk.view(desk.store.read(find_batch, batch.batch_id), state=view.state, trouble=exc)
    return desk.view(desk.store.read(find_batch, batch.batch_id), state=view.state)


class _Collector:
    """Stores the results of one batch that has ended."""

    def __init__(
        self, desk: BatchDesk, batch: Batch, state: BatchState, plans: _Plans, observer: Observer
    ) -> None:
        self._desk = desk
        self._batch = batch
        self._state = state
        self._plans = plans
        self._observer = observer
        self._strays = 0
        begun = datetime.fromisoformat(batch.submitted_at)
        ended = state.ended_at or desk.now
        self._latency_ms = max(0, round((ended - begun).total_seconds() * 1000))

    async def run(self) -> None:
        """Store every result; a request without one is stored as failed."""
        desk, batch_id = self._desk, self._batch.batch_id
        missing: ProviderError = _missing(self._batch, self._state)
        try:
            await desk.patiently(self._read)
        except RejectedError as exc:
            # The batch itself is known, as its state was told just now.
            if exc.status != 404:
                raise
            missing = ServerError(f"`{self._batch.provider}` no longer has the results: {exc}")
        left = desk.store.read(select_pending_samples, batch_id)
        keys = sorted(left)
        for chunk in chunked(keys, _SAVED_TOGETHER):
            await self._save([(left[key], key, missing) for key in chunk])
        note = f"{self._strays:,} lines of its results made no sense" if self._strays else None
        desk.store.write(close_batch, batch_id, note=note, now=utc_now())

    async def _read(self) -> None:
        desk = self._desk
        assert self._batch.provider_batch_id is not None
        pending = desk.store.read(select_pending_samples, self._batch.batch_id)
        keys = desk.store.read(select_batch_keys, self._batch.batch_id)
        arrived: list[tuple[str, str, Reply | ProviderError]] = []
        seen = self._strays = 0
        provider = desk.provider_of(self._batch)
        async with contextlib.aclosing(provider.results(self._batch.provider_batch_id)) as results:
            async for result in results:
                seen += 1
                key = result.custom_id
                self._strays += key not in keys
                if key is None or key not in pending:
                    continue
                arrived.append((pending.pop(key), key, result.outcome))
                if len(arrived) >= _SAVED_TOGETHER:
                    await self._save(arrived)
                    arrived = []
        await self._save(arrived)
        counts = self._state.counts
        if counts is not None and seen < counts.succeeded:
            raise ServerError(
                f"`{self._batch.provider}` must send {counts.succeeded:,} results of "
                f"`{self._batch.batch_id}`, got {seen:,}; collect it again later"
            )

    async def _save(self, arrived: Sequence[tuple[str, str, Reply | ProviderError]]) -> None:
        if not arrived:
            return
        await self._plans.load([execution_id for execution_id, _, _ in arrived])
        made = []
        for execution_id, key, outcome in arrived:
            plan, planned = self._plans.sample(execution_id, key)
            made.append((plan, execution_id, self._make(plan, planned, outcome)))
        saved = [(execution_id, sample) for _, execution_id, sample in made]
        await asyncio.to_thread(
            self._desk.store.write, save_batch_samples, self._batch.batch_id, saved
        )
        for plan, _, sample in made:
            self._observer.sampled(plan, sample)

    def _make(self, plan: Plan, planned: PlannedSample, outcome: Reply | ProviderError) -> Sample:
        reply, error = None, None
        if isinstance(outcome, Reply):
            reply = replace(outcome, temperature=plan.options.temperature)
        else:
            error = f"{type(outcome).__name__}: {outcome}"
        return make_sample(
            plan,
            planned,
            reply=reply,
            error=error,
            attempts=1,
            # Until the batch ended: no provider tells how long a request of it took.
            latency_ms=self._latency_ms,
            created_at=utc_now(),
        )


def _missing(batch: Batch, state: BatchState) -> ProviderError:
    """Why a request of a batch that has ended has no result."""
    if state.problem is not None:
        return ServerError(state.problem)
    if state.status == "expired":
        return CallTimeoutError(f"`{batch.provider}` didn't get to it before the batch expired")
    return ServerError(f"`{batch.provider}` ended the batch ({state.status}) without a result")


class _Plans:
    """Plans of executions, made again as they are needed, and not kept without bound."""

    def __init__(self, desk: BatchDesk) -> None:
        self._desk = desk
        self._banks: dict[str, Bank] = {}
        self._kept: OrderedDict[str, tuple[Plan, dict[str, PlannedSample]]] = OrderedDict()

    async def load(self, execution_ids: Sequence[str]) -> None:
        """Make plans ready. More than are kept may be asked for at once."""
        wanted = list(dict.fromkeys(execution_ids))
        missing = [name for name in wanted if name not in self._kept]
        if missing:
            rows = await asyncio.to_thread(
                self._desk.store.read, select_waiting_executions, missing
            )
            for name in missing:
                plan = self.plan(rows[name])
                self._kept[name] = (plan, {s.cache_key: s for s in plan.samples})
        for name in wanted:
            self._kept.move_to_end(name)
        while len(self._kept) > max(_PLANS_KEPT, len(wanted)):
            self._kept.popitem(last=False)

    def sample(self, execution_id: str, key: str) -> tuple[Plan, PlannedSample]:
        """A planned sample of a plan that was loaded."""
        plan, samples = self._kept[execution_id]
        return plan, samples[key]

    def plan(self, execution: WaitingExecution) -> Plan:
        """The plan of an execution."""
        if execution.execution_id in self._kept:
            return self._kept[execution.execution_id][0]
        version = _prompt_version(execution)
        if version not in self._banks:
            row = self._desk.store.read(select_bank, version)
            assert row is not None, "a bank is registered before anything is submitted with it"
            self._banks[version] = bank_of(row)
        return replan(execution.config_json, self._banks[version])


def _prompt_version(execution: WaitingExecution) -> str:
    version: str = json.loads(execution.config_json)["prompt_version"]
    return version


async def _finish_ready(
    desk: BatchDesk, plans: _Plans, observer: Observer, collection: Collection
) -> None:
    """Write the records of executions that have all their samples."""
    collection.waiting, collection.troubles = 0, []
    try:
        async with desk.holding(_FINISHING):
            ready = await asyncio.to_thread(desk.store.read, select_ready_executions)
            for names in chunked(ready, _FINISHED_TOGETHER):
                rebuilt = await asyncio.to_thread(_rebuild, desk, plans, names, collection)
                complete = [execution for execution in rebuilt if execution.complete]
                collection.waiting += len(rebuilt) - len(complete)
                records = await asyncio.to_thread(finish, desk.store, complete) if complete else []
                collection.finished += len(records)
                for record in records:
                    observer.finished(record)
    except StoreBusyError as exc:
        # The other process writes the records, or leaves them for the next collection.
        collection.troubles.append(exc)


def _rebuild(
    desk: BatchDesk, plans: _Plans, names: Sequence[str], collection: Collection
) -> list[Execution]:
    """Executions with the samples that the store has for them."""
    rows = desk.store.read(select_waiting_executions, names)
    own = desk.store.read(select_own_samples, names)
    rebuilt = []
    for name in names:
        try:
            plan = plans.plan(rows[name])
        except RecordError as exc:
            collection.troubles.append(exc)
            continue
        rebuilt.append(
            Execution(plan, name, rows[name].created_at, price=desk.price_of(plan.model))
        )
    keys = [sample.cache_key for execution in rebuilt for sample in execution.plan.samples]
    stored = desk.store.read(select_samples, keys)
    for execution in rebuilt:
        for planned in execution.plan.samples:
            sample = stored.get(planned.cache_key)
            mine = own.get((execution.execution_id, planned.cache_key))
            if mine is not None and mine.error is not None:
                execution.held[planned.cache_key] = _failed(execution, planned, mine, sample)
            elif mine is not None and sample is not None:
                execution.held[planned.cache_key] = sample
            elif sample is not None:
                execution.reuse(sample)
    return rebuilt


def _failed(
    execution: Execution, planned: PlannedSample, mine: OwnSample, stored: Sample | None
) -> Sample:
    """A request that failed. Where the store has an older answer, it kept that instead."""
    if stored is not None and stored.failed:
        return stored
    assert mine.collected_at is not None
    begun, ended = (datetime.fromisoformat(t) for t in (execution.started_at, mine.collected_at))
    return make_sample(
        execution.plan,
        planned,
        reply=None,
        error=mine.error,
        attempts=1,
        latency_ms=max(0, round((ended - begun).total_seconds() * 1000)),
        created_at=mine.collected_at,
    )
