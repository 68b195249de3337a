"""`heretix design`, `study`, `card` and `check`: what many beliefs say together."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from heretix.cli import options as opt
from heretix.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.service import Measurement, Results
    from heretix.readouts import Readout
    from heretix.store import Store
    from heretix.studies.design import Plan, VarianceComponents
    from heretix.studies.study import Kind, Request, StudyRecord, StudyRun

app = typer.Typer(
    help="Calibration, coherence and variance over many claims.", no_args_is_help=True
)

_MAX_CALLS: Final = 64
_REPORTS: Final = (".html", ".pdf", ".png", ".svg")

ClaimsOption = Annotated[
    str,
    typer.Option(
        "--claims",
        help="A file of claims: claim, label, negation, …; `plain` is packaged.",
        metavar="FILE",
    ),
]
ReadoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--readout",
        help="sampled (default), distribution or truth_token. Repeat it to compare them.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class StudySampling(opt.SamplingOptions):
    """Options of a study's sampling: models and repeats."""

    preset: opt.PresetOption = None
    base_url: opt.BaseUrlOption = None
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Sent where the model accepts it.")
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Calls in flight (else it adapts by itself).", min=1),
    ] = None
    budget_usd: opt.BudgetOption = None
    on: opt.OnOption = None


@dataclass(frozen=True, kw_only=True)
class StudyOutput:
    """Output of a study."""

    mock: opt.MockOption = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print calls, tokens and cost; call nothing.")
    ] = False
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the study's record (.json).")
    ] = None
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Write a report: .html, .pdf, .png or .svg.", metavar="FILE"),
    ] = None
    table: Annotated[
        Path | None,
        typer.Option(
            "--table", help="Write one row a run: .csv, .jsonl or .parquet.", metavar="FILE"
        ),
    ] = None
    db: opt.DbOption = None
    as_json: opt.JsonOption = False


@app.command("calibration", short_help="Do probabilities fit the truth?")
@opt.takes_options
def calibration(
    *,
    claims: ClaimsOption,
    sampling: StudySampling,
    readouts: ReadoutOption = None,
    evidence: opt.EvidenceOptions,
    outcome: StudyOutput,
) -> None:
    """Measure labelled claims: Brier and log score, AUROC, ECE, slope and intercept.

    Intervals count claims, not answers; models, lenses and read-outs are compared on the claims
    that both were asked.
    Stop at any time with Ctrl-C: the same command continues where it stopped.

    Exit codes: 0 done, 1 too little was measured, 2 something to put right first, 3 the provider,
    the network or the store failed, 130 stopped.
    """
    _study("calibration", claims, sampling, readouts, evidence, outcome)


@app.command("coherence", short_help="Do a claim and its negation add up?")
@opt.takes_options
def coherence(
    *,
    claims: ClaimsOption,
    sampling: StudySampling,
    readouts: ReadoutOption = None,
    outcome: StudyOutput,
) -> None:
    """Measure claims with their negations: acquiescence, belief free of it, violation.

    A claim may have `entails`, `paraphrase`, or `other` with `both` or `either` instead: then the
    rule of probability is checked. All are asked in the same wordings.
    """
    _study("coherence", claims, sampling, readouts, None, outcome)


@app.command("variance", short_help="How much is wording, how much is chance?")
@opt.takes_options
def variance(
    *,
    claims: ClaimsOption,
    sampling: StudySampling,
    readouts: ReadoutOption = None,
    evidence: opt.EvidenceOptions,
    outcome: StudyOutput,
) -> None:
    """Measure variance components over claims: between wordings, and between repeats."""
    _study("variance", claims, sampling, readouts, evidence, outcome)


@opt.takes_options
def card(
    *,
    model: Annotated[str, typer.Argument(help="The model: provider:model, or a known name.")],
    claims: ClaimsOption = "plain",
    sampling: StudySampling,
    readouts: ReadoutOption = None,
    evidence: opt.EvidenceOptions,
    outcome: StudyOutput,
) -> None:
    """Hold a model against four standards for belief, each a number with an interval.

    Accuracy, coherence and uniformity over wordings need claims with labels and negations; 40
    plain ones are packaged. Use of evidence needs --lens RPL,NUL,MEL and documents for the claims;
    irrelevant text of the same length is measured beside them, to tell what moved beliefs.
    """
    _study("card", claims, replace(sampling, models=[model]), readouts, evidence, outcome)


@app.command("run", short_help="Carry out a study that a file declares.")
@opt.takes_options
def run_file(
    *,
    file: Annotated[Path, typer.Argument(help="The study (YAML).", metavar="FILE")],
    outcome: StudyOutput,
) -> None:
    """Carry out a study that a YAML file declares: claims, models, lenses, read-outs, plan."""
    from heretix.studies.study import read_request

    _carry_out(read_request(file), outcome)


def _study(
    kind: Kind,
    claims: str,
    sampling: StudySampling,
    readouts: list[str] | None,
    evidence: opt.EvidenceOptions | None,
    outcome: StudyOutput,
) -> None:
    from heretix.studies.study import Request, read_items

    request = Request(
        kind=kind,
        items=read_items(claims, kind),
        config=opt.read_config(None, None, sampling, evidence),
        name=None if claims == "plain" else Path(claims).stem,
        # An unknown one is refused where the configurations are made.
        readouts=tuple(cast("list[Readout]", readouts or [])),
    )
    _carry_out(request, outcome)


def _carry_out(request: Request, outcome: StudyOutput) -> None:
    from heretix.cli.run import add_evidence
    from heretix.report.studies import study_view
    from heretix.studies.study import add_placebo, finish_study, prepare_study

    _check_outputs(outcome)
    settings = opt.read_settings(outcome.db)
    prepared = prepare_study(request, settings, mock=outcome.mock, calls=not outcome.dry_run)
    measurements = [
        add_placebo(request.kind, add_evidence(one, calls=not outcome.dry_run)) for one in prepared
    ]
    if outcome.dry_run:
        _show_estimate(measurements, outcome)
        return
    with opt.open_store(outcome.db, create=True) as store:
        measured = [
            (one, _measure(one, store, as_json=outcome.as_json).executions) for one in measurements
        ]
        record = finish_study(request, measured, store)
    _write_outputs(record, outcome)
    if outcome.as_json:
        output.print_json_text(record.to_json())
    else:
        output.console().print(study_view(record))
        written = [str(path) for path in (outcome.out, outcome.report, outcome.table) if path]
        if written:
            output.say(f"written to {', '.join(written)}", style="dim")
    raise typer.Exit(0 if record.usable else 1)


def _check_outputs(outcome: StudyOutput) -> None:
    """Refuse, before anything is paid for, what can't be written."""
    from heretix.core.errors import ConfigError
    from heretix.measurement.record import check_target
    from heretix.report.export import format_of, load_arrow

    if outcome.report is not None and outcome.report.suffix.lower() not in _REPORTS:
        raise ConfigError(
            f"`--report` must end in one of {', '.join(_REPORTS)}, got {outcome.report.name!r}"
        )
    if outcome.table is not None and format_of(outcome.table, option="--table") == "parquet":
        load_arrow()
    given = {"--out": outcome.out, "--report": outcome.report, "--table": outcome.table}
    for option, path in given.items():
        if path is not None:
            check_target(path, option=option)


def _write_outputs(record: StudyRecord, outcome: StudyOutput) -> None:
    from heretix.report.charts.output import write_file
    from heretix.report.studies import study_report, write_table

    if outcome.out is not None:
        write_file(outcome.out, f"{record.to_json()}\n".encode())
    if outcome.report is not None:
        with output.err_console().status("drawing …"):
            write_file(outcome.report, study_report(record, outcome.report.suffix.lower()))
    if outcome.table is not None:
        write_table(record, outcome.table)


def _measure(measurement: Measurement, store: Store, *, as_json: bool) -> Results:
    from heretix.cli.run import measure

    results = measure(measurement, store, out=None, many=True, as_json=as_json)
    if results.all_failed:
        output.warn("every call failed; `heretix runs` has the runs, `heretix show` says why")
        raise typer.Exit(3)
    return results


def _show_estimate(measurements: Sequence[Measurement], outcome: StudyOutput) -> None:
    from heretix.core.errors import RecordError
    from heretix.report.terminal import estimate_view

    # With the cache's help where there is one; asking for the price creates no store.
    try:
        with opt.open_store(outcome.db) as store:
            estimates = [one.estimate(store) for one in measurements]
    except RecordError:
        estimates = [one.estimate(None) for one in measurements]
    total = functools.reduce(operator.add, estimates)
    output.show(total, lambda found: estimate_view(measurements[0], found), as_json=outcome.as_json)


def check(
    file: Annotated[Path, typer.Argument(help="Expectations (YAML).", metavar="FILE")],
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Also write JUnit XML, for CI.", metavar="FILE")
    ] = None,
    allow_undecided: Annotated[
        bool, typer.Option("--allow-undecided", help="End with 0 though some are undecided.")
    ] = False,
    mock: opt.MockOption = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Call again for every sample, and replace it.")
    ] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Check expectations on beliefs: each holds, fails, or is undecided by its interval.

    Exit codes: 0 all hold, 1 one fails, is undecided or has no estimate, 2 something to put right
    first, 3 the provider, the network or the store failed, 130 stopped.
    """
    from heretix.measurement.record import check_target
    from heretix.measurement.service import prepare
    from heretix.providers.catalog import resolve_model
    from heretix.report.charts.output import write_file
    from heretix.report.studies import checks_junit, checks_view
    from heretix.studies import check as checking
    from heretix.studies.study import read_run

    checks = checking.read_checks(file)
    if junit is not None:
        check_target(junit, option="--junit")
    settings = opt.read_settings(db)
    settings = replace(settings, no_cache=no_cache or settings.no_cache)
    measurement = prepare(checks.config, settings, claims=checks.claims, mock=mock)
    names = {}
    for name in checks.config.models or ():
        model = resolve_model(name, settings)
        names[name] = (model.make_mock() if mock else model).identity
    with opt.open_store(db, create=True) as store:
        results = _measure(measurement, store, as_json=as_json)
        runs = [read_run(store, ref) for ref in results.executions.values()]
    findings = checking.judge(checks, names, runs)
    if junit is not None:
        write_file(junit, checks_junit(findings, file.stem, allow_undecided=allow_undecided))
    output.show(findings, checks_view, as_json=as_json)
    met = {"holds", "undecided"} if allow_undecided else {"holds"}
    raise typer.Exit(0 if all(found.verdict in met for found in findings) else 1)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variance components of a design: where they come from, or what they are."""

    models: opt.ModelOption = None
    template_variance: Annotated[
        float | None,
        typer.Option(
            "--template-variance", help="Between wordings, log-odds²; else measured.", min=0
        ),
    ] = None
    replicate_variance: Annotated[
        float | None,
        typer.Option(
            "--replicate-variance", help="Between repeats, log-odds²; else measured.", min=0
        ),
    ] = None
    prob: Annotated[
        float | None,
        typer.Option("--prob", help="About where the belief lies (else as stored, else 1/2)."),
    ] = None


@opt.takes_options
def design(
    *,
    claim: Annotated[
        str | None, typer.Argument(help="Only stored runs of this claim (else of all claims).")
    ] = None,
    spread: Spread,
    width: Annotated[
        float | None, typer.Option("--width", help="Find the cheapest plan for this width.")
    ] = None,
    price: Annotated[
        float, typer.Option("--price", help="Of the first call of a wording, in any currency.")
    ] = 1.0,
    repeat_price: Annotated[
        float | None, typer.Option("--repeat-price", help="Of a repeat (else the same).")
    ] = None,
    max_calls: Annotated[
        int, typer.Option("--max-calls", help="Look at plans of up to so many calls.", min=4)
    ] = _MAX_CALLS,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw the chart: .svg, .png, .pdf or .html.")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Find the cheapest plan for an interval of some width, from how much answers scatter.

    Variance components come from stored runs with at least two answers a wording, or are given.
    The width is that of `template_t`, in probability.
    """
    from heretix.studies import design as d

    components, prob = _find_components(claim, spread, db)
    paid = d.Price(template=price, repeat=price if repeat_price is None else repeat_price)
    plans = _plan_presets(components, prob, paid)
    if width is not None:
        cheapest = d.find_cheapest(components, width=width, prob=prob, price=paid)
        plans[f"cheapest for {width:g}"] = cheapest
        begin = f"-K {cheapest.T} -R {cheapest.R} -T {cheapest.T} --until-width {width:g}"
    frontier = d.expected_widths(components, max_calls=max_calls, prob=prob, price=paid)
    best = d.best_replicates(components, paid)
    notes = _advise(plans, best, prob)
    if width is not None:
        notes.append(f"`heretix run … {begin}` starts there, and goes on where that isn't enough.")
    if out is not None:
        from heretix.report.charts import expected_width, save_chart

        save_chart(expected_width(frontier, plans, width=width), out)
    if as_json:
        found = {
            "components": components,
            "prob": prob,
            "best_replicates": None if best == float("inf") else best,
            "plans": plans,
            "frontier": frontier,
            "notes": notes,
        }
        output.print_json(found)
        return
    from heretix.report.studies import design_view

    priced = price != 1.0 or repeat_price is not None
    output.console().print(design_view(components, plans, frontier, notes, priced=priced))
    if out is not None:
        output.say(f"written to {out}", style="dim")


def _find_components(
    claim: str | None, spread: Spread, db: str | None
) -> tuple[VarianceComponents, float]:
    from heretix.core.errors import ConfigError
    from heretix.providers.catalog import resolve_model
    from heretix.studies.design import VarianceComponents, estimate_components
    from heretix.studies.study import read_logits

    given = (spread.template_variance, spread.replicate_variance)
    if spread.prob is not None and not 0 < spread.prob < 1:
        raise ConfigError(f"`--prob` must lie between 0 and 1, got {spread.prob}")
    if given[0] is not None and given[1] is not None:
        if not (math.isfinite(given[0]) and math.isfinite(given[1])):
            raise ConfigError(
                "`--template-variance` and `--replicate-variance` must be finite numbers, got "
                f"{given[0]} and {given[1]}; leave both out to take them from stored runs"
            )
        components = VarianceComponents(
            template=given[0],
            replicate=given[1],
            n_runs=0,
            template_interval=None,
            replicate_interval=None,
        )
        return components, spread.prob or 0.5
    if given != (None, None):
        raise ConfigError(
            "`--template-variance` and `--replicate-variance` must be given together, or neither"
        )
    settings = opt.read_settings(db)
    models: list[str | None] = [resolve_model(m, settings).identity for m in spread.models or ()]
    runs: list[StudyRun] = []
    with opt.open_store(db) as store:
        for model in models or [None]:
            runs += read_logits(store, claim=claim, model=model)
    probs = [run.prob_true for run in runs if run.prob_true is not None]
    middle = sum(probs) / len(probs) if claim is not None and probs else 0.5
    return estimate_components([run.logits for run in runs]), spread.prob or middle


def _plan_presets(components: VarianceComponents, prob: float, price: Any) -> dict[str, Plan]:
    """Plan each preset as it samples: so many wordings, so many answers each."""
    from heretix.config import PRESETS, RunConfig
    from heretix.plan import DEFAULT_T
    from heretix.studies.design import plan_for

    plans = {}
    for name in PRESETS:
        config = RunConfig.parse({"preset": name})
        T = min(config.T or DEFAULT_T, config.K)
        plans[name] = plan_for(components, T=T, R=config.K * config.R // T, prob=prob, price=price)
    return plans


def _advise(plans: dict[str, Plan], best: float, prob: float) -> list[str]:
    default, wide = plans["default"], plans["wide"]
    said = f"{wide.expected_width:.3f} rather than {default.expected_width:.3f}"
    notes = [f"Widths are for a belief near {prob:.2f}; 0.50 is the widest."]
    if wide.expected_width < default.expected_width and wide.cost <= default.cost:
        notes.append(f"`--preset wide` (16 × 1) beats the default (8 × 2) at no more cost: {said}.")
    elif wide.expected_width < default.expected_width:
        notes.append(
            f"`--preset wide` (16 × 1) is narrower than the default (8 × 2), {said}, and costs "
            f"{wide.cost / default.cost:.2f} times as much."
        )
    else:
        notes.append(f"The default (8 × 2) is at least as good as 16 × 1: {said}.")
    if best == float("inf"):
        notes.append("Wordings don't differ here: repeats are as good as wordings.")
    else:
        notes.append(f"Repeats that cost least for what they give: R* = {best:.2f} a wording.")
    return notes
