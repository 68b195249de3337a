"""Student's t: tails and quantiles, and intervals over templates beside the frozen bootstrap.

The statistics have names of their own. Every template is one draw from the wordings that might
have been used; what replicates scatter is already in the scatter of template means, so it isn't
drawn a second time. There is no randomness here, and one replicate is enough.

The engine is the regularised incomplete beta function by its continued fraction (DLMF 8.17.22),
evaluated as Lentz does. It agrees with SciPy to twelve digits, which the tests check, and spares
users of the library a dependency of 100 MB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from heretix.belief.estimator import (
    DEFAULT_TRIM,
    Center,
    check_center,
    mean,
    order_templates,
    trim_cut,
    trimmed_mean,
)
from heretix.belief.logodds import sigmoid
from heretix.core.errors import NoEstimateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LEVEL: Final = 0.95
"""Of every interval here."""
METHOD_TEMPLATE_T: Final = "template_t"
METHOD_PAIRED_T: Final = "paired_template_t"
METHOD_PAIRED_T_TRIMMED: Final = "paired_template_t_trimmed"
_TINY: Final = 1e-300
_HALVINGS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TInterval:
    """A number, its 95% interval, and the p-value of 0: all three from one statistic, value / se.

    So the interval leaves 0 out exactly where the p-value is below .05.
    """

    value: float
    lo: float
    hi: float
    se: float
    df: float
    p_value: float
    """Two-sided. With no spread at all it is 1 at 0 and 0 elsewhere."""


def t_interval(value: float, se: float, df: float) -> TInterval:
    """Interval and p-value of a `value` with standard error `se` on `df` degrees of freedom."""
    half = t_quantile((1 + LEVEL) / 2, df) * se
    p_value = float(value == 0) if se == 0 else two_sided_p(value / se, df)
    return TInterval(value=value, lo=value - half, hi=value + half, se=se, df=df, p_value=p_value)


def mean_t(values: Sequence[float]) -> TInterval:
    """Mean of independent `values` with Student's interval."""
    n = len(values)
    if n < 2:
        raise NoEstimateError(
            f"`values`: an interval of a mean needs at least 2, got {n}; measure more of them"
        )
    middle = math.fsum(values) / n
    squares = math.fsum((value - middle) ** 2 for value in values)
    return t_interval(middle, math.sqrt(squares / (n * (n - 1))), n - 1)


def two_sided_p(t: float, df: float) -> float:
    """Chance of a |t| at least this large."""
    square = t * t
    return beta_cdf(df / (df + square), df / 2, 0.5) if math.isfinite(square) else 0.0


@cache
def t_quantile(p: float, df: float) -> float:
    """The t that a share `p` lies below."""
    if p < 0.5:
        return -t_quantile(1 - p, df)
    tail = 2 * (1 - p)
    return _solve(lambda t: two_sided_p(t, df) > tail)


@cache
def f_quantile(p: float, df1: float, df2: float) -> float:
    """The F that a share `p` lies below."""
    return _solve(lambda f: beta_cdf(df1 * f / (df1 * f + df2), df1 / 2, df2 / 2) < p)


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1.0 - beta_cdf(1 - x, b, a)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return math.exp(log_front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of I_x(a, b), by Lentz's method."""
    c, d = 1.0, _avoid_zero(1 - (a + b) * x / (a + 1))
    d = 1 / d
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _avoid_zero(1 + term * d)
            c = _avoid_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _avoid_zero(x: float) -> float:
    """`x`, held off 0 so that it can be divided by."""
    return x if abs(x) > _TINY else _TINY


def _solve(below: Callable[[float], bool]) -> float:
    """The positive number where `below` turns false: doubled until past it, then halved."""
    hi = 1.0
    while below(hi) and hi < 1e300:
        hi *= 2
    lo = 0.0
    for _ in range(_HALVINGS):
        middle = (lo + hi) / 2
        if middle in (lo, hi):
            break
        lo, hi = (middle, hi) if below(middle) else (lo, middle)
    return hi


# Over templates.


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateT:
    """One belief with an interval by Tukey and McLaughlin, about the frozen center."""

    method: str
    prob_true: float
    ci_lo: float
    ci_hi: float
    ci_width: float
    logit: TInterval
    """The same in log-odds; its p-value is of a belief of 1/2."""
    n_templates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedT:
    """Belief b minus belief a over the templates that both have."""

    method: str
    prob_a: float
    """Of the statistic's own center, which isn't the published one where it isn't trimmed."""
    prob_b: float
    diff_prob: TInterval
    diff_logit: TInterval
    n_pairs: int
    only_a: tuple[str, ...]
    """Keys that had no partner, and were left out."""
    only_b: tuple[str, ...]


def template_t(
    logits_by_template: Mapping[str, Sequence[float]],
    *,
    center: Center = "trimmed",
    trim: float = DEFAULT_TRIM,
) -> TemplateT:
    """Interval of a belief: trimmed mean of the template means, winsorised spread, t(h - 1).

    h is how many of the T means are left after trimming (Tukey and McLaughlin 1963).
    """
    check_center(center=center, trim=trim)
    means = [mean(logits) for logits in order_templates(logits_by_template).values()]
    T = len(means)
    cut = trim_cut(T, center=center, trim=trim)
    df = _df(T, cut)
    found = t_interval(trimmed_mean(means, cut), _winsorised_se(_deviations(means, cut), cut), df)
    lo, hi = sigmoid(found.lo), sigmoid(found.hi)
    return TemplateT(
        method=METHOD_TEMPLATE_T,
        prob_true=sigmoid(found.value),
        ci_lo=lo,
        ci_hi=hi,
        ci_width=hi - lo,
        logit=found,
        n_templates=T,
    )


def paired_template_t(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]
) -> PairedT:
    """Difference b - a of logits keyed by what pairs them, from plain means over templates.

    In log-odds, Student's t of the differences; in probability, the same with each template's
    influence on sigmoid(mean of b) - sigmoid(mean of a).
    """
    (means_a, means_b), only_a, only_b = _pair(a, b)
    return PairedT(
        method=METHOD_PAIRED_T,
        prob_a=sigmoid(mean(means_a)),
        prob_b=sigmoid(mean(means_b)),
        diff_prob=_combine([means_a, means_b], [-1.0, 1.0], 0.0),
        diff_logit=mean_t([y - x for x, y in zip(means_a, means_b, strict=True)]),
        n_pairs=len(means_a),
        only_a=only_a,
        only_b=only_b,
    )


def paired_template_t_trimmed(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    *,
    trim: float = DEFAULT_TRIM,
    center_logit: float | None = None,
) -> PairedT:
    """The robust twin: trimmed mean of the differences, applied at the published center of a.

    `center_logit` is that center; None means the trimmed mean over all templates of a. With c for
    it and d for the shift, sigmoid(c + d) - sigmoid(c) moves with d by v(c + d) and with c by
    v(c + d) - v(c), v being the slope of the sigmoid: each template's influence is the sum of
    both, with its winsorised deviations.
    """
    check_center(center="trimmed", trim=trim)
    (means_a, means_b), only_a, only_b = _pair(a, b)
    T = len(means_a)
    cut = trim_cut(T, center="trimmed", trim=trim)
    df = _df(T, cut)
    diffs = [y - x for x, y in zip(means_a, means_b, strict=True)]
    shift = trimmed_mean(diffs, cut)
    if center_logit is None:
        every_a = [mean(logits) for logits in order_templates(a).values()]
        center_logit = trimmed_mean(every_a, trim_cut(len(every_a), center="trimmed", trim=trim))
    moved, still = _slope(center_logit + shift), _slope(center_logit)
    by_shift, by_center = _deviations(diffs, cut), _deviations(means_a, cut)
    influences = [moved * d + (moved - still) * x for d, x in zip(by_shift, by_center, strict=True)]
    prob_a, prob_b = sigmoid(center_logit), sigmoid(center_logit + shift)
    return PairedT(
        method=METHOD_PAIRED_T_TRIMMED,
        prob_a=prob_a,
        prob_b=prob_b,
        diff_prob=t_interval(prob_b - prob_a, _winsorised_se(influences, cut), df),
        diff_logit=t_interval(shift, _winsorised_se(by_shift, cut), df),
        n_pairs=T,
        only_a=only_a,
        only_b=only_b,
    )


def combine_probs(
    sides: Sequence[Mapping[str, Sequence[float]]],
    weights: Sequence[float],
    *,
    constant: float = 0.0,
) -> TInterval:
    """Weighted sum of several beliefs in probability, over the templates that all of them have."""
    return _combine(shared_means(sides), weights, constant)


def shared_means(sides: Sequence[Mapping[str, Sequence[float]]]) -> list[list[float]]:
    """Template means of each side, over the keys that all sides have, in one order."""
    ordered = [order_templates(side) for side in sides]
    shared = sorted(set.intersection(*(set(side) for side in ordered))) if ordered else []
    _require(
        len(shared),
        "a comparison",
        "measure all sides with the same templates",
        f" ({', '.join(str(len(side)) for side in ordered)} on the sides)",
    )
    return [[mean(side[key]) for key in shared] for side in ordered]


def _pair(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]
) -> tuple[list[list[float]], tuple[str, ...], tuple[str, ...]]:
    keys_a, keys_b = order_templates(a), order_templates(b)
    only_a = tuple(key for key in keys_a if key not in keys_b)
    only_b = tuple(key for key in keys_b if key not in keys_a)
    return shared_means([a, b]), only_a, only_b


def _combine(
    sides: Sequence[Sequence[float]], weights: Sequence[float], constant: float
) -> TInterval:
    """Sum of weight x sigmoid(plain mean), with the spread of the templates' joint influence."""
    T = len(sides[0])
    centers = [mean(side) for side in sides]
    value = math.fsum(w * sigmoid(c) for w, c in zip(weights, centers, strict=True)) + constant
    slopes = [w * _slope(c) for w, c in zip(weights, centers, strict=True)]
    influences = [
        math.fsum(slope * (x - c) for slope, x, c in zip(slopes, template, centers, strict=True))
        for template in zip(*sides, strict=True)
    ]
    return t_interval(value, _winsorised_se(influences, 0), T - 1)


def _slope(logit: float) -> float:
    """Slope of the probability by log-odds."""
    prob = sigmoid(logit)
    return prob * (1 - prob)


def _deviations(values: Sequence[float], cut: int) -> list[float]:
    """Winsorised `values` less their mean: the `cut` lowest and highest moved to the next ones."""
    ordered = sorted(values)
    lo, hi = ordered[cut], ordered[len(ordered) - 1 - cut]
    held = [min(max(value, lo), hi) for value in values]
    middle = math.fsum(held) / len(held)
    return [value - middle for value in held]


def _winsorised_se(deviations: Sequence[float], cut: int) -> float:
    """Standard error of a mean trimmed by `cut` on each side, from winsorised deviations."""
    h = len(deviations) - 2 * cut
    return math.sqrt(math.fsum(d * d for d in deviations) / (h * (h - 1)))


def _df(T: int, cut: int) -> int:
    """Degrees of freedom: one less than the templates that trimming leaves."""
    _require(T - 2 * cut, "an interval", "trim less, or sample with more templates (T)")
    return T - 2 * cut - 1


def _require(T: int, what: str, remedy: str, detail: str = "") -> None:
    if T < 2:
        raise NoEstimateError(
            f"`templates`: {what} by Student's t needs at least 2 with samples and not trimmed, "
            f"got {T}{detail}; {remedy}"
        )
