"""Disputes: what they cost, who rules on them, and when there can be none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playing import (
    denial,
    make_measurement,
)

from heretix.economy.episode.moves import dispute_bond, rule_on_dispute
from heretix.economy.episode.state import HOUR_MS, Denial, Moved, State
from heretix.economy.ledger import AccountKind


def test_a_dispute_costs_a_bond_and_draws_a_larger_panel(play):
    """Its bond is the base stake or 1% of stakes; 2J+1 judges decide."""
    play.freeze()
    play.measure()
    play.measure()
    assert dispute_bond(play.episode) == 1_000
    large = replace(play.episode, market=replace(play.episode.market, money=1_000_001))
    assert dispute_bond(large) == 10_001
    assert denial(play.dispute("cat", bond=999)) is Denial.STAKE_TOO_SMALL
    play.dispute("cat", bond=1_000)
    assert len(play.episode.judges) == 11
    assert play.episode.state is State.DISPUTED
    assert denial(play.close()) is Denial.DISPUTE_PENDING
    assert denial(play.dispute("dan")) is Denial.DISPUTE_PENDING


def test_a_dispute_that_changes_nothing_pays_for_the_panel(play):
    """The bond goes to operations, and the measurements stay: no bond buys another draw of q."""
    play.freeze()
    play.measure()
    play.measure()
    before = play.episode.measurements
    q_ppm = play.episode.decide(play.positions).q_ppm
    play.dispute("cat", bond=5_000)
    play.rule(shift="0.7")
    assert play.episode.measurements == before
    assert play.profit("cat") == -5_000
    assert denial(play.rule()) is Denial.DISPUTE_PENDING
    assert play.close().settlement.outcome.q_ppm == q_ppm != 668_188


@pytest.mark.parametrize("changes", [{"p_up_ppm": 500_000}, {"ground_confirmed": True}])
def test_an_upheld_dispute_gets_its_bond_back(play, changes):
    """A changed outcome or a confirmed ground is reason enough."""
    play.freeze()
    play.measure()
    play.measure()
    play.dispute("cat", bond=5_000)
    before = play.episode.measurements
    play.rule(**changes)
    assert play.episode.measurements != before
    assert play.episode.disputes[0].upheld
    # Another dispute could still show that it was wrong.
    assert play.profit("cat") == -5_000
    play.close()
    assert play.profit("cat") == 0


@pytest.mark.parametrize(
    ("first", "second", "cat", "dan"),
    [
        ("upheld", "upheld", -1_000, 1_000),
        ("upheld", "lost", 0, -2_000),
        ("lost", "upheld", -1_000, 1_000),
        ("lost", "lost", -1_000, -2_000),
    ],
)
def test_an_upheld_dispute_is_paid_from_the_losers_bond(play, first, second, cat, dan):
    """The bond of the round before goes to who shows that its result was wrong."""
    play.freeze()
    play.measure()
    play.measure()
    for name, bond, told in (("cat", 1_000, first), ("dan", 2_000, second)):
        play.dispute(name, bond=bond)
        play.rule(ground_confirmed=told == "upheld")
    play.close()
    assert (play.profit("cat"), play.profit("dan")) == (cat, dan)
    lost = -(cat + dan)
    assert play.ledger.balance(play.house(AccountKind.OPERATIONS)) == lost


def test_there_are_two_rounds_of_dispute_at_most(play):
    """After the second ruling nothing can be disputed, and the episode may close at once."""
    play.freeze()
    play.measure()
    play.measure()
    play.dispute("cat", bond=1_000)
    play.rule()
    assert denial(play.dispute("cat", bond=1_999)) is Denial.STAKE_TOO_SMALL
    play.dispute("cat", bond=2_000)
    play.rule()
    assert denial(play.dispute("cat")) is Denial.NO_ROUNDS_LEFT
    assert isinstance(play.close(at_ms=play.episode.clock_ms), Moved)


def test_a_result_can_be_disputed_for_48_hours(play):
    """Not a millisecond later, and not settled a millisecond earlier."""
    play.freeze()
    play.measure()
    play.measure()
    due = play.episode.clock_ms + 48 * HOUR_MS
    assert denial(play.close(at_ms=due - 1)) is Denial.TOO_EARLY
    assert denial(play.dispute("cat", at_ms=due)) is Denial.TOO_LATE
    assert isinstance(play.close(at_ms=due), Moved)


def test_a_panel_of_others_cannot_rule(play):
    """Only the judges of the redraw count."""
    play.freeze()
    play.measure()
    play.measure()
    play.dispute("cat")
    foreign = make_measurement(("gpt-5", *play.episode.judges))
    result = rule_on_dispute(
        play.episode,
        ground_confirmed=False,
        measurements=(foreign, foreign),
        positions=play.positions,
        at_ms=play.episode.clock_ms,
    )
    assert denial(result) is Denial.WRONG_JUDGES
