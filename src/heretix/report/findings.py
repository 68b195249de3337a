"""Findings: what records say, as one plain sentence with its uncertainty.

A sentence is never stronger than the intervals allow: a belief leans to a side, and a movement has
a direction, only where the published interval and the one by Student's t both say so; to believe a
claim, rather than lean towards it, takes both to lie beyond three quarters, and so the belief with
extreme answers held back. What a reader must know to quote it is part of the sentence: made-up
answers, a demonstration model, documents that were misquoted, answers of exactly 0 or 1 that decide
the number.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from heretix.core.lenses import LENSES, RPL, SHOWING
from heretix.providers.catalog import DEMONSTRATION_MODELS, MADE_UP_BY, PROVIDERS
from heretix.report.words import day_words, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heretix.measurement.anomalies import Anomaly, Shift
    from heretix.measurement.record import (
        Artifact,
        BesideRecord,
        LensRecord,
        MetricRecord,
        MetricsRecord,
        RunRecord,
        TRecord,
    )
    from heretix.measurement.verify import Comparison
    from heretix.studies.panel import ModelMovement, Movement, PanelReport, Series

Code = Literal[
    "true",
    "false",
    "neither",
    "no_estimate",
    "evidence_moved",
    "any_text_moved",
    "moved_unchecked",
    "not_moved",
    "not_comparable",
    "insufficient_evidence",
    "shifted",
]

_ENOUGH: Final = 8
"""Wordings, below which an interval misses the truth too often: docs/method.md."""
_STABLE_WIDTH: Final = 0.20
_FIRM: Final = 0.25
"""Least distance of both intervals from 1/2, from which a model is said to believe a claim."""
_CAVEATS: Final = (
    "Made-up answers, nobody's belief",
    "A demonstration, not a belief worth quoting",
    "Made-up answers and play money",
)
"""The warning before a sentence that nobody may quote as a belief."""
_BY_RANK: Final[tuple[Code, ...]] = (
    "evidence_moved",
    "any_text_moved",
    "moved_unchecked",
    "not_moved",
    "not_comparable",
    "no_estimate",
    "insufficient_evidence",
)
"""Kinds that make the headline of a belief vector: the first of these that there is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding, in a sentence."""

    code: Code
    sentence: str
    direction: int = 0
    """+1 where the sentence says up or true, -1 for down or false, 0 where it takes no side."""
    weight: float = 0.0
    """Least size of what it claims, by its intervals: ranks findings of one kind."""

    def __str__(self) -> str:
        return self.sentence


def short_model(identity: str) -> str:
    """Name a model without its provider and parameters."""
    name = identity.partition("?")[0]
    provider, colon, rest = name.partition(":")
    while colon and rest and PROVIDERS.offers(provider):
        name = rest
        provider, colon, rest = name.partition(":")
    return name


def tell_apart(identities: Iterable[str]) -> dict[str, str]:
    """Name models shortly, with their parameters where the short names would be one."""
    shorts = {identity: short_model(identity) for identity in dict.fromkeys(identities)}
    often = Counter(shorts.values())
    return {
        identity: f"{short} ({identity.partition('?')[2] or identity})"
        if often[short] > 1
        else short
        for identity, short in shorts.items()
    }


def chance(prob: float, digits: int = 0) -> str:
    """Write a probability in percent; never as 0% or 100%, which nobody measured."""
    least = 10.0 ** -(digits + 2)
    if prob < least / 2:
        return f"under {least:.{digits}%}"
    if prob >= 1 - least / 2:
        return f"over {1 - least:.{digits}%}"
    return f"{prob:.{digits}%}" if digits else percent(prob)


def _write_change(before: float, after: float) -> tuple[str, str]:
    """Write two probabilities with as many digits as tell them apart, two at most."""
    pairs = [(chance(before, digits), chance(after, digits)) for digits in (0, 1, 2)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def belief_finding(run: RunRecord) -> Finding:
    """Say what a run found about its claim."""
    model = short_model(run.model)
    found = run.aggregates
    if found.prob_true_rpl is None or found.ci95 is None:
        failed = run.reason is not None and run.reason.code == "calls_failed"
        why = "every call failed" if failed else "too few answers could be used"
        sentence = f"no belief of {model} could be measured: {why}"
        return Finding("no_estimate", _make_quotable(run, sentence, []))
    center = (found.prob_true_rpl, found.prob_true_rpl)
    weight, side = _find_side([center, found.ci95, *_list_t_intervals(run.beside)], 0.5)
    if percent(0.5 + weight) == percent(0.5):  # As it is written, the interval holds 1/2.
        weight, side = 0.0, 0
    leans = {1: "leans towards believing", -1: "leans towards disbelieving", 0: "takes no side on"}
    least = weight
    if side and run.beside and run.beside.clamp_sensitive:
        least = min(least, side * (run.beside.center_clamped - 0.5))
    firmly = {1: "believes", -1: "disbelieves"} if least >= _FIRM else {}
    said = f"{_tell_shown(run)}{model} {(leans | firmly)[side]} the claim"
    interval = write_interval(*found.ci95)
    open_by_t = _find_other_side(run, side)
    if found.is_stable and (wider := leading_interval(run)):
        sentence = (
            f"anywhere from {write_interval(*wider)} likely to be true (95% interval by Student's "
            f"t): {said}, and its answers depend on the wording"
        )
    elif found.is_stable:
        by_t = f", by Student's t {write_interval(*open_by_t)}" if open_by_t else ""
        sentence = (
            f"{said}: {chance(found.prob_true_rpl)} likely to be true "
            f"(95% interval {interval}{by_t})"
        )
    else:
        sentence = (
            f"anywhere from {interval} likely to be true (95% interval): {said}, "
            f"{'but' if side else 'and'} its answers depend on the wording"
        )
    notes = [
        _note_few_wordings(run),
        _note_clamped(run.beside, found.prob_true_rpl),
        _note_legacy(run),
        _note_misquoted(run.evidence.trusted if run.evidence else None),
    ]
    code: Code = "neither" if side == 0 else "true" if side > 0 else "false"
    return Finding(code, _make_quotable(run, sentence, notes), side, weight)


def leading_interval(run: RunRecord) -> tuple[float, float] | None:
    """Find the interval that stands in place of the number, where that depends on the wording: by
    the published interval, or because the one by Student's t is why no side is taken."""
    ends = run.aggregates.ci95
    if ends is None or not run.aggregates.is_stable:
        return ends
    _, side = _find_side([ends, *_list_t_intervals(run.beside)], 0.5)
    by_t = _find_other_side(run, side)
    return by_t if by_t and is_wide(*by_t) else None


def emphasis(sentence: str) -> list[tuple[str, bool]]:
    """Part a sentence for the eye: what was found, and what qualifies it (False), which is set more
    lightly. Joined, the parts are the sentence."""
    begin = sentence.find(": ") + 2 if sentence.startswith(_CAVEATS) else 0
    rest = re.split(r"(\([^()]*\)(?:\.$)?)", sentence[begin:])
    parts = [(sentence[:begin], False), *((part, not part.startswith("(")) for part in rest)]
    return [(part, strong) for part, strong in parts if part]


def movement_findings(artifact: Artifact, model: str) -> list[Finding]:
    """Say what each kind of documents did to a model's belief, what counts most first."""
    metrics = (artifact.metrics or {}).get(model)
    lines = [line for line in artifact.lenses or [] if line.model == model]
    prior = next((line for line in lines if line.lens == RPL), None)
    runs = [run for run in artifact.runs if run.model == model]
    if metrics is None or prior is None or not runs:
        return []
    found = [_tell_movement(metrics, prior, line, runs) for line in lines if line.lens in SHOWING]
    return sorted(found, key=lambda one: (_BY_RANK.index(one.code), -one.weight))


def headline(artifact: Artifact, model: str) -> Finding | None:
    """Choose the finding that stands first for a model: a movement, or else its belief."""
    if moved := movement_findings(artifact, model):
        return moved[0]
    run = next((run for run in artifact.runs if run.model == model), None)
    return None if run is None else belief_finding(run)


def shift_finding(shift: Shift) -> Finding:
    """Say how the belief of a recipe moved from one execution to the next."""
    run, ago = shift.after, day_words(shift.before.finished_at)
    belief = f"{_tell_shown(run)}{short_model(run.model)}'s belief"
    before, after = (one.aggregates.prob_true_rpl for one in (shift.before, shift.after))
    weight, side = 0.0, 0
    if before is not None and after is not None:
        weight, side = _find_side([(after - before,) * 2, (shift.moved.lo, shift.moved.hi)], 0.0)
    if before is None or after is None or not side:
        sentence = f"no change in {belief} since {ago} can be shown ({_points(shift.moved)})"
        return Finding("not_moved", _make_quotable(run, sentence, []))
    first, last = _write_change(before, after)
    verb = "rose" if side > 0 else "fell"
    sentence = f"{belief} {verb} from {first} to {last} since {ago} ({_points(shift.moved)})"
    return Finding(
        "shifted",
        _make_quotable(run, sentence, _list_reservations(shift.before, run)),
        side,
        weight,
    )


def difference_finding(a: RunRecord, b: RunRecord, found: Comparison) -> Finding:
    """Say which of two runs' beliefs lies higher, where every interval beside it leaves 0 out."""
    difference, paired = found.difference, found.paired_template_t
    lo, hi = difference.diff_prob_lo, difference.diff_prob_hi
    intervals = [(difference.diff_prob,) * 2, (lo, hi)]
    if paired is not None:
        intervals.append((paired.diff_prob.lo, paired.diff_prob.hi))
    weight, side = _find_side(intervals, 0.0)
    one, other = _name_difference(a, b)
    span = f"95% interval {_span(lo, hi)} percentage points"
    if paired is not None and not side and (lo > 0 or hi < 0):
        span += f", by Student's t {_span(paired.diff_prob.lo, paired.diff_prob.hi)}"
    points = f"{100 * abs(difference.diff_prob):.{_choose_digits(lo, hi)}f} percentage points"
    if side:
        where = "above" if side > 0 else "below"
        sentence = f"{other} lies {points} {where} {one} ({span})"
    else:
        sentence = f"no difference can be shown between {one} and {other} ({span})"
    unpaired = "" if found.paired else "too few wordings are shared for pairs"
    worse = next((run for run in (a, b) if run.provider in MADE_UP_BY or run.demonstration), b)
    code: Code = "shifted" if side else "not_moved"
    notes = [unpaired, *_list_reservations(a, b)]
    return Finding(code, _make_quotable(worse, sentence, notes), side, weight)


def comparison_finding(
    runs: Sequence[RunRecord], lines: Sequence[tuple[RunRecord, Comparison | str]]
) -> Finding | None:
    """Say of runs held against the first which can be told from it; None where none can be held."""
    told = [
        ("BCDEFGHIJKL"[number], difference_finding(runs[0], run, found))
        for number, (run, found) in enumerate(lines)
        if not isinstance(found, str)
    ]
    if len(told) < 2:
        return told[0][1] if told else None
    apart = [letter for letter, found in told if found.direction]
    which = "none" if not apart else f"{len(apart)} ({', '.join(apart)})"
    sentence = f"of {len(told)} beliefs {which} can be told apart from A's by the 95% intervals"
    invented = any(run.provider in MADE_UP_BY for run in runs)
    tiny = any(run.demonstration for run in runs)
    code: Code = "shifted" if apart else "not_moved"
    return Finding(code, _quote("", sentence, [], invented=invented, tiny=tiny))


def feed_finding(found: Sequence[Anomaly]) -> Finding | None:
    """Say on how many claims evidence moved a model; None where none was shown any."""
    if not found:
        return None
    listed = [one for one in found if one.listed]
    claims, moved = ({one.claim for one in several} for several in (found, listed))
    many = f"{len(claims)} claim{'' if len(claims) == 1 else 's'}"
    models = [one.model for one in listed or found]
    if not listed:
        where = (
            f"on none of {many} did evidence move a model"
            if len(claims) > 1
            else "on the one claim with evidence no model moved"
        )
        sentence = f"{where} further than chance, irrelevant text or poor evidence explain"
        return Finding("not_moved", quote_models(models, sentence, []))
    named = " and ".join(list(tell_apart(models).values())[:3])
    sentence = (
        f"on {len(moved)} of {many} documents moved {named}'s belief further than irrelevant text "
        "and chance do"
    )
    return Finding("evidence_moved", quote_models(models, sentence, []))


def panel_finding(report: PanelReport) -> Finding:
    """Say what a panel found: the model or else the claim that moved furthest, or that none did."""
    moved: list[tuple[Movement, ModelMovement | Series]] = [
        (movement, one) for one in report.moved_models if (movement := one.movement)
    ]
    models = list(moved)
    moved += [(movement, one) for one in report.moved if (movement := one.movement)]
    if moved:
        # Models first: what moves one as a whole moves its claims, too.
        movement, first = max(models or moved, key=lambda pair: _find_least_shift(pair[0])[0])
        more = f"; {len(moved) - 1} more moved" if len(moved) > 1 else ""
        return moved_finding(movement, first, more)
    waves, asked = len(report.waves), len({s.claim for s in report.series if s.truth is None})
    named = list(dict.fromkeys(s.model for s in report.series))
    names = " and ".join(tell_apart(named).values())
    if report.unreadable:
        sentence = f"{short_model(report.unreadable[0][0])} couldn't be read in the last wave"
        notes = ["it gave no answer between 0 and 1"]
    elif report.served:
        change = report.served[-1]
        sentence = f"another model answers as {short_model(change.model)} since wave {change.wave}"
        notes = [f"{', '.join(change.after)}, before {', '.join(change.before)}"]
    elif waves > 1:
        told = f"{asked} claim{'' if asked == 1 else 's'} asked of {names} in {waves} waves"
        sentence, notes = f"no movement can be shown: {told}", []
    else:
        sentence, notes = f"one wave of {names} so far: what moves is told from the second on", []
    return Finding("not_moved", quote_models(named, sentence, notes))


def moved_finding(movement: Movement, first: ModelMovement | Series, more: str = "") -> Finding:
    """Say how the belief of a panel's model, or in one claim, moved over the waves."""
    weight, side = _find_least_shift(movement)
    verb = {1: "rose", -1: "fell", 0: "moved"}[side]
    claim, points = getattr(first, "claim", None), getattr(first, "points", ())
    model = short_model(first.model)
    shown = "" if first.lens == RPL else f"shown {name_documents(first.lens)}, "
    what = f"belief in “{claim}”" if claim else "belief in all claims together"
    ends = [(p.prob_true, p.beside) for p in points if p.prob_true is not None]
    spread, clamped = "", ""
    if len(ends) > 1 and side and (ends[-1][0] - ends[0][0]) * side > 0:
        (before, beside_first), (after, beside_last) = ends[0], ends[-1]
        first_told, last_told = _write_change(before, after)
        spread = f" from {first_told} to {last_told}"
        clamped = _note_clamped(beside_first, before) or _note_clamped(beside_last, after)
    since = f" since wave {movement.since_wave}" if movement.since_wave is not None else ""
    dated = f" ({day_words(movement.since_at)})" if since and movement.since_at else ""
    size = movement.size
    odds = ""
    if size is not None:
        value, lo, hi = (f"{math.exp(x):.2g}" for x in (size.value, size.lo, size.hi))
        odds = f", its odds ×\u00a0{value} (95% interval {lo} to {hi})"
    sentence = f"{shown}{model}'s {what} {verb}{spread}{since}{dated}{odds}{more}"
    near = "overstated, most likely: it is near the noise" if movement.overstated else ""
    notes = [clamped, near]
    return Finding("shifted", quote_models([first.model], sentence, notes), side, weight)


def _find_least_shift(movement: Movement) -> tuple[float, int]:
    """Tell the least size of a shift in log-odds, and its direction where the interval has one."""
    return _find_side([(movement.size.lo, movement.size.hi)], 0.0) if movement.size else (0.0, 0)


def _name_difference(a: RunRecord, b: RunRecord) -> tuple[str, str]:
    """Name two beliefs by what differs between them: the model, the lens, or else the claim."""
    if a.model != b.model:
        names = tell_apart([a.model, b.model])
        return f"{names[a.model]}'s belief", f"{names[b.model]}'s belief"
    if a.lens != b.lens:
        return f"the belief under {a.lens}", f"that under {b.lens}"
    if a.claim != b.claim:
        return f"the belief in “{a.claim}”", f"that in “{b.claim}”"
    return "the first belief", "the second"


def _tell_movement(
    metrics: MetricsRecord, prior: LensRecord, line: LensRecord, runs: Sequence[RunRecord]
) -> Finding:
    model, documents = short_model(line.model), name_documents(line.lens)
    run = next(run for run in runs if run.lens in {line.lens, RPL})
    if line.status == "insufficient_evidence":
        params = line.reason.params if line.reason else {}
        got, needed = params.get("got", 0), params.get("needed", 3)
        sentence = (
            f"too few {documents} were found to say what they do to {model}'s belief "
            f"({got} of the {needed} that it takes)"
        )
        return Finding("insufficient_evidence", _make_quotable(run, sentence, []))
    before, after, moved = prior.prob_true, line.prob_true, metrics.movement.get(line.lens)
    if before is None or after is None:
        sentence = f"no belief of {model} could be measured with {documents}, or without"
        return Finding("no_estimate", _make_quotable(run, sentence, []))
    if moved is None:
        sentence = (
            f"whether {documents} moved {model}'s belief can't be told from so few shared wordings "
            f"({chance(before)} without, {chance(after)} with them)"
        )
        return Finding("not_comparable", _make_quotable(run, sentence, []))
    beside = metrics.beside.movement.get(line.lens) if metrics.beside else None
    told: list[MetricRecord | TRecord] = [moved]
    told += [beside.paired_template_t] if beside else []
    weight, side = _find_side([(after - before,) * 2, *((one.lo, one.hi) for one in told)], 0.0)
    notes = [
        _note_clamped(prior.beside, before) or _note_clamped(line.beside, after),
        *_list_weaknesses(
            [run for run in runs if run.execution_id in _name_executions(prior, line)]
        ),
        _note_misquoted(line.trusted),
    ]
    if side == 0:
        sentence = (
            f"no effect of {documents} on {model}'s belief can be shown: {chance(before)} without, "
            f"{chance(after)} with them ({_points(moved)}{_note_t_interval(told)})"
        )
        return Finding("not_moved", _make_quotable(run, sentence, notes))
    code, placebo = _tell_placebo(metrics, line.lens, side)
    verb = "raised" if side > 0 else "cut"
    first, last = _write_change(before, after)
    if _is_stable(prior) and _is_stable(line):
        sentence = (
            f"{documents} {verb} {model}'s belief from {first} to {last} "
            f"({_points(moved)}){placebo}"
        )
    else:
        sentence = (
            f"{documents} {verb} {model}'s belief by {_distance(moved)} points (95% interval), and "
            f"its level depends on the wording (about {first} without, {last} with them){placebo}"
        )
    return Finding(code, _make_quotable(run, sentence, notes), side, weight)


def _find_other_side(run: RunRecord, side: int) -> tuple[float, float] | None:
    """Find the interval by Student's t, where it is why no side is taken."""
    ends = run.aggregates.ci95
    if side or ends is None or ends[0] <= 0.5 <= ends[1]:
        return None
    return next((one for one in _list_t_intervals(run.beside) if one[0] <= 0.5 <= one[1]), None)


def _note_t_interval(told: Sequence[MetricRecord | TRecord]) -> str:
    """Name the interval by Student's t, where it alone holds 0."""
    if len(told) == 1 or told[0].lo <= 0 <= told[0].hi:
        return ""
    return f", by Student's t {_span(told[1].lo, told[1].hi)}"


def _tell_placebo(metrics: MetricsRecord, lens: str, side: int) -> tuple[Code, str]:
    """Say what irrelevant text of the same length did, and so what the documents themselves did."""
    placebo = metrics.beside.placebo.get(lens) if metrics.beside else None
    if placebo is None or placebo.minus_sham is None:
        return "moved_unchecked", "; whether irrelevant text would do the same wasn't checked"
    if placebo.verdict != "evidence_driven":
        nothing = "so the documents themselves did nothing that can be shown"
        return "any_text_moved", f"; irrelevant text did the same, {nothing}"
    if placebo.minus_sham.paired_template_t.value * side > 0:
        return "evidence_moved", ", further than irrelevant text did"
    more, other = ("raised", "lowered") if side > 0 else ("cut", "raised")
    return (
        "any_text_moved",
        f"; irrelevant text {more} it further, so what the documents say {other} it",
    )


def _find_side(intervals: Sequence[tuple[float, float]], middle: float) -> tuple[float, int]:
    """Tell the side of `middle` that all intervals lie on, and how far from it they begin."""
    lo = min(one[0] for one in intervals) - middle
    hi = max(one[1] for one in intervals) - middle
    if lo > 0 or hi < 0:
        return (lo, 1) if lo > 0 else (-hi, -1)
    return 0.0, 0


def _list_t_intervals(beside: BesideRecord | None) -> list[tuple[float, float]]:
    return [beside.template_t.ci95] if beside and beside.template_t else []


def _is_stable(line: LensRecord) -> bool:
    return line.ci95 is not None and not is_wide(*line.ci95)


def is_wide(lo: float, hi: float) -> bool:
    """Tell whether an interval is so wide that it stands in place of its number."""
    return hi - lo > _STABLE_WIDTH


def write_interval(lo: float, hi: float) -> str:
    """Write an interval of probabilities in whole percent."""
    return chance(lo) if chance(lo) == chance(hi) else f"{chance(lo)} to {chance(hi)}"


def _points(moved: MetricRecord) -> str:
    value = _write_signed(moved.value, _choose_digits(moved.lo, moved.hi))
    return f"{value} points, 95% interval {_span(moved.lo, moved.hi)}"


def _distance(moved: MetricRecord) -> str:
    digits = _choose_digits(moved.lo, moved.hi)
    near, far = sorted((abs(moved.lo), abs(moved.hi)))
    return f"{100 * near:.{digits}f} to {100 * far:.{digits}f}"


def _span(lo: float, hi: float) -> str:
    """Write an interval of differences in points."""
    digits = _choose_digits(lo, hi)
    return f"{_write_signed(lo, digits)} to {_write_signed(hi, digits)}"


def _choose_digits(lo: float, hi: float) -> int:
    """Choose digits for points: an interval that leaves 0 out doesn't begin with 0 when written."""
    near = min(abs(lo), abs(hi))
    if lo <= 0 <= hi or 100 * near >= 0.5:
        return 0
    return 1 if 100 * near >= 0.05 else 2


def _write_signed(difference: float, digits: int) -> str:
    said = f"{100 * difference:+.{digits}f}".replace("-", "−")
    return said if said.strip("+−0.") else "0"


def name_documents(lens: str) -> str:
    """Name the documents that a lens shows."""
    label = LENSES[lens].label
    return label if "documents" in label else f"{label} documents"


def _tell_shown(run: RunRecord) -> str:
    lens = LENSES[run.lens]
    if run.lens == RPL:
        return ""
    if run.evidence and run.evidence.variant == "sham":
        return "shown irrelevant text, "
    return (
        f"shown {name_documents(lens.code)}, " if lens.needs_documents else "shown an empty frame, "
    )


def _list_reservations(*runs: RunRecord) -> list[str]:
    """List what a reader must know of runs that are held against each other, once each."""
    told = [_note_clamped(run.beside, run.aggregates.prob_true_rpl or 0.0) for run in runs]
    told += _list_weaknesses(runs)
    told += [_note_misquoted(run.evidence.trusted if run.evidence else None) for run in runs]
    return list(dict.fromkeys(told))


def _list_weaknesses(runs: Sequence[RunRecord]) -> list[str]:
    """Say how runs were asked, where that makes their intervals too narrow."""
    fewest = min(runs, key=lambda run: run.aggregation.n_templates, default=None)
    few = "" if fewest is None else _note_few_wordings(fewest)
    return [few, next((said for run in runs if (said := _note_legacy(run))), "")]


def _name_executions(*lines: LensRecord) -> set[str | None]:
    return {line.execution_id for line in lines}


def _note_few_wordings(run: RunRecord) -> str:
    """Say how few wordings a belief rests on: it was asked in no more, or others gave no answer."""
    used, asked = run.aggregation.n_templates, min(run.sampling.K, run.sampling.T)
    if used >= _ENOUGH:
        return ""
    if used < asked:
        return f"answered in only {used} of {asked} wordings"
    return f"asked in only {'one wording' if used == 1 else f'{used} wordings'}"


def _note_clamped(beside: BesideRecord | None, prob: float) -> str:
    if beside is None or not beside.clamp_sensitive:
        return ""
    # Numbers of three decimals can lie beyond the clamp, too, and log-odds of words anyway.
    which = "of exactly" if beside.extreme_share else "close to"
    before, after = chance(prob), chance(beside.center_clamped)
    if before == after:
        after = f"{beside.center_clamped:.1%}"
    return (
        f"clamp-sensitive: {before} rests on answers {which} 0 or 1, and is {after} with those "
        "counted as 0.5% and 99.5%"
    )


def _note_legacy(run: RunRecord) -> str:
    return "legacy aggregation" if run.aggregation.agg == "simple" else ""


def _note_misquoted(trusted: bool | None) -> str:
    return "not to be trusted: it quotes what isn't in the documents" if trusted is False else ""


def _make_quotable(run: RunRecord, sentence: str, notes: Sequence[str]) -> str:
    """Put what a reader must know to quote a sentence into it."""
    invented, tiny = run.provider in MADE_UP_BY, bool(run.demonstration)
    return _quote(short_model(run.model), sentence, notes, invented=invented, tiny=tiny)


def quote_models(models: Sequence[str], sentence: str, notes: Sequence[str]) -> str:
    """Put into a sentence on several models what holds of any of them."""
    invented = any(model.partition(":")[0] in MADE_UP_BY for model in models)
    tiny = any(model in DEMONSTRATION_MODELS for model in models)
    name = short_model(models[0]) if models else ""
    return _quote(name, sentence, notes, invented=invented, tiny=tiny)


def _quote(name: str, sentence: str, notes: Sequence[str], *, invented: bool, tiny: bool) -> str:
    said = "; ".join([sentence, *(note for note in notes if note)]) + "."
    if invented:
        return f"{_CAVEATS[0]}: {said}"
    if tiny:
        return f"{_CAVEATS[1]}: {said}"
    # A model's name is written as it is, at the beginning of a sentence, too.
    return said if name and said.startswith(name) else f"{said[0].upper()}{said[1:]}"
