"""Design of a measurement: where its spread comes from, and the cheapest plan for a width.

The variance of a belief over T templates with R replicates each is V(T, R) = t/T + e/(T·R), t being
the variance between templates and e that within, in log-odds. More templates always help; more
replicates only where e is large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from heretix.belief.estimator import DEFAULT_TRIM, order_templates, trim_cut
from heretix.belief.logodds import logit, sigmoid
from heretix.belief.student import TInterval, t_interval, t_quantile
from heretix.core.errors import ConfigError, NoEstimateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T_BANK: Final = 16
R_MAX: Final = 64
_SIMULATED: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """Variances in log-odds, pooled over runs."""

    template: float
    """Between templates; 0 where its estimate came out below that."""
    replicate: float
    """Within a template: the mean square of replicates about their template's mean."""
    n_runs: int
    template_interval: TInterval | None
    """By leaving out one run at a time; None with a single run."""
    replicate_interval: TInterval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Cost of a call, in any currency."""

    template: float = 1.0
    """Of the first call of a template."""
    repeat: float = 1.0
    """Of a replicate of one; less where the prompt is in the provider's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A number of templates and replicates, and what to expect of them."""

    T: int
    R: int
    calls: int
    cost: float
    variance_logit: float
    expected_width: float
    """Of the interval `template_t`, in probability."""


@dataclass(frozen=True, slots=True)
class _Sums:
    """Part that one run adds to the pooled mean squares."""

    within: float
    within_df: float
    between: float
    between_df: float
    weight: float
    """(T - 1)·n0: how much of the variance between templates stands in `between`."""


def estimate_components(
    runs: Sequence[Mapping[str, Sequence[float]]],
) -> VarianceComponents:
    """Pool mean squares over runs, each given as logits by template, of any sizes.

    e = MSW and t = (MSB - MSW)/R, with Searle's n0 for R where templates have unequal counts.
    """
    sums = [_sum_squares(list(order_templates(run).values())) for run in runs]
    sums = [one for one in sums if one.between_df > 0]
    if not sums or sum(one.within_df for one in sums) < 1:
        raise NoEstimateError(
            "`runs`: variance components need runs over at least 2 templates, one of them with a "
            f"replicate, got {len(sums)} runs over 2 or more and no replicate; "
            "measure a few claims with R=2 first"
        )
    template, replicate = _components(sums)
    return VarianceComponents(
        template=max(template, 0.0),
        replicate=replicate,
        n_runs=len(sums),
        template_interval=_jackknife(sums, 0),
        replicate_interval=_jackknife(sums, 1),
    )


def best_replicates(components: VarianceComponents, price: Price | None = None) -> float:
    """R* = √(e/t · cost of a new template / cost of a repeat): what costs least, as a real number.

    Infinite where templates don't differ.
    """
    price = _check_price(price)
    if components.template == 0:
        return math.inf
    ratio = components.replicate / components.template
    return math.sqrt(ratio * price.template / price.repeat)


def plan_for(
    components: VarianceComponents,
    *,
    T: int,
    R: int,
    prob: float = 0.5,
    price: Price | None = None,
) -> Plan:
    """Plan T templates with R replicates for a belief near `prob`; 1/2 is the widest."""
    if T < 2 or R < 1:
        raise ConfigError(f"`T` must be at least 2 and `R` at least 1, got T={T}, R={R}")
    if not 0 < prob < 1:
        raise ConfigError(f"`prob` must lie between 0 and 1, got {prob}")
    price = _check_price(price)
    variance = components.template / T + components.replicate / (T * R)
    half, center = _half_width_factor(T) * math.sqrt(variance), logit(prob)
    return Plan(
        T=T,
        R=R,
        calls=T * R,
        cost=T * (price.template + (R - 1) * price.repeat),
        variance_logit=variance,
        expected_width=sigmoid(center + half) - sigmoid(center - half),
    )


def find_cheapest(
    components: VarianceComponents,
    *,
    width: float,
    prob: float = 0.5,
    price: Price | None = None,
    T_max: int = T_BANK,
    R_max: int = R_MAX,
) -> Plan:
    """The cheapest plan whose expected width is at most `width`; of equals, the narrower."""
    if not 0 < width < 1:
        raise ConfigError(f"`width` must lie between 0 and 1, got {width}")
    plans = [
        plan_for(components, T=T, R=R, prob=prob, price=price)
        for T in range(2, T_max + 1)
        for R in range(1, R_max + 1)
    ]
    enough = [plan for plan in plans if plan.expected_width <= width]
    if not enough:
        best = min(plans, key=lambda plan: plan.expected_width)
        raise ConfigError(
            f"`width` can't be reached with up to {T_max} templates and {R_max} replicates: got "
            f"{width}, T={best.T}, R={best.R} is expected to give {best.expected_width:.3f}; "
            "ask for that, or use a bank with more wordings"
        )
    return min(enough, key=lambda plan: (plan.cost, plan.expected_width))


def expected_widths(
    components: VarianceComponents,
    *,
    max_calls: int,
    prob: float = 0.5,
    price: Price | None = None,
    T_max: int = T_BANK,
) -> tuple[Plan, ...]:
    """Expected width against calls: every plan that no plan with fewer or as many calls betters."""
    plans = [
        plan_for(components, T=T, R=R, prob=prob, price=price)
        for T in range(2, T_max + 1)
        for R in range(1, max_calls // T + 1)
    ]
    plans.sort(key=lambda plan: (plan.calls, plan.expected_width))
    frontier: list[Plan] = []
    for plan in plans:
        if not frontier or plan.expected_width < frontier[-1].expected_width:
            frontier.append(plan)
    return tuple(frontier)


def _sum_squares(groups: Sequence[Sequence[float]]) -> _Sums:
    N, T = sum(map(len, groups)), len(groups)
    if N == 0:
        return _Sums(0.0, 0.0, 0.0, 0.0, 0.0)
    means = [math.fsum(group) / len(group) for group in groups]
    grand = math.fsum(value for group in groups for value in group) / N
    within = math.fsum(
        (value - middle) ** 2
        for group, middle in zip(groups, means, strict=True)
        for value in group
    )
    between = math.fsum(
        len(group) * (middle - grand) ** 2 for group, middle in zip(groups, means, strict=True)
    )
    weight = N - sum(len(group) ** 2 for group in groups) / N
    return _Sums(within, N - T, between, T - 1, weight)


def _components(sums: Sequence[_Sums]) -> tuple[float, float]:
    """Variance between templates, possibly below 0, and within."""
    within_df = math.fsum(one.within_df for one in sums)
    replicate = math.fsum(one.within for one in sums) / within_df
    between = math.fsum(one.between for one in sums)
    df = math.fsum(one.between_df for one in sums)
    return (between - df * replicate) / math.fsum(one.weight for one in sums), replicate


def _jackknife(sums: Sequence[_Sums], which: int) -> TInterval | None:
    """Interval of a component from what it would be without each run (Tukey's pseudo-values)."""
    n = len(sums)
    rests = [[*sums[:i], *sums[i + 1 :]] for i in range(n)]
    if n < 2 or any(math.fsum(one.within_df for one in rest) < 1 for rest in rests):
        return None
    value = _components(sums)[which]
    left_out = [_components(rest)[which] for rest in rests]
    middle = math.fsum(left_out) / n
    se = math.sqrt((n - 1) / n * math.fsum((one - middle) ** 2 for one in left_out))
    return t_interval(value, se, n - 1)


@cache
def _half_width_factor(T: int) -> float:
    """Expected half-width of `template_t` over √V: the t quantile times what the spread comes to.

    By simulating normal template means, always the same ones; right to half a percent.
    """
    cut = trim_cut(T, center="trimmed", trim=DEFAULT_TRIM)
    h = T - 2 * cut
    means = np.sort(np.random.default_rng(T).normal(size=(_SIMULATED, T)), axis=1)
    held = np.clip(means, means[:, cut, np.newaxis], means[:, T - 1 - cut, np.newaxis])
    squares = T * held.var(axis=1)
    se = float(np.sqrt(squares / (h * (h - 1))).mean())
    return t_quantile(0.975, h - 1) * se * math.sqrt(T)


def _check_price(price: Price | None) -> Price:
    price = price or Price()
    if not (0 < price.template < math.inf and 0 < price.repeat < math.inf):
        raise ConfigError(
            f"`price` must be positive and finite, got {price.template} for a template and "
            f"{price.repeat} for a repeat; leave it out where calls cost nothing"
        )
    return price
