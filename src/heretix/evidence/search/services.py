"""Live search services: Brave, Exa, SearXNG and Tavily."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import MissingKeyError, RejectedError
from heretix.evidence.search.base import (
    DEFAULT_TIMEOUT_S,
    Hit,
    KeyedService,
    Retry,
    Service,
    ServiceClient,
    check_k,
    domains,
    narrow,
    results_in,
    service_hit,
    with_sites,
)
from heretix.providers.http import Target, as_items, as_object, as_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

# Brave: pages of up to 20 results by GET; snippets only, so the text is fetched afterwards.
#
# https://api-dashboard.search.brave.com/api-reference/web/search/get

_PAGE_RESULTS: Final = 20
_MAX_PAGES: Final = 10
_QUERY_CHARS: Final = 400
_QUERY_WORDS: Final = 50
_TAG: Final = re.compile(r"</?[a-z][^<>]{0,40}>", re.IGNORECASE)


class BraveSearch(KeyedService):
    """At most 200 hits a query, one request a second unless told otherwise."""

    name = "brave"
    base_url = "https://api.search.brave.com/res/v1"
    key_variable = "BRAVE_API_KEY"
    key_header = "X-Subscription-Token"
    min_interval_s = 1.1

    async def search(
        self,
        query: str,
        k: int,
        as_of: date | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """As in `Search`."""
        params = {
            "q": with_sites(
                query,
                domains(include),
                domains(exclude),
                max_chars=_QUERY_CHARS,
                max_words=_QUERY_WORDS,
            ),
            "count": str(min(check_k(k), _PAGE_RESULTS)),
            "result_filter": "web",
            "text_decorations": "false",
        }
        if as_of is not None:
            params["freshness"] = f"1970-01-01to{as_of.isoformat()}"
        found: list[Hit] = []
        for page in range(_MAX_PAGES):
            hits, more = await self._page({**params, "offset": str(page)})
            found = narrow([*found, *hits], k=k, as_of=as_of, include=include, exclude=exclude)
            if len(found) == k or not more:
                break
        return found

    async def _page(self, params: Mapping[str, str]) -> tuple[list[Hit], bool]:
        try:
            answer = await self._client.get("/web/search", params)
        except RejectedError as exc:
            # A wrong key is told with 422, as is a wrong parameter.
            if "TOKEN" in str(exc):
                raise RejectedError(f"{exc}; check {self.key_variable}", status=exc.status) from exc
            raise
        # Where nothing was found there is no `web` at all.
        empty = "web" not in answer and answer.get("type") == "search"
        results = [] if empty else results_in(self._client.target, answer, "web", "results")
        hits = (
            service_hit(
                self.name,
                url=result.get("url"),
                title=_untagged(result.get("title")),
                snippet=_snippet(result),
                published=result.get("page_age"),
                score=None,
            )
            for result in results
        )
        more = as_object(answer.get("query")).get("more_results_available") is True
        return [hit for hit in hits if hit], bool(results) and more


def _snippet(result: Mapping[str, Any]) -> str:
    parts = [result.get("description"), *as_items(result.get("extra_snippets"))]
    return " … ".join(filter(None, (_untagged(part) for part in parts)))


def _untagged(value: object) -> str:
    """Titles and snippets mark what was found in bold, and escape the rest."""
    return html.unescape(_TAG.sub("", as_text(value) or ""))


# Exa: one POST, which brings the pages' text along.
#
# https://exa.ai/docs/reference/search

EXA_MAX_RESULTS: Final = 100
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
            "numResults": min(check_k(k), EXA_MAX_RESULTS),
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


# SearXNG: a metasearch engine that somebody runs; pages of results by GET, snippets only.
#
# https://docs.searxng.org/dev/search_api.html

URL_VARIABLE: Final = "SEARXNG_URL"
_SEARXNG_MAX_PAGES: Final = 5
_SEARXNG_QUERY_CHARS: Final = 1000
_SEARXNG_QUERY_WORDS: Final = 100


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
            max_chars=_SEARXNG_QUERY_CHARS,
            max_words=_SEARXNG_QUERY_WORDS,
        )
        found: list[Hit] = []
        for page in range(1, _SEARXNG_MAX_PAGES + 1):
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


# Tavily: one POST, which brings the pages' text along.
#
# https://docs.tavily.com/api-reference/endpoint/search

TAVILY_MAX_RESULTS: Final = 20
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
            "max_results": min(check_k(k), TAVILY_MAX_RESULTS),
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
