"""Reasons of payments, as people read them."""

from __future__ import annotations

import pytest

from heretix.web.templating import reason

SAID = {
    "bet 2: 40000 on heretic; won at a rate of 41437 ppm: 40000 + gain 1466 (its share of 4352) "
    "- fee 294 = 41172": "bet 2: 400.00 on heretic; won at a rate of 4.14%: 400.00 + gain 14.66 "
    "(its share of 43.52) − fee 2.94 = 411.72",
    "bet 7: 12000 on orthodox for 15012345678 micro-shares": "bet 7: 120.00 on orthodox for "
    "150.1235 shares",
    "bet 6 came after the close at 1793128387297: given back whole": "bet 6 came after the close "
    "at 27 Oct 2026, 19:13 UTC: given back whole",
    "challenge 1 failed: P(up) must be at least 975000 ppm, got 632000": "challenge 1 failed: "
    "P(up) must be at least 97.5%, got 63.2%",
    "challenge 1 failed: the interval must be at most 200000 ppm wide, got 310001": "challenge 1 "
    "failed: the interval must be at most 20% wide, got 31%",
    "challenge 3 failed: K must be at least 16, got 8": "challenge 3 failed: K must be at least "
    "16, got 8",
    "the house seeds the market at 500000 ppm for heretic": "the house seeds the market at 50% "
    "for heretic",
    "bet 0: 50000 on heretic; void (no_outside_stake): the stake comes back whole": "bet 0: "
    "500.00 on heretic; void (no outside stake): the stake comes back whole",
    "step 0 by user:Ada 2:PLAY: evidence 512381209894": "step 0 by Ada 2: evidence 512381209894",
    "credited belief: from 48.4386% to 71.9856%": "credited belief: from 48.4386% to 71.9856%",
    "potential before: B·[q·ln c + (1-q)·ln(1-c)] at c = 48.4386% is -70674": "potential before: "
    "B·[q·ln c + (1-q)·ln(1-c)] at c = 48.4386% is −706.74",
    "reward: -60267 - (-70674) = 10407": "reward: −602.67 − (−706.74) = 104.07",
    "what the budget has left": "what the budget has left",
}


@pytest.mark.parametrize("text", SAID)
def test_numbers_of_records_become_those_of_people(text):
    """Amounts, percents and dates; numbers of bets and formulas stay as they are."""
    assert reason(text, "PLAY") == SAID[text]


def test_a_currency_without_hundredths_has_none():
    """Credits are counted whole."""
    assert reason("issued 1283 XC", "XC") == "issued 1,283 XC"
