"""From a model id to its provider, and what every adapter makes of real answers and faults."""

import logging
import socket
import subprocess
import sys
from contextlib import aclosing
from types import SimpleNamespace

import aiohttp
import pytest

from faultserver import (
    ANSWER,
    BASE_PATHS,
    FaultServer,
    answer,
    cut_off,
    document,
    empty,
    gibberish,
    not_json,
    raw,
    redirect,
    reset,
    silence,
    status,
)
from heretix.core.errors import (
    CallTimeoutError,
    ConfigError,
    ConnectionFailedError,
    MissingKeyError,
    ModelError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    ServerError,
)
from heretix.core.settings import Settings
from heretix.providers.anthropic import AnthropicProvider
from heretix.providers.base import Request
from heretix.providers.catalog import Options, endpoints, parse_model
from heretix.providers.compatible import CompatibleProvider
from heretix.providers.gemini import GeminiProvider
from heretix.providers.openai import OpenAIProvider
from heretix.providers.registry import open_provider, resolve_model
from heretix.sample import Finish

ENDPOINTS = endpoints()
HTTP_PROVIDERS = [name for name, at in ENDPOINTS.items() if not at.in_process]
ADAPTERS = {
    "openai": OpenAIProvider,
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
    "openai-compatible": CompatibleProvider,
}
KEYS = {e.key_variable: "k-1" for e in ENDPOINTS.values() if e.key_variable}
REQUEST = Request(model="m", system="s", user="u", max_output_tokens=1)
KEY = "sk-a-secret-that-must-not-be-seen"
MODELS = {
    "openai": "gpt-5",
    "openai-compatible": "openai-compatible:some-model",
    "anthropic": "claude-sonnet-5-5",
    "gemini": "gemini-3-pro",
}
VARIABLES = {
    "openai": "OPENAI_API_KEY",
    "openai-compatible": "HERETIX_COMPATIBLE_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
}
SETTINGS = Settings(env=dict.fromkeys(VARIABLES.values(), KEY))

every_protocol = pytest.mark.parametrize("protocol", list(MODELS))


@pytest.fixture(scope="module")
def running():
    with FaultServer() as server:
        yield server


@pytest.fixture
def server(running):
    running.forget()
    return running


def opened(server, protocol, timeout_s=120.0):
    options = Options(base_url=server.url(protocol))
    return open_provider(
        parse_model(MODELS[protocol]), SETTINGS, options=options, timeout_s=timeout_s
    )


async def ask(server, protocol, timeout_s=120.0):
    request = Request(
        model=parse_model(MODELS[protocol]).name,
        system="Answer in JSON.",
        user="Is it so?",
        max_output_tokens=64,
    )
    async with aclosing(opened(server, protocol, timeout_s)) as provider:
        return await provider.ask(request)


async def failure_of(server, protocol, outcome, timeout_s=120.0):
    server.script(outcome)
    with pytest.raises(ProviderError) as caught:
        await ask(server, protocol, timeout_s)
    return caught.value


# Opening


@pytest.mark.parametrize("provider", HTTP_PROVIDERS)
async def test_every_provider_in_the_catalog_opens(provider):
    """Each adapter speaks its protocol, with the provider's key, at the address that was given."""
    model = parse_model(f"{provider}:m")
    kind = provider if provider in ADAPTERS else "openai-compatible"
    with FaultServer() as server:
        opened = open_provider(
            model, Settings(env=KEYS), options=Options(base_url=server.url(kind))
        )
        async with aclosing(opened):
            await opened.ask(REQUEST)
        (call,) = server.calls
    assert type(opened) is ADAPTERS[kind]
    assert opened.max_concurrency >= 64
    assert call.protocol == kind
    assert ("k-1" in str(call.headers)) == (model.endpoint.key_variable is not None)


@pytest.mark.parametrize("provider", [p for p in HTTP_PROVIDERS if ENDPOINTS[p].needs_key])
def test_a_missing_key_is_named(provider):
    """Nothing opens without the key that it needs."""
    variable = ENDPOINTS[provider].key_variable
    with pytest.raises(MissingKeyError, match=variable):
        open_provider(parse_model(f"{provider}:m"), Settings(env={}))


@pytest.mark.parametrize("provider", [p for p in HTTP_PROVIDERS if ENDPOINTS[p].base_url])
def test_a_home_address_is_used_when_none_is_given(provider):
    """Every address in the catalog is one that can be called."""
    open_provider(parse_model(f"{provider}:m"), Settings(env=KEYS))


def test_a_server_of_ones_own_needs_an_address():
    """The message says all three ways to give one."""
    with pytest.raises(ConfigError, match=r"`base_url`.*--base-url.*HERETIX_BASE_URL"):
        open_provider(parse_model("openai-compatible:m"), Settings())


async def test_a_key_with_a_line_break_at_its_end_works():
    """What copying a key often adds is taken off."""
    with FaultServer() as server:
        options = Options(base_url=server.url("openai"))
        settings = Settings(env={"OPENAI_API_KEY": " k-1\n"})
        async with aclosing(open_provider(parse_model("gpt-5"), settings, options=options)) as p:
            await p.ask(REQUEST)
        assert server.calls[0].headers["authorization"] == "Bearer k-1"


def test_a_bad_timeout_is_refused():
    """The timeout reaches the connection."""
    with pytest.raises(ConfigError, match="`timeout_s`"):
        open_provider(parse_model("ollama:m"), Settings(), timeout_s=0.0)


def test_the_registry_is_light():
    """Importing it loads neither the network nor an adapter."""
    code = (
        "import sys, heretix.providers.registry; "
        "print([m for m in sys.modules if m in {'aiohttp', 'xllamacpp', 'numpy'} "
        "or m.startswith('heretix.providers.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(eval(done.stdout)) == {
        "heretix.providers.base",
        "heretix.providers.catalog",
        "heretix.providers.registry",
    }


# What every adapter makes of an answer


@every_protocol
async def test_an_answer_arrives_whole(server, protocol):
    """The text, who answered, and what it cost come back from every protocol."""
    reply = await ask(server, protocol)
    assert (reply.text, reply.finish) == (ANSWER, Finish.STOP)
    assert (reply.tokens_in, reply.tokens_out) == (50, 9)
    assert reply.provider_model_id.startswith(server.calls[0].model)
    assert reply.response_id.endswith("0")
    assert reply.temperature is None


@every_protocol
@pytest.mark.parametrize("text", ["", " \n", "```json\n{}\n```", "I'd say 70%.", '{"prob_true":'])
async def test_text_is_left_as_it_came(server, protocol, text):
    """Whatever the model wrote is passed on untouched: compliance is judged elsewhere."""
    server.script(answer(text))
    reply = await ask(server, protocol)
    assert (reply.text, reply.finish) == (text, Finish.STOP)


@every_protocol
async def test_a_truncated_answer_says_so(server, protocol):
    """Running out of tokens is an ending of its own."""
    server.script(answer('{"prob_', "truncated"))
    reply = await ask(server, protocol)
    assert (reply.text, reply.finish) == ('{"prob_', Finish.TRUNCATED)


@every_protocol
async def test_a_refusal_says_so(server, protocol):
    """A refusal is an answer, not an error, and its words are kept."""
    server.script(answer("I won't.", "refused"))
    reply = await ask(server, protocol)
    assert (reply.text, reply.finish) == ("I won't.", Finish.REFUSED)


# What every adapter makes of a fault


@every_protocol
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, RejectedError),
        (401, RejectedError),
        (402, RejectedError),
        (403, RejectedError),
        (404, RejectedError),
        (413, RejectedError),
        (422, RejectedError),
        (408, ServerError),
        (409, ServerError),
        (425, ServerError),
        (429, RateLimitedError),
        (500, ServerError),
        (503, ServerError),
        (529, ServerError),
    ],
)
async def test_each_status_has_its_error(server, protocol, code, error):
    """A status decides whether the call is worth another try; the provider's words are kept."""
    failure = await failure_of(server, protocol, status(code, "the provider's own words"))
    assert type(failure) is error
    assert failure.status == code
    assert "the provider's own words" in str(failure)
    assert f"`{protocol}`" in str(failure)


@every_protocol
@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_key_names_its_variable(server, protocol, code):
    """The message says which variable to look at."""
    failure = await failure_of(server, protocol, status(code, "no"))
    assert f"check {VARIABLES[protocol]}" in str(failure)


@every_protocol
@pytest.mark.parametrize(
    "outcome",
    [empty(), not_json(), raw(b"\xff\xfe\x00"), document([1]), document(7), raw(b"[" * 200_000)],
    ids=["empty", "page", "bytes", "list", "number", "deep"],
)
async def test_a_broken_gateway_is_worth_another_try(server, protocol, outcome):
    """Status 200 with a body that isn't a JSON object is the server's failure."""
    failure = await failure_of(server, protocol, outcome)
    assert type(failure) is ServerError
    assert failure.status == 200


@every_protocol
async def test_an_answer_of_another_protocol_is_worth_another_try(server, protocol):
    """JSON without what the protocol promises is an error, never an empty answer."""
    failure = await failure_of(server, protocol, document({"id": "1", "object": "surprise"}))
    assert type(failure) is ServerError
    assert "`base_url`" in str(failure)


@every_protocol
@pytest.mark.parametrize("outcome", [reset(), cut_off()], ids=["reset", "cut_off"])
async def test_a_broken_connection_is_worth_another_try(server, protocol, outcome):
    """A connection that breaks before or within the answer is no answer."""
    failure = await failure_of(server, protocol, outcome)
    assert type(failure) is ConnectionFailedError
    assert isinstance(failure.__cause__, aiohttp.ClientError)


@pytest.mark.timeout(60)
@every_protocol
async def test_silence_ends_at_the_timeout(server, protocol):
    """A server that never answers is left after `timeout_s`."""
    failure = await failure_of(server, protocol, silence(), timeout_s=0.05)
    assert type(failure) is CallTimeoutError
    assert "0.05 s" in str(failure)


@every_protocol
async def test_no_server_is_a_failed_connection(protocol):
    """Nobody listening is worth another try: servers restart."""
    # Bound and not listening: nobody else is given the port meanwhile.
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        gone = SimpleNamespace(url=lambda name: f"http://127.0.0.1:{port}{BASE_PATHS[name]}")
        with pytest.raises(ConnectionFailedError, match="`base_url`"):
            await ask(gone, protocol)


@every_protocol
async def test_a_wait_in_seconds_is_kept(server, protocol):
    """`Retry-After: 7` reaches the runner as 7 seconds."""
    failure = await failure_of(server, protocol, status(429, headers={"Retry-After": "7"}))
    assert failure.retry_after_s == 7.0


@every_protocol
async def test_a_wait_until_a_date_is_kept(server, protocol):
    """`Retry-After` as a date is counted by the server's own clock."""
    headers = {
        "Date": "Sun, 15 Nov 2026 20:00:00 GMT",
        "Retry-After": "Sun, 15 Nov 2026 20:01:30 GMT",
    }
    failure = await failure_of(server, protocol, status(429, headers=headers))
    assert failure.retry_after_s == 90.0


# Secrets


def chain(exc):
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


@every_protocol
@pytest.mark.parametrize(
    "outcome",
    [
        status(400, f"bad key {KEY}"),
        status(401, "x" * 280 + KEY),
        status(503, f"bad key {KEY}"),
        raw(f"<p>{KEY}".encode()),
        raw(f"<p>{KEY}".encode(), 502),
        document({"detail": KEY}, 400),
        redirect(f"http://h/?key={KEY}"),
        document({"error": {"message": KEY}, "status": "failed"}),
        gibberish(),
        cut_off(),
        reset(),
    ],
)
async def test_the_key_is_never_shown(server, protocol, outcome, caplog):
    """Nothing printable of a failure holds the key, even if the server repeats it."""
    caplog.set_level(logging.DEBUG)
    failure = await failure_of(server, protocol, outcome)
    assert KEY in str(server.calls[0].headers), "the key was sent, or the test shows nothing"
    for link in chain(failure):
        assert KEY[:12] not in f"{link} {link!r} {link.args} {vars(link)}"
    assert KEY not in caplog.text


@pytest.mark.parametrize("name", ["sim:slow?latency_s=0.2", "sim:x?hel=much", "mock:m?nothing=1"])
def test_a_planted_model_that_cannot_be_is_refused_before_it_is_planned(name):
    """What it would do stands in its name, so nobody has to call it to find out."""
    with pytest.raises(ModelError, match=name.partition("?")[0]):
        resolve_model(name, Settings())
