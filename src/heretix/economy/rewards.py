"""Rewards for durable updates: what a step did to the distance from the durable belief.

A step is paid the change of one potential, in whole units. Whatever path is taken, the
rewards add up to the potential of its end less that of its start: a closed loop earns 0,
a split step earns what the whole one does.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

from heretix.economy.information import (
    BELIEF_MAX,
    BELIEF_MIN,
    CONTEXT,
    clip_belief,
    log_score,
    require_belief,
)
from heretix.economy.money import require_whole
from heretix.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Reward",
    "RewardBook",
    "Step",
    "budget",
    "explain",
    "farthest",
    "potential",
    "required_bond",
    "reward",
    "settle_rewards",
    "take_step",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One accepted piece of evidence, and how far it moved the credited path."""

    number: int
    account: str
    evidence: str
    """Hash of the evidence bundle."""
    c_from_ppm: int
    c_wanted_ppm: int
    """Where the lens went with this evidence."""
    c_to_ppm: int
    """Where the path went: nearer than wanted when the bond was short."""
    bond: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What a step earned: the change of the potential, never floored at zero."""

    step: Step
    scale: int
    q_ppm: int
    potential_from: int
    potential_to: int

    @property
    def amount(self) -> int:
        """Paid from the budget when positive, out of the bond when negative."""
        return self.potential_to - self.potential_from

    @property
    def receives(self) -> int:
        """What the account gets back in all, its bond included."""
        return self.step.bond + self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBook:
    """The rewards of an episode, and what is left of its budget."""

    rewards: tuple[Reward, ...]
    budget: int
    budget_left: int


@lru_cache(maxsize=1 << 16)
def potential(scale: int, q_ppm: int, c_ppm: int) -> int:
    """Φ_q(c) = round_half_even(B·[q·ln c + (1-q)·ln(1-c)]), in minor units."""
    require_whole("scale", scale)
    require_belief("q", q_ppm)
    require_belief("c", c_ppm)
    exact = CONTEXT.multiply(Decimal(scale), log_score(q_ppm, c_ppm))
    return int(exact.to_integral_value(rounding=decimal.ROUND_HALF_EVEN))


def required_bond(scale: int, c_from_ppm: int, c_to_ppm: int) -> int:
    """What must be posted before a move: the most it can lose, plus 1 for rounding.

    The loss is linear in q, so one of the ends is the worst; in between, the rounding of two
    potentials can add less than one unit to it.
    """
    losses = (
        potential(scale, q, c_from_ppm) - potential(scale, q, c_to_ppm)
        for q in (BELIEF_MIN, BELIEF_MAX)
    )
    return max(losses) + 1


def budget(scale: int, c0_ppm: int) -> int:
    """What must be escrowed at open: the most that all steps together can earn, plus 1."""
    gains = (potential(scale, q, q) - potential(scale, q, c0_ppm) for q in (BELIEF_MIN, BELIEF_MAX))
    return max(gains) + 1


def farthest(scale: int, c_from_ppm: int, c_wanted_ppm: int, bond: int) -> int:
    """The last belief on the way from `c_from` to `c_wanted` that the bond still covers.

    The required bond never falls as the move gets longer, so halving finds it exactly.
    """
    if required_bond(scale, c_from_ppm, c_wanted_ppm) <= bond:
        return c_wanted_ppm
    towards = 1 if c_wanted_ppm >= c_from_ppm else -1
    covered, open_end = 0, abs(c_wanted_ppm - c_from_ppm)
    # A bond of nothing covers no move: even standing still is charged the 1 for rounding.
    while open_end - covered > 1:
        middle = (covered + open_end) // 2
        if required_bond(scale, c_from_ppm, c_from_ppm + towards * middle) <= bond:
            covered = middle
        else:
            open_end = middle
    return c_from_ppm + towards * covered


def take_step(
    *,
    number: int,
    account: str,
    evidence: str,
    scale: int,
    c_from_ppm: int,
    c_wanted_ppm: int,
    bond: int,
) -> Step:
    """Move the credited path towards what the lens measured, as far as the bond covers."""
    require_whole("bond", bond)
    require_belief("c_from", c_from_ppm)
    wanted = clip_belief(c_wanted_ppm)
    return Step(
        number=number,
        account=account,
        evidence=evidence,
        c_from_ppm=c_from_ppm,
        c_wanted_ppm=wanted,
        c_to_ppm=farthest(scale, c_from_ppm, wanted, bond),
        bond=bond,
    )


def reward(step: Step, *, scale: int, q_ppm: int) -> Reward:
    """What a step earned, now that the durable belief is known."""
    return Reward(
        step=step,
        scale=scale,
        q_ppm=q_ppm,
        potential_from=potential(scale, q_ppm, step.c_from_ppm),
        potential_to=potential(scale, q_ppm, step.c_to_ppm),
    )


def settle_rewards(steps: Sequence[Step], *, scale: int, c0_ppm: int, q_ppm: int) -> RewardBook:
    """Rewards of a whole path, which must run from c₀ without a gap."""
    at = c0_ppm
    for step in steps:
        if step.c_from_ppm != at:
            raise RecordError(
                f"`step {step.number}` must start where the path stood, at {at} parts per "
                f"million, got {step.c_from_ppm}; the record is incomplete or was changed"
            )
        at = step.c_to_ppm
    rewards = tuple(reward(step, scale=scale, q_ppm=q_ppm) for step in steps)
    escrowed = budget(scale, c0_ppm)
    left = escrowed - sum(item.amount for item in rewards)
    assert left >= 0, "the budget covers every path by construction"
    return RewardBook(rewards=rewards, budget=escrowed, budget_left=left)


def explain(item: Reward) -> tuple[str, ...]:
    """A reward line by line: every number needed to work it out again by hand."""
    step = item.step
    start, end = _percent(step.c_from_ppm), _percent(step.c_to_ppm)
    sign = "+" if item.amount >= 0 else "-"
    lines = [
        f"step {step.number} by {step.account}: evidence {step.evidence[:12]}",
        f"credited belief: from {start} to {end}",
        f"bond: {step.bond} posted, {_needed(item)} needed for this move",
        f"durable belief: q = {_percent(item.q_ppm)}; scale B = {item.scale}",
        f"potential before: B·[q·ln c + (1-q)·ln(1-c)] at c = {start} is {item.potential_from}",
        f"potential after: at c = {end} it is {item.potential_to}",
        f"reward: {item.potential_to} - ({item.potential_from}) = {item.amount}",
        f"receives: bond {step.bond} {sign} {abs(item.amount)} = {item.receives}",
    ]
    if step.c_to_ppm != step.c_wanted_ppm:
        lens = f"the lens went to {_percent(step.c_wanted_ppm)}, the bond covered the way to {end}"
        lines.insert(2, lens)
    return tuple(lines)


def _needed(item: Reward) -> int:
    step = item.step
    if step.c_from_ppm == step.c_to_ppm:
        return 0
    return required_bond(item.scale, step.c_from_ppm, step.c_to_ppm)


def _percent(ppm: int) -> str:
    return f"{ppm // 10_000}.{ppm % 10_000:04d}%"
