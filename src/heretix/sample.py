"""One sample: what an attempt gave, and whether it counts.

The rule of compliance lives here and nowhere else: one strict JSON object with a numeric
`prob_true` in [0, 1], nothing around it, and no address of a source anywhere in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from heretix.belief.logodds import logit

__all__ = ["Finish", "Noncompliance", "Reading", "Sample", "read_answer"]

_CITATION_MARKS: Final = ("http://", "https://", "www.")


class Finish(StrEnum):
    """Why the model stopped writing."""

    STOP = "stop"
    TRUNCATED = "truncated"
    REFUSED = "refused"


class Noncompliance(StrEnum):
    """Why an answer is dropped from aggregation."""

    NOT_JSON = "not_json"
    NO_PROB_TRUE = "no_prob_true"
    OUT_OF_RANGE = "out_of_range"
    CITATION = "citation"
    REFUSED = "refused"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer's text says: a probability, or why there is none."""

    prob_true: float | None
    json_valid: bool
    noncompliance: Noncompliance | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One stored sample. `error` is set when the call itself failed: then nothing was answered."""

    cache_key: str
    run_id: str
    prompt_sha256: str
    paraphrase_idx: int
    replicate_idx: int
    prob_true: float | None
    logit: float | None
    json_valid: bool
    noncompliance: Noncompliance | None
    raw_answer: str | None
    error: str | None
    provider_model_id: str | None
    response_id: str | None
    fingerprint: str | None
    tokens_in: int | None
    tokens_out: int | None
    temperature: float | None
    """The temperature that was sent; None when none was."""
    attempts: int = 1
    """Calls that it took, failed ones included."""
    latency_ms: int
    """Of the last call."""
    created_at: str
    """UTC, ISO 8601, to the millisecond."""

    @property
    def failed(self) -> bool:
        """The call failed for good: attempted, but no answer."""
        return self.error is not None

    @property
    def compliant(self) -> bool:
        """The sample may be aggregated."""
        return self.error is None and self.noncompliance is None


def read_answer(text: str, finish: Finish = Finish.STOP) -> Reading:
    """Apply the rule of compliance to one answer."""
    if finish is Finish.REFUSED:
        return Reading(None, json_valid=False, noncompliance=Noncompliance.REFUSED)
    reading = _read_text(text)
    if reading.noncompliance is Noncompliance.NOT_JSON and finish is Finish.TRUNCATED:
        return Reading(None, json_valid=False, noncompliance=Noncompliance.TRUNCATED)
    return reading


def logit_of(prob_true: float | None) -> float | None:
    """Log-odds of a sample's probability; missing stays missing."""
    return None if prob_true is None else logit(prob_true)


def _read_text(text: str) -> Reading:
    try:
        answer = json.loads(
            text, object_pairs_hook=_object_without_twins, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError):
        return Reading(None, json_valid=False, noncompliance=Noncompliance.NOT_JSON)
    if not isinstance(answer, dict):
        return Reading(None, json_valid=False, noncompliance=Noncompliance.NO_PROB_TRUE)
    value = answer.get("prob_true")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Reading(None, json_valid=False, noncompliance=Noncompliance.NO_PROB_TRUE)
    if not 0 <= value <= 1:
        return Reading(None, json_valid=False, noncompliance=Noncompliance.OUT_OF_RANGE)
    if _cites(text) or _cites(json.dumps(answer, ensure_ascii=False)):
        return Reading(float(value), json_valid=True, noncompliance=Noncompliance.CITATION)
    return Reading(float(value), json_valid=True, noncompliance=None)


def _cites(text: str) -> bool:
    lowered = text.lower()
    return any(mark in lowered for mark in _CITATION_MARKS)


def _object_without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    answer = dict(pairs)
    if len(answer) != len(pairs):
        raise ValueError("a key stands twice: which value was meant can't be known")
    return answer


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} isn't JSON")
