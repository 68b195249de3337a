"""Expectations on beliefs: judged by intervals, never by the number alone."""

import xml.etree.ElementTree as ET

import pytest

from heretix.core.errors import ConfigError, UsageError
from heretix.report.studies import checks_junit
from heretix.studies import check as c
from heretix.studies.study import StudyRun

NAMES = {"mock:a": "mock:a", "mock:b": "mock:b"}


def run_of(claim, model, *values):
    """A run with one answer a wording; without any, one that has no estimate."""
    return StudyRun(
        claim=claim,
        model=model,
        provider="mock",
        lens="RPL",
        demonstration=False,
        execution_id="exec-0",
        run_id="heretix-rpl-0",
        run_sha256="0",
        prob_true=0.5 if values else None,
        ci95=None,
        logits={f"{t:03d}": [value] for t, value in enumerate(values)},
        calls=1,
        cost_usd=None,
    )


def read(tmp_path, checks, models="[mock:a]"):
    """A file of expectations, read."""
    path = tmp_path / "beliefs.yaml"
    path.write_text(f"models: {models}\nchecks:\n{checks}")
    return c.read_checks(path)


SURE = (3.0, 3.1, 2.9, 3.05, 2.95, 3.0, 3.1, 2.9)
TORN = (2.0, -1.0, 3.0, 0.0, 2.5, -0.5, 1.0, 4.0)


@pytest.mark.parametrize(
    ("rule", "values", "verdict"),
    [
        ("at_least: 0.9", SURE, "holds"),
        ("at_least: 0.99", SURE, "fails"),
        ("at_least: 0.9", TORN, "undecided"),
        ("at_most: 0.1", SURE, "fails"),
        ("at_most: 0.99", SURE, "holds"),
        ("between: [0.9, 0.99]", SURE, "holds"),
        ("between: [0.2, 0.4]", SURE, "fails"),
        ("between: [0.7, 0.8]", TORN, "undecided"),
        ("{within: 0.05, of: 0.95}", SURE, "holds"),
        ("{within: 0.05, of: 0.5}", SURE, "fails"),
        ("{within: 0.05, of: 0.75}", TORN, "undecided"),
        ("at_least: 0.9", (), "no_estimate"),
    ],
)
def test_intervals_decide(tmp_path, rule, values, verdict):
    """Inside holds, outside fails, across an end is undecided."""
    body = rule.strip("{}").replace(", of", "\n    of")
    checks = read(tmp_path, f"  - claim: A.\n    {body}\n")
    (found,) = c.judge(checks, NAMES, [run_of("A.", "mock:a", *values)])
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("lo", "hi", "verdict"),
    [
        (0.2, 0.8, "holds"),
        (0.1, 0.8, "undecided"),
        (0.2, 0.9, "undecided"),
        (0.81, 0.9, "fails"),
        (0.0, 0.19, "fails"),
        (0.0, 1.0, "undecided"),
    ],
)
def test_ends_belong_to_the_range(lo, hi, verdict):
    """An interval that touches an end from inside holds."""
    assert c.decide(lo, hi, 0.2, 0.8) == verdict


def test_models_that_agree_are_compared_in_pairs(tmp_path):
    """The difference over shared wordings is judged, so that what they share cancels out."""
    checks = read(tmp_path, "  - claim: A.\n    agree: 0.05\n", "[mock:a, mock:b]")
    close = [value + 0.1 for value in TORN]
    (found,) = c.judge(
        checks, NAMES, [run_of("A.", "mock:a", *TORN), run_of("A.", "mock:b", *close)]
    )
    assert (found.verdict, found.models) == ("holds", ("mock:a", "mock:b"))
    far = [-value for value in SURE]
    (found,) = c.judge(checks, NAMES, [run_of("A.", "mock:a", *SURE), run_of("A.", "mock:b", *far)])
    assert found.verdict == "fails"


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ("  - claim: A.\n    at_last: 0.9\n", "line 4: unknown key `checks[0].at_last`"),
        ("  - claim: A.\n    at_last: 0.9\n", "did you mean `at_least`?"),
        ("  - claim: A.\n", "one of at_least, at_most, between, within, agree must be given"),
        ("  - claim: A.\n    at_least: 0.9\n    at_most: 0.95\n", "got at_least, at_most"),
        ("  - claim: A.\n    within: 0.1\n", "`within` and `of` go together"),
        ("  - claim: A.\n    between: [0.9, 0.1]\n", "`between` must be [low, high]"),
        ("  - claim: A.\n    at_least: 1.5\n", "at most 1"),
        ("  - claim: A.\n    agree: 0.1\n", "`agree` needs at least 2 models"),
        ("  - claim: A.\n    at_least: 0.5\n    models: [mock:z]\n", "'mock:z'"),
        ("  - claim: A.\n    within: 0.1\n    of: gone.json\n", "gone.json"),
    ],
)
def test_mistakes_are_named(tmp_path, checks, said):
    """Before anything is measured."""
    with pytest.raises(UsageError) as refused:
        read(tmp_path, checks)
    assert said in str(refused.value)


def test_an_expectation_file_must_hold_something(tmp_path):
    """An empty one can't pass."""
    path = tmp_path / "beliefs.yaml"
    path.write_text("models: [mock:a]\nchecks: []\n")
    with pytest.raises(ConfigError):
        c.read_checks(path)


def test_junit_tells_failures_from_what_is_undecided(tmp_path):
    """Undecided fails the build unless that is allowed; no estimate is an error."""
    checks = read(
        tmp_path,
        "".join(f"  - claim: {name}.\n    at_least: 0.9\n" for name in "ABCD"),
    )
    runs = [
        run_of("A.", "mock:a", *SURE),
        run_of("B.", "mock:a", *(-value for value in SURE)),
        run_of("C.", "mock:a", *TORN),
        run_of("D.", "mock:a"),
    ]
    found = c.judge(checks, NAMES, runs)
    suite = ET.fromstring(checks_junit(found, "beliefs", allow_undecided=False))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "1")
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [[], ["failure"], ["failure"], ["error"]]
    suite = ET.fromstring(checks_junit(found, "beliefs", allow_undecided=True))
    assert [[child.tag for child in case] for case in suite][2] == ["skipped"]
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "1")


def test_junit_of_a_claim_that_xml_cannot_hold_can_be_read(tmp_path):
    """A character that XML has no way to write is replaced, so that a CI system can read the rest."""
    checks = read(tmp_path, '  - claim: "A \\ufffe claim."\n    at_least: 0.9\n')
    (claim,) = checks.claims
    found = c.judge(checks, NAMES, [run_of(claim, "mock:a", *SURE)])
    suite = ET.fromstring(checks_junit(found, "beliefs", allow_undecided=False))
    assert [case.get("name") for case in suite] == ["p ≥ 0.9: A \ufffd claim."]
