"""Pages from the web, fetched politely and never from inside the walls.

An address that a document or a search result names must not make this machine call itself or its
neighbours: every host is resolved here, every address it has must be public, and the connection
goes to an address that was checked, at every hop of a redirect anew.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Self
from urllib.robotparser import RobotFileParser

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from heretix.core.errors import (
    CallTimeoutError,
    ConnectionFailedError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    ServerError,
    UnreadableError,
)
from heretix.evidence.sources.extract import (
    DEFAULT_LIMITS,
    READABLE_TYPES,
    Failure,
    Limits,
    extract,
    inflate,
    make_document,
    utc_now,
)
from heretix.providers.http import stated_wait_s
from heretix.version import VERSION

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Iterable
    from types import TracebackType

    from heretix.evidence.document import Document

USER_AGENT: Final = f"heretix/{VERSION} (evidence reader)"
MAX_URL_CHARS: Final = 4096
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES: Final = 65_536
_PAGES_AHEAD: Final = 32
"""Pages that wait for their turn: enough for a slow host not to hold up the others."""
_ROBOTS_BYTES: Final = 500_000
# Addresses that carry an IPv4 address of the far end inside (RFC 6052).
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Limits and manners of fetching."""

    limits: Limits = DEFAULT_LIMITS
    timeout_s: float = 20.0
    """For one page with all of its redirects; waiting for one's turn doesn't count."""
    max_redirects: int = 5
    host_delay_s: float = 1.0
    """From the end of one request to the start of the next at the same host."""
    max_concurrency: int = 8
    allow_private: bool = False
    """Let addresses of this machine and its networks be fetched."""
    private_hosts: frozenset[str] = frozenset()
    """Hosts, by exact name, that alone may have such addresses: an archive in one's own network.
    What they redirect to isn't covered."""
    obey_robots: bool = False
    """Ask each site's robots.txt first. Off by default: pages are fetched one by one because a
    user named them, as a browser would, and never by following links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Response to an address."""

    requested_url: str
    url: str
    """After redirects."""
    media_type: str | None
    data: bytes = field(repr=False)
    """Decompressed."""
    retrieved_at: str


@dataclass(slots=True)
class _Host:
    """One host's turn-taking."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0


class Fetcher:
    """Connections for fetching; an asynchronous context manager."""

    def __init__(
        self, options: FetchOptions | None = None, *, resolver: AbstractResolver | None = None
    ) -> None:
        self.options = options or FetchOptions()
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(self.options.max_concurrency)
        self._hosts: dict[str, _Host] = defaultdict(_Host)
        self._robots: dict[str, RobotFileParser] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def fetch(self, url: str) -> Page:
        """Fetch one page, or raise a `ProviderError` or an `UnreadableError` that says why not."""
        target = _checked(url)
        if self.options.obey_robots:
            await self._ask_robots(target)
        return await self._follow(url, target)

    async def document(self, url: str) -> Document:
        """Fetch one page and read it."""
        page = await self.fetch(url)
        # Off the event loop: a long page takes its time, and others shouldn't wait for it.
        found = await asyncio.to_thread(
            extract,
            page.data,
            name=page.url,
            media_type=page.media_type,
            url=page.url,
            # What was let through compressed may be larger once unpacked.
            limits=replace(self.options.limits, max_bytes=self.options.limits.max_decoded_bytes),
        )
        return make_document(found, raw=page.data, url=page.url, retrieved_at=page.retrieved_at)

    async def documents(self, urls: Iterable[str]) -> AsyncGenerator[Document | Failure, None]:
        """Fetch and read many pages, a few at a time; they come as they are ready."""

        async def attempt(url: str) -> Document | Failure:
            try:
                return await self.document(url)
            except (ProviderError, UnreadableError) as exc:
                return Failure(url, str(exc))

        waiting = iter(dict.fromkeys(urls))
        running: set[asyncio.Task[Document | Failure]] = set()
        try:
            while True:
                for url in islice(waiting, _PAGES_AHEAD - len(running)):
                    running.add(asyncio.create_task(attempt(url)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _follow(self, url: str, target: URL) -> Page:
        left_s = self.options.timeout_s
        for _ in range(self.options.max_redirects + 1):
            host = self._hosts[target.host or ""]
            # The host's turn comes first, so that nobody holds a slot while waiting for it.
            async with host.lock:
                await asyncio.sleep(max(0.0, host.free_at - time.monotonic()))
                async with self._slots:
                    begun = time.monotonic()
                    try:
                        answer = await self._get(url, target, left_s)
                    finally:
                        host.free_at = time.monotonic() + self.options.host_delay_s
            left_s -= time.monotonic() - begun
            if isinstance(answer, Page):
                return answer
            target = answer
        raise RejectedError(
            f"`{url}` must lead to a page within {self.options.max_redirects} redirects"
        )

    async def _get(self, url: str, target: URL, left_s: float) -> Page | URL:
        """One request: a page, or where the server sends us next."""
        if not self.options.allow_private and target.host not in self.options.private_hosts:
            _check_literal(target)
        try:
            async with (
                asyncio.timeout(max(left_s, 0.001)),
                self._open().get(target, allow_redirects=False) as response,
            ):
                if response.status in _REDIRECTS:
                    place = response.headers.get("Location", "")
                    return _checked(place, base=target)
                return await self._read(url, target, response)
        except TimeoutError as exc:
            raise CallTimeoutError(
                f"`{url}` must arrive within {self.options.timeout_s:g} s, and didn't"
            ) from exc
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as exc:
            raise RejectedError(f"`{target}` isn't an address that can be fetched") from exc
        except (aiohttp.ClientError, OSError) as exc:
            reason = str(exc).split("\n", 1)[0][:200] or type(exc).__name__
            raise ConnectionFailedError(f"`{url}` couldn't be reached: {reason}") from exc

    async def _read(self, url: str, target: URL, response: aiohttp.ClientResponse) -> Page:
        _check_status(url, response)
        media_type = response.headers.get("Content-Type")
        told = (media_type or "").partition(";")[0].strip().lower()
        if told and told not in READABLE_TYPES and told != "application/octet-stream":
            raise RejectedError(f"`{url}` must be HTML, PDF, Markdown or text, got {told!r}")
        limits = self.options.limits
        body = await _read_within(response, limits.max_bytes)
        if body is None:
            raise RejectedError(
                f"`{url}` must be at most {limits.max_bytes} bytes, and is larger; it is refused"
            )
        encoding = response.headers.get("Content-Encoding", "")
        data = inflate(body, encoding, name=url, max_bytes=limits.max_decoded_bytes)
        return Page(
            requested_url=url,
            url=str(target.with_fragment(None)),
            media_type=media_type,
            data=data,
            retrieved_at=utc_now(),
        )

    async def _ask_robots(self, target: URL) -> None:
        origin = str(target.origin())
        if origin not in self._robots:
            self._robots[origin] = await self._read_robots(target)
        if not self._robots[origin].can_fetch(USER_AGENT, str(target)):
            raise RejectedError(f"`{target}` is closed to programs by the site's robots.txt")

    async def _read_robots(self, target: URL) -> RobotFileParser:
        rules = RobotFileParser()
        address = target.origin().with_path("/robots.txt")
        try:
            page = await self._follow(str(address), address)
        except RejectedError:
            rules.parse([])  # No such file: everything is open.
        else:
            rules.parse(page.data[:_ROBOTS_BYTES].decode("utf-8", "replace").splitlines())
        return rules

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            resolver = self._resolver or ThreadedResolver()
            if not self.options.allow_private:
                resolver = _PublicResolver(resolver, self.options.private_hosts)
            self._session = aiohttp.ClientSession(
                # Encodings are undone here, within a limit, and cookies have no business here.
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False),
                headers={"User-Agent": USER_AGENT, "Accept-Encoding": "gzip, deflate"},
                trust_env=False,
            )
        return self._session


class _PublicResolver(AbstractResolver):
    """Resolves names, and refuses those that have any address which isn't public.

    What it returns is what is connected to, so that a name can't change its meaning in between.
    """

    def __init__(self, inner: AbstractResolver, private_hosts: frozenset[str]) -> None:
        self._inner = inner
        self._private_hosts = private_hosts

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily | int = 0
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)  # type: ignore[arg-type]
        for result in found:
            if host not in self._private_hosts and not is_public(result["host"]):
                raise _inside(host, result["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()


def is_public(address: str) -> bool:
    """Check that an IP address belongs to the public internet, whatever it is wrapped in."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        inner = ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None and not is_public(str(inner)):
            return False
    return ip.is_global and not (
        ip.is_multicast
        or ip.is_reserved
        or ip.is_loopback
        or ip.is_link_local
        or ip.is_private
        or ip.is_unspecified
    )


def _checked(text: str, base: URL | None = None) -> URL:
    """`text` as an address that may be asked for, seen from `base`."""
    try:
        url = URL(text) if base is None else base.join(URL(text))
        usable = bool(text) and url.scheme in {"http", "https"} and bool(url.host)
    except (ValueError, TypeError):
        usable = False
    if not usable or len(text) > MAX_URL_CHARS:
        raise RejectedError(
            f"`{text[:200]}` must be an address that begins with http:// or https://"
        )
    if url.user is not None or url.password is not None:
        raise RejectedError(f"`{url.host}` must be asked for without a user and password")
    return url.with_fragment(None)


def _check_literal(url: URL) -> None:
    # Numbers aren't resolved, so that the resolver wouldn't see them.
    host = (url.host or "").strip("[]")
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return
    if not is_public(host):
        raise _inside(host, host)


def _inside(host: str, address: str) -> RejectedError:
    return RejectedError(
        f"`{host}` must be on the public internet, got {address}; "
        "name its host in HERETIX_PRIVATE_HOSTS if it is meant"
    )


def _check_status(url: str, response: aiohttp.ClientResponse) -> None:
    status = response.status
    if status in {429, 503}:
        wait_s = stated_wait_s(response.headers, {})
        raise RateLimitedError(f"`{url}` answered {status}", status=status, retry_after_s=wait_s)
    if status >= 500:
        raise ServerError(f"`{url}` answered {status}", status=status)
    if status != 200:
        raise RejectedError(f"`{url}` answered {status}", status=status)


async def _read_within(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """The body; None as soon as it is known to be too large."""
    if response.content_length is not None and response.content_length > max_bytes:
        return None
    parts: list[bytes] = []
    length = 0
    async for part in response.content.iter_chunked(_CHUNK_BYTES):
        parts.append(part)
        length += len(part)
        if length > max_bytes:
            return None
    return b"".join(parts)
