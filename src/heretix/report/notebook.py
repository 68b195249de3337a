"""A belief as a notebook shows it: one self-contained piece of HTML, no scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from heretix.report.words import LEGACY, span, warning_label

if TYPE_CHECKING:
    from heretix.measurement.record import RunRecord


_WIDTH = 420


def belief_html(run: RunRecord) -> str:
    """The headline of a run, with its interval drawn."""
    belief = run.aggregates
    parts = [
        '<div style="font-family:sans-serif;max-width:34em">',
        f"<strong>{escape(run.claim)}</strong>",
        f'<div style="color:#666">{escape(run.model)} · {escape(run.prompt_version)}</div>',
    ]
    if belief.prob_true_rpl is None or belief.ci95 is None:
        parts.append(f"<div>No estimate: {escape(run.reason or '')}</div>")
    else:
        lo, hi = belief.ci95
        parts.append(
            f"<div>p(true) <b>{belief.prob_true_rpl:.3f}</b>, 95% CI {span(lo, hi)}, "
            f"stability {belief.stability_score:.2f} ({belief.stability_band})</div>"
        )
        parts.append(_bar(belief.prob_true_rpl, lo, hi))
    parts += [f"<div><em>{text}</em></div>" for text in _labels(run)]
    parts.append("</div>")
    return "".join(parts)


def _labels(run: RunRecord) -> list[str]:
    legacy = LEGACY if run.aggregation.agg == "simple" else None
    return [label for label in (warning_label(run), legacy) if label]


def _bar(prob: float, lo: float, hi: float) -> str:
    x, left, right = (4 + value * (_WIDTH - 8) for value in (prob, lo, hi))
    return (
        f'<svg width="{_WIDTH}" height="22" role="img" '
        f'aria-label="95% interval from {lo:.3f} to {hi:.3f}">'
        f'<line x1="4" x2="{_WIDTH - 4}" y1="11" y2="11" stroke="#bbb"/>'
        f'<line x1="{_WIDTH / 2}" x2="{_WIDTH / 2}" y1="6" y2="16" stroke="#bbb"/>'
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="11" y2="11" stroke="#0a7ea4" '
        'stroke-width="5"/>'
        f'<circle cx="{x:.1f}" cy="11" r="5" fill="#0a7ea4"/></svg>'
    )
