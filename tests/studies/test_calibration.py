"""Calibration: naive definitions, theory, clustered intervals, planted slopes."""

import math
import random

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from heretix.core.errors import ConfigError, NoEstimateError
from heretix.studies.calibration import Forecast, calibrate, compare_models


def model(seed, n, *, slope=1.0, intercept=0.0, spread=1.5, rows=1):
    """Forecasts whose outcomes follow intercept + slope · logit p; `rows` of them a claim."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        x = rng.normal(0, spread)
        true = rng.random() < 1 / (1 + math.exp(-(intercept + slope * x)))
        out += [Forecast(claim=f"c{i}", prob=1 / (1 + math.exp(-x)), outcome=true)] * rows
    return out


def arrays(forecasts):
    """Probabilities and outcomes."""
    return np.array([f.prob for f in forecasts]), np.array([float(f.outcome) for f in forecasts])


def naive_auroc(p, y):
    """All pairs of a true and a false claim."""
    pairs = [(a, b) for a in p[y == 1] for b in p[y == 0]]
    return np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5001, 0.9, 1.0]), st.booleans()),
        min_size=2,
        max_size=30,
    )
)
def test_scores_by_their_definitions(rows):
    """Brier, log score and AUROC, ties and certainties included."""
    got = calibrate([Forecast(claim=f"{i}", prob=p, outcome=y) for i, (p, y) in enumerate(rows)])
    p, y = np.array([p for p, _ in rows]), np.array([float(y) for _, y in rows])
    assert got.brier.value == pytest.approx(np.mean((p - y) ** 2))
    given_true = np.maximum(np.where(y == 1, p, 1 - p), 1e-6)
    assert got.log_score.value == pytest.approx(np.mean(-np.log(given_true)))
    if 0 < y.mean() < 1:
        assert got.auroc.value == pytest.approx(naive_auroc(p, y))
        assert 0 <= got.auroc.lo <= got.auroc.value <= got.auroc.hi <= 1
    else:
        assert (got.auroc.value, got.auroc.reason) == (None, "all claims have the same outcome")
        assert got.slope.value is None
    assert sum(bar.n for bar in got.bins) == got.n == len(rows)
    raw = sum(bar.n / got.n * abs(bar.mean_prob - bar.share_true) for bar in got.bins if bar.n)
    assert got.ece_raw == pytest.approx(raw)


def test_slope_and_intercept_are_the_likeliest():
    """No other pair of numbers fits the outcomes better."""
    forecasts = model(1, 150, slope=0.6, intercept=0.3)
    p, y = arrays(forecasts)
    x = np.log(p / (1 - p))

    def loss(beta):
        eta = beta[0] + beta[1] * x
        return np.sum(np.logaddexp(0, eta) - y * eta)

    best = scipy.optimize.minimize(loss, [0.0, 1.0], method="BFGS", options={"gtol": 1e-9}).x
    got = calibrate(forecasts)
    assert (got.intercept.value, got.slope.value) == pytest.approx(tuple(best), abs=1e-5)


@pytest.mark.parametrize("slope", [0.5, 1.0, 1.6])
def test_a_planted_slope_is_recovered(slope):
    """Within .1, with an interval that holds it."""
    got = calibrate(model(2, 6000, slope=slope, intercept=-0.4))
    assert got.slope.value == pytest.approx(slope, abs=0.1)
    assert got.slope.lo <= slope <= got.slope.hi
    assert got.intercept.value == pytest.approx(-0.4, abs=0.1)


def test_slope_of_certain_answers_is_finite():
    """A few answers of exactly 0 and 1 don't stop the search for the best fit."""
    forecasts = [
        *model(3, 60),
        Forecast(claim="x", prob=1.0, outcome=False),
        Forecast(claim="y", prob=0.0, outcome=False),
    ]
    got = calibrate(forecasts).slope
    assert got.lo < got.value < got.hi


@pytest.mark.parametrize(
    ("probs", "reason"),
    [
        ([0.1, 0.2, 0.8, 0.9], "separate"),
        ([0.5] * 4, "the same"),
        ([0.1, 0.5, 0.5, 0.9], "separate"),
    ],
)
def test_no_slope_is_told_with_its_reason(probs, reason):
    """Where the likelihood has no top, there is no number."""
    rows = [Forecast(claim=f"{i}", prob=p, outcome=i > 1) for i, p in enumerate(probs)]
    got = calibrate(rows)
    assert got.slope.value is None
    assert reason in got.slope.reason


def test_a_perfect_order_has_an_interval_all_the_same():
    """20 true above 20 false claims: AUROC 1, and not sure of it."""
    rows = [Forecast(claim=f"{i}", prob=0.01 * (i + 1), outcome=i >= 20) for i in range(40)]
    got = calibrate(rows).auroc
    assert (got.value, got.hi) == (1.0, 1.0)
    assert 0.85 < got.lo < 0.97
    upside_down = calibrate(
        [Forecast(claim=r.claim, prob=r.prob, outcome=not r.outcome) for r in rows]
    )
    assert upside_down.auroc.hi == pytest.approx(1 - got.lo)


def test_repeated_rows_add_no_certainty():
    """Ten copies of each row are no more claims: every interval stays."""
    once, tenfold = calibrate(model(4, 80)), calibrate(model(4, 80, rows=10))
    for name in ("brier", "log_score", "auroc", "ece", "slope", "intercept"):
        one, ten = getattr(once, name), getattr(tenfold, name)
        assert (ten.value, ten.lo, ten.hi) == pytest.approx((one.value, one.lo, one.hi), abs=1e-6)
    assert (tenfold.n, tenfold.n_claims) == (800, 80)
    assert [bar.share_lo for bar in tenfold.bins] == pytest.approx(
        [bar.share_lo for bar in once.bins]
    )


def test_independent_rows_have_the_textbook_interval():
    """The Brier score of independent claims is a mean with Student's t."""
    forecasts = model(5, 60)
    p, y = arrays(forecasts)
    theirs = scipy.stats.ttest_1samp((p - y) ** 2, 0).confidence_interval()
    got = calibrate(forecasts).brier
    assert (got.lo, got.hi) == pytest.approx(tuple(theirs))


def test_ece_of_a_calibrated_model_is_0_without_its_bias():
    """The usual one is far above; the corrected one averages to about nothing."""
    found = [calibrate(model(seed, 150)) for seed in range(60)]
    raw, corrected = (
        np.mean(x) for x in zip(*((f.ece_raw, f.ece.value) for f in found), strict=True)
    )
    assert raw > 0.06
    assert corrected < 0.03
    assert np.mean([f.ece.lo == 0 for f in found]) > 0.9


def test_ece_of_a_model_that_is_off_is_by_how_much():
    """All probabilities .2 too high."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(40):
        truth = rng.uniform(0, 0.8, 300)
        found.append(
            calibrate(
                [
                    Forecast(claim=f"{i}", prob=q + 0.2, outcome=bool(rng.random() < q))
                    for i, q in enumerate(truth)
                ]
            ).ece
        )
    assert np.mean([f.value for f in found]) == pytest.approx(0.2, abs=0.015)
    assert np.mean([f.lo <= 0.2 <= f.hi for f in found]) >= 0.85


def test_order_makes_no_difference():
    """To the last bit."""
    forecasts = model(8, 50, rows=2)
    shuffled = forecasts.copy()
    random.Random(1).shuffle(shuffled)
    assert calibrate(forecasts) == calibrate(shuffled)


def test_models_are_compared_claim_by_claim():
    """The Brier difference is a paired t-test; equal models differ by exactly 0."""
    a = model(9, 60)
    b = [Forecast(claim=f.claim, prob=0.5 + 0.5 * (f.prob - 0.5), outcome=f.outcome) for f in a]
    (p, y), (q, _) = arrays(a), arrays(b)
    theirs = scipy.stats.ttest_rel((q - y) ** 2, (p - y) ** 2)
    found = compare_models(a, b)
    assert found.brier.p_value == pytest.approx(theirs.pvalue)
    assert (found.brier.lo, found.brier.hi) == pytest.approx(tuple(theirs.confidence_interval()))
    # A rising function of p changes no order, and the slope a lot.
    assert (found.auroc.value, found.auroc.se) == pytest.approx((0, 0), abs=1e-12)
    assert found.slope.lo > 0
    same = compare_models(a, a)
    assert (same.brier.value, same.brier.p_value, same.slope.value) == (0.0, 1.0, 0.0)


def test_only_shared_claims_are_compared():
    """Others are left out on both sides."""
    a, b = model(10, 30), model(10, 40)
    assert compare_models(a, b).n_claims == 30
    assert compare_models(a, b).brier.value == 0.0
    with pytest.raises(NoEstimateError, match="both models"):
        compare_models(a, [Forecast(claim="other", prob=0.5, outcome=True)])


def test_a_missing_score_is_missing_in_the_comparison():
    """A model that separates the claims has no slope to compare."""
    rows = [Forecast(claim=f"{i}", prob=0.1 + 0.2 * i, outcome=i > 1) for i in range(4)]
    other = [Forecast(claim=f"{i}", prob=(0.4, 0.6, 0.5, 0.55)[i], outcome=i > 1) for i in range(4)]
    found = compare_models(rows, other)
    assert (found.slope, found.intercept) == (None, None)
    assert found.auroc.value < 0


def test_perfect_orders_have_no_difference_to_tell():
    """AUROCs of 1 and 0, or twice 1, have no spread: an interval of a point would be made up."""
    rows = [Forecast(claim=f"{i}", prob=0.1 + 0.2 * i, outcome=i > 1) for i in range(4)]
    shifted = [Forecast(claim=r.claim, prob=r.prob / 2, outcome=r.outcome) for r in rows]
    denied = [Forecast(claim=r.claim, prob=1 - r.prob, outcome=r.outcome) for r in rows]
    assert compare_models(rows, shifted).auroc is None
    assert compare_models(rows, denied).auroc is None
    assert compare_models(rows, rows).auroc.value == 0


def test_no_interval_of_a_difference_leaves_the_scale():
    """Two AUROCs are at most 1 apart, however few claims there are."""
    sides = [
        [Forecast(claim=f"{i}", prob=prob, outcome=i > 1) for i, prob in enumerate(probs)]
        for probs in ((0.1, 0.6, 0.3, 1), (0.6, 0.61, 0.2, 0.3))
    ]
    found = compare_models(*sides)
    assert (found.auroc.value, found.auroc.lo) == (-0.75, -1)
    assert found.auroc.hi <= 1


def test_bins_of_one_claim_have_no_calibration_error():
    """What is chance there and what isn't can't be told, neither of one model nor of two."""
    rows = [Forecast(claim=f"{i}", prob=0.05 + 0.1 * i, outcome=i > 3) for i in range(8)]
    assert calibrate(rows).ece.value is None
    assert calibrate(rows).ece.reason == "no bin of probabilities has two claims"
    assert compare_models(rows, rows).ece is None
    assert calibrate([*rows, Forecast(claim="9", prob=0.01, outcome=True)]).ece.value is not None


@pytest.mark.parametrize("prob", [-0.1, 1.1, math.nan])
def test_probabilities_out_of_range_are_refused(prob):
    """With the claim's name."""
    with pytest.raises(ConfigError, match="'a'"):
        calibrate([Forecast(claim="a", prob=prob, outcome=True)])


def test_one_claim_is_not_a_study():
    """It says how many there are."""
    with pytest.raises(NoEstimateError, match="at least 2 claims, got 1"):
        calibrate([Forecast(claim="a", prob=0.5, outcome=True)] * 5)


@pytest.mark.study
def test_intervals_cover():
    """100 claims with three rows each that share the claim's luck: about 95%."""
    rng = np.random.default_rng(11)
    truth = calibrate(model(12, 60_000, slope=0.7))
    held = {"brier": 0, "log_score": 0, "auroc": 0, "slope": 0, "intercept": 0}
    sims = 1000
    for _ in range(sims):
        found = calibrate(model(int(rng.integers(2**60)), 100, slope=0.7, rows=3))
        for name in held:
            score = getattr(found, name)
            held[name] += score.lo <= getattr(truth, name).value <= score.hi
    assert all(0.92 <= count / sims <= 0.98 for count in held.values()), held
