"""Live search services: Brave, Exa, SearXNG and Tavily. Each says what is asked of it and where its
answers hold what; `LiveSearch` does the rest: pages, filters, polite spacing, another try where
that helps. Failures are mapped by `heretix.providers.http`, as for models. No key reaches a
message."""

from __future__ import annotations

import asyncio
import html
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, Unpack

import aiohttp
import stamina

from heretix.core import errors
from heretix.evidence.policy.publisher import is_within, read_domains
from heretix.evidence.search import MAX_K, Filters, Hit, narrow
from heretix.evidence.sources import extract
from heretix.providers import http
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

DEFAULT_TIMEOUT_S: Final = 20.0
_MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
_SNIPPET_CHARS: Final = 500
_TAG: Final = re.compile(r"</?[a-z][^<>]{0,40}>", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Patience with a call that fails."""

    attempts: int = 4
    timeout_s: float = 90.0
    wait_initial_s: float = 0.5
    wait_max_s: float = 10.0
    wait_stated_max_s: float = 30.0
    """A service that asks for more patience than this is not asked again."""


@dataclass(frozen=True, slots=True)
class Question:
    """A query with its filters; domains are in the spelling that hosts are compared in."""

    query: str
    k: int
    as_of: date | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]


class LiveSearch:
    """A service over HTTP. A subclass is a declaration: what to send, and what answers hold."""

    name: ClassVar[str]
    base_url: ClassVar[str | None] = None  # None: the user's own, from `variable`
    variable: ClassVar[str]
    """The environment's variable that holds the key, or the address where that is the user's."""
    key_header: ClassVar[str] = ""
    key_scheme: ClassVar[str] = ""  # Prefix of the key in its header
    min_interval_s: ClassVar[float] = 1.0  # Between two requests, unless told otherwise
    method: ClassVar[str] = "POST"
    path: ClassVar[str] = "/search"
    results_at: ClassVar[tuple[str, ...]] = ("results",)
    fields: ClassVar[Mapping[str, str]]  # The names that results have for the parts of a hit
    max_pages: ClassVar[int] = 1
    repeats_pages: ClassVar[bool] = False
    """A page without news is the last: behind it the same ones come again."""

    def __init__(
        self,
        key: str | None = None,
        *,
        base_url: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        min_interval_s: float | None = None,
        retry: Retry | None = None,
    ) -> None:
        self._target = http.Target(
            provider=self.name,
            base_url=base_url or self.base_url or "",
            key=key,
            key_variable=self.variable if key else None,
            timeout_s=timeout_s,
        )
        self._headers = {"User-Agent": f"heretix/{VERSION}", "Accept": "application/json"}
        if key:
            self._headers[self.key_header] = f"{self.key_scheme}{key}"
        self._interval_s = self.min_interval_s if min_interval_s is None else min_interval_s
        self._retry = retry or Retry()
        self._turn = asyncio.Lock()
        self._free_at = 0.0
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str], **options: Any) -> Self:
        """Take the key, or the address, from the environment."""
        value = env.get(cls.variable, "").strip()
        if not value:
            like = "" if cls.base_url else ", like http://localhost:8080"
            raise errors.MissingKeyError(
                f"`{cls.name}` needs {cls.variable} in the environment{like}; set it and repeat"
            )
        return cls(value, **options) if cls.base_url else cls(base_url=value, **options)

    async def search(self, query: str, k: int, **filters: Unpack[Filters]) -> list[Hit]:
        """Ask the service, page by page, until there are `k` hits; as in `Search`."""
        if not 1 <= k <= MAX_K:
            raise errors.ConfigError(f"`k` must be from 1 to {MAX_K}, got {k}")
        only, never = filters.get("include", ()), filters.get("exclude", ())
        day = filters.get("as_of")
        question = Question(query, k, day, read_domains(only), read_domains(never))
        found: list[Hit] = []
        for page in range(self.max_pages):
            results, more = self.read(await self._call(self.content(question, page)))
            hits = [hit for one in results if (hit := _make_hit(self.name, **self.values(one)))]
            before = len(found)
            found = narrow([*found, *hits], k=k, **filters)
            stale = self.repeats_pages and page > 0 and len(found) == before
            if len(found) == k or not more or stale:
                break
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def content(self, question: Question, page: int) -> Mapping[str, Any]:
        """Make what is sent for a page, counted from 0."""
        raise NotImplementedError

    def read(self, answer: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], bool]:
        """The results in an answer, and whether there may be another page."""
        *outer, last = self.results_at
        place: Mapping[str, Any] = answer
        for name in outer:
            place = http.as_object(place.get(name))
        if not isinstance(place.get(last), list):
            wanted = f"a list of results in `{'.'.join(self.results_at)}`"
            raise http.misshapen(self._target, wanted)
        results = [http.as_object(item) for item in place[last]]
        return results, bool(results)

    def values(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Take the parts of a hit from a result."""
        return {part: result.get(name) for part, name in self.fields.items()}

    def remedy(self, error: errors.RejectedError) -> str | None:
        """Advise about a refusal where the service's own words don't."""
        del error
        return None

    async def _call(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON object that a request is answered with, asked again where that may help."""
        retry = self._retry
        try:
            async for attempt in stamina.retry_context(
                on=self._may_retry,
                attempts=retry.attempts,
                timeout=retry.timeout_s,
                wait_initial=retry.wait_initial_s,
                wait_max=retry.wait_max_s,
                wait_jitter=retry.wait_initial_s,
            ):
                with attempt:
                    async with self._turn:
                        await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
                        self._free_at = time.monotonic() + self._interval_s
                    return await self._exchange(content)
        except errors.RejectedError as exc:
            if (remedy := self.remedy(exc)) is not None:
                raise errors.RejectedError(f"{exc}; {remedy}", status=exc.status) from exc
            raise
        raise AssertionError("a retry context ends with an answer or an exception")

    def _may_retry(self, exc: Exception) -> bool | float:
        if isinstance(exc, errors.RateLimitedError) and exc.retry_after_s is not None:
            stated = exc.retry_after_s
            return stated if stated <= self._retry.wait_stated_max_s else False
        return isinstance(exc, errors.RetryableError)

    async def _exchange(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        # Opened by the first call, since a session belongs to the event loop that it runs in.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._target.timeout_s),
            )
        url = self._target.base_url.rstrip("/") + self.path
        sent: dict[str, Any] = {"params" if self.method == "GET" else "json": content}
        try:
            # A redirect would carry the key elsewhere.
            async with self._session.request(
                self.method, url, allow_redirects=False, **sent
            ) as response:
                payload = await response.content.read(_MAX_ANSWER_BYTES + 1)
                while not response.content.at_eof() and len(payload) <= _MAX_ANSWER_BYTES:
                    payload += await response.content.read(_MAX_ANSWER_BYTES + 1 - len(payload))
                status, headers = response.status, response.headers.copy()
        except aiohttp.ClientResponseError as exc:
            # Its `repr` shows the headers that were sent, the key among them, so the error is
            # raised outside of this block: it then keeps neither a cause nor a context.
            failure = http.make_transport_error(self._target, exc)
        except (aiohttp.ClientError, OSError) as exc:
            raise http.make_transport_error(self._target, exc) from exc
        else:
            if len(payload) > _MAX_ANSWER_BYTES:
                raise errors.ServerError(f"`{self.name}` answered with more than can be right")
            wait_s = _wait_by_quota(headers) if status == 429 else None
            if wait_s is not None and "Retry-After" not in headers:
                headers["Retry-After"] = str(wait_s)
            return http.read_response(self._target, status, headers, payload).body
        raise failure


def _make_hit(
    service: str,
    *,
    url: object,
    title: object,
    snippet: object = None,
    published: object = None,
    score: object = None,
    text: object = None,
    author: object = None,
) -> Hit | None:
    """A hit out of what a service sent; None where it has no address to go to."""
    address = (http.as_text(url) or "").strip()
    if not address.lower().startswith(("http://", "https://")):
        return None
    day = extract.read_date(published)
    heading = extract.one_line(http.as_text(title) or "") or address
    body = extract.clean_text(http.as_text(text) or "")
    document = None
    if body:
        found = extract.Extract(
            text=body,
            title=heading,
            author=extract.one_line(http.as_text(author) or "") or None,
            published=day,
            published_method="search" if day else None,
        )
        meta = {"text_by": service}
        document = extract.make_document(found, raw=body.encode(), url=address, meta=meta)
    shown = extract.clean_text(http.as_text(snippet) or "") or body
    number = score if isinstance(score, int | float) and not isinstance(score, bool) else math.nan
    return Hit(
        url=address,
        title=heading,
        snippet=" ".join(shown.split())[:_SNIPPET_CHARS],
        published=day,
        score=float(number) if math.isfinite(number) else None,
        document=document,
    )


class BraveSearch(LiveSearch):
    """Pages of up to 20 results, at most 200 in all; snippets only.
    https://api-dashboard.search.brave.com/api-reference/web/search/get"""

    name = "brave"
    base_url = "https://api.search.brave.com/res/v1"
    variable = "BRAVE_API_KEY"
    key_header = "X-Subscription-Token"
    min_interval_s = 1.1
    method = "GET"
    path = "/web/search"
    results_at = ("web", "results")
    max_pages = 10

    def content(self, question: Question, page: int) -> Mapping[str, Any]:
        """Put filters into the query as operators, as far as they fit."""
        params = {
            "q": add_site_operators(question, max_chars=400, max_words=50),
            "count": str(min(question.k, 20)),
            "result_filter": "web",
            "text_decorations": "false",
            "offset": str(page),
        }
        if question.as_of is not None:
            params["freshness"] = f"1970-01-01to{question.as_of.isoformat()}"
        return params

    def read(self, answer: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], bool]:
        """Allow for answers without `web`: nothing was found."""
        if "web" not in answer and answer.get("type") == "search":
            return [], False
        results, _ = super().read(answer)
        more = http.as_object(answer.get("query")).get("more_results_available") is True
        return results, bool(results) and more

    def values(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Titles and snippets mark what was found in bold, and escape the rest."""
        parts = [result.get("description"), *http.as_items(result.get("extra_snippets"))]
        return {
            "url": result.get("url"),
            "title": _strip_tags(result.get("title")),
            "snippet": " … ".join(filter(None, map(_strip_tags, parts))),
            "published": result.get("page_age"),
        }

    def remedy(self, error: errors.RejectedError) -> str | None:
        """A wrong key is told with 422, as is a wrong parameter."""
        return f"check {self.variable}" if "TOKEN" in str(error) else None


class ExaSearch(LiveSearch):
    """Search by Exa: at most 100 hits a query, with the pages' text."""

    name = "exa"
    base_url = "https://api.exa.ai"
    variable = "EXA_API_KEY"
    key_header = "x-api-key"
    min_interval_s = 0.2
    fields: ClassVar = {
        "url": "url",
        "title": "title",
        "published": "publishedDate",
        "score": "score",
        "text": "text",
        "author": "author",
    }

    def content(self, question: Question, page: int) -> Mapping[str, Any]:
        """Ask for text alone: highlights too would be billed twice for the same page."""
        del page
        body: dict[str, Any] = {
            "query": question.query,
            "type": "auto",
            "numResults": min(question.k, 100),
            "contents": {"text": {"maxCharacters": 20_000}},
        }
        if question.as_of is not None:
            body["endPublishedDate"] = f"{question.as_of.isoformat()}T23:59:59.999Z"
        return body | _domain_lists(question, ("includeDomains", 1200), ("excludeDomains", 1200))


class SearxngSearch(LiveSearch):
    """A metasearch engine that somebody runs: as many hits as five pages give, snippets only. Dates
    can't be asked for, only filtered by. https://docs.searxng.org/dev/search_api.html"""

    name = "searxng"
    variable = "SEARXNG_URL"
    method = "GET"
    max_pages = 5
    # Engines that know no pages repeat the first one.
    repeats_pages = True
    fields: ClassVar = {
        "url": "url",
        "title": "title",
        "snippet": "content",
        "published": "publishedDate",
        "score": "score",
    }

    def content(self, question: Question, page: int) -> Mapping[str, Any]:
        """Pages are counted from 1."""
        query = add_site_operators(question, max_chars=1000, max_words=100)
        return {"q": query, "format": "json", "pageno": str(page + 1)}

    def remedy(self, error: errors.RejectedError) -> str | None:
        """JSON is off in the engine's default settings."""
        if error.status != 403:
            return None
        return "JSON may be off: `search.formats` in its settings must list `json`"


class TavilySearch(LiveSearch):
    """Search by Tavily: at most 20 hits a query, with their text; dates come with news only.
    https://docs.tavily.com/api-reference/endpoint/search"""

    name = "tavily"
    base_url = "https://api.tavily.com"
    variable = "TAVILY_API_KEY"
    key_header = "Authorization"
    key_scheme = "Bearer "
    min_interval_s = 0.6
    fields: ClassVar = {
        "url": "url",
        "title": "title",
        "snippet": "content",
        "published": "published_date",
        "score": "score",
        "text": "raw_content",
    }

    def content(self, question: Question, page: int) -> Mapping[str, Any]:
        """Ask for texts, and neither an answer nor pictures."""
        del page
        body: dict[str, Any] = {
            "query": question.query,
            "topic": "general",
            "search_depth": "basic",
            "max_results": min(question.k, 20),
            "include_answer": False,
            "include_images": False,
            "include_raw_content": "text",
        }
        if question.as_of is not None:
            body["end_date"] = question.as_of.isoformat()
        return body | _domain_lists(question, ("include_domains", 300), ("exclude_domains", 150))


def _domain_lists(
    question: Question, include: tuple[str, int], exclude: tuple[str, int]
) -> dict[str, list[str]]:
    """Domains by the names that a service has for them, unless they are too many for it. A list
    that is too long would be refused; half of one would be wrong. Hits are filtered anyway."""
    pairs = ((include, question.include), (exclude, question.exclude))
    return {name: list(names) for (name, most), names in pairs if 0 < len(names) <= most}


def _strip_tags(value: object) -> str:
    return html.unescape(_TAG.sub("", http.as_text(value) or ""))


def add_site_operators(question: Question, *, max_chars: int, max_words: int) -> str:
    """The query with `site:` operators, as far as they fit; hits are filtered afterwards anyway."""
    query = " ".join(question.query.split()[:max_words])[:max_chars]
    wanted = " OR ".join(f"site:{domain}" for domain in question.include)
    names = question.exclude
    outermost = (n for n in names if not any(n != other and is_within(n, other) for other in names))
    parts = [wanted, *(f"-site:{name}" for name in outermost)]
    for part in filter(None, parts):
        longer = f"{query} {part}"
        if len(longer) <= max_chars and len(longer.split()) <= max_words:
            query = longer
    return query


def _wait_by_quota(headers: Mapping[str, str]) -> float | None:
    """Seconds until every used-up quota is refilled, where a service tells them side by side. Brave
    sends `X-RateLimit-Remaining: 0, 1000` with `X-RateLimit-Reset: 1, 1419704`: one number for each
    of its windows."""
    try:
        left = [int(n) for n in headers.get("X-RateLimit-Remaining", "").split(",") if n.strip()]
        resets = [float(n) for n in headers.get("X-RateLimit-Reset", "").split(",") if n.strip()]
    except ValueError:
        return None
    if not resets:
        return None
    if len(left) != len(resets):
        return resets[0]
    return max((reset for n, reset in zip(left, resets, strict=True) if n <= 0), default=resets[0])
