"""A command: a function, as typer takes it; a group is a `typer.Typer`."""

from typing import Annotated

import typer


def greet(claim: Annotated[str, typer.Argument(help="The claim.")]) -> None:
    """Greet a claim."""
    typer.echo(f"Hello, {claim}")
