"""Moves of episodes that are due: made on time by whichever worker comes first, each once.

Nothing is remembered that matters: what is due follows from the episode. A move of a moment is one
transaction, and made again it does nothing; what has to be measured is a job under a key that tells
the episode and the step, so that many workers submit one.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final

from heretix.accounts import LOCAL
from heretix.core.errors import ConflictError, HeretixError
from heretix.economy.episode.moves import find_due
from heretix.economy.episode.state import State
from heretix.economy.exchange import Exchange
from heretix.economy.moves import JUDGE, MEASURE, RULE, Actor
from heretix.jobs.job import EpisodeRequest, JobState
from heretix.jobs.jobs import Jobs
from heretix.jobs.notices import Notifier
from heretix.store import accounts as people
from heretix.store import economy as queries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heretix.core.clock import Clock
    from heretix.core.settings import Settings
    from heretix.economy.episode.moves import Due, DueStep
    from heretix.economy.episode.state import Episode
    from heretix.economy.moves import Move
    from heretix.jobs.job import Job
    from heretix.store import Store

KEEP_S: Final = 5.0
"""A worker looks this often for what is due."""
_TRIES: Final = 5
"""A measurement that fails is begun this often; then it is an operator's."""
_FIRST_WAIT_S: Final = 600.0
"""Time before a failed measurement is tried again; twice as long each time."""
_AT_ONCE: Final[Mapping[str, Callable[[Exchange, str], Episode]]] = {
    "begin": Exchange.begin_challenge,
    "freeze": Exchange.freeze,
    "conclude": Exchange.conclude_unmeasured,
    "settle": Exchange.close,
}
_MEASURED: Final[Mapping[str, Move]] = {
    "judge": JUDGE,
    "first": MEASURE,
    "second": MEASURE,
    "rule": RULE,
}
_log: Final = logging.getLogger(__name__)


class EpisodeScheduler:
    """A scheduler that makes the moves that are due in the episodes of a store."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        clock: Clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is what episodes go by; `wall` that of jobs."""
        self._store, self._settings, self._clock, self._wall = store, settings, clock, wall
        self._exchange = Exchange(store, clock=clock)
        self._jobs = Jobs(store, settings, clock=wall)
        self._notifier = Notifier(store, settings, wall=wall)
        self._waiting: dict[str, tuple[tuple[object, ...], int]] = {}
        """By episode: how it stood when it was looked at, and when something is due."""
        self._told: dict[str, str] = {}
        """By episode: the problem that the log has last."""

    def make_due_moves(self) -> int:
        """Make every move that is due; how many were made or begun."""
        made, now = 0, self._clock.now_ms()
        for row in self._store.read(queries.select_live_episodes):
            episode_id, *stands = row
            if stands[0] == State.CHALLENGE and self._notifier.active:
                self._notifier.tell(self._exchange.episode(episode_id), now)
            known = self._waiting.get(episode_id)
            if known is not None and known[0] == tuple(stands) and now < known[1]:
                continue
            try:
                due, moved = self._move_on(episode_id)
            except HeretixError as exc:
                # One that can't be moved keeps no other from its time.
                if self._told.get(episode_id) != str(exc):
                    _log.warning("episode %s couldn't be moved on: %s", episode_id, exc)
                self._told[episode_id] = str(exc)
                continue
            made += moved
            self._told.pop(episode_id, None)
            if due is not None and not moved:
                self._waiting[episode_id] = tuple(stands), due.at_ms
        return made

    def _move_on(self, episode_id: str) -> tuple[Due | None, int]:
        """Make what is due of one; what comes next, and how many moves were made."""
        made = 0
        while True:
            episode = self._exchange.episode(episode_id)
            frozen = episode.state is State.FROZEN
            due = find_due(episode, self._exchange.positions(episode_id) if frozen else ())
            if due is None or max(self._clock.now_ms(), episode.clock_ms) < due.at_ms:
                return due, made
            if due.step not in _AT_ONCE:
                return due, made + self._begin(episode, due.step)
            _AT_ONCE[due.step](self._exchange, episode_id)
            made += 1

    def _begin(self, episode: Episode, step: DueStep) -> bool:
        """Queue a measurement, unless a job moves the episode on already."""
        if self._jobs.find_moving(episode.id) is not None:
            return False
        key = f"due {episode.id} {step} {len(episode.disputes)}"
        try:
            if (known := self._jobs.find_by_key(LOCAL, key)) is not None:
                return self._try_again(known)
            move = _MEASURED[step]
            actor = Actor(
                store=self._store,
                exchange=self._exchange,
                clock=self._clock,
                settings=self._settings,
            )
            assert move.plan is not None, "what is measured is planned"
            planned = move.plan(actor, episode.id)
            request = EpisodeRequest(
                move=move.name,  # type: ignore[arg-type]
                claim=planned.claim,
                models=planned.models,
                episode=episode.id,
                stage=planned.stage,
            )
            self._jobs.submit(LOCAL, request, key=key)
        except ConflictError:
            # Another was quicker, whose job it is.
            return False
        return True

    def _try_again(self, job: Job) -> bool:
        """Resume one that failed, after a while. What was called off is left to who did it."""
        if job.state is not JobState.FAILED:
            return False
        # Not how often workers took it up: one that was killed says nothing about what it did.
        resumed = self._store.read(people.count_audit_entries, "job.resume", job.id)
        if resumed + 1 >= _TRIES:
            return False
        waits_s = _FIRST_WAIT_S * 2**resumed
        if self._wall() < datetime.fromisoformat(job.updated_at).timestamp() + waits_s:
            return False
        self._jobs.resume(job.id, by=LOCAL)
        return True
