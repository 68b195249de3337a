"""Student's t against SciPy, and intervals that agree with their p-values."""

import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from heretix.belief.student import f_quantile, mean_t, t_interval, t_quantile, two_sided_p
from heretix.core.errors import NoEstimateError


@pytest.mark.parametrize("df", [1, 2, 3, 5, 7.5, 15, 30, 200, 5000])
@pytest.mark.parametrize("p", [0.01, 0.5, 0.6, 0.9, 0.975, 0.9995])
def test_quantiles_of_t_are_those_of_scipy(df, p):
    """To ten digits, in both tails."""
    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("df", [1, 2, 5, 15, 5000])
@pytest.mark.parametrize("t", [0.0, 1e-9, 0.3, -2.0, 9.0, 60.0])
def test_tails_of_t_are_those_of_scipy(df, t):
    """Relative to their size, so far tails are right too."""
    assert two_sided_p(t, df) == pytest.approx(2 * scipy.stats.t.sf(abs(t), df), rel=1e-9)


@pytest.mark.parametrize("dfs", [(1, 7), (2, 2), (29, 435), (3, 45)])
def test_quantiles_of_f_are_those_of_scipy(dfs):
    """Quartiles and the median."""
    for p in (0.25, 0.5, 0.75):
        assert f_quantile(p, *dfs) == pytest.approx(scipy.stats.f.ppf(p, *dfs), rel=1e-10)


def test_a_mean_has_the_interval_and_p_value_of_scipy():
    """The textbook's one-sample t-test."""
    values = np.random.default_rng(4).normal(0.3, 1, 12).tolist()
    theirs = scipy.stats.ttest_1samp(values, 0)
    ours = mean_t(values)
    assert (ours.lo, ours.hi) == pytest.approx(tuple(theirs.confidence_interval()))
    assert ours.p_value == pytest.approx(theirs.pvalue)


@given(st.floats(-5, 5), st.floats(1e-6, 5), st.integers(1, 60))
def test_an_interval_leaves_0_out_where_its_p_value_is_below_5_percent(value, se, df):
    """One statistic gives both, so they can't contradict each other."""
    found = t_interval(value, se, df)
    if abs(found.p_value - 0.05) > 1e-9:
        assert (found.p_value < 0.05) == (found.lo > 0 or found.hi < 0)


def test_no_spread_is_a_point_with_a_p_value_of_0_or_1():
    """Nothing is divided by 0."""
    assert t_interval(0.2, 0.0, 7).p_value == 0.0
    assert t_interval(0.0, 0.0, 7).p_value == 1.0
    assert two_sided_p(math.inf, 3) == 0.0
    assert mean_t([1.0, 1.0]).lo == mean_t([1.0, 1.0]).hi == 1.0


def test_a_mean_of_one_has_no_interval():
    """It says what it needs."""
    with pytest.raises(NoEstimateError, match="at least 2, got 1"):
        mean_t([1.0])
