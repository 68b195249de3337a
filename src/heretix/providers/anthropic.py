"""Anthropic's Messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    stated_limits,
)
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import Mapping

API_VERSION: Final = "2026-10-21"
PATH: Final = "/v1/messages"

_FINISHES: Final = {
    "max_tokens": Finish.TRUNCATED,
    "model_context_window_exceeded": Finish.TRUNCATED,
    "refusal": Finish.REFUSED,
}


def open_provider(opening: Opening) -> AnthropicProvider:
    """Make the adapter ready."""
    return AnthropicProvider(opening.target)


class AnthropicProvider(HttpProvider):
    """Models of Anthropic."""

    models_path = "/v1/models"

    @staticmethod
    def headers(key: str | None) -> dict[str, str]:
        """The key, and the version of the API that the bodies are written for."""
        return {"anthropic-version": API_VERSION, **HttpProvider.headers(key)}

    async def ask(self, request: Request) -> Reply:
        """Answer one request, or raise a `ProviderError`."""
        answer = await self.client.post(PATH, build_body(request))
        return read_reply(self.client.target, answer)


def build_body(request: Request) -> dict[str, Any]:
    """The body of one call. The API takes neither a temperature nor a seed."""
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


def read_reply(target: Target, answer: HttpReply) -> Reply:
    """What came back."""
    body = answer.body
    if not isinstance(body.get("content"), list):
        raise misshapen(target, "a `content` list")
    blocks = map(as_object, as_items(body["content"]))
    texts = (as_text(block.get("text")) or "" for block in blocks if block.get("type") == "text")
    usage = as_object(body.get("usage"))
    return Reply(
        text="".join(texts),
        finish=_FINISHES.get(as_text(body.get("stop_reason")) or "", Finish.STOP),
        provider_model_id=as_text(body.get("model")),
        response_id=as_text(body.get("id")),
        tokens_in=_tokens_in(usage),
        tokens_out=as_count(usage.get("output_tokens")),
        rate_limits=stated_limits(answer.headers),
    )


def _tokens_in(usage: Mapping[str, Any]) -> int | None:
    """All tokens read; those that went through the prompt cache are counted apart."""
    plain = as_count(usage.get("input_tokens"))
    if plain is None:
        return None
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return plain + sum(as_count(usage.get(name)) or 0 for name in cached)
