"""Jobs: what is being measured, how far it is, and what came of it."""

from typing import Annotated, Final

from fastapi import APIRouter, Form, Header, Path, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.errors import ConfigError
from heretix.people import Person, Role
from heretix.web.desk import desk_of
from heretix.web.identity import VisitNow, require
from heretix.web.jobevents import event_stream
from heretix.web.templating import page

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

Reader = Annotated[Person, require(Role.READER)]
Explorer = Annotated[Person, require(Role.EXPLORER)]
JobId = Annotated[str, Path(max_length=80)]

_PAGE: Final = 40


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
def events(
    request: Request,
    job_id: JobId,
    person: Reader,
    visit: VisitNow,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The job's progress as it happens (server-sent events)."""
    desk = desk_of(request)
    text = last_event_id or "0"
    after = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 0
    return event_stream(desk, desk.jobs.get(job_id, by=person), visit=visit, after=after)
