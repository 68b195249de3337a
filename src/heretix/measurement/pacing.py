"""Pacing: as many calls at a time as a model bears, at the rate that its provider allows.

The window of calls in flight is a process's own. Rates and pauses belong to the key: every process
and machine on a store draws its turns from one row, by the database's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.core.errors import RateLimitedError, RetryableError, StoreError
from heretix.core.event_loop import run_in_thread
from heretix.providers.base import RateLimits
from heretix.store.rates import pause_rate, select_rate, take_turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from heretix.core.settings import Settings
    from heretix.providers.catalog import ModelId, Options
    from heretix.store import Store

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
_TURNS_S: Final = 0.5
"""Turns of a shared rate are taken for at most this long ahead, and only for calls that wait; one
that passed by for longer is lost, or a process that was held up would make its calls at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits set by the user. `fixed` keeps the window at `concurrency` until trouble comes."""

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


def name_rate(model: ModelId, settings: Settings, options: Options) -> str | None:
    """Name the rate that a model's calls share: that of model, address and key, which is hashed.

    None where nobody is called.
    """
    endpoint = model.endpoint
    if endpoint.in_process:
        return None
    key = settings.env.get(endpoint.key_variable) if endpoint.key_variable else None
    place = f"{options.base_url or endpoint.base_url}|{(key or '').strip()}"
    return f"{model.identity}@{hashlib.sha256(place.encode()).hexdigest()[:32]}"


class SharedRate:
    """Turns of a rate that all processes on a store share. Belongs to one event loop."""

    def __init__(self, store: Store, rate_id: str, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._rate_id = rate_id
        self._clock = clock
        self._turns: deque[tuple[float, float]] = deque()
        """When, and with how many tokens."""
        self._owed_tokens = 0.0
        """Tokens that answers took more than was set aside."""
        self._free_until = 0.0

    async def look(self) -> tuple[RateLimits, float]:
        """Read the limits that are known, and for how many seconds no call is wanted."""
        found = await run_in_thread(self._store.read, select_rate, self._rate_id)
        if found is None:
            return RateLimits(), 0.0
        return RateLimits(rpm=found.rpm, tpm=found.tpm), found.paused_s

    async def next_turn(
        self, rpm: float | None, tpm: float | None, tokens: float, *, waiting: int, told: RateLimits
    ) -> tuple[float, float]:
        """The moment of the next call, and the tokens that were set aside for it."""
        if not (rpm or tpm):
            return await self._take_unlimited_turn()
        while self._turns and self._turns[0][0] < self._clock() - _TURNS_S:
            self._turns.popleft()
        if not self._turns:
            request_s = 60.0 / rpm if rpm else 0.0
            token_s = 60.0 / tpm * tokens if tpm else 0.0
            each_s = max(request_s, token_s)
            count = max(1, min(waiting, math.ceil(_TURNS_S / each_s) if each_s > 0 else waiting))
            debt_s = 60.0 / tpm * self._owed_tokens if tpm else 0.0
            self._owed_tokens = 0.0
            taken = await run_in_thread(
                self._store.write,
                take_turns,
                self._rate_id,
                requests_s=count * request_s,
                tokens_s=count * token_s + debt_s,
                rpm=told.rpm,
                tpm=told.tpm,
            )
            # Counted from when the answer is here: a call may come late by that, never early.
            now = self._clock()
            for n in range(count):
                request_at = taken.requests_in_s + n * request_s
                token_at = taken.tokens_in_s + debt_s + n * token_s
                self._turns.append((now + max(request_at, token_at), tokens if tpm else 0.0))
        return self._turns.popleft()

    async def _take_unlimited_turn(self) -> tuple[float, float]:
        """Take a turn where no rate is known: others may still have been told to pause."""
        now = self._clock()
        if now >= self._free_until:
            _, paused_s = await self.look()
            now = self._clock()
            self._free_until = now + paused_s + _TURNS_S
            return now + paused_s, 0.0
        return max(now, self._free_until - _TURNS_S), 0.0

    def owe(self, tokens: float) -> None:
        """Settle what a call took beyond what was set aside for it; less is given back."""
        self._owed_tokens += tokens

    async def pause(self, wait_s: float) -> None:
        """Pause all processes."""
        self._turns.clear()
        await run_in_thread(self._store.write, pause_rate, self._rate_id, wait_s)


class Pace:
    """The brakes of one model: as fast as it lets us, and no faster. Belongs to one event loop.

    Three brakes, each for its own reason. The *window* bounds calls in flight and adapts to what
    the provider bears: it doubles while all is well, steps up once trouble has been seen, and
    halves on "too many requests" (additive increase, multiplicative decrease). The *rates* hold to
    requests and tokens per minute, from the configuration or from the provider's own headers. The
    *pause* obeys `Retry-After`: when one call is told to wait, all of them wait. Rates and pause
    are shared with other processes once there is a limit or a refusal to share.

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
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._gate = asyncio.Lock()
        """Only the next in the queue watches the clock; the others wait behind it."""
        self._at_gate = 0
        self._requests = _Rate(limits.rpm)
        self._tokens = _Rate(limits.tpm)
        self._rates_given = (limits.rpm is not None, limits.tpm is not None)
        self._paused_until = 0.0
        self._recent: deque[bool] = deque(maxlen=_RECENT)
        self._latencies_s: deque[float] = deque(maxlen=_TYPICAL)
        self._best_s = float("inf")
        self._last_cut = -1.0
        self._average_tokens: float | None = None
        self._shared: SharedRate | None = None
        self._told = RateLimits()
        self._refused = False
        """The provider has sent a call away, this one's or another process's."""

    async def share(self, store: Store, rate_id: str) -> None:
        """Draw turns from a rate that other processes draw from too."""
        self._shared = SharedRate(store, rate_id, clock=self._clock)
        limits, paused_s = await self._shared.look()
        self._learn(limits)
        if paused_s:
            self._refused = True
            self._paused_until = self._clock() + paused_s

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""
        return max(1, int(self._limit))

    @contextlib.asynccontextmanager
    async def call(self, tokens: float = 0.0) -> AsyncIterator[float]:
        """Wait for a turn, then hold a place while the call runs. Learns from how it ends.

        `tokens` is a guess at what the call will take, used until replies have told. Yields the
        tokens that were set aside, for `heard`.
        """
        reserved = await self._turn(tokens)
        begun = self._clock()
        self.in_flight += 1
        try:
            yield reserved
        except RetryableError as exc:
            await self._note_failure(exc, begun)
            raise
        else:
            self._note_success(self._clock() - begun)
        finally:
            self.in_flight -= 1
            self._leave()

    def note_reply(
        self, limits: RateLimits | None, tokens: int | None, *, reserved: float = 0.0
    ) -> None:
        """Take note of what a reply said of the provider's limits, and of the tokens it took."""
        if limits is not None:
            self._learn(limits)
        if tokens:
            # What a call takes is known when it is over; the next ones make up the difference.
            self._tokens.take(tokens - reserved, self._clock())
            if self._shared is not None and self._tokens.per_minute:
                self._shared.owe(tokens - reserved)
            average = self._average_tokens
            self._average_tokens = tokens if average is None else 0.9 * average + 0.1 * tokens

    def _learn(self, limits: RateLimits) -> None:
        self._told = limits
        rpm_given, tpm_given = self._rates_given
        if limits.rpm and not rpm_given:
            self._requests.per_minute = limits.rpm * _HEADROOM
        if limits.tpm and not tpm_given:
            self._tokens.per_minute = limits.tpm * _HEADROOM

    async def _turn(self, tokens: float) -> float:
        await self._take_place()
        self._at_gate += 1
        try:
            async with self._gate:
                if self._shared is not None and self._is_limited:
                    return await self._wait_shared_turn(self._shared, self._expect(tokens))
                # Time is what is waited for, not an event, and each wait may find a longer one.
                while (wait_s := self._wait_s(now := self._clock())) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(wait_s)
                self._requests.take(1.0, now)
                return self._tokens.take(self._expect(tokens), now)
        except BaseException:
            self._leave()
            raise
        finally:
            self._at_gate -= 1

    def _expect(self, tokens: float) -> float:
        """Tokens that the next call will take: as the last ones did, or else the guess."""
        return tokens if self._average_tokens is None else self._average_tokens

    @property
    def _is_limited(self) -> bool:
        """Tell that others have to be asked: else a call waits for no transaction."""
        return bool(self._requests.per_minute or self._tokens.per_minute or self._refused)

    async def _wait_shared_turn(self, shared: SharedRate, tokens: float) -> float:
        """Wait for a turn that no other process has; the tokens that were set aside for it."""
        while True:
            at, reserved = await shared.next_turn(
                self._requests.per_minute,
                self._tokens.per_minute,
                tokens,
                waiting=self._at_gate,
                told=self._told,
            )
            # Time is what is waited for, not an event.
            while (wait_s := at - self._clock()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(wait_s)
            if (wait_s := self._paused_until - self._clock()) <= 0:
                return reserved
            # Told to pause meanwhile: that turn has passed when the pause is over.
            await asyncio.sleep(wait_s)

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

    def _wait_s(self, now: float) -> float:
        rates = (self._requests.wait_s(now), self._tokens.wait_s(now))
        return max(self._paused_until - now, *rates, 0.0)

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

    def _note_success(self, latency_s: float) -> None:
        self._recent.append(True)
        self._latencies_s.append(latency_s)
        if self._limit >= self._most:
            return
        if self._at_gate or self._places < self._limit - 1:
            return  # The window isn't what holds us back; a wider one would teach nothing.
        if not self._is_slower():
            step = 1.0 if self._growing_fast else 1 / self._limit
            self._limit = min(self._most, self._limit + step)

    def _is_slower(self) -> bool:
        """Tell that calls typically take longer than they did at best.

        Medians are compared: answers differ in length, and a single quick one says nothing.
        """
        if len(self._latencies_s) < _FIRST_WINDOW:
            return False
        typical_s = statistics.median(self._latencies_s)
        self._best_s = min(self._best_s, typical_s)
        return typical_s > _SLOWER * self._best_s + 0.05

    async def _note_failure(self, exc: RetryableError, begun: float) -> None:
        self._recent.append(False)
        if isinstance(exc, RateLimitedError):
            self._refused = True
            self._cut(begun)
            if exc.retry_after_s is not None:
                await self._pause(min(exc.retry_after_s, _PAUSE_CAP_S))
        elif len(self._recent) == _RECENT and self._recent.count(False) > _ERROR_SHARE * _RECENT:
            self._cut(begun)

    async def _pause(self, wait_s: float) -> None:
        longer_s = self._clock() + wait_s - self._paused_until
        self._paused_until += max(0.0, longer_s)
        # Calls that were in flight together are told the same: the others hear it once.
        if self._shared is not None and longer_s > _TURNS_S / 2:
            # A store in trouble holds up the next turn, which tells.
            with contextlib.suppress(StoreError):
                await self._shared.pause(wait_s)

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
        self._latencies_s.clear()
        self._best_s = float("inf")
