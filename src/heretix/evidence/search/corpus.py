"""The local corpus as a search, and full text for hits that have none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from heretix.core.errors import ProviderError, UnreadableError
from heretix.evidence.search.base import Hit, Search, narrow
from heretix.evidence.sources.extract import DATE_CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from heretix.evidence.document import Document
    from heretix.evidence.sources.corpus import Corpus
    from heretix.evidence.sources.fetch import Fetcher

# The local corpus as a search.


class LocalSearch:
    """Searches one corpus, which the caller opens and closes."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    @property
    def name(self) -> str:
        """`local:` and the corpus's name."""
        return f"local:{self.corpus.path.stem}"

    async def search(
        self,
        query: str,
        k: int,
        as_of: date | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """As in `Search`; every hit comes with its document."""
        return await asyncio.to_thread(self.corpus.search, query, k, as_of, include, exclude)

    async def aclose(self) -> None:
        """Nothing to let go of."""


# Full text for searches that give snippets only: each hit's page is fetched and read.


class FullTextSearch:
    """Another search, with the documents of its hits.

    A page that can't be fetched or read leaves its hit as it was: found, but without a document.
    """

    def __init__(self, inner: Search, fetcher: Fetcher) -> None:
        self._inner = inner
        self._fetcher = fetcher
        # Queries about one claim find the same pages; each is fetched once.
        self._read_before: dict[str, Document | None] = {}

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
        """As in `Search`; a page that turns out to be too new, or elsewhere, is dropped."""
        hits = await self._inner.search(query, k, as_of, include, exclude)
        read = await asyncio.gather(*map(self._read, hits))
        return narrow(read, k=k, as_of=as_of, include=include, exclude=exclude)

    async def aclose(self) -> None:
        """Close the search and the fetcher."""
        await self._inner.aclose()
        await self._fetcher.aclose()

    async def _read(self, hit: Hit) -> Hit:
        if hit.document is not None or hit.url is None:
            return hit
        if hit.url not in self._read_before:
            self._read_before[hit.url] = await self._fetched(hit.url)
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

    async def _fetched(self, url: str) -> Document | None:
        try:
            return await self._fetcher.document(url)
        except (ProviderError, UnreadableError):
            return None
