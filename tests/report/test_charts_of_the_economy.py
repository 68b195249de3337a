"""Charts of markets, paths, wealth and calibration: their numbers are those of the rules."""

import itertools
from dataclasses import replace

import pytest
import scipy
from drawn import JUDGED, OUTCOME, WEALTH, episode, layers, positions, rows, texts

from heretix.core.errors import ConfigError, RecordError
from heretix.economy.episode.settlement import VoidReason
from heretix.economy.ledger import PLAY
from heretix.economy.market import Side, market_of
from heretix.report import charts
from heretix.report.charts.studies import reliability_bins


def test_the_market_shows_prices_and_pools_after_every_bet():
    """The seed is one state; every bet adds one, and the last is the market's own."""
    found = positions()
    points = rows(charts.market_history(found, currency=PLAY), "point", "price")
    states = points[: len(points) // 2]
    assert len(states) == 2 * (1 + 3)
    for number in range(1, len(found)):
        market = market_of(found[: number + 1])
        for side in Side:
            (row,) = [r for r in states if (r["bet"], r["side"]) == (number, side.value)]
            assert row["price"] == float(market.price(side))
            assert row["implied"] == float(market.probability(side))
    last = {row["side"]: row["pool"] for row in states[-2:]}
    assert sum(last.values()) * 100 == market_of(found).money


def test_bets_without_times_are_shown_by_number():
    """A simulated market has no clock."""
    timeless = [replace(position, at_ms=0) for position in positions()]
    chart = charts.market_history(timeless, currency=PLAY)
    assert chart["vconcat"][0]["layer"][0]["encoding"]["x"]["field"] == "bet"
    with pytest.raises(RecordError, match="seed"):
        charts.market_history([], currency=PLAY)


def test_the_path_has_a_tick_a_step():
    """An axis of its own choice would put halves between few steps."""
    found = episode()
    for part in layers(charts.credited_path(found)):
        assert part["encoding"]["x"]["axis"]["values"] == list(range(len(found.steps) + 1))


def test_the_path_shows_steps():
    """Credited beliefs are the steps' own."""
    found = episode()
    chart = charts.credited_path(found, OUTCOME)
    (line, *_) = chart["layer"]
    assert [row["belief"] for row in line["data"]["values"]] == [
        0.3,
        *(step.c_to_ppm / 1_000_000 for step in found.steps),
    ]
    assert "q 61.0%" in texts(chart)


def test_a_missing_durable_belief_says_why():
    """Not yet measured, or void and for which reason; no line is drawn for it."""
    found = episode()
    waiting = charts.credited_path(found)
    assert "not measured yet" in " ".join(waiting["title"]["subtitle"])
    void = replace(
        OUTCOME, winner=None, q_ppm=None, nearest_ppm=None, void=VoidReason.LOW_COMPLIANCE
    )
    voided = charts.credited_path(found, void)
    assert "void (low compliance)" in " ".join(voided["title"]["subtitle"])
    assert not rows(waiting, "rule", "said")
    assert not rows(voided, "rule", "said")


def test_wealth_names_the_richest_first():
    """A line a strategy; the key is in the order of the end."""
    summary = charts.WealthSummary(strategy="noise", n=20, start=1_000, final=980, lo=900, hi=1_010)
    chart = charts.wealth_by_strategy(WEALTH, [summary], unit="PLAY")
    line = next(rows(part, "line") for part in [chart])
    assert len(line) == len(WEALTH)
    assert texts(chart) == ["honest", "noise · −20 PLAY [−100, +10]"]
    with pytest.raises(RecordError, match="at least one"):
        charts.wealth_by_strategy([], unit="PLAY")


def test_what_is_emphasised_stands_out_among_many_strategies():
    """One line in colour and thick; sixteen names at the ends, none on top of another."""
    names = ["honest", "noise", *(f"attack {n}" for n in range(14))]
    points = [
        charts.WealthPoint(strategy=name, at=at, wealth=at * gain)
        for gain, name in zip((20, *(n / 50 for n in range(15))), names, strict=True)
        for at in range(3)
    ]
    chart = charts.wealth_by_strategy(
        points, unit="PLAY", emphasised=["honest"], bystanders=["noise"]
    )
    thin, thick = (part for part in layers(chart) if part["mark"]["type"] == "line")
    assert {row["strategy"] for row in thick["data"]["values"]} == {"honest"}
    assert thick["mark"]["strokeWidth"] > 2 * thin["mark"]["strokeWidth"]
    colours, dashes = (thin["encoding"][n]["scale"]["range"] for n in ("color", "strokeDash"))
    assert len(set(colours[1:])) == 1
    assert colours[0] != colours[1]
    assert dashes[1] == [1, 0]
    assert [1, 0] not in dashes[2:]
    places = sorted(row["y"] for row in rows(chart, "text"))
    assert len(places) == 16
    assert min(b - a for a, b in itertools.pairwise(places)) >= 15
    assert "honest · 40.0" in texts(chart)


def test_reliability_bins_against_a_naive_count():
    """Shares by bin, intervals after Wilson; claims without an estimate are left out and counted."""
    found = reliability_bins(JUDGED, bins=10)
    assert [(b.lo, b.n, b.share_true) for b in found] == [
        (0.0, 2, 0.0),
        (0.3, 3, 1 / 3),
        (0.9, 2, 1.0),
    ]
    for b in found:
        hits = round(b.share_true * b.n)
        expected = scipy.stats.binomtest(hits, b.n).proportion_ci(method="wilson")
        assert (b.share_lo, b.share_hi) == pytest.approx((expected.low, expected.high))
    chart = charts.reliability_diagram(JUDGED)
    assert [row["share"] for row in rows(chart, "point")] == [b.share_true for b in found]
    assert "1 left out: no estimate" in " ".join(chart["title"]["subtitle"])
    brier = sum((c.prob_true - c.is_true) ** 2 for c in JUDGED if c.prob_true is not None) / 7
    assert f"Brier score {brier:.3f}" in " ".join(chart["title"]["subtitle"])


def test_reliability_of_nothing_says_so():
    """No claim with an answer: words, not points."""
    chart = charts.reliability_diagram([charts.JudgedClaim(prob_true=None, is_true=True)])
    assert "No claim has both" in " ".join(texts(chart))
    with pytest.raises(ConfigError, match="bins"):
        reliability_bins(JUDGED, bins=0)
