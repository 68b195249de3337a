"""Bringing a store to the newest schema, once, however many processes open it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Final, cast

from sqlalchemy import Connection, Engine, inspect, text

from heretix.errors import RecordError, StoreError, StoreReadOnlyError
from heretix.store import economy_schema, web_schema  # noqa: F401  (their tables join `metadata`)
from heretix.store.engine import WRITES
from heretix.store.schema import HEAD, metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from alembic.config import Config

    from heretix.store.location import Location

__all__ = ["NOTHING_MEASURED", "absent_store", "alembic_config", "ensure_schema"]

_VERSION: Final = text("SELECT version_num FROM alembic_version")
_ADVISORY_LOCK: Final = text("SELECT pg_advisory_xact_lock(5208208757389214464)")
"""Any number will do, as long as every Heretix asks for the same one."""
_WAL_TIMEOUT_S: Final = 10.0
_WAL_RETRY_S: Final = 0.02
NOTHING_MEASURED: Final = "nothing was measured here yet; run `heretix run` first"
"""What the lack of a store means to somebody who looks for measurements."""
_alembic_lock: Final = threading.Lock()
"""Alembic works through module globals: one migration at a time in a process."""


def ensure_schema(
    engine: Engine, location: Location, *, create: bool, absent: str, writable: bool
) -> None:
    """Create or upgrade the tables. A store that is up to date costs two small reads.

    One that can't be written to has to be up to date.
    """
    with engine.connect() as connection:
        version = _version(connection)
    if version == HEAD:
        return
    if version is None and not create:
        raise absent_store(location, absent)
    if not writable:
        with engine.connect() as connection:
            _refuse_newer(connection, location, version)
        raise StoreReadOnlyError(
            f"`{location.name}` was made by an older Heretix (schema {version}, this one reads "
            f"{HEAD}) and can't be brought up to date where it can't be written to; copy it to a "
            "folder that you may write to, and name the copy with --db or HERETIX_DB"
        )
    with _alembic_lock, _migrating(engine) as connection:
        # Another process may have been quicker; under the lock the answer is final.
        version = _version(connection)
        if version != HEAD:
            _upgrade(connection, location, version)


def absent_store(location: Location, absent: str) -> RecordError:
    """The answer to a question about a store that doesn't exist."""
    return RecordError(
        f"`{location.name}` holds no store: {absent}, or name another store with --db or HERETIX_DB"
    )


def alembic_config(connection: Connection) -> Config:
    """What Alembic's commands need to work on `connection`, inside its transaction."""
    # Imported here and below: most commands find their store up to date and never need it.
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "heretix.store:migrations")
    return config


def _upgrade(connection: Connection, location: Location, version: str | None) -> None:
    from alembic import command

    if version is None:
        _refuse_strangers(connection, location)
    else:
        _refuse_newer(connection, location, version)
    command.upgrade(alembic_config(connection), "head")


def _refuse_newer(connection: Connection, location: Location, version: str | None) -> None:
    from alembic.script import ScriptDirectory

    migrations = ScriptDirectory.from_config(alembic_config(connection)).walk_revisions()
    if version not in {migration.revision for migration in migrations}:
        raise StoreError(
            f"`{location.name}` was made by a newer Heretix (schema {version}, this one knows "
            f"{HEAD}); upgrade Heretix, or choose another store with --db or HERETIX_DB"
        )


def _refuse_strangers(connection: Connection, location: Location) -> None:
    strangers = sorted(set(metadata.tables).intersection(inspect(connection).get_table_names()))
    if strangers:
        raise StoreError(
            f"`{location.name}` belongs to another program: it has a table `{strangers[0]}` that "
            "Heretix didn't make; choose another store with --db or HERETIX_DB"
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


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return cast("str | None", connection.scalar(_VERSION))
