"""What evidence did: the gate that a step must pass, and the durable belief q.

The gate looks at the lens with and without the evidence. The durable belief is what models
that took no part came to believe, as a shift: where they started from doesn't matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import Record
from heretix.core.errors import UsageError
from heretix.economy.ledger import PPM, Reason, require_ppm, require_whole
from heretix.economy.rewards import (
    CONTEXT,
    belief_at,
    log_odds,
    median,
    require_belief,
    require_finite,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

MIN_JUDGES: Final = 3
"""With fewer, one judge at any value could move the median anywhere."""


class Direction(StrEnum):
    """Where evidence is said to move a belief."""

    UP = "up"
    DOWN = "down"


class GateFailure(StrEnum):
    """Why evidence earns nothing, in order of precedence."""

    TOO_FEW_SLOTS = "too_few_slots"
    INTERVAL_TOO_WIDE = "interval_too_wide"
    DIRECTION_UNCERTAIN = "direction_uncertain"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules(Record):
    """How sure a difference must be."""

    direction_ppm: int = 975_000
    min_slots: int = 16
    max_width_ppm: int = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReading(Record):
    """The lens with the evidence less the lens without, paired by template."""

    p_up_ppm: int
    """Share of bootstrap replicas in which the belief went up."""
    slots: int
    """K."""
    ci_width_ppm: int
    """Width of the difference's 95% interval, in probability."""


@dataclass(frozen=True, slots=True)
class GateRuling:
    """Whether a step may be taken."""

    failure: GateFailure | None
    reason: Reason | None = None
    """The rule that failed, and by how much."""

    @property
    def passed(self) -> bool:
        """The difference is real enough."""
        return self.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeShift:
    """One hold-out judge, in log-odds, without and with the evidence."""

    model: str
    before: Decimal
    after: Decimal


def pass_gate(reading: GateReading, direction: Direction, rules: GateRules) -> GateRuling:
    """Decide whether evidence moved the lens the way it was declared to."""
    require_ppm("p_up_ppm", reading.p_up_ppm)
    require_ppm("ci_width_ppm", reading.ci_width_ppm)
    require_whole("slots", reading.slots)
    sure = reading.p_up_ppm if direction is Direction.UP else PPM - reading.p_up_ppm
    if reading.slots < rules.min_slots:
        return GateRuling(
            GateFailure.TOO_FEW_SLOTS,
            Reason.of("too_few_slots", least=rules.min_slots, got=reading.slots),
        )
    if reading.ci_width_ppm > rules.max_width_ppm:
        return GateRuling(
            GateFailure.INTERVAL_TOO_WIDE,
            Reason.of(
                "interval_too_wide", most_ppm=rules.max_width_ppm, got_ppm=reading.ci_width_ppm
            ),
        )
    if sure < rules.direction_ppm:
        return GateRuling(
            GateFailure.DIRECTION_UNCERTAIN,
            Reason.of(
                "direction_uncertain",
                direction=direction.value,
                least_ppm=rules.direction_ppm,
                got_ppm=sure,
            ),
        )
    return GateRuling(None)


def shift_belief(c0_ppm: int, shift: Decimal) -> int:
    """The belief that lies `shift` log-odds from c₀."""
    require_belief("c0", c0_ppm)
    return belief_at(CONTEXT.add(log_odds(c0_ppm), require_finite("shift", shift)))


def target_belief(c0_ppm: int, judges: Sequence[JudgeShift]) -> int:
    """Difference in differences: logit q = logit c₀ + median over judges of (after - before).

    A judge's constant leaning cancels; one judge at any value moves the median no further
    than the others' spread.
    """
    if len(judges) < MIN_JUDGES:
        raise UsageError(
            f"`judges` must be at least {MIN_JUDGES}, got {len(judges)}; without a quorum the "
            "episode is void"
        )
    shifts = [
        CONTEXT.subtract(
            require_finite(f"{judge.model}.after", judge.after),
            require_finite(f"{judge.model}.before", judge.before),
        )
        for judge in judges
    ]
    return shift_belief(c0_ppm, median(shifts))


def both_halves(first_ppm: int, second_ppm: int) -> int:
    """q = ½(q₁ + q₂), half a part per million going to the even one."""
    half, odd = divmod(first_ppm + second_ppm, 2)
    return half + (odd and half % 2)
