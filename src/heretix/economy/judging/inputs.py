"""Inputs of the economy's rules, made from records: a belief, a gate, a judging measurement.

Everything follows from stored records and a seed, so that anyone who has them can work it out
again. Differences are paired by wording, and one draw of wordings serves all models and sides:
what a wording does to an answer cancels.
"""

from __future__ import annotations

import decimal
import hashlib
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from heretix.belief.estimator import interval, mean, order_templates, trim_cut, trimmed_mean
from heretix.belief.logodds import logit, sigmoid
from heretix.belief.metrics import MIN_STEMS, joint_bootstrap, sigmoids
from heretix.core.canonical import encode
from heretix.core.errors import NoEstimateError
from heretix.economy.episode.challenges import BroughtEvidence, GateReading
from heretix.economy.episode.settlement import JudgeReading, Measurement
from heretix.economy.ledger import PPM, Reason
from heretix.economy.rewards import BELIEF_MAX, clip_belief, log_odds
from heretix.measurement.record import RunRecord
from heretix.measurement.vector import logits_by_stem
from heretix.measurement.verify import verify_run
from heretix.providers.catalog import parse_model
from heretix.store.runs import find_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.belief.estimator import Floats
    from heretix.economy.episode.state import Episode, Terms
    from heretix.economy.exchange import StoredMeasurement
    from heretix.store import Store

BEFORE: Final = "before"
AFTER: Final = "after"
PLACEBO: Final = "placebo"
"""The sides of a difference: without the evidence in question, with it, and with irrelevant text of
its length instead."""

_BOUND: Final = float(log_odds(BELIEF_MAX))
_DIGITS: Final = Decimal("1E-9")
"""Log-odds are written to nine places: the last bits of a logarithm differ between machines."""


class Sides(NamedTuple):
    """One model, measured without and with the evidence."""

    before: RunRecord
    after: RunRecord


def pair_sides(found: Mapping[tuple[str, str], RunRecord]) -> dict[str, Sides]:
    """Pair records by model and side; a model that lacks a side is left out."""
    return {
        model: Sides(found[model, BEFORE], found[model, AFTER])
        for model in sorted({model for model, _ in found})
        if {(model, BEFORE), (model, AFTER)} <= found.keys()
    }


def seed_of(episode: str, stage: str) -> int:
    """The seed of a stage's bootstrap: nobody chooses it, anybody can work it out."""
    digest = hashlib.sha256(f"{episode}|{stage}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def variant_of(episode: str, stage: str, side: str) -> str:
    """Variant in every sample's identity, which names the record afterwards."""
    return f"episode:{episode}:{stage}:{side}"


def side_of(record: RunRecord) -> str:
    """Side that a record is of."""
    assert record.evidence is not None
    assert record.evidence.variant is not None
    return record.evidence.variant.rpartition(":")[2]


def belief_ppm(records: Sequence[RunRecord]) -> int:
    """The belief of a lens: the median of its models' log-odds, within [1%, 99%]."""
    probs = [record.aggregates.prob_true_rpl for record in records]
    if not probs or None in probs:
        lacking = [r.model for r in records if r.aggregates.prob_true_rpl is None]
        raise NoEstimateError(
            f"`belief`: every model of the lens must give an estimate, got none from "
            f"{', '.join(lacking) or 'no model'}; see why with `heretix show`, then measure again"
        )
    middle = float(np.median([logit(prob) for prob in probs if prob is not None]))
    return clip_belief(round(sigmoid(middle) * PPM))


def gate_evidence(
    terms: Terms, sides: Mapping[str, Sides], *, seed: int, placebo: Mapping[str, RunRecord]
) -> tuple[BroughtEvidence | None, Reason | None]:
    """Inputs of the gate for a challenge's evidence; or None, and why there are none.

    The gate reads the lens with the evidence less the lens without: the median over its models. And
    less the lens with irrelevant text of that length, so that text as such isn't evidence.
    """
    if not set(terms.models) <= (sides.keys() & placebo.keys()):
        return None, Reason("model_unreachable")
    found = [sides[model] for model in terms.models]
    against = [Sides(placebo[model], sides[model].after) for model in terms.models]
    usages = [r.usage for model in terms.models for r in (*sides[model], placebo[model])]
    attempted, least = sum(usage.attempted for usage in usages), terms.parameters.min_compliance_ppm
    compliance = sum(usage.compliant for usage in usages) * PPM // attempted
    if compliance < least:
        return None, Reason.of("low_compliance", least_ppm=least, got_ppm=compliance)
    try:
        replicas, over_placebo = (
            _replicas({str(n): side for n, side in enumerate(pairs)}, seed=seed)
            for pairs in (found, against)
        )
        belief = belief_ppm([side.after for side in found])
    except NoEstimateError as exc:
        return None, Reason.of("no_estimate", detail=str(exc))
    probs = [sigmoids(after) - sigmoids(before) for before, after in replicas]
    lo, hi = interval(np.median(probs, axis=0))
    width = Decimal(hi - lo) * PPM
    reading = GateReading(
        p_up_ppm=_share_up(np.median([after - before for before, after in replicas], axis=0)),
        p_over_placebo_ppm=_share_up(np.median([b - a for a, b in over_placebo], axis=0)),
        slots=terms.K,
        ci_width_ppm=int(width.to_integral_value(rounding=decimal.ROUND_CEILING)),
    )
    return BroughtEvidence(gate=reading, belief_ppm=belief), None


def judge_reading(model: str, sides: Sides) -> JudgeReading:
    """One judge, from its own answers alone: no other judge can change its shift.

    Both beliefs come from the wordings that it answered on both sides.
    """
    before, after = _pair_centers(sides)
    ids = {served.provider_model_id for record in sides for served in record.served}
    usages = [record.usage for record in sides]
    return JudgeReading(
        model=model,
        provider_model_ids=tuple(sorted(id_ for id_ in ids if id_ is not None)),
        before=before,
        after=after,
        attempted=sum(usage.attempted for usage in usages),
        compliant=sum(usage.compliant for usage in usages),
        from_cache=sum(usage.from_cache for usage in usages),
    )


def judging_measurement(judges: Mapping[str, Sides], *, seed: int) -> Measurement:
    """All judges, and the interval of their median shift: each replica's median over judges.

    Without a common estimate the numbers are None, and the rules void the episode.
    """
    readings = tuple(judge_reading(model, judges[model]) for model in sorted(judges))
    usable = {r.model: judges[r.model] for r in readings if r.shift is not None}
    try:
        replicas = _replicas(usable, seed=seed)
    except NoEstimateError:
        return Measurement(readings=readings, p_up_ppm=None, shift_lo=None, shift_hi=None)
    # Within [1%, 99%] before they are differenced, as the rules hold the judges themselves.
    held = [
        (np.clip(before, -_BOUND, _BOUND), np.clip(after, -_BOUND, _BOUND))
        for before, after in replicas
    ]
    shifts: Floats = np.median([after - before for before, after in held], axis=0)
    lo, hi = interval(shifts)
    return Measurement(
        readings=readings,
        p_up_ppm=_share_up(shifts),
        # Rounded outwards: an interval is never written narrower than it is.
        shift_lo=_round(lo, decimal.ROUND_FLOOR),
        shift_hi=_round(hi, decimal.ROUND_CEILING),
    )


def add_absent(measurement: Measurement, judges: Sequence[str], terms: Terms) -> Measurement:
    """The measurement with the judges that could not be reached: attempted, and no answer."""
    heard = {reading.model for reading in measurement.readings}
    absent = tuple(
        JudgeReading(
            model=model,
            provider_model_ids=(),
            before=None,
            after=None,
            attempted=2 * terms.K * terms.R,
            compliant=0,
            from_cache=0,
        )
        for model in sorted(set(judges) - heard)
    )
    return replace(measurement, readings=(*measurement.readings, *absent))


def _replicas(sides: Mapping[str, Sides], *, seed: int) -> list[tuple[Floats, Floats]]:
    """Bootstrap centers without and with the evidence, model by model, over the same wordings."""
    lenses: dict[str, dict[str, list[float]]] = {}
    for model, side in sides.items():
        lenses[f"{model}|0"] = logits_by_stem(side.before)
        lenses[f"{model}|1"] = logits_by_stem(side.after)
    if not lenses:
        raise NoEstimateError("`judges`: none has an estimate on both sides")
    first = next(iter(sides.values())).before.aggregation
    vector = joint_bootstrap(lenses, seed=seed, B=first.B, center=first.center, trim=first.trim)
    return [(vector.replicas[f"{model}|0"], vector.replicas[f"{model}|1"]) for model in sides]


def _pair_centers(sides: Sides) -> tuple[Decimal, Decimal] | tuple[None, None]:
    if any(record.status != "ok" for record in sides):
        return None, None
    before, after = (order_templates(logits_by_stem(record)) for record in sides)
    stems = sorted(before.keys() & after.keys())
    if len(stems) < MIN_STEMS:
        return None, None
    how = sides.before.aggregation
    cut = trim_cut(len(stems), center=how.center, trim=how.trim)
    return (
        _round(trimmed_mean([mean(before[stem]) for stem in stems], cut)),
        _round(trimmed_mean([mean(after[stem]) for stem in stems], cut)),
    )


def _share_up(differences: Floats) -> int:
    """Share of replicas above 0, ties counting half; rounded towards one half.

    A threshold that must be reached is then never reached by rounding, up or down.
    """
    doubled = 2 * int(np.count_nonzero(differences > 0)) + int(np.count_nonzero(differences == 0))
    whole = 2 * len(differences)
    if 2 * doubled > whole:
        return doubled * PPM // whole
    return -(-doubled * PPM // whole)


def _round(value: float, rounding: str = decimal.ROUND_HALF_EVEN) -> Decimal:
    # Adding zero turns a minus zero into zero: one number has one spelling.
    return Decimal(value).quantize(_DIGITS, rounding=rounding) + 0


# Work out again, from stored records alone, what an episode was told by its measurements.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """Outcome of working one stage out again."""

    stage: str
    executions: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
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
        RunRecord.model_validate_json(store.read(find_record, execution).record_json)
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
        derived = _derive(episode, stage, records)
    except NoEstimateError as exc:
        derived = f"no estimate: {exc}"
    # Whether a ground was confirmed is a ruling, not a measurement.
    told = {name: value for name, value in stage.record.items() if name != "ground_confirmed"}
    if derived is not None and derived != told:
        yield f"the records give {derived}, the episode was told {told}"


def _derive(episode: Episode, told: StoredMeasurement, records: Sequence[RunRecord]) -> Any:
    terms, stage = episode.terms, told.stage
    if stage == "c0":
        return {"c0_ppm": belief_ppm(records)}
    if stage.startswith("gate:"):
        sides = _sides(records, terms.models)
        names = {parse_model(name).identity: name for name in terms.models}
        placebo = {names.get(r.model, r.model): r for r in records if side_of(r) == PLACEBO}
        seed = seed_of(episode.id, stage)
        evidence, _ = gate_evidence(terms, sides, seed=seed, placebo=placebo)
        return {"evidence": encode(evidence)}
    if stage.startswith("round:"):
        halves = zip(("first", "second"), told.record["measurements"], strict=True)
        found = [_derive_judged(episode, f"{stage}:{half}", records, was) for half, was in halves]
        return {"measurements": found}
    return _derive_judged(episode, stage, records, told.record)


def _derive_judged(
    episode: Episode, stage: str, records: Sequence[RunRecord], told: Mapping[str, Any]
) -> Any:
    prefix = f"episode:{episode.id}:{stage}:"
    own = [r for r in records if r.evidence and (r.evidence.variant or "").startswith(prefix)]
    sides = _sides(own, episode.terms.judge_pool)
    measurement = judging_measurement(sides, seed=seed_of(episode.id, stage))
    # A judge that couldn't be reached has no execution; who was drawn is checked elsewhere.
    judges = [reading["model"] for reading in told["readings"]]
    return encode(add_absent(measurement, judges, episode.terms))


def _sides(records: Sequence[RunRecord], models: Sequence[str]) -> dict[str, Sides]:
    names = {parse_model(name).identity: name for name in models}
    return pair_sides({(names.get(r.model, r.model), side_of(r)): r for r in records})
