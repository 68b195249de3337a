"""Engines: how a connection is made, and how its transactions begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import Connection, Engine, Table, create_engine, event

from heretix.errors import ConfigError

__all__ = ["WRITES", "conflict_insert", "make_engine"]

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

    from heretix.store.location import Location

    ConflictInsert: TypeAlias = sqlite.Insert | postgresql.Insert

WRITES: Final = "heretix_writes"
"""Execution option of a connection whose transactions write."""

_CONNECT_TIMEOUT_S: Final = 10


def make_engine(location: Location, *, busy_timeout_ms: int) -> Engine:
    """An engine for the store at `location`; nothing is opened yet."""
    # Parameters are what models wrote: an error message is no place for them.
    options: dict[str, Any] = {"hide_parameters": True}
    if location.path is not None:
        options["connect_args"] = {"timeout": busy_timeout_ms / 1000}
        engine = create_engine(location.url, **options)
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    wanted = {"application_name": "heretix", "connect_timeout": _CONNECT_TIMEOUT_S}
    options["connect_args"] = {k: v for k, v in wanted.items() if k not in location.url.query}
    try:
        # A measurement may outlive a restart of the server: stale connections are replaced.
        engine = create_engine(location.url, pool_pre_ping=True, **options)
    except ImportError as exc:
        raise ConfigError(
            f"`{location.name}` needs the PostgreSQL driver: `uv sync --extra postgres`, "
            "or `pip install '.[postgres]'` in the clone"
        ) from exc

    @event.listens_for(engine, "connect")
    def set_up_postgresql(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # As long as SQLite waits for a lock, and no longer; the default is for ever.
        cursor = connection.cursor()
        cursor.execute(f"SET lock_timeout = {busy_timeout_ms:d}")
        cursor.close()
        connection.commit()

    return engine


def conflict_insert(dialect: str, table: Table) -> ConflictInsert:
    """An INSERT that can say what happens when the row exists; each dialect has its own."""
    # Imported as needed: PostgreSQL's dialect brings all of its drivers along.
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as postgresql_insert

        return postgresql_insert(table)
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert

    return sqlite_insert(table)


def _set_up_sqlite(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    # The driver would begin transactions by itself, late and never immediately: it is told not
    # to, and `_begin_sqlite` does. (Its `autocommit` attribute only exists from Python 3.12 on.)
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    # A commit survives the end of the process; a power cut may cost the last ones, nothing else.
    connection.execute("PRAGMA synchronous = NORMAL")
    # SQLite itself lowers ASCII only, and a claim may be in any language.
    connection.create_function("lower", 1, _lower, deterministic=True)


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins as a reader and then writes fails at once when another has
    # written in between; one that takes the write lock first waits for its turn.
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
