"""Those who attack: each plays one attack as well as it can with what it would know.

None has real evidence of its own: with it, an attack would only be a detour to an honest
reward. What they know is public: the rules, the market, commitments, what was shown, and what
any model makes of any text, for the price of asking it.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from heretix.economy.market import Side
from heretix.economy.money import ceil_part
from heretix.economy.simulation.agents import Agent
from heretix.economy.simulation.conduct import (
    direction_of,
    gate_risk,
    plan_stake,
    side_of,
)
from heretix.economy.simulation.table import PROBE_COST, Moment
from heretix.economy.simulation.world import POOL, sign_of

if TYPE_CHECKING:
    from heretix.economy.simulation.table import Books, Table
    from heretix.economy.simulation.world import Bundle

__all__ = ["ATTACKERS", "RumourMonger"]


class Attacker(Agent):
    """What attackers share: texts tried on the lens until some of them work."""

    tries = 8
    """Noise that is tried at home before some is chosen."""
    probes = 4
    """How often the chosen is tried: the best of many looks better than it is."""
    kept = 1
    """How many texts each way are chosen."""
    daring = 0.05
    """The risk of failing the gate at which it waits for a better episode."""

    def tuned(self, table: Table) -> list[tuple[float, Bundle]]:
        """Noise with what it did to the lens at home, from the furthest down to the furthest up."""
        texts = [table.world.noise(self.name, table.claim.number, n) for n in range(self.tries)]
        first = sorted(
            ((table.probe(self.account, text), text) for text in texts), key=lambda pair: pair[0]
        )
        chosen = [text for _, text in (*first[: self.kept], *first[-self.kept :])]
        again = ((self.probe_lens(table, text, self.probes), text) for text in chosen)
        return sorted(again, key=lambda pair: pair[0])

    def risk(self, table: Table, lens: float) -> float:
        """How likely the gate is to fail a text that was chosen so."""
        return gate_risk(lens, sd=table.world.nature.gate_sd, probes=self.probes)

    def strongest(self, table: Table) -> tuple[float, Bundle]:
        """The noise that moved the lens furthest, either way."""
        return max(self.tuned(table), key=lambda pair: abs(pair[0]))

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
        if self.risk(table, lens) > self.daring:
            return False
        maker = account or self.account
        plan = plan_stake(
            table.claim.c0_ppm,
            lens_shift=lens,
            q_shift=q_shift,
            risk=max(risk, self.risk(table, lens)),
            least=table.least_stake(maker),
            scale=table.scale,
        )
        return self.commit(table, maker, bundle, direction_of(lens), plan.stake)

    def coin(self, table: Table) -> Side:
        """A side when nothing speaks for either."""
        return Side.HERETIC if self.chance(table, "coin") < 0.5 else Side.ORTHODOX


class Whipsawer(Attacker):
    """Two accounts push the belief up and down again, each hoping to be paid for every move."""

    strategy = "whipsaw"
    crew = 2
    tries = 16
    kept = 2

    def play(self, table: Table, moment: Moment) -> None:
        """Up and down twice, with the texts that move the lens most, fully bonded."""
        if moment is not Moment.EARLY:
            return
        far_down, down, up, far_up = self.tuned(table)
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

    def play(self, table: Table, moment: Moment) -> None:
        """Five texts the same way, five small bonds, five small bets."""
        if moment is not Moment.EARLY:
            return
        ranked = self.tuned(table)
        up = abs(ranked[-1][0]) >= abs(ranked[0][0])
        chosen = ranked[::-1][: self.crew] if up else ranked[: self.crew]
        for account, (lens, bundle) in zip(self.accounts, chosen, strict=True):
            if (lens > 0) == up:
                self.press(table, bundle, lens=lens, account=account)
            table.bet(account, side_of(direction_of(1 if up else -1)), 600)


class Sniper(Attacker):
    """Waits for the last moment, when nobody can answer, and bets with what was committed."""

    strategy = "snipe"

    def patience(self, table: Table) -> float:
        """The last tenth of the window."""
        return 0.9 + 0.1 * self.chance(table, "patience")

    def play(self, table: Table, moment: Moment) -> None:
        """All on the side that has the larger bonds behind it."""
        if moment is not Moment.CLOSING:
            return
        bonded = sum(sign_of(c.direction) * c.stake for c in table.challenges)
        if bonded:
            table.bet(self.account, side_of(direction_of(bonded)), 10_000)


class JudgeColluder(Attacker):
    """Owns two of the models that judges are drawn from, and has them say what it bet on."""

    strategy = "collude"
    owned: Final = POOL[:2]
    hoped = 0.06
    """How far two bought judges of twelve move the median on average, by its own reckoning."""

    def play(self, table: Table, moment: Moment) -> None:
        """Noise that moves the lens opens the door; the bought judges are to do the rest."""
        if moment is not Moment.EARLY:
            return
        lens, bundle = self.strongest(table)
        sign = 1 if lens > 0 else -1
        if self.press(table, bundle, lens=lens, q_shift=sign * self.hoped):
            table.bet(self.account, side_of(direction_of(lens)), 3_000)
            for model in self.owned:
                table.buy_judge(model, sign * 6.0)


class Injector(Attacker):
    """Writes orders to the model into its documents, in words that the screen doesn't know."""

    strategy = "inject"

    def play(self, table: Table, moment: Moment) -> None:
        """Try texts until one commands the lens, and see how many judges obey it, too."""
        if moment is not Moment.EARLY:
            return
        sign = 1 if self.coin(table) is Side.HERETIC else -1
        for n in range(self.tries):
            bundle = table.world.order(sign, self.name, table.claim.number, n)
            lens = table.probe(self.account, bundle)
            if sign * lens < 1:
                continue
            judges = [table.probe(self.account, bundle, model) for model in POOL]
            self.press(table, bundle, lens=lens, q_shift=median(judges))
            if sum(sign * shift > 1 for shift in judges) > len(POOL) // 3:
                table.bet(self.account, side_of(direction_of(sign)), 8_000)
            return


class WashTrader(Attacker):
    """Bets against itself on both sides."""

    strategy = "wash"
    crew = 2

    def play(self, table: Table, moment: Moment) -> None:
        """The same on each side, while both are cheap."""
        if moment is Moment.OPEN:
            for account, side in zip(self.accounts, Side, strict=True):
                table.bet(account, side, 5_000)


class NoiseShopper(Attacker):
    """Tries many meaningless texts, on the lens and on every judge there could be."""

    strategy = "shop"
    tries = 12
    finalists = 2

    def play(self, table: Table, moment: Moment) -> None:
        """Commit the one that moves the judges most, and bet on it when that looks good."""
        if moment is not Moment.EARLY:
            return
        ranked = sorted(self.tuned(table), key=lambda pair: -abs(pair[0]))
        best: tuple[float, float, Bundle] | None = None
        for lens, bundle in ranked[: self.finalists]:
            sign = 1 if lens > 0 else -1
            shift = median(table.probe(self.account, bundle, model) for model in POOL)
            if best is None or sign * shift > (1 if best[1] > 0 else -1) * best[0]:
                best = (shift, lens, bundle)
        assert best is not None
        shift, lens, bundle = best
        passed = self.press(table, bundle, lens=lens, q_shift=shift)
        if passed and shift * lens > 0 and abs(shift) > 0.15:
            table.bet(self.account, side_of(direction_of(lens)), 2_000)


class SelfChallenger(Attacker):
    """Holds most of a side, and fails challenges against it to be paid the yield."""

    strategy = "yield"
    crew = 2

    def play(self, table: Table, moment: Moment) -> None:
        """A large bet before anyone else's, then empty challenges from another account."""
        holder, straw = self.accounts
        if moment is Moment.OPEN:
            table.bet(holder, self.coin(table), 20_000)
        elif moment is Moment.EARLY:
            direction = direction_of(1 if self.coin(table) is Side.ORTHODOX else -1)
            for n in range(3):
                empty = table.world.noise(self.name, "empty", table.claim.number, n)
                self.commit(table, straw, empty, direction, table.least_stake(straw))


class EvidenceThief(Attacker):
    """Takes what careless explorers show too soon, in words of its own."""

    strategy = "steal"

    def patience(self, table: Table) -> float:
        """At once: what comes after the close is given back."""
        return 0.01 * self.chance(table, "patience")

    def play(self, table: Table, moment: Moment) -> None:
        """Bring the same content again, hoping that it counts again."""
        if moment is not Moment.CLOSING or not table.shown:
            return
        seen = table.shown[0]
        copy = table.world.reword(seen.bundle, self.name, table.claim.number)
        lens = self.probe_lens(table, copy, self.probes)
        if lens * sign_of(seen.direction) > 0:
            self.press(table, copy, lens=lens, q_shift=lens, risk=0.5)


class RedundantFlooder(Attacker):
    """Says one thing in many wordings, from many accounts, to be paid for each."""

    strategy = "flood"
    crew = 5

    def play(self, table: Table, moment: Moment) -> None:
        """One text that moves the lens, and four echoes of it."""
        if moment is not Moment.EARLY:
            return
        lens, bundle = self.strongest(table)
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

    def play(self, table: Table, moment: Moment) -> None:
        """A purse of no more than one stake, on the text that moves the lens most."""
        if moment is not Moment.EARLY:
            return
        purse = 2 * table.episode.terms.parameters.stakes.base + 100 * PROBE_COST
        fresh = self._books.enrol(f"{self.name}-{table.claim.number}", purse)
        self.accounts.insert(0, fresh)
        lens, bundle = self.strongest(table)
        self.press(table, bundle, lens=lens)


class OffsetFarmer(Attacker):
    """Knows that the judges lean another way than the lens, and hopes to be paid for that."""

    strategy = "offset"

    def play(self, table: Table, moment: Moment) -> None:
        """Bond the whole way to where the judges stand, with any text that moves the lens so."""
        if moment is not Moment.EARLY:
            return
        leaning = median(table.ask_leaning(self.account, model) for model in POOL)
        ranked = self.tuned(table)
        lens, bundle = ranked[-1] if leaning > 0 else ranked[0]
        if self.press(table, bundle, lens=lens, q_shift=leaning):
            table.bet(self.account, side_of(direction_of(lens)), 1_000)


class VoidEngineer(Attacker):
    """Bets, and whenever it would lose asks for other judges until nobody wins."""

    strategy = "void"
    stake = 40_000

    def play(self, table: Table, moment: Moment) -> None:
        """A coin's bet early; a dispute when the loss is larger than the bond."""
        side = self.coin(table)
        if moment is Moment.OPEN:
            table.bet(self.account, side, self.stake)
        elif moment is Moment.RESULT:
            outcome = table.outcome
            loss = ceil_part(self.stake, outcome.tau_ppm)
            if outcome.winner is side.other and loss > table.dispute_bond:
                table.dispute(self.account)


class RumourMonger(Attacker):
    """Brings what convinces every model until it is rebutted within the durability window.

    Not seated unless asked for: judges are shown the same documents at both measurements, so
    nothing fades. It shows what the mean of two measurements would pay if something did.
    """

    strategy = "rumour"

    def play(self, table: Table, moment: Moment) -> None:
        """Bond as far as the mean of now and nothing."""
        if moment is not Moment.EARLY:
            return
        sign = 1 if self.coin(table) is Side.HERETIC else -1
        bundle = table.world.rumour(sign, self.name, table.claim.number)
        lens = table.probe(self.account, bundle)
        self.press(table, bundle, lens=lens, q_shift=lens / 2)


ATTACKERS: Final[tuple[type[Agent], ...]] = (
    Whipsawer,
    SybilSplitter,
    Sniper,
    JudgeColluder,
    Injector,
    WashTrader,
    NoiseShopper,
    SelfChallenger,
    EvidenceThief,
    RedundantFlooder,
    Churner,
    OffsetFarmer,
    VoidEngineer,
)
"""Every attack that is played unless something else is asked for."""
