"""Searches around others: full text for hits without, answers recorded, and answers replayed. A
recording has one file a question, named by the question's hash, in canonical JSON with a hash of
the hits. What isn't recorded isn't answered."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from heretix.core.canonical import canonical_json, sha256_json
from heretix.core.errors import ProviderError, RecordError, UnreadableError
from heretix.core.validation import make_adapter
from heretix.evidence.policy.publisher import read_domains
from heretix.evidence.search import Filters, Hit, Search, narrow
from heretix.evidence.sources.extract import DATE_CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from heretix.evidence.document import Document
    from heretix.evidence.sources.fetch import Fetcher

SCHEMA: Final = "heretix-search-1"


class FullTextSearch:
    """Another search, with the documents of its hits: each page is fetched and read. A page that
    can't be fetched or read leaves its hit as it was: found, but without a document."""

    def __init__(self, inner: Search, fetcher: Fetcher) -> None:
        self._inner = inner
        self._fetcher = fetcher
        self.name = inner.name
        # Queries about one claim find the same pages; each is fetched once.
        self._read_before: dict[str, Document | None] = {}

    async def search(self, query: str, k: int, **filters: Unpack[Filters]) -> list[Hit]:
        """Search as `Search` says; a page that proves too new, or elsewhere, is dropped."""
        hits = await self._inner.search(query, k, **filters)
        read = await asyncio.gather(*map(self._read, hits))
        return narrow(read, k=k, **filters)

    async def aclose(self) -> None:
        """Close the search and the fetcher."""
        await self._inner.aclose()
        await self._fetcher.aclose()

    async def _read(self, hit: Hit) -> Hit:
        if hit.document is not None or hit.url is None:
            return hit
        if hit.url not in self._read_before:
            try:
                self._read_before[hit.url] = await self._fetcher.document(hit.url)
            except (ProviderError, UnreadableError):
                self._read_before[hit.url] = None
        document = self._read_before[hit.url]
        if document is None:
            return hit
        if document.published is None and hit.published is not None:
            document = replace(
                document,
                published=hit.published,
                published_method="search",
                published_confidence=DATE_CONFIDENCE["search"],
            )
        return replace(hit, url=document.url, published=document.published, document=document)


class RecordingSearch:
    """Another search, whose every answer is written to a folder."""

    def __init__(self, inner: Search, folder: Path) -> None:
        self._inner = inner
        self._folder = folder
        self.name = inner.name

    async def search(self, query: str, k: int, **filters: Unpack[Filters]) -> list[Hit]:
        """Search as `Search` says."""
        hits = await self._inner.search(query, k, **filters)
        question = _question(self.name, query, k, **filters)
        # Read-only mappings are written as what they hold.
        plain = make_adapter(list[Hit]).dump_python(
            hits, mode="json", warnings=False, fallback=dict
        )
        record = {
            "schema": SCHEMA,
            "question": question,
            "hits": plain,
            "hits_sha256": sha256_json(plain),
        }
        write_answer(self._folder, question, record)
        return hits

    async def aclose(self) -> None:
        """Close the inner search."""
        await self._inner.aclose()


class ReplaySearch:
    """Answers what was recorded of the search called `name`, and nothing else."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.name = name

    async def search(self, query: str, k: int, **filters: Unpack[Filters]) -> list[Hit]:
        """Search as `Search` says; a question that was never recorded is a `RecordError`."""
        path = answer_path(self._folder, _question(self.name, query, k, **filters))
        try:
            record = json.loads(path.read_bytes())
            hits, stated = record["hits"], (record["schema"], record["hits_sha256"])
            if stated == (SCHEMA, sha256_json(hits)):
                found: list[Hit] = make_adapter(list[Hit]).validate_python(hits)
                return found
        except FileNotFoundError as exc:
            raise RecordError(
                f"`{query}` must be among the recorded searches of {self.name} in {self._folder}, "
                "and isn't; record it once with the network"
            ) from exc
        except (OSError, ValueError, LookupError, TypeError) as exc:
            raise RecordError(f"`{path}` must be a recorded search, and can't be read") from exc
        raise RecordError(f"`{path}` was changed since it was recorded; record it again")

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


def _question(name: str, query: str, k: int, **filters: Unpack[Filters]) -> dict[str, Any]:
    as_of = filters.get("as_of")
    return {
        "search": name,
        "query": query,
        "k": k,
        "as_of": as_of.isoformat() if as_of else None,
        "include": sorted(read_domains(filters.get("include", ()))),
        "exclude": sorted(read_domains(filters.get("exclude", ()))),
    }


def answer_path(folder: Path, question: Mapping[str, Any]) -> Path:
    """The file of a question's recorded answer."""
    return folder / f"{sha256_json(question)}.json"


def write_answer(folder: Path, question: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Record an answer: a reader sees the old record or the new one, never half of one."""
    path = answer_path(folder, question)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(canonical_json(record) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as exc:
        raise RecordError(f"`{path}` can't be written: {exc.strerror or exc}") from exc
