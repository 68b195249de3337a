"""`heretix run`, `resume` and `describe`: measure, or say what measuring will take."""

from __future__ import annotations

import gc
import json
import sys
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import options as opt
from heretix.cli.batch import submit_run
from heretix.cli.output import fit_json, print_json, print_json_text
from heretix.core.event_loop import run_async
from heretix.core.lenses import LENSES, needs_documents
from heretix.measurement.runner import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from heretix.core.settings import Settings
    from heretix.measurement.record import RunRecord
    from heretix.measurement.service import Artifacts, Estimate, Measurement, Results
    from heretix.plan import Plan
    from heretix.sample import Sample
    from heretix.store import Store


_FULL_VIEWS = 8
"""Up to this many runs are shown in full; more become a table."""


def run(
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the artifact (.json; .jsonl for many claims)."),
    ] = None,
    mock: opt.MockOption = False,
    model: opt.ModelOption = None,
    K: opt.KOption = None,
    R: opt.ROption = None,
    T: opt.TOption = None,
    B: opt.BOption = None,
    seed: opt.SeedOption = None,
    agg: opt.AggOption = None,
    preset: opt.PresetOption = None,
    claims_file: opt.ClaimsFileOption = None,
    prompts_file: opt.PromptsFileOption = None,
    base_url: opt.BaseUrlOption = None,
    temperature: opt.TemperatureOption = None,
    reasoning_effort: opt.EffortOption = None,
    max_output_tokens: opt.MaxTokensOption = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Calls in flight (else it adapts by itself).", min=1),
    ] = None,
    rpm: Annotated[
        float | None, typer.Option("--rpm", help="Requests a minute at most, for each model.")
    ] = None,
    tpm: Annotated[
        float | None, typer.Option("--tpm", help="Tokens a minute at most, for each model.")
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option("--budget-usd", help="Stop when this much is spent.")
    ] = None,
    until_width: Annotated[
        float | None,
        typer.Option("--until-width", help="Sample on until the interval is this narrow."),
    ] = None,
    max_samples: Annotated[
        int | None,
        typer.Option("--max-samples", help="With --until-width: the cap for a claim.", min=1),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Submit as a batch: half the price, within a day.")
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Call again for every sample, and replace it.")
    ] = False,
    lenses: opt.LensOption = None,
    corpus: opt.CorpusOption = None,
    search: opt.SearchOption = None,
    policy: opt.PolicyOption = None,
    document: opt.DocumentOption = None,
    as_of: opt.AsOfOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Measure a claim, or many.

    Every finished sample is stored as it arrives. Stop at any time with Ctrl-C: the same
    command continues where it stopped.

    Exit codes: 0 measured, 1 measured but no estimate, 2 something to put right first,
    3 the provider, the network or the store failed, 130 stopped.
    """
    from heretix.core.settings import Settings

    request = opt.read_config(
        config,
        claim,
        models=model,
        K=K,
        R=R,
        T=T,
        B=B,
        seed=seed,
        agg=agg,
        preset=preset,
        claims_file=claims_file,
        prompts_file=prompts_file,
        base_url=base_url,
        temperature=temperature,
        reasoning_effort=reasoning_effort,
        max_output_tokens=max_output_tokens,
        concurrency=concurrency,
        rpm=rpm,
        tpm=tpm,
        budget_usd=budget_usd,
        until_width=until_width,
        max_samples=max_samples,
        **opt.evidence_options(lenses, corpus, search, policy, document, as_of),
    )
    # Imported when the options are known to be sound: a mistake in them is told at once.
    from heretix.measurement.record import check_target
    from heretix.measurement.service import prepare
    from heretix.store import Store

    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db, no_cache=no_cache or settings.no_cache)
    if batch:
        submit_run(prepare(request, settings, mock=mock), out=out, as_json=as_json)
    measurement = with_evidence(prepare(request, settings, mock=mock))
    many = request.claims_file is not None
    if out is not None:
        check_target(out, lines=many)
    with Store.open(settings.db) as store:
        results = measure(measurement, store, as_json=as_json)
        deliver(results, measurement, store, out=out, many=many, as_json=as_json)
    raise typer.Exit(exit_code(results, measurement))


def with_evidence(measurement: Measurement) -> Measurement:
    """The measurement with the bundles of its lenses; a lens without enough evidence is told."""
    config = measurement.config
    if not needs_documents(config.lenses):
        return measurement
    import stamina.instrumentation

    from heretix.measurement.gather import searches_demo
    from heretix.measurement.service import gather_evidence

    # A service that is asked again is no news; one that doesn't answer is an error.
    stamina.instrumentation.set_on_retry_hooks([])
    console = opt.err_console()
    with console.status("searching and reading documents"):
        measurement = run_async(gather_evidence(measurement))
    lacking = False
    for (claim, lens), bundle in measurement.bundles.items():
        if isinstance(bundle, Exception):
            lacking = True
            console.print(f"{claim[:60]}: {bundle}", style="yellow", markup=False)
        elif not LENSES[lens].searched and bundle.dropped:
            given = len(bundle.items) + len(bundle.dropped)
            left_out = ", ".join(dropped.title for dropped in bundle.dropped[:5])
            said = f"{lens} shows {len(bundle.items)} of {given} documents; not shown: {left_out}"
            console.print(said, style="yellow", markup=False)
    if lacking and searches_demo(config.evidence):
        console.print(opt.DEMO_CORPUS_NOTE, style="yellow", markup=False)
    return measurement


def resume(
    execution: Annotated[
        str | None,
        typer.Argument(help="An execution or run id; without one, those that can be resumed."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the artifact (.json).")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Go on with an execution that was stopped: exactly the missing calls are made."""
    from heretix.core.settings import Settings
    from heretix.measurement.record import check_target
    from heretix.measurement.service import resumed
    from heretix.store import Store

    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    if out is not None:
        check_target(out, lines=False)
    with Store.open(settings.db, create=False) as store:
        if execution is None:
            _list_unfinished(store)
            return
        measurement = resumed(store, execution, settings)
        results = measure(measurement, store, as_json=as_json)
        deliver(results, measurement, store, out=out, many=False, as_json=as_json)
    raise typer.Exit(exit_code(results, measurement))


def _list_unfinished(store: Store) -> None:
    from heretix.report.terminal import unfinished_table
    from heretix.store.runs import select_unfinished

    found = store.read(select_unfinished)
    console = opt.console()
    if found:
        console.print(unfinished_table(found, width=console.width))
        console.print("heretix resume EXECUTION goes on with one of them", style="dim")
        if any(LENSES[execution.lens].framed for execution in found):
            again = "a lens other than RPL: give its command again, its samples are stored"
            console.print(again, style="dim")
    else:
        console.print("nothing to resume: every execution here has its record")


def measure(measurement: Measurement, store: Store, *, as_json: bool) -> Results:
    """Measure under the eyes of the user, who may stop it at any time."""
    # The retry library's log lines would run into the display; failures are counted and stored.
    import stamina.instrumentation

    # The views are needed at the end; loaded now, they keep nobody waiting then.
    import heretix.report.terminal  # noqa: F401
    from heretix.measurement import service

    stamina.instrumentation.set_on_retry_hooks([])
    console = opt.err_console()
    opt.warn_of_shortfall(measurement)
    for model in measurement.models:
        for name in measurement.ignored_options(model):
            console.print(f"note: {model} doesn't accept `{name}`; it isn't sent", style="dim")
    total = measurement.attempts
    tally: Tally | None = None
    # What is loaded by now stays: the collector, which stops all calls, need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        with watching(console, total, as_json=as_json) as tally:
            results = service.Results(tally)
            runner = measurement.runner(store, observer=results)
            tally.runner = runner
            run_async(service.measure(measurement, store, results, runner=runner))
    except KeyboardInterrupt:
        console.print(
            f"Stopped. {tally.done if tally else 0:,} of {total:,} samples are stored; "
            "the same command continues from there.",
            style="yellow",
        )
        raise typer.Exit(130) from None
    return results


def exit_code(results: Results, measurement: Measurement) -> int:
    """Exit with 3 if every call failed, 1 if a lens has no number, else 0."""
    if results.all_failed:
        return 3
    lacking = any(isinstance(bundle, Exception) for bundle in measurement.bundles.values())
    return 1 if results.without_estimate or lacking else 0


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
    from heretix.core.errors import RecordError
    from heretix.measurement.record import artifact_json, write_artifact, write_lines
    from heretix.measurement.service import Artifacts

    artifacts = Artifacts(measurement, results.executions, store)
    if out is not None and results.executions:
        try:
            if many:
                write_lines(out, artifacts)
            else:
                write_artifact(out, next(iter(artifacts)))
        except RecordError as exc:
            ref = next(iter(results.executions.values()))
            raise RecordError(
                f"{exc}. Nothing is lost: the store has it (heretix show {ref} --json)"
            ) from exc
    if as_json:
        for artifact in artifacts:
            print_json_text(artifact_json(artifact, indent=None if many else 2))
        return
    if show is not None:
        show(artifacts)
    else:
        _show(results, artifacts)
    _say_where(results, store, out)


def _show(results: Results, artifacts: Artifacts) -> None:
    from heretix.report.terminal import run_headline, runs_table
    from heretix.store.runs import select_runs

    console = opt.console()
    if len(results.executions) > _FULL_VIEWS:
        console.print(runs_table(artifacts.store.read(select_runs, limit=20), width=console.width))
        console.print(f"{len(results.executions):,} runs measured; the latest are shown.")
        return
    for artifact in artifacts:
        for record in artifact.runs:
            console.print(run_headline(record))
            console.print(f"heretix show {record.execution_id}", style="dim")
            console.print()


def _say_where(results: Results, store: Store, out: Path | None) -> None:
    console = opt.console()
    if results.without_estimate:
        console.print(f"{results.without_estimate} without an estimate", style="bold red")
    where = f", written to {out}" if out is not None and results.executions else ""
    console.print(f"stored in {store.name}{where}", style="dim")


_PLANS_SHOWN = 4


def describe(
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    mock: opt.MockOption = False,
    model: opt.ModelOption = None,
    K: opt.KOption = None,
    R: opt.ROption = None,
    T: opt.TOption = None,
    B: opt.BOption = None,
    seed: opt.SeedOption = None,
    agg: opt.AggOption = None,
    preset: opt.PresetOption = None,
    claims_file: opt.ClaimsFileOption = None,
    prompts_file: opt.PromptsFileOption = None,
    base_url: opt.BaseUrlOption = None,
    max_output_tokens: opt.MaxTokensOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Print the plan: templates, slots, seeds, calls to make, tokens and cost. Calls no model."""
    from heretix.core.settings import Settings
    from heretix.measurement.service import plan_content, prepare

    request = opt.read_config(
        config,
        claim,
        models=model,
        K=K,
        R=R,
        T=T,
        B=B,
        seed=seed,
        agg=agg,
        preset=preset,
        claims_file=claims_file,
        prompts_file=prompts_file,
        base_url=base_url,
        max_output_tokens=max_output_tokens,
    )
    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    measurement = with_evidence(prepare(request, settings, mock=mock, calls=False))
    opt.warn_of_shortfall(measurement)
    estimate = _estimate(measurement, settings)
    plans = _first_plans(measurement)
    if as_json:
        content = {"plans": [plan_content(plan) for plan in plans], "estimate": asdict(estimate)}
        print_json(content)
        return
    from heretix.report.terminal import estimate_view, plan_view

    console = opt.console()
    for plan in plans:
        console.print(plan_view(plan))
        console.print()
    if estimate.runs > len(plans):
        console.print(f"… and {estimate.runs - len(plans):,} more plans like these", style="dim")
    console.print(estimate_view(measurement, estimate))


def _estimate(measurement: Measurement, settings: Settings) -> Estimate:
    """With the cache's help where there is one; describing creates no store."""
    from heretix.core.errors import RecordError
    from heretix.store import Store

    try:
        store = Store.open(settings.db, create=False)
    except RecordError:
        return measurement.estimate(None)
    with store:
        return measurement.estimate(store)


def _first_plans(measurement: Measurement) -> list[Plan]:
    plans = []
    for model in measurement.models:
        for plan in measurement.plans(model):
            plans.append(plan)
            break
    return plans[:_PLANS_SHOWN]


_LIVE_S: Final = 0.1
_LINES_S: Final = 5.0
_EVENTS_S: Final = 1.0


class _EventTally(Tally):
    """Tells programs of every record, too."""

    def sampled(self, plan: Plan, sample: Sample) -> None:
        super().sampled(plan, sample)
        if sample.failed:
            _emit("failed", claim=plan.claim, model=plan.model.identity, error=sample.error)

    def finished(self, record: RunRecord) -> None:
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
    """A tally that shows itself as fits: to a terminal, to a file, or to a program."""
    if as_json:
        tally = _EventTally(total, lambda t: _emit("progress", **t.as_dict()), _EVENTS_S)
        _emit("started", total=total)
        yield tally
        _emit("ended", **tally.as_dict())
    elif console.is_terminal:
        with _bar() as (progress, task):
            yield Tally(total, lambda t: _update(progress, task, t), _LIVE_S)
    else:
        yield Tally(total, lambda t: console.print(_line(t), style="dim"), _LINES_S)


def _emit(event: str, **values: Any) -> None:
    text = json.dumps({"event": event, **values}, ensure_ascii=False)
    print(fit_json(text, sys.stderr.encoding), file=sys.stderr, flush=True)


def _line(tally: Tally) -> str:
    eta = "" if tally.eta_s is None else f", {tally.eta_s:,.0f} s to go"
    return f"{tally.doing}: {tally.done:,} of {tally.total:,} samples: {tally.notes()}{eta}"


def _update(progress: Progress, task: TaskID, tally: Tally) -> None:
    progress.update(
        task, completed=tally.done, total=tally.total, notes=tally.notes(), doing=tally.doing
    )


@contextmanager
def _bar() -> Iterator[tuple[Progress, TaskID]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.fields[doing]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[notes]}", style="dim"),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress, progress.add_task("measuring", total=None, notes="", doing="measuring")
