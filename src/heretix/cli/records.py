"""`heretix show`, `verify`, `runs`, `diff`, `export` and `report`: look at what was measured."""

from __future__ import annotations

import sys
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import Artifact, RunRecord
    from heretix.report.share import ShareCard
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


def verify(
    refs: Annotated[
        list[str],
        typer.Argument(
            help="Run or execution ids, artifact files (.json, .jsonl, .gz), a study, or `-`.",
            metavar="ID|FILE...",
        ),
    ],
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Derive everything in a record again, from the record alone, and say where it differs.

    Ends with 0 when all of it agrees, 1 when something doesn't.
    """
    from heretix.measurement.verify import verify_artifact
    from heretix.report.terminal import verification_view
    from heretix.studies.study import is_study, read_study, verify_study

    found = []
    for ref in refs:
        if is_study(ref):
            found.append(verify_study(read_study(ref), _store_there(db)))
        else:
            artifacts = read_refs([ref], db)
            found += [check for artifact in artifacts for check in verify_artifact(artifact)]
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
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Only of this model, as it is listed.")
    ] = None,
    lens: Annotated[str | None, typer.Option("--lens", help="Only under this lens.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only from this day or moment on (UTC).")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", help="Only from before this day or moment (UTC).")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List stored runs, newest first."""
    from heretix.report.terminal import runs_table
    from heretix.store.runs import RunFilter, select_runs

    wanted = RunFilter(
        search=search,
        model=model,
        lens=_read_lens(lens),
        tag=tag,
        since=_read_moment("--since", since),
        before=_read_moment("--before", before),
    )
    with opt.open_store(db) as store:
        found = store.read(select_runs, limit=limit, wanted=wanted)
    chosen = any(value is not None for value in astuple(wanted))
    which = " that fit all of this" if chosen else ' yet; `heretix run "A claim."` makes one'
    width = output.console().width
    output.show(
        found,
        lambda listed: runs_table(listed, width=width),
        as_json=as_json,
        empty=f"no runs{which}",
    )


def _read_lens(text: str | None) -> str | None:
    """Read the name of one lens; another would find nothing, as if nothing were stored."""
    from heretix.core.errors import ConfigError
    from heretix.core.lenses import LENSES

    if text is not None and text.upper() not in LENSES:
        raise ConfigError(f"`--lens` must be one of {', '.join(LENSES)}, got {text!r}")
    return text.upper() if text is not None else None


def _read_moment(option: str, text: str | None) -> str | None:
    """Read a day, or a moment, as records tell it; one without a zone is UTC."""
    from heretix.core.clock import utc_text
    from heretix.core.errors import ConfigError

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return utc_text(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as exc:
        raise ConfigError(
            f"`{option}` must be a day like 2026-11-18, or a moment like 2026-11-18T09:30, "
            f"got {text!r}"
        ) from exc


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
        if ref == "-" or Path(ref).is_file() or ref.endswith((".json", ".jsonl", ".gz")):
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

SearchArgument = Annotated[
    str | None, typer.Argument(help="Only claims, models and ids with this text.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="FILE.csv, FILE.jsonl or FILE.parquet; without it, JSON Lines here."
    ),
]


@export_app.command("runs", short_help="One row a run: claim, model, lens, belief, interval.")
def export_runs(
    search: SearchArgument = None, out: OutOption = None, db: opt.DbOption = None
) -> None:
    """One row a run: claim, model, lens, size, belief, interval, stability."""
    _export("runs", search, out, db)


@export_app.command("executions", short_help="One row an invocation: belief, calls, tokens, cost.")
def executions(
    search: SearchArgument = None, out: OutOption = None, db: opt.DbOption = None
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


@export_app.command("inspect", short_help="A run as a log of inspect_ai.")
def inspect_log(
    ref: RefArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="FILE.eval or FILE.json.")],
    db: opt.DbOption = None,
) -> None:
    """Write a run as a log of inspect_ai: an answer is a sample, the belief a metric."""
    from heretix.core.errors import ConfigError, MissingPartError
    from heretix.measurement.record import check_target

    if out.suffix not in {".eval", ".json"}:
        raise ConfigError(f"`--out` must end in .eval or .json, got {out.name!r}")
    check_target(out, lines=False)
    try:
        from heretix.evals import write_log
    except ImportError as exc:
        raise MissingPartError(
            "`export inspect` needs inspect_ai: `uv sync --extra inspect`, or `pip install "
            "'.[inspect]'` in the clone"
        ) from exc
    write_log(_read_single(ref, db), out)
    output.warn(f"wrote {out.name}", style="")


@export_app.command("training", short_help="One row an answer, as chat messages with the label.")
def training(
    search: SearchArgument = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="FILE.jsonl; without it, JSON Lines here."),
    ] = None,
    label: Annotated[
        str, typer.Option("--label", help="The column of the claims file that says what is true.")
    ] = "label",
    db: opt.DbOption = None,
) -> None:
    """One row an answer of a claim with a label: the messages, the answer, the label, the belief.

    JSON Lines with `messages`, as fine-tuning takes them. Answers that were dropped are left out.
    """
    from heretix.core.errors import ConfigError
    from heretix.report.export import read_training_pages, write_export, write_lines_of

    if out is not None and out.suffix.lower() not in {".jsonl", ".ndjson"}:
        raise ConfigError(f"`--out` must end in .jsonl, got {out.name!r}")
    size = 0
    with opt.open_store(db) as store:
        pieces = write_lines_of(read_training_pages(store, search, label))
        if out is None:
            for piece in pieces:
                size += sys.stdout.buffer.write(piece)
        else:
            with output.err_console().status("exporting"):
                size = write_export(out, pieces)
            output.warn(f"wrote {out.name}, {size:,} bytes", style="")
    if not size:
        output.warn(
            f"no answer to a claim with a column `{label}`: measure a claims file that has one, or "
            "name another with --label"
        )


def _export(table: str, chosen: str | None, out: Path | None, db: str | None) -> None:
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
            help="Run or execution ids (a unique part will do), artifact files; or one study, "
            "one episode (ep-…), one panel by its name or file.",
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
    if len(refs) == 1 and (shared := _find_shared(refs[0], db)) is not None:
        _report_shared(shared, out, dark=dark, as_json=as_json)
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


def _find_shared(ref: str, db: str | None) -> ShareCard | None:
    """Find the episode or the panel that a name or a panel's file means; None where it is none."""
    from heretix.report.share import share_episode, share_panel

    if Path(ref).is_file():
        if Path(ref).suffix.lower() not in {".yaml", ".yml"}:
            return None
        from heretix.studies.panel import load_panel

        ref = load_panel(Path(ref)).name
    with opt.open_store(db) as store:
        if ref.startswith("ep-"):
            from heretix.core.clock import SystemClock
            from heretix.economy.exchange import Exchange

            exchange = Exchange(store, clock=SystemClock())
            return share_episode(*exchange.outcome(ref), exchange.positions(ref))
        from heretix.store.panels import select_panel

        if store.read(select_panel, ref) is None:
            return None
        from heretix.studies.panel import read_panel

        return share_panel(read_panel(store, ref))


def _report_shared(shared: ShareCard, out: Path, *, dark: bool, as_json: bool) -> None:
    from heretix.measurement.record import check_target
    from heretix.report.charts.output import drawing_bytes, write_file
    from heretix.report.charts.theme import DARK, LIGHT
    from heretix.report.share import card_png, card_svg, write_share_html

    theme, suffix = DARK if dark else LIGHT, out.suffix.lower()
    check_target(out, lines=False)
    with output.err_console().status("drawing …"):
        if suffix == ".html":
            content = write_share_html(shared).encode()
        elif suffix == ".png":
            content = card_png(shared, theme=theme)
        else:
            content = drawing_bytes(card_svg(shared, theme=theme), suffix)
    write_file(out, content)
    if as_json:
        said = {"out": str(out), "sentence": shared.sentence, "bytes": len(content)}
        output.print_json(said, indent=None)
    else:
        typer.echo(f"{shared.kind} {shared.key}: {shared.sentence} Written to {out}")


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
