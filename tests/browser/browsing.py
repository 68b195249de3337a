"""Servers to browse, and what a browser must never see there."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from argon2 import PasswordHasher

from heretix.accounts import Passwords, People
from heretix.core.settings import Settings
from heretix.jobs import BackgroundWorker
from heretix.store import Store
from heretix.web.app import create_app
from heretix.web.state import AppState

WAIT_MS = 120_000
PASSWORD = "correct horse battery"
STANDARDS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


class _Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class Site:
    """The app over a store, with a worker; it can be stopped and started again on its port."""

    def __init__(
        self, path: Any, folder: Any, *, clock: Any = None, people: Any = None, **env: str
    ) -> None:
        env = {"HERETIX_CORPORA_DIR": str(folder / "corpora"), **env}
        self.settings = Settings(db=str(path), env=env)
        self._path = str(path)
        self._clock = clock
        self._people = people or {}
        # Bound and never listening: nobody else is given the port while the server is away.
        self._kept = _bound(0)
        self._port = self._kept.getsockname()[1]
        self._running = ExitStack()
        self.state: AppState
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def store(self) -> Store:
        return self.state.store

    def start(self) -> None:
        """Open the store and listen, on the same port each time."""
        with ExitStack() as stack:
            store = stack.enter_context(Store.open(self._path))
            self.state = AppState.open(store, self.settings)
            if self._clock is not None:
                self.state.clock = self._clock
            self.state.people = People(store, passwords=_quick_passwords())
            if self._people and not self.state.people.count():
                for name, role in self._people.items():
                    self.state.people.add(name, role=role, password=PASSWORD)
            app = create_app(self.state, loopback_only=not self._people)
            listener = stack.enter_context(_bound(self._port))
            listener.listen(128)
            stack.enter_context(BackgroundWorker(store, self.settings, clock=self._clock))
            server = _Server(
                uvicorn.Config(
                    app,
                    log_level="critical",
                    access_log=False,
                    ws="none",
                    timeout_graceful_shutdown=2,
                )
            )
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            stack.callback(self._end, server, thread, self.state)
            assert server.ready.wait(120)
            self._running = stack.pop_all()

    def stop(self) -> None:
        """End, as Ctrl-C would: jobs go back to the queue, connections break."""
        self._running.close()

    def close(self) -> None:
        """End for good."""
        self.stop()
        self._kept.close()

    @staticmethod
    def _end(server: _Server, thread: threading.Thread, state: AppState) -> None:
        state.stopping = True
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive(), "the server didn't stop"


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def send_twice(page: Any, button: Any, address: str, *, then: str) -> None:
    """Double-click what sends a form: both clicks are on this page, and the server hears both.

    By themselves, the answer to the first click may be there before the second, which would then
    be on whatever the next page has in that place.
    """
    told = clicked = False
    held: list[Any] = []

    def hold(route: Any) -> None:
        nonlocal told
        if not told:
            told = True
            route.fetch(max_redirects=0)
        if clicked:
            route.continue_()
        else:
            held.append(route)

    page.route(address, hold)
    button.dblclick()
    clicked = True
    for route in held:
        route.continue_()
    page.wait_for_url(then)
    # While requests are looked at, nothing is taken from the browser's cache.
    page.unroute(address)


def expect(found: Any) -> Any:
    """Wait for something on a page; unlike a script of the test's own, it needs no evaluation."""
    # Imported here, since only one of several workers opens pages; so with others' heavy packages.
    from playwright.sync_api import expect as wait_for

    return wait_for(found)


def tab_to(page, selector):
    """Press Tab until this has the focus; nothing may be in the way."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            return
    raise AssertionError(f"{selector} isn't reached by Tab")


def _quick_passwords() -> Passwords:
    """Hashing that takes no time: how slow the real one is, others test."""
    return Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


@dataclass
class Watch:
    """What went wrong on the pages of one context."""

    url: str
    complaints: list[str] = field(default_factory=list)

    def over(self, context: Any) -> Any:
        """Watch everything that this context opens."""
        context.on("console", self._console)
        context.on("weberror", lambda error: self.complaints.append(f"error: {error.error}"))
        context.on("request", self._request)
        context.set_default_timeout(WAIT_MS)
        return context

    def _console(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"console: {message.text} ({message.page and message.page.url})")

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in {"http", "https", "ws", "wss"} and not request.url.startswith(self.url):
            self.complaints.append(f"asked another host: {request.url}")


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def axe_findings(page: Any, *rules: str) -> list[str]:
    """Every accessibility finding of the page, however small: by all rules, or by these."""
    # Evaluated rather than added as a script: the page's policy allows none but its own.
    if not page.evaluate("'axe' in window"):
        page.evaluate(_axe())
    wanted = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": STANDARDS}
    found = page.evaluate(
        "wanted => axe.run(document, {resultTypes: ['violations'], runOnly: wanted})", wanted
    )
    return [
        f"{page.url}: {item['id']} ({item['impact']}): {node['html'][:160]}: {node['failureSummary']}"
        for item in found["violations"]
        for node in item["nodes"][:3]
    ]
