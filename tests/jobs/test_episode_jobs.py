"""Episodes moved on by jobs: measured by workers, decided once, whoever dies in between."""

import asyncio
import json
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from episode_town import CLAIM, NOW, Town, die_at, die_at_second_challenge
from jobs_support import count_samples, wait_for_calls
from sqlalchemy import func, select

from faultserver import answer, answers, silence
from heretix.accounts import LOCAL, People, Quotas, Role
from heretix.core.errors import AccessError, ConflictError, QuotaError, StoreError
from heretix.economy.audit import verify_episode
from heretix.economy.episode.state import Fate, State
from heretix.economy.exchange import Exchange
from heretix.economy.judging.workflow import DAY_MS
from heretix.jobs import Feed, Job, JobState, MeasureRequest, Worker
from heretix.jobs.worker import MoveRunner, Tracker
from heretix.store.schema import executions
from heretix.store.schema import jobs as table
from pgserver import bury_the_dead
from processes import PROCESSES

pytestmark = pytest.mark.either

LIVE = ("openai-compatible:m",)
JUDGED = {Fate.ACCEPTED, Fate.FAILED}


@pytest.fixture
def town(store):
    return Town(store)


def operator(store, name="Olga", **quotas):
    """Somebody who may run episodes, within quotas."""
    return People(store).add(name, role=Role.OPERATOR, quotas=Quotas(**quotas))


def count_executions(store):
    with store.reading() as connection:
        return connection.scalar(select(func.count()).select_from(executions))


def stages(town, episode):
    return [found.stage for found in town.exchange.measurements(episode.id)]


def ended(town, job):
    return town.jobs.get(job.id, by=LOCAL)


def test_an_episode_is_moved_by_jobs_from_draft_to_ruling(town):
    """Each measures what is due, tells how far it is, and names the episode."""
    episode = town.frozen(papers=2)
    (draft,) = town.jobs.list(by=LOCAL)
    assert (draft.kind, draft.state, draft.episode) == ("episode", JobState.DONE, episode.id)
    assert draft.title == f"Measuring what the models believe now: {CLAIM}"
    assert (draft.progress.done, draft.progress.total, draft.progress.phase) == (16, 16, "ended")

    job = town.ask("judge", episode)
    assert town.jobs.find_moving(episode.id) == job
    assert town.work() == 1
    judged = town.exchange.episode(episode.id)
    assert {challenge.fate for challenge in judged.challenges} <= JUDGED
    done = ended(town, job)
    assert (done.progress.done, done.progress.total, done.progress.runs_done) == (96, 96, 6)
    assert (town.jobs.find_moving(episode.id), done.spent_micros) == (None, 0)
    assert {run.claim for run in town.jobs.runs(job.id, by=LOCAL)} == {CLAIM}
    assert list(town.jobs.artifacts(job.id, by=LOCAL)) == []

    for stage in ("first", "second"):
        job = town.ask("measure", judged, stage=stage)
        assert ended(town, job).title.startswith(f"The {stage} measurement of the judges")
        assert town.work() == 1
        assert ended(town, job).progress.done == 2 * 16 * 3
        town.clock.advance(7 * DAY_MS)
    assert stages(town, episode) == ["c0", "gate:0", "gate:1", "first", "second"]
    assert town.exchange.episode(episode.id).state is State.MEASURED
    assert verify_episode(town.exchange.record(episode.id)).ok


def test_a_dispute_is_ruled_on_by_a_job(town):
    """The larger panel measures twice, and its word stands."""
    episode = town.disputed()
    job = town.ask("rule", episode, stage="round:1", confirmed=False)
    assert town.work() == 1
    assert ended(town, job).progress.done == 4 * 16 * len(episode.judges)
    assert town.exchange.episode(episode.id).disputes[-1].upheld is not None
    assert stages(town, episode)[-1] == "round:1"


def test_without_bets_on_both_sides_it_is_concluded(town):
    """Nothing is measured, and that is no failure."""
    episode = town.frozen(papers=0, sides=())
    job = town.ask("measure", episode)
    assert ended(town, job).title.startswith("Concluding without measurement")
    assert town.work() == 1
    assert (ended(town, job).state, ended(town, job).progress.total) == (JobState.DONE, 0)
    assert town.exchange.episode(episode.id).state is State.MEASURED


PREPARED = {
    "judge": lambda town: (town.frozen(), {}),
    "measure": lambda town: (town.judged(), {"stage": "first"}),
    "conclude": lambda town: (town.frozen(papers=0, sides=()), {}),
    "rule": lambda town: (town.disputed(), {"stage": "round:1"}),
}


def killed(store, store_url, work, *more):
    """Have a worker's process killed at a point."""
    child = PROCESSES.Process(target=work, args=(store_url, *more))
    child.start()
    child.join(240)
    assert child.exitcode == -signal.SIGKILL
    bury_the_dead(store)


@pytest.mark.parametrize("name", PREPARED)
@pytest.mark.soak
def test_a_worker_killed_after_its_decision_has_decided(town, store, store_url, name):
    """Another takes the job up, finds nothing left to do, and asks nobody again."""
    episode, more = PREPARED[name](town)
    job = town.ask("measure" if name == "conclude" else name, episode, **more)
    killed(store, store_url, die_at, town.clock.now_ms(), "worker", "_end")
    assert ended(town, job).state is JobState.RUNNING
    decided, told = town.exchange.episode(episode.id), stages(town, episode)
    assert decided != episode
    asked = (count_samples(store), count_executions(store))

    assert town.work() == 1
    assert (ended(town, job).state, ended(town, job).attempt) == (JobState.DONE, 2)
    assert ended(town, job).error is None
    assert (count_samples(store), count_executions(store)) == asked
    assert town.exchange.episode(episode.id) == decided
    assert stages(town, episode) == told
    assert town.exchange.verify().ok


@pytest.mark.parametrize("point", [("worker", "_end"), ("exchange", "open")])
def test_a_worker_killed_after_its_draft_has_drafted(town, store, store_url, point):
    """Whether it was opened or not by then: there is one episode, and its belief stands."""
    job = town.propose()
    killed(store, store_url, die_at, NOW, *point)
    (drafted,) = town.exchange.episodes()
    asked = count_executions(store)
    town.clock.advance(3 * DAY_MS)
    assert town.work() == 1
    assert (ended(town, job).state, ended(town, job).attempt) == (JobState.DONE, 2)
    assert ended(town, job).episode == drafted.id
    assert [found.id for found in town.exchange.episodes()] == [drafted.id]
    assert count_executions(store) == asked
    assert town.exchange.episode(drafted.id).state is State.CHALLENGE
    assert verify_episode(town.exchange.record(drafted.id)).ok


@pytest.mark.soak
def test_a_worker_killed_between_challenges_leaves_the_rest(town, store, store_url):
    """What was judged stays judged; the next worker judges what is left."""
    episode = town.frozen(papers=2)
    job = town.ask("judge", episode)
    killed(store, store_url, die_at_second_challenge, town.clock.now_ms())
    half = town.exchange.episode(episode.id)
    assert (half.challenges[0].fate in JUDGED, half.challenges[1].fate) == (True, Fate.REVEALED)
    asked = count_executions(store)
    assert town.work() == 1
    whole = town.exchange.episode(episode.id)
    assert {challenge.fate for challenge in whole.challenges} <= JUDGED
    assert whole.challenges[0] == half.challenges[0]
    assert stages(town, episode) == ["c0", "gate:0", "gate:1"]
    assert (count_executions(store), ended(town, job).progress.done) == (asked + 3, 48)


async def interrupted(town, server, job_id, interrupt):
    """Run a worker until a job has three samples, then do something to it."""
    worker = Worker(town.store, town.settings, clock=town.clock)
    task = asyncio.create_task(worker.run())
    feed = Feed(town.store)
    done = False
    async for event in feed.follow(job_id):
        if event.progress.done >= 3 and not done:
            done = True
            await asyncio.to_thread(wait_for_calls, server, 16)
            await asyncio.to_thread(interrupt, worker)
        if event.ended or (done and event.state is JobState.QUEUED):
            break
    await feed.aclose()
    worker.stop()
    await task


INTERRUPTIONS = {
    "stopped": (lambda _jobs, _job: lambda worker: worker.stop(drop=True), JobState.QUEUED),
    "cancelled": (
        lambda jobs, job: lambda _: jobs.cancel(job.id, by=LOCAL),
        JobState.CANCELLED,
    ),
}


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_what_is_interrupted_decides_nothing_and_goes_on(store, server, live, name):
    """Every sample is called for anew: what money depends on is taken from no cache."""
    town = Town(store, live)
    server.script(*[answer() for _ in range(3)])
    server.always(silence())
    job = town.propose(models=LIVE)
    interruption, state = INTERRUPTIONS[name]
    asyncio.run(interrupted(town, server, job.id, interruption(town.jobs, job)))
    assert (ended(town, job).state, ended(town, job).error) == (state, None)
    assert (town.exchange.episodes(), ended(town, job).episode) == ([], None)

    server.always(answer())
    server.calls.clear()
    if state is JobState.CANCELLED:
        town.jobs.resume(job.id, by=LOCAL)
    assert town.work() == 1
    done = ended(town, job)
    assert (done.state, done.attempt, done.progress.cached) == (JobState.DONE, 2, 0)
    assert len(server.calls) == 16
    (episode,) = town.exchange.episodes()
    assert (episode.id, episode.state) == (done.episode, State.CHALLENGE)


def test_an_operator_who_is_disabled_decides_no_more(store, server, live):
    """Their jobs stop like any other, and say why."""
    town = Town(store, live)
    server.script(*[answer() for _ in range(3)])
    server.always(silence())
    job = town.propose(operator(store), models=LIVE)
    asyncio.run(interrupted(town, server, job.id, lambda _: People(store).deactivate("olga")))
    assert ended(town, job).state is JobState.CANCELLED
    assert "`Olga` was disabled" in (ended(town, job).error or "")
    assert town.exchange.episodes() == []


def test_what_somebody_else_decided_meanwhile_stands(store, server, live):
    """A worker that was taken for dead was quicker; the job is done, and nothing is done twice."""
    town = Town(store, live)
    server.always(answer())
    episode = town.frozen(models=LIVE)
    server.calls.clear()

    def decided_on_the_way(call):
        if len(server.calls) == 20:
            town.exchange.judge_challenge(episode.id, 0, None)
        return json.dumps({"prob_true": 0.7})

    server.always(answers(decided_on_the_way))
    job = town.ask("judge", episode)
    assert town.work() == 1
    assert (ended(town, job).state, ended(town, job).error) == (JobState.DONE, None)
    assert town.exchange.episode(episode.id).challenges[0].fate is Fate.FAILED
    assert stages(town, episode) == ["c0", "gate:0"]
    assert town.exchange.verify().ok


def test_two_workers_at_one_measurement_never_void_the_episode(town, store):
    """Samples that one took from the other decide nothing: the rules would void it for them."""
    episode = town.judged()
    job = town.ask("measure", episode, stage="first")

    async def measured_by_two():
        moves = [
            MoveRunner(
                job.request, store, town.settings, clock=town.clock, tracker=Tracker(job.id, 0)
            )
            for _ in range(2)
        ]
        return await asyncio.gather(*(move.run() for move in moves), return_exceptions=True)

    told = asyncio.run(measured_by_two())
    assert all(one is None or isinstance(one, ConflictError) for one in told), told
    assert town.work() == 1
    assert ended(town, job).state is JobState.DONE
    assert stages(town, episode) == ["c0", "first"]
    assert town.exchange.episode(episode.id).state is State.FROZEN


def test_a_move_that_the_rules_refuse_fails_with_dates(town):
    """Whoever reads a refusal is told moments as people write them."""
    episode = town.judged()
    town.ask("measure", episode, stage="first")
    town.work()
    job = town.ask("measure", episode, stage="second")
    town.work()
    failed = ended(town, job)
    assert (failed.state, failed.error_kind) == (JobState.FAILED, "RefusedError")
    assert "too_early" in failed.error
    assert "UTC" in failed.error
    assert str(NOW)[:4] not in failed.error.replace("2027", "")
    assert stages(town, episode) == ["c0", "first"]


def test_an_episode_is_moved_by_one_job_at_a_time(town):
    """The second is refused and told of the first, also when it is resumed."""
    episode = town.judged()
    first = town.ask("measure", episode, stage="first")
    for move in ("judge", "measure"):
        with pytest.raises(ConflictError, match=first.id):
            town.ask(move, episode)
    town.jobs.cancel(first.id, by=LOCAL)
    second = town.ask("judge", episode)
    with pytest.raises(ConflictError, match=second.id):
        town.jobs.resume(first.id, by=LOCAL)
    assert town.work() == 1
    town.jobs.resume(first.id, by=LOCAL)
    assert town.work() == 1
    assert stages(town, episode) == ["c0", "first"]


def test_of_many_who_begin_at_once_one_does(town, store):
    """Whoever they are: the episode is what they take turns at."""
    episode = town.judged()
    people = [operator(store, f"Op{n}") for n in range(6)]

    def begin(person):
        try:
            return town.ask("judge", episode, person).id
        except ConflictError as exc:
            return exc

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(begin, people))
    assert sum(isinstance(one, str) for one in found) == 1


def test_of_many_who_send_one_key_at_once_all_get_the_same_job(town):
    """A form that is sent twice is no conflict with itself."""
    episode = town.judged()
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: town.ask("judge", episode, key="twice").id, range(6)))
    assert len(set(found)) == 1


def test_the_same_key_is_the_same_job(town):
    """And another request under it is a conflict."""
    first = town.propose(key="mine")
    assert town.propose(key="mine").id == first.id
    assert town.jobs.find_by_key(LOCAL, "mine") == first
    with pytest.raises(ConflictError, match="another request"):
        town.propose(key="mine", K=32)
    other = town.propose(key="other", claim="Copper whiskers cause short circuits.")
    assert other.id != first.id
    assert town.work() == 2
    assert len(town.exchange.episodes()) == 2


def test_a_claim_that_is_asked_about_is_not_measured_again(town, store):
    """One episode of a claim is open at a time: refused before a single call."""
    town.opened()
    asked = count_executions(store)
    job = town.propose(key="again")
    assert town.work() == 1
    assert "one episode of a claim is open at a time" in ended(town, job).error
    assert count_executions(store) == asked


def test_episodes_are_for_operators(town, store):
    """Nobody else begins a move or resumes one, whoever's it was."""
    ada = People(store).add("Ada", role=Role.EXPLORER)
    with pytest.raises(AccessError):
        town.propose(ada)
    olga = operator(store)
    job = town.propose(olga)
    town.jobs.cancel(job.id, by=olga)
    People(store).set_role("olga", Role.EXPLORER)
    with pytest.raises(AccessError):
        town.jobs.resume(job.id, by=People(store).find("olga"))


def test_quotas_hold_for_episodes_too(town, store):
    """Jobs a day, and jobs at a time."""
    olga = operator(store, running_jobs=1, jobs_per_day=2)
    first = town.propose(olga)
    with pytest.raises(QuotaError, match="jobs at a time"):
        town.propose(olga)
    town.jobs.cancel(first.id, by=olga)
    town.jobs.cancel(town.propose(olga).id, by=olga)
    with pytest.raises(QuotaError, match="jobs a day"):
        town.propose(olga)


def test_a_daily_limit_is_a_hard_stop(store, server, live):
    """What is spent is counted, and nothing is decided by half a measurement."""
    town = Town(store, live)
    server.always(answer())
    free = town.propose(models=LIVE)
    assert town.work() == 1
    cost = ended(town, free).spent_micros
    assert cost is not None
    assert cost > 0
    # Room for the most that a call can cost, and a few that cost what they do.
    limit = 5_000_000
    olga = operator(store, usd_micros_per_day=limit)
    job = town.propose(olga, models=LIVE, R=32, claim="Copper whiskers cause short circuits.")
    assert job.budget_micros == limit
    assert town.work() == 1
    failed = ended(town, job)
    assert (failed.state, failed.error_kind) == (JobState.FAILED, "BudgetReachedError")
    assert 0 < failed.spent_micros <= limit
    assert len(town.exchange.episodes()) == 1
    assert town.propose(olga, models=LIVE).budget_micros == limit - failed.spent_micros


def test_what_a_job_spends_is_the_sum_of_its_measurements(store, server, live):
    """A move may take several; each counts, whoever made it."""
    town = Town(store, live)
    server.always(answer())
    episode = town.frozen(models=LIVE, papers=2)
    (draft,) = town.jobs.list(by=LOCAL)
    job = town.ask("judge", episode)
    assert town.work() == 1
    assert ended(town, job).progress.done == 96
    assert ended(town, job).spent_micros > 3 * draft.spent_micros


def test_calls_that_fail_decide_nothing_unless_it_is_final(town):
    """Then who couldn't be reached counts as missing, and the job is done."""
    town.judge_pool = tuple(f"mock:judge{n}?rejected=1" for n in range(7))
    episode = town.judged()
    job = town.ask("measure", episode, stage="first")
    town.work()
    assert ended(town, job).state is JobState.FAILED
    assert stages(town, episode) == ["c0"]
    job = town.ask("measure", episode, stage="first", final=True)
    town.work()
    assert (ended(town, job).state, ended(town, job).error) == (JobState.DONE, None)
    assert stages(town, episode) == ["c0", "first"]


def test_where_the_store_lies_is_told_to_nobody(town, monkeypatch, caplog):
    """It was away when the decision was to be written: the log knows more, and it can go on."""

    def away(*_, **__):
        raise StoreError("`/srv/secret/place.sqlite` is away")

    job = town.propose()
    with monkeypatch.context() as patched:
        patched.setattr(Exchange, "draft", away)
        town.work()
    failed = ended(town, job)
    assert (failed.state, failed.error_kind) == (JobState.FAILED, "StoreError")
    assert "secret" not in failed.error
    assert "/srv/secret/place.sqlite" in caplog.text
    town.jobs.resume(job.id, by=LOCAL)
    assert town.work() == 1
    assert ended(town, job).state is JobState.DONE


def test_a_request_without_a_kind_is_a_measurement(store, town):
    """Jobs of before there were others are read as what they are."""
    asked = MeasureRequest.parse({"claims": ["Tea is good."], "models": ["mock:a"]})
    job = town.jobs.submit(LOCAL, asked)
    with store.reading() as connection:
        row = connection.execute(select(table)).mappings().one()
    assert "kind" not in json.loads(row["request_json"])
    assert (Job.of(row).kind, Job.of(row).request, Job.of(row).episode) == ("measure", asked, None)
    assert job.as_dict()["kind"] == "measure"
