"""A document: text with where it came from and when, as every part of the evidence room sees it."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic looks it up
from dataclasses import dataclass, field
from datetime import date  # noqa: TC003


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One readable document. Whatever isn't known is None: nothing is guessed."""

    doc_id: str  # Unique within its corpus or search result
    url: str | None  # Address that it was found at; None for a file of the user's
    title: str
    text: str  # The extracted text, exactly as it was hashed
    author: str | None
    published: date | None
    published_method: str | None
    """Method by which the date was found (`metadata`, `htmldate`, …); None without a date."""
    published_confidence: float | None
    """From 0 to 1, as the method gives it; None where the method says nothing."""
    retrieved_at: str  # UTC, ISO 8601
    raw_sha256: str  # Of the bytes that were read, before extraction
    text_sha256: str  # Of `text` in UTF-8
    meta: Mapping[str, str] = field(default_factory=dict)
    """Whatever else the source said (`corpus`, `provided`, `retracted`, …)."""
