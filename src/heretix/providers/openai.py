"""OpenAI's Responses API."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import ProviderError, RateLimitedError, RejectedError
from heretix.providers.base import ANSWER_SCHEMA, Opening, Reply, Request
from heretix.providers.http import (
    HttpProvider,
    HttpReply,
    Target,
    as_count,
    as_items,
    as_object,
    as_text,
    misshapen,
    reported_error,
    stated_limits,
)
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PATH: Final = "/responses"

_POLICY_CODES: Final = frozenset({"bio_policy", "misalignment_policy_violation"})
_HOPELESS_CODES: Final = frozenset({"invalid_prompt", "data_residency_mismatch"})


def open_provider(opening: Opening) -> OpenAIProvider:
    """Make the adapter ready."""
    return OpenAIProvider(opening.target)


class OpenAIProvider(HttpProvider):
    """Models of OpenAI."""

    async def ask(self, request: Request) -> Reply:
        """Answer one request, or raise a `ProviderError`."""
        answer = await self.client.post(PATH, build_body(request))
        reply = read_reply(self.client.target, answer)
        return replace(reply, temperature=request.temperature)


def build_body(request: Request) -> dict[str, Any]:
    """The body of one call. Nothing is stored at the provider; the API takes no seed."""
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


def read_reply(target: Target, answer: HttpReply) -> Reply:
    """What came back, or the error that it reports."""
    body = answer.body
    error = as_object(body.get("error"))
    refused = as_text(error.get("code")) in _POLICY_CODES
    if not refused and (body.get("status") == "failed" or error):
        raise _failure(target, error, answer.headers)
    if not refused and not isinstance(body.get("output"), list):
        raise misshapen(target, "an `output` list")
    texts: list[str] = []
    refusals: list[str] = []
    for part in _parts(body):
        if part.get("type") == "output_text":
            texts.append(as_text(part.get("text")) or "")
        elif part.get("type") == "refusal":
            refusals.append(as_text(part.get("refusal")) or "")
    usage = as_object(body.get("usage"))
    return Reply(
        text="".join(texts or refusals),
        finish=Finish.REFUSED if refused or refusals else _finish(body),
        provider_model_id=as_text(body.get("model")),
        response_id=as_text(body.get("id")),
        tokens_in=as_count(usage.get("input_tokens")),
        tokens_out=as_count(usage.get("output_tokens")),
        rate_limits=stated_limits(answer.headers),
    )


def _parts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of the answer itself: not of reasoning, nor of remarks made on the way."""
    for item in map(as_object, as_items(body.get("output"))):
        if item.get("type") == "message" and item.get("phase") != "commentary":
            yield from map(as_object, as_items(item.get("content")))


def _finish(body: Mapping[str, Any]) -> Finish:
    if body.get("status") != "incomplete":
        return Finish.STOP
    reason = as_object(body.get("incomplete_details")).get("reason")
    return Finish.REFUSED if reason == "content_filter" else Finish.TRUNCATED


def _failure(target: Target, error: Mapping[str, Any], headers: Mapping[str, str]) -> ProviderError:
    failure = reported_error(target, error, headers)
    code = as_text(error.get("code"))
    if code == "rate_limit_exceeded":
        return RateLimitedError(str(failure), status=None)
    if code in _HOPELESS_CODES:
        return RejectedError(str(failure))
    return failure
