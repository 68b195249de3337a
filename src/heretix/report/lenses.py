"""The belief vector, and the evidence behind it, as a person reads them in a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heretix.measurement.lenses import ALL_LENSES
from heretix.report.terminal import interval_bar, run_view
from heretix.report.words import label_of, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.measurement.record import Artifact, LensRecord, MetricRecord, MetricsRecord

__all__ = ["bundle_view", "vector_view"]

T = TypeVar("T")

_ELSEWHERE: Final = frozenset({"wrong_class", "off_topic"})
"""Reasons of documents that this lens was never meant to show."""
_STYLES: Final = {"RPL": "cyan", "NUL": "dim", "MEL": "blue", "HEL": "magenta", "SEL": "green"}


def vector_view(artifact: Artifact, *, lacking_told: bool = False) -> RenderableType:
    """What a model believes with each kind of evidence, and what lies between.

    With `lacking_told`, why a lens has too little evidence was said before, and isn't repeated.
    """
    runs = artifact.runs
    if artifact.metrics is None:
        # Nothing but raw priors: there is no vector, and each stands for itself.
        return Group(*map(run_view, runs))
    parts: list[RenderableType] = [Text(artifact.claim or runs[0].claim, style="bold")]
    for model, found in artifact.metrics.items():
        lines = [lens for lens in artifact.lenses or [] if lens.model == model]
        parts += [Text(model, style="dim"), _vector_table(lines, lacking_told=lacking_told)]
        parts += _metric_lines(found)
        parts += _experiment_lines(artifact, model)
        labels = (label_of(run) for run in runs if run.model == model)
        parts += [Text(label, style="yellow") for label in dict.fromkeys(labels) if label]
    return Group(*parts)


def bundle_view(bundle: Mapping[str, Any]) -> RenderableType:
    """The documents of a bundle: class, reliability and stance, then a quote of each."""
    head = Text(f"{bundle['lens']} bundle {bundle['bundle_id'][:16]}", style="bold")
    if version := bundle["policy"]["version"]:
        head.append(f" (policy {version})", style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("id", "class", "r"):
        table.add_column(name, no_wrap=True)
    table.add_column("published", no_wrap=True)
    table.add_column("stance", no_wrap=True)
    table.add_column("publisher", overflow="fold")
    # Beside the other columns a narrow terminal would leave a quote one word a line.
    quotes = Table.grid(padding=(0, 2))
    quotes.add_column(no_wrap=True)
    quotes.add_column(ratio=1)
    for item in bundle["items"]:
        table.add_row(
            item["id"],
            item["cls"],
            f"{item['reliability']['r']:.2f}",
            item["published"] or "undated",
            item["stance"] or "–",
            Text(item["publisher"]),
        )
        quotes.add_row(item["id"], Text(item["quote"]))
    parts: list[RenderableType] = [head]
    if bundle["items"]:
        parts += [table, Text("quotes", style="dim"), quotes]
        parts.append(Text(_stance_note(bundle["items"]), style="dim"))
    return Group(*parts, *_dropped_lines(bundle["dropped"]))


def _stance_note(items: Sequence[Mapping[str, Any]]) -> str:
    """Who says which side each document takes."""
    judges = sorted({str(by) for item in items if (by := item.get("stance_by"))})
    notes = [f"stance by: {', '.join(judges)}"] if judges else []
    if any(item["stance"] is None for item in items):
        notes.append("stance –: not judged")
    return "; ".join(notes)


def _dropped_lines(dropped: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """Why documents were left out: how many for each reason, and those that nearly got in."""
    if not dropped:
        return []
    counts = Counter(str(drop["reason"]) for drop in dropped)
    said = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    near = [drop for drop in dropped if drop["reason"] not in _ELSEWHERE]
    return [
        Text(f"{len(dropped)} left out: {said}", style="dim"),
        *(
            Text(f"  {drop['reason']}: {drop['title']} ({drop['detail']})", style="dim")
            for drop in near[:12]
        ),
    ]


def _vector_table(lines: list[LensRecord], *, lacking_told: bool) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("lens", no_wrap=True)
    table.add_column("p(true)", justify="right", no_wrap=True)
    table.add_column("95% CI", no_wrap=True)
    table.add_column("")
    notes = []
    for line in lines:
        if line.prob_true is None or line.ci95 is None:
            table.add_row(line.lens, "—", "—", Text(line.status, style="yellow"))
            if not (lacking_told and line.status == "insufficient_evidence"):
                notes.append(Text(f"{line.lens}: {line.reason}", style="yellow"))
            continue
        table.add_row(
            line.lens,
            f"{line.prob_true:.3f}",
            span(*line.ci95),
            interval_bar(line.prob_true, *line.ci95, cells=41, style=_STYLES[line.lens]),
        )
        if line.trusted is False:
            wrong = (
                "it quotes documents, and was shown none"
                if line.lens == "NUL"
                else "too many quotes aren't in the documents"
            )
            said = f"{line.lens}: {wrong}; not to be trusted"
            notes.append(Text(said, style="yellow"))
    return Group(table, *notes)


def _metric_lines(found: MetricsRecord) -> list[RenderableType]:
    if found.reason is not None:
        return [Text(f"no differences: {found.reason}", style="yellow")]
    missing = [
        Text(f"no differences for {lens}: {reason}", style="yellow")
        for lens, reason in found.missing.items()
        # The line of the lens has said it already.
        if not reason.startswith(("`insufficient_evidence`", "no estimate"))
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in [*_headlines(found), *_details(found)]:
        table.add_row(Text(name, style="dim"), value)
    return [*missing, table]


def _headlines(found: MetricsRecord) -> Iterator[tuple[str, str]]:
    if found.shock_index:
        floor = (
            "noise floor unknown with R=1"
            if found.noise_floor is None
            else f"noise floor {found.noise_floor:.3f}"
        )
        yield "Shock Index", f"{_interval(found.shock_index)}   ({floor})"
    if found.amplification_gap:
        yield "Amplification Gap", _signed(found.amplification_gap)
        yield "  towards the prior", _directed(found.directed_gap)
    for lens, gain in _in_order(found.information_gain):
        if lens != "NUL":
            yield f"Information Gain {lens}", f"{_signed(gain)} bits   p={gain.p_value:.4f}"


def _details(found: MetricsRecord) -> Iterator[tuple[str, str]]:
    for lens, effect in _in_order(found.evidence_effect):
        yield f"evidence effect {lens}", _signed(effect)
    if found.wrapper_effect:
        yield "wrapper effect", _signed(found.wrapper_effect)
    if found.dispersion_bits:
        yield "dispersion", f"{_interval(found.dispersion_bits)} bits"
    for lens, sources in _in_order(found.source_concentration):
        said = f"{sources.effective_sources:.2f} of {sources.publishers} publishers"
        yield f"effective sources {lens}", said


def _in_order(by_lens: Mapping[str, T]) -> list[tuple[str, T]]:
    """As the table above has the lenses."""
    return sorted(by_lens.items(), key=lambda entry: ALL_LENSES.index(entry[0]))


def _experiment_lines(artifact: Artifact, model: str) -> list[RenderableType]:
    """The belief of each lens minus that of its variants."""
    found = [record for record in artifact.experiments or [] if record.model == model]
    if not found:
        return []
    shown = {run.execution_id: run.evidence.bundle_id for run in artifact.runs if run.evidence}
    titles = {
        (bundle["bundle_id"], item["id"]): f"{item['publisher']}: {item['title']}"
        for bundle in artifact.bundles or []
        for item in bundle["items"]
    }
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("lens", "variant", "p(true)", "lens − variant"):
        table.add_column(name, no_wrap=True)
    table.add_column("")
    for record in found:
        left_out = record.variant.removeprefix("without:")
        table.add_row(
            record.lens,
            Text(record.variant),
            "—" if record.prob_changed is None else f"{record.prob_changed:.3f}",
            _signed(record.difference) if record.difference else f"— {record.reason}",
            Text(
                titles.get((shown.get(record.execution_id), left_out), ""),
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    return [Text(""), table]


def _directed(metric: MetricRecord | None) -> str:
    if metric is None:
        return "undefined: the prior's interval holds 1/2"
    if metric.lo <= 0 <= metric.hi:
        said = "neither amplifies nor corrects it for certain"
    else:
        said = "amplifies it" if metric.value > 0 else "corrects it"
    return f"{_signed(metric)}   ({said})"


def _signed(metric: MetricRecord) -> str:
    return f"{metric.value:+.3f}   [{metric.lo:+.3f}, {metric.hi:+.3f}]"


def _interval(metric: MetricRecord) -> str:
    return f"{metric.value:.3f}   [{metric.lo:.3f}, {metric.hi:.3f}]"
