"""Workers: what becomes of jobs when all goes well, and when it doesn't."""

import asyncio
import json
import os
import shutil
import signal
import time

import pytest
from jobs_support import (
    count_samples,
    explorer,
    request,
    stored,
    wait_for,
    wait_for_calls,
    work,
    work_in_process,
    work_together,
)
from sqlalchemy import func, select, update

from faultserver import answer, not_json, silence, status
from heretix.accounts import LOCAL
from heretix.core.errors import QuotaError
from heretix.core.settings import Settings
from heretix.jobs import BackgroundWorker, Feed, Jobs, JobState, Worker
from heretix.jobs.worker import _MOST_LOSSES
from heretix.measurement.runner import Retry
from heretix.measurement.verify import verify_artifact
from heretix.store import Store
from heretix.store.budgets import select_budget
from heretix.store.runs import find_record
from heretix.store.schema import executions, job_runs
from heretix.store.schema import jobs as table
from pgserver import bury_the_dead
from processes import PROCESSES

MODEL = ("openai-compatible:m",)


def answer_only(server, count):
    """Answer so many calls, and keep silent on those that follow."""
    server.script(*[answer() for _ in range(count)])
    server.always(silence())


async def until_done(store, job_id, count):
    """Return when a job has so many samples."""
    feed = Feed(store)
    async for event in feed.follow(job_id):
        if event.progress.done >= count:
            break
        assert not event.ended, event.error
    await feed.aclose()


async def interrupted(store, settings, server, job_id, count, interrupt):
    """Run a worker until a job has so many samples, then do something to it."""
    worker = Worker(store, settings)
    task = asyncio.create_task(worker.run())
    await until_done(store, job_id, count)
    await asyncio.to_thread(wait_for_calls, server, 8)
    await asyncio.to_thread(interrupt, worker)
    async for event in Feed(store).follow(job_id):
        if event.ended or event.state is JobState.QUEUED:
            break
    worker.stop()
    await task


def test_a_running_job_is_cancelled(store, server, live):
    """Soon, though a call is waited for; what was answered stays, and resuming asks for the rest."""
    jobs = Jobs(store, live)
    answer_only(server, 3)
    job = jobs.submit(LOCAL, request(models=MODEL))

    def cancel(_worker):
        assert jobs.cancel(job.id, by=LOCAL).cancel_requested

    asyncio.run(interrupted(store, live, server, job.id, 3, cancel))
    ended = jobs.get(job.id, by=LOCAL)
    assert (ended.state, ended.cancel_requested, ended.error) == (JobState.CANCELLED, False, None)
    assert (ended.progress.phase, ended.progress.done, ended.progress.in_flight) == ("ended", 3, 0)
    kept = stored(store)
    assert len(kept) == 3

    server.always(answer())
    server.calls.clear()
    jobs.resume(job.id, by=LOCAL)
    assert work(store, live) == 1
    assert len(server.calls) == 8 - 3
    assert jobs.get(job.id, by=LOCAL).state is JobState.DONE
    assert stored(store).items() >= kept.items()


def test_a_worker_that_is_stopped_gives_its_job_back(store, server, live):
    """Told to drop its calls, it finishes nothing; the next worker asks for what is missing and
    nothing else."""
    jobs = Jobs(store, live)
    answer_only(server, 3)
    job = jobs.submit(LOCAL, request(models=MODEL))
    asyncio.run(interrupted(store, live, server, job.id, 3, lambda worker: worker.stop(drop=True)))
    waiting = jobs.get(job.id, by=LOCAL)
    assert (waiting.state, waiting.attempt, waiting.progress.phase) == (
        JobState.QUEUED,
        1,
        "waiting",
    )
    kept = stored(store)
    assert len(kept) == 3

    server.always(answer())
    server.calls.clear()
    assert work(store, live) == 1
    assert len(server.calls) == 8 - 3
    done = jobs.get(job.id, by=LOCAL)
    assert (done.state, done.attempt, done.progress.cached) == (JobState.DONE, 2, 3)
    assert stored(store).items() >= kept.items()


def test_a_worker_that_is_stopped_lets_its_calls_come_home(store, server, live):
    """They are stored, no further one is made, and the next worker asks for exactly the others."""
    jobs = Jobs(store, live)
    held, release = server.held(answer())
    server.always(held)
    job = jobs.submit(LOCAL, request(models=MODEL, K=16))

    async def stopped():
        worker = Worker(store, live)
        task = asyncio.create_task(worker.run())
        await asyncio.to_thread(wait_for_calls, server, 16)
        worker.stop()
        while not worker._stopping.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        server.always(answer())
        release()
        await task

    asyncio.run(stopped())
    assert jobs.get(job.id, by=LOCAL).state is JobState.QUEUED
    assert (len(server.calls), count_samples(store)) == (16, 16)
    assert work(store, live) == 1
    assert len(server.calls) == 32


def test_a_worker_that_is_killed_is_replaced(store, store_url, server, live):
    """Another takes over at once, and pays for nothing that was answered before."""
    jobs = Jobs(store, live)
    answer_only(server, 5)
    job = jobs.submit(LOCAL, request(models=MODEL))
    child = PROCESSES.Process(target=work_in_process, args=(store_url, dict(live.env)))
    child.start()
    wait_for(lambda: count_samples(store) == 5)
    wait_for_calls(server, 8)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    bury_the_dead(store)
    assert jobs.get(job.id, by=LOCAL).state is JobState.RUNNING
    kept = stored(store)

    server.always(answer())
    server.calls.clear()
    assert work(store, live) == 1
    done = jobs.get(job.id, by=LOCAL)
    assert (done.state, done.attempt, done.progress.cached) == (JobState.DONE, 2, 5)
    assert len(server.calls) == 8 - 5
    assert stored(store).items() >= kept.items()


def test_workers_share_jobs_and_each_is_done_once(store, store_url, jobs):
    """Two processes, many jobs: every one has one worker and one execution."""
    ids = [jobs.submit(LOCAL, request(f"claim {n}")).id for n in range(12)]
    barrier = PROCESSES.Barrier(2)
    children = [PROCESSES.Process(target=work_together, args=(barrier, store_url)) for _ in "ab"]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    ended = [jobs.get(job_id, by=LOCAL) for job_id in ids]
    assert {(job.state, job.attempt) for job in ended} == {(JobState.DONE, 1)}
    with store.reading() as connection:
        assert connection.scalar(select(func.count()).select_from(executions)) == 12
        assert connection.scalar(select(func.count()).select_from(job_runs)) == 12
    assert count_samples(store) == 12 * 8


def as_if_running(store, job_id, *, worker, lease_until, losses=0):
    """Make a job look as if somebody worked on it."""
    values = {"state": "running", "worker": worker, "lease_until": lease_until, "losses": losses}
    with store.writing() as connection:
        connection.execute(update(table).where(table.c.job_id == job_id).values(values))


def test_a_job_of_another_machine_is_taken_over_when_its_lease_is_over(store, jobs):
    """Not before: nobody here can tell whether that worker lives."""
    job = jobs.submit(LOCAL, request())
    as_if_running(store, job.id, worker="elsewhere/7/1/x", lease_until=time.time() + 3600)
    assert work(store) == 0
    as_if_running(store, job.id, worker="elsewhere/7/1/x", lease_until=time.time() - 1)
    assert work(store) == 1
    assert jobs.get(job.id, by=LOCAL).state is JobState.DONE


def test_a_worker_that_is_stopped_while_it_claims_gives_the_job_back(store, jobs, monkeypatch):
    """Nobody has to wait for its lease to end, however late the word came."""
    job = jobs.submit(LOCAL, request())
    worker = Worker(store, Settings())
    claim = worker._claim_now

    def claim_and_stop(ours):
        claimed = claim(ours)
        worker.stop()
        return claimed

    monkeypatch.setattr(worker, "_claim_now", claim_and_stop)
    asyncio.run(worker.run())
    assert jobs.get(job.id, by=LOCAL).state is JobState.QUEUED
    assert work(store) == 1
    assert jobs.get(job.id, by=LOCAL).state is JobState.DONE


def test_a_job_that_takes_its_workers_down_is_given_up(store, jobs):
    """After a few of them; resuming begins to count anew."""
    job = jobs.submit(LOCAL, request())
    past = time.time() - 1
    as_if_running(store, job.id, worker="elsewhere/7/1/x", lease_until=past, losses=_MOST_LOSSES)
    work(store)
    failed = jobs.get(job.id, by=LOCAL)
    assert failed.state is JobState.FAILED
    assert "workers vanished" in failed.error
    jobs.resume(job.id, by=LOCAL)
    work(store)
    assert jobs.get(job.id, by=LOCAL).state is JobState.DONE


def test_a_cancelled_job_is_not_taken_over(store, jobs):
    """Its worker died before it heard; the next one only closes it."""
    job = jobs.submit(LOCAL, request())
    as_if_running(store, job.id, worker="elsewhere/7/1/x", lease_until=time.time() + 3600)
    jobs.cancel(job.id, by=LOCAL)
    as_if_running(store, job.id, worker="elsewhere/7/1/x", lease_until=time.time() - 1)
    work(store)
    assert jobs.get(job.id, by=LOCAL).state is JobState.CANCELLED
    assert count_samples(store) == 0


def test_a_worker_taken_for_dead_does_not_write_over_its_successor(store, server, live):
    """It notices, stops, and leaves the job as it finds it."""
    jobs = Jobs(store, live)
    answer_only(server, 3)
    job = jobs.submit(LOCAL, request(models=MODEL))

    async def replaced():
        worker = Worker(store, live)
        task = asyncio.create_task(worker.run_until_idle())
        await until_done(store, job.id, 3)
        later = time.time() + 3600
        await asyncio.to_thread(
            lambda: as_if_running(store, job.id, worker="elsewhere/7/1/x", lease_until=later)
        )
        while not all(tracker.stopping for tracker in worker._trackers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        worker.stop(drop=True)
        await task

    asyncio.run(replaced())
    with store.reading() as connection:
        row = connection.execute(select(table)).mappings().one()
    assert (row["state"], row["worker"]) == ("running", "elsewhere/7/1/x")


def test_a_provider_that_only_fails_makes_the_job_fail(store, jobs):
    """With the reason, and with what was tried in the store."""
    job = jobs.submit(LOCAL, request(models=("mock:a?rejected=1",)))
    work(store)
    failed = jobs.get(job.id, by=LOCAL)
    assert (failed.state, failed.error_kind) == (JobState.FAILED, "ProviderError")
    assert "every call failed" in failed.error
    assert "refused the request" in failed.error
    assert failed.progress.failed == 8
    assert [run.status for run in jobs.runs(job.id, by=LOCAL)] == ["no_estimate"]


def test_a_wrong_key_is_told_as_such(store, server, live):
    """One call is enough to know."""
    jobs = Jobs(store, live)
    server.always(status(401, "no such key"))
    job = jobs.submit(LOCAL, request(models=MODEL))
    work(store, live)
    failed = jobs.get(job.id, by=LOCAL)
    assert failed.state is JobState.FAILED
    assert "401" in failed.error


def test_some_failures_do_not_make_a_job_fail(store, jobs):
    """A model that answers most of the time has a belief."""
    job = jobs.submit(LOCAL, request(models=("mock:a?rejected=0.3",), K=8, R=4))
    work(store)
    done = jobs.get(job.id, by=LOCAL)
    assert done.state is JobState.DONE
    assert 0 < done.progress.failed < 32


def test_an_error_of_our_own_tells_no_details(store, jobs, monkeypatch, caplog):
    """Whoever asked hears that it happened; the log has the rest."""
    from heretix.jobs import jobs as measuring

    def broken(*_, **__):
        raise ZeroDivisionError("details of the machine")

    job = jobs.submit(LOCAL, request())
    monkeypatch.setattr(measuring, "make_measurement", broken)
    work(store)
    failed = jobs.get(job.id, by=LOCAL)
    assert (failed.state, failed.error_kind) == (JobState.FAILED, "ZeroDivisionError")
    assert "details" not in failed.error
    assert "details" in caplog.text


def test_a_job_that_an_older_version_took_is_shown_and_fails_with_the_reason(store, jobs):
    """A bank that is packaged no more doesn't keep anybody from looking at the list."""
    job = jobs.submit(LOCAL, request())
    old = json.loads(request().canonical) | {"prompt_version": "rpl_v0"}
    with store.writing() as connection:
        connection.execute(update(table).values(request_json=json.dumps(old)))
    assert [found.title for found in jobs.list(by=LOCAL)] == ["Tea is good"]
    work(store)
    failed = jobs.get(job.id, by=LOCAL)
    assert (failed.state, failed.error_kind) == (JobState.FAILED, "BankError")
    assert "rpl_v0" in failed.error


def test_a_job_stops_at_its_budget_and_goes_on_with_more(store, server, live):
    """What was spent counts against the day, and the second attempt spends the rest only."""
    jobs = Jobs(store, live)
    ada = explorer(store, usd_micros_per_day=100_000_000)
    asked = request(models=MODEL, K=16, R=4, budget_usd=3)
    job = jobs.submit(ada, asked)
    work(store, live)
    stopped = jobs.get(job.id, by=ada)
    assert (stopped.state, stopped.error_kind) == (JobState.FAILED, "BudgetReachedError")
    assert 0 < stopped.spent_micros == 59_000 * len(server.calls) <= 3_000_000
    assert 0 < count_samples(store) < 64
    assert stopped.progress.spent_usd == pytest.approx(stopped.spent_micros / 1e6)
    assert jobs.usage(ada).usd_micros_today == stopped.spent_micros
    with pytest.raises(QuotaError, match="used up"):
        jobs.resume(job.id, by=ada)
    asked_before = len(server.calls)
    jobs.resume(job.id, by=ada, budget_usd=50)
    assert jobs.usage(ada).usd_micros_today == 50_000_000
    work(store, live)
    done = jobs.get(job.id, by=ada)
    assert (done.state, count_samples(store)) == (JobState.DONE, 64)
    assert len(server.calls) == 64
    assert done.spent_micros == round(stopped.spent_micros / asked_before * 64)
    assert jobs.usage(ada).usd_micros_today == done.spent_micros


def test_calls_that_failed_and_may_be_billed_count_against_the_day(store, server, live):
    """Nonsense is billed: what it may have cost is gone from the day, and from the next job."""
    jobs = Jobs(store, live)
    ada = explorer(store, usd_micros_per_day=20_000_000)
    server.always(not_json())
    job = jobs.submit(ada, request(models=MODEL))
    retry = Retry(attempts=1)
    asyncio.run(Worker(store, live, retry=retry).run_until_idle())
    failed = jobs.get(job.id, by=ada)
    budget = store.read(select_budget, f"job:{job.id}")
    assert failed.state is JobState.FAILED
    assert 1_000_000 * len(server.calls) <= failed.spent_micros == budget.presumed_micros
    assert jobs.usage(ada).usd_micros_today == failed.spent_micros
    left = 20_000_000 - failed.spent_micros
    assert jobs.submit(ada, request("Ice floats", models=MODEL)).budget_micros == left


def test_calls_of_a_worker_that_died_count_against_the_day(store, store_url, server, live):
    """It was killed with calls in flight, and told nobody: what it held for them is gone."""
    jobs = Jobs(store, live)
    ada = explorer(store, usd_micros_per_day=50_000_000)
    answer_only(server, 3)
    job = jobs.submit(ada, request(models=MODEL))
    worker = PROCESSES.Process(
        target=work_in_process, args=(store_url, dict(live.env), str(live.prices_file))
    )
    worker.start()
    wait_for_calls(server, 8)
    worker.kill()
    worker.join()
    bury_the_dead(store)
    jobs.cancel(job.id, by=ada)
    work(store, live)
    ended = jobs.get(job.id, by=ada)
    assert ended.state is JobState.CANCELLED
    assert 3 * 59_000 + 5 * 1_000_000 < ended.spent_micros <= 50_000_000
    assert jobs.usage(ada).usd_micros_today == ended.spent_micros


def test_lenses_are_measured_with_what_was_gathered_first(store, tmp_path):
    """A later attempt shows the same documents, though the corpus is gone by then."""
    corpora = tmp_path / "corpora"
    settings = Settings(env={"HERETIX_CORPORA_DIR": str(corpora)})
    jobs = Jobs(store, settings)
    claim = "The Great Wall of China is visible from space"
    asked = request(
        claim,
        models=("sim:a",),
        lenses=("RPL", "MEL", "HEL", "SEL"),
        canary=True,
        documents=[{"title": "Seen", "text": f"{claim}, says one. " * 9}],
    )
    job = jobs.submit(LOCAL, asked)
    work(store, settings)
    first = {(run.lens, run.variant): run for run in jobs.runs(job.id, by=LOCAL)}
    assert {lens for lens, _ in first} == {"RPL", "MEL", "HEL", "SEL"}
    samples = stored(store)
    (artifact,) = jobs.artifacts(job.id, by=LOCAL)
    assert all(verification.ok for verification in verify_artifact(artifact))

    shutil.rmtree(corpora)
    with store.writing() as connection:
        connection.execute(update(table).values(state="failed"))
    jobs.resume(job.id, by=LOCAL)
    work(store, Settings(env={"HERETIX_CORPORA_DIR": str(tmp_path / "other")}))
    again = {(run.lens, run.variant): run for run in jobs.runs(job.id, by=LOCAL)}
    assert again.keys() == first.keys()
    assert {run.run_id for run in again.values()} == {run.run_id for run in first.values()}
    assert stored(store) == samples
    assert not (tmp_path / "other").exists()


def test_a_lens_without_evidence_is_told_and_the_others_are_measured(store, tmp_path):
    """What can't be shown has no number, and that is no failure of the job."""
    settings = Settings(env={"HERETIX_CORPORA_DIR": str(tmp_path / "corpora")})
    jobs = Jobs(store, settings)
    asked = request("Zyxwv quonk blarg", models=("sim:a",), lenses=("RPL", "MEL"))
    plan = jobs.plan(asked)
    assert any("insufficient_evidence" in note for note in plan.notes)
    job = jobs.submit(LOCAL, asked)
    work(store, settings)
    assert jobs.get(job.id, by=LOCAL).state is JobState.DONE
    assert [run.lens for run in jobs.runs(job.id, by=LOCAL)] == ["RPL"]
    (artifact,) = jobs.artifacts(job.id, by=LOCAL)
    assert {line.lens: line.status for line in artifact.lenses} == {
        "RPL": "ok",
        "MEL": "insufficient_evidence",
    }


def test_a_job_that_sharpens_shows_one_result(store, jobs):
    """Larger and larger plans of one claim are steps to one belief."""
    job = jobs.submit(LOCAL, request(until_width=0.05, max_samples=128))
    work(store)
    done = jobs.get(job.id, by=LOCAL)
    assert done.state is JobState.DONE
    assert done.progress.done == done.progress.total > 8
    (run,) = jobs.runs(job.id, by=LOCAL)
    record = json.loads(store.read(find_record, run.execution_id).record_json)
    assert record["precision"]["stopped"] is not None


def test_a_negation_belongs_to_its_claim(store, jobs):
    """One artifact, with both."""
    job = jobs.submit(LOCAL, request("Tea is good", negation="Tea isn't good"))
    work(store)
    assert {run.claim for run in jobs.runs(job.id, by=LOCAL)} == {"Tea is good", "Tea isn't good"}
    (artifact,) = jobs.artifacts(job.id, by=LOCAL)
    assert len(artifact.runs) == 2


def test_a_worker_beside_a_server_works_and_stops(store_url):
    """In a thread of its own; stopping twice, or before it began, does no harm."""
    with Store.open(store_url) as store:
        jobs = Jobs(store, Settings())
        job = jobs.submit(LOCAL, request())
        with BackgroundWorker(store, Settings()) as worker:
            wait_for(lambda: jobs.get(job.id, by=LOCAL).state.ended)
        worker.stop()
        BackgroundWorker(store, Settings()).stop()
        assert jobs.get(job.id, by=LOCAL).state is JobState.DONE


def test_several_jobs_are_worked_on_at_a_time(store, server, live):
    """One that waits for its provider doesn't hold up another."""
    jobs = Jobs(store, live)
    server.always(silence())
    stuck = jobs.submit(LOCAL, request(models=MODEL))
    quick = jobs.submit(LOCAL, request())

    async def both():
        worker = Worker(store, live, parallel=2)
        task = asyncio.create_task(worker.run())
        async for _ in Feed(store).follow(quick.id):
            pass
        worker.stop(drop=True)
        await task

    asyncio.run(both())
    assert jobs.get(quick.id, by=LOCAL).state is JobState.DONE
    assert jobs.get(stuck.id, by=LOCAL).state is JobState.QUEUED
