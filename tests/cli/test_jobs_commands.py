"""`heretix jobs` and `heretix worker`: left by one, measured by another."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from heretix.accounts import LOCAL
from heretix.core.canonical import encode
from heretix.core.settings import Settings
from heretix.economy.judging.workflow import PRACTICE_JUDGES, PRACTICE_MODELS, Proposal
from heretix.jobs import EpisodeRequest, Jobs
from heretix.store import Store

SMALL = ("-m", "mock:a", "-K", "4", "-R", "2", "-B", "100")


def test_a_job_is_submitted_and_measured(heretix):
    """The worker takes it up, and what it found can be shown."""
    job = json.loads(heretix("jobs", "submit", "Tea is good", *SMALL, "--json").out)
    assert job["state"] == "queued"
    assert "1 job done" in heretix("worker", "--once").out
    shown = json.loads(heretix("jobs", "show", job["id"], "--json").out)
    assert shown["state"] == "done"
    (run,) = shown["runs"]
    assert heretix("show", run["execution_id"]).code == 0
    assert "p=" in heretix("jobs", "show", job["id"]).out
    assert job["id"] in heretix("jobs", "list").out


def test_a_worker_drafts_an_episode(heretix, folder):
    """As the web app leaves it: named by what is done, with the episode that came of it."""
    claim = "Tin whiskers cause short circuits."
    proposal = Proposal(claim=claim, models=PRACTICE_MODELS, judge_pool=PRACTICE_JUDGES, R=1, B=200)
    asked = EpisodeRequest(
        move="draft",
        claim=claim,
        models=proposal.models,
        proposal=encode(proposal),
        opens=True,
    )
    with Store.open(str(folder / "runs" / "heretix.sqlite"), create=True) as store:
        job = Jobs(store, Settings()).submit(LOCAL, asked)
    title = f"Measuring what the models believe now: {claim}"
    assert title in heretix("jobs", "show", job.id).out
    assert "1 job done" in heretix("worker", "--once").out
    shown = json.loads(heretix("jobs", "show", job.id, "--json").out)
    assert (shown["kind"], shown["state"], shown["title"]) == ("episode", "done", title)
    assert f"heretix episode show {shown['episode']}" in heretix("jobs", "show", job.id).out
    assert claim in heretix("episode", "show", shown["episode"]).out
    assert json.loads(heretix("jobs", "list", "--json").out)[0]["episode"] == shown["episode"]


def test_the_same_key_submits_once(heretix):
    """However often the command is given."""
    ids = {
        json.loads(heretix("jobs", "submit", "Tea", *SMALL, "--key", "k", "--json").out)["id"]
        for _ in range(2)
    }
    assert len(ids) == 1


def test_jobs_are_cancelled_and_resumed(heretix):
    """And mistakes are told with exit code 2."""
    job = json.loads(heretix("jobs", "submit", "Tea", *SMALL, "--lens", "RPL,NUL", "--json").out)
    assert "cancelled" in heretix("jobs", "cancel", job["id"]).out
    again = heretix("jobs", "cancel", job["id"])
    assert (again.code, "already" in again.err) == (2, True)
    assert "queued" in heretix("jobs", "resume", job["id"]).out
    assert heretix("worker", "--once").code == 0
    assert len(json.loads(heretix("jobs", "show", job["id"], "--json").out)["runs"]) == 2
    for args in (("show", "job-0"), ("submit", " ", *SMALL), ("submit", "Tea", "-m", "local:/x")):
        assert heretix("jobs", *args).code == 2


def test_a_worker_ends_at_a_signal_and_gives_its_job_back(heretix, folder):
    """The first lets calls come home and says so, the second drops them; then nothing is said."""
    heretix("jobs", "submit", "Tea", "-m", "mock:a?latency_ms=600000", "-K", "2", "-R", "1")
    program = Path(sys.executable).with_name("heretix")
    with subprocess.Popen(
        [program, "worker"], cwd=folder, env=os.environ, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert "working on" in worker.stderr.readline()
        while json.loads(heretix("jobs", "list", "--json").out)[0]["progress"]["in_flight"] < 2:
            assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        said = worker.stderr.readline()
        assert "no more calls are made; 2 calls in flight are waited for" in said
        worker.send_signal(signal.SIGTERM)
        said = worker.stderr.read()
        assert said.strip() == "2 calls in flight are dropped, and may be billed"
        assert worker.wait(timeout=120) == 0
    (job,) = json.loads(heretix("jobs", "list", "--json").out)
    assert (job["state"], job["attempt"]) == ("queued", 1)
