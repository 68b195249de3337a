"""The clerk: has an episode's next step measured, and tells the exchange what came of it.

Whatever the exchange would refuse anyway is refused before a single call is made.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from heretix.economy.episode import Denial, Fate, Ground, State, kept_positions
from heretix.economy.market import Side
from heretix.economy.recheck import recheck
from heretix.economy.records import Source
from heretix.errors import ConflictError, RefusedError

if TYPE_CHECKING:
    from heretix.economy.clock import Clock
    from heretix.economy.episode import Episode
    from heretix.economy.exchange import Exchange
    from heretix.economy.panel import Hearing, Judged, Opening, Panel
    from heretix.economy.proposal import Proposal
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["Clerk", "Drafted", "Heard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """An episode on paper, and the belief it starts from."""

    episode: str
    opening: Opening
    at_ms: int
    """When it was written down: its times count from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One challenge, and what became of it."""

    number: int
    fate: Fate
    hearing: Hearing


class Clerk:
    """An exchange and a panel on one store."""

    def __init__(
        self,
        store: Store,
        exchange: Exchange,
        panel: Panel,
        *,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._store = store
        self._exchange = exchange
        self._panel = panel
        self._clock = clock
        self._settings = settings

    def check(self, proposal: Proposal) -> None:
        """Refuse what can't be drafted, before anything is measured."""
        proposal.terms(c0_ppm=500_000, at_ms=0, settings=self._settings)
        self._panel.check(proposal.question("draft"), proposal.models)

    async def draft(self, proposal: Proposal, *, key: str | None = None) -> Drafted:
        """Measure c₀ and write the episode down, once for a `key`. Its times count from then on."""
        self.check(proposal)
        question = proposal.question(f"draft-{secrets.token_hex(6)}")
        opening = await self._panel.open(question, proposal.models)
        at_ms = self._clock.now_ms()
        terms = proposal.terms(c0_ppm=opening.c0_ppm, at_ms=at_ms, settings=self._settings)
        episode = self._exchange.draft(terms, c0=Source(executions=opening.executions), key=key)
        return Drafted(episode=episode, opening=opening, at_ms=at_ms)

    def pending(self, episode: Episode) -> list[int]:
        """Challenges that are left to judge, in their order."""
        waiting = {Fate.COMMITTED, Fate.REVEALED}
        return [challenge.number for challenge in episode.challenges if challenge.fate in waiting]

    def to_judge(self, episode_id: str) -> Episode:
        """The episode, if challenges can be judged now."""
        return _in_state(self._exchange.episode(episode_id), State.FROZEN)

    async def judge_next(self, episode_id: str, *, final: bool = False) -> Heard | None:
        """Judge the earliest challenge that is left; None when there is none."""
        episode = self.to_judge(episode_id)
        pending = self.pending(episode)
        if not pending:
            return None
        number = pending[0]
        hearing = await self._panel.hear(episode, number, final=final)
        after = self._exchange.judge_challenge(
            episode_id,
            number,
            hearing.evidence,
            source=Source(
                executions=hearing.executions,
                bundle_id=episode.challenges[number].bundle_sha256,
            ),
        )
        return Heard(number=number, fate=after.challenges[number].fate, hearing=hearing)

    def next_stage(self, episode_id: str) -> Literal["first", "second"] | None:
        """The judging measurement that is due now; None when there is nothing to measure for."""
        episode = _in_state(self._exchange.episode(episode_id), State.FROZEN)
        if self.pending(episode):
            raise _refused(episode, Denial.OUT_OF_ORDER, "every challenge must be judged first")
        positions = kept_positions(episode, self._exchange.positions(episode_id))
        if {position.side for position in positions if not position.house} != set(Side):
            return None
        if not episode.measurements:
            return "first"
        assert episode.frozen_ms is not None
        due = episode.frozen_ms + episode.terms.parameters.durability_ms
        now = max(self._clock.now_ms(), episode.clock_ms)
        if now < due:
            raise _refused(
                episode, Denial.TOO_EARLY, f"the second measurement is due at {due}, it is {now}"
            )
        return "second"

    async def measure(self, episode_id: str, *, final: bool = False) -> Episode:
        """Have the judges measured, or conclude without: whichever is due."""
        stage = self.next_stage(episode_id)
        if stage is None:
            return self._exchange.conclude_unmeasured(episode_id)
        episode = self._exchange.episode(episode_id)
        judged = _first_hand(await self._panel.judge(episode, stage, final=final))
        return self._exchange.measure(
            episode_id,
            judged.measurement,
            stage=stage,
            source=Source(executions=judged.executions),
        )

    def to_rule(self, episode_id: str) -> Episode:
        """The episode, if its last dispute waits for a ruling."""
        episode = _in_state(self._exchange.episode(episode_id), State.DISPUTED)
        if episode.disputes[-1].upheld is not None:
            detail = "there is no dispute left to rule on"
            raise _refused(episode, Denial.DISPUTE_PENDING, detail)
        return episode

    async def rule(
        self, episode_id: str, *, ground_confirmed: bool | None = None, final: bool = False
    ) -> Episode:
        """Have the larger panel measure, and rule on the dispute.

        Whether a recomputation differs can be worked out, and is unless somebody says so.
        """
        episode = self.to_rule(episode_id)
        dispute = episode.disputes[-1]
        if ground_confirmed is None:
            # In a thread, because every number is worked out again: who waits mustn't stand still.
            ground_confirmed = (
                dispute.ground is Ground.RECOMPUTATION_MISMATCH
                and await asyncio.to_thread(self._differs, episode)
            )
        halves = [
            _first_hand(
                await self._panel.judge(episode, f"round:{dispute.round}:{half}", final=final)
            )
            for half in ("first", "second")
        ]
        return self._exchange.rule(
            episode_id,
            ground_confirmed=ground_confirmed,
            measurements=(halves[0].measurement, halves[1].measurement),
            source=Source(executions=tuple(e for half in halves for e in half.executions)),
        )

    def _differs(self, episode: Episode) -> bool:
        told = self._exchange.measurements(episode.id)
        return not all(found.ok for found in recheck(self._store, episode, told))


def _in_state(episode: Episode, state: State) -> Episode:
    if episode.state is not state:
        detail = f"the episode must be {state.value}, it is {episode.state.value}"
        raise _refused(episode, Denial.WRONG_STATE, detail)
    return episode


def _first_hand(judged: Judged) -> Judged:
    """A measurement without samples of others: for those the rules would void the episode."""
    shared = sum(reading.from_cache for reading in judged.measurement.readings)
    if shared:
        raise ConflictError(
            f"`samples`: {shared} were called for by another process that measures the same at "
            "this moment, so nothing is decided; measure again when it has ended"
        )
    return judged


def _refused(episode: Episode, denial: Denial, detail: str) -> RefusedError:
    return RefusedError(
        f"`{episode.id}` refused the move ({denial.value}): {detail}", status=denial.value
    )
