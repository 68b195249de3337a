"""`heretix lake` and `heretix store`: Parquet files to ask in SQL, and stores made smaller."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import options as opt
from heretix.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heretix.lake.files import Lake

lake_app = typer.Typer(
    help="A lake of samples: sealed Parquet files, asked in SQL.",
    no_args_is_help=True,
)
store_app = typer.Typer(help="The database: move old samples to a lake.", no_args_is_help=True)

LakeArgument = Annotated[
    str | None,
    typer.Argument(
        help="A folder or s3://BUCKET/PREFIX; without it, HERETIX_LAKE.", metavar="LAKE"
    ),
]
LakeOption = Annotated[
    str | None,
    typer.Option("--lake", help="A folder or s3://…; without it, HERETIX_LAKE.", metavar="LAKE"),
]
_SHOWN_ROWS = 50


@lake_app.command("write", short_help="Append everything that was measured to a lake.")
def write(
    lake: LakeArgument = None, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Append everything that was measured to a lake; what it has already is left as it is."""
    from heretix.core.settings import Settings
    from heretix.lake.write import write_lake
    from heretix.store import Store

    target = _lake(lake)
    with Store.open(db or Settings.from_env().db, create=False) as store, _progress() as progress:
        done = write_lake(store, target, progress=progress)
    _tell(
        asdict(done),
        f"{done.samples:,} samples of {done.executions:,} executions in {done.files} new files, "
        f"{done.bytes:,} bytes",
        done.skipped,
        as_json=as_json,
    )


@lake_app.command("verify")
def verify(
    lake: LakeArgument = None,
    records: Annotated[
        bool, typer.Option("--records", help="Also make every record again, and verify it.")
    ] = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Hash every file and compare with the manifest. Ends with 1 when something was changed."""
    from heretix.lake.verify import verify_lake

    target = _lake(lake)
    with _progress() as progress:
        found = verify_lake(target, records=records, progress=progress)
    if as_json:
        output.print_json({**asdict(found), "ok": found.ok})
    else:
        for name, problem in found.problems.items():
            output.say(f"{name} {problem}")
        for name in found.unlisted:
            output.say(f"{name} is named by no manifest: a writer was killed")
        made = f", {found.records:,} records made again" if records else ""
        verdict = "verified" if found.ok else f"{len(found.problems)} problems"
        output.say(
            f"{verdict}: {found.files} files, {found.rows:,} rows, {found.bytes:,} bytes{made}"
        )
    if not found.ok:
        raise typer.Exit(1)


@lake_app.command("query")
def query(
    sql: Annotated[str, typer.Argument(help="A SELECT over samples, runs, claims and models.")],
    lake: LakeOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="FILE.csv, FILE.jsonl or FILE.parquet.")
    ] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Ask a lake in SQL (DuckDB). It can read the views, and nothing else of this machine."""
    from heretix.lake.query import query as ask
    from heretix.report.export import format_of, write_export, write_rows

    wanted = None if out is None else format_of(out)
    with _waiting("asking …"):
        table = ask(_lake(lake), sql)
    if out is not None and wanted is not None:
        size = write_export(out, write_rows(wanted, table.schema, iter([table.to_pylist()])))
        output.warn(f"wrote {out.name}, {table.num_rows:,} rows, {size:,} bytes")
    elif as_json:
        output.print_json(table.to_pylist())
    else:
        _show(table)


@lake_app.command("compact")
def compact(lake: LakeArgument = None, as_json: opt.JsonOption = False) -> None:
    """Merge small files of a lake, and delete what killed writers left."""
    from heretix.lake.write import compact_lake

    target = _lake(lake)
    with _progress() as progress:
        done = compact_lake(target, progress=progress)
    _tell(asdict(done), f"{done.files} merged files, {done.bytes:,} bytes", {}, as_json=as_json)


@lake_app.command("export")
def export(
    ref: Annotated[str, typer.Argument(help="An execution id.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the artifact goes.")],
    lake: LakeOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Make an artifact again from a lake alone, for `heretix verify`."""
    from heretix.lake.read import LakeReader
    from heretix.measurement.record import Artifact, check_target, write_artifact

    check_target(out, lines=False)
    record = LakeReader(_lake(lake)).find_record(ref)
    write_artifact(out, Artifact.of([record]))
    _tell(
        {"execution_id": record.execution_id, "out": str(out), "sha256": record.sha256},
        f"{record.execution_id}, written to {out}",
        {},
        as_json=as_json,
    )


@store_app.command("compact")
def compact_database(
    lake: LakeOption = None,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only what finished this long ago: 36h, 30d.")
    ] = "30d",
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Move old samples and records from the database to a lake.

    Look-ups go on finding them there: nothing is paid for twice. Lists and summaries stay.
    """
    from heretix.core.clock import parse_duration_ms, utc_text
    from heretix.core.errors import StoreReadOnlyError
    from heretix.core.settings import Settings
    from heretix.lake.write import compact_store
    from heretix.store import Store

    before = utc_text(time.time() - parse_duration_ms("--older-than", older_than) / 1000)
    target = _lake(lake)
    with Store.open(db or Settings.from_env().db, create=False) as store, _progress() as progress:
        if not store.writable:
            raise StoreReadOnlyError(
                f"`{store.name}` can be read only, and compacting has to write to it; check who may"
            )
        done = compact_store(store, target, before=before, progress=progress)
        freed = store.shrink() if done.moved_executions else 0
    _tell(
        {**asdict(done), "freed_bytes": freed},
        f"{done.moved_samples:,} samples of {done.moved_executions:,} executions moved to "
        f"{done.lake}; {freed:,} bytes freed",
        done.skipped,
        as_json=as_json,
    )


def _lake(given: str | None) -> Lake:
    from heretix.core.settings import Settings
    from heretix.lake.files import Lake

    return Lake(given or Settings.from_env().lake or "")


def _tell(
    content: dict[str, Any], sentence: str, skipped: dict[str, str], *, as_json: bool
) -> None:
    if as_json:
        output.print_json(content)
        return
    output.say(sentence)
    for name, reason in skipped.items():
        output.warn(f"{name} stays: {reason}")


def _show(table: Any) -> None:
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for name in table.column_names:
        shown.add_column(name, overflow="fold")
    for row in table.slice(0, _SHOWN_ROWS).to_pylist():
        shown.add_row(*("" if value is None else _text(value) for value in row.values()))
    console = output.console()
    console.print(shown, markup=False)
    if table.num_rows > _SHOWN_ROWS:
        output.warn(f"{_SHOWN_ROWS} of {table.num_rows:,} rows; --json or --out has all")


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _waiting(what: str) -> Iterator[None]:
    with output.err_console().status(what):
        yield


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """Show how far it is, now and then."""
    shown_at = time.monotonic()
    with output.err_console().status("reading …") as status:

        def tell(what: str, count: int) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= 0.5:
                shown_at = time.monotonic()
                status.update(f"{count:,} {what} …")

        yield tell
