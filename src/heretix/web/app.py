"""The app: routers, middleware and the state they share, put together."""

from __future__ import annotations

import contextlib
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse
from starlette.routing import Match

from heretix.version import VERSION
from heretix.web import middleware, problems
from heretix.web.api import describe
from heretix.web.assets import Assets, serve_asset
from heretix.web.auth import identify_visitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.routing import BaseRoute, Router
    from starlette.types import ASGIApp, Receive, Scope, Send

    from heretix.web.state import AppState

THREADS: Final = 8
"""Pages that are made at the same time. What may take seconds has threads of its own."""

ROUTERS: Final = (  # Modules with a `router` each
    # Routes are tried in this order: what is asked for most comes first.
    "heretix.web.pages.runs",
    "heretix.web.api",
    "heretix.web.pages.account",
    # Before the episodes: `/episodes/new` must be tried before `/episodes/{episode_id}`.
    "heretix.web.pages.moves",
    "heretix.web.pages.episodes",
    "heretix.web.pages.exchange",
    "heretix.web.pages.evidence",
    "heretix.web.pages.home",
    "heretix.web.pages.jobs",
    "heretix.web.pages.panels",
)


@cache
def _routes() -> tuple[BaseRoute, ...]:
    # All apps of a process share them: they hold the models of some hundred parameters.
    router = APIRouter(dependencies=[Depends(identify_visitor)])
    for name in ROUTERS:
        router.include_router(import_module(name).router)
    return tuple(router.routes)


def create_app(
    state: AppState, *, loopback_only: bool = True, limits: middleware.Limits | None = None
) -> FastAPI:
    """Make the app over a state; `loopback_only` is for a server without accounts."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Threads that all want the interpreter only make each other wait.
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        try:
            yield
        finally:
            await state.aclose()

    app = FastAPI(
        title="Heretix",
        version=VERSION,
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(middleware.SecurityHeaders),
            Middleware(middleware.Incidents),
            *([Middleware(middleware.LoopbackOnly)] if loopback_only else []),
            Middleware(middleware.NoNul),
            Middleware(middleware.Utf8Only),
            Middleware(middleware.BodyLimits, limits=limits),
            Middleware(middleware.HeadAsGet),
        ],
    )
    app.router.default = redirect_slashes(app.router)
    app.state.heretix = state
    app.state.assets = Assets()
    app.add_route("/static/{name}", serve_asset, methods=["GET"])
    app.router.routes.extend(_routes())
    describe(app)
    problems.install(app)
    return app


def redirect_slashes(router: Router) -> ASGIApp:
    """Lead an address that no route knows to the one without slashes at its end. The redirect names
    no host. The framework would take it from the request, where anybody may have written it."""

    async def redirect(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"]) if scope["type"] == "http" else ""
        meant = path.rstrip("/")
        known = problems.match_route(router, meant, "GET") is not Match.NONE
        # Two slashes at the beginning would make a host of what follows.
        if meant in {"", path} or meant.startswith("//") or not known:
            await router.not_found(scope, receive, send)
            return
        query = scope["query_string"].decode("latin-1")
        target = quote(meant, safe="/") + (f"?{query}" if query else "")
        await RedirectResponse(target, 307)(scope, receive, send)

    return redirect
