"""Searches: the protocol, its hits, and the HTTP client that live services share."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self

import aiohttp
import stamina

from heretix.core.errors import (
    ConfigError,
    MissingKeyError,
    RateLimitedError,
    RetryableError,
    ServerError,
)
from heretix.evidence.policy.publisher import read_address, read_host
from heretix.evidence.sources.extract import (
    Extract,
    clean_text,
    make_document,
    one_line,
    read_date,
    utc_now,
)
from heretix.providers.http import (
    Target,
    as_items,
    as_object,
    as_text,
    misshapen,
    read_response,
    transport_error,
)
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from heretix.evidence.document import Document

# What a search is: a question in, hits out, whoever answers it.
#
# An adapter passes the filters on as far as its service knows them. What comes back is filtered
# here
# once more, since services treat them as hints.

MAX_K: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One answer to a query."""

    url: str | None
    """None for a file of the user's."""
    title: str
    snippet: str
    published: date | None
    score: float | None
    """Higher is better, within one answer; None where the service ranks without telling how."""
    document: Document | None = None
    """The whole document, where the service has it; otherwise its page is to be fetched."""

    @property
    def text(self) -> str | None:
        """The whole text, where the service gave it."""
        return self.document.text if self.document else None

    @property
    def doc_id(self) -> str | None:
        """The document's id, where the service gave the document."""
        return self.document.doc_id if self.document else None


class Search(Protocol):
    """A member of `heretix.evidence.search`."""

    @property
    def name(self) -> str:
        """What it is called in messages and records."""
        ...

    async def search(
        self,
        query: str,
        k: int,
        as_of: date | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """At most `k` hits, best first.

        Nothing dated after `as_of`; undated hits stay. With `include`, only these domains and what
        is under them; nothing from those in `exclude`.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


def check_k(k: int) -> int:
    """`k` if it can be a number of hits."""
    if not 1 <= k <= MAX_K:
        raise ConfigError(f"`k` must be from 1 to {MAX_K}, got {k}")
    return k


def domains(names: Iterable[str]) -> tuple[str, ...]:
    """Domain names in the one spelling that hosts are compared in."""
    found = []
    for name in names:
        host = read_host(name.strip().removeprefix("*.").strip("."))
        if host is None:
            raise ConfigError(f"`{name}` must be a domain like example.org")
        found.append(host)
    return tuple(dict.fromkeys(found))


def host_of(url: str | None) -> str:
    """The host of `url`; empty where there is none."""
    address = read_address(url) if url else None
    return address.host if address else ""


def is_within(host: str, domain: str) -> bool:
    """`host` is `domain` or stands under it: `notexample.org` isn't within `example.org`."""
    return host == domain or host.endswith(f".{domain}")


def narrow(
    hits: Iterable[Hit],
    *,
    k: int,
    as_of: date | None,
    include: Sequence[str],
    exclude: Sequence[str],
) -> list[Hit]:
    """The first `k` hits that pass the filters, each address once."""
    only, never = domains(include), domains(exclude)
    kept: dict[str, Hit] = {}
    for hit in hits:
        host = host_of(hit.url)
        if as_of is not None and hit.published is not None and hit.published > as_of:
            continue
        if only and not any(is_within(host, domain) for domain in only):
            continue
        if any(is_within(host, domain) for domain in never):
            continue
        kept.setdefault(hit.url or hit.doc_id or hit.title, hit)
        if len(kept) == k:
            break
    return list(kept.values())


# Calls to search services: JSON over HTTP, politely spaced, repeated a few times when it helps.
#
# What can go wrong is mapped by `heretix.providers.http`, as for models. No key reaches a message.

DEFAULT_TIMEOUT_S: Final = 20.0
_MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
_SNIPPET_CHARS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How patiently a call is repeated."""

    attempts: int = 4
    timeout_s: float = 90.0
    wait_initial_s: float = 0.5
    wait_max_s: float = 10.0
    wait_stated_max_s: float = 30.0
    """A service that asks for more patience than this is not asked again."""


class ServiceClient:
    """Connections to one service, kept alive between calls."""

    def __init__(
        self,
        target: Target,
        headers: Mapping[str, str],
        *,
        min_interval_s: float,
        retry: Retry | None = None,
    ) -> None:
        self.target = target
        told = {"User-Agent": f"heretix/{VERSION}", "Accept": "application/json"}
        self._headers = {**told, **headers}
        self._min_interval_s = min_interval_s
        self._retry = retry or Retry()
        self._turn = asyncio.Lock()
        self._free_at = 0.0
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        """The JSON object at `path`."""
        return await self._call("GET", path, params=query)

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON object that `body`, sent to `path`, is answered with."""
        return await self._call("POST", path, json=body)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(self, method: str, path: str, **content: Any) -> Mapping[str, Any]:
        retry = self._retry
        async for attempt in stamina.retry_context(
            on=self._worth_another_try,
            attempts=retry.attempts,
            timeout=retry.timeout_s,
            wait_initial=retry.wait_initial_s,
            wait_max=retry.wait_max_s,
            wait_jitter=retry.wait_initial_s,
        ):
            with attempt:
                await self._wait_for_turn()
                return await self._exchange(method, path, content)
        raise AssertionError("a retry context ends with an answer or an exception")

    async def _wait_for_turn(self) -> None:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
            self._free_at = time.monotonic() + self._min_interval_s

    async def _exchange(
        self, method: str, path: str, content: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        url = self.target.base_url.rstrip("/") + path
        try:
            # A redirect would carry the key elsewhere.
            async with self._open().request(
                method, url, allow_redirects=False, **content
            ) as response:
                payload = await response.content.read(_MAX_ANSWER_BYTES + 1)
                while not response.content.at_eof() and len(payload) <= _MAX_ANSWER_BYTES:
                    payload += await response.content.read(_MAX_ANSWER_BYTES + 1 - len(payload))
                status, headers = response.status, response.headers.copy()
        except aiohttp.ClientResponseError as exc:
            # Its `repr` shows the headers that were sent, the key among them, so the error is
            # raised outside of this block: it then keeps neither a cause nor a context.
            failure = transport_error(self.target, exc)
        except (aiohttp.ClientError, OSError) as exc:
            raise transport_error(self.target, exc) from exc
        else:
            if len(payload) > _MAX_ANSWER_BYTES:
                raise ServerError(f"`{self.target.provider}` answered with more than can be right")
            wait_s = _wait_by_quota(headers) if status == 429 else None
            if wait_s is not None and "Retry-After" not in headers:
                headers["Retry-After"] = str(wait_s)
            return read_response(self.target, status, headers, payload).body
        raise failure

    def _worth_another_try(self, exc: Exception) -> bool | float:
        if isinstance(exc, RateLimitedError) and exc.retry_after_s is not None:
            stated = exc.retry_after_s
            return stated if stated <= self._retry.wait_stated_max_s else False
        return isinstance(exc, RetryableError)

    def _open(self) -> aiohttp.ClientSession:
        # Opened by the first call, since a session belongs to the event loop that it runs in.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self.target.timeout_s),
            )
        return self._session


def key_from(env: Mapping[str, str], variable: str, service: str) -> str:
    """The service's key, or what to do without one."""
    key = env.get(variable, "").strip()
    if not key:
        raise MissingKeyError(f"`{service}` needs {variable} in the environment; set it and repeat")
    return key


def results_in(target: Target, answer: Mapping[str, Any], *path: str) -> list[Mapping[str, Any]]:
    """The list of results at `path` in an answer."""
    *outer, last = path
    place: Mapping[str, Any] = answer
    for name in outer:
        place = as_object(place.get(name))
    if not isinstance(place.get(last), list):
        raise misshapen(target, f"a list of results in `{'.'.join(path)}`")
    return [as_object(item) for item in as_items(place.get(last))]


def service_hit(
    service: str,
    *,
    url: object,
    title: object,
    snippet: object,
    published: object,
    score: object,
    text: object = None,
    author: object = None,
) -> Hit | None:
    """A hit out of what a service sent; None where it has no address to go to."""
    address = (as_text(url) or "").strip()
    if not address.lower().startswith(("http://", "https://")):
        return None
    day = read_date(published)
    heading = one_line(as_text(title) or "") or address
    body = clean_text(as_text(text) or "")
    document = None
    if body:
        found = Extract(
            text=body,
            title=heading,
            author=one_line(as_text(author) or "") or None,
            published=day,
            published_method="search" if day else None,
        )
        document = make_document(
            found,
            raw=body.encode(),
            url=address,
            retrieved_at=utc_now(),
            meta={"text_by": service},
        )
    number = score if isinstance(score, int | float) and not isinstance(score, bool) else None
    return Hit(
        url=address,
        title=heading,
        snippet=" ".join((clean_text(as_text(snippet) or "") or body).split())[:_SNIPPET_CHARS],
        published=day,
        score=float(number) if number is not None and math.isfinite(number) else None,
        document=document,
    )


def with_sites(
    query: str, include: Sequence[str], exclude: Sequence[str], *, max_chars: int, max_words: int
) -> str:
    """`query` with `site:` operators, as far as they fit; hits are filtered afterwards anyway."""
    query = " ".join(query.split()[:max_words])[:max_chars]
    wanted = " OR ".join(f"site:{domain}" for domain in include)
    parts = [wanted, *(f"-site:{domain}" for domain in _outermost(exclude))]
    for part in filter(None, parts):
        longer = f"{query} {part}"
        if len(longer) <= max_chars and len(longer.split()) <= max_words:
            query = longer
    return query


def _outermost(names: Iterable[str]) -> list[str]:
    """Domains that stand under no other of them."""
    names = list(dict.fromkeys(names))
    return [n for n in names if not any(n != other and is_within(n, other) for other in names)]


def _wait_by_quota(headers: Mapping[str, str]) -> float | None:
    """Seconds until every used-up quota is refilled, where a service tells them side by side.

    Brave sends `X-RateLimit-Remaining: 0, 1000` with `X-RateLimit-Reset: 1, 1419704`: one number
    for each of its windows.
    """
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


# What live services share: a client that asks, an end to it, and a key from the environment.


class Service:
    """A service that is asked through a client of its own."""

    name: ClassVar[str]

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class KeyedService(Service):
    """A service with one known address and a key, which goes along in a header."""

    base_url: ClassVar[str]
    key_variable: ClassVar[str]
    key_header: ClassVar[str]
    key_scheme: ClassVar[str] = ""
    """What stands before the key in its header."""
    min_interval_s: ClassVar[float]
    """Between two requests, unless told otherwise."""

    def __init__(
        self,
        key: str,
        *,
        base_url: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        min_interval_s: float | None = None,
        retry: Retry | None = None,
    ) -> None:
        target = Target(
            provider=self.name,
            base_url=base_url or self.base_url,
            key=key,
            key_variable=self.key_variable,
            timeout_s=timeout_s,
        )
        super().__init__(
            ServiceClient(
                target,
                {self.key_header: f"{self.key_scheme}{key}"},
                min_interval_s=self.min_interval_s if min_interval_s is None else min_interval_s,
                retry=retry,
            )
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str], **options: Any) -> Self:
        """With the key that the environment holds."""
        return cls(key_from(env, cls.key_variable, cls.name), **options)
