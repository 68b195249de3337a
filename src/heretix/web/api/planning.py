"""Before a measurement: which models there are, and what a request would take."""

from typing import Any

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from heretix.jobs import MeasureRequest
from heretix.measurement.measurement import Estimate
from heretix.people import Role
from heretix.providers import gguf
from heretix.providers.catalog import ENDPOINTS, default_model
from heretix.web.api.resource import desk_of, resource

__all__ = ["plans", "router"]

router = resource("planning")
plans = resource("planning", role=Role.EXPLORER)


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
    """What can be asked."""

    default: str
    """Asked when a request names none."""
    local: list[LocalModel]
    providers: list[ProviderView]


class PlanView(BaseModel):
    """What a request would take. Nothing was started."""

    estimate: Estimate
    duration_s: float | None
    duration_basis: str
    models: list[str]
    demonstration: list[str]
    notes: list[str]
    plans: list[dict[str, Any]]


@router.get("/models")
def list_models(request: Request) -> ModelsView:
    """The models that run here, and the providers that can be asked."""
    settings = desk_of(request).settings
    local = [gguf.status(name, settings) for name in gguf.KNOWN]
    return ModelsView(
        default=default_model(settings).identity,
        local=[
            LocalModel(
                model=f"local:{found.name}",
                state=found.state,
                size_bytes=found.size_bytes,
                licence=found.licence,
                demonstration=found.demonstration,
            )
            for found in local
        ],
        providers=[
            ProviderView(
                name=name,
                needs_key=endpoint.needs_key,
                has_key=bool(endpoint.key_variable and settings.env.get(endpoint.key_variable)),
            )
            for name, endpoint in ENDPOINTS.items()
        ],
    )


@plans.post("/plan")
async def plan_measurement(request: Request, measure: MeasureRequest) -> PlanView:
    """Calls, tokens, price and time of a request. It starts nothing, so it needs no key."""
    desk = desk_of(request)
    async with desk.planning:
        plan = await run_in_threadpool(desk.jobs.plan, measure)
    return PlanView.model_validate(plan.as_dict())
