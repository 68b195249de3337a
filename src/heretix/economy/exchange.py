"""The exchange: accounts, markets and episodes on a store, each move in one transaction.

Rows become records and records rows here: the ledger transaction, the episode repository, what
verifies the stored ledger, and the `Exchange` that is made of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections import defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar

from heretix.core.canonical import decode, decode_json, digest, encode, encode_json, sha256_hex
from heretix.core.errors import RecordError, RefusedError
from heretix.economy import ledger
from heretix.economy.audit import FORMAT
from heretix.economy.episode import challenges, moves, state
from heretix.economy.episode.settlement import settle
from heretix.economy.episode.state import ENDED, Denial, Denied, Episode, Fate, Moved, State
from heretix.economy.exploration import Grant, failure_rate, min_stake, remaining
from heretix.economy.market import Market, Position, Side, quote
from heretix.economy.sentences import refuse_move, sentence
from heretix.store import economy as queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, RowMapping

    from heretix.core.clock import Clock
    from heretix.economy.episode.challenges import BroughtEvidence
    from heretix.economy.episode.settlement import Measurement, Settlement
    from heretix.economy.episode.state import Challenge, Direction, Dispute, Ground, Rule, Terms
    from heretix.economy.market import Quote
    from heretix.store import Store

STARTING_PURSE: Final = 1_000_000
"""Grant that a person starts with: 10,000.00 in play money."""
HOUSE_PURSE: Final = 1_000_000_000
"""Money of the house to seed markets with, and of the fund to pay rewards from."""
UNDRAWN: Final = "0" * 64
"""Placeholder for the commitment until a draft draws the secret."""
DAY_MS: Final = 86_400_000
_T = TypeVar("_T")
_P = ParamSpec("_P")
_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """An account and what it holds."""

    account: ledger.Account
    balance: int
    person: str | None
    """Owner of the account; None for the operator's and for pots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A transfer, and when it was written."""

    transfer: ledger.Transfer
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Origin of a measurement: the executions it was made of, and the evidence shown."""

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
    """Statement of one move: each line that it paid, explained."""

    group: str
    move: str
    lines: tuple[ledger.Explained, ...]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMeasurement:
    """Result of one stage for an episode, and where it came from."""

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
    """Worked out anew from what is kept; None before it has ended."""


class LedgerTransaction:
    """One writer's turn. Whoever has it is alone, so what it reads stays true until it ends."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        # First of all: a second writer waits here, and sees everything that this one did.
        end = queries.lock_chain(connection)
        self.connection = connection
        self._last_seq: int = end["last_seq"]
        self._last_hash: str = end["last_hash"]
        self._new: set[str] = set()
        # Read after the wait, so that times follow each other as the transfers do.
        self.at_ms = clock.now_ms()

    def add_accounts(
        self, accounts: Iterable[ledger.Account], *, person: str | None = None
    ) -> None:
        """Make accounts known; those that are stay as they are."""
        own = {"person": person, "balance": 0, "created_ms": self.at_ms}
        queries.add_accounts(self.connection, [encode(account) | own for account in accounts])

    def find_earlier(self, group: str, request: Mapping[str, Any]) -> RowMapping | None:
        """The statement of a move that was made under this id before; None if it is new.

        The same id for another request is refused.
        """
        row = queries.statement(self.connection, group)
        if row is None:
            self._new.add(group)
        elif row["request_hash"] != digest(request):
            name = "this key" if group.startswith("by:") else f"`{group}`"
            raise RefusedError(
                f"{name} was used before for another request; choose another key",
                status=ledger.Status.ID_CONFLICT.value,
            )
        return row

    def post(
        self, group: ledger.Group, *, move: str, request: Mapping[str, Any]
    ) -> tuple[ledger.Transfer, ...]:
        """Judge a group and write it with what explains it, or refuse all of it."""
        result = self.judge(group, episodes={})
        self.enter(group, result, move=move, request=request)
        return result.transfers

    def judge(self, group: ledger.Group, *, episodes: dict[str, bool]) -> ledger.Applied:
        """Result of a group, written before or to be written now; or a refusal of it."""
        # Just what the group touches.
        named = {name for draft in group.drafts for name in (draft.debit, draft.credit)}
        rows = queries.accounts_by_id(self.connection, named)
        if group.closes is not None:
            rows |= queries.accounts_of_episode(self.connection, group.closes)
        same: list[ledger.Transfer] = []
        # Every group has a statement, and ids begin with their group's: no statement, no transfer.
        if group.id not in self._new and queries.statement(self.connection, group.id) is not None:
            ids = [draft.id for draft in group.drafts]
            found = queries.same_id_or_group(self.connection, group.id, ids)
            same = [read_transfer(row) for row in found]
        seen = ledger.LedgerState(
            accounts={name: read_account(row) for name, row in rows.items()},
            balances={name: row["balance"] for name, row in rows.items()},
            by_id={transfer.id: transfer for transfer in same},
            by_group={group.id: tuple(t for t in same if t.group == group.id)},
            episodes=episodes,
            last_seq=self._last_seq,
            last_hash=self._last_hash,
        )
        result = ledger.apply(seen, group)
        if isinstance(result, ledger.Refused):
            status, said = result.status.value, sentence(result.reason)
            # A key of the client's tells nobody anything; the operator's ids say what they are.
            name = "the move" if group.id.startswith("by:") else f"`{group.id}`"
            raise RefusedError(
                f"{name} was refused ({status}): {said}", status=status, reason=result.reason
            )
        return result

    def enter(
        self,
        group: ledger.Group,
        result: ledger.Applied,
        *,
        move: str,
        request: Mapping[str, Any],
        subject: int | None = None,
    ) -> None:
        """Write a group with what explains it, unless that stands there already."""
        if result.status is not ledger.Status.APPLIED:
            return
        rows = [encode(t) | {"group_id": t.group, "at_ms": self.at_ms} for t in result.transfers]
        for row in rows:
            del row["group"]
        queries.append_transfers(self.connection, rows, result.balances)
        self._last_seq = result.transfers[-1].seq
        self._last_hash = result.transfers[-1].hash
        named = {draft.episode for draft in group.drafts}
        queries.insert_statement(
            self.connection,
            {
                "group_id": group.id,
                "episode_id": named.pop() if len(named) == 1 else None,
                "move": move,
                "request_hash": digest(request),
                "subject": subject,
                "lines_json": encode_json(group.lines),
                "first_seq": result.transfers[0].seq,
                "at_ms": self.at_ms,
            },
        )


# Rows as records, and back.


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _read(to: Callable[..., _T], row: RowMapping, **given: Any) -> _T:
    """Read a record from the columns that go by its fields' names, but for what is given."""
    return to(**given, **{name: row[name] for name in _fields(to) if name not in given})


def read_account(row: RowMapping) -> ledger.Account:
    """Read an account from its row."""
    return _read(ledger.Account, row, kind=_read_word(ledger.AccountKind, row["kind"], row["id"]))


def read_transfer(row: RowMapping) -> ledger.Transfer:
    """Read a transfer from its row."""
    code = _read_word(ledger.Code, row["code"], row["id"])
    return _read(ledger.Transfer, row, group=row["group_id"], code=code)


def _read_word(kind: type[_Word], text: str, row_id: str) -> _Word:
    try:
        return kind(text)
    except ValueError as exc:
        raise RecordError(
            f"`{row_id}` has {text!r} where only {', '.join(kind)} can be: it was changed from "
            "outside; restore a copy of the store"
        ) from exc


def read_market(row: RowMapping) -> Market | None:
    """Read the market from an episode's row; None before it opens."""
    if row["market_money"] is None:
        return None
    return Market(**{name: row[f"market_{name}"] for name in _fields(Market)})


def read_position(row: RowMapping) -> Position:
    """Read a bet from its row."""
    return _read(Position, row, side=Side(row["side"]))


def read_positions(connection: Connection, episode_id: str) -> list[Position]:
    """Read an episode's bets, in their order."""
    return [read_position(row) for row in queries.positions_of(connection, episode_id)]


def read_holding(row: RowMapping) -> Holding:
    """Read an account and its balance from a row."""
    return _read(Holding, row, account=read_account(row))


def read_statements(connection: Connection, episode_id: str) -> list[StoredStatement]:
    """Read what explains an episode's groups, in the order of the moves."""
    return [
        _read(
            StoredStatement,
            row,
            group=row["group_id"],
            lines=decode_json(tuple[ledger.Explained, ...], row["lines_json"], row["group_id"]),
        )
        for row in queries.statements_of(connection, episode_id)
    ]


def read_measurements(connection: Connection, episode_id: str) -> list[StoredMeasurement]:
    """Read what an episode was told, by stage."""
    found = []
    for row in queries.measurements_of(connection, episode_id):
        executions = tuple(json.loads(row["executions_json"]))
        source = Source(executions=executions, bundle_id=row["bundle_id"])
        told = json.loads(row["measurement_json"])
        found.append(_read(StoredMeasurement, row, record=told, source=source))

    def rank(item: StoredMeasurement) -> tuple[int, int, int]:
        # Several stages can fall on one moment of a held clock; their own order settles it.
        name, _, number = item.stage.partition(":")
        order = ("c0", "gate", "first", "second", "round").index(name)
        return order, int(number or 0), item.at_ms

    return sorted(found, key=rank)


# What a bet changes stands in columns; the rest is one record that a bet neither reads nor writes.
_BLANK: Final = {"market": None, "position_count": 0, "clock_ms": 0}
_IN_RECORD: Final = tuple(name for name in _fields(Episode) if name not in _BLANK)
_KEPT: Final = 256
"""Decoded records to remember."""


class EpisodeRepository:
    """Read and write episodes, on whatever connection is given."""

    def __init__(self) -> None:
        # By the hash of the record, so what is remembered can't be out of date.
        self._decoded: dict[str, Episode] = {}

    def insert(
        self, connection: Connection, episode: Episode, *, secret: bytes, at_ms: int
    ) -> None:
        """Write down a new episode, with the seed that nobody is shown before the freeze."""
        # Clocks can be held anywhere, and yet the newest episode is the one written last.
        newest = queries.newest_ms(connection)
        row = {
            "episode_id": episode.id,
            "claim": episode.terms.claim,
            "currency": episode.terms.currency,
            "secret": secret.hex(),
            "created_ms": at_ms if newest is None else max(at_ms, newest + 1),
            "updated_ms": at_ms,
        }
        queries.insert_episode(connection, row | _columns(episode) | _record(episode))

    def load(self, connection: Connection, episode_id: str) -> Episode:
        """Load an episode as it stands; one that doesn't exist is refused."""
        row = queries.episode_row(connection, episode_id)
        if row is None:
            raise RefusedError(
                f"`{episode_id}` must be the id of an episode, and there is none of that id; "
                "`heretix episode list` shows them",
                status=ledger.Status.UNKNOWN_EPISODE.value,
            )
        episode = self._decoded.get(row["record_sha256"])
        if episode is None:
            text = queries.record_json(connection, episode_id)
            if sha256_hex(text.encode()) != row["record_sha256"]:
                raise RecordError(
                    f"`{episode_id}` must have the record that was written last, and doesn't: it "
                    "was changed from outside; restore a copy of the store"
                )
            episode = decode(Episode, json.loads(text) | _BLANK, f"episode {episode_id}")
            if len(self._decoded) >= _KEPT:
                self._decoded.clear()
            self._decoded[row["record_sha256"]] = episode
        bets, clock = row["position_count"], row["clock_ms"]
        return replace(episode, market=read_market(row), position_count=bets, clock_ms=clock)

    def update(
        self, connection: Connection, before: Episode, after: Episode, *, at_ms: int
    ) -> None:
        """Write down what a move made of an episode."""
        values = _columns(after) | {"updated_ms": at_ms}
        # A rule copies what it doesn't change, so the very same objects mean the same record.
        if any(getattr(before, name) is not getattr(after, name) for name in _IN_RECORD):
            values |= _record(after)
        queries.update_episode(connection, after.id, values)


def _columns(episode: Episode) -> dict[str, Any]:
    names = ("terms_hash", "position_count", "clock_ms", "close_ms")
    market = {f"market_{name}": getattr(episode.market, name, None) for name in _fields(Market)}
    stands = {"state": episode.state.value, "is_open": episode.state not in ENDED}
    return {name: getattr(episode, name) for name in names} | market | stands


def _record(episode: Episode) -> dict[str, Any]:
    text = encode_json({name: getattr(episode, name) for name in _IN_RECORD})
    return {"record_json": text, "record_sha256": sha256_hex(text.encode())}


def verify_ledger(connection: Connection) -> ledger.LedgerReport:
    """Read the chain from its first transfer, and hold everything that is kept against it."""
    breaches: list[ledger.Breach] = []
    holdings = list(_read_sound(read_holding, queries.account_rows(connection), breaches))
    accounts = {holding.account.id: holding.account for holding in holdings}
    balances = {holding.account.id: holding.balance for holding in holdings}
    breaches.extend(ledger.misnamed_accounts((h.account, h.person) for h in holdings))
    replayed: defaultdict[str, int] = defaultdict(int)
    first_seqs: dict[str, int] = {}

    def passing() -> Iterator[ledger.Transfer]:
        # One pass, whatever the length: replayed and checked on the way to being verified.
        for transfer in _read_sound(read_transfer, queries.stream_transfers(connection), breaches):
            replayed[transfer.debit] -= transfer.amount
            replayed[transfer.credit] += transfer.amount
            first_seqs.setdefault(transfer.group, transfer.seq)
            breaches.extend(ledger.check_parties(accounts, transfer))
            yield transfer

    chain = ledger.verify(passing())
    breaches.extend(chain.breaches)
    end = queries.chain_end(connection)
    if (end["last_seq"], end["last_hash"]) != (chain.count, chain.last_hash):
        detail = f"{chain.count} transfers end in {chain.last_hash}, not {end['last_seq']} in "
        breaches.append(ledger.Breach("chain_end", "chain", f"{detail}{end['last_hash']}"))
    for name in sorted(replayed.keys() | balances.keys()):
        expected, kept = replayed.get(name, 0), balances.get(name, 0)
        if expected != kept:
            detail = f"the chain gives {expected}, the balance is {kept}"
            breaches.append(ledger.Breach("replay", name, detail))
    # Every group has the statement that keeps its key from being used again, and no other has.
    told = queries.statement_seqs(connection)
    for group in sorted(told.keys() | first_seqs.keys()):
        if told.get(group) != first_seqs.get(group):
            detail = f"begins at {first_seqs.get(group)}, its statement says {told.get(group)}"
            breaches.append(ledger.Breach("statements", group, detail))
    breaches.extend(ledger.check_balances(accounts, balances, queries.episodes_open(connection)))
    breaches.extend(_stake_breaches(connection, balances))
    return replace(chain, breaches=tuple(breaches))


def _read_sound(
    record_of: Callable[[RowMapping], _T], rows: Iterable[RowMapping], breaches: list[ledger.Breach]
) -> Iterator[_T]:
    """Read records from rows; name and leave out what no rule could have written."""
    for row in rows:
        try:
            yield record_of(row)
        except RecordError as exc:
            breaches.append(ledger.Breach("words", row["id"], str(exc)))


def _stake_breaches(connection: Connection, balances: Mapping[str, int]) -> Iterator[ledger.Breach]:
    """The stake pot of each open episode holds its bets, and its market counts them."""
    for row in queries.open_stakes(connection):
        pot = ledger.escrow_account(row["episode_id"], ledger.Escrow.STAKE, row["currency"]).id
        yield from ledger.check_stakes(pot, balances.get(pot, 0), int(row["market_money_held"]))
        for name in ("market_money", "market_heretic", "market_orthodox"):
            held = int(row[f"{name}_held"])
            if (row[name] or 0) != held:
                detail = f"`{name}` counts {row[name]}, the open positions come to {held}"
                yield ledger.Breach("market", row["episode_id"], detail)


def read_grants(connection: Connection, person: str) -> list[Grant]:
    """Read what a person was credited with, oldest first."""
    rows = queries.grants(connection, person=person)
    return [Grant(amount=row["amount"], day=row["day"]) for row in rows]


def day_of(grants: Sequence[Grant], at_ms: int) -> int:
    """Return the day of a moment; never before a day on which the person was credited.

    A clock that is held earlier would open the cap of a week that is over, and undo decay.
    """
    return max([grant.day for grant in grants] + [at_ms // DAY_MS])


class Exchange:
    """Accounts, markets and episodes in a store. Threads and processes may share one store.

    Everything that a move writes is written in one transaction. A repeated move gives the first
    result again; what the rules refuse changes nothing. People are called by their names. Where an
    account may be meant as well, `who` is a name, or an account's id, which has colons where a
    name can't.
    """

    def __init__(
        self, store: Store, *, clock: Clock, entropy: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self.store = store
        self.clock = clock
        self._entropy = entropy
        self._episodes = EpisodeRepository()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[LedgerTransaction]:
        """Take the one writer's turn."""
        with self.store.writing() as connection:
            yield LedgerTransaction(connection, self.clock)

    # Accounts and the ledger.

    def ensure_house(self, currency: str = "PLAY", *, purse: int = HOUSE_PURSE) -> None:
        """Make the operator's accounts; the house and the fund are given a purse each, once."""
        ledger.require_whole("purse", purse)
        wanted = ledger.require_currency(currency)
        group = f"found:{currency}"
        # Whoever only looks mustn't have to wait for a writer, nor be one.
        with self.store.reading() as connection:
            if queries.statement(connection, group) is not None:
                return
        with self.transaction() as transaction:
            transaction.add_accounts(ledger.house_accounts(currency))
            known = queries.statement(transaction.connection, group) is not None
            if purse and wanted.transferable and not known:
                to = (ledger.AccountKind.HOUSE, ledger.AccountKind.EPC_FUND)
                amounts = {ledger.house_account(kind, currency).id: purse for kind in to}
                _issue(transaction, group, amounts, currency)

    def join(self, name: str, currency: str = "PLAY", *, purse: int | None = None) -> Holding:
        """Give a person an account with a starting purse. Who has one keeps it as it is."""
        account, wanted = ledger.user_account(name, currency), ledger.require_currency(currency)
        start = (STARTING_PURSE if wanted.transferable else 0) if purse is None else purse
        ledger.require_whole("purse", start)
        with self.transaction() as transaction:
            if account.id not in queries.accounts_by_id(transaction.connection, [account.id]):
                transaction.add_accounts(ledger.house_accounts(currency))
                transaction.add_accounts([account], person=name)
                if start:
                    _issue(transaction, f"join:{account.id}", {account.id: start}, currency)
            row = queries.accounts_by_id(transaction.connection, [account.id])[account.id]
        return read_holding(row)

    def issue(
        self, who: str, amount: int, *, key: str, currency: str = "PLAY"
    ) -> tuple[ledger.Transfer, ...]:
        """Make money and give it to a person or to one of the operator's accounts."""
        mint = ledger.house_account(
            ledger.AccountKind.ISSUANCE, ledger.require_currency(currency).code
        )
        group, account = ledger.client_group(mint.id, key), _account_id(who, currency)
        with self.transaction() as transaction:
            return _issue(transaction, group, {account: amount}, currency)

    def balance(self, who: str, currency: str = "PLAY") -> int:
        """Return what a person or an account holds; an unknown one is refused."""
        wanted = _account_id(who, currency)
        row = self.store.read(queries.accounts_by_id, [wanted]).get(wanted)
        if row is None:
            raise RefusedError(
                f"`{who}` must have an account in {currency}, and has none; join first",
                status=ledger.Status.UNKNOWN_ACCOUNT.value,
            )
        return int(row["balance"])

    def balances(
        self,
        *,
        person: str | None = None,
        episode: str | None = None,
        currency: str | None = None,
        limit: int = 1_000,
        offset: int = 0,
    ) -> list[Holding]:
        """List accounts that fit everything that is given, by id."""
        if currency is not None:
            ledger.require_currency(currency)
        rows = self.store.read(
            queries.account_rows,
            person=person,
            episode=episode,
            currency=currency,
            limit=ledger.require_whole("limit", limit),
            offset=ledger.require_whole("offset", offset),
        )
        return [read_holding(row) for row in rows]

    def history(
        self,
        *,
        account: str | None = None,
        episode: str | None = None,
        group: str | None = None,
        limit: int = 50,
        before_seq: int | None = None,
    ) -> list[Entry]:
        """List transfers that fit everything that is given, the newest first."""
        rows = self.store.read(
            queries.history,
            account=account,
            episode=episode,
            group=group,
            limit=ledger.require_whole("limit", limit),
            before_seq=before_seq,
        )
        return [Entry(transfer=read_transfer(row), at_ms=row["at_ms"]) for row in rows]

    def export(self, *, after_seq: int = 0) -> Iterator[str]:
        """Yield transfers in the order of the chain, one line of JSON each, as of one moment."""
        with self.store.reading() as connection:
            for row in queries.stream_transfers(connection, after_seq=after_seq):
                yield encode_json(dict(row))

    def verify(self) -> ledger.LedgerReport:
        """Read the chain from its first transfer, and hold everything that is kept against it."""
        return self.store.read(verify_ledger)

    # Moves of an episode. Each returns what it brought about, as it stands then.

    def draft(self, terms: Terms, *, c0: Source | None = None, key: str | None = None) -> str:
        """Write an episode down, draw its secret, and return the id that it goes by.

        The commitment in `terms` is replaced by one to that secret. `c0` says where the belief
        that the terms start from was measured. Under the same `key` again, it is the episode that
        was written first.
        """
        ledger.require_currency(terms.currency)
        secret = self._entropy(challenges.SECRET_BYTES)
        episode_id = f"ep-{self._entropy(6).hex()}" if key is None else state.draft_id(key)
        drawn = replace(terms, seed_commitment=challenges.seed_commitment(secret))
        episode = state.draft_episode(episode_id, drawn)
        with self.transaction() as transaction:
            connection, at_ms = transaction.connection, transaction.at_ms
            if key is not None and queries.episode_row(connection, episode_id) is not None:
                return episode_id
            self._episodes.insert(connection, episode, secret=secret, at_ms=at_ms)
            if c0 is not None:
                _keep(transaction, episode_id, "c0", {"c0_ppm": terms.c0_ppm}, c0)
        return episode_id

    def open(self, episode_id: str) -> Episode:
        """Fix the terms; escrow the house's seed and the budget for rewards."""
        with self.move("open", episode_id) as move:
            if move.episode.state is State.DRAFT:
                currency = move.episode.terms.currency
                pots = (ledger.escrow_account(episode_id, pot, currency) for pot in ledger.Escrow)
                move.transaction.add_accounts((*ledger.house_accounts(currency), *pots))
                move.make(moves.open_episode)
            return move.episode

    def begin_challenge(self, episode_id: str) -> Episode:
        """Let evidence be committed from now on."""
        with self.move("begin_challenge", episode_id) as move:
            if move.episode.state in {State.DRAFT, State.OPEN}:
                move.make(moves.begin_challenge)
            return move.episode

    def stake(
        self, episode_id: str, person: str, side: Side, amount: int, *, min_shares: int, key: str
    ) -> Position:
        """Bet on a side; refused if it would buy fewer than `min_shares` micro-shares."""
        ledger.require_whole("min_shares", min_shares)
        asked = {"side": side, "amount": amount, "min_shares": min_shares}
        with self.move("stake", episode_id, person) as move:
            number = move.find_earlier(key, asked, subject=move.episode.position_count)
            if number is not None:
                rows = queries.positions_of(move.connection, episode_id, number=number)
                return read_position(rows[0])
            moved = move.make(
                moves.stake,
                key=key,
                account=move.account,
                side=side,
                amount=amount,
                min_shares=min_shares,
            )
            return moved.positions[0]

    def min_stake(self, episode_id: str, person: str, *, compute_cost: int = 0) -> int:
        """Return what a challenge by this person must stake now."""
        with self.store.reading() as connection:
            episode = self._episodes.load(connection, episode_id)
            return self._min_stake(connection, episode, person, compute_cost)

    def commit(
        self,
        episode_id: str,
        person: str,
        *,
        direction: Direction,
        commitment: str,
        amount: int,
        key: str,
        compute_cost: int = 0,
    ) -> Challenge:
        """Commit to evidence without showing it."""
        asked = {"direction": direction, "commitment": commitment, "amount": amount}
        with self.move("commit", episode_id, person) as move:
            least = self._min_stake(move.connection, move.episode, person, compute_cost)
            number = move.find_earlier(key, asked, subject=len(move.episode.challenges))
            if number is None:
                move.make(
                    challenges.commit,
                    key=key,
                    account=move.account,
                    direction=direction,
                    commitment=commitment,
                    amount=amount,
                    least=least,
                )
            return move.episode.challenges[-1 if number is None else number]

    def reveal(
        self, episode_id: str, number: int, person: str, *, nonce: bytes, bundle_sha256: str
    ) -> Challenge:
        """Show what a commitment hid."""
        with self.move("reveal", episode_id, person) as move:
            known = dict(enumerate(move.episode.challenges)).get(number)
            account = move.account
            if (
                known is None
                or (known.account, known.bundle_sha256) != (account, bundle_sha256)
                or known.commitment != challenges.evidence_commitment(nonce, bundle_sha256, account)
            ):
                move.make(
                    challenges.reveal,
                    number=number,
                    account=account,
                    nonce=nonce,
                    bundle_sha256=bundle_sha256,
                )
            return move.episode.challenges[number]

    def freeze(self, episode_id: str) -> Episode:
        """Reveal the secret, draw the close and the judges, give late stakes back."""
        with self.move("freeze", episode_id) as move:
            if move.episode.frozen_ms is None:
                row = queries.episode_row(move.connection, episode_id)
                seed = b"" if row is None else bytes.fromhex(row["secret"])
                move.make(moves.freeze, seed=seed, positions=move.positions())
            return move.episode

    def judge_challenge(
        self,
        episode_id: str,
        number: int,
        evidence: BroughtEvidence | None,
        *,
        source: Source | None = None,
    ) -> Episode:
        """Let a challenge move the credited path, or charge it for the attempt."""
        told = {"evidence": encode(evidence)}
        group = f"challenge:{episode_id}:{number}"
        with self.move("judge", episode_id) as move:
            if move.find_earlier(group, {"number": number, **told}, subject=number) is None:
                rule, bets = challenges.judge_challenge, move.positions()
                moved = move.make(rule, number=number, evidence=evidence, positions=bets)
                judged = moved.episode.challenges[number]
                _keep(move.transaction, episode_id, f"gate:{number}", told, source)
                attempt = {"passed": judged.fate is Fate.ACCEPTED, "amount": None, "scale": None}
                move.remember("attempt", [(number, judged.account, attempt)])
            return move.episode

    def measure(
        self,
        episode_id: str,
        measurement: Measurement,
        *,
        stage: Literal["first", "second"],
        source: Source | None = None,
    ) -> Episode:
        """Take a judging measurement: at the freeze, and again after the durability window."""
        told = encode(measurement)
        with self.move("measure", episode_id) as move:
            known = queries.measurements_of(move.connection, episode_id, stage=stage)
            if known and known[0]["measurement_json"] != encode_json(told):
                raise RefusedError(
                    f"`{episode_id}` has its {stage} measurement, and this is another; "
                    "what was measured stands, unless it is disputed",
                    status=ledger.Status.ID_CONFLICT.value,
                )
            if stage == "second" and not known and not move.episode.measurements:
                raise move.refuse(state.deny(Denial.OUT_OF_ORDER, "first_not_measured"))
            if not known:
                move.make(moves.measure, measurement=measurement, positions=move.positions())
                _keep(move.transaction, episode_id, stage, told, source)
            return move.episode

    def conclude_unmeasured(self, episode_id: str) -> Episode:
        """End the measuring where outside stakes on both sides are lacking: nobody needs it."""
        with self.move("conclude", episode_id) as move:
            if move.episode.measured_ms is None or move.episode.measurements:
                move.make(moves.conclude_unmeasured, positions=move.positions())
            return move.episode

    def dispute(
        self, episode_id: str, person: str, *, ground: Ground, bond: int, key: str
    ) -> Dispute:
        """Put a bond against the result, and have more judges drawn."""
        asked = {"ground": ground, "bond": bond}
        with self.move("dispute", episode_id, person) as move:
            number = move.find_earlier(key, asked, subject=len(move.episode.disputes))
            if number is None:
                rule, account = moves.raise_dispute, move.account
                move.make(rule, key=key, account=account, ground=ground, bond=bond)
            return move.episode.disputes[-1 if number is None else number]

    def rule(
        self,
        episode_id: str,
        *,
        ground_confirmed: bool,
        measurements: tuple[Measurement, Measurement],
        source: Source | None = None,
    ) -> Episode:
        """Let the larger panel's measurements stand."""
        told = {"ground_confirmed": ground_confirmed, "measurements": measurements}
        with self.move("rule", episode_id) as move:
            round_ = len(move.episode.disputes)
            asked = {"round": round_, **encode(told)}
            if move.find_earlier(f"dispute:{episode_id}:{round_}", asked, subject=round_) is None:
                move.make(
                    moves.rule_on_dispute,
                    ground_confirmed=ground_confirmed,
                    measurements=measurements,
                    positions=move.positions(),
                )
                _keep(move.transaction, episode_id, f"round:{round_}", told, source)
            return move.episode

    def close(self, episode_id: str) -> Episode:
        """Settle, or void: once, whoever asks and however often."""
        with self.move("settle", episode_id) as move:
            if move.episode.state in ENDED:
                return move.episode
            moved = move.make(moves.close_episode, positions=move.positions())
            book = moved.settlement.rewards if moved.settlement else None
            earned = [
                (r.step.number, r.step.account, {"amount": r.amount, "scale": r.scale})
                for r in (book.rewards if book else ())
            ]
            move.remember("reward", [(n, who, {"passed": None, **it}) for n, who, it in earned])
            return move.episode

    # Questions.

    def quote(self, episode_id: str, side: Side, amount: int) -> Quote:
        """Return what a bet would buy now, and what it can come to."""
        episode = self.episode(episode_id)
        if episode.market is None or episode.state not in {State.OPEN, State.CHALLENGE}:
            raise RefusedError(
                f"`{episode_id}` must be open or challenge to be bet on, "
                f"it is {episode.state.value}",
                status=Denial.WRONG_STATE.value,
            )
        rules = episode.terms.parameters
        tau_max_ppm, fee_ppm = rules.tau_max_ppm, rules.fee_ppm
        return quote(episode.market, side, amount, tau_max_ppm=tau_max_ppm, fee_ppm=fee_ppm)

    def episode(self, episode_id: str) -> Episode:
        """Return an episode as it stands."""
        return self.store.read(self._episodes.load, episode_id)

    def snapshot(self, episode_id: str) -> EpisodeSnapshot:
        """Read all of an episode that a page shows, as of one moment."""
        with self.store.reading() as connection:
            episode = self._episodes.load(connection, episode_id)
            positions = read_positions(connection, episode_id)
            return EpisodeSnapshot(
                episode=episode,
                positions=positions,
                statements=read_statements(connection, episode_id),
                measurements=read_measurements(connection, episode_id),
                settlement=settle(episode, positions) if episode.state in ENDED else None,
            )

    def knows(self, episode_id: str) -> bool:
        """Say whether there is an episode of this id."""
        return self.store.read(queries.episode_row, episode_id) is not None

    def episodes(
        self, *, state: State | None = None, limit: int = 20, offset: int = 0
    ) -> list[EpisodeSummary]:
        """List episodes, the newest first."""
        rows = self.store.read(
            queries.episode_summaries,
            state=None if state is None else state.value,
            limit=ledger.require_whole("limit", limit),
            offset=ledger.require_whole("offset", offset),
        )
        return [
            _read(
                EpisodeSummary,
                row,
                id=row["episode_id"],
                state=State(row["state"]),
                market=read_market(row),
            )
            for row in rows
        ]

    def positions(self, episode_id: str) -> list[Position]:
        """List an episode's bets, in their order."""
        with self.store.reading() as connection:
            self._episodes.load(connection, episode_id)
            return read_positions(connection, episode_id)

    def positions_of(self, person: str, *, currency: str = "PLAY") -> list[HeldPosition]:
        """List a person's bets, the newest first."""
        rows = self.store.read(queries.positions_by_account, _account_id(person, currency))
        return [
            HeldPosition(
                episode=row["episode_id"],
                claim=row["claim"],
                state=State(row["state"]),
                position=read_position(row),
                late=row["close_ms"] is not None and row["at_ms"] > row["close_ms"],
            )
            for row in rows
        ]

    def statements(self, episode_id: str) -> list[StoredStatement]:
        """List what each move of an episode paid to whom, and why."""
        with self.store.reading() as connection:
            self._episodes.load(connection, episode_id)
            return read_statements(connection, episode_id)

    def measurements(self, episode_id: str) -> list[StoredMeasurement]:
        """List what an episode was told, and the executions that it came from."""
        with self.store.reading() as connection:
            self._episodes.load(connection, episode_id)
            return read_measurements(connection, episode_id)

    def record(self, episode_id: str) -> dict[str, Any]:
        """Return everything that is needed to redo an episode elsewhere (`audit.verify_episode`).

        The seed is part of it once the freeze has revealed it, and not before.
        """
        with self.store.reading() as connection:
            episode = self._episodes.load(connection, episode_id)
            rows = queries.stream_transfers(connection, episode=episode_id)
            return {
                "format": FORMAT,
                "episode": encode(episode),
                "positions": encode(read_positions(connection, episode_id)),
                "transfers": [encode(read_transfer(row)) for row in rows],
                "statements": encode(read_statements(connection, episode_id)),
                "measurements": encode(read_measurements(connection, episode_id)),
            }

    @contextlib.contextmanager
    def move(self, name: str, episode_id: str, person: str | None = None) -> Iterator[EpisodeMove]:
        """Begin a move of an episode, a person's own or the operator's, in one transaction."""
        with self.transaction() as transaction:
            yield EpisodeMove(name, transaction, self._episodes, episode_id, person)

    def _min_stake(
        self, connection: Connection, episode: Episode, person: str, compute_cost: int
    ) -> int:
        parameters = episode.terms.parameters
        rules, account = parameters.stakes, ledger.user_account(person, episode.terms.currency).id
        attempts = queries.attempts_of(connection, account, limit=rules.recent_attempts)
        purse = ledger.user_account(person, ledger.XC.code).id
        held = queries.accounts_by_id(connection, [purse])
        # As they are worth now: nobody stakes less because decay wasn't posted.
        grants, half_life = read_grants(connection, person), parameters.credits.half_life_days
        today = day_of(grants, self.clock.now_ms())
        left = remaining(grants, today=today, half_life_days=half_life)
        return min_stake(
            compute_cost=compute_cost,
            credits_held=min(int(held[purse]["balance"]), left) if purse in held else 0,
            failure_rate_ppm=failure_rate(attempts, rules),
            rules=rules,
        )


class EpisodeMove:
    """A move of one episode inside one transaction: ask its rule, write down what that returns."""

    def __init__(
        self,
        name: str,
        transaction: LedgerTransaction,
        repository: EpisodeRepository,
        episode_id: str,
        person: str | None,
    ) -> None:
        self.transaction, self.connection = transaction, transaction.connection
        self.at_ms = transaction.at_ms
        self.episode = repository.load(self.connection, episode_id)
        currency = self.episode.terms.currency
        self.account = "" if person is None else ledger.user_account(person, currency).id
        self._name, self._repository = name, repository
        self._request: dict[str, Any] = {"move": name, "episode": episode_id}
        self._subject: int | None = None

    def positions(self) -> list[Position]:
        """List the episode's bets, in their order."""
        return read_positions(self.connection, self.episode.id)

    def refuse(self, denied: Denied) -> RefusedError:
        """Return the error that tells of a refused move."""
        currency = self.episode.terms.currency
        return refuse_move(self.episode.id, denied.denial.value, denied.reason, currency)

    def find_earlier(self, key: str, asked: Mapping[str, Any], *, subject: int) -> int | None:
        """Find the number of what this move made before, under a person's key or its group's id.

        None if it is new: then `make` writes it down under that id, as being about `subject`.
        """
        self._request |= asked
        self._subject = subject
        group = ledger.client_group(self.account, key) if self.account else key
        earlier = self.transaction.find_earlier(group, self._request)
        return None if earlier is None else int(earlier["subject"])

    def make(self, rule: Rule[_P], *args: _P.args, **given: _P.kwargs) -> Moved:
        """Ask a rule, and write down everything that it returns, or raise its refusal."""
        result = rule(self.episode, self.at_ms, *args, **given)
        if isinstance(result, Denied):
            raise self.refuse(result)
        before, transaction, group = self.episode, self.transaction, result.group
        if group is not None:
            applied = transaction.judge(group, episodes={before.id: before.state not in ENDED})
        with queries.together(self.connection):
            if group is not None:
                name, request, subject = self._name, self._request, self._subject
                transaction.enter(group, applied, move=name, request=request, subject=subject)
            rows = [encode(added) | {"episode_id": before.id} for added in result.positions]
            queries.insert_positions(self.connection, rows)
            self._repository.update(self.connection, before, result.episode, at_ms=self.at_ms)
        self.episode = result.episode
        return result

    def remember(self, kind: str, found: list[tuple[int, str, dict[str, Any]]]) -> None:
        """Keep what people's standing follows from: attempts and rewards, by number and account."""
        own = {"episode_id": self.episode.id, "kind": kind, "at_ms": self.at_ms}
        rows = [{"number": n, "account": account, **own, **event} for n, account, event in found]
        queries.insert_reputation_events(self.connection, rows)


def _account_id(who: str, currency: str) -> str:
    return who if ":" in who else ledger.user_account(who, currency).id


def _issue(
    transaction: LedgerTransaction, group_id: str, amounts: Mapping[str, int], currency: str
) -> tuple[ledger.Transfer, ...]:
    """Issue money to accounts, under an id of its own."""
    mint = ledger.house_account(ledger.AccountKind.ISSUANCE, currency).id
    transfers = [(mint, account, amount) for account, amount in amounts.items()]
    group = ledger.plain_group(group_id, transfers, currency, ledger.Code.ISSUE, reason="issued")
    request = {"move": "issue", "amounts": dict(amounts)}
    return transaction.post(group, move="issue", request=request)


def _keep(
    transaction: LedgerTransaction, episode_id: str, stage: str, told: object, source: Source | None
) -> None:
    """Keep what an episode was told beside where it came from."""
    source = source or Source()
    queries.insert_measurement(
        transaction.connection,
        {
            "episode_id": episode_id,
            "stage": stage,
            "measurement_json": encode_json(told),
            "executions_json": encode_json(source.executions),
            "bundle_id": source.bundle_id,
            "at_ms": transaction.at_ms,
        },
    )
