"""The provider that makes answers up."""

from __future__ import annotations

import asyncio
import math
import statistics
from typing import TYPE_CHECKING

import pytest

from heretix.belief.logodds import logit
from heretix.core.errors import (
    CallTimeoutError,
    ConnectionFailedError,
    ModelError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    RetryableError,
    ServerError,
)
from heretix.providers.base import Provider, Reply, Request
from heretix.providers.catalog import parse_model
from heretix.providers.mock import FAULTS, MockProvider
from heretix.sample import Noncompliance, read_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable

CLAIMS = [f"Claim number {i}." for i in range(200)]


def request(claim: str = "Ice floats.", template: int = 0, replicate: int = 0, **more) -> Request:
    """A question as a plan would ask it."""
    values = {"max_output_tokens": 1024, "system": "S" * 10, "user": "U" * 29, **more}
    return Request(
        model="m", claim=claim, paraphrase_idx=template, replicate_idx=replicate, **values
    )


async def log_odds(mock: MockProvider, *args) -> float:
    """Log-odds of a compliant answer."""
    reply = await mock.ask(request(*args))
    prob = read_answer(reply.text, reply.finish).prob_true
    assert prob is not None
    return logit(prob)


async def outcome(mock: MockProvider, asked: Request) -> Reply | type[ProviderError]:
    """A reply, or the kind of failure."""
    try:
        return await mock.ask(asked)
    except ProviderError as exc:
        return type(exc)


async def test_the_same_question_gets_the_same_reply():
    """A fresh mock of the same name repeats every field, call ids included."""
    first = await MockProvider("gpt-5").ask(request())
    assert await MockProvider("gpt-5").ask(request()) == first
    assert first.response_id is not None
    assert first.response_id.startswith("mock-")


async def test_answers_stay_as_they_were():
    """Recorded runs replay: an answer may not change between releases."""
    mock = MockProvider("gpt-5")
    texts = [(await mock.ask(request("Ice floats.", t, r))).text for t in (0, 1) for r in (0, 1)]
    assert texts == [f'{{"prob_true": {prob}}}' for prob in ("0.64", "0.66", "0.59", "0.51")]


@pytest.mark.parametrize(
    "other", [request("Ice sinks."), request(template=1), request(replicate=1)]
)
async def test_claim_wording_and_repeat_each_matter(other: Request):
    """Samples of different identities aren't copies of each other."""
    mock = MockProvider("gpt-5")
    ids = {(await mock.ask(asked)).response_id for asked in (request(), other)}
    assert len(ids) == 2


async def test_spread_is_like_a_models():
    """Claims differ widely, wordings by about 0.35 and repeats by about 0.15 in log-odds."""
    mock = MockProvider("gpt-5")
    means, template_sds, squares = [], [], []
    for claim in CLAIMS:
        rows = [[await log_odds(mock, claim, t, r) for r in range(2)] for t in range(8)]
        template_means = [statistics.fmean(row) for row in rows]
        means.append(statistics.fmean(template_means))
        template_sds.append(statistics.stdev(template_means))
        squares += [(a - b) ** 2 / 2 for a, b in rows]
    assert 1.3 < statistics.stdev(means) < 2.1
    assert abs(statistics.fmean(means)) < 0.5
    assert statistics.fmean(template_sds) == pytest.approx(0.36, abs=0.05)
    assert math.sqrt(statistics.fmean(squares)) == pytest.approx(0.15, abs=0.03)


async def test_mocks_of_different_names_are_related_but_not_equal():
    """Two models mostly agree on which claims are likely."""
    one, other = MockProvider("gpt-5"), MockProvider("claude-sonnet-5-5")
    a = [await log_odds(one, claim) for claim in CLAIMS]
    b = [await log_odds(other, claim) for claim in CLAIMS]
    assert a != b
    assert 0.6 < statistics.correlation(a, b) < 0.95


async def test_an_answer_is_strict_json_with_two_to_four_decimals():
    """Sound answers are compliant and never flatly 0 or 1."""
    mock = MockProvider("gpt-5")
    for claim in CLAIMS:
        reply = await mock.ask(request(claim))
        reading = read_answer(reply.text, reply.finish)
        assert reading.noncompliance is None
        assert 0 < reading.prob_true < 1
        decimals = reply.text.partition(".")[2].rstrip("}")
        assert 2 <= len(decimals) <= 4, reply.text


async def test_a_reply_reports_what_a_provider_would():
    """Tokens are a quarter of the characters, rounded up; the model is the name without query."""
    reply = await MockProvider("gpt-5?fenced=0").ask(request(temperature=0.5))
    assert reply.tokens_in == math.ceil((10 + 2 + 29) / 4) == 11
    assert reply.tokens_out == math.ceil(len(reply.text) / 4)
    assert reply.provider_model_id == "gpt-5"
    assert reply.temperature == 0.5
    assert reply.fingerprint is None


async def test_a_small_token_limit_truncates():
    """An answer that doesn't fit is cut, as a real one would be."""
    reply = await MockProvider("gpt-5").ask(request(max_output_tokens=2))
    assert reply.tokens_out == 2
    assert read_answer(reply.text, reply.finish).noncompliance is Noncompliance.TRUNCATED


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("not_json", Noncompliance.NOT_JSON),
        ("fenced", Noncompliance.NOT_JSON),
        ("extra_text", Noncompliance.NOT_JSON),
        ("empty", Noncompliance.NOT_JSON),
        ("nan", Noncompliance.NOT_JSON),
        ("no_prob_true", Noncompliance.NO_PROB_TRUE),
        ("string", Noncompliance.NO_PROB_TRUE),
        ("bool", Noncompliance.NO_PROB_TRUE),
        ("out_of_range", Noncompliance.OUT_OF_RANGE),
        ("citation", Noncompliance.CITATION),
        ("truncated", Noncompliance.TRUNCATED),
        ("refused", Noncompliance.REFUSED),
    ],
)
async def test_a_spoilt_answer_is_dropped_for_its_reason(fault: str, why: Noncompliance):
    """Each fault of content gives the noncompliance that it stands for, for every claim."""
    mock = MockProvider(f"gpt-5?{fault}=1")
    for claim in CLAIMS:
        reply = await mock.ask(request(claim))
        assert read_answer(reply.text, reply.finish).noncompliance is why, reply.text


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("error", ServerError),
        ("timeout", CallTimeoutError),
        ("reset", ConnectionFailedError),
        ("rate_limit", RateLimitedError),
        ("rejected", RejectedError),
    ],
)
async def test_a_failing_call_fails_every_time(fault: str, error: type[ProviderError]):
    """A call that is chosen to fail isn't healed by retrying."""
    mock = MockProvider(f"gpt-5?{fault}=1")
    for _ in range(3):
        with pytest.raises(error):
            await mock.ask(request())


async def test_a_rate_limit_says_how_long_to_wait():
    """The wait is short, so that tests of retrying are quick."""
    with pytest.raises(RateLimitedError) as caught:
        await MockProvider("gpt-5?rate_limit=1").ask(request())
    assert caught.value.retry_after_s is not None
    assert 0 < caught.value.retry_after_s < 0.1


async def test_a_flaky_call_fails_once_then_answers():
    """Each sample fails at its first attempt and then gives its sound answer."""
    mock = MockProvider("gpt-5?flaky=1")
    sound = MockProvider("gpt-5")
    for replicate in range(3):
        asked = request(replicate=replicate)
        with pytest.raises(RetryableError):
            await mock.ask(asked)
        assert (await mock.ask(asked)).text == (await sound.ask(asked)).text


def test_every_fault_is_tested_above():
    """A new fault needs a test of what it does."""
    marks = [
        test_a_spoilt_answer_is_dropped_for_its_reason,
        test_a_failing_call_fails_every_time,
    ]
    tested = {case[0] for test in marks for case in test.pytestmark[0].args[1]}
    assert tested | {"flaky"} == set(FAULTS)


async def test_faults_come_at_their_rates():
    """Over many samples each fault has about its share, and the rest is sound and unchanged."""
    mock = MockProvider("gpt-5?fenced=0.2&error=0.1&refused=0.05")
    sound = MockProvider("gpt-5")
    counts = {"fenced": 0, "error": 0, "refused": 0}
    total = 4000
    for i in range(total):
        asked = request(CLAIMS[i % 200], i // 200)
        got = await outcome(mock, asked)
        if got is ServerError:
            counts["error"] += 1
        elif got.finish == "refused":
            counts["refused"] += 1
        elif got.text.startswith("```"):
            counts["fenced"] += 1
        else:
            assert got.text == (await sound.ask(asked)).text
    for fault, rate in (("fenced", 0.2), ("error", 0.1), ("refused", 0.05)):
        sd = math.sqrt(rate * (1 - rate) / total)
        assert counts[fault] / total == pytest.approx(rate, abs=4 * sd), fault


async def test_raising_a_rate_only_adds_faults():
    """A sample spoilt at a low rate is spoilt at a higher one too."""
    low, high = MockProvider("gpt-5?empty=0.1"), MockProvider("gpt-5?empty=0.3")
    for claim in CLAIMS:
        if not (await low.ask(request(claim))).text:
            assert not (await high.ask(request(claim))).text


async def test_the_order_of_faults_in_a_name_decides_nothing():
    """Which samples are spoilt, and how, depends on the rates alone."""
    one, other = MockProvider("a?fenced=0.3&empty=0.3"), MockProvider("a?empty=0.3&fenced=0.3")
    for claim in CLAIMS:
        texts = [(await mock.ask(request(claim))).text for mock in (one, other)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "names no model"),
        ("?error=0.1", "names no model"),
        ("gpt-5?", "unknown key ''"),
        ("gpt-5?fence=0.1", r"unknown key 'fence' \(did you mean `fenced`\?\)"),
        ("gpt-5?latency=5", r"did you mean `latency_ms`"),
        ("gpt-5?error", "`error` must be a number from 0 to 1, got ''"),
        ("gpt-5?error=many", "`error` must be a number from 0 to 1, got 'many'"),
        ("gpt-5?error=1.01", "`error` must be a number from 0 to 1, got '1.01'"),
        ("gpt-5?error=-0.1", "got '-0.1'"),
        ("gpt-5?error=nan", "got 'nan'"),
        ("gpt-5?latency_ms=inf", "`latency_ms` must be a number from 0 to 600,000"),
        ("gpt-5?error=0.1&error=0.2", "has `error` twice"),
        ("gpt-5?error=0.6&fenced=0.5", "at most 1, got error=0.6 [+] fenced=0.5"),
    ],
)
def test_a_mistaken_name_is_refused(name: str, message: str):
    """The message names the key, the rule and the value."""
    with pytest.raises(ModelError, match=message):
        MockProvider(name)


def test_rates_may_add_up_to_one_exactly():
    """Ten tenths are one, in spite of binary fractions; latency isn't a rate."""
    rates = "&".join(f"{fault}=0.1" for fault in FAULTS[:10])
    assert MockProvider(f"gpt-5?{rates}&latency_ms=500")


async def test_latency_is_in_milliseconds_and_blocks_nobody():
    """A call of 10 ms ends after a wait of 1 ms and before one of an hour, begun around it."""
    ended = []

    async def note(name: str, waited: Awaitable[object]) -> None:
        await waited
        ended.append(name)

    mock = MockProvider("gpt-5?latency_ms=10")
    async with asyncio.TaskGroup() as group:
        group.create_task(note("short", asyncio.sleep(0.001)))
        call = group.create_task(note("call", mock.ask(request())))
        long = group.create_task(note("long", asyncio.sleep(3600)))
        await call
        long.cancel()
    assert ended == ["short", "call"]


async def test_latency_in_a_name_wins_over_the_argument():
    """An hour's latency as argument is overruled by none in the name."""
    async with asyncio.timeout(60):
        await MockProvider("gpt-5?latency_ms=0", latency_ms=3_600_000).ask(request())


async def test_a_mock_is_a_provider():
    """It has what the runner uses."""
    mock: Provider = MockProvider("gpt-5")
    assert mock.max_concurrency >= 64
    await mock.aclose()


def test_a_query_is_part_of_the_identity():
    """A mock told to misbehave is another model than one that isn't."""
    model = parse_model("mock:gpt-5?error=0.1")
    assert model.identity == "mock:gpt-5?error=0.1"
    assert MockProvider(model.name)
