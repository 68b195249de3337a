"""OpenAI's Responses API, with the official SDK as the oracle for what is sent."""

from contextlib import aclosing

import pytest
from conformance import KEY, ProviderConformance

from faultserver import document
from heretix.core.errors import RateLimitedError, RejectedError, ServerError
from heretix.providers.base import ANSWER_SCHEMA, Request
from heretix.providers.http import HttpReply, Target
from heretix.providers.openai import OpenAIProvider, build_body, read_reply
from heretix.sample import Finish

PLAIN = Request(model="gpt-5", system="Be brief.", user='Is "{x}|y" so?', max_output_tokens=64)
FULL = Request(
    model="gpt-4.1",
    system="Be brief.",
    user="So?",
    max_output_tokens=64,
    temperature=0.0,
    reasoning_effort="low",
    answer_schema={"type": "object", "additionalProperties": False},
    seed=7,
)
TARGET = Target(provider="openai", base_url="http://h/v1")


def read(body):
    return read_reply(TARGET, HttpReply(200, {}, body))


def answered(**changes):
    message = {"type": "message", "content": [{"type": "output_text", "text": "{}"}]}
    return {"id": "r", "model": "m", "status": "completed", "output": [message], **changes}


class TestOpenAI(ProviderConformance):
    """The suite, with the official SDK as the oracle."""

    name, key_variable, base_path = "openai", "OPENAI_API_KEY", "/v1"
    requests = (PLAIN, FULL)

    def open(self, target):
        """The adapter."""
        return OpenAIProvider(target)

    async def ask_sdk(self, base_url, request):
        """Send the request by the SDK."""
        import openai

        optional = {}
        if request.temperature is not None:
            optional["temperature"] = request.temperature
        if request.reasoning_effort is not None:
            optional["reasoning"] = {"effort": request.reasoning_effort}
        schema = request.answer_schema or ANSWER_SCHEMA
        form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
        async with openai.AsyncOpenAI(api_key=KEY, base_url=base_url, max_retries=0) as sdk:
            theirs = await sdk.responses.create(
                model=request.model,
                instructions=request.system,
                input=request.user,
                max_output_tokens=request.max_output_tokens,
                text={"format": form},
                store=False,
                **optional,
            )
        return theirs.output_text


def test_only_what_is_set_is_sent():
    """No temperature, effort or instructions unless asked for, and never a seed."""
    body = build_body(Request(model="m", system="", user="u", max_output_tokens=1, seed=7))
    assert body.keys() == {"model", "input", "max_output_tokens", "text", "store"}


def test_remarks_on_the_way_are_not_the_answer():
    """Reasoning and commentary are left out; the parts of the answer are joined."""
    output = [
        {"type": "reasoning", "summary": [], "content": [{"type": "output_text", "text": "hm"}]},
        {
            "type": "message",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "Let me see."}],
        },
        {
            "type": "message",
            "phase": "final_answer",
            "content": [
                {"type": "output_text", "text": '{"prob_true"'},
                {"type": "output_text", "text": ": 1}"},
            ],
        },
    ]
    assert read(answered(output=output)).text == '{"prob_true": 1}'


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("max_output_tokens", Finish.TRUNCATED),
        ("content_filter", Finish.REFUSED),
        ("something new", Finish.TRUNCATED),
        (None, Finish.TRUNCATED),
    ],
)
def test_an_incomplete_answer_says_why(reason, finish):
    """A filter refuses; any other reason cuts the answer short."""
    body = answered(status="incomplete", incomplete_details={"reason": reason})
    assert read(body).finish is finish


def test_a_refusal_is_kept():
    """A refusal's own words become the text."""
    content = [{"type": "refusal", "refusal": "No."}]
    reply = read(answered(output=[{"type": "message", "content": content}]))
    assert (reply.text, reply.finish) == ("No.", Finish.REFUSED)


def test_missing_numbers_stay_missing():
    """Without usage nothing is counted."""
    reply = read(answered())
    assert (reply.tokens_in, reply.tokens_out, reply.fingerprint) == (None, None, None)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("server_error", ServerError),
        ("something new", ServerError),
        (None, ServerError),
        ("rate_limit_exceeded", RateLimitedError),
        ("invalid_prompt", RejectedError),
    ],
)
async def test_a_failed_response_is_an_error(server, code, error):
    """`status: failed` comes with 200 and must not pass for an answer."""
    body = answered(status="failed", output=[], error={"code": code, "message": "It broke."})
    server.script(document(body))
    target = Target(provider="openai", base_url=server.url("openai"), key="sk-1")
    async with aclosing(OpenAIProvider(target)) as provider:
        with pytest.raises(error, match=r"It broke\.") as caught:
            await provider.ask(PLAIN)
    assert type(caught.value) is error


def test_a_failure_without_a_reason_is_an_error():
    """Nothing is made up for a failed response that doesn't explain itself."""
    with pytest.raises(ServerError, match="no reason given"):
        read(answered(status="failed", output=[]))


def test_a_policy_block_is_a_refusal():
    """A response that failed by policy would fail again: it is a refusal."""
    body = answered(status="failed", output=[], error={"code": "bio_policy", "message": "No."})
    assert read(body).finish is Finish.REFUSED
