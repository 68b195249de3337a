"""What every answer's head tells: request ids, what may still be asked, where further pages are."""

import gzip
import json
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from apiserver import PREFIX, served

from heretix.accounts import RateLimiter
from heretix.version import VERSION


@pytest.fixture(scope="module")
def api(tmp_path_factory, sqlite_template):
    """A server without accounts and with three measured claims."""
    with served(tmp_path_factory.mktemp("heads"), sqlite_template) as found:
        yield found


@pytest.fixture
def accounts(tmp_path, sqlite_template):
    """A server with accounts that lets each person ask four times in a row."""
    with served(tmp_path, sqlite_template, accounts=True, claims=()) as found:
        found.state.limiter = RateLimiter(per_s=0.001, burst=4, clock=lambda: 0.0)
        yield found


def exchange(url: str, sent: bytes) -> bytes:
    """Send bytes as they are, and read until the server hangs up."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def raw(api, path: str, **headers: str) -> httpx2.Response:
    """Answer of an address outside the API, or of the API with these headers."""
    with httpx2.Client(base_url=api.url, timeout=120, trust_env=False, verify=False) as client:
        return client.get(path, headers=headers)


@pytest.mark.parametrize("given", ["a", "Job-7_of.today", "x" * 64])
def test_the_senders_request_id_comes_back(api, given):
    """With what is found, with what is refused by an endpoint, and by what stands before it."""
    for path in ("/runs", "/runs/nothing", "/nowhere", "/runs?limit=0", "/runs?q=%00"):
        answer = api.get(path, headers={"X-Request-ID": given})
        assert answer.headers["x-request-id"] == given
        if answer.status_code >= 400:
            assert answer.json()["request_id"] == given


@pytest.mark.parametrize("given", [None, "", "x" * 65, "two words", "a;b", "é".encode(), "<b>"])
def test_what_cannot_be_a_request_id_is_replaced(api, given):
    """A new one each time, and nothing of what was sent."""
    headers = {} if given is None else {"X-Request-ID": given}
    ids = [api.get("/runs", headers=headers).headers["x-request-id"] for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in ids)
    assert ids[0] != ids[1]


def test_pages_assets_and_refused_hosts_have_request_ids(api):
    """So has what can't be read as HTTP at all."""
    for path in ("/", "/static/heretix.css", "/nowhere"):
        assert raw(api, path, **{"X-Request-ID": "mine"}).headers["x-request-id"] == "mine"
    answer = raw(api, f"{PREFIX}/runs", Host="evil.example", **{"X-Request-ID": "mine"})
    assert (answer.status_code, answer.json()["request_id"]) == (421, "mine")
    head, _, body = exchange(api.url, b"NONSENSE\r\n\r\n").partition(b"\r\n\r\n")
    found = re.search(rb"x-request-id: ([0-9a-f]{16})", head)
    assert found
    assert json.loads(body)["request_id"] == found[1].decode()


def test_the_audit_log_names_the_request(accounts):
    """What somebody did is joined to the answer that told of it."""
    body = {"claims": ["Tea is a plant."], "models": ["mock:gpt-5"]}
    answer = accounts.post("/jobs", body, "alice", key="one", headers={"X-Request-ID": "mine"})
    assert answer.status_code < 300, answer.text
    (entry,) = accounts.state.people.audit.entries(what="job.submit")
    assert entry.request_id == "mine"
    (before, *_) = accounts.state.people.audit.entries(what="person.add")
    assert before.request_id is None


@pytest.mark.parametrize("host", [b"127.0.0.1", b"evil.example"])
def test_two_hosts_are_refused(api, accounts, host):
    """Whichever comes first, with accounts and without; one is served."""
    for site, name in ((api, b"localhost"), (accounts, b"localhost")):
        for first, second in ((name, host), (host, name)):
            hosts = b"Host: %s\r\nHost: %s\r\n" % (first, second)
            sent = b"GET /api/v1/runs HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n"
            assert exchange(site.url, sent).startswith(b"HTTP/1.1 400 ")
    assert api.get("/runs").status_code == 200


def test_each_answer_tells_what_may_still_be_asked(accounts):
    """It counts down for each person, and a refusal says when to come back."""
    heads = [accounts.get("/runs", "alice") for _ in range(5)]
    assert [int(a.headers["ratelimit-remaining"]) for a in heads] == [3, 2, 1, 0, 0]
    assert {a.headers["ratelimit-limit"] for a in heads} == {"4"}
    assert [int(a.headers["ratelimit-reset"]) for a in heads] == [1000, 2000, 3000, 4000, 4000]
    assert [a.status_code for a in heads] == [200, 200, 200, 200, 429]
    assert heads[-1].headers["retry-after"] == "1000"
    assert accounts.get("/runs", "bob").headers["ratelimit-remaining"] == "3"


def test_who_is_not_limited_is_told_nothing(api):
    """The one user of a machine has no limit to tell of."""
    assert not [name for name in api.get("/runs").headers if name.startswith("ratelimit")]


def test_links_lead_through_a_list(api):
    """Following `next` gives what following the cursors gives, with the filters kept."""
    path, seen = f"{PREFIX}/runs?limit=1&q=e", []
    while path:
        answer = raw(api, path)
        seen += [run["run_id"] for run in answer.json()["items"]]
        links = {link["rel"]: link["url"] for link in answer.links.values()}
        assert links["first"] == f"{PREFIX}/runs?limit=1&q=e"
        cursor = answer.json()["next"]
        path = links.get("next")
        assert path == (cursor and f"{PREFIX}/runs?limit=1&q=e&cursor={cursor}")
    assert seen == [run["run_id"] for run in api.get("/runs?q=e").json()["items"]]
    assert len(seen) == 3


def test_links_are_of_lists_alone(api):
    """The feed of anomalies is one; a run isn't, nor is a refusal."""
    assert api.get("/anomalies").headers["link"] == f'<{PREFIX}/anomalies>; rel="first"'
    run = api.get("/runs").json()["items"][0]["run_id"]
    for path in (f"/runs/{run}", "/runs?limit=0", "/openapi.json"):
        assert "link" not in api.get(path).headers


def sizes(api, path: str, **headers: str) -> tuple[httpx2.Response, bytes]:
    """An answer, and its body as it came over the wire."""
    with (
        httpx2.Client(base_url=api.url, timeout=120, trust_env=False, verify=False) as client,
        client.stream("GET", path, headers=headers) as answer,
    ):
        return answer, b"".join(answer.iter_raw())


@pytest.mark.parametrize(
    "path", ["/api/v1/openapi.json", "/api/v1/export/samples.jsonl", "/static/heretix.css"]
)
def test_long_answers_are_compressed_where_asked_for(api, path):
    """Exports as they are made, too; what comes out is what would have come plainly."""
    plain, text = sizes(api, path, **{"Accept-Encoding": "identity"})
    packed, sent = sizes(api, path, **{"Accept-Encoding": "br, gzip;q=0.5"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in packed.headers["vary"].lower()
    assert gzip.decompress(sent) == text
    assert len(sent) < len(text) / 2
    refused, again = sizes(api, path, **{"Accept-Encoding": "gzip;q=0, identity"})
    assert "content-encoding" not in refused.headers
    assert len(again) == len(text)


def test_pages_short_answers_and_streams_are_not_compressed(api):
    """Pages hold tokens, a stream's events must leave at once, and a short text gains nothing."""
    job = api.post("/jobs", {"claims": ["Tea."], "models": ["mock:gpt-5"]}, key="stream").json()
    api.post(f"/jobs/{job['id']}/cancel", key="cancel").raise_for_status()
    for path in (
        "/measure",
        "/search",
        "/api/v1/runs/nothing",
        f"{PREFIX}/jobs/{job['id']}/events",
    ):
        answer, sent = sizes(api, path, **{"Accept-Encoding": "gzip"})
        assert "content-encoding" not in answer.headers
        assert sent


def test_health_needs_no_account(api, accounts):
    """It says what serves, with accounts and without, also to HEAD."""
    for site in (api, accounts):
        answer = raw(site, "/health")
        assert answer.status_code == 200
        assert answer.json() == {"status": "ok", "version": VERSION}
        assert answer.headers["cache-control"] == "no-store"
    assert raw(api, "/health", Host="evil.example").status_code == 421


def test_health_is_bad_when_the_store_cannot_be_read(accounts):
    """A real database without its tables; the answer doesn't say where it lies."""
    with accounts.store.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE people RENAME TO gone")
    answer = raw(accounts, "/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "the store can't be read", "version": VERSION}
    with accounts.store.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE gone RENAME TO people")
    assert raw(accounts, "/health").status_code == 200


def test_the_compose_file_asks_for_the_health_that_there_is():
    """The check of the container is the address above."""
    text = (Path(__file__).parents[2] / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    assert "8765/health'" in text
