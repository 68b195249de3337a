"""Output of commands: text for people, and JSON that survives every terminal and pipe."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")

_UNCUT: Final = 100_000  # Columns, where there is no screen: more than any line has
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def console() -> Console:
    """Return where results go. A pipe or a file takes them whole: no screen's width cuts them."""
    from rich.console import Console

    width = _width()
    made = Console(highlight=False, width=width)
    if made.is_terminal or ("COLUMNS" in os.environ and width is None):
        return made
    return Console(highlight=False, width=_UNCUT)


def err_console() -> Console:
    """Return where progress and notes go, so that piped output stays clean."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, width=_width())


def progress(*columns: str | ProgressColumn, console: Console | None = None) -> Progress:
    """Make bars of progress that go when they end; what else is told meanwhile needs `console`."""
    from rich.progress import Progress

    return Progress(*columns, console=console or err_console(), transient=True)


def _width() -> int | None:
    """The terminal's own width where COLUMNS is 0, as some launchers set it: nothing fits in 0."""
    given = os.environ.get("COLUMNS", "")
    return shutil.get_terminal_size().columns if given and not given.strip("0") else None


def say(text: str, style: str | None = None) -> None:
    """Print a line as it is: a name may hold what would otherwise be markup or an emoji."""
    console().print(text, style=style, markup=False, emoji=False)


def warn(text: object, style: str = "yellow") -> None:
    """Print a note beside the results, as it is."""
    err_console().print(str(text), style=style, markup=False)


def show(
    found: T, view: Callable[[T], RenderableType], *, as_json: bool, empty: str | None = None
) -> None:
    """Print what was found: as JSON for programs, else as `view` has it or, if nothing, `empty`."""
    if as_json:
        print_json(found)
    elif empty is not None and not found:
        say(empty)
    else:
        console().print(view(found))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value, records in it included."""
    print_json_text(json.dumps(value, indent=indent, ensure_ascii=False, default=_plain))


def print_json_text(text: str, *, nl: bool = True) -> None:
    """Print JSON that is text already."""
    typer.echo(fit_json(text, getattr(sys.stdout, "encoding", None)), nl=nl)


def fit_json(text: str, encoding: str | None) -> str:
    """Escape what a stream of that encoding can't take: the same JSON, in fewer letters.

    For people such a letter becomes a question mark; a program would take that for the data.
    """
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        # Beyond ASCII there is nothing in JSON but what strings say, so all of it may be escaped.
        return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
    return text


def silence_retries() -> None:
    """Keep the retry library's log lines out of the display: what failed in the end is told."""
    import stamina.instrumentation

    stamina.instrumentation.set_on_retry_hooks([])


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, Enum):
        return value.name
    return value.hex() if isinstance(value, bytes) else str(value)
