"""Reliability, blind to prestige."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections import Counter
from datetime import date

import pytest
from documents import NEWS, RANT, STUDY, document
from hypothesis import given
from hypothesis import strategies as st

from heretix.evidence.reliability import (
    SIGNALS,
    WEIGHTS,
    Interval,
    Observation,
    Primitive,
    Scores,
    assess,
    blind,
    place_scores,
    reliability,
)

shares = st.floats(0.0, 1.0)
five = st.tuples(shares, shares, shares, shares, shares)


def test_the_examples_of_the_method():
    """The three worked examples; the third is 0.0448, which the method's text rounds up."""
    assert round(reliability(Scores(0.9, 0.8, 0.9, 0.6, 0.7)), 2) == 0.78
    assert round(reliability(Scores(0.9, 0.5, 0.2, 0.7, 0.5)), 2) == 0.48
    assert reliability(Scores(0.1, 0.1, 0.0, 0.3, 0.0)) == pytest.approx(0.05, abs=0.0053)
    assert reliability(Scores(0.1, 0.1, 0.0, 0.3, 0.0)) == pytest.approx(0.044752, abs=1e-6)


@given(five)
def test_against_the_definition(values):
    """The number is the floored, rescaled geometric mean, written out."""
    g = 1.0
    for value, weight in zip(values, (0.25, 0.25, 0.20, 0.15, 0.15), strict=True):
        g *= max(value, 0.05) ** weight
    assert reliability(Scores(*values)) == pytest.approx((g - 0.05) / 0.95, abs=1e-12)
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)


@given(five, st.sampled_from(list(Primitive)), shares)
def test_it_is_bounded_and_monotone(values, primitive, other):
    """It lies in [0, 1], and raising a primitive never lowers it."""
    scores = Scores(*values)
    low, high = sorted((scores[primitive], other))
    one = reliability(dataclasses.replace(scores, **{primitive.name: low}))
    two = reliability(dataclasses.replace(scores, **{primitive.name: high}))
    assert 0.0 <= one <= two + 1e-15 <= 1.0 + 1e-15


def test_its_ends_are_reached():
    """Nothing gives 0, everything gives 1, and one weak link bites."""
    assert reliability(Scores(0, 0, 0, 0, 0)) == pytest.approx(0.0, abs=1e-12)
    assert reliability(Scores(1, 1, 1, 1, 1)) == pytest.approx(1.0, abs=1e-12)
    assert reliability(Scores(1, 1, 0, 1, 1)) < 0.55


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_scores_must_be_shares(value):
    """A judge's answer outside [0, 1] is never used."""
    with pytest.raises(ValueError, match="`R` must be from 0 to 1"):
        Scores(0.5, 0.5, value, 0.5, 0.5)


@given(
    st.sampled_from([STUDY, NEWS, RANT]),
    st.one_of(st.none(), st.text(), st.just("https://www.reuters.com/x"),
              st.just("https://method.data.sample/limitations")),
    st.one_of(st.none(), st.text(), st.just("Mark Sample"), st.just("Methods Limitations")),
    st.text(max_size=5),
)  # fmt: skip
def test_address_author_and_identity_leave_it_bit_identical(text, url, author, doc_id):
    """Swapping who published and who wrote a document changes no bit of any part."""
    plain = assess(document(text, url=None, author=None))
    other = assess(document(text, url=url, author=author, doc_id=doc_id))
    assert other.r.hex() == plain.r.hex()
    assert other == plain == pickle.loads(pickle.dumps(plain))


def test_signals_cannot_see_prestige():
    """What signals are given has no field for address, author or class."""
    assert {field.name for field in dataclasses.fields(Observation)} == {
        "title", "text", "date_confidence", "retracted",
    }  # fmt: skip


def test_a_domain_inside_the_text_counts_only_as_a_link():
    """Which site a text links to makes no difference, whatever the site is called."""
    texts = [f"{NEWS} See {site} for more." for site in (
        "https://www.nature.com/a", "https://junk.example.com/limitations-replication",
        "www.methods-and-data.org", "retraction.com",
    )]  # fmt: skip
    assert len({assess(document(text)).r.hex() for text in texts}) == 1


def test_better_documented_texts_have_higher_intervals():
    """A study, a news report and a rant stand in this order, at both ends."""
    study, news, rant = (assess(document(text)) for text in (STUDY, NEWS, RANT))
    assert study.r > 5 * news.r > 5 * rant.r > 0
    for primitive in Primitive:
        for upper, lower in ((study, news), (news, rant)):
            assert upper.intervals[primitive].lo >= lower.intervals[primitive].lo
            assert upper.intervals[primitive].hi >= lower.intervals[primitive].hi


@given(st.text(), st.one_of(st.none(), st.dates()))
def test_any_text_has_an_assessment(text, published):
    """Intervals are in order and in [0, 1], scores are at the low end, and r follows from them."""
    found = assess(document(text, published=published))
    for primitive, interval in found.intervals.items():
        assert 0.0 <= interval.lo <= interval.hi <= 1.0
        assert found.scores[primitive] == interval.lo
    assert found.r == reliability(found.scores)


def test_the_shares_of_each_primitive_add_up():
    """Signals share out their primitive among them, and every name is used once."""
    for primitive in Primitive:
        shares = [signal.weight for signal in SIGNALS if signal.primitive is primitive]
        assert sum(shares) == pytest.approx(1.0)
    assert max(Counter(signal.name for signal in SIGNALS).values()) == 1


EXAMPLES = {
    "identifiers": "see doi:10.1000/182 and PMID: 123456 and NCT01234567",
    "citations": "as shown (Smith and Jones, 2019), by Lee et al. and [3, 4]",
    "attributed statements": "according to the office, he said, and she told us",
    "links": "https://a.example/x and www.b.example and c.org/d",
    "quantities with units": "2.1% of 5 kg, 3 million, 12 years, 4 mmHg",
    "sample sizes": "n = 120, 1,204 adults and 30 healthy patients",
    "stated uncertainty": "95% CI, p < 0.05, \u00b1 2, margin of error",
    "dates of events": "on 12 June 2024, May 3, 2018 and 2020-01-31",
    "records": "the raw data, accession GSE12345, and the transcripts",
    "methods": "Methods: we measured; the protocol and procedure",
    "data available": "the data are freely available; the dataset was deposited",
    "code available": "analysis code is available; open-source; source code",
    "registered before": "the trial was pre-registered",
    "sample described": "aged 40, mean age 52, female, inclusion criteria, representative",
    "replication": "replicated, a meta-analysis, consistent with earlier work",
    "comparison": "control group, placebo, randomized, baseline, compared with",
    "several settings": "a multicentre cohort in three countries",
    "limitations": "limitations: bias, confounding, we cannot rule out",
    "interests declared": "competing interests: none. Funded by a grant",
    "review": "peer-reviewed; the reviewers; received 3 May, accepted 4 June",
    "corrections": "Correction: this article was amended",
    "the other side": "critics dispute it; however, he declined to comment",
}


@pytest.mark.parametrize("signal", [s for s in SIGNALS if s.pattern], ids=lambda s: s.name)
def test_each_signal_finds_what_it_is_named_after(signal):
    """Every signal counts passages of its kind, and none in a text that has none."""

    def value(text: str) -> float:
        return next(r.value for r in assess(document(text)).readings if r.signal is signal)

    assert value(EXAMPLES[signal.name]) > 0.3
    assert value("A quiet evening by the sea, with nothing to report but the wind.") == 0.0


@pytest.mark.parametrize(
    ("changes", "retracted"),
    [
        ({"title": "RETRACTED: A title"}, True),
        ({"title": "[Retracted] A title"}, True),
        ({"text": STUDY + " This article has been retracted at the request of the editor."}, True),
        ({"meta": {"retracted": "true"}}, True),
        (
            {"text": STUDY + " The journal has retracted another paper. Papers are retracted."},
            False,
        ),
        ({"title": "Retracted papers and their citations"}, False),
        ({"meta": {"retracted": "false"}}, False),
    ],
)
def test_a_retraction_caps_provenance_and_audit(changes, retracted):
    """A document that says so of itself is capped at 0.1; one that reports another's is not."""
    found = assess(document(**({"text": STUDY} | changes)))
    assert found.retracted is retracted
    for primitive in (Primitive.P, Primitive.A):
        assert (found.intervals[primitive].hi <= 0.1) is retracted
    assert found.intervals[Primitive.R].hi > 0.1


def test_no_judge_lifts_a_retracted_document():
    """The cap holds for a judge who sees nothing wrong."""
    plain = assess(document(STUDY, title="Retracted: A title"))
    found = place_scores(plain, [Scores(1, 1, 1, 1, 1)])
    assert found.scores.P == 0.1
    assert found.scores.A == 0.1
    assert found.intervals[Primitive.R].hi == found.scores.R


def test_the_median_of_three_answers_places_the_values():
    """Each primitive lies the median's share up its interval; one wild answer does nothing."""
    answers = [Scores(0.5, 0.5, 0.5, 0.5, 0.5), Scores(1, 1, 1, 0, 1), Scores(0.25, 0.6, 0, 0.5, 1)]
    plain = assess(document(NEWS))
    found = place_scores(plain, answers)
    assert found.judged == Scores(0.5, 0.6, 0.5, 0.5, 1.0)
    for primitive, interval in found.intervals.items():
        expected = interval.lo + found.judged[primitive] * (interval.hi - interval.lo)
        assert found.scores[primitive] == pytest.approx(expected)
    assert found.intervals == plain.intervals
    assert found.r > plain.r


def test_a_judge_sees_neither_address_nor_author():
    """Names and addresses are gone from what is judged, the rest stands."""
    text = (
        "By Jane Q. Doe and John Roe\nThe Guardian found that Doe's figures at "
        "https://www.theguardian.com/x and guardian.co.uk hold. Write to jane@theguardian.com. "
        "The guardians of the park said so. See 10.1038/s41586-020-1 for more."
    )
    found = blind(
        document(
            text,
            url="https://www.theguardian.com/world/1",
            title="A finding by Jane Q. Doe | The Guardian",
            author="Jane Q. Doe, John Roe",
        )
    )
    assert found.title == "A finding by [author] | [publisher]"
    assert found.text == (
        "[author]\n[publisher] found that [author]'s figures at "
        "[link] and [link] hold. Write to [link]. "
        "The guardians of the park said so. See [link] for more."
    )
    assert found.published == date(2024, 1, 1)
    assert {field.name for field in dataclasses.fields(found)} == {"title", "text", "published"}


@given(st.one_of(st.none(), st.text()), st.one_of(st.none(), st.text()))
def test_anything_can_be_blinded(url, author):
    """No address and no name, however odd, breaks the blinding."""
    assert blind(document(NEWS, url=url, author=author)).published == date(2024, 1, 1)


def test_other_languages_are_not_judged_by_english_signals():
    """Where the signals can't read, the upper ends say that nothing is known."""
    german = (
        "Die Preise sind im Mai um zwei Prozent gestiegen, teilte das Amt am Mittwoch mit. "
        "Kritiker wiesen darauf hin, dass die L\u00f6hne langsamer wachsen und nicht aufholen."
    )
    found = assess(document(german))
    assert not found.english
    assert {interval.hi for interval in found.intervals.values()} == {1.0}
    assert assess(document(NEWS)).english


def test_the_explanation_adds_up():
    """Signals add up to the low end of their primitive, and the factors multiply to r."""
    found = assess(document(STUDY))
    g = 1.0
    for part in found.explain():
        shown = sum(reading.contribution for reading in part.signals)
        assert part.interval.lo == pytest.approx(0.8 * shown)
        assert part.score == found.scores[part.primitive]
        assert part.judged is None
        g *= part.factor
    assert (g - 0.05) / 0.95 == pytest.approx(found.r)
    assert {part.primitive for part in found.explain()} == set(Primitive)
    record = found.record()
    assert record["r"] == round(found.r, 6)
    assert set(record["parts"]) == {"P", "H", "R", "E", "A"}


def test_an_interval_places_inside_itself():
    """No share leads out of the interval, rounding included."""
    interval = Interval(0.1, 0.3)
    assert [interval.place(share) for share in (0.0, 1.0)] == [0.1, 0.3]
