"""What charts are put together from: a titled figure, axes, and text that is safe to draw."""

from __future__ import annotations

import textwrap
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from heretix.report.theme import SMALL_PX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heretix.report.theme import Theme

__all__ = [
    "HEIGHT",
    "WIDTH",
    "Chart",
    "drawable",
    "figure",
    "layer",
    "listed",
    "notice",
    "number",
    "prob_axis",
    "retitled",
    "shortened",
    "small_text",
    "time_axis",
    "wrapped",
]

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
