"""`heretix serve`, `worker`, `jobs` and `demo`: the web app and what works behind it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.cli.output import print_json
from heretix.core.event_loop import STOP_SIGNALS, handling_signals

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    import uvicorn

    from heretix.core.settings import Settings
    from heretix.jobs import Job, Jobs, Worker
    from heretix.observability import PrometheusMetrics
    from heretix.store import Store
    from heretix.web.demo import World
    from heretix.web.state import AppState

LogJsonOption = Annotated[
    bool,
    typer.Option(
        "--log-json", help="Log as JSON lines: requests, calls, jobs, and what went wrong."
    ),
]
_GRACE_S: Final = 3
_TURN_S: Final = 0.0005
"""For which a thread keeps the interpreter while others want it."""
_WORK_AFTER_S: Final = 1.0
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
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Answer operators' Prometheus at /metrics (extra `otel`)."),
    ] = False,
    log_json: LogJsonOption = False,
    jobs: opt.JobsOption = opt.JOBS_AT_A_TIME,
    on: opt.OnOption = None,
    db: opt.DbOption = None,
) -> None:
    """Serve the web app: measure, look, compare and take part in a browser.

    On a loopback address nobody has to sign in. Any other address is refused until there are
    accounts (`heretix users add`). Ctrl-C ends it when calls in flight are home, or after a minute,
    again drops them; jobs under way go on at the next start. Episodes are frozen, judged, measured
    and settled when that is due. A store that can't be written to is there to be looked at, if it
    has no accounts.
    """
    # While modules load, nothing is thrown away; looking for it takes a fifth of the time.
    gc.disable()
    import threading
    import webbrowser

    settings = opt.read_settings(db, on=on)
    with (
        contextlib.ExitStack() as around,
        _open(settings.db) as store,
        listening(host, port, store) as listener,
    ):
        say = around.enter_context(_logging(as_json=log_json))
        scraped = around.enter_context(_scraping(store)) if metrics else None
        name, taken = f"[{host}]" if ":" in host else host, listener.getsockname()[1]
        address = f"http://{name}:{taken}/"
        # Pages wait for the interpreter behind exports: a tenth of the usual turn.
        sys.setswitchinterval(_TURN_S)
        server = _server(store, settings, metrics=scraped, log_json=log_json)
        with _ended_by_ctrl_c(server):
            say(f"Heretix serves {store.name} at {address} (Ctrl-C ends it)")
            if not store.writable:
                say("It can't be written to: it can only be looked at.")
            with contextlib.ExitStack() as working:
                if store.writable and not no_worker:
                    working.enter_context(_working(store, settings, parallel=jobs, tell=say))
                if open_browser:
                    # The socket listens already: a browser that comes early waits for its answer.
                    opening = threading.Thread(target=webbrowser.open, args=(address,), daemon=True)
                    opening.start()
                server.run(sockets=[listener])
        say("Stopped.")


@contextlib.contextmanager
def _logging(*, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Log for people, or as JSON for programs; gives the call that says something."""
    if not as_json:
        # Plain text: what colours it would take longer to load than some pages to answer.
        yield partial(typer.echo, err=True)
        return
    import logging

    from heretix.observability import logging_json

    with logging_json():
        yield logging.getLogger("heretix").info


@contextlib.contextmanager
def _scraping(store: Store) -> Iterator[PrometheusMetrics]:
    from heretix.observability import PrometheusMetrics, counting_jobs

    with counting_jobs(store), PrometheusMetrics() as scraped:
        yield scraped


def _open(db: str) -> Store:
    """Open the store, if need be to look at only; whoever signs in writes."""
    from heretix.accounts import People
    from heretix.core.errors import StoreReadOnlyError
    from heretix.store import Store

    try:
        return Store.open(db)
    except StoreReadOnlyError:
        store = Store.open(db, create=False)
        if People(store).count() == 0:
            return store
        store.close()
        raise


def _server(
    store: Store, settings: Settings, *, metrics: PrometheusMetrics | None, log_json: bool
) -> uvicorn.Server:
    import threading

    import uvicorn

    from heretix.web.app import create_app
    from heretix.web.connection import BoundedConnection
    from heretix.web.state import AppState

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
            timer = threading.Timer(_WARM_AFTER_S, _warm, (state,))
            timer.daemon = True
            timer.start()

        def handle_exit(self, sig: int, frame: object) -> None:
            state.stopping = True
            super().handle_exit(sig, frame)  # type: ignore[arg-type]

    state = AppState.open(store, settings)
    config = uvicorn.Config(
        create_app(state, loopback_only=state.people.count() == 0, metrics=metrics),
        http=BoundedConnection,
        ws="none",
        # Addresses of requests can carry what nobody else should read; errors are logged anyway.
        access_log=False,
        log_level="warning",
        log_config=None if log_json else uvicorn.config.LOGGING_CONFIG,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return Server(config)


@contextlib.contextmanager
def _working(
    store: Store, settings: Settings, *, parallel: int, tell: Callable[[str], None]
) -> Iterator[None]:
    """Work on jobs from soon after the start: what measures takes long to load, and would keep the
    first page waiting."""
    import threading

    ended, started = threading.Event(), []

    def start() -> None:
        if ended.wait(_WORK_AFTER_S):
            return
        from heretix.jobs import BackgroundWorker

        output.silence_retries()
        worker = BackgroundWorker(store, settings, parallel=parallel, keeps=True, tell=tell)
        worker.start()
        started.append(worker)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for worker in started:
            worker.stop()  # here, where a second Ctrl-C is heard


def _warm(state: AppState) -> None:
    """Load what asks other services, and make the anomaly feed."""
    from heretix.core.errors import HeretixError

    output.silence_retries()
    with contextlib.suppress(HeretixError):
        state.anomalies.read()


@contextlib.contextmanager
def _ended_by_ctrl_c(server: uvicorn.Server) -> Iterator[None]:
    """Let Ctrl-C end the server from now on, also while it is being started. It listens for Ctrl-C
    by itself only once it runs; until then much is loaded, and Ctrl-C would break into that.
    Pressed again it doesn't wait for what is under way."""

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
    """Open a socket that listens; refuse where strangers could reach a server without accounts."""
    from heretix.accounts import People
    from heretix.core.errors import ConfigError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            # What it was bound to says more than the name: any name may point anywhere.
            if not _is_loopback(listener) and People(store).count() == 0:
                raise ConfigError(
                    "`--host` must be a loopback address (127.0.0.1) while there are no accounts, "
                    f"got {host!r}: whoever reaches the server would be its operator; add one "
                    "with `heretix users add NAME --role operator`"
                )
            listener.listen(2048)
        except (TypeError, UnicodeError) as exc:
            # So Python says that it can't make a host's name of a text.
            raise ConfigError(
                f"`--host` must be an address like 127.0.0.1, or a host's name, got {host[:60]!r}"
            ) from exc
        except OSError as exc:
            raise ConfigError(
                f"`--port` {port} on {host} can't be listened on: {exc.strerror or exc}; "
                "choose another with --port, or end the program that uses it"
            ) from exc
        yield listener


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def worker(
    once: Annotated[bool, typer.Option("--once", help="End when no job waits.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            help="Answer Prometheus on this port (extra `otel`); 0 takes a free one.",
            min=0,
            max=65535,
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option("--metrics-host", help="Address of --metrics-port; whoever reaches it reads."),
    ] = "127.0.0.1",
    log_json: LogJsonOption = False,
    jobs: opt.JobsOption = opt.JOBS_AT_A_TIME,
    on: opt.OnOption = None,
    db: opt.DbOption = None,
) -> None:
    """Work on the jobs of a store until stopped.

    Moves of episodes are made when they are due, each once. Any number of workers may share a
    store, on one machine or many. A worker that is stopped waits for its calls in flight and gives
    its jobs back (stopped again, it drops the calls); one that dies is replaced, and what was
    answered isn't asked or paid for again.
    """
    import logging

    from heretix.jobs import Worker

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    output.silence_retries()
    settings = opt.read_settings(db, on=on)
    with opt.open_store(db, create=True) as store, contextlib.ExitStack() as around:
        say = around.enter_context(_logging(as_json=log_json))
        if metrics_port is not None:
            scraped = around.enter_context(_scraping(store))
            taken = scraped.serve(metrics_host, metrics_port)
            say(f"metrics at http://{metrics_host}:{taken}/metrics")
        say(f"working on the jobs of {store.name}; Ctrl-C ends it")
        worker = Worker(store, settings, parallel=jobs, keeps=True)
        done = asyncio.run(_work(worker, once=once, say=say))
    if once:
        typer.echo(f"{done} job{'' if done == 1 else 's'} done")


async def _work(worker: Worker, *, once: bool, say: Callable[[str], None]) -> int:
    """Work until a signal says stop: then calls come home, and jobs are given back."""
    asked = False

    def stop() -> None:
        nonlocal asked
        flying = worker.in_flight
        waited = f"; {flying} calls in flight are waited for, Ctrl-C again drops them"
        dropped = f"{flying} calls in flight are dropped, and may be billed"
        say(dropped if asked else f"stopping: no more calls are made{waited * bool(flying)}")
        worker.stop(drop=asked)
        asked = True

    with handling_signals(stop, STOP_SIGNALS):
        if once:
            return await worker.run_until_idle()
        await worker.run()
    return 0


# `heretix jobs`: measurements for workers to make, as the web app submits them.

jobs_app = typer.Typer(help="Jobs that workers measure (`heretix worker`).", no_args_is_help=True)

JobArgument = Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")]
_NO_JOB = 'no job was left here yet; leave one with `heretix jobs submit "A claim."` first'


@jobs_app.command("submit")
@opt.takes_options
def submit(
    *,
    claims: Annotated[list[str], typer.Argument(help="Claims to measure.", metavar="CLAIM…")],
    sampling: opt.SamplingOptions,
    lenses: opt.LensOption = None,
    corpus: opt.CorpusOption = None,
    as_of: opt.AsOfOption = None,
    budget_usd: opt.BudgetOption = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The same key again gives the same job.")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Leave a measurement for a worker to make."""
    from heretix.accounts import LOCAL
    from heretix.config import parse_lenses
    from heretix.jobs import MeasureRequest

    given: dict[str, Any] = {
        **asdict(sampling),
        "claims": claims,
        "lenses": parse_lenses(lenses, with_documents=False) if lenses else None,
        "corpus": corpus,
        "as_of": as_of,
        "budget_usd": budget_usd,
    }
    request = MeasureRequest.parse({k: v for k, v in given.items() if v is not None})
    with _jobs(db, create=True) as jobs:
        _show(jobs.submit(LOCAL, request, key=key), as_json=as_json)


@jobs_app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option("--limit", "-n", help="Jobs.", min=1, max=500)] = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List jobs, the newest first."""
    from heretix.accounts import LOCAL
    from heretix.report.terminal import plain_table

    with _jobs(db) as jobs:
        found = jobs.list(by=LOCAL, limit=limit)
    if as_json:
        print_json([job.as_dict() for job in found])
        return
    rows = [
        (
            job.id,
            job.state.value,
            f"{job.progress.done:,}",
            f"{job.progress.total:,}" if job.progress.total else "",
            job.owner_name,
            job.title,
        )
        for job in found
    ]
    table = plain_table("job", "~state", "~samples", "~of", "~by", "~what", rows=rows)
    nothing = "no jobs; `heretix jobs submit` leaves one, and so does the web app"
    output.show(found, lambda _: table, as_json=False, empty=nothing)


@jobs_app.command("show")
def show(job: JobArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Show a job and what it has measured so far."""
    from heretix.accounts import LOCAL

    with _jobs(db) as jobs:
        found = jobs.get(job, by=LOCAL)
        runs = jobs.runs(job, by=LOCAL)
    if as_json:
        content = found.as_dict() | {"runs": [run.as_dict() for run in runs]}
        print_json(content)
        return
    _show(found, as_json=False)
    for run in runs:
        belief = "no estimate" if run.prob_true is None else f"p={run.prob_true:.3f}"
        name = run.lens if run.variant is None else f"{run.lens} {run.variant}"
        typer.echo(f"  {run.model} {name}: {belief}  heretix show {run.execution_id}")


@jobs_app.command("cancel")
def cancel(job: JobArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Stop a job. What was answered is kept."""
    from heretix.accounts import LOCAL

    with _jobs(db) as jobs:
        _show(jobs.cancel(job, by=LOCAL), as_json=as_json)


@jobs_app.command("resume")
def resume(
    job: JobArgument,
    budget_usd: opt.BudgetOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Have a job that failed or was cancelled go on where it was."""
    from heretix.accounts import LOCAL

    with _jobs(db) as jobs:
        _show(jobs.resume(job, by=LOCAL, budget_usd=budget_usd), as_json=as_json)


@contextlib.contextmanager
def _jobs(db: str | None, *, create: bool = False) -> Iterator[Jobs]:
    from heretix.jobs import Jobs

    with opt.open_store(db, create=create, absent=_NO_JOB) as store:
        yield Jobs(store, opt.read_settings(db))


def _show(job: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(job.as_dict())
        return
    progress = job.progress
    samples = f", {progress.done:,} of {progress.total:,} samples" if progress.total else ""
    stopping = ", stopping" if job.cancel_requested else ""
    typer.echo(f"{job.id}: {job.state.value}{stopping}{samples}")
    if job.kind == "episode":
        typer.echo(f"  {job.title}")
    if job.error is not None:
        typer.echo(f"  {job.error}")
    if job.episode is not None:
        typer.echo(f"  heretix episode show {job.episode}")


def publish(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Where the site goes: new, empty, or made by `publish`.", metavar="DIR"
        ),
    ],
    base_url: Annotated[
        str,
        typer.Option(
            "--base-url", help="Where it is going to stand: cards and citations then name it."
        ),
    ] = "",
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Write a static, searchable site of a store, to be put anywhere: it needs no server.

    One page a claim and a run, with cards, records, evidence, panels and episodes. Links are
    relative, nothing is loaded from elsewhere, and without scripts only the search is missing.
    People, jobs and the ledger are left out. A site that is there already is replaced as a whole.
    """
    from heretix.core.errors import ConfigError
    from heretix.core.event_loop import run_async
    from heretix.web.publish import publish as write_site

    if base_url and not base_url.startswith(("https://", "http://")):
        raise ConfigError(f"`--base-url` must begin with https:// or http://, got {base_url!r}")
    with opt.open_store(db) as store, output.err_console().status("publishing …") as status:
        made = run_async(
            write_site(
                store,
                opt.read_settings(db),
                folder,
                base_url=base_url,
                tell=lambda done, known: status.update(f"publishing: {done} of {known} files"),
            )
        )
    if as_json:
        print_json(
            {"folder": str(folder), "pages": made.pages, "files": made.files, "bytes": made.bytes}
        )
    else:
        output.say(f"wrote {made.pages} pages, {made.bytes:,} bytes; open {folder / 'index.html'}")
        output.say(f"cards of the findings, to share: {folder / 'share'}/*/*/card.png")


def demo(
    db: Annotated[
        str, typer.Option("--db", help="Store to fill: a path or a database URL.")
    ] = "runs/demo.sqlite",
    then_serve: Annotated[
        bool, typer.Option("--serve", help="Then serve it, like `heretix serve --open`.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", help="With --serve: port; 0 takes a free one.", min=0, max=65535
        ),
    ] = 8765,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="With --serve: open it in a browser.")
    ] = True,
    force: Annotated[
        bool,
        typer.Option("--force", help="Add it to a store that holds something; nothing is removed."),
    ] = False,
    embedded: Annotated[
        bool,
        typer.Option("--embedded/--no-embedded", help="Ask the embedded model too, if it is here."),
    ] = True,
    as_json: opt.JsonOption = False,
) -> None:
    """Fill a fresh store with a demonstration: claims, evidence, and an episode in each state.

    Everything is measured and played here, by the same parts as in earnest, with planted and
    made-up models (and the small embedded one, where it is installed). People, money and dates
    are made up, and every page says so. No key, no network. A store that holds the demonstration
    already is left as it is, and served if you like.
    """
    from heretix.web.demo import find_world

    settings = opt.read_settings(db)
    with opt.open_store(db, create=True) as store:
        if then_serve:
            # A port that is taken is told now, not after half a minute's work.
            with listening("127.0.0.1", port, store):
                pass
        world = None if force else find_world(store, settings)
        if world is not None:
            output.warn("the demonstration is there already", style="dim")
        else:
            world = _fill(store, settings, force=force, embedded=embedded)
    if as_json:
        print_json({"db": db, **world.as_dict()})
    else:
        states = ", ".join(f"{count} {state}" for state, count in world.episodes.items())
        console = output.console()
        for line in (
            f"{db} holds a demonstration. Nothing in it is a belief worth quoting.",
            f"{world.runs} runs in {world.jobs} jobs, {world.transfers} transfers of play money",
            f"episodes: {states}",
            f"people, made up: {', '.join(world.people)}",
            "",
            f"heretix serve --open --db {db}",
            f"heretix anomalies --db {db}",
            f"heretix episode list --db {db}",
            f"heretix explore leaderboard --db {db}",
        ):
            console.print(line, markup=False, soft_wrap=True)
    if then_serve:
        serve(port=port, open_browser=open_browser, db=db)


def _fill(store: Store, settings: Settings, *, force: bool, embedded: bool) -> World:
    from heretix.web.demo import fill

    try:
        with _watching_steps() as tell:
            return fill(store, settings, force=force, embedded=embedded, tell=tell)
    except KeyboardInterrupt:
        output.err_console().print(
            f"Stopped. {store.name} holds a part of the demonstration; delete it and start again.",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None


@contextlib.contextmanager
def _watching_steps() -> Iterator[Callable[[str], None]]:
    """Show a bar to whoever watches, and the steps as lines to whoever reads them later."""
    from rich import progress as bars

    from heretix.web.demo import STEPS

    console = output.err_console()
    if not console.is_terminal:
        yield lambda step: console.print(step, style="dim", markup=False)
        return
    columns = (bars.BarColumn(bar_width=24), bars.MofNCompleteColumn(), "{task.description}")
    with output.progress(*columns) as progress:
        task = progress.add_task("beginning", total=STEPS)
        yield lambda step: progress.update(task, advance=1, description=step)
