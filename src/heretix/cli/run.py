"""`heretix run`, `resume` and `describe`: measure, or say what measuring will take."""

from __future__ import annotations

import gc
import json
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.core.event_loop import STOP_SIGNALS, interrupt, run_async
from heretix.core.lenses import LENSES, SHOWING
from heretix.measurement.runner import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from rich.console import Console

    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Runner
    from heretix.measurement.service import Artifacts, Measurement, Results
    from heretix.plan import Plan
    from heretix.sample import Sample
    from heretix.store import Store

_FULL_VIEWS: Final = 8
"""Up to this many runs are shown in full; more become a table."""
_PLANS_SHOWN: Final = 4


@opt.takes_options
def run(
    *,
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the artifact (.json; .jsonl for many claims), or a table (.csv, .tsv, "
            ".parquet).",
        ),
    ] = None,
    mock: opt.MockOption = False,
    options: opt.RunOptions,
    batch: Annotated[
        bool, typer.Option("--batch", help="Submit as a batch: half the price, within a day.")
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Call again for every sample, and replace it.")
    ] = False,
    evidence: opt.EvidenceOptions,
    db: opt.DbOption = None,
    verbose: opt.VerboseOption = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Measure a claim, or many.

    Every finished sample is stored as it arrives. Stop at any time with Ctrl-C: calls in flight
    are waited for (a second Ctrl-C drops them), and the same command continues where it stopped.

    Exit codes: 0 measured, 1 measured but no estimate, wider than --until-width or out of budget,
    2 something to put right first, 3 the provider, the network or the store failed, 130 stopped.
    """
    request = opt.require_shown(opt.read_config(config, claim, options, evidence), evidence)
    # Imported when the options are known to be sound: a mistake in them is told at once.
    from heretix.measurement.record import check_target
    from heretix.measurement.service import add_checks, prepare
    from heretix.store import Store

    settings = opt.read_settings(db)
    settings = replace(settings, no_cache=no_cache or settings.no_cache)
    if batch:
        from heretix.cli.batch import submit_run

        submit_run(prepare(request, settings, mock=mock), out=out, as_json=as_json)
    measurement = add_checks(add_evidence(prepare(request, settings, mock=mock)))
    many = request.claims_file is not None
    if out is not None:
        check_target(out, lines=many, tables=True)
    with logging_requests(verbose=verbose, as_json=as_json), Store.open(settings.db) as store:
        results = measure(measurement, store, out=out, many=many, as_json=as_json)
        deliver(results, measurement, store, out=out, many=many, as_json=as_json)
    raise typer.Exit(exit_code(results, measurement))


def logging_requests(*, verbose: bool, as_json: bool) -> AbstractContextManager[None]:
    """Log every request that ends on standard error: as a line, or as an event for programs."""
    if not verbose:
        return nullcontext()
    from heretix.core import telemetry

    def watch(event: telemetry.Event) -> None:
        if not isinstance(event, telemetry.CallEnded):
            return
        if as_json:
            _emit("request", **asdict(event))
        else:
            output.warn(event, style="dim")

    return telemetry.watched_by(watch)


def add_evidence(measurement: Measurement, *, calls: bool = True) -> Measurement:
    """Gather the bundles of a measurement's lenses; say which lens lacks evidence. Without `calls`
    no model is asked about documents."""
    from heretix.measurement.service import drop_models

    asked = measurement
    if not calls:
        measurement = drop_models(measurement)
    config = measurement.config
    if set(config.lenses).isdisjoint(SHOWING):
        return measurement
    from heretix.measurement.gather import searches_demo
    from heretix.measurement.service import gather_evidence

    if measurement is not asked:
        output.warn(
            "`judge`, `stance` and `queries` aren't asked here: what they cost comes on top, and "
            "documents may differ"
        )
    output.silence_retries()
    with output.err_console().status("searching and reading documents"):
        gathering = gather_evidence(measurement)
        measurement = run_async(gathering, stop=interrupt, signals=STOP_SIGNALS)
    lacking = False
    for (claim, lens), bundle in measurement.bundles.items():
        if isinstance(bundle, Exception):
            lacking = True
            output.warn(f"{claim[:60]}: {bundle}")
        elif not LENSES[lens].searched and bundle.dropped:
            given = len(bundle.items) + len(bundle.dropped)
            left_out = ", ".join(dropped.title for dropped in bundle.dropped[:5])
            shown = f"{lens} shows {len(bundle.items)} of {given} documents"
            output.warn(f"{shown}; not shown: {left_out}")
    if lacking and searches_demo(config.evidence):
        output.warn(opt.DEMO_CORPUS_NOTE)
    return measurement


def resume(
    execution: Annotated[
        str | None,
        typer.Argument(help="An execution or run id; without one, those that can be resumed."),
    ] = None,
    out: opt.ArtifactOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Go on with an execution that was stopped: exactly the missing calls are made."""
    from heretix.measurement.record import check_target
    from heretix.measurement.service import prepare_resumption

    if out is not None:
        check_target(out, lines=False, tables=True)
    with opt.open_store(db) as store:
        if execution is None:
            _list_unfinished(store, as_json=as_json)
            return
        measurement = prepare_resumption(store, execution, opt.read_settings(db))
        results = measure(measurement, store, out=out, many=False, as_json=as_json)
        deliver(results, measurement, store, out=out, many=False, as_json=as_json)
    raise typer.Exit(exit_code(results, measurement))


def _list_unfinished(store: Store, *, as_json: bool) -> None:
    from heretix.report.terminal import unfinished_table
    from heretix.store.runs import select_unfinished

    found = store.read(select_unfinished)
    if as_json:
        output.print_json(found)
        return
    if not found:
        output.say("nothing to resume: every execution here has its record")
        return
    console = output.console()
    console.print(unfinished_table(found, width=console.width))
    console.print("heretix resume EXECUTION goes on with one of them", style="dim")
    if any(LENSES[execution.lens].framed for execution in found):
        again = "a lens other than RPL: give its command again, its samples are stored"
        console.print(again, style="dim")


def measure(
    measurement: Measurement, store: Store, *, out: Path | None, many: bool, as_json: bool
) -> Results:
    """Measure under the eyes of the user, who may stop it at any time.

    Whatever ends it, `out` is written and holds what is finished.
    """
    # The views are needed at the end; loaded now, they keep nobody waiting then.
    import heretix.report.terminal  # noqa: F401
    from heretix.measurement import service

    output.silence_retries()
    opt.warn_of_shortfall(measurement)
    for model in measurement.models:
        for name in measurement.list_ignored_options(model):
            output.warn(f"note: {model} doesn't accept `{name}`; it isn't sent", style="dim")
    tally, results = Tally(measurement.attempts, lambda _: None, inf), service.Results()
    runner: Runner | None = None
    dropped = 0

    def stop() -> bool:
        """Stop on the first signal; on the second, be interrupted."""
        nonlocal dropped
        assert runner is not None, "it runs"
        if runner.stopped:
            dropped = runner.status.in_flight
            return False
        flying = runner.stop()
        waited = f"; {flying} in flight are waited for, Ctrl-C again drops them" if flying else ""
        tally.tell(f"stopping: no more calls are made{waited}")
        return True

    # What is loaded by now stays: the collector, which stops all calls, need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        with watching(output.err_console(), tally.total, as_json=as_json) as tally:
            results = service.Results(tally)
            tally.runner = runner = measurement.runner(store, observer=results)
            runner.tell = tally.tell
            run_async(
                service.measure(measurement, store, results, runner=runner),
                stop=stop,
                signals=STOP_SIGNALS,
            )
    except BaseException as exc:
        kept = _keep(out, results, measurement, store, many=many)
        spooled = runner.spooled if runner else 0
        if isinstance(exc, KeyboardInterrupt) or (runner and runner.stopped):
            lost = f" {dropped:,} calls in flight were dropped, and may be billed." * bool(dropped)
            output.warn(
                f"Stopped.{lost} {tally.done - spooled:,} of {tally.total:,} samples are "
                f"stored{kept}; the same command continues from there."
            )
            raise typer.Exit(130) from None
        if kept:
            output.warn(kept.removeprefix("; "))
        raise
    return results


def _keep(
    out: Path | None, results: Results, measurement: Measurement, store: Store, *, many: bool
) -> str:
    """Write what is finished, and say so; without a store there is nothing to write it from."""
    from heretix.core.errors import StoreError

    try:
        write_out(out, results, measurement, store, many=many)
    except StoreError:
        return ""
    return f"; what is finished is written to {out}" if out and results.executions else ""


def exit_code(results: Results, measurement: Measurement) -> int:
    """Exit with 3 if every call failed, 1 if a lens has no number or is too wide, else 0."""
    if results.all_failed:
        return 3
    lacking = any(isinstance(bundle, Exception) for bundle in measurement.bundles.values())
    return 1 if results.without_estimate or results.missed or lacking else 0


def write_out(
    out: Path | None, results: Results, measurement: Measurement, store: Store, *, many: bool
) -> None:
    """Write the artifact of what is finished; all of it is in the store already."""
    from heretix.core.errors import RecordError
    from heretix.measurement.record import TABLES, write_artifact, write_lines
    from heretix.measurement.service import Artifacts

    if out is None or not results.executions:
        return
    artifacts = Artifacts(measurement, results.executions, store)
    try:
        if out.suffix.lower() in TABLES:
            from heretix.report.export import belief_table, format_of, write_export

            write_export(out, belief_table(format_of(out), artifacts, measurement.rows))
        elif many:
            write_lines(out, artifacts)
        else:
            write_artifact(out, next(iter(artifacts)))
    except RecordError as exc:
        ref = next(iter(results.executions.values()))
        raise RecordError(
            f"{exc}. Nothing is lost: the store has it (heretix show {ref} --json)"
        ) from exc


def deliver(
    results: Results,
    measurement: Measurement,
    store: Store,
    *,
    out: Path | None,
    many: bool,
    as_json: bool,
    show: Callable[[Artifacts], None] | None = None,
) -> None:
    """Write the artifact and show the results. All records are in the store already."""
    from heretix.measurement.record import artifact_json
    from heretix.measurement.service import Artifacts

    write_out(out, results, measurement, store, many=many)
    artifacts = Artifacts(measurement, results.executions, store)
    if as_json:
        for artifact in artifacts:
            output.print_json_text(artifact_json(artifact, indent=None if many else 2))
        return
    if show is not None:
        show(artifacts)
    else:
        runs = (record for artifact in artifacts for record in artifact.runs)
        show_runs(runs, len(results.executions), store)
        if measurement.variants:
            _show_checks(artifacts)
    if results.without_estimate:
        output.say(f"{results.without_estimate} without an estimate", style="bold red")
    if results.missed:
        width = measurement.config.until_width
        missed = f"{results.missed} of {len(results.executions)} missed the width of {width:g}"
        output.say(f"{missed}; raise --max-samples", style="bold red")
    where = f", written to {out}" if out is not None and results.executions else ""
    output.say(f"stored in {store.name}{where}", style="dim")


def show_runs(records: Iterable[RunRecord], count: int, store: Store) -> None:
    """Show each run's finding, or a table of the latest where there are many."""
    from heretix.report.terminal import run_headline, runs_table
    from heretix.store.runs import select_runs

    console = output.console()
    if count > _FULL_VIEWS:
        console.print(runs_table(store.read(select_runs, limit=20), width=console.width))
        console.print(f"{count:,} runs measured; the latest are shown.")
        return
    for record in records:
        # What was done to a lens as a check is told in a line below.
        if not (record.evidence and record.evidence.variant):
            console.print(run_headline(record))
            console.print(f"heretix show {record.execution_id}\n", style="dim")


def _show_checks(artifacts: Artifacts) -> None:
    """Say what checks found, where there are few."""
    from heretix.report.terminal import check_lines, facts_table

    for artifact in islice(artifacts, _FULL_VIEWS):
        output.console().print(facts_table(check_lines(artifact)))


@opt.takes_options
def describe(
    *,
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    mock: opt.MockOption = False,
    options: opt.PlanOptions,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Print the plan: templates, slots, seeds, calls to make, tokens and cost. Calls no model."""
    from heretix.core.errors import RecordError
    from heretix.measurement.service import add_checks, plan_content, prepare

    request = opt.read_config(config, claim, options)
    prepared = prepare(request, opt.read_settings(db), mock=mock, calls=False)
    measurement = add_checks(add_evidence(prepared, calls=False))
    opt.warn_of_shortfall(measurement)
    # With the cache's help where there is one; describing creates no store.
    try:
        with opt.open_store(db) as store:
            estimate = measurement.estimate(store)
    except RecordError:
        estimate = measurement.estimate(None)
    firsts = (plan for model in measurement.models for plan in islice(measurement.plans(model), 1))
    plans = list(islice(firsts, _PLANS_SHOWN))
    if as_json:
        output.print_json({"plans": [plan_content(plan) for plan in plans], "estimate": estimate})
        return
    from heretix.report.terminal import estimate_view, plan_view

    console = output.console()
    for plan in plans:
        console.print(plan_view(plan))
        console.print()
    if estimate.runs > len(plans):
        console.print(f"… and {estimate.runs - len(plans):,} more plans like these", style="dim")
    console.print(estimate_view(measurement, estimate))


_LIVE_S: Final = 0.1
_LINES_S: Final = 5.0
_EVENTS_S: Final = 1.0


class _EventTally(Tally):
    """Tells programs of every record, too."""

    def on_sampled(self, plan: Plan, sample: Sample) -> None:
        super().on_sampled(plan, sample)
        if sample.failed:
            _emit("failed", claim=plan.claim, model=plan.model.identity, error=sample.error)

    def on_finished(self, record: RunRecord) -> None:
        _emit(
            "finished",
            execution_id=record.execution_id,
            run_id=record.run_id,
            claim=record.claim,
            model=record.model,
            status=record.status,
            prob_true_rpl=record.aggregates.prob_true_rpl,
            ci95=record.aggregates.ci95,
        )


@contextmanager
def watching(console: Console, total: int, *, as_json: bool) -> Iterator[Tally]:
    """Make a tally that shows itself as fits: to a terminal, to a file, or to a program."""
    if as_json:
        tally: Tally = _EventTally(total, lambda t: _emit("progress", **t.as_dict()), _EVENTS_S)
        tally.tell = lambda text: _emit("note", message=text)
        _emit("started", total=total)
        try:
            yield tally
        finally:
            _emit("ended", **tally.as_dict(), elapsed_s=round(tally.elapsed_s, 1))
        return
    update: Callable[[Tally], None] = lambda t: console.print(_line(t), style="dim")  # noqa: E731
    with _bar(console) if console.is_terminal else nullcontext(update) as update:
        tally = Tally(total, update, _LIVE_S if console.is_terminal else _LINES_S)
        tally.tell = lambda text: console.print(text, style="yellow", markup=False)
        try:
            yield tally
        finally:
            console.print(tally.account(), style="dim")


def _emit(event: str, **values: Any) -> None:
    text = json.dumps({"event": event, **values}, ensure_ascii=False)
    print(output.fit_json(text, sys.stderr.encoding), file=sys.stderr, flush=True)


def _line(tally: Tally) -> str:
    eta = "" if tally.eta_s is None else f", {tally.eta_s:,.0f} s to go"
    return f"{tally.doing}: {tally.done:,} of {tally.total:,} samples: {tally.notes()}{eta}"


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Tally], None]]:
    from rich import progress as bars

    columns = (
        "{task.fields[doing]}",
        bars.BarColumn(bar_width=24),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        "eta",
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[notes]}", style="dim"),
    )
    with output.progress(*columns, console=console) as progress:
        task = progress.add_task("measuring", total=None, notes="", doing="measuring")
        yield lambda t: progress.update(
            task, completed=t.done, total=t.total, notes=t.notes(), doing=t.doing
        )
