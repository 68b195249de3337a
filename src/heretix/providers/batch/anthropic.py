"""Anthropic's Message Batches API.

A batch can't bear a name of ours. One whose confirmation was lost is known by its size, its time,
and in the end by the ids in its results.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import CallTimeoutError, ProviderError
from heretix.providers.anthropic import PATH, AnthropicProvider, build_body, read_reply
from heretix.providers.batch.base import (
    CLOCK_SKEW,
    SUBMISSION_WINDOW,
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
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from heretix.providers.base import Opening, Reply, Request

_PATH: Final = f"{PATH}/batches"
_PAGE: Final = 100
_FAILED: Final = ("errored", "canceled", "expired")
_STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that a single call would have ended with, by the error's type."""


def open_provider(opening: Opening) -> AnthropicBatchProvider:
    """Make the adapter ready."""
    return AnthropicBatchProvider(opening.target)


class AnthropicBatchProvider(HttpBatchProvider):
    """Batches of Anthropic."""

    limits: BatchLimits = BatchLimits(requests=100_000, size_bytes=32_000_000)
    """Anthropic takes 256 MB; smaller batches are easier on memory."""

    def encode(self, custom_id: str, request: Request) -> bytes:
        """One entry of the list."""
        return encode_entry({"custom_id": custom_id, "params": build_body(request)})

    async def submit(self, batch_id: str, entries: Sequence[bytes]) -> str:
        """Send all entries in one body."""
        payload = b'{"requests":[' + b",".join(entries) + b"]}"
        with marking_unconfirmed():
            return self._id(await self._client.post_bytes(_PATH, payload))

    async def find(self, batch_id: str, *, size: int, since: datetime) -> list[Sighting]:
        """Batches of that size from that time; the newest come first."""
        earliest, latest = since - CLOCK_SKEW, since + SUBMISSION_WINDOW + CLOCK_SKEW
        found: list[Sighting] = []
        cursor: dict[str, str | int] = {"limit": _PAGE}
        while True:
            page = (await self._client.get(_PATH, cursor)).body
            batches = [as_object(item) for item in as_items(page.get("data"))]
            for batch in batches:
                created, counts = _moment(batch.get("created_at")), _counts(batch)
                fits = counts is None or counts.total == size
                if fits and (created is None or earliest <= created <= latest):
                    found.append(Sighting(as_text(batch.get("id")) or "", certain=False))
            last = as_text(page.get("last_id"))
            oldest = _moment(batches[-1].get("created_at")) if batches else earliest
            if not page.get("has_more") or not last or (oldest and oldest < earliest):
                return found
            cursor["after_id"] = last

    async def status(self, provider_batch_id: str) -> BatchState:
        """How a batch is doing."""
        batch = (await self._client.get(f"{_PATH}/{provider_batch_id}")).body
        status = as_text(batch.get("processing_status"))
        if status is None:
            raise misshapen(self._client.target, "a `processing_status`")
        archived = as_text(batch.get("archived_at"))
        return BatchState(
            status=status,
            ended=status == "ended",
            counts=_counts(batch),
            expires_at=_moment(batch.get("expires_at")),
            ended_at=_moment(batch.get("ended_at")),
            problem=f"the results were archived on {archived}" if archived else None,
        )

    def results(self, provider_batch_id: str) -> AsyncGenerator[BatchResult, None]:
        """All results, in any order.

        They are read from the documented path, not from `results_url`: the key goes nowhere else.
        """
        return self._results(f"{_PATH}/{provider_batch_id}/results")

    async def cancel(self, provider_batch_id: str) -> None:
        """Ask for an early end."""
        await self._client.post_empty(f"{_PATH}/{provider_batch_id}/cancel")

    def headers(self, key: str | None) -> dict[str, str]:
        """As for single calls."""
        return AnthropicProvider.headers(key)

    def _read(self, document: Mapping[str, Any]) -> Reply:
        return _reply(self._client.target, as_object(document.get("result")))


def _reply(target: Target, result: Mapping[str, Any]) -> Reply:
    match result.get("type"):
        case "succeeded":
            return read_reply(target, HttpReply(200, {}, as_object(result.get("message"))))
        case "errored":
            error = as_object(result.get("error"))
            kind = as_text(as_object(error.get("error")).get("type")) or ""
            status = _STATUSES.get(kind, 500)
            raise error_of_status(target, status, json.dumps(error).encode())
        case "expired":
            raise CallTimeoutError(f"`{target.provider}` didn't get to it before the batch expired")
        case "canceled":
            raise ProviderError(f"`{target.provider}` didn't get to it before the batch was ended")
        case _:
            raise misshapen(target, "a `result` of a known type in each result")


def _counts(batch: Mapping[str, Any]) -> BatchCounts | None:
    counts = as_object(batch.get("request_counts"))
    processing, succeeded = (as_count(counts.get(name)) for name in ("processing", "succeeded"))
    if processing is None or succeeded is None:
        return None
    failed = sum(as_count(counts.get(name)) or 0 for name in _FAILED)
    return BatchCounts(total=processing + succeeded + failed, succeeded=succeeded, failed=failed)


def _moment(text: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(as_text(text) or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
