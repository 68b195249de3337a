"""The exchange: the economy's rules on a store, each move in one transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from heretix.economy.audit import FORMAT
from heretix.economy.codec import decode, encode
from heretix.economy.docket import ENDED, market_in, position_in
from heretix.economy.episode import Denial, State, settlement_record
from heretix.economy.journal import transfer_of
from heretix.economy.market import quote
from heretix.economy.money import require_whole
from heretix.economy.proceedings import Proceedings
from heretix.economy.records import (
    EpisodeSummary,
    HeldPosition,
    Source,
    StoredMeasurement,
    StoredStatement,
)
from heretix.economy.settlement import settle
from heretix.economy.statement import Explained
from heretix.economy.treasury import account_id
from heretix.errors import RefusedError
from heretix.store import episodes, ledger

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from heretix.economy.episode import Episode
    from heretix.economy.market import Position, Quote, Side
    from heretix.economy.settlement import Settlement

__all__ = ["Exchange"]

_PAGE: Final = 20


class Exchange(Proceedings):
    """Accounts, markets and episodes in a store. Threads and processes may share one store."""

    def quote(self, episode_id: str, side: Side, amount: int) -> Quote:
        """What a bet would buy now, and what it can come to."""
        episode = self.episode(episode_id)
        if episode.market is None or episode.state not in {State.OPEN, State.CHALLENGE}:
            raise RefusedError(
                f"`{episode_id}` must be open or challenge to be bet on, "
                f"it is {episode.state.value}",
                status=Denial.WRONG_STATE.value,
            )
        parameters = episode.terms.parameters
        return quote(
            episode.market,
            side,
            amount,
            tau_max_ppm=parameters.tau_max_ppm,
            fee_ppm=parameters.fee_ppm,
        )

    def episode(self, episode_id: str) -> Episode:
        """An episode as it stands."""
        with self._store.reading() as connection:
            return self._docket.load(connection, episode_id).episode

    def knows(self, episode_id: str) -> bool:
        """Whether there is an episode of this id."""
        with self._store.reading() as connection:
            return episodes.episode_row(connection, episode_id) is not None

    def episodes(
        self, *, state: State | None = None, limit: int = _PAGE, offset: int = 0
    ) -> list[EpisodeSummary]:
        """Episodes, the newest first."""
        with self._store.reading() as connection:
            rows = episodes.episode_summaries(
                connection,
                state=None if state is None else state.value,
                limit=require_whole("limit", limit),
                offset=require_whole("offset", offset),
            )
        return [_summary(row) for row in rows]

    def positions(self, episode_id: str) -> list[Position]:
        """An episode's bets, in their order."""
        with self._store.reading() as connection:
            self._docket.load(connection, episode_id)
            return self._docket.positions(connection, episode_id)

    def positions_of(self, person: str, *, currency: str = "PLAY") -> list[HeldPosition]:
        """A person's bets, the newest first."""
        with self._store.reading() as connection:
            rows = episodes.positions_by_account(connection, account_id(person, currency))
        return [_held(row) for row in rows]

    def statements(self, episode_id: str) -> list[StoredStatement]:
        """What each move of an episode paid to whom, and why."""
        with self._store.reading() as connection:
            self._docket.load(connection, episode_id)
            return _statements(connection, episode_id)

    def measurements(self, episode_id: str) -> list[StoredMeasurement]:
        """What an episode was told, and the executions that it came from."""
        with self._store.reading() as connection:
            self._docket.load(connection, episode_id)
            return _measurements(connection, episode_id)

    def settlement(self, episode_id: str) -> Settlement | None:
        """How an episode ended, worked out anew from what is kept; None before it has."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            episode = self._docket.load(connection, episode_id).episode
            if episode.state not in ENDED:
                return None
            return settle(
                settlement_record(episode, self._docket.positions(connection, episode_id))
            )

    def record(self, episode_id: str) -> dict[str, Any]:
        """Everything that is needed to redo an episode elsewhere: see `audit.verify_episode`.

        The seed is part of it once the freeze has revealed it, and not before.
        """
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            episode = self._docket.load(connection, episode_id).episode
            rows = ledger.stream_transfers(connection, episode=episode_id)
            return {
                "format": FORMAT,
                "episode": encode(episode),
                "positions": encode(self._docket.positions(connection, episode_id)),
                "transfers": [encode(transfer_of(row)) for row in rows],
                "statements": encode(_statements(connection, episode_id)),
                "measurements": encode(_measurements(connection, episode_id)),
            }


def _summary(row: RowMapping) -> EpisodeSummary:
    return EpisodeSummary(
        id=row["episode_id"],
        claim=row["claim"],
        currency=row["currency"],
        state=State(row["state"]),
        market=market_in(row),
        position_count=row["position_count"],
        clock_ms=row["clock_ms"],
        close_ms=row["close_ms"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
    )


def _held(row: RowMapping) -> HeldPosition:
    close = row["close_ms"]
    return HeldPosition(
        episode=row["episode_id"],
        claim=row["claim"],
        state=State(row["state"]),
        position=position_in(row),
        late=close is not None and row["at_ms"] > close,
    )


def _statements(connection: Connection, episode_id: str) -> list[StoredStatement]:
    return [
        StoredStatement(
            group=row["group_id"],
            move=row["move"],
            lines=decode(tuple[Explained, ...], json.loads(row["lines_json"]), row["group_id"]),
            at_ms=row["at_ms"],
        )
        for row in episodes.statements_of(connection, episode_id)
    ]


def _measurements(connection: Connection, episode_id: str) -> list[StoredMeasurement]:
    told = [
        StoredMeasurement(
            stage=row["stage"],
            record=json.loads(row["measurement_json"]),
            source=Source(
                executions=tuple(json.loads(row["executions_json"])), bundle_id=row["bundle_id"]
            ),
            at_ms=row["at_ms"],
        )
        for row in episodes.measurements_of(connection, episode_id)
    ]
    # Several stages can fall on one moment of a held clock; their own order settles it.
    return sorted(told, key=lambda item: (_rank(item.stage), item.at_ms))


def _rank(stage: str) -> tuple[int, int]:
    name, _, number = stage.partition(":")
    return ("c0", "gate", "first", "second", "round").index(name), int(number or 0)
