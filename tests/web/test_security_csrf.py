"""CSRF: a page elsewhere can't write with the browser of whoever is signed in here."""

import pytest
from hostile import filled, writes

from heretix.web.auth import Visit

ORIGINS = {
    "another site": {"origin": "https://evil.example"},
    "another port": {"origin": "http://127.0.0.1:1"},
    "another name": {"origin": "http://localhost.evil.example"},
    "a frame without origin": {"origin": "null"},
    "no address at all": {"origin": "http://[x"},
    "empty": {"origin": ""},
    "a cross-site fetch": {"sec-fetch-site": "cross-site"},
    "a neighbour's fetch": {"sec-fetch-site": "same-site"},
}
BODIES = {
    "a form": ("application/x-www-form-urlencoded", b"a=1"),
    "a file": ("multipart/form-data; boundary=B", b"--B--\r\n"),
    "json": ("application/json", b"{}"),
    "json as text": ("text/plain", b"{}"),
    "nothing": (None, b""),
}


@pytest.fixture
def alice(accounts_site):
    """A browser that is signed in."""
    return accounts_site.signed_in("alice")


@pytest.mark.parametrize("body", BODIES)
def test_csrf_every_write_needs_the_token_of_the_session(alice, body):
    """Every address that changes something, whatever the body is: without the token, 403."""
    kind, content = BODIES[body]
    headers = {"origin": alice.url, "idempotency-key": "k"} | (
        {"content-type": kind} if kind else {}
    )
    found = writes(alice.state)
    assert len(found) > 30
    for method, path in found:
        answer = alice.client.request(method, filled(path, "x"), content=content, headers=headers)
        assert answer.status_code == 403, (method, path, answer.status_code)


@pytest.mark.parametrize("origin", ORIGINS)
def test_csrf_the_token_is_no_use_to_another_origin(alice, origin):
    """Forms, fetches and frames of other places are refused even with the right token."""
    headers = {"x-csrf-token": alice.csrf(), "idempotency-key": "k", **ORIGINS[origin]}
    request = {"claims": ["Tea is a drink."], "models": ["mock:gpt-5"]}
    assert alice.client.post("/api/v1/jobs", json=request, headers=headers).status_code == 403
    assert alice.client.post("/sign-out", headers=headers).status_code == 403
    assert alice.get("/jobs").status_code == 200
    assert alice.state.jobs.list(by=alice.state.people.find("alice")) == []


@pytest.mark.parametrize("value", ["", "é", "0" * 64, "\x7f", "a" * 100_000])
def test_csrf_a_token_that_isnt_one_is_refused(alice, value):
    """Whatever stands there, by a form or a header: 403, and never an error of the server."""
    headers = {"origin": alice.url}
    for site in (alice, alice.another()):
        site.get("/sign-in")  # a visitor has a token of its own
        form = site.client.post("/sign-out", data={"csrf": value}, headers=headers)
        assert form.status_code == 403
    told = [(b"x-csrf-token", value[:1000].encode("latin-1")), (b"origin", alice.url.encode())]
    # A control character is no header.
    refusal = 400 if value == "\x7f" else 403
    assert alice.client.post("/sign-out", headers=told).status_code == refusal
    assert alice.get("/jobs").status_code == 200


def test_csrf_the_token_of_another_person_is_refused(accounts_site):
    """Somebody who has an account here can't use their own token on others."""
    alice, bob = accounts_site.signed_in("alice"), accounts_site.signed_in("bob")
    headers = {"origin": alice.url, "x-csrf-token": bob.csrf()}
    assert alice.client.post("/sign-out", headers=headers).status_code == 403


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
def test_csrf_a_get_changes_nothing_whatever_it_says_it_is(alice, name):
    """No header and no field turns a read into a write."""
    answer = alice.get("/sign-out", headers={name: "POST"}, params={"_method": "POST"})
    assert answer.status_code == 405
    assert alice.get("/jobs").status_code == 200


def test_csrf_nobody_is_signed_in_by_another_site(accounts_site):
    """Login CSRF: without the form of this browser, a right password opens nothing."""
    site = accounts_site.another()
    given = {"name": "bob", "password": "correct horse battery"}
    for headers in ({}, {"origin": site.url}, {"origin": "https://evil.example"}):
        answer = site.client.post("/sign-in", data=given, headers=headers)
        assert answer.status_code == 403
        assert "heretix_session" not in answer.headers.get("set-cookie", "")


def test_csrf_a_token_in_the_address_doesnt_count(alice):
    """It would be in logs and in referrers."""
    path = f"/sign-out?csrf={alice.csrf()}"
    assert alice.client.post(path, headers={"origin": alice.url}).status_code == 403


def test_csrf_a_bearer_that_is_wrong_doesnt_excuse_from_the_token(alice):
    """A header that other sites can't send anyway isn't a way around either."""
    headers = {"origin": alice.url, "authorization": "Bearer htx_wrong"}
    assert alice.client.post("/sign-out", headers=headers).status_code == 401
    assert alice.get("/jobs").status_code == 200


def test_csrf_in_single_user_mode_browsers_need_the_token(site):
    """Whoever sits at the machine is the operator; a page elsewhere isn't."""
    for told in ("origin", "referer", "cookie", "sec-fetch-site", "sec-fetch-mode"):
        headers = {told: site.url if told in {"origin", "referer"} else "none"}
        answer = site.client.post(
            "/api/v1/jobs",
            json={"claims": ["Tea is a drink."], "models": ["mock:gpt-5"]},
            headers=headers | {"idempotency-key": told},
        )
        assert answer.status_code == 403, told


def test_csrf_secrets_of_a_visit_arent_in_its_repr():
    """A visit in a log tells nobody how to forge a form."""
    visit = Visit(person=None, via="nobody", address=None, secure=False, visitor="seed-of-it")
    assert "seed-of-it" not in repr(visit)
    other = Visit(person=None, via="nobody", address=None, secure=False)
    assert other.csrf
    assert other.visitor is not None
    assert other.visitor not in repr(other)
