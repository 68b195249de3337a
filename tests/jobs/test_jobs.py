"""Jobs before and after the work: submitted within quotas, seen by whom they concern."""

import threading

import pytest
from jobs_support import explorer, request, work
from sqlalchemy import update

from heretix.accounts import LOCAL, People, Quotas, Role
from heretix.core.errors import (
    AccessError,
    ConfigError,
    ConflictError,
    MissingKeyError,
    QuotaError,
    RecordError,
    UsageError,
)
from heretix.core.settings import Settings
from heretix.jobs import Jobs, JobState
from heretix.store.runs import count_runs, find_record
from heretix.store.schema import jobs as table


def together(count, act):
    """Do something in many threads at the same moment: what came of it."""
    barrier = threading.Barrier(count)
    outcomes = []

    def run(number):
        barrier.wait()
        try:
            outcomes.append(act(number))
        except UsageError as exc:
            outcomes.append(type(exc))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_a_job_waits_until_it_is_done(jobs, store):
    """Submitted, found, measured; what it found can be looked at."""
    ada = explorer(store)
    job = jobs.submit(ada, request("Tea is good", "Milk is white"))
    assert (job.state, job.owner_name, job.progress.total) == (JobState.QUEUED, "Ada", 0)
    assert jobs.get(job.id, by=ada) == job
    assert work(store) == 1
    done = jobs.get(job.id, by=ada)
    assert (done.state, done.attempt, done.error) == (JobState.DONE, 1, None)
    assert (done.progress.done, done.progress.total, done.progress.runs_done) == (16, 16, 2)
    assert done.revision > job.revision
    runs = jobs.runs(job.id, by=ada)
    assert [run.claim for run in runs] == ["Tea is good", "Milk is white"]
    for run in runs:
        assert run.ci_lo <= run.prob_true <= run.ci_hi
        assert store.read(find_record, run.execution_id).run_id == run.run_id


def test_readers_do_not_measure(jobs, store):
    """Neither those who are, nor those who were made readers while they filled in the form."""
    people = People(store)
    with pytest.raises(AccessError):
        jobs.submit(people.add("Eve"), request())
    ada = explorer(store)
    people.set_role("ada", Role.READER)
    with pytest.raises(AccessError):
        jobs.submit(ada, request())
    people.set_role("ada", Role.EXPLORER)
    people.deactivate("ada")
    with pytest.raises(AccessError):
        jobs.submit(ada, request())
    assert jobs.list(by=LOCAL) == []


def test_jobs_of_others_look_as_if_they_did_not_exist(jobs, store):
    """To look at, cancel, resume or delete; operators may."""
    ada, eve = explorer(store), explorer(store, "Eve")
    job = jobs.submit(ada, request())
    for act in (jobs.get, jobs.cancel, jobs.resume, jobs.delete, jobs.runs):
        with pytest.raises(RecordError) as theirs:
            act(job.id, by=eve)
        with pytest.raises(RecordError) as nobodys:
            act("job-0", by=eve)
        assert str(theirs.value).replace(job.id, "job-0") == str(nobodys.value)
    assert jobs.list(by=eve, owner=ada.id) == []
    boss = People(store).add("Boss", role=Role.OPERATOR)
    assert [found.id for found in jobs.list(by=boss)] == [job.id]
    assert jobs.cancel(job.id, by=boss).state is JobState.CANCELLED


def test_the_same_key_is_the_same_job(jobs, store):
    """For one owner and one request; another request under it is a mistake."""
    ada, eve = explorer(store), explorer(store, "Eve")
    first = jobs.submit(ada, request(), key="k")
    assert jobs.submit(ada, request(), key="k") == first
    assert jobs.submit(eve, request(), key="k").id != first.id
    assert jobs.submit(ada, request()).id != first.id
    with pytest.raises(ConflictError, match="another request"):
        jobs.submit(ada, request(K=5), key="k")
    work(store)
    assert jobs.submit(ada, request(), key="k").state is JobState.DONE


@pytest.mark.parametrize("who", ["ada", "local"])
def test_a_double_click_makes_one_job(jobs, store, who):
    """Even when both arrive at the same moment, and even without accounts."""
    owner = explorer(store) if who == "ada" else LOCAL
    outcomes = together(4, lambda _: jobs.submit(owner, request(), key="k").id)
    assert len(set(outcomes)) == 1
    assert len(jobs.list(by=LOCAL)) == 1


def test_quotas_hold_when_two_come_at_once(jobs, store):
    """One of them is refused, whichever it is."""
    ada = explorer(store, running_jobs=1)
    outcomes = together(4, lambda n: jobs.submit(ada, request(f"claim {n}")).state)
    assert outcomes.count(QuotaError) == 3
    assert outcomes.count(JobState.QUEUED) == 1


def test_jobs_at_a_time_are_those_that_have_not_ended(jobs, store):
    """A cancelled one makes room."""
    ada = explorer(store, running_jobs=1)
    first = jobs.submit(ada, request())
    with pytest.raises(QuotaError, match="1 jobs at a time"):
        jobs.submit(ada, request())
    jobs.cancel(first.id, by=ada)
    second = jobs.submit(ada, request())
    with pytest.raises(QuotaError):
        jobs.resume(first.id, by=ada)
    work(store)
    assert jobs.get(second.id, by=ada).state is JobState.DONE
    assert jobs.resume(first.id, by=ada).state is JobState.QUEUED


def test_jobs_a_day_are_counted_until_midnight(store):
    """Cancelling or deleting doesn't give one back; the next day does."""
    now = [1_800_000_000.0]
    jobs = Jobs(store, Settings(), clock=lambda: now[0])
    ada = explorer(store, jobs_per_day=1)
    first = jobs.submit(ada, request())
    jobs.cancel(first.id, by=ada)
    with pytest.raises(ConflictError, match="tomorrow"):
        jobs.delete(first.id, by=ada)
    with pytest.raises(QuotaError, match="1 jobs a day"):
        jobs.submit(ada, request())
    assert jobs.usage(ada).jobs_today == 1
    now[0] += 86_400
    assert jobs.usage(ada).jobs_today == 0
    jobs.delete(first.id, by=ada)
    assert jobs.submit(ada, request()).state is JobState.QUEUED


def test_a_new_quota_holds_at_once(jobs, store):
    """What counts is what the store says, not what the caller had read before."""
    ada = explorer(store)
    People(store).set_quotas("ada", Quotas(jobs_per_day=0))
    with pytest.raises(QuotaError):
        jobs.submit(ada, request())


def test_money_is_set_aside_when_a_job_is_submitted(store, live):
    """A job that may spend counts as if it had, until it ends; free models don't count."""
    jobs = Jobs(store, live)
    ada = explorer(store, usd_micros_per_day=2_000_000)
    paid = {"models": ("openai-compatible:m",)}
    jobs.submit(ada, request(budget_usd=1.5, **paid))
    assert jobs.usage(ada).usd_micros_today == 1_500_000
    with pytest.raises(QuotaError, match=r"\$0\.50"):
        jobs.submit(ada, request(budget_usd=0.6, **paid))
    rest = jobs.submit(ada, request(**paid))
    assert rest.budget_micros == 500_000
    with pytest.raises(QuotaError, match=r"\$0\.00"):
        jobs.submit(ada, request(**paid))
    assert jobs.submit(ada, request()).budget_micros is None


def test_money_holds_when_two_come_at_once(store, live):
    """The last dollar is spent once."""
    jobs = Jobs(store, live)
    ada = explorer(store, usd_micros_per_day=1_000_000)
    asked = request(models=("openai-compatible:m",), budget_usd=1.0)
    outcomes = together(4, lambda _: jobs.submit(ada, asked).state)
    assert outcomes.count(QuotaError) == 3


def test_an_unknown_price_is_refused_where_a_limit_is_to_be_kept(store, live):
    """By a daily limit or a budget; without either it may run."""
    jobs = Jobs(store, live)
    unknown = {"models": ("openai-compatible:other",)}
    with pytest.raises(QuotaError, match="price"):
        jobs.submit(explorer(store, usd_micros_per_day=1_000_000), request(**unknown))
    with pytest.raises(ConfigError, match="price"):
        jobs.submit(LOCAL, request(budget_usd=1.0, **unknown))
    assert jobs.submit(LOCAL, request(**unknown)).budget_micros is None


def test_what_cannot_work_is_refused_at_once(jobs, store):
    """A missing key, a plan that doesn't fit, a corpus that isn't there."""
    with pytest.raises(MissingKeyError):
        jobs.submit(LOCAL, request(models=("gpt-5",)))
    with pytest.raises(ConfigError):
        jobs.submit(LOCAL, request(T=64))
    with pytest.raises(ConfigError, match="corpus"):
        jobs.submit(LOCAL, request(lenses=("RPL", "MEL"), corpus="nowhere"))
    assert jobs.list(by=LOCAL) == []
    elsewhere = Jobs(store, Settings(), check_keys=False)
    assert elsewhere.submit(LOCAL, request(models=("gpt-5",))).state is JobState.QUEUED


def test_a_plan_tells_what_will_happen(jobs, store, tmp_path):
    """Calls, cost, time and wording before anything is asked; then from experience."""
    asked = request(models=("mock:a", "sim:b"), lenses=("RPL", "NUL"))
    plan = jobs.plan(asked)
    assert (plan.estimate.runs, plan.estimate.to_call, plan.estimate.cost_usd) == (4, 32, 0.0)
    assert plan.duration_s is None
    assert "isn't known" in plan.duration_basis
    assert {(p["model"], p["lens"]) for p in plan.plans} == {
        (model, lens) for model in ("mock:a", "sim:b") for lens in ("RPL", "NUL")
    }
    assert "Tea is good" in plan.plans[0]["templates"][0]["user"]
    assert jobs.list(by=LOCAL) == []
    jobs.submit(LOCAL, asked)
    work(store)
    again = jobs.plan(asked)
    assert (again.estimate.cached, again.duration_s) == (32, 0.0)
    larger = jobs.plan(request(models=("mock:a",), R=8))
    assert larger.duration_s is not None
    assert "8 calls at a time" in larger.duration_basis


def test_a_plan_needs_no_key(jobs):
    """Looking at the price comes before having an account at the provider."""
    plan = jobs.plan(request(models=("gpt-5",), temperature=0.5))
    assert plan.estimate.cost_usd > 0
    assert plan.notes == ("gpt-5 doesn't accept `temperature`; it isn't sent",)


def test_waiting_jobs_are_cancelled_and_resumed(jobs, store):
    """At once, since nobody works on them; what has ended can't be cancelled."""
    job = jobs.submit(LOCAL, request())
    assert jobs.cancel(job.id, by=LOCAL).state is JobState.CANCELLED
    assert work(store) == 0
    with pytest.raises(ConflictError, match="cancelled already"):
        jobs.cancel(job.id, by=LOCAL)
    with pytest.raises(ConflictError, match="nothing to resume"):
        jobs.resume(jobs.submit(LOCAL, request()).id, by=LOCAL)
    jobs.resume(job.id, by=LOCAL)
    assert work(store) == 2
    done = jobs.get(job.id, by=LOCAL)
    assert done.state is JobState.DONE
    for act, problem in ((jobs.cancel, "done already"), (jobs.resume, "nothing to resume")):
        with pytest.raises(ConflictError, match=problem):
            act(job.id, by=LOCAL)


def test_jobs_come_in_pages(jobs, store):
    """The newest first, without gap or overlap, by state and by owner."""
    ada = explorer(store)
    ids = [jobs.submit(ada if n % 2 else LOCAL, request(f"claim {n}")).id for n in range(5)]
    # Made within one millisecond perhaps: their order is the store's, and stays.
    everything = [job.id for job in jobs.list(by=LOCAL)]
    assert set(everything) == set(ids)
    first = jobs.list(by=LOCAL, limit=2)
    second = jobs.list(by=LOCAL, limit=10, before=first[-1].id)
    assert [job.id for job in (*first, *second)] == everything
    assert {job.id for job in jobs.list(by=LOCAL, owner=ada.id)} == {ids[1], ids[3]}
    assert jobs.list(by=LOCAL, state=JobState.DONE) == []
    assert jobs.list(by=LOCAL, before="job-0") == []


def test_what_happens_to_jobs_is_in_the_log(jobs, store):
    """Who submitted, cancelled, resumed and deleted."""
    ada = explorer(store)
    job = jobs.submit(ada, request(), address="10.0.0.1")
    jobs.cancel(job.id, by=LOCAL)
    jobs.resume(job.id, by=ada)
    work(store)
    jobs.delete(job.id, by=LOCAL)
    told = People(store).audit.entries(limit=4)
    assert [(entry.who, entry.what) for entry in told] == [
        ("local", "job.delete"),
        ("Ada", "job.resume"),
        ("local", "job.cancel"),
        ("Ada", "job.submit"),
    ]
    assert {entry.subject for entry in told} == {job.id}
    assert told[-1].address == "10.0.0.1"


def test_deleting_a_job_keeps_what_it_measured(jobs, store):
    """Only an ended one, and only the job."""
    job = jobs.submit(LOCAL, request())
    with pytest.raises(ConflictError, match="cancel it first"):
        jobs.delete(job.id, by=LOCAL)
    work(store)
    jobs.delete(job.id, by=LOCAL)
    with pytest.raises(RecordError):
        jobs.get(job.id, by=LOCAL)
    assert store.read(count_runs) == 1


def test_a_job_is_found_as_it_was_asked(jobs, store):
    """Claims in any language and with markup come back letter for letter."""
    claim = "“Ünï” <script>alert('1')</script> 🙂 -- DROP TABLE jobs;"
    job = jobs.submit(LOCAL, request(claim))
    assert jobs.get(job.id, by=LOCAL).request == request(claim)
    work(store)
    assert jobs.runs(job.id, by=LOCAL)[0].claim == claim


def test_what_was_spent_counts_when_it_is_known_and_all_when_not(jobs, store):
    """A job that ended without anybody knowing its cost counts with its budget."""
    job = jobs.submit(LOCAL, request())
    for spent, budget, counted in ((300, 1000, 300), (None, 1000, 1000), (None, None, 0)):
        with store.writing() as connection:
            values = {"state": "done", "spent_micros": spent, "budget_micros": budget}
            connection.execute(update(table).where(table.c.job_id == job.id).values(values))
        assert jobs.usage(LOCAL).usd_micros_today == counted
