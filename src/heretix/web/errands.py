"""Errands: what takes long and ends in one decision, done beside the requests that ask for it.

An episode's measurement calls every sample anew and decides once, when all of them are there. So
one that is lost with the server has decided nothing, and is simply asked for again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import HeretixError, RecordError, TooManyRequestsError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from heretix.measurement.tally import Tally

    Work = Callable[[Tally], Coroutine[Any, Any, str]]

__all__ = ["Errand", "ErrandState", "Errands"]

log = logging.getLogger("heretix.web")

_AT_A_TIME: Final = 2
_KEPT: Final = 200
_MOST: Final = 100
"""Under way or waiting. Each has a thread, so nobody may begin them without end."""
_RETRY_S: Final = 10.0


class ErrandState(StrEnum):
    """How an errand stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Nothing more will come of it."""
        return self in {ErrandState.DONE, ErrandState.FAILED}


@dataclass(slots=True, kw_only=True, eq=False)
class Errand:
    """One piece of work. Its thread writes, everybody reads."""

    id: str
    key: str = field(repr=False)
    """What it was asked for under."""
    title: str
    """What is done, in a few words."""
    subject: str
    """What it is about: a claim."""
    episode: str | None
    """The episode that it moves on; None while that isn't written down yet."""
    tally: Tally
    state: ErrandState = ErrandState.WAITING
    error: str | None = None
    """Why it failed, for people."""
    cause: HeretixError | None = field(default=None, repr=False)
    """What was raised, if that was foreseen."""
    loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)
    task: asyncio.Task[str] | None = field(default=None, repr=False)

    @property
    def leads_to(self) -> str:
        """Where to look afterwards."""
        return "/episodes" if self.episode is None else f"/episodes/{self.episode}"

    def as_dict(self) -> dict[str, Any]:
        """How far it is, for the page's script."""
        return {
            "state": self.state.value,
            "ended": self.state.ended,
            "done": self.tally.done,
            "total": self.tally.total,
        }


class Errands:
    """The errands of one server: a few at a time, one for an episode."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(_AT_A_TIME)
        self._known: OrderedDict[str, Errand] = OrderedDict()
        self._by_key: dict[str, Errand] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closing = False

    def start(
        self,
        work: Work,
        *,
        key: str,
        title: str,
        subject: str,
        samples: int,
        episode: str | None = None,
    ) -> Errand:
        """Begin some work, whose result is the id of the episode that it moved on.

        Under a key that was used before, or for an episode that is being worked on, this is the
        errand that is there already: whoever sends a form twice has it done once.
        """
        from heretix.measurement.tally import Tally

        with self._lock:
            known = self._by_key.get(key) or self._running_for(episode)
            if known is not None:
                return known
            self._refuse_more()
            errand = Errand(
                id=secrets.token_hex(8),
                key=key,
                title=title,
                subject=subject,
                episode=episode,
                tally=Tally(samples, lambda _: None, float("inf")),
            )
            self._known[errand.id] = self._by_key[key] = errand
            thread = threading.Thread(
                target=self._run, args=(errand, work), name=f"errand {errand.id}", daemon=True
            )
            self._threads[errand.id] = thread
            self._forget()
        thread.start()
        return errand

    def get(self, errand_id: str) -> Errand:
        """An errand by its id."""
        with self._lock:
            found = self._known.get(errand_id)
        if found is None:
            raise RecordError(
                f"`{errand_id}` isn't known: the server was started again since, or it is long "
                "over; nothing was lost that the episode's page doesn't show"
            )
        return found

    def under(self, key: str) -> Errand | None:
        """The errand that was asked for under a key."""
        with self._lock:
            return self._by_key.get(key)

    def running_for(self, episode: str) -> Errand | None:
        """The errand that moves this episode on, if there is one under way."""
        with self._lock:
            return self._running_for(episode)

    def wait(self, errand_id: str, timeout_s: float) -> None:
        """Wait until an errand has ended."""
        thread = self._threads.get(errand_id)
        if thread is not None:
            thread.join(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Call off what is under way. Nothing has been decided by it."""
        with self._lock:
            self._closing = True
            running = [errand for errand in self._known.values() if not errand.state.ended]
            for errand in running:
                if errand.loop is not None and errand.task is not None:
                    # It may end by itself at this very moment.
                    with suppress(RuntimeError):
                        errand.loop.call_soon_threadsafe(errand.task.cancel)
        for errand in running:
            if errand.state is ErrandState.RUNNING:
                self.wait(errand.id, timeout_s)

    def _running_for(self, episode: str | None) -> Errand | None:
        return next(
            (
                errand
                for errand in self._known.values()
                if episode is not None and errand.episode == episode and not errand.state.ended
            ),
            None,
        )

    def _refuse_more(self) -> None:
        if sum(not errand.state.ended for errand in self._known.values()) >= _MOST:
            raise TooManyRequestsError(
                f"{_MOST} measurements of episodes are under way or wait for their turn; ask "
                "again when some have ended",
                retry_after_s=_RETRY_S,
            )

    def _forget(self) -> None:
        """Drop the oldest that have ended, once there are too many."""
        over = [errand for errand in self._known.values() if errand.state.ended]
        for errand in over[: max(0, len(self._known) - _KEPT)]:
            del self._known[errand.id]
            del self._threads[errand.id]
        kept = set(self._known)
        self._by_key = {key: errand for key, errand in self._by_key.items() if errand.id in kept}

    def _run(self, errand: Errand, work: Work) -> None:
        with self._turns:
            try:
                errand.episode = asyncio.run(self._watched(errand, work))
                errand.state = ErrandState.DONE
            except HeretixError as exc:
                errand.error, errand.cause = str(exc), exc
                errand.state = ErrandState.FAILED
            except asyncio.CancelledError:
                errand.error = "the server was stopped; nothing was decided: ask for it again"
                errand.state = ErrandState.FAILED
            except Exception:
                # The edge of the thread: nobody else would ever hear of it.
                incident = secrets.token_hex(6)
                log.exception("incident %s: errand %s", incident, errand.title)
                errand.error = f"something went wrong; the server's log has it as {incident}"
                errand.state = ErrandState.FAILED

    async def _watched(self, errand: Errand, work: Work) -> str:
        with self._lock:
            if self._closing:
                raise asyncio.CancelledError
            errand.loop, errand.task = asyncio.get_running_loop(), asyncio.current_task()
            errand.state = ErrandState.RUNNING
        return await work(errand.tally)
