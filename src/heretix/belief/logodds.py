"""Between probability and log-odds."""

from __future__ import annotations

import math

CLAMP = 1e-6
"""Probabilities are held this far from 0 and 1, so that a flat "certain" stays finite."""


def logit(prob: float) -> float:
    """Natural log-odds of `prob`, clamped to [CLAMP, 1 - CLAMP]."""
    clamped = min(max(prob, CLAMP), 1.0 - CLAMP)
    return math.log(clamped / (1.0 - clamped))


def sigmoid(x: float) -> float:
    """Probability whose log-odds are `x`; the branch keeps `exp` from overflowing."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)
