"""The search for attacks that pay: reproducible, wide, and judged on fresh seeds."""

from __future__ import annotations

from dataclasses import asdict, replace

from heretix.economy.simulation.play import Setup, Simulation
from heretix.economy.simulation.search import (
    NAME,
    Genes,
    Plan,
    SearchedAttacker,
    breed,
    draw_genes,
    play_attack,
    search,
)

SMALL = Plan(
    attacks=12, generation=3, parents=3, episodes=3, finalists=3, final_episodes=4, winners=1,
    fresh_episodes=6, fresh_seeds=(7, 8),
)  # fmt: skip


def test_a_search_is_the_same_every_time():
    """Attacks, children and results follow from the seed; each is tried once, finalists twice."""
    tried = []
    found = search(SMALL, tried=lambda: tried.append(1))
    assert found == search(SMALL)
    assert len(tried) == SMALL.attacks + SMALL.finalists
    assert found[0].fresh.episodes == 6
    assert found[0].fresh.strategy == NAME


def test_a_search_of_one_attack_draws_it():
    """Half of one is none, and there would be nothing to breed from."""
    (found,) = search(replace(SMALL, attacks=1, finalists=1))
    assert found.genes == draw_genes(SMALL.seed, 0)


def test_attacks_are_drawn_from_the_whole_box():
    """Every gene takes small and large values; children keep within the box."""
    drawn = [asdict(draw_genes(1, n)) for n in range(300)]
    for name in drawn[0]:
        values = [genes[name] for genes in drawn]
        assert min(values) < 0.05
        assert max(values) > 0.95
    parents = [Genes(**dict.fromkeys(drawn[0], end)) for end in (0.0, 1.0)]
    child = asdict(breed(1, 5, parents))
    assert all(0 <= value <= 1 for value in child.values())
    assert len(set(child.values())) > 1


def test_the_search_can_play_what_the_named_attacks_play():
    """It challenges, bets on both sides, copies, disputes and throws accounts away."""
    wild = {
        "accounts": 0.9, "texts": 0.9, "both_ways": 0.9, "copies": 0.9, "hope": 0.9, "daring": 1.0,
        "bet": 0.9, "bets_on": 0.5, "disputes": 0.9, "fresh": 0.9, "selective": 0.0,
    }  # fmt: skip
    genes = Genes(**(asdict(draw_genes(1, 0)) | wild))
    simulation = Simulation(
        Setup(agents={"honest": 2}), guest=lambda name, books: SearchedAttacker(name, books, genes)
    )
    tables = [simulation.play_next() for _ in range(6)]
    (attacker,) = simulation.agents[NAME]
    own = set(attacker.accounts)
    assert len(own) > 20
    made = [c for table in tables for c in table.challenges if c.account in own]
    assert len({c.account for c in made}) > 5
    bets = [p for table in tables for p in table.positions if p.account in own]
    assert len({bet.side for bet in bets}) == 2


def test_doing_nothing_comes_to_nothing():
    """The attack without texts and bets earns and loses nothing."""
    idle = Genes(**dict.fromkeys(asdict(draw_genes(1, 0)), 0.0))
    played = play_attack(idle, seed=1, episodes=4)
    assert [result.amount for result in played.results] == [0] * 4
    assert played.staked == 0


def test_only_attacks_that_stake_are_ranked():
    """Doing nothing is better than most, and no finding."""
    found = search(replace(SMALL, attacks=30, finalists=6, winners=2))
    assert len(found) == 2
    assert all(one.staked > 0 for one in found)
    assert all(one.fresh.total != 0 for one in found)
