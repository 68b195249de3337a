"""Time: clocks, time stamps in UTC, and durations as people write them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final, Protocol

from heretix.core.errors import UsageError

UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
CENTURY_MS: Final = 36_500 * UNITS_MS["d"]
"""Longest time; beyond it there is no date any more."""
# As many digits as a number may have that is still compared with the longest duration.
_DURATION: Final = re.compile(r"(\d{1,15})(ms|s|m|h|d|w)")


_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""Linux stops its monotonic clock while a machine sleeps and has another that goes on; elsewhere
the monotonic one goes on."""


def elapsed_s() -> float:
    """Seconds since some moment in the past, those in which the machine slept included."""
    return time.monotonic() if _ELAPSED is None else time.clock_gettime(_ELAPSED)


def utc_now() -> str:
    """Read the machine's clock: UTC in ISO 8601, to the millisecond."""
    return utc_text(datetime.now(UTC))


def utc_text(moment: datetime | float) -> str:
    """Write a moment, or seconds since 1970, as the store does: UTC, to the millisecond."""
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_second() -> str:
    """Read the machine's clock: UTC in ISO 8601, to the second, as documents are stamped."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_text_of_ms(at_ms: int) -> str:
    """Write milliseconds since 1970 for people to read, to the second."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span_text(ms: int) -> str:
    """Write a length of time in its two largest whole units."""
    parts, left = [], ms
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNITS_MS[unit])
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "at once"


def parse_duration_ms(
    name: str,
    text: str,
    *,
    longest_ms: int = CENTURY_MS,
    rule: str = "at most a century (36500d)",
) -> int:
    """Read milliseconds from a duration such as 10m or 1d12h; `rule` says what is too long."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(
            f"`{name}` must be a duration such as 30s, 10m, 36h, 7d or 1d12h, got {text!r}"
        )
    length_ms = sum(int(number) * UNITS_MS[unit] for number, unit in parts)
    if length_ms > longest_ms:
        raise UsageError(f"`{name}` must be {rule}, got {text!r}")
    return length_ms


class Clock(Protocol):
    """Source of the time for an exchange."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class SystemClock:
    """The time of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, at_ms: int = 0) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
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
