"""Views of a panel: for a terminal, for CI (JUnit), for a webhook, and as pages."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from heretix.core.lenses import RPL
from heretix.report.charts.figure import number, shorten
from heretix.studies.panel import BASELINE_WAVES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from markupsafe import Markup
    from rich.console import RenderableType

    from heretix.studies.panel import Movement, PanelReport, Point, Series

_CLAIM_CHARS: Final = 60
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def movement_words(movement: Movement) -> str:
    """Say since when and by how much a series moved; empty where it didn't."""
    size = movement.size
    if not movement.drifted or size is None or movement.since_at is None:
        return ""
    waves = movement.since_waves
    spread = f"wave {waves[0]}" if len(waves) == 1 else f"one of waves {', '.join(map(str, waves))}"
    said = (
        f"since wave {movement.since_wave} ({movement.since_at[:10]}; 90%: {spread}), by "
        f"{number(size.value, signed=True)} log-odds "
        f"[{number(size.lo, signed=True)}, {number(size.hi, signed=True)}]"
    )
    return f"{said}, overstated: it is near the noise" if movement.overstated else said


def findings(report: PanelReport) -> Iterator[str]:
    """Say what was found, a sentence each, models first."""
    for model in report.moved_models:
        assert model.movement is not None, "it moved"
        yield f"the model moved: {model.model} {model.lens}, {movement_words(model.movement)}"
    for series in report.moved:
        assert series.movement is not None, "it moved"
        yield (
            f"this claim moved: {shorten(series.claim, _CLAIM_CHARS)!r} ({series.model} "
            f"{series.lens}), {movement_words(series.movement)}"
        )
    for change in report.served:
        yield (
            f"another model answers as {change.model} since wave {change.wave} "
            f"({change.at[:10]}): {', '.join(change.after)}; before: {', '.join(change.before)}"
        )
    for model_name, lens in report.unreadable:
        yield (
            f"couldn't be read: {model_name} {lens} gave no answer between 0 and 1 in the last wave"
        )


def advice(report: PanelReport) -> Iterator[str]:
    """Say what a reader should know before trusting the findings."""
    done = len(report.waves)
    if done < BASELINE_WAVES:
        yield (
            f"{done} of the {BASELINE_WAVES} waves that a baseline should have: drift is told well "
            "only after them"
        )
    if done > report.horizon + 1:
        yield (
            f"the horizon of {report.horizon} waves has passed: shifts that begin now aren't "
            "looked for; begin a panel with another name"
        )
    left_out = [s for s in report.series if s.left_out]
    if left_out:
        yield (
            f"{len(left_out)} of {sum(s.truth is not None for s in report.series)} anchors moved "
            "against the others, and aren't counted among them"
        )
    if any(model.rho_varies for model in report.models):
        yield (
            "claims differ in how much they move from wave to wave: `variant: wave_means` in a "
            "new panel is safer"
        )
    if report.under_way is not None:
        yield (
            f"wave {report.under_way.wave} was begun {report.under_way.started_at} and isn't "
            "finished; `heretix panel run` goes on with it"
        )


def panel_view(report: PanelReport) -> RenderableType:
    """A table of the series, and what was found below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    done = len(report.waves)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("claim", "model", "first", "last", "e-value", "since"):
        right = name in {"first", "last", "e-value"}
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for series in report.series:
        if series.truth is None or series.left_out:
            table.add_row(*(Text(text) for text in _row(series)))
    head = f"{report.panel}: {done} waves, horizon {report.horizon}"
    lines: list[RenderableType] = [Text(head, style="bold"), table]
    found = list(findings(report))
    lines += [Text(line, style="red") for line in found]
    if not found and done > 1:
        lines.append(Text(f"nothing moved (e-BH at {report.alpha:g})", style="green"))
    lines += [Text(line, style="dim") for line in advice(report)]
    return Group(*lines)


def _row(series: Series) -> tuple[str, ...]:
    label = shorten(series.claim, _CLAIM_CHARS)
    if series.truth is not None:
        label += f" (anchor, {'true' if series.truth else 'false'}{_left_out(series)})"
    movement = series.movement
    since = f"wave {movement.since_wave}" if movement and movement.drifted else ""
    first, last = (series.points[0], series.points[-1]) if series.points else (None, None)
    e_value = "" if movement is None else f"{movement.e_value:,.3g}"
    name = series.model if series.lens == RPL else f"{series.model} {series.lens}"
    return (label, shorten(name, 40), _prob(first), _prob(last), e_value, since)


def _left_out(series: Series) -> str:
    return ", left out" if series.left_out else ""


def _prob(point: Point | None) -> str:
    if point is None or point.prob_true is None:
        return "none"
    span = "" if point.ci_lo is None else f" [{point.ci_lo:.3f}, {point.ci_hi:.3f}]"
    return f"{point.prob_true:.3f}{span}"


def junit_xml(report: PanelReport) -> bytes:
    """JUnit's XML: a case for each claim and model, which fails where it moved.

    What can't be read is an error. A changed build is told in `system-out`, and fails nothing.
    """
    suite = Element("testsuite", name=f"heretix panel {report.panel}")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for model in report.models:
        name = f"{model.model} {model.lens} as a whole"
        _add_case(suite, counts, name, "model", model.movement)
    for series in report.series:
        if series.truth is None:
            name = f"{series.claim} ({series.model} {series.lens})"
            _add_case(suite, counts, name, "claim", series.movement, readable=series.readable)
    for key, count in counts.items():
        suite.set(key, str(count))
    if report.served:
        told = [line for line in findings(report) if line.startswith("another model")]
        SubElement(suite, "system-out").text = _xml_text("\n".join(told))
    indent(suite)
    made: bytes = tostring(suite, encoding="utf-8", xml_declaration=True)
    return made + b"\n"


def _add_case(
    suite: Element,
    counts: dict[str, int],
    name: str,
    kind: str,
    movement: Movement | None,
    *,
    readable: int = 1,
) -> None:
    case = SubElement(suite, "testcase", name=_xml_text(name), classname=f"panel.{kind}")
    counts["tests"] += 1
    if movement is not None and movement.drifted:
        counts["failures"] += 1
        SubElement(case, "failure", message=_xml_text(f"moved {movement_words(movement)}"))
    elif not readable:
        counts["errors"] += 1
        SubElement(case, "error", message="no answer between 0 and 1 in the last wave")
    elif movement is None:
        counts["skipped"] += 1
        SubElement(case, "skipped", message="there is no second wave yet")


def _xml_text(text: str) -> str:
    """Text without what XML can't hold, even escaped."""
    return _NOT_XML.sub("\ufffd", text)


def notice(report: PanelReport) -> dict[str, Any]:
    """Make the body of a webhook: the findings in words (`text`, which chats show) and as data."""
    found = list(findings(report))
    return {
        "text": "\n".join([f"panel {report.panel}, wave {len(report.waves) - 1}:", *found]),
        "panel": report.panel,
        "wave": len(report.waves) - 1,
        "exit_code": report.exit_code,
        "findings": found,
        "claims": [
            {
                "claim": s.claim,
                "model": s.model,
                "lens": s.lens,
                "new": s.movement.new,
                "e_value": s.movement.e_value,
                "since_wave": s.movement.since_wave,
                "since_waves": list(s.movement.since_waves),
                "size_logodds": s.movement.size.value if s.movement.size else None,
            }
            for s in report.moved
            if s.movement is not None
        ],
        "models": [
            {"model": m.model, "lens": m.lens, "new": m.movement.new}
            for m in report.moved_models
            if m.movement is not None
        ],
        "served": [
            {"model": c.model, "wave": c.wave, "after": list(c.after), "new": c.new}
            for c in report.served
        ],
    }


def panel_content(report: PanelReport) -> dict[str, Any]:
    """Give a report as what JSON can hold, with the findings in words."""
    said = {"exit_code": report.exit_code, "findings": list(findings(report))}
    return {**asdict(report), **said}


# Pages: one body, in the web app and in the static site.

_WIDTH: Final = 360
_HEIGHT: Final = 140
_LEFT: Final = 30
_EDGE: Final = 10


def panel_body(report: PanelReport) -> Markup:
    """Render what was found, and every belief over time; needs the extra `charts`."""
    from markupsafe import Markup

    from heretix.report.document import environment

    def drawn(series: Series) -> tuple[Series, Markup]:
        # A drawing holds numbers alone.
        return series, Markup(series_svg(series, report))  # noqa: S704

    claims = [series for series in report.series if series.truth is None]
    # What moved comes first.
    claims.sort(key=lambda one: not (one.movement and one.movement.drifted))
    template = environment().get_template("panel.html")
    html = template.render(
        report=report,
        findings=list(findings(report)),
        advice=list(advice(report)),
        claims=[drawn(series) for series in claims],
        anchors=[drawn(series) for series in report.series if series.truth is not None],
        movement_words=movement_words,
        show_point=_prob,
    )
    return Markup(html)  # noqa: S704 - the template escapes


def panel_site(report: PanelReport) -> dict[str, bytes]:
    """Make the files of a static site: one page that asks nobody for anything, and its data."""
    from heretix.report.charts.theme import css_variables
    from heretix.report.document import environment
    from heretix.version import VERSION

    page = (
        environment()
        .get_template("panel_site.html")
        .render(report=report, body=panel_body(report), palette=css_variables(), version=VERSION)
    )
    data = json.dumps(panel_content(report), indent=1, ensure_ascii=False)
    return {
        "index.html": page.encode("utf-8", "replace"),
        "panel.json": f"{data}\n".encode("utf-8", "replace"),
        "panel.xml": junit_xml(report),
    }


def series_svg(series: Series, report: PanelReport) -> str:
    """Draw a belief wave by wave with its 95% intervals; where a shift began is shaded.

    Colours are the page's own (`currentColor`), so the drawing follows its theme.
    """
    last = max(len(report.waves) - 1, 1)

    def x(wave: float) -> float:
        return round(_LEFT + _EDGE + wave / last * (_WIDTH - _LEFT - 2 * _EDGE), 1)

    def y(prob: float) -> float:
        return round(_EDGE + (1 - prob) * (_HEIGHT - 3 * _EDGE), 1)

    parts = []
    movement = series.movement
    if movement is not None and movement.drifted:
        first, until = movement.since_waves[0], movement.since_waves[-1]
        left, right = x(first - 0.5), x(until + 0.5)
        parts.append(
            f'<rect x="{left}" y="{y(1)}" width="{round(right - left, 1)}" '
            f'height="{y(0) - y(1)}" fill="currentColor" fill-opacity="0.15"/>'
        )
    parts += [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{y(level)}" y2="{y(level)}" '
        'stroke="currentColor" stroke-opacity="0.25"/>'
        f'<text x="{_LEFT - 5}" y="{y(level) + 3.5}" text-anchor="end" font-size="10" '
        f'fill="currentColor">{level:g}</text>'
        for level in (0, 0.5, 1)
    ]
    parts += [
        f'<text x="{x(wave)}" y="{_HEIGHT - 3}" text-anchor="middle" font-size="10" '
        f'fill="currentColor">{wave}</text>'
        for wave in sorted({0, len(report.waves) - 1})
    ]
    parts += [_draw_point(point, x(point.wave), y) for point in series.points]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{_told(series.points)}">{"".join(parts)}</svg>'
    )


def _draw_point(point: Point, x: float, y: Callable[[float], float]) -> str:
    if point.prob_true is None:
        return ""
    drawn = f'<circle cx="{x}" cy="{y(point.prob_true)}" r="3" fill="currentColor"/>'
    if point.ci_lo is not None and point.ci_hi is not None:
        drawn += (
            f'<line x1="{x}" x2="{x}" y1="{y(point.ci_lo)}" y2="{y(point.ci_hi)}" '
            'stroke="currentColor" stroke-width="1.5"/>'
        )
    return drawn


def _told(points: Sequence[Point]) -> str:
    """Say the beliefs in numbers, for who can't see them."""
    return "p(true) by wave: " + "; ".join(f"{point.wave}: {_prob(point)}" for point in points)
