"""Tables for other tools: runs, executions, samples and transfers, as CSV, JSON Lines or Parquet.
Rows are read a page at a time, each in a short transaction of its own. They come in the order of a
key that never changes, so that what is added meanwhile can't make a row come twice."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import itertools
import json
import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from heretix.core.canonical import canonical_json
from heretix.core.errors import ConfigError, MissingPartError, RecordError
from heretix.report.words import cell_text
from heretix.sample import Sample
from heretix.store import RunSummary
from heretix.store import economy as queries
from heretix.store.runs import (
    RunFilter,
    select_execution_rows,
    select_run_rows,
    select_sample_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from sqlalchemy import Connection, RowMapping

    from heretix.config import Claim
    from heretix.measurement.record import Artifact, RunRecord, SampleRecord
    from heretix.store import Store

Format = Literal["csv", "tsv", "jsonl", "parquet"]
FORMATS: Final[Mapping[Format, str]] = {  # Formats, and the media type of each
    "csv": "text/csv; charset=utf-8",
    "tsv": "text/tab-separated-values; charset=utf-8",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}

_PAGE: Final = 2_000
_RECORDS_PAGE: Final = 200
"""Executions are read with their records, which are large."""
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


_EXECUTION: Final[tuple[Column, ...]] = (
    ("execution_id", "string"),
    ("run_id", "string"),
    ("claim", "string"),
    ("claim_id", "string"),
    ("model", "string"),
    ("provider", "string"),
    ("prompt_version", "string"),
    ("lens", "string"),
    ("variant", "string"),
    ("K", "int64"),
    ("R", "int64"),
    ("T", "int64"),
    ("B", "int64"),
    ("status", "string"),
    ("prob_true_rpl", "float64"),
    ("ci_lo", "float64"),
    ("ci_hi", "float64"),
    ("stability_score", "float64"),
    ("rpl_compliance_rate", "float64"),
    ("attempted", "int64"),
    ("compliant", "int64"),
    ("failed", "int64"),
    ("from_cache", "int64"),
    ("called", "int64"),
    ("tokens_in", "int64"),
    ("tokens_out", "int64"),
    ("cost_usd", "float64"),
    ("created_at", "string"),
    ("finished_at", "string"),
    ("columns_json", "string"),
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


def _read_runs(connection: Connection, search: str | None, after: Any) -> list[Row]:
    wanted = RunFilter(search=search)
    rows = [dict(row) for row in select_run_rows(connection, wanted, limit=_PAGE, after=after)]
    for row in rows:
        row["claim_id"] = json.loads(row.pop("config_json")).get("claim_id")
    return rows


def _read_executions(connection: Connection, search: str | None, after: Any) -> list[Row]:
    wanted = RunFilter(search=search)
    rows = select_execution_rows(connection, wanted, limit=_RECORDS_PAGE, after=after)
    return [_execution_row(row) for row in rows]


def _execution_row(row: RowMapping) -> Row:
    """Make the row of one invocation; what a record says is missing where there is none (yet)."""
    asked = json.loads(row["config_json"])
    found = json.loads(row["record_json"] or row["summary_json"] or "{}")
    belief, usage = found.get("aggregates", {}), found.get("usage", {})
    ci_lo, ci_hi = belief.get("ci95") or (None, None)
    known = {**asked, **dict(row), **belief, **usage, "ci_lo": ci_lo, "ci_hi": ci_hi}
    # The user's own, of the file of claims: which there are differs from file to file.
    known["columns_json"] = canonical_json(asked["columns"]) if "columns" in asked else None
    return {name: known.get(name) for name, _ in _EXECUTION}


_GIVEN: Final = frozenset({"claim", "claim_id", "created_at", "columns_json"})


def belief_table(
    wanted: Format, artifacts: Iterable[Artifact], claims: Sequence[Claim]
) -> Iterator[bytes]:
    """Make one row a run from artifacts, with the columns that the file of `claims` has.

    A column of theirs that has the name of one of ours comes with `input_` before it.
    """
    own = _own_columns(claims)
    ours = [column for column in _EXECUTION if column[0] not in _GIVEN]
    taken = {"row", "id", "claim", *(name for name, _ in ours)}
    named: dict[str, str] = {}
    for name in own:
        named[name] = name
        while named[name] in taken or (named[name] != name and named[name] in own):
            named[name] = f"input_{named[name]}"
        taken.add(named[name])
    columns: list[Column] = [("row", "int64"), ("id", "string"), ("claim", "string")]
    columns += [(named[name], kind) for name, kind in own.items()] + ours
    rows = (
        {name: None for name, _ in columns}
        | _make_given_row(artifact, own, named)
        | _belief_row(run)
        for artifact in artifacts
        for run in artifact.runs
    )
    return write_columns(wanted, columns, _split_into_pages(rows))


def _split_into_pages(rows: Iterable[Row]) -> Iterator[list[Row]]:
    found = iter(rows)
    while page := list(itertools.islice(found, _RECORDS_PAGE)):
        yield page


_KINDS: Final = {bool: "bool_", int: "int64", float: "float64", str: "string"}


def _own_columns(claims: Sequence[Claim]) -> dict[str, str]:
    """Name the columns of a file of claims, in order, each with a type that fits all its cells."""
    kinds: dict[str, str | None] = {}
    for claim in claims:
        for name, value in claim.columns:
            kind = None if value is None else _KINDS.get(type(value), "string")
            if kind == "int64" and not -(2**63) <= value < 2**63:
                kind = "string"
            known = kinds.get(name)
            # An empty cell fits every type.
            kinds[name] = known or kind if None in {known, kind} or known == kind else "string"
    return {name: kind or "string" for name, kind in kinds.items()}


def _make_given_row(artifact: Artifact, own: Mapping[str, str], named: Mapping[str, str]) -> Row:
    """Tell what the file said in the row of an artifact."""
    if artifact.row is None:
        return {"row": 1, "id": artifact.runs[0].claim_id}
    cells = {
        named[name]: _text_of(value) if own[name] == "string" and value is not None else value
        for name, value in artifact.row.columns.items()
    }
    return {"row": artifact.row.number, "id": artifact.row.id, **cells}


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _belief_row(run: RunRecord) -> Row:
    belief, evidence = run.aggregates, run.evidence
    ci_lo, ci_hi = belief.ci95 or (None, None)
    parts = (run, run.sampling, run.aggregation, belief, run.usage)
    known = {name: value for part in parts for name, value in part}
    known |= {"variant": evidence.variant if evidence else None, "ci_lo": ci_lo, "ci_hi": ci_hi}
    wanted = ["claim", *(name for name, _ in _EXECUTION if name not in _GIVEN)]
    return {name: known[name] for name in wanted}


def read_training_pages(store: Store, search: str | None, label: str) -> Iterator[list[Row]]:
    """Read compliant answers to claims with a label, a page of executions at a time.

    An answer that several executions took from the cache is one row, that of the first of them.
    """
    from heretix.measurement.record import RunRecord

    wanted, after = RunFilter(search=search), None
    told: set[tuple[str, ...]] = set()
    while True:
        with store.reading() as connection:
            rows = select_execution_rows(connection, wanted, limit=_RECORDS_PAGE, after=after)
        if not rows:
            return
        found: list[Row] = []
        for row in rows:
            asked = json.loads(row["config_json"])
            given = asked.get("columns", {}).get(label)
            if given not in (None, "") and row["record_json"]:
                run = RunRecord.model_validate_json(row["record_json"])
                new = [one for one in run.samples if (*_answer(one), str(given)) not in told]
                told |= {(*_answer(one), str(given)) for one in new}
                found += _training_rows(run, new, given)
        yield found
        after = rows[-1]["execution_id"]


def _answer(sample: SampleRecord) -> tuple[str, str]:
    """Tell an answer from any other, one to the same question included."""
    return sample.cache_key, sample.created_at


def _training_rows(run: RunRecord, samples: Sequence[SampleRecord], label: Any) -> Iterator[Row]:
    from heretix.measurement.verify import plan_of_record

    plan = plan_of_record(run)
    for sample in samples:
        if not sample.compliant:
            continue
        prompt = plan.prompts[sample.paraphrase_idx]
        said = (("system", prompt.system), ("user", prompt.user), ("assistant", sample.raw_answer))
        yield {
            "messages": [{"role": role, "content": content} for role, content in said],
            "claim": run.claim,
            "claim_id": run.claim_id,
            "label": label,
            "prob_true": sample.prob_true,
            "prob_true_rpl": run.aggregates.prob_true_rpl,
            "model": run.model,
            "lens": run.lens,
            "execution_id": run.execution_id,
            "cache_key": sample.cache_key,
        }


def write_lines_of(pages: Iterator[list[Row]]) -> Iterator[bytes]:
    """Make rows of any shape into pieces of JSON Lines."""
    return (_lines(page) for page in pages)


def _read_transfers(connection: Connection, episode: str | None, after: Any) -> list[Row]:
    found = queries.stream_transfers(connection, after_seq=after or 0, episode=episode)
    return [{name: row[name] for name, _ in _TRANSFER} for row in itertools.islice(found, _PAGE)]


_TABLES: Final[Mapping[str, _Table]] = {
    "runs": _Table(
        # Seeds go up to 2^64-1.
        columns=(
            *_columns_of(RunSummary, seed="uint64", bootstrap_seed="uint64"),
            ("claim_id", "string"),
        ),
        read=_read_runs,
        key="run_id",
    ),
    "executions": _Table(columns=_EXECUTION, read=_read_executions, key="execution_id"),
    "samples": _Table(
        columns=_columns_of(Sample),
        read=lambda connection, run_id, after: select_sample_rows(
            connection, run_id=run_id, limit=_PAGE, after=after
        ),
        key="cache_key",
    ),
    "transfers": _Table(columns=_TRANSFER, read=_read_transfers, key="seq"),
}


def format_of(path: Path, *, option: str = "--out") -> Format:
    """Return the format that a file's name asks for; `option` is the one that named the file."""
    endings: Mapping[str, Format] = {
        ".csv": "csv",
        ".tsv": "tsv",
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".parquet": "parquet",
    }
    if (found := endings.get(path.suffix.lower())) is None:
        raise ConfigError(
            f"`{option}` must end in .csv, .tsv, .jsonl or .parquet, got {path.name!r}"
        )
    return found


def export(
    store: Store, name: str, wanted: Format, *, chosen: str | None = None
) -> Iterator[bytes]:
    """Make a table in pieces, as they are taken. What can't work is refused before the first."""
    return write_columns(wanted, columns_of(name), read_pages(store, name, chosen))


def write_columns(
    wanted: Format, columns: Sequence[Column], pages: Iterator[list[Row]]
) -> Iterator[bytes]:
    """Make rows of these columns into pieces of a file."""
    if wanted == "parquet":
        return _parquet(arrow_schema(columns), pages)
    return _texts(wanted, [column for column, _ in columns], pages)


def columns_of(name: str) -> tuple[Column, ...]:
    """Name the columns of a table, with their types."""
    if name not in _TABLES:
        raise ConfigError(f"`table` must be one of {', '.join(_TABLES)}, got {name!r}")
    return _TABLES[name].columns


def read_pages(store: Store, name: str, chosen: str | None) -> Iterator[list[Row]]:
    """Read a table page by page; `chosen` is what it chooses its rows by."""
    table, after = _TABLES[name], None
    while True:
        with store.reading() as connection:
            rows = [dict(row) for row in table.read(connection, chosen, after)]
        if not rows:
            return
        yield rows
        after = rows[-1][table.key]


def write_rows(wanted: Format, schema: Any, pages: Iterator[list[Row]]) -> Iterator[bytes]:
    """Make rows of an Arrow schema into pieces of a file."""
    return _parquet(schema, pages) if wanted == "parquet" else _texts(wanted, schema.names, pages)


def _texts(wanted: Format, names: Sequence[str], pages: Iterator[list[Row]]) -> Iterator[bytes]:
    if wanted == "jsonl":
        return (_lines(page) for page in pages)
    header = [dict(zip(names, names, strict=True))]
    delimiter = "\t" if wanted == "tsv" else ","
    return (_write_separated(names, page, delimiter) for page in itertools.chain([header], pages))


def _write_separated(names: Sequence[str], page: Sequence[Row], delimiter: str) -> bytes:
    """Write lines of CSV or TSV; what is missing is empty."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n", delimiter=delimiter)
    writer.writerows([cell_text(row[name]) for name in names] for row in page)
    return sink.getvalue().encode("utf-8", "backslashreplace")


def arrow_schema(columns: Sequence[Column]) -> Any:
    """Return columns as Arrow has them."""
    arrow = load_arrow()
    return arrow.schema([(name, getattr(arrow, kind)()) for name, kind in columns])


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
    text = "".join(
        json.dumps(row, ensure_ascii=False, allow_nan=False, default=str) + "\n" for row in page
    )
    # Half a surrogate pair, which a model may have written, has no UTF-8; escaped, it is JSON.
    return text.encode("utf-8", "backslashreplace")


def load_arrow() -> ModuleType:
    """Import pyarrow, or say how to install it."""
    try:
        module = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.parquet")
    except ImportError as exc:
        raise MissingPartError(
            "`parquet` needs pyarrow, which isn't installed: `uv sync --extra parquet`, or "
            "`pip install '.[parquet]'` in the clone; CSV and JSON Lines need nothing"
        ) from exc
    return module


def _parquet(schema: Any, pages: Iterator[list[Row]]) -> Iterator[bytes]:
    """Make each page a row group, handed on as soon as it is written."""
    pyarrow, sink = load_arrow(), _Sink()
    with pyarrow.parquet.ParquetWriter(sink, schema) as writer:
        for page in pages:
            if page:
                writer.write_table(pyarrow.Table.from_pylist(make_storable(page), schema=schema))
            yield sink.take()
    yield sink.take()


def make_storable(page: Sequence[Row]) -> list[Row]:
    """Rows with half characters spelt out: Arrow has no escape for them."""
    return [{name: _escape_surrogates(value) for name, value in row.items()} for row in page]


def _escape_surrogates(value: object) -> object:
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
