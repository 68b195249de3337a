"""Policy files: read from YAML, with the source lists they pin; problems told with their lines. One
bad rule doesn't hide the next: all problems of a file are found in one go. Lists that users bring
are CSV, JSON or plain lines, pinned by SHA-256: a list decides what a model gets to read, so a file
whose hash isn't the pinned one is refused, whatever changed in it."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args

import pydantic
from pydantic import Field, StringConstraints, Tag, TypeAdapter, ValidationError

from heretix.core.canonical import sha256_hex
from heretix.core.errors import PolicyError
from heretix.core.validation import explain, find_faults
from heretix.core.yaml_lines import Document, YamlFault, hint, list_names, load
from heretix.evidence.policy.policy import (
    Entry,
    Kind,
    Level,
    Policy,
    Problem,
    Rule,
    SourceClass,
    read_pattern,
)
from heretix.evidence.policy.publisher import Address, carries_many, is_public_suffix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    _Doubts = Iterator[tuple[Level, int, str]]

DEFAULT_POLICY: Final = "default"
MAX_DEPTH: Final = 8  # Policies that extend one another, at most
MAX_LIST_BYTES: Final = 64 * 1024 * 1024
_BY_SUFFIX: Final = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".txt": "lines"}
_NAME: Final = (r"[A-Za-z0-9._-]+", "must be letters, digits, '.', '_' and '-' only")
_SHA256: Final = (r"[0-9a-f]{64}", "must be 64 hexadecimal digits in lower case")


def _require_match(pattern: str, rule: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(rule)
    return text


def _shape(value: object) -> str:
    return "<map>" if isinstance(value, dict) else "<list>" if isinstance(value, list) else "<one>"


# Tags stand in brackets, so that they can be told from keys in the place of an error.
Text = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[Text, pydantic.AfterValidator(partial(_require_match, *_NAME))]
Sha256 = Annotated[Text, pydantic.AfterValidator(partial(_require_match, *_SHA256))]
Class = Annotated[SourceClass, Field(strict=False)]
Texts = Annotated[
    Annotated[Text, Tag("<one>")] | Annotated[list[Text], Tag("<list>")],
    pydantic.Discriminator(lambda value: _shape(value).replace("map", "one")),
]
Members = Annotated[
    Annotated[Text, Tag("<one>")]
    | Annotated[list[Text], Tag("<list>")]
    | Annotated[dict[str, Texts], Tag("<map>")],
    pydantic.Discriminator(_shape),
]
ListFormat = Literal["csv", "json", "jsonl", "lines"]


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, str_strip_whitespace=True, populate_by_name=True
    )


class _ListSpec(_Model):
    """Instructions of a policy for reading a list."""

    file: Text
    sha256: Sha256 | None = None
    format: ListFormat | None = None  # None goes by the file's name
    domain: Text = "domain"  # The column, or key, that holds the domain
    class_column: Text | None = Field(None, alias="class")
    classes: dict[str, Class | None] | None = None
    """Class for each value of `class_column`; None leaves the row out."""
    facts: list[Text] = []  # Columns that stand as facts beside each row


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
    list: _ListSpec | None = None
    any: Any = None


class _Row(pydantic.BaseModel):
    """A row of a list: what should be a domain, and the value that its class goes by."""

    model_config = pydantic.ConfigDict(coerce_numbers_to_str=True, str_strip_whitespace=True)

    line: int
    domain: Any = None
    value: str | bool | None = None
    facts: tuple[str, ...] = ()


_JSON: Final[TypeAdapter[Any]] = TypeAdapter(Any)
_JSON_LIST: Final[TypeAdapter[Any]] = TypeAdapter(list[Any] | dict[str, Any])
M = TypeVar("M", _PolicyFile, _RuleFile)


class _ListRefused(Exception):  # noqa: N818 - never seen outside: it becomes a `Problem`
    """The list can't be used; the message says why and what to do."""


def load_policy(name: str | Path = DEFAULT_POLICY) -> Policy:
    """The packaged policy `default`, or the policy in a YAML file."""
    policy, problems = _load(name)
    errors = [problem for problem in problems if problem.level is Level.ERROR]
    if policy is None or errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise PolicyError(f"{errors[0]}{more}", problems=tuple(problems))
    return policy


def check_file(name: str | Path) -> tuple[Policy | None, tuple[Problem, ...]]:
    """Load the policy `name`, if that can be, with everything wrong or doubtful about it."""
    policy, problems = _load(name)
    return policy, (*problems, *(check_policy(policy) if policy else ()))


@cache
def _load_packaged() -> Policy:
    policy, problems = _assemble(DEFAULT_POLICY, [])
    assert policy is not None, problems
    return policy


def _load(name: str | Path) -> tuple[Policy | None, list[Problem]]:
    return (_load_packaged(), []) if name == DEFAULT_POLICY else _assemble(name, [])


def _assemble(name: str | Path, above: list[str]) -> tuple[Policy | None, list[Problem]]:
    """Read a policy with all that it extends; `above` are the files that led here."""
    source, text, folder = _read(name)
    draft = _read_policy(text, source, folder)
    problems = list(draft.problems)
    if draft.version is None:
        return None, problems
    rules, sources = list(draft.rules), [source]
    if draft.extends is not None:
        trail = [*above, source]
        base = DEFAULT_POLICY if draft.extends == DEFAULT_POLICY else folder / draft.extends
        if str(base) in trail or len(trail) >= MAX_DEPTH:
            circle = " -> ".join([*trail, str(base)])
            message = f"`extends` leads in a circle, or too deep: {circle}"
            return None, [*problems, Problem(Level.ERROR, source, draft.extends_line, message)]
        extended, more = _load(base) if base == DEFAULT_POLICY else _assemble(base, trail)
        problems += more
        if extended is None:
            return None, problems
        known = {rule.id: rule for rule in extended.rules}
        for rule in rules:
            if other := known.get(rule.id):
                place = f"`{other.source}` line {other.line}"
                message = f"`{rule.id}` is also in {place}; rename this one"
                problems.append(Problem(Level.ERROR, rule.source, rule.line, message))
        rules += extended.rules
        sources += extended.sources
    if any(problem.level is Level.ERROR for problem in problems):
        return None, problems
    return Policy(draft.version, tuple(rules), tuple(sources)), problems


def _read(name: str | Path) -> tuple[str, str, Path]:
    """A policy's source, text and folder."""
    if name == DEFAULT_POLICY:
        folder = Path(str(resources.files("heretix.evidence") / "policies"))
        text = (folder / f"{DEFAULT_POLICY}.yaml").read_text(encoding="utf-8")
        return DEFAULT_POLICY, text, folder
    path = Path(name)
    try:
        return str(path), path.read_text(encoding="utf-8-sig"), path.parent
    except OSError as exc:
        raise PolicyError(f"`policy` {path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise PolicyError(f"`policy` {path} isn't UTF-8 text; save it as UTF-8") from exc


@dataclass(frozen=True, slots=True)
class _Draft:
    """A file as read, before what it extends is added."""

    version: str | None
    extends: str | None
    extends_line: int
    rules: tuple[Rule, ...]
    problems: tuple[Problem, ...]


def _read_policy(text: str, source: str, folder: Path) -> _Draft:
    """Read a policy's text; lists are looked for in `folder`."""
    faults: list[YamlFault] = []
    rules: dict[str, Rule] = {}
    file, extends_line = None, 1
    try:
        document = load(text)
        if document.values is None:
            raise YamlFault(
                1, f"is empty; a policy has {list_names(tuple(_PolicyFile.model_fields))}"
            )
        extends_line = document.line_of(("extends",))
        file = _validate(_PolicyFile, document, (), faults)
    except YamlFault as fault:
        faults.append(fault)
    for place in range(len(file.rules) if file else 0):
        try:
            rule = _RuleReader(document, ("rules", place), source, folder).read(faults)
        except YamlFault as fault:
            faults.append(fault)
            continue
        if rule is not None and (twin := rules.setdefault(rule.id, rule)) is not rule:
            problem = f"`{rule.id}` is also on line {twin.line}; rename one"
            faults.append(YamlFault(rule.line, problem))
    problems = tuple(Problem(Level.ERROR, source, fault.line, str(fault)) for fault in faults)
    version, extends = (file.version, file.extends) if file else (None, None)
    return _Draft(version, extends, extends_line, tuple(rules.values()), problems)


def _validate(
    model: type[M], document: Document, path: tuple[str | int, ...], faults: list[YamlFault]
) -> M | None:
    """The part of a file at `path`; None where it is wrong, with everything in `faults`."""
    value = document.values
    for part in path:
        value = value[part]
    known = [field.alias or name for name, field in model.model_fields.items()]
    if not isinstance(value, dict):
        what = "a rule" if path else "the policy"
        problem = f"{what} must hold keys ({list_names(known)}), got {value!r}"
        raise YamlFault(document.line_of(path), problem)
    try:
        return model.model_validate(value, by_name=False)
    except ValidationError as exc:
        faults += find_faults(exc, document, path, known)
        return None


@dataclass(frozen=True, slots=True)
class _RuleReader:
    document: Document
    place: tuple[str | int, ...]
    source: str
    folder: Path

    def read(self, faults: list[YamlFault]) -> Rule | None:
        """The rule; None with what its keys get wrong in `faults`, or a fault of its meaning."""
        file = _validate(_RuleFile, self.document, self.place, faults)
        if file is None:
            return None
        given = [kind for kind in Kind if getattr(file, kind) is not None]
        if len(given) != 1:
            kinds = list_names(tuple(Kind))
            raise self._fault(f"`{file.id}` must have exactly one of {kinds}, got {len(given)}")
        kind, facts = given[0], _texts(file.facts)
        entries: tuple[Entry, ...] = ()
        skipped: tuple[Problem, ...] = ()
        if file.list is not None:
            entries, skipped = self._list(file, file.list)
        elif file.cls is None:
            raise self._fault(
                f"`{file.id}` has no `class`; one of {list_names(tuple(SourceClass))}"
            )
        elif kind is not Kind.ANY:
            entries = tuple(self._members(kind, getattr(file, kind), file.cls))
        elif file.any is not True:
            raise self._fault(f"`any` must be true, got {file.any!r}", kind)
        if not facts and not (entries and all(entry.facts for entry in entries)):
            raise self._fault(
                f"`{file.id}` has no `facts`; say what is known about these sources, not how good "
                "they are"
            )
        return Rule(
            id=file.id,
            kind=kind,
            cls=file.cls,
            facts=facts,
            entries=entries,
            source=self.source,
            line=self.document.line_of(self.place),
            # Everything that decides how the list is read; where the file lies doesn't.
            pin=file.list.model_dump(by_alias=True, exclude={"file"}) if file.list else None,
            skipped=skipped,
        )

    def _fault(self, problem: str, *path: str | int) -> YamlFault:
        return YamlFault(self.document.line_of((*self.place, *path)), problem)

    def _list(
        self, file: _RuleFile, spec: _ListSpec
    ) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
        if (spec.class_column is None) != (spec.classes is None):
            problem = "`class` and `classes` go together: a column, and its meanings"
            raise self._fault(problem, "list")
        if (file.cls is None) == (spec.class_column is None):
            raise self._fault(
                f"`{file.id}` must say either `class` for the whole list, or `class` and `classes` "
                "inside `list`"
            )
        try:
            return _read_list(spec, self.folder, file.cls)
        except _ListRefused as exc:
            raise self._fault(f"`{file.id}`: {exc}", "list") from exc

    def _members(
        self, kind: Kind, members: str | list[str] | dict[str, Any], cls: SourceClass
    ) -> Iterator[Entry]:
        """Entries of a rule: one pattern, a list of them, or a mapping from patterns to facts."""
        found: Iterable[tuple[str | int, str, Any]] = (
            ((key, key, facts) for key, facts in members.items())
            if isinstance(members, dict)
            else ((place, text, None) for place, text in enumerate(_texts(members)))
        )
        lines: dict[str, int] = {}
        for place, written, facts in found:
            pattern = read_pattern(written)
            if pattern is None:
                raise self._fault(f"`{kind}` {written!r} names no host", kind, place)
            host, prefix, open_ended = pattern
            problem = None
            if kind is Kind.PATH and not prefix:
                problem = f"`path` {written!r} has no path; write `host/folder`, or use `domain`"
            elif kind is not Kind.PATH and prefix:
                problem = f"`{kind}` {written!r} has a path; use `path` for it"
            elif kind is Kind.DOMAIN and "." not in host:
                problem = f"`domain` {written!r} is no domain; use `suffix` for it"
            line = self.document.line_of((*self.place, kind, place))
            entry = Entry(host, prefix, open_ended, cls, _texts(facts), line)
            if entry.pattern in lines:
                problem = f"`{entry.pattern}` is also on line {lines[entry.pattern]}; keep one"
            if problem:
                raise YamlFault(line, problem)
            lines[entry.pattern] = line
            yield entry


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else () if value is None else (value,)


def _read_list(
    spec: _ListSpec, folder: Path, cls: SourceClass | None
) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
    """Entries of a list, of `cls` or of the class that `spec` gives each row; and rows left out."""
    path = folder / spec.file
    text = _read_pinned(path, spec)
    form = spec.format or _BY_SUFFIX.get(path.suffix.lower())
    if form is None:
        raise _ListRefused(
            f"`format` must be said for {path.name!r}: one of {', '.join(get_args(ListFormat))}"
        )
    classes = spec.classes or {}
    entries: list[Entry] = []
    skipped: list[Problem] = []
    for row in _rows(text, form, spec):
        value = "" if row.value is None else str(row.value)
        if spec.class_column is not None and value not in classes:
            raise _ListRefused(
                f"{spec.file!r} line {row.line}: `classes` doesn't say what {value!r} means"
                f"{hint(value, list(classes))}; give it a class, or `null` to leave such rows out"
            )
        row_cls = cls if spec.class_column is None else classes[value]
        if row_cls is None:
            continue
        pattern = read_pattern(row.domain) if isinstance(row.domain, str) else None
        if pattern is None:
            problem = f"{str(row.domain)[:80]!r} names no host; the row is left out"
            skipped.append(Problem(Level.WARNING, spec.file, row.line, problem))
            continue
        entries.append(Entry(*pattern, row_cls, row.facts, row.line))
    if not entries:
        raise _ListRefused(f"no row of {path.name!r} gives a host; check `domain` and `classes`")
    return tuple(entries), tuple(skipped)


def _read_pinned(path: Path, spec: _ListSpec) -> str:
    try:
        if (size := path.stat().st_size) > MAX_LIST_BYTES:
            raise _ListRefused(
                f"`file` {spec.file!r} must have at most {MAX_LIST_BYTES:,} bytes, got {size:,}"
            )
        data = path.read_bytes()
    except OSError as exc:
        raise _ListRefused(f"`file` {spec.file!r} can't be read: {exc.strerror}") from exc
    got = sha256_hex(data)
    if spec.sha256 is None:
        raise _ListRefused(f"`sha256` is missing; a list is pinned. {spec.file!r} has {got}")
    if got != spec.sha256:
        raise _ListRefused(
            f"`file` {spec.file!r} isn't the pinned one: pinned {spec.sha256}, got {got}; "
            "restore the file, or read what changed and pin the new hash"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise _ListRefused(f"`file` {spec.file!r} isn't UTF-8 text") from exc


def _rows(text: str, form: str, spec: _ListSpec) -> Iterator[_Row]:
    if form == "csv":
        return _csv_rows(text, spec)
    if form == "lines":
        lines = enumerate(text.splitlines(), start=1)
        bare = ((line, value.partition("#")[0].strip()) for line, value in lines)
        return (_Row(line=line, domain=value) for line, value in bare if value)
    return _json_rows(text, form, spec)


def _json_rows(text: str, form: str, spec: _ListSpec) -> Iterator[_Row]:
    """Rows of JSON, which counts its items as lines, or of JSON lines."""
    line = 1
    try:
        whole = _JSON_LIST.validate_json(text) if form == "json" else text.splitlines()
        if isinstance(whole, dict):
            # An object from domains to values is as frequent as a list of records.
            whole = [{spec.domain: domain, spec.class_column: v} for domain, v in whole.items()]
        for line, part in enumerate(whole, start=1):
            if form == "jsonl" and not part.strip():
                continue
            item = _JSON.validate_json(part) if form == "jsonl" else part
            record = item if isinstance(item, dict) else {spec.domain: item}
            value = record.get(spec.class_column) if spec.class_column else None
            facts = _row_facts(record, spec)
            yield _Row(line=line, domain=record.get(spec.domain), value=value, facts=facts)
    except ValidationError as exc:
        error = exc.errors()[0]
        if error["type"] == "json_invalid":
            problem = f"{spec.file!r} line {line} isn't JSON: {error['ctx']['error']}"
        elif "value" in error["loc"]:
            problem = f"{spec.file!r} line {line}: {explain({**error, 'loc': ('class',)})}"
        else:
            problem = f"`file` {spec.file!r} must hold a JSON list or object"
        raise _ListRefused(problem) from exc


def _csv_rows(text: str, spec: _ListSpec) -> Iterator[_Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = list(reader.fieldnames or ())
        named = (("domain", spec.domain), ("class", spec.class_column))
        for key, name in (*named, *(("facts", column) for column in spec.facts)):
            if name is not None and name not in columns:
                raise _ListRefused(
                    f"`{key}` names the column {name!r}, and {spec.file!r} has none of that name"
                    f"{hint(name, columns)}; columns: {', '.join(columns)}"
                )
        for row in reader:
            value = row[spec.class_column] if spec.class_column else None
            facts = _row_facts(row, spec)
            yield _Row(line=reader.line_num, domain=row[spec.domain], value=value, facts=facts)
    except csv.Error as exc:
        raise _ListRefused(f"{spec.file!r} line {reader.line_num} isn't CSV: {exc}") from exc


def _row_facts(row: Mapping[str, Any], spec: _ListSpec) -> tuple[str, ...]:
    """The columns of a row that stand as facts; an empty one says nothing."""
    found = ((column, str(row.get(column) or "").strip()) for column in spec.facts)
    return tuple(f"{column}: {text}" for column, text in found if text)


# Doubts about a policy that can be read: rules that never apply, lists that disagree.

_SHOWN: Final = 5  # Examples that a message gives; a list may have thousands


def check_policy(policy: Policy) -> tuple[Problem, ...]:
    """List what is doubtful about a policy, in the order of its rules."""
    return tuple(
        Problem(level, rule.source, line, message)
        for order, rule in enumerate(policy.rules)
        for doubts in (
            _find_unreachable(policy, order, rule),
            _find_contradictions(rule),
            _find_wrong_kind(rule),
        )
        for level, line, message in doubts
    )


def _find_unreachable(policy: Policy, order: int, rule: Rule) -> _Doubts:
    """Entries that earlier rules decide about. An overlay does that on purpose to its base."""
    everything = next((r for r in policy.rules[:order] if r.kind is Kind.ANY), None)
    if everything is not None:
        message = (
            f"`{rule.id}` can never apply: `{everything.id}` (line {everything.line}) covers "
            "everything before it; move that one to the end"
        )
        yield Level.ERROR, rule.line, message
        return
    deciders: Counter[str] = Counter()
    other_class: list[str] = []
    for entry in rule.entries:
        # An address that every rule covers which covers all of the entry, and no other rule.
        path = f"{entry.prefix}x" if entry.open_ended else entry.prefix or "/"
        match = policy.first_match(Address(entry.host, path), before=order)
        if match is not None:
            deciders[f"`{match.rule.id}` ({match.rule.source} line {match.rule.line})"] += 1
            if match.cls is not entry.cls:
                other_class.append(f"{entry.pattern} is {match.cls}")
    names = ", ".join(sorted(deciders))
    if deciders and deciders.total() == len(rule.entries):
        message = f"`{rule.id}` can never apply: earlier rules decide all of it: {names}"
        yield Level.ERROR, rule.line, message
    elif deciders:
        differs = f"; with another class: {_join_some(other_class)}" if other_class else ""
        message = (
            f"`{rule.id}`: earlier rules decide {deciders.total()} of {len(rule.entries)} entries: "
            f"{names}{differs}"
        )
        yield Level.WARNING if other_class else Level.NOTE, rule.line, message


def _find_contradictions(rule: Rule) -> _Doubts:
    """Patterns that one list gives two classes, and rows of it that are left out."""
    first: dict[str, Entry] = {}
    conflicts = [
        f"{entry.pattern} is {earlier.cls} on line {earlier.line} and {entry.cls} on line "
        f"{entry.line}"
        for entry in rule.entries
        if (earlier := first.setdefault(entry.pattern, entry)).cls is not entry.cls
    ]
    if conflicts:
        message = (
            f"`{rule.id}` contradicts itself, and the first line counts: {_join_some(conflicts)}"
        )
        yield Level.WARNING, rule.line, message
    if rule.skipped:
        rows = _join_some([f"line {problem.line}: {problem.message}" for problem in rule.skipped])
        message = f"`{rule.id}`: {len(rule.skipped)} rows of its list are left out: {rows}"
        yield Level.WARNING, rule.line, message


def _find_wrong_kind(rule: Rule) -> _Doubts:
    """Domains that are suffixes, suffixes that are domains, and platforms taken for publishers."""
    for entry in rule.entries:
        host = entry.host
        if rule.kind is Kind.SUFFIX and not (is_public_suffix(host) or carries_many(host)):
            message = f"`suffix` `{host}` isn't a public suffix; `domain` says what is meant"
            yield Level.NOTE, entry.line, message
        if rule.kind is not Kind.DOMAIN:
            continue
        if is_public_suffix(host):
            message = f"`domain` `{host}` is a public suffix, with many owners; use `suffix`"
            yield Level.WARNING, entry.line, message
        elif entry.cls is not SourceClass.UNKNOWN and carries_many(host):
            message = (
                f"`domain` `{host}` carries many publishers, and all of them become "
                f"{entry.cls}; name the ones you mean"
            )
            yield Level.WARNING, entry.line, message


def _join_some(items: Sequence[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return "; ".join(items[:_SHOWN]) + more
