"""Intervals below each other: one row a thing, its value, its 95% interval, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.report.charts.figure import WIDTH, drawable, layer, number, shortened, small_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.report.theme import Theme

__all__ = ["IntervalRow", "difference_axis", "interval_panel", "row_axis", "row_labels"]

LABEL_CHARS: Final = 46
_STEP_PX: Final = 30
_TALL_STEP_PX: Final = 38
_REASON_CHARS: Final = 80
_LITERAL: Final = {"type": "nominal", "scale": None}
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
        color={**_LITERAL, "field": "colour"},
    )
    points = layer(
        {"type": "point", "size": 95, "strokeWidth": 2, "opacity": 1},
        rows,
        x={**axis, "field": "value"},
        y=y,
        shape={**_LITERAL, "field": "shape"},
        stroke={**_LITERAL, "field": "colour"},
        fill={**_LITERAL, "field": "fill"},
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
