"""Workers: claim jobs, keep them alive by a heartbeat, and measure what they ask for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Self

from heretix.core import telemetry
from heretix.core.canonical import decode
from heretix.core.clock import ManualClock, SystemClock, utc_now
from heretix.core.errors import (
    ConflictError,
    HeretixError,
    ProviderError,
    RefusedError,
    StoppedError,
    StoreAwayError,
    StoreError,
)
from heretix.core.event_loop import run_in_thread
from heretix.economy.episode.state import draft_id
from heretix.economy.exchange import Exchange
from heretix.economy.judging.panel import Panel
from heretix.economy.judging.workflow import EpisodeWorkflow, Proposal
from heretix.jobs.job import EpisodeRequest, Job, JobState, Phase, Progress
from heretix.jobs.scheduler import KEEP_S, EpisodeScheduler
from heretix.measurement import service
from heretix.measurement.runner import Tally
from heretix.providers.catalog import Opener, open_provider
from heretix.report.words import no_estimate_reason
from heretix.store import jobs as rows
from heretix.store import new_owner
from heretix.store.budgets import select_budget
from heretix.store.db import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy import Connection

    from heretix.core.clock import Clock
    from heretix.core.settings import Settings
    from heretix.jobs.job import MeasureRequest
    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Counts, Retry, Runner
    from heretix.measurement.service import Measurement
    from heretix.plan import Plan
    from heretix.providers.local import SharedModels
    from heretix.sample import Sample
    from heretix.store import Store

# What a worker sees of the job that it is working on, until it is written down.


@dataclass(eq=False)
class Tracker:
    """Watches a run. Only the event loop that measures touches it."""

    job_id: str
    spent_before_micros: int | None
    """Dollars that earlier attempts and runners spent; None when that isn't known."""
    budget_micros: int | None = None
    """Budget of all attempts together; None: no limit."""
    phase: Phase = "evidence"
    counts: Tally = field(default_factory=lambda: Tally(0, lambda _: None, math.inf))
    runs_total: int = 0
    stopping: bool = False
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
        """Watch the runner that works for the job now; what was spent before it stays spent."""
        self.spent_before_micros = self.spent_micros
        self.counts.runner = runner
        if self.stopping:
            runner.stop()

    def stop(self) -> None:
        """Start nothing new, and let the calls in flight come home."""
        self.stopping = True
        if self.counts.runner is not None:
            self.counts.runner.stop()

    def on_planned(self, plan: Plan, cached: int) -> None:
        """Count a plan; there may be more of them than was expected."""
        self.on_extended(plan, plan.N, cached)

    def on_extended(self, plan: Plan, more: int, cached: int) -> None:
        """Count a plan that goes on, larger."""
        self._planned += more
        self.counts.total = max(self.counts.total, self._planned)
        self.counts.on_planned(plan, cached)

    def on_sampled(self, plan: Plan, sample: Sample) -> None:
        """Count a call that ended."""
        if sample.failed:
            self.last_error = sample.error
        self.counts.on_sampled(plan, sample)

    def on_shared(self, plan: Plan, sample: Sample) -> None:
        """Count what another process paid for."""
        self.counts.on_shared(plan, sample)

    def on_heard(self, counts: Counts) -> None:
        """Take over the counts of other machines."""
        self.counts.on_heard(counts)

    def on_finished(self, record: RunRecord) -> None:
        """Keep what a record says, until it is taken away."""
        variant = record.evidence.variant if record.evidence else None
        name = (record.claim, record.model, record.lens, variant)
        self._ended.add(name)
        self._failed.discard(name)
        if record.usage.failed == record.usage.attempted:
            self._failed.add(name)
        lo, hi = record.aggregates.ci95 or (None, None)
        row = {
            "job_id": self.job_id,
            "variant": variant,
            "prob_true": record.aggregates.prob_true_rpl,
            "ci_lo": lo,
            "ci_hi": hi,
            "reason": no_estimate_reason(record.reason) or None,
        }
        same = ("run_id", "execution_id", "claim", "model", "lens", "status", "finished_at")
        row |= {name: getattr(record, name) for name in same}
        self._fresh.append(row)

    def take_runs(self) -> list[dict[str, Any]]:
        """Runs that were finished since this was asked last."""
        fresh, self._fresh = self._fresh, []
        # The last execution of a recipe counts; no database takes two in one statement.
        return list({row["run_id"]: row for row in fresh}.values())

    def put_back(self, rows: list[dict[str, Any]]) -> None:
        """Keep runs that were taken and couldn't be written for the next time."""
        self._fresh = rows + self._fresh

    @property
    def all_failed(self) -> bool:
        """Tell whether everything was asked, and nothing answered."""
        return bool(self._ended) and self._failed == self._ended

    @property
    def spent_micros(self) -> int | None:
        """Dollars that the job has spent in all attempts, calls that may have been billed at their
        most; None when that isn't known."""
        if self.counts.runner is None or self.spent_before_micros is None:
            return self.spent_before_micros
        spending = self.counts.runner.spending
        if spending.spent_usd is None:
            return None
        spent = round(spending.spent_usd * 1e6) + spending.presumed_micros
        return self.spent_before_micros + spent

    @property
    def caps(self) -> dict[str, int]:
        """The budget that all calls of the job count against, whichever workers make them and
        whoever of these dies."""
        budget = self.budget_micros
        return {} if budget is None else {_name_budget(self.job_id): budget}

    def progress(self, phase: Phase | None = None) -> Progress:
        """Status of the job at this moment."""
        counts, spent = self.counts.as_dict(), self.spent_micros
        ended = phase == "ended"
        same = ("done", "total", "cached", "failed", "per_second")
        return Progress(
            phase=phase or self.phase,
            in_flight=0 if ended else counts["in_flight"],
            runs_done=len(self._ended),
            runs_total=max(self.runs_total, len(self._ended)),
            spent_usd=None if spent is None else spent / 1e6,
            eta_s=None if ended else counts["eta_s"],
            **{name: counts[name] for name in same},
        )


# A move of an episode, as a worker makes it: measured anew, then decided once.
#
# A decision is one transaction of the exchange's. Whoever takes the job up looks first what is left
# to do: a worker that died after it had decided has decided for all that follow.


class MoveRunner:
    """One job's move, against one store."""

    def __init__(
        self,
        request: EpisodeRequest,
        store: Store,
        settings: Settings,
        *,
        clock: Clock,
        tracker: Tracker,
        opener: Opener = open_provider,
    ) -> None:
        self._request = request
        self._store = store
        self._clock = clock
        self._tracker = tracker
        self._exchange = Exchange(store, clock=clock)
        panel = Panel(
            store,
            settings,
            observer=tracker,
            watch=tracker.watch,
            caps=tracker.caps,
            opener=opener,
        )
        self._workflow = EpisodeWorkflow(self._exchange, panel, settings=settings)

    async def run(self) -> None:
        """Make the move, or what is left of it."""
        if self._request.move != "draft":
            await self._move_on()
            return
        proposal = decode(Proposal, self._request.proposal, "proposal")
        key = self._tracker.job_id
        self._exchange.ensure_house(proposal.currency)
        if not self._exchange.knows(draft_id(key)):
            self._expect(proposal.K * proposal.R, runs=len(proposal.models))
            await self._workflow.draft(proposal, key=key)
        if self._request.opens:
            terms = self._exchange.episode(draft_id(key)).terms
            # Terms count from the moment they were written: that is when it opens, too.
            written_ms = terms.challenge_from_ms - proposal.challenge_after_ms
            Exchange(self._store, clock=ManualClock(written_ms)).open(draft_id(key))
            if terms.challenge_from_ms <= self._clock.now_ms():
                self._exchange.begin_challenge(draft_id(key))

    @property
    def _episode(self) -> str:
        assert self._request.episode is not None, "only drafts have no episode yet"
        return self._request.episode

    async def _move_on(self) -> None:
        terms, left = self._exchange.episode(self._episode).terms, self._find_left()
        self._expect(terms.K * terms.R, runs=self._count_runs_left(left))
        while left:
            try:
                await self._step()
            except (ConflictError, RefusedError):
                # A worker that was taken for dead may have decided meanwhile: that stands.
                if self._find_left() == left:
                    raise
            left = self._find_left()

    def _find_left(self) -> tuple[str | int, ...]:
        """Decision that the job was begun for, not made yet."""
        request = self._request
        episode = self._exchange.episode(self._episode)
        if request.move == "judge":
            return tuple(c.number for c in episode.challenges if not c.is_judged)
        if request.stage is None:
            return () if episode.measured_ms is not None else ("conclusion",)
        if request.move == "measure":
            measured = {found.stage for found in self._exchange.measurements(self._episode)}
            return () if request.stage in measured else (request.stage,)
        dispute = episode.disputes[int(request.stage.removeprefix("round:")) - 1]
        return () if dispute.upheld is not None else (request.stage,)

    def _count_runs_left(self, left: tuple[str | int, ...]) -> int:
        """Every model without and with the evidence: once a challenge, twice in a dispute."""
        request, times = self._request, 0
        if request.move == "judge":
            challenges = self._exchange.episode(self._episode).challenges
            times = sum(challenges[int(number)].bundle_sha256 is not None for number in left)
        elif request.stage is not None:
            times = len(left) * (2 if request.move == "rule" else 1)
        return 2 * times * len(request.models)

    async def _step(self) -> None:
        episode, final = self._episode, self._request.final
        if self._request.move == "judge":
            await self._workflow.judge_next(episode, final=final)
        elif self._request.move == "measure":
            await self._workflow.measure(episode, final=final)
        else:
            confirmed = self._request.confirmed
            await self._workflow.rule(episode, ground_confirmed=confirmed, final=final)

    def _expect(self, samples_a_run: int, *, runs: int) -> None:
        self._tracker.expect(samples=samples_a_run * runs, runs=runs)


# Workers: they claim jobs, keep them alive by a heartbeat, and measure what they ask for.
#
# Nothing of a job lives in its worker alone. A worker that ends gives its jobs back; one that dies
# is replaced when its lease is over, and the samples it had stored are taken from the store.

LEASE_S: Final = 15.0
"""Time for which a job stays a worker's without a sign of life."""
_TELL_S: Final = 0.2
"""News of a job are written at most this often."""
_BEAT_S: Final = 0.5
"""A worker asks at least this often whether to go on."""
_POLL_S: Final = 0.5
_GRACE_S: Final = 60.0
"""A worker beside a server waits for calls in flight no longer than this."""
_NEWS: Final = ("phase", "done", "total", "failed", "in_flight", "runs_done", "spent_usd")
"""Fields of a progress whose changes are told."""
_MOST_LOSSES: Final = 5
"""Workers that may vanish with a job before it is taken for what makes them vanish."""

_log: Final = logging.getLogger(__name__)


class _Verdict(Enum):
    """Reason why a heartbeat ended."""

    CANCEL = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A job in hand."""

    job: Job
    worker: str
    """The name that it is claimed under, a new one for each claim."""
    losses: int
    bundles_json: str | None
    """Bundles of its lenses, once an earlier attempt has gathered them."""
    spent_micros: int | None
    """Dollars that earlier attempts spent."""
    since_s: float = field(default_factory=time.perf_counter)


class Worker:
    """Works on up to `parallel` jobs at a time."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        parallel: int = 1,
        lease_s: float = LEASE_S,
        retry: Retry | None = None,
        clock: Clock | None = None,
        keeps: bool = False,
    ) -> None:
        """`clock` is what episodes go by; without one, the time of the machine. One that `keeps`
        also makes the moves of episodes that are due."""
        self._patience = RetryPolicy(_log.warning)
        self._store = store.with_retries(self._patience)
        self._settings = settings
        self._parallel = parallel
        self._lease_s = lease_s
        self._retry = retry
        self._clock = clock or SystemClock()
        self._scheduler = (
            EpisodeScheduler(self._store, settings, clock=self._clock) if keeps else None
        )
        self._kept_at = -math.inf
        self._models: SharedModels | None = None
        self._stopping = asyncio.Event()
        self._dropping = asyncio.Event()
        self._trackers: set[Tracker] = set()
        """Of the jobs in hand."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = False

    def stop(self, *, drop: bool = False) -> None:
        """Start nothing new, let calls in flight come home, give the jobs back and end; with
        `drop`, wait for no call. May be called from any thread, or a signal's handler."""
        self._asked_to_stop = True
        self._patience.give_up()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
                if drop:
                    self._loop.call_soon_threadsafe(self._dropping.set)

    @property
    def in_flight(self) -> int:
        """Calls that are in flight now."""
        # A list, made at once: other threads ask, too.
        runners = [tracker.counts.runner for tracker in list(self._trackers)]
        return sum(runner.status.in_flight for runner in runners if runner is not None)

    async def run(self) -> None:
        """Work until told to stop."""
        await self._work(until_idle=False)

    async def run_until_idle(self) -> int:
        """Work until no job waits; how many were taken up."""
        return await self._work(until_idle=True)

    async def _work(self, *, until_idle: bool) -> int:
        self._loop = asyncio.get_running_loop()
        if self._asked_to_stop:
            self._stopping.set()
        taken = 0
        at_work: dict[asyncio.Task[None], str] = {}
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                await self._keep()
                ours = frozenset(at_work.values())
                job = None
                if len(ours) < self._parallel:
                    job = await asyncio.to_thread(self._claim_now, ours)
                if job is not None:
                    at_work[asyncio.create_task(self._do(job))] = job.worker
                    taken += 1
                    # It begins at once: cancelled before its first step, it couldn't give back
                    # what was claimed.
                    await asyncio.sleep(0)
                    continue
                if until_idle and not at_work:
                    # What was measured may have made something else due.
                    if await self._keep(now=True):
                        continue
                    break
                await asyncio.wait(
                    {stopping, *at_work}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in [task for task in at_work if task.done()]:
                    del at_work[task]
                    # An error of the job is written into it; this one is of the worker.
                    if (problem := task.exception()) is not None:
                        _log.error("a job was dropped", exc_info=problem)
            await self._stop_and_wait(at_work)
        finally:
            stopping.cancel()
            for task in at_work:
                task.cancel()
            await asyncio.gather(*at_work, return_exceptions=True)
        return taken

    async def _keep(self, *, now: bool = False) -> int:
        """Make the moves of episodes that are due, from time to time; how many."""
        if self._scheduler is None or (not now and time.monotonic() < self._kept_at + KEEP_S):
            return 0
        try:
            return await run_in_thread(self._scheduler.make_due_moves)
        except StoreError as exc:
            _log.warning("what is due couldn't be looked for: %s", exc)
            return 0
        finally:
            self._kept_at = time.monotonic()

    async def _stop_and_wait(self, at_work: Iterable[asyncio.Task[None]]) -> None:
        """Stop all jobs in hand, and wait for their calls in flight."""
        for tracker in self._trackers:
            tracker.stop()
        await self._wait_until_done(asyncio.gather(*at_work, return_exceptions=True))

    async def _wait_until_done(self, work: asyncio.Future[Any]) -> None:
        """Wait for calls to come home, unless they are to be dropped."""
        dropping = asyncio.create_task(self._dropping.wait())
        try:
            await asyncio.wait({work, dropping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            dropping.cancel()

    def _claim_now(self, ours: frozenset[str]) -> _Claimed | None:
        worker = new_owner()

        def claim(connection: Connection) -> _Claimed | None:
            row = rows.claim_job(
                connection, worker, lease_s=self._lease_s, stamp=utc_now(), ours=ours
            )
            if row is None:
                return None
            job, spent = Job.of(row), row["spent_micros"]
            budget = select_budget(connection, _name_budget(job.id))
            if budget is not None and spent is not None:
                # A worker that died told no more of what it had spent, or had in flight.
                spent = max(spent, budget.spent_micros + budget.held_micros)
            return _Claimed(job, worker, row["losses"], row["bundles_json"], spent)

        try:
            if not self._store.read(rows.is_job_waiting, ours=ours):
                return None
            return self._store.write(claim)
        except StoreError as exc:
            # A worker outlives a database that is away for a moment.
            _log.warning("no job could be claimed: %s", exc)
            return None

    async def _do(self, claimed: _Claimed) -> None:
        """Work on a job to its end, whatever that is."""
        job = claimed.job
        tracker = Tracker(job.id, claimed.spent_micros, job.budget_micros)
        if job.cancel_requested:
            await self._end(claimed, tracker, JobState.CANCELLED)
            return
        if claimed.losses > _MOST_LOSSES:
            vanished = HeretixError(
                f"{claimed.losses} workers vanished while they worked on it, so it isn't tried "
                "again by itself; resume it to try once more"
            )
            await self._end(claimed, tracker, JobState.FAILED, vanished)
            return
        measuring = asyncio.create_task(self._work_on(claimed, tracker))
        beating = asyncio.create_task(self._beat(claimed, tracker))
        self._trackers.add(tracker)
        try:
            await asyncio.wait({measuring, beating}, return_when=asyncio.FIRST_COMPLETED)
            if beating.done() and beating.result() is _Verdict.LOST:
                _log.warning("job %s was taken over by another worker", claimed.job.id)
                tracker.stop()
                await self._wait_until_done(measuring)
        except asyncio.CancelledError:
            await _cancel(measuring, beating)
            # Let another worker go on. What was answered is stored.
            await self._give_back(claimed, tracker)
            raise
        finally:
            self._trackers.discard(tracker)
        await _cancel(measuring, beating)
        if beating.cancelled() or beating.result() is not _Verdict.LOST:
            await self._conclude(claimed, tracker, measuring)

    async def _work_on(self, claimed: _Claimed, tracker: Tracker) -> None:
        job = claimed.job
        with telemetry.span("job", job_id=job.id, kind=job.kind):
            if isinstance(job.request, EpisodeRequest):
                await self._make_move(job.request, tracker)
            else:
                await self._measure(claimed, job.request, tracker)

    async def _conclude(
        self, claimed: _Claimed, tracker: Tracker, measuring: asyncio.Task[None]
    ) -> None:
        """Write down how a job ended."""
        if measuring.cancelled():
            await self._end(claimed, tracker, JobState.CANCELLED)
        elif (problem := measuring.exception()) is None:
            await self._end(claimed, tracker, JobState.DONE)
        elif isinstance(problem, StoppedError | StoreAwayError):
            await self._give_back(claimed, tracker)
        else:
            if not isinstance(problem, HeretixError) or isinstance(problem, StoreError):
                _log.error("job %s failed", claimed.job.id, exc_info=problem)
            await self._end(claimed, tracker, JobState.FAILED, problem)

    async def _make_move(self, request: EpisodeRequest, tracker: Tracker) -> None:
        opener = self._share_models().open
        move = MoveRunner(
            request,
            self._store,
            self._settings,
            clock=self._clock,
            tracker=tracker,
            opener=opener,
        )
        await move.run()

    async def _measure(self, claimed: _Claimed, request: MeasureRequest, tracker: Tracker) -> None:
        # A thread, because files are read and hashed here: the heart must go on beating.
        measurement = await asyncio.to_thread(self._prepare, claimed, request)
        runs = sum(1 for _ in measurement.pairs()) + len(measurement.variants)
        runs += measurement.negation is not None
        tracker.expect(samples=measurement.attempts, runs=runs * len(measurement.models))
        results = service.Results(tracker)
        runner = measurement.runner(
            self._store, observer=results, retry=self._retry, caps=tracker.caps
        )
        tracker.watch(runner)
        await service.measure(
            measurement, self._store, results, runner=runner, opener=self._share_models().open
        )
        if tracker.all_failed:
            raise ProviderError(f"every call failed, the last with: {tracker.last_error}")

    def _share_models(self) -> SharedModels:
        """Jobs that are worked on at the same time load an embedded model once."""
        from heretix.providers.local import SharedModels

        self._models = self._models or SharedModels()
        return self._models

    def _prepare(self, claimed: _Claimed, request: MeasureRequest) -> Measurement:
        from heretix.jobs import jobs

        job = claimed.job
        measurement = jobs.make_measurement(request, self._settings, budget_usd=None)
        if claimed.bundles_json is not None:
            bundles = jobs.load_bundles(self._store, claimed.bundles_json)
            measurement = replace(measurement, bundles=bundles)
        else:
            measurement = jobs.gather(measurement, request, stamp=job.created_at)
            if measurement.bundles:
                service.keep_bundles(self._store, measurement)
                named = {"bundles_json": jobs.name_bundles(measurement.bundles)}
                self._store.write(rows.update_claimed_job, job.id, claimed.worker, named)
        return jobs.add_experiments(measurement, request)

    async def _beat(self, claimed: _Claimed, tracker: Tracker) -> _Verdict:
        """Tell how the job is doing and hear whether to go on, until it isn't to."""
        told: tuple[Any, ...] = ()
        last = time.monotonic()
        while True:
            await asyncio.sleep(_TELL_S)
            progress = tracker.progress()
            # That time has passed alone is no news.
            new = tuple(getattr(progress, name) for name in _NEWS)
            news = new != told
            now = time.monotonic()
            if not news and now - last < _BEAT_S:
                continue
            last = now
            try:
                verdict = await self._tell(claimed, tracker, progress if news else None)
            except StoreError as exc:
                # One that is away is waited for, by calls as well: before each of them its lease
                # is confirmed. Whether another worker has the job is heard when it is back.
                if not isinstance(exc, StoreAwayError):
                    _log.warning("job %s couldn't be told of: %s", claimed.job.id, exc)
                continue
            told = new
            if verdict is not None:
                return verdict

    async def _tell(
        self, claimed: _Claimed, tracker: Tracker, progress: Progress | None
    ) -> _Verdict | None:
        news = _make_update(tracker, progress) if progress is not None else None
        finished = tracker.take_runs()

        def write() -> bool | None:
            with self._store.writing() as connection:
                rows.save_job_runs(connection, finished)
                return rows.extend_job_lease(
                    connection, claimed.job.id, claimed.worker, lease_s=self._lease_s, news=news
                )

        try:
            cancel = await asyncio.to_thread(write)
        except BaseException:
            tracker.put_back(finished)
            raise
        if cancel is None:
            return _Verdict.LOST
        return _Verdict.CANCEL if cancel else None

    async def _end(
        self,
        claimed: _Claimed,
        tracker: Tracker,
        state: JobState,
        problem: BaseException | None = None,
    ) -> None:
        values = _make_update(tracker, tracker.progress("ended"), state)
        values |= {"finished_at": utc_now(), "cancel_requested": False}
        if state is not JobState.CANCELLED:
            # Whoever had it cancelled may have said why, and that stays.
            values["error"] = None if problem is None else _describe(problem)
            values["error_kind"] = None if problem is None else type(problem).__name__
        await self._write_last(claimed, tracker, values)

    async def _give_back(self, claimed: _Claimed, tracker: Tracker) -> None:
        """Release the job, so that any worker can go on with it."""
        waiting = _make_update(tracker, tracker.progress("waiting"), JobState.QUEUED)
        await self._write_last(claimed, tracker, waiting)

    async def _write_last(
        self, claimed: _Claimed, tracker: Tracker, values: dict[str, Any]
    ) -> None:
        finished = tracker.take_runs()

        def write(connection: Connection) -> None:
            if rows.update_claimed_job(connection, claimed.job.id, claimed.worker, values):
                rows.save_job_runs(connection, finished)

        try:
            await run_in_thread(self._store.write, write)
        except StoreError as exc:
            # The lease ends by itself, and another worker finds everything that was answered.
            _log.warning("the end of job %s couldn't be written: %s", claimed.job.id, exc)
        job, seconds = claimed.job, time.perf_counter() - claimed.since_s
        telemetry.tell(
            telemetry.JobEnded(job_id=job.id, kind=job.kind, state=values["state"], seconds=seconds)
        )


def _name_budget(job_id: str) -> str:
    return f"job:{job_id}"


def _make_update(
    tracker: Tracker, progress: Progress, last: JobState | None = None
) -> dict[str, Any]:
    """Columns of a job that change as it goes on; with `last`, its worker lets go of it."""
    left = {"state": last.value, "worker": None, "lease_until": None} if last else {}
    return left | {
        "progress_json": progress.as_json(),
        "spent_micros": tracker.spent_micros,
        "updated_at": utc_now(),
    }


def _describe(problem: BaseException) -> str:
    """Tell our own messages, and of anything else only that it happened."""
    if isinstance(problem, StoreError):
        # It says where the store lies, which is nobody's business who isn't there.
        return "the store couldn't be used at that moment; the server's log says why; resume it"
    if isinstance(problem, HeretixError):
        return str(problem)
    return f"an error of Heretix itself ({type(problem).__name__}); the server's log has it"


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# A worker beside a server: in a thread of its own, so that pages stay quick while it measures.


class BackgroundWorker:
    """Works on jobs from `start` to `stop`. Jobs that are under way then go back to the queue, when
    their calls in flight are home."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        parallel: int = 1,
        clock: Clock | None = None,
        keeps: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`tell` is called at the end with what is waited for, if anything is."""
        self._tell = tell
        self._worker = Worker(store, settings, parallel=parallel, clock=clock, keeps=keeps)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heretix-worker", daemon=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._worker.run())
        finally:
            self._ended.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End, and wait until what was answered is stored; a Ctrl-C meanwhile drops the calls."""
        self._worker.stop()
        if self._thread.ident is None:
            return
        with contextlib.suppress(KeyboardInterrupt):
            if flying := self._worker.in_flight:
                self._tell(
                    f"stopping: no more calls are made; {flying} calls in flight are waited for, "
                    "Ctrl-C again drops them"
                )
            # Before Python 3.13 a `join` that Ctrl-C breaks into takes the thread for ended.
            self._ended.wait(_GRACE_S)
        self._worker.stop(drop=True)
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
