"""What the simulation plants, how its players reckon, and how its intervals are worked out."""

from __future__ import annotations

import math

import pytest
import scipy

from heretix.economy.episode.challenges import find_gate_failure
from heretix.economy.episode.state import Direction, Parameters
from heretix.economy.market import Side, market_of, quote, seed_market
from heretix.economy.rewards import required_bond
from heretix.economy.simulation.agents import Kind, gate_risk, lift_to, plan_stake
from heretix.economy.simulation.play import Result, Verdict, standing, t_quantile
from heretix.economy.simulation.world import LENS, POOL, Nature, World

WORLD = World(5, Nature())
SCALE = 100_000


def test_real_evidence_moves_every_model_the_same_way():
    """Its sign is common; models differ in how much."""
    findings = [f for n in range(60) for f in WORLD.claim(n).findings if abs(f.common) > 0.8]
    assert len(findings) > 10
    agree = [
        WORLD.effect(finding, model) * finding.common > 0 for finding in findings for model in POOL
    ]
    assert sum(agree) > 0.98 * len(agree)


def test_noise_moves_models_each_in_its_own_way():
    """It can move any one of them, and has no effect that they share."""
    texts = [WORLD.noise("t", n) for n in range(300)]
    lens = [WORLD.effect(text, LENS) for text in texts]
    judge = [WORLD.effect(text, POOL[0]) for text in texts]
    assert scipy.stats.pearsonr(lens, judge).pvalue > 0.001
    assert 0.25 < scipy.stats.tstd(lens) < 0.35


def test_a_rewording_is_another_file_that_says_the_same():
    """It adds an echo where the first was shown, and counts in full where it wasn't."""
    finding = next(f for n in range(20) for f in WORLD.claim(n).findings)
    copy = WORLD.reword(finding, "thief")
    assert copy.sha256 != finding.sha256
    alone = WORLD.effect(finding, LENS)
    assert WORLD.combine_effects([copy], LENS) == alone
    assert WORLD.combine_effects([finding, copy], LENS) == pytest.approx(1.05 * alone)


def test_a_rumour_is_gone_at_the_second_measurement():
    """Until then it is as good as evidence."""
    rumour = WORLD.rumour(1, "x")
    assert WORLD.combine_effects([rumour], POOL[0]) > 0.3
    assert WORLD.combine_effects([rumour], POOL[0], later=True) == 0


def test_judges_without_evidence_do_not_move():
    """A panel that is shown nothing is as often up as down, and rarely sure."""
    claim, sure = WORLD.claim(1), 0
    for n in range(200):
        found = WORLD.measure(claim, POOL[:5], [], stage=f"s{n}", later=False, bought={})
        sure += not 25_000 < found.p_up_ppm < 975_000
        assert found.shift_lo < found.shift_hi
    assert 1 <= sure <= 25


def test_the_gate_passes_noise_once_in_forty():
    """As often as its threshold says, when the lens isn't moved at all."""
    claim, rules = WORLD.claim(2), Parameters().gate
    empty = WORLD.reword(WORLD.order(1, "empty"), "none")
    assert WORLD.effect(empty, LENS) == 0
    readings = [WORLD.gate(claim, [], empty, n).gate for n in range(1_000)]
    for arm in ("p_up_ppm", "p_over_placebo_ppm"):
        lucky = [reading for reading in readings if getattr(reading, arm) >= rules.direction_ppm]
        assert 10 <= len(lucky) <= 45
    # Both arms at once are rarer still: they err each for itself.
    both = [find_gate_failure(reading, Direction.UP, rules) is None for reading in readings]
    assert sum(both) <= 5


@pytest.mark.parametrize("probes", [1, 4])
def test_a_player_knows_its_risk_at_the_gate(probes):
    """Half at the threshold, next to none far above it."""
    assert gate_risk(0.1 * 1.959963984540054, sd=0.1, probes=probes) == pytest.approx(0.5)
    assert gate_risk(0.8, sd=0.1, probes=probes) < 1e-4


@pytest.mark.parametrize(("c0", "shift"), [(500_000, 0.8), (300_000, -0.6), (800_000, 0.5)])
def test_a_player_bonds_the_whole_way_and_knows_what_it_should_come_to(c0, shift):
    """The bond covers the move; hopes fall with the risk, and with what judges make of it."""

    def plan(risk, q_shift=shift):
        return plan_stake(
            c0, lens_shift=shift, q_shift=q_shift, risk=risk, least=2_000, scale=SCALE
        )

    end = round(1e6 / (1 + math.exp(-math.log(c0 / (1e6 - c0)) - shift)))
    assert plan(0.0).stake > required_bond(SCALE, c0, end)
    assert plan(0.0).expected > plan(0.05).expected > plan(0.3).expected
    assert plan(0.0).expected > 0 > plan(0.9).expected
    assert plan(0.0, q_shift=0.0).expected < 0


@pytest.mark.parametrize("side", Side)
def test_a_bet_lifts_the_price_to_where_it_was_meant(side):
    """The implied probability after the bet is the one that was asked for."""
    market = market_of(seed_market("house", stake=10_000, heretic_ppm=500_000))
    amount = lift_to(market, side, 0.8, most=10**6)
    assert float(quote(market, side, amount).probability) == pytest.approx(0.8, abs=0.001)
    assert lift_to(market, side, 0.8, most=100) == 100
    assert lift_to(market, side, 0.3, most=100) == 0


@pytest.mark.parametrize("freedom", [1, 2, 5, 10, 59, 153, 1_999])
def test_quantiles_of_t_are_those_of_the_textbook(freedom):
    """To one part in a hundred, and far better where it matters."""
    exact = scipy.stats.t.ppf(0.995, freedom)
    close = 1e-9 if freedom < 3 else 0.01 if freedom < 10 else 1e-4
    assert t_quantile(0.995, freedom) == pytest.approx(exact, rel=close)


def test_an_interval_counts_episodes_not_seats():
    """Four seats that share one fate are one observation."""
    results = [Result(episode=n, strategy="x", seats=4, amount=4 * (n % 3)) for n in range(30)]
    line = standing("x", Kind.ATTACK, agents=4, results=results, sources={})
    returns = [n % 3 for n in range(30)]
    half = scipy.stats.t.ppf(0.995, 29) * scipy.stats.sem(returns)
    assert line.mean == pytest.approx(1.0)
    assert (line.lo99, line.hi99) == pytest.approx((1 - half, 1 + half), rel=1e-4)
    assert line.verdict is Verdict.GAINS
    assert line.total == sum(result.amount for result in results)
