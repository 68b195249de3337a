"""Every attack and every property of the specification has a test that says so in its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = frozenset(
    name
    for path in HERE.glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
)
ATTACKS = (
    "wash_trading",
    "whipsaw",
    "sybil_splitting",
    "churn_under_limited_liability",
    "sniping_at_the_freeze",
    "noise_shopping",
    "hold_out_offset_farming",
    "judge_collusion",
    "prompt_injection_in_evidence",
    "cache_replay",
    "stolen_evidence",
    "self_challenge_for_yield",
    "engineered_void",
    "redundant_evidence_flood",
    "whitewashing",
    "terms_changed_after_open",
    "double_settle",
    "retry",
    "crash_between_any_two_writes",
)
PLAYED = frozenset(ATTACKS[:9]) | frozenset(ATTACKS[10:15])
"""Attacks that a player can make by public moves; the others are on what is written or served."""
PROPERTIES = (
    "test_money_is_conserved_exactly",
    "test_a_loser_never_pays_more_than_the_rate",
    "test_a_winner_never_loses",
    "test_the_quoted_floor_holds_whatever_is_bet_later",
    "test_the_house_loses_no_more_than_its_bound",
    "test_splitting_a_bet_never_gains",
    "test_buying_both_sides_never_has_a_sure_profit",
    "test_every_rounding_goes_against_the_mover",
    "test_dust_is_less_than_the_number_of_bets",
    "test_void_and_held_give_everything_back",
    "test_random_settlements",
    "test_four_thousand_random_reward_paths",
    "test_honest_evidence_earns_and_no_attack_does",
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_has_a_test_of_its_own_name(attack):
    """On the rules themselves, or on what is written."""
    assert any(name.startswith(f"test_attack_{attack}") for name in NAMES)


@pytest.mark.parametrize("attack", sorted(PLAYED))
def test_every_attack_by_public_moves_is_simulated(attack):
    """In whole episodes, with everyone else at the table."""
    assert f"test_attack_{attack}_in_simulation" in NAMES


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_has_a_test_of_its_own_name(name):
    """Those that must hold of markets, rewards and the simulation."""
    assert name in NAMES
