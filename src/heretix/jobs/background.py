"""A worker beside a server: in a thread of its own, so that pages stay quick while it measures."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Self

from heretix.jobs.worker import Worker

if TYPE_CHECKING:
    from types import TracebackType

    from heretix.economy.clock import Clock
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["BackgroundWorker"]


class BackgroundWorker:
    """Works on jobs from `start` to `stop`. Jobs that are under way then go back to the queue."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        parallel: int = 1,
        clock: Clock | None = None,
    ) -> None:
        """`clock` is what episodes go by; without one, the time of the machine."""
        self._worker = Worker(store, settings, parallel=parallel, clock=clock)
        self._thread = threading.Thread(target=self._run, name="heretix-worker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait until what was answered is stored."""
        self._worker.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        asyncio.run(self._worker.run())
