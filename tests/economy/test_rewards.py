"""Rewards: integer potentials that telescope, bonds that cover, a budget that suffices."""

from __future__ import annotations

import random
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import economy_settings, sha

from heretix.core.errors import RecordError, UsageError
from heretix.economy.ledger import Reason
from heretix.economy.rewards import (
    BELIEF_MAX,
    BELIEF_MIN,
    Step,
    budget,
    explain,
    farthest,
    potential,
    required_bond,
    settle_rewards,
    take_step,
)
from heretix.economy.sentences import sentence


def reward(step, *, scale, q_ppm):
    """The reward of a step that is a whole path."""
    book = settle_rewards([step], scale=scale, c0_ppm=step.c_from_ppm, q_ppm=q_ppm)
    return book.rewards[0]


B = 100_000
beliefs = st.integers(BELIEF_MIN, BELIEF_MAX)
scales = st.integers(1, 10**9)


def naive_potential(scale, q, c):
    """The definition, with room to spare and the rounding done by text."""
    with localcontext() as context:
        context.prec = 80
        q, c = Decimal(q) / 10**6, Decimal(c) / 10**6
        return round(scale * (q * c.ln() + (1 - q) * (1 - c).ln()))


def walk(path, *, scale=B, bonds=None):
    """Steps through these beliefs, each fully bonded unless said otherwise."""
    steps, at = [], path[0]
    for n, wanted in enumerate(path[1:]):
        needed = required_bond(scale, at, wanted)
        bond = needed if bonds is None else bonds[n]
        step = take_step(
            number=n,
            account=f"u{n % 3}",
            evidence=sha(f"{n}"),
            scale=scale,
            c_from_ppm=at,
            c_to_ppm=wanted,
            bond=bond,
        )
        steps.append(step)
        at = step.c_to_ppm
    return steps


@economy_settings(max_examples=200)
@given(scales, beliefs, beliefs)
def test_the_potential_is_the_rounded_log_score(scale, q, c):
    """Φ_q(c) agrees with its definition to the last unit."""
    assert potential(scale, q, c) == naive_potential(scale, q, c)


def test_the_budget_of_the_specification():
    """B = 100,000 at c₀ = 0.5 escrows 63,716."""
    assert budget(B, 500_000) == 63_716


def test_paying_for_moves_is_a_pump_that_this_is_not():
    """0.5→0.8→0.5 earns nothing, whatever the durable belief turns out to be."""
    out, back = walk([500_000, 800_000, 500_000])
    for q in (BELIEF_MIN, 300_000, 500_000, 800_000, BELIEF_MAX):
        assert reward(out, scale=B, q_ppm=q).amount + reward(back, scale=B, q_ppm=q).amount == 0


def test_a_step_towards_the_durable_belief_earns_and_one_away_pays():
    """The sign of a reward is what the step did to the distance from q, and it isn't floored."""
    (up,) = walk([500_000, 700_000])
    assert reward(up, scale=B, q_ppm=800_000).amount == 16_702
    assert reward(up, scale=B, q_ppm=300_000).amount == -25_663


@economy_settings(max_examples=300)
@given(scales, beliefs, beliefs, beliefs)
def test_a_bond_covers_every_loss(scale, start, end, q):
    """Whatever q turns out to be, a step loses no more than its bond."""
    loss = potential(scale, q, start) - potential(scale, q, end)
    assert loss <= required_bond(scale, start, end)


@economy_settings(max_examples=300)
@given(scales, beliefs, beliefs, beliefs)
def test_the_budget_covers_every_path(scale, start, end, q):
    """All steps together earn no more than was escrowed, wherever they end."""
    assert potential(scale, q, end) - potential(scale, q, start) <= budget(scale, start)


@economy_settings(max_examples=150)
@given(st.integers(1, 10**7), beliefs, beliefs, st.integers(0, 10**6))
def test_a_short_bond_moves_only_as_far_as_it_covers(scale, start, wanted, bond):
    """The move is the longest on the way that the bond covers; one part further it would not."""
    end = farthest(scale, start, wanted, bond)
    assert min(start, wanted) <= end <= max(start, wanted)
    assert end == start or required_bond(scale, start, end) <= bond
    if end != wanted:
        further = end + (1 if wanted > start else -1)
        assert required_bond(scale, start, further) > bond


def test_no_bond_no_move():
    """Without a bond the path stays where it is."""
    assert farthest(B, 500_000, 700_000, 0) == 500_000
    assert farthest(B, 500_000, 500_000, 0) == 500_000


def test_beliefs_are_clipped_before_they_are_paid_for():
    """A lens at 99.9% is credited at 99%."""
    (step,) = walk([500_000, BELIEF_MAX])
    far = take_step(
        number=0,
        account="u0",
        evidence=sha("0"),
        scale=B,
        c_from_ppm=500_000,
        c_to_ppm=999_000,
        bond=step.bond,
    )
    assert far == step
    with pytest.raises(UsageError, match="`c`"):
        potential(B, 500_000, 999_000)


def test_a_path_with_a_gap_is_refused():
    """A record that lost a step can't be settled."""
    steps = walk([500_000, 600_000, 700_000])
    with pytest.raises(RecordError, match="`step 1` must start where the path stood"):
        settle_rewards([steps[1]], scale=B, c0_ppm=500_000, q_ppm=600_000)


def test_a_reward_is_explained_line_by_line():
    """Every number that the reward was made of is in the explanation."""
    (step,) = walk([500_000, 592_157], bonds=[20_000])
    item = reward(step, scale=B, q_ppm=650_000)
    assert tuple(map(sentence, explain(item))) == (
        "step 0 by u0: evidence 5feceb66ffc8",
        "credited belief: from 50.0000% to 59.2157%",
        "bond: 200.00 posted, 200.00 needed for this move",
        "durable belief: q = 65.0000%; scale B = 1,000.00",
        "potential before: B·[q·ln c + (1-q)·ln(1-c)] at c = 50.0000% is -693.15",
        "potential after: at c = 59.2157% it is -654.49",
        "reward: -654.49 − (-693.15) = 38.66",
        sentence(Reason.of("reward_credited", credited=3_866)),
        "receives: bond 200.00 + 38.66 = 238.66",
    )
    still = Step(
        number=1,
        account="u1",
        evidence=sha("1"),
        c_from_ppm=500_000,
        c_to_ppm=500_000,
        bond=7,
    )
    stood = explain(reward(still, scale=B, q_ppm=650_000))
    assert Reason.of("reward_bond", bond=7, needed=0) in stood


def test_four_thousand_random_reward_paths():
    """Telescoping, closed loops and splits are exact; bonds, budget and pots always suffice."""
    rng = random.Random(4_000)
    broken = {"telescope": 0, "loop": 0, "split": 0, "bond": 0, "budget": 0, "whipsaw": 0}
    for _ in range(4_000):
        scale = rng.choice((1, 997, B, 10**7))
        grid = [rng.randrange(BELIEF_MIN, BELIEF_MAX + 1) for _ in range(rng.randrange(2, 7))]
        q = rng.choice((BELIEF_MIN, BELIEF_MAX, rng.randrange(BELIEF_MIN, BELIEF_MAX + 1)))
        steps = walk(grid, scale=scale)
        book = settle_rewards(steps, scale=scale, c0_ppm=grid[0], q_ppm=q)
        earned = [item.amount for item in book.rewards]
        ends = potential(scale, q, grid[-1]) - potential(scale, q, grid[0])
        broken["telescope"] += sum(earned) != ends
        broken["bond"] += any(item.receives < 0 for item in book.rewards)
        broken["budget"] += book.budget_left < 0
        loop = settle_rewards(
            walk([*grid, grid[0]], scale=scale), scale=scale, c0_ppm=grid[0], q_ppm=q
        )
        broken["loop"] += sum(item.amount for item in loop.rewards) != 0
        a, b = sorted(grid[:2])
        middle = rng.randrange(a, b + 1)
        whole, split = walk([a, b], scale=scale), walk([a, middle, b], scale=scale)
        broken["split"] += sum(reward(s, scale=scale, q_ppm=q).amount for s in split) != sum(
            reward(s, scale=scale, q_ppm=q).amount for s in whole
        )
        saw = walk([grid[0], *(grid[:2][::-1] * 3)], scale=scale)
        broken["whipsaw"] += sum(reward(s, scale=scale, q_ppm=q).amount for s in saw) != 0
    assert not any(broken.values()), broken


def test_a_short_bond_moves_nothing_and_the_others_leave_every_pot_solvent():
    """With bonds of any size, each step's loss stays within its bond and the budget suffices."""
    rng, taken = random.Random(7), 0
    for _ in range(150):
        at = start = rng.randrange(BELIEF_MIN, BELIEF_MAX + 1)
        q, steps = rng.randrange(BELIEF_MIN, BELIEF_MAX + 1), []
        for number in range(4):
            goal, bond = rng.randrange(BELIEF_MIN, BELIEF_MAX + 1), int(10 ** rng.uniform(0, 6))
            ends = {"c_from_ppm": at, "c_to_ppm": goal}
            who = {"number": number, "account": "u", "evidence": sha(str(number))}
            step = take_step(**who, **ends, scale=B, bond=bond)
            covered = bond >= required_bond(B, at, goal)
            assert isinstance(step, Step) is covered
            if covered:
                steps.append(step)
                at = goal
        book = settle_rewards(steps, scale=B, c0_ppm=start, q_ppm=q)
        assert all(item.receives >= 0 for item in book.rewards)
        assert book.budget_left >= 0
        assert sum(item.amount for item in book.rewards) + book.budget_left == book.budget
        taken += len(steps)
    assert 0 < taken < 600
