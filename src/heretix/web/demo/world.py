"""Filling a store with the demonstration: what is measured, then what is played."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.economy.clock import SystemClock
from heretix.economy.episode import State
from heretix.economy.exchange import Exchange
from heretix.errors import ConflictError
from heretix.jobs import Jobs, JobState
from heretix.people import LOCAL, People
from heretix.running import run_async
from heretix.web.demo.mark import is_marked, is_whole, mark, mark_whole
from heretix.web.demo.measured import STEPS as MEASURED_STEPS
from heretix.web.demo.measured import measure_world
from heretix.web.demo.scripts import FIRST_DAY, SCRIPTS
from heretix.web.demo.stage import CAST, Stage, play

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.economy.clock import Clock
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["STEPS", "World", "fill", "world_in"]

STEPS: Final = MEASURED_STEPS + len(SCRIPTS)
"""Steps that `fill` tells of."""
_MOST: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a store holds once it is filled."""

    runs: int
    jobs: int
    episodes: dict[str, int]
    """By state; every state is there."""
    people: tuple[str, ...]
    transfers: int

    def as_dict(self) -> dict[str, Any]:
        """The counts, for programs."""
        return asdict(self)


def fill(
    store: Store,
    settings: Settings,
    *,
    force: bool = False,
    embedded: bool = True,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> World:
    """Put the demonstration into a store. One that holds something is refused unless `force`.

    `embedded` asks the small model that comes with the package, if it is here. `tell` hears of
    each step when it begins or, for an episode, when it is over.
    """
    exchange = Exchange(store, clock=clock or SystemClock())
    _refuse_full(store, settings, exchange, force=force)
    mark(store)
    measure_world(store, settings, tell, embedded=embedded)
    # Now is when the measuring is over: records and moves then follow each other.
    now_ms = (clock or SystemClock()).now_ms()
    stage = Stage(store, settings, now_ms=now_ms, first_day=FIRST_DAY)
    stage.exchange.ensure_house()
    for person in CAST:
        stage.exchange.join(person)
    run_async(play(stage, SCRIPTS, tell))
    mark_whole(store)
    return _counted(store, settings, exchange)


def world_in(store: Store, settings: Settings) -> World | None:
    """What a store holds if the whole demonstration was put there before; else None."""
    if not is_whole(store):
        return None
    return _counted(store, settings, Exchange(store, clock=SystemClock()))


def _refuse_full(store: Store, settings: Settings, exchange: Exchange, *, force: bool) -> None:
    if is_marked(store) and not is_whole(store) and not force:
        raise ConflictError(
            f"`{store.name}` holds a demonstration that was stopped before it was whole; delete "
            "it and start again, or choose another store with --db"
        )
    jobs = Jobs(store, settings)
    if jobs.list(by=LOCAL, state=JobState.QUEUED, limit=1):
        # The demonstration works through the queue of the store, and these might cost money.
        raise ConflictError(
            f"`{store.name}` has jobs that wait; let `heretix worker --once --db {store.name}` do "
            "them, or choose another store with --db"
        )
    holds = (
        store.count_runs()
        or People(store).count()
        or jobs.list(by=LOCAL, limit=1)
        or exchange.balances(limit=1)
    )
    if holds and not force:
        raise ConflictError(
            f"`{store.name}` must be empty, and holds something already; choose another store "
            "with --db, or add the demonstration to what is there with --force"
        )


def _counted(store: Store, settings: Settings, exchange: Exchange) -> World:
    return World(
        runs=store.count_runs(),
        jobs=len(Jobs(store, settings).list(by=LOCAL, limit=_MOST)),
        episodes={state.value: len(exchange.episodes(state=state, limit=_MOST)) for state in State},
        people=CAST,
        transfers=exchange.verify().count,
    )
