"""Answers to writes in the database, by who asked and the key that came with the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, select, update

from heretix.store.engine import conflict_insert
from heretix.store.web_schema import idempotency

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

__all__ = ["begin_reply", "drop_reply", "finish_reply", "prune_replies", "reply"]


def begin_reply(connection: Connection, row: dict[str, Any]) -> bool:
    """Take a key; False when somebody has it."""
    insertion = conflict_insert(connection.dialect.name, idempotency).on_conflict_do_nothing()
    return connection.scalar(insertion.returning(idempotency.c.key), row) is not None


def reply(connection: Connection, scope: str, key: str) -> RowMapping | None:
    """What is known of a key; nobody else changes it in the meantime."""
    statement = select(idempotency).where(_is(scope, key)).with_for_update()
    return connection.execute(statement).mappings().first()


def finish_reply(
    connection: Connection, scope: str, key: str, *, status: int, response_json: str
) -> None:
    """Keep the answer."""
    connection.execute(
        update(idempotency)
        .where(_is(scope, key))
        .values(status=status, response_json=response_json)
    )


def drop_reply(connection: Connection, scope: str, key: str) -> None:
    """Let a key go that has no answer."""
    connection.execute(delete(idempotency).where(_is(scope, key), idempotency.c.status.is_(None)))


def prune_replies(connection: Connection, *, before: float) -> None:
    """Forget old answers."""
    connection.execute(delete(idempotency).where(idempotency.c.begun_at < before))


def _is(scope: str, key: str) -> Any:
    return (idempotency.c.scope == scope) & (idempotency.c.key == key)
