"""What other processes do to an exchange while a test watches: bet, and die."""

from __future__ import annotations

import itertools
import os
import random
import signal
import traceback
from typing import TYPE_CHECKING, Any

from exchanging import H, O
from sqlalchemy import event

from heretix.core.clock import ManualClock
from heretix.economy.exchange import Exchange
from heretix.store import Store
from processes import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier


def run_together(arguments: list[tuple[Any, ...]]) -> list[int | None]:
    """Let one process bet for each of `arguments` at the same moment; their exit codes."""
    barrier = PROCESSES.Barrier(len(arguments))
    children = [PROCESSES.Process(target=bet_away, args=(barrier, *args)) for args in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode for child in children]


def bet_away(barrier: Barrier, url: str, episode: str, person: str, bets: int) -> None:
    """Bet again and again on one market, each bet asked for twice."""
    with Store.open(url, busy_timeout_ms=120_000) as store:
        exchange = Exchange(store, clock=ManualClock(2_000))
        barrier.wait()
        for number in range(bets):
            side = H if number % 2 else O
            asked = {"min_shares": 0, "key": f"bet-{number}"}
            first = exchange.stake(episode, person, side, 10 + number, **asked)
            assert exchange.stake(episode, person, side, 10 + number, **asked) == first


def settle_and_die(jobs: Connection) -> None:
    """Fork for each (url, episode, at_ms, way, place) that comes, and report how each child ended.

    The place is a point between statements, or a tick of instructions; for the timer, a seed.

    Forking from here spares each child the imports; nothing of a database is open while forking.
    """
    while (job := jobs.recv()) is not None:
        child = os.fork()
        if child == 0:
            try:
                _settle(*job)
            except BaseException:  # noqa: BLE001  (the end of a process is an outermost edge)
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        jobs.send(os.waitstatus_to_exitcode(status))


def _settle(url: str, episode: str, at_ms: int, way: str, place: int) -> None:
    # Any moment: this one doesn't wait for a statement to end, or even for a system call.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with Store.open(url) as store:
        exchange = Exchange(store, clock=ManualClock(at_ms))
        if way == "timer":
            signal.setitimer(signal.ITIMER_REAL, random.Random(place).uniform(0.0002, 0.03))
        elif way == "instruction":
            _call_inside(store, lambda nth: _die() if nth == place else None)
        else:
            _call_between(store, lambda nth: _die() if nth == place else None)
        exchange.close(episode)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def count_points(url: str, episode: str, at_ms: int) -> tuple[int, int]:
    """Settle undisturbed, and count where a process could die: between statements, inside them."""
    points, ticks = [0], [0]
    with Store.open(url) as store:
        _call_between(store, points.append)
        _call_inside(store, ticks.append)
        Exchange(store, clock=ManualClock(at_ms)).close(episode)
    return max(points), max(ticks)


def _call_between(store: Store, tell: Callable[[int], object]) -> None:
    """Count before each statement, before each commit, and right after it."""
    numbers = itertools.count(1)

    def count(*_: object) -> None:
        tell(next(numbers))

    event.listen(store._engine, "before_cursor_execute", count)
    event.listen(store._engine, "commit", count)
    event.listen(store._engine.pool, "checkin", count)


def _call_inside(store: Store, tell: Callable[[int], object]) -> None:
    """Count every twenty of SQLite's instructions, in the middle of statements."""
    if store._engine.dialect.name != "sqlite":
        return
    numbers = itertools.count(1)

    def count() -> int:
        tell(next(numbers))
        return 0

    @event.listens_for(store._engine, "begin")
    def watch(connection: Any) -> None:
        connection.connection.driver_connection.set_progress_handler(count, 20)
