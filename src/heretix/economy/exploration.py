"""The exploration track: credits for finding disagreement, reputation, and what a stake costs.

Credits are a currency of their own, issued and burnt, never sent. Every rounding here goes
against the one who gains by it: credits and reputation down, stakes up.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import Record
from heretix.core.errors import UsageError
from heretix.economy import ledger
from heretix.economy.ledger import PPM, XC, Code, house_account, plain_group, user_account
from heretix.economy.rewards import CONTEXT, clip_belief, gap_divergence

if TYPE_CHECKING:
    from collections.abc import Sequence

_MINT: Final = house_account(ledger.AccountKind.ISSUANCE, XC.code).id


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRules(Record):
    """Value of information, and how long it lasts."""

    credits_per_nat: int = 1_000
    weekly_cap: int = 1_000
    half_life_days: int = 90
    reputation_half_life_days: int = 180
    shrinkage: int = 10
    """A record of this many rewards counts half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeRules(Record):
    """Least stake of a challenge."""

    base: int = 1_000
    discount_ppm: int = 600_000
    """The most that credits can take off."""
    credits_half: int = 500
    """X_h: this many credits take off half of that."""
    failure_weight_ppm: int = 1_000_000
    """Gamma: what a record of nothing but failures adds, as a share of the stake."""
    recent_attempts: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A lens's 95% interval, in parts per million, and whether the lens was stable."""

    lo_ppm: int
    hi_ppm: int
    stable: bool

    def __post_init__(self) -> None:
        ledger.require_ppm("lo_ppm", self.lo_ppm)
        ledger.require_ppm("hi_ppm", self.hi_ppm, least=self.lo_ppm)


class NoCredit(StrEnum):
    """Reason why a finding earns nothing, in order of precedence."""

    CLAIM_CREDITED = "claim_credited"
    UNSTABLE_LENS = "unstable_lens"
    INTERVALS_OVERLAP = "intervals_overlap"
    WEEKLY_CAP = "weekly_cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crediting:
    """Reward of a finding."""

    amount: int
    found: int
    reason: NoCredit | None
    """Reason why it isn't all of what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Credits that were issued on a day."""

    amount: int
    day: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastReward:
    """A settled reward, for the reputation."""

    amount: int
    scale: int
    age_days: int


def credit(
    evidence: Interval,
    prior: Interval,
    *,
    claim_credited: bool,
    credited_this_week: int,
    rules: CreditRules,
) -> Crediting:
    """XC = ⌊κ·min KL(a‖b)⌋ over a in the evidence lens's interval, b in the raw prior's."""
    ledger.require_whole("credited_this_week", credited_this_week)
    a, b = (
        (clip_belief(interval.lo_ppm), clip_belief(interval.hi_ppm))
        for interval in (evidence, prior)
    )
    nats = gap_divergence(a, b)
    if claim_credited:
        return Crediting(amount=0, found=0, reason=NoCredit.CLAIM_CREDITED)
    if not (evidence.stable and prior.stable):
        return Crediting(amount=0, found=0, reason=NoCredit.UNSTABLE_LENS)
    if nats == 0:
        return Crediting(amount=0, found=0, reason=NoCredit.INTERVALS_OVERLAP)
    worth = CONTEXT.multiply(Decimal(rules.credits_per_nat), nats)
    found = int(worth.to_integral_value(rounding=decimal.ROUND_FLOOR))
    amount = min(found, max(0, rules.weekly_cap - credited_this_week))
    reason = NoCredit.WEEKLY_CAP if amount < found else None
    return Crediting(amount=amount, found=found, reason=reason)


def credit_group(name: str, claim_id: str, amount: int) -> ledger.Group:
    """Issue the credits of a claim. The id follows from the claim: it is credited once at most."""
    user = user_account(name, XC.code).id
    return plain_group(f"credit:{claim_id}", [(_MINT, user, amount)], XC.code, Code.ISSUE)


def burn_group(name: str, day: int, amount: int) -> ledger.Group:
    """Burn what has decayed by a day; once at most for each account and day."""
    user = user_account(name, XC.code).id
    return plain_group(f"burn:{user}:{day}", [(user, _MINT, amount)], XC.code, Code.BURN)


def halve_by_age(amount: int, *, age_days: int, half_life_days: int) -> int:
    """⌊amount·2^(-age/half-life)⌋, exactly: the largest n with n^h·2^age ≤ amount^h."""
    ledger.require_whole("amount", amount)
    ledger.require_whole("age_days", age_days)
    ledger.require_whole("half_life_days", half_life_days, least=1)
    halvings, days = divmod(age_days, half_life_days)
    whole = amount >> halvings
    if days == 0 or whole == 0:
        return whole
    limit = amount**half_life_days >> age_days
    # The part of a half-life that remains leaves more than half of `whole`.
    low, high = whole // 2, whole + 1
    while high - low > 1:
        middle = (low + high) // 2
        if middle**half_life_days <= limit:
            low = middle
        else:
            high = middle
    return low


def sum_remaining(grants: Sequence[Grant], *, today: int, half_life_days: int) -> int:
    """Credits that are left today of everything that was ever granted."""
    latest = max((grant.day for grant in grants), default=today)
    if latest > today:
        raise UsageError(
            f"`today` must not lie before a grant, got day {today} and a grant of day {latest}"
        )
    return sum(
        halve_by_age(grant.amount, age_days=today - grant.day, half_life_days=half_life_days)
        for grant in grants
    )


def burn_due(grants: Sequence[Grant], *, burnt: int, today: int, half_life_days: int) -> int:
    """Amount that has decayed and isn't burnt yet.

    It follows from the grants' ages alone, so burning every day and burning once come to the
    same balance.
    """
    ledger.require_whole("burnt", burnt)
    granted = sum(grant.amount for grant in grants)
    left = sum_remaining(grants, today=today, half_life_days=half_life_days)
    return max(0, granted - left - burnt)


def reputation(rewards: Sequence[PastReward], rules: CreditRules) -> int:
    """r = Σ 2^(-age/180 d)·R/B, shrunk by n/(n+10); in parts per million, rounded down."""
    total = Decimal(0)
    for item in rewards:
        ledger.require_whole("scale", item.scale, least=1)
        age = CONTEXT.divide(
            Decimal(-ledger.require_whole("age_days", item.age_days)),
            Decimal(rules.reputation_half_life_days),
        )
        share = CONTEXT.divide(Decimal(item.amount), Decimal(item.scale))
        total = CONTEXT.add(total, CONTEXT.multiply(CONTEXT.power(Decimal(2), age), share))
    n = len(rewards)
    if n == 0:
        return 0
    shrunk = CONTEXT.divide(CONTEXT.multiply(total, Decimal(n * PPM)), Decimal(n + rules.shrinkage))
    return int(shrunk.to_integral_value(rounding=decimal.ROUND_FLOOR))


def failure_rate(attempts: Sequence[bool], rules: StakeRules) -> int:
    """Failures among the last attempts (`True` passed), in parts per million, rounded up.

    An attempt that hasn't been made counts as failed: a fresh account starts at the maximum,
    so that leaving a bad record behind for a new account gains nothing.
    """
    recent = attempts[-rules.recent_attempts :]
    failed = rules.recent_attempts - sum(recent)
    return -(-failed * PPM // rules.recent_attempts)


def min_stake(
    *, compute_cost: int, credits_held: int, failure_rate_ppm: int, rules: StakeRules
) -> int:
    """S_min = max(compute cost, S₀·(1 - 0.6·X/(X+X_h))·(1 + gamma·f)), rounded up."""
    ledger.require_whole("compute_cost", compute_cost)
    ledger.require_whole("credits_held", credits_held)
    ledger.require_ppm("failure_rate_ppm", failure_rate_ppm)
    discount = Fraction(rules.discount_ppm, PPM) * Fraction(
        credits_held, credits_held + rules.credits_half
    )
    surcharge = Fraction(rules.failure_weight_ppm, PPM) * Fraction(failure_rate_ppm, PPM)
    return max(compute_cost, ceil(rules.base * (1 - discount) * (1 + surcharge)))
