"""Queries of episodes: the row of each, its bets, statements, measurements and reputations."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, bindparam, func, insert, or_, select, update

from heretix.store.economy_schema import (
    episode_measurements,
    episodes,
    positions,
    reputation_events,
    statements,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, RowMapping, Update

__all__ = [
    "attempts_of",
    "episode_row",
    "episode_summaries",
    "episodes_open",
    "insert_episode",
    "insert_measurement",
    "insert_positions",
    "insert_reputation_events",
    "measurements_of",
    "newest_ms",
    "open_stakes",
    "positions_by_account",
    "positions_of",
    "record_json",
    "statements_of",
    "update_episode",
]


def insert_episode(connection: Connection, row: Mapping[str, Any]) -> None:
    """Write down a new episode."""
    connection.execute(insert(episodes), dict(row))


def episode_row(connection: Connection, episode_id: str) -> RowMapping | None:
    """An episode without its record, which `record_json` reads when it has to be decoded."""
    return connection.execute(_EPISODE, {"of_id": episode_id}).mappings().one_or_none()


def record_json(connection: Connection, episode_id: str) -> str:
    """The record of an episode that exists."""
    return str(connection.execute(_RECORD, {"of_id": episode_id}).scalar_one())


def update_episode(connection: Connection, episode_id: str, values: Mapping[str, Any]) -> None:
    """Set some columns of an episode."""
    parameters = {f"to_{name}": value for name, value in values.items()}
    connection.execute(_update(tuple(values)), parameters | {"of_id": episode_id})


@cache
def _update(names: tuple[str, ...]) -> Update:
    # Built once: a bet does little else that takes time.
    values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in names}
    return _UPDATE.values(values)


def newest_ms(connection: Connection) -> int | None:
    """When the newest episode was written down; None before there is any."""
    newest: int | None = connection.scalar(select(func.max(episodes.c.created_ms)))
    return newest


def episodes_open(connection: Connection) -> dict[str, bool]:
    """Every episode, with whether it is still open."""
    rows = connection.execute(select(episodes.c.episode_id, episodes.c.is_open))
    return {row.episode_id: row.is_open for row in rows}


def episode_summaries(
    connection: Connection, *, state: str | None, limit: int, offset: int
) -> list[RowMapping]:
    """Episodes without their records, the newest first."""
    query = _SUMMARY.order_by(episodes.c.created_ms.desc(), episodes.c.episode_id)
    if state is not None:
        query = query.where(episodes.c.state == state)
    return list(connection.execute(query.limit(limit).offset(offset)).mappings())


def insert_positions(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep bets."""
    if rows:
        connection.execute(_INSERT_POSITION, [dict(row) for row in rows])


def positions_of(
    connection: Connection, episode_id: str, *, number: int | None = None
) -> list[RowMapping]:
    """An episode's bets in their order, or the one with a number."""
    query = _POSITIONS if number is None else _POSITION
    parameters: dict[str, Any] = {"of_id": episode_id}
    if number is not None:
        parameters["of_number"] = number
    return list(connection.execute(query, parameters).mappings())


def positions_by_account(connection: Connection, account: str) -> list[RowMapping]:
    """Bets of one account with the episodes they are in, the newest first."""
    query = (
        select(positions, episodes.c.claim, episodes.c.state, episodes.c.close_ms)
        .join(episodes, episodes.c.episode_id == positions.c.episode_id)
        .where(positions.c.account == account)
        .order_by(positions.c.at_ms.desc(), positions.c.episode_id, positions.c.number.desc())
    )
    return list(connection.execute(query).mappings())


def open_stakes(connection: Connection) -> list[RowMapping]:
    """What the pot and the market of each open episode must hold: its bets up to the close."""
    counted = and_(
        positions.c.episode_id == episodes.c.episode_id,
        or_(episodes.c.close_ms.is_(None), positions.c.at_ms <= episodes.c.close_ms),
    )
    own = (
        episodes.c.episode_id,
        episodes.c.currency,
        episodes.c.market_money,
        episodes.c.market_heretic,
        episodes.c.market_orthodox,
    )
    held = [func.coalesce(func.sum(positions.c.stake), 0).label("market_money_held")]
    for side in ("heretic", "orthodox"):
        shares = func.sum(positions.c.shares).filter(positions.c.side == side)
        held.append(func.coalesce(shares, 0).label(f"market_{side}_held"))
    query = (
        select(*own, *held)
        .outerjoin(positions, counted)
        .where(episodes.c.is_open)
        .group_by(*own)
        .order_by(episodes.c.episode_id)
    )
    return list(connection.execute(query).mappings())


def statements_of(connection: Connection, episode_id: str) -> list[RowMapping]:
    """What explains an episode's groups, in the order of the moves."""
    query = (
        select(statements)
        .where(statements.c.episode_id == episode_id)
        .order_by(statements.c.first_seq)
    )
    return list(connection.execute(query).mappings())


def insert_measurement(connection: Connection, row: Mapping[str, Any]) -> None:
    """Keep what a measurement told an episode, and where it came from."""
    connection.execute(insert(episode_measurements), dict(row))


def measurements_of(
    connection: Connection, episode_id: str, *, stage: str | None = None
) -> list[RowMapping]:
    """An episode's measurements in the order of time, or the one of a stage."""
    query = (
        select(episode_measurements)
        .where(episode_measurements.c.episode_id == episode_id)
        .order_by(episode_measurements.c.at_ms, episode_measurements.c.stage)
    )
    if stage is not None:
        query = query.where(episode_measurements.c.stage == stage)
    return list(connection.execute(query).mappings())


def insert_reputation_events(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep what people's standing follows from."""
    if rows:
        connection.execute(insert(reputation_events), [dict(row) for row in rows])


def attempts_of(connection: Connection, account: str, *, limit: int) -> list[bool]:
    """Whether an account's latest challenges passed, the oldest of them first."""
    query = (
        select(reputation_events.c.passed)
        .where(reputation_events.c.account == account, reputation_events.c.kind == "attempt")
        .order_by(
            reputation_events.c.at_ms.desc(),
            reputation_events.c.episode_id.desc(),
            reputation_events.c.number.desc(),
        )
        .limit(limit)
    )
    return [bool(passed) for passed in connection.scalars(query)][::-1]


_UPDATE: Final = update(episodes).where(episodes.c.episode_id == bindparam("of_id"))
_SUMMARY: Final = select(
    *(column for column in episodes.c if column.name not in {"record_json", "secret"})
)
_EPISODE: Final = select(*(column for column in episodes.c if column.name != "record_json")).where(
    episodes.c.episode_id == bindparam("of_id")
)
_RECORD: Final = select(episodes.c.record_json).where(episodes.c.episode_id == bindparam("of_id"))
_INSERT_POSITION: Final = insert(positions)
_POSITIONS: Final = (
    select(positions)
    .where(positions.c.episode_id == bindparam("of_id"))
    .order_by(positions.c.number)
)
_POSITION: Final = _POSITIONS.where(positions.c.number == bindparam("of_number"))
