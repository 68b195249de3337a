"""What databases complain of, in our own words: each foreign error is mapped here and only here."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from heretix.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mapped_faults", "unwritable"]

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
    ("08", StoreError, _LOST),
    ("57P", StoreError, _LOST),  # the server shuts down
    ("XX", StoreError, _CORRUPT),
)
"""By SQLSTATE or the class that begins it; the first that fits."""


@contextlib.contextmanager
def mapped_faults(name: str) -> Iterator[None]:
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


def unwritable(name: str) -> StoreReadOnlyError:
    """The answer to whoever has to write to a store that can only be read."""
    return StoreReadOnlyError(f"`{name}` {_READ_ONLY}")


def _primary_code(exc: BaseException) -> int | None:
    """SQLite keeps the kind of an error in the low byte of its code."""
    code: int | None = getattr(exc, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _fault(
    exc: BaseException, name: str, *, lost: bool = False, connecting: bool = False
) -> StoreError:
    if isinstance(exc, sqlite3.Error):
        kind, rule = _SQLITE.get(_primary_code(exc) or 0, (StoreError, _REFUSED))
    else:
        sqlstate: str | None = getattr(exc, "sqlstate", None)
        kind, rule = _server_fault(sqlstate, lost=lost, connecting=connecting)
    # The first line says what happened; further ones quote the statement, data included.
    return kind(f"`{name}` {rule} ({_first_line(exc)})")


def _server_fault(
    sqlstate: str | None, *, lost: bool, connecting: bool
) -> tuple[type[StoreError], str]:
    for prefix, kind, rule in _POSTGRESQL:
        if sqlstate is not None and sqlstate.startswith(prefix):
            return kind, rule
    if lost:
        return StoreError, _LOST
    # A refusal to connect comes from libpq, before there is a statement or an SQLSTATE.
    return StoreError, _UNREACHABLE if connecting and sqlstate is None else _REFUSED


def _first_line(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    return lines[0] if lines else type(exc).__name__
