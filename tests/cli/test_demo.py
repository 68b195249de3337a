"""`heretix demo`: a world in which everything can be seen, and nothing can be mistaken for real."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from typer.testing import CliRunner

from heretix.accounts import LOCAL
from heretix.core.clock import SystemClock
from heretix.core.settings import Settings
from heretix.economy.audit import verify_episode
from heretix.economy.episode.state import Fate, State
from heretix.economy.exchange import Exchange
from heretix.economy.exploration_service import ExplorationService
from heretix.economy.judging.inputs import recheck
from heretix.jobs import Jobs, JobState
from heretix.measurement.anomalies import find_anomalies
from heretix.measurement.record import RunRecord
from heretix.measurement.verify import verify_run
from heretix.providers.catalog import DEMONSTRATION_MODELS
from heretix.report.words import feed_text
from heretix.store import Store
from heretix.store.runs import (
    count_runs,
    find_record,
    select_executions,
    select_runs,
    select_runs_of_claim,
)
from heretix.web.demo import ANY_TEXT_MODEL, LENS_MODEL, fill, is_marked


@pytest.fixture(scope="module")
def world(tmp_path_factory, demo_template):
    """The demonstration world, to look at."""
    path = tmp_path_factory.mktemp("demo") / "demo.sqlite"
    path.write_bytes(demo_template.read_bytes())
    with Store.open(str(path)) as store:
        yield store


@pytest.fixture(scope="module")
def exchange(world):
    return Exchange(world, clock=SystemClock())


def heretix(*arguments):
    from heretix.cli.app import app

    return CliRunner().invoke(app, arguments)


def records(store):
    for run in store.read(select_runs, limit=1000):
        yield RunRecord.model_validate_json(store.read(find_record, run.execution_id).record_json)


def test_there_is_an_episode_in_every_state(exchange):
    """So that no page of an episode is without an example."""
    found = {item.state for item in exchange.episodes(limit=100)}
    assert found == set(State)


def test_challenges_of_every_lasting_fate_but_the_late_one_are_there(exchange):
    """Sealed, accepted and failed evidence can be looked at; revealed is it for a day alone."""
    fates = {
        challenge.fate
        for item in exchange.episodes(limit=100)
        for challenge in exchange.episode(item.id).challenges
    }
    assert fates == set(Fate) - {Fate.LATE, Fate.REVEALED, Fate.SHORT}


def test_both_sides_have_won_once_and_a_late_bet_went_back(exchange):
    """The settled episodes tell different stories."""
    settled = [item.id for item in exchange.episodes(state=State.SETTLED)]
    winners = {exchange.snapshot(episode).settlement.outcome.winner.value for episode in settled}
    assert winners == {"heretic", "orthodox"}
    late = [held for held in exchange.positions_of("Dov (demo)") if held.late]
    assert len(late) == 1


def test_the_ledger_and_every_episode_verify(world, exchange):
    """The world was played by the real rules, and can be worked out again."""
    assert exchange.verify().ok
    for item in exchange.episodes(limit=100):
        if item.state is not State.DRAFT:
            assert verify_episode(exchange.record(item.id)).ok, item.state
        told = exchange.measurements(item.id)
        assert all(found.ok for found in recheck(world, exchange.episode(item.id), told))


def test_every_record_verifies(world):
    """Whatever is shown follows from its own samples."""
    found = list(records(world))
    assert len(found) > 100
    assert all(verify_run(record).ok for record in found)


def test_everything_is_marked_as_a_demonstration(world, exchange):
    """The store, every model and every person say so."""
    assert is_marked(world)
    for record in records(world):
        assert ":demo-" in record.model or record.model in DEMONSTRATION_MODELS, record.model
    people = {held.person for held in exchange.balances() if held.person}
    assert people
    assert all(name.endswith("(demo)") for name in people)


def test_there_is_evidence_influence_drift_and_standing(world):
    """The pages of bundles, experiments, one recipe over time and the leaderboard have content."""
    claim = "Daylight saving time reduces electricity consumption."
    runs = [run for run in world.read(select_runs_of_claim, claim) if run.model == LENS_MODEL]
    assert {"RPL", "NUL", "MEL", "HEL"} <= {run.lens for run in runs}
    assert [run for run in runs if (run.variant or "").startswith("without:")]
    (drift,) = world.read(select_runs, search="demo-restless")
    again = [one.execution_id for one in world.read(select_executions, drift.run_id)]
    beliefs = [
        RunRecord.model_validate_json(world.read(find_record, ref).record_json).aggregates
        for ref in again
    ]
    assert len({belief.prob_true_rpl for belief in beliefs}) > 3
    board = ExplorationService(Exchange(world, clock=SystemClock())).leaderboard()
    assert any(standing.reputation_ppm > 0 for standing in board)
    assert any(standing.credits > 0 for standing in board)


def test_evidence_moves_one_model_and_any_text_the_other(world):
    """The feed lists the one, and says of the other why it doesn't."""
    found = find_anomalies(world)
    assert {anomaly.model for anomaly in found} == {LENS_MODEL, ANY_TEXT_MODEL}
    for anomaly in found:
        driven = anomaly.model == LENS_MODEL
        assert anomaly.listed == driven, anomaly
        said = "evidence-driven (" if driven else "moved by any text"
        assert feed_text(anomaly).startswith(said)


def test_jobs_of_every_ended_state_are_there(world):
    """Done, failed and cancelled jobs can be looked at; none waits for whoever serves the store."""
    states = {job.state for job in Jobs(world, Settings()).list(by=LOCAL)}
    assert states == {JobState.DONE, JobState.FAILED, JobState.CANCELLED}


def states_of(exchange):
    return {item.id: (item.claim, item.state) for item in exchange.episodes(limit=100)}


def settings(folder):
    return Settings(env={"HERETIX_CORPORA_DIR": str(folder / "corpora")})


@pytest.fixture
def filled(tmp_path, demo_template):
    """The path of a store that holds the demonstration."""
    path = tmp_path / "demo.sqlite"
    path.write_bytes(demo_template.read_bytes())
    return path


def started(*arguments):
    """The command in a process of its own, whose notes can be read as they come."""
    command = [sys.executable, "-c", "from heretix.cli.app import main; main()", *arguments]
    return subprocess.Popen(
        command,
        # A shell's background job has Ctrl-C switched off, and hands that on to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def interrupted(process, said):
    """What a process tells, and how it ends, when Ctrl-C comes after its first `said`."""
    with process:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if said in line:
                break
        process.send_signal(signal.SIGINT)
        return "".join(seen) + process.stderr.read(), process.wait(timeout=120)


def test_a_store_that_holds_something_else_is_refused(tmp_path, sqlite_template):
    """A store of somebody's own isn't mixed with made-up runs by accident."""
    path = tmp_path / "mine.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(path)) as store:
        Exchange(store, clock=SystemClock()).join("ann")
    result = heretix("demo", "--db", str(path))
    assert result.exception.exit_code == 2
    assert "must be empty" in str(result.exception)


def test_a_demonstration_that_is_there_is_told_of(filled):
    """The second time nothing is measured; the command says how to look at what is there."""
    with Store.open(str(filled)) as store:
        before = store.read(count_runs)
    result = heretix("demo", "--db", str(filled))
    assert result.exit_code == 0
    assert "there already" in result.stderr
    assert f"heretix serve --open --db {filled}" in result.stdout
    told = json.loads(heretix("demo", "--db", str(filled), "--json").stdout)
    assert told["runs"] == before
    with Store.open(str(filled)) as store:
        assert store.read(count_runs) == before


def test_a_demonstration_that_is_there_is_served(filled):
    """`demo --serve` works every time, not only the first."""
    process = started("demo", "--serve", "--no-open", "--port", "0", "--db", str(filled))
    with process:
        line = next(line for line in process.stderr if "Heretix serves" in line)
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
        with urllib.request.urlopen(address, timeout=120) as answer:
            page = answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0
    assert str(filled) in line
    assert "<strong>Demonstration.</strong>" in page


def test_a_settled_episode_says_what_comes_next(filled, exchange):
    """The last hint begins as the others do."""
    settled = exchange.episodes(state=State.SETTLED)[0].id
    shown = heretix("episode", "show", settled, "--db", str(filled)).stdout
    assert f"next: heretix rewards explain {settled}" in shown


def test_a_taken_port_is_told_before_anything_is_measured(tmp_path):
    """The remedy is an option that the command has."""
    path = tmp_path / "demo.sqlite"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = heretix("demo", "--serve", "--port", port, "--db", str(path))
    assert result.exception.exit_code == 2
    assert "--port" in str(result.exception)
    with Store.open(str(path)) as store:
        assert not store.read(count_runs)


def test_a_stopped_demonstration_says_how_to_begin_again(tmp_path):
    """Ctrl-C ends with what to do, and so does the next try on what it left behind."""
    path = tmp_path / "demo.sqlite"
    told, code = interrupted(started("demo", "--no-embedded", "--db", str(path)), "measuring:")
    assert code == 130
    assert f"Stopped. {path} holds a part of the demonstration; delete it" in told
    result = heretix("demo", "--db", str(path))
    assert result.exception.exit_code == 2
    assert "stopped before it was whole; delete it" in str(result.exception)


def test_a_store_with_waiting_jobs_is_refused_even_by_force(tmp_path, sqlite_template):
    """Filling it would work through the queue, and those jobs might cost money."""
    from heretix.core.errors import ConflictError
    from heretix.jobs import MeasureRequest

    path = tmp_path / "heretix.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(path)) as store:
        request = MeasureRequest.parse({"claims": ("Tea is a leaf.",), "models": ("mock:m",)})
        Jobs(store, Settings()).submit(LOCAL, request)
        with pytest.raises(ConflictError, match="jobs that wait"):
            fill(store, settings(tmp_path), force=True)


@pytest.mark.soak
def test_the_command_makes_the_same_world_each_time(exchange, tmp_path, monkeypatch):
    """From nothing to a store worth serving; when and where it is made changes no episode."""
    monkeypatch.setenv("HERETIX_CORPORA_DIR", str(tmp_path / "corpora"))
    path = tmp_path / "new" / "demo.sqlite"
    result = heretix("demo", "--db", str(path), "--no-embedded", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["db"] == str(path)
    assert set(told["episodes"]) == {state.value for state in State}
    assert min(told["episodes"].values()) == 1
    with Store.open(str(path)) as store:
        assert states_of(Exchange(store, clock=SystemClock())) == states_of(exchange)
