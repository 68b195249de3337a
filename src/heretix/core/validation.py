"""Sentences for what pydantic finds wrong: the place, the rule, the value got."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from heretix.core.yaml_lines import Document, YamlFault, hint, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import ValidationError

_GOT_CHARS: Final = 80
_UNKNOWN: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_RULES: Final = {
    "dataclass_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
}
"""In plainer words than pydantic's, by the type of its error."""


def explain(error: Any, known: Sequence[str] = ()) -> str:
    """Say what one entry of `ValidationError.errors()` means; `known` keys serve as hints."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    name, kind = "".join(parts).removeprefix("."), error["type"]
    if kind in _UNKNOWN:
        return f"unknown key `{name}`{hint(str(error['loc'][-1]), known)}"
    if kind == "missing":
        return f"`{name}` is missing"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    message = _RULES.get(kind, message.replace("should ", "must ", 1))
    if not name or message.startswith("`"):
        return message
    got = repr(error["input"])
    got = got if len(got) <= _GOT_CHARS else f"{got[:_GOT_CHARS]}…"
    near = ""
    if kind in {"enum", "literal_error"}:
        choices = re.findall("'(.*?)'", error["ctx"]["expected"])
        message, near = f"must be one of {listed(choices)}", hint(str(error["input"]), choices)
    return f"`{name}` {message}, got {got}{near}"


def find_faults(
    error: ValidationError,
    document: Document,
    path: tuple[str | int, ...] = (),
    known: Sequence[str] = (),
) -> list[YamlFault]:
    """Say everything that pydantic found wrong in the part of a YAML file at `path`, with lines."""
    faults = []
    # A misspelt key comes first: it is why another one is missing.
    for found in sorted(error.errors(), key=lambda found: found["type"] not in _UNKNOWN):
        # Tags of unions stand in angle brackets, and in no file.
        place = tuple(part for part in found["loc"] if not str(part).startswith("<"))
        problem = explain({**found, "loc": place}, known)
        # YAML reads 5, 1.0, yes and 2026-01-01 as something else than text.
        typed = not isinstance(found["input"], dict | list | None)
        if found["type"] == "string_type" and typed:
            problem += "; put it in quotes"
        faults.append(YamlFault(document.line_of((*path, *place)), problem))
    return faults
