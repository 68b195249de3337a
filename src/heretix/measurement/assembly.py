"""From the runs of one claim to its artifact: the runs, and what lies between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.errors import InsufficientEvidenceError
from heretix.evidence.bundle import Bundle
from heretix.measurement.experiments import compared
from heretix.measurement.record import SCHEMA, Artifact, LensRecord
from heretix.measurement.vector import lens_record, metrics_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.config import Claim
    from heretix.measurement.measurement import Measurement
    from heretix.measurement.record import MetricsRecord, RunRecord

__all__ = ["as_they_are", "assemble", "metrics_by_model"]


def assemble(measurement: Measurement, claim: Claim, runs: Sequence[RunRecord]) -> Artifact:
    """The artifact of a claim. Only evidence lenses add a vector, bundles and metrics."""
    if all(lens == "RPL" for lens in measurement.config.lenses):
        return Artifact.of(runs)
    found = {
        lens: bundle
        for lens in measurement.config.lenses
        if (bundle := measurement.bundles.get((claim.text, lens))) is not None
    }
    bundles = [bundle for bundle in found.values() if isinstance(bundle, Bundle)]
    lacking = [
        _lacking(lens, model.identity, str(bundle))
        for model in measurement.models
        for lens, bundle in found.items()
        if isinstance(bundle, InsufficientEvidenceError)
    ]
    experiments = compared(runs)
    return Artifact(
        schema=SCHEMA,
        runs=list(runs),
        lenses=[*(lens_record(run) for run in as_they_are(runs)), *lacking],
        bundles=[bundle.to_json() for bundle in bundles],
        metrics=metrics_by_model(runs, {b.bundle_id: b.publishers for b in bundles}),
        experiments=experiments or None,
    )


def as_they_are(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of the claim that show bundles as they are: no experiments, no negation."""
    claim = runs[0].claim
    return [
        run for run in runs if run.claim == claim and not (run.evidence and run.evidence.variant)
    ]


def metrics_by_model(
    runs: Sequence[RunRecord], publishers: Mapping[str, Mapping[str, int]]
) -> dict[str, MetricsRecord]:
    """What lies between the lenses, for each model. `publishers` counts items by bundle id."""
    metrics = {}
    runs = as_they_are(runs)
    for model in dict.fromkeys(run.model for run in runs):
        own = [run for run in runs if run.model == model]
        counts: dict[str, Mapping[str, int]] = {}
        for run in own:
            bundle_id = run.evidence.bundle_id if run.evidence else None
            if bundle_id is not None and bundle_id in publishers:
                counts[run.lens] = publishers[bundle_id]
        metrics[model] = metrics_record(own, counts)
    return metrics


def _lacking(lens: str, model: str, reason: str) -> LensRecord:
    return LensRecord.model_validate(
        {
            "lens": lens,
            "run_id": None,
            "execution_id": None,
            "model": model,
            "prob_true": None,
            "ci95": None,
            "bundle_id": None,
            "trusted": None,
            "status": "insufficient_evidence",
            "reason": reason,
        }
    )
