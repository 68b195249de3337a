"""Jobs over HTTP: which models there are, what a request would take, progress and results."""

from typing import Annotated, Any, Final

from fastapi import Body, Header, Path, Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from heretix.accounts import Role
from heretix.jobs import EpisodeRequest, Job, JobRun, JobState, MeasureRequest, Progress
from heretix.jobs.job import JobKind
from heretix.plan import Estimate
from heretix.providers import gguf
from heretix.providers.catalog import default_model, endpoints
from heretix.web.api import resource
from heretix.web.auth import CurrentVisit, Explorer, Reader
from heretix.web.events import EVENT_SCHEMA, event_stream
from heretix.web.problems import PREFIX
from heretix.web.state import App

planning = resource.make_read_router("planning")
plans = resource.make_read_router("planning", role=Role.EXPLORER)


class LocalModel(BaseModel):
    """A model file that this server knows, and whether it is there."""

    model: str
    state: str
    size_bytes: int
    licence: str
    demonstration: bool


class ProviderView(BaseModel):
    """A provider, and whether it can be asked from here."""

    name: str
    needs_key: bool
    has_key: bool


class ModelsView(BaseModel):
    """Questions that can be asked."""

    default: str  # asked when a request names none
    local: list[LocalModel]
    providers: list[ProviderView]


class PlanView(BaseModel):
    """Estimate of a request. Nothing was started."""

    estimate: Estimate
    duration_s: float | None
    duration_basis: str
    models: list[str]
    demonstration: list[str]
    notes: list[str]
    plans: list[dict[str, Any]]


@planning.get("/models")
def list_models(app: App) -> ModelsView:
    """The models that run here, and the providers that can be asked."""
    env = app.settings.env
    local = []
    for status in (gguf.status(name, app.settings) for name in gguf.KNOWN):
        same = ("state", "size_bytes", "licence", "demonstration")
        facts = {name: getattr(status, name) for name in same}
        local.append(LocalModel(model=f"local:{status.name}", **facts))
    providers = []
    for name, one in endpoints().items():
        has_key = bool(one.key_variable and env.get(one.key_variable))
        providers.append(ProviderView(name=name, needs_key=one.needs_key, has_key=has_key))
    default = default_model(app.settings).identity
    return ModelsView(default=default, local=local, providers=providers)


@plans.post("/plan")
async def plan_measurement(app: App, measure: MeasureRequest) -> PlanView:
    """Calls, tokens, price and time of a request. It starts nothing, so it needs no key."""
    async with app.planning:
        plan = await run_in_threadpool(app.jobs.plan, measure)
    return PlanView.model_validate(plan.as_dict())


router = resource.make_read_router("jobs")
changes = resource.make_write_router("jobs")

JobId = Annotated[str, Path(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)]


# Documents that an operation only begins something.
BEGUN: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "description": "It is a job now; `Location` tells how far that is.",
        "headers": {
            "Location": {
                "description": "The job.",
                "required": True,
                "schema": {"type": "string", "format": "uri-reference"},
            },
            "Retry-After": {
                "description": "Seconds after which to ask for the first time.",
                "schema": {"type": "integer"},
            },
        },
    }
}


class JobView(BaseModel):
    """A job, as it is now."""

    id: str
    href: str = Field(description="Where to ask again.")
    kind: JobKind = Field(description="What `request` asks for: claims, or a move of an episode.")
    episode: str | None = Field(
        description="The episode that it moves on; null for claims, and until it is written down."
    )
    owner: str
    title: str
    state: JobState
    request: MeasureRequest | EpisodeRequest
    progress: Progress
    revision: int
    attempt: int
    cancel_requested: bool
    error: str | None
    error_kind: str | None
    budget_micros: int | None
    spent_micros: int | None
    created_at: str
    updated_at: str
    started_at: str | None
    finished_at: str | None

    @classmethod
    def of(cls, job: Job) -> "JobView":
        """A job as its owner may see it."""
        href = f"{PREFIX}/jobs/{job.id}"
        apart: dict[str, Any] = {"owner": job.owner_name, "href": href}
        same = {name: getattr(job, name) for name in cls.model_fields if name not in apart}
        return cls.model_construct(**apart, **same)


class Resumption(BaseModel):
    """Course of a job."""

    budget_usd: float | None = Field(
        default=None, gt=0, le=1_000_000, description="A new budget; without one, as before."
    )


@changes.post("/jobs", status_code=201)
def create_job(
    app: App, measure: MeasureRequest, key: resource.Key, person: Explorer, visit: CurrentVisit
) -> JobView:
    """Have something measured. The job is queued; `/jobs/{id}/events` tells how it goes."""
    job = app.jobs.submit(person, measure, key=f"api {key}", address=visit.address)
    return JobView.of(job)


@router.get("/jobs")
def list_jobs(
    app: App,
    person: Reader,
    state: Annotated[JobState | None, Query()] = None,
    limit: resource.Limit = 50,
    cursor: resource.Cursor = None,
) -> resource.Page[JobView]:
    """One's own jobs, the newest first; an operator sees everybody's."""
    (before,) = resource.read_cursor(cursor, str) or (None,)
    found = app.jobs.list(by=person, state=state, limit=limit + 1, before=before)
    return resource.page_of(found, limit, lambda job: (job.id,), JobView.of)


@router.get("/jobs/{job_id}")
def get_job(app: App, response: Response, job_id: JobId, person: Reader) -> JobView:
    """One job, as it is now: `error` says why it failed, `episode` what it has moved on."""
    found = app.jobs.get(job_id, by=person)
    response.headers["cache-control"] = "no-store"
    if not found.state.ended:
        response.headers["retry-after"] = "1"
    return JobView.of(found)


@router.get("/jobs/{job_id}/runs")
def list_job_runs(
    app: App,
    job_id: JobId,
    person: Reader,
    limit: resource.Limit = 100,
    cursor: resource.Cursor = None,
) -> resource.Page[JobRun]:
    """Records of a job so far, in the order in which they were finished."""
    found = app.jobs.runs(job_id, by=person)
    return resource.slice_of(found, lambda run: run, limit=limit, cursor=cursor)


@changes.post("/jobs/{job_id}/cancel")
def cancel_job(app: App, job_id: JobId, person: Explorer, visit: CurrentVisit) -> JobView:
    """Stop a job. What was answered until then is kept."""
    return JobView.of(app.jobs.cancel(job_id, by=person, address=visit.address))


@changes.post("/jobs/{job_id}/resume")
def resume_job(
    app: App,
    job_id: JobId,
    person: Explorer,
    visit: CurrentVisit,
    how: Annotated[Resumption | None, Body()] = None,
) -> JobView:
    """Let a job that failed or was cancelled go on; it pays for what is missing only."""
    budget_usd = how.budget_usd if how else None
    job = app.jobs.resume(job_id, by=person, budget_usd=budget_usd, address=visit.address)
    return JobView.of(job)


@router.get(
    "/jobs/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"itemSchema": EVENT_SCHEMA}}},
        204: {"description": "The job has ended, and the reader has seen it."},
    },
)
def follow_job(
    app: App,
    job_id: JobId,
    person: Reader,
    visit: CurrentVisit,
    last_event_id: Annotated[int, Header(alias="Last-Event-ID", ge=0, le=resource.MAX_SEQ)] = 0,
) -> Response:
    """A job's progress as server-sent events, until it ends.

    Events have the job's revision for an id. A reader that lost its connection sends the last id
    it saw as `Last-Event-ID`, and misses nothing that counts.
    """
    job = app.jobs.get(job_id, by=person)
    return event_stream(app, job, visit=visit, after=last_event_id)
