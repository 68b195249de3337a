"""The method on a handful of answers, step by step, by the functions that measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.belief import metrics
from heretix.belief.estimator import Estimate, estimate, mean, order_templates, trim_cut
from heretix.belief.logodds import logit, sigmoid
from heretix.belief.vector import joint_bootstrap
from heretix.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.belief.metrics import InformationGain, Metric

__all__ = ["DEFAULT_ANSWERS", "Answers", "LensExample", "Step", "WorkedExample", "parse_answers"]

Answers = tuple[tuple[float, ...], ...]
"""Probabilities by wording."""

DEFAULT_ANSWERS: Final = (
    (0.70, 0.74),
    (0.66, 0.69),
    (0.78, 0.75),
    (0.40, 0.46),
    (0.72, 0.71),
    (0.92, 0.90),
    (0.68, 0.73),
    (0.64, 0.70),
)
"""Two answers to each of eight wordings; one wording leads down, one up."""
_MOST_WORDINGS: Final = 16
_MOST_ANSWERS: Final = 8
_SEED: Final = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One wording on its way to the estimate."""

    number: int
    answers: tuple[float, ...]
    logits: tuple[float, ...]
    mean_logit: float
    prob: float
    trimmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedExample:
    """Answers, what each wording makes of them, and the estimate."""

    steps: tuple[Step, ...]
    cut: int
    plain_mean: float
    """What one would get by averaging the answers as they are."""
    estimate: Estimate

    @classmethod
    def of(cls, answers: Sequence[Sequence[float]]) -> WorkedExample:
        """Work through answers, given by wording."""
        logits = {f"{n:02d}": [logit(p) for p in given] for n, given in enumerate(answers)}
        found = estimate(logits, seed=_SEED)
        means = {name: mean(values) for name, values in order_templates(logits).items()}
        cut = trim_cut(len(means), center="trimmed", trim=found.trim)
        ranked = sorted(means, key=lambda name: (means[name], name))
        kept = set(ranked[cut : len(ranked) - cut])
        steps = tuple(
            Step(
                number=number + 1,
                answers=tuple(given),
                logits=tuple(logits[name]),
                mean_logit=means[name],
                prob=sigmoid(means[name]),
                trimmed=name not in kept,
            )
            for number, (name, given) in enumerate(zip(logits, answers, strict=True))
        )
        flat = [p for given in answers for p in given]
        return cls(steps=steps, cut=cut, plain_mean=mean(flat), estimate=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LensExample:
    """The same wordings under four lenses, and what lies between."""

    probs: Mapping[str, float]
    shock_index: Metric
    amplification_gap: Metric
    wrapper_effect: Metric
    evidence_effect: Metric
    information_gain: InformationGain

    @classmethod
    def shifted(cls, answers: Sequence[Sequence[float]]) -> LensExample:
        """Beliefs that a frame moves a little, mainstream evidence up, heterodox down."""
        shifts = {"RPL": 0.0, "NUL": 0.1, "MEL": 0.5, "HEL": -1.2}
        lenses = {
            lens: {f"{n:02d}": [logit(p) + by for p in given] for n, given in enumerate(answers)}
            for lens, by in shifts.items()
        }
        vector = joint_bootstrap(lenses, seed=_SEED)
        return cls(
            probs={lens: sigmoid(vector.centers[lens]) for lens in shifts},
            shock_index=metrics.shock_index(vector),
            amplification_gap=metrics.amplification_gap(vector),
            wrapper_effect=metrics.movement(vector, "NUL"),
            evidence_effect=metrics.movement(vector, "HEL", "NUL"),
            information_gain=metrics.information_gain(vector, "HEL"),
        )


def parse_answers(text: str) -> Answers:
    """Answers as somebody typed them: a line a wording, probabilities with spaces between."""
    lines = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
    if not 2 <= len(lines) <= _MOST_WORDINGS:
        raise ConfigError(f"`answers` must have 2 to {_MOST_WORDINGS} lines, got {len(lines)}")
    parsed = []
    for number, line in enumerate(lines, 1):
        if len(line) > _MOST_ANSWERS:
            raise ConfigError(f"`answers` line {number} has more than {_MOST_ANSWERS} numbers")
        parsed.append(tuple(_prob(part, number) for part in line))
    return tuple(parsed)


def _prob(text: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"`answers` line {line} must hold numbers from 0 to 1, got {text!r}")
    return value
