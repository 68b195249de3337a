"""What the hold-out judges found: who wins, at what rate, or why nobody does."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from heretix.economy.information import CONTEXT, LN2, divergence, require_finite
from heretix.economy.judging import JudgeShift, both_halves, shift_belief, target_belief
from heretix.economy.market import Position, Side
from heretix.economy.money import PPM, require_ppm, require_whole
from heretix.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.parameters import Parameters

__all__ = [
    "JudgeReading",
    "Measurement",
    "Outcome",
    "VoidReason",
    "decide",
    "transfer_rate",
    "void_reason",
]


class VoidReason(StrEnum):
    """Why an episode gives everything back, in order of precedence."""

    NO_OUTSIDE_STAKE = "no_outside_stake"
    """On one side there was nobody but the house."""
    CACHED_SAMPLE = "cached_sample"
    """A sample of a judging measurement was served from the cache."""
    MODEL_CHANGED = "model_changed"
    LOW_COMPLIANCE = "low_compliance"
    MISSING_QUORUM = "missing_quorum"
    NO_ESTIMATE = "no_estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReading:
    """One judge in one measurement: log-odds without and with the evidence."""

    model: str
    provider_model_ids: tuple[str, ...]
    """Every model id that the provider answered with."""
    before: Decimal | None
    after: Decimal | None
    attempted: int
    compliant: int
    from_cache: int

    def __post_init__(self) -> None:
        require_whole("attempted", self.attempted, least=1)
        require_whole("compliant", self.compliant, most=self.attempted)
        require_whole("from_cache", self.from_cache, most=self.attempted)
        for name, value in (("before", self.before), ("after", self.after)):
            if value is not None:
                require_finite(f"{self.model}.{name}", value)

    @property
    def shift(self) -> JudgeShift | None:
        """How far the judge moved, if both of its beliefs are known."""
        if self.before is None or self.after is None:
            return None
        return JudgeShift(model=self.model, before=self.before, after=self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One judging measurement: the judges, and their paired difference taken together."""

    readings: tuple[JudgeReading, ...]
    p_up_ppm: int | None
    """Share of replicas in which the judges went up; None without an estimate."""
    shift_lo: Decimal | None
    shift_hi: Decimal | None
    """The 95% interval of the judges' median shift, in log-odds."""

    def __post_init__(self) -> None:
        if self.p_up_ppm is not None:
            require_ppm("p_up_ppm", self.p_up_ppm)
        for name, value in (("shift_lo", self.shift_lo), ("shift_hi", self.shift_hi)):
            if value is not None:
                require_finite(name, value)
        models = [reading.model for reading in self.readings]
        if len(set(models)) != len(models):
            raise UsageError("`readings` must hold each judge once, got one twice")

    @property
    def shifts(self) -> tuple[JudgeShift, ...]:
        """The judges that have an estimate."""
        return tuple(r.shift for r in self.readings if r.shift is not None)

    def record(self) -> dict[str, Any]:
        """The measurement as a record that can be hashed."""
        return {
            "p_up_ppm": self.p_up_ppm,
            "shift_lo": _text(self.shift_lo),
            "shift_hi": _text(self.shift_hi),
            "readings": [
                {
                    "model": reading.model,
                    "provider_model_ids": list(reading.provider_model_ids),
                    "before": _text(reading.before),
                    "after": _text(reading.after),
                    "attempted": reading.attempted,
                    "compliant": reading.compliant,
                    "from_cache": reading.from_cache,
                }
                for reading in self.readings
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an episode ended. Held: no winner, no reason to void."""

    winner: Side | None
    tau_ppm: int
    q_ppm: int | None
    """The durable belief; None when void."""
    nearest_ppm: int | None
    """The end of its interval nearest to c₀, which sets the rate."""
    void: VoidReason | None

    @property
    def held(self) -> bool:
        """Measured, and neither side could show that it was right."""
        return self.winner is None and self.void is None


def void_reason(
    measurements: Sequence[Measurement],
    *,
    positions: Sequence[Position],
    parameters: Parameters,
) -> VoidReason | None:
    """The first reason to void that the stakes and the measurements so far give."""
    readings = [reading for measurement in measurements for reading in measurement.readings]
    served: dict[str, set[str]] = {}
    for reading in readings:
        served.setdefault(reading.model, set()).update(reading.provider_model_ids)
    least_ppm, quorum = parameters.min_compliance_ppm, parameters.quorum
    found = {
        VoidReason.NO_OUTSIDE_STAKE: {p.side for p in positions if not p.house} != set(Side),
        VoidReason.CACHED_SAMPLE: any(reading.from_cache for reading in readings),
        VoidReason.MODEL_CHANGED: any(len(ids) > 1 for ids in served.values()),
        VoidReason.LOW_COMPLIANCE: any(_compliance_below(m, least_ppm) for m in measurements),
        VoidReason.MISSING_QUORUM: any(len(m.shifts) < quorum for m in measurements),
        VoidReason.NO_ESTIMATE: any(
            None in (m.p_up_ppm, m.shift_lo, m.shift_hi) for m in measurements
        ),
    }
    return next((reason for reason in VoidReason if found[reason]), None)


def decide(
    c0_ppm: int,
    measurements: Sequence[Measurement],
    *,
    positions: Sequence[Position],
    parameters: Parameters,
) -> Outcome:
    """Heretic (Orthodox) wins if both measurements are sure that the judges went up (down)."""
    void = void_reason(measurements, positions=positions, parameters=parameters)
    if void is not None:
        return Outcome(winner=None, tau_ppm=0, q_ppm=None, nearest_ppm=None, void=void)
    if len(measurements) != 2:
        raise UsageError(
            f"`measurements` must be two, at the freeze and after the durability window, got "
            f"{len(measurements)}; measure again when the window has passed"
        )
    first, second = measurements
    q_ppm = both_halves(target_belief(c0_ppm, first.shifts), target_belief(c0_ppm, second.shifts))
    winner = _winner(first, second, parameters.win_ppm)
    if winner is None:
        return Outcome(winner=None, tau_ppm=0, q_ppm=q_ppm, nearest_ppm=None, void=None)
    nearest = _nearest_end(c0_ppm, first, second, winner)
    return Outcome(
        winner=winner,
        tau_ppm=transfer_rate(nearest, c0_ppm, parameters.tau_max_ppm),
        q_ppm=q_ppm,
        nearest_ppm=nearest,
        void=None,
    )


def transfer_rate(nearest_ppm: int, c0_ppm: int, tau_max_ppm: int) -> int:
    """τ = τ_max·min(1, KL(q‖c₀)/ln 2), in parts per million, rounded down."""
    share = min(CONTEXT.divide(divergence(nearest_ppm, c0_ppm), LN2), Decimal(1))
    rate = CONTEXT.multiply(Decimal(tau_max_ppm), share)
    return int(rate.to_integral_value(rounding=decimal.ROUND_FLOOR))


def _winner(first: Measurement, second: Measurement, win_ppm: int) -> Side | None:
    assert first.p_up_ppm is not None
    assert second.p_up_ppm is not None
    if min(first.p_up_ppm, second.p_up_ppm) >= win_ppm:
        return Side.HERETIC
    if max(first.p_up_ppm, second.p_up_ppm) <= PPM - win_ppm:
        return Side.ORTHODOX
    return None


def _nearest_end(c0_ppm: int, first: Measurement, second: Measurement, winner: Side) -> int:
    """The end nearest to c₀ of the interval of q, its ends halved as q is; rounded towards c₀.

    An interval that reaches c₀, or lies on the loser's side of it, gives c₀ itself: rate 0.
    """
    if winner is Side.HERETIC:
        ends = [shift_belief(c0_ppm, _known(m.shift_lo)) for m in (first, second)]
        return max(sum(ends) // 2, c0_ppm)
    ends = [shift_belief(c0_ppm, _known(m.shift_hi)) for m in (first, second)]
    return min(-(-sum(ends) // 2), c0_ppm)


def _compliance_below(measurement: Measurement, least_ppm: int) -> bool:
    attempted = sum(reading.attempted for reading in measurement.readings)
    compliant = sum(reading.compliant for reading in measurement.readings)
    return compliant * PPM < least_ppm * attempted


def _known(value: Decimal | None) -> Decimal:
    assert value is not None, "a measurement without an estimate is void"
    return value


def _text(value: Decimal | None) -> str | None:
    return None if value is None else str(value)
