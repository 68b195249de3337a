"""YAML whose parts know the line they stand on, so that a mistake can be pointed at.

What a file gets wrong is a `YamlFault`; its reader turns that into an error of its own.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml
from yaml.constructor import SafeConstructor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DEEPEST: Final = 100
"""Lists and mappings inside each other. No file here needs ten, and a parser in C that recurses
takes the whole process down somewhere beyond ten thousand."""
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# All control characters but tab and newline, and halves of surrogate pairs.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_COLLECTIONS: Final = (yaml.MappingNode, yaml.SequenceNode)


class YamlFault(Exception):  # noqa: N818 - caught by whoever reads the file, never shown as it is
    """A mistake in a file, and the line it is on."""

    def __init__(self, where: yaml.Node | int, problem: str) -> None:
        super().__init__(problem)
        self.line = where if isinstance(where, int) else _line_of(where)

    def at(self, source: str) -> str:
        """The whole message: file, line, problem."""
        return f"`{source}` line {self.line}: {self}"


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a file, and where they stand in it."""

    values: Any
    root: yaml.Node | None

    def line_of(self, path: Sequence[str | int]) -> int:
        """The line of the value at `path`, or of the innermost part of the path that is there."""
        node = self.root
        line = 1 if node is None else _line_of(node)
        for part in path:
            found: tuple[yaml.Node, yaml.Node] | None = None
            if isinstance(node, yaml.MappingNode):
                # The last one counts: what a merge (`<<`) brings in stands before a key's own.
                found = next((e for e in reversed(node.value) if e[0].value == str(part)), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                found = next(((item, item) for item in node.value[part : part + 1]), None)
            if found is None:
                break
            line, node = _line_of(found[0]), found[1]
        return line


def load(text: str) -> Document:
    """Read a file of one document as plain values; None where it holds nothing but comments.

    A key that stands twice is refused: either could be meant.
    """
    # YAML readers refuse control characters too, but don't all say on which line.
    for number, line in enumerate(text.split("\n"), start=1):
        bad = find_control_character(line.removesuffix("\r"))
        if bad:
            raise YamlFault(number, f"has a control character ({bad}); remove it")
    with _parsing():
        _refuse_depth(text)
        root: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
        if root is None:
            return Document(None, None)
        _refuse_duplicate_keys(root)
        return Document(_Constructor().construct_document(root), root)


def list_names(names: Sequence[str]) -> str:
    """Write names as a message lists them."""
    return ", ".join(f"`{name}`" for name in names)


def hint(name: str, known: Sequence[str]) -> str:
    """The known name that was probably meant, in brackets; empty where none is near."""
    given = name.lower()
    near = [other for other in known if other.lower() == given]
    near = near or difflib.get_close_matches(name, known, n=1)
    near = near or [other for other in known if len(given) > 2 and given in other.lower()]
    return f" (did you mean `{near[0]}`?)" if near else ""


def find_control_character(text: str) -> str | None:
    """Find the first character that nobody meant to write; its code point."""
    found = _CONTROL.search(text)
    return f"U+{ord(found[0]):04X}" if found else None


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _describe_node(node: yaml.Node) -> str:
    return "a list or a mapping" if isinstance(node, _COLLECTIONS) else repr(node.value)


class _Constructor(SafeConstructor):
    """Values of nodes. What looks like a date and is none (2026-02-30) is told with its line."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Keys as they were written: `no` and `1` are words here."""
        self.flatten_mapping(node)
        return {str(key.value): self.construct_object(value, deep) for key, value in node.value}

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, LookupError, ValueError) as exc:
            raise YamlFault(
                node,
                f"{_describe_node(node)} can't be read ({exc}); correct it, or put it in quotes",
            ) from exc


@contextlib.contextmanager
def _parsing() -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        problem = exc.problem or exc.context or "a mistake"
        raise YamlFault(mark.line + 1 if mark else 1, f"isn't YAML: {problem}") from exc
    except yaml.YAMLError as exc:
        raise YamlFault(1, f"isn't YAML: {exc}") from exc


def _refuse_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise YamlFault(line, f"is nested more than {_DEEPEST} deep; flatten it")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _refuse_duplicate_keys(root: yaml.Node) -> None:
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        # An anchor that is used twice is one node, and may even lead back to itself.
        if id(node) in seen:
            continue
        seen.add(id(node))
        lines: dict[str, int] = {}
        for entry in node.value if isinstance(node, _COLLECTIONS) else ():
            if isinstance(node, yaml.SequenceNode):
                waiting.append(entry)
                continue
            key, value = entry
            if not isinstance(key, yaml.ScalarNode):
                raise YamlFault(key, f"a key must be plain text, got {_describe_node(key)}")
            if key.value in lines:
                first = lines[key.value]
                raise YamlFault(key, f"`{key.value}` stands here and on line {first}; keep one")
            lines[key.value] = _line_of(key)
            waiting.append(value)
