"""Output of commands: JSON that survives every terminal and pipe."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Callable


# Data for programs, as JSON that survives every terminal and pipe.

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def print_json(
    value: Any, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None
) -> None:
    """Print a value; `default` makes JSON of what isn't."""
    print_json_text(json.dumps(value, indent=indent, ensure_ascii=False, default=default))


def print_json_text(text: str, *, nl: bool = True) -> None:
    """Print JSON that is text already."""
    typer.echo(fit_json(text, getattr(sys.stdout, "encoding", None)), nl=nl)


def fit_json(text: str, encoding: str | None) -> str:
    """The same JSON for a stream of that encoding: escaped where the stream lacks a letter.

    For people such a letter becomes a question mark; a program would take that for the data.
    """
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        # Beyond ASCII there is nothing in JSON but what strings say, so all of it may be escaped.
        return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
    return text
