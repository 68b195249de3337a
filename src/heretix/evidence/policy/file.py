"""Read and check policy files: YAML in; rules, source lists and problems with their lines out."""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from heretix.core.yaml_lines import (
    YamlFault,
    compose,
    entries,
    hint,
    line_of,
    listed,
    shown,
    text_of,
)
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
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Lists of sources that users bring: CSV, JSON or plain lines, pinned by SHA-256.
#
# A list decides what a model gets to read, so a changed list is another policy: a file whose hash
# isn't the pinned one is refused, whatever changed in it.

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


# Reading a policy file: YAML in, rules and problems out, each problem with its file and line.
#
# One bad rule doesn't hide the next: all problems of a file are found in one go.

_POLICY_KEYS: Final = ("version", "about", "extends", "rules")
_RULE_KEYS: Final = ("id", "class", "facts", *(kind.value for kind in Kind))
_LIST_KEYS: Final = ("file", "sha256", "format", "domain", "class", "classes")
_CLASSES: Final = tuple(cls.value for cls in SourceClass)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NULL_TAG: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class PolicyDraft:
    """A file as read, before what it extends is added."""

    version: str | None
    extends: str | None
    extends_line: int
    rules: tuple[Rule, ...]
    problems: tuple[Problem, ...]


def read_policy(text: str, source: str, folder: Path) -> PolicyDraft:
    """Read a policy's text; lists are looked for in `folder`."""
    return _Reader(source, folder).read(text)


class _Reader:
    def __init__(self, source: str, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._problems: list[Problem] = []

    def read(self, text: str) -> PolicyDraft:
        version: str | None = None
        extends: str | None = None
        extends_line = 1
        rules: list[Rule] = []
        try:
            keys = _mapping(_compose(text), "the policy", _POLICY_KEYS)
            if "version" not in keys or "rules" not in keys:
                raise YamlFault(1, "`version` and `rules` must both be there")
            version = _name("version", keys["version"])
            if "about" in keys:
                _text("about", keys["about"])
            if "extends" in keys:
                extends_line = line_of(keys["extends"])
                extends = _text("extends", keys["extends"])
            for node in _items("rules", keys["rules"]):
                rule = self._rule_or_problem(node)
                if rule is not None:
                    rules.append(rule)
        except YamlFault as fault:
            self._report(fault)
        self._report_twins(rules)
        return PolicyDraft(version, extends, extends_line, tuple(rules), tuple(self._problems))

    def _report(self, fault: YamlFault) -> None:
        self._problems.append(Problem(Level.ERROR, self._source, fault.line, str(fault)))

    def _report_twins(self, rules: list[Rule]) -> None:
        lines: dict[str, int] = {}
        for rule in rules:
            if rule.id in lines:
                message = f"`{rule.id}` is also on line {lines[rule.id]}; rename one"
                self._report(YamlFault(rule.line, message))
            lines.setdefault(rule.id, rule.line)

    def _rule_or_problem(self, node: yaml.Node) -> Rule | None:
        try:
            return self._rule(node)
        except YamlFault as fault:
            self._report(fault)
            return None

    def _rule(self, node: yaml.Node) -> Rule:
        keys = _mapping(node, "a rule", _RULE_KEYS)
        if "id" not in keys:
            raise YamlFault(node, "`id` is missing; a rule has a name of its own")
        name = _name("id", keys["id"])
        kinds = [kind for kind in Kind if kind in keys]
        if len(kinds) != 1:
            raise YamlFault(
                node,
                f"`{name}` must have exactly one of {listed(tuple(Kind))}, got {len(kinds)}",
            )
        kind = kinds[0]
        cls = _class("class", keys["class"]) if "class" in keys else None
        facts = tuple(_texts("facts", keys["facts"])) if "facts" in keys else ()
        rule = self._of_kind(kind, keys[kind], cls, name, line_of(node), facts)
        if not rule.facts and not all(entry.facts for entry in rule.entries or (_NOTHING,)):
            raise YamlFault(
                node,
                f"`{name}` has no `facts`; say what is known about these sources, not how good "
                "they are",
            )
        return rule

    def _of_kind(
        self,
        kind: Kind,
        node: yaml.Node,
        cls: SourceClass | None,
        name: str,
        line: int,
        facts: tuple[str, ...],
    ) -> Rule:
        if kind is Kind.LIST:
            return self._list_rule(node, cls, name, line, facts)
        if cls is None:
            raise YamlFault(line, f"`{name}` has no `class`; one of {listed(_CLASSES)}")
        if kind is Kind.ANY and not (isinstance(node, yaml.ScalarNode) and node.value == "true"):
            raise YamlFault(node, f"`any` must be true, got {shown(node)}")
        members = () if kind is Kind.ANY else tuple(_members(kind, node, cls))
        return Rule(
            id=name,
            kind=kind,
            cls=cls,
            facts=facts,
            entries=members,
            source=self._source,
            line=line,
        )

    def _list_rule(
        self,
        node: yaml.Node,
        cls: SourceClass | None,
        name: str,
        line: int,
        facts: tuple[str, ...],
    ) -> Rule:
        spec = _list_spec(node)
        if (cls is None) == (spec.class_column is None):
            raise YamlFault(
                line,
                f"`{name}` must say either `class` for the whole list, or `class` and `classes` "
                "inside `list`",
            )
        try:
            found = read_list(spec, self._folder, cls)
        except ListRefused as exc:
            raise YamlFault(node, f"`{name}`: {exc}") from exc
        return Rule(
            id=name,
            kind=Kind.LIST,
            cls=cls,
            facts=facts,
            entries=found.entries,
            source=self._source,
            line=line,
            pin=spec.content(),
            skipped=found.skipped,
        )


_NOTHING: Final = Entry("", "", open_ended=False, cls=SourceClass.UNKNOWN)


def _members(kind: Kind, node: yaml.Node, cls: SourceClass) -> Iterator[Entry]:
    """Entries of a rule: one pattern, a list of them, or a mapping from patterns to facts."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(key, tuple(_texts(kind, value))) for key, value in node.value]
    else:
        items = _items(kind, node) if isinstance(node, yaml.SequenceNode) else [node]
        pairs = [(item, ()) for item in items]
    lines: dict[str, int] = {}
    for item, facts in pairs:
        written = _text(kind, item)
        pattern = read_pattern(written)
        if pattern is None:
            raise YamlFault(item, f"`{kind}` {written!r} names no host")
        host, prefix, open_ended = pattern
        if kind is Kind.PATH and not prefix:
            raise YamlFault(
                item, f"`path` {written!r} has no path; write `host/folder`, or use `domain`"
            )
        if kind is not Kind.PATH and prefix:
            raise YamlFault(item, f"`{kind}` {written!r} has a path; use `path` for it")
        if kind is Kind.DOMAIN and "." not in host:
            raise YamlFault(item, f"`domain` {written!r} is no domain; use `suffix` for it")
        entry = Entry(host, prefix, open_ended, cls, facts, line_of(item))
        if entry.pattern in lines:
            raise YamlFault(
                item, f"`{entry.pattern}` is also on line {lines[entry.pattern]}; keep one"
            )
        lines[entry.pattern] = entry.line
        yield entry


def _list_spec(node: yaml.Node) -> ListSpec:
    keys = _mapping(node, "`list`", _LIST_KEYS)
    if "file" not in keys:
        raise YamlFault(node, "`file` is missing; a list is read from one")
    texts = {
        key: _text(key, keys[key])
        for key in ("file", "sha256", "format", "domain", "class")
        if key in keys
    }
    sha256 = texts.get("sha256")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise YamlFault(
            keys["sha256"],
            f"`sha256` must be 64 hexadecimal digits in lower case, got {sha256!r}",
        )
    form = texts.get("format")
    if form is not None and form not in FORMATS:
        raise YamlFault(
            keys["format"],
            f"`format` must be one of {listed(FORMATS)}, got {form!r}{hint(form, FORMATS)}",
        )
    if ("class" in keys) != ("classes" in keys):
        raise YamlFault(node, "`class` and `classes` go together: a column, and its meanings")
    classes: dict[str, SourceClass | None] | None = None
    if "classes" in keys:
        meanings = keys["classes"]
        if not isinstance(meanings, yaml.MappingNode):
            raise YamlFault(meanings, "`classes` must map values to classes")
        classes = {
            name: None if value.tag == _NULL_TAG else _class("classes", value)
            for name, value in entries(meanings, what="value").items()
        }
    return ListSpec(
        file=texts["file"],
        sha256=sha256,
        format=form,
        domain=texts.get("domain", "domain"),
        class_column=texts.get("class"),
        classes=classes,
    )


def _compose(text: str) -> yaml.Node:
    root = compose(text)
    if root is None:
        raise YamlFault(1, f"is empty; a policy has {listed(_POLICY_KEYS)}")
    return root


def _mapping(node: yaml.Node, what: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise YamlFault(node, f"{what} must hold keys ({listed(known)}), got {shown(node)}")
    return entries(node, known)


def _items(name: str, node: yaml.Node) -> list[yaml.Node]:
    if not isinstance(node, yaml.SequenceNode):
        raise YamlFault(node, f"`{name}` must be a list, got {shown(node)}")
    return list(node.value)


def _texts(name: str, node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.SequenceNode):
        return [_text(name, item) for item in node.value]
    return [_text(name, node)]


def _text(name: str, node: yaml.Node) -> str:
    return text_of(name, node).strip()


def _name(key: str, node: yaml.Node) -> str:
    text = _text(key, node)
    if not _NAME.fullmatch(text):
        raise YamlFault(
            node, f"`{key}` must be letters, digits, '.', '_' and '-' only, got {text!r}"
        )
    return text


def _class(key: str, node: yaml.Node) -> SourceClass:
    text = _text(key, node)
    if text not in _CLASSES:
        raise YamlFault(
            node,
            f"`{key}` must be one of {listed(_CLASSES)}, got {text!r}{hint(text, _CLASSES)}",
        )
    return SourceClass(text)
