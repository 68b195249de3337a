"""Tokens, passwords and cookies: in no log, no file, no address and no error."""

import re
from pathlib import Path

import pytest
from hostile import raw
from website import PASSWORD

from heretix.accounts import RateLimiter
from heretix.client import Client
from heretix.core.errors import HeretixError


@pytest.fixture
def watched(accounts_site, caplog):
    """A server whose every log line is kept, the most talkative ones too."""
    caplog.set_level(1)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "heretix", "heretix.web", "asyncio"):
        caplog.set_level(1, logger=name)
    return accounts_site


def logged(caplog):
    """What the server logged; the test's own client talks, too."""
    ours = [
        record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    ]
    return "".join(f"{record.getMessage()} {vars(record)} {record.exc_text}\n" for record in ours)


def used(site):
    """Everything that must stay secret, after it was used in every way there is."""
    browser = site.signed_in("alice")
    page = browser.post("/account/tokens", {"label": "ci"}, form="/account").text
    token = re.search(r"htx_[\w-]{40,}", page)[0]
    session = browser.client.cookies["heretix_session"]
    headers = {"authorization": f"Bearer {token}"}
    other = site.another()
    assert other.get("/api/v1/people/me", headers=headers).status_code == 200
    other.client.post("/api/v1/jobs", content=b"{", headers=headers | {"idempotency-key": "k"})
    other.get("/api/v1/runs/none", headers=headers)
    other.get("/runs/none", headers={"authorization": f"Bearer {token}x"})
    site.another().post("/sign-in", {"name": "alice", "password": "wrong " * 3}, form="/sign-in")
    browser.post("/account/password", {"old": PASSWORD, "new": "short"}, form="/account")
    changed = browser.post(
        "/account/password", {"old": PASSWORD, "new": "another battery staple"}, form="/account"
    )
    assert changed.status_code == 303
    return [token, session, PASSWORD, "another battery staple", "wrong wrong wrong"]


def test_tokens_leak_into_no_log(watched, caplog):
    """Not at the lowest level, not by mistakes, not by a page that fails."""
    secrets = used(watched)
    said = logged(caplog)
    assert "/account/password" in said, "the server's log was looked at"
    for secret in secrets:
        assert secret not in said


def test_tokens_leak_into_no_incident(watched, caplog, monkeypatch):
    """What the log says of a page that failed tells where, and nothing of who asked."""
    monkeypatch.setattr(watched.state.jobs, "usage", lambda _: 1 / 0)
    browser = watched.signed_in("alice")
    answer = browser.get("/account")
    assert answer.status_code == 500
    assert "incident" in caplog.text
    session = browser.client.cookies["heretix_session"]
    assert session not in logged(caplog) + answer.text
    assert "ZeroDivisionError" not in answer.text
    assert "Traceback" not in answer.text


def test_tokens_leak_into_no_table_or_file(watched):
    """The store knows hashes: none of its files holds a secret, nor does the audit log."""
    secrets = used(watched)
    with watched.store.reading() as connection:
        path = connection.exec_driver_sql("PRAGMA database_list").first()[2]
    kept = b"".join(file.read_bytes() for file in Path(path).parent.glob("heretix.sqlite*"))
    assert b"token.issue" in kept, "the log was looked at"
    for secret in secrets:
        assert secret.encode() not in kept
    entries = str(watched.state.people.audit.entries(limit=500))
    assert "session.refused" in entries
    assert not any(secret in entries for secret in secrets)


def test_tokens_leak_by_no_repr(watched):
    """Printing what the code holds shows none of it."""
    alice = watched.state.people.find("alice")
    issued = watched.state.people.tokens.issue(alice, label="ci")
    session = watched.state.people.sign_in("alice", PASSWORD)
    client = Client(watched.url, issued.secret)
    for text in (repr(issued), repr(session), repr(alice), repr(client), repr(watched.state)):
        assert issued.secret not in text
        assert session.token not in text
        assert "argon2" not in text


def test_tokens_leak_by_no_error_of_the_client(watched):
    """A refusal, a server that isn't there: what is raised says nothing of the token."""
    secret = "htx_" + "s" * 43
    for url in (watched.url, "http://127.0.0.1:1"):
        client = Client(url, secret, tries=1)
        with pytest.raises(HeretixError) as caught:
            client.verify_ledger()
        assert secret not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"


def test_tokens_leak_by_no_address(watched):
    """No redirect and no link carries one, and no other site is told where somebody was."""
    browser = watched.signed_in("alice")
    page = browser.post("/account/tokens", {"label": "ci"}, form="/account")
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "same-origin"
    assert "htx_" not in str(page.url)
    secret = re.search(r"htx_[\w-]{40,}", page.text)[0]
    assert secret not in browser.get("/account").text, "it is shown once"
    for path in ("/", "/account", "/jobs"):
        answer = browser.get(path)
        session = browser.client.cookies["heretix_session"]
        assert session not in answer.text
        assert session not in answer.headers.get("location", "")


def test_tokens_in_the_address_are_no_tokens(watched):
    """Addresses are logged everywhere: a token there opens nothing."""
    person = watched.state.people.find("alice")
    secret = watched.state.people.tokens.issue(person, label="ci").secret
    for name in ("token", "access_token", "api_key", "authorization"):
        answer = watched.another().get("/api/v1/people/me", params={name: secret})
        assert answer.status_code == 401


def test_tokens_that_are_tried_are_slowed_down(watched):
    """Guessing isn't free: an address that sends wrong ones is told to wait."""
    watched.state.limiter = RateLimiter(per_s=0.01, burst=5)
    site = watched.another()
    statuses = [
        site.get("/api/v1/runs", headers={"authorization": f"Bearer htx_{n}"}).status_code
        for n in range(8)
    ]
    assert statuses == [401] * 5 + [429] * 3


def test_passwords_that_are_tried_are_slowed_down(watched):
    """Ten wrong ones, then not even the right one for a while; others sign in as ever."""
    site = watched.another()
    for _ in range(10):
        wrong = site.post("/sign-in", {"name": "alice", "password": "wrong"}, form="/sign-in")
        assert wrong.status_code == 401
    right = site.post("/sign-in", {"name": "alice", "password": PASSWORD}, form="/sign-in")
    assert right.status_code == 429
    assert watched.signed_in("bob").get("/jobs").status_code == 200


def test_answers_to_strangers_name_no_software_and_no_path(watched):
    """Errors of the protocol, of addresses and of bodies: no version, no file, no traceback."""
    said = raw(watched, b"GET / HTTP/1.1\r\nHost: x\r\nBroken\r\n\r\n")
    said += raw(watched, b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    said += raw(
        watched,
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1\r\n\r\n{",
    )
    for word in (b"Traceback", b"site-packages", b"/heretix/", b"fastapi", b"starlette", b"sqlite"):
        assert word not in said.lower()
