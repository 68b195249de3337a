"""Wealth by strategy: how ways of playing fare, episode by episode."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import RecordError
from heretix.report.charts.figure import HEIGHT, WIDTH, Chart, figure, layer, listed, shortened
from heretix.report.theme import LIGHT, SERIES_DASHES, SERIES_SHAPES, Theme

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["WealthPoint", "WealthSummary", "wealth_by_strategy"]

_LINE_PX: Final = 15
_NAME_CHARS: Final = 28
_THROUGH: Final = [1, 0]
_DASHES: Final = tuple(dash for dash in SERIES_DASHES if dash != _THROUGH)


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
    emphasised: Collection[str] = (),
    bystanders: Collection[str] = (),
    theme: Theme = LIGHT,
) -> Chart:
    """A line a strategy, named at its end; the band is the interval over runs, where given.

    With `emphasised` strategies, theirs are thick and in colour; all others are grey, those of
    `bystanders` drawn through and the rest dashed. More than seven can't be told by colour.
    """
    if not points:
        raise RecordError("`points` must hold at least one, got none; simulate an episode first")
    names = list(dict.fromkeys(point.strategy for point in points))
    rows = [{**asdict(point), "strategy": _name(point.strategy)} for point in points]
    steps = len({point.at for point in points})
    lines = {summary.strategy: _summary(summary, unit) for summary in summaries}
    said = "; ".join(f"{_name(name)} {lines[name]}" for name in names if name in lines)
    looks = {
        name: _look(number, name, emphasised, bystanders, theme)
        for number, name in enumerate(names)
    }
    return figure(
        {
            "width": WIDTH,
            "height": HEIGHT,
            "layer": [
                *_lines(rows, looks, unit, axis),
                *_labels(rows, looks, lines, theme),
            ],
        },
        title="Wealth by strategy",
        subtitle=[
            listed([f"n = {len(names)} strategies, {steps} points each", *_runs(summaries)]),
        ],
        description=f"Wealth in {unit} of {len(names)} strategies by {axis}. {said}".strip(),
        theme=theme,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """How one strategy is drawn."""

    colour: str
    dash: list[int]
    shape: str
    width: float
    size: int
    bold: bool


def _look(
    number: int,
    name: str,
    emphasised: Collection[str],
    bystanders: Collection[str],
    theme: Theme,
) -> _Look:
    shape = SERIES_SHAPES[number % len(SERIES_SHAPES)]
    dash = SERIES_DASHES[number % len(SERIES_DASHES)]
    if not emphasised:
        return _Look(
            colour=theme.series(number), dash=dash, shape=shape, width=2, size=60, bold=False
        )
    if name in emphasised:
        colour = theme.series(list(emphasised).index(name))
        return _Look(colour=colour, dash=_THROUGH, shape=shape, width=4, size=80, bold=True)
    through = name in bystanders
    dash = _THROUGH if through else _DASHES[number % len(_DASHES)]
    return _Look(colour=theme.nul, dash=dash, shape=shape, width=1.2, size=25, bold=False)


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
    rows: Sequence[dict[str, Any]], looks: Mapping[str, _Look], unit: str, axis: str
) -> list[dict[str, Any]]:
    x = {
        "field": "at",
        "type": "quantitative",
        "scale": {"domain": _extent([row["at"] for row in rows]), "nice": False},
        "axis": {"title": axis, "grid": False},
    }
    y = {
        "field": "wealth",
        "type": "quantitative",
        "scale": {"domain": _range(rows), "nice": False, "zero": False},
        "axis": {"title": f"wealth ({unit})", "tickCount": 5},
    }
    names = [_name(name) for name in looks]
    color = _channel(names, [look.colour for look in looks.values()])
    dash = _channel(names, [look.dash for look in looks.values()])
    shape = _channel(names, [look.shape for look in looks.values()])
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
    shown = [band] if banded else []
    # What is emphasised comes last: it lies over the others.
    for width, size in sorted({(look.width, look.size) for look in looks.values()}):
        own = {_name(n) for n, look in looks.items() if (look.width, look.size) == (width, size)}
        shown += [
            layer(
                {"type": "line", "strokeWidth": width},
                [row for row in rows if row["strategy"] in own],
                x=x,
                y=y,
                color=color,
                strokeDash=dash,
            ),
            layer(
                {"type": "point", "filled": True, "size": size, "opacity": 1},
                [row for name, row in last.items() if name in own],
                x=x,
                y=y,
                color=color,
                shape=shape,
                tooltip=[
                    {"field": "strategy", "type": "nominal"},
                    {"field": "at", "type": "quantitative", "title": axis},
                    {"field": "wealth", "type": "quantitative", "format": ",.2f"},
                ],
            ),
        ]
    return shown


def _labels(
    rows: Sequence[dict[str, Any]],
    looks: Mapping[str, _Look],
    summaries: Mapping[str, str],
    theme: Theme,
) -> list[dict[str, Any]]:
    """Each line's name at its end, the richest first; moved apart where ends lie close."""
    last = {row["strategy"]: row["wealth"] for row in rows}
    ordered = sorted(looks, key=lambda name: (-last[_name(name)], name))
    quiet = not any(look.bold for look in looks.values())
    low, high = _range(rows)
    ends = [HEIGHT * (high - last[_name(name)]) / (high - low) for name in ordered]
    key = [
        {
            "name": listed([_name(name), summaries.get(name) or _final(last[_name(name)], quiet)]),
            "end": end,
            "y": place,
            "colour": looks[name].colour,
            "ink": theme.ink
            if looks[name].bold or looks[name].colour != theme.nul
            else theme.muted,
            "weight": "bold" if looks[name].bold else "normal",
        }
        for name, end, place in zip(ordered, ends, _apart(ends), strict=True)
    ]
    y = {"field": "y", "type": "quantitative", "scale": None}
    literal = {"type": "nominal", "scale": None}
    text = [
        layer(
            {"type": "text", "align": "left", "baseline": "middle", "fontWeight": weight},
            [row for row in key if row["weight"] == weight],
            x={"value": WIDTH + 26},
            y=y,
            color={**literal, "field": "ink"},
            text={"field": "name"},
        )
        for weight in ("normal", "bold")
        if any(row["weight"] == weight for row in key)
    ]
    leader = layer(
        {"type": "rule", "strokeWidth": 1},
        key,
        x={"value": WIDTH + 6},
        x2={"value": WIDTH + 22},
        y={**y, "field": "end"},
        y2={"field": "y"},
        color={**literal, "field": "colour"},
    )
    return [leader, *text]


def _final(wealth: float, quiet: bool) -> str:
    """What a grey line came to: it can't be read off where many lie together."""
    return "" if quiet else f"{wealth:,.1f}".replace("-", "−")


def _apart(ends: Sequence[float]) -> list[float]:
    """Places for labels, in the order of their ends, a line of text apart."""
    places: list[float] = []
    for end in ends:
        places.append(max(end, places[-1] + _LINE_PX) if places else end)
    limit = max(float(HEIGHT), _LINE_PX * (len(ends) - 1))
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - _LINE_PX
    return places


def _range(rows: Sequence[dict[str, Any]]) -> list[float]:
    names = ("wealth", "lo", "hi")
    low, high = _extent([row[name] for row in rows for name in names if row[name] is not None])
    room = 0.03 * (high - low)
    return [low - room, high + room]


def _extent(values: Sequence[float]) -> list[float]:
    """From the least to the greatest; a single value has some room around it."""
    low, high = min(values), max(values)
    return [low, high] if low < high else [low - 1, high + 1]


def _channel(names: Sequence[str], values: Sequence[object]) -> dict[str, Any]:
    return {
        "field": "strategy",
        "type": "nominal",
        "scale": {"domain": list(names), "range": list(values)},
        "legend": None,
    }
