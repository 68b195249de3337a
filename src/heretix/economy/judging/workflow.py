"""The workflow of an episode: propose it, have its next step measured, tell the exchange."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from heretix.belief.vector import MIN_STEMS
from heretix.config import check_claim
from heretix.core.errors import ConfigError, ConflictError, RefusedError
from heretix.core.lenses import HEL
from heretix.economy.episode.state import (
    HOUR_MS,
    Denial,
    Denied,
    Fate,
    Ground,
    Parameters,
    State,
    Terms,
    deny,
    kept_positions,
)
from heretix.economy.exchange import UNDRAWN, Source
from heretix.economy.judging.inputs import recheck
from heretix.economy.judging.panel import Question
from heretix.economy.ledger import PLAY, require_whole
from heretix.economy.market import Side, seed_market
from heretix.economy.sentences import refuse_move
from heretix.prompts.bank import load_bank
from heretix.providers.catalog import resolve_model

if TYPE_CHECKING:
    from heretix.core.clock import Clock
    from heretix.core.settings import Settings
    from heretix.economy.episode.state import Episode
    from heretix.economy.exchange import Exchange
    from heretix.economy.judging.panel import GateInputs, Judged, Opening, Panel
    from heretix.store import Store

# A proposal: an episode before its belief was measured and its clock set.

DAY_MS: Final = 24 * HOUR_MS
PRACTICE_MODELS: Final = ("sim:lens?prior=0.4&hel=1.0",)
PRACTICE_JUDGES: Final = tuple(
    f"sim:judge{n}?prior={prior}&hel={shift}"
    for n, (prior, shift) in enumerate(
        ((0.3, 0.7), (0.4, 0.8), (0.5, 0.9), (0.6, 0.85), (0.7, 1.0), (0.45, 0.75)), start=1
    )
)
"""Planted models that any evidence moves up: to learn the game without a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What is to be measured, by whom, for how long and for how much."""

    claim: str
    models: tuple[str, ...]
    judge_pool: tuple[str, ...]
    lens: str = HEL
    bank: str = "rpl_v1"
    currency: str = PLAY.code
    K: int = 16
    R: int = 2
    T: int = 16
    B: int = 5000
    seed_stake: int = 100_000
    seed_heretic_ppm: int = 500_000
    challenge_after_ms: int = 0
    """How long bets are taken before evidence is."""
    challenge_for_ms: int = 7 * DAY_MS
    """How long evidence and bets are taken."""
    candle_ms: int = DAY_MS
    """The last part of that, within which the effective close is drawn."""
    reveal_for_ms: int = DAY_MS
    """How long evidence can be revealed after the last bet."""
    parameters: Parameters = field(default_factory=Parameters)

    def __post_init__(self) -> None:
        check_claim(self.claim)
        if not self.models:
            raise ConfigError("`models` is empty: name the models of the lens")
        for name in ("challenge_after_ms", "challenge_for_ms", "candle_ms", "reveal_for_ms"):
            require_whole(name, getattr(self, name))
        least = self.parameters.gate.min_slots
        if least > self.K:
            raise ConfigError(
                f"`K` must be at least {least}, or no evidence can pass the gate, got {self.K}"
            )
        if self.T < MIN_STEMS:
            raise ConfigError(
                f"`T` must be at least {MIN_STEMS}, or no judge has an interval, got {self.T}"
            )
        # A seed that no market can open with is found before anything is measured.
        seed_market("house", stake=self.seed_stake, heretic_ppm=self.seed_heretic_ppm)
        if self.candle_ms > self.challenge_for_ms:
            raise ConfigError(
                "`candle` must not be longer than the time for challenges, got "
                f"{self.candle_ms} of {self.challenge_for_ms} milliseconds"
            )

    def question(self, label: str) -> Question:
        """What is asked. The episode has no id yet; `label` tells its samples from others."""
        return Question(
            episode=label,
            claim=check_claim(self.claim),
            lens=self.lens,
            bank=self.bank,
            bank_sha256=load_bank(self.bank).sha256,
            K=self.K,
            R=self.R,
            T=self.T,
            B=self.B,
        )

    def terms(self, *, c0_ppm: int, at_ms: int, settings: Settings) -> Terms:
        """The terms of an episode that is drafted now. Models are named as records name them."""
        question = self.question("draft")
        begin = at_ms + self.challenge_after_ms
        close = begin + self.challenge_for_ms
        return Terms(
            claim=question.claim,
            currency=self.currency,
            lens=question.lens,
            bank=question.bank,
            bank_sha256=question.bank_sha256,
            models=_identities(self.models, settings),
            judge_pool=_identities(self.judge_pool, settings),
            K=self.K,
            R=self.R,
            T=self.T,
            B=self.B,
            c0_ppm=c0_ppm,
            seed_stake=self.seed_stake,
            seed_heretic_ppm=self.seed_heretic_ppm,
            seed_commitment=UNDRAWN,
            challenge_from_ms=begin,
            close_from_ms=close - self.candle_ms,
            close_until_ms=close,
            freeze_at_ms=close + self.reveal_for_ms,
            parameters=self.parameters,
        )


def _identities(names: tuple[str, ...], settings: Settings) -> tuple[str, ...]:
    return tuple(resolve_model(name, settings).identity for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """An episode on paper, and the belief it starts from."""

    episode: str
    opening: Opening
    at_ms: int
    """When it was written down: its times count from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedChallenge:
    """One challenge, and what became of it."""

    number: int
    fate: Fate
    inputs: GateInputs


class EpisodeWorkflow:
    """Have an episode's next step measured, and tell the exchange what came of it.

    Whatever the exchange would refuse anyway is refused before a single call is made.
    """

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

    def require_frozen(self, episode_id: str) -> Episode:
        """The episode, if challenges can be judged now."""
        return _in_state(self._exchange.episode(episode_id), State.FROZEN)

    async def judge_next(self, episode_id: str, *, final: bool = False) -> JudgedChallenge | None:
        """Judge the earliest challenge that is left; None when there is none."""
        episode = self.require_frozen(episode_id)
        pending = self.pending(episode)
        if not pending:
            return None
        number = pending[0]
        inputs = await self._panel.measure_gate(episode, number, final=final)
        after = self._exchange.judge_challenge(
            episode_id,
            number,
            inputs.evidence,
            source=Source(
                executions=inputs.executions,
                bundle_id=episode.challenges[number].bundle_sha256,
            ),
        )
        return JudgedChallenge(number=number, fate=after.challenges[number].fate, inputs=inputs)

    def next_stage(self, episode_id: str) -> Literal["first", "second"] | None:
        """The judging measurement that is due now; None when there is nothing to measure for."""
        episode = _in_state(self._exchange.episode(episode_id), State.FROZEN)
        if self.pending(episode):
            raise _refused(episode, deny(Denial.OUT_OF_ORDER, "unjudged_challenges"))
        positions = kept_positions(episode, self._exchange.positions(episode_id))
        if {position.side for position in positions if not position.house} != set(Side):
            return None
        if not episode.measurements:
            return "first"
        assert episode.frozen_ms is not None
        due = episode.frozen_ms + episode.terms.parameters.durability_ms
        now = max(self._clock.now_ms(), episode.clock_ms)
        if now < due:
            early = deny(Denial.TOO_EARLY, "second_due", at_ms=due, now_ms=now)
            raise _refused(episode, early)
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

    def require_disputed(self, episode_id: str) -> Episode:
        """The episode, if its last dispute waits for a ruling."""
        episode = _in_state(self._exchange.episode(episode_id), State.DISPUTED)
        if episode.disputes[-1].upheld is not None:
            raise _refused(episode, deny(Denial.DISPUTE_PENDING, "no_dispute"))
        return episode

    async def rule(
        self, episode_id: str, *, ground_confirmed: bool | None = None, final: bool = False
    ) -> Episode:
        """Have the larger panel measure, and rule on the dispute.

        Whether a recomputation differs can be worked out, and is unless somebody says so.
        """
        episode = self.require_disputed(episode_id)
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
        wrong = deny(Denial.WRONG_STATE, wanted=state.value, state=episode.state.value)
        raise _refused(episode, wrong)
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


def _refused(episode: Episode, denied: Denied) -> RefusedError:
    return refuse_move(episode.id, denied.denial.value, denied.reason, episode.terms.currency)
