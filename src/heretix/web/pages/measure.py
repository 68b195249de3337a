"""A new measurement: what it will take, then the start."""

import asyncio
import json
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Form
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.errors import ConfigError, HeretixError, UsageError
from heretix.jobs import JobPlan, MeasureRequest
from heretix.people import Person, Role
from heretix.web.desk import desk_of
from heretix.web.identity import VisitNow, require
from heretix.web.leftout import REASONS
from heretix.web.measureform import LENSES, MeasureForm, suggested_models
from heretix.web.problems import status_of
from heretix.web.templating import page

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

Explorer = Annotated[Person, require(Role.EXPLORER)]


@router.get("/measure")
def new(request: Request, person: Explorer) -> Response:
    """The empty form, or one that an address filled in."""
    return _page(request, person, MeasureForm.asked(request.query_params))


@router.post("/measure")
async def plan(request: Request, person: Explorer) -> Response:
    """What the measurement would take: calls, tokens, price and time. Nothing is started."""
    form = MeasureForm.sent(await request.form())
    # Gathering evidence may take seconds: other pages mustn't wait for it.
    async with desk_of(request).planning:
        return await asyncio.to_thread(_planned, request, person, form)


@router.post("/measure/start")
def start(
    request: Request,
    person: Explorer,
    visit: VisitNow,
    asked: Annotated[str, Form(alias="request", max_length=1_500_000)],
    key: Annotated[str, Form(min_length=8, max_length=100)],
) -> Response:
    """Begin what was planned. Sent twice, it is one job."""
    desk = desk_of(request)
    try:
        values = json.loads(asked)
    except (ValueError, RecursionError) as exc:
        raise ConfigError("`request` must be JSON, as the plan's page has it") from exc
    if not isinstance(values, dict):
        raise ConfigError(f"`request` must be an object, got {type(values).__name__}")
    job = desk.jobs.submit(person, MeasureRequest.parse(values), key=key, address=visit.address)
    return RedirectResponse(f"/jobs/{job.id}", 303)


def _planned(request: Request, person: Person, form: MeasureForm) -> Response:
    desk = desk_of(request)
    try:
        wanted = form.request()
        found = desk.jobs.plan(wanted)
    except UsageError as exc:
        return _page(request, person, form, problem=exc)
    return _page(request, person, form, wanted=wanted, found=found)


def _page(
    request: Request,
    person: Person,
    form: MeasureForm,
    *,
    problem: HeretixError | None = None,
    wanted: MeasureRequest | None = None,
    found: JobPlan | None = None,
) -> Response:
    desk = desk_of(request)
    more: dict[str, Any] = {}
    if wanted is not None:
        more = {"asked": wanted.canonical, "key": secrets.token_urlsafe(18)}
    return page(
        request,
        "measure.html",
        status=status_of(problem) if problem else 200,
        form=form,
        lenses=LENSES,
        models=suggested_models(desk.settings),
        problem=problem,
        wanted=wanted,
        plan=found,
        reasons=REASONS,
        usage=desk.jobs.usage(person),
        person=person,
        **more,
    )
