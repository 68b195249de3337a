"""The adversary: looks for an attack that pays, among more of them than anybody would write down.

An attack is a point in a box of genes: how many accounts, which texts, how many copies, what is
bet where and when, which judges are owned, whether a result is disputed, whether accounts are
thrown away after each episode. First points are drawn at random, then the best of them are crossed
and changed, then the best of all are played at length, and the last few on seeds that had no part
in the search. The best are those whose mean less its error is the highest: of thousands, the means
of a few episodes choose the lucky. Only who puts up a stake is ranked: doing nothing comes to 0,
and among thousands that lose it would be all that a search finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Final, NamedTuple

from heretix.core.canonical import normal, uniform
from heretix.economy.ledger import ceil_part
from heretix.economy.simulation.agents import (
    PURSE,
    Attacker,
    CarelessExplorer,
    HonestExplorer,
    Kind,
    NoiseTrader,
    direction_of,
    side_of,
)
from heretix.economy.simulation.play import Result, Setup, Simulation, Standing, standing
from heretix.economy.simulation.table import Moment
from heretix.economy.simulation.world import POOL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heretix.economy.market import Side
    from heretix.economy.simulation.table import Books, Table
    from heretix.economy.simulation.world import Bundle

NAME: Final = "searched"
REGULARS: Final = {
    HonestExplorer.strategy: 2,
    CarelessExplorer.strategy: 2,
    NoiseTrader.strategy: 2,
}
"""Careful and careless honest players sit at every table, and some who know nothing."""
_MOMENTS: Final = (Moment.OPEN, Moment.EARLY, Moment.MIDDLE, Moment.LATE, Moment.CLOSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Genes:
    """One attack. Each gene lies between 0 and 1; the methods of the attacker say what it means."""

    accounts: float
    tries: float
    texts: float
    both_ways: float
    copies: float
    orders: float
    asks_judges: float
    hope: float
    daring: float
    stake: float
    commits_at: float
    bet: float
    bets_on: float
    bets_at: float
    owns: float
    lies: float
    disputes: float
    repeats: float
    fresh: float
    selective: float


_NAMES: Final = tuple(gene.name for gene in fields(Genes))


class SearchedAttacker(Attacker):
    """Plays whatever its genes say."""

    strategy = NAME
    crew = 5
    probes = 2

    def __init__(self, name: str, books: Books, genes: Genes) -> None:
        super().__init__(name, books)
        self.genes, self._books = genes, books
        self.tries = 1 + int(genes.tries * 15)
        self.kept = 1 + int(genes.texts * 2.99)
        self.daring = genes.daring
        self._lean = 0.0
        self.staked: set[int] = set()
        """Episodes in which it put up a stake."""

    def play(self, table: Table, moment: Moment) -> None:
        """Act at moments of its own, by what it found out when the episode opened."""
        genes = self.genes
        if moment is Moment.OPEN:
            self._begin(table)
        if self._idle:
            return
        if moment is _MOMENTS[1 + int(genes.commits_at * 3.99)]:
            self._commit_all(table)
        if moment is _MOMENTS[int(genes.bets_at * 4.99)]:
            self._bet(table)
        if moment is Moment.RESULT and genes.disputes > 0.5:
            self._dispute(table)

    def _begin(self, table: Table) -> None:
        """Choose texts, and how sure one is of them; the accounts of this episode."""
        genes = self.genes
        self._idle = False
        self._staked: dict[Side, int] = {}
        if genes.fresh > 0.5:
            number = table.claim.number
            fresh = [
                self._books.enrol(f"{self.name}-{number}-{n}", PURSE) for n in range(self._count)
            ]
            self.accounts = [*fresh, *self.accounts]
        self._texts = list(self._choose(table))
        shifts = [q_shift for _, q_shift, _ in self._texts]
        self._lean = max(shifts, key=abs, default=0.0)
        # Some wait for an episode in which what they found looks good.
        self._idle = abs(self._lean) < genes.selective * 0.3

    @property
    def _count(self) -> int:
        return 1 + int(self.genes.accounts * 4.99)

    def _choose(self, table: Table) -> Iterator[tuple[float, float, Bundle]]:
        """Texts with what they did to the lens at home, and what they are hoped to do to judges."""
        genes = self.genes
        if genes.texts < 0.1:
            return
        if genes.repeats > 0.5 and table.claim.paid:
            again = table.world.reword(table.claim.paid[0], self.name, table.claim.number)
            yield again.common, again.common * genes.hope, again
        if genes.orders > 0.7:
            sign = self.coin(table)
            tried = [
                table.world.order(sign, self.name, table.claim.number, n) for n in range(self.tries)
            ]
            ranked = [(table.probe(self.account, text), text) for text in tried]
            ranked = [pair for pair in ranked if sign * pair[0] > 1][:1]
        else:
            ranked = self.tune(table)
            if genes.both_ways < 0.5:
                strongest = max(ranked, key=lambda pair: abs(pair[0]))[0]
                ranked = [pair for pair in ranked if pair[0] * strongest > 0]
        for lens, text in ranked:
            q_shift = lens * genes.hope
            if genes.asks_judges > 0.5:
                q_shift = median(table.probe(self.account, text, judge) for judge in POOL)
            yield lens, q_shift, text

    def _commit_all(self, table: Table) -> None:
        """Commit to each text from one account after another, and to rewordings of it."""
        genes, turn = self.genes, 0
        for lens, q_shift, text in self._texts:
            for copy in range(1 + int(genes.copies * 3.99)):
                brought = table.world.reword(text, self.name, copy) if copy else text
                maker = self.accounts[turn % self._count]
                turn += 1
                if (risk := self.risk(table, lens)) > genes.daring:
                    continue
                plan = self.plan(table, maker, lens=lens, q_shift=q_shift, risk=risk)
                amount = max(table.least_stake(maker), int(plan.stake * (0.25 + genes.stake)))
                if self.commit(table, maker, brought, direction_of(lens), amount):
                    self.staked.add(table.claim.number)
        for model in POOL[: int(genes.owns * 2.99)]:
            table.buy_judge(model, math.copysign(6.0 * genes.lies, self._lean or 1.0))

    def _bet(self, table: Table) -> None:
        """Bet with its texts, against them, on both sides, with the price, or by the toss."""
        amount = int(10 ** (1 + 3.6 * self.genes.bet))
        if self.genes.bet < 0.1:
            return
        lead = table.market.heretic - table.market.orthodox
        ways = (
            (self._lean,),
            (-self._lean,),
            (1, -1),
            (lead or 1,),
            (self.coin(table),),
        )[int(self.genes.bets_on * 4.99)]
        for n, way in enumerate(ways):
            for part in range(self._count):
                account = self.accounts[(n + part) % len(self.accounts)]
                if table.bet(account, side_of(way), max(1, amount // self._count)):
                    side = side_of(way)
                    self.staked.add(table.claim.number)
                    self._staked[side] = self._staked.get(side, 0) + amount // self._count

    def _dispute(self, table: Table) -> None:
        outcome = table.outcome
        if outcome.winner is None:
            return
        loss = ceil_part(self._staked.get(outcome.winner.other, 0), outcome.tau_ppm)
        if loss > table.dispute_bond * (2 - self.genes.disputes):
            table.dispute(self.account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An attack, and what it came to in the episodes that it was tried in."""

    genes: Genes
    mean: float
    error: float
    """The standard error of the mean."""
    staked: float
    """Share of the episodes in which it put up a stake."""

    @property
    def score(self) -> float:
        return self.mean - self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Size of a search. The same plan gives the same result on every machine."""

    seed: int = 1
    attacks: int = 2_000
    random_share: float = 0.5
    generation: int = 100
    parents: int = 20
    episodes: int = 12
    """Of each attack at first; then of those that looked best."""
    finalists: int = 40
    final_episodes: int = 120
    winners: int = 3
    least_staked: float = 0.25
    """Share of the episodes in which an attack must stake to be ranked."""
    fresh_episodes: int = 1_000
    fresh_seeds: tuple[int, ...] = (101, 102, 103)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One of the best attacks on seeds that had no part in the search."""

    genes: Genes
    searched_mean: float
    """Its mean among the finalists: the best of many looks better than it is."""
    fresh: Standing
    staked: float
    """Share of the fresh episodes in which it put up a stake."""


class Played(NamedTuple):
    """Episodes of one attack."""

    results: tuple[Result, ...]
    staked: int
    """In how many of them it put up a stake."""


def draw_genes(seed: int, number: int) -> Genes:
    """One attack at random."""
    return Genes(**{name: uniform(seed, "gene", number, name) for name in _NAMES})


def breed(seed: int, number: int, parents: Sequence[Genes]) -> Genes:
    """A child of two of these, each gene from one of them, some of them changed a little."""

    def chance(*labels: str | int) -> float:
        return uniform(seed, "breed", number, *labels)

    pair = [parents[int(chance("parent", n) * len(parents))] for n in range(2)]
    made = {}
    for name in _NAMES:
        value = getattr(pair[chance("from", name) < 0.5], name)
        if chance("changes", name) < 0.2:
            value += 0.25 * normal(seed, "change", number, name)
        made[name] = min(max(value, 0.0), 1.0)
    return Genes(**made)


def play_attack(genes: Genes, seed: int, episodes: int) -> Played:
    """Play one attack among careful and careless honest players."""
    made: list[SearchedAttacker] = []

    def guest(name: str, books: Books) -> SearchedAttacker:
        made.append(SearchedAttacker(name, books, genes))
        return made[-1]

    simulation = Simulation(Setup(seed=seed, agents=REGULARS), guest=guest)
    for _ in range(episodes):
        simulation.play_next()
    results = tuple(result for result in simulation.results if result.strategy == NAME)
    return Played(results, staked=len(made[0].staked))


def search(plan: Plan, *, tried: Callable[[], None] = lambda: None) -> tuple[Found, ...]:
    """Look for attacks that pay; the best found, each on fresh seeds. `tried` is told of each."""
    pool: list[Candidate] = []

    def consider(genes: Genes, episodes: int) -> Candidate:
        played = play_attack(genes, plan.seed, episodes)
        tried()
        returns = [result.amount / result.seats for result in played.results]
        error = stdev(returns) / math.sqrt(len(returns))
        staked = played.staked / len(returns)
        return Candidate(genes=genes, mean=fmean(returns), error=error, staked=staked)

    def rank(found: Sequence[Candidate]) -> list[Candidate]:
        """Rank those that stake; all, where none does."""
        active = [one for one in found if one.staked >= plan.least_staked]
        return sorted(active or found, key=lambda one: -one.score)

    # Without one that was drawn there is none to breed from.
    drawn = max(1, int(plan.attacks * plan.random_share))
    pool += [consider(draw_genes(plan.seed, n), plan.episodes) for n in range(drawn)]
    while len(pool) < plan.attacks:
        parents = [one.genes for one in rank(pool)[: plan.parents]]
        count = min(plan.generation, plan.attacks - len(pool))
        numbers = range(len(pool), len(pool) + count)
        pool += [consider(breed(plan.seed, n, parents), plan.episodes) for n in numbers]
    finals = [consider(one.genes, plan.final_episodes) for one in rank(pool)[: plan.finalists]]
    return tuple(_play_fresh(plan, one) for one in rank(finals)[: plan.winners])


def _play_fresh(plan: Plan, best: Candidate) -> Found:
    """Play an attack on every fresh seed, and count all of their episodes together."""
    each = plan.fresh_episodes // len(plan.fresh_seeds)
    played = [play_attack(best.genes, seed, each) for seed in plan.fresh_seeds]
    results = [result for one in played for result in one.results]
    return Found(
        genes=best.genes,
        searched_mean=best.mean,
        fresh=standing(NAME, Kind.ATTACK, agents=1, results=results, sources={}),
        staked=sum(one.staked for one in played) / len(results),
    )
