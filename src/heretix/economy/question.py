"""What an episode asks its models, whatever they are shown."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.economy.exhibit import MAX_ITEM_CHARS, MAX_ITEMS, MAX_TITLE_CHARS, read_lens
from heretix.economy.money import require_whole
from heretix.errors import ConfigError
from heretix.prompts.bank import load_bank

if TYPE_CHECKING:
    from heretix.economy.terms import Terms

__all__ = ["Question"]

_FRAME_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Claim, lens, wordings and size. It stands before there are terms: c₀ is part of those."""

    episode: str
    """The episode's id; before it has one, whatever tells this question from others."""
    claim: str
    lens: str
    bank: str
    bank_sha256: str
    K: int
    R: int
    T: int
    B: int

    def __post_init__(self) -> None:
        read_lens(self.lens)
        for name in ("K", "R", "T", "B"):
            require_whole(name, getattr(self, name), least=1)
        bank = load_bank(self.bank)
        if bank.T_bank < self.T:
            raise ConfigError(
                f"`T` must be at most the {bank.T_bank} templates of {self.bank}, got {self.T}"
            )

    @classmethod
    def of(cls, episode: str, terms: Terms) -> Question:
        """What an episode asks, by its terms."""
        return cls(
            episode=episode,
            claim=terms.claim,
            lens=terms.lens,
            bank=terms.bank,
            bank_sha256=terms.bank_sha256,
            K=terms.K,
            R=terms.R,
            T=terms.T,
            B=terms.B,
        )

    @property
    def stems(self) -> tuple[int, ...]:
        """The wordings that every model answers: T of the bank's, drawn from the claim.

        Left alone, each model would get a choice of its own, and judges could not be paired.
        """
        ranked = sorted(range(load_bank(self.bank).T_bank), key=self._rank)
        return tuple(sorted(ranked[: self.T]))

    @property
    def longest_prompt(self) -> int:
        """Characters of a prompt with as many documents as a challenge may bring."""
        return _FRAME_CHARS + len(self.claim) + MAX_ITEMS * (MAX_ITEM_CHARS + MAX_TITLE_CHARS)

    def _rank(self, stem: int) -> str:
        return hashlib.sha256(f"{self.claim}|{self.bank_sha256}|{stem}".encode()).hexdigest()
