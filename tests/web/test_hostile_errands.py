"""Errands against those who mean harm, and against bad luck: floods, keys used again, leaks."""

import asyncio
import threading
from contextlib import contextmanager

import pytest
from apiserver import PREFIX, served

from heretix.errors import StoreBusyError, TooManyRequestsError
from heretix.web import errands as module
from heretix.web.errands import Errands

SMALL = {"claim": "Water is wet.", "B": 200}
PLACE = "/srv/heretix/secret.sqlite"


@pytest.fixture
def team(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as found:
        yield found


@contextmanager
def held(errands, count):
    """So many errands that don't end by themselves."""
    go_on = threading.Event()

    async def work(tally):
        await asyncio.to_thread(go_on.wait, 60)
        return "ep-1"

    begun = [begin(errands, work, number) for number in range(count)]
    try:
        yield begun
    finally:
        go_on.set()
        for errand in begun:
            errands.wait(errand.id, 60)


def begin(errands, work, number):
    return errands.start(work, key=f"held {number}", title="Held", subject="A b c.", samples=1)


async def at_once(tally):
    return "ep-1"


async def busy(tally):
    raise StoreBusyError(f"`{PLACE}` is locked by another process")


def test_nobody_begins_errands_without_end(monkeypatch):
    """Each has a thread: beyond a bound no more are begun, until some have ended."""
    monkeypatch.setattr(module, "_MOST", 3)
    errands = Errands()
    with held(errands, 3) as begun:
        before = threading.active_count()
        with pytest.raises(TooManyRequestsError, match="3 measurements") as refused:
            begin(errands, at_once, "more")
        assert refused.value.retry_after_s >= 1
        assert threading.active_count() == before
        assert begin(errands, at_once, 0) is begun[0]
    ended = begin(errands, at_once, "more")
    errands.wait(ended.id, 60)
    assert ended.state.value == "done"


def test_a_flood_of_proposals_is_refused_and_leaves_its_keys_free(team, monkeypatch):
    """429 with a time to come back; then the same key does it."""
    monkeypatch.setattr(module, "_MOST", 2)
    with held(team.desk.errands, 2):
        refused = team.post("/episodes", SMALL, "root", key="one")
        assert refused.status_code == 429
        assert refused.json()["type"] == "urn:heretix:problem:TooManyRequests"
        assert int(refused.headers["retry-after"]) >= 1
    assert team.outcome(team.post("/episodes", SMALL, "root", key="one"), "root").status_code == 200


def test_a_key_whose_answer_was_lost_never_answers_for_another_request(team, monkeypatch):
    """What was begun is found again by the same request, and by no other."""
    audit = team.desk.people.audit

    def fails(*_, **__):
        raise StoreBusyError(f"`{PLACE}` is locked by another process")

    with monkeypatch.context() as patch:
        patch.setattr(audit, "write", fails)
        lost = team.post("/episodes", SMALL, "root", key="one")
    assert lost.status_code == 503
    assert PLACE not in lost.text
    (begun,) = team.desk.errands._known.values()
    other = team.post("/episodes", SMALL | {"claim": "Ice is cold."}, "root", key="one")
    assert (other.status_code, other.json()["subject"]) == (202, "Ice is cold.")
    assert other.json()["id"] != begun.id
    team.outcome(other, "root")
    team.desk.errands.wait(begun.id, 60)


def test_a_request_whose_answer_was_lost_finds_its_errand_again(team, monkeypatch):
    """Nothing is measured twice."""

    def fails(*_, **__):
        raise StoreBusyError(f"`{PLACE}` is locked by another process")

    with monkeypatch.context() as patch:
        patch.setattr(team.desk.people.audit, "write", fails)
        assert team.post("/episodes", SMALL, "root", key="one").status_code == 503
    again = team.post("/episodes", SMALL, "root", key="one")
    team.outcome(again, "root")
    assert [errand.id for errand in team.desk.errands._known.values()] == [again.json()["id"]]
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


def test_where_the_store_lies_is_told_to_nobody_who_isnt_there(team):
    """Neither by the API nor by the page, whatever made an errand fail."""
    found = begin(team.desk.errands, busy, "leak")
    team.desk.errands.wait(found.id, 20)
    told = team.get(f"/errands/{found.id}", "root")
    page = team.send("GET", f"{team.url}/episodes/errands/{found.id}", "root")
    for answer in (told, page):
        assert answer.status_code == 200
        assert PLACE not in answer.text
        assert "the store can" in answer.text
    assert PREFIX in told.text
