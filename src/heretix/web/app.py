"""The app: routers, layers and what they share, put together."""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import TYPE_CHECKING, Final

import anyio.to_thread
from fastapi import Depends, FastAPI

from heretix.version import VERSION
from heretix.web import problems
from heretix.web.api.v1 import describe
from heretix.web.assets import Assets, serve_asset
from heretix.web.auth import arrive
from heretix.web.edge import Edge, Limits
from heretix.web.routing import Heads, Unslashed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from heretix.web.state import Desk

__all__ = ["PAGES", "create_app"]

THREADS: Final = 8
"""Pages that are made at the same time. What may take seconds has threads of its own."""

PAGES: Final = (
    # Routes are tried in this order: what is asked for most comes first.
    "heretix.web.pages.runs",
    "heretix.web.api.v1",
    "heretix.web.pages.account",
    "heretix.web.pages.economy",
    "heretix.web.pages.evidence",
    "heretix.web.pages.home",
    "heretix.web.pages.jobs",
)
"""Modules with a `router` each."""


def create_app(desk: Desk, *, loopback_only: bool = True, limits: Limits | None = None) -> FastAPI:
    """The app over a desk. `loopback_only` refuses requests that name another host: it is for a
    server without accounts, which a name that was made to point here must not reach."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Threads that all want the interpreter only make each other wait.
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        try:
            yield
        finally:
            await desk.aclose()

    app = FastAPI(
        title="Heretix",
        version=VERSION,
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(arrive)],
        redirect_slashes=False,
    )
    app.router.default = Unslashed(app.router)
    app.state.desk = desk
    app.state.assets = Assets()
    app.add_route("/static/{name}", serve_asset, methods=["GET"])
    for name in PAGES:
        app.include_router(import_module(name).router)
    describe(app)
    problems.install(app)
    app.add_middleware(Heads)
    app.add_middleware(Edge, loopback_only=loopback_only, limits=limits)
    return app
