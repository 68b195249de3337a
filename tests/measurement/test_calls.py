"""Calls that are no samples: counted, paced, tried again, paid for once and kept."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from faultserver import FaultServer, answer, answers, cut_off, not_json, reset, status
from heretix.core.errors import BudgetReachedError, HeretixError, RejectedError
from heretix.core.settings import Settings
from heretix.evidence.demo import demo_claims
from heretix.measurement.calls import name_reply, paying
from heretix.measurement.pacing import Limits
from heretix.measurement.runner import Retry
from heretix.providers.base import Request
from heretix.providers.catalog import Options, Spending, load_prices, resolve_model
from heretix.store import Store
from heretix.store.budgets import select_budget
from heretix.store.rates import select_rate
from heretix.store.replies import select_replies
from heretix.store.schema import late_samples, leases

MODEL = "openai-compatible:judge"
HERETIX = str(Path(sys.executable).parent / "heretix")


@pytest.fixture
def server():
    with FaultServer() as server:
        server.always(answers(lambda call: call.body["messages"][-1]["content"].upper()))
        yield server


@pytest.fixture
def store(store_url):
    with Store.open(store_url) as store:
        yield store


def question(text, *, tokens=100):
    return Request(model="judge", system="Say it.", user=text, max_output_tokens=tokens)


def asked_of(server):
    """What was asked, in the order of its arrival."""
    return [call.body["messages"][-1]["content"] for call in server.calls]


@contextlib.asynccontextmanager
async def asking(store, server, *, settings=None, caps=None, limits=None, retry=None):
    """A model, and the payer of its calls."""
    settings = settings or Settings()
    model = resolve_model(MODEL, settings)
    spending = Spending(load_prices(settings), (model,))
    limits = limits or Limits(concurrency=8)
    async with paying(
        *(store, settings, [model]),
        spending=spending,
        caps=caps or {},
        limits=limits,
        retry=retry,
    ) as payer:
        options = Options(base_url=server.url("openai-compatible"))
        provider = payer.open(model, settings, options=options)
        try:
            yield provider, payer
        finally:
            await provider.aclose()


async def said(store, server, *texts, **options):
    """What is answered to questions that are asked at once."""
    async with asking(store, server, **options) as (provider, _):
        replies = await asyncio.gather(*(provider.ask(question(text)) for text in texts))
        return [reply.text for reply in replies]


def key_of(server, text):
    return name_reply(
        resolve_model(MODEL, Settings()), question(text), server.url("openai-compatible")
    )


async def until(condition):
    """Wait for something that another thread or process does: no event tells of it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


# Paid once


async def test_a_question_is_paid_for_once(store, server):
    """At once, one after the other and from another process on the store; then without the cache."""
    assert await said(store, server, "a", "a", "b") == ["A", "A", "B"]
    assert await said(store, server, "b", "a") == ["B", "A"]
    assert sorted(asked_of(server)) == ["a", "b"]
    server.always(answer("new"))
    assert await said(store, server, "a", settings=Settings(no_cache=True)) == ["new"]
    assert await said(store, server, "a") == ["new"]
    assert len(server.calls) == 3
    (stored,) = store.read(select_replies, [key_of(server, "b")]).values()
    assert (stored.text, stored.model, stored.tokens_out) == ("B", MODEL, 9)


async def test_who_asks_what_another_is_paying_for_waits_for_it(store, server):
    """Two processes, one question: one call, and both have its answer."""
    held, free = server.held(answer("one"))
    server.always(held)
    first = asyncio.ensure_future(said(store, server, "a"))
    await until(lambda: server.calls)
    second = asyncio.ensure_future(said(store, server, "a"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(second), 0.3)
    free()
    assert await asyncio.gather(first, second) == [["one"], ["one"]]
    assert len(server.calls) == 1
    with store.reading() as connection:
        assert connection.execute(select(leases)).all() == []


async def test_the_first_answer_stays(store, server):
    """Whoever lost its lease while it called uses what came before, and says what it paid."""
    held, free = server.held(answer("late"))
    server.script(held)
    first = asyncio.ensure_future(said(store, server, "a"))
    await until(lambda: server.calls)
    with store.writing() as connection:
        connection.execute(leases.delete())
    server.always(answer("first"))
    assert await said(store, server, "a") == ["first"]
    free()
    assert await first == ["first"]
    with store.reading() as connection:
        (late,) = connection.execute(select(late_samples)).all()
    assert (late.cache_key, late.run_id, late.tokens_out) == (key_of(server, "a"), None, 9)


def test_every_part_of_a_request_names_its_reply():
    """Another seed, limit, schema, model or server is another question."""
    model, asked = resolve_model(MODEL, Settings()), question("a")
    others = [
        Request(model="judge", system="Say it.", user="a", max_output_tokens=100, **more)
        for more in ({"seed": 1}, {"temperature": 0.0}, {"answer_schema": {"type": "object"}})
    ]
    others += [question("b"), question("a", tokens=99)]
    names = {name_reply(model, one) for one in (asked, *others)}
    names.add(name_reply(resolve_model("openai-compatible:other", Settings()), asked))
    names.add(name_reply(model, asked, "http://localhost/v1"))
    assert len(names) == 8
    assert name_reply(model, question("a")) in names


# Tries and turns


async def test_a_call_is_tried_again(store, server):
    """Errors that pass cost tries and not the answer; all of them are counted."""
    server.script(status(500), reset(), status(503))
    retry = Retry(wait_initial_s=0.0, wait_max_s=0.0)
    async with asking(store, server, retry=retry) as (provider, payer):
        assert (await provider.ask(question("a"))).text == "A"
        assert payer.spending.totals == {"calls": 4, "tokens_in": 50, "tokens_out": 9}


async def test_all_processes_obey_retry_after(store, server):
    """One is told to wait for a second: neither it nor another calls before that."""
    arrived = []

    def note(then):
        async def respond(of, request, call):
            arrived.append(time.monotonic())
            return await then(of, request, call)

        return respond

    server.script(note(status(429, headers={"Retry-After": "1"})))
    server.always(note(answer("yes")))
    first = asyncio.ensure_future(said(store, server, "a"))
    async with asking(store, server) as (_, payer):
        await until(lambda: arrived)
        (rate_id,) = payer.rate_ids.values()
    await until(lambda: (rate := store.read(select_rate, rate_id)) and rate.paused_s)
    assert await said(store, server, "b") == ["yes"]
    assert await first == ["yes"]
    assert len(arrived) == 3
    assert min(arrived[1:]) - arrived[0] >= 1.0


async def test_two_processes_share_one_rate(store, server):
    """Each may make 1,200 calls a minute, and so may both: the 20th comes after 19 turns."""
    begun = time.monotonic()
    limits = Limits(concurrency=8, rpm=1200)
    texts = [[f"{name}{n}" for n in range(10)] for name in "ab"]
    await asyncio.gather(*(said(store, server, *some, limits=limits) for some in texts))
    assert len(server.calls) == 20
    assert time.monotonic() - begun >= 19 * 60 / 1200


async def test_a_failure_for_good_ends_the_others(store, server):
    """A rejected key is told, and what waited for its turn isn't called for."""
    server.always(status(401))
    async with asking(store, server, limits=Limits(concurrency=1)) as (provider, _):
        asked = [provider.ask(question(text)) for text in "abcde"]
        found = await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(RejectedError):
            await provider.ask(question("f"))
    assert [type(one) for one in found] == [RejectedError] * 5
    assert len(server.calls) == 1
    server.always(answer("yes"))
    assert await said(store, server, "a") == ["yes"]


# Money


async def test_judges_never_spend_more_than_the_budget(store, server, tmp_path):
    """Three processes at a server that bills answers by their tokens, and nonsense, errors and cut
    lines as much as a call can cost: in the end it was paid no more than the cap."""
    prices = tmp_path / "prices.yaml"
    prices.write_text(
        "openai-compatible: {models: {judge: {input: 2, output: 100, as_of: 2026-10-03}}}\n"
    )
    settings = Settings(prices_file=prices)
    model, cap = resolve_model(MODEL, settings), 400_000
    spending = Spending(load_prices(settings), (model,))
    bound = spending.bound_micros(model, question("a000"))
    drawn, billed, reached = random.Random(3), 0, 0
    failures = [cut_off(), not_json(), status(500), reset()]

    async def bill(of, request, call):
        nonlocal billed
        fails = drawn.random() < 0.3
        billed += bound if fails else 50 * 2 + 9 * 100
        return await (drawn.choice(failures) if fails else answer("yes"))(of, request, call)

    server.always(bill)
    retry = Retry(attempts=3, wait_initial_s=0.0, wait_max_s=0.0)
    how = {"settings": settings, "caps": {"store": cap}, "retry": retry}
    turn = 0
    while not reached:
        turn += 1
        texts = [[f"{name}{turn:02}{n}" for n in range(8)] for name in "abc"]
        asked = (said(store, server, *some, **how) for some in texts)
        found = await asyncio.gather(*asked, return_exceptions=True)
        reached += sum(isinstance(one, BudgetReachedError) for one in found)
        assert billed <= cap
        assert all(isinstance(one, list | HeretixError) for one in found)
    budget = store.read(select_budget, "store")
    assert 0.5 * cap < billed <= budget.spent_micros <= cap
    assert budget.held_micros == 0


# Ends


async def test_who_gives_up_waiting_loses_no_answer(store, server):
    """Cancelled with calls in flight and calls to come: those in flight come home and are kept."""
    held, free = server.held(answer("kept"))
    server.always(held)
    told = []
    limits = Limits(concurrency=2)

    async def ask():
        async with asking(store, server, limits=limits) as (provider, payer):
            payer.tell = told.append
            await asyncio.gather(*(provider.ask(question(text)) for text in "abcd"))

    task = asyncio.create_task(ask())
    await until(lambda: len(server.calls) == 2)
    task.cancel()
    await until(lambda: told)
    assert not task.done()
    free()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["stopping: no more calls are made; 2 in flight are waited for"]
    kept = asked_of(server)
    server.always(answer("new"))
    assert sorted(await said(store, server, *"abcd")) == ["kept", "kept", "new", "new"]
    assert sorted(asked_of(server)) == ["a", "b", "c", "d"]
    assert kept == asked_of(server)[:2]


async def test_cancelled_again_it_drops_them(store, server):
    """Whoever won't wait needn't: nothing is left behind, and the question is asked again."""
    held, free = server.held(answer("dropped"))
    server.always(held)
    task = asyncio.create_task(said(store, server, "a"))
    await until(lambda: server.calls)
    task.cancel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    free()
    with store.reading() as connection:
        assert connection.execute(select(leases)).all() == []
    server.always(answer("new"))
    assert await said(store, server, "a") == ["new"]


@contextlib.contextmanager
def command(folder, server, *args, claim="Tea is a plant."):
    """A command in a process of its own."""
    env = {**os.environ, "HERETIX_BASE_URL": server.url("openai-compatible")}
    words = [HERETIX, *args[:2], claim, *args[2:]]
    with subprocess.Popen(
        words, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def finished(folder, server, *args, **options):
    """What a command says on both streams, and its exit code."""
    with command(folder, server, *args, **options) as process:
        out, err = await asyncio.to_thread(process.communicate)
        return process.returncode, out, err


NEGATE = ("claims", "negate", "-m", MODEL)


async def test_an_answer_survives_the_process_that_paid_for_it(server, tmp_path):
    """Killed between the answer and the store, which was locked: the rerun pays nothing."""
    negation = json.dumps({"claims": ["Tea is no plant."]})
    held, free = server.held(answer(negation))
    server.always(held)
    path = tmp_path / "runs" / "heretix.sqlite"
    with command(tmp_path, server, *NEGATE) as process:
        await until(lambda: server.calls)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("PRAGMA busy_timeout = 60000")
            other.execute("BEGIN IMMEDIATE")
            free()
            await until(lambda: negation[2:8] in "".join(map(Path.read_text, spools(path))))
            process.kill()
            process.wait()
            other.execute("ROLLBACK")
    assert len(spools(path)) == 1
    server.always(answer("not asked"))
    code, out, err = await finished(tmp_path, server, *NEGATE)
    assert (code, len(server.calls)) == (0, 1), err
    assert "Tea is no plant." in out
    assert "brought in 1 answers" in err
    assert spools(path) == []


def spools(path):
    return list(path.parent.glob(f"{path.name}-spool-*"))


JUDGED = ("evidence", "build", "--corpus", "demo", "--judge", MODEL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_while_documents_are_judged_loses_no_answer(server, tmp_path, number):
    """Stopped with calls in flight, and given again: every question was paid for once."""
    grades = json.dumps(dict.fromkeys("PHREA", 0.5) | {"stance": "neutral"})
    claim = next(iter(demo_claims()))
    server.always(answer(grades))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    code, judged, err = await finished(whole, server, *JUDGED, "--json", claim=claim)
    assert code == 0, err
    count = len(server.calls)
    server.forget()
    held, free = server.held(answer(grades))
    server.always(held)
    with command(cut, server, *JUDGED, "--json", claim=claim) as process:
        await until(lambda: len(server.calls) >= 3)
        process.send_signal(number)
        said = await asyncio.to_thread(process.stderr.readline)
        assert "in flight are waited for" in said
        free()
        assert await asyncio.to_thread(process.wait) == 130
    answered = len(server.calls)
    assert 3 <= answered < count
    server.always(answer(grades))
    code, again, err = await finished(cut, server, *JUDGED, "--json", claim=claim)
    assert (code, len(server.calls)) == (0, count), err
    items = [[bundle["items"] for bundle in json.loads(text)] for text in (judged, again)]
    assert items[0] == items[1]
