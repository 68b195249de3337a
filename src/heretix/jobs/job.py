"""A job: a measurement that somebody asked for, and how it is doing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from heretix.jobs.episode_request import EpisodeRequest
from heretix.jobs.request import MeasureRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Job", "JobKind", "JobRun", "JobState", "Phase", "Progress", "Request"]

JobKind = Literal["measure", "episode"]
Phase = Literal["waiting", "evidence", "measuring", "ended"]
Request = MeasureRequest | EpisodeRequest
"""What a job may be asked for."""


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Nobody will work on it any more, unless it is resumed."""
        return self not in {JobState.QUEUED, JobState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job has come. `done` and `total` count samples."""

    phase: Phase = "waiting"
    done: int = 0
    total: int = 0
    """0 until the plan is known."""
    cached: int = 0
    """Of those done: taken from the store, or paid for by somebody else meanwhile."""
    failed: int = 0
    in_flight: int = 0
    runs_done: int = 0
    runs_total: int = 0
    spent_usd: float | None = 0.0
    """None when a price isn't known."""
    per_second: float = 0.0
    eta_s: float | None = None

    @classmethod
    def of_json(cls, text: str) -> Progress:
        """Progress as the store keeps it."""
        return cls(**json.loads(text))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def as_json(self) -> str:
        """As the store keeps it."""
        return json.dumps(self.as_dict())


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, as it was when it was read."""

    id: str
    owner_id: str
    owner_name: str
    request: Request
    state: JobState
    created_at: str
    updated_at: str
    started_at: str | None
    finished_at: str | None
    attempt: int
    """How often a worker took it up."""
    revision: int
    """Grows with every change."""
    progress: Progress
    error: str | None
    error_kind: str | None
    budget_micros: int | None
    """What it may spend, in millionths of a dollar; None: no limit."""
    spent_micros: int | None
    """What it has spent; None when that isn't known."""
    cancel_requested: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Job:
        """The job in a row of `jobs`."""
        same = set(cls.__slots__) - {"id", "request", "state", "progress"}
        return cls(
            id=row["job_id"],
            request=_kept(row["request_json"]),
            state=JobState(row["state"]),
            progress=Progress.of_json(row["progress_json"]),
            **{name: row[name] for name in same},
        )

    @property
    def title(self) -> str:
        """A few words to call it by."""
        return self.request.title

    @property
    def kind(self) -> JobKind:
        """What it is about: claims, or a move of an episode."""
        return "episode" if isinstance(self.request, EpisodeRequest) else "measure"

    @property
    def episode(self) -> str | None:
        """The episode that it moves on; None for claims, and while a draft isn't written down."""
        if not isinstance(self.request, EpisodeRequest):
            return None
        if self.request.move == "draft" and self.state is JobState.DONE:
            # As needed: whoever only measures claims has no use for the economy.
            from heretix.economy.episode import draft_id

            return draft_id(self.id)
        return self.request.episode

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {
            "title": self.title,
            "kind": self.kind,
            "episode": self.episode,
            "state": self.state.value,
            "request": self.request.model_dump(mode="json"),
            "progress": self.progress.as_dict(),
        }


def _kept(text: str) -> Request:
    """The request in a stored job; one without a kind is a measurement of claims."""
    values = json.loads(text)
    if values.get("kind") == "episode":
        return EpisodeRequest.model_validate(values)
    return MeasureRequest.kept(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One thing that a job has measured: a claim, a model and a lens."""

    run_id: str
    execution_id: str
    claim: str
    model: str
    lens: str
    variant: str | None
    status: str
    prob_true: float | None
    ci_lo: float | None
    ci_hi: float | None
    reason: str | None
    finished_at: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> JobRun:
        """The run in a row of `job_runs`."""
        return cls(**{name: row[name] for name in cls.__slots__})

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
