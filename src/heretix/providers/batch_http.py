"""The transfers that batches need besides plain posts: files up, lines of results down.

Errors are mapped as for any other call. As everywhere, no redirect is followed and no address from
an answer is called: the key goes to the base URL only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from heretix.errors import ConnectionFailedError, ProviderError, ServerError
from heretix.providers.http import (
    HttpClient,
    HttpReply,
    Target,
    as_object,
    as_text,
    read_response,
    transport_error,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

__all__ = ["BatchClient", "error_of_status", "read_line"]

_SLOWEST_BYTES_PER_S: Final = 250_000
"""An upload gets this much more time for its size."""
_LINE_LIMIT_BYTES: Final = 16_000_000
"""A line longer than this is no result, and isn't kept in memory."""


class BatchClient(HttpClient):
    """Connections to one target, for batches."""

    async def get(self, path: str, params: Mapping[str, str | int] | None = None) -> HttpReply:
        """Read a JSON object."""
        return await self._send("GET", path, params=params)

    async def post_empty(self, path: str) -> HttpReply:
        """Ask for something that needs no body."""
        return await self._send("POST", path)

    async def post_bytes(self, path: str, payload: bytes) -> HttpReply:
        """Send JSON that is encoded already."""
        return await self._send(
            "POST",
            path,
            data=payload,
            headers={"Content-Type": "application/json"},
            timeout=self._time_for(len(payload)),
        )

    async def upload(
        self, path: str, fields: Mapping[str, str], *, filename: str, payload: bytes
    ) -> HttpReply:
        """Send a file as a form."""
        form = aiohttp.FormData()
        for name, value in fields.items():
            form.add_field(name, value)
        form.add_field("file", payload, filename=filename, content_type="application/jsonl")
        return await self._send("POST", path, data=form, timeout=self._time_for(len(payload)))

    async def lines(self, path: str) -> AsyncGenerator[bytes, None]:
        """The lines of a text that may be larger than memory.

        A text that breaks off raises, rather than ending early.
        """
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
            failure = transport_error(self.target, exc)
        except (aiohttp.ClientError, OSError) as exc:
            raise transport_error(self.target, exc) from exc
        raise failure

    async def _send(self, method: str, path: str, **options: Any) -> HttpReply:
        url = self.target.base_url.rstrip("/") + path
        try:
            async with self._open().request(
                method, url, allow_redirects=False, **options
            ) as response:
                status, headers = response.status, response.headers
                payload = await response.read()
        except aiohttp.ClientResponseError as exc:
            failure = transport_error(self.target, exc)
        except (aiohttp.ClientError, OSError) as exc:
            raise transport_error(self.target, exc) from exc
        else:
            return read_response(self.target, status, headers, payload)
        raise failure

    def _time_for(self, size_bytes: int) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=self.target.timeout_s + size_bytes / _SLOWEST_BYTES_PER_S
        )


def read_line(line: bytes) -> tuple[str | None, Mapping[str, Any]]:
    """The `custom_id` and content of a result's line; no id when the line makes no sense."""
    document = as_object(_parse(line))
    return as_text(document.get("custom_id")), document


def error_of_status(
    target: Target, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """The error that a call ends with when this comes back, and isn't what was asked for."""
    try:
        read_response(target, status, headers or {}, body)
    except ProviderError as exc:
        return exc
    return ServerError(f"`{target.provider}` answered {status}, which is no result", status=status)


async def _split(target: Target, content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    rest = bytearray()
    # Not `readline`: it refuses lines beyond the reader's buffer, which an answer may be.
    async for chunk in content.iter_any():
        rest += chunk
        if b"\n" not in chunk:
            _refuse_endless(target, rest)
            continue
        *lines, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():
        # The last line may lack its end; one that isn't JSON was cut off on the way.
        if _parse(bytes(rest)) is None:
            raise ConnectionFailedError(
                f"`{target.provider}` at {target.base_url} broke off in the middle of a result; "
                "read the results again"
            )
        yield bytes(rest)


def _refuse_endless(target: Target, line: bytearray) -> None:
    if len(line) > _LINE_LIMIT_BYTES:
        raise ServerError(
            f"`{target.provider}` must send results in lines of at most "
            f"{_LINE_LIMIT_BYTES:,} bytes, got a longer one"
        )


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
