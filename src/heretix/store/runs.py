"""Runs: look a record up by what the user calls it, and list what the store holds."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, or_, select

from heretix.core.errors import RecordError
from heretix.core.lenses import SHOWING
from heretix.sample import Sample
from heretix.store.executions import (
    LATEST_FIRST,
    RunSummary,
    StartedExecution,
    StoredRecord,
    claim_sha256,
)
from heretix.store.schema import executions, results, runs, samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import RowMapping

# Looking things up: the list of runs, and the record that a reference means.

_SUMMARY: Final = select(*(runs.c[field.name] for field in fields(RunSummary)))
_RECORD: Final = select(
    executions.c.execution_id,
    executions.c.run_id,
    results.c.status,
    results.c.finished_at,
    results.c.record_json,
).join(results, results.c.execution_id == executions.c.execution_id)
_OF_CLAIM: Final = (
    _SUMMARY.where(runs.c.claim_sha256 == bindparam("digest"))
    .order_by(runs.c.updated_at.desc(), runs.c.run_id)
    .limit(bindparam("most"))
)
_OF_EXECUTION: Final = _RECORD.where(executions.c.execution_id == bindparam("wanted"))
_LATEST_OF_RUN: Final = (
    select(executions.c.execution_id)
    .join(results, results.c.execution_id == executions.c.execution_id)
    .where(executions.c.run_id == bindparam("wanted"))
    .order_by(*LATEST_FIRST)
    .limit(1)
)
_HEX: Final = re.compile(r"[0-9a-f][0-9a-f-]*")
_SHOWN: Final = 5

_ANSWERED: Final = (
    select(func.count())
    .select_from(samples)
    .where(samples.c.run_id == executions.c.run_id, samples.c.error.is_(None))
    .scalar_subquery()
)
_STARTED: Final = (
    select(
        executions.c.execution_id,
        executions.c.run_id,
        executions.c.claim,
        executions.c.model,
        executions.c.config_json,
        executions.c.created_at,
        runs.c.lens,
        runs.c.variant,
        _ANSWERED.label("answered"),
        results.c.status,
    )
    .join(runs, runs.c.run_id == executions.c.run_id)
    .outerjoin(results, results.c.execution_id == executions.c.execution_id)
    .order_by(executions.c.created_at.desc(), executions.c.execution_id.desc())
)
_other: Final = executions.alias("other")
_DONE_SINCE: Final = (
    select(_other.c.execution_id)
    .join(results, results.c.execution_id == _other.c.execution_id)
    .where(_other.c.run_id == executions.c.run_id, results.c.finished_at >= executions.c.created_at)
    .correlate(executions)
    .exists()
)


def list_runs(
    connection: Connection, *, limit: int, offset: int, search: str | None, whole: bool = False
) -> list[RunSummary]:
    """Summaries, the latest first, whose claim, model or id contains `search` in any case.

    `whole` leaves out what is part of something else: an experiment, an episode.
    """
    statement = _SUMMARY.order_by(runs.c.updated_at.desc(), runs.c.run_id)
    if whole:
        statement = statement.where(runs.c.variant.is_(None))
    if search:
        statement = statement.where(
            or_(
                *(
                    column.icontains(search, autoescape=True)
                    for column in (runs.c.claim, runs.c.model, runs.c.run_id)
                )
            )
        )
    rows = connection.execute(statement.limit(limit).offset(offset))
    return [RunSummary(**row) for row in rows.mappings()]


def runs_of_claim(connection: Connection, claim: str, limit: int) -> list[RunSummary]:
    """Summaries of a claim's runs, the latest first."""
    rows = connection.execute(_OF_CLAIM, {"digest": claim_sha256(claim), "most": limit})
    return [RunSummary(**row) for row in rows.mappings()]


def count_runs(connection: Connection) -> int:
    """How many runs there are."""
    return connection.scalar(select(func.count()).select_from(runs)) or 0


def newest_sample_at(connection: Connection) -> str | None:
    """The latest time stamp of a sample."""
    newest: str | None = connection.scalar(select(func.max(samples.c.created_at)))
    return newest


def lens_records(connection: Connection, limit: int) -> list[str]:
    """The usable record of each run whose claim and model were seen under a lens, latest first."""
    seen = (
        select(runs.c.claim, runs.c.model)
        .where(runs.c.lens.in_(SHOWING), runs.c.prob_true_rpl.is_not(None))
        .distinct()
        .subquery()
    )
    statement = (
        select(results.c.record_json)
        .join(runs, runs.c.execution_id == results.c.execution_id)
        .join(seen, (seen.c.claim == runs.c.claim) & (seen.c.model == runs.c.model))
        .where(runs.c.prob_true_rpl.is_not(None), runs.c.variant.is_(None))
        .order_by(runs.c.updated_at.desc(), runs.c.run_id)
        .limit(limit)
    )
    return list(connection.scalars(statement))


def find(connection: Connection, ref: str) -> StoredRecord:
    """The record of the execution that `ref` means, or of the latest finished one of a run."""
    wanted = ref.strip().lower()
    if not wanted:
        raise RecordError("`ref` must name a run or an execution; `heretix runs` lists them")
    run_ids, execution_ids = _candidates(connection, wanted)
    if len(run_ids) + len(execution_ids) > 1:
        raise _ambiguous(ref, [*run_ids, *execution_ids])
    if execution_ids:
        condition = executions.c.execution_id == execution_ids[0]
    elif run_ids:
        condition = executions.c.run_id == run_ids[0]
    else:
        raise _unknown(ref)
    return _latest(connection, condition, (run_ids or execution_ids)[0])


def record(connection: Connection, execution_id: str) -> StoredRecord:
    """The record of an execution by its whole id: one look-up, where `find` makes several."""
    row = connection.execute(_OF_EXECUTION, {"wanted": execution_id}).mappings().one_or_none()
    if row is None:
        raise _unknown(execution_id)
    return StoredRecord(**row)


def latest_execution(connection: Connection, run_id: str) -> str | None:
    """The latest finished execution of a run, by its whole id; None where there is none."""
    found: str | None = connection.scalar(_LATEST_OF_RUN, {"wanted": run_id})
    return found


def started(connection: Connection, ref: str) -> StartedExecution:
    """The execution that `ref` means; of a run, the latest one."""
    wanted = ref.strip().lower()
    run_ids, execution_ids = _candidates(connection, wanted) if wanted else ((), ())
    if len(run_ids) + len(execution_ids) != 1:
        candidates = [*run_ids, *execution_ids]
        raise _ambiguous(ref, candidates) if candidates else _unknown(ref)
    condition = (
        executions.c.execution_id == execution_ids[0]
        if execution_ids
        else executions.c.run_id == run_ids[0]
    )
    rows = connection.execute(_STARTED.where(condition).limit(1)).mappings()
    return StartedExecution(**rows.one())


def unfinished(connection: Connection, limit: int) -> list[StartedExecution]:
    """Executions without a result, the newest first: running, stopped or killed.

    One whose recipe was executed to its end since then is left out: there is nothing to go on with.
    """
    condition = results.c.status.is_(None) & ~_DONE_SINCE
    rows = connection.execute(_STARTED.where(condition).limit(limit))
    return [StartedExecution(**row) for row in rows.mappings()]


def _latest(connection: Connection, condition: ColumnElement[bool], name: str) -> StoredRecord:
    row = (
        connection.execute(_RECORD.where(condition).order_by(*LATEST_FIRST).limit(1))
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise RecordError(
            f"`{name}` has no record: it was started and is still running, or was ended before it "
            "finished; run it again: the samples it got are kept"
        )
    return StoredRecord(**row)


def _candidates(connection: Connection, wanted: str) -> tuple[Sequence[str], Sequence[str]]:
    """Runs and executions whose id is `wanted`, or begins with it, prefix left out or not."""
    run_id, execution_id = runs.c.run_id, executions.c.execution_id
    run_fits = [run_id.startswith(wanted, autoescape=True)]
    execution_fits = [execution_id.startswith(wanted, autoescape=True)]
    if _HEX.fullmatch(wanted):
        run_fits.append(run_id.like(f"heretix-%-{wanted}%"))
        execution_fits.append(execution_id.like(f"exec-{wanted}%"))
    return (
        _ids(connection, run_id, run_fits, wanted),
        _ids(connection, execution_id, execution_fits, wanted),
    )


def _ids(
    connection: Connection,
    column: ColumnElement[str],
    fits: Sequence[ColumnElement[bool]],
    wanted: str,
) -> Sequence[str]:
    if exact := connection.scalars(select(column).where(column == wanted)).all():
        return exact
    fitting = select(column).where(or_(*fits)).order_by(column)
    return connection.scalars(fitting.limit(_SHOWN + 1)).all()


def _unknown(ref: str) -> RecordError:
    return RecordError(f"`{ref}` names no run and no execution; `heretix runs` lists them")


def _ambiguous(ref: str, candidates: Sequence[str]) -> RecordError:
    shown = ", ".join(candidates[:_SHOWN])
    others = " and others" if len(candidates) > _SHOWN else ""
    return RecordError(f"`{ref}` fits {shown}{others}; give more characters of the one you mean")


# Pages of what the store holds, each from where the one before it ended, and records by exact id.
#
# A page is one short read, so a slow reader holds nothing, and a long list costs the same at its
# end
# as at its beginning.

_LISTING_SUMMARY: Final = select(*(runs.c[field.name] for field in fields(RunSummary)))
_SAMPLE: Final = select(*(samples.c[field.name] for field in fields(Sample)))
_LISTING_RECORD: Final = (
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
_BY_EXECUTION: Final = _LISTING_RECORD.where(results.c.execution_id == bindparam("ref"))
_BY_RUN: Final = _LISTING_RECORD.where(executions.c.run_id == bindparam("ref"))


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
    statement = _LISTING_SUMMARY.where(*_conditions(wanted))
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
    statement = _LISTING_SUMMARY.where(*_conditions(wanted))
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
    row = (
        connection.execute(_LISTING_SUMMARY.where(runs.c.run_id == run_id)).mappings().one_or_none()
    )
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
