"""What pages work with: the store and everything that stands on it, opened once a server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool

from heretix.web.anomalyboard import AnomalyBoard
from heretix.web.navigation import NAVIGATION, Place
from heretix.web.shelf import Shelf
from heretix.web.streams import OpenStreams
from heretix.web.turns import Turns

if TYPE_CHECKING:
    from starlette.requests import Request

    from heretix.jobs import Feed, Jobs
    from heretix.people import People, RateLimiter
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["Desk", "desk_of"]

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
        from heretix.jobs import Feed, Jobs
        from heretix.people import People, RateLimiter
        from heretix.web.demo.mark import is_marked

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
