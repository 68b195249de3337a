"""Clocks: what an exchange asks for the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

from heretix.core.errors import UsageError


def utc_now() -> str:
    """Read the clock: UTC in ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Clock(Protocol):
    """Whatever knows the time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class SystemClock:
    """The time of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000


class HeldClock:
    """A clock that stands still until it is moved."""

    def __init__(self, at_ms: int = 0) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        """The moment it is held at."""
        return self._at_ms

    def hold(self, at_ms: int) -> None:
        """Hold it at a later moment."""
        if at_ms < self._at_ms:
            raise UsageError(
                f"`at_ms` must not lie before {self._at_ms}, where the clock is held, got {at_ms}; "
                "time only runs forwards"
            )
        self._at_ms = at_ms

    def advance(self, ms: int) -> int:
        """Move it on, and say what time it is then."""
        self.hold(self._at_ms + ms)
        return self._at_ms
