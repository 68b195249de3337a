"""The order and the times of an episode's moves, held against the order of its transfers.

What a bet, a challenge or a dispute came after decides who is paid: who held a side before it was
attacked, and whose stake came before the close. The chain keeps that order, so it can be checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.economy.episode import Episode, State
from heretix.economy.invariants import Breach
from heretix.economy.transfers import Code, Transfer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.economy.market import Position
    from heretix.economy.statement import Explained

__all__ = ["line_breaches", "order_breaches", "time_breaches"]


def order_breaches(
    episode: Episode, positions: Sequence[Position], transfers: Sequence[Transfer]
) -> Iterator[Breach]:
    """Bets, challenges and disputes stand in the chain as the record tells them."""
    bets = positions[2:]
    told = {
        Code.STAKE: [(p.account, p.stake, p.at_ms) for p in bets],
        Code.CHALLENGE: [(c.account, c.stake, c.at_ms) for c in episode.challenges],
        Code.DISPUTE: [(d.account, d.bond, d.at_ms) for d in episode.disputes],
    }
    met = dict.fromkeys(told, 0)
    last_ms = positions[0].at_ms if positions else 0
    for transfer in sorted(transfers, key=lambda transfer: transfer.seq):
        if transfer.code not in told:
            continue
        number = met[transfer.code]
        met[transfer.code] += 1
        if number >= len(told[transfer.code]):
            yield Breach("order", transfer.id, f"there is no {transfer.code.value} {number}")
            continue
        account, amount, at_ms = told[transfer.code][number]
        if (account, amount) != (transfer.debit, transfer.amount):
            detail = f"{transfer.code.value} {number} is {amount} by {account} in the record"
            yield Breach("order", transfer.id, detail)
        if at_ms < last_ms:
            detail = f"{transfer.code.value} {number} at {at_ms} follows a move at {last_ms}"
            yield Breach("order", transfer.id, detail)
        last_ms = max(last_ms, at_ms)
        if transfer.code is Code.CHALLENGE:
            before, taken = episode.challenges[number].positions_before, met[Code.STAKE] + 2
            if before != taken:
                detail = f"{taken} bets came before challenge {number}, the record says {before}"
                yield Breach("order", transfer.id, detail)


def time_breaches(episode: Episode) -> Iterator[Breach]:
    """Nothing happened before it could."""
    terms, frozen, measured = episode.terms, episode.frozen_ms, episode.measured_ms
    window = (terms.challenge_from_ms, terms.close_until_ms)
    for number, challenge in enumerate(episode.challenges):
        if challenge.number != number or not window[0] <= challenge.at_ms <= window[1]:
            detail = f"number {challenge.number} at {challenge.at_ms} isn't within {window}"
            yield Breach("times", f"challenge {number}", detail)
    for dispute in episode.disputes:
        if not (frozen or 0) <= dispute.at_ms <= episode.clock_ms:
            detail = f"at {dispute.at_ms}, not from {frozen} to {episode.clock_ms}"
            yield Breach("times", f"dispute {dispute.round}", detail)
    ended = episode.state in {State.SETTLED, State.VOID}
    if (measured is not None) != (ended or episode.state in {State.MEASURED, State.DISPUTED}):
        yield Breach("times", episode.id, f"{episode.state.value}, and measured at {measured}")
        return
    if frozen is None or measured is None:
        return
    parameters = terms.parameters
    due = frozen + (parameters.durability_ms if len(episode.measurements) == 2 else 0)
    if measured < due:
        yield Breach("times", episode.id, f"measured at {measured}, which was due at {due}")
    open_rounds = len(episode.disputes) < parameters.dispute_rounds
    last = measured + (parameters.dispute_window_ms if ended and open_rounds else 0)
    if episode.clock_ms < last:
        detail = f"its last move was at {episode.clock_ms}, which could not be before {last}"
        yield Breach("times", episode.id, detail)


def line_breaches(
    transfers: Sequence[Transfer], lines: Mapping[str, Sequence[Explained]]
) -> Iterator[Breach]:
    """Every transfer is explained by one line, which says the same of it."""
    told: dict[str, list[tuple[str, str, int, Code]]] = {}
    for transfer in transfers:
        row = (transfer.id, transfer.credit, transfer.amount, transfer.code)
        told.setdefault(transfer.group, []).append(row)
    for group in sorted(told.keys() | lines.keys()):
        said = [
            (line.transfer, line.account, line.amount, line.code) for line in lines.get(group, ())
        ]
        if said != told.get(group, []):
            yield Breach("lines", group, "the statement doesn't say what was transferred")
