"""The draws of the cluster bootstrap, and what is made of them."""

from itertools import product

import numpy as np
import pytest
import scipy

from heretix.belief.estimator import (
    TABLE_MAX,
    cluster_bootstrap,
    draw_templates,
    mean_in_order,
    plain_bootstrap,
    resample_means,
    trimmed_centers,
)


def ragged_groups(seed, sizes):
    """Sorted logits, one array of each size."""
    rng = np.random.default_rng(seed)
    return [np.sort(rng.normal(size=size)) for size in sizes]


class ChosenDraws:
    """Stands in for a generator: hands out the uniform numbers it was given."""

    def __init__(self, uniforms):
        self.uniforms = uniforms

    def random(self, shape):
        return self.uniforms.reshape(shape).copy()


@pytest.mark.parametrize("n", range(1, TABLE_MAX + 1))
def test_one_uniform_number_reaches_every_resample_once(n):
    """Equal steps through [0, 1) visit all n**n ordered resamples, each a single time."""
    [group] = ragged_groups(n, [n])
    ways = n**n
    uniforms = (np.arange(ways) + 0.5) / ways
    means = resample_means([group], np.zeros((ways, 1), dtype=np.int64), ChosenDraws(uniforms))
    expected = [sum(reversed(way)) / n for way in product(group.tolist(), repeat=n)]
    np.testing.assert_allclose(means[:, 0], expected, rtol=1e-14)


@pytest.mark.parametrize("n", range(1, TABLE_MAX + 1))
def test_the_largest_uniform_number_stays_in_its_template(n):
    """Rounding never carries the last entry of one table into the next."""
    groups = [np.arange(n, dtype=float), np.full(n, 100.0)]
    last = np.array([1 - 2**-53])
    means = resample_means(groups, np.zeros((1, 1), dtype=np.int64), ChosenDraws(last))
    assert means.item() == n - 1


@pytest.mark.parametrize("sizes", [[2] * 16, [1, 2, 3, 4, 5, 6, 7], [9], [6, 6, 1]])
@pytest.mark.parametrize("block_rows", [1, 7, 64, 1000])
def test_block_size_changes_nothing(sizes, block_rows):
    """Any block size gives the same centers, bit for bit."""
    groups = ragged_groups(3, sizes)
    cut = 1 if len(sizes) > 2 else 0
    expected = cluster_bootstrap(groups, B=300, cut=cut, rng=np.random.default_rng(8))
    rng = np.random.default_rng(8)
    picks = draw_templates(rng, B=300, T=len(sizes))
    means = resample_means(groups, picks, rng, block_rows=block_rows)
    np.testing.assert_array_equal(trimmed_centers(means, cut, block_rows=block_rows), expected)


def test_the_default_block_is_smaller_than_a_run():
    """A run of many blocks equals the same run in one block."""
    groups = ragged_groups(4, [2, 3, 6, 2])
    expected = cluster_bootstrap(groups, B=5000, cut=1, rng=np.random.default_rng(5))
    rng = np.random.default_rng(5)
    picks = draw_templates(rng, B=5000, T=4)
    means = resample_means(groups, picks, rng, block_rows=5000)
    np.testing.assert_array_equal(trimmed_centers(means, 1, block_rows=5000), expected)


@pytest.mark.parametrize("sizes", [[3, 3, 3, 3], [2, 1, 4, 8], [7, 9]])
def test_spread_of_the_replicas_is_what_theory_says(sizes):
    """Untrimmed, the variance is (between + mean of within/n) / T, population variances."""
    groups = ragged_groups(11, sizes)
    centers = cluster_bootstrap(groups, B=100_000, cut=0, rng=np.random.default_rng(1))
    means = np.array([group.mean() for group in groups])
    within = np.mean([group.var() / len(group) for group in groups])
    assert centers.mean() == pytest.approx(means.mean(), abs=0.01)
    assert centers.var() == pytest.approx((means.var() + within) / len(sizes), rel=0.02)


def test_both_ways_of_drawing_have_one_distribution():
    """Five replicates resampled from the table look as they do resampled index by index."""
    values = np.sort(np.random.default_rng(2).normal(size=5))
    by_table = resample_means(
        [values], np.zeros((20_000, 1), dtype=np.int64), np.random.default_rng(3)
    )
    by_index = plain_bootstrap(values, B=20_000, rng=np.random.default_rng(4))
    assert scipy.stats.ks_2samp(by_table[:, 0], by_index).pvalue > 0.01


def test_plain_bootstrap_is_the_mean_of_the_drawn_values():
    """Each replica averages n indices drawn with replacement."""
    values = np.sort(np.random.default_rng(6).normal(size=11))
    indices = np.random.default_rng(7).integers(0, 11, size=(40, 11))
    expected = [sum(values[i] for i in row) / 11 for row in indices]
    replicas = plain_bootstrap(values, B=40, rng=np.random.default_rng(7))
    np.testing.assert_allclose(replicas, expected, rtol=1e-13)


@pytest.mark.parametrize(("T", "cut"), [(1, 0), (4, 0), (5, 1), (16, 3), (17, 8)])
def test_trimmed_centers_agree_with_scipy(T, cut):
    """Row by row, the center is scipy's trimmed mean."""
    means = np.random.default_rng(T).normal(size=(50, T))
    # A quarter of a template more keeps scipy's own rounding down from falling below `cut`.
    expected = scipy.stats.trim_mean(means, (cut + 0.25) / T, axis=1)
    np.testing.assert_allclose(trimmed_centers(means.copy(), cut), expected, rtol=1e-13)


def test_mean_in_order_adds_from_the_first_to_the_last():
    """A small number added before a large one survives; added after, it is lost."""
    big, small = np.array([1e16]), np.array([1.0])
    assert mean_in_order([small, small, big]).item() == (1.0 + 1.0 + 1e16) / 3
    assert mean_in_order([big, small, small]).item() == 1e16 / 3
    assert big.item() == 1e16, "the terms are left as they were"
