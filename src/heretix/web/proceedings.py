"""Moves that measure: begun as jobs, by pages and the API alike.

What the rules refuse is refused before a job is begun; only what has to be measured waits.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from heretix.economy.codec import encode
from heretix.jobs import EpisodeRequest
from heretix.web.api.floor import clerk_of, known_episode

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.economy.proposal import Proposal
    from heretix.jobs import Job
    from heretix.people import Person
    from heretix.web.desk import Desk

__all__ = ["begin_draft", "begin_judging", "begin_measuring", "begin_ruling"]


def begin_draft(
    desk: Desk,
    person: Person,
    proposal: Proposal,
    *,
    opens: bool,
    key: str,
    address: str | None = None,
) -> Job:
    """Have c₀ measured; then the episode is written down and, if it `opens`, opened."""
    clerk_of(desk).check(proposal)
    request = EpisodeRequest(
        move="draft",
        claim=proposal.claim,
        models=proposal.models,
        proposal=encode(proposal),
        opens=opens,
    )
    return desk.jobs.submit(person, request, key=_job_key("draft", key), address=address)


def begin_judging(
    desk: Desk,
    person: Person,
    episode_id: str,
    *,
    final: bool,
    key: str,
    address: str | None = None,
) -> Job:
    """Have every challenge that is left measured, in their order."""

    def request() -> EpisodeRequest:
        terms = clerk_of(desk).to_judge(episode_id).terms
        return EpisodeRequest(
            move="judge", claim=terms.claim, models=terms.models, episode=episode_id, final=final
        )

    return _begin(desk, person, episode_id, request, _job_key("judge", episode_id, key), address)


def begin_measuring(
    desk: Desk,
    person: Person,
    episode_id: str,
    *,
    final: bool,
    key: str,
    address: str | None = None,
) -> Job:
    """Have the judges measured, or conclude without: whichever is due."""

    def request() -> EpisodeRequest:
        stage = clerk_of(desk).next_stage(episode_id)
        found = known_episode(desk, episode_id)
        return EpisodeRequest(
            move="measure",
            claim=found.terms.claim,
            models=found.judges if stage else (),
            episode=episode_id,
            stage=stage,
            final=final,
        )

    return _begin(desk, person, episode_id, request, _job_key("measure", episode_id, key), address)


def begin_ruling(
    desk: Desk,
    person: Person,
    episode_id: str,
    *,
    confirmed: bool | None,
    final: bool,
    key: str,
    address: str | None = None,
) -> Job:
    """Have the larger panel measure, and let its word stand."""

    def request() -> EpisodeRequest:
        found = clerk_of(desk).to_rule(episode_id)
        return EpisodeRequest(
            move="rule",
            claim=found.terms.claim,
            models=found.judges,
            episode=episode_id,
            stage=f"round:{found.disputes[-1].round}",
            final=final,
            confirmed=confirmed,
        )

    return _begin(desk, person, episode_id, request, _job_key("rule", episode_id, key), address)


def _begin(
    desk: Desk,
    person: Person,
    episode_id: str,
    request: Callable[[], EpisodeRequest],
    key: str,
    address: str | None,
) -> Job:
    # First: by now it may have done what it was begun for, and the rules would refuse it.
    if (known := desk.jobs.under(person, key)) is not None:
        return known
    known_episode(desk, episode_id)
    return desk.jobs.submit(person, request(), key=key, address=address)


def _job_key(*parts: str) -> str:
    """A key among those of all jobs of a person: another move is another job."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()
