"""Several beliefs about one claim, resampled together."""

import math
import random

import numpy as np
import pytest

from heretix.belief.estimator import (
    draw_templates,
    estimate,
    resample_means,
    trimmed_centers,
    trimmed_mean,
)
from heretix.belief.metrics import MIN_STEMS, joint_bootstrap, sigmoids
from heretix.belief.paired import paired_difference
from heretix.core.errors import ConfigError, NoEstimateError


def lenses_of(seed, *, T=16, R=2, lenses=("RPL", "MEL", "HEL")):
    """Lenses that share what each stem does to an answer."""
    rng = np.random.default_rng(seed)
    stems = rng.normal(0.5, 0.4, size=(T, 1))
    return {
        lens: {
            f"{t:03d}": row
            for t, row in enumerate((stems + rng.normal(shift, 0.2, size=(T, R))).tolist())
        }
        for shift, lens in enumerate(lenses)
    }


def naive_replicas(lenses, *, B, cut, seed):
    """The definition, number by number, for stems of two or three replicates."""
    rng = np.random.default_rng(seed)
    stems = sorted(set.intersection(*(set(given) for given in lenses.values())))
    T = len(stems)
    picks = rng.integers(0, T, size=(B, T)).tolist()
    replicas = {}
    for lens in sorted(lenses):
        uniforms = rng.random((B, T)).tolist()
        replicas[lens] = []
        for row, us in zip(picks, uniforms, strict=True):
            means = []
            for place, u in zip(row, us, strict=True):
                group = sorted(lenses[lens][stems[place]])
                n = len(group)
                number = math.floor(u * n**n)
                means.append(sum(group[number // n**i % n] for i in range(n)) / n)
            means.sort()
            replicas[lens].append(sum(means[cut : T - cut]) / (T - 2 * cut))
    return replicas


@pytest.mark.parametrize(("T", "R"), [(8, 2), (11, 3), (16, 2)])
def test_equals_the_naive_definition(T, R):
    """Stems are drawn once for all lenses, replicates for each lens by itself, lenses by name."""
    lenses = lenses_of(T, T=T, R=R)
    vector = joint_bootstrap(lenses, seed=7, B=60)
    expected = naive_replicas(lenses, B=60, cut=int(0.2 * T), seed=7)
    for lens, replicas in expected.items():
        assert vector.replicas[lens].tolist() == pytest.approx(replicas, abs=1e-12)
        means = [sum(given) / R for given in lenses[lens].values()]
        assert vector.means[lens].tolist() == pytest.approx(means)
        assert vector.centers[lens] == pytest.approx(trimmed_mean(means, int(0.2 * T)))
        assert vector.probs[lens] == pytest.approx(1 / (1 + math.exp(-vector.centers[lens])))


def test_two_lenses_give_the_paired_difference():
    """With two lenses it is the paired bootstrap that stands beside it, draw for draw."""
    lenses = lenses_of(3, lenses=("A", "B"))
    vector = joint_bootstrap(lenses, seed=5, B=300)
    paired = paired_difference(lenses["A"], lenses["B"], seed=5, B=300)
    moved = vector.prob_replicas["B"] - vector.prob_replicas["A"]
    assert np.quantile(moved, 0.025) == pytest.approx(paired.diff_prob_lo, abs=1e-12)
    assert np.quantile(moved, 0.975) == pytest.approx(paired.diff_prob_hi, abs=1e-12)


def test_a_center_is_that_of_the_frozen_estimator():
    """A lens's belief in the vector is the one published for its run."""
    lenses = lenses_of(4)
    vector = joint_bootstrap(lenses, seed=1, B=20)
    for lens, logits in lenses.items():
        assert vector.probs[lens] == estimate(logits, seed=1, B=20).prob_true


def test_no_order_of_arrival_changes_a_bit():
    """Lenses, stems and replicates in any order give the same arrays."""
    lenses = lenses_of(9, R=3)
    rng = random.Random(2)
    shuffled = {}
    for lens in rng.sample(list(lenses), len(lenses)):
        stems = rng.sample(list(lenses[lens]), len(lenses[lens]))
        shuffled[lens] = {stem: rng.sample(lenses[lens][stem], 3) for stem in stems}
    one, other = (joint_bootstrap(given, seed=1, B=200) for given in (lenses, shuffled))
    assert one.stems == other.stems
    assert one.centers == other.centers
    for lens in lenses:
        assert one.replicas[lens].tobytes() == other.replicas[lens].tobytes()
        assert one.means[lens].tobytes() == other.means[lens].tobytes()


def test_only_stems_that_all_lenses_answered_count():
    """A stem that one lens has no answer for is left out of every lens."""
    lenses = lenses_of(1, T=12)
    del lenses["MEL"]["003"]
    lenses["HEL"]["007"] = []
    vector = joint_bootstrap(lenses, seed=1, B=20)
    assert vector.stems == tuple(f"{t:03d}" for t in range(12) if t not in {3, 7})
    assert all(len(means) == 10 for means in vector.means.values())
    assert vector.cut == 2


def test_replicas_of_all_lenses_hold_the_same_stems():
    """Without noise within stems, lenses that differ by a constant differ by it in each replica."""
    base = {f"{t:03d}": [0.1 * t * t] for t in range(10)}
    moved = {stem: [logits[0] + 0.75] for stem, logits in base.items()}
    vector = joint_bootstrap({"RPL": base, "MEL": moved}, seed=1, B=100)
    np.testing.assert_allclose(vector.replicas["MEL"] - vector.replicas["RPL"], 0.75, atol=1e-12)
    assert np.std(vector.replicas["RPL"]) > 0.1


def test_fewer_than_eight_shared_stems_are_refused():
    """Seven stems say too little about a difference; eight are enough."""
    assert MIN_STEMS == 8
    assert joint_bootstrap(lenses_of(1, T=8), seed=1, B=10).stems
    with pytest.raises(NoEstimateError, match=r"at least 8 stems .* got 7"):
        joint_bootstrap(lenses_of(1, T=7), seed=1, B=10)
    lenses = lenses_of(1, T=8)
    del lenses["HEL"]["000"]
    with pytest.raises(NoEstimateError, match="got 7"):
        joint_bootstrap(lenses, seed=1, B=10)


def test_no_lens_at_all_is_refused():
    """Nothing in, an error that says so out."""
    with pytest.raises(NoEstimateError, match="got 0"):
        joint_bootstrap({}, seed=1, B=10)


@pytest.mark.parametrize(
    "options", [{"B": 0}, {"trim": 0.5}, {"center": "median"}, {"seed": -1}, {"seed": 2**64}]
)
def test_options_out_of_range_are_refused(options):
    """The joint bootstrap takes what the estimator takes, and nothing else."""
    with pytest.raises(ConfigError):
        joint_bootstrap(lenses_of(1), **{"seed": 1, "B": 10, **options})


def test_center_and_trim_are_honoured():
    """`center="mean"` trims nothing, another trim trims as much as it says."""
    lenses = lenses_of(6, T=10)
    means = [sum(logits) / 2 for logits in lenses["RPL"].values()]
    plain = joint_bootstrap(lenses, seed=1, B=10, center="mean")
    assert plain.cut == 0
    assert plain.centers["RPL"] == pytest.approx(sum(means) / 10)
    hard = joint_bootstrap(lenses, seed=1, B=10, trim=0.4)
    assert hard.cut == 4
    assert hard.centers["RPL"] == pytest.approx(sum(sorted(means)[4:6]) / 2)


def test_more_replicates_than_a_table_holds_are_drawn_too():
    """Beyond five replicates the draws go on in the order that the bootstrap fixes."""
    lenses = lenses_of(8, T=9, R=7)
    vector = joint_bootstrap(lenses, seed=3, B=50)
    rng = np.random.default_rng(3)
    picks = draw_templates(rng, B=50, T=9)
    for lens in sorted(lenses):
        groups = [np.sort(logits) for logits in lenses[lens].values()]
        expected = trimmed_centers(resample_means(groups, picks, rng), 1)
        assert vector.replicas[lens].tobytes() == expected.tobytes()


def test_sigmoids_never_overflow():
    """The most extreme log-odds give 0 and 1, quietly."""
    assert sigmoids(np.array([-1e6, 0.0, 1e6])).tolist() == [0.0, 0.5, 1.0]
    assert sigmoids(np.array([1.0]))[0] == pytest.approx(1 / (1 + math.exp(-1)))
