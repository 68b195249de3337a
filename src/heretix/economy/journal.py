"""The stored ledger inside one transaction: the end of the chain is taken, then extended."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from heretix.economy.accounts import Account, AccountKind
from heretix.economy.canon import digest
from heretix.economy.codec import dumps
from heretix.economy.ledger import Applied, LedgerState, Refused, Status, apply
from heretix.economy.transfers import Code, Group, Transfer
from heretix.errors import RecordError, RefusedError
from heretix.store import ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, RowMapping

    from heretix.economy.clock import Clock
    from heretix.economy.statement import Explained

__all__ = ["Journal", "account_of", "transfer_of"]


_Word = TypeVar("_Word", bound=StrEnum)


class Journal:
    """One writer's turn. Whoever has it is alone, so what it reads stays true until it ends."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        # First of all: a second writer waits here, and sees everything that this one did.
        end = ledger.lock_chain(connection)
        self.connection = connection
        self._last_seq: int = end["last_seq"]
        self._last_hash: str = end["last_hash"]
        self._new: set[str] = set()
        # Read after the wait, so that times follow each other as the transfers do.
        self.at_ms = clock.now_ms()

    def add_accounts(self, accounts: Iterable[Account], *, person: str | None = None) -> None:
        """Make accounts known; those that are stay as they are."""
        rows = [
            {
                "id": account.id,
                "kind": account.kind.value,
                "currency": account.currency,
                "episode": account.episode,
                "person": person,
                "balance": 0,
                "created_ms": self.at_ms,
            }
            for account in accounts
        ]
        ledger.add_accounts(self.connection, rows)

    def earlier(self, group: str, request: Mapping[str, Any]) -> RowMapping | None:
        """The statement of a move that was made under this id before; None if it is new.

        The same id for another request is refused.
        """
        row = ledger.statement(self.connection, group)
        if row is None:
            self._new.add(group)
        elif row["request_hash"] != digest(request):
            raise RefusedError(
                f"`{group}` was used before for another request; choose another key",
                status=Status.ID_CONFLICT.value,
            )
        return row

    def post(
        self,
        group: Group,
        *,
        move: str,
        request: Mapping[str, Any],
        lines: Sequence[Explained] = (),
        episodes: Mapping[str, bool] | None = None,
        subject: int | None = None,
    ) -> tuple[Transfer, ...]:
        """Judge a group and write it with what explains it, or refuse all of it."""
        result = self.judge(group, episodes=episodes)
        self.enter(group, result, move=move, request=request, lines=lines, subject=subject)
        return result.transfers

    def judge(self, group: Group, *, episodes: Mapping[str, bool] | None = None) -> Applied:
        """What a group comes to, written before or to be written now; or a refusal of it."""
        result = apply(self._state(group, episodes or {}), group)
        if isinstance(result, Refused):
            raise RefusedError(
                f"`{group.id}` was refused ({result.status.value}): {result.verdict.detail}",
                status=result.status.value,
            )
        return result

    def enter(
        self,
        group: Group,
        result: Applied,
        *,
        move: str,
        request: Mapping[str, Any],
        lines: Sequence[Explained] = (),
        subject: int | None = None,
    ) -> None:
        """Write a group with what explains it, unless that stands there already."""
        if result.status is not Status.APPLIED:
            return
        rows = [_transfer_row(transfer, self.at_ms) for transfer in result.transfers]
        ledger.append_transfers(self.connection, rows, result.balances)
        self._last_seq = result.transfers[-1].seq
        self._last_hash = result.transfers[-1].hash
        named = {draft.episode for draft in group.drafts}
        ledger.insert_statement(
            self.connection,
            {
                "group_id": group.id,
                "episode_id": named.pop() if len(named) == 1 else None,
                "move": move,
                "request_hash": digest(request),
                "subject": subject,
                "lines_json": dumps(tuple(lines)),
                "first_seq": result.transfers[0].seq,
                "at_ms": self.at_ms,
            },
        )

    def _state(self, group: Group, episodes: Mapping[str, bool]) -> LedgerState:
        """Just what the group touches."""
        named = {name for draft in group.drafts for name in (draft.debit, draft.credit)}
        rows = ledger.accounts_by_id(self.connection, named)
        if group.closes is not None:
            rows |= ledger.accounts_of_episode(self.connection, group.closes)
        same = self._same(group)
        return LedgerState(
            accounts={name: account_of(row) for name, row in rows.items()},
            balances={name: row["balance"] for name, row in rows.items()},
            by_id={transfer.id: transfer for transfer in same},
            by_group={group.id: tuple(t for t in same if t.group == group.id)},
            episodes=episodes,
            last_seq=self._last_seq,
            last_hash=self._last_hash,
        )

    def _same(self, group: Group) -> list[Transfer]:
        """Written transfers that the group may be a repetition of."""
        # Every group has a statement, and ids begin with their group's: no statement, no transfer.
        if group.id in self._new or ledger.statement(self.connection, group.id) is None:
            return []
        ids = [draft.id for draft in group.drafts]
        rows = ledger.same_id_or_group(self.connection, group.id, ids)
        return [transfer_of(row) for row in rows]


def account_of(row: RowMapping) -> Account:
    """The account that a row holds."""
    return Account(
        id=row["id"],
        kind=_word(AccountKind, row["kind"], row["id"]),
        currency=row["currency"],
        episode=row["episode"],
    )


def transfer_of(row: RowMapping) -> Transfer:
    """The transfer that a row holds."""
    return Transfer(
        id=row["id"],
        body_hash=row["body_hash"],
        debit=row["debit"],
        credit=row["credit"],
        amount=row["amount"],
        currency=row["currency"],
        code=_word(Code, row["code"], row["id"]),
        episode=row["episode"],
        group=row["group_id"],
        seq=row["seq"],
        prev_hash=row["prev_hash"],
        hash=row["hash"],
    )


def _word(kind: type[_Word], text: str, row_id: str) -> _Word:
    try:
        return kind(text)
    except ValueError as exc:
        raise RecordError(
            f"`{row_id}` has {text!r} where only {', '.join(kind)} can be: it was changed from "
            "outside; restore a copy of the store"
        ) from exc


def _transfer_row(transfer: Transfer, at_ms: int) -> dict[str, Any]:
    return {
        "seq": transfer.seq,
        "id": transfer.id,
        "body_hash": transfer.body_hash,
        "debit": transfer.debit,
        "credit": transfer.credit,
        "amount": transfer.amount,
        "currency": transfer.currency,
        "code": transfer.code.value,
        "episode": transfer.episode,
        "group_id": transfer.group,
        "prev_hash": transfer.prev_hash,
        "hash": transfer.hash,
        "at_ms": at_ms,
    }
