"""Moves that measure, through the API: begun at once, asked after, done once for each key."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from apiserver import PREFIX, served

from heretix.client import Client
from heretix.economy.clock import HeldClock
from heretix.economy.episode import State
from heretix.economy.proposal import DAY_MS
from heretix.errors import CallTimeoutError, ConflictError, NoEstimateError, RefusedError
from heretix.web.api.floor import exchange_of

SMALL = {"claim": "Water is wet.", "B": 200}
BROKEN = {"models": ["mock:m?refused=1"]}
NOW = 1_800_000_000_000


@pytest.fixture
def team(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as found:
        found.desk.clock = HeldClock(NOW)
        yield found


@pytest.fixture
def held(team):
    """An errand that goes on until the test lets it end, and holds the episode `ep-1`."""
    go_on = threading.Event()

    async def work(tally):
        await asyncio.to_thread(go_on.wait, 60)
        return "ep-1"

    started = team.desk.errands.start(
        work, key="held", title="Held", subject="A b c.", samples=8, episode="ep-1"
    )
    yield started
    go_on.set()
    team.desk.errands.wait(started.id, 60)


def opened(team, **more):
    """The path of an episode that takes bets."""
    begun = team.post("/episodes", SMALL | more, "root", key="open")
    return f"/episodes/{team.outcome(begun, 'root').json()['id']}"


def failed(team, begun):
    """What an errand that fails says in the end."""
    assert begun.status_code == 202, begun.text
    team.desk.errands.wait(begun.json()["id"], 60)
    return team.get(begun.headers["location"].removeprefix(PREFIX), "root").json()


def test_a_measurement_is_begun_and_asked_after(team):
    """202 with a place to ask; there it is told how far it is, and in the end which episode."""
    begun = team.post("/episodes", SMALL, "root", key="one")
    assert begun.status_code == 202
    assert begun.headers["retry-after"] == "1"
    found = team.outcome(begun, "root").json()
    assert found["state"] == "challenge"
    again = team.get(f"/errands/{begun.json()['id']}", "root")
    assert again.headers["cache-control"] == "no-store"
    assert "retry-after" not in again.headers
    told = again.json()
    assert (told["done"], told["total"], told["failed"]) == (32, 32, 0)
    assert told["episode"] == found["id"]
    assert told["result"] == f"{PREFIX}/episodes/{found['id']}"


def test_the_same_key_is_the_same_errand(team):
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
    other = team.post("/episodes", SMALL | {"K": 8}, "root", key="one")
    assert (other.status_code, other.json()["type"]) == (409, "urn:heretix:problem:Conflict")


def test_what_goes_wrong_is_a_problem_document_in_the_errand(team):
    """As a refusal would have said it, and nothing is decided."""
    told = failed(team, team.post("/episodes", SMALL | BROKEN, "root", key="one"))
    assert (told["state"], told["ended"], told["result"]) == ("failed", True, None)
    assert told["error"]["type"] == "urn:heretix:problem:NoEstimate"
    assert (told["error"]["status"], told["error"]["title"]) == (409, "Conflict")
    assert "must give an estimate" in told["error"]["detail"]
    assert team.get("/episodes", "root").json()["items"] == []


def test_what_nobody_foresaw_is_told_without_its_text(team):
    """A number joins it to the log; whoever asks learns nothing of the inside."""

    async def broken(tally):
        raise RuntimeError("the inside")

    found = team.desk.errands.start(broken, key="b", title="B", subject="A b c.", samples=0)
    team.desk.errands.wait(found.id, 20)
    told = team.get(f"/errands/{found.id}", "root").json()
    assert (told["error"]["type"], told["error"]["status"]) == ("about:blank", 500)
    assert "the server's log has it" in told["error"]["detail"]
    assert "inside" not in told["error"]["detail"]


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
    """No errand is begun for it, and its key stays free."""
    refused = team.post("/episodes", SMALL | more, "root", key="one")
    assert refused.status_code == status, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
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
    team.desk.clock.advance(7 * DAY_MS + 1)
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


def test_an_episode_in_hand_isnt_measured_twice(team, held):
    """Another move of it is a conflict that names the errand to wait for."""
    path = opened(team)
    held.episode = path.rpartition("/")[2]
    exchange = exchange_of(team.desk)
    exchange.join("alice", "PLAY")
    team.desk.clock.advance(8 * DAY_MS)
    assert team.post(f"{path}/freeze", None, "root", key="f").json()["state"] == "frozen"
    refused = team.post(f"{path}/judge", None, "root", key="j")
    assert refused.status_code == 409
    assert f"{PREFIX}/errands/{held.id}" in refused.json()["detail"]


def test_errands_are_for_operators(team, held):
    """Nobody else begins one, and nobody else looks at one."""
    assert team.get(f"/errands/{held.id}", "alice").status_code == 403
    assert team.get(f"/errands/{held.id}").status_code == 401
    told = team.get(f"/errands/{held.id}", "root")
    assert (told.status_code, told.headers["retry-after"]) == (200, "1")
    assert (told.json()["ended"], told.json()["result"], told.json()["error"]) == (
        False,
        None,
        None,
    )
    assert team.get("/errands/0", "root").status_code == 404


def test_the_client_waits_and_tells_how_far_it_is(team):
    """Judging and measuring return the episode, as the moves that are made at once do."""
    client, seen = Client(team.url, team.tokens["root"]), []
    episode = client.propose("Water is wet.", B=200, key="one", observe=seen.append)
    assert episode.state is State.CHALLENGE
    assert [found.ended for found in seen][-1:] == [True]
    assert seen[-1].episode == episode.id
    assert client.errand(seen[-1].id) == seen[-1]
    assert client.propose("Water is wet.", B=200, key="one").id == episode.id
    team.desk.clock.advance(8 * DAY_MS)
    assert client.move(episode.id, "freeze").state is State.FROZEN
    assert client.move(episode.id, "judge").state is State.FROZEN
    assert client.move(episode.id, "measure").state is State.MEASURED


def test_the_client_raises_what_went_wrong(team, held):
    """An errand's problem is the error that the library itself would have raised."""
    client = Client(team.url, team.tokens["root"])
    with pytest.raises(NoEstimateError, match="must give an estimate"):
        client.propose("Water is wet.", B=200, **BROKEN)
    episode = client.propose("Water is wet.", B=200)
    with pytest.raises(RefusedError) as refused:
        client.move(episode.id, "measure")
    assert refused.value.status == "wrong_state"
    held.episode = episode.id
    team.desk.clock.advance(8 * DAY_MS)
    client.move(episode.id, "freeze")
    with pytest.raises(ConflictError, match=held.id):
        client.move(episode.id, "judge")


def test_the_client_waits_no_longer_than_it_is_told(team, held):
    """It says how far it was; the errand goes on."""
    client = Client(team.url, team.tokens["root"])
    with pytest.raises(CallTimeoutError, match="0 of 8 samples"):
        list(client.follow_errand(held.id, wait_s=0.01))
    assert not client.errand(held.id).ended


def test_every_move_is_in_the_audit_log(team):
    """Whether it is made at once or begun, and from where."""
    path = opened(team)
    team.desk.clock.advance(8 * DAY_MS)
    team.post(f"{path}/freeze", None, "root", key="f").raise_for_status()
    team.outcome(team.post(f"{path}/measure", None, "root", key="m"), "root")
    entries = [e for e in team.desk.people.audit.entries(who="root") if "episode" in e.what]
    assert [e.what for e in reversed(entries)] == [
        "episode.draft",
        "episode.freeze",
        "episode.measure",
    ]
    assert {e.address for e in entries} == {"127.0.0.1"}
