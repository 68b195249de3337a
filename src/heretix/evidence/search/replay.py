"""Record what a search answered, and answer from the record: a measurement without the network.

One file a question, named by the question's hash, in canonical JSON with a hash of the hits. What
isn't recorded isn't answered.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from heretix.core.canonical import canonical_json, sha256_json
from heretix.core.errors import RecordError
from heretix.evidence.document import Document
from heretix.evidence.search.base import Hit, Search, domains

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA: Final = "heretix-search-1"
_DOCUMENT_FIELDS: Final = tuple(one.name for one in fields(Document))


class RecordingSearch:
    """Another search, whose every answer is written to a folder."""

    def __init__(self, inner: Search, folder: Path) -> None:
        self._inner = inner
        self._folder = folder

    @property
    def name(self) -> str:
        """The inner search's."""
        return self._inner.name

    async def search(
        self,
        query: str,
        k: int,
        as_of: date | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """As in `Search`."""
        hits = await self._inner.search(query, k, as_of, include, exclude)
        question = _question(self.name, query, k, as_of, include, exclude)
        _write(self._folder, question, [_plain_hit(hit) for hit in hits])
        return hits

    async def aclose(self) -> None:
        """Close the inner search."""
        await self._inner.aclose()


class ReplaySearch:
    """Answers what was recorded of the search called `name`, and nothing else."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.name = name

    async def search(
        self,
        query: str,
        k: int,
        as_of: date | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """As in `Search`, or a `RecordError` for a question that was never recorded."""
        question = _question(self.name, query, k, as_of, include, exclude)
        path = _path(self._folder, question)
        try:
            record = json.loads(path.read_bytes())
            hits = record["hits"]
            intact = record["schema"] == SCHEMA and record["hits_sha256"] == sha256_json(hits)
            found = [_hit_of(hit) for hit in hits] if intact else []
        except FileNotFoundError as exc:
            raise RecordError(
                f"`{query}` must be among the recorded searches of {self.name} in {self._folder}, "
                "and isn't; record it once with the network"
            ) from exc
        except (OSError, ValueError, LookupError, TypeError) as exc:
            raise RecordError(f"`{path}` must be a recorded search, and can't be read") from exc
        if not intact:
            raise RecordError(f"`{path}` was changed since it was recorded; record it again")
        return found

    async def aclose(self) -> None:
        """Nothing to let go of."""


def _question(
    name: str,
    query: str,
    k: int,
    as_of: date | None,
    include: Sequence[str],
    exclude: Sequence[str],
) -> dict[str, Any]:
    return {
        "search": name,
        "query": query,
        "k": k,
        "as_of": as_of.isoformat() if as_of else None,
        "include": sorted(domains(include)),
        "exclude": sorted(domains(exclude)),
    }


def _path(folder: Path, question: Mapping[str, Any]) -> Path:
    return folder / f"{sha256_json(question)}.json"


def _write(folder: Path, question: Mapping[str, Any], hits: list[dict[str, Any]]) -> None:
    record = {
        "schema": SCHEMA,
        "question": question,
        "hits": hits,
        "hits_sha256": sha256_json(hits),
    }
    path = _path(folder, question)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(canonical_json(record) + "\n", encoding="utf-8")
        # A reader sees the old record or the new one, never half of one.
        part.replace(path)
    except OSError as exc:
        raise RecordError(f"`{path}` can't be written: {exc.strerror or exc}") from exc


def _plain_hit(hit: Hit) -> dict[str, Any]:
    document = hit.document
    return {
        "url": hit.url,
        "title": hit.title,
        "snippet": hit.snippet,
        "published": hit.published.isoformat() if hit.published else None,
        "score": hit.score,
        "document": None if document is None else _plain_document(document),
    }


def _plain_document(document: Document) -> dict[str, Any]:
    plain = {name: getattr(document, name) for name in _DOCUMENT_FIELDS}
    plain["published"] = document.published.isoformat() if document.published else None
    plain["meta"] = dict(document.meta)
    return plain


def _hit_of(plain: Mapping[str, Any]) -> Hit:
    document = plain["document"]
    return Hit(
        url=plain["url"],
        title=plain["title"],
        snippet=plain["snippet"],
        published=_day(plain["published"]),
        score=plain["score"],
        document=None if document is None else _document_of(document),
    )


def _document_of(plain: Mapping[str, Any]) -> Document:
    return Document(
        **{
            **plain,
            "published": _day(plain["published"]),
            "meta": MappingProxyType(plain["meta"]),
        }
    )


def _day(text: str | None) -> date | None:
    return date.fromisoformat(text) if text else None
