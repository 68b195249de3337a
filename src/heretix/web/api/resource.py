"""Resources: routers, identifiers, pages with a cursor, cached answers, and idempotent writes."""

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Replies, Role
from heretix.accounts.limits import MAX_KEY_CHARS, check_key
from heretix.core.errors import UsageError
from heretix.core.yaml_lines import hint
from heretix.web.auth import identify_visitor, require
from heretix.web.problems import operation_of, refusals
from heretix.web.state import app_state
from heretix.web.templating import send_with_etag

FOR_EVER: Final = "private, max-age=31536000, immutable"
NOT_CHANGED: Final[dict[int | str, dict[str, Any]]] = {
    304: {"description": "The copy that `If-None-Match` names is the present one."}
}
MAX_SEQ: Final = 2**63 - 1  # the largest number that both databases count to

# What no database takes, and no id or claim has: a character of no meaning to any search.
_NO_NUL: Final = r"^[^\x00]*$"

Ref = Annotated[
    str,
    Path(
        pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$",
        max_length=100,
        description="An id, or as much of its beginning as fits nothing else.",
    ),
]
Text = Annotated[str | None, Query(max_length=2_000, pattern=_NO_NUL)]
Limit = Annotated[int, Query(ge=1, le=500, description="At most this many.")]
Cursor = Annotated[
    str | None,
    Query(max_length=2_000, description="`next` of the page before; the first page has none."),
]

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_NEXT: Final = re.compile(rb'"next":"([\w-]+)"(?:,"complete":(?:true|false))?\}$', re.ASCII)
"""Cursor at the end of a page's text: reading all of it again would take as long as making it."""


class View(BaseModel):
    """A record as the API shows it, read from its attributes."""

    model_config = ConfigDict(from_attributes=True)


class Page(BaseModel, Generic[_Item]):
    """Some of a list. There is more behind it as long as `next` isn't null."""

    items: list[_Item]
    next: str | None = Field(description="`cursor` of the page behind this one.")


class ReadRoute(APIRoute):
    """An operation whose pages also tell by `Link` where the next one and the first one are."""

    def get_route_handler(self) -> Handler:
        """Put the addresses beside the cursor."""
        do = super().get_route_handler()
        model = self.response_model
        if not (isinstance(model, type) and issubclass(model, Page)):
            return do

        async def link(request: Request) -> Response:
            response = await do(request)
            kept = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
            path = quote(request.scope["path"])
            cursor = _NEXT.search(bytes(response.body))
            following = [("next", [*kept, ("cursor", cursor[1].decode())])] if cursor else []
            links = [
                f'<{path}{"?" if query else ""}{urlencode(query)}>; rel="{rel}"'
                for rel, query in (*following, ("first", kept))
            ]
            response.headers["link"] = ", ".join(links)
            return response

        return link


def make_read_router(
    tag: str, *, role: Role = Role.READER, route: type[APIRoute] = ReadRoute
) -> APIRouter:
    """Make a router whose operations go by the names of their functions."""
    return APIRouter(
        tags=[tag],
        # Who asks comes first: strangers are told nothing else.
        dependencies=[require(role), Depends(check_query)],
        responses=refusals(403) if role > Role.READER else None,
        route_class=route,
        generate_unique_id_function=lambda found: found.name,
    )


async def check_query(request: Request) -> None:
    """Refuse a parameter that nobody knows, and one that is given twice: which is meant can't be
    told."""
    given = Counter(name for name, _ in request.query_params.multi_items())
    if twice := [name for name, times in given.items() if times > 1]:
        raise UsageError(f"`{twice[0][:100]}` must be given once in a query, got it several times")
    if given:
        known = [
            one["name"]
            for one in operation_of(request).get("parameters", ())
            if one["in"] == "query"
        ]
        for name in given.keys() - known:
            raise UsageError(f"unknown parameter `{name[:100]}`{hint(name[:100], known)}")


def page_of(
    found: Sequence[_Found],
    limit: int,
    after: Callable[[_Found], tuple[str | int, ...]],
    show: Callable[[_Found], _Item],
) -> Page[_Item]:
    """Make a page of `limit` at most, of a list read one further; `after` keys its last one."""
    more = len(found) > limit
    following = cursor_of(*after(found[limit - 1])) if more else None
    return Page(items=[show(one) for one in found[:limit]], next=following)


def slice_of(
    found: Sequence[_Found],
    show: Callable[[_Found], _Item],
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
) -> Page[_Item]:
    """Make a page of a list that was read whole, because it follows from other things. A cursor
    counts from the end at which nothing is added: what is behind a page stays there."""
    (place,) = read_cursor(cursor, int) or (len(found) if newest_first else 0,)
    start = max(0, len(found) - place) if newest_first else place
    end = start + limit
    shown = [show(one) for one in found[start:end]]
    reached = len(found) - end if newest_first else end
    return Page(items=shown, next=cursor_of(reached) if end < len(found) else None)


def cursor_of(*keys: str | int) -> str:
    """Write where a page ended, as one word."""
    return base64.urlsafe_b64encode(json.dumps(keys).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *kinds: type) -> Any:
    """Read the keys of a cursor, None without one; any other text is its sender's mistake."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        keys = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        keys = None
    fits = isinstance(keys, list) and len(keys) == len(kinds)
    if not fits or not all(type(k) is kind for k, kind in zip(keys, kinds, strict=True)):
        raise UsageError("`cursor` must be the `next` of a page of this list; begin without one")
    if not all(0 <= k <= MAX_SEQ if isinstance(k, int) else _is_storable(k) for k in keys):
        raise UsageError("`cursor` names no place in this list; begin without one")
    return tuple(keys)


def send_unchanging(request: Request, text: str, etag: str, *, exact: bool = True) -> Response:
    """Send JSON that was stored and never changes, as it was stored. Under its whole id it may be
    kept for ever; under a part of the id, which may come to fit something else, it must be asked
    for again."""
    content = text.encode("utf-8", "backslashreplace")
    keep = FOR_EVER if exact else "private, no-cache"
    return send_with_etag(
        request, content, "application/json", etag=f'"{etag}"', cache_control=keep
    )


def _is_storable(key: str) -> bool:
    return not any(character == "\0" or 0xD800 <= ord(character) < 0xE000 for character in key)


# Writes have a key of their sender's: the first answer is kept for a day and given again to whoever
# sends the same request under the same key. One that was refused leaves its key free.

KEY_HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"  # says that an answer was given before

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


async def require_key(key: _Given) -> str:
    """Require the key of a write."""
    return key


Key = Annotated[str, Depends(require_key)]


class WriteRoute(APIRoute):
    """An operation that is done once for each key."""

    def get_route_handler(self) -> Handler:
        """Put the operation behind what is known of its key."""
        do = super().get_route_handler()

        async def once(request: Request) -> Response:
            visit = await identify_visitor(request)
            key = request.headers.get(KEY_HEADER, "")
            try:
                check_key(key)
            except UsageError:
                key = ""
            if visit.person is None or not key:
                # The operation itself says what is missing.
                return await do(request)
            replies = Replies(app_state(request).store)
            # Not of `request.url`, into which the sender's `Host` may write another path.
            scope = f"{visit.person.id} {request.method} {request.scope['path']}"
            body = await request.body()
            known = await run_in_threadpool(replies.begin, scope, key, body)
            if known is not None:
                return _add_location(
                    Response(
                        known.response_json.encode("utf-8", "backslashreplace"),
                        known.status,
                        headers={REPLAYED: "true"},
                        media_type="application/json",
                    )
                )
            kept = False
            try:
                response = await do(request)
                if (status := response.status_code) < 400:
                    text = bytes(response.body).decode()
                    finish = partial(replies.finish, status=status, response_json=text)
                    await run_in_threadpool(finish, scope, key)
                    kept = True
                return _add_location(response)
            finally:
                if not kept:
                    await run_in_threadpool(replies.abandon, scope, key)

        return once


def _add_location(response: Response) -> Response:
    """Say where to ask how far it is of what was only begun, each time that it is answered."""
    if response.status_code == HTTPStatus.ACCEPTED:
        response.headers["location"] = json.loads(bytes(response.body))["href"]
        response.headers["retry-after"] = "1"
    return response


def make_write_router(tag: str, *, role: Role = Role.EXPLORER) -> APIRouter:
    """Make a router of writes."""
    router = make_read_router(tag, role=role, route=WriteRoute)
    router.dependencies.append(Depends(require_key))
    return router
