"""The catalogue of sentences: every code that records hold has one, whatever its parameters."""

from types import SimpleNamespace
from typing import get_args

import pytest

from heretix.evidence.bundle import DropReason, Shortfall
from heretix.measurement.record import BesideRecord, ReasonRecord, TRecord, TwinsRecord
from heretix.report.words import (
    DROP_PHRASES,
    beside_text,
    cell_text,
    check_text,
    composition_text,
    drop_detail,
    missing_reason,
    no_estimate_reason,
    p_text,
    reliability_text,
    stance_text,
    twins_text,
    warn_clamp_sensitive,
    warn_few_pairs,
)

PARAMS = {
    DropReason.WRONG_CLASS: ({"cls": "contested"}, "its class is contested"),
    DropReason.AFTER_AS_OF: ({"published": "2025-01-02"}, "it was published on 2025-01-02"),
    DropReason.INJECTION: ({"kinds": ["answer", "role"]}, "it looks like: answer, role"),
    DropReason.BELOW_FLOOR: (
        {"r": 0.012345, "floor": 0.02},
        "its text shows a reliability of 0.012 at least, the floor is 0.02",
    ),
    DropReason.DUPLICATE: ({"of": "d1"}, "it is a copy of d1"),
    DropReason.PUBLISHER_CAP: (
        {"cap": 2, "publisher": "bbc.com"},
        "2 better ones are from bbc.com",
    ),
    DropReason.OVER_BUDGET: (
        {"k": 8, "chars_per_item": 600},
        "8 items of 600 characters are chosen",
    ),
}


@pytest.mark.parametrize("reason", DropReason)
def test_every_drop_reason_has_a_phrase_and_a_sentence(reason):
    params, sentence = PARAMS.get(reason, ({}, None))
    assert DROP_PHRASES[reason]
    assert drop_detail(reason.value, params) == (sentence or drop_detail(reason, {}))


def test_every_code_of_a_missing_value_has_a_sentence():
    lacks = Shortfall(lens="MEL", needed=3, got=1, dropped={DropReason.UNREAD: 2}, as_of=None)
    params = {
        "insufficient_evidence": lacks.to_json(),
        "calls_failed": {"error": "ServerError: 500"},
        "one_template": {"needed": 3, "got": 4, "templates": 1, "planned": 8},
        "too_few_samples": {"needed": 3, "got": 2, "templates": 2, "planned": 8}
        | {"failed": 14, "attempted": 16, "error": "ServerError: 500"},
        "too_few_stems": {"needed": 8, "got": 4, "lenses": ["RPL", "MEL"]},
    }
    said = {
        code: missing_reason(ReasonRecord(code=code, params=params.get(code, {})))
        for code in get_args(ReasonRecord.model_fields["code"].annotation)
    }
    assert said["insufficient_evidence"] == str(lacks)
    failed = "every call failed, the last with: ServerError: 500"
    assert said["calls_failed"] == f"no estimate: {failed}"
    reason = ReasonRecord(code="calls_failed", params=params["calls_failed"])
    assert no_estimate_reason(reason) == failed
    assert (
        "from at least 2 when more than one was planned, got 4 from 1 of 8" in said["one_template"]
    )
    assert "at least 3 compliant ones, got 2 from 2 of 8 templates;" in said["too_few_samples"]
    assert said["too_few_samples"].endswith(
        "; 14 of 16 calls failed, the last with: ServerError: 500"
    )
    assert "got 4 (RPL, MEL); measure with T at least 8" in said["too_few_stems"]
    assert all(said.values())
    assert missing_reason(None) == ""


def test_a_shortfall_survives_its_json():
    from datetime import date

    lacks = Shortfall(
        lens="HEL", needed=3, got=0, dropped={DropReason.OFF_TOPIC: 4}, as_of=date(2024, 1, 2)
    )
    assert Shortfall.from_json(lacks.to_json()) == lacks
    assert "4 off_topic" in str(lacks)


def test_a_belief_that_extreme_answers_decide_is_called_clamp_sensitive():
    """The eight answers of the design: .928 as published, .757 held at .005."""
    beside = BesideRecord(
        template_t=None,
        n_extreme=3,
        extreme_share=3 / 8,
        center_clamped=0.757,
        clamp_sensitive=True,
    )
    assert warn_clamp_sensitive(beside) == (
        "clamp-sensitive: 38% of the answers are exactly 0 or 1; with every answer held within "
        ".005 and .995 the belief would be 0.757"
    )
    assert warn_clamp_sensitive(beside.model_copy(update={"clamp_sensitive": False})) is None
    assert warn_clamp_sensitive(None) is None
    assert beside_text(beside) == "38% of answers exactly 0 or 1, 0.757 with them held at .005"
    plain = beside.model_copy(update={"n_extreme": 0})
    assert beside_text(plain) == ""


def test_each_p_value_stands_beside_the_interval_of_its_statistic():
    twins = TwinsRecord(
        paired_template_t=TRecord(value=0.048, lo=-0.005, hi=0.101, p_value=0.0712),
        paired_template_t_trimmed=TRecord(value=0.05, lo=0.01, hi=0.09, p_value=0.00001),
    )
    assert twins_text(twins) == (
        "+0.048 [-0.005, +0.101] p=0.0712; trimmed +0.050 [+0.010, +0.090] p<0.0001"
    )
    assert p_text(1.0) == "p=1.0000"
    assert warn_few_pairs(8) is None
    assert "only 1 wording shared" in warn_few_pairs(1)


def test_a_composition_says_what_came_on_request_and_what_stayed_out():
    """Classes are counted; unknown ones are told whether they were let in or left out."""
    drops = [
        {"reason": "wrong_class", "cls": "unknown"},
        {"reason": "wrong_class", "cls": "canonical"},
        {"reason": "off_topic", "cls": "unknown"},
    ]
    shown = [{"cls": cls} for cls in ("contested", "heterodox", "heterodox")]
    bundle = {"lens": "HEL", "items": shown, "dropped": drops}
    assert composition_text(bundle) == "2 heterodox, 1 contested; 1 unknown left out"
    asked = {"lens": "HEL", "items": [{"cls": "unknown"}], "dropped": []}
    assert composition_text(asked) == "1 unknown; unknown on request"


def test_a_reliability_that_nobody_placed_is_an_interval():
    """Signals leave a range open; its low end alone would call a health agency worthless."""
    parts = {name: {"lo": 0.1, "hi": 0.6, "score": 0.1} for name in "PHREA"}
    assert reliability_text({"r": 0.05, "parts": parts, "judged": False}) == "0.05–0.58"
    assert reliability_text({"r": 0.31, "parts": parts, "judged": True}) == "0.31"


def test_stances_are_counted_by_class():
    """Classes in order of their documents; empty where nobody has judged."""
    sides = [("canonical", "supports"), ("canonical", None), ("contested", "refutes")]
    items = [{"cls": cls, "stance": stance} for cls, stance in sides]
    told = "canonical 1 for, 1 not judged; contested 1 against"
    assert stance_text({"items": items}) == told
    assert stance_text({"items": [{"cls": "canonical", "stance": None}]}) == ""


@pytest.mark.parametrize(
    ("variant", "lo", "hi", "told"),
    [
        ("canary", -0.3, -0.1, "obeys a planted order (answer 0.99): minus canary -0.200 ["),
        ("canary", -0.3, 0.1, "a planted order has no clear effect: minus canary"),
        ("canary", 0.1, 0.3, "moved away from a planted order: minus canary +0.200"),
        ("swapped", 0.1, 0.3, "depends on the order of its documents: minus swapped"),
        ("swapped", -0.1, 0.1, "the order of its documents has no clear effect"),
        ("sham", 0.1, 0.3, ""),
    ],
)
def test_a_check_says_no_more_than_its_interval(variant, lo, hi, told):
    """A belief above that of the lens as it is, and surely so, has obeyed."""
    by_t = SimpleNamespace(value=(lo + hi) / 2, lo=lo, hi=hi, p_value=0.04)
    twins = SimpleNamespace(paired_template_t=by_t)
    said = check_text(SimpleNamespace(variant=variant, beside=twins, reason=None))
    assert said.startswith(told)
    assert bool(said) == bool(told)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('=HYPERLINK("https://x.example")', '\'=HYPERLINK("https://x.example")'),
        ("+1+1", "'+1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("\tx", "'\tx"),
        ("-0.25", "-0.25"),
        ("Tea is a plant.", "Tea is a plant."),
        (-0.25, -0.25),
        (None, None),
    ],
)
def test_no_cell_of_a_table_is_a_formula(value, written):
    """What a spreadsheet would work out stays text; numbers and other words are as they were."""
    assert cell_text(value) == written
