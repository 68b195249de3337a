"""Batch providers: the protocol, and the HTTP transfers that they share.

A batch costs half. It is submitted once, asked about until it has ended, and then read. Whether a
submission that got no answer was taken can't be told from the error alone, and a second one would
be paid as well: such an error is an `UnconfirmedError`, and `find` looks for what it left behind.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from heretix.core.errors import (
    ConnectionFailedError,
    ProviderError,
    RetryableError,
    ServerError,
    UnconfirmedError,
)
from heretix.providers import http

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    import aiohttp

    from heretix.providers.base import Reply, Request

CLOCK_SKEW: Final = timedelta(minutes=5)
"""Largest difference between a provider's clock and ours."""
SUBMISSION_WINDOW: Final = timedelta(minutes=15)
"""A submission that the provider hasn't made a batch of after this long never reached it."""
PAGE: Final = 100
"""Batches asked for at a time when one is looked for."""
_SLOWEST_BYTES_PER_S: Final = 250_000
"""An upload gets this much more time for its size."""
_LINE_LIMIT_BYTES: Final = 16_000_000
"""A line longer than this is no result, and isn't kept in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The largest batch that is submitted as one."""

    requests: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """Counts of a batch's requests by state, as the provider tells them."""

    total: int
    succeeded: int
    failed: int
    """Rejected, expired or cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """State of a batch."""

    status: str
    """The provider's own word for it."""
    ended: bool
    """Nothing more will come; what there is can be read."""
    counts: BatchCounts | None
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    problem: str | None = None
    """Reason why there are no results, when the batch failed as a whole."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of one request; `custom_id` is None when it can't be assigned to any."""

    custom_id: str | None
    outcome: Reply | ProviderError


@dataclass(frozen=True, slots=True)
class Sighting:
    """A batch at the provider that may be the one looked for."""

    provider_batch_id: str
    certain: bool
    """True where it bears our name. Otherwise only size and time fit, and its results decide."""


class BatchProvider(Protocol):
    """A provider that takes many requests at once and answers within a day."""

    @property
    def limits(self) -> BatchLimits:
        """The largest batch that may be submitted."""
        ...

    def encode(self, custom_id: str, request: Request) -> bytes:
        """One entry of a batch, as it is sent: its length counts against the limit."""
        ...

    async def submit(self, batch_id: str, entries: Sequence[bytes]) -> str:
        """Submit a batch under our name for it, and return the provider's.

        A `ProviderError` means that no batch was made; an `UnconfirmedError`, that one may be.
        """
        ...

    async def find(self, batch_id: str, *, size: int, since: datetime) -> list[Sighting]:
        """Batches that a submission of `size` entries, begun at `since`, may have left behind."""
        ...

    async def status(self, provider_batch_id: str) -> BatchState:
        """State of a batch."""
        ...

    def results(self, provider_batch_id: str) -> AsyncGenerator[BatchResult, None]:
        """The results of a batch that has ended, in any order."""
        ...

    async def cancel(self, provider_batch_id: str) -> None:
        """Ask for an early end. What was answered until then stays, and is paid."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


class HttpBatchProvider(http.HttpProvider, ABC):
    """Base of batches of all providers: a client, and results that come as lines of JSON."""

    client: BatchClient
    batches_path: str
    """Lists the batches; each has its id behind it."""

    def __init__(self, target: http.Target) -> None:
        self.client = BatchClient(target, self.headers(target.key))

    @abstractmethod
    def _read(self, document: Mapping[str, Any]) -> Reply:
        """One result's answer, or the error that it stands for."""

    async def cancel(self, provider_batch_id: str) -> None:
        """Ask for an early end."""
        await self.client.post_empty(f"{self.batches_path}/{provider_batch_id}/cancel")

    async def _get(self, provider_batch_id: str) -> Mapping[str, Any]:
        return (await self.client.get(f"{self.batches_path}/{provider_batch_id}")).body

    def _text(self, body: Mapping[str, Any], name: str) -> str:
        text = http.as_text(body.get(name))
        if not text:
            article = "an" if name[0] in "aeiou" else "a"
            raise http.misshapen(self.client.target, f"{article} `{name}`")
        return text

    async def _results(self, path: str) -> AsyncGenerator[BatchResult, None]:
        async with contextlib.aclosing(self.client.lines(path)) as lines:
            async for line in lines:
                yield self._result(line)

    def _result(self, line: bytes) -> BatchResult:
        document = http.as_object(http.parse_json(line))
        custom_id = http.as_text(document.get("custom_id"))
        if custom_id is None:
            lost = http.misshapen(self.client.target, "a `custom_id` in each result")
            return BatchResult(None, lost)
        try:
            return BatchResult(custom_id, self._read(document))
        except ProviderError as exc:
            return BatchResult(custom_id, exc)


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """Write an entry as one line of JSON."""
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()


@contextlib.contextmanager
def marking_unconfirmed() -> Iterator[None]:
    """Tell "refused" from "who knows", around the one call that makes a batch."""
    import aiohttp

    try:
        yield
    except RetryableError as exc:
        # Nothing was sent without a connection, and 429 is said before anything is done.
        if exc.status == 429 or isinstance(exc.__cause__, aiohttp.ClientConnectorError):
            raise
        raise UnconfirmedError(str(exc), status=exc.status) from exc


class BatchClient(http.HttpClient):
    """Transfers that batches need besides plain posts: files up, lines of results down.

    No redirect is followed and no address from an answer is called: the key goes to the base URL
    only.
    """

    async def post_empty(self, path: str) -> http.HttpReply:
        """Ask for something that needs no body."""
        return await self._send("POST", path)

    async def post_bytes(self, path: str, payload: bytes) -> http.HttpReply:
        """Send JSON that is encoded already."""
        headers, more_s = {"Content-Type": "application/json"}, _seconds_for(payload)
        return await self._send("POST", path, data=payload, headers=headers, more_s=more_s)

    async def upload(
        self, path: str, fields: Mapping[str, str], *, filename: str, payload: bytes
    ) -> http.HttpReply:
        """Send a file as a form."""
        import aiohttp

        form = aiohttp.FormData()
        for name, value in fields.items():
            form.add_field(name, value)
        form.add_field("file", payload, filename=filename, content_type="application/jsonl")
        return await self._send("POST", path, data=form, more_s=_seconds_for(payload))

    async def lines(self, path: str) -> AsyncGenerator[bytes, None]:
        """The lines of a text that may be larger than memory.

        A text that breaks off raises, rather than ending early.
        """
        import aiohttp

        url = self.target.base_url.rstrip("/") + path
        patience = aiohttp.ClientTimeout(total=None, sock_read=self.target.timeout_s)
        try:
            async with self._open().get(url, allow_redirects=False, timeout=patience) as response:
                if response.status != 200:
                    raise error_of_status(
                        self.target, response.status, await response.read(), response.headers
                    )
                async for line in _split(self.target, response.content):
                    yield line
            return
        except aiohttp.ClientResponseError as exc:
            # As in `HttpClient`: its `repr` shows the key, so it becomes no cause.
            failure = http.make_transport_error(self.target, exc)
        except (aiohttp.ClientError, OSError) as exc:
            raise http.make_transport_error(self.target, exc) from exc
        raise failure


def _seconds_for(payload: bytes) -> float:
    return len(payload) / _SLOWEST_BYTES_PER_S


def error_of_status(
    target: http.Target, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """The error that a call ends with when this comes back, and isn't what was asked for."""
    try:
        http.read_response(target, status, headers or {}, body)
    except ProviderError as exc:
        return exc
    return ServerError(f"`{target.provider}` answered {status}, which is no result", status=status)


async def _split(target: http.Target, content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    rest = bytearray()
    # Not `readline`: it refuses lines beyond the reader's buffer, which an answer may be.
    async for chunk in content.iter_any():
        rest += chunk
        if b"\n" in chunk:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                if line.strip():
                    yield line
        elif len(rest) > _LINE_LIMIT_BYTES:
            raise ServerError(
                f"`{target.provider}` must send results in lines of at most "
                f"{_LINE_LIMIT_BYTES:,} bytes, got a longer one"
            )
    if rest.strip():
        # The last line may lack its end; one that isn't JSON was cut off on the way.
        if http.parse_json(bytes(rest)) is None:
            raise ConnectionFailedError(
                f"`{target.provider}` at {target.base_url} broke off in the middle of a result; "
                "read the results again"
            )
        yield bytes(rest)
