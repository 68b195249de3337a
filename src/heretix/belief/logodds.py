"""Conversion of probabilities and log-odds; and arithmetic that is loaded when it is first used."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

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


class Later:
    """A module that is imported when something of it is first asked for. Who only looks at what
    was measured needs no arithmetic, and doesn't wait for it to load."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._name), name)
        setattr(self, name, found)  # from now on it is found without coming here
        return found
