"""Charts of beliefs: templates, bootstrap, models side by side, lenses, influence of documents."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heretix.belief.estimator import (
    cluster_bootstrap,
    order_templates,
    plain_bootstrap,
    trim_cut,
)
from heretix.core.errors import NoEstimateError, RecordError
from heretix.core.lenses import LENSES, NUL, RPL
from heretix.measurement.vector import lens_records, metrics_by_model, select_unchanged_runs
from heretix.report.charts import figure as fig
from heretix.report.charts.figure import HEIGHT, WIDTH, Chart, IntervalRow, Part
from heretix.report.charts.theme import LIGHT, SHAPES, Theme
from heretix.report.words import (
    PLACEBO,
    missing_reason,
    no_estimate_reason,
    plural,
    warning_word,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.belief.estimator import Floats
    from heretix.measurement.record import (
        Artifact,
        BesideRecord,
        ExperimentRecord,
        MetricRecord,
        MetricsRecord,
        RunRecord,
        SampleRecord,
        TwinsRecord,
    )

_THIN: Final = "thin lines: by Student's t"
_WORDING_CHARS: Final = 46
_SPACE: Final = "\u2003"  # Common spaces in a row are drawn as one
_BINS: Final = 50
_TOP: Final = {"value": 0}


def template_forest(run: RunRecord, *, theme: Theme = LIGHT) -> Chart:
    """Draw every template's answers, their mean, and the estimate they come to."""
    belief = run.aggregates
    if belief.prob_true_rpl is None or belief.ci95 is None:
        return _no_estimate(run, "Answers of each wording.", theme)
    rows = _template_rows(run, theme)
    silent = _silent_rows(run, first_row=len(rows))
    lo, hi = belief.ci95
    trimmed = sum(row["trimmed"] for row in rows)
    layers = [
        *_estimate_layers(belief.prob_true_rpl, lo, hi, run.lens, theme),
        *_template_layers(run, rows, silent, theme),
    ]
    return fig.figure(
        {"width": WIDTH, "height": {"step": 24}, "layer": layers},
        title=run.claim,
        subtitle=[
            run_subtitle(run),
            (
                "Large mark: mean of a wording's answers in log-odds; hollow where it is trimmed. "
                "Small ticks: single answers."
            ),
        ],
        description=(
            f"Forest plot of {plural(len(rows), 'wording')} of the claim '{run.claim}', measured "
            f"with {run.model}: their means from {rows[-1]['prob']:.3f} to {rows[0]['prob']:.3f}; "
            f"{trimmed} are trimmed. The estimate is {belief.prob_true_rpl:.3f}, 95% interval "
            f"{lo:.3f} to {hi:.3f}."
        ),
        theme=theme,
        wide=True,
    )


def _no_estimate(run: RunRecord, description: str, theme: Theme) -> Chart:
    return fig.notice(
        f"No estimate: {no_estimate_reason(run.reason)}",
        title=run.claim,
        subtitle=[run_subtitle(run)],
        description=description,
        theme=theme,
    )


def run_subtitle(run: RunRecord) -> str:
    """Name the model, lens and n of a run."""
    usage = run.usage
    return fig.join_parts(
        [
            run.model,
            f"lens {run.lens}",
            f"n = {usage.compliant} of {usage.attempted} answers",
            plural(run.aggregation.n_templates, "wording"),
            warning_word(run),
        ]
    )


def _template_rows(run: RunRecord, theme: Theme) -> list[Part]:
    """Make one row a template that answered, the most convinced first."""
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


def _silent_rows(run: RunRecord, *, first_row: int) -> list[Part]:
    """Make rows of the templates that gave nothing usable, with the reasons."""
    by_index: dict[int, list[SampleRecord]] = defaultdict(list)
    for sample in run.samples:
        by_index[sample.paraphrase_idx].append(sample)
    silent: list[Part] = []
    for index, samples in sorted(by_index.items()):
        if any(sample.compliant for sample in samples):
            continue
        reasons = Counter(
            sample.noncompliance.value if sample.noncompliance else "failed" for sample in samples
        )
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        row = first_row + len(silent)
        reason = f"no usable answer: {why}"
        silent.append({"row": row, "label": _label(run, index), "reason": reason})
    return silent


def _label(run: RunRecord, index: int) -> str:
    wording = run.prompts.paraphrases[index].replace("<claim>{CLAIM}</claim>", " ")
    return fig.shorten(f"{index} · {wording.strip()}", _WORDING_CHARS)


def _estimate_layers(prob: float, lo: float, hi: float, lens: str, theme: Theme) -> list[Part]:
    axis = fig.prob_axis()
    x, band = {**axis, "field": "prob"}, {"x": {**axis, "field": "lo"}, "x2": {"field": "hi"}}
    said = [{"prob": prob, "said": f"estimate {prob:.3f} [{lo:.3f}, {hi:.3f}]"}]
    dashed = {"color": theme.colour(lens), "strokeWidth": 1.5, "strokeDash": [5, 3]}
    return [
        fig.layer("rect", [{"lo": lo, "hi": hi}], band, color=theme.band, opacity=0.6),
        fig.layer("rule", [{"prob": prob}], {"x": x}, **dashed),
        fig.text_layer(said, {"x": x, "y": _TOP}, color=theme.ink, baseline="bottom", dy=-4),
    ]


def _template_layers(
    run: RunRecord, rows: Sequence[Part], silent: Sequence[Part], theme: Theme
) -> list[Part]:
    axis, y, color = fig.prob_axis(), fig.row_axis(len(rows) + len(silent)), fig.literal("colour")
    place = {row["template"]: row for row in rows}
    answers = [
        {"row": row["row"], "prob": sample.prob_true, "colour": row["colour"]}
        for sample in run.samples
        if sample.compliant and (row := place.get(sample.paraphrase_idx)) is not None
    ]
    reach = {"x": {**axis, "field": "min"}, "x2": {"field": "max"}, "y": y, "color": color}
    mean = {"x": {**axis, "field": "prob"}, "y": y}
    told = fig.tooltip(("label", "nominal", "wording"), ("said", "nominal", "p(true)"))
    point = {"stroke": color, "fill": fig.literal("fill"), "tooltip": told}
    beside = {"x": {"value": WIDTH + 14}, "y": y, "color": fig.literal("ink")}
    shape = SHAPES[run.lens]
    layers = [
        *fig.row_labels([(row["label"], "") for row in (*rows, *silent)], y, theme),
        fig.layer("rule", rows, reach, strokeWidth=1.5),
        fig.layer("tick", answers, {**mean, "color": color}, thickness=1.5, size=10),
        fig.layer("point", rows, mean | point, size=80, strokeWidth=1.8, shape=shape, opacity=1),
        fig.text_layer(rows, beside, align="left"),
    ]
    if silent:
        look = fig.small_text(theme, align="left", fontStyle="italic") | {"color": theme.warn}
        layers.append(fig.text_layer(silent, {"x": {"value": 6}, "y": y}, "reason", **look))
    return layers


# The bootstrap distribution of an estimate, drawn again from the record with its own seed.


def replicas_of(run: RunRecord) -> Floats:
    """Draw the replicas of the center, in log-odds, that the run's interval was read from. A record
    doesn't hold them: they follow from its answers and its seed."""
    if run.status != "ok":
        raise NoEstimateError(no_estimate_reason(run.reason) or "no estimate")
    logits: dict[str, list[float]] = defaultdict(list)
    for sample in run.samples:
        if sample.compliant and sample.logit is not None:
            logits[sample.prompt_sha256].append(sample.logit)
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
    """Draw a histogram of the estimates when wordings and answers are drawn anew."""
    belief, how = run.aggregates, run.aggregation
    if belief.prob_true_rpl is None or belief.ci95 is None:
        return _no_estimate(run, "Bootstrap distribution.", theme)
    lo, hi = belief.ci95
    axis = fig.quantity(
        "p(true) of a replica, a probability",
        scale={"zero": False, "nice": True},
        tickCount=6,
        labelOverlap="greedy",
        labelSeparation=8,
    )
    layers = [
        _bars(replicas_of(run), (lo, hi), axis, run.lens, theme),
        *_interval_marks(belief.prob_true_rpl, lo, hi, axis, run.lens, theme),
    ]
    return fig.figure(
        {"width": WIDTH, "height": HEIGHT - 80, "layer": layers},
        title=run.claim,
        subtitle=[
            run_subtitle(run),
            (
                f"B = {how.B:,} replicas, seed {how.bootstrap_seed}. "
                "The interval runs from the 2.5th to the 97.5th percentile."
            ),
        ],
        description=(
            f"Histogram of {how.B} bootstrap replicas of p(true): the estimate is "
            f"{belief.prob_true_rpl:.3f}, and 95% of the replicas lie from {lo:.3f} to {hi:.3f}."
        ),
        theme=theme,
    )


def _bars(replicas: Floats, ci95: tuple[float, float], axis: Part, lens: str, theme: Theme) -> Part:
    """Draw the replicas by bin of probability; empty bins are left out."""
    probs = 1.0 / (1.0 + np.exp(-replicas))
    # Bins over what the replicas cover, which may be a single number.
    low, high = float(probs.min()), float(probs.max())
    room = max((high - low) * 0.02, 0.0005)
    bins = np.linspace(max(0.0, low - room), min(1.0, high + room), _BINS + 1)
    counts, edges = np.histogram(probs, bins=bins)
    # What lies outside is pale, so it has an outline: on paper it would be lost.
    inside, outside = (theme.colour(lens), theme.paper), (theme.band, theme.muted)
    rows = []
    for left, right, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts, strict=True):
        if count:
            fill, rim = inside if ci95[0] <= (left + right) / 2 <= ci95[1] else outside
            drawn = {"replicas": int(count), "fill": fill, "rim": rim}
            rows.append({"from": left, "to": right, **drawn})
    y = {"type": "quantitative", "axis": {"title": "replicas (count)", "tickCount": 4}}
    encoding = {
        "x": {**axis, "field": "from", "bin": {"binned": True}},
        "x2": {"field": "to"},
        "y": {**y, "field": "replicas"},
        "color": fig.literal("fill"),
        "stroke": fig.literal("rim"),
        "tooltip": fig.tooltip(("from", ".4f"), ("to", ".4f"), ("replicas", "quantitative")),
    }
    return fig.layer("bar", rows, encoding, strokeWidth=0.5, opacity=0.6)


def _interval_marks(
    prob: float, lo: float, hi: float, axis: Part, lens: str, theme: Theme
) -> list[Part]:
    # Written inwards: beyond the ends there may be no room on a phone.
    sides = ("left", "right") if lo < hi else ("right", "left")
    ends = [
        {"prob": lo, "said": f"2.5%: {lo:.3f}", "align": sides[0]},
        {"prob": hi, "said": f"97.5%: {hi:.3f}", "align": sides[1]},
    ]
    x = {**axis, "field": "prob"}
    above, look = {"x": x, "y": _TOP}, {"color": theme.ink, "baseline": "bottom"}
    said = [{"prob": prob, "said": f"estimate {prob:.3f}"}]
    return [
        fig.layer("rule", ends, {"x": x}, color=theme.ink, strokeDash=[3, 3]),
        fig.layer("rule", [{"prob": prob}], {"x": x}, color=theme.colour(lens), strokeWidth=2),
        *(fig.text_layer([end], above, **look, align=end["align"], dy=-3) for end in ends),
        fig.text_layer(said, above, **look, fontWeight="bold", dy=-18),
    ]


# Runs side by side: several models, lenses or claims.


def model_comparison(runs: Sequence[RunRecord], *, theme: Theme = LIGHT) -> Chart:
    """Draw a row a run: its belief and interval, or why it has none. The order is kept."""
    if not runs:
        raise RecordError("`runs` must hold at least one run, got none; name some to compare")
    rows = [
        _lens_row(
            run.lens,
            theme,
            label=label,
            detail=detail,
            value=run.aggregates.prob_true_rpl,
            ci95=run.aggregates.ci95,
            t_ends=_ends_by_t(run.beside),
            reason=missing_reason(run.reason),
            note=fig.join_parts([warning_word(run), _label_clamped(run.beside)]),
        )
        for run, (label, detail) in zip(runs, run_names(runs), strict=True)
    ]
    claims = list(dict.fromkeys(run.claim for run in runs))
    lenses = [lens for lens in LENSES if any(run.lens == lens for run in runs)]
    title = claims[0] if len(claims) == 1 else f"{len(claims)} claims side by side"
    answers = sum(run.usage.compliant for run in runs)
    legend = fig.join_parts(f"{lens}: {LENSES[lens].label}" for lens in lenses)
    said = "; ".join(
        f"{fig.join_parts([row.label, row.detail])} "
        f"{'no estimate' if row.value is None else format(row.value, '.3f')}"
        for row in rows[:20]
    )
    return fig.figure(
        fig.interval_panel(rows, axis=fig.prob_axis(), theme=theme, reference=0.5),
        title=title,
        subtitle=[
            f"n = {plural(len(runs), 'run')}, {plural(answers, 'answer')}; bars: 95% intervals",
            fig.join_parts([legend, _THIN]),
        ],
        description=f"Beliefs of {plural(len(runs), 'run')} side by side: {said}.",
        theme=theme,
        wide=True,
    )


def run_names(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Name each run so that it can be told from the others, in one line or two. Of claim, model and
    lens, those that differ; where nothing does, the execution."""
    several_claims = len({run.claim for run in runs}) > 1
    several_models = len({run.model for run in runs}) > 1
    several_lenses = len({(run.lens, _variant(run)) for run in runs}) > 1
    names = []
    for run in runs:
        lens = f"{run.lens} {_variant(run)}".strip() if several_lenses else ""
        model = run.model if several_models or not (several_claims or several_lenses) else ""
        if several_claims:
            names.append(
                (fig.strip_controls(run.claim), fig.join_parts([fig.strip_controls(model), lens]))
            )
        else:
            names.append((fig.join_parts([fig.strip_controls(model), lens]), ""))
    counts = Counter(names)
    return [
        (first, fig.join_parts([second, run.execution_id[:13]]))
        if counts[first, second] > 1
        else (first, second)
        for run, (first, second) in zip(runs, names, strict=True)
    ]


def _lens_row(
    lens: str, theme: Theme, *, ci95: tuple[float, float] | None, **content: Any
) -> IntervalRow:
    """Make a row in the look of its lens."""
    lo, hi = ci95 or (None, None)
    return IntervalRow(
        lo=lo,
        hi=hi,
        colour=theme.colour(lens),
        shape=SHAPES[lens],
        hollow=LENSES[lens].hollow,
        **content,
    )


def _ends_by_t(beside: BesideRecord | None) -> tuple[float, float] | None:
    return beside.template_t.ci95 if beside and beside.template_t else None


def _label_clamped(beside: BesideRecord | None) -> str:
    return "clamp-sensitive" if beside and beside.clamp_sensitive else ""


def _ends(metric: MetricRecord | None) -> tuple[float, float] | None:
    return (metric.lo, metric.hi) if metric else None


def _variant(run: RunRecord) -> str:
    return (run.evidence.variant if run.evidence else None) or ""


# The belief vector: what a model believes with each kind of evidence, and what moved it.


def belief_vector(artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT) -> Chart:
    """Draw a model's belief under every lens, and the split of what moved it. A lens that couldn't
    be measured has a row with the reason. An artifact that holds only runs will do: what lies
    between them is derived."""
    model, claim = choose_model(artifact, model), claim_of(artifact)
    lines = [
        line
        for line in artifact.lenses or lens_records(artifact.runs, claim, [])
        if line.model == model
    ]
    lines.sort(key=lambda line: list(LENSES).index(line.lens))
    rows = [
        _lens_row(
            line.lens,
            theme,
            label=f"{line.lens} · {LENSES[line.lens].label}",
            value=line.prob_true,
            ci95=line.ci95,
            t_ends=_ends_by_t(line.beside),
            reason=missing_reason(line.reason),
            note="quotes made up: not to be trusted"
            if line.trusted is False
            else _label_clamped(line.beside),
        )
        for line in lines
    ]
    prior = next((line.prob_true for line in lines if line.lens == RPL), None)
    beliefs = fig.interval_panel(rows, axis=fig.prob_axis(), theme=theme, reference=prior)
    metrics = (artifact.metrics or metrics_by_model(artifact.runs, claim, {})).get(model)
    panels = [{**beliefs, "title": _heading("Belief under each lens", theme)}]
    panels += [] if metrics is None else [_effects_panel(metrics, theme)]
    usage = {
        run.lens: run.usage
        for run in select_unchanged_runs(artifact.runs, claim)
        if run.model == model
    }
    n = ", ".join(f"{lens} {used.compliant}" for lens, used in usage.items())
    said = "; ".join(
        f"{line.lens} has none ({line.status.replace('_', ' ')})"
        if line.prob_true is None
        else f"{line.lens} {line.prob_true:.3f}"
        for line in lines
    )
    return fig.figure(
        {"vconcat": panels, "spacing": 26},
        title=claim,
        subtitle=[
            fig.join_parts([model, f"n answers: {n}"]),
            f"Points: p(true); bars: 95% intervals; {_THIN}; dashed line: the raw prior.",
        ],
        description=f"Belief of {model} in the claim '{claim}' under each lens: {said}.",
        theme=theme,
        wide=True,
    )


def claim_of(artifact: Artifact) -> str:
    """Return the claim that an artifact is about; others in it are its negations."""
    return artifact.claim or artifact.runs[0].claim


def choose_model(artifact: Artifact, model: str | None) -> str:
    """Return the model asked for, or the artifact's first."""
    models = list(dict.fromkeys(run.model for run in artifact.runs))
    if model is None:
        return models[0]
    if model not in models:
        raise RecordError(
            f"`model` must be one of those measured ({', '.join(models)}), got {model!r}"
        )
    return model


def _effects_panel(metrics: MetricsRecord, theme: Theme) -> Part:
    """Make a panel of what the frame did and what the evidence did; or of why there is none."""
    rows = list(_effects(metrics, theme))
    if not rows:
        why = missing_reason(metrics.reason) or "no lens was measured beside the raw prior"
        return fig.notice_panel(f"No differences: {why}", theme)
    axis = fig.difference_axis("difference of p(true)", rows)
    panel = fig.interval_panel(rows, axis=axis, theme=theme, signed=True, reference=0.0)
    return {**panel, "title": _heading("What moved it, with 95% intervals", theme)}


def _effects(metrics: MetricsRecord, theme: Theme) -> Iterator[IntervalRow]:
    beside = metrics.beside
    said = {lens: PLACEBO[beside.find_cause(lens)] for lens in beside.placebo} if beside else {}
    if metrics.wrapper_effect is not None:
        t = beside.wrapper_effect if beside else None
        yield _effect("NUL − RPL · wrapper, the frame alone", metrics.wrapper_effect, t, NUL, theme)
    for lens, effect in _sort_effects(metrics.evidence_effect):
        t = beside.evidence_effect[lens] if beside else None
        label = f"{lens} − NUL · the evidence"
        yield _effect(label, effect, t, lens, theme, note=said.get(lens, ""))
    if metrics.wrapper_effect is None:
        # Without the empty frame the two can't be told apart, and the label says so.
        for lens, effect in _sort_effects(metrics.movement):
            t = beside.movement[lens] if beside else None
            label = f"{lens} − RPL · wrapper and evidence"
            yield _effect(label, effect, t, lens, theme, note=said.get(lens, ""))
    for lens, reason in metrics.missing.items():
        yield IntervalRow(
            label=f"{lens} · no difference",
            value=None,
            reason=missing_reason(reason),
            colour=theme.colour(lens),
        )


def _sort_effects(effects: Mapping[str, MetricRecord]) -> list[tuple[str, MetricRecord]]:
    return [(lens, effects[lens]) for lens in LENSES if lens in effects]


def _effect(
    label: str,
    found: MetricRecord,
    t: TwinsRecord | None,
    lens: str,
    theme: Theme,
    *,
    note: str = "",
) -> IntervalRow:
    by_t = _ends(t.paired_template_t if t else None)
    content: dict[str, Any] = {"label": label, "value": found.value, "t_ends": by_t, "note": note}
    return _lens_row(lens, theme, ci95=_ends(found), **content)


def _heading(text: str, theme: Theme) -> Part:
    return {"text": text, "frame": "group", "fontSize": 13, "color": theme.ink, "offset": 6}


# Experiments with evidence: which document moved the belief, and what the controls say.

_WITHOUT: Final = "without:"
_CONTROLS: Final = {
    "canary": "canary: a document that gives orders",
    "swapped": "swapped: the same documents in reverse order",
    "sham": "sham: irrelevant text of that length",
    "negation": "negation: the opposite claim, complemented",
}


def document_influence(
    artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """Draw the influence of each document: the lens as it is minus the lens without it."""
    titles = {
        (bundle["lens"], item["id"]): (str(item["publisher"]), str(item["title"]))
        for bundle in artifact.bundles or []
        for item in bundle["items"]
    }

    def name(record: ExperimentRecord) -> tuple[str, str]:
        document = record.variant.removeprefix(_WITHOUT)
        if (known := titles.get((record.lens, document))) is None:
            return f"{record.lens} · all of {document}", "every document of this publisher"
        return f"{record.lens} {document} · {known[0]}", known[1]

    def by_size(record: ExperimentRecord) -> tuple[str, bool, float, str]:
        # By lens, the documents that raise the belief most first, those without a number last.
        found = record.difference
        return (record.lens, found is None, -(found.value if found else 0.0), record.variant)

    found = [one for one in artifact.experiments or [] if one.variant.startswith(_WITHOUT)]
    return _experiment_chart(
        [(record, *name(record)) for record in sorted(found, key=by_size)],
        artifact,
        model,
        what="Above 0: showing the document raises p(true). Without it, the rest stays.",
        nothing="Influence wasn't measured: `heretix lens … --influence` does.",
        theme=theme,
    )


def evidence_controls(
    artifact: Artifact, model: str | None = None, *, theme: Theme = LIGHT
) -> Chart:
    """Draw orders, irrelevant text, the negation and another policy against the lens as it is."""
    found = [one for one in artifact.experiments or [] if not one.variant.startswith(_WITHOUT)]
    policy = "policy: sources under "
    return _experiment_chart(
        [
            (one, one.lens, _CONTROLS.get(one.variant, one.variant.replace("policy:", policy, 1)))
            for one in found
        ],
        artifact,
        model,
        what="The lens as it is minus its variant; near 0 the variant makes no difference.",
        nothing="No control was measured: `heretix lens … --canary --swap --sham --negation` does.",
        theme=theme,
    )


def _experiment_chart(
    records: Sequence[tuple[ExperimentRecord, str, str]],
    artifact: Artifact,
    model: str | None,
    *,
    what: str,
    nothing: str,
    theme: Theme,
) -> Chart:
    model, claim = choose_model(artifact, model), claim_of(artifact)
    rows = [
        _lens_row(
            record.lens,
            theme,
            label=label,
            detail=detail,
            value=record.difference.value if record.difference else None,
            ci95=_ends(record.difference),
            t_ends=_ends(record.beside.paired_template_t if record.beside else None),
            reason=missing_reason(record.reason),
        )
        for record, label, detail in records
        if record.model == model
    ]
    n = f"n = {plural(len(rows), 'variant')}"
    if not rows:
        return fig.notice(
            nothing, title=claim, subtitle=[model], description="Experiments.", theme=theme
        )
    axis = fig.difference_axis("difference of p(true), lens − variant", rows)
    known = [row for row in rows if row.value is not None]
    largest = max(known, key=lambda row: abs(row.value or 0.0), default=None)
    said = f" The largest is {largest.value:+.3f}: {largest.label}." if largest else ""
    return fig.figure(
        fig.interval_panel(rows, axis=axis, theme=theme, signed=True, reference=0.0),
        title=claim,
        subtitle=[fig.join_parts([model, n, "bars: 95% intervals", _THIN]), what],
        description=f"Differences of p(true) for {n}, measured with {model}.{said}",
        theme=theme,
        wide=True,
    )
