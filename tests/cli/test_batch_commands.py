"""`heretix run --batch` and `heretix batch`, against a local server that speaks the protocol."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import web
from sqlalchemy import update

from batchserver import BatchServer, answered, carried_out, errored
from faultserver import reset, silence, status
from heretix.store import Store
from heretix.store.schema import batches


@pytest.fixture(scope="module")
def running():
    with BatchServer() as server:
        yield server


@pytest.fixture
def server(running, monkeypatch):
    running.forget()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1")
    return running


@pytest.fixture
def submit(heretix, server):
    """Submit a claim as a batch."""

    def run(*args, protocol="openai", claim="Tea is wet."):
        model = {"openai": "gpt-5", "anthropic": "claude-sonnet-5-5"}[protocol]
        where = ("--model", model, "--base-url", server.url(protocol), "-B", 100)
        return heretix("run", claim, "--batch", *where, *args)

    return run


def batch_id(result):
    """The batch that a submission named."""
    return next(word for word in result.out.split() if word.startswith("batch-"))


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_submit_look_collect_and_show(heretix, server, submit, protocol):
    """The way through: each command says what comes next."""
    submitted = submit(protocol=protocol)
    assert submitted.code == 0
    assert "submitted 16 samples in a batch" in submitted.out
    assert "heretix batch collect --wait" in submitted.out
    name = batch_id(submitted)
    looked = heretix("batch", "status")
    assert looked.code == 0
    assert name[:14] in looked.out
    assert "in_progress" in looked.out
    early = heretix("batch", "collect")
    assert (early.code, "still open" in early.out) == (1, True)
    server.end()
    collected = heretix("batch", "collect", name[:14])
    assert collected.code == 0
    assert "Tea is wet." in collected.out
    execution = next(w for w in collected.out.split() if w.startswith("exec-"))
    assert heretix("verify", execution).code == 0
    assert "collected" in heretix("batch", "status").out
    nothing = heretix("batch", "collect")
    assert (nothing.code, nothing.out.strip()) == (0, "no open batches")


def test_a_program_reads_json(heretix, server, submit):
    """Every command has a form for programs, with numbers as numbers."""
    submission = json.loads(submit("--json").out)
    assert (submission["requests"], submission["records"]) == (16, [])
    (before,) = json.loads(heretix("batch", "status", "--json").out)
    assert (before["state"], before["provider_status"]) == ("submitted", "in_progress")
    assert before["provider_batch_id"] == "batch_0"
    assert before["expires_at"] > before["submitted_at"]
    server.end(lambda entry: errored() if entry.number == 0 else answered())
    report = json.loads(heretix("batch", "collect", "--json").out)
    assert (report["open"], report["waiting"], report["troubles"]) == (0, 0, [])
    (record,) = report["records"]
    assert (record["claim"], record["status"]) == ("Tea is wet.", "ok")
    (after,) = report["batches"]
    assert after["collected"] == {
        "answered": 15,
        "failed": 1,
        "tokens_in": 750,
        "tokens_out": 135,
    }
    # Half of 1.25 and 10 dollars a million.
    assert after["cost_usd"] == pytest.approx((750 * 0.625 + 135 * 5) / 1e6, abs=1e-6)


def test_what_is_stored_needs_no_batch(heretix, server, submit):
    """The second time everything comes from the cache, at once."""
    submit()
    server.end()
    heretix("batch", "collect")
    again = submit()
    assert again.code == 0
    assert "Tea is wet." in again.out
    assert "submitted" not in again.out
    assert len(server.batches) == 1


def test_waiting_asks_until_the_end(heretix, server, submit):
    """`--wait` ends with the results."""

    async def not_yet(server, request, call):
        server.end()
        return web.json_response({"id": "batch_0", "status": "in_progress"})

    submit()
    server.script("get", not_yet)
    waited = heretix("batch", "collect", "--wait", "--every", "0.01")
    assert waited.code == 0
    assert "Tea is wet." in waited.out


def test_artifacts_are_written(heretix, server, folder):
    """`--out` writes what was completed, one artifact a line, and it verifies."""
    (folder / "claims.txt").write_text("Tea is wet.\nIce is hot.\n")
    where = ("--model", "gpt-5", "--base-url", server.url("openai"), "-B", 100)
    heretix("run", "--claims-file", "claims.txt", "--batch", *where)
    server.end()
    assert heretix("batch", "collect", "--out", "results.jsonl").code == 0
    assert len((folder / "results.jsonl").read_text().splitlines()) == 2
    assert heretix("verify", "results.jsonl").code == 0


def test_a_second_collection_writes_what_the_first_finished_too(heretix, server, folder):
    """One batch of two can't be read at first: in the end the file has all of both, and so has
    one that is written when nothing is open any more."""
    (folder / "claims.txt").write_text("Tea is wet.\nIce is hot.\n")
    where = ("--model", "gpt-5", "--base-url", server.url("openai"), "-B", 100)
    heretix("run", "Ice is hot.", "--batch", *where)
    heretix("run", "--claims-file", "claims.txt", "--batch", *where, "-R", 3)
    with Store.open("runs/heretix.sqlite") as store, store.writing() as connection:
        # As if one command had submitted both.
        connection.execute(update(batches).values(submission_id="one"))
    server.end()
    open_batches = json.loads(heretix("batch", "status", "--json").out)
    first = [found["batch_id"] for found in open_batches]
    assert heretix("batch", "collect", first[0], "--out", "results.jsonl").code == 0
    assert len((folder / "results.jsonl").read_text().splitlines()) == 1
    for _ in range(2):
        assert heretix("batch", "collect", "--out", "results.jsonl").code == 0
        lines = (folder / "results.jsonl").read_text().splitlines()
        claims = [json.loads(line)["runs"][0]["claim"] for line in lines]
        assert (claims[0], sorted(claims[1:])) == ("Ice is hot.", ["Ice is hot.", "Tea is wet."])


def test_the_providers_reason_is_told(heretix, server, submit):
    """It stands beside the batch, not only in each sample."""
    submit()
    server.end(status="failed", problem="Enqueued token limit reached")
    collected = heretix("batch", "collect")
    assert collected.code == 1
    assert "16 requests failed" in collected.out
    assert "Enqueued token limit reached" in collected.out


def test_cancelling_keeps_what_was_answered(heretix, server, submit):
    """The batch ends early, and what there is can be collected."""
    name = batch_id(submit())
    cancelled = heretix("batch", "cancel", name)
    assert cancelled.code == 0
    assert "cancelling" in cancelled.out
    server.end(lambda entry: answered() if entry.number < 12 else errored())
    assert heretix("batch", "collect").code == 0
    assert heretix("batch", "cancel", name).code == 0, "an ended batch has nothing to cancel"


def test_all_failed_is_no_estimate(heretix, server, submit):
    """Collected, but nothing usable: the exit code says so."""
    submit()
    server.end(lambda entry: errored("bad request"))
    assert heretix("batch", "collect").code == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--out", "x.json"), "heretix batch collect"),
        (("--until-width", "0.1"), "--until-width"),
        (("--mock",), "OpenAI and Anthropic"),
    ],
)
def test_what_makes_no_sense_in_a_batch_is_refused(server, submit, args, words):
    """Before anything is sent."""
    refused = submit(*args)
    assert refused.code == 2
    assert words in refused.err
    assert not server.seen


def test_an_unknown_batch_is_refused(heretix, server, submit):
    """With the way to the list of them."""
    submit()
    for command in ("status", "collect", "cancel"):
        refused = heretix("batch", command, "batch-ffff")
        assert (refused.code, "heretix batch status" in refused.err) == (2, True)


def test_a_provider_in_trouble_is_said_and_nothing_is_lost(heretix, server, submit):
    """A wrong key: exit code 3, and the batch is still there afterwards."""
    submit()
    server.script("get", status(401, "wrong key"))
    trouble = heretix("batch", "collect")
    assert trouble.code == 3
    assert "wrong key" in trouble.out
    server.end()
    assert heretix("batch", "collect").code == 0


def test_an_unclear_submission_says_how_to_find_out(heretix, server, submit):
    """No answer came: nothing is sent again until it is clear what became of it."""
    server.script("create", reset())
    unclear = submit()
    assert unclear.code == 3
    assert "heretix batch status" in unclear.err
    looked = heretix("batch", "status")
    assert "not confirmed" in " ".join(looked.out.split())
    again = submit()
    assert "16 samples are asked for elsewhere or in batches below" in again.out
    assert "They come within a day" not in again.out
    assert not server.batches


def test_a_killed_process_pays_once(heretix, server, submit, folder):
    """kill -9 between the submission and its note: the next process finds the batch."""
    server.script("create", carried_out(silence()))
    program = Path(sys.executable).parent / "heretix"
    where = ["--model", "gpt-5", "--base-url", server.url("openai"), "-B", "100"]
    process = subprocess.Popen(
        [program, "run", "Tea is wet.", "--batch", *where], cwd=folder, env=dict(os.environ)
    )
    while not server.batches:
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert "on their way already" in submit().out
    server.end()
    collected = heretix("batch", "collect", "--json")
    assert collected.code == 0
    assert len(server.batches) == 1
    assert len(json.loads(collected.out)["records"]) == 2
