"""Credits, their decay, reputation, and what a challenge must stake."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import economy_settings

from heretix.core.errors import UsageError
from heretix.economy.exploration import (
    CreditRules,
    Grant,
    Interval,
    NoCredit,
    PastReward,
    StakeRules,
    burn_due,
    burn_group,
    credit,
    credit_group,
    failure_rate,
    halve_by_age,
    min_stake,
    reputation,
    sum_remaining,
)
from heretix.economy.ledger import AccountKind, Ledger, Status, house_account, user_account

RULES, STAKES = CreditRules(), StakeRules()


def interval(lo, hi, *, stable=True):
    return Interval(lo_ppm=lo, hi_ppm=hi, stable=stable)


def credited(evidence, prior, *, claim_credited=False, week=0, rules=RULES):
    return credit(
        evidence,
        prior,
        claim_credited=claim_credited,
        credited_this_week=week,
        rules=rules,
    )


def test_a_finding_is_worth_the_gap_between_the_intervals():
    """From 0.5 to 0.8 at the nearest ends is 0.1927 nats, rounded down."""
    found = credited(interval(800_000, 900_000), interval(400_000, 500_000))
    assert found.amount == math.floor(1_000 * (0.8 * math.log(1.6) + 0.2 * math.log(0.4))) == 192
    assert found.reason is None
    below = credited(interval(100_000, 200_000), interval(500_000, 600_000))
    assert below.amount == 192


@pytest.mark.parametrize(
    ("evidence", "prior", "options", "reason"),
    [
        ((500_000, 800_000), (400_000, 500_000), {}, NoCredit.INTERVALS_OVERLAP),
        ((450_000, 460_000), (400_000, 500_000), {}, NoCredit.INTERVALS_OVERLAP),
        ((995_000, 999_000), (990_000, 992_000), {}, NoCredit.INTERVALS_OVERLAP),
        ((800_000, 900_000), (400_000, 500_000), {"week": 1_000}, NoCredit.WEEKLY_CAP),
        (
            (450_000, 460_000),
            (400_000, 500_000),
            {"claim_credited": True},
            NoCredit.CLAIM_CREDITED,
        ),
    ],
)
def test_what_earns_nothing_says_why(evidence, prior, options, reason):
    """Overlap, also after clipping; a claim credited before; a week that is used up."""
    found = credited(interval(*evidence), interval(*prior), **options)
    assert (found.amount, found.reason) == (0, reason)


def test_an_unstable_lens_earns_nothing():
    """Both lenses must be stable."""
    far, near = interval(800_000, 900_000), interval(100_000, 200_000)
    for pair in [
        (interval(800_000, 900_000, stable=False), near),
        (far, interval(100_000, 200_000, stable=False)),
    ]:
        assert credited(*pair).reason is NoCredit.UNSTABLE_LENS


def test_the_weekly_cap_pays_what_is_left_of_it():
    """A finding above the cap is cut to what the week still allows."""
    found = credited(interval(990_000, 990_000), interval(10_000, 10_000), week=400)
    assert (found.found, found.amount, found.reason) == (4_503, 600, NoCredit.WEEKLY_CAP)
    # A cap that was lowered during the week takes nothing back.
    over = credited(interval(990_000, 990_000), interval(10_000, 10_000), week=1_400)
    assert (over.found, over.amount, over.reason) == (4_503, 0, NoCredit.WEEKLY_CAP)


def test_an_interval_must_have_its_ends_in_order():
    """A lower end above the upper one is refused."""
    with pytest.raises(UsageError, match="hi_ppm"):
        interval(500_000, 400_000)


@economy_settings(max_examples=200)
@given(st.integers(0, 10**9), st.integers(0, 2_000), st.sampled_from([1, 7, 90, 180]))
def test_decay_is_the_exact_floor(amount, age, half_life):
    """⌊A·2^(-t/h)⌋ agrees with eighty digits of arithmetic."""
    with localcontext() as context:
        context.prec = 80
        exact = amount * Decimal(2) ** (Decimal(-age) / half_life)
        # A whole number may come out a hair too small at any precision.
        nearest = exact.to_integral_value()
        floor = int(nearest if abs(exact - nearest) < Decimal("1e-40") else exact // 1)
    assert halve_by_age(amount, age_days=age, half_life_days=half_life) == floor


@economy_settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 10**5), st.integers(0, 300)), min_size=1, max_size=5),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_burning_often_or_once_comes_to_the_same(grants, days):
    """Burns follow from the grants' ages, so the calendar of burning doesn't matter."""
    grants = [Grant(amount=amount, day=day) for amount, day in grants]
    start = max(grant.day for grant in grants)
    burnt = 0
    for day in sorted({start + extra for extra in (*days, 200)}):
        due = burn_due(grants, burnt=burnt, today=day, half_life_days=90)
        assert due >= 0
        burnt += due
    left = sum_remaining(grants, today=start + 200, half_life_days=90)
    assert sum(grant.amount for grant in grants) - burnt == left
    assert burn_due(grants, burnt=burnt, today=start + 200, half_life_days=90) == 0


def test_a_claim_is_credited_once_and_a_day_burnt_once():
    """The ledger refuses a second credit for a claim, to anyone, and a second burn of a day."""
    ledger = Ledger()
    for account in (
        house_account(AccountKind.ISSUANCE, "XC"),
        user_account("ann", "XC"),
        user_account("bob", "XC"),
    ):
        ledger.add_account(account)
    assert ledger.post(credit_group("ann", "claim-1", 90)).status is Status.APPLIED
    assert ledger.post(credit_group("bob", "claim-1", 90)).status is Status.ID_CONFLICT
    assert ledger.post(burn_group("ann", 30, 20)).status is Status.APPLIED
    assert ledger.post(burn_group("ann", 30, 20)).status is Status.ALREADY_APPLIED
    assert ledger.post(burn_group("ann", 30, 1)).status is Status.ID_CONFLICT
    assert ledger.balance("user:ann:XC") == 70


def test_half_is_left_after_ninety_days():
    """The half-life is what it says, and the past can't be looked at from before it."""
    assert sum_remaining([Grant(amount=101, day=10)], today=100, half_life_days=90) == 50
    with pytest.raises(UsageError, match="`today`"):
        sum_remaining([Grant(amount=1, day=10)], today=9, half_life_days=90)


def test_reputation_is_shrunk_and_fades():
    """One reward of B counts 1/11; ten count half; 180 days halve them."""

    def one(age):
        return PastReward(amount=100, scale=100, age_days=age)

    assert reputation([], RULES) == 0
    assert reputation([one(0)], RULES) == 1_000_000 // 11
    assert reputation([one(0)] * 10, RULES) == 5_000_000
    assert reputation([one(180)] * 10, RULES) == 2_500_000
    assert reputation([PastReward(amount=-100, scale=100, age_days=0)], RULES) == -90_910


def test_min_stake_follows_its_formula_and_rounds_up():
    """Credits take up to 60% off, failures add up to all of it, compute cost is the least."""

    def stake(credits_held, failure, cost=0):
        return min_stake(
            compute_cost=cost, credits_held=credits_held, failure_rate_ppm=failure, rules=STAKES
        )

    assert stake(0, 0) == 1_000
    assert stake(0, 1_000_000) == 2_000
    assert stake(500, 0) == 700
    assert stake(1, 0) == math.ceil(1_000 * (1 - 0.6 / 501)) == 999
    assert stake(10**15, 0) == 401
    assert stake(500, 500_000) == 1_050
    assert stake(500, 0, cost=5_000) == 5_000


@economy_settings(max_examples=200)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.lists(st.booleans(), max_size=40))
def test_nobody_stakes_more_than_a_fresh_account(credits_held, cost, attempts):
    """Credits and any record at all are never worse than none."""
    fresh = min_stake(
        compute_cost=cost,
        credits_held=0,
        failure_rate_ppm=failure_rate([], STAKES),
        rules=STAKES,
    )
    known = min_stake(
        compute_cost=cost,
        credits_held=credits_held,
        failure_rate_ppm=failure_rate(attempts, STAKES),
        rules=STAKES,
    )
    assert known <= fresh


def test_the_failure_rate_looks_at_recent_attempts():
    """A fresh account is at the maximum; twenty passes bring it to zero; old ones are forgotten."""
    assert failure_rate([], STAKES) == 1_000_000
    assert failure_rate([True], STAKES) == 950_000
    assert failure_rate([False] * 50, STAKES) == 1_000_000
    assert failure_rate([False] * 50 + [True] * 20, STAKES) == 0
    assert failure_rate([True] * 50 + [False] * 5, STAKES) == 250_000
