"""Those who don't attack: explorers with real evidence, and traders who know nothing.

An agent acts at moments, through the table's public moves, on what it has seen and probed.
Money it was given doesn't count as gained, however many accounts it opens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from heretix.economy.market import Side
from heretix.economy.simulation.conduct import (
    direction_of,
    gate_risk,
    lift_to,
    plan_stake,
    side_of,
)
from heretix.economy.simulation.table import Moment
from heretix.economy.simulation.world import POOL

if TYPE_CHECKING:
    from heretix.economy.judging import Direction
    from heretix.economy.simulation.table import Books, Table
    from heretix.economy.simulation.world import Bundle

__all__ = ["PURSE", "Agent", "HonestExplorer", "Kind", "NoiseTrader"]

PURSE: Final = 10**9
"""Enough never to decide a game: what is asked is whether a strategy pays, not who lasts."""
_COMING: Final = (Moment.EARLY, Moment.MIDDLE, Moment.LATE)
"""When explorers come with what they found."""


class Kind(StrEnum):
    """What a strategy is, for the reader of a report."""

    HONEST = "honest"
    BYSTANDER = "bystander"
    ATTACK = "attack"


class Agent(ABC):
    """One player, who may have several accounts."""

    strategy: ClassVar[str]
    kind: ClassVar[Kind] = Kind.ATTACK
    crew: ClassVar[int] = 1
    """How many accounts it has from the start."""

    def __init__(self, name: str, books: Books) -> None:
        self.name = name
        self.accounts = [books.enrol(f"{name}-{n}", PURSE) for n in range(self.crew)]
        self._hidden: list[tuple[str, int]] = []

    @property
    def account(self) -> str:
        """The account it uses when one will do."""
        return self.accounts[0]

    def patience(self, table: Table) -> float:
        """How far through the closing window it waits."""
        return self.chance(table, "patience")

    def act(self, table: Table, moment: Moment) -> None:
        """Do what this moment asks for."""
        if moment is Moment.OPEN:
            self._hidden.clear()
        self.play(table, moment)
        if moment is Moment.REVEAL:
            self.show(table)

    @abstractmethod
    def play(self, table: Table, moment: Moment) -> None:
        """What the strategy is; commitments are shown for it at the end."""

    def chance(self, table: Table, *labels: str | int) -> float:
        """A number between 0 and 1 of its own."""
        return table.world.chance("agent", self.name, table.claim.number, *labels)

    def probe_lens(self, table: Table, bundle: Bundle, times: int) -> float:
        """What a bundle does to the lens, by the mean of several probes."""
        return sum(table.probe(self.account, bundle) for _ in range(times)) / times

    def commit(
        self, table: Table, account: str, bundle: Bundle, direction: Direction, amount: int
    ) -> bool:
        """Commit, and remember to show it."""
        number = table.commit(account, bundle, direction, amount)
        if number is None:
            return False
        self._hidden.append((account, number))
        return True

    def show(self, table: Table) -> None:
        """Reveal everything that was committed and not shown yet."""
        for account, number in self._hidden:
            table.reveal(account, number)
        self._hidden.clear()


class HonestExplorer(Agent):
    """Looks for evidence, tries it at home, and stakes what it is worth.

    With evidence that nobody brought before, it bets and commits; without, it follows what
    others have put their bonds on, which is what brings prices to where they belong. Some are
    careless and show their evidence before they need to.
    """

    strategy = "honest"
    kind = Kind.HONEST
    lens_probes = 4
    """A stake is a hundred times what a probe costs: it pays to be sure of the gate."""
    judges_probed = 3
    careless = 0.3
    crowded = 0.8
    """What it takes the risk to be that an earlier commitment the same way says the same."""

    def play(self, table: Table, moment: Moment) -> None:
        """Research first, then act at a time of its own."""
        if moment is Moment.OPEN:
            self._found = self._research(table)
            self._when = _COMING[int(self.chance(table, "when") * len(_COMING))]
        elif moment is self._when and self._found is not None:
            self._challenge(table, *self._found)
        elif moment is Moment.LATE and not self._hidden:
            self._follow(table)
        if moment is Moment.LATE and self.chance(table, "careless") < self.careless:
            self.show(table)

    def _research(self, table: Table) -> tuple[Bundle, float, float] | None:
        """Evidence with what it did to the lens and to some judges at home, if it is any good."""
        bundle = table.world.discover(table.claim, self.name)
        if bundle is None:
            return None
        lens = self.probe_lens(table, bundle, self.lens_probes)
        first = int(self.chance(table, "judges") * len(POOL))
        probes = [
            table.probe(self.account, bundle, POOL[(first + n) % len(POOL)])
            for n in range(self.judges_probed)
        ]
        shift = (lens + sum(probes)) / (1 + len(probes))
        if lens * shift <= 0 or self._risk(table, lens) > 0.1:
            return None
        return bundle, lens, shift

    def _risk(self, table: Table, lens: float) -> float:
        return gate_risk(lens, sd=table.world.nature.gate_sd, probes=self.lens_probes)

    def _challenge(self, table: Table, bundle: Bundle, lens: float, shift: float) -> None:
        direction = direction_of(shift)
        taken = any(c.direction is direction for c in table.challenges)
        risk = self._risk(table, lens)
        plan = plan_stake(
            table.claim.c0_ppm,
            lens_shift=lens,
            q_shift=shift,
            risk=max(risk, self.crowded) if taken else risk,
            least=table.least_stake(self.account),
            scale=table.scale,
        )
        side = side_of(direction)
        amount = lift_to(table.market, side, 0.75, most=8_000)
        if amount:
            table.bet(self.account, side, amount)
        if plan.expected > 0:
            self.commit(table, self.account, bundle, direction, plan.stake)

    def _follow(self, table: Table) -> None:
        """Bet with commitments that are bonded for more than they had to be."""
        earnest = {
            c.direction for c in table.challenges if c.stake > 2 * table.least_stake(c.account)
        }
        if len(earnest) == 1:
            side = side_of(earnest.pop())
            amount = lift_to(table.market, side, 0.95, most=20_000)
            if amount:
                table.bet(self.account, side, amount)


class NoiseTrader(Agent):
    """Bets on a side by the toss of a coin."""

    strategy = "noise"
    kind = Kind.BYSTANDER

    def play(self, table: Table, moment: Moment) -> None:
        """Once an episode, at any time."""
        times = (Moment.OPEN, Moment.EARLY, Moment.MIDDLE, Moment.LATE, Moment.CLOSING)
        if moment is times[int(self.chance(table, "when") * len(times))]:
            side = Side.HERETIC if self.chance(table, "side") < 0.5 else Side.ORTHODOX
            table.bet(self.account, side, 200 + int(self.chance(table, "amount") * 2_800))
