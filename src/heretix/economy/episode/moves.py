"""The life of an episode: opened, staked on, frozen, measured, closed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heretix.economy.episode.challenges import draw_close, draw_judges, matches_seed
from heretix.economy.episode.settlement import Measurement, VoidReason, settle, void_reason
from heretix.economy.episode.state import (
    Challenge,
    Denial,
    Denied,
    Episode,
    Fate,
    Moved,
    State,
    deny,
    kept_positions,
    moved_to,
    not_allowed,
    settlement_record,
)
from heretix.economy.ledger import AccountKind, Code, Escrow, Reason, client_group
from heretix.economy.market import BuyRefused, Position, Side, buy, market_of, seed_market
from heretix.economy.rewards import budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.ledger import Statement


def open_episode(episode: Episode, *, at_ms: int) -> Moved | Denied:
    """Fix the terms; escrow the house's seed and the budget for rewards."""
    denied = not_allowed(episode, State.DRAFT)
    if denied:
        return denied
    terms = episode.terms
    if at_ms > terms.challenge_from_ms:
        begin = terms.challenge_from_ms
        return deny(Denial.TOO_LATE, "challenges_begin", at_ms=begin, now_ms=at_ms)
    # The chain holds the hash of the terms: they can't be exchanged later together with it.
    statement = episode.statement(f"open:{episode.id}", mark=terms.hash())
    house = statement.house(AccountKind.HOUSE)
    seeded = seed_market(
        house, stake=terms.seed_stake, heretic_ppm=terms.seed_heretic_ppm, at_ms=at_ms
    )
    statement.move(
        house,
        statement.pot(Escrow.STAKE),
        terms.seed_stake,
        Code.SEED,
        Reason.of("market_seeded", heretic_ppm=terms.seed_heretic_ppm),
    )
    statement.move(
        statement.house(AccountKind.EPC_FUND),
        statement.pot(Escrow.BUDGET),
        budget(terms.parameters.reward_scale, terms.c0_ppm),
        Code.BUDGET,
        Reason("budget_escrowed"),
    )
    opened = replace(
        moved_to(episode, State.OPEN),
        terms_hash=terms.hash(),
        market=seeded.market,
        position_count=len(seeded.positions),
        clock_ms=at_ms,
    )
    return Moved(
        episode=opened,
        group=statement.group(),
        lines=statement.lines,
        positions=seeded.positions,
    )


def begin_challenge(episode: Episode, *, at_ms: int) -> Moved | Denied:
    """From now on evidence can be committed."""
    denied = not_allowed(episode, State.OPEN)
    if denied:
        return denied
    at = max(at_ms, episode.clock_ms)
    if at < episode.terms.challenge_from_ms:
        begin = episode.terms.challenge_from_ms
        return deny(Denial.TOO_EARLY, "challenges_begin", at_ms=begin, now_ms=at)
    return Moved(episode=replace(moved_to(episode, State.CHALLENGE), clock_ms=at))


def stake(
    episode: Episode,
    *,
    key: str,
    account: str,
    side: Side,
    amount: int,
    min_shares: int,
    at_ms: int,
) -> Moved | Denied:
    """Bet on a side. The stake is locked until the episode ends."""
    denied = not_allowed(episode, State.OPEN, State.CHALLENGE)
    if denied:
        return denied
    at = max(at_ms, episode.clock_ms)
    if at > episode.terms.close_until_ms:
        until = episode.terms.close_until_ms
        return deny(Denial.TOO_LATE, "stakes_ended", at_ms=until, now_ms=at)
    assert episode.market is not None
    parameters = episode.terms.parameters
    bought = buy(
        episode.market,
        side,
        amount,
        min_shares=min_shares,
        tau_max_ppm=parameters.tau_max_ppm,
        fee_ppm=parameters.fee_ppm,
    )
    if isinstance(bought, BuyRefused):
        return Denied(Denial.BET_REFUSED, bought.reason)
    position = Position(
        number=episode.position_count,
        account=account,
        side=side,
        stake=amount,
        shares=bought.quote.shares,
        at_ms=at,
    )
    statement = episode.statement(client_group(account, key))
    reason = Reason.of(
        "bet", number=position.number, stake=amount, side=side.value, shares=position.shares
    )
    statement.move(account, statement.pot(Escrow.STAKE), amount, Code.STAKE, reason)
    after = replace(
        episode,
        market=bought.market,
        position_count=episode.position_count + 1,
        clock_ms=at,
    )
    return Moved(
        episode=after, group=statement.group(), lines=statement.lines, positions=(position,)
    )


def freeze(
    episode: Episode, *, seed: bytes, positions: Sequence[Position], at_ms: int
) -> Moved | Denied:
    """Reveal the seed, draw the close and the judges, and give late stakes back exactly."""
    denied = not_allowed(episode, State.CHALLENGE)
    if denied:
        return denied
    terms = episode.terms
    at = max(at_ms, episode.clock_ms)
    if at < terms.freeze_at_ms:
        return deny(Denial.TOO_EARLY, "freeze_due", at_ms=terms.freeze_at_ms, now_ms=at)
    if not matches_seed(terms.seed_commitment, seed):
        return deny(Denial.WRONG_SEED)
    close = draw_close(seed, episode.id, from_ms=terms.close_from_ms, until_ms=terms.close_until_ms)
    frozen = replace(
        moved_to(episode, State.FROZEN), close_ms=close, frozen_ms=at, seed=seed, clock_ms=at
    )
    kept = kept_positions(frozen, positions)
    statement = episode.statement(f"freeze:{episode.id}")
    for position in (p for p in positions if p.at_ms > close):
        statement.move(
            statement.pot(Escrow.STAKE),
            position.account,
            position.stake,
            Code.LATE_STAKE_REFUND,
            Reason.of("bet_late", number=position.number, close_ms=close),
        )
    frozen = replace(
        frozen,
        market=market_of(kept),
        challenges=_give_back_late(statement, episode.challenges, close),
        judges=draw_judges(seed, episode.id, terms.hold_outs, count=terms.parameters.judges),
    )
    return Moved(episode=frozen, group=statement.group(), lines=statement.lines)


def measure(
    episode: Episode,
    measurement: Measurement,
    *,
    positions: Sequence[Position],
    at_ms: int,
) -> Moved | Denied:
    """Record a judging measurement: one after the freeze, one after the durability window.

    A measurement that voids the episode ends the measuring: no later one could repair it.
    """
    denied = not_allowed(episode, State.FROZEN)
    if denied:
        return denied
    if any(c.fate in {Fate.COMMITTED, Fate.REVEALED} for c in episode.challenges):
        return deny(Denial.OUT_OF_ORDER, "unjudged_challenges")
    if not {reading.model for reading in measurement.readings} <= set(episode.judges):
        return deny(Denial.WRONG_JUDGES, judges=", ".join(episode.judges))
    at = max(at_ms, episode.clock_ms)
    assert episode.frozen_ms is not None
    due = episode.frozen_ms + episode.terms.parameters.durability_ms
    if episode.measurements and at < due:
        return deny(Denial.TOO_EARLY, "second_due", at_ms=due, now_ms=at)
    measurements = (*episode.measurements, measurement)
    after = replace(episode, measurements=measurements, clock_ms=at)
    void = void_reason(
        measurements,
        positions=kept_positions(episode, positions),
        parameters=episode.terms.parameters,
    )
    if len(measurements) == 2 or void is not None:
        after = replace(moved_to(after, State.MEASURED), measured_ms=at)
    return Moved(episode=after)


def conclude_unmeasured(
    episode: Episode, *, positions: Sequence[Position], at_ms: int
) -> Moved | Denied:
    """Without outside stakes on both sides there is nothing to measure for."""
    denied = not_allowed(episode, State.FROZEN)
    if denied:
        return denied
    if any(c.fate in {Fate.COMMITTED, Fate.REVEALED} for c in episode.challenges):
        return deny(Denial.OUT_OF_ORDER, "unjudged_challenges")
    void = void_reason(
        (), positions=kept_positions(episode, positions), parameters=episode.terms.parameters
    )
    if void is not VoidReason.NO_OUTSIDE_STAKE:
        return deny(Denial.NOT_VOID, "both_sides_staked")
    at = max(at_ms, episode.clock_ms)
    return Moved(episode=replace(moved_to(episode, State.MEASURED), clock_ms=at, measured_ms=at))


def close_episode(episode: Episode, *, positions: Sequence[Position], at_ms: int) -> Moved | Denied:
    """Settle, or void: the measurements decide which, when no dispute can come any more."""
    denied = not_allowed(episode, State.MEASURED, State.DISPUTED)
    if denied:
        return denied
    if episode.disputes and episode.disputes[-1].upheld is None:
        return deny(Denial.DISPUTE_PENDING, "dispute_unruled")
    at = max(at_ms, episode.clock_ms)
    parameters = episode.terms.parameters
    assert episode.measured_ms is not None
    due = episode.measured_ms + parameters.dispute_window_ms
    if at < due and len(episode.disputes) < parameters.dispute_rounds:
        return deny(Denial.TOO_EARLY, "disputes_open", at_ms=due, now_ms=at)
    result = settle(settlement_record(episode, positions))
    target = State.SETTLED if result.outcome.void is None else State.VOID
    return Moved(
        episode=replace(moved_to(episode, target), clock_ms=at),
        group=result.group,
        lines=result.lines,
        settlement=result,
    )


def _give_back_late(
    statement: Statement, challenges: Sequence[Challenge], close_ms: int
) -> tuple[Challenge, ...]:
    judged = []
    for challenge in challenges:
        if challenge.at_ms <= close_ms:
            judged.append(challenge)
            continue
        statement.move(
            statement.pot(Escrow.CHALLENGE),
            challenge.account,
            challenge.stake,
            Code.CHALLENGE_REFUND,
            Reason.of("challenge_late", number=challenge.number, close_ms=close_ms),
        )
        judged.append(replace(challenge, fate=Fate.LATE))
    return tuple(judged)
