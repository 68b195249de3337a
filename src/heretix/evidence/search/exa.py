"""Exa: one POST, which brings the pages' text along.

https://exa.ai/docs/reference/search
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.search.base import Hit, check_k, domains, narrow
from heretix.evidence.search.client import results_in, service_hit
from heretix.evidence.search.service import KeyedService

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

__all__ = ["ExaSearch"]

MAX_RESULTS: Final = 100
_MAX_DOMAINS: Final = 1200
_TEXT_CHARS: Final = 20_000


class ExaSearch(KeyedService):
    """At most 100 hits a query."""

    name = "exa"
    base_url = "https://api.exa.ai"
    key_variable = "EXA_API_KEY"
    key_header = "x-api-key"
    min_interval_s = 0.2

    async def search(
        self,
        query: str,
        k: int,
        as_of: date | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """As in `Search`."""
        body: dict[str, Any] = {
            "query": query,
            "type": "auto",
            "numResults": min(check_k(k), MAX_RESULTS),
            # Text or highlights: both would be billed twice for the same page.
            "contents": {"text": {"maxCharacters": _TEXT_CHARS}},
        }
        if as_of is not None:
            body["endPublishedDate"] = f"{as_of.isoformat()}T23:59:59.999Z"
        if include and len(include) <= _MAX_DOMAINS:
            body["includeDomains"] = list(domains(include))
        if exclude and len(exclude) <= _MAX_DOMAINS:
            body["excludeDomains"] = list(domains(exclude))
        answer = await self._client.post("/search", body)
        hits = (
            service_hit(
                self.name,
                url=result.get("url"),
                title=result.get("title"),
                snippet=None,
                published=result.get("publishedDate"),
                score=result.get("score"),
                text=result.get("text"),
                author=result.get("author"),
            )
            for result in results_in(self._client.target, answer, "results")
        )
        return narrow(filter(None, hits), k=k, as_of=as_of, include=include, exclude=exclude)
