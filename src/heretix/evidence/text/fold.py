"""Texts compared: folded to one spelling, their words, quotes found in them, near-duplicates.

Fuzzy matching is no check ("21%" scores 98 of 100 against "12%"), so a quote either stands in the
text, character for character after folding, or it doesn't. Folding is NFKC, one kind of dash, one
of each kind of quotation mark, one space for any white space, and no invisible characters. A known
limit comes with NFKC: a raised 2 folds to a plain one.

A wire story on eight sites is one story: documents that share half of their five-word runs (a
Jaccard index of 0.5 or more) are linked, linked documents form a cluster, and the earliest one
stands for all. Jaccard doesn't see a short excerpt of a long text; the limit per publisher and
diverse selection remain.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")

SHINGLE_WORDS: Final = 5
DUPLICATE_JACCARD: Final = 0.5

# Scripts that put no spaces between words: Chinese, Japanese, Thai, Lao, Burmese, Khmer.
#
# Nothing here knows where their words begin. Every character is indexed by itself, and two that
# stand side by side are what a word is elsewhere: enough to tell what a text is about.

UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
"""As the inside of a regular expression's brackets."""
_CHARACTER: Final = re.compile(f"[{UNSPACED}]")
_WORD: Final = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


def is_unspaced(word: str) -> bool:
    """Check that `word`, as `words` gives them, is a character of such a script."""
    return len(word) == 1 and _CHARACTER.match(word) is not None


def space_characters(text: str) -> str:
    """`text` with room around each character of such a script, so that an index sees them."""
    return text if text.isascii() else _CHARACTER.sub(r" \g<0> ", text)


def pair_characters(words: Sequence[str]) -> Iterator[str]:
    """`words` with neighbouring characters of such scripts joined two by two."""
    before = ""
    for word, after in pairwise((*words, "")):
        if not is_unspaced(word):
            yield word
        elif is_unspaced(after):
            yield word + after
        elif not is_unspaced(before):
            yield word
        before = word


MAX_MARKS: Final = 30
"""Accents kept on one letter. No language needs so many, and sorting thousands of them, which NFKC
does, takes quadratic time."""

_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u2e3a\u2e3b\ufe58\ufe63\uff0d"
_SINGLE: Final = "`\u00b4\u02b9\u02bb\u02bc\u02c8\u2018\u2019\u201a\u201b\u2032\u2035\u2039\u203a"
_DOUBLE: Final = "\u00ab\u00bb\u02ba\u201c\u201d\u201e\u201f\u2033\u2036\u301d\u301e\u301f"
_PLAIN: Final = str.maketrans(
    {**dict.fromkeys(_DASHES, "-"), **dict.fromkeys(_SINGLE, "'"), **dict.fromkeys(_DOUBLE, '"')}
)
# Soft hyphens, zero-width spaces and joiners, marks of direction, variation selectors, tags: a
# reader sees none of them, and texts copied from pages are full of them.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff]"
)
_SPACE: Final = re.compile(r"\s+")
# Characters that fold to themselves and join nothing before them: ASCII without the backtick,
# accented Latin, Greek, Cyrillic, kana and Chinese. Only for speed.
_STABLE: Final = (
    "!-_a-~\u00c0-\u0131\u0134-\u013e\u0141-\u0148\u014a-\u017e\u0391-\u03a1\u03a3-\u03c9"
    "\u0400-\u045f\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff"
)
# The last character of a run is left over when something unusual follows: an accent may join it.
_STABLE_RUN: Final = re.compile(rf"[{_STABLE}]+(?![^{_STABLE}\x00-\x7f])")

# In scripts without spaces any character may begin a quote.
_UNSPACED: Final = re.compile(f"[{UNSPACED}\U00020000-\U0003ffff]")
_WORD_START: Final = re.compile(r"(?<!\w)\w|[^\w\s]|" + _UNSPACED.pattern)
_CUT_BEFORE: Final = re.compile(
    r"\d[.,]\d"  # "5%" out of "2.5%"
    r"|(?:^|[^\w])-\d"  # "5%" out of "-5%"
)
_CUT_AFTER: Final = re.compile(
    r"\d[.,]\d"  # "2" out of "2.5"
    r"|\d[%\u2030]"  # "12" out of "12%"
    r"|\w'\w"  # "can" out of "can't"
)
_HYPHENS: Final = "-\u2010\u2011"


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a text: `text[start:end]`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Folded:
    """Folded text that knows where its pieces came from."""

    text: str
    _pieces: Sequence[tuple[int, int, int, bool]]
    """Start in `text`, start and end in the original, and whether a piece stands for itself,
    character by character; others map only as a whole."""

    def span(self, start: int, end: int, *, covering: bool = False) -> Span | None:
        """Find `text[start:end]` in the original; None if that would cut a piece apart, unless any
        `covering` span will do."""
        if not 0 <= start < end <= len(self.text):
            return None
        pieces = self._pieces
        after = bisect_right(pieces, end - 1, key=itemgetter(0))
        at, origin, _, exact_start = pieces[bisect_right(pieces, start, key=itemgetter(0)) - 1]
        _, _, origin_end, exact_end = pieces[after - 1]
        head = start - at
        tail = (pieces[after][0] if after < len(pieces) else len(self.text)) - end
        if not covering and ((head and not exact_start) or (tail and not exact_end)):
            return None
        return Span(origin + (head if exact_start else 0), origin_end - (tail if exact_end else 0))


def fold(text: str) -> str:
    """`text` in the one spelling that quotes are compared in. Folding twice changes nothing."""
    if text.isascii():
        return " ".join(text.replace("`", "'").split())
    return fold_with_offsets(text).text


def fold_with_offsets(text: str) -> Folded:
    """`text` folded, with the way back from every part of it."""
    texts: list[str] = []
    pieces: list[tuple[int, int, int, bool]] = []
    length = 0
    # White space is held back until something follows it.
    space: tuple[int, int] | None = None

    def add(part: str, start: int, end: int, *, exact: bool) -> None:
        nonlocal length, space
        if space is not None and length:
            texts.append(" ")
            pieces.append((length, *space, False))
            length += 1
        space = None
        texts.append(part)
        pieces.append((length, start, end, exact))
        length += len(part)

    at = 0
    while at < len(text):
        if run := _STABLE_RUN.match(text, at):
            add(run[0], at, run.end(), exact=True)
            at = run.end()
        elif gap := _SPACE.match(text, at):
            space = (space[0] if space else at, gap.end())
            at = gap.end()
        elif _INVISIBLE.match(text, at):
            at += 1
        else:
            cluster, end, following = _cluster(text, at)
            normal = unicodedata.normalize("NFKC", cluster.translate(_PLAIN)).translate(_PLAIN)
            # A free-standing accent normalizes to a space and the accent.
            if normal[:1].isspace():
                space = (space[0] if space else at, at)
            if bare := " ".join(normal.split()):
                add(bare, at, end, exact=False)
            if normal[-1:].isspace():
                space = (space[0] if space else end, end)
            at = following
    return Folded("".join(texts), pieces)


def find_quote(text: str, quote: str) -> Span | None:
    """Find `quote` in `text`, or None: `fold(text[start:end]) == fold(quote)`. It can't be cut out
    of a word or a number: "2%" isn't in "12%", "5%" not in "2.5%" or "-5%", "can" not in "can't",
    "inferior" not in "non-inferior"."""
    needle = fold(quote)
    if not needle:
        return None
    folded = fold_with_offsets(text)
    at = folded.text.find(needle)
    while at >= 0:
        end = at + len(needle)
        span = folded.span(at, end)
        if (
            span is not None
            and fold(text[span.start : span.end]) == needle
            and _is_on_borders(folded.text, at, end, text, span)
        ):
            return span
        # Going on at the next word, and not at the next letter, keeps repetitions linear.
        word = _WORD_START.search(folded.text, at + 1)
        at = folded.text.find(needle, word.start() if word else len(folded.text))
    return None


def _cluster(text: str, start: int) -> tuple[str, int, int]:
    """The character at `start` with whatever joins it: its text, its end, and where to go on."""
    kept = [text[start]]
    end = at = start + 1
    marks = 0
    while at < len(text):
        char = text[at]
        if not _INVISIBLE.match(char):
            if not _joins(char):
                break
            marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
            if marks <= MAX_MARKS:
                kept.append(char)
            end = at + 1
        at += 1
    return "".join(kept), end, at


@lru_cache(maxsize=8_192)
def _joins(char: str) -> bool:
    """`char` may compose with, or be sorted among, what stands before it."""
    first = unicodedata.normalize("NFKD", char)[0]
    return (
        unicodedata.category(first)[0] == "M"
        or "\u1160" <= first <= "\u11ff"  # vowels and finals of Korean
        or "\U00016d63" <= first <= "\U00016d6a"  # vowels of Kirat Rai
    )


def _is_on_borders(folded: str, start: int, end: int, text: str, span: Span) -> bool:
    """The quote at `folded[start:end]`, `text[span]`, begins and ends where words do."""
    return not (
        _is_inside_word(folded[start - 1 : start + 1] if start else "")
        or _is_inside_word(folded[end - 1 : end + 1])
        or _CUT_BEFORE.search(folded[max(start - 2, 0) : start + 1])
        or _CUT_AFTER.match(folded, end - 1, end + 2)
        # Folded dashes look like hyphens, but only a hyphen makes one word of two.
        or _is_hyphenated(text[max(span.start - 2, 0) : span.start + 1])
        or _is_hyphenated(text[span.end - 1 : span.end + 2])
    )


def _is_inside_word(pair: str) -> bool:
    if len(pair) < 2 or not re.fullmatch(r"\w\w", pair):
        return False
    return pair.isdigit() or not _UNSPACED.search(pair)


def _is_hyphenated(three: str) -> bool:
    return len(three) == 3 and three[1] in _HYPHENS and three[0].isalpha() and three[2].isalpha()


def words(text: str) -> list[str]:
    """The words of `text`, folded and without case; in scripts without spaces, its characters."""
    return _WORD.findall(fold(text).casefold())


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """All runs of five words. A shorter text is one run of all its words; an empty one has none."""
    found = words(text)
    runs = range(max(len(found) - SHINGLE_WORDS + 1, min(len(found), 1)))
    return frozenset(tuple(found[at : at + SHINGLE_WORDS]) for at in runs)


def jaccard(a: frozenset[T], b: frozenset[T]) -> float:
    """Shared members over all members; two empty sets share nothing."""
    union = len(a | b)
    return len(a & b) / union if union else 0.0


def cluster(
    texts: Sequence[str],
    *,
    earliest: Callable[[int], object],
    links: Iterable[tuple[int, int]] = (),
) -> list[list[int]]:
    """Clusters of near-duplicates as places in `texts`, the earliest first; in order of that one.
    `earliest` is a sort key over places; ties go to the smaller place. A cluster is everything that
    can be reached by links, so the order of `texts` doesn't decide who is in it. Further `links`
    are those that somebody else knows of."""
    sets = [shingles(text) for text in texts]
    holders: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, found in enumerate(sets):
        for shingle in found:
            holders[shingle].append(place)
    overlaps = Counter(pair for places in holders.values() for pair in combinations(places, 2))
    group = list(range(len(texts)))

    def root(place: int) -> int:
        while group[place] != place:
            group[place] = group[group[place]]
            place = group[place]
        return place

    for (a, b), shared in overlaps.items():
        # Multiplied out: no rounding of a quotient decides about a copy.
        if shared >= DUPLICATE_JACCARD * (len(sets[a]) + len(sets[b]) - shared):
            group[root(a)] = root(b)
    for a, b in links:
        group[root(a)] = root(b)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for place in sorted(range(len(texts)), key=lambda place: (earliest(place), place)):
        members[root(place)].append(place)
    return sorted(members.values())
