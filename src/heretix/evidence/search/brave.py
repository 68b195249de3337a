"""Brave: pages of up to 20 results by GET; snippets only, so the text is fetched afterwards.

https://api-dashboard.search.brave.com/api-reference/web/search/get
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import RejectedError
from heretix.evidence.search.base import Hit, check_k, domains, narrow
from heretix.evidence.search.client import results_in, service_hit, with_sites
from heretix.evidence.search.service import KeyedService
from heretix.providers.http import as_items, as_object, as_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

__all__ = ["BraveSearch"]

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
