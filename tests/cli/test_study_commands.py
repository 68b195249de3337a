"""`heretix design`, `study`, `card` and `check`, as people and CI use them."""

import csv
import json
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import heretix as heretix_package
from heretix.core.errors import ClaimError
from heretix.studies.study import verify_study

REPOSITORY = Path(__file__).parents[2]
MODEL = ("-m", "mock:gpt-5")


@pytest.fixture
def four(folder):
    """Four labelled claims with negations."""
    rows = [
        {"claim": f"Claim {n}.", "label": n % 2, "negation": f"Not claim {n}."} for n in range(4)
    ]
    path = folder / "four.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_calibration_is_measured_recorded_and_verified(heretix, four):
    """The record verifies alone and against the store; a changed one doesn't."""
    result = heretix(
        "study", "calibration", "--claims", four, *MODEL, "-m", "mock:b", "-o", "s.json"
    )
    assert result.code == 0, result.err
    assert "mock:b minus mock:gpt-5, over 4 claims" in result.out
    assert "made-up answers" in result.out
    verified = heretix("verify", "s.json")
    assert verified.code == 0
    assert "8 of 8 runs are in" in verified.out
    changed = four.parent / "s.json"
    changed.write_text(changed.read_text().replace('"Claim 1."', '"Claim 9."', 1))
    assert heretix("verify", "s.json").code == 1


def test_a_study_that_was_done_calls_nothing_again(heretix, four):
    """Samples are cached: the same command continues, or repeats without a call."""
    before = json.loads(heretix("study", "variance", "--claims", four, *MODEL, "--json").out)
    again = json.loads(heretix("study", "variance", "--claims", four, *MODEL, "--json").out)
    assert sum(run["calls"] for run in before["runs"]) == 64
    assert sum(run["calls"] for run in again["runs"]) == 0
    assert again["results"] == before["results"]


def test_the_price_is_told_beforehand(heretix, four, folder):
    """`--dry-run` counts negations too, calls nothing and makes no store."""
    result = heretix("study", "coherence", "--claims", four, *MODEL, "--dry-run", "--json")
    assert json.loads(result.out)["to_call"] == 128
    assert not (folder / "runs" / "heretix.sqlite").exists()


def test_planted_acquiescence_is_found(heretix):
    """A simulated model that gives every claim and negation .5987 acquiesces by .4."""
    result = heretix(
        *("study", "coherence", "--claims", "plain", "--json"),
        *("-m", "sim:yes?prior=0.598688"),
    )
    assert result.code == 0, result.err
    found = json.loads(result.out)["results"]["subjects"][0]
    assert found["summary"]["acquiescence"]["lo"] <= 0.4 <= found["summary"]["acquiescence"]["hi"]
    assert {pair["pair"]["n_templates"] for pair in found["pairs"]} == {8}


def test_planted_variances_are_found(heretix):
    """A simulated model with known spread gives it back, and a design for it."""
    model = "sim:x?template_sd=0.6&noise_sd=0.3"
    result = heretix("study", "variance", "--claims", "plain", "-m", model, "--json")
    found = json.loads(result.out)["results"]["subjects"][0]["components"]
    assert found["template"] == pytest.approx(0.36, abs=0.08)
    assert found["replicate"] == pytest.approx(0.09, abs=0.02)
    design = json.loads(heretix("design", "-m", model, "--width", "0.2", "--json").out)
    assert design["components"]["template"] == pytest.approx(found["template"])
    assert design["plans"]["cheapest for 0.2"]["expected_width"] <= 0.2


def test_design_knows_the_figures_of_its_definition(heretix, folder):
    """With .30 between and .10 within, 16 × 1 beats 8 × 2; the chart is drawn."""
    result = heretix(
        *("design", "--template-variance", "0.3", "--replicate-variance", "0.1"),
        *("--width", "0.2", "--out", "d.svg"),
    )
    assert result.code == 0, result.err
    assert "`--preset wide` (16 × 1) beats the default (8 × 2)" in result.out
    assert "R* = 0.58" in result.out
    assert (folder / "d.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--template-variance", "0.3"), "must be given together"),
        (("--template-variance", "0", "--replicate-variance", "1", "--width", "0.01"), "can't be"),
        (("--template-variance", "1", "--replicate-variance", "1", "--prob", "2"), "`--prob`"),
        (("--template-variance", "1", "--replicate-variance", "1", "--price", "0"), "`price`"),
        ((), "heretix run"),
    ],
)
def test_designs_that_cannot_be_made_are_refused(heretix, given, said):
    """With what to do."""
    result = heretix("design", *given)
    assert result.code == 2
    assert said in result.err


def test_one_replicate_gives_no_components(heretix):
    """Wordings can't be told from repeats without repeats."""
    result = heretix("study", "variance", "--claims", "plain", *MODEL, "--preset", "wide")
    assert result.code == 2
    assert "`R` must be at least 2" in result.err


def test_coherence_is_measured_without_documents(heretix, four, folder):
    """Lenses in a coherence file are refused."""
    (folder / "s.yaml").write_text(
        "study: coherence\nclaims: four.jsonl\nmodels: [mock:a]\nlenses: [RPL, NUL]\n"
    )
    result = heretix("study", "run", "s.yaml")
    assert result.code == 2
    assert "`lenses` of a coherence study must be RPL" in result.err


def test_a_model_that_only_fails_ends_with_3(heretix, four):
    """Nothing was measured."""
    result = heretix("study", "calibration", "--claims", four, "-m", "mock:x?rejected=1")
    assert result.code == 3


def test_answers_nobody_can_use_end_with_1(heretix, four):
    """Measured, and no result."""
    result = heretix("study", "calibration", "--claims", four, "-m", "mock:x?not_json=1")
    assert result.code == 1
    assert "0 claims, 4 left out" in result.out


BELIEFS = """
models: ["sim:sure?prior=0.95&template_sd=0.1", "sim:torn?prior=0.5&template_sd=1"]
checks:
  - claim: Coffee beans are seeds.
    at_least: 0.9
    models: ["sim:sure?prior=0.95&template_sd=0.1"]
"""


def test_checks_that_hold_end_with_0(heretix, folder):
    """And JUnit has one case for each expectation and model."""
    (folder / "b.yaml").write_text(BELIEFS)
    result = heretix("check", "b.yaml", "--junit", "j.xml")
    assert (result.code, result.out.split()[0]) == (0, "holds")
    assert ET.parse(folder / "j.xml").getroot().get("tests") == "1"


@pytest.mark.parametrize(
    ("more", "verdicts", "code", "allowed"),
    [
        ("at_least: 0.97", ["fails", "fails"], 1, 1),
        ("at_most: 0.55", ["fails", "undecided"], 1, 1),
        ("between: [0.05, 0.99]", ["holds", "holds"], 0, 0),
        ("agree: 0.1", ["fails"], 1, 1),
    ],
)
def test_checks_are_judged_by_intervals(heretix, folder, more, verdicts, code, allowed):
    """Each model by itself; agreement by pairs."""
    text = f"{BELIEFS.split('checks:', maxsplit=1)[0]}checks:\n  - claim: Gold rusts.\n    {more}\n"
    (folder / "b.yaml").write_text(text)
    result = heretix("check", "b.yaml", "--json")
    assert [found["verdict"] for found in json.loads(result.out)] == verdicts
    assert result.code == code
    assert heretix("check", "b.yaml", "--allow-undecided").code == allowed


def test_an_undecided_check_passes_only_where_that_is_allowed(heretix, folder):
    """CI isn't green by not knowing."""
    (folder / "b.yaml").write_text(
        'models: ["sim:torn?prior=0.5&template_sd=1"]\n'
        "checks:\n  - claim: Gold rusts.\n    at_least: 0.5\n"
    )
    assert "undecided" in heretix("check", "b.yaml").out
    assert heretix("check", "b.yaml").code == 1
    assert heretix("check", "b.yaml", "--allow-undecided").code == 0


def test_a_baseline_is_an_artifact_of_the_same_claim(heretix, folder):
    """A model that is asked again lies within .05 of itself; another claim is refused."""
    heretix("run", "Gold rusts.", *MODEL, "--preset", "wide", "-o", "base.json")
    text = "models: [mock:gpt-5]\nchecks:\n  - claim: {}\n    within: 0.05\n    of: base.json\n"
    (folder / "b.yaml").write_text(text.format("Gold rusts."))
    assert heretix("check", "b.yaml").code == 0
    (folder / "b.yaml").write_text(text.format("Silver rusts."))
    refused = heretix("check", "b.yaml")
    assert refused.code == 2
    assert "must hold one raw prior of 'Silver rusts.'" in refused.err


@pytest.mark.parametrize("kind", ["calibration", "coherence", "variance"])
def test_a_study_is_reported_and_tabled(heretix, four, folder, kind):
    """As a page that runs nothing, a PDF, and a row a run."""
    args = ("study", kind, "--claims", four, *MODEL, "-o", "s.json")
    result = heretix(*args, "--report", "r.html", "--table", "t.csv")
    assert result.code == 0, result.err
    page = (folder / "r.html").read_text()
    assert "<script" not in page
    assert "Verified:" in page
    assert "made-up answers" in page
    runs = 8 if kind == "coherence" else 4
    with (folder / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == runs
    assert all(float(row["t_lo"]) < float(row["prob_true"]) < float(row["t_hi"]) for row in rows)
    assert sum(row["relation"] == "negation" for row in rows) == runs - 4
    assert heretix("report", "s.json", "--out", "r.pdf").code == 0
    assert (folder / "r.pdf").read_bytes().startswith(b"%PDF")


def test_a_study_with_markup_in_its_claims_is_text(heretix, folder):
    """What a claim holds is never markup on the page."""
    evil = "<script>alert(1)</script> & more"
    rows = [{"claim": f"{evil} {n}", "label": n % 2} for n in range(4)]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ("study", "calibration", "--claims", "c.jsonl", *MODEL)
    assert heretix(*args, "--report", "r.html").code == 0
    assert "<script>" not in (folder / "r.html").read_text()


@pytest.mark.parametrize("given", [("--report", "r.doc"), ("--table", "t.xls"), ("-o", ".")])
def test_files_that_cannot_be_written_are_refused_first(heretix, four, folder, given):
    """Nothing is asked before that."""
    assert heretix("study", "calibration", "--claims", four, *MODEL, *given).code == 2
    assert not (folder / "runs" / "heretix.sqlite").exists()


def test_the_guide_works_as_written(heretix, folder):
    """Every file and command of docs/studies.md, in its order, ends as it says."""
    guide = (REPOSITORY / "docs" / "studies.md").read_text(encoding="utf-8")
    commands = 0
    for block in guide.split("```")[1::2]:
        kind, _, body = block.partition("\n")
        _, _, name = kind.partition(" ")
        if kind == "python":
            exec(body, found := {})
            assert 0 <= found["auroc"].lo <= found["auroc"].hi <= 1
        if name:
            (folder / name).write_text(body)
            continue
        for line in body.splitlines():
            if line.startswith("heretix "):
                command, _, note = line.partition("  # ")
                result = heretix(*shlex.split(command)[1:])
                assert result.code == (1 if "exit 1" in note else 0), (line, result.err)
                commands += 1
    assert commands >= 10


def test_few_claims_are_said_to_hide_calibration_error(heretix, four):
    """The error without its bias stands beside the one with it, and a warning below 400 claims."""
    said = heretix("study", "calibration", "--claims", four, *MODEL).out
    assert "ece comes out too small below 400 claims" in said


def test_rows_from_python_are_studied(folder):
    """The library takes rows as a file has them, and refuses what a file's reader refuses."""
    rows = [{"claim": f"Claim {n}.", "label": n % 2} for n in range(4)]
    record = heretix_package.study("calibration", rows, models=["mock:a"], R=1)
    assert record.results.subjects[0].calibration.n_claims == 4
    assert verify_study(record).ok
    with pytest.raises(ClaimError, match="`label` is missing"):
        heretix_package.study("calibration", [{"claim": "A."}], models=["mock:a"])
