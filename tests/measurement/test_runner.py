"""The runner: nothing lost, nothing doubled, and the same number however samples arrive."""

import asyncio
import sqlite3

import pytest
from lanes_support import Keeping, Metered, Watching, belief, measured, plans, register, runner

from heretix.config import RunConfig
from heretix.core.errors import RejectedError, ServerError, StoreBusyError, StoreFullError
from heretix.core.settings import Settings
from heretix.measurement.service import prepare
from heretix.measurement.verify import verify_run
from heretix.store import Store
from heretix.store.samples import select_answers

pytestmark = pytest.mark.either


async def test_one_or_many_workers_warm_or_cold_give_the_same_belief(store_url, tmp_path):
    """Concurrency, arrival order and the cache change nothing that is concluded."""
    with Store.open(store_url) as store:
        many = await measured(store, Watching(), concurrency=64, K=16, R=3, T=16)
        warm = await measured(store, Watching(), concurrency=64, K=16, R=3, T=16)
    with Store.open(str(tmp_path / "other.sqlite")) as store:
        one = await measured(store, Watching(), concurrency=1, K=16, R=3, T=16)
    assert belief(many.records[0]) == belief(one.records[0]) == belief(warm.records[0])
    assert many.records[0].aggregates.cache_hit_rate == 0.0
    assert warm.records[0].aggregates.cache_hit_rate == 1.0
    assert not warm.samples


async def test_a_second_run_makes_no_call_and_a_wider_one_only_the_missing(store_url):
    """Samples are reused one by one: R=3 after R=2 pays for the third replicates only."""
    with Store.open(store_url) as store:
        first, second, third = Watching(), Watching(), Watching()
        await measured(store, first, K=8, R=2)
        await measured(store, second, K=8, R=2)
        wider = await measured(store, third, K=8, R=3)
    assert (len(first.asked), len(second.asked), len(third.asked)) == (16, 0, 8)
    assert wider.records[0].aggregates.cache_hit_rate == pytest.approx(16 / 24)


async def test_tokens_are_of_calls_alone_and_unknown_is_not_zero(store_url):
    """A record counts what its own calls took: nothing where all was cached, and nothing known
    where no answer told."""
    with Store.open(store_url) as store:
        cold = await measured(store, Metered(), K=8, R=2)
        warm = await measured(store, Metered(), K=8, R=2)
        untold = await measured(store, Metered(tokens=(None, 7)), "Another.", K=8, R=2)
    used = [seen.records[0].usage for seen in (cold, warm, untold)]
    assert [(one.tokens_in, one.tokens_out) for one in used] == [(16000, 1600), (0, 0), (None, 112)]


async def test_concurrency_is_bounded_and_used(store_url):
    """Never more calls in flight than allowed, and as many as allowed."""
    with Store.open(store_url) as store:
        provider = Watching()
        await measured(store, provider, "a", "b", "c", concurrency=5)
    assert provider.most_in_flight == 5


async def test_a_passing_failure_is_retried_and_leaves_no_trace(store_url):
    """Every call fails once; every sample is answered, once."""

    def fail_first(request, attempt):
        return ServerError("try later", status=503) if attempt == 1 else None

    with Store.open(store_url) as store:
        provider = Watching(fail=fail_first)
        seen = await measured(store, provider)
    assert len(provider.asked) == 32
    assert seen.records[0].usage.failed == 0
    assert seen.records[0].aggregates.rpl_compliance_rate == 1.0


async def test_a_lasting_failure_is_attempted_stored_and_never_served(store_url):
    """One of 16 calls fails for good: compliance is 15/16, and a rerun asks for it alone."""

    def fail_one(request, attempt):
        if (request.paraphrase_idx, request.replicate_idx) == (3, 1):
            return ServerError("gone", status=500)
        return None

    with Store.open(store_url) as store:
        seen = await measured(store, Watching(fail=fail_one), T=16, K=16, R=2)
        record = seen.records[0]
        assert record.usage.attempted == 32
        assert record.usage.failed == 1
        assert record.aggregates.rpl_compliance_rate == 31 / 32
        assert record.aggregation.imbalance_ratio == 2.0
        failed = [sample for sample in record.samples if sample.error]
        assert failed[0].error == "ServerError: gone"
        assert failed[0].prob_true is None
        again = Watching()
        healed = await measured(store, again, T=16, K=16, R=2)
    assert again.asked == [("Claim.", 3, 1)]
    assert healed.records[0].aggregates.rpl_compliance_rate == 1.0


@pytest.mark.parametrize(
    "fault",
    [
        "not_json",
        "fenced",
        "extra_text",
        "bool",
        "string",
        "nan",
        "out_of_range",
        "citation",
        "refused",
        "truncated",
        "empty",
    ],
)
async def test_a_bad_answer_is_dropped_with_its_reason_and_touches_no_other(store_url, fault):
    """Other samples are the same with and without the fault, and rates stay in [0, 1]."""
    with Store.open(store_url) as store:
        clean = (await measured(store, Watching(), K=16, T=16)).records[0]
        name = f"m?{fault}=0.3"
        seen = await measured(store, Watching(name=name), K=16, T=16, model=f"mock:{name}")
    record = seen.records[0]
    good = {(s.paraphrase_idx, s.replicate_idx): s.prob_true for s in clean.samples}
    bad = [sample for sample in record.samples if not sample.compliant]
    assert bad
    assert len(bad) < 32
    assert all(sample.noncompliance and sample.raw_answer is not None for sample in bad)
    for sample in record.samples:
        if sample.compliant:
            assert sample.prob_true == good[sample.paraphrase_idx, sample.replicate_idx]
    assert record.aggregates.rpl_compliance_rate == 1 - len(bad) / 32


async def test_too_few_answers_give_no_number_and_keep_the_samples(store_url):
    """No estimate is said, not filled in; what was got is stored."""
    with Store.open(store_url) as store:
        seen = await measured(store, Watching(name="m?not_json=1"), model="mock:m?not_json=1")
        record = seen.records[0]
        assert record.status == "no_estimate"
        assert record.aggregates.prob_true_rpl is None
        assert record.aggregates.ci95 is None
        assert record.aggregates.rpl_compliance_rate == 0.0
        assert len(store.read(select_answers, [s.cache_key for s in record.samples])) == 16


async def test_a_rejected_key_ends_the_run_at_once(store_url):
    """With 401 the next call would fail alike: one message instead of 16 failures."""
    provider = Watching(fail=lambda request, attempt: RejectedError("bad key", status=401))
    with Store.open(store_url) as store, pytest.raises(RejectedError, match="bad key"):
        await measured(store, provider, concurrency=1)
    assert len(provider.asked) == 1


async def test_a_slow_model_does_not_hold_up_another(store_url):
    """The fast lane finishes all its plans while the slow one has not had its first answer."""
    gate = asyncio.Event()

    async def wait(_count):
        await gate.wait()

    class OpensGate(Keeping):
        def on_finished(self, record):
            super().on_finished(record)
            if sum(r.model == "mock:fast" for r in self.records) == 5:
                gate.set()

    claims = [f"Claim {i}." for i in range(5)]
    seen = OpensGate()
    with Store.open(store_url) as store:
        register(store)
        await runner(store, "mock:slow", "mock:fast", concurrency=2, observer=seen).run(
            [
                (Watching(name="slow", before=wait), plans(*claims, model="mock:slow")),
                (Watching(name="fast"), plans(*claims, model="mock:fast")),
            ]
        )
    assert [record.model for record in seen.records[:5]] == ["mock:fast"] * 5
    assert len(seen.records) == 10


async def test_a_cancelled_run_keeps_what_had_arrived_and_continues_from_there(store_url):
    """Ctrl-C after 7 answers: 7 are stored, and the rerun makes the other 9 calls."""
    reached = asyncio.Event()

    async def stop_after_seven(count):
        if count > 7:
            reached.set()
            await asyncio.Event().wait()

    with Store.open(store_url) as store:
        first = Watching(before=stop_after_seven)
        task = asyncio.create_task(measured(store, first, concurrency=1))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        second = Watching()
        seen = await measured(store, second)
        whole = await measured(store, Watching(), use_cache=False)
    assert len(second.asked) == 9
    assert belief(seen.records[0]) == belief(whole.records[0])


async def test_without_the_cache_every_call_is_made_again(store_url):
    """`use_cache=False` asks anew and replaces; a failure then doesn't wipe the old answer."""

    def always(request, attempt):
        return ServerError("down", status=500)

    with Store.open(store_url) as store:
        first = await measured(store, Watching())
        provider = Watching(fail=always)
        failed = await measured(store, provider, use_cache=False)
        assert failed.records[0].status == "no_estimate"
        reason = failed.records[0].reason
        assert (reason.code, reason.params) == ("calls_failed", {"error": "ServerError: down"})
        assert verify_run(failed.records[0]).ok
        assert len(provider.asked) == 48
        rerun = await measured(store, Watching())
    assert not rerun.samples
    assert belief(rerun.records[0]) == belief(first.records[0])


async def test_many_plans_are_taken_as_needed(store_url):
    """Plans come from a generator, and only so many are made ahead of the calls."""
    made = []

    def lazily():
        for index in range(300):
            made.append(index)
            yield plans(f"Claim {index}.", K=1, R=3, T=1, B=100)[0]

    async def look(count):
        ahead.append(len(made) - count // 3)

    ahead = []
    seen = Keeping()
    with Store.open(store_url) as store:
        register(store)
        provider = Watching(before=look)
        await runner(store, concurrency=4, observer=seen).run([(provider, lazily())])
    assert len(seen.records) == 300
    assert max(ahead) <= 70


async def test_a_full_disk_ends_the_run_with_a_message(tmp_path):
    """The database's own limit makes the disk full; what was committed stays."""
    path = tmp_path / "full.sqlite"
    with Store.open(str(path)) as store:
        with store.reading() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 8}")
        with pytest.raises(StoreFullError, match="space"):
            await measured(store, Watching(), *(f"Claim {i}." for i in range(400)))
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_locked_database_ends_the_run_with_a_message(tmp_path):
    """Another process that won't let go is named as such."""
    path = tmp_path / "locked.sqlite"
    Store.open(str(path)).close()
    holder = sqlite3.connect(path, isolation_level=None)
    with Store.open(str(path), busy_timeout_ms=50) as store:
        register(store)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusyError, match="lock"):
            await runner(store, wait_s=0.0).run([(Watching(), plans("Claim."))])
        holder.execute("ROLLBACK")
    holder.close()


async def test_a_bank_of_the_same_version_and_other_text_is_refused(store_url, tmp_path):
    """Samples are filed under a version, so a version can't mean two texts."""
    changed = tmp_path / "mine.yaml"
    text = "version: mine_1\nsystem: s\nuser_template: '{PARAPHRASE}'\nparaphrases:\n"
    changed.write_text(text + "".join(f"  - 'Wording {i}: {{CLAIM}}'\n" for i in range(16)))
    config = {"claim": "x", "model": "mock:m", "prompts_file": str(changed)}
    with Store.open(store_url) as store:
        await prepare(RunConfig.parse(config), Settings()).run(store)
        changed.write_text(changed.read_text().replace("Wording 3", "Words 3"))
        with pytest.raises(Exception, match="mine_1"):
            await prepare(RunConfig.parse(config), Settings()).run(store)
