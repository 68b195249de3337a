"""Parts of charts: a titled figure, axes, rows of intervals, and text that is safe to draw."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.report.charts.theme import SMALL_PX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heretix.report.charts.theme import Theme

Chart = dict[str, Any]  # A Vega-Lite specification, with its data inside: nothing is fetched
Part = dict[str, Any]  # A part of one: a layer, a channel, an axis
Rows = Sequence[Mapping[str, Any]]

SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
WIDTH: Final = 440
HEIGHT: Final = 240
_TITLE_CHARS: Final = 58
_SUBTITLE_CHARS: Final = 80
_WIDE: Final = 1.5  # Charts with words beside their rows have so much more room for a title
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
_SPACES: Final = re.compile(r"[^\S\u00a0]+")
"""All but the space at which no line may break."""


def figure(
    body: Mapping[str, Any],
    *,
    title: str,
    subtitle: Sequence[str],
    description: str,
    theme: Theme,
    wide: bool = False,
) -> Chart:
    """Make a chart: what it shows in its title, n below it, a description for who can't see.
    Everything given is text, however it looks: no part of a record becomes an expression."""
    room = _WIDE if wide else 1.0
    chars = int(_SUBTITLE_CHARS * room)
    return {
        "$schema": SCHEMA,
        "description": strip_controls(description),
        "title": {
            "text": wrap_text(title, int(_TITLE_CHARS * room), lines=2),
            "subtitle": [part for line in subtitle if line for part in wrap_text(line, chars)],
        },
        # Unbroken, for whoever has another width to break them to.
        "usermeta": {"subtitle": [strip_controls(line) for line in subtitle if line]},
        "config": theme.config(),
        **body,
    }


def layer(kind: str, rows: Rows, encoding: Mapping[str, Any], **mark: Any) -> Part:
    """Make one layer with data of its own: marks of a kind, and where and how each is drawn."""
    return {
        "data": {"values": [dict(row) for row in rows]},
        "mark": {"type": kind, **mark},
        "encoding": dict(encoding),
    }


def text_layer(rows: Rows, encoding: Mapping[str, Any], field: str = "said", **mark: Any) -> Part:
    """Make a layer of texts, which stand in a field of the rows."""
    return layer("text", rows, {**encoding, "text": {"field": field}}, **mark)


def literal(field: str) -> Part:
    """Make a channel whose values are drawn as they stand: colours, shapes."""
    return {"field": field, "type": "nominal", "scale": None}


def tooltip(*fields: tuple[str, ...]) -> list[Part]:
    """List what a pointer is told: a field, its type or a number's format, perhaps a title."""
    told = []
    for name, kind, *title in fields:
        typed = {"type": kind} if kind.isalpha() else {"type": "quantitative", "format": kind}
        told.append({"field": name, **typed, **({"title": title[0]} if title else {})})
    return told


def quantity(title: str, *, scale: Mapping[str, Any], **axis: Any) -> Part:
    """Make an axis of numbers."""
    return {"type": "quantitative", "scale": dict(scale), "axis": {"title": title, **axis}}


def prob_axis(title: str = "p(true), a probability", *, form: str = ".2f") -> Part:
    """Make an axis of probability: all of it, from 0 to 1, so that no chart flatters."""
    scale = {"domain": [0, 1], "nice": False}
    return quantity(title, scale=scale, values=[0, 0.25, 0.5, 0.75, 1], format=form)


def time_axis(field: str, title: str) -> Part:
    """Make an axis of time, in UTC wherever it is drawn."""
    axis = {"title": title, "format": _TIME_FORMAT, "tickCount": 6}
    return {
        "field": field,
        "type": "temporal",
        "scale": {"type": "utc", "padding": 12},
        "axis": {**axis, "grid": False, "labelOverlap": True},
    }


def with_title(chart: Chart, title: str) -> Chart:
    """Put a chart under another title, where the page around it says the rest."""
    return {
        **chart,
        "title": {**chart["title"], "text": wrap_text(title, int(_TITLE_CHARS * _WIDE))},
    }


def notice(
    text: str, *, title: str, subtitle: Sequence[str], description: str, theme: Theme
) -> Chart:
    """Make a chart that says why there is nothing to draw, in the place of the drawing."""
    return figure(
        notice_panel(text, theme),
        title=title,
        subtitle=subtitle,
        description=f"{description} {text}",
        theme=theme,
    )


def notice_panel(text: str, theme: Theme) -> Part:
    """Make a panel of words."""
    lines = wrap_text(text, 72, lines=4)
    look = {"align": "left", "baseline": "top", "color": theme.warn, "lineHeight": 17}
    corner = {"x": {"value": 0}, "y": {"value": 0}}
    words = text_layer([{"text": lines}], corner, "text", **look)
    return {**words, "width": WIDTH, "height": 17 * len(lines)}


def wrap_text(text: str, chars: int, *, lines: int = 3) -> list[str]:
    """Break text into lines of at most so many characters; what doesn't fit ends in an ellipsis."""
    clean = strip_controls(text)
    return textwrap.wrap(clean, chars, max_lines=lines, placeholder=" …") or [""]


def number(value: float, *, signed: bool = False) -> str:
    """Write a number with a true minus."""
    return format(value, "+.3f" if signed else ".3f").replace("-", "−")


def shorten(text: str, chars: int) -> str:
    """Cut text to one line of at most so many characters."""
    clean = strip_controls(text)
    return clean if len(clean) <= chars else clean[: chars - 1].rstrip() + "…"


def strip_controls(text: str) -> str:
    """Put text on one line without control characters: they have no place in a drawing, and some
    would turn the reading direction of what stands beside them."""
    shown = (
        "�" if unicodedata.category(char)[0] == "C" and char not in _JOINERS else char
        for char in " ".join(_SPACES.split(text.strip()))
    )
    return "".join(shown)


def small_text(theme: Theme, **more: Any) -> Part:
    """Make the look of notes beside what is drawn."""
    return {"fontSize": SMALL_PX, "color": theme.muted, **more}


def join_parts(parts: Iterable[str]) -> str:
    """Join the parts of a subtitle's line."""
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
    detail: str = ""  # A second line of the label
    value: float | None
    lo: float | None = None
    hi: float | None = None
    t_ends: tuple[float, float] | None = None  # By Student's t: a thin line below the bar
    reason: str | None = None
    note: str = ""
    colour: str
    shape: str = "circle"
    hollow: bool = False


def interval_panel(
    rows: Sequence[IntervalRow],
    *,
    axis: Part,
    theme: Theme,
    signed: bool = False,
    reference: float | None = None,
) -> Part:
    """Make a panel of rows, in the order given; `reference` is a line they are read against."""
    y = row_axis(len(rows))
    known = [
        _make_known_row(place, row, theme, signed=signed)
        for place, row in enumerate(rows)
        if row.value is not None
    ]
    missing = [
        {"row": place, "reason": shorten(row.reason or "no value", _REASON_CHARS)}
        for place, row in enumerate(rows)
        if row.value is None
    ]
    labels = [(shorten(row.label, LABEL_CHARS), shorten(row.detail, LABEL_CHARS)) for row in rows]
    layers = []
    if reference is not None:
        line = {"color": theme.muted, "strokeDash": [3, 3]}
        at = {"x": {**axis, "field": "value"}}
        layers.append(layer("rule", [{"value": reference}], at, **line))
    layers += [*row_labels(labels, y, theme), *_draw_rows(known, axis, y, theme)]
    if missing:
        look = small_text(theme, align="left", fontStyle="italic", dx=6) | {"color": theme.warn}
        start = {**axis, "datum": axis["scale"]["domain"][0]}
        layers.append(text_layer(missing, {"x": start, "y": y}, "reason", **look))
    tall = any(row.detail or row.note for row in rows)
    step = _TALL_STEP_PX if tall else _STEP_PX
    return {"width": WIDTH, "height": {"step": step}, "layer": layers}


def difference_axis(title: str, rows: Sequence[IntervalRow]) -> Part:
    """Make an axis with 0 in its middle and room for every interval."""
    drawn = [end for row in rows for end in (row.value, row.lo, row.hi, *(row.t_ends or ()))]
    ends = [abs(end) for end in drawn if end is not None]
    reach = max([0.05, *ends]) * 1.08
    scale = {"domain": [-reach, reach], "nice": False}
    return quantity(title, scale=scale, labelExpr=_ZERO_IS_PLAIN, tickCount=5)


def row_axis(count: int) -> Part:
    """Make an axis of rows by number: two with the same words stay two."""
    domain = {"domain": list(range(count))}
    return {"field": "row", "type": "ordinal", "scale": domain, "axis": None}


def row_labels(labels: Sequence[tuple[str, str]], y: Part, theme: Theme) -> list[Part]:
    """Write the words at the left of each row, and the smaller ones below them."""
    place, look = {"x": {"value": -12}, "y": y}, {"align": "right", "color": theme.ink}
    single = [{"row": row, "text": name} for row, (name, detail) in enumerate(labels) if not detail]
    double = [{"row": row, "text": name} for row, (name, detail) in enumerate(labels) if detail]
    below = [{"row": row, "text": detail} for row, (_, detail) in enumerate(labels) if detail]
    layers = [
        text_layer(single, place, "text", **look),
        text_layer(double, place, "text", **look, dy=-7),
        text_layer(below, place, "text", **small_text(theme, align="right", dy=8)),
    ]
    return [part for part in layers if part["data"]["values"]]


def _make_known_row(place: int, row: IntervalRow, theme: Theme, *, signed: bool) -> Part:
    assert row.value is not None
    said = number(row.value, signed=signed)
    if row.lo is not None and row.hi is not None:
        said += f"\u2002[{number(row.lo, signed=signed)}, {number(row.hi, signed=signed)}]"
    return {
        "row": place,
        "label": shorten(row.label, LABEL_CHARS),
        "value": row.value,
        "lo": row.lo,
        "hi": row.hi,
        **(dict(zip(("t_lo", "t_hi"), row.t_ends, strict=True)) if row.t_ends else {}),
        "said": said,
        "note": strip_controls(row.note),
        "colour": row.colour,
        "fill": theme.paper if row.hollow else row.colour,
        "shape": row.shape,
    }


def _draw_rows(rows: Rows, axis: Part, y: Part, theme: Theme) -> list[Part]:
    told = ("label", "nominal", "row"), ("said", "nominal", "value [95% interval]")
    colour, beside = literal("colour"), {"x": {"value": WIDTH + 14}, "y": y}
    spans = [row for row in rows if row["lo"] is not None and row["hi"] is not None]
    ends = {"x": {**axis, "field": "lo"}, "x2": {"field": "hi"}, "y": y, "color": colour}
    points = {
        "x": {**axis, "field": "value"},
        "y": y,
        "shape": literal("shape"),
        "stroke": colour,
        "fill": literal("fill"),
        "tooltip": tooltip(*told),
    }
    noted = [row for row in rows if row["note"]]
    by_t = [row for row in rows if "t_lo" in row]
    thin = {**ends, "x": {**axis, "field": "t_lo"}, "x2": {"field": "t_hi"}}
    layers = [
        layer("rule", spans, ends, strokeWidth=3, strokeCap="round", opacity=0.75),
        layer("rule", by_t, thin, strokeWidth=1, yOffset=7),
        layer("point", rows, points, size=95, strokeWidth=2, opacity=1),
        text_layer(rows, beside, align="left", color=theme.ink),
        text_layer(noted, beside, "note", **small_text(theme, align="left", dy=14)),
    ]
    return [part for part in layers if part["data"]["values"]]
