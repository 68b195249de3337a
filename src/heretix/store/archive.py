"""Samples and records that were moved to a lake: what stays in the database, and the way back.

A key that stands here is paid for. Look-ups read it from the lake, and fail when the lake can't be
read: a call would pay for it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import Connection, bindparam, delete, exists, insert, select, text, update

from heretix.core.canonical import canonical_json
from heretix.core.errors import StoreError
from heretix.store.db import KEYS_PER_STATEMENT, chunked, conflict_insert
from heretix.store.schema import (
    archived_records,
    archived_samples,
    archives,
    execution_samples,
    results,
    samples,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.sql.dml import Insert

    from heretix.sample import Sample

_READER: Final = "heretix.lake.read"
"""Loaded by its name when something archived is wanted: the lake stands above the store, since it
makes records, and brings pyarrow along."""

_ARCHIVED: Final = (
    select(
        archived_samples.c.cache_key,
        archived_samples.c.prompt_sha256,
        archives.c.lake_id,
        archives.c.location,
        archives.c.part,
    )
    .join(archives, archives.c.archive_id == archived_samples.c.archive_id)
    .where(archived_samples.c.cache_key.in_(bindparam("keys", expanding=True)))
)
_UNLINK: Final = delete(execution_samples).where(
    execution_samples.c.cache_key == bindparam("key"),
    execution_samples.c.execution_id == bindparam("of"),
)
_RECORD: Final = (
    select(archives.c.lake_id, archives.c.location, archives.c.part)
    .join(archived_records, archived_records.c.archive_id == archives.c.archive_id)
    .where(archived_records.c.execution_id == bindparam("execution_id"))
)


class Lake(Protocol):
    """A lake that look-ups read from."""

    def read_answers(self, part: str, wanted: Mapping[str, str]) -> dict[str, Sample]:
        """Read answers by `cache_key` from a part; `wanted` gives each its `prompt_sha256`."""

    def read_record(self, part: str, execution_id: str) -> str:
        """Make the record of an execution again, as canonical JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A part of a lake."""

    lake_id: str
    location: str
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedExecution:
    """A finished execution that a lake holds whole."""

    execution_id: str
    place: Place
    summary: Mapping[str, Any]
    cache_keys: Sequence[str]
    """Of every sample that it used."""
    answers: Sequence[tuple[str, str, str, Place]]
    """Of each answer among them: `cache_key`, `prompt_sha256`, `created_at`, and where it is."""


def select_archived(connection: Connection, cache_keys: Iterable[str]) -> dict[str, Sample]:
    """Read the answers among `cache_keys` that were moved to a lake."""
    parts: dict[tuple[str, str, str], dict[str, str]] = {}
    for chunk in chunked(map(bytes.fromhex, cache_keys), KEYS_PER_STATEMENT):
        for row in connection.execute(_ARCHIVED, {"keys": chunk}):
            place = (row.lake_id, row.location, row.part)
            parts.setdefault(place, {})[row.cache_key.hex()] = row.prompt_sha256.hex()
    found: dict[str, Sample] = {}
    for (lake_id, location, part), wanted in parts.items():
        found |= _open_lake(lake_id, location).read_answers(part, wanted)
    return found


def read_archived_record(connection: Connection, execution_id: str) -> str:
    """Make the record of an execution again that was moved to a lake."""
    place = connection.execute(_RECORD, {"execution_id": execution_id}).one_or_none()
    if place is None:
        raise StoreError(f"`{execution_id}` has an empty record; restore a copy of the store")
    return _open_lake(place.lake_id, place.location).read_record(place.part, execution_id)


def _open_lake(lake_id: str, location: str) -> Lake:
    lake: Lake = import_module(_READER).open_lake(lake_id, location)
    return lake


def select_finished_before(
    connection: Connection, moment: str, *, after: tuple[str, str], limit: int
) -> list[tuple[str, str, str]]:
    """Read finished executions whose record is in the database: when, which, and the record.

    In the order of their end, from behind `after` on.
    """
    at, execution_id = after
    later = (results.c.finished_at > at) | (
        (results.c.finished_at == at) & (results.c.execution_id > execution_id)
    )
    rows = connection.execute(
        select(results.c.finished_at, results.c.execution_id, results.c.record_json)
        .where(results.c.finished_at < moment, results.c.record_json != "", later)
        .order_by(results.c.finished_at, results.c.execution_id)
        .limit(limit)
    )
    return [(row.finished_at, row.execution_id, row.record_json) for row in rows]


def archive_executions(connection: Connection, moved: Sequence[ArchivedExecution]) -> int:
    """Delete from the database what a lake holds of these executions; returns the samples deleted.

    A sample stays that another execution is linked with, or whose row isn't the one that the lake
    has: an answer that was asked for again.
    """
    if connection.dialect.name == "postgresql":
        # Whoever finishes an execution right now links it with samples; it waits, and looks again.
        connection.execute(text("LOCK TABLE execution_samples IN SHARE ROW EXCLUSIVE MODE"))
    ids = _archive_ids(connection, moved)
    connection.execute(
        _UNLINK,
        [{"key": key, "of": one.execution_id} for one in moved for key in one.cache_keys],
    )
    for chunk in chunked((one.execution_id for one in moved), KEYS_PER_STATEMENT):
        connection.execute(
            update(results).where(results.c.execution_id.in_(chunk)).values(record_json="")
        )
    connection.execute(
        insert(archived_records),
        [
            {
                "execution_id": one.execution_id,
                "archive_id": ids[one.place],
                "summary_json": canonical_json(dict(one.summary)),
            }
            for one in moved
        ],
    )
    return _archive_samples(connection, moved, ids)


def _archive_samples(
    connection: Connection, moved: Sequence[ArchivedExecution], ids: Mapping[Place, int]
) -> int:
    held = {answer[0]: answer for one in moved for answer in one.answers}
    gone: list[str] = []
    for chunk in chunked(sorted(held), KEYS_PER_STATEMENT):
        linked = exists().where(execution_samples.c.cache_key == samples.c.cache_key)
        rows = connection.execute(
            select(samples.c.cache_key, samples.c.created_at).where(
                samples.c.cache_key.in_(chunk), ~linked
            )
        )
        gone += [row.cache_key for row in rows if row.created_at == held[row.cache_key][2]]
    if not gone:
        return 0
    connection.execute(
        _remember(connection.dialect.name),
        [
            {
                "cache_key": bytes.fromhex(key),
                "prompt_sha256": bytes.fromhex(held[key][1]),
                "archive_id": ids[held[key][3]],
            }
            for key in gone
        ],
    )
    for chunk in chunked(gone, KEYS_PER_STATEMENT):
        connection.execute(delete(samples).where(samples.c.cache_key.in_(chunk)))
    return len(gone)


@cache
def _remember(dialect: str) -> Insert:
    insertion = conflict_insert(dialect, archived_samples)
    return insertion.on_conflict_do_update(
        index_elements=[archived_samples.c.cache_key],
        set_={"archive_id": insertion.excluded.archive_id},
    )


def _archive_ids(connection: Connection, moved: Sequence[ArchivedExecution]) -> dict[Place, int]:
    places = {one.place for one in moved} | {a[3] for one in moved for a in one.answers}
    insertion = conflict_insert(connection.dialect.name, archives)
    connection.execute(
        insertion.on_conflict_do_update(
            index_elements=[archives.c.lake_id, archives.c.part],
            set_={"location": insertion.excluded.location},
        ),
        [
            {"lake_id": place.lake_id, "location": place.location, "part": place.part}
            for place in sorted(places, key=lambda place: (place.lake_id, place.part))
        ],
    )
    rows = connection.execute(
        select(archives).where(archives.c.lake_id.in_({place.lake_id for place in places}))
    )
    known = {(row.lake_id, row.part): row.archive_id for row in rows}
    return {place: known[place.lake_id, place.part] for place in places}
