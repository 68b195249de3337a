"""A report: one HTML file that opens offline, or one drawing (SVG, PNG, PDF). Everything from
records is untrusted. The templates escape it, and the page's own policy allows neither scripts nor
anything from outside. A drawing holds what fits a picture: headline, charts, how the number was
made, and where it came from; the answers themselves stand in the HTML."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import ConfigError
from heretix.core.lenses import LENSES
from heretix.measurement.record import Artifact
from heretix.measurement.vector import select_unchanged_runs
from heretix.measurement.verify import verify_artifact
from heretix.report import charts, figures, words
from heretix.report.charts import figure as fig
from heretix.report.charts.beliefs import claim_of, run_names
from heretix.report.charts.figure import number
from heretix.report.charts.studies import drift, evidence_days, evidence_over_time
from heretix.report.charts.theme import FONT, LIGHT, Theme, css_variables, dark_css
from heretix.report.findings import belief_finding, difference_finding, headline, short_model
from heretix.report.method import METHOD, method_lines
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jinja2 import Environment
    from markupsafe import Markup

    from heretix.measurement.record import RunRecord, SampleRecord
    from heretix.measurement.verify import Comparison, Verification
    from heretix.report.charts import Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart, what it is called in a report, and the runs whose answers are behind it."""

    title: str
    chart: Chart
    runs: tuple[RunRecord, ...]
    claim: str | None = None  # None where it is about several

    def title_of(self, several: bool) -> str:
        """Return the title, with the claim where a report is about several."""
        return f"{self.title}: {self.claim}" if several and self.claim else self.title


def plain_runs(artifacts: Sequence[Artifact]) -> list[RunRecord]:
    """List the runs that measure a belief itself, each once, in the order given."""
    runs = []
    for artifact in artifacts:
        if artifact.lenses is not None:
            runs += select_unchanged_runs(artifact.runs, claim_of(artifact))
        else:
            runs += [run for run in artifact.runs if not (run.evidence and run.evidence.variant)]
    return _drop_duplicates(runs)


def _findings(
    artifacts: Sequence[Artifact], plain: Sequence[RunRecord], *, several: bool
) -> list[str]:
    """Say what was found: a sentence for each model of a vector, and for each run of none."""
    said: dict[str, str] = {}
    whole = [artifact for artifact in artifacts if artifact.lenses is not None]
    for artifact in whole:
        for model in artifact.metrics or {}:
            if found := headline(artifact, model):
                said[found.sentence] = claim_of(artifact)
    in_vectors = {run.execution_id for artifact in whole for run in artifact.runs}
    for run in plain:
        if run.execution_id not in in_vectors:
            said[belief_finding(run).sentence] = run.claim
    return [f"{claim} {sentence}" if several else sentence for sentence, claim in said.items()]


def _drop_duplicates(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Leave out records that were named before."""
    return list({(run.execution_id, run.sha256): run for run in runs}.values())


def vectors(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """List belief vectors: those recorded, and those that single runs of one claim make up."""
    found = [artifact for artifact in artifacts if artifact.lenses is not None]
    loose = plain_runs([artifact for artifact in artifacts if artifact.lenses is None])
    for claim in dict.fromkeys(run.claim for run in loose):
        own = select_unchanged_runs(loose, claim)
        for model in dict.fromkeys(run.model for run in own):
            runs = [run for run in own if run.model == model]
            lenses = {run.lens for run in runs}
            # With a lens measured twice there isn't one vector, and none is made up.
            if len(lenses) > 1 and len(lenses) == len(runs):
                found.append(Artifact.of(runs))
    return found


def draw_shared_pictures(artifacts: Sequence[Artifact], *, theme: Theme = LIGHT) -> list[Picture]:
    """Draw the charts that more than one run stands behind."""
    runs = plain_runs(artifacts)
    pictures = []
    if len(runs) > 1:
        chart = charts.model_comparison(runs, theme=theme)
        pictures.append(Picture(title="Side by side", chart=chart, runs=tuple(runs)))
    for artifact in vectors(artifacts):
        pictures += _vector_pictures(artifact, theme)
    for run_id in dict.fromkeys(run.run_id for run in runs):
        same = tuple(run for run in runs if run.run_id == run_id)
        if len(same) > 1:
            chart = drift(same, theme=theme)
            pictures.append(Picture(title="Over time", chart=chart, runs=same, claim=same[0].claim))
    return pictures + _evidence_pictures(artifacts, theme)


def _evidence_pictures(artifacts: Sequence[Artifact], theme: Theme) -> list[Picture]:
    """Draw how the record of evidence moved the belief of each claim and model over time."""
    points = evidence_days(artifacts)
    pictures = []
    for claim, model in dict.fromkeys(one[:2] for one in points):
        own = [one for one in artifacts if claim_of(one) == claim]
        behind = tuple(_drop_duplicates([run for *of, _, run in points if of == [claim, model]]))
        alone = [
            one.model_copy(update={"runs": [run for run in one.runs if run.model == model]})
            for one in own
        ]
        chart = evidence_over_time(alone, theme=theme)
        pictures.append(Picture(title="Evidence over time", chart=chart, runs=behind, claim=claim))
    return pictures


def _vector_pictures(artifact: Artifact, theme: Theme) -> list[Picture]:
    pictures = []
    claim = claim_of(artifact)
    for model in dict.fromkeys(run.model for run in artifact.runs):
        own = [run for run in artifact.runs if run.model == model]
        plain = select_unchanged_runs(own, claim)
        chart = charts.belief_vector(artifact, model, theme=theme)
        pictures.append(Picture(title="Belief vector", chart=chart, runs=tuple(plain), claim=claim))
        records = [record for record in artifact.experiments or [] if record.model == model]
        kinds = (
            ("Influence of each document", charts.document_influence, True),
            ("Controls", charts.evidence_controls, False),
        )
        for title, draw, left_out in kinds:
            chosen = [r for r in records if r.variant.startswith("without:") is left_out]
            if chosen:
                # The variants themselves, and the unchanged lenses they were compared with.
                variants = {record.execution_id for record in chosen}
                lenses = {record.lens for record in chosen}
                behind = [run for run in plain if run.lens in lenses]
                behind += [run for run in own if run.execution_id in variants]
                chart = draw(artifact, model, theme=theme)
                pictures.append(Picture(title=title, chart=chart, runs=tuple(behind), claim=claim))
    return pictures


_SHOWN_DIFFERENCES: Final = 20
_NAMED_SOURCES: Final = 6
_NAME_CHARS: Final = 46


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A drawn chart, and where its answers stand on the page."""

    svg: Markup
    sources: tuple[tuple[str, str], ...]  # (anchor, what to call it)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """One run on the page."""

    anchor: str
    name: str
    run: RunRecord
    warnings: tuple[str, ...]
    figures: tuple[_Figure, ...]
    method: tuple[str, ...]
    provenance: tuple[tuple[str, str], ...]
    verification: Verification | None
    answers: tuple[tuple[int, tuple[SampleRecord, ...]], ...]  # By template
    experiment: bool  # Made to be compared with others: seen together in a chart, not one by one


def report_html(artifacts: Sequence[Artifact]) -> str:
    """Write the whole report of these artifacts, verified while it is made."""
    # A report of an experiment alone is about that.
    plain = plain_runs(artifacts) or [run for artifact in artifacts for run in artifact.runs]
    # After them those made to be compared with others: variants of bundles, and negations.
    runs = _drop_duplicates([*plain, *(run for artifact in artifacts for run in artifact.runs)])
    found = [check for artifact in artifacts for check in verify_artifact(artifact)]
    checked = {check.execution_id: check for check in found}
    names = [
        fig.join_parts(fig.shorten(part, _NAME_CHARS) for part in name if part)
        for name in run_names(runs)
    ]
    sections = [
        _section(run, f"run-{place}", name, checked.get(run.execution_id), place > len(plain))
        for place, (run, name) in enumerate(zip(runs, names, strict=True), 1)
    ]
    by_execution = {section.run.execution_id: section for section in sections}
    claims = list(dict.fromkeys(run.claim for run in plain))
    claim = claims[0] if len(claims) == 1 else f"{len(claims)} claims"
    findings = _findings(artifacts, plain, several=len(claims) > 1)
    page = environment().get_template("report.html")
    return page.render(
        title=findings[0] if findings and len(claims) == 1 else claim,
        claim=claim,
        findings=findings,
        day=max((run.finished_at[:10] for run in runs), default=""),
        method=METHOD,
        marks=[
            (name, mark)
            for name, run in zip(names, runs, strict=True)
            if (mark := figures.belief_mark(run, run.lens))
        ],
        dumbbell=figures.dumbbell,
        axis=figures.axis,
        lenses=[code.lower() for code in LENSES],
        sections=sections,
        shared=list(_draw_shared_figures(artifacts, by_execution, several=len(claims) > 1)),
        bundles=[(claim_of(a), bundle) for a in artifacts for bundle in a.bundles or []],
        moved=list(_list_moves(artifacts)),
        between=[check for check in found if check.execution_id not in by_execution],
        palette=css_variables(),
        recolour=dark_css("figure svg"),
        lens_names={code: lens.label for code, lens in LENSES.items()},
        shown_differences=_SHOWN_DIFFERENCES,
        version=VERSION,
    )


def _section(
    run: RunRecord, anchor: str, name: str, verification: Verification | None, experiment: bool
) -> _Section:
    ordered = sorted(run.samples, key=lambda s: (s.paraphrase_idx, s.slot, s.replicate_idx))
    by_template = groupby(ordered, key=lambda sample: sample.paraphrase_idx)
    return _Section(
        anchor=anchor,
        name=name,
        run=run,
        warnings=tuple(_warnings(run, verification)),
        figures=() if experiment else tuple(_figures(run, anchor)),
        method=tuple(method_lines(run)),
        provenance=tuple(_provenance(run)),
        verification=verification,
        answers=tuple((index, tuple(samples)) for index, samples in by_template),
        experiment=experiment,
    )


def _draw_shared_figures(
    artifacts: Sequence[Artifact], sections: Mapping[str, _Section], *, several: bool
) -> Iterator[_Figure]:
    for place, picture in enumerate(draw_shared_pictures(artifacts)):
        behind = [sections[run.execution_id] for run in picture.runs]
        sources = tuple((f"{section.anchor}-answers", section.name) for section in behind)
        if len(sources) > _NAMED_SOURCES:
            sources = (("runs", f"the answers of {len(sources)} runs"),)
        svg = draw_inline(
            fig.with_title(picture.chart, picture.title_of(several)), f"shared-{place}"
        )
        yield _Figure(svg=svg, sources=sources)


def _figures(run: RunRecord, anchor: str) -> Iterator[_Figure]:
    sources = ((f"{anchor}-answers", f"all {run.usage.attempted} answers"),)
    for place, picture in enumerate(_draw_own_pictures(run, LIGHT)):
        svg = draw_inline(fig.with_title(picture.chart, picture.title), f"{anchor}-{place}")
        yield _Figure(svg=svg, sources=sources)


def _warnings(run: RunRecord, verification: Verification | None) -> Iterator[str]:
    yield from words.run_warnings(run)
    if run.evidence is not None and run.evidence.trusted is False:
        yield words.MISQUOTED
    if verification is not None and not verification.ok:
        yield f"NOT verified: {len(verification.differences)} values don't follow from the record"


def _provenance(run: RunRecord) -> Iterator[tuple[str, str]]:
    how, options = run.aggregation, run.options
    yield "run", run.run_id
    yield "execution", run.execution_id
    yield "model", f"{run.model} ({run.provider})"
    yield "served", ", ".join(str(s.provider_model_id) for s in run.served) or "nobody"
    yield "lens", f"{run.lens}: {LENSES[run.lens].label}"
    # To the second: the record has the rest.
    start, end = (stamp[:19].replace("T", " ") for stamp in (run.started_at, run.finished_at))
    yield "measured", f"{start} to {end} UTC"
    yield "sampling", f"K={run.sampling.K} R={run.sampling.R} T={run.sampling.T}"
    yield "method", f"{how.method}, B={how.B}, trim={how.trim:g}"
    yield "bootstrap seed", f"{how.bootstrap_seed} ({how.seed_source})"
    yield "bank", f"{run.prompt_version} ({run.prompts.source}), sha256 {run.prompts.bank_sha256}"
    yield "sent", ", ".join(f"{k}={v}" for k, v in options.model_dump().items() if v is not None)
    usd = run.usage.cost_usd
    yield "cost", "unknown" if usd is None else f"${usd:.4f}" if usd else "$0"
    yield "made by", f"heretix {run.heretix_version}"
    yield "record sha256", run.sha256


def draw_inline(chart: dict[str, Any], prefix: str) -> Markup:
    from markupsafe import Markup

    # The engine escapes every text that it draws; a test draws markup to see that it does.
    return Markup(charts.chart_svg(chart, prefix=prefix))  # noqa: S704


def environment() -> Environment:
    """Make the environment of the templates: everything is escaped."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as exc:
        raise ConfigError(
            "`report` needs its templates' engine: `uv sync --extra charts`, "
            "or `pip install '.[charts]'` in the clone"
        ) from exc
    environment = Environment(
        loader=PackageLoader("heretix.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["drop_detail"] = words.drop_detail
    environment.globals["no_estimate_reason"] = words.no_estimate_reason
    environment.globals["not_assessed"] = words.NOT_ASSESSED
    environment.globals["stance_text"] = words.stance_text
    environment.filters |= {
        "emphasise": figures.emphasise,
        "reliability": words.reliability_text,
        "span": lambda ends: words.span(*ends),
        "signed": lambda value: number(value, signed=True),
    }
    return environment


MARGIN: Final = 36
_SIZE: Final = re.compile(r'width="([\d.]+)" height="([\d.]+)"')
_NAMED: Final = 3
_MOST_RUNS: Final = 200  # More would make a picture too tall for what opens pictures
_CHARS_AT_1PX: Final = 0.5  # Average width of a character, for each pixel of its font's size


@dataclass(slots=True)
class Sheet:
    """A page that grows downwards."""

    theme: Theme
    width: float
    parts: list[str] = field(default_factory=list)
    y: float = MARGIN

    def text(self, content: str, *, px: int, colour: str, bold: bool = False, gap: int = 6) -> None:
        """Write a paragraph, wrapped to the page."""
        room = int((self.width - 2 * MARGIN) / (px * _CHARS_AT_1PX))
        weight = ' font-weight="bold"' if bold else ""
        for line in fig.wrap_text(content, room, lines=8):
            self.y += px * 1.35
            self.parts.append(
                f'<text x="{MARGIN}" y="{self.y:.1f}" font-size="{px}" fill="{colour}"'
                f"{weight}>{escape(line)}</text>"
            )
        self.y += gap

    def drawing(self, svg: str) -> None:
        """Place a chart below what is there."""
        self.parts.append(svg.replace("<svg ", f'<svg x="{MARGIN - 12}" y="{self.y:.1f}" ', 1))
        self.y += size_of(svg)[1] + 8

    def write(self, label: str) -> str:
        """Write the sheet as SVG."""
        height = self.y + MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'role="img" aria-label="{escape(label, quote=True)}" width="{self.width:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {self.width:.0f} {height:.0f}" '
            f'font-family="{FONT}">'
            f'<rect width="100%" height="100%" fill="{self.theme.paper}"/>'
            f"{''.join(self.parts)}</svg>"
        )


def report_svg(artifacts: Sequence[Artifact], *, theme: Theme = LIGHT) -> str:
    """Draw the sheet of artifacts: of one run its charts, of several what they say together."""
    runs = plain_runs(artifacts)
    if len(runs) > _MOST_RUNS:
        raise ConfigError(
            f"`runs`: a sheet holds at most {_MOST_RUNS}, got {len(runs)}; name fewer, or write "
            "the report as .html"
        )
    claims = list(dict.fromkeys(run.claim for run in runs))
    pictures = list(_draw_own_pictures(runs[0], theme)) if len(runs) == 1 else []
    pictures += draw_shared_pictures(artifacts, theme=theme)
    several = len(claims) > 1
    drawings = [
        charts.chart_svg(
            fig.with_title(picture.chart, picture.title_of(several)), prefix=f"p{number}"
        )
        for number, picture in enumerate(pictures)
    ]
    widest = max(size_of(drawing)[0] for drawing in drawings)
    sheet = Sheet(theme=theme, width=widest + 2 * MARGIN)
    findings = _findings(artifacts, runs, several=several) or claims
    if several:
        findings.insert(0, f"{len(claims)} claims, {len(runs)} runs")
    title, *further = findings
    sheet.text(title, px=22, colour=theme.ink, bold=True)
    for text in further if several else [f"The claim: {claims[0]}", *further]:
        sheet.text(text, px=16, colour=theme.ink)
    if len(runs) == 1:
        _headline(sheet, runs[0])
    for drawing in drawings:
        sheet.drawing(drawing)
    _write_making(sheet, artifacts, runs)
    return sheet.write(f"Report: {fig.strip_controls(title)}")


def _draw_own_pictures(run: RunRecord, theme: Theme) -> Iterator[Picture]:
    forest = charts.template_forest(run, theme=theme)
    yield Picture(title="What each wording gave", chart=forest, runs=(run,))
    if run.status == "ok":
        replicas = charts.bootstrap_distribution(run, theme=theme)
        yield Picture(title="Where the interval comes from", chart=replicas, runs=(run,))


def _list_moves(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """Say of every lens whether evidence moved the belief, or any text would have."""
    for artifact in artifacts:
        for model, metrics in (artifact.metrics or {}).items():
            for lens, said in words.placebo_texts(metrics).items():
                yield f"{claim_of(artifact)} · {model} · {lens}: {said}"
        for found in artifact.experiments or ():
            if said := words.check_text(found):
                yield f"{claim_of(artifact)} · {found.model} · {found.lens}: {said}"


def _headline(sheet: Sheet, run: RunRecord) -> None:
    belief, theme = run.aggregates, sheet.theme
    about = fig.join_parts([run.model, f"lens {run.lens}", run.prompt_version, run.started_at[:10]])
    sheet.text(about, px=13, colour=theme.muted)
    if belief.prob_true_rpl is None or belief.ci95 is None:
        sheet.text(
            f"No estimate: {words.no_estimate_reason(run.reason)}",
            px=16,
            colour=theme.warn,
            bold=True,
        )
    else:
        said = (
            f"p(true) {belief.prob_true_rpl:.3f}, 95% interval {words.span(*belief.ci95)}, "
            f"stability {belief.stability_score:.2f} ({belief.stability_band})"
        )
        sheet.text(said, px=17, colour=theme.ink, bold=True)
        if run.beside and (beside := words.beside_text(run.beside)):
            sheet.text(f"Beside it {beside}", px=13, colour=theme.muted)
    for label in (words.warn_clamp_sensitive(run.beside), words.warning_label(run)):
        if label:
            sheet.text(label, px=14, colour=theme.warn)


def _write_making(sheet: Sheet, artifacts: Sequence[Artifact], runs: Sequence[RunRecord]) -> None:
    """Write how it was made, whether it verifies, and what it was made from."""
    theme = sheet.theme
    sheet.y += 10
    sheet.text("How it was made", px=15, colour=theme.ink, bold=True)
    if len(runs) == 1:
        for line in method_lines(runs[0]):
            sheet.text(line, px=12, colour=theme.ink)
    else:
        answers = sum(run.usage.compliant for run in runs)
        said = (
            f"{len(runs)} runs with {answers} answers. Each asks for the probability of a claim in "
            "several wordings, averages log-odds within and then over wordings, and draws "
            "wordings and answers anew for its 95% interval. The HTML report has the steps, the "
            "values and every answer of each run."
        )
        sheet.text(said, px=12, colour=theme.ink)
    found = [check for artifact in artifacts for check in verify_artifact(artifact)]
    wrong = [check.execution_id for check in found if not check.ok]
    if wrong:
        said = ", ".join(wrong[:_NAMED]) + ("" if len(wrong) <= _NAMED else ", …")
        said = f"NOT verified: {len(wrong)} of {len(found)} records ({said})"
        sheet.text(said, px=13, colour=theme.warn, bold=True)
    else:
        checked = sum(check.checked for check in found)
        said = f"Verified: {checked:,} values were derived again from the records, all equal."
        sheet.text(said, px=12, colour=theme.ink)
    for run in runs:
        sheet.text(f"{run.execution_id}  sha256 {run.sha256}", px=10, colour=theme.muted, gap=0)
    sheet.text(f"heretix {VERSION}", px=10, colour=theme.muted)


def size_of(svg: str) -> tuple[float, float]:
    found = _SIZE.search(svg)
    assert found is not None, "a drawing says how large it is"
    return float(found.group(1)), float(found.group(2))


# A belief in a notebook: one self-contained piece of HTML, no scripts.

_BAR_PX = 420


def belief_html(run: RunRecord) -> str:
    """Write the headline of a run, with its interval drawn."""
    belief = run.aggregates
    parts = [
        '<div style="font-family:sans-serif;max-width:34em">',
        f"<strong>{escape(belief_finding(run).sentence)}</strong>",
        f"<div>{escape(run.claim)}</div>",
        f'<div style="color:#666">{escape(run.model)} · {escape(run.prompt_version)}</div>',
    ]
    if belief.prob_true_rpl is None or belief.ci95 is None:
        parts.append(f"<div>No estimate: {escape(words.no_estimate_reason(run.reason))}</div>")
    else:
        lo, hi = belief.ci95
        parts.append(
            f"<div>p(true) <b>{belief.prob_true_rpl:.3f}</b>, 95% CI {words.span(lo, hi)}, "
            f"stability {belief.stability_score:.2f} ({belief.stability_band})</div>"
        )
        parts.append(_interval_bar(belief.prob_true_rpl, lo, hi))
        if run.beside and (beside := words.beside_text(run.beside)):
            parts.append(f'<div style="color:#666">beside it {escape(beside)}</div>')
    parts += [f"<div><em>{escape(text)}</em></div>" for text in words.run_warnings(run)]
    return "".join([*parts, "</div>"])


def vector_html(artifact: Artifact) -> str:
    """Write what a model's lenses say together: the finding, what moved each, and every belief."""
    model = artifact.runs[0].model
    found = headline(artifact, model)
    metrics = (artifact.metrics or {}).get(model)
    parts = [f"<strong>{escape(found.sentence)}</strong>"] if found else []
    parts += [
        f"<div>what moved {lens}: {escape(said)}</div>"
        for lens, said in words.placebo_texts(metrics).items()
    ]
    plain = [run for run in artifact.runs if not (run.evidence and run.evidence.variant)]
    return "".join(parts + [belief_html(run) for run in plain])


def difference_html(a: RunRecord, b: RunRecord, found: Comparison) -> str:
    """Write the difference of two beliefs: sentence, paired t and its twin, warnings, both runs."""
    said = [f"<strong>{escape(difference_finding(a, b, found).sentence)}</strong>"]
    plain, trimmed = found.paired_template_t, found.paired_template_t_trimmed
    for name, one in (("paired t", plain), ("trimmed", trimmed)):
        if one is not None:
            of = one.diff_prob
            said.append(
                f"<div>{name} {of.value:+.3f}, 95% CI {of.lo:+.3f} … {of.hi:+.3f}, "
                f"{escape(words.p_text(of.p_value))}</div>"
            )
    warnings = words.difference_warnings(a, b, plain.n_pairs if plain else None)
    said += [f"<div><em>{escape(text)}</em></div>" for text in warnings]
    return "".join(said) + beliefs_html([a, b])


def beliefs_html(runs: Sequence[RunRecord]) -> str:
    """Write many runs as a table: claim, model, belief, and its interval drawn."""
    rows = []
    for run in runs:
        belief = run.aggregates
        cells = [escape(run.claim), escape(short_model(run.model)), run.lens]
        if belief.prob_true_rpl is None or belief.ci95 is None:
            cells += ["–", escape(words.no_estimate_reason(run.reason))]
        else:
            lo, hi = belief.ci95
            clamped = " clamp-sensitive" if run.beside and run.beside.clamp_sensitive else ""
            prob = f"{belief.prob_true_rpl:.3f}{clamped}"
            cells += [prob, _interval_bar(belief.prob_true_rpl, lo, hi)]
        by_t = run.beside.template_t if run.beside else None
        cells.append(words.span(*by_t.ci95) if by_t else "–")
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    names = ("claim", "model", "lens", "p(true)", "95% interval, from 0 to 1", "by t")
    header = "".join(f"<th>{name}</th>" for name in names)
    labels = {label for run in runs if (label := words.warning_label(run))}
    below = "".join(f"<div><em>{escape(label)}</em></div>" for label in sorted(labels))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table style="font-family:sans-serif"><tr>{header}</tr>{body}</table>{below}'


def _interval_bar(prob: float, lo: float, hi: float) -> str:
    x, left, right = (4 + value * (_BAR_PX - 8) for value in (prob, lo, hi))
    return (
        f'<svg width="{_BAR_PX}" height="22" role="img" '
        f'aria-label="95% interval from {lo:.3f} to {hi:.3f}">'
        f'<line x1="4" x2="{_BAR_PX - 4}" y1="11" y2="11" stroke="#bbb"/>'
        f'<line x1="{_BAR_PX / 2}" x2="{_BAR_PX / 2}" y1="6" y2="16" stroke="#bbb"/>'
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="11" y2="11" stroke="#0a7ea4" '
        'stroke-width="5"/>'
        f'<circle cx="{x:.1f}" cy="11" r="5" fill="#0a7ea4"/></svg>'
    )
