"""The API as one: every resource under `/api/v1`."""

from fastapi import APIRouter, Depends

from heretix.web.api import (
    comparison,
    episodes,
    evidence,
    executions,
    export,
    jobs,
    ledger,
    people,
    planning,
    proceedings,
    runs,
)
from heretix.web.api.resource import PREFIX, once_each

__all__ = ["PREFIX", "router"]

router = APIRouter(prefix=PREFIX, dependencies=[Depends(once_each)])
for _resource in (
    runs.router,
    executions.router,
    evidence.router,
    comparison.router,
    planning.router,
    planning.plans,
    jobs.router,
    jobs.changes,
    episodes.router,
    episodes.changes,
    proceedings.router,
    ledger.router,
    people.router,
    export.router,
):
    router.include_router(_resource)
