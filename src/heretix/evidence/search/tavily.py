"""Tavily: one POST, which brings the pages' text along.

https://docs.tavily.com/api-reference/endpoint/search
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.search.base import Hit, check_k, domains, narrow
from heretix.evidence.search.client import results_in, service_hit
from heretix.evidence.search.service import KeyedService

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

__all__ = ["TavilySearch"]

MAX_RESULTS: Final = 20
_MAX_INCLUDED: Final = 300
_MAX_EXCLUDED: Final = 150


class TavilySearch(KeyedService):
    """At most 20 hits a query; dates come with news only."""

    name = "tavily"
    base_url = "https://api.tavily.com"
    key_variable = "TAVILY_API_KEY"
    key_header = "Authorization"
    key_scheme = "Bearer "
    min_interval_s = 0.6

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
            "topic": "general",
            "search_depth": "basic",
            "max_results": min(check_k(k), MAX_RESULTS),
            "include_answer": False,
            "include_images": False,
            "include_raw_content": "text",
        }
        if as_of is not None:
            body["end_date"] = as_of.isoformat()
        # A list that is too long would be refused; half of one would be wrong. Hits are filtered
        # here in any case.
        if include and len(include) <= _MAX_INCLUDED:
            body["include_domains"] = list(domains(include))
        if exclude and len(exclude) <= _MAX_EXCLUDED:
            body["exclude_domains"] = list(domains(exclude))
        answer = await self._client.post("/search", body)
        hits = (
            service_hit(
                self.name,
                url=result.get("url"),
                title=result.get("title"),
                snippet=result.get("content"),
                published=result.get("published_date"),
                score=result.get("score"),
                text=result.get("raw_content"),
            )
            for result in results_in(self._client.target, answer, "results")
        )
        return narrow(filter(None, hits), k=k, as_of=as_of, include=include, exclude=exclude)
