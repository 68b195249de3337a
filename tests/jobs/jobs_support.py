"""What tests of jobs share: requests, people, and workers in processes of their own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from heretix.accounts import People, Quotas, Role
from heretix.core.settings import Settings
from heretix.jobs import Jobs, MeasureRequest, Worker
from heretix.store import Store
from heretix.store.schema import samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier

    from faultserver import FaultServer


def request(*claims: str, **changes: Any) -> MeasureRequest:
    """A small request of a mock."""
    values = {"claims": claims or ("Tea is good",), "models": ("mock:a",), "K": 4, "R": 2, "B": 100}
    return MeasureRequest.parse(values | changes)


def explorer(store: Store, name: str = "Ada", **quotas: Any) -> Any:
    """Somebody who may measure, within quotas."""
    return People(store).add(name, role=Role.EXPLORER, quotas=Quotas(**quotas))


def work(store: Store, settings: Settings | None = None) -> int:
    """Do all that waits; how many jobs were taken up."""
    return asyncio.run(Worker(store, settings or Settings()).run_until_idle())


def stored(store: Store) -> dict[str, str]:
    """When each sample of the store was made, by its key."""
    with store.reading() as connection:
        rows = connection.execute(select(samples.c.cache_key, samples.c.created_at))
        return {row.cache_key: row.created_at for row in rows}


def count_samples(store: Store) -> int:
    """How many samples the store has."""
    with store.reading() as connection:
        return int(connection.scalar(select(func.count()).select_from(samples)) or 0)


def wait_for(happened: Callable[[], bool], *, timeout_s: float = 120.0) -> None:
    """Return as soon as something in another process has happened."""
    end = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < end, "it didn't happen"
        time.sleep(0.01)


def wait_for_calls(server: FaultServer, count: int) -> None:
    """Until the provider has heard of so many calls: none of them is on its way any more."""
    wait_for(lambda: len(server.calls) == count)


def work_in_process(url: str, env: dict[str, str], prices: str | None = None) -> None:
    """A worker that goes on until it is killed."""
    settings = Settings(env=env, prices_file=None if prices is None else Path(prices))
    with Store.open(url) as store:
        asyncio.run(Worker(store, settings).run())


def work_together(barrier: Barrier, url: str) -> None:
    """A worker that begins when the others do, and ends when nothing waits."""
    with Store.open(url, busy_timeout_ms=120_000) as store:
        Jobs(store, Settings())
        barrier.wait()
        # A lease that no stall of the machine outlasts: nobody here is to be taken for dead.
        worker = Worker(store, Settings(), parallel=2, lease_s=3600)
        asyncio.run(worker.run_until_idle())
