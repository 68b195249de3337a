"""Rates: the turns that all processes on a store take with one model and key.

The generic cell rate algorithm, on the database's clock: a row holds when the next call may be made
(its theoretical arrival time), and whoever takes `n` turns moves that on by `n` intervals, in one
statement. Tokens have a time of their own. A pause that one caller was told to make is everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, select

from heretix.store.db import conflict_insert, database_now
from heretix.store.schema import rates

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Limits a minute as the provider told them, and for how long it wants no calls."""

    rpm: int | None
    tpm: int | None
    paused_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Turns that were taken: how many seconds from now the first is, of requests and of tokens."""

    requests_in_s: float
    tokens_in_s: float


def select_rate(connection: Connection, rate_id: str) -> Rate | None:
    """Read what is known of a model and key; None where nothing is."""
    wanted = select(rates, database_now().label("now")).where(rates.c.rate_id == rate_id)
    row = connection.execute(wanted).one_or_none()
    if row is None:
        return None
    return Rate(rpm=row.rpm, tpm=row.tpm, paused_s=max(0.0, row.paused_until - row.now))


def take_turns(
    connection: Connection,
    rate_id: str,
    *,
    requests_s: float = 0.0,
    tokens_s: float = 0.0,
    rpm: int | None = None,
    tpm: int | None = None,
) -> Turns:
    """Take as much of the rates as lasts so many seconds; a negative time gives back.

    `rpm` and `tpm` are limits that the provider told, for those who haven't heard of them.
    """
    now = database_now()
    begin = _latest(rates.c.request_at, now, rates.c.paused_until)
    begin_tokens = _latest(rates.c.token_at, now, rates.c.paused_until)
    new = conflict_insert(connection.dialect.name, rates).values(
        rate_id=rate_id,
        request_at=now + requests_s,
        token_at=now + tokens_s,
        paused_until=0.0,
        rpm=rpm,
        tpm=tpm,
    )
    told = {name: value for name, value in (("rpm", rpm), ("tpm", tpm)) if value is not None}
    row = connection.execute(
        new.on_conflict_do_update(
            index_elements=[rates.c.rate_id],
            set_={"request_at": begin + requests_s, "token_at": begin_tokens + tokens_s, **told},
        ).returning(rates.c.request_at, rates.c.token_at, database_now().label("now"))
    ).one()
    return Turns(
        requests_in_s=row.request_at - requests_s - row.now,
        tokens_in_s=row.token_at - tokens_s - row.now,
    )


def pause_rate(connection: Connection, rate_id: str, wait_s: float) -> None:
    """Pause everybody: a provider told one caller to wait."""
    until = database_now() + wait_s
    new = conflict_insert(connection.dialect.name, rates).values(
        rate_id=rate_id, request_at=0.0, token_at=0.0, paused_until=until
    )
    connection.execute(
        new.on_conflict_do_update(
            index_elements=[rates.c.rate_id],
            set_={"paused_until": _latest(rates.c.paused_until, until)},
        )
    )


def _latest(first: Any, *others: Any) -> ColumnElement[float]:
    """The largest of some values, in words that both databases know."""
    found: ColumnElement[float] = first
    for other in others:
        found = case((found > other, found), else_=other)
    return found
