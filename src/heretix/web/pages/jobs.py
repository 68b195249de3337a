"""Jobs and new measurements: what it will take, how far it is, and what came of it."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Header, Path, Query
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Person
from heretix.core.errors import ConfigError, HeretixError, UsageError
from heretix.core.lenses import RPL, WITHOUT_FILES
from heretix.jobs import JobPlan, JobRun, JobState, MeasureRequest
from heretix.report.figures import Mark
from heretix.report.findings import belief_finding
from heretix.report.words import DROP_PHRASES
from heretix.web.auth import CurrentVisit, Explorer, Reader
from heretix.web.events import event_stream
from heretix.web.forms import MeasureForm, describe_models, suggest_models
from heretix.web.pages.home import picture_of
from heretix.web.pages.runs import between_of, claim_view
from heretix.web.state import App, AppState, app_state
from heretix.web.templating import page

router = APIRouter(include_in_schema=False)
JobId = Annotated[str, Path(max_length=80)]
_OBJECT: Final = TypeAdapter(dict[str, Any])
_PAGE: Final = 40
_FINDINGS: Final = 12


@router.get("/measure")
def new(request: Request, person: Explorer) -> Response:
    """Show the empty form, or one that an address filled in."""
    return _page(request, person, MeasureForm.from_query(request.query_params))


@router.post("/measure")
async def plan(request: Request, person: Explorer) -> Response:
    """Show what it would take: calls, tokens, price and time. Nothing is started."""
    app = app_state(request)
    try:
        async with request.form() as data:
            form = MeasureForm.from_data(data)
    except UsageError as exc:
        return _page(request, person, MeasureForm(), problem=exc)

    def plan_form() -> Response:
        try:
            wanted = form.request()
            return _page(request, person, form, wanted=wanted, plan=app.jobs.plan(wanted))
        except UsageError as exc:
            return _page(request, person, form, problem=exc)

    # Gathering evidence may take seconds: other pages mustn't wait for it.
    async with app.planning:
        return await asyncio.to_thread(plan_form)


@router.post("/measure/start")
def start(
    app: App,
    person: Explorer,
    visit: CurrentVisit,
    asked: Annotated[str, Form(alias="request", max_length=1_500_000)],
    key: Annotated[str, Form(min_length=8, max_length=100)],
) -> Response:
    """Begin what was planned. Sent twice, it is one job."""
    try:
        values = _OBJECT.validate_json(asked)
    except ValidationError as exc:
        raise ConfigError("`request` must be a JSON object, as the plan's page has it") from exc
    job = app.jobs.submit(person, MeasureRequest.parse(values), key=key, address=visit.address)
    return RedirectResponse(f"/jobs/{job.id}", 303)


def _page(
    request: Request,
    person: Person,
    form: MeasureForm,
    *,
    problem: HeretixError | None = None,
    wanted: MeasureRequest | None = None,
    plan: JobPlan | None = None,
) -> Response:
    app = app_state(request)
    with app.store.snapshot():
        cards, usage = describe_models(app.settings, app.store), app.jobs.usage(person)
    return page(
        request,
        "measure.html",
        form=form,
        lenses=WITHOUT_FILES,
        models=suggest_models(app.settings),
        cards=cards,
        problem=problem,
        wanted=wanted,
        plan=plan,
        reasons=DROP_PHRASES,
        usage=usage,
        person=person,
        asked=wanted.canonical if wanted else None,
        key=secrets.token_urlsafe(18),
    )


@router.get("/jobs")
def jobs(
    request: Request,
    app: App,
    person: Reader,
    before: Annotated[str | None, Query(max_length=80)] = None,
) -> Response:
    """List the jobs that this person may see, the newest first."""
    with app.store.snapshot():
        found = app.jobs.list(by=person, limit=_PAGE + 1, before=before)
        usage = app.jobs.usage(person)
    return page(
        request,
        "jobs.html",
        jobs=found[:_PAGE],
        after=found[_PAGE - 1].id if len(found) > _PAGE else None,
        usage=usage,
        person=person,
    )


@router.get("/jobs/{job_id}")
def job(request: Request, app: App, job_id: JobId, person: Reader) -> Response:
    """Show one job, live while it runs."""
    with app.store.snapshot():
        found = app.jobs.get(job_id, by=person)
        runs = app.jobs.runs(job_id, by=person)
        said = _findings(app, runs) if found.state.ended else []
        place = app.jobs.find_queue_place(found) if found.state is JobState.QUEUED else None
    return page(request, "job.html", job=found, runs=runs, found=said, place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The finding of a job on a claim and a model, and where it is shown."""

    claim: str
    sentence: str
    address: str
    marks: tuple[Mark, ...]


def _findings(app: AppState, runs: Sequence[JobRun]) -> list[Found]:
    """Say what a job found, a sentence for each claim and model."""
    said: dict[tuple[str, str], Found] = {}
    plain = [run for run in runs if run.variant is None]
    for run in sorted(plain, key=lambda run: run.lens != RPL):
        if (run.claim, run.model) in said or len(said) == _FINDINGS:
            continue
        record = app.cache.record(run.execution_id)
        view = claim_view(app, record)
        between = between_of(app, record, view)
        finding = (between and between.finding) or belief_finding(record)
        said[run.claim, run.model] = Found(
            claim=run.claim,
            sentence=finding.sentence,
            address=f"/runs/{run.execution_id}",
            marks=picture_of(record, view),
        )
    return list(said.values())


@router.post("/jobs/{job_id}/cancel")
def cancel(app: App, job_id: JobId, person: Explorer, visit: CurrentVisit) -> Response:
    """Stop it. What was answered until then is kept."""
    app.jobs.cancel(job_id, by=person, address=visit.address)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/resume")
def resume(
    app: App,
    job_id: JobId,
    person: Explorer,
    visit: CurrentVisit,
    budget_usd: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Go on with it: exactly the missing calls are made."""
    try:
        budget = float(budget_usd) if budget_usd.strip() else None
    except ValueError as exc:
        raise ConfigError(f"`budget_usd` must be a number, got {budget_usd!r}") from exc
    app.jobs.resume(job_id, by=person, budget_usd=budget, address=visit.address)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.get("/jobs/{job_id}/events")
def events(
    app: App,
    job_id: JobId,
    person: Reader,
    visit: CurrentVisit,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream the job's progress as it happens (server-sent events)."""
    text = last_event_id or "0"
    after = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 0
    return event_stream(app, app.jobs.get(job_id, by=person), visit=visit, after=after)
