"""Lists of the API: every one has pages, and their pages are the list."""

import pytest
from apiserver import served

from heretix.client import Client
from heretix.core.clock import ManualClock

OPENED = {"claim": "Daylight saving time reduces electricity use.", "B": 400}
MEASURED = {"claims": ["Tea is good.", "Milk is white."], "models": ["mock:a", "mock:b"], "B": 100}


@pytest.fixture
def team(tmp_path, sqlite_template):
    """A store where every list has something in it."""
    with served(tmp_path, sqlite_template, accounts=True) as found:
        found.state.clock = ManualClock(1_800_000_000_000)
        yield found


def filled(team):
    """Values for the parameters of paths, after something was done of everything."""
    job = team.post("/jobs", MEASURED, "alice", key="job").json()["id"]
    episode = team.outcome(team.post("/episodes", OPENED, "root", key="open"), "root").json()["id"]
    for key in ("a", "b"):
        bet = {"side": "heretic", "amount": 500, "min_shares": 0}
        team.post(f"/episodes/{episode}/stakes", bet, "alice", key=key).raise_for_status()
    run = team.get("/runs", "alice").json()["items"][0]
    return {"job_id": job, "episode_id": episode, "ref": run["execution_id"], "name": "alice"}


def listed(team):
    """The paths of lists: their answers have `items` and `next`."""
    document = team.get("/openapi.json", "alice").json()
    kinds = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        found = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        kind = found.get("application/json", {}).get("schema", {}).get("$ref", "").split("/")[-1]
        if {"items", "next"} <= kinds.get(kind, {}).get("properties", {}).keys():
            yield path.removeprefix("/api/v1"), {p["name"] for p in operations["get"]["parameters"]}


def test_every_list_has_pages_and_they_are_the_list(team):
    """One item at a time gives the same as all at once, in the same order, and then ends."""
    values, seen = filled(team), {}
    for path, parameters in listed(team):
        assert {"limit", "cursor"} <= parameters, path
        address = path.format(**values)
        who = "root" if path.startswith("/accounts") else "alice"
        whole = team.get(address, who, params={"limit": 500}).json()
        found, cursor = [], None
        while True:
            asked = {"limit": 1} | ({"cursor": cursor} if cursor else {})
            page = team.get(address, who, params=asked).json()
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
            assert len(page["items"]) == 1, path
        assert found == whole["items"], path
        seen[path] = len(found)
    several = {path for path, count in seen.items() if count > 1}
    assert several >= {
        "/runs",
        "/jobs/{job_id}/runs",
        "/episodes/{episode_id}/positions",
        "/people/me/positions",
        "/ledger/transfers",
        "/accounts",
    }
    client = Client(team.url, team.tokens["alice"])
    assert len(client.positions(values["episode_id"])) == seen["/episodes/{episode_id}/positions"]
    assert len(client.results(values["job_id"])) == 4


def test_what_comes_in_while_somebody_reads_is_on_no_page_twice(team):
    """The newest stand first; what is behind a page stays the same."""
    episode, path = filled(team)["episode_id"], "/people/me/positions"
    first = team.get(path, "alice", params={"limit": 1}).json()
    bet = {"side": "orthodox", "amount": 700, "min_shares": 0}
    team.post(f"/episodes/{episode}/stakes", bet, "alice", key="c").raise_for_status()
    newest, *known = team.get(path, "alice").json()["items"]
    rest = team.get(path, "alice", params={"cursor": first["next"]}).json()
    assert newest["position"]["stake"] == 700
    assert (first["items"] + rest["items"], rest["next"]) == (known, None)


def test_the_record_of_an_episode_says_whether_it_changed(team):
    """It is asked for again with its tag, and only a move makes it another."""
    path = f"/episodes/{filled(team)['episode_id']}"
    first = team.get(f"{path}/record", "rita")
    known = {"If-None-Match": first.headers["etag"]}
    again = team.get(f"{path}/record", "rita", headers=dict(known))
    assert (again.status_code, again.content) == (304, b"")
    bet = {"side": "orthodox", "amount": 500, "min_shares": 0}
    team.post(f"{path}/stakes", bet, "bob", key="c").raise_for_status()
    moved = team.get(f"{path}/record", "rita", headers=dict(known))
    assert moved.status_code == 200
    assert moved.headers["etag"] != first.headers["etag"]
