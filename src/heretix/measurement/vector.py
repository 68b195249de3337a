"""The belief vector: the runs of one claim, what lies between them, and their artifact."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from heretix.belief import metrics
from heretix.belief.metrics import movement
from heretix.belief.vector import MIN_STEMS, BeliefVector, joint_bootstrap
from heretix.core.errors import NoEstimateError
from heretix.core.lenses import HEL, LENSES, MEL, NUL, RPL
from heretix.core.plugins import Plugin, Registry
from heretix.measurement.record import (
    SCHEMA,
    Artifact,
    ConcentrationRecord,
    ExperimentRecord,
    InformationRecord,
    LensRecord,
    MetricRecord,
    MetricsRecord,
    PluginMetricRecord,
    PluginRecord,
    ReasonRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.belief.metrics import Metric
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.record import RunRecord


_BELIEFS: Final = tuple(code for code, lens in LENSES.items() if not lens.hollow)
"""Lenses whose dispersion is reported; a control has no belief of its own."""


def logits_by_stem(run: RunRecord) -> dict[str, list[float]]:
    """Compliant log-odds by the index of their wording."""
    logits: dict[str, list[float]] = {}
    for sample in run.samples:
        if sample.compliant and sample.logit is not None:
            logits.setdefault(f"{sample.paraphrase_idx:03d}", []).append(sample.logit)
    return logits


def lens_record(run: RunRecord) -> LensRecord:
    """A run, in one line of the vector."""
    evidence = run.evidence
    return LensRecord(
        lens=run.lens,
        run_id=run.run_id,
        execution_id=run.execution_id,
        model=run.model,
        prob_true=run.aggregates.prob_true_rpl,
        ci95=run.aggregates.ci95,
        bundle_id=evidence.bundle_id if evidence else None,
        trusted=evidence.trusted if evidence else None,
        status=run.status,
        reason=None if run.status == "ok" else _no_estimate(run),
    )


VectorMetric = Callable[[BeliefVector], metrics.Metric | None]
"""A number with its interval, from the joint bootstrap; None where it doesn't apply."""


def _as_metric(found: Any) -> VectorMetric:
    if callable(found):
        return cast("VectorMetric", found)
    raise TypeError(f"a metric must be a function of a BeliefVector, got {found!r}")


METRICS: Final = Registry(
    "metrics",
    {
        "shock_index": "heretix.belief.metrics:shock_index",
        "amplification_gap": "heretix.belief.metrics:amplification_gap",
        "directed_gap": "heretix.belief.metrics:directed_gap",
    },
    _as_metric,
)
"""Metrics of a belief vector by name. Ours have fields of their own; plug-ins add to them."""


def metrics_record(
    runs: Sequence[RunRecord],
    publishers: Mapping[str, Mapping[str, int]],
    lacking: Mapping[str, ReasonRecord] | None = None,
    plugins: Sequence[Plugin] = (),
) -> MetricsRecord:
    """What lies between the lenses of one claim and model.

    `publishers` counts items per publisher, by lens; `lacking` says of lenses that had too little
    evidence why; `plugins` are the metrics to add. A lens without an estimate takes nothing from
    the others.
    """
    measured: dict[str, RunRecord] = {run.lens: run for run in runs if run.status == "ok"}
    missing = dict(lacking or {})
    missing |= {run.lens: _no_estimate(run) for run in runs if run.status != "ok"}
    concentration = {
        lens: ConcentrationRecord(
            herfindahl=found.herfindahl,
            effective_sources=found.effective_sources,
            publishers=found.publishers,
        )
        for lens, counts in sorted(publishers.items())
        if (found := metrics.source_concentration(counts)) is not None
    }
    if RPL not in measured or len(measured) < 2:
        return _nothing(ReasonRecord(code="no_pair"), missing, concentration)
    logits = {lens: logits_by_stem(run) for lens, run in measured.items()}
    together, apart = _paired(logits)
    missing |= apart
    if len(together) < 2:
        return _nothing(_too_few(len(logits[RPL]), [RPL]), missing, concentration)
    rpl = measured[RPL].aggregation
    vector = joint_bootstrap(
        {lens: logits[lens] for lens in together},
        seed=rpl.bootstrap_seed,
        B=rpl.B,
        center=rpl.center,
        trim=rpl.trim,
    )
    between = _between(vector, measured, missing, concentration)
    return between.model_copy(update={"plugins": _added(vector, plugins)})


def _added(vector: BeliefVector, plugins: Sequence[Plugin]) -> dict[str, PluginMetricRecord]:
    """Metrics of plug-ins. One that fails has no number, and takes none from the others."""
    found = {}
    for plugin in plugins:
        number, reason = None, None
        try:
            number = METRICS.load_plugin(plugin)(vector)
        except Exception as exc:  # noqa: BLE001 - foreign code may raise anything
            reason = getattr(exc, "reason", "") or f"{type(exc).__name__}: {exc}"
        found[plugin.name] = PluginMetricRecord(
            value=float(number.value) if number else None,
            lo=float(number.lo) if number else None,
            hi=float(number.hi) if number else None,
            reason=None if number else reason or "it doesn't apply to these lenses",
            package=plugin.package,
            version=plugin.version,
        )
    return found


def _paired(
    logits: Mapping[str, Mapping[str, Sequence[float]]],
) -> tuple[list[str], dict[str, ReasonRecord]]:
    """Lenses that share enough stems with the raw prior and each other; and why the others don't.

    The lens that shares most goes first, so that a broken one can't take the others with it.
    """
    shared = set(logits[RPL])
    others = [lens for lens in logits if lens != RPL]
    others.sort(key=lambda lens: (-len(shared & logits[lens].keys()), lens))
    together = [RPL]
    apart: dict[str, ReasonRecord] = {}
    for lens in others:
        common = shared & logits[lens].keys()
        if len(common) < MIN_STEMS:
            apart[lens] = _too_few(len(common), [*together, lens])
        else:
            together.append(lens)
            shared = common
    return together, apart


def _too_few(count: int, lenses: list[str]) -> ReasonRecord:
    params = {"needed": MIN_STEMS, "got": count, "lenses": lenses}
    return ReasonRecord(code="too_few_stems", params=params)


def _no_estimate(run: RunRecord) -> ReasonRecord:
    return ReasonRecord(code="no_estimate", params={"message": run.reason})


def _between(
    vector: BeliefVector,
    measured: Mapping[str, RunRecord],
    missing: dict[str, ReasonRecord],
    concentration: dict[str, ConcentrationRecord],
) -> MetricsRecord:
    others = [lens for lens in vector.centers if lens != RPL]
    shown = [lens for lens in others if lens != NUL]
    beliefs = [lens for lens in _BELIEFS if lens in vector.centers]
    prior = measured[RPL].aggregates.ci95
    directed = metrics.directed_gap(vector, prior) if MEL in others else None
    rpl = measured[RPL].aggregation
    return MetricsRecord(
        reason=None,
        missing=missing,
        stems=len(vector.stems),
        movement={lens: _plain(metrics.movement(vector, lens)) for lens in others},
        evidence_effect={
            lens: _plain(metrics.movement(vector, lens, NUL))
            for lens in (shown if NUL in others else ())
        },
        wrapper_effect=_plain(metrics.movement(vector, NUL)) if NUL in others else None,
        shock_index=_plain(metrics.shock_index(vector)) if HEL in others else None,
        amplification_gap=_plain(metrics.amplification_gap(vector)) if MEL in others else None,
        directed_gap=_plain(directed) if directed else None,
        information_gain={lens: _gain(vector, lens) for lens in others},
        dispersion_bits=_plain(metrics.dispersion(vector, beliefs)) if len(beliefs) > 1 else None,
        noise_floor=metrics.noise_floor(
            logits_by_stem(measured[RPL]),
            seed=rpl.bootstrap_seed,
            B=rpl.B,
            center=rpl.center,
            trim=rpl.trim,
        ),
        source_concentration=concentration,
    )


def _gain(vector: BeliefVector, lens: str) -> InformationRecord:
    found = metrics.information_gain(vector, lens)
    return InformationRecord(
        value=found.value,
        lo=found.lo,
        hi=found.hi,
        corrected=found.corrected,
        p_value=found.p_value,
    )


def _nothing(
    reason: ReasonRecord,
    missing: dict[str, ReasonRecord],
    concentration: dict[str, ConcentrationRecord],
) -> MetricsRecord:
    return MetricsRecord(
        reason=reason,
        missing=missing,
        stems=None,
        movement={},
        evidence_effect={},
        wrapper_effect=None,
        shock_index=None,
        amplification_gap=None,
        directed_gap=None,
        information_gain={},
        dispersion_bits=None,
        noise_floor=None,
        source_concentration=concentration,
    )


def _plain(metric: Metric) -> MetricRecord:
    return MetricRecord(value=metric.value, lo=metric.lo, hi=metric.hi)


def compared(runs: Sequence[RunRecord], claim: str) -> list[ExperimentRecord]:
    """Every variant against its lens as it is: the lens's belief minus the variant's.

    A run of another claim is that of its negation.
    """
    whole = {(run.model, run.lens): run for run in runs if run.claim == claim and not _variant(run)}
    found = []
    for run in runs:
        same = whole.get((run.model, run.lens))
        if same is None or same is run:
            continue
        if run.claim != claim:
            found.append(acquiescence(same, run))
        else:
            found.append(_record(_variant(run), same, run, logits_by_stem(run)))
    return found


def acquiescence(claim: RunRecord, negation: RunRecord) -> ExperimentRecord:
    """How far the beliefs in a claim and in its negation add up to more than 1.

    Above 0, the model tends to say yes to whatever it is asked.
    """
    flipped = {
        stem: [-value for value in logits] for stem, logits in logits_by_stem(negation).items()
    }
    return _record("negation", claim, negation, flipped)


def _variant(run: RunRecord) -> str:
    return (run.evidence.variant if run.evidence else None) or ""


def _record(
    name: str, whole: RunRecord, changed: RunRecord, other: dict[str, list[float]]
) -> ExperimentRecord:
    aggregation = whole.aggregation
    difference, reason = None, None
    try:
        vector = joint_bootstrap(
            {"whole": logits_by_stem(whole), "changed": other},
            seed=aggregation.bootstrap_seed,
            B=aggregation.B,
            center=aggregation.center,
            trim=aggregation.trim,
        )
        found = movement(vector, "whole", "changed")
        difference = MetricRecord(value=found.value, lo=found.lo, hi=found.hi)
    except NoEstimateError as exc:
        reason = ReasonRecord(code="no_estimate", params={"message": str(exc)})
    return ExperimentRecord(
        variant=name,
        model=whole.model,
        lens=whole.lens,
        execution_id=changed.execution_id,
        prob_whole=whole.aggregates.prob_true_rpl,
        prob_changed=changed.aggregates.prob_true_rpl,
        difference=difference,
        reason=reason,
    )


def assemble_vector(
    claim: str, runs: Sequence[RunRecord], bundles: Sequence[Bundle], search: Plugin | None
) -> Artifact:
    """Assemble the artifact of a claim measured under several lenses.

    `bundles` are what is shown, or is too little to be, lens by lens; then those of another policy.
    `search` is the plug-in that found documents. Metrics of all that are installed are added.
    """
    publishers = {bundle.bundle_id: bundle.publishers for bundle in bundles}
    lines = lens_records(runs, claim, bundles)
    added = list(METRICS.plugins().values())
    by_model = dict.fromkeys((run.model for run in runs), added)
    return Artifact(
        schema=SCHEMA,
        claim=claim,
        runs=list(runs),
        lenses=lines,
        bundles=[bundle.to_json() for bundle in bundles],
        metrics=metrics_by_model(runs, claim, publishers, lines, by_model),
        experiments=compared(runs, claim) or None,
        plugins=[PluginRecord.of(plugin) for plugin in (search, *added) if plugin] or None,
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
