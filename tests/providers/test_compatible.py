"""Chat Completions, with the official SDK as the oracle for what is sent."""

import asyncio
import logging
from contextlib import aclosing

import pytest
from conformance import KEY, ProviderConformance

from faultserver import ANSWER, answer, document, status, together
from heretix.core.errors import RateLimitedError, RejectedError, ServerError
from heretix.providers.base import ANSWER_SCHEMA, Request
from heretix.providers.compatible import (
    DIALECTS,
    CompatibleProvider,
    Dialect,
    build_body,
    read_reply,
)
from heretix.providers.http import HttpReply, Target
from heretix.sample import Finish

PLAIN = Request(model="llama", system="Be brief.", user='Is "{x}|y" so?', max_output_tokens=64)
FULL = Request(
    model="org/model:free",
    system="Be brief.",
    user="So?",
    max_output_tokens=64,
    temperature=0.5,
    reasoning_effort="low",
    answer_schema={"type": "object", "additionalProperties": False},
    seed=7,
)
TARGET = Target(provider="openrouter", base_url="http://h/v1", key_variable="OPENROUTER_API_KEY")
DEEPSEEK_SAYS = "This response_format type is unavailable now"


def opened(server, dialect=None, key="sk-1"):
    target = Target(provider="p", base_url=server.url("openai-compatible"), key=key)
    return CompatibleProvider(target, dialect)


def read(body):
    return read_reply(TARGET, HttpReply(200, {}, body))


def answered(message=None, **changes):
    choice = {"message": message or {"content": ANSWER}, "finish_reason": "stop"}
    return {"id": "c", "model": "m", "choices": [choice | changes.pop("choice", {})], **changes}


class TestCompatible(ProviderConformance):
    """The suite, with OpenAI's SDK as the oracle."""

    name, key_variable = "openai-compatible", "HERETIX_COMPATIBLE_API_KEY"
    base_path = "/v1"
    requests = (PLAIN, FULL)
    dialect = Dialect()

    def open(self, target):
        """The adapter."""
        return CompatibleProvider(target, self.dialect)

    async def ask_sdk(self, base_url, request):
        """Send the request by the SDK."""
        import openai

        optional = {}
        if request.temperature is not None:
            optional["temperature"] = request.temperature
        if request.reasoning_effort is not None:
            optional["reasoning_effort"] = request.reasoning_effort
        if self.dialect.seed:
            optional["seed"] = request.seed
        form = {"type": "json_object"}
        if self.dialect.json_schema:
            answer = {"name": "answer", "schema": request.answer_schema or ANSWER_SCHEMA}
            form = {"type": "json_schema", "json_schema": {**answer, "strict": True}}
        async with openai.AsyncOpenAI(api_key=KEY, base_url=base_url, max_retries=0) as sdk:
            theirs = await sdk.chat.completions.create(
                model=request.model,
                messages=[
                    {"role": "system", "content": request.system},
                    {"role": "user", "content": request.user},
                ],
                max_tokens=request.max_output_tokens,
                response_format=form,
                **optional,
            )
        assert theirs.system_fingerprint == "fp_1"
        return theirs.choices[0].message.content

    async def test_the_fingerprint_is_kept(self, server):
        """It tells versions of a server apart."""
        assert (await self.ask(server.origin)).fingerprint == "fp_1"


class TestDialect(TestCompatible):
    """A server that honours seeds and knows no schemas."""

    dialect = Dialect(seed=True, json_schema=False)


async def test_no_key_sends_no_authorization(server):
    """A server of one's own may need no key."""
    async with aclosing(opened(server, key=None)) as provider:
        await provider.ask(PLAIN)
    assert "authorization" not in server.calls[0].headers


def test_only_what_is_set_is_sent():
    """No temperature, effort, seed or system message unless asked for."""
    body = build_body(Request(model="m", system="", user="u", max_output_tokens=1, seed=7))
    assert body.keys() == {"model", "messages", "max_tokens", "response_format"}
    assert body["messages"] == [{"role": "user", "content": "u"}]


@pytest.mark.parametrize("provider", ["ollama", "vllm", "llamacpp"])
def test_servers_that_honour_seeds_get_one(provider):
    """The sample's own seed is sent where it makes a sample repeatable."""
    assert build_body(FULL, DIALECTS.get(provider))["seed"] == 7


@pytest.mark.parametrize("provider", ["openrouter", "xai", "deepseek", "openai-compatible"])
def test_hosted_and_unknown_servers_get_no_seed(provider):
    """A parameter that a server may reject isn't sent."""
    assert "seed" not in build_body(FULL, DIALECTS.get(provider))


def test_deepseek_is_known_to_take_no_schema():
    """The known case costs no failed call."""
    assert build_body(PLAIN, DIALECTS["deepseek"])["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    "complaint",
    [
        status(400, DEEPSEEK_SAYS),
        status(422, "response_format.type `json_schema` is unavailable now"),
        document({"error": "json_schema is not supported"}, 400),
    ],
)
async def test_a_server_without_schemas_is_asked_for_an_object(server, complaint, caplog):
    """The call is made again at once, and the finding is said once and remembered."""
    caplog.set_level(logging.WARNING)
    server.script(complaint)
    async with aclosing(opened(server)) as provider:
        replies = [await provider.ask(PLAIN) for _ in range(2)]
    assert [reply.text for reply in replies] == [ANSWER, ANSWER]
    forms = [call.body["response_format"]["type"] for call in server.calls]
    assert forms == ["json_schema", "json_object", "json_object"]
    assert server.calls[0].body["messages"] == server.calls[1].body["messages"]
    assert caplog.text.count("json_object") == 1


async def test_calls_under_way_find_out_together(server, caplog):
    """Every one of the calls that were refused is made again, and it is said once."""
    caplog.set_level(logging.WARNING)
    refusal = together(5, status(400, DEEPSEEK_SAYS))
    server.script(*[refusal] * 5)
    async with aclosing(opened(server)) as provider:
        replies = await asyncio.gather(*(provider.ask(PLAIN) for _ in range(5)))
    assert [reply.text for reply in replies] == [ANSWER] * 5
    assert len(server.calls) == 10
    assert caplog.text.count("json_object") == 1


@pytest.mark.parametrize(
    "complaint",
    [
        status(400, "max_tokens is too large"),
        status(400, "Invalid schema for response_format 'answer': no"),
        status(404, "json_schema is not a model"),
    ],
)
async def test_other_complaints_are_passed_on(server, complaint):
    """Only a complaint about the form of the answer changes it."""
    server.script(complaint)
    async with aclosing(opened(server)) as provider:
        with pytest.raises(RejectedError):
            await provider.ask(PLAIN)
        await provider.ask(PLAIN)
    assert [call.body["response_format"]["type"] for call in server.calls] == ["json_schema"] * 2


async def test_an_object_that_is_refused_too_is_an_error(server):
    """There is one fallback, not a loop."""
    server.always(status(400, DEEPSEEK_SAYS))
    async with aclosing(opened(server)) as provider:
        with pytest.raises(RejectedError, match="unavailable"):
            await provider.ask(PLAIN)
    assert len(server.calls) == 2


async def test_a_broken_first_try_teaches_nothing(server):
    """A passing failure doesn't change the form of later calls."""
    server.script(status(503, DEEPSEEK_SAYS), answer())
    async with aclosing(opened(server)) as provider:
        with pytest.raises(ServerError):
            await provider.ask(PLAIN)
        await provider.ask(PLAIN)
    assert server.calls[1].body["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", Finish.STOP),
        ("length", Finish.TRUNCATED),
        ("content_filter", Finish.REFUSED),
        ("something new", Finish.STOP),
        (None, Finish.STOP),
    ],
)
def test_the_ending_is_read(reason, finish):
    """Cut off, filtered, or just done."""
    assert read(answered(choice={"finish_reason": reason})).finish is finish


def test_content_in_parts_is_joined():
    """Some servers send a list of parts; reasoning among them isn't the answer."""
    parts = [
        {"type": "thinking", "thinking": "hm", "text": "hm"},
        {"type": "text", "text": '{"prob_true"'},
        {"type": "text", "text": ": 1}"},
    ]
    assert read(answered({"content": parts})).text == '{"prob_true": 1}'


def test_content_may_be_missing():
    """All tokens may go into reasoning: the answer is then empty, and cut off."""
    reply = read(answered({"content": None}, choice={"finish_reason": "length"}))
    assert (reply.text, reply.finish) == ("", Finish.TRUNCATED)


@pytest.mark.parametrize(
    ("usage", "tokens_out"),
    [
        ({"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29}, 9),
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}, 103),
        ({"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 0}, 9),
        ({"completion_tokens": 9}, 9),
        ({"prompt_tokens": 20, "total_tokens": 29}, None),
        ({}, None),
    ],
)
def test_reasoning_is_counted_as_output(usage, tokens_out):
    """Where reasoning isn't part of the completion, the total shows it."""
    assert read(answered(usage=usage)).tokens_out == tokens_out


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"code": 502, "message": "It broke."}}, ServerError),
        ({"error": {"code": 429, "message": "It broke."}}, RateLimitedError),
        ({"error": {"code": 403, "message": "It broke."}}, RejectedError),
        ({"error": {"code": "x", "message": "It broke."}}, ServerError),
        (answered(choice={"error": {"code": 500, "message": "It broke."}}), ServerError),
    ],
)
def test_an_error_may_come_with_200(body, error):
    """OpenRouter answers 200 when a model fails half-way; that is no answer."""
    with pytest.raises(error, match=r"It broke\.") as caught:
        read(body)
    assert type(caught.value) is error


@pytest.mark.parametrize("reason", ["error", "insufficient_system_resource"])
def test_a_failed_ending_is_an_error(reason):
    """An answer that ended in a failure isn't one, whatever text it left."""
    with pytest.raises(ServerError):
        read(answered(choice={"finish_reason": reason}))
