"""The Gemini API, with the official SDK as the oracle for what is sent."""

import warnings
from contextlib import aclosing, closing

import pytest
from conformance import KEY, ProviderConformance

from faultserver import document
from heretix.core.errors import RateLimitedError, RejectedError
from heretix.providers.base import ANSWER_SCHEMA, Request
from heretix.providers.gemini import GeminiProvider, build_body, path_of, read_reply
from heretix.providers.http import HttpReply, Target
from heretix.sample import Finish

PLAIN = Request(
    model="gemini-3-pro", system="Be brief.", user='Is "{x}|y" so?', max_output_tokens=64
)
LEVEL = Request(
    model="gemini-3-pro",
    system="Be brief.",
    user="So?",
    max_output_tokens=64,
    temperature=0.5,
    reasoning_effort="low",
    answer_schema={"type": "object", "additionalProperties": False},
    seed=7,
)
BUDGET = Request(
    model="gemini-2.5-flash",
    system="Be brief.",
    user="So?",
    max_output_tokens=64,
    reasoning_effort="medium",
)
TARGET = Target(provider="gemini", base_url="http://h/v1beta", key_variable="GEMINI_API_KEY")


def opened(server):
    target = Target(
        provider="gemini", base_url=server.url("gemini"), key="k-1", key_variable="GEMINI_API_KEY"
    )
    return GeminiProvider(target)


def read(body):
    return read_reply(TARGET, HttpReply(200, {}, body))


def answered(reason="STOP", parts=(), **changes):
    candidate = {"content": {"parts": list(parts)}, "finishReason": reason}
    return {"candidates": [candidate], **changes}


class TestGemini(ProviderConformance):
    """The suite, with the official SDK as the oracle."""

    name, key_variable, base_path = "gemini", "GEMINI_API_KEY", "/v1beta"
    requests = (PLAIN, LEVEL, BUDGET)
    compared_headers = ("x-goog-api-key", "content-type", "authorization")

    def open(self, target):
        """The adapter."""
        return GeminiProvider(target)

    async def ask_sdk(self, base_url, request):
        """Send the request by the SDK."""
        with warnings.catch_warnings():
            # Its own source gives a warning when it is compiled, and warnings are errors here.
            warnings.simplefilter("ignore", DeprecationWarning)
            from google import genai
            from google.genai import types

        thinking = (
            (LEVEL, types.ThinkingConfig(thinking_level=types.ThinkingLevel.LOW)),
            (BUDGET, types.ThinkingConfig(thinking_budget=8192)),
        )
        config = types.GenerateContentConfig(
            system_instruction=request.system,
            max_output_tokens=request.max_output_tokens,
            temperature=request.temperature,
            response_mime_type="application/json",
            response_json_schema=request.answer_schema or ANSWER_SCHEMA,
            thinking_config=next((how for one, how in thinking if one is request), None),
        )
        origin = base_url.removesuffix("/v1beta")
        options = types.HttpOptions(base_url=origin, api_version="v1beta")
        with closing(genai.Client(api_key=KEY, http_options=options)) as sdk:
            return sdk.models.generate_content(
                model=request.model, contents=request.user, config=config
            ).text

    def spelled(self, body):
        """The SDK leaves these two in the spelling that is an alias."""
        thinking = body["generationConfig"].get("thinkingConfig", {})
        for alias, name in (
            ("thinking_level", "thinkingLevel"),
            ("thinking_budget", "thinkingBudget"),
        ):
            if alias in thinking:
                thinking[name] = thinking.pop(alias)
        return body


def test_only_what_is_set_is_sent():
    """No temperature, thinking or system instruction unless asked for, and never a seed."""
    body = build_body(Request(model="m", system="", user="u", max_output_tokens=1, seed=7))
    assert body.keys() == {"contents", "generationConfig"}
    assert body["generationConfig"].keys() == {
        "maxOutputTokens",
        "responseMimeType",
        "responseJsonSchema",
    }


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-3-pro", "/models/gemini-3-pro:generateContent"),
        ("models/gemini-3-pro", "/models/gemini-3-pro:generateContent"),
        ("tunedModels/mine", "/tunedModels/mine:generateContent"),
        ("a?b#c", "/models/a%3Fb%23c:generateContent"),
    ],
)
def test_the_model_is_in_the_path(model, path):
    """A model's name can't change what is called."""
    assert path_of(model) == path


def test_an_effort_without_a_budget_is_refused():
    """Nothing is sent in place of an effort that the model doesn't know."""
    request = Request(
        model="gemini-2.5-pro",
        system="",
        user="u",
        max_output_tokens=1,
        reasoning_effort="max",
    )
    with pytest.raises(RejectedError, match=r"must be one of none, .*got 'max'"):
        build_body(request)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("STOP", Finish.STOP),
        ("MAX_TOKENS", Finish.TRUNCATED),
        ("SAFETY", Finish.REFUSED),
        ("RECITATION", Finish.REFUSED),
        ("PROHIBITED_CONTENT", Finish.REFUSED),
        ("MALFORMED_RESPONSE", Finish.STOP),
        (None, Finish.STOP),
    ],
)
def test_the_ending_is_read(reason, finish):
    """Cut off, refused, or just done."""
    assert read(answered(reason)).finish is finish


def test_a_blocked_prompt_is_a_refusal():
    """A prompt that was blocked has no candidates, and that is an answer of a kind."""
    reply = read({"promptFeedback": {"blockReason": "SAFETY"}, "responseId": "r"})
    assert (reply.text, reply.finish, reply.response_id) == ("", Finish.REFUSED, "r")


def test_thoughts_are_not_the_answer():
    """Summaries of thought are left out; the other parts are joined."""
    parts = [
        {"text": "Hm.", "thought": True},
        {"text": '{"prob_true"', "thoughtSignature": "x"},
        {"text": ": 1}"},
    ]
    assert read(answered(parts=parts)).text == '{"prob_true": 1}'


@pytest.mark.parametrize(
    ("usage", "tokens_out"),
    [
        ({"candidatesTokenCount": 7, "thoughtsTokenCount": 2}, 9),
        ({"candidatesTokenCount": 7}, 7),
        ({"thoughtsTokenCount": 64}, 64),
        ({"promptTokenCount": 50}, None),
    ],
)
def test_thoughts_are_counted_as_output(usage, tokens_out):
    """Thinking is billed as output; a missing count stays missing."""
    assert read(answered(usageMetadata=usage)).tokens_out == tokens_out


async def test_a_wrong_key_names_its_variable(server):
    """Gemini answers a wrong key with 400, not 401."""
    error = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}
    server.script(document({"error": error}, 400))
    async with aclosing(opened(server)) as provider:
        with pytest.raises(RejectedError, match=r"API key not valid\.; check GEMINI_API_KEY"):
            await provider.ask(PLAIN)


async def test_a_wait_in_the_body_is_kept(server):
    """Gemini says how long to wait in the body, and nowhere else."""
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.837906927s"}
    error = {"code": 429, "message": "Quota exceeded.", "details": [retry]}
    server.script(document([{"error": error}], 429))
    async with aclosing(opened(server)) as provider:
        with pytest.raises(RateLimitedError, match=r"Quota exceeded\.") as caught:
            await provider.ask(PLAIN)
    assert caught.value.retry_after_s == pytest.approx(45.837906927)
