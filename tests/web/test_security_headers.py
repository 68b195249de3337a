"""What every answer says to browsers and caches, and what none believes of a request."""

import shutil
import socket

import pytest
from hostile import filled, raw, reads, writes
from website import PASSWORD, serving, state_over

from heretix.cli.serve import _is_loopback
from heretix.core.errors import StoreBusyError
from heretix.store import Store
from heretix.web.middleware import CSP
from heretix.web.pages import home

PRIVATE = ("/", "/account", "/jobs", "/profile", "/measure", "/search", "/episodes", "/ledger")


@pytest.fixture(scope="module")
def plain(tmp_path_factory, sqlite_template):
    """A server without accounts that nobody changes."""
    folder = tmp_path_factory.mktemp("plain")
    path = shutil.copy(sqlite_template, folder / "heretix.sqlite")
    with Store.open(str(path)) as store, serving(state_over(store, folder)) as running:
        yield running


def test_strict_csp_has_nothing_unsafe():
    """No inline code, nothing evaluated, no other host, no wildcard; frames and bases by nobody."""
    for word in ("unsafe-eval", "unsafe-inline", "unsafe-hashes", "wasm", "blob:", "http:", "*"):
        assert word not in CSP
    said = dict(part.strip().split(" ", 1) for part in CSP.split(";"))
    assert said["default-src"] == "'none'"
    assert said["script-src"] == "'self'"
    assert said["style-src"] == "'self'"
    assert said["frame-ancestors"] == said["base-uri"] == "'none'"
    assert said["form-action"] == "'self'"


def test_strict_csp_is_on_every_answer(plain):
    """Every address, found or not, allowed or not; files, data and refusals alike."""
    addresses = [("GET", filled(path, "x")) for path in reads(plain.state)]
    addresses += [(method, filled(path, "x")) for method, path in writes(plain.state)]
    addresses += [("GET", "/static/heretix.css"), ("GET", "/static/mark.svg"), ("PUT", "/")]
    addresses += [("GET", "/nowhere"), ("DELETE", "/jobs"), ("OPTIONS", "/api/v1/runs")]
    addresses += [
        ("GET", "/%00"),
        ("GET", "/search?q=%00"),
        ("GET", "/api/v1/runs?cursor=!"),
        ("TRACE", "/"),
    ]
    assert len(addresses) > 100
    seen = set()
    for method, path in addresses:
        answer = plain.client.request(method, path)
        seen.add(answer.status_code)
        assert answer.headers["content-security-policy"] == CSP, (method, path)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["x-frame-options"] == "DENY", path
        assert answer.headers["cross-origin-resource-policy"] == "same-origin", path
        assert "access-control-allow-origin" not in answer.headers, path
        shared = "public" in answer.headers["cache-control"]
        assert not shared or path.startswith("/static/"), path
    assert {200, 400, 403, 404, 405, 422} <= seen


def test_strict_csp_is_on_failures_of_the_server(plain, monkeypatch):
    """Also when a page fails, a name is refused and a body is too large."""
    monkeypatch.setattr(home, "select_runs", lambda connection, **_: 1 / 0)
    failed = plain.get("/")
    wrong = plain.get("/", headers={"host": "evil.example"})
    large = plain.client.post("/measure", content=b"a" * 3_000_000)
    for answer, status in ((failed, 500), (wrong, 421), (large, 413)):
        assert answer.status_code == status
        assert answer.headers["content-security-policy"] == CSP


def test_failures_of_the_store_tell_strangers_no_path(accounts_site, monkeypatch):
    """Where the store lies is for whoever sits at the machine, and for the log."""
    alice = accounts_site.signed_in("alice")

    def busy(connection, **_):
        raise StoreBusyError("`/srv/secret/heretix.sqlite` is in use")

    monkeypatch.setattr(home, "select_runs", busy)
    answer = alice.get("/")
    assert answer.status_code == 503
    assert "/srv/secret" not in answer.text


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_other_origins_read_nothing(plain, origin):
    """No CORS: neither a read nor a preflight gives leave."""
    for path in ("/", "/api/v1/runs", "/api/v1/people/me", "/api/v1/openapi.json"):
        for method in ("GET", "OPTIONS"):
            headers = {"origin": origin, "access-control-request-method": "POST"}
            answer = plain.client.request(method, path, headers=headers)
            allowed = [name for name in answer.headers if name.startswith("access-control-")]
            assert allowed == [], (method, path)


def test_caches_share_nothing_that_is_private(accounts_site):
    """What belongs to somebody is for their browser alone, and asked for again each time."""
    alice = accounts_site.signed_in("alice")
    for path in (*PRIVATE, "/api/v1/people/me", "/api/v1/people/me/tokens", "/api/v1/jobs"):
        answer = alice.get(path)
        assert answer.status_code == 200, path
        told = answer.headers["cache-control"]
        assert told == "no-store" or told == "private, no-cache", (path, told)
        nobody = accounts_site.another().get(path)
        assert nobody.status_code in {303, 401}
        assert "public" not in nobody.headers["cache-control"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "evil.example@127.0.0.2.nip.io"},
        {"host": "169.254.169.254"},
        {"host": "[::2]"},
        {"x-forwarded-for": "203.0.113.9"},
        {"x-forwarded-for": "127.0.0.1"},
        {"x-forwarded-host": "heretix.example"},
        {"forwarded": "for=203.0.113.9"},
        {"x-real-ip": "203.0.113.9"},
    ],
    ids=str,
)
def test_single_user_mode_is_for_this_machine(plain, headers):
    """Rebinding, or a proxy that passes strangers on: without accounts nobody else is let in."""
    for path in ("/", "/api/v1/people/me", "/static/heretix.css"):
        assert plain.get(path, headers=headers).status_code == 421, path


def test_single_user_mode_ignores_what_a_proxy_says_of_the_scheme(plain):
    """A scheme names nobody: it only makes cookies stricter."""
    answer = plain.get("/measure", headers={"x-forwarded-proto": "https"})
    assert answer.status_code == 200
    assert "__Host-heretix_visitor" in answer.headers["set-cookie"]
    assert "secure" in answer.headers["set-cookie"].lower()


def test_single_user_mode_needs_a_host(plain):
    """A request of old without one isn't served."""
    assert b" 421 " in raw(plain, b"GET / HTTP/1.0\r\n\r\n").split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("host", "fits"), [("127.0.0.1", True), ("127.0.0.2", True), ("0.0.0.0", False), ("", False)]
)
def test_single_user_mode_goes_by_what_was_bound(host, fits):
    """A name that begins like a loopback address may point anywhere: the socket knows."""
    with socket.create_server((host, 0)) as listener:
        assert _is_loopback(listener) is fits


def test_sessions_arent_fixed_by_whoever_planted_a_cookie(accounts_site):
    """Signing in makes a new session; one that was planted, or was there before, opens nothing."""
    site = accounts_site.another()
    site.client.cookies.set("heretix_session", "planted-by-somebody")
    given = {"name": "alice", "password": PASSWORD}
    assert site.post("/sign-in", given, form="/sign-in").status_code == 303
    (first,) = [
        c.value for c in site.client.cookies.jar if c.name == "heretix_session" and c.domain
    ]
    assert first != "planted-by-somebody"
    for planted in ("planted-by-somebody", "", "x" * 5000):
        other = accounts_site.another()
        other.client.cookies.set("heretix_session", planted)
        assert other.get("/jobs").status_code == 303


def test_sessions_end_when_signing_in_again(accounts_site):
    """The session before is worth nothing, even to whoever kept its cookie."""
    site = accounts_site.signed_in("alice")
    before = site.client.cookies["heretix_session"]
    given = {"name": "bob", "password": PASSWORD}
    assert site.post("/sign-in", given, form="/account").status_code == 303
    other = accounts_site.another()
    other.client.cookies.set("heretix_session", before)
    assert other.get("/jobs").status_code == 303


def test_cookies_are_secure_behind_https(accounts_site):
    """HttpOnly and SameSite always; behind a proxy that speaks https also Secure and __Host-."""
    https = {"x-forwarded-proto": "https", "origin": accounts_site.url}
    site = accounts_site.another()
    page = site.get("/sign-in", headers=https)
    cookie = page.headers["set-cookie"].partition(";")[0]
    token = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    given = {"name": "alice", "password": PASSWORD, "csrf": token}
    answer = site.client.post("/sign-in", data=given, headers=https | {"cookie": cookie})
    assert answer.status_code == 303, answer.text
    for told in (page.headers["set-cookie"], answer.headers["set-cookie"]):
        flags = {part.strip().lower() for part in told.split(";")[1:]}
        assert {"httponly", "samesite=lax", "secure", "path=/"} <= flags
        assert told.startswith("__Host-")
        assert not any(flag.startswith("domain") for flag in flags)
    assert page.headers["strict-transport-security"]


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        " //evil.example",
        "javascript:alert(1)",
        "/%0d%0aset-cookie:a=b",
        "http:evil.example",
        "evil.example",
        "",
    ],
)
def test_redirects_stay_here(accounts_site, target):
    """No link can make signing in lead to another site, or write a header."""
    site = accounts_site.another()
    given = {"name": "alice", "password": PASSWORD, "next": target}
    answer = site.post("/sign-in", given, form="/sign-in")
    assert answer.status_code == 303
    place = answer.headers["location"]
    assert place.startswith("/")
    assert not place.startswith(("//", "/\\"))
    assert "a" not in {cookie.name for cookie in site.client.cookies.jar}
    form = site.another().get("/sign-in", params={"next": target}).text
    assert "evil.example" not in form


def test_redirects_from_addresses_that_look_like_hosts_stay_here(accounts_site):
    """The way back after signing in comes from the address, which anybody can choose."""
    for path in ("//evil.example/", "/\\evil.example", "//evil.example/..%2f"):
        received = raw(
            accounts_site,
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode(),
        )
        head = received.partition(b"\r\n\r\n")[0].lower()
        assert b"location: //" not in head
        assert b"location: http" not in head


def test_the_description_of_the_api_tells_nothing_of_this_machine(tmp_path, sqlite_template):
    """Everybody may read it: no path, no key, no name, no default of this server's."""
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store:
        state = state_over(store, tmp_path, OPENAI_API_KEY="sk-secret-of-this-machine")
        state.people.add("alice-in-the-store")
        with serving(state, loopback_only=False) as site:
            text = site.get("/api/v1/openapi.json").text
            for word in (
                str(tmp_path),
                "sk-secret",
                "alice-in-the-store",
                "sqlite",
                "/root",
                "/home",
            ):
                assert word not in text
            for path in ("/docs", "/redoc", "/openapi.json", "/api/v1/docs", "/debug", "/metrics"):
                assert site.get(path).status_code == 404
