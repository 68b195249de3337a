"""The client against a real server: typed answers, one effect for each write, and typed errors."""

import asyncio
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from apiserver import CLAIMS, served

from heretix.client import Client, Job
from heretix.core.errors import (
    AccessError,
    ConfigError,
    ConflictError,
    ConnectionFailedError,
    RecordError,
    RefusedError,
    ServerError,
    SignInError,
    TooManyRequestsError,
    UsageError,
)
from heretix.economy.episode.state import State
from heretix.jobs import BackgroundWorker, Worker
from heretix.measurement.verify import verify_run

MOCK = ("mock:gpt-5",)


@pytest.fixture
def api(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template) as found:
        yield found


@pytest.fixture
def client(api):
    return Client(api.url)


def work(api) -> None:
    asyncio.run(Worker(api.store, api.state.settings).run_until_idle())


def test_something_is_measured_and_followed_to_its_end(api, client):
    """Asked, followed event by event, and read."""
    job = client.measure("Water is wet.", models=MOCK, K=4, R=1)
    assert isinstance(job, Job)
    assert not job.ended
    with BackgroundWorker(api.store, api.state.settings):
        told = list(client.follow(job.id))
    assert [event.seq for event in told] == sorted({event.seq for event in told})
    assert told[-1].ended
    done = client.wait(job.id)
    assert done.state == "done"
    (record,) = client.results(done)
    assert record.claim == "Water is wet."
    assert record.sampling.K == 4
    assert verify_run(record).ok
    assert [found.id for found in client.jobs(state="done")] == [job.id]


def test_records_runs_and_samples_are_typed(client):
    """What comes out are the library's own records."""
    found = list(client.runs())
    assert sorted(run.claim for run in found) == sorted(CLAIMS)
    (tea,) = client.runs("tea is")
    record = client.record(tea.run_id)
    assert record.aggregates.prob_true_rpl == tea.prob_true_rpl
    assert list(client.samples(tea.execution_id)) == record.samples
    assert client.verify(tea.execution_id).ok
    other = next(run for run in found if run.run_id != tea.run_id)
    assert client.compare(tea.run_id, other.run_id)["paired"] is True
    assert client.plan("A b c.", models=MOCK)["estimate"]["to_call"] == 16
    assert client.me()["name"] == "local"
    assert list(client.anomalies()) == []


def test_a_job_is_cancelled_and_resumed(api, client):
    """And a move that doesn't fit is a conflict."""
    job = client.measure("Water is wet.", models=MOCK)
    assert client.cancel(job.id).state == "cancelled"
    assert list(client.follow(job.id))[-1].state == "cancelled"
    with pytest.raises(ConflictError):
        client.cancel(job.id)
    assert client.resume(job.id).state == "queued"
    work(api)
    assert client.wait(job.id).state == "done"


def test_the_same_key_is_the_same_job(client):
    """Whoever keeps a key can ask again."""
    one = client.measure("Water is wet.", models=MOCK, key="mine")
    assert client.measure("Water is wet.", models=MOCK, key="mine").id == one.id
    with pytest.raises(ConflictError):
        client.measure("Water is dry.", models=MOCK, key="mine")
    assert client.measure("Water is wet.", models=MOCK).id != one.id


def test_an_episode_is_opened_and_bet_on(api, client):
    """Episodes, quotes and bets are the economy's own records."""
    with BackgroundWorker(api.store, api.state.settings):
        episode = client.propose("Water is wet.", B=200)
    assert episode.state is State.CHALLENGE
    assert [found.id for found in client.episodes(state="challenge")] == [episode.id]
    offer = client.quote(episode.id, "heretic", 500)
    position = client.stake(episode.id, "heretic", 500, min_shares=offer.shares)
    assert position.shares == offer.shares
    assert client.positions(episode.id)[-1] == position
    assert client.episode(episode.id).position_count == 3
    assert client.verify_ledger()["ok"] is True
    assert client.episode_record(episode.id)["positions"][-1]["stake"] == 500
    assert {t["episode"] for t in client.transfers(episode=episode.id)} == {episode.id}
    assert client.leaderboard() == []
    with pytest.raises(RefusedError) as refused:
        client.move(episode.id, "settle")
    assert refused.value.status == "wrong_state"


def test_tables_are_exported_to_files(client, tmp_path):
    """Whole, or not at all."""
    path = tmp_path / "runs.jsonl"
    assert client.export("runs", path) == path.stat().st_size
    assert len(path.read_text().splitlines()) == 3
    with pytest.raises(RecordError):
        client.export("samples", tmp_path / "none.jsonl", only="nothing")
    with pytest.raises(ConfigError):
        client.export("runs", tmp_path / "runs.xlsx")
    assert [found.name for found in tmp_path.iterdir() if "none" in found.name] == []


@pytest.mark.parametrize("ref", ["nothing", "../jobs", "a/b", "?x=1", "#", "%2e%2e"])
def test_what_isnt_there_is_a_record_error_or_a_usage_error(client, ref):
    """An id is one part of an address, whatever is in it."""
    with pytest.raises((RecordError, UsageError)):
        client.record(ref)


def test_refusals_are_typed(tmp_path, sqlite_template):
    """Nobody, a wrong token, too low a role, a bad request."""
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as team:
        for token in (None, "htx_wrong"):
            with pytest.raises(SignInError):
                Client(team.url, token).me()
        with pytest.raises(AccessError):
            Client(team.url, team.tokens["rita"]).measure("A b c.", models=MOCK)
        alice = Client(team.url, team.tokens["alice"])
        with pytest.raises(UsageError, match="claims"):
            alice.measure([], models=MOCK)
        assert team.tokens["alice"] not in repr(alice)
        assert alice.me()["role"] == "explorer"


class _Script(BaseHTTPRequestHandler):
    """Answers each request as the script says; None breaks the connection off."""

    script: list
    keys: list

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.keys.append(self.headers.get("idempotency-key"))
        step = self.script.pop(0)
        if step is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, body = step
        self.send_response(status)
        self.send_header("retry-after", "0")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *args):
        pass


@pytest.fixture
def scripted():
    """A server that answers what it is told, and the keys it has seen."""
    handler = type("Script", (_Script,), {"script": [], "keys": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield handler, Client(f"http://127.0.0.1:{server.server_port}", pause_s=0)
        server.shutdown()
        thread.join()


JOB = (
    b'{"id": "j", "owner": "o", "title": "t", "kind": "measure", "episode": null, "state": "queued", '
    b'"request": {}, "progress": {}, '
    b'"revision": 1, "error": null, "error_kind": null, "created_at": "", "finished_at": null, '
    b'"new": 1}'
)
BUSY = (503, b'{"type": "urn:heretix:problem:StoreBusy", "detail": "busy"}')
UNDER_WAY = (409, b'{"type": "urn:heretix:problem:Conflict", "detail": "being worked on"}')


def test_a_write_is_sent_again_under_the_same_key(scripted):
    """Whether the connection broke, the server was busy, or the first try is still under way."""
    handler, client = scripted
    handler.script[:] = [None, UNDER_WAY, BUSY, (201, JOB)]
    assert client.measure("A b c.").id == "j"
    assert len(handler.keys) == 4
    assert len(set(handler.keys)) == 1


def test_tries_come_to_an_end(scripted):
    """And the last error is the one that is raised."""
    handler, client = scripted
    handler.script[:] = [None] * 4
    with pytest.raises(ConnectionFailedError):
        client.measure("A b c.")
    too_many = (429, b'{"type": "urn:heretix:problem:TooManyRequests", "detail": "slowly"}')
    handler.script[:] = [too_many] * 4
    with pytest.raises(TooManyRequestsError, match="slowly"):
        client.measure("A b c.")
    assert handler.script == []


def test_a_refusal_isnt_tried_again(scripted):
    """What is wrong stays wrong; a conflict at the first try is one."""
    handler, client = scripted
    handler.script[:] = [UNDER_WAY]
    with pytest.raises(ConflictError):
        client.measure("A b c.")
    handler.script[:] = [(500, b"<html>")]
    with pytest.raises(ServerError, match="500"):
        client.measure("A b c.")


def test_a_server_that_isnt_there_says_how_to_start_one():
    """Before anything else."""
    # Bound and not listening: nobody else is given the port meanwhile.
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionFailedError, match="heretix serve"):
            Client(f"http://127.0.0.1:{kept.getsockname()[1]}", tries=1).me()


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "ftp://x", "http://", "file:///etc/passwd"])
def test_an_address_that_isnt_one_is_refused(url):
    """With what one looks like."""
    with pytest.raises(ConfigError, match="url"):
        Client(url)
