"""How the numbers are made, in plain words, with an example that is computed on the spot."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from heretix.errors import ConfigError, HeretixError, NoEstimateError
from heretix.people import Role
from heretix.web.desk import desk_of
from heretix.web.identity import require
from heretix.web.problems import status_of
from heretix.web.templating import page

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])


@router.get("/method")
def method(request: Request, answers: Annotated[str, Query(max_length=4000)] = "") -> Response:
    """The method. Whoever likes puts in answers of their own."""
    # Imported where it is used: no other page does the mathematics itself.
    from heretix.web.workedexample import DEFAULT_ANSWERS, LensExample, WorkedExample, parse_answers

    desk = desk_of(request)
    problem: HeretixError | None = None
    given: tuple[tuple[float, ...], ...] = DEFAULT_ANSWERS
    try:
        if answers.strip():
            given = parse_answers(answers)
        example = desk.shelf.kept.get(("example", given), lambda: WorkedExample.of(given))
    except (ConfigError, NoEstimateError) as exc:
        problem, given = exc, DEFAULT_ANSWERS
        example = WorkedExample.of(given)
    lenses = desk.shelf.kept.get("lens example", lambda: LensExample.shifted(DEFAULT_ANSWERS))
    typed = answers or "\n".join(" ".join(f"{p:g}" for p in line) for line in given)
    return page(
        request,
        "method.html",
        status=status_of(problem) if problem else 200,
        example=example,
        lenses=lenses,
        typed=typed,
        problem=problem,
    )


@router.get("/help")
def guide(request: Request) -> Response:
    """Where things are, and what to do when something isn't right."""
    return page(request, "help.html")
