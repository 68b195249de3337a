"""Errands: measurements of episodes under way. Who began one asks here what came of it."""

from typing import Annotated, Any, Final

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from heretix.people import Role
from heretix.web.api.problem import Problem
from heretix.web.api.resource import PREFIX, desk_of, resource
from heretix.web.errands import Errand, ErrandState
from heretix.web.identity import VisitNow
from heretix.web.problems import problem_content, status_of, told_of

__all__ = ["BEGUN", "ErrandView", "router"]

router = resource("proceedings", role=Role.OPERATOR)

ErrandId = Annotated[str, Path(pattern=r"^[0-9a-f]+$", max_length=40)]

BEGUN: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "description": "It is being measured; `Location` tells how far it is.",
        "headers": {
            "Location": {
                "description": "The errand.",
                "required": True,
                "schema": {"type": "string", "format": "uri-reference"},
            },
            "Retry-After": {
                "description": "Seconds after which to ask for the first time.",
                "schema": {"type": "integer"},
            },
        },
    }
}
"""How an operation documents that it only begins something."""


class ErrandView(BaseModel):
    """A measurement of an episode, as it is now. Nothing is decided before all samples are there.

    It is known until the server ends; the episode itself shows what was decided.
    """

    id: str
    href: str = Field(description="Where to ask again.")
    title: str
    subject: str = Field(description="The claim.")
    episode: str | None = Field(description="Null until it is written down.")
    state: ErrandState
    ended: bool
    done: int = Field(description="Samples.")
    total: int = Field(description="Samples, as far as is known.")
    failed: int = Field(description="Samples that failed.")
    result: str | None = Field(description="Once it is done: where the episode is.")
    error: Problem | None = Field(description="Once it failed: why, as a refusal would say it.")

    @classmethod
    def of(cls, errand: Errand, *, at_the_machine: bool) -> "ErrandView":
        """An errand; whoever isn't at the machine isn't told where its store lies."""
        # Read once, before the rest: what is written ahead of the state is there by then.
        state = errand.state
        done = state is ErrandState.DONE
        return cls(
            id=errand.id,
            href=f"{PREFIX}/errands/{errand.id}",
            title=errand.title,
            subject=errand.subject,
            episode=errand.episode,
            state=state,
            ended=state.ended,
            done=errand.tally.done,
            total=errand.tally.total,
            failed=errand.tally.failed,
            result=f"{PREFIX}{errand.leads_to}" if done else None,
            error=_problem(errand, at_the_machine) if state is ErrandState.FAILED else None,
        )


@router.get("/errands/{errand_id}")
def get_errand(
    request: Request, response: Response, errand_id: ErrandId, visit: VisitNow
) -> ErrandView:
    """How far a measurement is: `error` says why it failed, `result` where the episode is."""
    found = ErrandView.of(desk_of(request).errands.get(errand_id), at_the_machine=visit.is_local)
    response.headers["cache-control"] = "no-store"
    if not found.ended:
        response.headers["retry-after"] = "1"
    return found


def _problem(errand: Errand, at_the_machine: bool) -> Problem:
    if errand.cause is None:
        # It wasn't foreseen, or the server was stopped: the errand itself says which.
        content = problem_content(500, errand.error or "it failed")
    else:
        told = told_of(errand.cause, at_the_machine=at_the_machine)
        content = problem_content(status_of(errand.cause), **told)
    return Problem.model_validate(content)
