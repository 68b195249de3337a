"""`heretix demo`: a small world to look around in, made here and marked as a demonstration."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heretix.web.demo.world import World

__all__ = ["demo"]


def demo(
    db: Annotated[
        str, typer.Option("--db", help="Store to fill: a path or a database URL.")
    ] = "runs/demo.sqlite",
    serve: Annotated[
        bool, typer.Option("--serve", help="Then serve it, like `heretix serve --open`.")
    ] = False,
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
    are made up, and every page says so. No key, no network.
    """
    from heretix.settings import Settings
    from heretix.store import Store
    from heretix.web.demo.world import fill

    settings = replace(Settings.from_env(), db=db)
    with Store.open(db) as store, _told() as tell:
        world = fill(store, settings, force=force, embedded=embedded, tell=tell)
    if as_json:
        typer.echo(json.dumps({"db": db, **world.as_dict()}, indent=2, ensure_ascii=False))
    else:
        _show(world, db)
    if serve:
        from heretix.cli.serve import serve as serve_store

        serve_store(open_browser=True, db=db)


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
