"""Moves of an episode that measure, begun as jobs by pages and the API alike."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.core.canonical import encode
from heretix.core.clock import SystemClock
from heretix.core.errors import RecordError, RefusedError
from heretix.economy.episode.state import State
from heretix.economy.exchange import Exchange
from heretix.economy.exploration_service import ExplorationService
from heretix.economy.judging.panel import Panel, Question
from heretix.economy.judging.workflow import EpisodeWorkflow
from heretix.jobs import EpisodeRequest
from heretix.web.auth import visit_of
from heretix.web.state import desk_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from heretix.accounts import Person
    from heretix.core.clock import Clock
    from heretix.economy.episode.state import Episode
    from heretix.economy.judging.workflow import Proposal
    from heretix.jobs import Job
    from heretix.jobs.job import Move
    from heretix.web.state import Desk

# The exchange as a desk has it, and the clerk that is asked before something is measured.


def clock_of(desk: Desk) -> Clock:
    """The time that the economy goes by."""
    return desk.clock or SystemClock()


def exchange_of(desk: Desk) -> Exchange:
    """The exchange of a desk."""
    if desk.exchange is None:
        desk.exchange = Exchange(desk.store, clock=clock_of(desk))
    exchange: Exchange = desk.exchange
    return exchange


def track_of(desk: Desk) -> ExplorationService:
    """Everybody's standing."""
    return ExplorationService(desk.store, clock=clock_of(desk))


def clerk_of(desk: Desk) -> EpisodeWorkflow:
    """Who knows whether an episode's next step can be measured."""
    return EpisodeWorkflow(
        desk.store,
        exchange_of(desk),
        Panel(desk.store, desk.settings),
        clock=clock_of(desk),
        settings=desk.settings,
    )


def hearing_cost(desk: Desk, episode: Episode) -> int:
    """What hearing a challenge costs, in minor units; nothing where no price is known."""
    panel = Panel(desk.store, desk.settings)
    question = Question.of(episode.id, episode.terms)
    return panel.compute_cost(question, episode.terms.models) or 0


def begun(desk: Desk, episode_id: str) -> Episode:
    """The episode; nobody has to announce that the time for challenges has come."""
    found = known_episode(desk, episode_id)
    due = found.terms.challenge_from_ms <= clock_of(desk).now_ms()
    if found.state is State.OPEN and due:
        return exchange_of(desk).begin_challenge(episode_id)
    return found


def known_episode(desk: Desk, episode_id: str) -> Episode:
    """An episode; one that isn't there can't be found, which is another thing than refused."""
    try:
        return exchange_of(desk).episode(episode_id)
    except RefusedError as exc:
        raise RecordError(str(exc)) from exc


def note_move(request: Request, move: str, episode_id: str) -> None:
    """Write into the audit log who made a move, and from where. The ledger tells what it did."""
    visit, audit = visit_of(request), desk_of(request).people.audit
    audit.write(f"episode.{move}", by=visit.person, subject=episode_id, address=visit.address)


# Moves that measure: begun as jobs, by pages and the API alike.
#
# What the rules refuse is refused before a job is begun; only what has to be measured waits.


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Somebody who has a move measured: sent again under the same key, it is the same job."""

    desk: Desk
    person: Person
    key: str
    address: str | None
    """The network address, for the audit log."""

    def draft(self, proposal: Proposal, *, opens: bool) -> Job:
        """Have c₀ measured; then the episode is written down and, if it `opens`, opened."""
        clerk_of(self.desk).check(proposal)
        request = EpisodeRequest(
            move="draft",
            claim=proposal.claim,
            models=proposal.models,
            proposal=encode(proposal),
            opens=opens,
        )
        return self._submit(request, self._job_key("draft"))

    def judging(self, episode_id: str, *, final: bool) -> Job:
        """Have every challenge that is left measured, in their order."""

        def request() -> EpisodeRequest:
            terms = clerk_of(self.desk).to_judge(episode_id).terms
            return EpisodeRequest(
                move="judge",
                claim=terms.claim,
                models=terms.models,
                episode=episode_id,
                final=final,
            )

        return self._begin("judge", episode_id, request)

    def measuring(self, episode_id: str, *, final: bool) -> Job:
        """Have the judges measured, or conclude without: whichever is due."""

        def request() -> EpisodeRequest:
            stage = clerk_of(self.desk).next_stage(episode_id)
            found = known_episode(self.desk, episode_id)
            return EpisodeRequest(
                move="measure",
                claim=found.terms.claim,
                models=found.judges if stage else (),
                episode=episode_id,
                stage=stage,
                final=final,
            )

        return self._begin("measure", episode_id, request)

    def ruling(self, episode_id: str, *, confirmed: bool | None, final: bool) -> Job:
        """Have the larger panel measure, and let its word stand."""

        def request() -> EpisodeRequest:
            found = clerk_of(self.desk).to_rule(episode_id)
            return EpisodeRequest(
                move="rule",
                claim=found.terms.claim,
                models=found.judges,
                episode=episode_id,
                stage=f"round:{found.disputes[-1].round}",
                final=final,
                confirmed=confirmed,
            )

        return self._begin("rule", episode_id, request)

    def _begin(self, move: Move, episode_id: str, request: Callable[[], EpisodeRequest]) -> Job:
        key = self._job_key(move, episode_id)
        # First: by now it may have done what it was begun for, and the rules would refuse it.
        if (known := self.desk.jobs.under(self.person, key)) is not None:
            return known
        known_episode(self.desk, episode_id)
        return self._submit(request(), key)

    def _submit(self, request: EpisodeRequest, key: str) -> Job:
        return self.desk.jobs.submit(self.person, request, key=key, address=self.address)

    def _job_key(self, *move: str) -> str:
        """A key among those of all jobs of a person: another move is another job."""
        return hashlib.sha256(" ".join((*move, self.key)).encode()).hexdigest()
