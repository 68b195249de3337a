"""Calls that are no samples: of judges, readers of stances, writers of queries and of forms.

They go the way of samples: money is set aside, a turn of the shared rate is waited for, the call is
tried again where that helps, and its answer is in the spool until the store has it. A reply is kept
under the hash of model and request, so that whoever asks the same again pays nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from heretix.core.canonical import sha256_json
from heretix.core.clock import utc_now
from heretix.core.errors import ProviderError, StoreError
from heretix.core.event_loop import run_in_thread
from heretix.measurement.pacing import Limits, name_rate
from heretix.measurement.runner import (
    DEFAULT_CONCURRENCY,
    POLL_CAP_S,
    POLL_S,
    Caller,
    LostLeaseError,
    NotCalledError,
    SampleCall,
    Session,
)
from heretix.providers.base import Reply
from heretix.providers.catalog import open_provider
from heretix.store import LEASE_S
from heretix.store.replies import StoredReply, save_replies, select_replies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from heretix.core.settings import Settings
    from heretix.measurement.runner import Retry
    from heretix.providers.base import Provider, Request
    from heretix.providers.catalog import ModelId, Options, Spending
    from heretix.store import SampleWriter, Store


class Payer(Session):
    """Opens models whose calls are paid for and whose replies are kept."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        models: Sequence[ModelId],
        *,
        spending: Spending,
        caps: Mapping[str, int],
        limits: Limits | None = None,
        since: str | None = None,
        retry: Retry | None = None,
    ) -> None:
        """Replies count that were made `since` then; without the cache, those of this payer."""
        self.since = utc_now() if settings.no_cache and since is None else since
        super().__init__(
            store,
            spending=spending,
            caps=caps,
            replace=self.since is not None,
            # Where somebody is paid.
            spools=not all(model.endpoint.in_process for model in models),
            retry=retry,
            lease_s=settings.lease_s or LEASE_S,
        )
        self.limits = limits or Limits(concurrency=DEFAULT_CONCURRENCY, fixed=False)
        self.writer: SampleWriter[StoredReply]

    def open(self, model: ModelId, settings: Settings, *, options: Options) -> Provider:
        """`open_provider`, with every call paid for, and every reply kept."""
        rate_id = name_rate(model, settings, options)
        if rate_id is not None:
            self.rate_ids[model] = rate_id
        provider = open_provider(model, settings, options=options)
        opened = _Asked(self, provider, model, place=options.base_url)
        self.callers.append(opened)
        return opened


class _Asked(Caller):
    """A model that is asked: a provider to those who ask."""

    def __init__(
        self, payer: Payer, provider: Provider, model: ModelId, *, place: str | None
    ) -> None:
        super().__init__(payer, provider, limits=payer.limits)
        self.max_concurrency = self.most
        self._payer = payer
        self._asked = model
        self._place = place
        self._opening = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[Reply]] = {}
        """Questions that are being answered. A call that was begun comes home, whoever gives up
        waiting for it."""

    async def ask(self, request: Request) -> Reply:
        """Answer one request; or raise what the provider did, or why nobody is called any more."""
        key = name_reply(self._asked, request, self._place)
        if key not in self._tasks:
            self.raise_halted()
            self._tasks[key] = asyncio.create_task(self._answer(key, request))
            self._tasks[key].add_done_callback(partial(self._end, key))
        try:
            return await asyncio.shield(self._tasks[key])
        except asyncio.CancelledError:
            asker = asyncio.current_task()
            if asker is None or not asker.cancelling():
                # Not the one who asks was cancelled, but what waited for its turn to call.
                self.raise_halted()
            raise

    async def aclose(self) -> None:
        """Close the provider, once the calls that nobody waits for any more are home."""
        try:
            if self._tasks:
                if flying := self._payer.stop():
                    self._payer.tell(
                        f"stopping: no more calls are made; {flying} in flight are waited for"
                    )
                await asyncio.wait(self._tasks.values())
        finally:
            if self._tasks:
                self._payer.drop()
            left = list(self._tasks.values())
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self.provider.aclose()

    def raise_halted(self) -> None:
        """Raise why nothing is called for any more."""
        if self.halted is not None:
            raise self.halted

    def _end(self, key: str, task: asyncio.Task[Reply]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            # Perhaps nobody waits for it.
            task.exception()

    async def _answer(self, key: str, request: Request) -> Reply:
        task = asyncio.current_task()
        assert task is not None, "a question is answered in a task of its own"
        self.idle.add(task)
        try:
            async with self._opening:
                await self.serve(self._asked)
            return _as_reply(await self._find(key) or await self._pay(key, request, task))
        except (ProviderError, StoreError) as exc:
            # Whatever is asked for is lacking now: nothing more is paid for in vain.
            self.halt(exc)
            raise
        finally:
            self.idle.discard(task)
            self._payer.leases.forget(key)

    async def _pay(self, key: str, request: Request, task: asyncio.Task[Reply]) -> StoredReply:
        """Call, unless somebody else does; then wait for theirs."""
        leases, pause_s = self._payer.leases, POLL_S
        while True:
            self.idle.add(task)
            taken, lapsed = await leases.claim([key])
            if lapsed:
                await self._payer.drain_spools(lapsed)
            # It may have been stored just before.
            if (found := await self._find(key)) is not None:
                await leases.release(list(taken))
                return found
            if not taken:
                await asyncio.sleep(pause_s)
                pause_s = min(POLL_CAP_S, pause_s * 1.5)
                continue
            with contextlib.suppress(LostLeaseError):
                return await self._call(key, request)

    async def _call(self, key: str, request: Request) -> StoredReply:
        try:
            reply = await SampleCall(self, key, request).run()
        except NotCalledError:
            self.raise_halted()
            raise
        answer = StoredReply(
            cache_key=key,
            model=self.name,
            text=reply.text,
            finish=reply.finish,
            provider_model_id=reply.provider_model_id,
            response_id=reply.response_id,
            tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out,
            created_at=utc_now(),
        )
        writer = self._payer.writer
        self._payer.give_up_if_idle()
        await writer.put(answer)
        await writer.flush()
        return writer.overtaken.get(key, answer)

    async def _find(self, key: str) -> StoredReply | None:
        found = (await run_in_thread(self._payer.store.read, select_replies, [key])).get(key)
        since = self._payer.since
        return found if found is None or since is None or found.created_at >= since else None


def name_reply(model: ModelId, request: Request, place: str | None = None) -> str:
    """Name what a model replies to a request: the hash of all that was asked, and of the server's
    address where it isn't the usual one."""
    return sha256_json({**asdict(request), "model": model.identity, "base_url": place})


def _as_reply(stored: StoredReply) -> Reply:
    return Reply(
        text=stored.text,
        finish=stored.finish,
        provider_model_id=stored.provider_model_id,
        response_id=stored.response_id,
        tokens_in=stored.tokens_in,
        tokens_out=stored.tokens_out,
    )


@contextlib.asynccontextmanager
async def paying(
    store: Store, settings: Settings, models: Sequence[ModelId], **options: Any
) -> AsyncIterator[Payer]:
    """Open a `Payer` for as long as its models are asked."""
    payer = Payer(store, settings, models, **options)
    async with payer.opened(save_replies, StoredReply) as writer:
        payer.writer = writer
        yield payer
