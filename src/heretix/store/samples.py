"""Samples in the database: looked up as a cache, saved as they arrive."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Select, bindparam, or_, select

from heretix.sample import Noncompliance, Sample
from heretix.store.engine import conflict_insert
from heretix.store.schema import samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.sql.dml import Insert

__all__ = ["cached", "save_samples", "stored"]

_CHUNK: Final = 500
"""Keys per look-up. One statement text for all full chunks, so that it is compiled once."""
_FIELDS: Final = tuple(field.name for field in fields(Sample))
_VALUES: Final = attrgetter(*_FIELDS)

_STORED: Final = select(*(samples.c[name] for name in _FIELDS)).where(
    samples.c.cache_key.in_(bindparam("keys", expanding=True))
)
_CACHED: Final = _STORED.where(samples.c.error.is_(None))


def cached(connection: Connection, cache_keys: Sequence[str]) -> dict[str, Sample]:
    """The answers among `cache_keys`. A failed call is no answer."""
    return _look_up(connection, _CACHED, cache_keys)


def stored(connection: Connection, cache_keys: Sequence[str]) -> dict[str, Sample]:
    """What is stored under `cache_keys`, answers and failures."""
    return _look_up(connection, _STORED, cache_keys)


def save_samples(connection: Connection, batch: Sequence[Sample]) -> None:
    """Write samples in the connection's transaction, by the rule of `_upsert`."""
    if batch:
        # In one order everywhere: two processes that save the same keys wait for each other
        # and never for ever. The sort is stable, so the later of two equal keys stays later.
        rows = sorted(map(_row, batch), key=lambda row: row["cache_key"])
        connection.execute(_upsert(connection.dialect.name), rows)


@cache
def _upsert(dialect: str) -> Insert:
    """A new answer replaces what was there; a failure replaces only a failure."""
    insert = conflict_insert(dialect, samples)
    return insert.on_conflict_do_update(
        index_elements=[samples.c.cache_key],
        set_={name: insert.excluded[name] for name in _FIELDS if name != "cache_key"},
        where=or_(samples.c.error.is_not(None), insert.excluded.error.is_(None)),
    )


def _look_up(
    connection: Connection, statement: Select[Any], cache_keys: Sequence[str]
) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for start in range(0, len(cache_keys), _CHUNK):
        rows = connection.execute(statement, {"keys": cache_keys[start : start + _CHUNK]})
        found.update((sample.cache_key, sample) for sample in _samples(rows.all()))
    return found


def _row(sample: Sample) -> dict[str, Any]:
    row = dict(zip(_FIELDS, _VALUES(sample), strict=True))
    if sample.noncompliance is not None:
        row["noncompliance"] = sample.noncompliance.value
    return row


def _samples(rows: Sequence[Any]) -> Iterator[Sample]:
    for row in rows:
        values = dict(zip(_FIELDS, row, strict=True))
        if values["noncompliance"] is not None:
            values["noncompliance"] = Noncompliance(values["noncompliance"])
        yield Sample(**values)
