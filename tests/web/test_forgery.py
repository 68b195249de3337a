"""Requests that somebody else made a browser send, or that no server should take."""

import asyncio
import json
import logging
import socket
from urllib.parse import urlsplit

import pytest
from website import PASSWORD, serving, state_over

from heretix.accounts import LOCAL
from heretix.store import Store
from heretix.web.middleware import BodyLimits, Limits, is_loopback_host
from heretix.web.pages import home

CLAIM = {"claims": "Coffee beans are seeds.", "models": "mock:gpt-5"}


def test_a_form_without_its_token_is_refused(site):
    """Even without accounts, a page elsewhere can't use the browser of whoever sits here."""
    site.get("/measure")
    for fields in (CLAIM, {**CLAIM, "csrf": "0" * 64}, {**CLAIM, "csrf": ""}):
        answer = site.client.post("/measure", data=fields, headers={"origin": site.url})
        assert answer.status_code == 403
        assert "load the page again" in answer.text
    assert site.post("/measure", CLAIM).status_code == 200


def test_a_token_belongs_to_one_browser(site):
    """Another visitor's token is worth nothing."""
    theirs = site.another().csrf()
    site.csrf()
    answer = site.client.post(
        "/measure", data={**CLAIM, "csrf": theirs}, headers={"origin": site.url}
    )
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_write_from_another_origin_is_refused(site, headers):
    """With the right token even: the browser says where it came from."""
    token = site.csrf()
    answer = site.client.post("/measure", data={**CLAIM, "csrf": token}, headers=headers)
    assert answer.status_code == 403


def test_the_token_may_come_in_a_header(site):
    """Scripts of this server's own send it that way."""
    token = site.csrf()
    answer = site.client.post(
        "/measure", data=CLAIM, headers={"origin": site.url, "x-csrf-token": token}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_name_that_was_made_to_point_here_is_refused(site, host):
    """Without accounts, only this machine's own names are served: no DNS rebinding."""
    answer = site.get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "What does a model believe" not in answer.text


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        ("localhost", True),
        ("localhost:8765", True),
        ("LOCALHOST", True),
        ("[::1]:8765", True),
        ("127.0.0.1", True),
        ("0.0.0.0", False),
        ("localhost.evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_loopback_names(host, fits):
    """What a Host header may say on a server without accounts."""
    assert is_loopback_host(host) is fits


def test_a_server_with_accounts_goes_by_any_name(accounts_site):
    """There, the session decides, and another name has no session."""
    answer = accounts_site.get("/sign-in", headers={"host": "heretix.example"})
    assert answer.status_code == 200


def test_programs_on_this_machine_need_no_token(site):
    """What a browser sends always says so; what doesn't is a program, for /api only."""
    answer = site.client.post("/measure", data=CLAIM)
    assert answer.status_code == 403


def exchange(site, head: bytes, *parts: bytes) -> bytes:
    """Send bytes as they are, and read until the server closes."""
    address = urlsplit(site.url)
    with socket.create_connection((address.hostname, address.port), timeout=120) as wire:
        wire.sendall(head)
        for part in parts:
            wire.sendall(part)
        received = b""
        while data := wire.recv(65536):
            received += data
            if b"\r\n\r\n" in received and b"413" in received[:20]:
                break
        return received


def test_a_body_that_says_it_is_too_large_is_refused_at_once(site):
    """Nothing of it is read."""
    head = b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n"
    assert b"413" in exchange(site, head)[:20]


def test_a_body_that_grows_too_large_is_cut_off(tmp_path, sqlite_template):
    """One without a length is counted as it comes."""
    with Store.open(str(sqlite_template)) as store:
        state = state_over(store, tmp_path)
        with serving(state, limits=Limits(body_bytes=1000, body_s=20)) as site:
            head = (
                b"POST /measure HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
            )
            chunk = b"400\r\n" + b"a" * 1024 + b"\r\n"
            assert b"413" in exchange(site, head, chunk)[:20]


def test_a_body_that_dribbles_in_is_given_up(tmp_path, sqlite_template):
    """A client can't hold a connection by sending next to nothing."""
    with Store.open(str(sqlite_template)) as store:
        state = state_over(store, tmp_path)
        with serving(state, limits=Limits(body_bytes=10_000, body_s=0.2)) as site:
            head = (
                b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\na=1"
            )
            assert b"408" in exchange(site, head)[:20]


def test_a_server_may_run_for_longer_than_a_body_may_take():
    """The bound is a request's: the server's own wait for its end has none."""
    heard = []

    async def wait_for_the_end():
        await asyncio.sleep(0.05)
        return {"type": "lifespan.shutdown"}

    async def listen(_scope, receive, _send):
        heard.append(await receive())

    limited = BodyLimits(listen, limits=Limits(body_s=0.001))
    asyncio.run(limited({"type": "lifespan"}, wait_for_the_end, None))
    assert heard == [{"type": "lifespan.shutdown"}]


@pytest.mark.parametrize("length", [b"-1", b"abc", b"1 1", b"1e3"])
def test_a_length_that_is_none_is_refused(site, length):
    """Before anything is read."""
    head = b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n"
    assert b"400" in exchange(site, head + b"Connection: close\r\n\r\n")[:20]


def test_an_unexpected_error_has_a_number_and_no_traceback(site, caplog, monkeypatch):
    """What the reader sees and what the log says share an id; nothing else gets out."""

    def broken(*_args, **_options):
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(home, "select_claims_page", broken)
    with caplog.at_level(logging.ERROR, logger="heretix.web"):
        page = site.get("/search")
        document = site.get("/help")
    assert page.status_code == 500
    assert "a secret" not in page.text
    incident = caplog.records[0].args[0]
    assert incident in page.text
    assert document.status_code == 200


def test_passwords_and_tokens_reach_no_log(accounts_site, caplog):
    """Signing in, a token that is made, one that is used: the log has none of it."""
    with caplog.at_level(logging.DEBUG):
        alice = accounts_site.signed_in("alice")
        page = alice.post("/account/tokens", {"label": "x"}, form="/account").text
        secret = page.split('class="secret">')[1].split("<")[0]
        bearer = {"authorization": f"Bearer {secret}"}
        assert accounts_site.another().get("/search", headers=bearer).status_code == 200
    session = alice.client.cookies["heretix_session"]
    # The client of the test logs what it sends itself; that isn't the server's.
    ours = [
        r.getMessage() for r in caplog.records if not r.name.startswith(("httpx2", "httpcore2"))
    ]
    for said in (PASSWORD, secret, session):
        assert not any(said in line for line in ours)


def test_json_is_not_guessed_from_a_form(site):
    """A start must bring what the plan's page made."""
    for asked in ("nonsense", "[]", json.dumps({"claims": []}), json.dumps({"prompts_file": "/x"})):
        answer = site.post("/measure/start", {"request": asked, "key": "k" * 12})
        assert answer.status_code == 422, asked
    assert site.state.jobs.list(by=LOCAL) == []


def test_cookies_are_for_this_site_and_no_script(accounts_site):
    """HttpOnly and SameSite; over https also Secure, under a name that only this host can set."""
    answer = accounts_site.another().get("/sign-in")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "secure" not in cookie
