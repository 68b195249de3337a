"""Anthropic: the Messages API, and Message Batches."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import CallTimeoutError, ProviderError
from heretix.providers import batch, http
from heretix.providers.base import ANSWER_SCHEMA, Reply, Request
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

API_VERSION: Final = "2026-10-21"
PATH: Final = "/v1/messages"

_FINISHES: Final = {
    "max_tokens": Finish.TRUNCATED,
    "model_context_window_exceeded": Finish.TRUNCATED,
    "refusal": Finish.REFUSED,
}
_CACHED_TOKENS: Final = ("cache_creation_input_tokens", "cache_read_input_tokens")
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


class AnthropicProvider(http.HttpProvider):
    """Models of Anthropic."""

    models_path = "/v1/models"

    @staticmethod
    def headers(key: str | None) -> dict[str, str]:
        """The key, and the version of the API that the bodies are written for."""
        return {"anthropic-version": API_VERSION, **http.HttpProvider.headers(key)}

    async def ask(self, request: Request) -> Reply:
        answer = await self.client.post(PATH, build_body(request))
        return read_reply(self.client.target, answer)


def build_body(request: Request) -> dict[str, Any]:
    """Write the body of one call. The API takes neither a temperature nor a seed."""
    schema = dict(request.answer_schema or ANSWER_SCHEMA)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [{"role": "user", "content": request.user}],
        "max_tokens": request.max_output_tokens,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }
    if request.system:
        body["system"] = request.system
    if request.reasoning_effort is not None:
        body["output_config"]["effort"] = request.reasoning_effort
    return body


def read_reply(target: http.Target, answer: http.HttpReply) -> Reply:
    """Read an answer."""
    body = answer.body
    if not isinstance(body.get("content"), list):
        raise http.misshapen(target, "a `content` list")
    blocks = map(http.as_object, http.as_items(body["content"]))
    texts = (
        http.as_text(block.get("text")) or "" for block in blocks if block.get("type") == "text"
    )
    usage = http.as_object(body.get("usage"))
    tokens_in = http.as_count(usage.get("input_tokens"))
    if tokens_in is not None:
        # Those that went through the prompt cache are counted apart.
        tokens_in += sum(http.as_count(usage.get(name)) or 0 for name in _CACHED_TOKENS)
    return Reply(
        text="".join(texts),
        finish=_FINISHES.get(http.as_text(body.get("stop_reason")) or "", Finish.STOP),
        provider_model_id=http.as_text(body.get("model")),
        response_id=http.as_text(body.get("id")),
        tokens_in=tokens_in,
        tokens_out=http.as_count(usage.get("output_tokens")),
        rate_limits=http.read_rate_limits(answer.headers),
    )


class AnthropicBatchProvider(batch.HttpBatchProvider, AnthropicProvider):
    """Batches of Anthropic.

    A batch can't bear a name of ours. One whose confirmation was lost is known by its size, its
    time, and in the end by the ids in its results.
    """

    limits: batch.BatchLimits = batch.BatchLimits(requests=100_000, size_bytes=32_000_000)
    """Anthropic takes 256 MB; smaller batches are easier on memory."""
    batches_path = f"{PATH}/batches"

    def encode(self, custom_id: str, request: Request) -> bytes:
        return batch.encode_entry({"custom_id": custom_id, "params": build_body(request)})

    async def submit(self, batch_id: str, entries: Sequence[bytes]) -> str:
        payload = b'{"requests":[' + b",".join(entries) + b"]}"
        with batch.marking_unconfirmed():
            answer = await self.client.post_bytes(self.batches_path, payload)
            return self._text(answer.body, "id")

    async def find(self, batch_id: str, *, size: int, since: datetime) -> list[batch.Sighting]:
        """Look for batches of that size from that time; the newest come first."""
        earliest = since - batch.CLOCK_SKEW
        latest = since + batch.SUBMISSION_WINDOW + batch.CLOCK_SKEW
        sightings: list[batch.Sighting] = []
        cursor: dict[str, str | int] = {"limit": batch.PAGE}
        while True:
            page = (await self.client.get(self.batches_path, cursor)).body
            batches = [http.as_object(item) for item in http.as_items(page.get("data"))]
            for found in batches:
                created, counts = _moment(found.get("created_at")), _counts(found)
                fits = counts is None or counts.total == size
                if fits and (created is None or earliest <= created <= latest):
                    sightings.append(
                        batch.Sighting(http.as_text(found.get("id")) or "", certain=False)
                    )
            last = http.as_text(page.get("last_id"))
            oldest = _moment(batches[-1].get("created_at")) if batches else earliest
            if not page.get("has_more") or not last or (oldest and oldest < earliest):
                return sightings
            cursor["after_id"] = last

    async def status(self, provider_batch_id: str) -> batch.BatchState:
        found = await self._get(provider_batch_id)
        status = self._text(found, "processing_status")
        archived = http.as_text(found.get("archived_at"))
        return batch.BatchState(
            status=status,
            ended=status == "ended",
            counts=_counts(found),
            expires_at=_moment(found.get("expires_at")),
            ended_at=_moment(found.get("ended_at")),
            problem=f"the results were archived on {archived}" if archived else None,
        )

    def results(self, provider_batch_id: str) -> AsyncGenerator[batch.BatchResult, None]:
        """Read all results, in any order.

        They are read from the documented path, not from `results_url`: the key goes nowhere else.
        """
        return self._results(f"{self.batches_path}/{provider_batch_id}/results")

    def _read(self, document: Mapping[str, Any]) -> Reply:
        target, result = self.client.target, http.as_object(document.get("result"))
        match result.get("type"):
            case "succeeded":
                return read_reply(
                    target, http.HttpReply(200, {}, http.as_object(result.get("message")))
                )
            case "errored":
                error = http.as_object(result.get("error"))
                kind = http.as_text(http.as_object(error.get("error")).get("type")) or ""
                status = _STATUSES.get(kind, 500)
                raise batch.error_of_status(target, status, json.dumps(error).encode())
            case "expired":
                raise CallTimeoutError(
                    f"`{target.provider}` didn't get to it before the batch expired"
                )
            case "canceled":
                raise ProviderError(
                    f"`{target.provider}` didn't get to it before the batch was ended"
                )
        raise http.misshapen(target, "a `result` of a known type in each result")


def _counts(found: Mapping[str, Any]) -> batch.BatchCounts | None:
    counts = http.as_object(found.get("request_counts"))
    processing, succeeded = (
        http.as_count(counts.get(name)) for name in ("processing", "succeeded")
    )
    if processing is None or succeeded is None:
        return None
    failed = sum(http.as_count(counts.get(name)) or 0 for name in _FAILED)
    total = processing + succeeded + failed
    return batch.BatchCounts(total=total, succeeded=succeeded, failed=failed)


def _moment(text: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(http.as_text(text) or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
