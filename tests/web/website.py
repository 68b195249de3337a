"""The app on a real server on loopback, over a store of its own."""

import asyncio
import re
import shutil
import socket
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import uvicorn
from argon2 import PasswordHasher

from heretix.accounts import LOCAL, Passwords, People, Role
from heretix.core.settings import Settings
from heretix.jobs import MeasureRequest, Worker
from heretix.store import Store
from heretix.store.runs import select_runs_of_claim
from heretix.web.app import create_app
from heretix.web.connection import BoundedConnection
from heretix.web.middleware import Limits
from heretix.web.state import AppState

PASSWORD = "correct horse battery"
PEOPLE = {"alice": Role.EXPLORER, "bob": Role.EXPLORER, "rita": Role.READER, "root": Role.OPERATOR}
_CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')


@dataclass
class Site:
    """A running server, and a browser that never runs scripts."""

    url: str
    state: AppState
    client: httpx2.Client = field(repr=False)
    opened: ExitStack = field(repr=False)
    """Browsers to close when the test is over."""
    loop: asyncio.AbstractEventLoop = field(repr=False)
    """The server's, in a thread of its own."""

    @property
    def store(self) -> Store:
        return self.state.store

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return self.client.get(path, **options)

    def csrf(self, page: str = "/measure") -> str:
        """The token in a form of this browser's."""
        found = _CSRF.search(self.get(page).text)
        assert found, f"no form on {page}"
        return found[1]

    def post(self, path: str, data: dict[str, Any] | None = None, *, form: str = "/measure", **o):
        """Send a form as a browser does: from this origin, with the token of the page `form`."""
        headers = {"origin": self.url, **o.pop("headers", {})}
        fields = {"csrf": self.csrf(form), **(data or {})}
        return self.client.post(path, data=fields, headers=headers, **o)

    def work(self) -> int:
        """Have a worker do all that waits; how many jobs it took up."""
        worker = Worker(self.store, self.state.settings, clock=self.state.clock)
        return asyncio.run(worker.run_until_idle())

    @contextmanager
    def busy(self):
        """Keep the server from doing anything: what is sent meanwhile has come when it looks."""
        begun, over = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            over.wait(120)

        self.loop.call_soon_threadsafe(wait)
        assert begun.wait(120)
        try:
            yield
        finally:
            over.set()

    def another(self) -> "Site":
        """The same server in another browser."""
        client = self.opened.enter_context(browser(self.url))
        return Site(self.url, self.state, client, self.opened, self.loop)

    def signed_in(self, name: str) -> "Site":
        """The same server in a browser of this person's."""
        site = self.another()
        answer = site.post("/sign-in", {"name": name, "password": PASSWORD}, form="/sign-in")
        assert answer.status_code == 303, answer.text
        return site


def browser(url: str) -> httpx2.Client:
    """A client that keeps cookies and follows nothing by itself.

    It loads no certificates, which takes longer than most requests and is for https only.
    """
    return httpx2.Client(base_url=url, timeout=120, trust_env=False, verify=False)


class Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.ready.set()


@contextmanager
def serving(state: AppState, **options: Any):
    """Run the app on a free port until the test is over."""
    limits = options.pop("limits", None) or Limits()
    app = create_app(state, limits=limits, **options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = type("Connection", (BoundedConnection,), {"limits": limits})
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            ws="none",
            http=kept,
            # Longer than a client keeps one: otherwise either may close it as the other uses it.
            timeout_keep_alive=60,
        )
        server = Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        assert server.ready.wait(120)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with ExitStack() as opened:
                client = opened.enter_context(browser(url))
                yield Site(url, state, client, opened, server.loop)
        finally:
            state.stopping = True
            server.should_exit = True
            thread.join(120)
            assert not thread.is_alive(), "the server didn't stop"


def state_over(store: Store, folder, **env: str) -> AppState:
    """A state whose corpora and models live in the test's own folder."""
    return AppState.open(
        store, Settings(env={"HERETIX_CORPORA_DIR": str(folder / "corpora"), **env})
    )


def quick_passwords() -> Passwords:
    """Hashing that takes no time: how slow the real one is, others test."""
    return Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


@pytest.fixture
def site(tmp_path, sqlite_template):
    """A server without accounts."""
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store, serving(state_over(store, tmp_path)) as running:
        yield running


@pytest.fixture
def accounts_site(tmp_path, sqlite_template):
    """A server whose people are in `PEOPLE`, all with the same password."""
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store:
        state = state_over(store, tmp_path)
        state.people = People(store, passwords=quick_passwords())
        for name, role in PEOPLE.items():
            state.people.add(name, role=role, password=PASSWORD)
        with serving(state, loopback_only=False) as running:
            yield running


WEATHER = "Daylight saving time reduces electricity consumption."
MARKUP = '<script>alert(1)</script> & "quotes" <img src=x onerror=alert(2)> stay text.'
MODEL = "sim:planted?hel=-1.5&template_sd=0.1"
FAULTY = "mock:m?not_json=0.2&citation=0.1&refused=0.1"


@pytest.fixture(scope="session")
def measured_template(tmp_path_factory, sqlite_template):
    """A store in which a claim was measured under all lenses, and others plainly."""
    folder = tmp_path_factory.mktemp("measured")
    path = shutil.copy(sqlite_template, folder / "heretix.sqlite")
    with Store.open(str(path)) as store:
        state = state_over(store, folder)
        for values in (
            {"claims": [WEATHER], "models": [MODEL], "lenses": ["RPL", "NUL", "MEL", "HEL"]}
            | {"K": 16, "influence": True, "sham": True},
            {"claims": [WEATHER, MARKUP], "models": ["mock:gpt-5"]},
            {"claims": ["Sharks don't get cancer."], "models": [FAULTY], "K": 16, "R": 3},
        ):
            state.jobs.submit(LOCAL, MeasureRequest.parse({"B": 300, **values}))
        asyncio.run(Worker(store, state.settings).run_until_idle())
    return path


@pytest.fixture(scope="module")
def measured_site(tmp_path_factory, measured_template):
    """A server over that store, for tests that only read."""
    folder = tmp_path_factory.mktemp("measured_site")
    path = shutil.copy(measured_template, folder / "heretix.sqlite")
    with Store.open(str(path)) as store, serving(state_over(store, folder)) as running:
        yield running


def run_of(site: Site, *, claim: str = WEATHER, model: str = MODEL, lens: str = "RPL"):
    """The summary of one of the measured runs."""
    (found,) = [
        run
        for run in site.store.read(select_runs_of_claim, claim)
        if (run.model, run.lens, run.variant) == (model, lens, None)
    ]
    return found
