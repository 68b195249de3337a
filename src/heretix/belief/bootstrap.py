"""The two-stage cluster bootstrap, vectorised.

Which random numbers are drawn, in which order and how they are read is part of the frozen
method: it is written at `cluster_bootstrap`, and no block size or speed-up may change it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

TABLE_MAX: Final = 5
"""Templates with up to this many replicates are resampled from a table of all n**n ways: 3,125
numbers for 5, which stay in cache; 6 would need 46,656, far more than a run ever draws of one
template. Frozen: it decides which random numbers are drawn."""

_BLOCK_ROWS: Final = 1024
"""Replicas handled at a time, so that what is in between stays in cache. Measured, not frozen."""


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
    return trimmed_centers(resampled_means(groups, picks, rng), cut)


def plain_bootstrap(values: Floats, *, B: int, rng: np.random.Generator) -> Floats:
    """Means of `B` resamples of `values`, template blind: `rng.integers(0, n, size=(B, n))`."""
    return _drawn_means(values, B, rng)


def draw_templates(rng: np.random.Generator, *, B: int, T: int) -> Indices:
    """First stage: which T templates each of the B replicas holds."""
    return rng.integers(0, T, size=(B, T))


def resampled_means(
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
            means[drawn] = _drawn_means(group, int(np.count_nonzero(drawn)), rng)
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


def _drawn_means(group: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Means of `count` resamples of `group`, index by index."""
    n = len(group)
    indices = rng.integers(0, n, size=(count, n))
    return mean_in_order(group[indices[:, place]] for place in range(n))
