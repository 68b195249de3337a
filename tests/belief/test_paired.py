"""The difference of two beliefs."""

import math

import numpy as np
import pytest
import scipy

from heretix.belief.estimator import cluster_bootstrap, estimate
from heretix.belief.paired import (
    METHOD_PAIRED,
    METHOD_UNPAIRED,
    paired_difference,
    unpaired_difference,
)
from heretix.core.errors import ConfigError, NoEstimateError


def two_sides(rng, *, T=8, R=3, shift=0.5, template_sd=0.8, replicate_sd=0.3):
    """Two measurements that share what each template does to an answer."""
    effects = rng.normal(0, template_sd, size=(T, 1))
    sides = [center + effects + rng.normal(0, replicate_sd, size=(T, R)) for center in (0.0, shift)]
    return [{f"{t:02}": row for t, row in enumerate(side.tolist())} for side in sides]


def naive_sigmoid(x):
    return 1 / (1 + math.exp(-x))


def naive_paired(a, b, *, B, cut, seed):
    """Replicas of both centers, loop by loop, for templates of two or three samples."""
    rng = np.random.default_rng(seed)
    keys = sorted(set(a) & set(b))
    T = len(keys)
    picks = rng.integers(0, T, size=(B, T)).tolist()
    sides = []
    for side in (a, b):
        uniforms = rng.random((B, T)).tolist()
        centers = []
        for row, us in zip(picks, uniforms, strict=True):
            means = []
            for t, u in zip(row, us, strict=True):
                group = sorted(side[keys[t]])
                n = len(group)
                number = math.floor(u * n**n)
                means.append(sum(group[number // n**i % n] for i in range(n)) / n)
            means.sort()
            centers.append(sum(means[cut : T - cut]) / (T - 2 * cut))
        sides.append(centers)
    return sides


def test_equals_the_naive_definition():
    """Templates are drawn once for both sides, replicates for each by itself."""
    for seed in range(30):
        a, b = two_sides(np.random.default_rng(seed), T=2 + seed % 9, R=2 + seed % 2)
        T = len(a)
        cut = int(0.2 * T)
        replicas_a, replicas_b = naive_paired(a, b, B=60, cut=cut, seed=seed)
        in_logit = [y - x for x, y in zip(replicas_a, replicas_b, strict=True)]
        in_prob = [
            naive_sigmoid(y) - naive_sigmoid(x) for x, y in zip(replicas_a, replicas_b, strict=True)
        ]
        got = paired_difference(a, b, seed=seed, B=60)
        expected = [*np.quantile(in_logit, [0.025, 0.975]), *np.quantile(in_prob, [0.025, 0.975])]
        ours = [got.diff_logit_lo, got.diff_logit_hi, got.diff_prob_lo, got.diff_prob_hi]
        assert ours == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert got.p_direction == sum(d > 0 for d in in_logit) / 60
        assert (got.method, got.n_pairs) == (METHOD_PAIRED, T)


@pytest.mark.parametrize("difference", [paired_difference, unpaired_difference])
@pytest.mark.parametrize("center", ["trimmed", "mean"])
def test_sides_are_the_estimates_themselves(difference, center):
    """Each side's belief is what the frozen estimator says of it."""
    a, b = two_sides(np.random.default_rng(1))
    got = difference(a, b, seed=1, B=50, center=center)
    belief_a, belief_b = (estimate(side, seed=1, B=2, center=center) for side in (a, b))
    assert (got.prob_a, got.prob_b) == (belief_a.prob_true, belief_b.prob_true)
    assert got.diff_prob == belief_b.prob_true - belief_a.prob_true
    assert got.diff_logit == belief_b.center_logit - belief_a.center_logit


def test_a_pure_shift_is_found_without_error_when_paired():
    """What the wordings do cancels in pairs, and widens the interval without them."""
    a = {f"{t:02}": [value] for t, value in enumerate([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])}
    b = {key: [logits[0] + 0.5] for key, logits in a.items()}
    paired, unpaired = (f(a, b, seed=1) for f in (paired_difference, unpaired_difference))
    assert (paired.diff_logit_lo, paired.diff_logit_hi) == pytest.approx((0.5, 0.5), abs=1e-12)
    assert paired.p_direction == 1.0
    assert unpaired.diff_logit_lo < 0 < unpaired.diff_logit_hi
    assert unpaired.method == METHOD_UNPAIRED


def test_a_tie_counts_half():
    """Two equal measurements of single samples point nowhere."""
    a = {"x": [0.1], "y": [0.7], "z": [0.4]}
    got = paired_difference(a, a, seed=1, B=100)
    assert (got.p_direction, got.diff_prob, got.diff_prob_lo, got.diff_prob_hi) == (0.5, 0, 0, 0)


def test_direction_is_b_minus_a():
    """A belief that falls has a negative difference."""
    a, b = two_sides(np.random.default_rng(2), shift=-2.0)
    for difference in (paired_difference, unpaired_difference):
        got = difference(a, b, seed=1, B=400)
        assert got.diff_prob < 0
        assert got.diff_prob_hi < 0
        assert got.p_direction == 0.0


def test_only_shared_keys_are_paired():
    """Keys with samples on one side only are left out, and named."""
    a, b = two_sides(np.random.default_rng(3))
    more_a, more_b = a | {"x": [9.0], "late": [9.0]}, b | {"y": [-9.0], "late": []}
    got = paired_difference(more_a, more_b, seed=1, B=50)
    plain = paired_difference(a, b, seed=1, B=50)
    assert (got.only_a, got.only_b) == (("late", "x"), ("y",))
    assert (got.n_pairs, got.diff_prob_lo) == (8, plain.diff_prob_lo)


def test_fewer_than_two_pairs_are_no_estimate():
    """One shared wording says nothing about wordings."""
    with pytest.raises(NoEstimateError, match="got 1 \\(2 on the left, 2 on the right\\)"):
        paired_difference({"a": [0.1], "b": [0.2]}, {"b": [0.1], "c": [0.2]}, seed=1)


def test_fewer_than_two_templates_on_a_side_are_no_estimate():
    """Unpaired sides need wordings of their own."""
    with pytest.raises(NoEstimateError, match="got 2 on the left and 1 on the right"):
        unpaired_difference({"a": [0.1], "b": [0.2]}, {"c": [0.2, 0.3], "d": []}, seed=1)


def test_unpaired_sides_may_differ_in_size():
    """Banks of different sizes can be compared: each is drawn and trimmed by itself, a first."""
    a, _ = two_sides(np.random.default_rng(4), T=5)
    _, b = two_sides(np.random.default_rng(5), T=11, R=7)
    got = unpaired_difference(a, b, seed=1, B=50)
    assert (got.n_templates_a, got.n_templates_b) == (5, 11)
    rng = np.random.default_rng(1)
    sides = [[np.sort(logits) for logits in side.values()] for side in (a, b)]
    replicas_a = cluster_bootstrap(sides[0], B=50, cut=1, rng=rng)
    replicas_b = cluster_bootstrap(sides[1], B=50, cut=2, rng=rng)
    expected = np.quantile(replicas_b - replicas_a, [0.025, 0.975])
    assert (got.diff_logit_lo, got.diff_logit_hi) == tuple(expected)


@pytest.mark.parametrize("difference", [paired_difference, unpaired_difference])
def test_arrival_order_changes_no_difference(difference):
    """The same samples in another order give the same record."""
    a, b = two_sides(np.random.default_rng(6), R=7)
    turned = [{key: side[key][::-1] for key in reversed(side)} for side in (a, b)]
    assert repr(difference(a, b, seed=1, B=30)) == repr(difference(*turned, seed=1, B=30))


@pytest.mark.parametrize("difference", [paired_difference, unpaired_difference])
@pytest.mark.parametrize("options", [{"B": 0}, {"trim": 0.5}, {"seed": -1}, {"center": "x"}])
def test_difference_options_are_checked_at_the_door(difference, options):
    """A bad option is refused by name."""
    a, b = two_sides(np.random.default_rng(7))
    with pytest.raises(ConfigError, match=f"`{next(iter(options))}`"):
        difference(a, b, **({"seed": 1} | options))


def test_far_log_odds_do_not_overflow():
    """Logits beyond any clamp still give probabilities."""
    got = paired_difference({"a": [-900.0], "b": [-901.0]}, {"a": [900.0], "b": [901.0]}, seed=1)
    assert (got.diff_prob_lo, got.diff_prob_hi) == (1.0, 1.0)


def test_pairing_narrows_the_interval_and_keeps_its_promise():
    """Over many measurements paired intervals are much narrower and still hold the truth."""
    rng = np.random.default_rng(8)
    hits, ratios = 0, []
    for seed in range(300):
        a, b = two_sides(rng, T=16, R=2)
        paired = paired_difference(a, b, seed=seed, B=1000)
        unpaired = unpaired_difference(a, b, seed=seed, B=1000)
        hits += paired.diff_logit_lo <= 0.5 <= paired.diff_logit_hi
        ratios.append(
            (paired.diff_prob_hi - paired.diff_prob_lo)
            / (unpaired.diff_prob_hi - unpaired.diff_prob_lo)
        )
    assert np.median(ratios) < 0.6
    assert scipy.stats.binomtest(hits, 300, 0.95, alternative="less").pvalue > 0.01
