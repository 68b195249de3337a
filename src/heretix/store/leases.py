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
    from collections.abc import Sequence

    from sqlalchemy.sql.dml import ReturningInsert

__all__ = ["LEASE_S", "claim", "extend", "new_owner", "release", "release_all"]

LEASE_S: Final = 60.0
"""How long a lease lasts without being extended. Owners extend theirs well before that."""

_CHUNK: Final = 500


def new_owner() -> str:
    """A name for this process that another process of the machine can check on."""
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}/{uuid.uuid4().hex[:12]}"


def claim(
    connection: Connection, cache_keys: Sequence[str], owner: str, *, until: float, now: float
) -> set[str]:
    """Take leases on those keys that are free; the keys that were taken are returned.

    A key that `owner` holds already isn't free: somebody else in the same process has it.
    """
    # In one order everywhere, so that two processes can't wait for each other for ever.
    wanted = sorted(set(cache_keys))
    _drop_orphans(connection, wanted, now)
    if not wanted:
        return set()
    rows = [{"cache_key": key, "owner": owner, "expires_at": until} for key in wanted]
    return set(connection.execute(_claim(connection.dialect.name), rows).scalars())


def extend(connection: Connection, owner: str, *, until: float) -> None:
    """Keep all leases of an owner for longer."""
    connection.execute(update(leases).where(leases.c.owner == owner).values(expires_at=until))


def release(connection: Connection, cache_keys: Sequence[str], owner: str) -> None:
    """Give leases back."""
    for start in range(0, len(cache_keys), _CHUNK):
        connection.execute(
            delete(leases).where(
                leases.c.owner == owner,
                leases.c.cache_key.in_(cache_keys[start : start + _CHUNK]),
            )
        )


def release_all(connection: Connection, owner: str) -> None:
    """Give back whatever an owner holds."""
    connection.execute(delete(leases).where(leases.c.owner == owner))


@cache
def _claim(dialect: str) -> ReturningInsert[str]:
    insert = conflict_insert(dialect, leases)
    return insert.on_conflict_do_nothing().returning(leases.c.cache_key)


def _drop_orphans(connection: Connection, cache_keys: Sequence[str], now: float) -> None:
    """End leases whose time is over, and those of processes of this machine that are gone."""
    for start in range(0, len(cache_keys), _CHUNK):
        chunk = cache_keys[start : start + _CHUNK]
        owners = connection.execute(
            select(leases.c.owner).where(leases.c.cache_key.in_(chunk)).distinct()
        ).scalars()
        gone = [owner for owner in owners if _is_gone(owner)]
        connection.execute(
            delete(leases).where(
                leases.c.cache_key.in_(chunk),
                or_(leases.c.expires_at < now, leases.c.owner.in_(gone)),
            )
        )


def _is_gone(owner: str) -> bool:
    """The owner was a process of this machine, and isn't there any more."""
    host, _, rest = owner.partition("/")
    pid, _, rest = rest.partition("/")
    started, _, _ = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    # The start time tells a process from a later one that was given the same number.
    return _started(int(pid)) != started


def _started(pid: int) -> str:
    """When a process began, by the kernel's count; "0" where it can't be told, "" if it is gone."""
    if not Path("/proc/self/stat").exists():
        return "0" if _is_alive(pid) else ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
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
