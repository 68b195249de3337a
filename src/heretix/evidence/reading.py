"""What reading a document gives, what it may cost, and how it fails.

`extraction` is the door; `webpage` and `pdf` are the rooms behind it.
"""

from __future__ import annotations

import importlib
import re
import struct
import zlib
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import ConfigError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DATE_CONFIDENCE",
    "DEFAULT_LIMITS",
    "PARSER_FAULTS",
    "Extract",
    "Failure",
    "Limits",
    "UnreadableError",
    "clean_text",
    "load_library",
    "one_line",
    "plain",
    "read_date",
    "utc_now",
]

DATE_CONFIDENCE: Final[Mapping[str, float]] = MappingProxyType(
    {"stated": 1.0, "metadata": 0.9, "url": 0.8, "search": 0.7, "htmldate": 0.6, "pdf": 0.5}
)
"""By method: stated outright in front matter or a record; a page's metadata; its address; a search
service's word; elements marked as dates; a PDF's day of creation, often that of a later export."""

# What parsers raise on damaged input is open-ended. This is everything but missing names, exhausted
# memory and interruption.
PARSER_FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)

_MB: Final = 1024 * 1024
_LINE_CHARS: Final = 300
_DATE_CHARS: Final = 64
# Tabs and line ends stay; so do the joiners that some scripts need.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Failure:
    """A source that gave no document, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one document may cost."""

    max_bytes: int = 10 * _MB
    max_decoded_bytes: int = 20 * _MB
    """After decompression."""
    max_text_chars: int = 1_000_000
    """Longer texts are cut, and say so in their `meta`."""
    max_html_tags: int = 100_000
    max_pdf_pages: int = 500
    pdf_timeout_s: float = 30.0


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """What a document says, and what it says of itself."""

    text: str
    title: str = ""
    author: str | None = None
    published: date | None = None
    published_method: str | None = None
    """A key of `DATE_CONFIDENCE`; None without a date."""
    url: str | None = None
    """Where the document says it belongs."""
    meta: Mapping[str, str] = field(default_factory=dict)


def read_date(value: object) -> date | None:
    """A full date out of what records and headers hold; None for anything less than a full one."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).date()
    if isinstance(value, date):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if not text or len(text) > _DATE_CHARS:
        return None
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return read_date(parse(text))
        except (ValueError, OverflowError):
            continue
    return None


def clean_text(text: str) -> str:
    """`text` with line ends of one kind and without what no file, hash or terminal can take."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _CONTROL.sub("", text).strip()


def one_line(text: str) -> str:
    """`text` on one line, at a length that suits a title or a name."""
    return clean_text(" ".join(text.split()))[:_LINE_CHARS].strip()


def plain(value: object) -> str:
    """A scalar as text; nothing for lists, mappings and null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | date):
        return clean_text(str(value))
    return ""


def load_library(module: str) -> Any:
    """Import one of the libraries of the `evidence` extra, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"`{module}` is needed to read documents, and isn't installed: "
            "`uv sync --extra evidence`, or `pip install '.[evidence]'` in the clone"
        ) from exc


def utc_now() -> str:
    """This moment, UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
