"""What the store says of runs and executions, and what it is told of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ExecutionResult",
    "ExecutionStart",
    "ExecutionSummary",
    "RunSummary",
    "StartedExecution",
    "Status",
    "StoredRecord",
]

Status = Literal["ok", "no_estimate", "interrupted"]
"""How an execution ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStart:
    """An execution that begins."""

    execution_id: str
    run: Mapping[str, Any]
    """Columns of `runs` that are known before anything was measured."""
    config_json: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """An execution that ended."""

    execution_id: str
    status: Status
    record_json: str
    finished_at: str
    run: Mapping[str, Any]
    """Every column of `runs`, aggregates included (None where there is no number), except
    `execution_id`, `created_at` and `updated_at`, which the store knows."""
    samples: Sequence[tuple[str, bool]]
    """The `cache_key` of each sample used, and whether it came from the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The latest summary of a recipe. Numbers are None until an execution gave some."""

    run_id: str
    claim: str
    model: str
    provider: str
    prompt_version: str
    lens: str
    bundle_id: str | None
    variant: str | None
    K: int
    R: int
    T: int
    B: int
    seed: int | None
    bootstrap_seed: int | None
    prob_true_rpl: float | None
    ci_lo: float | None
    ci_hi: float | None
    ci_width: float | None
    stability_score: float | None
    stability_band: str | None
    is_stable: bool | None
    template_iqr_logit: float | None
    imbalance_ratio: float | None
    rpl_compliance_rate: float | None
    cache_hit_rate: float | None
    execution_id: str
    """The execution that this row speaks of."""
    created_at: str
    updated_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSummary:
    """One invocation of a recipe."""

    execution_id: str
    run_id: str
    created_at: str
    status: Status | None
    """None while it runs, and for ever when it was killed."""
    finished_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """The record of a finished execution, as it stood in the artifact."""

    execution_id: str
    run_id: str
    status: Status
    finished_at: str
    record_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedExecution:
    """What an execution was asked to do, finished or not."""

    execution_id: str
    run_id: str
    claim: str
    model: str
    config_json: str
    created_at: str
    lens: str
    variant: str | None
    answered: int
    """Answers stored under its run; one that it shares with another run may count there."""
    status: Status | None
