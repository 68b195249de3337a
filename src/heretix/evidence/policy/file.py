"""Policy files: YAML in; rules, source lists and problems with their lines out.

One bad rule doesn't hide the next: all problems of a file are found in one go. Lists that users
bring are CSV, JSON or plain lines, pinned by SHA-256: a list decides what a model gets to read, so
a file whose hash isn't the pinned one is refused, whatever changed in it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
)

from heretix.core.canonical import sha256_hex
from heretix.core.validation import explain
from heretix.core.yaml_lines import Document, YamlFault, hint, listed, load
from heretix.evidence.policy.rules import (
    Entry,
    Kind,
    Level,
    Problem,
    Rule,
    SourceClass,
    read_pattern,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def _check_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("must be letters, digits, '.', '_' and '-' only")
    return text


def _check_sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise ValueError("must be 64 hexadecimal digits in lower case")
    return text


def _shape(value: object) -> str:
    return "<map>" if isinstance(value, dict) else "<list>" if isinstance(value, list) else "<one>"


# Tags stand in brackets, so that they can be told from keys in the place of an error.
Text = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[Text, AfterValidator(_check_name)]
Class = Annotated[SourceClass, Field(strict=False)]
Texts = Annotated[
    Annotated[Text, Tag("<one>")] | Annotated[list[Text], Tag("<list>")],
    Discriminator(lambda value: _shape(value).replace("map", "one")),
]
Members = Annotated[
    Annotated[Text, Tag("<one>")]
    | Annotated[list[Text], Tag("<list>")]
    | Annotated[dict[str, Texts], Tag("<map>")],
    Discriminator(_shape),
]
ListFormat = Literal["csv", "json", "jsonl", "lines"]


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, str_strip_whitespace=True, populate_by_name=True
    )


class ListSpec(_Model):
    """Instructions of a policy for reading a list."""

    file: Text
    sha256: Annotated[Text, AfterValidator(_check_sha256)] | None = None
    format: ListFormat | None = None
    """None goes by the file's name."""
    domain: Text = "domain"
    """The column, or key, that holds the domain."""
    class_column: Text | None = Field(None, alias="class")
    classes: dict[str, Class | None] | None = None
    """What each value of `class_column` means; None leaves the row out."""

    def content(self) -> dict[str, Any]:
        """Everything that decides how the list is read; where the file lies doesn't."""
        return self.model_dump(by_alias=True, exclude={"file"})


class _PolicyFile(_Model):
    version: Name
    about: Text | None = None
    extends: Text | None = None
    rules: list[Any]


class _RuleFile(_Model):
    id: Name
    cls: Class | None = Field(None, alias="class")
    facts: Texts | None = None
    suffix: Members | None = None
    domain: Members | None = None
    path: Members | None = None
    list: ListSpec | None = None
    any: Any = None


MAX_LIST_BYTES: Final = 64 * 1024 * 1024
_BY_SUFFIX: Final = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".txt": "lines"}


class ListRefused(Exception):  # noqa: N818 - never seen outside: it becomes a `Problem`
    """The list can't be used; the message says why and what to do."""


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
        raise ListRefused(
            f"`format` must be said for {path.name!r}: one of {', '.join(get_args(ListFormat))}"
        )
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
    got = sha256_hex(data)
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
                    f"{hint(name, columns)}; columns: {', '.join(columns)}"
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
            f"{hint(value, list(classes))}; give it a class, or `null` to leave such rows out"
        )
    return classes[value]


@dataclass(frozen=True, slots=True)
class PolicyDraft:
    """A file as read, before what it extends is added."""

    version: str | None
    extends: str | None
    extends_line: int
    rules: tuple[Rule, ...]
    problems: tuple[Problem, ...]


M = TypeVar("M", _PolicyFile, _RuleFile)


def read_policy(text: str, source: str, folder: Path) -> PolicyDraft:
    """Read a policy's text; lists are looked for in `folder`."""
    faults: list[YamlFault] = []
    rules: list[Rule] = []
    file, extends_line = None, 1
    try:
        document = load(text)
        if document.values is None:
            raise YamlFault(1, f"is empty; a policy has {listed(tuple(_PolicyFile.model_fields))}")
        extends_line = document.line_of(("extends",))
        file = _validate(_PolicyFile, document, ())
    except _Faults as exc:
        faults += exc.faults
    except YamlFault as exc:
        faults.append(exc)
    for place in range(len(file.rules) if file else 0):
        reader = _RuleReader(document, ("rules", place), source, folder)
        try:
            rules.append(reader.read())
        except _Faults as exc:
            faults += exc.faults
        except YamlFault as exc:
            faults.append(exc)
    faults += _twins(rules)
    problems = tuple(Problem(Level.ERROR, source, fault.line, str(fault)) for fault in faults)
    version, extends = (file.version, file.extends) if file else (None, None)
    return PolicyDraft(version, extends, extends_line, tuple(rules), problems)


class _Faults(Exception):  # noqa: N818 - caught by whoever reads the file
    def __init__(self, faults: list[YamlFault]) -> None:
        super().__init__(*faults)
        self.faults = faults


def _validate(model: type[M], document: Document, path: tuple[str | int, ...]) -> M:
    """The part of a file at `path`; everything that is wrong with it, with its line."""
    value = document.values
    for part in path:
        value = value[part]
    known = [field.alias or name for name, field in model.model_fields.items()]
    if not isinstance(value, dict):
        what = "a rule" if path else "the policy"
        problem = f"{what} must hold keys ({listed(known)}), got {value!r}"
        raise YamlFault(document.line_of(path), problem)
    try:
        return model.model_validate(value, by_name=False)
    except ValidationError as exc:
        faults = []
        for error in exc.errors():
            place: tuple[str | int, ...] = tuple(
                part for part in error["loc"] if not str(part).startswith("<")
            )
            problem = explain({**error, "loc": place}, known)
            # YAML reads 5, 1.0, yes and 2026-01-01 as something else than text.
            typed = not isinstance(error["input"], dict | list | None)
            if error["type"] == "string_type" and typed:
                problem += "; put it in quotes"
            faults.append(YamlFault(document.line_of((*path, *place)), problem))
        raise _Faults(faults) from exc


def _twins(rules: Sequence[Rule]) -> Iterator[YamlFault]:
    lines: dict[str, int] = {}
    for rule in rules:
        if rule.id in lines:
            yield YamlFault(rule.line, f"`{rule.id}` is also on line {lines[rule.id]}; rename one")
        lines.setdefault(rule.id, rule.line)


@dataclass(frozen=True, slots=True)
class _RuleReader:
    document: Document
    place: tuple[str | int, ...]
    source: str
    folder: Path

    def read(self) -> Rule:
        """The rule, or what is wrong with it."""
        file = _validate(_RuleFile, self.document, self.place)
        line = self.document.line_of(self.place)
        given = [kind for kind in Kind if getattr(file, kind) is not None]
        if len(given) != 1:
            kinds = listed(tuple(Kind))
            raise YamlFault(line, f"`{file.id}` must have exactly one of {kinds}, got {len(given)}")
        kind, facts = given[0], _texts(file.facts)
        pin: dict[str, Any] | None = None
        skipped: tuple[Problem, ...] = ()
        if file.list is not None:
            found = self._list(file, file.list, line)
            entries, skipped, pin = found.entries, found.skipped, file.list.content()
        elif file.cls is None:
            classes = listed(tuple(SourceClass))
            raise YamlFault(line, f"`{file.id}` has no `class`; one of {classes}")
        elif kind is Kind.ANY:
            if file.any is not True:
                raise YamlFault(self._line(kind), f"`any` must be true, got {file.any!r}")
            entries = ()
        else:
            entries = tuple(self._members(kind, getattr(file, kind), file.cls))
        if not facts and not (entries and all(entry.facts for entry in entries)):
            raise YamlFault(
                line,
                f"`{file.id}` has no `facts`; say what is known about these sources, not how good "
                "they are",
            )
        return Rule(
            id=file.id,
            kind=kind,
            cls=file.cls,
            facts=facts,
            entries=entries,
            source=self.source,
            line=line,
            pin=pin,
            skipped=skipped,
        )

    def _line(self, *path: str | int) -> int:
        return self.document.line_of((*self.place, *path))

    def _list(self, file: _RuleFile, spec: ListSpec, line: int) -> SourceList:
        if (spec.class_column is None) != (spec.classes is None):
            problem = "`class` and `classes` go together: a column, and its meanings"
            raise YamlFault(self._line("list"), problem)
        if (file.cls is None) == (spec.class_column is None):
            raise YamlFault(
                line,
                f"`{file.id}` must say either `class` for the whole list, or `class` and `classes` "
                "inside `list`",
            )
        try:
            return read_list(spec, self.folder, file.cls)
        except ListRefused as exc:
            raise YamlFault(self._line("list"), f"`{file.id}`: {exc}") from exc

    def _members(
        self, kind: Kind, members: str | list[str] | dict[str, Any], cls: SourceClass
    ) -> Iterator[Entry]:
        """Entries of a rule: one pattern, a list of them, or a mapping from patterns to facts."""
        found: list[tuple[str | int, str, tuple[str, ...]]]
        if isinstance(members, dict):
            found = [(key, key, _texts(facts)) for key, facts in members.items()]
        else:
            found = [(place, text, ()) for place, text in enumerate(_texts(members))]
        lines: dict[str, int] = {}
        for place, written, facts in found:
            entry = self._entry(kind, written, cls, facts, self._line(kind, place))
            if entry.pattern in lines:
                problem = f"`{entry.pattern}` is also on line {lines[entry.pattern]}; keep one"
                raise YamlFault(entry.line, problem)
            lines[entry.pattern] = entry.line
            yield entry

    def _entry(
        self, kind: Kind, written: str, cls: SourceClass, facts: tuple[str, ...], line: int
    ) -> Entry:
        pattern = read_pattern(written)
        if pattern is None:
            raise YamlFault(line, f"`{kind}` {written!r} names no host")
        host, prefix, open_ended = pattern
        if kind is Kind.PATH and not prefix:
            raise YamlFault(
                line, f"`path` {written!r} has no path; write `host/folder`, or use `domain`"
            )
        if kind is not Kind.PATH and prefix:
            raise YamlFault(line, f"`{kind}` {written!r} has a path; use `path` for it")
        if kind is Kind.DOMAIN and "." not in host:
            raise YamlFault(line, f"`domain` {written!r} is no domain; use `suffix` for it")
        return Entry(host, prefix, open_ended, cls, facts, line)


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else () if value is None else (value,)
