"""How a run is doing, for whoever watches: a live line, plain lines, or events for programs.

All of it goes to standard error, so that standard output holds results only.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from heretix.measurement.runner import Silence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Runner
    from heretix.plan import Plan
    from heretix.sample import Sample

__all__ = ["Tally", "watching"]

_LIVE_S: Final = 0.1
_LINES_S: Final = 5.0
_EVENTS_S: Final = 1.0


class Tally(Silence):
    """Counts what happens, and has it shown now and then."""

    def __init__(self, total: int, show: Callable[[Tally], None], every_s: float) -> None:
        self.total = total
        self.done = 0
        self.cached = 0
        self.failed = 0
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


class _EventTally(Tally):
    """Tells programs of every record, too."""

    def sampled(self, plan: Plan, sample: Sample) -> None:
        super().sampled(plan, sample)
        if sample.failed:
            _emit("failed", claim=plan.claim, model=plan.model.identity, error=sample.error)

    def finished(self, record: RunRecord) -> None:
        _emit(
            "finished",
            execution_id=record.execution_id,
            run_id=record.run_id,
            claim=record.claim,
            model=record.model,
            status=record.status,
            prob_true_rpl=record.aggregates.prob_true_rpl,
            ci95=record.aggregates.ci95,
        )


@contextmanager
def watching(console: Console, total: int, *, as_json: bool) -> Iterator[Tally]:
    """A tally that shows itself as fits: to a terminal, to a file, or to a program."""
    if as_json:
        tally = _EventTally(total, lambda t: _emit("progress", **t.as_dict()), _EVENTS_S)
        _emit("started", total=total)
        yield tally
        _emit("ended", **tally.as_dict())
    elif console.is_terminal:
        with _bar() as (progress, task):
            yield Tally(total, lambda t: _update(progress, task, t), _LIVE_S)
    else:
        yield Tally(total, lambda t: console.print(_line(t), style="dim"), _LINES_S)


def _emit(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}, ensure_ascii=False), file=sys.stderr, flush=True)


def _line(tally: Tally) -> str:
    eta = "" if tally.eta_s is None else f", {tally.eta_s:,.0f} s to go"
    return f"{tally.done:,} of {tally.total:,} samples: {tally.notes()}{eta}"


def _update(progress: Progress, task: TaskID, tally: Tally) -> None:
    progress.update(task, completed=tally.done, total=tally.total, notes=tally.notes())


@contextmanager
def _bar() -> Iterator[tuple[Progress, TaskID]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("measuring"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[notes]}", style="dim"),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress, progress.add_task("measuring", total=None, notes="")
