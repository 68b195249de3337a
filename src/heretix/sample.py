"""One sample: what an attempt gave, and whether it counts.

The rule of compliance lives here and nowhere else: one strict JSON object with a numeric
`prob_true` in [0, 1], nothing around it, and no address of a source anywhere in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from heretix.belief.logodds import logit

_CITATION_MARKS: Final = ("http://", "https://", "www.")


class Finish(StrEnum):
    """Reason why the model stopped writing."""

    STOP = "stop"
    TRUNCATED = "truncated"
    REFUSED = "refused"


class Noncompliance(StrEnum):
    """Reason why an answer is dropped from aggregation."""

    NOT_JSON = "not_json"
    NO_PROB_TRUE = "no_prob_true"
    OUT_OF_RANGE = "out_of_range"
    CITATION = "citation"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    MISSING_MASS = "missing_mass"
    """Too much of the distribution is unknown."""
    NO_TRUTH_TOKEN = "no_truth_token"  # noqa: S105
    """Not both of "True" and "False" are among the log-probabilities."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Parsed answer: a probability, or why there is none."""

    prob_true: float | None = None
    json_valid: bool = False
    noncompliance: Noncompliance | None = None
    log_odds: float | None = None
    """Log-odds that were read by themselves; None is those of the probability."""

    @property
    def logit(self) -> float | None:
        """Log-odds of the answer; missing stays missing."""
        if self.log_odds is not None:
            return self.log_odds
        return None if self.prob_true is None else logit(self.prob_true)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt and what it gave: the columns that store, records and exports share.

    A new column is a line here and its source: a field of that name in `providers.base.Reply`, or a
    value in `measurement.execution.make_sample`.
    """

    cache_key: str
    prompt_sha256: str
    paraphrase_idx: int
    replicate_idx: int
    prob_true: float | None
    logit: float | None
    json_valid: bool
    noncompliance: Noncompliance | None
    raw_answer: str | None
    error: str | None
    """Reason why the call failed for good: then nothing was answered."""
    provider_model_id: str | None
    response_id: str | None
    fingerprint: str | None
    tokens_in: int | None
    tokens_out: int | None
    temperature: float | None
    """The temperature that was sent; None when none was."""
    attempts: int
    """Calls that it took, failed ones included."""
    latency_ms: int
    """Of the last call."""
    created_at: str
    """UTC, ISO 8601, to the millisecond."""

    @property
    def failed(self) -> bool:
        """The call failed for good: attempted, but no answer."""
        return self.error is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Attempt):
    """An attempt as the store keeps it, with the run that first paid for it."""

    run_id: str

    @property
    def compliant(self) -> bool:
        """The sample may be aggregated."""
        return self.error is None and self.noncompliance is None


_COLUMNS: Final = tuple(column.name for column in fields(Attempt))


def columns_of(*sources: object) -> dict[str, Any]:
    """Columns of an attempt, each from the last source that has one of its name, else None."""
    return {
        name: next((getattr(s, name) for s in reversed(sources) if hasattr(s, name)), None)
        for name in _COLUMNS
    }


def read_answer(text: str, finish: Finish = Finish.STOP) -> Reading:
    """Apply the rule of compliance to one answer."""
    if finish is Finish.REFUSED:
        return Reading(noncompliance=Noncompliance.REFUSED)
    reading = _read_text(text)
    if reading.noncompliance is Noncompliance.NOT_JSON and finish is Finish.TRUNCATED:
        return Reading(noncompliance=Noncompliance.TRUNCATED)
    return reading


def _read_text(text: str) -> Reading:
    try:
        answer = json.loads(
            text, object_pairs_hook=_object_without_twins, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError):
        return Reading(noncompliance=Noncompliance.NOT_JSON)
    value = answer.get("prob_true") if isinstance(answer, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Reading(noncompliance=Noncompliance.NO_PROB_TRUE)
    if not 0 <= value <= 1:
        return Reading(noncompliance=Noncompliance.OUT_OF_RANGE)
    lowered = (text + json.dumps(answer, ensure_ascii=False)).lower()
    cites = any(mark in lowered for mark in _CITATION_MARKS)
    return Reading(float(value), True, Noncompliance.CITATION if cites else None)


def _object_without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    answer = dict(pairs)
    if len(answer) != len(pairs):
        raise ValueError("a key stands twice: which value was meant can't be known")
    return answer


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} isn't JSON")
