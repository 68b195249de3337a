"""The feed: how jobs are doing, as it happens, for any number of watchers.

One reader a process asks the store about all watched jobs at once; a watcher costs no query. A
watcher that is slow misses steps in between, never the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import StoreError
from heretix.jobs.job import JobState, Progress
from heretix.store import jobs as rows

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from heretix.store import Store

POLL_S: Final = 0.25
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """A change of a job."""

    job_id: str
    seq: int
    """Grows; whoever has seen up to here asks for what comes after."""
    state: JobState
    progress: Progress
    error: str | None

    @property
    def ended(self) -> bool:
        """Nothing will come after it."""
        return self.state.ended

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "job_id": self.job_id,
            "seq": self.seq,
            "state": self.state.value,
            "ended": self.ended,
            "progress": self.progress.as_dict(),
            "error": self.error,
        }


@dataclass(slots=True, eq=False)
class _Watcher:
    """Somebody who waits for news of one job. Only the newest is kept."""

    news: JobEvent | None = None
    gone: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, event: JobEvent | None) -> None:
        # The last news stay: somebody who hasn't seen them yet still does, and then it is over.
        self.news, self.gone = event or self.news, event is None
        self.ready.set()


class Feed:
    """News of jobs, within one event loop. Who may see a job is for the caller to know."""

    def __init__(self, store: Store, *, poll_s: float = POLL_S) -> None:
        self._store = store
        self._poll_s = poll_s
        self._watchers: defaultdict[str, set[_Watcher]] = defaultdict(set)
        self._known: dict[str, JobEvent] = {}
        self._more = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def follow(self, job_id: str, *, after: int = 0) -> AsyncGenerator[JobEvent, None]:
        """News after `after`, the present state first, until the job ends or is deleted."""
        watcher = _Watcher()
        if job_id in self._known:
            watcher.tell(self._known[job_id])
        self._watchers[job_id].add(watcher)
        self._more.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            while True:
                await watcher.ready.wait()
                watcher.ready.clear()
                event = watcher.news
                if event is not None and event.seq > after:
                    after = event.seq
                    yield event
                # More may have come while the reader of this stream was busy.
                if (watcher.gone and watcher.news is event) or (event and event.ended):
                    return
        finally:
            self._watchers[job_id].discard(watcher)
            if not self._watchers[job_id]:
                del self._watchers[job_id]
                self._known.pop(job_id, None)

    async def aclose(self) -> None:
        """End all streams."""
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.tell(None)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        """Ask the store, again and again, while anybody watches."""
        while self._watchers:
            self._more.clear()
            wanted = list(self._watchers)
            try:
                found = await asyncio.to_thread(self._store.read, rows.select_revisions, wanted)
            except StoreError as exc:
                # Watchers are told when it is back; a stream that breaks off only comes again.
                _log.warning("jobs couldn't be watched: %s", exc)
            else:
                watched = (row for row in found if row["job_id"] in self._watchers)
                events = {row["job_id"]: self._event(row) for row in watched}
                self._tell({job_id: events.get(job_id) for job_id in wanted})
            # Until it is time to ask again, or somebody wants to know of another job.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._more.wait()

    def _tell(self, events: dict[str, JobEvent | None]) -> None:
        for job_id, event in events.items():
            for watcher in self._watchers.get(job_id, ()):
                if watcher.news is not event or event is None:
                    watcher.tell(event)

    def _event(self, row: dict[str, Any]) -> JobEvent:
        """The event in a row; the one that is known already while nothing has changed."""
        known = self._known.get(row["job_id"])
        if known is not None and known.seq == row["revision"]:
            return known
        event = JobEvent(
            job_id=row["job_id"],
            seq=row["revision"],
            state=JobState(row["state"]),
            progress=Progress.of_json(row["progress_json"]),
            error=row["error"],
        )
        self._known[event.job_id] = event
        return event
