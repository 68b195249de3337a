"""The local corpus as a search."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from heretix.evidence.corpus import Corpus
    from heretix.evidence.search.base import Hit

__all__ = ["LocalSearch"]


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
