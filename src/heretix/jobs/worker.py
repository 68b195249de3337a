"""Workers: they claim jobs, keep them alive by a heartbeat, and measure what they ask for.

Nothing of a job lives in its worker alone. A worker that ends gives its jobs back; one that dies
is replaced when its lease is over, and the samples it had stored are taken from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import HeretixError, ProviderError, StoreBusyError, StoreError
from heretix.jobs.episode_request import EpisodeRequest
from heretix.jobs.job import Job, JobState, Progress
from heretix.people.audit import iso
from heretix.store import jobs as rows
from heretix.store import new_owner

if TYPE_CHECKING:
    from heretix.economy.clock import Clock
    from heretix.jobs.request import MeasureRequest
    from heretix.jobs.tracker import Tracker
    from heretix.measurement.lane import Retry
    from heretix.measurement.measurement import Measurement
    from heretix.providers.sharing import SharedModels
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["LEASE_S", "Worker"]

LEASE_S: Final = 15.0
"""How long a job stays a worker's without a sign of life."""
_TELL_S: Final = 0.2
"""News of a job are written at most this often."""
_BEAT_S: Final = 0.5
"""A worker asks at least this often whether to go on."""
_POLL_S: Final = 0.5
_MOST_LOSSES: Final = 5
"""Workers that may vanish with a job before it is taken for what makes them vanish."""

_log: Final = logging.getLogger(__name__)


class _Verdict(Enum):
    """Why a heartbeat ended."""

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
    """What its lenses show, once an earlier attempt has gathered that."""


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
    ) -> None:
        """`clock` is what episodes go by; without one, the time of the machine."""
        self._store = store
        self._settings = settings
        self._parallel = parallel
        self._lease_s = lease_s
        self._retry = retry
        self._clock = clock
        self._models: SharedModels | None = None
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = False

    def stop(self) -> None:
        """Give the jobs back and end. May be called from any thread, or a signal's handler."""
        self._asked_to_stop = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)

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
                ours = frozenset(at_work.values())
                job = await self._claim(ours) if len(ours) < self._parallel else None
                if job is not None:
                    at_work[asyncio.create_task(self._do(job))] = job.worker
                    taken += 1
                    # It begins at once: cancelled before its first step, it couldn't give back
                    # what was claimed.
                    await asyncio.sleep(0)
                    continue
                if until_idle and not at_work:
                    break
                await asyncio.wait(
                    {stopping, *at_work}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in [task for task in at_work if task.done()]:
                    del at_work[task]
                    # An error of the job is written into it; this one is of the worker.
                    if (problem := task.exception()) is not None:
                        _log.error("a job was dropped", exc_info=problem)
        finally:
            stopping.cancel()
            for task in at_work:
                task.cancel()
            await asyncio.gather(*at_work, return_exceptions=True)
        return taken

    async def _claim(self, ours: frozenset[str]) -> _Claimed | None:
        try:
            return await asyncio.to_thread(self._claim_now, ours)
        except StoreError as exc:
            # A worker outlives a database that is away for a moment.
            _log.warning("no job could be claimed: %s", exc)
            return None

    def _claim_now(self, ours: frozenset[str]) -> _Claimed | None:
        with self._store.reading() as connection:
            if not rows.is_job_waiting(connection, now=time.time(), ours=ours):
                return None
        worker = new_owner()
        now = time.time()
        with self._store.writing() as connection:
            until, stamp = now + self._lease_s, iso(time.time())
            row = rows.claim_job(connection, worker, now=now, until=until, stamp=stamp, ours=ours)
        if row is None:
            return None
        return _Claimed(Job.of(row), worker, row["losses"], row["bundles_json"])

    async def _do(self, claimed: _Claimed) -> None:
        """Work on a job to its end, whatever that is."""
        # Here and below: a server has a worker at once, and what measures when it must.
        from heretix.jobs.tracker import Tracker

        job = claimed.job
        tracker = Tracker(job.id, job.spent_micros, job.budget_micros)
        if job.cancel_requested:
            await self._end(claimed, tracker, JobState.CANCELLED)
            return
        if claimed.losses > _MOST_LOSSES:
            problem = HeretixError(
                f"{claimed.losses} workers vanished while they worked on it, so it isn't tried "
                "again by itself; resume it to try once more"
            )
            await self._end(claimed, tracker, JobState.FAILED, problem)
            return
        if isinstance(job.request, EpisodeRequest):
            measuring = asyncio.create_task(self._proceed(job.request, tracker))
        else:
            measuring = asyncio.create_task(self._measure(claimed, job.request, tracker))
        beating = asyncio.create_task(self._beat(claimed, tracker))
        try:
            await asyncio.wait({measuring, beating}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _ended(measuring, beating)
            await self._give_back(claimed, tracker)
            raise
        await _ended(measuring, beating)
        verdict = None if beating.cancelled() else beating.result()
        if verdict is _Verdict.LOST:
            _log.warning("job %s was taken over by another worker", claimed.job.id)
        elif measuring.cancelled():
            await self._end(claimed, tracker, JobState.CANCELLED)
        else:
            await self._conclude(claimed, tracker, measuring.exception())

    async def _conclude(
        self, claimed: _Claimed, tracker: Tracker, problem: BaseException | None
    ) -> None:
        if problem is None:
            await self._end(claimed, tracker, JobState.DONE)
            return
        if not isinstance(problem, HeretixError) or isinstance(problem, StoreError):
            _log.error("job %s failed", claimed.job.id, exc_info=problem)
        await self._end(claimed, tracker, JobState.FAILED, problem)

    async def _proceed(self, request: EpisodeRequest, tracker: Tracker) -> None:
        from heretix.economy.clock import SystemClock
        from heretix.jobs.proceeding import Proceeding

        clock = self._clock or SystemClock()
        move = Proceeding(
            request,
            self._store,
            self._settings,
            clock=clock,
            tracker=tracker,
            opener=self._shared_models().open,
        )
        await move.run()

    async def _measure(self, claimed: _Claimed, request: MeasureRequest, tracker: Tracker) -> None:
        # A thread, because files are read and hashed here: the heart must go on beating.
        budget_usd = tracker.budget_left_usd
        measurement = await asyncio.to_thread(self._prepare, claimed, request, budget_usd)
        runs = sum(1 for _ in measurement.pairs()) + len(measurement.variants)
        runs += measurement.negation is not None
        tracker.expect(samples=measurement.attempts, runs=runs * len(measurement.models))
        runner = measurement.runner(self._store, observer=tracker, retry=self._retry)
        tracker.watch(runner)
        await measurement.run(self._store, runner=runner, opener=self._shared_models().open)
        if tracker.all_failed:
            raise ProviderError(f"every call failed, the last with: {tracker.last_error}")

    def _shared_models(self) -> SharedModels:
        """Jobs that are worked on at the same time load an embedded model once."""
        from heretix.providers.sharing import SharedModels

        self._models = self._models or SharedModels()
        return self._models

    def _prepare(
        self, claimed: _Claimed, request: MeasureRequest, budget_usd: float | None
    ) -> Measurement:
        from heretix.jobs.measuring import (
            asked,
            gathered,
            keep_bundles,
            kept_bundles,
            with_bundles,
        )

        job = claimed.job
        measurement = asked(request, self._settings, budget_usd=budget_usd)
        if claimed.bundles_json is not None:
            bundles = kept_bundles(self._store, claimed.bundles_json)
        else:
            bundles = gathered(request, self._settings, stamp=job.created_at)
            if bundles:
                kept = {"bundles_json": keep_bundles(self._store, bundles)}
                with self._store.writing() as connection:
                    rows.update_claimed(connection, job.id, claimed.worker, kept)
        return with_bundles(measurement, request, bundles)

    async def _beat(self, claimed: _Claimed, tracker: Tracker) -> _Verdict:
        """Tell how the job is doing and hear whether to go on, until it isn't to."""
        told: Progress | None = None
        last = time.monotonic()
        heard = last
        while True:
            await asyncio.sleep(_TELL_S)
            progress = tracker.progress()
            news = told is None or _differs(progress, told)
            now = time.monotonic()
            if not news and now - last < _BEAT_S:
                continue
            last = now
            try:
                verdict = await self._tell(claimed, tracker, progress if news else None)
            except StoreError as exc:
                if not isinstance(exc, StoreBusyError):
                    _log.warning("job %s couldn't be told of: %s", claimed.job.id, exc)
                # Whoever can't be heard for longer than the lease may have been replaced.
                if time.monotonic() - heard > self._lease_s:
                    return _Verdict.LOST
                continue
            heard = time.monotonic()
            told = progress if news else told
            if verdict is not None:
                return verdict

    async def _tell(
        self, claimed: _Claimed, tracker: Tracker, progress: Progress | None
    ) -> _Verdict | None:
        news = _news(tracker, progress) if progress is not None else None
        finished = tracker.take_runs()

        def write() -> bool | None:
            with self._store.writing() as connection:
                rows.save_runs(connection, finished)
                until = time.time() + self._lease_s
                return rows.keep_alive(
                    connection, claimed.job.id, claimed.worker, until=until, news=news
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
        stamp = iso(time.time())
        values = {
            **_news(tracker, tracker.progress("ended")),
            "state": state.value,
            "worker": None,
            "lease_until": None,
            "finished_at": stamp,
            "cancel_requested": False,
        }
        if state is not JobState.CANCELLED:
            # Whoever had it cancelled may have said why, and that stays.
            values |= {
                "error": None if problem is None else _told(problem),
                "error_kind": None if problem is None else type(problem).__name__,
            }
        await self._write_last(claimed, tracker, values)

    async def _give_back(self, claimed: _Claimed, tracker: Tracker) -> None:
        """Let another worker go on. What was answered is stored."""
        values = {
            **_news(tracker, tracker.progress("waiting")),
            "state": JobState.QUEUED.value,
            "worker": None,
            "lease_until": None,
        }
        await self._write_last(claimed, tracker, values)

    async def _write_last(
        self, claimed: _Claimed, tracker: Tracker, values: dict[str, Any]
    ) -> None:
        finished = tracker.take_runs()

        def write() -> None:
            with self._store.writing() as connection:
                if rows.update_claimed(connection, claimed.job.id, claimed.worker, values):
                    rows.save_runs(connection, finished)

        try:
            await asyncio.to_thread(write)
        except StoreError as exc:
            # The lease ends by itself, and another worker finds everything that was answered.
            _log.warning("the end of job %s couldn't be written: %s", claimed.job.id, exc)


def _news(tracker: Tracker, progress: Progress) -> dict[str, Any]:
    return {
        "progress_json": progress.as_json(),
        "spent_micros": tracker.spent_micros,
        "updated_at": iso(time.time()),
    }


def _differs(progress: Progress, told: Progress) -> bool:
    """Something happened; that time has passed alone is no news."""
    names = ("phase", "done", "total", "failed", "in_flight", "runs_done", "spent_usd")
    return any(getattr(progress, name) != getattr(told, name) for name in names)


def _told(problem: BaseException) -> str:
    """What whoever asked is told: our own messages, and of anything else only that it happened."""
    if isinstance(problem, StoreError):
        # It says where the store lies, which is nobody's business who isn't there.
        return "the store couldn't be used at that moment; the server's log says why; resume it"
    if isinstance(problem, HeretixError):
        return str(problem)
    return f"an error of Heretix itself ({type(problem).__name__}); the server's log has it"


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
