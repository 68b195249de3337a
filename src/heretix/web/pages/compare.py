"""Several runs side by side: models, lenses, or one recipe over time."""

from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from heretix.errors import NoEstimateError, RecordError
from heretix.measurement.record import RunRecord
from heretix.people import Role
from heretix.web.desk import Desk, desk_of
from heretix.web.identity import require
from heretix.web.templating import fresh, page

if TYPE_CHECKING:
    from heretix.measurement.compare import Comparison

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])

MOST = 12
_Ref = Annotated[str, Query(max_length=120)]


@router.get("/compare")
def compare_runs(
    request: Request,
    ref: Annotated[list[str] | None, Query(max_length=40)] = None,
    drift: _Ref | None = None,
) -> Response:
    """The runs asked for; the first is what the others are compared with."""
    desk = desk_of(request)
    refs = [part for part in ref or [] if part.strip()]
    if drift:
        refs = _executions(desk, drift)
    if not refs:
        latest = desk.store.runs(whole=True)
        return page(request, "compare.html", runs=[], lines=[], drawn=(), query="", latest=latest)
    runs = _named(desk, refs)
    ids = tuple(run.execution_id for run in runs)
    lines = desk.shelf.kept.get(("compare", ids), lambda: _lines(runs))
    return page(
        request,
        "compare.html",
        runs=runs,
        lines=lines,
        drawn=_drawn(runs),
        query=urlencode([("ref", one) for one in ids]),
        latest=[],
    )


@router.get("/compare/{name}.json")
def chart(
    request: Request,
    name: Annotated[str, Path(max_length=20)],
    ref: Annotated[list[str], Query(max_length=40)],
) -> Response:
    """A chart of these runs, as the script that draws it reads it."""
    desk = desk_of(request)
    runs = _named(desk, ref)
    if name not in _drawn(runs):
        raise HTTPException(404, f"`{name}` isn't a chart of these runs")
    ids = tuple(run.execution_id for run in runs)
    content = desk.shelf.kept.get(("compare", name, ids), lambda: _chart(name, runs))
    assert isinstance(content, bytes)
    return fresh(request, content, "application/json", cache_control="private, max-age=86400")


def _named(desk: Desk, refs: list[str]) -> list[RunRecord]:
    """The records that these references mean, each once."""
    if len(refs) > MOST:
        raise RecordError(f"`ref` can name at most {MOST} runs at once, got {len(refs)}")
    ids = dict.fromkeys(desk.store.find(one).execution_id for one in refs)
    return [desk.shelf.record(execution_id) for execution_id in ids]


def _executions(desk: Desk, run_id: str) -> list[str]:
    """The finished executions of a recipe, the oldest first."""
    finished = [one for one in desk.store.executions_of(run_id) if one.status == "ok"]
    if not finished:
        raise RecordError(f"`{run_id}` has no finished execution; `/search` lists what there is")
    return [one.execution_id for one in reversed(finished[:MOST])]


def _lines(runs: list[RunRecord]) -> "list[tuple[RunRecord, Comparison | str]]":
    """Each run against the first: the difference, or why there is none."""
    from heretix.measurement.compare import compare

    first, *others = runs
    lines: list[tuple[RunRecord, Comparison | str]] = []
    for run in others:
        try:
            lines.append((run, compare(first, run)))
        except NoEstimateError as exc:
            lines.append((run, str(exc)))
    return lines


def _drawn(runs: list[RunRecord]) -> set[str]:
    """The charts that there is something for."""
    measured = [run for run in runs if run.status == "ok"]
    again = len(measured) > 1 and len({run.run_id for run in measured}) == 1
    wanted = {"comparison": bool(measured), "drift": again}
    return {name for name, there in wanted.items() if there}


def _chart(name: str, runs: list[RunRecord]) -> bytes:
    from heretix.report import charts
    from heretix.web.charts import page_chart

    measured = [run for run in runs if run.status == "ok"]
    draw = charts.drift if name == "drift" else charts.model_comparison
    return page_chart(draw(measured))
