"""What other processes do with leases while a test watches."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from heretix.store import Store, new_owner
from heretix.store.samples import claim_leases, extend_leases

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier


def claim_and_wait(url: str, keys: list[str], report: Connection) -> None:
    """Take leases, say which, and do nothing until killed."""
    with Store.open(url) as store:
        report.send(store.write(claim_leases, keys, new_owner()))
        signal.pause()


def claim_bit_by_bit(barrier: Barrier, url: str, keys: list[str], seed: int, out: str) -> None:
    """Ask for all keys, some at a time and in an order of its own; write down what was taken."""
    shuffled = random.Random(seed).sample(keys, len(keys))
    owner = new_owner()
    taken: list[str] = []
    with Store.open(url, busy_timeout_ms=120_000) as store:
        barrier.wait()
        for start in range(0, len(shuffled), 150):
            taken += store.write(claim_leases, shuffled[start : start + 150], owner)
            store.write(extend_leases, owner)
        # Whoever leaves loses its leases, so all stay until the last has asked.
        barrier.wait()
    Path(out).write_text("\n".join(taken), encoding="ascii")
