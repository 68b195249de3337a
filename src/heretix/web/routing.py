"""Addresses beyond what the framework does with them: HEAD, a slash at the end, other methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.responses import RedirectResponse
from starlette.routing import Match

if TYPE_CHECKING:
    from starlette.routing import Router
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


class Heads:
    """A layer that answers HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; of a HEAD only the head comes back, and then nobody listens."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def head_only(message: Message) -> None:
            if message["type"] != "http.response.start":
                return
            await send(message)
            # At once: a stream that is still being made then hears that its reader has left.
            await send({"type": "http.response.body", "body": b""})

        await self._app({**scope, "method": "GET"}, receive, head_only)


class Unslashed:
    """What a router does with an address that it doesn't know: try it without slashes at its end.

    The way there names no host. The framework would take it from the request, where anybody may
    have written it.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lead on to the address that is meant, or say that there is none."""
        path = str(scope["path"]) if scope["type"] == "http" else ""
        meant = path.rstrip("/")
        # Two slashes at the beginning would make a host of what follows.
        if meant in {"", path} or meant.startswith("//") or not _leads(self._router, meant):
            await self._router.not_found(scope, receive, send)
            return
        query = scope["query_string"].decode("latin-1")
        target = quote(meant, safe="/") + (f"?{query}" if query else "")
        await RedirectResponse(target, 307)(scope, receive, send)


def methods_of(router: Router, path: str) -> list[str]:
    """The methods that an address answers, all of them: each may have a route of its own."""
    found = {method for method in _METHODS if _match(router, path, method) is Match.FULL}
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _leads(router: Router, path: str) -> bool:
    return _match(router, path, "GET") is not Match.NONE


def _match(router: Router, path: str, method: str) -> Match:
    scope = {"type": "http", "path": path, "root_path": "", "method": method, "headers": []}
    return max((route.matches(scope)[0] for route in router.routes), key=lambda m: m.value)
