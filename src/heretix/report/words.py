"""Phrases and number formats that every view shares."""

from __future__ import annotations

from typing import Final

__all__ = ["DEMONSTRATION", "LEGACY", "counted", "percent", "span"]

DEMONSTRATION: Final = "demonstration model: not a belief worth quoting"
LEGACY: Final = "legacy aggregation (simple): for comparison only"


def span(lo: float, hi: float) -> str:
    """An interval, as text."""
    return f"{lo:.3f}–{hi:.3f}"


def counted(count: int, noun: str) -> str:
    """So many of something: one is one, and several have an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{share:.0%}"
