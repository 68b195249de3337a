"""Each attack on the economy that the rules themselves can answer has a test of its own name."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import (
    GATE_FAILED,
    GATE_PASSED,
    GATE_PASSED_DOWN,
    H,
    O,
    Play,
    build_market,
    denial,
    economy_settings,
    make_measurement,
    sha,
    started,
)

from heretix.economy.episode.challenges import commit, draw_close, reveal, seed_commitment
from heretix.economy.episode.settlement import (
    JudgeReading,
    JudgeShift,
    Measurement,
    VoidReason,
    decide,
    shift_belief,
    target_belief,
)
from heretix.economy.episode.state import Denial, Direction, Fate, Moved, Parameters, State
from heretix.economy.exploration import (
    CreditRules,
    Interval,
    NoCredit,
    PastReward,
    StakeRules,
    credit,
    failure_rate,
    min_stake,
    reputation,
)
from heretix.economy.ledger import AccountKind
from heretix.economy.market import Side, settle_market
from heretix.economy.rewards import (
    BELIEF_MAX,
    BELIEF_MIN,
    farthest,
    potential,
    required_bond,
    settle_rewards,
    take_step,
)
from heretix.economy.sentences import sentence

beliefs = st.integers(BELIEF_MIN, BELIEF_MAX)
SCALE = 100_000


@economy_settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(Side), st.integers(1, 10**6)), min_size=1, max_size=10),
    st.integers(0, 350_000),
)
def test_attack_wash_trading(bets, tau_ppm):
    """Trading with oneself against nobody but the house has no sure profit."""
    positions = build_market([("me", side, amount) for side, amount in bets])
    profits = [
        sum(x.profit for x in settle_market(positions, w, tau_ppm).lines if not x.position.house)
        for w in Side
    ]
    assert min(profits) <= 0


def test_attack_wash_trading_only_pays_fees():
    """Two accounts of one person on both sides lose the fee on what they pay each other."""
    play = started(("ann", H, 40_000), ("bob", O, 40_000))
    play.freeze()
    moved = play.finish()
    assert moved.settlement.outcome.tau_ppm > 0
    mine = [x for x in moved.settlement.market.lines if not x.position.house]
    fees = sum(x.fee for x in mine)
    house = sum(x.profit for x in moved.settlement.market.lines if x.position.house)
    assert play.profit("ann", "bob") == -fees - house - moved.settlement.market.dust
    assert play.profit("ann", "bob") < 0


@economy_settings(max_examples=200)
@given(beliefs, st.lists(beliefs, min_size=1, max_size=8), beliefs)
def test_attack_whipsaw(start, turns, q):
    """A coalition that moves the path about and back earns exactly nothing."""
    at, steps = start, []
    for n, goal in enumerate([*turns, start]):
        step = take_step(
            number=n,
            account=f"u{n % 2}",
            evidence=sha(str(n)),
            scale=SCALE,
            c_from_ppm=at,
            c_to_ppm=goal,
            bond=required_bond(SCALE, at, goal),
        )
        steps.append(step)
        at = step.c_to_ppm
    book = settle_rewards(steps, scale=SCALE, c0_ppm=start, q_ppm=q)
    assert sum(reward.amount for reward in book.rewards) == 0
    # Nor does it make a name for anyone: a step away and back counts for no reputation.
    assert sum(reward.credited for reward in book.rewards) <= max(
        0, potential(SCALE, q, q) - potential(SCALE, q, start)
    )


@economy_settings(max_examples=200)
@given(beliefs, beliefs, beliefs)
def test_attack_reputation_by_a_throwaway_account(start, away, q):
    """Somebody moves the path away from q, and you move it back: no reputation comes of it."""
    if potential(SCALE, q, away) > potential(SCALE, q, start) or min(start, away) <= q <= max(
        start, away
    ):
        return
    steps = [
        take_step(
            number=n,
            account=f"u{n}",
            evidence=sha(str(n)),
            scale=SCALE,
            c_from_ppm=a,
            c_to_ppm=b,
            bond=required_bond(SCALE, a, b),
        )
        for n, (a, b) in enumerate(((start, away), (away, start)))
    ]
    out, back = settle_rewards(steps, scale=SCALE, c0_ppm=start, q_ppm=q).rewards
    assert back.credited == 0
    assert out.credited == out.amount <= 0


@economy_settings(max_examples=200)
@given(
    st.lists(st.integers(1, 10**5), min_size=2, max_size=8),
    st.sampled_from(Side),
    st.sampled_from(Side),
    st.integers(0, 350_000),
)
def test_attack_sybil_splitting_of_bets(parts, side, winner, tau_ppm):
    """A bet cut up among many accounts comes to no more than the whole."""
    crowd = [("x", H, 5_000), ("y", O, 7_000)]

    def profit(positions):
        lines = settle_market(positions, winner, tau_ppm).lines
        return sum(x.profit for x in lines if x.position.account.startswith("me"))

    split = [(f"me{n}", side, part) for n, part in enumerate(parts)]
    assert profit(build_market([*crowd, *split])) <= profit(
        build_market([*crowd, ("me", side, sum(parts))])
    )


def test_attack_sybil_splitting_of_steps():
    """A move cut up among many accounts earns what the whole does, and each part is bonded."""
    for q in (BELIEF_MIN, 400_000, BELIEF_MAX):
        cuts = [500_000, 530_000, 610_000, 700_000]
        parts = [potential(SCALE, q, b) - potential(SCALE, q, a) for a, b in pairwise(cuts)]
        assert sum(parts) == potential(SCALE, q, 700_000) - potential(SCALE, q, 500_000)
    bonds = [required_bond(SCALE, a, b) for a, b in pairwise(cuts)]
    assert sum(bonds) >= required_bond(SCALE, 500_000, 700_000)


def test_attack_sybil_splitting_of_credits():
    """A claim is credited once to everyone together, and split credits take less off a stake."""
    far, near = (Interval(lo_ppm=p, hi_ppm=p, stable=True) for p in (800_000, 300_000))
    second = credit(far, near, claim_credited=True, credited_this_week=0, rules=CreditRules())
    assert (second.amount, second.reason) == (0, NoCredit.CLAIM_CREDITED)

    def least(credits_held):
        return min_stake(
            compute_cost=0, credits_held=credits_held, failure_rate_ppm=0, rules=StakeRules()
        )

    assert least(250) > least(500)


@economy_settings(max_examples=200)
@given(beliefs, beliefs, st.integers(0, 10**6), beliefs)
def test_attack_churn_under_limited_liability(start, goal, bond, q):
    """Fresh accounts with small bonds can't gamble with losses that they won't bear."""
    end = farthest(SCALE, start, goal, bond)
    loss = potential(SCALE, q, start) - potential(SCALE, q, end)
    assert loss <= bond


def test_attack_sniping_at_the_freeze():
    """Nobody knows the last moment: what comes after the drawn close is given back exactly."""
    hits = 0
    for n in range(40):
        seed = sha(str(n)).encode()[:32]
        play = started(("ann", H, 900), ("bob", O, 900), seed_commitment=seed_commitment(seed))
        close = draw_close(seed, "ep-1", from_ms=8_000, until_ms=10_000)
        before = play.episode.market
        play.bet("cat", H, 100_000, at_ms=9_500)
        play.freeze(seed=seed)
        if close < 9_500:
            assert play.profit("cat") == 0
            assert play.episode.market == before
            hits += 1
        else:
            assert play.profit("cat") == -100_000
    assert 20 < hits < 40


def test_attack_noise_shopping():
    """Attempts without a durable effect are each charged, and a lucky pass earns nothing."""
    play = started(("ann", H, 900), ("bob", O, 900))
    for n in range(6):
        play.challenge("cat", f"noise {n}", amount=60_000)
    play.freeze()
    for n in range(5):
        play.judge(n, GATE_FAILED)
    assert play.profit("cat") == -5 * 1_000 - 60_000
    play.judge(5, GATE_PASSED, 600_000)
    moved = play.finish(shift="0", p_up_ppm=500_000)
    assert moved.settlement.outcome.q_ppm == 500_000
    lucky = moved.settlement.rewards.rewards[0].amount
    assert lucky < 0
    # What was staked beyond the least comes back.
    assert play.profit("cat") == -5 * 1_000 + lucky


@economy_settings(max_examples=200)
@given(beliefs, beliefs)
def test_attack_noise_shopping_has_no_lucky_direction(c0, anywhere):
    """When the durable belief is where it was, every move from there earns at most nothing."""
    assert potential(SCALE, c0, anywhere) - potential(SCALE, c0, c0) <= 0


@economy_settings(max_examples=200)
@given(beliefs, st.lists(st.decimals(-6, 6, places=4), min_size=3, max_size=9))
def test_attack_hold_out_offset_farming(c0, leanings):
    """Judges that merely lean another way than the lens put the durable belief at c₀."""
    judges = [JudgeShift(model="j", before=lean, after=lean) for lean in leanings]
    assert target_belief(c0, judges) == c0


@economy_settings(max_examples=200)
@given(
    beliefs,
    st.lists(st.decimals(-5, 5, places=4), min_size=2, max_size=8),
    st.decimals(-10_000, 10_000, places=2),
)
def test_attack_judge_collusion(c0, honest, bought):
    """One of J judges at any value moves q by at most the others' spread."""
    judges = [JudgeShift(model="j", before=Decimal(0), after=move) for move in honest]
    rogue = JudgeShift(model="r", before=Decimal(0), after=bought)
    low, high = shift_belief(c0, min(honest)), shift_belief(c0, max(honest))
    assert low <= target_belief(c0, [*judges, rogue]) <= high
    if len(judges) >= 3:
        moved = target_belief(c0, [*judges, rogue]) - target_belief(c0, judges)
        assert abs(moved) <= high - low


def test_attack_prompt_injection_in_evidence_of_one_judge():
    """A bundle that hijacks one judge outright moves q no further than the honest ones differ."""
    honest = make_measurement([f"j{n}" for n in range(5)], shift="0.05", margin="0.2")
    hijacked = replace(
        honest,
        readings=(replace(honest.readings[0], after=Decimal(50)), *honest.readings[1:]),
    )
    positions = build_market([("ann", H, 9), ("bob", O, 9)])

    def q(measurement):
        return decide(
            500_000,
            (measurement, measurement),
            positions=positions,
            parameters=Parameters(),
        ).q_ppm

    assert q(hijacked) == q(honest)


def test_attack_cache_replay():
    """One sample from the cache in a judging measurement voids the episode."""
    play = started(("ann", H, 90_000), ("bob", O, 90_000))
    play.freeze()
    fresh = make_measurement(play.episode.judges)
    old = replace(fresh.readings[2], from_cache=1)
    play.measure()
    readings = (*fresh.readings[:2], old, *fresh.readings[3:])
    play.measure(readings=readings)
    moved = play.close()
    assert moved.settlement.outcome.void is VoidReason.CACHED_SAMPLE
    assert play.profit("ann", "bob") == 0


def test_attack_stolen_evidence():
    """Evidence is shown when nothing can be committed any more; a later copy is charged."""
    play = started(("ann", H, 900), ("bob", O, 900))
    play.challenge("cat", "study", amount=60_000)
    assert denial(play.reveal(0, at_ms=4_000)) is Denial.TOO_EARLY
    play.challenge("dan", "study", amount=60_000)
    play.reveal(0)
    play.to_reveal = [1]
    assert denial(play.commit("bob", "study", at_ms=10_500)) is Denial.TOO_LATE
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    moved = play.judge(1, GATE_PASSED, 650_000)
    assert [c.fate for c in play.episode.challenges] == [Fate.ACCEPTED, Fate.FAILED]
    assert "same evidence" in sentence(moved.group.lines[0].reason)
    play.finish()
    assert play.profit("cat") > 0
    assert play.profit("dan") == -1_000


def test_attack_sniping_by_the_declared_direction():
    """Until bets are closed nobody sees which way a challenge goes: not in the record, nor in the
    ledger, nor by trying the evidence in the commitment."""
    up, down = (started(("ann", H, 900), ("bob", O, 900)) for _ in range(2))
    up.commit("cat", "study")
    down.commit("cat", "study", direction=Direction.DOWN)
    shown = [replace(p.episode.challenges[0], commitment="") for p in (up, down)]
    assert shown[0] == shown[1]
    assert shown[0].direction is None
    lines = [p.ledger.transfers[-1] for p in (up, down)]
    assert lines[0].body_hash == lines[1].body_hash
    assert denial(up.bet("dan", H, 10_000, at_ms=10_001)) is Denial.TOO_LATE


def test_attack_stolen_evidence_revealed_first():
    """Who reveals first doesn't matter: the earlier commitment wins."""
    play = started(("ann", H, 900), ("bob", O, 900))
    play.commit("cat", "study", amount=60_000)
    play.commit("dan", "study", amount=60_000)
    play.reveal(1)
    play.reveal(0)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    play.judge(1, GATE_PASSED, 650_000)
    assert [step.account for step in play.episode.steps] == [play.user("cat")]


def test_attack_stolen_commitment():
    """A copied commitment can't be revealed by the copier, nor does it shut out its owner."""
    play = started()
    options = {"amount": 1_000, "least": 0, "at_ms": 3_000}
    owner = Play(play.terms)
    owner.start()
    owner.commit("cat", "study")
    commitment = owner.episode.challenges[0].commitment
    account, nonce, bundle, direction = owner.nonces[0]
    thief = play.user("dan")
    play.take(commit(play.episode, key="t", account=thief, commitment=commitment, **options))
    assert isinstance(play.commit("cat", "study"), Moved)
    shown = {"nonce": nonce, "bundle_sha256": bundle, "direction": direction, "at_ms": 10_500}
    assert denial(reveal(play.episode, number=0, account=thief, **shown)) is Denial.WRONG_REVEAL
    assert denial(reveal(play.episode, number=0, account=account, **shown)) is Denial.WRONG_REVEAL
    assert isinstance(play.reveal(1), Moved)


def test_attack_option_by_two_commitments():
    """Committing to both directions and showing only the better one costs the other stake."""
    play = started(("ann", H, 900), ("bob", O, 900))
    play.commit("cat", "up", amount=60_000)
    play.commit("cat", "down", amount=60_000, direction=Direction.DOWN)
    play.reveal(0)
    play.freeze()
    play.judge(0, GATE_PASSED, 600_000)
    moved = play.judge(1, GATE_PASSED_DOWN, 400_000)
    assert "never revealed" in sentence(moved.group.lines[0].reason)
    assert play.episode.challenges[1].fate is Fate.FAILED


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("own", [1, 1_000, 5_000_000])
@pytest.mark.parametrize("amount", [1, 3, 1_000, 99_999])
def test_attack_self_challenge_for_yield(own, amount, side):
    """Failing on purpose against one's own stakes loses the forfeit: nobody is paid for holding."""
    play = started(("cat", side, own), ("bob", side, 777))
    direction = Direction.UP if side is O else Direction.DOWN
    play.challenge("cat", "noise", amount=amount, direction=direction)
    play.freeze()
    fund = play.ledger.balance(play.house(AccountKind.EPC_FUND))
    play.judge(0, GATE_FAILED)
    least = min(1_000, amount)
    paid = play.ledger.balance(play.house(AccountKind.OPERATIONS))
    assert paid == -(-3 * least // 10) >= 1
    assert play.ledger.balance(play.house(AccountKind.EPC_FUND)) == fund + least - paid
    assert play.profit("cat") + own == -least
    assert play.profit("bob") == -777


def test_attack_false_bonds_that_crowd_others_out():
    """A large bond behind an empty challenge is no more than its forfeit, whoever sees it."""
    play = started(("ann", H, 900), ("bob", O, 900))
    play.commit("cat", "empty", amount=5_000_000)
    play.freeze()
    play.judge(0, None)
    assert play.profit("cat") == -1_000


def test_attack_engineered_void():
    """A void gives nobody more than they put in, and a failed attempt isn't refunded by it."""
    play = started(("ann", H, 900), ("bob", O, 900), ("cat", H, 50_000))
    play.challenge("cat", "noise", amount=10_000)
    play.challenge("dan", "hype", amount=90_000)
    play.freeze()
    play.judge(0, GATE_FAILED)
    play.judge(1, GATE_PASSED, 700_000)
    play.measure(p_up_ppm=None)
    moved = play.close()
    assert moved.settlement.outcome.void is VoidReason.NO_ESTIMATE
    assert play.profit("cat") == -1_000
    assert play.profit("dan") == 0
    assert play.ledger.balance(play.house(AccountKind.OPERATIONS)) == 300


def test_attack_engineered_void_by_one_sided_money():
    """Where nobody bets against it the market alone is void: evidence is judged and paid."""
    play = started(("ann", H, 900))
    play.challenge("cat", "study", amount=90_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    assert denial(play.conclude()) is Denial.NOT_VOID
    moved = play.finish()
    assert play.episode.state is State.SETTLED
    assert moved.settlement.outcome.one_sided
    assert moved.settlement.outcome.moved is H
    assert play.profit("ann") == 0
    assert play.profit("cat") == moved.settlement.rewards.rewards[0].amount > 0


def test_attack_engineered_void_by_withdrawing():
    """Stakes are locked: once both sides have money, no bettor can make a side empty."""
    play = started(("ann", H, 900), ("bob", O, 1))
    play.bet("cat", H, 1, at_ms=9_999)
    play.freeze()
    assert denial(play.conclude()) is Denial.NOT_VOID


def test_attack_engineered_void_by_dispute():
    """A dispute can't escape the loss by asking again when the larger panel agrees."""
    play = started(("ann", H, 90_000), ("bob", O, 90_000))
    play.freeze()
    play.measure()
    play.measure()
    play.dispute("bob", bond=10_000)
    play.rule()
    play.close()
    assert play.episode.state is State.SETTLED
    assert play.profit("bob") < -10_000


def test_attack_redundant_evidence_flood():
    """Copies and reworded copies are charged one by one; the path moves once."""
    play = started(("ann", H, 900), ("bob", O, 900))
    play.challenge("cat", "study", amount=60_000)
    for n in range(4):
        name = ("dan", "ann", "bob", "dan")[n]
        play.challenge(name, "study" if n < 3 else "study, reworded", amount=1_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    for n in range(1, 4):
        play.judge(n, GATE_PASSED, 650_000)
    play.judge(4, GATE_FAILED, 650_000)
    assert len(play.episode.steps) == 1
    assert [c.fate for c in play.episode.challenges[1:]] == [Fate.FAILED] * 4
    assert play.ledger.balance(play.house(AccountKind.OPERATIONS)) == 4 * 300


def test_attack_redundant_evidence_that_passes_earns_nothing():
    """Evidence that adds nothing to where the path stands moves nothing and is paid nothing."""
    play = started(("ann", H, 900), ("bob", O, 900))
    play.challenge("cat", "study", amount=60_000)
    play.challenge("dan", "echo", amount=60_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    play.judge(1, GATE_PASSED, 650_000)
    play.finish()
    assert play.profit("cat") > 0
    assert play.profit("dan") == 0


@economy_settings(max_examples=100)
@given(
    st.lists(st.booleans(), max_size=30),
    st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 900)), max_size=8),
)
def test_attack_whitewashing(attempts, rewards):
    """A new account stakes the most there is and has no reputation: leaving never pays."""
    rules = StakeRules()

    def least(record):
        rate = failure_rate(record, rules)
        return min_stake(compute_cost=0, credits_held=0, failure_rate_ppm=rate, rules=rules)

    assert least(attempts) <= least([])
    past = [PastReward(amount=a, scale=SCALE, age_days=d) for a, d in rewards]
    assert reputation(past, CreditRules()) >= reputation([], CreditRules()) == 0


def test_attack_small_panel():
    """Without a quorum nobody can decide alone."""
    lone = JudgeReading(
        model="j0",
        provider_model_ids=("j0",),
        before=Decimal(0),
        after=Decimal(9),
        attempted=9,
        compliant=9,
        from_cache=0,
    )
    alone = Measurement(
        readings=(lone,), p_up_ppm=1_000_000, shift_lo=Decimal(8), shift_hi=Decimal(10)
    )
    outcome = decide(
        500_000,
        (alone, alone),
        positions=build_market([("ann", H, 9), ("bob", O, 9)]),
        parameters=Parameters(),
    )
    assert outcome.void is VoidReason.MISSING_QUORUM


def test_attack_whipsaw_of_the_opposing_pool():
    """Ten swings between two beliefs, in a whole episode, take nothing from anyone."""
    play = started(("ann", H, 900), ("bob", O, 900))
    for n in range(10):
        up = n % 2 == 0
        play.challenge(
            ("cat", "dan")[n % 2],
            f"swing {n}",
            amount=200_000,
            direction=Direction.UP if up else Direction.DOWN,
        )
    play.freeze()
    for n in range(10):
        gate, goal = ((GATE_PASSED, 700_000), (GATE_PASSED_DOWN, 500_000))[n % 2]
        play.judge(n, gate, goal)
    assert play.episode.belief_ppm == 500_000
    play.finish(shift="0.3", p_up_ppm=600_000)
    assert play.profit("cat", "dan") == 0
