"""Findings of several records together: vectors, experiments and repetitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.measurement.assemble import as_they_are
from heretix.measurement.record import Artifact
from heretix.report.charts import (
    belief_vector,
    document_influence,
    evidence_controls,
    model_comparison,
)
from heretix.report.charts.beliefs import claim_of
from heretix.report.charts.studies import drift
from heretix.report.charts.theme import LIGHT, Theme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import ExperimentRecord, RunRecord
    from heretix.report.charts import Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart, what it is called in a report, and the runs whose answers are behind it."""

    title: str
    chart: Chart
    runs: tuple[RunRecord, ...]
    claim: str | None = None
    """None where it is about several."""


def plain_runs(artifacts: Sequence[Artifact]) -> list[RunRecord]:
    """The runs that measure a belief itself, each once, in the order given."""
    runs = []
    for artifact in artifacts:
        if artifact.lenses is not None:
            runs += as_they_are(artifact.runs, claim_of(artifact))
        else:
            runs += [run for run in artifact.runs if not (run.evidence and run.evidence.variant)]
    return _once(runs)


def experiment_runs(artifacts: Sequence[Artifact]) -> list[RunRecord]:
    """The runs that were made to be compared with others: variants of bundles, and negations."""
    plain = {run.execution_id for run in plain_runs(artifacts)}
    every = _once([run for artifact in artifacts for run in artifact.runs])
    return [run for run in every if run.execution_id not in plain]


def _once(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """A record that was named twice is one record."""
    return list({(run.execution_id, run.sha256): run for run in runs}.values())


def vectors(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Belief vectors: those recorded, and those that single runs of one claim make up."""
    found = [artifact for artifact in artifacts if artifact.lenses is not None]
    loose = plain_runs([artifact for artifact in artifacts if artifact.lenses is None])
    for claim in dict.fromkeys(run.claim for run in loose):
        own = as_they_are(loose, claim)
        for model in dict.fromkeys(run.model for run in own):
            runs = [run for run in own if run.model == model]
            lenses = {run.lens for run in runs}
            # With a lens measured twice there isn't one vector, and none is made up.
            if len(lenses) > 1 and len(lenses) == len(runs):
                found.append(Artifact.of(runs))
    return found


def shared_pictures(artifacts: Sequence[Artifact], *, theme: Theme = LIGHT) -> list[Picture]:
    """The charts that more than one run stands behind."""
    runs = plain_runs(artifacts)
    pictures = []
    if len(runs) > 1:
        chart = model_comparison(runs, theme=theme)
        pictures.append(Picture(title="Side by side", chart=chart, runs=tuple(runs)))
    for artifact in vectors(artifacts):
        pictures += _of_vector(artifact, theme)
    for run_id in dict.fromkeys(run.run_id for run in runs):
        same = tuple(run for run in runs if run.run_id == run_id)
        if len(same) > 1:
            chart = drift(same, theme=theme)
            pictures.append(Picture(title="Over time", chart=chart, runs=same, claim=same[0].claim))
    return pictures


def _of_vector(artifact: Artifact, theme: Theme) -> list[Picture]:
    pictures = []
    claim = claim_of(artifact)
    for model in dict.fromkeys(run.model for run in artifact.runs):
        own = [run for run in artifact.runs if run.model == model]
        plain = as_they_are(own, claim)
        chart = belief_vector(artifact, model, theme=theme)
        pictures.append(Picture(title="Belief vector", chart=chart, runs=tuple(plain), claim=claim))
        records = [record for record in artifact.experiments or [] if record.model == model]
        kinds = (
            ("Influence of each document", document_influence, True),
            ("Controls", evidence_controls, False),
        )
        for title, draw, left_out in kinds:
            chosen = [r for r in records if r.variant.startswith("without:") is left_out]
            if chosen:
                behind = _behind(chosen, own, plain)
                chart = draw(artifact, model, theme=theme)
                pictures.append(Picture(title=title, chart=chart, runs=behind, claim=claim))
    return pictures


def _behind(
    records: Sequence[ExperimentRecord], runs: Sequence[RunRecord], plain: Sequence[RunRecord]
) -> tuple[RunRecord, ...]:
    """The variants themselves, and the lenses as they are that they were compared with."""
    variants = {record.execution_id for record in records}
    lenses = {record.lens for record in records}
    whole = [run for run in plain if run.lens in lenses]
    return (*whole, *(run for run in runs if run.execution_id in variants))
