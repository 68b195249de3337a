"""ASGI middleware, one concern each. Nothing here buffers a response, so event streams pass."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from heretix.accounts.audit import REQUEST_ID
from heretix.core import telemetry
from heretix.web.problems import new_request_id, pattern_of, problem_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("heretix.web")

CSP: Final = (  # Nothing from another host, nothing inline, nothing evaluated
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_SECURITY_HEADERS: Final = {
    "content-security-policy": CSP,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "private, no-cache",
}
_HSTS: Final = "max-age=31536000"
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""Headers by which a proxy says whom it speaks for."""
_UTF8: Final = re.compile(r';\s*charset="?utf-?8"?\s*(?:;|$)', re.IGNORECASE)
_MAX_DIGITS: Final = 15
_COMPRESSION: Final = 4  # a few per cent larger than the best, in a third of the time
_GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Size and time of a request: of its body by `BodyLimits`, of its head by the connection."""

    body_bytes: int = 2 * 1024 * 1024
    body_s: float = 20.0  # from the first byte asked for to the last one given
    head_bytes: int = 64 * 1024
    head_s: float = 20.0
    hear_out_s: float = 2.0  # for how long a client whose head was refused may go on sending


class _Middleware:
    """Wraps an app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app


class RequestIds(_Middleware):
    """Gives each request an id, the sender's own if it can be one. The answer has it, and whatever
    is written down about the request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_request_id()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        begun_s, status = time.perf_counter(), 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                headers["x-request-id"] = request_id
                if (allowance := state.get("allowance")) is not None:
                    headers["ratelimit-limit"] = str(int(allowance.limit))
                    headers["ratelimit-remaining"] = str(int(allowance.remaining))
                    headers["ratelimit-reset"] = str(math.ceil(allowance.reset_s))
            await send(message)

        before = REQUEST_ID.set(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if telemetry.watchers:
                telemetry.tell(
                    telemetry.RequestEnded(
                        request_id=request_id,
                        method=scope["method"],
                        route=pattern_of(scope) or "(none)",
                        status=status,
                        seconds=time.perf_counter() - begun_s,
                    )
                )
            REQUEST_ID.reset(before)


class SecurityHeaders(_Middleware):
    """Adds the headers that keep a browser from doing what a page doesn't need."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if scope["scheme"] == "https":
                    headers.setdefault("strict-transport-security", _HSTS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class UnhandledErrors(_Middleware):
    """Answers whatever a page didn't foresee, with the id that joins the answer to the log."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except Exception:
            if scope["type"] != "http":
                raise
            incident = scope["state"]["request_id"]
            log.exception("incident %s: %s %s", incident, scope["method"], scope["path"])
            text = f"something went wrong here; the server's log has it as incident {incident}"
            # Half a response can't be taken back; the connection ends, which a client notices.
            if not started:
                await problem_response(scope, 500, text)(scope, receive, send)


class _Gate(_Middleware):
    """A middleware that refuses requests by their head, or passes them on."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if scope["type"] == "http":
            refused = self.refuse(scope, Headers(scope=scope))
        app = self._app if refused is None else problem_response(scope, *refused)
        await app(scope, receive, send)

    def refuse(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal, or None."""
        raise NotImplementedError


class LoopbackOnly(_Gate):
    """Refuses requests for another host. It protects a server without accounts, which a name that
    was made to point here, or a proxy, must not reach."""

    def refuse(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not is_loopback_host(host):
            return 421, (
                f"`Host` must be this machine's own name (localhost, 127.0.0.1 or [::1]), "
                f"got {host!r}; without accounts no other name is served"
            )
        passed_on = next((name for name in _FORWARDED if name in headers), None)
        if passed_on is not None:
            return 421, (
                f"`{passed_on}` says that a proxy passed this on, for whoever reaches the proxy; "
                "without accounts nobody else is served: add one with `heretix users add`"
            )
        return None


class SingleHost(_Gate):
    """Refuses two hosts: a proxy before this server may go by the other one."""

    def refuse(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        count = len(headers.getlist("host"))
        return (400, f"`Host` must be given once, got it {count} times") if count > 1 else None


class NoNul(_Gate):
    """Refuses addresses with the character NUL: no database takes it, and no id or claim has it."""

    def refuse(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        if "\0" in scope["path"]:
            return 404, "the address holds a character that no address here has"
        if b"%00" in scope["query_string"]:
            return 400, "the query must not hold the character NUL; leave it out"
        return None


class Utf8Only(_Gate):
    """Refuses other character sets: some of those that a form could name take minutes to decode."""

    def refuse(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        kind = headers.get("content-type", "")
        named = kind.lower().count("charset")
        if not named or (named == 1 and _UTF8.search(kind)):
            return None
        return 415, f"`Content-Type` must have the charset utf-8 or none, got {kind[:100]!r}"


class BodyLimits(_Gate):
    """Bounds the size of a body, and the time in which it must come."""

    def __init__(self, app: ASGIApp, *, limits: Limits | None = None) -> None:
        super().__init__(app)
        self._limits = limits or Limits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The lifespan's `receive` waits for as long as the server runs: that has no bound.
        bounded = self._bound(receive) if scope["type"] == "http" else receive
        await super().__call__(scope, bounded, send)

    def refuse(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, f"`Content-Length` must be a whole number, got {length[:40]!r}"
        if len(length) > _MAX_DIGITS or int(length) > self._limits.body_bytes:
            return 413, self._explain_too_large()
        return None

    def _explain_too_large(self) -> str:
        return f"the body must have at most {self._limits.body_bytes:,} bytes; send less"

    def _bound(self, receive: Receive) -> Receive:
        """Bound the body alone: waiting for the reader to leave has no bound."""
        left = self._limits.body_bytes
        deadline: float | None = None
        complete = False

        async def receive_bounded() -> Message:
            nonlocal left, deadline, complete
            if complete:
                return await receive()
            now = asyncio.get_running_loop().time()
            deadline = deadline or now + self._limits.body_s
            try:
                async with asyncio.timeout(deadline - now):
                    message = await receive()
            except TimeoutError as exc:
                text = f"the body must arrive within {self._limits.body_s:g} s; send it again"
                raise HTTPException(408, text) from exc
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise HTTPException(413, self._explain_too_large())
                complete = not message.get("more_body", False)
            return message

        return receive_bounded


class Compression(_Middleware):
    """Compresses answers of the API, exports and files of this server for who asks for it. Never
    pages: they hold tokens beside what an address may put there, and sizes would tell of them."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._compressed = GZipMiddleware(app, 1024, _COMPRESSION)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        asked = scope["type"] == "http" and _GZIP.search(
            Headers(scope=scope).get("accept-encoding", "")
        )
        # Parquet is compressed already.
        fits = path.startswith(("/api/", "/static/")) and not path.endswith(".parquet")
        await (self._compressed if asked and fits else self._app)(scope, receive, send)


class HeadAsGet(_Middleware):
    """Answers HEAD as GET, without the body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                # At once: a stream that is still being made then hears that its reader has left.
                await send({"type": "http.response.body", "body": b""})

        asked = {**scope, "method": "GET"}
        try:
            await self._app(asked, receive, send_head)
        finally:
            scope["route"] = asked.get("route")


@lru_cache(maxsize=256)
def is_loopback_host(value: str) -> bool:
    """Say whether a `Host` names this machine and can't name another."""
    try:
        name = urlsplit(f"//{value}").hostname
        return name == "localhost" or (name is not None and ipaddress.ip_address(name).is_loopback)
    except ValueError:
        return False
