"""A lane in trouble: what it repeats, when it stops, what it spends and what it leaves behind."""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from datetime import date
from decimal import Decimal

import pytest
import virtual_time
from lanes_support import (
    AT_ONCE,
    PRICES,
    Keeping,
    Metered,
    Watching,
    belief,
    leased,
    measured,
    plans,
    register,
    runner,
    stored,
)
from sqlalchemy import event

from heretix.core.errors import (
    BudgetReachedError,
    CallTimeoutError,
    ConfigError,
    ConnectionFailedError,
    ProviderDownError,
    RateLimitedError,
    RejectedError,
    ServerError,
    UnreachedError,
)
from heretix.core.settings import Settings
from heretix.measurement.budget import Escrow
from heretix.measurement.pacing import Limits
from heretix.measurement.runner import Retry, Runner
from heretix.providers.catalog import Price, PriceTable, Spending, load_prices, parse_model
from heretix.store import Store
from heretix.store.budgets import STORE_BUDGET, select_budget
from heretix.store.samples import SampleWriter

PATIENT = Retry()


@pytest.fixture
def store(store_url):
    """A store with the bank in it, on each database in turn."""
    with Store.open(store_url) as store:
        register(store)
        yield store


@pytest.fixture
def file_store(sqlite_template, tmp_path):
    """The same in a file, for what doesn't depend on the database."""
    path = tmp_path / "heretix.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(path)) as store:
        register(store)
        yield store


def failing(error, *, first=0, last=10**9):
    """Fail the calls numbered from `first` to `last`, whatever they ask."""
    calls = 0

    def fail(request, attempt):
        nonlocal calls
        calls += 1
        return error if first <= calls - 1 <= last else None

    return fail


async def until(condition):
    """Wait for something to become true."""
    async with asyncio.timeout(240):
        # The condition is about another thread or the database: no event tells of it.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def paid(store, provider, *claims, budget_usd, concurrency=1, observer=None, model="gpt-5", **plan):
    """A run of a model that costs 0.00225 dollars a call."""
    running = runner(
        store,
        model,
        concurrency=concurrency,
        budget_usd=budget_usd,
        prices=PRICES,
        observer=observer,
    )
    return running, running.run([(provider, plans(*(claims or ("Claim.",)), model=model, **plan))])


# The circuit breaker


async def test_a_provider_that_only_fails_is_left_alone(store):
    """Seven answers, then 20 failures in a row: the lane stops, and says how to go on."""
    provider = Watching(fail=failing(ServerError("down", status=503), first=7))
    claims = [f"Claim {number}." for number in range(10)]
    with pytest.raises(ProviderDownError, match=r"20 samples in a row.*down.*stored.*continues"):
        await measured(store, provider, *claims, concurrency=1)
    assert len(provider.asked) == 7 + 20 * AT_ONCE.attempts
    rows = stored(store)
    assert Counter(row["error"] for row in rows) == {None: 7, "ServerError: down": 20}
    assert {row["attempts"] for row in rows if row["error"]} == {3}
    again = Watching()
    seen = await measured(store, again, *claims)
    assert len(again.asked) == 160 - 7
    assert len(seen.records) == 10


async def test_an_answer_in_between_shows_that_a_provider_is_up(file_store):
    """19 failures, an answer, 19 failures and so on: all is measured to the end."""
    calls = 0

    def fail(request, attempt):
        nonlocal calls
        calls += 1
        return ServerError("flaky") if calls % 20 else None

    one_try = Retry(attempts=1)
    seen = Keeping()
    provider = Watching(fail=fail)
    await runner(file_store, concurrency=1, retry=one_try, observer=seen).run(
        [(provider, plans("a", "b", "c", "d", "e"))]
    )
    assert len(provider.asked) == 80
    assert sum(record.usage.failed for record in seen.records) == 76


async def test_a_lane_that_stops_leaves_the_others_alone(store):
    """The sound model is measured to its end; then the trouble of the other is told."""
    seen = Keeping()
    claims = [f"Claim {number}." for number in range(5)]
    down = Watching(name="down", fail=failing(ServerError("down")))
    sound = Watching(name="sound")
    with pytest.raises(ProviderDownError):
        await runner(store, "mock:down", "mock:sound", observer=seen).run(
            [
                (down, plans(*claims, model="mock:down")),
                (sound, plans(*claims, model="mock:sound")),
            ]
        )
    assert len(sound.asked) == 80
    assert sum(record.model == "mock:sound" for record in seen.records) == 5


async def test_calls_in_flight_come_home_when_a_lane_stops(store):
    """What was asked for when the lane stopped is waited for, and stored."""
    gate = asyncio.Event()
    failures = 0

    async def hold(count):
        if count <= 4:
            await gate.wait()

    def fail(request, attempt):
        nonlocal failures
        if (request.claim, request.paraphrase_idx, request.replicate_idx) in provider.asked[:4]:
            return None
        failures += 1
        if failures == 20 * AT_ONCE.attempts:
            gate.set()
        return ServerError("down")

    provider = Watching(fail=fail, before=hold)
    with pytest.raises(ProviderDownError):
        await measured(store, provider, "a", "b", "c", "d", concurrency=5)
    assert Counter(row["error"] for row in stored(store)) == {None: 4, "ServerError: down": 20}


@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_what_every_call_would_be_told_ends_the_lane_at_the_first(file_store, status):
    """No key, no credit, no permission, no such model: nothing is stored, nothing repeated."""
    provider = Watching(fail=failing(RejectedError("no", status=status)))
    with pytest.raises(RejectedError, match="no"):
        await measured(file_store, provider, concurrency=1)
    assert len(provider.asked) == 1
    assert not stored(file_store)
    assert not leased(file_store)


async def test_a_provider_that_rejects_every_claim_is_left_alone(file_store):
    """A parameter that it doesn't know: a night of 400s would teach nothing."""
    provider = Watching(fail=failing(RejectedError("unknown parameter", status=400)))
    with pytest.raises(ProviderDownError, match="unknown parameter"):
        await measured(file_store, provider, *(f"Claim {n}." for n in range(50)), concurrency=1)
    assert len(provider.asked) <= 3 * 16


async def test_a_claim_that_is_rejected_does_not_end_the_others(file_store):
    """A model may refuse to talk about one claim, however often it is asked."""

    def fail(request, attempt):
        return RejectedError("flagged", status=400) if request.claim == "b" else None

    provider = Watching(fail=fail)
    seen = await measured(file_store, provider, "a", "b", "c", K=16, R=3, T=16, concurrency=1)
    assert [record.usage.failed for record in seen.records] == [0, 48, 0]
    assert len(provider.asked) == 3 * 48


# Stopping


def stop_in_virtual_time(store, limits, provider, retry, *claims, budget_usd=None):
    """Run until the lane stops; how long that took, in the lane's own time."""

    async def main():
        spending = Spending(PRICES, (parse_model("gpt-5"),), budget_usd=budget_usd)
        running = Runner(store, spending=spending, limits=limits, retry=retry)
        try:
            await running.run([(provider, plans(*claims, model="gpt-5"))])
        finally:
            ended.append(asyncio.get_running_loop().time())

    ended = []
    with pytest.raises((BudgetReachedError, RejectedError, ProviderDownError)) as caught:
        virtual_time.run(main())
    return ended[0], caught.value


def test_who_waits_for_a_rate_is_sent_home_when_the_lane_stops(file_store):
    """60 calls wait for the minute to pass; when the second says that the key is wrong, none of
    them waits for its turn to hear the same."""
    limits = Limits(concurrency=64, rpm=1)
    provider = Watching(fail=failing(RejectedError("bad key", status=401), first=1))
    ended_s, _ = stop_in_virtual_time(file_store, limits, provider, PATIENT, "a", "b", "c", "d")
    assert ended_s == pytest.approx(60, abs=16)
    assert len(provider.asked) == 2
    assert not leased(file_store)


def test_who_waits_out_a_pause_is_sent_home_when_the_lane_stops(file_store):
    """`Retry-After` of five minutes, and the budget is spent meanwhile."""

    async def linger(count):
        await asyncio.sleep(1.0 if count > 1 else 0.0)

    told = RateLimitedError("slow down", retry_after_s=290)
    provider = Metered(fail=failing(told, last=0), before=linger)
    limits = Limits(concurrency=8)
    ended_s, error = stop_in_virtual_time(
        file_store, limits, provider, PATIENT, "a", "b", budget_usd=0.001
    )
    assert isinstance(error, BudgetReachedError)
    assert ended_s < 100


def test_who_waits_to_try_again_is_sent_home_when_the_lane_stops(file_store):
    """A minute of patience isn't spent on a provider that turned out to want another key."""

    calls = 0

    def fail(request, attempt):
        nonlocal calls
        calls += 1
        return ServerError("busy") if calls <= 30 else RejectedError("bad key", status=401)

    provider = Watching(fail=fail)
    retry = Retry(attempts=9, wait_initial_s=1000.0, wait_max_s=1000.0, timeout_s=1e6)
    ended_s, error = stop_in_virtual_time(
        file_store, Limits(concurrency=32), provider, retry, "a", "b", "c"
    )
    assert isinstance(error, RejectedError)
    assert len(provider.asked) == 32
    assert ended_s < 100


async def test_leases_of_a_lane_that_stopped_are_free_while_others_go_on(store):
    """Somebody else may want to call for what this lane gave up."""
    gate = asyncio.Event()
    held = set()

    async def wait(_count):
        await gate.wait()

    async def look():
        # A lane leases a few at a time: all of its own are there once it has begun its calls.
        await until(lambda: bad.asked and good.asked and leased(store) == others)
        held.update(leased(store))
        gate.set()

    bad = Watching(name="bad", fail=failing(RejectedError("bad key", status=401)))
    good = Watching(name="good", before=wait)
    bad_plans, good_plans = plans("a", "b", model="mock:bad"), plans("a", model="mock:good")
    others = {sample.cache_key for sample in good_plans[0].samples}
    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        with pytest.raises(RejectedError):
            async with asyncio.timeout(240):
                await runner(store, "mock:bad", "mock:good").run(
                    [(bad, bad_plans), (good, good_plans)]
                )
    assert held == others
    assert not leased(store)


# Money


@pytest.mark.parametrize("concurrency", [1, 4, 16])
async def test_a_budget_is_never_exceeded_and_is_used(store, concurrency):
    """0.00225 a call and 0.05 to spend: calls are made as long as the dearest possible fits."""
    provider, seen = Metered(), Keeping()
    running, run = paid(
        store, provider, "a", "b", "c", budget_usd=0.05, concurrency=concurrency, observer=seen
    )
    with pytest.raises(BudgetReachedError, match=r"0\.05.*stored.*larger budget"):
        await run
    (plan,) = plans("a", model="gpt-5")
    bound = running.spending.bound_micros(plan.model, plan.request(plan.samples[0]))
    assert 0.05 - bound / 1e6 - 0.001 <= 0.00225 * len(provider.asked) <= 0.05
    assert running.spending.spent_usd == pytest.approx(0.00225 * len(provider.asked))
    assert len(stored(store)) == len(provider.asked)
    again = Metered()
    _, run = paid(store, again, "a", "b", "c", budget_usd=1.0)
    await run
    assert len(again.asked) == 48 - len(provider.asked)


async def test_a_budget_that_has_room_for_the_last_call_stops_nothing(file_store):
    """Whatever was wanted is there: that isn't a failure. Wide windows wait for each other."""
    seen = Keeping()
    budget_usd = 15 * 0.00225 + 0.013
    _, run = paid(file_store, Metered(), budget_usd=budget_usd, concurrency=16, observer=seen)
    await run
    assert len(seen.records) == 1


@pytest.mark.parametrize(
    ("error", "billed"),
    [
        (CallTimeoutError("no answer"), True),
        (ConnectionFailedError("hung up"), True),
        (UnreachedError("no such host"), False),
        (ServerError("not JSON"), True),
        (ServerError("not JSON", status=200), True),
        (ServerError("boom", status=500), True),
        (ServerError("a gateway gave up", status=504), True),
        (ServerError("too slow", status=408), True),
        (ServerError("overloaded", status=503), False),
        (ServerError("overloaded", status=529), False),
        (RateLimitedError("failed, come back", status=500, retry_after_s=0.0), True),
        (RejectedError("no log-probabilities", status=200), True),
        (RateLimitedError("slow down", retry_after_s=0.0), False),
        (RejectedError("no", status=400), False),
    ],
)
async def test_a_call_that_was_cut_off_counts_at_the_most_it_can_cost(file_store, error, billed):
    """Whether it was billed isn't known. What a provider refused or turned away is not."""
    provider = Metered(fail=lambda request, attempt: error if len(provider.asked) == 1 else None)
    running, run = paid(file_store, provider, budget_usd=1.0)
    await run
    (plan,) = plans("Claim.", model="gpt-5")
    bound = running.spending.bound_micros(plan.model, plan.request(plan.samples[0]))
    (name,) = running.caps
    found = file_store.read(select_budget, name)
    answered = len(provider.asked) - 1
    assert found.held_micros == 0
    assert found.presumed_micros == pytest.approx(bound if billed else 0, abs=50)
    assert found.spent_micros == 2250 * answered + found.presumed_micros
    assert running.spending.presumed_micros == found.presumed_micros


async def test_an_escrow_that_ends_early_counts_calls_in_flight_as_spent(file_store):
    """Nobody knows what they will be billed; what was set aside beyond them is free again."""
    escrow = Escrow(file_store, {"b": 10_000})
    await escrow.open()
    await escrow.reserve(300)
    await escrow.reserve(300)
    escrow.settle(300, Decimal(120))
    await escrow.close()
    found = file_store.read(select_budget, "b")
    assert (found.spent_micros, found.presumed_micros, found.held_micros) == (420, 300, 0)


async def test_a_budget_of_the_store_limits_all_who_use_it(file_store):
    """Two runs with money of their own, and one purse: together they stay within it."""
    asked = []
    for claim in ("a", "b", "c"):
        provider = Metered()
        options = {"prices": PRICES, "caps": {STORE_BUDGET: 60_000}, "concurrency": 4}
        running = runner(file_store, "gpt-5", budget_usd=10.0, **options)
        with contextlib.suppress(BudgetReachedError):
            await running.run([(provider, plans(claim, model="gpt-5"))])
        asked.append(len(provider.asked))
    assert asked[0] == 16
    assert asked[2] == 0
    assert 2250 * sum(asked) <= 60_000
    assert file_store.read(select_budget, STORE_BUDGET).spent_micros == 2250 * sum(asked)


class Purse:
    """A provider that bills, at its own time; and processes that spend, and die."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.billed = 0

    async def process(self, store, cap, calls):
        """Make calls as a lane does; be killed at a random moment, or end."""
        escrow = Escrow(store, {"b": cap}, lease_s=self.random.choice([0.0, 0.05]))
        await escrow.open()
        lanes = [asyncio.create_task(self._lane(escrow, calls)) for _ in range(calls[0] % 9 + 1)]
        doom = self.random.choice([None, self.random.uniform(0.0, 0.05)])
        done, left = await asyncio.wait(lanes, timeout=doom)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for task in done:
            if (error := task.exception()) is not None:
                assert isinstance(error, BudgetReachedError)
        if not left:
            await escrow.close()

    async def _lane(self, escrow, calls):
        while calls:
            calls.pop()
            bound = self.random.randint(10, 100)
            await escrow.reserve(bound)
            cost = self.random.randint(1, bound)
            # Billed when it is sent: whoever dies now has paid, and can't tell.
            self.billed += cost
            await asyncio.sleep(self.random.choice([0.0, 0.0, 0.001, 0.01]))
            cut = self.random.random() < 0.1
            escrow.settle(bound, Decimal(cost), presumed=cut)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
async def test_no_more_is_billed_than_the_cap_whoever_dies(file_store, seed):
    """Random windows, latencies, costs and deaths of three processes on one budget."""
    purse = Purse(seed)
    cap = purse.random.randint(200, 4000)
    work = [list(range(purse.random.randint(1, 60))) for _ in range(3)]
    await asyncio.gather(*(purse.process(file_store, cap, calls) for calls in work))
    found = file_store.read(select_budget, "b")
    assert purse.billed <= found.spent_micros + found.held_micros <= cap


async def test_lanes_share_a_budget(file_store):
    """What one model spends, another can't."""
    one, other = Metered(name="one"), Metered(name="other")
    with pytest.raises(BudgetReachedError):
        await runner(
            file_store, "gpt-5", "gpt-5-mini", concurrency=2, budget_usd=0.05, prices=PRICES
        ).run(
            [
                (one, plans("a", "b", model="gpt-5")),
                (other, plans("a", "b", model="gpt-5-mini")),
            ]
        )
    assert one.asked
    assert other.asked
    assert 0.035 <= 0.00225 * (len(one.asked) + len(other.asked)) <= 0.05


async def test_what_is_in_the_store_costs_nothing(file_store):
    """A warm run with a budget of almost nothing makes no call and isn't stopped."""
    _, run = paid(file_store, Metered(), budget_usd=1.0)
    await run
    seen = Keeping()
    running, run = paid(file_store, Metered(), budget_usd=1e-6, observer=seen)
    await run
    assert running.spending.spent_usd == 0.0
    assert seen.records[0].usage.cost_usd == 0.0


def test_a_budget_without_a_price_is_refused_at_the_door():
    """What can't be counted can't be kept."""
    models = (parse_model("gpt-5"), parse_model("openai:nobody-knows-this"))
    with pytest.raises(ConfigError, match=r"budget_usd.*nobody-knows-this.*HERETIX_PRICES"):
        Spending(PRICES, models, budget_usd=1.0)
    Spending(PRICES, models)


async def test_answers_without_token_counts_are_charged_at_the_most_they_can_cost(store):
    """The budget is kept all the same, and what was spent isn't known."""
    provider = Metered(tokens=(None, None))
    running, run = paid(store, provider, budget_usd=0.05)
    with pytest.raises(BudgetReachedError, match=r"0\.05 is spent.*wasn't told"):
        await run
    assert 3 <= len(provider.asked) <= 4
    assert running.spending.spent_usd is None
    assert len(stored(store)) == len(provider.asked)


async def test_without_a_budget_unknown_costs_are_unknown_and_stop_nothing(file_store):
    """Unknown says unknown, not zero."""
    seen = Keeping()
    running, run = paid(file_store, Metered(tokens=(None, 5)), budget_usd=None, observer=seen)
    await run
    assert running.spending.spent_usd is None
    assert seen.records[0].usage.cost_usd is None


async def test_a_free_model_costs_nothing_though_it_tells_no_tokens(file_store):
    """What runs on this machine isn't billed by the token."""
    seen = Keeping()
    provider = Metered(tokens=(None, None))
    running = runner(file_store, budget_usd=0.01, observer=seen)
    await running.run([(provider, plans("a"))])
    assert running.spending.spent_usd == 0.0
    assert seen.records[0].usage.cost_usd == 0.0


async def test_the_cost_in_a_record_is_what_its_calls_cost(file_store):
    """By hand: 14 calls of 1000 and 100 tokens; two of the 16 were there already."""
    seen = Keeping()
    _, run = paid(file_store, Metered(), budget_usd=1.0, K=1, R=2, T=8)
    await run
    running, run = paid(file_store, Metered(), budget_usd=1.0, observer=seen)
    await run
    usage = seen.records[0].usage
    assert (usage.called, usage.from_cache) == (14, 2)
    assert usage.cost_usd == pytest.approx(14 * (1000 * 1.25 + 100 * 10) / 1e6, abs=1e-9)
    assert running.spending.spent_usd == pytest.approx(usage.cost_usd)


def test_spending_is_rounded_once():
    """A thousand calls of half a micro-dollar are five hundred, not a thousand."""
    model = parse_model("gpt-5")
    cheap = Price(Decimal("0.05"), Decimal("0.05"), as_of=date(2026, 10, 3))
    spending = Spending(PriceTable({"openai": {"gpt-5": cheap}}), (model,))
    for _ in range(1000):
        spending.charge(model, 9, 1)
    assert spending.spent_usd == pytest.approx(500e-6, abs=1e-12)


# Retries


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (RejectedError("400", status=400), 1),
        (ServerError("500"), 4),
        (RateLimitedError("429"), 4),
        (RateLimitedError("429", retry_after_s=0.0), 4),
        (CallTimeoutError("late"), 4),
        (ConnectionFailedError("cut"), 4),
    ],
)
async def test_only_what_may_pass_is_repeated_and_only_so_often(file_store, error, calls):
    """A failed sample is stored with its last error and the number of calls it took."""
    provider, seen = Watching(fail=failing(error)), Keeping()
    retry = Retry(attempts=4, wait_initial_s=0.0, wait_max_s=0.0)
    await runner(file_store, concurrency=2, retry=retry, observer=seen).run(
        [(provider, plans("a", K=1, R=3, T=1))]
    )
    assert set(Counter(provider.asked).values()) == {calls}
    rows = stored(file_store)
    assert {row["error"] for row in rows} == {f"{type(error).__name__}: {error}"}
    assert {row["attempts"] for row in rows} == {calls}
    assert {row["raw_answer"] for row in rows} == {None}
    assert seen.records[0].usage.failed == 3
    assert seen.records[0].status == "no_estimate"


async def test_an_answer_after_failures_tells_how_many_calls_it_took(file_store):
    """Attempts are counted over failures and the answer."""

    def fail(request, attempt):
        return ServerError("again") if attempt < 3 else None

    await measured(file_store, Watching(fail=fail))
    assert {(row["attempts"], row["error"]) for row in stored(file_store)} == {(3, None)}


def test_waits_are_jittered_in_full_and_capped():
    """Anything from nothing to the ceiling, which doubles with each failure up to a cap."""
    retry = Retry(wait_initial_s=0.5, wait_max_s=4.0)
    for failures, ceiling in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 4.0), (50, 4.0)):
        waits = [retry.wait_s(failures, ServerError("500")) for _ in range(2000)]
        assert 0.0 <= min(waits) < 0.05 * ceiling
        assert 0.95 * ceiling < max(waits) <= ceiling
        assert sum(waits) / len(waits) == pytest.approx(ceiling / 2, rel=0.1)


def test_after_a_stated_wait_only_jitter_is_added():
    """The whole lane waits as long as was asked; a sample adds a little, not another backoff."""
    retry = Retry(wait_initial_s=0.5)
    told = RateLimitedError("429", retry_after_s=60.0)
    assert max(retry.wait_s(9, told) for _ in range(1000)) <= 0.5
    untold = RateLimitedError("429")
    assert max(retry.wait_s(9, untold) for _ in range(1000)) > 10


def test_repeating_ends_when_its_time_is_over(file_store):
    """However many tries are left: waits of up to 100 s and 300 s to spend."""
    asked_s = []

    async def note(_count):
        asked_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(10.0)

    async def main():
        provider = Watching(fail=failing(CallTimeoutError("late")), before=note)
        retry = Retry(attempts=1000, wait_initial_s=100.0, wait_max_s=100.0, timeout_s=300.0)
        await runner(file_store, concurrency=1, retry=retry).run(
            [(provider, plans("a", K=1, R=1, T=1))]
        )

    virtual_time.run(main())
    assert 3 <= len(asked_s) <= 30
    assert max(asked_s) <= 300.0


def test_time_spent_in_a_queue_is_not_taken_from_a_samples_patience(file_store):
    """One request a minute and 16 samples that each fail at first: all are tried again, though
    most waited for longer than their patience before their first call was made."""

    def fail(request, attempt):
        return ServerError("again") if attempt < 3 else None

    async def main():
        seen = Keeping()
        provider = Watching(fail=fail)
        running = Runner(
            file_store,
            spending=Spending(load_prices(Settings()), (parse_model("mock:m"),)),
            limits=Limits(concurrency=16, rpm=1),
            retry=Retry(attempts=3, timeout_s=300.0),
            observer=seen,
        )
        await running.run([(provider, plans("a"))])
        return seen, provider

    seen, provider = virtual_time.run(main())
    assert len(provider.asked) == 48
    assert seen.records[0].usage.failed == 0


# Whatever ends a run


@contextlib.contextmanager
def blocking(store, beginning):
    """Hold statements that begin so until the event is set; another says that one has come."""
    free, come = threading.Event(), threading.Event()

    def hold(connection, cursor, statement, *_):
        if statement.startswith(beginning):
            come.set()
            free.wait(240)

    event.listen(store._engine, "before_cursor_execute", hold)
    try:
        yield come, free
    finally:
        free.set()
        event.remove(store._engine, "before_cursor_execute", hold)


@pytest.mark.parametrize(
    "beginning",
    ["INSERT INTO executions", "INSERT INTO leases", "INSERT INTO samples", "INSERT INTO results"],
)
async def test_a_run_that_is_cancelled_while_it_writes_leaves_nothing_behind(store, beginning):
    """Whatever a thread was writing is written before the run is over; no lease outlives it, no
    sample is lost, and the next run makes exactly the missing calls."""
    first = Watching()
    with blocking(store, beginning) as (come, free):
        task = asyncio.create_task(measured(store, first, concurrency=4))
        await until(come.is_set)
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done() or task.cancelled()
        threading.Timer(0.02, free.set).start()
        with pytest.raises(asyncio.CancelledError):
            await task
        in_store = len(stored(store))
        left = leased(store)
    assert left == set()
    second = Watching()
    async with asyncio.timeout(120):
        seen = await measured(store, second)
    assert len(second.asked) == 16 - in_store
    assert len(seen.records) == 1


async def test_plans_that_break_off_end_the_run_and_lose_no_answer(store):
    """Trouble in making plans comes out as it is, after what had arrived was stored."""

    def broken():
        yield from plans(*(f"Claim {number}." for number in range(70)), K=1, R=3, T=1)
        raise ConfigError("`claims_file` broke off")

    provider, seen = Watching(), Keeping()
    with pytest.raises(ConfigError, match="broke off"):
        await runner(store, observer=seen).run([(provider, broken())])
    assert not leased(store)
    assert len(stored(store)) == len(seen.samples) > 0


@pytest.mark.parametrize("callback", ["on_planned", "on_sampled", "on_finished"])
async def test_an_observer_that_fails_ends_the_run_with_its_own_error(store, callback):
    """A mistake in a display isn't hidden, and costs no sample that had arrived."""

    class Failing(Keeping):
        pass

    def fail(self, *_):
        raise ZeroDivisionError

    setattr(Failing, callback, fail)
    provider = Watching()
    with pytest.raises(ZeroDivisionError):
        await runner(store, observer=Failing()).run([(provider, plans("a", "b"))])
    assert not leased(store)
    again = Watching()
    before = len(stored(store))
    await measured(store, again, "a", "b")
    assert len(again.asked) == 32 - before


async def test_a_provider_that_breaks_ends_the_run_with_its_own_error(file_store):
    """An adapter's own mistake isn't taken for a failed call."""
    provider = Watching(fail=failing(KeyError("choices"), first=5))
    with pytest.raises(KeyError, match="choices"):
        await measured(file_store, provider, concurrency=1)
    assert len(stored(file_store)) == 5
    assert not leased(file_store)


# Memory


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_a_slow_store_slows_the_calls_down(store, monkeypatch):
    """While nothing is committed, calls end with answers that wait for room, and no other begins:
    answers don't pile up. (A file has one writer: while that is held up, nothing is leased.)"""
    provider, room, calls = Watching(), 64, 32
    monkeypatch.setitem(SampleWriter.__init__.__kwdefaults__, "capacity", room)
    with blocking(store, "INSERT INTO samples") as (come, free):
        task = asyncio.create_task(
            measured(store, provider, K=16, R=16, T=16, B=100, concurrency=calls)
        )
        await until(lambda: come.is_set() and len(provider.asked) >= room + calls)
        asked = -1
        while asked != len(provider.asked):
            asked = len(provider.asked)
            await asyncio.sleep(0.3)
        free.set()
        seen = await task
    assert asked == room + calls
    assert seen.records[0].usage.attempted == 256


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_slow_aggregation_slows_the_calls_down(store):
    """While no record is made, calls stop after so many complete plans."""
    provider, seen = Watching(), Keeping()
    many = plans(*(f"Claim {number}." for number in range(500)), K=1, R=3, T=1, B=100)
    with blocking(store, "INSERT INTO results") as (come, free):
        task = asyncio.create_task(
            runner(store, concurrency=8, observer=seen).run([(provider, iter(many))])
        )
        await until(come.is_set)
        asked = -1
        while asked != len(provider.asked):
            asked = len(provider.asked)
            await asyncio.sleep(0.3)
        free.set()
        await task
    assert asked <= 3 * (64 + 64 + 64 + 8)
    assert len(seen.records) == 500


async def test_the_belief_does_not_depend_on_trouble(store, tmp_path):
    """Failures, limits and retries in any order: the number is that of a quiet run."""

    def fail(request, attempt):
        kind = (request.paraphrase_idx * 7 + request.replicate_idx + attempt) % 5
        errors = (ServerError("500"), RateLimitedError("429", retry_after_s=0.0))
        return errors[kind] if attempt < 3 and kind < 2 else None

    rough = await measured(store, Watching(fail=fail), K=16, R=3, T=16, concurrency=16)
    with Store.open(str(tmp_path / "other.sqlite")) as other:
        quiet = await measured(other, Watching(), K=16, R=3, T=16)
    assert belief(rough.records[0]) == belief(quiet.records[0])


async def test_a_call_that_failed_leaves_the_cost_known(file_store):
    """Nothing was answered, so nothing was billed; the other fifteen calls have their price."""

    class FailingOnce(Metered):
        async def ask(self, request):
            if not self.asked:
                self.asked.append(request)
                raise RejectedError("no", status=400)
            return await super().ask(request)

    seen = Keeping()
    running, run = paid(file_store, FailingOnce(), budget_usd=1.0, observer=seen)
    await run
    usage = seen.records[0].usage
    assert (usage.called, usage.failed) == (16, 1)
    assert usage.cost_usd == pytest.approx(15 * (1000 * 1.25 + 100 * 10) / 1e6, abs=1e-9)
    assert running.spending.spent_usd == pytest.approx(usage.cost_usd)
