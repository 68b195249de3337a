"""Keys of writes against those who mean to mix them up."""

import pytest
from apiserver import served


@pytest.fixture
def team(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as found:
        yield found


def test_a_key_begins_one_episode_and_answers_for_no_other(team):
    """The same request again is the same job; another body under its key is refused."""
    body = {"claim": "Water is wet.", "B": 200}
    begun = team.post("/episodes", body, "root", key="one")
    assert team.post("/episodes", body, "root", key="one").json()["id"] == begun.json()["id"]
    other = team.post("/episodes", body | {"claim": "Ice is cold."}, "root", key="one")
    assert other.status_code == 409
    assert team.outcome(begun, "root").status_code == 200
    assert len(team.get("/episodes", "root").json()["items"]) == 1


def test_a_host_that_holds_a_path_doesnt_mix_up_keys(team):
    """The key belongs to the address that was asked for, whatever `Host` says."""
    forged = {"headers": {"host": "a.example/api/v1/same?"}}
    body = {"claims": ["Tea is good."], "models": ["mock:a"]}
    job = team.post("/jobs", body, "root", key="one", **forged)
    assert job.status_code == 201
    path = f"/jobs/{job.json()['id']}/cancel"
    forged = {"headers": {"host": "a.example/api/v1/same?"}}
    ended = team.post(path, body, "root", key="one", **forged)
    assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")
