"""Pages of what the store holds, each from where the one before it ended, and records by exact id.

A page is one short read, so a slow reader holds nothing, and a long list costs the same at its end
as at its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, or_, select

from heretix.sample import Sample
from heretix.store.executions import LATEST_FIRST, claim_sha256
from heretix.store.records import RunSummary, StoredRecord
from heretix.store.schema import executions, results, runs, samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import RowMapping

__all__ = [
    "ClaimSummary",
    "RunFilter",
    "claims_page",
    "exact_record",
    "find_run",
    "runs_by_id",
    "runs_page",
    "samples_by_key",
]

_SUMMARY: Final = select(*(runs.c[field.name] for field in fields(RunSummary)))
_SAMPLE: Final = select(*(samples.c[field.name] for field in fields(Sample)))
_RECORD: Final = (
    select(
        results.c.execution_id,
        executions.c.run_id,
        results.c.status,
        results.c.finished_at,
        results.c.record_json,
    )
    .join(executions, executions.c.execution_id == results.c.execution_id)
    .order_by(*LATEST_FIRST)
    .limit(1)
)
# Made once: putting a statement together takes about as long as running these.
_BY_EXECUTION: Final = _RECORD.where(results.c.execution_id == bindparam("ref"))
_BY_RUN: Final = _RECORD.where(executions.c.run_id == bindparam("ref"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs: all that fit everything that is given."""

    search: str | None = None
    """In claims, models and ids, in any case."""
    claim: str | None = None
    """Word for word."""
    model: str | None = None
    lens: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSummary:
    """A claim, and how often it was measured."""

    claim: str
    claim_sha256: str
    runs: int
    models: int
    updated_at: str


def runs_page(
    connection: Connection, wanted: RunFilter, *, limit: int, after: tuple[str, str] | None
) -> list[RunSummary]:
    """Summaries, the latest first; `after` is the last one's `updated_at` and `run_id`."""
    statement = _SUMMARY.where(*_conditions(wanted))
    if after is not None:
        at, run_id = after
        statement = statement.where(
            or_(runs.c.updated_at < at, and_(runs.c.updated_at == at, runs.c.run_id > run_id))
        )
    statement = statement.order_by(runs.c.updated_at.desc(), runs.c.run_id).limit(limit)
    return [RunSummary(**row) for row in connection.execute(statement).mappings()]


def runs_by_id(
    connection: Connection, wanted: RunFilter, *, limit: int, after: str | None
) -> Sequence[RowMapping]:
    """Rows of runs by id, from the one behind `after` on: an order that no measurement changes."""
    statement = _SUMMARY.where(*_conditions(wanted))
    return _keyed(connection, statement, runs.c.run_id, limit=limit, after=after)


def samples_by_key(
    connection: Connection, *, run_id: str | None, limit: int, after: str | None
) -> Sequence[RowMapping]:
    """Rows of samples by cache key, all of them or those of a run."""
    statement = _SAMPLE if run_id is None else _SAMPLE.where(samples.c.run_id == run_id)
    return _keyed(connection, statement, samples.c.cache_key, limit=limit, after=after)


def claims_page(
    connection: Connection, *, search: str | None, limit: int, after: tuple[str, str] | None
) -> list[ClaimSummary]:
    """Claims, the one measured last first; `after` is the last one's `updated_at` and hash."""
    latest = func.max(runs.c.updated_at)
    statement = select(
        func.min(runs.c.claim).label("claim"),
        runs.c.claim_sha256,
        func.count().label("runs"),
        func.count(runs.c.model.distinct()).label("models"),
        latest.label("updated_at"),
    ).group_by(runs.c.claim_sha256)
    if search:
        statement = statement.where(runs.c.claim.icontains(search, autoescape=True))
    if after is not None:
        at, sha256 = after
        statement = statement.having(
            or_(latest < at, and_(latest == at, runs.c.claim_sha256 > sha256))
        )
    statement = statement.order_by(latest.desc(), runs.c.claim_sha256).limit(limit)
    return [ClaimSummary(**row) for row in connection.execute(statement).mappings()]


def find_run(connection: Connection, run_id: str) -> RunSummary | None:
    """The summary of one run, by its whole id."""
    row = connection.execute(_SUMMARY.where(runs.c.run_id == run_id)).mappings().one_or_none()
    return None if row is None else RunSummary(**row)


def exact_record(connection: Connection, ref: str) -> StoredRecord | None:
    """The record of a finished execution, or of a run's latest one, by a whole id.

    It takes one look into one index, where a shortened id takes a search.
    """
    statement = _BY_RUN if ref.startswith("heretix-") else _BY_EXECUTION
    found = connection.execute(statement, {"ref": ref}).mappings().one_or_none()
    return None if found is None else StoredRecord(**found)


def _keyed(
    connection: Connection,
    statement: Select[Any],
    key: ColumnElement[str],
    *,
    limit: int,
    after: str | None,
) -> Sequence[RowMapping]:
    if after is not None:
        statement = statement.where(key > after)
    return connection.execute(statement.order_by(key).limit(limit)).mappings().all()


def _conditions(wanted: RunFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.search:
        searched = (runs.c.claim, runs.c.model, runs.c.run_id)
        conditions.append(or_(*(c.icontains(wanted.search, autoescape=True) for c in searched)))
    if wanted.claim is not None:
        conditions.append(runs.c.claim_sha256 == claim_sha256(wanted.claim))
    for column, value in ((runs.c.model, wanted.model), (runs.c.lens, wanted.lens)):
        if value is not None:
            conditions.append(column == value)
    return conditions
