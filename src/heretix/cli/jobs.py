"""`heretix jobs`: measurements for workers to make, as the web app submits them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json

if TYPE_CHECKING:
    from heretix.jobs import Job, Jobs

__all__ = ["app"]

app = typer.Typer(help="Jobs that workers measure (`heretix worker`).", no_args_is_help=True)

JobArgument = Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")]
BudgetOption = Annotated[
    float | None, typer.Option("--budget-usd", help="Stop when this much is spent.")
]
_NO_JOB = 'no job was left here yet; leave one with `heretix jobs submit "A claim."` first'


@app.command("submit")
def submit(
    claims: Annotated[list[str], typer.Argument(help="Claims to measure.", metavar="CLAIM…")],
    model: opt.ModelOption = None,
    lenses: opt.LensOption = None,
    K: opt.KOption = None,
    R: opt.ROption = None,
    T: opt.TOption = None,
    B: opt.BOption = None,
    seed: opt.SeedOption = None,
    corpus: opt.CorpusOption = None,
    as_of: opt.AsOfOption = None,
    budget_usd: BudgetOption = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The same key again gives the same job.")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Leave a measurement for a worker to make."""
    from heretix.jobs import MeasureRequest
    from heretix.people import LOCAL

    given: dict[str, Any] = {
        "claims": claims,
        "models": model,
        "lenses": opt.lens_names(lenses, with_documents=False) if lenses else None,
        "K": K,
        "R": R,
        "T": T,
        "B": B,
        "seed": seed,
        "corpus": corpus,
        "as_of": as_of,
        "budget_usd": budget_usd,
    }
    request = MeasureRequest.parse({k: v for k, v in given.items() if v is not None})
    with _jobs(db, create=True) as jobs:
        _show(jobs.submit(LOCAL, request, key=key), as_json=as_json)


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option("--limit", "-n", help="Jobs.", min=1, max=500)] = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List jobs, the newest first."""
    from rich.markup import escape
    from rich.table import Table

    from heretix.people import LOCAL

    with _jobs(db) as jobs:
        found = jobs.list(by=LOCAL, limit=limit)
    if as_json:
        print_json([job.as_dict() for job in found])
        return
    if not found:
        typer.echo("no jobs; `heretix jobs submit` leaves one, and so does the web app")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("job", "state", "samples", "of", "by", "what"):
        table.add_column(column, no_wrap=column == "job")
    for job in found:
        table.add_row(
            job.id,
            job.state.value,
            f"{job.progress.done:,}",
            f"{job.progress.total:,}" if job.progress.total else "",
            escape(job.owner_name),
            escape(job.title),
        )
    opt.console().print(table)


@app.command("show")
def show(job: JobArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Show a job and what it has measured so far."""
    from heretix.people import LOCAL

    with _jobs(db) as jobs:
        found = jobs.get(job, by=LOCAL)
        runs = jobs.runs(job, by=LOCAL)
    if as_json:
        content = found.as_dict() | {"runs": [run.as_dict() for run in runs]}
        print_json(content)
        return
    _show(found, as_json=False)
    for run in runs:
        belief = "no estimate" if run.prob_true is None else f"p={run.prob_true:.3f}"
        name = run.lens if run.variant is None else f"{run.lens} {run.variant}"
        typer.echo(f"  {run.model} {name}: {belief}  heretix show {run.execution_id}")


@app.command("cancel")
def cancel(job: JobArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Stop a job. What was answered is kept."""
    from heretix.people import LOCAL

    with _jobs(db) as jobs:
        _show(jobs.cancel(job, by=LOCAL), as_json=as_json)


@app.command("resume")
def resume(
    job: JobArgument,
    budget_usd: BudgetOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Have a job that failed or was cancelled go on where it was."""
    from heretix.people import LOCAL

    with _jobs(db) as jobs:
        _show(jobs.resume(job, by=LOCAL, budget_usd=budget_usd), as_json=as_json)


@contextmanager
def _jobs(db: str | None, *, create: bool = False) -> Iterator[Jobs]:
    from heretix.jobs import Jobs
    from heretix.settings import Settings
    from heretix.store import Store

    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    with Store.open(settings.db, create=create, absent=_NO_JOB) as store:
        yield Jobs(store, settings)


def _show(job: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(job.as_dict())
        return
    progress = job.progress
    samples = f", {progress.done:,} of {progress.total:,} samples" if progress.total else ""
    stopping = ", stopping" if job.cancel_requested else ""
    typer.echo(f"{job.id}: {job.state.value}{stopping}{samples}")
    if job.kind == "episode":
        typer.echo(f"  {job.title}")
    if job.error is not None:
        typer.echo(f"  {job.error}")
    if job.episode is not None:
        typer.echo(f"  heretix episode show {job.episode}")
