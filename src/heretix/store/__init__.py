"""The database of runs, samples, episodes, accounts and jobs, on SQLite and PostgreSQL."""

from __future__ import annotations

from heretix.store.db import Store
from heretix.store.runs import (
    ExecutionResult,
    ExecutionStart,
    ExecutionSummary,
    RunSummary,
    StartedExecution,
    Status,
    StoredRecord,
)
from heretix.store.samples import LEASE_S, SampleWriter, new_owner

__all__ = [
    "LEASE_S",
    "ExecutionResult",
    "ExecutionStart",
    "ExecutionSummary",
    "RunSummary",
    "SampleWriter",
    "StartedExecution",
    "Status",
    "Store",
    "StoredRecord",
    "new_owner",
]
