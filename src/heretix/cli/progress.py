"""Progress of a run: a live line, plain lines, or events for programs.

All of it goes to standard error, so that standard output holds results only.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from heretix.cli.output import fit_json
from heretix.measurement.runner import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from heretix.measurement.record import RunRecord
    from heretix.plan import Plan
    from heretix.sample import Sample

_LIVE_S: Final = 0.1
_LINES_S: Final = 5.0
_EVENTS_S: Final = 1.0


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
    text = json.dumps({"event": event, **values}, ensure_ascii=False)
    print(fit_json(text, sys.stderr.encoding), file=sys.stderr, flush=True)


def _line(tally: Tally) -> str:
    eta = "" if tally.eta_s is None else f", {tally.eta_s:,.0f} s to go"
    return f"{tally.doing}: {tally.done:,} of {tally.total:,} samples: {tally.notes()}{eta}"


def _update(progress: Progress, task: TaskID, tally: Tally) -> None:
    progress.update(
        task, completed=tally.done, total=tally.total, notes=tally.notes(), doing=tally.doing
    )


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
        TextColumn("{task.fields[doing]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[notes]}", style="dim"),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress, progress.add_task("measuring", total=None, notes="", doing="measuring")
