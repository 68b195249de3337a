"""The belief vector: the runs of one claim, what lies between them, and their artifact."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from heretix.belief import metrics
from heretix.belief.metrics import MIN_STEMS, BeliefVector, joint_bootstrap
from heretix.belief.student import PairedT, paired_template_t, paired_template_t_trimmed
from heretix.core.errors import NoEstimateError
from heretix.core.lenses import HEL, LENSES, MEL, NUL, RPL, SHOWING
from heretix.core.plugins import Plugin, Registry
from heretix.measurement.record import (
    SCHEMA,
    Artifact,
    ConcentrationRecord,
    ExperimentRecord,
    InformationRecord,
    LensRecord,
    MetricRecord,
    MetricsBesideRecord,
    MetricsRecord,
    PlaceboRecord,
    PluginMetricRecord,
    PluginRecord,
    ReasonRecord,
    TRecord,
    TwinsRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.evidence.bundle import Bundle
    from heretix.measurement.record import Aggregation, RunRecord

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
    return LensRecord.fill(
        run,
        run.aggregates,
        run.evidence,
        prob_true=run.aggregates.prob_true_rpl,
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
    shams: Sequence[RunRecord] = (),
) -> MetricsRecord:
    """Metrics between the lenses of one claim and model.

    `publishers` counts items per publisher, by lens; `lacking` says of lenses that had too little
    evidence why; `plugins` are the metrics to add; `shams` showed irrelevant text instead. A lens
    without an estimate takes nothing from the others.
    """
    measured: dict[str, RunRecord] = {run.lens: run for run in runs if run.status == "ok"}
    missing = dict(lacking or {}) | {run.lens: run.reason for run in runs if run.reason}
    concentration = {
        lens: ConcentrationRecord.fill(found)
        for lens, counts in sorted(publishers.items())
        if (found := metrics.source_concentration(counts)) is not None
    }
    logits = {lens: logits_by_stem(run) for lens, run in measured.items()}
    together: list[str] = []
    reason: ReasonRecord | None = ReasonRecord(code="no_pair")
    if RPL in measured and len(measured) > 1:
        together, apart = _pair(logits)
        missing |= apart
        reason = _make_too_few_reason(len(logits[RPL]), [RPL]) if len(together) < 2 else None
    given: dict[str, Any] = {
        "reason": reason,
        "missing": missing,
        "movement": {},
        "evidence_effect": {},
        "information_gain": {},
        "source_concentration": concentration,
        "plugins": {},
    }
    if reason is None:
        vector = _resample(
            {lens: logits[lens] for lens in together}, rpl := measured[RPL].aggregation
        )
        floor = metrics.noise_floor(
            logits[RPL], seed=rpl.bootstrap_seed, B=rpl.B, center=rpl.center, trim=rpl.trim
        )
        prior = measured[RPL].aggregates.ci95
        given |= _compute_metrics(vector, prior)
        placebo = {
            lens: _check_placebo(vector, measured[lens], shams)
            for lens in SHOWING
            if lens in together
        }
        given["beside"] = _compute_t_metrics(vector, prior).model_copy(update={"placebo": placebo})
        given |= {"noise_floor": floor, "plugins": _add_plugins(vector, plugins)}
    return MetricsRecord.fill(**given)


def _resample(
    logits: Mapping[str, Mapping[str, Sequence[float]]], how: Aggregation
) -> BeliefVector:
    return joint_bootstrap(
        logits, seed=how.bootstrap_seed, B=how.B, center=how.center, trim=how.trim
    )


def _add_plugins(vector: BeliefVector, plugins: Sequence[Plugin]) -> dict[str, PluginMetricRecord]:
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


def _pair(
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
            apart[lens] = _make_too_few_reason(len(common), [*together, lens])
        else:
            together.append(lens)
            shared = common
    return together, apart


def _make_too_few_reason(count: int, lenses: list[str]) -> ReasonRecord:
    params = {"needed": MIN_STEMS, "got": count, "lenses": lenses}
    return ReasonRecord(code="too_few_stems", params=params)


def _compute_metrics(vector: BeliefVector, prior: tuple[float, float] | None) -> dict[str, Any]:
    """Metrics of a vector by name; those whose lenses it lacks are left out."""
    others = [lens for lens in vector.centers if lens != RPL]
    beliefs = [lens for lens in _BELIEFS if lens in vector.centers]
    found: dict[str, Any] = {
        "stems": len(vector.stems),
        "movement": {lens: _make_metric_record(metrics.movement(vector, lens)) for lens in others},
        "information_gain": {
            lens: InformationRecord.fill(metrics.information_gain(vector, lens)) for lens in others
        },
    }
    if NUL in others:
        found["wrapper_effect"] = _make_metric_record(metrics.movement(vector, NUL))
        shown = [lens for lens in others if lens != NUL]
        effects = {lens: _make_metric_record(metrics.movement(vector, lens, NUL)) for lens in shown}
        found["evidence_effect"] = effects
    if HEL in others:
        found["shock_index"] = _make_metric_record(metrics.shock_index(vector))
    if MEL in others:
        found["amplification_gap"] = _make_metric_record(metrics.amplification_gap(vector))
        directed = metrics.directed_gap(vector, prior)
        found["directed_gap"] = _make_metric_record(directed) if directed else None
    if len(beliefs) > 1:
        found["dispersion_bits"] = _make_metric_record(metrics.dispersion(vector, beliefs))
    return found


def _make_metric_record(metric: metrics.Metric) -> MetricRecord:
    return MetricRecord.fill(metric)


def _compute_t_metrics(
    vector: BeliefVector, prior: tuple[float, float] | None
) -> MetricsBesideRecord:
    """The metrics by Student's t; `prior` is the interval published with the raw prior."""
    others = [lens for lens in vector.centers if lens != RPL]
    shown = [lens for lens in others if lens != NUL] if NUL in others else []
    lo, hi = prior or (0.0, 1.0)
    leans = MEL in others and not lo <= 0.5 <= hi
    return MetricsBesideRecord(
        movement={lens: compute_twins(vector, lens) for lens in others},
        evidence_effect={lens: compute_twins(vector, lens, NUL) for lens in shown},
        wrapper_effect=compute_twins(vector, NUL) if NUL in others else None,
        shock_index=compute_twins(vector, HEL, show=_fold) if HEL in others else None,
        amplification_gap=compute_twins(vector, MEL) if MEL in others else None,
        directed_gap=compute_twins(vector, MEL, show=_keep_sign if lo > 0.5 else _reverse_sign)
        if leans
        else None,
        information_gain={
            lens: compute_twins(vector, lens, show=_convert_to_bits) for lens in others
        },
    )


def _keep_sign(found: PairedT) -> metrics.Metric:
    of = found.diff_prob
    return metrics.Metric(value=of.value, lo=of.lo, hi=of.hi)


def _reverse_sign(found: PairedT) -> metrics.Metric:
    of = found.diff_prob
    return metrics.Metric(value=-of.value, lo=-of.hi, hi=-of.lo)


def _fold(found: PairedT) -> metrics.Metric:
    return metrics.fold_metric(_keep_sign(found))


def _convert_to_bits(found: PairedT) -> metrics.Metric:
    """The move and the ends of its interval, told in bits from where it began."""
    of, pre = found.diff_prob, found.prob_a
    value, lo, hi = (metrics.signed_bits(pre + move, pre) for move in (of.value, of.lo, of.hi))
    return metrics.Metric(value=value, lo=lo, hi=hi)


def compute_twins(
    vector: BeliefVector,
    lens: str,
    base: str = RPL,
    *,
    show: Callable[[PairedT], metrics.Metric] = _keep_sign,
) -> TwinsRecord:
    """`lens` minus `base` by the paired t and its trimmed twin, over the stems of the vector."""
    a, b = (
        {stem: [mean] for stem, mean in zip(vector.stems, vector.means[side].tolist(), strict=True)}
        for side in (base, lens)
    )
    return _compute_twins(a, b, vector.centers[base], show)


def _compute_twins(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    center_logit: float | None = None,
    show: Callable[[PairedT], metrics.Metric] = _keep_sign,
) -> TwinsRecord:
    plain, trimmed = (
        TRecord.fill(show(found), p_value=found.diff_prob.p_value)
        for found in (
            paired_template_t(a, b),
            paired_template_t_trimmed(a, b, center_logit=center_logit),
        )
    )
    return TwinsRecord(paired_template_t=plain, paired_template_t_trimmed=trimmed)


def _check_placebo(
    vector: BeliefVector, run: RunRecord, shams: Sequence[RunRecord]
) -> PlaceboRecord:
    """Hold a lens against the sham of its own bundle, over the wordings that both answered."""
    for sham in shams:
        shown, whole = sham.evidence, run.evidence
        if sham.lens != run.lens or not (shown and whole and shown.bundle_id == whole.bundle_id):
            continue
        placebo, lens = logits_by_stem(sham), logits_by_stem(run)
        shared = placebo.keys() & lens.keys()
        if len(shared) < MIN_STEMS:
            continue
        found = _compute_twins({stem: placebo[stem] for stem in shared}, lens)
        moved = compute_twins(vector, run.lens)
        verdict = "unmoved" if _holds_zero(moved) else "any_text"
        return PlaceboRecord.model_validate(
            {
                "verdict": verdict if _holds_zero(found) else "evidence_driven",
                "minus_sham": found,
            }
        )
    return PlaceboRecord(verdict="unchecked", minus_sham=None)


def _holds_zero(found: TwinsRecord) -> bool:
    return found.paired_template_t.lo <= 0 <= found.paired_template_t.hi


def compare_variants(runs: Sequence[RunRecord], claim: str) -> list[ExperimentRecord]:
    """Every variant against its lens as it is: the lens's belief minus the variant's.

    A run of another claim is that of its negation, and counts as its complement: what is left is
    how far the beliefs in a claim and in its negation add up to more than 1. Above 0, the model
    tends to say yes to whatever it is asked.
    """
    whole = {(run.model, run.lens): run for run in select_unchanged_runs(runs, claim)}
    found = []
    for run in runs:
        same = whole.get((run.model, run.lens))
        if same is None or same is run:
            continue
        variant, logits = run.evidence.variant if run.evidence else None, logits_by_stem(run)
        if run.claim != claim:
            variant = "negation"
            logits = {stem: [-value for value in values] for stem, values in logits.items()}
        difference, beside, reason = None, None, None
        try:
            vector = _resample({"whole": logits_by_stem(same), "changed": logits}, same.aggregation)
            difference = _make_metric_record(metrics.movement(vector, "whole", "changed"))
            beside = compute_twins(vector, "whole", "changed")
        except NoEstimateError as exc:
            reason = _make_too_few_reason(exc.params["got"], [run.lens, variant or ""])
        found.append(
            ExperimentRecord(
                variant=variant or "",
                model=same.model,
                lens=same.lens,
                execution_id=run.execution_id,
                prob_whole=same.aggregates.prob_true_rpl,
                prob_changed=run.aggregates.prob_true_rpl,
                difference=difference,
                beside=beside,
                reason=reason,
            )
        )
    return found


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
        experiments=compare_variants(runs, claim) or None,
        plugins=[PluginRecord.fill(plugin) for plugin in (search, *added) if plugin] or None,
    )


def select_unchanged_runs(runs: Sequence[RunRecord], claim: str) -> list[RunRecord]:
    """The runs of the claim that show bundles as they are: no experiments, no negation."""
    return [
        run for run in runs if run.claim == claim and not (run.evidence and run.evidence.variant)
    ]


def is_sham(run: RunRecord, claim: str) -> bool:
    """Tell a usable run of the claim that showed irrelevant text of the same length."""
    variant = run.evidence.variant if run.evidence else None
    return run.claim == claim and variant == "sham" and run.status == "ok"


def lens_records(
    runs: Sequence[RunRecord], claim: str, bundles: Sequence[Bundle]
) -> list[LensRecord]:
    """The lines of the vector, model by model: what was measured, and what couldn't be."""
    models = list(dict.fromkeys(run.model for run in runs))
    lines = [lens_record(run) for run in select_unchanged_runs(runs, claim)]
    for bundle in bundles:
        if not bundle.sufficient:
            params = bundle.shortfall.to_json()
            reason = ReasonRecord(code="insufficient_evidence", params=params)
            given = {"status": reason.code, "reason": reason}
            lines += [LensRecord.fill(bundle, model=model, **given) for model in models]
    return sorted(lines, key=lambda line: (models.index(line.model), list(LENSES).index(line.lens)))


def metrics_by_model(
    runs: Sequence[RunRecord],
    claim: str,
    publishers: Mapping[str, Mapping[str, int]],
    lines: Sequence[LensRecord] = (),
    plugins: Mapping[str, Sequence[Plugin]] | None = None,
) -> dict[str, MetricsRecord]:
    """Metrics between the lenses, for each model.

    `publishers` counts items by bundle id; `lines` say which lenses had too little evidence;
    `plugins` are the metrics to add, by model.
    """
    found = {}
    for model in dict.fromkeys(run.model for run in runs):
        own = [run for run in select_unchanged_runs(runs, claim) if run.model == model]
        shown = {run.lens: run.evidence.bundle_id for run in own if run.evidence}
        counts: dict[str, Mapping[str, int]] = {
            lens: publishers[name] for lens, name in shown.items() if name and name in publishers
        }
        lacking: dict[str, ReasonRecord] = {
            line.lens: line.reason
            for line in lines
            if line.model == model and line.reason and line.status == "insufficient_evidence"
        }
        shams = [run for run in runs if run.model == model and is_sham(run, claim)]
        found[model] = metrics_record(own, counts, lacking, (plugins or {}).get(model, ()), shams)
    return found
