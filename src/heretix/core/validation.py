"""Sentences for what pydantic finds wrong: the place, the rule, the value got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heretix.core.yaml_lines import hint

if TYPE_CHECKING:
    from collections.abc import Sequence

_GOT_CHARS = 80


def explain(error: Any, known: Sequence[str] = ()) -> str:
    """Say what one entry of `ValidationError.errors()` means; `known` keys serve as hints."""
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"unknown key `{name}`{hint(str(error['loc'][-1]), known)}"
    if error["type"] == "missing":
        return f"`{name}` is missing"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    message = message.replace("should ", "must ", 1)
    if error["type"] == "value_error":
        return message if message.startswith("`") or not name else f"`{name}`: {message}"
    got = repr(error["input"])
    got = got if len(got) <= _GOT_CHARS else f"{got[:_GOT_CHARS]}…"
    return f"`{name}` {message}, got {got}" if name else message
