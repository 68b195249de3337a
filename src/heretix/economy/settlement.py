"""The settlement of an episode: a pure function of its record, so that anyone can redo it.

Its group's id follows from the episode's, so the ledger lets it happen once at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.economy.accounts import AccountKind, Escrow
from heretix.economy.market import Line, MarketSettlement, Position, give_back, settle_market
from heretix.economy.money import floor_part
from heretix.economy.outcome import Measurement, Outcome, decide
from heretix.economy.rewards import RewardBook, Step, budget, settle_rewards
from heretix.economy.statement import Explained, Statement
from heretix.economy.transfers import Code, Group
from heretix.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.terms import Terms

__all__ = ["Settlement", "SettlementRecord", "settle", "settlement_id"]


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
        text = _stake_text(line, outcome, market)
        statement.move(pot, line.position.account, line.receives, code, text)


def _stake_text(line: Line, outcome: Outcome, market: MarketSettlement) -> str:
    position = line.position
    bet = f"bet {position.number}: {position.stake} on {position.side.value}"
    if outcome.void is not None:
        return f"{bet}; void ({outcome.void.value}): the stake comes back whole"
    if line.won is None:
        return f"{bet}; held, no side won: the stake comes back whole"
    rate = f"{market.tau_ppm} ppm"
    if not line.won:
        return f"{bet}; lost at a rate of {rate}: {position.stake} - {line.paid} = {line.receives}"
    return (
        f"{bet}; won at a rate of {rate}: {position.stake} + gain {line.gain} "
        f"(its share of {market.transfer}) - fee {line.fee} = {line.receives}"
    )


def _pay_fees(statement: Statement, market: MarketSettlement, platform_ppm: int) -> None:
    pot = statement.pot(Escrow.STAKE)
    platform = floor_part(market.fees, platform_ppm)
    fund = market.fees - platform
    statement.move(
        pot,
        statement.house(AccountKind.PLATFORM),
        platform,
        Code.FEE,
        f"the platform's share of {market.fees} in fees",
    )
    statement.move(
        pot,
        statement.house(AccountKind.EPC_FUND),
        fund,
        Code.FEE,
        f"the share of durable updates of {market.fees} in fees",
    )
    statement.move(
        pot,
        statement.house(AccountKind.ROUNDING),
        market.dust,
        Code.DUST,
        "what rounding the gains down left over",
    )


def _pay_rewards(
    statement: Statement, record: SettlementRecord, rewards: RewardBook | None
) -> None:
    bonds, pot = statement.pot(Escrow.BOND), statement.pot(Escrow.BUDGET)
    fund = statement.house(AccountKind.EPC_FUND)
    if rewards is None:
        for step in record.steps:
            text = f"step {step.number}; void: the bond comes back whole"
            statement.move(bonds, step.account, step.bond, Code.BOND_RETURN, text)
        left = budget(record.terms.parameters.reward_scale, record.terms.c0_ppm)
        statement.move(pot, fund, left, Code.BUDGET_RETURN, "void: the budget comes back whole")
        return
    # What steps lost comes in before what steps earned goes out, so the pot never runs short.
    for item in rewards.rewards:
        text = f"step {item.step.number} moved away from the durable belief"
        statement.move(bonds, pot, max(0, -item.amount), Code.CLAWBACK, text)
    for item in rewards.rewards:
        step = item.step
        kept = step.bond - max(0, -item.amount)
        text = f"step {step.number}: bond {step.bond}, of which {step.bond - kept} is lost"
        statement.move(bonds, step.account, kept, Code.BOND_RETURN, text)
        text = f"step {step.number} moved towards the durable belief by {item.amount}"
        statement.move(pot, step.account, max(0, item.amount), Code.REWARD, text)
    statement.move(pot, fund, rewards.budget_left, Code.BUDGET_RETURN, "what the budget has left")
