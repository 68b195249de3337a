"""Batches: submitted once, collected as often as one likes, and never paid twice."""

import asyncio
import json
import math
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from batchserver import BatchServer, answered, canceled, carried_out, errored, expired, nothing, raw
from faultserver import document, reset, silence, status
from faultserver import raw as raw_body
from heretix.config import Claim, RunConfig
from heretix.core.errors import (
    BatchPendingError,
    BudgetReachedError,
    ConfigError,
    ProviderError,
    RateLimitedError,
    RecordError,
    RejectedError,
    ServerError,
    StoreBusyError,
    UnconfirmedError,
)
from heretix.core.settings import Settings
from heretix.measurement.batch import BatchService, collect, submit
from heretix.measurement.runner import NullObserver, Retry
from heretix.measurement.service import bank_of, prepare, replan
from heretix.measurement.verify import verify_run
from heretix.providers.batch import BatchLimits
from heretix.store import Store
from heretix.store.batches import (
    find_batch,
    select_closed_batches,
    select_holding_batches,
    select_open_batches,
)
from heretix.store.budgets import STORE_BUDGET, select_budget
from heretix.store.runs import find_execution, find_record, select_bank, select_runs
from heretix.store.samples import claim_leases, release_all_leases, save_samples, select_answers

BOTH = pytest.mark.parametrize("protocol", ["openai", "anthropic"])
MODELS = {"openai": "gpt-5", "anthropic": "claude-sonnet-5-5"}
SETTINGS = Settings(env={"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-1"})
AT_ONCE = Retry(attempts=3, wait_initial_s=0.0, wait_max_s=0.0)
ONCE = Retry(attempts=1, wait_initial_s=0.0, wait_max_s=0.0)
SMALL = BatchLimits(requests=5, size_bytes=10_000_000)
NEXT_HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def running():
    with BatchServer() as server:
        yield server


@pytest.fixture
def server(running):
    running.forget()
    return running


@pytest.fixture
def path(sqlite_template, tmp_path):
    """The path of an empty store."""
    target = tmp_path / "heretix.sqlite"
    target.write_bytes(sqlite_template.read_bytes())
    return str(target)


class Keeping(NullObserver):
    """An observer that keeps what it sees."""

    def __init__(self):
        self.records = []
        self.samples = []

    def on_sampled(self, plan, sample):
        self.samples.append(sample)

    def on_finished(self, record):
        self.records.append(record)


def asked(server, protocol="openai", *claims, settings=SETTINGS, **options):
    """A measurement by the local server's model."""
    config = RunConfig.parse(
        {"model": MODELS[protocol], "base_url": server.url(protocol), "B": 200, **options}
    )
    return prepare(config, settings, claims=claims or ("Tea | coffee: “{CLAIM}” 🙂",))


@asynccontextmanager
async def service_at(path, *, retry=AT_ONCE, later=timedelta(0), settings=SETTINGS):
    """A service as a process that just started has one: nothing is shared with the one before."""
    with Store.open(path) as store:
        async with BatchService(
            store, settings, retry=retry, now=lambda: datetime.now(UTC) + later
        ) as service:
            yield service


async def submitted(path, measurement, *, limits=None, **options):
    async with service_at(path, settings=measurement.settings, **options) as service:
        return await submit(service, measurement, limits=limits)


async def collected(path, *, observer=None, every_s=None, **options):
    async with service_at(path, **options) as service:
        found = service.store.read(select_open_batches)
        return await collect(service, found, observer=observer, every_s=every_s)


def paid(server):
    """How often each sample was submitted."""
    return Counter(entry.custom_id for batch in server.batches for entry in batch.entries)


def by_number(entry):
    """Answers that differ from request to request, and only by what is asked."""
    digest = int(entry.custom_id[:6], 16) / 0xFFFFFF
    return answered(json.dumps({"prob_true": round(0.05 + 0.9 * digest, 4)}))


def belief(record):
    """What a record concludes, without what is particular to one execution."""
    aggregates = record.aggregates.model_dump(exclude={"cache_hit_rate"})
    return aggregates, record.aggregation, record.diagnostics


async def until(condition):
    """Let others work until something has happened."""
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never happened")


async def settled(server):
    """Wait until the server has seen everything that was sent to it."""
    before = -1
    while before != len(server.seen):
        before = len(server.seen)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", server._port)
            # It is answered after whatever came before it was read.
            writer.write(b"GET /settled HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            assert b" 404 " in await reader.readline()
            writer.close()
            await writer.wait_closed()


@BOTH
async def test_a_batch_outlives_its_process_and_gives_an_ordinary_record(
    server, store_url, protocol
):
    """Submitted by one process, collected by the next: the record verifies, at half the price."""
    measurement = asked(server, protocol, "One.", "Two.", K=8, R=2, seed=7)
    submission = await submitted(store_url, measurement)
    assert (submission.requests, submission.executions, submission.finished) == (32, 2, 0)
    assert len(submission.batches) == len(server.batches) == 1
    server.end(by_number)
    seen = Keeping()
    collection = await collected(store_url, observer=seen)
    assert collection.finished == len(seen.records) == 2
    assert len(seen.samples) == 32
    for record in seen.records:
        assert verify_run(record).ok
        assert (record.usage.called, record.usage.failed, record.usage.from_cache) == (16, 0, 0)
        full = {"openai": ("1.25", "10.00"), "anthropic": ("2.00", "10.00")}[protocol]
        price = record.usage.price
        assert Decimal(price.input_usd_per_mtok) * 2 == Decimal(full[0])
        assert Decimal(price.output_usd_per_mtok) * 2 == Decimal(full[1])
    (view,) = collection.views
    assert view.batch.state == "collected"
    assert (view.usage.answered, view.usage.tokens_in, view.usage.tokens_out) == (32, 1600, 288)
    costs = sum(record.usage.cost_usd for record in seen.records)
    assert view.cost_usd == pytest.approx(costs, abs=32e-6)
    with Store.open(store_url) as store:
        assert store.read(find_record, seen.records[0].execution_id).status == "ok"
    assert server.live_calls == 0


async def test_a_batch_concludes_what_a_live_run_concludes(server, path, tmp_path):
    """The same answers give the same belief, to the last bit, whichever way they came."""
    measurement = asked(server, K=16, R=3, T=16)
    await submitted(path, measurement)
    server.end()
    batch = Keeping()
    await collected(path, observer=batch)
    live = Keeping()
    with Store.open(str(tmp_path / "live.sqlite")) as store:
        await measurement.run(store, observer=live)
    assert server.live_calls == 48
    assert belief(batch.records[0]) == belief(live.records[0])


async def test_collecting_again_changes_nothing(server, path):
    """A second collection finds nothing to do, and no stored sample is touched."""
    measurement = asked(server)
    await submitted(path, measurement)
    server.end(by_number)
    await collected(path)
    keys = [s.cache_key for s in next(measurement.plans(measurement.models[0])).samples]
    with Store.open(path) as store:
        before = store.read(select_answers, keys)
        batches = store.read(select_closed_batches, 5)
    async with service_at(path) as service:
        again = await collect(service, batches)
        assert service.store.read(select_answers, keys) == before
    assert (again.finished, again.views[0].batch.state) == (0, "collected")
    rerun = await submitted(path, measurement)
    assert (rerun.requests, rerun.batches, rerun.finished) == (0, [], 1)


async def test_the_same_command_meanwhile_submits_nothing(server, path):
    """What is in a batch isn't sent again; both executions get their records from it."""
    measurement = asked(server)
    await submitted(path, measurement)
    second = await submitted(path, measurement)
    assert (second.requests, second.elsewhere, second.batches) == (0, 16, [])
    assert len(server.batches) == 1
    server.end()
    seen = Keeping()
    await collected(path, observer=seen)
    assert sorted(record.usage.from_cache for record in seen.records) == [0, 16]


async def test_a_wider_plan_submits_only_what_is_missing(server, path):
    """R=3 after R=2: a third of the samples is new, and the record waits for both batches."""
    await submitted(path, asked(server, R=2))
    wider = await submitted(path, asked(server, R=3))
    assert (wider.requests, wider.elsewhere) == (8, 16)
    assert set(paid(server).values()) == {1}
    server.end()
    seen = Keeping()
    assert (await collected(path, observer=seen)).finished == 2
    assert seen.records[1].usage.called == 8


async def test_claims_that_share_samples_share_a_batch(server, path):
    """The same text under two ids: asked once, and two records."""
    claims = (Claim("Tea is wet.", "a"), Claim("Tea is wet.", "b"))
    submission = await submitted(path, replace(asked(server), claims=claims))
    assert (submission.requests, submission.elsewhere, submission.executions) == (16, 16, 2)
    server.end()
    seen = Keeping()
    await collected(path, observer=seen)
    found = {record.claim_id: record.usage.from_cache for record in seen.records}
    assert found.keys() == {"a", "b"}
    assert sorted(found.values()) == [0, 16]


async def test_what_was_stored_in_the_last_moment_is_not_submitted(server, path, tmp_path):
    """Another process was quicker, between the look into the cache and the lease."""
    measurement = asked(server)
    live = Keeping()
    with Store.open(str(tmp_path / "other.sqlite")) as store:
        await measurement.run(store, observer=live)

    class Quicker(Keeping):
        def __init__(self, store, samples):
            super().__init__()
            self.on_planned = lambda plan, cached: store.write(save_samples, samples)

    for samples, requests in ((live.samples[:3], 13), (live.samples, 0)):
        async with service_at(path) as service:
            quicker = Quicker(service.store, samples)
            submission = await submit(service, measurement, observer=quicker)
            assert submission.requests == requests
            assert submission.finished == len(quicker.records) == int(not requests)
        server.end()
        await collected(path)


async def test_a_live_run_leaves_samples_of_a_batch_alone(server, path):
    """They are leased to the batch until it is collected."""
    measurement = asked(server)
    submission = await submitted(path, measurement)
    keys = [s.cache_key for s in next(measurement.plans(measurement.models[0])).samples]
    with Store.open(path) as store:
        assert store.write(claim_leases, keys, "a live run") == set()
        with store.reading() as connection:
            assert select_holding_batches(connection, keys) == dict.fromkeys(
                keys, submission.batches[0]
            )
        server.end(lambda entry: errored() if entry.number == 0 else answered())
    await collected(path)
    with Store.open(path) as store:
        assert store.write(claim_leases, keys, "a live run") == set(keys)


async def test_a_live_run_names_the_batch_it_would_wait_for(server, path):
    """It asks for what no batch brings, stops, and goes on once the batch is collected."""
    submission = await submitted(path, asked(server, K=4))
    with Store.open(path) as store:
        with pytest.raises(BatchPendingError, match=submission.batches[0]):
            await asked(server, K=16).run(store)
        assert server.live_calls == 24
    server.end()
    await collected(path)
    with Store.open(path) as store:
        keeping = Keeping()
        await asked(server, K=16).run(store, observer=keeping)
    assert (server.live_calls, len(keeping.records)) == (24, 1)


async def test_a_sample_that_a_live_run_is_getting_is_waited_for(server, path):
    """It isn't submitted; the record is written once the live run has stored it."""
    measurement = asked(server)
    plan = next(measurement.plans(measurement.models[0]))
    with Store.open(path) as store:
        taken = plan.samples[0].cache_key
        store.write(claim_leases, [taken], "a live run")
    submission = await submitted(path, measurement)
    assert (submission.requests, submission.elsewhere) == (15, 1)
    server.end()
    collection = await collected(path)
    assert (collection.finished, collection.waiting) == (0, 1)
    with Store.open(path) as store:
        store.write(release_all_leases, "a live run")
        await measurement.run(store)
    assert server.live_calls == 1
    assert (await collected(path)).finished == 1


async def test_failures_are_stored_as_failed_and_asked_for_again(server, path):
    """Rejected, expired, cancelled, lost: attempted, not invented, and alone in the next batch."""
    ends = {0: errored("too long"), 1: expired(), 2: canceled(), 3: nothing()}
    measurement = asked(server)
    await submitted(path, measurement)
    server.end(lambda entry: ends.get(entry.number, answered()))
    seen = Keeping()
    await collected(path, observer=seen)
    (record,) = seen.records
    assert (record.usage.attempted, record.usage.failed) == (16, 4)
    assert record.aggregates.rpl_compliance_rate == 12 / 16
    errors = sorted(sample.error for sample in record.samples if sample.error)
    assert [error.partition(":")[0] for error in errors] == [
        "CallTimeoutError",
        "ProviderError",
        "RejectedError",
        "ServerError",
    ]
    assert all(s.prob_true is None for s in record.samples if s.error)
    again = await submitted(path, measurement)
    assert again.requests == 4
    server.end()
    healed = Keeping()
    await collected(path, observer=healed)
    assert healed.records[0].aggregates.rpl_compliance_rate == 1.0
    assert verify_run(healed.records[0]).ok


@BOTH
async def test_lines_that_make_no_sense_cost_their_samples_only(server, path, protocol):
    """Garbage, another's result and a doubled one: the others are stored, and it is said."""
    measurement = asked(server, protocol)
    await submitted(path, measurement)
    first = server.batches[0].entries[5]
    twin = json.dumps({"custom_id": first.custom_id, "response": {}, "result": {}})
    ends = {0: raw("{"), 1: raw("[]"), 2: raw('{"custom_id": "stranger"}'), 3: raw(twin)}
    server.end(lambda entry: ends.get(entry.number, answered()))
    kept = server.batches[0].results
    kept.sort(key=lambda pair: pair[0].number == 3)
    seen = Keeping()
    collection = await collected(path, observer=seen)
    assert seen.records[0].usage.failed == 4
    assert "3 lines" in collection.views[0].batch.note


async def test_an_expired_batch_keeps_what_was_answered(server, path):
    """The window closed on half of it; no line tells of the rest."""
    await submitted(path, asked(server))
    server.end(lambda entry: answered() if entry.number % 2 else nothing(), status="expired")
    seen = Keeping()
    await collected(path, observer=seen)
    record = seen.records[0]
    assert (record.usage.compliant, record.usage.failed) == (8, 8)
    failed = [sample.error for sample in record.samples if sample.error]
    assert all(error.startswith("CallTimeoutError") for error in failed)


async def test_a_batch_that_failed_as_a_whole_says_why(server, path):
    """No estimate, and the provider's reason in every sample."""
    await submitted(path, asked(server))
    server.end(status="failed", problem="Enqueued token limit reached")
    seen = Keeping()
    await collected(path, observer=seen)
    record = seen.records[0]
    assert (record.status, record.usage.failed) == ("no_estimate", 16)
    assert "Enqueued token limit reached" in record.samples[0].error
    assert (await submitted(path, asked(server))).requests == 16


@BOTH
async def test_results_that_are_gone_are_failures(server, path, protocol):
    """Collected too late: the samples failed, and can be asked for again."""
    measurement = asked(server, protocol)
    await submitted(path, measurement)
    server.end()
    server.batches[0].archived = True
    seen = Keeping()
    collection = await collected(path, observer=seen)
    assert collection.views[0].batch.state == "collected"
    assert seen.records[0].usage.failed == 16


async def test_a_cancelled_batch_keeps_what_was_answered(server, path):
    """Cancelling asks for an early end; what had been answered is collected."""
    submission = await submitted(path, asked(server))
    async with service_at(path) as service:
        view = await service.cancel(service.store.read(find_batch, submission.batches[0]))
    assert (view.batch.state, view.state.status) == ("submitted", "cancelling")
    server.end(lambda entry: canceled() if entry.number else answered())
    seen = Keeping()
    await collected(path, observer=seen)
    assert (seen.records[0].usage.compliant, seen.records[0].usage.failed) == (1, 15)


async def test_an_interrupted_collection_goes_on_where_it_broke(server, path):
    """The download broke off: what came is kept, nothing is stored twice, the rest follows."""
    measurement = asked(server, K=16, R=40, T=16)
    await submitted(path, measurement)
    server.end(by_number)
    name = server.batches[0].id
    async with service_at(path) as service:
        whole = [
            line
            async for line in service.provider_of(
                service.store.read(select_open_batches)[0]
            ).client.lines(f"/files/output-{name}/content")
        ]
    broken = b"\n".join(whole[:600]) + b"\n" + whole[600][:100]
    server.script("content", raw_body(broken))
    first = Keeping()
    collection = await collected(path, observer=first, retry=ONCE)
    assert isinstance(collection.views[0].trouble, ProviderError)
    assert collection.views[0].batch.state == "submitted"
    assert (len(first.samples), first.records) == (500, [])
    keys = [s.cache_key for s in next(measurement.plans(measurement.models[0])).samples]
    with Store.open(path) as store:
        free = store.write(claim_leases, keys, "somebody")
        store.write(release_all_leases, "somebody")
    assert free == {sample.cache_key for sample in first.samples}
    second = Keeping()
    await collected(path, observer=second)
    assert len(second.samples) == 140
    assert second.records[0].usage.compliant == 640
    stored = {sample.cache_key: sample.created_at for sample in second.records[0].samples}
    assert all(stored[s.cache_key] == s.created_at for s in (*first.samples, *second.samples))


async def test_results_that_are_not_all_there_are_not_taken_for_failures(server, path):
    """The provider counts more answers than it sends: the batch stays open."""
    await submitted(path, asked(server))
    server.end()
    dropped = server.batches[0].results.pop()
    server.script("get", *[document(_counting(server, 16))] * 2)
    collection = await collected(path, retry=ONCE)
    assert isinstance(collection.views[0].trouble, ServerError)
    assert (collection.finished, len(collection.open)) == (0, 1)
    server.batches[0].results.append(dropped)
    assert (await collected(path)).finished == 1


def _counting(server, completed):
    """The first batch, with another count of answers."""
    name = server.batches[0].id
    return {
        "id": name,
        "status": "completed",
        "output_file_id": f"output-{name}",
        "request_counts": {"total": 16, "completed": completed, "failed": 0},
    }


async def test_no_batch_is_larger_than_its_limit(server, store_url):
    """A measurement is cut by count; executions that span batches wait for all of theirs."""
    measurement = asked(server, "openai", "One.", "Two.", "Three.", K=4, R=2, T=4)
    submission = await submitted(store_url, measurement, limits=SMALL)
    assert [len(batch.entries) for batch in server.batches] == [5, 5, 5, 5, 4]
    assert (submission.requests, submission.executions) == (24, 3)
    assert set(paid(server).values()) == {1}
    first, *others = server.batches
    others_status = [batch.status for batch in others]
    for batch in others:
        batch.status = "completed"
    server.end(by_number)
    for batch, word in zip(others, others_status, strict=True):
        batch.status = word
    early = await collected(store_url)
    assert (early.finished, len(early.open)) == (0, 4)
    server.end(by_number)
    assert (await collected(store_url)).finished == 3
    assert first.ended


async def test_no_batch_is_heavier_than_its_limit(server, path):
    """Entries are counted as they are sent, and one that is too heavy goes alone."""
    limits = BatchLimits(requests=100, size_bytes=4_000)
    await submitted(path, asked(server), limits=limits)
    uploads = [call.body["file"][1] for call in server.calls("upload")]
    assert len(uploads) > 4
    assert all(len(text.encode()) <= 4_000 for text in uploads)
    await submitted(
        path, asked(server, "openai", "Other."), limits=BatchLimits(requests=100, size_bytes=1)
    )
    assert set(paid(server).values()) == {1}


@BOTH
@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_passing_refusal_is_repeated(server, path, protocol, code):
    """Once too many, once in trouble: the batch is made in the end, and once."""
    server.script("create", status(code), status(code))
    submission = await submitted(path, asked(server, protocol))
    assert (submission.requests, len(server.batches)) == (16, 1)
    assert len(server.calls("create")) == 3


@BOTH
@pytest.mark.parametrize(
    ("code", "error"), [(429, RateLimitedError), (400, RejectedError), (500, UnconfirmedError)]
)
async def test_a_lasting_refusal_frees_the_samples(server, path, protocol, code, error):
    """Nothing was made, so nothing is held: the same command submits all of it later."""
    server.script("create", *[status(code, "not today")] * 9)
    with pytest.raises(error, match=r"not today.*the same command submits the rest"):
        await submitted(path, asked(server, protocol))
    server.forget()
    assert (await submitted(path, asked(server, protocol))).requests == 16
    with Store.open(path) as store:
        states = [batch.state for batch in store.read(select_closed_batches, 5)]
    assert states == ["abandoned"]
    server.end()
    assert (await collected(path)).finished == 1


@BOTH
async def test_an_error_after_the_fact_makes_no_second_batch(server, path, protocol):
    """The provider took it and then answered 500: OpenAI's is known by name, the other waits."""
    server.script("create", carried_out(status(500)))
    if protocol == "openai":
        assert (await submitted(path, asked(server, protocol))).requests == 16
    else:
        with pytest.raises(UnconfirmedError, match="heretix batch status"):
            await submitted(path, asked(server, protocol))
    assert len(server.batches) == len(server.calls("create")) == 1
    server.end()
    assert (await collected(path)).finished == 1
    assert len(server.batches) == 1


async def test_our_own_batches_of_the_same_size_are_not_mistaken_for_a_lost_one(server, path):
    """The second of two equal batches is refused once: the first, which is known, isn't it."""

    async def refuse_second(server, request, call):
        server.script("create", status(500))
        return await server._create_anthropic(request)

    server.script("create", refuse_second)
    measurement = asked(server, "anthropic", K=5, T=5)
    assert (await submitted(path, measurement, limits=SMALL)).requests == 10
    assert [len(batch.entries) for batch in server.batches] == [5, 5]


@BOTH
async def test_no_answer_is_never_followed_by_a_second_try(server, path, protocol):
    """The connection broke before anything was made: it is looked for, then given up."""
    server.script("create", reset())
    with pytest.raises(UnconfirmedError):
        await submitted(path, asked(server, protocol))
    assert len(server.calls("create")) == 1
    soon = await submitted(path, asked(server, protocol))
    assert (soon.requests, soon.elsewhere) == (0, 16)
    late = await submitted(path, asked(server, protocol), later=NEXT_HOUR)
    assert late.requests == 16
    assert set(paid(server).values()) == {1}


@BOTH
async def test_a_crash_after_the_submission_pays_once(server, path, protocol):
    """The process ends between the call and its note: the next one finds the batch."""
    server.script("create", carried_out(silence()))
    measurement = asked(server, protocol)
    crash = asyncio.create_task(submitted(path, measurement))
    await until(lambda: server.batches)
    crash.cancel()
    with suppress(asyncio.CancelledError):
        await crash
    for later in (timedelta(0), NEXT_HOUR):
        rerun = await submitted(path, measurement, later=later)
        assert (rerun.requests, rerun.elsewhere) == (0, 16)
    server.end(by_number)
    seen = Keeping()
    collection = await collected(path, observer=seen, later=NEXT_HOUR)
    assert len(server.batches) == 1
    assert collection.views[0].batch.state == "collected"
    assert [record.usage.failed for record in seen.records] == [0, 0, 0]


async def test_a_strangers_batch_of_the_same_size_is_not_taken(server, path, tmp_path):
    """Its results hold other ids, so it isn't ours, however well size and time fit."""
    server.script("create", reset())
    with pytest.raises(UnconfirmedError):
        await submitted(path, asked(server, "anthropic", "Mine."))
    await submitted(str(tmp_path / "other.sqlite"), asked(server, "anthropic", "Theirs."))
    waiting = await collected(path, later=NEXT_HOUR)
    assert waiting.views[0].batch.state == "submitting"
    assert "may be it" in waiting.views[0].batch.note
    server.end()
    given_up = await collected(path, later=NEXT_HOUR)
    assert given_up.views[0].batch.state == "abandoned"
    assert (await submitted(path, asked(server, "anthropic", "Mine."))).requests == 16


async def test_a_strangers_batch_without_results_is_not_taken(server, path, tmp_path):
    """No result at all speaks neither for it nor against it, so it isn't ours."""
    server.script("create", reset())
    with pytest.raises(UnconfirmedError):
        await submitted(path, asked(server, "anthropic", "Mine."))
    await submitted(str(tmp_path / "other.sqlite"), asked(server, "anthropic", "Theirs."))
    # Its requests are counted still, so that it fits by size and time.
    server.end(lambda _entry: nothing())
    given_up = await collected(path, later=NEXT_HOUR)
    assert given_up.views[0].batch.state == "abandoned"


async def test_a_batch_that_is_known_is_not_another_one(server, path):
    """One that came through doesn't keep hope up for one of its size that didn't."""
    await submitted(path, asked(server, "anthropic", "One."))
    server.script("create", reset())
    with pytest.raises(UnconfirmedError):
        await submitted(path, asked(server, "anthropic", "Two."))
    collection = await collected(path, later=NEXT_HOUR)
    assert [view.batch.state for view in collection.views] == ["submitted", "abandoned"]


@BOTH
@pytest.mark.parametrize("answered", [False, True], ids=["while waiting", "once answered"])
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
async def test_a_crash_at_any_moment_pays_once(
    server, tmp_path, sqlite_template, protocol, answered, every
):
    """Wherever the submission is cut short, a rerun submits exactly what isn't there yet."""
    measurement = asked(server, protocol, "One.", "Two.", K=4, T=4, B=100)
    whole = await cut_short(server, tmp_path / "whole.sqlite", measurement, None)
    assert len(server.batches) == 4
    taken = set()
    for waits in range(1, whole + 1, every):
        server.forget()
        path = tmp_path / f"{waits}.sqlite"
        path.write_bytes(sqlite_template.read_bytes())
        await cut_short(server, path, measurement, waits, answered=answered)
        taken.add(len(server.batches))
        # What can't be told apart while it runs is told apart when it has ended.
        server.end(by_number)
        await collected(str(path), later=NEXT_HOUR)
        await submitted(str(path), measurement, later=NEXT_HOUR, limits=SMALL)
        server.end(by_number)
        await collected(str(path), later=2 * NEXT_HOUR)
        assert set(paid(server).values()) == {1}, waits
        assert len(paid(server)) == 16, waits
        with Store.open(str(path)) as store:
            beliefs = [run.prob_true_rpl for run in store.read(select_runs)]
        assert len(beliefs) == 2, waits
        assert None not in beliefs, waits
    assert taken >= {0, 1, 2, 3}, "the submissions weren't cut short at every stage"


class Cut:
    """A coroutine that is cancelled once it has waited so many times; counts its waits.

    Waits of the work itself are counted, not turns of the event loop: how many turns an answer
    takes depends on how busy the machine is.
    """

    def __init__(self, work, waits, *, answered):
        self._steps = work.__await__()
        self._limit = waits
        self._answered = answered
        self.waits = 0

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        if self._answered and self.waits == self._limit:
            return self.throw(asyncio.CancelledError())
        return self._count(self._steps.send(value))

    def throw(self, exc):
        return self._count(self._steps.throw(exc))

    def _count(self, awaited):
        self.waits += 1
        if not self._answered and self.waits == self._limit:
            asyncio.current_task().cancel()
        return awaited


async def cut_short(server, path, measurement, waits, *, answered=False):
    """Submit, and end it at a wait: when it begins, or once it is `answered`. How many it took."""
    work = Cut(submitted(str(path), measurement, limits=SMALL), waits, answered=answered)

    async def process():
        await work

    with suppress(asyncio.CancelledError):
        await asyncio.create_task(process())
    await settled(server)
    return work.waits


async def test_one_process_at_a_time_handles_a_batch(server, path):
    """A batch that is being submitted isn't taken for a crash, nor collected twice at once."""
    submission = await submitted(path, asked(server))
    server.end()
    async with service_at(path) as first, service_at(path) as second:
        async with first.holding(submission.batches[0]):
            with pytest.raises(StoreBusyError, match="another process"):
                async with second.holding(submission.batches[0]):
                    pass
            collection = await collect(second, second.store.read(select_open_batches))
            assert isinstance(collection.views[0].trouble, StoreBusyError)
            assert collection.finished == 0
        assert (await collect(second, second.store.read(select_open_batches))).finished == 1


async def test_waiting_bears_a_provider_that_is_down_for_a_while(server, path):
    """It asks again and again, until the batch has ended."""
    await submitted(path, asked(server))
    server.script("get", *[status(503)] * 7)
    waiting = asyncio.create_task(collected(path, every_s=0.0))
    await until(lambda: len(server.calls("get")) >= 10)
    assert not waiting.done()
    server.end()
    assert (await waiting).finished == 1


async def test_waiting_ends_when_the_provider_refuses(server, path):
    """A wrong key won't become right by itself."""
    await submitted(path, asked(server))
    server.script("get", *[status(401)] * 9)
    collection = await collected(path, every_s=0.0)
    assert isinstance(collection.views[0].trouble, RejectedError)
    assert len(server.calls("get")) == 1


async def test_without_a_key_a_batch_is_kept(server, path):
    """Trouble with one batch is told, and changes nothing."""
    await submitted(path, asked(server))
    collection = await collected(path, settings=Settings())
    assert "OPENAI_API_KEY" in str(collection.views[0].trouble)
    server.end()
    assert (await collected(path)).finished == 1


async def test_a_batch_that_the_provider_forgot_is_given_up_in_the_end(server, path):
    """Not found may mean another key; after all results are deleted anyway, it is over."""
    await submitted(path, asked(server))
    server.batches.clear()
    soon = await collected(path)
    assert isinstance(soon.views[0].trouble, RejectedError)
    assert soon.views[0].batch.state == "submitted"
    late = await collected(path, later=timedelta(days=32))
    assert late.views[0].batch.state == "abandoned"


async def test_a_failure_leaves_an_older_answer_but_the_record_says_failed(server, path):
    """Asked anew without the cache, and failed: the store keeps the old answer, openly."""
    await submitted(path, asked(server))
    server.end()
    await collected(path)
    afresh = Settings(env=SETTINGS.env, no_cache=True)
    again = await submitted(path, asked(server, settings=afresh))
    assert again.requests == 16
    server.end(lambda entry: errored() if entry.number == 0 else answered('{"prob_true": 0.1}'))
    seen = Keeping()
    await collected(path, observer=seen)
    (record,) = seen.records
    assert (record.usage.failed, record.usage.from_cache, record.usage.called) == (1, 0, 16)
    assert {s.prob_true for s in record.samples} == {None, 0.1}
    assert verify_run(record).ok
    failed = next(sample for sample in record.samples if sample.error)
    with Store.open(path) as store:
        assert store.read(select_answers, [failed.cache_key])[failed.cache_key].prob_true == 0.7


async def test_a_budget_must_cover_the_whole_batch(server, path):
    """A batch can't be stopped half-way, so its most must fit before it is submitted."""
    with pytest.raises(BudgetReachedError, match="Nothing was submitted"):
        await submitted(path, asked(server, budget_usd=0.0001))
    assert not server.seen
    assert (await submitted(path, asked(server, budget_usd=5.0))).requests == 16
    unpriced = prepare(
        RunConfig.parse({"model": "gpt-0", "base_url": server.url("openai"), "budget_usd": 5.0}),
        SETTINGS,
        claims=("Claim.",),
    )
    with pytest.raises(ConfigError, match="price of gpt-0"):
        await submitted(path, unpriced)


async def test_a_batch_holds_what_it_may_cost_of_the_stores_budget(server, path):
    """Held when it is submitted, settled with its samples: no two batches spend the same money."""

    def budgeted(*claims, usd=5.0):
        settings = replace(SETTINGS, env={**SETTINGS.env, "HERETIX_BUDGET_USD": str(usd)})
        return asked(server, "openai", *claims, settings=settings)

    def budget():
        with Store.open(path) as store:
            return store.read(select_budget, STORE_BUDGET)

    await submitted(path, budgeted("One."))
    held = budget().held_micros
    assert held > 0
    assert budget().spent_micros == 0
    with pytest.raises(BudgetReachedError, match=r"set aside, and this batch may cost"):
        await submitted(path, budgeted("Two.", usd=held * 1.5 / 1e6))
    assert len(server.batches) == 1
    assert budget().held_micros == held
    server.end(lambda entry: errored() if entry.number < 2 else by_number(entry))
    seen = Keeping()
    await collected(path, observer=seen)
    (record,) = seen.records
    after = budget()
    assert after.held_micros == 0
    assert after.spent_micros - after.presumed_micros == math.ceil(record.usage.cost_usd * 1e6)
    assert 0 < after.spent_micros < held
    # What was refused is free, and what the first left is enough for another.
    server.script("create", status(400))
    with pytest.raises(ProviderError):
        await submitted(path, budgeted("Two.", usd=held * 1.5 / 1e6))
    assert budget() == replace(after, cap_micros=budget().cap_micros)
    await submitted(path, budgeted("Two.", usd=held * 1.5 / 1e6))
    assert paid(server).most_common(1)[0][1] == 1
    # Forgotten at the provider for good: nobody will tell what it cost.
    held = budget().held_micros
    server.batches.clear()
    await collected(path, later=timedelta(days=40))
    assert budget().held_micros == 0
    assert budget().spent_micros == after.spent_micros + held


async def test_a_live_run_does_not_wait_for_what_a_batch_holds(server, path):
    """It comes free in a day: who needs it now is told so at once."""
    settings = replace(SETTINGS, env={**SETTINGS.env, "HERETIX_BUDGET_USD": "1"})
    await submitted(path, asked(server, settings=settings))
    with Store.open(path) as store:
        held = store.read(select_budget, STORE_BUDGET).held_micros
        usd = str((held + 1) / 1e6)
        settings = replace(SETTINGS, env={**SETTINGS.env, "HERETIX_BUDGET_USD": usd})
        live = asked(server, "openai", "Another claim.", settings=settings)
        with pytest.raises(BudgetReachedError, match="is set aside, and the next call may cost"):
            await live.run(store)
    assert server.live_calls == 0


async def test_an_unknown_price_stays_unknown(server, path):
    """Neither zero nor a guess."""
    config = RunConfig.parse({"model": "gpt-0", "base_url": server.url("openai")})
    await submitted(path, prepare(config, SETTINGS, claims=("Claim.",)))
    server.end()
    seen = Keeping()
    collection = await collected(path, observer=seen)
    assert collection.views[0].cost_usd is None
    assert seen.records[0].usage.cost_usd is None


async def test_a_model_without_batches_is_refused_before_anything_is_sent(server, path):
    """All models are looked at first."""
    config = RunConfig.parse({"models": ("gpt-5", "mock:m")})
    with pytest.raises(ConfigError, match="mock:m"):
        await submitted(path, prepare(config, SETTINGS, claims=("Claim.",)))
    with Store.open(path) as store:
        assert store.read(select_runs) == []


async def test_two_models_make_two_batches(server, path):
    """A batch has one model, and each its own price."""
    config = RunConfig.parse({"models": ("gpt-5", "gpt-5-mini"), "base_url": server.url("openai")})
    submission = await submitted(path, prepare(config, SETTINGS, claims=("Claim.",)))
    assert len(submission.batches) == 2
    server.end()
    collection = await collected(path)
    assert collection.finished == 2
    assert collection.views[0].cost_usd != collection.views[1].cost_usd


async def test_a_plan_comes_back_as_it_was(server, path):
    """Every setting that makes a plan is kept, the bank's text included."""
    options = {"temperature": 0.5, "template_exclude": [3], "T": 4, "model": "gpt-4.1"}
    measurement = asked(
        server, K=6, agg="simple", center="mean", trim=0.1, max_output_tokens=99, seed=3, **options
    )
    await submitted(path, measurement)
    server.end()
    seen = Keeping()
    await collected(path, observer=seen)
    (record,) = seen.records
    assert verify_run(record).ok
    assert (record.sampling.K, record.aggregation.agg, record.sampler.template_exclude) == (
        6,
        "simple",
        [3],
    )
    assert {sample.temperature for sample in record.samples} == {0.5}
    with Store.open(path) as store:
        started = store.read(find_execution, record.execution_id)
        bank = bank_of(store.read(select_bank, record.prompt_version))
    plan = next(measurement.plans(measurement.models[0]))
    assert replan(started.config_json, bank) == plan
    other = json.loads(started.config_json) | {"bootstrap_seed": 4}
    with pytest.raises(RecordError, match="can't be made again"):
        replan(json.dumps(other), bank)


@pytest.mark.parametrize("ref", ["", "batch-", "zzz"])
async def test_a_reference_must_fit_one_batch(server, path, ref):
    """Too short a part fits several; a wrong one none."""
    for claim in ("One.", "Two."):
        await submitted(path, asked(server, "openai", claim))
    with Store.open(path) as store:
        known = store.read(select_open_batches)[0]
        assert store.read(find_batch, known.batch_id[:-5].upper()) == known
        assert store.read(find_batch, known.batch_id.removeprefix("batch-")) == known
        assert store.read(find_batch, "batch_0").provider_batch_id == "batch_0"
        with pytest.raises(RecordError):
            store.read(find_batch, ref)
