"""The docket: episodes as rows of the store, and back.

What a bet changes stands in columns; the rest is one record that a bet neither reads nor writes.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from heretix.economy.canon import canonical_json, sha256_hex
from heretix.economy.codec import decode, encode
from heretix.economy.episode import Episode, State
from heretix.economy.ledger import Status
from heretix.economy.market import Market, Position, Side
from heretix.errors import RecordError, RefusedError
from heretix.store import episodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, RowMapping

__all__ = ["ENDED", "Docket", "Filed", "market_in", "position_in", "unknown_episode"]

ENDED: Final = frozenset({State.SETTLED, State.VOID})
_IN_COLUMNS: Final = ("market", "position_count", "clock_ms")
_IN_RECORD: Final = tuple(
    field.name for field in dataclasses.fields(Episode) if field.name not in _IN_COLUMNS
)
_KEPT: Final = 256
"""Decoded records to remember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """An episode, and what only the store knows of it."""

    episode: Episode
    secret: bytes = field(repr=False)
    """The seed, which nobody is shown before the freeze."""

    @property
    def is_open(self) -> bool:
        """Whether its pots may hold money."""
        return self.episode.state not in ENDED


class Docket:
    """Reads and writes episodes, on whatever connection it is given."""

    def __init__(self) -> None:
        # By the hash of the record, so what is remembered can't be out of date.
        self._decoded: dict[str, Episode] = {}

    def file(self, connection: Connection, filed: Filed, *, at_ms: int) -> None:
        """Write down a new episode."""
        terms = filed.episode.terms
        # Clocks can be held anywhere, and yet the newest episode is the one written last.
        newest = episodes.newest_ms(connection)
        row = {
            "episode_id": filed.episode.id,
            "claim": terms.claim,
            "currency": terms.currency,
            "secret": filed.secret.hex(),
            "created_ms": at_ms if newest is None else max(at_ms, newest + 1),
            "updated_ms": at_ms,
        }
        episodes.insert_episode(connection, row | _columns(filed.episode) | _record(filed.episode))

    def load(self, connection: Connection, episode_id: str) -> Filed:
        """An episode as it stands; one that doesn't exist is refused."""
        row = episodes.episode_row(connection, episode_id)
        if row is None:
            raise unknown_episode(episode_id)
        episode = self._decoded.get(row["record_sha256"])
        if episode is None:
            text = episodes.record_json(connection, episode_id)
            if sha256_hex(text.encode()) != row["record_sha256"]:
                raise RecordError(
                    f"`{episode_id}` must have the record that was written last, and doesn't: it "
                    "was changed from outside; restore a copy of the store"
                )
            data = json.loads(text)
            blank = {"market": None, "position_count": 0, "clock_ms": 0}
            episode = decode(Episode, data | blank, f"episode {episode_id}")
            if len(self._decoded) >= _KEPT:
                self._decoded.clear()
            self._decoded[row["record_sha256"]] = episode
        current = replace(
            episode,
            market=market_in(row),
            position_count=row["position_count"],
            clock_ms=row["clock_ms"],
        )
        return Filed(episode=current, secret=bytes.fromhex(row["secret"]))

    def update(
        self, connection: Connection, before: Episode, after: Episode, *, at_ms: int
    ) -> None:
        """Write down what a move made of an episode."""
        values = _columns(after) | {"updated_ms": at_ms}
        # A rule copies what it doesn't change, so the very same objects mean the same record.
        if any(getattr(before, name) is not getattr(after, name) for name in _IN_RECORD):
            values |= _record(after)
        episodes.update_episode(connection, after.id, values)

    def positions(self, connection: Connection, episode_id: str) -> list[Position]:
        """An episode's bets, in their order."""
        return [position_in(row) for row in episodes.positions_of(connection, episode_id)]

    def add_positions(
        self, connection: Connection, episode_id: str, added: Sequence[Position]
    ) -> None:
        """Keep bets."""
        rows = [encode(position) | {"episode_id": episode_id} for position in added]
        episodes.insert_positions(connection, rows)


def unknown_episode(episode_id: str) -> RefusedError:
    """The answer to a question about an episode that doesn't exist."""
    return RefusedError(
        f"`{episode_id}` must be the id of an episode, and there is none of that id; "
        "`heretix episode list` shows them",
        status=Status.UNKNOWN_EPISODE.value,
    )


def market_in(row: RowMapping) -> Market | None:
    """The market that an episode's row holds; None before it opens."""
    if row["market_money"] is None:
        return None
    return Market(
        money=row["market_money"],
        heretic=row["market_heretic"],
        orthodox=row["market_orthodox"],
    )


def position_in(row: RowMapping) -> Position:
    """The bet that a row holds."""
    return Position(
        number=row["number"],
        account=row["account"],
        side=Side(row["side"]),
        stake=row["stake"],
        shares=row["shares"],
        at_ms=row["at_ms"],
        house=row["house"],
    )


def _columns(episode: Episode) -> dict[str, Any]:
    market = episode.market
    return {
        "state": episode.state.value,
        "is_open": episode.state not in ENDED,
        "terms_hash": episode.terms_hash,
        "market_money": None if market is None else market.money,
        "market_heretic": None if market is None else market.heretic,
        "market_orthodox": None if market is None else market.orthodox,
        "position_count": episode.position_count,
        "clock_ms": episode.clock_ms,
        "close_ms": episode.close_ms,
    }


def _record(episode: Episode) -> dict[str, Any]:
    text = canonical_json({name: encode(getattr(episode, name)) for name in _IN_RECORD})
    return {"record_json": text, "record_sha256": sha256_hex(text.encode())}
