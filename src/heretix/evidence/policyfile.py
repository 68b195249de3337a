"""Reading a policy file: YAML in, rules and problems out, each problem with its file and line.

One bad rule doesn't hide the next: all problems of a file are found in one go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml

from heretix.evidence.rules import Entry, Kind, Level, Problem, Rule, SourceClass, read_pattern
from heretix.evidence.sourcelist import FORMATS, ListRefused, ListSpec, read_list
from heretix.linedyaml import YamlFault, compose, entries, hint, line_of, listed, shown, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["PolicyDraft", "read_policy"]

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
