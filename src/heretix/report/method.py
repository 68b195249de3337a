"""The method in words: how a number was made, and an example worked by the same functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.belief import metrics
from heretix.belief.estimator import Estimate, estimate, mean, order_templates, trim_cut
from heretix.belief.logodds import logit, sigmoid
from heretix.core.errors import ConfigError
from heretix.core.lenses import HEL, MEL, NUL, RPL
from heretix.report.words import no_estimate_reason, percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.belief.metrics import InformationGain, Metric
    from heretix.measurement.record import RunRecord


METHOD: Final = (
    "A claim is put in several wordings and asked again and again. Each answer is a probability; "
    "they are averaged in log-odds within each wording and then over wordings, without the most "
    "extreme fifth on both sides. Drawing wordings and answers anew, many times, gives the 95% "
    "interval. What couldn't be read is dropped and counted, and nothing is filled in."
)
"""Way in which any number is made, for readers: reports say it once."""


def method_lines(run: RunRecord) -> list[str]:
    """Tell, in a sentence or two a step, how a run went from the question to the interval."""
    estimated = run.aggregates.prob_true_rpl is not None
    failed = f"There is no estimate: {no_estimate_reason(run.reason)}"
    steps = _tell_estimate(run) if estimated else [failed]
    return [_tell_question(run), *_tell_evidence(run), _tell_answers(run), *steps, *_tell_size(run)]


def _tell_question(run: RunRecord) -> str:
    sampling = run.sampling
    start, end = (stamp[:16].replace("T", " ") for stamp in (run.started_at, run.finished_at))
    when = f"on {start}" if start == end else f"from {start} to {end}"
    return (
        f"{run.model} was asked {sampling.N} times how probable the claim is: K = {sampling.K} "
        f"slots with R = {plural(sampling.R, 'repeat')} each, over T = {sampling.T} different "
        f"wordings of the {run.sampler.T_bank} in the bank {run.prompt_version}. "
        f"This was {when} UTC."
    )


def _tell_evidence(run: RunRecord) -> Iterator[str]:
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
    cut = f", and {shown.quotes_cut} more as far as a limit let them go" if shown.quotes_cut else ""
    quotes = (
        f"Of {shown.quotes_given} quotes in its answers, {shown.quotes_verified} stand in the "
        f"documents{cut}."
        if shown.quotes_given
        else "Its answers quote nothing."
    )
    yield (
        f"Before each answer it was shown {len(shown.items)} documents ({run.lens}, frame "
        f"{shown.frame_version}){variant}. {quotes}"
    )


def _tell_answers(run: RunRecord) -> str:
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


def _tell_estimate(run: RunRecord) -> Iterator[str]:
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


def _tell_size(run: RunRecord) -> Iterator[str]:
    rule = run.precision
    if rule is None:
        return
    ended = {
        "gates_passed": "it stopped because that was reached",
        "max_samples": "it stopped because more samples weren't allowed",
        "interrupted": "a larger step was begun, and the run was stopped before its end",
        None: "a larger step followed",
    }[rule.stopped]
    yield (
        f"Its size wasn't fixed: it grew until the interval was at most {rule.until_width:g} wide, "
        f"with at most {rule.max_samples} samples. This is step {len(rule.steps)}; {ended}. An "
        "interval that decides when to stop is a little too narrow."
    )


Answers = tuple[tuple[float, ...], ...]  # Probabilities by wording

DEFAULT_ANSWERS: Final = (  # Two answers to each of eight wordings; one wording leads down, one up
    (0.70, 0.74),
    (0.66, 0.69),
    (0.78, 0.75),
    (0.40, 0.46),
    (0.72, 0.71),
    (0.92, 0.90),
    (0.68, 0.73),
    (0.64, 0.70),
)
_MOST_WORDINGS: Final = 16
_MOST_ANSWERS: Final = 8
_SEED: Final = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One wording on its way to the estimate."""

    number: int
    answers: tuple[float, ...]
    logits: tuple[float, ...]
    mean_logit: float
    prob: float
    trimmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedExample:
    """Answers, what each wording makes of them, and the estimate."""

    steps: tuple[Step, ...]
    cut: int
    plain_mean: float  # The average of the answers as they are, for comparison
    estimate: Estimate

    @classmethod
    def of(cls, answers: Sequence[Sequence[float]]) -> WorkedExample:
        """Work through answers, given by wording."""
        logits = {f"{n:02d}": [logit(p) for p in given] for n, given in enumerate(answers)}
        found = estimate(logits, seed=_SEED)
        means = {name: mean(values) for name, values in order_templates(logits).items()}
        cut = trim_cut(len(means), center="trimmed", trim=found.trim)
        ranked = sorted(means, key=lambda name: (means[name], name))
        kept = set(ranked[cut : len(ranked) - cut])
        steps = tuple(
            Step(
                number=number + 1,
                answers=tuple(given),
                logits=tuple(logits[name]),
                mean_logit=means[name],
                prob=sigmoid(means[name]),
                trimmed=name not in kept,
            )
            for number, (name, given) in enumerate(zip(logits, answers, strict=True))
        )
        flat = [p for given in answers for p in given]
        return cls(steps=steps, cut=cut, plain_mean=mean(flat), estimate=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LensExample:
    """The same wordings under four lenses, and what lies between."""

    probs: Mapping[str, float]
    shock_index: Metric
    amplification_gap: Metric
    wrapper_effect: Metric
    evidence_effect: Metric
    information_gain: InformationGain

    @classmethod
    def from_answers(cls, answers: Sequence[Sequence[float]]) -> LensExample:
        """Make beliefs that a frame moves a little, mainstream evidence up, heterodox down."""
        shifts = {RPL: 0.0, NUL: 0.1, MEL: 0.5, HEL: -1.2}
        lenses = {
            lens: {f"{n:02d}": [logit(p) + by for p in given] for n, given in enumerate(answers)}
            for lens, by in shifts.items()
        }
        vector = metrics.joint_bootstrap(lenses, seed=_SEED)
        return cls(
            probs={lens: sigmoid(vector.centers[lens]) for lens in shifts},
            shock_index=metrics.shock_index(vector),
            amplification_gap=metrics.amplification_gap(vector),
            wrapper_effect=metrics.movement(vector, NUL),
            evidence_effect=metrics.movement(vector, HEL, NUL),
            information_gain=metrics.information_gain(vector, HEL),
        )


def parse_answers(text: str) -> Answers:
    """Read answers as somebody typed them: a line a wording, probabilities with spaces between."""
    lines = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
    if not 2 <= len(lines) <= _MOST_WORDINGS:
        raise ConfigError(f"`answers` must have 2 to {_MOST_WORDINGS} lines, got {len(lines)}")
    parsed = []
    for number, line in enumerate(lines, 1):
        if len(line) > _MOST_ANSWERS:
            raise ConfigError(f"`answers` line {number} has more than {_MOST_ANSWERS} numbers")
        parsed.append(tuple(_prob(part, number) for part in line))
    return tuple(parsed)


def _prob(text: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"`answers` line {line} must hold numbers from 0 to 1, got {text!r}")
    return value
