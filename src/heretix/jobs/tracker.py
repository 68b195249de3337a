"""What a worker sees of the job that it is working on, until it is written down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heretix.jobs.job import Phase, Progress
from heretix.measurement.tally import Tally

if TYPE_CHECKING:
    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Runner
    from heretix.plan import Plan
    from heretix.sample import Sample

__all__ = ["Tracker"]


class _Counts(Tally):
    """A tally that nobody is shown."""

    def __init__(self) -> None:
        super().__init__(0, lambda _: None, math.inf)


@dataclass(eq=False)
class Tracker:
    """Watches a run. Only the event loop that measures touches it."""

    job_id: str
    spent_before_micros: int | None
    """What earlier attempts and runners spent; None when that isn't known."""
    budget_micros: int | None = None
    """What all attempts may spend together; None: no limit."""
    phase: Phase = "evidence"
    counts: Tally = field(default_factory=_Counts)
    runs_total: int = 0
    _planned: int = 0
    _ended: set[tuple[str, str, str, str | None]] = field(default_factory=set)
    """Claims, models, lenses and variants that have a record."""
    _failed: set[tuple[str, str, str, str | None]] = field(default_factory=set)
    """Of those, where not one call was answered."""
    _fresh: list[dict[str, Any]] = field(default_factory=list)
    last_error: str | None = None

    def expect(self, *, samples: int, runs: int) -> None:
        """The plan is made, and this is how much it asks for."""
        self.phase = "measuring"
        self.counts.total = samples
        self.runs_total = runs

    def watch(self, runner: Runner) -> None:
        """From now on this runner works for the job; what was spent before it stays spent."""
        self.spent_before_micros = self.spent_micros
        self.counts.runner = runner

    def planned(self, plan: Plan, cached: int) -> None:
        """Count a plan. One that is larger than expected sharpens an earlier one."""
        self._planned += plan.N
        self.counts.total = max(self.counts.total, self._planned)
        self.counts.planned(plan, cached)

    def sampled(self, plan: Plan, sample: Sample) -> None:
        """Count a call that ended."""
        if sample.failed:
            self.last_error = sample.error
        self.counts.sampled(plan, sample)

    def shared(self, plan: Plan, sample: Sample) -> None:
        """Count what another process paid for."""
        self.counts.shared(plan, sample)

    def finished(self, record: RunRecord) -> None:
        """Keep what a record says, until it is taken away."""
        variant = record.evidence.variant if record.evidence else None
        name = (record.claim, record.model, record.lens, variant)
        self._ended.add(name)
        if record.usage.failed == record.usage.attempted:
            self._failed.add(name)
        else:
            self._failed.discard(name)
        lo, hi = record.aggregates.ci95 or (None, None)
        self._fresh.append(
            {
                "job_id": self.job_id,
                "run_id": record.run_id,
                "execution_id": record.execution_id,
                "claim": record.claim,
                "model": record.model,
                "lens": record.lens,
                "variant": variant,
                "status": record.status,
                "prob_true": record.aggregates.prob_true_rpl,
                "ci_lo": lo,
                "ci_hi": hi,
                "reason": record.reason,
                "finished_at": record.finished_at,
            }
        )

    def take_runs(self) -> list[dict[str, Any]]:
        """Runs that were finished since this was asked last."""
        fresh, self._fresh = self._fresh, []
        # The last execution of a recipe counts; no database takes two in one statement.
        return list({row["run_id"]: row for row in fresh}.values())

    def put_back(self, rows: list[dict[str, Any]]) -> None:
        """What was taken couldn't be written; it will be next time."""
        self._fresh = rows + self._fresh

    @property
    def all_failed(self) -> bool:
        """Everything was asked, and nothing was answered."""
        return bool(self._ended) and self._failed == self._ended

    @property
    def spent_micros(self) -> int | None:
        """What the job has spent in all attempts; None when that isn't known."""
        status = self.counts.runner.status if self.counts.runner else None
        spent_usd = status.spent_usd if status else 0.0
        if spent_usd is None or self.spent_before_micros is None:
            return None
        return self.spent_before_micros + round(spent_usd * 1e6)

    @property
    def budget_left_usd(self) -> float | None:
        """What is left to spend; None: no limit."""
        if self.budget_micros is None:
            return None
        spent = self.spent_micros
        left = 0 if spent is None else self.budget_micros - spent
        # Nothing at all can't be asked for; a millionth of a dollar ends with the first call.
        return max(left, 1) / 1e6

    def progress(self, phase: Phase | None = None) -> Progress:
        """How the job is doing at this moment."""
        counts = self.counts.as_dict()
        spent = self.spent_micros
        ended = phase == "ended"
        return Progress(
            phase=phase or self.phase,
            done=counts["done"],
            total=counts["total"],
            cached=counts["cached"],
            failed=counts["failed"],
            in_flight=0 if ended else counts["in_flight"],
            runs_done=len(self._ended),
            runs_total=max(self.runs_total, len(self._ended)),
            spent_usd=None if spent is None else spent / 1e6,
            per_second=counts["per_second"],
            eta_s=None if ended else counts["eta_s"],
        )
