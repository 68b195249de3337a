"""`heretix batch`, and what `heretix run --batch` does: half the price, within a day."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json
from heretix.core.event_loop import run_async

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heretix.core.errors import HeretixError
    from heretix.measurement.batch import BatchView, Collection
    from heretix.measurement.record import Artifact, RunRecord
    from heretix.measurement.service import Measurement
    from heretix.store import Store

__all__ = ["app", "submit_run"]

app = typer.Typer(help="Batches at providers: half the price, within a day.", no_args_is_help=True)

_CLOSED_SHOWN = 10
_ID_SHOWN = len("batch-") + 8
"""As much of an id as a table has room for; it is enough to name a batch with."""
_NUMBERS = frozenset({"requests", "answered", "failed", "cost"})
_NO_BATCH = (
    'no batch was submitted here yet; submit one with `heretix run "A claim." --batch` first'
)
_FULL_VIEWS = 8
"""Up to this many runs are shown in full; more become a table."""

BatchArgument = Annotated[
    str | None, typer.Argument(help="A batch (a unique part will do); without one, all open ones.")
]


def submit_run(measurement: Measurement, *, out: Path | None, as_json: bool) -> NoReturn:
    """Submit what a measurement lacks, and say how to go on."""
    from heretix.core.errors import ConfigError
    from heretix.measurement.batch import BatchDesk, Submission, submit
    from heretix.store import Store

    if out is not None:
        raise ConfigError("`--out` has nothing to write yet; give it to `heretix batch collect`")
    if measurement.config.until_width is not None:
        raise ConfigError(
            "`--until-width` needs answers before it can ask for more; leave out it or `--batch`"
        )

    async def work(store: Store) -> Submission:
        async with BatchDesk(store, measurement.settings) as desk:
            return await submit(desk, measurement, observer=finished)

    finished = _Finished()
    _silence_retries()
    opt.warn_of_shortfall(measurement)
    with Store.open(measurement.settings.db) as store:
        submission = run_async(work(store))
        if as_json:
            content = {**asdict(submission), "records": finished.summaries}
            print_json(content)
        else:
            _show_records(finished, store)
            _say_submitted(submission.batches, submission.requests, submission.elsewhere)
    raise typer.Exit(finished.exit_code)


@app.command("status", short_help="Ask how batches are doing.")
def status(
    batch: BatchArgument = None, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Ask how batches are doing; find out about one whose submission was cut short.

    Without an argument: all open ones, and the last that are over.
    """
    from heretix.core.settings import Settings
    from heretix.measurement.batch import BatchDesk
    from heretix.store.batches import find_batch, select_closed_batches, select_open_batches

    async def work(store: Store) -> list[BatchView]:
        async with BatchDesk(store, Settings.from_env()) as desk:
            if batch is not None:
                known = [store.read(find_batch, batch)]
            else:
                known = store.read(select_open_batches)
                known += store.read(select_closed_batches, _CLOSED_SHOWN)
            return [await desk.look(one) if one.is_open else desk.view(one) for one in known]

    with _open(db) as store:
        views = run_async(work(store))
    if as_json:
        print_json([_as_dict(view) for view in views])
    else:
        _show_batches(views)
        if any(view.batch.is_open for view in views):
            opt.console().print("heretix batch collect stores what has come", style="dim")
    raise typer.Exit(_exit_code([view.trouble for view in views]))


@app.command("collect", short_help="Store what batches have brought, and write the records.")
def collect_batches(
    batch: BatchArgument = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Ask again until all of them have ended.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", help="With --wait: seconds between questions.", min=0.01)
    ] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the artifacts, one a line (.jsonl)."),
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Store what batches have brought, and write the records that it completes.

    It can be repeated as often as one likes: nothing is stored or counted twice.

    Exit codes: 0 all is there, 1 something is still open or has no estimate, 2 something to put
    right first, 3 the provider, the network or the store failed, 130 stopped.
    """
    from heretix.core.settings import Settings
    from heretix.measurement.batch import BatchDesk, collect
    from heretix.measurement.record import check_target, write_lines
    from heretix.store.batches import find_batch, select_open_batches

    if out is not None:
        check_target(out, lines=True)
    finished = _Finished()

    async def work(store: Store) -> Collection:
        async with BatchDesk(store, Settings.from_env()) as desk:
            if batch is not None:
                known = [store.read(find_batch, batch)]
            else:
                known = store.read(select_open_batches)
            return await collect(desk, known, observer=finished, every_s=every if wait else None)

    with _open(db) as store:
        try:
            collection = run_async(work(store))
        except KeyboardInterrupt:
            opt.err_console().print(
                "Stopped. Nothing is lost: the same command goes on.", style="yellow"
            )
            raise typer.Exit(130) from None
        if out is not None and finished.summaries:
            write_lines(out, finished.artifacts(store))
        if as_json:
            print_json(_report(collection, finished))
        else:
            _show_records(finished, store)
            _show_collection(collection)
    troubles = [*(view.trouble for view in collection.views), *collection.troubles]
    incomplete = bool(collection.open) or collection.waiting > 0
    raise typer.Exit(_exit_code(troubles) or int(incomplete) or finished.exit_code)


@app.command("cancel")
def cancel(
    batch: Annotated[str, typer.Argument(help="A batch; a unique part of its id will do.")],
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """End a batch early. What was answered until then is paid, and can be collected."""
    from heretix.core.settings import Settings
    from heretix.measurement.batch import BatchDesk
    from heretix.store.batches import find_batch

    async def work(store: Store) -> BatchView:
        async with BatchDesk(store, Settings.from_env()) as desk:
            return await desk.cancel(store.read(find_batch, batch))

    with _open(db) as store:
        view = run_async(work(store))
    if as_json:
        print_json(_as_dict(view))
    else:
        _show_batches([view])
        if view.batch.is_open:
            opt.console().print(
                f"heretix batch collect {view.batch.batch_id} keeps what was answered", style="dim"
            )
    raise typer.Exit(_exit_code([view.trouble]))


@dataclass
class _Finished:
    """An observer that keeps what records say in short; the store has the rest."""

    summaries: list[dict[str, Any]] = field(default_factory=list)

    def planned(self, *_: object) -> None:
        """Nothing to do."""

    sampled = shared = planned

    def finished(self, record: RunRecord) -> None:
        """Keep the name and the number."""
        self.summaries.append(
            {
                "execution_id": record.execution_id,
                "run_id": record.run_id,
                "claim": record.claim,
                "claim_id": record.claim_id,
                "model": record.model,
                "status": record.status,
                "prob_true_rpl": record.aggregates.prob_true_rpl,
                "ci95": record.aggregates.ci95,
                "cost_usd": record.usage.cost_usd,
            }
        )

    @property
    def exit_code(self) -> int:
        return int(any(summary["status"] != "ok" for summary in self.summaries))

    def records(self, store: Store) -> Iterator[RunRecord]:
        from heretix.measurement.record import RunRecord
        from heretix.store.runs import find_record

        for summary in self.summaries:
            stored = store.read(find_record, summary["execution_id"])
            yield RunRecord.model_validate_json(stored.record_json)

    def artifacts(self, store: Store) -> Iterator[Artifact]:
        from heretix.measurement.record import Artifact

        return (Artifact.of([record]) for record in self.records(store))


def _silence_retries() -> None:
    """No log lines of the retry library: what failed in the end is told."""
    import stamina.instrumentation

    stamina.instrumentation.set_on_retry_hooks([])


def _open(db: str | None) -> Store:
    from heretix.core.settings import Settings
    from heretix.store import Store

    _silence_retries()
    return Store.open(db or Settings.from_env().db, create=False, absent=_NO_BATCH)


def _exit_code(troubles: list[HeretixError | None]) -> int:
    return max((trouble.exit_code for trouble in troubles if trouble is not None), default=0)


def _say_submitted(batches: list[str], requests: int, elsewhere: int) -> None:
    console = opt.console()
    if batches:
        what = "a batch" if len(batches) == 1 else f"{len(batches)} batches"
        console.print(f"submitted {requests:,} samples in {what}, at the batch price:")
        for batch_id in batches:
            console.print(f"  {batch_id}")
    if elsewhere:
        console.print(f"{elsewhere:,} samples are on their way already, and weren't sent again")
    if batches or elsewhere:
        console.print("They come within a day. This can be closed; go on with", style="dim")
        console.print("  heretix batch status           how far they are", style="dim")
        console.print(
            "  heretix batch collect --wait   store them, and see the results", style="dim"
        )


def _show_records(finished: _Finished, store: Store) -> None:
    from heretix.report.terminal import run_headline, runs_table
    from heretix.store.runs import select_runs

    console = opt.console()
    if len(finished.summaries) > _FULL_VIEWS:
        console.print(runs_table(store.read(select_runs, limit=20), width=console.width))
        console.print(f"{len(finished.summaries):,} runs measured; the latest are shown.")
        return
    for record in finished.records(store):
        console.print(run_headline(record))
        console.print(f"heretix show {record.execution_id}", style="dim")
        console.print()


def _show_collection(collection: Collection) -> None:
    console = opt.console()
    if collection.views:
        _show_batches(collection.views)
    elif not collection.finished:
        console.print("no open batches")
    if collection.waiting:
        console.print(
            f"{collection.waiting:,} runs lack samples that no batch brings; "
            "the command that began them gets the rest"
        )
    for trouble in collection.troubles:
        opt.err_console().print(f"error: {trouble}", style="red", markup=False)
    if collection.open:
        console.print("still open; collect again later, or with --wait", style="dim")


def _show_batches(views: list[BatchView]) -> None:
    from rich.table import Table

    console = opt.console()
    if not views:
        console.print("no batches; `heretix run --batch` submits one")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("batch", "model", "state", "requests", "answered", "failed", "cost", "submitted"):
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    for view in views:
        batch, counts = view.batch, view.state.counts if view.state else None
        collected = not batch.is_open or counts is None
        answered = view.usage.answered if collected or counts is None else counts.succeeded
        failed = view.usage.failed if collected or counts is None else counts.failed
        table.add_row(
            batch.batch_id[:_ID_SHOWN],
            batch.model,
            view.state.status if view.state and batch.is_open else batch.state,
            f"{batch.requests:,}",
            f"{answered:,}",
            f"{failed:,}",
            _cost(view),
            batch.submitted_at[:16].replace("T", " "),
        )
    console.print(table)
    for view in views:
        for words in (view.batch.note, view.trouble):
            if words:
                console.print(
                    f"{view.batch.batch_id[:_ID_SHOWN]}: {words}", style="yellow", markup=False
                )


def _cost(view: BatchView) -> str:
    if view.cost_usd is not None:
        return f"${view.cost_usd:.4f}"
    return "unknown" if view.usage.answered else ""


def _report(collection: Collection, finished: _Finished) -> dict[str, Any]:
    return {
        "batches": [_as_dict(view) for view in collection.views],
        "records": finished.summaries,
        "open": len(collection.open),
        "waiting": collection.waiting,
        "troubles": [str(trouble) for trouble in collection.troubles],
    }


def _as_dict(view: BatchView) -> dict[str, Any]:
    counts = view.state.counts if view.state else None
    return {
        **asdict(view.batch),
        "provider_status": view.state.status if view.state else None,
        "provider_counts": asdict(counts) if counts else None,
        "collected": asdict(view.usage),
        "cost_usd": view.cost_usd,
        "trouble": None if view.trouble is None else str(view.trouble),
    }
