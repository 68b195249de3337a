"""Batches in the database: what was submitted, for whom, and what has come back.

A batch is written down, and its samples leased to it, before it is submitted; whatever happens
then, the next process finds out what became of it before anything is paid again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import Connection, and_, bindparam, case, func, insert, select, update

from heretix.core.errors import RecordError
from heretix.store import samples as lease_rows
from heretix.store import samples as sample_rows
from heretix.store.schema import batch_samples, batches, executions, leases, results, samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heretix.sample import Sample
    from heretix.store.store import Store

__all__ = [
    "BATCH_LEASE_S",
    "OPEN_STATES",
    "Batch",
    "BatchUsage",
    "Batches",
    "Drawn",
    "OwnSample",
    "State",
    "WaitingExecution",
    "holding_batches",
]

State = Literal["submitting", "submitted", "collected", "abandoned"]
"""`submitting` until the provider has confirmed it. `abandoned`: it never got there, and its
samples may be asked for again."""
OPEN_STATES: Final[tuple[State, ...]] = ("submitting", "submitted")
BATCH_LEASE_S: Final = 31 * 86_400.0
"""Providers keep results for 29 or 30 days; after that a sample must be asked for anew."""

_OWNER: Final = "batch:"
_CHUNK: Final = 500
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

    @property
    def is_open(self) -> bool:
        """Something may still come of it."""
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What became of the samples that were to go into a batch."""

    owned: frozenset[str]
    """Keys that the batch has to bring. Without any, no batch was written down."""
    stored: Mapping[str, Sample]
    """Samples that somebody stored meanwhile."""
    elsewhere: int
    """Samples that another batch or a live run is getting already."""


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
    """Why the request failed, if it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUsage:
    """What a batch has brought so far."""

    answered: int
    failed: int
    tokens_in: int | None
    tokens_out: int | None
    """None when an answer came without its count, and before any came."""


class Batches:
    """The batches of one store. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def draw(self, batch: Batch, wanted: Sequence[tuple[str, str]], *, use_cache: bool) -> Drawn:
        """Write a batch down before it is submitted, and take leases on its samples.

        `wanted` holds (execution, cache key). A sample that is stored, or that somebody else has
        a lease on, isn't taken; `requests` counts what was.
        """
        now = time.time()
        keys = sorted({key for _, key in wanted})
        with self._store.writing() as connection:
            taken = lease_rows.claim(
                connection, keys, _owner(batch.batch_id), until=now + BATCH_LEASE_S, now=now
            )
            stored = sample_rows.cached(connection, keys) if use_cache else {}
            lease_rows.release(connection, sorted(taken & stored.keys()), _owner(batch.batch_id))
            owned = frozenset(taken - stored.keys())
            if owned:
                row = {field.name: getattr(batch, field.name) for field in fields(Batch)}
                connection.execute(insert(batches), {**row, "requests": len(owned)})
            rows = _sample_rows(connection, batch.batch_id, wanted, owned, stored.keys())
            if rows:
                connection.execute(insert(batch_samples), rows)
        elsewhere = sum(not row["owned"] for row in rows)
        return Drawn(owned=owned, stored=stored, elsewhere=elsewhere)

    def confirm(self, batch_id: str, provider_batch_id: str, *, now: str) -> None:
        """Write down that the provider has a batch, and under which name."""
        self._update(
            batch_id,
            provider_batch_id=provider_batch_id,
            state="submitted",
            note=None,
            updated_at=now,
        )

    def remark(
        self, batch_id: str, *, now: str, note: str | None = None, expires_at: str | None = None
    ) -> None:
        """Write down what was heard of a batch last."""
        changes = {"note": note, "updated_at": now}
        self._update(batch_id, **changes, **({"expires_at": expires_at} if expires_at else {}))

    def abandon(self, batch_id: str, *, note: str, now: str) -> None:
        """Give up a batch that the provider doesn't have: its samples may be asked for again."""
        self._close(batch_id, "abandoned", note=note, now=now)

    def close(self, batch_id: str, *, note: str | None, now: str) -> None:
        """Write down that everything of a batch is stored."""
        self._close(batch_id, "collected", note=note, now=now)

    def save(self, batch_id: str, arrived: Sequence[tuple[str, Sample]]) -> None:
        """Keep samples that a batch brought, each with the execution that asked for it.

        The batch's leases on them end in the same transaction.
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
        keys = [sample.cache_key for _, sample in arrived]
        with self._store.writing() as connection:
            sample_rows.save_samples(connection, [sample for _, sample in arrived])
            connection.execute(_COLLECTED, rows)
            lease_rows.release(connection, keys, _owner(batch_id))

    def find(self, ref: str) -> Batch:
        """The batch that a full or shortened id means, ours or the provider's."""
        wanted = ref.strip().lower()
        bare = wanted.removeprefix("batch-")
        with self._store.reading() as connection:
            found = [
                Batch(**row)
                for row in connection.execute(
                    select(batches)
                    .where(
                        batches.c.batch_id.startswith(f"batch-{bare}", autoescape=True)
                        | (batches.c.provider_batch_id == ref.strip())
                    )
                    .order_by(batches.c.batch_id)
                    .limit(_SHOWN + 1)
                ).mappings()
            ]
        if len(found) == 1 and wanted:
            return found[0]
        if not found or not wanted:
            raise RecordError(f"`{ref}` names no batch; `heretix batch status` lists them")
        listed = ", ".join(batch.batch_id for batch in found[:_SHOWN])
        raise RecordError(f"`{ref}` fits {listed}; give more characters of the one you mean")

    def open_ones(self) -> list[Batch]:
        """Batches of which something may still come, the oldest first."""
        return self._select(batches.c.state.in_(OPEN_STATES), newest_first=False)

    def latest_closed(self, limit: int) -> list[Batch]:
        """Batches that are over, the newest first."""
        return self._select(batches.c.state.not_in(OPEN_STATES), newest_first=True, limit=limit)

    def known_ids(self, provider: str) -> frozenset[str]:
        """The provider's names of the batches that are known."""
        with self._store.reading() as connection:
            return frozenset(
                name
                for name in connection.scalars(
                    select(batches.c.provider_batch_id).where(batches.c.provider == provider)
                )
                if name is not None
            )

    def keys(self, batch_id: str) -> frozenset[str]:
        """The samples that a batch was submitted for."""
        with self._store.reading() as connection:
            return frozenset(
                connection.scalars(
                    select(batch_samples.c.cache_key).where(
                        batch_samples.c.batch_id == batch_id, batch_samples.c.owned
                    )
                )
            )

    def pending(self, batch_id: str) -> dict[str, str]:
        """The samples that a batch still has to bring, each with the execution that owns it."""
        with self._store.reading() as connection:
            rows = connection.execute(
                select(batch_samples.c.cache_key, batch_samples.c.execution_id).where(
                    batch_samples.c.batch_id == batch_id,
                    batch_samples.c.owned,
                    batch_samples.c.collected_at.is_(None),
                )
            )
            return {row.cache_key: row.execution_id for row in rows}

    def executions(self, execution_ids: Sequence[str]) -> dict[str, WaitingExecution]:
        """Executions by id, with what is needed to plan them again."""
        found: dict[str, WaitingExecution] = {}
        with self._store.reading() as connection:
            for chunk in _chunks(execution_ids):
                rows = connection.execute(_EXECUTIONS.where(executions.c.execution_id.in_(chunk)))
                found.update((row.execution_id, WaitingExecution(**row._asdict())) for row in rows)
        return found

    def ready(self) -> list[str]:
        """Executions without a record that wait for no open batch any more, in order of start."""
        with self._store.reading() as connection:
            return list(connection.scalars(_READY))

    def own_samples(self, execution_ids: Sequence[str]) -> dict[tuple[str, str], OwnSample]:
        """The samples that executions asked for themselves, by execution and cache key."""
        found: dict[tuple[str, str], OwnSample] = {}
        with self._store.reading() as connection:
            for chunk in _chunks(execution_ids):
                rows = connection.execute(
                    select(
                        batch_samples.c.execution_id,
                        batch_samples.c.cache_key,
                        batch_samples.c.collected_at,
                        batch_samples.c.error,
                    ).where(batch_samples.c.execution_id.in_(chunk), batch_samples.c.owned)
                )
                found.update(
                    ((row.execution_id, row.cache_key), OwnSample(row.collected_at, row.error))
                    for row in rows
                )
        return found

    def stored(self, cache_keys: Sequence[str]) -> dict[str, Sample]:
        """What is stored under these keys, answers and failures."""
        with self._store.reading() as connection:
            return sample_rows.stored(connection, cache_keys)

    def usage(self, batch_id: str) -> BatchUsage:
        """What a batch has brought so far."""
        with self._store.reading() as connection:
            row = connection.execute(_USAGE, {"of_batch_id": batch_id}).one()
        return BatchUsage(
            answered=row.answered or 0,
            failed=row.failed or 0,
            tokens_in=None if row.uncounted else row.tokens_in,
            tokens_out=None if row.uncounted else row.tokens_out,
        )

    def _select(
        self, condition: Any, *, newest_first: bool, limit: int | None = None
    ) -> list[Batch]:
        order = batches.c.submitted_at.desc() if newest_first else batches.c.submitted_at
        with self._store.reading() as connection:
            rows = connection.execute(
                select(batches).where(condition).order_by(order, batches.c.batch_id).limit(limit)
            )
            return [Batch(**row) for row in rows.mappings()]

    def _close(self, batch_id: str, state: State, *, note: str | None, now: str) -> None:
        with self._store.writing() as connection:
            connection.execute(
                _OF_BATCH.values(state=state, note=note, updated_at=now), {"of_batch_id": batch_id}
            )
            lease_rows.release_all(connection, _owner(batch_id))

    def _update(self, batch_id: str, **values: str | None) -> None:
        with self._store.writing() as connection:
            connection.execute(_OF_BATCH.values(values), {"of_batch_id": batch_id})


def holding_batches(connection: Connection, cache_keys: Sequence[str]) -> dict[str, str]:
    """Of these samples, those that a batch is to bring, each with the batch."""
    found: dict[str, str] = {}
    for chunk in _chunks(cache_keys):
        rows = connection.execute(
            select(leases.c.cache_key, leases.c.owner).where(
                leases.c.cache_key.in_(chunk), leases.c.owner.startswith(_OWNER)
            )
        )
        found.update((row.cache_key, row.owner.removeprefix(_OWNER)) for row in rows)
    return found


_OF_BATCH: Final = update(batches).where(batches.c.batch_id == bindparam("of_batch_id"))
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
    .having(
        func.sum(
            case((and_(batches.c.state.is_not(None), batches.c.state != "collected"), 1), else_=0)
        )
        == 0
    )
    .order_by(executions.c.created_at, batch_samples.c.execution_id)
)
_USAGE: Final = (
    select(
        func.sum(case((samples.c.error.is_(None), 1), else_=0)).label("answered"),
        func.sum(case((samples.c.error.is_not(None), 1), else_=0)).label("failed"),
        func.sum(samples.c.tokens_in).label("tokens_in"),
        func.sum(samples.c.tokens_out).label("tokens_out"),
        func.sum(
            case(
                (
                    samples.c.error.is_(None)
                    & (samples.c.tokens_in.is_(None) | samples.c.tokens_out.is_(None)),
                    1,
                ),
                else_=0,
            )
        ).label("uncounted"),
    )
    .join(batch_samples, batch_samples.c.cache_key == samples.c.cache_key)
    .where(
        batch_samples.c.batch_id == bindparam("of_batch_id"),
        batch_samples.c.owned,
        batch_samples.c.collected_at.is_not(None),
    )
)


def _owner(batch_id: str) -> str:
    return f"{_OWNER}{batch_id}"


def _sample_rows(
    connection: Connection,
    batch_id: str,
    wanted: Sequence[tuple[str, str]],
    owned: frozenset[str],
    stored: Iterable[str],
) -> list[dict[str, Any]]:
    known = set(stored)
    others = sorted({key for _, key in wanted} - known - owned)
    holders = holding_batches(connection, others)
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


def _chunks(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    return (keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK))
