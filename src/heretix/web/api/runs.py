"""Runs over HTTP: claims, runs, executions, samples, comparisons and exports."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from fastapi import Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from heretix.belief.paired import PairedDifference, UnpairedDifference
from heretix.belief.student import PairedT
from heretix.core.errors import RecordError
from heretix.core.lenses import LensCode
from heretix.measurement.record import RunRecord, SampleRecord, read_sample
from heretix.report.export import FORMATS, Format, export
from heretix.store import ExecutionSummary, RunSummary, StoredRecord
from heretix.store import runs as store_runs
from heretix.web.api import resource
from heretix.web.auth import Costly
from heretix.web.problems import refusals
from heretix.web.state import App, AppState

if TYPE_CHECKING:
    from heretix.measurement.verify import Comparison

router = resource.make_read_router("runs")


class RunDetail(BaseModel):
    """A run and its executions, the newest first."""

    run: RunSummary
    executions: list[ExecutionSummary]


@router.get("/runs")
def list_runs(
    app: App,
    q: resource.Text = None,
    claim: resource.Text = None,
    model: resource.Text = None,
    lens: Annotated[LensCode | None, Query()] = None,
    limit: resource.Limit = 50,
    cursor: resource.Cursor = None,
) -> resource.Page[RunSummary]:
    """Runs, the latest first. `q` looks in claims, models and ids; `claim` is word for word."""
    after = resource.read_cursor(cursor, str, str)
    wanted = store_runs.RunFilter(search=q, claim=claim, model=model, lens=lens)
    found = app.store.read(store_runs.select_runs_page, wanted, limit=limit + 1, after=after)
    return resource.page_of(found, limit, lambda run: (run.updated_at, run.run_id), lambda run: run)


@router.get("/runs/{ref}")
def get_run(app: App, ref: resource.Ref) -> RunDetail:
    """A run and all its executions. The record is at `/executions/{ref}`, by either id."""
    store = app.store
    run_id = store.read(store_runs.find_execution, ref).run_id
    run = store.read(store_runs.select_run, run_id)
    if run is None:
        raise RecordError(f"`{ref}` names no run")
    return RunDetail(run=run, executions=store.read(store_runs.select_executions, run_id))


@router.get("/claims")
def list_claims(
    app: App, q: resource.Text = None, limit: resource.Limit = 50, cursor: resource.Cursor = None
) -> resource.Page[store_runs.ClaimSummary]:
    """Claims that were measured, the one measured last first."""
    after = resource.read_cursor(cursor, str, str)
    found = app.store.read(store_runs.select_claims_page, search=q, limit=limit + 1, after=after)
    return resource.page_of(
        found, limit, lambda one: (one.updated_at, one.claim_sha256), lambda one: one
    )


executions = resource.make_read_router("executions")


class DifferenceView(resource.View):
    """A value in a record that doesn't follow from the rest of it."""

    path: str
    recorded: Any
    derived: Any


class VerificationView(resource.View):
    """Outcome of deriving a record again."""

    execution_id: str
    run_id: str
    ok: bool
    checked: int
    differences: list[DifferenceView]
    notes: list[str]


@executions.get("/executions/{ref}", response_model=RunRecord, responses=resource.NOT_CHANGED)
def get_execution(request: Request, app: App, ref: resource.Ref) -> Response:
    """The record of a finished execution, or of the latest one of a run.

    It never changes: its ETag is the execution's id.
    """
    stored = _read_stored(app, ref)
    return resource.send_unchanging(
        request, stored.record_json, stored.execution_id, exact=ref == stored.execution_id
    )


@executions.get("/executions/{ref}/samples")
def list_samples(
    app: App, ref: resource.Ref, limit: resource.Limit = 100, cursor: resource.Cursor = None
) -> resource.Page[SampleRecord]:
    """The samples of an execution in the order of its plan, with the raw answers."""
    samples = json.loads(_read_stored(app, ref).record_json)["samples"]
    return resource.slice_of(samples, read_sample, limit=limit, cursor=cursor)


@executions.get("/executions/{ref}/verify", dependencies=[Costly])
def verify_execution(app: App, ref: resource.Ref) -> VerificationView:
    """Derive everything in a record again, from the record alone, and say where it differs."""
    from heretix.measurement.verify import verify_run

    execution_id = _read_stored(app, ref).execution_id
    verified = app.cache.values.get(
        ("api verify", execution_id),
        lambda: VerificationView.model_validate(verify_run(app.cache.record(execution_id))),
    )
    return cast("VerificationView", verified)


def _read_stored(app: AppState, ref: str) -> StoredRecord:
    """Read a record by the whole id at once, else by whatever the reference fits."""
    return app.store.read(store_runs.select_record, ref) or app.store.read(
        store_runs.find_record, ref
    )


comparisons = resource.make_read_router("compare")

RefQuery = Annotated[str, Query(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)]


class ComparisonView(BaseModel):
    """The difference between two beliefs, B minus A, with its interval."""

    a: str
    b: str
    paired: bool
    difference: PairedDifference | UnpairedDifference
    paired_template_t: PairedT | None
    """By Student's t over the shared wordings; null with fewer than 2 of them."""
    paired_template_t_trimmed: PairedT | None


@comparisons.get("/compare", responses=refusals(404, 409))
def compare_runs(app: App, a: RefQuery, b: RefQuery) -> ComparisonView:
    """The difference of two runs; paired by wording where they used the same bank."""
    from heretix.measurement.verify import compare

    one, other = (app.store.read(store_runs.find_record, ref).execution_id for ref in (a, b))
    found = app.cache.values.get(
        ("api compare", one, other), lambda: compare(app.cache.record(one), app.cache.record(other))
    )
    return ComparisonView.model_validate(asdict(cast("Comparison", found)))


exports = resource.make_read_router("export")
_TURN = threading.Lock()
_MOST_REST_S = 0.5


def _in_turn(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Make one piece at a time, whoever asked, and rest for as long as it took: exports never take
    more than half a processor from those who look at pages."""
    while True:
        with _TURN:
            began = time.perf_counter()
            piece = next(pieces, None)
            took_s = time.perf_counter() - began
        if piece is None:
            return
        yield piece
        time.sleep(min(took_s, _MOST_REST_S))


@exports.get(
    "/export/{table}.{ending}",
    response_class=StreamingResponse,
    dependencies=[Costly],
    responses={200: {"content": {media: {} for media in FORMATS.values()}}, **refusals(501)},
)
def export_table(
    app: App,
    table: Literal["runs", "executions", "samples", "transfers"],
    ending: Annotated[Format, Path(description="CSV, JSON Lines, or Parquet.")],
    only: resource.Text = None,
) -> StreamingResponse:
    """A table, one row each. `only` chooses: runs by text, samples by run, transfers by episode."""
    store = app.store
    if table == "samples" and only is not None:
        only = store.read(store_runs.find_execution, only).run_id
    return StreamingResponse(
        _in_turn(export(store, table, ending, chosen=only)),
        media_type=FORMATS[ending],
        headers={
            "content-disposition": f'attachment; filename="{table}.{ending}"',
            "cache-control": "no-store",
        },
    )
