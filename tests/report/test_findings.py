"""Findings: one sentence a record, never stronger than its intervals, with what must be known."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heretix.belief.student import TInterval
from heretix.measurement.anomalies import Shift
from heretix.measurement.record import (
    Aggregates,
    BesideRecord,
    LensRecord,
    MetricRecord,
    MetricsBesideRecord,
    PlaceboRecord,
    ReasonRecord,
    TemplateTRecord,
    TRecord,
    TwinsRecord,
)
from heretix.report.findings import (
    belief_finding,
    chance,
    comparison_finding,
    difference_finding,
    emphasis,
    feed_finding,
    headline,
    leading_interval,
    movement_findings,
    panel_finding,
    shift_finding,
    short_model,
    tell_apart,
)
from heretix.store.panels import Wave
from heretix.studies.panel import Movement, PanelReport, Point, Series

MADE_UP = "Made-up answers, nobody's belief: "
DEMONSTRATION = "A demonstration, not a belief worth quoting: "
UNCHECKED = "; whether irrelevant text would do the same wasn't checked"
ANY_TEXT = (
    "; irrelevant text did the same, so the documents themselves did nothing that can be shown"
)


def beside(lo, hi, *, clamped=None):
    """What stands beside a belief: an interval by t, and a center that answers of 0 or 1 decide."""
    return BesideRecord(
        template_t=TemplateTRecord(ci95=(lo, hi), ci_width=hi - lo, se_logit=0.1, df=5),
        n_extreme=0 if clamped is None else 4,
        extreme_share=0.0 if clamped is None else 0.25,
        center_clamped=0.5 if clamped is None else clamped,
        clamp_sensitive=clamped is not None,
    )


def belief(run, prob, lo, hi, *, t=None, clamped=None, provider="openai", **changed):
    """A run of gpt-5 with another belief than it had."""
    t_lo, t_hi = t or (lo, hi)
    found = Aggregates(
        prob_true_rpl=prob,
        ci95=(lo, hi),
        ci_width=hi - lo,
        stability_score=0.8,
        stability_band="high",
        is_stable=hi - lo <= 0.2,
        rpl_compliance_rate=1.0,
        cache_hit_rate=0.0,
    )
    given_ = {"provider": provider, "model": "gpt-5", "aggregates": found, **changed}
    return run.model_copy(update={"beside": beside(t_lo, t_hi, clamped=clamped), **given_})


STABLE = [
    ((0.93, 0.88, 0.96), "gpt-5 believes the claim: 93% likely to be true (95% interval 88% to 96%)."),
    ((0.12, 0.08, 0.17), "gpt-5 disbelieves the claim: 12% likely to be true (95% interval 8% to 17%)."),
    ((0.55, 0.46, 0.64), "gpt-5 takes no side on the claim: 55% likely to be true (95% interval 46% to 64%)."),
    ((0.50, 0.42, 0.58), "gpt-5 takes no side on the claim: 50% likely to be true (95% interval 42% to 58%)."),
    ((0.60, 0.51, 0.69), "gpt-5 leans towards believing the claim: 60% likely to be true (95% interval 51% to 69%)."),
    ((0.40, 0.31, 0.49), "gpt-5 leans towards disbelieving the claim: 40% likely to be true (95% interval 31% to 49%)."),
    ((0.9999, 0.9991, 1.0), "gpt-5 believes the claim: over 99% likely to be true (95% interval over 99%)."),
    ((0.0001, 0.0, 0.002), "gpt-5 disbelieves the claim: under 1% likely to be true (95% interval under 1%)."),
    ((0.99, 0.97, 0.999), "gpt-5 believes the claim: 99% likely to be true (95% interval 97% to over 99%)."),
    ((0.01, 0.001, 0.03), "gpt-5 disbelieves the claim: 1% likely to be true (95% interval under 1% to 3%)."),
    ((0.70, 0.70, 0.70), "gpt-5 leans towards believing the claim: 70% likely to be true (95% interval 70%)."),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "sentence"), STABLE)
def test_a_stable_belief_is_said_with_its_interval(clean_run, numbers, sentence):
    """A stable run leads with the number and takes a side where its interval does."""
    assert belief_finding(belief(clean_run, *numbers)).sentence == sentence


UNSTABLE = [
    ((0.80, 0.55, 0.95), "Anywhere from 55% to 95% likely to be true (95% interval): gpt-5 leans towards believing the claim, but its answers depend on the wording."),
    ((0.20, 0.05, 0.45), "Anywhere from 5% to 45% likely to be true (95% interval): gpt-5 leans towards disbelieving the claim, but its answers depend on the wording."),
    ((0.50, 0.10, 0.90), "Anywhere from 10% to 90% likely to be true (95% interval): gpt-5 takes no side on the claim, and its answers depend on the wording."),
    ((0.93, 0.02, 1.00), "Anywhere from 2% to over 99% likely to be true (95% interval): gpt-5 takes no side on the claim, and its answers depend on the wording."),
    ((0.70, 0.49, 0.85), "Anywhere from 49% to 85% likely to be true (95% interval): gpt-5 takes no side on the claim, and its answers depend on the wording."),
    ((0.30, 0.00, 0.51), "Anywhere from under 1% to 51% likely to be true (95% interval): gpt-5 takes no side on the claim, and its answers depend on the wording."),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "sentence"), UNSTABLE)
def test_an_unstable_belief_leads_with_its_interval(clean_run, numbers, sentence):
    """A number that depends on the wording doesn't come first, nor at all."""
    assert belief_finding(belief(clean_run, *numbers)).sentence == sentence


OPEN_BY_T = [
    ((0.6, 0.52, 0.68), (0.48, 0.66), "gpt-5 takes no side on the claim: 60% likely to be true (95% interval 52% to 68%, by Student's t 48% to 66%)."),
    ((0.999, 0.82, 1.0), (0.37, 0.999), "Anywhere from 37% to over 99% likely to be true (95% interval by Student's t): gpt-5 takes no side on the claim, and its answers depend on the wording."),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "t", "sentence"), OPEN_BY_T)
def test_both_intervals_must_take_a_side(clean_run, numbers, t, sentence):
    """The interval by Student's t can hold 1/2 where the bootstrap's doesn't: no side is taken."""
    run = belief(clean_run, *numbers, t=t)
    found = belief_finding(run)
    assert (found.code, found.direction, found.sentence) == ("neither", 0, sentence)
    # Pages put the interval that leads the sentence in place of the number.
    assert leading_interval(run) == (t if sentence.startswith("Anywhere") else None)


@pytest.mark.parametrize("ends", [(0.502, 0.6), (0.4, 0.497), (0.504, 0.52)])
def test_no_side_is_taken_that_the_written_interval_leaves_open(clean_run, ends):
    """An interval that is written as beginning at 50% doesn't lean."""
    found = belief_finding(belief(clean_run, sum(ends) / 2, *ends))
    assert (found.code, found.direction) == ("neither", 0)
    assert "50%" in found.sentence


CAVEATS = [
    ({"provider": "mock"}, MADE_UP + "gpt-5 believes", ""),
    ({"provider": "sim"}, MADE_UP + "gpt-5 believes", ""),
    ({"provider": "local", "demonstration": True}, DEMONSTRATION + "gpt-5 believes", ""),
    ({"clamped": 0.757}, "gpt-5 believes", "; clamp-sensitive: 93% rests on answers of exactly 0 or 1, and is 76% with those counted as 0.5% and 99.5%."),
    ({"clamped": 0.60}, "gpt-5 leans towards believing", "; clamp-sensitive: 93% rests on answers of exactly 0 or 1, and is 60% with those counted as 0.5% and 99.5%."),
    ({"clamped": 0.999}, "gpt-5 believes", "; clamp-sensitive: 93% rests on answers of exactly 0 or 1, and is over 99% with those counted as 0.5% and 99.5%."),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "begin", "end"), CAVEATS)
def test_what_a_reader_must_know_is_part_of_the_sentence(clean_run, changed, begin, end):
    """Made-up, demonstration and clamp-sensitive numbers can't be quoted without saying so."""
    said = belief_finding(belief(clean_run, 0.93, 0.88, 0.96, **changed)).sentence
    assert said.startswith(begin)
    assert said.endswith(end or "(95% interval 88% to 96%).")


def test_few_wordings_and_legacy_aggregation_are_said(clean_run):
    """An interval from fewer than 8 wordings, or from the legacy method, is called that."""
    aggregation = clean_run.aggregation.model_copy(update={"n_templates": 5, "agg": "simple"})
    sampling = clean_run.sampling.model_copy(update={"K": 5})
    few = belief(clean_run, 0.93, 0.88, 0.96, aggregation=aggregation, sampling=sampling)
    assert belief_finding(few).sentence.endswith("; asked in only 5 wordings; legacy aggregation.")


@pytest.mark.parametrize(
    ("K", "used", "said"),
    [
        (8, 2, "; answered in only 2 of 8 wordings."),
        (1, 1, "; asked in only one wording."),
        (4, 3, "; answered in only 3 of 4 wordings."),
    ],
)
def test_wordings_without_an_answer_are_not_called_unasked(clean_run, K, used, said):
    """Refusals leave few wordings, too; the sentence tells them from a small plan."""
    aggregation = clean_run.aggregation.model_copy(update={"n_templates": used})
    sampling = clean_run.sampling.model_copy(update={"K": K})
    run = belief(clean_run, 0.93, 0.88, 0.96, aggregation=aggregation, sampling=sampling)
    assert belief_finding(run).sentence.endswith(said)


def test_no_estimate_has_no_number(lost_run, clean_run):
    """Without an estimate the sentence says why, and holds no digit but the model's."""
    said = belief_finding(lost_run)
    assert said.sentence == (
        f"{MADE_UP}no belief of m could be measured: too few answers could be used."
    )
    none = clean_run.aggregates.model_copy(update={"prob_true_rpl": None, "ci95": None})
    reason = ReasonRecord(code="calls_failed", params={"error": "x"})
    changed = {"aggregates": none, "reason": reason, "model": "gpt-5", "provider": "openai"}
    failed = clean_run.model_copy(update=changed)
    assert belief_finding(failed).sentence == (
        "No belief of gpt-5 could be measured: every call failed."
    )


def test_documents_that_were_shown_or_misquoted_are_named(vector_artifact):
    """A lens run says what the model was shown, its sham too, and a misquoting one is distrusted."""
    runs = {
        run.lens: run for run in vector_artifact.runs if not (run.evidence and run.evidence.variant)
    }
    said = {lens: belief_finding(run).sentence for lens, run in runs.items()}
    assert "shown mainstream documents, planted " in said["MEL"]
    assert "shown heterodox documents, planted " in said["HEL"]
    assert "shown an empty frame, planted " in said["NUL"]
    assert "shown" not in said["RPL"]
    sham = next(r for r in vector_artifact.runs if r.evidence and r.evidence.variant == "sham")
    assert "shown irrelevant text, planted " in belief_finding(sham).sentence
    shown = runs["MEL"].evidence.model_copy(update={"trusted": False})
    misquoted = runs["MEL"].model_copy(update={"evidence": shown})
    assert belief_finding(misquoted).sentence.endswith(
        "; not to be trusted: it quotes what isn't in the documents."
    )


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("gpt-5", "gpt-5"),
        ("mock:gpt-5", "gpt-5"),
        ("mock:local:smollm2-135m", "smollm2-135m"),
        ("sim:planted?mel=0.6&hel=-1.5", "planted"),
        ("ollama:llama3:8b", "llama3:8b"),
        ("strange:thing", "strange:thing"),
    ],
)
def test_a_model_is_named_without_provider_and_parameters(identity, name):
    """Only what is a provider here is taken off the front."""
    assert short_model(identity) == name


@pytest.mark.parametrize(
    ("prob", "said"),
    [
        (0.0, "under 1%"),
        (0.0049, "under 1%"),
        (0.01, "1%"),
        (0.5, "50%"),
        (0.99, "99%"),
        (1.0, "over 99%"),
    ],
)
def test_no_chance_is_written_as_certain(prob, said):
    """Nobody measured 0% or 100%."""
    assert chance(prob) == said


def moved_vector(artifact, moved, t, *, minus_sham=None, verdict="unchecked", before=0.70, after=0.29,
                 width=0.1, trusted=True, clamped=None):  # fmt: skip
    """A vector of gpt-5 in which heterodox documents did this, and no others were shown."""

    def line(lens, prob, **changed):
        fields = {
            "lens": lens, "run_id": "r", "execution_id": "e", "model": "gpt-5", "prob_true": prob,
            "ci95": (prob - width / 2, prob + width / 2), "beside": beside(0.1, 0.9, clamped=clamped),
            "bundle_id": None, "trusted": None, "status": "ok", "reason": None,
        }  # fmt: skip
        return LensRecord(**(fields | changed))

    def twins(lo, hi):
        record = TRecord(value=(lo + hi) / 2, lo=lo, hi=hi, p_value=0.01)
        return TwinsRecord(paired_template_t=record, paired_template_t_trimmed=record)

    metrics = next(iter(artifact.metrics.values()))
    minus = None if minus_sham is None else twins(*minus_sham)
    told = MetricsBesideRecord(
        movement={"HEL": twins(*t)},
        evidence_effect={},
        wrapper_effect=None,
        shock_index=None,
        amplification_gap=None,
        directed_gap=None,
        information_gain={},
        placebo={"HEL": PlaceboRecord(verdict=verdict, minus_sham=minus)},
    )
    metric = MetricRecord(value=after - before, lo=moved[0], hi=moved[1])
    metrics = metrics.model_copy(update={"movement": {"HEL": metric}, "beside": told})
    run = artifact.runs[0].model_copy(update={"model": "gpt-5", "provider": "openai"})
    return artifact.model_copy(
        update={
            "runs": [run],
            "lenses": [line("RPL", before), line("HEL", after, trusted=trusted)],
            "metrics": {"gpt-5": metrics},
        }
    )


DOWN = ((-0.5, -0.31), (-0.52, -0.3))
CUT = "Heterodox documents cut gpt-5's belief from 70% to 29% (−41 points, 95% interval −50 to −31)"
MOVEMENTS = [
    (DOWN, {}, "moved_unchecked", f"{CUT}{UNCHECKED}."),
    (DOWN, {"verdict": "evidence_driven", "minus_sham": (-0.4, -0.2)}, "evidence_moved", f"{CUT}, further than irrelevant text did."),
    (DOWN, {"verdict": "any_text", "minus_sham": (-0.1, 0.1)}, "any_text_moved", f"{CUT}{ANY_TEXT}."),
    (DOWN, {"verdict": "evidence_driven", "minus_sham": (0.1, 0.2)}, "any_text_moved", f"{CUT}; irrelevant text cut it further, so what the documents say raised it."),
    (DOWN, {"trusted": False}, "moved_unchecked", f"{CUT}{UNCHECKED}; not to be trusted: it quotes what isn't in the documents."),
    (DOWN, {"clamped": 0.5}, "moved_unchecked", f"{CUT}{UNCHECKED}; clamp-sensitive: 70% rests on answers of exactly 0 or 1, and is 50% with those counted as 0.5% and 99.5%."),
    (DOWN, {"width": 0.4}, "moved_unchecked", f"Heterodox documents cut gpt-5's belief by 31 to 50 points (95% interval), and its level depends on the wording (about 70% without, 29% with them){UNCHECKED}."),
    (((-0.5, 0.01), (-0.52, -0.3)), {}, "not_moved", "No effect of heterodox documents on gpt-5's belief can be shown: 70% without, 29% with them (−41 points, 95% interval −50 to +1)."),
    (((-0.5, -0.31), (-0.52, 0.02)), {}, "not_moved", "No effect of heterodox documents on gpt-5's belief can be shown: 70% without, 29% with them (−41 points, 95% interval −50 to −31, by Student's t −52 to +2)."),
    (((0.1, 0.3), (0.1, 0.3)), {"before": 0.5, "after": 0.7}, "moved_unchecked", f"Heterodox documents raised gpt-5's belief from 50% to 70% (+20 points, 95% interval +10 to +30){UNCHECKED}."),
    (((0.1, 0.3), (0.1, 0.3)), {"before": 0.5, "after": 0.7, "verdict": "evidence_driven", "minus_sham": (-0.2, -0.1)}, "any_text_moved", "Heterodox documents raised gpt-5's belief from 50% to 70% (+20 points, 95% interval +10 to +30); irrelevant text raised it further, so what the documents say lowered it."),
]  # fmt: skip


@pytest.mark.parametrize(("intervals", "changed", "code", "sentence"), MOVEMENTS)
def test_a_movement_is_said_beside_its_placebo(vector_artifact, intervals, changed, code, sentence):
    """What documents did, how far, and what irrelevant text did."""
    found = headline(moved_vector(vector_artifact, *intervals, **changed), "gpt-5")
    assert (found.code, found.sentence) == (code, sentence)


def test_a_lens_without_evidence_or_number_says_so(vector_artifact):
    """Too few documents, no estimate and no shared wordings each have a sentence, and no side."""
    whole = moved_vector(vector_artifact, *DOWN)
    prior, lens = whole.lenses
    params = {"lens": "HEL", "needed": 3, "got": 1}
    reason = ReasonRecord(code="insufficient_evidence", params=params)
    none = {"prob_true": None, "ci95": None}
    lacking = lens.model_copy(update={"status": "insufficient_evidence", "reason": reason, **none})
    silent = lens.model_copy(update={"status": "no_estimate", **none})
    said = {
        "insufficient_evidence": whole.model_copy(update={"lenses": [prior, lacking]}),
        "no_estimate": whole.model_copy(update={"lenses": [prior, silent]}),
        "not_comparable": whole.model_copy(
            update={
                "metrics": {"gpt-5": whole.metrics["gpt-5"].model_copy(update={"movement": {}})}
            }
        ),
    }
    found = {code: headline(artifact, "gpt-5") for code, artifact in said.items()}
    assert {code: (one.code, one.direction) for code, one in found.items()} == {
        code: (code, 0) for code in said
    }
    assert found["insufficient_evidence"].sentence == (
        "Too few heterodox documents were found to say what they do to gpt-5's belief "
        "(1 of the 3 that it takes)."
    )


def test_a_vector_leads_with_what_counts_most(vector_artifact):
    """Every lens that shows documents has a finding, and the headline is the first of them."""
    model = next(iter(vector_artifact.metrics))
    found = movement_findings(vector_artifact, model)
    assert len(found) == 2
    assert headline(vector_artifact, model) == found[0]
    assert all(one.sentence.startswith(MADE_UP) for one in found)


SHIFTS = [
    ((0.70, 0.58), (-0.18, -0.05), {}, -1, "gpt-5's belief fell from 70% to 58% since 2 Jan 2026 (−12 points, 95% interval −18 to −5)."),
    ((0.30, 0.55), (0.10, 0.40), {}, 1, "gpt-5's belief rose from 30% to 55% since 2 Jan 2026 (+25 points, 95% interval +10 to +40)."),
    ((0.004, 0.30), (0.10, 0.40), {}, 1, "gpt-5's belief rose from under 1% to 30% since 2 Jan 2026 (+30 points, 95% interval +10 to +40)."),
    ((0.70, 0.58), (-0.18, -0.05), {"provider": "sim"}, -1, MADE_UP + "gpt-5's belief fell from 70% to 58% since 2 Jan 2026 (−12 points, 95% interval −18 to −5)."),
    ((0.70, 0.58), (-0.18, -0.05), {"clamped": 0.7}, -1, "gpt-5's belief fell from 70% to 58% since 2 Jan 2026 (−12 points, 95% interval −18 to −5); clamp-sensitive: 70% rests on answers of exactly 0 or 1, and is 70.0% with those counted as 0.5% and 99.5%; clamp-sensitive: 58% rests on answers of exactly 0 or 1, and is 70% with those counted as 0.5% and 99.5%."),
    ((0.9976, 0.9930), (-0.006, -0.003), {}, -1, "gpt-5's belief fell from over 99% to 99% since 2 Jan 2026 (−0.5 points, 95% interval −0.6 to −0.3)."),
    ((0.9981, 0.9967), (-0.002, -0.001), {}, -1, "gpt-5's belief fell from 99.8% to 99.7% since 2 Jan 2026 (−0.1 points, 95% interval −0.2 to −0.1)."),
    ((0.70, 0.58), (-0.18, 0.01), {}, 0, "No change in gpt-5's belief since 2 Jan 2026 can be shown (−12 points, 95% interval −18 to +1)."),
    ((0.58, 0.70), (-0.18, -0.05), {}, 0, "No change in gpt-5's belief since 2 Jan 2026 can be shown (+12 points, 95% interval −18 to −5)."),
]  # fmt: skip


@pytest.mark.parametrize(("probs", "ends", "changed", "side", "sentence"), SHIFTS)
def test_a_recipe_that_moved_says_since_when(clean_run, probs, ends, changed, side, sentence):
    """The belief before and after, how far, and what must be known to quote it."""
    before, after = (
        belief(
            clean_run, prob, prob - 0.01, prob + 0.01, finished_at="2026-01-02T00:00:00Z", **changed
        )
        for prob in probs
    )
    moved = MetricRecord(value=probs[1] - probs[0], lo=ends[0], hi=ends[1])
    found = shift_finding(Shift(before=before, after=after, moved=moved))
    assert (found.direction, found.sentence) == (side, sentence)


def test_models_are_told_apart():
    """Parameters stand beside a short name only where two models would have the same."""
    names = tell_apart(["gpt-5", "sim:a?prior=1", "sim:a?prior=2"])
    assert list(names.values()) == ["gpt-5", "a (prior=1)", "a (prior=2)"]


@pytest.mark.parametrize("sentence", [said for _, said in (*STABLE, *UNSTABLE)])
def test_a_sentence_is_only_weighed_never_changed(sentence):
    """What qualifies a sentence is set more lightly, and all of it stays."""
    for whole in (sentence, f"{MADE_UP}{sentence}"):
        parts = emphasis(whole)
        assert "".join(part for part, _ in parts) == whole
        light = [part for part, strong in parts if not strong]
        assert all(part.startswith("(") for part in light if part != MADE_UP)
        assert (MADE_UP in light) is (whole != sentence)


PROB = st.floats(0, 1)


@given(prob=PROB, ends=st.tuples(PROB, PROB), t_ends=st.tuples(PROB, PROB))
def test_no_belief_takes_a_side_that_an_interval_leaves_open(clean_run, prob, ends, t_ends):
    """Whatever the numbers, true or false is said only where both intervals exclude 1/2."""
    lo, hi = sorted(ends)
    found = belief_finding(belief(clean_run, prob, lo, hi, t=tuple(sorted(t_ends))))
    least, most = min(prob, lo, *t_ends), max(prob, hi, *t_ends)
    open_ = least <= 0.5 <= most or "50%" in {f"{least:.0%}", f"{most:.0%}"}
    said = "believ" in found.sentence
    assert (found.direction == 0) is (not said)
    assert open_ or said
    assert not said or least > 0.5 or most < 0.5
    firm = least >= 0.75 or most <= 0.25
    assert (said and "leans" not in found.sentence) is firm


SHIFT = st.floats(-1, 1)


@given(ends=st.tuples(SHIFT, SHIFT), t_ends=st.tuples(SHIFT, SHIFT), width=st.floats(0, 1))
def test_no_movement_has_a_direction_that_an_interval_leaves_open(
    vector_artifact, ends, t_ends, width
):
    """Whatever the numbers, raised or cut is said only where both intervals exclude 0."""
    after = 0.29 if sum(ends) < 0 else 0.90
    vector = moved_vector(
        vector_artifact, tuple(sorted(ends)), tuple(sorted(t_ends)), width=width, after=after
    )
    found = headline(vector, "gpt-5")
    both = (after - 0.70, *ends, *t_ends)
    open_ = min(both) <= 0 <= max(both)
    said = " raised " in found.sentence or " cut " in found.sentence
    assert (found.direction == 0) is open_ is (not said)


def panel_report(
    *movements,
    model="openai:gpt-5",
    claims=("Tea is a drink.",),
    probs=(0.42, 0.69),
    beside=None,
):
    """A panel of two waves in which these claims moved so."""
    waves = tuple(
        Wave(wave=n, started_at=f"2026-11-0{n + 1}T08:00:00Z", finished_at="x")
        for n in range(len(probs))
    )
    points = tuple(
        Point(
            wave=n,
            at=waves[n].started_at,
            prob_true=p,
            ci_lo=p,
            ci_hi=p,
            beside=beside,
            execution_id="e",
        )
        for n, p in enumerate(probs)
    )
    series = tuple(
        Series(
            claim=claim,
            model=model,
            lens="RPL",
            truth=None,
            points=points,
            movement=movement,
            left_out=False,
            readable=16,
        )
        for claim, movement in zip(claims, movements or [None] * len(claims), strict=True)
    )
    return PanelReport(
        panel="weekly",
        horizon=9,
        alpha=0.05,
        wordings=16,
        waves=waves,
        under_way=None,
        series=series,
        models=(),
        served=(),
    )


def movement(value, lo, hi, *, overstated=False):
    """A shift in log-odds that was found, with its interval."""
    return Movement(
        e_value=1e6,
        audit_e_value=1e6,
        drifted=True,
        new=True,
        since_wave=1,
        since_at="2026-11-02T08:00:00Z",
        since_waves=(1,),
        overstated=overstated,
        size=TInterval(value=value, lo=lo, hi=hi, se=0.1, df=15, p_value=0.001),
    )


ROSE = "gpt-5's belief in “Tea is a drink.” rose from 42% to 69% since wave 1 (2 Nov 2026), its odds ×\u00a03.3 (95% interval 2.7 to 4.1)"
PANELS = [
    (panel_report(movement(1.2, 1, 1.4)), 1, f"{ROSE}."),
    (panel_report(movement(1.2, 1, 1.4, overstated=True)), 1, f"{ROSE}; overstated, most likely: it is near the noise."),
    (panel_report(movement(1.2, 1, 1.4), model="sim:gpt-5"), 1, f"{MADE_UP}{ROSE}."),
    (panel_report(movement(1.2, 1, 1.4), model="local:smollm2-135m"), 1, f"{DEMONSTRATION}{ROSE.replace('gpt-5', 'smollm2-135m')}."),
    (panel_report(movement(0.5, -0.1, 1.1)), 0, "gpt-5's belief in “Tea is a drink.” moved since wave 1 (2 Nov 2026), its odds ×\u00a01.6 (95% interval 0.9 to 3)."),
    (panel_report(movement(-1.2, -1.4, -1)), -1, "gpt-5's belief in “Tea is a drink.” fell since wave 1 (2 Nov 2026), its odds ×\u00a00.3 (95% interval 0.25 to 0.37)."),
    (panel_report(movement(0.5, 0.2, 0.8), movement(1.2, 1, 1.4), claims=("Salt is sweet.", "Tea is a drink.")), 1, f"{ROSE}; 1 more moved."),
    (panel_report(movement(1.2, 1, 1.4), beside=beside(0.3, 0.5, clamped=0.52)), 1, f"{ROSE}; clamp-sensitive: 42% rests on answers of exactly 0 or 1, and is 52% with those counted as 0.5% and 99.5%."),
    (panel_report(), 0, "No movement can be shown: 1 claim asked of gpt-5 in 2 waves."),
    (panel_report(probs=(0.4,)), 0, "One wave of gpt-5 so far: what moves is told from the second on."),
]  # fmt: skip


@pytest.mark.parametrize(("report", "side", "sentence"), PANELS)
def test_a_panel_says_what_moved_furthest(report, side, sentence):
    """With since when, how much and what must be known; no direction that an interval leaves open."""
    found = panel_finding(report)
    assert (found.direction, found.sentence) == (side, sentence)


@given(st.floats(-4, 4), st.floats(-4, 4), st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)))
def test_no_panel_has_a_direction_that_its_interval_leaves_open(one, other, probs):
    """Whatever the beliefs of the first and last wave are, "rose" and "fell" need an interval."""
    lo, hi = sorted((one, other))
    found = panel_finding(panel_report(movement((lo + hi) / 2, lo, hi), probs=probs))
    assert (" rose" in found.sentence) == (lo > 0)
    assert (" fell" in found.sentence) == (hi < 0)


def compared(value, ends, t_ends):
    """A difference in probability with its interval, and the one by Student's t."""
    lo, hi = ends
    t_lo, t_hi = t_ends
    return SimpleNamespace(
        difference=SimpleNamespace(diff_prob=value, diff_prob_lo=lo, diff_prob_hi=hi),
        paired=True,
        paired_template_t=SimpleNamespace(diff_prob=SimpleNamespace(lo=t_lo, hi=t_hi)),
    )


ABOVE = compared(0.1, (0.05, 0.15), (0.04, 0.16))
BY_T = compared(-0.03, (-0.05, -0.01), (-0.07, 0.01))


def test_a_comparison_says_which_can_be_told_apart(clean_run):
    """Both intervals must leave 0 out; of two the t that doesn't is named, of more their letters."""
    run = belief(clean_run, 0.5, 0.4, 0.6)
    assert comparison_finding([run], []) is None
    assert comparison_finding([run, run], [(run, "other wordings")]) is None
    one = comparison_finding([run, run], [(run, BY_T)])
    assert one.sentence == (
        "No difference can be shown between the first belief and the second (95% interval −5 to −1 "
        "percentage points, by Student's t −7 to +1)."
    )
    said = "Of 2 beliefs {} can be told apart from A's by the 95% intervals."
    several = [run, run, run]
    found = comparison_finding(several, [(run, BY_T), (run, ABOVE)])
    assert (found.sentence, found.direction) == (said.format("1 (C)"), 0)
    none = comparison_finding(several, [(run, BY_T), (run, BY_T)])
    assert none.sentence == said.format("none")
    mocked = belief(clean_run, 0.5, 0.4, 0.6, provider="mock")
    made_up = comparison_finding([run, run, mocked], [(run, BY_T), (mocked, BY_T)])
    assert made_up.sentence == MADE_UP + "of" + said.format("none")[2:]


def test_the_feed_says_on_how_many_claims_evidence_moved_a_model():
    """Claims are counted once whatever the number of models; what isn't listed isn't claimed."""
    assert feed_finding([]) is None
    pairs = [("Tea is a drink.", True), ("Tea is a drink.", False), ("Salt is sweet.", False)]
    shown = [SimpleNamespace(claim=c, model="openai:gpt-5", listed=is_in) for c, is_in in pairs]
    assert feed_finding(shown).sentence == (
        "On 1 of 2 claims documents moved gpt-5's belief further than irrelevant text and chance do."
    )
    explained = "further than chance, irrelevant text or poor evidence explain."
    none = feed_finding(shown[1:])
    assert (none.code, none.sentence) == (
        "not_moved",
        f"On none of 2 claims did evidence move a model {explained}",
    )
    one = feed_finding(shown[1:2]).sentence
    assert one == f"On the one claim with evidence no model moved {explained}"


def test_what_both_sides_of_a_difference_rest_on_is_said(clean_run):
    """A difference says which reservations either belief has, once each."""
    few = clean_run.aggregation.model_copy(update={"n_templates": 4})
    small = clean_run.sampling.model_copy(update={"K": 4})
    one = belief(clean_run, 0.5, 0.4, 0.6, aggregation=few, sampling=small)
    other = belief(clean_run, 0.6, 0.5, 0.7, clamped=0.55)
    said = difference_finding(one, other, ABOVE).sentence
    assert said.startswith("The second lies 10 percentage points above the first belief (95% ")
    assert said.endswith(
        "; clamp-sensitive: 60% rests on answers of exactly 0 or 1, and is 55% with those counted "
        "as 0.5% and 99.5%; asked in only 4 wordings."
    )


def test_a_movement_in_few_wordings_says_so(vector_artifact):
    """Intervals from few wordings are too narrow, of movements, too."""
    vector = moved_vector(vector_artifact, *DOWN)
    (run,) = vector.runs
    few = run.aggregation.model_copy(update={"n_templates": 4})
    small = run.sampling.model_copy(update={"K": 4})
    run = run.model_copy(update={"aggregation": few, "sampling": small, "execution_id": "e"})
    found = headline(vector.model_copy(update={"runs": [run]}), "gpt-5")
    assert found.sentence == f"{CUT}{UNCHECKED}; asked in only 4 wordings."
