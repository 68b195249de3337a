"""Jobs: what is being measured, how far it is, and what came of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Annotated, Final

from fastapi import APIRouter, Form, Header, Path, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.errors import ConfigError
from heretix.jobs import JobEvent
from heretix.people import Person, Role
from heretix.web.desk import Desk, desk_of
from heretix.web.identity import VisitNow, require
from heretix.web.streams import EventStream
from heretix.web.templating import page

__all__ = ["event_stream", "router"]

router = APIRouter(include_in_schema=False)

Reader = Annotated[Person, require(Role.READER)]
Explorer = Annotated[Person, require(Role.EXPLORER)]
JobId = Annotated[str, Path(max_length=80)]

_PAGE: Final = 40
_BEAT_S: Final = 15.0
_LOOK_S: Final = 0.5


@router.get("/jobs")
def jobs(
    request: Request, person: Reader, before: Annotated[str | None, Query(max_length=80)] = None
) -> Response:
    """The jobs that this person may see, the newest first."""
    desk = desk_of(request)
    found = desk.jobs.list(by=person, limit=_PAGE + 1, before=before)
    return page(
        request,
        "jobs.html",
        jobs=found[:_PAGE],
        after=found[_PAGE - 1].id if len(found) > _PAGE else None,
        usage=desk.jobs.usage(person),
        person=person,
    )


@router.get("/jobs/{job_id}")
def job(request: Request, job_id: JobId, person: Reader) -> Response:
    """One job, live while it runs."""
    desk = desk_of(request)
    found = desk.jobs.get(job_id, by=person)
    runs = desk.jobs.runs(job_id, by=person)
    return page(request, "job.html", job=found, runs=runs)


@router.post("/jobs/{job_id}/cancel")
def cancel(request: Request, job_id: JobId, person: Explorer, visit: VisitNow) -> Response:
    """Stop it. What was answered until then is kept."""
    desk = desk_of(request)
    desk.jobs.cancel(job_id, by=person, address=visit.address)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/resume")
def resume(
    request: Request,
    job_id: JobId,
    person: Explorer,
    visit: VisitNow,
    budget_usd: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Go on with it: exactly the missing calls are made."""
    desk = desk_of(request)
    try:
        budget = float(budget_usd) if budget_usd.strip() else None
    except ValueError as exc:
        raise ConfigError(f"`budget_usd` must be a number, got {budget_usd!r}") from exc
    desk.jobs.resume(job_id, by=person, budget_usd=budget, address=visit.address)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.get("/jobs/{job_id}/events")
async def events(
    request: Request,
    job_id: JobId,
    person: Reader,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The job's progress as it happens (server-sent events)."""
    return await event_stream(request, job_id, person, last_event_id)


async def event_stream(
    request: Request, job_id: str, person: Person, last_event_id: str | None
) -> Response:
    """Everything after `last_event_id`, until the job has ended or the server does."""
    desk = desk_of(request)
    found = await run_in_threadpool(desk.jobs.get, job_id, by=person)
    text = last_event_id or "0"
    after = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 0
    if found.state.ended and after >= found.revision:
        # Nothing more will come: this tells a browser not to ask again.
        return Response(status_code=204)
    return EventStream(_stream(desk, job_id, after), streams=desk.streams, person=person)


async def _stream(desk: Desk, job_id: str, after: int) -> AsyncIterator[bytes]:
    """Events as they are sent, and now and then a comment, so that a dead connection shows."""
    yield b"retry: 1500\n\n"
    async with aclosing(desk.feed.follow(job_id, after=after)) as followed:
        pending: asyncio.Task[JobEvent] | None = None
        silent_s = 0.0
        try:
            while not desk.stopping:
                pending = pending or asyncio.ensure_future(anext(followed))
                done, _ = await asyncio.wait({pending}, timeout=_LOOK_S)
                if not done:
                    silent_s += _LOOK_S
                    if silent_s >= _BEAT_S:
                        silent_s = 0.0
                        yield b": still here\n\n"
                    continue
                finished, pending, silent_s = pending, None, 0.0
                try:
                    event = finished.result()
                except StopAsyncIteration:
                    return
                yield _encoded(event)
        finally:
            if pending is not None:
                pending.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await pending


def _encoded(event: JobEvent) -> bytes:
    # In ASCII and on one line: whatever an error says can't begin a field, or fail to be sent.
    data = json.dumps(event.as_dict())
    return f"id: {event.seq}\nevent: progress\ndata: {data}\n\n".encode()
