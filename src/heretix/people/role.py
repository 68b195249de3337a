"""What a person may do, in three steps."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Role"]


class Role(StrEnum):
    """Each step may do all that the one before may; compared by rank, not by spelling."""

    READER = "reader"
    """Look at everything that was measured."""
    EXPLORER = "explorer"
    """Measure, within quotas, and take part in episodes."""
    OPERATOR = "operator"
    """Look after people, jobs and episodes."""

    @property
    def rank(self) -> int:
        """0 for the one that may do least."""
        return list(Role).index(self)

    def __lt__(self, other: object) -> bool:
        return self.rank < _rank(other)

    def __le__(self, other: object) -> bool:
        return self.rank <= _rank(other)

    def __gt__(self, other: object) -> bool:
        return self.rank > _rank(other)

    def __ge__(self, other: object) -> bool:
        return self.rank >= _rank(other)


def _rank(other: object) -> int:
    # Text would be compared by spelling, where an explorer comes before a reader.
    if not isinstance(other, Role):
        raise TypeError(f"a role is compared with a role, got {other!r}")
    return other.rank
