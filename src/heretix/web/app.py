"""The app: routers, middleware and the state they share, put together."""

from __future__ import annotations

import contextlib
import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Depends, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request  # noqa: TC002  (the framework reads it)
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Match

from heretix.accounts import Role
from heretix.core.errors import StoreError
from heretix.version import VERSION
from heretix.web import middleware, problems
from heretix.web.api import describe
from heretix.web.assets import Assets, redirect_to_icon, serve_asset
from heretix.web.auth import identify_visitor, require_role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.routing import BaseRoute, Router
    from starlette.types import ASGIApp, Receive, Scope, Send

    from heretix.observability import PrometheusMetrics
    from heretix.web.state import AppState

log = logging.getLogger("heretix.web")

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
    "heretix.web.pages.admin",
    "heretix.web.pages.share",
)


@cache
def _routes() -> tuple[BaseRoute, ...]:
    # All apps of a process share them: they hold the models of some hundred parameters.
    router = APIRouter(dependencies=[Depends(identify_visitor)])
    for name in ROUTERS:
        router.include_router(import_module(name).router)
    return tuple(router.routes)


def create_app(
    state: AppState,
    *,
    loopback_only: bool = True,
    limits: middleware.Limits | None = None,
    metrics: PrometheusMetrics | None = None,
) -> FastAPI:
    """Make the app over a state; `loopback_only` is for a server without accounts. With `metrics`,
    operators and what has their tokens read them at `/metrics`."""

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
            Middleware(middleware.RequestIds),
            Middleware(middleware.SecurityHeaders),
            # Around what compresses: HEAD has the headers of GET, also when gzip is asked for.
            Middleware(middleware.HeadAsGet),
            Middleware(middleware.Compression),
            Middleware(middleware.UnhandledErrors),
            Middleware(middleware.SingleHost),
            *([Middleware(middleware.LoopbackOnly)] if loopback_only else []),
            Middleware(middleware.NoNul),
            Middleware(middleware.Utf8Only),
            Middleware(middleware.BodyLimits, limits=limits),
        ],
    )
    app.router.default = redirect_slashes(app.router)
    app.state.heretix = state
    app.state.assets = Assets()
    app.add_route("/static/{name}", serve_asset, methods=["GET"])
    # What has no page around it, such as a card, can't name its icon: browsers then ask for this.
    app.add_route("/favicon.ico", redirect_to_icon, methods=["GET"])
    app.add_route("/health", tell_health, methods=["GET"])
    if metrics is not None:

        async def tell_metrics(request: Request) -> Response:
            await require_role(request, Role.OPERATOR)
            text, kind = await run_in_threadpool(metrics.page)
            return Response(text, headers={"content-type": kind, "cache-control": "no-store"})

        app.add_route("/metrics", tell_metrics, methods=["GET"])
    app.router.routes.extend(_routes())
    describe(app)
    problems.install(app)
    return app


def tell_health(request: Request) -> Response:
    """Tell whoever watches this server, without signing in, whether it can read its store."""
    state: AppState = request.app.state.heretix
    told, status = {"status": "ok", "version": VERSION}, 200
    try:
        state.people.count()
    except StoreError as exc:
        # Where the store lies is nobody's business who isn't at the machine.
        log.warning("%s", exc)
        told["status"], status = "the store can't be read", 503
    return JSONResponse(told, status, headers={"cache-control": "no-store"})


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
