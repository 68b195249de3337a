"""A claim as its page shows it: one run in focus, and what else is known of the same claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.errors import RecordError
from heretix.measurement.record import SCHEMA, Artifact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.measurement.record import ExperimentRecord, MetricsRecord, RunRecord
    from heretix.store import RunSummary
    from heretix.web.desk import Desk

__all__ = ["ClaimView", "claim_view", "vector_artifact"]

LENS_ORDER: Final = ("RPL", "NUL", "MEL", "HEL", "SEL")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """What surrounds a run."""

    vector: tuple[RunSummary, ...]
    """The latest run of each lens, of the same model; the one in focus stands for its lens."""
    variants: tuple[RunSummary, ...]
    """Experiments on those lenses."""
    others: tuple[RunSummary, ...]
    """The same claim in other models, and other recipes of this one."""

    @property
    def prior(self) -> float | None:
        """The raw prior, where it was measured."""
        return next((run.prob_true_rpl for run in self.vector if run.lens == "RPL"), None)

    @property
    def key(self) -> tuple[str, ...]:
        """What everything between the lenses follows from."""
        return tuple(run.execution_id for run in (*self.vector, *self.variants))


def claim_view(desk: Desk, record: RunRecord) -> ClaimView:
    """Everything measured of the claim of `record`, in one look-up."""
    found = desk.store.runs_of_claim(record.claim)
    variant = record.evidence.variant if record.evidence else None
    latest: dict[str, RunSummary] = {}
    rest: list[RunSummary] = []
    # The run in focus is looked at first, then the others of its model, the latest first.
    for run in sorted(found, key=lambda run: run.run_id != record.run_id):
        mine = run.model == record.model and run.variant is None
        if mine and run.prob_true_rpl is not None and run.lens not in latest:
            latest[run.lens] = run
        elif run.variant is None and run.run_id != record.run_id:
            rest.append(run)
    # A variant belongs to the lens whose bundle it changed.
    bundles = {run.bundle_id for run in latest.values() if run.bundle_id}
    variants = [
        run
        for run in found
        if run.variant and run.model == record.model and run.bundle_id in bundles
    ]
    if variant is not None:
        rest = [run for run in rest if run.run_id != record.run_id]
    return ClaimView(
        vector=tuple(latest[lens] for lens in LENS_ORDER if lens in latest),
        variants=tuple(variants),
        others=tuple(rest),
    )


def vector_artifact(desk: Desk, view: ClaimView) -> Artifact:
    """The lenses of a claim and what lies between them, as `heretix lens` would write it."""
    return desk.shelf.artifacts.get(view.key, lambda: _artifact(desk, view))


def _artifact(desk: Desk, view: ClaimView) -> Artifact:
    from heretix.measurement.assembly import metrics_by_model
    from heretix.measurement.experiments import compared
    from heretix.measurement.vector import lens_record

    runs = [desk.shelf.record(run.execution_id) for run in (*view.vector, *view.variants)]
    plain = runs[: len(view.vector)]
    publishers = _publishers(desk, plain)
    metrics: dict[str, MetricsRecord] = metrics_by_model(plain, plain[0].claim, publishers)
    experiments: list[ExperimentRecord] = compared(runs, plain[0].claim) if view.variants else []
    return Artifact(
        schema=SCHEMA,
        runs=runs,
        lenses=[lens_record(run) for run in plain],
        metrics=metrics,
        experiments=experiments or None,
        bundles=[desk.shelf.bundle(bundle_id).to_json() for bundle_id in publishers] or None,
    )


def _publishers(desk: Desk, runs: Sequence[RunRecord]) -> dict[str, Mapping[str, int]]:
    """Items by publisher, for the bundles that are stored."""
    counts: dict[str, Mapping[str, int]] = {}
    for run in runs:
        bundle_id = run.evidence.bundle_id if run.evidence else None
        if bundle_id is None:
            continue
        try:
            counts[bundle_id] = desk.shelf.bundle(bundle_id).publishers
        except RecordError:
            # A record from elsewhere can name a bundle that isn't here; it counts no sources.
            continue
    return counts
