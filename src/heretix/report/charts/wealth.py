"""Wealth by strategy: how ways of playing fare, episode by episode."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import RecordError
from heretix.report.charts.figure import HEIGHT, WIDTH, Chart, figure, layer, listed, shortened
from heretix.report.charts.theme import LIGHT, SERIES_DASHES, SERIES_SHAPES, Theme

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WealthPoint", "WealthSummary", "wealth_by_strategy"]

_LINE_PX: Final = 17
_NAME_CHARS: Final = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class WealthPoint:
    """What a strategy had after an episode, or at a time.

    Over several runs: the mean, and the 2.5th and 97.5th percentile.
    """

    strategy: str
    at: float
    wealth: float
    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WealthSummary:
    """What a strategy came to over `n` runs: the mean, and 95% of the runs."""

    strategy: str
    n: int
    start: float
    final: float
    lo: float | None = None
    hi: float | None = None


def wealth_by_strategy(
    points: Sequence[WealthPoint],
    summaries: Sequence[WealthSummary] = (),
    *,
    unit: str,
    axis: str = "episode",
    theme: Theme = LIGHT,
) -> Chart:
    """A line a strategy, named at its end; the band is the interval over runs, where given."""
    if not points:
        raise RecordError("`points` must hold at least one, got none; simulate an episode first")
    names = list(dict.fromkeys(point.strategy for point in points))
    rows = [{**asdict(point), "strategy": _name(point.strategy)} for point in points]
    steps = len({point.at for point in points})
    lines = {summary.strategy: _summary(summary, unit) for summary in summaries}
    said = "; ".join(f"{_name(name)} {lines[name]}" for name in names if name in lines)
    return figure(
        {
            "width": WIDTH,
            "height": HEIGHT,
            "layer": [
                *_lines(rows, [_name(name) for name in names], unit, axis, theme),
                *_labels(rows, names, lines, theme),
            ],
        },
        title="Wealth by strategy",
        subtitle=[
            listed([f"n = {len(names)} strategies, {steps} points each", *_runs(summaries)]),
        ],
        description=f"Wealth in {unit} of {len(names)} strategies by {axis}. {said}".strip(),
        theme=theme,
    )


def _name(strategy: str) -> str:
    return shortened(strategy, _NAME_CHARS)


def _runs(summaries: Sequence[WealthSummary]) -> list[str]:
    counts = sorted({summary.n for summary in summaries})
    if not counts:
        return []
    said = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [f"{said} runs each; bands: 95% of the runs"]


def _summary(summary: WealthSummary, unit: str) -> str:
    change = summary.final - summary.start
    text = f"{change:+,.0f} {unit}"
    if summary.lo is not None and summary.hi is not None:
        text += f" [{summary.lo - summary.start:+,.0f}, {summary.hi - summary.start:+,.0f}]"
    return text.replace("-", "−")


def _lines(
    rows: Sequence[dict[str, Any]], names: Sequence[str], unit: str, axis: str, theme: Theme
) -> list[dict[str, Any]]:
    x = {"field": "at", "type": "quantitative", "axis": {"title": axis, "grid": False}}
    y = {
        "field": "wealth",
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"title": f"wealth ({unit})", "tickCount": 5},
    }
    count = len(names)
    color = _channel(names, [theme.series(number) for number in range(count)])
    dash = _channel(names, [SERIES_DASHES[n % len(SERIES_DASHES)] for n in range(count)])
    shape = _channel(names, [SERIES_SHAPES[n % len(SERIES_SHAPES)] for n in range(count)])
    banded = [row for row in rows if row["lo"] is not None and row["hi"] is not None]
    last = {row["strategy"]: row for row in rows}
    band = layer(
        {"type": "area", "opacity": 0.12},
        banded,
        x=x,
        y={**y, "field": "lo"},
        y2={"field": "hi"},
        color=color,
    )
    line = layer({"type": "line", "strokeWidth": 2}, rows, x=x, y=y, color=color, strokeDash=dash)
    ends = layer(
        {"type": "point", "filled": True, "size": 70, "opacity": 1},
        list(last.values()),
        x=x,
        y=y,
        color=color,
        shape=shape,
        tooltip=[
            {"field": "strategy", "type": "nominal"},
            {"field": "at", "type": "quantitative", "title": axis},
            {"field": "wealth", "type": "quantitative", "format": ",.2f"},
        ],
    )
    return [band, line, ends] if banded else [line, ends]


def _labels(
    rows: Sequence[dict[str, Any]],
    names: Sequence[str],
    summaries: dict[str, str],
    theme: Theme,
) -> list[dict[str, Any]]:
    """A key beside the lines, the richest first: ends often lie too close to be named in place."""
    last = {row["strategy"]: row["wealth"] for row in rows}
    ordered = sorted(names, key=lambda name: (-last[_name(name)], name))
    key = [
        {
            "name": listed([_name(name), summaries.get(name, "")]),
            "y": 8 + _LINE_PX * place,
            "colour": theme.series(names.index(name)),
            "shape": SERIES_SHAPES[names.index(name) % len(SERIES_SHAPES)],
        }
        for place, name in enumerate(ordered)
    ]
    y = {"field": "y", "type": "quantitative", "scale": None}
    literal = {"type": "nominal", "scale": None}
    return [
        layer(
            {"type": "point", "filled": True, "size": 70, "opacity": 1},
            key,
            x={"value": WIDTH + 22},
            y=y,
            color={**literal, "field": "colour"},
            shape={**literal, "field": "shape"},
        ),
        layer(
            {"type": "text", "align": "left", "color": theme.ink},
            key,
            x={"value": WIDTH + 34},
            y=y,
            text={"field": "name"},
        ),
    ]


def _channel(names: Sequence[str], values: Sequence[object]) -> dict[str, Any]:
    return {
        "field": "strategy",
        "type": "nominal",
        "scale": {"domain": list(names), "range": list(values)},
        "legend": None,
    }
