"""Executions: the record of each, its samples, and whether it can be believed."""

import json
from typing import Any, cast

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from heretix.measurement.record import RunRecord, SampleRecord
from heretix.measurement.verify import verify_run
from heretix.store import StoredRecord
from heretix.store.listing import exact_record
from heretix.web.api.resource import (
    NOT_CHANGED,
    Cursor,
    Limit,
    Page,
    Ref,
    desk_of,
    resource,
    slice_of,
    unchanging,
)
from heretix.web.desk import Desk

__all__ = ["router"]

router = resource("executions")


class DifferenceView(BaseModel):
    """A value in a record that doesn't follow from the rest of it."""

    path: str
    recorded: Any
    derived: Any


class VerificationView(BaseModel):
    """What came of deriving a record again."""

    execution_id: str
    run_id: str
    ok: bool
    checked: int
    differences: list[DifferenceView]
    notes: list[str]


@router.get("/executions/{ref}", response_model=RunRecord, responses=NOT_CHANGED)
def get_execution(request: Request, ref: Ref) -> Response:
    """The record of a finished execution, or of the latest one of a run.

    It never changes: its ETag is the execution's id.
    """
    stored = _stored(desk_of(request), ref)
    return unchanging(
        request, stored.record_json, stored.execution_id, exact=ref == stored.execution_id
    )


@router.get("/executions/{ref}/samples")
def list_samples(
    request: Request, ref: Ref, limit: Limit = 100, cursor: Cursor = None
) -> Page[SampleRecord]:
    """The samples of an execution in the order of its plan, with the raw answers."""
    samples = json.loads(_stored(desk_of(request), ref).record_json)["samples"]
    return slice_of(samples, SampleRecord.model_validate, limit=limit, cursor=cursor)


@router.get("/executions/{ref}/verify")
def verify_execution(request: Request, ref: Ref) -> VerificationView:
    """Derive everything in a record again, from the record alone, and say where it differs."""
    desk = desk_of(request)
    execution_id = _stored(desk, ref).execution_id
    key = ("api verify", execution_id)
    verified = desk.shelf.kept.get(key, lambda: _verified(desk, execution_id))
    return cast("VerificationView", verified)


def _stored(desk: Desk, ref: str) -> StoredRecord:
    """By the whole id at once, else by whatever the reference fits."""
    with desk.store.reading() as connection:
        found = exact_record(connection, ref)
    return found or desk.store.find(ref)


def _verified(desk: Desk, execution_id: str) -> VerificationView:
    found = verify_run(desk.shelf.record(execution_id))
    return VerificationView(
        execution_id=found.execution_id,
        run_id=found.run_id,
        ok=found.ok,
        checked=found.checked,
        differences=[
            DifferenceView(path=d.path, recorded=d.recorded, derived=d.derived)
            for d in found.differences
        ],
        notes=list(found.notes),
    )
