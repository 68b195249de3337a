"""Runs and claims: what was measured."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel
from starlette.requests import Request

from heretix.errors import RecordError
from heretix.store import ExecutionSummary, RunSummary
from heretix.store.listing import ClaimSummary, RunFilter, claims_page, find_run, runs_page
from heretix.web.api.resource import (
    Cursor,
    Limit,
    Page,
    Ref,
    Text,
    desk_of,
    page_of,
    read_cursor,
    resource,
)

__all__ = ["router"]

router = resource("runs")

Lens = Literal["RPL", "NUL", "MEL", "HEL", "SEL"]


class RunDetail(BaseModel):
    """A run and its executions, the newest first."""

    run: RunSummary
    executions: list[ExecutionSummary]


@router.get("/runs")
def list_runs(
    request: Request,
    q: Text = None,
    claim: Text = None,
    model: Text = None,
    lens: Annotated[Lens | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RunSummary]:
    """Runs, the latest first. `q` looks in claims, models and ids; `claim` is word for word."""
    after = read_cursor(cursor, str, str)
    wanted = RunFilter(search=q, claim=claim, model=model, lens=lens)
    with desk_of(request).store.reading() as connection:
        found = runs_page(
            connection, wanted, limit=limit + 1, after=(after[0], after[1]) if after else None
        )
    return page_of(found, limit, "updated_at", "run_id")


@router.get("/runs/{ref}")
def get_run(request: Request, ref: Ref) -> RunDetail:
    """A run and all its executions. The record is at `/executions/{ref}`, by either id."""
    store = desk_of(request).store
    run_id = store.started(ref).run_id
    with store.reading() as connection:
        run = find_run(connection, run_id)
    if run is None:
        raise RecordError(f"`{ref}` names no run")
    return RunDetail(run=run, executions=store.executions_of(run_id))


@router.get("/claims")
def list_claims(
    request: Request, q: Text = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[ClaimSummary]:
    """Claims that were measured, the one measured last first."""
    after = read_cursor(cursor, str, str)
    with desk_of(request).store.reading() as connection:
        found = claims_page(
            connection, search=q, limit=limit + 1, after=(after[0], after[1]) if after else None
        )
    return page_of(found, limit, "updated_at", "claim_sha256")
