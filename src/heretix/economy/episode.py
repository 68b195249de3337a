"""An adjudication episode: its states, what it is made of, and which moves are refused.

A move takes the episode as it is and returns the episode as it would be, with the group of
transfers that must be written in the same transaction; or it says why not. Asking the ledger
first whether a key was used before is what makes a retry harmless.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from heretix.economy.canon import sha256_hex
from heretix.economy.judging import Direction
from heretix.economy.market import Market, Position, Side
from heretix.economy.settlement import Settlement, SettlementRecord
from heretix.economy.statement import Explained, Statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.economy.outcome import Measurement
    from heretix.economy.rewards import Step
    from heretix.economy.terms import Terms
    from heretix.economy.transfers import Group

__all__ = [
    "TRANSITIONS",
    "Challenge",
    "Denial",
    "Denied",
    "Dispute",
    "Episode",
    "Fate",
    "Ground",
    "Moved",
    "State",
    "draft_episode",
    "draft_id",
    "kept_positions",
    "may_become",
    "moved_to",
    "not_allowed",
    "settlement_record",
]


class State(StrEnum):
    """Where an episode stands."""

    DRAFT = "draft"
    OPEN = "open"
    CHALLENGE = "challenge"
    FROZEN = "frozen"
    MEASURED = "measured"
    DISPUTED = "disputed"
    SETTLED = "settled"
    VOID = "void"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.DRAFT: frozenset({State.OPEN}),
        State.OPEN: frozenset({State.CHALLENGE}),
        State.CHALLENGE: frozenset({State.FROZEN}),
        State.FROZEN: frozenset({State.MEASURED}),
        State.MEASURED: frozenset({State.DISPUTED, State.SETTLED, State.VOID}),
        State.DISPUTED: frozenset({State.SETTLED, State.VOID}),
        State.SETTLED: frozenset(),
        State.VOID: frozenset(),
    }
)
"""Every other transition is refused."""


class Denial(StrEnum):
    """Why a move was refused."""

    WRONG_STATE = "wrong_state"
    TERMS_CHANGED = "terms_changed"
    TOO_EARLY = "too_early"
    TOO_LATE = "too_late"
    WRONG_SEED = "wrong_seed"
    """Not the secret that was committed to at open."""
    BET_REFUSED = "bet_refused"
    STAKE_TOO_SMALL = "stake_too_small"
    COMMITMENT_TAKEN = "commitment_taken"
    UNKNOWN_CHALLENGE = "unknown_challenge"
    WRONG_REVEAL = "wrong_reveal"
    """What was revealed isn't what was committed to, or not by this account."""
    OUT_OF_ORDER = "out_of_order"
    """Challenges are judged in the order of their commitments, all before the measurements."""
    WRONG_JUDGES = "wrong_judges"
    NOT_VOID = "not_void"
    NO_ROUNDS_LEFT = "no_rounds_left"
    DISPUTE_PENDING = "dispute_pending"


class Fate(StrEnum):
    """What became of a challenge."""

    COMMITTED = "committed"
    REVEALED = "revealed"
    LATE = "late"
    """Committed after the effective close: given back whole."""
    ACCEPTED = "accepted"
    FAILED = "failed"


class Ground(StrEnum):
    """What a dispute can be about."""

    RECOMPUTATION_MISMATCH = "recomputation_mismatch"
    WRONG_LENS_OR_MODEL = "wrong_lens_or_model"
    ARTIFACT_FRAUD = "artifact_fraud"


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """Evidence on its way: first a commitment, then what it hid, then a ruling."""

    number: int
    account: str
    direction: Direction
    commitment: str
    stake: int
    at_ms: int
    positions_before: int
    """How many bets had been taken when it was committed."""
    bundle_sha256: str | None = None
    nonce: bytes | None = None
    """What hid the bundle: kept once it is revealed, so that anyone can check the commitment."""
    fate: Fate = Fate.COMMITTED

    @property
    def incumbent(self) -> Side:
        """The side it argues against."""
        return Side.ORTHODOX if self.direction is Direction.UP else Side.HERETIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """A claim that the measurement is wrong, with money behind it."""

    round: int
    account: str
    ground: Ground
    bond: int
    at_ms: int
    upheld: bool | None = None
    """None while it is pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One episode. Positions are kept beside it: there may be many, and a bet needs none."""

    id: str
    state: State
    terms: Terms
    terms_hash: str | None = None
    """Written at open."""
    market: Market | None = None
    position_count: int = 0
    clock_ms: int = 0
    """The latest moment that anything happened; time never runs backwards in an episode."""
    close_ms: int | None = None
    """The effective close, once it is drawn."""
    frozen_ms: int | None = None
    seed: bytes | None = None
    judges: tuple[str, ...] = ()
    challenges: tuple[Challenge, ...] = ()
    steps: tuple[Step, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    measured_ms: int | None = None
    disputes: tuple[Dispute, ...] = ()

    @property
    def belief_ppm(self) -> int:
        """Where the credited path stands."""
        return self.steps[-1].c_to_ppm if self.steps else self.terms.c0_ppm

    @property
    def terms_intact(self) -> bool:
        """Whether the terms are those that were hashed at open."""
        return self.terms_hash == self.terms.hash()

    def statement(self, group: str, *, mark: str | None = None) -> Statement:
        """An empty statement for a group of this episode."""
        return Statement(group, episode=self.id, currency=self.terms.currency, mark=mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An episode after a move, and what must be written with it."""

    episode: Episode
    group: Group | None = None
    lines: tuple[Explained, ...] = ()
    positions: tuple[Position, ...] = ()
    """Positions that the move added."""
    settlement: Settlement | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """A move that was refused; nothing changed."""

    denial: Denial
    detail: str


def may_become(state: State, target: State) -> bool:
    """Whether an episode can pass from one state to another."""
    return target in TRANSITIONS[state]


def moved_to(episode: Episode, target: State) -> Episode:
    """The episode in its next state. Callers have checked that it may get there."""
    assert may_become(episode.state, target), f"{episode.state} -> {target}"
    return replace(episode, state=target)


def not_allowed(episode: Episode, *states: State) -> Denied | None:
    """A refusal unless the episode is in one of these states, with the terms it opened with."""
    if episode.state not in states:
        wanted = " or ".join(state.value for state in states)
        return Denied(
            Denial.WRONG_STATE, f"the episode must be {wanted}, it is {episode.state.value}"
        )
    if episode.state is not State.DRAFT and not episode.terms_intact:
        return Denied(Denial.TERMS_CHANGED, "the terms aren't those that were hashed at open")
    return None


def draft_episode(episode_id: str, terms: Terms) -> Episode:
    """An episode on paper: no money yet, and the terms may still be exchanged for others."""
    return Episode(id=episode_id, state=State.DRAFT, terms=terms)


def draft_id(key: str) -> str:
    """The id of the episode that is drafted under a key: one key, one episode."""
    return f"ep-{sha256_hex(key.encode())[:12]}"


def kept_positions(episode: Episode, positions: Sequence[Position]) -> tuple[Position, ...]:
    """The stakes that count: all of them before the close is drawn, then those up to it."""
    close = episode.close_ms
    return tuple(p for p in positions if close is None or p.at_ms <= close)


def settlement_record(episode: Episode, positions: Sequence[Position]) -> SettlementRecord:
    """What the settlement of this episode depends on."""
    assert episode.terms_hash is not None
    return SettlementRecord(
        episode=episode.id,
        terms=episode.terms,
        terms_hash=episode.terms_hash,
        positions=kept_positions(episode, positions),
        steps=episode.steps,
        measurements=episode.measurements,
    )
