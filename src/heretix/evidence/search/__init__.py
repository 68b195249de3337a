"""Searches: the registry of live services, which plug-ins add to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from heretix.core.errors import ConfigError
from heretix.core.plugins import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heretix.evidence.search.base import Search

__all__ = ["SERVICES", "SearchService", "service_from_env"]


class SearchService(Protocol):
    """A live service as it is registered: a class, or whatever makes the search."""

    gives_text: bool
    """Hits come with the pages' text. For the others every page is fetched."""

    def from_env(self, env: Mapping[str, str], **options: Any) -> Search:
        """The search, with its key or address from `env`."""
        ...


def _as_service(found: Any) -> SearchService:
    if callable(getattr(found, "from_env", None)) and hasattr(found, "gives_text"):
        return cast("SearchService", found)
    raise TypeError(f"a search must have `gives_text` and `from_env(env)`, got {found!r}")


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
