"""Near-duplicates."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heretix.evidence.text.fold import cluster, jaccard, shingles, words


def story(seed: int, length: int = 120) -> list[str]:
    rng = random.Random(seed)
    return [f"w{rng.randrange(5_000)}" for _ in range(length)]


def by_place(place: int) -> int:
    return place


def test_words_and_shingles():
    """Case and typography don't make a difference, and five words make a shingle."""
    assert words("The \u201cRATE\u201d \u2014 it\u2019s 12%") == ["the", "rate", "it", "s", "12"]
    assert words("\u4eba\u53e3 is up") == ["\u4eba", "\u53e3", "is", "up"]
    assert len(shingles("a b c d e f g")) == 3
    assert shingles("a b c d") == {("a", "b", "c", "d")}
    assert shingles(" \u2014 ") == frozenset()


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_jaccard_is_what_it_says(a, b):
    """The index is symmetric, in [0, 1], and 1 exactly for equal sets that hold something."""
    a, b = frozenset(a), frozenset(b)
    assert jaccard(a, b) == jaccard(b, a)
    assert 0.0 <= jaccard(a, b) <= 1.0
    assert (jaccard(a, b) == 1.0) == (a == b and bool(a))


@pytest.mark.parametrize(("shared", "together"), [(8, True), (7, False)])
def test_the_border_is_one_half(shared, together):
    """Twelve shingles each: eight shared of sixteen is one half, seven of seventeen is less."""
    first = [f"a{n}" for n in range(16)]
    second = [*first[: shared + 4], *(f"b{n}" for n in range(12 - shared))]
    assert jaccard(shingles(" ".join(first)), shingles(" ".join(second))) == pytest.approx(
        shared / (24 - shared)
    )
    assert len(cluster([" ".join(first), " ".join(second)], earliest=by_place)) == 2 - together


def test_the_earliest_copy_stays():
    """The kept document is the one that came first, not the one that was listed first."""
    text = " ".join(story(1))
    dates = ["2024-03-01", "2024-01-01", "2024-02-01"]
    texts = [text, text.upper(), text + " and one more line"]
    (found,) = cluster(texts, earliest=lambda place: dates[place])
    assert found == [1, 2, 0]


def test_links_make_clusters_whatever_the_order():
    """A is like B and B like C: one cluster, however they come in."""
    base = story(2, 100)
    chain = [base, [*base[25:], *story(3, 25)], [*base[50:], *story(3, 25), *story(4, 25)]]
    other = story(5)
    texts = [" ".join(text) for text in (*chain, other)]
    assert jaccard(shingles(texts[0]), shingles(texts[2])) < 0.5
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]):
        found = cluster([texts[n] for n in order], earliest=lambda place, o=order: o[place])
        kept = {order[first]: {order[n] for n in copies} for first, *copies in found}
        assert kept == {0: {1, 2}, 3: set()}


@pytest.mark.parametrize(
    ("a", "b", "together"),
    [
        ("Yes it is", "yes, it is!", True),
        ("Yes it is", "No it isn't", False),
        ("", "", False),
        ("one two three", "one two three four five six", False),
    ],
)
def test_short_texts(a, b, together):
    """Texts of fewer than five words are copies only if all their words are the same."""
    assert len(cluster([a, b], earliest=by_place)) == 2 - together


@given(st.lists(st.sampled_from([" ".join(story(n, 30)) for n in range(4)]), max_size=12))
def test_copies_are_counted_and_none_is_lost(texts):
    """Every document is kept or is somebody's copy, and there are as many clusters as stories."""
    found = cluster(texts, earliest=by_place)
    assert sorted(n for places in found for n in places) == list(range(len(texts)))
    assert len(found) == len(set(texts))
    assert [first for first, *_ in found] == sorted(texts.index(text) for text in set(texts))


def test_a_few_hundred_documents():
    """Three hundred documents with a shared notice are compared pair by pair all the same."""
    notice = " ".join(story(99, 12))
    texts = [f"{' '.join(story(n % 100, 80))} {notice}" for n in range(300)]
    found = cluster(texts, earliest=by_place)
    assert len(found) == 100
    assert {len(places) for places in found} == {3}
