"""PDF files: their text page by page, within a number of pages and a time."""

from __future__ import annotations

import io
import logging
import re
import time
from datetime import UTC, date, datetime
from typing import Final

from heretix.evidence.reading import (
    PARSER_FAULTS,
    Extract,
    Limits,
    UnreadableError,
    load_library,
    one_line,
    plain,
)

__all__ = ["read_pdf"]

_REASON_CHARS: Final = 120
_FIRST_YEAR: Final = 1990


def read_pdf(data: bytes, *, name: str, limits: Limits) -> Extract:
    """The text of a PDF. The time is looked at between pages; streams have pypdf's own limits."""
    pypdf, errors = load_library("pypdf"), load_library("pypdf.errors")
    # It comments on every oddity of a file; what matters becomes an error here.
    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    deadline = time.monotonic() + limits.pdf_timeout_s
    parts: list[str] = []
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableError(f"`{name}` is encrypted; save a copy without a password")
        pages = len(reader.pages)
        left = limits.max_text_chars
        for number in range(min(pages, limits.max_pdf_pages)):
            if time.monotonic() > deadline:
                raise UnreadableError(
                    f"`{name}` must be read within {limits.pdf_timeout_s:g} s, "
                    f"got {number} of {pages} pages done; split it"
                )
            parts.append(reader.pages[number].extract_text())
            left -= len(parts[-1])
            if left <= 0:
                break
        info = reader.metadata or {}
        title, author, created = (info.get(key) for key in ("/Title", "/Author", "/CreationDate"))
    except UnreadableError:
        raise
    except (errors.PyPdfError, errors.DependencyError, *PARSER_FAULTS) as exc:
        reason = one_line(str(exc))[:_REASON_CHARS] or type(exc).__name__
        raise UnreadableError(f"`{name}` is a damaged or barred PDF: {reason}") from exc
    published = _creation_date(created)
    return Extract(
        text="\n\n".join(parts),
        title=plain(title),
        author=one_line(plain(author)) or None,
        published=published,
        published_method="pdf" if published else None,
        meta={"truncated": "true"} if len(parts) < pages else {},
    )


def _creation_date(value: object) -> date | None:
    """The day in `D:20240518…`; None for clocks that were never set."""
    found = re.match(r"D:(\d{4})(\d{2})(\d{2})", str(value or ""))
    if found is None:
        return None
    try:
        day = date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        return None
    return day if day.year >= _FIRST_YEAR and day <= datetime.now(UTC).date() else None
