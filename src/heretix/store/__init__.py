"""Everything measured, kept: one schema on SQLite and PostgreSQL."""

from __future__ import annotations

from heretix.store.leases import LEASE_S, new_owner
from heretix.store.records import (
    ExecutionResult,
    ExecutionStart,
    ExecutionSummary,
    RunSummary,
    StartedExecution,
    Status,
    StoredRecord,
)
from heretix.store.store import Store
from heretix.store.writer import SampleWriter

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
