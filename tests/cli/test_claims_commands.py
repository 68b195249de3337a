"""`heretix claims` proposes forms that the user confirms; answers are strict, kept and replayed."""

import csv
import io
import json

import pytest

from faultserver import answer, status
from heretix.claims_file import read_rows
from heretix.measurement.verify import read_artifacts
from heretix.store import Store
from heretix.store.runs import count_runs

CLAIM = "Tea is a plant and it grows in Assam."
MODEL = "openai-compatible:m"
PARTS = ["Tea is a plant.", "Tea grows in Assam."]


def said(*texts):
    """An answer with these texts."""
    return answer(json.dumps({"claims": texts}))


@pytest.mark.parametrize(
    ("command", "form", "texts"),
    [
        ("split", "atomic", PARTS),
        ("split", "atomic", [CLAIM]),
        ("normalise", "dated", ["As of 2026-11-18, tea is a plant and grows in Assam, India."]),
        ("negate", "negated", ["Tea isn't a plant, or it doesn't grow in Assam."]),
        ("paraphrase", "paraphrased", ["Wording 1.", "Wording 2.", "Wording 3.", "Wording 4."]),
    ],
)
def test_forms_are_rows_of_a_file_of_claims(heretix, provider, command, form, texts):
    """One call; each proposal says what it is a form of, which, and who proposed it."""
    provider.always(said(*texts))
    result = heretix("claims", command, CLAIM, "-m", MODEL, "--as-of", "2026-11-18")
    assert result.code == 0, result.err
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert rows == [{"claim": one, "of": CLAIM, "form": form, "model": MODEL} for one in texts]
    assert len(provider.calls) == 1
    body = json.dumps(provider.calls[0].body)
    assert CLAIM in body
    assert '"claims"' in body
    assert "temperature" not in provider.calls[0].body
    assert ("2026-11-18" in body) == (command == "normalise")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_written_file_is_measured_as_it_is(heretix, provider, folder, ending):
    """Nothing is measured until the file is given to `run`; its columns travel with the rows."""
    provider.always(said(*PARTS))
    result = heretix("claims", "split", CLAIM, "-m", MODEL, "-o", f"p.{ending}")
    assert result.code == 0, result.err
    with Store.open(str(folder / "runs" / "heretix.sqlite"), create=False) as store:
        assert store.read(count_runs) == 0
    assert [row.claim for row in read_rows(f"p.{ending}")] == PARTS
    heretix("run", "--claims-file", f"p.{ending}", "--mock", "-K", 4, "-R", 1, "-o", "o.jsonl")
    columns = [artifact.row.columns for artifact in read_artifacts(folder / "o.jsonl")]
    assert [(one["of"], one["form"]) for one in columns] == [(CLAIM, "atomic")] * 2


def test_answers_are_recorded_and_replayed(heretix, provider, folder):
    """What is kept isn't asked again; a replay calls nobody and gives the same file."""
    (folder / "c.txt").write_text(f"{CLAIM}\nIce floats.\n{CLAIM}\n", encoding="utf-8")
    asked = ("claims", "split", "--claims-file", "c.txt", "-m", MODEL)
    provider.always(said(*PARTS))
    first = heretix(*asked, "--record-to", "kept")
    calls = len(provider.calls)
    assert calls == len(list((folder / "kept").iterdir())) == 2
    again, replayed = (
        heretix(*asked, "--record-to", "kept"),
        heretix(*asked, "--replay-from", "kept"),
    )
    assert first.out == again.out == replayed.out
    assert len(provider.calls) == calls
    unknown = heretix("claims", "negate", CLAIM, "-m", MODEL, "--replay-from", "kept")
    assert unknown.code == 2
    assert "must be among the answers in kept" in unknown.err


def test_a_changed_recording_is_refused(heretix, provider, folder):
    """A recorded answer has its hash; one that was edited isn't what the model said."""
    provider.always(said(*PARTS))
    heretix("claims", "split", CLAIM, "-m", MODEL, "--record-to", "kept")
    (path,) = (folder / "kept").iterdir()
    path.write_text(path.read_text().replace("Assam.\\", "Kenya.\\"), encoding="utf-8")
    result = heretix("claims", "split", CLAIM, "-m", MODEL, "--replay-from", "kept")
    assert result.code == 2
    assert "was changed since it was recorded" in result.err


MALFORMED = {
    "not JSON": answer("Here are the parts: Tea is a plant."),
    "not one object": answer('{"claims": ["A."], "more": 1}'),
    "list of texts": answer('{"claims": [1]}'),
    "0 texts": said(),
    "21 texts": said(*(f"Part {number}." for number in range(21))),
    "one text twice": said("Tea is a plant.", "tea is a  plant"),
    "`claim` is empty": said("Tea is a plant.", " "),
}


@pytest.mark.parametrize("why", MALFORMED)
def test_a_malformed_answer_is_asked_once_more_and_then_shown(heretix, provider, folder, why):
    """Two attempts; the error names what is wrong and shows what came; no file is left."""
    provider.always(MALFORMED[why])
    result = heretix("claims", "split", CLAIM, "-m", MODEL, "-o", "p.csv", "--record-to", "kept")
    assert result.code == 3
    assert why in result.err
    assert "it said: '" in result.err
    assert len(provider.calls) == 2
    assert not (folder / "p.csv").exists()
    assert not (folder / "kept").exists()


def test_a_second_answer_that_is_sound_counts(heretix, provider):
    """One slip of the model doesn't end the command."""
    provider.script(answer("Sure!"), said(*PARTS))
    assert heretix("claims", "split", CLAIM, "-m", MODEL).code == 0


def test_a_negation_that_is_the_claim_is_refused(heretix, provider):
    """The claim itself is no negation and no other wording."""
    provider.always(said(CLAIM.upper()))
    result = heretix("claims", "negate", CLAIM, "-m", MODEL)
    assert result.code == 3
    assert "the claim itself" in result.err


def test_a_provider_that_fails_ends_the_command(heretix, provider):
    """What the provider says is told, with its exit code."""
    provider.always(status(401))
    assert heretix("claims", "negate", CLAIM, "-m", MODEL).code == 3


@pytest.mark.parametrize("model", ["mock:gpt-5", "sim:x"])
def test_models_that_make_numbers_up_propose_nothing(heretix, model):
    """A mock and a simulated model have no words; the error names what can be asked."""
    result = heretix("claims", "split", CLAIM, "-m", model)
    assert result.code == 2
    assert "can't write claims; name a model" in result.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "`claim` is missing"),
        ((CLAIM, "--claims-file", "c.csv"), "`claim` and `claims_file` can't both be given"),
        ((CLAIM, "--record-to", "a", "--replay-from", "b"), "can't both be given"),
        ((CLAIM, "-o", "p.parquet"), "must be .csv, .tsv or .jsonl"),
        ((CLAIM, "--as-of", "today"), "`--as-of` must be a day"),
    ],
)
def test_mistakes_are_told_before_anybody_is_asked(heretix, provider, args, message):
    """Exit code 2, and no call."""
    result = heretix("claims", "split", *args, "-m", MODEL)
    assert result.code == 2
    assert message in result.err
    assert provider.calls == []


def test_queries_that_a_model_writes_find_the_other_side(heretix, provider, folder, monkeypatch):
    """They find what the claim's own words don't, and are named with who wrote them."""
    monkeypatch.setenv("HERETIX_CORPORA_DIR", str(folder / "corpora"))
    for n, text in enumerate(("Assam's bushes are camellias.", "Assam's bushes bear leaves.")):
        (folder / f"{n}.md").write_text(
            f"---\nurl: https://office{n}.gov/page\n---\n{text} Camellias were counted {n} times."
        )
    (folder / "tea.md").write_text(
        "---\nurl: https://office9.gov/tea\n---\nTea is a plant and it grows in Assam, they say."
    )
    assert heretix("corpus", "add", "0.md", "1.md", "tea.md", "--corpus", "leaf").code == 0
    build = ("evidence", "build", "Tea is a plant.", "--corpus", "leaf", "--lens", "MEL")
    queries = ["camellias counted", "camellias bushes", "tea is no plant", "bushes leaves"]
    provider.always(said(*queries))
    assert heretix(*build).code == 1
    made = heretix(*build, "--queries", MODEL, "--out", "b")
    assert made.code == 0, made.err
    assert len(provider.calls) == 1
    assert heretix(*build, "--queries", "sim:m").code == 2
    (file,) = (folder / "b").glob("MEL-*.json")
    bundle = json.loads(file.read_text())
    written = {name: text for name, text in bundle["queries"].items() if name.endswith(MODEL)}
    assert list(written.values()) == queries
    assert len(bundle["items"]) == 3
    assert [name.split()[:2] for name in sorted(written)] == [
        ["affirm", "1"],
        ["affirm", "2"],
        ["negate", "1"],
        ["negate", "2"],
    ]
