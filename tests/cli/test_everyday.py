"""What people expect of a command line: finding runs again, files as they come, mistakes told well."""

import gzip
import json
import shutil
import socket

import pytest

from heretix.core.canonical import canonical_json
from heretix.measurement.verify import read_artifacts

MOCK = ("--mock", "-K", 4, "-R", 1)


def test_runs_are_found_by_tag_model_lens_and_day(heretix):
    """Each filter leaves what fits; a tag that stands in a claim's text is no tag."""
    assert heretix("run", 'Say "tag:a":true.', *MOCK).code == 0
    assert heretix("run", "Tea.", *MOCK, "--tag", "a", "--tag", "b c").code == 0
    assert heretix("run", "Rum.", *MOCK, "-m", "gpt-5", "--tag", "b").code == 0

    def claims(*filters):
        return [run["claim"] for run in json.loads(heretix("runs", *filters, "--json").out)]

    assert claims("--tag", "a") == claims("--tag", "b c") == ["Tea."]
    assert claims("--tag", "b") == claims("--model", "mock:gpt-5") == ["Rum."]
    assert claims("--lens", "mel") == claims("--tag", "c") == claims("--before", "2026-01-01") == []
    assert len(claims("--since", "2026-01-01", "--lens", "rpl")) == 3
    assert "that fit all of this" in heretix("runs", "--tag", "zz").out
    refused = heretix("runs", "--lens", "XYZ")
    assert (refused.code, "one of RPL, NUL" in refused.err) == (2, True)
    refused = heretix("runs", "--since", "yesterday")
    assert (refused.code, "2026-11-18" in refused.err) == (2, True)


def test_a_tag_comes_with_the_artifact_and_the_table(heretix, folder):
    """Whoever only has the file knows what it was tagged with."""
    assert heretix("run", "Tea.", *MOCK, "--tag", "pilot", "-o", "o.json").code == 0
    assert heretix("run", "Tea.", *MOCK, "--tag", "pilot", "-o", "o.csv").code == 0
    (artifact,) = read_artifacts(folder / "o.json")
    assert artifact.row.columns == {"tag:pilot": True}
    assert "tag:pilot" in (folder / "o.csv").read_text().splitlines()[0]
    assert heretix("run", "Tea.", *MOCK, "--tag", " ").code == 2
    # The table of tagged runs may be measured again; a column that says something else is kept.
    again = ("run", "--claims-file", "o.csv", "--column", "claim", "--mock", "--tag", "pilot")
    assert heretix(*again).code == 0
    (folder / "own.csv").write_text("claim,tag:pilot\nTea.,the third\n")
    refused = heretix("run", "--claims-file", "own.csv", "--mock", "--tag", "pilot")
    assert (refused.code, "'the third'; rename one of them" in refused.err) == (2, True)


def test_artifacts_are_read_from_pipes_and_gzip(heretix, folder):
    """`verify -` reads standard input, and `.gz` is unpacked; a torn one is refused."""
    assert heretix("run", "Tea.", *MOCK, "-o", "o.json").code == 0
    whole = gzip.compress((folder / "o.json").read_bytes())
    (folder / "o.json.gz").write_bytes(whole)
    (folder / "torn.json.gz").write_bytes(whole[:-20])
    assert heretix("verify", "o.json.gz").code == 0
    assert heretix("show", "o.json.gz").code == 0
    assert heretix("verify", "-", stdin=(folder / "o.json").read_bytes()).code == 0
    torn = heretix("verify", "torn.json.gz")
    assert (torn.code, "isn't a whole gzip file" in torn.err) == (2, True)


def test_a_rounded_seed_is_recognised(heretix, folder):
    """A tool that keeps 17 digits changes nothing that matters; another seed does."""
    assert heretix("run", "Tea.", *MOCK, "-o", "o.json").code == 0
    content = json.loads((folder / "o.json").read_text())
    how = content["runs"][0]["aggregation"]
    assert how["bootstrap_seed_text"] == str(how["bootstrap_seed"])
    seed = how["bootstrap_seed"]
    how["bootstrap_seed"] = int(float(seed))
    (folder / "rounded.json").write_text(canonical_json(content))
    rounded = heretix("verify", "rounded.json")
    assert (rounded.code, "was rounded by a JSON tool" in rounded.out) == (
        0,
        seed != int(float(seed)),
    )
    how["bootstrap_seed"] = seed + 2**40
    (folder / "other.json").write_text(json.dumps(content))
    assert heretix("verify", "other.json").code == 1


@pytest.mark.skipif(not shutil.which("jq"), reason="jq isn't installed")
def test_what_jq_wrote_verifies(heretix, shell):
    """`jq` may write numbers anew; the record is still what it was."""
    assert heretix("run", "Tea.", *MOCK, "-o", "o.json").code == 0
    assert shell("jq . o.json > p.json").returncode == 0
    assert heretix("verify", "p.json").code == 0


@pytest.mark.parametrize(
    ("line", "kind", "code"),
    [
        ("show nothing --json", "RecordError", 2),
        ("run Tea. --json --bogus", "UsageError", 2),
        ("run Tea. --mock -K 99999999999999999999 --json", "ConfigError", 2),
        ("nonsense --json", "UsageError", 2),
    ],
)
def test_mistakes_are_json_for_programs(entry_point, folder, line, kind, code):
    """With `--json` the last line of standard error is an event, whatever went wrong."""
    result = entry_point(*line.split())
    told = json.loads(result.err.splitlines()[-1])
    assert (told["event"], told["type"], told["exit_code"]) == ("error", kind, code)
    assert result.code == code
    assert result.out == ""


@pytest.mark.parametrize(
    "args",
    [
        ("--budget-usd", "1e400"),
        ("--rpm", "inf"),
        ("--until-width", "nan"),
        ("-R", "1" * 400),
        ("--seed", "9" * 40),
        ("--out", "/proc/o.json"),
        ("--out", "/dev/null/o.json"),
        ("--out", "x" * 300 + ".json"),
        ("--template-include", "0-" + "9" * 30),
    ],
)
def test_overflow_and_bad_targets_are_refused_before_any_call(heretix, folder, args):
    """No traceback, exit code 2, and nothing was measured."""
    result = heretix("run", "Tea.", "--mock", *args)
    assert result.code == 2, result.err
    assert not (folder / "runs" / "heretix.sqlite").exists()


@pytest.mark.parametrize(
    "args",
    [
        ("runs", "-n", "9" * 30),
        ("simulate", "--episodes", "9" * 30),
        ("design", "--template-variance", "nan", "--replicate-variance", "0.1"),
        ("design", "--template-variance", "0.1", "--replicate-variance", "1e400"),
    ],
)
def test_numbers_beyond_reason_are_refused(heretix, args):
    """Where the option ends is told; what lies beyond is never tried."""
    assert heretix(*args).code == 2


def test_a_key_in_the_wrong_case_is_named(heretix, folder):
    """`k` is `K`, and the other way round."""
    (folder / "c.yaml").write_text("claim: Tea.\nk: 4\n")
    assert "did you mean `K`?" in heretix("describe", "--config", "c.yaml").err
    (folder / "c.yaml").write_text("claim: Tea.\nSEED: 4\n")
    assert "did you mean `seed`?" in heretix("describe", "--config", "c.yaml").err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("below: 0.4", "unknown key `below`"),
        ("as_of: 2026-01-01", "unknown key `as_of`: it stands within `evidence`"),
        ("evidence: {corpsus: demo}", "unknown key `evidence.corpsus` (did you mean `corpus`?)"),
        ("evidence: {foo: 3}", "unknown key `evidence.foo`; known: `corpus`, `search`, "),
        ("models: [3]", "`models[0]` must be text, got 3; put it in quotes"),
    ],
)
def test_no_key_is_guessed_that_is_not_near(heretix, folder, line, said):
    """A wrong guess is worse than none: what is known is listed, and one mistake told once."""
    (folder / "c.yaml").write_text(f"claim: Tea.\n{line}\n")
    result = heretix("describe", "--config", "c.yaml")
    assert (result.code, result.err.count("`c.yaml` line")) == (2, 1)
    assert result.err.startswith(f"error: `c.yaml` line 2: {said}")
    assert "below" not in line or "did you mean" not in result.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("run", "Tea.", "--document", "a.txt"), "`documents` are shown under SEL"),
        (
            ("run", "Tea.", "--lens", "MEL", "--document", "a.txt"),
            "`documents` are shown under SEL",
        ),
        (("run", "Tea.", "--corpus", "demo"), "`corpus`: nothing is shown under RPL"),
        (
            ("run", "Tea.", "--lens", "RPL,NUL", "--as-of", "2026-01-01"),
            "`as_of`: nothing is shown under RPL, NUL",
        ),
        (
            ("lens", "Tea.", "--lens", "HEL", "--document", "a.txt"),
            "`documents` are shown under SEL",
        ),
    ],
)
def test_documents_that_no_lens_would_show_are_refused(heretix, folder, args, said):
    """Nobody takes a belief for one with documents that the model never saw."""
    (folder / "a.txt").write_text("Tea is a drink.")
    result = heretix(*args, "--mock")
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    # What a file says of evidence stays there while its lenses are changed for once.
    (folder / "c.yaml").write_text("claim: Tea.\nlenses: [MEL]\nevidence: {corpus: demo}\n")
    assert heretix("run", "-c", "c.yaml", "--lens", "RPL", *MOCK).code == 0


@pytest.mark.parametrize("name", ["beliefs.xlsx", "-", "beliefs.csv.gz", "beliefs.yaml"])
def test_no_artifact_is_written_under_another_format_s_name(heretix, folder, name):
    """What can't be written is refused before any call, with what can."""
    result = heretix("run", "Tea.", "--mock", "--out", name)
    assert result.code == 2
    assert "`--out` must end in .json for the artifact, or .csv, .tsv or .parquet" in result.err
    assert not (folder / name).exists()


def test_an_artifact_is_packed_where_its_name_says_so(heretix, folder):
    """`verify` reads `.gz`; the same belief is the same bytes."""
    (folder / "c.csv").write_text("claim\nTea.\n")
    for args, name in ((("Tea.",), "a.json.gz"), (("--claims-file", "c.csv"), "b.jsonl.gz")):
        assert heretix("run", *args, *MOCK, "--out", name).code == 0
        assert (folder / name).read_bytes()[:2] == b"\x1f\x8b"
        assert "verified" in heretix("verify", name).out


@pytest.mark.parametrize("columns", ["0", "00"])
def test_a_terminal_of_no_columns_is_shown_everything(heretix, monkeypatch, columns):
    """Some launchers set COLUMNS to 0, in which nothing has room."""
    assert heretix("run", "Tea.", *MOCK).code == 0
    monkeypatch.setenv("COLUMNS", columns)
    assert "Tea." in heretix("runs").out


def test_a_byte_order_mark_hides_no_key(heretix, folder):
    """Editors put one before the first line of `.env`."""
    (folder / ".env").write_text("HERETIX_DB=marked.sqlite\n", encoding="utf-8-sig")
    assert heretix("run", "Tea.", *MOCK).code == 0
    assert (folder / "marked.sqlite").exists()


def test_keys_are_read_from_dotenv_and_the_environment_wins(heretix, folder, monkeypatch):
    """`.env` of the folder is read; what is set in the environment stays."""
    (folder / ".env").write_text("HERETIX_DB=from-dotenv.sqlite\n# a comment\nexport X='y'\n")
    assert heretix("run", "Tea.", *MOCK).code == 0
    assert (folder / "from-dotenv.sqlite").exists()
    with monkeypatch.context() as given:
        given.setenv("HERETIX_DB", "given.sqlite")
        assert heretix("run", "Tea.", *MOCK).code == 0
    assert (folder / "given.sqlite").exists()
    (folder / ".env").write_bytes(b"\xff\xfe\x00")
    assert heretix("run", "Tea.", "--mock").code == 2


def test_every_request_is_logged_on_demand(heretix, provider):
    """`-v` tells of each request, retries included; programs get events."""
    result = heretix("run", "Tea.", "-m", "openai-compatible:m", "-K", 4, "-R", 1, "-v")
    assert result.err.count("tokens in,") >= 4
    result = heretix("run", "Rum.", "-m", "openai-compatible:m", "-K", 4, "-R", 1, "-v", "--json")
    events = [json.loads(line) for line in result.err.splitlines()]
    requests = [event for event in events if event["event"] == "request"]
    assert len(requests) == 4
    assert {event["model"] for event in requests} == {"openai-compatible:m"}


def test_a_server_that_is_not_there_is_reported_at_once(heretix, monkeypatch):
    """Nothing listens: after a moment's patience the run ends, with what to do, and can go on.

    The moment is at most 2 s. When it is over, no call is tried again.
    """
    from heretix.measurement import runner

    assert runner._ABSENT_S <= 2
    monkeypatch.setattr(runner, "_ABSENT_S", 0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    args = ("run", "Tea.", "-m", "openai-compatible:m", "--base-url", address, "-v", "--json")
    result = heretix(*args)
    assert result.code == 3
    assert "start the server there" in result.err
    events = [json.loads(line) for line in result.err.splitlines() if line.startswith("{")]
    ended = next(event for event in events if event["event"] == "ended")
    assert 1 <= ended["calls"] <= 16


def test_what_can_be_resumed_is_json_for_programs(heretix):
    """`resume --json` lists; an empty list is a list."""
    assert heretix("run", "Tea.", *MOCK).code == 0
    assert json.loads(heretix("resume", "--json").out) == []


def test_editors_get_the_schema_of_a_configuration(heretix, folder):
    """The example fits the schema, and a mistake doesn't."""
    import jsonschema
    import yaml

    schema = json.loads(heretix("schema").out)
    example = yaml.safe_load((folder / "runs" / "rpl_example.yaml").read_text())
    jsonschema.validate(example, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**example, "k": 4}, schema)
    assert json.loads(heretix("schema", "artifact").out)["title"] == "Artifact"


def test_labelled_answers_become_training_data(heretix, folder):
    """One line a compliant answer of a claim with a label: messages, answer, label, belief."""
    (folder / "c.csv").write_text("claim,label\nTea.,1\nRum.,\n")
    model = "mock:m?fenced=0.5"
    asked = ("run", "--claims-file", "c.csv", "-m", model, "-K", 8, "-R", 2, "--out", "r.jsonl")
    assert heretix(*asked).code in {0, 1}
    measured = [run for artifact in read_artifacts("r.jsonl") for run in artifact.runs]
    (tea,) = [run for run in measured if run.claim == "Tea."]
    answers = [one.raw_answer for one in tea.samples if one.error is None and not one.noncompliance]
    assert heretix("run", "No label.", *MOCK).code == 0
    assert heretix("export", "training", "-o", "t.jsonl").code == 0
    rows = [json.loads(line) for line in (folder / "t.jsonl").read_text().splitlines()]
    assert {row["claim"] for row in rows} == {"Tea."}
    assert 0 < len(answers) < 16
    assert [row["messages"][-1]["content"] for row in rows] == answers
    for row in rows:
        assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant"]
        assert json.loads(row["messages"][-1]["content"])["prob_true"] == row["prob_true"]
    assert heretix("export", "training", "-o", "t.csv").code == 2
    # From the cache it is the same answer, in however many executions.
    assert heretix(*asked).code in {0, 1}
    assert heretix("export", "training", "-o", "again.jsonl").code == 0
    assert len((folder / "again.jsonl").read_text().splitlines()) == len(rows)
    none = heretix("export", "training", "--label", "truth")
    assert (none.out, "claim with a column `truth`" in none.err) == ("", True)
