"""The benchmark's own server, spoken to by Heretix's own providers."""

import asyncio
import contextlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from heretix.core.errors import ConnectionFailedError, RateLimitedError, ServerError
from heretix.providers.base import Request
from heretix.providers.compatible import CompatibleProvider, Dialect
from heretix.providers.http import Target
from heretix.providers.openai import OpenAIProvider
from heretix.sample import read_answer

SCRIPT = Path(__file__).parent.parent / "bench" / "server.py"
_spec = importlib.util.spec_from_file_location("bench_server", SCRIPT)
bench = sys.modules["bench_server"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


def asked(user="So?", seed=0):
    return Request(model="sim", system="Be brief.", user=user, max_output_tokens=64, seed=seed)


@contextlib.asynccontextmanager
async def talking(adapter=CompatibleProvider, options=None, **behaviour):
    """A server of this behaviour and a provider that calls it."""
    async with bench.Server(bench.Behaviour(**behaviour)) as server:
        target = Target(provider="openai-compatible", base_url=server.base_url)
        async with contextlib.aclosing(adapter(target, *(options or ()))) as provider:
            yield server, provider


async def outcome(provider, request=None):
    try:
        return await provider.ask(request or asked())
    except (ConnectionFailedError, RateLimitedError, ServerError) as exc:
        return exc


async def until(condition):
    """Let the loop turn until something is so."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def http(server, text):
    """The status and the body that come back for these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(text.encode())
    with contextlib.closing(writer):
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("adapter", [CompatibleProvider, OpenAIProvider])
async def test_both_protocols_answer_by_the_prompt(adapter):
    """Whatever the protocol: a compliant answer, the same for the same prompt, with its usage."""
    async with talking(adapter) as (server, provider):
        first, again, other = [await provider.ask(asked(user)) for user in ("a", "a", "b")]
    assert read_answer(first.text).prob_true == bench.prob_true_of("Be brief.\n\na")
    assert (first.text == again.text, first.text == other.text) == (True, False)
    assert (first.provider_model_id, first.tokens_in, first.tokens_out) == ("sim", 3, 9)
    assert first.response_id != again.response_id
    assert server.statistics.outcomes == {"answered": 3}


async def test_a_seed_makes_another_sample():
    """Replicates differ where the client seeds them."""
    async with talking(options=[Dialect(seed=True)]) as (_, provider):
        texts = [(await provider.ask(asked(seed=seed))).text for seed in (1, 2, 1)]
    assert (texts[0] == texts[1], texts[0] == texts[2]) == (False, True)


async def test_connections_are_kept_and_calls_overlap():
    """Calls at once are served at once, over connections that later calls use again."""
    async with talking(latency_ms=1000, jitter_ms=50) as (server, provider):
        for _ in range(2):
            await asyncio.gather(*(provider.ask(asked(str(n))) for n in range(8)))
        seen = server.statistics
    assert (seen.requests, seen.max_in_flight, seen.in_flight, seen.connections) == (16, 8, 0, 8)
    assert seen.last_at_s - seen.first_at_s >= 0.2


async def test_the_rate_is_limited_and_said():
    """Past the limit comes 429 with the wait, and every reply says what is left, as OpenAI does."""
    async with talking(rpm=2, window_s=60.0) as (server, provider):
        got = [await outcome(provider) for _ in range(3)]
        limits = server.limit_headers()
    assert [isinstance(reply, RateLimitedError) for reply in got] == [False, False, True]
    assert 0 < got[2].retry_after_s <= 30
    assert server.statistics.outcomes == {"answered": 2, "limited": 1}
    assert "x-ratelimit-limit-requests: 2\r\nx-ratelimit-remaining-requests: 0\r\n" in limits


def test_a_bucket_fills_evenly():
    """A limit lets a window's worth through at once, then its rate and no more."""
    bucket = bench.Bucket(per_minute=3000, window_s=1.0, now=0.0)
    for _ in range(50):
        assert bucket.wait_s(1, 0.0) == 0
        bucket.take(1)
    assert bucket.wait_s(1, 0.0) == pytest.approx(0.02)
    assert bucket.wait_s(1, 0.021) == 0
    bucket.take(1)
    assert bucket.wait_s(1, 0.021) > 0
    # It never holds more than a window's worth, however long it stood.
    assert bucket.wait_s(50, 1000.0) == 0
    bucket.take(50)
    assert bucket.wait_s(1, 1000.0) > 0


async def test_tokens_are_limited():
    """A long prompt empties the bucket of tokens for the next one."""
    async with talking(tpm=60) as (_, provider):
        got = [await outcome(provider, asked("word " * 20)) for _ in range(2)]
    assert [isinstance(reply, RateLimitedError) for reply in got] == [False, True]


async def test_places_are_limited():
    """More calls at once than there are places: 429, with no wait that nobody could know."""
    async with talking(latency_ms=60_000, max_concurrent=2) as (server, provider):
        calls = [asyncio.create_task(outcome(provider)) for _ in range(3)]
        (third,), served = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert isinstance(third.result(), RateLimitedError)
        assert third.result().retry_after_s is None
        for call in served:
            call.cancel()
        await until(lambda: not server.statistics.in_flight)
    assert server.statistics.outcomes == {"abandoned": 2, "crowded": 1}


@pytest.mark.parametrize(
    ("fault", "error"),
    [("error", ServerError), ("reset", ConnectionFailedError), ("empty", ServerError)],
)
async def test_faults_are_errors_to_a_client(fault, error):
    """Each fault is what its name says."""
    async with talking(**{f"{fault}_share": 1.0}) as (server, provider):
        assert type(await outcome(provider)) is error
    assert server.statistics.outcomes == {fault: 1}


async def test_a_reset_is_a_reset():
    """The connection breaks as when a machine crashes; it isn't closed in good order."""
    async with bench.Server(bench.Behaviour(reset_share=1.0)) as server:
        body = json.dumps({"model": "sim", "input": "x"})
        head = f"POST /v1/responses HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        with pytest.raises(ConnectionResetError):
            await http(server, head + body)


async def test_malformed_answers_are_not_compliant():
    """Status 200, and a text that no run may use."""
    async with talking(malformed_share=1.0) as (server, provider):
        texts = {(await provider.ask(asked())).text for _ in range(60)}
    assert len(texts) > 3
    assert all(read_answer(text).noncompliance for text in texts)
    assert server.statistics.outcomes == {"malformed": 60}


async def test_slow_answers_come_all_the_same():
    """A slow answer is a good one, later."""
    async with talking(slow_share=1.0, slow_ms=15) as (server, provider):
        assert read_answer((await provider.ask(asked())).text).noncompliance is None
        seen = server.statistics
    assert seen.outcomes == {"slow": 1}
    assert seen.last_at_s - seen.first_at_s >= 0.015


async def test_shares_are_kept_and_repeat_with_the_seed():
    """The same seed brings the same faults in the same places, near their shares."""

    async def faults(seed):
        async with talking(error_share=0.2, empty_share=0.1, seed=seed) as (server, provider):
            got = [type(await outcome(provider)).__name__ for _ in range(200)]
            return got, server.statistics.outcomes

    (first, counts), (again, _), (other, _) = await faults(1), await faults(1), await faults(2)
    assert first == again
    assert first != other
    assert counts["error"] == pytest.approx(40, abs=20)
    assert counts["empty"] == pytest.approx(20, abs=14)


async def test_a_client_that_leaves_is_forgotten():
    """A call that was given up is counted as such, and holds no place."""
    async with talking(latency_ms=60_000) as (server, provider):
        call = asyncio.create_task(provider.ask(asked()))
        await until(lambda: server.statistics.in_flight)
        call.cancel()
        await until(lambda: not server.statistics.in_flight)
        assert server.statistics.outcomes == {"abandoned": 1}


async def test_what_is_not_a_request_is_refused():
    """Bad bodies, other paths and bodies without a length get their status, not a hang-up."""
    async with talking() as (server, _):
        post = "POST /v1/responses HTTP/1.1\r\n"
        assert (await http(server, post + "content-LENGTH: 2\r\n\r\n{}"))[0] == 400
        assert (await http(server, "GET /v1 HTTP/1.1\r\n\r\n"))[0] == 404
        assert (await http(server, post + "Transfer-Encoding: chunked\r\n\r\n"))[0] == 411
        status, statistics = await http(server, "GET /stats HTTP/1.1\r\n\r\n")
        models = await http(server, "GET /v1/models HTTP/1.1\r\n\r\n")
    assert (status, statistics["outcomes"], statistics["requests"]) == (200, {"refused": 1}, 1)
    assert models[1]["data"][0]["id"] == "sim"


@pytest.mark.parametrize("cut", [10, 400])
async def test_requests_may_come_in_pieces_or_together(cut):
    """TCP cuts where it likes: halves are put together, and what came too early waits."""
    body = json.dumps({"model": "sim", "input": "x" * 5000})
    whole = f"POST /v1/responses HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    async with bench.Server(bench.Behaviour(latency_ms=1)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(whole[:cut])
        await until(lambda: any(server.scratch))
        writer.write(whole[cut:] + whole + whole)
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        writer.close()
        assert (server.statistics.requests, server.statistics.max_in_flight) == (3, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.02, "20ms"),
        (0.9999, "1s"),
        (1.5, "1.5s"),
        (360, "6m0s"),
        (3723.5, "1h2m3.5s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds, text):
    """Milliseconds below a second, else hours, minutes and seconds."""
    assert bench.duration(seconds) == text


@pytest.mark.parametrize(
    "wrong",
    [{"error_share": 0.7, "empty_share": 0.4}, {"reset_share": -0.1}, {"rpm": 0}, {"jitter_ms": 1}],
)
def test_impossible_behaviour_is_refused(wrong):
    """Shares above one, limits of nothing and answers before their question aren't taken."""
    with pytest.raises(ValueError, match="must be"):
        bench.Behaviour(**wrong)


def test_it_runs_by_itself_until_its_starter_is_gone():
    """It prints its port, and its statistics when the other end of its stdin is closed."""
    command = [sys.executable, str(SCRIPT), "--port", "0", "--until-eof", "--rpm", "100"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert int(process.stdout.readline()) > 0
        process.stdin.close()
        assert json.loads(process.stdout.readline())["requests"] == 0
        assert process.wait(timeout=120) == 0
