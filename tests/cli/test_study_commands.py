"""`heretix design`, `study`, `card` and `check`, as people and CI use them."""

import csv
import json
import xml.etree.ElementTree as ET

import pytest

import heretix as heretix_package
from heretix.core.errors import ClaimError
from heretix.evidence.demo import demo_claims
from heretix.report.studies import study_findings
from heretix.studies.study import digest_study, read_study, verify_study

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
    said = study_findings(read_study(four.parent / "s.json"))
    assert " ".join(result.out.split()).startswith(" ".join(said))
    verified = heretix("verify", "s.json")
    assert verified.code == 0
    assert "8 of 8 runs are in" in verified.out
    # A published interval is the run's own: a record that was signed anew is caught by the store.
    record = read_study(four.parent / "s.json")
    forged = record.runs[0].model_copy(update={"ci95": (0.0, 1.0)})
    record = record.model_copy(update={"runs": (forged, *record.runs[1:])})
    record = record.model_copy(update={"sha256": digest_study(record)})
    (four.parent / "forged.json").write_text(record.to_json())
    told = heretix("verify", "forged.json")
    assert told.code == 1
    assert "runs[0].ci95" in told.out
    changed = four.parent / "s.json"
    changed.write_text(changed.read_text().replace('"Claim 1."', '"Claim 9."', 1))
    assert heretix("verify", "s.json").code == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("sim:led?mel=3&any_text=0&prior=0.5", "evidence-driven"),
        ("sim:swayed?mel=3&prior=0.5", "moved by any text"),
    ],
)
@pytest.mark.study
def test_a_card_tells_evidence_from_any_text(heretix, folder, model, said):
    """Irrelevant text is measured beside documents, is in the price, and in the record."""
    rows = [{"claim": claim, "label": 1} for claim in demo_claims()]
    (folder / "demo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("card", model, "--claims", "demo.jsonl", "--lens", "RPL,NUL,MEL", "--corpus", "demo")
    calls = len(rows) * 4 * 16
    priced = json.loads(heretix(*command, "--dry-run", "--json").out)
    assert priced["to_call"] == calls
    result = heretix(*command, "--out", "card.json", "--table", "card.csv")
    assert result.code == 0, result.err
    assert f"; shown documents: {said}" in " ".join(result.out.split())
    record = json.loads((folder / "card.json").read_text())
    assert sum(run.get("variant") == "sham" for run in record["runs"]) == len(rows)
    (subject,) = record["results"]["subjects"]
    beyond = subject["standards"][4]
    assert beyond["name"] == "evidence_minus_sham"
    assert (beyond["lo"] > 0) == (said == "evidence-driven")
    with (folder / "card.csv").open() as file:
        assert {row["variant"] for row in csv.DictReader(file)} == {"", "sham"}
    verified = heretix("verify", "card.json")
    assert verified.code == 0, verified.out


def test_a_design_without_scatter_or_with_endless_numbers_is_told(heretix):
    """Where nothing scatters any plan will do; what isn't finite is refused."""
    spread = ("design", "--template-variance", "0", "--replicate-variance")
    found = heretix(*spread, "0", "--width", "0.2", "--out", "width.svg")
    assert found.code == 0, found.err
    assert "Wordings don't differ here" in found.out
    for option in (("nan",), ("inf",), ("0.1", "--price", "inf")):
        refused = heretix(*spread, *option, "--width", "0.2")
        assert (refused.code, refused.out) == (2, "")
        assert "finite" in refused.err


def test_a_table_that_cannot_be_written_is_refused_before_anything_is_measured(heretix, four):
    """The option is named that named the file."""
    refused = heretix("study", "calibration", "--claims", four, *MODEL, "--table", "t.xls")
    assert (refused.code, refused.out) == (2, "")
    assert "`--table` must end in" in refused.err


def test_a_table_without_a_column_of_claims_is_refused(heretix, folder):
    """The column that is lacking is named, and what stands there."""
    (folder / "claims.csv").write_text("claim:label\nAn ant flies.:1\n")
    refused = heretix("study", "calibration", "--claims", "claims.csv", *MODEL)
    assert refused.code == 2
    assert "must have a column `claim`" in refused.err
    assert "claim:label" in refused.err


@pytest.mark.parametrize("kind", ["calibration", "coherence", "variance", "card"])
def test_read_outs_are_measured_side_by_side(heretix, four, folder, kind):
    """Each has its runs, its table and its place in the report; the record verifies."""
    command = ("card", "sim:judge") if kind == "card" else ("study", kind, "-m", "sim:judge")
    both = ("--claims", four, "--readout", "truth_token", "--readout", "sampled", "-K", "8")
    files = ("--out", "s.json", "--table", "s.csv", "--report", "s.html")
    calls = 8 * 3 * (8 if kind in ("coherence", "card") else 4)
    priced = heretix(*command, *both, "--dry-run", "--json")
    assert json.loads(priced.out)["to_call"] == calls
    result = heretix(*command, *both, *files)
    assert result.code == 0, result.err
    record = json.loads((folder / "s.json").read_text())
    assert sum(run["calls"] for run in record["runs"]) == calls
    subjects = record["results"]["subjects"]
    assert [one["readout"] for one in subjects] == ["sampled", "truth_token"]
    with (folder / "s.csv").open(newline="") as file:
        assert {row["readout"] for row in csv.DictReader(file)} == {"sampled", "truth_token"}
    assert "truth_token" in (folder / "s.html").read_text()
    assert ("minus" in result.out) == (kind in ("calibration", "coherence"))
    assert heretix("verify", "s.json").code == 0


def test_an_unknown_read_out_is_refused(heretix, four):
    """Before anything is asked, with those there are."""
    result = heretix("study", "calibration", "--claims", four, *MODEL, "--readout", "guess")
    assert result.code == 2
    assert "truth_token" in result.err


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
    cheapest = design["plans"]["cheapest for 0.2"]
    assert cheapest["expected_width"] <= 0.2
    begin = f"-K {cheapest['T']} -R {cheapest['R']} -T {cheapest['T']} --until-width 0.2"
    assert begin in design["notes"][-1]


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


@pytest.mark.parametrize("kind", ["calibration", "coherence", "variance", "card"])
@pytest.mark.parametrize(("n", "why"), [(1, "at least 2"), (4, "same outcome")])
def test_too_little_to_tell_is_a_missing_number_with_its_reason(heretix, folder, kind, n, why):
    """One claim, or claims that are all true: no number is made up, and the record verifies."""
    rows = [{"claim": f"C{i}.", "label": 1, "negation": f"Not C{i}."} for i in range(n)]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("card", "mock:m") if kind == "card" else ("study", kind, "-m", "mock:m")
    files = ("--out", "s.json", "--report", "s.svg", "--table", "s.csv")
    result = heretix(*command, "--claims", "c.jsonl", "-K", 8, "-T", 4, *files)
    none = n == 1 and kind in ("calibration", "card")
    assert result.code == (1 if none else 0), result.err
    reasons = (folder / "s.json").read_text()
    assert (why in reasons) == (kind in ("calibration", "card") or (kind, n) == ("coherence", 4))
    assert heretix("verify", "s.json").code == 0


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


@pytest.mark.parametrize(
    ("rule", "about", "said"),
    [
        ("between: [0.05, 0.99]", "belief", "0.05 ≤ p ≤ 0.99: holds, p = "),
        ("within: 0.9\n    of: 0.5", "difference", "within 0.9 of 0.5: holds, difference = "),
    ],
)
def test_a_line_says_which_number_was_held_against_the_rule(heretix, folder, rule, about, said):
    """The belief, or its difference from what the rule names."""
    text = f"models: [mock:gpt-5]\nchecks:\n  - claim: Gold rusts.\n    {rule}\n"
    (folder / "b.yaml").write_text(text)
    assert said in heretix("check", "b.yaml").out
    assert json.loads(heretix("check", "b.yaml", "--json").out)[0]["about"] == about


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
    published = [run["ci95"] for run in json.loads((folder / "s.json").read_text())["runs"]]
    assert [[float(row["ci_lo"]), float(row["ci_hi"])] for row in rows] == published
    assert all(f"<td>{lo:.3f}</td><td>{hi:.3f}</td>" in page for lo, hi in published)
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


def test_few_claims_are_said_to_hide_calibration_error(heretix, four):
    """The error without its bias stands beside the one with it, and a warning below 400 claims."""
    said = heretix("study", "calibration", "--claims", four, *MODEL).out
    assert "ece comes out too small below 400 claims" in said


def test_rows_from_python_are_studied(folder):
    """The library takes rows as a file has them, and refuses what a file's reader refuses."""
    rows = [{"claim": f"Claim {n}.", "label": n % 2} for n in range(4)]
    study = heretix_package.study("calibration", rows, models=["mock:a"], R=1)
    assert study.results.subjects[0].calibration.n_claims == 4
    assert verify_study(study.record).ok
    with pytest.raises(ClaimError, match="`label` is missing"):
        heretix_package.study("calibration", [{"claim": "A."}], models=["mock:a"])
