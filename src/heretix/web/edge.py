"""The edge: connections, addresses, headers, hosts, sizes and times of every request."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from heretix.web.problems import ProblemResponse, problem_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What every response says and every request must keep to: headers, hosts, sizes and times.
#
# Pure ASGI: nothing here buffers a response, so event streams pass through as they are.

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
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""What a proxy says of whom it speaks for."""
_UTF8: Final = re.compile(r';\s*charset="?utf-?8"?\s*(?:;|$)', re.IGNORECASE)
_MAX_DIGITS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a request may bring, and how long it may take to bring it."""

    body_bytes: int = 2 * 1024 * 1024
    body_s: float = 20.0
    """From the first byte asked for to the last one given."""
    head_bytes: int = 64 * 1024
    """Of a request before its body; `heretix.web.edge` keeps this and what follows."""
    head_s: float = 20.0
    hear_out_s: float = 2.0
    """For how long a client whose head was refused may go on sending."""


def host_name(value: str) -> str | None:
    """The name in a Host header, without its port; None when it isn't one."""
    try:
        return urlsplit(f"//{value}").hostname
    except ValueError:
        return None


@lru_cache(maxsize=256)
def is_loopback_host(value: str) -> bool:
    """A name that only this machine can mean. Another name may have been made to point here."""
    name = host_name(value)
    if name is None or name == "localhost":
        return name is not None
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def same_origin(headers: Headers) -> bool:
    """The request comes from a page of this server, or from no page at all.

    Browsers send `Origin` with every write, and say by `Sec-Fetch-Site` where it came from.
    """
    origin = headers.get("origin")
    if origin is not None and _place(origin) != headers.get("host", "").lower():
        return False
    return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


def _place(origin: str) -> str | None:
    """Host and port of an origin; None for one that isn't any, such as `null`."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


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

        try:
            refused = self._refusal(scope, Headers(scope=scope))
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

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        if self._loopback_only and (refused := _from_elsewhere(headers)) is not None:
            return 421, refused
        if (refused_address := _unusable(scope)) is not None:
            return refused_address
        kind = headers.get("content-type", "")
        if "charset" in kind.lower() and not _is_utf8(kind):
            # Some of the character sets that a form could name take minutes to decode.
            return 415, f"`Content-Type` must have the charset utf-8 or none, got {kind[:100]!r}"
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, f"`Content-Length` must be a whole number, got {length[:40]!r}"
        if len(length) > _MAX_DIGITS or int(length) > self._limits.body_bytes:
            return 413, self._too_large()
        return None

    def _too_large(self) -> str:
        return f"the body must have at most {self._limits.body_bytes:,} bytes; send less"


def _from_elsewhere(headers: Headers) -> str | None:
    """Why a request doesn't come from this machine; None when it does, as far as can be told."""
    host = headers.get("host", "")
    if not is_loopback_host(host):
        return (
            f"`Host` must be this machine's own name (localhost, 127.0.0.1 or [::1]), "
            f"got {host!r}; without accounts no other name is served"
        )
    passed_on = next((name for name in _FORWARDED if name in headers), None)
    if passed_on is not None:
        return (
            f"`{passed_on}` says that a proxy passed this on, for whoever reaches the proxy; "
            "without accounts nobody else is served: add one with `heretix users add`"
        )
    return None


def _unusable(scope: Scope) -> tuple[int, str] | None:
    """No database takes the character NUL, and no id, claim or name has it."""
    if "\0" in scope["path"]:
        return 404, "the address holds a character that no address here has"
    if b"%00" in scope["query_string"]:
        return 400, "the query must not hold the character NUL; leave it out"
    return None


def _is_utf8(kind: str) -> bool:
    return kind.lower().count("charset") == 1 and _UTF8.search(kind) is not None


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


# Connections with bounds that the server itself doesn't set: how long and how large a head may be.
#
# A client that sends one byte of a header now and then would hold its connection for ever, and one
# whose header doesn't end would fill the memory.

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
else:
    Protocol = AutoHTTPProtocol


_UNREADABLE: Final = (
    "what was sent can't be read as HTTP, or its address is longer than 65,535 bytes; send it anew"
)
_COUNTS: Final = hasattr(AutoHTTPProtocol, "on_headers_complete")
"""The quick parser reads heads of any size; the other one has a limit of its own."""


class BoundedConnection(Protocol):
    """The server's protocol for HTTP; it ends a connection whose next head doesn't come."""

    limits: ClassVar[Limits] = Limits()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0
        self._in_body = False
        self._refused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connected, and has to say what they want."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Count what comes before a head is whole."""
        if self._is_refused():
            return
        # What is left of a body that was refused before it was read is no head.
        is_head = _COUNTS and not self._in_body
        super().data_received(data)
        if self._is_refused():
            return
        if self._is_answering():
            self._forget()
            return
        if is_head and not self._in_body:
            self._head_bytes += len(data)
        if self._head_bytes > self.limits.head_bytes and not self.transport.is_closing():
            self._refuse(431, f"a head must have at most {self.limits.head_bytes:,} bytes")
        self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what can't be read as every other refusal is told."""
        self._refuse(400, _UNREADABLE)

    def on_headers_complete(self) -> None:
        """A head was read whole."""
        self._head_bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """So was its body; the next head may come."""
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """It was answered; the next head may come."""
        super().on_response_complete()
        if not self._is_answering():
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """They left."""
        self._forget()
        super().connection_lost(exc)

    def _refuse(self, status: int, detail: str) -> None:
        """Say why, and hang up: where the next request begins can't be told any more."""
        problem = ProblemResponse(status, detail, headers={"connection": "close"})
        lines = [b"%s: %s\r\n" % header for header in problem.raw_headers]
        status_line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        self.transport.write(b"".join([status_line, *lines, b"\r\n", bytes(problem.body)]))
        self._forget()
        if self._is_answering():
            self.transport.close()
            return
        # Hung up at once, a client that is still sending would lose the answer as well: what comes
        # is thrown away until it has heard.
        self._refused = True
        self.transport.write_eof()
        self._deadline = self.loop.call_later(self.limits.hear_out_s, self._give_up)

    def _is_refused(self) -> bool:
        """Whatever still comes is thrown away."""
        return self._refused

    def _is_answering(self) -> bool:
        """A request is being answered; its body has limits of its own."""
        # Before the first request there is no cycle, whatever its type says.
        return getattr(self.cycle, "response_complete", True) is False

    def _await_head(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.limits.head_s, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()
