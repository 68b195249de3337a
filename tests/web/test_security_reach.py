"""Prompt banks, files and servers can't be named from the API or a form, and nothing is fetched."""

import asyncio
import json
import shutil
import socket
import threading

import pytest
from website import serving, state_over

from heretix.jobs import Worker
from heretix.store import Store

REQUEST = {"claims": ["Tea is a drink."], "models": ["mock:gpt-5"], "K": 2, "R": 1, "B": 100}
DOCUMENT = {"title": "Tea", "text": "Tea is a drink, the board said in its report on tea."}


@pytest.fixture(scope="module")
def refusing(tmp_path_factory, sqlite_template):
    """A server in which nothing is ever measured."""
    folder = tmp_path_factory.mktemp("refusing")
    path = shutil.copy(sqlite_template, folder / "heretix.sqlite")
    with Store.open(str(path)) as store, serving(state_over(store, folder)) as running:
        yield running


@pytest.fixture
def trap():
    """A server that nobody may call: gives its port and who called."""
    callers = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        over = threading.Event()

        def watch():
            while not over.is_set():
                try:
                    wire, address = listener.accept()
                except TimeoutError:
                    continue
                callers.append(address)
                wire.close()

        thread = threading.Thread(target=watch)
        thread.start()
        yield listener.getsockname()[1], callers
        over.set()
        thread.join()


BANKS = (
    "/etc/passwd",
    "../rpl_v1",
    "./rpl_v1",
    "rpl_v1.yaml",
    "prompts/rpl_v1",
    "file:///etc/passwd",
    "http://127.0.0.1/bank.yaml",
    "..\\rpl_v1",
    "~/bank",
    "rpl_v1\x00",
    "RPL_V1/../rpl_v1",
    "",
)
BEYOND = (
    *({"prompt_version": bank} for bank in BANKS),
    {"prompts": "/etc/passwd"},
    {"prompts_file": "bank.yaml"},
    {"bank": {"templates": ["{claim}"]}},
    {"corpus": "/etc/passwd"},
    {"corpus": "..", "lenses": ["MEL"]},
    {"corpus": "../corpora/x", "lenses": ["MEL"]},
    {"corpus": "a/b", "lenses": ["MEL"]},
    {"corpus": "file:x", "lenses": ["MEL"]},
    {"models": ["local:/etc/passwd"]},
    {"models": ["local:../x.gguf"]},
    {"models": ["local:..%2fx"]},
    {"models": ["local:~root"]},
    {"models": [" local:/etc/passwd"]},
    {"models": ["LOCAL:/etc/passwd"]},
    {"models": ["file:/etc/passwd"]},
    {"models": ["http://127.0.0.1/v1"]},
    {"models": ["openai-compatible:x@http://127.0.0.1"], "base_url": "http://127.0.0.1"},
    {"base_url": "http://169.254.169.254/"},
    {"options": {"base_url": "http://169.254.169.254/"}},
    {"lenses": ["SEL"], "documents": [DOCUMENT | {"url": "file:///etc/passwd"}]},
    {"lenses": ["SEL"], "documents": [DOCUMENT | {"url": "javascript:alert(1)"}]},
    {"lenses": ["SEL"], "documents": [DOCUMENT | {"path": "/etc/passwd"}]},
    {"lenses": ["SEL"], "documents": ["/etc/passwd"]},
    {"out": "/tmp/x"},
    {"db": "/tmp/x.sqlite"},
    {"policy": "/etc/passwd"},
)


@pytest.mark.parametrize("more", BEYOND, ids=lambda more: json.dumps(more)[:60])
def test_prompt_banks_and_files_by_path_are_refused(refusing, more):
    """By the API and by the form that starts a job; nothing is queued, and no file is quoted."""
    request = REQUEST | more
    for path in ("/api/v1/jobs", "/api/v1/plan"):
        headers = {"idempotency-key": "one"}
        answer = refusing.another().client.post(path, json=request, headers=headers)
        assert answer.status_code == 422, answer.text
        assert "root:" not in answer.text
    form = {"request": json.dumps(request), "key": "0123456789"}
    assert refusing.post("/measure/start", form).status_code == 422
    assert refusing.get("/api/v1/jobs").json()["items"] == []


@pytest.mark.parametrize(
    "more",
    [
        {"models": ["local:/etc/passwd"]},
        {"models": ["local:..\\x"]},
        {"judge_pool": ["local:/etc/passwd"] * 3},
        {"bank": "/etc/passwd"},
        {"bank": "../rpl_v1"},
        {"lens": "HEL@/etc/passwd"},
        {"prompts": "/etc/passwd"},
        {"models": ["file:/etc/passwd"]},
    ],
)
def test_prompt_banks_and_files_of_episodes_are_refused(refusing, more):
    """An operator who isn't at the machine can't name its files either."""
    given = {"claim": "Tea is a drink.", "B": 100} | more
    program, headers = refusing.another().client, {"idempotency-key": "one"}
    answer = program.post("/api/v1/episodes", json=given, headers=headers)
    assert answer.status_code == 422, answer.text
    fields = {"claim": "Tea is a drink.", "key": "0123456789", "practice": "1"}
    for name in ("models", "judge_pool"):
        if name in more:
            assert refusing.post("/episodes/new", fields | {name: more[name][0]}).status_code == 422
    assert refusing.get("/api/v1/episodes").json()["items"] == []


def test_addresses_of_evidence_are_never_fetched(site, trap):
    """An address that somebody brings is told, not visited: no request is forged from here."""
    port, callers = trap
    url = f"http://127.0.0.1:{port}/latest/meta-data"
    more = {"lenses": ["RPL", "SEL"], "documents": [DOCUMENT | {"url": url}]}
    answer = site.client.post(
        "/api/v1/jobs", json=REQUEST | more, headers={"idempotency-key": "one"}
    )
    assert answer.status_code == 201, answer.text
    assert site.client.post("/api/v1/plan", json=REQUEST | more).status_code == 200
    asyncio.run(Worker(site.store, site.state.settings).run_until_idle())
    job = site.get(f"/api/v1/jobs/{answer.json()['id']}").json()
    assert job["state"] == "done"
    for path in ("/policy", "/api/v1/policy/explain"):
        assert site.get(path, params={"url": url}).status_code == 200
    assert callers == []


def test_addresses_in_an_address_are_never_fetched(accounts_site, trap):
    """Nor by a way on after signing in, a host, or what a proxy is said to have said."""
    port, callers = trap
    place = f"127.0.0.1:{port}"
    site = accounts_site.signed_in("root")
    headers = {"host": place, "x-forwarded-host": place, "x-original-url": f"http://{place}/"}
    site.get("/", headers=headers)
    site.get("/sign-in", params={"next": f"http://{place}/"}, follow_redirects=False)
    assert callers == []
