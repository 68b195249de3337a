"""The start, the search, the anomaly feed, and how the numbers are made."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Role
from heretix.core.errors import ConfigError, HeretixError, NoEstimateError
from heretix.core.lenses import RPL
from heretix.store.runs import count_runs, select_runs, select_runs_of_claim
from heretix.web.auth import require
from heretix.web.state import App
from heretix.web.templating import page

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])


@router.get("/method")
def method(
    request: Request, app: App, answers: Annotated[str, Query(max_length=4000)] = ""
) -> Response:
    """Show how the numbers are made, with answers of the reader's own if they like."""
    # Imported where it is used: no other page does the mathematics itself.
    from heretix.report.method import DEFAULT_ANSWERS, LensExample, WorkedExample, parse_answers

    problem: HeretixError | None = None
    given: tuple[tuple[float, ...], ...] = DEFAULT_ANSWERS
    try:
        if answers.strip():
            given = parse_answers(answers)
        example = app.cache.values.get(("example", given), lambda: WorkedExample.of(given))
    except (ConfigError, NoEstimateError) as exc:
        problem, given = exc, DEFAULT_ANSWERS
        example = WorkedExample.of(given)
    lenses = app.cache.values.get("lens example", lambda: LensExample.shifted(DEFAULT_ANSWERS))
    typed = answers or "\n".join(" ".join(f"{p:g}" for p in line) for line in given)
    return page(
        request, "method.html", example=example, lenses=lenses, typed=typed, problem=problem
    )


@router.get("/help")
def guide(request: Request) -> Response:
    """Show where things are, and what to do when something isn't right."""
    return page(request, "help.html")


PAGE_SIZE = 25


@router.get("/")
def home(request: Request, app: App) -> Response:
    """Show what was found, what is latest, and where to begin."""
    with app.store.snapshot():
        latest = app.store.read(select_runs, limit=8, whole=True)
        total = app.store.read(count_runs)
        anomalies = app.anomalies.read()
    return page(
        request,
        "home.html",
        latest=latest,
        total=total,
        anomalies=anomalies,
        top=anomalies.listed[:5],
    )


@router.get("/search")
def search(
    request: Request,
    app: App,
    q: Annotated[str, Query(max_length=500)] = "",
    start: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """Find runs whose claim, model or id has these words."""
    # One more than is shown says whether there is another page, for less than counting.
    words = q.strip()
    # Parts of experiments and episodes would bury the rest; their ids find them.
    found = app.store.read(
        select_runs,
        limit=PAGE_SIZE + 1,
        offset=start,
        search=words or None,
        whole=not words.startswith("heretix-"),
    )
    earlier = max(0, start - PAGE_SIZE)
    return page(
        request,
        "search.html",
        q=q,
        runs=found[:PAGE_SIZE],
        start=start,
        before=_address(q, earlier) if start else None,
        after=_address(q, start + PAGE_SIZE) if len(found) > PAGE_SIZE else None,
    )


@router.get("/claims")
def claim(
    app: App,
    text: Annotated[str, Query(max_length=10_000)] = "",
    model: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    """Lead to a claim by its words, to measuring it if nobody has, without words to the list."""
    if not text.strip():
        return RedirectResponse("/search", 303)
    found = app.store.read(select_runs_of_claim, text.strip())
    finished = [run for run in found if run.prob_true_rpl is not None and run.variant is None]
    if not finished:
        return RedirectResponse(f"/measure?{urlencode({'claim': text.strip()})}", 303)
    # The raw prior of the model that was asked for, else of any, else whatever there is.
    finished.sort(key=lambda run: (run.model != model, run.lens != RPL))
    return RedirectResponse(f"/runs/{finished[0].run_id}", 303)


@router.get("/anomalies")
def anomalies(request: Request, app: App) -> Response:
    """Show where evidence moves a model most, and what didn't pass."""
    return page(request, "anomalies.html", anomalies=app.anomalies.read())


def _address(q: str, start: int) -> str:
    given = {"q": q, "start": str(start)} if start else {"q": q}
    return f"/search?{urlencode(given)}"
