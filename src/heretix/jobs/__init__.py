"""Jobs: measurements of claims and episodes in the store, which workers claim and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heretix.jobs.job import (
    EpisodeRequest,
    GivenDocument,
    Job,
    JobRun,
    JobState,
    MeasureRequest,
    Progress,
)
from heretix.jobs.jobs import Feed, JobEvent, JobPlan, Jobs, Usage

if TYPE_CHECKING:
    from heretix.jobs.worker import BackgroundWorker, Worker

__all__ = [
    "BackgroundWorker",
    "EpisodeRequest",
    "Feed",
    "GivenDocument",
    "Job",
    "JobEvent",
    "JobPlan",
    "JobRun",
    "JobState",
    "Jobs",
    "MeasureRequest",
    "Progress",
    "Usage",
    "Worker",
]


def __getattr__(name: str) -> Any:
    # Loaded when it is first used: what measures takes a quarter of a second, and pages need none.
    if name not in {"BackgroundWorker", "Worker"}:
        raise AttributeError(f"module 'heretix.jobs' has no attribute {name!r}")
    from heretix.jobs import worker

    return getattr(worker, name)
