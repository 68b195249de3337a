"""Bundles of evidence in the database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from heretix.errors import RecordError
from heretix.store.engine import conflict_insert
from heretix.store.schema import bundles

__all__ = ["find_bundle", "save_bundle"]


def save_bundle(connection: Connection, row: dict[str, Any]) -> None:
    """Keep a bundle; one that is there already is the same, since its id is its content."""
    insert = conflict_insert(connection.dialect.name, bundles)
    connection.execute(insert.on_conflict_do_nothing(), row)


def find_bundle(connection: Connection, ref: str) -> str:
    """The JSON of the bundle whose id begins with `ref`."""
    wanted = ref.strip().lower()
    statement = select(bundles.c.bundle_json).where(
        bundles.c.bundle_id.startswith(wanted, autoescape=True)
    )
    found = connection.scalars(statement.limit(2)).all() if wanted else []
    if len(found) != 1:
        problem = "fits several bundles; give more of it" if found else "names no stored bundle"
        raise RecordError(f"`{ref}` {problem}; `heretix evidence build` makes one")
    return str(found[0])
