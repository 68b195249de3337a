"""Work out again, from stored records alone, what an episode was told by its measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heretix.economy.codec import encode
from heretix.economy.hearing import (
    AFTER,
    BEFORE,
    Sides,
    belief_ppm,
    gate_evidence,
    judging_measurement,
    seed_of,
    side_of,
    with_absent,
)
from heretix.errors import NoEstimateError
from heretix.measurement.record import RunRecord
from heretix.measurement.verify import verify_run
from heretix.providers.catalog import parse_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.economy.episode import Episode
    from heretix.economy.records import StoredMeasurement
    from heretix.store import Store

__all__ = ["Recheck", "recheck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """What came of working one stage out again."""

    stage: str
    executions: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Everything follows from the records."""
        return not self.problems


def recheck(store: Store, episode: Episode, stages: Sequence[StoredMeasurement]) -> list[Recheck]:
    """Every stage that names its executions, worked out again."""
    return [
        Recheck(
            stage=stage.stage,
            executions=len(stage.source.executions),
            problems=tuple(_problems(store, episode, stage)),
        )
        for stage in stages
        if stage.source.executions
    ]


def _problems(store: Store, episode: Episode, stage: StoredMeasurement) -> Iterator[str]:
    records = [
        RunRecord.model_validate_json(store.find(execution).record_json)
        for execution in stage.source.executions
    ]
    for record in records:
        if not verify_run(record).ok:
            yield f"{record.execution_id} doesn't follow from its own samples"
        if record.claim != episode.terms.claim:
            yield f"{record.execution_id} measured another claim"
        variant = "" if record.evidence is None else record.evidence.variant or ""
        own = f"episode:{episode.id}:{stage.stage}:"
        # c₀ was measured before the episode had an id.
        if stage.stage != "c0" and not variant.startswith(own):
            yield f"{record.execution_id} was made for {variant or None!r}, not for {own!r}"
    try:
        derived = _derived(episode, stage, records)
    except NoEstimateError as exc:
        derived = f"no estimate: {exc}"
    if derived is not None and derived != _told(stage):
        yield f"the records give {derived}, the episode was told {_told(stage)}"


def _told(stage: StoredMeasurement) -> Any:
    told = dict(stage.record)
    # Whether a ground was confirmed is a ruling, not a measurement.
    told.pop("ground_confirmed", None)
    return told


def _derived(episode: Episode, told: StoredMeasurement, records: Sequence[RunRecord]) -> Any:
    terms, stage = episode.terms, told.stage
    if stage == "c0":
        return {"c0_ppm": belief_ppm(records)}
    if stage.startswith("gate:"):
        sides = _sides(records, terms.models)
        evidence, _ = gate_evidence(terms, sides, seed=seed_of(episode.id, stage))
        return {"evidence": encode(evidence)}
    if stage.startswith("round:"):
        halves = zip(("first", "second"), told.record["measurements"], strict=True)
        found = [_judged(episode, f"{stage}:{half}", records, was) for half, was in halves]
        return {"measurements": found}
    return _judged(episode, stage, records, told.record)


def _judged(
    episode: Episode, stage: str, records: Sequence[RunRecord], told: Mapping[str, Any]
) -> Any:
    prefix = f"episode:{episode.id}:{stage}:"
    own = [r for r in records if r.evidence and (r.evidence.variant or "").startswith(prefix)]
    sides = _sides(own, episode.terms.judge_pool)
    measurement = judging_measurement(sides, seed=seed_of(episode.id, stage))
    # A judge that couldn't be reached has no execution; who was drawn is checked elsewhere.
    judges = [reading["model"] for reading in told["readings"]]
    return encode(with_absent(measurement, judges, episode.terms))


def _sides(records: Sequence[RunRecord], models: Sequence[str]) -> dict[str, Sides]:
    names = {parse_model(name).identity: name for name in models}
    found = {(names.get(record.model, record.model), side_of(record)): record for record in records}
    return {
        model: Sides(before=found[model, BEFORE], after=found[model, AFTER])
        for model in sorted({model for model, _ in found})
        if {(model, BEFORE), (model, AFTER)} <= found.keys()
    }
