"""Studies as a person reads them: in a terminal, on a page, on a sheet, and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from heretix.providers.catalog import MADE_UP_BY
from heretix.report.terminal import facts_table, plain_table
from heretix.report.words import DEMONSTRATION, MADE_UP, counted
from heretix.studies import study as s
from heretix.studies.calibration import SCORES
from heretix.studies.check import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    return [(name, with_interval(getattr(one.calibration, name)), _BEST[name]) for name in SCORES]


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
    title = _title(
        one.model, "RPL", len(one.pairs) + len({r.claim for r in one.rules}), one.left_out
    )
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
