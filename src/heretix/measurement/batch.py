"""Batches: submit what isn't stored yet at half price, ask about them, collect what came back.

A crash between a submission and the note that it was taken must not make anybody pay twice. So a
batch is written down before it is submitted, and one that was never confirmed is looked for at the
provider: it is taken up again if it is there, and its samples are free again if it never came.

Collecting can be done as often as one likes: a sample is stored once, a record written once, and
what an interruption left undone is done the next time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import stamina

from heretix.core import errors
from heretix.core.clock import utc_now, utc_text
from heretix.core.errors import ConfigError, ProviderError, StoreBusyError, UnconfirmedError
from heretix.core.event_loop import run_in_thread
from heretix.core.lenses import RPL
from heretix.measurement.budget import make_reached_error
from heretix.measurement.execution import Execution, begin, finish, make_sample
from heretix.measurement.runner import NullObserver, Observer, Retry
from heretix.measurement.service import bank_of, find_store_cap, replan
from heretix.providers.base import Reply
from heretix.providers.batch import SUBMISSION_WINDOW, BatchProvider, BatchState
from heretix.providers.catalog import (
    ModelId,
    Options,
    Price,
    PriceTable,
    Spending,
    cost_micros,
    load_prices,
    open_batch_provider,
    parse_model,
    select_sent_options,
)
from heretix.store import Store
from heretix.store import batches as rows
from heretix.store.batches import Batch, BatchUsage
from heretix.store.db import chunked
from heretix.store.runs import select_bank
from heretix.store.samples import Leases, release_all_leases, select_answers, select_samples
from heretix.store.spool import drain_spools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from heretix.core.errors import BudgetReachedError, HeretixError
    from heretix.core.settings import Settings
    from heretix.measurement.service import Measurement
    from heretix.plan import Plan, PlannedSample
    from heretix.prompts.bank import Bank
    from heretix.providers.batch import BatchLimits
    from heretix.sample import Sample
    from heretix.store.batches import OwnSample, WaitingExecution
    from heretix.store.budgets import Budget

_T = TypeVar("_T")
_RETRY_AFTER_CAP_S: Final = 300.0
_PLANS_AHEAD: Final = 64
_SAVED_TOGETHER: Final = 500
_FINISHED_TOGETHER: Final = 64
_PLANS_KEPT: Final = 2048
_FINISHING: Final = "batch-records"
"""Held while records are written, so that two processes don't write the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """A batch, as far as it is known now."""

    batch: Batch
    usage: BatchUsage
    cost_usd: float | None
    """Cost of the answers that it has brought, at the batch price; None where that is unknown, as
    it is before any were collected."""
    state: BatchState | None = None
    """Answer of the provider, if it was asked."""
    trouble: HeretixError | None = None
    """Reason why no more is known."""


class BatchService:
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
        self.now = now or (lambda: datetime.now(UTC))
        self._prices: PriceTable | None = None
        self._providers: dict[tuple[str, str | None], BatchProvider] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for provider in self._providers.values():
            await provider.aclose()
        self._providers.clear()

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
        return None if price is None else price.discount_for_batch()

    def account(self, model: ModelId) -> Spending:
        """An account of what requests to `model` cost in a batch."""
        price = self.price_of(model)
        known = {} if price is None else {model.provider: {model.name: price}}
        return Spending(PriceTable(known), (model,))

    def reread(self, batch: Batch) -> Batch:
        """The batch as the store has it now."""
        return self.store.read(rows.find_batch, batch.batch_id)

    def update(self, query: Callable[..., None], batch: Batch, *args: str, **values: Any) -> None:
        """Write something down about a batch, with the time."""
        self.store.write(query, batch.batch_id, *args, now=utc_text(self.now()), **values)

    async def call_with_retries(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call that may be repeated, and repeat it while that is worth it."""
        failures = 0

        def wait_s(exc: Exception) -> bool | float:
            nonlocal failures
            if not isinstance(exc, errors.RetryableError):
                return False
            failures += 1
            stated = exc.retry_after_s if isinstance(exc, errors.RateLimitedError) else None
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
        leases = Leases(self.store)
        taken, _ = await leases.claim([name])
        if not taken:
            raise StoreBusyError(
                f"`{name}` is being worked on by another process; wait for it, then try again"
            )
        heart = asyncio.create_task(leases.keep())
        try:
            yield
        finally:
            heart.cancel()
            with contextlib.suppress(errors.StoreError):
                self.store.write(release_all_leases, leases.owner)

    async def look(self, batch: Batch) -> BatchView:
        """Ask the provider about an open batch, and find out about one that wasn't confirmed."""
        try:
            if batch.state == "submitting":
                async with self.holding(batch.batch_id):
                    batch = await self._confirm(self.reread(batch))
            state = await self._ask(batch) if batch.state == "submitted" else None
            return self.view(batch, state=state)
        except (ProviderError, errors.UsageError, StoreBusyError) as exc:
            return self.view(batch, trouble=exc)

    async def cancel(self, batch: Batch) -> BatchView:
        """End a batch early. What was answered until then is paid, and can be collected."""
        async with self.holding(batch.batch_id):
            batch = await self._confirm(self.reread(batch))
            if batch.state == "submitted":
                assert batch.provider_batch_id is not None
                name, provider = batch.provider_batch_id, self.provider_of(batch)
                await self.call_with_retries(lambda: provider.cancel(name))
        return await self.look(batch)

    def view(
        self,
        batch: Batch,
        *,
        state: BatchState | None = None,
        trouble: HeretixError | None = None,
    ) -> BatchView:
        """A batch as the store has it now, with what it has brought and cost."""
        batch = self.reread(batch)
        usage = self.store.read(rows.select_batch_usage, batch.batch_id)
        price = self.price_of(parse_model(batch.model))
        cost = None
        if price is not None and usage.tokens_in is not None and usage.tokens_out is not None:
            cost = cost_micros(price, usage.tokens_in, usage.tokens_out) / 1e6
        return BatchView(batch=batch, usage=usage, cost_usd=cost, state=state, trouble=trouble)

    async def _confirm(self, batch: Batch) -> Batch:
        """Find out what became of a submission, if it was never confirmed. Needs `holding`."""
        if batch.state != "submitting":
            return batch
        provider = self.provider_of(batch)
        since = datetime.fromisoformat(batch.submitted_at)
        sightings = await self.call_with_retries(
            lambda: provider.find(batch.batch_id, size=batch.requests, since=since)
        )
        known = self.store.read(rows.select_provider_batch_ids, batch.provider)
        undecided = None
        for sighting in sightings:
            name = sighting.provider_batch_id
            if name in known:
                continue
            ours = sighting.certain or await self._is_ours(batch, provider, name)
            if ours:
                self.update(rows.confirm_batch, batch, name)
                return self.reread(batch)
            undecided = name if ours is None else undecided
        if undecided is not None:
            note = f"not confirmed; {undecided} may be it, which shows when that has ended"
            self.update(rows.note_batch, batch, note=note)
        elif self.now() - since > SUBMISSION_WINDOW:
            note = "it never reached the provider; the same command submits its samples again"
            self.update(rows.abandon_batch, batch, note=note)
        else:
            until = utc_text(since + SUBMISSION_WINDOW)
            note = f"not confirmed, and not at the provider yet; it is given up after {until}"
            self.update(rows.note_batch, batch, note=note)
        return self.reread(batch)

    async def _is_ours(self, batch: Batch, provider: BatchProvider, name: str) -> bool | None:
        """Tell whether a batch without our name on it is this one; None while it can't be told."""
        state = await self.call_with_retries(lambda: provider.status(name))
        if not state.ended:
            return None
        if state.problem is not None:
            return False
        keys = self.store.read(rows.select_batch_keys, batch.batch_id)
        async with contextlib.aclosing(provider.results(name)) as results:
            found = {result.custom_id async for result in results} - {None}
        return bool(found) and found <= keys

    async def _ask(self, batch: Batch) -> BatchState | None:
        """State of a confirmed batch at the provider; None when it is gone for good."""
        assert batch.provider_batch_id is not None
        name, provider = batch.provider_batch_id, self.provider_of(batch)
        try:
            state = await self.call_with_retries(lambda: provider.status(name))
        except errors.RejectedError as exc:
            age = self.now() - datetime.fromisoformat(batch.submitted_at)
            if exc.status != 404 or age < timedelta(seconds=rows.BATCH_LEASE_S):
                raise
            note = "the provider no longer knows it; the same command submits its samples again"
            self.update(rows.abandon_batch, batch, note=note, was_taken=True)
            return None
        expires_at = utc_text(state.expires_at) if state.expires_at else None
        if expires_at != batch.expires_at:
            self.update(rows.note_batch, batch, note=batch.note, expires_at=expires_at)
        return state


@dataclass(slots=True)
class Submission:
    """Result of a submission."""

    batches: list[str] = field(default_factory=list)
    """Batches that the providers took."""
    unconfirmed: list[str] = field(default_factory=list)
    """Batches whose submission was cut short before: what is known of them, and until when."""
    requests: int = 0
    """Samples in them."""
    elsewhere: int = 0
    """Samples that other batches or live runs are getting already."""
    executions: int = 0
    """Executions that wait for samples."""
    finished: int = 0
    """Executions that needed none."""


async def submit(
    service: BatchService,
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
    name = str(uuid.uuid4())
    submitters = [
        _Submitter(
            service, measurement, model, submission, observer or NullObserver(), limits, name
        )
        for model in measurement.models
    ]
    if service.store.spools:
        # What anybody was paid for and hasn't stored: a batch asks for all that isn't stored.
        await run_in_thread(drain_spools, service.store, None)
    _check_budget(service, measurement)
    # What a crash left behind comes first: its samples are either on their way or free again.
    for batch in service.store.read(rows.select_open_batches):
        if batch.state == "submitting":
            found = (await service.look(batch)).batch
            if found.state == "submitting":
                submission.unconfirmed.append(f"{found.batch_id}: {found.note}")
    measurement.register_bank(service.store)
    for submitter in submitters:
        await submitter.run()
    return submission


def _check_budget(service: BatchService, measurement: Measurement) -> None:
    """Refuse a budget below the most that may be spent: a batch can't be stopped by its cost."""
    budget_usd = measurement.config.budget_usd
    if budget_usd is None:
        return
    most_micros = 0
    for model in measurement.models:
        spending = service.account(model)
        spending.require_prices("budget_usd")
        for plan in measurement.plans(model):
            keys = [] if measurement.settings.no_cache else [s.cache_key for s in plan.samples]
            stored = service.store.read(select_answers, keys)
            left = (sample for sample in plan.samples if sample.cache_key not in stored)
            most_micros += sum(spending.bound_micros(model, plan.request(s)) for s in left)
    most_usd = most_micros / 1e6
    if most_usd > budget_usd:
        raise errors.BudgetReachedError(
            f"`budget_usd` must cover the most that the batches may cost, ${most_usd:.4f}, "
            f"got {budget_usd:g}; allow more, or lower `max_output_tokens`. Nothing was submitted"
        )


@dataclass(slots=True)
class _Draft:
    """A batch that is being filled: requests by key, and which executions want them."""

    entries: dict[str, bytes] = field(default_factory=dict)
    wanted: list[tuple[Execution, str]] = field(default_factory=list)
    bounds: dict[str, int] = field(default_factory=dict)
    """The most that each may cost, in millionths of a dollar, where a budget wants to know."""
    size_bytes: int = 0


class _Submitter:
    """Submits the plans of one model: a batch has one model only."""

    def __init__(
        self,
        service: BatchService,
        measurement: Measurement,
        model: ModelId,
        submission: Submission,
        observer: Observer,
        limits: BatchLimits | None,
        submission_id: str,
    ) -> None:
        self._service = service
        self._measurement = measurement
        self._model = model
        self._submission = submission
        self._observer = observer
        self._use_cache = not measurement.settings.no_cache
        self._base_url = select_sent_options(
            model, Options(base_url=measurement.config.base_url)
        ).base_url
        self._provider = service.provider(model, self._base_url)
        self._limits = limits or self._provider.limits
        self._draft = _Draft()
        self._submission_id = submission_id
        self._caps = find_store_cap(service.store, measurement.settings)
        self._spending = service.account(model)
        if self._caps:
            self._spending.require_prices("HERETIX_BUDGET_USD")

    async def run(self) -> None:
        price = self._service.price_of(self._model)
        for plans in chunked(self._measurement.plans(self._model), _PLANS_AHEAD):
            executions = await asyncio.to_thread(
                begin, self._service.store, plans, use_cache=self._use_cache, price=price
            )
            complete = [execution for execution in executions if execution.complete]
            for execution in executions:
                self._observer.on_planned(execution.plan, len(execution.held))
                await self._add_to_draft(execution)
            await self._finish(complete)
        await self._send()

    async def _add_to_draft(self, execution: Execution) -> None:
        missing = execution.missing
        self._submission.executions += bool(missing)
        for planned in missing:
            key = planned.cache_key
            entry = self._provider.encode(key, execution.plan.request(planned))
            size, full = len(entry) + 1, len(self._draft.entries) >= self._limits.requests
            over = self._draft.size_bytes + size > self._limits.size_bytes
            if self._draft.entries and (full or over):
                await self._send()
            if key not in self._draft.entries:
                self._draft.entries[key] = entry
                self._draft.size_bytes += size
                if self._caps:
                    request = execution.plan.request(planned)
                    self._draft.bounds[key] = self._spending.bound_micros(self._model, request)
            self._draft.wanted.append((execution, key))

    async def _send(self) -> None:
        """Write the draft down, submit it, and write down that it was taken."""
        draft, self._draft = self._draft, _Draft()
        if not draft.entries:
            return
        service, now = self._service, utc_text(self._service.now())
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
            submission_id=self._submission_id,
        )
        wanted = [(execution.execution_id, key) for execution, key in draft.wanted]
        async with service.holding(batch.batch_id):
            draw = partial(
                rows.draw_batch, use_cache=self._use_cache, caps=self._caps, bounds=draft.bounds
            )
            drawn = await asyncio.to_thread(service.store.write, draw, batch, wanted)
            self._submission.elsewhere += drawn.elsewhere
            if drawn.short is not None:
                raise self._make_short_error(drawn.short, drawn.most_micros)
            if drawn.owned:
                entries = [draft.entries[key] for key in draft.entries if key in drawn.owned]
                service.update(rows.confirm_batch, batch, await self._deliver(batch, entries))
                self._submission.batches.append(batch.batch_id)
                self._submission.requests += len(entries)
        for execution, key in draft.wanted:
            if key in drawn.stored:
                execution.reuse(drawn.stored[key])
        executions = {execution.execution_id: execution for execution, _ in draft.wanted}
        late = [execution for execution in executions.values() if execution.complete]
        self._submission.executions -= len(late)
        await self._finish(late)

    async def _deliver(self, batch: Batch, entries: Sequence[bytes]) -> str:
        """Submit until the provider has it, or said no, or can't be asked."""
        service, provider = self._service, self._provider
        failures = 0
        while True:
            try:
                return await service.call_with_retries(
                    lambda: provider.submit(batch.batch_id, entries)
                )
            except UnconfirmedError as exc:
                failures += 1
                name = await self._look_for(batch, len(entries), exc)
                if name is not None:
                    return name
                if failures >= service.retry.attempts:
                    raise self._give_back(batch, exc) from exc
                await asyncio.sleep(service.retry.wait_s(failures, exc))
            except ProviderError as exc:
                raise self._give_back(batch, exc) from exc

    async def _look_for(self, batch: Batch, size: int, failure: UnconfirmedError) -> str | None:
        """Find a batch that was made all the same; None when the provider said no and has none.

        Anything else is left as it is, for `heretix batch status` to find out.
        """
        service, provider = self._service, self._provider
        since = datetime.fromisoformat(batch.submitted_at)
        known = service.store.read(rows.select_provider_batch_ids, batch.provider)
        try:
            sightings = await service.call_with_retries(
                lambda: provider.find(batch.batch_id, size=size, since=since)
            )
        except ProviderError:
            raise self._leave_unconfirmed(batch, failure) from failure
        fresh = [s for s in sightings if s.provider_batch_id not in known]
        certain = next((s.provider_batch_id for s in fresh if s.certain), None)
        answered = failure.status is not None and failure.status >= 400
        if certain is None and (fresh or not answered):
            raise self._leave_unconfirmed(batch, failure) from failure
        return certain

    def _give_back(self, batch: Batch, exc: ProviderError) -> ProviderError:
        """Free the samples of a batch that wasn't taken, and say so in an error of that kind."""
        self._service.update(rows.abandon_batch, batch, note=str(exc))
        taken = len(self._submission.batches)
        kept = f"{taken} batches were taken before; " if taken else ""
        return type(exc)(f"{exc}. {kept}the same command submits the rest", status=exc.status)

    def _make_short_error(self, budget: Budget, most_micros: int) -> BudgetReachedError:
        taken = len(self._submission.batches)
        short = make_reached_error(budget, most_micros, of="this batch")
        return type(short)(f"{short}. {taken} batches were submitted")

    def _leave_unconfirmed(self, batch: Batch, exc: UnconfirmedError) -> ProviderError:
        """Leave a batch unconfirmed, and say how to find out."""
        self._service.update(rows.note_batch, batch, note=f"not confirmed: {exc}")
        return UnconfirmedError(
            f"{exc}. Whether `{batch.batch_id}` was taken isn't known; `heretix batch status` "
            "finds out, and until then nothing in it is sent again",
            status=exc.status,
        )

    async def _finish(self, executions: Sequence[Execution]) -> None:
        self._submission.finished += await _finish(self._service, executions, self._observer)


async def _finish(
    service: BatchService, executions: Sequence[Execution], observer: Observer
) -> int:
    """Write the records of executions that are complete; the number of them."""
    if executions:
        for record in await asyncio.to_thread(finish, service.store, executions):
            observer.on_finished(record)
    return len(executions)


@dataclass(slots=True)
class Collection:
    """Result of a collection."""

    views: list[BatchView] = field(default_factory=list)
    """Every batch that was looked at, as it is now."""
    finished: int = 0
    """Executions that got their records."""
    waiting: int = 0
    """Executions that no batch brings any more samples: a live run was getting the ones that they
    lack, or their submission was cut short."""
    troubles: list[HeretixError] = field(default_factory=list)
    """Reason why some executions couldn't be finished."""

    @property
    def open(self) -> list[BatchView]:
        """Batches of which something may still come."""
        return [view for view in self.views if view.batch.is_open]


async def collect(
    service: BatchService,
    batches: Sequence[Batch],
    *,
    observer: Observer | None = None,
    every_s: float | None = None,
) -> Collection:
    """Store what has come, and write the records that it completes.

    With `every_s`, the open ones are asked about so often until all have ended; a provider that
    can't be reached for a while doesn't end that, one that refuses does.
    """
    observer = observer or NullObserver()
    collection = Collection()
    over: dict[str, BatchView] = {}
    plans = _Plans(service)
    left = list(batches)
    while True:
        views = [await _collect(service, batch, plans, observer) for batch in left]
        over.update((view.batch.batch_id, view) for view in views)
        await _finish_ready(service, plans, observer, collection)
        passing = (type(None), errors.RetryableError, StoreBusyError)
        left = [v.batch for v in views if v.batch.is_open and isinstance(v.trouble, passing)]
        if every_s is None or not left:
            break
        await asyncio.sleep(every_s)
    collection.views = list(over.values())
    collection.waiting += await asyncio.to_thread(service.store.read, rows.count_left_executions)
    return collection


async def _collect(
    service: BatchService, batch: Batch, plans: _Plans, observer: Observer
) -> BatchView:
    view = await service.look(batch)
    if view.state is None or not view.state.ended or view.batch.state != "submitted":
        return view
    trouble = None
    try:
        async with service.holding(batch.batch_id):
            batch = service.reread(batch)
            # Another process may have been quicker.
            if batch.state == "submitted":
                await _Collector(service, batch, view.state, plans, observer).run()
    except (ProviderError, errors.UsageError, StoreBusyError) as exc:
        trouble = exc
    return service.view(batch, state=view.state, trouble=trouble)


class _Collector:
    """Stores the results of one batch that has ended."""

    def __init__(
        self,
        service: BatchService,
        batch: Batch,
        state: BatchState,
        plans: _Plans,
        observer: Observer,
    ) -> None:
        self._service = service
        self._batch = batch
        self._state = state
        self._plans = plans
        self._observer = observer
        self._spending = service.account(parse_model(batch.model))
        self._strays = 0
        self._failed = 0
        self._reason = ""
        """Reason that the provider gave for the last request that failed."""
        self._latency_ms = _elapsed_ms(batch.submitted_at, state.ended_at or service.now())

    async def run(self) -> None:
        """Store every result; a request without one is stored as failed."""
        service, batch, state = self._service, self._batch, self._state
        provider = f"`{batch.provider}`"
        missing: ProviderError
        if state.problem is not None:
            missing = errors.ServerError(state.problem)
        elif state.status == "expired":
            told = f"{provider} didn't get to it before the batch expired"
            missing = errors.CallTimeoutError(told)
        else:
            told = f"{provider} ended the batch ({state.status}) without a result"
            missing = errors.ServerError(told)
        try:
            await service.call_with_retries(self._read)
        except errors.RejectedError as exc:
            # The batch itself is known, as its state was told just now.
            if exc.status != 404:
                raise
            missing = errors.ServerError(f"{provider} no longer has the results: {exc}")
        left = service.store.read(rows.select_pending_samples, batch.batch_id)
        for chunk in chunked(sorted(left), _SAVED_TOGETHER):
            await self._save([(left[key], key, missing) for key in chunk])
        notes = [f"{self._failed:,} requests failed: {self._reason}"] if self._failed else []
        if self._strays:
            notes.append(f"{self._strays:,} lines of its results made no sense")
        note = "; ".join(notes) or None
        service.store.write(rows.close_batch, batch.batch_id, note=note, now=utc_now())

    async def _read(self) -> None:
        service = self._service
        assert self._batch.provider_batch_id is not None
        pending = service.store.read(rows.select_pending_samples, self._batch.batch_id)
        keys = service.store.read(rows.select_batch_keys, self._batch.batch_id)
        arrived: list[tuple[str, str, Reply | ProviderError]] = []
        seen = self._strays = 0
        provider = service.provider_of(self._batch)
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
            raise errors.ServerError(
                f"`{self._batch.provider}` must send {counts.succeeded:,} results of "
                f"`{self._batch.batch_id}`, got {seen:,}; collect it again later"
            )

    async def _save(self, arrived: Sequence[tuple[str, str, Reply | ProviderError]]) -> None:
        if not arrived:
            return
        await self._plans.load([execution_id for execution_id, _, _ in arrived])
        made, paid, presumed = [], Decimal(0), 0
        for execution_id, key, outcome in arrived:
            plan, planned = self._plans.sample(execution_id, key)
            hold = self._spending.hold(plan.model, plan.request(planned))
            reply, error = None, None
            if isinstance(outcome, Reply):
                hold.reply = outcome
                reply = replace(outcome, temperature=plan.options.temperature)
            else:
                # What wasn't reached before the end is free, and so is a batch that failed whole.
                unreached = type(outcome) in {errors.CallTimeoutError, ProviderError}
                hold.sent, hold.failure = not (unreached or self._state.problem), outcome
                error = f"{type(outcome).__name__}: {outcome}"
                self._failed += 1
                self._reason = str(outcome)
            sample = make_sample(
                plan,
                planned,
                reply=reply,
                error=error,
                attempts=1,
                # Until the batch ended: no provider tells how long a request of it took.
                latency_ms=self._latency_ms,
                created_at=utc_now(),
            )
            made.append((plan, execution_id, sample))
            paid += self._spending.settle(hold)
            presumed += hold.bound_micros if hold.presumed else 0
        cost = math.ceil(paid) + presumed
        save = partial(rows.save_batch_samples, paid=cost, presumed=presumed)
        saved = [(execution_id, sample) for _, execution_id, sample in made]
        await asyncio.to_thread(self._service.store.write, save, self._batch.batch_id, saved)
        for plan, _, sample in made:
            self._observer.on_sampled(plan, sample)


def _elapsed_ms(since: str, until: datetime) -> int:
    return max(0, round((until - datetime.fromisoformat(since)).total_seconds() * 1000))


class _Plans:
    """Plans of executions, made again as they are needed, and not kept without bound."""

    def __init__(self, service: BatchService) -> None:
        self._service = service
        self._banks: dict[str, Bank] = {}
        self._kept: OrderedDict[str, tuple[Plan, dict[str, PlannedSample]]] = OrderedDict()

    async def load(self, execution_ids: Sequence[str]) -> None:
        """Make plans ready. More than are kept may be asked for at once."""
        wanted = list(dict.fromkeys(execution_ids))
        missing = [name for name in wanted if name not in self._kept]
        if missing:
            found = await asyncio.to_thread(
                self._service.store.read, rows.select_waiting_executions, missing
            )
            for name in missing:
                plan = self.plan(found[name])
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
        version: str = json.loads(execution.config_json)["prompt_version"]
        if version not in self._banks:
            row = self._service.store.read(select_bank, version)
            assert row is not None, "a bank is registered before anything is submitted with it"
            self._banks[version] = bank_of(row)
        return replan(execution.config_json, self._banks[version])


async def _finish_ready(
    service: BatchService, plans: _Plans, observer: Observer, collection: Collection
) -> None:
    """Write the records of executions that have all their samples."""
    collection.waiting, collection.troubles = 0, []
    try:
        async with service.holding(_FINISHING):
            ready = await asyncio.to_thread(service.store.read, rows.select_ready_executions)
            for names in chunked(ready, _FINISHED_TOGETHER):
                rebuilt = await asyncio.to_thread(_rebuild, service, plans, names, collection)
                complete = [execution for execution in rebuilt if execution.complete]
                collection.waiting += len(rebuilt) - len(complete)
                collection.finished += await _finish(service, complete, observer)
    except StoreBusyError as exc:
        # The other process writes the records, or leaves them for the next collection.
        collection.troubles.append(exc)


def _rebuild(
    service: BatchService, plans: _Plans, names: Sequence[str], collection: Collection
) -> list[Execution]:
    """Executions with the samples that the store has for them."""
    found = service.store.read(rows.select_waiting_executions, names)
    own = service.store.read(rows.select_own_samples, names)
    rebuilt = []
    for name in names:
        try:
            plan = plans.plan(found[name])
        except errors.RecordError as exc:
            collection.troubles.append(exc)
            continue
        price = service.price_of(plan.model)
        rebuilt.append(Execution(plan, name, found[name].created_at, price=price))
    keys = [sample.cache_key for execution in rebuilt for sample in execution.plan.samples]
    stored = service.store.read(select_samples, keys)
    for execution in rebuilt:
        for planned in execution.plan.samples:
            sample = stored.get(planned.cache_key)
            mine = own.get((execution.execution_id, planned.cache_key))
            if mine is not None and mine.error is not None:
                execution.held[planned.cache_key] = _make_failure(execution, planned, mine, sample)
            elif mine is not None and sample is not None:
                execution.held[planned.cache_key] = sample
            elif sample is not None:
                execution.reuse(sample)
    return rebuilt


def _make_failure(
    execution: Execution, planned: PlannedSample, mine: OwnSample, stored: Sample | None
) -> Sample:
    """A request that failed. Where the store has an older answer, it kept that instead."""
    if stored is not None and stored.failed:
        return stored
    assert mine.collected_at is not None
    return make_sample(
        execution.plan,
        planned,
        reply=None,
        error=mine.error,
        attempts=1,
        latency_ms=_elapsed_ms(execution.started_at, datetime.fromisoformat(mine.collected_at)),
        created_at=mine.collected_at,
    )
