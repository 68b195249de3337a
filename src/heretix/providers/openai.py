"""OpenAI: the Responses API, and the Batch API over it."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import CallTimeoutError, ProviderError, RateLimitedError, RejectedError
from heretix.providers import batch, http
from heretix.providers.base import ANSWER_SCHEMA, Reply, Request
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

PATH: Final = "/responses"

_POLICY_CODES: Final = frozenset({"bio_policy", "misalignment_policy_violation"})
_HOPELESS_CODES: Final = frozenset({"invalid_prompt", "data_residency_mismatch"})
_ENDPOINT: Final = "/v1/responses"
_NAME: Final = "heretix_batch"
"""The key under which a batch's metadata holds our name for it."""
_SHOWN: Final = 3
_ENDED: Final = frozenset({"failed", "completed", "expired", "cancelled"})
_ENDED_AT: Final = ("completed_at", "expired_at", "cancelled_at", "failed_at")


class OpenAIProvider(http.HttpProvider):
    """Models of OpenAI."""

    async def ask(self, request: Request) -> Reply:
        answer = await self.client.post(PATH, build_body(request))
        return replace(read_reply(self.client.target, answer), temperature=request.temperature)


def build_body(request: Request) -> dict[str, Any]:
    """Write the body of one call. Nothing is stored at the provider; the API takes no seed."""
    body: dict[str, Any] = {
        "model": request.model,
        "input": request.user,
        "max_output_tokens": request.max_output_tokens,
        "text": {
            "format": {
                "type": "json_schema",
                "name": "answer",
                "schema": dict(request.answer_schema or ANSWER_SCHEMA),
                "strict": True,
            }
        },
        "store": False,
    }
    if request.system:
        body["instructions"] = request.system
    if request.reasoning_effort is not None:
        body["reasoning"] = {"effort": request.reasoning_effort}
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


def read_reply(target: http.Target, answer: http.HttpReply) -> Reply:
    """Read an answer, or raise the error that it reports."""
    body = answer.body
    error = http.as_object(body.get("error"))
    code = http.as_text(error.get("code"))
    refused = code in _POLICY_CODES
    if not refused and (body.get("status") == "failed" or error):
        failure = http.make_reported_error(target, error, answer.headers)
        if code == "rate_limit_exceeded":
            raise RateLimitedError(str(failure), status=None)
        raise RejectedError(str(failure)) if code in _HOPELESS_CODES else failure
    if not refused and not isinstance(body.get("output"), list):
        raise http.misshapen(target, "an `output` list")
    parts = list(_parts(body))
    texts = [http.as_text(p.get("text")) or "" for p in parts if p.get("type") == "output_text"]
    refusals = [http.as_text(p.get("refusal")) or "" for p in parts if p.get("type") == "refusal"]
    finish = Finish.STOP
    if body.get("status") == "incomplete":
        filtered = http.as_object(body.get("incomplete_details")).get("reason") == "content_filter"
        finish = Finish.REFUSED if filtered else Finish.TRUNCATED
    usage = http.as_object(body.get("usage"))
    return Reply(
        text="".join(texts or refusals),
        finish=Finish.REFUSED if refused or refusals else finish,
        provider_model_id=http.as_text(body.get("model")),
        response_id=http.as_text(body.get("id")),
        tokens_in=http.as_count(usage.get("input_tokens")),
        tokens_out=http.as_count(usage.get("output_tokens")),
        rate_limits=http.read_rate_limits(answer.headers),
    )


def _parts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of the answer itself: not of reasoning, nor of remarks made on the way."""
    for item in map(http.as_object, http.as_items(body.get("output"))):
        if item.get("type") == "message" and item.get("phase") != "commentary":
            yield from map(http.as_object, http.as_items(item.get("content")))


class OpenAIBatchProvider(batch.HttpBatchProvider):
    """Batches of OpenAI: a file goes up, files come down.

    A batch bears our name in its metadata, so that one whose confirmation was lost can be found.
    """

    limits: batch.BatchLimits = batch.BatchLimits(requests=50_000, size_bytes=32_000_000)
    """OpenAI takes files of 200 MB; smaller ones are easier on memory."""
    batches_path = "/batches"

    def encode(self, custom_id: str, request: Request) -> bytes:
        entry = {"custom_id": custom_id, "method": "POST", "url": _ENDPOINT}
        return batch.encode_entry({**entry, "body": build_body(request)})

    async def submit(self, batch_id: str, entries: Sequence[bytes]) -> str:
        """Upload the file, then make a batch of it. An upload alone costs nothing."""
        payload = b"".join(entry + b"\n" for entry in entries)
        uploaded = await self.client.upload(
            "/files", {"purpose": "batch"}, filename=f"{batch_id}.jsonl", payload=payload
        )
        order = {
            "completion_window": "24h",
            "endpoint": _ENDPOINT,
            "input_file_id": self._text(uploaded.body, "id"),
            "metadata": {_NAME: batch_id},
        }
        with batch.marking_unconfirmed():
            return self._text((await self.client.post("/batches", order)).body, "id")

    async def find(self, batch_id: str, *, size: int, since: datetime) -> list[batch.Sighting]:
        """Look for the batches that bear our name: one, or none."""
        earliest = (since - batch.CLOCK_SKEW).timestamp()
        cursor: dict[str, str | int] = {"limit": batch.PAGE}
        while True:
            page = (await self.client.get("/batches", cursor)).body
            batches = [http.as_object(item) for item in http.as_items(page.get("data"))]
            named = [
                batch.Sighting(identity, certain=True)
                for found in batches
                if http.as_object(found.get("metadata")).get(_NAME) == batch_id
                and (identity := http.as_text(found.get("id")))
            ]
            if named or not page.get("has_more") or _is_all_before(batches, earliest):
                return named
            cursor["after"] = http.as_text(batches[-1].get("id")) or ""

    async def status(self, provider_batch_id: str) -> batch.BatchState:
        found = await self._get(provider_batch_id)
        status = self._text(found, "status")
        names = ("total", "completed", "failed")
        numbers = http.as_object(found.get("request_counts"))
        total, completed, failed = (http.as_count(numbers.get(name)) for name in names)
        counts = None
        if total is not None and completed is not None and failed is not None:
            counts = batch.BatchCounts(total=total, succeeded=completed, failed=failed)
        ends = [_moment(found.get(name)) for name in _ENDED_AT if found.get(name)]
        return batch.BatchState(
            status=status,
            ended=status in _ENDED,
            counts=counts,
            expires_at=_moment(found.get("expires_at")),
            ended_at=next(filter(None, ends), None),
            problem=_problem(self.client.target, found) if status == "failed" else None,
        )

    async def results(self, provider_batch_id: str) -> AsyncGenerator[batch.BatchResult, None]:
        """Read what was answered, then what failed."""
        found = await self._get(provider_batch_id)
        for name in ("output_file_id", "error_file_id"):
            file_id = http.as_text(found.get(name))
            if file_id:
                async with aclosing(self._results(f"/files/{file_id}/content")) as results:
                    async for result in results:
                        yield result

    def _read(self, document: Mapping[str, Any]) -> Reply:
        target = self.client.target
        if error := http.as_object(document.get("error")):
            failure = http.make_reported_error(target, error, {})
            code = http.as_text(error.get("code"))
            if code == "batch_expired":
                raise CallTimeoutError(str(failure))
            raise ProviderError(str(failure)) if code == "batch_cancelled" else failure
        response = http.as_object(document.get("response"))
        status, body = http.as_count(response.get("status_code")), response.get("body")
        if status is None or not isinstance(body, dict):
            raise http.misshapen(target, "a `response` with a body in each result")
        if status != 200:
            raise batch.error_of_status(target, status, json.dumps(body).encode())
        return read_reply(target, http.HttpReply(200, {}, body))


def _is_all_before(batches: Sequence[Mapping[str, Any]], earliest: float) -> bool:
    """Tell whether this page and those behind it are too old to matter.

    The newest come first, though the documentation doesn't promise it: a page that runs the other
    way ends nothing, since what it hides might be paid for a second time.
    """
    if not batches:
        return True
    first, last = (http.as_count(batches[end].get("created_at")) or 0 for end in (0, -1))
    return first >= last and last < earliest


def _problem(target: http.Target, found: Mapping[str, Any]) -> str:
    errors = map(http.as_object, http.as_items(http.as_object(found.get("errors")).get("data")))
    words = [text for error in errors if (text := http.as_text(error.get("message")))]
    listed = "; ".join(dict.fromkeys(words[:_SHOWN])) or "no reason given"
    return str(http.make_reported_error(target, {"message": listed}, {}))


def _moment(value: Any) -> datetime | None:
    seconds = http.as_count(value)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
