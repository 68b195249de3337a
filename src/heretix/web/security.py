"""What every response says and every request must keep to: headers, hosts, sizes and times.

Pure ASGI: nothing here buffers a response, so event streams pass through as they are.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from heretix.web.problems import problem_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CSP", "Edge", "Limits", "host_name", "is_loopback_host", "same_origin"]

log = logging.getLogger("heretix.web")

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
"""Nothing from another host, nothing inline, nothing evaluated."""

_HEADERS: Final = {
    "content-security-policy": CSP,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_HSTS: Final = "max-age=31536000"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a request may bring, and how long it may take to bring it."""

    body_bytes: int = 2 * 1024 * 1024
    body_s: float = 20.0
    """From the first byte asked for to the last one given."""


def host_name(value: str) -> str | None:
    """The name in a Host header, without its port; None when it isn't one."""
    try:
        return urlsplit(f"//{value}").hostname
    except ValueError:
        return None


def is_loopback_host(value: str) -> bool:
    """A name that only this machine can mean. Another name may have been made to point here."""
    return host_name(value) in _LOOPBACK


def same_origin(headers: Headers) -> bool:
    """The request comes from a page of this server, or from no page at all.

    Browsers send `Origin` with every write, and say by `Sec-Fetch-Site` where it came from.
    """
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return False
    return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


class _TooLargeError(Exception):
    """The body has more bytes than it may."""


class _TooSlowError(Exception):
    """The body didn't come in time."""


class Edge:
    """The outermost layer: refuses what no page should see, and answers when a page failed."""

    def __init__(self, app: ASGIApp, *, loopback_only: bool, limits: Limits | None = None) -> None:
        self._app = app
        self._loopback_only = loopback_only
        self._limits = limits or Limits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, under the limits."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def dressed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _dress(MutableHeaders(raw=message["headers"]), https=scope["scheme"] == "https")
            await send(message)

        refused = self._refusal(Headers(scope=scope))
        try:
            if refused is not None:
                await problem_response(scope, *refused)(scope, receive, dressed)
                return
            await self._app(scope, _limited(receive, self._limits), dressed)
        except _TooLargeError:
            await _answer(scope, dressed, 413, self._too_large(), started=started)
        except _TooSlowError:
            text = f"the body must arrive within {self._limits.body_s:g} s; send it again"
            await _answer(scope, dressed, 408, text, started=started)
        except Exception:
            # The edge of the server: whatever a page didn't foresee ends here, once, with an id
            # that joins what the reader sees to what the log says.
            incident = secrets.token_hex(6)
            log.exception("incident %s: %s %s", incident, scope["method"], scope["path"])
            text = f"something went wrong here; the server's log has it as incident {incident}"
            await _answer(scope, dressed, 500, text, started=started)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self._loopback_only and not is_loopback_host(host):
            return 421, (
                f"`Host` must be this machine's own name (localhost, 127.0.0.1 or [::1]), "
                f"got {host!r}; without accounts no other name is served"
            )
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, f"`Content-Length` must be a whole number, got {length!r}"
        if int(length) > self._limits.body_bytes:
            return 413, self._too_large()
        return None

    def _too_large(self) -> str:
        return f"the body must have at most {self._limits.body_bytes:,} bytes; send less"


async def _answer(scope: Scope, send: Send, status: int, text: str, *, started: bool) -> None:
    if started:
        # Half a response can't be taken back; the connection ends, which a client notices.
        return
    await problem_response(scope, status, text)(scope, _nothing, send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _dress(headers: MutableHeaders, *, https: bool) -> None:
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("cache-control", "private, no-cache")
    if https:
        headers.setdefault("strict-transport-security", _HSTS)


def _limited(receive: Receive, limits: Limits) -> Receive:
    """A body of bounded size, in bounded time; waiting for the reader to leave has no bound."""
    left = limits.body_bytes
    deadline: float | None = None
    complete = False

    async def bounded() -> Message:
        nonlocal left, deadline, complete
        if complete:
            return await receive()
        now = asyncio.get_running_loop().time()
        deadline = deadline or now + limits.body_s
        try:
            async with asyncio.timeout(deadline - now):
                message = await receive()
        except TimeoutError as exc:
            raise _TooSlowError from exc
        if message["type"] == "http.request":
            left -= len(message.get("body", b""))
            if left < 0:
                raise _TooLargeError
            complete = not message.get("more_body", False)
        return message

    return bounded
