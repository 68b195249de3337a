"""Read-outs of log-probabilities: their rules, their records, and the providers that answer them."""

import asyncio
import dataclasses
import json
import math
import statistics

import pytest
from typer.testing import CliRunner

from faultserver import FaultServer, document
from heretix import measure
from heretix.belief.logodds import logit, sigmoid
from heretix.cli.app import app
from heretix.config import RunConfig
from heretix.core.errors import ConfigError, RejectedError
from heretix.core.settings import Settings
from heretix.measurement import verify
from heretix.measurement.record import Artifact
from heretix.measurement.verify import compare, verify_artifact
from heretix.plan import make_plan
from heretix.prompts.bank import load_bank
from heretix.providers.base import Request
from heretix.providers.catalog import parse_model, require_readout
from heretix.providers.compatible import DIALECTS, CompatibleProvider
from heretix.providers.gemini import GeminiProvider
from heretix.providers.http import Target
from heretix.providers.sim import SimProvider
from heretix.readouts import (
    MAX_MISSING_MASS,
    Logprob,
    dump_logprobs,
    follow_path,
    hold_numbers,
    missing_mass,
    read_reply,
    walk_numbers,
)
from heretix.report import words
from heretix.sample import Finish, Noncompliance

CLAIM = "Ice floats on water."
SIM = "sim:judge?prior=0.8"


def asked(readout, **changes):
    """A request for a read-out."""
    values = {"model": "m", "system": "s", "user": "u", "max_output_tokens": 64, "claim": CLAIM}
    return Request(**{**values, "readout": readout, **changes})


def read(readout, **probs):
    """Reading of probabilities by text."""
    pairs = [Logprob(text, math.log(prob)) for text, prob in probs.items()]
    return read_reply(readout, dump_logprobs(readout, pairs))


def test_truth_token_is_the_log_ratio_of_the_words():
    """ln P(True) - ln P(False), all spellings together; the rest is reported and no more."""
    text = dump_logprobs(
        "truth_token",
        [Logprob(t, math.log(p)) for t, p in ((" True", 0.5), ("TRUE", 0.1), ("False", 0.2))],
    )
    reading = read_reply("truth_token", text)
    assert reading.logit == pytest.approx(math.log(0.6 / 0.2), rel=1e-12)
    assert reading.prob_true == pytest.approx(0.75)
    assert missing_mass("truth_token", text) == pytest.approx(0.2)


def test_truth_token_is_not_clamped_as_a_spoken_number_is():
    """A log-ratio beyond the clamp of probabilities is kept."""
    assert read("truth_token", true=1 - 1e-9, false=1e-9).logit == pytest.approx(math.log(1e9))


@pytest.mark.parametrize("probs", [{"True": 0.9}, {"False": 0.9}, {"The": 0.9}])
def test_a_wording_without_both_words_is_dropped(probs):
    """How unlikely the absent word is can't be known."""
    reading = read("truth_token", **probs)
    assert reading.noncompliance is Noncompliance.NO_TRUTH_TOKEN
    assert reading.logit is None


def test_distribution_has_both_means():
    """Mean probability and mean log-odds over the answers, by the estimator's log-odds of 0 and 1."""
    reading = read("distribution", **{"1": 0.5, "0.9": 0.3, "0": 0.2})
    assert reading.prob_true == pytest.approx(0.77)
    assert reading.logit == pytest.approx(0.5 * logit(1) + 0.3 * logit(0.9) + 0.2 * logit(0))


@pytest.mark.parametrize(("missing", "kept"), [(0.029, True), (0.031, False)])
def test_missing_mass_over_three_percent_is_refused(missing, kept):
    """The rule has an edge, and what is left is scaled to one below it."""
    reading = read("distribution", **{"0.5": 1 - missing})
    assert (reading.noncompliance is None) is kept
    assert reading.prob_true == pytest.approx(0.5)
    assert MAX_MISSING_MASS == 0.03


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"answers":[["0.5"]]}', '{"answers":[["0.5",0.7]]}']
)
def test_what_is_no_list_of_log_probabilities_is_dropped(text):
    """A raw answer that was tampered with, or never was one."""
    assert read_reply("distribution", text).noncompliance is Noncompliance.NOT_JSON
    assert missing_mass("distribution", text) is None


def test_a_refusal_stays_one():
    """Whatever the read-out."""
    reading = read_reply("truth_token", "", Finish.REFUSED)
    assert reading.noncompliance is Noncompliance.REFUSED


def chain(steps):
    """A model that writes character by character: probabilities of the next one by what stands."""

    async def next_tokens(begun):
        said = steps.get(begun.partition(":")[2], {"}": 1.0})
        return [Logprob(text, math.log(prob)) for text, prob in said.items()]

    return next_tokens


def test_the_walk_finds_the_distribution_of_a_known_model():
    """Products along branches, with what no answer can hold left out and the rest scaled."""
    steps = {
        "": {" ": 0.8, "x": 0.2},
        " ": {"0": 0.7, "1": 0.3},
        " 0": {".": 0.9, "}": 0.1},
        " 0.": {"9": 0.5, "2": 0.5},
        " 0.9": {"5": 0.4, "}": 0.6},
        " 0.95": {"}": 1.0},
        " 0.2": {"}": 0.5, ",": 0.5},
    }
    found = {text: math.exp(lp) for text, lp in asyncio.run(walk_numbers(chain(steps)))}
    expected = {"1": 0.3, "0": 0.07, "0.9": 0.189, "0.95": 0.126, "0.2": 0.315}
    assert found == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(("tens", "asked_on"), [("12", False), ("00", True), ("99", True)])
def test_a_third_decimal_of_a_light_branch_is_asked_for_beside_0_and_1_alone(tens, asked_on):
    """Elsewhere it moves the number by less than .01, and its mass counts as known without it."""
    light = 0.004
    a, b = tens
    model = chain(
        {
            "": {" ": 1.0},
            " ": {"0": 1.0},
            " 0": {".": 1.0},
            " 0.": {a: light, "5": 1 - light},
            f" 0.{a}": {b: 1.0},
            f" 0.{tens}": {"5": 1.0},
        }
    )
    asked = []

    async def next_tokens(begun):
        asked.append(begun.partition(": ")[2])
        return await model(begun)

    found = {text: math.exp(lp) for text, lp in asyncio.run(walk_numbers(next_tokens))}
    assert (f"0.{tens}" in asked) is asked_on
    assert found == pytest.approx({f"0.{tens}{'5' * asked_on}": light, "0.5": 1 - light}, rel=1e-2)


def test_branches_walked_together_give_the_same_distribution():
    """A server that reads several texts at a time is asked for as many as it was said to, at most."""
    tens = dict.fromkeys("0123456789", 0.1)
    steps = {"": {" ": 1.0}, " ": {"0": 1.0}, " 0": {".": 1.0}, " 0.": tens}
    steps |= {f" 0.{digit}": {"5": 0.5, "}": 0.5} for digit in tens}
    model = chain(steps)
    in_flight, most = 0, 0

    async def next_tokens(begun):
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return await model(begun)

    one_by_one = asyncio.run(walk_numbers(model))
    assert sorted(asyncio.run(walk_numbers(next_tokens, together=8))) == sorted(one_by_one)
    assert most == 8


def test_the_walk_reports_what_it_leaves_out():
    """Branches below a thousandth aren't walked, and their mass is missing from the sum."""
    steps = {"": {" ": 1.0}, " ": {"0": 0.9995, "1": 0.0005}, " 0": {".": 0.0005, "}": 0.9995}}
    found = {text: math.exp(lp) for text, lp in asyncio.run(walk_numbers(chain(steps)))}
    assert found["0"] == pytest.approx(0.9995**2)
    assert sum(found.values()) < 1 - 0.0004


def test_the_walk_ends_where_no_answer_is_begun():
    """A model that says nothing of the kind has no numbers: all of the mass is missing."""
    found = asyncio.run(walk_numbers(chain({"": {"x": 1.0}})))
    assert found == []
    reading = read_reply("distribution", dump_logprobs("distribution", found))
    assert reading.noncompliance is Noncompliance.MISSING_MASS


def test_a_path_counts_only_numbers_that_are_known():
    """Alternatives that end the number, have three decimals or are 1; the others are missing."""

    def step(chosen, **probs):
        return chosen, [Logprob(text, math.log(prob)) for text, prob in probs.items()]

    path = [
        step('{"prob_true": ', **{'{"prob_true": ': 0.6, "{": 0.4}),
        step("0", **{"0": 0.8, "1": 0.2}),
        step(".", **{".": 0.9, "}": 0.1}),
        step("95", **{"95": 0.5, "905": 0.25, "9": 0.25}),
        step("}", **{"}": 0.75, "5": 0.25}),
    ]
    found = {text: math.exp(lp) for text, lp in follow_path(path)}
    half = 0.8 * 0.9 * 0.5
    expected = {"1": 0.2, "0": 0.08, "0.905": half / 2, "0.95": half * 0.75, "0.955": half / 4}
    assert found == pytest.approx(expected)


def test_the_default_identity_is_unchanged_and_others_have_their_own():
    """A read-out is folded into run id and cache keys; sampling adds nothing to them."""
    bank, model = load_bank("rpl_v1"), parse_model("mock:m")
    plain = make_plan(CLAIM, model, bank, RunConfig(K=16, R=1, T=16))
    named = make_plan(CLAIM, model, bank, RunConfig(K=16, R=1, T=16, readout="sampled"))
    other = make_plan(CLAIM, model, bank, RunConfig(readout="distribution"))
    assert plain.run_id == named.run_id
    assert plain.run_id != other.run_id
    assert plain.seq == other.seq
    assert not {s.cache_key for s in plain.samples} & {s.cache_key for s in other.samples}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"R": 2}, "`R` must be 1"),
        ({"temperature": 0.5}, "`temperature` has no part"),
        ({"until_width": 0.1}, "`until_width` samples on"),
        ({"lenses": ("RPL", "NUL")}, "`lenses` must be RPL"),
    ],
)
def test_what_has_no_place_is_refused(options, message):
    """Each with the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        RunConfig.parse({"readout": "truth_token", **options})


def test_more_slots_than_wordings_are_refused():
    """A second slot of a wording would only repeat the first."""
    config = RunConfig(readout="truth_token", K=17)
    with pytest.raises(ConfigError, match="`K` must be at most the 16 templates"):
        make_plan(CLAIM, parse_model(SIM), load_bank("truth_token_v1"), config)


def test_a_bank_of_true_or_false_is_for_its_read_out_alone():
    """Its answers aren't numbers."""
    with pytest.raises(ConfigError, match="is for `readout` truth_token alone"):
        RunConfig.parse({"prompt_version": "truth_token_v1"})
    assert RunConfig(readout="truth_token").bank_name == "truth_token_v1"
    assert RunConfig(readout="distribution").bank_name == "rpl_v1"


def test_the_bank_is_balanced():
    """Sixteen wordings; claim and words stand first and last in all combinations alike."""
    wordings = load_bank("truth_token_v1").paraphrases
    kinds = []
    for wording in wordings:
        words = wording.replace("{CLAIM}", "")
        assert words.count("True") == words.count("False") == 1
        kinds.append((wording.startswith("<claim>"), words.index("True") < words.index("False")))
    assert len(wordings) == 16
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(
        [(a, b) for a in (True, False) for b in (True, False)], 4
    )


@pytest.mark.parametrize("model", ["claude-sonnet-5-5", "gpt-5", "mock:m"])
def test_a_provider_without_log_probabilities_is_refused(model):
    """Before anything is called, with those that have them."""
    with pytest.raises(ConfigError, match=r"needs log-probabilities.*take a model of sim, local"):
        require_readout([parse_model(model)], "truth_token")


def test_the_command_refuses_with_exit_code_2(tmp_path, monkeypatch):
    """As any mistake of the user's, before a store is made."""
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["run", CLAIM, "--mock", "--readout", "truth_token"])
    assert isinstance(found.exception, ConfigError)
    assert found.exception.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.fixture
def beliefs(tmp_path):
    """One claim by all three read-outs."""
    store = str(tmp_path / "r.sqlite")
    sampled = measure(CLAIM, model=SIM, store=store, K=16, T=16)
    others = [
        measure(CLAIM, model=SIM, store=store, readout=r) for r in ("distribution", "truth_token")
    ]
    return {"sampled": sampled, "distribution": others[0], "truth_token": others[1]}


def test_records_verify_and_name_their_method(beliefs):
    """Made again from the record alone; a changed log-probability is found out."""
    for name, belief in beliefs.items():
        record = belief.record
        assert all(found.ok for found in verify_artifact(Artifact.of([record])))
        assert record.aggregation.method.startswith("equal" if name == "sampled" else name)
        assert (record.readout is None) == (name == "sampled")
        assert ("readout" in record.model_dump(mode="json")) == (name != "sampled")
    record = beliefs["truth_token"].record
    row = record.samples[0]
    pairs = json.loads(row.raw_answer)["first_token"]
    pairs[0][1] -= 0.1
    forged = dump_logprobs("truth_token", [Logprob(*pair) for pair in pairs])
    samples = [dataclasses.replace(row, raw_answer=forged), *record.samples[1:]]
    changed = record.model_copy(update={"samples": samples})
    assert not verify_artifact(Artifact.of([changed]))[0].ok


def test_both_centers_stand_in_the_record(beliefs):
    """Of mean log-odds, which is the belief, and of mean probability beside it."""
    record = beliefs["distribution"].record
    kept = sorted(row.prob_true for row in record.samples)[3:13]
    assert record.readout.prob_mean == pytest.approx(statistics.fmean(kept))
    middle = sorted(row.logit for row in record.samples)[3:13]
    assert beliefs["distribution"].prob == pytest.approx(sigmoid(statistics.fmean(middle)))
    assert record.readout.missing_mass_max < 1e-4


def numbered(*answers):
    """Provider's text of a distribution: numbers with their probabilities."""
    return dump_logprobs("distribution", [Logprob(text, math.log(p)) for text, p in answers])


def test_numbers_in_a_distribution_are_held_one_by_one():
    """Its mean log-odds may lie far out because of a third at exactly 1: that is what is held."""
    text = numbered(("1", 0.3), ("0.9", 0.5), ("0", 0.2))
    share, held = hold_numbers(text, within=0.005)
    assert share == pytest.approx(0.5)
    assert held == pytest.approx(0.3 * logit(0.995) + 0.5 * logit(0.9) + 0.2 * logit(0.005))
    assert hold_numbers("{}", within=0.005) is None


def test_a_distribution_tells_its_answers_of_exactly_0_and_1(beliefs):
    """Share and clamped center are those of its numbers; both are made again in verification."""
    run = beliefs["distribution"].record
    answer = numbered(("1", 0.6), ("0.5", 0.4))
    samples = [
        dataclasses.replace(row, raw_answer=answer, prob_true=0.8, logit=0.6 * logit(1))
        for row in run.samples
    ]
    made = verify._rebuild(run.model_copy(update={"samples": samples}))
    assert made.readout.extreme_mass == made.beside.extreme_share == pytest.approx(0.6)
    assert made.beside.center_clamped == pytest.approx(sigmoid(0.6 * logit(0.995)))
    assert made.beside.clamp_sensitive
    assert made.beside.n_extreme == len(samples)
    assert "60% of the answers are exactly 0 or 1" in words.warn_clamp_sensitive(made.beside)


def test_distributions_of_an_older_version_verify(beliefs):
    """They lack the mass at 0 and 1, and held each wording's mean as if it were an answer."""
    run = beliefs["distribution"].record
    older = verify._drop_masses(run)
    assert "extreme_mass" not in older.model_dump(mode="json")["readout"]
    older = older.model_copy(update={"sha256": verify.digest_of(older)})
    assert verify.verify_run(older).ok
    beside = older.beside.model_copy(update={"center_clamped": 0.5})
    forged = older.model_copy(update={"beside": beside})
    assert [one.path for one in verify.verify_run(forged).differences][1:] == [
        "beside.center_clamped"
    ]


def test_read_outs_compare_and_are_cached_apart(beliefs):
    """The same questions pair by wording; another bank's don't."""
    records = {name: belief.record for name, belief in beliefs.items()}
    assert compare(records["sampled"], records["distribution"]).paired
    assert not compare(records["sampled"], records["truth_token"]).paired
    assert all(record.usage.from_cache == 0 for record in records.values())


def test_the_distribution_is_the_limit_of_many_replicates():
    """Mean log-odds and mean probability of drawn answers go to those of the distribution."""
    provider, draws = SimProvider("judge?prior=0.8&noise_sd=0.6"), 2000

    async def ask():
        exact = await provider.ask(asked("distribution"))
        drawn = [await provider.ask(asked("sampled", seed=seed)) for seed in range(draws)]
        return read_reply("distribution", exact.text), [
            read_reply("sampled", reply.text) for reply in drawn
        ]

    exact, drawn = asyncio.run(ask())
    for name in ("logit", "prob_true"):
        values = [getattr(reading, name) for reading in drawn]
        error = statistics.stdev(values) / math.sqrt(draws)
        assert abs(statistics.fmean(values) - getattr(exact, name)) < 4 * error


@pytest.fixture(scope="module")
def server():
    """A loopback server that answers as it is told."""
    with FaultServer() as running:
        yield running


def choice(content, logprobs):
    """A chat completion with the tokens of its answer."""
    message = {"role": "assistant", "content": content}
    return {
        "id": "c",
        "model": "served",
        "choices": [{"message": message, "finish_reason": "length", "logprobs": logprobs}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
    }


def token(text, *top):
    """One token as the protocol has it."""
    listed = [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in top]
    return {
        "token": text,
        "logprob": math.log(dict(top)[text]),
        "bytes": None,
        "top_logprobs": listed,
    }


def opened(server, provider="vllm"):
    """The adapter of a server that speaks Chat Completions."""
    server.forget()
    target = Target(provider=provider, base_url=server.url("openai-compatible"))
    return CompatibleProvider(target, DIALECTS.get(provider))


async def ask(provider, request):
    """Ask once, and close."""
    try:
        return await provider.ask(request)
    finally:
        await provider.aclose()


def test_a_chat_server_is_asked_for_one_token_with_its_alternatives(server):
    """`logprobs` and twenty of them, one token, and no form that would forbid the words."""
    provider = opened(server, "openai-compatible")
    step = token("True", ("True", 0.7), ("False", 0.2), ("The", 0.05))
    server.script(document(choice("True", {"content": [step]})))
    reply = asyncio.run(ask(provider, asked("truth_token", temperature=None)))
    body = server.calls[0].body
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 1)
    assert "response_format" not in body
    assert reply.finish is Finish.STOP
    assert reply.provider_model_id == "served"
    reading = read_reply("truth_token", reply.text)
    assert reading.logit == pytest.approx(math.log(3.5))


def test_a_chosen_token_outside_of_the_list_counts_too(server):
    """vLLM adds the sampled token by itself where it isn't among the likeliest."""
    provider = opened(server, "openai-compatible")
    step = token("False", ("False", 0.01)) | {
        "top_logprobs": [{"token": "True", "logprob": math.log(0.9)}]
    }
    server.script(document(choice("False", {"content": [step]})))
    reply = asyncio.run(ask(provider, asked("truth_token")))
    assert read_reply("truth_token", reply.text).logit == pytest.approx(math.log(90))


def test_a_server_that_gives_no_log_probabilities_is_named(server):
    """The call fails, and says what to have the server do."""
    provider = opened(server, "openai-compatible")
    server.script(document(choice("True", None)))
    with pytest.raises(RejectedError, match="gave no log-probabilities"):
        asyncio.run(ask(provider, asked("truth_token")))


@pytest.mark.parametrize("name", ["vllm", "llamacpp"])
def test_a_server_that_continues_is_walked(server, name):
    """An answer is begun for it, digit by digit; every step is counted."""
    provider = opened(server, name)
    said = {
        "": [(" ", 0.99)],
        " ": [("0", 0.75), ("1", 0.25)],
        " 0": [(".", 0.99)],
        " 0.": [("9", 0.5), ("8", 0.5)],
        " 0.9": [("}", 0.99)],
        " 0.8": [("}", 0.99)],
    }

    def step_of(call):
        begun = call.body["messages"][-1]
        assert begun["role"] == "assistant"
        top = said[begun["content"].removeprefix('{"prob_true":')]
        return choice(top[0][0], {"content": [token(top[0][0], *top)]})

    async def respond(running, request, call):
        return await document(step_of(call))(running, request, call)

    server.always(respond)
    reply = asyncio.run(ask(provider, asked("distribution")))
    assert read_reply("distribution", reply.text).prob_true == pytest.approx(0.8875, abs=0.01)
    assert missing_mass("distribution", reply.text) < MAX_MISSING_MASS
    assert (reply.tokens_in, reply.tokens_out) == (60, 6)
    assert server.calls[0].body.get("continue_final_message", False) is (name == "vllm")


def test_other_servers_tell_what_lies_along_one_answer(server):
    """In the answer's form, with the missing mass that the alternatives leave."""
    provider = opened(server, "openai-compatible")
    steps = [
        token('{"prob_true":', ('{"prob_true":', 0.99)),
        token(" 1", (" 1", 0.6), (" 0", 0.4)),
        token("}", ("}", 0.9)),
    ]
    server.script(document(choice('{"prob_true": 1}', {"content": steps})))
    reply = asyncio.run(ask(provider, asked("distribution")))
    assert server.calls[0].body["response_format"]["type"] == "json_schema"
    assert missing_mass("distribution", reply.text) == pytest.approx(0.4)
    reading = read_reply("distribution", reply.text)
    assert reading.noncompliance is Noncompliance.MISSING_MASS


def test_gemini_tells_its_candidates(server):
    """`responseLogprobs`, and candidates at each step."""
    server.forget()
    top = [{"token": t, "logProbability": math.log(p)} for t, p in (("False", 0.8), ("True", 0.1))]
    result = {"topCandidates": [{"candidates": top}], "chosenCandidates": [top[0]]}
    content = {"parts": [{"text": "False"}], "role": "model"}
    candidate = {"content": content, "finishReason": "STOP", "logprobsResult": result}
    server.script(document({"candidates": [candidate], "modelVersion": "g"}))
    target = Target(provider="gemini", base_url=server.url("gemini"), key="k")
    reply = asyncio.run(ask(GeminiProvider(target), asked("truth_token")))
    sent = server.calls[0].body["generationConfig"]
    assert sent["responseLogprobs"] is True
    assert sent["logprobs"] == 20
    assert "responseMimeType" not in sent
    assert read_reply("truth_token", reply.text).logit == pytest.approx(math.log(1 / 8))


@pytest.mark.embedded
def test_the_embedded_model_reads_out():
    """Both read-outs of a real model, the same to the last bit, whatever was asked before."""
    local = pytest.importorskip("heretix.providers.local")
    pytest.importorskip("xllamacpp")
    plans = {
        name: make_plan(
            CLAIM,
            parse_model("local:smollm2-135m"),
            load_bank(RunConfig(readout=name).bank_name),
            RunConfig(readout=name),
        )
        for name in ("truth_token", "distribution")
    }

    async def read_all():
        provider = local.LocalProvider("smollm2-135m", settings=Settings.from_env(), servers=1)
        try:
            requests = {name: plan.request(plan.samples[0]) for name, plan in plans.items()}
            order = ("truth_token", "distribution", "truth_token", "distribution")
            return [(name, await provider.ask(requests[name])) for name in order]
        finally:
            await provider.aclose()

    replies = asyncio.run(read_all())
    assert replies[0][1].text == replies[2][1].text
    assert replies[1][1].text == replies[3][1].text
    for name, reply in replies[:2]:
        reading = read_reply(name, reply.text)
        assert reading.json_valid
        assert 0 < reading.prob_true < 1
        assert 0 <= missing_mass(name, reply.text) < 1
