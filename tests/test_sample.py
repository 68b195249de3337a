"""The rule of compliance, answer by answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heretix.sample import Finish, Noncompliance, Reading, read_answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Noncompliance.NOT_JSON),
        ("0.7 I think", Noncompliance.NOT_JSON),
        ('```json\n{"prob_true": 0.7}\n```', Noncompliance.NOT_JSON),
        ('Sure! {"prob_true": 0.7}', Noncompliance.NOT_JSON),
        ('{"prob_true": 0.7} Hope that helps.', Noncompliance.NOT_JSON),
        ('{"prob_true": 0.7', Noncompliance.NOT_JSON),
        ('{"prob_true": NaN}', Noncompliance.NOT_JSON),
        ('{"prob_true": Infinity}', Noncompliance.NOT_JSON),
        ('{"prob_true": 0.1, "prob_true": 0.9}', Noncompliance.NOT_JSON),
        ("[" * 100_000, Noncompliance.NOT_JSON),
        ('{"prob_true": ' + "9" * 5_000 + "}", Noncompliance.NOT_JSON),
        ("0.7", Noncompliance.NO_PROB_TRUE),
        ("[0.7]", Noncompliance.NO_PROB_TRUE),
        ("{}", Noncompliance.NO_PROB_TRUE),
        ('{"prob_true": true}', Noncompliance.NO_PROB_TRUE),
        ('{"prob_true": "0.7"}', Noncompliance.NO_PROB_TRUE),
        ('{"prob_true": null}', Noncompliance.NO_PROB_TRUE),
        ('{"prob_true": [0.7]}', Noncompliance.NO_PROB_TRUE),
        ('{"Prob_True": 0.7}', Noncompliance.NO_PROB_TRUE),
        ('{"prob_true": 1.2}', Noncompliance.OUT_OF_RANGE),
        ('{"prob_true": -0.01}', Noncompliance.OUT_OF_RANGE),
        ('{"prob_true": 70}', Noncompliance.OUT_OF_RANGE),
        ('{"prob_true": 1e999}', Noncompliance.OUT_OF_RANGE),
        ('{"prob_true": 0.7, "reason": "see https://a.example"}', Noncompliance.CITATION),
        ('{"prob_true": 0.7, "reason": "see HTTP://A.EXAMPLE"}', Noncompliance.CITATION),
        ('{"prob_true": 0.7, "reason": "WWW.a.example"}', Noncompliance.CITATION),
        ('{"prob_true": 0.7, "reason": "http:\\/\\/a.example"}', Noncompliance.CITATION),
        ('{"prob_true": 0.7, "reason": "\\u0068ttp://a.example"}', Noncompliance.CITATION),
    ],
)
def test_an_answer_that_breaks_the_rule_is_named(text, reason):
    """Each way of breaking the contract has its own reason, and gives nothing to aggregate."""
    assert read_answer(text).noncompliance is reason


@pytest.mark.parametrize(
    ("text", "prob"),
    [
        ('{"prob_true": 0.7}', 0.7),
        ('{"prob_true":0}', 0.0),
        ('{"prob_true": 1}', 1.0),
        (' \n{"prob_true": 7e-1}\n', 0.7),
        ('{"prob_true": 0.7, "reason": "it holds"}', 0.7),
    ],
)
def test_a_strict_answer_is_read(text, prob):
    """JSON white space and further keys are fine; the number is taken as it stands."""
    reading = read_answer(text)
    assert reading.noncompliance is None
    assert reading.json_valid
    assert reading.prob_true == prob


def test_a_citation_is_valid_json_and_still_dropped():
    """`json_valid` tells form from policy."""
    reading = read_answer('{"prob_true": 0.7, "why": "www.a.example"}')
    assert reading.json_valid
    assert reading.noncompliance is Noncompliance.CITATION


def test_a_refusal_is_a_refusal_whatever_its_text_says():
    """The provider's word that it refused goes before what can be parsed."""
    assert read_answer('{"prob_true": 0.5}', Finish.REFUSED).noncompliance is Noncompliance.REFUSED


def test_truncation_matters_only_when_it_cut_the_answer():
    """A whole answer that ended at the token limit is an answer."""
    cut = read_answer('{"prob_true": 0.', Finish.TRUNCATED)
    whole = read_answer('{"prob_true": 0.3}', Finish.TRUNCATED)
    assert cut.noncompliance is Noncompliance.TRUNCATED
    assert whole.noncompliance is None


@given(st.text())
def test_no_text_crashes_the_reader(text):
    """Whatever a model writes, the reader answers."""
    reading = read_answer(text)
    assert (reading.noncompliance is None) <= (reading.prob_true is not None)


@given(st.floats(0, 1))
def test_every_probability_comes_through_unchanged(prob):
    """What was answered is what is read, to the last bit."""
    assert read_answer(json.dumps({"prob_true": prob})).prob_true == prob


def test_the_logit_is_clamped_and_missing_stays_missing():
    """0 and 1 stay finite; no answer has no logit."""
    assert Reading(0.0).logit == pytest.approx(-13.815509557963774)
    assert Reading(1.0).logit == pytest.approx(13.815509557963774)
    assert Reading(None).logit is None
