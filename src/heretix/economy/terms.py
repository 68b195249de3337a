"""The terms of an episode: everything that is fixed, and hashed, when it opens."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from heretix.economy.canon import digest, require_sha256
from heretix.economy.information import require_belief
from heretix.economy.money import require_whole
from heretix.errors import ConfigError

if TYPE_CHECKING:
    from heretix.economy.parameters import Parameters

__all__ = ["Terms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is measured, by whom, when, and for how much."""

    claim: str
    currency: str
    lens: str
    bank: str
    bank_sha256: str
    models: tuple[str, ...]
    """The models of the lens: they take part, so they can't judge."""
    judge_pool: tuple[str, ...]
    """The models that judges are drawn from."""
    K: int
    R: int
    T: int
    B: int
    """Replicas of the bootstrap; the scale of rewards is a parameter."""
    c0_ppm: int
    """The belief as measured at open."""
    seed_stake: int
    """M₀: what the house stakes."""
    seed_heretic_ppm: int
    """The base rate of Heretic wins, at which that is split."""
    seed_commitment: str
    """Hash of the secret that the close and the judges are drawn from."""
    challenge_from_ms: int
    close_from_ms: int
    close_until_ms: int
    """The effective close is drawn from here to there; stakes are taken until the end."""
    freeze_at_ms: int
    """The last moment for a reveal."""
    parameters: Parameters

    def __post_init__(self) -> None:
        require_sha256("bank_sha256", self.bank_sha256)
        require_sha256("seed_commitment", self.seed_commitment)
        require_belief("c0_ppm", self.c0_ppm)
        for name in ("K", "R", "T", "B", "seed_stake"):
            require_whole(name, getattr(self, name), least=1)
        times = (
            self.challenge_from_ms,
            self.close_from_ms,
            self.close_until_ms,
            self.freeze_at_ms,
        )
        if any(a > b for a, b in itertools.pairwise(times)):
            raise ConfigError(
                "`challenge_from_ms`, `close_from_ms`, `close_until_ms` and `freeze_at_ms` must "
                f"follow each other in time, got {times}"
            )
        if len(set(self.judge_pool)) != len(self.judge_pool):
            raise ConfigError("`judge_pool` must name each model once, got one twice")
        if len(self.hold_outs) < self.parameters.judges:
            raise ConfigError(
                f"`judge_pool` must hold at least {self.parameters.judges} models that take no "
                f"part in the lens, got {len(self.hold_outs)}; add models to draw from"
            )

    @property
    def hold_outs(self) -> tuple[str, ...]:
        """The models that may judge, in one order whatever order they were named in."""
        return tuple(sorted(set(self.judge_pool) - set(self.models)))

    def record(self) -> dict[str, Any]:
        """The terms as a record that can be hashed."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {
            "models": list(self.models),
            "judge_pool": list(self.judge_pool),
            "parameters": self.parameters.record(),
        }

    def hash(self) -> str:
        """What is written at open and checked at every move from then on."""
        return _hash_of(self)


@lru_cache(maxsize=1024)
def _hash_of(terms: Terms) -> str:
    # Every bet asks for it. Terms are immutable and compared by value, so an answer stays true.
    return digest(terms.record())
