"""Figures drawn on the server: places are percents, words are said, extremes can be told apart."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heretix.report.figures import EVEN, Line, Mark, Scale, axis, difference, dumbbell, timeline

probs = st.floats(0, 1)


@given(probs, probs, st.booleans())
def test_an_axis_keeps_the_order_and_its_ends(one, other, log_odds):
    """Whichever axis: 0 to 100 percent, and never the other way round."""
    scale = Scale(log_odds)
    assert 0 <= scale.at(one) <= 100
    if one <= other:
        assert scale.at(one) <= scale.at(other)


@pytest.mark.parametrize(
    ("values", "log_odds"),
    [
        ((0.3, 0.7), False),
        ((0.02, 0.98), False),
        ((0.3, 0.99), True),
        ((0.001,), True),
        ((), False),
    ],
)
def test_extreme_answers_get_an_axis_of_log_odds(values, log_odds):
    """Only where an even one would put them at its very end."""
    assert Scale.of([*values, None]).log_odds is log_odds


def test_a_dumbbell_says_what_it_draws():
    """Where it was is hollow, where it went filled; the words have the numbers and intervals."""
    before = Mark(label="without <b>", prob=0.7, ci=(0.61, 0.8))
    after = Mark(label="with", prob=0.29, ci=(0.2, 0.39), lens="HEL")
    drawn = str(dumbbell([before, after]))
    assert 'class="fig-from" cx="70.0%"' in drawn
    assert '<g class="lens-hel"><circle class="fig-dot" cx="29.0%"' in drawn
    assert "without &lt;b&gt; 0.700, 95% interval 0.610 to 0.800; then with 0.290" in drawn
    assert "<b>" not in drawn
    assert not re.search(r"style=|viewBox", drawn)
    assert "fig-from" not in dumbbell([after])


def test_two_beliefs_that_depend_on_the_wording_are_two_bars():
    """One below the other, the first hollow; no dot, and no line that would join points."""
    marks = [
        Mark(label="without", prob=0.7, ci=(0.5, 0.9)),
        Mark(label="with", prob=0.4, ci=(0.2, 0.6), lens="HEL"),
    ]
    drawn = str(dumbbell(marks))
    assert "<circle" not in drawn
    assert "fig-join" not in drawn
    assert re.findall(r'<rect class="(fig-\w+)" x="(\S+)%" width="(\S+)%" y="(\S+)"', drawn) == [
        ("fig-open", "50.0", "40.0", "5.5"),
        ("fig-ends", "20.0", "40.0", "15.5"),
    ]
    assert [mark.words for mark in marks] == ["50% to 90%", "20% to 60%"]


def test_a_timeline_needs_two_moments():
    """One moment is no time; two are drawn in the order of their times."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    later, earlier = (now, 0.4, (0.3, 0.5)), (now - timedelta(days=3), 0.8, (0.7, 0.9))
    assert timeline([Line(label="m", lens="RPL", points=[later])]) == ""
    drawn = str(timeline([Line(label="m", lens="RPL", points=[later, earlier])]))
    assert "m from 0.80 to 0.40" in drawn
    assert "2025-12-29" in drawn
    assert drawn.count("<circle") == 2


def test_a_difference_stands_about_zero():
    """Zero is in the middle, and what is outside is held at the edge."""
    assert 'cx="50.0%"' in difference(0.0, (-0.1, 0.1))
    assert 'x1="0.0%"' in difference(-0.9, (-1.4, -0.5))
    assert "−" not in axis(EVEN)
