"""The anomaly feed: claims on which evidence moves a model most, and not by chance.

Ranked by how large the Shock Index is at least, then the Amplification Gap. Only claims whose
measurement can be relied on, and which evidence moves more than irrelevant text does, are listed;
of those listed at most one in ten is expected to be there by chance.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import canonical_json
from heretix.core.errors import NoEstimateError, RecordError
from heretix.core.lenses import HEL, MEL, RPL, SHOWING
from heretix.evidence.bundle import load_bundle
from heretix.measurement.record import MetricRecord, RunRecord
from heretix.store.bundles import find_bundle
from heretix.store.runs import select_lens_records, select_repeated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.measurement.record import MetricsRecord
    from heretix.store import Store

_MIN_ITEMS: Final = 3
_MIN_SOURCES: Final = 2.0
FALSE_DISCOVERY_RATE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One claim and model."""

    claim: str
    model: str
    shock_index: MetricRecord | None
    amplification_gap: MetricRecord | None
    beliefs: Mapping[str, tuple[float, float, float]]
    """By lens, the raw prior among them: the belief with the ends of its interval."""
    placebo: Mapping[str, str]
    """By lens: what made its movement, by the placebo."""
    p_value: float
    """By the paired t, of a lens that moved the belief and moved it more than its sham: the larger
    p of the two. Of two lenses the smaller one, doubled: there were two chances."""
    gates_failed: tuple[str, ...]
    listed: bool
    """It passes the gates, and stands after control of the false discovery rate."""

    @property
    def rank(self) -> tuple[float, float]:
        """Rank by the least shock, then by the least gap, where evidence did it."""
        driven = {lens for lens, verdict in self.placebo.items() if verdict == "evidence_driven"}
        shock = self.shock_index.lo if self.shock_index and HEL in driven else 0.0
        gap = self.amplification_gap if MEL in driven else None
        # The least size that a signed number has within its interval.
        least = 0.0 if gap is None or gap.lo <= 0 <= gap.hi else min(abs(gap.lo), abs(gap.hi))
        return shock, least


def find_anomalies(store: Store) -> list[Anomaly]:
    """All claims with evidence lenses in the store, the strongest first."""
    several = _select_comparable(store)
    if not several:
        return []
    # Imported where it is used: a store without evidence needs no arithmetic.
    from heretix.belief.metrics import find_discoveries

    found = [_make_anomaly(store, runs) for runs in several]
    # What a placebo stopped was tested all the same: without it, chance would pass more easily.
    eligible = [
        anomaly
        for anomaly in found
        if not anomaly.gates_failed
        or (anomaly.gates_failed == ("placebo",) and set(anomaly.placebo.values()) - {"unchecked"})
    ]
    kept = find_discoveries([anomaly.p_value for anomaly in eligible], rate=FALSE_DISCOVERY_RATE)
    listed = {id(anomaly) for anomaly, keep in zip(eligible, kept, strict=True) if keep}
    marked = [
        replace(anomaly, listed=id(anomaly) in listed and not anomaly.gates_failed)
        for anomaly in found
    ]
    return sorted(
        marked, key=lambda a: (not a.listed, [-part for part in a.rank], a.claim, a.model)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A recipe that gave another belief than the last time, by both intervals."""

    before: RunRecord
    after: RunRecord
    moved: MetricRecord
    """By the wider of the two intervals on each side."""


_WATCHED: Final = 40
"""Recipes executed again that are looked at, the latest first."""


def find_shifts(store: Store, *, since: str) -> list[Shift]:
    """Find recipes executed again since a moment whose belief moved from the time before."""
    repeated = store.read(select_repeated, since=since, limit=_WATCHED)
    if not repeated:
        return []
    from heretix.measurement.verify import compare

    found = []
    for earlier, later in repeated:
        before, after = (RunRecord.model_validate_json(text) for text in (earlier, later))
        if before.status != "ok" or after.status != "ok":
            continue
        with contextlib.suppress(NoEstimateError):
            compared = compare(before, after)
            gap, paired = compared.difference, compared.paired_template_t
            told = [(gap.diff_prob_lo, gap.diff_prob_hi)]
            told += [(paired.diff_prob.lo, paired.diff_prob.hi)] if paired else []
            if all(lo > 0 for lo, _ in told) or all(hi < 0 for _, hi in told):
                lo, hi = min(lo for lo, _ in told), max(hi for _, hi in told)
                moved = MetricRecord(value=gap.diff_prob, lo=lo, hi=hi)
                found.append(Shift(before=before, after=after, moved=moved))
    return sorted(found, key=lambda shift: -abs(shift.moved.value))


def _select_comparable(store: Store) -> list[list[RunRecord]]:
    """Select for each claim and model the lenses to compare: the latest of one recipe.

    Lenses of different size, bank or options differ by those as well. Of several recipes that
    have a raw prior and company, the one measured last counts: a claim has one place in the feed.
    """
    recipes: dict[tuple[str, str], dict[str, dict[str, RunRecord]]] = {}
    for text in store.read(select_lens_records):
        run = RunRecord.model_validate_json(text)
        lenses = recipes.setdefault((run.claim, run.model), {}).setdefault(_recipe(run), {})
        sham = " sham" if run.evidence and run.evidence.variant else ""
        # The latest come first.
        lenses.setdefault(run.lens + sham, run)
    found = []
    for of_claim in recipes.values():
        complete = [r for r in of_claim.values() if RPL in r and r.keys() & set(SHOWING)]
        found += [list(runs.values()) for runs in complete[:1]]
    return found


def _recipe(run: RunRecord) -> str:
    """Recipe that lenses must share to be compared, besides claim and model."""
    sampler = run.sampler
    return canonical_json(
        [
            run.prompts.bank_sha256,
            run.sampling.model_dump(),
            [sampler.template_include, sampler.template_exclude],
            run.options.model_dump(),
        ]
    )


def _make_anomaly(store: Store, runs: Sequence[RunRecord]) -> Anomaly:
    from heretix.measurement.vector import metrics_by_model, select_unchanged_runs

    publishers = {}
    for run in runs:
        bundle_id = run.evidence.bundle_id if run.evidence else None
        if bundle_id is not None:
            with contextlib.suppress(RecordError):
                text = store.read(find_bundle, bundle_id)
                publishers[bundle_id] = load_bundle(text).publishers
    metrics = metrics_by_model(runs, runs[0].claim, publishers)[runs[0].model]
    moved = metrics.beside.movement if metrics.beside else {}
    placebo = metrics.beside.placebo if metrics.beside else {}
    made_by = {lens: metrics.beside.find_cause(lens) for lens in placebo} if metrics.beside else {}
    chances = [
        max(moved[lens].paired_template_t.p_value, minus.paired_template_t.p_value)
        for lens in (MEL, HEL)
        if lens in placebo and (minus := placebo[lens].minus_sham)
    ]
    return Anomaly(
        claim=runs[0].claim,
        model=runs[0].model,
        shock_index=metrics.shock_index,
        amplification_gap=metrics.amplification_gap,
        beliefs={
            run.lens: (run.aggregates.prob_true_rpl, *run.aggregates.ci95)
            for run in select_unchanged_runs(runs, runs[0].claim)
            if run.aggregates.prob_true_rpl is not None and run.aggregates.ci95 is not None
        },
        placebo=made_by,
        p_value=min(1.0, len(chances) * min(chances)) if chances else 1.0,
        gates_failed=_list_failed_gates(
            select_unchanged_runs(runs, runs[0].claim), metrics, made_by
        ),
        listed=False,
    )


def _list_failed_gates(
    runs: Sequence[RunRecord], metrics: MetricsRecord, made_by: Mapping[str, str]
) -> tuple[str, ...]:
    shown = [run for run in runs if run.evidence and run.lens in {MEL, HEL}]
    sources = [metrics.source_concentration.get(run.lens) for run in shown]
    driven = [lens for lens, made in made_by.items() if made == "evidence_driven"]
    rpl = next(run for run in runs if run.lens == RPL)
    gates = {
        "items": all(run.evidence and len(run.evidence.items) >= _MIN_ITEMS for run in shown),
        "sources": all(s is not None and s.effective_sources >= _MIN_SOURCES for s in sources),
        "quotes": all(run.evidence and run.evidence.trusted for run in shown),
        "stable": bool(rpl.aggregates.is_stable),
        "differences": metrics.reason is None,
        "placebo": MEL in driven or HEL in driven,
    }
    return tuple(name for name, passed in gates.items() if not passed)
