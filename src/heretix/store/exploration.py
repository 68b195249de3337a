"""Queries of the exploration track: credits by claim, and what a standing follows from.

Nothing here decides anything: whoever calls has asked the rules, inside the same transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select

from heretix.store.economy_schema import accounts, exploration_grants, reputation_events
from heretix.store.schema import results, runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, RowMapping

__all__ = [
    "add_grant",
    "claim_records",
    "credited_in_week",
    "events",
    "grant_of",
    "grants",
    "people",
]


def claim_records(connection: Connection, claim: str) -> list[str]:
    """The latest usable records of a claim under the raw prior and the lenses that can earn."""
    statement = (
        select(results.c.record_json)
        .join(runs, runs.c.execution_id == results.c.execution_id)
        .where(
            runs.c.claim == claim,
            runs.c.lens.in_(("RPL", "HEL", "SEL")),
            runs.c.prob_true_rpl.is_not(None),
            runs.c.variant.is_(None),
        )
        .order_by(runs.c.updated_at, runs.c.run_id)
    )
    return list(connection.scalars(statement))


def grant_of(connection: Connection, claim_id: str) -> RowMapping | None:
    """What a claim was credited with, if it was."""
    statement = select(exploration_grants).where(exploration_grants.c.claim_id == claim_id)
    return connection.execute(statement).mappings().one_or_none()


def add_grant(connection: Connection, row: Mapping[str, Any]) -> None:
    """Keep what a claim was credited with."""
    connection.execute(insert(exploration_grants), dict(row))


def credited_in_week(connection: Connection, person: str, week: int) -> int:
    """What a person was credited with in a week."""
    statement = select(func.coalesce(func.sum(exploration_grants.c.amount), 0)).where(
        exploration_grants.c.person == person, exploration_grants.c.week == week
    )
    return int(connection.scalar(statement) or 0)


def grants(connection: Connection, *, person: str | None = None) -> list[RowMapping]:
    """Credits that were granted, oldest first."""
    statement = select(exploration_grants).order_by(
        exploration_grants.c.at_ms, exploration_grants.c.claim_id
    )
    if person is not None:
        statement = statement.where(exploration_grants.c.person == person)
    return list(connection.execute(statement).mappings())


def events(connection: Connection, *, person: str | None = None) -> list[RowMapping]:
    """Attempts and rewards with the person behind them, oldest first."""
    statement = (
        select(accounts.c.person, *reputation_events.c)
        .join(accounts, accounts.c.id == reputation_events.c.account)
        .where(accounts.c.person.is_not(None))
        .order_by(
            reputation_events.c.at_ms,
            reputation_events.c.episode_id,
            reputation_events.c.kind,
            reputation_events.c.number,
        )
    )
    if person is not None:
        statement = statement.where(accounts.c.person == person)
    return list(connection.execute(statement).mappings())


def people(connection: Connection) -> dict[str, int]:
    """Everybody with an account of credits, and what is in it."""
    statement = select(accounts.c.person, accounts.c.balance).where(
        accounts.c.person.is_not(None), accounts.c.currency == "XC"
    )
    return {row.person: row.balance for row in connection.execute(statement)}
