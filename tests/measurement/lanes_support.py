"""Providers, observers and runners for tests of live sampling."""

import asyncio
import dataclasses
import random
from collections import Counter
from datetime import date
from decimal import Decimal

from sqlalchemy import select

from heretix.config import RunConfig
from heretix.core.settings import Settings
from heretix.measurement.pacing import Limits
from heretix.measurement.runner import NullObserver, Retry, Runner
from heretix.plan import make_plan
from heretix.prompts.bank import load_bank
from heretix.providers.catalog import Price, PriceTable, Spending, load_prices, parse_model
from heretix.providers.mock import MockProvider
from heretix.store.runs import register_bank
from heretix.store.schema import late_samples, leases, samples

AT_ONCE = Retry(attempts=3, wait_initial_s=0.0, wait_max_s=0.0)
BANK = load_bank("rpl_v1")
PRICE = Price(Decimal("1.25"), Decimal(10), as_of=date(2026, 10, 3))
PRICES = PriceTable({"openai": {"gpt-5": PRICE, "gpt-5-mini": PRICE}})


class Watching:
    """A provider that counts, shuffles arrivals and fails on request."""

    max_concurrency = 64

    def __init__(self, *, fail=lambda request, attempt: None, name="m", before=None):
        self._inner = MockProvider(name)
        self._fail = fail
        self._before = before
        self._random = random.Random(7)
        self.asked = []
        self._attempts = Counter()
        self.closed = False
        self.in_flight = 0
        self.most_in_flight = 0

    async def ask(self, request):
        key = (request.claim, request.paraphrase_idx, request.replicate_idx)
        self.asked.append(key)
        self._attempts[key] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self._before:
                await self._before(len(self.asked))
            for _ in range(self._random.randrange(20)):
                await asyncio.sleep(0)
            error = self._fail(request, self._attempts[key])
            if error is not None:
                raise error
            return await self._inner.ask(request)
        finally:
            self.in_flight -= 1

    async def aclose(self):
        self.closed = True


class Metered(Watching):
    """A provider whose answers take a known number of tokens."""

    def __init__(self, *, tokens=(1000, 100), **options):
        super().__init__(**options)
        self._tokens = tokens

    async def ask(self, request):
        reply = await super().ask(request)
        tokens_in, tokens_out = self._tokens
        return dataclasses.replace(reply, tokens_in=tokens_in, tokens_out=tokens_out)


class Keeping(NullObserver):
    """An observer that keeps what it sees."""

    def __init__(self):
        self.records = []
        self.samples = []
        self.cached = 0
        self.total = 0

    def on_planned(self, plan, cached):
        self.total += plan.N
        self.cached += cached

    def on_extended(self, plan, more, cached):
        self.total += more
        self.cached += cached

    def on_sampled(self, plan, sample):
        self.samples.append(sample)

    def on_finished(self, record):
        self.records.append(record)


def runner(store, *models, concurrency=8, fixed=True, budget_usd=None, prices=None, **options):
    """A runner for mock models, as quick as it can be."""
    table = prices or load_prices(Settings())
    spending = Spending(
        table, tuple(parse_model(name) for name in models or ("mock:m",)), budget_usd=budget_usd
    )
    options.setdefault("retry", AT_ONCE)
    limits = Limits(concurrency=concurrency, fixed=fixed)
    return Runner(store, spending=spending, limits=limits, **options)


def plans(*claims, model="mock:m", **options):
    config = RunConfig.parse(options)
    return [make_plan(claim, parse_model(model), BANK, config) for claim in claims]


async def measured(store, provider, *claims, concurrency=8, use_cache=True, **options):
    """Run plans and return the observer."""
    register(store)
    seen = Keeping()
    model = options.get("model", "mock:m")
    running = runner(store, model, concurrency=concurrency, use_cache=use_cache, observer=seen)
    await running.run([(provider, plans(*(claims or ("Claim.",)), **options))])
    return seen


def register(store):
    register_bank(
        store,
        prompt_version=BANK.version,
        bank_sha256=BANK.sha256,
        source=BANK.source,
        system=BANK.system,
        user_template=BANK.user_template,
        paraphrases=BANK.paraphrases,
    )


def belief(record):
    """What a record concludes, without what is particular to one execution."""
    aggregates = record.aggregates.model_dump(exclude={"cache_hit_rate"})
    return aggregates, record.aggregation, record.diagnostics


def stored(store):
    """All samples, as rows."""
    with store.reading() as connection:
        return connection.execute(select(samples)).mappings().all()


def leased(store):
    """Keys that somebody holds."""
    with store.reading() as connection:
        return set(connection.execute(select(leases.c.cache_key)).scalars())


def paid_in_vain(store):
    """Keys of answers that came after another one."""
    with store.reading() as connection:
        return connection.scalars(select(late_samples.c.cache_key)).all()
