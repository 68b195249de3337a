"""Bundles of evidence: stored once under the hash of their content, never changed."""

from __future__ import annotations

from sqlalchemy import Connection, select

from heretix.core.clock import utc_now
from heretix.core.errors import RecordError
from heretix.store.db import conflict_insert
from heretix.store.schema import bundles


def save_bundle(
    connection: Connection, bundle_id: str, claim: str, lens: str, bundle_json: str
) -> None:
    """Keep a bundle; one that is there already is the same, since its id is its content."""
    row = {
        "bundle_id": bundle_id,
        "claim": claim,
        "lens": lens,
        "bundle_json": bundle_json,
        "created_at": utc_now(),
    }
    insert = conflict_insert(connection.dialect.name, bundles)
    connection.execute(insert.on_conflict_do_nothing(), row)


def find_bundle(connection: Connection, ref: str) -> str:
    """Read the JSON of the bundle whose id begins with `ref`."""
    wanted = ref.strip().lower()
    statement = select(bundles.c.bundle_json).where(
        bundles.c.bundle_id.startswith(wanted, autoescape=True)
    )
    found = connection.scalars(statement.limit(2)).all() if wanted else []
    if len(found) != 1:
        problem = "fits several bundles; give more of it" if found else "names no stored bundle"
        raise RecordError(f"`{ref}` {problem}; `heretix evidence build` makes one")
    return str(found[0])
