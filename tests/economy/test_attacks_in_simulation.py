"""Each attack that a player can make, made in whole episodes: it happens, and it doesn't pay."""

from __future__ import annotations

from collections import Counter

import pytest
from playing import MACHINE_TIMEOUT_S, PROFILE

from heretix.economy.episode.state import Fate
from heretix.economy.exploration import failure_rate
from heretix.economy.ledger import Code
from heretix.economy.simulation.agents import ATTACKERS, VoidEngineer
from heretix.economy.simulation.play import Setup, Simulation, Source, Verdict, simulate
from heretix.economy.simulation.world import Nature

EPISODES = 40


class Attack:
    """One attack alone among explorers and noise traders, and what it did."""

    def __init__(self, strategy, episodes=EPISODES):
        self.simulation = Simulation(Setup(agents={"honest": 4, "noise": 4, strategy: 1}))
        self.tables = [self.simulation.play_next() for _ in range(episodes)]
        (self.agent,) = self.simulation.agents[strategy]
        self.accounts = set(self.agent.accounts)
        self.line = self.simulation.report().standings[-1]

    def codes(self):
        """How often money moved to or from the attacker, by why."""
        return Counter(
            transfer.code
            for transfer in self.simulation.books.ledger.transfers
            if {transfer.debit, transfer.credit} & self.accounts
        )

    def challenges(self):
        """Its challenges, by episode."""
        return [[c for c in t.challenges if c.account in self.accounts] for t in self.tables]

    def fates(self):
        """What became of them."""
        return Counter(c.fate for found in self.challenges() for c in found)


@pytest.fixture(scope="module")
def attack():
    """Attacks that were played, once each."""
    played = {}

    def play(strategy):
        if strategy not in played:
            played[strategy] = Attack(strategy)
        return played[strategy]

    return play


@pytest.mark.parametrize("strategy", [agent.strategy for agent in ATTACKERS])
def test_no_attack_gains_alone_among_honest_players(attack, strategy):
    """Beyond chance, at 99%."""
    assert attack(strategy).line.verdict is not Verdict.GAINS


def test_attack_wash_trading_in_simulation(attack):
    """It stands on both sides of every market, and pays the fees for it."""
    played = attack("wash")
    assert played.codes()[Code.STAKE] == 2 * EPISODES
    assert played.line.sources[Source.MARKET] < 0


def test_attack_whipsaw_in_simulation(attack):
    """Both accounts move the path, up and down again, and the moves pay for nothing."""
    played = attack("whipsaw")
    swung = [c for c in played.challenges() if len(c) >= 2]
    assert len(swung) > 5
    assert all({x.direction.value for x in c} == {"up", "down"} for c in swung)
    assert played.fates()[Fate.ACCEPTED] > 10
    assert played.line.total < 0


def test_attack_sybil_splitting_in_simulation(attack):
    """Five accounts bet and challenge as one, and come to less than nothing together."""
    played = attack("sybil")
    makers = [{c.account for c in found} for found in played.challenges()]
    assert max(map(len, makers)) >= 3
    assert played.codes()[Code.STAKE] == 5 * EPISODES
    assert played.line.verdict is Verdict.LOSES


def test_attack_churn_under_limited_liability_in_simulation(attack):
    """A new account for every gamble: one that holds little can't bond a move, nor half of one."""
    played = attack("churn")
    assert len(played.accounts) == EPISODES
    assert not played.fates()
    assert played.line.total < 0


def test_attack_whitewashing_in_simulation(attack):
    """Fresh accounts begin at the worst record there is, so that leaving one gains nothing."""
    played = attack("churn")
    books, rules = played.simulation.books, Setup().parameters.stakes
    table = played.tables[-1]
    assert all(table.least_stake(account) >= 2 * rules.base for account in played.accounts)
    assert all(len(books.attempts[account]) <= 1 for account in played.accounts)
    assert failure_rate([], rules) == 1_000_000


def test_attack_sniping_at_the_freeze_in_simulation(attack):
    """Most of what it stakes comes after the drawn close, and is given back whole."""
    played = attack("snipe")
    codes = played.codes()
    assert codes[Code.STAKE] > 10
    assert codes[Code.LATE_STAKE_REFUND] > 0.8 * codes[Code.STAKE]
    assert played.line.sources[Source.EVIDENCE] == 0


def test_attack_noise_shopping_in_simulation(attack):
    """It asks every judge about its best noise, which costs more than it can bring."""
    played = Attack("shop", episodes=140)
    assert played.codes()[Code.BURN] > 30 * 140
    assert played.fates()[Fate.ACCEPTED] > 5
    assert played.line.verdict is Verdict.LOSES


def test_attack_hold_out_offset_farming_in_simulation(attack):
    """It bonds the way to where judges lean, and the lean isn't counted."""
    played = attack("offset")
    assert played.fates()[Fate.ACCEPTED] > 5
    assert played.line.sources[Source.EVIDENCE] < 0


def test_attack_judge_collusion_in_simulation(attack):
    """Its judges were drawn and lied, and the median hardly heard them."""
    played = attack("collude")
    lies = Counter(
        sum(abs(r.after - r.before) == 6 for r in table.episode.measurements[0].readings)
        for table in played.tables
        if table.episode.measurements
    )
    assert lies[1] > 0
    assert lies[2] > 0
    assert max(lies) == 2
    assert played.line.total < 0


def test_attack_prompt_injection_in_evidence_in_simulation(attack):
    """An order that commands the lens passes the gate; the judges that don't obey decide."""
    played = attack("inject")
    assert played.fates()[Fate.ACCEPTED] > 5
    assert played.line.sources[Source.EVIDENCE] < 0


def test_attack_stolen_evidence_in_simulation(attack):
    """Nothing is shown while anything can be committed, so there is nothing to steal."""
    played = attack("steal")
    assert any(table.shown for table in played.tables)
    assert not played.fates()
    assert played.line.total == 0


def test_attack_self_challenge_for_yield_in_simulation(attack):
    """Nobody is paid for holding what others failed to move."""
    played = attack("yield")
    assert played.fates()[Fate.FAILED] > 2 * EPISODES
    made = [c for found in played.challenges() for c in found]
    forfeits = sum(c.least for c in made if c.fate is Fate.FAILED)
    # The others passed by chance, on a stake that covers no move.
    assert {c.fate for c in made} <= {Fate.FAILED, Fate.SHORT}
    assert -played.line.sources[Source.EVIDENCE] == forfeits
    assert played.line.verdict is Verdict.LOSES


def test_attack_same_evidence_twice_in_simulation():
    """What the earlier episode of a claim paid for is on both sides now, word by word or not."""
    played = Attack("repeat", episodes=120)
    fates = played.fates()
    assert fates[Fate.FAILED] > 5
    assert fates[Fate.FAILED] > 5 * fates[Fate.ACCEPTED]
    assert played.line.verdict is not Verdict.GAINS


def test_attack_any_text_in_simulation():
    """Where text as such moves every model, the placebo arm lets none of it pass."""
    setup = Setup(agents={"honest": 4, "noise": 4, "filler": 1}, nature=Nature(any_text=0.5))
    simulation = Simulation(setup)
    tables = [simulation.play_next() for _ in range(EPISODES)]
    (agent,) = simulation.agents["filler"]
    fates = Counter(c.fate for t in tables for c in t.challenges if c.account in agent.accounts)
    assert fates[Fate.FAILED] > EPISODES // 2
    assert fates[Fate.ACCEPTED] <= 2
    assert simulation.report().standings[-1].verdict is Verdict.LOSES


def test_attack_engineered_void_in_simulation(monkeypatch):
    """It disputes when it loses, and pays for panels that agree."""
    # As much as in version 1, so that it loses more than the bond soon.
    monkeypatch.setattr(VoidEngineer, "stake", 40_000)
    played = Attack("void")
    assert played.codes()[Code.DISPUTE] > 0
    assert played.line.sources[Source.DISPUTES] < 0


def test_attack_redundant_evidence_flood_in_simulation(attack):
    """Echoes are charged one by one."""
    played = attack("flood")
    fates = played.fates()
    assert fates[Fate.FAILED] > 2 * fates[Fate.ACCEPTED] > 0
    assert played.line.verdict is Verdict.LOSES


def test_a_rumour_that_fades_costs_its_bond():
    """q is the measurement nearer to c₀, so what convinced judges at the first one alone is lost.

    Judges are shown the same documents at both, so today nothing can fade between them.
    """
    played = Attack("rumour", episodes=150)
    settled = [t for t in played.tables if t.outcome.q_ppm is not None]
    held = sum(t.outcome.winner is None for t in settled)
    assert held > 0.5 * len(settled)
    assert played.line.sources[Source.EVIDENCE] < 0


@pytest.mark.skipif(PROFILE != "long", reason="HERETIX_HYPOTHESIS=long plays 2,000 episodes each")
@pytest.mark.timeout(MACHINE_TIMEOUT_S)
@pytest.mark.parametrize(
    "strategy",
    [agent.strategy for agent in ATTACKERS],
)
def test_no_attack_gains_in_two_thousand_episodes_of_its_own(strategy):
    """The same as with turns, with all the episodes for one attack."""
    report = simulate(2_000, Setup(agents={"honest": 4, "noise": 4, strategy: 1}))
    assert report.standings[0].verdict is Verdict.GAINS
    assert report.standings[-1].verdict is not Verdict.GAINS
