"""Who is about to pay for which sample: a lease is taken before a call, and given back after it.

Two processes on one store, or two plans in one process, never call for the same sample at the
same time. A lease that nobody gave back ends by itself: at once when its owner was a process of
this machine that is gone, else when its time is over.
"""

from __future__ import annotations

import os
import socket
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, delete, or_, select, update

from heretix.store.engine import conflict_insert
from heretix.store.schema import leases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.sql.dml import ReturningInsert

__all__ = ["LEASE_S", "claim", "extend", "is_gone", "new_owner", "release", "release_all"]

LEASE_S: Final = 60.0
"""How long a lease lasts without being extended. Owners extend theirs well before that."""

_CHUNK: Final = 500
_UNTOLD: Final = "0"
"""Stands for the start of a process that is there, and whose start can't be told."""


def new_owner() -> str:
    """A name for this process that another process of the machine can check on."""
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}/{uuid.uuid4().hex[:12]}"


def claim(
    connection: Connection, cache_keys: Sequence[str], owner: str, *, until: float, now: float
) -> set[str]:
    """Take leases on those keys that are free; the keys that were taken are returned.

    A key that `owner` holds already isn't free: somebody else in the same process has it.
    """
    # In one order everywhere, so that two processes can't wait for each other for ever.
    wanted = sorted(set(cache_keys))
    free = [key for chunk in _chunks(wanted) for key in _free(connection, chunk, now)]
    if not free:
        return set()
    rows = [{"cache_key": key, "owner": owner, "expires_at": until} for key in free]
    return set(connection.execute(_claim(connection.dialect.name), rows).scalars())


def extend(connection: Connection, owner: str, *, until: float) -> None:
    """Keep all leases of an owner for longer."""
    # A lease that is being ended right now is passed over. Waiting for it would hold up, and
    # sooner or later lock up with, the writer that ends leases of the same owner in its own order.
    held = (
        select(leases.c.cache_key).where(leases.c.owner == owner).with_for_update(skip_locked=True)
    )
    connection.execute(update(leases).where(leases.c.cache_key.in_(held)).values(expires_at=until))


def release(connection: Connection, cache_keys: Sequence[str], owner: str) -> None:
    """Give leases back."""
    for chunk in _chunks(cache_keys):
        connection.execute(
            delete(leases).where(leases.c.owner == owner, leases.c.cache_key.in_(chunk))
        )


def release_all(connection: Connection, owner: str) -> None:
    """Give back whatever an owner holds."""
    connection.execute(delete(leases).where(leases.c.owner == owner))


@cache
def _claim(dialect: str) -> ReturningInsert[str]:
    insert = conflict_insert(dialect, leases)
    return insert.on_conflict_do_nothing().returning(leases.c.cache_key)


def _free(connection: Connection, cache_keys: Sequence[str], now: float) -> Iterator[str]:
    """The keys that nobody has a lease on, once orphaned leases are ended."""
    rows = connection.execute(
        select(leases.c.cache_key, leases.c.owner).where(leases.c.cache_key.in_(cache_keys))
    ).all()
    held = {row.cache_key for row in rows}
    if held:
        held -= _end_orphans(connection, sorted(held), {row.owner for row in rows}, now)
    return (key for key in cache_keys if key not in held)


def _end_orphans(
    connection: Connection, cache_keys: Sequence[str], owners: set[str], now: float
) -> set[str]:
    """End leases whose time is over, and those of processes of this machine that are gone."""
    gone = [owner for owner in owners if is_gone(owner)]
    # One that somebody else is ending or extending at this moment is left to them: whoever never
    # waits for a lease while holding another can't be part of a deadlock.
    orphans = connection.execute(
        select(leases.c.cache_key)
        .where(
            leases.c.cache_key.in_(cache_keys),
            or_(leases.c.expires_at < now, leases.c.owner.in_(gone)),
        )
        .with_for_update(skip_locked=True)
    ).scalars()
    ended = set(orphans)
    if ended:
        connection.execute(delete(leases).where(leases.c.cache_key.in_(sorted(ended))))
    return ended


def _chunks(cache_keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (cache_keys[start : start + _CHUNK] for start in range(0, len(cache_keys), _CHUNK))


def is_gone(owner: str) -> bool:
    """The owner was a process of this machine, and isn't there any more."""
    machine, _, rest = owner.partition("/")
    pid, _, rest = rest.partition("/")
    started, _, _ = rest.partition("/")
    if machine != _machine() or not pid.isdigit():
        return False
    # The start time tells a process from a later one that was given the same number.
    return _started(int(pid)) not in {started, _UNTOLD}


@cache
def _machine() -> str:
    """This machine, this start of it, and the processes on it that can see each other.

    Its name alone won't do: containers and cloned machines often share one, and what is process
    7 in one of them is another process, or none, in the next.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        visible = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        boot, visible = f"{uuid.getnode():x}", "all"
    return f"{socket.gethostname()}:{boot}:{visible}"


def _started(pid: int) -> str:
    """When a process began, by the kernel's count; "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Not every system has this file, and some hide that of another user.
        return _UNTOLD if _is_alive(pid) else ""
    # The second field is the program's name in brackets, and may hold anything.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
