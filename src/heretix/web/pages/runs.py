"""A measured claim: belief, evidence, wordings, samples, provenance, and its verification."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.measurement.record import Artifact, RunRecord
from heretix.people import Role
from heretix.store import ExecutionSummary
from heretix.store.executions import latest_of
from heretix.web.claim import ClaimView, claim_view, vector_artifact
from heretix.web.desk import Desk, desk_of
from heretix.web.identity import admit, require
from heretix.web.templating import fragment, fresh, page

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])

_EXECUTION = re.compile(r"exec-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUN = re.compile(r"heretix-[a-z]+-[0-9a-f]{12}")
_MOMENT = 200_000
"""Characters of a record whose page takes a few milliseconds to make."""
_EXECUTIONS = 100
"""Of a run, the newest: more than its page shows, and read in a millisecond."""
_OF_RUN = frozenset({"bootstrap", "forest"})
_OF_VECTOR = frozenset({"controls", "influence", "vector"})

Ref = Annotated[str, Path(max_length=120)]


async def run(request: Request) -> Response:
    """The page of a claim, with one run of it in focus.

    A plain route, for it is asked for most: what the framework does for other endpoints before it
    calls them would be some 7% of the time that this page takes.
    """
    await admit(request, Role.READER)
    desk, ref = desk_of(request), request.path_params["ref"]
    if desk.store.is_file:
        async with desk.turns.next():
            if (answer := _light(request, ref)) is not None:
                return answer
    return await run_in_threadpool(_run, request, ref)


router.add_route("/runs/{ref}", run, methods=["GET"])


@router.get("/runs/{ref}/samples")
def samples(request: Request, ref: Ref) -> Response:
    """Every attempt, with the answer as the model gave it."""
    desk = desk_of(request)
    execution_id, is_whole = _resolve(desk, ref)
    if not is_whole:
        return RedirectResponse(f"/runs/{execution_id}/samples", 303)
    record = desk.shelf.record(execution_id)
    groups: dict[int, list[Any]] = {}
    for sample in record.samples:
        groups.setdefault(sample.paraphrase_idx, []).append(sample)
    return page(request, "samples.html", run=record, groups=sorted(groups.items()))


@router.get("/runs/{ref}/verification")
def verification(request: Request, ref: Ref) -> Response:
    """Derive everything in the record again, and say whether it agrees."""
    from heretix.measurement.verify import verify_run

    desk = desk_of(request)
    execution_id, is_whole = _resolve(desk, ref)
    if not is_whole:
        return RedirectResponse(f"/runs/{execution_id}/verification", 303)
    record = desk.shelf.record(execution_id)
    # The stored text is verified as it stands; it can't change, so neither can the finding.
    found = desk.shelf.kept.get(("verification", execution_id), lambda: verify_run(record))
    return page(request, "verification.html", run=record, found=found)


@router.get("/runs/{ref}/artifact.json")
def artifact(request: Request, ref: Ref) -> Response:
    """The artifact of the run, to keep and to verify elsewhere."""
    from heretix.measurement.artifact import artifact_json

    desk = desk_of(request)
    execution_id, _ = _resolve(desk, ref)
    text = artifact_json(Artifact.of([desk.shelf.record(execution_id)]))
    response = fresh(request, text.encode("utf-8", "replace"), "application/json")
    response.headers["content-disposition"] = f'attachment; filename="{execution_id}.json"'
    return response


@router.get("/runs/{ref}/charts/{name}.json")
def chart(request: Request, ref: Ref, name: Annotated[str, Path(max_length=20)]) -> Response:
    """A chart of the run, as the script that draws it reads it."""
    desk = desk_of(request)
    record = desk.shelf.record(_resolve(desk, ref)[0])
    if name in _OF_RUN:
        content = desk.shelf.kept.get(
            ("chart", name, record.execution_id), lambda: _run_chart(name, record)
        )
        cache_control = "private, max-age=86400"
    elif name in _OF_VECTOR:
        view = claim_view(desk, record)
        content = desk.shelf.kept.get(
            ("chart", name, view.key), lambda: _vector_chart(name, desk, record, view)
        )
        cache_control = "private, no-cache"
    else:
        raise HTTPException(404, f"`{name}` isn't a chart of a run")
    assert isinstance(content, bytes)
    return fresh(request, content, "application/json", cache_control=cache_control)


def _light(request: Request, ref: str) -> Response | None:
    """The page, if it takes no more than a moment; None where it would keep others waiting."""
    desk = desk_of(request)
    with desk.store.at_once():
        executions = desk.store.executions_of(ref, limit=_EXECUTIONS) if _RUN.fullmatch(ref) else []
        if len(executions) == _EXECUTIONS:
            # Which one finished last may stand behind these; to find it takes all of them.
            return None
        latest = latest_of(executions)
        execution_id = latest.execution_id if latest else ref
        if not _EXECUTION.fullmatch(execution_id):
            return None
        record = desk.shelf.record_of_most(execution_id, _MOMENT)
        if record is None:
            return None
        view = claim_view(desk, record)
        if len(view.vector) > 1 and ("between", view.key) not in desk.shelf.kept:
            return None
        executions = executions or desk.store.executions_of(record.run_id, limit=_EXECUTIONS)
    return _page(request, record, view, executions)


def _run(request: Request, ref: str) -> Response:
    desk = desk_of(request)
    with desk.store.at_once():
        execution_id, is_whole = _resolve(desk, ref)
        if not is_whole:
            return RedirectResponse(f"/runs/{execution_id}", 303)
        record = desk.shelf.record(execution_id)
        view = claim_view(desk, record)
        executions = desk.store.executions_of(record.run_id, limit=_EXECUTIONS)
    return _page(request, record, view, executions)


def _page(
    request: Request, record: RunRecord, view: ClaimView, executions: Sequence[ExecutionSummary]
) -> Response:
    desk = desk_of(request)
    kept = desk.shelf.kept
    between = (
        kept.get(("between", view.key), lambda: _between(desk, record, view))
        if len(view.vector) > 1
        else None
    )
    return page(
        request,
        "run.html",
        run=record,
        view=view,
        body=kept.get(("run", record.execution_id), lambda: _body(record)),
        between=between,
        executions=executions,
    )


def _run_chart(name: str, record: RunRecord) -> bytes:
    from heretix.report import charts
    from heretix.web.charts import page_chart

    if record.diagnostics is None:
        raise HTTPException(404, f"`{record.execution_id}` has no estimate to draw")
    draw = charts.template_forest if name == "forest" else charts.bootstrap_distribution
    return page_chart(draw(record))


def _vector_chart(name: str, desk: Desk, record: RunRecord, view: ClaimView) -> bytes:
    from heretix.report import charts
    from heretix.web.charts import page_chart

    artifact = vector_artifact(desk, view)
    draw = {
        "vector": charts.belief_vector,
        "influence": charts.document_influence,
        "controls": charts.evidence_controls,
    }[name]
    return page_chart(draw(artifact, record.model))


def _resolve(desk: Desk, ref: str) -> tuple[str, bool]:
    """The execution that `ref` means, and whether `ref` is its whole id or that of its run."""
    if _EXECUTION.fullmatch(ref):
        return ref, True
    if _RUN.fullmatch(ref) and (latest := desk.store.latest_execution(ref)) is not None:
        return latest, True
    return desk.store.find(ref).execution_id, False


def _body(record: RunRecord) -> Markup:
    """What depends on the record alone: rendered once, and kept."""
    return fragment(
        "_run_body.html", run=record, charts=_charts_at(record), options=_options(record)
    )


def _between(desk: Desk, record: RunRecord, view: ClaimView) -> Markup:
    """What lies between the lenses, in words and numbers."""
    artifact = vector_artifact(desk, view)
    return fragment(
        "_between.html",
        metrics=(artifact.metrics or {}).get(record.model),
        experiments=artifact.experiments or [],
        drawn=_drawn(artifact),
        charts=_charts_at(record),
    )


def _charts_at(record: RunRecord) -> str:
    return f"/runs/{record.execution_id}/charts/"


def _drawn(artifact: Artifact) -> set[str]:
    """The charts of experiments that there is something for."""
    left_out = [found.variant.startswith("without:") for found in artifact.experiments or []]
    wanted = {"influence": any(left_out), "controls": not all(left_out)}
    return {name for name, there in wanted.items() if there}


def _options(record: RunRecord) -> str:
    sent = record.options.model_dump(exclude_none=True)
    return json.dumps(sent, ensure_ascii=False)
