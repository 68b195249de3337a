"""A job's news as server-sent events: numbered, with a sign of life while there is none."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from heretix.web.identity import is_still_here
from heretix.web.streams import EventStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from heretix.jobs import Job, JobEvent
    from heretix.web.desk import Desk
    from heretix.web.identity import Visit

__all__ = ["BEAT_S", "EVENT_SCHEMA", "event_stream", "job_events"]

EVENT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The job's revision, for `Last-Event-ID`."},
        "event": {"type": "string", "enum": ["progress", "end"]},
        "data": {"type": "string", "description": "JSON: state, progress, error, ended."},
        "retry": {"type": "integer"},
    },
}
"""One event of a stream, as the API's document has it."""

BEAT_S: Final = 15.0
"""Silence that a proxy or a reader may take for a lost connection."""
_LOOK_UP_S: Final = 1.0
"""How often a stream looks whether the server is about to end, and its reader still let in."""


def event_stream(desk: Desk, job: Job, *, visit: Visit, after: int) -> Response:
    """What happens to a job after `after`, for a visitor who may see it."""
    if job.state.ended and job.revision <= after:
        # The reader has seen the end. Browsers come back unless they are told not to.
        return Response(status_code=204)
    assert visit.person is not None, "only people see jobs"
    events = job_events(desk, job.id, visit=visit, after=after)
    return EventStream(events, streams=desk.streams, person=visit.person)


async def job_events(
    desk: Desk, job_id: str, *, visit: Visit, after: int = 0, beat_s: float = BEAT_S
) -> AsyncIterator[bytes]:
    """What a stream says, until the job ends, the reader leaves or is put out, or the server
    stops."""
    events = desk.feed.follow(job_id, after=after)
    clock = asyncio.get_running_loop().time
    spoke_at = looked_at = clock()
    # At once: a reader then knows that it is connected, and how soon to come back.
    yield b"retry: 2000\n\n"
    coming = asyncio.ensure_future(anext(events, None))
    try:
        while not desk.stopping:
            done, _ = await asyncio.wait({coming}, timeout=min(_LOOK_UP_S, beat_s))
            if clock() - looked_at >= _LOOK_UP_S:
                # Whoever was let in when the stream began may have been shut out since.
                if not await is_still_here(visit, desk):
                    return
                looked_at = clock()
            if done:
                event = coming.result()
                if event is None:
                    return
                yield _written(event)
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


def _written(event: JobEvent) -> bytes:
    # JSON without line breaks is one line of data; whatever an error says can't begin a field.
    data = json.dumps(event.as_dict(), separators=(",", ":"))
    kind = "end" if event.ended else "progress"
    return f"id: {event.seq}\nevent: {kind}\ndata: {data}\n\n".encode()
