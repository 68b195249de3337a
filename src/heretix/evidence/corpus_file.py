"""The file of a corpus: its tables, how it is opened, and what SQLite complains of."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Final

from heretix.errors import StoreBusyError, StoreError, StoreFullError
from heretix.evidence.unspaced import spaced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["mapped_faults", "open_file", "transaction"]

_APPLICATION_ID: Final = 0x48455243  # "HERC"
_SCHEMA_VERSION: Final = 2
_UNSPACED_VERSION: Final = 1
"""Texts in scripts without spaces were indexed as they stand, and not found."""
_BUSY_TIMEOUT_S: Final = 10.0

_SCHEMA: Final = """
CREATE TABLE texts (
  id INTEGER PRIMARY KEY,
  text_sha256 TEXT NOT NULL UNIQUE,
  title TEXT NOT NULL,
  text TEXT NOT NULL
);
CREATE TABLE sources (
  key TEXT PRIMARY KEY,
  text_id INTEGER NOT NULL REFERENCES texts (id),
  doc_id TEXT NOT NULL,
  url TEXT,
  host TEXT NOT NULL,
  title TEXT NOT NULL,
  author TEXT,
  published TEXT,
  published_method TEXT,
  published_confidence REAL,
  retrieved_at TEXT NOT NULL,
  raw_sha256 TEXT NOT NULL,
  meta TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sources_by_text ON sources (text_id, published, host);
CREATE INDEX sources_by_doc_id ON sources (doc_id);
CREATE VIRTUAL TABLE words USING fts5 (
  title, text, content = 'texts', content_rowid = 'id',
  tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO words (words, rank) VALUES ('rank', 'bm25(3.0, 1.0)');
INSERT INTO words (words, rank) VALUES ('hashsize', 16777216);
INSERT INTO words (words, rank) VALUES ('automerge', 8);
"""
# A title's words count threefold. The last two settings make fewer and larger segments, and half
# again as many documents a second. The index by text serves filters without a look at the rows.


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to the corpus at `path`, which is made if there is none."""
    with mapped_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            _set_up(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. The write lock is taken first, so that the wait for it comes first too."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        # A full disk has ended the transaction already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def mapped_faults(path: Path) -> Iterator[None]:
    """Raise a `StoreError` about the corpus in place of what SQLite or the disk raised."""
    try:
        yield
    except sqlite3.Error as exc:
        raise _mapped(exc, path) from exc
    except OSError as exc:
        raise StoreError(f"`{path}` can't be opened: {exc.strerror or exc}") from exc


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; refuse a file that is something else."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA cache_size = -65536")
    # Merging the index frees many pages: they needn't be wiped, nor copied at every commit.
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    # A commit survives the end of the process; a power cut may cost the last ones, nothing else.
    connection.execute("PRAGMA synchronous = NORMAL")
    if _application_id(connection) == 0:
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("PRAGMA journal_mode = WAL")
        with transaction(connection):
            _create(connection, path)
    elif _application_id(connection) != _APPLICATION_ID:
        raise _foreign(path)
    if _version(connection) == _UNSPACED_VERSION:
        with transaction(connection):
            _index_again(connection)
    if (version := _version(connection)) != _SCHEMA_VERSION:
        raise StoreError(
            f"`{path}` must have version {_SCHEMA_VERSION}, got {version}; "
            "use the Heretix that made it, or build the corpus again"
        )


def _create(connection: sqlite3.Connection, path: Path) -> None:
    if _application_id(connection) == _APPLICATION_ID:
        return  # Another process was faster.
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise _foreign(path)
    for statement in _SCHEMA.split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")


def _index_again(connection: sqlite3.Connection) -> None:
    """Build the index anew, with characters of scripts without spaces one by one."""
    if _version(connection) != _UNSPACED_VERSION:
        return  # Another process was faster.
    connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
    texts = connection.execute("SELECT id, title, text FROM texts")
    connection.executemany(
        "INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)",
        ((text_id, spaced(title), spaced(text)) for text_id, title, text in texts),
    )
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _application_id(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


def _foreign(path: Path) -> StoreError:
    return StoreError(f"`{path}` must be a corpus, got a database of another program")


def _mapped(exc: sqlite3.Error, path: Path) -> StoreError:
    if "no such module: fts5" in str(exc):
        return StoreError("`sqlite3` must have FTS5 to search a corpus; use a Python built with it")
    # SQLite keeps the kind of an error in the low byte of its code.
    match (getattr(exc, "sqlite_errorcode", None) or 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusyError(f"`{path}` is locked by another process; wait, then try again")
        case sqlite3.SQLITE_FULL:
            return StoreFullError(f"`{path}` has no space left; free some, then try again")
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"`{path}` must be a corpus, got another kind of file")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(f"`{path}` is damaged; build the corpus again")
        case _:
            return StoreError(f"`{path}` can't be read or written: {exc}")
