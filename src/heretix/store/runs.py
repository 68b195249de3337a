"""Runs and executions: started, finished, listed, and found by what the user calls them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from heretix.core.canonical import sha256_text
from heretix.core.clock import utc_now
from heretix.core.errors import BankError, RecordError
from heretix.core.lenses import SHOWING
from heretix.store.db import (
    KEYS_PER_STATEMENT,
    chunked,
    conflict_insert,
    filter_given,
    has_rows,
)
from heretix.store.schema import (
    archived_records,
    archives,
    execution_samples,
    executions,
    prompts,
    results,
    runs,
    samples,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import RowMapping, ScalarSelect

    from heretix.store.db import Store

Status = Literal["ok", "no_estimate", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStart:
    """An execution that begins. `run` holds the columns of `runs` that are known by then."""

    execution_id: str
    run: Mapping[str, Any]
    config_json: str
    created_at: str
    grows: bool = False
    """True where it began with a smaller recipe, and goes on with this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """An execution that ended."""

    execution_id: str
    status: Status
    record_json: str
    finished_at: str
    run: Mapping[str, Any]
    """Every column of `runs`, aggregates included (None where there is no number), except
    `execution_id`, `created_at` and `updated_at`, which the store knows."""
    samples: Sequence[tuple[str, bool]]
    """The `cache_key` of each sample used, and whether it came from the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The latest summary of a recipe, and the execution that it speaks of. Numbers are None until
    an execution gave some."""

    run_id: str
    claim: str
    model: str
    provider: str
    prompt_version: str
    lens: str
    bundle_id: str | None
    variant: str | None
    K: int
    R: int
    T: int
    B: int
    seed: int | None
    bootstrap_seed: int | None
    prob_true_rpl: float | None
    ci_lo: float | None
    ci_hi: float | None
    ci_width: float | None
    stability_score: float | None
    stability_band: str | None
    is_stable: bool | None
    template_iqr_logit: float | None
    imbalance_ratio: float | None
    rpl_compliance_rate: float | None
    cache_hit_rate: float | None
    execution_id: str
    created_at: str
    updated_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSummary:
    """One invocation of a recipe."""

    execution_id: str
    run_id: str
    created_at: str
    status: Status | None
    """None while it runs, and for ever when it was killed."""
    finished_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """The record of a finished execution, as it stood in the artifact."""

    execution_id: str
    run_id: str
    status: Status
    finished_at: str
    record_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedExecution:
    """Request of an execution, finished or not."""

    execution_id: str
    run_id: str
    claim: str
    model: str
    config_json: str
    created_at: str
    lens: str
    variant: str | None
    answered: int
    """Answers stored under its run; one that it shares with another run may count there."""
    status: Status | None


def _select_fields(record: type[Any], **more: ScalarSelect[Any]) -> Select[Any]:
    """Ask executions for the fields of a record, each from the first table that has it."""
    tables = (runs, results, executions)
    known: dict[str, ColumnElement[Any]] = {c.name: c for table in tables for c in table.c}
    known |= {name: query.label(name) for name, query in more.items()}
    return select(*(known[field.name] for field in fields(record))).select_from(executions)


_LATEST_FIRST: Final = (results.c.finished_at.desc(), results.c.execution_id.desc())
"""A run stands for the execution that finished last; of two of one moment, for the greater id.
`latest_finished` is the same in Python."""

_OURS: Final = frozenset({"execution_id", "created_at", "updated_at", "claim_sha256"})
"""Columns of `runs` that follow from the execution, or from other columns."""
_THEIRS: Final = frozenset(column.name for column in runs.c) - _OURS
_NEEDED_AT_START: Final = frozenset(c.name for c in runs.c if not c.nullable) & _THEIRS
_FIXED: Final = frozenset({"run_id", "created_at"})

_REPLACE_RUN: Final = (
    update(runs)
    .where(
        runs.c.run_id == bindparam("of_run_id"),
        # A rerun that came to nothing must not wipe out a number that an earlier one gave.
        or_(bindparam("usable", type_=Boolean), runs.c.prob_true_rpl.is_(None)),
    )
    .values({c.name: bindparam(c.name) for c in runs.c if c.name not in _FIXED})
)
_MOVE_SAMPLE: Final = (
    update(samples)
    .where(samples.c.cache_key == bindparam("of_cache_key"), samples.c.run_id != bindparam("to"))
    .values(run_id=bindparam("to"))
)
_MOVE_EXECUTION: Final = (
    update(executions)
    .where(
        executions.c.execution_id == bindparam("of_execution_id"),
        ~exists().where(results.c.execution_id == executions.c.execution_id),
    )
    .values(run_id=bindparam("to"), config_json=bindparam("config_json"))
)
_OF_RUN: Final = (
    _select_fields(ExecutionSummary)
    .outerjoin(results, results.c.execution_id == executions.c.execution_id)
    .where(executions.c.run_id == bindparam("run_id"))
    .order_by(executions.c.created_at.desc(), executions.c.execution_id.desc())
)


def start_executions(connection: Connection, starts: Sequence[ExecutionStart]) -> None:
    """Write the executions down, and their runs where they are new."""
    if not starts:
        return
    rows = [_row_of_start(start) for start in starts]
    insertion = conflict_insert(connection.dialect.name, runs)
    # A row that is there is touched, and so locked: `_move_executions` of another process takes
    # away a row that no execution refers to.
    new = insertion.on_conflict_do_update(
        index_elements=[runs.c.run_id], set_={"claim_sha256": insertion.excluded.claim_sha256}
    )
    connection.execute(new, _sort(list({row["run_id"]: row for row in rows}.values()), "run_id"))
    names = ("execution_id", "run_id", "claim", "model", "config_json", "created_at")
    begun = [
        {name: row[name] for name in names} | {"config_json": start.config_json}
        for start, row in zip(starts, rows, strict=True)
        if not start.grows
    ]
    if begun:
        # After a broken connection they may be there already.
        first = conflict_insert(connection.dialect.name, executions)
        connection.execute(first.on_conflict_do_nothing(), begun)
    if moves := {start.execution_id: start for start in starts if start.grows}:
        _move_executions(connection, moves)


def _move_executions(connection: Connection, moves: Mapping[str, ExecutionStart]) -> None:
    """Move executions without a result under another recipe, their samples with them.

    The recipe that they leave is forgotten where nothing else belongs to it.
    """
    of_these = executions.c.execution_id.in_(list(moves))
    left = set(connection.execute(select(executions.c.run_id).where(of_these)).scalars())
    connection.execute(
        _MOVE_EXECUTION,
        [
            {
                "of_execution_id": execution_id,
                "to": moves[execution_id].run["run_id"],
                "config_json": moves[execution_id].config_json,
            }
            for execution_id in sorted(moves)
        ],
    )
    used = select(execution_samples).where(execution_samples.c.execution_id.in_(list(moves)))
    rows = [
        {"of_cache_key": row.cache_key, "to": moves[row.execution_id].run["run_id"]}
        for row in connection.execute(used)
    ]
    if rows:
        connection.execute(_MOVE_SAMPLE, _sort(rows, "of_cache_key"))
    left -= {start.run["run_id"] for start in moves.values()}
    # What somebody else is about to use is locked, and stays.
    locked = select(runs.c.run_id).where(runs.c.run_id.in_(sorted(left)))
    free = connection.execute(locked.with_for_update(skip_locked=True)).scalars().all()
    connection.execute(
        delete(runs).where(
            runs.c.run_id.in_(free),
            ~exists().where(executions.c.run_id == runs.c.run_id),
            ~exists().where(samples.c.run_id == runs.c.run_id),
        )
    )


def save_used(connection: Connection, used: Mapping[str, Mapping[str, bool]]) -> None:
    """Write down what executions have used so far: by id, each key and whether it was cached."""
    linkable = _select_linkable(connection, [key for keys in used.values() for key in keys])
    rows: list[dict[str, Any]] = [
        {"execution_id": execution_id, "cache_key": cache_key, "from_cache": from_cache}
        for execution_id, keys in used.items()
        for cache_key, from_cache in keys.items()
        if cache_key in linkable
    ]
    if rows:
        insertion = conflict_insert(connection.dialect.name, execution_samples)
        connection.execute(insertion.on_conflict_do_nothing(), _sort(rows, "cache_key"))


def _select_linkable(connection: Connection, cache_keys: Sequence[str]) -> set[str]:
    """Tell which samples are in the database, for links to point to: all but archived ones."""
    if connection.dialect.name == "postgresql":
        # Before the look: what is there now can't be archived until the links are committed.
        connection.execute(text("LOCK TABLE execution_samples IN ROW EXCLUSIVE MODE"))
    if not has_rows(connection, archives):
        return set(cache_keys)
    found: set[str] = set()
    for chunk in chunked(cache_keys, KEYS_PER_STATEMENT):
        found |= set(
            connection.scalars(select(samples.c.cache_key).where(samples.c.cache_key.in_(chunk)))
        )
    return found


def select_used(connection: Connection, execution_ids: Sequence[str]) -> dict[str, dict[str, bool]]:
    """Read what `save_used` wrote."""
    found: dict[str, dict[str, bool]] = {}
    wanted = select(execution_samples).where(execution_samples.c.execution_id.in_(execution_ids))
    for row in connection.execute(wanted):
        found.setdefault(row.execution_id, {})[row.cache_key] = row.from_cache
    return found


def finish_executions(connection: Connection, ended: Sequence[ExecutionResult]) -> None:
    """Write results and the samples used, and bring the runs up to date."""
    if not ended:
        return
    run_rows = [_row_of_result(result) for result in ended]
    connection.execute(
        insert(results),
        [{column.name: getattr(result, column.name) for column in results.c} for result in ended],
    )
    save_used(connection, {result.execution_id: dict(result.samples) for result in ended})
    # A sample shows the run that used it last, so that asking `samples` for a run that was
    # served from the cache finds its samples. Who else used it stands in `execution_samples`.
    reused = [
        {"of_cache_key": cache_key, "to": result.run["run_id"]}
        for result in ended
        for cache_key, from_cache in result.samples
        if from_cache
    ]
    if reused:
        connection.execute(_MOVE_SAMPLE, _sort(reused, "of_cache_key"))
    connection.execute(_REPLACE_RUN, _sort(run_rows, "of_run_id"))


def select_finished(connection: Connection, execution_ids: Sequence[str]) -> frozenset[str]:
    """Read which of these executions have a result."""
    of_these = results.c.execution_id.in_(execution_ids)
    return frozenset(connection.scalars(select(results.c.execution_id).where(of_these)))


def select_executions(
    connection: Connection, run_id: str, *, limit: int | None = None
) -> list[ExecutionSummary]:
    """Read a run's executions, the newest first; all of them, or `limit`."""
    rows = connection.execute(_OF_RUN.limit(limit), {"run_id": run_id})
    return [ExecutionSummary(**row) for row in rows.mappings()]


def latest_finished(found: Iterable[ExecutionSummary]) -> ExecutionSummary | None:
    """Pick the first in the order of `_LATEST_FIRST`; None where none has finished."""
    finished = ((one.finished_at, one.execution_id, one) for one in found if one.finished_at)
    return max(finished, key=itemgetter(0, 1), default=(None, None, None))[2]


def _row_of_start(start: ExecutionStart) -> dict[str, Any]:
    given = {"config_json": start.config_json, **start.run}
    _check_columns(given, needed=_NEEDED_AT_START)
    return {
        **dict.fromkeys(_THEIRS),
        **given,
        "execution_id": start.execution_id,
        "created_at": start.created_at,
        "updated_at": start.created_at,
        "claim_sha256": sha256_text(given["claim"]),
    }


def _row_of_result(result: ExecutionResult) -> dict[str, Any]:
    _check_columns(result.run, needed=_THEIRS)
    row = dict(result.run)
    return {
        "of_run_id": row.pop("run_id"),
        **row,
        "usable": result.status == "ok",
        "execution_id": result.execution_id,
        "updated_at": result.finished_at,
        "claim_sha256": sha256_text(result.run["claim"]),
    }


def _check_columns(run: Mapping[str, Any], *, needed: frozenset[str]) -> None:
    """Refuse a row that lacks a column: it would keep the value of another execution."""
    if missing := ", ".join(sorted(needed - run.keys())):
        raise ValueError(f"`run` must have every column of its row, lacks {missing}")
    if unknown := ", ".join(sorted(run.keys() - _THEIRS)):
        raise ValueError(f"`run` may only have columns of `runs`, got {unknown}")


def _sort(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Sort, in one order everywhere, so that no two processes wait for each other in a circle."""
    return sorted(rows, key=lambda row: str(row[key]))


_SUMMARY: Final = select(*(runs.c[field.name] for field in fields(RunSummary)))
_RECORD: Final = _select_fields(StoredRecord).join(
    results, results.c.execution_id == executions.c.execution_id
)
_LATEST_RUNS: Final = _SUMMARY.order_by(runs.c.updated_at.desc(), runs.c.run_id)
_OF_CLAIM: Final = _LATEST_RUNS.where(runs.c.claim_sha256 == bindparam("digest")).limit(
    bindparam("most")
)
# Made once: putting a statement together takes about as long as running these.
_BY_EXECUTION: Final = _RECORD.where(executions.c.execution_id == bindparam("ref"))
_BY_RUN: Final = (
    _RECORD.where(executions.c.run_id == bindparam("ref")).order_by(*_LATEST_FIRST).limit(1)
)
_LATEST_OF_RUN: Final = _BY_RUN.with_only_columns(executions.c.execution_id)
_HEX: Final = re.compile(r"[0-9a-f][0-9a-f-]*")
_SHOWN: Final = 5

_ANSWERED: Final = (
    select(func.count())
    .select_from(samples)
    .where(samples.c.run_id == executions.c.run_id, samples.c.error.is_(None))
    .scalar_subquery()
)
_STARTED: Final = (
    _select_fields(StartedExecution, answered=_ANSWERED)
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


def select_runs(
    connection: Connection,
    *,
    limit: int = 20,
    offset: int = 0,
    search: str | None = None,
    wanted: RunFilter | None = None,
    whole: bool = False,
) -> list[RunSummary]:
    """Read summaries, the latest first, whose claim, model or id contains `search` in any case.

    `wanted` chooses by more than that; `whole` leaves out what is part of something else: an
    experiment, an episode.
    """
    statement = _restrict(_LATEST_RUNS, wanted or RunFilter(search=search))
    if whole:
        statement = statement.where(runs.c.variant.is_(None))
    rows = connection.execute(statement.limit(limit).offset(offset))
    return [RunSummary(**row) for row in rows.mappings()]


def select_runs_of_claim(
    connection: Connection, claim: str, *, limit: int = 200
) -> list[RunSummary]:
    """Read summaries of the runs of one claim, word for word, the latest first."""
    rows = connection.execute(_OF_CLAIM, {"digest": sha256_text(claim), "most": limit})
    return [RunSummary(**row) for row in rows.mappings()]


def select_runs_of_digest(
    connection: Connection, digest: str, *, limit: int = 200
) -> list[RunSummary]:
    """Read summaries of the runs of a claim by the beginning of its hash, the latest first."""
    # No hexadecimal digit stands behind `g`: between them lies what begins with the digest.
    fits = runs.c.claim_sha256.between(digest, f"{digest}g")
    rows = connection.execute(_LATEST_RUNS.where(fits).limit(limit))
    return [RunSummary(**row) for row in rows.mappings()]


def select_runs_of_claims(
    connection: Connection, claims: Iterable[str], *, limit: int = 500
) -> list[RunSummary]:
    """Read summaries of the runs of several claims, the latest first."""
    fits = runs.c.claim_sha256.in_([sha256_text(claim) for claim in claims])
    rows = connection.execute(_LATEST_RUNS.where(fits).limit(limit))
    return [RunSummary(**row) for row in rows.mappings()]


def count_runs(connection: Connection) -> int:
    """Count the runs."""
    return connection.scalar(select(func.count()).select_from(runs)) or 0


def select_newest_sample_time(connection: Connection) -> str | None:
    """Read when the newest sample was made; None in an empty store."""
    newest: str | None = connection.scalar(select(func.max(samples.c.created_at)))
    return newest


def select_lens_records(connection: Connection, *, limit: int = 10_000) -> list[str]:
    """Read the usable records of claims and models that were seen under a lens, latest first.

    Those of its placebo are among them; of other experiments none is.
    """
    seen = (
        select(runs.c.claim, runs.c.model)
        .where(runs.c.lens.in_(SHOWING), runs.c.prob_true_rpl.is_not(None))
        .distinct()
        .subquery()
    )
    statement = (
        select(results.c.execution_id, results.c.record_json)
        .join(runs, runs.c.execution_id == results.c.execution_id)
        .join(seen, (seen.c.claim == runs.c.claim) & (seen.c.model == runs.c.model))
        .where(
            runs.c.prob_true_rpl.is_not(None),
            runs.c.variant.is_(None) | (runs.c.variant == "sham"),
        )
        .order_by(runs.c.updated_at.desc(), runs.c.run_id)
        .limit(limit)
    )
    rows = connection.execute(statement).all()
    return [row.record_json or _read_archived_record(connection, row[0]) for row in rows]


def select_repeated(connection: Connection, *, since: str, limit: int) -> list[tuple[str, str]]:
    """Read the last two records of each recipe that was executed again since a moment."""
    place = func.row_number().over(partition_by=executions.c.run_id, order_by=_LATEST_FIRST)
    again = (
        select(executions.c.run_id)
        .join(results, results.c.execution_id == executions.c.execution_id)
        .group_by(executions.c.run_id)
        .having(func.count() > 1, func.max(results.c.finished_at) >= since)
        .order_by(func.max(results.c.finished_at).desc())
        .limit(limit)
    )
    ranked = (
        select(executions.c.run_id, results.c.execution_id, place.label("place"))
        .join(results, results.c.execution_id == executions.c.execution_id)
        .where(executions.c.run_id.in_(again), results.c.status == "ok")
        .subquery()
    )
    wanted = select(ranked).where(ranked.c.place <= 2).order_by(ranked.c.run_id, ranked.c.place)
    pairs: dict[str, list[str]] = {}
    for row in connection.execute(wanted):
        pairs.setdefault(row.run_id, []).append(row.execution_id)
    found = []
    for later, *earlier in pairs.values():
        records = [select_record(connection, one) for one in (*earlier, later)]
        whole = [one.record_json for one in records if one is not None]
        if len(whole) == 2:
            found.append((whole[0], whole[1]))
    return found


def find_record(connection: Connection, ref: str) -> StoredRecord:
    """Find the record that a full or shortened `run_id` or `execution_id` means.

    A run stands for its latest finished execution. A reference that fits several things, or none,
    is a `RecordError`.
    """
    wanted = ref.strip().lower()
    if not wanted:
        raise RecordError("`ref` must name a run or an execution; `heretix runs` lists them")
    record = select_record(connection, wanted)
    if record is None:
        name = _find_id(connection, ref, wanted)
        record = select_record(connection, name)
        if record is None:
            raise RecordError(
                f"`{name}` has no record: it was started and is still running, or was ended before "
                "it finished; run it again: the samples it got are kept"
            )
    return record


def select_record(connection: Connection, ref: str) -> StoredRecord | None:
    """Read the record of a finished execution, or of a run's latest one, by a whole id.

    It takes one look into one index, where `find_record` makes a search.
    """
    statement = _BY_RUN if ref.startswith("heretix-") else _BY_EXECUTION
    found = connection.execute(statement, {"ref": ref}).mappings().one_or_none()
    if found is None:
        return None
    whole = found["record_json"] or _read_archived_record(connection, found["execution_id"])
    return StoredRecord(**{**found, "record_json": whole})


def _read_archived_record(connection: Connection, execution_id: str) -> str:
    # Imported as needed: most stores have no lake.
    from heretix.store.archive import read_archived_record

    return read_archived_record(connection, execution_id)


def select_latest_execution(connection: Connection, run_id: str) -> str | None:
    """Read the id of the latest finished execution of a run; None where there is none."""
    found: str | None = connection.scalar(_LATEST_OF_RUN, {"ref": run_id})
    return found


def find_execution(connection: Connection, ref: str) -> StartedExecution:
    """Find the execution that `ref` means, finished or not; of a run, the latest one."""
    name = _find_id(connection, ref, ref.strip().lower())
    column = executions.c.run_id if name.startswith("heretix-") else executions.c.execution_id
    rows = connection.execute(_STARTED.where(column == name).limit(1)).mappings()
    return StartedExecution(**rows.one())


def select_unfinished(connection: Connection, *, limit: int = 20) -> list[StartedExecution]:
    """Read executions without a result, the newest first: running, stopped or killed.

    One whose recipe was executed to its end since then is left out: there is nothing to go on with.
    """
    condition = results.c.status.is_(None) & ~_DONE_SINCE
    rows = connection.execute(_STARTED.where(condition).limit(limit))
    return [StartedExecution(**row) for row in rows.mappings()]


def _find_id(connection: Connection, ref: str, wanted: str) -> str:
    """Find the one run or execution that a reference fits."""
    candidates = _candidates(connection, wanted) if wanted else []
    if not candidates:
        raise RecordError(f"`{ref}` names no run and no execution; `heretix runs` lists them")
    if len(candidates) > 1:
        shown = ", ".join(candidates[:_SHOWN])
        others = " and others" if len(candidates) > _SHOWN else ""
        raise RecordError(f"`{ref}` fits {shown}{others}; give more characters of the one you mean")
    return candidates[0]


def _candidates(connection: Connection, wanted: str) -> list[str]:
    """List runs and executions whose id is `wanted`, or begins with it, prefix left out or not."""
    run_id, execution_id = runs.c.run_id, executions.c.execution_id
    run_fits = [run_id.startswith(wanted, autoescape=True)]
    execution_fits = [execution_id.startswith(wanted, autoescape=True)]
    if _HEX.fullmatch(wanted):
        run_fits.append(run_id.like(f"heretix-%-{wanted}%"))
        execution_fits.append(execution_id.like(f"exec-{wanted}%"))
    found: list[str] = []
    for column, fits in ((run_id, run_fits), (execution_id, execution_fits)):
        exact = connection.scalars(select(column).where(column == wanted)).all()
        fitting = select(column).where(or_(*fits)).order_by(column).limit(_SHOWN + 1)
        found += exact or connection.scalars(fitting).all()
    return found


# Pages, each from where the one before it ended: a slow reader holds nothing, and a long list costs
# the same at its end as at its beginning.

_EXECUTION: Final = (
    select(
        executions.c.execution_id,
        executions.c.run_id,
        executions.c.claim,
        executions.c.model,
        runs.c.provider,
        runs.c.prompt_version,
        runs.c.lens,
        runs.c.variant,
        executions.c.config_json,
        executions.c.created_at,
        results.c.finished_at,
        results.c.status,
        results.c.record_json,
        archived_records.c.summary_json,
    )
    .join(runs, runs.c.run_id == executions.c.run_id)
    .outerjoin(results, results.c.execution_id == executions.c.execution_id)
    .outerjoin(archived_records, archived_records.c.execution_id == executions.c.execution_id)
)
_SAMPLE: Final = select(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Runs that fit everything that is given: a claim word for word, `search` in any case."""

    search: str | None = None
    claim: str | None = None
    model: str | None = None
    lens: str | None = None
    tag: str | None = None
    since: str | None = None
    """The first moment that counts, as in `updated_at`."""
    before: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSummary:
    """A claim, and how often it was measured."""

    claim: str
    claim_sha256: str
    runs: int
    models: int
    updated_at: str


def select_runs_page(
    connection: Connection, wanted: RunFilter, *, limit: int, after: tuple[str, str] | None
) -> list[RunSummary]:
    """Read summaries, the latest first; `after` is the last one's `updated_at` and `run_id`."""
    statement = _restrict(_LATEST_RUNS, wanted)
    if after is not None:
        at, run_id = after
        statement = statement.where(
            or_(runs.c.updated_at < at, and_(runs.c.updated_at == at, runs.c.run_id > run_id))
        )
    return [RunSummary(**row) for row in connection.execute(statement.limit(limit)).mappings()]


def select_run_rows(
    connection: Connection, wanted: RunFilter, *, limit: int, after: str | None
) -> Sequence[RowMapping]:
    """Read rows of runs by id, from behind `after` on: an order that no measurement changes."""
    statement = _restrict(_SUMMARY.add_columns(runs.c.config_json), wanted)
    return _page(connection, statement, runs.c.run_id, limit, after)


def select_execution_rows(
    connection: Connection, wanted: RunFilter, *, limit: int, after: str | None
) -> Sequence[RowMapping]:
    """Read executions by id with what was asked and the record, or what is kept of it."""
    statement = _restrict(_EXECUTION, wanted)
    return _page(connection, statement, executions.c.execution_id, limit, after)


def select_sample_rows(
    connection: Connection, *, run_id: str | None, limit: int, after: str | None
) -> Sequence[RowMapping]:
    """Read rows of samples by cache key, all of them or those of a run."""
    statement = filter_given(_SAMPLE, run_id=run_id)
    return _page(connection, statement, samples.c.cache_key, limit, after)


def select_claims_page(
    connection: Connection,
    *,
    search: str | None,
    limit: int,
    after: tuple[str, str] | None,
    wanted: RunFilter | None = None,
    whole: bool = False,
) -> list[ClaimSummary]:
    """Read claims, the one measured last first; `after` is the last one's `updated_at` and hash.

    `search` looks in claims alone; `wanted` and `whole` choose runs as `select_runs` does.
    """
    latest = func.max(runs.c.updated_at)
    statement = select(
        func.min(runs.c.claim).label("claim"),
        runs.c.claim_sha256,
        func.count().label("runs"),
        func.count(runs.c.model.distinct()).label("models"),
        latest.label("updated_at"),
    ).group_by(runs.c.claim_sha256)
    if wanted is not None:
        statement = _restrict(statement, wanted)
    if whole:
        statement = statement.where(runs.c.variant.is_(None))
    if search:
        statement = statement.where(runs.c.claim.icontains(search, autoescape=True))
    if after is not None:
        at, sha256 = after
        statement = statement.having(
            or_(latest < at, and_(latest == at, runs.c.claim_sha256 > sha256))
        )
    statement = statement.order_by(latest.desc(), runs.c.claim_sha256).limit(limit)
    return [ClaimSummary(**row) for row in connection.execute(statement).mappings()]


def select_run(connection: Connection, run_id: str) -> RunSummary | None:
    """Read the summary of one run, by its whole id."""
    row = connection.execute(_SUMMARY.where(runs.c.run_id == run_id)).mappings().one_or_none()
    return None if row is None else RunSummary(**row)


def _page(
    connection: Connection,
    statement: Select[Any],
    key: ColumnElement[str],
    limit: int,
    after: str | None,
) -> Sequence[RowMapping]:
    if after is not None:
        statement = statement.where(key > after)
    return connection.execute(statement.order_by(key).limit(limit)).mappings().all()


def _restrict(statement: Select[Any], wanted: RunFilter) -> Select[Any]:
    statement = filter_given(statement, model=wanted.model, lens=wanted.lens)
    if wanted.search:
        searched = (runs.c.claim, runs.c.model, runs.c.run_id)
        fits = (column.icontains(wanted.search, autoescape=True) for column in searched)
        statement = statement.where(or_(*fits))
    if wanted.claim is not None:
        statement = statement.where(runs.c.claim_sha256 == sha256_text(wanted.claim))
    if wanted.tag is not None:
        # A key of canonical JSON: quotes within a text are escaped, so nothing else looks like it.
        key = f"{json.dumps(tag_column(wanted.tag), ensure_ascii=False)}:true"
        tagged = select(executions.c.run_id).where(
            executions.c.config_json.contains(key, autoescape=True)
        )
        statement = statement.where(runs.c.run_id.in_(tagged))
    if wanted.since is not None:
        statement = statement.where(runs.c.updated_at >= wanted.since)
    if wanted.before is not None:
        statement = statement.where(runs.c.updated_at < wanted.before)
    return statement


def tag_column(tag: str) -> str:
    """Name the column that a tag is, among those that a claim brings."""
    return f"tag:{tag}"


# Prompt banks: the text behind each version, kept once.

_TEXT: Final = ("system", "user_template", "paraphrases_json")
"""Columns that hold the text of a bank."""
_BANK: Final = select(prompts).where(prompts.c.prompt_version == bindparam("version"))


def register_bank(
    store: Store,
    *,
    prompt_version: str,
    bank_sha256: str,
    source: str,
    system: str,
    user_template: str,
    paraphrases: Sequence[str],
) -> None:
    """Remember a bank's text. Other text under the same version is a `BankError`.

    It takes a store and not a connection: a bank that is known needs no turn to write.
    """
    row = {
        "prompt_version": prompt_version,
        "bank_sha256": bank_sha256,
        "source": source,
        "system": system,
        "user_template": user_template,
        "paraphrases_json": json.dumps(list(paraphrases), ensure_ascii=False),
        "created_at": utc_now(),
    }
    known = store.read(select_bank, prompt_version) or store.write(_insert_bank, row)
    differing = [name.removesuffix("_json") for name in _TEXT if known[name] != row[name]]
    if differing:
        raise BankError(
            f"`version` {prompt_version} of bank `{source}` is taken: this store has "
            f"it from bank `{known['source']}`, with other text in {', '.join(differing)}; "
            f"bump `version` in `{source}`"
        )


def select_bank(connection: Connection, prompt_version: str) -> Mapping[str, Any] | None:
    """Read the bank that is registered under a version."""
    row = connection.execute(_BANK, {"version": prompt_version}).one_or_none()
    return None if row is None else row._asdict()


def _insert_bank(connection: Connection, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Register a bank, unless its version is taken; the row that stands there."""
    new = conflict_insert(connection.dialect.name, prompts)
    connection.execute(new.on_conflict_do_nothing(), row)
    known = select_bank(connection, row["prompt_version"])
    assert known is not None, "the row was inserted, or was there"
    return known
