"""`heretix serve`: where it listens, what it refuses, and how it ends."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from website import serving, state_over

from faultserver import FaultServer, silence
from heretix.accounts import LOCAL, People, Role
from heretix.client import Client
from heretix.core.settings import Settings
from heretix.jobs import Jobs, JobState
from heretix.store import Store

HERETIX = str(Path(sys.executable).parent / "heretix")


@pytest.fixture
def refused(entry_point):
    """What the command says when it doesn't start."""

    def run(*args):
        done = entry_point("serve", *args)
        return done.code, done.err

    return run


def test_other_addresses_are_refused_without_accounts(refused, tmp_path):
    """Whoever reached the server would be its operator."""
    code, said = refused("--host", "0.0.0.0", "--port", "0", "--db", str(tmp_path / "s.sqlite"))
    assert code == 2
    assert "heretix users add" in said
    assert "Traceback" not in said


def test_a_port_in_use_is_a_mistake_with_a_remedy(refused, tmp_path):
    """Two servers can't have one port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = refused("--port", port, "--db", str(tmp_path / "s.sqlite"))
    assert code == 2
    assert "--port" in said


def test_an_address_that_is_none_is_a_mistake(refused, tmp_path):
    """It says so instead of a traceback."""
    code, said = refused("--host", "127.0.0.1x", "--db", str(tmp_path / "s.sqlite"))
    assert code == 2
    assert "Traceback" not in said


def test_a_host_that_is_no_text_is_a_mistake(refused, tmp_path):
    """Python refuses to make a name of it in words of its own."""
    code, said = refused("--host", "a\udcffb", "--db", str(tmp_path / "s.sqlite"))
    assert (code, "`--host` must be an address" in said) == (2, True)
    assert "Traceback" not in said


@pytest.fixture
def started(tmp_path):
    """Start the command; gives the process and the address that it printed."""
    processes = []

    def start(*args, db=tmp_path / "s.sqlite"):
        process = subprocess.Popen(
            [HERETIX, "serve", "--port", "0", "--db", str(db), *args],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "400"},
        )
        processes.append(process)
        line = process.stderr.readline()
        return process, re.search(r"http://\S+/", line)[0]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


def test_it_serves_without_configuration_and_ends_with_ctrl_c(started):
    """One command; a page; a clean end, with nothing but its word."""
    process, address = started()
    answer = httpx2.get(address, timeout=120, trust_env=False, verify=False)
    assert answer.status_code == 200
    assert "Nothing was measured here yet" in answer.text
    assert "server" not in answer.headers
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(120) == 0
    assert rest.strip() == "Stopped."


@pytest.mark.parametrize("worker", [[], ["--no-worker"]], ids=["worker", "no worker"])
def test_it_ends_the_same_way_before_it_has_answered_anything(started, worker):
    """Whoever sees that it serves may press Ctrl-C at once: it has only begun to load."""
    process, _ = started(*worker)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(30) == 0
    assert rest.strip() == "Stopped."


def test_with_accounts_any_address_will_do(started, tmp_path):
    """Then people sign in."""
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        People(store).add("root", role=Role.OPERATOR, password="correct horse battery")
    _, address = started("--host", "0.0.0.0", "--no-worker")
    answer = httpx2.get(
        address.replace("0.0.0.0", "127.0.0.1"), timeout=120, trust_env=False, verify=False
    )
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in")


def test_a_short_job_does_not_wait_behind_a_long_one(started, tmp_path, monkeypatch):
    """The server works on several; those that are under way when it ends are given back, their
    calls dropped at a second Ctrl-C."""
    with FaultServer() as provider:
        provider.always(silence())
        monkeypatch.setenv("HERETIX_BASE_URL", provider.url("openai-compatible"))
        process, address = started()
        client = Client(address)
        long, short = (
            client.measure("Tea is good.", models=(model,), K=4, R=1)
            for model in ("openai-compatible:m", "mock:a")
        )
        assert client.wait(short.id).state == "done"
        assert client.job(long.id).state == "running"
        while not client.job(long.id).progress["in_flight"]:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert "calls in flight are waited for, Ctrl-C again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        assert Jobs(store, Settings()).get(long.id, by=LOCAL).state is JobState.QUEUED


def test_as_many_jobs_at_a_time_as_was_said(refused, tmp_path):
    """None at all is no number; that is `--no-worker`."""
    code, said = refused("--jobs", "0", "--db", str(tmp_path / "s.sqlite"))
    assert code == 2
    assert "--jobs" in said


@pytest.mark.parametrize(("who", "status"), [(None, 401), ("rita", 403), ("root", 200)])
def test_metrics_are_for_operators(tmp_path, sqlite_template, who, status):
    """Their token is what Prometheus brings. What models cost is nobody else's business."""
    from heretix.observability import PrometheusMetrics

    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store, PrometheusMetrics() as scraped:
        state = state_over(store, tmp_path)
        tokens = {
            name: state.people.tokens.issue(state.people.add(name, role=role), label="t").secret
            for name, role in {"root": Role.OPERATOR, "rita": Role.READER}.items()
        }
        with serving(state, loopback_only=False, metrics=scraped) as site:
            headers = {"authorization": f"Bearer {tokens[who]}"} if who else {}
            for path in ("/runs/none/samples", "/api/v1/executions/none/samples"):
                site.get(path, headers={"authorization": f"Bearer {tokens['root']}"})
            answered = site.get("/metrics", headers=headers)
    assert answered.status_code == status
    assert ("heretix_request_duration_seconds" in answered.text) == (status == 200)
    for pattern in ("/runs/{ref}/samples", "/api/v1/executions/{ref}/samples"):
        route = f'http_response_status_code="404",http_route="{pattern}"'
        assert (route in answered.text) == (status == 200), pattern


def test_without_the_option_there_are_no_metrics(site):
    """The address is like any other that isn't there."""
    assert site.get("/metrics").status_code == 404


def test_a_server_logs_json_and_nothing_else(tmp_path):
    """Each line of standard error is JSON, from the first to the last; requests have their ids."""
    store = str(tmp_path / "s.sqlite")
    command = [HERETIX, "serve", "--port", "0", "--db", store, "--log-json", "--metrics"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        first = json.loads(process.stderr.readline())
        url = re.search(r"http://\S+/", first["message"])[0]
        with httpx2.Client(trust_env=False) as client:
            answered = client.get(f"{url}health", headers={"x-request-id": "mine"}, timeout=120)
            metrics = client.get(f"{url}metrics", timeout=120)
        process.send_signal(signal.SIGINT)
        lines = [json.loads(line) for line in process.stderr]
    assert answered.status_code == metrics.status_code == 200
    assert "heretix_jobs{" in metrics.text
    (noted,) = [line for line in lines if line.get("request_id") == "mine"]
    assert (noted["event"], noted["method"], noted["status"]) == ("request", "GET", 200)
    assert lines[-1]["message"] == "Stopped."


@pytest.mark.parametrize(
    "args", [("serve", "--port", "0", "--metrics"), ("worker", "--metrics-port", "0")]
)
def test_metrics_need_the_extra(entry_point, monkeypatch, tmp_path, args):
    """Asked for what isn't installed, a command says how to install it."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "opentelemetry":
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    done = entry_point(*args, "--db", tmp_path / "s.sqlite")
    assert done.code == 2
    assert "uv sync --extra otel" in done.err
    assert "Traceback" not in done.err
