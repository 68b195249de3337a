"""An adjudication episode: terms, parameters, states, and which moves are refused."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeAlias

from heretix.core.canonical import Record, digest, encode, require_sha256, sha256_hex
from heretix.core.errors import ConfigError
from heretix.economy.episode.settlement import MIN_JUDGES, Measurement, Outcome, Settlement, decide
from heretix.economy.exploration import CreditRules, StakeRules
from heretix.economy.ledger import Reason, Statement, require_ppm, require_whole
from heretix.economy.market import FEE, TAU_MAX, Market, Position
from heretix.economy.rewards import BELIEF_MAX, BELIEF_MIN, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.economy.ledger import Group

HOUR_MS = 3_600_000
VERSION: Final = "economy_v2"
"""The rules that this code knows. An episode keeps the version that it opened with."""
_PLANTED: Final = frozenset({"sim", "mock"})
"""Providers whose models are made up: nobody is behind several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules(Record):
    """Certainty that the difference by evidence must have."""

    direction_ppm: int = 975_000
    min_slots: int = 16
    max_width_ppm: int = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(Record):
    """One version of the economy's numbers, fixed when an episode opens. A changed number is
    another version."""

    version: str = VERSION
    tau_max_ppm: int = TAU_MAX
    fee_ppm: int = FEE
    platform_ppm: int = 500_000
    """The platform's share of the fees; the fund for durable updates has the rest."""
    challenge_fee_ppm: int = 300_000
    """Share of the forfeit of a failed challenge that operations keep; the fund has the rest."""
    reward_scale: int = 100_000
    """B: minor units per nat of a durable update."""
    win_ppm: int = 975_000
    """Certainty of the direction that both measurements need for a side to win."""
    judges: int = 5
    quorum: int = MIN_JUDGES
    min_compliance_ppm: int = 900_000
    durability_ms: int = 7 * 24 * HOUR_MS
    dispute_window_ms: int = 48 * HOUR_MS
    dispute_bond_ppm: int = 10_000
    """The bond of a dispute, as a share of all stakes, when that is more than a base stake."""
    dispute_rounds: int = 2
    gate: GateRules = field(default_factory=GateRules)
    stakes: StakeRules = field(default_factory=StakeRules)
    credits: CreditRules = field(default_factory=CreditRules)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ConfigError(
                f"`version` must be {VERSION!r}, the rules of this Heretix, got {self.version!r}; "
                "use the Heretix that opened the episode"
            )
        require_ppm("tau_max_ppm", self.tau_max_ppm, most=TAU_MAX)
        for name in ("fee_ppm", "platform_ppm", "challenge_fee_ppm", "min_compliance_ppm"):
            require_ppm(name, getattr(self, name))
        # Below one half, both sides could win at once.
        require_ppm("win_ppm", self.win_ppm, least=500_001)
        require_ppm("dispute_bond_ppm", self.dispute_bond_ppm)
        require_whole("judges", self.judges, least=MIN_JUDGES)
        require_whole("quorum", self.quorum, least=MIN_JUDGES, most=self.judges)
        for name in ("reward_scale", "durability_ms", "dispute_window_ms", "dispute_rounds"):
            require_whole(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Record):
    """Terms: what is measured, by whom, when, for how much; fixed and hashed at open."""

    claim: str
    currency: str
    lens: str
    bank: str
    bank_sha256: str
    models: tuple[str, ...]
    """The models of the lens: they take part, so they can't judge."""
    judge_pool: tuple[str, ...]
    K: int
    R: int
    T: int
    B: int
    """Replicas of the bootstrap; the scale of rewards is a parameter."""
    c0_ppm: int
    seed_stake: int
    seed_heretic_ppm: int
    """The base rate of Heretic wins, at which that is split."""
    seed_commitment: str
    """Hash of the secret that the close and the judges are drawn from."""
    challenge_from_ms: int
    close_from_ms: int
    close_until_ms: int
    """The effective close is drawn from here to there; stakes are taken until the end."""
    freeze_at_ms: int
    """The last moment for a reveal."""
    parameters: Parameters
    paid: tuple[str, ...] = ()
    """Bundles that earlier episodes of this claim paid for: they stand on the side before."""

    def __post_init__(self) -> None:
        for bundle in self.paid:
            require_sha256("paid", bundle)
        require_sha256("bank_sha256", self.bank_sha256)
        require_sha256("seed_commitment", self.seed_commitment)
        require_ppm("c0_ppm", self.c0_ppm, least=BELIEF_MIN, most=BELIEF_MAX)
        for name in ("K", "R", "T", "B", "seed_stake"):
            require_whole(name, getattr(self, name), least=1)
        names = ("challenge_from_ms", "close_from_ms", "close_until_ms", "freeze_at_ms")
        times = tuple(getattr(self, name) for name in names)
        if any(a > b for a, b in itertools.pairwise(times)):
            raise ConfigError(
                "`challenge_from_ms`, `close_from_ms`, `close_until_ms` and `freeze_at_ms` must "
                f"follow each other in time, got {times}"
            )
        if len(set(self.judge_pool)) != len(self.judge_pool):
            raise ConfigError("`judge_pool` must name each model once, got one twice")
        # The panel of a dispute is the larger one; but a small one can have too many of one house.
        for count in (2 * self.parameters.judges + 1, self.parameters.judges):
            houses = Counter(provider_of(model) for model in self.hold_outs)
            if sum(min(held, provider_limit(count)) for held in houses.values()) < count:
                raise ConfigError(
                    f"`judge_pool` must hold {count} models that take no part in the lens, at most "
                    f"{provider_limit(count)} counted for each provider, got {len(self.hold_outs)} "
                    f"of {', '.join(sorted(houses)) or 'none'}; add models to draw from"
                )

    @property
    def hold_outs(self) -> tuple[str, ...]:
        """The models that may judge, in one order whatever order they were named in."""
        return tuple(sorted(set(self.judge_pool) - set(self.models)))

    @lru_cache(maxsize=1024)  # noqa: B019 - every bet asks; terms are compared by value
    def hash(self) -> str:
        """Terms that are written at open and checked at every move from then on."""
        return digest(encode(self))


# A move takes the episode as it is and returns the episode as it would be, with the group of
# transfers that must be written in the same transaction; or it says why not. Asking the ledger
# first whether a key was used before is what makes a retry harmless.


def provider_of(model: str) -> str:
    """The house that a model comes from; one that is made up is a house of its own."""
    provider, colon, _ = model.partition(":")
    return provider if colon and provider not in _PLANTED else model


def provider_limit(count: int) -> int:
    """The most judges of one provider among so many: never a majority."""
    return (count - 1) // 2


class State(StrEnum):
    """State of an episode."""

    DRAFT = "draft"
    OPEN = "open"
    CHALLENGE = "challenge"
    FROZEN = "frozen"
    MEASURED = "measured"
    DISPUTED = "disputed"
    SETTLED = "settled"
    VOID = "void"


ENDED: Final = frozenset({State.SETTLED, State.VOID})
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.DRAFT: frozenset({State.OPEN}),
    State.OPEN: frozenset({State.CHALLENGE}),
    State.CHALLENGE: frozenset({State.FROZEN}),
    State.FROZEN: frozenset({State.MEASURED}),
    State.MEASURED: frozenset({State.DISPUTED, State.SETTLED, State.VOID}),
    State.DISPUTED: frozenset({State.SETTLED, State.VOID}),
    State.SETTLED: frozenset(),
    State.VOID: frozenset(),
}
"""Every other transition is refused."""


class Denial(StrEnum):
    """Reason why a move was refused."""

    WRONG_STATE = "wrong_state"
    TERMS_CHANGED = "terms_changed"
    TOO_EARLY = "too_early"
    TOO_LATE = "too_late"
    WRONG_SEED = "wrong_seed"
    """Not the secret that was committed to at open."""
    BET_REFUSED = "bet_refused"
    STAKE_TOO_SMALL = "stake_too_small"
    CLAIM_TAKEN = "claim_taken"
    """Another episode of the same claim is open."""
    TERMS_STALE = "terms_stale"
    """Evidence was paid for since the terms were drafted."""
    COMMITMENT_TAKEN = "commitment_taken"
    UNKNOWN_CHALLENGE = "unknown_challenge"
    WRONG_REVEAL = "wrong_reveal"
    """A reveal of something that wasn't committed to, or not by this account."""
    OUT_OF_ORDER = "out_of_order"
    """Challenges are judged in the order of their commitments, all before the measurements."""
    WRONG_JUDGES = "wrong_judges"
    NOT_VOID = "not_void"
    NO_ROUNDS_LEFT = "no_rounds_left"
    DISPUTE_PENDING = "dispute_pending"


class Direction(StrEnum):
    """Place where evidence is said to move a belief."""

    UP = "up"
    DOWN = "down"


class Fate(StrEnum):
    """Fate of a challenge."""

    COMMITTED = "committed"
    REVEALED = "revealed"
    LATE = "late"
    """Committed after the effective close: given back whole."""
    ACCEPTED = "accepted"
    SHORT = "short"
    """It passed, and its stake doesn't cover the move as a bond: given back whole."""
    FAILED = "failed"


class Ground(StrEnum):
    """Grounds of a dispute."""

    RECOMPUTATION_MISMATCH = "recomputation_mismatch"
    WRONG_LENS_OR_MODEL = "wrong_lens_or_model"
    ARTIFACT_FRAUD = "artifact_fraud"


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge(Record):
    """Evidence on its way: first a commitment, then what it hid, then a ruling."""

    number: int
    account: str
    commitment: str
    stake: int
    least: int
    """S_min when it was made: what is forfeited if it fails."""
    at_ms: int
    direction: Direction | None = None
    """Sealed like the bundle, until the reveal."""
    bundle_sha256: str | None = None
    nonce: bytes | None = None
    """Nonce that hid the bundle, kept once revealed, so that anyone can check the commitment."""
    fate: Fate = Fate.COMMITTED

    @property
    def is_judged(self) -> bool:
        return self.fate not in {Fate.COMMITTED, Fate.REVEALED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute(Record):
    """A claim that the measurement is wrong, with money behind it."""

    round: int
    account: str
    ground: Ground
    bond: int
    at_ms: int
    upheld: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode(Record):
    """One episode. Positions are kept beside it: there may be many, and a bet needs none."""

    id: str
    state: State
    terms: Terms
    terms_hash: str | None = None
    market: Market | None = None
    position_count: int = 0
    clock_ms: int = 0
    """The latest moment that anything happened; time never runs backwards in an episode."""
    close_ms: int | None = None
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
        """End of the credited path."""
        return self.steps[-1].c_to_ppm if self.steps else self.terms.c0_ppm

    @property
    def terms_intact(self) -> bool:
        return self.terms_hash == self.terms.hash()

    def select_positions(self, positions: Sequence[Position]) -> tuple[Position, ...]:
        """The stakes that count: all of them before the close is drawn, then those up to it."""
        close = self.close_ms
        return tuple(p for p in positions if close is None or p.at_ms <= close)

    def decide(
        self, positions: Sequence[Position], measurements: Sequence[Measurement] | None = None
    ) -> Outcome:
        """Outcome of the episode by these measurements, or by those it has."""
        return decide(
            self.terms.c0_ppm,
            self.measurements if measurements is None else measurements,
            positions=self.select_positions(positions),
            parameters=self.terms.parameters,
        )

    def statement(self, group: str, *, mark: str | None = None) -> Statement:
        """An empty statement for a group of this episode."""
        return Statement(group, episode=self.id, currency=self.terms.currency, mark=mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An episode after a move, and what must be written with it."""

    episode: Episode
    group: Group | None = None
    positions: tuple[Position, ...] = ()
    settlement: Settlement | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """A move that was refused; nothing changed."""

    denial: Denial
    reason: Reason


_P = ParamSpec("_P")
Rule: TypeAlias = Callable[Concatenate[Episode, int, _P], Moved | Denied]
"""A rule takes an episode and the moment in milliseconds, and what else its move needs."""


def move_to(episode: Episode, target: State) -> Episode:
    """The episode in its next state. Callers have checked that it may get there."""
    assert target in TRANSITIONS[episode.state], f"{episode.state} -> {target}"
    return replace(episode, state=target)


def find_denial(episode: Episode, *states: State) -> Denied | None:
    """A refusal unless the episode is in one of these states, with the terms it opened with."""
    if episode.state not in states:
        wanted = " or ".join(state.value for state in states)
        return deny(Denial.WRONG_STATE, wanted=wanted, state=episode.state.value)
    if episode.state is not State.DRAFT and not episode.terms_intact:
        return deny(Denial.TERMS_CHANGED)
    return None


def deny(denial: Denial, code: str | None = None, **parameters: int | str) -> Denied:
    """Refuse a move; the reason has the denial's own code unless there are several to it."""
    return Denied(denial, Reason(code or denial.value, parameters))


def draft_episode(episode_id: str, terms: Terms) -> Episode:
    """An episode on paper: no money yet, and the terms may still be exchanged for others."""
    return Episode(id=episode_id, state=State.DRAFT, terms=terms)


def draft_id(key: str) -> str:
    """The id of the episode that is drafted under a key: one key, one episode."""
    return f"ep-{sha256_hex(key.encode())[:12]}"
