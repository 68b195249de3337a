"""The frozen estimator, against a naive definition, theory and pinned numbers."""

import dataclasses
import math
import random

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from heretix.belief.estimator import (
    METHOD,
    METHOD_MEAN,
    METHOD_SIMPLE,
    cluster_bootstrap,
    estimate,
    interval,
    is_stable_width,
    order_templates,
    stability_band,
    trim_cut,
    trimmed_mean,
)
from heretix.core.errors import ConfigError, NoEstimateError

PINNED = {
    "c0ffee": [0.847298, 0.405465],
    "0ddba11": [1.265666, 0.895384, 1.548813],
    "facade": [-0.322773],
    "beaded": [0.241162, 0.040005, 0.364643, 0.160343, -0.120144, 0.323867],
    "decade": [0.708185, 0.663294],
    "efface": [2.090741, 1.386294, 0.619039, 1.045969],
    "ba5eba11": [0.489548, 0.800119, 0.753772, 0.200671, 0.944462],
}


def bank(*means):
    """One template for each mean, two equal samples in each."""
    return {f"t{i:02}": [value, value] for i, value in enumerate(means)}


def random_dataset(rng, *, T, max_n):
    """Ragged logits under hashes that aren't in order."""
    return {
        f"{rng.getrandbits(64):016x}": [rng.gauss(0.4, 1.3) for _ in range(rng.randint(1, max_n))]
        for _ in range(T)
    }


def naive_replicas(groups, *, B, cut, seed):
    """The bootstrap replica by replica, in plain Python, from the documented draws."""
    rng = np.random.default_rng(seed)
    T = len(groups)
    picks = rng.integers(0, T, size=(B, T)).tolist()
    uniforms = rng.random((B, T)).tolist()
    long_rows = {}
    for t, group in enumerate(groups):
        if len(group) > 5:
            times = sum(row.count(t) for row in picks)
            rows = rng.integers(0, len(group), size=(times, len(group)))
            long_rows[t] = iter(rows.tolist())
    centers = []
    for row, us in zip(picks, uniforms, strict=True):
        drawn = []
        for t, u in zip(row, us, strict=True):
            group = groups[t]
            n = len(group)
            if n > 5:
                indices = next(long_rows[t])
            else:
                number = math.floor(u * n**n)
                indices = [number // n**place % n for place in range(n)]
            drawn.append(naive_mean([group[i] for i in indices]))
        drawn.sort()
        centers.append(naive_mean(drawn[cut : T - cut]))
    return centers


def naive_mean(values):
    """Left to right."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def naive_quantile(values, q):
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def naive_sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_equals_the_naive_definition_on_a_thousand_ragged_datasets():
    """Replicas agree bit for bit, and all that is made of them to rounding."""
    rng = random.Random(20261101)
    for number in range(1000):
        T = 1 + number % 17
        data = random_dataset(rng, T=T, max_n=7)
        if sum(map(len, data.values())) < 3:
            next(iter(data.values())).extend([0.1, 0.2])
        B, seed = rng.randint(20, 50), rng.getrandbits(64)
        center = rng.choice(["trimmed", "trimmed", "mean"])
        trim = rng.choice([0.2, 0.2, 0.0, 0.1, 0.4])
        cut = int(trim * T) if center == "trimmed" else 0
        groups = [sorted(data[key]) for key in sorted(data)]
        means = [naive_mean(group) for group in groups]
        replicas = naive_replicas(groups, B=B, cut=cut, seed=seed)

        arrays = [np.array(group) for group in groups]
        ours = cluster_bootstrap(arrays, B=B, cut=cut, rng=np.random.default_rng(seed))
        assert ours.tolist() == replicas

        got = estimate(data, B=B, seed=seed, center=center, trim=trim)
        middle = naive_mean(sorted(means)[cut : T - cut])
        lo, hi = (naive_sigmoid(naive_quantile(replicas, q)) for q in (0.025, 0.975))
        iqr = naive_quantile(means, 0.75) - naive_quantile(means, 0.25)
        assert got.center_logit == middle
        assert got.prob_true == pytest.approx(naive_sigmoid(middle), rel=1e-12)
        assert got.ci_lo == pytest.approx(lo, rel=1e-12)
        assert got.ci_hi == pytest.approx(hi, rel=1e-12)
        assert got.ci_width == pytest.approx(hi - lo, rel=1e-9, abs=1e-12)
        assert got.template_iqr_logit == pytest.approx(iqr, rel=1e-9, abs=1e-12)
        assert got.stability_score == pytest.approx(1 / (1 + iqr), rel=1e-12)
        assert got.is_stable == (hi - lo <= 0.2)
        assert got.counts_by_template == {key: len(data[key]) for key in data}
        assert (got.n_samples, got.n_templates) == (sum(map(len, groups)), T)
        sizes = [len(group) for group in groups]
        assert got.imbalance_ratio == max(sizes) / min(sizes)


def test_pinned_numbers_of_the_frozen_estimator():
    """These digits may never change: a record made today must verify for good."""
    got = estimate(PINNED, seed=10572428983809627848)
    assert got.method == "equal_by_template_cluster_bootstrap_trimmed"
    assert (got.B, got.center, got.trim, got.agg) == (5000, "trimmed", 0.2, "clustered")
    groups = [np.array(logits) for logits in order_templates(PINNED).values()]
    replicas = cluster_bootstrap(groups, B=5000, cut=1, rng=np.random.default_rng(got.seed))
    assert got.center_logit == 0.6709538133333333
    assert interval(replicas) == (0.16180673083333333, 1.0468888121666666)
    assert got.template_iqr_logit == 0.5638331666666666
    # Probabilities pass through the platform's `exp`, whose last bit may differ.
    assert got.prob_true == pytest.approx(0.6617167010541685, rel=1e-15)
    assert got.ci_lo == pytest.approx(0.5403636562984788, rel=1e-15)
    assert got.ci_hi == pytest.approx(0.7401770183346588, rel=1e-15)
    assert got.ci_width == pytest.approx(0.19981336203617994, rel=1e-14)
    assert got.stability_score == 0.6394544004534158
    assert got.imbalance_ratio == 6.0


def test_pinned_numbers_of_the_legacy_aggregation():
    """The comparison stays comparable."""
    got = estimate(PINNED, seed=42, agg="simple")
    assert (got.method, got.B) == ("simple_mean_bootstrap_legacy", 2000)
    assert got.center_logit == 0.6674705652173912
    assert got.ci_lo == pytest.approx(0.6095526337354075, rel=1e-15)
    assert got.ci_hi == pytest.approx(0.7117025154741689, rel=1e-15)


logits = st.floats(-13.9, 13.9)


@given(
    data=st.dictionaries(
        st.text("0123456789abcdef", min_size=4, max_size=6),
        st.lists(logits, min_size=1, max_size=7),
        min_size=2,
        max_size=9,
    ).filter(lambda data: sum(map(len, data.values())) >= 3),
    shuffle=st.randoms(use_true_random=False),
    agg=st.sampled_from(["clustered", "simple"]),
)
@settings(max_examples=200)
def test_arrival_order_changes_nothing(data, shuffle, agg):
    """The same samples in any order give the same record, to the last bit."""
    keys = list(data)
    shuffle.shuffle(keys)
    shuffled = {key: shuffle.sample(data[key], len(data[key])) for key in keys}
    first = estimate(data, B=40, seed=9, agg=agg)
    second = estimate(shuffled, B=40, seed=9, agg=agg)
    assert repr(first) == repr(second)


def test_negative_zero_is_zero():
    """The two zeros compare equal, so a sort would leave them as they came."""
    first, second = (
        order_templates({"a": [0.0, -0.0, 1.0]}),
        order_templates({"a": [-0.0, 0.0, 1.0]}),
    )
    assert repr(first) == repr(second)


@pytest.mark.parametrize("T", range(1, 18))
@pytest.mark.parametrize("trim", [0.0, 0.1, 0.2, 0.25, 0.49])
def test_trimmed_mean_agrees_with_scipy(T, trim):
    """As many are dropped, and the same ones, as by `scipy.stats.trim_mean`."""
    values = np.random.default_rng(T).normal(size=T).tolist()
    cut = trim_cut(T, center="trimmed", trim=trim)
    assert trimmed_mean(values, cut) == pytest.approx(
        scipy.stats.trim_mean(values, trim), rel=1e-13
    )


def test_five_templates_drop_the_lowest_and_the_highest():
    """One flaky wording at either end doesn't move the center."""
    calm = estimate(bank(0.1, 0.2, 0.3, 0.4, 0.5), seed=1, B=10)
    flaky = estimate(bank(-9.0, 0.2, 0.3, 0.4, 9.0), seed=1, B=10)
    assert calm.center_logit == flaky.center_logit == pytest.approx(0.3)


@pytest.mark.parametrize("means", [[0.0, 5.0], [0.0, 1.0, 5.0], [0.0, 1.0, 2.0, 9.0]])
def test_under_five_templates_is_the_plain_mean(means):
    """Nothing is trimmed when a fifth of the templates is less than one."""
    got = estimate(bank(*means), seed=1, B=10)
    assert got.center_logit == pytest.approx(sum(means) / len(means))


def test_templates_weigh_the_same_however_many_samples_they_have():
    """A template sampled ten times doesn't outweigh one sampled once, unless `agg` is simple."""
    data = {"a": [0.0], "b": [1.0] * 10}
    assert estimate(data, seed=1, B=10).center_logit == 0.5
    assert estimate(data, seed=1, B=10, agg="simple").center_logit == pytest.approx(10 / 11)


def test_methods_carry_the_names_of_what_was_done():
    """The frozen name is kept for the frozen method."""
    data = bank(0.1, 0.2, 0.4)
    assert estimate(data, seed=1, B=5).method == METHOD
    assert estimate(data, seed=1, B=5, center="mean").method == METHOD_MEAN
    assert estimate(data, seed=1, B=5, agg="simple").method == METHOD_SIMPLE


def test_center_mean_trims_nothing():
    """With `center="mean"` the ends count."""
    data = bank(0.0, 0.0, 0.0, 0.0, 5.0)
    assert estimate(data, seed=1, B=5, center="mean").center_logit == 1.0
    assert estimate(data, seed=1, B=5).center_logit == 0.0


def test_equal_samples_have_an_interval_of_one_point():
    """When nothing varies, interval and center are one number, to the last bit."""
    got = estimate({f"t{i}": [0.1] * 3 for i in range(7)}, seed=3)
    assert got.ci_lo == got.prob_true == got.ci_hi
    assert (got.ci_width, got.template_iqr_logit, got.stability_score) == (0.0, 0.0, 1.0)


def test_one_planned_template_has_its_interval_from_replicates():
    """With T=1 the replicates alone are resampled."""
    data = {"a": [0.1, 0.9, 0.4, 0.2, 0.6, 0.8]}
    got = estimate(data, seed=4, B=3000, planned_templates=1)
    exact = np.array(data["a"])
    half = 1.96 * exact.std() / math.sqrt(6)
    assert got.ci_lo == pytest.approx(naive_sigmoid(exact.mean() - half), abs=0.01)
    assert got.ci_hi == pytest.approx(naive_sigmoid(exact.mean() + half), abs=0.01)
    assert got.n_templates == 1


@pytest.mark.parametrize("agg", ["clustered", "simple"])
def test_one_template_left_of_many_is_no_estimate(agg):
    """An interval that can't see the wordings isn't given."""
    with pytest.raises(NoEstimateError, match="got 4 from 1 of 8 templates"):
        estimate({"a": [0.1, 0.2, 0.3, 0.4]}, seed=1, planned_templates=8, agg=agg)


def test_an_empty_template_counts_as_planned():
    """Without a plan at hand, a template that came back empty shows that there were more."""
    with pytest.raises(NoEstimateError, match="1 of 2 templates"):
        estimate({"a": [0.1, 0.2, 0.3], "b": []}, seed=1)


def test_empty_templates_are_dropped():
    """A template without samples neither counts nor divides by zero."""
    data = bank(0.1, 0.2)
    assert estimate(data | {"zz": []}, seed=1, B=9) == estimate(data, seed=1, B=9)


@pytest.mark.parametrize("data", [{}, {"a": []}, {"a": [0.1], "b": [0.2]}])
def test_fewer_than_three_samples_are_no_estimate(data):
    """Two numbers make no interval; the message says how many there were."""
    count = sum(map(len, data.values()))
    with pytest.raises(NoEstimateError, match=f"at least 3 compliant ones, got {count} from"):
        estimate(data, seed=1)


def test_three_samples_over_two_templates_are_enough():
    """The rule's own border."""
    assert estimate({"a": [0.1], "b": [0.2, 0.3]}, seed=1, B=9).n_samples == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"B": 0}, "`B` must be a positive integer, got 0"),
        ({"B": 10.0}, "`B` must be a positive integer, got 10.0"),
        ({"B": True}, "`B` must be a positive integer, got True"),
        ({"trim": -0.1}, "`trim` must be at least 0 and less than 0.5, got -0.1"),
        ({"trim": 0.5}, "`trim` must be at least 0 and less than 0.5, got 0.5"),
        ({"trim": math.nan}, "`trim` must be at least 0 and less than 0.5, got nan"),
        ({"seed": -1}, "`seed` must be an integer from 0"),
        ({"seed": 2**64}, "`seed` must be an integer from 0"),
        ({"seed": 1.0}, "`seed` must be an integer from 0"),
        ({"center": "median"}, "`center` must be one of trimmed, mean; got 'median'"),
        ({"agg": "none"}, "`agg` must be one of clustered, simple; got 'none'"),
        ({"min_samples": 0}, "`min_samples` must be a positive integer, got 0"),
        ({"planned_templates": 0}, "`planned_templates` must be a positive integer, got 0"),
    ],
)
def test_options_are_checked_at_the_door(options, message):
    """A bad option is named with its rule and its value."""
    with pytest.raises(ConfigError) as caught:
        estimate(bank(0.1, 0.2), **({"seed": 1} | options))
    assert message in str(caught.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_must_be_finite(bad):
    """A logit that isn't a number is refused, with its template."""
    with pytest.raises(ConfigError, match=r"finite numbers, got .* for template 'b'"):
        estimate({"a": [0.1, 0.2], "b": [0.3, bad, 0.1]}, seed=1)


def test_the_widest_seed_is_accepted():
    """Seeds fill 64 bits."""
    assert estimate(bank(0.1, 0.2), seed=2**64 - 1, B=5).seed == 2**64 - 1


def test_extreme_logits_are_survived():
    """Answers of flat 0 and 1, clamped, give an interval over the whole range."""
    got = estimate(bank(-13.8, 13.8, -13.8, 13.8), seed=1)
    assert got.prob_true == 0.5
    assert 0 < got.ci_lo < 1e-5
    assert 1 - 1e-5 < got.ci_hi < 1


def test_the_record_holds_plain_python_values():
    """Nothing of NumPy leaks into what becomes JSON."""
    data = {key: [np.float64(value) for value in values] for key, values in PINNED.items()}
    got = estimate(data, seed=1, B=20)
    kinds = {type(value) for value in dataclasses.astuple(got)}
    assert kinds == {str, float, int, bool, dict}
    assert list(got.counts_by_template) == sorted(PINNED)


@pytest.mark.parametrize(
    ("spread", "band"),
    [
        (0.0, "high"),
        (0.05, "high"),
        (math.nextafter(0.05, 1), "medium"),
        (0.30, "medium"),
        (math.nextafter(0.30, 1), "low"),
    ],
)
def test_bands_hold_their_borders(spread, band):
    """A spread of exactly 0.05 is still high, one of exactly 0.30 still medium."""
    assert stability_band(spread) == band
    # Of five templates the quartiles are the second and the fourth, so the spread is exact.
    got = estimate(bank(-1.0, 0.0, spread / 2, spread, 2.0), seed=1, B=5)
    assert got.template_iqr_logit == spread
    assert got.stability_band == band


def test_a_width_of_exactly_a_fifth_is_stable():
    """The border belongs to the stable side."""
    assert is_stable_width(0.20)
    assert not is_stable_width(math.nextafter(0.20, 1))


def coverage(rng, *, sims, agg, template_sd=0.6, replicate_sd=0.4, center=0.3):
    """How many nominal 95% intervals hold the true center, at T=16, R=2, B=2000."""
    truth = naive_sigmoid(center)
    hits = 0
    for seed in range(sims):
        effects = rng.normal(0, template_sd, size=(16, 1))
        draws = center + effects + rng.normal(0, replicate_sd, size=(16, 2))
        data = {f"{t:02}": row for t, row in enumerate(draws.tolist())}
        got = estimate(data, seed=seed, B=2000, agg=agg)
        hits += got.ci_lo <= truth <= got.ci_hi
    return hits


def test_intervals_cover_the_truth_as_often_as_they_say():
    """At sixteen templates, 95 in 100 intervals hold the true value."""
    hits = coverage(np.random.default_rng(16), sims=800, agg="clustered")
    assert scipy.stats.binomtest(hits, 800, 0.95).pvalue > 0.01


def test_the_legacy_aggregation_covers_too_little():
    """Ignoring templates gives intervals that are too narrow: why it isn't the default."""
    hits = coverage(np.random.default_rng(16), sims=300, agg="simple")
    assert scipy.stats.binomtest(hits, 300, 0.95, alternative="less").pvalue < 1e-6
