"""Reasons of payments, as pages and terminals say them."""

from __future__ import annotations

import string

import pytest

from heretix.economy.ledger import Reason
from heretix.economy.sentences import SENTENCES, Surface, sentence
from heretix.web.templating import PageSurface, reason

FAILED = Reason.of("direction_uncertain", direction="up", least_ppm=975_000, got_ppm=632_000)
WIDE = Reason.of("interval_too_wide", most_ppm=200_000, got_ppm=310_001)
WON = {
    "number": 2,
    "stake": 40_000,
    "side": "heretic",
    "rate_ppm": 41_437,
    "gain": 1_466,
    "transfer": 4_352,
    "fee": 294,
    "receives": 41_172,
}
SAID = [
    (
        Reason("bet_won", WON),
        (
            "bet 2: 400.00 on heretic; won at a rate of 4.14%: 400.00 + gain 14.66 (its share of "
            "43.52) − fee 2.94 = 411.72"
        ),
    ),
    (
        Reason.of("bet", number=7, stake=12_000, side="orthodox", shares=15_012_345_678),
        "bet 7: 120.00 on orthodox for 150.1235 shares",
    ),
    (
        Reason.of("bet_late", number=6, close_ms=1_793_128_387_297),
        "bet 6 came after the close at 27 Oct 2026, 19:13 UTC: given back whole",
    ),
    (
        Reason.of("challenge_failed", FAILED, number=1, forfeit=1_000),
        "challenge 1 failed: the part of operations of 10.00: P(up) must be at least 97.5%, got 63.2%",
    ),
    (
        Reason.of("challenge_failed", WIDE, number=1, forfeit=1_000),
        "challenge 1 failed: the part of operations of 10.00: the interval must be at most 20% wide, got 31%",
    ),
    (
        Reason.of(
            "challenge_fund", Reason.of("too_few_slots", least=16, got=8), number=3, forfeit=1
        ),
        "challenge 3 failed: the fund has the rest of 0.01: K must be at least 16, got 8",
    ),
    (
        Reason.of("market_seeded", heretic_ppm=500_000),
        "the house seeds the market at 50% for heretic",
    ),
    (
        Reason.of("bet_void", number=0, stake=50_000, side="heretic", void="no_outside_stake"),
        "bet 0: 500.00 on heretic; void (no outside stake): the stake comes back whole",
    ),
    (
        Reason.of("reward_step", number=0, account="user:Ada 2:PLAY", evidence="512381209894"),
        "step 0 by Ada 2: evidence 512381209894",
    ),
    (
        Reason.of("reward_path", from_ppm=484_386, to_ppm=719_856),
        "credited belief: from 48.4386% to 71.9856%",
    ),
    (
        Reason.of("reward_before", c_ppm=484_386, potential=-70_674),
        "potential before: B·[q·ln c + (1-q)·ln(1-c)] at c = 48.4386% is −706.74",
    ),
    (
        Reason.of("reward_amount", before=-70_674, after=-60_267, amount=10_407),
        "reward: −602.67 − (−706.74) = 104.07",
    ),
    (Reason("budget_left"), "what the budget has left"),
]


@pytest.mark.parametrize(("given", "said"), SAID, ids=lambda value: getattr(value, "code", ""))
def test_numbers_of_records_become_those_of_people(given, said):
    """Amounts, percents and dates; numbers of bets and formulas stay as they are."""
    assert reason(given, "PLAY") == said


def test_a_currency_without_hundredths_has_none():
    """Credits are counted whole."""
    assert reason(Reason.of("issued", amount=1_283), "XC") == "issued 1,283 XC"


def test_a_terminal_keeps_every_digit():
    """Seconds of a moment, and all four decimals of a percent."""
    late = Reason.of("stakes_ended", at_ms=1_793_128_387_297, now_ms=1_793_128_388_000)
    assert sentence(late) == (
        "stakes were taken until 2026-10-27 19:13:07 UTC, it is 2026-10-27 19:13:08 UTC"
    )
    assert "at a rate of 4.1437%" in sentence(Reason("bet_won", WON))


@pytest.mark.parametrize("surface", [Surface(), PageSurface()], ids=["terminal", "page"])
def test_every_sentence_names_formats_that_its_surface_has(surface):
    """A sentence with a format that nobody knows would fail when it is needed."""
    for text in SENTENCES.values():
        for _, name, spec, _ in string.Formatter().parse(text):
            assert name is None or not spec or callable(getattr(surface, spec))
