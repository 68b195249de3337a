"""`heretix batch`, and what `heretix run --batch` does: half the price, within a day."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.cli.output import say
from heretix.cli.run import show_runs
from heretix.core.event_loop import run_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from heretix.core.errors import HeretixError
    from heretix.core.settings import Settings
    from heretix.measurement.batch import BatchService, BatchView, Collection, Submission
    from heretix.measurement.record import RunRecord
    from heretix.measurement.service import Measurement
    from heretix.store import Store
    from heretix.store.batches import Batch

T = TypeVar("T")

app = typer.Typer(help="Batches at providers: half the price, within a day.", no_args_is_help=True)

_CLOSED_SHOWN: Final = 10
_ID_SHOWN: Final = len("batch-") + 8
"""As much of an id as a table has room for; it is enough to name a batch with."""
_NO_BATCH: Final = (
    'no batch was submitted here yet; submit one with `heretix run "A claim." --batch` first'
)

BatchArgument = Annotated[
    str | None, typer.Argument(help="A batch (a unique part will do); without one, all open ones.")
]


def submit_run(measurement: Measurement, *, out: Path | None, as_json: bool) -> NoReturn:
    """Submit what a measurement lacks, and say how to go on."""
    from heretix.core.errors import ConfigError
    from heretix.measurement.batch import submit
    from heretix.store import Store

    if out is not None:
        raise ConfigError("`--out` has nothing to write yet; give it to `heretix batch collect`")
    if measurement.config.until_width is not None:
        raise ConfigError(
            "`--until-width` needs answers before it can ask for more; leave out it or `--batch`"
        )
    if measurement.config.readout != "sampled":
        raise ConfigError("`--readout` asks now; leave out it or `--batch`")
    finished = _Finished()
    opt.warn_of_shortfall(measurement)
    with Store.open(measurement.settings.db) as store:
        submission = _with_service(
            store,
            lambda service: submit(service, measurement, observer=finished),
            settings=measurement.settings,
        )
        if as_json:
            output.print_json({**asdict(submission), "records": finished.summaries})
        else:
            show_runs(finished.records(store), len(finished.summaries), store)
            _say_submitted(submission)
    raise typer.Exit(finished.exit_code)


@app.command("status", short_help="Ask how batches are doing.")
def status(
    batch: BatchArgument = None, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Ask how batches are doing; find out about one whose submission was cut short.

    Without an argument: all open ones, and the last that are over.
    """

    async def look(service: BatchService) -> list[BatchView]:
        known = _find(store, batch, closed=_CLOSED_SHOWN)
        return [await service.look(one) if one.is_open else service.view(one) for one in known]

    with opt.open_store(db, absent=_NO_BATCH) as store:
        views = _with_service(store, look)
    if as_json:
        output.print_json([_content(view) for view in views])
    else:
        _show_batches(views)
        if any(view.batch.is_open for view in views):
            say("heretix batch collect stores what has come", style="dim")
    raise typer.Exit(_exit_code(view.trouble for view in views))


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

    It can be repeated as often as one likes: nothing is stored or counted twice. --out holds all
    that is finished of what was submitted together, whichever collection finished it.

    Exit codes: 0 all is there, 1 something is still open or has no estimate, 2 something to put
    right first, 3 the provider, the network or the store failed, 130 stopped.
    """
    from heretix.measurement.batch import collect
    from heretix.measurement.record import Artifact, check_target, write_lines
    from heretix.store.batches import select_batch_records

    if out is not None:
        check_target(out, lines=True)
    finished = _Finished()
    with opt.open_store(db, absent=_NO_BATCH) as store:
        every_s = every if wait else None
        wanted = _find(store, batch)
        try:
            collection = _with_service(
                store, lambda service: collect(service, wanted, observer=finished, every_s=every_s)
            )
        except KeyboardInterrupt:
            output.warn("Stopped. Nothing is lost: the same command goes on.")
            raise typer.Exit(130) from None
        if out is not None:
            # Of what was submitted together, what an earlier collection finished belongs to it.
            names = store.read(
                select_batch_records, [b.batch_id for b in wanted or _find_last(store)]
            )
            names = list(dict.fromkeys([*names, *finished.ids]))
            if names:
                write_lines(out, (Artifact.of([one]) for one in _records(store, names)))
        if as_json:
            output.print_json(
                {
                    "batches": [_content(view) for view in collection.views],
                    "records": finished.summaries,
                    "open": len(collection.open),
                    "waiting": collection.waiting,
                    "troubles": [str(trouble) for trouble in collection.troubles],
                }
            )
        else:
            show_runs(finished.records(store), len(finished.summaries), store)
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
    with opt.open_store(db, absent=_NO_BATCH) as store:
        view = _with_service(store, lambda service: service.cancel(_find(store, batch)[0]))
    if as_json:
        output.print_json(_content(view))
    else:
        _show_batches([view])
        if view.batch.is_open:
            kept = f"heretix batch collect {view.batch.batch_id} keeps what was answered"
            say(kept, style="dim")
    raise typer.Exit(_exit_code([view.trouble]))


@dataclass
class _Finished:
    """An observer that keeps what records say in short; the store has the rest."""

    summaries: list[dict[str, Any]] = field(default_factory=list)

    def on_planned(self, *_: object) -> None:
        """Do nothing."""

    on_extended = on_sampled = on_shared = on_heard = on_planned

    def on_finished(self, record: RunRecord) -> None:
        """Keep the name and the number."""
        names = ("execution_id", "run_id", "claim", "claim_id", "model", "status")
        self.summaries.append(
            {name: getattr(record, name) for name in names}
            | {
                "prob_true_rpl": record.aggregates.prob_true_rpl,
                "ci95": record.aggregates.ci95,
                "cost_usd": record.usage.cost_usd,
            }
        )

    @property
    def exit_code(self) -> int:
        return int(any(summary["status"] != "ok" for summary in self.summaries))

    @property
    def ids(self) -> list[str]:
        return [summary["execution_id"] for summary in self.summaries]

    def records(self, store: Store) -> Iterator[RunRecord]:
        return _records(store, self.ids)


def _records(store: Store, execution_ids: Iterable[str]) -> Iterator[RunRecord]:
    from heretix.measurement.record import RunRecord
    from heretix.store.runs import find_record

    for execution_id in execution_ids:
        stored = store.read(find_record, execution_id)
        yield RunRecord.model_validate_json(stored.record_json)


def _find_last(store: Store) -> list[Batch]:
    """Find the batch that is over and was submitted last."""
    from heretix.store.batches import select_closed_batches

    return store.read(select_closed_batches, 1)


def _with_service(
    store: Store, work: Callable[[BatchService], Awaitable[T]], settings: Settings | None = None
) -> T:
    """Do some work with the providers' batch services."""
    from heretix.core.settings import Settings
    from heretix.measurement.batch import BatchService

    async def run() -> T:
        async with BatchService(store, settings or Settings.from_env()) as service:
            return await work(service)

    output.silence_retries()
    return run_async(run())


def _find(store: Store, ref: str | None, *, closed: int = 0) -> list[Batch]:
    """Find the batch that `ref` names; without one, all open ones and the last that are over."""
    from heretix.store.batches import find_batch, select_closed_batches, select_open_batches

    if ref is not None:
        return [store.read(find_batch, ref)]
    known = store.read(select_open_batches)
    return known + (store.read(select_closed_batches, closed) if closed else [])


def _exit_code(troubles: Iterable[HeretixError | None]) -> int:
    return max((trouble.exit_code for trouble in troubles if trouble is not None), default=0)


def _say_submitted(submission: Submission) -> None:
    batches, elsewhere = submission.batches, submission.elsewhere
    unconfirmed = submission.unconfirmed
    if batches:
        what = "a batch" if len(batches) == 1 else f"{len(batches)} batches"
        say(f"submitted {submission.requests:,} samples in {what}, at the batch price:")
        for batch_id in batches:
            say(f"  {batch_id}")
    if elsewhere:
        # Nobody knows yet that an unconfirmed batch is on its way.
        where = "asked for elsewhere or in batches below" if unconfirmed else "on their way already"
        say(f"{elsewhere:,} samples are {where}, and weren't sent again")
    for told in unconfirmed:
        output.warn(told)
    if batches or (elsewhere and not unconfirmed):
        say("They come within a day. This can be closed; go on with", style="dim")
        say("  heretix batch status           how far they are", style="dim")
        say("  heretix batch collect --wait   store them, and see the results", style="dim")


def _show_collection(collection: Collection) -> None:
    if collection.views:
        _show_batches(collection.views)
    elif not collection.finished:
        say("no open batches")
    if collection.waiting:
        say(
            f"{collection.waiting:,} runs lack samples that no batch brings; "
            "the command that began them gets the rest"
        )
    for trouble in collection.troubles:
        output.warn(f"error: {trouble}", style="red")
    if collection.open:
        say("still open; collect again later, or with --wait", style="dim")


def _show_batches(views: list[BatchView]) -> None:
    from heretix.report.terminal import plain_table

    if not views:
        say("no batches; `heretix run --batch` submits one")
        return
    columns = "~batch ~model ~state >~requests >~answered >~failed >~cost ~submitted"
    table = plain_table(*columns.split())
    for view in views:
        batch, counts = view.batch, view.state.counts if view.state else None
        collected = not batch.is_open or counts is None
        answered = view.usage.answered if collected or counts is None else counts.succeeded
        failed = view.usage.failed if collected or counts is None else counts.failed
        cost = "unknown" if view.usage.answered else ""
        table.add_row(
            batch.batch_id[:_ID_SHOWN],
            batch.model,
            view.state.status if view.state and batch.is_open else batch.state,
            f"{batch.requests:,}",
            f"{answered:,}",
            f"{failed:,}",
            cost if view.cost_usd is None else f"${view.cost_usd:.4f}",
            batch.submitted_at[:16].replace("T", " "),
        )
    output.console().print(table)
    for view in views:
        for words in filter(None, (view.batch.note, view.trouble)):
            say(f"{view.batch.batch_id[:_ID_SHOWN]}: {words}", style="yellow")


def _content(view: BatchView) -> dict[str, Any]:
    return {
        **asdict(view.batch),
        "provider_status": view.state.status if view.state else None,
        "provider_counts": view.state.counts if view.state else None,
        "collected": view.usage,
        "cost_usd": view.cost_usd,
        "trouble": None if view.trouble is None else str(view.trouble),
    }
