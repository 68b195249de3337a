"""Charts as files and as parts of pages. The engine is an extra, imported when used."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import ConfigError
from heretix.report.charts.theme import css_variables, dark_css, tooltip_css

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from heretix.report.charts.figure import Chart


VL_VERSION: Final = "6.4"
PNG_SCALE: Final = 2.0  # Pixels for each of the drawing's own: sharp on a dense screen and in print
FORMATS: Final = (".html", ".json", ".pdf", ".png", ".svg")

_ROOM: Final = 0.04
"""Part of a drawing's width that is left free at either side: readers without the font in which
text was measured see it in a wider one."""
_SIZE: Final = re.compile(r'width="(\d+)" (height="\d+") viewBox="0 0 \1 (\d+)"><rect width="\1"')
_ID: Final = re.compile(r'(\bid="|url\(#|xlink:href="#|href="#)')


def save_chart(chart: Chart, path: Path) -> None:
    """Write a chart in the format that the name ends in: .svg, .png, .pdf, .html or .json."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(
            f"`{path.name}` must end in one of {', '.join(FORMATS)}, got {suffix or 'no ending'!r}"
        )
    if suffix == ".json":
        content = json.dumps(chart, indent=2, ensure_ascii=False, allow_nan=False).encode()
    elif suffix == ".html":
        content = chart_html(chart).encode()
    else:
        content = drawing_bytes(chart_svg(chart), suffix)
    write_file(path, content)


def drawing_bytes(svg: str, suffix: str, *, scale: float = PNG_SCALE) -> bytes:
    """A drawing as the bytes of a .svg, .png or .pdf file; a PDF has one page of its size."""
    if suffix == ".png":
        return bytes(_engine().svg_to_png(svg, scale=scale))
    return bytes(_engine().svg_to_pdf(svg)) if suffix == ".pdf" else svg.encode()


def chart_svg(chart: Chart, *, prefix: str = "") -> str:
    """The drawing as SVG, described for screen readers. With a prefix, the ids in it are made
    unique, so that several drawings fit one page."""
    svg: str = _engine().vegalite_to_svg(
        chart, vl_version=VL_VERSION, allowed_base_urls=[], show_warnings=False
    )
    svg = _SIZE.sub(_with_room, svg, count=1)
    if prefix:
        svg = _ID.sub(rf"\g<1>{prefix}-", svg)
    label = html.escape(str(chart["description"]), quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _with_room(size: re.Match[str]) -> str:
    width, height, viewed = int(size[1]), size[2], size[3]
    free = round(width * _ROOM)
    wide = width + 2 * free
    return (
        f'width="{wide}" {height} viewBox="{-free} 0 {wide} {viewed}">'
        f'<rect x="{-free}" width="{wide}"'
    )


def chart_json(chart: Chart) -> str:
    """A chart as JSON that can stand inside `<script type="application/json">`. Signs that could
    end the element or open a comment are written as escapes, which mean the same to a JSON
    parser."""
    text = json.dumps(chart, ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def embed_script() -> str:
    """The JavaScript that draws charts in a browser: Vega, Vega-Lite, vegaEmbed and `mount`. It
    comes out of the installed engine. It evaluates no text, so it runs under a content security
    policy without `unsafe-eval`."""
    snippet = files("heretix.report.charts").joinpath("mount.js").read_text(encoding="utf-8")
    bundle: str = _engine().javascript_bundle(snippet, vl_version=VL_VERSION)
    return bundle


def chart_html(chart: Chart) -> str:
    """A page with one chart that answers the pointer: self-contained, nothing is fetched."""
    script = embed_script().replace("</script", "<\\/script")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = html.escape(" ".join(chart["title"]["text"]))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>"
        f"<style>{css_variables()}{dark_css()}{tooltip_css()}"
        "body{background:var(--hx-paper)}</style></head>\n"
        f'<body><figure data-chart="chart">{chart_svg(chart)}</figure>\n'
        f'<script type="application/json" id="chart">{chart_json(chart)}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )


def write_file(path: Path, content: bytes) -> None:
    """Write a file; a place that can't be written is the user's to change."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"`{path}` can't be written: {exc.strerror}; choose another") from exc


def _engine() -> ModuleType | Any:
    try:
        import vl_convert
    except ImportError as exc:
        raise ConfigError(
            "`charts` need the drawing engine: `uv sync --extra charts`, "
            "or `pip install '.[charts]'` in the clone"
        ) from exc
    return vl_convert
