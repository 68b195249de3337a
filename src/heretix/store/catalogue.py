"""Looking things up: the list of runs, and the record that a reference means."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from sqlalchemy import ColumnElement, Connection, bindparam, func, or_, select

from heretix.errors import RecordError
from heretix.store.executions import LATEST_FIRST, claim_sha256
from heretix.store.records import RunSummary, StartedExecution, StoredRecord
from heretix.store.schema import executions, results, runs, samples

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "count_runs",
    "find",
    "latest_execution",
    "lens_records",
    "list_runs",
    "newest_sample_at",
    "record",
    "runs_of_claim",
    "started",
    "unfinished",
]

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
        .where(runs.c.lens.in_(("MEL", "HEL", "SEL")), runs.c.prob_true_rpl.is_not(None))
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
