"""What other processes do to a store while a test watches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from store_builders import key, sample

from heretix.store import SampleWriter, Store, db
from heretix.store.runs import select_runs
from heretix.store.samples import save_samples
from processes import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier


def run_together(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[int | None]:
    """Let one process for each of `arguments` loose at the same moment; their exit codes."""
    barrier = PROCESSES.Barrier(len(arguments))
    children = [PROCESSES.Process(target=target, args=(barrier, *args)) for args in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode for child in children]


def open_store(barrier: Barrier, url: str) -> None:
    """Open a store that doesn't exist yet, and use it."""
    barrier.wait()
    with Store.open(url, busy_timeout_ms=120_000) as store:
        store.read(select_runs)


def upgrade_store(barrier: Barrier, url: str, migrations: str) -> None:
    """Open a store that is one migration behind."""
    db.MIGRATIONS, db.HEAD = migrations, "0002"
    open_store(barrier, url)


def save_again_and_again(barrier: Barrier, url: str, numbers: list[int]) -> None:
    """Save the same samples many times, in the order given."""
    with Store.open(url, busy_timeout_ms=120_000) as store:
        barrier.wait()
        for _ in range(20):
            store.write(save_samples, [sample(number) for number in numbers])


def write_until_killed(url: str, reports: Connection) -> None:
    """Write samples without end, and report how many are known to be committed."""
    asyncio.run(_write_until_killed(url, reports))


async def _write_until_killed(url: str, reports: Connection) -> None:
    number = 0
    with Store.open(url) as store:
        async with SampleWriter(store) as writer:
            while True:
                for _ in range(7):
                    await writer.put(sample(number))
                    number += 1
                await writer.flush()
                reports.send(number)


def keys_up_to(count: int) -> list[str]:
    """The keys of the first `count` samples."""
    return [key(number) for number in range(count)]
