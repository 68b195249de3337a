"""A corpus: documents in one SQLite file, searched by words (FTS5, ranked by BM25). A text is
stored and indexed once, with the title that it first came with, however many addresses it stands
at; every address keeps its own title, author and dates. Documents go in by batches, each in a
transaction of its own, so that an interruption loses the batch under way and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
import threading
import time
import unicodedata
from collections import Counter
from dataclasses import dataclass, fields
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, Unpack

from heretix.core.canonical import canonical_json
from heretix.core.errors import ConfigError, RecordError, StoreBusyError, StoreError, StoreFullError
from heretix.evidence.document import Document
from heretix.evidence.policy.publisher import host_of, read_domains
from heretix.evidence.search import MAX_K, Filters, Hit
from heretix.evidence.sources.extract import Failure
from heretix.evidence.text.fold import is_unspaced, pair_characters, space_characters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

_APPLICATION_ID: Final = 0x48455243  # "HERC"
_SCHEMA_VERSION: Final = 2
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


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
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
def _map_faults(path: Path) -> Iterator[None]:
    """Raise a `StoreError` about the corpus in place of what SQLite or the disk raised."""
    try:
        yield
    except sqlite3.Error as exc:
        if "no such module: fts5" in str(exc):
            message = "`sqlite3` must have FTS5 to search a corpus; use a Python built with it"
            raise StoreError(message) from exc
        # SQLite keeps the kind of an error in the low byte of its code.
        kind, message = _FAULTS.get(
            (getattr(exc, "sqlite_errorcode", None) or 0) & 0xFF,
            (StoreError, f"can't be read or written: {exc}"),
        )
        raise kind(f"`{path}` {message}") from exc
    except OSError as exc:
        raise StoreError(f"`{path}` can't be opened: {exc.strerror or exc}") from exc


_LOCKED: Final = (StoreBusyError, "is locked by another process; wait, then try again")
_FAULTS: Final[dict[int, tuple[type[StoreError], str]]] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: (StoreFullError, "has no space left; free some, then try again"),
    sqlite3.SQLITE_NOTADB: (StoreError, "must be a corpus, got another kind of file"),
    sqlite3.SQLITE_CORRUPT: (StoreError, "is damaged; build the corpus again"),
}


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; refuse a file that is something else."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA cache_size = -65536")
    # Merging the index frees many pages: they needn't be wiped, nor copied at every commit.
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    # A commit survives the end of the process; a power cut may cost the last ones, nothing else.
    connection.execute("PRAGMA synchronous = NORMAL")
    foreign = StoreError(f"`{path}` must be a corpus, got a database of another program")
    if _pragma(connection, "application_id") == 0:
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("PRAGMA journal_mode = WAL")
        with _transaction(connection):
            # Another process may have been faster.
            if _pragma(connection, "application_id") == 0:
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                    raise foreign
                for statement in _SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        raise foreign
    if (version := _pragma(connection, "user_version")) != _SCHEMA_VERSION:
        raise StoreError(
            f"`{path}` must have version {_SCHEMA_VERSION}, got {version}; "
            "use the Heretix that made it, or build the corpus again"
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


SUFFIX: Final = ".sqlite"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_BATCH_DOCUMENTS: Final = 2000
_BATCH_CHARS: Final = 8_000_000
_BATCH_S: Final = 5.0
"""Pages from the network arrive slowly; what has arrived is kept at least this often."""

_MAX_TERMS: Final = 64
_MAX_TERM_CHARS: Final = 64
_SCORED_ROWS: Final = 10_000
"""A query scores about this many rows at most, at one to two microseconds each."""
_SNIPPET_CHARS: Final = 280
_WORD: Final = re.compile(r"[^\W_]+")

_FIELDS: Final = tuple(field.name for field in fields(Document))
_COLUMNS: Final = ", ".join(
    f"{'t' if name in {'text', 'text_sha256'} else 's'}.{name}" for name in _FIELDS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddReport:
    """Counts of documents added, and the failures."""

    added: int = 0
    unchanged: int = 0
    replaced: int = 0  # Known addresses with another text, or with other facts about the same text
    duplicates: int = 0  # New addresses of texts that the corpus had already
    failed: tuple[Failure, ...] = ()

    @property
    def total(self) -> int:
        """Every document and failure that was seen."""
        return self.added + self.unchanged + self.replaced + self.duplicates + len(self.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusStats:
    """Counts of what a corpus holds."""

    documents: int
    texts: int
    hosts: int
    undated: int
    earliest: date | None
    latest: date | None
    characters: int
    file_bytes: int


class _Row(NamedTuple):
    """The row that the corpus has at an address: its text, and what is stated beside it."""

    text_id: int
    text_sha256: str
    facts: list[str | None]


def corpus_path(folder: Path, name: str) -> Path:
    """Path of the corpus `name` in `folder`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "`corpus` must be a name of letters, digits, dots, dashes and underscores, "
            f"got {name!r}"
        )
    return folder / f"{name}{SUFFIX}"


def find_corpora(folder: Path) -> list[str]:
    """The corpora in `folder`."""
    return sorted(path.stem for path in folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []


class Corpus:
    """One corpus, open. Its methods may be called from several threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> Self:
        """Open the corpus at `path`, made if there is none; without `create` it must exist."""
        if not create and not path.is_file():
            raise RecordError(
                f"`{path.stem}` must be a corpus, got none at {path}; "
                "make one with `heretix corpus add`"
            )
        with _map_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                _set_up(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def add(
        self,
        documents: Iterable[Document | Failure],
        progress: Callable[[int], None] | None = None,
    ) -> AddReport:
        """Take documents in; `progress` is called with the number seen so far, after each."""
        counts: Counter[str] = Counter()
        failed: list[Failure] = []
        batch: list[Document] = []
        chars, begun = 0, time.monotonic()
        for seen, document in enumerate(documents, start=1):
            if isinstance(document, Failure):
                failed.append(document)
            elif not _is_storable(document):
                reason = "holds half a surrogate pair, which no file can take"
                failed.append(Failure(repr(_key(document)), reason))
            else:
                batch.append(document)
                chars += len(document.text)
            now = time.monotonic()
            if len(batch) >= _BATCH_DOCUMENTS or chars > _BATCH_CHARS or now - begun > _BATCH_S:
                counts += self._write(batch)
                batch, chars, begun = [], 0, now
            if progress:
                progress(seen)
        counts += self._write(batch)
        return AddReport(**counts, failed=tuple(failed))

    def search(
        self,
        query: str,
        k: int,
        as_of: date | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """The `k` documents that fit `query` best; as in `Search`."""
        if not 1 <= k <= MAX_K:
            raise ConfigError(f"`k` must be from 1 to {MAX_K}, got {k}")
        where, values = _filters(as_of, read_domains(include), read_domains(exclude))
        with self._lock, _map_faults(self.path):
            # Nothing but letters and digits gets through: no syntax of FTS5 does.
            words = _WORD.findall(space_characters(unicodedata.normalize("NFC", query).lower()))
            terms = dict.fromkeys(word[:_MAX_TERM_CHARS] for word in pair_characters(words))
            expression, chosen = self._expression(list(terms)[:_MAX_TERMS])
            if not expression:
                return []
            rows = self._db.execute(
                # FTS5 gives rows by rank, and a cross join keeps the order of its tables: the
                # query ends at the k-th hit. Only names and placeholders are put together here.
                f"SELECT w.rank, {_COLUMNS} FROM words w "  # noqa: S608
                "CROSS JOIN sources s ON s.text_id = w.rowid CROSS JOIN texts t ON t.id = w.rowid "
                f"WHERE w.words MATCH ? {where} ORDER BY w.rank LIMIT ?",
                (expression, *values, k),
            ).fetchall()
        found = [(rank, _document(row)) for rank, *row in rows]
        # Copies of one text have one rank: the earliest first, undated ones last.
        found.sort(key=lambda one: (one[0], one[1].published or date.max, one[1].url or ""))
        unique: dict[str, Hit] = {}
        for rank, document in found:
            unique[document.doc_id] = unique.get(document.doc_id) or Hit(
                url=document.url,
                title=document.title,
                snippet=_snippet(document.text, chosen),
                published=document.published,
                score=-float(rank),
                document=document,
            )
        return list(unique.values())

    def stats(self) -> CorpusStats:
        """Count what the corpus holds."""
        with self._lock, _map_faults(self.path):
            documents, hosts, undated, earliest, latest = self._db.execute(
                "SELECT count(*), count(DISTINCT nullif(host, '')), count(*) - count(published), "
                "min(published), max(published) FROM sources"
            ).fetchone()
            texts, characters, file_bytes = self._db.execute(
                "SELECT count(*), coalesce(sum(length(text)), 0), (SELECT page_count * page_size "
                "FROM pragma_page_count, pragma_page_size) FROM texts"
            ).fetchone()
        return CorpusStats(
            documents=documents,
            texts=texts,
            hosts=hosts,
            undated=undated,
            earliest=_day(earliest),
            latest=_day(latest),
            characters=characters,
            file_bytes=file_bytes,
        )

    def _write(self, batch: Sequence[Document]) -> Counter[str]:
        """Store one batch in one transaction; count what became of its documents."""
        counts: Counter[str] = Counter()
        if not batch:
            return counts
        with self._lock, _map_faults(self.path), _transaction(self._db):
            known_rows = self._db.execute(
                "SELECT s.key, t.id, t.text_sha256, s.title, s.author, s.published, s.meta "
                "FROM json_each(?) j "
                "JOIN sources s ON s.key = j.value JOIN texts t ON t.id = s.text_id",
                (json.dumps([_key(document) for document in batch]),),
            )
            rows = {key: _Row(text, sha256, facts) for key, text, sha256, *facts in known_rows}
            known_texts = self._db.execute(
                "SELECT t.text_sha256, t.id FROM json_each(?) j "
                "JOIN texts t ON t.text_sha256 = j.value",
                (json.dumps([document.text_sha256 for document in batch]),),
            )
            text_ids: dict[str, int] = dict(known_texts.fetchall())
            (top,) = self._db.execute("SELECT coalesce(max(id), 0) FROM texts").fetchone()
            texts: list[tuple[Any, ...]] = []
            stale: set[int] = set()
            sources: dict[str, tuple[Any, ...]] = {}
            for document in batch:
                key, sha256 = _key(document), document.text_sha256
                known, facts = rows.get(key), _facts(document)
                if known is not None and (known.text_sha256, known.facts) == (sha256, facts):
                    counts["unchanged"] += 1
                    continue
                text_id = text_ids.get(sha256)
                outcome = "added" if text_id is None else "duplicates"
                if text_id is None:
                    text_id = top = top + 1
                    text_ids[sha256] = text_id
                    texts.append((text_id, sha256, document.title, document.text))
                if known is not None:
                    outcome = "replaced"
                    stale.add(known.text_id)
                counts[outcome] += 1
                rows[key] = _Row(text_id, sha256, facts)
                sources[key] = _source_row(key, text_id, document)
            self._db.executemany("INSERT INTO texts VALUES (?, ?, ?, ?)", texts)
            self._db.executemany(
                "INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)",
                [(text_id, *_index_text(title, text)) for text_id, _, title, text in texts],
            )
            places = ", ".join("?" * 13)
            insert = f"INSERT OR REPLACE INTO sources VALUES ({places})"  # noqa: S608
            self._db.executemany(insert, sources.values())
            self._drop_orphans(stale)
        return counts

    def _drop_orphans(self, text_ids: Iterable[int]) -> None:
        """Forget texts that stand at no address any more."""
        for text_id in text_ids:
            orphan = self._db.execute(
                "SELECT title, text FROM texts WHERE id = ? "
                "AND NOT EXISTS (SELECT 1 FROM sources WHERE text_id = texts.id)",
                (text_id,),
            ).fetchone()
            if orphan:
                # The index holds no texts of its own: it has to be told what it forgets.
                self._db.execute(
                    "INSERT INTO words (words, rowid, title, text) VALUES ('delete', ?, ?, ?)",
                    (text_id, *_index_text(*orphan)),
                )
                self._db.execute("DELETE FROM texts WHERE id = ?", (text_id,))

    def _expression(self, terms: Sequence[str]) -> tuple[str, list[str]]:
        """An FTS5 expression that scores few enough rows, and its terms, rarest first. Rare words
        say most about what is wanted: they are joined by OR, as many as the budget allows. When
        even the rarest is too common, words are joined by AND until few rows fit."""
        counted = sorted(
            (count, term) for term in terms if (count := self._count(_quote_term(term)))
        )
        chosen: list[str] = []
        budget = _SCORED_ROWS
        for count, term in counted:
            if count > budget:
                break
            chosen.append(term)
            budget -= count
        if chosen or not counted:
            return " OR ".join(map(_quote_term, chosen)), chosen
        joined: list[str] = []
        for _, term in counted:
            attempt = " AND ".join(map(_quote_term, [*joined, term]))
            found = self._count(attempt)
            if found:
                joined.append(term)
            if 0 < found < _SCORED_ROWS:
                break
        return " AND ".join(map(_quote_term, joined)), joined

    def _count(self, expression: str) -> int:
        """Count texts that fit, up to one more than the budget: counting on would cost time."""
        (count,) = self._db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)",
            (expression, _SCORED_ROWS + 1),
        ).fetchone()
        return int(count)


def _index_text(title: str, text: str) -> tuple[str, str]:
    """Title and text as the index gets them. Where a document has no title of its own, its first
    words stand in for one: they mustn't count four times."""
    line = text.partition("\n")[0]
    stand_in = title == text or (title != line and line.startswith(title))
    return "" if stand_in else space_characters(title), space_characters(text)


def _quote_term(term: str) -> str:
    """A phrase of FTS5: characters that are indexed one by one must follow each other."""
    return f'"{space_characters(term).strip()}"'


def _filters(
    as_of: date | None, only: Sequence[str], never: Sequence[str]
) -> tuple[str, list[str]]:
    clauses: list[str] = []
    values: list[str] = []
    if as_of is not None:
        clauses.append("AND (s.published IS NULL OR s.published <= ?)")
        values.append(as_of.isoformat())
    within = "s.host = ? OR substr(s.host, -length(?)) = ?"
    for word, names in (("AND", only), ("AND NOT", never)):
        if names:
            clauses.append(f"{word} ({' OR '.join([within] * len(names))})")
            for name in names:
                values += [name, f".{name}", f".{name}"]
    return " ".join(clauses), values


def _snippet(text: str, terms: Sequence[str]) -> str:
    """A stretch of `text` around the rarest word of the query that is found as it was asked."""
    lowered = text.lower()
    # Inside a script without spaces there is no edge of a word to stand at.
    edges = ((t, "" if is_unspaced(t[0]) else r"\b") for t in terms)
    places = (found.start() for t, edge in edges if (found := re.search(edge + t, lowered)))
    start = max(0, next(places, 0) - _SNIPPET_CHARS // 3)
    if start:
        start = text.find(" ", start) + 1
    cut = " ".join(text[start : start + _SNIPPET_CHARS].split())
    before, after = "…" if start else "", "…" if start + _SNIPPET_CHARS < len(text) else ""
    return f"{before}{cut}{after}"


def _document(row: Sequence[Any]) -> Document:
    values = dict(zip(_FIELDS, row, strict=True))
    values["published"] = _day(values["published"])
    values["meta"] = MappingProxyType(json.loads(values["meta"]))
    return Document(**values)


def _facts(document: Document) -> list[str | None]:
    """Facts stated beside a text; when it was read, and from which bytes, is none."""
    published = document.published.isoformat() if document.published else None
    return [document.title, document.author, published, canonical_json(dict(document.meta))]


def _source_row(key: str, text_id: int, document: Document) -> tuple[Any, ...]:
    title, author, published, meta = _facts(document)
    return (
        key,
        text_id,
        document.doc_id,
        document.url,
        host_of(document.url),
        title,
        author,
        published,
        document.published_method,
        document.published_confidence,
        document.retrieved_at,
        document.raw_sha256,
        meta,
    )


def _key(document: Document) -> str:
    """Key of a document that comes again: its address, its path, or its id."""
    if document.url:
        return document.url.partition("#")[0]
    return document.meta.get("path") or document.doc_id


def _is_storable(document: Document) -> bool:
    said = (document.text, document.title, document.author or "", document.url or "")
    try:
        "".join((*said, *document.meta, *document.meta.values())).encode()
    except UnicodeEncodeError:
        return False
    return True


def _day(text: str | None) -> date | None:
    return date.fromisoformat(text) if text else None


class LocalSearch:
    """Searches one corpus, which the caller opens and closes."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    @property
    def name(self) -> str:
        """`local:` and the corpus's name."""
        return f"local:{self.corpus.path.stem}"

    async def search(self, query: str, k: int, **filters: Unpack[Filters]) -> list[Hit]:
        """Search as `Search` says; every hit comes with its document."""
        return await asyncio.to_thread(self.corpus.search, query, k, **filters)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""
