"""Records, plans, belief vectors and evidence as a person reads them in a terminal."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.console import Group, RenderableType
from rich.measure import Measurement as Measured
from rich.table import Table
from rich.text import Text

from heretix.core.lenses import LENSES, NUL, RPL, SEARCHED
from heretix.report.findings import belief_finding, difference_finding, headline
from heretix.report.words import (
    DEMONSTRATION,
    MADE_UP,
    MISQUOTED,
    NO_ESTIMATE,
    NOT_ASSESSED,
    QUOTED_NOTHING,
    beside_text,
    check_text,
    composition_text,
    difference_warnings,
    drop_detail,
    feed_text,
    metric_text,
    missing_reason,
    no_estimate_reason,
    p_text,
    percent,
    placebo_texts,
    readout_words,
    reliability_text,
    run_warnings,
    span,
    stance_text,
    twins_text,
    warn_clamp_sensitive,
    warning_label,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions

    from heretix.belief.student import PairedT
    from heretix.measurement.anomalies import Anomaly
    from heretix.measurement.record import (
        Artifact,
        LensRecord,
        MetricRecord,
        MetricsRecord,
        PluginMetricRecord,
        RunRecord,
        TwinsRecord,
    )
    from heretix.measurement.service import Measurement
    from heretix.measurement.verify import Comparison, Verification
    from heretix.plan import Estimate, Plan
    from heretix.store import RunSummary, StartedExecution

T = TypeVar("T")

_LEAST_CELLS: Final = 5
"""A shorter bar says nothing, and isn't drawn."""
_WIDE: Final = 110
"""Columns from which a list of runs has room for everything but long variants."""
_WIDEST: Final = 160
_NARROW: Final = 72
"""Columns below which a list of runs has no room for models."""
_SHORT_ID: Final = 8
_SHORT_EXECUTION: Final = len("exec-") + _SHORT_ID
_SHORT_VARIANT: Final = 12
_BAND_STYLE: Final = {"high": "green", "medium": "yellow", "low": "red"}
_ELSEWHERE: Final = frozenset({"wrong_class", "off_topic"})
"""Reasons of documents that this lens was never meant to show."""


def plain_table(*columns: str, rows: Iterable[Sequence[str]] = ()) -> Table:
    """Make a table without lines, of texts as they are: names don't get to colour it.

    `>` begins the name of a column of numbers, `~` of one that may wrap.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        wraps = "~" in column
        table.add_column(
            column.lstrip(">~"),
            justify="right" if ">" in column else "left",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Make a list of names and what they are."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(value))
    return table


def one_line(text: str) -> Text:
    """Make text that gives way to its neighbours: one line, cut where the table's width ends."""
    return Text(" ".join(text.split()), no_wrap=True, overflow="ellipsis")


@dataclass(frozen=True, slots=True)
class IntervalBar:
    """A line from 0 to 1 with the interval drawn on it and a dot at the estimate.

    It is as long as there is room for, up to `cells`, and gives way to numbers: a column of bars
    may wrap, and so is the first to shrink.
    """

    prob: float
    lo: float
    hi: float
    cells: int = 51
    style: str = "bold cyan"

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measured:
        del console
        return Measured(0, len("0  1") + self.cells).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        del console
        cells = min(self.cells, options.max_width - len("0  1"))
        if cells < _LEAST_CELLS:
            return
        first, last, dot, middle = (
            min(cells - 1, max(0, round(value * (cells - 1))))
            for value in (self.lo, self.hi, self.prob, 0.5)
        )
        bar = Text("0 ", style="dim")
        for cell in range(cells):
            if cell == dot:
                bar.append("●", style=self.style)
            elif first <= cell <= last:
                bar.append("━", style=self.style)
            else:
                bar.append("┊" if cell == middle else "·", style="dim")
        bar.append(" 1", style="dim")
        yield bar


def run_headline(run: RunRecord) -> RenderableType:
    """Show the finding of a run, in a few lines."""
    belief, lens = run.aggregates, "" if run.lens == RPL else f" · {run.lens}"
    if run.evidence and run.evidence.variant:
        lens += f" {run.evidence.variant}"
    if run.readout:
        lens += f" · {run.readout.name}"
    about = f"{run.model}{lens} · {run.prompt_version} · {_shape(run)}"
    finding = Text(belief_finding(run).sentence)
    lines: list[RenderableType] = [Text(run.claim, style="bold"), finding, Text(about, style="dim")]
    if belief.prob_true_rpl is None or belief.ci95 is None:
        lines.append(Text(f"No estimate: {no_estimate_reason(run.reason)}", style="bold red"))
    else:
        lo, hi = belief.ci95
        headline = Text("p(true) ")
        headline.append(f"{belief.prob_true_rpl:.3f}", style="bold cyan")
        headline.append(f"   95% CI {span(lo, hi)}   width {belief.ci_width:.3f}")
        band = str(belief.stability_band)
        headline.append("   stability ")
        headline.append(f"{belief.stability_score:.2f} ({band})", style=_BAND_STYLE[band])
        lines += [headline, IntervalBar(belief.prob_true_rpl, lo, hi)]
        if run.beside and (said := beside_text(run.beside)):
            lines.append(Text(f"beside it {said}", style="dim"))
    if beside := readout_words(run.readout):
        lines.append(Text(beside, style="dim"))
    # The finding above has these in words, and the line beside it their numbers.
    told = {warning_label(run), warn_clamp_sensitive(run.beside)}
    lines += [Text(said, style="yellow") for said in run_warnings(run) if said not in told]
    lines.append(_counts(run))
    if (shown := run.evidence) and shown.items:
        used = ", ".join(f"{name} ×{count}" for name, count in shown.used.items() if count)
        cut = f", {shown.quotes_cut} cut" if shown.quotes_cut else ""
        said = (
            f"{len(shown.items)} documents (heretix evidence show {str(shown.bundle_id)[:16]}) · "
            f"used: {used or 'none'} · {shown.quotes_verified}/{shown.quotes_given} quotes verified"
            f"{cut}"
        )
        lines.append(Text(said, style="yellow" if shown.trusted is False else "dim"))
    return Group(*lines)


def run_view(run: RunRecord) -> RenderableType:
    """Show a run in full: headline, templates, where its uncertainty comes from, provenance."""
    parts: list[RenderableType] = [run_headline(run)]
    if run.diagnostics is not None:
        parts += [Text(""), _template_table(run), *_variance_lines(run)]
    parts += [Text(""), _provenance(run)]
    return Group(*parts)


def plan_view(plan: Plan) -> RenderableType:
    """Show the plan of one claim and model."""
    model = plan.model
    label = DEMONSTRATION if model.is_demonstration else MADE_UP if model.is_made_up else None
    facts = [
        ("claim", plan.claim),
        ("model", f"{model.identity} ({label})" if label else model.identity),
        ("run_id", plan.run_id),
        ("prompts", f"{plan.bank.version} ({plan.bank.source}), T_bank {plan.bank.T_bank}"),
        ("sampling", f"K={plan.K} slots × R={plan.R} replicates = {plan.N} attempts, T={plan.T}"),
        ("rotation_offset", str(plan.rotation_offset)),
        ("tpl_indices", str(list(plan.tpl_indices))),
        ("seq", str(list(plan.seq))),
        ("imbalance_ratio", f"{plan.imbalance_ratio:.2f}"),
        ("aggregation", f"{plan.agg}, {plan.center} {plan.trim:g}, B={plan.B}"),
        ("bootstrap_seed", f"{plan.bootstrap_seed} ({plan.seed_source})"),
        ("max_output_tokens", str(plan.max_output_tokens)),
        *((name, str(value)) for name, value in plan.options.as_dict().items()),
    ]
    table = plain_table(">template", ">slots", ">attempts", "~wording")
    for index, attempts in plan.counts.items():
        wording = one_line(plan.bank.paraphrases[index])
        table.add_row(str(index), str(attempts // plan.R), str(attempts), wording)
    return Group(facts_table(facts), Text(""), table)


def estimate_view(measurement: Measurement, estimate: Estimate) -> RenderableType:
    """Show the calls, tokens and cost of a measurement."""
    calls = f"{estimate.to_call:,} to make, {estimate.cached:,} already cached"
    if estimate.runs > 1:
        calls += (
            f" ({len(measurement.claims):,} claims × {len(measurement.models)} models, "
            f"{estimate.attempts:,} attempts)"
        )
    facts = [("calls", calls), ("tokens", _tokens(estimate)), ("cost", _cost(estimate))]
    if (most := estimate.at_most) is not None:
        told = f"until {measurement.config.until_width:g} wide: these, if that is so at once"
        facts += [
            ("", told),
            ("at most", f"{most.to_call:,} calls to make, {most.cached:,} already cached"),
            ("", f"{_tokens(most)} tokens"),
            ("", _cost(most)),
        ]
    return facts_table(facts)


def _tokens(estimate: Estimate) -> str:
    return (
        f"about {estimate.tokens_in:,} in, {estimate.tokens_out:,} out "
        f"(at most {estimate.tokens_out_max:,} out)"
    )


def runs_table(runs: Sequence[RunSummary], *, width: int) -> RenderableType:
    """List stored runs, newest first.

    Where the screen is narrow the claim gets the room: ids are shorter (a part of one names its
    run), stability is left to `heretix show`, and a model that all runs share stands below. What
    was measured, p and its interval are never cut.
    """
    wide = width >= _WIDE
    models = {run.model for run in runs}
    with_model = wide or (len(models) > 1 and width >= _NARROW)
    stability = ["stability"] if wide else []
    table = plain_table("run", "lens", ">p(true)" if wide else ">p", "95% CI", *stability)
    if with_model:
        # It may wrap, which it doesn't: so it gives way as the claim does, and no number has to.
        table.add_column("model", max_width=width // (5 if wide else 6))
    table.add_column("claim")
    for run in runs:
        cells: list[RenderableType] = [
            run.run_id.rpartition("-")[2][: None if wide else _SHORT_ID],
            Text(_what(run, whole=width >= _WIDEST)),
            "—" if run.prob_true_rpl is None else f"{run.prob_true_rpl:.3f}",
            "—" if run.ci_lo is None or run.ci_hi is None else span(run.ci_lo, run.ci_hi),
        ]
        if wide:
            known = run.stability_score is not None
            cells.append(f"{run.stability_score:.2f} {run.stability_band}" if known else "—")
        if with_model:
            cells.append(one_line(run.model))
        table.add_row(*cells, one_line(run.claim))
    if with_model:
        return table
    several = f"by {len(models)} models; heretix show RUN names its own"
    note = several if len(models) > 1 else f"all by {min(models)}"
    return Group(table, Text(note, style="dim"))


def _what(run: RunSummary | StartedExecution, *, whole: bool) -> str:
    """Name the lens and, of an experiment or episode, which; its kind where that is long."""
    variant = run.variant or ""
    if not whole and len(variant) > _SHORT_VARIANT:
        variant = variant.partition(":")[0]
    return f"{run.lens} {variant}".rstrip()


def unfinished_table(executions: Sequence[StartedExecution], *, width: int) -> Table:
    """List executions that have no record: what each measures, and how far it came."""
    begun_column = ["begun, UTC"] if width >= _NARROW else []
    table = plain_table("execution", "lens", "samples", *begun_column)
    table.add_column("model", max_width=22)
    table.add_column("claim")
    for execution in executions:
        asked = json.loads(execution.config_json)
        planned = asked["K"] * asked["R"]
        begun = execution.created_at[:16].replace("T", " ")
        table.add_row(
            execution.execution_id[:_SHORT_EXECUTION],
            Text(_what(execution, whole=width >= _WIDEST)),
            f"{min(execution.answered, planned)} of {planned}",
            *([begun] if width >= _NARROW else []),
            one_line(execution.model),
            one_line(execution.claim),
        )
    return table


def anomalies_table(found: Sequence[Anomaly]) -> Table:
    """List claims by how far evidence moves the belief in them; why some don't pass."""
    table = plain_table("Shock Index", "Amplification Gap", "model", "~claim")
    for anomaly in found:
        shock, gap = anomaly.shock_index, anomaly.amplification_gap
        claim = one_line(anomaly.claim)
        style = "green" if anomaly.listed else "yellow"
        claim = Text(f"({feed_text(anomaly)}) ", style=style) + claim
        table.add_row(
            shock_text(shock),
            "—" if gap is None else f"{gap.value:+.3f} [{gap.lo:+.3f}, {gap.hi:+.3f}]",
            Text(anomaly.model),
            claim,
        )
    return table


def shock_text(shock: MetricRecord | None) -> str:
    """Write a Shock Index with its interval; a dash where there is none."""
    return "—" if shock is None else f"{shock.value:.3f} [{shock.lo:.3f}, {shock.hi:.3f}]"


def verification_view(found: Verification) -> RenderableType:
    """Show the result of verifying a run's record, with the differences."""
    head = Text(f"{found.execution_id} ")
    if found.ok:
        head.append(f"verified: {found.checked:,} values derived again", style="green")
        return Group(head, *(Text(f"  {note}", style="dim") for note in found.notes))
    head.append(f"NOT verified: {len(found.differences)} differences", style="bold red")
    lines = [
        Text(f"  {one.path}: recorded {one.recorded!r}, derived {one.derived!r}")
        for one in found.differences[:20]
    ]
    if len(found.differences) > 20:
        lines.append(Text(f"  … and {len(found.differences) - 20} more"))
    return Group(head, *lines)


def difference_view(a: RunRecord, b: RunRecord, found: Comparison) -> RenderableType:
    """Show two runs side by side, and the difference of their beliefs."""
    difference = found.difference
    table = plain_table("~", "~A", "~B")
    for name, left, right in (
        ("claim", a.claim, b.claim),
        ("model", a.model, b.model),
        ("prompts", a.prompt_version, b.prompt_version),
        ("read-out", _readout(a), _readout(b)),
        ("K×R, T", _shape(a), _shape(b)),
        ("p(true)", _prob(a), _prob(b)),
        ("stability", _stability(a), _stability(b)),
    ):
        table.add_row(name, Text(left), Text(right, style="" if left == right else "yellow"))
    pairs = getattr(difference, "n_pairs", None)
    how = (
        "unpaired: too few wordings are shared, so the interval is wider"
        if pairs is None
        else f"paired over {pairs} templates"
    )
    lo, hi = difference.diff_prob_lo, difference.diff_prob_hi
    line = Text("B − A  ")
    line.append(f"{difference.diff_prob:+.3f}", style="bold cyan")
    line.append(f"   95% CI {lo:+.3f} … {hi:+.3f}   ({how})")
    plain = found.paired_template_t
    warnings = difference_warnings(a, b, plain.n_pairs if plain else None)
    told = [Text(warning, style="yellow") for warning in warnings]
    finding = Text(difference_finding(a, b, found).sentence)
    return Group(finding, table, Text(""), line, *told, *_paired_lines(found))


def _paired_lines(found: Comparison) -> Iterator[RenderableType]:
    """Show the difference by Student's t over the shared wordings, each p with its interval."""
    plain, trimmed = found.paired_template_t, found.paired_template_t_trimmed
    if plain is None or trimmed is None:
        yield Text("no p-value: fewer than 2 wordings are shared", style="dim")
        return
    yield facts_table([("paired t", _t_text(plain)), ("  trimmed", _t_text(trimmed))])


def _t_text(found: PairedT) -> str:
    of = found.diff_prob
    said = f"{of.value:+.3f}   95% CI {of.lo:+.3f} … {of.hi:+.3f}   {p_text(of.p_value)}"
    return f"{said}   over {found.n_pairs} shared wordings"


def _readout(run: RunRecord) -> str:
    return run.readout.name if run.readout else "sampled"


def _shape(run: RunRecord) -> str:
    sampling = run.sampling
    return f"K={sampling.K} R={sampling.R} T={sampling.T}"


def _counts(run: RunRecord) -> Text:
    usage = run.usage
    parts = [f"{usage.compliant}/{usage.attempted} samples compliant"]
    parts += [f"{count} {reason}" for reason, count in usage.noncompliant.items()]
    if usage.failed:
        parts.append(f"{usage.failed} failed")
    parts.append(f"{usage.from_cache} from cache")
    if usage.in_vain:
        parts.append(f"{usage.in_vain.calls} paid in vain")
    if usage.tokens_out is not None and usage.called:
        parts.append(f"{usage.tokens_in or 0:,} tokens in, {usage.tokens_out:,} out")
    return Text(" · ".join(parts), style="dim")


def _template_table(run: RunRecord) -> Table:
    assert run.diagnostics is not None
    table = plain_table(">template", ">n", ">p", "range", ">without it", "~")
    for row in run.diagnostics.templates:
        style = "dim" if row.trimmed else "cyan"
        table.add_row(
            f"{'trimmed ' if row.trimmed else ''}{row.paraphrase_idx:2d}",
            str(row.n),
            f"{row.prob:.3f}",
            span(row.min_prob, row.max_prob),
            "—" if row.influence_prob is None else f"{row.influence_prob:+.3f}",
            IntervalBar(row.prob, row.min_prob, row.max_prob, cells=25, style=style),
            style="dim" if row.trimmed else "",
        )
    return table


def _variance_lines(run: RunRecord) -> Iterator[RenderableType]:
    found = run.diagnostics
    assert found is not None
    if found.paraphrase_range_prob is not None and found.paraphrase_sd_prob is not None:
        yield Text(
            f"wording alone moves p by up to {found.paraphrase_range_prob:.3f} "
            f"(sd {found.paraphrase_sd_prob:.3f})"
        )
    if found.between_share is not None:
        yield Text(
            f"{percent(found.between_share)} of the variance lies between templates, "
            f"{percent(1 - found.between_share)} within"
        )
    elif found.variance_note:
        yield Text(found.variance_note, style="dim")


def _provenance(run: RunRecord) -> Table:
    how = run.aggregation
    return facts_table(
        [
            ("run_id", run.run_id),
            ("execution_id", run.execution_id),
            ("served", ", ".join(str(s.provider_model_id) for s in run.served) or "—"),
            ("method", f"{how.method}, B={how.B}"),
            ("bootstrap_seed", f"{how.bootstrap_seed} ({how.seed_source})"),
            ("bank", f"{run.prompts.source} {run.prompts.bank_sha256[:16]}"),
            ("measured", f"{run.started_at} by heretix {run.heretix_version}"),
            ("sha256", run.sha256),
        ]
    )


def _cost(estimate: Estimate) -> str:
    if not estimate.to_call:
        return "nothing: everything is cached"
    if estimate.cost_usd is None or estimate.cost_usd_max is None:
        return "unknown: no price for this model (HERETIX_PRICES names a table of yours)"
    if not estimate.cost_usd_max:
        return "$0"
    date = f", prices of {estimate.price_as_of}" if estimate.price_as_of else ""
    return f"about ${estimate.cost_usd:.4f}, at most ${estimate.cost_usd_max:.4f}{date}"


def _prob(run: RunRecord) -> str:
    belief = run.aggregates
    if belief.prob_true_rpl is None or belief.ci95 is None:
        return "no estimate"
    return f"{belief.prob_true_rpl:.3f} [{span(*belief.ci95)}]"


def _stability(run: RunRecord) -> str:
    belief = run.aggregates
    if belief.stability_score is None:
        return "—"
    return f"{belief.stability_score:.2f} ({belief.stability_band})"


def vector_view(artifact: Artifact, *, lacking_told: bool = False) -> RenderableType:
    """Show the belief of a model with each kind of evidence, and what lies between.

    With `lacking_told`, why a lens has too little evidence was said before, and isn't repeated.
    """
    runs = artifact.runs
    if artifact.metrics is None:
        # Nothing but raw priors: there is no vector, and each stands for itself.
        return Group(*map(run_view, runs))
    parts: list[RenderableType] = [Text(artifact.claim or runs[0].claim, style="bold")]
    for model, found in artifact.metrics.items():
        lines = [lens for lens in artifact.lenses or [] if lens.model == model]
        if finding := headline(artifact, model):
            parts.append(Text(finding.sentence))
        parts += [Text(model, style="dim"), _vector_table(lines, lacking_told=lacking_told)]
        parts += _metric_lines(found)
        parts.append(facts_table([*_source_facts(artifact, lines), *check_lines(artifact, model)]))
        parts += _experiment_lines(artifact, model)
        labels = (warning_label(run) for run in runs if run.model == model)
        parts += [Text(label, style="yellow") for label in dict.fromkeys(labels) if label]
    return Group(*parts)


def _source_facts(artifact: Artifact, lines: Sequence[LensRecord]) -> Iterator[tuple[str, str]]:
    """Name the classes of the documents that each lens showed, or had too few of."""
    bundles = {bundle["bundle_id"]: bundle for bundle in artifact.bundles or ()}
    for line in lines:
        bundle = bundles.get(line.bundle_id or "")
        if bundle is not None and line.lens in SEARCHED:
            yield f"sources {line.lens}", composition_text(bundle)
        if bundle is not None and (sides := stance_text(bundle)):
            yield f"stance {line.lens}", sides


def check_lines(artifact: Artifact, model: str | None = None) -> Iterator[tuple[str, str]]:
    """Name each lens that was checked by a planted order or other places, and what that did."""
    for found in artifact.experiments or ():
        if model in {None, found.model} and (said := check_text(found)):
            yield f"check {found.lens}", said


def bundle_view(bundle: Mapping[str, Any]) -> RenderableType:
    """Show the documents of a bundle: class, reliability and stance, then a quote of each."""
    items = bundle["items"]
    head = Text(f"{bundle['lens']} bundle {bundle['bundle_id'][:16]}", style="bold")
    if version := bundle["policy"]["version"]:
        head.append(f" (policy {version})", style="dim")
    table = plain_table("id", "class", "reliability", "published", "stance", "~publisher")
    # Beside the other columns a narrow terminal would leave a quote one word a line.
    quotes = Table.grid(padding=(0, 2))
    quotes.add_column(no_wrap=True)
    quotes.add_column(ratio=1)
    for item in items:
        table.add_row(
            item["id"],
            item["cls"],
            reliability_text(item["reliability"]),
            item["published"] or "undated",
            item["stance"] or "–",
            Text(item["publisher"]),
        )
        quotes.add_row(item["id"], Text(item["quote"]))
    parts: list[RenderableType] = [head]
    if items:
        judges = sorted({str(by) for item in items if (by := item.get("stance_by"))})
        notes = [f"stance by: {', '.join(judges)}"] if judges else []
        if any(item["stance"] is None for item in items):
            notes.append("stance –: not judged")
        if not all(item["reliability"]["judged"] for item in items):
            notes.append(f"reliability as an interval: {NOT_ASSESSED}")
        parts += [table, Text("quotes", style="dim"), quotes, Text("; ".join(notes), style="dim")]
    parts.append(Text(f"sources: {composition_text(bundle)}", style="dim"))
    if sides := stance_text(bundle):
        parts.append(Text(f"stance: {sides}", style="dim"))
    return Group(*parts, *_dropped_lines(bundle["dropped"]))


def _dropped_lines(dropped: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Count the documents left out by reason, and list those that nearly got in."""
    if not dropped:
        return
    counts = Counter(str(drop["reason"]) for drop in dropped)
    said = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    yield Text(f"{len(dropped)} left out: {said}", style="dim")
    near = [drop for drop in dropped if drop["reason"] not in _ELSEWHERE]
    for drop in near[:12]:
        why = drop_detail(drop["reason"], drop["params"])
        yield Text(f"  {drop['reason']}: {drop['title']} ({why})", style="dim")


_ROOM_FOR_T: Final = 64
"""Columns from which a vector's table has room for a second interval beside the first."""


class _VectorTable:
    """Rows of a vector; on a narrow screen the interval by t gives way to the bar."""

    def __init__(self, rows: Sequence[tuple[RenderableType, ...]]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        wide = options.max_width >= _ROOM_FOR_T
        table = plain_table("lens", ">p(true)", "95% CI", *(["by t"] if wide else []), "~")
        for *numbers, by_t, bar in self._rows:
            table.add_row(*numbers, *([by_t] if wide else []), bar)
        yield table


def _vector_table(lines: list[LensRecord], *, lacking_told: bool) -> RenderableType:
    rows: list[tuple[RenderableType, ...]] = []
    notes = []
    for line in lines:
        if line.prob_true is None or line.ci95 is None:
            rows.append((line.lens, "—", "—", "—", Text(line.status, style="yellow")))
            if not (lacking_told and line.status == "insufficient_evidence"):
                notes.append(Text(f"{line.lens}: {missing_reason(line.reason)}", style="yellow"))
            continue
        by_t = line.beside.template_t if line.beside else None
        bar = IntervalBar(line.prob_true, *line.ci95, cells=41, style=LENSES[line.lens].style)
        value, beside = f"{line.prob_true:.3f}", span(*by_t.ci95) if by_t else "—"
        rows.append((line.lens, value, span(*line.ci95), beside, bar))
        if warning := warn_clamp_sensitive(line.beside):
            notes.append(Text(f"{line.lens}: {warning}", style="yellow"))
        if line.trusted is False:
            wrong = MISQUOTED if line.bundle_id else QUOTED_NOTHING
            notes.append(Text(f"{line.lens}: {wrong}", style="yellow"))
    return Group(_VectorTable(rows), *notes)


def _metric_lines(found: MetricsRecord) -> list[RenderableType]:
    if found.reason is not None:
        return [Text(f"no differences: {missing_reason(found.reason)}", style="yellow")]
    missing = [
        Text(f"no differences for {lens}: {missing_reason(reason)}", style="yellow")
        for lens, reason in found.missing.items()
        # The line of a lens without a number has said why already.
        if reason.code not in {"insufficient_evidence", *NO_ESTIMATE}
    ]
    return [*missing, facts_table(_metric_facts(found))]


def _metric_facts(found: MetricsRecord) -> Iterator[tuple[str, str]]:
    """Name each metric with its frozen interval, and below it what Student's t gives."""
    beside = found.beside
    if found.shock_index:
        floor = (
            "noise floor unknown with R=1"
            if found.noise_floor is None
            else f"noise floor {found.noise_floor:.3f}"
        )
        yield "Shock Index", f"{_write_interval(found.shock_index)}   ({floor})"
        yield from _list_t_facts(beside.shock_index if beside else None, plus=False)
    if found.amplification_gap:
        yield "Amplification Gap", _write_signed(found.amplification_gap)
        yield from _list_t_facts(beside.amplification_gap if beside else None)
        yield "  towards the prior", _write_direction(found.directed_gap)
    for lens, gain in _sort_by_lens(found.information_gain):
        if lens != NUL:
            yield f"Information Gain {lens}", f"{_write_signed(gain)} bits"
            yield from _list_t_facts(beside.information_gain[lens] if beside else None)
    for lens, effect in _sort_by_lens(found.evidence_effect):
        yield f"evidence effect {lens}", _write_signed(effect)
        yield from _list_t_facts(beside.evidence_effect[lens] if beside else None)
    if found.wrapper_effect:
        yield "wrapper effect", _write_signed(found.wrapper_effect)
        yield from _list_t_facts(beside.wrapper_effect if beside else None)
    yield from _other_facts(found)


def _other_facts(found: MetricsRecord) -> Iterator[tuple[str, str]]:
    """Name what moved each lens, and the metrics that aren't differences."""
    for lens, said in _sort_by_lens(placebo_texts(found)):
        yield f"what moved {lens}", said
    if found.dispersion_bits:
        yield "dispersion", f"{_write_interval(found.dispersion_bits)} bits"
    for lens, sources in _sort_by_lens(found.source_concentration):
        said = f"{sources.effective_sources:.2f} of {sources.publishers} publishers"
        yield f"effective sources {lens}", said
    for name, number in found.plugins.items():
        said = f"— {number.reason}" if number.value is None else _write_interval(number)
        yield name, f"{said}   ({number.package} {number.version})"


def _list_t_facts(found: TwinsRecord | None, *, plus: bool = True) -> Iterator[tuple[str, str]]:
    if found:
        yield "  by paired t", twins_text(found, plus=plus)


def _sort_by_lens(by_lens: Mapping[str, T]) -> list[tuple[str, T]]:
    return sorted(by_lens.items(), key=lambda entry: list(LENSES).index(entry[0]))


def _experiment_lines(artifact: Artifact, model: str) -> list[RenderableType]:
    """Show the belief of each lens minus that of its variants."""
    found = [record for record in artifact.experiments or [] if record.model == model]
    if not found:
        return []
    shown = {run.execution_id: run.evidence.bundle_id for run in artifact.runs if run.evidence}
    titles = {
        (bundle["bundle_id"], item["id"]): f"{item['publisher']}: {item['title']}"
        for bundle in artifact.bundles or []
        for item in bundle["items"]
    }
    table = plain_table("lens", "variant", "p(true)", "lens − variant", "by paired t", "~")
    for record in found:
        left_out = record.variant.removeprefix("without:")
        table.add_row(
            record.lens,
            Text(record.variant),
            "—" if record.prob_changed is None else f"{record.prob_changed:.3f}",
            _write_signed(record.difference)
            if record.difference
            else f"— {missing_reason(record.reason)}",
            _t_cell(record.beside),
            one_line(titles.get((shown.get(record.execution_id), left_out), "")),
        )
    return [Text(""), table]


def _t_cell(found: TwinsRecord | None) -> str:
    if found is None:
        return "—"
    plain = found.paired_template_t
    return f"{metric_text(plain)} {p_text(plain.p_value)}"


def _write_direction(metric: MetricRecord | None) -> str:
    if metric is None:
        return "undefined: the prior's interval holds 1/2"
    if metric.lo <= 0 <= metric.hi:
        said = "neither amplifies nor corrects it for certain"
    else:
        said = "amplifies it" if metric.value > 0 else "corrects it"
    return f"{_write_signed(metric)}   ({said})"


def _write_signed(metric: MetricRecord) -> str:
    return f"{metric.value:+.3f}   [{metric.lo:+.3f}, {metric.hi:+.3f}]"


def _write_interval(metric: MetricRecord | PluginMetricRecord) -> str:
    return f"{metric.value:.3f}   [{metric.lo:.3f}, {metric.hi:.3f}]"
