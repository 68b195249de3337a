"""The hash chain: each transfer carries the hash of the one before it.

A line that is changed, dropped, added or moved breaks every hash after it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.economy.canon import digest
from heretix.economy.transfers import Group, Transfer, body_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["GENESIS", "Fault", "Verification", "link", "replay", "transfer_hash", "verify"]

GENESIS: Final = "0" * 64
"""What the first transfer has in place of a predecessor's hash."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a chain."""

    seq: int
    id: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What reading a whole chain showed."""

    count: int
    last_hash: str
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Nothing was wrong."""
        return not self.faults


def transfer_hash(*, id_: str, body: str, seq: int, prev_hash: str) -> str:
    """Hash of a transfer in its place."""
    return digest({"body_hash": body, "id": id_, "prev_hash": prev_hash, "seq": seq})


def link(group: Group, *, last_seq: int, last_hash: str) -> tuple[Transfer, ...]:
    """Give a group's drafts their places at the end of the chain."""
    transfers = []
    for draft in group.drafts:
        last_seq += 1
        body = body_hash(draft, group.id)
        hash_ = transfer_hash(id_=draft.id, body=body, seq=last_seq, prev_hash=last_hash)
        transfers.append(
            Transfer(
                id=draft.id,
                body_hash=body,
                debit=draft.debit,
                credit=draft.credit,
                amount=draft.amount,
                currency=draft.currency,
                code=draft.code,
                episode=draft.episode,
                group=group.id,
                seq=last_seq,
                prev_hash=last_hash,
                hash=hash_,
            )
        )
        last_hash = hash_
    return tuple(transfers)


def verify(transfers: Iterable[Transfer]) -> Verification:
    """Re-derive every hash from the first transfer on, and name whatever doesn't fit."""
    faults: list[Fault] = []
    ids: set[str] = set()
    finished_groups: set[str] = set()
    count, last_hash, group = 0, GENESIS, None
    for transfer in transfers:
        count += 1
        faults.extend(
            Fault(transfer.seq, transfer.id, detail)
            for detail in _faults_of(transfer, seq=count, prev_hash=last_hash)
        )
        if transfer.id in ids:
            faults.append(Fault(transfer.seq, transfer.id, "this id stands twice"))
        if transfer.group != group:
            if transfer.group in finished_groups:
                detail = f"group {transfer.group!r} is broken up by other transfers"
                faults.append(Fault(transfer.seq, transfer.id, detail))
            if group is not None:
                finished_groups.add(group)
        ids.add(transfer.id)
        last_hash, group = transfer.hash, transfer.group
    return Verification(count=count, last_hash=last_hash, faults=tuple(faults))


def replay(transfers: Iterable[Transfer]) -> dict[str, int]:
    """Balances that follow from the transfers alone."""
    balances: defaultdict[str, int] = defaultdict(int)
    for transfer in transfers:
        balances[transfer.debit] -= transfer.amount
        balances[transfer.credit] += transfer.amount
    return dict(balances)


def _faults_of(transfer: Transfer, *, seq: int, prev_hash: str) -> Iterator[str]:
    if transfer.seq != seq:
        yield f"place {transfer.seq} stands where place {seq} belongs"
    if transfer.prev_hash != prev_hash:
        yield "doesn't follow the transfer before it"
    if transfer.body_hash != body_hash(transfer, transfer.group):
        yield "the body differs from its hash"
    expected = transfer_hash(
        id_=transfer.id,
        body=transfer.body_hash,
        seq=transfer.seq,
        prev_hash=transfer.prev_hash,
    )
    if transfer.hash != expected:
        yield "the hash differs from what it covers"
    if transfer.amount <= 0:
        yield f"the amount is {transfer.amount}, not above zero"
