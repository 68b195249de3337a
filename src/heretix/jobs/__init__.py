"""Jobs: measurements of claims and episodes in the store, which workers claim and resume."""

from __future__ import annotations

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
