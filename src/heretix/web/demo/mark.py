"""The mark of a store that holds the demonstration, so that its pages say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heretix.people import LOCAL, People

if TYPE_CHECKING:
    from heretix.store import Store

__all__ = ["is_marked", "mark"]

_FILLED: Final = "demo.fill"


def mark(store: Store) -> None:
    """Note in the audit log that a demonstration is put here."""
    People(store).audit.write(_FILLED, by=LOCAL)


def is_marked(store: Store) -> bool:
    """Whether a demonstration was put here."""
    return bool(People(store).audit.entries(what=_FILLED, limit=1))
