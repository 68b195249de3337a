"""A move of an episode, as a worker makes it: measured anew, then decided once.

A decision is one transaction of the exchange's. Whoever takes the job up looks first what is left
to do: a worker that died after it had decided has decided for all that follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.economy.clerk import Clerk
from heretix.economy.clock import HeldClock
from heretix.economy.codec import decode
from heretix.economy.episode import draft_id
from heretix.economy.exchange import Exchange
from heretix.economy.panel import Panel
from heretix.economy.proposal import Proposal
from heretix.economy.refusal import readable
from heretix.errors import ConflictError, RefusedError
from heretix.providers.registry import Opener, open_provider

if TYPE_CHECKING:
    from heretix.economy.clock import Clock
    from heretix.jobs.episode_request import EpisodeRequest
    from heretix.jobs.tracker import Tracker
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["Proceeding"]


class Proceeding:
    """One job's move, against one store."""

    def __init__(
        self,
        request: EpisodeRequest,
        store: Store,
        settings: Settings,
        *,
        clock: Clock,
        tracker: Tracker,
        opener: Opener = open_provider,
    ) -> None:
        self._request = request
        self._store = store
        self._clock = clock
        self._tracker = tracker
        self._exchange = Exchange(store, clock=clock)
        panel = Panel(
            store,
            settings,
            observer=tracker,
            watch=tracker.watch,
            budget_left_usd=lambda: tracker.budget_left_usd,
            opener=opener,
        )
        self._clerk = Clerk(store, self._exchange, panel, clock=clock, settings=settings)

    async def run(self) -> None:
        """Make the move, or what is left of it."""
        try:
            if self._request.move == "draft":
                await self._draft()
            else:
                await self._move_on(self._episode)
        except RefusedError as exc:
            raise readable(exc) from exc

    @property
    def _episode(self) -> str:
        assert self._request.episode is not None, "only drafts have no episode yet"
        return self._request.episode

    async def _draft(self) -> None:
        proposal = decode(Proposal, self._request.proposal, "proposal")
        key = self._tracker.job_id
        self._exchange.ensure_house(proposal.currency)
        if not self._exchange.knows(draft_id(key)):
            self._expect(proposal.K * proposal.R, runs=len(proposal.models))
            await self._clerk.draft(proposal, key=key)
        if self._request.opens:
            self._open(draft_id(key), proposal)

    def _open(self, episode_id: str, proposal: Proposal) -> None:
        terms = self._exchange.episode(episode_id).terms
        # Terms count from the moment they were written: that is when it opens, too.
        written_ms = terms.challenge_from_ms - proposal.challenge_after_ms
        Exchange(self._store, clock=HeldClock(written_ms)).open(episode_id)
        if terms.challenge_from_ms <= self._clock.now_ms():
            self._exchange.begin_challenge(episode_id)

    async def _move_on(self, episode_id: str) -> None:
        terms, left = self._exchange.episode(episode_id).terms, self._left()
        self._expect(terms.K * terms.R, runs=self._runs_left(left))
        while left:
            try:
                await self._step()
            except (ConflictError, RefusedError):
                # A worker that was taken for dead may have decided meanwhile: that stands.
                if self._left() == left:
                    raise
            left = self._left()

    def _left(self) -> tuple[str | int, ...]:
        """What the job was begun for and isn't decided yet."""
        request = self._request
        episode = self._exchange.episode(self._episode)
        if request.move == "judge":
            return tuple(self._clerk.pending(episode))
        if request.stage is None:
            return () if episode.measured_ms is not None else ("conclusion",)
        if request.move == "measure":
            told = {found.stage for found in self._exchange.measurements(self._episode)}
            return () if request.stage in told else (request.stage,)
        dispute = episode.disputes[int(request.stage.removeprefix("round:")) - 1]
        return () if dispute.upheld is not None else (request.stage,)

    def _runs_left(self, left: tuple[str | int, ...]) -> int:
        """Every model without and with the evidence: once a challenge, twice in a dispute."""
        request = self._request
        if request.move == "judge":
            challenges = self._exchange.episode(self._episode).challenges
            times = sum(challenges[int(number)].bundle_sha256 is not None for number in left)
        elif request.stage is None:
            times = 0
        else:
            times = len(left) * (2 if request.move == "rule" else 1)
        return 2 * times * len(request.models)

    async def _step(self) -> None:
        request = self._request
        if request.move == "judge":
            await self._clerk.judge_next(self._episode, final=request.final)
        elif request.move == "measure":
            await self._clerk.measure(self._episode, final=request.final)
        else:
            await self._clerk.rule(
                self._episode, ground_confirmed=request.confirmed, final=request.final
            )

    def _expect(self, samples_a_run: int, *, runs: int) -> None:
        self._tracker.expect(samples=samples_a_run * runs, runs=runs)
