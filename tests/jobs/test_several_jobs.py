"""Several jobs at a time: whose turn it is, what they share, and what they mayn't."""

import asyncio
import importlib.util
import threading

import pytest
from jobs_support import explorer, request
from sqlalchemy import select

from faultserver import answer
from heretix.accounts import LOCAL
from heretix.core.errors import QuotaError
from heretix.core.settings import Settings
from heretix.jobs import Jobs, JobState, Worker
from heretix.providers import gguf
from heretix.store import Store
from heretix.store import jobs as rows
from heretix.store.schema import samples

MODEL = ("openai-compatible:m",)
EMBEDDED = "smollm2-135m"


def claimed(store, count):
    """Who gets the next places of a worker: the claims of the jobs, in order."""
    found = []
    for number in range(count):
        with store.writing() as connection:
            worker = f"elsewhere/7/1/{number}"
            row = rows.claim_job(connection, worker, lease_s=60.0, stamp="now")
        found.append(row and row["job_id"])
    return found


def test_many_jobs_of_one_person_do_not_keep_others_from_their_first(store, jobs):
    """Whoever has fewer under way is next; among equals, whoever came first."""
    ada, eve = explorer(store), explorer(store, "Eve")
    adas = [jobs.submit(ada, request(f"claim {n}")).id for n in range(3)]
    eves = [jobs.submit(eve, request(f"idea {n}")).id for n in range(2)]
    assert claimed(store, 6) == [adas[0], eves[0], adas[1], eves[1], adas[2], None]


def test_one_persons_jobs_are_done_in_their_order(store, jobs):
    """Whoever is alone is served in the order of asking."""
    ids = [jobs.submit(LOCAL, request(f"claim {n}")).id for n in range(3)]
    assert claimed(store, 3) == ids


def test_what_two_jobs_spend_at_once_counts_to_the_last_cent(store, server, live):
    """All that they may spend is set aside before, and all that they did is counted after."""
    jobs = Jobs(store, live)
    ada = explorer(store, usd_micros_per_day=8_000_000)
    server.always(answer())
    asked = [request(claim, models=MODEL, budget_usd=4.0) for claim in ("Tea", "Milk")]
    ids = [jobs.submit(ada, one).id for one in asked]
    with pytest.raises(QuotaError):
        jobs.submit(ada, request("Rum", models=MODEL, budget_usd=0.01))
    assert asyncio.run(Worker(store, live, parallel=2).run_until_idle()) == 2
    done = [jobs.get(job_id, by=ada) for job_id in ids]
    assert {job.state for job in done} == {JobState.DONE}
    assert len(server.calls) == 2 * 8
    # An answer takes 59 tokens, at a dollar a thousand.
    assert [job.spent_micros for job in done] == [8 * 59_000] * 2
    assert jobs.usage(ada).usd_micros_today == 2 * 8 * 59_000


def test_two_jobs_that_want_the_same_samples_pay_once(store, server, live):
    """One waits for what the other is paying for."""
    jobs = Jobs(store, live)
    ids = [jobs.submit(LOCAL, request(models=MODEL)).id for _ in range(2)]
    assert asyncio.run(Worker(store, live, parallel=2).run_until_idle()) == 2
    assert len(server.calls) == 8
    done = [jobs.get(job_id, by=LOCAL) for job_id in ids]
    assert {job.state for job in done} == {JobState.DONE}
    assert sum(job.progress.cached for job in done) == 8


def test_a_worker_takes_over_no_job_of_its_own(store, server, live):
    """Its clock may leap while it works, as when a machine has slept: all leases are over then."""
    jobs = Jobs(store, live)
    server.always(answer())
    job = jobs.submit(LOCAL, request(models=MODEL))
    worker = Worker(store, live, parallel=2, lease_s=-60.0)
    assert asyncio.run(worker.run_until_idle()) == 1
    done = jobs.get(job.id, by=LOCAL)
    assert (done.state, done.attempt, len(server.calls)) == (JobState.DONE, 1, 8)


@pytest.mark.soak
@pytest.mark.embedded
def test_jobs_share_the_embedded_model_and_each_gets_its_own_answers(tmp_path, monkeypatch):
    """Two at once load it no more often than one, and change no word that it says."""
    if importlib.util.find_spec("xllamacpp") is None or gguf.find(EMBEDDED, Settings()) is None:
        pytest.skip("NOT TESTED: the embedded model isn't installed (dependency group `embedded`)")
    from heretix.providers.local import _Engine

    loaded, load = [], _Engine._load
    monkeypatch.setattr(_Engine, "_load", lambda engine: loaded.append(engine) or load(engine))

    def measured(name, parallel):
        loaded.clear()
        with Store.open(str(tmp_path / name)) as store:
            jobs = Jobs(store, Settings())
            for claim in ("Tea is good.", "Milk is white."):
                asked = request(claim, models=(f"local:{EMBEDDED}",), K=2, R=2)
                jobs.submit(LOCAL, asked)
            asyncio.run(Worker(store, Settings(), parallel=parallel).run_until_idle())
            assert {job.state for job in jobs.list(by=LOCAL)} == {JobState.DONE}
            with store.reading() as connection:
                found = connection.execute(select(samples.c.cache_key, samples.c.raw_answer))
                return {row.cache_key: row.raw_answer for row in found}, len(loaded)

    alone, loads_alone = measured("alone.sqlite", 1)
    together, loads_together = measured("together.sqlite", 2)
    assert len(alone) == 8
    assert together == alone
    assert (loads_alone, loads_together) == (4, 2)
    assert not [t for t in threading.enumerate() if t.name.startswith("heretix-local")]
