"""The desk at which batches are handled: asked about, confirmed, given up, cancelled.

A crash between a submission and the note that it was taken must not make anybody pay twice. So a
batch is written down before it is submitted, and one that was never confirmed is looked for at the
provider: it is taken up again if it is there, and its samples are free again if it never came.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self, TypeVar

import stamina

from heretix.errors import (
    HeretixError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    RetryableError,
    StoreBusyError,
    StoreError,
    UsageError,
)
from heretix.measurement.lane import Retry
from heretix.providers.batch import SUBMISSION_WINDOW, BatchProvider, BatchState
from heretix.providers.catalog import ModelId, Options, parse_model
from heretix.providers.prices import Price, PriceTable, cost_micros, load_prices
from heretix.providers.registry import open_batch_provider
from heretix.store import LEASE_S, Store, new_owner
from heretix.store.batches import BATCH_LEASE_S, Batch, Batches, BatchUsage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from heretix.settings import Settings

__all__ = ["BatchDesk", "BatchView", "utc_text"]

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
        self.batches = Batches(store)
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
        if not await asyncio.to_thread(self.store.claim, [name], owner):
            raise StoreBusyError(
                f"`{name}` is being worked on by another process; wait for it, then try again"
            )
        heart = asyncio.create_task(self._keep(owner))
        try:
            yield
        finally:
            heart.cancel()
            with contextlib.suppress(StoreError):
                self.store.release_all(owner)

    async def look(self, batch: Batch) -> BatchView:
        """Ask the provider about an open batch, and find out about one that wasn't confirmed."""
        try:
            return await self._look(batch)
        except (ProviderError, UsageError, StoreBusyError) as exc:
            return self.view(self.batches.find(batch.batch_id), trouble=exc)

    async def settle(self, batch: Batch) -> Batch:
        """Find out what became of a submission that was never confirmed. Needs `holding`."""
        provider = self.provider_of(batch)
        since = datetime.fromisoformat(batch.submitted_at)
        sightings = await self.patiently(
            lambda: provider.find(batch.batch_id, size=batch.requests, since=since)
        )
        known = self.batches.known_ids(batch.provider)
        undecided = None
        for sighting in sightings:
            name = sighting.provider_batch_id
            if name in known:
                continue
            ours = sighting.certain or await self._is_ours(batch, provider, name)
            if ours:
                self.batches.confirm(batch.batch_id, name, now=utc_text(self.now))
                return self.batches.find(batch.batch_id)
            undecided = name if ours is None else undecided
        self._leave_unconfirmed(batch, since, undecided)
        return self.batches.find(batch.batch_id)

    async def cancel(self, batch: Batch) -> BatchView:
        """End a batch early. What was answered until then is paid, and can be collected."""
        async with self.holding(batch.batch_id):
            batch = self.batches.find(batch.batch_id)
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
            self.batches.abandon(batch.batch_id, note=note, now=utc_text(self.now))
            return None
        expires_at = utc_text(state.expires_at) if state.expires_at else None
        if expires_at != batch.expires_at:
            self.batches.remark(
                batch.batch_id, now=utc_text(self.now), note=batch.note, expires_at=expires_at
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
        usage = self.batches.usage(batch.batch_id)
        price = self.price_of(parse_model(batch.model))
        cost = None
        if price is not None and usage.tokens_in is not None and usage.tokens_out is not None:
            cost = cost_micros(price, usage.tokens_in, usage.tokens_out) / 1e6
        return BatchView(batch=batch, usage=usage, cost_usd=cost, state=state, trouble=trouble)

    async def _look(self, batch: Batch) -> BatchView:
        if batch.state == "submitting":
            async with self.holding(batch.batch_id):
                batch = self.batches.find(batch.batch_id)
                if batch.state == "submitting":
                    batch = await self.settle(batch)
        state = await self.ask(batch) if batch.state == "submitted" else None
        return self.view(self.batches.find(batch.batch_id), state=state)

    async def _is_ours(self, batch: Batch, provider: BatchProvider, name: str) -> bool | None:
        """Whether a batch without our name on it is this one; None while it can't be told."""
        state = await self.patiently(lambda: provider.status(name))
        if not state.ended:
            return None
        if state.problem is not None:
            return False
        keys = self.batches.keys(batch.batch_id)
        async with contextlib.aclosing(provider.results(name)) as results:
            found = {result.custom_id async for result in results} - {None}
        return bool(found) and found <= keys

    def _leave_unconfirmed(self, batch: Batch, since: datetime, undecided: str | None) -> None:
        now = utc_text(self.now)
        if undecided is not None:
            note = f"not confirmed; {undecided} may be it, which shows when that has ended"
            self.batches.remark(batch.batch_id, note=note, now=now)
        elif self.now - since > SUBMISSION_WINDOW:
            note = "it never reached the provider; the same command submits its samples again"
            self.batches.abandon(batch.batch_id, note=note, now=now)
        else:
            until = utc_text(since + SUBMISSION_WINDOW)
            note = f"not confirmed, and not at the provider yet; it is given up after {until}"
            self.batches.remark(batch.batch_id, note=note, now=now)

    async def _keep(self, owner: str) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 4)
            # A store in trouble shows at the next write; a missed beat alone does no harm.
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(self.store.extend_leases, owner)


def utc_text(moment: datetime) -> str:
    """A moment as the store keeps it: UTC, to the millisecond."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
