"""Reading or betting as another user: every way in is tried with somebody else's account."""

import json
import threading

import pytest
from economyplay import NOW, Play, hidden

from heretix.accounts import Quotas, Role
from heretix.core.clock import ManualClock

REQUEST = {"claims": ["Tea is a drink."], "models": ["mock:gpt-5"], "K": 1, "R": 1}
AS_ALICE = {
    "account": "user:alice:PLAY",
    "person": "alice",
    "name": "alice",
    "user": "alice",
    "owner": "alice",
    "who": "alice",
    "by": "alice",
}
"""What a form or a request could say to be taken for somebody else."""


@pytest.fixture
def town(accounts_site):
    """A server with people, at a time that only the test moves."""
    accounts_site.state.clock = ManualClock(NOW)
    return accounts_site


def bearer(site, name, **options):
    """The header of a new token of somebody's."""
    person = site.state.people.find(name)
    secret = site.state.people.tokens.issue(person, label="tests", **options).secret
    return {"authorization": f"Bearer {secret}"}


def submit(site, name, key="one", **more):
    headers = bearer(site, name) | {"idempotency-key": key}
    return site.another().client.post("/api/v1/jobs", json=REQUEST | more, headers=headers)


def test_others_bets_cant_be_made_through_hidden_fields(town):
    """The account is that of the session, whatever the form or the request says."""
    play = Play(town)
    play.join(play.alice, play.bob)
    quote = play.bob.get(f"{play.path}/quote", params={"side": "heretic", "amount": "25"})
    assert play.bob.post(f"{play.path}/stake", hidden(quote.text) | AS_ALICE).status_code == 303
    bets = [position.account for position in play.exchange.positions(play.id) if not position.house]
    assert bets == ["user:bob:PLAY"]
    assert play.exchange.balance("alice") == 1_000_000
    for extra in AS_ALICE.items():
        body = {"side": "heretic", "amount": 100, "min_shares": 0, extra[0]: extra[1]}
        headers = bearer(town, "bob") | {"idempotency-key": extra[0]}
        path = f"/api/v1{play.path}/stakes"
        answer = town.another().client.post(path, json=body, headers=headers)
        assert answer.status_code == 422, extra
    assert play.exchange.balance("alice") == 1_000_000


def test_others_bets_arent_repeated_by_their_keys(town):
    """A key belongs to who used it: another person's bet under it is their own."""
    play = Play(town)
    play.join(play.alice, play.bob)
    quote = play.alice.get(f"{play.path}/quote", params={"side": "heretic", "amount": "25"})
    fields = hidden(quote.text)
    for site in (play.alice, play.bob, play.bob, play.alice):
        assert site.post(f"{play.path}/stake", fields | {"min_shares": "0"}).status_code == 303
    bets = [position.account for position in play.exchange.positions(play.id) if not position.house]
    assert bets == ["user:alice:PLAY", "user:bob:PLAY"]


def test_others_evidence_cant_be_revealed(town):
    """Who finds a reveal file can't use it, by the page or by the API."""
    play = Play(town)
    play.join(play.alice, play.bob)
    text = play.commit(play.alice, stake="900")
    forged = json.loads(text) | {"person": "bob"}
    for content in (text, json.dumps(forged)):
        assert play.reveal(play.bob, content).status_code == 409
    secret = json.loads(text)
    body = {
        "challenge": 0,
        "nonce": secret["nonce"],
        "bundle_sha256": secret["bundle"]["bundle_id"],
        "direction": secret["direction"],
        "bundle": secret["bundle"],
    }
    headers = bearer(town, "bob") | {"idempotency-key": "reveal"}
    answer = town.another().client.post(f"/api/v1{play.path}/reveals", json=body, headers=headers)
    assert answer.status_code == 409, answer.text
    assert play.episode.challenges[0].bundle_sha256 is None


def test_others_jobs_and_tokens_are_nowhere_to_be_found(town):
    """By id, in lists, in events, by moves, by cursors: they look like nothing."""
    job = submit(town, "alice").json()["id"]
    token = town.state.people.tokens.list(town.state.people.find("alice").id)[0].id
    bob = town.signed_in("bob")
    for path in (f"/jobs/{job}", f"/jobs/{job}/events"):
        assert bob.get(path).status_code == 404
        assert bob.get(f"/api/v1{path}").status_code == 404
    assert bob.get(f"/api/v1/jobs/{job}/runs").status_code == 404
    for path in ("/jobs", f"/jobs?before={job}", "/account", "/profile"):
        page = bob.get(path).text
        assert job not in page.replace(f"before={job}", "")
        assert token not in page
    for path in (f"/jobs/{job}/cancel", f"/jobs/{job}/resume", f"/account/tokens/{token}/revoke"):
        assert bob.post(path).status_code == 404, path
    alice = town.state.people.find("alice")
    assert town.state.jobs.get(job, by=alice).state.value == "queued"
    assert town.state.people.tokens.list(alice.id)[0].revoked_at is None


def test_others_copies_of_a_page_arent_confirmed(town):
    """An ETag is of one person's page: with it, another gets a page of their own."""
    alice, bob = town.signed_in("alice"), town.signed_in("bob")
    for path in ("/", "/account", "/jobs", "/profile", "/measure", "/api/v1/people/me"):
        etag = alice.get(path).headers.get("etag", '"none"')
        answer = bob.get(path, headers={"if-none-match": etag})
        assert answer.status_code == 200, path
        assert "alice" not in answer.text, path
        nobody = town.another().get(path, headers={"if-none-match": etag})
        assert nobody.status_code in {303, 401}, path


def test_others_answers_arent_replayed(town):
    """The same key of another person is another request."""
    first, second = submit(town, "alice", key="same"), submit(town, "bob", key="same")
    assert (first.status_code, second.status_code) == (201, 201)
    assert (first.json()["owner"], second.json()["owner"]) == ("alice", "bob")
    assert "idempotency-replayed" not in second.headers


def test_others_rights_end_with_the_account(town):
    """Who is disabled is out at once: by session, by token, by password."""
    alice, token = town.signed_in("alice"), bearer(town, "alice")
    other = town.another()
    assert other.get("/api/v1/people/me", headers=token).status_code == 200
    town.state.people.deactivate("alice")
    assert alice.get("/jobs").status_code == 303
    assert other.get("/api/v1/people/me", headers=token).status_code == 401
    given = {"name": "alice", "password": "correct horse battery"}
    assert town.another().post("/sign-in", given, form="/sign-in").status_code == 401


def test_others_roles_hold_from_the_moment_they_change(town):
    """A session that was opened as operator does no more than its person may now."""
    root, token = town.signed_in("root"), bearer(town, "root")
    assert root.get("/episodes/new").status_code == 200
    csrf = root.csrf()
    town.state.people.set_role("root", Role.READER)
    assert root.get("/episodes/new").status_code == 403
    headers = {"origin": root.url, "x-csrf-token": csrf, "idempotency-key": "k"}
    for given in (headers, token | {"idempotency-key": "k"}):
        site = root if given is headers else town.another()
        answer = site.client.post("/api/v1/jobs", json=REQUEST, headers=given)
        assert answer.status_code == 403


def test_others_roles_arent_reached_by_a_token(town):
    """A token for reading reads, whoever made it; it makes no tokens and changes no password."""
    headers = bearer(town, "root", role=Role.READER) | {"idempotency-key": "k"}
    site = town.another()
    assert site.client.post("/api/v1/jobs", json=REQUEST, headers=headers).status_code == 403
    assert site.get("/episodes/new", headers=headers).status_code == 403
    form = {"label": "more", "old": "correct horse battery", "new": "another long password"}
    full = bearer(town, "root")
    for path in ("/account/tokens", "/account/password"):
        assert site.client.post(path, data=form, headers=full).status_code == 403
    alice = town.signed_in("alice")
    assert alice.post("/account/tokens", {"label": "up", "role": "operator"}).status_code == 403


def test_others_quotas_arent_beaten_by_being_quick(town):
    """Of many requests at the same moment only as many are taken as the quota has room for."""
    town.state.people.set_quotas("alice", Quotas(jobs_per_day=2))
    statuses, gate = [], threading.Barrier(8)
    headers = bearer(town, "alice")

    def ask(number):
        gate.wait()
        answer = town.another().client.post(
            "/api/v1/jobs", json=REQUEST, headers=headers | {"idempotency-key": f"k{number}"}
        )
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201, 201] + [429] * 6


@pytest.mark.parametrize("budget", ["nan", "inf", "-inf", "1e400", "-1", "0", "1e15"])
def test_others_money_isnt_reached_by_a_number_that_is_none(town, budget):
    """A budget is an amount; anything else changes nothing, and is no error of the server."""
    job = submit(town, "alice").json()["id"]
    alice = town.signed_in("alice")
    alice.post(f"/jobs/{job}/cancel")
    assert alice.post(f"/jobs/{job}/resume", {"budget_usd": budget}).status_code == 422
    found = town.state.jobs.get(job, by=town.state.people.find("alice"))
    assert found.state.value == "cancelled"


@pytest.mark.parametrize("days", ["nan", "inf", "1e300", "-1", "0", "99999"])
def test_others_tokens_dont_live_for_ever_by_mistake(town, days):
    """What isn't a number of days makes no token, let alone one that never expires."""
    alice = town.signed_in("alice")
    answer = alice.post("/account/tokens", {"label": "ci", "days": days}, form="/account")
    assert answer.status_code == 422
    assert town.state.people.tokens.list() == []
