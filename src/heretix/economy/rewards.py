"""Rewards for durable updates: what a step did to the distance from the durable belief."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import Record
from heretix.core.errors import RecordError, UsageError
from heretix.economy.ledger import PPM, Reason, require_ppm, require_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

# Beliefs in parts per million, and how far apart two of them are.
#
# Logarithms are `Decimal` at 50 digits in a context of our own: the same on every machine,
# whatever the caller's context says.

CONTEXT: Final = decimal.Context(
    prec=50,
    rounding=decimal.ROUND_HALF_EVEN,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)
BELIEF_MIN: Final = 10_000
BELIEF_MAX: Final = 990_000
"""Beliefs that money depends on stay within 1% and 99%: near certainty a logarithm has no end."""
LN2: Final = CONTEXT.ln(Decimal(2))


def clip_belief(ppm: int) -> int:
    """A belief held within [1%, 99%]."""
    return min(max(require_ppm("belief", ppm), BELIEF_MIN), BELIEF_MAX)


def require_belief(name: str, ppm: int) -> int:
    """Check that a belief is within [1%, 99%], and return it."""
    return require_ppm(name, ppm, least=BELIEF_MIN, most=BELIEF_MAX)


def require_finite(name: str, value: object) -> Decimal:
    """Check that `value` is a finite `Decimal`, and return it."""
    if not isinstance(value, Decimal) or not value.is_finite():
        raise UsageError(
            f"`{name}` must be a finite Decimal, got {value!r}; a missing number is left out"
        )
    return value


@lru_cache(maxsize=1 << 16)
def _ln(ppm: int) -> Decimal:
    """Natural logarithm of a positive number of parts per million."""
    return CONTEXT.ln(CONTEXT.divide(Decimal(ppm), Decimal(PPM)))


def log_score(q_ppm: int, c_ppm: int) -> Decimal:
    """q·ln c + (1-q)·ln(1-c), in nats: never positive, highest at c = q."""
    yes = CONTEXT.multiply(Decimal(q_ppm), _ln(c_ppm))
    no = CONTEXT.multiply(Decimal(PPM - q_ppm), _ln(PPM - c_ppm))
    return CONTEXT.divide(CONTEXT.add(yes, no), Decimal(PPM))


def divergence(q_ppm: int, c_ppm: int) -> Decimal:
    """KL(q‖c) in nats of two beliefs; never negative."""
    gap = CONTEXT.subtract(log_score(q_ppm, q_ppm), log_score(q_ppm, c_ppm))
    return max(gap, Decimal(0))


def gap_divergence(a: tuple[int, int], b: tuple[int, int]) -> Decimal:
    """Least KL(x‖y) for x in interval a and y in interval b: 0 when they touch.

    KL(x‖y) grows as x and y move apart, so the facing ends give the least.
    """
    (a_lo, a_hi), (b_lo, b_hi) = a, b
    if a_lo > b_hi:
        return divergence(a_lo, b_hi)
    if a_hi < b_lo:
        return divergence(a_hi, b_lo)
    return Decimal(0)


def log_odds(ppm: int) -> Decimal:
    """ln(p/(1-p)) of a belief."""
    return CONTEXT.subtract(_ln(ppm), _ln(PPM - ppm))


def clip_log_odds(value: Decimal) -> Decimal:
    """Log-odds held within those of 1% and 99%."""
    bound = log_odds(BELIEF_MAX)
    return min(max(value, CONTEXT.minus(bound)), bound)


def belief_at(log_odds_value: Decimal) -> int:
    """The belief with these log-odds, to the nearest part per million, within [1%, 99%]."""
    odds = CONTEXT.exp(CONTEXT.minus(clip_log_odds(log_odds_value)))
    ppm = CONTEXT.divide(Decimal(PPM), CONTEXT.add(Decimal(1), odds))
    return int(ppm.to_integral_value(rounding=decimal.ROUND_HALF_EVEN))


def median(values: Sequence[Decimal]) -> Decimal:
    """The middle value, or the mean of the two in the middle."""
    if not values:
        raise UsageError("`values` must hold at least one number, got none")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return CONTEXT.divide(CONTEXT.add(ordered[middle - 1], ordered[middle]), Decimal(2))


def to_ppm(value: Decimal, *, rounding: str) -> int:
    """A probability in [0, 1] as parts per million.

    The caller names the rounding, one of `decimal.ROUND_*`: a threshold that must be reached
    is compared with a number rounded away from it, never towards it.
    """
    ppm = CONTEXT.multiply(require_finite("probability", value), Decimal(PPM))
    return require_ppm("probability", int(ppm.to_integral_value(rounding=rounding)))


# Rewards for durable updates: what a step did to the distance from the durable belief.
#
# A step is paid the change of one potential, in whole units. Whatever path is taken, the
# rewards add up to the potential of its end less that of its start: a closed loop earns 0,
# a split step earns what the whole one does.


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Record):
    """One accepted piece of evidence, and how far it moved the credited path."""

    number: int
    account: str
    evidence: str
    c_from_ppm: int
    c_to_ppm: int
    """Belief of the lens with this evidence."""
    bond: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """Reward of a step: the change of the potential, never floored at zero."""

    step: Step
    scale: int
    q_ppm: int
    potential_from: int
    potential_to: int
    credited: int
    """The part that counts for the reputation: a gain only as far as it brought the path nearer to
    q than it ever was, so that a step away and back earns none; a loss counts whole."""

    @property
    def amount(self) -> int:
        """Paid from the budget when positive, out of the bond when negative."""
        return self.potential_to - self.potential_from

    @property
    def receives(self) -> int:
        """Amount that the account gets back in all, its bond included."""
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
    """Bond to post before a move: the most it can lose, plus 1 for rounding.

    The loss is linear in q, so one of the ends is the worst; in between, the rounding of two
    potentials can add less than one unit to it.
    """
    losses = (
        potential(scale, q, c_from_ppm) - potential(scale, q, c_to_ppm)
        for q in (BELIEF_MIN, BELIEF_MAX)
    )
    return max(losses) + 1


def budget(scale: int, c0_ppm: int) -> int:
    """Escrow at open: the most that all steps together can earn, plus 1."""
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
    c_to_ppm: int,
    bond: int,
) -> Step | Reason:
    """Move the credited path to what the lens measured, if the bond covers all of the way.

    Half of the way isn't gone: whoever came next would be paid for the rest of somebody else's
    evidence.
    """
    require_whole("bond", bond)
    require_belief("c_from", c_from_ppm)
    end = clip_belief(c_to_ppm)
    needed = required_bond(scale, c_from_ppm, end)
    if bond < needed and end != c_from_ppm:
        return Reason.of("bond_short", needed=needed, bond=bond)
    return Step(
        number=number,
        account=account,
        evidence=evidence,
        c_from_ppm=c_from_ppm,
        c_to_ppm=end,
        bond=bond,
    )


def _closest(q_ppm: int, a_ppm: int, b_ppm: int) -> int:
    """The belief nearest to q on the way from one to another."""
    low, high = sorted((a_ppm, b_ppm))
    return min(max(q_ppm, low), high)


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
    rewards, best = [], potential(scale, q_ppm, c0_ppm)
    for step in steps:
        start, end = (potential(scale, q_ppm, c) for c in (step.c_from_ppm, step.c_to_ppm))
        rewards.append(
            Reward(
                step=step,
                scale=scale,
                q_ppm=q_ppm,
                potential_from=start,
                potential_to=end,
                credited=end - start if end < start else max(0, end - best),
            )
        )
        best = max(best, potential(scale, q_ppm, _closest(q_ppm, step.c_from_ppm, step.c_to_ppm)))
    escrowed = budget(scale, c0_ppm)
    left = escrowed - sum(item.amount for item in rewards)
    assert left >= 0, "the budget covers every path by construction"
    return RewardBook(rewards=tuple(rewards), budget=escrowed, budget_left=left)


def explain(item: Reward) -> tuple[Reason, ...]:
    """Explain a reward line by line: every number needed to work it out again by hand."""
    step, before, after = item.step, item.potential_from, item.potential_to
    moved = step.c_from_ppm != step.c_to_ppm
    needed = required_bond(item.scale, step.c_from_ppm, step.c_to_ppm) if moved else 0
    end = {"bond": step.bond, "change": abs(item.amount), "receives": item.receives}
    return (
        Reason.of(
            "reward_step", number=step.number, account=step.account, evidence=step.evidence[:12]
        ),
        Reason.of("reward_path", from_ppm=step.c_from_ppm, to_ppm=step.c_to_ppm),
        Reason.of("reward_bond", bond=step.bond, needed=needed),
        Reason.of("reward_durable", q_ppm=item.q_ppm, scale=item.scale),
        Reason.of("reward_before", c_ppm=step.c_from_ppm, potential=before),
        Reason.of("reward_after", c_ppm=step.c_to_ppm, potential=after),
        Reason.of("reward_amount", before=before, after=after, amount=item.amount),
        Reason.of("reward_credited", credited=item.credited),
        Reason("reward_gained" if item.amount >= 0 else "reward_lost", dict(end)),
    )
