"""From the runs of one claim to its artifact: the runs, and what lies between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.core.errors import InsufficientEvidenceError
from heretix.core.lenses import LENSES, RPL
from heretix.evidence.search import SERVICES
from heretix.measurement.experiments import compared
from heretix.measurement.record import SCHEMA, Artifact, LensRecord, PluginRecord
from heretix.measurement.vector import METRICS, lens_record, metrics_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.config import Claim
    from heretix.core.plugins import Plugin
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.measurement import Measurement
    from heretix.measurement.record import MetricsRecord, ReasonRecord, RunRecord


def assemble(measurement: Measurement, claim: Claim, runs: Sequence[RunRecord]) -> Artifact:
    """The artifact of a claim. Only evidence lenses and a negation add what lies between."""
    raw = all(lens == RPL for lens in measurement.config.lenses)
    if raw and measurement.negation is None:
        return Artifact.of(runs)
    bundles = _bundles(measurement, claim)
    publishers = {bundle.bundle_id: bundle.publishers for bundle in bundles}
    lines = lens_records(runs, claim.text, bundles)
    models = dict.fromkeys(run.model for run in runs)
    added = list(METRICS.plugins().values())
    evidence = measurement.config.evidence
    search = SERVICES.plugin(evidence.search) if evidence and evidence.search else None
    plugins = [PluginRecord.of(plugin) for plugin in (search, *added) if plugin]
    return Artifact(
        schema=SCHEMA,
        claim=claim.text,
        runs=list(runs),
        lenses=lines,
        bundles=[bundle.to_json() for bundle in bundles],
        metrics=metrics_by_model(runs, claim.text, publishers, lines, dict.fromkeys(models, added)),
        experiments=compared(runs, claim.text) or None,
        plugins=plugins or None,
    )


def as_they_are(runs: Sequence[RunRecord], claim: str) -> list[RunRecord]:
    """The runs of the claim that show bundles as they are: no experiments, no negation."""
    return [
        run for run in runs if run.claim == claim and not (run.evidence and run.evidence.variant)
    ]


def lens_records(
    runs: Sequence[RunRecord], claim: str, bundles: Sequence[Bundle]
) -> list[LensRecord]:
    """The lines of the vector, model by model: what was measured, and what couldn't be."""
    models = list(dict.fromkeys(run.model for run in runs))
    lines = [lens_record(run) for run in as_they_are(runs, claim)]
    for model in models:
        lines += [line for bundle in bundles if (line := _lacking(bundle, model)) is not None]
    return sorted(lines, key=lambda line: (models.index(line.model), list(LENSES).index(line.lens)))


def metrics_by_model(
    runs: Sequence[RunRecord],
    claim: str,
    publishers: Mapping[str, Mapping[str, int]],
    lines: Sequence[LensRecord] = (),
    plugins: Mapping[str, Sequence[Plugin]] | None = None,
) -> dict[str, MetricsRecord]:
    """What lies between the lenses, for each model.

    `publishers` counts items by bundle id; `lines` say which lenses had too little evidence;
    `plugins` are the metrics to add, by model.
    """
    metrics = {}
    for model in dict.fromkeys(run.model for run in runs):
        own = [run for run in as_they_are(runs, claim) if run.model == model]
        counts: dict[str, Mapping[str, int]] = {}
        for run in own:
            bundle_id = run.evidence.bundle_id if run.evidence else None
            if bundle_id is not None and bundle_id in publishers:
                counts[run.lens] = publishers[bundle_id]
        lacking: dict[str, ReasonRecord] = {
            line.lens: line.reason
            for line in lines
            if line.model == model and line.reason and line.status == "insufficient_evidence"
        }
        metrics[model] = metrics_record(own, counts, lacking, (plugins or {}).get(model, ()))
    return metrics


def _bundles(measurement: Measurement, claim: Claim) -> list[Bundle]:
    """What is shown, or is too little to be, lens by lens; then what another policy shows."""
    found = []
    for lens in measurement.config.lenses:
        bundle = measurement.bundles.get((claim.text, lens))
        if isinstance(bundle, InsufficientEvidenceError):
            bundle = bundle.bundle
        if bundle is not None:
            found.append(bundle)
    return found + [bundle for bundle in measurement.other_bundles if bundle.claim == claim.text]


def _lacking(bundle: Bundle, model: str) -> LensRecord | None:
    """The line of a lens that has too little to show; None if it has enough."""
    if bundle.sufficient:
        return None
    return LensRecord.model_validate(
        {
            "lens": bundle.lens,
            "run_id": None,
            "execution_id": None,
            "model": model,
            "prob_true": None,
            "ci95": None,
            "bundle_id": bundle.bundle_id,
            "trusted": None,
            "status": "insufficient_evidence",
            "reason": {"code": "insufficient_evidence", "params": bundle.shortfall.to_json()},
        }
    )
