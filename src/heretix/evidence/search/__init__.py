"""Searches: the local corpus and live services behind one small protocol, recorded and replayed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, cast

from heretix.core.errors import ConfigError
from heretix.evidence.search.base import Hit, Search
from heretix.evidence.search.local import LocalSearch, RecordingSearch, ReplaySearch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "GIVES_TEXT",
    "SERVICES",
    "Hit",
    "LocalSearch",
    "RecordingSearch",
    "ReplaySearch",
    "Search",
    "service_from_env",
]

SERVICES: Final[Mapping[str, str]] = {
    "brave": "BraveSearch",
    "exa": "ExaSearch",
    "searxng": "SearxngSearch",
    "tavily": "TavilySearch",
}
"""Live services by name; each is a module here with this class."""

GIVES_TEXT: Final = frozenset({"exa", "tavily"})
"""Services whose hits come with the pages' text. For the others there is `FullTextSearch`."""


def service_from_env(name: str, env: Mapping[str, str], **options: Any) -> Search:
    """The live service called `name`, with its key or address from `env`."""
    if name not in SERVICES:
        known = ", ".join(f"`{one}`" for one in SERVICES)
        raise ConfigError(f"`search` must be one of {known}, got {name!r}")
    # Imported as needed: each brings an HTTP client along.
    module = importlib.import_module(f"{__name__}.services")
    return cast("Search", getattr(module, SERVICES[name]).from_env(env, **options))
