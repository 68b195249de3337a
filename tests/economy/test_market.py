"""The claim market: every property that must hold, over random markets and at its corners."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from playing import H, O, build_market, economy_settings

from heretix.core.errors import ConfigError, UsageError
from heretix.economy.ledger import Reason
from heretix.economy.market import (
    MAX_POOL,
    MICRO,
    TAU_MAX,
    Market,
    Position,
    Side,
    buy,
    market_of,
    price_ppm,
    quote,
    seed_market,
    settle_market,
)

sides = st.sampled_from(Side)
amounts = st.one_of(st.integers(1, 20), st.integers(1, 10**6), st.integers(1, 10**10))
taus = st.one_of(st.integers(0, TAU_MAX), st.just(TAU_MAX), st.integers(0, 50))
seeds = st.tuples(st.integers(400, 10**8), st.integers(10_000, 990_000))
bet_lists = st.lists(st.tuples(st.sampled_from("abcdef"), sides, amounts), max_size=12)


@st.composite
def markets(draw):
    stake, heretic_ppm = draw(seeds)
    return build_market(draw(bet_lists), stake_=stake, heretic_ppm=heretic_ppm)


def profit(positions, account, winner, tau_ppm):
    lines = settle_market(positions, winner, tau_ppm).lines
    return sum(line.profit for line in lines if line.position.account == account)


def test_the_seed_is_split_at_the_base_rate():
    """The house's money and shares follow the formulas, and the price is the root of the rate."""
    seeded = seed_market("house", stake=10_000, heretic_ppm=250_000)
    heretic, orthodox = seeded
    assert (heretic.stake, orthodox.stake) == (2_500, 7_500)
    assert heretic.shares == math.isqrt(10**12 * 10**8 // 4) == 5_000 * MICRO
    assert orthodox.shares == math.isqrt((MICRO * 10_000) ** 2 - heretic.shares**2)
    market = market_of(seeded)
    assert market.money == 10_000
    assert market.price(H) == Fraction(1, 2)
    assert market.probability(H) == Fraction(1, 4)


@pytest.mark.parametrize(
    ("stake", "heretic_ppm"), [(1, 500_000), (50, 10_000), (1, 990_000), (2, 870_000)]
)
def test_a_seed_too_small_to_split_is_refused(stake, heretic_ppm):
    """Where whole units can't be split so that each has its share, the market doesn't open."""
    with pytest.raises(ConfigError, match="seed the market with more"):
        seed_market("house", stake=stake, heretic_ppm=heretic_ppm)


def test_a_seed_at_certainty_is_refused():
    """A side that can't win has no price."""
    with pytest.raises(UsageError, match="heretic_ppm"):
        seed_market("house", stake=1_000, heretic_ppm=1_000_000)


def test_a_quote_says_what_a_bet_buys_and_risks():
    """Shares, prices, floor and worst case of one bet, worked out by hand."""
    market = Market(money=10_000, heretic=6_000 * MICRO, orthodox=8_000 * MICRO)
    offer = quote(market, H, 2_000)
    # (6,000 + s)² + 8,000² = 12,000² leaves s = √80,000,000 - 6,000 = 2,944.271909…
    assert offer.shares == 2_944_271_909
    assert offer.average_price == Fraction(2_000 * MICRO, 2_944_271_909)
    assert offer.marginal_price == Fraction(8_944_271_909, 12_000 * MICRO)
    assert offer.probability == offer.marginal_price**2
    assert price_ppm(offer.marginal_price) == 745_356
    assert offer.worst_case == 700
    assert offer.floor(350_000) == 330
    assert offer.floor_after_fee(350_000) == 330 - 66
    assert market.price(H) < offer.average_price < offer.marginal_price < 1


def test_a_bet_is_refused_in_order_and_changes_nothing():
    """No amount, a pool out of bounds, too few shares: each has its status."""
    market = market_of(seed_market("house", stake=1_000, heretic_ppm=500_000))
    offer = quote(market, O, 100)
    taken = buy(market, O, 100, min_shares=offer.shares)
    assert taken.after == offer.after
    assert taken == offer
    for amount, least, status in [
        (0, 10**30, "bet_not_positive"),
        (-4, 0, "bet_not_positive"),
        (MAX_POOL, 10**30, "pool_too_large"),
        (100, offer.shares + 1, "too_few_shares"),
    ]:
        refused = buy(market, O, amount, min_shares=least)
        assert isinstance(refused, Reason)
        assert refused.code == status


def test_the_largest_pool_fits_a_64_bit_integer():
    """Micro-shares never outgrow the database's column."""
    market = market_of(seed_market("house", stake=1_000, heretic_ppm=10_000))
    full = buy(market, H, MAX_POOL - 1_000, min_shares=0).after
    assert full.heretic < 2**63


@economy_settings()
@given(markets(), sides, taus)
def test_money_is_conserved_exactly(positions, winner, tau_ppm):
    """What everyone receives, the fees and the dust add up to what was staked."""
    result = settle_market(positions, winner, tau_ppm)
    staked = sum(p.stake for p in positions)
    assert sum(line.receives for line in result.lines) + result.fees + result.dust == staked
    losing = sum(p.stake for p in positions if p.side is not winner)
    assert result.transfer == math.ceil(Fraction(tau_ppm, 10**6) * losing)
    assert result.transfer <= sum(line.paid for line in result.lines)


@economy_settings()
@given(markets(), sides, taus)
def test_a_loser_never_pays_more_than_the_rate(positions, winner, tau_ppm):
    """⌈τm⌉ and not a unit more; 35% is the most there is."""
    for line in settle_market(positions, winner, tau_ppm).lines:
        if not line.won:
            assert (
                -line.profit
                == line.paid
                == math.ceil(Fraction(tau_ppm, 10**6) * line.position.stake)
            )
    with pytest.raises(UsageError, match="tau_ppm"):
        settle_market(positions, winner, TAU_MAX + 1)


@economy_settings()
@given(markets(), sides, taus)
def test_a_winner_never_loses(positions, winner, tau_ppm):
    """A winning stake comes back whole, whatever the fee's rounding."""
    for line in settle_market(positions, winner, tau_ppm).lines:
        assert not line.won or line.receives >= line.position.stake


@economy_settings()
@given(seeds, bet_lists, sides, amounts, bet_lists, taus)
def test_the_quoted_floor_holds_whatever_is_bet_later(seed, before, side, amount, later, tau_ppm):
    """The gain is at least the floor of the quote, rounded down: less than one unit is lost."""
    stake, heretic_ppm = seed
    options = {"stake_": stake, "heretic_ppm": heretic_ppm}
    offer = quote(market_of(build_market(before, **options)), side, amount)
    positions = build_market([*before, ("me", side, amount), *later], **options)
    line = settle_market(positions, side, tau_ppm).lines[len(before) + 2]
    exact = Fraction(tau_ppm, 10**6) * (Fraction(offer.shares, MICRO) - amount)
    assert line.gain >= offer.floor(tau_ppm) > exact - 1
    assert line.gain - line.fee >= offer.floor_after_fee(tau_ppm)


@economy_settings()
@given(seeds, bet_lists, sides, taus)
def test_the_house_loses_no_more_than_its_bound(seed, bets, winner, tau_ppm):
    """τM₀(1-√π_w), and less than three units for rounding."""
    stake, heretic_ppm = seed
    positions = build_market(bets, stake_=stake, heretic_ppm=heretic_ppm)
    rate = heretic_ppm if winner is H else 10**6 - heretic_ppm
    # √π_w to twelve places, rounded down, keeps the bound a rational number.
    root = Fraction(math.isqrt(rate * 10**18), 10**12)
    bound = Fraction(tau_ppm, 10**6) * stake * (1 - root)
    assert -profit(positions, "house", winner, tau_ppm) < bound + 3


@economy_settings()
@given(seeds, bet_lists, sides, st.lists(amounts, min_size=2, max_size=6), bet_lists, sides, taus)
def test_splitting_a_bet_never_gains(seed, before, side, parts, later, winner, tau_ppm):
    """The parts buy exactly the shares of the whole, and come to no more than it does."""
    stake, heretic_ppm = seed
    options = {"stake_": stake, "heretic_ppm": heretic_ppm}
    whole = build_market([*before, ("me", side, sum(parts)), *later], **options)
    split = build_market([*before, *(("me", side, part) for part in parts), *later], **options)
    mine = [p.shares for p in split if p.account == "me"]
    assert sum(mine) == next(p.shares for p in whole if p.account == "me")
    assert market_of(whole) == market_of(split)
    assert profit(split, "me", winner, tau_ppm) <= profit(whole, "me", winner, tau_ppm)


@economy_settings()
@given(seeds, bet_lists, amounts, amounts, st.booleans(), taus)
def test_buying_both_sides_never_has_a_sure_profit(seed, before, h, o, heretic_first, tau_ppm):
    """In the worse outcome it earns nothing."""
    stake, heretic_ppm = seed
    pair = [("me", H, h), ("me", O, o)]
    mine = pair if heretic_first else pair[::-1]
    positions = build_market([*before, *mine], stake_=stake, heretic_ppm=heretic_ppm)
    assert min(profit(positions, "me", winner, tau_ppm) for winner in Side) <= 0


def test_rounding_up_a_crowd_of_losers_feeds_nobody():
    """Rounded once a loser, 200 small stakes at a tiny rate would pay a bet on both sides 27 or 38,
    and a split losing bet would lift winning bets over a rounding by 2."""
    crowd = [(f"u{n}", (O, H)[n % 2], 100) for n in range(200)]
    positions = build_market([*crowd, ("me", H, 10_000), ("me", O, 10_000)], stake_=100)
    assert max(profit(positions, "me", winner, 1_000) for winner in Side) <= 0
    wins = [("me", H, 53)] * 3
    whole = build_market([*wins, ("me", O, 28)], stake_=100)
    split = build_market([*wins, ("me", O, 13), ("me", O, 15)], stake_=100)
    for winner in Side:
        assert profit(split, "me", winner, TAU_MAX) <= profit(whole, "me", winner, TAU_MAX)


@economy_settings()
@given(markets(), sides, taus)
def test_dust_is_less_than_the_number_of_bets(positions, winner, tau_ppm):
    """Each gain is rounded down and each loss up, by less than one unit."""
    assert 0 <= settle_market(positions, winner, tau_ppm).dust < len(positions)


@economy_settings()
@given(markets(), sides, amounts)
def test_every_rounding_goes_against_the_mover(positions, side, amount):
    """A bet never buys more than the square root allows, and never less than one share a unit."""
    market = market_of(positions)
    assume(market.money + amount <= MAX_POOL)
    offer = quote(market, side, amount)
    after = offer.after
    assert after.heretic**2 + after.orthodox**2 <= (MICRO * after.money) ** 2
    assert (after.shares(side) + 1) ** 2 + after.shares(side.other) ** 2 > (
        MICRO * after.money
    ) ** 2
    assert offer.shares >= MICRO * amount
    assert price_ppm(offer.average_price) >= offer.average_price * 10**6


@economy_settings(max_examples=100)
@given(markets())
def test_void_and_held_give_everything_back(positions):
    """Without a winner every stake comes back exactly, free of fees."""
    result = settle_market(positions, None)
    assert [line.receives for line in result.lines] == [p.stake for p in positions]
    assert (result.fees, result.dust, result.transfer) == (0, 0, 0)


def test_a_rate_of_zero_moves_nothing():
    """A win at rate 0 is worth what a held episode is."""
    positions = build_market([("a", H, 70), ("b", O, 30)])
    result = settle_market(positions, H, 0)
    assert all(line.profit == 0 for line in result.lines)


def test_the_house_pays_no_fee_to_itself():
    """The seed's gain is free of fees: its bound would not hold otherwise."""
    positions = build_market([("a", H, 10**9), ("b", O, 1)], stake_=10**6)
    lines = settle_market(positions, H, TAU_MAX).lines
    assert [line.fee for line in lines[:2]] == [0, 0]
    # The bound is 0.35·10⁶·(1-√0.5) = 102,512.6; a fee of ⌈72,487/5⌉ = 14,498 would break it.
    assert lines[1].paid - lines[0].gain == 175_000 - 72_487 == 102_513


def _cut(bets, rng):
    """Each bet of mine in up to four parts, where it stands."""
    for who, side, amount in bets:
        marks = {rng.randrange(1, amount + 1) for _ in range(3)} if who == "me" else set()
        ends = sorted({0, amount, *marks})
        yield from ((who, side, end - begun) for begun, end in pairwise(ends))


@pytest.mark.parametrize("wanted", [3_000, pytest.param(60_000, marks=pytest.mark.study)])
def test_random_settlements(wanted):
    """No market breaks conservation, the cap, the winners' safety, a quoted floor or the bound of
    dust, lets who bets on both sides win either way, or pays more for a bet that was cut up."""
    rng = random.Random(20_261_115)
    rules = ("conservation", "cap", "losing winner", "floor", "dust", "sure", "split")
    broken = dict.fromkeys(rules, 0)
    settled = 0
    for _ in range(wanted):
        seed_stake = rng.choice((20, 500, 10_000, 10**8))
        heretic_ppm = rng.randrange(100_000, 900_000)
        seeded = seed_market("house", stake=seed_stake, heretic_ppm=heretic_ppm)
        market, positions, quotes = market_of(seeded), list(seeded), [None, None]
        last = 2 + rng.randrange(1, 8)
        for number in range(2, last + 2):
            who = "me" if number >= last else "u"
            side, amount = rng.choice((H, O)), int(10 ** rng.uniform(0, 8))
            if who == "me":
                side = (H, O)[number - last]
            bought = buy(market, side, amount, min_shares=0)
            market = bought.after
            quotes.append(bought)
            shares = bought.shares
            positions.append(
                Position(number=number, account=who, side=side, stake=amount, shares=shares)
            )
        winner, tau_ppm = rng.choice((H, O)), rng.choice((rng.randrange(TAU_MAX), TAU_MAX, 7))
        result = settle_market(positions, winner, tau_ppm)
        given_out = sum(line.receives for line in result.lines) + result.fees + result.dust
        broken["conservation"] += given_out != market.money
        broken["dust"] += not 0 <= result.dust < len(positions)
        broken["sure"] += min(profit(positions, "me", side, tau_ppm) for side in Side) > 0
        bets = [(p.account, p.side, p.stake) for p in positions[2:]]
        cut = build_market(_cut(bets, rng), stake_=seed_stake, heretic_ppm=heretic_ppm)
        gained = profit(cut, "me", winner, tau_ppm)
        broken["split"] += gained > profit(positions, "me", winner, tau_ppm)
        for line, offer in zip(result.lines, quotes, strict=True):
            stake = line.position.stake
            broken["cap"] += not line.won and (line.paid - 1) * 10**6 >= tau_ppm * stake
            broken["cap"] += not line.won and line.receives != stake - line.paid
            broken["losing winner"] += line.won and line.receives < stake
            broken["floor"] += bool(offer and line.won and line.gain < offer.floor(tau_ppm))
        settled += 1
    assert settled == wanted
    assert not any(broken.values()), broken
