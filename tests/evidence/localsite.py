"""A real HTTP server on loopback for tests, in a thread of its own, and names that lead to it.

with Site() as site:
    site.page("/a", "<html>…")
    ... fetch site.url("/a") ...
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

Handler = Callable[["Site", web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Call:
    """One request as it came in; header names are in lower case."""

    method: str
    host: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Names(AbstractResolver):
    """Leads names to the addresses that a test gives them, and counts the questions."""

    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = {name.replace("_", "."): found for name, found in addresses.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: int = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError(None, "no such name")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self.addresses[host]
        ]

    async def close(self) -> None: ...


class Site:
    """The server; a context manager. Paths without a handler answer 404."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.handlers: dict[str, Handler] = {}
        self.sent_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.port = 0
        self.closing = asyncio.Event()

    def __enter__(self) -> Site:
        self._thread.start()
        assert self._ready.wait(timeout=120), "the site didn't start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.closing.set)
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), "the site didn't stop"

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """The address of `path`, under a name or a number."""
        return f"http://{host}:{self.port}{path}"

    def handle(self, path: str, handler: Handler) -> None:
        """What requests for `path` get."""
        self.handlers[path] = handler

    def page(
        self,
        path: str,
        body: str | bytes,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """A fixed answer for `path`, HTML unless the headers say otherwise."""
        data = body.encode() if isinstance(body, str) else body
        told = {"Content-Type": "text/html; charset=utf-8", **(headers or {})}

        async def answer(site: Site, request: web.Request) -> web.StreamResponse:
            return web.Response(body=data, status=status, headers=told)

        self.handle(path, answer)

    def redirect(self, path: str, location: str, status: int = 302) -> None:
        """A redirect from `path`."""
        self.page(path, "", status=status, headers={"Location": location})

    def silence(self, path: str) -> None:
        """No answer for as long as the site lives."""

        async def answer(site: Site, request: web.Request) -> web.StreamResponse:
            await site.closing.wait()
            return web.Response(status=500)

        self.handle(path, answer)

    def endless(self, path: str, total_bytes: int, headers: Mapping[str, str]) -> None:
        """A long body in pieces, of which `sent_bytes` tells how much went out."""

        async def answer(site: Site, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            piece = b"x" * 65_536
            while site.sent_bytes < total_bytes:
                await response.write(piece)
                site.sent_bytes += len(piece)
            return response

        self.handle(path, answer)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self.closing.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        host = request.host.partition(":")[0]
        self.calls.append(
            Call(request.method, host, request.path, dict(request.query), headers, body)
        )
        handler = self.handlers.get(request.path)
        return await handler(self, request) if handler else web.Response(status=404)
