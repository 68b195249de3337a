"""Lists of sources that users bring: CSV, JSON or plain lines, pinned by SHA-256.

A list decides what a model gets to read, so a changed list is another policy: a file whose hash
isn't the pinned one is refused, whatever changed in it.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.rules import Entry, Level, Problem, SourceClass, read_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["FORMATS", "ListRefused", "ListSpec", "SourceList", "read_list"]

MAX_LIST_BYTES: Final = 64 * 1024 * 1024
FORMATS: Final = ("csv", "json", "jsonl", "lines")
_BY_SUFFIX: Final = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".txt": "lines"}


class ListRefused(Exception):  # noqa: N818 - never seen outside: it becomes a `Problem`
    """The list can't be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSpec:
    """How a policy says that a list is to be read."""

    file: str
    sha256: str | None
    format: str | None = None
    """One of `FORMATS`; None goes by the file's name."""
    domain: str = "domain"
    """The column, or key, that holds the domain."""
    class_column: str | None = None
    classes: Mapping[str, SourceClass | None] | None = None
    """What each value of `class_column` means; None leaves the row out."""

    def content(self) -> dict[str, Any]:
        """What decides how the list is read. Where the file lies is no part of it."""
        return {
            "sha256": self.sha256,
            "format": self.format,
            "domain": self.domain,
            "class": self.class_column,
            "classes": None if self.classes is None else dict(self.classes),
        }


@dataclass(frozen=True, slots=True)
class SourceList:
    """A list as read."""

    entries: tuple[Entry, ...]
    skipped: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    domain: object
    cls: object
    line: int


def read_list(spec: ListSpec, folder: Path, cls: SourceClass | None) -> SourceList:
    """Read a list; every row gets `cls`, or the class that `spec` gives its value."""
    path = folder / spec.file
    text = _pinned_text(path, spec)
    form = spec.format or _BY_SUFFIX.get(path.suffix.lower())
    if form is None:
        raise ListRefused(f"`format` must be said for {path.name!r}: one of {', '.join(FORMATS)}")
    entries: list[Entry] = []
    skipped: list[Problem] = []
    for row in _rows(text, form, spec):
        row_cls = cls if spec.class_column is None else _class_of(row, spec)
        if row_cls is None:
            continue
        pattern = read_pattern(row.domain) if isinstance(row.domain, str) else None
        if pattern is None:
            problem = f"{str(row.domain)[:80]!r} names no host; the row is left out"
            skipped.append(Problem(Level.WARNING, spec.file, row.line, problem))
            continue
        host, prefix, open_ended = pattern
        entries.append(Entry(host, prefix, open_ended, row_cls, line=row.line))
    if not entries:
        raise ListRefused(f"no row of {path.name!r} gives a host; check `domain` and `classes`")
    return SourceList(tuple(entries), tuple(skipped))


def _pinned_text(path: Path, spec: ListSpec) -> str:
    try:
        if path.stat().st_size > MAX_LIST_BYTES:
            raise ListRefused(
                f"`file` {spec.file!r} must have at most {MAX_LIST_BYTES:,} bytes, "
                f"got {path.stat().st_size:,}"
            )
        data = path.read_bytes()
    except OSError as exc:
        raise ListRefused(f"`file` {spec.file!r} can't be read: {exc.strerror}") from exc
    got = hashlib.sha256(data).hexdigest()
    if spec.sha256 is None:
        raise ListRefused(f"`sha256` is missing; a list is pinned. {spec.file!r} has {got}")
    if got != spec.sha256:
        raise ListRefused(
            f"`file` {spec.file!r} isn't the pinned one: pinned {spec.sha256}, got {got}; "
            "restore the file, or read what changed and pin the new hash"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ListRefused(f"`file` {spec.file!r} isn't UTF-8 text") from exc


def _rows(text: str, form: str, spec: ListSpec) -> Iterator[_Row]:
    if form == "csv":
        return _csv_rows(text, spec)
    if form == "json":
        return _json_rows(_json(text, 1, spec), spec)
    lines = enumerate(text.splitlines(), start=1)
    if form == "jsonl":
        return (_json_row(_json(line, n, spec), n, spec) for n, line in lines if line.strip())
    bare = ((n, line.partition("#")[0].strip()) for n, line in lines)
    return (_Row(value, None, n) for n, value in bare if value)


def _csv_rows(text: str, spec: ListSpec) -> Iterator[_Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = list(reader.fieldnames or ())
        for key, name in (("domain", spec.domain), ("class", spec.class_column)):
            if name is not None and name not in columns:
                raise ListRefused(
                    f"`{key}` names the column {name!r}, and {spec.file!r} has none of that name"
                    f"{_hint(name, columns)}; columns: {', '.join(columns)}"
                )
        for row in reader:
            value = row[spec.class_column] if spec.class_column else None
            yield _Row(row[spec.domain], value, reader.line_num)
    except csv.Error as exc:
        raise ListRefused(f"{spec.file!r} line {reader.line_num} isn't CSV: {exc}") from exc


def _json_rows(whole: object, spec: ListSpec) -> Iterator[_Row]:
    if isinstance(whole, dict):
        # An object from domains to values is as frequent as a list of records.
        pairs = enumerate(whole.items(), start=1)
        return (_Row(domain, value, number) for number, (domain, value) in pairs)
    if not isinstance(whole, list):
        raise ListRefused(f"`file` {spec.file!r} must hold a JSON list or object")
    return (_json_row(item, number, spec) for number, item in enumerate(whole, start=1))


def _json(text: str, line: int, spec: ListSpec) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ListRefused(f"{spec.file!r} line {line} isn't JSON: {exc}") from exc
    return value


def _json_row(item: object, number: int, spec: ListSpec) -> _Row:
    if isinstance(item, dict):
        value = item.get(spec.class_column) if spec.class_column else None
        return _Row(item.get(spec.domain), value, number)
    return _Row(item, None, number)


def _class_of(row: _Row, spec: ListSpec) -> SourceClass | None:
    classes = spec.classes or {}
    value = "" if row.cls is None else str(row.cls).strip()
    if value not in classes:
        raise ListRefused(
            f"{spec.file!r} line {row.line}: `classes` doesn't say what {value!r} means"
            f"{_hint(value, list(classes))}; give it a class, or `null` to leave such rows out"
        )
    return classes[value]


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f" (did you mean `{near[0]}`?)" if near else ""
