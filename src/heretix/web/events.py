"""Server-sent events: a limit on the streams of each person, and a job's news on them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from starlette.responses import Response, StreamingResponse

from heretix.core.errors import TooManyRequestsError
from heretix.web.auth import is_still_admitted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.types import Receive, Scope, Send

    from heretix.accounts import Person
    from heretix.jobs import Job, JobEvent
    from heretix.web.auth import Visit
    from heretix.web.state import AppState

# An open stream costs a connection, a task and a place among those that wait for news. Nobody reads
# more than a few; whoever opens hundreds takes them from everybody else.

MOST: Final = 20
"""Of a person with an account: every tab that a browser may hold open, in three browsers."""
MOST_LOCAL: Final = 1_000
"""Of the one user of a machine, whose programs share nothing with anybody: a bound on mistakes."""
_RETRY_S: Final = 5.0  # a stream ends with its job or its page; nobody knows when that is


class OpenStreams:
    """Counts the streams that each person has open. Only the event loop touches it."""

    def __init__(self, *, most: int = MOST, most_local: int = MOST_LOCAL) -> None:
        self._most, self._most_local = most, most_local
        self._open: Counter[str] = Counter()

    def count(self, person: Person) -> int:
        """Count the streams that a person has open."""
        return self._open[person.id]

    @contextmanager
    def track(self, person: Person) -> Iterator[None]:
        """Count a stream as open, for as long as this lasts."""
        most = self._most_local if person.is_local else self._most
        if self._open[person.id] >= most:
            raise TooManyRequestsError(
                f"`{person.name}` may have {most:,} event streams open at a time, and has; close "
                "one, or ask for the job itself instead",
                retry_after_s=_RETRY_S,
            )
        self._open[person.id] += 1
        try:
            yield
        finally:
            self._open[person.id] -= 1
            if not self._open[person.id]:
                del self._open[person.id]


class EventStream(StreamingResponse):
    """Server-sent events. It counts from its first byte until its reader has left or it ends."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], *, streams: OpenStreams, person: Person
    ) -> None:
        super().__init__(events, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._streams, self._person = streams, person

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, unless there are too many: nothing was sent by then, so that can be said."""
        with self._streams.track(self._person):
            await super().__call__(scope, receive, send)


EVENT_SCHEMA: Final = {  # Each event of the stream, as the API's document has it
    "type": "object",
    "description": "A server-sent event. `id` is the job's revision, for `Last-Event-ID`.",
    "properties": {
        "event": {"enum": ["progress", "end"]},
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "State, progress, error, ended.",
        },
    },
    "required": ["event", "id", "data"],
}

BEAT_S: Final = 15.0  # silence that a proxy or a reader may take for a lost connection
_LOOK_UP_S: Final = 1.0
"""Between two looks whether the server is about to end, and the reader still let in."""


def event_stream(app: AppState, job: Job, *, visit: Visit, after: int) -> Response:
    """Stream what happens to a job after `after`, for a visitor who may see it."""
    if job.state.ended and job.revision <= after:
        # The reader has seen the end. Browsers come back unless they are told not to.
        return Response(status_code=204)
    assert visit.person is not None, "only people see jobs"
    events = job_events(app, job.id, visit=visit, after=after)
    return EventStream(events, streams=app.streams, person=visit.person)


async def job_events(
    app: AppState, job_id: str, *, visit: Visit, after: int = 0, beat_s: float = BEAT_S
) -> AsyncIterator[bytes]:
    """Yield a job's news until it ends, the reader leaves or is put out, or the server stops."""
    events = app.feed.follow(job_id, after=after)
    clock = asyncio.get_running_loop().time
    spoke_at = looked_at = clock()
    # At once: a reader then knows that it is connected, and how soon to come back.
    yield b"retry: 2000\n\n"
    coming = asyncio.ensure_future(anext(events, None))
    try:
        while not app.stopping:
            done, _ = await asyncio.wait({coming}, timeout=min(_LOOK_UP_S, beat_s))
            if clock() - looked_at >= _LOOK_UP_S:
                # Whoever was let in when the stream began may have been shut out since.
                if not await is_still_admitted(visit, app):
                    return
                looked_at = clock()
            if done:
                event = coming.result()
                if event is None:
                    return
                yield _write(event)
                coming = asyncio.ensure_future(anext(events, None))
            elif clock() - spoke_at < beat_s:
                continue
            else:
                yield b": still here\n\n"
            spoke_at = clock()
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError):
            await coming
        await events.aclose()


def _write(event: JobEvent) -> bytes:
    # JSON without line breaks is one line of data; whatever an error says can't begin a field.
    data = json.dumps(event.as_dict(), separators=(",", ":"))
    kind = "end" if event.ended else "progress"
    return f"id: {event.seq}\nevent: {kind}\ndata: {data}\n\n".encode()
