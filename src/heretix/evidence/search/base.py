"""Searches: a question in, hits out, whoever answers it.

An adapter passes the filters on as far as its service knows them. What comes back is filtered here
once more, since services treat them as hints.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date  # noqa: TC003 - pydantic looks it up
from typing import TYPE_CHECKING, Final, Protocol

from heretix.core.errors import ConfigError
from heretix.evidence.document import Document  # noqa: TC001 - pydantic looks it up
from heretix.evidence.policy.publisher import read_address, read_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
        """Name in messages and records."""
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
    address = read_address(url)
    return address.host if address else ""


def is_within(host: str, domain: str) -> bool:
    """`host` is `domain` or stands under it: `notexample.org` isn't within `example.org`."""
    return host == domain or host.endswith(f".{domain}")


@dataclass(frozen=True, slots=True)
class Question:
    """A query with its filters; domains are in the spelling that hosts are compared in."""

    query: str
    k: int
    as_of: date | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]


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
