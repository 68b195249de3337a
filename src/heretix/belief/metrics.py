"""Several beliefs about one claim: one bootstrap for all, and how far evidence moved them.

Stems are drawn once and used for every lens, so what the wordings share cancels out of any
difference between lenses. Every metric has an interval from this, or describes a bundle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from heretix.belief.estimator import (
    DEFAULT_B,
    DEFAULT_TRIM,
    Center,
    check_options,
    draw_templates,
    interval,
    mean,
    mean_in_order,
    order_templates,
    resample_means,
    trim_cut,
    trimmed_centers,
    trimmed_mean,
)
from heretix.belief.logodds import Later, sigmoid
from heretix.core.errors import ConfigError, NoEstimateError
from heretix.core.lenses import HEL, MEL, RPL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heretix.belief.estimator import Floats
else:
    np = Later("numpy")

MIN_STEMS: Final = 8
"""Fewer shared stems give no interval for a difference between lenses."""
IG_CLAMP: Final = 0.005
"""Information is counted between beliefs held this far from 0 and 1."""
_MAX_SWAPS: Final = 4096
"""Label swaps that are all looked at, rather than drawn from."""


@dataclass(frozen=True, kw_only=True)
class BeliefVector:
    """Centers and replicas of each lens over the stems that all of them have."""

    stems: tuple[str, ...]
    means: Mapping[str, Floats] = field(repr=False)
    """By lens: the mean log-odds of each stem, in the order of `stems`."""
    centers: Mapping[str, float]
    replicas: Mapping[str, Floats] = field(repr=False)
    """By lens: B centers in log-odds; replica b of every lens holds the same stems."""
    cut: int
    seed: int

    @cached_property
    def probs(self) -> dict[str, float]:
        """The belief, by lens."""
        return {lens: sigmoid(center) for lens, center in self.centers.items()}

    @cached_property
    def prob_replicas(self) -> dict[str, Floats]:
        """The replicas as probabilities, by lens."""
        return {lens: sigmoids(values) for lens, values in self.replicas.items()}


def joint_bootstrap(
    lenses: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    seed: int,
    B: int = DEFAULT_B,
    center: Center = "trimmed",
    trim: float = DEFAULT_TRIM,
) -> BeliefVector:
    """Resample all lenses together. `lenses` maps a lens to its logits by stem.

    Draws: the stems of all replicas, then the replicates of each lens, lenses by name.
    """
    check_options(B=B, center=center, trim=trim, seed=seed)
    ordered = {lens: order_templates(lenses[lens]) for lens in sorted(lenses)}
    stems_of = [set(stems) for stems in ordered.values()]
    shared = sorted(set.intersection(*stems_of)) if stems_of else []
    if len(shared) < MIN_STEMS:
        raise NoEstimateError(
            f"`lenses`: differences need at least {MIN_STEMS} stems that all lenses have answers "
            f"for, got {len(shared)}; measure them with the same templates, T at least {MIN_STEMS}",
            code="too_few_stems",
            got=len(shared),
        )
    cut = trim_cut(len(shared), center=center, trim=trim)
    rng = np.random.default_rng(seed)
    picks = draw_templates(rng, B=B, T=len(shared))
    means: dict[str, Floats] = {}
    centers: dict[str, float] = {}
    replicas: dict[str, Floats] = {}
    for lens, stems in ordered.items():
        groups = [np.array(stems[stem]) for stem in shared]
        averages = [mean(stems[stem]) for stem in shared]
        means[lens] = np.array(averages)
        centers[lens] = trimmed_mean(averages, cut)
        resampled = resample_means(groups, picks, rng)
        replicas[lens] = trimmed_centers(resampled, cut)
    return BeliefVector(
        stems=tuple(shared), means=means, centers=centers, replicas=replicas, cut=cut, seed=seed
    )


def sigmoids(logits: Floats) -> Floats:
    """Probabilities of an array of log-odds; `tanh` can't overflow."""
    probs: Floats = 0.5 + 0.5 * np.tanh(0.5 * logits)
    return probs


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number with its 95% interval."""

    value: float
    lo: float
    hi: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InformationGain(Metric):
    """Signed bits: above 0 when the belief rose."""

    corrected: float
    """Without the part of its size that noise alone would give, by the bootstrap."""
    p_value: float
    """Of a move at least this far if the two measurements were of the same belief."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConcentration:
    """Effective number of sources of a bundle."""

    herfindahl: float
    effective_sources: float
    publishers: int


def movement(vector: BeliefVector, lens: str, base: str = RPL) -> Metric:
    """Distance of `lens` from `base`, in probability."""
    return _metric(vector, lambda p: p[lens] - p[base])


def shock_index(vector: BeliefVector) -> Metric:
    """Distance between the raw prior and the belief under heterodox evidence; folded at 0."""
    return fold_metric(movement(vector, HEL))


def amplification_gap(vector: BeliefVector) -> Metric:
    """Movement of the raw prior by mainstream evidence."""
    return movement(vector, MEL)


def directed_gap(
    vector: BeliefVector, prior_ci: tuple[float, float] | None = None
) -> Metric | None:
    """The amplification gap, above 0 when it strengthens the prior and below when it corrects it.

    Undefined, None, where the prior's interval holds 1/2: it leans to neither side. `prior_ci` is
    the interval that was published with the prior, so that the two can't contradict each other;
    without one, it is that of the joint bootstrap.
    """
    lo, hi = prior_ci or interval(vector.prob_replicas[RPL])
    if lo <= 0.5 <= hi:
        return None
    gap = amplification_gap(vector)
    if lo > 0.5:
        return gap
    return Metric(value=-gap.value, lo=-gap.hi, hi=-gap.lo)


def information_gain(vector: BeliefVector, lens: str, base: str = RPL) -> InformationGain:
    """Bits by which `lens` moved the belief away from `base`, with the sign of the move."""
    found = _metric(vector, lambda p: _signed_bits(p[lens], p[base]))
    replicas = _signed_bits(vector.prob_replicas[lens], vector.prob_replicas[base])
    return InformationGain(
        value=found.value,
        lo=found.lo,
        hi=found.hi,
        # The mean of the replicas overshoots the value as the value overshoots the truth.
        corrected=float(2 * found.value - np.mean(replicas)),
        p_value=exchange_test(vector, lens, base),
    )


def exchange_test(vector: BeliefVector, lens: str, base: str = RPL, *, draws: int = 4999) -> float:
    """Share of label swaps that move as far: is `lens` more than `base` again?

    If both had measured the same belief, their answers to a stem could be swapped without anyone
    noticing. Swapping them at random, stem by stem, shows what chance alone gives. The level is
    exact where answers of both have one distribution, whatever it is, and where their difference
    is symmetric about 0.

    A move is the plain mean of the stems' differences in log-odds, the same size up and down. A
    trimmed mean may drop the few stems that were swapped and find as large a move: for 8 stems
    that all moved from .35 to .80 it gives p = 0.07, where 2 of the 256 swaps (0.008) move as far.

    Up to 12 stems all swaps are counted, and the share is exact; above, `draws` of them.
    """
    moved = vector.means[lens] - vector.means[base]
    # The labels as they are come first, and through the same arithmetic.
    swap = _draw_swaps(len(moved), draws=draws, seed=vector.seed)
    sizes = np.abs(mean_in_order(np.where(swap, -moved, moved).T))
    # A tie counts as "as far": sums of the same numbers may differ in their last bit.
    return float(np.count_nonzero(sizes >= sizes[0] - 1e-12) / len(sizes))


def noise_floor(
    logits_by_stem: Mapping[str, Sequence[float]],
    *,
    seed: int,
    B: int = DEFAULT_B,
    center: Center = "trimmed",
    trim: float = DEFAULT_TRIM,
) -> float | None:
    """The distance that two measurements of the same belief exceed in one case of twenty.

    Both have the same stems and replicates of their own. None when fewer than 8 stems have a
    second replicate: then little is known about how far a repeat would lie.
    """
    ordered = order_templates(logits_by_stem)
    repeated = {stem: _widen(logits) for stem, logits in ordered.items() if len(logits) > 1}
    if len(repeated) < MIN_STEMS:
        return None
    twice = joint_bootstrap(
        {"once": repeated, "again": repeated}, seed=seed, B=B, center=center, trim=trim
    )
    distance = np.abs(twice.prob_replicas["once"] - twice.prob_replicas["again"])
    return float(np.quantile(distance, 0.95))


def dispersion(vector: BeliefVector, lenses: Sequence[str]) -> Metric:
    """Jensen–Shannon divergence, in bits, of the beliefs of several lenses."""
    return _metric(vector, lambda p: _jensen_shannon([p[lens] for lens in lenses]))


def source_concentration(counts: Mapping[str, int]) -> SourceConcentration | None:
    """Herfindahl index over publishers, after duplicates collapsed; None for no items."""
    total = sum(counts.values())
    if total == 0:
        return None
    # Whole numbers until the end: equal shares give exactly 1/n.
    squares = sum(count * count for count in counts.values())
    return SourceConcentration(
        herfindahl=squares / (total * total),
        effective_sources=total * total / squares,
        publishers=sum(1 for count in counts.values() if count),
    )


def find_discoveries(p_values: Sequence[float], *, rate: float = 0.1) -> list[bool]:
    """Mark the findings that stand when at most `rate` may be false (Benjamini–Hochberg)."""
    if not 0 < rate < 1:
        raise ConfigError(f"`rate` must lie between 0 and 1, got {rate}")
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    passing = [
        rank for rank, i in enumerate(order, start=1) if p_values[i] <= rate * rank / len(order)
    ]
    kept = set(order[: max(passing, default=0)])
    return [i in kept for i in range(len(p_values))]


def signed_bits(post: float, pre: float) -> float:
    """Bits by which a belief moved from `pre` to `post`, below 0 when it fell; both clamped."""
    return float(_signed_bits(_array(post), _array(pre)))


def fold_metric(metric: Metric) -> Metric:
    """The size of a signed number: its interval is folded at 0."""
    lo, hi = sorted((abs(metric.lo), abs(metric.hi)))
    return Metric(value=abs(metric.value), lo=0.0 if metric.lo <= 0 <= metric.hi else lo, hi=hi)


def _draw_swaps(stems: int, *, draws: int, seed: int) -> NDArray[np.bool_]:
    """Draw the stems whose labels are swapped, a row a time; in the first row none is."""
    if 2**stems <= _MAX_SWAPS:
        numbers = np.arange(2**stems)[:, np.newaxis]
        every: NDArray[np.bool_] = (numbers >> np.arange(stems)) % 2 == 1
        return every
    drawn = np.random.default_rng([seed, 1]).random((draws, stems)) < 0.5
    return np.concatenate([np.zeros((1, stems), dtype=np.bool_), drawn])


def _widen(logits: Sequence[float]) -> list[float]:
    """Replicates, further from their mean.

    Resamples of n numbers vary by (n - 1)/n of what new ones would: half of it with two
    replicates, which would make the floor too low by a third.
    """
    n, middle = len(logits), mean(logits)
    factor = math.sqrt(n / (n - 1))
    return [middle + factor * (logit - middle) for logit in logits]


def _metric(vector: BeliefVector, of: Callable[[Mapping[str, Floats]], Floats]) -> Metric:
    lo, hi = interval(of(vector.prob_replicas))
    value = float(of({lens: _array(prob) for lens, prob in vector.probs.items()}))
    return Metric(value=value, lo=lo, hi=hi)


def _signed_bits(post: Floats, pre: Floats) -> Floats:
    bits: Floats = np.sign(post - pre) * _kl_bits(post, pre)
    return bits


def _kl_bits(p: Floats, q: Floats) -> Floats:
    p = np.clip(p, IG_CLAMP, 1 - IG_CLAMP)
    q = np.clip(q, IG_CLAMP, 1 - IG_CLAMP)
    bits: Floats = p * np.log2(p / q) + (1 - p) * np.log2((1 - p) / (1 - q))
    return bits


def _jensen_shannon(probs: Sequence[Floats]) -> Floats:
    middle = sum(probs[1:], probs[0]) / len(probs)
    entropies = [_entropy_bits(prob) for prob in probs]
    return _entropy_bits(middle) - sum(entropies[1:], entropies[0]) / len(probs)


def _entropy_bits(p: Floats) -> Floats:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    bits: Floats = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return bits


def _array(value: float) -> Floats:
    return np.asarray(value, dtype=np.float64)
