"""The exchange as a desk has it, and the clerk that is asked before something is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.economy.clerk import Clerk
from heretix.economy.clock import SystemClock
from heretix.economy.episode import State
from heretix.economy.exchange import Exchange
from heretix.economy.panel import Panel
from heretix.economy.question import Question
from heretix.economy.track import Track
from heretix.errors import RecordError, RefusedError
from heretix.web.desk import desk_of
from heretix.web.identity import visit_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from heretix.economy.clock import Clock
    from heretix.economy.episode import Episode
    from heretix.web.desk import Desk

__all__ = [
    "begun",
    "clerk_of",
    "clock_of",
    "exchange_of",
    "hearing_cost",
    "known_episode",
    "note_move",
    "track_of",
]


def clock_of(desk: Desk) -> Clock:
    """The time that the economy goes by."""
    return desk.clock or SystemClock()


def exchange_of(desk: Desk) -> Exchange:
    """The exchange of a desk."""
    if desk.exchange is None:
        desk.exchange = Exchange(desk.store, clock=clock_of(desk))
    exchange: Exchange = desk.exchange
    return exchange


def track_of(desk: Desk) -> Track:
    """Everybody's standing."""
    return Track(desk.store, clock=clock_of(desk))


def clerk_of(desk: Desk) -> Clerk:
    """Who knows whether an episode's next step can be measured."""
    return Clerk(
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
