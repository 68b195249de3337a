"""What a document shows about itself: deterministic signals behind the five primitives.

A signal is a kind of passage that reliable work tends to have (an identifier, a sample size, a
stated limitation), counted up to a number that is enough. Signals see title, text and date, never
address, author or class. Limits, stated plainly: they read English; they see that a passage is
there and not that it is true; a text written to please them would. Hence intervals, and a low end
that words alone can't bring to the top.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from heretix.evidence.duplicates import words
from heretix.evidence.folding import fold

if TYPE_CHECKING:
    from heretix.evidence.document import Document

__all__ = [
    "Observation",
    "Primitive",
    "Signal",
    "SignalReading",
    "observe",
    "read_signals",
    "reads_english",
    "says_retracted",
]

MAX_CHARS: Final = 200_000
"""Signals are enough long before this; a book must not take minutes."""


class Primitive(StrEnum):
    """The five things that reliability is made of."""

    P = "provenance"
    H = "hardness to fake"
    R = "reproducibility"
    E = "external validity"
    A = "adversarial audit"


@dataclass(frozen=True, slots=True)
class Observation:
    """All that signals get to see of a document. There is no address, author or class in it."""

    title: str
    text: str
    date_confidence: float
    """0 without a date; 1 where the method that found it gave no confidence."""
    retracted: bool
    """The source's own record says so."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A kind of passage, and how much of it is enough."""

    name: str
    primitive: Primitive
    weight: float
    """Share of the primitive; the shares of a primitive add up to 1."""
    enough: int
    pattern: re.Pattern[str] | None
    """None for the date, which is no passage."""


@dataclass(frozen=True, slots=True)
class SignalReading:
    """One signal in one document."""

    signal: Signal
    count: int
    value: float
    """From 0 to 1: the count over what is enough, at most 1."""

    @property
    def contribution(self) -> float:
        """What the signal adds to its primitive."""
        return self.signal.weight * self.value


def _any_of(*parts: str) -> re.Pattern[str]:
    """A pattern for text in lower case, which is searched several times as fast as either case."""
    return re.compile("|".join(f"(?:{part})" for part in parts))


_MONTHS: Final = (
    r"(?:january|february|march|april|may|june|july|august|september|october|november|december)"
)
_PEOPLE: Final = (
    r"(?:participants|patients|people|persons|respondents|subjects|adults|children|students|women"
    r"|men|households|cases|deaths|samples|specimens|animals|mice|rats|interviews|witnesses)"
)
_UNITS: Final = (
    r"(?:%|percent\b|per cent\b|percentage points?\b|(?:[kcmn\u03bc]?m|[km\u03bc]?g|[km]?l|mmhg"
    r"|tonnes?|miles?|hectares?|acres?|[kmgt]?wh?|[kmg]?hz|ppm|ppb|\u00b0 ?[cf]|years?|days|hours"
    r"|minutes|million|billion|trillion)\b)"
)
_REGISTERED: Final = r"\b(?:nct\d{8}|isrctn\d{6,}|crd42\d{5,}|chictr[\w-]{6,}|eudract)"

SIGNALS: Final = (
    Signal("dated", Primitive.P, 0.20, 1, None),
    Signal("identifiers", Primitive.P, 0.25, 3, _any_of(
        r"\[doi\]", r"\bpmid:? ?\d+", r"\barxiv:\d{4}\.\d{4,5}", r"\bisbn\b", _REGISTERED)),
    Signal("citations", Primitive.P, 0.25, 5, _any_of(
        r"\bet al\b", r"\(\w[^()]{0,60}\b(?:1[89]|20)\d\d[a-z]?\)",
        r"\[\d{1,3}(?:[,-] ?\d{1,3}){0,5}\]")),
    Signal("attributed statements", Primitive.P, 0.15, 4, _any_of(
        r"\baccording to\b", r"\b(?:said|told|wrote|testified|reported)\b")),
    Signal("links", Primitive.P, 0.15, 5, _any_of(r"\[link\]")),

    Signal("quantities with units", Primitive.H, 0.25, 10, _any_of(rf"\d(?: ?|-){_UNITS}")),
    Signal("sample sizes", Primitive.H, 0.20, 3, _any_of(
        r"\bn ?= ?\d+", rf"\b\d[\d,]* (?:[a-z-]+ )?{_PEOPLE}\b")),
    Signal("stated uncertainty", Primitive.H, 0.25, 4, _any_of(
        r"\b9[059] ?% ?(?:ci\b|confidence|credible)", r"\bp ?[<=>] ?0?\.\d+", r"\u00b1",
        r"\bstandard (?:error|deviation)", r"\bmargin of error", r"\binterquartile",
        r"\b(?:confidence|credible) intervals?")),
    Signal("dates of events", Primitive.H, 0.15, 5, _any_of(
        rf"\b\d{{1,2}} {_MONTHS} \d{{4}}\b", rf"\b{_MONTHS} \d{{1,2}}, \d{{4}}\b",
        r"\b(?:1[89]|20)\d\d-\d\d-\d\d\b")),
    Signal("records", Primitive.H, 0.15, 2, _any_of(
        _REGISTERED, r"\b(?:gse|prjna|srr)\d+", r"\braw data\b", r"\baccession\b", r"\bdocket\b",
        r"\bcase no\b", r"\btranscripts?\b", r"\brecordings?\b")),

    Signal("methods", Primitive.R, 0.35, 5, _any_of(
        r"\bmethods?\b", r"\bmethodology\b", r"\bprotocols?\b", r"\bprocedures?\b",
        r"\bwe (?:measured|collected|estimated|recruited|analy[sz]ed|calculated|sampled)\b")),
    Signal("data available", Primitive.R, 0.25, 2, _any_of(
        r"\bdata\b[^.]{0,60}\bavailab", r"\bdatasets?\b", r"\bdeposited\b",
        r"\bsupplement(?:ary|al) (?:data|material|information|files?|tables?)")),
    Signal("code available", Primitive.R, 0.20, 2, _any_of(
        r"\b(?:code|scripts?|software)\b[^.]{0,60}\b(?:availab|version)", r"\bopen[- ]source\b",
        r"\bsource code\b")),
    Signal("registered before", Primitive.R, 0.20, 1, _any_of(
        r"\bpre-?regist", _REGISTERED, r"\bregistered (?:report|protocol|trial)")),

    Signal("sample described", Primitive.E, 0.30, 4, _any_of(
        r"\baged? \d", r"\bmean age\b", r"\b(?:fe)?males?\b", r"\binclusion criteria\b",
        r"\beligib", r"\brepresentative\b", r"\bresponse rate\b", r"\bpopulation\b")),
    Signal("replication", Primitive.E, 0.35, 3, _any_of(
        r"\breplicat", r"\breproduced\b", r"\bmeta-analys", r"\bsystematic reviews?\b",
        r"\bconsistent with (?:previous|earlier|prior|other)\b",
        r"\bindependent(?:ly)? (?:confirm|verif|stud|team|group|source)")),
    Signal("comparison", Primitive.E, 0.20, 4, _any_of(
        r"\bcontrol (?:groups?|arms?|conditions?)\b", r"\bcontrols\b", r"\bplacebo\b",
        r"\brandomi[sz]", r"\bbaseline\b", r"\bcompared (?:with|to)\b")),
    Signal("several settings", Primitive.E, 0.15, 2, _any_of(
        r"\bmulti-?cent", r"\bcohorts?\b",
        r"\b\w+ (?:countries|sites|cent(?:re|er)s|hospitals|regions|states|cities)\b")),

    Signal("limitations", Primitive.A, 0.30, 3, _any_of(
        r"\blimitations?\b", r"\bcaveats?\b", r"\bcannot (?:rule out|exclude|be excluded)\b",
        r"\bmay not generali", r"\bbias(?:es)?\b", r"\bconfound")),
    Signal("interests declared", Primitive.A, 0.25, 2, _any_of(
        r"\b(?:conflicts?|competing|declarations?|declared) (?:of )?interests?\b",
        r"\bfunded by\b", r"\bfunding\b", r"\bgrant (?:no|numbers?)\b")),
    Signal("review", Primitive.A, 0.20, 2, _any_of(
        r"\bpeer[- ]review", r"\breviewers?\b", r"\breferees?\b", r"\beditor'?s? note\b",
        r"\breceived\b[^.]{0,60}\baccepted\b", r"\baudited\b")),
    Signal("corrections", Primitive.A, 0.10, 1, _any_of(
        r"\bcorrections?\b", r"\berrat(?:um|a)\b", r"\bcorrected (?:on|version)\b",
        r"\bthis (?:article|story|page|report) (?:was|has been) (?:amended|corrected|updated)\b")),
    Signal("the other side", Primitive.A, 0.15, 4, _any_of(
        r"\bcritics?\b", r"\bhowever\b", r"\bdisput", r"\bdisagree", r"\bdeclined to comment\b",
        r"\bdid not (?:immediately )?respond\b", r"\bon the other hand\b", r"\bin response\b")),
)  # fmt: skip
"""Every signal, by primitive."""

# Addresses are taken out before anything is looked for: what a domain is called must not count.
_DOI: Final = re.compile(r"(?:https?://)?(?:(?:dx\.)?doi\.org/|doi:? ?)?10\.\d{4,9}/\S+")
_LINK: Final = re.compile(
    r"(?:https?://|www\.)\S+|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\b(?:[a-z0-9-]+\.){1,4}"
    r"(?:com|org|net|gov|edu|int|info|io|co|uk|de|fr|eu|ca|au|ru|cn|jp)\b(?:/\S*)?"
)

_RETRACTED_TITLE: Final = re.compile(
    r"^\W*(?:retracted|withdrawn|retraction(?: notice)?)\b\s*(?:article|paper)?\s*[:\])-]",
    re.IGNORECASE,
)
_RETRACTED_TEXT: Final = re.compile(
    r"\bthis (?:article|paper|study|preprint|manuscript|publication) (?:has been|was|is|has since "
    r"been) (?:retracted|withdrawn)\b",
    re.IGNORECASE,
)
_RETRACTED_META: Final = frozenset({"1", "true", "yes", "retracted"})

_ENGLISH_WORDS: Final = (
    "the of and to in a is that for was on with as by are from this be at or it not have which an "
    "were but has had their its they he she we"
)
_ENGLISH: Final = frozenset(_ENGLISH_WORDS.split(" "))
_ENGLISH_SHARE: Final = 0.15
"""English prose has about twice this share of the words above; other languages nearly none."""
_ENGLISH_MIN_WORDS: Final = 20


def observe(document: Document) -> Observation:
    """What signals get to see of `document`."""
    confidence = document.published_confidence
    return Observation(
        title=document.title,
        text=document.text[:MAX_CHARS],
        date_confidence=0.0
        if document.published is None
        else 1.0
        if confidence is None
        else min(max(confidence, 0.0), 1.0),
        retracted=document.meta.get("retracted", "").strip().lower() in _RETRACTED_META,
    )


def read_signals(seen: Observation) -> tuple[SignalReading, ...]:
    """All signals in a document, in the order of `SIGNALS`."""
    text = _LINK.sub(" [link] ", _DOI.sub(" [doi] ", fold(seen.text).lower()))
    readings = []
    for signal in SIGNALS:
        if signal.pattern is None:
            count, value = int(seen.date_confidence > 0), seen.date_confidence
        else:
            count = sum(1 for _ in signal.pattern.finditer(text))
            value = min(count / signal.enough, 1.0)
        readings.append(SignalReading(signal, count, value))
    return tuple(readings)


def says_retracted(seen: Observation) -> bool:
    """The document is retracted: by its record, its title, or a sentence about itself.

    A text that reports somebody else's retraction isn't.
    """
    return (
        seen.retracted
        or _RETRACTED_TITLE.search(seen.title) is not None
        or _RETRACTED_TEXT.search(fold(seen.text)) is not None
    )


def reads_english(seen: Observation) -> bool:
    """The signals can read the text. In a few words nobody can tell, and it makes no difference."""
    found = words(seen.text[:20_000])
    if len(found) < _ENGLISH_MIN_WORDS:
        return True
    return sum(word in _ENGLISH for word in found) >= _ENGLISH_SHARE * len(found)
