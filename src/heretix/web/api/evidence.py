"""Evidence: bundles as models saw them, what they moved, and why a source has its class."""

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from heretix.evidence.policy.file import load_policy
from heretix.evidence.policy.publisher import MAX_URL_CHARS
from heretix.measurement.record import MetricRecord
from heretix.store.bundles import find_bundle
from heretix.web.api import resource
from heretix.web.state import App

if TYPE_CHECKING:
    from heretix.evidence.policy.policy import Policy

router = resource.make_read_router("evidence")


class BundleView(BaseModel):
    """A bundle, as it is stored; its id is the hash of the rest."""

    model_config = ConfigDict(populate_by_name=True)

    bundle_id: str
    schema_: str = Field(alias="schema")
    claim: str
    lens: str
    as_of: str | None
    strict_dates: bool
    policy: dict[str, str]
    queries: dict[str, Any]
    limits: dict[str, Any]
    items: list[dict[str, Any]]
    dropped: list[dict[str, Any]]


class AnomalyView(resource.View):
    """A claim and a model, and how far evidence moves it."""

    claim: str
    model: str
    shock_index: MetricRecord | None
    amplification_gap: MetricRecord | None
    placebo: dict[str, str]  # by lens: evidence_driven, any_text, unmoved or unchecked
    p_value: float
    gates_failed: list[str]
    listed: bool
    credited_to: str | None = None  # who was first to claim the credits of it


class AnomalyPage(resource.Page[AnomalyView]):
    """Some of the feed."""

    complete: bool  # False while something newer is being worked out; ask again in a moment


class ExplanationView(BaseModel):
    """Rule that gives an address its class, and the facts it rests on."""

    model_config = ConfigDict(populate_by_name=True)

    url: str
    cls: str = Field(alias="class")
    rule: str | None
    facts: list[str]
    publisher: str
    policy: str
    compared: list[str]
    later: list[str]


@router.get("/bundles/{bundle_id}", response_model=BundleView, responses=resource.NOT_CHANGED)
def get_bundle(
    request: Request, app: App, bundle_id: Annotated[str, Path(pattern=r"^[0-9a-f]{8,64}$")]
) -> Response:
    """A bundle of evidence: what was shown and what was left out, each with why."""
    text = app.store.read(find_bundle, bundle_id)
    whole = str(json.loads(text)["bundle_id"])
    return resource.send_unchanging(request, text, whole, exact=bundle_id == whole)


@router.get("/anomalies")
def list_anomalies(
    app: App,
    listed: Annotated[
        bool | None, Query(description="true: those that pass; false: those that don't.")
    ] = None,
    limit: resource.Limit = 50,
    cursor: resource.Cursor = None,
) -> AnomalyPage:
    """Claims on which evidence moves a model most, the strongest first."""
    known = app.anomalies.read()
    found = [a for a in known.found if listed is None or a.listed is listed]
    some = resource.slice_of(found, AnomalyView.model_validate, limit=limit, cursor=cursor)
    taken = app.exploration.find_credited(one.claim for one in some.items)
    items = [one.model_copy(update={"credited_to": taken.get(one.claim)}) for one in some.items]
    return AnomalyPage(items=items, next=some.next, complete=known.complete)


@router.get("/policy/explain", response_model_by_alias=True)
def explain_source(
    app: App, url: Annotated[str, Query(min_length=1, max_length=MAX_URL_CHARS)]
) -> ExplanationView:
    """Side of the canon that an address stands on by the packaged policy, and why."""
    policy = cast("Policy", app.cache.values.get("api policy", load_policy))
    found = policy.explain(url)
    given = found.classification
    return ExplanationView(
        url=url,
        cls=given.cls,
        rule=given.rule_id,
        facts=list(given.facts),
        publisher=given.publisher,
        policy=policy.version,
        compared=[rule.id for rule in found.compared],
        later=[match.rule.id for match in found.later],
    )
