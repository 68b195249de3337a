"""Moves that measure: begun as errands, by pages and the API alike.

What the rules refuse is refused before an errand is begun; only what has to be measured waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.economy.clock import HeldClock
from heretix.economy.exchange import Exchange
from heretix.errors import RefusedError
from heretix.web.api.floor import begun, clerk_of, exchange_of, known_episode
from heretix.web.moneytext import readable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from heretix.economy.clerk import Clerk
    from heretix.economy.episode import Episode
    from heretix.economy.proposal import Proposal
    from heretix.measurement.tally import Tally
    from heretix.people import Person
    from heretix.web.desk import Desk
    from heretix.web.errands import Errand, Work

__all__ = ["begin_draft", "begin_judging", "begin_measuring", "begin_ruling"]


def begin_draft(
    desk: Desk,
    person: Person,
    proposal: Proposal,
    *,
    opens: bool,
    key: str,
    address: str | None = None,
) -> Errand:
    """Have c₀ measured; then the episode is written down and, if it `opens`, opened."""
    if (known := desk.errands.under(key)) is not None:
        return known
    clerk_of(desk).check(proposal)
    exchange_of(desk).ensure_house()

    async def work(tally: Tally) -> str:
        drafted = await clerk_of(desk, tally).draft(proposal)
        if opens:
            # Terms count from the moment they were written: that is when it opens, too.
            Exchange(desk.store, clock=HeldClock(drafted.at_ms)).open(drafted.episode)
            begun(desk, drafted.episode)
        return drafted.episode

    errand = desk.errands.start(
        _told(work),
        key=key,
        title="Measuring what the models believe now",
        subject=proposal.claim,
        samples=proposal.K * proposal.R * len(proposal.models),
    )
    desk.people.audit.write("episode.draft", by=person, address=address)
    return errand


def begin_judging(
    desk: Desk,
    person: Person,
    episode_id: str,
    *,
    final: bool,
    key: str,
    address: str | None = None,
) -> Errand:
    """Have every challenge that is left measured, in their order."""
    if (known := desk.errands.under(key)) is not None:
        return known
    known_episode(desk, episode_id)
    clerk = clerk_of(desk)
    found = clerk.to_judge(episode_id)
    left = len(clerk.pending(found))

    async def work(clerk: Clerk) -> None:
        while await clerk.judge_next(episode_id, final=final) is not None:
            pass

    samples = 2 * found.terms.K * found.terms.R * len(found.terms.models) * left
    return _begin(desk, person, found, "Judging challenges", samples, work, key, address)


def begin_measuring(
    desk: Desk,
    person: Person,
    episode_id: str,
    *,
    final: bool,
    key: str,
    address: str | None = None,
) -> Errand:
    """Have the judges measured, or conclude without: whichever is due."""
    if (known := desk.errands.under(key)) is not None:
        return known
    found = known_episode(desk, episode_id)
    stage = clerk_of(desk).next_stage(episode_id)

    async def work(clerk: Clerk) -> None:
        await clerk.measure(episode_id, final=final)

    title = f"The {stage} measurement of the judges" if stage else "Concluding without measurement"
    samples = 2 * found.terms.K * found.terms.R * len(found.judges) if stage else 0
    return _begin(desk, person, found, title, samples, work, key, address)


def begin_ruling(
    desk: Desk,
    person: Person,
    episode_id: str,
    *,
    confirmed: bool | None,
    final: bool,
    key: str,
    address: str | None = None,
) -> Errand:
    """Have the larger panel measure, and let its word stand."""
    if (known := desk.errands.under(key)) is not None:
        return known
    known_episode(desk, episode_id)
    found = clerk_of(desk).to_rule(episode_id)

    async def work(clerk: Clerk) -> None:
        await clerk.rule(episode_id, ground_confirmed=confirmed, final=final)

    samples = 4 * found.terms.K * found.terms.R * len(found.judges)
    return _begin(desk, person, found, "The larger panel measures", samples, work, key, address)


def _begin(
    desk: Desk,
    person: Person,
    episode: Episode,
    title: str,
    samples: int,
    do: Callable[[Clerk], Awaitable[None]],
    key: str,
    address: str | None,
) -> Errand:
    async def work(tally: Tally) -> str:
        await do(clerk_of(desk, tally))
        return episode.id

    errand = desk.errands.start(
        _told(work),
        key=key,
        title=title,
        subject=episode.terms.claim,
        samples=samples,
        episode=episode.id,
    )
    if errand.key == key:
        # Else somebody's errand has the episode in hand, and nothing was begun.
        desk.people.audit.write("episode.measure", by=person, subject=episode.id, address=address)
    return errand


def _told(work: Callable[[Tally], Awaitable[str]]) -> Work:
    """The work, whose refusals have their moments as people write them."""

    async def done(tally: Tally) -> str:
        try:
            return await work(tally)
        except RefusedError as exc:
            raise readable(exc) from exc

    return done
