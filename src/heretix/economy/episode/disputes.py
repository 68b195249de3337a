"""Disputes: money against a measurement. A larger panel of judges measures again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heretix.economy.episode.challenges import draw_judges
from heretix.economy.episode.settlement import Measurement, Outcome, decide
from heretix.economy.episode.state import (
    Denial,
    Denied,
    Dispute,
    Episode,
    Ground,
    Moved,
    State,
    deny,
    kept_positions,
    moved_to,
    not_allowed,
)
from heretix.economy.ledger import AccountKind, Code, Escrow, Reason, ceil_part, client_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.episode.state import Parameters
    from heretix.economy.market import Position


def dispute_bond(stakes: int, parameters: Parameters) -> int:
    """max(S₀, 1% of all stakes), rounded up."""
    return max(parameters.stakes.base, ceil_part(stakes, parameters.dispute_bond_ppm))


def raise_dispute(
    episode: Episode, *, key: str, account: str, ground: Ground, bond: int, at_ms: int
) -> Moved | Denied:
    """Put a bond against the result, and have 2J+1 judges drawn anew."""
    denied = not_allowed(episode, State.MEASURED, State.DISPUTED) or _closed(episode, at_ms)
    if denied:
        return denied
    assert episode.market is not None
    assert episode.seed is not None
    parameters = episode.terms.parameters
    least = dispute_bond(episode.market.money, parameters)
    if bond < least:
        return deny(Denial.STAKE_TOO_SMALL, "bond_too_small", least=least, got=bond)
    at = max(at_ms, episode.clock_ms)
    round_ = len(episode.disputes) + 1
    dispute = Dispute(round=round_, account=account, ground=ground, bond=bond, at_ms=at)
    statement = episode.statement(client_group(account, key))
    reason = Reason.of("dispute", round=round_, ground=ground.value)
    statement.move(account, statement.pot(Escrow.DISPUTE), bond, Code.DISPUTE, reason)
    judges = draw_judges(
        episode.seed,
        episode.id,
        episode.terms.hold_outs,
        count=2 * parameters.judges + 1,
        round_=round_,
    )
    after = replace(episode, disputes=(*episode.disputes, dispute), judges=judges, clock_ms=at)
    if episode.state is State.MEASURED:
        after = moved_to(after, State.DISPUTED)
    return Moved(episode=after, group=statement.group(), lines=statement.lines)


def rule_on_dispute(
    episode: Episode,
    *,
    ground_confirmed: bool,
    measurements: tuple[Measurement, Measurement],
    positions: Sequence[Position],
    at_ms: int,
) -> Moved | Denied:
    """Let the larger panel's measurements stand.

    The bond comes back when the ground was confirmed or the panel decided otherwise;
    a dispute that changed nothing pays for the panel.
    """
    denied = not_allowed(episode, State.DISPUTED)
    if denied:
        return denied
    dispute = episode.disputes[-1]
    if dispute.upheld is not None:
        return deny(Denial.DISPUTE_PENDING, "no_dispute")
    named = {reading.model for item in measurements for reading in item.readings}
    if not named <= set(episode.judges):
        return deny(Denial.WRONG_JUDGES, judges=", ".join(episode.judges))
    before = _outcome(episode, episode.measurements, positions)
    outcome = _outcome(episode, measurements, positions)
    upheld = ground_confirmed or (before.winner, before.void) != (outcome.winner, outcome.void)
    at = max(at_ms, episode.clock_ms)
    statement = episode.statement(f"dispute:{episode.id}:{dispute.round}")
    pot = statement.pot(Escrow.DISPUTE)
    if upheld:
        reason = Reason.of("dispute_upheld", round=dispute.round)
        statement.move(pot, dispute.account, dispute.bond, Code.DISPUTE_RETURN, reason)
    else:
        operations = statement.house(AccountKind.OPERATIONS)
        reason = Reason.of("dispute_lost", round=dispute.round)
        statement.move(pot, operations, dispute.bond, Code.DISPUTE_LOST, reason)
    after = replace(
        episode,
        disputes=(*episode.disputes[:-1], replace(dispute, upheld=upheld)),
        measurements=measurements,
        measured_ms=at,
        clock_ms=at,
    )
    return Moved(episode=after, group=statement.group(), lines=statement.lines)


def _closed(episode: Episode, at_ms: int) -> Denied | None:
    parameters = episode.terms.parameters
    if episode.disputes and episode.disputes[-1].upheld is None:
        return deny(Denial.DISPUTE_PENDING)
    if len(episode.disputes) >= parameters.dispute_rounds:
        return deny(Denial.NO_ROUNDS_LEFT, rounds=parameters.dispute_rounds)
    assert episode.measured_ms is not None
    due = episode.measured_ms + parameters.dispute_window_ms
    at = max(at_ms, episode.clock_ms)
    if at >= due:
        return deny(Denial.TOO_LATE, "disputes_ended", at_ms=due, now_ms=at)
    return None


def _outcome(
    episode: Episode, measurements: Sequence[Measurement], positions: Sequence[Position]
) -> Outcome:
    return decide(
        episode.terms.c0_ppm,
        measurements,
        positions=kept_positions(episode, positions),
        parameters=episode.terms.parameters,
    )
