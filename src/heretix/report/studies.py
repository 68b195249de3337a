"""Studies as a person reads them: in a terminal, on a page, on a sheet, and as a table."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from rich.console import Group, RenderableType
from rich.text import Text

from heretix.belief.student import template_t
from heretix.core.errors import NoEstimateError
from heretix.core.lenses import LENSES, RPL
from heretix.providers.catalog import MADE_UP_BY
from heretix.readouts import SAMPLED
from heretix.report.charts.theme import LIGHT
from heretix.report.findings import quote_models
from heretix.report.terminal import facts_table, plain_table
from heretix.report.words import DEMONSTRATION, MADE_UP, PLACEBO, plural
from heretix.studies import study as s
from heretix.studies.calibration import SCORES
from heretix.studies.coherence import expect_violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from heretix.report.charts import Chart
    from heretix.report.charts.theme import Theme
    from heretix.studies.calibration import Comparison
    from heretix.studies.check import Finding
    from heretix.studies.design import Plan, VarianceComponents
    from heretix.studies.study import StudyRecord

Row = tuple[str, ...]
_Subject = s.CalibrationOf | s.CoherenceOf | s.VarianceOf | s.CardOf

_BEST: Final[Mapping[str, str]] = {
    "brier": "0 is best, .25 always says 1/2",
    "log_score": "0 is best, .693 always says 1/2",
    "auroc": "1 is best, .5 is chance",
    "ece": "0 is best",
    "slope": "1 is best; below: too sure, above: too timid",
    "intercept": "0 is best; above: says too little",
}
_STANDARDS: Final[Mapping[str, tuple[str, str]]] = {
    "accuracy": ("AUROC", "1 is best, .5 is chance"),
    "coherence": ("violation of p + q = 1", "0 is best"),
    "uniformity": ("variance between wordings, log-odds²", "0 is best"),
    "evidence": ("log-odds towards the truth", "above 0 is best, 0 is no use of documents"),
    "evidence_minus_sham": ("the same beyond irrelevant text", "0 is what any text does"),
}
_VERDICT_STYLE: Final = {"holds": "green", "fails": "bold red", "undecided": "yellow"}
_SHOWN_PLANS: Final = 12
_ENOUGH_FOR_ECE: Final = 400
"""Claims. Of an error of .25, 40 claims show .09 on average and 100 show .19: docs/studies.md."""


def with_interval(found: Any, *, signed: bool = False) -> str:
    """Write a number with its interval; its reason where it has none."""
    if found is None:
        return "—"
    if found.value is None:
        return f"— ({found.reason})"
    form = "+.3f" if signed else ".3f"
    return f"{found.value:{form}} [{found.lo:{form}}, {found.hi:{form}}]"


def study_warnings(record: StudyRecord) -> list[str]:
    """List what a reader of the study's numbers has to be told beside them."""
    warnings = []
    if any(run.demonstration for run in record.runs):
        warnings.append(DEMONSTRATION)
    if any(run.provider in MADE_UP_BY for run in record.runs):
        warnings.append(MADE_UP)
    if record.kind == "calibration" and len(record.items) < _ENOUGH_FOR_ECE:
        warnings.append(
            f"ece comes out too small below {_ENOUGH_FOR_ECE} claims: read the slope first"
        )
    shown = {run.lens for run in record.runs if LENSES[run.lens].needs_documents}
    if record.kind == "calibration" and shown:
        warnings.append(
            f"{', '.join(sorted(shown))}: {PLACEBO['unchecked']}; any text may change a score as "
            "much: `heretix card` and `heretix lens --sham` tell"
        )
    between = getattr(record.results, "comparisons", ())
    if any(getattr(one.comparison, name) is None for one in between for name in SCORES):
        warnings.append(
            "— is a difference that can't be told: a side has no such score, or both put every "
            "true claim above every false one (or below)"
        )
    return warnings


def study_facts(record: StudyRecord) -> list[tuple[str, str]]:
    """List what was measured, with what, and what it cost."""
    plans = []
    for plan in record.plans:
        sampling = ", ".join(f"{name}={value}" for name, value in plan.sampling.items() if value)
        plans.append(("plan", f"{plan.readout}: {sampling}, bank {plan.prompt_version}"))
    costs = [run.cost_usd for run in record.runs]
    known = [cost for cost in costs if cost is not None]
    cost = f"${sum(known):.4f}" if len(known) == len(costs) else "unknown"
    calls = sum(run.calls for run in record.runs)
    return [
        ("study", " ".join(filter(None, [record.kind, record.name]))),
        ("claims", f"{len(record.items):,}, {plural(len(record.runs), 'run')}"),
        *plans,
        ("calls", f"{calls:,} made now, cost {cost}"),
    ]


def study_findings(record: StudyRecord) -> list[str]:
    """Say in a sentence for each subject what was found, never more than its interval says."""
    return [quote_models([one.model], _tell(one), []) for one in record.results.subjects]


def _tell(one: _Subject) -> str:
    match one:
        case s.CalibrationOf():
            return _tell_calibration(one)
        case s.CoherenceOf():
            return _tell_coherence(one)
        case s.VarianceOf():
            return _tell_variance(one)
        case _:
            told = "; ".join(f"{found.name} {with_interval(found)}" for found in one.standards)
            return f"{_name(one)}: {told}"


def _tell_calibration(one: s.CalibrationOf) -> str:
    name, found = _name(one, one.lens), one.calibration
    if found is None:
        return f"{name}: nothing can be said, {one.reason}"
    auroc, slope = found.auroc, found.slope
    told = "can't be shown to tell true claims from false ones"
    if auroc.lo is not None and auroc.lo > 0.5:
        told = "tells true claims from false ones better than chance"
    elif auroc.hi is not None and auroc.hi < 0.5:
        told = "takes false claims for true more often than chance"
    leaning = ""
    if slope.hi is not None and slope.hi < 1:
        leaning = f", and is too sure of itself (slope {with_interval(slope)})"
    elif slope.lo is not None and slope.lo > 1:
        leaning = f", and is too timid (slope {with_interval(slope)})"
    of = f"AUROC {with_interval(auroc)}, {plural(found.n_claims, 'claim')}"
    return f"{name} {told} ({of}){leaning}"


def _tell_coherence(one: s.CoherenceOf) -> str:
    name, found = _name(one), one.summary
    broken = sum(rule.rule.verdict == "broken" for rule in one.rules)
    rules = f"{broken} of {plural(len(one.rules), 'rule')} broken" if one.rules else ""
    if found is None:
        return f"{name}: {rules or 'too few pairs of a claim and its negation to say anything'}"
    told = "can't be shown to lean to yes or to no"
    if found.acquiescence.lo > 0:
        told = "says yes to a claim and to its negation alike"
    elif found.acquiescence.hi < 0:
        told = "says no to a claim and to its negation alike"
    of = with_interval(found.acquiescence, signed=True)
    pairs = plural(found.n_pairs, "pair")
    return f"{name} {told} (log-odds {of}, {pairs}){f'; {rules}' if rules else ''}"


def _tell_variance(one: s.VarianceOf) -> str:
    name = _name(one, one.lens)
    if one.components is None:
        return f"{name}: nothing can be said, {one.reason}"
    told = ", ".join(f"{value} {reads}" for _, value, reads in _components(one))
    return f"{name}: answers vary by {told} (variance in log-odds)"


def study_sections(record: StudyRecord) -> Iterator[tuple[str, Row, list[Row]]]:
    """Make the tables of a study: a title, the columns, the rows."""
    found = record.results
    if isinstance(found, s.CalibrationResults):
        for one in found.subjects:
            title = _title(one, one.lens, len(record.items) - one.left_out)
            yield title, ("score", "value [95% interval]", "reads"), _scores(one)
        yield from _comparison_sections(found.comparisons)
    elif isinstance(found, s.CoherenceResults):
        for coherent in found.subjects:
            yield from _coherence_sections(coherent)
        yield from _comparison_sections(found.comparisons)
    elif isinstance(found, s.VarianceResults):
        for varied in found.subjects:
            title = _title(varied, varied.lens, len(record.items) - varied.left_out)
            yield title, ("component", "variance [95% interval]", "reads"), _components(varied)
    else:
        for card in found.subjects:
            rows: list[Row] = [
                (
                    one.name.removeprefix("evidence_").replace("_", " "),
                    _STANDARDS[one.name][0],
                    with_interval(one),
                    str(one.n_claims),
                    _STANDARDS[one.name][1] + _beside_scatter(one.scatter_alone),
                )
                for one in card.standards
            ]
            columns = ("standard", "measure", "value [95% interval]", "n", "reads")
            # A movement is told with what made it.
            made_by = f"; shown documents: {PLACEBO[card.placebo]}" if card.placebo else ""
            yield f"{_name(card)}{made_by}", columns, rows


def _beside_scatter(violation: float | None) -> str:
    return "" if violation is None else f"; scatter of wordings alone gives {violation:.3f}"


def _comparison_sections(
    comparisons: Sequence[s.Between],
) -> Iterator[tuple[str, Row, list[Row]]]:
    for between in comparisons:
        title = f"{between.b} minus {between.a}, over {between.comparison.n_claims} claims"
        yield title, ("score", "difference [95% interval]", "p"), _compare_rows(between.comparison)


def _name(one: _Subject, lens: str | None = None) -> str:
    """Name a subject; of read-outs the one that goes without saying is `sampled`."""
    return ", ".join(filter(None, [one.model, lens, "" if one.readout == SAMPLED else one.readout]))


def _title(one: _Subject, lens: str, n: int) -> str:
    lacking = f", {one.left_out} left out without an estimate" if one.left_out else ""
    return f"{_name(one, lens)}: {plural(n, 'claim')}{lacking}"


def _scores(one: s.CalibrationOf) -> list[Row]:
    if one.calibration is None:
        return [("none", one.reason or "", "")]
    found = one.calibration
    reads = {**_BEST, "ece": f"0 is best; {found.ece_raw:.3f} with what chance alone adds"}
    return [(name, with_interval(getattr(found, name)), reads[name]) for name in SCORES]


def _compare_rows(found: Comparison) -> list[Row]:
    rows: list[Row] = []
    for name in SCORES:
        one = getattr(found, name)
        p_value = "" if one is None else f"{one.p_value:.3f}"
        rows.append((name, with_interval(one, signed=True), p_value))
    return rows


def _components(one: s.VarianceOf) -> list[Row]:
    found = one.components
    if found is None:
        return [("none", one.reason or "", "")]
    rows: list[Row] = []
    for name, reads in (("template", "between wordings"), ("replicate", "between repeats")):
        interval = getattr(found, f"{name}_interval")
        value = getattr(found, name)
        rows.append((name, with_interval(interval) if interval else f"{value:.3f}", reads))
    return rows


def _coherence_sections(one: s.CoherenceOf) -> Iterator[tuple[str, Row, list[Row]]]:
    title = _title(one, RPL, len(one.pairs) + len({r.claim for r in one.rules}))
    rows: list[Row] = []
    if one.summary is not None:
        summary = one.summary
        said = with_interval(summary.acquiescence, signed=True)
        rows.append(("acquiescence, log-odds", said, "0 is best; above: says yes to both"))
        alone = expect_violation([pair.pair for pair in one.pairs])
        reads = f"{_STANDARDS['coherence'][1]}{_beside_scatter(alone)}"
        rows.append(("violation", with_interval(summary.violation), reads))
    for name, found in (("AUROC as said", one.as_said), ("AUROC freed", one.freed)):
        if found is not None:
            rows.append((name, with_interval(found.auroc), _BEST["auroc"]))
    if one.gain is not None and one.gain.auroc is not None:
        rows.append(("freed minus said", with_interval(one.gain.auroc, signed=True), ""))
    for verdict in ("holds", "broken", "undecided"):
        count = sum(rule.rule.verdict == verdict for rule in one.rules)
        if one.rules:
            rows.append((f"rules: {verdict}", str(count), f"of {len(one.rules)}"))
    yield title, ("measure", "value [95% interval]", "reads"), rows


def study_view(record: StudyRecord) -> RenderableType:
    """Show a study: what was measured, then its tables."""
    parts: list[RenderableType] = [Text(said) for said in study_findings(record)]
    parts.append(facts_table(study_facts(record)))
    for title, columns, rows in study_sections(record):
        parts += [Text(""), Text(title, style="bold"), plain_table(*columns, rows=rows)]
    parts += [Text(warning, style="yellow") for warning in study_warnings(record)]
    return Group(*parts)


def _describe(finding: Finding) -> str:
    """Say what became of an expectation, in a line."""
    if finding.value is None or finding.lo is None or finding.hi is None:
        return f"{finding.rule}: no estimate"
    what = "p" if finding.about == "belief" else "difference"
    found = f"{what} = {finding.value:.3f} [{finding.lo:.3f}, {finding.hi:.3f}]"
    return f"{finding.rule}: {finding.verdict}, {found}"


def checks_view(findings: Sequence[Finding]) -> RenderableType:
    """Show what became of each expectation."""
    lines = []
    for finding in findings:
        head = Text(f"{finding.verdict:<11}", style=_VERDICT_STYLE.get(finding.verdict, "bold red"))
        head.append(f"{finding.claim}  ", style="")
        head.append(f"{' and '.join(finding.models)}  {_describe(finding)}", style="dim")
        lines.append(head)
    return Group(*lines)


def design_view(
    components: VarianceComponents,
    plans: Mapping[str, Plan],
    frontier: Sequence[Plan],
    notes: Sequence[str],
    *,
    priced: bool,
) -> RenderableType:
    """Show where the spread comes from, what named plans will give, and the best for few calls."""
    facts = []
    for name, said in (("template", "between wordings"), ("replicate", "between repeats")):
        interval = getattr(components, f"{name}_interval")
        ends = f" [{interval.lo:.3f}, {interval.hi:.3f}]" if interval else ""
        facts.append((said, f"{getattr(components, name):.3f}{ends} log-odds²"))
    columns = ("plan", ">wordings", ">answers each", ">calls", ">expected width")
    table = plain_table(
        *columns,
        *([">cost"] if priced else []),
        rows=[
            (
                name,
                str(plan.T),
                str(plan.R),
                str(plan.calls),
                f"{plan.expected_width:.3f}",
                *([f"{plan.cost:.4g}"] if priced else []),
            )
            for name, plan in plans.items()
        ],
    )
    step = max(1, len(frontier) // _SHOWN_PLANS)
    # Nothing scatters where both variances are 0: every bar is as short as can be.
    widest = max((plan.expected_width for plan in frontier), default=0.0) or 1.0
    bars = plain_table(
        ">calls",
        "best plan",
        ">width",
        "",
        rows=[
            (
                str(plan.calls),
                f"{plan.T} × {plan.R}",
                f"{plan.expected_width:.3f}",
                "━" * max(1, round(40 * plan.expected_width / widest)),
            )
            for plan in frontier[::step]
        ],
    )
    lines = [Text(note) for note in notes]
    return Group(facts_table(facts), Text(""), table, Text(""), bars, Text(""), *lines)


# A page, a sheet, a table.

_SHOWN_PAIRS: Final = 60
_SHEET_PX: Final = 640
STUDY_COLUMNS: Final = (
    *(("claim", "string"), ("label", "bool_"), ("relation", "string"), ("of_claim", "string")),
    *(("model", "string"), ("lens", "string"), ("readout", "string"), ("prob_true", "float64")),
    *(("ci_lo", "float64"), ("ci_hi", "float64"), ("t_lo", "float64"), ("t_hi", "float64")),
    *(("wordings", "int64"), ("answers", "int64"), ("calls", "int64"), ("cost_usd", "float64")),
    *(("execution_id", "string"), ("run_id", "string"), ("run_sha256", "string")),
    ("variant", "string"),
)
"""Of a study's table; `relation` is what the claim is to `of_claim`, `ci_…` is the frozen interval
and `t_…` is `template_t`."""
_SHOWN: Final = tuple(name for name, _ in STUDY_COLUMNS[:14])
"""Those on a page: up to `answers`."""


def study_rows(record: StudyRecord) -> list[dict[str, Any]]:
    """List one row a run: the claim, what is known of it, the belief with both its intervals."""
    labels = {item.claim: item.label for item in record.items}
    related = {text: item for item in record.items for text in item.others}
    rows = []
    for run in record.runs:
        item = related.get(run.claim)
        ci_lo, ci_hi = run.ci95 or (None, None)
        t_lo, t_hi = _ends(run.logits) if run.prob_true is not None else (None, None)
        rows.append(
            {
                "claim": run.claim,
                "label": labels.get(run.claim),
                "relation": item.relation if item else None,
                "of_claim": item.claim if item else None,
                "model": run.model,
                "lens": run.lens,
                "readout": run.readout,
                "prob_true": run.prob_true,
                "ci_lo": ci_lo,
                "ci_hi": ci_hi,
                "t_lo": t_lo,
                "t_hi": t_hi,
                "wordings": len(run.logits),
                "answers": sum(map(len, run.logits.values())),
                "calls": run.calls,
                "cost_usd": run.cost_usd,
                "execution_id": run.execution_id,
                "run_id": run.run_id,
                "run_sha256": run.run_sha256,
                "variant": run.variant,
            }
        )
    return rows


def _ends(logits: Mapping[str, Sequence[float]]) -> tuple[float | None, float | None]:
    try:
        found = template_t(logits)
    except NoEstimateError:
        return None, None
    return found.ci_lo, found.ci_hi


def write_table(record: StudyRecord, path: Path) -> int:
    """Write the rows of a study as .csv, .jsonl or .parquet; returns how many there are."""
    from heretix.report.export import format_of, write_columns, write_export

    rows = study_rows(record)
    write_export(path, write_columns(format_of(path), STUDY_COLUMNS, iter([rows])))
    return len(rows)


def study_pictures(record: StudyRecord, theme: Theme = LIGHT) -> Iterator[tuple[str, Chart]]:
    """Draw the charts of a study, each with its title."""
    from heretix.report.charts import JudgedClaim, expected_width, reliability_diagram
    from heretix.studies.design import expected_widths, plan_for

    found = record.results
    if isinstance(found, s.CalibrationResults):
        labels = {item.claim: item.label for item in record.items}
        for one in found.subjects:
            judged = [
                JudgedClaim(prob_true=run.prob_true, is_true=bool(labels[run.claim]))
                for run in record.runs
                if (run.model, run.lens, run.readout) == (one.model, one.lens, one.readout)
            ]
            title = f"Reliability of {_name(one, one.lens)}"
            yield title, reliability_diagram(judged, title=title, theme=theme)
    elif isinstance(found, s.CoherenceResults):
        for coherent in found.subjects:
            if coherent.pairs:
                yield (
                    f"Acquiescence of {_name(coherent)}",
                    _acquiescence_chart(coherent, theme),
                )
    elif isinstance(found, s.VarianceResults):
        for varied in found.subjects:
            if varied.components is not None:
                named = {
                    "8 × 2": plan_for(varied.components, T=8, R=2),
                    "16 × 1": plan_for(varied.components, T=16, R=1),
                }
                frontier = expected_widths(varied.components, max_calls=64)
                title = f"Expected width for {_name(varied, varied.lens)}"
                yield title, expected_width(frontier, named, title=title, theme=theme)
    else:
        for card in found.subjects:
            yield f"Card of {_name(card)}", _card_chart(card, theme)


def _card_chart(one: s.CardOf, theme: Theme) -> Chart:
    """Draw a standard a panel: each is measured on a scale of its own."""
    from heretix.report.charts import figure as fig

    panels = []
    for standard in one.standards:
        row = fig.IntervalRow(
            label=standard.name.removeprefix("evidence_").replace("_", " "),
            value=standard.value,
            lo=standard.lo,
            hi=standard.hi,
            reason=standard.reason,
            colour=theme.colour(RPL),
        )
        measure, signed = _STANDARDS[standard.name][0], standard.name.startswith("evidence")
        probs = {"domain": [0, 1]}
        axis = (
            fig.quantity(measure, scale=probs, format=".2f")
            if standard.name == "accuracy"
            else fig.difference_axis(measure, [row])
        )
        reference = 0.5 if standard.name == "accuracy" else 0.0
        drawn = fig.interval_panel(
            [row], axis=axis, theme=theme, signed=signed, reference=reference
        )
        panels.append(drawn)
    said = "; ".join(f"{found.name} {with_interval(found)}" for found in one.standards)
    return fig.figure(
        {"vconcat": panels, "spacing": 18},
        title=f"Card of {_name(one)}",
        subtitle=["Bars: 95% intervals; dashed lines: chance, or 0."],
        description=f"Card of {_name(one)}: {said}.",
        theme=theme,
        wide=True,
    )


def _acquiescence_chart(one: s.CoherenceOf, theme: Theme) -> Chart:
    """Draw the acquiescence of each pair; those furthest from 0 where there are many."""
    from heretix.report.charts import figure as fig

    pairs = sorted(one.pairs, key=lambda pair: -abs(pair.pair.acquiescence.value))[:_SHOWN_PAIRS]
    rows = [
        fig.IntervalRow(
            label=pair.claim,
            value=pair.pair.acquiescence.value,
            lo=pair.pair.acquiescence.lo,
            hi=pair.pair.acquiescence.hi,
            colour=theme.colour(RPL),
        )
        for pair in pairs
    ]
    axis = fig.difference_axis("acquiescence, log-odds", rows)
    said = with_interval(one.summary.acquiescence, signed=True) if one.summary else "—"
    return fig.figure(
        fig.interval_panel(rows, axis=axis, theme=theme, signed=True, reference=0.0),
        title=f"Acquiescence of {_name(one)}",
        subtitle=[
            f"mean {said}; n = {plural(len(one.pairs), 'pair')}",
            "Half of the sum of both log-odds. Right of 0: yes to a claim and to its negation.",
        ],
        description=f"Acquiescence of {_name(one)} for {len(pairs)} claims: mean {said}.",
        theme=theme,
        wide=True,
    )


def study_html(record: StudyRecord) -> str:
    """Write the report of a study as one page that opens offline, verified while it is made."""
    from heretix.report.charts.theme import css_variables, dark_css
    from heretix.report.document import draw_inline, environment
    from heretix.version import VERSION

    page = environment().get_template("study.html")
    return page.render(
        title=_heading(record),
        facts=study_facts(record),
        warnings=study_warnings(record),
        sections=list(study_sections(record)),
        figures=[
            draw_inline(chart, f"p{n}") for n, (_, chart) in enumerate(study_pictures(record))
        ],
        columns=_SHOWN,
        rows=[[_cell(row[name]) for name in _SHOWN] for row in study_rows(record)],
        verification=s.verify_study(record),
        record=record,
        palette=css_variables(),
        recolour=dark_css("figure svg"),
        version=VERSION,
    )


def study_svg(record: StudyRecord, *, theme: Theme = LIGHT) -> str:
    """Draw the sheet of a study: charts, tables, and whether it verifies."""
    from heretix.report.charts import chart_svg
    from heretix.report.document import MARGIN, Sheet, size_of
    from heretix.version import VERSION

    drawn = [
        chart_svg(chart, prefix=f"p{n}")
        for n, (_, chart) in enumerate(study_pictures(record, theme))
    ]
    width = max([_SHEET_PX, *(size_of(drawing)[0] for drawing in drawn)])
    sheet = Sheet(theme=theme, width=math.ceil(width) + 2 * MARGIN)
    sheet.text(_heading(record), px=22, colour=theme.ink, bold=True)
    for name, value in study_facts(record)[1:]:
        sheet.text(f"{name}: {value}", px=12, colour=theme.muted, gap=0)
    for warning in study_warnings(record):
        sheet.text(warning, px=14, colour=theme.warn)
    for title, _, rows in study_sections(record):
        sheet.y += 8
        sheet.text(title, px=15, colour=theme.ink, bold=True)
        for row in rows:
            sheet.text(" · ".join(filter(None, row)), px=12, colour=theme.ink, gap=0)
    sheet.y += 12
    for drawing in drawn:
        sheet.drawing(drawing)
    checked = s.verify_study(record)
    said = (
        f"Verified: {checked.checked:,} values were derived again from the record, all equal."
        if checked.ok
        else f"NOT verified: {len(checked.differences)} values don't follow from the record"
    )
    sheet.text(said, px=12, colour=theme.ink if checked.ok else theme.warn)
    sheet.text(f"sha256 {record.sha256}, heretix {VERSION}", px=10, colour=theme.muted)
    return sheet.write(f"Study: {_heading(record)}")


def study_report(record: StudyRecord, suffix: str, *, theme: Theme = LIGHT) -> bytes:
    """Make the report of a study as the bytes of a .html, .pdf, .png or .svg file."""
    from heretix.report.charts.output import drawing_bytes

    if suffix == ".html":
        return study_html(record).encode()
    return drawing_bytes(study_svg(record, theme=theme), suffix)


def _heading(record: StudyRecord) -> str:
    return f"{record.kind.capitalize()}: {record.name or 'plain claims'}"


def _cell(value: object) -> str:
    if value is None:
        return "—"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# JUnit's XML, which CI systems show.

Outcome = Literal["failure", "error", "skipped"]
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that was looked at, and what was wrong with it."""

    classname: str
    name: str
    outcome: Outcome | None
    """None: nothing."""
    message: str = ""
    type: str = ""


def junit_xml(name: str, cases: Sequence[Case], *, told: str = "") -> bytes:
    """Write a suite of cases; `told` stands beside them and fails nothing."""
    counts = Counter(case.outcome for case in cases)
    suite = Element(
        "testsuite",
        name=_xml_text(name),
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
    )
    for case in cases:
        made = SubElement(suite, "testcase", classname=_xml_text(case.classname))
        made.set("name", _xml_text(case.name))
        if case.outcome is not None:
            problem = SubElement(made, case.outcome, message=_xml_text(case.message))
            if case.type:
                problem.set("type", case.type)
    if told:
        SubElement(suite, "system-out").text = _xml_text(told)
    indent(suite)
    written: bytes = tostring(suite, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _xml_text(text: str) -> str:
    """Text without what XML can't hold, even escaped."""
    return _NOT_XML.sub("\ufffd", text)


def checks_junit(findings: Sequence[Finding], name: str, *, allow_undecided: bool) -> bytes:
    """Write the findings of a check; undecided is a failure unless that is allowed."""
    outcomes: dict[str, Outcome | None] = {
        "holds": None,
        "no_estimate": "error",
        "undecided": "skipped" if allow_undecided else "failure",
    }
    cases = [
        Case(
            classname=" and ".join(finding.models),
            name=f"{finding.rule}: {finding.claim}",
            outcome=(outcome := outcomes.get(finding.verdict, "failure")),
            message=_describe(finding),
            type="" if outcome in {None, "skipped"} else finding.verdict,
        )
        for finding in findings
    ]
    return junit_xml(name, cases)
