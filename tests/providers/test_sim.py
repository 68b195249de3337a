"""The simulated model: it believes what was planted."""

import asyncio
import json
import math
import statistics

import pytest

from heretix.belief.logodds import logit
from heretix.core.canonical import normal, uniform
from heretix.core.errors import ModelError
from heretix.evidence.text.fold import find_quote
from heretix.providers.base import Request
from heretix.providers.sim import Planted, SimProvider

DOCUMENTS = (
    "<<E02 0123456789ab>>\nA title\nSales rose by 12% in  May – said\nthe office. And so on and "
    "on, until the end.\n<<END 0123456789ab>>\n\n<<E01 0123456789ab>>\nOther\n<<END 0123456789ab>>"
)


def answer(model, *, lens="RPL", stem=0, seed=0, claim="A claim.", user="A question?"):
    """What the model says, parsed."""
    request = Request(
        model=model,
        system="s",
        user=user,
        max_output_tokens=100,
        claim=claim,
        paraphrase_idx=stem,
        lens=lens,
        seed=seed,
    )
    return json.loads(asyncio.run(SimProvider(model).ask(request)).text)


@pytest.mark.parametrize("lens", ["RPL", "NUL", "MEL", "HEL", "SEL"])
def test_planted_centers_are_recovered(lens):
    """Over many claims and stems the answers lie about the planted belief, with its spread."""
    model = "m?prior=0.3&wrapper=0.2&mel=0.9&hel=-0.7&sel=0.4"
    planted = SimProvider(model).planted
    logits = [
        logit(answer(model, lens=lens, stem=n % 16, seed=n, claim=str(n))["prob_true"])
        for n in range(600)
    ]
    shift = {"RPL": 0.0, "NUL": 0.2, "MEL": 1.1, "HEL": -0.5, "SEL": 0.6}[lens]
    assert planted.center(lens) == pytest.approx(math.log(0.3 / 0.7) + shift)
    spread = math.sqrt(0.4**2 + 0.2**2 + (0.15**2 if lens != "RPL" else 0))
    assert statistics.mean(logits) == pytest.approx(planted.center(lens), abs=4 * spread / 600**0.5)
    assert statistics.stdev(logits) == pytest.approx(spread, rel=0.08)


def test_a_wording_does_the_same_under_every_lens():
    """Without noise and response, lenses differ by what was planted, stem by stem."""
    model = "m?noise_sd=0&response_sd=0&hel=-1.5"
    for stem in range(16):
        rpl, hel = (logit(answer(model, lens=x, stem=stem)["prob_true"]) for x in ("RPL", "HEL"))
        assert hel - rpl == pytest.approx(-1.5, abs=1e-4)
    assert len({answer(model, stem=stem)["prob_true"] for stem in range(16)}) == 16


def test_text_about_something_else_moves_as_far_as_planted():
    """All of the shift, unless told otherwise; none of it with any_text=0."""
    quiet = "noise_sd=0&response_sd=0&hel=-1.5"
    claim = "Sales rose in May, the office said."
    for part, shift in ((1.0, -1.5), (0.0, 0.0), (0.4, -0.6)):
        model = f"m?{quiet}&any_text={part}"
        rpl = logit(answer(model, claim=claim)["prob_true"])
        on, off = (
            logit(answer(model, lens="HEL", claim=claim, user=user)["prob_true"])
            for user in (DOCUMENTS, "<<E01 0123456789ab>>\nFrogs sang.\n<<END 0123456789ab>>")
        )
        assert on - rpl == pytest.approx(-1.5, abs=1e-4)
        assert off - rpl == pytest.approx(shift, abs=1e-4)


def test_each_spread_is_what_its_name_says():
    """Noise differs by seed, template effects by stem, responses by stem and lens."""
    quiet = "m?noise_sd=0&response_sd=0&template_sd=0&prior=0.25&mel=0"
    assert {answer(quiet, stem=s, seed=s)["prob_true"] for s in range(5)} == {0.25}
    assert answer(quiet, lens="MEL")["prob_true"] == 0.25
    noisy = "m?response_sd=0&template_sd=0"
    assert len({answer(noisy, seed=s)["prob_true"] for s in range(5)}) == 5
    response = "m?noise_sd=0&template_sd=0&mel=0&hel=0"
    rpl, mel, hel = (answer(response, lens=x)["prob_true"] for x in ("RPL", "MEL", "HEL"))
    assert rpl == 0.7
    assert len({rpl, mel, hel}) == 3


def test_the_same_question_gets_the_same_answer():
    """Two providers of a name agree to the digit; another name or seed differs."""
    assert answer("m", seed=4) == answer("m", seed=4)
    assert answer("m", seed=4) != answer("m", seed=5)
    assert answer("m", seed=4) != answer("other", seed=4)
    assert answer("m", claim="a|b") != answer("m", claim="a")


def test_a_name_keeps_its_template_effects_whatever_is_planted():
    """The query plants; the effects of wordings belong to the name alone."""
    one, other = "m?noise_sd=0&prior=0.5", "m?noise_sd=0&prior=0.8"
    gap = logit(answer(other)["prob_true"]) - logit(answer(one)["prob_true"])
    assert gap == pytest.approx(math.log(4), abs=1e-4)


def test_quotes_stand_in_the_document_they_name():
    """With documents it names the first one shown and quotes it word for word."""
    said = answer("m", lens="MEL", user=f"Weigh.\n\n{DOCUMENTS}\n\nIs it so?")
    assert said["used"] == ["E02"]
    (quote,) = said["quotes"]
    assert quote["id"] == "E02"
    assert quote["text"].startswith("A title Sales rose by 12%")
    assert find_quote(DOCUMENTS, quote["text"]) is not None
    assert find_quote(DOCUMENTS, quote["text"].replace("12%", "21%")) is None


def test_without_documents_nothing_is_quoted():
    """The raw prior answers with a number alone, the bare frame with empty lists."""
    assert set(answer("m", user=DOCUMENTS)) == {"prob_true"}
    said = answer("m", lens="NUL", user="(no documents)")
    assert said["used"] == said["quotes"] == []


@pytest.mark.parametrize(
    "query",
    [
        *("prior=0", "prior=1", "prior=-0.5", "prior=x", "prior", "priors=0.5", "mel=nan"),
        *("hel=inf", "template_sd=-0.1", "response_sd=-1", "noise_sd=-2", "prior=0.5,mel=1"),
    ],
)
def test_a_query_that_plants_nothing_sensible_is_refused(query):
    """A typing mistake must not become a belief."""
    with pytest.raises(ModelError, match="sim:m"):
        SimProvider(f"m?{query}")


def test_defaults_and_extremes():
    """No query plants the defaults; certainty is answered as such and never beyond."""
    assert SimProvider("m").planted == Planted() == SimProvider("m?").planted
    assert answer("m?prior=0.999999999&mel=40", lens="MEL")["prob_true"] == 1.0


def test_draws_are_standard_normal_and_keep_their_parts_apart():
    """Numbers decided by what they are for still look random."""
    draws = [normal("x", n) for n in range(4000)]
    assert statistics.mean(draws) == pytest.approx(0, abs=0.07)
    assert statistics.stdev(draws) == pytest.approx(1, abs=0.05)
    assert uniform("a", "b") != uniform("ab") != uniform("a,b")
    assert uniform(1) != uniform("1")
    assert all(0 < uniform(n) < 1 for n in range(1000))


def test_waves_draw_noise_anew_and_shift_what_drifts():
    """Wave 0 is the model without waves; a planted drift begins in its wave, in its claims."""

    def ask(query, wave, claim="c"):
        request = Request(model="m", system="", user="", max_output_tokens=1, claim=claim)
        return asyncio.run(SimProvider(f"m?{query}", wave=wave).ask(request))

    quiet = "noise_sd=0&drift=1&since=2"
    said = [json.loads(ask(quiet, wave).text)["prob_true"] for wave in range(4)]
    assert said[0] == said[1]
    assert said[2] == said[3]
    assert logit(said[2]) - logit(said[0]) == pytest.approx(1, abs=1e-4)
    assert ask("noise_sd=0.2", 1).text != ask("noise_sd=0.2", 2).text
    model = SimProvider("m?drifting=0.3")
    share = statistics.mean(model.is_drifting(f"claim {n}") for n in range(1000))
    assert share == pytest.approx(0.3, abs=0.06)
    assert [ask("renamed=2", wave).provider_model_id for wave in (1, 2)] == ["m", "m-next"]
