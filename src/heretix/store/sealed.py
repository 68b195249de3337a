"""A file that can't be written to, opened so that it can be read all the same.

SQLite keeps a log and an index beside a store, and makes them to read it as well. On a read-only
disk it can't: the store is then opened as what it is there, a file that nobody changes.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

from sqlalchemy import URL

from heretix.errors import StoreReadOnlyError

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.exc import DBAPIError

    from heretix.store.location import Location

__all__ = ["Seal", "can_be_written", "is_sealed", "sealed"]

_NO_LOG_CAN_BE_MADE: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})


@dataclass(frozen=True, slots=True)
class Seal:
    """How a file was when it was opened as one that nobody changes."""

    path: Path
    size: int
    changed_ns: int
    log_size: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Look at the file now."""
        found = path.stat()
        return cls(
            path=path,
            size=found.st_size,
            changed_ns=found.st_mtime_ns,
            log_size=_log_size(path),
        )

    def is_whole(self) -> bool:
        """Nobody who may write to the file has done so since."""
        try:
            return Seal.of(self.path) == self
        except OSError:
            return False


def can_be_written(location: Location) -> bool:
    """False for a file that may only be read. What a server allows, it says when it is asked."""
    if location.path is None or not location.path.exists():
        return True
    query = location.url.query
    if query.get("mode") == "ro" or query.get("immutable") == "1":
        return False
    return os.access(location.path, os.W_OK)


def is_sealed(exc: DBAPIError, location: Location) -> bool:
    """A file couldn't be read because nothing can be made beside it."""
    code = getattr(exc.orig, "sqlite_errorcode", None)
    return (
        code is not None
        and code & 0xFF in _NO_LOG_CAN_BE_MADE
        and location.path is not None
        and location.path.is_file()
        and os.access(location.path, os.R_OK)
        and location.url.query.get("immutable") != "1"
    )


def sealed(location: Location) -> Location:
    """The same file as one that nobody changes; refused where its log holds some of what it says.

    What is in the log would be overlooked without a word.
    """
    assert location.path is not None, "only a file can be sealed"
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
