"""Beliefs in parts per million, and how far apart two of them are.

Logarithms are `Decimal` at 50 digits in a context of our own: the same on every machine,
whatever the caller's context says.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from heretix.economy.money import PPM, require_ppm
from heretix.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BELIEF_MAX",
    "BELIEF_MIN",
    "CONTEXT",
    "LN2",
    "belief_at",
    "clip_belief",
    "divergence",
    "gap_divergence",
    "log_odds",
    "log_score",
    "median",
    "require_belief",
    "require_finite",
    "to_ppm",
]

CONTEXT: Final = decimal.Context(
    prec=50,
    rounding=decimal.ROUND_HALF_EVEN,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)
BELIEF_MIN: Final = 10_000
BELIEF_MAX: Final = 990_000
"""Beliefs that money depends on stay within 1% and 99%: near certainty a logarithm has no end."""
LN2: Final = CONTEXT.ln(Decimal(2))


def clip_belief(ppm: int) -> int:
    """A belief held within [1%, 99%]."""
    return min(max(require_ppm("belief", ppm), BELIEF_MIN), BELIEF_MAX)


def require_belief(name: str, ppm: int) -> int:
    """Check that a belief is within [1%, 99%], and return it."""
    return require_ppm(name, ppm, least=BELIEF_MIN, most=BELIEF_MAX)


def require_finite(name: str, value: object) -> Decimal:
    """Check that `value` is a finite `Decimal`, and return it."""
    if not isinstance(value, Decimal) or not value.is_finite():
        raise UsageError(
            f"`{name}` must be a finite Decimal, got {value!r}; a missing number is left out"
        )
    return value


@lru_cache(maxsize=1 << 16)
def _ln(ppm: int) -> Decimal:
    """Natural logarithm of a positive number of parts per million."""
    return CONTEXT.ln(CONTEXT.divide(Decimal(ppm), Decimal(PPM)))


def log_score(q_ppm: int, c_ppm: int) -> Decimal:
    """q·ln c + (1-q)·ln(1-c), in nats: never positive, highest at c = q."""
    yes = CONTEXT.multiply(Decimal(q_ppm), _ln(c_ppm))
    no = CONTEXT.multiply(Decimal(PPM - q_ppm), _ln(PPM - c_ppm))
    return CONTEXT.divide(CONTEXT.add(yes, no), Decimal(PPM))


def divergence(q_ppm: int, c_ppm: int) -> Decimal:
    """KL(q‖c) in nats of two beliefs; never negative."""
    gap = CONTEXT.subtract(log_score(q_ppm, q_ppm), log_score(q_ppm, c_ppm))
    return max(gap, Decimal(0))


def gap_divergence(a: tuple[int, int], b: tuple[int, int]) -> Decimal:
    """Least KL(x‖y) for x in interval a and y in interval b: 0 when they touch.

    KL(x‖y) grows as x and y move apart, so the facing ends give the least.
    """
    (a_lo, a_hi), (b_lo, b_hi) = a, b
    if a_lo > b_hi:
        return divergence(a_lo, b_hi)
    if a_hi < b_lo:
        return divergence(a_hi, b_lo)
    return Decimal(0)


def log_odds(ppm: int) -> Decimal:
    """ln(p/(1-p)) of a belief."""
    return CONTEXT.subtract(_ln(ppm), _ln(PPM - ppm))


def belief_at(log_odds_value: Decimal) -> int:
    """The belief with these log-odds, to the nearest part per million, within [1%, 99%]."""
    bound = log_odds(BELIEF_MAX)
    held = min(max(log_odds_value, CONTEXT.minus(bound)), bound)
    odds = CONTEXT.exp(CONTEXT.minus(held))
    ppm = CONTEXT.divide(Decimal(PPM), CONTEXT.add(Decimal(1), odds))
    return int(ppm.to_integral_value(rounding=decimal.ROUND_HALF_EVEN))


def median(values: Sequence[Decimal]) -> Decimal:
    """The middle value, or the mean of the two in the middle."""
    if not values:
        raise UsageError("`values` must hold at least one number, got none")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return CONTEXT.divide(CONTEXT.add(ordered[middle - 1], ordered[middle]), Decimal(2))


def to_ppm(value: Decimal, *, rounding: str) -> int:
    """A probability in [0, 1] as parts per million.

    The caller names the rounding, one of `decimal.ROUND_*`: a threshold that must be reached
    is compared with a number rounded away from it, never towards it.
    """
    ppm = CONTEXT.multiply(require_finite("probability", value), Decimal(PPM))
    return require_ppm("probability", int(ppm.to_integral_value(rounding=rounding)))
