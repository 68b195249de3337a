"""Validation by pydantic: its adapters, and sentences for what it finds wrong."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from heretix.core.lenses import SHOWING, SHOWN_AS
from heretix.core.yaml_lines import Document, YamlFault, hint, list_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import TypeAdapter, ValidationError

_GOT_CHARS: Final = 80
_LISTED_MAX: Final = 16
_UNKNOWN: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_RULES: Final = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dataclass_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_type": "must be a whole number",
    "json_invalid": "isn't JSON: {error}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "model_attributes_type": "must be an object",
    "model_type": "must be a mapping",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length:,} characters",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "too_long": "must hold at most {max_length:,}",
    "too_short": "must hold at least one",
    "tuple_type": "must be a list",
}
"""In plainer words than pydantic's, by the type of its error."""
PATTERNS: Final = {
    r"^[^\x00]*$": "must not hold the character NUL",
    r"^[ -~]+$": "must be plain ASCII characters",
    r"^[0-9A-Za-z][0-9A-Za-z_-]*$": "must be letters, digits, `_` and `-`",
    r"^[0-9a-f]{64}$": "must be 64 hexadecimal digits",
    r"^[0-9a-f]{8,64}$": "must be 8 to 64 hexadecimal digits",
    r"^[A-Za-z0-9][!-~]*$": "must be plain ASCII characters without a space",
    SHOWN_AS: f"must be one of {', '.join(SHOWING)}, or with `@` and a bundle's hash",
    r"^[^\s\x00-\x1f][^\x00-\x1f]{0,63}$": "must be 1 to 64 characters on one line, no space first",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": "must be at most 64 letters, digits, `.`, `_` and `-`",
    r"^(https?://\S+|\$[A-Za-z_][A-Za-z0-9_]*)$": "must be an address, or $NAME of a variable",
    r"^https?://\S+$": "must begin with http:// or https:// and hold no space",
    r"^(ray|ray://[^\s/]+|[^\s/:]+:\d+)$": "must be ray, ray://HOST:PORT or HOST:PORT",
    r"^local$|^(ray|ray://[^\s/]+|[^\s/:]+:\d+)$": "must be local, ray, ray://HOST:PORT or "
    "HOST:PORT",
}
"""Rules of text that are told in words instead of a pattern."""


@cache
def make_adapter(kind: Any) -> TypeAdapter[Any]:
    """Make pydantic's adapter of a type, once."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def explain(error: Any, known: Sequence[str] = ()) -> str:
    """Say what one entry of `ValidationError.errors()` means; `known` keys serve as hints."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    name, kind = "".join(parts).removeprefix("."), error["type"]
    if kind in _UNKNOWN:
        known = tuple(dict.fromkeys(known))
        near = hint(str(error["loc"][-1]), known)
        few = f"; known: {list_names(known)}" if not near and 0 < len(known) <= _LISTED_MAX else ""
        return f"unknown key `{name}`{near}{few}"
    if kind == "missing":
        return f"`{name}` is missing"
    message = _rule_of(error)
    if not name or message.startswith("`"):
        return message
    got = repr(error["input"])
    got = got if len(got) <= _GOT_CHARS else f"{got[:_GOT_CHARS]}…"
    near = ""
    if kind in {"enum", "literal_error"}:
        choices = re.findall("'(.*?)'", error["ctx"]["expected"])
        message, near = f"must be one of {list_names(choices)}", hint(str(error["input"]), choices)
    return f"`{name}` {message}, got {got}{near}"


def _rule_of(error: Any) -> str:
    """Say what was wanted, in our words where pydantic's are its own."""
    kind, context = error["type"], error.get("ctx", {})
    if (least := context.get("min_length", 1)) > 1:
        return f"must have at least {least}{' characters' * (kind == 'string_too_short')}"
    if kind in _RULES:
        return PATTERNS.get(context.get("pattern")) or _RULES[kind].format_map(context)
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    return message.replace("should ", "must ", 1)


def in_quotes(error: Any) -> str:
    """The remedy where YAML read 5, 1.0, yes or 2026-01-01 as something else than text."""
    typed = not isinstance(error["input"], dict | list | tuple | None)
    return "; put it in quotes" if error["type"] == "string_type" and typed else ""


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
        faults.append(YamlFault(document.line_of((*path, *place)), problem + in_quotes(found)))
    return faults
