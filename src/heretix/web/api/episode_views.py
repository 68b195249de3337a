"""Episodes as the API shows them. Moments are milliseconds since 1970, beliefs parts per million,
amounts whole minor units."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from heretix.economy.codec import encode
from heretix.economy.episode import Episode, Fate, Ground, State
from heretix.economy.judging import Direction
from heretix.economy.market import Market, Quote, Side, price_ppm
from heretix.economy.transfers import Code

__all__ = [
    "BreachView",
    "ChallengeView",
    "DisputeView",
    "EpisodeAuditView",
    "EpisodeLine",
    "EpisodeView",
    "HeldPositionView",
    "LeastStake",
    "MarketView",
    "PositionView",
    "QuoteView",
    "StatementView",
]


class _View(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class MarketView(_View):
    """What a market holds: money, and micro-shares of each side."""

    money: int
    heretic: int
    orthodox: int


class PositionView(_View):
    """One bet."""

    number: int
    account: str
    side: Side
    stake: int
    shares: int
    """In micro-shares."""
    at_ms: int
    house: bool
    """The seed, which is the house's own money."""


class ChallengeView(_View):
    """Evidence on its way: a commitment, then what it hid, then a ruling."""

    number: int
    account: str
    direction: Direction
    commitment: str
    stake: int
    at_ms: int
    positions_before: int
    bundle_sha256: str | None
    fate: Fate


class StepView(_View):
    """One accepted piece of evidence, and how far it moved the credited path."""

    number: int
    account: str
    evidence: str
    c_from_ppm: int
    c_wanted_ppm: int
    c_to_ppm: int
    bond: int


class DisputeView(_View):
    """A claim that the measurement is wrong, with money behind it."""

    round: int
    account: str
    ground: Ground
    bond: int
    at_ms: int
    upheld: bool | None


class EpisodeLine(_View):
    """One line of a list of episodes."""

    id: str
    claim: str
    currency: str
    state: State
    market: MarketView | None
    position_count: int
    clock_ms: int
    close_ms: int | None
    created_ms: int
    updated_ms: int


class HeldPositionView(_View):
    """A bet of one's own, and the episode it is in."""

    episode: str
    claim: str
    state: State
    position: PositionView
    late: bool
    """It came after the effective close, so that it was given back."""


class ExplainedView(_View):
    """Who received what, and why."""

    transfer: str
    account: str
    amount: int
    code: Code
    text: str


class StatementView(_View):
    """What one move paid, each line explained."""

    group: str
    move: str
    lines: list[ExplainedView]
    at_ms: int


class EpisodeView(_View):
    """An episode, as it stands."""

    id: str
    state: State
    terms: dict[str, Any]
    terms_hash: str | None
    belief_ppm: int
    market: MarketView | None
    heretic_ppm: int | None
    """The probability of a Heretic win that the market's price implies."""
    position_count: int
    clock_ms: int
    close_ms: int | None
    frozen_ms: int | None
    measured_ms: int | None
    seed: str | None
    """In hex, once the freeze has revealed it."""
    judges: list[str]
    challenges: list[ChallengeView]
    steps: list[StepView]
    measurements: list[dict[str, Any]]
    disputes: list[DisputeView]

    @classmethod
    def of(cls, episode: Episode) -> "EpisodeView":
        """An episode as anybody may see it."""
        told = encode(episode)
        return cls(
            belief_ppm=episode.belief_ppm,
            heretic_ppm=_implied(episode.market),
            **{name: told[name] for name in cls.model_fields if name in told},
        )


class QuoteView(BaseModel):
    """What a bet would buy now, and what it can come to."""

    side: Side
    stake: int
    shares: int
    """In micro-shares; what `min_shares` may ask for."""
    average_price_ppm: int
    marginal_price_ppm: int
    implied_ppm: int
    tau_max_ppm: int
    fee_ppm: int
    floor: int
    """The least gain, before the fee, if the side wins at the full rate."""
    floor_after_fee: int
    worst_case: int
    """The most that it can lose."""

    @classmethod
    def of(cls, offer: Quote) -> "QuoteView":
        """A quote in whole numbers."""
        return cls(
            side=offer.side,
            stake=offer.stake,
            shares=offer.shares,
            average_price_ppm=price_ppm(offer.average_price),
            marginal_price_ppm=price_ppm(offer.marginal_price),
            implied_ppm=price_ppm(offer.probability),
            tau_max_ppm=offer.tau_max_ppm,
            fee_ppm=offer.fee_ppm,
            floor=offer.floor(offer.tau_max_ppm),
            floor_after_fee=offer.floor_after_fee(offer.tau_max_ppm),
            worst_case=offer.worst_case,
        )


class BreachView(_View):
    """A rule that doesn't hold, and of what."""

    rule: str
    subject: str
    detail: str


class EpisodeAuditView(BaseModel):
    """Whether an episode follows from its own record."""

    ok: bool
    breaches: list[BreachView]


class LeastStake(BaseModel):
    """What must be put behind a challenge, at least."""

    amount: int


def _implied(market: Market | None) -> int | None:
    return None if market is None else price_ppm(market.probability(Side.HERETIC))
