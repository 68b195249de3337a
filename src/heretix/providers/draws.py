"""Random-looking numbers that are decided by what they are for: the same on every machine."""

from __future__ import annotations

import hashlib
import json
from statistics import NormalDist

__all__ = ["digest", "normal", "uniform"]


def normal(*parts: str | int) -> float:
    """A draw from the standard normal distribution."""
    return NormalDist().inv_cdf(uniform(*parts))


def uniform(*parts: str | int) -> float:
    """A number strictly between 0 and 1."""
    return ((int.from_bytes(digest(*parts)[:8], "big") >> 11) + 0.5) / 2**53


def digest(*parts: str | int) -> bytes:
    """What the numbers are made of."""
    # JSON keeps the parts apart, whatever a claim holds.
    return hashlib.sha256(json.dumps(parts).encode()).digest()
