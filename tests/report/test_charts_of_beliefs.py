"""Charts of measurements show the record's own numbers; what is missing is said, never drawn."""

from dataclasses import replace

import pytest
from drawn import again, layers, loose, measured, rows, texts

from heretix.belief.estimator import interval
from heretix.belief.logodds import sigmoid
from heretix.core.errors import NoEstimateError, RecordError
from heretix.evidence.bundle import DropReason, Shortfall
from heretix.measurement.record import ReasonRecord
from heretix.report import charts
from heretix.report.charts.beliefs import replicas_of, run_names
from heretix.report.charts.theme import DARK, LIGHT


def test_the_forest_shows_every_template_and_marks_the_trimmed(clean_run):
    """Points are the templates' own numbers; the trimmed are hollow and say so."""
    points = {row["template"]: row for row in rows(charts.template_forest(clean_run), "point")}
    found = clean_run.diagnostics.templates
    assert {index: row["prob"] for index, row in points.items()} == {
        template.paraphrase_idx: template.prob for template in found
    }
    for template in found:
        row = points[template.paraphrase_idx]
        assert row["trimmed"] is template.trimmed
        assert ("trimmed" in row["said"]) is template.trimmed
        assert (row["fill"] == LIGHT.paper) is template.trimmed
    assert sum(row["trimmed"] for row in points.values()) == 6


def test_the_forest_shows_every_answer_and_the_estimate(clean_run):
    """One tick an answer; the band is the interval."""
    chart = charts.template_forest(clean_run)
    answers = sorted(row["prob"] for row in rows(chart, "tick"))
    assert answers == sorted(sample.prob_true for sample in clean_run.samples)
    (band,) = rows(chart, "rect")
    assert (band["lo"], band["hi"]) == clean_run.aggregates.ci95


def test_a_template_without_an_answer_has_a_row_with_the_reason(faulty_run):
    """It was asked, so it isn't left out; and it is nowhere on the axis."""
    chart = charts.template_forest(faulty_run)
    asked = {sample.paraphrase_idx for sample in faulty_run.samples}
    answered = {sample.paraphrase_idx for sample in faulty_run.samples if sample.compliant}
    assert asked != answered
    reasons = [text for text in texts(chart) if text.startswith("no usable answer: ")]
    assert len(reasons) == len(asked - answered)
    assert {row["template"] for row in rows(chart, "point")} == answered


def test_no_estimate_is_a_reason_and_not_a_point(lost_run):
    """Nothing is drawn at one half."""
    for draw in (charts.template_forest, charts.bootstrap_distribution):
        chart = draw(lost_run)
        assert not rows(chart, "point")
        assert "No estimate" in " ".join(texts(chart))
    chart = charts.model_comparison([lost_run])
    assert not rows(chart, "point")
    assert any(text.startswith("no estimate: ") for text in texts(chart))
    with pytest.raises(NoEstimateError):
        replicas_of(lost_run)


@pytest.mark.parametrize("agg", ["clustered", "simple"])
def test_the_distribution_is_the_one_the_interval_was_read_from(tmp_path, agg):
    """Replicas are drawn again from the record, with its seed: the interval follows exactly."""
    run = measured(tmp_path, "Tea is a leaf.", "mock:gpt-5", K=8, R=2, T=8, B=300, agg=agg)
    replicas = replicas_of(run)
    assert tuple(map(sigmoid, interval(replicas))) == run.aggregates.ci95
    bars = rows(charts.bootstrap_distribution(run), "bar")
    assert sum(bar["replicas"] for bar in bars) == len(replicas) == 300


def test_replicas_that_are_all_equal_still_have_a_bin(clean_run):
    """A degenerate distribution is a bar, not a division by zero."""
    samples = [replace(s, logit=2.0) for s in clean_run.samples]
    same = clean_run.model_copy(update={"samples": samples})
    bars = rows(charts.bootstrap_distribution(same), "bar")
    assert [bar["replicas"] for bar in bars] == [400]


def test_the_vector_has_a_point_a_lens_with_its_interval(vector_artifact):
    """Values and intervals are the records', in the order of the lenses."""
    chart = charts.belief_vector(vector_artifact)
    shown = rows(chart, "point")[:4]
    lines = vector_artifact.lenses
    assert [(row["value"], row["lo"], row["hi"]) for row in shown] == [
        (line.prob_true, *line.ci95) for line in lines
    ]
    assert [row["shape"] for row in shown] == ["circle", "circle", "square", "diamond"]
    assert [row["fill"] == LIGHT.paper for row in shown] == [False, True, False, False]


def test_the_vector_splits_what_moved_it(vector_artifact):
    """The frame's effect stands beside that of the evidence."""
    found = next(iter(vector_artifact.metrics.values()))
    shown = rows(charts.belief_vector(vector_artifact), "point")[4:]
    effects = [found.wrapper_effect, found.evidence_effect["MEL"], found.evidence_effect["HEL"]]
    assert [(row["value"], row["lo"], row["hi"]) for row in shown] == [
        (effect.value, effect.lo, effect.hi) for effect in effects
    ]


def test_runs_out_of_a_store_give_the_same_vector(vector_artifact):
    """What lies between lenses is derived where it isn't recorded."""
    plain = loose(vector_artifact.runs)
    one, other = charts.belief_vector(vector_artifact), charts.belief_vector(plain)
    assert rows(one, "point") == rows(other, "point")


def test_thin_lines_are_the_intervals_by_student_and_movements_say_what_moved_them(
    vector_artifact,
):
    """A second line below each bar, named in words; beside each effect the placebo's verdict."""
    drawn = charts.belief_vector(vector_artifact)
    thin = {row["label"]: (row["t_lo"], row["t_hi"]) for row in rows(drawn, "rule", "t_lo")}
    for line in vector_artifact.lenses:
        (found,) = (ends for label, ends in thin.items() if label.startswith(f"{line.lens} · "))
        assert found == line.beside.template_t.ci95
    (metrics,) = vector_artifact.metrics.values()
    by_t = metrics.beside.evidence_effect["MEL"].paired_template_t
    assert thin["MEL − NUL · the evidence"] == (by_t.lo, by_t.hi)
    assert "thin lines: by Student's t" in str(drawn)
    assert "moved by any text" in texts(drawn)


def test_without_the_empty_frame_the_chart_says_what_it_cannot_tell(vector_artifact):
    """Wrapper and evidence are one number then, and are called so."""
    runs = [run for run in vector_artifact.runs if run.lens in {"RPL", "MEL"} and not run.evidence]
    runs += [r for r in vector_artifact.runs if r.lens == "MEL" and not r.evidence.variant]
    labels = texts(charts.belief_vector(loose(runs)))
    assert "MEL − RPL · wrapper and evidence" in labels
    assert not any("frame alone" in label for label in labels)


def test_a_lens_without_enough_evidence_is_a_reason(vector_artifact):
    """It has a row, and no point in it."""
    lacks = Shortfall(lens="HEL", needed=3, got=1, dropped={DropReason.UNREAD: 2}, as_of=None)
    lacking = [
        line.model_copy(
            update={
                "prob_true": None,
                "ci95": None,
                "status": "insufficient_evidence",
                "reason": ReasonRecord(code="insufficient_evidence", params=lacks.to_json()),
            }
        )
        if line.lens == "HEL"
        else line
        for line in vector_artifact.lenses
    ]
    chart = charts.belief_vector(vector_artifact.model_copy(update={"lenses": lacking}))
    shown = "`insufficient_evidence`: HEL needs at least 3 items, got 1 (dropped: 2 unread)"
    assert any(text.startswith(shown[:60]) for text in texts(chart))
    top = chart["vconcat"][0]
    assert [row["row"] for row in rows({"layer": top["layer"]}, "point")] == [0, 1, 2]


def test_influence_and_controls_show_each_experiment_once(vector_artifact):
    """Differences are the records', largest first within a lens."""
    left_out = [r for r in vector_artifact.experiments if r.variant.startswith("without:")]
    shown = rows(charts.document_influence(vector_artifact), "point")
    assert sorted(row["value"] for row in shown) == sorted(r.difference.value for r in left_out)
    controls = rows(charts.evidence_controls(vector_artifact), "point")
    assert len(controls) == len(vector_artifact.experiments) - len(left_out)
    bare = vector_artifact.model_copy(update={"experiments": None})
    assert "--influence" in " ".join(texts(charts.document_influence(bare)))
    assert "--canary" in " ".join(texts(charts.evidence_controls(bare)))


def test_a_model_that_was_not_measured_is_refused(vector_artifact):
    """The message names those that were."""
    with pytest.raises(RecordError, match="sim:planted"):
        charts.belief_vector(vector_artifact, "gpt-5")


def test_rows_with_the_same_words_stay_apart(clean_run, faulty_run):
    """Two executions of one recipe are two rows, told apart by their ids."""
    runs = [clean_run, again(clean_run, 2), faulty_run]
    chart = charts.model_comparison(runs)
    assert [row["row"] for row in rows(chart, "point")] == [0, 1, 2]
    assert len(set(run_names(runs))) == 3
    with pytest.raises(RecordError, match="at least one"):
        charts.model_comparison([])


def test_a_single_run_is_named_by_its_model(clean_run):
    """Where nothing differs, the model is what a reader looks for."""
    assert run_names([clean_run]) == [("mock:gpt-5", "")]


def test_drift_shows_executions_in_time_and_what_was_served(clean_run, lost_run):
    """Hollow means nothing new; a failed one has no height."""
    cached = clean_run.usage.model_copy(update={"called": 0})
    lost = again(clean_run, 3, aggregates=lost_run.aggregates, reason=lost_run.reason)
    runs = [lost, again(clean_run, 2, usage=cached), again(clean_run, 1)]
    chart = charts.drift(runs, theme=DARK)
    points = rows(chart, "point")
    assert [row["at"][:10] for row in points] == ["2026-01-01", "2026-02-01"]
    assert [row["fill"] == DARK.paper for row in points] == [False, True]
    assert "no estimate" in texts(chart)
    (foot,) = [part for part in layers(chart) if part["mark"]["type"] == "text"]
    assert "value" in foot["encoding"]["y"]


def test_executions_of_one_minute_are_numbered(clean_run):
    """A clock that shows one minute for all of them tells nothing."""
    at_once = [
        again(clean_run, 1, started_at=f"2026-01-01T10:00:0{second}.000Z") for second in (3, 1)
    ]
    chart = charts.drift(at_once)
    assert [row["execution"] for row in rows(chart, "point")] == [1, 2]
    fields = {part["encoding"]["x"]["field"] for part in layers(chart)}
    assert fields == {"execution"}
    apart = charts.drift([again(clean_run, 1), again(clean_run, 2)])
    assert {part["encoding"]["x"]["field"] for part in layers(apart)} == {"at"}


def test_drift_is_of_one_recipe(clean_run, faulty_run):
    """Different recipes aren't a drift."""
    with pytest.raises(RecordError, match="one run_id"):
        charts.drift([clean_run, faulty_run])
    with pytest.raises(RecordError, match="got none"):
        charts.drift([])
