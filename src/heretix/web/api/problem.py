"""Refusals as the API documents them: one form for all of them (RFC 9457)."""

from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MEDIA_TYPE", "REFUSALS", "Misfit", "Problem", "refusals"]

MEDIA_TYPE: Final = "application/problem+json"


class Misfit(BaseModel):
    """One thing that is wrong with a request."""

    where: str
    problem: str


class Problem(BaseModel):
    """Why a request was refused, and what to do."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="`urn:heretix:problem:KIND`, or `about:blank`.")
    title: str
    status: int
    detail: str
    reason: str | None = Field(
        default=None, description="Why the economy's rules refuse a move, as they enumerate it."
    )
    problems: list[Misfit] = Field(
        default=[], description="Everything that is wrong with the request, where that is known."
    )


_MEANINGS: Final = {
    400: "The request can't be read.",
    401: "Nobody knows who asks: sign in, or send a token.",
    403: "Who asks may not do that.",
    404: "There is no such thing.",
    405: "This address answers another method.",
    408: "The body didn't come in time.",
    409: "It doesn't fit what is there by now.",
    413: "The body is too large.",
    415: "The body is in another character set than UTF-8.",
    421: "The server isn't served under this name.",
    422: "Something in the request is wrong; `problems` names it.",
    429: "Too much at a time, or more than a quota; `Retry-After` says when.",
    431: "The address or the headers are too large.",
    501: "An optional part isn't installed.",
    502: "A provider failed.",
    503: "The store or a provider is busy.",
    504: "A provider didn't answer in time.",
    507: "The server has no space left.",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How an operation documents that it may refuse with these."""
    return {
        status: {
            "description": _MEANINGS.get(status, HTTPStatus(status).phrase),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


REFUSALS: Final = refusals(
    400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 422, 429, 431, 502, 503, 504, 507
)
"""What every operation may answer. Each that can do less documents no less: a client reads all
of them in one way."""
