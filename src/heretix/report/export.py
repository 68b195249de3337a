"""Tables for other tools: runs, samples and transfers, as JSON Lines or Parquet, in pieces. Rows
are read a page at a time, each in a short transaction of its own. They come in the order of a key
that never changes, so that what is added meanwhile can't make a row come twice."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from heretix.core.errors import ConfigError, MissingPartError, RecordError
from heretix.sample import Sample
from heretix.store import RunSummary
from heretix.store import economy as queries
from heretix.store.runs import RunFilter, select_run_rows, select_sample_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from sqlalchemy import Connection

    from heretix.store import Store

Format = Literal["jsonl", "parquet"]
FORMATS: Final[Mapping[Format, str]] = {  # Formats, and the media type of each
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}

_PAGE: Final = 2_000
Row = dict[str, Any]
Column = tuple[str, str]  # A name, and a type as Parquet calls it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Rows that are exported: their columns, how a page is read, and the key they are sorted by."""

    columns: tuple[Column, ...]
    read: Callable[[Connection, str | None, Any], Sequence[Any]]
    """From what chooses among the rows, and the key of the last row before."""
    key: str


_TYPES: Final = {
    "str": "string",
    "str | None": "string",
    "Noncompliance | None": "string",
    "int": "int64",
    "int | None": "int64",
    "float": "float64",
    "float | None": "float64",
    "bool": "bool_",
    "bool | None": "bool_",
}


def _columns_of(record: type[Any], **others: str) -> tuple[Column, ...]:
    """The fields of a record; `others` names those of another type than their annotation says."""
    return tuple(
        (field.name, others.get(field.name) or _TYPES[str(field.type)]) for field in fields(record)
    )


_TRANSFER: Final[tuple[Column, ...]] = (
    ("seq", "int64"),
    ("id", "string"),
    ("debit", "string"),
    ("credit", "string"),
    ("amount", "int64"),
    ("currency", "string"),
    ("code", "string"),
    ("episode", "string"),
    ("group_id", "string"),
    ("body_hash", "string"),
    ("prev_hash", "string"),
    ("hash", "string"),
    ("at_ms", "int64"),
)


def _read_transfers(connection: Connection, episode: str | None, after: Any) -> list[Row]:
    found = queries.stream_transfers(connection, after_seq=after or 0, episode=episode)
    return [{name: row[name] for name, _ in _TRANSFER} for row in itertools.islice(found, _PAGE)]


_TABLES: Final[Mapping[str, _Table]] = {
    "runs": _Table(
        # Seeds go up to 2^64-1.
        columns=_columns_of(RunSummary, seed="uint64", bootstrap_seed="uint64"),
        read=lambda connection, search, after: select_run_rows(
            connection, RunFilter(search=search), limit=_PAGE, after=after
        ),
        key="run_id",
    ),
    "samples": _Table(
        columns=_columns_of(Sample),
        read=lambda connection, run_id, after: select_sample_rows(
            connection, run_id=run_id, limit=_PAGE, after=after
        ),
        key="cache_key",
    ),
    "transfers": _Table(columns=_TRANSFER, read=_read_transfers, key="seq"),
}


def format_of(path: Path) -> Format:
    """Return the format that a file's name asks for."""
    endings: Mapping[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    if (found := endings.get(path.suffix.lower())) is None:
        raise ConfigError(f"`--out` must end in .jsonl or .parquet, got {path.name!r}")
    return found


def export(
    store: Store, name: str, wanted: Format, *, chosen: str | None = None
) -> Iterator[bytes]:
    """Make a table in pieces, as they are taken. What can't work is refused before the first."""
    if name not in _TABLES:
        raise ConfigError(f"`table` must be one of {', '.join(_TABLES)}, got {name!r}")
    pages = _read_pages(store, _TABLES[name], chosen)
    if wanted == "jsonl":
        return (_lines(page) for page in pages)
    return _parquet(_pyarrow(), _TABLES[name].columns, pages)


def _read_pages(store: Store, table: _Table, chosen: str | None) -> Iterator[list[Row]]:
    after = None
    while True:
        with store.reading() as connection:
            rows = [dict(row) for row in table.read(connection, chosen, after)]
        yield rows
        if len(rows) < _PAGE:
            return
        after = rows[-1][table.key]


def write_export(path: Path, pieces: Iterator[bytes]) -> int:
    """Write beside the target and move into place; returns how many bytes there are."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary, written = Path(name), 0
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    written += file.write(piece)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as exc:
        raise RecordError(f"`{path.name}` can't be written: {exc.strerror or exc}") from exc
    return written


def _lines(page: Sequence[Row]) -> bytes:
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in page)
    # Half a surrogate pair, which a model may have written, has no UTF-8; escaped, it is JSON.
    return text.encode("utf-8", "backslashreplace")


def _pyarrow() -> ModuleType:
    try:
        module = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.parquet")
    except ImportError as exc:
        raise MissingPartError(
            "`parquet` needs pyarrow, which isn't installed: `uv sync --extra parquet`, or "
            "`pip install '.[parquet]'` in the clone; JSON Lines needs nothing"
        ) from exc
    return module


def _parquet(
    pyarrow: ModuleType, columns: tuple[Column, ...], pages: Iterator[list[Row]]
) -> Iterator[bytes]:
    """Make each page a row group, handed on as soon as it is written."""
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in columns])
    sink = _Sink()
    with pyarrow.parquet.ParquetWriter(sink, schema) as writer:
        for page in pages:
            rows = [{name: _storable(value) for name, value in row.items()} for row in page]
            if rows:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            yield sink.take()
    yield sink.take()


def _storable(value: object) -> object:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


class _Sink(io.RawIOBase):
    """A buffer that a writer fills, and a reader empties."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._written += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._written

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
