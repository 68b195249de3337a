"""What an exchange tells of what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heretix.economy.accounts import Account
    from heretix.economy.episode import State
    from heretix.economy.invariants import Breach
    from heretix.economy.market import Market, Position
    from heretix.economy.statement import Explained
    from heretix.economy.transfers import Transfer

__all__ = [
    "Entry",
    "EpisodeSummary",
    "HeldPosition",
    "Holding",
    "LedgerReport",
    "Source",
    "StoredMeasurement",
    "StoredStatement",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """An account and what it holds."""

    account: Account
    balance: int
    person: str | None
    """Whose account it is; None for the operator's and for pots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A transfer, and when it was written."""

    transfer: Transfer
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """What reading a whole ledger showed."""

    count: int
    last_hash: str
    breaches: tuple[Breach, ...]

    @property
    def ok(self) -> bool:
        """Everything that must hold does."""
        return not self.breaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a measurement came from: the executions it was made of, and the evidence shown."""

    executions: tuple[str, ...] = ()
    bundle_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """One line of a list of episodes."""

    id: str
    claim: str
    currency: str
    state: State
    market: Market | None
    """None before it opens."""
    position_count: int
    clock_ms: int
    close_ms: int | None
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPosition:
    """A bet, and the episode it is in."""

    episode: str
    claim: str
    state: State
    position: Position
    late: bool
    """It came after the effective close, so that it was given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStatement:
    """What one move paid, each line explained."""

    group: str
    move: str
    lines: tuple[Explained, ...]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMeasurement:
    """What an episode was told at one stage, and where that came from."""

    stage: str
    record: Mapping[str, Any]
    source: Source
    at_ms: int
