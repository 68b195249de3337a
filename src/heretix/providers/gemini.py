"""Google's Gemini API, method `generateContent`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from heretix.core.errors import RejectedError
from heretix.providers import http
from heretix.providers.base import ANSWER_SCHEMA, Reply, Request
from heretix.readouts import (
    SAMPLED,
    TOP_LOGPROBS,
    TRUTH_TOKEN,
    Logprob,
    dump_logprobs,
    follow_path,
    read_top,
)
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import Mapping

_BUDGETED_MODELS: Final = "gemini-2.5"
_BUDGETS: Final[Mapping[str, int]] = {
    "none": 0,
    "minimal": 1024,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
}
"""Thinking tokens for each effort, as in Google's own table for OpenAI-compatible clients."""

_REFUSED: Final = ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")
_FINISHES: Final[Mapping[str | None, Finish]] = {
    **dict.fromkeys(("MAX_TOKENS", "CONTINUATION"), Finish.TRUNCATED),
    **dict.fromkeys(_REFUSED, Finish.REFUSED),
}


class GeminiProvider(http.HttpProvider):
    """Models of Google, by way of the Gemini API."""

    @staticmethod
    def headers(key: str | None) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    async def ask(self, request: Request) -> Reply:
        answer = await self.client.post(path_of(request.model), build_body(request))
        reply = replace(read_reply(self.client.target, answer), temperature=request.temperature)
        if request.readout == SAMPLED or reply.finish is Finish.REFUSED:
            return reply
        path = _read_path(self.client.target, answer)
        logprobs = path[0][1] if request.readout == TRUTH_TOKEN else follow_path(path)
        return replace(reply, text=dump_logprobs(request.readout, logprobs), finish=Finish.STOP)


def path_of(model: str) -> str:
    """The method's path; a name may say its own collection (`tunedModels/mine`)."""
    name = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
    return f"/{quote(name)}:generateContent"


def build_body(request: Request) -> dict[str, Any]:
    """The body of one call. No seed is sent: it is honoured at best now and then."""
    config: dict[str, Any] = {
        "maxOutputTokens": request.max_output_tokens,
        "responseMimeType": "application/json",
        "responseJsonSchema": dict(request.answer_schema or ANSWER_SCHEMA),
    }
    if request.readout == TRUTH_TOKEN:
        config = {"maxOutputTokens": request.max_output_tokens}
    if request.readout != SAMPLED:
        config |= {"responseLogprobs": True, "logprobs": TOP_LOGPROBS}
    if request.temperature is not None:
        config["temperature"] = request.temperature
    if request.reasoning_effort is not None:
        config["thinkingConfig"] = _thinking(request.model, request.reasoning_effort)
    body: dict[str, Any] = {"contents": [_content(request.user)], "generationConfig": config}
    if request.system:
        body["systemInstruction"] = _content(request.system)
    return body


def read_reply(target: http.Target, answer: http.HttpReply) -> Reply:
    """The reply."""
    body = answer.body
    blocked = "blockReason" in http.as_object(body.get("promptFeedback"))
    candidates = http.as_items(body.get("candidates"))
    if not candidates and not blocked:
        raise http.misshapen(target, "`candidates` or a reason for blocking the prompt")
    candidate = http.as_object(next(iter(candidates), None))
    parts = map(
        http.as_object, http.as_items(http.as_object(candidate.get("content")).get("parts"))
    )
    texts = (http.as_text(part.get("text")) or "" for part in parts if not part.get("thought"))
    reason = http.as_text(candidate.get("finishReason"))
    usage = http.as_object(body.get("usageMetadata"))
    # Visible and thinking tokens are counted apart and billed alike.
    counts = [http.as_count(usage.get(n)) for n in ("candidatesTokenCount", "thoughtsTokenCount")]
    known = [count for count in counts if count is not None]
    return Reply(
        text="".join(texts),
        finish=Finish.REFUSED if blocked else _FINISHES.get(reason, Finish.STOP),
        provider_model_id=http.as_text(body.get("modelVersion")),
        response_id=http.as_text(body.get("responseId")),
        tokens_in=http.as_count(usage.get("promptTokenCount")),
        tokens_out=sum(known) if known else None,
    )


def _read_path(target: http.Target, answer: http.HttpReply) -> list[tuple[str, list[Logprob]]]:
    """The tokens of an answer, each with its alternatives and itself among them."""
    candidate = http.as_object(next(iter(http.as_items(answer.body.get("candidates"))), None))
    result = http.as_object(candidate.get("logprobsResult"))
    chosen = http.as_items(result.get("chosenCandidates"))
    tops = http.as_items(result.get("topCandidates"))
    path = []
    for own, top in zip(map(http.as_object, chosen), map(http.as_object, tops), strict=False):
        entries = [*http.as_items(top.get("candidates")), own]
        logprobs = read_top(entries, logprob="logProbability")
        path.append((http.as_text(own.get("token")) or "", logprobs))
    if not path or not path[0][1]:
        raise RejectedError(
            f"`{target.provider}` gave no log-probabilities with its answer, which `readout` "
            "needs; take a model of Gemini's that has them, or leave `readout` out",
            status=answer.status,
        )
    return path


def _content(text: str) -> dict[str, Any]:
    return {"parts": [{"text": text}], "role": "user"}


def _thinking(model: str, effort: str) -> dict[str, Any]:
    """Gemini 2.5 takes a number of tokens; later models take a level by name."""
    if not model.removeprefix("models/").startswith(_BUDGETED_MODELS):
        return {"thinkingLevel": effort.upper()}
    if effort not in _BUDGETS:
        raise RejectedError(
            f"`reasoning_effort` for {model} must be one of {', '.join(_BUDGETS)}, got {effort!r}"
        )
    return {"thinkingBudget": _BUDGETS[effort]}
