"""The belief vector: what a model believes with each kind of evidence, and what moved it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heretix.errors import RecordError
from heretix.measurement.assembly import as_they_are, lens_records, metrics_by_model
from heretix.report.charts.figure import Chart, drawable, figure, listed, notice, prob_axis
from heretix.report.charts.rows import IntervalRow, difference_axis, interval_panel
from heretix.report.theme import LENS_NAMES, LIGHT, SHAPES, Theme

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.measurement.record import Artifact, LensRecord, MetricRecord, MetricsRecord

__all__ = ["belief_vector", "chosen_model", "claim_of"]


def belief_vector(artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT) -> Chart:
    """A model's belief under every lens, and the split of what moved it.

    A lens that couldn't be measured has a row with the reason. An artifact that holds only runs
    will do: what lies between them is derived.
    """
    model = chosen_model(artifact, model)
    lines = _lines(artifact, model)
    rows = [_row(line, theme) for line in lines]
    prior = next((line.prob_true for line in lines if line.lens == "RPL"), None)
    beliefs = interval_panel(rows, axis=prob_axis(), theme=theme, reference=prior)
    panels = [{**beliefs, "title": _heading("Belief under each lens", theme)}]
    panels += _split(_metrics(artifact, model), theme)
    claim = claim_of(artifact)
    runs = as_they_are(artifact.runs, claim)
    counted = {run.lens: run.usage for run in runs if run.model == model}
    n = ", ".join(f"{lens} {usage.compliant}" for lens, usage in counted.items())
    return figure(
        {"vconcat": panels, "spacing": 26},
        title=claim,
        subtitle=[
            listed([model, f"n answers: {n}"]),
            "Points: p(true); bars: 95% intervals; dashed line: the raw prior.",
        ],
        description=_described(lines, claim, model),
        theme=theme,
        wide=True,
    )


def claim_of(artifact: Artifact) -> str:
    """The claim that an artifact is about; other claims in it are its negations."""
    return artifact.claim or artifact.runs[0].claim


def chosen_model(artifact: Artifact, model: str | None) -> str:
    """The model asked for, or the artifact's first."""
    models = list(dict.fromkeys(run.model for run in artifact.runs))
    if model is None:
        return models[0]
    if model not in models:
        raise RecordError(
            f"`model` must be one of those measured ({', '.join(models)}), got {model!r}"
        )
    return model


def _lines(artifact: Artifact, model: str) -> list[LensRecord]:
    lines = artifact.lenses or lens_records(artifact.runs, claim_of(artifact), [])
    order = list(LENS_NAMES)
    own = [line for line in lines if line.model == model]
    return sorted(own, key=lambda line: order.index(line.lens))


def _metrics(artifact: Artifact, model: str) -> MetricsRecord | None:
    found = artifact.metrics or metrics_by_model(artifact.runs, claim_of(artifact), {})
    return found.get(model)


def _row(line: LensRecord, theme: Theme) -> IntervalRow:
    lo, hi = line.ci95 or (None, None)
    reason = f"{line.status.replace('_', ' ')}: {line.reason}" if line.prob_true is None else None
    return IntervalRow(
        label=f"{line.lens} · {LENS_NAMES[line.lens]}",
        value=line.prob_true,
        lo=lo,
        hi=hi,
        reason=reason,
        note="quotes made up: not to be trusted" if line.trusted is False else "",
        colour=theme.colour(line.lens),
        shape=SHAPES[line.lens],
        hollow=line.lens == "NUL",
    )


def _split(metrics: MetricsRecord | None, theme: Theme) -> list[dict[str, Any]]:
    """A panel of what the frame did and what the evidence did; or why there is none."""
    if metrics is None:
        return []
    rows = list(_effects(metrics, theme))
    if not rows:
        reason = metrics.reason or "no lens was measured beside the raw prior"
        return [_said(f"No differences: {reason}", theme)]
    axis = difference_axis("difference of p(true)", rows)
    panel = interval_panel(rows, axis=axis, theme=theme, signed=True, reference=0.0)
    return [{**panel, "title": _heading("What moved it, with 95% intervals", theme)}]


def _effects(metrics: MetricsRecord, theme: Theme) -> Iterator[IntervalRow]:
    if metrics.wrapper_effect is not None:
        yield _effect("NUL − RPL · wrapper, the frame alone", metrics.wrapper_effect, "NUL", theme)
    for lens, effect in _in_order(metrics.evidence_effect):
        yield _effect(f"{lens} − NUL · the evidence", effect, lens, theme)
    if metrics.wrapper_effect is None:
        # Without the empty frame the two can't be told apart, and the label says so.
        for lens, effect in _in_order(metrics.movement):
            yield _effect(f"{lens} − RPL · wrapper and evidence", effect, lens, theme)
    for lens, reason in metrics.missing.items():
        yield IntervalRow(
            label=f"{lens} · no difference", value=None, reason=reason, colour=theme.colour(lens)
        )


def _in_order(effects: Mapping[str, MetricRecord]) -> list[tuple[str, MetricRecord]]:
    return [(lens, effects[lens]) for lens in LENS_NAMES if lens in effects]


def _effect(label: str, found: MetricRecord, lens: str, theme: Theme) -> IntervalRow:
    return IntervalRow(
        label=label,
        value=found.value,
        lo=found.lo,
        hi=found.hi,
        colour=theme.colour(lens),
        shape=SHAPES[lens],
        hollow=lens == "NUL",
    )


def _heading(text: str, theme: Theme) -> dict[str, Any]:
    return {"text": text, "frame": "group", "fontSize": 13, "color": theme.ink, "offset": 6}


def _said(text: str, theme: Theme) -> dict[str, Any]:
    content = notice(text, title="", subtitle=[], description="", theme=theme)
    return {name: content[name] for name in ("data", "mark", "encoding", "width", "height")}


def _described(lines: Sequence[LensRecord], claim: str, model: str) -> str:
    parts = [
        f"{line.lens} {line.prob_true:.3f}"
        if line.prob_true is not None
        else f"{line.lens} has none ({line.status.replace('_', ' ')})"
        for line in lines
    ]
    said = "; ".join(parts)
    return drawable(f"Belief of {model} in the claim '{claim}' under each lens: {said}.")
