"""Views of a panel: its findings in words, for a terminal, for CI (JUnit) and for a webhook."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from heretix.report.charts.figure import number, shorten
from heretix.studies.panel import BASELINE_WAVES

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    name = series.model if series.lens == "RPL" else f"{series.model} {series.lens}"
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
