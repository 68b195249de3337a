"""Path and SQL injection: identifiers, searches, cursors and names are looked up, nothing else."""

import base64
import json
from itertools import product

import pytest
from hostile import INJECTIONS, SEARCHED, filled, reads, writes
from website import PASSWORD, PEOPLE, quick_passwords, serving, state_over

from heretix.accounts import People
from heretix.store import Store

TEXTS = ("q", "claim", "model", "text", "before", "ref", "drift", "url", "account", "episode")
TYPED = ("cursor", "a", "b", "start", "state", "next", "name", "group", "person", "only")
"""Apart, since one that is refused at once would keep the others from being looked at."""


# Every text in every place is for CI; the first slice has each text and each place.
SLICES = 6
PARTS = [0, *(pytest.param(part, marks=pytest.mark.soak) for part in range(1, SLICES))]


def sliced(places, part):
    """Places with the texts that this slice puts in them."""
    for number, (place, text) in enumerate(product(places, INJECTIONS)):
        # One text on from place to place, since a slice may have as many texts for each.
        if (number + number // len(INJECTIONS)) % SLICES == part:
            yield place, text


@pytest.fixture
def both(store_url, tmp_path):
    """A server with accounts, on each database in turn."""
    with Store.open(store_url) as store:
        state = state_over(store, tmp_path)
        state.limiter = None
        state.people = People(store, passwords=quick_passwords())
        for name, role in PEOPLE.items():
            state.people.add(name, role=role, password=PASSWORD)
        with serving(state, loopback_only=False) as running:
            yield running


@pytest.mark.parametrize("part", PARTS)
def test_injection_by_paths_of_every_read(both, part):
    """Whatever stands in place of an id: refused or not found, never an error of the server."""
    root = both.signed_in("root")
    found = [path for path in reads(both.state) if "{" in path]
    assert len(found) > 25
    for path, text in sliced(found, part):
        answer = root.get(filled(path, text))
        assert answer.status_code in {303, 400, 404, 405, 422}, (path, text, answer.status_code)
        assert "root:" not in answer.text
    assert both.state.people.count() == len(PEOPLE)


@pytest.mark.parametrize("part", PARTS)
def test_injection_by_paths_of_every_write(both, part):
    """Sent with everything that a write needs."""
    root = both.signed_in("root")
    headers = {"origin": both.url, "x-csrf-token": root.csrf()}
    found = [(method, path) for method, path in writes(both.state) if "{" in path]
    assert len(found) > 20
    for (method, path), text in sliced(found, part):
        given = headers | {"idempotency-key": f"{path} {INJECTIONS.index(text)}"}
        answer = root.client.request(method, filled(path, text), headers=given)
        assert answer.status_code in {400, 404, 405, 422}, (path, text, answer.status_code)
    assert both.state.people.count() == len(PEOPLE)


@pytest.mark.soak
def test_injection_by_searches_and_filters(both):
    """Every parameter of every list, page and export."""
    root = both.signed_in("root")
    found = [path for path in reads(both.state) if "{" not in path]
    found += ["/api/v1/export/runs.jsonl", "/api/v1/export/transfers.jsonl"]
    for path, text, names in product(found, SEARCHED, (TEXTS, TYPED)):
        answer = root.get(f"{path}?" + "&".join(f"{name}={text}" for name in names))
        assert answer.status_code < 500, (path, text, answer.status_code)
    assert both.state.people.count() == len(PEOPLE)


def cursor(*keys):
    return base64.urlsafe_b64encode(json.dumps(keys).encode()).decode().rstrip("=")


def test_injection_by_cursors(both):
    """A cursor that somebody made up is a place in a list, or a mistake."""
    root = both.signed_in("root")
    made_up = (
        ["' OR 1=1 --"],
        ["' OR 1=1 --", "x"],
        ["\0", "\0"],
        ["\ud800", "x"],
        [-1],
        [10**30],
        [1.5],
        [True],
        [None],
        [["x"], {}],
    )
    for path, keys in product(("runs", "claims", "jobs", "episodes", "anomalies"), made_up):
        answer = root.get(f"/api/v1/{path}", params={"cursor": cursor(*keys)})
        assert answer.status_code in {200, 422}, (path, keys, answer.status_code)


@pytest.mark.parametrize("name", ["a\0b", "' OR '1'='1", "alice'--", "\ud83d", "x" * 199, "%", "_"])
def test_injection_by_names(both, name):
    """Signing in with a name that isn't one fails as any other does."""
    given = {"name": name.encode("utf-8", "replace").decode(), "password": PASSWORD}
    answer = both.another().post("/sign-in", given, form="/sign-in")
    assert answer.status_code == 401


def test_injection_by_form_fields(both):
    """What no database takes is a mistake of whoever sent it."""
    root = both.signed_in("root")
    nul = "Tea \0 is a drink."
    for path, fields in (
        ("/measure", {"claims": nul, "models": "mock:gpt-5", "corpus": "a\0", "lenses": "MEL"}),
        ("/measure/start", {"request": json.dumps({"claims": [nul]}), "key": "0123456789"}),
        ("/episodes/new", {"claim": nul, "practice": "1", "key": "0123456789"}),
        ("/profile/credit", {"claim": nul, "model": "a\0"}),
        ("/profile/credit", {"claim": "Tea is a drink.", "model": "a\0"}),
        ("/profile/join", {"episode": "a\0"}),
        ("/account/tokens", {"label": "a\0"}),
        ("/account/tokens", {"label": "a", "role": "a\0"}),
        ("/account/password", {"old": "a\0", "new": "a\0 long enough"}),
    ):
        answer = root.post(path, fields)
        assert answer.status_code < 500, (path, answer.status_code)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e%2fapp.py",
        "/static/%2e%2e/%2e%2e/pyproject.toml",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/heretix.css%00.png",
        "/static/heretix.css/..",
        "/static/C:%5cwindows",
        "/api/v1/export/..%2f..%2fpeople.jsonl",
        "/api/v1/export/people.jsonl",
        "/api/v1/export/sqlite_master.jsonl",
        "/api/v1/export/runs.jsonl%00",
        "/api/v1/export/runs.xlsx",
        "/api/v1/export/runs.csv%00",
    ],
)
def test_injection_by_names_of_files(accounts_site, path):
    """Files and tables are closed sets."""
    answer = accounts_site.signed_in("root").get(path)
    assert answer.status_code in {400, 404, 422}
    assert "import" not in answer.text
