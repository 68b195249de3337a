"""The gate, and the durable belief of hold-out judges."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import economy_settings, gate_reading

from heretix.core.errors import UsageError
from heretix.economy.episode.challenges import GateReading, find_gate_failure
from heretix.economy.episode.settlement import (
    JudgeShift,
    durable_belief,
    shift_belief,
    target_belief,
)
from heretix.economy.episode.state import Direction, GateRules
from heretix.economy.rewards import BELIEF_MAX, BELIEF_MIN

shifts = st.decimals(-5, 5, places=6)
anything = st.decimals(-1000, 1000, places=3)
c0s = st.integers(BELIEF_MIN, BELIEF_MAX)


def judges(*moves, start="0"):
    return [
        JudgeShift(model=f"j{n}", before=Decimal(start), after=Decimal(start) + move)
        for n, move in enumerate(moves)
    ]


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({}, None),
        ({"p_up_ppm": 975_000, "slots": 16, "ci_width_ppm": 200_000}, None),
        ({"p_up_ppm": 974_999}, "direction_uncertain"),
        ({"ci_width_ppm": 200_001, "p_up_ppm": 0}, "interval_too_wide"),
        ({"slots": 15, "ci_width_ppm": 900_000}, "too_few_slots"),
        ({"p_over_placebo_ppm": 975_000}, None),
        ({"p_over_placebo_ppm": 974_999}, "placebo"),
    ],
)
def test_the_gate_has_four_thresholds(changes, failure):
    """Each threshold is inclusive, and the first that fails is named."""
    sound = {"p_up_ppm": 990_000, "p_over_placebo_ppm": 990_000}
    reading = GateReading(**(sound | {"slots": 32, "ci_width_ppm": 10_000} | changes))
    found = find_gate_failure(reading, Direction.UP, GateRules())
    assert (found and found.code) == failure


def test_the_gate_looks_the_way_that_was_declared():
    """Evidence that moved the lens up fails as evidence for down, and the other way about."""
    up, down = gate_reading(990_000), gate_reading(25_000)
    assert find_gate_failure(up, Direction.UP, GateRules()) is None
    assert find_gate_failure(up, Direction.DOWN, GateRules()) is not None
    assert find_gate_failure(down, Direction.DOWN, GateRules()) is None
    assert find_gate_failure(down, Direction.UP, GateRules()) is not None


@economy_settings(max_examples=200)
@given(c0s, st.lists(st.tuples(shifts, shifts), min_size=3, max_size=9))
def test_where_a_judge_starts_from_does_not_matter(c0, cases):
    """Only the difference counts: offsets of judges within [1%, 99%] cancel."""
    cases = [(move / 8, lean / 8) for move, lean in cases]
    plain = [JudgeShift(model="j", before=Decimal(0), after=move) for move, _ in cases]
    offset = [JudgeShift(model="j", before=lean, after=lean + move) for move, lean in cases]
    assert target_belief(c0, plain) == target_belief(c0, offset)


@economy_settings(max_examples=300)
@given(c0s, st.lists(shifts, min_size=2, max_size=8), anything)
def test_one_judge_moves_q_by_at_most_the_others_spread(c0, others, rogue):
    """With one of J judges at any value, q stays between the least and the greatest other."""
    q = target_belief(c0, judges(*others, rogue))
    assert shift_belief(c0, min(others)) <= q <= shift_belief(c0, max(others))


def test_two_judges_are_not_a_panel():
    """A median of two is a mean: one judge could move it anywhere."""
    with pytest.raises(UsageError, match="at least 3, got 2"):
        target_belief(500_000, judges(Decimal(0), Decimal(1)))


def test_a_judge_without_a_number_is_refused():
    """A value that isn't finite can't be counted."""
    broken = judges(Decimal(0), Decimal(0), Decimal(0))
    broken[1] = JudgeShift(model="j1", before=Decimal(0), after=Decimal("Infinity"))
    with pytest.raises(UsageError, match=r"`j1\.after` must be a finite Decimal"):
        target_belief(500_000, broken)


def test_the_target_of_a_known_shift():
    """A median shift of ln 4 from even odds is a belief of 80%."""
    ln4 = Decimal(4).ln()
    assert target_belief(500_000, judges(ln4, Decimal(-3), Decimal(9))) == 800_000
    assert target_belief(500_000, judges(Decimal(90), Decimal(90), Decimal(90))) == BELIEF_MAX


@pytest.mark.parametrize(
    ("first", "second", "q"),
    [
        (600_000, 700_000, 600_000),
        (400_000, 300_000, 400_000),
        (400_000, 600_000, 500_000),
        (500_000, 900_000, 500_000),
    ],
)
def test_what_fades_is_not_paid(first, second, q):
    """q is the measurement nearer to c₀, and c₀ when the two lie on different sides of it."""
    assert durable_belief(500_000, first, second) == durable_belief(500_000, second, first) == q


def test_a_judge_near_certainty_counts_as_one_at_the_bound():
    """From 99.9999% to 99% is a step of 9 log-odds that no belief within the bounds has made."""
    certain = [JudgeShift(model=f"j{n}", before=Decimal(14), after=Decimal(5)) for n in range(3)]
    assert target_belief(500_000, certain) == 500_000
