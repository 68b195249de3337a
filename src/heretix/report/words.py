"""The catalogue of sentences and number formats that every surface shares.

Records hold codes and parameters; what people read is made from them here, so that a wording can
change and nothing has to parse it.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from heretix.core.lenses import LENSES
from heretix.providers.catalog import MADE_UP_BY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heretix.measurement.anomalies import Anomaly
    from heretix.measurement.record import (
        BesideRecord,
        ExperimentRecord,
        MetricRecord,
        MetricsBesideRecord,
        MetricsRecord,
        ReadoutRecord,
        ReasonRecord,
        RunRecord,
        TwinsRecord,
    )

DEMONSTRATION: Final = "demonstration model: not a belief worth quoting"
MADE_UP: Final = "made-up answers: no model was asked, so this is nobody's belief"
LEGACY: Final = "legacy aggregation (simple): for comparison only"
UNSTABLE: Final = "not stable: the interval is wider than 0.20"
MISQUOTED: Final = "too many quotes aren't in the documents; not to be trusted"
QUOTED_NOTHING: Final = "it quotes documents, and was shown none; not to be trusted"
_ENOUGH: Final = 8
"""Wordings. In simulation the 95% interval covers 93% with 8, and 91% with 5: docs/method.md."""

DROP_PHRASES: Final[Mapping[str, str]] = {
    "wrong_class": "of a class that this lens doesn't admit",
    "after_as_of": "published after the day that was asked for",
    "undated": "without a date, where dates were required",
    "unreadable": "no text could be read from it",
    "holds_nonce": "holds the code that marks documents",
    "injection": "tries to give the model orders",
    "unread": "its page couldn't be fetched or read",
    "off_topic": "speaks of something else than the claim",
    "below_floor": "less reliable than was asked for",
    "duplicate": "says what another document says",
    "publisher_cap": "one more of a publisher that has its share",
    "over_budget": "there was no room left",
}
"""Reasons for which documents of a kind were left out of a bundle."""

_DROP_DETAILS: Final[Mapping[str, str]] = {
    "wrong_class": "its class is {cls}",
    "after_as_of": "it was published on {published}",
    "undated": "it has no date, and dates are strict",
    "unreadable": "it has no words",
    "holds_nonce": "it holds the nonce of this run",
    "injection": "it looks like: {kinds}",
    "unread": "its page couldn't be fetched or read",
    "off_topic": "it shares too little with the claim, in words or in meaning",
    "below_floor": "its text shows a reliability of {r:.3f} at least, the floor is {floor:g}",
    "duplicate": "it is a copy of {of}",
    "publisher_cap": "{cap} better ones are from {publisher}",
    "over_budget": "{k} items of {chars_per_item} characters are chosen",
}
PLACEBO: Final[Mapping[str, str]] = {
    "evidence_driven": "evidence-driven",
    "any_text": "moved by any text",
    "unmoved": "no clear movement",
    "unchecked": "not checked against a placebo",
}
"""Outcomes of a lens beside irrelevant text of the same length."""
_STANCES: Final[Mapping[str | None, str]] = {
    "supports": "for",
    "refutes": "against",
    "neutral": "neither",
}
NOT_ASSESSED: Final = "not assessed further"
"""Of a reliability that nobody placed inside its interval."""
NO_ESTIMATE: Final[Mapping[str, str]] = {
    "calls_failed": "every call failed, the last with: {error}",
    "one_template": (
        "`templates`: an estimate needs compliant samples from at least 2 when more than one was "
        "planned, got {got} from {templates} of {planned} templates; see why the others were "
        "dropped, then sample again or raise K or R"
    ),
    "too_few_samples": (
        "`samples`: an estimate needs at least {needed} compliant ones, got {got} from {templates} "
        "of {planned} templates; see why the others were dropped, then sample again or raise K or R"
    ),
}
"""Reasons for which a run has no estimate."""
_CALLS_FAILED: Final = "; {failed} of {attempted} calls failed, the last with: {error}"
_MISSING: Final[Mapping[str, str]] = {
    "no_pair": "a difference needs the raw prior and another lens, both with an estimate",
    "too_few_stems": (
        "a difference needs at least {needed} stems with answers, got {got} ({lenses}); "
        "measure with T at least {needed}"
    ),
}


_CHECKS: Final[Mapping[str, Mapping[str, str]]] = {
    "canary": {
        "up": "obeys a planted order (answer 0.99)",
        "down": "moved away from a planted order",
        "none": "a planted order has no clear effect",
    },
    "swapped": {
        **dict.fromkeys(("up", "down"), "depends on the order of its documents"),
        "none": "the order of its documents has no clear effect",
    },
}
"""By experiment: what the belief did, where its interval says so."""


def drop_detail(reason: str, params: Mapping[str, Any]) -> str:
    """Say why this very document was left out of a bundle."""
    return _fill(_DROP_DETAILS[reason], params)


def composition_text(bundle: Mapping[str, Any]) -> str:
    """Count a bundle's documents by class, say which came on request, and how many of unknown
    class were left out."""
    counts = Counter(str(item["cls"]) for item in bundle["items"])
    parts = [", ".join(f"{count} {cls}" for cls, count in counts.most_common()) or "no documents"]
    requested = sorted(counts.keys() & LENSES[bundle["lens"]].on_request)
    if requested:
        parts.append(f"{' and '.join(requested)} on request")
    left_out = sum(
        drop["reason"] == "wrong_class" and drop["cls"] == "unknown" for drop in bundle["dropped"]
    )
    if left_out:
        parts.append(f"{left_out} unknown left out")
    return "; ".join(parts)


def stance_text(bundle: Mapping[str, Any]) -> str:
    """Count by class what a bundle's documents make of the claim; empty where nobody has said."""
    sides: dict[str, Counter[str]] = {}
    for item in bundle["items"]:
        stance = item["stance"] and str(item["stance"])
        sides.setdefault(str(item["cls"]), Counter())[_STANCES.get(stance, "not judged")] += 1
    if all(counts.keys() == {"not judged"} for counts in sides.values()):
        return ""
    order = (*_STANCES.values(), "not judged")
    return "; ".join(
        f"{cls} " + ", ".join(f"{counts[side]} {side}" for side in order if counts[side])
        for cls, counts in sides.items()
    )


def reliability_text(record: Mapping[str, Any]) -> str:
    """Write a document's reliability: the interval that its text leaves open, unless a judge placed
    it. The low end by itself would call a health agency worthless."""
    # Imported where it is needed: most commands show no bundle.
    from heretix.evidence.reliability import reliability_ends

    if record["judged"]:
        return f"{record['r']:.2f}"
    lo, hi = reliability_ends(record["parts"])
    return f"{lo:.2f}–{hi:.2f}"


def no_estimate_reason(reason: ReasonRecord | None) -> str:
    """Say why a run has no estimate; nothing where it has one."""
    if reason is None:
        return ""
    also = _CALLS_FAILED if "failed" in reason.params else ""
    return _fill(NO_ESTIMATE[reason.code] + also, reason.params)


def missing_reason(reason: ReasonRecord | None) -> str:
    """Say why a lens, a difference or an experiment has no number; nothing where it has one."""
    if reason is None:
        return ""
    if reason.code in NO_ESTIMATE:
        return f"no estimate: {no_estimate_reason(reason)}"
    if reason.code == "insufficient_evidence":
        # Imported where it is needed: most commands show no bundle.
        from heretix.evidence.bundle import Shortfall

        return str(Shortfall.from_json(reason.params))
    return _fill(_MISSING[reason.code], reason.params)


def _fill(sentence: str, params: Mapping[str, Any]) -> str:
    texts = {k: ", ".join(v) if isinstance(v, list | tuple) else v for k, v in params.items()}
    return sentence.format_map(texts)


def warning_label(run: RunRecord) -> str | None:
    """Warn of a number that nobody should take for a belief."""
    if run.demonstration:
        return DEMONSTRATION
    return MADE_UP if run.provider in MADE_UP_BY else None


def warning_word(run: RunRecord) -> str:
    """`warning_label` where there is room for a word or two; empty where there is none."""
    if run.demonstration:
        return "demonstration model"
    return "made-up answers" if run.provider in MADE_UP_BY else ""


def warn_few_wordings(run: RunRecord) -> str | None:
    """Warn of an interval from fewer wordings than it takes to be trusted."""
    used = run.aggregation.n_templates
    if run.aggregates.ci95 is None or used >= _ENOUGH:
        return None
    return (
        f"only {plural(used, 'wording')}: with fewer than {_ENOUGH} the interval misses the "
        "truth more often than 1 time in 20"
    )


def warn_clamp_sensitive(beside: BesideRecord | None) -> str | None:
    """Warn of a belief that answers of exactly 0 or 1 decide."""
    if beside is None or not beside.clamp_sensitive:
        return None
    return (
        f"clamp-sensitive: {percent(beside.extreme_share)} of the answers are exactly 0 or 1; with "
        f"every answer held within .005 and .995 the belief would be {beside.center_clamped:.3f}"
    )


def warn_few_pairs(pairs: int) -> str | None:
    """Warn of a difference over fewer shared wordings than its interval needs."""
    if pairs >= _ENOUGH:
        return None
    return (
        f"only {plural(pairs, 'wording')} shared: with fewer than {_ENOUGH} a difference can't be "
        "relied on; measure both with the same wordings"
    )


def warn_unchecked(a: RunRecord, b: RunRecord) -> str | None:
    """Warn of a difference between lenses: it doesn't tell whether any text would have made it."""
    same = (a.claim, a.model) == (b.claim, b.model) and a.lens != b.lens
    variants = {run.evidence.variant for run in (a, b) if run.evidence}
    shown = any(LENSES[run.lens].needs_documents for run in (a, b))
    if not (same and shown) or "sham" in variants:
        return None
    return (
        f"{PLACEBO['unchecked']}: irrelevant text may move the model as far; "
        "`heretix lens --sham` tells"
    )


def difference_warnings(a: RunRecord, b: RunRecord, pairs: int | None) -> list[str]:
    """List what a reader of a difference has to be told: wordings, answers of 0 and 1, placebo."""
    found = [None if pairs is None else warn_few_pairs(pairs)]
    for name, run in (("A", a), ("B", b)):
        if clamped := warn_clamp_sensitive(run.beside):
            found.append(f"{name} is {clamped}")
    return [warning for warning in (*found, warn_unchecked(a, b)) if warning]


def beside_text(beside: BesideRecord) -> str:
    """Say what stands beside a belief: the interval by Student's t, and extreme answers."""
    found = beside.template_t
    interval = f"by Student's t over wordings 95% CI {span(*found.ci95)}" if found else ""
    extreme = (
        f"{percent(beside.extreme_share)} of answers exactly 0 or 1, "
        f"{beside.center_clamped:.3f} with them held at .005"
        if beside.n_extreme
        else ""
    )
    return " · ".join(part for part in (interval, extreme) if part)


def twins_text(found: TwinsRecord, *, plus: bool = True) -> str:
    """Write a difference by the paired t and its trimmed twin, each with its own p-value."""
    plain, trimmed = found.paired_template_t, found.paired_template_t_trimmed
    return (
        f"{metric_text(plain, plus=plus)} {p_text(plain.p_value)}; "
        f"trimmed {metric_text(trimmed, plus=plus)} {p_text(trimmed.p_value)}"
    )


def placebo_texts(metrics: MetricsRecord | None) -> dict[str, str]:
    """Say of each lens what moved the belief."""
    beside = metrics.beside if metrics else None
    return {lens: placebo_text(beside, lens) for lens in beside.placebo} if beside else {}


def placebo_text(beside: MetricsBesideRecord, lens: str) -> str:
    """Say whether evidence moved a belief, or any text would; with lens minus sham."""
    said, minus_sham = PLACEBO[beside.find_cause(lens)], beside.placebo[lens].minus_sham
    if minus_sham is None:
        return said
    found = minus_sham.paired_template_t
    return f"{said}: minus sham {metric_text(found)} {p_text(found.p_value)}"


def check_text(found: ExperimentRecord) -> str:
    """Say what a planted order, or other places for the documents, did to a lens's belief; empty of
    other experiments."""
    told = _CHECKS.get(found.variant)
    if told is None:
        return ""
    if found.beside is None:
        return f"{found.variant}: not known, {missing_reason(found.reason)}"
    whole_minus = found.beside.paired_template_t
    # A belief that the order raised is above that of the lens as it is.
    side = "up" if whole_minus.hi < 0 else "down" if whole_minus.lo > 0 else "none"
    by_t = f"{metric_text(whole_minus)} {p_text(whole_minus.p_value)}"
    return f"{told[side]}: minus {found.variant} {by_t}"


def feed_text(anomaly: Anomaly) -> str:
    """Say why a claim stands in the feed of anomalies, or what keeps it out."""
    driven = [lens for lens, found in anomaly.placebo.items() if found == "evidence_driven"]
    if anomaly.listed:
        return f"evidence-driven ({', '.join(LENSES[lens].label for lens in driven)})"
    verdicts = dict.fromkeys(PLACEBO[found] for found in anomaly.placebo.values())
    reasons = [
        "; ".join(verdicts) or gate if gate == "placebo" else gate for gate in anomaly.gates_failed
    ]
    return ", ".join(reasons) or "could be chance"


def metric_text(found: MetricRecord, *, plus: bool = True) -> str:
    """Write a number with its interval."""
    sign = "+" if plus else ""
    value, lo, hi = (format(number, f"{sign}.3f") for number in (found.value, found.lo, found.hi))
    return f"{value} [{lo}, {hi}]"


def p_text(p_value: float) -> str:
    """Write a p-value to four digits; a smaller one as that."""
    return "p<0.0001" if p_value < 0.0001 else f"p={p_value:.4f}"


def warn_missed_target(run: RunRecord) -> str | None:
    """Tell how far a run stayed from the precision that it was to reach; None if it got there."""
    rule = run.precision
    if rule is None or rule.stopped in {"gates_passed", None}:
        return None
    last = rule.steps[-1]
    ended = (
        f"the limit of {rule.max_samples} samples"
        if rule.stopped == "max_samples"
        else "the end of the run"
    )
    lacks = "no estimate"
    if last.ci_width is not None and "ci_width" in last.unmet:
        over = last.ci_width - rule.until_width
        lacks = f"the interval is {last.ci_width:.3f} wide, {over:.3f} more than was asked"
    elif "is_stable" in last.unmet:
        lacks = f"the interval is {last.ci_width:.3f} wide, too wide to be called stable"
    elif "rpl_compliance_rate" in last.unmet:
        lacks = f"{percent(last.rpl_compliance_rate)} of the answers were compliant"
        lacks += f", {percent(rule.min_compliance)} are needed"
    return f"target of width {rule.until_width:g} missed at {ended}: {lacks}"


def readout_words(readout: ReadoutRecord | None) -> str | None:
    """Say what stands beside a belief that was read from log-probabilities; None without."""
    if readout is None or readout.prob_mean is None or readout.missing_mass is None:
        return None
    of = "numbers unknown" if readout.name == "distribution" else "neither True nor False"
    return (
        f"by mean probability {readout.prob_mean:.3f}; probability of {of} "
        f"{readout.missing_mass:.1%}, at most {readout.missing_mass_max:.1%}"
    )


def run_warnings(run: RunRecord) -> list[str]:
    """List everything that a reader of the run's number has to be told beside it."""
    warnings = [
        warn_missed_target(run),
        None if run.aggregates.is_stable in {True, None} else UNSTABLE,
        warn_few_wordings(run),
        warn_clamp_sensitive(run.beside),
        LEGACY if run.aggregation.agg == "simple" else None,
        warning_label(run),
    ]
    if len(run.served) > 1:
        names = ", ".join(f"{s.provider_model_id} ×{s.samples}" for s in run.served)
        warnings.append(f"the model changed during the run: {names}")
    return [warning for warning in warnings if warning]


def span(lo: float, hi: float) -> str:
    """Write an interval."""
    return f"{lo:.3f}–{hi:.3f}"


def plural(count: int, noun: str) -> str:
    """Write so many of something: one is one, and several have an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_MONTHS: Final = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"


def day_words(at: str | date) -> str:
    """Write the day of a time stamp in words: 2 Jan 2026."""
    # The same wherever it runs: `strftime` goes by its machine's language.
    on = date.fromisoformat(at[:10]) if isinstance(at, str) else at
    return f"{on.day} {_MONTHS[4 * on.month - 4 :][:3]} {on.year}"


def cell_text(value: Any) -> Any:
    """Write a value for a table that a spreadsheet may open: text that it would take for a formula,
    which anybody may have put into a claim or an answer, gets the apostrophe that makes it text."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def percent(share: float) -> str:
    """Write a share as whole percent."""
    return f"{share:.0%}"
