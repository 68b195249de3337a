"""Event streams: so many for each person, counted while somebody reads them."""

import shutil
from contextlib import ExitStack

import httpx2
import pytest
from apiserver import served

from heretix.accounts import LOCAL, Role
from heretix.client import Client
from heretix.core.errors import TooManyRequestsError
from heretix.core.settings import Settings
from heretix.store import Store
from heretix.web.auth import Visit, is_still_admitted
from heretix.web.events import MOST, MOST_LOCAL, OpenStreams
from heretix.web.state import AppState

REQUEST = {"claims": ["Coffee beans are seeds."], "models": ["mock:gpt-5"], "B": 200}
STREAMS = 3


@pytest.fixture
def team(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as found:
        found.state.streams = OpenStreams(most=STREAMS)
        yield found


def queued(api, who=None):
    """The path of a job that waits, whose stream goes on until it is left."""
    return f"/jobs/{api.post('/jobs', REQUEST, who, key='one').json()['id']}"


def reader(opened, api, path, who=None, prefix="/api/v1"):
    """A stream with its first line read; the rest are its `lines`."""
    headers = {} if who is None else {"authorization": f"Bearer {api.tokens[who]}"}
    client = opened.enter_context(
        httpx2.Client(base_url=api.url, trust_env=False, verify=False, timeout=120)
    )
    stream = opened.enter_context(client.stream("GET", f"{prefix}{path}/events", headers=headers))
    if stream.status_code == 200:
        # LruCache: an iterator that nobody holds closes its connection.
        stream.lines = stream.iter_lines()
        next(stream.lines)
    else:
        stream.read()
    return stream


def freed(api, who, path):
    """Read until there is room again: a server hears of a closed connection in its own time."""
    person = api.state.people.find(who)
    for _ in range(1_000):
        api.get(path, who).raise_for_status()
        if api.state.streams.count(person) < STREAMS:
            return True
    return False


def test_a_person_has_so_many_streams_open(team):
    """One more is refused, as a problem and with a time to come back; others have their own."""
    alices, bobs = queued(team, "alice"), queued(team, "bob")
    with ExitStack() as opened:
        # Pages and API count together.
        open_ones = [
            reader(opened, team, alices, "alice", prefix) for prefix in ("/api/v1", "", "/api/v1")
        ]
        assert [stream.status_code for stream in open_ones] == [200] * STREAMS
        refused = reader(opened, team, alices, "alice")
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["type"] == "urn:heretix:problem:TooManyRequests"
        assert int(refused.headers["retry-after"]) >= 1
        assert "3 event streams" in refused.json()["detail"]
        assert reader(opened, team, alices, "alice", "").status_code == 429
        assert reader(opened, team, bobs, "bob").status_code == 200
        assert team.get(alices, "alice").status_code == 200

        open_ones[0].close()
        assert freed(team, "alice", alices)
        assert reader(opened, team, alices, "alice").status_code == 200


def test_streams_are_given_back_when_their_job_ends(team):
    """Each of them, and those of readers that left before."""
    path = queued(team, "alice")
    with ExitStack() as opened:
        streams = [reader(opened, team, path, "alice") for _ in range(STREAMS)]
        team.post(f"{path}/cancel", None, "alice", key="cancel").raise_for_status()
        for stream in streams:
            assert any('"ended":true' in line for line in stream.lines)
        assert freed(team, "alice", path)
    for _ in range(2 * STREAMS):
        assert team.get(f"{path}/events", "alice").status_code == 200
    assert team.send("HEAD", f"{path}/events", "alice").status_code == 200
    assert freed(team, "alice", path)


def test_a_client_that_has_too_many_says_so(team):
    """After it has tried again."""
    path = queued(team, "alice")
    client = Client(team.url, team.tokens["alice"], tries=1)
    with ExitStack() as opened:
        for _ in range(STREAMS):
            reader(opened, team, path, "alice")
        with pytest.raises(TooManyRequestsError) as refused:
            next(client.follow(path.rpartition("/")[2]))
    assert refused.value.retry_after_s >= 1


def test_the_one_user_of_a_machine_may_have_hundreds(tmp_path, sqlite_template):
    """Far more than a person with an account: their programs share nothing with anybody."""
    assert MOST_LOCAL >= 4 * 200 > MOST
    with served(tmp_path, sqlite_template, claims=()) as api, ExitStack() as opened:
        path = queued(api)
        streams = [reader(opened, api, path) for _ in range(MOST + 5)]
        assert {stream.status_code for stream in streams} == {200}
        assert api.state.streams.count(LOCAL) == MOST + 5


@pytest.mark.parametrize("via", ["local", "token"])
async def test_a_store_that_is_away_for_a_moment_puts_nobody_out(tmp_path, sqlite_template, via):
    """With accounts or without: nobody was shut out."""
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store:
        state = AppState.open(store, Settings())
        rita = state.people.add("rita", role=Role.READER, password="correct horse battery")
        secret = state.people.tokens.issue(rita, label="ci").secret
        person = LOCAL if via == "local" else rita
        visit = Visit(person=person, via=via, address=None, secure=False, secret=secret)
        with store.writing() as connection:
            connection.exec_driver_sql("ALTER TABLE people RENAME TO hidden")
        assert await is_still_admitted(visit, state)
        await state.aclose()
