"""The templates of a run: what each wording got, and which of them the center leaves out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from heretix.report.charts.figure import (
    WIDTH,
    Chart,
    figure,
    layer,
    listed,
    notice,
    prob_axis,
    shortened,
    small_text,
)
from heretix.report.charts.rows import row_axis, row_labels
from heretix.report.theme import LIGHT, SHAPES, Theme
from heretix.report.words import counted, label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import RunRecord, SampleRecord

__all__ = ["run_subtitle", "template_forest"]

_WORDING_CHARS: Final = 46
_SPACE: Final = "\u2003"
"""Common spaces in a row are drawn as one."""


def template_forest(run: RunRecord, *, theme: Theme = LIGHT) -> Chart:
    """Every template's answers, their mean, and the estimate they come to."""
    belief = run.aggregates
    subtitle = [
        run_subtitle(run),
        (
            "Large mark: mean of a wording's answers in log-odds; hollow where it is trimmed. "
            "Small ticks: single answers."
        ),
    ]
    if belief.prob_true_rpl is None or belief.ci95 is None:
        return notice(
            f"No estimate: {run.reason}",
            title=run.claim,
            subtitle=subtitle[:1],
            description="Answers of each wording.",
            theme=theme,
        )
    rows = _rows(run, theme)
    silent = _silent(run, first_row=len(rows))
    lo, hi = belief.ci95
    trimmed = sum(row["trimmed"] for row in rows)
    return figure(
        {
            "width": WIDTH,
            "height": {"step": 24},
            "layer": [
                *_estimate(belief.prob_true_rpl, lo, hi, run.lens, theme),
                *_templates(run, rows, silent, theme),
            ],
        },
        title=run.claim,
        subtitle=subtitle,
        description=(
            f"Forest plot of {counted(len(rows), 'wording')} of the claim '{run.claim}', measured "
            f"with {run.model}: their means from {rows[-1]['prob']:.3f} to {rows[0]['prob']:.3f}; "
            f"{trimmed} are trimmed. The estimate is {belief.prob_true_rpl:.3f}, 95% interval "
            f"{lo:.3f} to {hi:.3f}."
        ),
        theme=theme,
        wide=True,
    )


def run_subtitle(run: RunRecord) -> str:
    """Whose belief this is, and n."""
    usage = run.usage
    return listed(
        [
            run.model,
            f"lens {run.lens}",
            f"n = {usage.compliant} of {usage.attempted} answers",
            counted(run.aggregation.n_templates, "wording"),
            (label_of(run) or "").partition(":")[0],
        ]
    )


def _rows(run: RunRecord, theme: Theme) -> list[dict[str, Any]]:
    """One row a template that answered, the most convinced first."""
    assert run.diagnostics is not None, "an estimate comes with diagnostics"
    colour = theme.colour(run.lens)
    found = sorted(run.diagnostics.templates, key=lambda row: (-row.mean_logit, row.paraphrase_idx))
    return [
        {
            "row": place,
            "template": row.paraphrase_idx,
            "label": _label(run, row.paraphrase_idx),
            "prob": row.prob,
            "min": row.min_prob,
            "max": row.max_prob,
            "n": row.n,
            "trimmed": row.trimmed,
            "said": _SPACE.join(
                [f"{row.prob:.3f}", f"n = {row.n}", *(["trimmed"] if row.trimmed else [])]
            ),
            "colour": theme.nul if row.trimmed else colour,
            "fill": theme.paper if row.trimmed else colour,
            "ink": theme.muted if row.trimmed else theme.ink,
        }
        for place, row in enumerate(found)
    ]


def _silent(run: RunRecord, *, first_row: int) -> list[dict[str, Any]]:
    """Templates that were asked and gave nothing usable, with the reasons."""
    by_index: dict[int, list[SampleRecord]] = {}
    for sample in run.samples:
        by_index.setdefault(sample.paraphrase_idx, []).append(sample)
    silent: list[dict[str, Any]] = []
    for index, samples in sorted(by_index.items()):
        if any(sample.compliant for sample in samples):
            continue
        reasons = Counter(
            sample.noncompliance.value if sample.noncompliance else "failed" for sample in samples
        )
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        silent.append(
            {
                "row": first_row + len(silent),
                "label": _label(run, index),
                "reason": f"no usable answer: {why}",
            }
        )
    return silent


def _label(run: RunRecord, index: int) -> str:
    wording = run.prompts.paraphrases[index].replace("<claim>{CLAIM}</claim>", " ")
    return shortened(f"{index} · {wording.strip()}", _WORDING_CHARS)


def _estimate(prob: float, lo: float, hi: float, lens: str, theme: Theme) -> list[dict[str, Any]]:
    x = prob_axis()
    return [
        layer(
            {"type": "rect", "color": theme.band, "opacity": 0.6},
            [{"lo": lo, "hi": hi}],
            x={**x, "field": "lo"},
            x2={"field": "hi"},
        ),
        layer(
            {"type": "rule", "color": theme.colour(lens), "strokeWidth": 1.5, "strokeDash": [5, 3]},
            [{"prob": prob}],
            x={**x, "field": "prob"},
        ),
        layer(
            {"type": "text", "color": theme.ink, "baseline": "bottom", "dy": -4},
            [{"prob": prob, "said": f"estimate {prob:.3f} [{lo:.3f}, {hi:.3f}]"}],
            x={**x, "field": "prob"},
            y={"value": 0},
            text={"field": "said"},
        ),
    ]


def _templates(
    run: RunRecord,
    rows: Sequence[dict[str, Any]],
    silent: Sequence[dict[str, Any]],
    theme: Theme,
) -> list[dict[str, Any]]:
    x = prob_axis()
    literal = {"type": "nominal", "scale": None}
    y = row_axis(len(rows) + len(silent))
    place = {row["template"]: row for row in rows}
    answers = [
        {"row": row["row"], "prob": sample.prob_true, "colour": row["colour"]}
        for sample in run.samples
        if sample.compliant and (row := place.get(sample.paraphrase_idx)) is not None
    ]
    labels = [(row["label"], "") for row in (*rows, *silent)]
    layers = [
        *row_labels(labels, y, theme),
        layer(
            {"type": "rule", "strokeWidth": 1.5},
            rows,
            x={**x, "field": "min"},
            x2={"field": "max"},
            y=y,
            color={**literal, "field": "colour"},
        ),
        layer(
            {"type": "tick", "thickness": 1.5, "size": 10},
            answers,
            x={**x, "field": "prob"},
            y=y,
            color={**literal, "field": "colour"},
        ),
        layer(
            {"type": "point", "size": 80, "strokeWidth": 1.8, "shape": SHAPES[run.lens]}
            | {"opacity": 1},
            rows,
            x={**x, "field": "prob"},
            y=y,
            stroke={**literal, "field": "colour"},
            fill={**literal, "field": "fill"},
            tooltip=[
                {"field": "label", "type": "nominal", "title": "wording"},
                {"field": "said", "type": "nominal", "title": "p(true)"},
            ],
        ),
        layer(
            {"type": "text", "align": "left"},
            rows,
            x={"value": WIDTH + 14},
            y=y,
            text={"field": "said"},
            color={**literal, "field": "ink"},
        ),
    ]
    if silent:
        mark = small_text(theme, align="left", fontStyle="italic") | {"color": theme.warn}
        layers.append(layer(mark, silent, x={"value": 6}, y=y, text={"field": "reason"}))
    return layers
