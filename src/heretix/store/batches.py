"""Batches in the database: what was submitted, for whom, and what has come back.

A batch is written down, and its samples leased to it, before it is submitted; whatever happens
then, the next process finds out what became of it before anything is paid again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import Connection, and_, bindparam, case, func, insert, or_, select, update

from heretix.core.canonical import sha256_hex
from heretix.core.errors import RecordError
from heretix.store.budgets import BATCH_OWNER, Budget, cap_budget, close_holds, draw, settle_hold
from heretix.store.db import KEYS_PER_STATEMENT, chunked
from heretix.store.samples import (
    claim_leases,
    release_all_leases,
    release_leases,
    save_samples,
    select_answers,
)
from heretix.store.schema import batch_samples, batches, executions, leases, results, samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement

    from heretix.sample import Sample

State = Literal["submitting", "submitted", "collected", "abandoned"]
"""`submitting` until the provider has confirmed it. `abandoned`: it never got there, and its
samples may be asked for again."""
OPEN_STATES: Final[tuple[State, ...]] = ("submitting", "submitted")
BATCH_LEASE_S: Final = 31 * 86_400.0
"""Providers keep results for 29 or 30 days; after that a sample must be asked for anew."""

_OWNER: Final = BATCH_OWNER
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as its row tells it."""

    batch_id: str
    provider: str
    model: str
    base_url: str | None
    provider_batch_id: str | None
    state: State
    requests: int
    submitted_at: str
    updated_at: str
    expires_at: str | None = None
    note: str | None = None
    submission_id: str | None = None
    """The command that it was submitted by: that may have submitted others, too."""

    @property
    def is_open(self) -> bool:
        """Tell whether something may still come of it."""
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Fate of the samples that were to go into a batch."""

    owned: frozenset[str]
    """Keys that the batch has to bring. Without any, no batch was written down."""
    stored: Mapping[str, Sample]
    """Samples that somebody stored meanwhile."""
    elsewhere: int
    """Samples that another batch or a live run is getting already."""
    short: Budget | None = None
    """The budget that hasn't `most_micros` left, which the batch may cost."""
    most_micros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingExecution:
    """An execution that waits for batches, or waited."""

    execution_id: str
    config_json: str
    created_at: str


@dataclass(frozen=True, slots=True)
class OwnSample:
    """A sample that an execution asked for itself."""

    collected_at: str | None
    error: str | None
    """Reason why the request failed, if it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUsage:
    """Results of a batch so far."""

    answered: int
    failed: int
    tokens_in: int | None
    tokens_out: int | None
    """None when an answer came without its count, and before any came."""


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


_COLLECTED: Final = (
    update(batch_samples)
    .where(
        batch_samples.c.execution_id == bindparam("of_execution_id"),
        batch_samples.c.cache_key == bindparam("of_cache_key"),
    )
    .values(collected_at=bindparam("arrived_at"), error=bindparam("failure"))
)
_EXECUTIONS: Final = select(
    executions.c.execution_id, executions.c.config_json, executions.c.created_at
)
_READY: Final = (
    select(batch_samples.c.execution_id)
    .join(executions, executions.c.execution_id == batch_samples.c.execution_id)
    .outerjoin(results, results.c.execution_id == batch_samples.c.execution_id)
    .outerjoin(batches, batches.c.batch_id == batch_samples.c.batch_id)
    .where(results.c.execution_id.is_(None))
    .group_by(batch_samples.c.execution_id, executions.c.created_at)
    # An abandoned batch brings nothing: who waited for it is started again, not finished.
    .having(_count(and_(batches.c.state.is_not(None), batches.c.state != "collected")) == 0)
    .order_by(executions.c.created_at, batch_samples.c.execution_id)
)
_USAGE: Final = (
    select(
        _count(samples.c.error.is_(None)).label("answered"),
        _count(samples.c.error.is_not(None)).label("failed"),
        func.sum(samples.c.tokens_in).label("tokens_in"),
        func.sum(samples.c.tokens_out).label("tokens_out"),
        _count(
            samples.c.error.is_(None)
            & (samples.c.tokens_in.is_(None) | samples.c.tokens_out.is_(None))
        ).label("uncounted"),
    )
    .join(batch_samples, batch_samples.c.cache_key == samples.c.cache_key)
    .where(
        batch_samples.c.batch_id == bindparam("of_batch_id"),
        batch_samples.c.owned,
        batch_samples.c.collected_at.is_not(None),
    )
)


def draw_batch(
    connection: Connection,
    batch: Batch,
    wanted: Sequence[tuple[str, str]],
    *,
    use_cache: bool,
    caps: Mapping[str, int] | None = None,
    bounds: Mapping[str, int] | None = None,
) -> Drawn:
    """Write a batch down before it is submitted, and take leases on its samples.

    `wanted` holds (execution, cache key). A sample that is stored, or that somebody else has
    a lease on, isn't taken; `requests` counts what was. Of every budget in `caps` the most that
    they may cost is held, their `bounds` together; where that isn't left, nothing is written.
    """
    keys = sorted({key for _, key in wanted})
    owner = f"{_OWNER}{batch.batch_id}"
    taken = claim_leases(connection, keys, owner, lease_s=BATCH_LEASE_S)
    stored = select_answers(connection, keys) if use_cache else {}
    release_leases(connection, sorted(taken & stored.keys()), owner)
    owned = frozenset(taken - stored.keys())
    if owned:
        most_micros = sum((bounds or {}).get(key, 0) for key in owned)
        short = _hold_most(connection, owner, caps or {}, most_micros)
        if short is not None:
            release_all_leases(connection, owner)
            close_holds(connection, owner)
            return Drawn(
                owned=frozenset(), stored={}, elsewhere=0, short=short, most_micros=most_micros
            )
        connection.execute(insert(batches), {**asdict(batch), "requests": len(owned)})
    rows = _sample_rows(connection, batch.batch_id, wanted, owned, stored.keys())
    if rows:
        connection.execute(insert(batch_samples), rows)
    elsewhere = sum(not row["owned"] for row in rows)
    return Drawn(owned=owned, stored=stored, elsewhere=elsewhere)


def _hold_most(
    connection: Connection, owner: str, caps: Mapping[str, int], most_micros: int
) -> Budget | None:
    """Hold what a batch may cost, of every budget; the one that hasn't that much left, if any."""
    for budget_id, cap_micros in sorted(caps.items()):
        cap_budget(connection, budget_id, cap_micros)
    found = draw(
        *(connection, owner, list(caps)),
        least=most_micros,
        most=most_micros,
        lease_s=BATCH_LEASE_S,
    )
    return found.short


def confirm_batch(
    connection: Connection, batch_id: str, provider_batch_id: str, *, now: str
) -> None:
    """Write down that the provider has a batch, and under which name."""
    values = {"provider_batch_id": provider_batch_id, "state": "submitted", "note": None}
    _update(connection, batch_id, updated_at=now, **values)


def note_batch(
    connection: Connection,
    batch_id: str,
    *,
    now: str,
    note: str | None = None,
    expires_at: str | None = None,
) -> None:
    """Write down what was heard of a batch last."""
    expiry = {"expires_at": expires_at} if expires_at else {}
    _update(connection, batch_id, note=note, updated_at=now, **expiry)


def abandon_batch(
    connection: Connection, batch_id: str, *, note: str, now: str, was_taken: bool = False
) -> None:
    """Give up a batch that the provider doesn't have: its samples may be asked for again.

    One that `was_taken`, and is forgotten there by now, counts at the most that it can have cost.
    """
    owner = f"{_OWNER}{batch_id}"
    _update(connection, batch_id, state="abandoned", note=note, updated_at=now)
    release_all_leases(connection, owner)
    close_holds(connection, owner, lost=was_taken)


def close_batch(connection: Connection, batch_id: str, *, note: str | None, now: str) -> None:
    """Write down that everything of a batch is stored; what it held and didn't cost is free."""
    _update(connection, batch_id, state="collected", note=note, updated_at=now)
    release_all_leases(connection, f"{_OWNER}{batch_id}")
    close_holds(connection, f"{_OWNER}{batch_id}")


def save_batch_samples(
    connection: Connection,
    batch_id: str,
    arrived: Sequence[tuple[str, Sample]],
    *,
    paid: int = 0,
    presumed: int = 0,
) -> None:
    """Keep samples that a batch brought, each with the execution that asked for it.

    The batch's leases on them end in the same transaction, and `paid` comes out of what it holds.
    """
    rows = [
        {
            "of_execution_id": execution_id,
            "of_cache_key": sample.cache_key,
            "arrived_at": sample.created_at,
            "failure": sample.error,
        }
        for execution_id, sample in arrived
    ]
    owner = f"{_OWNER}{batch_id}"
    save_samples(connection, [sample for _, sample in arrived], owner=owner)
    connection.execute(_COLLECTED, rows)
    # Named after the samples: a transaction that is made again settles once.
    keys = sorted(sample.cache_key for _, sample in arrived)
    stroke = sha256_hex("".join(keys).encode())
    settle_hold(
        connection, owner, paid=paid, presumed=presumed, stroke=stroke, lease_s=BATCH_LEASE_S
    )


def find_batch(connection: Connection, ref: str) -> Batch:
    """Find the batch that a full or shortened id means, ours or the provider's."""
    wanted = ref.strip().lower()
    bare = wanted.removeprefix("batch-")
    fits = batches.c.batch_id.startswith(f"batch-{bare}", autoescape=True)
    found = _select(
        connection, fits | (batches.c.provider_batch_id == ref.strip()), limit=_SHOWN + 1
    )
    if len(found) == 1 and wanted:
        return found[0]
    if not found or not wanted:
        raise RecordError(f"`{ref}` names no batch; `heretix batch status` lists them")
    listed = ", ".join(sorted(batch.batch_id for batch in found)[:_SHOWN])
    raise RecordError(f"`{ref}` fits {listed}; give more characters of the one you mean")


def select_open_batches(connection: Connection) -> list[Batch]:
    """Read batches of which something may still come, the oldest first."""
    return _select(connection, batches.c.state.in_(OPEN_STATES), batches.c.submitted_at)


def select_closed_batches(connection: Connection, limit: int) -> list[Batch]:
    """Read batches that are over, the newest first."""
    order = batches.c.submitted_at.desc()
    return _select(connection, batches.c.state.not_in(OPEN_STATES), order, limit=limit)


def select_provider_batch_ids(connection: Connection, provider: str) -> frozenset[str]:
    """Read the provider's names of the batches that are known."""
    named = select(batches.c.provider_batch_id).where(
        batches.c.provider == provider, batches.c.provider_batch_id.is_not(None)
    )
    return frozenset(filter(None, connection.scalars(named)))


def select_batch_keys(connection: Connection, batch_id: str) -> frozenset[str]:
    """Read the samples that a batch was submitted for."""
    own = select(batch_samples.c.cache_key).where(
        batch_samples.c.batch_id == batch_id, batch_samples.c.owned
    )
    return frozenset(connection.scalars(own))


def select_pending_samples(connection: Connection, batch_id: str) -> dict[str, str]:
    """Read the samples that a batch still has to bring, each with the execution that owns it."""
    rows = connection.execute(
        select(batch_samples.c.cache_key, batch_samples.c.execution_id).where(
            batch_samples.c.batch_id == batch_id,
            batch_samples.c.owned,
            batch_samples.c.collected_at.is_(None),
        )
    )
    return {row.cache_key: row.execution_id for row in rows}


def select_waiting_executions(
    connection: Connection, execution_ids: Sequence[str]
) -> dict[str, WaitingExecution]:
    """Read executions by id, with what is needed to plan them again."""
    return {
        row.execution_id: WaitingExecution(**row._asdict())
        for chunk in chunked(execution_ids, KEYS_PER_STATEMENT)
        for row in connection.execute(_EXECUTIONS.where(executions.c.execution_id.in_(chunk)))
    }


def select_ready_executions(connection: Connection) -> list[str]:
    """Read executions without a record that no open batch holds up, in order of start."""
    return list(connection.scalars(_READY))


def select_batch_records(connection: Connection, batch_ids: Sequence[str]) -> list[str]:
    """Read which executions that waited for these batches, or for others that were submitted with
    them, have their records, in order of start."""
    together = select(batches.c.submission_id).where(batches.c.batch_id.in_(batch_ids))
    those = or_(batches.c.batch_id.in_(batch_ids), batches.c.submission_id.in_(together))
    rows = (
        select(executions.c.execution_id)
        .join(batch_samples, batch_samples.c.execution_id == executions.c.execution_id)
        .join(batches, batches.c.batch_id == batch_samples.c.batch_id)
        .join(results, results.c.execution_id == executions.c.execution_id)
        .where(those)
        .group_by(executions.c.execution_id, executions.c.created_at)
        .order_by(executions.c.created_at, func.min(batch_samples.c.cache_key))
    )
    return list(connection.scalars(rows))


def count_left_executions(connection: Connection) -> int:
    """Count executions that waited for batches which the provider never got, and that weren't
    begun again since."""
    later = executions.alias("later")
    begun_again = (
        select(later.c.execution_id)
        .where(later.c.run_id == executions.c.run_id, later.c.created_at > executions.c.created_at)
        .exists()
    )
    left = (
        select(func.count(executions.c.execution_id.distinct()))
        .join(batch_samples, batch_samples.c.execution_id == executions.c.execution_id)
        .join(batches, batches.c.batch_id == batch_samples.c.batch_id)
        .outerjoin(results, results.c.execution_id == executions.c.execution_id)
        .where(batches.c.state == "abandoned", results.c.execution_id.is_(None), ~begun_again)
    )
    return connection.scalar(left) or 0


def select_own_samples(
    connection: Connection, execution_ids: Sequence[str]
) -> dict[tuple[str, str], OwnSample]:
    """Read the samples that executions asked for themselves, by execution and cache key."""
    own = select(batch_samples).where(batch_samples.c.owned)
    return {
        (row.execution_id, row.cache_key): OwnSample(row.collected_at, row.error)
        for chunk in chunked(execution_ids, KEYS_PER_STATEMENT)
        for row in connection.execute(own.where(batch_samples.c.execution_id.in_(chunk)))
    }


def select_batch_usage(connection: Connection, batch_id: str) -> BatchUsage:
    """Sum up what a batch has brought so far."""
    row = connection.execute(_USAGE, {"of_batch_id": batch_id}).one()
    return BatchUsage(
        answered=row.answered or 0,
        failed=row.failed or 0,
        tokens_in=None if row.uncounted else row.tokens_in,
        tokens_out=None if row.uncounted else row.tokens_out,
    )


def select_holding_batches(connection: Connection, cache_keys: Sequence[str]) -> dict[str, str]:
    """Read which of these samples a batch is to bring, each with the batch."""
    held = select(leases).where(leases.c.owner.startswith(_OWNER))
    return {
        row.cache_key: row.owner.removeprefix(_OWNER)
        for chunk in chunked(cache_keys, KEYS_PER_STATEMENT)
        for row in connection.execute(held.where(leases.c.cache_key.in_(chunk)))
    }


def _select(
    connection: Connection, condition: Any, *order: Any, limit: int | None = None
) -> list[Batch]:
    statement = select(batches).where(condition).order_by(*order, batches.c.batch_id).limit(limit)
    return [Batch(**row) for row in connection.execute(statement).mappings()]


def _update(connection: Connection, batch_id: str, **values: str | None) -> None:
    connection.execute(update(batches).where(batches.c.batch_id == batch_id).values(values))


def _sample_rows(
    connection: Connection,
    batch_id: str,
    wanted: Sequence[tuple[str, str]],
    owned: frozenset[str],
    stored: Iterable[str],
) -> list[dict[str, Any]]:
    known = set(stored)
    others = sorted({key for _, key in wanted} - known - owned)
    holders = select_holding_batches(connection, others)
    left = set(owned)
    rows = []
    for execution_id, key in wanted:
        if key in known:
            continue
        rows.append(
            {
                "execution_id": execution_id,
                "cache_key": key,
                "batch_id": batch_id if key in owned else holders.get(key),
                # A second execution that wants the same sample waits for the first one's.
                "owned": key in left,
            }
        )
        left.discard(key)
    return rows
