"""`heretix export`: runs, samples and transfers as tables for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt

if TYPE_CHECKING:
    from heretix.store import Store

__all__ = ["app"]

app = typer.Typer(help="Tables for other tools: JSON Lines or Parquet.", no_args_is_help=True)

_NO_TRANSFER = (
    "no money was moved here yet; give somebody an account with `heretix ledger join NAME` first"
)

OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="FILE.jsonl or FILE.parquet; without it, JSON Lines here."),
]


@app.command("runs", short_help="One row a run: claim, model, lens, belief, interval.")
def runs(
    search: Annotated[
        str | None, typer.Argument(help="Only claims, models and ids with this text.")
    ] = None,
    out: OutOption = None,
    db: opt.DbOption = None,
) -> None:
    """One row a run: claim, model, lens, size, belief, interval, stability."""
    _export("runs", search, out, db)


@app.command("samples", short_help="One row a sample: the wording, the answer, what was read.")
def samples(
    run_id: Annotated[str | None, typer.Argument(help="Only those of this run.")] = None,
    out: OutOption = None,
    db: opt.DbOption = None,
) -> None:
    """One row a sample: the wording, the raw answer, and what was read from it."""
    _export("samples", run_id, out, db)


@app.command("transfers")
def transfers(
    episode: Annotated[str | None, typer.Argument(help="Only those of this episode.")] = None,
    out: OutOption = None,
    db: opt.DbOption = None,
) -> None:
    """One row a transfer of the ledger, in the order of its chain."""
    _export("transfers", episode, out, db)


def _export(table: str, chosen: str | None, out: Path | None, db: str | None) -> None:
    import sys

    from heretix.report.export import export, format_of, write_export
    from heretix.settings import Settings
    from heretix.store import Store
    from heretix.store.migration import NOTHING_MEASURED

    wanted = "jsonl" if out is None else format_of(out)
    absent = _NO_TRANSFER if table == "transfers" else NOTHING_MEASURED
    with Store.open(db or Settings.from_env().db, create=False, absent=absent) as store:
        if table == "samples" and chosen is not None:
            chosen = store.started(chosen).run_id
        if table == "transfers" and chosen is not None:
            _require_episode(store, chosen)
        pieces = export(store, table, wanted, chosen=chosen)
        if out is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            return
        with opt.err_console().status(f"exporting {table}"):
            size = write_export(out, pieces)
    opt.err_console().print(f"wrote {out.name}, {size:,} bytes", markup=False)


def _require_episode(store: Store, episode: str) -> None:
    """An id of no episode is a mistake, not an episode without transfers."""
    from heretix.economy.clock import SystemClock
    from heretix.economy.exchange import Exchange

    Exchange(store, clock=SystemClock()).episode(episode)
