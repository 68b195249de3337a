"""Play episodes one after the other, in one ledger, and tally who gained."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import UsageError
from heretix.economy.episode.state import Parameters
from heretix.economy.ledger import GENESIS, PLAY, AccountKind, Code, house_account
from heretix.economy.simulation.agents import (
    ATTACKERS,
    CarelessExplorer,
    Filler,
    HonestExplorer,
    Kind,
    NoiseTrader,
    RumourMonger,
)
from heretix.economy.simulation.table import Books, Moment, Table
from heretix.economy.simulation.world import Nature, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from heretix.economy.ledger import Transfer
    from heretix.economy.simulation.agents import Agent
    from heretix.economy.simulation.world import Earlier

# What each strategy came to: its mean return for an episode, with a 99% interval. A return is whole
# minor units, net of stakes, bonds, fees and what was spent on asking models. Seats of one strategy
# in one episode share its luck, so the episode is the unit that is counted.

_CONFIDENCE: Final = 0.99


class Verdict(StrEnum):
    """Bounds of the interval."""

    GAINS = "gains"
    LOSES = "loses"
    NEITHER = "neither"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """Origin of a return."""

    MARKET = "market"
    EVIDENCE = "evidence"
    """Stakes of challenges, bonds and rewards."""
    DISPUTES = "disputes"
    COMPUTE = "compute"


_CODES: Final = {
    Source.MARKET: (Code.STAKE, Code.LATE_STAKE_REFUND, Code.PAYOUT, Code.STAKE_REFUND),
    Source.EVIDENCE: (Code.CHALLENGE, Code.CHALLENGE_REFUND, Code.BOND_RETURN, Code.REWARD),
    Source.DISPUTES: (Code.DISPUTE, Code.DISPUTE_RETURN),
    Source.COMPUTE: (Code.BURN,),
}
_SOURCES: Final = {code: source for source, codes in _CODES.items() for code in codes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one strategy's seats in one episode."""

    episode: int
    strategy: str
    seats: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One line of the report. Means are minor units for a seat and an episode."""

    strategy: str
    kind: Kind
    agents: int
    episodes: int
    mean: float | None
    lo99: float | None
    hi99: float | None
    """The 99% interval of the mean; None with fewer than two episodes."""
    total: int
    sources: Mapping[Source, int]

    @property
    def verdict(self) -> Verdict:
        """Tell whether the strategy pays, as far as can be told."""
        if self.lo99 is None or self.hi99 is None:
            return Verdict.UNKNOWN
        if self.lo99 > 0:
            return Verdict.GAINS
        return Verdict.LOSES if self.hi99 < 0 else Verdict.NEITHER


def standing(
    strategy: str,
    kind: Kind,
    *,
    agents: int,
    results: Sequence[Result],
    sources: Mapping[Source, int],
) -> Standing:
    """The mean of a strategy's episodes and its interval, by Student's t."""
    returns = [result.amount / result.seats for result in results]
    mean = fmean(returns) if returns else None
    lo = hi = None
    if mean is not None and len(returns) > 1:
        quantile = t_quantile((1 + _CONFIDENCE) / 2, len(returns) - 1)
        half = quantile * stdev(returns) / math.sqrt(len(returns))
        lo, hi = mean - half, mean + half
    return Standing(
        strategy=strategy,
        kind=kind,
        agents=agents,
        episodes=len(results),
        mean=mean,
        lo99=lo,
        hi99=hi,
        total=sum(result.amount for result in results),
        sources=sources,
    )


def sources_of(
    transfers: Iterable[Transfer], owners: Mapping[str, str]
) -> dict[str, dict[Source, int]]:
    """Flows of each strategy's money; what it was given is left out.

    `owners` says which strategy an account belongs to.
    """
    sums = {strategy: dict.fromkeys(Source, 0) for strategy in owners.values()}
    for transfer in transfers:
        source = _SOURCES.get(transfer.code)
        ends = ((transfer.debit, -transfer.amount), (transfer.credit, transfer.amount))
        for account, amount in ends:
            if source is not None and account in owners:
                sums[owners[account]][source] += amount
    return sums


def t_quantile(share: float, freedom: int) -> float:
    """Quantile of Student's t (Abramowitz and Stegun 26.7.5), to 1% from 4 degrees on.

    With fewer, the expansion falls short of the exact forms that there are for 1 and 2.
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) * math.sqrt(2 / (4 * share * (1 - share)))
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))


# Explorers and noise traders sit at every table; attacks take turns, so that what one of them
# loses isn't what another one gains.

_EVERYONE: tuple[type[Agent], ...] = (
    HonestExplorer, CarelessExplorer, NoiseTrader, *ATTACKERS, RumourMonger, Filler
)  # fmt: skip
STRATEGIES: Final[Mapping[str, type[Agent]]] = {agent.strategy: agent for agent in _EVERYONE}
DEFAULT_AGENTS: Final[Mapping[str, int]] = {
    HonestExplorer.strategy: 4,
    NoiseTrader.strategy: 4,
    **{agent.strategy: 1 for agent in ATTACKERS},
}
_POINTS: Final = 200
"""Resolution of the history of wealth."""
MAX_AGENTS: Final = 1_000
"""Seats of one strategy at a table; with many more an episode has no end."""
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Setup of a simulation: players, world, numbers. The same setup gives the same ledger."""

    seed: int = 1
    agents: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_AGENTS))
    attacks_at_once: int = 1
    """Number of attacks at a table; with several, one can live on another's failures."""
    nature: Nature = field(default_factory=Nature)
    parameters: Parameters = field(default_factory=Parameters)

    def __post_init__(self) -> None:
        if self.attacks_at_once < 1:
            raise UsageError(f"`attacks_at_once` must be at least 1, got {self.attacks_at_once}")
        for strategy, count in self.agents.items():
            if strategy not in STRATEGIES:
                raise UsageError(
                    f"`agents` must name strategies, got {strategy!r}; "
                    f"there are {', '.join(STRATEGIES)}"
                )
            if not 0 <= count <= MAX_AGENTS:
                raise UsageError(
                    f"`{strategy}` must be a number of agents from 0 to {MAX_AGENTS}, got {count}"
                )
        if not any(self.agents.values()):
            raise UsageError("`agents` must seat somebody, got nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class WealthAt:
    """Average gain of a strategy's seat by the end of an episode."""

    episode: int
    strategy: str
    wealth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Gains by strategy, and the ledger that they can be checked against."""

    setup: Setup
    episodes: int
    ledger_hash: str
    """Of the last transfer: the same setup gives the same."""
    transfers: int
    outcomes: Mapping[str, int]
    fund: int
    """Gain of the fund of rewards, net of fees and forfeits; below 0 it is a subsidy."""
    standings: tuple[Standing, ...]
    wealth: tuple[WealthAt, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "seed": self.setup.seed,
            "episodes": self.episodes,
            "attacks_at_once": self.setup.attacks_at_once,
            "agents": dict(self.setup.agents),
            "ledger_hash": self.ledger_hash,
            "transfers": self.transfers,
            "outcomes": dict(self.outcomes),
            "fund": self.fund,
            "nature": asdict(self.setup.nature),
            "standings": [asdict(line) | {"verdict": line.verdict} for line in self.standings],
            "wealth": [asdict(point) for point in self.wealth],
        }


class Simulation:
    """A population and its ledger; `play_next` plays one episode."""

    def __init__(self, setup: Setup, *, guest: Callable[[str, Books], Agent] | None = None) -> None:
        """`guest` makes a player that isn't among the known ones, for a seat at every table."""
        self.setup = setup
        self.books = Books()
        self.world = World(setup.seed, setup.nature)
        self.agents: dict[str, list[Agent]] = {
            strategy: [STRATEGIES[strategy](f"{strategy}-{n}", self.books) for n in range(count)]
            for strategy, count in setup.agents.items()
            if count
        }
        self._regulars = [s for s in self.agents if STRATEGIES[s].kind is not Kind.ATTACK]
        self._attacks = [s for s in self.agents if STRATEGIES[s].kind is Kind.ATTACK]
        if guest is not None:
            made = guest("guest", self.books)
            self.agents[made.strategy] = [made]
            self._regulars.append(made.strategy)
        self.results: list[Result] = []
        self.outcomes: Counter[str] = Counter()
        self.episodes = 0
        self._hash, self._transfers, self._fund = GENESIS, 0, 0
        self._earlier: Earlier | None = None

    def play_next(self) -> Table:
        """Play one episode to its end."""
        number = self.episodes
        # Everyone but the attacks, and the attacks whose turn it is.
        count = min(self.setup.attacks_at_once, len(self._attacks))
        turns = (self._attacks[(number * count + n) % len(self._attacks)] for n in range(count))
        seated = [*self._regulars, *turns]
        before = {strategy: self._sum_gains(strategy) for strategy in seated}
        claim = self.world.claim(number, earlier=self._earlier)
        table = Table(self.books, self.world, claim, self.setup.parameters)
        _play(table, [agent for strategy in seated for agent in self.agents[strategy]])
        found = []
        for strategy in seated:
            seats, amount = len(self.agents[strategy]), self._sum_gains(strategy) - before[strategy]
            found.append(Result(episode=number, strategy=strategy, seats=seats, amount=amount))
        # All at once: an interrupted episode leaves no trace in the report.
        self.results += found
        outcome = table.outcome
        held = "held" if outcome.winner is None else outcome.winner.value
        self.outcomes["void" if outcome.void is not None else held] += 1
        paid = tuple(table.accepted) if outcome.void is None else ()
        self._earlier = claim, paid
        self.episodes += 1
        state = self.books.ledger.state
        self._hash, self._transfers = state.last_hash, state.last_seq
        self._fund = self.books.sum_gains([house_account(AccountKind.EPC_FUND, PLAY.code).id])
        return table

    def report(self) -> Report:
        """Results of the episodes played so far."""
        owners = {
            account: strategy
            for strategy, agents in self.agents.items()
            for agent in agents
            for account in agent.accounts
        }
        sources = sources_of(self.books.ledger.transfers[: self._transfers], owners)
        lines = [
            standing(
                strategy,
                agents[0].kind,
                agents=len(agents),
                results=[r for r in self.results if r.strategy == strategy],
                sources=sources.get(strategy, dict.fromkeys(Source, 0)),
            )
            for strategy, agents in self.agents.items()
        ]
        return Report(
            setup=self.setup,
            episodes=self.episodes,
            ledger_hash=self._hash,
            transfers=self._transfers,
            outcomes=dict(self.outcomes),
            fund=self._fund,
            standings=tuple(lines),
            wealth=_wealth(self.results, self.episodes),
        )

    def _sum_gains(self, strategy: str) -> int:
        return sum(self.books.sum_gains(agent.accounts) for agent in self.agents[strategy])


def simulate(episodes: int, setup: Setup | None = None) -> Report:
    """Play a number of episodes, and report."""
    simulation = Simulation(setup or Setup())
    for _ in range(episodes):
        simulation.play_next()
    return simulation.report()


def read_agents(text: str) -> dict[str, int]:
    """A population from `honest=4,noise=4,wash=1`."""
    agents: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        strategy, equals, count = part.partition("=")
        if not equals or not count.strip().isdecimal() or len(count.strip()) > _DIGITS:
            raise UsageError(
                f"`agents` must be like honest=4,noise=4,wash=1, got {part!r}; "
                f"there are {', '.join(STRATEGIES)}"
            )
        agents[strategy.strip()] = int(count)
    return agents


def _play(table: Table, agents: Sequence[Agent]) -> None:
    """All moments of an episode; at each one everybody acts, in an order of chance."""
    for moment in (moment for moment in Moment if moment is not Moment.RESULT):
        for share, agent in _order(table, agents, moment):
            table.set_time(moment, share)
            agent.act(table, moment)
        if moment is Moment.OPEN:
            table.set_time(Moment.EARLY)
            table.begin()
    table.set_time(Moment.RESULT)
    table.freeze()
    table.measure()
    for _ in range(table.episode.terms.parameters.dispute_rounds):
        for _, agent in _order(table, agents, Moment.RESULT):
            agent.act(table, Moment.RESULT)
    table.close()


def _order(table: Table, agents: Sequence[Agent], moment: Moment) -> list[tuple[float, Agent]]:
    """Order of acting: by patience in the closing window, by lot otherwise."""
    if moment is Moment.CLOSING:
        timed = [(agent.patience(table), agent) for agent in agents]
        return sorted(timed, key=lambda pair: (pair[0], pair[1].name))
    lot = {
        agent.name: table.world.chance("order", table.claim.number, moment.name, agent.name)
        for agent in agents
    }
    return [(0.0, agent) for agent in sorted(agents, key=lambda agent: lot[agent.name])]


def _wealth(results: Sequence[Result], episodes: int) -> tuple[WealthAt, ...]:
    """The mean seat of each strategy over time, at about 200 points."""
    every = max(1, episodes // _POINTS)
    sums: dict[str, float] = {}
    points = []
    for n, result in enumerate(results):
        sums[result.strategy] = sums.get(result.strategy, 0.0) + result.amount / result.seats
        last = n + 1 == len(results) or results[n + 1].episode != result.episode
        if last and (result.episode % every == every - 1 or result.episode == episodes - 1):
            points += [
                WealthAt(episode=result.episode + 1, strategy=strategy, wealth=wealth)
                for strategy, wealth in sums.items()
            ]
    return tuple(points)
