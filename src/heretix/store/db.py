"""The store: location, faults in our own words, engine, schema version, transactions."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sqlite3
import threading
import time
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    cast,
)
from urllib.parse import quote, unquote
from weakref import WeakSet

from sqlalchemy import (
    URL,
    Connection,
    Double,
    Engine,
    Select,
    Table,
    create_engine,
    event,
    insert,
    inspect,
    literal,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from heretix.core import telemetry
from heretix.core.errors import (
    ConfigError,
    RecordError,
    StoreAwayError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    UsageError,
)
from heretix.store.schema import CHAINS_START, HEAD, chains, metadata, schema_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

    ConflictInsert: TypeAlias = sqlite.Insert | postgresql.Insert

_P = ParamSpec("_P")
_T = TypeVar("_T")
Row = dict[str, Any]

BUSY_TIMEOUT_MS: Final = 10_000
"""Time to wait for another process's lock before saying so."""

# Where a store is: a path or a URL, read once and named without its password.

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_SECRETS: Final = ("password", "sslpassword")
_REMEDY: Final = (
    "give a path such as runs/heretix.sqlite, or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A database's address, and the name that messages call it by."""

    url: URL
    path: Path | None
    """The file, for SQLite; None for a server."""
    name: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Read a plain path, `sqlite:///…` or `postgresql+psycopg://…`."""
        if not text.strip():
            raise ConfigError(f"`db` must name a store, got nothing; {_REMEDY}")
        if not _SCHEME.match(text):
            path = Path(text).expanduser()
            url = URL.create(_DRIVERS["sqlite"], database=str(path))
            return cls(url=url, path=_file_of(url), name=text)
        try:
            url = make_url(text)
        except (ArgumentError, ValueError) as exc:
            # The text isn't repeated: what couldn't be parsed may hold a password.
            raise ConfigError(f"`db` must be a path or a database URL; {_REMEDY}") from exc
        driver = _DRIVERS.get(url.drivername)
        if driver is None:
            raise ConfigError(
                f"`db` must be SQLite or PostgreSQL, got {url.drivername}://…; {_REMEDY}"
            )
        url = url.set(drivername=driver)
        if driver.startswith("sqlite"):
            path = _file_of(url)
            return cls(url=url, path=path, name=str(path))
        # SQLAlchemy masks the password before the `@`; libpq takes one from the query as well.
        shown = url.update_query_dict({name: "***" for name in _SECRETS if name in url.query})
        return cls(url=url, path=None, name=shown.render_as_string(hide_password=True))


def _file_of(url: URL) -> Path:
    database = url.database or ":memory:"
    if database.startswith("file:"):
        database = unquote(database.removeprefix("file:"))
    if database == ":memory:" or url.query.get("mode") == "memory":
        raise ConfigError(f"`db` must be a file, got a database in memory; {_REMEDY}")
    return Path(database)


# What databases complain of, in our own words: each foreign error is mapped here and only here.

_BUSY: Final = "is locked by another process; wait for it or end it, then run the command again"
_FULL: Final = "has no space left; free some, then run the command again: what was stored is kept"
_READ_ONLY: Final = (
    "can't be written to; check who may write to it and to its directory, or choose another store "
    "with --db or HERETIX_DB"
)
_CANT_OPEN: Final = "can't be opened; check that it is a file and that you may read and write it"
_NOT_A_DATABASE: Final = "isn't a Heretix store; choose another path with --db or HERETIX_DB"
_CORRUPT: Final = "is damaged; restore a copy, or choose another path with --db or HERETIX_DB"
_DISK: Final = "can't be read or written; check the disk that it is on"
_NO_ACCESS: Final = "refused access; check the user, the password and what the user may do"
_UNREACHABLE: Final = (
    "can't be reached; check that the server runs, that the user may log in, "
    "and that the database exists (`createdb` makes one)"
)
_LOST: Final = "broke the connection; run the command again: what was stored is kept"
_REFUSED: Final = "refused a statement"

_SQLITE: Final[dict[int, tuple[type[StoreError], str]]] = {
    sqlite3.SQLITE_BUSY: (StoreBusyError, _BUSY),
    sqlite3.SQLITE_LOCKED: (StoreBusyError, _BUSY),
    sqlite3.SQLITE_FULL: (StoreFullError, _FULL),
    sqlite3.SQLITE_READONLY: (StoreReadOnlyError, _READ_ONLY),
    sqlite3.SQLITE_PERM: (StoreReadOnlyError, _READ_ONLY),
    sqlite3.SQLITE_CANTOPEN: (StoreError, _CANT_OPEN),
    sqlite3.SQLITE_NOTADB: (StoreError, _NOT_A_DATABASE),
    sqlite3.SQLITE_CORRUPT: (StoreError, _CORRUPT),
    sqlite3.SQLITE_IOERR: (StoreError, _DISK),
}
_POSTGRESQL: Final[tuple[tuple[str, type[StoreError], str], ...]] = (
    ("55P03", StoreBusyError, _BUSY),  # lock_not_available
    ("40", StoreBusyError, _BUSY),  # deadlocks and serialisation
    ("53300", StoreBusyError, "has no connection free; end another program that uses it"),
    ("53100", StoreFullError, _FULL),  # disk_full
    ("25006", StoreReadOnlyError, _READ_ONLY),  # read_only_sql_transaction
    ("42501", StoreError, _NO_ACCESS),  # insufficient_privilege
    ("28", StoreError, _NO_ACCESS),
    ("08", StoreAwayError, _LOST),
    ("57P", StoreAwayError, _LOST),  # the server shuts down
    ("25P03", StoreAwayError, _LOST),  # idle_in_transaction_session_timeout
    ("XX", StoreError, _CORRUPT),
)
"""By SQLSTATE or the class that begins it; the first that fits."""


@contextlib.contextmanager
def map_faults(name: str) -> Iterator[None]:
    """Raise a `StoreError` about the store `name` in place of what the database raised; a
    `UsageError` about text that no database takes."""
    try:
        yield
    except DBAPIError as exc:
        raise _fault(
            exc.orig or exc, name, lost=exc.connection_invalidated, connecting=not exc.statement
        ) from exc
    except PoolTimeoutError as exc:
        raise StoreBusyError(
            f"`{name}` has no connection free in this process; measure less at a time"
        ) from exc
    except sqlite3.Error as exc:
        raise _fault(exc, name) from exc
    except UnicodeEncodeError as exc:
        # The drivers let it through as it is. What a shell hands over needn't be text. It isn't
        # repeated here: it may as well be what a model wrote.
        raise UsageError(
            f"`{name}` takes no text with half a character in it, got U+"
            f"{ord(exc.object[exc.start]):04X} at position {exc.start}; type it again in UTF-8"
        ) from exc


def _primary_code(exc: BaseException | None) -> int:
    """Read the kind of an error, which SQLite keeps in the low byte of its code; 0 if unknown."""
    return (getattr(exc, "sqlite_errorcode", None) or 0) & 0xFF


def _fault(
    exc: BaseException, name: str, *, lost: bool = False, connecting: bool = False
) -> StoreError:
    sqlstate: str = getattr(exc, "sqlstate", None) or ""
    # A refusal to connect comes from libpq, before there is a statement or an SQLSTATE.
    unreachable = connecting and not sqlstate and not isinstance(exc, sqlite3.Error)
    kind: type[StoreError] = StoreError
    rule = _REFUSED
    if lost or unreachable:
        kind, rule = StoreAwayError, _LOST if lost else _UNREACHABLE
    if isinstance(exc, sqlite3.Error):
        kind, rule = _SQLITE.get(_primary_code(exc), (StoreError, _REFUSED))
    elif found := next((row for row in _POSTGRESQL if sqlstate.startswith(row[0])), None):
        _, kind, rule = found
    # The first line says what happened; further ones quote the statement, data included.
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return kind(f"`{name}` {rule} ({lines[0]})")


# Engines: how a connection is made, and how its transactions begin.

_LINES: Final = "heretix_lines"
"""Execution option of a server's engine: its open connections."""
WRITES: Final = "heretix_writes"
"""Execution option of a connection whose transactions write."""

KEYS_PER_STATEMENT: Final = 500
"""Below what any database allows. All full chunks share one statement text, compiled once."""
_CONNECT_TIMEOUT_S: Final = 10
_IDLE_TIMEOUT_MS: Final = 120_000
"""A process that is stopped amid a transaction keeps its locks no longer than this."""
_LIVELINESS: Final = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A server that went away without a word is noticed within a minute, not within hours."""


def make_engine(location: Location, *, busy_timeout_ms: int) -> Engine:
    """Make an engine for the store at `location`; nothing is opened yet."""
    # Parameters are what models wrote: an error message is no place for them.
    options: dict[str, Any] = {"hide_parameters": True}
    if location.path is not None:
        options["connect_args"] = {"timeout": busy_timeout_ms / 1000}
        engine = _watch_statements(create_engine(location.url, **options))
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    wanted = {"application_name": "heretix", "connect_timeout": _CONNECT_TIMEOUT_S, **_LIVELINESS}
    options["connect_args"] = {k: v for k, v in wanted.items() if k not in location.url.query}
    try:
        # A measurement may outlive a restart of the server: stale connections are replaced.
        engine = _watch_statements(create_engine(location.url, pool_pre_ping=True, **options))
    except ImportError as exc:
        raise ConfigError(
            f"`{location.name}` needs the PostgreSQL driver: `uv sync --extra postgres`, "
            "or `pip install '.[postgres]'` in the clone"
        ) from exc

    lines: WeakSet[Any] = WeakSet()
    engine.update_execution_options(**{_LINES: lines})

    @event.listens_for(engine, "connect")
    def set_up_postgresql(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # As long as SQLite waits for a lock, and no longer; the default is for ever.
        cursor = connection.cursor()
        cursor.execute(f"SET lock_timeout = {busy_timeout_ms:d}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_TIMEOUT_MS:d}")
        cursor.close()
        connection.commit()
        lines.add(connection)

    return engine


def _watch_statements(engine: Engine) -> Engine:
    """Note which threads wait for an engine."""
    event.listen(engine, "before_cursor_execute", lambda *_: _note_waiting())
    event.listen(engine, "after_cursor_execute", _note_answer)
    return engine


class database_now(FunctionElement[float]):  # noqa: N801
    """Seconds since 1970 by the database's own clock, whichever machine asks."""

    type = Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _now_in_sqlite(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _now_in_postgresql(_element: Any, _compiler: Any, **_options: Any) -> str:
    # That of this moment: `now()` would be when the transaction began.
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


def conflict_insert(dialect: str, table: Table) -> ConflictInsert:
    """Make an INSERT that can say what happens when the row exists, in a dialect's own way."""
    # Imported as needed: PostgreSQL's dialect brings all of its drivers along.
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as postgresql_insert

        return postgresql_insert(table)
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert

    return sqlite_insert(table)


def has_rows(connection: Connection, table: Table) -> bool:
    """Tell whether a table holds anything: what most stores never use isn't loaded for them."""
    return connection.scalar(select(literal(1)).select_from(table).limit(1)) is not None


def select_first(connection: Connection, query: Select[Any], *, lock: bool = False) -> Row | None:
    """Read the first row; with `lock`, nobody else changes it in the meantime."""
    rows = connection.execute(query.with_for_update() if lock else query)
    row = rows.mappings().first()
    return None if row is None else dict(row)


def select_rows(connection: Connection, query: Select[Any]) -> list[Row]:
    """Read all rows."""
    return [dict(row) for row in connection.execute(query).mappings()]


def filter_given(query: Select[Any], **wanted: object) -> Select[Any]:
    """Ask only for rows whose columns are as wanted; None asks for nothing."""
    return query.filter_by(**{name: value for name, value in wanted.items() if value is not None})


def _set_up_sqlite(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    # The driver would begin transactions by itself, late and never immediately: it is told not
    # to, and `_begin_sqlite` does. (Its `autocommit` attribute only exists from Python 3.12 on.)
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    # A commit survives the end of the process; a power cut may cost the last ones, nothing else.
    connection.execute("PRAGMA synchronous = NORMAL")
    # SQLite itself lowers ASCII only, and a claim may be in any language.
    connection.create_function("lower", 1, lambda text: text and text.lower(), deterministic=True)


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins as a reader and then writes fails at once when another has
    # written in between; one that takes the write lock first waits for its turn.
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# Read-only files: SQLite keeps a log and an index beside a store, and makes them to read it as
# well. On a read-only disk it can't: the store is then opened as immutable.

_NO_LOG_CAN_BE_MADE: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Size and time of a file and its log, by which a change of an immutable one is noticed."""

    path: Path
    size: int
    changed_ns: int
    log_size: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Look at the file now."""
        found = path.stat()
        return cls(path, found.st_size, found.st_mtime_ns, _log_size(path))

    def is_current(self) -> bool:
        """Check that nobody who may write to the file has done so since."""
        try:
            return FileVersion.of(self.path) == self
        except OSError:
            return False


def _is_writable(location: Location) -> bool:
    """Tell whether a file may be written. What a server allows, it says when it is asked."""
    if location.path is None or not location.path.exists():
        return True
    query = location.url.query
    read_only = query.get("mode") == "ro" or query.get("immutable") == "1"
    return not read_only and os.access(location.path, os.W_OK)


def _needs_immutable(exc: DBAPIError, location: Location) -> bool:
    """Tell that a file couldn't be read because nothing can be made beside it."""
    return (
        _primary_code(exc.orig) in _NO_LOG_CAN_BE_MADE
        and location.path is not None
        and location.path.is_file()
        and os.access(location.path, os.R_OK)
        and location.url.query.get("immutable") != "1"
    )


def make_immutable(location: Location) -> Location:
    """Name the same file as one that nobody changes; refuse one with changes in its log.

    What is in the log would be overlooked without a word.
    """
    assert location.path is not None, "only a file can be immutable"
    if _log_size(location.path) > 0:
        log = _log_of(location.path).name
        raise StoreReadOnlyError(
            f"`{location.name}` can't be read where it can't be written to: its latest changes are "
            f"still in {log}; copy both files to a folder that you may write to, and name the "
            "copy with --db or HERETIX_DB"
        )
    # Absolute: a store that is open doesn't move when the process changes its directory.
    database = f"file:{quote(str(location.path.absolute()))}"
    query = {"mode": "ro", "immutable": "1", "uri": "true"}
    url = URL.create(location.url.drivername, database=database, query=query)
    return replace(location, url=url)


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _log_size(path: Path) -> int:
    try:
        return _log_of(path).stat().st_size
    except FileNotFoundError:
        return 0


# The schema: made in a new store, brought up to date in an old one, by one process at a time.

MIGRATIONS: Final = "heretix.store:migrations"
NOTHING_MEASURED: Final = "nothing was measured here yet; run `heretix run` first"
"""Tells somebody who looks for measurements what the lack of a store means."""
_VERSION: Final = select(schema_version.c.version_num)
_ADVISORY_LOCK: Final = text("SELECT pg_advisory_xact_lock(5208208757389214464)")
"""Any number will do, as long as every Heretix asks for the same one."""
_WAL_TIMEOUT_S: Final = 10.0
_WAL_RETRY_S: Final = 0.02
_migration_lock: Final = threading.Lock()
"""Alembic works through module globals: one migration at a time in a process."""


def ensure_schema(
    engine: Engine, location: Location, *, create: bool, absent: str, writable: bool
) -> None:
    """Create or upgrade the tables. A store that is up to date costs two small reads.

    One that can't be written to has to be up to date.
    """
    with engine.connect() as connection:
        version = _read_version(connection)
    if version == HEAD:
        return
    if version is None and not create:
        raise _make_absent_error(location, absent)
    if not writable:
        _refuse_newer(location, version)
        raise StoreReadOnlyError(
            f"`{location.name}` was made by an older Heretix (schema {version}, this one reads "
            f"{HEAD}) and can't be brought up to date where it can't be written to; copy it to a "
            "folder that you may write to, and name the copy with --db or HERETIX_DB"
        )
    with _migration_lock, _migrating(engine) as connection:
        # Another process may have been quicker; under the lock the answer is final.
        version = _read_version(connection)
        if version is None:
            _create_tables(connection, location)
        elif version != HEAD:
            _refuse_newer(location, version)
            # Imported here: most find their store up to date, and it takes a third of a second.
            from alembic import command
            from alembic.config import Config

            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", MIGRATIONS)
            command.upgrade(config, "head")


def _make_absent_error(location: Location, absent: str) -> RecordError:
    return RecordError(
        f"`{location.name}` holds no store: {absent}, or name another store with --db or HERETIX_DB"
    )


def _create_tables(connection: Connection, location: Location) -> None:
    """Make a new store from the schema: replaying its history would come to the same, slower."""
    strangers = sorted(set(metadata.tables).intersection(inspect(connection).get_table_names()))
    if strangers:
        raise StoreError(
            f"`{location.name}` belongs to another program: it has a table `{strangers[0]}` that "
            "Heretix didn't make; choose another store with --db or HERETIX_DB"
        )
    metadata.create_all(connection, checkfirst=False)
    connection.execute(insert(schema_version), {"version_num": HEAD})
    connection.execute(insert(chains), CHAINS_START)


def _refuse_newer(location: Location, version: str | None) -> None:
    # Migrations are numbered from 0001 on.
    if version not in {f"{number:04d}" for number in range(1, int(HEAD) + 1)}:
        raise StoreError(
            f"`{location.name}` was made by a newer Heretix (schema {version}, this one knows "
            f"{HEAD}); upgrade Heretix, or choose another store with --db or HERETIX_DB"
        )


@contextlib.contextmanager
def _migrating(engine: Engine) -> Iterator[Connection]:
    """A transaction that no other process migrates beside."""
    with engine.connect().execution_options(**{WRITES: True}) as connection:
        if engine.dialect.name == "sqlite":
            # Rebuilding a table would delete what points to it; the keys are checked at the end.
            # The connection is detached, so that this setting dies with it.
            driver = cast("sqlite3.Connection", connection.connection.driver_connection)
            connection.detach()
            _switch_to_wal(driver)
            driver.execute("PRAGMA foreign_keys = OFF")
        with connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(_ADVISORY_LOCK)
            yield connection
            if engine.dialect.name == "sqlite":
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                assert not broken, f"a migration left rows that point nowhere: {broken[:3]}"


def _switch_to_wal(driver: sqlite3.Connection) -> None:
    """Let readers and a writer work side by side; the file remembers it.

    SQLite doesn't wait for the lock that the switch needs (some versions fail at once), so of two
    processes that make one store at the same moment the second tries again.
    """
    deadline = time.monotonic() + _WAL_TIMEOUT_S
    while True:
        try:
            driver.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() >= deadline:
                raise
            time.sleep(_WAL_RETRY_S)
        else:
            return


def _read_version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(schema_version.name):
        return None
    return cast("str | None", connection.scalar(_VERSION))


def chunked(values: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Cut values into lists of `size`; `itertools.batched` needs Python 3.12."""
    iterator = iter(values)
    while chunk := list(islice(iterator, size)):
        yield chunk


# Outages: a measurement waits for a store that is away, since what it has paid for has to go there.

WAIT_S: Final = 1800.0
"""Time for which a store that is away is waited for."""
_WATCH_S: Final = 1.0
_SILENT_LOOKS: Final = 5
"""A statement that isn't answered for so many looks is told of, and cut off once nobody waits for
it any more."""
_RETRY_S: Final = 0.2
_RETRY_CAP_S: Final = 5.0


_waiting: Final[dict[int, float]] = {}
"""Threads that wait for a database now, each since when. What a thread does with an answer, and its
wait for another thread of this process, are no time of the database."""


def _note_waiting() -> None:
    _waiting[threading.get_ident()] = time.monotonic()


def _note_answer(*_: object) -> None:
    _waiting.pop(threading.get_ident(), None)


@dataclass(slots=True)
class _Attempt:
    """A transaction under way."""

    engine: Engine
    over: threading.Event
    """Set when nobody waits for it any more."""
    seen: tuple[float, int] | None = None
    """Wait that the last look saw, and how many transactions had been answered."""
    looks: int = 0
    """Looks that saw the same since."""


class _Outage:
    """State of a store that may be away; its messages come once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._changed = threading.Lock()
        self.since: float | None = None
        self._answered = 0
        self._under_way: dict[int, _Attempt] = {}
        """Transactions by thread."""
        self._watching = False

    @contextlib.contextmanager
    def attempt(self, engine: Engine, over: threading.Event) -> Iterator[None]:
        """Watch a transaction of this thread."""
        me = threading.get_ident()
        with self._changed:
            self._under_way[me] = _Attempt(engine, over)
            begun, self._watching = self._watching, True
        if not begun:
            threading.Thread(target=self._watch, name="heretix-store-watch", daemon=True).start()
        try:
            yield
        except StoreAwayError as exc:
            self._note(str(exc))
            raise
        else:
            self._answered += 1
            if self.since is not None:
                self._note_return()
        finally:
            with self._changed:
                del self._under_way[me]

    def _note(self, said: str) -> None:
        with self._changed:
            if self.since is not None:
                return
            self.since = time.monotonic()
        self._tell(f"waiting for the store: {said}; what was answered is kept meanwhile")

    def _note_return(self) -> None:
        with self._changed:
            since, self.since = self.since, None
        if since is not None:
            self._tell(f"the store is back after {time.monotonic() - since:,.0f} s")

    def _watch(self) -> None:
        """Look now and then, in a thread of its own, which ends when there is nothing to see."""
        while True:
            time.sleep(_WATCH_S)
            with self._changed:
                under_way = dict(self._under_way)
                self._watching = bool(under_way)
            if not under_way:
                return
            self._look(under_way)

    def _look(self, under_way: Mapping[int, _Attempt]) -> None:
        """Tell of a database that is silent, and cut off what nobody waits for.

        Looks are counted, not seconds: while a process stands still, or an engine that loads lets
        no thread of it go on, nobody looks either.
        """
        for thread, attempt in under_way.items():
            since = _waiting.get(thread)
            seen = None if since is None else (since, self._answered)
            attempt.looks = attempt.looks + 1 if seen is not None and seen == attempt.seen else 0
            attempt.seen = seen
            if attempt.looks >= _SILENT_LOOKS:
                self._note(f"it hasn't answered for {_SILENT_LOOKS * _WATCH_S:g} s")
                if attempt.over.is_set():
                    _cut_lines(attempt.engine)


class RetryPolicy:
    """Waits for a store that is away, and says so. Threads may share one.

    A transaction whose connection broke is made again from its beginning, though it may have been
    committed: what is written patiently can be written twice.
    """

    def __init__(self, tell: Callable[[str], None], *, wait_s: float = WAIT_S) -> None:
        """`tell` is called with what people should know, from any thread."""
        self._outage = _Outage(tell)
        self._wait_s = wait_s
        self._over = threading.Event()

    def fork(self) -> RetryPolicy:
        """One that ends by itself, and tells with this one."""
        other = copy(self)
        other._over = threading.Event()  # noqa: SLF001
        return other

    def give_up(self) -> None:
        """Wait no longer: what doesn't work at once fails from now on."""
        self._over.set()

    def retry(self, attempt: Callable[[], _T], engine: Engine) -> _T:
        """Make an attempt again and again until the store is there."""
        pause_s = _RETRY_S
        begun = time.monotonic()
        while True:
            try:
                with self._outage.attempt(engine, self._over):
                    return attempt()
            except StoreAwayError:
                away_s = time.monotonic() - (self._outage.since or begun)
                if away_s > self._wait_s or self._over.wait(pause_s):
                    raise
                pause_s = min(_RETRY_CAP_S, 1.5 * pause_s)


def _cut_lines(engine: Engine) -> None:
    """Shut connections to a server that doesn't answer: whoever waits on one gets an error."""
    for connection in list(engine.get_execution_options().get(_LINES, ())):
        # One that is closed has no number any more.
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as s:
            s.shutdown(socket.SHUT_RDWR)


_SPOOL: Final = "spool-"

# The store: opened once, it gives transactions to the queries of this room.


class Store:
    """Transactions on SQLite or PostgreSQL, for the queries of this room. Threads may share one.

    A query is a function that takes a connection first: `store.read(query, …)` and
    `store.write(query, …)` give it a transaction of its own, `reading()` and `writing()` one for
    several. Whatever the database raises comes out as a `StoreError` that says what to do.
    """

    def __init__(
        self, engine: Engine, location: Location, *, writable: bool, file: FileVersion | None
    ) -> None:
        self._use(engine)
        self._location = location
        # SQLite has one writer. Threads that wait here get their turn as soon as it is free;
        # waiting inside SQLite means asking again every so often, and a busy writer may always
        # be quicker.
        self._turn: contextlib.AbstractContextManager[object] = (
            threading.RLock() if location.path is not None else contextlib.nullcontext()
        )
        self._held = threading.local()
        self._file = file
        self._looking_again = threading.Lock()
        self._patience: RetryPolicy | None = None
        self.writable = writable
        """False where everything can be read, and nothing kept."""

    @classmethod
    def open(
        cls,
        url_or_path: str,
        *,
        create: bool = True,
        absent: str = NOTHING_MEASURED,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    ) -> Store:
        """Open a store, made and brought up to date as needed.

        Takes a path, `sqlite:///…` or `postgresql+psycopg://…`. With `create=False` a store that
        doesn't exist is an error and nothing is made; `absent` says what that means to whoever
        asks, and what to do first. One that can't be written to is then opened to be read;
        otherwise it is refused, before anything is paid for that couldn't be kept.
        """
        location = Location.parse(url_or_path)
        engine, writable, file = _open(location, busy_timeout_ms, create=create, absent=absent)
        return cls(engine, location, writable=writable, file=file)

    def _use(self, engine: Engine) -> None:
        self._engine = engine
        self._writes = engine.execution_options(**{WRITES: True})
        # SQLite shows a transaction one moment as it is; PostgreSQL would show each statement what
        # was committed meanwhile.
        self._reads = engine
        if engine.dialect.name == "postgresql":
            self._reads = engine.execution_options(isolation_level="REPEATABLE READ")

    @property
    def name(self) -> str:
        """The store's path or URL, fit to be shown."""
        return self._location.name

    @property
    def is_file(self) -> bool:
        """The store is a file of this machine: a look-up waits for no network."""
        return self._location.path is not None

    @property
    def spool_stem(self) -> Path:
        """Beginning of the names of spools: beside a file; for a server in a folder of this
        machine, HERETIX_SPOOL or where programs of this user keep their things."""
        if self._location.path is not None:
            path = self._location.path.absolute()
            return path.with_name(f"{path.name}-spool-")
        named = os.environ.get("HERETIX_SPOOL")
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        url = self._location.url
        place = f"{url.host or url.query.get('host')}|{url.port}|{url.database}"
        name = f"{_SPOOL}{hashlib.sha256(place.encode()).hexdigest()[:16]}-"
        return (Path(named) if named else Path(state) / "heretix") / name

    @property
    def spools(self) -> list[Path]:
        """Files of answers that are on their way here, or were left on it."""
        return self._spools(self.spool_stem.name)

    @property
    def spools_beside(self) -> list[Path]:
        """List those, and all others of this machine that may be meant for it: a server has many
        addresses."""
        return self.spools if self.is_file else self._spools(_SPOOL)

    def _spools(self, begin: str) -> list[Path]:
        try:
            return sorted(p for p in self.spool_stem.parent.iterdir() if p.name.startswith(begin))
        except OSError:
            return []

    def with_retries(self, patience: RetryPolicy) -> Store:
        """The same store, for somebody who waits while it is away: in `read` and `write`."""
        other = copy(self)
        other._patience = patience  # noqa: SLF001
        return other

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def read(
        self, query: Callable[Concatenate[Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Ask one query in a transaction of its own: `store.read(select_runs, limit=20)`."""

        def attempt() -> _T:
            with self.reading() as connection:
                return query(connection, *args, **kwargs)

        return attempt() if self._patience is None else self._patience.retry(attempt, self._engine)

    def write(
        self, query: Callable[Concatenate[Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Make one change in a transaction of its own: `store.write(save_samples, batch)`."""

        def attempt() -> _T:
            with self.writing() as connection:
                return query(connection, *args, **kwargs)

        return attempt() if self._patience is None else self._patience.retry(attempt, self._engine)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a transaction that only reads, and that sees one moment."""
        held: Connection | None = getattr(self._held, "connection", None)
        if held is not None:
            yield held
            return
        file = self._file
        try:
            with (
                _timing("read"),
                map_faults(self.name),
                _waiting_for(),
                self._reads.connect() as connection,
            ):
                _note_answer()
                yield connection
                _note_waiting()
        except StoreError:
            # Half old and half new looks like damage.
            self._check(file)
            raise
        self._check(file)

    def _check(self, file: FileVersion | None) -> None:
        """Refuse what was read while somebody else wrote; the next read sees what they wrote."""
        if file is None or file.is_current():
            return
        with self._looking_again:
            if self._file is file:
                engine, _, fresh = _open(
                    self._location, BUSY_TIMEOUT_MS, create=False, absent=NOTHING_MEASURED
                )
                self._engine.dispose()
                self._use(engine)
                # Last: a reader takes the version first, and never the new one for the old file.
                self._file = fresh
        raise StoreError(
            f"`{self.name}` was changed by another program while it was read; run the command again"
        )

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Share one transaction among everything that this thread reads inside: for a page that is
        made of several look-ups. Nothing is written inside, and nothing awaited."""
        with self.reading() as connection:
            self._held.connection = connection
            try:
                yield
            finally:
                self._held.connection = None

    def shrink(self) -> int:
        """Give free pages of a file back to the disk; returns how many bytes. A server keeps its
        own for new rows."""
        path = self._location.path
        if path is None:
            return 0
        before = path.stat().st_size
        with self._turn, map_faults(self.name), self._engine.connect() as connection:
            driver = cast("sqlite3.Connection", connection.connection.driver_connection)
            driver.execute("VACUUM")
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return before - path.stat().st_size

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Begin a transaction that writes: all of it is kept, or nothing."""
        with (
            _timing("write"),
            self._turn,
            map_faults(self.name),
            _waiting_for(),
            self._writes.begin() as connection,
        ):
            _note_answer()
            yield connection
            _note_waiting()


@contextlib.contextmanager
def _waiting_for() -> Iterator[None]:
    """Wait for the database, but for the time between a statement's answer and the next one."""
    _note_waiting()
    try:
        yield
    finally:
        _note_answer()


@contextlib.contextmanager
def _timing(kind: Literal["read", "write"]) -> Iterator[None]:
    """Tell of a transaction when it ends; while nobody watches, look at no clock."""
    if not telemetry.watchers:
        yield
        return
    begun_s, error = time.perf_counter(), None
    try:
        yield
    except BaseException as exc:
        error = type(exc).__name__
        raise
    finally:
        seconds = time.perf_counter() - begun_s
        telemetry.tell(telemetry.TransactionEnded(kind=kind, seconds=seconds, error=error))


def _open(
    location: Location, busy_timeout_ms: int, *, create: bool, absent: str
) -> tuple[Engine, bool, FileVersion | None]:
    """Open an engine; with it, whether it may write, and the version of an immutable file."""
    if location.path is not None:
        try:
            if create:
                location.path.parent.mkdir(parents=True, exist_ok=True)
            elif not location.path.exists():
                raise _make_absent_error(location, absent)
        except OSError as exc:
            raise StoreError(
                f"`{location.name}` can't be made: {exc.strerror or exc}; "
                "choose another path with --db or HERETIX_DB"
            ) from exc
    writable = _is_writable(location)
    if create and not writable:
        raise StoreReadOnlyError(f"`{location.name}` {_READ_ONLY}")

    def connect(place: Location, *, writes: bool) -> Engine:
        engine = make_engine(place, busy_timeout_ms=busy_timeout_ms)
        with contextlib.ExitStack() as stack:
            stack.callback(engine.dispose)
            ensure_schema(engine, place, create=create, absent=absent, writable=writes)
            stack.pop_all()
        return engine

    with map_faults(location.name):
        try:
            return connect(location, writes=writable), writable, None
        except DBAPIError as exc:
            if create or location.path is None or not _needs_immutable(exc, location):
                raise
            # Nothing can be made beside the file.
            file = FileVersion.of(location.path)
            return connect(make_immutable(location), writes=False), False, file
