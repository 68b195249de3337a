"""Charts of beliefs: templates, bootstrap, models side by side, lenses, influence of documents."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heretix.belief.bootstrap import Floats, cluster_bootstrap, plain_bootstrap
from heretix.belief.estimator import order_templates, trim_cut
from heretix.core.errors import NoEstimateError, RecordError
from heretix.core.lenses import LENSES, NUL, RPL
from heretix.measurement.vector import lens_records, metrics_by_model, unchanged_runs
from heretix.report.charts.figure import (
    HEIGHT,
    WIDTH,
    Chart,
    IntervalRow,
    difference_axis,
    drawable,
    figure,
    interval_panel,
    layer,
    listed,
    literal,
    notice,
    prob_axis,
    row_axis,
    row_labels,
    shortened,
    small_text,
)
from heretix.report.charts.theme import LIGHT, SHAPES, Theme
from heretix.report.words import counted, missing_reason, no_estimate_reason, warning_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.measurement.record import (
        Artifact,
        ExperimentRecord,
        LensRecord,
        MetricRecord,
        MetricsRecord,
        RunRecord,
        SampleRecord,
    )

# The templates of a run: what each wording got, and which of them the center leaves out.

_WORDING_CHARS: Final = 46
_SPACE: Final = "\u2003"
"""Common spaces in a row are drawn as one."""


def template_forest(run: RunRecord, *, theme: Theme = LIGHT) -> Chart:
    """Every template's answers, their mean, and the estimate they come to."""
    belief = run.aggregates
    subtitle = [
        run_subtitle(run),
        (
            "Large mark: mean of a wording's answers in log-odds; hollow where it is trimmed. "
            "Small ticks: single answers."
        ),
    ]
    if belief.prob_true_rpl is None or belief.ci95 is None:
        return _no_estimate(run, "Answers of each wording.", theme)
    rows = _rows(run, theme)
    silent = _silent(run, first_row=len(rows))
    lo, hi = belief.ci95
    trimmed = sum(row["trimmed"] for row in rows)
    return figure(
        {
            "width": WIDTH,
            "height": {"step": 24},
            "layer": [
                *_estimate(belief.prob_true_rpl, lo, hi, run.lens, theme),
                *_templates(run, rows, silent, theme),
            ],
        },
        title=run.claim,
        subtitle=subtitle,
        description=(
            f"Forest plot of {counted(len(rows), 'wording')} of the claim '{run.claim}', measured "
            f"with {run.model}: their means from {rows[-1]['prob']:.3f} to {rows[0]['prob']:.3f}; "
            f"{trimmed} are trimmed. The estimate is {belief.prob_true_rpl:.3f}, 95% interval "
            f"{lo:.3f} to {hi:.3f}."
        ),
        theme=theme,
        wide=True,
    )


def _no_estimate(run: RunRecord, description: str, theme: Theme) -> Chart:
    return notice(
        f"No estimate: {no_estimate_reason(run.reason)}",
        title=run.claim,
        subtitle=[run_subtitle(run)],
        description=description,
        theme=theme,
    )


def run_subtitle(run: RunRecord) -> str:
    """Model, lens and n of a run."""
    usage = run.usage
    return listed(
        [
            run.model,
            f"lens {run.lens}",
            f"n = {usage.compliant} of {usage.attempted} answers",
            counted(run.aggregation.n_templates, "wording"),
            warning_word(run),
        ]
    )


def _rows(run: RunRecord, theme: Theme) -> list[dict[str, Any]]:
    """One row a template that answered, the most convinced first."""
    assert run.diagnostics is not None, "an estimate comes with diagnostics"
    colour = theme.colour(run.lens)
    found = sorted(run.diagnostics.templates, key=lambda row: (-row.mean_logit, row.paraphrase_idx))
    return [
        {
            "row": place,
            "template": row.paraphrase_idx,
            "label": _label(run, row.paraphrase_idx),
            "prob": row.prob,
            "min": row.min_prob,
            "max": row.max_prob,
            "n": row.n,
            "trimmed": row.trimmed,
            "said": _SPACE.join(
                [f"{row.prob:.3f}", f"n = {row.n}", *(["trimmed"] if row.trimmed else [])]
            ),
            "colour": theme.colour(NUL) if row.trimmed else colour,
            "fill": theme.paper if row.trimmed else colour,
            "ink": theme.muted if row.trimmed else theme.ink,
        }
        for place, row in enumerate(found)
    ]


def _silent(run: RunRecord, *, first_row: int) -> list[dict[str, Any]]:
    """Templates that were asked and gave nothing usable, with the reasons."""
    by_index: dict[int, list[SampleRecord]] = {}
    for sample in run.samples:
        by_index.setdefault(sample.paraphrase_idx, []).append(sample)
    silent: list[dict[str, Any]] = []
    for index, samples in sorted(by_index.items()):
        if any(sample.compliant for sample in samples):
            continue
        reasons = Counter(
            sample.noncompliance.value if sample.noncompliance else "failed" for sample in samples
        )
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        silent.append(
            {
                "row": first_row + len(silent),
                "label": _label(run, index),
                "reason": f"no usable answer: {why}",
            }
        )
    return silent


def _label(run: RunRecord, index: int) -> str:
    wording = run.prompts.paraphrases[index].replace("<claim>{CLAIM}</claim>", " ")
    return shortened(f"{index} · {wording.strip()}", _WORDING_CHARS)


def _estimate(prob: float, lo: float, hi: float, lens: str, theme: Theme) -> list[dict[str, Any]]:
    x = prob_axis()
    return [
        layer(
            {"type": "rect", "color": theme.band, "opacity": 0.6},
            [{"lo": lo, "hi": hi}],
            x={**x, "field": "lo"},
            x2={"field": "hi"},
        ),
        layer(
            {"type": "rule", "color": theme.colour(lens), "strokeWidth": 1.5, "strokeDash": [5, 3]},
            [{"prob": prob}],
            x={**x, "field": "prob"},
        ),
        layer(
            {"type": "text", "color": theme.ink, "baseline": "bottom", "dy": -4},
            [{"prob": prob, "said": f"estimate {prob:.3f} [{lo:.3f}, {hi:.3f}]"}],
            x={**x, "field": "prob"},
            y={"value": 0},
            text={"field": "said"},
        ),
    ]


def _templates(
    run: RunRecord,
    rows: Sequence[dict[str, Any]],
    silent: Sequence[dict[str, Any]],
    theme: Theme,
) -> list[dict[str, Any]]:
    x = prob_axis()
    y = row_axis(len(rows) + len(silent))
    place = {row["template"]: row for row in rows}
    answers = [
        {"row": row["row"], "prob": sample.prob_true, "colour": row["colour"]}
        for sample in run.samples
        if sample.compliant and (row := place.get(sample.paraphrase_idx)) is not None
    ]
    labels = [(row["label"], "") for row in (*rows, *silent)]
    layers = [
        *row_labels(labels, y, theme),
        layer(
            {"type": "rule", "strokeWidth": 1.5},
            rows,
            x={**x, "field": "min"},
            x2={"field": "max"},
            y=y,
            color=literal("colour"),
        ),
        layer(
            {"type": "tick", "thickness": 1.5, "size": 10},
            answers,
            x={**x, "field": "prob"},
            y=y,
            color=literal("colour"),
        ),
        layer(
            {"type": "point", "size": 80, "strokeWidth": 1.8, "shape": SHAPES[run.lens]}
            | {"opacity": 1},
            rows,
            x={**x, "field": "prob"},
            y=y,
            stroke=literal("colour"),
            fill=literal("fill"),
            tooltip=[
                {"field": "label", "type": "nominal", "title": "wording"},
                {"field": "said", "type": "nominal", "title": "p(true)"},
            ],
        ),
        layer(
            {"type": "text", "align": "left"},
            rows,
            x={"value": WIDTH + 14},
            y=y,
            text={"field": "said"},
            color=literal("ink"),
        ),
    ]
    if silent:
        mark = small_text(theme, align="left", fontStyle="italic") | {"color": theme.warn}
        layers.append(layer(mark, silent, x={"value": 6}, y=y, text={"field": "reason"}))
    return layers


# The bootstrap distribution of an estimate, drawn again from the record with its own seed.

_BINS: Final = 50


def replicas_of(run: RunRecord) -> Floats:
    """The replicas of the center, in log-odds, that the run's interval was read from.

    A record doesn't hold them: they follow from its answers and its seed.
    """
    if run.status != "ok":
        raise NoEstimateError(no_estimate_reason(run.reason) or "no estimate")
    logits: dict[str, list[float]] = {}
    for sample in run.samples:
        if sample.compliant and sample.logit is not None:
            logits.setdefault(sample.prompt_sha256, []).append(sample.logit)
    how = run.aggregation
    templates = order_templates(logits)
    rng = np.random.default_rng(how.bootstrap_seed)
    if how.agg == "simple":
        pooled = sorted(logit for group in templates.values() for logit in group)
        return plain_bootstrap(np.array(pooled), B=how.B, rng=rng)
    cut = trim_cut(len(templates), center=how.center, trim=how.trim)
    groups = [np.array(group) for group in templates.values()]
    return cluster_bootstrap(groups, B=how.B, cut=cut, rng=rng)


def bootstrap_distribution(run: RunRecord, *, theme: Theme = LIGHT) -> Chart:
    """Histogram of the estimates when wordings and answers are drawn anew."""
    belief, how = run.aggregates, run.aggregation
    subtitle = [
        run_subtitle(run),
        (
            f"B = {how.B:,} replicas, seed {how.bootstrap_seed}. "
            "The interval runs from the 2.5th to the 97.5th percentile."
        ),
    ]
    if belief.prob_true_rpl is None or belief.ci95 is None:
        return _no_estimate(run, "Bootstrap distribution.", theme)
    lo, hi = belief.ci95
    return figure(
        {
            "width": WIDTH,
            "height": HEIGHT - 80,
            "layer": [
                *_bars(_counted(replicas_of(run)), (lo, hi), run.lens, theme),
                *_marked(belief.prob_true_rpl, lo, hi, run.lens, theme),
            ],
        },
        title=run.claim,
        subtitle=subtitle,
        description=(
            f"Histogram of {how.B} bootstrap replicas of p(true): the estimate is "
            f"{belief.prob_true_rpl:.3f}, and 95% of the replicas lie from {lo:.3f} to {hi:.3f}."
        ),
        theme=theme,
    )


def _counted(replicas: Floats) -> list[dict[str, Any]]:
    """Replicas by bin of probability; empty bins are left out."""
    probs = 1.0 / (1.0 + np.exp(-replicas))
    counts, edges = np.histogram(probs, bins=_edges(probs))
    return [
        {"from": float(left), "to": float(right), "replicas": int(count)}
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    ]


def _edges(probs: Floats) -> Floats:
    """Bins over what the replicas cover, which may be a single number."""
    low, high = float(probs.min()), float(probs.max())
    room = max((high - low) * 0.02, 0.0005)
    return np.linspace(max(0.0, low - room), min(1.0, high + room), _BINS + 1)


def _x(title: str | None = None) -> dict[str, Any]:
    return {
        "type": "quantitative",
        "scale": {"zero": False, "nice": True},
        "axis": {"title": title or "p(true) of a replica, a probability", "tickCount": 6}
        | {"labelOverlap": "greedy", "labelSeparation": 8},
    }


def _bars(
    rows: Sequence[dict[str, Any]], ci95: tuple[float, float], lens: str, theme: Theme
) -> list[dict[str, Any]]:
    lo, hi = ci95
    # What lies outside is pale, so it has an outline: on paper it would be lost.
    inside, outside = (theme.colour(lens), theme.paper), (theme.band, theme.muted)
    drawn = [inside if lo <= (row["from"] + row["to"]) / 2 <= hi else outside for row in rows]
    shown = [
        {**row, "fill": fill, "rim": rim} for row, (fill, rim) in zip(rows, drawn, strict=True)
    ]
    y = {
        "field": "replicas",
        "type": "quantitative",
        "axis": {"title": "replicas (count)", "tickCount": 4},
    }
    bars = layer(
        {"type": "bar", "strokeWidth": 0.5, "opacity": 0.6},
        shown,
        x={**_x(), "field": "from", "bin": {"binned": True}},
        x2={"field": "to"},
        y=y,
        color=literal("fill"),
        stroke=literal("rim"),
        tooltip=[
            {"field": "from", "type": "quantitative", "format": ".4f"},
            {"field": "to", "type": "quantitative", "format": ".4f"},
            {"field": "replicas", "type": "quantitative"},
        ],
    )
    return [bars]


def _marked(prob: float, lo: float, hi: float, lens: str, theme: Theme) -> list[dict[str, Any]]:
    ends = [
        {"prob": lo, "said": f"2.5%: {lo:.3f}", "align": "right"},
        {"prob": hi, "said": f"97.5%: {hi:.3f}", "align": "left"},
    ]
    x = {**_x(), "field": "prob"}
    rules = layer({"type": "rule", "color": theme.ink, "strokeDash": [3, 3]}, ends, x=x)
    center = layer(
        {"type": "rule", "color": theme.colour(lens), "strokeWidth": 2}, [{"prob": prob}], x=x
    )
    texts = [
        layer(
            {
                "type": "text",
                "color": theme.ink,
                "align": end["align"],
                "baseline": "bottom",
                "dy": -3,
            },
            [end],
            x=x,
            y={"value": 0},
            text={"field": "said"},
        )
        for end in ends
    ]
    said = layer(
        {"type": "text", "color": theme.ink, "fontWeight": "bold", "baseline": "bottom", "dy": -18},
        [{"prob": prob, "said": f"estimate {prob:.3f}"}],
        x=x,
        y={"value": 0},
        text={"field": "said"},
    )
    return [rules, center, *texts, said]


# Runs side by side: several models, lenses or claims.


def model_comparison(runs: Sequence[RunRecord], *, theme: Theme = LIGHT) -> Chart:
    """A row a run: its belief and interval, or why it has none. The order is kept."""
    if not runs:
        raise RecordError("`runs` must hold at least one run, got none; name some to compare")
    rows = [_row(run, name, theme) for run, name in zip(runs, run_names(runs), strict=True)]
    claims = list(dict.fromkeys(run.claim for run in runs))
    lenses = [lens for lens in LENSES if any(run.lens == lens for run in runs)]
    title = claims[0] if len(claims) == 1 else f"{len(claims)} claims side by side"
    answers = sum(run.usage.compliant for run in runs)
    legend = listed(f"{lens}: {LENSES[lens].label}" for lens in lenses)
    said = "; ".join(_described(row) for row in rows[:20])
    return figure(
        interval_panel(rows, axis=prob_axis(), theme=theme, reference=0.5),
        title=title,
        subtitle=[
            f"n = {counted(len(runs), 'run')}, {counted(answers, 'answer')}; bars: 95% intervals",
            legend,
        ],
        description=f"Beliefs of {counted(len(runs), 'run')} side by side: {said}.",
        theme=theme,
        wide=True,
    )


def _described(row: IntervalRow) -> str:
    value = "no estimate" if row.value is None else f"{row.value:.3f}"
    return f"{listed([row.label, row.detail])} {value}"


def run_names(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Names that tell each run from the others, in one line or two.

    Of claim, model and lens, those that differ; where nothing does, the execution.
    """
    several_claims = len({run.claim for run in runs}) > 1
    several_models = len({run.model for run in runs}) > 1
    several_lenses = len({(run.lens, _variant(run)) for run in runs}) > 1
    names = []
    for run in runs:
        lens = f"{run.lens} {_variant(run)}".strip() if several_lenses else ""
        model = run.model if several_models or not (several_claims or several_lenses) else ""
        if several_claims:
            names.append((drawable(run.claim), listed([drawable(model), lens])))
        else:
            names.append((listed([drawable(model), lens]), ""))
    counts = Counter(names)
    return [
        (first, listed([second, run.execution_id[:13]]))
        if counts[first, second] > 1
        else (first, second)
        for run, (first, second) in zip(runs, names, strict=True)
    ]


def _row(run: RunRecord, name: tuple[str, str], theme: Theme) -> IntervalRow:
    belief = run.aggregates
    return _lens_row(
        run.lens,
        theme,
        label=name[0],
        detail=name[1],
        value=belief.prob_true_rpl,
        ci95=belief.ci95,
        reason=missing_reason(run.reason),
        note=warning_word(run),
    )


def _lens_row(
    lens: str, theme: Theme, *, ci95: tuple[float, float] | None, **content: Any
) -> IntervalRow:
    """A row in the look of its lens."""
    lo, hi = ci95 or (None, None)
    return IntervalRow(
        lo=lo,
        hi=hi,
        colour=theme.colour(lens),
        shape=SHAPES[lens],
        hollow=LENSES[lens].hollow,
        **content,
    )


def _ends(metric: MetricRecord | None) -> tuple[float, float] | None:
    return (metric.lo, metric.hi) if metric else None


def _variant(run: RunRecord) -> str:
    return (run.evidence.variant if run.evidence else None) or ""


# The belief vector: what a model believes with each kind of evidence, and what moved it.


def belief_vector(artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT) -> Chart:
    """A model's belief under every lens, and the split of what moved it.

    A lens that couldn't be measured has a row with the reason. An artifact that holds only runs
    will do: what lies between them is derived.
    """
    model = chosen_model(artifact, model)
    lines = _lines(artifact, model)
    rows = [_lenses_row(line, theme) for line in lines]
    prior = next((line.prob_true for line in lines if line.lens == RPL), None)
    beliefs = interval_panel(rows, axis=prob_axis(), theme=theme, reference=prior)
    panels = [{**beliefs, "title": _heading("Belief under each lens", theme)}]
    panels += _split(_metrics(artifact, model), theme)
    claim = claim_of(artifact)
    runs = unchanged_runs(artifact.runs, claim)
    counted = {run.lens: run.usage for run in runs if run.model == model}
    n = ", ".join(f"{lens} {usage.compliant}" for lens, usage in counted.items())
    return figure(
        {"vconcat": panels, "spacing": 26},
        title=claim,
        subtitle=[
            listed([model, f"n answers: {n}"]),
            "Points: p(true); bars: 95% intervals; dashed line: the raw prior.",
        ],
        description=_lenses_described(lines, claim, model),
        theme=theme,
        wide=True,
    )


def claim_of(artifact: Artifact) -> str:
    """The claim that an artifact is about; other claims in it are its negations."""
    return artifact.claim or artifact.runs[0].claim


def chosen_model(artifact: Artifact, model: str | None) -> str:
    """The model asked for, or the artifact's first."""
    models = list(dict.fromkeys(run.model for run in artifact.runs))
    if model is None:
        return models[0]
    if model not in models:
        raise RecordError(
            f"`model` must be one of those measured ({', '.join(models)}), got {model!r}"
        )
    return model


def _lines(artifact: Artifact, model: str) -> list[LensRecord]:
    lines = artifact.lenses or lens_records(artifact.runs, claim_of(artifact), [])
    order = list(LENSES)
    own = [line for line in lines if line.model == model]
    return sorted(own, key=lambda line: order.index(line.lens))


def _metrics(artifact: Artifact, model: str) -> MetricsRecord | None:
    found = artifact.metrics or metrics_by_model(artifact.runs, claim_of(artifact), {})
    return found.get(model)


def _lenses_row(line: LensRecord, theme: Theme) -> IntervalRow:
    return _lens_row(
        line.lens,
        theme,
        label=f"{line.lens} · {LENSES[line.lens].label}",
        value=line.prob_true,
        ci95=line.ci95,
        reason=missing_reason(line.reason),
        note="quotes made up: not to be trusted" if line.trusted is False else "",
    )


def _split(metrics: MetricsRecord | None, theme: Theme) -> list[dict[str, Any]]:
    """A panel of what the frame did and what the evidence did; or why there is none."""
    if metrics is None:
        return []
    rows = list(_effects(metrics, theme))
    if not rows:
        why = missing_reason(metrics.reason) or "no lens was measured beside the raw prior"
        return [_said(f"No differences: {why}", theme)]
    axis = difference_axis("difference of p(true)", rows)
    panel = interval_panel(rows, axis=axis, theme=theme, signed=True, reference=0.0)
    return [{**panel, "title": _heading("What moved it, with 95% intervals", theme)}]


def _effects(metrics: MetricsRecord, theme: Theme) -> Iterator[IntervalRow]:
    if metrics.wrapper_effect is not None:
        yield _effect("NUL − RPL · wrapper, the frame alone", metrics.wrapper_effect, NUL, theme)
    for lens, effect in _in_order(metrics.evidence_effect):
        yield _effect(f"{lens} − NUL · the evidence", effect, lens, theme)
    if metrics.wrapper_effect is None:
        # Without the empty frame the two can't be told apart, and the label says so.
        for lens, effect in _in_order(metrics.movement):
            yield _effect(f"{lens} − RPL · wrapper and evidence", effect, lens, theme)
    for lens, reason in metrics.missing.items():
        yield IntervalRow(
            label=f"{lens} · no difference",
            value=None,
            reason=missing_reason(reason),
            colour=theme.colour(lens),
        )


def _in_order(effects: Mapping[str, MetricRecord]) -> list[tuple[str, MetricRecord]]:
    return [(lens, effects[lens]) for lens in LENSES if lens in effects]


def _effect(label: str, found: MetricRecord, lens: str, theme: Theme) -> IntervalRow:
    return _lens_row(lens, theme, label=label, value=found.value, ci95=_ends(found))


def _heading(text: str, theme: Theme) -> dict[str, Any]:
    return {"text": text, "frame": "group", "fontSize": 13, "color": theme.ink, "offset": 6}


def _said(text: str, theme: Theme) -> dict[str, Any]:
    content = notice(text, title="", subtitle=[], description="", theme=theme)
    return {name: content[name] for name in ("data", "mark", "encoding", "width", "height")}


def _lenses_described(lines: Sequence[LensRecord], claim: str, model: str) -> str:
    parts = [
        f"{line.lens} {line.prob_true:.3f}"
        if line.prob_true is not None
        else f"{line.lens} has none ({line.status.replace('_', ' ')})"
        for line in lines
    ]
    said = "; ".join(parts)
    return drawable(f"Belief of {model} in the claim '{claim}' under each lens: {said}.")


# Experiments with evidence: which document moved the belief, and what the controls say.

_WITHOUT: Final = "without:"
_CONTROLS: Final = {
    "canary": "canary: a document that gives orders",
    "sham": "sham: irrelevant text of that length",
    "negation": "negation: the opposite claim, complemented",
}


def document_influence(
    artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """Influence of each document: the lens as it is minus the lens without it."""
    model = chosen_model(artifact, model)
    titles = _titles(artifact)
    found = [record for record in _own(artifact, model) if record.variant.startswith(_WITHOUT)]
    rows = [
        _influence_row(record, *_document_label(record, titles), theme)
        for record in sorted(found, key=_by_size)
    ]
    return _chart(
        rows,
        artifact,
        model,
        what="Above 0: showing the document raises p(true). Without it, the rest stays.",
        nothing="Influence wasn't measured: `heretix lens … --influence` does.",
        theme=theme,
    )


def evidence_controls(
    artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """Orders, irrelevant text, the negation and another policy against the lens as it is."""
    model = chosen_model(artifact, model)
    found = [record for record in _own(artifact, model) if not record.variant.startswith(_WITHOUT)]
    rows = [
        _influence_row(record, record.lens, _control(record.variant), theme) for record in found
    ]
    return _chart(
        rows,
        artifact,
        model,
        what="The lens as it is minus its variant; near 0 the variant makes no difference.",
        nothing="No control was measured: `heretix lens … --canary --sham --negation` does.",
        theme=theme,
    )


def _chart(
    rows: Sequence[IntervalRow],
    artifact: Artifact,
    model: str,
    *,
    what: str,
    nothing: str,
    theme: Theme,
) -> Chart:
    claim = claim_of(artifact)
    n = f"n = {counted(len(rows), 'variant')}"
    subtitle = [listed([model, n, "bars: 95% intervals"]), what]
    if not rows:
        return notice(
            nothing, title=claim, subtitle=[model], description="Experiments.", theme=theme
        )
    axis = difference_axis("difference of p(true), lens − variant", rows)
    known = [row for row in rows if row.value is not None]
    largest = max(known, key=lambda row: abs(row.value or 0.0), default=None)
    said = f" The largest is {largest.value:+.3f}: {largest.label}." if largest else ""
    return figure(
        interval_panel(rows, axis=axis, theme=theme, signed=True, reference=0.0),
        title=claim,
        subtitle=subtitle,
        description=f"Differences of p(true) for {n}, measured with {model}.{said}",
        theme=theme,
        wide=True,
    )


def _influence_row(record: ExperimentRecord, label: str, detail: str, theme: Theme) -> IntervalRow:
    found = record.difference
    return _lens_row(
        record.lens,
        theme,
        label=label,
        detail=detail,
        value=found.value if found else None,
        ci95=_ends(found),
        reason=missing_reason(record.reason),
    )


def _own(artifact: Artifact, model: str) -> list[ExperimentRecord]:
    return [record for record in artifact.experiments or [] if record.model == model]


def _by_size(record: ExperimentRecord) -> tuple[str, bool, float, str]:
    """By lens, the documents that raise the belief most first, those without a number last."""
    found = record.difference
    return (record.lens, found is None, -(found.value if found else 0.0), record.variant)


def _document_label(
    record: ExperimentRecord, titles: dict[tuple[str, str], tuple[str, str]]
) -> tuple[str, str]:
    name = record.variant.removeprefix(_WITHOUT)
    known = titles.get((record.lens, name))
    if known is None:
        return f"{record.lens} · all of {name}", "every document of this publisher"
    publisher, title = known
    return f"{record.lens} {name} · {publisher}", title


def _control(variant: str) -> str:
    if variant.startswith("policy:"):
        return f"policy: sources under {variant.removeprefix('policy:')}"
    return _CONTROLS.get(variant, variant)


def _titles(artifact: Artifact) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (bundle["lens"], item["id"]): (str(item["publisher"]), str(item["title"]))
        for bundle in artifact.bundles or []
        for item in bundle["items"]
    }
