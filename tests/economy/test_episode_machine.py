"""The episode and the ledger against a model that keeps purses and does its own arithmetic."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from market_model import Pool
from playing import (
    GATE_FAILED,
    GATE_PASSED,
    GATE_PASSED_DOWN,
    MACHINE_TIMEOUT_S,
    PURSE,
    SEED,
    H,
    O,
    Play,
    economy_settings,
)

from heretix.economy.episode.challenges import draw_close
from heretix.economy.episode.state import Denied, Direction, Moved, State
from heretix.economy.ledger import AccountKind, Escrow
from heretix.economy.market import Side

pytestmark = pytest.mark.timeout(MACHINE_TIMEOUT_S)

USERS = ("ann", "bob", "cat", "dan")
CLOSE = draw_close(SEED, "ep-1", from_ms=8_000, until_ms=10_000)
WEEK, TWO_DAYS = 7 * 86_400_000, 2 * 86_400_000
SCALE, LOW, HIGH = 100_000, 10_000, 990_000
LEAST = 1_000
users = st.sampled_from(USERS)
sides = st.sampled_from(Side)
bundles = st.sampled_from(["study", "study", "essay", "data", "noise"])
stakes = st.one_of(st.integers(900, 2_000), st.integers(10_000, 150_000))
readings = st.tuples(
    st.decimals(-4, 4, places=3),
    st.sampled_from([0, 25_000, 600_000, 975_000, 1_000_000, 1_000_000]),
    st.sampled_from([Decimal("0.1"), Decimal("0.9")]),
    st.sampled_from([False] * 19 + [True]),
)

clear_cut = st.builds(
    lambda up, size: (size if up else -size, 10**6 * up, Decimal("0.1"), False),
    st.booleans(),
    st.decimals("0.3", 4, places=3),
)
"""Judges that all went one way, and are sure of it."""


@cache
def phi(q, c):
    with localcontext() as context:
        context.prec = 60
        x, y = Decimal(q) / 10**6, Decimal(c) / 10**6
        return round(SCALE * (x * y.ln() + (1 - x) * (1 - y).ln()))


@cache
def need(a, b):
    return 1 + max(phi(LOW, a) - phi(LOW, b), phi(HIGH, a) - phi(HIGH, b))


def sigmoid_ppm(x):
    with localcontext() as context:
        context.prec = 60
        return min(max(round(10**6 / (1 + (-x).exp())), LOW), HIGH)


def rate(near):
    """From even odds: ln 2 less the entropy of the near end."""
    with localcontext() as context:
        context.prec = 60
        p = Decimal(near) / 10**6
        nats = p * p.ln() + (1 - p) * (1 - p).ln() + Decimal(2).ln()
        return int(350_000 * min(1, nats / Decimal(2).ln()))


class Book:
    """The model: purses, lists, and a word for the state."""

    def __init__(self):
        self.purse = dict.fromkeys(USERS, PURSE) | {"house": -10_000}
        self.pool = Pool(10_000, 500_000)
        self.times = [0, 0]
        self.state, self.now = "open", 0
        self.challenges: list[dict] = []
        self.path = [500_000]
        self.steps: list[tuple] = []
        self.readings: list[tuple] = []
        self.frozen = self.measured = None
        self.disputes = 0
        self.pending = self.last = self.upheld = None

    @property
    def bets(self):
        return self.pool.bets

    def bet(self, who, side, stake):
        self.bets.append((who, side, stake, self.pool.worth(side, stake)))
        self.times.append(self.now)
        self.purse[who] -= stake

    def freeze(self):
        self.state, self.frozen = "frozen", self.now
        for at, bet in zip(self.times, self.bets, strict=True):
            if at > CLOSE:
                self.purse[bet[0]] += bet[2]
        kept = [bet for at, bet in zip(self.times, self.bets, strict=True) if at <= CLOSE]
        self.pool.bets = kept
        for c in self.challenges:
            if c["at"] > CLOSE:
                c["fate"] = "late"
                self.purse[c["who"]] += c["stake"]

    def waiting(self):
        return [n for n, c in enumerate(self.challenges) if c["fate"] in ("hidden", "shown")]

    def judge(self, n, passed, belief):
        c = self.challenges[n]
        copies = [
            d for d in self.challenges[:n] if d["shown"] == c["shown"] and d["fate"] != "late"
        ]
        if c["shown"] is None or copies or not passed:
            c["fate"] = "failed"
            self.purse[c["who"]] += c["stake"] - LEAST
            return
        a = self.path[-1]
        goal = max(a, belief) if c["up"] else min(a, belief)
        if goal != a and c["stake"] < need(a, goal):
            c["fate"] = "short"
            self.purse[c["who"]] += c["stake"]
            return
        c["fate"] = "accepted"
        self.steps.append((c["who"], a, goal, c["stake"]))
        self.path.append(goal)

    def outside(self):
        return {b[1] for b in self.bets if b[0] != "house"} == {H, O}

    def verdict(self, readings):
        """(void, direction, rate, q) of these readings."""
        if any(kind for *_, kind in readings):
            return "no estimate", None, 0, None
        if len(readings) < 2:
            return "nothing to measure for", None, 0, None
        (s1, p1, m1, _), (s2, p2, m2, _) = readings
        # The middle one of the start and the two: nearer to it, and itself between them.
        q = sorted([500_000, sigmoid_ppm(s1), sigmoid_ppm(s2)])[1]
        if p1 >= 975_000 and p2 >= 975_000:
            near = max(sigmoid_ppm(min(s1 - m1, s2 - m2)), 500_000)
            return False, H, rate(near), q
        if p1 <= 25_000 and p2 <= 25_000:
            near = min(sigmoid_ppm(max(s1 + m1, s2 + m2)), 500_000)
            return False, O, rate(near), q
        return False, None, 0, q

    def close(self):
        void, winner, tau, q = self.verdict(self.readings)
        if winner is None or not self.outside():
            paid = [bet[2] for bet in self.bets]
        else:
            paid = self.pool.receives(winner, Fraction(tau, 10**6))
        for bet, amount in zip(self.bets, paid, strict=True):
            self.purse[bet[0]] += amount
        for who, a, b, bond in self.steps:
            self.purse[who] += bond + (0 if void else phi(q, b) - phi(q, a))
        if self.upheld:
            self.purse[self.upheld[0]] += self.upheld[1]
        self.state = "void" if void else "settled"
        event(f"closed: {self.state}, {winner}, rate {tau > 0}, steps {bool(self.steps)}")


class EpisodeMachine(RuleBasedStateMachine):
    """Any move at any moment: allowed exactly when the model says so, with the model's money."""

    @initialize(
        bets=st.lists(st.tuples(users, sides, st.integers(1, 20_000)), max_size=6),
        challenges=st.lists(
            st.tuples(users, bundles, st.booleans(), stakes, st.booleans()), max_size=3
        ),
        truth=st.one_of(readings, clear_cut, clear_cut),
    )
    def open(self, bets, challenges, truth):
        """Some have bet and challenged already; `truth` is what the judges tend to find."""
        self.play = Play(users=USERS, strict=False)
        self.play.open()
        self.book, self.truth = Book(), truth
        for who, side, amount in bets:
            self.bet(who, side, amount)
        if challenges:
            self.hurry(LOW)
        for who, bundle, up, amount, shown in challenges:
            self.commit(who, bundle, up, amount)
            if self.book.challenges:
                self.book.challenges[-1]["to_show"] = shown

    def agree(self, result, allowed):
        assert isinstance(result, Moved if allowed else Denied), (result, allowed, self.book.state)
        if allowed:
            assert self.play.episode.clock_ms == self.book.now
        return allowed

    @rule(ms=st.sampled_from([1, 300, 300, 1_000, 1_000, 2_500, TWO_DAYS, WEEK]))
    def wait(self, ms):
        self.book.now += ms

    @rule()
    def begin(self):
        allowed = self.book.state == "open" and self.book.now >= 1_000
        if self.agree(self.play.begin(at_ms=self.book.now), allowed):
            self.book.state = "challenge"

    @rule(who=users, side=sides, amount=st.integers(0, 20_000))
    def bet(self, who, side, amount):
        book = self.book
        allowed = book.state in ("open", "challenge") and book.now <= 10_000 and amount > 0
        if self.agree(self.play.bet(who, side, amount, at_ms=book.now), allowed):
            book.bet(who, side, amount)

    @rule(
        who=users,
        bundle=bundles,
        up=st.booleans(),
        amount=stakes,
    )
    def commit(self, who, bundle, up, amount):
        book = self.book
        # The direction is sealed in the commitment, so the other one is another commitment.
        made = [(c["who"], c["bundle"], c["up"]) for c in book.challenges]
        again = (who, bundle, up) in made
        allowed = book.state == "challenge" and book.now <= 10_000 and amount >= LEAST and not again
        result = self.play.commit(
            who,
            bundle,
            direction=Direction.UP if up else Direction.DOWN,
            amount=amount,
            at_ms=book.now,
            min_stake=LEAST,
        )
        if self.agree(result, allowed):
            book.challenges.append(
                {
                    "who": who,
                    "bundle": bundle,
                    "shown": None,
                    "up": up,
                    "stake": amount,
                    "at": book.now,
                    "fate": "hidden",
                }
            )
            book.purse[who] -= amount

    @rule(number=st.integers(0, 5))
    def reveal(self, number):
        book = self.book
        if number < len(book.challenges):
            c = book.challenges[number]
            allowed = book.state == "challenge" and 10_000 < book.now <= 11_000
            allowed = allowed and c["fate"] == "hidden"
            if self.agree(self.play.reveal(number, at_ms=book.now), allowed):
                c["shown"], c["fate"] = c["bundle"], "shown"

    @rule(honest=st.sampled_from([True, True, False]))
    def freeze(self, honest):
        book = self.book
        allowed = book.state == "challenge" and book.now >= 11_000 and honest
        seed = SEED if honest else bytes(32)
        if self.agree(self.play.freeze(seed=seed, at_ms=book.now), allowed):
            book.freeze()

    @rule(
        number=st.one_of(st.none(), st.integers(0, 5)),
        gate=st.sampled_from([GATE_PASSED, GATE_PASSED, GATE_PASSED_DOWN, GATE_FAILED]),
        belief=st.integers(5_000, 995_000),
    )
    def judge(self, number, gate, belief):
        book = self.book
        waiting = book.waiting()
        number = (waiting or [0])[0] if number is None else number
        allowed = book.state == "frozen" and bool(waiting) and number == waiting[0]
        if self.agree(self.play.judge(number, gate, belief, at_ms=book.now), allowed):
            passed = gate == (GATE_PASSED if book.challenges[number]["up"] else GATE_PASSED_DOWN)
            book.judge(number, passed, min(max(belief, LOW), HIGH))

    def options(self, reading):
        shift, p_up, margin, bad = reading
        return {"shift": shift, "p_up_ppm": None if bad else p_up, "margin": margin}

    @rule(reading=readings)
    def measure(self, reading):
        book = self.book
        allowed = book.state == "frozen" and not book.waiting()
        allowed = allowed and not (book.readings and book.now < book.frozen + WEEK)
        if self.agree(self.play.measure(at_ms=book.now, **self.options(reading)), allowed):
            book.readings.append(reading)
            if len(book.readings) == 2 or reading[3]:
                book.state, book.measured = "measured", book.now

    @rule()
    def conclude(self):
        book = self.book
        allowed = book.state == "frozen" and not book.waiting()
        allowed = allowed and not book.outside() and not book.steps
        if self.agree(self.play.conclude(at_ms=book.now), allowed):
            book.state, book.measured = "measured", book.now

    @rule(who=users, bond=st.sampled_from([999, 5_000, 50_000]))
    def dispute(self, who, bond):
        book = self.book
        least = max(1_000, -(-sum(bet[2] for bet in book.bets) // 100)) * 2**book.disputes
        allowed = (
            book.state in ("measured", "disputed")
            and book.pending is None
            and book.disputes < 2
            and book.now < book.measured + TWO_DAYS
            and bond >= least
        )
        if self.agree(self.play.dispute(who, bond=bond, at_ms=book.now), allowed):
            book.state, book.pending = "disputed", (who, bond)
            book.disputes += 1
            book.purse[who] -= bond

    @rule(reading=readings, confirmed=st.booleans())
    def rule_on_it(self, reading, confirmed):
        book = self.book
        result = self.play.rule(ground_confirmed=confirmed, at_ms=book.now, **self.options(reading))
        if self.agree(result, book.pending is not None):
            who, bond = book.pending
            before, after = book.verdict(book.readings), book.verdict([reading, reading])
            won = confirmed or before[:2] != after[:2]
            if book.last is not None:
                # The bond of the round before: to who overturned it, else to whom it belongs.
                to = who if won else book.upheld and book.upheld[0]
                if to:
                    book.purse[to] += book.last
            book.last, book.upheld = bond, (who, bond) if won else None
            if won:
                book.readings = [reading, reading]
            book.pending, book.measured = None, book.now

    @rule()
    def close(self):
        book = self.book
        allowed = book.state in ("measured", "disputed") and book.pending is None
        allowed = allowed and (book.disputes == 2 or book.now >= book.measured + TWO_DAYS)
        if self.agree(self.play.close(at_ms=book.now), allowed):
            book.close()

    @rule(belief=st.integers(LOW, HIGH))
    def hurry(self, belief):
        """Let the next thing happen that has to, at the moment it may."""
        book = self.book
        if book.state == "open":
            book.now = max(book.now, 1_000)
            self.begin()
        elif book.state == "challenge":
            book.now = max(book.now, 10_001)
            for number, c in enumerate(book.challenges):
                if c.get("to_show"):
                    self.reveal(number)
            book.now = max(book.now, 11_000)
            self.freeze(True)
        elif book.state == "frozen" and book.waiting():
            gate = GATE_PASSED if book.challenges[book.waiting()[0]]["up"] else GATE_PASSED_DOWN
            self.judge(None, gate, belief)
        elif book.state == "frozen":
            book.now += WEEK
            self.measure(self.truth)
        elif book.pending is not None:
            self.rule_on_it(self.truth, False)
        elif book.state in ("measured", "disputed"):
            book.now += TWO_DAYS
            self.close()

    @invariant()
    def the_money_is_where_the_model_says(self):
        play, book = self.play, self.book
        assert play.episode.state is State(book.state)
        for who in USERS:
            assert play.profit(who) == book.purse[who] - PURSE, who
        house = play.ledger.balance(play.house(AccountKind.HOUSE)) - 100 * PURSE
        assert house == book.purse["house"]
        assert play.episode.belief_ppm == book.path[-1]
        ended = book.state in ("settled", "void")
        assert play.pot(Escrow.STAKE) == (0 if ended else sum(bet[2] for bet in book.bets))
        assert sum(play.ledger.state.balances.values()) == 0

    def teardown(self):
        """Every episode is played to its end."""
        if hasattr(self, "truth"):
            while self.book.state not in ("settled", "void"):
                self.hurry(700_000)
            self.the_money_is_where_the_model_says()
            self.play.check()


TestEpisodeMachine = EpisodeMachine.TestCase
TestEpisodeMachine.settings = economy_settings()
