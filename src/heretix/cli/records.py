"""`heretix show`, `verify`, `runs` and `diff`: look at what was measured."""

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

__all__ = ["artifacts_of", "diff", "runs", "show", "verify"]

RefArgument = Annotated[
    str, typer.Argument(help="A run or execution id (a unique part will do), or an artifact file.")
]


def show(ref: RefArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Show a stored run or an artifact: belief, interval, templates, provenance."""
    from heretix.measurement.artifact import artifact_json
    from heretix.report.lenses import vector_view
    from heretix.report.terminal import run_view

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
    from heretix.report.terminal import runs_table
    from heretix.settings import Settings
    from heretix.store import Store

    with Store.open(db or Settings.from_env().db, create=False) as store:
        found = store.runs(limit=limit, search=search)
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
    from heretix.measurement.compare import compare
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
    from heretix.measurement.record import Artifact, RunRecord
    from heretix.measurement.verify import read_artifacts
    from heretix.settings import Settings
    from heretix.store import Store

    if Path(ref).is_file() or ref.endswith((".json", ".jsonl")):
        return read_artifacts(ref)
    with Store.open(db or Settings.from_env().db, create=False) as store:
        return [Artifact.of([RunRecord.model_validate_json(store.find(ref).record_json)])]


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
    from heretix.errors import RecordError

    records = _records(ref, db)
    if len(records) > 1:
        ids = ", ".join(record.execution_id for record in records)
        raise RecordError(f"`{ref}` holds {len(records)} runs; name one of them: {ids}")
    return records[0]
