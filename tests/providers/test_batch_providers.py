"""Batches of OpenAI and Anthropic, with the official SDKs as oracles for what is sent."""

import json
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from batchserver import (
    BatchServer,
    answered,
    canceled,
    carried_out,
    errored,
    expired,
    nothing,
    raw,
)
from faultserver import cut_off, document, redirect, reset, status
from faultserver import raw as raw_body
from heretix.core.errors import (
    CallTimeoutError,
    ConfigError,
    ConnectionFailedError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    ServerError,
    UnconfirmedError,
)
from heretix.core.settings import Settings
from heretix.providers.anthropic import AnthropicBatchProvider
from heretix.providers.anthropic import build_body as anthropic_body
from heretix.providers.base import Reply, Request
from heretix.providers.batch import Sighting
from heretix.providers.catalog import open_batch_provider, parse_model
from heretix.providers.http import Target
from heretix.providers.openai import OpenAIBatchProvider
from heretix.providers.openai import build_body as openai_body

BOTH = pytest.mark.parametrize("protocol", ["openai", "anthropic"])
PROVIDERS = {"openai": OpenAIBatchProvider, "anthropic": AnthropicBatchProvider}
MODELS = {"openai": "gpt-5", "anthropic": "claude-sonnet-5-5"}
ID_A, ID_B = "a" * 64, "b" * 64


@pytest.fixture(scope="module")
def running():
    with BatchServer() as server:
        yield server


@pytest.fixture
def server(running):
    running.forget()
    return running


def provider(server, protocol, **options):
    """Our provider, at the local server."""
    return aclosing(
        PROVIDERS[protocol](
            Target(provider=protocol, base_url=server.url(protocol), key="sk-1", **options)
        )
    )


def request(protocol, user="So?"):
    return Request(
        model=MODELS[protocol], system="Be brief. “|”", user=user, max_output_tokens=64, seed=7
    )


def entries(ours, protocol, *ids):
    return [ours.encode(name, request(protocol, f"Is {name[0]} so?")) for name in ids]


async def collected(ours, name):
    async with aclosing(ours.results(name)) as results:
        return [result async for result in results]


async def ended(server, ours, protocol, *results):
    """Results of a batch whose entries end in these ways, by custom id."""
    ids = [f"{n:064x}" for n in range(len(results))]
    name = await ours.submit("batch-1", entries(ours, protocol, *ids))
    server.end(lambda entry: results[entry.number])
    found = await collected(ours, name)
    return {result.custom_id: result.outcome for result in found}, ids


async def test_openai_is_sent_what_its_sdk_sends(server):
    """Upload, order, question and cancellation are those of the official SDK."""
    import openai

    async with provider(server, "openai") as ours:
        lines = entries(ours, "openai", ID_A, ID_B)
        name = await ours.submit("batch-1", lines)
        await ours.status(name)
        await ours.find("batch-2", size=2, since=datetime.now(UTC))
        await ours.cancel(name)
        server.end()
        await collected(ours, name)
    mine = list(server.seen)
    assert json.loads(lines[0]) == {
        "custom_id": ID_A,
        "method": "POST",
        "url": "/v1/responses",
        "body": openai_body(request("openai", "Is a so?")),
    }
    server.forget()
    async with openai.AsyncOpenAI(
        api_key="sk-1", base_url=server.url("openai"), max_retries=0
    ) as sdk:
        payload = b"".join(line + b"\n" for line in lines)
        file = await sdk.files.create(file=("batch-1.jsonl", payload), purpose="batch")
        batch = await sdk.batches.create(
            completion_window="24h",
            endpoint="/v1/responses",
            input_file_id=file.id,
            metadata={"heretix_batch": "batch-1"},
        )
        await sdk.batches.retrieve(batch.id)
        await sdk.batches.list(limit=100)
        await sdk.batches.cancel(batch.id)
        server.end()
        done = await sdk.batches.retrieve(batch.id)
        content = await sdk.files.content(done.output_file_id)
    assert [(s.method, s.path, s.query, s.body) for s in mine] == [
        (s.method, s.path, s.query, s.body) for s in server.seen
    ]
    assert {s.headers["authorization"] for s in mine} == {"Bearer sk-1"}
    assert len(content.text.splitlines()) == 2


async def test_anthropic_is_sent_what_its_sdk_sends(server):
    """Order, question and cancellation are those of the official SDK, and so are the headers."""
    import anthropic

    async with provider(server, "anthropic") as ours:
        name = await ours.submit("batch-1", entries(ours, "anthropic", ID_A, ID_B))
        await ours.status(name)
        await ours.find("batch-2", size=2, since=datetime.now(UTC))
        await ours.cancel(name)
    mine = list(server.seen)
    server.forget()
    async with anthropic.AsyncAnthropic(
        api_key="sk-1", base_url=server.url("anthropic"), max_retries=0
    ) as sdk:
        batch = await sdk.messages.batches.create(
            requests=[
                {"custom_id": i, "params": anthropic_body(request("anthropic", f"Is {i[0]} so?"))}
                for i in (ID_A, ID_B)
            ]
        )
        await sdk.messages.batches.retrieve(batch.id)
        await sdk.messages.batches.list(limit=100)
        await sdk.messages.batches.cancel(batch.id)
    assert [(s.method, s.path, s.query, s.body) for s in mine] == [
        (s.method, s.path, s.query, s.body) for s in server.seen
    ]
    for header in ("authorization", "x-api-key", "anthropic-version"):
        values = {s.headers.get(header) for s in (*mine, *server.seen)}
        assert len(values) == 1


@BOTH
async def test_the_key_goes_to_the_base_url_only(server, protocol):
    """Neither `results_url`, which points elsewhere, nor a redirect is followed."""
    async with provider(server, protocol) as ours:
        found, ids = await ended(server, ours, protocol, answered())
        assert isinstance(found[ids[0]], Reply)
        operation = "content" if protocol == "openai" else "results"
        server.script(operation, redirect("https://elsewhere.invalid/"))
        with pytest.raises(RejectedError, match="redirects aren't followed"):
            await collected(ours, server.batches[0].id)


@BOTH
async def test_every_ending_of_a_request_is_told_apart(server, protocol):
    """An answer is a reply; a rejection, an expiry and a cancellation are errors of their kind."""
    async with provider(server, protocol) as ours:
        found, ids = await ended(
            server,
            ours,
            protocol,
            answered('{"prob_true": 0.25}'),
            errored("no such parameter"),
            expired(),
            canceled(),
            nothing(),
        )
    assert found[ids[0]].text == '{"prob_true": 0.25}'
    assert (found[ids[0]].tokens_in, found[ids[0]].tokens_out) == (50, 9)
    assert isinstance(found[ids[1]], RejectedError)
    assert "no such parameter" in str(found[ids[1]])
    assert isinstance(found[ids[2]], CallTimeoutError)
    assert type(found[ids[3]]) is ProviderError
    assert ids[4] not in found


@BOTH
@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "[1]",
        '{"result": {}}',
        '{"custom_id": 7}',
        "{}",
        '{"custom_id": null, "error": null}',
    ],
)
async def test_a_line_that_makes_no_sense_is_no_ones_result(server, protocol, line):
    """It has no id, and the others are read all the same."""
    async with provider(server, protocol) as ours:
        found, ids = await ended(server, ours, protocol, raw(line), answered())
    assert isinstance(found[None], ServerError)
    assert isinstance(found[ids[1]], Reply)


@BOTH
@pytest.mark.parametrize(
    "content",
    [
        {},
        {"response": None, "error": None, "result": None},
        {"response": {"status_code": 200}, "result": {"type": "succeeded"}},
        {"response": {"status_code": 200, "body": []}, "result": {"type": "news"}},
        {"response": {"body": {}}, "result": {"type": "succeeded", "message": {"content": 1}}},
        {"response": {"status_code": 503, "body": {}}, "result": {"type": "errored"}},
        {"error": {"message": "odd"}, "result": {"type": "errored", "error": {"error": "odd"}}},
    ],
)
async def test_a_misshapen_result_is_a_failure_of_its_request(server, protocol, content):
    """Nothing is made up from what a line lacks."""
    async with provider(server, protocol) as ours:
        line = json.dumps({"custom_id": ID_A, **content})
        found, _ = await ended(server, ours, protocol, raw(line))
    assert isinstance(found[ID_A], ServerError)


@BOTH
async def test_lines_may_be_long_and_the_last_one_open(server, protocol):
    """A line beyond the reader's buffer is read, and so is a last one without its line break."""
    async with provider(server, protocol) as ours:
        name = await ours.submit("batch-1", entries(ours, protocol, ID_A))
        server.end(lambda entry: answered("x" * 1_000_000))
        (result,) = await collected(ours, name)
        assert len(result.outcome.text) == 1_000_000
        operation = "content" if protocol == "openai" else "results"
        server.script(operation, raw_body(b'\n{"custom_id": "z"}\r\n\n{"custom_id": "y"}'))
        assert [result.custom_id for result in await collected(ours, name)] == ["z", "y"]


@BOTH
@pytest.mark.parametrize("outcome", [cut_off(), raw_body(b'{"custom_id": "z"}\n{"custom')])
async def test_results_that_break_off_are_no_results(server, protocol, outcome):
    """Half a download raises, so that what is missing isn't taken for failed."""
    async with provider(server, protocol) as ours:
        name = await ours.submit("batch-1", entries(ours, protocol, ID_A))
        server.end()
        server.script("content" if protocol == "openai" else "results", outcome)
        with pytest.raises(ConnectionFailedError):
            await collected(ours, name)


@BOTH
@pytest.mark.parametrize(
    ("outcome", "error", "code"),
    [
        (status(429, headers={"Retry-After": "7"}), RateLimitedError, 429),
        (status(400), RejectedError, 400),
        (status(401), RejectedError, 401),
        (status(500), UnconfirmedError, 500),
        (status(503, headers={"Retry-After": "7"}), UnconfirmedError, 503),
        (status(529), UnconfirmedError, 529),
        (reset(), UnconfirmedError, None),
        (cut_off(), UnconfirmedError, None),
        (document({}), UnconfirmedError, None),
        (raw_body(b"<html>"), UnconfirmedError, 200),
    ],
)
async def test_refused_is_told_from_unknown(server, protocol, outcome, error, code):
    """Only a refusal means that no batch was made."""
    async with provider(server, protocol) as ours:
        server.script("create", outcome)
        with pytest.raises(error) as caught:
            await ours.submit("batch-1", entries(ours, protocol, ID_A))
    assert type(caught.value) is error
    assert caught.value.status == code


@BOTH
async def test_without_a_connection_nothing_was_submitted(server, protocol):
    """A provider that can't be reached has taken nothing: the call may be repeated."""
    target = Target(provider=protocol, base_url="http://127.0.0.1:9/v1", key="k")
    async with aclosing(PROVIDERS[protocol](target)) as ours:
        with pytest.raises(ConnectionFailedError):
            await ours.submit("batch-1", entries(ours, protocol, ID_A))


async def test_a_failed_upload_made_no_batch(server):
    """An upload isn't paid, so it may be repeated."""
    async with provider(server, "openai") as ours:
        server.script("upload", status(500))
        with pytest.raises(ServerError):
            await ours.submit("batch-1", entries(ours, "openai", ID_A))
    assert not server.calls("create")


async def test_openai_knows_a_lost_batch_by_its_name(server):
    """It is found on whichever page it stands, and no other is taken for it."""
    server.page = 2
    since = datetime.now(UTC)
    async with provider(server, "openai") as ours:
        for n in range(5):
            server.script("create", carried_out(reset()))
            with pytest.raises(UnconfirmedError):
                await ours.submit(f"batch-{n}", entries(ours, "openai", ID_A))
        assert await ours.find("batch-1", size=1, since=since) == [Sighting("batch_1", True)]
        assert await ours.find("batch-9", size=1, since=since) == []
        pages = len(server.calls("list"))
        later = since + timedelta(hours=1)
        assert await ours.find("batch-9", size=1, since=later) == []
    assert len(server.calls("list")) == pages + 1, "pages that are too old aren't read"


async def test_a_list_that_runs_the_other_way_is_read_to_its_end(server):
    """Nobody promises that the newest come first."""
    server.page = 2
    async with provider(server, "openai") as ours:
        for n in range(4):
            await ours.submit(f"batch-{n}", entries(ours, "openai", ID_A))
        now = datetime.now(UTC)
        for n, batch in enumerate(server.batches):
            batch.created_at = now - timedelta(days=n)
        found = await ours.find("batch-0", size=1, since=now)
    assert found == [Sighting("batch_0", True)]


async def test_anthropic_shows_what_may_be_a_lost_batch(server):
    """Size and time fit; more can't be told before its results are there."""
    server.page = 2
    async with provider(server, "anthropic") as ours:
        for ids in ([ID_A], [ID_A, ID_B], [ID_B], [ID_A], [ID_B]):
            await ours.submit("batch-1", entries(ours, "anthropic", *ids))
        now = datetime.now(UTC)
        server.batches[0].created_at = now - timedelta(hours=1)
        server.batches[4].created_at = now + timedelta(hours=1)
        found = await ours.find("batch-1", size=1, since=now)
        assert found == [Sighting("msgbatch_3", False), Sighting("msgbatch_2", False)]
        assert await ours.find("batch-1", size=3, since=now) == []


@pytest.mark.parametrize(
    ("word", "is_ended"),
    [
        ("validating", False),
        ("in_progress", False),
        ("finalizing", False),
        ("cancelling", False),
        ("completed", True),
        ("expired", True),
        ("cancelled", True),
        ("something new", False),
    ],
)
async def test_openai_says_whether_a_batch_has_ended(server, word, is_ended):
    """Only the four words for an end are ends."""
    async with provider(server, "openai") as ours:
        name = await ours.submit("batch-1", entries(ours, "openai", ID_A, ID_B))
        server.end(lambda entry: errored() if entry.number else answered())
        server.batches[0].status = word
        state = await ours.status(name)
    assert (state.status, state.ended) == (word, is_ended)
    assert (state.counts.total, state.counts.succeeded, state.counts.failed) == (2, 1, 1)
    assert state.expires_at > datetime.now(UTC)
    assert (state.ended_at is not None) == is_ended


async def test_openai_says_why_a_batch_failed_as_a_whole(server):
    """A file that isn't valid has no results, but reasons."""
    async with provider(server, "openai") as ours:
        name = await ours.submit("batch-1", entries(ours, "openai", ID_A, ID_A))
        state = await ours.status(name)
        assert await collected(ours, name) == []
    assert (state.status, state.ended) == ("failed", True)
    assert "a line isn't what it must be" in state.problem


async def test_anthropic_says_how_a_batch_is_doing(server):
    """Counts, times and the end are read; archived results are gone."""
    async with provider(server, "anthropic") as ours:
        name = await ours.submit("batch-1", entries(ours, "anthropic", ID_A, ID_B))
        before = await ours.status(name)
        server.end(lambda entry: expired() if entry.number else answered())
        after = await ours.status(name)
        server.batches[0].archived = True
        gone = await ours.status(name)
    assert (before.status, before.ended, before.ended_at) == ("in_progress", False, None)
    assert (before.counts.total, before.counts.succeeded, before.counts.failed) == (2, 0, 0)
    assert (after.status, after.ended, after.problem) == ("ended", True, None)
    assert (after.counts.total, after.counts.succeeded, after.counts.failed) == (2, 1, 1)
    assert after.ended_at is not None
    assert "archived" in gone.problem


@BOTH
async def test_a_state_without_a_word_is_an_error(server, protocol):
    """An answer of another form isn't taken for a batch under way."""
    async with provider(server, protocol) as ours:
        server.script("get", document({"id": "x"}))
        with pytest.raises(ServerError, match="status"):
            await ours.status("x")


@pytest.mark.parametrize("name", ["mock:m", "gemini-2.5-pro", "ollama:llama3", "xai:grok-4"])
def test_other_providers_take_no_batches(name):
    """The refusal says which ones do."""
    env = {"GEMINI_API_KEY": "k", "XAI_API_KEY": "k"}
    with pytest.raises(ConfigError, match="OpenAI and Anthropic"):
        open_batch_provider(parse_model(name), Settings(env=env))
