"""Episodes and the ledger inside one database transaction: rows to records and back."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from heretix.core.canonical import digest, exact_json, sha256_hex
from heretix.core.errors import RecordError, RefusedError
from heretix.economy.codec import decode, dumps, encode
from heretix.economy.episode.state import Episode, State
from heretix.economy.ledger import (
    Account,
    AccountKind,
    Applied,
    Code,
    Group,
    LedgerState,
    Refused,
    Status,
    Transfer,
    apply,
)
from heretix.economy.market import Market, Position, Side
from heretix.store import episodes, ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, RowMapping

    from heretix.core.clock import Clock
    from heretix.economy.ledger import Breach, Explained

# What an exchange tells of what it keeps.


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """An account and what it holds."""

    account: Account
    balance: int
    person: str | None
    """Whose account it is; None for the operator's and for pots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A transfer, and when it was written."""

    transfer: Transfer
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """What reading a whole ledger showed."""

    count: int
    last_hash: str
    breaches: tuple[Breach, ...]

    @property
    def ok(self) -> bool:
        """Everything that must hold does."""
        return not self.breaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a measurement came from: the executions it was made of, and the evidence shown."""

    executions: tuple[str, ...] = ()
    bundle_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """One line of a list of episodes."""

    id: str
    claim: str
    currency: str
    state: State
    market: Market | None
    """None before it opens."""
    position_count: int
    clock_ms: int
    close_ms: int | None
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPosition:
    """A bet, and the episode it is in."""

    episode: str
    claim: str
    state: State
    position: Position
    late: bool
    """It came after the effective close, so that it was given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStatement:
    """What one move paid, each line explained."""

    group: str
    move: str
    lines: tuple[Explained, ...]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMeasurement:
    """What an episode was told at one stage, and where that came from."""

    stage: str
    record: Mapping[str, Any]
    source: Source
    at_ms: int


# The stored ledger inside one transaction: the end of the chain is taken, then extended.

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


# The docket: episodes as rows of the store, and back.
#
# What a bet changes stands in columns; the rest is one record that a bet neither reads nor writes.

ENDED: Final = frozenset({State.SETTLED, State.VOID})
_IN_COLUMNS: Final = ("market", "position_count", "clock_ms")
_IN_RECORD: Final = tuple(
    field.name for field in dataclasses.fields(Episode) if field.name not in _IN_COLUMNS
)
_KEPT: Final = 256
"""Decoded records to remember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """An episode, and what only the store knows of it."""

    episode: Episode
    secret: bytes = field(repr=False)
    """The seed, which nobody is shown before the freeze."""

    @property
    def is_open(self) -> bool:
        """Whether its pots may hold money."""
        return self.episode.state not in ENDED


class Docket:
    """Reads and writes episodes, on whatever connection it is given."""

    def __init__(self) -> None:
        # By the hash of the record, so what is remembered can't be out of date.
        self._decoded: dict[str, Episode] = {}

    def file(self, connection: Connection, filed: Filed, *, at_ms: int) -> None:
        """Write down a new episode."""
        terms = filed.episode.terms
        # Clocks can be held anywhere, and yet the newest episode is the one written last.
        newest = episodes.newest_ms(connection)
        row = {
            "episode_id": filed.episode.id,
            "claim": terms.claim,
            "currency": terms.currency,
            "secret": filed.secret.hex(),
            "created_ms": at_ms if newest is None else max(at_ms, newest + 1),
            "updated_ms": at_ms,
        }
        episodes.insert_episode(connection, row | _columns(filed.episode) | _record(filed.episode))

    def load(self, connection: Connection, episode_id: str) -> Filed:
        """An episode as it stands; one that doesn't exist is refused."""
        row = episodes.episode_row(connection, episode_id)
        if row is None:
            raise unknown_episode(episode_id)
        episode = self._decoded.get(row["record_sha256"])
        if episode is None:
            text = episodes.record_json(connection, episode_id)
            if sha256_hex(text.encode()) != row["record_sha256"]:
                raise RecordError(
                    f"`{episode_id}` must have the record that was written last, and doesn't: it "
                    "was changed from outside; restore a copy of the store"
                )
            data = json.loads(text)
            blank = {"market": None, "position_count": 0, "clock_ms": 0}
            episode = decode(Episode, data | blank, f"episode {episode_id}")
            if len(self._decoded) >= _KEPT:
                self._decoded.clear()
            self._decoded[row["record_sha256"]] = episode
        current = replace(
            episode,
            market=market_in(row),
            position_count=row["position_count"],
            clock_ms=row["clock_ms"],
        )
        return Filed(episode=current, secret=bytes.fromhex(row["secret"]))

    def update(
        self, connection: Connection, before: Episode, after: Episode, *, at_ms: int
    ) -> None:
        """Write down what a move made of an episode."""
        values = _columns(after) | {"updated_ms": at_ms}
        # A rule copies what it doesn't change, so the very same objects mean the same record.
        if any(getattr(before, name) is not getattr(after, name) for name in _IN_RECORD):
            values |= _record(after)
        episodes.update_episode(connection, after.id, values)

    def positions(self, connection: Connection, episode_id: str) -> list[Position]:
        """An episode's bets, in their order."""
        return [position_in(row) for row in episodes.positions_of(connection, episode_id)]

    def add_positions(
        self, connection: Connection, episode_id: str, added: Sequence[Position]
    ) -> None:
        """Keep bets."""
        rows = [encode(position) | {"episode_id": episode_id} for position in added]
        episodes.insert_positions(connection, rows)


def unknown_episode(episode_id: str) -> RefusedError:
    """The answer to a question about an episode that doesn't exist."""
    return RefusedError(
        f"`{episode_id}` must be the id of an episode, and there is none of that id; "
        "`heretix episode list` shows them",
        status=Status.UNKNOWN_EPISODE.value,
    )


def market_in(row: RowMapping) -> Market | None:
    """The market that an episode's row holds; None before it opens."""
    if row["market_money"] is None:
        return None
    return Market(
        money=row["market_money"],
        heretic=row["market_heretic"],
        orthodox=row["market_orthodox"],
    )


def position_in(row: RowMapping) -> Position:
    """The bet that a row holds."""
    return Position(
        number=row["number"],
        account=row["account"],
        side=Side(row["side"]),
        stake=row["stake"],
        shares=row["shares"],
        at_ms=row["at_ms"],
        house=row["house"],
    )


def _columns(episode: Episode) -> dict[str, Any]:
    market = episode.market
    return {
        "state": episode.state.value,
        "is_open": episode.state not in ENDED,
        "terms_hash": episode.terms_hash,
        "market_money": None if market is None else market.money,
        "market_heretic": None if market is None else market.heretic,
        "market_orthodox": None if market is None else market.orthodox,
        "position_count": episode.position_count,
        "clock_ms": episode.clock_ms,
        "close_ms": episode.close_ms,
    }


def _record(episode: Episode) -> dict[str, Any]:
    text = exact_json({name: encode(getattr(episode, name)) for name in _IN_RECORD})
    return {"record_json": text, "record_sha256": sha256_hex(text.encode())}
