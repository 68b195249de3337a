"""Nobody pays twice: not two plans, not two runs, not two processes, not after a kill."""

import asyncio
import random
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
import virtual_time
from lanes_support import (
    Keeping,
    Metered,
    Watching,
    belief,
    leased,
    measured,
    paid_in_vain,
    plans,
    register,
    runner,
    stored,
)
from launcher import Job, launcher, plain_belief
from sqlalchemy import event

from heretix.core.clock import utc_now, utc_text
from heretix.core.errors import BatchPendingError, ServerError
from heretix.measurement.execution import Execution, build_run, make_sample
from heretix.measurement.verify import verify_run
from heretix.providers.catalog import parse_model
from heretix.providers.mock import MockProvider
from heretix.store import Store, new_owner
from heretix.store import samples as samples_module
from heretix.store.runs import select_executions
from heretix.store.samples import Leases, claim_leases, release_leases, save_samples
from heretix.store.schema import leases
from pgserver import bury_the_dead

BATCH = "batch:batch-1"
ELSEWHERE = "another.example:boot:pid/1/1/000000000000"
SMALL = {"K": 4, "R": 2, "T": 4, "B": 100}
FEW_KILLS = {"sqlite": 12, "postgresql": 4}
MANY_KILLS = {"sqlite": 100, "postgresql": 12}


@pytest.fixture(scope="module")
def launchers():
    """Two launchers for all tests: two processes at a time are enough."""
    with launcher() as one, launcher() as other:
        yield one, other


@pytest.fixture
def store(store_url):
    """A store with the bank in it, on each database in turn."""
    with Store.open(store_url) as store:
        register(store)
        yield store


def asked_of(plan):
    """The calls that a plan takes."""
    return {(plan.claim, s.paraphrase_idx, s.replicate_idx) for s in plan.samples}


def stored_calls(store, *claims, **options):
    """The calls of these claims whose answers are in the store."""
    keys = {row["cache_key"] for row in stored(store)}
    return {
        (plan.claim, s.paraphrase_idx, s.replicate_idx)
        for plan in plans(*claims, **options)
        for s in plan.samples
        if s.cache_key in keys
    }


async def quiet_belief(plan):
    """What a plan comes to when nothing disturbs it, with no store and no runner."""
    provider = MockProvider("m")
    triples = []
    for planned in plan.samples:
        reply = await provider.ask(plan.request(planned))
        sample = make_sample(
            plan, planned, reply=reply, error=None, attempts=1, latency_ms=0, created_at=utc_now()
        )
        triples.append((planned, sample, False))
    record = build_run(
        plan,
        triples,
        execution_id="exec-0",
        started_at=utc_now(),
        finished_at=utc_now(),
        heretix_version="0",
        price=None,
    )
    return plain_belief(record)


# One process


async def test_plans_that_want_the_same_sample_share_one_call(store):
    """K=8 with R=2 and with R=3, and the first again: 24 samples, 24 calls, three records."""
    provider, seen = Watching(), Keeping()
    wanted = [*plans("a", R=2), *plans("a", R=3), *plans("a", R=2)]
    await runner(store, observer=seen, concurrency=3).run([(provider, wanted)])
    assert set(Counter(provider.asked).values()) == {1}
    assert set(provider.asked) == asked_of(wanted[1])
    called = [(record.sampling.R, record.usage.called) for record in seen.records]
    assert sum(count for _, count in called) == 24
    assert len(called) == 3
    assert not leased(store)


async def test_plans_that_want_the_same_sample_at_another_time_share_it_too(store):
    """The second is begun when the first is done, and needs no call."""
    provider, seen = Watching(), Keeping()
    others = [f"Claim {number}." for number in range(70)]
    wanted = [*plans("a"), *plans(*others, K=1, R=3, T=1, B=100), *plans("a")]
    await runner(store, observer=seen).run([(provider, wanted)])
    assert set(Counter(provider.asked).values()) == {1}
    assert len(provider.asked) == 16 + 210
    assert len(seen.records) == 72


@pytest.mark.parametrize("apart", [0, 70])
async def test_without_the_cache_a_sample_is_called_for_once_in_a_run(store, apart):
    """The old answer isn't served, not even to a plan that waits; the new one serves both."""
    await measured(store, Watching(name="m?not_json=1"), "a")
    provider, seen = Watching(), Keeping()
    others = [f"Claim {number}." for number in range(apart)]
    wanted = [*plans("a"), *plans(*others, K=1, R=3, T=1, B=100), *plans("a")]
    await runner(store, observer=seen, use_cache=False).run([(provider, wanted)])
    assert set(Counter(provider.asked).values()) == {1}
    twins = [record for record in seen.records if record.claim == "a"]
    assert [record.aggregates.rpl_compliance_rate for record in twins] == [1.0, 1.0]
    assert sorted(record.usage.called for record in twins) == [0, 16]
    assert belief(twins[0]) == belief(twins[1])


async def test_a_failure_is_not_shared(store):
    """Who waits for a sample that failed for good asks for itself."""

    def fail(request, attempt):
        first_time = attempt <= 3 and (request.paraphrase_idx, request.replicate_idx) == bad
        return ServerError("down") if first_time else None

    wanted = [*plans("a"), *plans("a")]
    planned = wanted[0].samples[5]
    bad = (planned.paraphrase_idx, planned.replicate_idx)
    provider, seen = Watching(fail=fail), Keeping()
    await runner(store, observer=seen).run([(provider, wanted)])
    assert Counter(provider.asked).pop(("a", *bad)) == 4
    assert len(provider.asked) == 15 + 4
    assert sorted(record.usage.failed for record in seen.records) == [0, 1]


async def test_two_runs_at_once_share_all_calls_and_conclude_the_same(store):
    """Whoever comes second to a sample takes the answer of the first."""
    claims = [f"Claim {number}." for number in range(6)]
    providers, observers = (Watching(), Watching()), (Keeping(), Keeping())
    async with asyncio.TaskGroup() as group:
        for provider, seen in zip(providers, observers, strict=True):
            running = runner(store, observer=seen, concurrency=5)
            group.create_task(running.run([(provider, plans(*claims, B=200))]))
    asked = Counter(providers[0].asked) + Counter(providers[1].asked)
    assert len(asked) == 6 * 16
    assert set(asked.values()) == {1}
    one, other = ({r.claim: belief(r) for r in seen.records} for seen in observers)
    assert one == other
    assert len(one) == 6
    assert not leased(store)


# Others


async def test_samples_that_another_pays_for_are_waited_for(store):
    """Some come, some are given up: the first are taken from the store, the others called for."""
    (plan,) = plans("a")
    keys = [planned.cache_key for planned in plan.samples]
    store.write(claim_leases, keys, ELSEWHERE)
    provider, seen = Watching(), Keeping()
    task = asyncio.create_task(runner(store, observer=seen).run([(provider, [plan])]))
    async with asyncio.timeout(120):
        # The run's own thread writes it down: no event tells of it.
        while not store.read(select_executions, plan.run_id):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    answers = {s.cache_key: s for s in await answers_to(plan)}
    store.write(save_samples, [answers[key] for key in keys[:10]], owner=ELSEWHERE)
    await asyncio.sleep(0.3)
    assert not provider.asked
    store.write(release_leases, keys[10:], ELSEWHERE)
    await task
    assert len(provider.asked) == 6
    assert (seen.records[0].usage.called, seen.records[0].usage.from_cache) == (6, 10)


async def answers_to(plan):
    """What another process would have got."""
    provider = MockProvider("m")
    return [
        make_sample(
            plan,
            planned,
            reply=await provider.ask(plan.request(planned)),
            error=None,
            attempts=1,
            latency_ms=1,
            created_at=utc_now(),
        )
        for planned in plan.samples
    ]


async def test_an_answer_that_was_overtaken_is_paid_in_vain_by_whoever_called_for_it():
    """Another plan that only shares it has paid for nothing; a failed call cost nothing."""
    (plan,) = plans("A claim.", **SMALL)
    mine, theirs, *_ = await answers_to(plan)
    failed = replace(theirs, error="refused", raw_answer=None, prob_true=None, logit=None)
    caller, sharer = (Execution(plan, f"exec-{n}", utc_now(), None) for n in range(2))
    caller.held |= {mine.cache_key: mine, failed.cache_key: failed}
    sharer.reuse(mine)
    first = [replace(one, created_at=utc_text(0)) for one in (mine, theirs)]
    for execution in (caller, sharer):
        for one in first if execution is caller else first[:1]:
            execution.yield_to(one)
    assert (caller.in_vain, sharer.in_vain) == ([mine], [])
    assert caller.held == {one.cache_key: one for one in first}
    assert sharer.reused == {mine.cache_key}


async def test_what_another_left_lying_is_taken_over_when_its_time_is_over(store):
    """A machine that was switched off holds nobody up for longer than a lease."""
    (plan,) = plans("a")
    store.write(
        claim_leases, [planned.cache_key for planned in plan.samples], ELSEWHERE, lease_s=0.3
    )
    provider = Watching()
    await runner(store).run([(provider, [plan])])
    assert len(provider.asked) == 16


@pytest.mark.parametrize("bound", [10, 10_000])
def test_waiting_for_others_is_no_busy_loop(tmp_path, monkeypatch, bound):
    """However many samples are waited for, the store is asked now and then, not all the time."""
    monkeypatch.setattr("heretix.measurement.runner._AWAITED", bound)
    wanted = plans("a", "b", B=100)
    keys = [planned.cache_key for plan in wanted for planned in plan.samples]
    looks = []

    def count(connection, cursor, statement, *_):
        if "expires_at >=" in statement:
            looks.append(statement)

    async def main():
        task = asyncio.create_task(runner(store).run([(Watching(), wanted)]))
        await asyncio.sleep(60.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with Store.open(str(tmp_path / "heretix.sqlite")) as store:
        register(store)
        store.write(claim_leases, keys, ELSEWHERE, lease_s=1e6)
        event.listen(store._engine, "before_cursor_execute", count)
        virtual_time.run(main())
    assert 10 <= len(looks) <= 80


def test_a_batch_sends_home_no_call_that_waits_for_its_turn(tmp_path):
    """24 samples that no batch brings and a window of 16: 24 calls, however long they take."""
    (plan,) = plans("a", K=16, R=2, T=16, B=100)
    in_batch = {planned.cache_key for planned in plan.samples[:8]}

    async def slowly(_count):
        # By the loop's clock: whatever the lane can do meanwhile is done before a call ends.
        await asyncio.sleep(60.0)

    async def main():
        running = runner(store, concurrency=64, fixed=False)
        with pytest.raises(BatchPendingError, match=r"^8 samples .* `batch-1`\."):
            await running.run([(provider, [plan])])

    provider = Watching(before=slowly)
    with Store.open(str(tmp_path / "heretix.sqlite")) as store:
        register(store)
        store.write(claim_leases, sorted(in_batch), BATCH, lease_s=1e6)
        virtual_time.run(main())
        assert leased(store) == in_batch
        assert len(stored(store)) == 24
    assert len(provider.asked) == 24


@pytest.mark.parametrize("bound", [10, 10_000])
def test_a_batch_holds_up_no_call_for_what_it_does_not_bring(tmp_path, monkeypatch, bound):
    """Calls to be repeated, what another gives up, plans that aren't begun yet: all are made."""
    monkeypatch.setattr("heretix.measurement.runner._AWAITED", bound)
    wanted = plans(*(f"Claim {number}." for number in range(40)), **SMALL)
    in_batch = {planned.cache_key for plan in wanted[:3] for planned in plan.samples[:4]}
    given_up = [planned.cache_key for planned in wanted[3].samples]
    calls = Counter(
        (plan.claim, planned.paraphrase_idx, planned.replicate_idx)
        for plan in wanted
        for planned in plan.samples
        if planned.cache_key not in in_batch
    )
    calls += Counter(call for call in calls if call[0] == "Claim 0.")

    def fail(request, attempt):
        return ServerError("down") if attempt == 1 and request.claim == "Claim 0." else None

    async def slowly(count):
        await asyncio.sleep(60.0)
        if count == calls.total() - len(given_up):
            store.write(release_leases, given_up, ELSEWHERE)

    async def main():
        running = runner(store, concurrency=64, fixed=False, observer=seen)
        with pytest.raises(BatchPendingError, match=r"^12 samples .* `batch-1`\."):
            await running.run([(provider, wanted)])

    provider, seen = Watching(before=slowly, fail=fail), Keeping()
    with Store.open(str(tmp_path / "heretix.sqlite")) as store:
        register(store)
        store.write(claim_leases, sorted(in_batch), BATCH, lease_s=1e6)
        store.write(claim_leases, given_up, ELSEWHERE, lease_s=1e6)
        virtual_time.run(main())
        assert leased(store) == in_batch
    assert Counter(provider.asked) == calls
    assert {record.claim for record in seen.records} == {plan.claim for plan in wanted[3:]}


def test_leases_are_kept_alive_as_long_as_a_call_takes(tmp_path):
    """A call of ten minutes outlasts a lease ten times: it is extended again and again."""
    beats = []

    def count(connection, cursor, statement, *_):
        if statement.startswith("UPDATE leases"):
            beats.append(statement)

    async def slowly(_count):
        await asyncio.sleep(600.0)

    async def main():
        await runner(store, concurrency=16).run([(Watching(before=slowly), plans("a"))])

    with Store.open(str(tmp_path / "heretix.sqlite")) as store:
        register(store)
        event.listen(store._engine, "before_cursor_execute", count)
        virtual_time.run(main())
    assert len(beats) >= 600 / 60


# The fence


def answers(store):
    """What stands in the store, and since when."""
    return {row["cache_key"]: (row["raw_answer"], row["created_at"]) for row in stored(store)}


@pytest.mark.parametrize("use_cache", [True, False])
async def test_whoever_was_paused_pays_for_nothing_that_another_answered(
    store, monkeypatch, use_cache
):
    """One of two is paused for longer than a lease with five calls in flight; the other measures
    all meanwhile. The first then pays for those five in vain, calls for nothing more, replaces no
    answer, and concludes the same from the same samples."""
    slept_s, paused, go_on = 0.0, asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(samples_module, "elapsed_s", lambda: time.monotonic() + slept_s)

    async def pause(count):
        if count >= 11:
            paused.set()
            await go_on.wait()

    one, first = Metered(before=pause), Keeping()
    other, second = Watching(), Keeping()
    claims = [f"Claim {number}." for number in range(6)]
    task = asyncio.create_task(
        runner(store, concurrency=5, observer=first, use_cache=use_cache).run(
            [(one, plans(*claims, B=100))]
        )
    )
    await paused.wait()
    # Five in flight, one of the same eight that waits for a place, and the next eight. What was
    # answered before is saved: until then its leases count as well.
    while one.in_flight < 5 or len(answers(store)) < 10 or len(leased(store)) != 14:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    with store.writing() as connection:
        connection.execute(leases.update().values(expires_at=0.0))
    await runner(store, observer=second).run([(other, plans(*claims, B=100))])
    before = answers(store)
    slept_s = 120.0
    go_on.set()
    await task
    assert len(one.asked) == 15
    assert len(one.asked) + len(other.asked) == 6 * 16 + 5
    assert answers(store) == before
    one_record, another = (
        sorted(seen.records, key=lambda record: record.claim) for seen in (first, second)
    )
    for mine, theirs in zip(one_record, another, strict=True):
        assert [s.created_at for s in mine.samples] == [s.created_at for s in theirs.samples]
        assert belief(mine) == belief(theirs)
    vain = [record.usage.in_vain for record in first.records if record.usage.in_vain]
    assert sum(one.calls for one in vain) == 5
    assert sum(one.tokens_in for one in vain) == 5 * 1000
    assert len(paid_in_vain(store)) == 5
    assert all(verify_run(record).ok for record in first.records)
    assert not leased(store)


class Holding:
    """A store that takes no answers until it may."""

    def __init__(self, store):
        self._store = store
        self.go_on = threading.Event()

    def write(self, query, *args, **options):
        if query is save_samples:
            self.go_on.wait()
        return self._store.write(query, *args, **options)

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.mark.parametrize("use_cache", [True, False])
async def test_what_a_paused_process_had_not_stored_is_brought_in_from_its_spool(
    store, monkeypatch, use_cache
):
    """Ten answers are on its disk and in no transaction, five calls in flight: whoever takes over
    its leases calls for none of the ten. It saves them again later, and that is nothing new."""
    slept_s, paused, go_on = 0.0, asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(samples_module, "elapsed_s", lambda: time.monotonic() + slept_s)

    async def pause(count):
        if count >= 11:
            paused.set()
            await go_on.wait()

    one, other, claims = Watching(before=pause), Watching(), [f"Claim {n}." for n in range(6)]
    rate, first, second = {parse_model("mock:m"): "rate"}, Keeping(), Keeping()
    running = runner(store, concurrency=5, observer=first, use_cache=use_cache, rate_ids=rate)
    running.keeping = held = Holding(running.keeping)
    task = asyncio.create_task(running.run([(one, plans(*claims, B=100))]))
    await paused.wait()
    # Five fit into the window: of fifteen ten are answered, and on the disk in the same moment.
    while len(one.asked) < 15 or len(leased(store)) < 24:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    with store.writing() as connection:
        connection.execute(leases.update().values(expires_at=0.0))
    long_ago, said = "2000-01-01T00:00:00.000Z", []
    taking_over = runner(store, observer=second, use_cache=use_cache, since=long_ago)
    taking_over.tell = said.append
    await taking_over.run([(other, plans(*claims, B=100))])
    before, slept_s = answers(store), 120.0
    held.go_on.set()
    go_on.set()
    await task
    assert said == ["brought in 10 answers that another process couldn't store"]
    assert (len(one.asked), len(other.asked)) == (15, 6 * 16 - 10)
    assert answers(store) == before
    assert len(paid_in_vain(store)) == 5
    assert {r.claim: belief(r) for r in first.records} == {
        r.claim: belief(r) for r in second.records
    }
    assert (leased(store), store.spools) == (set(), [])


async def test_without_the_cache_no_older_answer_takes_the_place_of_a_new_one(store):
    """Leases that lapse during calls leave the stored answers alone, and the record its own."""
    await runner(store).run([(Watching(), plans("Tea.", B=100))])
    before, began = answers(store), utc_now()

    async def lapse(_count):
        with store.writing() as connection:
            connection.execute(leases.delete())

    seen = Keeping()
    again = runner(store, observer=seen, use_cache=False)
    await again.run([(Watching(before=lapse), plans("Tea.", B=100))])
    (record,) = seen.records
    assert all(sample.created_at >= began for sample in record.samples)
    assert answers(store).keys() == before.keys()


async def test_the_fence_asks_again_when_the_store_was_silent_for_long(store, monkeypatch):
    """Leases that nobody took meanwhile are confirmed by one look, and the calls go on."""
    slept_s = 0.0
    monkeypatch.setattr(samples_module, "elapsed_s", lambda: time.monotonic() + slept_s)
    held = Leases(store)
    assert await held.claim(["a", "b"]) == ({"a", "b"}, set())
    slept_s = 46.0
    store.write(release_leases, ["b"], held.owner)
    store.write(claim_leases, ["b"], ELSEWHERE)
    assert await held.confirm("a")
    assert not await held.confirm("b")
    assert not await held.confirm("never claimed")


# Other processes


def test_two_processes_share_all_calls_and_conclude_the_same(store, store_url, launchers):
    """The same command started twice at once: no sample is called for twice, and both finish."""
    claims = tuple(f"Claim {number}." for number in range(80))
    job = Job(url=store_url, claims=claims, plan=SMALL, concurrency=8)
    for each in launchers:
        each.begin(job)
    one, other = (each.end() for each in launchers)
    asked = Counter(one.asked) + Counter(other.asked)
    assert [one.killed, other.killed] == [False, False]
    assert len(asked) == 80 * 8
    assert set(asked.values()) == {1}
    assert one.beliefs == other.beliefs
    assert len(one.beliefs) == 80
    assert not leased(store)


def test_a_process_takes_over_from_one_that_is_killed_beside_it(store, store_url, launchers):
    """Of two that share the work one is killed: the other ends it, and waits for no lease."""
    claims = tuple(f"Claim {number}." for number in range(20))
    killed, living = launchers
    killed.begin(Job(url=store_url, claims=claims, plan=SMALL, kill_after=20))
    living.begin(Job(url=store_url, claims=claims, plan=SMALL))
    one, other = killed.end(), living.end()
    bury_the_dead(store)
    assert one.killed
    assert len(other.beliefs) == 20
    assert set(Counter(other.asked).values()) == {1}
    everything = {call for plan in plans(*claims, **SMALL) for call in asked_of(plan)}
    assert set(one.asked) | set(other.asked) == everything
    assert stored_calls(store, *claims, **SMALL) == everything
    # The killed one may have died with leases on samples that were stored just before.
    keys = {sample.cache_key for plan in plans(*claims, **SMALL) for sample in plan.samples}
    assert store.write(claim_leases, sorted(keys), new_owner()) == keys


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(FEW_KILLS, id="few"),
        pytest.param(MANY_KILLS, id="many", marks=pytest.mark.soak),
    ],
)
async def test_a_kill_at_any_moment_costs_only_what_was_not_stored(
    store, store_url, launchers, schedule
):
    """Killed after any number of calls and statements: the rerun makes exactly the calls whose
    answers aren't stored, and concludes what an undisturbed run concludes."""
    chance = random.Random(5)
    kills = schedule["sqlite" if store_url.startswith("sqlite") else "postgresql"]
    job = Job(url=store_url, claims=("Whole a.", "Whole b."), plan=SMALL)
    moments = len(launchers[0].run(job).events)
    partly = 0
    for number in range(5 * kills):
        # A busy machine stores most answers at once: more moments, until enough lie in between.
        if number >= kills and partly >= kills // 10:
            break
        claims = (f"Claim {number}a.", f"Claim {number}b.")
        moment = chance.randrange(moments)
        outcome = launchers[0].run(Job(url=store_url, claims=claims, plan=SMALL, kill_after=moment))
        bury_the_dead(store)
        wanted = plans(*claims, **SMALL)
        calls = {call for plan in wanted for call in asked_of(plan)}
        kept = stored_calls(store, *claims, **SMALL)
        partly += 0 < len(kept) < len(calls)
        assert kept <= set(outcome.asked)
        again = Watching()
        async with asyncio.timeout(30):
            seen = await measured(store, again, *claims, **SMALL)
        assert sorted(again.asked) == sorted(calls - kept)
        assert {r.claim: plain_belief(r) for r in seen.records} == {
            plan.claim: await quiet_belief(plan) for plan in wanted
        }
        assert not leased(store)
    assert partly >= kills // 10, "the moments were spread over the run"
