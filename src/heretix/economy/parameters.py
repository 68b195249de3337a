"""The numbers an episode is played by. They are fixed, with their version, when it opens."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from heretix.economy.exploration import CreditRules, StakeRules
from heretix.economy.judging import MIN_JUDGES, GateRules
from heretix.economy.market import FEE, TAU_MAX
from heretix.economy.money import require_ppm, require_whole

__all__ = ["HOUR_MS", "Parameters"]

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One version of the economy's numbers. A changed number is another version."""

    version: str = "economy_v1"
    tau_max_ppm: int = TAU_MAX
    fee_ppm: int = FEE
    platform_ppm: int = 500_000
    """The platform's share of the fees; the fund for durable updates has the rest."""
    challenge_fee_ppm: int = 300_000
    """What operations keep of the stake of a failed challenge."""
    reward_scale: int = 100_000
    """B: minor units per nat of a durable update."""
    win_ppm: int = 975_000
    """How sure both measurements must be of the direction for a side to win."""
    judges: int = 5
    """J."""
    quorum: int = MIN_JUDGES
    min_compliance_ppm: int = 900_000
    durability_ms: int = 7 * 24 * HOUR_MS
    dispute_window_ms: int = 48 * HOUR_MS
    dispute_bond_ppm: int = 10_000
    """The bond of a dispute, as a share of all stakes, when that is more than a base stake."""
    dispute_rounds: int = 2
    gate: GateRules = field(default_factory=GateRules)
    stakes: StakeRules = field(default_factory=StakeRules)
    credits: CreditRules = field(default_factory=CreditRules)

    def __post_init__(self) -> None:
        require_ppm("tau_max_ppm", self.tau_max_ppm, most=TAU_MAX)
        for name in ("fee_ppm", "platform_ppm", "challenge_fee_ppm", "min_compliance_ppm"):
            require_ppm(name, getattr(self, name))
        # Below one half, both sides could win at once.
        require_ppm("win_ppm", self.win_ppm, least=500_001)
        require_ppm("dispute_bond_ppm", self.dispute_bond_ppm)
        require_whole("judges", self.judges, least=MIN_JUDGES)
        require_whole("quorum", self.quorum, least=MIN_JUDGES, most=self.judges)
        for name in ("reward_scale", "durability_ms", "dispute_window_ms", "dispute_rounds"):
            require_whole(name, getattr(self, name))

    def record(self) -> dict[str, Any]:
        """The numbers as a record that can be hashed."""
        return asdict(self)
