"""Errors as readers see them: a problem document for programs (RFC 9457), a page for people."""

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.types import Scope

from heretix.core import errors
from heretix.core.errors import HeretixError
from heretix.core.validation import explain
from heretix.web.templating import fragment

PREFIX: Final = "/api/v1"
MEDIA_TYPE: Final = "application/problem+json"


class Misfit(BaseModel):
    """One thing that is wrong with a request."""

    where: str
    problem: str


class Problem(BaseModel):
    """Reason why a request was refused, and what to do."""

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
    request_id: str | None = Field(default=None, description="`X-Request-ID` of this answer.")


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
    """Document that an operation may refuse with these."""
    return {
        str(status): {
            "description": _MEANINGS.get(status, HTTPStatus(status).phrase),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


_ALWAYS: Final = (400, 401, 421, 422, 429, 431, 503, 507)
_OF_WRITES: Final = (403, 408, 409, 413, 415)


def refusals_of(method: str, path: str) -> dict[int | str, dict[str, Any]]:
    """Document what every operation with such a method and address may refuse; what else one may
    answer, it declares itself."""
    writes = () if method in {"get", "head"} else _OF_WRITES
    return refusals(*_ALWAYS, *writes, *((404,) if "{" in path else ()))


log = logging.getLogger("heretix.web")
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

# By the name of the error; one that isn't here has the status of what it is a kind of.
STATUS: Final[Mapping[str, int]] = {
    "HeretixError": 500,
    "UsageError": 422,
    "RecordError": 404,
    "MissingPartError": 501,
    "AccessError": 403,
    "SignInError": 401,
    "ConflictError": 409,
    "QuotaError": 429,
    "TooManyRequestsError": 429,
    "RefusedError": 409,
    "NoEstimateError": 409,
    "InsufficientEvidenceError": 409,
    "BatchPendingError": 409,
    "BudgetReachedError": 409,
    "ProviderError": 502,
    "RateLimitedError": 503,
    "CallTimeoutError": 504,
    "StoppedError": 503,
    "ClusterError": 503,
    "StoreError": 503,
    "StoreFullError": 507,
}

_SECRETS: Final = frozenset({"password", "old", "new"})
"""Fields of forms in which passwords are typed: what stands there is repeated nowhere."""

_FORMS: Final = re.compile(r"(/(?:jobs|episodes)/[\w-]+|/measure|/account|/profile)/", re.ASCII)
"""Pages whose forms send to addresses below them."""

_REMEDIES: Final[Mapping[int, str]] = {
    401: "Sign in and try again.",
    403: "Ask an operator of this server for the role that it needs.",
    404: "Search for it, or go back to the start.",
    405: "This address answers another method.",
    409: "Look at its present state, then decide again.",
    413: "Send less at once.",
    422: "Correct what is named above and try again.",
    429: "Wait a moment and try again.",
    500: "Try again; if it stays, give the operator the incident's number.",
    502: "The provider failed. Try again in a while.",
    503: "Try again in a moment.",
    507: "The server has no space left; tell its operator.",
}


class ProblemResponse(Response):
    """A problem document (RFC 9457), as a program reads it."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        content = {
            "type": f"urn:heretix:problem:{kind}" if kind else "about:blank",
            "title": _phrase(status),
            "status": status,
            "detail": detail,
            **more,
        }
        text = json.dumps(content, ensure_ascii=False, default=str)
        # Half a surrogate pair in a message must not become a second error.
        super().__init__(text.encode("utf-8", "replace"), status, headers=headers)


def new_request_id() -> str:
    """Make an id for a request that brought none."""
    return secrets.token_hex(8)


def status_of(error: HeretixError) -> int:
    """Find the HTTP status of an error, by what kind it is."""
    for kind in type(error).__mro__:
        if (status := STATUS.get(kind.__name__)) is not None:
            return status
    raise AssertionError("every error is a HeretixError")


def problem_response(
    scope: Scope, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """Refuse in the form that suits who asked: /api speaks JSON, everything else HTML."""
    if _wants_json(scope):
        request_id = scope.get("state", {}).get("request_id")
        return ProblemResponse(status, detail, headers=headers, **more, request_id=request_id)
    # The page that a refused form belongs to shows how things stand by now.
    form = _FORMS.match(scope["path"]) if scope["method"] == "POST" and status != 404 else None
    page = fragment(
        "problem.html",
        status=status,
        title=_phrase(status),
        detail=detail,
        remedy=_REMEDIES.get(status),
        back=form[1] if form else None,
    )
    # Half a surrogate pair in a message must not become a second error.
    content = page.encode("utf-8", "replace")
    return Response(content, status, headers=headers, media_type="text/html")


def _wants_json(scope: Scope) -> bool:
    # A program that reads metrics would take the page to sign in for an answer.
    return str(scope["path"]).startswith("/api/") or scope["path"] == "/metrics"


def install(app: FastAPI) -> None:
    """Teach an app how to answer what its endpoints raise."""
    app.add_exception_handler(HeretixError, _on_heretix_error)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _on_http_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _on_invalid)  # type: ignore[arg-type]


_UNREADABLE: Final = "There was an error parsing the body"
"""Words of the framework for a body that its decoder gave up on."""


async def _on_heretix_error(request: Request, error: HeretixError) -> Response:
    status, headers, more = status_of(error), {}, {}
    if status == 401 and not _wants_json(request.scope) and request.method == "GET":
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        way = f"/sign-in?next={quote(target, safe='')}"
        return Response(status_code=303, headers={"location": way})
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(retry_after_s)))
    elif isinstance(error, errors.StoreBusyError | errors.RateLimitedError):
        headers["retry-after"] = "1"
    detail, visit = str(error), getattr(request.state, "visit", None)
    if isinstance(error, errors.StoreError) and not (visit and visit.is_local):
        # It says where the store lies, which is nobody's business who isn't at the machine.
        log.warning("%s", error)
        detail = "the store can't be used at this moment; the server's log says why"
    if isinstance(error, errors.RefusedError):
        more["reason"] = error.status
    kind = type(error).__name__.removesuffix("Error")
    return problem_response(request.scope, status, detail, kind=kind, headers=headers, **more)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    detail = str(error.detail)
    if error.status_code == 404 and detail == _phrase(404):
        detail = f"`{request.url.path}` leads nowhere"
    if error.status_code == 400 and detail == _UNREADABLE:
        detail = (
            "the body isn't JSON in UTF-8 that can be read here: packed, nested too deep, or with "
            "a number of too many digits"
        )
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # The framework names those of the first route of this address, and there may be more.
        router, path = request.app.router, str(request.scope["path"])
        found = {method for method in _METHODS if match_route(router, path, method) is Match.FULL}
        allowed = ", ".join(sorted(found | {"HEAD"} if "GET" in found else found))
        headers = {**(headers or {}), "Allow": allowed}
        detail = f"`{request.method}` isn't taken at this address; it takes {allowed}"
    return problem_response(request.scope, error.status_code, detail, headers=headers)


async def _on_invalid(request: Request, error: RequestValidationError) -> Response:
    known = _keys_of_body(request)
    problems = [
        {
            "where": ".".join(str(part) for part in found["loc"]),
            "problem": _misfit(found, known),
        }
        for found in error.errors()
    ]
    # a header that several parts of an endpoint ask for is missing once.
    problems = [found for index, found in enumerate(problems) if found not in problems[:index]]
    detail = "; ".join(found["problem"] for found in problems)
    return problem_response(
        request.scope, 422, detail or "the request isn't valid", kind="Invalid", problems=problems
    )


def _misfit(found: Any, known: Sequence[str]) -> str:
    """Say what is wrong with one part of a request, as a configuration's reader would."""
    kind, (_, *place) = found["type"], found["loc"]
    if kind == "json_invalid":
        return f"the body isn't JSON: {found['ctx']['error']}, at character {place[-1]}"
    if not place and isinstance(found["input"], bytes):
        return "the body must be JSON, sent with `Content-Type: application/json`"
    if not place and kind != "value_error":
        place = ["body"]
    if place and place[-1] in _SECRETS:
        return explain({**found, "loc": place}).partition(", got ")[0]
    return explain({**found, "loc": place}, known if len(place) == 1 else ())


def pattern_of(scope: Scope) -> str | None:
    """Find the address that a request was routed by, such as `/api/v1/runs/{ref}`; None: none."""
    path: str | None = getattr(scope.get("route"), "path", None)
    # A route may only know how it is called within its router.
    if path is not None and scope["path"].startswith(f"{PREFIX}/") and PREFIX not in path:
        return PREFIX + path
    return path


def operation_of(request: Request) -> Mapping[str, Any]:
    """Look up the description of the operation that answers a request; a page has none."""
    operations = request.app.openapi()["paths"].get(pattern_of(request.scope), {})
    found: Mapping[str, Any] = operations.get(request.method.lower(), {})
    return found


def _keys_of_body(request: Request) -> tuple[str, ...]:
    """Names that the body of a request may hold, for hints."""
    content = operation_of(request).get("requestBody", {}).get("content", {})
    schema = json.dumps(content.get("application/json", {}).get("schema", {}))
    named = re.search(r'"#/components/schemas/(\w+)"', schema)
    if named is None:
        return ()
    return tuple(request.app.openapi()["components"]["schemas"][named[1]].get("properties", ()))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def match_route(router: Router, path: str, method: str) -> Match:
    """Say how well the best route of a router fits an address."""
    scope = {"type": "http", "path": path, "root_path": "", "method": method, "headers": []}
    return max((route.matches(scope)[0] for route in router.routes), key=lambda m: m.value)
