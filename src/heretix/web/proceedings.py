"""Moves that measure: begun as jobs, by pages and the API alike.

What the rules refuse is refused before a job is begun; only what has to be measured waits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.economy.codec import encode
from heretix.jobs import EpisodeRequest
from heretix.web.api.floor import clerk_of, known_episode

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.economy.proposal import Proposal
    from heretix.jobs import Job
    from heretix.jobs.episode_request import Move
    from heretix.people import Person
    from heretix.web.desk import Desk

__all__ = ["Beginning"]


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
