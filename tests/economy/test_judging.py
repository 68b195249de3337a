"""The gate, and the durable belief of hold-out judges."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import economy_settings

from heretix.core.errors import UsageError
from heretix.economy.episode.challenges import GateReading, find_gate_failure
from heretix.economy.episode.settlement import JudgeShift, both_halves, shift_belief, target_belief
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
    ],
)
def test_the_gate_has_three_thresholds(changes, failure):
    """Each threshold is inclusive, and the first that fails is named."""
    reading = GateReading(**({"p_up_ppm": 990_000, "slots": 32, "ci_width_ppm": 10_000} | changes))
    found = find_gate_failure(reading, Direction.UP, GateRules())
    assert (found and found.code) == failure


def test_the_gate_looks_the_way_that_was_declared():
    """Evidence that moved the lens up fails as evidence for down, and the other way about."""
    up = GateReading(p_up_ppm=990_000, slots=16, ci_width_ppm=10_000)
    down = GateReading(p_up_ppm=25_000, slots=16, ci_width_ppm=10_000)
    assert find_gate_failure(up, Direction.UP, GateRules()) is None
    assert find_gate_failure(up, Direction.DOWN, GateRules()) is not None
    assert find_gate_failure(down, Direction.DOWN, GateRules()) is None
    assert find_gate_failure(down, Direction.UP, GateRules()) is not None


@economy_settings(max_examples=200)
@given(c0s, st.lists(st.tuples(shifts, shifts), min_size=3, max_size=9))
def test_where_a_judge_starts_from_does_not_matter(c0, cases):
    """Only the difference counts: offsets of the judges cancel."""
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
    ("first", "second", "half"),
    [(400_000, 600_000, 500_000), (400_000, 400_001, 400_000), (400_001, 400_002, 400_002)],
)
def test_q_is_the_mean_of_both_measurements(first, second, half):
    """Half a part per million goes to the even one."""
    assert both_halves(first, second) == both_halves(second, first) == half
