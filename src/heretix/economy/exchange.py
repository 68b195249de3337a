"""The exchange: accounts, markets and episodes on a store, each move in one transaction.

Rows become records and records rows here: the ledger transaction, the episode repository, what
verifies the stored ledger, and the `Exchange` that is made of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import secrets
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar

from heretix.core.canonical import (
    canonical_json,
    decode,
    decode_json,
    digest,
    encode,
    encode_json,
    sha256_hex,
)
from heretix.core.errors import RecordError, RefusedError, UsageError
from heretix.economy import ledger
from heretix.economy.audit import FORMAT
from heretix.economy.episode import challenges, moves, state
from heretix.economy.episode.settlement import (
    PAYMENTS_AT_ONCE,
    Flow,
    Result,
    require_terms,
    score_steps,
    summarize_accounts,
    transfer_rate,
)
from heretix.economy.episode.state import ENDED, Denial, Denied, Episode, Fate, Moved, State
from heretix.economy.exploration import Grant, failure_rate, min_stake, sum_remaining
from heretix.economy.heads import Head, compare_head, sign_head
from heretix.economy.market import Line, Market, MarketResult, Position, Side, quote
from heretix.economy.sentences import refuse_move, sentence
from heretix.store import economy as queries
from heretix.store.schema import COMMON, ROOT, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection, RowMapping

    from heretix.core.clock import Clock
    from heretix.economy.episode.challenges import BroughtEvidence
    from heretix.economy.episode.settlement import Measurement, Outcome
    from heretix.economy.episode.state import Challenge, Direction, Dispute, Ground, Rule, Terms
    from heretix.economy.market import Quote
    from heretix.store import Store

STARTING_PURSE: Final = 1_000_000
"""Grant that a person starts with: 10,000.00 in play money."""
HOUSE_PURSE: Final = 1_000_000_000
"""Money of the house to seed markets with, and of the fund to pay rewards from."""
UNDRAWN: Final = "0" * 64
"""Placeholder for the commitment until a draft draws the secret."""
HEAD_EVERY: Final = 1_000
"""Events between two round places, at which heads are published besides the newest."""
HEADS: Final = 10
"""Heads that are published at a time, and proofs that an exported episode holds."""
LISTED: Final = 200
"""Entries of a long list that a page shows; records and the ledger have all of them."""
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
class TypicalRate:
    """Rate at which the latest episodes that a side won settled: the lower median, in parts per
    million, and of how many."""

    rate_ppm: int
    episodes: int


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
class Pool:
    """One side of a market: the stakes on it that count."""

    side: Side
    stakes: int
    bets: int
    """But for the house's."""
    house: int
    """Stake of the house, of all that are on the side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSum:
    """Sum of what an account put into an episode, and of what it got back."""

    account: str
    paid: int = 0
    got: int = 0

    @property
    def net(self) -> int:
        return self.got - self.paid


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Sums over the transfers of an episode. People are first, at most `LISTED` of them."""

    sums: tuple[AccountSum, ...]
    came: tuple[ledger.Reason, ...]
    """The sums of each account by what they came from; the largest gain is first."""
    people: int
    net: int
    """Sum over all accounts but the episode's pots."""
    unbalanced: int
    """Sum over all accounts; anything but 0 is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over an episode's bets that count, however many there are."""

    pools: tuple[Pool, ...]
    course: tuple[tuple[int, Market], ...]
    """The market after the seed, and then after so many bets each: at most about `LISTED`."""
    market: MarketResult | None
    accounting: Accounting | None
    """Of an episode that has ended, like the market's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSnapshot:
    """All of an episode that a page shows, as of one moment. Of long lists a part: `LISTED`."""

    episode: Episode
    opened_ms: int | None
    latest: list[Position]
    """The last bets."""
    outsiders: list[Position]
    """A bet of each side that isn't the house's, if there is one."""
    own: list[Position]
    """The last bets of whoever looks."""
    own_sum: AccountSum | None
    """Sum of what came of it all, once it has ended."""
    tally: Tally
    statements: list[StoredStatement]
    """But for those of bets and commitments, of which there is one each."""
    measurements: list[StoredMeasurement]
    settlement: Result | None
    """Outcome and sums; None before it has ended."""
    lines: tuple[Line, ...]
    """The payments of the first bets, as they were written beside the payments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimStanding:
    """Episodes of one folded claim: the one that is open, and what the settled ones paid for."""

    open_episode: str | None
    paid: tuple[str, ...]
    """Bundles of accepted evidence, the oldest first."""


_Rows = defaultdict[str, list[dict[str, Any]]]
"""Rows that were written, by table."""


class LedgerTransaction:
    """One writer's turn. Whoever has it is alone, so what it reads stays true until it ends."""

    def __init__(self, connection: Connection, clock: Clock, *, chain: str = COMMON) -> None:
        # First of all: a second writer waits here, and sees everything that this one did.
        self.connection = connection
        self._ends = queries.lock_chains(connection, chain)
        self._last_seq, self._last_hash = self._ends[TRANSFERS]
        self._written: defaultdict[str, _Rows] = defaultdict(lambda: defaultdict(list))
        self.move = "accounts"
        """Name of the event that is written next."""
        self._new: set[str] = set()
        # Read after the wait, so that times follow each other as the transfers do.
        self.at_ms = clock.now_ms()

    def add_accounts(
        self, accounts: Iterable[ledger.Account], *, person: str | None = None
    ) -> None:
        """Make accounts known; those that are stay as they are."""
        own = {"person": person, "balance": 0, "created_ms": self.at_ms}
        rows = {account.id: encode(account) | own for account in accounts}
        known = queries.select_accounts_by_id(self.connection, rows)
        new = [row for name, row in rows.items() if name not in known]
        queries.add_accounts(self.connection, new)
        # Balances follow from the transfers.
        self.record("accounts", [{k: v for k, v in row.items() if k != "balance"} for row in new])

    def record(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put rows that are written to a table into the event of this move: each into the chain of
        its episode, or into that of what belongs to none."""
        for row in rows:
            chain = ledger.episode_of(row) or COMMON
            if chain not in self._ends:
                self._ends[chain] = queries.begin_chain(self.connection, chain)
            self._written[chain][table].append(dict(row))

    @property
    def event_seq(self) -> int:
        """Place of the event that is written next."""
        return self._ends[ROOT][0] + 1

    def seal(self) -> None:
        """Write the event of what was recorded since the last one, if there is anything."""
        if not self._written:
            return
        # An episode's comes first: its rows may name the place of the next event.
        for chain in sorted(self._written, key=COMMON.__eq__):
            number, prev_hash = self._ends[chain]
            event = ledger.Event(
                chain=chain,
                number=number + 1,
                move=self.move,
                rows_json=canonical_json(self._written[chain]),
                at_ms=self.at_ms,
                prev_hash=prev_hash,
            )
            hash_, seq = event.hash(), self.event_seq
            root = ledger.root_hash(seq=seq, event=hash_, prev_root=self._ends[ROOT][1])
            own = {"seq": seq, "hash": hash_, "root": root}
            queries.append_event(self.connection, encode(event) | own)
            self._ends |= {chain: (event.number, hash_), ROOT: (seq, root)}
        self._ends[TRANSFERS] = (self._last_seq, self._last_hash)
        changed = (ROOT, TRANSFERS, *self._written)
        queries.set_chains(self.connection, {name: self._ends[name] for name in changed})
        self._written.clear()

    def find_earlier(self, group: str, request: Mapping[str, Any]) -> RowMapping | None:
        """The statement of a move that was made under this id before; None if it is new.

        The same id for another request is refused.
        """
        row = queries.select_statement(self.connection, group)
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
        rows = queries.select_accounts_by_id(self.connection, named)
        if group.closes is not None:
            rows |= queries.select_episode_accounts(self.connection, group.closes)
        same: list[ledger.Transfer] = []
        # Every group has a statement, and ids begin with their group's: no statement, no transfer.
        if (
            group.id not in self._new
            and queries.select_statement(self.connection, group.id) is not None
        ):
            ids = [draft.id for draft in group.drafts]
            found = queries.select_same_id_or_group(self.connection, group.id, ids)
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
        self.move = move
        self.record("transfers", rows)
        self._last_seq = result.transfers[-1].seq
        self._last_hash = result.transfers[-1].hash
        named = {draft.episode for draft in group.drafts}
        statement = {
            "group_id": group.id,
            "episode_id": named.pop() if len(named) == 1 else None,
            "move": move,
            "request_hash": digest(request),
            "subject": subject,
            "lines_json": encode_json(group.lines),
            "first_seq": result.transfers[0].seq,
            "at_ms": self.at_ms,
        }
        queries.insert_statement(self.connection, statement)
        self.record("statements", [statement])


# Rows as records, and back.


@cache
def _fields(kind: Any, *but: str) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in but)


def _read(to: Callable[..., _T], row: RowMapping | Mapping[str, Any], **given: Any) -> _T:
    """Read a record from the columns that go by its fields' names, but for what is given."""
    for name in _fields(to, *given):
        given[name] = row[name]
    return to(**given)


def read_account(row: RowMapping) -> ledger.Account:
    """Read an account from its row."""
    return _read(ledger.Account, row, kind=_read_word(ledger.AccountKind, row["kind"], row["id"]))


def read_transfer(row: RowMapping | Mapping[str, Any]) -> ledger.Transfer:
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
    return [read_position(row) for row in queries.select_positions(connection, episode_id)]


def _read_bets(rows: Iterable[RowMapping]) -> list[Position]:
    return [read_position(row) for row in rows]


def read_outsiders(connection: Connection, episode: Episode) -> list[Position]:
    """Read a bet of each side that counts and isn't the house's, if there is one."""
    return _read_bets(queries.select_outside_positions(connection, episode.id, episode.close_ms))


def find_outcome(episode: Episode, outsiders: Sequence[Position]) -> Outcome | None:
    """Work out how an episode ended; None before it has."""
    if episode.state not in ENDED:
        return None
    require_terms(episode)
    return episode.decide(outsiders)


def tally_bets(
    connection: Connection,
    episode: Episode,
    outcome: Outcome | None,
    *,
    coming: Iterable[ledger.Draft] = (),
) -> Tally:
    """Sum up an episode's bets that count, and once it has ended what they were paid.

    `coming` are payments that are about to be made.
    """
    step = max(1, ledger.ceil_div(episode.position_count, LISTED))
    until_ms = episode.close_ms
    parts = queries.sum_positions(connection, episode.id, step=step, until_ms=until_ms)
    names = ("bets", "stakes", "shares", "h_bets", "h_stakes", "h_shares")
    held, course = dict.fromkeys(names, 0), []
    for part in parts:
        held = {name: held[name] + int(part[name]) for name in names}
        if held["shares"] > held["h_shares"] > 0:
            orthodox = held["shares"] - held["h_shares"]
            market = Market(money=held["stakes"], heretic=held["h_shares"], orthodox=orthodox)
            course.append((part["at_ms"], market))
    seed = _read_bets(queries.select_positions_from(connection, episode.id, 0, limit=2))
    of_side = {
        Side.HERETIC: (held["h_bets"], held["h_stakes"]),
        Side.ORTHODOX: (held["bets"] - held["h_bets"], held["stakes"] - held["h_stakes"]),
    }
    pools = []
    for side, (bets, stakes) in of_side.items():
        own = [position.stake for position in seed if position.house and position.side is side]
        pools.append(Pool(side=side, stakes=stakes, bets=bets - len(own), house=sum(own)))
    market_result = accounting = None
    if outcome is not None:
        flows = _sum_flows(queries.sum_flows_of_episode(connection, episode.id), coming)
        market_result = _sum_market(connection, episode, outcome, of_side, flows)
        accounting = _sum_accounts(flows)
    return Tally(
        pools=tuple(pools), course=tuple(course), market=market_result, accounting=accounting
    )


def _sum_flows(rows: Iterable[RowMapping], coming: Iterable[ledger.Draft]) -> list[Flow]:
    """Add payments that are about to be made to the sums of those that were."""
    sums = Counter[tuple[str, str, ledger.Code]]()
    for row in rows:
        sums[row["debit"], row["credit"], ledger.Code(row["code"])] += int(row["amount"])
    for draft in coming:
        sums[draft.debit, draft.credit, draft.code] += draft.amount
    return [
        Flow(debit=debit, credit=credit, code=code, amount=amount)
        for (debit, credit, code), amount in sorted(sums.items())
    ]


def _sum_market(
    connection: Connection,
    episode: Episode,
    outcome: Outcome,
    of_side: Mapping[Side, tuple[int, int]],
    flows: Sequence[Flow],
) -> MarketResult:
    """Sum what a market was settled by: fees and dust as they were paid."""
    by_code = Counter[ledger.Code]()
    for flow in flows:
        by_code[flow.code] += flow.amount
    winner, tau_ppm, transfer, given = outcome.winner, outcome.tau_ppm, 0, 0
    if winner is not None:
        loser, until_ms = winner.other, episode.close_ms
        assert until_ms is not None, "it was frozen"
        transfer = ledger.ceil_part(of_side[loser][1], tau_ppm)
        given = queries.sum_given_up(connection, episode.id, loser.value, tau_ppm, until_ms)
    return MarketResult(
        winner=winner,
        tau_ppm=tau_ppm,
        transfer=transfer,
        given_up=given,
        fees=by_code[ledger.Code.FEE],
        dust=by_code[ledger.Code.DUST],
    )


def _sum_accounts(flows: Sequence[Flow]) -> Accounting:
    paid, got = Counter[str](), Counter[str]()
    for flow in flows:
        paid[flow.debit] += flow.amount
        got[flow.credit] += flow.amount
    sums = [
        AccountSum(account=one, paid=paid[one], got=got[one]) for one in paid.keys() | got.keys()
    ]
    outside = sorted(
        (one for one in sums if not one.account.startswith("escrow:")), key=lambda one: one.account
    )
    people = [one for one in outside if one.account.startswith("user:")]
    others = [one for one in outside if not one.account.startswith("user:")]
    came = summarize_accounts(flows)
    return Accounting(
        sums=(*people[:LISTED], *others),
        came=(*came[: len(people)][:LISTED], *came[len(people) :]),
        people=len(people),
        net=sum(one.net for one in outside),
        unbalanced=sum(one.net for one in sums),
    )


def _sum_account(connection: Connection, episode: Episode, account: str) -> AccountSum | None:
    """Sum what an account put into an episode's pots, and what it got back; None if nothing."""
    currency = episode.terms.currency
    pots = [ledger.escrow_account(episode.id, kind, currency).id for kind in ledger.Escrow]
    rows = queries.sum_flows_between(connection, account, pots)
    if not rows:
        return None
    paid = sum(int(row["amount"]) for row in rows if row["debit"] == account)
    got = sum(int(row["amount"]) for row in rows if row["credit"] == account)
    return AccountSum(account=account, paid=paid, got=got)


def recall_lines(
    episode: Episode,
    outcome: Outcome,
    positions: Sequence[Position],
    statements: Sequence[StoredStatement],
) -> tuple[Line, ...]:
    """Recall what an episode's first bets came to, from what was written beside the payments."""
    settled = next((told.lines for told in statements if told.move == "settle"), ())
    reasons = [line.reason for line in settled if line.reason.code in {"bet_won", "bet_lost"}]
    told = {reason.parameters["number"]: reason.parameters for reason in reasons}
    lines = []
    for position in episode.select_positions(positions):
        won = position.side is outcome.winner if outcome.winner else None
        # Nothing is written where nothing was paid: a loser who was left nothing gave up all.
        said = told.get(position.number, {"paid": position.stake if won is False else 0})
        paid, gain, fee = (int(said.get(name, 0)) for name in ("paid", "gain", "fee"))
        lines.append(Line(position=position, won=won, paid=paid, gain=gain, fee=fee))
    return tuple(lines)


def read_holding(row: RowMapping) -> Holding:
    """Read an account and its balance from a row."""
    return _read(Holding, row, account=read_account(row))


def read_statement(row: RowMapping, *, limit: int | None = None) -> StoredStatement:
    """Read what explains a group from its row, or the first lines of it."""
    lines, group = json.loads(row["lines_json"])[:limit], row["group_id"]
    return _read(
        StoredStatement, row, group=group, lines=decode(tuple[ledger.Explained, ...], lines, group)
    )


def read_statements(connection: Connection, episode_id: str) -> list[StoredStatement]:
    """Read what explains an episode's groups, in the order of the moves."""
    return [read_statement(row) for row in queries.select_statements(connection, episode_id)]


def read_measurements(connection: Connection, episode_id: str) -> list[StoredMeasurement]:
    """Read what an episode was told, by stage."""
    found = []
    for row in queries.select_measurements(connection, episode_id):
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


# What a bet changes stands in columns, and challenges are rows; the rest is one record that neither
# a bet nor a commitment reads or writes.
_BLANK: Final[Mapping[str, Any]] = {
    "market": None,
    "position_count": 0,
    "clock_ms": 0,
    "challenges": [],
}
_IN_RECORD: Final = tuple(name for name in _fields(Episode) if name not in _BLANK)
_KEPT: Final = 256
"""Decoded records to remember."""


class EpisodeRepository:
    """Read and write episodes, on whatever connection is given."""

    def __init__(self) -> None:
        # By the hash of the record, so what is remembered can't be out of date.
        self._decoded: dict[str, Episode] = {}
        # By episode, with the event that changed one last.
        self._challenges: dict[str, tuple[int, tuple[Challenge, ...]]] = {}

    def insert(self, transaction: LedgerTransaction, episode: Episode, *, secret: bytes) -> None:
        """Write down a new episode, with the seed that nobody is shown before the freeze."""
        # Clocks can be held anywhere, and yet the newest episode is the one written last.
        newest, at_ms = queries.select_newest_ms(transaction.connection), transaction.at_ms
        row = {
            "episode_id": episode.id,
            "claim": episode.terms.claim,
            "claim_id": claim_id_of(episode.terms.claim),
            "currency": episode.terms.currency,
            "created_ms": at_ms if newest is None else max(at_ms, newest + 1),
            "updated_ms": at_ms,
            "challenges_seq": 0,
            "tally_json": None,
            **_columns(episode),
            **_record(episode),
        }
        queries.insert_episode(transaction.connection, row | {"secret": secret.hex()})
        # The terms commit to the seed; an event that held it would show it too early.
        transaction.record("episodes", [row])

    def load(self, connection: Connection, episode_id: str) -> Episode:
        """Load an episode as it stands; one that doesn't exist is refused."""
        row = _require_known(connection, episode_id)
        episode = self._decoded.get(row["record_sha256"])
        if episode is None:
            text = queries.select_record_json(connection, episode_id)
            if sha256_hex(text.encode()) != row["record_sha256"]:
                raise RecordError(
                    f"`{episode_id}` must have the record that was written last, and doesn't: it "
                    "was changed from outside; restore a copy of the store"
                )
            episode = decode(Episode, {**json.loads(text), **_BLANK}, f"episode {episode_id}")
            if len(self._decoded) >= _KEPT:
                self._decoded.clear()
            self._decoded[row["record_sha256"]] = episode
        return replace(
            episode,
            market=read_market(row),
            position_count=row["position_count"],
            clock_ms=row["clock_ms"],
            challenges=self._load_challenges(connection, row),
        )

    def _load_challenges(self, connection: Connection, row: RowMapping) -> tuple[Challenge, ...]:
        """Load an episode's challenges: of those that are remembered, what changed since."""
        name, last = row["episode_id"], row["challenges_seq"]
        seq, found = self._challenges.get(name, (0, ()))
        if seq > last:
            # Another has read later changes than this reader sees.
            seq, found = 0, ()
        if seq < last:
            rows = queries.select_challenges_after(connection, name, seq)
            numbered = {c.number: c for c in (*found, *_read_challenges(name, rows))}
            whole = all(number in numbered for number in range(len(numbered)))
            if not whole or max((row["event_seq"] for row in rows), default=0) != last:
                raise _make_changed_error(name)
            found = tuple(numbered[number] for number in range(len(numbered)))
            if len(self._challenges) >= _KEPT:
                self._challenges.clear()
            self._challenges[name] = (last, found)
        return found

    def update(self, transaction: LedgerTransaction, before: Episode, after: Episode) -> None:
        """Write down what a move made of an episode."""
        values = _columns(after) | {"updated_ms": transaction.at_ms}
        # A rule copies what it doesn't change, so the very same objects mean the same record.
        if any(getattr(before, name) is not getattr(after, name) for name in _IN_RECORD):
            values |= _record(after)
        known, rows = len(before.challenges), []
        for number, challenge in enumerate(after.challenges):
            if number >= known or challenge is not before.challenges[number]:
                rows.append(_challenge_row(after.id, challenge, event_seq=transaction.event_seq))
        if rows:
            values["challenges_seq"] = transaction.event_seq
            connection = transaction.connection
            queries.insert_challenges(connection, [it for it in rows if it["number"] >= known])
            queries.update_challenges(connection, [it for it in rows if it["number"] < known])
            transaction.record("challenges", rows)
        queries.update_episode(transaction.connection, after.id, values)
        transaction.record("episodes", [{"episode_id": after.id} | values])


def _require_known(connection: Connection, episode_id: str) -> RowMapping:
    row = queries.select_episode(connection, episode_id)
    if row is None:
        raise RefusedError(
            f"`{episode_id}` must be the id of an episode, and there is none of that id; "
            "`heretix episode list` shows them",
            status=ledger.Status.UNKNOWN_EPISODE.value,
        )
    return row


def _challenge_row(episode_id: str, challenge: Challenge, *, event_seq: int) -> dict[str, Any]:
    row = {"episode_id": episode_id, **encode(challenge), "event_seq": event_seq}
    return row | {"sha256": digest(row)}


def _read_challenges(episode_id: str, rows: Sequence[RowMapping]) -> tuple[Challenge, ...]:
    """Read challenges from their rows; one that isn't as it was written is refused."""
    for row in rows:
        written = dict(row)
        if written.pop("sha256") != digest(written):
            raise _make_changed_error(episode_id)
    told = [{name: row[name] for name in _fields(state.Challenge)} for row in rows]
    return decode(tuple[state.Challenge, ...], told, f"challenges of {episode_id}")


def _make_changed_error(episode_id: str) -> RecordError:
    return RecordError(
        f"`{episode_id}` must have the challenges that were written last, and doesn't: they were "
        "changed from outside; restore a copy of the store"
    )


def _columns(episode: Episode) -> dict[str, Any]:
    names = ("terms_hash", "position_count", "clock_ms", "close_ms")
    market = {f"market_{name}": getattr(episode.market, name, None) for name in _fields(Market)}
    stands = {"state": episode.state.value, "is_open": episode.state not in ENDED}
    return {name: getattr(episode, name) for name in names} | market | stands


def _record(episode: Episode) -> dict[str, Any]:
    text = encode_json({name: getattr(episode, name) for name in _IN_RECORD})
    return {"record_json": text, "record_sha256": sha256_hex(text.encode())}


def claim_id_of(claim: str) -> str:
    """Key that a claim goes by: its words, whatever case, spacing or last dot."""
    from heretix.evidence.text.fold import fold  # Bets never need it.

    return sha256_hex(fold(claim).casefold().strip(" .!?").encode())


def _claim_standing(connection: Connection, claim: str) -> ClaimStanding:
    live = ENDED | {State.DRAFT}
    taken, paid = None, dict[str, None]()
    for row in queries.select_episodes_of_claim(connection, claim_id_of(claim)):
        if State(row["state"]) not in live:
            taken = row["episode_id"]
        elif row["state"] == State.SETTLED:
            steps = json.loads(row["record_json"])["steps"]
            paid |= dict.fromkeys(step["evidence"] for step in steps)
    return ClaimStanding(open_episode=taken, paid=tuple(paid))


def verify_ledger(connection: Connection) -> ledger.LedgerReport:
    """Read all chains from their beginning, and hold everything that is kept against them."""
    breaches: list[ledger.Breach] = []
    holdings = list(_read_sound(read_holding, queries.select_accounts(connection), breaches))
    accounts = {holding.account.id: holding.account for holding in holdings}
    balances = {holding.account.id: holding.balance for holding in holdings}
    breaches.extend(ledger.find_misnamed_accounts((h.account, h.person) for h in holdings))
    replayed: defaultdict[str, int] = defaultdict(int)
    first_seqs: dict[str, int] = {}

    replay = _EventReplay(breaches)
    rows = replay.compare_transfers(
        queries.stream_events(connection), queries.stream_table(connection, "transfers")
    )

    def pass_on() -> Iterator[ledger.Transfer]:
        # One pass, whatever the length: replayed and checked on the way to being verified.
        for transfer in _read_sound(read_transfer, rows, breaches):
            replayed[transfer.debit] -= transfer.amount
            replayed[transfer.credit] += transfer.amount
            first_seqs.setdefault(transfer.group, transfer.seq)
            breaches.extend(ledger.check_parties(accounts, transfer))
            yield transfer

    chain = ledger.verify(pass_on())
    breaches.extend(chain.breaches)
    ends = {COMMON: (0, ledger.GENESIS), **replay.ends}
    ends[ROOT] = replay.end
    ends[TRANSFERS] = (chain.count, chain.last_hash)
    breaches.extend(_compare_ends(ends, queries.select_chain(connection)))
    replay.compare_tables(connection)
    breaches.extend(_compare_balances(replayed, balances))
    # Every group has the statement that keeps its key from being used again, and no other has.
    told = queries.select_statement_seqs(connection)
    for group in sorted(told.keys() | first_seqs.keys()):
        if told.get(group) != first_seqs.get(group):
            detail = f"begins at {first_seqs.get(group)}, its statement says {told.get(group)}"
            breaches.append(ledger.Breach("statements", group, detail))
    breaches.extend(
        ledger.check_balances(accounts, balances, queries.select_episodes_open(connection))
    )
    breaches.extend(_stake_breaches(connection, balances))
    if not breaches:  # of rows that aren't what was written, sums prove nothing
        breaches.extend(_tally_breaches(connection))
    return replace(chain, breaches=tuple(breaches))


def verify_chain(connection: Connection, episode_id: str) -> ledger.LedgerReport:
    """Read one episode's chain of events, and hold all that is kept of it against that: its rows in
    every table, its pots, and its place among the events of others, which aren't read."""
    breaches: list[ledger.Breach] = []
    holdings = queries.select_accounts(connection, episode=episode_id)
    replayed = dict.fromkeys((row["id"] for row in holdings), 0)
    replay, count = _EventReplay(breaches, episode_id), 0
    for transfer in replay.compare_transfers(
        queries.stream_events(connection, chain=episode_id),
        queries.stream_table(connection, "transfers", episode=episode_id),
    ):
        count += 1
        for name, change in ((transfer["debit"], -1), (transfer["credit"], 1)):
            if name in replayed:
                replayed[name] += change * transfer["amount"]
    ends = {episode_id: replay.ends.get(episode_id, (0, ledger.GENESIS))}
    breaches.extend(_compare_ends(ends, queries.select_chain(connection, name=episode_id)))
    replay.compare_tables(connection)
    balances = {row["id"]: row["balance"] for row in holdings}
    breaches.extend(_compare_balances(replayed, balances))
    breaches.extend(_stake_breaches(connection, balances, episode=episode_id))
    last_hash = ends[episode_id][1]
    return ledger.LedgerReport(count=count, last_hash=last_hash, breaches=tuple(breaches))


def _compare_ends(
    ends: Mapping[str, tuple[int, str]], rows: Sequence[Mapping[str, Any]]
) -> Iterator[ledger.Breach]:
    kept = {row["name"]: (row["number"], row["hash"]) for row in rows}
    for name in sorted(ends.keys() | kept.keys()):
        if ends.get(name) != kept.get(name):
            detail = f"the chain ends in {ends.get(name)}, {kept.get(name)} is kept"
            yield ledger.Breach("chain_end", name, detail)


def _compare_balances(
    replayed: Mapping[str, int], balances: Mapping[str, int]
) -> Iterator[ledger.Breach]:
    for name in sorted(replayed.keys() | balances.keys()):
        expected, kept = replayed.get(name, 0), balances.get(name, 0)
        if expected != kept:
            detail = f"the chain gives {expected}, the balance is {kept}"
            yield ledger.Breach("replay", name, detail)


class _EventReplay:
    """Tables as the events give them, all or those of an episode, held against what is stored."""

    def __init__(self, breaches: list[ledger.Breach], episode: str | None = None) -> None:
        self.end = (0, ledger.GENESIS)
        """Place of the last event, and the root as of it."""
        self.ends: dict[str, tuple[int, str]] = {}
        self._breaches, self._episode = breaches, episode
        self._broken = False
        """Set at a broken link: what follows it proves nothing, so nothing is held against it."""
        self._views: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {
            name: {} for name in queries.CHAINED if name != "transfers"
        }

    def compare_transfers(
        self, events: Iterable[RowMapping], stored: Iterable[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Pass stored transfers on; name the first that isn't what the events tell in its place."""
        told, differs = self._replay(events), False
        for row in stored:
            expected = next(told, None)
            if not differs and not self._broken and row != expected:
                self._breach("transfers", row["id"], expected, row)
                differs = True
            yield row
        for left in told:
            if not differs and not self._broken:
                self._breach("transfers", left["id"], left, None)
                differs = True

    def _replay(self, events: Iterable[RowMapping]) -> Iterator[dict[str, Any]]:
        """Follow the chains: transfers are passed on, other rows are kept by their key."""
        for row in events:
            event = _read(ledger.Event, row)
            self._follow(event, row)
            if self._broken:
                continue
            chain = event.chain
            for name, rows in json.loads(event.rows_json).items():
                for written in rows:
                    if (ledger.episode_of(written) or COMMON) != chain:
                        detail = f"a row of {name} stands in another's chain, {chain}"
                        self._breaches.append(ledger.Breach("events", str(row["seq"]), detail))
                if name == "transfers":
                    yield from rows
                    continue
                view, place_of = self._views[name], _key(name)
                for written in rows:
                    place = place_of(written)
                    view[place] = view[place] | written if place in view else written

    def _follow(self, event: ledger.Event, row: RowMapping) -> None:
        """Check an event's link to the one before it in its chain, and to the root before it."""
        number, last_hash = self.ends.get(event.chain, (0, ledger.GENESIS))
        before, prev_root = self.end
        if self._episode is not None:
            # Others' events lie between one episode's: the root before it is what is kept of it.
            before, prev_root = row["seq"] - 1, row["prev_root"] or ledger.GENESIS
        linked = (event.number, event.prev_hash, row["hash"]) == (
            *(number + 1, last_hash, event.hash()),
        )
        root = ledger.root_hash(seq=before + 1, event=row["hash"], prev_root=prev_root)
        placed = (row["seq"], row["root"]) == (before + 1, root)
        for holds, last in ((linked, "in its chain"), (placed, "of all")):
            if not holds:
                detail = f"the {event.move} isn't what was linked to the event before it {last}"
                self._breaches.append(ledger.Breach("events", str(row["seq"]), detail))
                self._broken = True
        self.ends[event.chain] = (event.number, row["hash"])
        self.end = (row["seq"], row["root"])

    def compare_tables(self, connection: Connection) -> None:
        """Name rows that were changed, added or dropped since the events were written."""
        if self._broken:
            return
        for name, view in self._views.items():
            # Transfers give balances, and a seed is what the terms commit to.
            aside = {"accounts": "balance", "episodes": "secret"}.get(name)
            place_of = _key(name)
            for stored in queries.stream_table(connection, name, episode=self._episode):
                place = place_of(stored)
                expected = view.pop(place, None)
                secret = stored.pop(aside) if aside else None
                if stored != expected:
                    self._breach(name, "/".join(map(str, place)), expected, stored)
                elif name == "episodes" and not _is_committed(secret, stored["record_json"]):
                    detail = "the seed isn't the one that the terms commit to"
                    self._breaches.append(ledger.Breach("events", f"episodes {place[0]}", detail))
            for place, expected in view.items():
                self._breach(name, "/".join(map(str, place)), expected, None)

    def _breach(
        self,
        table: str,
        subject: str,
        expected: Mapping[str, Any] | None,
        stored: Mapping[str, Any] | None,
    ) -> None:
        if expected is None or stored is None:
            detail = "no event wrote it" if expected is None else "is missing"
        else:
            names = [name for name in stored if stored[name] != expected.get(name)]
            detail = f"{', '.join(names)} isn't what the events tell"
        self._breaches.append(ledger.Breach("events", f"{table} {subject}", detail))


def _head_places(last: int) -> list[int]:
    """List the places at which heads are published: the last event, and the last round ones."""
    rounds = range(last - last % HEAD_EVERY, 0, -HEAD_EVERY)[:HEADS]
    return list(dict.fromkeys(place for place in (last, *rounds) if place))[:HEADS]


@cache
def _key(table: str) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return what reads the key of a table's row from it."""
    names = queries.CHAINED[table].primary_key.columns.keys()
    if len(names) > 1:
        return itemgetter(*names)
    (name,) = names
    return lambda row: (row[name],)


def _is_committed(secret: Any, record_json: str) -> bool:
    """Tell whether a stored seed is the one that an episode's terms commit to."""
    try:
        seed = bytes.fromhex(secret)
        found = challenges.seed_commitment(seed)
    except (UsageError, ValueError):
        return False
    # Spaces and capitals would read as the same seed.
    return seed.hex() == secret and bool(
        json.loads(record_json)["terms"]["seed_commitment"] == found
    )


def _read_sound(
    record_of: Callable[[Any], _T],
    rows: Iterable[RowMapping] | Iterable[Mapping[str, Any]],
    breaches: list[ledger.Breach],
) -> Iterator[_T]:
    """Read records from rows; name and leave out what no rule could have written."""
    for row in rows:
        try:
            yield record_of(row)
        except RecordError as exc:
            breaches.append(ledger.Breach("words", row["id"], str(exc)))


def _stake_breaches(
    connection: Connection, balances: Mapping[str, int], *, episode: str | None = None
) -> Iterator[ledger.Breach]:
    """The stake pot of each open episode holds its bets, less what a settlement that is under way
    has paid, and its market counts them."""
    for row in queries.select_open_stakes(connection, episode=episode):
        try:
            pot = ledger.escrow_account(row["episode_id"], ledger.Escrow.STAKE, row["currency"]).id
        except UsageError as exc:
            # An id that was emptied, say: it names no pot.
            yield ledger.Breach("stakes", row["episode_id"], str(exc))
            continue
        held = int(row["market_money_held"]) - int(row["paid"])
        yield from ledger.check_stakes(pot, balances.get(pot, 0), held)
        for name in ("market_money", "market_heretic", "market_orthodox"):
            held = int(row[f"{name}_held"])
            if (row[name] or 0) != held:
                detail = f"`{name}` counts {row[name]}, the open positions come to {held}"
                yield ledger.Breach("market", row["episode_id"], detail)


def _tally_breaches(connection: Connection) -> Iterator[ledger.Breach]:
    """Hold the sums that were written as episodes ended against bets and transfers."""
    repository = EpisodeRepository()
    for episode_id in queries.ended_episodes(connection):
        try:
            episode = repository.load(connection, episode_id)
            outcome = find_outcome(episode, read_outsiders(connection, episode))
            told = encode_json(tally_bets(connection, episode, outcome))
        except (RecordError, UsageError, ValueError) as exc:
            yield ledger.Breach("sums", episode_id, f"they can't be made: {exc}")
            continue
        if queries.tally_json(connection, episode_id) != told:
            yield ledger.Breach("sums", episode_id, "aren't those of its bets and transfers")


def read_grants(connection: Connection, person: str) -> list[Grant]:
    """Read what a person was credited with, oldest first."""
    rows = queries.select_grants(connection, person=person)
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
        self._tallies: dict[str, Tally] = {}
        self._trees: dict[int, ledger.ChainTree] = {}

    @contextlib.contextmanager
    def transaction(self, chain: str = COMMON) -> Iterator[LedgerTransaction]:
        """Take the one writer's turn, to extend an episode's chain or that of all else."""
        with self.store.writing() as connection:
            transaction = LedgerTransaction(connection, self.clock, chain=chain)
            yield transaction
            with queries.pipeline(connection):
                transaction.seal()

    # Accounts and the ledger.

    def ensure_house(self, currency: str = "PLAY", *, purse: int = HOUSE_PURSE) -> None:
        """Make the operator's accounts; the house and the fund are given a purse each, once."""
        ledger.require_whole("purse", purse)
        wanted = ledger.require_currency(currency)
        group = f"found:{currency}"
        # Whoever only looks mustn't have to wait for a writer, nor be one.
        with self.store.reading() as connection:
            if queries.select_statement(connection, group) is not None:
                return
        with self.transaction() as transaction:
            transaction.add_accounts(ledger.house_accounts(currency))
            known = queries.select_statement(transaction.connection, group) is not None
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
            if account.id not in queries.select_accounts_by_id(
                transaction.connection, [account.id]
            ):
                transaction.add_accounts(ledger.house_accounts(currency))
                transaction.add_accounts([account], person=name)
                if start:
                    _issue(transaction, f"join:{account.id}", {account.id: start}, currency)
            row = queries.select_accounts_by_id(transaction.connection, [account.id])[account.id]
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
        row = self.store.read(queries.select_accounts_by_id, [wanted]).get(wanted)
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
            queries.select_accounts,
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
            queries.select_history,
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

    def verify(
        self, *, episode: str | None = None, against: Head | None = None
    ) -> ledger.LedgerReport:
        """Read the chains from their beginning, or one episode's, and hold everything that is kept
        against them; and the history up to a head that somebody kept against that."""
        with self.store.reading() as connection:
            if episode is None:
                report = verify_ledger(connection)
            else:
                if not queries.select_first_event(connection, episode):
                    _require_known(connection, episode)
                report = verify_chain(connection, episode)
            if against is None:
                return report
            # From what is stored now, and not from what is remembered.
            tree = ledger.ChainTree(against.seq, queries.chain_ends_at(connection, against.seq))
            root = queries.root_at(connection, against.seq)
        found = compare_head(against, root=root, chains=tree.top)
        return replace(report, breaches=(*report.breaches, *found))

    def sign_head(self, key_file: Path) -> Head:
        """Sign the root as of the last event, for others to keep."""
        found = self.heads(key_file, limit=1)
        if not found:
            raise UsageError("`ledger head` signs the last event, and there is none yet")
        return found[0]

    def heads(self, key_file: Path, *, limit: int = HEADS) -> list[Head]:
        """Sign the root as of the last event and of the last round places, the newest first.

        At round places the heads of any two people are of the same event, whenever they looked.
        """
        with self.store.reading() as connection:
            places = _head_places(queries.select_last_event(connection))[:limit]
            found = [
                (seq, str(queries.root_at(connection, seq)), self._tree(connection, seq).top)
                for seq in places
            ]
        now_ms = self.clock.now_ms()
        return [
            sign_head(seq=seq, root=root, chains=top, at_ms=now_ms, key_file=key_file)
            for seq, root, top in found
        ]

    def _tree(self, connection: Connection, seq: int) -> ledger.ChainTree:
        """Make the tree over all chains as of an event; those of round places are remembered."""
        if (tree := self._trees.get(seq)) is None:
            tree = ledger.ChainTree(seq, queries.chain_ends_at(connection, seq))
            if seq % HEAD_EVERY == 0:
                self._trees[seq] = tree
                for old in sorted(self._trees)[:-HEADS]:
                    del self._trees[old]
        return tree

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
        with self.transaction(episode_id) as transaction:
            connection = transaction.connection
            if key is not None and queries.select_episode(connection, episode_id) is not None:
                return episode_id
            transaction.move = "draft"
            self._episodes.insert(transaction, episode, secret=secret)
            if c0 is not None:
                _keep(transaction, episode_id, "c0", {"c0_ppm": terms.c0_ppm}, c0)
        return episode_id

    def open(self, episode_id: str) -> Episode:
        """Fix the terms; escrow the house's seed and the budget for rewards."""
        with self.move("open", episode_id) as move:
            if move.episode.state is State.DRAFT:
                terms, currency = move.episode.terms, move.episode.terms.currency
                standing = _claim_standing(move.connection, terms.claim)
                if standing.open_episode is not None:
                    other = {"episode": standing.open_episode}
                    raise move.refuse(state.deny(Denial.CLAIM_TAKEN, **other))
                if standing.paid != terms.paid:
                    raise move.refuse(state.deny(Denial.TERMS_STALE))
                pots = (ledger.escrow_account(episode_id, pot, currency) for pot in ledger.Escrow)
                move.transaction.add_accounts((*ledger.house_accounts(currency), *pots))
                move.make(moves.open_episode)
            return move.episode

    def claim_standing(self, claim: str) -> ClaimStanding:
        """Return what stands of a folded claim: its open episode, and evidence that was paid."""
        return self.store.read(_claim_standing, claim)

    def begin_challenge(self, episode_id: str) -> Episode:
        """Open an episode for commitments to evidence."""
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
                rows = queries.select_positions(move.connection, episode_id, number=number)
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
        commitment: str,
        amount: int,
        key: str,
        compute_cost: int = 0,
    ) -> Challenge:
        """Commit to evidence and its direction without showing either."""
        asked = {"commitment": commitment, "amount": amount}
        with self.move("commit", episode_id, person) as move:
            least = self._min_stake(move.connection, move.episode, person, compute_cost)
            number = move.find_earlier(key, asked, subject=len(move.episode.challenges))
            if number is None:
                move.make(
                    challenges.commit,
                    key=key,
                    account=move.account,
                    commitment=commitment,
                    amount=amount,
                    least=least,
                )
            return move.episode.challenges[-1 if number is None else number]

    def reveal(
        self,
        episode_id: str,
        number: int,
        person: str,
        *,
        nonce: bytes,
        bundle_sha256: str,
        direction: Direction,
    ) -> Challenge:
        """Show what a commitment hid."""
        with self.move("reveal", episode_id, person) as move:
            known = dict(enumerate(move.episode.challenges)).get(number)
            shown = (move.account, nonce, bundle_sha256, direction)
            if known is None or shown != (
                *(known.account, known.nonce, known.bundle_sha256, known.direction),
            ):
                move.make(
                    challenges.reveal,
                    number=number,
                    account=move.account,
                    nonce=nonce,
                    bundle_sha256=bundle_sha256,
                    direction=direction,
                )
            return move.episode.challenges[number]

    def freeze(self, episode_id: str) -> Episode:
        """Reveal the secret, draw the close and the judges, give late stakes back."""
        with self.move("freeze", episode_id) as move:
            if move.episode.frozen_ms is None:
                row = queries.select_episode(move.connection, episode_id)
                seed = b"" if row is None else bytes.fromhex(row["secret"])
                from_ms = move.episode.terms.close_from_ms
                move.make(moves.freeze, seed=seed, positions=move.positions(from_ms=from_ms))
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
                moved = move.make(challenges.judge_challenge, number=number, evidence=evidence)
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
            known = move.was_told(stage, told)
            if stage == "second" and not known and not move.episode.measurements:
                raise move.refuse(state.deny(Denial.OUT_OF_ORDER, "first_not_measured"))
            if not known:
                move.make(moves.measure, measurement=measurement)
                _keep(move.transaction, episode_id, stage, told, source)
            return move.episode

    def conclude_unmeasured(self, episode_id: str) -> Episode:
        """End the measuring where outside stakes on both sides are lacking: nobody needs it."""
        with self.move("conclude", episode_id) as move:
            if move.episode.measured_ms is None or move.episode.measurements:
                move.make(moves.conclude_unmeasured, positions=move.outsiders())
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
            # The ruling of a first round pays nobody yet, so no group of transfers tells of it.
            if not move.was_told(f"round:{round_}", encode(told)):
                move.make(
                    moves.rule_on_dispute,
                    ground_confirmed=ground_confirmed,
                    measurements=measurements,
                    positions=move.outsiders(),
                )
                _keep(move.transaction, episode_id, f"round:{round_}", told, source)
            return move.episode

    def close(self, episode_id: str) -> Episode:
        """Settle, or void: once, whoever asks and however often.

        What is paid is worked out before anybody waits for it, from bets that can't change any
        more. Many payments are made in parts, so that others have their turns in between; nobody
        can act on the episode meanwhile, and whoever asks next goes on where it was left.
        """
        while True:
            with self.store.reading() as connection:
                found = self._episodes.load(connection, episode_id)
                if found.state in ENDED:
                    return found
                positions = read_positions(connection, episode_id)
                paid = queries.select_groups(connection, episode_id, "settle")
            moved = moves.close_episode(found, self.clock.now_ms(), positions=positions)
            if isinstance(moved, Denied):
                raise refuse_move(found, moved)
            assert moved.group is not None, "the seed is always there to be given back"
            *parts, last = ledger.split_group(moved.group, PAYMENTS_AT_ONCE)
            if parts:
                # Or the garbage collector walks through all that was worked out during a turn.
                gc.collect()
            for part in (part for part in parts if part.id not in paid):
                if self._pay(found, moved, part) is None:
                    break
            else:
                # What is paid sums up to is worked out before anybody waits for it, too.
                tally_json = encode_json(self._sum_up(moved.episode, last))
                if (after := self._pay(found, moved, last, tally_json=tally_json)) is not None:
                    return after

    def _sum_up(self, ended: Episode, last: ledger.Group) -> Tally:
        """Sum up an episode that ends with the last part of its payments."""
        with self.store.reading() as connection:
            outcome = find_outcome(ended, read_outsiders(connection, ended))
            return tally_bets(connection, ended, outcome, coming=last.drafts)

    def _pay(
        self,
        found: Episode,
        moved: Moved,
        part: ledger.Group,
        *,
        tally_json: str | None = None,
    ) -> Episode | None:
        """Pay a part of a settlement, unless it is paid; None if the episode isn't as found."""
        with self.move("settle", found.id) as move:
            if replace(move.episode, clock_ms=found.clock_ms) != found:
                return None
            # From now on it is this late: no dispute can be raised by a clock that is behind.
            at_ms = max(move.episode.clock_ms, moved.episode.clock_ms)
            if part.closes is None:
                if queries.select_statement(move.connection, part.id) is None:
                    move.write(Moved(episode=replace(move.episode, clock_ms=at_ms), group=part))
                return move.episode
            values = {"tally_json": tally_json}
            queries.update_episode(move.connection, found.id, values)
            move.transaction.record("episodes", [{"episode_id": found.id} | values])
            move.write(Moved(episode=replace(moved.episode, clock_ms=at_ms), group=part))
            book = moved.settlement.rewards if moved.settlement else None
            earned = [
                (r.step.number, r.step.account, {"amount": r.credited, "scale": r.scale})
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

    def typical_rate(self, *, latest: int = 20) -> TypicalRate | None:
        """Return the rate that episodes typically settle at; None while no side has won one."""
        rates = []
        with self.store.reading() as connection:
            settled = State.SETTLED.value
            for row in queries.select_episode_summaries(
                connection, state=settled, limit=latest, offset=0
            ):
                episode = self._episodes.load(connection, row["episode_id"])
                # Who won is in the measurements; whether anybody was paid for it, in the transfers.
                outcome = episode.decide(())
                if outcome.nearest_ppm is None or not queries.was_won(connection, episode.id):
                    continue
                terms = episode.terms
                most = terms.parameters.tau_max_ppm
                rates.append(transfer_rate(outcome.nearest_ppm, terms.c0_ppm, most))
        if not rates:
            return None
        return TypicalRate(rate_ppm=sorted(rates)[(len(rates) - 1) // 2], episodes=len(rates))

    def episode(self, episode_id: str) -> Episode:
        """Return an episode as it stands."""
        return self.store.read(self._episodes.load, episode_id)

    def snapshot(self, episode_id: str, *, person: str | None = None) -> EpisodeSnapshot:
        """Read all of an episode that a page shows to a person, as of one moment."""
        with self.store.reading() as connection:
            episode = self._episodes.load(connection, episode_id)
            account = person and ledger.user_account(person, episode.terms.currency).id
            outsiders = read_outsiders(connection, episode)
            outcome = find_outcome(episode, outsiders)
            tally = self._tally(connection, episode, outcome)
            rows = queries.select_statements_but_bets(connection, episode_id)
            told = [read_statement(row, limit=LISTED) for row in rows]
            first = _read_bets(
                queries.select_positions_from(connection, episode_id, 0, limit=LISTED)
            )
            of, last = (connection, episode_id), queries.select_latest_positions
            settlement = None
            if outcome is not None and tally.market is not None:
                rewards = score_steps(episode, outcome)
                settlement = Result(outcome=outcome, market=tally.market, rewards=rewards)
            return EpisodeSnapshot(
                episode=episode,
                opened_ms=first[0].at_ms if first else None,
                latest=_read_bets(last(*of, limit=LISTED)),
                outsiders=outsiders,
                own=_read_bets(last(*of, account=account, limit=LISTED)) if account else [],
                own_sum=_sum_account(connection, episode, account) if outcome and account else None,
                tally=tally,
                statements=told,
                measurements=read_measurements(connection, episode_id),
                settlement=settlement,
                lines=recall_lines(episode, outcome, first, told) if outcome else (),
            )

    def outcome(self, episode_id: str) -> tuple[Episode, Outcome | None]:
        """Return an episode, and how it ended, if it has."""
        with self.store.reading() as connection:
            episode = self._episodes.load(connection, episode_id)
            return episode, find_outcome(episode, read_outsiders(connection, episode))

    def _tally(self, connection: Connection, episode: Episode, outcome: Outcome | None) -> Tally:
        """Sum up an episode's bets; of one that has ended, read what was written as it did."""
        if outcome is None:
            return tally_bets(connection, episode, None)
        if (known := self._tallies.get(episode.id)) is None:
            text = queries.tally_json(connection, episode.id)
            known = decode_json(Tally, text, f"sums of {episode.id}")
            if len(self._tallies) >= _KEPT:
                self._tallies.clear()
            self._tallies[episode.id] = known
        return known

    def knows(self, episode_id: str) -> bool:
        """Say whether there is an episode of this id."""
        return self.store.read(queries.select_episode, episode_id) is not None

    def episodes(
        self, *, state: State | None = None, limit: int = 20, offset: int = 0
    ) -> list[EpisodeSummary]:
        """List episodes, the newest first."""
        rows = self.store.read(
            queries.select_episode_summaries,
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

    def positions_from(self, episode_id: str, number: int, *, limit: int) -> list[Position]:
        """List some of an episode's bets in their order, from the one with a number on."""
        with self.store.reading() as connection:
            self._episodes.load(connection, episode_id)
            rows = queries.select_positions_from(connection, episode_id, number, limit=limit)
            return [read_position(row) for row in rows]

    def positions_of(self, person: str, *, currency: str = "PLAY") -> list[HeldPosition]:
        """List a person's bets, the newest first."""
        rows = self.store.read(queries.select_positions_by_account, _account_id(person, currency))
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

    def reasons(self, groups: Iterable[str]) -> dict[str, ledger.Reason]:
        """Read why the transfers of some groups were made, by transfer."""
        with self.store.reading() as connection:
            rows = [queries.select_statement(connection, group) for group in dict.fromkeys(groups)]
        return {
            line.transfer: line.reason
            for row in rows
            if row is not None
            for line in decode_json(
                tuple[ledger.Explained, ...], row["lines_json"], row["group_id"]
            )
        }

    def measurements(self, episode_id: str) -> list[StoredMeasurement]:
        """List what an episode was told, and the executions that it came from."""
        with self.store.reading() as connection:
            self._episodes.load(connection, episode_id)
            return read_measurements(connection, episode_id)

    def record(self, episode_id: str, *, against: int | None = None) -> dict[str, Any]:
        """Return everything that is needed to redo an episode elsewhere (`audit.verify_episode`).

        The seed is part of it once the freeze has revealed it, and not before. The record can be
        held against heads of the events at which they are published now, and `against` one more.
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
                "chain": encode(self._read_chain(connection, episode_id, against)),
            }

    def _read_chain(
        self, connection: Connection, episode_id: str, against: int | None
    ) -> ledger.EventChain:
        """Read an episode's chain of events, and prove where it ended as of each head."""
        first, last = (
            queries.select_first_event(connection, episode_id),
            queries.select_last_event(connection),
        )
        if against is not None and not first <= against <= last:
            raise UsageError(
                f"`against` must be a head of event {first}, with which the episode began, or of a "
                f"later one, to {last}, the last there is; got one of event {against}"
            )
        rows = queries.stream_events(connection, chain=episode_id)
        events = tuple(_read(ledger.Event, row) for row in rows)
        places = {*_head_places(last), against or last}
        proofs = (
            self._tree(connection, seq).prove(episode_id) for seq in sorted(places) if seq >= first
        )
        return ledger.EventChain(events=events, hash=events[-1].hash(), proofs=tuple(proofs))

    @contextlib.contextmanager
    def move(self, name: str, episode_id: str, person: str | None = None) -> Iterator[EpisodeMove]:
        """Begin a move of an episode, a person's own or the operator's, in one transaction."""
        with self.transaction(episode_id) as transaction:
            yield EpisodeMove(name, transaction, self._episodes, episode_id, person)

    def _min_stake(
        self, connection: Connection, episode: Episode, person: str, compute_cost: int
    ) -> int:
        parameters = episode.terms.parameters
        rules, account = parameters.stakes, ledger.user_account(person, episode.terms.currency).id
        attempts = queries.select_attempts(connection, account, limit=rules.recent_attempts)
        purse = ledger.user_account(person, ledger.XC.code).id
        held = queries.select_accounts_by_id(connection, [purse])
        # As they are worth now: nobody stakes less because decay wasn't posted.
        grants, half_life = read_grants(connection, person), parameters.credits.half_life_days
        today = day_of(grants, self.clock.now_ms())
        left = sum_remaining(grants, today=today, half_life_days=half_life)
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
        transaction.move = name
        self.transaction, self.connection = transaction, transaction.connection
        self.at_ms = transaction.at_ms
        self.episode = repository.load(self.connection, episode_id)
        currency = self.episode.terms.currency
        self.account = "" if person is None else ledger.user_account(person, currency).id
        self._name, self._repository = name, repository
        self._request: dict[str, Any] = {"move": name, "episode": episode_id}
        self._subject: int | None = None

    def positions(self, *, from_ms: int) -> list[Position]:
        """List the episode's bets from a moment on, in their order."""
        rows = queries.select_positions_since(self.connection, self.episode.id, from_ms)
        return [read_position(row) for row in rows]

    def outsiders(self) -> list[Position]:
        """List a bet of each side that counts and isn't the house's, if there is one: all that a
        rule has to know which asks whether a market is one-sided."""
        return read_outsiders(self.connection, self.episode)

    def refuse(self, denied: Denied) -> RefusedError:
        """Return the error that tells of a refused move."""
        return refuse_move(self.episode, denied)

    def find_earlier(self, key: str, asked: Mapping[str, Any], *, subject: int) -> int | None:
        """Find the number of what this move made before, under a person's key or its group's id.

        None if it is new: then `make` writes it down under that id, as being about `subject`.
        """
        self._request |= asked
        self._subject = subject
        group = ledger.client_group(self.account, key) if self.account else key
        earlier = self.transaction.find_earlier(group, self._request)
        return None if earlier is None else int(earlier["subject"])

    def was_told(self, stage: str, told: object) -> bool:
        """Tell whether the episode was told this of a stage before; another word is refused."""
        known = queries.select_measurements(self.connection, self.episode.id, stage=stage)
        if known and known[0]["measurement_json"] != encode_json(told):
            raise RefusedError(
                f"`{self.episode.id}` has its {stage} measurement, and this is another; "
                "what was measured stands, unless it is disputed",
                status=ledger.Status.ID_CONFLICT.value,
            )
        return bool(known)

    def make(self, rule: Rule[_P], *args: _P.args, **given: _P.kwargs) -> Moved:
        """Ask a rule, and write down everything that it returns, or raise its refusal."""
        result = rule(self.episode, self.at_ms, *args, **given)
        if isinstance(result, Denied):
            raise self.refuse(result)
        self.write(result)
        return result

    def write(self, result: Moved) -> None:
        """Write down everything that a rule returned."""
        before, transaction, group = self.episode, self.transaction, result.group
        if group is not None:
            applied = transaction.judge(group, episodes={before.id: before.state not in ENDED})
        with queries.pipeline(self.connection):
            if group is not None:
                name, request, subject = self._name, self._request, self._subject
                transaction.enter(group, applied, move=name, request=request, subject=subject)
            rows = [encode(added) | {"episode_id": before.id} for added in result.positions]
            queries.insert_positions(self.connection, rows)
            transaction.record("positions", rows)
            self._repository.update(transaction, before, result.episode)
            # Here, where it costs no answer of its own.
            transaction.seal()
        self.episode = result.episode

    def remember(self, kind: str, found: list[tuple[int, str, dict[str, Any]]]) -> None:
        """Keep what people's standing follows from: attempts and rewards, by number and account."""
        own = {"episode_id": self.episode.id, "kind": kind, "at_ms": self.at_ms}
        rows = [{"number": n, "account": account, **own, **event} for n, account, event in found]
        queries.insert_reputation_events(self.connection, rows)
        self.transaction.record("reputation_events", rows)


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
    row = {
        "episode_id": episode_id,
        "stage": stage,
        "measurement_json": encode_json(told),
        "executions_json": encode_json(source.executions),
        "bundle_id": source.bundle_id,
        "at_ms": transaction.at_ms,
    }
    queries.insert_measurement(transaction.connection, row)
    transaction.record("episode_measurements", [row])
