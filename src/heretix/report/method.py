"""How a number was made, in plain words and with the record's own values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.belief.estimator import trim_cut
from heretix.report.words import counted, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heretix.measurement.record import RunRecord

__all__ = ["method_lines"]


def method_lines(run: RunRecord) -> list[str]:
    """One sentence or two a step, from the question to the interval."""
    return [
        _asked(run),
        *_shown(run),
        _counted(run),
        *(_estimated(run) if run.aggregates.prob_true_rpl is not None else _not_estimated(run)),
        *_sized(run),
    ]


def _asked(run: RunRecord) -> str:
    sampling = run.sampling
    return (
        f"{run.model} was asked {sampling.N} times how probable the claim is: K = {sampling.K} "
        f"slots with R = {counted(sampling.R, 'repeat')} each, over T = {sampling.T} different "
        f"wordings of the {run.sampler.T_bank} in the bank {run.prompt_version}. "
        f"This was {_when(run)} UTC."
    )


def _shown(run: RunRecord) -> Iterator[str]:
    shown = run.evidence
    if shown is None:
        yield "It was shown no evidence: this is the raw prior (RPL), what it believes unprompted."
        return
    if not shown.items:
        yield (
            "It was given the frame that evidence comes in, with no documents inside "
            f"({run.lens}, frame {shown.frame_version}): a control for the wrapping itself."
        )
        return
    variant = f", changed by an experiment ({shown.variant})" if shown.variant else ""
    quotes = (
        f"Of {shown.quotes_given} quotes in its answers, {shown.quotes_verified} stand in the "
        "documents."
        if shown.quotes_given
        else "Its answers quote nothing."
    )
    yield (
        f"Before each answer it was shown {len(shown.items)} documents ({run.lens}, frame "
        f"{shown.frame_version}){variant}. {quotes}"
    )


def _counted(run: RunRecord) -> str:
    usage = run.usage
    dropped = [
        f"{count} {reason.replace('_', ' ')}" for reason, count in usage.noncompliant.items()
    ]
    if usage.failed:
        dropped.append(f"{usage.failed} calls failed")
    lost = f" The others don't count: {', '.join(dropped)}." if dropped else ""
    return (
        "An answer counts if it is one JSON object, and nothing else, with a probability from 0 to "
        f"1. {usage.compliant} of {usage.attempted} were "
        f"({percent(run.aggregates.rpl_compliance_rate)}).{lost} {usage.from_cache} came from the "
        f"cache, {usage.called} were asked now."
    )


def _estimated(run: RunRecord) -> Iterator[str]:
    belief, how = run.aggregates, run.aggregation
    assert belief.prob_true_rpl is not None
    assert belief.ci95 is not None
    lo, hi = belief.ci95
    if how.agg == "simple":
        yield (
            "All answers were turned into log-odds and averaged, whatever their wording (the "
            f"legacy comparison): as a probability, {belief.prob_true_rpl:.3f}."
        )
        drawn = "the answers were drawn anew, with replacement"
    else:
        cut = trim_cut(how.n_templates, center=how.center, trim=how.trim)
        each = "" if cut == 1 else f"{cut} "
        kept = (
            f"Of the {how.n_templates} means, the {each}lowest and the {each}highest were left out"
            f" ({percent(how.trim)} trimmed from each end); the rest were averaged"
            if cut
            else f"The {how.n_templates} means were averaged"
        )
        yield (
            "Answers were turned into log-odds, and those to the same wording averaged, so that "
            f"every wording weighs the same. {kept}: as a probability, "
            f"{belief.prob_true_rpl:.3f}."
        )
        drawn = "wordings were drawn anew, with replacement, and their answers within them"
    yield (
        f"For the interval, {drawn}, B = {how.B:,} times, and the estimate made again each time. "
        f"95% of those lie from {lo:.3f} to {hi:.3f}. The draws follow from the seed "
        f"{how.bootstrap_seed} ({how.seed_source}): the record gives the same interval again."
    )
    yield (
        f"Stability is 1/(1 + s), where s = {how.template_iqr_logit:.3f} is the spread between the "
        "wordings (the interquartile range of their means in log-odds): "
        f"{belief.stability_score:.2f}, which is {belief.stability_band}."
    )


def _not_estimated(run: RunRecord) -> Iterator[str]:
    yield f"There is no estimate: {run.reason}"


def _sized(run: RunRecord) -> Iterator[str]:
    rule = run.precision
    if rule is None:
        return
    ended = {
        "gates_passed": "it stopped because that was reached",
        "max_samples": "it stopped because more samples weren't allowed",
        None: "a larger step followed",
    }[rule.stopped]
    yield (
        f"Its size wasn't fixed: it grew until the interval was at most {rule.until_width:g} wide, "
        f"with at most {rule.max_samples} samples. This is step {len(rule.steps)}; {ended}. An "
        "interval that decides when to stop is a little too narrow."
    )


def _when(run: RunRecord) -> str:
    start, end = (stamp[:16].replace("T", " ") for stamp in (run.started_at, run.finished_at))
    return f"on {start}" if start == end else f"from {start} to {end}"
