"""Samples in the database: the cache, leases on samples to be paid for, the writing thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
import uuid
from dataclasses import fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from sqlalchemy import Connection, Double, Select, bindparam, delete, or_, select, update

from heretix.core.clock import elapsed_s
from heretix.core.errors import HeretixError, StoreError
from heretix.core.event_loop import run_in_thread
from heretix.sample import Sample
from heretix.store.db import KEYS_PER_STATEMENT, chunked, conflict_insert, database_now, has_rows
from heretix.store.schema import archives, late_samples, leases, samples

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy.sql.dml import Insert

    from heretix.store.db import Store
    from heretix.store.replies import StoredReply
    from heretix.store.spool import Spool

_FIELDS: Final = tuple(field.name for field in fields(Sample))
_VALUES: Final = attrgetter(*_FIELDS)

_SAMPLES: Final = select(*(samples.c[name] for name in _FIELDS)).where(
    samples.c.cache_key.in_(bindparam("keys", expanding=True))
)
_ANSWERS: Final = _SAMPLES.where(samples.c.error.is_(None))


def select_answers(connection: Connection, cache_keys: Sequence[str]) -> dict[str, Sample]:
    """Read the answers that are known already, by `cache_key`. A failed call is no answer.

    One that was moved to a lake is read from there.
    """
    found = _look_up(connection, _ANSWERS, cache_keys)
    found |= _read_archived(connection, [key for key in cache_keys if key not in found])
    return found


def select_samples(connection: Connection, cache_keys: Sequence[str]) -> dict[str, Sample]:
    """Read what is stored under `cache_keys`, answers and failures; answers in lakes, too."""
    found = _look_up(connection, _SAMPLES, cache_keys)
    lacking = [key for key in cache_keys if key not in found or found[key].failed]
    found |= _read_archived(connection, lacking)
    return found


def save_samples(
    connection: Connection,
    batch: Sequence[Sample],
    *,
    owner: str | None = None,
    replace: bool = True,
) -> dict[str, Sample]:
    """Keep samples, all or none, and end `owner`'s leases on them in the same transaction: nobody
    sees a sample that is neither stored nor spoken for.

    A failure never replaces an answer. An answer replaces another one only with `replace`, and of
    an owner's only while it has its lease: else the first answer stays, and the late one is kept
    as paid for in vain. Returns the answers that stayed, by key. Saving twice is saving once.
    """
    if not batch:
        return {}
    # In one order everywhere: two processes that save the same keys wait for each other
    # and never for ever. The sort is stable, so the later of two equal keys stays later.
    ordered = sorted(batch, key=lambda sample: sample.cache_key)
    keys = [sample.cache_key for sample in ordered]
    over = frozenset(keys) if replace else frozenset()
    if replace and owner is not None:
        over = _lock_held(connection, keys, owner)
    _insert(connection, [sample for sample in ordered if sample.cache_key in over], replace=True)
    rest = [sample for sample in ordered if sample.cache_key not in over]
    stayed = {}
    # Nearly always all are stored, and that is known without a look.
    if _insert(connection, rest, replace=False) != len(rest):
        found = select_answers(connection, [sample.cache_key for sample in rest])
        late = [s for s in rest if s.cache_key in found and not _is_same(found[s.cache_key], s)]
        stayed = {sample.cache_key: found[sample.cache_key] for sample in late}
        save_late(connection, [sample for sample in late if not sample.failed], owner)
    if owner is not None:
        release_leases(connection, keys, owner)
    return stayed


def _insert(connection: Connection, batch: Sequence[Sample], *, replace: bool) -> int:
    """Store samples; how many were."""
    if not batch:
        return 0
    rows = [dict(zip(_FIELDS, _VALUES(sample), strict=True)) for sample in batch]
    statement = _upsert(connection.dialect.name, replace=replace)
    return connection.execute(statement, rows).rowcount


@cache
def _upsert(dialect: str, *, replace: bool) -> Insert:
    """Replace a failure by whatever comes; with `replace`, an answer by an answer, too."""
    insert = conflict_insert(dialect, samples)
    failed = samples.c.error.is_not(None)
    return insert.on_conflict_do_update(
        index_elements=[samples.c.cache_key],
        set_={name: insert.excluded[name] for name in _FIELDS if name != "cache_key"},
        where=or_(failed, insert.excluded.error.is_(None)) if replace else failed,
    ).execution_options(preserve_rowcount=True)


def _is_same(one: Sample, other: Sample) -> bool:
    """Tell that two samples are of one call; the run that shows a sample may change."""
    told = attrgetter("cache_key", "created_at", "response_id", "raw_answer", "error")
    return bool(told(one) == told(other))


def save_late(
    connection: Connection, late: Sequence[Sample | StoredReply], owner: str | None
) -> None:
    """Keep what was paid for in vain, since another answer had come first."""
    same = ("cache_key", "created_at", "run_id", "response_id", "tokens_in", "tokens_out")
    rows = [{name: getattr(one, name, None) for name in same} for one in late]
    if rows:
        vain = conflict_insert(connection.dialect.name, late_samples).on_conflict_do_nothing()
        connection.execute(vain, [row | {"owner": owner or ""} for row in rows])


def _read_archived(connection: Connection, cache_keys: Sequence[str]) -> dict[str, Sample]:
    """Read answers that were moved to a lake. Most stores have none."""
    if not has_rows(connection, archives):
        return {}
    from heretix.store.archive import select_archived

    return select_archived(connection, cache_keys)


def _look_up(
    connection: Connection, statement: Select[Any], cache_keys: Sequence[str]
) -> dict[str, Sample]:
    return {
        row.cache_key: Sample(**dict(zip(_FIELDS, row, strict=True)))
        for chunk in chunked(cache_keys, KEYS_PER_STATEMENT)
        for row in connection.execute(statement, {"keys": chunk})
    }


# Leases: taken before a call, and given back after it, so that two processes on one store, or two
# plans in one process, never pay for the same sample at the same time. One that nobody gave back
# ends by itself: at once when its owner was a process of this machine that is gone, else when its
# time is over. Time is the database's: the clocks of machines differ.

LEASE_S: Final = 60.0
"""Duration of a lease without an extension. Owners extend theirs well before that."""
_FENCE: Final = 0.75
"""Part of a lease after which its owner asks before it relies on it again."""

_UNTOLD: Final = "0"
"""Stands for the start of a process that is there, and whose start can't be told."""


class Leases:
    """The leases of one owner, and the fence before its calls. Belongs to one event loop.

    A process that slept, was stopped, or was cut off from the store may have lost leases without a
    word. It knows how long ago the store confirmed each of them, by a clock that counts sleep; when
    that is too long, it asks again before it calls.
    """

    def __init__(self, store: Store, *, lease_s: float = LEASE_S) -> None:
        self.owner = new_owner()
        self._store = store
        self._lease_s = lease_s
        self._held: dict[str, float] = {}
        """Keys, each with the moment at which what confirmed it last was begun."""
        self._extending = asyncio.Lock()

    async def claim(self, cache_keys: Sequence[str]) -> tuple[set[str], set[str]]:
        """Take leases on what is free; which those are, and the owners that had let some lapse."""
        begun = elapsed_s()
        tried = False

        def claim(connection: Connection) -> tuple[set[str], set[str]]:
            nonlocal tried
            if tried:
                # The connection broke when it was nearly done, and it may have been done.
                unsure = [key for key in cache_keys if key not in self._held]
                release_leases(connection, unsure, self.owner)
            tried = True
            return take_leases(connection, cache_keys, self.owner, lease_s=self._lease_s)

        taken, lapsed = await run_in_thread(self._store.write, claim)
        self._held |= dict.fromkeys(taken, begun)
        return taken, lapsed

    async def confirm(self, cache_key: str) -> bool:
        """Tell whether a lease is still ours, by what was heard lately or by asking."""
        while (since := self._held.get(cache_key)) is not None:
            if elapsed_s() - since < _FENCE * self._lease_s:
                return True
            async with self._extending:
                if self._held.get(cache_key) == since:
                    await self._extend()
        return False

    async def keep(self) -> None:
        """Extend all leases again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._lease_s / 4)
            # A store in trouble confirms nothing: the fence then holds up the next call, which
            # asks again, and tells.
            with contextlib.suppress(StoreError):
                async with self._extending:
                    await self._extend()

    async def release(self, cache_keys: Sequence[str]) -> None:
        """Give leases back."""
        await run_in_thread(self._store.write, release_leases, cache_keys, self.owner)
        for key in cache_keys:
            self.forget(key)

    def forget(self, cache_key: str) -> None:
        """No call will be made for this any more. What is saved ends its lease in the store."""
        self._held.pop(cache_key, None)

    async def _extend(self) -> None:
        asked, begun = list(self._held), elapsed_s()
        kept = await run_in_thread(
            self._store.write, extend_leases, self.owner, lease_s=self._lease_s
        )
        for key in asked:
            if key not in kept:
                self.forget(key)
            elif key in self._held:
                self._held[key] = begun


def new_owner() -> str:
    """Name this process so that another process of the machine can check on it."""
    return f"{_machine()}/{os.getpid()}/{_read_start(os.getpid())}/{uuid.uuid4().hex[:12]}"


def claim_leases(
    connection: Connection, cache_keys: Sequence[str], owner: str, *, lease_s: float = LEASE_S
) -> set[str]:
    """Take leases on those keys that are free; whoever has one may call for the sample.

    A key that `owner` holds already isn't free: somebody else in the same process has it.
    """
    return take_leases(connection, cache_keys, owner, lease_s=lease_s)[0]


def take_leases(
    connection: Connection, cache_keys: Sequence[str], owner: str, *, lease_s: float = LEASE_S
) -> tuple[set[str], set[str]]:
    """Take leases as `claim_leases` does; with them, the owners that orphaned leases were of: they
    may have been given answers that they couldn't store."""
    # In one order everywhere, so that two processes can't wait for each other for ever.
    wanted = sorted(set(cache_keys))
    free: list[str] = []
    lapsed: set[str] = set()
    for chunk in chunked(wanted, KEYS_PER_STATEMENT):
        found, owners = _select_free(connection, chunk)
        free += found
        lapsed |= owners
    if not free:
        return set(), lapsed
    rows = [{"cache_key": key, "owner": owner, "lease_s": lease_s} for key in free]
    return set(connection.execute(_claim(connection.dialect.name), rows).scalars()), lapsed


@cache
def _claim(dialect: str) -> Insert:
    until = database_now() + bindparam("lease_s", type_=Double)
    claim = conflict_insert(dialect, leases).values(
        cache_key=bindparam("cache_key"), owner=bindparam("owner"), expires_at=until
    )
    return claim.on_conflict_do_nothing().returning(leases.c.cache_key)


def select_unleased(connection: Connection, cache_keys: Sequence[str]) -> list[str]:
    """Read which keys `claim_leases` would find free."""
    found = []
    for chunk in chunked(cache_keys, KEYS_PER_STATEMENT):
        rows = connection.execute(
            select(leases.c.cache_key, leases.c.owner).where(
                leases.c.cache_key.in_(chunk), leases.c.expires_at >= database_now()
            )
        ).all()
        gone = {owner for owner in {row.owner for row in rows} if is_gone(owner)}
        held = {row.cache_key for row in rows if row.owner not in gone}
        found += [key for key in chunk if key not in held]
    return found


def extend_leases(connection: Connection, owner: str, *, lease_s: float = LEASE_S) -> set[str]:
    """Keep all leases of an owner for another while; which those are."""
    # A lease that is being ended right now is passed over. Waiting for it would hold up, and
    # sooner or later lock up with, the writer that ends leases of the same owner in its own order.
    held = (
        select(leases.c.cache_key).where(leases.c.owner == owner).with_for_update(skip_locked=True)
    )
    kept = connection.execute(
        update(leases)
        .where(leases.c.cache_key.in_(held))
        .values(expires_at=database_now() + lease_s)
        .returning(leases.c.cache_key)
    )
    return set(kept.scalars())


def release_leases(connection: Connection, cache_keys: Sequence[str], owner: str) -> None:
    """Give leases back."""
    for chunk in chunked(cache_keys, KEYS_PER_STATEMENT):
        connection.execute(
            delete(leases).where(leases.c.owner == owner, leases.c.cache_key.in_(chunk))
        )


def release_all_leases(
    connection: Connection, owner: str, *, but: Collection[str] = frozenset()
) -> None:
    """Give back all leases of an owner, but for some."""
    if not but:
        connection.execute(delete(leases).where(leases.c.owner == owner))
        return
    held = connection.scalars(select(leases.c.cache_key).where(leases.c.owner == owner)).all()
    release_leases(connection, [key for key in held if key not in but], owner)


def _lock_held(connection: Connection, cache_keys: Sequence[str], owner: str) -> frozenset[str]:
    """List the keys that an owner has leases on, and keep them so until the transaction ends."""
    query = select(leases.c.cache_key).where(leases.c.owner == owner).with_for_update()
    return frozenset(
        key
        for chunk in chunked(cache_keys, KEYS_PER_STATEMENT)
        for key in connection.scalars(query.where(leases.c.cache_key.in_(chunk)))
    )


def _select_free(
    connection: Connection, cache_keys: Sequence[str]
) -> tuple[Sequence[str], set[str]]:
    """List the keys that nobody has a lease on, once orphaned leases are ended: those whose time
    is over, and those of processes of this machine that are gone; and whose those were."""
    rows = connection.execute(
        select(leases.c.cache_key, leases.c.owner).where(leases.c.cache_key.in_(cache_keys))
    ).all()
    if not rows:
        return cache_keys, set()
    held = {row.cache_key: row.owner for row in rows}
    gone = [owner for owner in set(held.values()) if is_gone(owner)]
    # One that somebody else is ending or extending at this moment is left to them: whoever never
    # waits for a lease while holding another can't be part of a deadlock.
    orphans = connection.execute(
        select(leases.c.cache_key)
        .where(
            leases.c.cache_key.in_(sorted(held)),
            or_(leases.c.expires_at < database_now(), leases.c.owner.in_(gone)),
        )
        .with_for_update(skip_locked=True)
    ).scalars()
    ended = set(orphans)
    if ended:
        connection.execute(delete(leases).where(leases.c.cache_key.in_(sorted(ended))))
    free = [key for key in cache_keys if key not in held or key in ended]
    return free, {held[key] for key in ended}


def is_gone(owner: str) -> bool:
    """Tell that the owner was a process of this machine, and isn't there any more."""
    machine, pid, started = (*owner.split("/"), "", "")[:3]
    if machine != _machine() or not pid.isdigit():
        return False
    # The start time tells a process from a later one that was given the same number.
    return _read_start(int(pid)) not in {started, _UNTOLD}


@cache
def _machine() -> str:
    """Name this machine, this start of it, and the processes on it that see each other.

    Its name alone won't do: containers and cloned machines often share one, and what is process
    7 in one of them is another process, or none, in the next.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        visible = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        boot, visible = f"{uuid.getnode():x}", "all"
    return f"{socket.gethostname()}:{boot}:{visible}"


def _read_start(pid: int) -> str:
    """Tell when a process began, by the kernel's count; "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Not every system has this file, and some hide that of another user.
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            pass
        return _UNTOLD
    # The second field is the program's name in brackets, and may hold anything.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


CAPACITY: Final = 4096
"""Samples that may wait to be committed before `put` makes its callers wait."""
_GATHER_S: Final = 0.05
"""Transactions are at least this far apart unless somebody waits for one: a thousand samples a
second in twenty transactions cost a fifth of what they cost one by one. A sample that comes alone
is committed at once."""


class Keyed(Protocol):
    """An answer that was paid for, or a failure: a sample, a reply."""

    @property
    def cache_key(self) -> str:
        """Hash of all that was asked."""

    @property
    def failed(self) -> bool:
        """Nothing was answered."""


_Kept = TypeVar("_Kept", bound=Keyed)


class SampleWriter(Generic[_Kept]):
    """Hands samples from an event loop to one writing thread; an async context manager.

    An idle writer commits a sample at once. Under load, those that arrive within a twentieth of a
    second go together in the next transaction; nothing waits for a batch to fill.

    After the store failed, `flush` and `aclose` raise that failure, and without a spool `put` does:
    no sample is taken that wouldn't be kept. Those that aren't stored are in `unsaved`.
    """

    def __init__(
        self,
        store: Store,
        *,
        save: Callable[..., dict[str, _Kept]] = save_samples,  # type: ignore[assignment]
        owner: str | None = None,
        replace: bool = True,
        capacity: int = CAPACITY,
        on_error: Callable[[HeretixError], None] | None = None,
        spool: Spool[_Kept] | None = None,
    ) -> None:
        """`save` is `save_samples`, or the same for replies. `owner`'s leases end as their samples
        are saved; `replace` is that of `save`. `on_error` is called once, in the event loop, as
        soon as the store fails. `spool` keeps samples on disk until they are saved."""
        if capacity < 1:
            raise ValueError(f"`capacity` must be at least 1, got {capacity}")
        self._store = store
        self._save = save
        self._owner = owner
        self._replace = replace
        self._capacity = capacity
        self._on_error = on_error
        self._spool = spool
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Waiters, each with the count it waits for; touched in the event loop only."""
        self._thread = threading.Thread(target=self._run, name="heretix-writer", daemon=True)
        self._changed = threading.Condition()
        # What follows is shared with the thread and guarded by `_changed`.
        self.overtaken: dict[str, _Kept] = {}
        """Answers of others that came before ours and stay, by key; complete after a `flush`."""
        self._pending: list[_Kept] = []
        self._in_flight: list[_Kept] = []
        self._taken = 0
        self._committed = 0
        self._last_commit = 0.0
        self._hurry = False
        """A caller waits for a commit."""
        self._closing = False
        self._ended = False
        self._failure: HeretixError | None = None

    @property
    def unsaved(self) -> tuple[_Kept, ...]:
        """Samples that were taken and aren't committed yet, or never will be after a failure."""
        with self._changed:
            return (*self._in_flight, *self._pending)

    async def put(self, sample: _Kept) -> None:
        """Take a sample; then, when too many are waiting, wait until some are committed.

        The sample is taken first: a caller that is cancelled while it waits loses nothing.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._thread.start()
        assert self._loop is loop, "a writer belongs to one event loop"
        with self._changed:
            if self._spool is None:
                self._raise_failure()
            if self._closing:
                raise RuntimeError("`put` after `aclose`: the sample wouldn't be kept")
            self._pending.append(sample)
            if self._spool is not None:
                self._spool.append(sample)
                if self._failure is not None:
                    return
            self._taken += 1
            self._changed.notify()
            enough = self._taken - self._capacity
        await self._until_committed(enough)

    async def flush(self) -> None:
        """Wait until everything put so far is committed."""
        with self._changed:
            everything = self._taken
        await self._until_committed(everything)

    async def aclose(self) -> None:
        """Commit what is left and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._loop is None:
            return
        with contextlib.suppress(HeretixError):
            await self._until_committed(sys.maxsize)
        self._thread.join()
        with self._changed:
            self._raise_failure()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        try:
            await self.aclose()
        except HeretixError as failure:
            if exc is None:
                raise
            # What ended the body comes first; that samples were lost as well is added to it.
            if failure is not exc:
                exc.add_note(f"Besides, {len(self.unsaved)} samples weren't stored: {failure}")

    async def _until_committed(self, count: int) -> None:
        """Wait until `count` samples are committed, or the thread has ended."""
        with self._changed:
            self._raise_failure()
            if self._ended or self._committed >= count:
                return
            self._hurry = True
            self._changed.notify()
        # The thread reports through the event loop, so no report can come before the next await.
        future = asyncio.get_running_loop().create_future()
        self._waiters.append((count, future))
        await future
        with self._changed:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        """Wake those whose samples are committed, in the event loop."""
        with self._changed:
            committed = sys.maxsize if self._ended else self._committed
            failure = self._failure
        waiting = []
        for count, future in self._waiters:
            if count > committed:
                waiting.append((count, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = waiting
        if failure is not None and self._on_error is not None:
            on_error, self._on_error = self._on_error, None
            on_error(failure)

    def _run(self) -> None:
        """Commit until closed, in the thread. However it ends, nobody is left waiting."""
        failure: HeretixError | None = StoreError(
            f"`{self._store.name}`: the writer ended by a mistake in Heretix; "
            "please report the traceback above"
        )
        try:
            while batch := self._next_batch():
                stayed = self._store.write(
                    self._save, batch, owner=self._owner, replace=self._replace
                )
                with self._changed:
                    self.overtaken |= stayed
                    self._committed += len(batch)
                    self._in_flight = []
                    self._last_commit = time.monotonic()
                    if self._spool is not None:
                        self._spool.mark(self._committed)
                self._report()
            failure = None
        except HeretixError as exc:
            failure = exc
        finally:
            with self._changed:
                self._failure = failure
                self._ended = True
            self._report()

    def _next_batch(self) -> list[_Kept]:
        """Take all that has arrived; nothing means that the writer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            left_s = self._last_commit + _GATHER_S - time.monotonic()
            if left_s > 0:
                self._changed.wait_for(lambda: self._hurry or self._closing, timeout=left_s)
            self._hurry = False
            self._in_flight, self._pending = self._pending, []
            return self._in_flight

    def _report(self) -> None:
        assert self._loop is not None, "the thread is started by the first `put`"
        # A loop that was closed meanwhile has nobody waiting in it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)
