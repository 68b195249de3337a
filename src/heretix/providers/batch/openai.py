"""OpenAI's Batch API over the Responses API: a file goes up, files come down.

A batch bears our name in its metadata, so that one whose confirmation was lost can be found.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import CallTimeoutError, ProviderError
from heretix.providers.batch.base import (
    CLOCK_SKEW,
    BatchCounts,
    BatchLimits,
    BatchResult,
    BatchState,
    HttpBatchProvider,
    Sighting,
    encode_entry,
    error_of_status,
    marking_unconfirmed,
)
from heretix.providers.http import (
    HttpReply,
    Target,
    as_count,
    as_items,
    as_object,
    as_text,
    misshapen,
    reported_error,
)
from heretix.providers.openai import OpenAIProvider, build_body, read_reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from heretix.providers.base import Opening, Reply, Request

_ENDPOINT: Final = "/v1/responses"
_NAME: Final = "heretix_batch"
"""The key under which the metadata holds our name for a batch."""
_PAGE: Final = 100
_SHOWN: Final = 3
_ENDED: Final = frozenset({"failed", "completed", "expired", "cancelled"})
_ENDED_AT: Final = ("completed_at", "expired_at", "cancelled_at", "failed_at")


def open_provider(opening: Opening) -> OpenAIBatchProvider:
    """Make the adapter ready."""
    return OpenAIBatchProvider(opening.target)


class OpenAIBatchProvider(HttpBatchProvider):
    """Batches of OpenAI."""

    limits: BatchLimits = BatchLimits(requests=50_000, size_bytes=32_000_000)
    """OpenAI takes files of 200 MB; smaller ones are easier on memory."""

    def encode(self, custom_id: str, request: Request) -> bytes:
        """One line of the file."""
        body = build_body(request)
        return encode_entry(
            {"custom_id": custom_id, "method": "POST", "url": _ENDPOINT, "body": body}
        )

    async def submit(self, batch_id: str, entries: Sequence[bytes]) -> str:
        """Upload the file, then make a batch of it. An upload alone costs nothing."""
        uploaded = await self._client.upload(
            "/files",
            {"purpose": "batch"},
            filename=f"{batch_id}.jsonl",
            payload=b"".join(entry + b"\n" for entry in entries),
        )
        order = {
            "completion_window": "24h",
            "endpoint": _ENDPOINT,
            "input_file_id": self._id(uploaded),
            "metadata": {_NAME: batch_id},
        }
        with marking_unconfirmed():
            return self._id(await self._client.post("/batches", order))

    async def find(self, batch_id: str, *, size: int, since: datetime) -> list[Sighting]:
        """The batches that bear our name: one, or none."""
        earliest = (since - CLOCK_SKEW).timestamp()
        cursor: dict[str, str | int] = {"limit": _PAGE}
        while True:
            page = (await self._client.get("/batches", cursor)).body
            batches = [as_object(item) for item in as_items(page.get("data"))]
            named = [
                Sighting(identity, certain=True)
                for batch in batches
                if as_object(batch.get("metadata")).get(_NAME) == batch_id
                and (identity := as_text(batch.get("id")))
            ]
            if named or not page.get("has_more") or _all_before(batches, earliest):
                return named
            cursor["after"] = as_text(batches[-1].get("id")) or ""

    async def status(self, provider_batch_id: str) -> BatchState:
        """How a batch is doing."""
        batch = (await self._client.get(f"/batches/{provider_batch_id}")).body
        status = as_text(batch.get("status"))
        if status is None:
            raise misshapen(self._client.target, "a `status`")
        endings = (as_count(batch.get(name)) for name in _ENDED_AT)
        return BatchState(
            status=status,
            ended=status in _ENDED,
            counts=_counts(batch),
            expires_at=_moment(as_count(batch.get("expires_at"))),
            ended_at=_moment(next((ending for ending in endings if ending), None)),
            problem=_problem(self._client.target, batch) if status == "failed" else None,
        )

    async def results(self, provider_batch_id: str) -> AsyncGenerator[BatchResult, None]:
        """What was answered, then what failed."""
        batch = (await self._client.get(f"/batches/{provider_batch_id}")).body
        for name in ("output_file_id", "error_file_id"):
            file_id = as_text(batch.get(name))
            if file_id:
                async with aclosing(self._results(f"/files/{file_id}/content")) as results:
                    async for result in results:
                        yield result

    async def cancel(self, provider_batch_id: str) -> None:
        """Ask for an early end."""
        await self._client.post_empty(f"/batches/{provider_batch_id}/cancel")

    def headers(self, key: str | None) -> dict[str, str]:
        """As for single calls."""
        return OpenAIProvider.headers(key)

    def _read(self, document: Mapping[str, Any]) -> Reply:
        return _reply(self._client.target, document)


def _reply(target: Target, document: Mapping[str, Any]) -> Reply:
    if error := as_object(document.get("error")):
        failure = reported_error(target, error, {})
        match as_text(error.get("code")):
            case "batch_expired":
                raise CallTimeoutError(str(failure))
            case "batch_cancelled":
                raise ProviderError(str(failure))
            case _:
                raise failure
    response = as_object(document.get("response"))
    status, body = as_count(response.get("status_code")), response.get("body")
    if status is None or not isinstance(body, dict):
        raise misshapen(target, "a `response` with a body in each result")
    if status != 200:
        raise error_of_status(target, status, json.dumps(body).encode())
    return read_reply(target, HttpReply(200, {}, body))


def _all_before(batches: Sequence[Mapping[str, Any]], earliest: float) -> bool:
    """Whether this page and those behind it are too old to matter.

    The newest come first, though the documentation doesn't promise it: a page that runs the other
    way ends nothing, since what it hides might be paid for a second time.
    """
    if not batches:
        return True
    first, last = (as_count(batches[end].get("created_at")) or 0 for end in (0, -1))
    return first >= last and last < earliest


def _counts(batch: Mapping[str, Any]) -> BatchCounts | None:
    counts = as_object(batch.get("request_counts"))
    total, completed, failed = (
        as_count(counts.get(name)) for name in ("total", "completed", "failed")
    )
    if total is None or completed is None or failed is None:
        return None
    return BatchCounts(total=total, succeeded=completed, failed=failed)


def _problem(target: Target, batch: Mapping[str, Any]) -> str:
    errors = map(as_object, as_items(as_object(batch.get("errors")).get("data")))
    words = [text for error in errors if (text := as_text(error.get("message")))]
    listed = "; ".join(dict.fromkeys(words[:_SHOWN])) or "no reason given"
    return str(reported_error(target, {"message": listed}, {}))


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
