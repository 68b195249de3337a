"""The transport, and what every adapter makes of real HTTP faults."""

import asyncio
import socket
import ssl
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_reqrep import ConnectionKey, RequestInfo
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from faultserver import (
    FaultServer,
    answer,
    document,
    redirect,
    status,
    together,
)
from heretix.core.errors import (
    CallTimeoutError,
    ConfigError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    RetryableError,
    ServerError,
)
from heretix.providers import anthropic, compatible, gemini, http, openai
from heretix.providers.base import Reply
from heretix.providers.http import (
    HttpClient,
    HttpReply,
    Target,
    as_count,
    as_text,
    make_transport_error,
    read_response,
    read_wait_s,
)

KEY = "sk-a-secret-that-must-not-be-seen"
TARGET = Target(provider="p", base_url="http://h/v1", key=KEY, key_variable="P_KEY")


@pytest.fixture(scope="module")
def running():
    with FaultServer() as server:
        yield server


@pytest.fixture
def server(running):
    running.forget()
    return running


def at(server):
    return Target(provider="p", base_url=server.url("openai") + "/")


async def failure_of(server, outcome):
    server.script(outcome)
    async with aclosing(HttpClient(at(server), {})) as client:
        with pytest.raises(ProviderError) as caught:
            await client.post("/responses", {"model": "m"})
    return caught.value


# What an answer stands for


async def test_a_wait_is_kept_whatever_the_status(server):
    """An overloaded server that says how long to wait is obeyed like a rate limit."""
    failure = await failure_of(server, status(529, headers={"Retry-After": "3"}))
    assert type(failure) is RateLimitedError
    assert (failure.status, failure.retry_after_s) == (529, 3.0)


async def test_a_server_may_say_whether_to_retry(server):
    """`x-should-retry` overrules the status, both ways."""
    failure = await failure_of(server, status(500, headers={"x-should-retry": "false"}))
    assert type(failure) is RejectedError
    failure = await failure_of(server, status(400, headers={"x-should-retry": "true"}))
    assert type(failure) is ServerError


async def test_a_spent_account_is_not_retried(server):
    """OpenAI sends 429 when the money is gone; waiting doesn't bring it back."""
    error = {"message": "You exceeded your current quota", "code": "insufficient_quota"}
    failure = await failure_of(server, document({"error": error}, 429))
    assert type(failure) is RejectedError


async def test_redirects_are_not_followed(server):
    """The key doesn't travel to another host, and the message says where it was sent."""
    with FaultServer() as elsewhere:
        place = elsewhere.origin + "/v1/responses"
        failure = await failure_of(server, redirect(place))
        assert type(failure) is RejectedError
        assert place in str(failure)
        assert elsewhere.calls == []


def test_the_key_is_in_no_repr():
    """Printing the parts shows no key."""
    provider = openai.OpenAIProvider(TARGET)
    assert KEY not in f"{TARGET!r} {HttpClient(TARGET, {'Authorization': KEY})!r} {provider!r}"


def test_messages_are_one_printable_line():
    """A server can't send commands to the terminal or flood it."""
    payload = b'{"error": {"message": "\\u001b[31mred\\nline ' + b"x" * 5000 + b'"}}'
    with pytest.raises(RejectedError) as caught:
        read_response(TARGET, 400, CIMultiDict(), payload)
    message = str(caught.value)
    assert message.isprintable()
    assert "red line xxx" in message
    assert len(message) < 400


# The client


async def test_a_reply_keeps_its_headers(server):
    """Rate-limit headers are at hand, in any case."""
    async with aclosing(HttpClient(at(server), {})) as client:
        reply = await client.post("/responses", {"model": "m"})
    assert reply.status == 200
    assert reply.headers["X-RateLimit-Remaining-Requests"] == "41"
    assert reply.body["object"] == "response"


async def test_connections_are_kept_and_cookies_are_not(server):
    """The second call reuses the first one's connection, and carries nothing over from it."""
    cookie = document({"output": []}, headers={"Set-Cookie": "a=b"})
    server.script(cookie, cookie)
    # By name: cookies of bare addresses are never kept.
    target = Target(provider="p", base_url=server.url("openai").replace("127.0.0.1", "localhost"))
    async with aclosing(HttpClient(target, {})) as client:
        await client.post("/responses", {"model": "m"})
        await client.post("/responses", {"model": "m"})
    first, second = server.calls
    assert first.peer == second.peer
    assert "cookie" not in second.headers


async def test_the_client_sets_no_bound_of_its_own(server):
    """As many calls are under way as the caller makes: here more than aiohttp's usual 100."""
    count = 130
    server.always(together(count, answer()))
    async with aclosing(HttpClient(at(server), {})) as client:
        calls = [client.post("/responses", {"model": "m"}) for _ in range(count)]
        replies = await asyncio.gather(*calls)
    assert len(replies) == count


def subclasses(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from subclasses(sub)


def instance_of(kind):
    """An exception of this kind, made as aiohttp makes it."""
    place = ConnectionKey("h", 443, True, True, None, None, None)
    sent = CIMultiDictProxy(CIMultiDict({"Authorization": KEY}))
    if issubclass(kind, aiohttp.ClientResponseError):
        return kind(RequestInfo(URL("http://h"), "POST", sent), ())
    if issubclass(kind, UnixClientConnectorError):
        return kind("/socket", place, OSError(111, "refused"))
    if issubclass(kind, aiohttp.ClientConnectorCertificateError):
        return kind(place, ssl.CertificateError("expired"))
    if issubclass(kind, aiohttp.ClientConnectorError):
        return kind(place, OSError(111, "refused"))
    if issubclass(kind, aiohttp.ServerFingerprintMismatch):
        return kind(b"a", b"b", "h", 443)
    if issubclass(kind, aiohttp.InvalidURL):
        return kind("http://h")
    return kind()


FOREIGN = sorted(
    {kind for kind in subclasses(aiohttp.ClientError) if kind.__module__.startswith("aiohttp")},
    key=lambda kind: kind.__name__,
)
HOPELESS = (
    aiohttp.InvalidURL,
    aiohttp.NonHttpUrlClientError,
    aiohttp.RedirectClientError,
    aiohttp.TooManyRedirects,
)


@pytest.mark.parametrize("kind", [*FOREIGN, TimeoutError, ConnectionResetError, ssl.SSLError])
def test_every_foreign_exception_is_mapped(kind):
    """All that aiohttp can raise becomes one of our errors: only a wrong address is final."""
    failure = make_transport_error(TARGET, instance_of(kind))
    assert isinstance(failure, RejectedError if issubclass(kind, HOPELESS) else RetryableError)
    assert isinstance(failure, CallTimeoutError) == issubclass(kind, TimeoutError)
    assert KEY not in str(failure)


def test_the_walk_finds_what_aiohttp_has():
    """The list of foreign exceptions isn't empty by accident."""
    assert len(FOREIGN) > 25
    assert aiohttp.ClientConnectorDNSError in FOREIGN


# Waiting


@pytest.mark.parametrize(
    ("headers", "error", "wait_s"),
    [
        ({}, {}, None),
        ({"retry-after": "0"}, {}, 0.0),
        ({"Retry-After": "1.5"}, {}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, {}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, {}, 9.0),
        ({"retry-after": "-1"}, {}, None),
        ({"retry-after": "nan"}, {}, None),
        ({"retry-after": "inf"}, {}, None),
        ({"retry-after": "tomorrow"}, {}, None),
        ({"retry-after": "Sun, 15 Nov 99999999999999999999 20:00:00 GMT"}, {}, None),
        ({"retry-after": "Sun, 15 Nov 2020 20:00:00 GMT"}, {}, 0.0),
        ({}, {"details": [{"@type": "Help"}, {"retryDelay": "45.5s"}]}, 45.5),
        ({}, {"details": [{"retryDelay": 45}, "x", None]}, None),
        ({"retry-after": "2"}, {"details": [{"retryDelay": "45s"}]}, 2.0),
    ],
)
def test_a_stated_wait_is_read(headers, error, wait_s):
    """Seconds, milliseconds, a date or Google's duration; nonsense is no wait at all."""
    assert read_wait_s(CIMultiDict(headers), error) == pytest.approx(wait_s)


def test_a_date_without_the_servers_clock_is_counted_by_ours():
    """Without a `Date` header, the local clock has to do."""
    later = datetime.now(UTC) + timedelta(hours=1)
    headers = {"retry-after": later.strftime("%a, %d %b %Y %H:%M:%S GMT")}
    assert 3500 < read_wait_s(CIMultiDict(headers), {}) <= 3600


# Values at the door


@pytest.mark.parametrize(
    "base_url",
    ["", "localhost:8000", "ftp://h/v1", "http://", "https:///v1", "http://h:x/v1", "http://[::1"],
)
def test_a_base_url_must_be_one(base_url):
    """An address that can't work is refused before anything is sent."""
    with pytest.raises(ConfigError, match="`base_url` must look like"):
        Target(provider="p", base_url=base_url)


@pytest.mark.parametrize("base_url", [f"http://u:{KEY}@h", f"http://h?k={KEY}", f"http://h#{KEY}"])
def test_a_base_url_holds_no_secret(base_url):
    """Secrets in an address would be shown in messages and records; they aren't shown here."""
    with pytest.raises(ConfigError, match="`base_url` must hold no user") as caught:
        Target(provider="p", base_url=base_url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("tail", ["\n", "\r\nX-Evil: 1", "\x00", "é"])
def test_a_key_must_fit_a_header(tail):
    """A key that would break a header is refused by the name of its variable."""
    with pytest.raises(ConfigError, match="`P_KEY`") as caught:
        Target(provider="p", base_url="http://h", key=KEY + tail, key_variable="P_KEY")
    assert KEY not in str(caught.value)


async def test_what_arrived_while_the_process_stood_still_is_read():
    """Its time is over when it goes on, and the answer is there; without one, that is all."""
    here, there = socket.socketpair()
    loop, bound = asyncio.get_running_loop(), 0.01

    def stand_still():
        time.sleep(10 * bound)
        there.send(b"x")

    with here, there:
        here.setblocking(False)
        async with http._within(bound):
            loop.call_soon(stand_still)
            assert await loop.sock_recv(here, 1) == b"x"
        with pytest.raises(TimeoutError):
            async with http._within(bound):
                await loop.sock_recv(here, 1)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_timeout_must_be_positive(timeout_s):
    """No time at all is a mistake, not a way to wait for ever."""
    with pytest.raises(ConfigError, match="`timeout_s`"):
        Target(provider="p", base_url="http://h", timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("value", "text"),
    [("a\ud800b", "a\ufffdb"), ("\U0001f600", "\U0001f600"), ("\ufeffa\0", "\ufeffa\0"), (7, None)],
)
def test_text_can_be_stored(value, text):
    """Half of a surrogate pair is replaced; everything else stays."""
    assert as_text(value) == text


@pytest.mark.parametrize(
    ("value", "count"), [(0, 0), (7, 7), (-1, None), (True, None), (1.0, None), ("7", None)]
)
def test_a_count_is_a_whole_number(value, count):
    """A count that isn't one is missing, never 0."""
    assert as_count(value) == count


# fmt: off
NAMES = st.sampled_from([
    "error", "code", "message", "status", "output", "type", "phase", "content", "text", "refusal",
    "usage", "input_tokens", "output_tokens", "incomplete_details", "reason", "choices",
    "finish_reason", "prompt_tokens", "completion_tokens", "total_tokens", "model", "id",
    "stop_reason", "promptFeedback", "blockReason", "candidates", "parts", "thought",
    "finishReason", "usageMetadata", "candidatesTokenCount", "details",
])
# fmt: on
WORDS = st.sampled_from(["failed", "message", "output_text", "refusal", "text", "error", "\ud800"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=25,
)


@given(body=st.dictionaries(NAMES, JSON, max_size=8))
@pytest.mark.parametrize("adapter", [openai, compatible, anthropic, gemini])
def test_no_answer_is_too_odd(adapter, body):
    """Whatever JSON comes back is a reply or one of our errors, and can be stored."""
    with suppress(ProviderError):
        reply = adapter.read_reply(TARGET, HttpReply(200, CIMultiDict(), body))
        assert isinstance(reply, Reply)
        reply.text.encode()


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("http://localhost:11434/v1", "start the server there"),
        ("http://[::1]:8000", "start the server there"),
        ("https://api.example.org/v1", "check the network"),
    ],
)
def test_the_remedy_for_a_lost_connection_fits_where_it_led(address, remedy):
    """On one's own machine the network is seldom to blame."""
    failure = make_transport_error(
        replace(TARGET, base_url=address), aiohttp.ClientConnectionError()
    )
    assert remedy in str(failure)
