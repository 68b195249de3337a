"""Folding and exact quotes."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from heretix.evidence.text.fold import MAX_MARKS, Span, _joins, find_quote, fold, fold_with_offsets

# Letters and digits among everything that folding exists for.
AWKWARD = (
    "ab 12%.,-'\"`\t\n"
    "\u00ad\u200b\u2060\ufeff\u00a0\u2003\u3000\u2018\u2019\u201c\u201d\u2013\u2014\u2212\u2033"
    "\ufb01\ufb03\u00bd\u00b2\u00e9\u0301\u0323\u00a8\u00b4\u2026\uff11\uff05\ufe31"
    "\u1100\u1161\u11a8\uac00\u304b\u3099\uff76\uff9e\u4e2d\u0e01\u0b47\u0b3e"
)
texts = st.one_of(st.text(), st.text(AWKWARD, max_size=60))


def naive_fold(text: str) -> str:
    """The definition, over the whole text at once."""
    invisible = {0xAD, 0x34F, 0x61C, 0xFEFF, *range(0x180B, 0x1810), *range(0x200B, 0x2010)}
    invisible |= {*range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFE00, 0xFE10)}
    invisible |= set(range(0xE0000, 0xE1000))
    dashes = dict.fromkeys(
        map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u2e3a\u2e3b\ufe58\ufe63\uff0d"),
        "-",
    )
    singles = dict.fromkeys(
        map(ord, "`\u00b4\u02b9\u02bb\u02bc\u02c8\u2018\u2019\u201a\u201b\u2032\u2035\u2039\u203a"),
        "'",
    )
    doubles = dict.fromkeys(
        map(ord, "\u00ab\u00bb\u02ba\u201c\u201d\u201e\u201f\u2033\u2036\u301d\u301e\u301f"), '"'
    )
    plain = dashes | singles | doubles
    seen = "".join(char for char in text if ord(char) not in invisible).translate(plain)
    return " ".join(unicodedata.normalize("NFKC", seen).translate(plain).split())


@given(texts)
@example("e\u00ad\u0301")
@example("a \u200b b")
@example("x \u00a8y")
@example("\u1100\u200b\u1161\u11a8")
def test_folding_in_pieces_is_folding_the_whole(text):
    """Cutting the text into pieces for the offsets changes nothing about what it folds to."""
    assert fold(text) == fold_with_offsets(text).text == naive_fold(text)


@given(texts)
def test_folding_twice_changes_nothing(text):
    """The folded text is the one spelling of itself."""
    assert fold(fold(text)) == fold(text)


@given(texts, st.data())
def test_every_span_folds_to_its_part(text, data):
    """A part of the folded text that maps back stands in the original where the map says."""
    folded = fold_with_offsets(text)
    assume(folded.text)
    start = data.draw(st.integers(0, len(folded.text) - 1))
    end = data.draw(st.integers(start + 1, len(folded.text)))
    part = folded.text[start:end]
    span = folded.span(start, end)
    assume(span is not None and part == part.strip())
    assert fold(text[span.start : span.end]) == part


@given(texts, st.data())
def test_a_slice_between_spaces_is_always_found(text, data):
    """Whatever stands between white space can be quoted, and is found where it folds the same."""
    words = text.split()
    assume(words)
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    quote = " ".join(words[start:end])
    assume(fold(quote) and not any(_joins(w[0]) for w in words))
    # A word made of invisible characters or a free accent moves the borders.
    assume(
        all(fold(word) and not unicodedata.normalize("NFKC", word)[0].isspace() for word in words)
    )
    span = find_quote(text, quote)
    assert span is not None
    assert fold(text[span.start : span.end]) == fold(quote)


@given(texts, texts)
def test_what_is_found_is_the_quote(text, quote):
    """No span is ever given for a text that doesn't fold to the quote."""
    span = find_quote(text, quote)
    if span is not None:
        assert fold(text[span.start : span.end]) == fold(quote)
    if fold(quote) not in fold(text):
        assert span is None


@given(st.text("0123456789", min_size=1, max_size=4), st.text("0123456789", min_size=1, max_size=4))
def test_a_changed_digit_is_refused(said, quoted):
    """A number is quoted as it stands or not at all."""
    text = f"The rate rose by {said}% in a year."
    found = find_quote(text, f"rose by {quoted}% in") or find_quote(text, f"{quoted}%")
    assert (found is not None) == (said == quoted)


@pytest.mark.parametrize(
    ("text", "quote", "found"),
    [
        ("It fell by 21% in May.", "fell by 12% in May", None),
        ("The \u201cnew\u201d rate \u2014 12% \u2014 held.", 'The "new" rate - 12% - held.', "all"),
        ("ef\ufb01cient co\u00adopera\u00adtion", "efficient cooperation", "all"),
        ("rose\u00a0by\u202f12\u00a0%", "rose by 12 %", "all"),
        ("It\u2019s a\n\n  long   way", "It's a long way", "all"),
        ("cafe\u0301 noir", "caf\u00e9", "cafe\u0301"),
        ("caf\u00e9 noir", "cafe", None),
        ("\uff15\uff10\uff05 of", "50%", "\uff15\uff10\uff05"),
        ("\u4eba\u53e3\u306f\u767e\u4e07", "\u767e\u4e07", "\u767e\u4e07"),
        ("\u200bhello\u200b there", "hello", "hello"),
        ("Totals: 1,000 people", "000 people", None),
        ("a 112% rise", "12% rise", None),
        ("a 2.5% rise", "5% rise", None),
        ("a change of -5% was", "5% was", None),
        ("between 3-5% was", "3-5% was", "3-5% was"),
        ("it rose 12% then", "it rose 12", None),
        ("he can't go", "he can", None),
        ("it was non-inferior to", "inferior to", None),
        ("it was risk-free", "it was risk", None),
        ("the end\u2014another start", "another start", "another start"),
        ("find it", "ind it", None),
        ("\ufb01nd it", "ind it", None),
        ("unfit, then fit", "fit", "fit"),
        ("text", "", None),
        ("text", " \u200b ", None),
        ("", "quote", None),
        ("Case matters", "case matters", None),
    ],
)  # fmt: skip
def test_quotes(text, quote, found):
    """Typography may differ; letters, digits, signs and the borders of words may not."""
    span = find_quote(text, quote)
    if found is None:
        assert span is None
    else:
        expected = text if found == "all" else found
        assert span is not None
        assert text[span.start : span.end] == expected


def test_everything_that_composes_is_known_to_join():
    """No character that Unicode composes with the one before it is taken for a beginning."""
    missing = []
    for point in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(point)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            pair = "".join(chr(int(part, 16)) for part in parts)
            if unicodedata.normalize("NFC", pair) == chr(point) and not _joins(pair[1]):
                missing.append(hex(point))
    assert missing == []


def test_a_tower_of_accents_is_cut():
    """Thousands of accents on one letter cost no more than thirty, and can still be quoted."""
    text = "before " + "e" + "\u0301\u0323" * 200_000 + " after"
    assert len(fold(text)) <= len("before e after") + MAX_MARKS
    assert find_quote(text, "after") == Span(len(text) - 5, len(text))


def test_long_repetitive_texts_are_searched_in_one_sweep():
    """A quote that nearly stands at every place of a long text ends the search all the same."""
    assert find_quote("a" * 300_000, "a" * 1_000) is None
    assert find_quote("\ufb01" * 100_000, "if" * 500 + "i") is None
