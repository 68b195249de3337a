"""Moves that measure, through the API: begun at once, asked after, done once for each key."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from apiserver import PREFIX, served

from heretix.accounts import LOCAL
from heretix.client import Client
from heretix.core.clock import ManualClock
from heretix.core.errors import CallTimeoutError, ConflictError, NoEstimateError, RefusedError
from heretix.economy.episode.state import State
from heretix.economy.judging.workflow import DAY_MS, EpisodeWorkflow
from heretix.jobs import BackgroundWorker, EpisodeRequest, Progress
from heretix.store.jobs import update_job

SMALL = {"claim": "Water is wet.", "B": 200}
BROKEN = {"models": ["mock:m?refused=1"]}
NOW = 1_800_000_000_000


@pytest.fixture
def team(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as found:
        found.state.clock = ManualClock(NOW)
        yield found


@pytest.fixture
def working(team):
    """A worker beside the server, by the same clock."""
    with BackgroundWorker(team.store, team.state.settings, clock=team.state.clock):
        yield


def hold(team, episode="ep-1"):
    """A job that has an episode in hand, at a worker who says no more."""
    request = EpisodeRequest(move="judge", claim="A b c.", models=("mock:m",), episode=episode)
    job = team.state.jobs.submit(LOCAL, request)
    values = {
        "state": "running",
        "worker": "elsewhere/7/1/x",
        "lease_until": time.time() + 3600,
        "progress_json": Progress(phase="measuring", total=8).as_json(),
    }
    with team.store.writing() as connection:
        update_job(connection, job.id, values)
    return job


def opened(team, **more):
    """The path of an episode that takes bets."""
    begun = team.post("/episodes", SMALL | more, "root", key="open")
    return f"/episodes/{team.outcome(begun, 'root').json()['id']}"


def failed(team, begun):
    """What a job that fails says in the end."""
    assert begun.status_code == 202, begun.text
    assert team.work() == 1
    return team.get(begun.headers["location"].removeprefix(PREFIX), "root").json()


def test_a_measurement_is_begun_and_asked_after(team):
    """202 with a place to ask; there it is told how far it is, and in the end which episode."""
    begun = team.post("/episodes", SMALL, "root", key="one")
    assert begun.status_code == 202
    assert begun.headers["retry-after"] == "1"
    found = team.outcome(begun, "root").json()
    assert found["state"] == "challenge"
    again = team.get(f"/jobs/{begun.json()['id']}", "root")
    assert again.headers["cache-control"] == "no-store"
    assert "retry-after" not in again.headers
    told, progress = again.json(), again.json()["progress"]
    assert (progress["done"], progress["total"], progress["failed"]) == (32, 32, 0)
    assert (progress["phase"], progress["runs_done"], progress["runs_total"]) == ("ended", 1, 1)
    assert (begun.json()["episode"], told["episode"]) == (None, found["id"])
    assert told["title"] == "Measuring what the models believe now: Water is wet."
    assert (told["request"]["move"], told["request"]["opens"]) == ("draft", True)
    (run,) = team.get(f"/jobs/{told['id']}/runs", "root").json()["items"]
    assert run["claim"] == "Water is wet."
    assert team.get(f"/executions/{run['execution_id']}", "root").status_code == 200


def test_its_events_are_those_of_any_job(team, working):
    """Progress until the end, each with its number."""
    begun = team.post("/episodes", SMALL, "root", key="one").json()
    told = list(Client(team.url, team.tokens["root"]).follow(begun["id"]))
    assert [event.seq for event in told] == sorted({event.seq for event in told})
    assert (told[-1].ended, told[-1].state, told[-1].progress["done"]) == (True, "done", 32)


def test_the_same_key_is_the_same_job(team):
    """Before it has ended and afterwards: one measurement, one episode, one place to ask."""
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda _: team.post("/episodes", SMALL, "root", key="one"), range(4)))
    assert {answer.status_code for answer in sent} <= {202, 409}
    first = next(answer for answer in sent if answer.status_code == 202)
    team.outcome(first, "root")
    again = team.post("/episodes", SMALL, "root", key="one")
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()
    team.outcome(again, "root")
    assert len(team.get("/episodes", "root").json()["items"]) == 1
    assert len(team.get("/jobs", "root").json()["items"]) == 1
    other = team.post("/episodes", SMALL | {"K": 8}, "root", key="one")
    assert (other.status_code, other.json()["type"]) == (409, "urn:heretix:problem:Conflict")


def test_what_goes_wrong_is_told_by_the_job(team):
    """As a refusal would have said it, and nothing is decided."""
    told = failed(team, team.post("/episodes", SMALL | BROKEN, "root", key="one"))
    assert (told["state"], told["progress"]["phase"], told["episode"]) == ("failed", "ended", None)
    assert told["error_kind"] == "NoEstimateError"
    assert "must give an estimate" in told["error"]
    assert team.get("/episodes", "root").json()["items"] == []


def test_what_nobody_foresaw_is_told_without_its_text(team, monkeypatch, caplog):
    """The log has it; whoever asks learns nothing of the inside."""

    async def broken(*_, **__):
        raise RuntimeError("the inside")

    monkeypatch.setattr(EpisodeWorkflow, "draft", broken)
    told = failed(team, team.post("/episodes", SMALL, "root", key="one"))
    assert (told["state"], told["error_kind"]) == ("failed", "RuntimeError")
    assert "the server's log has it" in told["error"]
    assert "inside" not in told["error"]
    assert "the inside" in caplog.text


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"models": ["openai:gpt-5"]}, 422),
        ({"models": ["nothing:a"]}, 422),
        ({"K": 1}, 422),
        ({"lens": f"SEL@{'0' * 64}"}, 404),
    ],
)
def test_what_cant_be_measured_is_refused_at_once(team, more, status):
    """No job is begun for it, and its key stays free."""
    refused = team.post("/episodes", SMALL | more, "root", key="one")
    assert refused.status_code == status, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert team.get("/jobs", "root").json()["items"] == []
    assert team.post("/episodes", SMALL, "root", key="one").status_code == 202


def test_moves_out_of_turn_are_refused_at_once_with_dates(team):
    """The rules count milliseconds; who reads a refusal is told dates."""
    path = opened(team)
    for move in ("judge", "measure", "rule"):
        refused = team.post(f"{path}/{move}", None, "root", key=move)
        assert (refused.status_code, refused.json()["reason"]) == (409, "wrong_state"), move
    freeze = team.post(f"{path}/freeze", None, "root", key="freeze")
    assert (freeze.status_code, freeze.json()["reason"]) == (409, "too_early")
    assert "it is 2027-01-15 08:00:00 UTC" in freeze.json()["detail"]
    team.state.clock.advance(7 * DAY_MS + 1)
    late = {"side": "heretic", "amount": 5, "min_shares": 0}
    refused = team.post(f"{path}/stakes", late, "alice", key="late")
    assert refused.json()["reason"] == "too_late"
    assert "taken until 2027-01-22 08:00:00 UTC" in refused.json()["detail"]
    assert str(NOW)[:6] not in refused.json()["detail"]


def test_a_number_that_looks_like_a_moment_stays_one(team):
    """Shares may have as many digits as the milliseconds since 1970."""
    path = opened(team)
    given = {"side": "heretic", "amount": 700, "min_shares": 1_700_000_000_000}
    refused = team.post(f"{path}/stakes", given, "alice", key="many")
    assert (refused.status_code, refused.json()["reason"]) == (409, "bet_refused")
    assert "not 1700000000000; quote again" in refused.json()["detail"]


def test_an_episode_in_hand_isnt_measured_twice(team):
    """Another move of it is a conflict that names the job to wait for."""
    path = opened(team)
    team.state.clock.advance(8 * DAY_MS)
    assert team.post(f"{path}/freeze", None, "root", key="f").json()["state"] == "frozen"
    held = hold(team, path.rpartition("/")[2])
    for move in ("judge", "measure"):
        refused = team.post(f"{path}/{move}", None, "root", key=move)
        assert (refused.status_code, refused.json()["type"][-8:]) == (409, "Conflict")
        assert f"`{held.id}`" in refused.json()["detail"]
    stopped = team.post(f"/jobs/{held.id}/cancel", None, "root", key="stop")
    assert stopped.json()["cancel_requested"]


def test_such_jobs_are_for_operators(team):
    """Nobody else begins one, and nobody else looks at one."""
    held = hold(team)
    assert team.post("/episodes", SMALL, "alice", key="a").status_code == 403
    assert team.get(f"/jobs/{held.id}", "alice").status_code == 404
    assert team.get(f"/jobs/{held.id}").status_code == 401
    assert team.post(f"/jobs/{held.id}/cancel", None, "alice", key="a").status_code == 404
    told = team.get(f"/jobs/{held.id}", "root")
    assert (told.status_code, told.headers["retry-after"]) == (200, "1")
    shown = told.json()
    assert (shown["state"], shown["episode"], shown["error"]) == ("running", "ep-1", None)
    assert team.get("/jobs/job-0", "root").status_code == 404


def test_a_job_that_waits_can_be_cancelled_and_resumed(team):
    """Nothing is decided until it goes on, and then once."""
    begun = team.post("/episodes", SMALL, "root", key="one").json()
    stopped = team.post(f"/jobs/{begun['id']}/cancel", None, "root", key="stop").json()
    assert stopped["state"] == "cancelled"
    assert (team.work(), team.get("/episodes", "root").json()["items"]) == (0, [])
    again = team.post(f"/jobs/{begun['id']}/resume", None, "root", key="go on").json()
    assert again["state"] == "queued"
    assert team.work() == 1
    told = team.get(f"/jobs/{begun['id']}", "root").json()
    (episode,) = team.get("/episodes", "root").json()["items"]
    assert (told["state"], told["episode"]) == ("done", episode["id"])


@pytest.mark.usefixtures("working")
def test_the_client_waits_and_tells_how_far_it_is(team):
    """Judging and measuring return the episode, as the moves that are made at once do."""
    client, seen = Client(team.url, team.tokens["root"]), []
    episode = client.propose("Water is wet.", B=200, key="one", observe=seen.append)
    assert episode.state is State.CHALLENGE
    assert [found.ended for found in seen][-1:] == [True]
    job = client.job(seen[-1].job_id)
    assert (job.kind, job.episode, job.progress) == ("episode", episode.id, seen[-1].progress)
    assert client.propose("Water is wet.", B=200, key="one").id == episode.id
    team.state.clock.advance(8 * DAY_MS)
    assert client.move(episode.id, "freeze").state is State.FROZEN
    assert client.move(episode.id, "judge").state is State.FROZEN
    assert client.move(episode.id, "measure").state is State.MEASURED


@pytest.mark.usefixtures("working")
def test_the_client_raises_what_went_wrong(team):
    """A job's error is the error that the library itself would have raised."""
    client = Client(team.url, team.tokens["root"])
    with pytest.raises(NoEstimateError, match="must give an estimate"):
        client.propose("Water is wet.", B=200, **BROKEN)
    episode = client.propose("Water is wet.", B=200)
    with pytest.raises(RefusedError) as refused:
        client.move(episode.id, "measure")
    assert refused.value.status == "wrong_state"
    team.state.clock.advance(8 * DAY_MS)
    client.move(episode.id, "freeze")
    held = hold(team, episode.id)
    with pytest.raises(ConflictError, match=held.id):
        client.move(episode.id, "judge")


def test_the_client_is_told_that_a_job_was_cancelled(team):
    """What it hadn't decided is open, and nobody takes it for done."""
    client = Client(team.url, team.tokens["root"])

    def stop(event):
        if not event.ended:
            client.cancel(event.job_id)

    with pytest.raises(ConflictError, match="was cancelled"):
        client.propose("Water is wet.", B=200, observe=stop)


def test_the_client_waits_no_longer_than_it_is_told(team):
    """It says how far it was; the job goes on."""
    held, client = hold(team), Client(team.url, team.tokens["root"])
    for wait_s in (0.01, 0.3):
        with pytest.raises(CallTimeoutError, match="0 of 8 samples"):
            list(client.follow(held.id, wait_s=wait_s))
    assert not client.job(held.id).ended
    with pytest.raises(CallTimeoutError, match="is queued after"):
        client.propose("Water is wet.", B=200, wait_s=0.01)


def test_every_move_is_in_the_audit_log(team):
    """Whether it is made at once or begun, and from where."""
    path = opened(team)
    team.state.clock.advance(8 * DAY_MS)
    team.post(f"{path}/freeze", None, "root", key="f").raise_for_status()
    team.outcome(team.post(f"{path}/measure", None, "root", key="m"), "root")
    entries = [e for e in team.state.people.audit.entries(who="root") if "episode" in e.what]
    assert [e.what for e in reversed(entries)] == [
        "episode.draft",
        "episode.freeze",
        "episode.measure",
    ]
    assert {e.address for e in entries} == {"127.0.0.1"}
    assert entries[0].subject == path.rpartition("/")[2]
