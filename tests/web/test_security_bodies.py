"""Oversized and slow bodies, heads and numbers: each is cut off, and nobody else has to wait."""

import gzip
import json
import shutil
import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from hostile import raw
from website import serving, state_over

from heretix.store import Store
from heretix.web.middleware import Limits


@pytest.fixture(scope="module")
def strict(tmp_path_factory, sqlite_template):
    """A server that waits for almost nothing, and takes little."""
    folder = tmp_path_factory.mktemp("strict")
    path = shutil.copy(sqlite_template, folder / "heretix.sqlite")
    limits = Limits(body_bytes=50_000, body_s=0.3, head_s=0.3, head_bytes=20_000, hear_out_s=120.0)
    with Store.open(str(path)) as store, serving(state_over(store, folder), limits=limits) as site:
        yield site


@pytest.fixture(scope="module")
def usual(tmp_path_factory, sqlite_template):
    """A server as it is, which nobody changes."""
    folder = tmp_path_factory.mktemp("usual")
    path = shutil.copy(sqlite_template, folder / "heretix.sqlite")
    with Store.open(str(path)) as store, serving(state_over(store, folder)) as site:
        yield site


def head(site, line, *more):
    """A head as it is sent, with the host that the server has."""
    lines = [line, b"Host: " + urlsplit(site.url).netloc.encode(), *more]
    return b"\r\n".join(lines) + b"\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        b"POST /measure HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n",
    ],
)
def test_slow_heads_are_given_up(strict, sent):
    """A client that never says what it wants can't hold its connection."""
    assert raw(strict, sent) == b""


def test_slow_heads_after_a_request_are_given_up(strict):
    """Nor one that was served before."""
    first = head(strict, b"GET /method HTTP/1.1") + b"\r\n"
    received = raw(strict, first + b"GET / HTTP/1.1\r\nX-Slow: ")
    assert received.startswith(b"HTTP/1.1 200")


def test_slow_heads_dribbling_in_are_given_up(strict):
    """Each byte is no new beginning."""
    address = urlsplit(strict.url)
    with socket.create_connection((address.hostname, address.port), timeout=120) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\n")
        until = time.monotonic() + 120
        try:
            while time.monotonic() < until:
                wire.sendall(b"X-Slow: 1\r\n")
                wire.settimeout(0.02)
                try:
                    if wire.recv(1) == b"":
                        return
                except TimeoutError:
                    continue
        except (BrokenPipeError, ConnectionResetError):
            return
    pytest.fail("the connection was still open")


def test_slow_readers_of_a_refusal_dont_stay(strict):
    """A body that nobody asked for any more ends the connection in time."""
    sent = head(strict, b"POST /nowhere HTTP/1.1", b"Content-Length: 40000") + b"\r\nabc"
    assert b"HTTP/1.1 4" in raw(strict, sent)


def test_oversized_heads_are_cut_off(strict):
    """One that doesn't end can't fill the memory."""
    address = urlsplit(strict.url)
    with socket.create_connection((address.hostname, address.port), timeout=120) as wire:
        received = b""
        try:
            wire.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
            for _ in range(200):
                wire.sendall(b"a" * 20_000)
            received = wire.recv(1000)
        except (BrokenPipeError, ConnectionResetError):
            return
    assert received == b"" or b" 431 " in received


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (
            b"GET /api/v1/runs?x=" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            {400, 431},
        ),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 70_000, {431}),
        (b"NOTHING THAT ANYBODY COULD READ\r\n\r\n", {400}),
    ],
    ids=["address", "header", "no request"],
)
def test_what_no_page_ever_sees_is_refused_with_a_problem_document(strict, sent, status):
    """The connection itself says what is wrong, in the form that every refusal has."""
    head_of, _, body = raw(strict, sent).partition(b"\r\n\r\n")
    problem = json.loads(body)
    assert problem["status"] in status
    assert head_of.startswith(b"HTTP/1.1 %d " % problem["status"])
    assert b"content-type: application/problem+json" in head_of
    assert problem["detail"]


def test_a_client_that_is_still_sending_hears_why_it_is_refused(strict):
    """The server hears it out for a moment; hung up on at once, it would hear nothing."""
    address = urlsplit(strict.url)
    with ExitStack() as stack:
        with strict.busy():
            wire = stack.enter_context(
                socket.create_connection((address.hostname, address.port), timeout=120)
            )
            wire.sendall(b"NOTHING THAT ANYBODY COULD READ\r\n\r\n")
        received = wire.recv(65536)
        while b"}" not in received:
            received += wire.recv(65536)
        assert wire.recv(65536) == b""
        # It isn't gone: what was on its way still finds somebody, who throws it away.
        wire.sendall(b"a" * 200_000)
    assert b" 400 " in received


@pytest.mark.parametrize(
    ("more", "body", "statuses"),
    [
        ([b"Content-Length: 60000"], b"", {413}),
        ([b"Content-Length: " + b"9" * 18], b"", {413}),
        ([b"Content-Length: " + b"9" * 5000], b"", {400, 413}),
        ([b"Content-Length: -1"], b"", {400}),
        ([b"Content-Length: 1e3"], b"", {400}),
        ([b"Content-Length: 3", b"Content-Length: 30"], b"abc", {400}),
        ([b"Content-Length: 3", b"Transfer-Encoding: chunked"], b"0\r\n\r\n", {400}),
        ([b"Content-Length: 100"], b"abc", {403, 408}),
        ([b"Transfer-Encoding: chunked"], b"ffffff\r\nabc", {403, 408}),
        ([b"Transfer-Encoding: chunked"], b"fffffffffffffffffffff\r\nabc", {400}),
        ([b"Transfer-Encoding: chunked"], b"ea60\r\n" + b"a" * 60_000 + b"\r\n0\r\n\r\n", {413}),
    ],
)
def test_oversized_lengths_and_lies_about_them(strict, more, body, statuses):
    """What a length says isn't believed, and what comes without one is counted."""
    kind = b"Content-Type: application/x-www-form-urlencoded"
    close = b"Connection: close"
    sent = head(strict, b"POST /measure HTTP/1.1", close, kind, *more) + b"\r\n" + body
    status = int(raw(strict, sent).split(b" ")[1])
    assert status in statuses


@pytest.mark.parametrize(
    "charset", ["punycode", "idna", "utf-7", "utf-16", "unicode_escape", "zip"]
)
def test_slow_character_sets_arent_decoded(usual, charset):
    """One of them would take minutes for what a form may have: only UTF-8 is read."""
    text = b"a" * 400_000 + b"-" + b"a" * 400_000
    body = b'--B\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n' + text + b"\r\n--B--\r\n"
    for kind in (
        f"multipart/form-data; boundary=B; charset={charset}",
        f'multipart/form-data; CHARSET="{charset}"; boundary=B',
        f"multipart/form-data; boundary=B; charset=utf-8; charset={charset}",
        f"multipart/form-data; boundary=B; charset*=utf-8''{charset}",
        f"application/x-www-form-urlencoded; charset={charset}",
    ):
        headers = {"origin": usual.url, "content-type": kind}
        answer = usual.client.post("/sign-in", content=body, headers=headers)
        assert answer.status_code == 415, kind


def test_slow_character_sets_dont_keep_utf8_out(usual):
    """Those that say what they are get in."""
    headers = {"content-type": "application/json; charset=UTF-8"}
    body = json.dumps({"claims": ["Tea is a drink."], "models": ["mock:gpt-5"]}).encode()
    assert (
        usual.another().client.post("/api/v1/plan", content=body, headers=headers).status_code
        == 200
    )


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", b"a=1&" * 400_000),
        ("application/x-www-form-urlencoded", b"a" * 1_900_000),
        ("application/x-www-form-urlencoded", b"%41" * 600_000),
        ("multipart/form-data; boundary=B", b"--B\r\nX: " + b"b" * 1_900_000 + b"\r\n\r\n"),
        ("multipart/form-data; boundary=B", b"--B\r\n" * 300_000),
        (
            "multipart/form-data; boundary=B",
            b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n' * 30_000 + b"--B--\r\n",
        ),
        (
            "multipart/form-data; boundary=B",
            b'--B\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n'
            + b"x" * 1_900_000
            + b"\r\n--B--\r\n",
        ),
        ("multipart/form-data", b"--B--\r\n"),
    ],
)
def test_oversized_forms_are_refused(usual, kind, body):
    """Many fields, long names, endless parts: a mistake of the sender's, found before the token of
    the form is looked for."""
    headers = {"origin": usual.url, "content-type": kind}
    answer = usual.client.post("/sign-in", content=body, headers=headers)
    assert answer.status_code == 400


def test_oversized_bodies_cant_hide_in_a_small_one(usual):
    """Nothing is decompressed: what is packed isn't JSON."""
    packed = gzip.compress(b'{"claims": ["' + b"a" * 5_000_000)
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = usual.another().client.post("/api/v1/plan", content=packed, headers=headers)
    assert answer.status_code == 400


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "1" * 9_000, "NaN", "[]", '"a"'])
def test_oversized_depth_and_numbers_in_a_form_are_refused(usual, text):
    """JSON in a field is read with the same care as a body."""
    answer = usual.post("/measure/start", {"request": text, "key": "0123456789"})
    assert answer.status_code == 422


def test_oversized_documents_for_many_claims_are_refused(usual):
    """Each claim reads every document: a plan, which costs nothing, mustn't take an hour."""
    document = {"title": "Tea", "text": "tea is a drink. " * 10_000}
    request = {
        "claims": [f"Tea number {n} is a drink." for n in range(100)],
        "models": ["mock:gpt-5"],
        "lenses": ["SEL"],
        "documents": [document | {"title": f"Tea {n}"} for n in range(5)],
        "K": 1,
        "R": 1,
    }
    answer = usual.another().client.post("/api/v1/plan", json=request)
    assert answer.status_code == 422
    assert "4,000,000" in answer.json()["detail"]
