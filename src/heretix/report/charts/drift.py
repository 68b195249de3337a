"""Drift: the same recipe, measured again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import RecordError
from heretix.report.charts.figure import (
    HEIGHT,
    WIDTH,
    Chart,
    figure,
    layer,
    listed,
    small_text,
    time_axis,
)
from heretix.report.theme import LIGHT, SERIES_SHAPES, Theme
from heretix.report.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import RunRecord

__all__ = ["drift"]

_MINUTE: Final = timedelta(minutes=1)


def drift(runs: Sequence[RunRecord], *, theme: Theme = LIGHT) -> Chart:
    """Executions of one recipe over time; a model that was served in their course has a shape.

    An execution that came wholly from the cache measured nothing anew: it is drawn hollow.
    """
    _require_one_recipe(runs)
    ordered = sorted(runs, key=lambda run: (run.started_at, run.execution_id))
    served = list(dict.fromkeys(_served(run) for run in ordered))
    rows = [
        {"execution": number, **_row(run, served, theme)} for number, run in enumerate(ordered, 1)
    ]
    x = _axis(rows)
    known = [row for row in rows if row["prob"] is not None]
    missing = [row for row in rows if row["prob"] is None]
    first = ordered[0]
    answers = sum(run.usage.called for run in ordered)
    said = "; ".join(
        f"{row['at'][:10]} {'no estimate' if row['prob'] is None else format(row['prob'], '.3f')}"
        for row in rows[:20]
    )
    return figure(
        {
            "width": WIDTH,
            "height": HEIGHT,
            "layer": [*_known(known, x, served, first.lens, theme), *_missing(missing, x, theme)],
        },
        title=first.claim,
        subtitle=[
            listed([first.model, f"lens {first.lens}", _n(len(ordered), answers)]),
            "Bars: 95% intervals. Hollow: every answer came from the cache.",
        ],
        description=f"p(true) of one recipe over {len(ordered)} executions: {said}.",
        theme=theme,
    )


def _n(executions: int, answers: int) -> str:
    return f"n = {counted(executions, 'execution')}, {counted(answers, 'new answer')}"


def _require_one_recipe(runs: Sequence[RunRecord]) -> None:
    recipes = list(dict.fromkeys(run.run_id for run in runs))
    if len(recipes) != 1:
        got = ", ".join(recipes) or "none"
        raise RecordError(
            f"`runs` must be executions of one run_id, got {got}; what differs is compared with "
            "`model_comparison`"
        )


def _served(run: RunRecord) -> str:
    return ", ".join(found.provider_model_id or "not named" for found in run.served) or "nobody"


def _row(run: RunRecord, served: Sequence[str], theme: Theme) -> dict[str, Any]:
    belief = run.aggregates
    lo, hi = belief.ci95 or (None, None)
    colour = theme.colour(run.lens)
    fresh = run.usage.called > 0
    return {
        "at": run.started_at,
        "prob": belief.prob_true_rpl,
        "lo": lo,
        "hi": hi,
        "served": _served(run),
        "shape": SERIES_SHAPES[served.index(_served(run)) % len(SERIES_SHAPES)],
        "fill": colour if fresh else theme.paper,
        "reason": f"no estimate: {run.reason}" if belief.prob_true_rpl is None else None,
    }


def _axis(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """When each was measured; those of one minute are numbered, since a clock tells nothing."""
    begun = [datetime.fromisoformat(row["at"]) for row in rows]
    if len(rows) < 2 or max(begun) - min(begun) >= _MINUTE:
        return time_axis("at", "measured (UTC)")
    title = f"execution, all at {min(begun).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return {
        "field": "execution",
        "type": "quantitative",
        "scale": {"nice": False, "padding": 12},
        "axis": {"title": title, "tickMinStep": 1, "format": "d", "grid": False},
    }


def _known(
    rows: Sequence[dict[str, Any]],
    x: dict[str, Any],
    served: Sequence[str],
    lens: str,
    theme: Theme,
) -> list[dict[str, Any]]:
    y = {
        "field": "prob",
        "type": "quantitative",
        "scale": {"domain": [0, 1]},
        "axis": {"title": "p(true), a probability", "values": [0, 0.25, 0.5, 0.75, 1]}
        | {"format": ".2f"},
    }
    colour = theme.colour(lens)
    shapes = [SERIES_SHAPES[number % len(SERIES_SHAPES)] for number in range(len(served))]
    return [
        layer({"type": "line", "color": colour, "opacity": 0.35}, rows, x=x, y=y),
        layer(
            {"type": "rule", "color": colour, "strokeWidth": 2.5, "opacity": 0.75},
            rows,
            x=x,
            y={**y, "field": "lo"},
            y2={"field": "hi"},
        ),
        layer(
            {"type": "point", "size": 95, "strokeWidth": 2, "stroke": colour, "opacity": 1},
            rows,
            x=x,
            y=y,
            fill={"field": "fill", "type": "nominal", "scale": None},
            shape={
                "field": "served",
                "type": "nominal",
                "scale": {"domain": list(served), "range": shapes},
                "legend": {
                    "title": "served",
                    "orient": "bottom",
                    "symbolStrokeColor": colour,
                    "symbolFillColor": colour,
                },
            },
            tooltip=[
                {"field": "at", "type": "temporal", "title": "measured"},
                {"field": "prob", "type": "quantitative", "format": ".3f"},
                {"field": "served", "type": "nominal"},
            ],
        ),
    ]


def _missing(
    rows: Sequence[dict[str, Any]], x: dict[str, Any], theme: Theme
) -> list[dict[str, Any]]:
    """A failed execution stands at the foot of its day: it has no height."""
    if not rows:
        return []
    mark = small_text(theme, fontStyle="italic", baseline="bottom", dy=-4) | {"color": theme.warn}
    said = [{**row, "text": "no estimate"} for row in rows]
    foot = layer(
        mark,
        said,
        x=x,
        y={"value": HEIGHT},
        text={"field": "text"},
        tooltip={"field": "reason"},
    )
    return [foot]
