"""`heretix design`, `study`, `card` and `check`: what many beliefs say together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output

if TYPE_CHECKING:
    from heretix.measurement.service import Measurement, Results
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
        help="Claims as .jsonl or .csv: claim, label, negation, …; `plain` is packaged.",
        metavar="FILE",
    ),
]


@dataclass(frozen=True, kw_only=True)
class StudySampling(opt.SamplingOptions):
    """Whom a study asks, and how often."""

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


@dataclass(frozen=True, kw_only=True)
class StudyOutput:
    """What becomes of a study."""

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
    evidence: opt.EvidenceOptions,
    outcome: StudyOutput,
) -> None:
    """Measure labelled claims: Brier and log score, AUROC, ECE, slope and intercept.

    Intervals count claims, not answers; models are compared on the claims that all were asked.
    Stop at any time with Ctrl-C: the same command continues where it stopped.

    Exit codes: 0 done, 1 too little was measured, 2 something to put right first, 3 the provider,
    the network or the store failed, 130 stopped.
    """
    _study("calibration", claims, sampling, evidence, outcome)


@app.command("coherence", short_help="Do a claim and its negation add up?")
@opt.takes_options
def coherence(*, claims: ClaimsOption, sampling: StudySampling, outcome: StudyOutput) -> None:
    """Measure claims with their negations: acquiescence, belief free of it, violation.

    A claim may have `entails`, `paraphrase`, or `other` with `both` or `either` instead: then the
    rule of probability is checked. All are asked in the same wordings.
    """
    _study("coherence", claims, sampling, None, outcome)


@app.command("variance", short_help="How much is wording, how much is chance?")
@opt.takes_options
def variance(
    *,
    claims: ClaimsOption,
    sampling: StudySampling,
    evidence: opt.EvidenceOptions,
    outcome: StudyOutput,
) -> None:
    """Measure variance components over claims: between wordings, and between repeats."""
    _study("variance", claims, sampling, evidence, outcome)


@opt.takes_options
def card(
    *,
    model: Annotated[str, typer.Argument(help="The model: provider:model, or a known name.")],
    claims: ClaimsOption = "plain",
    sampling: StudySampling,
    evidence: opt.EvidenceOptions,
    outcome: StudyOutput,
) -> None:
    """Hold a model against four standards for belief, each a number with an interval.

    Accuracy, coherence and uniformity over wordings need claims with labels and negations; 40
    plain ones are packaged. Use of evidence needs --lens RPL,NUL,MEL and documents for the claims.
    """
    _study("card", claims, replace(sampling, models=[model]), evidence, outcome)


@app.command("run", short_help="Carry out a study that a file declares.")
@opt.takes_options
def run_file(
    *,
    file: Annotated[Path, typer.Argument(help="The study (YAML).", metavar="FILE")],
    outcome: StudyOutput,
) -> None:
    """Carry out a study that a YAML file declares: claims, models, lenses, plan."""
    from heretix.studies.study import read_request

    _carry_out(read_request(file), outcome)


def _study(
    kind: Kind,
    claims: str,
    sampling: StudySampling,
    evidence: opt.EvidenceOptions | None,
    outcome: StudyOutput,
) -> None:
    from heretix.studies.study import Request, read_items

    request = opt.read_config(None, None, sampling, evidence)
    name = None if claims == "plain" else Path(claims).stem
    _carry_out(
        Request(kind=kind, items=read_items(claims, kind), config=request, name=name), outcome
    )


def _carry_out(request: Request, outcome: StudyOutput) -> None:
    from heretix.cli.run import with_evidence
    from heretix.report.studies import study_view
    from heretix.studies.study import finish_study, prepare_study

    _check_outputs(outcome)
    settings = opt.read_settings(outcome.db)
    prepared = prepare_study(request, settings, mock=outcome.mock, calls=not outcome.dry_run)
    measurement = with_evidence(prepared)
    if outcome.dry_run:
        _show_estimate(measurement, outcome)
        return
    with opt.open_store(outcome.db, create=True) as store:
        results = _measure(measurement, store, as_json=outcome.as_json)
        record = finish_study(request, measurement, results.executions, store)
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
    if outcome.table is not None and format_of(outcome.table) == "parquet":
        load_arrow()
    for path in (outcome.out, outcome.report, outcome.table):
        if path is not None:
            check_target(path, lines=False)


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


def _show_estimate(measurement: Measurement, outcome: StudyOutput) -> None:
    from heretix.core.errors import RecordError
    from heretix.report.terminal import estimate_view

    # With the cache's help where there is one; asking for the price creates no store.
    try:
        with opt.open_store(outcome.db) as store:
            estimate = measurement.estimate(store)
    except RecordError:
        estimate = measurement.estimate(None)
    output.show(estimate, lambda found: estimate_view(measurement, found), as_json=outcome.as_json)


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
    from heretix.report.studies import checks_view
    from heretix.studies import check as checking
    from heretix.studies.study import read_run

    checks = checking.read_checks(file)
    if junit is not None:
        check_target(junit, lines=False)
    settings = opt.read_settings(db)
    settings = replace(settings, no_cache=no_cache or settings.no_cache)
    measurement = prepare(checks.config, settings, claims=checks.claims, mock=mock)
    names = {}
    for name in checks.config.models or ():
        model = resolve_model(name, settings)
        names[name] = (model.mocked() if mock else model).identity
    with opt.open_store(db, create=True) as store:
        results = _measure(measurement, store, as_json=as_json)
        runs = [read_run(store, ref) for ref in results.executions.values()]
    findings = checking.judge(checks, names, runs)
    if junit is not None:
        content = checking.write_junit(findings, file.stem, allow_undecided=allow_undecided)
        write_file(junit, content)
    output.show(findings, checks_view, as_json=as_json)
    met = {"holds", "undecided"} if allow_undecided else {"holds"}
    raise typer.Exit(0 if all(found.verdict in met for found in findings) else 1)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Where the variance components of a design come from, or what they are."""

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
    plans = _named_plans(components, prob, paid)
    if width is not None:
        cheapest = d.find_cheapest(components, width=width, prob=prob, price=paid)
        plans[f"cheapest for {width:g}"] = cheapest
    frontier = d.expected_widths(components, max_calls=max_calls, prob=prob, price=paid)
    best = d.best_replicates(components, paid)
    notes = _advise(plans, best, prob)
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


def _named_plans(components: VarianceComponents, prob: float, price: Any) -> dict[str, Plan]:
    """Plan each preset as it samples: so many wordings, so many answers each."""
    from heretix.config import PRESETS, RunConfig
    from heretix.studies.design import plan_for

    plans = {}
    for name in PRESETS:
        config = RunConfig.parse({"preset": name})
        T = min(config.T or 8, config.K)
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
