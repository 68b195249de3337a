"""Sentences, and the passage that is shown."""

from __future__ import annotations

import pytest
from documents import prose
from hypothesis import given
from hypothesis import strategies as st

from heretix.evidence.text.excerpt import cut_excerpts, find_content_words, split_sentences


def cut_excerpt(text, *, about, max_chars):
    """The best passage, if there is one."""
    return next(iter(cut_excerpts(text, about=about, max_chars=max_chars, most=1)), None)


def split(text: str) -> list[str]:
    return [text[span.start : span.end] for span in split_sentences(text)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("It rose 2.5% in the U.S. market. Then it fell.",
         ["It rose 2.5% in the U.S. market.", "Then it fell."]),
        ("Dr. Smith et al. (2019) found it. See Fig. 3 for more.",
         ["Dr. Smith et al. (2019) found it.", "See Fig. 3 for more."]),
        ('He said "no." She said yes.', ['He said "no."', "She said yes."]),
        ("A heading\n\nA text that is\nwrapped here.\n\n\nEnd", ["A heading",
         "A text that is\nwrapped here.", "End"]),
        ("Points:\n- one\n- two", ["Points:", "- one", "- two"]),
        ("\u4eba\u53e3\u3002\u767e\u4e07\u3002", ["\u4eba\u53e3\u3002", "\u767e\u4e07\u3002"]),
        (" ... \n\n -- ", []),
        ("", []),
    ],
)  # fmt: skip
def test_sentences(text, parts):
    """Full stops of abbreviations, numbers and wrapped lines end no sentence."""
    assert split(text) == parts


@given(st.text())
def test_no_word_is_lost(text):
    """Sentences are slices in order, and between them stands nothing that could be read."""
    at, skipped = 0, ""
    for span in split_sentences(text):
        assert at <= span.start < span.end <= len(text)
        skipped += text[at : span.start]
        at = span.end
    skipped += text[at:]
    assert not any(char.isalnum() for char in skipped)


def test_content_words():
    """Endings and little words don't count."""
    assert find_content_words("The vaccines were shown") == find_content_words("vaccinated shown")
    assert find_content_words("the and of is") == frozenset()


def test_names_of_two_letters_are_words():
    """AI, 5G and the EU are subjects; prepositions and single letters aren't."""
    assert find_content_words("Is AI, 5G or the EU up to it? A b c.") == {"ai", "5g", "eu"}


def test_a_script_without_spaces_has_words_too():
    """The passage is chosen by pairs of characters, as by words elsewhere."""
    text = "这篇文章先谈天气。昨天下了很大的雨。" * 10 + "咖啡可以降低心脏病的风险。"
    found = cut_excerpt(text, about="咖啡有益心脏", max_chars=40)
    assert text[found.quote.start : found.quote.end] == "咖啡可以降低心脏病的风险。"


def test_the_passage_is_about_the_claim():
    """Of a long text, the sentences that speak of the claim are shown, and the best is quoted."""
    answer = "Coffee drinkers had fewer strokes than others did. The effect was small."
    text = f"{prose(1)} {answer} {prose(2)}"
    found = cut_excerpt(text, about="Coffee reduces the risk of strokes", max_chars=200)
    passage = text[found.start : found.end]
    assert answer in passage
    assert text[found.quote.start : found.quote.end] == answer.partition(" The")[0]
    assert (len(passage) <= 200, found.cut) == (True, False)
    assert split(passage)[0] in split(text)


def test_sentences_far_apart_do_not_add_up():
    """A passage is judged by what stands in it, not by what stood before it."""
    text = f"Coffee drinkers slept. {prose(1)} Strokes came late. {prose(2)}"
    found = cut_excerpt(text, about="coffee drinkers and strokes", max_chars=250)
    assert text[found.quote.start : found.quote.end] == "Coffee drinkers slept."
    assert "Strokes" not in text[found.start : found.end]


def test_without_a_word_of_the_claim_the_beginning_is_shown():
    """A text that never names the subject is shown from its start."""
    text = prose(3)
    found = cut_excerpt(text, about="coffee", max_chars=200)
    assert (found.start, found.quote.start) == (0, 0)


def test_a_sentence_that_is_too_long_is_cut_between_words():
    """The cut is marked, and falls between words; one endless word is cut where it must be."""
    text = "word " * 500
    found = cut_excerpt(text, about="coffee", max_chars=99)
    assert (text[found.start : found.end], found.cut) == (("word " * 20).strip(), True)
    found = cut_excerpt("x" * 500, about="coffee", max_chars=99)
    assert (found.end - found.start, found.cut) == (99, True)
    found = cut_excerpt("x" * 200 + "-coffee-" + "x" * 200, about="coffee", max_chars=99)
    assert 99 <= found.start < 208
    found = cut_excerpt("word " * 50 + "coffee " + "word " * 50, about="coffee", max_chars=99)
    assert found.start > 100


texts = st.one_of(st.text(), st.text("ab .!?\n\u3002\u2019Z1", max_size=300))


@given(texts, st.text("ab Z", max_size=20), st.integers(5, 80))
def test_any_text_gives_a_passage_that_fits(text, about, max_chars):
    """The passage fits, holds its quote, and is missing only where there is nothing to read."""
    found = cut_excerpt(text, about=about, max_chars=max_chars)
    if found is None:
        assert split_sentences(text) == []
    else:
        assert 0 <= found.start <= found.quote.start < found.quote.end <= found.end <= len(text)
        assert found.end - found.start <= max_chars


def test_texts_that_could_take_long():
    """A megabyte of spaces, full stops or words is read in one sweep."""
    for text in (
        " " * 1_000_000,
        "." * 200_000,
        ". " * 200_000,
        "a. A" * 50_000,
        "\n \n" * 100_000,
    ):
        cut_excerpt(f"Begin. {text}", about="begin", max_chars=600)
