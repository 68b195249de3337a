"""The API: every resource under `/api/v1`, and the OpenAPI document that describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi

from heretix.version import VERSION
from heretix.web.api import episodes, evidence, jobs, ledger, people, runs
from heretix.web.problems import PREFIX, Misfit, Problem, refusals_of

if TYPE_CHECKING:
    from fastapi import FastAPI

router = APIRouter(prefix=PREFIX)
for _resource in (
    runs.router,
    runs.executions,
    evidence.router,
    runs.comparisons,
    jobs.planning,
    jobs.plans,
    jobs.router,
    jobs.changes,
    episodes.router,
    episodes.changes,
    episodes.operations,
    ledger.router,
    ledger.exploration,
    people.router,
    people.changes,
    people.accounts,
    people.limits,
    runs.exports,
):
    router.include_router(_resource)

_TAGS: Final = {
    "runs": "What was measured: one run a claim, model, lens and size.",
    "executions": "Records: everything that an execution planned, got and concluded.",
    "evidence": "Bundles, anomalies and source policies.",
    "compare": "Two beliefs against each other.",
    "planning": "Before a measurement: models, calls, price and time.",
    "jobs": "Measurements that are asked for, followed and stopped.",
    "episodes": "Markets on whether evidence moves a belief, and moves made as oneself.",
    "operations": "What operators do with episodes.",
    "ledger": "Who holds what, every transfer, and everybody's standing.",
    "exploration": "Credits for findings: a belief that evidence moves for certain.",
    "people": "Who asks, with one's own tokens and bets.",
    "accounts": "Who is here, and what they may use: for operators.",
    "export": "Whole tables.",
}
_DESCRIPTION: Final = """\
Measures what AI models believe. Every refusal is a problem document (RFC 9457) that says what to
do. Lists come in pages: send `next` as `cursor` for the one behind. Every write needs an
`Idempotency-Key`; sent again with the same one, it is done once and answered alike. Records never
change, and say so with their ETag.

A server without accounts needs no token from programs on its own machine. Elsewhere send
`Authorization: Bearer htx_…`.
"""
_SECURITY: Final = {  # The caller is found out once for the whole app; here it is only told
    "token": {"type": "http", "scheme": "bearer", "description": "A token, made on one's profile."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "heretix_session",
        "description": "A browser's session; writes also bring `X-CSRF-Token`.",
    },
}


def describe(app: FastAPI) -> None:
    """Have an app describe its API: problems by their own type, tags and security explained."""

    def openapi() -> dict[str, Any]:
        app.openapi_schema = app.openapi_schema or _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title="Heretix",
        version=VERSION,
        description=_DESCRIPTION,
        routes=app.routes,
        servers=[{"url": "/", "description": "The server that this description comes from."}],
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        license_info={"name": "MIT", "identifier": "MIT"},
    )
    schemas = document["components"]["schemas"]
    for model in (Misfit, Problem):
        schemas[model.__name__] = model.model_json_schema(
            ref_template="#/components/schemas/{model}"
        )
        schemas[model.__name__].pop("$defs", None)
    document["components"]["securitySchemes"] = _SECURITY
    document["security"] = [{name: []} for name in _SECURITY]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"] |= refusals_of(method, path)
    # What the framework would answer to bad input; here that is a problem as well.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return document
