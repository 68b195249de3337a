"""Views of a panel: for a terminal, for CI (JUnit), for a webhook, and as pages."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from heretix.core.lenses import RPL
from heretix.report.charts.figure import number, shorten
from heretix.report.findings import (
    chance,
    moved_finding,
    name_documents,
    panel_finding,
    short_model,
    tell_apart,
    write_interval,
)
from heretix.report.studies import Case, Outcome, junit_xml
from heretix.report.words import beside_text, day_words, percent, warn_clamp_sensitive
from heretix.studies.panel import BASELINE_WAVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup
    from rich.console import RenderableType

    from heretix.studies.panel import ModelMovement, Movement, PanelReport, Point, Series

_CLAIM_CHARS: Final = 60


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


def _tell_since(movement: Movement) -> str:
    """Say in words since when a series moved."""
    when = day_words(movement.since_at) if movement.since_at else ""
    return f"since wave {movement.since_wave}{f' ({when})' if when else ''}"


def findings(report: PanelReport) -> Iterator[str]:
    """Say what was found, a sentence each, models first."""
    yield from _tell_moved(report)
    yield from _tell_rest(report)


def _tell_moved(report: PanelReport) -> Iterator[str]:
    named = tell_apart(series.model for series in report.series)
    for model in report.moved_models:
        assert model.movement is not None, "it moved"
        said = movement_words(model.movement)
        yield f"the model moved: {named[model.model]} {model.lens}, {said}"
    for series in report.moved:
        assert series.movement is not None, "it moved"
        yield (
            f"this claim moved: {shorten(series.claim, _CLAIM_CHARS)!r} ({named[series.model]} "
            f"{series.lens}), {movement_words(series.movement)}"
        )


def _tell_rest(report: PanelReport) -> Iterator[str]:
    """Say what isn't a movement: another build that answers, a model that can't be read."""
    named = tell_apart(series.model for series in report.series)
    yield from _build_changes(report)
    for model_name, lens in report.unreadable:
        yield (
            f"couldn't be read: {named[model_name]} {lens} gave no answer between 0 and 1 in the "
            "last wave"
        )


def _build_changes(report: PanelReport) -> Iterator[str]:
    """Say since when a provider names another model or build as the one that answers."""
    named = tell_apart(series.model for series in report.series)
    for change in report.served:
        yield (
            f"another model answers as {named[change.model]} since wave {change.wave} "
            f"({change.at[:10]}): {', '.join(change.after)}; before: {', '.join(change.before)}"
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
    if report.series and all(series.truth is None for series in report.series):
        yield (
            "no anchors: claims that all move together, as when the model moves as a whole, may be "
            "taken for noise; a panel with claims of known truth as `anchors` tells that apart"
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
    numbers = ("first", "last", "by t", "0 or 1", "e-value")
    for name in ("claim", "model", *numbers, "since"):
        right = name in numbers
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for series in report.series:
        if series.truth is None or series.left_out:
            table.add_row(*(Text(text) for text in _row(series)))
    head = f"{report.panel}: {done} wave{'' if done == 1 else 's'}, horizon {report.horizon}"
    said = Text(panel_finding(report).sentence)
    lines: list[RenderableType] = [Text(head, style="bold"), said, table]
    found = list(findings(report))
    lines += [Text(line, style="red") for line in found]
    if not found and done > 1:
        lines.append(Text(f"nothing moved (e-BH at {report.alpha:g})", style="green"))
    lines += [Text(line, style="dim") for line in advice(report)]
    return Group(*lines)


def _row(series: Series) -> tuple[str, ...]:
    label = shorten(series.claim, _CLAIM_CHARS)
    if series.truth is not None:
        label += f" (anchor, {'true' if series.truth else 'false'}{_note_left_out(series)})"
    movement = series.movement
    since = f"wave {movement.since_wave}" if movement and movement.drifted else ""
    first, last = (series.points[0], series.points[-1]) if series.points else (None, None)
    e_value = "" if movement is None else f"{movement.e_value:,.3g}"
    name = series.model if series.lens == RPL else f"{series.model} {series.lens}"
    shown = (_prob(first), _prob(last), _write_t_interval(last), _extreme(last))
    return (label, shorten(name, 40), *shown, e_value, since)


def _note_left_out(series: Series) -> str:
    return ", left out" if series.left_out else ""


def _prob(point: Point | None) -> str:
    if point is None or point.prob_true is None:
        return "none"
    span = "" if point.ci_lo is None else f" [{point.ci_lo:.3f}, {point.ci_hi:.3f}]"
    return f"{point.prob_true:.3f}{span}{' clamp-sensitive' if point.clamp_sensitive else ''}"


def _write_t_interval(point: Point | None) -> str:
    """Write the interval by Student's t; empty where there is none."""
    if point is None or point.by_t is None:
        return ""
    lo, hi = point.by_t
    return f"[{lo:.3f}, {hi:.3f}]"


def _extreme(point: Point | None) -> str:
    """Write the share of answers of exactly 0 or 1; empty where there are none."""
    if point is None or point.beside is None or not point.beside.n_extreme:
        return ""
    return percent(point.beside.extreme_share)


def _tell_point(point: Point) -> str:
    by_t, extreme = _write_t_interval(point), _extreme(point)
    parts = [_prob(point), by_t and f"by t {by_t}", extreme and f"{extreme} exactly 0 or 1"]
    return ", ".join(filter(None, parts))


def panel_junit(report: PanelReport) -> bytes:
    """JUnit's XML: a case for each claim and model, which fails where it moved.

    What can't be read is an error. A changed build is told in `system-out`, and fails nothing.
    """
    cases = [
        _case("model", f"{model.model} {model.lens} as a whole", model.movement)
        for model in report.models
    ]
    unread = {id(s) for s in report.series if report.waves and not s.readable}
    cases += [
        _case("claim", f"{s.claim} ({s.model} {s.lens})", s.movement, unread=id(s) in unread)
        for s in report.series
        if s.truth is None
    ]
    return junit_xml(f"heretix panel {report.panel}", cases, told="\n".join(_build_changes(report)))


def unmeasured_junit(name: str, why: str) -> bytes:
    """Write JUnit's XML of a wave that couldn't be measured: one error, which says why."""
    case = Case(classname="panel.wave", name="the next wave", outcome="error", message=why)
    return junit_xml(f"heretix panel {name}", [case])


def _case(kind: str, name: str, movement: Movement | None, *, unread: bool = False) -> Case:
    outcome: Outcome | None = None
    message = ""
    if movement is not None and movement.drifted:
        outcome, message = "failure", f"moved {movement_words(movement)}"
    elif unread:
        outcome, message = "error", "no answer between 0 and 1 in the last wave"
    elif movement is None:
        outcome, message = "skipped", "there is no second wave yet"
    return Case(classname=f"panel.{kind}", name=name, outcome=outcome, message=message)


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
    series = [{**asdict(s), "points": [point.row() for point in s.points]} for s in report.series]
    return {**asdict(report), "series": series, **said}


# Pages: one body, in the web app and in the static site.

_PLOT: Final = 110
_TOP: Final = 18
"""Heights in pixels; places across are percents, so that words keep their size at any width."""


def panel_body(report: PanelReport) -> Markup:
    """Render what was found, and every belief over time; needs the extra `charts`."""
    from markupsafe import Markup

    from heretix.report.document import environment

    def draw(series: Series) -> tuple[Series, Markup]:
        # A drawing holds numbers alone.
        return series, Markup(series_svg(series, report))  # noqa: S704

    claims = [series for series in report.series if series.truth is None]
    # What moved comes first.
    claims.sort(key=lambda one: not (one.movement and one.movement.drifted))
    moved: list[ModelMovement | Series] = [*report.moved_models, *report.moved]
    template = environment().get_template("panel.html")
    html = template.render(
        report=report,
        moved=[moved_finding(one.movement, one).sentence for one in moved if one.movement],
        told=[f"{line[0].upper()}{line[1:]}." for line in _tell_rest(report)],
        numbers=list(_tell_moved(report)),
        since=_tell_since,
        advice=list(advice(report)),
        claims=[draw(series) for series in claims],
        anchors=[draw(series) for series in report.series if series.truth is not None],
        show_point=_in_percent,
        beside=_tell_beside,
        shown=lambda lens: "" if lens == RPL else f", shown {name_documents(lens)}",
        short_model=short_model,
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
        "panel.xml": panel_junit(report),
    }


def series_svg(series: Series, report: PanelReport) -> str:
    """Draw a belief wave by wave with its 95% intervals; where a shift began is shaded.

    Colours are the page's own (`currentColor`), so the drawing follows its theme.
    """
    last = max(len(report.waves) - 1, 1)

    def x(wave: float) -> float:
        return round(12 + 84 * wave / last, 2)

    parts = []
    movement = series.movement
    if movement is not None and movement.drifted:
        first, until = movement.since_waves[0], movement.since_waves[-1]
        left, right = x(first - 0.5), min(x(until + 0.5), 100)
        parts.append(
            f'<rect x="{left}%" y="{_y(1)}" width="{round(right - left, 2)}%" '
            f'height="{_PLOT}" fill="currentColor" fill-opacity="0.12"/>'
        )
    parts += [
        f'<line x1="0" x2="100%" y1="{_y(level)}" y2="{_y(level)}" '
        'stroke="currentColor" stroke-opacity="0.25"/>'
        f'<text x="0" y="{_y(level) - 4}" font-size="12" fill="currentColor">{level:.0%}</text>'
        for level in (0, 0.5, 1)
    ]
    parts += [
        f'<text x="{x(wave)}%" y="{_y(0) + 17}" text-anchor="{"end" if wave else "middle"}" '
        f'font-size="12" fill="currentColor">wave {wave}</text>'
        for wave in sorted({0, len(report.waves) - 1})
    ]
    parts += [_draw_point(point, x(point.wave)) for point in series.points]
    return (
        f'<svg class="fig" width="100%" height="{_y(0) + 24}" role="img" '
        f'aria-label="{_tell_points(series.points)}">{"".join(parts)}</svg>'
    )


def _y(prob: float) -> float:
    return round(_TOP + (1 - prob) * _PLOT, 1)


def _draw_point(point: Point, x: float) -> str:
    if point.prob_true is None:
        return ""
    drawn = f'<circle cx="{x}%" cy="{_y(point.prob_true)}" r="3.5" fill="currentColor"/>'
    for ends, width, opacity in (
        ((point.ci_lo, point.ci_hi), 7, 0.4),
        (point.by_t or (None, None), 1.5, 1),
    ):
        lo, hi = ends
        if lo is not None and hi is not None:
            drawn += (
                f'<line x1="{x}%" x2="{x}%" y1="{_y(lo)}" y2="{_y(hi)}" stroke="currentColor" '
                f'stroke-width="{width}" stroke-opacity="{opacity}"/>'
            )
    return drawn


def _in_percent(point: Point | None) -> str:
    """Write a belief and its interval as the sentences do."""
    if point is None or point.prob_true is None:
        return "none"
    if point.ci_lo is None or point.ci_hi is None:
        return chance(point.prob_true)
    return f"{chance(point.prob_true)} ({write_interval(point.ci_lo, point.ci_hi)})"


def _tell_beside(series: Series) -> str:
    """Say what stands beside the last belief: the interval by Student's t, and extreme answers."""
    beside = series.points[-1].beside if series.points else None
    if beside is None:
        return ""
    return " · ".join(filter(None, (beside_text(beside), warn_clamp_sensitive(beside))))


def _tell_points(points: Sequence[Point]) -> str:
    """Say the beliefs in numbers, for who can't see them."""
    return "p(true) by wave: " + "; ".join(
        f"{point.wave}: {_tell_point(point)}" for point in points
    )
