"""Runs side by side: several models, lenses or claims."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from heretix.errors import RecordError
from heretix.report.charts.figure import Chart, drawable, figure, listed, prob_axis
from heretix.report.charts.rows import IntervalRow, interval_panel
from heretix.report.theme import LENS_NAMES, LIGHT, SHAPES, Theme
from heretix.report.words import counted, label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import RunRecord

__all__ = ["model_comparison", "run_names"]


def model_comparison(runs: Sequence[RunRecord], *, theme: Theme = LIGHT) -> Chart:
    """A row a run: its belief and interval, or why it has none. The order is kept."""
    if not runs:
        raise RecordError("`runs` must hold at least one run, got none; name some to compare")
    rows = [_row(run, name, theme) for run, name in zip(runs, run_names(runs), strict=True)]
    claims = list(dict.fromkeys(run.claim for run in runs))
    lenses = [lens for lens in LENS_NAMES if any(run.lens == lens for run in runs)]
    title = claims[0] if len(claims) == 1 else f"{len(claims)} claims side by side"
    answers = sum(run.usage.compliant for run in runs)
    legend = listed(f"{lens}: {LENS_NAMES[lens]}" for lens in lenses)
    said = "; ".join(_described(row) for row in rows[:20])
    return figure(
        interval_panel(rows, axis=prob_axis(), theme=theme, reference=0.5),
        title=title,
        subtitle=[
            f"n = {counted(len(runs), 'run')}, {counted(answers, 'answer')}; bars: 95% intervals",
            legend,
        ],
        description=f"Beliefs of {counted(len(runs), 'run')} side by side: {said}.",
        theme=theme,
        wide=True,
    )


def _described(row: IntervalRow) -> str:
    value = "no estimate" if row.value is None else f"{row.value:.3f}"
    return f"{listed([row.label, row.detail])} {value}"


def run_names(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """What tells each run from the others, in one line or two.

    Of claim, model and lens, those that differ; where nothing does, the execution.
    """
    several_claims = len({run.claim for run in runs}) > 1
    several_models = len({run.model for run in runs}) > 1
    several_lenses = len({(run.lens, _variant(run)) for run in runs}) > 1
    names = []
    for run in runs:
        lens = f"{run.lens} {_variant(run)}".strip() if several_lenses else ""
        model = run.model if several_models or not (several_claims or several_lenses) else ""
        if several_claims:
            names.append((drawable(run.claim), listed([drawable(model), lens])))
        else:
            names.append((listed([drawable(model), lens]), ""))
    counts = Counter(names)
    return [
        (first, listed([second, run.execution_id[:13]]))
        if counts[first, second] > 1
        else (first, second)
        for run, (first, second) in zip(runs, names, strict=True)
    ]


def _row(run: RunRecord, name: tuple[str, str], theme: Theme) -> IntervalRow:
    belief = run.aggregates
    lo, hi = belief.ci95 or (None, None)
    return IntervalRow(
        label=name[0],
        detail=name[1],
        value=belief.prob_true_rpl,
        lo=lo,
        hi=hi,
        reason=f"no estimate: {run.reason}",
        note=(label_of(run) or "").partition(":")[0],
        colour=theme.colour(run.lens),
        shape=SHAPES[run.lens],
        hollow=run.lens == "NUL",
    )


def _variant(run: RunRecord) -> str:
    return (run.evidence.variant if run.evidence else None) or ""
