"""SearXNG: a metasearch engine that somebody runs; pages of results by GET, snippets only.

https://docs.searxng.org/dev/search_api.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from heretix.errors import MissingKeyError, RejectedError
from heretix.evidence.search.base import Hit, check_k, domains, narrow
from heretix.evidence.search.client import (
    DEFAULT_TIMEOUT_S,
    Retry,
    ServiceClient,
    results_in,
    service_hit,
    with_sites,
)
from heretix.evidence.search.service import Service
from heretix.providers.http import Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

__all__ = ["SearxngSearch"]

URL_VARIABLE: Final = "SEARXNG_URL"
_MAX_PAGES: Final = 5
_QUERY_CHARS: Final = 1000
_QUERY_WORDS: Final = 100


class SearxngSearch(Service):
    """As many hits as five pages give. Dates can't be asked for, only filtered by."""

    name = "searxng"

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        min_interval_s: float = 1.0,
        retry: Retry | None = None,
    ) -> None:
        target = Target(provider=self.name, base_url=base_url, timeout_s=timeout_s)
        super().__init__(ServiceClient(target, {}, min_interval_s=min_interval_s, retry=retry))

    @classmethod
    def from_env(cls, env: Mapping[str, str], **options: Any) -> SearxngSearch:
        """At the address that the environment holds."""
        url = env.get(URL_VARIABLE, "").strip()
        if not url:
            raise MissingKeyError(
                f"`{cls.name}` needs {URL_VARIABLE} in the environment, "
                "like http://localhost:8080; set it and repeat"
            )
        return cls(url, **options)

    async def search(
        self,
        query: str,
        k: int,
        as_of: date | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """As in `Search`."""
        check_k(k)
        asked = with_sites(
            query,
            domains(include),
            domains(exclude),
            max_chars=_QUERY_CHARS,
            max_words=_QUERY_WORDS,
        )
        found: list[Hit] = []
        for page in range(1, _MAX_PAGES + 1):
            hits = await self._page({"q": asked, "format": "json", "pageno": str(page)})
            before = len(found)
            found = narrow([*found, *hits], k=k, as_of=as_of, include=include, exclude=exclude)
            # Engines that know no pages repeat the first one.
            if len(found) == k or not hits or (page > 1 and len(found) == before):
                break
        return found

    async def _page(self, params: Mapping[str, str]) -> list[Hit]:
        try:
            answer = await self._client.get("/search", params)
        except RejectedError as exc:
            if exc.status == 403:
                raise RejectedError(
                    f"{exc}; JSON may be off: `search.formats` in its settings must list `json`",
                    status=403,
                ) from exc
            raise
        hits = (
            service_hit(
                self.name,
                url=result.get("url"),
                title=result.get("title"),
                snippet=result.get("content"),
                published=result.get("publishedDate"),
                score=result.get("score"),
            )
            for result in results_in(self._client.target, answer, "results")
        )
        return [hit for hit in hits if hit]
