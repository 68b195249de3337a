"""HTTP connections with bounds that the server itself doesn't set: time and size of a head. A
client that sends one byte of a header now and then would hold its connection for ever, and one
whose header doesn't end would fill the memory."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from heretix.web.middleware import Limits
from heretix.web.problems import ProblemResponse, new_request_id

if TYPE_CHECKING:
    import asyncio

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
        self._refuse(400, _UNREADABLE)

    def on_headers_complete(self) -> None:
        self._head_bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering():
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _refuse(self, status: int, detail: str) -> None:
        """Say why, and hang up: where the next request begins can't be told any more."""
        request_id = new_request_id()
        headers = {"connection": "close", "x-request-id": request_id}
        problem = ProblemResponse(status, detail, headers=headers, request_id=request_id)
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
        # a method, or the type checker holds the second look for a repetition of the first.
        return self._refused

    def _is_answering(self) -> bool:
        """A request is being answered; its body has limits of its own."""
        # Before the first request there is no cycle, whatever its type says.
        return getattr(self.cycle, "response_complete", True) is False

    def _await_head(self) -> None:
        """Start the time within which the next head must come."""
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
