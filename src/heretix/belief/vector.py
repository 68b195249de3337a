"""Several beliefs about one claim, measured with the same stems: one bootstrap for all of them.

Stems are drawn once and used for every lens, so what the wordings share cancels out of any
difference between lenses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from heretix.belief.bootstrap import Floats, draw_templates, resampled_means, trimmed_centers
from heretix.belief.estimator import (
    DEFAULT_B,
    DEFAULT_TRIM,
    Center,
    check_options,
    mean,
    order_templates,
    trim_cut,
    trimmed_mean,
)
from heretix.belief.logodds import sigmoid
from heretix.core.errors import NoEstimateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIN_STEMS: Final = 8
"""Fewer shared stems give no interval for a difference between lenses."""


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
        """By lens: the belief."""
        return {lens: sigmoid(center) for lens, center in self.centers.items()}

    @cached_property
    def prob_replicas(self) -> dict[str, Floats]:
        """By lens: the replicas, as probabilities."""
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
        replicas[lens] = trimmed_centers(resampled_means(groups, picks, rng), cut)
    return BeliefVector(
        stems=tuple(shared), means=means, centers=centers, replicas=replicas, cut=cut, seed=seed
    )


def sigmoids(logits: Floats) -> Floats:
    """Probabilities of an array of log-odds; `tanh` can't overflow."""
    probs: Floats = 0.5 + 0.5 * np.tanh(0.5 * logits)
    return probs
