"""Live sampling from the command line: resume, events, budgets, precision."""

import json
import re
import signal
import sqlite3
from contextlib import closing

import pytest
from test_run import WHOLE, stored, stuck, until_told

from faultserver import FaultServer, answer, by_prompt, status
from heretix.measurement.verify import read_artifacts, verify_run


def events(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_resume_makes_exactly_the_missing_calls(folder, heretix, provider):
    """A killed execution is listed, resumed by its id, and then no longer listed."""
    process = stuck(folder, provider, WHOLE, at=6)
    process.kill()
    process.communicate()
    kept = stored(folder)
    listed = heretix("resume")
    execution = listed.out.splitlines()[1].split()[0]
    assert execution.startswith("exec-")
    result = heretix("resume", execution, "--json", "--out", "resumed.json")
    assert result.code == 0
    run = json.loads(result.out)["runs"][0]
    assert run["usage"]["from_cache"] == kept
    assert run["usage"]["called"] == 64 - kept
    assert verify_run(read_artifacts("resumed.json")[0].runs[0]).ok
    whole = json.loads(heretix(*WHOLE, "--json").out)["runs"][0]
    assert whole["aggregates"]["ci95"] == run["aggregates"]["ci95"]
    assert whole["usage"]["called"] == 0


def test_resume_keeps_seed_bank_and_options(heretix, folder, monkeypatch):
    """What was asked is asked again, even when the bank's file is gone."""
    rows = "".join(f"  - 'Form {i}. Is it so? {{CLAIM}}'\n" for i in range(16))
    bank = folder / "mine.yaml"
    bank.write_text(
        f"version: mine_1\nsystem: s\nuser_template: '{{PARAPHRASE}}'\nparaphrases:\n{rows}"
    )
    monkeypatch.setenv("HERETIX_RPL_SEED", "9")
    args = ("x", "-m", "mock:m", "-K", 5, "-T", 5, "--temperature", 0.5)
    first = json.loads(heretix("run", *args, "--prompts-file", "mine.yaml", "--json").out)
    bank.unlink()
    monkeypatch.delenv("HERETIX_RPL_SEED")
    again = json.loads(heretix("resume", first["runs"][0]["execution_id"], "--json").out)
    one, other = first["runs"][0], again["runs"][0]
    assert other["usage"]["called"] == 0
    for name in ("run_id", "aggregation", "options", "sampler", "prompts"):
        assert other[name] == one[name]


def test_what_can_be_resumed_says_how_far_it_is(folder, heretix, monkeypatch):
    """Lens and progress tell executions of one command apart; numbers fit a narrow screen."""
    run = ("run", "C", "--mock", "-B", 100, "-T", 1, "--lens", "RPL,NUL", "-K", 4, "-R", 3)
    assert heretix(*run).code == 0
    _unfinish(folder, "lens = 'NUL'")
    for columns in (60, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        listed = heretix("resume").out
        assert re.search(r"^exec-[0-9a-f]{8}  NUL +12 of 12 ", listed, re.MULTILINE)
        assert "RPL  " not in listed
        assert "give its command again" in listed


def test_what_was_done_again_since_is_not_offered(folder, heretix):
    """A stopped execution whose command was then run to its end has nothing left to do."""
    run = ("run", "C", "--mock", "-B", 100, "-T", 1, "-K", 4, "-R", 3)
    assert heretix(*run).code == 0
    _unfinish(folder, "1")
    assert heretix(*run).code == 0
    assert "nothing to resume" in heretix("resume").out


def _unfinish(folder, which):
    """Take away the results of runs, as if their process had been killed before it wrote them."""
    with closing(sqlite3.connect(folder / "runs" / "heretix.sqlite")) as connection, connection:
        of_runs = f"SELECT run_id FROM runs WHERE {which}"
        doomed = f"SELECT execution_id FROM executions WHERE run_id IN ({of_runs})"
        for table in ("execution_samples", "results"):
            connection.execute(f"DELETE FROM {table} WHERE execution_id IN ({doomed})")


def test_nothing_to_resume_is_said(heretix):
    """With a store, and without one."""
    assert heretix("resume").code == 2
    heretix("run", "x", "-m", "mock:m")
    assert "nothing to resume" in heretix("resume").out
    assert heretix("resume", "exec-nosuch").code == 2


def test_events_are_json_lines_on_standard_error(heretix):
    """Programs read what happens there, and the artifact on standard output."""
    result = heretix("run", "x", "-m", "mock:m?rejected=0.2", "--json")
    seen = events(result.err)
    assert seen[0] == {"event": "started", "total": 16}
    assert seen[-1]["event"] == "ended"
    assert seen[-1]["done"] == 16
    failed = [event for event in seen if event["event"] == "failed"]
    assert len(failed) == seen[-1]["failed"] > 0
    (finished,) = [event for event in seen if event["event"] == "finished"]
    assert finished["execution_id"] == json.loads(result.out)["runs"][0]["execution_id"]


def test_a_budget_stops_the_run_and_a_larger_one_goes_on(heretix, folder, monkeypatch):
    """Exit code 1; everything answered is stored; the rest is had later."""
    args = ("run", "x", "-m", "openai-compatible:dear", "--concurrency", 1)
    with FaultServer() as server:
        server.always(answer('{"prob_true": 0.7}'))
        monkeypatch.setenv("HERETIX_BASE_URL", server.url("openai-compatible"))
        refused = heretix(*args, "--budget-usd", 0.01)
        assert refused.code == 2
        assert "HERETIX_PRICES" in refused.err
        (folder / "prices.yaml").write_text(
            "openai-compatible:\n  models:\n"
            "    dear: {input: 1000, output: 1000, as_of: 2026-11-15}\n"
        )
        monkeypatch.setenv("HERETIX_PRICES", "prices.yaml")
        stopped = heretix(*args, "--budget-usd", 2.7)
        assert stopped.code == 1
        assert "`budget_usd` 2.7 is spent" in stopped.err
        paid = len(server.calls)
        # What one more could cost at the most no longer fits beside what seven did.
        assert paid == 7
        result = heretix(*args, "--budget-usd", 1000, "--json")
        assert result.code == 0
        assert len(server.calls) == 16
    usage = json.loads(result.out)["runs"][0]["usage"]
    assert usage["called"] == 16 - paid
    tokens = usage["tokens_in"] + usage["tokens_out"]
    assert usage["cost_usd"] == tokens * 1000 / 1e6


def test_precision_is_escalated_and_recorded(heretix):
    """More templates first; the record says which steps were taken and why it stopped."""
    result = heretix(
        "run",
        "x",
        "-m",
        "mock:m",
        "-K",
        4,
        "-T",
        4,
        "--until-width",
        0.001,
        "--max-samples",
        100,
        "--json",
    )
    assert result.code == 1
    run = json.loads(result.out)["runs"][0]
    steps = [(s["K"], s["R"], s["T"]) for s in run["precision"]["steps"]]
    assert steps == [(4, 2, 4), (8, 2, 8), (16, 2, 16), (32, 2, 16), (48, 2, 16)]
    assert run["precision"]["stopped"] == "max_samples"
    assert run["sampling"]["N"] <= 100
    wide = heretix("run", "y", "-m", "mock:m", "--until-width", 0.9, "--json")
    assert json.loads(wide.out)["runs"][0]["precision"]["stopped"] == "gates_passed"
    assert heretix("run", "x", "--mock", "--max-samples", 5).code == 2


def test_an_interrupted_file_of_claims_continues(folder, heretix, provider):
    """Ctrl-C twice among many claims drops the calls in flight; what is finished is in the file, and
    the rerun makes the rest of the calls."""
    (folder / "claims.txt").write_text("\n".join(f"Claim {i}." for i in range(12)))
    args = (
        "run",
        "--claims-file",
        "claims.txt",
        "-m",
        "openai-compatible:m",
        "--concurrency",
        "4",
        "-B",
        "200",
        "--out",
        "all.jsonl",
    )
    process = stuck(folder, provider, (*args, "--json"), at=40, concurrency=4)
    while json.loads(process.stderr.readline())["event"] != "finished":
        pass
    process.send_signal(signal.SIGINT)
    until_told(process, "4 in flight are waited for")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    partial = [run for artifact in read_artifacts("all.jsonl") for run in artifact.runs]
    assert 0 < len(partial) < 12
    assert all(verify_run(run).ok for run in partial)
    kept = stored(folder)
    assert 40 <= kept < 192
    assert heretix(*args).code == 0
    runs = [run for artifact in read_artifacts("all.jsonl") for run in artifact.runs]
    assert len(runs) == 12
    assert sum(run.usage.called for run in runs) == 192 - kept


ADAPTIVE = ("x", "-m", "mock:m", "--until-width", 0.001, "--max-samples", 64)


def test_a_missed_target_is_told_with_how_far_it_was_missed(heretix):
    """On the screen and by the exit code; the account counts every step."""
    result = heretix("run", *ADAPTIVE)
    assert result.code == 1
    said = " ".join(result.out.split())
    found = re.search(r"the interval is (0\.\d+) wide, (0\.\d+) more than was asked", said)
    assert float(found[1]) - float(found[2]) == pytest.approx(0.001, abs=0.0011)
    assert "target of width 0.001 missed at the limit of 64 samples" in said
    assert "1 of 1 missed the width of 0.001" in said
    assert "64/64 samples compliant" in said
    assert "0 from cache" in said
    assert re.search(r"\$0\.0000 · [\d,]+ tokens in, [\d,]+ out · 64 calls · [\d.]+ s", result.err)
    again = heretix("run", *ADAPTIVE, "--json")
    assert (
        events(again.err)[-1] | {"calls": 0, "cached": 64, "done": 64, "total": 64}
        == (events(again.err)[-1])
    )


def test_a_target_that_is_met_ends_well(heretix):
    """Exit code 0, and nothing is said of a target."""
    result = heretix("run", "x", "-m", "mock:m", "--until-width", 0.9)
    assert result.code == 0
    assert "missed" not in result.out


def test_describe_prices_a_target_from_the_first_step_to_the_last(heretix):
    """At least the plan as it stands, at most the largest step that the cap allows."""
    result = heretix("describe", *ADAPTIVE, "--json")
    estimate = json.loads(result.out)["estimate"]
    assert (estimate["to_call"], estimate["at_most"]["to_call"]) == (16, 64)
    assert heretix("run", *ADAPTIVE).code == 1
    estimate = json.loads(heretix("describe", *ADAPTIVE, "--json").out)["estimate"]
    assert (estimate["to_call"], estimate["at_most"]["to_call"]) == (0, 0)
    shown = heretix("describe", "y", *ADAPTIVE[1:]).out
    assert re.search(r"at most +64 calls to make", shown)
    assert "until 0.001 wide" in shown
    assert "at_most" not in heretix("describe", "x", "--mock").out


def test_a_run_that_is_killed_in_a_later_step_is_resumed_towards_its_target(
    folder, heretix, provider
):
    """The execution grew: resuming it makes the missing calls of that step, and of later ones."""
    args = ("run", "x", "-m", "openai-compatible:m", "--until-width", "0.001")
    args += ("--max-samples", "64", "-B", "200")
    process = stuck(folder, provider, args, at=40, concurrency=1)
    process.kill()
    process.communicate()
    execution = heretix("resume").out.splitlines()[1].split()[0]
    result = heretix("resume", execution, "--json")
    assert result.code == 1
    run = json.loads(result.out)["runs"][0]
    assert run["sampling"]["N"] == 64
    assert run["usage"]["called"] == 64 - run["usage"]["from_cache"]
    assert run["precision"]["stopped"] == "max_samples"


def test_what_is_finished_is_written_when_the_provider_goes_down(folder, heretix, provider):
    """Exit code 3, and the file holds the claims that were done; the rerun holds all."""
    (folder / "claims.txt").write_text("\n".join(f"Claim {i}." for i in range(6)))
    args = ("run", "--claims-file", "claims.txt", "-m", "openai-compatible:m", "-B", 200)
    args += ("--concurrency", 1, "--out", "all.jsonl")
    provider.script(*[by_prompt()] * 40)
    provider.always(status(402))
    stopped = heretix(*args)
    assert stopped.code == 3
    assert "what is finished is written to all.jsonl" in stopped.err
    assert [a.runs[0].claim for a in read_artifacts("all.jsonl")] == ["Claim 0.", "Claim 1."]
    assert re.search(r" · 41 calls · ", stopped.err)
    provider.always(by_prompt())
    assert heretix(*args).code == 0
    assert len(read_artifacts("all.jsonl")) == 6


def _spent(folder):
    """What each budget in the store has spent, in millionths of a dollar."""
    with closing(sqlite3.connect(folder / "runs" / "heretix.sqlite")) as connection:
        return [row[0] for row in connection.execute("SELECT spent_micros FROM budgets")]


def _price(folder, monkeypatch):
    (folder / "prices.yaml").write_text(
        "openai-compatible:\n  models:\n    m: {input: 1000, output: 1000, as_of: 2026-11-15}\n"
    )
    monkeypatch.setenv("HERETIX_PRICES", "prices.yaml")


def test_a_killed_run_leaves_a_store_within_its_budget(folder, heretix, provider, monkeypatch):
    """What it held when it died counts as spent; the others stop at what is left."""
    _price(folder, monkeypatch)
    monkeypatch.setenv("HERETIX_BUDGET_USD", "12")
    process = stuck(folder, provider, WHOLE, at=3)
    process.kill()
    process.communicate()
    stopped = heretix(*WHOLE, "--out", "x.json")
    assert stopped.code == 1
    assert "`HERETIX_BUDGET_USD` 12, which all runs of this store share, is spent" in stopped.err
    assert "for calls whose cost wasn't told" in stopped.err
    with closing(sqlite3.connect(folder / "runs" / "heretix.sqlite")) as connection:
        tokens = connection.execute("SELECT sum(tokens_in + tokens_out) FROM samples").fetchone()[0]
        spent, held = connection.execute("SELECT spent_micros, held_micros FROM budgets").fetchone()
    assert tokens * 1000 <= spent + held <= 12_000_000
    assert held == 0
    monkeypatch.setenv("HERETIX_BUDGET_USD", "-1")
    refused = heretix(*WHOLE)
    assert refused.code == 2
    assert "`HERETIX_BUDGET_USD` must be dollars above 0, got '-1'" in refused.err


def test_who_reads_documents_is_paid_from_the_same_budget(folder, heretix, provider, monkeypatch):
    """A reader of stances counts in the budget and in the last line; describing asks nobody."""
    _price(folder, monkeypatch)
    (folder / "a.txt").write_text("Tariffs raise prices. That is what a tariff does. " * 4)
    asked = ("Tariffs raise prices.", "--document", "a.txt", "--lens", "SEL", "--no-checks")
    asked += ("-m", "openai-compatible:m", "-K", 4, "-R", 1, "--stance", "openai-compatible:m")
    refused = heretix("lens", *asked, "--budget-usd", 0.001)
    assert refused.code == 1
    assert "covers no call" in refused.err
    assert not provider.calls
    whole = heretix("lens", *asked, "--budget-usd", 1000, "--json")
    assert whole.code == 0
    assert len(provider.calls) == 5
    assert json.loads(whole.out)["runs"][0]["usage"]["called"] == 4
    (ended,) = [event for event in events(whole.err) if event["event"] == "ended"]
    assert ended["calls"] == 5
    paid = (ended["tokens_in"] + ended["tokens_out"]) * 1000
    assert sorted(_spent(folder)) == [0, paid]
    (folder / "asked.yaml").write_text(
        "claim: Tariffs are low.\nmodel: openai-compatible:m\nlenses: [SEL]\n"
        "evidence: {documents: [a.txt], stance: 'openai-compatible:m', checks: false}\n"
    )
    described = heretix("describe", "--config", "asked.yaml")
    assert described.code == 0
    assert "`stance` and `queries` aren't asked here" in " ".join(described.err.split())
    assert len(provider.calls) == 5


@pytest.mark.parametrize(
    "asked",
    [
        ("claims", "negate", "Tea is a plant.", "-m"),
        ("evidence", "score", "a.txt", "--judge"),
        ("evidence", "build", "Tea.", "--lens", "SEL", "--document", "a.txt", "--stance"),
    ],
)
def test_models_that_are_asked_beside_a_run_are_paid_by_the_store(
    folder, heretix, provider, monkeypatch, asked
):
    """What they may cost is held before they are called, and what they did cost is spent; asked the
    same again, they cost nothing, unless answers that are kept aren't to count."""
    _price(folder, monkeypatch)
    (folder / "a.txt").write_text("Tariffs raise prices. That is what a tariff does. " * 4)
    asked = (*asked, "openai-compatible:m")
    monkeypatch.setenv("HERETIX_BUDGET_USD", "0.001")
    refused = heretix(*asked)
    assert refused.code == 1
    assert "`HERETIX_BUDGET_USD` 0.001, which all runs of this store share, covers" in refused.err
    assert not provider.calls
    monkeypatch.setenv("HERETIX_BUDGET_USD", "1000")
    heretix(*asked)
    paid = _spent(folder)[0]
    assert provider.calls
    monkeypatch.delenv("HERETIX_BUDGET_USD")
    calls = len(provider.calls)
    heretix(*asked)
    assert (_spent(folder), len(provider.calls)) == ([paid], calls)
    monkeypatch.setenv("HERETIX_RPL_NO_CACHE", "1")
    heretix(*asked)
    # The store remembers its budget; each call costs the same.
    assert (_spent(folder), len(provider.calls)) == ([2 * paid], 2 * calls)
    assert paid > 0


def test_the_days_of_a_series_share_one_budget(folder, heretix, provider, monkeypatch):
    """One command has one budget, however many measurements it makes."""
    _price(folder, monkeypatch)
    days = ("--as-of", "2024-01-01,2025-01-01", "--lens", "NUL,MEL", "-K", 4, "-R", 1)
    claim = "Regular moderate exercise lowers resting heart rate."
    done = heretix("lens", claim, *days, "-m", "openai-compatible:m", "--budget-usd", 1e6, "--json")
    assert done.code in {0, 1}
    ended = [event for event in events(done.err) if event["event"] == "ended"]
    assert len(ended) == 2
    paid = sum(event["tokens_in"] + event["tokens_out"] for event in ended) * 1000
    assert _spent(folder) == [paid]
