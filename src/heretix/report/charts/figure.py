"""Parts of charts: a titled figure, axes, rows of intervals, and text that is safe to draw."""

from __future__ import annotations

import textwrap
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.report.charts.theme import SMALL_PX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heretix.report.charts.theme import Theme

Chart = dict[str, Any]
"""A Vega-Lite specification, with its data inside: nothing is fetched."""

SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
WIDTH: Final = 440
HEIGHT: Final = 240
_TITLE_CHARS: Final = 58
_SUBTITLE_CHARS: Final = 80
_WIDE: Final = 1.5
"""Charts with words beside their rows have so much more room for a title."""
_TIME_FORMAT: Final = {
    "year": "%Y",
    "quarter": "%b %Y",
    "month": "%b %Y",
    "week": "%d %b",
    "date": "%d %b",
    "hours": "%H:%M",
    "minutes": "%H:%M",
    "seconds": "%H:%M:%S",
    "milliseconds": "%H:%M:%S.%L",
}
_JOINERS: Final = {"\u200c", "\u200d"}


def figure(
    body: Mapping[str, Any],
    *,
    title: str,
    subtitle: Sequence[str],
    description: str,
    theme: Theme,
    wide: bool = False,
) -> Chart:
    """A whole chart: what it shows in its title, n below it, and a description for who can't see.

    Everything given is text, however it looks: no part of a record becomes an expression.
    """
    room = _WIDE if wide else 1.0
    chars = int(_SUBTITLE_CHARS * room)
    return {
        "$schema": SCHEMA,
        "description": drawable(description),
        "title": {
            "text": wrapped(title, int(_TITLE_CHARS * room), lines=2),
            "subtitle": [part for line in subtitle if line for part in wrapped(line, chars)],
        },
        # Unbroken, for whoever has another width to break them to.
        "usermeta": {"subtitle": [drawable(line) for line in subtitle if line]},
        "config": theme.config(),
        **body,
    }


def layer(
    mark: str | Mapping[str, Any], rows: Sequence[Mapping[str, Any]], **encoding: Any
) -> dict[str, Any]:
    """One layer with data of its own."""
    return {
        "data": {"values": [dict(row) for row in rows]},
        "mark": {"type": mark} if isinstance(mark, str) else dict(mark),
        "encoding": encoding,
    }


def literal(field: str) -> dict[str, Any]:
    """A channel whose values are drawn as they stand: colours, shapes."""
    return {"field": field, "type": "nominal", "scale": None}


def prob_axis(title: str = "p(true), a probability") -> dict[str, Any]:
    """A probability along the bottom: all of it, from 0 to 1, so that no chart flatters."""
    return {
        "type": "quantitative",
        "scale": {"domain": [0, 1], "nice": False},
        "axis": {"title": title, "values": [0, 0.25, 0.5, 0.75, 1], "format": ".2f"},
    }


def time_axis(field: str, title: str) -> dict[str, Any]:
    """Time along the bottom, in UTC wherever it is drawn."""
    return {
        "field": field,
        "type": "temporal",
        "scale": {"type": "utc", "padding": 12},
        "axis": {
            "title": title,
            "format": _TIME_FORMAT,
            "tickCount": 6,
            "grid": False,
            "labelOverlap": True,
        },
    }


def retitled(chart: Chart, title: str) -> Chart:
    """The chart under another title, where the page around it says the rest."""
    return {**chart, "title": {**chart["title"], "text": wrapped(title, int(_TITLE_CHARS * _WIDE))}}


def notice(
    text: str, *, title: str, subtitle: Sequence[str], description: str, theme: Theme
) -> Chart:
    """A chart with nothing to draw says why, in the place where the drawing would be."""
    mark = {
        "type": "text",
        "align": "left",
        "baseline": "top",
        "color": theme.warn,
        "lineHeight": 17,
    }
    row = {"text": wrapped(text, 72, lines=4)}
    content = layer(mark, [row], text={"field": "text"}, x={"value": 0}, y={"value": 0})
    return figure(
        {**content, "width": WIDTH, "height": 17 * len(row["text"])},
        title=title,
        subtitle=subtitle,
        description=f"{description} {text}",
        theme=theme,
    )


def wrapped(text: str, chars: int, *, lines: int = 3) -> list[str]:
    """Text in lines of at most so many characters; what doesn't fit ends in an ellipsis."""
    clean = drawable(text)
    return textwrap.wrap(clean, chars, max_lines=lines, placeholder=" …") or [""]


def number(value: float, *, signed: bool = False) -> str:
    """A number as text, with a true minus."""
    return format(value, "+.3f" if signed else ".3f").replace("-", "−")


def shortened(text: str, chars: int) -> str:
    """Text on one line of at most so many characters."""
    clean = drawable(text)
    return clean if len(clean) <= chars else clean[: chars - 1].rstrip() + "…"


def drawable(text: str) -> str:
    """Text as one line without control characters: they have no place in a drawing, and some
    would turn the reading direction of what stands beside them."""
    shown = (
        "�" if unicodedata.category(char)[0] == "C" and char not in _JOINERS else char
        for char in " ".join(text.split())
    )
    return "".join(shown)


def small_text(theme: Theme, **more: Any) -> dict[str, Any]:
    """A mark for notes beside what is drawn."""
    return {"type": "text", "fontSize": SMALL_PX, "color": theme.muted, **more}


def listed(parts: Iterable[str]) -> str:
    """The parts of a subtitle's line."""
    return " · ".join(part for part in parts if part)


# Intervals below each other: one row a thing, its value, its 95% interval, or why it has none.

LABEL_CHARS: Final = 46
_STEP_PX: Final = 30
_TALL_STEP_PX: Final = 38
_REASON_CHARS: Final = 80
_ZERO_IS_PLAIN: Final = "abs(datum.value) < 1e-9 ? '0' : format(datum.value, '+.2f')"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """One row. A value that is missing is None, and `reason` says why."""

    label: str
    detail: str = ""
    """A second line of the label."""
    value: float | None
    lo: float | None = None
    hi: float | None = None
    reason: str | None = None
    note: str = ""
    colour: str
    shape: str = "circle"
    hollow: bool = False


def interval_panel(
    rows: Sequence[IntervalRow],
    *,
    axis: dict[str, Any],
    theme: Theme,
    signed: bool = False,
    reference: float | None = None,
) -> dict[str, Any]:
    """A panel of rows, in the order given; `reference` is a line that they are read against."""
    y = row_axis(len(rows))
    known = [
        _known(place, row, theme, signed=signed)
        for place, row in enumerate(rows)
        if row.value is not None
    ]
    missing = [
        {"row": place, "reason": shortened(row.reason or "no value", _REASON_CHARS)}
        for place, row in enumerate(rows)
        if row.value is None
    ]
    labels = [
        (shortened(row.label, LABEL_CHARS), shortened(row.detail, LABEL_CHARS)) for row in rows
    ]
    layers = [] if reference is None else [_reference(reference, axis, theme)]
    layers += [*row_labels(labels, y, theme), *_drawn(known, axis, y, theme)]
    layers += _missing(missing, axis, y, theme)
    tall = any(row.detail or row.note for row in rows)
    step = _TALL_STEP_PX if tall else _STEP_PX
    return {"width": WIDTH, "height": {"step": step}, "layer": layers}


def difference_axis(title: str, rows: Sequence[IntervalRow]) -> dict[str, Any]:
    """An axis with 0 in its middle and room for every interval."""
    ends = [abs(end) for row in rows for end in (row.value, row.lo, row.hi) if end is not None]
    reach = max([0.05, *ends]) * 1.08
    return {
        "type": "quantitative",
        "scale": {"domain": [-reach, reach], "nice": False},
        "axis": {"title": title, "labelExpr": _ZERO_IS_PLAIN, "tickCount": 5},
    }


def row_axis(count: int) -> dict[str, Any]:
    """Rows by number: two with the same words stay two."""
    return {
        "field": "row",
        "type": "ordinal",
        "scale": {"domain": list(range(count))},
        "axis": None,
    }


def row_labels(
    labels: Sequence[tuple[str, str]], y: dict[str, Any], theme: Theme
) -> list[dict[str, Any]]:
    """The words at the left of each row, and the smaller ones below them."""
    place = {"x": {"value": -12}, "y": y, "text": {"field": "text"}}
    text = {"type": "text", "align": "right", "color": theme.ink}
    single = [{"row": row, "text": name} for row, (name, detail) in enumerate(labels) if not detail]
    double = [{"row": row, "text": name} for row, (name, detail) in enumerate(labels) if detail]
    below = [{"row": row, "text": detail} for row, (_, detail) in enumerate(labels) if detail]
    layers = [
        layer(text, single, **place),
        layer({**text, "dy": -7}, double, **place),
        layer(small_text(theme, align="right", dy=8), below, **place),
    ]
    return [part for part in layers if part["data"]["values"]]


def _known(place: int, row: IntervalRow, theme: Theme, *, signed: bool) -> dict[str, Any]:
    assert row.value is not None
    said = number(row.value, signed=signed)
    if row.lo is not None and row.hi is not None:
        said += f"\u2002[{number(row.lo, signed=signed)}, {number(row.hi, signed=signed)}]"
    return {
        "row": place,
        "label": shortened(row.label, LABEL_CHARS),
        "value": row.value,
        "lo": row.lo,
        "hi": row.hi,
        "said": said,
        "note": drawable(row.note),
        "colour": row.colour,
        "fill": theme.paper if row.hollow else row.colour,
        "shape": row.shape,
    }


def _drawn(
    rows: Sequence[dict[str, Any]], axis: dict[str, Any], y: dict[str, Any], theme: Theme
) -> list[dict[str, Any]]:
    tooltip = [
        {"field": "label", "type": "nominal", "title": "row"},
        {"field": "said", "type": "nominal", "title": "value [95% interval]"},
    ]
    spans = [row for row in rows if row["lo"] is not None and row["hi"] is not None]
    rules = layer(
        {"type": "rule", "strokeWidth": 3, "strokeCap": "round", "opacity": 0.75},
        spans,
        x={**axis, "field": "lo"},
        x2={"field": "hi"},
        y=y,
        color=literal("colour"),
    )
    points = layer(
        {"type": "point", "size": 95, "strokeWidth": 2, "opacity": 1},
        rows,
        x={**axis, "field": "value"},
        y=y,
        shape=literal("shape"),
        stroke=literal("colour"),
        fill=literal("fill"),
        tooltip=tooltip,
    )
    beside = {"x": {"value": WIDTH + 14}, "y": y}
    said = layer(
        {"type": "text", "align": "left", "color": theme.ink},
        rows,
        text={"field": "said"},
        **beside,
    )
    noted = layer(
        small_text(theme, align="left", dy=14),
        [row for row in rows if row["note"]],
        text={"field": "note"},
        **beside,
    )
    return [part for part in (rules, points, said, noted) if part["data"]["values"]]


def _missing(
    rows: Sequence[dict[str, Any]], axis: dict[str, Any], y: dict[str, Any], theme: Theme
) -> list[dict[str, Any]]:
    if not rows:
        return []
    mark = small_text(theme, align="left", fontStyle="italic", dx=6) | {"color": theme.warn}
    start = {**axis, "datum": axis["scale"]["domain"][0]}
    return [layer(mark, rows, x=start, y=y, text={"field": "reason"})]


def _reference(value: float, axis: dict[str, Any], theme: Theme) -> dict[str, Any]:
    mark = {"type": "rule", "color": theme.muted, "strokeDash": [3, 3]}
    return layer(mark, [{"value": value}], x={**axis, "field": "value"})
