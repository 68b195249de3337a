"""The market against a model in exact fractions and long decimals, written another way."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from market_model import Pool
from playing import MACHINE_TIMEOUT_S, H, O, economy_settings

from heretix.economy.ledger import Reason
from heretix.economy.market import (
    MICRO,
    Position,
    Side,
    buy,
    market_of,
    seed_market,
    settle_market,
)

pytestmark = pytest.mark.timeout(MACHINE_TIMEOUT_S)

sides = st.sampled_from(Side)


class MarketMachine(RuleBasedStateMachine):
    """Bets come in any order and size; at every moment any settlement must agree."""

    @initialize(stake=st.integers(400, 10**7), heretic_ppm=st.integers(10_000, 990_000))
    def open(self, stake, heretic_ppm):
        seeded = seed_market("house", stake=stake, heretic_ppm=heretic_ppm)
        self.market, self.positions = market_of(seeded), list(seeded)
        self.model = Pool(stake, heretic_ppm)
        self.floors: dict[int, int] = {}

    def place(self, side, amount, *, min_shares=0):
        expected = self.model.worth(side, amount)
        result = buy(self.market, side, amount, min_shares=min_shares)
        if expected < min_shares:
            assert isinstance(result, Reason)
            assert result.code == "too_few_shares"
            event("too few shares")
            return
        assert result.shares == expected
        number = len(self.positions)
        self.model.bets.append((f"u{number}", side, amount, expected))
        self.positions.append(
            Position(number=number, account=f"u{number}", side=side, stake=amount, shares=expected)
        )
        self.floors[number] = expected - MICRO * amount
        self.market = result.after

    @rule(side=sides, amount=st.integers(1, 50))
    def small_bet(self, side, amount):
        self.place(side, amount)

    @rule(side=sides, amount=st.integers(1, 10**8))
    def bet(self, side, amount):
        self.place(side, amount)

    @rule(side=sides, amount=st.integers(1, 10**6), over=st.integers(-5, 5))
    def guarded_bet(self, side, amount, over):
        self.place(side, amount, min_shares=self.model.worth(side, amount) + over)

    @rule(winner=sides, tau_ppm=st.integers(0, 350_000))
    def settle(self, winner, tau_ppm):
        result = settle_market(self.positions, winner, tau_ppm)
        expected = self.model.receives(winner, Fraction(tau_ppm, 10**6))
        assert [line.receives for line in result.lines] == expected
        assert sum(expected) + result.fees + result.dust == self.market.money
        for line in result.lines:
            number = line.position.number
            if line.won and number in self.floors:
                assert line.gain >= Fraction(tau_ppm * self.floors[number], 10**6 * MICRO) // 1

    @rule()
    def void(self):
        assert [x.receives for x in settle_market(self.positions, None).lines] == [
            bet[2] for bet in self.model.bets
        ]

    @invariant()
    def the_market_is_its_positions(self):
        assert self.market == market_of(self.positions)
        assert self.market.money == self.model.total(2)
        assert self.market.heretic == self.model.total(3, H)
        assert self.market.price(H) ** 2 + self.market.price(O) ** 2 <= 1


TestMarketMachine = MarketMachine.TestCase
TestMarketMachine.settings = economy_settings()
