"""Queries of the economy: chains, accounts, transfers, episodes, bets, challenges, credits.

Nothing here decides anything: whoever calls has asked the rules, inside the same transaction.
Statements that a bet runs are made once: putting one together takes as long as running it.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import (
    Boolean,
    Integer,
    and_,
    bindparam,
    case,
    false,
    func,
    insert,
    or_,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.exc import DBAPIError

from heretix.core.lenses import EARNING, RPL
from heretix.store.db import KEYS_PER_STATEMENT, chunked, conflict_insert, filter_given
from heretix.store.schema import (
    ROOT,
    TRANSFERS,
    accounts,
    chains,
    challenges,
    episode_measurements,
    episodes,
    events,
    exploration_grants,
    positions,
    reputation_events,
    results,
    runs,
    statements,
    transfers,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from psycopg import Connection as PsycopgConnection
    from sqlalchemy import BindParameter, Connection, RowMapping, Select, Table, Update

_STREAM: Final = 1_000
CHAINED: Final[Mapping[str, Table]] = {
    table.name: table
    for table in (
        accounts,
        transfers,
        episodes,
        positions,
        challenges,
        statements,
        episode_measurements,
        exploration_grants,
        reputation_events,
    )
}
"""The tables that are views of the events, by name."""

# The root's row first, so that whoever waits has no other; on PostgreSQL rows that were changed
# while waiting come as they are then.
_LOCK_CHAINS: Final = (
    select(chains)
    .where(chains.c.name.in_((ROOT, TRANSFERS, bindparam("own"))))
    .order_by(chains.c.name != ROOT)
    .with_for_update()
)
_CHAIN_END: Final = select(chains.c.number, chains.c.hash).where(chains.c.name == bindparam("own"))
_IDS: Final[BindParameter[Any]] = bindparam("ids", expanding=True)
_ACCOUNTS_BY_ID: Final = select(accounts).where(accounts.c.id.in_(_IDS))
_SAME: Final = select(transfers).where(
    or_(transfers.c.group_id == bindparam("group"), transfers.c.id.in_(_IDS))
)
_STATEMENT: Final = select(statements).where(statements.c.group_id == bindparam("group"))
_INSERT_STATEMENT: Final = insert(statements)
_INSERT_TRANSFER: Final = insert(transfers)
_SET_BALANCE: Final = (
    update(accounts)
    .where(accounts.c.id == bindparam("of_id"))
    .values(balance=bindparam("to_balance"))
)
_SET_CHAIN: Final = (
    update(chains)
    .where(chains.c.name == bindparam("of_name"))
    .values(number=bindparam("to_number"), hash=bindparam("to_hash"))
)
_INSERT_EVENT: Final = insert(events)
_OF_EPISODE: Final = episodes.c.episode_id == bindparam("of_id")
_UPDATE: Final = update(episodes).where(_OF_EPISODE)
_LONG: Final = frozenset({"record_json", "tally_json"})
_EPISODE: Final = select(*(c for c in episodes.c if c.name not in _LONG)).where(_OF_EPISODE)
_RECORD: Final = select(episodes.c.record_json).where(_OF_EPISODE)
_INSERT_POSITION: Final = insert(positions)
_POSITIONS: Final = (
    select(positions)
    .where(positions.c.episode_id == bindparam("of_id"))
    .order_by(positions.c.number)
)
_POSITIONS_FROM: Final = _POSITIONS.where(positions.c.number >= bindparam("from_number"))
_POSITION: Final = _POSITIONS.where(positions.c.number == bindparam("of_number"))
_INSERT_CHALLENGE: Final = insert(challenges)
_UPDATE_CHALLENGE: Final = (
    update(challenges)
    .where(
        challenges.c.episode_id == bindparam("to_episode_id"),
        challenges.c.number == bindparam("to_number"),
    )
    .values({c.name: bindparam(f"to_{c.name}") for c in challenges.c if not c.primary_key})
)
_CHALLENGES_AFTER: Final = (
    select(challenges)
    .where(
        challenges.c.episode_id == bindparam("of_id"),
        challenges.c.event_seq > bindparam("after_seq"),
    )
    .order_by(challenges.c.number)
)


@contextlib.contextmanager
def pipeline(connection: Connection) -> Iterator[None]:
    """Send the writes of a block in one go, where the database is a network away.

    Nothing can be read inside the block: the answers come at its end. Everybody else waits while
    one writer has the chain, so each question and answer that is spared is time for all.
    """
    if connection.dialect.name != "postgresql":
        yield
        return
    import psycopg

    driver = cast("PsycopgConnection[Any]", connection.connection.driver_connection)
    try:
        with driver.pipeline():
            yield
    except psycopg.Error as exc:
        # It comes at the end of the block, where SQLAlchemy doesn't see it.
        raise DBAPIError("a pipeline", None, exc) from exc


def _all(
    connection: Connection, query: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[RowMapping]:
    return list(connection.execute(query, parameters).mappings())


# Chains, events, accounts, and what explains each group of transfers.


def lock_chains(connection: Connection, own: str) -> dict[str, tuple[int, str]]:
    """Read the ends of the root, of the transfers and of one chain, if it has begun, for the one
    transaction that may extend them: others wait here."""
    rows = connection.execute(_LOCK_CHAINS, {"own": own})
    return {row.name: (row.number, row.hash) for row in rows}


def begin_chain(connection: Connection, name: str) -> tuple[int, str]:
    """Begin a chain, unless it has begun, and read its end."""
    row = {"name": name, "number": 0, "hash": "0" * 64}
    insertion = conflict_insert(connection.dialect.name, chains)
    connection.execute(insertion.on_conflict_do_nothing(), row)
    number, hash_ = connection.execute(_CHAIN_END, {"own": name}).one()
    return number, hash_


def select_chain(connection: Connection, *, name: str | None = None) -> list[dict[str, Any]]:
    """Read whatever is kept as ends of chains, or of one."""
    query = filter_given(select(chains), name=name)
    return [dict(row) for row in _all(connection, query.order_by(chains.c.name))]


def add_accounts(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make accounts that aren't there yet; those that are stay as they are."""
    if rows:
        insertion = conflict_insert(connection.dialect.name, accounts)
        connection.execute(insertion.on_conflict_do_nothing(), [dict(row) for row in rows])


def select_accounts_by_id(connection: Connection, ids: Iterable[str]) -> dict[str, RowMapping]:
    """Read those of these accounts that exist, by id."""
    return {
        row["id"]: row
        for chunk in chunked(sorted(set(ids)), KEYS_PER_STATEMENT)
        for row in connection.execute(_ACCOUNTS_BY_ID, {"ids": chunk}).mappings()
    }


def select_episode_accounts(connection: Connection, episode: str) -> dict[str, RowMapping]:
    """Read an episode's pots, by id."""
    return {row["id"]: row for row in select_accounts(connection, episode=episode)}


def select_accounts(
    connection: Connection,
    *,
    person: str | None = None,
    episode: str | None = None,
    currency: str | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[RowMapping]:
    """Read accounts that fit everything that is given, by id."""
    query = filter_given(select(accounts), person=person, episode=episode, currency=currency)
    return _all(connection, query.order_by(accounts.c.id).limit(limit).offset(offset))


def select_same_id_or_group(
    connection: Connection, group: str, ids: Sequence[str]
) -> list[RowMapping]:
    """Read transfers that stand in a group of this id, or have one of these ids; in order."""
    found = {
        row["seq"]: row
        for chunk in chunked(ids, KEYS_PER_STATEMENT)
        for row in _all(connection, _SAME, {"group": group, "ids": chunk})
    }
    return [found[seq] for seq in sorted(found)]


def append_transfers(
    connection: Connection, rows: Sequence[Mapping[str, Any]], balances: Mapping[str, int]
) -> None:
    """Extend the chain of transfers, and set the balances that follow from it."""
    connection.execute(_INSERT_TRANSFER, [dict(row) for row in rows])
    # One order for everybody, though the chain's row already keeps writers apart.
    changed = [{"of_id": name, "to_balance": balances[name]} for name in sorted(balances)]
    connection.execute(_SET_BALANCE, changed)


def append_event(connection: Connection, row: Mapping[str, Any]) -> None:
    """Write an event; `set_chains` sets the ends that follow from it."""
    connection.execute(_INSERT_EVENT, dict(row))


def set_chains(connection: Connection, ends: Mapping[str, tuple[int, str]]) -> None:
    """Set the ends of chains that have begun."""
    changed = [{"of_name": name, "to_number": n, "to_hash": h} for name, (n, h) in ends.items()]
    connection.execute(_SET_CHAIN, changed)


def select_last_event(connection: Connection) -> int:
    """Read the place of the last event."""
    return int(connection.scalar(select(chains.c.number).where(chains.c.name == ROOT)) or 0)


def select_event_rows_after(
    connection: Connection, seq: int, mentioned: Sequence[str]
) -> list[str]:
    """Read the rows of events after one that mention any of some things."""
    mention = or_(*(events.c.rows_json.contains(it, autoescape=True) for it in mentioned))
    query = select(events.c.rows_json).where(events.c.seq > seq, mention).order_by(events.c.seq)
    return list(connection.scalars(query))


def root_at(connection: Connection, seq: int) -> str | None:
    """Read the root as of the event in a place; None past the end."""
    found: str | None = connection.scalar(select(events.c.root).where(events.c.seq == seq))
    return found


def select_first_event(connection: Connection, chain: str) -> int:
    """Read the place of the event that a chain began with; 0 before there is one."""
    query = select(func.min(events.c.seq)).where(events.c.chain == chain)
    return int(connection.scalar(query) or 0)


def chain_ends_at(connection: Connection, seq: int) -> dict[str, tuple[int, str]]:
    """Read the number and the hash that each chain of events ended in as of the event in a place.

    It reads the last event of each chain before it, and no other, however many there are.
    """
    known = events.alias("known")
    last = select(func.max(known.c.seq)).where(known.c.chain == chains.c.name, known.c.seq <= seq)
    query = select(events.c.chain, events.c.number, events.c.hash).join_from(
        chains, events, events.c.seq == last.scalar_subquery()
    )
    return {row.chain: (row.number, row.hash) for row in connection.execute(query)}


def stream_events(connection: Connection, *, chain: str | None = None) -> Iterator[RowMapping]:
    """Read events in their order, a few at a time: all, or those of a chain, each with the root
    before it."""
    query = select(events).order_by(events.c.seq)
    if chain is not None:
        before = events.alias("before")
        query = query.add_columns(before.c.root.label("prev_root"))
        query = query.outerjoin(before, before.c.seq == events.c.seq - 1)
        query = query.where(events.c.chain == chain)
    with connection.execute(query, execution_options={"yield_per": _STREAM}) as result:
        for rows in result.mappings().partitions():
            yield from rows


def stream_table(
    connection: Connection, name: str, *, episode: str | None = None
) -> Iterator[dict[str, Any]]:
    """Read the rows of one of `CHAINED` tables, all or an episode's, a few at a time, in the order
    of its key.

    Truths are read as they are stored: on SQLite a 2 would read as true, and be found by no query
    that asks for what is true.
    """
    table = CHAINED[name]
    raw = (
        type_coerce(c, Integer).label(c.name) if isinstance(c.type, Boolean) else c for c in table.c
    )
    query = select(*raw).order_by(*table.primary_key)
    if episode is not None:
        own = table.c.get("episode_id", table.c.get("episode"))
        # A table that names no episode has nothing of it.
        query = query.where(false() if own is None else own == episode)
    names = table.columns.keys()
    with connection.execute(query, execution_options={"yield_per": _STREAM}) as result:
        for rows in result.partitions():
            yield from [dict(zip(names, row, strict=True)) for row in rows]


def select_statement(connection: Connection, group: str) -> RowMapping | None:
    """Read what was asked for under a group's id, if anything was."""
    return connection.execute(_STATEMENT, {"group": group}).mappings().one_or_none()


def select_statement_seqs(connection: Connection) -> dict[str, int]:
    """Read where each group that has a statement begins, by its id."""
    rows = connection.execute(select(statements.c.group_id, statements.c.first_seq))
    return {row.group_id: row.first_seq for row in rows}


def select_groups(connection: Connection, episode_id: str, move: str) -> set[str]:
    """Read which groups a move of an episode has written."""
    query = select(statements.c.group_id).where(
        statements.c.episode_id == episode_id, statements.c.move == move
    )
    return set(connection.scalars(query))


def insert_statement(connection: Connection, row: Mapping[str, Any]) -> None:
    """Keep what explains a group."""
    connection.execute(_INSERT_STATEMENT, dict(row))


def select_history(
    connection: Connection,
    *,
    account: str | None = None,
    episode: str | None = None,
    group: str | None = None,
    limit: int,
    before_seq: int | None = None,
) -> list[RowMapping]:
    """Read transfers that fit everything that is given, the newest first."""
    query = filter_given(select(transfers), episode=episode, group_id=group)
    if account is not None:
        query = query.where(or_(transfers.c.debit == account, transfers.c.credit == account))
    if before_seq is not None:
        query = query.where(transfers.c.seq < before_seq)
    return _all(connection, query.order_by(transfers.c.seq.desc()).limit(limit))


def stream_transfers(
    connection: Connection, *, after_seq: int = 0, episode: str | None = None
) -> Iterator[RowMapping]:
    """Read transfers in the order of the chain, a few at a time, however many there are."""
    query = filter_given(select(transfers), episode=episode)
    query = query.where(transfers.c.seq > after_seq).order_by(transfers.c.seq)
    with connection.execute(query, execution_options={"yield_per": _STREAM}) as result:
        for rows in result.mappings().partitions():
            yield from rows


# Episodes, their bets, challenges, statements, measurements and reputations.


def insert_episode(connection: Connection, row: Mapping[str, Any]) -> None:
    """Write down a new episode."""
    connection.execute(insert(episodes), dict(row))


def select_episode(connection: Connection, episode_id: str) -> RowMapping | None:
    """Read an episode without its record and its sums, which are read when they have to be
    decoded."""
    return connection.execute(_EPISODE, {"of_id": episode_id}).mappings().one_or_none()


def select_record_json(connection: Connection, episode_id: str) -> str:
    """Read the record of an episode that exists."""
    return str(connection.execute(_RECORD, {"of_id": episode_id}).scalar_one())


def tally_json(connection: Connection, episode_id: str) -> str:
    """Read the sums of an episode that has ended."""
    query = select(episodes.c.tally_json).where(episodes.c.episode_id == episode_id)
    return str(connection.execute(query).scalar_one())


def ended_episodes(connection: Connection) -> list[str]:
    """Read the ids of episodes that have ended."""
    query = select(episodes.c.episode_id).where(episodes.c.is_open.is_(False))
    return list(connection.scalars(query.order_by(episodes.c.episode_id)))


def update_episode(connection: Connection, episode_id: str, values: Mapping[str, Any]) -> None:
    """Set some columns of an episode."""
    parameters = {f"to_{name}": value for name, value in values.items()}
    connection.execute(_update(tuple(values)), parameters | {"of_id": episode_id})


@cache
def _update(names: tuple[str, ...]) -> Update:
    return _UPDATE.values({name: bindparam(f"to_{name}") for name in names})


def select_newest_ms(connection: Connection) -> int | None:
    """Read when the newest episode was written down; None before there is any."""
    newest: int | None = connection.scalar(select(func.max(episodes.c.created_ms)))
    return newest


def select_episodes_of_claim(connection: Connection, claim_id: str) -> list[RowMapping]:
    """Read what became of every episode of a folded claim, with its record, the oldest first."""
    names = ("episode_id", "state", "record_json")
    query = select(*(episodes.c[name] for name in names)).where(episodes.c.claim_id == claim_id)
    return _all(connection, query.order_by(episodes.c.created_ms, episodes.c.episode_id))


def select_episodes_open(connection: Connection) -> dict[str, bool]:
    """Read every episode, with whether it is still open."""
    rows = connection.execute(select(episodes.c.episode_id, episodes.c.is_open))
    return {row.episode_id: row.is_open for row in rows}


def select_episode_summaries(
    connection: Connection, *, state: str | None, limit: int, offset: int
) -> list[RowMapping]:
    """Read episodes without their records, the newest first."""
    shown = [column for column in episodes.c if column.name not in _LONG | {"secret"}]
    query = filter_given(select(*shown), state=state)
    query = query.order_by(episodes.c.created_ms.desc(), episodes.c.episode_id)
    return _all(connection, query.limit(limit).offset(offset))


def was_won(connection: Connection, episode_id: str) -> bool:
    """Say whether a settlement paid bets by who was right, and didn't just give them back."""
    # The first part of a settlement, where it has parts, begins with what bets are paid.
    groups = (f"settle:{episode_id}", f"settle:{episode_id}:0")
    query = select(transfers.c.seq).where(
        transfers.c.group_id.in_(groups), transfers.c.code == "payout"
    )
    return connection.execute(query.limit(1)).first() is not None


def select_live_episodes(connection: Connection) -> list[tuple[Any, ...]]:
    """Read the ids of episodes that are under way, the oldest first, each with what changes when
    anything happens to it."""
    shown = (episodes.c.episode_id, episodes.c.state, episodes.c.updated_ms)
    query = select(*shown, episodes.c.position_count).where(
        episodes.c.is_open, episodes.c.state != "draft"
    )
    return [tuple(row) for row in connection.execute(query.order_by(episodes.c.created_ms))]


def insert_positions(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep bets."""
    if rows:
        connection.execute(_INSERT_POSITION, [dict(row) for row in rows])


def select_positions(
    connection: Connection, episode_id: str, *, number: int | None = None
) -> list[RowMapping]:
    """Read an episode's bets in their order, or the one with a number."""
    if number is None:
        return _all(connection, _POSITIONS, {"of_id": episode_id})
    return _all(connection, _POSITION, {"of_id": episode_id, "of_number": number})


def select_positions_from(
    connection: Connection, episode_id: str, number: int, *, limit: int
) -> list[RowMapping]:
    """Read some of an episode's bets in their order, from the one with a number on."""
    place = {"of_id": episode_id, "from_number": number}
    return _all(connection, _POSITIONS_FROM.limit(limit), place)


def select_latest_positions(
    connection: Connection, episode_id: str, *, account: str | None = None, limit: int
) -> list[RowMapping]:
    """Read the last of an episode's bets, or of an account's in it, in their order."""
    query = filter_given(select(positions), episode_id=episode_id, account=account)
    return _all(connection, query.order_by(positions.c.number.desc()).limit(limit))[::-1]


def sum_positions(
    connection: Connection, episode_id: str, *, step: int, until_ms: int | None
) -> list[RowMapping]:
    """Sum an episode's bets up to a moment, so many in a row at a time after the two of the seed.

    `h_` is what is on the heretic side of it.
    """
    column, heretic = positions.c, positions.c.side == "heretic"

    def count_heretic(value: Any) -> Any:
        return func.sum(case((heretic, value), else_=0))

    query = select(
        ((column.number + (step - 2)) // step).label("part"),
        func.max(column.at_ms).label("at_ms"),
        func.count().label("bets"),
        func.sum(column.stake).label("stakes"),
        func.sum(column.shares).label("shares"),
        count_heretic(1).label("h_bets"),
        count_heretic(column.stake).label("h_stakes"),
        count_heretic(column.shares).label("h_shares"),
    ).where(column.episode_id == episode_id)
    if until_ms is not None:
        query = query.where(column.at_ms <= until_ms)
    return _all(connection, query.group_by("part").order_by("part"))


def sum_given_up(
    connection: Connection, episode_id: str, side: str, tau_ppm: int, until_ms: int
) -> int:
    """Sum what the bets on a losing side pay, each rounded up, at a rate in parts per million."""
    each = (positions.c.stake * tau_ppm + 999_999) // 1_000_000
    query = select(func.coalesce(func.sum(each), 0)).where(
        positions.c.episode_id == episode_id,
        positions.c.side == side,
        positions.c.at_ms <= until_ms,
    )
    return int(connection.scalar(query) or 0)


def sum_flows_of_episode(connection: Connection, episode_id: str) -> list[RowMapping]:
    """Sum an episode's transfers by their accounts and code."""
    return _sum_flows(connection, transfers.c.episode == episode_id)


def sum_flows_between(
    connection: Connection, account: str, pots: Sequence[str]
) -> list[RowMapping]:
    """Sum what went from an account into pots, and what came from them, by code."""
    # By the account's own index, however much else went through the pots.
    into = and_(transfers.c.debit == account, transfers.c.credit.in_(pots))
    back = and_(transfers.c.credit == account, transfers.c.debit.in_(pots))
    return _sum_flows(connection, into) + _sum_flows(connection, back)


def _sum_flows(connection: Connection, condition: Any) -> list[RowMapping]:
    names = (transfers.c.debit, transfers.c.credit, transfers.c.code)
    query = select(*names, func.sum(transfers.c.amount).label("amount")).where(condition)
    return _all(connection, query.group_by(*names))


def select_positions_since(
    connection: Connection, episode_id: str, from_ms: int
) -> list[RowMapping]:
    """Read an episode's bets from a moment on, in their order."""
    return _all(connection, _POSITIONS.where(positions.c.at_ms >= from_ms), {"of_id": episode_id})


def select_outside_positions(
    connection: Connection, episode_id: str, until_ms: int | None
) -> list[RowMapping]:
    """Read the first bet on each side that isn't the house's, of those up to a moment."""
    query = _POSITIONS.where(positions.c.house.is_(False)).limit(1)
    if until_ms is not None:
        query = query.where(positions.c.at_ms <= until_ms)
    return [
        row
        for side in ("heretic", "orthodox")
        for row in _all(connection, query.where(positions.c.side == side), {"of_id": episode_id})
    ]


def insert_challenges(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep challenges."""
    if rows:
        connection.execute(_INSERT_CHALLENGE, [dict(row) for row in rows])


def update_challenges(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write down what became of challenges."""
    if rows:
        values = [{f"to_{name}": value for name, value in row.items()} for row in rows]
        connection.execute(_UPDATE_CHALLENGE, values)


def select_challenges_after(connection: Connection, episode_id: str, seq: int) -> list[RowMapping]:
    """Read an episode's challenges that events after one have written, in their order."""
    return _all(connection, _CHALLENGES_AFTER, {"of_id": episode_id, "after_seq": seq})


def select_positions_by_account(connection: Connection, account: str) -> list[RowMapping]:
    """Read bets of one account with the episodes they are in, the newest first."""
    query = (
        select(positions, episodes.c.claim, episodes.c.state, episodes.c.close_ms)
        .join(episodes, episodes.c.episode_id == positions.c.episode_id)
        .where(positions.c.account == account)
        .order_by(positions.c.at_ms.desc(), positions.c.episode_id, positions.c.number.desc())
    )
    return _all(connection, query)


def select_open_stakes(connection: Connection, *, episode: str | None = None) -> list[RowMapping]:
    """Sum up what the pot and the market of each open episode, or of one, must hold: bets up to the
    close; and what was paid of them already."""
    counted = and_(
        positions.c.episode_id == episodes.c.episode_id,
        or_(episodes.c.close_ms.is_(None), positions.c.at_ms <= episodes.c.close_ms),
    )
    names = ("episode_id", "currency", "market_money", "market_heretic", "market_orthodox")
    own = [episodes.c[name] for name in names]
    held = [func.coalesce(func.sum(positions.c.stake), 0).label("market_money_held")]
    for side in ("heretic", "orthodox"):
        shares = func.sum(positions.c.shares).filter(positions.c.side == side)
        held.append(func.coalesce(shares, 0).label(f"market_{side}_held"))
    settling = (
        transfers.c.debit == "escrow:" + episodes.c.episode_id + ":stake:" + episodes.c.currency,
        transfers.c.code != "late_stake_refund",
    )
    paid = select(func.coalesce(func.sum(transfers.c.amount), 0)).where(*settling)
    query = (
        select(*own, *held, paid.scalar_subquery().label("paid"))
        .outerjoin(positions, counted)
        .where(episodes.c.is_open, true() if episode is None else episodes.c.episode_id == episode)
        .group_by(*own)
        .order_by(episodes.c.episode_id)
    )
    return _all(connection, query)


def select_statements(connection: Connection, episode_id: str) -> list[RowMapping]:
    """Read what explains an episode's groups, in the order of the moves."""
    query = select(statements).where(statements.c.episode_id == episode_id)
    return _all(connection, query.order_by(statements.c.first_seq))


def select_statements_but_bets(connection: Connection, episode_id: str) -> list[RowMapping]:
    """Read what explains the groups of an episode's operator and of its disputes, in the order of
    the moves: all but bets and commitments, and of a settlement in parts the first and the last."""
    own, place = statements.c.episode_id == episode_id, statements.c.first_seq
    # Bets are passed over by place: before the last one there is just the opening besides.
    bets = select(place).where(own, statements.c.move == "stake")
    last_bet = connection.scalar(bets.order_by(place.desc()).limit(1)) or 0
    ends = (f"settle:{episode_id}:0", f"settle:{episode_id}")
    query = select(statements).where(
        own,
        place > last_bet,
        statements.c.move.not_in(("open", "stake", "commit")),
        or_(statements.c.move != "settle", statements.c.group_id.in_(ends)),
    )
    opening = select_statement(connection, f"open:{episode_id}")
    return ([] if opening is None else [opening]) + _all(connection, query.order_by(place))


def insert_measurement(connection: Connection, row: Mapping[str, Any]) -> None:
    """Keep what a measurement told an episode, and where it came from."""
    connection.execute(insert(episode_measurements), dict(row))


def select_measurements(
    connection: Connection, episode_id: str, *, stage: str | None = None
) -> list[RowMapping]:
    """Read an episode's measurements in the order of time, or the one of a stage."""
    query = filter_given(select(episode_measurements), episode_id=episode_id, stage=stage)
    order = (episode_measurements.c.at_ms, episode_measurements.c.stage)
    return _all(connection, query.order_by(*order))


def insert_reputation_events(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep what people's standing follows from."""
    if rows:
        connection.execute(insert(reputation_events), [dict(row) for row in rows])


def select_attempts(connection: Connection, account: str, *, limit: int) -> list[bool]:
    """Read whether an account's latest challenges passed, the oldest of them first."""
    event = reputation_events.c
    query = (
        select(event.passed)
        .where(event.account == account, event.kind == "attempt")
        .order_by(event.at_ms.desc(), event.episode_id.desc(), event.number.desc())
        .limit(limit)
    )
    return [bool(passed) for passed in connection.scalars(query)][::-1]


# Exploration: credits by claim, and what a standing follows from.


def select_claim_records(connection: Connection, claim: str) -> list[str]:
    """Read the latest usable records of a claim under the raw prior and lenses that can earn."""
    query = (
        select(results.c.record_json)
        .join(runs, runs.c.execution_id == results.c.execution_id)
        .where(
            runs.c.claim == claim,
            runs.c.lens.in_((RPL, *EARNING)),
            runs.c.prob_true_rpl.is_not(None),
            runs.c.variant.is_(None),
        )
        .order_by(runs.c.updated_at, runs.c.run_id)
    )
    return list(connection.scalars(query))


def select_grant(connection: Connection, claim_id: str) -> RowMapping | None:
    """Read what a claim was credited with, if it was."""
    query = select(exploration_grants).where(exploration_grants.c.claim_id == claim_id)
    return connection.execute(query).mappings().one_or_none()


def add_grant(connection: Connection, row: Mapping[str, Any]) -> None:
    """Keep what a claim was credited with."""
    connection.execute(insert(exploration_grants), dict(row))


def sum_credited_in_week(connection: Connection, person: str, week: int) -> int:
    """Sum up what a person was credited with in a week."""
    query = select(func.coalesce(func.sum(exploration_grants.c.amount), 0)).where(
        exploration_grants.c.person == person, exploration_grants.c.week == week
    )
    return int(connection.scalar(query) or 0)


def select_grants(connection: Connection, *, person: str | None = None) -> list[RowMapping]:
    """Read credits that were granted, oldest first."""
    query = filter_given(select(exploration_grants), person=person)
    order = (exploration_grants.c.at_ms, exploration_grants.c.claim_id)
    return _all(connection, query.order_by(*order))


def select_reputation_rows(
    connection: Connection, *, person: str | None = None
) -> list[RowMapping]:
    """Read attempts and rewards with the person behind them, oldest first."""
    event = reputation_events.c
    query = (
        select(accounts.c.person, *event)
        .join(accounts, accounts.c.id == event.account)
        .where(accounts.c.person.is_not(None) if person is None else accounts.c.person == person)
        .order_by(event.at_ms, event.episode_id, event.kind, event.number)
    )
    return _all(connection, query)


def select_people(connection: Connection) -> dict[str, int]:
    """Read everybody with an account of credits, and what is in it."""
    query = select(accounts.c.person, accounts.c.balance).where(
        accounts.c.person.is_not(None), accounts.c.currency == "XC"
    )
    return {row.person: row.balance for row in connection.execute(query)}
