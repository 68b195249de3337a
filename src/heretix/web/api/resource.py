"""What resources share: routers, the identifiers they take, pages with a cursor, cached answers."""

import base64
import binascii
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import APIRouter, Path, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from heretix.errors import UsageError
from heretix.people import Role
from heretix.web.api.problem import REFUSALS
from heretix.web.desk import desk_of
from heretix.web.identity import require
from heretix.web.templating import fresh

__all__ = [
    "FOR_EVER",
    "MAX_SEQ",
    "NOT_CHANGED",
    "PREFIX",
    "Cursor",
    "Limit",
    "Page",
    "Ref",
    "Text",
    "cursor_of",
    "desk_of",
    "once_each",
    "page_of",
    "read_cursor",
    "resource",
    "slice_of",
    "unchanging",
]

PREFIX: Final = "/api/v1"
FOR_EVER: Final = "private, max-age=31536000, immutable"
NOT_CHANGED: Final[dict[int | str, dict[str, Any]]] = {
    304: {"description": "The copy that `If-None-Match` names is the present one."}
}
MAX_SEQ: Final = 2**63 - 1
"""The largest number that both databases count to."""

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


class Page(BaseModel, Generic[_Item]):
    """Some of a list. There is more behind it as long as `next` isn't null."""

    items: list[_Item]
    next: str | None = Field(description="`cursor` of the page behind this one.")


def resource(tag: str, *, role: Role = Role.READER, route: type[APIRoute] = APIRoute) -> APIRouter:
    """A router whose operations go by the names of their functions."""
    return APIRouter(
        tags=[tag],
        dependencies=[require(role)],
        responses=REFUSALS,
        route_class=route,
        generate_unique_id_function=lambda found: found.name,
    )


async def once_each(request: Request) -> None:
    """Refuse a parameter that is given twice: which one is meant can't be told."""
    given = Counter(name for name, _ in request.query_params.multi_items())
    if twice := [name for name, times in given.items() if times > 1]:
        raise UsageError(f"`{twice[0][:100]}` must be given once in a query, got it several times")


def page_of(items: Sequence[_Item], limit: int, *after: str) -> Page[_Item]:
    """A page of `limit` at most, of items read one further; `after` names the keys of the last."""
    shown = list(items[:limit])
    more = len(items) > limit
    keys = [getattr(shown[-1], name) for name in after] if more else []
    return Page(items=shown, next=cursor_of(*keys) if more else None)


def slice_of(
    found: Sequence[_Found],
    show: Callable[[_Found], _Item],
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
) -> Page[_Item]:
    """A page of a list that was read whole, because it follows from other things.

    A cursor counts from the end at which nothing is added: what is behind a page stays there.
    """
    (place,) = read_cursor(cursor, int) or (len(found) if newest_first else 0,)
    start = max(0, len(found) - place) if newest_first else place
    end = start + limit
    shown = [show(one) for one in found[start:end]]
    reached = len(found) - end if newest_first else end
    return Page(items=shown, next=cursor_of(reached) if end < len(found) else None)


def cursor_of(*keys: str | int) -> str:
    """Where a page ended, as one word."""
    return base64.urlsafe_b64encode(json.dumps(keys).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """What `cursor_of` was given; any other text is a mistake of whoever sent it."""
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
    if any(_unstorable(key) for key in keys):
        raise UsageError("`cursor` names no place in this list; begin without one")
    return tuple(keys)


def unchanging(request: Request, text: str, etag: str, *, exact: bool = True) -> Response:
    """JSON that was stored and never changes, as it was stored.

    Under its whole id it may be kept for ever; under a part of the id, which may come to fit
    something else, it must be asked for again.
    """
    content = text.encode("utf-8", "backslashreplace")
    keep = FOR_EVER if exact else "private, no-cache"
    return fresh(request, content, "application/json", etag=f'"{etag}"', cache_control=keep)


def _unstorable(key: str | int) -> bool:
    if isinstance(key, int):
        return not 0 <= key <= MAX_SEQ
    return any(character == "\0" or 0xD800 <= ord(character) < 0xE000 for character in key)
