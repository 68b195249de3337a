"""Jobs of a person who is disabled: they end, and say why."""

import asyncio
import threading

import pytest
from jobs_support import explorer, request, stored, wait_for, work
from sqlalchemy import text

from faultserver import answer, silence
from heretix.accounts import LOCAL, People
from heretix.core.errors import AccessError
from heretix.core.settings import Settings
from heretix.jobs import Feed, Jobs, JobState, Worker
from heretix.store import Store
from heretix.store import jobs as rows

MODEL = ("openai-compatible:m",)


def test_what_waits_is_cancelled_with_the_reason(jobs, store):
    """Of that person only; what has ended stays as it ended."""
    ada, eve = explorer(store), explorer(store, "Eve")
    done = jobs.submit(ada, request("Coffee is good"))
    work(store)
    waiting, others = jobs.submit(ada, request()), jobs.submit(eve, request())
    before = jobs.get(waiting.id, by=LOCAL).revision
    People(store).deactivate("ada")
    ended = jobs.get(waiting.id, by=LOCAL)
    assert (ended.state, ended.cancel_requested) == (JobState.CANCELLED, False)
    assert "`Ada` was disabled" in (ended.error or "")
    assert ended.error_kind == "AccessError"
    assert ended.finished_at is not None
    assert ended.revision > before
    assert jobs.get(done.id, by=LOCAL).state is JobState.DONE
    assert jobs.get(done.id, by=LOCAL).error is None
    assert jobs.get(others.id, by=LOCAL).state is JobState.QUEUED
    assert work(store) == 1
    assert jobs.get(waiting.id, by=LOCAL).state is JobState.CANCELLED


def test_what_runs_stops_and_keeps_the_reason(store, server, live):
    """As when it is cancelled: soon, with what was answered; an operator can let it go on."""
    jobs = Jobs(store, live)
    server.script(*[answer() for _ in range(3)])
    server.always(silence())
    job = jobs.submit(explorer(store), request(models=MODEL))

    async def disabled_meanwhile():
        worker = Worker(store, live)
        task = asyncio.create_task(worker.run())
        feed = Feed(store)
        async for event in feed.follow(job.id):
            if event.progress.done == 3 and event.error is None:
                await asyncio.to_thread(People(store).deactivate, "ada")
        worker.stop()
        await task
        return event

    last = asyncio.run(disabled_meanwhile())
    assert (last.state, "was disabled" in (last.error or "")) == (JobState.CANCELLED, True)
    ended = jobs.get(job.id, by=LOCAL)
    assert (ended.cancel_requested, ended.progress.done) == (False, 3)
    assert "`Ada` was disabled" in (ended.error or "")
    assert len(stored(store)) == 3

    server.always(answer())
    assert jobs.resume(job.id, by=LOCAL).error is None
    work(store, live)
    assert jobs.get(job.id, by=LOCAL).state is JobState.DONE
    assert jobs.get(job.id, by=LOCAL).error is None


def test_who_is_disabled_neither_submits_nor_resumes(jobs, store):
    """And being enabled again starts nothing by itself."""
    ada = explorer(store)
    job = jobs.submit(ada, request())
    people = People(store)
    people.deactivate("ada")
    for act in (lambda: jobs.submit(ada, request()), lambda: jobs.resume(job.id, by=ada)):
        with pytest.raises(AccessError):
            act()
    people.activate("ada")
    assert work(store) == 0
    assert jobs.resume(job.id, by=people.find("ada")).state is JobState.QUEUED


def test_the_log_names_each_job_that_was_stopped(jobs, store):
    """By whom, and from where."""
    people = People(store)
    job = jobs.submit(explorer(store), request())
    people.deactivate("ada", address="10.0.0.1")
    (entry,) = people.audit.entries(what="job.cancel")
    assert (entry.who, entry.subject, entry.address) == ("local", job.id, "10.0.0.1")
    people.activate("ada")
    people.set_password("ada", "a long new password")
    assert len(people.audit.entries(what="job.cancel")) == 1


WAITING = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
BACK = {"state": "queued", "worker": None, "lease_until": None}


def somebody_waits(store):
    """For a lock; in a transaction of its own, which would see the same again and again."""
    with store.reading() as connection:
        return connection.scalar(WAITING) > 0


@pytest.mark.postgres
@pytest.mark.parametrize("move", ["claimed", "given back"])
def test_a_job_that_changes_hands_at_this_moment_is_stopped_as_well(postgres_url, move):
    """Whether a worker takes it or gives it back while its owner is disabled."""
    with Store.open(postgres_url, busy_timeout_ms=120_000) as store:
        jobs = Jobs(store, Settings())
        job = jobs.submit(explorer(store), request())
        lease = {"lease_s": 60.0, "stamp": "2026"}
        if move == "given back":
            with store.writing() as connection:
                rows.claim_job(connection, "w", **lease)
        disabling = threading.Thread(target=People(store).deactivate, args=("ada",))
        with store.writing() as connection:
            if move == "given back":
                assert rows.update_claimed_job(connection, job.id, "w", BACK)
            else:
                assert rows.claim_job(connection, "w", **lease)
            disabling.start()
            wait_for(lambda: somebody_waits(store))
        disabling.join(120)
        found = jobs.get(job.id, by=LOCAL)
        stopped = found.cancel_requested if move == "claimed" else found.state is JobState.CANCELLED
        assert stopped, (found.state, found.cancel_requested)
        assert "`Ada` was disabled" in (found.error or "")
