"""Phrases and number formats that every view shares."""

from __future__ import annotations

from typing import Final

__all__ = ["DEMONSTRATION", "LEGACY", "percent", "span"]

DEMONSTRATION: Final = "demonstration model: not a belief worth quoting"
LEGACY: Final = "legacy aggregation (simple): for comparison only"


def span(lo: float, hi: float) -> str:
    """An interval, as text."""
    return f"{lo:.3f}–{hi:.3f}"


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{share:.0%}"
