"""Queries of the ledger: the end of the chain, accounts, transfers.

Nothing here decides anything: whoever calls has asked the rules, inside the same transaction.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import bindparam, insert, or_, select, update
from sqlalchemy.exc import DBAPIError

from heretix.core.chunks import chunked
from heretix.store.db import KEYS_PER_STATEMENT, conflict_insert
from heretix.store.schema import accounts, chain, statements, transfers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from psycopg import Connection as PsycopgConnection
    from sqlalchemy import Connection, RowMapping, Select

_STREAM: Final = 1_000


def freeze_view(connection: Connection) -> None:
    """Make all reads of a transaction, which mustn't have begun, see one moment.

    SQLite does that anyway; PostgreSQL would show each statement what was committed meanwhile.
    """
    if connection.dialect.name == "postgresql":
        connection.execution_options(isolation_level="REPEATABLE READ")


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


def lock_chain(connection: Connection) -> RowMapping:
    """The end of the chain, for the one transaction that may extend it: others wait here."""
    return connection.execute(_LOCK_CHAIN).mappings().one()


def chain_end(connection: Connection) -> RowMapping:
    """The end of the chain, to look at."""
    return connection.execute(_CHAIN).mappings().one()


def add_accounts(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make accounts that aren't there yet; those that are stay as they are."""
    if rows:
        statement_ = conflict_insert(connection.dialect.name, accounts)
        connection.execute(statement_.on_conflict_do_nothing(), [dict(row) for row in rows])


def accounts_by_id(connection: Connection, ids: Iterable[str]) -> dict[str, RowMapping]:
    """Those of these accounts that exist, by id."""
    found: dict[str, RowMapping] = {}
    for chunk in chunked(sorted(set(ids)), KEYS_PER_STATEMENT):
        rows = connection.execute(_ACCOUNTS_BY_ID, {"ids": chunk}).mappings()
        found.update((row["id"], row) for row in rows)
    return found


def accounts_of_episode(connection: Connection, episode: str) -> dict[str, RowMapping]:
    """An episode's pots, by id."""
    rows = connection.execute(_ACCOUNTS.where(accounts.c.episode == episode)).mappings()
    return {row["id"]: row for row in rows}


def account_rows(
    connection: Connection,
    *,
    person: str | None = None,
    episode: str | None = None,
    currency: str | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[RowMapping]:
    """Accounts that fit everything that is given, by id."""
    query = _ACCOUNTS.order_by(accounts.c.id).limit(limit).offset(offset)
    for column, wanted in (
        (accounts.c.person, person),
        (accounts.c.episode, episode),
        (accounts.c.currency, currency),
    ):
        if wanted is not None:
            query = query.where(column == wanted)
    return list(connection.execute(query).mappings())


def same_id_or_group(connection: Connection, group: str, ids: Sequence[str]) -> list[RowMapping]:
    """Written transfers that stand in a group of this id, or have one of these ids; in order."""
    found: dict[int, RowMapping] = {}
    for chunk in chunked(ids, KEYS_PER_STATEMENT):
        rows = connection.execute(_SAME, {"group": group, "ids": chunk}).mappings()
        found.update((row["seq"], row) for row in rows)
    return [found[seq] for seq in sorted(found)]


def append_transfers(
    connection: Connection, rows: Sequence[Mapping[str, Any]], balances: Mapping[str, int]
) -> None:
    """Extend the chain, and set the balances that follow from it."""
    connection.execute(_INSERT_TRANSFER, [dict(row) for row in rows])
    connection.execute(
        _SET_BALANCE,
        # One order for everybody, though the chain's row already keeps writers apart.
        [{"of_id": name, "to_balance": balances[name]} for name in sorted(balances)],
    )
    last = rows[-1]
    connection.execute(_SET_CHAIN, {"to_seq": last["seq"], "to_hash": last["hash"]})


def statement(connection: Connection, group: str) -> RowMapping | None:
    """What was asked for under a group's id, if anything was."""
    return connection.execute(_STATEMENT, {"group": group}).mappings().one_or_none()


def statement_seqs(connection: Connection) -> dict[str, int]:
    """Where each group that has a statement begins, by its id."""
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
    """Transfers that fit everything that is given, the newest first."""
    query = select(transfers).order_by(transfers.c.seq.desc()).limit(limit)
    if account is not None:
        query = query.where(or_(transfers.c.debit == account, transfers.c.credit == account))
    if episode is not None:
        query = query.where(transfers.c.episode == episode)
    if group is not None:
        query = query.where(transfers.c.group_id == group)
    if before_seq is not None:
        query = query.where(transfers.c.seq < before_seq)
    return list(connection.execute(query).mappings())


def stream_transfers(
    connection: Connection, *, after_seq: int = 0, episode: str | None = None
) -> Iterator[RowMapping]:
    """Transfers in the order of the chain, a few at a time, however many there are."""
    query: Select[Any] = (
        select(transfers).where(transfers.c.seq > after_seq).order_by(transfers.c.seq)
    )
    if episode is not None:
        query = query.where(transfers.c.episode == episode)
    options = {"yield_per": _STREAM}
    with connection.execute(query, execution_options=options) as result:
        yield from result.mappings()


_CHAIN: Final = select(chain.c.last_seq, chain.c.last_hash)
_LOCK_CHAIN: Final = _CHAIN.with_for_update()
_ACCOUNTS: Final = select(accounts)
_ACCOUNTS_BY_ID: Final = _ACCOUNTS.where(accounts.c.id.in_(bindparam("ids", expanding=True)))
_SAME: Final = select(transfers).where(
    or_(
        transfers.c.group_id == bindparam("group"),
        transfers.c.id.in_(bindparam("ids", expanding=True)),
    )
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
