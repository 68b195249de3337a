"""Searches: a question in, hits out, whoever answers it; and the registry of live services. An
adapter passes the filters on as far as its service knows them. What comes back is filtered here
once more, since services treat them as hints."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Unpack, cast

from heretix.core.errors import ConfigError
from heretix.core.plugins import Registry
from heretix.evidence.document import Document  # noqa: TC001 - pydantic looks it up
from heretix.evidence.policy.publisher import host_of, is_within, read_domains

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "MAX_K",
    "SERVICES",
    "Filters",
    "Hit",
    "Search",
    "SearchService",
    "narrow",
    "service_from_env",
]

MAX_K: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One answer to a query."""

    url: str | None  # None for a file of the user's
    title: str
    snippet: str
    published: date | None
    score: float | None
    """Higher is better, within one answer; None where the service ranks without telling how."""
    document: Document | None = None
    """The whole document, where the service has it; otherwise its page is to be fetched."""


class Filters(TypedDict, total=False):
    """Limits on hits: options of every search."""

    as_of: date | None  # Nothing dated after this day; undated hits stay
    include: Sequence[str]  # Only these domains, and what is under them
    exclude: Sequence[str]  # Nothing from these domains


class Search(Protocol):
    """A member of `heretix.evidence.search`."""

    @property
    def name(self) -> str:
        """Name in messages and records."""
        ...

    async def search(self, query: str, k: int, **filters: Unpack[Filters]) -> list[Hit]:
        """Find at most `k` hits, best first."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class SearchService(Protocol):
    """A live service as it is registered: a class, or whatever makes the search."""

    def from_env(self, env: Mapping[str, str], **options: Any) -> Search:
        """The search, with its key or address from `env`."""
        ...


def _as_service(found: Any) -> SearchService:
    if callable(getattr(found, "from_env", None)):
        return cast("SearchService", found)
    raise TypeError(f"a search must have `from_env(env)`, got {found!r}")


SERVICES: Final = Registry(
    "search",
    {
        "brave": "heretix.evidence.search.services:BraveSearch",
        "exa": "heretix.evidence.search.services:ExaSearch",
        "searxng": "heretix.evidence.search.services:SearxngSearch",
        "tavily": "heretix.evidence.search.services:TavilySearch",
    },
    _as_service,
)


def service_from_env(name: str, env: Mapping[str, str], **options: Any) -> Search:
    """The live service called `name`, with its key or address from `env`."""
    if not SERVICES.offers(name):
        known = ", ".join(f"`{one}`" for one in SERVICES.names())
        raise ConfigError(f"`search` must be one of {known}, got {name!r}")
    return SERVICES.load(name).from_env(env, **options)


def narrow(hits: Iterable[Hit], *, k: int, **filters: Unpack[Filters]) -> list[Hit]:
    """The first `k` hits that pass the filters, each address once."""
    only, never = read_domains(filters.get("include", ())), read_domains(filters.get("exclude", ()))
    last = filters.get("as_of") or date.max
    kept: dict[str, Hit] = {}
    for hit in hits:
        host = host_of(hit.url)
        if (
            (hit.published is not None and hit.published > last)
            or (only and not any(is_within(host, domain) for domain in only))
            or any(is_within(host, domain) for domain in never)
        ):
            continue
        doc_id = hit.document.doc_id if hit.document else None
        kept.setdefault(hit.url or doc_id or hit.title, hit)
        if len(kept) == k:
            break
    return list(kept.values())
