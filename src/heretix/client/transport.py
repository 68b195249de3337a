"""How a client talks to a server: requests that are sent again when that is safe, event streams,
and refusals as the library's own errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from heretix import errors
from heretix.errors import (
    CallTimeoutError,
    ConfigError,
    ConnectionFailedError,
    HeretixError,
    RefusedError,
    ServerError,
    TooManyRequestsError,
)
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["PREFIX", "PROBLEM", "Answer", "Transport", "error_of"]

PREFIX: Final = "/api/v1"
PROBLEM: Final = "urn:heretix:problem:"
_BUSY: Final = frozenset({429, 503})
_LONGEST_PAUSE_S: Final = 30.0
_PIECE: Final = 64 * 1024
_BY_STATUS: Final[Mapping[int, type[HeretixError]]] = {
    401: errors.SignInError,
    403: errors.AccessError,
    404: errors.RecordError,
    409: errors.ConflictError,
    501: errors.MissingPartError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


class Transport:
    """One server, a connection for each request. Proxies of the environment aren't asked."""

    def __init__(
        self, url: str, token: str | None, *, timeout_s: float, tries: int, pause_s: float
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"`url` must be like http://127.0.0.1:8765, got {url!r}")
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise ConfigError("`token` must be the text that was shown when it was made")
        if tries < 1:
            raise ConfigError(f"`tries` must be at least 1, got {tries}")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._root = parts.path.rstrip("/") + PREFIX
        self._token = token
        self._timeout_s = timeout_s
        self._tries = tries
        self._pause_s = pause_s

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer:
        """Send a request, again when the connection breaks or the server is busy.

        Reads can be sent again as they are, and writes because they have a key.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        content = None
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        for attempt in range(1, self._tries + 1):
            last = attempt == self._tries
            try:
                answer = self._once(method, _target(path, query), content, headers)
            except (CallTimeoutError, ConnectionFailedError):
                if last:
                    raise
                self._rest(attempt, None)
                continue
            if answer.status < 400:
                return answer
            # After a try whose answer was lost, the first one may still be under way.
            unfinished = answer.status == 409 and key is not None and attempt > 1
            if last or not (answer.status in _BUSY or unfinished):
                raise _problem(answer)
            self._rest(attempt, answer.headers.get("retry-after"))
        raise AssertionError("the last try returns or raises")

    def pieces(self, path: str, query: Mapping[str, Any]) -> Iterator[bytes]:
        """A body as it arrives."""
        with self._talking() as connection:
            response = self._ask(connection, "GET", _target(path, query), None, {})
            if response.status >= 400:
                raise _problem(_answer(response))
            try:
                while piece := response.read(_PIECE):
                    yield piece
            except (OSError, http.client.HTTPException) as exc:
                raise ConnectionFailedError(f"`{self.url}` broke off: {exc}") from exc

    def events(
        self, path: str, *, after: int, wait_s: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """The events of a stream, taken up again where it breaks, until the last one.

        After `wait_s` seconds it is over, too.
        """
        until = math.inf if wait_s is None else time.monotonic() + wait_s
        failures = 0
        while time.monotonic() < until:
            told: float | None = None
            try:
                for event in self._stream(path, after, until):
                    failures, after = 0, int(event["seq"])
                    yield event
                    if event["ended"]:
                        return
                if self._over(path, after):
                    return
            except (CallTimeoutError, ConnectionFailedError, TooManyRequestsError) as exc:
                if time.monotonic() >= until:
                    return
                failures += 1
                if failures >= self._tries:
                    raise
                told = getattr(exc, "retry_after_s", None)
            self._rest(max(1, failures), None if told is None else f"{told:.0f}")

    def _stream(self, path: str, after: int, until: float) -> Iterator[dict[str, Any]]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        with self._talking() as connection:
            connection.connect()
            heard = connection.sock
            response = self._ask(connection, "GET", path, None, headers)
            if response.status >= 400:
                raise _problem(_answer(response))
            try:
                heard.settimeout(self._patience(until))
                for line in response:
                    heard.settimeout(self._patience(until))
                    if line.startswith(b"data:"):
                        yield json.loads(line.removeprefix(b"data:"))
            except TimeoutError as exc:
                raise CallTimeoutError(f"`{self.url}` fell silent") from exc
            except (OSError, http.client.HTTPException) as exc:
                raise ConnectionFailedError(f"`{self.url}` broke off: {exc}") from exc

    def _patience(self, until: float) -> float:
        """How long to wait for the next line."""
        return max(0.001, min(self._timeout_s, until - time.monotonic()))

    def _over(self, path: str, after: int) -> bool:
        """The stream ended by itself: because nothing will come, or because the server stopped."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        with self._talking() as connection:
            return self._ask(connection, "GET", path, None, headers).status == 204

    def _once(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        with self._talking() as connection:
            return _answer(self._ask(connection, method, target, content, headers))

    @contextlib.contextmanager
    def _talking(self) -> Iterator[http.client.HTTPConnection]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        try:
            yield connection
        except TimeoutError as exc:
            raise CallTimeoutError(
                f"`{self.url}` didn't answer within {self._timeout_s:g} s"
            ) from exc
        except (OSError, http.client.HTTPException, socket.gaierror) as exc:
            raise ConnectionFailedError(
                f"`{self.url}` can't be reached: {str(exc) or type(exc).__name__}; is it running? "
                "`heretix serve` starts one"
            ) from exc
        finally:
            connection.close()

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        content: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        sent = {"Accept": "application/json", "User-Agent": f"heretix/{VERSION}", **headers}
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        connection.request(method, self._root + target, body=content, headers=sent)
        return connection.getresponse()

    def _rest(self, attempt: int, told: str | None) -> None:
        wanted = float(told) if told is not None and told.isdigit() else 0.0
        time.sleep(min(_LONGEST_PAUSE_S, max(wanted, self._pause_s * 2 ** (attempt - 1))))


def _target(path: str, query: Mapping[str, Any] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _answer(response: http.client.HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(status=response.status, headers=headers, body=response.read())


def _problem(answer: Answer) -> HeretixError:
    """The error that a problem document stands for."""
    try:
        problem = json.loads(answer.body)
        problem["detail"]
    except (ValueError, KeyError, TypeError):
        problem = {"detail": f"the server answered {answer.status} and didn't say why"}
    return error_of(problem, answer.status, told=answer.headers.get("retry-after", "1"))


def error_of(problem: Mapping[str, Any], status: int, *, told: str = "1") -> HeretixError:
    """The error that the content of a problem document stands for; `told` is `Retry-After`."""
    detail, kind = str(problem["detail"]), str(problem.get("type", ""))
    name = f"{kind.removeprefix(PROBLEM)}Error" if kind.startswith(PROBLEM) else ""
    known = getattr(errors, name, None) if name in errors.__all__ else None
    if known is RefusedError:
        return RefusedError(detail, status=str(problem.get("reason", "refused")))
    if known is TooManyRequestsError or (known is None and status == 429):
        return TooManyRequestsError(detail, retry_after_s=float(told) if told.isdigit() else 1.0)
    if known is not None:
        error: HeretixError = known(detail)
        return error
    if status >= 500 and status not in _BY_STATUS:
        return ServerError(detail, status=status)
    return _BY_STATUS.get(status, errors.UsageError)(detail)
