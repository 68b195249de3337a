"""Executions, runs, prompt banks and bundles in the database: how they start and finish."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import Boolean, Connection, bindparam, insert, or_, select, update

from heretix.core.errors import BankError, RecordError
from heretix.store.db import conflict_insert
from heretix.store.schema import (
    bundles,
    execution_samples,
    executions,
    prompts,
    results,
    runs,
    samples,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.sql.dml import Insert

# What the store says of runs and executions, and what it is told of them.

Status = Literal["ok", "no_estimate", "interrupted"]
"""How an execution ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStart:
    """An execution that begins."""

    execution_id: str
    run: Mapping[str, Any]
    """Columns of `runs` that are known before anything was measured."""
    config_json: str
    created_at: str


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
    """The latest summary of a recipe. Numbers are None until an execution gave some."""

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
    """The execution that this row speaks of."""
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
    """What an execution was asked to do, finished or not."""

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


# Prompt banks in the database: one version, one text.

_TEXT: Final = {
    "system": "system",
    "user_template": "user_template",
    "paraphrases_json": "paraphrases",
}
"""Columns that hold the text, and what a bank's file calls them."""
_KNOWN: Final = select(prompts).where(prompts.c.prompt_version == bindparam("version"))


def known_bank(connection: Connection, prompt_version: str) -> Mapping[str, Any] | None:
    """The bank that is registered under a version."""
    row = connection.execute(_KNOWN, {"version": prompt_version}).one_or_none()
    return None if row is None else row._asdict()


def insert_bank(connection: Connection, row: Mapping[str, Any]) -> None:
    """Register a bank, unless its version is taken."""
    connection.execute(_insert(connection.dialect.name), row)


def refuse_other_text(known: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Two texts under one version would make two measurements look like one."""
    differing = [name for column, name in _TEXT.items() if known[column] != row[column]]
    if differing:
        raise BankError(
            f"`version` {row['prompt_version']} of bank `{row['source']}` is taken: this store has "
            f"it from bank `{known['source']}`, with other text in {', '.join(differing)}; "
            f"bump `version` in `{row['source']}`"
        )


@cache
def _insert(dialect: str) -> Insert:
    return conflict_insert(dialect, prompts).on_conflict_do_nothing(
        index_elements=[prompts.c.prompt_version]
    )


# Bundles of evidence in the database.


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


# Executions in the database: how they start and finish, and what they make of their run.

LATEST_FIRST: Final = (results.c.finished_at.desc(), results.c.execution_id.desc())
"""A run stands for the execution that finished last; of two of one moment, for the greater id.
`latest_of` is the same in Python."""

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
_OF_RUN: Final = (
    select(
        executions.c.execution_id,
        executions.c.run_id,
        executions.c.created_at,
        results.c.status,
        results.c.finished_at,
    )
    .outerjoin(results, results.c.execution_id == executions.c.execution_id)
    .where(executions.c.run_id == bindparam("run_id"))
    .order_by(executions.c.created_at.desc(), executions.c.execution_id.desc())
)
_LAST_OF_RUN: Final = _OF_RUN.limit(bindparam("most"))


def start_executions(connection: Connection, starts: Sequence[ExecutionStart]) -> None:
    """Write the executions down, and their runs where they are new."""
    if not starts:
        return
    rows = [_started_run(start) for start in starts]
    connection.execute(_insert_run(connection.dialect.name), _ordered(rows, "run_id"))
    connection.execute(
        insert(executions),
        [
            {
                "execution_id": start.execution_id,
                "run_id": row["run_id"],
                "claim": row["claim"],
                "model": row["model"],
                "config_json": start.config_json,
                "created_at": start.created_at,
            }
            for start, row in zip(starts, rows, strict=True)
        ],
    )


def finish_executions(connection: Connection, ended: Sequence[ExecutionResult]) -> None:
    """Write results and the samples used, and bring the runs up to date."""
    if not ended:
        return
    run_rows = [_finished_run(result) for result in ended]
    connection.execute(
        insert(results),
        [
            {
                "execution_id": result.execution_id,
                "status": result.status,
                "finished_at": result.finished_at,
                "record_json": result.record_json,
            }
            for result in ended
        ],
    )
    used = [
        {"execution_id": result.execution_id, "cache_key": cache_key, "from_cache": from_cache}
        for result in ended
        for cache_key, from_cache in result.samples
    ]
    if used:
        connection.execute(insert(execution_samples), _ordered(used, "cache_key"))
    # A sample shows the run that used it last, so that asking `samples` for a run that was
    # served from the cache finds its samples. Who else used it stands in `execution_samples`.
    reused = [
        {"of_cache_key": cache_key, "to": result.run["run_id"]}
        for result in ended
        for cache_key, from_cache in result.samples
        if from_cache
    ]
    if reused:
        connection.execute(_MOVE_SAMPLE, _ordered(reused, "of_cache_key"))
    connection.execute(_REPLACE_RUN, _ordered(run_rows, "of_run_id"))


def executions_of(
    connection: Connection, run_id: str, limit: int | None = None
) -> list[ExecutionSummary]:
    """A run's executions, the newest first; all of them, or `limit`."""
    statement = _OF_RUN if limit is None else _LAST_OF_RUN
    given = {"run_id": run_id} if limit is None else {"run_id": run_id, "most": limit}
    rows = connection.execute(statement, given)
    return [ExecutionSummary(**row) for row in rows.mappings()]


def latest_of(found: Iterable[ExecutionSummary]) -> ExecutionSummary | None:
    """The first in the order of `LATEST_FIRST`; None where none has finished."""
    finished = ((one.finished_at, one.execution_id, one) for one in found if one.finished_at)
    return max(finished, key=itemgetter(0, 1), default=(None, None, None))[2]


@cache
def _insert_run(dialect: str) -> Insert:
    return conflict_insert(dialect, runs).on_conflict_do_nothing(index_elements=[runs.c.run_id])


def _started_run(start: ExecutionStart) -> dict[str, Any]:
    given = {"config_json": start.config_json, **start.run}
    _check_columns(given, needed=_NEEDED_AT_START)
    return {
        **dict.fromkeys(_THEIRS),
        **given,
        "execution_id": start.execution_id,
        "created_at": start.created_at,
        "updated_at": start.created_at,
        "claim_sha256": claim_sha256(given["claim"]),
    }


def _finished_run(result: ExecutionResult) -> dict[str, Any]:
    _check_columns(result.run, needed=_THEIRS)
    row = {name: value for name, value in result.run.items() if name != "run_id"}
    return {
        **row,
        "of_run_id": result.run["run_id"],
        "usable": result.status == "ok",
        "execution_id": result.execution_id,
        "updated_at": result.finished_at,
        "claim_sha256": claim_sha256(result.run["claim"]),
    }


def claim_sha256(claim: str) -> str:
    """What runs of a claim are found by."""
    return hashlib.sha256(claim.encode("utf-8", "surrogatepass")).hexdigest()


def _check_columns(run: Mapping[str, Any], *, needed: frozenset[str]) -> None:
    """A column left out would keep the value of another execution: better to stop here."""
    if missing := needed - run.keys():
        raise ValueError(f"`run` must have every column of its row, lacks {_listed(missing)}")
    if unknown := run.keys() - _THEIRS:
        raise ValueError(f"`run` may only have columns of `runs`, got {_listed(unknown)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _ordered(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """In one order everywhere, so that no two processes wait for each other in a circle."""
    return sorted(rows, key=lambda row: str(row[key]))
