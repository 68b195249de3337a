"""The difference of two beliefs, with its interval.

Two measurements over the same templates share what a wording does to an answer. Drawing the
same templates for both sides takes that out of the difference, and narrows its interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.belief.estimator import (
    DEFAULT_B,
    DEFAULT_TRIM,
    Center,
    Templates,
    check_options,
    cluster_bootstrap,
    draw_templates,
    interval,
    mean,
    order_templates,
    resample_means,
    trim_cut,
    trimmed_centers,
    trimmed_mean,
)
from heretix.belief.logodds import Later, sigmoid
from heretix.belief.metrics import sigmoids
from heretix.core.errors import NoEstimateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from heretix.belief.estimator import Floats
else:
    np = Later("numpy")

METHOD_PAIRED: Final = "paired_template_cluster_bootstrap"
METHOD_UNPAIRED: Final = "unpaired_template_cluster_bootstrap"
_MIN_TEMPLATES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Belief b minus belief a, with 95% percentile intervals."""

    method: str
    prob_a: float
    prob_b: float
    diff_prob: float
    diff_prob_lo: float
    diff_prob_hi: float
    diff_logit: float
    diff_logit_lo: float
    diff_logit_hi: float
    p_direction: float
    """Share of replicas in which b lies above a; a tie counts half."""
    B: int
    seed: int
    center: Center
    trim: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference(Difference):
    """Both sides over the same templates."""

    n_pairs: int
    only_a: tuple[str, ...]
    """Keys that had no partner, and were left out."""
    only_b: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedDifference(Difference):
    """A difference whose sides have templates of their own."""

    n_templates_a: int
    n_templates_b: int


def paired_difference(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    *,
    seed: int,
    B: int = DEFAULT_B,
    center: Center = "trimmed",
    trim: float = DEFAULT_TRIM,
) -> PairedDifference:
    """Difference b - a of logits keyed by what pairs them: a template's index or stem.

    Only keys with samples on both sides count. Templates are drawn once and used for both
    sides; then replicates of a, then of b, as in `cluster_bootstrap`.
    """
    check_options(B=B, center=center, trim=trim, seed=seed)
    all_a, all_b = order_templates(a), order_templates(b)
    side_a = {key: logits for key, logits in all_a.items() if key in all_b}
    side_b = {key: logits for key, logits in all_b.items() if key in all_a}
    T = len(side_a)
    if T < _MIN_TEMPLATES:
        raise NoEstimateError(
            f"`pairs`: a paired difference needs samples on both sides of at least "
            f"{_MIN_TEMPLATES} templates, got {T} ({len(all_a)} on the left, {len(all_b)} on the "
            "right); measure both sides with the same templates, or compare them unpaired"
        )
    cut = trim_cut(T, center=center, trim=trim)
    rng = np.random.default_rng(seed)
    picks = draw_templates(rng, B=B, T=T)
    replicas_a = trimmed_centers(resample_means(_arrays(side_a), picks, rng), cut)
    replicas_b = trimmed_centers(resample_means(_arrays(side_b), picks, rng), cut)
    return PairedDifference(
        method=METHOD_PAIRED,
        **_compare(_center(side_a, cut), _center(side_b, cut), replicas_a, replicas_b),
        B=B,
        seed=seed,
        center=center,
        trim=trim,
        n_pairs=T,
        only_a=tuple(key for key in all_a if key not in all_b),
        only_b=tuple(key for key in all_b if key not in all_a),
    )


def unpaired_difference(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    *,
    seed: int,
    B: int = DEFAULT_B,
    center: Center = "trimmed",
    trim: float = DEFAULT_TRIM,
) -> UnpairedDifference:
    """Difference b - a of measurements over different banks: each side is drawn by itself."""
    check_options(B=B, center=center, trim=trim, seed=seed)
    side_a, side_b = order_templates(a), order_templates(b)
    if min(len(side_a), len(side_b)) < _MIN_TEMPLATES:
        raise NoEstimateError(
            f"`templates`: a difference needs samples from at least {_MIN_TEMPLATES} on each "
            f"side, got {len(side_a)} on the left and {len(side_b)} on the right; "
            "measure the shorter side with more templates (T)"
        )
    cut_a = trim_cut(len(side_a), center=center, trim=trim)
    cut_b = trim_cut(len(side_b), center=center, trim=trim)
    rng = np.random.default_rng(seed)
    replicas_a = cluster_bootstrap(_arrays(side_a), B=B, cut=cut_a, rng=rng)
    replicas_b = cluster_bootstrap(_arrays(side_b), B=B, cut=cut_b, rng=rng)
    return UnpairedDifference(
        method=METHOD_UNPAIRED,
        **_compare(_center(side_a, cut_a), _center(side_b, cut_b), replicas_a, replicas_b),
        B=B,
        seed=seed,
        center=center,
        trim=trim,
        n_templates_a=len(side_a),
        n_templates_b=len(side_b),
    )


def _compare(a: float, b: float, replicas_a: Floats, replicas_b: Floats) -> dict[str, float]:
    """Numbers of b - a from the two centers and their replicas, all in log-odds."""
    diff_logits = replicas_b - replicas_a
    logit_lo, logit_hi = interval(diff_logits)
    prob_lo, prob_hi = interval(sigmoids(replicas_b) - sigmoids(replicas_a))
    above = np.count_nonzero(diff_logits > 0) + np.count_nonzero(diff_logits == 0) / 2
    return {
        "prob_a": sigmoid(a),
        "prob_b": sigmoid(b),
        "diff_prob": sigmoid(b) - sigmoid(a),
        "diff_prob_lo": prob_lo,
        "diff_prob_hi": prob_hi,
        "diff_logit": b - a,
        "diff_logit_lo": logit_lo,
        "diff_logit_hi": logit_hi,
        "p_direction": float(above / len(diff_logits)),
    }


def _center(templates: Templates, cut: int) -> float:
    return trimmed_mean(map(mean, templates.values()), cut)


def _arrays(templates: Templates) -> list[Floats]:
    return [np.array(logits) for logits in templates.values()]
