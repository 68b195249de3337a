"""The passage of a document that a model is shown: whole sentences, on the claim, not too many."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.evidence.text.fold import Span, pair_characters, words

if TYPE_CHECKING:
    from collections.abc import Sequence

# A sentence ends at a full stop with white space behind it, at its like in Chinese and Japanese,
# and at an empty line. Lines alone end nothing: many texts are wrapped.
_END: Final = re.compile(
    r"[.!?\u2026][\"'\u201d\u2019\u00bb)\]]*(?P<gap>\s+)(?=[\"'\u201c\u2018\u00ab(\[]*[^\W_a-z])"
    r"|[\u3002\uff01\uff1f][\u300d\u300f\u201d\uff09]*(?P<none>)"
    r"|(?P<blank>\n[^\S\n]*\n\s*|\n(?=[ \t]*[-*\u2022] ))"
)
_ABBREVIATION: Final = re.compile(
    r"(?:\b(?:Dr|Mr|Mrs|Ms|Prof|Rev|St|Sr|Jr|Fig|Figs|Eq|Ref|Refs|Nos?|Vol|pp?|al|vs|cf|e\.g|i\.e"
    r"|approx|ca|Inc|Ltd|Co|Corp|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)|\b[A-Z])\.$"
)
_LONGEST_ABBREVIATION: Final = 10

_STOPWORD_TEXT: Final = (
    "about after also been before being between could does from have into more most much only "
    "other over same should some such than that their them then there these they this those "
    "through under very were what when where which while will with would your the and for are was "
    "not but has had its can all any am an as at be by do go he if in is it me my no of on or so "
    "to up us we"
)
_STOPWORDS: Final = frozenset(_STOPWORD_TEXT.split(" "))
_STEM_CHARS: Final = 6


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A passage, `document[start:end]`, with a quote inside it."""

    start: int
    end: int
    quote: Span  # Place where the quote stands in the document
    cut: bool  # A sentence was too long and is cut between words


def is_readable(text: str) -> bool:
    """An encoder that was trained on English can say something about `text`: nine in ten of its
    letters are plain Latin ones."""
    letters = [char for char in text if char.isalpha()]
    return bool(letters) and 10 * sum(map(str.isascii, letters)) >= 9 * len(letters)


def split_sentences(text: str) -> list[Span]:
    """The sentences of `text`, in order, without the white space between them."""
    spans: list[Span] = []
    start = 0
    for match in _END.finditer(text):
        kind = match.lastgroup
        if kind == "gap":
            stop = match.start("gap")
            head = text[max(match.start() + 1 - _LONGEST_ABBREVIATION, 0) : match.start() + 1]
            if text[match.start()] == "." and _ABBREVIATION.search(head):
                continue
        else:
            stop = match.start() if kind == "blank" else match.end()
        _append(spans, text, start, stop)
        start = match.end()
    _append(spans, text, start, len(text))
    return spans


def find_content_words(text: str) -> frozenset[str]:
    """The words of `text` that say what it is about, cut to stems. A name of two letters, such as
    AI or 5G, is a word; a letter by itself isn't."""
    return frozenset(
        _stem(w) for w in pair_characters(words(text)) if len(w) > 1 and w not in _STOPWORDS
    )


def cut_excerpts(text: str, *, about: str, max_chars: int, most: int) -> list[Excerpt]:
    """Cut the few passages of `text` that say most about `about`, the best first. Of all runs
    of whole sentences that fit, the first with the most words of `about` in it is the best; its
    best sentence is the quote. The next ones lie beside it. A text without words has none."""
    spans, pieces = _parts(text, max_chars)
    wanted = find_content_words(about)
    scores = [Counter(map(_stem, pair_characters(words(text[s.start : s.end])))) for s in spans]
    found: list[Excerpt] = []
    left = [(0, len(spans))] if spans else []
    while left and len(found) < most:
        runs = {
            (start, end): _best_run(spans[start:end], scores[start:end], wanted, max_chars)
            for start, end in left
        }
        start, end = max(left, key=lambda part: (runs[part][1], -part[0]))
        first, last = (start + n for n in runs[start, end][0])
        best = max(range(first, last + 1), key=lambda n: (_hits(scores[n], wanted), -n))
        cut = not pieces.isdisjoint(spans[first : last + 1])
        found.append(Excerpt(spans[first].start, spans[last].end, spans[best], cut))
        left.remove((start, end))
        left += [part for part in ((start, first), (last + 1, end)) if part[0] < part[1]]
    return found


def _parts(text: str, max_chars: int) -> tuple[list[Span], frozenset[Span]]:
    """Sentences, and pieces of those that are too long to be shown whole; the pieces again."""
    spans: list[Span] = []
    pieces: list[Span] = []
    for span in split_sentences(text):
        start = span.start
        if span.end - start <= max_chars:
            spans.append(span)
            continue
        while start < span.end:
            long = span.end - start > max_chars
            end = _word_end(text, start, start + max_chars) if long else span.end
            pieces.append(Span(start, end))
            spans.append(pieces[-1])
            start = _skip_space(text, end)
    return spans, frozenset(pieces)


def _append(spans: list[Span], text: str, start: int, stop: int) -> None:
    part = text[start:stop]
    bare = part.strip()
    if any(char.isalnum() for char in bare):
        begin = start + part.index(bare)
        spans.append(Span(begin, begin + len(bare)))


def _stem(word: str) -> str:
    """Plurals and endings fall away with the tail of a long word."""
    return word[:_STEM_CHARS]


def _hits(score: Counter[str], wanted: frozenset[str]) -> tuple[int, int]:
    """Different words of the claim, then all of them."""
    present = [score[word] for word in wanted if score[word]]
    return len(present), sum(present)


def _best_run(
    spans: Sequence[Span], scores: Sequence[Counter[str]], wanted: frozenset[str], max_chars: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last sentence of the best run, and its hits; one sentence may be too long."""
    best, best_hits = (0, 0), (-1, -1)
    window: Counter[str] = Counter()
    last = -1
    for first in range(len(spans)):
        if last < first:
            last = first
            window = Counter(scores[first])
        while last + 1 < len(spans) and spans[last + 1].end - spans[first].start <= max_chars:
            last += 1
            window.update(scores[last])
        hits = _hits(window, wanted)
        if hits > best_hits:
            best, best_hits = (first, last), hits
        window.subtract(scores[first])
    return best, best_hits


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _word_end(text: str, start: int, at: int) -> int:
    """The last place up to `at` where a word ends; inside an endless word, `at` itself."""
    end = at
    while end > start and end < len(text) and not text[end].isspace():
        end -= 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return end if end > start else at
