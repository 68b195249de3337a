"""Application state: the store and what stands on it, the page cache, the render lock."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, Generic, TypeVar, cast

from fastapi import Depends
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request  # noqa: TC002  (the framework reads it)

from heretix.accounts import People, RateLimiter
from heretix.core.clock import SystemClock, utc_text
from heretix.core.errors import TooManyRequestsError
from heretix.economy.exchange import Exchange
from heretix.economy.exploration_service import ExplorationService
from heretix.economy.moves import Actor
from heretix.evidence.bundle import load_bundle
from heretix.jobs import Feed, Jobs
from heretix.measurement.record import RunRecord
from heretix.report.findings import leading_interval
from heretix.store.bundles import find_bundle
from heretix.store.runs import find_record, select_runs
from heretix.web.events import OpenStreams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    from heretix.core.clock import Clock
    from heretix.core.settings import Settings
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.anomalies import Anomaly, Shift
    from heretix.measurement.record import Artifact
    from heretix.store import Store

_T = TypeVar("_T")


class RenderLock(asyncio.Lock):
    """Pages rendered in the event loop: one at a time, in the order of asking. Such a page is a
    millisecond of work. In a thread it takes twice that: the thread and the loop take the
    interpreter from each other at every look-up. `bench/web.py` measures both."""

    async def __aenter__(self) -> None:
        """Wait for the lock. Work inside must be short: every other page waits for it."""
        await super().__aenter__()
        try:
            # Answers that are ready leave first, and whoever asked meanwhile gets into the line.
            await asyncio.sleep(0)
        except BaseException:
            self.release()
            raise


class LruCache(Generic[_T]):
    """A cache of `size` values; the least recently used goes first. Threads may share one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, _T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return the value of a key; make it if it isn't cached. Two threads may both make it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)


class PageCache:
    """Records and bundles of one store, and what was made of them. A finished execution never
    changes, so whatever follows from its id alone may be cached."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: LruCache[RunRecord] = LruCache(128)
        self._bundles: LruCache[Bundle] = LruCache(64)
        self.values: LruCache[object] = LruCache(512)
        """Whatever else follows from ids: rendered pieces of pages, charts, verifications."""
        self.artifacts: LruCache[Artifact] = LruCache(16)
        """Lenses with what lies between them. They hold whole records, so few are cached."""

    def record(self, execution_id: str) -> RunRecord:
        """Load the record of an execution, by its whole id."""

        def load() -> RunRecord:
            stored = self._store.read(find_record, execution_id)
            return RunRecord.model_validate_json(stored.record_json)

        return self._records.get(execution_id, load)

    def find_leading_interval(self, execution_id: str) -> tuple[float, float] | None:
        """Tell the interval that stands in place of a number that hangs on the wording."""
        known = self.values.get(
            ("leading", execution_id), lambda: leading_interval(self.record(execution_id))
        )
        return cast("tuple[float, float] | None", known)

    def short_record(self, execution_id: str, max_chars: int) -> RunRecord | None:
        """Load a record, or None if its text is longer than that: parsing it would take long."""
        if execution_id in self._records:
            return self.record(execution_id)
        text = self._store.read(find_record, execution_id).record_json
        if len(text) > max_chars:
            return None
        return self._records.get(execution_id, lambda: RunRecord.model_validate_json(text))

    def bundle(self, bundle_id: str) -> Bundle:
        """Load a stored bundle and check its hashes."""
        return self._bundles.get(
            bundle_id, lambda: load_bundle(self._store.read(find_bundle, bundle_id), bundle_id)
        )


_WEEK: Final = timedelta(days=7)
_REST: Final = 20.0
"""Ranking rests for so many times as long as it took: it never takes more than a twentieth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomalies:
    """The anomaly feed at this moment."""

    found: tuple[Anomaly, ...]
    """All claims with evidence lenses, the strongest first; `listed` says which pass."""
    shifts: tuple[Shift, ...]
    """Recipes whose belief moved this week, the furthest first."""
    complete: bool  # False while something newer is being worked out

    @property
    def listed(self) -> tuple[Anomaly, ...]:
        """Anomalies that pass the gates and the control of false discoveries."""
        return tuple(anomaly for anomaly in self.found if anomaly.listed)


class AnomalyBoard:
    """The anomaly feed of a store, ranked in a thread of its own. Ranking reads every record that a
    lens is part of, which takes seconds on a large store: whoever asks meanwhile sees what was
    found last."""

    def __init__(self, store: Store, *, wait_s: float = 0.3) -> None:
        self._store, self.wait_s = store, wait_s
        self._lock = threading.Lock()
        self._found: tuple[Anomaly, ...] = ()
        self._shifts: tuple[Shift, ...] = ()
        self._ranked_at: str | None = None  # the newest change of the store that `_found` knows of
        self._rested_at = 0.0
        self._work: threading.Thread | None = None

    def read(self) -> Anomalies:
        """Return the feed; wait a short while for one that is being ranked."""
        latest = self._store.read(select_runs, limit=1)
        changed_at = latest[0].updated_at if latest else ""
        with self._lock:
            if changed_at == self._ranked_at:
                return Anomalies(found=self._found, shifts=self._shifts, complete=True)
            if self._work is None and time.monotonic() >= self._rested_at:
                self._work = threading.Thread(target=self._rank, args=(changed_at,), daemon=True)
                self._work.start()
            work = self._work
        if work is not None:
            work.join(self.wait_s)
        with self._lock:
            complete = self._ranked_at == changed_at
            return Anomalies(found=self._found, shifts=self._shifts, complete=complete)

    def _rank(self, changed_at: str) -> None:
        # Imported where it is used: the mathematics behind it would keep the first page waiting.
        from heretix.measurement.anomalies import find_anomalies, find_shifts

        began = time.monotonic()
        try:
            found = tuple(find_anomalies(self._store))
            week = utc_text(datetime.now(UTC) - _WEEK)
            shifts = tuple(find_shifts(self._store, since=week))
            with self._lock:
                self._found, self._shifts, self._ranked_at = found, shifts, changed_at
        finally:
            with self._lock:
                ended = time.monotonic()
                self._rested_at = ended + _REST * (ended - began)
                self._work = None


class WorkLimiter:
    """Turns at what takes long or much: so many at once in all, fewer a person. Whoever asks for
    more waits a short while, and is then told to come back."""

    def __init__(self, *, at_once: int = 4, each: int = 2, patience_s: float = 5.0) -> None:
        self.at_once, self.each, self._patience_s = at_once, each, patience_s
        self._under_way: Counter[str] = Counter()
        self._given_back = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def turn(self, person: str) -> AsyncIterator[None]:
        """Hold a place while the work lasts."""
        async with self._given_back:
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._given_back.wait_for(lambda: not self._is_full(person))
            except TimeoutError:
                raise self._make_refusal(person) from None
            self._under_way[person] += 1
        try:
            yield
        finally:
            self._under_way[person] -= 1
            if not self._under_way[person]:
                del self._under_way[person]
            async with self._given_back:
                self._given_back.notify_all()

    def _is_full(self, person: str) -> bool:
        return self._under_way[person] >= self.each or self._under_way.total() >= self.at_once

    def _make_refusal(self, person: str) -> TooManyRequestsError:
        who = "you" if self._under_way[person] >= self.each else "others"
        return TooManyRequestsError(
            f"exports, verifications and the like are made {self.each} at a time for each "
            f"person and {self.at_once} in all, and {who} have as many under way; "
            "try again in a moment",
            retry_after_s=_COME_BACK_S,
        )


_COME_BACK_S: Final = 2.0
_LOOK_AGAIN_S: Final = 2.0
_PLANS: Final = 4


@dataclass(slots=True, kw_only=True, eq=False)
class AppState:
    """State that endpoints share, opened once a server."""

    settings: Settings
    store: Store
    people: People
    jobs: Jobs
    feed: Feed
    clock: Clock = field(default_factory=SystemClock)  # the time that the economy goes by
    cache: PageCache
    anomalies: AnomalyBoard
    demonstration: bool = False  # the store holds the demonstration: every page says so
    published: bool = False  # the pages are being written to files: nothing can be asked of them
    base_url: str = ""  # where published pages are going to stand
    limiter: RateLimiter | None = None
    """Requests of people with accounts; the one user of this machine isn't limited."""
    planning: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PLANS))
    """Plans that are made at the same time: gathering evidence may take seconds."""
    render_lock: RenderLock = field(default_factory=RenderLock)
    costly: WorkLimiter = field(default_factory=WorkLimiter)
    streams: OpenStreams = field(default_factory=OpenStreams)  # event streams that are open
    stopping: bool = False  # the server is about to end; open event streams end too
    _exchange: Exchange | None = None
    _exploration: ExplorationService | None = None
    _accounts: bool = False
    _looked_at: float = float("-inf")

    @classmethod
    def open(cls, store: Store, settings: Settings) -> AppState:
        """Make the state of a server over a store, which stays its opener's."""
        from heretix.web.demo import is_marked

        return cls(
            settings=settings,
            store=store,
            people=People(store),
            jobs=Jobs(store, settings),
            feed=Feed(store),
            cache=PageCache(store),
            anomalies=AnomalyBoard(store),
            demonstration=is_marked(store),
            limiter=RateLimiter(per_s=100, burst=400),
        )

    @property
    def exchange(self) -> Exchange:
        """The economy on this store: one object, because it caches decoded episodes."""
        if self._exchange is None:
            self._exchange = Exchange(self.store, clock=self.clock)
        return self._exchange

    @property
    def exploration(self) -> ExplorationService:
        """Standing and credits of everybody: one object, because it keeps the leaderboard."""
        if self._exploration is None:
            self._exploration = ExplorationService(self.exchange)
        return self._exploration

    def actor(self, person: str, key: str = "") -> Actor:
        """Make the actor of a person's moves."""
        return Actor(
            store=self.store,
            exchange=self.exchange,
            clock=self.clock,
            settings=self.settings,
            person=person,
            key=key,
        )

    async def has_accounts(self) -> bool:
        """Say whether people must sign in. Once there are accounts, nobody is let in without."""
        if not self._accounts and time.monotonic() - self._looked_at > _LOOK_AGAIN_S:
            self._accounts = await run_in_threadpool(self.people.count) > 0
            self._looked_at = time.monotonic()
        return self._accounts

    async def aclose(self) -> None:
        """Close what the state opened."""
        await self.feed.aclose()


def app_state(request: Request) -> AppState:
    """Return the state of the server that got this request."""
    state: AppState = request.app.state.heretix
    return state


async def _app_state(request: Request) -> AppState:
    # a coroutine: the framework would run a plain function in a thread.
    return app_state(request)


App = Annotated[AppState, Depends(_app_state)]  # the state, as an endpoint declares it
