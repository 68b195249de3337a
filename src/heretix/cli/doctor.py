"""`heretix doctor`: is everything in place?"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json
from heretix.running import run_async

__all__ = ["doctor"]


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

    from heretix.measurement.health import State, examine
    from heretix.settings import Settings

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
