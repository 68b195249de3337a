"""Accounts: people, sessions, tokens, attempts to sign in, audit log, idempotent replies."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    Connection,
    Double,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from heretix.store.db import Row, conflict_insert, filter_given, select_first, select_rows
from heretix.store.schema import attempts, audit, idempotency, people, sessions, tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy.sql.dml import ReturningInsert

_SESSION: Final = select(
    people,
    sessions.c.created_at.label("opened_at"),
    sessions.c.seen_at,
    sessions.c.expires_at,
).join(people, people.c.person_id == sessions.c.person_id)
_TOKEN: Final = select(
    people,
    tokens.c.token_id,
    tokens.c.role.label("token_role"),
    tokens.c.expires_at,
    tokens.c.last_used_at,
    tokens.c.revoked_at,
).join(people, people.c.person_id == tokens.c.person_id)


def insert_person(connection: Connection, row: dict[str, Any]) -> bool:
    """Add an account; False when the name is taken."""
    insertion = conflict_insert(connection.dialect.name, people).on_conflict_do_nothing()
    return connection.scalar(insertion.returning(people.c.person_id), row) is not None


def select_person_by_name(
    connection: Connection, folded_name: str, *, lock: bool = False
) -> Row | None:
    """Read the account of a folded name; with `lock`, nobody else changes it in the meantime."""
    return select_first(connection, select(people).filter_by(folded_name=folded_name), lock=lock)


def select_person(connection: Connection, person_id: str, *, lock: bool = False) -> Row | None:
    """Read the account of an id; with `lock`, nobody else changes it in the meantime."""
    return select_first(connection, select(people).filter_by(person_id=person_id), lock=lock)


def select_people(connection: Connection, *, limit: int, after: str) -> list[Row]:
    """Read accounts by name, from the one behind a folded name."""
    query = select(people).where(people.c.folded_name > after).order_by(people.c.folded_name)
    return select_rows(connection, query.limit(limit))


def count_people(connection: Connection) -> int:
    """Count accounts, disabled ones included."""
    return int(connection.scalar(select(func.count()).select_from(people)) or 0)


def update_person(connection: Connection, person_id: str, values: dict[str, Any]) -> None:
    """Change an account."""
    connection.execute(update(people).where(people.c.person_id == person_id).values(values))


def replace_password_hash(connection: Connection, person_id: str, *, old: str, new: str) -> None:
    """Put a newer hash in the place of `old`, unless the password was changed meanwhile."""
    connection.execute(
        update(people)
        .where(people.c.person_id == person_id, people.c.password_hash == old)
        .values(password_hash=new)
    )


def insert_session(connection: Connection, row: dict[str, Any]) -> None:
    """Keep a session."""
    connection.execute(insert(sessions), row)


def select_session(connection: Connection, token_sha256: str) -> Row | None:
    """Read a session with the account that it belongs to."""
    return select_first(connection, _SESSION.where(sessions.c.token_sha256 == token_sha256))


def update_session_seen(connection: Connection, token_sha256: str, seen_at: float) -> None:
    """Note that a session was used."""
    connection.execute(
        update(sessions).where(sessions.c.token_sha256 == token_sha256).values(seen_at=seen_at)
    )


def delete_session(connection: Connection, token_sha256: str) -> str | None:
    """End a session; the id of whom it belonged to."""
    statement = delete(sessions).where(sessions.c.token_sha256 == token_sha256)
    return connection.scalar(statement.returning(sessions.c.person_id))


def delete_sessions(connection: Connection, person_id: str) -> None:
    """End all sessions of a person."""
    connection.execute(delete(sessions).where(sessions.c.person_id == person_id))


def delete_expired_sessions(connection: Connection, *, now: float) -> None:
    """Forget sessions whose time is over."""
    connection.execute(delete(sessions).where(sessions.c.expires_at < now))


def insert_token(connection: Connection, row: dict[str, Any]) -> None:
    """Keep a token's hash."""
    connection.execute(insert(tokens), row)


def select_token_with_person(connection: Connection, token_sha256: str) -> Row | None:
    """Read a token with the account that it belongs to."""
    return select_first(connection, _TOKEN.where(tokens.c.token_sha256 == token_sha256))


def select_token(connection: Connection, token_id: str) -> Row | None:
    """Read a token by its public id."""
    return select_first(connection, select(tokens).filter_by(token_id=token_id))


def select_tokens(connection: Connection, person_id: str | None) -> list[Row]:
    """Read tokens, the newest first: of one person, or of all."""
    query = filter_given(select(tokens), person_id=person_id)
    return select_rows(connection, query.order_by(tokens.c.created_at.desc(), tokens.c.token_id))


def update_token(connection: Connection, token_id: str, values: dict[str, Any]) -> None:
    """Change what is known of a token."""
    connection.execute(update(tokens).where(tokens.c.token_id == token_id).values(values))


def count_attempts(
    connection: Connection, subjects: Iterable[str], *, now: float, window_s: float
) -> dict[str, tuple[int, float]]:
    """Count one more attempt for each subject; how many there are by now, and since when."""
    statement = _count_attempt(connection.dialect.name)
    counted = {}
    # In one order everywhere, so that no two processes wait for each other in a circle.
    for subject in sorted(subjects):
        row = connection.execute(
            statement, {"subject": subject, "count": 1, "since": now, "begin": now - window_s}
        ).one()
        counted[subject] = (int(row[0]), float(row[1]))
    return counted


def forget_attempts(
    connection: Connection, *, cleared: Sequence[str], forgiven: Sequence[str], before: float
) -> None:
    """After a success: clear some counts, take one back from others, and drop what is old."""
    connection.execute(delete(attempts).where(attempts.c.subject.in_(sorted(cleared))))
    for subject in sorted(forgiven):
        connection.execute(
            update(attempts)
            .where(attempts.c.subject == subject, attempts.c.count > 0)
            .values(count=attempts.c.count - 1)
        )
    connection.execute(delete(attempts).where(attempts.c.since < before))


def insert_audit_entry(connection: Connection, row: dict[str, Any]) -> None:
    """Add an entry to the log."""
    connection.execute(insert(audit), row)


def select_audit_entries(
    connection: Connection, *, before: int | None, limit: int, who: str | None, what: str | None
) -> list[Row]:
    """Read entries of the log, the newest first."""
    query = filter_given(select(audit), who=who, what=what)
    if before is not None:
        query = query.where(audit.c.seq < before)
    return select_rows(connection, query.order_by(audit.c.seq.desc()).limit(limit))


def count_audit_entries(connection: Connection, what: str, subject: str) -> int:
    """Count how often something was done to a subject."""
    query = select(func.count()).select_from(audit).filter_by(what=what, subject=subject)
    return int(connection.scalar(query) or 0)


@cache
def _count_attempt(dialect: str) -> ReturningInsert[int, float]:
    statement = conflict_insert(dialect, attempts)
    over = attempts.c.since < bindparam("begin", type_=Double)
    return (
        statement.values(
            subject=bindparam("subject"), count=bindparam("count"), since=bindparam("since")
        )
        .on_conflict_do_update(
            index_elements=[attempts.c.subject],
            set_={
                "count": case((over, literal_column("1")), else_=attempts.c.count + 1),
                "since": case((over, statement.excluded.since), else_=attempts.c.since),
            },
        )
        .returning(attempts.c.count, attempts.c.since)
    )


def insert_reply(connection: Connection, row: dict[str, Any]) -> bool:
    """Take a key; False when somebody has it."""
    insertion = conflict_insert(connection.dialect.name, idempotency).on_conflict_do_nothing()
    return connection.scalar(insertion.returning(idempotency.c.key), row) is not None


def select_reply(connection: Connection, scope: str, key: str) -> Row | None:
    """Read what is known of a key; nobody else changes it in the meantime."""
    return select_first(connection, select(idempotency).where(_match_key(scope, key)), lock=True)


def update_reply(
    connection: Connection, scope: str, key: str, *, status: int, response_json: str
) -> None:
    """Keep the answer."""
    values = {"status": status, "response_json": response_json}
    connection.execute(update(idempotency).where(_match_key(scope, key)).values(values))


def delete_open_reply(connection: Connection, scope: str, key: str) -> None:
    """Delete a key that has no answer."""
    connection.execute(
        delete(idempotency).where(_match_key(scope, key), idempotency.c.status.is_(None))
    )


def delete_replies_before(connection: Connection, *, before: float) -> None:
    """Forget old answers."""
    connection.execute(delete(idempotency).where(idempotency.c.begun_at < before))


def _match_key(scope: str, key: str) -> Any:
    return (idempotency.c.scope == scope) & (idempotency.c.key == key)
