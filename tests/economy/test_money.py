"""Money, canonical records and the arithmetic of beliefs."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import economy_settings

from heretix.core.canonical import digest, exact_json, require_sha256
from heretix.core.errors import RecordError, UsageError
from heretix.economy.ledger import (
    PLAY,
    XC,
    ceil_part,
    floor_part,
    format_amount,
    parse_amount,
    require_ppm,
    require_whole,
    share_out,
)
from heretix.economy.rewards import (
    BELIEF_MAX,
    BELIEF_MIN,
    belief_at,
    clip_belief,
    divergence,
    gap_divergence,
    log_odds,
    median,
    require_finite,
    to_ppm,
)

beliefs = st.integers(BELIEF_MIN, BELIEF_MAX)


def test_canonical_json_has_one_spelling():
    """Key order and spacing don't change a record's text, and text is kept as it is."""
    assert exact_json({"b": [1, None, True], "a": "é"}) == '{"a":"é","b":[1,null,true]}'
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [0.5, {"a": 1.0}, [1, (2, 3.0)], Decimal(1), {1: 2}, b"x"])
def test_canonical_json_refuses_what_has_no_single_spelling(value):
    """A float, a Decimal or a key that isn't text can't get into a hash."""
    with pytest.raises(RecordError, match="`record"):
        exact_json(value)


@pytest.mark.parametrize("value", ["", "ab", "G" * 64, "A" * 64, "a" * 63])
def test_a_hash_must_look_like_one(value):
    """Only 64 lower-case hex digits are a SHA-256."""
    with pytest.raises(RecordError, match="64 lower-case hex"):
        require_sha256("hash", value)


@pytest.mark.parametrize("value", [1.0, True, "1", -1, 2**63, Decimal(1)])
def test_money_is_whole(value):
    """Floats, booleans, text and numbers out of range are not amounts."""
    with pytest.raises(UsageError, match="whole number"):
        require_whole("amount", value)


def test_parts_per_million_have_bounds():
    """A rate outside its bounds is refused with the bounds."""
    with pytest.raises(UsageError, match="from 0 to 1000000, got 1000001"):
        require_ppm("rate", 1_000_001)


@economy_settings(max_examples=300)
@given(st.integers(0, 10**15), st.integers(0, 1_000_000))
def test_parts_round_as_their_names_say(amount, ppm):
    """What is paid rounds up, what is received rounds down, by less than one unit."""
    exact = Fraction(amount * ppm, 1_000_000)
    assert floor_part(amount, ppm) == math.floor(exact)
    assert ceil_part(amount, ppm) == math.ceil(exact)


@economy_settings(max_examples=300)
@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**9), max_size=12))
def test_sharing_out_keeps_every_unit(total, weights):
    """Parts and dust add up to the total, and the dust is less than one unit a receiver."""
    shared = share_out(total, weights)
    assert sum(shared.parts) + shared.dust == total
    receivers = sum(weight > 0 for weight in weights)
    assert shared.dust < receivers if receivers else shared.dust == total
    for part, weight in zip(shared.parts, weights, strict=True):
        assert weight == 0 or part == math.floor(Fraction(total * weight, sum(weights)))


def test_amounts_read_as_people_write_them():
    """Minor units are shown in the currency's own places."""
    assert format_amount(123_456, PLAY) == "1,234.56 PLAY"
    assert format_amount(-5, PLAY) == "-0.05 PLAY"
    assert format_amount(7, XC) == "7 XC"


@pytest.mark.parametrize(
    ("text", "minor"),
    [("25", 2_500), (" 12.50 ", 1_250), ("1,234.56", 123_456), ("1,000,000", 100_000_000)],
)
def test_amounts_are_read_as_they_are_shown(text, minor):
    assert parse_amount(text) == minor


@pytest.mark.parametrize(
    "text",
    ["1,5", "12,50", "1,0000", ",100", "1,234,5", "0", "-5", "0.001", "nan", "1e999999999", ""],
)
def test_an_amount_that_can_be_misread_is_refused(text):
    """Where a comma is the decimal point, 1,5 isn't fifteen."""
    with pytest.raises(UsageError, match="`amount` must be above 0 with at most 2 decimals"):
        parse_amount(text)


@economy_settings(max_examples=300)
@given(beliefs, beliefs)
def test_divergence_is_that_of_the_textbook(q, c):
    """KL(q‖c) agrees with its definition in floats, and is 0 only where q = c."""
    p, r = q / 1e6, c / 1e6
    naive = p * math.log(p / r) + (1 - p) * math.log((1 - p) / (1 - r))
    assert float(divergence(q, c)) == pytest.approx(naive, abs=1e-12)
    assert (divergence(q, c) == 0) == (q == c)


@economy_settings(max_examples=100)
@given(*[st.tuples(beliefs, beliefs).map(sorted).map(tuple)] * 2, st.data())
def test_gap_divergence_is_the_least_over_both_intervals(a, b, data):
    """No pair of points from the two intervals is nearer than the answer."""
    least = gap_divergence(a, b)
    x = data.draw(st.integers(*a))
    y = data.draw(st.integers(*b))
    assert least <= divergence(x, y)
    assert (least == 0) == (a[0] <= b[1] and b[0] <= a[1])


@economy_settings(max_examples=300)
@given(beliefs)
def test_log_odds_and_back_is_exact(ppm):
    """A belief survives the way to log-odds and back to the last part per million."""
    assert belief_at(log_odds(ppm)) == ppm


def test_beliefs_stay_within_one_and_ninety_nine_percent():
    """Whatever the log-odds, a belief that money depends on is clipped."""
    assert belief_at(Decimal("1e9")) == belief_at(Decimal(50)) == BELIEF_MAX
    assert belief_at(Decimal("-1e9")) == clip_belief(0) == BELIEF_MIN
    assert clip_belief(1_000_000) == BELIEF_MAX


def test_the_callers_decimal_context_changes_nothing():
    """Results don't depend on the precision or rounding that surround the call."""
    expected = divergence(123_456, 654_321)
    with decimal.localcontext() as context:
        context.prec, context.rounding = 3, decimal.ROUND_UP
        assert divergence(123_456, 654_321) == expected
        assert belief_at(log_odds(123_456)) == 123_456


def test_median_takes_the_middle_or_the_mean_of_two():
    """An odd number of values has a middle one; an even number has two."""
    assert median([Decimal(3), Decimal(1), Decimal(2)]) == 2
    assert median([Decimal(4), Decimal(1), Decimal(2), Decimal(100)]) == 3
    with pytest.raises(UsageError, match="got none"):
        median([])


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("Infinity"), 0.5, None])
def test_only_finite_decimals_are_log_odds(value):
    """A float or a number without a value can't come near a potential."""
    with pytest.raises(UsageError, match="finite Decimal"):
        require_finite("shift", value)


def test_a_probability_just_below_a_threshold_stays_below_it():
    """Rounding down can't lift 0.9749999 to 0.975."""
    value = Decimal("0.9749999")
    assert to_ppm(value, rounding=decimal.ROUND_FLOOR) == 974_999
    assert to_ppm(value, rounding=decimal.ROUND_CEILING) == 975_000
    with pytest.raises(UsageError, match="parts per million"):
        to_ppm(Decimal("1.1"), rounding=decimal.ROUND_FLOOR)
