"""A provider that makes answers up: deterministic, offline, free, and faulty on request.

An answer is a pure function of the model's name, the claim, the wording and the repeat. Its spread
is like that of a real model: claims differ widely, wordings less, repeats least. Faults are asked
for in the name (`mock:gpt-5?fenced=0.1&error=0.05`), which is part of every identity, so that
spoilt samples never mix with sound ones.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Self

from heretix.belief.logodds import sigmoid
from heretix.core import errors
from heretix.core.canonical import hash_parts, normal, uniform
from heretix.core.errors import ModelError, ServerError
from heretix.core.yaml_lines import hint
from heretix.providers.base import Opening, Provider, Reply, Request
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# Standard deviations in log-odds. What all mocks share outweighs what is a mock's own, so that
# two of them disagree about as two models of one generation do.
_SD_SHARED: Final = 1.5
_SD_OWN: Final = 0.7
_SD_TEMPLATE: Final = 0.35
_SD_REPLICATE: Final = 0.15

_RETRY_AFTER_S: Final = 0.01
_CHARS_PER_TOKEN: Final = 4
_MAX_LATENCY_MS: Final = 600_000.0

_SPOILT: Final[Mapping[str, Callable[[str, str], str]]] = {
    "not_json": lambda p, _: f"I would put the probability at about {p}.",
    "fenced": lambda _, sound: f"```json\n{sound}\n```",
    "extra_text": lambda _, sound: f"Here is my answer: {sound}",
    "empty": lambda _, __: "",
    "no_prob_true": lambda p, _: f'{{"probability": {p}}}',
    "string": lambda p, _: f'{{"prob_true": "{p}"}}',
    "bool": lambda _, __: '{"prob_true": true}',
    "nan": lambda _, __: '{"prob_true": NaN}',
    "out_of_range": lambda p, _: f'{{"prob_true": {100 * float(p) + 2:.0f}}}',
    "citation": lambda p, _: f'{{"prob_true": {p}, "source": "https://example.org/"}}',
    "truncated": lambda _, sound: sound[:-3],
    "refused": lambda _, __: "I can't help with that.",
}
"""From a probability and the sound answer, both as text, to what a faulty model writes instead."""
_FINISHES: Final = {"truncated": Finish.TRUNCATED, "refused": Finish.REFUSED}
_FAILED: Final[Mapping[str, Callable[[], errors.ProviderError]]] = {
    "error": lambda: ServerError("`mock` failed, as its name asks (`error`)", status=500),
    "flaky": lambda: ServerError("`mock` failed once, as its name asks (`flaky`)", status=503),
    "timeout": lambda: errors.CallTimeoutError("`mock` gave no answer in time, as its name asks"),
    "reset": lambda: errors.ConnectionFailedError("`mock` broke the connection, as its name asks"),
    "rate_limit": lambda: errors.RateLimitedError(
        "`mock` asked for patience, as its name asks", retry_after_s=_RETRY_AFTER_S
    ),
    "rejected": lambda: errors.RejectedError(
        "`mock` refused the request, as its name asks", status=400
    ),
}

FAULTS: Final = (*_SPOILT, *_FAILED)
"""Faults of a mock, each with a rate from 0 to 1. Calls chosen by `flaky` fail
at the first attempt and answer at the second; those chosen by another failure fail every time."""
_NO_FAULT: Final = "none"


class MockProvider:
    """Makes up the answers of one mock, `NAME` or `NAME?fault=rate&…&latency_ms=N`."""

    max_concurrency: int = 256
    """Nothing is shared between calls; more than this only costs memory."""

    def __init__(self, name: str, *, latency_ms: float = 0) -> None:
        self._full_name = name
        self._name, marked, query = name.partition("?")
        if not self._name:
            raise ModelError(f"`mock:{name}` names no model; write mock:MODEL")
        settings = _parse_query(name, query) if marked else {}
        self._latency_s = settings.pop("latency_ms", latency_ms) / 1000
        # In the order of FAULTS, so that the order in a name decides nothing.
        self._rates = {fault: settings[fault] for fault in FAULTS if fault in settings}
        self._failed_once: set[bytes] = set()

    @classmethod
    def open(cls, opening: Opening) -> Self:
        return cls(opening.model.name)

    async def ask(self, request: Request) -> Reply:
        """Answer, or do wrong what the name asks for."""
        await asyncio.sleep(self._latency_s)
        fault = self._fault(request)
        if fault in _FAILED and not self._recovers(fault, request):
            failure = _FAILED[fault]()
            raise failure
        claim, template, replicate = _key(request)
        log_odds = (
            _SD_SHARED * normal("shared", claim)
            + _SD_OWN * normal("own", self._name, claim)
            + _SD_TEMPLATE * normal("template", self._name, claim, template)
            + _SD_REPLICATE * normal("replicate", self._name, claim, template, replicate)
        )
        prob = _round_as_spoken(sigmoid(log_odds))
        sound = f'{{"prob_true": {prob}}}'
        text = _SPOILT[fault](prob, sound) if fault in _SPOILT else sound
        finish = _FINISHES.get(fault, Finish.STOP)
        if _tokens(text) > request.max_output_tokens:
            text = text[: request.max_output_tokens * _CHARS_PER_TOKEN]
            finish = Finish.TRUNCATED
        response = hash_parts("response", self._full_name, *_key(request))
        return Reply(
            text=text,
            finish=finish,
            provider_model_id=self._name,
            response_id=f"mock-{response.hex()[:16]}",
            tokens_in=_tokens(f"{request.system}\n\n{request.user}"),
            tokens_out=_tokens(text),
            temperature=request.temperature,
        )

    async def aclose(self) -> None:
        """Do nothing: nothing is held."""

    def _fault(self, request: Request) -> str:
        if not self._rates:
            return _NO_FAULT
        # The rates stay out of the hash: raising one only adds samples to those it spoils.
        point = uniform("fault", self._name, *_key(request))
        for fault, rate in self._rates.items():
            if point < rate:
                return fault
            point -= rate
        return _NO_FAULT

    def _recovers(self, fault: str, request: Request) -> bool:
        if fault != "flaky":
            return False
        call = hash_parts("flaky", *_key(request))
        if call in self._failed_once:
            return True
        self._failed_once.add(call)
        return False


if TYPE_CHECKING:
    _conforms: Provider = MockProvider("gpt-5")


def _parse_query(name: str, query: str) -> dict[str, float]:
    settings: dict[str, float] = {}
    known = (*FAULTS, "latency_ms")
    for part in query.split("&"):
        key, _, text = part.partition("=")
        if key not in known:
            near = hint(key, known)
            raise ModelError(
                f"`mock:{name}` has an unknown key {key!r}{near}; known: {', '.join(known)}"
            )
        if key in settings:
            raise ModelError(f"`mock:{name}` has `{key}` twice; keep one")
        settings[key] = _number(name, key, text)
    total = math.fsum(rate for key, rate in settings.items() if key in FAULTS)
    if total > 1:
        rates = " + ".join(f"{key}={rate:g}" for key, rate in settings.items() if key in FAULTS)
        raise ModelError(f"`mock:{name}`: the rates must add up to at most 1, got {rates}")
    return settings


def _number(name: str, key: str, text: str) -> float:
    most = _MAX_LATENCY_MS if key == "latency_ms" else 1.0
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise ModelError(
            f"`mock:{name}`: `{key}` must be a number from 0 to {most:,.0f}, got {text!r}"
        )
    return value


def _key(request: Request) -> tuple[str, int, int]:
    return request.claim, request.paraphrase_idx, request.replicate_idx


def _round_as_spoken(prob: float) -> str:
    """Round as a model would speak: two decimals, and more near 0 and 1, which it never reaches."""
    prob = min(max(prob, 0.0001), 0.9999)
    far = min(prob, 1 - prob)
    digits = 2 if far >= 0.05 else 3 if far >= 0.005 else 4
    return f"{prob:.{digits}f}"


def _tokens(text: str) -> int:
    return math.ceil(len(text) / _CHARS_PER_TOKEN)
