"""The claim market of an episode: a dynamic pari-mutuel in integers.

Money M and micro-shares N keep N_H² + N_O² = (K·M)², each square root rounded down (Pennock
2004, "A dynamic pari-mutuel market for hedging, wagering, and information aggregation").
Stakes lock: there is no selling, and no share that money didn't pay for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import Record
from heretix.core.errors import ConfigError
from heretix.economy import ledger
from heretix.economy.rewards import BELIEF_MAX, BELIEF_MIN

if TYPE_CHECKING:
    from collections.abc import Sequence

MICRO: Final = 1_000_000
"""K: micro-shares in a share."""
TAU_MAX: Final = 350_000
"""The most of a losing stake that can change hands, in parts per million."""
FEE: Final = 200_000
"""Fee on a gain, in parts per million."""
MAX_POOL: Final = (2**63 - 1) // MICRO
"""With at most this much money the micro-shares of a side fit a database's 64-bit integer."""


class Side(StrEnum):
    """The two pools: heretic if the belief moves up, orthodox if it moves down."""

    HERETIC = "heretic"
    ORTHODOX = "orthodox"

    @property
    def other(self) -> Side:
        return Side.ORTHODOX if self is Side.HERETIC else Side.HERETIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Market(Record):
    """Holdings of a market: money, and micro-shares of each side."""

    money: int
    heretic: int
    orthodox: int

    def shares(self, side: Side) -> int:
        # By value: a page names a side by its word.
        return self.heretic if side == Side.HERETIC else self.orthodox

    def price(self, side: Side) -> Fraction:
        """Price of the next sliver of a share: N/(K·M), below 1."""
        return Fraction(self.shares(side), MICRO * self.money)

    def probability(self, side: Side) -> Fraction:
        """The transfer-weighted probability that the price implies: its square."""
        return self.price(side) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Position(Record):
    """One bet. A second bet by the same account is a position of its own."""

    number: int
    """Place among the bets of the market, from 0."""
    account: str
    side: Side
    stake: int
    shares: int
    """In micro-shares."""
    at_ms: int = 0
    house: bool = False
    """The seed: the house's own money, which pays no fee to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Quote of a bet: what it buys now, and what it can come to."""

    side: Side
    stake: int
    shares: int
    """In micro-shares."""
    average_price: Fraction
    marginal_price: Fraction
    probability: Fraction
    tau_max_ppm: int
    fee_ppm: int
    after: Market

    @property
    def worst_case(self) -> int:
        """The most that this bet can lose."""
        return ledger.ceil_part(self.stake, self.tau_max_ppm)

    def floor(self, tau_ppm: int) -> int:
        """The least gain, before the fee, if the side wins at this rate, whatever is bet later."""
        return tau_ppm * (self.shares - MICRO * self.stake) // (ledger.PPM * MICRO)

    def floor_after_fee(self, tau_ppm: int) -> int:
        gain = self.floor(tau_ppm)
        return gain - ledger.ceil_part(gain, self.fee_ppm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Effect of a settlement on one position."""

    position: Position
    won: bool | None
    """None when nobody won."""
    paid: int
    gain: int
    fee: int

    @property
    def profit(self) -> int:
        return self.gain - self.paid - self.fee

    @property
    def receives(self) -> int:
        return self.position.stake + self.profit


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketResult:
    """Sums of a market that was settled."""

    winner: Side | None
    tau_ppm: int
    transfer: int
    """T = ⌈τ·Σ losing stakes⌉: what is shared out. What losers pay beyond it is dust."""
    given_up: int
    """Sum of what losers pay."""
    fees: int
    dust: int

    @property
    def gained(self) -> int:
        """Sum of what winners gain, before their fees."""
        return self.given_up - self.dust


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketSettlement(MarketResult):
    """Distribution of a market's money: the lines, the fees and the dust add up to it."""

    lines: tuple[Line, ...]


def seed_market(
    account: str, *, stake: int, heretic_ppm: int, at_ms: int = 0
) -> tuple[Position, ...]:
    """Open a market with the house's two positions, split at the base rate of Heretic wins.

    A seed so small that rounding to whole units would leave a side without the shares that
    its stake pays for is refused: every promise below rests on a share for each unit staked.
    """
    ledger.require_whole("stake", stake, least=1, most=MAX_POOL)
    ledger.require_ppm("heretic_ppm", heretic_ppm, least=BELIEF_MIN, most=BELIEF_MAX)
    whole = (MICRO * stake) ** 2
    heretic = isqrt(whole * heretic_ppm // ledger.PPM)
    orthodox = isqrt(whole - heretic**2)
    on_heretic = stake * heretic_ppm // ledger.PPM
    on_orthodox = stake - on_heretic
    if on_heretic < 1 or MICRO * on_heretic > heretic or MICRO * on_orthodox > orthodox:
        raise ConfigError(
            f"`stake` must be large enough to put whole units on both sides at "
            f"{heretic_ppm} parts per million, got {stake}; seed the market with more"
        )
    bets = ((Side.HERETIC, on_heretic, heretic), (Side.ORTHODOX, on_orthodox, orthodox))
    return tuple(
        Position(number=n, account=account, side=side, stake=m, shares=s, at_ms=at_ms, house=True)
        for n, (side, m, s) in enumerate(bets)
    )


def quote(
    market: Market, side: Side, amount: int, *, tau_max_ppm: int = TAU_MAX, fee_ppm: int = FEE
) -> Quote:
    """Quote what `amount` on `side` would buy now. Nothing changes."""
    ledger.require_whole("amount", amount, least=1, most=MAX_POOL - market.money)
    ledger.require_ppm("tau_max_ppm", tau_max_ppm, most=TAU_MAX)
    money = market.money + amount
    bought = isqrt((MICRO * money) ** 2 - market.shares(side.other) ** 2)
    shares = bought - market.shares(side)
    after = Market(
        money=money,
        heretic=bought if side is Side.HERETIC else market.heretic,
        orthodox=bought if side is Side.ORTHODOX else market.orthodox,
    )
    return Quote(
        side=side,
        stake=amount,
        shares=shares,
        average_price=Fraction(MICRO * amount, shares),
        marginal_price=after.price(side),
        probability=after.probability(side),
        tau_max_ppm=tau_max_ppm,
        fee_ppm=fee_ppm,
        after=after,
    )


def buy(
    market: Market,
    side: Side,
    amount: int,
    *,
    min_shares: int,
    tau_max_ppm: int = TAU_MAX,
    fee_ppm: int = FEE,
) -> Quote | ledger.Reason:
    """Take a bet if it buys at least `min_shares` micro-shares, or say why not."""
    if amount <= 0:
        return ledger.Reason.of("bet_not_positive", amount=amount)
    if market.money + amount > MAX_POOL:
        return ledger.Reason.of("pool_too_large", most=MAX_POOL, amount=amount)
    offer = quote(market, side, amount, tau_max_ppm=tau_max_ppm, fee_ppm=fee_ppm)
    if offer.shares >= min_shares:
        return offer
    # The price moved: the bet would buy less than was asked for.
    return ledger.Reason.of(
        "too_few_shares", amount=amount, shares=offer.shares, min_shares=min_shares
    )


def market_of(positions: Sequence[Position]) -> Market:
    """The market that these positions make up."""
    held = dict.fromkeys(Side, 0)
    for position in positions:
        held[position.side] += position.shares
    return Market(
        money=sum(position.stake for position in positions),
        heretic=held[Side.HERETIC],
        orthodox=held[Side.ORTHODOX],
    )


def remove_positions(market: Market, positions: Sequence[Position]) -> Market:
    """The market as it is when these positions are taken out of it."""
    gone = market_of(positions)
    return Market(
        money=market.money - gone.money,
        heretic=market.heretic - gone.heretic,
        orthodox=market.orthodox - gone.orthodox,
    )


def settle_market(
    positions: Sequence[Position], winner: Side | None, tau_ppm: int = 0, *, fee_ppm: int = FEE
) -> MarketSettlement:
    """Move τ of the losing stakes to the winners, by how early and how boldly they bought; without
    a winner, void or held, everyone gets exactly their stake back, free of fees.

    A winner's weight g = s·M - m·N_w is what its shares are worth at the final price over what
    it staked. Σg = N_w·(losing money) when nothing is clipped, which is what makes the quoted
    floor hold whatever is bet later.
    """
    ledger.require_ppm("tau_ppm", tau_ppm, most=TAU_MAX if winner else 0)
    ledger.require_ppm("fee_ppm", fee_ppm)
    market = market_of(positions)
    winning = market.shares(winner) if winner else 0
    paid = [0 if p.side is winner else ledger.ceil_part(p.stake, tau_ppm) for p in positions]
    weights = [
        max(0, p.shares * market.money - p.stake * winning) if p.side is winner else 0
        for p in positions
    ]
    # Rounded once, not once a loser: else many small stakes on the other side would pay a mover
    # who holds both more than they cost. What each loser is rounded up by is dust.
    losing = sum(p.stake for p in positions if p.side is not winner)
    transfer = ledger.ceil_part(losing, tau_ppm)
    gains = ledger.share_out(transfer, weights)
    fees = [
        0 if p.house else ledger.ceil_part(gain, fee_ppm)
        for p, gain in zip(positions, gains.parts, strict=True)
    ]
    lines = tuple(
        Line(position=p, won=p.side is winner if winner else None, paid=lost, gain=gain, fee=fee)
        for p, lost, gain, fee in zip(positions, paid, gains.parts, fees, strict=True)
    )
    dust = gains.dust + sum(paid) - transfer
    shared = {"transfer": transfer, "given_up": sum(paid), "fees": sum(fees), "dust": dust}
    return MarketSettlement(winner=winner, tau_ppm=tau_ppm, lines=lines, **shared)


def price_ppm(price: Fraction) -> int:
    """A price in parts per million, rounded up: what a buyer is told is never too little."""
    return ledger.ceil_div(price.numerator * ledger.PPM, price.denominator)
