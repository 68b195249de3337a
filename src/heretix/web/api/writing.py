"""Writes: each with a key of its sender's, so that sending it again does it once.

The first answer is kept for a day and given again to whoever sends the same request under the
same key. A write that was refused changed nothing, and leaves its key free.
"""

import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from heretix.errors import UsageError
from heretix.people import Replies, Role
from heretix.people.replies import MAX_KEY_CHARS, check_key
from heretix.web.api.resource import desk_of, resource
from heretix.web.identity import arrive

__all__ = ["KEY_HEADER", "REPLAYED", "Key", "WriteRoute", "given_key", "writes"]

KEY_HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
"""Says that an answer was given before."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_Given = Annotated[
    str,
    Header(
        alias=KEY_HEADER,
        min_length=1,
        max_length=MAX_KEY_CHARS,
        pattern=r"^[ -~]+$",
        description="Chosen by the sender, such as a UUID; the same one when sending again.",
    ),
]


async def given_key(key: _Given) -> str:
    """The key of a write; every one must have it."""
    return key


Key = Annotated[str, Depends(given_key)]


class WriteRoute(APIRoute):
    """An operation that is done once for each key."""

    def get_route_handler(self) -> Handler:
        """The operation behind what is known of its key."""
        do = super().get_route_handler()

        async def once(request: Request) -> Response:
            visit = await arrive(request)
            key = request.headers.get(KEY_HEADER, "")
            if visit.person is None or not _usable(key):
                # The operation itself says what is missing.
                return await do(request)
            replies = Replies(desk_of(request).store)
            # Not of `request.url`, into which the sender's `Host` may write another path.
            scope = f"{visit.person.id} {request.method} {request.scope['path']}"
            body = await request.body()
            known = await run_in_threadpool(replies.begin, scope, key, body)
            if known is not None:
                return _located(
                    Response(
                        known.response_json.encode("utf-8", "backslashreplace"),
                        known.status,
                        headers={REPLAYED: "true"},
                        media_type="application/json",
                    )
                )
            return _located(await _done(replies, scope, key, do, request))

        return once


def _located(response: Response) -> Response:
    """What was only begun says where to ask how far it is, each time that it is answered."""
    if response.status_code == HTTPStatus.ACCEPTED:
        response.headers["location"] = json.loads(bytes(response.body))["href"]
        response.headers["retry-after"] = "1"
    return response


def _usable(key: str) -> bool:
    with suppress(UsageError):
        return bool(check_key(key))
    return False


async def _done(replies: Replies, scope: str, key: str, do: Handler, request: Request) -> Response:
    kept = False
    try:
        response = await do(request)
        if response.status_code < 400:
            text = bytes(response.body).decode()
            status = response.status_code
            await run_in_threadpool(replies.finish, scope, key, status=status, response_json=text)
            kept = True
        return response
    finally:
        if not kept:
            await run_in_threadpool(replies.abandon, scope, key)


def writes(tag: str, *, role: Role = Role.EXPLORER) -> APIRouter:
    """A router of writes."""
    router = resource(tag, role=role, route=WriteRoute)
    router.dependencies.append(Depends(given_key))
    return router
