"""Files of claims: CSV, TSV, JSON, JSON Lines, text and Parquet.

A file's rows are kept whole: their order, their duplicates, their `id` and every other column. What
can't be kept (two columns of one name, a cell beyond the header, half a character) is refused with
its line.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from heretix.core.errors import ConfigError, MissingPartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

STDIN: Final = "-"
CLAIM, ID = "claim", "id"
_DEPTH_MAX: Final = 32
"""Lists and objects within each other, in a cell: records are written and read by recursion."""
_CELL_CHARS: Final = 2**24
_HALF: Final = re.compile("[\ud800-\udfff]")
# The module's own limit, 128 kB, is less than a document that stands in a cell.
csv.field_size_limit(max(_CELL_CHARS, csv.field_size_limit()))


class Row(NamedTuple):
    """One row of a file: where it stands (`line 3`, `item 3`), the claim, its id, other columns."""

    where: str
    claim: str
    claim_id: str | None
    columns: tuple[tuple[str, Any], ...]


class _Cells(NamedTuple):
    where: str
    values: Mapping[str, Any]


def read_rows(name: str, column: str | None = None) -> Iterator[Row]:
    """Read the rows of a file (`-` is standard input), duplicates too.

    `column` names the one that holds the claim, where it isn't called `claim`.
    """
    with _naming("claims_file", name):
        for cells in _read(name, column):
            yield _row_of(cells, column)


class WrittenNumber(str):
    """A number that no number can hold (NaN, 1e400), as it is written: text, but no claim."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def read_cells(name: str, called: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Read the cells of a file's rows by their columns' names, each row with where it stands.

    `called` is what the user knows the file as.
    """
    with _naming(called, name):
        return list(_read(name, None))


def read_sent(name: str, content: bytes) -> list[str]:
    """Read the claims of a file that was sent: by its ending, else one a line.

    The column may be written `Claim`; cells that are empty are passed over.
    """
    reader = _READERS.get(Path(name).suffix.lower(), _read_text_rows)
    with _naming("file", name):
        found = []
        for cells in reader(content.decode("utf-8-sig")):
            columns = (column for column in cells.values if column.strip().lower() == CLAIM)
            found.append(_row_of(cells, next(columns, CLAIM)).claim)
    return [claim for claim in found if claim.strip()]


def _read(name: str, column: str | None) -> Iterator[_Cells]:
    return _read_piped_rows(column) if name == STDIN else _read_file_rows(Path(name))


@contextmanager
def _naming(called: str, name: str) -> Iterator[None]:
    """Say of which file a mistake is."""
    where = f"`{called}` {'standard input' if name == STDIN else name}"
    try:
        yield
    except ConfigError as exc:
        raise ConfigError(f"{where} {exc}") from exc
    except OSError as exc:
        raise ConfigError(f"{where} can't be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{where} isn't UTF-8 text; save it as UTF-8") from exc


def _row_of(cells: _Cells, column: str | None) -> Row:
    wanted = column or CLAIM
    if wanted not in cells.values:
        others = ", ".join(f"`{name}`" for name in cells.values) or "nothing"
        hint = "" if column else "; `--column NAME` says which one holds the claim"
        raise ConfigError(f"{cells.where}: needs a column `{wanted}`, got {others}{hint}")
    text, given = cells.values[wanted], cells.values.get(ID)
    if not isinstance(text, str) or isinstance(text, WrittenNumber):
        raise ConfigError(f"{cells.where}: `{wanted}` must be text, got {text!r}")
    if isinstance(given, bool) or not isinstance(given, str | int | float | None):
        raise ConfigError(f"{cells.where}: `{ID}` must be text or a number, got {given!r}")
    own = tuple((name, cell) for name, cell in cells.values.items() if name not in {wanted, ID})
    for name, cell in ((ID, given), *own):
        if wrong := _find_unstorable((name, cell)):
            raise ConfigError(f"{cells.where}: {name!r} {wrong}")
    return Row(cells.where, text, None if given in {None, ""} else str(given), own)


def _find_unstorable(value: Any, depth: int = -1) -> str | None:
    """Say what no record can hold of a cell; None where all of it fits."""
    if isinstance(value, str):
        half = None if value.isascii() else _HALF.search(value)
        return half and f"holds half a character (U+{ord(half[0]):04X}); remove it"
    if depth > _DEPTH_MAX:
        return f"holds lists or objects more than {_DEPTH_MAX} deep; make it text"
    parts = value.items() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple):
        return None
    return next(filter(None, (_find_unstorable(part, depth + 1) for part in parts)), None)


def _read_file_rows(path: Path) -> Iterator[_Cells]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None and path.suffix.lower() != ".parquet":
        kinds = ", ".join([*_READERS, ".parquet"])
        raise ConfigError(f"must end in one of {kinds}, got {path.name!r}")
    if reader is None:
        yield from _read_parquet_rows(path)
    else:
        yield from reader(path.read_text(encoding="utf-8-sig"))


def _read_piped_rows(column: str | None) -> Iterator[_Cells]:
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError(
            "is a terminal: pipe claims into the command, such as `cat claims.csv | heretix run "
            "--claims-file -`"
        )
    text = sys.stdin.buffer.read().decode("utf-8-sig")
    yield from _READERS[_sniff(text, column or CLAIM)](text)


def _sniff(text: str, column: str) -> str:
    """Tell the format of piped text: JSON by its first letter, a table by its header."""
    start = text.lstrip()[:1]
    first = next((line for line in _LINES.split(text) if line.strip()), "")
    if start == "[":
        return ".json"
    if start in {"{", '"'} and not first.startswith(f'"{column}"'):
        return ".jsonl"
    for ending, separator in ((".tsv", "\t"), (".csv", ",")):
        if column in next(csv.reader([first], delimiter=separator), []):
            return ending
    return ".txt"


_SEPARATORS: Final = re.compile(r"[;,|\t]")
_LINES: Final = re.compile(r"\r\n|\n|\r")
"""Ends of lines. `splitlines` knows more of them, which may stand within a claim."""


def _read_text_rows(text: str) -> Iterator[_Cells]:
    for number, line in enumerate(_LINES.split(text), start=1):
        if line.strip():
            yield _Cells(f"line {number}", {CLAIM: line})


def _read_separated_rows(text: str, delimiter: str) -> Iterator[_Cells]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    try:
        header = next(filter(None, reader), [])
        _check_header(header)
        for cells in reader:
            if not cells:
                continue
            if len(cells) > len(header):
                raise ConfigError(
                    f"line {reader.line_num}: has {len(cells)} cells, and the header has "
                    f"{len(header)}; put what holds a {'tab' if delimiter != ',' else 'comma'} "
                    "in quotes"
                )
            yield _Cells(f"line {reader.line_num}", dict(zip(header, cells, strict=False)))
    except csv.Error as exc:
        said = (
            "a quote begins and doesn't end"
            if "end of data" in str(exc)
            else "a cell that begins with a quote goes on behind the closing one; put the whole "
            'cell in quotes, and write each " within it twice'
            if "expected after" in str(exc)
            else exc
        )
        raise ConfigError(f"line {reader.line_num}: {said}") from exc


def _check_header(header: Sequence[str]) -> None:
    if not header:
        raise ConfigError("has no header: the first line names the columns, one of them `claim`")
    twice = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if twice:
        raise ConfigError(f"line 1: the column `{twice[0]}` stands twice; rename one of them")
    # What spreadsheets call CSV has semicolons where the comma is the decimal sign.
    if len(header) == 1 and header[0] != CLAIM and CLAIM in _SEPARATORS.split(header[0]):
        raise ConfigError(
            f"line 1: the columns {header[0]!r} are parted by another character than the name of "
            "the file says; save it with commas as .csv, or with tabs as .tsv"
        )


def _read_json_lines(text: str) -> Iterator[_Cells]:
    for number, line in enumerate(_LINES.split(text), start=1):
        if not line.strip():
            continue
        try:
            row = _read_json(line)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"line {number}: not JSON ({exc})") from exc
        except ConfigError as exc:
            raise ConfigError(f"line {number}: {exc}") from exc
        yield _object_row(f"line {number}", row)


def _read_json_rows(text: str) -> Iterator[_Cells]:
    try:
        rows = _read_json(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"isn't JSON ({exc})") from exc
    if not isinstance(rows, list):
        raise ConfigError('must hold a list: `["A claim.", …]` or `[{"claim": …}, …]`')
    for number, row in enumerate(rows, start=1):
        yield _object_row(f"item {number}", row)


def _read_json(text: str) -> Any:
    """Read JSON; a number that no number can hold stays as it is written, as text."""
    return json.loads(
        text,
        parse_constant=WrittenNumber,
        parse_int=_read_integer,
        parse_float=_read_decimal,
        object_pairs_hook=_refuse_duplicate_keys,
    )


def _read_integer(text: str) -> int | WrittenNumber:
    try:
        return int(text)
    except ValueError:
        return WrittenNumber(text)


def _read_decimal(text: str) -> float | WrittenNumber:
    return number if math.isfinite(number := float(text)) else WrittenNumber(text)


def _refuse_duplicate_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the key `{twice}` stands twice in an object; rename one of them")
    return values


def _object_row(where: str, row: Any) -> _Cells:
    if isinstance(row, str):
        return _Cells(where, {CLAIM: row})
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: needs an object with a text `claim`")
    return _Cells(where, row)


def _read_parquet_rows(path: Path) -> Iterator[_Cells]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as exc:
        raise MissingPartError(
            "`claims_file` in Parquet needs pyarrow: `uv sync --extra parquet`, or save it as CSV"
        ) from exc
    try:
        file = parquet.ParquetFile(path)
        _check_header(file.schema_arrow.names)
        batches: Iterable[Any] = file.iter_batches()
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield _Cells(f"row {number}", {name: _as_json(value) for name, value in row.items()})
    except ArrowException as exc:
        raise ConfigError(f"isn't Parquet that can be read ({exc})") from exc


def _as_json(value: Any) -> Any:
    """A cell as JSON has it: dates, decimals and bytes as text."""
    return _read_json(json.dumps(value, default=_as_text))


def _as_text(value: Any) -> str:
    """Bytes that are text are that text, as older writers of Parquet leave it; others are hex."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


_READERS: Final[Mapping[str, Callable[[str], Iterator[_Cells]]]] = {
    ".csv": lambda text: _read_separated_rows(text, ","),
    ".tsv": lambda text: _read_separated_rows(text, "\t"),
    ".json": _read_json_rows,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".txt": _read_text_rows,
}
