"""`heretix lens`, `corpus`, `evidence`, `policy` and `anomalies`, as people type them."""

import json

import pytest

from heretix.measurement.verify import read_artifacts, verify_artifact
from heretix.report.charts.studies import evidence_days

CLAIM = "Daylight saving time reduces electricity consumption."
SIM = "sim:planted?mel=0.6&hel=-1.5&any_text=0"


@pytest.fixture(autouse=True)
def corpora(folder, monkeypatch):
    """Corpora live in the test's folder."""
    monkeypatch.setenv("HERETIX_CORPORA_DIR", str(folder / "corpora"))


def vector(heretix, *args):
    result = heretix("lens", CLAIM, "-m", SIM, "-K", 8, "-B", 500, "--out", "v.json", *args)
    assert result.code == 0, result.err
    return result, read_artifacts("v.json")[0]


def test_the_demo_corpus_gives_a_vector_at_once(heretix):
    """Four lenses, their intervals, and what lies between, on a fresh machine."""
    result, artifact = vector(heretix)
    assert [line.lens for line in artifact.lenses] == ["RPL", "NUL", "MEL", "HEL"]
    for word in ("Shock Index", "Amplification Gap", "evidence effect MEL", "effective sources"):
        assert word in result.out
    metrics = artifact.metrics[SIM]
    assert metrics.movement["HEL"].hi < 0 < metrics.movement["MEL"].lo
    assert all(verification.ok for verification in verify_artifact(artifact))
    assert heretix("verify", "v.json").code == 0
    assert "belief vector" in heretix("verify", "v.json").out


def test_a_rerun_makes_no_call(heretix):
    """Samples of every lens are cached."""
    vector(heretix)
    _, artifact = vector(heretix)
    assert {run.aggregates.cache_hit_rate for run in artifact.runs} == {1.0}


def test_your_own_documents_are_the_sandbox_lens(heretix, folder):
    """SEL shows exactly what was given, in its order."""
    (folder / "one.md").write_text("# One\n\nClocks moved and the meters fell by 2% in spring.")
    (folder / "two.txt").write_text("Air conditioning used more power in the lighter evenings.")
    _, artifact = vector(
        heretix, "--lens", "RPL,SEL", "--document", "one.md", "--document", "two.txt"
    )
    shown = next(run for run in artifact.runs if run.lens == "SEL").evidence
    assert [item.id for item in shown.items] == ["E01", "E02"]
    assert "meters fell" in shown.items[0].text
    assert heretix("lens", CLAIM, "-m", SIM, "--lens", "SEL").code == 2


def test_documents_of_your_own_are_checked_unless_you_say_no(heretix, folder):
    """SEL stands beside a planted order and its documents in reverse; one alone has no order."""
    (folder / "one.md").write_text("# One\n\nClocks moved and the meters fell by 2% in spring.")
    (folder / "two.txt").write_text("Air conditioning used more power in the lighter evenings.")
    both = ("--lens", "RPL,SEL", "--document", "one.md", "--document", "two.txt")
    result, artifact = vector(heretix, *both)
    assert [(one.lens, one.variant) for one in artifact.experiments] == [
        ("SEL", "canary"),
        ("SEL", "swapped"),
    ]
    assert all(verification.ok for verification in verify_artifact(artifact))
    assert result.out.count("check SEL") == 2
    run = heretix("run", CLAIM, "-m", SIM, "-B", 500, *both)
    assert run.out.count("check SEL") == 2
    assert "SEL canary" not in run.out
    _, artifact = vector(heretix, *both, "--no-checks")
    assert artifact.experiments is None
    _, artifact = vector(heretix, *both[:4])
    assert [one.variant for one in artifact.experiments] == ["canary"]


def test_experiments_stand_in_the_artifact_and_verify(heretix):
    """Influence, canary, sham and negation: each with a difference and its interval."""
    _, artifact = vector(
        heretix,
        "--lens",
        "RPL,HEL",
        "--influence",
        "--canary",
        "--sham",
        "--negation",
        "Daylight saving time does not save electricity.",
    )
    found = {record.variant for record in artifact.experiments}
    assert {"canary", "sham", "negation", "without:E01"} <= found
    assert all(record.difference is not None for record in artifact.experiments)
    assert all(verification.ok for verification in verify_artifact(artifact))
    assert len(artifact.lenses) == 2


@pytest.mark.parametrize(
    ("code", "claim", "texts"),
    [
        (
            "de",
            "Tee ist eine Pflanze.",
            (
                "Der Tee ist als Pflanze im Hochland zu Hause und blüht im Herbst.",
                "Botaniker zählen den Tee zu den Kamelien, einer Pflanze aus Asien.",
                "Wer Tee anbaut, schneidet die Pflanze jedes Jahr auf Hüfthöhe zurück.",
            ),
        ),
        (
            "zh",
            "茶是一种植物。",
            (
                "植物学家说，茶是山茶科的常绿灌木，原产于中国西南。",
                "这种植物的嫩叶经过加工之后就成为茶，秋天开白花。",
                "农民每年修剪茶树，因为这种植物太高就不便采摘。",
            ),
        ),
    ],
)
def test_a_claim_in_another_language_finds_its_documents(heretix, folder, code, claim, texts):
    """Retrieval, bank and placebo in the claim's language; the frame is the English one."""
    for n, text in enumerate(texts):
        page = f"---\nurl: https://office{n}.gov/page\n---\n{text}"
        (folder / f"{n}.md").write_text(page, encoding="utf-8")
    (folder / "off.md").write_text("---\nurl: https://office9.gov/x\n---\nTaxes are due in May.")
    files = [f"{n}.md" for n in range(3)]
    assert heretix("corpus", "add", *files, "off.md", "--corpus", "tea").code == 0
    asked = ("lens", claim, "--language", "auto", "--corpus", "tea", "--lens", "RPL,MEL", "--sham")
    result = heretix(*asked, "-m", "sim:x", "-o", "v.json")
    assert result.code == 0, result.err
    (artifact,) = read_artifacts(folder / "v.json")
    assert all(run.prompt_version.startswith(f"rpl_{code}_v1") for run in artifact.runs)
    assert {item["url"] for item in artifact.bundles[0]["items"]} == {
        f"https://office{n}.gov/page" for n in range(3)
    }
    assert all(verification.ok for verification in verify_artifact(artifact))


def test_lenses_come_from_a_configuration_too(heretix, folder):
    """`lenses:` and `evidence:` mean what the options mean."""
    (folder / "c.yaml").write_text(
        f"claim: {CLAIM}\nmodel: {SIM}\nB: 500\nlenses: [RPL, MEL]\nevidence:\n  corpus: demo\n"
        "  as_of: 2022-01-01\n"
    )
    result = heretix("run", "--config", "c.yaml", "--out", "c.json", "--json")
    assert result.code == 0, result.err
    artifact = json.loads(result.out)
    assert [line["lens"] for line in artifact["lenses"]] == ["RPL", "MEL"]
    days = [item["published"] for item in artifact["bundles"][0]["items"] if item["published"]]
    assert max(days) <= "2022-01-01"
    assert heretix("verify", "c.json").code == 0


def test_too_little_evidence_gives_no_number(heretix, folder):
    """Too few documents: said, and exit code 1, whatever else was measured."""
    (folder / "one.txt").write_text("One lonely document about electricity and daylight saving.")
    assert heretix("corpus", "add", "one.txt", "--corpus", "small").code == 0
    result = heretix(
        "lens",
        CLAIM,
        "-m",
        SIM,
        "--lens",
        "RPL,HEL",
        "--corpus",
        "small",
        "-B",
        500,
        "--out",
        "v.json",
    )
    assert result.code == 1
    assert "insufficient_evidence" in result.err
    # Why is told once while it is measured, and again when it is looked at later.
    told = " ".join(f"{result.out} {result.err}".split())
    assert told.count("HEL needs at least 3 items") == 1
    assert "HEL needs at least 3 items" in heretix("show", "v.json").out
    line = read_artifacts("v.json")[0].lenses[1]
    assert (line.lens, line.status, line.prob_true) == ("HEL", "insufficient_evidence", None)
    alone = heretix(
        "lens", CLAIM, "-m", SIM, "--lens", "HEL", "--corpus", "small", "--out", "none.json"
    )
    assert alone.code == 1
    assert " ".join(alone.err.split()).count("HEL needs at least 3 items") == 1
    assert not (folder / "none.json").exists()
    missing = heretix("lens", CLAIM, "-m", SIM, "--lens", "HEL", "--corpus", "nosuch")
    assert missing.code == 2
    assert "heretix corpus add" in missing.err


def test_bundles_are_built_shown_exported_and_checked(heretix, folder):
    """A bundle goes out as a file and comes back only if nothing in it was changed."""
    assert heretix("evidence", "build", CLAIM, "--out", "b").code == 0
    file = next((folder / "b").glob("MEL-*.json"))
    assert heretix("evidence", "verify", file).code == 0
    bundle = json.loads(file.read_text())
    shown = heretix("evidence", "show", bundle["bundle_id"][:12])
    assert shown.code == 0
    assert "canonical" in shown.out
    assert (
        heretix("evidence", "add", file, "--db", "other.sqlite").out.strip() == bundle["bundle_id"]
    )
    (folder / "bad.json").write_text(file.read_text().replace("consumption", "consumptiom", 1))
    refused = heretix("evidence", "verify", "bad.json")
    assert refused.code == 2
    assert "changed" in refused.err
    assert heretix("evidence", "show", "ffff").code == 2


def test_a_document_is_scored_with_every_signal(heretix, folder):
    """The explanation names what was looked for."""
    (folder / "d.md").write_text("# A trial\n\nWe sampled n=400 people. Limitations apply.")
    result = heretix("evidence", "score", "d.md", "--explain")
    assert result.code == 0
    assert "sample sizes" in result.out
    scored = json.loads(heretix("evidence", "score", "d.md", "--json").out)
    assert scored["judged"] is False
    lo, hi = scored["interval"]
    assert lo == pytest.approx(scored["r"], abs=1e-6)
    assert 0 <= lo < hi <= 1
    assert f"reliability {lo:.2f}–{hi:.2f}, not assessed further" in result.out
    assert set(scored["parts"]) == {"P", "H", "R", "E", "A"}


def test_a_policy_is_explained_checked_and_compared(heretix, folder):
    """Which rule, which facts; what flips; what is wrong."""
    assert "canonical" in heretix("policy", "explain", "https://www.reuters.com/world").out
    unknown = json.loads(heretix("policy", "explain", "https://notreuters.com", "--json").out)
    assert unknown["class"] == "unknown"
    assert heretix("policy", "check").code == 0
    (folder / "mine.yaml").write_text(
        "version: mine_1\nextends: default\nrules:\n"
        "  - id: mine\n    class: heterodox\n    domain: [reuters.com]\n    facts: [for a test]\n"
    )
    (folder / "urls.txt").write_text("https://www.reuters.com/a\nhttps://example.org/b\n")
    flips = json.loads(
        heretix("policy", "diff", "default", "mine.yaml", "--urls", "urls.txt", "--json").out
    )
    assert [(f["before"], f["after"]) for f in flips] == [("canonical", "heterodox")]


def test_coverage_counts_a_list_by_class_and_names_the_unknown(heretix, folder):
    """Counts and shares come by class and rule; a line that is no address ends it with 2."""
    (folder / "urls.txt").write_text("https://www.reuters.com/a\n\nexample.org\ncdc.gov\nwho.int\n")
    found = json.loads(heretix("policy", "coverage", "urls.txt", "--json").out)
    assert found["n"] == 4
    assert found["classes"] == {
        "canonical": {"n": 3, "share": 0.75},
        "unknown": {"n": 1, "share": 0.25},
    }
    assert sum(rule["n"] for rule in found["rules"].values()) == 4
    assert found["unknown"] == ["example.org"]
    said = heretix("policy", "coverage", "urls.txt")
    assert said.code == 0
    assert "3 of 4 classified (75.0%)" in said.out
    (folder / "bad.txt").write_text("cdc.gov\nno address\n")
    (folder / "empty.txt").write_text("\n")
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00")
    for name, why in (
        ("bad.txt", "line 2"), ("empty.txt", "got none"), ("binary.txt", "UTF-8"), ("gone", "gone"),
    ):  # fmt: skip
        refused = heretix("policy", "coverage", name)
        assert refused.code == 2
        assert why in refused.err


def test_a_corpus_grows_and_is_searched(heretix, folder):
    """Adding twice changes nothing; a broken source is told."""
    (folder / "docs").mkdir()
    (folder / "docs" / "a.md").write_text("# A\n\nTurbines turn in the wind over the harbour.")
    first = json.loads(heretix("corpus", "add", "docs", "--corpus", "c", "--json").out)
    again = json.loads(heretix("corpus", "add", "docs", "--corpus", "c", "--json").out)
    assert (first["added"], again["added"], again["unchanged"]) == (1, 0, 1)
    assert "Turbines" in heretix("corpus", "search", "turbines", "--corpus", "c").out
    assert "c" in heretix("corpus", "list").out
    assert heretix("corpus", "add", "nosuch", "--corpus", "c").code == 2


def test_anomalies_are_ranked_and_explained(heretix):
    """A planted shock is listed; a claim that nothing moves isn't, and --all says why."""
    vector(heretix, "-K", 16, "-T", 16)
    assert json.loads(heretix("anomalies", "--json").out) == []
    assert "not checked against a placebo" in " ".join(heretix("anomalies", "--all").out.split())
    vector(heretix, "-K", 16, "-T", 16, "--sham")
    assert "(evidence-driven(mainstream,heterodox))" in "".join(heretix("anomalies").out.split())
    quiet = "sim:quiet?mel=0&hel=0&response_sd=0.05"
    heretix("lens", CLAIM, "-m", quiet, "-K", 16, "-T", 16, "-B", 500)
    listed = json.loads(heretix("anomalies", "--json").out)
    assert [anomaly["model"] for anomaly in listed] == [SIM]
    everything = json.loads(heretix("anomalies", "--all", "--json").out)
    assert {anomaly["model"] for anomaly in everything} == {SIM, quiet}


def test_evidence_cannot_be_swapped_or_dropped_unseen(heretix):
    """A vector without its bundles, with another lens's bundle, or without its numbers, is found."""
    _, artifact = vector(heretix, "--lens", "RPL,MEL,HEL", "--influence")

    def found(**changes):
        changed = artifact.model_copy(update=changes)
        return [d.path for v in verify_artifact(changed) for d in v.differences]

    assert found() == []
    mel = [bundle for bundle in artifact.bundles if bundle["lens"] == "MEL"]
    assert any("bundle_id" in path for path in found(bundles=mel))
    assert found(lenses=None, metrics=None, bundles=None, experiments=None)
    without = next(run for run in artifact.runs if run.evidence and run.evidence.variant)
    whole = next(r for r in artifact.runs if r.lens == without.lens and not r.evidence.variant)
    cheating = without.model_copy(
        update={"evidence": without.evidence.model_copy(update={"items": whole.evidence.items})}
    )
    runs = [cheating if run is without else run for run in artifact.runs]
    assert any(path.endswith("evidence.items") for path in found(runs=runs))


def test_an_execution_that_was_shown_evidence_is_not_resumed_without_it(heretix):
    """What was shown isn't kept with the plan: resuming would measure something else."""
    _, artifact = vector(heretix, "--lens", "RPL,MEL")
    rpl, mel = artifact.runs
    assert heretix("resume", rpl.execution_id).code == 0
    refused = heretix("resume", mel.execution_id)
    assert refused.code == 2
    assert "heretix lens" in refused.err


def test_all_lenses_are_five_with_a_document_of_ones_own(heretix, folder):
    """`--lens all`, or no option at all: SEL is there as soon as there is something to show."""
    (folder / "own.md").write_text("# Own\n\nThe meters fell by 2% when the clocks went forward.")
    for option in (("--lens", "all"), ()):
        result, artifact = vector(heretix, *option, "--document", "own.md", "--evidence")
        assert [line.lens for line in artifact.lenses] == ["RPL", "NUL", "MEL", "HEL", "SEL"]
        assert "stance by: declared" in result.out
        assert "stance –: not judged" in result.out


def test_options_change_one_thing_about_a_configuration(heretix, folder):
    """A file's lenses, corpus and documents stay when an option names something else."""
    (folder / "own.txt").write_text("The meters fell by 2% when the clocks went forward.")
    (folder / "c.yaml").write_text(
        f"claim: {CLAIM}\nmodel: {SIM}\nB: 500\nlenses: [RPL, SEL]\n"
        "evidence:\n  documents: [own.txt]\n"
    )
    made = json.loads(heretix("lens", "--config", "c.yaml", "--json").out)
    assert [line["lens"] for line in made["lenses"]] == ["RPL", "SEL"]
    result = heretix(
        "lens", "--config", "c.yaml", "--lens", "all", "--as-of", "2018-12-31", "--json"
    )
    everything = json.loads(result.out)
    assert [line["lens"] for line in everything["lenses"]][-1] == "SEL"
    assert everything["bundles"][0]["as_of"] == "2018-12-31"


def test_another_policy_is_stored_written_and_shown(heretix, folder):
    """Its bundles are in the store and in the artifact; a policy that changes nothing is told."""
    from heretix.evidence.demo import DEMO_POLICY

    rule = "  - id: moved\n    class: heterodox\n    facts: [For a test.]\n    domain: [{}]\n"
    head = f"version: other-1\nabout: For a test.\nextends: {DEMO_POLICY}\nrules:\n"
    (folder / "other.yaml").write_text(head + rule.format("encyclopedia.example"))
    (folder / "same.yaml").write_text(head + rule.format("nowhere.example"))
    result, artifact = vector(heretix, "--lens", "RPL,MEL", "--other-policy", "other.yaml")
    assert "policy:other-1" in result.out
    other = artifact.bundles[1]["bundle_id"]
    assert "other-1" in heretix("evidence", "show", other[:16]).out
    assert heretix("verify", "v.json").code == 0
    result, artifact = vector(heretix, "--lens", "RPL,MEL", "--other-policy", "same.yaml")
    assert "shows the same documents" in result.err
    assert artifact.experiments is None


def test_too_little_evidence_is_kept_and_shown(heretix, folder):
    """The bundle says what was left out and why, and the vector what could be measured."""
    (folder / "one.txt").write_text("Daylight saving time and electricity consumption, once.")
    assert heretix("corpus", "add", "one.txt", "--corpus", "small").code == 0
    result = heretix("lens", CLAIM, "-m", SIM, "--corpus", "small", "-B", 500, "--out", "v.json")
    assert result.code == 1
    assert "wrapper effect" in result.out
    line = next(line for line in read_artifacts("v.json")[0].lenses if line.lens == "HEL")
    assert "left out" in heretix("evidence", "show", line.bundle_id).out
    assert heretix("verify", "v.json").code == 0


def test_a_raw_prior_with_its_negation_is_reported(heretix):
    """Acquiescence needs no documents."""
    result, artifact = vector(heretix, "--lens", "RPL", "--negation", "It does not.")
    assert [record.variant for record in artifact.experiments] == ["negation"]
    assert "negation" in result.out


def test_one_stored_run_of_a_lens_verifies_by_itself(heretix):
    """It is checked as far as it goes, and says what only the whole vector can show."""
    _, artifact = vector(heretix)
    run = next(run for run in artifact.runs if run.lens == "MEL")
    result = heretix("verify", run.execution_id)
    assert result.code == 0, result.out + result.err
    assert "a run by itself" in " ".join(result.out.split())


def test_a_lens_by_itself_is_shown(heretix):
    """A raw prior has no vector, and is printed as a belief."""
    result = heretix("lens", CLAIM, "-m", SIM, "--lens", "rpl", "-B", 500)
    assert result.code == 0
    assert "p(true)" in result.out
    assert "RPL" not in heretix("lens", CLAIM, "-m", SIM, "--lens", "HEL", "-B", 500).out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("lens", CLAIM, "--lens", "FOO"), "`--lens` must be all, or some of RPL"),
        (("lens", CLAIM, "--lens", ","), "`--lens` must be all, or some of RPL"),
        (("lens", CLAIM, "--negation", ""), "`claim` is empty"),
        (("lens", CLAIM, "--negation", CLAIM), "must deny the claim"),
        (("evidence", "build", CLAIM, "--lens", "RPL,NUL"), "must name one of MEL, HEL, SEL"),
        (("evidence", "build", CLAIM, "--out", "file.txt"), "`--out` must be a folder"),
        (("evidence", "score", "."), "is a directory"),
        (("evidence", "add", "."), "is a directory"),
        (("policy", "diff", "default", "default", "--urls", "."), "is a directory"),
        (("policy", "diff", "default", "default", "--urls", "bytes.bin"), "in UTF-8"),
        (("policy", "explain", ""), "must be an address"),
        (("policy", "explain", "no address"), "must be an address"),
        (("policy", "explain", "nature"), "or a domain like example.org, got 'nature'"),
        (("policy", "explain", "10.1038/x"), "a DOI is written https://doi.org/10.1038/x"),
        (("corpus", "add", "nowhere", "--corpus", "new"), "there is no such"),
    ],
)
def test_slips_are_told_before_anything_is_done(heretix, folder, args, said):
    """Exit code 2 and what to put right; no corpus, no bundle and no store is left behind."""
    (folder / "file.txt").write_text("A file.")
    (folder / "bytes.bin").write_bytes(b"\x80\x81\x82")
    model = ("-m", SIM) if args[0] == "lens" else ()
    result = heretix(*args, *model)
    assert result.code == 2
    assert said in " ".join(result.err.replace("│", " ").split())
    assert not (folder / "corpora" / "new.sqlite").exists()
    assert not (folder / "runs" / "heretix.sqlite").exists()


def test_a_gap_that_could_be_nothing_is_called_neither(heretix):
    """The mock is moved by nothing: it doesn't amplify, and doesn't correct."""
    result = heretix("lens", CLAIM, "-m", "mock:gpt-5", "-B", 500)
    assert "neither amplifies nor corrects" in result.out


def test_a_folder_without_documents_is_told(heretix, folder):
    """Nothing was added, and why is said."""
    (folder / "empty").mkdir()
    assert "no document there" in heretix("corpus", "add", "empty").out


def test_the_day_that_documents_end_at_is_named(heretix):
    """A search up to a day leaves out what is later; the message says up to when."""
    result = heretix(
        "lens", CLAIM, "-m", SIM, "--lens", "RPL,MEL", "--as-of", "1900-01-01", "-B", 500
    )
    assert result.code == 1
    assert "up to 1900-01-01" in " ".join(result.err.split())


def test_documents_that_do_not_fit_are_named(heretix, folder):
    """SEL shows exactly what is given, as far as it fits; the rest is told and not forgotten."""
    for n in range(10):
        (folder / f"note{n}.txt").write_text(f"Note {n} on clocks and meters, number {n * 7}.")
    documents = [arg for n in range(10) for arg in ("--document", f"note{n}.txt")]
    result, _ = vector(heretix, "--lens", "RPL,SEL", *documents)
    assert "SEL shows 8 of 10 documents; not shown: Note 8 on" in " ".join(result.err.split())


def test_checks_speak_to_programs(heretix, folder):
    """What a check found, as JSON."""
    (folder / "broken.yaml").write_text("version: x\nrules: [5]\n")
    broken = heretix("policy", "check", "broken.yaml", "--json")
    assert broken.code == 1
    found = json.loads(broken.out)
    assert (found["version"], found["problems"][0]["level"]) == (None, "error")
    assert json.loads(heretix("policy", "check", "--json").out)["problems"] == []
    (folder / "doubtful.yaml").write_text(
        "version: x\nrules:\n"
        "  - {id: all, class: unknown, facts: f, any: true}\n"
        "  - {id: never, class: flagged, facts: f, domain: a.example}\n"
    )
    doubtful = heretix("policy", "check", "doubtful.yaml")
    assert doubtful.code == 1
    assert "`never` can never apply" in doubtful.out
    assert heretix("evidence", "build", CLAIM, "--lens", "MEL", "--out", "bundles").code == 0
    (file,) = (folder / "bundles").iterdir()
    assert json.loads(heretix("evidence", "verify", file, "--json").out)["items"] >= 3


def test_days_of_evidence_make_a_series_and_a_chart(heretix, folder):
    """Each day is measured with what there was by then; a report of the files draws the belief over
    the days, the raw prior beside it."""
    args = ("lens", CLAIM, "-m", SIM, "--lens", "RPL,MEL", "-B", 500, "--out", "v.json")
    result = heretix(*args, "--as-of", "2021-06-01,2024-01-01")
    assert result.code == 0, result.err
    assert not (folder / "v.json").exists()
    files = ["v-2021-06-01.json", "v-2024-01-01.json"]
    assert f"heretix report {' '.join(files)}" in " ".join(result.err.split())
    found = [read_artifacts(file)[0] for file in files]
    shown = [artifact.bundles[0] for artifact in found]
    assert [bundle["as_of"] for bundle in shown] == ["2021-06-01", "2024-01-01"]
    for bundle in shown:
        days = [item["published"] for item in bundle["items"] if item["published"]]
        assert max(days) <= bundle["as_of"]
    points = evidence_days(found)
    assert sorted((run.lens, day) for _, _, day, run in points) == [
        (lens, day) for lens in ("MEL", "RPL") for day in ("2021-06-01", "2024-01-01")
    ]
    assert evidence_days(found[:1]) == []
    assert heretix("report", *files, "-o", "series.html").code == 0
    page = (folder / "series.html").read_text()
    assert "documents published up to" in page
    assert heretix("report", files[0], "-o", "one.html").code == 0
    assert "documents published up to" not in (folder / "one.html").read_text()
    assert heretix(*args, "--as-of", "2021-06-01,soon").code == 2
