"""Players of the simulation: honest ones, and those who play one attack as well as they can."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import StrEnum
from statistics import NormalDist, median
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from heretix.belief.logodds import logit, sigmoid
from heretix.economy.episode.state import Direction
from heretix.economy.ledger import PPM, ceil_part
from heretix.economy.market import MICRO, Side
from heretix.economy.rewards import clip_belief, required_bond
from heretix.economy.simulation.table import PROBE_COST, Moment
from heretix.economy.simulation.world import POOL, sign_of

if TYPE_CHECKING:
    from heretix.economy.market import Market
    from heretix.economy.simulation.table import Books, Table
    from heretix.economy.simulation.world import Bundle

# How a player who reckons well sizes a challenge or a bet, from what it knows: guesses that agents
# act on, so they may be floats; what is paid is the rules' affair.

_MARGIN, _OTHERS = 0.4, 1.0
"""Log-odds of room that a bond leaves for the gate's error, and for the steps of others."""
_GATE_Z: Final = 1.959963984540054


class StakePlan(NamedTuple):
    """Stake of a challenge, and what it should come to."""

    stake: int
    expected: float


def direction_of(sign: float) -> Direction:
    """The direction of a shift."""
    return Direction.UP if sign > 0 else Direction.DOWN


def side_of(sign: float) -> Side:
    """The pool that a shift is the cause of."""
    return Side.HERETIC if sign > 0 else Side.ORTHODOX


def gate_risk(probed: float, *, sd: float, probes: int = 1) -> float:
    """Probability that a bundle that moved the lens this far at home fails the gate.

    Each probe has the error `sd`, and so has the gate.
    """
    return NormalDist().cdf((_GATE_Z * sd - abs(probed)) / (sd * math.sqrt(1 + 1 / probes)))


def plan_stake(
    c0_ppm: int, *, lens_shift: float, q_shift: float, risk: float, least: int, scale: int
) -> StakePlan:
    """The stake that covers the move wherever others have brought the path, and what it should
    come to.

    What fails costs the least stake alone, and a bond that was larger than it had to be costs
    nothing; so it is posted with room for the gate's error and for others' steps.
    """
    start = c0_ppm / PPM
    target = sigmoid(logit(start) + q_shift)
    goal = sigmoid(logit(start) + lens_shift)
    sign = 1 if lens_shift > 0 else -1
    ends = [logit(start) - sign * _OTHERS, logit(start) + lens_shift + sign * _MARGIN]
    bond = required_bond(scale, *(clip_belief(round(sigmoid(end) * PPM)) for end in ends))
    gain = scale * (
        target * math.log(goal / start) + (1 - target) * math.log((1 - goal) / (1 - start))
    )
    return StakePlan(stake=max(bond, least), expected=(1 - risk) * gain - risk * least)


def lift_to(market: Market, side: Side, probability: float, *, most: int) -> int:
    """Bet that brings the implied probability of a side to this, at most `most`."""
    others = market.shares(side.other) / MICRO
    money = others / math.sqrt(1 - probability)
    return min(most, max(0, int(money - market.money)))


# Those who don't attack: explorers with real evidence, and traders who know nothing. An agent acts
# at moments, through the table's public moves, on what it has seen and probed. Money it was given
# doesn't count as gained, however many accounts it opens.

PURSE: Final = 10**9
"""Enough never to decide a game: what is asked is whether a strategy pays, not who lasts."""
_COMING: Final = (Moment.EARLY, Moment.MIDDLE, Moment.LATE)
"""Moments at which explorers come with what they found."""


class Kind(StrEnum):
    """Description of a strategy, for the reader of a report."""

    HONEST = "honest"
    BYSTANDER = "bystander"
    ATTACK = "attack"


class Agent(ABC):
    """One player, who may have several accounts."""

    strategy: ClassVar[str]
    kind: ClassVar[Kind] = Kind.ATTACK
    crew: ClassVar[int] = 1
    """Number of accounts it has from the start."""
    probes: ClassVar[int] = 4
    """Tries on the lens of what it brings: a stake is a hundred times what a probe costs, and the
    best of many texts looks better than it is."""

    def __init__(self, name: str, books: Books) -> None:
        self.name = name
        self.accounts = [books.enrol(f"{name}-{n}", PURSE) for n in range(self.crew)]
        self._hidden: list[tuple[str, int]] = []

    @property
    def account(self) -> str:
        return self.accounts[0]

    def patience(self, table: Table) -> float:
        """Share of the closing window that it waits."""
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
        """Description of the strategy; commitments are shown for it at the end."""

    def chance(self, table: Table, *labels: str | int) -> float:
        """A number between 0 and 1 of its own."""
        return table.world.chance("agent", self.name, table.claim.number, *labels)

    def probe_lens(self, table: Table, bundle: Bundle) -> float:
        """Effect of a bundle on the lens, by the mean of several probes."""
        return sum(table.probe(self.account, bundle) for _ in range(self.probes)) / self.probes

    def risk(self, table: Table, lens: float) -> float:
        """Probability that the gate fails a text that moved the lens so at home."""
        return gate_risk(lens, sd=table.world.nature.gate_sd, probes=self.probes)

    def plan(
        self, table: Table, account: str, *, lens: float, q_shift: float, risk: float
    ) -> StakePlan:
        """The stake of an account's that makes the best of its hopes."""
        least, scale, start = table.least_stake(account), table.scale, table.claim.c0_ppm
        return plan_stake(
            start, lens_shift=lens, q_shift=q_shift, risk=risk, least=least, scale=scale
        )

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

    With evidence that moves the lens and some judges at home, it bets and commits. Nobody sees what
    others committed to, so it reckons with having come second when somebody has put up a bond.
    """

    strategy = "honest"
    kind = Kind.HONEST
    judges_probed = 3
    crowded = 0.5
    """Assumed risk that an earlier commitment says the same."""

    def play(self, table: Table, moment: Moment) -> None:
        """Research first, then act at a time of its own."""
        if moment is Moment.OPEN:
            self._found = self._research(table)
            self._when = _COMING[int(self.chance(table, "when") * len(_COMING))]
        elif moment is self._when and self._found is not None:
            self._challenge(table, *self._found)

    def _research(self, table: Table) -> tuple[Bundle, float, float] | None:
        """Evidence with what it did to the lens and to some judges at home, if it is any good."""
        bundle = table.world.discover(table.claim, self.name)
        if bundle is None:
            return None
        lens = self.probe_lens(table, bundle)
        first = int(self.chance(table, "judges") * len(POOL))
        probes = [
            table.probe(self.account, bundle, POOL[(first + n) % len(POOL)])
            for n in range(self.judges_probed)
        ]
        shift = (lens + sum(probes)) / (1 + len(probes))
        if lens * shift <= 0 or self.risk(table, lens) > 0.1:
            return None
        return bundle, lens, shift

    def _challenge(self, table: Table, bundle: Bundle, lens: float, shift: float) -> None:
        direction = direction_of(shift)
        taken = any(c.stake > c.least for c in table.challenges)
        risk = max(self.risk(table, lens), self.crowded if taken else 0.0)
        plan = self.plan(table, self.account, lens=lens, q_shift=shift, risk=risk)
        self._lift(table, side_of(shift), 0.75, most=8_000)
        if plan.expected > 0:
            self.commit(table, self.account, bundle, direction, plan.stake)

    def _lift(self, table: Table, side: Side, probability: float, *, most: int) -> None:
        """Bet what brings a side to a probability, if anything."""
        amount = lift_to(table.market, side, probability, most=most)
        if amount:
            table.bet(self.account, side, amount)


class CarelessExplorer(HonestExplorer):
    """Finds evidence as others do, and doesn't look: asks no judge, and never thinks that somebody
    may have come first."""

    strategy = "careless"
    probes = 1
    judges_probed = 0
    crowded = 0.0


class NoiseTrader(Agent):
    """Bets on a side by the toss of a coin."""

    strategy = "noise"
    kind = Kind.BYSTANDER

    def play(self, table: Table, moment: Moment) -> None:
        times = (Moment.OPEN, Moment.EARLY, Moment.MIDDLE, Moment.LATE, Moment.CLOSING)
        if moment is times[int(self.chance(table, "when") * len(times))]:
            side = Side.HERETIC if self.chance(table, "side") < 0.5 else Side.ORTHODOX
            table.bet(self.account, side, 200 + int(self.chance(table, "amount") * 2_800))


# Those who attack: each plays one attack as well as it can with what it would know. None has real
# evidence of its own: with it, an attack would only be a detour to an honest reward. What they know
# is public: the rules, the market, commitments, what was shown, and what any model makes of any
# text, for the price of asking it.


class Attacker(Agent):
    """Base of attackers: texts tried on the lens until some of them work."""

    tries = 8
    """Noise that is tried at home before some is chosen."""
    kept = 1
    """Number of texts chosen each way."""
    daring = 0.05
    """The risk of failing the gate at which it waits for a better episode."""
    moment = Moment.EARLY
    """Moment at which it strikes, if it strikes once."""

    def play(self, table: Table, moment: Moment) -> None:
        """Strike at its moment; some play on at others."""
        if moment is self.moment:
            self.strike(table)

    def strike(self, table: Table) -> None:
        """Make the attack's one move."""

    def tune(self, table: Table) -> list[tuple[float, Bundle]]:
        """Noise with what it did to the lens at home, from the furthest down to the furthest up."""
        texts = [table.world.noise(self.name, table.claim.number, n) for n in range(self.tries)]
        first = sorted(texts, key=lambda text: table.probe(self.account, text))
        chosen = (*first[: self.kept], *first[-self.kept :])
        again = ((self.probe_lens(table, text), text) for text in chosen)
        return sorted(again, key=lambda tried: tried[0])

    def find_strongest(self, table: Table) -> tuple[float, Bundle]:
        """Find the noise that moved the lens furthest, either way."""
        return max(self.tune(table), key=lambda pair: abs(pair[0]))

    def press(
        self,
        table: Table,
        bundle: Bundle,
        *,
        lens: float,
        q_shift: float = 0.0,
        account: str = "",
        risk: float = 0.0,
    ) -> bool:
        """Commit if the lens lets it pass, with the stake that makes the best of its hopes.

        `risk` is what it knows of failing beyond what the probes of the lens tell.
        """
        failing, maker = self.risk(table, lens), account or self.account
        if failing > self.daring:
            return False
        plan = self.plan(table, maker, lens=lens, q_shift=q_shift, risk=max(risk, failing))
        return self.commit(table, maker, bundle, direction_of(lens), plan.stake)

    def coin(self, table: Table) -> int:
        """A way, up (1) or down (-1), when nothing speaks for either."""
        return 1 if self.chance(table, "coin") < 0.5 else -1


class Whipsawer(Attacker):
    """Two accounts push the belief up and down again, each hoping to be paid for every move: twice,
    with the texts that move the lens most, fully bonded."""

    strategy = "whipsaw"
    crew = 2
    tries = 16
    kept = 2

    def strike(self, table: Table) -> None:
        far_down, down, up, far_up = self.tune(table)
        for swing in ((far_up, far_down), (up, down)):
            # A swing that stops halfway is a bet on noise, so both halves must be sure to pass.
            if max(self.risk(table, lens) for lens, _ in swing) < 0.01:
                for account, (lens, bundle) in zip(self.accounts, swing, strict=True):
                    # Hoping to be paid for the move itself, it bonds all of it.
                    self.press(table, bundle, lens=lens, q_shift=lens, account=account)


class SybilSplitter(Attacker):
    """One person as five: a move and a bet cut up among accounts without a record."""

    strategy = "sybil"
    crew = 5
    tries = 16
    kept = 5
    probes = 2

    def strike(self, table: Table) -> None:
        ranked = self.tune(table)
        up = abs(ranked[-1][0]) >= abs(ranked[0][0])
        chosen = ranked[::-1][: self.crew] if up else ranked[: self.crew]
        for account, (lens, bundle) in zip(self.accounts, chosen, strict=True):
            if (lens > 0) == up:
                self.press(table, bundle, lens=lens, account=account)
            table.bet(account, side_of(1 if up else -1), 600)


class Sniper(Attacker):
    """Waits for the last moment, when nobody can answer, and bets with the others. Directions are
    sealed, so the price is all that it can read."""

    strategy = "snipe"
    moment = Moment.CLOSING

    def patience(self, table: Table) -> float:
        return 0.9 + 0.1 * self.chance(table, "patience")

    def strike(self, table: Table) -> None:
        lead = table.market.heretic - table.market.orthodox
        if lead and table.challenges:
            table.bet(self.account, side_of(lead), 10_000)


class JudgeColluder(Attacker):
    """Owns two of the models that judges are drawn from, and has them say what it bet on."""

    strategy = "collude"
    owned: Final = POOL[:2]
    hoped = 0.06
    """Average shift of the median by two bought judges of twelve, by its own reckoning."""

    def strike(self, table: Table) -> None:
        # Noise that moves the lens opens the door; the bought judges are to do the rest.
        lens, bundle = self.find_strongest(table)
        sign = 1 if lens > 0 else -1
        if self.press(table, bundle, lens=lens, q_shift=sign * self.hoped):
            table.bet(self.account, side_of(lens), 3_000)
            for model in self.owned:
                table.buy_judge(model, sign * 6.0)


class Injector(Attacker):
    """Writes orders to the model into its documents, in words that the screen doesn't know."""

    strategy = "inject"

    def strike(self, table: Table) -> None:
        """Try texts until one commands the lens, and see how many judges obey it, too."""
        sign = self.coin(table)
        for n in range(self.tries):
            bundle = table.world.order(sign, self.name, table.claim.number, n)
            lens = table.probe(self.account, bundle)
            if sign * lens < 1:
                continue
            judges = [table.probe(self.account, bundle, model) for model in POOL]
            self.press(table, bundle, lens=lens, q_shift=median(judges))
            if sum(sign * shift > 1 for shift in judges) > len(POOL) // 3:
                table.bet(self.account, side_of(sign), 8_000)
            return


class WashTrader(Attacker):
    """Bets against itself on both sides."""

    strategy = "wash"
    crew = 2
    moment = Moment.OPEN

    def strike(self, table: Table) -> None:
        for account, side in zip(self.accounts, Side, strict=True):
            table.bet(account, side, 5_000)


class NoiseShopper(Attacker):
    """Tries many meaningless texts, on the lens and on every judge there could be."""

    strategy = "shop"
    tries = 12
    finalists = 2

    def strike(self, table: Table) -> None:
        """Commit the one that moves the judges most, and bet on it when that looks good."""
        ranked = sorted(self.tune(table), key=lambda pair: -abs(pair[0]))
        tried = [
            (median(table.probe(self.account, bundle, model) for model in POOL), lens, bundle)
            for lens, bundle in ranked[: self.finalists]
        ]
        shift, lens, bundle = max(tried, key=lambda one: one[0] if one[1] > 0 else -one[0])
        passed = self.press(table, bundle, lens=lens, q_shift=shift)
        if passed and shift * lens > 0 and abs(shift) > 0.15:
            table.bet(self.account, side_of(lens), 2_000)


class SelfChallenger(Attacker):
    """Holds most of a side, and fails challenges against it: nobody is paid for that any more."""

    strategy = "yield"
    crew = 2

    def play(self, table: Table, moment: Moment) -> None:
        """A large bet before anyone else's, then empty challenges from another account."""
        holder, straw = self.accounts
        if moment is Moment.OPEN:
            table.bet(holder, side_of(self.coin(table)), 5_000)
        elif moment is Moment.EARLY:
            direction = direction_of(-self.coin(table))
            for n in range(3):
                empty = table.world.noise(self.name, "empty", table.claim.number, n)
                self.commit(table, straw, empty, direction, table.least_stake(straw))


class EvidenceThief(Attacker):
    """Would take what others show, in words of its own: there is nothing to see in time."""

    strategy = "steal"
    moment = Moment.CLOSING

    def patience(self, table: Table) -> float:
        # At once: what comes after the close is given back.
        return 0.01 * self.chance(table, "patience")

    def strike(self, table: Table) -> None:
        if not table.shown:
            return
        seen = table.shown[0]
        copy = table.world.reword(seen.bundle, self.name, table.claim.number)
        lens = self.probe_lens(table, copy)
        if lens * sign_of(seen.direction) > 0:
            self.press(table, copy, lens=lens, q_shift=lens, risk=0.5)


class RedundantFlooder(Attacker):
    """An attacker that says one thing in many wordings, from many accounts, to be paid for each."""

    strategy = "flood"
    crew = 5

    def strike(self, table: Table) -> None:
        lens, bundle = self.find_strongest(table)
        for n, account in enumerate(self.accounts):
            echo = table.world.reword(bundle, self.name, n) if n else bundle
            self.press(table, echo, lens=lens, account=account)


class Churner(Attacker):
    """Gambles from a new account each time, and leaves record and losses behind."""

    strategy = "churn"
    crew = 0

    def __init__(self, name: str, books: Books) -> None:
        super().__init__(name, books)
        self._books = books

    def strike(self, table: Table) -> None:
        purse = 2 * table.episode.terms.parameters.stakes.base + 100 * PROBE_COST
        fresh = self._books.enrol(f"{self.name}-{table.claim.number}", purse)
        self.accounts.insert(0, fresh)
        lens, bundle = self.find_strongest(table)
        self.press(table, bundle, lens=lens)


class OffsetFarmer(Attacker):
    """Knows that the judges lean another way than the lens, and hopes to be paid for that."""

    strategy = "offset"

    def strike(self, table: Table) -> None:
        """Bond the whole way to where the judges stand, with any text that moves the lens so."""
        leaning = median(table.ask_leaning(self.account, model) for model in POOL)
        ranked = self.tune(table)
        lens, bundle = ranked[-1] if leaning > 0 else ranked[0]
        if self.press(table, bundle, lens=lens, q_shift=leaning):
            table.bet(self.account, side_of(lens), 1_000)


class VoidEngineer(Attacker):
    """Bets, and whenever it would lose asks for other judges until nobody wins."""

    strategy = "void"
    stake = 10_000

    def play(self, table: Table, moment: Moment) -> None:
        """A coin's bet early; a dispute when the loss is larger than the bond."""
        side = side_of(self.coin(table))
        if moment is Moment.OPEN:
            table.bet(self.account, side, self.stake)
        elif moment is Moment.RESULT:
            outcome = table.outcome
            loss = ceil_part(self.stake, outcome.tau_ppm)
            if outcome.winner is side.other and loss > table.dispute_bond:
                table.dispute(self.account)


class Repeater(Attacker):
    """Brings what an earlier episode of the same claim paid for, word by word and reworded."""

    strategy = "repeat"
    crew = 2

    def strike(self, table: Table) -> None:
        for bundle in table.claim.paid[:1]:
            again = (bundle, table.world.reword(bundle, self.name, table.claim.number))
            for account, text in zip(self.accounts, again, strict=True):
                self.commit(table, account, text, direction_of(bundle.common), 5_000)


class Filler(Attacker):
    """Brings any text at all, where text as such moves models.

    Not seated unless asked for: in the default world it doesn't.
    """

    strategy = "filler"

    def strike(self, table: Table) -> None:
        bundle = table.world.filler(self.name, table.claim.number)
        lens = self.probe_lens(table, bundle)
        self.press(table, bundle, lens=lens, q_shift=lens)


class RumourMonger(Attacker):
    """Brings what convinces every model until it is rebutted within the durability window.

    Not seated unless asked for: judges are shown the same documents at both measurements, so
    nothing fades. It shows what a belief that falls back would cost if something did.
    """

    strategy = "rumour"

    def strike(self, table: Table) -> None:
        sign = self.coin(table)
        bundle = table.world.rumour(sign, self.name, table.claim.number)
        lens = table.probe(self.account, bundle)
        self.press(table, bundle, lens=lens, q_shift=lens / 2)


ATTACKERS: Final[tuple[type[Agent], ...]] = (
    Whipsawer, SybilSplitter, Sniper, JudgeColluder, Injector, WashTrader, NoiseShopper,
    SelfChallenger, EvidenceThief, RedundantFlooder, Churner, OffsetFarmer, VoidEngineer, Repeater,
)  # fmt: skip
"""Every attack that is played unless something else is asked for."""
