"""A real exchange on a real store, with a held clock and chances that can be foreseen."""

from __future__ import annotations

import hashlib
import itertools

from playing import GATE_PASSED, PURSE, make_measurement, make_terms, sha

from heretix.core.clock import ManualClock
from heretix.economy.episode.challenges import BroughtEvidence, evidence_commitment
from heretix.economy.episode.state import Direction
from heretix.economy.exchange import Exchange, Source
from heretix.economy.market import Side
from heretix.store import Store, schema

H, O = Side.HERETIC, Side.ORTHODOX  # noqa: E741
PEOPLE = ("ann", "bob", "cat", "dan")


def foreseen():
    """Bytes that look drawn, the same ones every time."""
    numbers = itertools.count()
    return lambda size: hashlib.sha256(f"draw {next(numbers)}".encode()).digest()[:size]


class Table:
    """An exchange with people at it, and one episode to play.

    Times are those of `playing.make_terms`: challenges from 1,000 ms, the close between 8,000 and
    10,000, the freeze at 11,000.
    """

    def __init__(self, store: Store, **terms) -> None:
        self.store = store
        self.clock = ManualClock()
        self.exchange = Exchange(store, clock=self.clock, entropy=foreseen())
        self.exchange.ensure_house()
        for name in PEOPLE:
            self.exchange.join(name, purse=PURSE)
        source = Source(executions=("exec-c0",))
        self.id = self.exchange.draft(make_terms(**terms), c0=source)
        self._keys = itertools.count()
        self._to_reveal: list[tuple] = []

    @property
    def episode(self):
        return self.exchange.episode(self.id)

    def key(self) -> str:
        return f"key-{next(self._keys)}"

    def at(self, at_ms: int) -> Exchange:
        """The exchange at a moment."""
        self.clock.hold(at_ms)
        return self.exchange

    def start(self) -> None:
        """Open, and let challenges begin."""
        self.exchange.open(self.id)
        self.at(1_000).begin_challenge(self.id)

    def bet(self, name: str, side: Side, amount: int, *, key: str | None = None):
        key = key or self.key()
        return self.exchange.stake(self.id, name, side, amount, min_shares=0, key=key)

    def challenge(self, name: str, bundle: str, *, amount: int = 60_000, direction=Direction.UP):
        """Commit now, and reveal before the freeze, when bets are closed."""
        nonce, account = nonce_of(name, bundle), f"user:{name}:PLAY"
        committed = self.exchange.commit(
            self.id,
            name,
            commitment=evidence_commitment(nonce, sha(bundle), direction, account),
            amount=amount,
            key=self.key(),
        )
        self._to_reveal.append((committed.number, name, nonce, sha(bundle), direction))
        return committed

    def reveal(self, number: int, name: str, nonce: bytes, bundle: str, direction=Direction.UP):
        """Show what a commitment hid."""
        hidden = {"nonce": nonce, "bundle_sha256": bundle, "direction": direction}
        return self.exchange.reveal(self.id, number, name, **hidden)

    def freeze(self):
        while self._to_reveal:
            self.at(max(10_500, self.clock.now_ms()))
            self.reveal(*self._to_reveal.pop(0))
        return self.at(11_000).freeze(self.id)

    def judge(self, number: int, gate=GATE_PASSED, belief_ppm: int = 600_000):
        evidence = None if gate is None else BroughtEvidence(gate=gate, belief_ppm=belief_ppm)
        source = Source(executions=("exec-gate",), bundle_id=f"bundle-{number}")
        return self.exchange.judge_challenge(self.id, number, evidence, source=source)

    def measure(self, stage: str, **changes):
        episode = self.episode
        if stage == "second":
            self.at(episode.frozen_ms + episode.terms.parameters.durability_ms)
        measurement = make_measurement(episode.judges, **changes)
        source = Source(executions=(f"exec-{stage}",))
        return self.exchange.measure(self.id, measurement, stage=stage, source=source)

    def wait_out(self) -> Exchange:
        """Let the time for disputes pass."""
        episode = self.episode
        return self.at(episode.measured_ms + episode.terms.parameters.dispute_window_ms)

    def ready(self) -> None:
        """Everything up to the settlement: bets, late bets, challenges of each kind."""
        self.start()
        self.at(2_000)
        self.bet("ann", H, 5_000)
        self.bet("bob", O, 3_000)
        self.challenge("cat", "evidence")
        self.challenge("dan", "noise", direction=Direction.DOWN)
        self.at(10_000)
        self.bet("dan", O, 700)
        self.freeze()
        self.judge(0)
        self.judge(1)
        self.measure("first")
        self.measure("second")
        self.wait_out()

    def ready_to_dispute(self) -> None:
        """Measured, and the time for disputes still runs."""
        self.start()
        self.at(2_000)
        self.bet("ann", H, 5_000)
        self.bet("bob", O, 3_000)
        self.freeze()
        self.measure("first")
        self.measure("second")

    def close(self):
        return self.exchange.close(self.id)


def nonce_of(name: str, bundle: str) -> bytes:
    """The nonce that a person hides a bundle with."""
    return hashlib.sha256(f"{name}/{bundle}".encode()).digest()


TABLES = (
    "accounts",
    "chains",
    "challenges",
    "episode_measurements",
    "episodes",
    "events",
    "exploration_grants",
    "positions",
    "reputation_events",
    "statements",
    "transfers",
)


def everything(store: Store) -> dict[str, list[tuple]]:
    """Every row of the economy's tables."""
    with store.reading() as connection:
        return {
            name: sorted(map(tuple, connection.execute(getattr(schema, name).select())), key=repr)
            for name in TABLES
        }
