"""Queries of the economy: chain, accounts, transfers, episodes, bets, statements, credits.

Nothing here decides anything: whoever calls has asked the rules, inside the same transaction.
Statements that a bet runs are made once: putting one together takes as long as running it.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import and_, bindparam, func, insert, or_, select, update
from sqlalchemy.exc import DBAPIError

from heretix.core.lenses import EARNING, RPL
from heretix.store.db import KEYS_PER_STATEMENT, chunked, conflict_insert, where_given
from heretix.store.schema import (
    accounts,
    chain,
    episode_measurements,
    episodes,
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
    from sqlalchemy import BindParameter, Connection, RowMapping, Select, Update

_STREAM: Final = 1_000

_CHAIN: Final = select(chain.c.last_seq, chain.c.last_hash)
_LOCK_CHAIN: Final = _CHAIN.with_for_update()
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
_SET_CHAIN: Final = update(chain).values(
    last_seq=bindparam("to_seq"), last_hash=bindparam("to_hash")
)
_OF_EPISODE: Final = episodes.c.episode_id == bindparam("of_id")
_UPDATE: Final = update(episodes).where(_OF_EPISODE)
_EPISODE: Final = select(*(c for c in episodes.c if c.name != "record_json")).where(_OF_EPISODE)
_RECORD: Final = select(episodes.c.record_json).where(_OF_EPISODE)
_INSERT_POSITION: Final = insert(positions)
_POSITIONS: Final = (
    select(positions)
    .where(positions.c.episode_id == bindparam("of_id"))
    .order_by(positions.c.number)
)
_POSITION: Final = _POSITIONS.where(positions.c.number == bindparam("of_number"))


@contextlib.contextmanager
def together(connection: Connection) -> Iterator[None]:
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


# The chain of transfers, accounts, and what explains each group of transfers.


def lock_chain(connection: Connection) -> RowMapping:
    """Read the chain's end for the one transaction that may extend it: others wait here."""
    return connection.execute(_LOCK_CHAIN).mappings().one()


def chain_end(connection: Connection) -> RowMapping:
    """Read the chain's end, to look at."""
    return connection.execute(_CHAIN).mappings().one()


def add_accounts(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make accounts that aren't there yet; those that are stay as they are."""
    if rows:
        insertion = conflict_insert(connection.dialect.name, accounts)
        connection.execute(insertion.on_conflict_do_nothing(), [dict(row) for row in rows])


def accounts_by_id(connection: Connection, ids: Iterable[str]) -> dict[str, RowMapping]:
    """Read those of these accounts that exist, by id."""
    return {
        row["id"]: row
        for chunk in chunked(sorted(set(ids)), KEYS_PER_STATEMENT)
        for row in connection.execute(_ACCOUNTS_BY_ID, {"ids": chunk}).mappings()
    }


def accounts_of_episode(connection: Connection, episode: str) -> dict[str, RowMapping]:
    """Read an episode's pots, by id."""
    return {row["id"]: row for row in account_rows(connection, episode=episode)}


def account_rows(
    connection: Connection,
    *,
    person: str | None = None,
    episode: str | None = None,
    currency: str | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[RowMapping]:
    """Read accounts that fit everything that is given, by id."""
    query = where_given(select(accounts), person=person, episode=episode, currency=currency)
    return _all(connection, query.order_by(accounts.c.id).limit(limit).offset(offset))


def same_id_or_group(connection: Connection, group: str, ids: Sequence[str]) -> list[RowMapping]:
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
    """Extend the chain, and set the balances that follow from it."""
    connection.execute(_INSERT_TRANSFER, [dict(row) for row in rows])
    # One order for everybody, though the chain's row already keeps writers apart.
    changed = [{"of_id": name, "to_balance": balances[name]} for name in sorted(balances)]
    connection.execute(_SET_BALANCE, changed)
    last = rows[-1]
    connection.execute(_SET_CHAIN, {"to_seq": last["seq"], "to_hash": last["hash"]})


def statement(connection: Connection, group: str) -> RowMapping | None:
    """Read what was asked for under a group's id, if anything was."""
    return connection.execute(_STATEMENT, {"group": group}).mappings().one_or_none()


def statement_seqs(connection: Connection) -> dict[str, int]:
    """Read where each group that has a statement begins, by its id."""
    rows = connection.execute(select(statements.c.group_id, statements.c.first_seq))
    return {row.group_id: row.first_seq for row in rows}


def insert_statement(connection: Connection, row: Mapping[str, Any]) -> None:
    """Keep what explains a group."""
    connection.execute(_INSERT_STATEMENT, dict(row))


def history(
    connection: Connection,
    *,
    account: str | None = None,
    episode: str | None = None,
    group: str | None = None,
    limit: int,
    before_seq: int | None = None,
) -> list[RowMapping]:
    """Read transfers that fit everything that is given, the newest first."""
    query = where_given(select(transfers), episode=episode, group_id=group)
    if account is not None:
        query = query.where(or_(transfers.c.debit == account, transfers.c.credit == account))
    if before_seq is not None:
        query = query.where(transfers.c.seq < before_seq)
    return _all(connection, query.order_by(transfers.c.seq.desc()).limit(limit))


def stream_transfers(
    connection: Connection, *, after_seq: int = 0, episode: str | None = None
) -> Iterator[RowMapping]:
    """Read transfers in the order of the chain, a few at a time, however many there are."""
    query = where_given(select(transfers), episode=episode)
    query = query.where(transfers.c.seq > after_seq).order_by(transfers.c.seq)
    with connection.execute(query, execution_options={"yield_per": _STREAM}) as result:
        yield from result.mappings()


# Episodes, their bets, statements, measurements and reputations.


def insert_episode(connection: Connection, row: Mapping[str, Any]) -> None:
    """Write down a new episode."""
    connection.execute(insert(episodes), dict(row))


def episode_row(connection: Connection, episode_id: str) -> RowMapping | None:
    """Read an episode without its record, which `record_json` reads when it has to be decoded."""
    return connection.execute(_EPISODE, {"of_id": episode_id}).mappings().one_or_none()


def record_json(connection: Connection, episode_id: str) -> str:
    """Read the record of an episode that exists."""
    return str(connection.execute(_RECORD, {"of_id": episode_id}).scalar_one())


def update_episode(connection: Connection, episode_id: str, values: Mapping[str, Any]) -> None:
    """Set some columns of an episode."""
    parameters = {f"to_{name}": value for name, value in values.items()}
    connection.execute(_update(tuple(values)), parameters | {"of_id": episode_id})


@cache
def _update(names: tuple[str, ...]) -> Update:
    return _UPDATE.values({name: bindparam(f"to_{name}") for name in names})


def newest_ms(connection: Connection) -> int | None:
    """Read when the newest episode was written down; None before there is any."""
    newest: int | None = connection.scalar(select(func.max(episodes.c.created_ms)))
    return newest


def episodes_open(connection: Connection) -> dict[str, bool]:
    """Read every episode, with whether it is still open."""
    rows = connection.execute(select(episodes.c.episode_id, episodes.c.is_open))
    return {row.episode_id: row.is_open for row in rows}


def episode_summaries(
    connection: Connection, *, state: str | None, limit: int, offset: int
) -> list[RowMapping]:
    """Read episodes without their records, the newest first."""
    shown = [column for column in episodes.c if column.name not in {"record_json", "secret"}]
    query = where_given(select(*shown), state=state)
    query = query.order_by(episodes.c.created_ms.desc(), episodes.c.episode_id)
    return _all(connection, query.limit(limit).offset(offset))


def insert_positions(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep bets."""
    if rows:
        connection.execute(_INSERT_POSITION, [dict(row) for row in rows])


def positions_of(
    connection: Connection, episode_id: str, *, number: int | None = None
) -> list[RowMapping]:
    """Read an episode's bets in their order, or the one with a number."""
    if number is None:
        return _all(connection, _POSITIONS, {"of_id": episode_id})
    return _all(connection, _POSITION, {"of_id": episode_id, "of_number": number})


def positions_by_account(connection: Connection, account: str) -> list[RowMapping]:
    """Read bets of one account with the episodes they are in, the newest first."""
    query = (
        select(positions, episodes.c.claim, episodes.c.state, episodes.c.close_ms)
        .join(episodes, episodes.c.episode_id == positions.c.episode_id)
        .where(positions.c.account == account)
        .order_by(positions.c.at_ms.desc(), positions.c.episode_id, positions.c.number.desc())
    )
    return _all(connection, query)


def open_stakes(connection: Connection) -> list[RowMapping]:
    """Sum up what the pot and the market of each open episode must hold: bets up to the close."""
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
    query = (
        select(*own, *held)
        .outerjoin(positions, counted)
        .where(episodes.c.is_open)
        .group_by(*own)
        .order_by(episodes.c.episode_id)
    )
    return _all(connection, query)


def statements_of(connection: Connection, episode_id: str) -> list[RowMapping]:
    """Read what explains an episode's groups, in the order of the moves."""
    query = select(statements).where(statements.c.episode_id == episode_id)
    return _all(connection, query.order_by(statements.c.first_seq))


def insert_measurement(connection: Connection, row: Mapping[str, Any]) -> None:
    """Keep what a measurement told an episode, and where it came from."""
    connection.execute(insert(episode_measurements), dict(row))


def measurements_of(
    connection: Connection, episode_id: str, *, stage: str | None = None
) -> list[RowMapping]:
    """Read an episode's measurements in the order of time, or the one of a stage."""
    query = where_given(select(episode_measurements), episode_id=episode_id, stage=stage)
    order = (episode_measurements.c.at_ms, episode_measurements.c.stage)
    return _all(connection, query.order_by(*order))


def insert_reputation_events(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep what people's standing follows from."""
    if rows:
        connection.execute(insert(reputation_events), [dict(row) for row in rows])


def attempts_of(connection: Connection, account: str, *, limit: int) -> list[bool]:
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


def claim_records(connection: Connection, claim: str) -> list[str]:
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


def grant_of(connection: Connection, claim_id: str) -> RowMapping | None:
    """Read what a claim was credited with, if it was."""
    query = select(exploration_grants).where(exploration_grants.c.claim_id == claim_id)
    return connection.execute(query).mappings().one_or_none()


def add_grant(connection: Connection, row: Mapping[str, Any]) -> None:
    """Keep what a claim was credited with."""
    connection.execute(insert(exploration_grants), dict(row))


def credited_in_week(connection: Connection, person: str, week: int) -> int:
    """Sum up what a person was credited with in a week."""
    query = select(func.coalesce(func.sum(exploration_grants.c.amount), 0)).where(
        exploration_grants.c.person == person, exploration_grants.c.week == week
    )
    return int(connection.scalar(query) or 0)


def grants(connection: Connection, *, person: str | None = None) -> list[RowMapping]:
    """Read credits that were granted, oldest first."""
    query = where_given(select(exploration_grants), person=person)
    order = (exploration_grants.c.at_ms, exploration_grants.c.claim_id)
    return _all(connection, query.order_by(*order))


def events(connection: Connection, *, person: str | None = None) -> list[RowMapping]:
    """Read attempts and rewards with the person behind them, oldest first."""
    event = reputation_events.c
    query = (
        select(accounts.c.person, *event)
        .join(accounts, accounts.c.id == event.account)
        .where(accounts.c.person.is_not(None) if person is None else accounts.c.person == person)
        .order_by(event.at_ms, event.episode_id, event.kind, event.number)
    )
    return _all(connection, query)


def people(connection: Connection) -> dict[str, int]:
    """Read everybody with an account of credits, and what is in it."""
    query = select(accounts.c.person, accounts.c.balance).where(
        accounts.c.person.is_not(None), accounts.c.currency == "XC"
    )
    return {row.person: row.balance for row in connection.execute(query)}
