"""A limit on how much one person or address may ask of this process in a short time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from heretix.errors import TooManyRequestsError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RateLimiter"]


class RateLimiter:
    """A bucket of tokens for each key: it fills at `per_s` and holds `burst`.

    Only keys that asked lately are kept; a bucket that is left alone is full again anyway.
    """

    def __init__(
        self,
        *,
        per_s: float,
        burst: float,
        clock: Callable[[], float] = time.monotonic,
        max_keys: int = 10_000,
    ) -> None:
        if per_s <= 0 or burst <= 0 or max_keys < 1:
            raise ValueError(f"rates must be above 0, got per_s={per_s}, burst={burst}")
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """How much was in each bucket, and when; the one used last stands last."""
        self._lock = threading.Lock()

    def take(self, key: str, cost: float = 1.0) -> float:
        """Take `cost` out of a bucket. 0 when it was there, else the seconds until it will be."""
        with self._lock:
            now = self._clock()
            level, then = self._buckets.pop(key, (self._burst, now))
            level = min(self._burst, level + (now - then) * self._per_s)
            enough = level >= cost
            self._buckets[key] = (level - cost if enough else level, now)
            if len(self._buckets) > self._max_keys:
                self._buckets.popitem(last=False)
        return 0.0 if enough else (cost - level) / self._per_s

    def check(self, key: str, cost: float = 1.0) -> None:
        """Take, or raise and say when to come back."""
        wait_s = self.take(key, cost)
        if wait_s:
            raise TooManyRequestsError(
                f"too many requests in a short time; try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
