"""One thread that writes samples as they arrive.

An idle writer commits a sample at once. Under load, those that arrive within a twentieth of a
second go together in the next transaction; nothing waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from heretix.errors import HeretixError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from heretix.sample import Sample
    from heretix.store.store import Store

__all__ = ["SampleWriter"]

CAPACITY: Final = 4096
"""Samples that may wait to be committed before `put` makes its callers wait."""
_GATHER_S: Final = 0.05
"""Transactions are at least this far apart unless somebody waits for one: a thousand samples a
second in twenty transactions cost a fifth of what they cost one by one. A sample that comes alone
is committed at once."""


class SampleWriter:
    """Hands samples from an event loop to a writing thread; an async context manager.

    After the store failed, `put`, `flush` and `aclose` raise that failure: no sample is taken that
    wouldn't be kept, and those that had been taken are in `unsaved`.
    """

    def __init__(
        self,
        store: Store,
        *,
        owner: str | None = None,
        capacity: int = CAPACITY,
        on_error: Callable[[HeretixError], None] | None = None,
    ) -> None:
        """`owner`'s leases end as their samples are saved. `on_error` is called once, in the event
        loop, as soon as the store fails."""
        if capacity < 1:
            raise ValueError(f"`capacity` must be at least 1, got {capacity}")
        self._store = store
        self._owner = owner
        self._capacity = capacity
        self._on_error = on_error
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits until how many are committed; touched in the event loop only."""
        self._thread = threading.Thread(target=self._run, name="heretix-writer", daemon=True)
        self._changed = threading.Condition()
        # What follows is shared with the thread and guarded by `_changed`.
        self._pending: list[Sample] = []
        self._in_flight: list[Sample] = []
        self._taken = 0
        self._committed = 0
        self._last_commit = 0.0
        self._hurry = False
        """Somebody waits for a commit."""
        self._closing = False
        self._ended = False
        self._failure: HeretixError | None = None

    @property
    def unsaved(self) -> tuple[Sample, ...]:
        """Samples that were taken and aren't committed yet, or never will be after a failure."""
        with self._changed:
            return (*self._in_flight, *self._pending)

    async def put(self, sample: Sample) -> None:
        """Take a sample; then, when too many are waiting, wait until some are committed.

        The sample is taken first: a caller that is cancelled while it waits loses nothing.
        """
        self._start()
        with self._changed:
            self._raise_failure()
            if self._closing:
                raise RuntimeError("`put` after `aclose`: the sample wouldn't be kept")
            self._pending.append(sample)
            self._taken += 1
            self._changed.notify()
            enough = self._taken - self._capacity
        await self._until_committed(enough)

    async def flush(self) -> None:
        """Wait until everything put so far is committed."""
        with self._changed:
            everything = self._taken
        await self._until_committed(everything)

    async def aclose(self) -> None:
        """Commit what is left and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._loop is None:
            return
        with contextlib.suppress(HeretixError):
            await self._until_committed(sys.maxsize)
        self._thread.join()
        with self._changed:
            self._raise_failure()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except HeretixError as failure:
            if exc is None:
                raise
            # What ended the body comes first; that samples were lost as well is added to it.
            if failure is not exc:
                exc.add_note(f"Besides, {len(self.unsaved)} samples weren't stored: {failure}")

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._thread.start()
        assert self._loop is loop, "a writer belongs to one event loop"

    async def _until_committed(self, count: int) -> None:
        """Wait until `count` samples are committed, or the thread has ended."""
        with self._changed:
            self._raise_failure()
            if self._ended or self._committed >= count:
                return
            self._hurry = True
            self._changed.notify()
        # The thread reports through the event loop, so no report can come before the next await.
        future = asyncio.get_running_loop().create_future()
        self._waiters.append((count, future))
        await future
        with self._changed:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        """In the event loop: let those go on whose samples are committed."""
        with self._changed:
            committed = sys.maxsize if self._ended else self._committed
            failure = self._failure
        waiting = []
        for count, future in self._waiters:
            if count > committed:
                waiting.append((count, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = waiting
        if failure is not None and self._on_error is not None:
            on_error, self._on_error = self._on_error, None
            on_error(failure)

    def _run(self) -> None:
        """In the thread: commit until closed. However it ends, nobody is left waiting."""
        failure: HeretixError | None = StoreError(
            f"`{self._store.name}`: the writer ended by a mistake in Heretix; "
            "please report the traceback above"
        )
        try:
            while batch := self._next_batch():
                self._store.save_samples(batch, owner=self._owner)
                with self._changed:
                    self._committed += len(batch)
                    self._in_flight = []
                    self._last_commit = time.monotonic()
                self._report()
            failure = None
        except HeretixError as exc:
            failure = exc
        finally:
            with self._changed:
                self._failure = failure
                self._ended = True
            self._report()

    def _next_batch(self) -> list[Sample]:
        """Whatever has arrived; nothing means that the writer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            left_s = self._last_commit + _GATHER_S - time.monotonic()
            if left_s > 0:
                self._changed.wait_for(lambda: self._hurry or self._closing, timeout=left_s)
            self._hurry = False
            self._in_flight, self._pending = self._pending, []
            return self._in_flight

    def _report(self) -> None:
        assert self._loop is not None, "the thread is started by the first `put`"
        # A loop that was closed meanwhile has nobody waiting in it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)
