"""Jobs: measurements of claims and episodes in the store, which workers claim and resume."""

from __future__ import annotations

from heretix.jobs.background import BackgroundWorker
from heretix.jobs.episode_request import EpisodeRequest
from heretix.jobs.feed import Feed, JobEvent
from heretix.jobs.job import Job, JobRun, JobState, Progress
from heretix.jobs.jobs import Jobs, Usage
from heretix.jobs.planning import JobPlan
from heretix.jobs.request import GivenDocument, MeasureRequest
from heretix.jobs.worker import Worker

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
