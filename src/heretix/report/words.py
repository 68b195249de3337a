"""Phrases and number formats that every view shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heretix.providers.catalog import MADE_UP_BY

if TYPE_CHECKING:
    from heretix.measurement.record import RunRecord

__all__ = [
    "DEMONSTRATION",
    "LEGACY",
    "MADE_UP",
    "counted",
    "few_wordings",
    "label_of",
    "percent",
    "span",
]

DEMONSTRATION: Final = "demonstration model: not a belief worth quoting"
MADE_UP: Final = "made-up answers: no model was asked, so this is nobody's belief"
_ENOUGH: Final = 8
"""Wordings. In simulation the 95% interval covers 93% with 8, and 91% with 5: docs/method.md."""
LEGACY: Final = "legacy aggregation (simple): for comparison only"


def label_of(run: RunRecord) -> str | None:
    """What must stand beside a number that nobody should take for a belief."""
    if run.demonstration:
        return DEMONSTRATION
    return MADE_UP if run.provider in MADE_UP_BY else None


def few_wordings(run: RunRecord) -> str | None:
    """What must stand beside an interval from fewer wordings than it takes to be trusted."""
    used = run.aggregation.n_templates
    if run.aggregates.ci95 is None or used >= _ENOUGH:
        return None
    return (
        f"only {counted(used, 'wording')}: with fewer than {_ENOUGH} the interval misses the "
        "truth more often than 1 time in 20"
    )


def span(lo: float, hi: float) -> str:
    """An interval, as text."""
    return f"{lo:.3f}–{hi:.3f}"


def counted(count: int, noun: str) -> str:
    """So many of something: one is one, and several have an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{share:.0%}"
