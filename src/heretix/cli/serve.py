"""`heretix serve`: the web app on this machine, or for a team."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import signal
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heretix.cli import options as opt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    import uvicorn

    from heretix.settings import Settings
    from heretix.store import Store
    from heretix.web.desk import Desk

__all__ = ["listening", "serve"]

_GRACE_S: Final = 3
_WARM_AFTER_S: Final = 2.0
_SURPLUS: Final = 100_000
"""Objects made and not freed, after which the collector looks for cycles: some ten megabytes."""


def serve(
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; others than loopback need accounts."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", help="Port; 0 takes a free one.", min=0, max=65535)
    ] = 8765,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the start page in a browser.")
    ] = False,
    no_worker: Annotated[
        bool,
        typer.Option("--no-worker", help="Run no jobs here; `heretix worker` does elsewhere."),
    ] = False,
    jobs: opt.JobsOption = opt.JOBS_AT_A_TIME,
    db: opt.DbOption = None,
) -> None:
    """Serve the web app: measure, look, compare and take part in a browser.

    On a loopback address nobody has to sign in. Any other address is refused until there are
    accounts (`heretix users add`). Ctrl-C ends it; jobs under way go on at the next start. A store
    that can't be written to is there to be looked at, if it has no accounts.
    """
    # While modules load, nothing is thrown away; looking for it takes a fifth of the time.
    gc.disable()
    from heretix.settings import Settings

    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    with _opened(settings.db) as store, listening(host, port, store) as listener:
        address = _address(host, listener.getsockname()[1])
        server = _server(store, settings)
        with _ended_by_ctrl_c(server):
            # Plain text: what colours it would take longer to load than some pages to answer.
            typer.echo(f"Heretix serves {store.name} at {address} (Ctrl-C ends it)", err=True)
            if not store.writable:
                typer.echo("It can't be written to: it can only be looked at.", err=True)
            works = store.writable and not no_worker
            with _working(store, settings, jobs=jobs if works else 0):
                if open_browser:
                    _open_when_ready(address)
                server.run(sockets=[listener])
        typer.echo("Stopped.", err=True)


def _opened(db: str) -> Store:
    """The store, if need be one to look at only; whoever signs in writes."""
    from heretix.errors import StoreReadOnlyError
    from heretix.people import People
    from heretix.store import Store

    try:
        return Store.open(db)
    except StoreReadOnlyError:
        store = Store.open(db, create=False)
        if People(store).count() == 0:
            return store
        store.close()
        raise


def _server(store: Store, settings: Settings) -> uvicorn.Server:
    import stamina.instrumentation
    import uvicorn

    from heretix.web.app import create_app
    from heretix.web.connection import BoundedConnection
    from heretix.web.desk import Desk

    # Every try is counted and every failure stored; a line for each would hide the rest.
    stamina.instrumentation.set_on_retry_hooks([])
    desk = Desk.over(store, settings)
    without_accounts = desk.people.count() == 0
    app = create_app(desk, loopback_only=without_accounts)
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        # Addresses of requests can carry what nobody else should read; errors are logged anyway.
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return _stopping_server(config, desk)


def _stopping_server(config: uvicorn.Config, desk: Desk) -> uvicorn.Server:
    import threading

    import uvicorn

    class Server(uvicorn.Server):
        """Tells open event streams to end when the server does; they would wait for ever."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            # What is loaded by now stays, all but a few hundred objects of a quarter of a million:
            # the collector, which stops every page, need not look at it, now or ever.
            gc.freeze()
            # Records come and go by the hundred thousand objects, and hold no cycles: looking
            # through all that are young, at every small surplus, would stop pages for nothing.
            gc.set_threshold(_SURPLUS)
            gc.enable()
            # What takes seconds to make is made once the first pages are likely to be answered.
            timer = threading.Timer(_WARM_AFTER_S, _warm, (desk, self.config.app))
            timer.daemon = True
            timer.start()

        def handle_exit(self, sig: int, frame: object) -> None:
            desk.stopping = True
            super().handle_exit(sig, frame)  # type: ignore[arg-type]

    return Server(config)


def _warm(desk: Desk, app: object) -> None:
    """The script that draws charts, and the anomaly feed."""
    from heretix.errors import HeretixError

    with contextlib.suppress(HeretixError):
        app.state.assets.get("charts.js")  # type: ignore[attr-defined]
        desk.anomalies.look()


@contextlib.contextmanager
def _ended_by_ctrl_c(server: uvicorn.Server) -> Iterator[None]:
    """Ctrl-C ends the server from now on, also while it is being started.

    It listens for Ctrl-C by itself only once it runs; until then much is loaded, and Ctrl-C would
    break into that. Pressed again it doesn't wait for what is under way.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if server.should_exit:
            raise KeyboardInterrupt
        server.handle_exit(number, frame)

    before = signal.signal(signal.SIGINT, end)
    try:
        # The server that was ended by Ctrl-C hands it on at its end: to `end`.
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def listening(host: str, port: int, store: Store) -> Iterator[socket.socket]:
    """A socket that listens; refused where strangers could reach a server without accounts."""
    from heretix.errors import ConfigError
    from heretix.people import People

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            _bind(listener, host, port)
            # What it was bound to says more than the name: any name may point anywhere.
            if not _is_loopback(listener) and People(store).count() == 0:
                raise ConfigError(
                    "`--host` must be a loopback address (127.0.0.1) while there are no accounts, "
                    f"got {host!r}: whoever reaches the server would be its operator; add one "
                    "with `heretix users add NAME --role operator`"
                )
            listener.listen(2048)
        except OSError as exc:
            raise ConfigError(
                f"`--port` {port} on {host} can't be listened on: {exc.strerror or exc}; "
                "choose another with --port, or end the program that uses it"
            ) from exc
        yield listener


def _bind(listener: socket.socket, host: str, port: int) -> None:
    from heretix.errors import ConfigError

    try:
        listener.bind((host, port))
    except (TypeError, UnicodeError) as exc:
        # So Python says that it can't make a host's name of a text.
        raise ConfigError(
            f"`--host` must be an address like 127.0.0.1, or a host's name, got {host[:60]!r}"
        ) from exc


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


@contextlib.contextmanager
def _working(store: Store, settings: Settings, *, jobs: int) -> Iterator[None]:
    """Jobs are done beside the pages, unless somebody else does them."""
    if not jobs:
        yield
        return
    from heretix.jobs import BackgroundWorker

    with BackgroundWorker(store, settings, parallel=jobs):
        yield


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _open_when_ready(address: str) -> None:
    """The socket listens already: a browser that comes early waits for its answer."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
