"""Calls to search services: JSON over HTTP, politely spaced, repeated a few times when it helps.

What can go wrong is mapped by `heretix.providers.http`, as for models. No key reaches a message.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import stamina

from heretix.errors import MissingKeyError, RateLimitedError, RetryableError, ServerError
from heretix.evidence.extraction import Extract, make_document
from heretix.evidence.reading import clean_text, one_line, read_date, utc_now
from heretix.evidence.search.base import Hit, is_within
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

__all__ = ["Retry", "ServiceClient", "key_from", "results_in", "service_hit", "with_sites"]

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
