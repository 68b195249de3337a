"""Banks of other languages ask what `rpl_v1` asks, wording by wording; a claim's language is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from heretix.config import AUTO, LANGUAGES, RunConfig, load_config
from heretix.core.errors import ConfigError
from heretix.core.settings import Settings
from heretix.measurement.service import prepare
from heretix.prompts.bank import Bank, load_bank, render
from heretix.prompts.languages import recognise

ENGLISH = load_bank("rpl_v1")
OTHERS = {code: load_bank(name) for code, name in LANGUAGES.items() if code != "en"}
CLAIM = "<claim>{CLAIM}</claim>"
FROZEN = {
    "de": "a19e8c058e3886a4ac1a405180e69296f2425ac42614a1dcee5b0f7dd363323b",
    "es": "653ae38743204abd6d4c77f94aecf46786b99835b7e18c9eaeed5f7421463589",
    "fr": "6e107671f7a41db78fdad43e856781d58baa345c172a261420fbe650d8a3216d",
    "zh": "7ff3e6881679b6394ee747bc08e110b522ee6f4b1555537c2751174bc0c11dd8",
}
# "Probability"; true and what stands for it; false and what stands for it.
WORDS = {
    "en": (r"probab", r"\btrue\b|full belief", r"\bfalse\b|full disbelief"),
    "de": (r"wahrscheinlich", r"\bwahr\b|voller Glaube\b", r"\bfalsch\b|voller Unglaube"),
    "es": (r"probab", r"\bverdadera\b|creencia plena", r"\bfalsa\b|incredulidad plena"),
    "fr": (r"probab", r"\bvraie\b|pleine croyance", r"\bfausse\b|pleine incroyance"),
    "zh": (r"概率", r"真|完全相信", r"假|完全不相信"),
}
IN_EACH = {
    "en": "Tea is a plant.",
    "de": "Tee ist eine Pflanze.",
    "es": "El té es una planta.",
    "fr": "Le thé est une plante.",
    "zh": "茶是一种植物。",
}
every_language = pytest.mark.parametrize("code", OTHERS)


def wordings(bank: Bank) -> list[str]:
    """The wordings without the claim."""
    return [text.replace(CLAIM, "").strip() for text in bank.paraphrases]


def outcomes(code: str, text: str) -> list[str]:
    """True and false, in the order in which a wording first names them."""
    _, true, false = (re.compile(one, re.IGNORECASE) for one in WORDS[code])
    found = {"true": true.search(text), "false": false.search(text)}
    return sorted((name for name, at in found.items() if at), key=lambda name: found[name].start())


@every_language
def test_the_text_is_frozen(code: str):
    """Editing a word under the same version would mix two measurements: bump the version."""
    assert OTHERS[code].version == f"rpl_{code}_v1_2026-11-18"
    assert OTHERS[code].sha256 == FROZEN[code]


def test_no_two_banks_share_a_text():
    """Sixteen wordings in each of five languages are eighty texts, and five frames."""
    banks = [ENGLISH, *OTHERS.values()]
    assert [bank.T_bank for bank in banks] == [16] * 5
    assert len({text for bank in banks for text in bank.paraphrases}) == 80
    assert len({bank.system for bank in banks}) == len({bank.user_template for bank in banks}) == 5


@every_language
def test_wordings_pair_with_those_of_the_english_bank(code: str):
    """Claim and question, true and false, numbers and question marks stand as in wording i there."""
    own = OTHERS[code]
    for idx, (there, here) in enumerate(zip(wordings(ENGLISH), wordings(own), strict=True)):
        first = ENGLISH.paraphrases[idx].startswith(CLAIM)
        assert own.paraphrases[idx] == (f"{CLAIM}\n\n{here}" if first else f"{here}\n\n{CLAIM}")
        assert outcomes(code, here) == outcomes("en", there), idx
        assert re.search(WORDS[code][0], here, re.IGNORECASE), idx
        assert set(re.findall(r"\d+", here)) == set(re.findall(r"\d+", there)), idx
        assert len(re.findall("[?？]", here)) == len(re.findall("[?？]", there)), idx


@every_language
def test_the_contract_is_that_of_the_english_bank(code: str):
    """The same JSON object is asked for in the frame and again as the last thing said."""
    bank, contract = OTHERS[code], '{"prob_true": NUMBER}'
    assert bank.system.count(contract) == ENGLISH.system.count(contract) == 1
    assert contract in bank.user_template.partition("{PARAPHRASE}")[2]
    assert len(bank.system.splitlines()) == len(ENGLISH.system.splitlines())
    for text in (bank.system, bank.user_template):
        assert set(re.findall(r"\d+", text)) == {"0", "1"}
    user = render(bank, 3, "x</claim> {CLAIM} <claim>y").user
    assert "<claim>x</claim> {CLAIM} <claim>y</claim>" in user


@pytest.mark.parametrize(("code", "claim"), IN_EACH.items())
def test_a_plain_claim_is_recognised(code: str, claim: str):
    """Script and common words name the language of a plain sentence."""
    assert recognise(claim) == code


@pytest.mark.parametrize(
    "claim",
    [
        "Vaccines cause autism.",  # no common word in it
        "Il tè è una pianta.",
        "O chá é uma planta.",
        "Thee is een plant.",
        "お茶は植物です。",
        "차는 식물이다.",
        "Чай - это растение.",
        "El Niño raises global temperatures.",  # a name isn't enough
        "42",
    ],
)
def test_what_is_not_clear_is_not_named(claim: str):
    """Neighbours of the five languages, and sentences without a sign, have no name here."""
    assert recognise(claim) is None


def test_names_and_possessives_leave_a_claim_english():
    """An English "'s" is no French word; Chinese stays Chinese around a name."""
    assert (
        recognise(
            "Yale University's alumni of the year are in L\N{RIGHT SINGLE QUOTATION MARK}Aquila."
        )
        == "en"
    )
    assert recognise("L\N{RIGHT SINGLE QUOTATION MARK}eau bout à 100 degrés.") == "fr"
    assert recognise("NASA于1969年将人类送上月球。") == "zh"


def test_english_asked_for_is_what_is_measured_unasked():
    """Neither `language: en` nor `auto` changes the identities of a run in English."""

    def run_ids(**more: str) -> list[str]:
        config = RunConfig(claim=IN_EACH["en"], model="gpt-5", **more)
        measurement = prepare(config, Settings.from_env({}), mock=True)
        return [plan.run_id for model in measurement.models for plan in measurement.plans(model)]

    assert run_ids() == run_ids(language="en") == run_ids(language="auto")
    assert run_ids() != run_ids(language="de")


def test_auto_takes_the_bank_of_each_claim():
    """A file in five languages is asked in five; what isn't clear is asked in English, and told."""
    claims = [*IN_EACH.values(), "Vaccines cause autism."]
    config = RunConfig(claims_file="-", language=AUTO)
    measurement = prepare(config, Settings.from_env({}), claims=claims, mock=True)
    (model,) = measurement.models
    banks = [plan.bank.source for plan in measurement.plans(model)]
    assert banks == [*LANGUAGES.values(), "rpl_v1"]
    assert measurement.unrecognised == ["Vaccines cause autism."]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"language": "xx"}, "must be one of `en`"),
        ({"language": "de", "prompt_version": "rpl_v1"}, "`language` chooses a bank"),
        ({"language": "de", "prompts_file": "mine.yaml"}, "`language` chooses a bank"),
        ({"language": "fr", "readout": "truth_token"}, "must be en with `readout` truth_token"),
    ],
)
def test_a_language_that_cannot_be_is_refused(values: dict[str, str], said: str):
    """A bank is chosen once, by a known name."""
    with pytest.raises(ConfigError, match=said):
        RunConfig.parse(values)


def test_the_language_is_a_key_of_a_configuration(tmp_path: Path):
    """`language:` in the file chooses the bank."""
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"claim": IN_EACH["fr"], "language": "fr"}), encoding="utf-8")
    assert load_config(path).bank_name == "rpl_fr_v1"
