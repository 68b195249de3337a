"""Application state: the store, the page cache, the render lock, the masthead."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from heretix.evidence.bundle import load_bundle
from heretix.measurement.record import RunRecord
from heretix.web.events import OpenStreams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    from starlette.requests import Request

    from heretix.accounts import People, RateLimiter
    from heretix.core.settings import Settings
    from heretix.evidence.bundle import Bundle
    from heretix.jobs import Feed, Jobs
    from heretix.measurement.anomalies import Anomaly
    from heretix.measurement.record import Artifact
    from heretix.store import Store

# Where the masthead leads.


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of the masthead; `below` are the addresses that belong to it."""

    label: str
    href: str
    below: tuple[str, ...] = ()

    def here(self, path: str) -> bool:
        """The reader is at this place."""
        return path == self.href or path.startswith(self.below)


NAVIGATION: Final = (
    Place("Claims", "/search", ("/runs/", "/claims")),
    Place("Measure", "/measure", ("/measure/",)),
    Place("Anomalies", "/anomalies"),
    Place("Compare", "/compare"),
    Place("Jobs", "/jobs", ("/jobs/",)),
    Place("Sources", "/policy", ("/policy/", "/bundles/")),
    Place("Episodes", "/episodes", ("/episodes/", "/leaderboard", "/ledger", "/profile")),
    Place("Method", "/method"),
)


# Turns in the event loop: for pages that are asked for often and take a moment to make.
#
# Such a page is a millisecond of work. In a thread it takes twice that: the thread and the loop
# take
# the interpreter from each other at every look-up. In the loop, one after the other, all are sooner
# done; `bench/web.py` tells how soon.


class Turns:
    """One at a time, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def next(self) -> AsyncIterator[None]:
        """Wait for a turn. What is done inside must be short: everybody waits for it."""
        async with self._turn:
            # Answers that are ready leave first, and whoever asked meanwhile gets into the line.
            await asyncio.sleep(0)
            yield


# What pages read again and again: records by execution, and what follows from them.
#
# A finished execution never changes, so whatever is made of its id alone may be kept. Shelves are
# bounded; the least recently used goes first.

_T = TypeVar("_T")


class Kept(Generic[_T]):
    """At most so many values. Threads may share one; two may make the same value, once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, _T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The value of a key, made when it isn't kept."""
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


class Shelf:
    """Records and bundles of one store, read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: Kept[RunRecord] = Kept(128)
        self._bundles: Kept[Bundle] = Kept(64)
        self.kept: Kept[object] = Kept(512)
        """Whatever else follows from ids: rendered pieces of pages, charts, verifications."""
        self.artifacts: Kept[Artifact] = Kept(16)
        """Lenses with what lies between them. They hold whole records, so few are kept."""

    def record(self, execution_id: str) -> RunRecord:
        """The record of an execution, by its whole id."""
        return self._records.get(
            execution_id,
            lambda: RunRecord.model_validate_json(self._store.record(execution_id).record_json),
        )

    def record_of_most(self, execution_id: str, characters: int) -> RunRecord | None:
        """The same, unless its text is longer than that: then None, and it isn't taken apart."""
        if execution_id in self._records:
            return self.record(execution_id)
        text = self._store.record(execution_id).record_json
        if len(text) > characters:
            return None
        return self._records.get(execution_id, lambda: RunRecord.model_validate_json(text))

    def bundle(self, bundle_id: str) -> Bundle:
        """A stored bundle, checked, by its whole id."""
        return self._bundles.get(
            bundle_id, lambda: load_bundle(self._store.bundle(bundle_id), bundle_id)
        )


# The anomaly feed as pages show it: found by the measurement's own rule, kept until lenses change.
#
# Ranking reads every record that a lens is part of, which takes seconds on a large store. It is
# done
# beside the pages: whoever asks meanwhile sees what was found last.

_REST: Final = 20.0
"""Ranking rests for so many times as long as it took: it never takes more than a twentieth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomalies:
    """What is known at this moment."""

    found: tuple[Anomaly, ...]
    """All claims with evidence lenses, the strongest first; `listed` says which pass."""
    complete: bool
    """False while something newer is being worked out."""

    @property
    def listed(self) -> tuple[Anomaly, ...]:
        """Those that pass the gates and the control of false discoveries."""
        return tuple(anomaly for anomaly in self.found if anomaly.listed)


class AnomalyBoard:
    """One store's feed."""

    def __init__(self, store: Store, *, wait_s: float = 0.3) -> None:
        self._store = store
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._found: tuple[Anomaly, ...] = ()
        self._of: str | None = None
        """The newest change of the store that `_found` knows of."""
        self._rested_at = 0.0
        self._work: threading.Thread | None = None

    def look(self) -> Anomalies:
        """The feed; a short while is waited for one that is being made."""
        latest = self._store.runs(limit=1)
        state = latest[0].updated_at if latest else ""
        with self._lock:
            if state == self._of:
                return Anomalies(found=self._found, complete=True)
            if self._work is None and time.monotonic() >= self._rested_at:
                self._work = threading.Thread(target=self._find, args=(state,), daemon=True)
                self._work.start()
            work = self._work
        if work is not None:
            work.join(self._wait_s)
        with self._lock:
            return Anomalies(found=self._found, complete=self._of == state)

    def _find(self, state: str) -> None:
        # Imported where it is used: the mathematics behind it would keep the first page waiting.
        from heretix.measurement.anomalies import find_anomalies

        began = time.monotonic()
        try:
            found = tuple(find_anomalies(self._store))
            with self._lock:
                self._found, self._of = found, state
        finally:
            with self._lock:
                ended = time.monotonic()
                self._rested_at = ended + _REST * (ended - began)
                self._work = None


# What pages work with: the store and everything that stands on it, opened once a server.

_LOOK_AGAIN_S: Final = 2.0
_PLANS: Final = 4


@dataclass(slots=True, kw_only=True, eq=False)
class Desk:
    """One server's tools."""

    settings: Settings
    store: Store
    people: People
    jobs: Jobs
    feed: Feed
    exchange: Any = None
    """The economy's rules with the store: `heretix.economy.exchange`."""
    clock: Any = None
    """What the economy goes by; None is the time of the machine."""
    shelf: Shelf
    anomalies: AnomalyBoard
    demonstration: bool = False
    """The store holds the demonstration: every page says so."""
    limiter: RateLimiter | None = None
    """Requests of people with accounts; the one user of this machine isn't limited."""
    planning: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PLANS))
    """Plans that are made at the same time: gathering evidence may take seconds."""
    turns: Turns = field(default_factory=Turns)
    """Pages of a moment's work, made in the event loop."""
    streams: OpenStreams = field(default_factory=OpenStreams)
    """Event streams that are open."""
    stopping: bool = False
    """The server is about to end; open event streams end too."""
    _accounts: bool = field(default=False)
    _looked_at: float = field(default=float("-inf"))

    @classmethod
    def over(cls, store: Store, settings: Settings, **more: Any) -> Desk:
        """A desk on a store."""
        from heretix.accounts import People, RateLimiter
        from heretix.jobs import Feed, Jobs
        from heretix.web.demo import is_marked

        return cls(
            settings=settings,
            store=store,
            people=People(store),
            jobs=Jobs(store, settings),
            feed=Feed(store),
            shelf=Shelf(store),
            anomalies=AnomalyBoard(store),
            demonstration=is_marked(store),
            limiter=RateLimiter(per_s=100, burst=400),
            **more,
        )

    @property
    def navigation(self) -> tuple[Place, ...]:
        """Where the masthead leads."""
        return NAVIGATION

    async def has_accounts(self) -> bool:
        """Somebody has to sign in. Once there are accounts, nobody is let in without."""
        if not self._accounts and time.monotonic() - self._looked_at > _LOOK_AGAIN_S:
            self._accounts = await run_in_threadpool(self.people.count) > 0
            self._looked_at = time.monotonic()
        return self._accounts

    async def aclose(self) -> None:
        """Let go of what the desk opened; the store belongs to whoever opened it."""
        await self.feed.aclose()


def desk_of(request: Request) -> Desk:
    """The desk of the server that got this request."""
    desk: Desk = request.app.state.desk
    return desk
