"""From a model id to its provider."""

from contextlib import aclosing

import pytest

from faultserver import (
    FaultServer,
)
from heretix.core.errors import (
    ConfigError,
    MissingKeyError,
    ModelError,
)
from heretix.core.settings import Settings
from heretix.providers.anthropic import AnthropicProvider
from heretix.providers.base import Request
from heretix.providers.catalog import Options, endpoints, open_provider, parse_model, resolve_model
from heretix.providers.compatible import CompatibleProvider
from heretix.providers.gemini import GeminiProvider
from heretix.providers.openai import OpenAIProvider

ENDPOINTS = endpoints()
# `inspect` is asked through a library of its own: tests/test_evals.py.
HTTP_PROVIDERS = [n for n, at in ENDPOINTS.items() if not at.in_process and n != "inspect"]
ADAPTERS = {
    "openai": OpenAIProvider,
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
    "openai-compatible": CompatibleProvider,
}
KEYS = {e.key_variable: "k-1" for e in ENDPOINTS.values() if e.key_variable}
REQUEST = Request(model="m", system="s", user="u", max_output_tokens=1)


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


@pytest.mark.parametrize("name", ["sim:slow?latency_s=0.2", "sim:x?hel=much", "mock:m?nothing=1"])
def test_a_planted_model_that_cannot_be_is_refused_before_it_is_planned(name):
    """What it would do stands in its name, so nobody has to call it to find out."""
    with pytest.raises(ModelError, match=name.partition("?")[0]):
        resolve_model(name, Settings())
