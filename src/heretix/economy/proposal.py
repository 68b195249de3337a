"""A proposal: an episode before its belief was measured and its clock set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from heretix.belief.vector import MIN_STEMS
from heretix.config import check_claim
from heretix.economy.market import seed_market
from heretix.economy.money import PLAY, require_whole
from heretix.economy.parameters import HOUR_MS, Parameters
from heretix.economy.proceedings import UNDRAWN
from heretix.economy.question import Question
from heretix.economy.terms import Terms
from heretix.errors import ConfigError
from heretix.prompts.bank import load_bank
from heretix.providers.registry import resolve_model

if TYPE_CHECKING:
    from heretix.settings import Settings

__all__ = ["DAY_MS", "PRACTICE_JUDGES", "PRACTICE_MODELS", "Proposal"]

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
    lens: str = "HEL"
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
