"""How fast one model is called: as fast as it lets us, and no faster.

Three brakes, each for its own reason. The *window* bounds calls in flight and adapts to what the
provider bears: it doubles while all is well, steps up once trouble has been seen, and halves on
"too many requests" (additive increase, multiplicative decrease). The *rates* hold to requests and
tokens per minute, from the configuration or from the provider's own headers. The *pause* obeys
`Retry-After`: when one call is told to wait, all of them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.errors import RateLimitedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from heretix.providers.base import RateLimits

__all__ = ["Limits", "Pace"]

_ERROR_SHARE: Final = 0.3
"""Of the last calls: above this share of server errors, the provider is taken as overloaded."""
_RECENT: Final = 20
_SLOWER: Final = 2.0
"""Calls this many times slower than the quickest seen: more of them would only queue up."""
_HEADROOM: Final = 0.95
"""Part of a provider's stated rate that is used: clocks differ, and others may share the key."""
_PAUSE_CAP_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the user allows. `fixed` keeps the window at `concurrency` until trouble comes."""

    concurrency: int
    fixed: bool = True
    rpm: float | None = None
    tpm: float | None = None


class _Rate:
    """Spreads amounts evenly over time: no more than `per_minute`, and no bursts."""

    def __init__(self, per_minute: float | None) -> None:
        self.per_minute = per_minute
        self._free_at = 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self._free_at - now) if self.per_minute else 0.0

    def take(self, amount: float, now: float) -> None:
        if self.per_minute:
            self._free_at = max(self._free_at, now) + amount * 60.0 / self.per_minute


class Pace:
    """The brakes of one model. Belongs to one event loop."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] | None = None) -> None:
        self._most = limits.concurrency
        self._limit = float(limits.concurrency if limits.fixed else min(16, limits.concurrency))
        self._growing_fast = True
        self._clock = clock or asyncio.get_running_loop().time
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._requests = _Rate(limits.rpm)
        self._tokens = _Rate(limits.tpm)
        self._rates_given = (limits.rpm is not None, limits.tpm is not None)
        self._paused_until = 0.0
        self._recent: deque[bool] = deque(maxlen=_RECENT)
        self._quickest_s = float("inf")
        self._last_cut = -1.0
        self._average_tokens = 0.0

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""
        return max(1, int(self._limit))

    @property
    def in_flight(self) -> int:
        """Calls that are in flight now."""
        return self._in_flight

    @contextlib.asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Wait for a turn, then hold a place while the call runs. Learns from how it ends."""
        await self._turn()
        begun = self._clock()
        try:
            yield
        except RetryableError as exc:
            self._failed(exc, begun)
            raise
        else:
            self._succeeded(self._clock() - begun)
        finally:
            self._leave()

    def heard(self, limits: RateLimits | None, tokens: int | None) -> None:
        """Take note of what a reply said of the provider's limits, and of the tokens it took."""
        now = self._clock()
        if tokens:
            # The tokens of a call are known when it is over; the next ones wait for them.
            self._tokens.take(tokens, now)
        if limits is None:
            return
        rpm_given, tpm_given = self._rates_given
        if limits.rpm and not rpm_given:
            self._requests.per_minute = limits.rpm * _HEADROOM
        if limits.tpm and not tpm_given:
            self._tokens.per_minute = limits.tpm * _HEADROOM

    async def _turn(self) -> None:
        while self._in_flight >= self.limit:
            await self._wait_for_place()
        self._in_flight += 1
        try:
            # Time is what is waited for here, not an event, and each wait may find a longer one.
            while (wait_s := self._brakes_s()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(wait_s)
            self._requests.take(1.0, self._clock())
        except BaseException:
            self._leave()
            raise

    async def _wait_for_place(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # A place that was given to somebody who left goes to the next.
            if future.done() and not future.cancelled():
                self._wake()
            raise

    def _brakes_s(self) -> float:
        now = self._clock()
        return max(
            self._paused_until - now, self._requests.wait_s(now), self._tokens.wait_s(now), 0.0
        )

    def _leave(self) -> None:
        self._in_flight -= 1
        self._wake()

    def _wake(self) -> None:
        free = self.limit - self._in_flight
        while free > 0 and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                free -= 1

    def _succeeded(self, latency_s: float) -> None:
        self._recent.append(True)
        self._quickest_s = min(self._quickest_s, latency_s)
        if self._limit >= self._most or latency_s > _SLOWER * self._quickest_s + 0.05:
            return
        if self._in_flight < self._limit - 1:
            return  # The window isn't what holds us back; a wider one would teach nothing.
        self._limit = min(
            self._most, self._limit + (1.0 if self._growing_fast else 1 / self._limit)
        )

    def _failed(self, exc: RetryableError, begun: float) -> None:
        self._recent.append(False)
        if isinstance(exc, RateLimitedError):
            if exc.retry_after_s is not None:
                until = self._clock() + min(exc.retry_after_s, _PAUSE_CAP_S)
                self._paused_until = max(self._paused_until, until)
            self._cut(begun)
        elif self._overloaded():
            self._cut(begun)

    def _overloaded(self) -> bool:
        full = len(self._recent) == _RECENT
        return full and self._recent.count(False) > _ERROR_SHARE * _RECENT

    def _cut(self, begun: float) -> None:
        """Halve the window, once for all calls that were in flight together."""
        self._growing_fast = False
        if begun > self._last_cut:
            self._last_cut = self._clock()
            self._limit = max(1.0, self._limit / 2)
