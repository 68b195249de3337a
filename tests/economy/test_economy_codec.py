"""Records written as JSON come back as they were, and nothing else is taken for one."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import H, O, economy_settings, make_measurement, make_terms, started

from heretix.core.canonical import decode, decode_json, encode, encode_json
from heretix.core.errors import RecordError
from heretix.economy.episode.challenges import BroughtEvidence, GateReading
from heretix.economy.episode.settlement import JudgeReading, Measurement
from heretix.economy.episode.state import Episode, Terms
from heretix.economy.market import Position


def played():
    """An episode that has something in every field."""
    play = started(("ann", H, 5_000), ("bob", O, 3_000))
    play.challenge("cat", "evidence", amount=5_000)
    play.freeze()
    play.judge(0)
    play.measure()
    play.measure()
    play.dispute("dan")
    return play


def test_an_episode_comes_back_as_it_was():
    """Every field of every record inside it, through text."""
    episode = played().episode
    assert decode_json(Episode, encode_json(episode)) == episode


def test_terms_keep_their_hash():
    """What was hashed at open is what a reader hashes."""
    terms = make_terms(claim="tin ‘whiskers’ \x00 \U0001f9ea")
    assert decode_json(Terms, encode_json(terms)).hash() == terms.hash()


@given(st.decimals(allow_nan=False, allow_infinity=False), st.binary(max_size=40), st.integers(0))
@economy_settings()
def test_exact_numbers_and_bytes_survive(number, nonce, count):
    """No digit, sign or exponent is lost, whatever they are."""
    reading = JudgeReading(
        model="judge",
        provider_model_ids=("a", "b"),
        before=number,
        after=None,
        attempted=1,
        compliant=1,
        from_cache=0,
    )
    again = decode(JudgeReading, encode(reading))
    assert again.before.as_tuple() == number.as_tuple()
    assert decode(bytes, encode(nonce)) == nonce
    assert decode(int, encode(count)) == count


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"stake": "5"}, "`record.stake` must be a whole number, got '5'"),
        ({"stake": 5.0}, "`record.stake` must be a whole number, got 5.0"),
        ({"stake": True}, "`record.stake` must be a whole number, got True"),
        ({"stake": None}, "`record.stake` must be a whole number, got None"),
        ({"side": "neither"}, "`record.side` must be 'heretic' or 'orthodox', got 'neither'"),
        ({"side": 1}, "`record.side` must be 'heretic' or 'orthodox', got 1"),
        ({"house": 0}, "`record.house` must be true or false, got 0"),
        ({"extra": 1}, "'extra' isn't one of its fields"),
    ],
)
def test_a_changed_field_is_named(change, complaint):
    """Types are exact: a float, a boolean or text is no integer."""
    position = played().positions[0]
    with pytest.raises(RecordError) as caught:
        decode(Position, encode(position) | change)
    assert complaint in str(caught.value)


def test_a_missing_field_is_named():
    """Nothing is filled in."""
    data = encode(played().positions[0])
    del data["shares"]
    with pytest.raises(RecordError, match="'shares' is missing"):
        decode(Position, data)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"p_up_ppm": 1}'])
def test_what_is_no_record_is_refused(text):
    """Not JSON, or JSON of another shape."""
    with pytest.raises(RecordError):
        decode_json(Measurement, text)


def test_a_number_that_is_none_is_refused():
    """A decimal must be one."""
    data = encode(make_measurement(("a", "b", "c")))
    for wrong in ("one", "", 1):
        with pytest.raises(RecordError, match="shift_lo"):
            decode(Measurement, data | {"shift_lo": wrong})


def test_an_optional_record_can_be_none():
    """Evidence that could not be measured is null, not an empty record."""
    gate = GateReading(p_up_ppm=1, p_over_placebo_ppm=1, slots=2, ci_width_ppm=3)
    evidence = BroughtEvidence(gate=gate, belief_ppm=4)
    assert decode(BroughtEvidence | None, encode(None)) is None
    assert decode(BroughtEvidence | None, json.loads(encode_json(evidence))) == evidence


def test_a_list_must_be_a_list():
    """A text isn't taken for a list of its letters."""
    data = encode(make_measurement(("a",)))
    data["readings"][0]["provider_model_ids"] = "abc"
    with pytest.raises(RecordError, match=r"readings\[0\].provider_model_ids` must be a list"):
        decode(Measurement, data)


def test_decimals_are_equal_in_value_and_in_spelling():
    """1.0 and 1.00 are different records: one spelling each."""
    measurement = make_measurement(("a",))
    other = replace(measurement, shift_lo=Decimal("0.50"))
    assert encode_json(replace(measurement, shift_lo=Decimal("0.5"))) != encode_json(other)
    assert decode(Measurement, encode(other)) == other
