"""Where the masthead leads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["NAVIGATION", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of the masthead; `below` are the addresses that belong to it."""

    label: str
    href: str
    below: tuple[str, ...] = ()

    def here(self, path: str) -> bool:
        """The reader is at this place."""
        return path == self.href or path.startswith(self.below)


NAVIGATION: Final = (
    Place("Claims", "/search", ("/runs/", "/claims")),
    Place("Measure", "/measure", ("/measure/",)),
    Place("Anomalies", "/anomalies"),
    Place("Compare", "/compare"),
    Place("Jobs", "/jobs", ("/jobs/",)),
    Place("Sources", "/policy", ("/policy/", "/bundles/")),
    Place("Episodes", "/episodes", ("/episodes/", "/leaderboard", "/ledger", "/profile")),
    Place("Method", "/method"),
)
