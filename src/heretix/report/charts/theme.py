"""Look of every picture: one type scale, and colours that mean something. Each meaning has a shape
and a dash of its own beside its colour, so that a chart still reads in black and white. Colours of
the two themes stand in pairs: a chart is made in one of them, and `dark_css` turns a drawn one into
the other."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from heretix.core.lenses import LENSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FONT: Final = "Helvetica, Arial, Liberation Sans, sans-serif"
"""Fonts of one metric: text takes the same room on every machine."""
TITLE_PX: Final = 16
TEXT_PX: Final = 12
SMALL_PX: Final = 11

SHAPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{code: lens.shape for code, lens in LENSES.items()},
        "heretic": "triangle-up",
        "orthodox": "triangle-down",
    }
)
SERIES_SHAPES: Final = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "cross",
    "triangle-right",
)
SERIES_DASHES: Final = ([1, 0], [7, 3], [2, 2], [10, 3, 2, 3], [4, 2], [12, 4], [1, 3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours of a picture. Lenses and sides are safe for the colour-blind (after Okabe and
    Ito 2008); the series, which mean nothing by themselves, are Tol's bright scheme."""

    dark: bool
    paper: str
    ink: str
    muted: str
    grid: str
    band: str  # The 95% interval, where it is a surface
    warn: str
    heretic: str
    orthodox: str
    series_colours: tuple[str, ...]

    def colour(self, meaning: str) -> str:
        """Return the colour of a lens or a side."""
        if (lens := LENSES.get(meaning)) is not None:
            return lens.colour_dark if self.dark else lens.colour
        return str(getattr(self, meaning))

    def series(self, number: int) -> str:
        """Return the colour of the n-th of several things that have no meaning of their own."""
        return self.series_colours[number % len(self.series_colours)]

    def config(self) -> dict[str, Any]:
        """Return the part of a Vega-Lite chart that says how it looks."""
        words = {
            "labelColor": self.ink,
            "labelFontSize": TEXT_PX,
            "titleColor": self.muted,
            "titleFontSize": TEXT_PX,
            "titleFontWeight": "normal",
        }
        return {
            "background": self.paper,
            "font": FONT,
            "padding": 12,
            "view": {"stroke": None},
            "title": {
                "anchor": "start",
                "frame": "bounds",
                "fontSize": TITLE_PX,
                "fontWeight": "bold",
                "color": self.ink,
                "subtitleFontSize": TEXT_PX,
                "subtitleColor": self.muted,
                "subtitlePadding": 5,
                "subtitleLineHeight": 16,
                "offset": 14,
            },
            "axis": {
                **words,
                "titlePadding": 8,
                "domainColor": self.muted,
                "tickColor": self.muted,
                "gridColor": self.grid,
            },
            "legend": {**words, "symbolStrokeWidth": 2},
            "text": {"fontSize": TEXT_PX, "color": self.ink},
        }


LIGHT: Final = Theme(
    dark=False,
    paper="#ffffff",
    ink="#1f2630",
    muted="#59636f",
    grid="#e3e7eb",
    band="#d5dbe2",
    warn="#9a3412",
    heretic="#7a35b8",
    orthodox="#8a6500",
    series_colours=("#4477aa", "#d9485a", "#228833", "#9a8a1c", "#2a95b8", "#aa3377", "#777777"),
)
DARK: Final = Theme(
    dark=True,
    paper="#15191f",
    ink="#e7eaee",
    muted="#a5afba",
    grid="#2c333c",
    band="#3a434e",
    warn="#f6a878",
    heretic="#c39bf5",
    orthodox="#e5bd3f",
    series_colours=("#7aa9db", "#ee7a88", "#5dbb6c", "#d6c65a", "#6fcbe6", "#d976ad", "#b5b5b5"),
)


def css_variables() -> str:
    """Write the colours as custom properties, for pages around charts. Print stays light."""
    light = "".join(f"--hx-{name}:{value[0]};" for name, value in colour_pairs())
    dark = "".join(f"--hx-{name}:{value[1]};" for name, value in colour_pairs())
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def dark_css(within: str = "svg") -> str:
    """Write rules that give a drawn light chart its dark colours, where the reader asks for them. A
    drawing names its colours in attributes, so each can be matched. Print stays light."""
    rules = "".join(
        f'{within} [{part}="{light}"]{{{part}:{dark}}}'
        for _, (light, dark) in colour_pairs()
        for part in ("fill", "stroke")
    )
    # A browser's own drawing has its paper as a style, which only an important rule outdoes.
    paper = f"{within}.marks{{background-color:{DARK.paper} !important}}"
    return f"@media screen and (prefers-color-scheme:dark){{{paper}{rules}}}"


def tooltip_css() -> str:
    """Write rules for what a drawn chart tells the pointer: the script itself adds no styles."""
    return (
        "#vg-tooltip-element{position:fixed;z-index:1000;visibility:hidden;padding:6px 9px;"
        f"font:{TEXT_PX}px/1.4 {FONT};color:var(--hx-ink);background:var(--hx-paper);"
        "border:1px solid var(--hx-muted);border-radius:4px;pointer-events:none}"
        "#vg-tooltip-element.visible{visibility:visible}"
        "#vg-tooltip-element td.key{color:var(--hx-muted);text-align:right;padding-right:6px}"
    )


def colour_pairs() -> Iterator[tuple[str, tuple[str, str]]]:
    """List every colour by its CSS name: the light one and the dark one."""
    for lens in LENSES.values():
        yield lens.code.lower(), (lens.colour, lens.colour_dark)
    names = [field.name for field in fields(Theme) if field.type == "str"]
    yield from ((name, (getattr(LIGHT, name), getattr(DARK, name))) for name in names)
    pairs = zip(LIGHT.series_colours, DARK.series_colours, strict=True)
    yield from ((f"series-{number}", pair) for number, pair in enumerate(pairs, 1))
