"""Diagnostics of an estimate: where its spread comes from and which templates carry it.

These stand beside the frozen estimator and never change its numbers. What can't be computed is
None, and a reason says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.belief.estimator import (
    DEFAULT_TRIM,
    Agg,
    Center,
    Templates,
    check_center,
    mean,
    order_templates,
    trim_cut,
    trimmed_mean,
)
from heretix.belief.logodds import logit, sigmoid
from heretix.core.errors import NoEstimateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXTREME_CLAMP: Final = 0.005
"""Bound at which answers are held to see what those of exactly 0 or 1 weigh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceSplit:
    """Shares of the variance, in log-odds, between templates and within."""

    between: float
    """Between-template component; 0 when its estimate came out below that."""
    between_was_negative: bool
    """The raw estimate was below 0: templates differ less than their replicates would explain."""
    within: float
    """Variance of replicates about their template's mean."""
    between_share: float | None
    """Intraclass correlation: between / (between + within); None when nothing varies at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRow:
    """One template: what it said, and what the center would be without it."""

    template: str
    n: int
    mean_logit: float
    prob: float
    """Sigmoid of `mean_logit`."""
    sd_logit: float | None
    """Standard deviation of its own logits; None with a single sample."""
    min_prob: float
    max_prob: float
    trimmed: bool
    """Dropped by the trimmed mean; of equal means, the lower hash counts as the lower one."""
    influence_logit: float | None
    """Center without this template minus center; None when no other template is left."""
    influence_prob: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Diagnostics beside an estimate: variance split, sensitivity to wording, templates."""

    variance: VarianceSplit | None
    variance_reason: str | None
    """Reason why `variance` is None."""
    paraphrase_range_prob: float | None
    """Highest minus lowest template probability."""
    paraphrase_sd_prob: float | None
    """Standard deviation (n - 1) of the template probabilities."""
    paraphrase_reason: str | None
    """Reason why the paraphrase numbers are None."""
    templates: tuple[TemplateRow, ...]
    """By hash."""


def diagnose(
    logits_by_template: Mapping[str, Sequence[float]],
    *,
    center: Center = "trimmed",
    trim: float = DEFAULT_TRIM,
) -> Diagnostics:
    """Describe the compliant logits of each template, given in any order."""
    check_center(center=center, trim=trim)
    templates = order_templates(logits_by_template)
    _require_answers(templates)
    variance, variance_reason = _variance(templates)
    probs = [sigmoid(mean(logits)) for logits in templates.values()]
    one = len(probs) == 1
    return Diagnostics(
        variance=variance,
        variance_reason=variance_reason,
        paraphrase_range_prob=None if one else max(probs) - min(probs),
        paraphrase_sd_prob=None if one else _sd(probs),
        paraphrase_reason="only one template has samples" if one else None,
        templates=_rows(templates, center=center, trim=trim),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtremeAnswers:
    """Share of a belief that is answers of exactly 0 or 1, which weigh 13.8 log-odds each."""

    n: int
    n_extreme: int
    share: float
    center_clamped: float
    """The belief with every answer held within [.005, .995]; in probability."""
    shift: float
    """`center_clamped` minus the belief as published."""
    clamp_sensitive: bool
    """The two lie further apart than half the published interval is wide."""


def weigh_extremes(
    probs_by_template: Mapping[str, Sequence[float]],
    *,
    prob_true: float,
    ci_width: float,
    center: Center = "trimmed",
    trim: float = DEFAULT_TRIM,
    agg: Agg = "clustered",
) -> ExtremeAnswers:
    """Compare a published belief with what it would be, were no answer beyond .005 or .995."""
    check_center(center=center, trim=trim)
    answers = [prob for probs in probs_by_template.values() for prob in probs]
    clamped = order_templates(
        {
            template: [logit(min(max(prob, EXTREME_CLAMP), 1 - EXTREME_CLAMP)) for prob in probs]
            for template, probs in probs_by_template.items()
        }
    )
    _require_answers(clamped)
    if agg == "simple":
        middle = mean(sorted(value for logits in clamped.values() for value in logits))
    else:
        cut = trim_cut(len(clamped), center=center, trim=trim)
        middle = trimmed_mean(map(mean, clamped.values()), cut)
    n_extreme = sum(prob in (0, 1) for prob in answers)
    center_clamped = sigmoid(middle)
    return ExtremeAnswers(
        n=len(answers),
        n_extreme=n_extreme,
        share=n_extreme / len(answers),
        center_clamped=center_clamped,
        shift=center_clamped - prob_true,
        clamp_sensitive=abs(center_clamped - prob_true) > ci_width / 2,
    )


def split_variance(groups: Sequence[Sequence[float]]) -> VarianceSplit:
    """Analysis of variance, one way, random effects, groups of any sizes.

    Takes at least two groups, one of them with at least two values. The estimator equates mean
    squares with their expectations (Searle, Casella and McCulloch, Variance Components, 1992,
    section 3.6), with n0 in place of the common group size.
    """
    N, T = sum(map(len, groups)), len(groups)
    means = [_mean(group) for group in groups]
    grand_mean = _mean([value for group in groups for value in group])
    between_ss = math.fsum(
        len(group) * (group_mean - grand_mean) ** 2
        for group, group_mean in zip(groups, means, strict=True)
    )
    within_ss = math.fsum(
        _squares(group, group_mean) for group, group_mean in zip(groups, means, strict=True)
    )
    within = within_ss / (N - T)
    n0 = (N - sum(len(group) ** 2 for group in groups) / N) / (T - 1)
    raw = (between_ss / (T - 1) - within) / n0
    between = max(raw, 0.0)
    total = between + within
    return VarianceSplit(
        between=between,
        between_was_negative=raw < 0,
        within=within,
        between_share=between / total if total > 0 else None,
    )


def _require_answers(templates: Templates) -> None:
    if not templates:
        raise NoEstimateError(
            "`samples`: diagnostics need at least 1 compliant one, got 0; "
            "see why they were dropped, then sample again"
        )


def _variance(templates: Templates) -> tuple[VarianceSplit | None, str | None]:
    if len(templates) == 1:
        return None, "only one template has samples: nothing lies between templates"
    if all(len(logits) == 1 for logits in templates.values()):
        return None, "every template has a single sample: nothing lies within templates"
    return split_variance(list(templates.values())), None


def _rows(templates: Templates, *, center: Center, trim: float) -> tuple[TemplateRow, ...]:
    means = {template: mean(logits) for template, logits in templates.items()}
    T = len(means)
    cut = trim_cut(T, center=center, trim=trim)
    center_logit = trimmed_mean(means.values(), cut)
    # `sorted` is stable and templates come by hash, so ties fall in the order of hashes.
    ranked = sorted(means, key=means.__getitem__)
    kept = set(ranked[cut : T - cut])
    cut_without_one = trim_cut(T - 1, center=center, trim=trim)
    rows = []
    for template, logits in templates.items():
        others = [value for other, value in means.items() if other != template]
        without = trimmed_mean(others, cut_without_one) if others else None
        rows.append(
            TemplateRow(
                template=template,
                n=len(logits),
                mean_logit=means[template],
                prob=sigmoid(means[template]),
                sd_logit=_sd(logits) if len(logits) > 1 else None,
                min_prob=sigmoid(logits[0]),
                max_prob=sigmoid(logits[-1]),
                trimmed=template not in kept,
                influence_logit=None if without is None else without - center_logit,
                influence_prob=(
                    None if without is None else sigmoid(without) - sigmoid(center_logit)
                ),
            )
        )
    return tuple(rows)


# The standard library's `statistics` reckons in exact fractions and takes 30 times as long.


def _mean(values: Sequence[float]) -> float:
    """Mean; of equal values exactly that value, so that their variance is 0 and not rounding."""
    lowest = min(values)
    return lowest if lowest == max(values) else math.fsum(values) / len(values)


def _squares(values: Sequence[float], middle: float) -> float:
    """Sum of squared distances from `middle`."""
    return math.fsum((value - middle) ** 2 for value in values)


def _sd(values: Sequence[float]) -> float:
    """Standard deviation, with n - 1."""
    return math.sqrt(_squares(values, _mean(values)) / (len(values) - 1))
