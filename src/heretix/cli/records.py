"""`heretix show`, `verify`, `runs`, `diff`, `export` and `report`: look at what was measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import Artifact, RunRecord
    from heretix.store import Store

RefArgument = Annotated[
    str, typer.Argument(help="A run or execution id (a unique part will do), or an artifact file.")
]


def show(ref: RefArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Show a stored run or an artifact: belief, interval, templates, provenance."""
    from heretix.measurement.record import artifact_json
    from heretix.report.terminal import run_view, vector_view

    artifacts = read_refs([ref], db)
    if as_json:
        for artifact in artifacts:
            output.print_json_text(artifact_json(artifact))
        return
    _warn_of_changes(ref, [run for artifact in artifacts for run in artifact.runs])
    console = output.console()
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
    from heretix.studies.study import is_study, read_study, verify_study

    if is_study(ref):
        found = [verify_study(read_study(ref), _store_there(db))]
    else:
        found = [check for artifact in read_refs([ref], db) for check in verify_artifact(artifact)]
    if as_json:
        output.print_json([{**asdict(check), "ok": check.ok} for check in found])
    else:
        console = output.console()
        for check in found:
            console.print(verification_view(check))
    if not all(check.ok for check in found):
        raise typer.Exit(1)


def _store_there(db: str | None) -> Store | None:
    """Open the store where there is one: what a study names may be in it."""
    from heretix.core.errors import RecordError

    try:
        return opt.open_store(db)
    except RecordError:
        return None


def runs(
    search: Annotated[str | None, typer.Argument(help="Only claims with this text.")] = None,
    limit: opt.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List stored runs, newest first."""
    from heretix.report.terminal import runs_table
    from heretix.store.runs import select_runs

    with opt.open_store(db) as store:
        found = store.read(select_runs, limit=limit, search=search)
    which = f" whose claim has {search!r}" if search else ' yet; `heretix run "A claim."` makes one'
    width = output.console().width
    output.show(
        found,
        lambda listed: runs_table(listed, width=width),
        as_json=as_json,
        empty=f"no runs{which}",
    )


def diff(
    a: RefArgument, b: RefArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Compare two runs; paired by template when they used the same bank."""
    from heretix.measurement.verify import compare
    from heretix.report.terminal import difference_view

    one, other = _read_single(a, db), _read_single(b, db)
    comparison = compare(one, other)
    if as_json:
        output.print_json(comparison)
        return
    for ref, run in ((a, one), (b, other)):
        _warn_of_changes(ref, [run])
    output.console().print(difference_view(one, other, comparison))


def _read_single(ref: str, db: str | None) -> RunRecord:
    from heretix.core.errors import RecordError

    records = [run for artifact in read_refs([ref], db) for run in artifact.runs]
    if len(records) > 1:
        ids = ", ".join(record.execution_id for record in records)
        raise RecordError(f"`{ref}` holds {len(records)} runs; name one of them: {ids}")
    return records[0]


def read_refs(refs: Sequence[str], db: str | None) -> list[Artifact]:
    """Read the artifacts in files, and the records of stored runs."""
    from heretix.measurement.record import Artifact, RunRecord
    from heretix.measurement.verify import read_artifacts
    from heretix.store.runs import find_record

    artifacts = []
    for ref in refs:
        if Path(ref).is_file() or ref.endswith((".json", ".jsonl")):
            artifacts += read_artifacts(ref)
            continue
        with opt.open_store(db) as store:
            stored = store.read(find_record, ref)
        artifacts.append(Artifact.of([RunRecord.model_validate_json(stored.record_json)]))
    return artifacts


def _warn_of_changes(ref: str, records: Sequence[RunRecord]) -> None:
    """Say so where a record isn't as it was signed; what became of it, `verify` finds out."""
    from heretix.measurement.record import digest_of

    if any(digest_of(record) != record.sha256 for record in records):
        output.warn(
            f"NOT verified: {ref} was changed after it was written; `heretix verify {ref}` says "
            "where",
            style="bold red",
        )


# `heretix export`: runs, samples and transfers as tables for other tools.

export_app = typer.Typer(
    help="Tables for other tools: CSV, JSON Lines or Parquet.", no_args_is_help=True
)

_NO_TRANSFER: Final = (
    "no money was moved here yet; give somebody an account with `heretix ledger join NAME` first"
)

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="FILE.csv, FILE.jsonl or FILE.parquet; without it, JSON Lines here."
    ),
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


@export_app.command("executions", short_help="One row an invocation: belief, calls, tokens, cost.")
def executions(
    search: Annotated[
        str | None, typer.Argument(help="Only claims, models and ids with this text.")
    ] = None,
    out: OutOption = None,
    db: opt.DbOption = None,
) -> None:
    """One row an invocation, the history: claim, `claim_id`, belief, calls, tokens, cost."""
    _export("executions", search, out, db)


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

    from heretix.core.clock import SystemClock
    from heretix.economy.exchange import Exchange
    from heretix.report.export import export, format_of, write_export
    from heretix.store.runs import find_execution

    wanted = "jsonl" if out is None else format_of(out)
    with opt.open_store(db, absent=_NO_TRANSFER if table == "transfers" else None) as store:
        if table == "samples" and chosen is not None:
            chosen = store.read(find_execution, chosen).run_id
        if table == "transfers" and chosen is not None:
            # An id of no episode is a mistake, not an episode without transfers.
            Exchange(store, clock=SystemClock()).episode(chosen)
        pieces = export(store, table, wanted, chosen=chosen)
        if out is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            return
        with output.err_console().status(f"exporting {table}"):
            size = write_export(out, pieces)
    output.warn(f"wrote {out.name}, {size:,} bytes", style="")


def report(
    refs: Annotated[
        list[str],
        typer.Argument(
            help="Run or execution ids (a unique part will do), artifact files, or one study.",
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
    from heretix.core.errors import ConfigError
    from heretix.measurement.record import check_target

    suffix = out.suffix.lower()
    if suffix not in {".html", ".png", ".svg", ".pdf"}:
        raise ConfigError(f"`--out` must end in .html, .png, .svg or .pdf, got {out.name!r}")
    from heretix.studies.study import is_study

    if any(map(is_study, refs)):
        _report_study(refs, out, dark=dark, as_json=as_json)
        return
    artifacts = read_refs(refs, db)
    check_target(out, lines=False)
    with output.err_console().status("drawing …"):
        from heretix.report.charts.output import drawing_bytes, write_file
        from heretix.report.charts.theme import DARK, LIGHT
        from heretix.report.document import report_html, report_svg

        if suffix == ".html":
            content = report_html(artifacts).encode()
        else:
            sheet = report_svg(artifacts, theme=DARK if dark else LIGHT)
            content = drawing_bytes(sheet, suffix)
    write_file(out, content)
    count = sum(len(artifact.runs) for artifact in artifacts)
    if as_json:
        output.print_json({"out": str(out), "runs": count, "bytes": len(content)}, indent=None)
    else:
        typer.echo(f"{count} run{'' if count == 1 else 's'}, written to {out}")


def _report_study(refs: Sequence[str], out: Path, *, dark: bool, as_json: bool) -> None:
    from heretix.core.errors import ConfigError
    from heretix.measurement.record import check_target
    from heretix.report.charts.output import write_file
    from heretix.report.charts.theme import DARK, LIGHT
    from heretix.report.studies import study_report
    from heretix.studies.study import read_study

    if len(refs) > 1:
        raise ConfigError(f"`report` takes one study by itself, got {len(refs)} records")
    record = read_study(refs[0])
    check_target(out, lines=False)
    with output.err_console().status("drawing …"):
        content = study_report(record, out.suffix.lower(), theme=DARK if dark else LIGHT)
    write_file(out, content)
    said = {"out": str(out), "runs": len(record.runs), "bytes": len(content)}
    if as_json:
        output.print_json(said, indent=None)
    else:
        typer.echo(f"study of {len(record.runs)} runs, written to {out}")
