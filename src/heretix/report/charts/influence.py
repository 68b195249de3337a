"""Experiments with evidence: which document moved the belief, and what the controls say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heretix.report.charts.figure import Chart, figure, listed, notice
from heretix.report.charts.lenses import chosen_model, claim_of
from heretix.report.charts.rows import IntervalRow, difference_axis, interval_panel
from heretix.report.theme import LIGHT, SHAPES, Theme
from heretix.report.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import Artifact, ExperimentRecord

__all__ = ["document_influence", "evidence_controls"]

_WITHOUT: Final = "without:"
_CONTROLS: Final = {
    "canary": "canary: a document that gives orders",
    "sham": "sham: irrelevant text of that length",
    "negation": "negation: the opposite claim, complemented",
}


def document_influence(
    artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """How far each document moves the belief: the lens as it is minus the lens without it."""
    model = chosen_model(artifact, model)
    titles = _titles(artifact)
    found = [record for record in _own(artifact, model) if record.variant.startswith(_WITHOUT)]
    rows = [
        _row(record, *_document_label(record, titles), theme)
        for record in sorted(found, key=_by_size)
    ]
    return _chart(
        rows,
        artifact,
        model,
        what="Above 0: showing the document raises p(true). Without it, the rest stays.",
        nothing="Influence wasn't measured: `heretix lens … --influence` does.",
        theme=theme,
    )


def evidence_controls(
    artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """Orders, irrelevant text, the negation and another policy against the lens as it is."""
    model = chosen_model(artifact, model)
    found = [record for record in _own(artifact, model) if not record.variant.startswith(_WITHOUT)]
    rows = [_row(record, record.lens, _control(record.variant), theme) for record in found]
    return _chart(
        rows,
        artifact,
        model,
        what="The lens as it is minus its variant; near 0 the variant makes no difference.",
        nothing="No control was measured: `heretix lens … --canary --sham --negation` does.",
        theme=theme,
    )


def _chart(
    rows: Sequence[IntervalRow],
    artifact: Artifact,
    model: str,
    *,
    what: str,
    nothing: str,
    theme: Theme,
) -> Chart:
    claim = claim_of(artifact)
    n = f"n = {counted(len(rows), 'variant')}"
    subtitle = [listed([model, n, "bars: 95% intervals"]), what]
    if not rows:
        return notice(
            nothing, title=claim, subtitle=[model], description="Experiments.", theme=theme
        )
    axis = difference_axis("difference of p(true), lens − variant", rows)
    known = [row for row in rows if row.value is not None]
    largest = max(known, key=lambda row: abs(row.value or 0.0), default=None)
    said = f" The largest is {largest.value:+.3f}: {largest.label}." if largest else ""
    return figure(
        interval_panel(rows, axis=axis, theme=theme, signed=True, reference=0.0),
        title=claim,
        subtitle=subtitle,
        description=f"Differences of p(true) for {n}, measured with {model}.{said}",
        theme=theme,
        wide=True,
    )


def _row(record: ExperimentRecord, label: str, detail: str, theme: Theme) -> IntervalRow:
    found = record.difference
    return IntervalRow(
        label=label,
        detail=detail,
        value=found.value if found else None,
        lo=found.lo if found else None,
        hi=found.hi if found else None,
        reason=record.reason,
        colour=theme.colour(record.lens),
        shape=SHAPES[record.lens],
        hollow=record.lens == "NUL",
    )


def _own(artifact: Artifact, model: str) -> list[ExperimentRecord]:
    return [record for record in artifact.experiments or [] if record.model == model]


def _by_size(record: ExperimentRecord) -> tuple[str, bool, float, str]:
    """By lens, the documents that raise the belief most first, those without a number last."""
    found = record.difference
    return (record.lens, found is None, -(found.value if found else 0.0), record.variant)


def _document_label(
    record: ExperimentRecord, titles: dict[tuple[str, str], tuple[str, str]]
) -> tuple[str, str]:
    name = record.variant.removeprefix(_WITHOUT)
    known = titles.get((record.lens, name))
    if known is None:
        return f"{record.lens} · all of {name}", "every document of this publisher"
    publisher, title = known
    return f"{record.lens} {name} · {publisher}", title


def _control(variant: str) -> str:
    if variant.startswith("policy:"):
        return f"policy: sources under {variant.removeprefix('policy:')}"
    return _CONTROLS.get(variant, variant)


def _titles(artifact: Artifact) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (bundle["lens"], item["id"]): (str(item["publisher"]), str(item["title"]))
        for bundle in artifact.bundles or []
        for item in bundle["items"]
    }
