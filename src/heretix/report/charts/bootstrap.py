"""The bootstrap distribution of an estimate, drawn again from the record with its own seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heretix.belief.bootstrap import Floats, cluster_bootstrap, plain_bootstrap
from heretix.belief.estimator import order_templates, trim_cut
from heretix.errors import NoEstimateError
from heretix.report.charts.figure import HEIGHT, WIDTH, Chart, figure, layer, notice
from heretix.report.charts.forest import run_subtitle
from heretix.report.theme import LIGHT, Theme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import RunRecord

__all__ = ["bootstrap_distribution", "replicas_of"]

_BINS: Final = 50


def replicas_of(run: RunRecord) -> Floats:
    """The replicas of the center, in log-odds, that the run's interval was read from.

    A record doesn't hold them: they follow from its answers and its seed.
    """
    if run.status != "ok":
        raise NoEstimateError(run.reason or "no estimate")
    logits: dict[str, list[float]] = {}
    for sample in run.samples:
        if sample.compliant and sample.logit is not None:
            logits.setdefault(sample.prompt_sha256, []).append(sample.logit)
    how = run.aggregation
    templates = order_templates(logits)
    rng = np.random.default_rng(how.bootstrap_seed)
    if how.agg == "simple":
        pooled = sorted(logit for group in templates.values() for logit in group)
        return plain_bootstrap(np.array(pooled), B=how.B, rng=rng)
    cut = trim_cut(len(templates), center=how.center, trim=how.trim)
    groups = [np.array(group) for group in templates.values()]
    return cluster_bootstrap(groups, B=how.B, cut=cut, rng=rng)


def bootstrap_distribution(run: RunRecord, *, theme: Theme = LIGHT) -> Chart:
    """Where the estimate falls when wordings and answers are drawn anew."""
    belief, how = run.aggregates, run.aggregation
    subtitle = [
        run_subtitle(run),
        (
            f"B = {how.B:,} replicas, seed {how.bootstrap_seed}. "
            "The interval runs from the 2.5th to the 97.5th percentile."
        ),
    ]
    if belief.prob_true_rpl is None or belief.ci95 is None:
        return notice(
            f"No estimate: {run.reason}",
            title=run.claim,
            subtitle=subtitle[:1],
            description="Bootstrap distribution.",
            theme=theme,
        )
    lo, hi = belief.ci95
    return figure(
        {
            "width": WIDTH,
            "height": HEIGHT - 80,
            "layer": [
                *_bars(_counted(replicas_of(run)), (lo, hi), run.lens, theme),
                *_marked(belief.prob_true_rpl, lo, hi, run.lens, theme),
            ],
        },
        title=run.claim,
        subtitle=subtitle,
        description=(
            f"Histogram of {how.B} bootstrap replicas of p(true): the estimate is "
            f"{belief.prob_true_rpl:.3f}, and 95% of the replicas lie from {lo:.3f} to {hi:.3f}."
        ),
        theme=theme,
    )


def _counted(replicas: Floats) -> list[dict[str, Any]]:
    """Replicas by bin of probability; empty bins are left out."""
    probs = 1.0 / (1.0 + np.exp(-replicas))
    counts, edges = np.histogram(probs, bins=_edges(probs))
    return [
        {"from": float(left), "to": float(right), "replicas": int(count)}
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    ]


def _edges(probs: Floats) -> Floats:
    """Bins over what the replicas cover, which may be a single number."""
    low, high = float(probs.min()), float(probs.max())
    room = max((high - low) * 0.02, 0.0005)
    return np.linspace(max(0.0, low - room), min(1.0, high + room), _BINS + 1)


def _x(title: str | None = None) -> dict[str, Any]:
    return {
        "type": "quantitative",
        "scale": {"zero": False, "nice": True},
        "axis": {"title": title or "p(true) of a replica, a probability", "tickCount": 6}
        | {"labelOverlap": "greedy", "labelSeparation": 8},
    }


def _bars(
    rows: Sequence[dict[str, Any]], ci95: tuple[float, float], lens: str, theme: Theme
) -> list[dict[str, Any]]:
    lo, hi = ci95
    # What lies outside is pale, so it has an outline: on paper it would be lost.
    inside, outside = (theme.colour(lens), theme.paper), (theme.band, theme.muted)
    drawn = [inside if lo <= (row["from"] + row["to"]) / 2 <= hi else outside for row in rows]
    shown = [
        {**row, "fill": fill, "rim": rim} for row, (fill, rim) in zip(rows, drawn, strict=True)
    ]
    y = {
        "field": "replicas",
        "type": "quantitative",
        "axis": {"title": "replicas (count)", "tickCount": 4},
    }
    bars = layer(
        {"type": "bar", "strokeWidth": 0.5, "opacity": 0.6},
        shown,
        x={**_x(), "field": "from", "bin": {"binned": True}},
        x2={"field": "to"},
        y=y,
        color={"field": "fill", "type": "nominal", "scale": None},
        stroke={"field": "rim", "type": "nominal", "scale": None},
        tooltip=[
            {"field": "from", "type": "quantitative", "format": ".4f"},
            {"field": "to", "type": "quantitative", "format": ".4f"},
            {"field": "replicas", "type": "quantitative"},
        ],
    )
    return [bars]


def _marked(prob: float, lo: float, hi: float, lens: str, theme: Theme) -> list[dict[str, Any]]:
    ends = [
        {"prob": lo, "said": f"2.5%: {lo:.3f}", "align": "right"},
        {"prob": hi, "said": f"97.5%: {hi:.3f}", "align": "left"},
    ]
    x = {**_x(), "field": "prob"}
    rules = layer({"type": "rule", "color": theme.ink, "strokeDash": [3, 3]}, ends, x=x)
    center = layer(
        {"type": "rule", "color": theme.colour(lens), "strokeWidth": 2}, [{"prob": prob}], x=x
    )
    texts = [
        layer(
            {
                "type": "text",
                "color": theme.ink,
                "align": end["align"],
                "baseline": "bottom",
                "dy": -3,
            },
            [end],
            x=x,
            y={"value": 0},
            text={"field": "said"},
        )
        for end in ends
    ]
    said = layer(
        {"type": "text", "color": theme.ink, "fontWeight": "bold", "baseline": "bottom", "dy": -18},
        [{"prob": prob, "said": f"estimate {prob:.3f}"}],
        x=x,
        y={"value": 0},
        text={"field": "said"},
    )
    return [rules, center, *texts, said]
