"""`heretix demo`: a small world to look around in, made here and marked as a demonstration."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heretix.settings import Settings
    from heretix.store import Store
    from heretix.web.demo.world import World

__all__ = ["demo"]


def demo(
    db: Annotated[
        str, typer.Option("--db", help="Store to fill: a path or a database URL.")
    ] = "runs/demo.sqlite",
    serve: Annotated[
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
    from heretix.settings import Settings
    from heretix.store import Store
    from heretix.web.demo.world import world_in

    settings = replace(Settings.from_env(), db=db)
    with Store.open(db) as store:
        if serve:
            _try_port(store, port)
        world = None if force else world_in(store, settings)
        if world is not None:
            opt.err_console().print("the demonstration is there already", style="dim")
        else:
            world = _filled(store, settings, force=force, embedded=embedded)
    if as_json:
        print_json({"db": db, **world.as_dict()})
    else:
        _show(world, db)
    if serve:
        from heretix.cli.serve import serve as serve_store

        serve_store(port=port, open_browser=open_browser, db=db)


def _try_port(store: Store, port: int) -> None:
    """A port that is taken is told now, not after half a minute's work."""
    from heretix.cli.serve import listening

    with listening("127.0.0.1", port, store):
        pass


def _filled(store: Store, settings: Settings, *, force: bool, embedded: bool) -> World:
    from heretix.web.demo.world import fill

    try:
        with _told() as tell:
            return fill(store, settings, force=force, embedded=embedded, tell=tell)
    except KeyboardInterrupt:
        opt.err_console().print(
            f"Stopped. {store.name} holds a part of the demonstration; delete it and start again.",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None


@contextmanager
def _told() -> Iterator[Callable[[str], None]]:
    """A bar for whoever watches; the steps as lines for whoever reads them later."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from heretix.web.demo.world import STEPS

    console = opt.err_console()
    if not console.is_terminal:
        yield lambda step: console.print(step, style="dim", markup=False)
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("beginning", total=STEPS)
        yield lambda step: progress.update(task, advance=1, description=step)


def _show(world: World, db: str) -> None:
    console = opt.console()
    states = ", ".join(f"{count} {state}" for state, count in world.episodes.items())
    lines = (
        f"{db} holds a demonstration. Nothing in it is a belief worth quoting.",
        f"{world.runs} runs in {world.jobs} jobs, {world.transfers} transfers of play money",
        f"episodes: {states}",
        f"people, made up: {', '.join(world.people)}",
        "",
        f"heretix serve --open --db {db}",
        f"heretix anomalies --db {db}",
        f"heretix episode list --db {db}",
        f"heretix explore leaderboard --db {db}",
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
