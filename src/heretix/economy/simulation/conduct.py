"""How a player who reckons well sizes a challenge or a bet, from what it knows.

These are guesses that agents act on, so they may be floats; what is paid is the rules' affair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from heretix.belief.logodds import logit, sigmoid
from heretix.economy.information import clip_belief
from heretix.economy.judging import Direction
from heretix.economy.market import MICRO, Side
from heretix.economy.money import PPM
from heretix.economy.rewards import required_bond

if TYPE_CHECKING:
    from heretix.economy.market import Market

__all__ = ["StakePlan", "direction_of", "gate_risk", "lift_to", "plan_stake", "side_of"]

_STEPS: Final = 10
_GRID: Final = 1_000
_GATE_Z: Final = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class StakePlan:
    """What to stake on a challenge, and what it should come to."""

    stake: int
    expected: float


def direction_of(sign: float) -> Direction:
    """The direction of a shift."""
    return Direction.UP if sign > 0 else Direction.DOWN


def side_of(direction: Direction) -> Side:
    """The pool that a direction is the cause of."""
    return Side.HERETIC if direction is Direction.UP else Side.ORTHODOX


def gate_risk(probed: float, *, sd: float, probes: int = 1) -> float:
    """How likely a bundle that moved the lens this far at home fails the gate.

    Each probe has the error `sd`, and so has the gate.
    """
    return NormalDist().cdf((_GATE_Z * sd - abs(probed)) / (sd * math.sqrt(1 + 1 / probes)))


def plan_stake(
    c0_ppm: int, *, lens_shift: float, q_shift: float, risk: float, least: int, scale: int
) -> StakePlan:
    """The stake with the best prospects: a larger one goes further, and risks more at the gate.

    The path can't go further than the lens does, and goes as far as the least stake covers
    whether one likes it or not.
    """
    start = c0_ppm / PPM
    target = sigmoid(logit(start) + q_shift)
    wanted = sigmoid(logit(start) + lens_shift)
    best: StakePlan | None = None
    for step in range(_STEPS + 1):
        goal = start + (wanted - start) * step / _STEPS
        goal_ppm = clip_belief(round(goal * PPM / _GRID) * _GRID)
        bond = required_bond(scale, c0_ppm, goal_ppm)
        if bond < least and step < _STEPS:
            goal = _covered(start, wanted, least / scale)
        gain = scale * (
            target * math.log(goal / start) + (1 - target) * math.log((1 - goal) / (1 - start))
        )
        amount = max(bond, least)
        plan = StakePlan(stake=amount, expected=(1 - risk) * gain - risk * amount)
        if best is None or plan.expected > best.expected:
            best = plan
    assert best is not None
    return best


def lift_to(market: Market, side: Side, probability: float, *, most: int) -> int:
    """What to bet to bring the implied probability of a side to this, at most `most`."""
    others = market.shares(side.other) / MICRO
    money = others / math.sqrt(1 - probability)
    return min(most, max(0, int(money - market.money)))


def _covered(start: float, wanted: float, nats: float) -> float:
    """About how far a bond of so many nats covers the way from `start` to `wanted`."""
    if wanted > start:
        return min(wanted, 1 - (1 - start) * math.exp(-nats))
    return max(wanted, start * math.exp(-nats))
