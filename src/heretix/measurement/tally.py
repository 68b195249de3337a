"""How a run is doing, in numbers: for the command line, jobs, and whoever else watches one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from heretix.measurement.runner import Silence

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.measurement.runner import Runner
    from heretix.plan import Plan
    from heretix.sample import Sample

__all__ = ["Tally"]


class Tally(Silence):
    """Counts what happens, and has it shown now and then."""

    def __init__(self, total: int, show: Callable[[Tally], None], every_s: float) -> None:
        self.total = total
        self.done = 0
        self.cached = 0
        self.failed = 0
        self.doing = "measuring"
        self.runner: Runner | None = None
        self._show = show
        self._every_s = every_s
        self._begun = time.monotonic()
        self._shown = self._begun

    def planned(self, plan: Plan, cached: int) -> None:
        """Count what needs no call."""
        self.cached += cached
        self._advance(cached)

    def sampled(self, plan: Plan, sample: Sample) -> None:
        """Count a call that ended."""
        self.doing = f"measuring {plan.label}"
        self.failed += sample.failed
        self._advance(1)

    def shared(self, plan: Plan, sample: Sample) -> None:
        """Count what another process paid for."""
        self.cached += 1
        self._advance(1)

    @property
    def rate(self) -> float:
        """Calls a second since the beginning."""
        elapsed = time.monotonic() - self._begun
        return (self.done - self.cached) / elapsed if elapsed > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds to go, if it goes on like this; None before there is anything to go by."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for programs."""
        status = self.runner.status if self.runner else None
        return {
            "done": self.done,
            "total": self.total,
            "cached": self.cached,
            "failed": self.failed,
            "in_flight": status.in_flight if status else 0,
            "window": status.window if status else 0,
            "spent_usd": status.spent_usd if status else None,
            "per_second": round(self.rate, 2),
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
        }

    def notes(self) -> str:
        """The numbers, for people."""
        status = self.runner.status if self.runner else None
        parts = [f"{self.rate:,.1f}/s"]
        if status:
            parts.append(f"{status.in_flight} in flight")
            if status.spent_usd is None:
                parts.append("cost unknown")
            elif status.spent_usd:
                parts.append(f"${status.spent_usd:,.4f}")
        parts += [f"{self.cached:,} cached"] if self.cached else []
        parts += [f"{self.failed:,} failed"] if self.failed else []
        return ", ".join(parts)

    def _advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self._shown >= self._every_s:
            self._shown = now
            self._show(self)
