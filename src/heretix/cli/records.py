"""`heretix show`, `verify`, `runs`, `diff`, `export` and `report`: look at what was measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json, print_json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import Artifact, RunRecord
    from heretix.store import Store

# `heretix show`, `verify`, `runs` and `diff`: look at what was measured.

RefArgument = Annotated[
    str, typer.Argument(help="A run or execution id (a unique part will do), or an artifact file.")
]


def show(ref: RefArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Show a stored run or an artifact: belief, interval, templates, provenance."""
    from heretix.measurement.record import artifact_json
    from heretix.report.terminal import run_view, vector_view

    artifacts = artifacts_of(ref, db)
    if as_json:
        for artifact in artifacts:
            print_json_text(artifact_json(artifact))
        return
    _warn_of_changes(ref, [run for artifact in artifacts for run in artifact.runs])
    console = opt.console()
    for artifact in artifacts:
        if artifact.lenses is not None:
            console.print(vector_view(artifact))
            console.print()
        for record in artifact.runs:
            console.print(run_view(record))
            console.print()


def verify(ref: RefArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Derive everything in a record again, from the record alone, and say where it differs.

    Ends with 0 when all of it agrees, 1 when something doesn't.
    """
    from heretix.measurement.verify import verify_artifact
    from heretix.report.terminal import verification_view

    found = [
        verification
        for artifact in artifacts_of(ref, db)
        for verification in verify_artifact(artifact)
    ]
    if as_json:
        content = [{**asdict(verification), "ok": verification.ok} for verification in found]
        print_json(content, default=str)
    else:
        console = opt.console()
        for verification in found:
            console.print(verification_view(verification))
    if not all(verification.ok for verification in found):
        raise typer.Exit(1)


def runs(
    search: Annotated[str | None, typer.Argument(help="Only claims with this text.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many.", min=1)] = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List stored runs, newest first."""
    from heretix.core.settings import Settings
    from heretix.report.terminal import runs_table
    from heretix.store import Store
    from heretix.store.runs import select_runs

    with Store.open(db or Settings.from_env().db, create=False) as store:
        found = store.read(select_runs, limit=limit, search=search)
    if as_json:
        print_json([asdict(run) for run in found])
    elif found:
        console = opt.console()
        console.print(runs_table(found, width=console.width))
    else:
        which = (
            f" whose claim has {search!r}" if search else ' yet; `heretix run "A claim."` makes one'
        )
        opt.console().print(f"no runs{which}", markup=False)


def diff(
    a: RefArgument, b: RefArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Compare two runs; paired by template when they used the same bank."""
    from heretix.measurement.verify import compare
    from heretix.report.terminal import difference_view

    one, other = _single(a, db), _single(b, db)
    comparison = compare(one, other)
    if as_json:
        print_json(asdict(comparison))
        return
    for ref, run in ((a, one), (b, other)):
        _warn_of_changes(ref, [run])
    opt.console().print(difference_view(one, other, comparison.difference))


def _records(ref: str, db: str | None) -> list[RunRecord]:
    return [run for artifact in artifacts_of(ref, db) for run in artifact.runs]


def artifacts_of(ref: str, db: str | None) -> list[Artifact]:
    """The artifacts in a file, or the record of a stored run."""
    from heretix.core.settings import Settings
    from heretix.measurement.record import Artifact, RunRecord
    from heretix.measurement.verify import read_artifacts
    from heretix.store import Store
    from heretix.store.runs import find_record

    if Path(ref).is_file() or ref.endswith((".json", ".jsonl")):
        return read_artifacts(ref)
    with Store.open(db or Settings.from_env().db, create=False) as store:
        return [
            Artifact.of([RunRecord.model_validate_json(store.read(find_record, ref).record_json)])
        ]


def _warn_of_changes(ref: str, records: Sequence[RunRecord]) -> None:
    """Say so where a record isn't as it was signed; what became of it, `verify` finds out."""
    from heretix.measurement.record import digest_of

    if any(digest_of(record) != record.sha256 for record in records):
        opt.err_console().print(
            f"NOT verified: {ref} was changed after it was written; `heretix verify {ref}` says "
            "where",
            style="bold red",
            markup=False,
        )


def _single(ref: str, db: str | None) -> RunRecord:
    from heretix.core.errors import RecordError

    records = _records(ref, db)
    if len(records) > 1:
        ids = ", ".join(record.execution_id for record in records)
        raise RecordError(f"`{ref}` holds {len(records)} runs; name one of them: {ids}")
    return records[0]


# `heretix export`: runs, samples and transfers as tables for other tools.

export_app = typer.Typer(
    help="Tables for other tools: JSON Lines or Parquet.", no_args_is_help=True
)

_NO_TRANSFER = (
    "no money was moved here yet; give somebody an account with `heretix ledger join NAME` first"
)

OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="FILE.jsonl or FILE.parquet; without it, JSON Lines here."),
]


@export_app.command("runs", short_help="One row a run: claim, model, lens, belief, interval.")
def export_runs(
    search: Annotated[
        str | None, typer.Argument(help="Only claims, models and ids with this text.")
    ] = None,
    out: OutOption = None,
    db: opt.DbOption = None,
) -> None:
    """One row a run: claim, model, lens, size, belief, interval, stability."""
    _export("runs", search, out, db)


@export_app.command(
    "samples", short_help="One row a sample: the wording, the answer, what was read."
)
def samples(
    run_id: Annotated[str | None, typer.Argument(help="Only those of this run.")] = None,
    out: OutOption = None,
    db: opt.DbOption = None,
) -> None:
    """One row a sample: the wording, the raw answer, and what was read from it."""
    _export("samples", run_id, out, db)


@export_app.command("transfers")
def transfers(
    episode: Annotated[str | None, typer.Argument(help="Only those of this episode.")] = None,
    out: OutOption = None,
    db: opt.DbOption = None,
) -> None:
    """One row a transfer of the ledger, in the order of its chain."""
    _export("transfers", episode, out, db)


def _export(table: str, chosen: str | None, out: Path | None, db: str | None) -> None:
    import sys

    from heretix.core.settings import Settings
    from heretix.report.export import export, format_of, write_export
    from heretix.store import Store
    from heretix.store.db import NOTHING_MEASURED
    from heretix.store.runs import find_execution

    wanted = "jsonl" if out is None else format_of(out)
    absent = _NO_TRANSFER if table == "transfers" else NOTHING_MEASURED
    with Store.open(db or Settings.from_env().db, create=False, absent=absent) as store:
        if table == "samples" and chosen is not None:
            chosen = store.read(find_execution, chosen).run_id
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
    from heretix.core.clock import SystemClock
    from heretix.economy.exchange import Exchange

    Exchange(store, clock=SystemClock()).episode(episode)


# `heretix report`: what was measured, as a page or a picture to pass on.


def report(
    refs: Annotated[
        list[str],
        typer.Argument(
            help="Run or execution ids (a unique part will do), or artifact files.",
            metavar="ID|FILE...",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to: .html, .png, .svg or .pdf.")],
    dark: Annotated[
        bool, typer.Option("--dark", help="Pictures on dark paper; pages follow their reader.")
    ] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Write a report of one or more records: charts, how the numbers were made, where from.

    .html is the whole report in one file: it opens offline, runs no script, prints, and holds
    every answer. .png, .svg and .pdf are one sheet with the charts and the method; the PDF has a
    single page of the sheet's own size (for pages of paper, print the HTML). Several records
    stand side by side: models, lenses, claims, or one recipe over time.
    """
    from heretix.measurement.record import check_target

    _check_format(out)
    artifacts = [artifact for ref in refs for artifact in artifacts_of(ref, db)]
    check_target(out, lines=False)
    with opt.err_console().status("drawing …"):
        content = _content(artifacts, out.suffix.lower(), dark=dark)
    from heretix.report.charts.output import write_file

    write_file(out, content)
    runs = sum(len(artifact.runs) for artifact in artifacts)
    if as_json:
        print_json({"out": str(out), "runs": runs, "bytes": len(content)}, indent=None)
    else:
        typer.echo(f"{runs} run{'' if runs == 1 else 's'}, written to {out}")


def _check_format(out: Path) -> None:
    from heretix.core.errors import ConfigError

    if out.suffix.lower() not in {".html", ".png", ".svg", ".pdf"}:
        raise ConfigError(f"`--out` must end in .html, .png, .svg or .pdf, got {out.name!r}")


def _content(artifacts: Sequence[Artifact], suffix: str, *, dark: bool) -> bytes:
    from heretix.report.charts.output import drawing_bytes
    from heretix.report.charts.theme import DARK, LIGHT
    from heretix.report.document import report_html, report_svg

    if suffix == ".html":
        return report_html(artifacts).encode()
    return drawing_bytes(report_svg(artifacts, theme=DARK if dark else LIGHT), suffix)
