"""Writing through the API: once for each key, within one's role, as oneself, and followed live."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from apiserver import served

from heretix.jobs import Worker

REQUEST = {"claims": ["Coffee beans are seeds."], "models": ["mock:gpt-5"], "B": 200}


@pytest.fixture
def api(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template, claims=()) as found:
        yield found


@pytest.fixture
def team(tmp_path, sqlite_template):
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as found:
        yield found


def work(api) -> None:
    """Do all jobs that wait."""
    asyncio.run(Worker(api.store, api.state.settings).run_until_idle())


def events(text: str) -> list[dict]:
    """The events in a finished stream."""
    return [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: ")
    ]


def test_a_write_that_is_sent_again_is_done_once_and_answered_alike(api):
    """The first answer comes again, status and all, and says that it was given before."""
    first = api.post("/jobs", REQUEST, key="one")
    again = api.post("/jobs", REQUEST, key="one")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert len(api.get("/jobs").json()["items"]) == 1


def test_a_key_that_was_used_for_something_else_is_a_conflict(api):
    """One key, one request."""
    api.post("/jobs", REQUEST, key="one").raise_for_status()
    other = api.post("/jobs", {**REQUEST, "K": 4}, key="one")
    assert other.status_code == 409
    assert other.json()["type"] == "urn:heretix:problem:Conflict"
    assert len(api.get("/jobs").json()["items"]) == 1


def test_the_same_key_at_once_makes_one_job(api):
    """Of many at the same time one does it; the others are told to wait, or get its answer."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api.post("/jobs", REQUEST, key="one"), range(8)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(made) == 1
    assert api.post("/jobs", REQUEST, key="one").json()["id"] in made
    assert len(api.get("/jobs").json()["items"]) == 1


def test_a_refused_write_leaves_its_key_free(api):
    """Nothing was done, so the corrected request may have the key."""
    assert api.post("/jobs", {"claims": []}, key="one").status_code == 422
    assert api.post("/jobs", REQUEST, key="one").status_code == 201


@pytest.mark.parametrize("key", [None, "", "k" * 201, "k\u00e9"])
def test_a_write_without_a_key_is_refused(api, key):
    """A sender that can't send again safely is told so before anything is done."""
    headers = {} if key is None else {"Idempotency-Key": key.encode("latin-1")}
    answer = api.send("POST", "/jobs", json=REQUEST, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["detail"].count("Idempotency-Key") == 1
    assert api.get("/jobs").json()["items"] == []


def test_keys_of_different_people_dont_meet(team):
    """Nobody can take another's key, or be answered with another's job."""
    alice = team.post("/jobs", REQUEST, "alice", key="one")
    bob = team.post("/jobs", REQUEST, "bob", key="one")
    assert alice.status_code == bob.status_code == 201
    assert alice.json()["id"] != bob.json()["id"]


def test_a_job_is_measured_and_its_results_are_found(api):
    """From the request to the record."""
    job = api.post("/jobs", REQUEST, key="one").json()
    assert job["state"] == "queued"
    work(api)
    assert api.get(f"/jobs/{job['id']}").json()["state"] == "done"
    (run,) = api.get(f"/jobs/{job['id']}/runs").json()["items"]
    record = api.get(f"/executions/{run['execution_id']}").json()
    assert record["claim"] == REQUEST["claims"][0]
    assert record["aggregates"]["prob_true_rpl"] == run["prob_true"]


def test_a_job_is_cancelled_and_resumed(api):
    """Each once; what doesn't fit its state is a conflict."""
    job = api.post("/jobs", REQUEST, key="one").json()
    path = f"/jobs/{job['id']}"
    assert api.post(f"{path}/resume", None, key="a").status_code == 409
    assert api.post(f"{path}/cancel", None, key="b").json()["state"] == "cancelled"
    assert api.post(f"{path}/cancel", None, key="b").json()["state"] == "cancelled"
    assert api.post(f"{path}/cancel", None, key="c").status_code == 409
    assert api.post(f"{path}/resume", {"budget_usd": 1.0}, key="d").json()["state"] == "queued"
    work(api)
    assert api.get(path).json()["state"] == "done"


def test_others_jobs_dont_exist(team):
    """Reading, following, stopping and resuming are for the owner, and for operators."""
    job = team.post("/jobs", REQUEST, "alice", key="one").json()
    path = f"/jobs/{job['id']}"
    for suffix in ("", "/runs", "/events"):
        assert team.get(path + suffix, "bob").status_code == 404, suffix
    for move in ("cancel", "resume"):
        assert team.post(f"{path}/{move}", None, "bob", key=move).status_code == 404
    assert team.get("/jobs", "bob").json()["items"] == []
    assert team.get(path, "root").json()["owner"] == "alice"


@pytest.mark.parametrize(
    "more",
    [
        {"prompts_file": "/etc/passwd"},
        {"prompt_version": "/etc/passwd"},
        {"prompt_version": "../../bank"},
        {"models": ["local:/etc/passwd"]},
        {"corpus": "../secrets"},
        {"base_url": "http://127.0.0.1:1/"},
        {"out": "/tmp/x.json"},
        {"lenses": ["RPL", "XYZ"]},
        {"K": 1e9},
        {"K": True},
        {"claims": "Coffee"},
    ],
)
def test_what_reaches_beyond_a_request_is_refused(api, more):
    """No paths, no addresses, no unknown keys: the request names everything that is wrong."""
    for path in ("/jobs", "/plan"):
        answer = api.post(path, {**REQUEST, **more}, key="one")
        assert answer.status_code == 422, answer.text
        assert answer.json()["problems"] or answer.json()["detail"]
    assert api.get("/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b'{"claims": ["a"]}', "text/plain", 422),
        (b"[" * 100_000, "application/json", 400),
        (b'{"K": 1' + b"0" * 5_000 + b"}", "application/json", 400),
        (b"\xff\xfe", "application/json", 422),
        (b'{"claims": ["\\ud800"]}', "application/json", 422),
    ],
)
def test_a_body_that_cant_be_read_is_refused(api, content, kind, status):
    """Malformed, nested without end, or not JSON at all."""
    headers = {"Idempotency-Key": "one", "Content-Type": kind}
    answer = api.send("POST", "/jobs", content=content, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_plan_starts_nothing(api):
    """Calls, tokens and price, and no job."""
    plan = api.post("/plan", REQUEST).json()
    assert plan["estimate"]["to_call"] == 16
    assert plan["models"] == ["mock:gpt-5"]
    assert api.get("/jobs").json()["items"] == []


def test_a_stream_tells_how_a_job_goes_and_ends_with_it(api):
    """Events are numbered, and the last one says that it is."""
    job = api.post("/jobs", REQUEST, key="one").json()
    path = f"/jobs/{job['id']}/events"
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(api.get, path)
        work(api)
        answer = following.result(timeout=120)
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = events(answer.text)
    numbers = [event["seq"] for event in told]
    assert numbers == sorted(set(numbers))
    assert told[-1]["ended"] is True
    assert told[-1]["state"] == "done"
    assert f"id: {numbers[-1]}\nevent: end\n" in answer.text


def test_a_stream_is_taken_up_where_it_broke(api):
    """With the last id seen, only what came after is told; after the end there is nothing."""
    job = api.post("/jobs", REQUEST, key="one").json()
    path = f"/jobs/{job['id']}/events"
    with (
        httpx2.Client(
            base_url=f"{api.url}/api/v1", trust_env=False, verify=False, timeout=120
        ) as client,
        client.stream("GET", path) as stream,
    ):
        first = next(line for line in stream.iter_lines() if line.startswith("id: "))
    seen = int(first.removeprefix("id: "))
    work(api)
    rest = api.get(path, headers={"Last-Event-ID": str(seen)})
    told = events(rest.text)
    assert told
    assert all(event["seq"] > seen for event in told)
    after = api.get(path, headers={"Last-Event-ID": str(told[-1]["seq"])})
    assert (after.status_code, after.content) == (204, b"")
    assert api.get(path, headers={"Last-Event-ID": "x"}).status_code == 422


async def test_a_silent_stream_gives_signs_of_life_and_ends_with_the_server(
    tmp_path, sqlite_template
):
    """A queued job has no news; its stream still speaks, until the server stops."""
    from heretix.accounts import LOCAL
    from heretix.core.settings import Settings
    from heretix.jobs import MeasureRequest
    from heretix.store import Store
    from heretix.web.auth import Visit
    from heretix.web.events import job_events
    from heretix.web.state import AppState

    with Store.open(str(tmp_path / "h.sqlite")) as store:
        state = AppState.open(store, Settings())
        job = state.jobs.submit(LOCAL, MeasureRequest.parse(REQUEST))
        told = []
        visit = Visit(person=LOCAL, via="local", address=None, secure=False)
        async for piece in job_events(state, job.id, visit=visit, beat_s=0.01):
            told.append(piece)
            # On a slow machine, a sign of life comes before the first news, too.
            news = any(found.startswith(b"id: ") for found in told)
            state.stopping = news and piece.startswith(b":")
        await state.aclose()
    assert told[0].startswith(b"retry:")
    assert told[-1] == b": still here\n\n"
    assert any(piece.startswith(b"id: ") for piece in told)
