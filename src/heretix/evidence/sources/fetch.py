"""Pages from the web, fetched politely and never from inside the walls. An address that a document
or a search result names must not make this machine call itself or its neighbours: every host is
resolved here, every address it has must be public, and the connection goes to an address that was
checked, at every hop of a redirect anew."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from heretix.core import errors
from heretix.core.clock import utc_second
from heretix.evidence.sources import extract
from heretix.evidence.sources.extract import DEFAULT_LIMITS, Failure, Limits
from heretix.providers.http import read_wait_s
from heretix.version import VERSION

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Iterable

    from heretix.evidence.document import Document

USER_AGENT: Final = f"heretix/{VERSION} (evidence reader)"
MAX_URL_CHARS: Final = 4096
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES: Final = 65_536
_PAGES_AHEAD: Final = 32
"""Pages that wait for their turn: enough for a slow host not to hold up the others."""
# Ranges that no page of the public internet has, from the registries of special addresses: which of
# them a version of Python knows differs.
_RESERVED_RANGES: Final = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 "
    "192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    "::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001:db8::/32 2620:4f:8000::/48 "
    "3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8 "
)
_RESERVED: Final = tuple(ipaddress.ip_network(one) for one in _RESERVED_RANGES.split())
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")  # All that is given out
# Addresses that carry an IPv4 address of the far end inside, and where it ends: NAT64 (RFC 6052),
# mapped, translated (RFC 2765), 6to4. ISATAP has its mark in front of it wherever it stands.
_CARRIERS: Final = tuple(
    (ipaddress.IPv6Network(network), shift)
    for network, shift in (
        ("64:ff9b::/96", 0),
        ("::ffff:0:0/96", 0),
        ("::ffff:0:0:0/96", 0),
        ("2002::/16", 80),
    )
)
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


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
    allow_private: bool = False  # Let addresses of this machine and its networks be fetched
    private_hosts: frozenset[str] = frozenset()
    """Hosts, by exact name, that alone may have such addresses: an archive in one's own network.
    What they redirect to isn't covered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Response to an address."""

    url: str  # After redirects
    media_type: str | None
    data: bytes = field(repr=False)  # Decompressed
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def fetch(self, url: str) -> Page:
        """Fetch one page, or raise a `ProviderError` or an `UnreadableError` that says why not."""
        # The site's robots.txt isn't asked: a page is fetched because a user named it, as a browser
        # would, and never by following links.
        target, left_s = _check_url(url), self.options.timeout_s
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
        raise errors.RejectedError(
            f"`{url}` must lead to a page within {self.options.max_redirects} redirects"
        )

    async def document(self, url: str) -> Document:
        """Fetch one page and read it."""
        page = await self.fetch(url)
        # Off the event loop: a long page takes its time, and others shouldn't wait for it.
        found = await asyncio.to_thread(
            extract.extract,
            page.data,
            name=page.url,
            media_type=page.media_type,
            url=page.url,
            # What was let through compressed may be larger once unpacked.
            limits=replace(self.options.limits, max_bytes=self.options.limits.max_decoded_bytes),
        )
        return extract.make_document(
            found, raw=page.data, url=page.url, retrieved_at=page.retrieved_at
        )

    async def documents(self, urls: Iterable[str]) -> AsyncGenerator[Document | Failure, None]:
        """Fetch and read many pages, a few at a time; they come as they are ready."""

        async def attempt(url: str) -> Document | Failure:
            try:
                return await self.document(url)
            except (errors.ProviderError, errors.UnreadableError) as exc:
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

    async def _get(self, url: str, target: URL, left_s: float) -> Page | URL:
        """One request: a page, or where the server sends us next."""
        host = (target.host or "").strip("[]")
        if not self.options.allow_private and target.host not in self.options.private_hosts:
            # Numbers aren't resolved, so that the resolver wouldn't see them.
            with contextlib.suppress(ValueError):
                ipaddress.ip_address(host.partition("%")[0])
                _require_public(host, host)
        try:
            async with (
                asyncio.timeout(max(left_s, 0.001)),
                self._open().get(target, allow_redirects=False) as response,
            ):
                if response.status in _REDIRECTS:
                    place = response.headers.get("Location", "")
                    return _check_url(place, base=target)
                return await self._read(url, target, response)
        except TimeoutError as exc:
            raise errors.CallTimeoutError(
                f"`{url}` must arrive within {self.options.timeout_s:g} s, and didn't"
            ) from exc
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as exc:
            raise errors.RejectedError(f"`{target}` isn't an address that can be fetched") from exc
        except (aiohttp.ClientError, OSError) as exc:
            reason = str(exc).split("\n", 1)[0][:200] or type(exc).__name__
            raise errors.ConnectionFailedError(f"`{url}` couldn't be reached: {reason}") from exc

    async def _read(self, url: str, target: URL, response: aiohttp.ClientResponse) -> Page:
        status, limits = response.status, self.options.limits
        if status in {429, 503}:
            wait_s = read_wait_s(response.headers, {})
            message = f"`{url}` answered {status}"
            raise errors.RateLimitedError(message, status=status, retry_after_s=wait_s)
        if status != 200:
            kind = errors.ServerError if status >= 500 else errors.RejectedError
            raise kind(f"`{url}` answered {status}", status=status)
        media_type = response.headers.get("Content-Type")
        told = (media_type or "").partition(";")[0].strip().lower()
        if told and told not in extract.READABLE_TYPES and told != "application/octet-stream":
            raise errors.RejectedError(f"`{url}` must be HTML, PDF, Markdown or text, got {told!r}")
        body = bytearray()
        length = response.content_length or 0
        if length <= limits.max_bytes:
            async for part in response.content.iter_chunked(_CHUNK_BYTES):
                body += part
                if (length := len(body)) > limits.max_bytes:
                    break
        if length > limits.max_bytes:
            raise errors.RejectedError(
                f"`{url}` must be at most {limits.max_bytes} bytes, and is larger; it is refused"
            )
        encoding = response.headers.get("Content-Encoding", "")
        data = extract.inflate(bytes(body), encoding, name=url, max_bytes=limits.max_decoded_bytes)
        return Page(
            url=str(target.with_fragment(None)),
            media_type=media_type,
            data=data,
            retrieved_at=utc_second(),
        )

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
    """Resolves names, and refuses those that have any address which isn't public. What it returns
    is what is connected to, so that a name can't change its meaning in between."""

    def __init__(self, inner: AbstractResolver, private_hosts: frozenset[str]) -> None:
        self._inner = inner
        self._private_hosts = private_hosts

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily | int = 0
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)  # type: ignore[arg-type]
        for result in found:
            if host not in self._private_hosts:
                _require_public(host, result["host"])
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
        shift = next((shift for network, shift in _CARRIERS if ip in network), None)
        if shift is None and (int(ip) >> 32) & 0xFFFFFFFF in _ISATAP:
            shift = 0
        if shift is not None:
            return is_public(str(ipaddress.IPv4Address((int(ip) >> shift) & 0xFFFFFFFF)))
        if ip not in _PUBLIC_V6:
            return False
    return ip.is_global and not any(ip in network for network in _RESERVED)


def _check_url(text: str, base: URL | None = None) -> URL:
    """`text` as an address that may be asked for, seen from `base`."""
    try:
        url = URL(text) if base is None else base.join(URL(text))
        usable = bool(text) and url.scheme in {"http", "https"} and bool(url.host)
    except (ValueError, TypeError):
        usable = False
    if not usable or len(text) > MAX_URL_CHARS:
        raise errors.RejectedError(
            f"`{text[:200]}` must be an address that begins with http:// or https://"
        )
    if url.user is not None or url.password is not None:
        raise errors.RejectedError(f"`{url.host}` must be asked for without a user and password")
    return url.with_fragment(None)


def _require_public(host: str, address: str) -> None:
    if not is_public(address):
        raise errors.RejectedError(
            f"`{host}` must be on the public internet, got {address}; "
            "name its host in HERETIX_PRIVATE_HOSTS if it is meant"
        )
