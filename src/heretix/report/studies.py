"""Studies as a person reads them: in a terminal, on a page, on a sheet, and as a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from heretix.belief.template_t import template_t
from heretix.core.errors import NoEstimateError
from heretix.core.lenses import RPL
from heretix.providers.catalog import MADE_UP_BY
from heretix.report.charts.theme import LIGHT
from heretix.report.terminal import facts_table, plain_table
from heretix.report.words import DEMONSTRATION, MADE_UP, counted
from heretix.studies import study as s
from heretix.studies.calibration import SCORES
from heretix.studies.check import describe

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
    return warnings


def study_facts(record: StudyRecord) -> list[tuple[str, str]]:
    """List what was measured, with what, and what it cost."""
    plan = ", ".join(f"{name}={value}" for name, value in record.sampling.items() if value)
    costs = [run.cost_usd for run in record.runs]
    known = [cost for cost in costs if cost is not None]
    cost = f"${sum(known):.4f}" if len(known) == len(costs) else "unknown"
    calls = sum(run.calls for run in record.runs)
    return [
        ("study", " ".join(filter(None, [record.kind, record.name]))),
        ("claims", f"{len(record.items):,}, {counted(len(record.runs), 'run')}"),
        ("plan", f"{plan}, bank {record.prompt_version}"),
        ("calls", f"{calls:,} made now, cost {cost}"),
    ]


def study_sections(record: StudyRecord) -> Iterator[tuple[str, Row, list[Row]]]:
    """Make the tables of a study: a title, the columns, the rows."""
    found = record.results
    if isinstance(found, s.CalibrationResults):
        for one in found.subjects:
            title = _title(one.model, one.lens, len(record.items) - one.left_out, one.left_out)
            yield title, ("score", "value [95% interval]", "reads"), _scores(one)
        for between in found.comparisons:
            title = f"{between.b} minus {between.a}, over {between.comparison.n_claims} claims"
            yield title, ("score", "difference [95% interval]", "p"), _compared(between.comparison)
    elif isinstance(found, s.CoherenceResults):
        for coherent in found.subjects:
            yield from _coherence_sections(coherent)
    elif isinstance(found, s.VarianceResults):
        for varied in found.subjects:
            title = _title(
                varied.model, varied.lens, len(record.items) - varied.left_out, varied.left_out
            )
            yield title, ("component", "variance [95% interval]", "reads"), _components(varied)
    else:
        for card in found.subjects:
            rows: list[Row] = [
                (
                    one.name,
                    _STANDARDS[one.name][0],
                    with_interval(one),
                    str(one.n_claims),
                    _STANDARDS[one.name][1],
                )
                for one in card.standards
            ]
            yield card.model, ("standard", "measure", "value [95% interval]", "n", "reads"), rows


def _title(model: str, lens: str, n: int, left_out: int) -> str:
    lacking = f", {left_out} left out without an estimate" if left_out else ""
    return f"{model}, {lens}: {counted(n, 'claim')}{lacking}"


def _scores(one: s.CalibrationOf) -> list[Row]:
    if one.calibration is None:
        return [("none", one.reason or "", "")]
    found = one.calibration
    reads = {**_BEST, "ece": f"0 is best; {found.ece_raw:.3f} with what chance alone adds"}
    return [(name, with_interval(getattr(found, name)), reads[name]) for name in SCORES]


def _compared(found: Comparison) -> list[Row]:
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
    title = _title(one.model, RPL, len(one.pairs) + len({r.claim for r in one.rules}), one.left_out)
    rows: list[Row] = []
    if one.summary is not None:
        summary = one.summary
        said = with_interval(summary.acquiescence, signed=True)
        rows.append(("acquiescence, log-odds", said, "0 is best; above: says yes to both"))
        rows.append(("violation", with_interval(summary.violation), "0 is best"))
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
    parts: list[RenderableType] = [facts_table(study_facts(record))]
    for title, columns, rows in study_sections(record):
        parts += [Text(""), Text(title, style="bold"), plain_table(*columns, rows=rows)]
    parts += [Text(warning, style="yellow") for warning in study_warnings(record)]
    return Group(*parts)


def checks_view(findings: Sequence[Finding]) -> RenderableType:
    """Show what became of each expectation."""
    lines = []
    for finding in findings:
        head = Text(f"{finding.verdict:<11}", style=_VERDICT_STYLE.get(finding.verdict, "bold red"))
        head.append(f"{finding.claim}  ", style="")
        head.append(f"{' and '.join(finding.models)}  {describe(finding)}", style="dim")
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
    widest = max((plan.expected_width for plan in frontier), default=1.0)
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
_COLUMNS: Final = (
    *(("claim", "string"), ("label", "bool_"), ("relation", "string"), ("of_claim", "string")),
    *(("model", "string"), ("lens", "string"), ("prob_true", "float64")),
    *(("t_lo", "float64"), ("t_hi", "float64"), ("wordings", "int64"), ("answers", "int64")),
    *(("calls", "int64"), ("cost_usd", "float64")),
    *(("execution_id", "string"), ("run_id", "string"), ("run_sha256", "string")),
)
"""Of a study's table; `relation` is what the claim is to `of_claim`."""


def study_rows(record: StudyRecord) -> list[dict[str, Any]]:
    """List one row a run: the claim, what is known of it, the belief with its `template_t`."""
    labels = {item.claim: item.label for item in record.items}
    related = {text: item for item in record.items for text in item.others}
    rows = []
    for run in record.runs:
        item = related.get(run.claim)
        lo, hi = _ends(run.logits) if run.prob_true is not None else (None, None)
        rows.append(
            {
                "claim": run.claim,
                "label": labels.get(run.claim),
                "relation": item.relation if item else None,
                "of_claim": item.claim if item else None,
                "model": run.model,
                "lens": run.lens,
                "prob_true": run.prob_true,
                "t_lo": lo,
                "t_hi": hi,
                "wordings": len(run.logits),
                "answers": sum(map(len, run.logits.values())),
                "calls": run.calls,
                "cost_usd": run.cost_usd,
                "execution_id": run.execution_id,
                "run_id": run.run_id,
                "run_sha256": run.run_sha256,
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
    write_export(path, write_columns(format_of(path), _COLUMNS, iter([rows])))
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
                if (run.model, run.lens) == (one.model, one.lens)
            ]
            title = f"Reliability of {one.model}, {one.lens}"
            yield title, reliability_diagram(judged, title=title, theme=theme)
    elif isinstance(found, s.CoherenceResults):
        for coherent in found.subjects:
            if coherent.pairs:
                yield (
                    f"Acquiescence of {coherent.model}",
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
                title = f"Expected width for {varied.model}, {varied.lens}"
                yield title, expected_width(frontier, named, title=title, theme=theme)


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
        title=f"Acquiescence of {one.model}",
        subtitle=[
            f"mean {said}; n = {counted(len(one.pairs), 'pair')}",
            "Half of the sum of both log-odds. Right of 0: yes to a claim and to its negation.",
        ],
        description=f"Acquiescence of {one.model} for {len(pairs)} claims: mean {said}.",
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
        columns=[name for name, _ in _COLUMNS[:11]],
        rows=[[_cell(row[name]) for name, _ in _COLUMNS[:11]] for row in study_rows(record)],
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
