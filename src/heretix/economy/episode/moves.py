"""The life of an episode: opened, staked on, frozen, measured, disputed, closed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from heretix.economy.episode import state
from heretix.economy.episode.challenges import draw_close, draw_judges, matches_seed
from heretix.economy.episode.settlement import (
    Measurement,
    find_void_reason,
    is_one_sided,
    pay_bond,
    settle,
)
from heretix.economy.ledger import AccountKind, Code, Escrow, Reason, ceil_part, client_group
from heretix.economy.market import Position, Side, buy, market_of, remove_positions, seed_market
from heretix.economy.rewards import budget

if TYPE_CHECKING:
    from collections.abc import Sequence

DueStep = Literal["begin", "freeze", "judge", "conclude", "first", "second", "rule", "settle"]


class Due(NamedTuple):
    """The next move that nobody has to decide on, and the moment from which it can be made."""

    step: DueStep
    at_ms: int


def find_due(episode: state.Episode, positions: Sequence[Position]) -> Due | None:
    """Find what is to be done next, by whoever is there; None of a draft, and of what has ended.

    Of an episode that isn't frozen, no positions are needed.
    """
    terms = episode.terms
    match episode.state:
        case state.State.OPEN:
            return Due("begin", terms.challenge_from_ms)
        case state.State.CHALLENGE:
            return Due("freeze", terms.freeze_at_ms)
        case state.State.FROZEN:
            return _find_due_of_frozen(episode, positions)
        case state.State.MEASURED | state.State.DISPUTED:
            return _find_due_of_measured(episode)
        case _:
            return None


def _find_due_of_frozen(episode: state.Episode, positions: Sequence[Position]) -> Due:
    assert episode.frozen_ms is not None
    if not all(challenge.is_judged for challenge in episode.challenges):
        return Due("judge", episode.frozen_ms)
    if not is_measured_for(episode, positions):
        return Due("conclude", episode.frozen_ms)
    if not episode.measurements:
        return Due("first", episode.frozen_ms)
    return Due("second", episode.frozen_ms + episode.terms.parameters.durability_ms)


def _find_due_of_measured(episode: state.Episode) -> Due:
    rules = episode.terms.parameters
    assert episode.measured_ms is not None
    last = episode.disputes[-1] if episode.disputes else None
    if last is not None and last.upheld is None:
        # What can be worked out again needs nobody; for the rest operators have time to look.
        by_hand = last.ground is not state.Ground.RECOMPUTATION_MISMATCH
        return Due("rule", last.at_ms + rules.dispute_window_ms * by_hand)
    ruled = len(episode.disputes) >= rules.dispute_rounds
    return Due("settle", episode.measured_ms + rules.dispute_window_ms * (not ruled))


def open_episode(episode: state.Episode, at_ms: int) -> state.Moved | state.Denied:
    """Fix the terms; escrow the house's seed and the budget for rewards."""
    if denied := state.find_denial(episode, state.State.DRAFT):
        return denied
    terms = episode.terms
    if at_ms > terms.challenge_from_ms:
        begin = terms.challenge_from_ms
        return state.deny(state.Denial.TOO_LATE, "challenges_begin", at_ms=begin, now_ms=at_ms)
    # The chain holds the hash of the terms: they can't be exchanged later together with it.
    statement = episode.statement(f"open:{episode.id}", mark=terms.hash())
    house, heretic_ppm = statement.house(AccountKind.HOUSE), terms.seed_heretic_ppm
    positions = seed_market(house, stake=terms.seed_stake, heretic_ppm=heretic_ppm, at_ms=at_ms)
    reason = Reason.of("market_seeded", heretic_ppm=heretic_ppm)
    statement.move(house, statement.pot(Escrow.STAKE), terms.seed_stake, Code.SEED, reason)
    fund, pot = statement.house(AccountKind.EPC_FUND), statement.pot(Escrow.BUDGET)
    most = budget(terms.parameters.reward_scale, terms.c0_ppm)
    statement.move(fund, pot, most, Code.BUDGET, Reason("budget_escrowed"))
    opened = replace(
        state.move_to(episode, state.State.OPEN),
        terms_hash=terms.hash(),
        market=market_of(positions),
        position_count=len(positions),
        clock_ms=at_ms,
    )
    return state.Moved(episode=opened, group=statement.group(), positions=positions)


def begin_challenge(episode: state.Episode, at_ms: int) -> state.Moved | state.Denied:
    """Open the episode for commitments to evidence."""
    if denied := state.find_denial(episode, state.State.OPEN):
        return denied
    at, begin = max(at_ms, episode.clock_ms), episode.terms.challenge_from_ms
    if at < begin:
        return state.deny(state.Denial.TOO_EARLY, "challenges_begin", at_ms=begin, now_ms=at)
    return state.Moved(episode=replace(state.move_to(episode, state.State.CHALLENGE), clock_ms=at))


def stake(
    episode: state.Episode,
    at_ms: int,
    *,
    key: str,
    account: str,
    side: Side,
    amount: int,
    min_shares: int,
) -> state.Moved | state.Denied:
    """Bet on a side. The stake is locked until the episode ends."""
    if denied := state.find_denial(episode, state.State.OPEN, state.State.CHALLENGE):
        return denied
    at, until = max(at_ms, episode.clock_ms), episode.terms.close_until_ms
    if at > until:
        return state.deny(state.Denial.TOO_LATE, "stakes_ended", at_ms=until, now_ms=at)
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
    if isinstance(bought, Reason):
        return state.Denied(state.Denial.BET_REFUSED, bought)
    number, shares = episode.position_count, bought.shares
    position = Position(
        number=number, account=account, side=side, stake=amount, shares=shares, at_ms=at
    )
    statement = episode.statement(client_group(account, key))
    reason = Reason.of("bet", number=number, stake=amount, side=side.value, shares=shares)
    statement.move(account, statement.pot(Escrow.STAKE), amount, Code.STAKE, reason)
    after = replace(episode, market=bought.after, position_count=number + 1, clock_ms=at)
    return state.Moved(episode=after, group=statement.group(), positions=(position,))


def freeze(
    episode: state.Episode, at_ms: int, *, seed: bytes, positions: Sequence[Position]
) -> state.Moved | state.Denied:
    """Reveal the seed, draw the close and the judges, and give late stakes back exactly.

    `positions` must hold every bet from `close_from_ms` on; earlier ones can't be late.
    """
    if denied := state.find_denial(episode, state.State.CHALLENGE):
        return denied
    terms = episode.terms
    at = max(at_ms, episode.clock_ms)
    if at < terms.freeze_at_ms:
        return state.deny(state.Denial.TOO_EARLY, "freeze_due", at_ms=terms.freeze_at_ms, now_ms=at)
    if not matches_seed(terms.seed_commitment, seed):
        return state.deny(state.Denial.WRONG_SEED)
    close = draw_close(seed, episode.id, from_ms=terms.close_from_ms, until_ms=terms.close_until_ms)
    statement = episode.statement(f"freeze:{episode.id}")
    pot, code = statement.pot(Escrow.STAKE), Code.LATE_STAKE_REFUND
    late = [position for position in positions if position.at_ms > close]
    for position in late:
        reason = Reason.of("bet_late", number=position.number, close_ms=close)
        statement.move(pot, position.account, position.stake, code, reason)
    judged = []
    for challenge in episode.challenges:
        if challenge.at_ms <= close:
            judged.append(challenge)
            continue
        pot, code = statement.pot(Escrow.CHALLENGE), Code.CHALLENGE_REFUND
        reason = Reason.of("challenge_late", number=challenge.number, close_ms=close)
        statement.move(pot, challenge.account, challenge.stake, code, reason)
        judged.append(replace(challenge, fate=state.Fate.LATE))
    assert episode.market is not None
    frozen = replace(
        state.move_to(episode, state.State.FROZEN),
        market=remove_positions(episode.market, late),
        challenges=tuple(judged),
        judges=draw_judges(seed, episode.id, terms.hold_outs, count=terms.parameters.judges),
        close_ms=close,
        frozen_ms=at,
        seed=seed,
        clock_ms=at,
    )
    return state.Moved(episode=frozen, group=statement.group())


def measure(
    episode: state.Episode, at_ms: int, *, measurement: Measurement
) -> state.Moved | state.Denied:
    """Record a judging measurement: one after the freeze, one after the durability window.

    A measurement that voids the episode ends the measuring: no later one could repair it.
    """
    if denied := _find_measuring_denial(episode):
        return denied
    if not {reading.model for reading in measurement.readings} <= set(episode.judges):
        return state.deny(state.Denial.WRONG_JUDGES, judges=", ".join(episode.judges))
    at = max(at_ms, episode.clock_ms)
    assert episode.frozen_ms is not None
    due = episode.frozen_ms + episode.terms.parameters.durability_ms
    if episode.measurements and at < due:
        return state.deny(state.Denial.TOO_EARLY, "second_due", at_ms=due, now_ms=at)
    after = replace(episode, measurements=(*episode.measurements, measurement), clock_ms=at)
    if len(after.measurements) == 2 or _is_void(after):
        after = replace(state.move_to(after, state.State.MEASURED), measured_ms=at)
    return state.Moved(episode=after)


def conclude_unmeasured(
    episode: state.Episode, at_ms: int, *, positions: Sequence[Position]
) -> state.Moved | state.Denied:
    """Without outside stakes on both sides, and without evidence, there is nothing to measure for.

    Evidence is judged and paid whatever became of the market.
    """
    if denied := _find_measuring_denial(episode):
        return denied
    if is_measured_for(episode, positions):
        return state.deny(state.Denial.NOT_VOID, "worth_measuring")
    at = max(at_ms, episode.clock_ms)
    return state.Moved(
        episode=replace(state.move_to(episode, state.State.MEASURED), clock_ms=at, measured_ms=at)
    )


def _find_measuring_denial(episode: state.Episode) -> state.Denied | None:
    if denied := state.find_denial(episode, state.State.FROZEN):
        return denied
    unjudged = any(not challenge.is_judged for challenge in episode.challenges)
    return state.deny(state.Denial.OUT_OF_ORDER, "unjudged_challenges") if unjudged else None


def is_measured_for(episode: state.Episode, positions: Sequence[Position]) -> bool:
    """Tell whether evidence or bets of both sides wait for the judges."""
    return bool(episode.steps) or not is_one_sided(episode.select_positions(positions))


def _is_void(episode: state.Episode) -> bool:
    return find_void_reason(episode.measurements, parameters=episode.terms.parameters) is not None


def close_episode(
    episode: state.Episode, at_ms: int, *, positions: Sequence[Position]
) -> state.Moved | state.Denied:
    """Settle, or void: the measurements decide which, when no dispute can come any more."""
    if denied := state.find_denial(episode, state.State.MEASURED, state.State.DISPUTED):
        return denied
    if episode.disputes and episode.disputes[-1].upheld is None:
        return state.deny(state.Denial.DISPUTE_PENDING, "dispute_unruled")
    at = max(at_ms, episode.clock_ms)
    parameters = episode.terms.parameters
    assert episode.measured_ms is not None
    due = episode.measured_ms + parameters.dispute_window_ms
    if at < due and len(episode.disputes) < parameters.dispute_rounds:
        return state.deny(state.Denial.TOO_EARLY, "disputes_open", at_ms=due, now_ms=at)
    result = settle(episode, positions)
    target = state.State.SETTLED if result.outcome.void is None else state.State.VOID
    ended = replace(state.move_to(episode, target), clock_ms=at)
    return state.Moved(episode=ended, group=result.group, settlement=result)


# Disputes: money against a measurement. A larger panel of judges measures again.


def dispute_bond(episode: state.Episode) -> int:
    """max(S₀, 1% of all stakes), rounded up, for the first dispute; twice as much for the next."""
    parameters, stakes = episode.terms.parameters, episode.market.money if episode.market else 0
    least = max(parameters.stakes.base, ceil_part(stakes, parameters.dispute_bond_ppm))
    return least << len(episode.disputes)


def raise_dispute(
    episode: state.Episode, at_ms: int, *, key: str, account: str, ground: state.Ground, bond: int
) -> state.Moved | state.Denied:
    """Put a bond against the result, and have 2J+1 judges drawn anew."""
    if denied := state.find_denial(episode, state.State.MEASURED, state.State.DISPUTED):
        return denied
    parameters = episode.terms.parameters
    at, rounds = max(at_ms, episode.clock_ms), parameters.dispute_rounds
    if episode.disputes and episode.disputes[-1].upheld is None:
        return state.deny(state.Denial.DISPUTE_PENDING)
    if len(episode.disputes) >= rounds:
        return state.deny(state.Denial.NO_ROUNDS_LEFT, rounds=rounds)
    assert episode.measured_ms is not None
    due = episode.measured_ms + parameters.dispute_window_ms
    if at >= due:
        return state.deny(state.Denial.TOO_LATE, "disputes_ended", at_ms=due, now_ms=at)
    assert episode.seed is not None
    least = dispute_bond(episode)
    if bond < least:
        return state.deny(state.Denial.STAKE_TOO_SMALL, "bond_too_small", least=least, got=bond)
    round_ = len(episode.disputes) + 1
    dispute = state.Dispute(round=round_, account=account, ground=ground, bond=bond, at_ms=at)
    statement = episode.statement(client_group(account, key))
    reason = Reason.of("dispute", round=round_, ground=ground.value)
    statement.move(account, statement.pot(Escrow.DISPUTE), bond, Code.DISPUTE, reason)
    count, pool = 2 * parameters.judges + 1, episode.terms.hold_outs
    judges = draw_judges(episode.seed, episode.id, pool, count=count, round_=round_)
    after = replace(episode, disputes=(*episode.disputes, dispute), judges=judges, clock_ms=at)
    if episode.state is state.State.MEASURED:
        after = state.move_to(after, state.State.DISPUTED)
    return state.Moved(episode=after, group=statement.group())


def rule_on_dispute(
    episode: state.Episode,
    at_ms: int,
    *,
    ground_confirmed: bool,
    measurements: tuple[Measurement, Measurement],
    positions: Sequence[Position],
) -> state.Moved | state.Denied:
    """Let the larger panel's measurements stand if they uphold the dispute: the ground was
    confirmed, or the panel decided otherwise.

    A dispute that isn't upheld changes nothing but who has its bond: else a bond would buy another
    draw of q and of the rate. A bond waits for the next ruling, or the end, to be paid out; this
    one decides on that of the round before.
    """
    if denied := state.find_denial(episode, state.State.DISPUTED):
        return denied
    dispute = episode.disputes[-1]
    if dispute.upheld is not None:
        return state.deny(state.Denial.DISPUTE_PENDING, "no_dispute")
    named = {reading.model for item in measurements for reading in item.readings}
    if not named <= set(episode.judges):
        return state.deny(state.Denial.WRONG_JUDGES, judges=", ".join(episode.judges))
    before, outcome = episode.decide(positions), episode.decide(positions, measurements)
    upheld = ground_confirmed or (before.moved, before.void) != (outcome.moved, outcome.void)
    at = max(at_ms, episode.clock_ms)
    statement = episode.statement(f"dispute:{episode.id}:{dispute.round}")
    if len(episode.disputes) > 1:
        pay_bond(statement, episode.disputes[-2], overturned_by=dispute if upheld else None)
    after = replace(
        episode,
        disputes=(*episode.disputes[:-1], replace(dispute, upheld=upheld)),
        measurements=measurements if upheld else episode.measurements,
        measured_ms=at,
        clock_ms=at,
    )
    return state.Moved(episode=after, group=statement.group())
