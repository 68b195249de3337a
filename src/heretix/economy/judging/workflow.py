"""The workflow of an episode: propose it, have its next step measured, tell the exchange."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from heretix.config import check_claim
from heretix.core.errors import ConfigError, ConflictError, RefusedError
from heretix.core.lenses import HEL
from heretix.economy.episode import state
from heretix.economy.episode.moves import is_measured_for
from heretix.economy.exchange import UNDRAWN, Source
from heretix.economy.ledger import PLAY, require_whole
from heretix.economy.market import seed_market
from heretix.economy.sentences import refuse_move
from heretix.prompts.bank import load_bank
from heretix.providers.catalog import resolve_model

if TYPE_CHECKING:
    from heretix.core.settings import Settings
    from heretix.economy.exchange import Exchange
    from heretix.economy.judging.panel import GateInputs, Judged, Panel

DAY_MS: Final = 24 * state.HOUR_MS
PRACTICE_MODELS: Final = ("sim:lens?prior=0.4&hel=1.0&any_text=0",)
PRACTICE_JUDGES: Final = tuple(
    f"sim:judge{n}?prior={0.25 + 0.05 * (5 * n % 11):.2f}&hel={0.7 + 0.03 * n:.2f}&any_text=0"
    for n in range(1, 12)
)
"""Planted models that any document on the claim moves up: to learn the game without a key. As many
judges as a dispute draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An episode before its belief is measured and its clock set: what is to be measured, by whom,
    for how long and for how much."""

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
    """Time in which bets are taken before evidence is."""
    challenge_for_ms: int = 7 * DAY_MS
    """Time in which evidence and bets are taken."""
    candle_ms: int = DAY_MS
    """The last part of that, within which the effective close is drawn."""
    reveal_for_ms: int = DAY_MS
    """Time after the last bet in which evidence can be revealed."""
    parameters: state.Parameters = field(default_factory=state.Parameters)

    def __post_init__(self) -> None:
        from heretix.belief.metrics import MIN_STEMS

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

    def terms(
        self, *, c0_ppm: int, at_ms: int, settings: Settings, paid: tuple[str, ...] = ()
    ) -> state.Terms:
        """The terms of an episode that is drafted now. Models are named as records name them."""
        from heretix.economy.judging.panel import read_lens

        read_lens(self.lens)
        bank = load_bank(self.bank)
        if bank.T_bank < self.T:
            raise ConfigError(
                f"`T` must be at most the {bank.T_bank} templates of {self.bank}, got {self.T}"
            )
        models, judge_pool = (
            tuple(resolve_model(name, settings).identity for name in names)
            for names in (self.models, self.judge_pool)
        )
        begin = at_ms + self.challenge_after_ms
        close = begin + self.challenge_for_ms
        same = ("currency", "lens", "bank", "K", "R", "T", "B", "seed_stake", "seed_heretic_ppm")
        return state.Terms(
            **{name: getattr(self, name) for name in same},
            claim=check_claim(self.claim),
            bank_sha256=bank.sha256,
            models=models,
            judge_pool=judge_pool,
            c0_ppm=c0_ppm,
            seed_commitment=UNDRAWN,
            challenge_from_ms=begin,
            close_from_ms=close - self.candle_ms,
            close_until_ms=close,
            freeze_at_ms=close + self.reveal_for_ms,
            parameters=self.parameters,
            paid=paid,
        )


class Drafted(NamedTuple):
    """An episode on paper, and when it was written down: its times count from there."""

    episode: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedChallenge:
    """One challenge, and what became of it."""

    number: int
    fate: state.Fate
    inputs: GateInputs


class EpisodeWorkflow:
    """Measure an episode's next step, and tell the exchange what came of it.

    Whatever the exchange would refuse anyway is refused before a single call is made.
    """

    def __init__(self, exchange: Exchange, panel: Panel, *, settings: Settings) -> None:
        self._exchange = exchange
        self._panel = panel
        self._settings = settings

    def check(self, proposal: Proposal) -> state.Terms:
        """Refuse what can't be drafted, before anything is measured; return terms without c₀."""
        settings, paid = self._settings, self._exchange.claim_standing(proposal.claim).paid
        terms = proposal.terms(c0_ppm=500_000, at_ms=0, settings=settings, paid=paid)
        self._panel.check(terms, proposal.models)
        return terms

    async def draft(self, proposal: Proposal, *, key: str | None = None) -> Drafted:
        """Measure c₀ and write the episode down, once for a `key`. Its times count from then on."""
        taken = self._exchange.claim_standing(proposal.claim).open_episode
        # Asked for again under its key, it is the one that was written.
        if taken is not None and (key is None or taken != state.draft_id(key)):
            raise RefusedError(
                f"`claim` is asked about by `{taken}`, which hasn't ended; one episode of a claim "
                "is open at a time",
                status=state.Denial.CLAIM_TAKEN.value,
            )
        label = f"draft-{secrets.token_hex(6)}"
        terms = self.check(proposal)
        c0_ppm, executions = await self._panel.open(label, terms, proposal.models)
        at_ms = self._exchange.clock.now_ms()
        terms = proposal.terms(c0_ppm=c0_ppm, at_ms=at_ms, settings=self._settings, paid=terms.paid)
        episode = self._exchange.draft(terms, c0=Source(executions=executions), key=key)
        return Drafted(episode, at_ms)

    def require_frozen(self, episode_id: str) -> state.Episode:
        """Load the episode, if challenges can be judged now."""
        return _require_state(self._exchange.episode(episode_id), state.State.FROZEN)

    async def judge_next(self, episode_id: str, *, final: bool = False) -> JudgedChallenge | None:
        """Judge the earliest challenge that is left; None when there is none."""
        episode = self.require_frozen(episode_id)
        challenge = next((c for c in episode.challenges if not c.is_judged), None)
        if challenge is None:
            return None
        number = challenge.number
        inputs = await self._panel.measure_gate(episode, number, final=final)
        source = Source(executions=inputs.executions, bundle_id=challenge.bundle_sha256)
        after = self._exchange.judge_challenge(episode_id, number, inputs.evidence, source=source)
        return JudgedChallenge(number=number, fate=after.challenges[number].fate, inputs=inputs)

    def next_stage(self, episode_id: str) -> Literal["first", "second"] | None:
        """Name the judging measurement that is due now; None when there is none to make."""
        episode = self.require_frozen(episode_id)
        if not all(challenge.is_judged for challenge in episode.challenges):
            raise refuse_move(episode, state.deny(state.Denial.OUT_OF_ORDER, "unjudged_challenges"))
        if not is_measured_for(episode, self._exchange.positions(episode_id)):
            return None
        if not episode.measurements:
            return "first"
        assert episode.frozen_ms is not None
        due = episode.frozen_ms + episode.terms.parameters.durability_ms
        now = max(self._exchange.clock.now_ms(), episode.clock_ms)
        if now < due:
            raise refuse_move(
                episode, state.deny(state.Denial.TOO_EARLY, "second_due", at_ms=due, now_ms=now)
            )
        return "second"

    async def measure(self, episode_id: str, *, final: bool = False) -> state.Episode:
        """Measure the judges, or conclude without: whichever is due."""
        stage = self.next_stage(episode_id)
        if stage is None:
            return self._exchange.conclude_unmeasured(episode_id)
        judged = await self._judge(self._exchange.episode(episode_id), stage, final=final)
        source = Source(executions=judged.executions)
        return self._exchange.measure(episode_id, judged.measurement, stage=stage, source=source)

    def require_disputed(self, episode_id: str) -> state.Episode:
        """Load the episode, if its last dispute waits for a ruling."""
        episode = _require_state(self._exchange.episode(episode_id), state.State.DISPUTED)
        if episode.disputes[-1].upheld is not None:
            raise refuse_move(episode, state.deny(state.Denial.DISPUTE_PENDING, "no_dispute"))
        return episode

    async def rule(
        self, episode_id: str, *, ground_confirmed: bool | None = None, final: bool = False
    ) -> state.Episode:
        """Measure with the larger panel, and rule on the dispute.

        Whether a recomputation differs can be worked out, and is unless somebody says so.
        """
        episode = self.require_disputed(episode_id)
        dispute = episode.disputes[-1]
        if ground_confirmed is None:
            # In a thread, because every number is worked out again: who waits mustn't stand still.
            ground_confirmed = (
                dispute.ground is state.Ground.RECOMPUTATION_MISMATCH
                and await asyncio.to_thread(self._differs, episode)
            )
        halves = [
            await self._judge(episode, f"round:{dispute.round}:{half}", final=final)
            for half in ("first", "second")
        ]
        return self._exchange.rule(
            episode_id,
            ground_confirmed=ground_confirmed,
            measurements=(halves[0].measurement, halves[1].measurement),
            source=Source(executions=tuple(e for half in halves for e in half.executions)),
        )

    def _differs(self, episode: state.Episode) -> bool:
        from heretix.economy.judging.inputs import recheck

        told = self._exchange.measurements(episode.id)
        return not all(found.ok for found in recheck(self._exchange.store, episode, told))

    async def _judge(self, episode: state.Episode, stage: str, *, final: bool) -> Judged:
        """Measure the judges first-hand: for samples of others the rules would void it."""
        judged = await self._panel.judge(episode, stage, final=final)
        shared = sum(reading.from_cache for reading in judged.measurement.readings)
        if shared:
            raise ConflictError(
                f"`samples`: {shared} were called for by another process that measures the same at "
                "this moment, so nothing is decided; measure again when it has ended"
            )
        return judged


def _require_state(episode: state.Episode, wanted: state.State) -> state.Episode:
    if episode.state is not wanted:
        wrong = state.deny(state.Denial.WRONG_STATE, wanted=wanted.value, state=episode.state.value)
        raise refuse_move(episode, wrong)
    return episode
