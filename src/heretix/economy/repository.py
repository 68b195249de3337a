"""Rows of the economy as records: the ledger transaction, the episode repository, verification."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from heretix.core.canonical import decode, decode_json, digest, encode, encode_json, sha256_hex
from heretix.core.errors import RecordError, RefusedError
from heretix.economy.episode.state import ENDED, Episode, State
from heretix.economy.ledger import (
    Account,
    AccountKind,
    Applied,
    Breach,
    Code,
    Escrow,
    Explained,
    Group,
    LedgerState,
    Refused,
    Status,
    Transfer,
    apply,
    crossed_currencies,
    escrow_account,
    leftover_escrows,
    misnamed_accounts,
    overdrafts,
    stake_mismatch,
    unbalanced_currencies,
    verify,
)
from heretix.economy.market import Market, Position, Side
from heretix.economy.sentences import sentence
from heretix.store import episodes, ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, RowMapping

    from heretix.core.clock import Clock
    from heretix.economy.episode.settlement import Settlement

_Word = TypeVar("_Word", bound=StrEnum)
_Row = TypeVar("_Row")
_TRANSFER_COLUMNS: Final = {
    field.name: "group_id" if field.name == "group" else field.name
    for field in dataclasses.fields(Transfer)
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSnapshot:
    """All of an episode that a page shows, as of one moment."""

    episode: Episode
    positions: list[Position]
    statements: list[StoredStatement]
    measurements: list[StoredMeasurement]
    settlement: Settlement | None
    """None before it has ended."""


class LedgerTransaction:
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

    def find_earlier(self, group: str, request: Mapping[str, Any]) -> RowMapping | None:
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
            status, reason = result.status.value, result.verdict.reason
            # A key of the client's tells nobody anything; the operator's ids say what they are.
            name = "the move" if group.id.startswith("by:") else f"`{group.id}`"
            raise RefusedError(
                f"{name} was refused ({status}): {sentence(reason)}", status=status, reason=reason
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
                "lines_json": encode_json(tuple(lines)),
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
            accounts={name: read_account(row) for name, row in rows.items()},
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
        return [read_transfer(row) for row in rows]


def read_account(row: RowMapping) -> Account:
    """Read an account from its row."""
    return Account(
        id=row["id"],
        kind=_word(AccountKind, row["kind"], row["id"]),
        currency=row["currency"],
        episode=row["episode"],
    )


def read_transfer(row: RowMapping) -> Transfer:
    """Read a transfer from its row."""
    values = {name: row[column] for name, column in _TRANSFER_COLUMNS.items()}
    return Transfer(**values | {"code": _word(Code, row["code"], row["id"])})


def _word(kind: type[_Word], text: str, row_id: str) -> _Word:
    try:
        return kind(text)
    except ValueError as exc:
        raise RecordError(
            f"`{row_id}` has {text!r} where only {', '.join(kind)} can be: it was changed from "
            "outside; restore a copy of the store"
        ) from exc


def _transfer_row(transfer: Transfer, at_ms: int) -> dict[str, Any]:
    values = {column: getattr(transfer, name) for name, column in _TRANSFER_COLUMNS.items()}
    return values | {"code": transfer.code.value, "at_ms": at_ms}


# What a bet changes stands in columns; the rest is one record that a bet neither reads nor writes.
_IN_COLUMNS: Final = ("market", "position_count", "clock_ms")
_IN_RECORD: Final = tuple(
    field.name for field in dataclasses.fields(Episode) if field.name not in _IN_COLUMNS
)
_KEPT: Final = 256
"""Decoded records to remember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    """An episode, and what only the store knows of it."""

    episode: Episode
    secret: bytes = field(repr=False)
    """The seed, which nobody is shown before the freeze."""

    @property
    def is_open(self) -> bool:
        return self.episode.state not in ENDED


class EpisodeRepository:
    """Read and write episodes, on whatever connection is given."""

    def __init__(self) -> None:
        # By the hash of the record, so what is remembered can't be out of date.
        self._decoded: dict[str, Episode] = {}

    def insert(self, connection: Connection, stored: StoredEpisode, *, at_ms: int) -> None:
        """Write down a new episode."""
        terms = stored.episode.terms
        # Clocks can be held anywhere, and yet the newest episode is the one written last.
        newest = episodes.newest_ms(connection)
        row = {
            "episode_id": stored.episode.id,
            "claim": terms.claim,
            "currency": terms.currency,
            "secret": stored.secret.hex(),
            "created_ms": at_ms if newest is None else max(at_ms, newest + 1),
            "updated_ms": at_ms,
        }
        episodes.insert_episode(
            connection, row | _columns(stored.episode) | _record(stored.episode)
        )

    def load(self, connection: Connection, episode_id: str) -> StoredEpisode:
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
            market=read_market(row),
            position_count=row["position_count"],
            clock_ms=row["clock_ms"],
        )
        return StoredEpisode(episode=current, secret=bytes.fromhex(row["secret"]))

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
        return [read_position(row) for row in episodes.positions_of(connection, episode_id)]

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


def read_market(row: RowMapping) -> Market | None:
    """Read the market from an episode's row; None before it opens."""
    if row["market_money"] is None:
        return None
    return Market(
        money=row["market_money"],
        heretic=row["market_heretic"],
        orthodox=row["market_orthodox"],
    )


def read_position(row: RowMapping) -> Position:
    """Read a bet from its row."""
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
    text = encode_json({name: getattr(episode, name) for name in _IN_RECORD})
    return {"record_json": text, "record_sha256": sha256_hex(text.encode())}


def read_holding(row: RowMapping) -> Holding:
    """Read an account and its balance from a row."""
    return Holding(account=read_account(row), balance=row["balance"], person=row["person"])


def read_summary(row: RowMapping) -> EpisodeSummary:
    """Read a line of a list of episodes from a row."""
    return EpisodeSummary(
        id=row["episode_id"],
        claim=row["claim"],
        currency=row["currency"],
        state=State(row["state"]),
        market=read_market(row),
        position_count=row["position_count"],
        clock_ms=row["clock_ms"],
        close_ms=row["close_ms"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
    )


def read_held_position(row: RowMapping) -> HeldPosition:
    """Read a bet from its row and its episode's."""
    close = row["close_ms"]
    return HeldPosition(
        episode=row["episode_id"],
        claim=row["claim"],
        state=State(row["state"]),
        position=read_position(row),
        late=close is not None and row["at_ms"] > close,
    )


def read_statements(connection: Connection, episode_id: str) -> list[StoredStatement]:
    """Read what explains an episode's groups, in the order of the moves."""
    return [
        StoredStatement(
            group=row["group_id"],
            move=row["move"],
            lines=decode_json(tuple[Explained, ...], row["lines_json"], row["group_id"]),
            at_ms=row["at_ms"],
        )
        for row in episodes.statements_of(connection, episode_id)
    ]


def read_measurements(connection: Connection, episode_id: str) -> list[StoredMeasurement]:
    """Read what an episode was told, by stage."""
    told = [
        StoredMeasurement(
            stage=row["stage"],
            record=json.loads(row["measurement_json"]),
            source=Source(
                executions=tuple(json.loads(row["executions_json"])), bundle_id=row["bundle_id"]
            ),
            at_ms=row["at_ms"],
        )
        for row in episodes.measurements_of(connection, episode_id)
    ]
    # Several stages can fall on one moment of a held clock; their own order settles it.
    return sorted(told, key=lambda item: (_rank(item.stage), item.at_ms))


def _rank(stage: str) -> tuple[int, int]:
    name, _, number = stage.partition(":")
    return ("c0", "gate", "first", "second", "round").index(name), int(number or 0)


def verify_ledger(connection: Connection) -> LedgerReport:
    """Read the chain from its first transfer, and hold everything that is kept against it."""
    breaches: list[Breach] = []
    holdings = list(_read(read_holding, ledger.account_rows(connection), breaches))
    accounts = {holding.account.id: holding.account for holding in holdings}
    balances = {holding.account.id: holding.balance for holding in holdings}
    breaches.extend(misnamed_accounts((h.account, h.person) for h in holdings))
    replayed: defaultdict[str, int] = defaultdict(int)
    first_seqs: dict[str, int] = {}

    def passing() -> Iterator[Transfer]:
        # One pass, whatever the length: replayed and checked on the way to being verified.
        for transfer in _read(read_transfer, ledger.stream_transfers(connection), breaches):
            replayed[transfer.debit] -= transfer.amount
            replayed[transfer.credit] += transfer.amount
            first_seqs.setdefault(transfer.group, transfer.seq)
            strangers = {transfer.debit, transfer.credit} - accounts.keys()
            if strangers:
                detail = f"no account {min(strangers)!r}"
                breaches.append(Breach("known_accounts", transfer.id, detail))
            else:
                breaches.extend(crossed_currencies(accounts, [transfer]))
            yield transfer

    chain = verify(passing())
    breaches.extend(Breach("chain", fault.id, fault.detail) for fault in chain.faults)
    end = ledger.chain_end(connection)
    if (end["last_seq"], end["last_hash"]) != (chain.count, chain.last_hash):
        detail = f"{chain.count} transfers end in {chain.last_hash}, not {end['last_seq']} in "
        breaches.append(Breach("chain_end", "chain", f"{detail}{end['last_hash']}"))
    for name in sorted(replayed.keys() | balances.keys()):
        expected, kept = replayed.get(name, 0), balances.get(name, 0)
        if expected != kept:
            detail = f"the chain gives {expected}, the balance is {kept}"
            breaches.append(Breach("replay", name, detail))
    breaches.extend(_statement_breaches(connection, first_seqs))
    open_ = episodes.episodes_open(connection)
    breaches.extend(unbalanced_currencies(accounts, balances))
    breaches.extend(overdrafts(accounts, balances))
    breaches.extend(leftover_escrows(accounts, balances, open_))
    breaches.extend(_stake_breaches(connection, balances))
    return LedgerReport(count=chain.count, last_hash=chain.last_hash, breaches=tuple(breaches))


def _read(
    record_of: Callable[[RowMapping], _Row], rows: Iterable[RowMapping], breaches: list[Breach]
) -> Iterator[_Row]:
    """Read records from rows; name and leave out what no rule could have written."""
    for row in rows:
        try:
            record = record_of(row)
        except RecordError as exc:
            breaches.append(Breach("words", row["id"], str(exc)))
            continue
        yield record


def _statement_breaches(connection: Connection, first_seqs: Mapping[str, int]) -> Iterator[Breach]:
    """Every group has the statement that keeps its key from being used again, and no other has."""
    told = ledger.statement_seqs(connection)
    for group in sorted(told.keys() | first_seqs.keys()):
        if told.get(group) != first_seqs.get(group):
            detail = f"begins at {first_seqs.get(group)}, its statement says {told.get(group)}"
            yield Breach("statements", group, detail)


def _stake_breaches(connection: Connection, balances: Mapping[str, int]) -> Iterator[Breach]:
    """The stake pot of each open episode holds its bets, and its market counts them."""
    for row in episodes.open_stakes(connection):
        pot = escrow_account(row["episode_id"], Escrow.STAKE, row["currency"]).id
        total = int(row["market_money_held"])
        yield from stake_mismatch(pot, balances.get(pot, 0), [total])
        for name in ("market_money", "market_heretic", "market_orthodox"):
            held = int(row[f"{name}_held"])
            if (row[name] or 0) != held:
                detail = f"`{name}` counts {row[name]}, the open positions come to {held}"
                yield Breach("market", row["episode_id"], detail)
