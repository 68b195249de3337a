"""Sentences for what pydantic finds wrong: the place, the rule, the value got."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from heretix.core.yaml_lines import hint, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

_GOT_CHARS: Final = 80
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
    name, kind = ".".join(str(part) for part in error["loc"]), error["type"]
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
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
