"""What lies between beliefs: examples to the digit, signs, intervals and tests."""

import itertools
import math

import numpy as np
import pytest
import scipy

from heretix.belief.logodds import logit
from heretix.belief.metrics import (
    BeliefVector,
    Metric,
    amplification_gap,
    directed_gap,
    dispersion,
    exchange_test,
    find_discoveries,
    fold_metric,
    information_gain,
    joint_bootstrap,
    movement,
    noise_floor,
    shock_index,
    signed_bits,
    source_concentration,
)
from heretix.core.errors import ConfigError


def flat(**probs):
    """A vector whose stems all agree: every number is exact, every interval a point."""
    lenses = {lens: {f"{t:03d}": [logit(p)] for t in range(8)} for lens, p in probs.items()}
    return joint_bootstrap(lenses, seed=1, B=20)


def scattered(seed=1, *, T=16, R=2, noise=0.2, **centers):
    """A vector with template effects that the lenses share, and noise."""
    rng = np.random.default_rng(seed)
    stems = rng.normal(0, 0.4, size=(T, 1))
    lenses = {
        lens: {
            f"{t:03d}": row
            for t, row in enumerate((center + stems + rng.normal(0, noise, (T, R))).tolist())
        }
        for lens, center in centers.items()
    }
    return joint_bootstrap(lenses, seed=seed, B=400)


def naive_bits(post, pre):
    """Signed information gain, by definition."""
    p, q = (min(max(x, 0.005), 0.995) for x in (post, pre))
    bits = p * math.log2(p / q) + (1 - p) * math.log2((1 - p) / (1 - q))
    return math.copysign(bits, post - pre)


@pytest.mark.parametrize(
    ("pre", "post", "bits"), [(0.80, 0.35, -0.688), (0.80, 0.75, -0.011), (0.35, 0.80, 0.614)]
)
def test_information_gain_to_the_digit(pre, post, bits):
    """Bits of the posterior against the prior, with the sign of the move."""
    gain = information_gain(flat(RPL=pre, HEL=post), "HEL")
    assert round(gain.value, 3) == bits
    assert gain.value == pytest.approx(naive_bits(post, pre), abs=1e-12)
    assert gain.lo == pytest.approx(gain.value) == pytest.approx(gain.hi)
    assert gain.corrected == pytest.approx(gain.value)


def test_information_is_counted_between_clamped_beliefs():
    """Certainty isn't worth endless bits, and a move beyond the clamp is worth none."""
    assert signed_bits(1.0, 0.0) == signed_bits(0.995, 0.005)
    assert signed_bits(1.0, 0.0) == pytest.approx(0.99 * math.log2(199))
    assert signed_bits(0.0, 1.0) == pytest.approx(-0.99 * math.log2(199))
    assert signed_bits(0.001, 0.004) == 0.0
    assert signed_bits(0.3, 0.3) == 0.0


def test_the_bias_correction_takes_away_what_noise_adds():
    """It is twice the value less the mean of the replicas."""
    vector = scattered(RPL=1.4, HEL=-0.6, noise=0.8)
    gain = information_gain(vector, "HEL")
    pairs = zip(vector.prob_replicas["HEL"], vector.prob_replicas["RPL"], strict=True)
    replicas = [naive_bits(post, pre) for post, pre in pairs]
    assert gain.corrected == pytest.approx(2 * gain.value - sum(replicas) / len(replicas))
    assert gain.lo == pytest.approx(np.quantile(replicas, 0.025))
    assert gain.hi == pytest.approx(np.quantile(replicas, 0.975))
    assert gain.corrected != gain.value


def test_source_concentration_to_the_digit():
    """Counts 5, 3, 1, 1: H is .36, as if there were 2.78 equal sources."""
    found = source_concentration({"a": 5, "b": 3, "c": 1, "d": 1})
    assert found.herfindahl == 0.36
    assert round(found.effective_sources, 2) == 2.78
    assert found.publishers == 4


def test_items_of_one_publisher_are_one_source():
    """Copies under one key add nothing; equal shares give exactly their number; none gives None."""
    assert source_concentration({"a": 5}).effective_sources == 1.0
    assert source_concentration({"a": 2, "b": 2, "c": 2}).effective_sources == 3.0
    assert source_concentration({"a": 2, "b": 0}).publishers == 1
    assert source_concentration({}) is None
    assert source_concentration({"a": 0}) is None


def test_dispersion_to_the_digit():
    """Jensen–Shannon divergence of (.80, .75, .35, .40) is .124 bits; of equal beliefs 0."""
    vector = flat(RPL=0.80, MEL=0.75, HEL=0.35, SEL=0.40)
    found = dispersion(vector, ("RPL", "MEL", "HEL", "SEL"))
    assert round(found.value, 3) == 0.124
    assert found.lo == pytest.approx(found.hi)
    assert dispersion(flat(RPL=0.3, MEL=0.3), ("RPL", "MEL")).value == pytest.approx(0, abs=1e-12)
    certain = dispersion(flat(RPL=1e-9, MEL=1 - 1e-9), ("RPL", "MEL"))
    assert certain.value == pytest.approx(1.0, abs=1e-4)


def test_movements_have_the_sign_of_the_move():
    """A lens above its base is positive; the distance of HEL loses its sign."""
    vector = flat(RPL=0.6, NUL=0.5, MEL=0.9, HEL=0.2)
    assert movement(vector, "MEL").value == pytest.approx(0.3)
    assert movement(vector, "HEL").value == pytest.approx(-0.4)
    assert movement(vector, "MEL", "NUL").value == pytest.approx(0.4)
    assert amplification_gap(vector) == movement(vector, "MEL")
    assert shock_index(vector).value == pytest.approx(0.4)


def test_evidence_and_wrapper_effects_add_up_to_the_movement():
    """p_MEL - p_RPL = (p_MEL - p_NUL) + (p_NUL - p_RPL)."""
    vector = scattered(RPL=0.2, NUL=0.4, MEL=1.0)
    parts = movement(vector, "MEL", "NUL").value + movement(vector, "NUL").value
    assert movement(vector, "MEL").value == pytest.approx(parts, abs=1e-15)


def test_an_interval_is_that_of_the_replicas_differences():
    """2.5th and 97.5th percentiles of what each replica gives for both lenses."""
    vector = scattered(RPL=0.0, MEL=0.8)
    found = movement(vector, "MEL")
    moved = vector.prob_replicas["MEL"] - vector.prob_replicas["RPL"]
    assert (found.lo, found.hi) == tuple(np.quantile(moved, (0.025, 0.975)))
    assert found.lo < found.value < found.hi


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((-0.1, -0.3, 0.2), (0.1, 0.0, 0.3)),
        ((0.1, -0.2, 0.4), (0.1, 0.0, 0.4)),
        ((0.3, 0.1, 0.5), (0.3, 0.1, 0.5)),
        ((-0.3, -0.5, -0.1), (0.3, 0.1, 0.5)),
        ((0.2, 0.0, 0.4), (0.2, 0.0, 0.4)),
    ],
)
def test_an_interval_is_folded_at_zero(given, expected):
    """A size has no negative part: an interval over 0 begins at 0 and keeps its farther end."""
    found = fold_metric(Metric(**dict(zip(("value", "lo", "hi"), given, strict=True))))
    assert (found.value, found.lo, found.hi) == expected


def test_the_shock_index_of_a_small_move_begins_at_zero():
    """When nothing is certain, the interval says so."""
    vector = scattered(RPL=0.3, HEL=0.3, noise=0.5)
    signed, size = movement(vector, "HEL"), shock_index(vector)
    assert signed.lo < 0 < signed.hi
    assert (size.lo, size.hi) == (0.0, max(-signed.lo, signed.hi))


def test_the_directed_gap_tells_amplifying_from_correcting():
    """Above 0 it strengthens the prior, whichever side that is on; the interval turns with it."""
    up, down = flat(RPL=0.7, MEL=0.9), flat(RPL=0.3, MEL=0.1)
    assert directed_gap(up).value == pytest.approx(0.2) == directed_gap(down).value
    assert directed_gap(flat(RPL=0.7, MEL=0.6)).value == pytest.approx(-0.1)
    assert directed_gap(flat(RPL=0.3, MEL=0.4)).value == pytest.approx(-0.1)
    vector = scattered(RPL=-1.5, MEL=-2.0)
    gap, turned = amplification_gap(vector), directed_gap(vector)
    assert (turned.value, turned.lo, turned.hi) == (-gap.value, -gap.hi, -gap.lo)
    assert turned.lo < turned.value < turned.hi


def test_the_directed_gap_is_undefined_where_the_prior_leans_to_no_side():
    """RPL's interval holds 1/2: there is nothing to amplify."""
    assert directed_gap(scattered(RPL=0.05, MEL=1.0)) is None
    assert directed_gap(flat(RPL=0.5, MEL=0.9)) is None


def test_the_directed_gap_goes_by_the_interval_that_it_is_given():
    """The published interval of the prior decides, whatever the joint bootstrap says."""
    vector = flat(RPL=0.7, MEL=0.9)
    assert directed_gap(vector, (0.45, 0.8)) is None
    assert directed_gap(vector, (0.6, 0.8)).value == pytest.approx(0.2)
    unsure = scattered(RPL=0.05, MEL=1.0)
    assert directed_gap(unsure) is None
    assert directed_gap(unsure, (0.51, 0.6)) == amplification_gap(unsure)


def test_one_replicate_has_no_noise_floor():
    """Nobody knows how far a repeat would lie; eight repeated stems tell, seven don't."""
    once = {f"{t:03d}": [0.1 * t] for t in range(16)}
    assert noise_floor(once, seed=1) is None
    seven = {stem: logits * 2 if int(stem) < 7 else logits for stem, logits in once.items()}
    assert noise_floor(seven, seed=1) is None
    eight = {stem: logits * 2 if int(stem) < 8 else logits for stem, logits in once.items()}
    assert noise_floor(eight, seed=1, B=50) == 0.0


def test_the_noise_floor_is_exceeded_in_about_one_case_of_twenty():
    """Two measurements of one belief lie further apart than the floor as rarely as it says.

    With sixteen stems of two replicates the noise itself is only estimated, so 5% become 6 to 7.
    """
    rng = np.random.default_rng(3)
    beyond, cases = 0, 800
    for case in range(cases):
        stems = 0.8 + rng.normal(0, 0.4, size=(16, 1))
        sides = [stems + rng.normal(0, 0.2, size=(16, 2)) for _ in range(2)]
        once, again = ({f"{t:03d}": row for t, row in enumerate(s.tolist())} for s in sides)
        vector = joint_bootstrap({"RPL": once, "HEL": again}, seed=case, B=1)
        beyond += abs(vector.probs["RPL"] - vector.probs["HEL"]) > noise_floor(
            once, seed=case, B=200
        )
    assert scipy.stats.binomtest(beyond, cases, 0.065).pvalue > 0.001


def test_the_noise_floor_uses_the_center_of_the_run_and_forgets_order():
    """Center and trim are those asked for, and no order of arrival changes it."""
    rng = np.random.default_rng(5)
    logits = {f"{t:03d}": row for t, row in enumerate(rng.normal(0, 1, (10, 3)).tolist())}
    turned = {stem: list(reversed(logits[stem])) for stem in reversed(logits)}
    assert noise_floor(logits, seed=1, B=300) == noise_floor(turned, seed=1, B=300)
    assert noise_floor(logits, seed=1, B=300) != noise_floor(logits, seed=1, B=300, center="mean")
    assert noise_floor(logits, seed=1, B=300) != noise_floor(logits, seed=1, B=300, trim=0.4)


def bare_vector(base, lens, *, seed=1):
    """A vector of stem means alone: the exchange test needs no replicas."""
    cut = int(0.2 * len(base))
    centers = {
        name: float(np.mean(np.sort(means)[cut : len(means) - cut]))
        for name, means in (("RPL", base), ("HEL", lens))
    }
    return BeliefVector(
        stems=tuple(f"{t:03d}" for t in range(len(base))),
        means={"RPL": np.asarray(base), "HEL": np.asarray(lens)},
        centers=centers,
        replicas={},
        cut=cut,
        seed=seed,
    )


def test_the_exchange_test_counts_swaps_that_move_as_far():
    """Against all 2^8 ways to swap, each looked at."""
    rng = np.random.default_rng(2)
    base, lens = rng.normal(0, 1, 8), rng.normal(0.5, 1, 8)

    def move(a, b):
        return abs(sum(b) / 8 - sum(a) / 8)

    seen = move(base, lens)
    ways = [[number >> bit & 1 == 1 for bit in range(8)] for number in range(256)]
    moves = [move(np.where(way, lens, base), np.where(way, base, lens)) for way in ways]
    exact = sum(found >= seen - 1e-12 for found in moves) / 256
    got = exchange_test(bare_vector(base, lens), "HEL", draws=40_000)
    assert got == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 40_000))


def test_the_exchange_test_is_exact_for_few_stems():
    """Up to twelve stems every swap is looked at, and the number of draws changes nothing."""
    rng = np.random.default_rng(4)
    for stems in (8, 12):
        base, lens = rng.normal(0, 1, stems), rng.normal(0.4, 1, stems)
        found = exchange_test(bare_vector(base, lens), "HEL", draws=10)
        assert found == exchange_test(bare_vector(base, lens, seed=9), "HEL")
        assert (found * 2**stems) % 2 == 0
        assert found >= 2 / 2**stems
    assert exchange_test(bare_vector(np.zeros(13), np.ones(13)), "HEL", draws=9) == 1 / 10


def test_sums_that_differ_in_their_last_bit_alone_tie():
    """Answers are round numbers, so many swaps move exactly as far; counted here in whole tenths."""
    tenths = np.array([3, -4, -4, 3, 0, -4, 1, 1])
    signs = np.array(list(itertools.product((1, -1), repeat=8)))
    exact = np.mean(np.abs(signs @ tenths) >= abs(tenths.sum()))
    assert exact == 196 / 256
    assert exchange_test(bare_vector(np.zeros(8), tenths / 10), "HEL") == exact


def test_the_exchange_test_keeps_its_level():
    """Under the null it rejects at 5% in 5% of cases, and its p-values are uniform."""
    rng = np.random.default_rng(11)
    found = []
    for case in range(1500):
        stems = rng.normal(0.5, 0.4, 16)
        # Skewed and heavy-tailed noise: no distribution is assumed.
        base, lens = (stems + 0.2 * (rng.exponential(1, 16) + rng.standard_t(3, 16)) for _ in "ab")
        found.append(exchange_test(bare_vector(base, lens, seed=case), "HEL", draws=399))
    rejected = sum(p <= 0.05 for p in found)
    assert scipy.stats.binomtest(rejected, len(found), 0.05).pvalue > 0.001
    assert scipy.stats.kstest(found, "uniform").pvalue > 0.001


def test_the_exchange_test_finds_an_effect():
    """A shift of the size of the noise in sixteen stems is found nearly always."""
    rng = np.random.default_rng(12)
    found = []
    for case in range(200):
        stems = rng.normal(0.5, 0.4, 16)
        base = stems + rng.normal(0, 0.2, 16)
        lens = stems + rng.normal(-0.3, 0.2, 16)
        found.append(exchange_test(bare_vector(base, lens, seed=case), "HEL", draws=399))
    assert sum(p <= 0.05 for p in found) > 170


def test_the_exchange_test_never_says_zero_and_says_one_for_no_difference():
    """The observed labelling is one of those that count."""
    stems = np.linspace(-1, 1, 16)
    assert exchange_test(bare_vector(stems, stems), "HEL") == 1.0
    assert exchange_test(bare_vector(stems, stems + 3), "HEL", draws=999) == 1 / 1000


def test_a_move_of_all_stems_is_as_significant_as_eight_stems_can_be():
    """No noise, every stem moved: of 256 swaps only those of none and of all give as much."""
    for before, after in ((0.8, 0.35), (0.35, 0.8), (0.5, 0.95)):
        p_value = information_gain(flat(RPL=before, HEL=after), "HEL").p_value
        assert p_value == pytest.approx(2 / 256, abs=0.005)


def test_the_exchange_test_repeats_itself_to_the_bit():
    """Its draws come from the vector's seed; it changes nothing in the vector."""
    vector = scattered(RPL=0.0, HEL=0.1, noise=0.6)
    before = {lens: means.copy() for lens, means in vector.means.items()}
    assert exchange_test(vector, "HEL") == exchange_test(vector, "HEL")
    assert all((vector.means[lens] == before[lens]).all() for lens in before)


def test_swaps_are_not_drawn_from_the_numbers_of_the_bootstrap():
    """Two streams of one seed: a draw that the interval used says nothing new of a swap."""
    stems, draws, seed = 14, 200, 7
    rng = np.random.default_rng(3)
    base, lens = rng.normal(0, 1, stems), rng.normal(0.3, 1, stems)
    moved = lens - base
    stream = np.random.default_rng([seed, 1]).random((draws, stems)) < 0.5
    sums = np.abs(np.where(stream, -moved, moved).sum(axis=1))
    expected = (1 + np.count_nonzero(sums >= abs(moved.sum()) - 1e-12)) / (draws + 1)
    vector = bare_vector(base, lens, seed=seed)
    assert exchange_test(vector, "HEL", draws=draws) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
def test_discoveries_are_those_of_benjamini_and_hochberg(rate):
    """As adjusted p-values at or below the rate, whatever the order and the ties."""
    rng = np.random.default_rng(4)
    for size in (1, 2, 7, 40):
        for _ in range(25):
            p_values = rng.choice([rng.random(), *rng.beta(0.4, 3, size)], size).tolist()
            adjusted = scipy.stats.false_discovery_control(p_values)
            assert find_discoveries(p_values, rate=rate) == [bool(p <= rate) for p in adjusted]


def test_a_step_up_keeps_what_a_single_step_would_lose():
    """The largest rank that passes decides for all before it."""
    assert find_discoveries([0.04, 0.06, 0.07], rate=0.1) == [True, True, True]
    assert find_discoveries([0.06, 0.5, 0.9], rate=0.1) == [False, False, False]
    assert find_discoveries([], rate=0.1) == []


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan])
def test_a_rate_that_is_none_is_refused(rate):
    """A false discovery rate lies between 0 and 1."""
    with pytest.raises(ConfigError, match="rate"):
        find_discoveries([0.1], rate=rate)
