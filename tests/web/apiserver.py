"""Servers for the tests of the API: a store with measurements, and people with tokens."""

import asyncio
import re
import shutil
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import httpx2
import uvicorn
from fastapi import FastAPI

from heretix.accounts import Role
from heretix.config import RunConfig
from heretix.core.settings import Settings
from heretix.jobs import Worker
from heretix.measurement.service import prepare
from heretix.store import Store
from heretix.web.api import describe, router
from heretix.web.app import create_app
from heretix.web.connection import BoundedConnection
from heretix.web.middleware import Limits
from heretix.web.state import AppState

PEOPLE = {"alice": Role.EXPLORER, "bob": Role.EXPLORER, "rita": Role.READER, "root": Role.OPERATOR}
PREFIX = "/api/v1"
CLAIMS = ("Coffee beans are seeds.", "Tea is made of leaves.", "Glass is a liquid.")


@cache
def operations():
    """Each address of the API as a pattern, with what it documents of its methods."""
    app = FastAPI()
    app.include_router(router)
    describe(app)
    return [
        (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), methods)
        for path, methods in app.openapi()["paths"].items()
    ]


def check_documented(method, path, status):
    """Whatever an operation answers, its description says that it may."""
    for pattern, methods in operations():
        if pattern.fullmatch(path.partition("?")[0]) and method.lower() in methods:
            assert str(status) in methods[method.lower()]["responses"], (method, path, status)
            return


@dataclass
class Api:
    """A running server as a program sees it."""

    url: str
    state: AppState
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.state.store

    def get(self, path: str, who: str | None = None, **options):
        return self.send("GET", path, who, **options)

    def post(self, path: str, body=None, who: str | None = None, *, key: str | None = None, **o):
        headers = o.pop("headers", {})
        if key is not None:
            headers["Idempotency-Key"] = key
        return self.send("POST", path, who, json=body, headers=headers, **o)

    def outcome(self, begun, who: str | None = None):
        """The episode after a move that was only begun, once it is measured."""
        assert begun.status_code == 202, begun.text
        location = begun.headers["location"]
        assert location == begun.json()["href"] == f"{PREFIX}/jobs/{begun.json()['id']}"
        self.work()
        job = self.get(location.removeprefix(PREFIX), who).json()
        assert job["error"] is None, job
        assert (job["kind"], job["state"]) == ("episode", "done")
        return self.get(f"/episodes/{job['episode']}", who)

    def work(self) -> int:
        """Have a worker do all that waits; how many jobs it took up."""
        worker = Worker(self.store, self.state.settings, clock=self.state.clock)
        return asyncio.run(worker.run_until_idle())

    def send(self, method: str, path: str, who: str | None = None, **options):
        headers = options.pop("headers", {})
        if who is not None:
            headers["Authorization"] = f"Bearer {self.tokens[who]}"
        with httpx2.Client(
            base_url=self.url + PREFIX, timeout=120, trust_env=False, verify=False
        ) as client:
            response = client.request(method, path, headers=headers, **options)
        check_documented(method, PREFIX + path, response.status_code)
        return response


class _Connection(BoundedConnection):
    """Open for longer than a test: otherwise it may be closed just as a client uses it again."""

    limits = Limits(head_s=3600.0)


class Server(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, app) -> None:
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            ws="none",
            http=_Connection,
            timeout_keep_alive=3600,
        )
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def running(state: AppState, *, loopback_only: bool = True):
    """Run the app on a free port until the test is over; gives its address."""
    server = Server(create_app(state, loopback_only=loopback_only))
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        assert server.ready.wait(120)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            state.stopping = True
            server.should_exit = True
            thread.join(120)
            assert not thread.is_alive(), "the server didn't stop"


def measured(store: Store, *claims: str, model: str = "mock:gpt-5", **options) -> None:
    """Measure claims with the mock."""
    config = RunConfig.parse({"models": (model,), "B": 200, **options})
    asyncio.run(prepare(config, Settings(), claims=claims).run(store))


@contextmanager
def served(folder, template, *, accounts: bool = False, claims=CLAIMS):
    """A server over a store of its own, with some claims measured."""
    path = shutil.copy(template, folder / "api.sqlite")
    with Store.open(str(path)) as store:
        if claims:
            measured(store, *claims)
        state = AppState.open(store, Settings(env={"HERETIX_CORPORA_DIR": str(folder / "corpora")}))
        state.limiter = None
        tokens = {}
        if accounts:
            for name, role in PEOPLE.items():
                person = state.people.add(name, role=role)
                tokens[name] = state.people.tokens.issue(person, label="tests").secret
        with running(state, loopback_only=not accounts) as url:
            yield Api(url, state, tokens)
