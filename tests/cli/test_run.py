"""`heretix run` and `describe`, as people type them."""

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from faultserver import by_prompt, silence
from heretix.measurement.verify import read_artifacts, verify_run
from heretix.report.document import belief_html

needs_tools = pytest.mark.skipif(
    not (shutil.which("jq") and shutil.which("sqlite3")), reason="jq or sqlite3 isn't installed"
)


@needs_tools
def test_every_command_of_the_seed_works_as_written(heretix, shell):
    """describe, mock run, and the jq and sqlite3 lines, to the letter."""
    assert heretix(*["describe", "--config", "runs/rpl_example.yaml"]).code == 0
    run = heretix(
        *["run", "--config", "runs/rpl_example.yaml", "--out", "runs/k12_mock.json", "--mock"]
    )
    assert run.code == 0, run.err
    query = shell(
        "RUN_ID=$(jq -r '.runs[0].run_id' runs/k12_mock.json); echo $RUN_ID; "
        'sqlite3 -header -column runs/heretix.sqlite "SELECT run_id, prompt_sha256, '
        "paraphrase_idx, replicate_idx, prob_true, logit, json_valid FROM samples\n"
        "WHERE run_id='$(jq -r '.runs[0].run_id' runs/k12_mock.json)' LIMIT 5;\""
    )
    lines = query.stdout.splitlines()
    assert lines[0].startswith("heretix-rpl-")
    assert lines[1].split() == [
        "run_id",
        "prompt_sha256",
        "paraphrase_idx",
        "replicate_idx",
        "prob_true",
        "logit",
        "json_valid",
    ]
    assert len(lines) == 8
    assert all(line.startswith(lines[0]) and line.split()[-1] == "1" for line in lines[3:])


def test_the_quick_form_needs_no_configuration(heretix, folder):
    """A claim, a model, and there is a belief, stored and shown."""
    result = heretix("run", "Tea is a drink.", "-m", "mock:m", "-K", 5, "-R", 3, "-T", 5)
    assert result.code == 0
    assert "p(true)" in result.out
    assert "15/15 samples compliant" in result.out
    assert (folder / "runs" / "heretix.sqlite").is_file()


@pytest.mark.parametrize("size", [("-K", 1, "-R", 1), ("-K", 2, "-R", 1)], ids=["1", "2"])
@pytest.mark.parametrize("command", ["describe", "run"])
def test_too_few_samples_for_an_estimate_are_told_of_beforehand(heretix, command, size):
    """The rule stays what it is; whoever is about to pay for nothing learns of it first."""
    result = heretix(command, "Tea is a drink.", "--mock", *size)
    assert result.code == (1 if command == "run" else 0)
    said = " ".join(result.err.split())
    assert said.startswith("warning: `K` times `R` must be at least 3 for an estimate, got")
    assert "raise K or R" in said


@pytest.mark.parametrize(
    "size",
    [("-K", 3, "-R", 1), ("-K", 1, "-R", 3), ("-K", 1, "-R", 1, "--until-width", 0.9)],
    ids=["slots", "replicates", "adaptive"],
)
def test_nothing_is_said_where_there_can_be_an_estimate(heretix, size):
    """Also where a measurement goes on by itself until there are enough."""
    result = heretix("run", "Tea is a drink.", "--mock", "-B", 100, *size)
    assert result.code == 0
    assert "warning" not in result.err


def test_a_measurement_that_samples_on_is_judged_by_its_last_record(heretix):
    """It begins with too few samples for an estimate, and has one in the end."""
    few = ("-K", 1, "-R", 1, "-B", 100)
    result = heretix("run", "Tea is a drink.", "--mock", *few, "--until-width", 0.9)
    assert result.code == 0
    assert "p(true)" in result.out
    assert "without an estimate" not in result.out


def test_the_artifact_is_written_verifies_and_can_be_had_again(heretix):
    """--out, show --json and the store hold the same record."""
    assert heretix("run", "x", "--mock", "-m", "gpt-5", "--out", "new/dir/a.json").code == 0
    artifact = read_artifacts("new/dir/a.json")[0]
    assert verify_run(artifact.runs[0]).ok
    shown = heretix("show", artifact.runs[0].execution_id, "--json")
    assert json.loads(shown.out) == json.loads(Path("new/dir/a.json").read_text())
    assert heretix("verify", "new/dir/a.json").code == 0


def test_several_models_share_an_artifact(heretix):
    """One run per model, in the order asked."""
    result = heretix("run", "x", "-m", "mock:a", "-m", "mock:b", "--out", "a.json", "--json")
    assert result.code == 0
    assert [run["model"] for run in json.loads(result.out)["runs"]] == ["mock:a", "mock:b"]
    assert [run.model for run in read_artifacts("a.json")[0].runs] == ["mock:a", "mock:b"]


def test_a_file_of_claims_gives_a_line_for_each_in_its_order(heretix, folder):
    """claims_file → JSONL of artifacts; a rerun makes no call."""
    claims = [f"Claim {i}." for i in range(30)]
    (folder / "claims.txt").write_text("\n".join(claims))
    (folder / "many.yaml").write_text(
        "claims_file: claims.txt\nmodels: [mock:a, mock:b]\nK: 3\nT: 3\nB: 200\n"
    )
    result = heretix("run", "--config", "many.yaml", "--out", "all.jsonl")
    assert result.code == 0
    artifacts = read_artifacts("all.jsonl")
    assert [artifact.runs[0].claim for artifact in artifacts] == claims
    assert all([run.model for run in a.runs] == ["mock:a", "mock:b"] for a in artifacts)
    assert heretix("run", "--config", "many.yaml", "--out", "again.jsonl").code == 0
    again = read_artifacts("again.jsonl")
    assert {run.aggregates.cache_hit_rate for a in again for run in a.runs} == {1.0}
    assert [run.aggregates.prob_true_rpl for a in again for run in a.runs] == [
        run.aggregates.prob_true_rpl for a in artifacts for run in a.runs
    ]


def test_odd_claims_are_data(heretix):
    """Quotes, braces, newlines, pipes, markup, emoji and length come through to the artifact."""
    for claim in ['He said "no" | {CLAIM} {0}', "two\nlines", "🙂 [bold]x[/bold]", "y" * 10_000]:
        result = heretix("run", claim, "--mock", "-m", "gpt-5", "--out", "odd.json")
        assert result.code == 0
        run = read_artifacts("odd.json")[0].runs[0]
        assert run.claim == claim
        assert verify_run(run).ok
        assert heretix("show", run.run_id).code == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", ""], "`claim` is empty"),
        (["run", "x" * 10_001], "10,000"),
        (["run"], "`claim` is missing"),
        (["run", "x", "-m", "gpt-5"], "set OPENAI_API_KEY, or use --mock"),
        (["run", "x", "-m", "nosuch:model"], "no known provider"),
        (["run", "x", "-m", "mokc:a"], "did you mean `mock:a"),
        (["run", "x", "-m", "mock:a?nt_json=1"], "not_json"),
        (["run", "x", "-m", "local:nosuch"], "nosuch"),
        (["run", "x", "--mock", "-T", "17"], "`T`"),
        (["run", "x", "--mock", "--agg", "median"], "`agg`"),
        (["run", "x", "--mock", "--out", "runs"], "directory"),
        (["run", "--config", "none.yaml"], "none.yaml"),
        (["run", "--claims-file", "none.txt", "--mock"], "none.txt"),
        (["run", "x", "--prompts-file", "none.yaml", "--mock"], "none.yaml"),
        (["run", "x", "-m", "openai-compatible:m"], "base_url"),
        (["describe", "x", "-m", "gpt-5", "-T", "99"], "`T`"),
        (["show", "nosuch"], "heretix run"),
        (["verify", "none.json"], "none.json"),
        (["models", "path", "nosuch"], "nosuch` is no model that Heretix knows; known are"),
    ],
)
def test_a_mistake_gets_a_message_exit_code_2_and_writes_nothing(heretix, folder, args, said):
    """The remedy is in the message; no store or file appears."""
    result = heretix(*args)
    assert result.code == 2
    assert said in result.err
    assert [p.name for p in (folder / "runs").iterdir()] == ["rpl_example.yaml"]


@pytest.mark.parametrize("command", [["run"], ["lens"], ["describe"], ["jobs", "submit"]])
def test_help_names_the_least_that_is_taken(heretix, command):
    """A help that promises `-B 1` sends people into a refusal."""
    assert "Bootstrap replicas.  [x>=100]" in heretix(*command, "--help").out
    assert heretix(*command, "C", "-B", 99).code == 2


def test_no_estimate_ends_with_1_and_a_dead_provider_with_3(heretix):
    """Exit codes tell a useless measurement from a broken connection."""
    assert heretix("run", "x", "-m", "mock:m?not_json=1").code == 1
    assert heretix("run", "x", "-m", "mock:m?rejected=1").code == 3


def test_describe_calls_nothing_and_counts_what_is_cached(heretix, folder):
    """Before a run everything is to be called; after it, nothing; no store is made."""
    before = json.loads(heretix("describe", "x", "-m", "mock:m", "--json").out)
    assert before["estimate"]["to_call"] == 16
    assert not (folder / "runs" / "heretix.sqlite").exists()
    assert before["plans"][0]["sampler"]["T_bank"] == 16
    heretix("run", "x", "-m", "mock:m")
    after = json.loads(heretix("describe", "x", "-m", "mock:m", "--json").out)
    assert (after["estimate"]["to_call"], after["estimate"]["cached"]) == (0, 16)
    assert after["plans"][0]["run_id"] == before["plans"][0]["run_id"]


def test_describe_says_unknown_rather_than_zero(heretix):
    """A price that isn't known isn't 0."""
    unknown = heretix("describe", "x", "-m", "vllm:some-model")
    assert "unknown" in unknown.out
    assert (
        json.loads(heretix("describe", "x", "-m", "vllm:m", "--json").out)["estimate"]["cost_usd"]
        is None
    )
    known = heretix("describe", "--config", "runs/rpl_example.yaml")
    assert "$" in known.out
    assert heretix("describe", "x", "-m", "mock:m", "--json").code == 0


def test_an_option_that_the_model_rejects_is_said_and_not_sent(heretix, monkeypatch):
    """The record shows what was sent, which is nothing."""
    result = heretix("run", "x", "-m", "mock:m", "--reasoning-effort", "low", "--out", "a.json")
    assert "doesn't accept `reasoning_effort`" in result.err
    assert read_artifacts("a.json")[0].runs[0].options.reasoning_effort is None


def test_the_environment_sets_seed_cache_and_store(heretix, folder, monkeypatch):
    """HERETIX_RPL_SEED, HERETIX_RPL_NO_CACHE and HERETIX_DB; the configuration wins."""
    monkeypatch.setenv("HERETIX_DB", "elsewhere/s.sqlite")
    monkeypatch.setenv("HERETIX_RPL_SEED", "7")
    monkeypatch.setenv("HERETIX_RPL_NO_CACHE", "1")
    for _ in range(2):
        assert heretix("run", "x", "--mock", "-m", "gpt-5", "--out", "a.json").code == 0
    run = read_artifacts("a.json")[0].runs[0]
    assert (run.aggregation.bootstrap_seed, run.aggregation.seed_source) == (7, "environment")
    assert run.aggregates.cache_hit_rate == 0.0
    assert (folder / "elsewhere" / "s.sqlite").is_file()
    heretix("run", "x", "--mock", "-m", "gpt-5", "--seed", 42, "--out", "a.json")
    assert read_artifacts("a.json")[0].runs[0].aggregation.bootstrap_seed == 42
    monkeypatch.setenv("HERETIX_RPL_SEED", "many")
    assert heretix("run", "x", "--mock").code == 2


def test_legacy_aggregation_is_labelled(heretix):
    """`--agg simple` says what it is."""
    result = heretix("run", "x", "--mock", "-m", "gpt-5", "--agg", "simple", "--out", "a.json")
    assert "legacy" in result.out
    run = read_artifacts("a.json")[0].runs[0]
    assert (run.aggregation.agg, run.aggregation.B) == ("simple", 2000)
    assert verify_run(run).ok


def test_an_artifact_that_cannot_be_written_loses_nothing(heretix):
    """A full disk is told, with the command that gets the record from the store."""
    result = heretix("run", "x", "--mock", "-m", "gpt-5", "--out", "/dev/full")
    assert result.code == 2
    assert "No space left" in result.err
    command = result.err.split("heretix ")[-1].rstrip(")").split()
    assert heretix(*command).code == 0


def start(folder, *args):
    return subprocess.Popen(
        [sys.executable, "-c", "from heretix.cli import main; main()", *args],
        # A shell's background job has Ctrl-C switched off, `nohup` the closed terminal; both hand
        # that on to their children.
        preexec_fn=lambda: [
            signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stored(folder):
    import sqlite3

    path = folder / "runs" / "heretix.sqlite"
    if not path.exists():
        return 0
    try:
        with sqlite3.connect(path, timeout=10) as connection:
            return connection.execute("SELECT count(*) FROM samples").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def stuck(folder, provider, args, *, at, concurrency=2):
    """A process that has so many samples in the store, and waits for the provider to say more."""
    heard = len(provider.calls) + at - stored(folder)
    provider.script(*[by_prompt()] * (at - stored(folder)))
    provider.always(silence())
    process = start(folder, *args)
    # Nothing is on its way any more then, so that nothing of it comes in later.
    while stored(folder) < at or len(provider.calls) < heard + concurrency:
        assert process.poll() is None, process.communicate()
        signal.sigtimedwait([], 0.02)
    provider.always(by_prompt())
    return process


WHOLE = ("run", "x", "-m", "openai-compatible:m", "--concurrency", "2", "-K", "16", "-R", "4")


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(folder, heretix, provider):
    """The second drops the calls in flight: exit code 130, a message, and the rerun continues from
    what is stored."""
    process = stuck(folder, provider, WHOLE, at=5)
    process.send_signal(signal.SIGINT)
    until_told(process, "2 in flight are waited for")
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Stopped. 2 calls in flight were dropped, and may be billed." in err
    assert "the same command continues" in " ".join(err.split())
    assert "Traceback" not in err
    kept = stored(folder)
    assert kept >= 5
    result = heretix(*WHOLE, "--json")
    assert json.loads(result.out)["runs"][0]["usage"]["from_cache"] == kept


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_lets_calls_in_flight_come_home(folder, heretix, provider, number):
    """They are stored, no further one is made, and the rerun makes exactly the others."""
    held, release = provider.held(by_prompt())
    provider.always(held)
    process = start(folder, *WHOLE)
    while len(provider.calls) < 2:
        assert process.poll() is None, process.communicate()
        signal.sigtimedwait([], 0.02)
    process.send_signal(number)
    until_told(process, "2 in flight are waited for")
    provider.always(by_prompt())
    release()
    _out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Stopped. 2 of 64 samples are stored" in err
    assert (stored(folder), len(provider.calls)) == (2, 2)
    result = heretix(*WHOLE, "--json")
    assert json.loads(result.out)["runs"][0]["usage"]["from_cache"] == 2
    assert len(provider.calls) == 64


def test_a_study_that_is_interrupted_pays_for_nothing_twice(folder, heretix, provider):
    """Ctrl-C in the middle, then the same command: each prompt is asked once of each model, and the
    record is that of a study that nobody stopped."""
    rows = [{"claim": f"Claim {n}.", "label": n % 2} for n in range(4)]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = [f"openai-compatible:{name}" for name in "mn"]
    plan = {"K": 8, "R": 1, "concurrency": 2}
    declared = {"study": "calibration", "claims": "c.jsonl", "models": models, "plan": plan}
    # JSON is YAML.
    (folder / "s.yaml").write_text(json.dumps(declared))
    study = ("study", "run", "s.yaml", "--out", "s.json")
    held, release = provider.held(by_prompt())
    provider.script(*[by_prompt()] * 21)
    provider.always(held)
    process = start(folder, *study)
    while len(provider.calls) < 22:
        assert process.poll() is None, process.communicate()
        signal.sigtimedwait([], 0.02)
    process.send_signal(signal.SIGINT)
    until_told(process, "waited for")
    release()
    _out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert (stored(folder), len(provider.calls) < 64) == (len(provider.calls), True)
    assert not (folder / "s.json").exists()
    assert heretix(*study).code == 0
    asked = Counter((call.model, json.dumps(call.body)) for call in provider.calls)
    assert (len(asked), set(asked.values())) == (64, {1})
    assert "8 of 8 runs are in" in heretix("verify", "s.json").out
    assert heretix(*study[:-1], "whole.json", "--db", "another.sqlite").code == 0
    whole, resumed = (json.loads((folder / f"{name}.json").read_text()) for name in ("whole", "s"))
    assert resumed["results"] == whole["results"]


def until_told(process, text):
    """Read what a process says beside its results until it says this."""
    while text not in (line := process.stderr.readline()):
        assert line, "it ended"


def test_ctrl_c_before_the_first_call_is_told_too(heretix, monkeypatch):
    """While the display is still being set up, nothing is stored, and that is said."""
    from heretix.cli import run as progress

    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "watching", interrupted)
    result = heretix("run", "x", "-m", "mock:m", "-K", "16", "-R", "4")
    assert result.code == 130
    assert "Stopped. 0 of 64 samples are stored" in result.err


@pytest.mark.parametrize("model", ["mock:gpt-5", "sim:m"])
def test_made_up_answers_are_labelled_wherever_a_number_is_shown(heretix, model):
    """Nobody should take them for a belief of the model that they are named after."""
    label = "made-up answers: no model was asked"
    assert label in heretix("describe", "x", "-m", model).out
    # Where the finding stands first, it says so by itself, and nothing says it twice.
    for command in (("run", "x", "-m", model, "-B", "100", "--out", "x.json"), ("show", "x.json")):
        out = heretix(*command).out
        assert "\nMade-up answers, nobody's belief: " in out
        assert label not in out
    for name in ("x.html", "x.svg"):
        assert heretix("report", "x.json", "--out", name).code == 0
        assert label in Path(name).read_text()
    assert label in belief_html(read_artifacts("x.json")[0].runs[0])


@pytest.mark.parametrize(("slots", "warned"), [(3, True), (7, True), (8, False)])
def test_an_interval_from_few_wordings_comes_with_a_warning(heretix, slots, warned):
    """It is narrow because little was asked, not because much is known."""
    told = heretix("run", "x", "-m", "mock:m", "-K", slots, "-B", "100", "--out", "x.json").out
    heretix("report", "x.json", "--out", "x.html")
    for text in (told, Path("x.html").read_text()):
        assert (f"only {slots} wordings" in text) is warned


def test_a_killed_run_loses_only_the_calls_in_flight(folder, heretix, provider):
    """kill -9, several times over: each rerun starts from what was stored, never below."""
    kept = 0
    for target in (3, 9, 20):
        process = stuck(folder, provider, WHOLE, at=target)
        process.kill()
        process.communicate()
        assert stored(folder) >= target > kept
        kept = stored(folder)
    result = heretix(*WHOLE, "--json")
    run = json.loads(result.out)["runs"][0]
    assert run["usage"]["from_cache"] == kept
    assert run["usage"]["attempted"] == 64
    fresh = heretix(*WHOLE, "--json", "--no-cache")
    assert json.loads(fresh.out)["runs"][0]["aggregates"]["ci95"] == run["aggregates"]["ci95"]
