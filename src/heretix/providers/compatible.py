"""Chat Completions, as vLLM, Ollama, llama.cpp, OpenRouter, xAI, DeepSeek and others speak it.

Only the common ground is sent: `max_tokens`, the older name, which all of them take, and no
parameter that one of them is known to reject. What a server does differently is its `Dialect`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from heretix.core.errors import RejectedError
from heretix.providers import http
from heretix.providers.base import ANSWER_SCHEMA, Opening, Reply, Request
from heretix.readouts import (
    SAMPLED,
    TOP_LOGPROBS,
    Logprob,
    dump_logprobs,
    follow_path,
    read_top,
    walk_numbers,
)
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATH: Final = "/chat/completions"

_log = logging.getLogger(__name__)

_LOGPROBS: Final[Mapping[str, Any]] = {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
_FORMAT_MARKS: Final = ("response_format", "json_schema")
_FINISHES: Final = {"length": Finish.TRUNCATED, "content_filter": Finish.REFUSED}
_FAILED_FINISHES: Final = frozenset({"error", "insufficient_system_resource"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Options of a server beyond the common ground."""

    json_schema: bool = True
    """The answer's schema can be enforced; else only "some JSON object" is asked for."""
    seed: bool = False
    """Sampling can be seeded. Each sample has a seed of its own, derived from its identity: its
    replicates still differ, and a server that honours seeds repeats them. Hosted services are
    sent none: some reject it and none promises to honour it."""
    continuing: Mapping[str, Any] | None = None
    """Fields that have the server go on with an answer that was begun for it, so that the numbers
    that it could say can be walked. None where it can't: one answer's alternatives have to do."""


DIALECTS: Final[Mapping[str, Dialect]] = {
    "deepseek": Dialect(json_schema=False),
    "llamacpp": Dialect(seed=True, continuing={}),
    "ollama": Dialect(seed=True),
    "vllm": Dialect(
        seed=True, continuing={"continue_final_message": True, "add_generation_prompt": False}
    ),
}

_BRANCHES: Final = 8
"""Branches of a distribution asked for at a time: such servers read them in one batch, and what
they share of the prompt once."""


class CompatibleProvider(http.HttpProvider):
    """Any server that speaks Chat Completions."""

    def __init__(self, target: http.Target, dialect: Dialect | None = None) -> None:
        super().__init__(target)
        self._dialect = dialect or Dialect()

    @classmethod
    def open(cls, opening: Opening) -> Self:
        """Make the adapter ready, with what is known of the server's dialect."""
        return cls(opening.target, DIALECTS.get(opening.model.provider))

    async def ask(self, request: Request) -> Reply:
        """Answer one request, or tell the log-probabilities of its answer."""
        match request.readout, self._dialect.continuing:
            case "sampled", _:
                answer = await self._post(request)
                reply = read_reply(self.client.target, answer)
                return replace(reply, temperature=request.temperature)
            case "distribution", None:
                answer = await self._post(request)
                numbers = follow_path(_read_path(self.client.target, answer))
                return self._reply(request, answer, numbers)
            case "distribution", continuing:
                return await self._walk(request, continuing or {})
        answer = await self.client.post(PATH, build_token_body(request))
        return self._reply(request, answer, _read_path(self.client.target, answer)[0][1])

    async def _walk(self, request: Request, continuing: Mapping[str, Any]) -> Reply:
        answers: list[http.HttpReply] = []

        async def next_tokens(begun: str) -> Sequence[Logprob]:
            body = {**build_token_body(request, begun), **continuing}
            answers.append(await self.client.post(PATH, body))
            return _read_path(self.client.target, answers[-1])[0][1]

        numbers = await walk_numbers(next_tokens, together=_BRANCHES)
        reply = self._reply(request, answers[0], numbers)
        # Every step is billed: the prompt again, and one token.
        replies = [read_reply(self.client.target, answer) for answer in answers]
        return replace(
            reply,
            tokens_in=_total([one.tokens_in for one in replies]),
            tokens_out=_total([one.tokens_out for one in replies]),
        )

    def _reply(
        self, request: Request, answer: http.HttpReply, logprobs: Sequence[Logprob]
    ) -> Reply:
        reply = read_reply(self.client.target, answer)
        refused = reply.finish is Finish.REFUSED
        text = reply.text if refused else dump_logprobs(request.readout, logprobs)
        # One token was asked for: that the answer ends there is no fault of it.
        return replace(reply, text=text, finish=Finish.REFUSED if refused else Finish.STOP)

    async def _post(self, request: Request) -> http.HttpReply:
        dialect = self._dialect
        try:
            return await self.client.post(PATH, build_body(request, dialect))
        except RejectedError as exc:
            if not (dialect.json_schema and _rejects_json_schema(exc)):
                raise
            # Remembered, so that only the calls already under way pay for finding out.
            if self._dialect.json_schema:
                _log.warning("%s; asking for `json_object` instead from now on", exc)
                self._dialect = replace(self._dialect, json_schema=False)
            return await self.client.post(PATH, build_body(request, self._dialect))


def build_body(request: Request, dialect: Dialect | None = None) -> dict[str, Any]:
    """The body of one call. The prompt is never changed to suit a server: it is measured."""
    dialect = dialect or Dialect()
    messages = [{"role": "user", "content": request.user}]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "max_tokens": request.max_output_tokens,
        "response_format": {"type": "json_object"},
    }
    if dialect.json_schema:
        schema = dict(request.answer_schema or ANSWER_SCHEMA)
        form = {"name": "answer", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if dialect.seed:
        body["seed"] = request.seed
    if request.readout != SAMPLED:
        body |= _LOGPROBS
    return body


def build_token_body(request: Request, begun: str = "") -> dict[str, Any]:
    """The body of a call for the next token alone, after an answer that was begun for the model."""
    body = {**build_body(request, Dialect()), **_LOGPROBS, "max_tokens": 1}
    # A form would forbid the words and the half answers that are asked for.
    del body["response_format"]
    if begun:
        body["messages"] = [*body["messages"], {"role": "assistant", "content": begun}]
    return body


def _read_path(target: http.Target, answer: http.HttpReply) -> list[tuple[str, list[Logprob]]]:
    """The tokens of an answer, each with its alternatives and itself among them."""
    choice = http.as_object(next(iter(http.as_items(answer.body.get("choices"))), None))
    steps = http.as_items(http.as_object(choice.get("logprobs")).get("content"))
    path = []
    for step in map(http.as_object, steps):
        top = http.as_items(step.get("top_logprobs"))
        path.append((http.as_text(step.get("token")) or "", read_top([*top, step])))
    if not path or not path[0][1]:
        raise RejectedError(
            f"`{target.provider}` gave no log-probabilities with its answer, which `readout` "
            "needs; have the server return them (`logprobs`, `top_logprobs`), or leave `readout` "
            "out",
            status=answer.status,
        )
    return path


def read_reply(target: http.Target, answer: http.HttpReply) -> Reply:
    """The reply, or the error that it reports."""
    body = answer.body
    choice = http.as_object(next(iter(http.as_items(body.get("choices"))), None))
    # OpenRouter answers 200 when a model fails half-way, and puts the error here.
    error = http.as_object(body.get("error")) or http.as_object(choice.get("error"))
    finish_reason = http.as_text(choice.get("finish_reason")) or ""
    if error or finish_reason in _FAILED_FINISHES:
        raise http.make_reported_error(target, error, answer.headers)
    if not isinstance(choice.get("message"), dict):
        raise http.misshapen(target, "`choices` that hold a message")
    message = http.as_object(choice["message"])
    refusal = http.as_text(message.get("refusal"))
    usage = http.as_object(body.get("usage"))
    return Reply(
        text=_content(message) or refusal or "",
        finish=Finish.REFUSED if refusal else _FINISHES.get(finish_reason, Finish.STOP),
        provider_model_id=http.as_text(body.get("model")),
        response_id=http.as_text(body.get("id")),
        fingerprint=http.as_text(body.get("system_fingerprint")),
        tokens_in=http.as_count(usage.get("prompt_tokens")),
        tokens_out=_tokens_out(usage),
        rate_limits=http.read_rate_limits(answer.headers),
    )


def _rejects_json_schema(exc: RejectedError) -> bool:
    words = str(exc).lower()
    # A complaint about the schema itself is ours to hear: dropping the schema would hide it.
    return (
        exc.status in {400, 422}
        and any(mark in words for mark in _FORMAT_MARKS)
        and "invalid schema" not in words
    )


def _content(message: Mapping[str, Any]) -> str:
    """The message's text; some servers send it as a list of parts, with reasoning among them."""
    content = message.get("content")
    parts = (p for p in map(http.as_object, http.as_items(content)) if p.get("type") == "text")
    return http.as_text(content) or "".join(http.as_text(part.get("text")) or "" for part in parts)


def _total(counts: Sequence[int | None]) -> int | None:
    """Sum of the counts; unknown when one of them is."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _tokens_out(usage: Mapping[str, Any]) -> int | None:
    completion = http.as_count(usage.get("completion_tokens"))
    prompt = http.as_count(usage.get("prompt_tokens"))
    total = http.as_count(usage.get("total_tokens"))
    if completion is None or prompt is None or total is None:
        return completion
    # xAI and Gemini leave reasoning out of `completion_tokens`, and bill it as output: the total
    # has it everywhere.
    return max(completion, total - prompt)
