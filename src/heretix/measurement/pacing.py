"""Pacing: how fast one model is called, and the budget at which calls stop."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.core.errors import ConfigError, RateLimitedError, RetryableError
from heretix.providers.prices import Price, PriceTable, cost_micros

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from heretix.providers.base import RateLimits
    from heretix.providers.catalog import ModelId

# What calls cost, as they are made, and the point at which to stop.


class Spending:
    """The running total of all lanes, from the providers' own token counts.

    An unknown price makes the total unknown, not zero; a budget then can't be kept and is refused
    at the door.
    """

    def __init__(
        self, prices: PriceTable, models: tuple[ModelId, ...], *, budget_usd: float | None = None
    ) -> None:
        self._prices = {model: prices.find(model) for model in models}
        self.budget_usd = budget_usd
        self._tokens = dict.fromkeys(models, (0, 0))
        """Read and written, per model: a sum of many small costs is rounded once, not each."""
        self._unknown = False
        unpriced = [model for model, price in self._prices.items() if price is None]
        if budget_usd is not None and unpriced:
            raise ConfigError(
                f"`budget_usd` can't be kept: the price of {unpriced[0]} isn't known; "
                "put it into a table of yours and name that with HERETIX_PRICES"
            )

    def price_of(self, model: ModelId) -> Price | None:
        """The price of a model; None where it isn't known."""
        return self._prices[model]

    def charge(self, model: ModelId, tokens_in: int | None, tokens_out: int | None) -> None:
        """Add a call that was answered."""
        price = self._prices[model]
        if price is not None and price.is_free:
            return
        if price is None or tokens_in is None or tokens_out is None:
            self._unknown = True
            return
        read, written = self._tokens[model]
        self._tokens[model] = (read + tokens_in, written + tokens_out)

    @property
    def spent_usd(self) -> float | None:
        """Dollars spent so far; None once a call's cost couldn't be told."""
        if self._unknown:
            return None
        prices = self._prices
        return (
            sum(
                cost_micros(price, *self._tokens[model])
                for model, price in prices.items()
                if price is not None
            )
            / 1e6
        )

    @property
    def exhausted(self) -> bool:
        """The budget is used up, or can't be kept because a provider told no tokens."""
        if self.budget_usd is None:
            return False
        return self.spent_usd is None or self.spent_usd >= self.budget_usd


# How fast one model is called: as fast as it lets us, and no faster.
#
# Three brakes, each for its own reason. The *window* bounds calls in flight and adapts to what the
# provider bears: it doubles while all is well, steps up once trouble has been seen, and halves on
# "too many requests" (additive increase, multiplicative decrease). The *rates* hold to requests and
# tokens per minute, from the configuration or from the provider's own headers. The *pause* obeys
# `Retry-After`: when one call is told to wait, all of them wait.

_FIRST_WINDOW: Final = 16
_ERROR_SHARE: Final = 0.3
"""Of the last calls: above this share of server errors, the provider is taken as overloaded."""
_RECENT: Final = 100
"""Calls that are looked back on: so many that one random failure in ten never looks like three."""
_TYPICAL: Final = 50
"""Answers whose median latency is what calls typically take."""
_SLOWER: Final = 2.0
"""Typical calls this many times slower than they were at best: more would only queue up."""
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

    def take(self, amount: float, now: float) -> float:
        """Use some of the rate; how much was used is returned, since there may be no rate yet.

        A negative amount gives back.
        """
        if not self.per_minute:
            return 0.0
        self._free_at = max(self._free_at, now) + amount * 60.0 / self.per_minute
        return amount


class _Latency:
    """How long calls typically take, and whether that is longer than it was at best.

    Medians are compared: answers differ in length, and a single quick one says nothing.
    """

    def __init__(self) -> None:
        self._recent_s: deque[float] = deque(maxlen=_TYPICAL)
        self._best_s = float("inf")

    def add(self, latency_s: float) -> None:
        self._recent_s.append(latency_s)

    @property
    def is_rising(self) -> bool:
        if len(self._recent_s) < _FIRST_WINDOW:
            return False
        typical_s = statistics.median(self._recent_s)
        self._best_s = min(self._best_s, typical_s)
        return typical_s > _SLOWER * self._best_s + 0.05


class Pace:
    """The brakes of one model. Belongs to one event loop.

    A call takes a place in the window, then waits for the rates and the pause; both in the order
    of asking.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] | None = None) -> None:
        self._most = limits.concurrency
        first = limits.concurrency if limits.fixed else min(_FIRST_WINDOW, limits.concurrency)
        self._limit = float(first)
        self._growing_fast = True
        self._clock = clock or asyncio.get_running_loop().time
        self._places = 0
        """Places of the window that are taken, by calls in flight and those about to be."""
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._gate = asyncio.Lock()
        """Only the next in the queue watches the clock; the others wait behind it."""
        self._at_gate = 0
        self._requests = _Rate(limits.rpm)
        self._tokens = _Rate(limits.tpm)
        self._rates_given = (limits.rpm is not None, limits.tpm is not None)
        self._paused_until = 0.0
        self._recent: deque[bool] = deque(maxlen=_RECENT)
        self._latency = _Latency()
        self._last_cut = -1.0
        self._average_tokens: float | None = None

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""
        return max(1, int(self._limit))

    @property
    def in_flight(self) -> int:
        """Calls that are in flight now."""
        return self._in_flight

    @contextlib.asynccontextmanager
    async def call(self, tokens: float = 0.0) -> AsyncIterator[float]:
        """Wait for a turn, then hold a place while the call runs. Learns from how it ends.

        `tokens` is a guess at what the call will take, used until replies have told. Yields the
        tokens that were set aside, for `heard`.
        """
        reserved = await self._turn(tokens)
        begun = self._clock()
        self._in_flight += 1
        try:
            yield reserved
        except RetryableError as exc:
            self._failed(exc, begun)
            raise
        else:
            self._succeeded(self._clock() - begun)
        finally:
            self._in_flight -= 1
            self._leave()

    def heard(
        self, limits: RateLimits | None, tokens: int | None, *, reserved: float = 0.0
    ) -> None:
        """Take note of what a reply said of the provider's limits, and of the tokens it took."""
        if limits is not None:
            rpm_given, tpm_given = self._rates_given
            if limits.rpm and not rpm_given:
                self._requests.per_minute = limits.rpm * _HEADROOM
            if limits.tpm and not tpm_given:
                self._tokens.per_minute = limits.tpm * _HEADROOM
        if tokens:
            # What a call takes is known when it is over; the next ones make up the difference.
            self._tokens.take(tokens - reserved, self._clock())
            average = self._average_tokens
            self._average_tokens = tokens if average is None else 0.9 * average + 0.1 * tokens

    async def _turn(self, tokens: float) -> float:
        await self._take_place()
        self._at_gate += 1
        try:
            async with self._gate:
                # Time is what is waited for, not an event, and each wait may find a longer one.
                while (wait_s := self._brakes_s()) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(wait_s)
                now = self._clock()
                self._requests.take(1.0, now)
                average = self._average_tokens
                return self._tokens.take(tokens if average is None else average, now)
        except BaseException:
            self._leave()
            raise
        finally:
            self._at_gate -= 1

    async def _take_place(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._hand_out()
        try:
            await future
        except asyncio.CancelledError:
            # A place that was given to somebody who left goes to the next.
            if future.done() and not future.cancelled():
                self._leave()
            raise

    def _brakes_s(self) -> float:
        now = self._clock()
        return max(
            self._paused_until - now, self._requests.wait_s(now), self._tokens.wait_s(now), 0.0
        )

    def _leave(self) -> None:
        self._places -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free places to those who wait. The place is counted here and not when they move,
        so that nobody who comes in between can take it."""
        while self._waiting and self._places < self.limit:
            future = self._waiting.popleft()
            if not future.done():
                self._places += 1
                future.set_result(None)

    def _succeeded(self, latency_s: float) -> None:
        self._recent.append(True)
        self._latency.add(latency_s)
        if self._limit >= self._most:
            return
        if self._at_gate or self._places < self._limit - 1:
            return  # The window isn't what holds us back; a wider one would teach nothing.
        if not self._latency.is_rising:
            step = 1.0 if self._growing_fast else 1 / self._limit
            self._limit = min(self._most, self._limit + step)

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
        if begun <= self._last_cut:
            return
        self._last_cut = self._clock()
        self._limit = max(1.0, self._limit / 2)
        # What comes next is judged by itself: a provider that has become slower for good would
        # else never look quick enough for the window to grow again.
        self._recent.clear()
        self._latency = _Latency()
