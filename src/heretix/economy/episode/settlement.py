"""Settlement: who wins at what rate, and who is paid what; a pure function of the record."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

from heretix.core.canonical import Record
from heretix.core.errors import RecordError, UsageError
from heretix.economy.judging.gate import JudgeShift, both_halves, shift_belief, target_belief
from heretix.economy.ledger import (
    PPM,
    AccountKind,
    Code,
    Escrow,
    Explained,
    Group,
    Reason,
    Statement,
    floor_part,
    require_ppm,
    require_whole,
)
from heretix.economy.market import Line, MarketSettlement, Position, Side, give_back, settle_market
from heretix.economy.rewards import (
    CONTEXT,
    LN2,
    RewardBook,
    Step,
    budget,
    divergence,
    require_finite,
    settle_rewards,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.episode.state import Parameters, Terms

# What the hold-out judges found: who wins, at what rate, or why nobody does.


class VoidReason(StrEnum):
    """Why an episode gives everything back, in order of precedence."""

    NO_OUTSIDE_STAKE = "no_outside_stake"
    """On one side there was nobody but the house."""
    CACHED_SAMPLE = "cached_sample"
    """A sample of a judging measurement was served from the cache."""
    MODEL_CHANGED = "model_changed"
    LOW_COMPLIANCE = "low_compliance"
    MISSING_QUORUM = "missing_quorum"
    NO_ESTIMATE = "no_estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReading(Record):
    """One judge in one measurement: log-odds without and with the evidence."""

    model: str
    provider_model_ids: tuple[str, ...]
    """Every model id that the provider answered with."""
    before: Decimal | None
    after: Decimal | None
    attempted: int
    compliant: int
    from_cache: int

    def __post_init__(self) -> None:
        require_whole("attempted", self.attempted, least=1)
        require_whole("compliant", self.compliant, most=self.attempted)
        require_whole("from_cache", self.from_cache, most=self.attempted)
        for name, value in (("before", self.before), ("after", self.after)):
            if value is not None:
                require_finite(f"{self.model}.{name}", value)

    @property
    def shift(self) -> JudgeShift | None:
        """How far the judge moved, if both of its beliefs are known."""
        if self.before is None or self.after is None:
            return None
        return JudgeShift(model=self.model, before=self.before, after=self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Record):
    """One judging measurement: the judges, and their paired difference taken together."""

    readings: tuple[JudgeReading, ...]
    p_up_ppm: int | None
    """Share of replicas in which the judges went up; None without an estimate."""
    shift_lo: Decimal | None
    shift_hi: Decimal | None
    """The 95% interval of the judges' median shift, in log-odds."""

    def __post_init__(self) -> None:
        if self.p_up_ppm is not None:
            require_ppm("p_up_ppm", self.p_up_ppm)
        for name, value in (("shift_lo", self.shift_lo), ("shift_hi", self.shift_hi)):
            if value is not None:
                require_finite(name, value)
        models = [reading.model for reading in self.readings]
        if len(set(models)) != len(models):
            raise UsageError("`readings` must hold each judge once, got one twice")

    @property
    def shifts(self) -> tuple[JudgeShift, ...]:
        """The judges that have an estimate."""
        return tuple(r.shift for r in self.readings if r.shift is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an episode ended. Held: no winner, no reason to void."""

    winner: Side | None
    tau_ppm: int
    q_ppm: int | None
    """The durable belief; None when void."""
    nearest_ppm: int | None
    """The end of its interval nearest to c₀, which sets the rate."""
    void: VoidReason | None

    @property
    def held(self) -> bool:
        """Measured, and neither side could show that it was right."""
        return self.winner is None and self.void is None


def void_reason(
    measurements: Sequence[Measurement],
    *,
    positions: Sequence[Position],
    parameters: Parameters,
) -> VoidReason | None:
    """The first reason to void that the stakes and the measurements so far give."""
    readings = [reading for measurement in measurements for reading in measurement.readings]
    served: dict[str, set[str]] = {}
    for reading in readings:
        served.setdefault(reading.model, set()).update(reading.provider_model_ids)
    least_ppm, quorum = parameters.min_compliance_ppm, parameters.quorum
    found = {
        VoidReason.NO_OUTSIDE_STAKE: {p.side for p in positions if not p.house} != set(Side),
        VoidReason.CACHED_SAMPLE: any(reading.from_cache for reading in readings),
        VoidReason.MODEL_CHANGED: any(len(ids) > 1 for ids in served.values()),
        VoidReason.LOW_COMPLIANCE: any(_compliance_below(m, least_ppm) for m in measurements),
        VoidReason.MISSING_QUORUM: any(len(m.shifts) < quorum for m in measurements),
        VoidReason.NO_ESTIMATE: any(
            None in (m.p_up_ppm, m.shift_lo, m.shift_hi) for m in measurements
        ),
    }
    return next((reason for reason in VoidReason if found[reason]), None)


def decide(
    c0_ppm: int,
    measurements: Sequence[Measurement],
    *,
    positions: Sequence[Position],
    parameters: Parameters,
) -> Outcome:
    """Heretic (Orthodox) wins if both measurements are sure that the judges went up (down)."""
    void = void_reason(measurements, positions=positions, parameters=parameters)
    if void is not None:
        return Outcome(winner=None, tau_ppm=0, q_ppm=None, nearest_ppm=None, void=void)
    if len(measurements) != 2:
        raise UsageError(
            f"`measurements` must be two, at the freeze and after the durability window, got "
            f"{len(measurements)}; measure again when the window has passed"
        )
    first, second = measurements
    q_ppm = both_halves(target_belief(c0_ppm, first.shifts), target_belief(c0_ppm, second.shifts))
    winner = _winner(first, second, parameters.win_ppm)
    if winner is None:
        return Outcome(winner=None, tau_ppm=0, q_ppm=q_ppm, nearest_ppm=None, void=None)
    nearest = _nearest_end(c0_ppm, first, second, winner)
    return Outcome(
        winner=winner,
        tau_ppm=transfer_rate(nearest, c0_ppm, parameters.tau_max_ppm),
        q_ppm=q_ppm,
        nearest_ppm=nearest,
        void=None,
    )


def transfer_rate(nearest_ppm: int, c0_ppm: int, tau_max_ppm: int) -> int:
    """τ = τ_max·min(1, KL(q‖c₀)/ln 2), in parts per million, rounded down."""
    share = min(CONTEXT.divide(divergence(nearest_ppm, c0_ppm), LN2), Decimal(1))
    rate = CONTEXT.multiply(Decimal(tau_max_ppm), share)
    return int(rate.to_integral_value(rounding=decimal.ROUND_FLOOR))


def _winner(first: Measurement, second: Measurement, win_ppm: int) -> Side | None:
    assert first.p_up_ppm is not None
    assert second.p_up_ppm is not None
    if min(first.p_up_ppm, second.p_up_ppm) >= win_ppm:
        return Side.HERETIC
    if max(first.p_up_ppm, second.p_up_ppm) <= PPM - win_ppm:
        return Side.ORTHODOX
    return None


def _nearest_end(c0_ppm: int, first: Measurement, second: Measurement, winner: Side) -> int:
    """The end nearest to c₀ of the interval of q, its ends halved as q is; rounded towards c₀.

    An interval that reaches c₀, or lies on the loser's side of it, gives c₀ itself: rate 0.
    """
    if winner is Side.HERETIC:
        ends = [shift_belief(c0_ppm, _known(m.shift_lo)) for m in (first, second)]
        return max(sum(ends) // 2, c0_ppm)
    ends = [shift_belief(c0_ppm, _known(m.shift_hi)) for m in (first, second)]
    return min(-(-sum(ends) // 2), c0_ppm)


def _compliance_below(measurement: Measurement, least_ppm: int) -> bool:
    attempted = sum(reading.attempted for reading in measurement.readings)
    compliant = sum(reading.compliant for reading in measurement.readings)
    return compliant * PPM < least_ppm * attempted


def _known(value: Decimal | None) -> Decimal:
    assert value is not None, "a measurement without an estimate is void"
    return value


# The settlement of an episode: a pure function of its record, so that anyone can redo it.
#
# Its group's id follows from the episode's, so the ledger lets it happen once at most.


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRecord:
    """Everything that a settlement depends on."""

    episode: str
    terms: Terms
    terms_hash: str
    """As written at open."""
    positions: tuple[Position, ...]
    """The stakes up to the effective close."""
    steps: tuple[Step, ...]
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Who gets what, as one group of transfers, each line explained."""

    outcome: Outcome
    market: MarketSettlement
    rewards: RewardBook | None
    """None when void: then bonds and budget go back whole."""
    group: Group
    lines: tuple[Explained, ...]


def settlement_id(episode: str) -> str:
    """The id of the one group that can end an episode."""
    return f"settle:{episode}"


def settle(record: SettlementRecord) -> Settlement:
    """Work out a settlement. The same record always gives the same transfers."""
    terms = record.terms
    if terms.hash() != record.terms_hash:
        raise RecordError(
            f"`terms` of episode {record.episode!r} must be those it opened with, "
            f"{record.terms_hash}, got {terms.hash()}; restore the record"
        )
    parameters = terms.parameters
    outcome = decide(
        terms.c0_ppm, record.measurements, positions=record.positions, parameters=parameters
    )
    market = _market(outcome, record.positions, parameters.fee_ppm)
    rewards = _rewards(outcome, record)
    statement = Statement(
        settlement_id(record.episode), episode=record.episode, currency=terms.currency
    )
    _pay_stakes(statement, outcome, market)
    _pay_fees(statement, market, parameters.platform_ppm)
    _pay_rewards(statement, record, rewards)
    group = statement.group(closes=True)
    assert group is not None, "the seed is always there to be given back"
    return Settlement(
        outcome=outcome, market=market, rewards=rewards, group=group, lines=statement.lines
    )


def _market(outcome: Outcome, positions: Sequence[Position], fee_ppm: int) -> MarketSettlement:
    if outcome.winner is None:
        return give_back(positions)
    return settle_market(positions, outcome.winner, outcome.tau_ppm, fee_ppm=fee_ppm)


def _rewards(outcome: Outcome, record: SettlementRecord) -> RewardBook | None:
    if outcome.q_ppm is None:
        return None
    return settle_rewards(
        record.steps,
        scale=record.terms.parameters.reward_scale,
        c0_ppm=record.terms.c0_ppm,
        q_ppm=outcome.q_ppm,
    )


def _pay_stakes(statement: Statement, outcome: Outcome, market: MarketSettlement) -> None:
    pot = statement.pot(Escrow.STAKE)
    code = Code.STAKE_REFUND if market.winner is None else Code.PAYOUT
    for line in market.lines:
        reason = _explain_stake(line, outcome, market)
        statement.move(pot, line.position.account, line.receives, code, reason)


def _explain_stake(line: Line, outcome: Outcome, market: MarketSettlement) -> Reason:
    position = line.position
    bet = {"number": position.number, "stake": position.stake, "side": position.side.value}
    if outcome.void is not None:
        return Reason("bet_void", {**bet, "void": outcome.void.value})
    if line.won is None:
        return Reason("bet_held", bet)
    ended = {**bet, "rate_ppm": market.tau_ppm, "receives": line.receives}
    if not line.won:
        return Reason("bet_lost", {**ended, "paid": line.paid})
    won = {"gain": line.gain, "transfer": market.transfer, "fee": line.fee}
    return Reason("bet_won", {**ended, **won})


def _pay_fees(statement: Statement, market: MarketSettlement, platform_ppm: int) -> None:
    pot = statement.pot(Escrow.STAKE)
    platform = floor_part(market.fees, platform_ppm)
    fund = market.fees - platform
    statement.move(
        pot,
        statement.house(AccountKind.PLATFORM),
        platform,
        Code.FEE,
        Reason.of("fee_platform", fees=market.fees),
    )
    statement.move(
        pot,
        statement.house(AccountKind.EPC_FUND),
        fund,
        Code.FEE,
        Reason.of("fee_fund", fees=market.fees),
    )
    statement.move(
        pot,
        statement.house(AccountKind.ROUNDING),
        market.dust,
        Code.DUST,
        Reason("gains_dust"),
    )


def _pay_rewards(
    statement: Statement, record: SettlementRecord, rewards: RewardBook | None
) -> None:
    bonds, pot = statement.pot(Escrow.BOND), statement.pot(Escrow.BUDGET)
    fund = statement.house(AccountKind.EPC_FUND)
    if rewards is None:
        for step in record.steps:
            reason = Reason.of("bond_void", number=step.number)
            statement.move(bonds, step.account, step.bond, Code.BOND_RETURN, reason)
        left = budget(record.terms.parameters.reward_scale, record.terms.c0_ppm)
        statement.move(pot, fund, left, Code.BUDGET_RETURN, Reason("budget_void"))
        return
    # What steps lost comes in before what steps earned goes out, so the pot never runs short.
    for item in rewards.rewards:
        reason = Reason.of("step_away", number=item.step.number)
        statement.move(bonds, pot, max(0, -item.amount), Code.CLAWBACK, reason)
    for item in rewards.rewards:
        step = item.step
        kept = step.bond - max(0, -item.amount)
        reason = Reason.of(
            "bond_returned", number=step.number, bond=step.bond, lost=step.bond - kept
        )
        statement.move(bonds, step.account, kept, Code.BOND_RETURN, reason)
        reason = Reason.of("step_towards", number=step.number, amount=item.amount)
        statement.move(pot, step.account, max(0, item.amount), Code.REWARD, reason)
    statement.move(pot, fund, rewards.budget_left, Code.BUDGET_RETURN, Reason("budget_left"))
