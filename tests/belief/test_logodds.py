"""Between probability and log-odds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heretix.belief.logodds import CLAMP, logit, sigmoid


@pytest.mark.parametrize(
    ("prob", "expected"), [(0.5, 0.0), (0.75, math.log(3)), (0.25, -math.log(3))]
)
def test_logit_known_values(prob, expected):
    """Plain probabilities have the log-odds of the textbook."""
    assert logit(prob) == pytest.approx(expected, rel=1e-15, abs=1e-15)


def test_logit_is_clamped_at_both_ends():
    """A flat 0 or 1 stays finite, at one in a million."""
    assert logit(0.0) == logit(CLAMP) == pytest.approx(math.log(1e-6 / (1 - 1e-6)))
    assert logit(1.0) == logit(1 - CLAMP) == pytest.approx(-logit(0.0), rel=1e-9)


@given(st.floats(CLAMP, 1 - CLAMP))
def test_sigmoid_undoes_logit(prob):
    """Going to log-odds and back loses nothing that matters."""
    assert sigmoid(logit(prob)) == pytest.approx(prob, rel=1e-12)


def test_sigmoid_survives_any_finite_number():
    """Neither end overflows."""
    assert sigmoid(-1e308) == 0.0
    assert sigmoid(1e308) == 1.0
    assert sigmoid(0.0) == 0.5


@given(st.floats(-30, 30))
def test_sigmoid_is_symmetric(x):
    """The probability of the opposite is what is missing to one."""
    assert sigmoid(x) + sigmoid(-x) == pytest.approx(1.0, abs=1e-15)
