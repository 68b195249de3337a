"""Who wins, at what rate, and what makes an episode void."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import H, O, build_market, economy_settings, make_measurement

from heretix.core.canonical import encode
from heretix.core.errors import UsageError
from heretix.economy.episode.settlement import (
    JudgeReading,
    VoidReason,
    decide,
    find_void_reason,
    shift_belief,
    transfer_rate,
)
from heretix.economy.episode.state import Parameters
from heretix.economy.market import Side
from heretix.economy.rewards import BELIEF_MAX, BELIEF_MIN

JUDGES = ("j0", "j1", "j2", "j3", "j4")
POSITIONS = build_market([("ann", H, 100), ("bob", O, 100)])
PARAMETERS = Parameters()
UP = make_measurement(JUDGES)
DOWN = make_measurement(JUDGES, shift="-0.8", p_up_ppm=10_000)


def decided(first, second, *, c0=500_000):
    return decide(c0, (first, second), positions=POSITIONS, parameters=PARAMETERS)


def voided(*measurements):
    return find_void_reason(measurements, parameters=PARAMETERS)


def with_reading(measurement, index=0, **changes):
    readings = list(measurement.readings)
    readings[index] = replace(readings[index], **changes)
    return replace(measurement, readings=tuple(readings))


def test_a_side_wins_when_both_measurements_are_sure():
    """Up twice is Heretic, down twice is Orthodox, and q lies where the judges went."""
    assert decided(UP, UP).winner is Side.HERETIC
    assert decided(DOWN, DOWN).winner is Side.ORTHODOX
    assert decided(UP, UP).q_ppm == round(1e6 / (1 + math.exp(-0.8))) == 689_974
    assert decided(DOWN, DOWN).q_ppm == 310_026


@pytest.mark.parametrize(
    ("first", "second"),
    [(990_000, 974_999), (974_999, 990_000), (500_000, 500_000), (990_000, 10_000), (25_001, 0)],
)
def test_one_measurement_in_doubt_holds_the_episode(first, second):
    """Both must be sure of the same direction; a held episode still has a durable belief."""
    outcome = decided(replace(UP, p_up_ppm=first), replace(UP, p_up_ppm=second))
    assert outcome.held
    assert outcome.tau_ppm == 0
    assert outcome.q_ppm is not None


def test_the_thresholds_are_inclusive():
    """0.975 is enough, either way."""
    assert decided(replace(UP, p_up_ppm=975_000), UP).winner is Side.HERETIC
    assert decided(replace(DOWN, p_up_ppm=25_000), DOWN).winner is Side.ORTHODOX


def test_the_rate_comes_from_the_end_nearest_to_c0():
    """KL at the near end over ln 2, of 35%, rounded down."""
    near = 1 / (1 + math.exp(-0.5))
    nats = near * math.log(near / 0.5) + (1 - near) * math.log((1 - near) / 0.5)
    outcome = decided(UP, UP)
    assert outcome.nearest_ppm == math.floor(near * 1e6)
    assert outcome.tau_ppm == math.floor(350_000 * nats / math.log(2))
    mirrored = decided(DOWN, DOWN)
    assert mirrored.nearest_ppm == 1_000_000 - outcome.nearest_ppm
    assert mirrored.tau_ppm == outcome.tau_ppm


def test_the_rate_follows_the_end_nearest_to_c0():
    """Of the two measurements' intervals the one that reaches nearer to c₀ sets the rate."""
    other = make_measurement(JUDGES, shift="0.81")
    ends = [shift_belief(500_000, m.shift_lo) for m in (UP, other)]
    assert decided(UP, other).nearest_ppm == decided(other, UP).nearest_ppm == min(ends)
    other = make_measurement(JUDGES, shift="-0.81", p_up_ppm=0)
    ends = [shift_belief(500_000, m.shift_hi) for m in (DOWN, other)]
    assert decided(DOWN, other).nearest_ppm == max(ends)


def test_nine_tenths_is_compliance_enough():
    """The threshold of compliance is inclusive, over all judges together."""
    readings = tuple(replace(r, attempted=10, compliant=9) for r in UP.readings)
    assert voided(replace(UP, readings=readings)) is None
    assert voided(with_reading(replace(UP, readings=readings), compliant=8)) is (
        VoidReason.LOW_COMPLIANCE
    )


def test_an_interval_that_reaches_c0_moves_no_money():
    """Sure of the direction but not of any distance: the rate is 0."""
    wide = make_measurement(JUDGES, shift="0.2", margin="0.3")
    outcome = decided(wide, wide)
    assert (outcome.winner, outcome.tau_ppm, outcome.nearest_ppm) == (Side.HERETIC, 0, 500_000)
    strange = replace(UP, shift_lo=Decimal(-2), shift_hi=Decimal(-1))
    assert decided(strange, strange).tau_ppm == 0


def test_the_rate_is_capped():
    """However far the judges went, 35% is the most."""
    far = make_measurement(JUDGES, shift="9")
    assert decided(far, far, c0=BELIEF_MIN).tau_ppm == 350_000


@economy_settings(max_examples=200)
@given(st.integers(BELIEF_MIN, BELIEF_MAX), st.integers(BELIEF_MIN, BELIEF_MAX))
def test_the_rate_grows_with_the_distance(q, c0):
    """It is 0 at c₀, within its bounds, and never falls as q moves away."""
    rate = transfer_rate(q, c0, 350_000)
    assert 0 <= rate <= 350_000
    assert transfer_rate(c0, c0, 350_000) == 0
    further = q + 5_000 if q >= c0 else q - 5_000
    if BELIEF_MIN <= further <= BELIEF_MAX:
        assert transfer_rate(further, c0, 350_000) >= rate


def test_each_reason_to_void_is_found_in_order():
    """Every case also has all the later faults; the earlier one is named."""
    no_estimate = replace(UP, p_up_ppm=None, shift_lo=None, shift_hi=None)
    assert voided(no_estimate) is VoidReason.NO_ESTIMATE
    few = replace(
        no_estimate,
        readings=tuple(replace(r, after=None) if n < 3 else r for n, r in enumerate(UP.readings)),
    )
    assert voided(few) is VoidReason.MISSING_QUORUM
    sloppy = replace(few, readings=tuple(replace(r, compliant=28) for r in few.readings))
    assert voided(sloppy) is VoidReason.LOW_COMPLIANCE
    changed = with_reading(sloppy, provider_model_ids=("j0@1", "j0@2"))
    assert voided(changed) is VoidReason.MODEL_CHANGED
    cached = with_reading(changed, 4, from_cache=1)
    assert voided(cached) is VoidReason.CACHED_SAMPLE
    one_sided = build_market([("ann", H, 5)])
    outcome = decide(500_000, (), positions=one_sided, parameters=PARAMETERS)
    assert outcome.void is VoidReason.NO_OUTSIDE_STAKE
    assert voided(UP, DOWN) is None


def test_a_model_that_changed_between_the_measurements_voids():
    """Each measurement is consistent by itself; together they aren't the same judge."""
    later = with_reading(UP, provider_model_ids=("j0@2",))
    assert voided(UP) is None
    assert voided(later) is None
    assert voided(UP, later) is VoidReason.MODEL_CHANGED


def test_a_void_outcome_has_no_belief():
    """Nothing is invented for what could not be measured."""
    outcome = decided(UP, with_reading(UP, from_cache=1))
    assert outcome.void is VoidReason.CACHED_SAMPLE
    assert (outcome.winner, outcome.tau_ppm, outcome.q_ppm) == (None, 0, None)
    assert not outcome.held


def test_judges_without_an_estimate_are_left_out_of_the_median():
    """A quorum is enough, and the missing ones count as nothing, not as zero."""
    few = replace(
        UP,
        readings=tuple(replace(r, before=None) if n < 2 else r for n, r in enumerate(UP.readings)),
    )
    assert decided(few, few).q_ppm == decided(UP, UP).q_ppm


def test_one_measurement_is_not_enough():
    """The second one, after the durability window, can't be left out."""
    with pytest.raises(UsageError, match="must be two"):
        decide(500_000, (UP,), positions=POSITIONS, parameters=PARAMETERS)


def test_a_measurement_names_each_judge_once():
    """A judge counted twice would be two of the panel."""
    with pytest.raises(UsageError, match="each judge once"):
        replace(UP, readings=(*UP.readings, UP.readings[0]))


def test_a_reading_cannot_claim_more_than_was_attempted():
    """Compliance above one is a mistake."""
    with pytest.raises(UsageError, match="`compliant`"):
        JudgeReading(
            model="j",
            provider_model_ids=(),
            before=None,
            after=None,
            attempted=1,
            compliant=2,
            from_cache=0,
        )


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("Infinity"), 0.5])
def test_a_number_that_is_none_cannot_get_into_a_record(value):
    """What isn't a finite Decimal is refused when it is measured, not when it is paid for."""
    with pytest.raises(UsageError, match="finite Decimal"):
        replace(UP.readings[0], after=value)
    with pytest.raises(UsageError, match="finite Decimal"):
        replace(UP, shift_lo=value)


def test_a_measurement_can_be_hashed():
    """Its record holds only text and whole numbers."""
    record = encode(with_reading(UP, after=None))
    assert record["shift_lo"] == "0.5"
    assert record["readings"][0]["after"] is None
    assert record["readings"][1]["after"] == "0.9"
