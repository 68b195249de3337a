"""Jobs in the database: submitted, claimed under a lease, kept alive, ended.

Whoever works on a job is named in its row; every change of theirs asks for that name, so that a
worker that was taken for dead can't write over the one that took its place.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, and_, case, delete, func, or_, select, tuple_, update

from heretix.store.db import (
    KEYS_PER_STATEMENT,
    Row,
    chunked,
    conflict_insert,
    database_now,
    filter_given,
    select_first,
    select_rows,
)
from heretix.store.samples import is_gone
from heretix.store.schema import episodes, job_runs, jobs, runs, samples

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import ColumnElement

_ACTIVE: Final = ("queued", "running")
_LATEST_RUNS: Final = 10
_NEXT: Final = jobs.c.revision + 1


def insert_job(connection: Connection, row: Row) -> bool:
    """Keep a job; False when its owner used the key before."""
    insertion = conflict_insert(connection.dialect.name, jobs).on_conflict_do_nothing()
    return connection.scalar(insertion.returning(jobs.c.job_id), row) is not None


def select_job(connection: Connection, job_id: str, *, lock: bool = False) -> Row | None:
    """Read a job; with `lock`, nobody else changes it in the meantime."""
    return select_first(connection, select(jobs).filter_by(job_id=job_id), lock=lock)


def select_job_by_key(connection: Connection, owner_id: str, key: str) -> Row | None:
    """Read the job that an owner submitted under a key."""
    return select_first(connection, select(jobs).filter_by(owner_id=owner_id, key=key))


def select_job_of_episode(connection: Connection, episode_id: str) -> Row | None:
    """Read the job under way that moves an episode on."""
    # Requests are canonical JSON: within its texts a quotation mark is always escaped.
    named = f'"episode":{json.dumps(episode_id)}'
    query = select(jobs).where(
        jobs.c.state.in_(_ACTIVE), jobs.c.request_json.contains(named, autoescape=True)
    )
    return select_first(connection, query)


def lock_episode(connection: Connection, episode_id: str) -> None:
    """Keep others from moving an episode on until this transaction ends."""
    statement = select(episodes.c.episode_id).where(episodes.c.episode_id == episode_id)
    connection.execute(statement.with_for_update())


def select_jobs(
    connection: Connection,
    *,
    owner_id: str | None,
    state: str | None,
    limit: int,
    before: str | None,
) -> list[Row]:
    """Read jobs, the newest first; `before` is the id at which the last page ended."""
    query = filter_given(select(jobs), owner_id=owner_id, state=state)
    if before is not None:
        last = select(jobs.c.created_at, jobs.c.job_id).where(jobs.c.job_id == before)
        at = connection.execute(last).first()
        if at is None:
            return []
        query = query.where(tuple_(jobs.c.created_at, jobs.c.job_id) < tuple_(*at))
    query = query.order_by(jobs.c.created_at.desc(), jobs.c.job_id.desc()).limit(limit)
    return select_rows(connection, query)


def count_jobs(connection: Connection) -> dict[str, int]:
    """Count jobs that wait or run, by state."""
    counts = select(jobs.c.state, func.count().label("number")).where(jobs.c.state.in_(_ACTIVE))
    found = {row.state: row.number for row in connection.execute(counts.group_by(jobs.c.state))}
    return {state: found.get(state, 0) for state in _ACTIVE}


def count_use(
    connection: Connection, owner_id: str, day: str, *, without: str | None = None
) -> tuple[int, int, int]:
    """Count jobs of the day, jobs that wait or run, and millionths of a dollar of the day.

    A job that hasn't ended counts with all that it may spend, and so does one that ended without
    anybody knowing what it cost. `without` is a job to leave out.
    """
    active = jobs.c.state.in_(_ACTIVE)
    ended = func.coalesce(jobs.c.spent_micros, jobs.c.budget_micros, 0)
    reserved = func.coalesce(jobs.c.budget_micros, jobs.c.spent_micros, 0)
    today = jobs.c.day == day
    statement = select(
        func.coalesce(func.sum(case((today, 1), else_=0)), 0),
        func.coalesce(func.sum(case((active, 1), else_=0)), 0),
        func.coalesce(func.sum(case((and_(today, active), reserved), (today, ended), else_=0)), 0),
    ).where(jobs.c.owner_id == owner_id, or_(today, active))
    if without is not None:
        statement = statement.where(jobs.c.job_id != without)
    row = connection.execute(statement).one()
    return int(row[0]), int(row[1]), int(row[2])


def is_job_waiting(connection: Connection, *, ours: Collection[str] = ()) -> bool:
    """Tell that there is a job to claim. Asked first: a claim writes, and this only reads."""
    found = connection.execute(select(jobs.c.job_id).where(_match_free(connection, ours)).limit(1))
    return found.first() is not None


def claim_job(
    connection: Connection,
    worker: str,
    *,
    lease_s: float,
    stamp: str,
    ours: Collection[str] = (),
) -> Row | None:
    """Take a job that nobody works on, or whose worker is gone; those named `ours` aren't.

    Of those whose owners have the fewest jobs under way, the one that has waited longest: many
    jobs of one person don't keep others from their first.
    """
    # One that somebody else is taking at this moment is theirs; the next one may be free.
    chosen = connection.execute(
        select(jobs)
        .where(_match_free(connection, ours))
        .order_by(*_order_by_fewest_under_way(connection), jobs.c.created_at, jobs.c.job_id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    row = chosen.mappings().first()
    if row is None:
        return None
    values = {
        "state": "running",
        "worker": worker,
        "attempt": row["attempt"] + 1,
        "losses": row["losses"] + (row["state"] == "running"),
        "revision": row["revision"] + 1,
        "started_at": row["started_at"] or stamp,
        "updated_at": stamp,
    }
    claim = update(jobs).where(jobs.c.job_id == row["job_id"])
    connection.execute(claim.values(values | {"lease_until": database_now() + lease_s}))
    return {**row, **values}


def extend_job_lease(
    connection: Connection, job_id: str, worker: str, *, lease_s: float, news: Row | None
) -> bool | None:
    """Extend a worker's lease, with what there is to tell.

    Returns whether cancelling was asked for; None when the job isn't the worker's any more.
    """
    values: dict[str, Any] = {"lease_until": database_now() + lease_s}
    if news is not None:
        values |= news | {"revision": _NEXT}
    return connection.execute(
        update(jobs)
        .where(_is_held(job_id, worker))
        .values(values)
        .returning(jobs.c.cancel_requested)
    ).scalar()


def update_claimed_job(connection: Connection, job_id: str, worker: str, values: Row) -> bool:
    """Change a job that a worker holds; False when it doesn't any more."""
    changed = connection.execute(
        update(jobs).where(_is_held(job_id, worker)).values({**values, "revision": _NEXT})
    )
    return changed.rowcount == 1


def update_job(connection: Connection, job_id: str, values: Row) -> None:
    """Change a job."""
    changed = {**values, "revision": _NEXT}
    connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(changed))


def stop_jobs(
    connection: Connection, owner_id: str, *, error: str, error_kind: str, stamp: str
) -> list[str]:
    """Cancel what waits of an owner's, and have what runs cancelled by its worker; their ids."""
    # In one statement: of a job that a worker takes or gives back at this moment, PostgreSQL
    # then goes by what has become of it.
    waits = jobs.c.state == "queued"
    statement = (
        update(jobs)
        .where(jobs.c.owner_id == owner_id, jobs.c.state.in_(_ACTIVE))
        .values(
            state=case((waits, "cancelled"), else_=jobs.c.state),
            cancel_requested=~waits,
            finished_at=case((waits, stamp), else_=jobs.c.finished_at),
            error=error,
            error_kind=error_kind,
            updated_at=stamp,
            revision=_NEXT,
        )
        .returning(jobs.c.job_id)
    )
    return list(connection.scalars(statement))


def delete_job(connection: Connection, job_id: str) -> None:
    """Forget a job. What it measured stays."""
    connection.execute(delete(job_runs).where(job_runs.c.job_id == job_id))
    connection.execute(delete(jobs).where(jobs.c.job_id == job_id))


def save_job_runs(connection: Connection, rows: Sequence[Row]) -> None:
    """Keep what a job has measured; a later execution of a recipe takes the earlier one's place."""
    if not rows:
        return
    statement = conflict_insert(connection.dialect.name, job_runs)
    fixed = {"job_id", "run_id"}
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[job_runs.c.job_id, job_runs.c.run_id],
            set_={c.name: statement.excluded[c.name] for c in job_runs.c if c.name not in fixed},
        ),
        list(rows),
    )


def select_job_runs(connection: Connection, job_id: str) -> list[Row]:
    """Read what a job has measured, in the order in which it was finished."""
    query = select(job_runs).filter_by(job_id=job_id)
    return select_rows(connection, query.order_by(job_runs.c.finished_at, job_runs.c.run_id))


def select_revisions(connection: Connection, job_ids: Sequence[str]) -> list[Row]:
    """Read how jobs are doing: what changes of them while they run, and nothing else."""
    query = select(jobs.c.job_id, jobs.c.revision, jobs.c.state, jobs.c.progress_json, jobs.c.error)
    return [
        row
        for chunk in chunked(job_ids, KEYS_PER_STATEMENT)
        for row in select_rows(connection, query.where(jobs.c.job_id.in_(chunk)))
    ]


def count_waiting(connection: Connection, before: str) -> int:
    """Count the jobs that wait since before a moment."""
    waiting = (jobs.c.state == "queued") & (jobs.c.created_at < before)
    return connection.scalar(select(func.count()).select_from(jobs).where(waiting)) or 0


def count_by_worker(connection: Connection) -> dict[str, int]:
    """Count the jobs under way by the worker that has them; one that is gone isn't among them."""
    running = (
        select(jobs.c.worker, func.count().label("jobs"))
        .where(jobs.c.state == "running", jobs.c.lease_until >= database_now())
        .group_by(jobs.c.worker)
        .order_by(jobs.c.worker)
    )
    found = connection.execute(running)
    return {row.worker: row.jobs for row in found if row.worker and not is_gone(row.worker)}


def select_mean_latency_ms(connection: Connection, model: str) -> float | None:
    """Average how long a model took for an answer in its latest runs; None without any."""
    latest = (
        select(runs.c.run_id)
        .where(runs.c.model == model)
        .order_by(runs.c.updated_at.desc())
        .limit(_LATEST_RUNS)
    )
    mean = connection.scalar(
        select(func.avg(samples.c.latency_ms)).where(
            samples.c.run_id.in_(latest), samples.c.error.is_(None)
        )
    )
    return None if mean is None else float(mean)


def _is_held(job_id: str, worker: str) -> ColumnElement[bool]:
    return and_(jobs.c.job_id == job_id, jobs.c.worker == worker, jobs.c.state == "running")


def _match_free(connection: Connection, ours: Collection[str]) -> ColumnElement[bool]:
    """Jobs that nobody works on: they wait, their lease is over, or their worker is gone."""
    running = select(jobs.c.worker).where(jobs.c.state == "running")
    gone = [worker for worker in connection.scalars(running) if worker and is_gone(worker)]
    left = or_(jobs.c.lease_until < database_now(), jobs.c.worker.in_(gone))
    # Whoever asks knows that these go on, whatever the clock says: a machine may have slept.
    others = jobs.c.worker.not_in(ours)
    return or_(jobs.c.state == "queued", and_(jobs.c.state == "running", left, others))


def _order_by_fewest_under_way(connection: Connection) -> list[ColumnElement[int]]:
    """The order that puts first whose owners have the fewest jobs under way."""
    # Counted before: few jobs run, and asked of each that waits, many would take seconds.
    running = (
        select(jobs.c.owner_id, func.count().label("under_way"))
        .where(jobs.c.state == "running", jobs.c.lease_until >= database_now())
        .group_by(jobs.c.owner_id)
    )
    counts = {row.owner_id: row.under_way for row in connection.execute(running)}
    return [case(counts, value=jobs.c.owner_id, else_=0)] if counts else []
