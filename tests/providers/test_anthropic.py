"""Anthropic's Messages API, with the official SDK as the oracle for what is sent."""

import pytest
from conformance import KEY, ProviderConformance

from heretix.providers.anthropic import AnthropicProvider, build_body, read_reply
from heretix.providers.base import ANSWER_SCHEMA, Request
from heretix.providers.http import HttpReply, Target
from heretix.sample import Finish

PLAIN = Request(
    model="claude-sonnet-5-5", system="Be brief.", user='Is "{x}|y" so?', max_output_tokens=64
)
FULL = Request(
    model="claude-opus-5",
    system="Be brief.",
    user="So?",
    max_output_tokens=64,
    reasoning_effort="low",
    answer_schema={"type": "object", "additionalProperties": False},
    seed=7,
)
TARGET = Target(provider="anthropic", base_url="http://h")


def read(body):
    return read_reply(TARGET, HttpReply(200, {}, body))


class TestAnthropic(ProviderConformance):
    """The suite, with the official SDK as the oracle."""

    name, key_variable = "anthropic", "ANTHROPIC_API_KEY"
    requests = (PLAIN, FULL)
    compared_headers = ("authorization", "x-api-key", "anthropic-version", "content-type")

    def open(self, target):
        """The adapter."""
        return AnthropicProvider(target)

    async def ask_sdk(self, base_url, request):
        """Send the request by the SDK."""
        import anthropic

        schema = request.answer_schema or ANSWER_SCHEMA
        config = {"format": {"type": "json_schema", "schema": schema}}
        if request.reasoning_effort is not None:
            config["effort"] = request.reasoning_effort
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=base_url, max_retries=0) as sdk:
            theirs = await sdk.messages.create(
                model=request.model,
                system=request.system,
                messages=[{"role": "user", "content": request.user}],
                max_tokens=request.max_output_tokens,
                output_config=config,
            )
        return theirs.content[0].text


def test_a_temperature_is_never_sent():
    """The API no longer takes one, so none is sent and none is reported."""
    warm = Request(model="m", system="", user="u", max_output_tokens=1, temperature=1.0, seed=7)
    assert build_body(warm).keys() == {"model", "messages", "max_tokens", "output_config"}
    assert read({"content": []}).temperature is None


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("max_tokens", Finish.TRUNCATED),
        ("model_context_window_exceeded", Finish.TRUNCATED),
        ("refusal", Finish.REFUSED),
        (None, Finish.STOP),
    ],
)
def test_the_ending_is_read(reason, finish):
    """Cut off, refused, or just done."""
    assert read({"content": [], "stop_reason": reason}).finish is finish


def test_only_text_is_the_answer():
    """Thinking comes in blocks of its own; text blocks are joined."""
    content = [
        {"type": "thinking", "thinking": "hm", "text": "hm"},
        {"type": "text", "text": '{"prob_true"'},
        {"type": "text", "text": ": 1}"},
    ]
    assert read({"content": content}).text == '{"prob_true": 1}'


@pytest.mark.parametrize(
    ("usage", "tokens_in", "tokens_out"),
    [
        ({"input_tokens": 5, "output_tokens": 2}, 5, 2),
        ({"input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 2}, 105, 2),
        ({"input_tokens": 5, "cache_creation_input_tokens": None}, 5, None),
        ({"cache_read_input_tokens": 100}, None, None),
    ],
)
def test_cached_tokens_were_read_too(usage, tokens_in, tokens_out):
    """The three counts of input are summed; a missing count stays missing."""
    reply = read({"content": [], "usage": usage})
    assert (reply.tokens_in, reply.tokens_out) == (tokens_in, tokens_out)
