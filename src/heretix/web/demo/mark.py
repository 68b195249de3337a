"""The marks of a store that holds the demonstration: pages say so, and it is made only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heretix.people import LOCAL, People

if TYPE_CHECKING:
    from heretix.store import Store

__all__ = ["is_marked", "is_whole", "mark", "mark_whole"]

_FILLED: Final = "demo.fill"
_WHOLE: Final = "demo.end"


def mark(store: Store) -> None:
    """Note in the audit log that a demonstration is put here."""
    People(store).audit.write(_FILLED, by=LOCAL)


def is_marked(store: Store) -> bool:
    """Whether a demonstration was put here."""
    return bool(People(store).audit.entries(what=_FILLED, limit=1))


def mark_whole(store: Store) -> None:
    """Note in the audit log that all of the demonstration is here."""
    People(store).audit.write(_WHOLE, by=LOCAL)


def is_whole(store: Store) -> bool:
    """Whether a demonstration was put here, and nobody stopped it."""
    return bool(People(store).audit.entries(what=_WHOLE, limit=1))
