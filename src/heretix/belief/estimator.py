"""The frozen estimator: compliant logits grouped by template in, one `Estimate` out.

Nothing here may change the numbers it gives. New statistics stand beside it, in modules and
under names of their own. Below it is its two-stage cluster bootstrap, vectorised: which random
numbers are drawn, in which order and how they are read is part of the frozen method. It is written
at `cluster_bootstrap`, and no block size or speed-up may change it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, get_args

from heretix.belief.logodds import Later, sigmoid
from heretix.core.errors import ConfigError, NoEstimateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]
else:
    np = Later("numpy")

Center = Literal["trimmed", "mean"]
Agg = Literal["clustered", "simple"]
Band = Literal["high", "medium", "low"]
Templates = dict[str, tuple[float, ...]]
"""Logits by template, as `order_templates` leaves them: the one order everything starts from."""

METHOD: Final = "equal_by_template_cluster_bootstrap_trimmed"
METHOD_MEAN: Final = "equal_by_template_cluster_bootstrap_mean"
"""`center="mean"`: nothing is trimmed, so the frozen name would be untrue."""
METHOD_SIMPLE: Final = "simple_mean_bootstrap_legacy"

DEFAULT_B: Final = 5000
DEFAULT_B_SIMPLE: Final = 2000
DEFAULT_TRIM: Final = 0.2
MIN_SAMPLES: Final = 3

TABLE_MAX: Final = 5
"""Templates with up to this many replicates are resampled from a table of all n**n ways: 3,125
numbers for 5, which stay in cache; 6 would need 46,656, far more than a run ever draws of one
template. Frozen: it decides which random numbers are drawn."""

_BLOCK_ROWS: Final = 1024
"""Replicas handled at a time, so that what is in between stays in cache. Measured, not frozen."""

_SEED_LIMIT: Final = 2**64
_CI_LEVELS: Final = (0.025, 0.975)
_IQR_LEVELS: Final = (0.25, 0.75)
_HIGH_IQR: Final = 0.05
_MEDIUM_IQR: Final = 0.30
_STABLE_WIDTH: Final = 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One belief with its interval and stability; all in probability unless named `logit`."""

    method: str
    prob_true: float
    center_logit: float
    ci_lo: float
    ci_hi: float
    ci_width: float
    stability_score: float
    stability_band: Band
    is_stable: bool
    template_iqr_logit: float
    """Q75 - Q25 of the template means. One template has no spread: 0, and says nothing."""
    imbalance_ratio: float
    n_samples: int
    n_templates: int
    counts_by_template: dict[str, int]
    B: int
    seed: int
    center: Center
    """`center` and `trim` as asked, for the seed is derived from them; `agg="simple"` uses
    neither and `center="mean"` no trim, as `method` says."""
    trim: float
    agg: Agg


def estimate(
    logits_by_template: Mapping[str, Sequence[float]],
    *,
    seed: int,
    B: int | None = None,
    center: Center = "trimmed",
    trim: float = DEFAULT_TRIM,
    agg: Agg = "clustered",
    min_samples: int = MIN_SAMPLES,
    planned_templates: int | None = None,
) -> Estimate:
    """Estimate a belief from the compliant logits of each template, given in any order.

    Empty templates are dropped. `B` None means 5,000 replicas, 2,000 with `agg="simple"`: the
    legacy comparison, one mean over all samples with templates ignored. `planned_templates` None
    means the keys given, empty ones included; with one planned, the interval comes from its
    replicates alone. Raises `ConfigError` for an option or logit out of range, `NoEstimateError`
    when too little came back.
    """
    if B is None:
        B = DEFAULT_B_SIMPLE if agg == "simple" else DEFAULT_B
    if planned_templates is None:
        planned_templates = max(1, len(logits_by_template))
    check_options(B=B, center=center, trim=trim, seed=seed)
    _check_choice("agg", agg, get_args(Agg))
    _check_count("min_samples", min_samples)
    _check_count("planned_templates", planned_templates)
    templates = order_templates(logits_by_template)
    _require_enough(templates, min_samples=min_samples, planned=planned_templates)

    rng = np.random.default_rng(seed)
    if agg == "simple":
        method = METHOD_SIMPLE
        center_logit, replicas = _bootstrap_simple(templates, B=B, rng=rng)
    else:
        method = METHOD if center == "trimmed" else METHOD_MEAN
        cut = trim_cut(len(templates), center=center, trim=trim)
        center_logit, replicas = _bootstrap_clustered(templates, B=B, cut=cut, rng=rng)
    ci_lo, ci_hi = map(sigmoid, interval(replicas))
    iqr = _template_iqr(templates)
    counts = {template: len(logits) for template, logits in templates.items()}
    return Estimate(
        method=method,
        prob_true=sigmoid(center_logit),
        center_logit=center_logit,
        ci_lo=ci_lo,
        ci_hi=ci_hi,
        ci_width=ci_hi - ci_lo,
        stability_score=1.0 / (1.0 + iqr),
        stability_band=stability_band(iqr),
        is_stable=is_stable_width(ci_hi - ci_lo),
        template_iqr_logit=iqr,
        imbalance_ratio=max(counts.values()) / min(counts.values()),
        n_samples=sum(counts.values()),
        n_templates=len(counts),
        counts_by_template=counts,
        B=B,
        seed=seed,
        center=center,
        trim=trim,
        agg=agg,
    )


def _bootstrap_clustered(
    templates: Templates, *, B: int, cut: int, rng: np.random.Generator
) -> tuple[float, Floats]:
    """Center and bootstrap replicas of it, every template weighing the same."""
    groups = [np.array(logits) for logits in templates.values()]
    center = trimmed_mean(map(mean, templates.values()), cut)
    return center, cluster_bootstrap(groups, B=B, cut=cut, rng=rng)


def _bootstrap_simple(
    templates: Templates, *, B: int, rng: np.random.Generator
) -> tuple[float, Floats]:
    """Center and bootstrap replicas of it, every sample weighing the same."""
    pooled = sorted(logit for logits in templates.values() for logit in logits)
    return mean(pooled), plain_bootstrap(np.array(pooled), B=B, rng=rng)


def _template_iqr(templates: Templates) -> float:
    q25, q75 = np.quantile([mean(logits) for logits in templates.values()], _IQR_LEVELS)
    return float(q75 - q25)


def order_templates(logits_by_template: Mapping[str, Sequence[float]]) -> Templates:
    """Templates by hash, the logits of each by value: arrival order is forgotten here.

    Templates without logits are dropped; a logit that isn't finite is refused.
    """
    templates: Templates = {}
    for template in sorted(logits_by_template):
        # Adding zero turns -0.0 into 0.0: the two compare equal, so sorting would leave them
        # in the order of arrival.
        logits = tuple(sorted(float(logit) + 0.0 for logit in logits_by_template[template]))
        # NaN compares false with everything and may end up anywhere, so each is looked at.
        for logit in logits:
            if not math.isfinite(logit):
                raise ConfigError(
                    f"`logits_by_template` must hold finite numbers, got {logit} for template "
                    f"{template!r}; drop samples that aren't compliant first"
                )
        if logits:
            templates[template] = logits
    return templates


def mean(values: Iterable[float]) -> float:
    """Mean of `values`, added in the order given.

    The built-in `sum` rounds differently from Python 3.12 on; a frozen number can't.
    """
    total, count = 0.0, 0
    for value in values:
        total += value
        count += 1
    return total / count


def trim_cut(T: int, *, center: Center, trim: float) -> int:
    """Number of `T` template means to drop from each end."""
    return int(trim * T) if center == "trimmed" else 0


def trimmed_mean(values: Iterable[float], cut: int) -> float:
    """Mean of `values` without the `cut` lowest and the `cut` highest, added smallest first."""
    ordered = sorted(values)
    return mean(ordered[cut : len(ordered) - cut])


def interval(replicas: Floats) -> tuple[float, float]:
    """2.5th and 97.5th percentiles of bootstrap replicas, interpolated linearly."""
    lo, hi = np.quantile(replicas, _CI_LEVELS)
    return float(lo), float(hi)


def stability_band(iqr_logit: float) -> Band:
    """Name of a spread between templates; borders belong to the steadier band."""
    if iqr_logit <= _HIGH_IQR:
        return "high"
    return "medium" if iqr_logit <= _MEDIUM_IQR else "low"


def is_stable_width(ci_width: float) -> bool:
    """Tell whether an interval, in probability, is narrow enough to be called stable."""
    return ci_width <= _STABLE_WIDTH


def check_options(*, B: int, center: str, trim: float, seed: int) -> None:
    """Refuse what no bootstrap of a center accepts."""
    _check_count("B", B)
    check_center(center=center, trim=trim)
    if not _is_whole(seed) or not 0 <= seed < _SEED_LIMIT:
        raise ConfigError(f"`seed` must be an integer from 0 to 2**64 - 1, got {seed!r}")


def check_center(*, center: str, trim: float) -> None:
    """Refuse a center that doesn't exist or that would trim everything away."""
    _check_choice("center", center, get_args(Center))
    if not 0 <= trim < 0.5:  # NaN fails both comparisons, and lands here too
        raise ConfigError(
            f"`trim` must be at least 0 and less than 0.5, got {trim!r}; "
            "half or more from each end would leave nothing"
        )


def _check_count(name: str, value: int) -> None:
    if not _is_whole(value) or value < 1:
        raise ConfigError(f"`{name}` must be a positive integer, got {value!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"`{name}` must be one of {', '.join(choices)}; got {value!r}")


def _require_enough(templates: Templates, *, min_samples: int, planned: int) -> None:
    n_samples, T = sum(len(logits) for logits in templates.values()), len(templates)
    counts = {"needed": min_samples, "got": n_samples, "templates": T, "planned": planned}
    got = f"got {n_samples} from {T} of {planned} templates"
    remedy = "see why the others were dropped, then sample again or raise K or R"
    if n_samples < min_samples:
        raise NoEstimateError(
            f"`samples`: an estimate needs at least {min_samples} compliant ones, {got}; {remedy}",
            code="too_few_samples",
            **counts,
        )
    if T == 1 and planned > 1:
        raise NoEstimateError(
            "`templates`: an estimate needs compliant samples from at least 2 when more than one "
            f"was planned, {got}; {remedy}",
            code="one_template",
            **counts,
        )


# The bootstrap.


def cluster_bootstrap(
    groups: Sequence[Floats], *, B: int, cut: int, rng: np.random.Generator
) -> Floats:
    """Centers of `B` replicas of the templates in `groups`, in log-odds.

    With T templates, the t-th holding n_t logits sorted by value, the draws are:

    1. `rng.integers(0, T, size=(B, T))`: the templates of each replica.
    2. `rng.random((B, T))`: one number u for each of those. Where n_t <= `TABLE_MAX`, it picks
       one of the n_t**n_t equally likely ordered resamples: the base-n_t digits of
       `floor(u * n_t**n_t)`, lowest first, are the n_t indices drawn.
    3. For each template with n_t > `TABLE_MAX`, in order: `rng.integers(0, n_t, size=(m, n_t))`,
       a row of indices for each of the m times it was drawn, replica by replica.

    The logits of a resample are added in the order drawn and divided by n_t. The T means of a
    replica are sorted, `cut` dropped from each end, the rest added smallest first and divided.
    """
    picks = draw_templates(rng, B=B, T=len(groups))
    return trimmed_centers(resample_means(groups, picks, rng), cut)


def plain_bootstrap(values: Floats, *, B: int, rng: np.random.Generator) -> Floats:
    """Means of `B` resamples of `values`, template blind: `rng.integers(0, n, size=(B, n))`."""
    return _draw_means(values, B, rng)


def draw_templates(rng: np.random.Generator, *, B: int, T: int) -> Indices:
    """First stage: which T templates each of the B replicas holds."""
    return rng.integers(0, T, size=(B, T))


def resample_means(
    groups: Sequence[Floats],
    picks: Indices,
    rng: np.random.Generator,
    *,
    block_rows: int = _BLOCK_ROWS,
) -> Floats:
    """Second stage: for each template in `picks`, the mean of its replicates drawn anew."""
    means = rng.random(picks.shape)
    # A long group has one entry for a table, overwritten below: the look-up needs no exceptions.
    tables = [_table(group) if len(group) <= TABLE_MAX else group[:1] for group in groups]
    lengths = np.array([len(table) for table in tables])
    starts = np.cumsum(lengths) - lengths
    table = np.concatenate(tables)
    for first in range(0, len(picks), block_rows):
        rows = slice(first, first + block_rows)
        entries = (means[rows] * lengths[picks[rows]]).astype(np.int64)
        entries += starts[picks[rows]]
        # The uniform numbers aren't needed again: their place holds what they picked.
        means[rows] = table[entries]
    for t, group in enumerate(groups):
        if len(group) > TABLE_MAX:
            drawn = picks == t
            means[drawn] = _draw_means(group, int(np.count_nonzero(drawn)), rng)
    return means


def trimmed_centers(means: Floats, cut: int, *, block_rows: int = _BLOCK_ROWS) -> Floats:
    """Mean of each row of `means` without its `cut` lowest and highest. Sorts `means` in place."""
    B, T = means.shape
    centers = np.empty(B)
    for first in range(0, B, block_rows):
        block = means[first : first + block_rows]
        # A full sort of short rows is vectorised in NumPy; `partition` at two places is not
        # and took seven times as long.
        block.sort(axis=1)
        centers[first : first + block_rows] = mean_in_order(block.T[cut : T - cut])
    return centers


def mean_in_order(terms: Iterable[Floats]) -> Floats:
    """Mean of equally long arrays, added one after the other.

    NumPy's own sum splits long reductions in a way that depends on shape and layout; the order
    of addition decides the last bit, so here it is fixed.
    """
    total, *rest = terms
    total = total.copy()
    for term in rest:
        total += term
    total /= 1 + len(rest)
    return total


def _table(group: Floats) -> Floats:
    """Means of all n**n ordered resamples of `group`, entry i holding that of the digits of i."""
    return mean_in_order(group[_digits(len(group))])


@cache
def _digits(n: int) -> Indices:
    """Base-`n` digits of 0 .. n**n - 1, one row a place, lowest first."""
    numbers = np.arange(n**n)
    return np.stack([numbers // n**place % n for place in range(n)])


def _draw_means(group: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Means of `count` resamples of `group`, index by index."""
    n = len(group)
    indices = rng.integers(0, n, size=(count, n))
    return mean_in_order(group[indices[:, place]] for place in range(n))
