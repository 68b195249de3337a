"""Charts of studies: drift of one recipe, reliability, and what a plan will give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from heretix.core.errors import ConfigError, RecordError
from heretix.core.lenses import LENSES, RPL
from heretix.report.charts import figure as fig
from heretix.report.charts.figure import HEIGHT, WIDTH, Chart, Part, Rows
from heretix.report.charts.theme import LIGHT, SERIES_SHAPES, Theme
from heretix.report.words import missing_reason, plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.measurement.record import Artifact, RunRecord
    from heretix.studies.design import Plan as DesignPlan

# Drift: the same recipe, measured again and again.

_MINUTE: Final = timedelta(minutes=1)


def drift(runs: Sequence[RunRecord], *, theme: Theme = LIGHT) -> Chart:
    """Draw executions of one recipe over time; a model that was served in their course has a shape.
    An execution that came wholly from the cache measured nothing anew: it is drawn hollow."""
    recipes = list(dict.fromkeys(run.run_id for run in runs))
    if len(recipes) != 1:
        got = ", ".join(recipes) or "none"
        raise RecordError(
            f"`runs` must be executions of one run_id, got {got}; what differs is compared with "
            "`model_comparison`"
        )
    ordered = sorted(runs, key=lambda run: (run.started_at, run.execution_id))
    served = list(dict.fromkeys(_name_served(run) for run in ordered))
    rows = [
        {"execution": number, **_row(run, served, theme)} for number, run in enumerate(ordered, 1)
    ]
    x = _axis(rows)
    known = [row for row in rows if row["prob"] is not None]
    missing = [row for row in rows if row["prob"] is None]
    first = ordered[0]
    answers = sum(run.usage.called for run in ordered)
    layers = _draw_known(known, x, served, theme.colour(first.lens))
    if missing:
        # A failed execution stands at the foot of its day: it has no height.
        look = fig.small_text(theme, fontStyle="italic", baseline="bottom", dy=-4)
        said = [{**row, "text": "no estimate"} for row in missing]
        foot = {"x": x, "y": {"value": HEIGHT}, "tooltip": {"field": "reason"}}
        layers.append(fig.text_layer(said, foot, "text", **look | {"color": theme.warn}))
    n = f"n = {plural(len(ordered), 'execution')}, {plural(answers, 'new answer')}"
    told = "; ".join(
        f"{row['at'][:10]} {'no estimate' if row['prob'] is None else format(row['prob'], '.3f')}"
        for row in rows[:20]
    )
    return fig.figure(
        {"width": WIDTH, "height": HEIGHT, "layer": layers},
        title=first.claim,
        subtitle=[
            fig.join_parts([first.model, f"lens {first.lens}", n]),
            "Bars: 95% intervals. Hollow: every answer came from the cache.",
        ],
        description=f"p(true) of one recipe over {len(ordered)} executions: {told}.",
        theme=theme,
    )


def _name_served(run: RunRecord) -> str:
    return ", ".join(found.provider_model_id or "not named" for found in run.served) or "nobody"


def _row(run: RunRecord, served: Sequence[str], theme: Theme) -> Part:
    belief = run.aggregates
    lo, hi = belief.ci95 or (None, None)
    colour = theme.colour(run.lens)
    fresh = run.usage.called > 0
    return {
        "at": run.started_at,
        "prob": belief.prob_true_rpl,
        "lo": lo,
        "hi": hi,
        "served": _name_served(run),
        "shape": SERIES_SHAPES[served.index(_name_served(run)) % len(SERIES_SHAPES)],
        "fill": colour if fresh else theme.paper,
        "reason": missing_reason(run.reason) or None,
    }


def _axis(rows: Rows) -> Part:
    """Make a time axis; runs of one minute are numbered, since a clock tells nothing."""
    begun = [datetime.fromisoformat(row["at"]) for row in rows]
    if len(rows) < 2 or max(begun) - min(begun) >= _MINUTE:
        return fig.time_axis("at", "measured (UTC)")
    title = f"execution, all at {min(begun).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    scale = {"nice": False, "padding": 12}
    axis = fig.quantity(title, scale=scale, tickMinStep=1, format="d", grid=False)
    return {**axis, "field": "execution"}


def _draw_known(rows: Rows, x: Part, served: Sequence[str], colour: str) -> list[Part]:
    y = {**fig.prob_axis(), "field": "prob"}
    at, span = {"x": x, "y": y}, {"x": x, "y": {**y, "field": "lo"}, "y2": {"field": "hi"}}
    shapes = [SERIES_SHAPES[number % len(SERIES_SHAPES)] for number in range(len(served))]
    legend = {"title": "served", "orient": "bottom"}
    shape = {
        "field": "served",
        "type": "nominal",
        "scale": {"domain": list(served), "range": shapes},
        "legend": {**legend, "symbolStrokeColor": colour, "symbolFillColor": colour},
    }
    told = fig.tooltip(("at", "temporal", "measured"), ("prob", ".3f"), ("served", "nominal"))
    point = {**at, "fill": fig.literal("fill"), "shape": shape, "tooltip": told}
    return [
        fig.layer("line", rows, at, color=colour, opacity=0.35),
        fig.layer("rule", rows, span, color=colour, strokeWidth=2.5, opacity=0.75),
        fig.layer("point", rows, point, size=95, strokeWidth=2, stroke=colour, opacity=1),
    ]


# Evidence over time: the same claim and lens, with documents up to one day and another.


def evidence_over_time(artifacts: Sequence[Artifact], *, theme: Theme = LIGHT) -> Chart:
    """Draw what documents up to each day make of a claim: one line a lens, and the raw prior."""
    points = evidence_days(artifacts)
    if not points:
        raise RecordError(
            "`artifacts` must show evidence of a lens up to two days at least; measure with --as-of"
        )
    (claim, model), *others = dict.fromkeys((one[0], one[1]) for one in points)
    if others:
        raise RecordError("`artifacts` must be of one claim and model, got several")
    rows: list[Part] = [
        {"at": day, "lens": run.lens, "colour": theme.colour(run.lens), **_ends_of(run)}
        for _, _, day, run in sorted(points, key=lambda one: (one[3].lens, one[2]))
    ]
    x = fig.time_axis("at", "documents published up to")
    y = {**fig.prob_axis(), "field": "prob"}
    lens = {
        "field": "lens",
        "type": "nominal",
        "scale": {
            "domain": (codes := list(dict.fromkeys(row["lens"] for row in rows))),
            "range": [theme.colour(code) for code in codes],
        },
        "legend": {"title": "lens", "orient": "bottom"},
    }
    told = fig.tooltip(("at", "temporal", "documents up to"), ("prob", ".3f"), ("lens", "nominal"))
    shape = {**lens, "scale": {"domain": codes, "range": [LENSES[code].shape for code in codes]}}
    at = {"x": x, "y": y, "color": lens}
    span = {**at, "y": {**y, "field": "lo"}, "y2": {"field": "hi"}}
    layers = [
        fig.layer("line", rows, at, opacity=0.35),
        fig.layer("rule", rows, span, strokeWidth=2.5, opacity=0.75),
        fig.layer("point", rows, {**at, "shape": shape, "tooltip": told}, size=95, filled=True),
    ]
    days = ", ".join(dict.fromkeys(row["at"] for row in rows))
    said = "; ".join(f"{row['lens']} {row['at']} {row['prob']:.3f}" for row in rows[:20])
    return fig.figure(
        {"width": WIDTH, "height": HEIGHT, "layer": layers},
        title=claim,
        subtitle=[
            fig.join_parts([model, f"documents up to {days}"]),
            "Bars: 95% intervals. RPL is shown nothing, so days are alike to it.",
        ],
        description=f"p(true) with documents up to a day: {said}.",
        theme=theme,
    )


def evidence_days(artifacts: Sequence[Artifact]) -> list[tuple[str, str, str, RunRecord]]:
    """Claim, model, day and run of lenses whose documents end on two days at least; the raw prior
    stands on each of those days."""
    dated: list[tuple[str, str, str, RunRecord]] = []
    priors: list[tuple[str, str, str, RunRecord]] = []
    for artifact in artifacts:
        day_of = {b["bundle_id"]: b["as_of"] for b in artifact.bundles or () if b["as_of"]}
        for run in artifact.runs:
            shown = run.evidence
            if run.aggregates.prob_true_rpl is None or run.claim != artifact.claim:
                continue
            if run.lens == RPL:
                days = dict.fromkeys(day_of.values())
                priors += [(run.claim, run.model, str(day), run) for day in days]
            elif shown and shown.variant is None and shown.bundle_id in day_of:
                dated.append((run.claim, run.model, str(day_of[shown.bundle_id]), run))
    days_of: dict[tuple[str, str, str], set[str]] = {}
    for claim, model, day, run in dated:
        days_of.setdefault((claim, model, run.lens), set()).add(day)
    kept = [one for one in dated if len(days_of[one[0], one[1], one[3].lens]) > 1]
    named = {(claim, model, day) for claim, model, day, _ in kept}
    return kept + [one for one in priors if one[:3] in named]


def _ends_of(run: RunRecord) -> Part:
    lo, hi = run.aggregates.ci95 or (None, None)
    return {"prob": run.aggregates.prob_true_rpl, "lo": lo, "hi": hi}


# The reliability diagram: of claims believed to a degree, how many are true?

_SIDE_PX: Final = 320


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim:
    """A belief in a claim whose truth is known. Without an estimate `prob_true` is None."""

    prob_true: float | None
    is_true: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Claims with beliefs in [lo, hi): the mean belief, and the share that is true."""

    lo: float
    hi: float
    n: int
    mean_prob: float
    share_true: float
    share_lo: float
    share_hi: float  # The share's 95% interval (Wilson 1927)


def reliability_bins(claims: Sequence[JudgedClaim], *, bins: int = 10) -> list[ReliabilityBin]:
    """Sort claims with an estimate into equal bins of belief; empty bins are left out."""
    if bins < 1:
        raise ConfigError(f"`bins` must be a positive integer, got {bins!r}")
    grouped: dict[int, list[tuple[float, bool]]] = {}
    for claim in claims:
        if claim.prob_true is not None:
            number = min(int(claim.prob_true * bins), bins - 1)
            grouped.setdefault(number, []).append((claim.prob_true, claim.is_true))
    return [_bin(number, grouped[number], bins) for number in sorted(grouped)]


def reliability_diagram(
    claims: Sequence[JudgedClaim],
    *,
    bins: int = 10,
    title: str = "Reliability: belief against truth",
    theme: Theme = LIGHT,
) -> Chart:
    """Draw belief against the share that is true: on the diagonal, 70% is right 70% of times."""
    found = reliability_bins(claims, bins=bins)
    known = [(c.prob_true, c.is_true) for c in claims if c.prob_true is not None]
    without = len(claims) - len(known)
    lacking = f"{without} left out: no estimate" if without else ""
    subtitle = [fig.join_parts([f"n = {len(known)} claims with a known answer", lacking])]
    if not known:
        return fig.notice(
            "No claim has both an estimate and a known answer.",
            title=title,
            subtitle=subtitle,
            description="Reliability diagram.",
            theme=theme,
        )
    brier = math.fsum((prob - is_true) ** 2 for prob, is_true in known) / len(known)
    gap = math.fsum(b.n * abs(b.mean_prob - b.share_true) for b in found) / len(known)
    scores = f"Brier score {brier:.3f} (0 is best) · mean gap to the diagonal {gap:.3f}"
    subtitle += [
        scores,
        "Bars: 95% intervals. Dashed: perfectly calibrated. Above: claims in a bin.",
    ]
    return fig.figure(
        {"width": _SIDE_PX, "height": _SIDE_PX, "layer": _reliability_layers(found, theme)},
        title=title,
        subtitle=subtitle,
        description=f"Reliability diagram of {len(known)} claims in {len(found)} bins. {scores}.",
        theme=theme,
    )


def _bin(number: int, members: Sequence[tuple[float, bool]], bins: int) -> ReliabilityBin:
    from heretix.studies.calibration import wilson

    n = len(members)
    share = sum(is_true for _, is_true in members) / n
    lo, hi = wilson(share, n)
    return ReliabilityBin(
        lo=number / bins,
        hi=(number + 1) / bins,
        n=n,
        mean_prob=math.fsum(prob for prob, _ in members) / n,
        share_true=share,
        share_lo=lo,
        share_hi=hi,
    )


def _reliability_layers(found: Sequence[ReliabilityBin], theme: Theme) -> list[Part]:
    x = {**fig.prob_axis("mean belief p(true) in the bin, a probability"), "field": "prob"}
    y = {**fig.prob_axis("share of the claims that is true, a probability"), "field": "share"}
    rows = [
        {"prob": b.mean_prob, "share": b.share_true, "lo": b.share_lo, "hi": b.share_hi, "n": b.n}
        for b in found
    ]
    ends = [{"prob": 0, "share": 0}, {"prob": 1, "share": 1}]
    at, span = {"x": x, "y": y}, {"x": x, "y": {**y, "field": "lo"}, "y2": {"field": "hi"}}
    told = fig.tooltip(
        ("prob", ".3f", "mean belief"), ("share", ".3f", "true"), ("n", "quantitative")
    )
    look = {"color": theme.colour(RPL)}
    above = {"x": x, "y": {"value": -5}}
    return [
        fig.layer("line", ends, at, color=theme.muted, strokeDash=[4, 4], strokeWidth=1.5),
        fig.layer("rule", rows, span, **look, strokeWidth=2, opacity=0.7),
        fig.layer("line", rows, at, **look, strokeWidth=1.5, opacity=0.5),
        fig.layer("point", rows, {**at, "tooltip": told}, **look, filled=True, size=80, opacity=1),
        fig.text_layer(rows, above, "n", **fig.small_text(theme, baseline="bottom")),
    ]


# Design: how wide an interval to expect for how many calls.

_FEWEST_CALLS: Final = 4
"""Fewer give intervals that would flatten all others."""


def expected_width(
    frontier: Sequence[DesignPlan],
    marked: Mapping[str, DesignPlan],
    *,
    width: float | None = None,
    title: str = "Expected width of the interval against calls",
    theme: Theme = LIGHT,
) -> Chart:
    """Draw the best width for every number of calls, named plans, and the width asked for."""
    rows = [_width_row(plan) for plan in frontier if plan.calls >= _FEWEST_CALLS]
    points = [{**_width_row(plan), "name": name} for name, plan in marked.items()]
    x = fig.quantity("calls for a claim", scale={"nice": True, "zero": True}, format="d")
    y = fig.quantity("expected width of the 95% interval, in probability", scale={"zero": True})
    at = {"x": {**x, "field": "calls"}, "y": {**y, "field": "width"}}
    told = fig.tooltip(("plan", "nominal"), ("calls", "quantitative"), ("width", ".3f"))
    scale: Part = {"domain": list(marked), "range": [theme.series(n) for n in range(len(marked))]}
    shapes: Part = {"domain": list(marked), "range": list(SERIES_SHAPES[: len(marked)])}
    legend = {"title": "plan", "orient": "bottom"}
    named: Part = {"field": "name", "type": "nominal", "legend": legend}
    point: Part = {
        **at,
        "color": {**named, "scale": scale},
        "shape": {**named, "scale": shapes},
        "tooltip": told,
    }
    look = {"color": theme.colour(RPL), "strokeWidth": 2, "interpolate": "step-after"}
    layers = [
        fig.layer("line", rows, at, **look),
        fig.layer("point", points, point, filled=True, size=110, opacity=1),
    ]
    if width is not None:
        line = {"color": theme.muted, "strokeDash": [4, 4]}
        layers.insert(0, fig.layer("rule", [{"width": width}], {"y": at["y"]}, **line))
    best = "; ".join(f"{row['calls']} calls {row['width']:.3f}" for row in rows[:20])
    return fig.figure(
        {"width": WIDTH, "height": HEIGHT, "layer": layers},
        title=title,
        subtitle=[
            "Line: the best plan for so many calls, as wordings × answers each.",
            "Dashed: the width asked for." if width is not None else "",
        ],
        description=f"Expected width of the interval against calls: {best}.",
        theme=theme,
    )


def _width_row(plan: DesignPlan) -> Part:
    shape = f"{plan.T} × {plan.R}"
    return {"plan": shape, "calls": plan.calls, "width": plan.expected_width}
