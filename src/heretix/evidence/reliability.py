"""Reliability of a document, blind to prestige: five primitives, one number.

A signal is a kind of passage that reliable work tends to have (an identifier, a sample size, a
stated limitation), counted up to a number that is enough. Signals see title, text and date, never
address, author or class. They read English; they see that a passage is there and not that it is
true; a text written to please them would. Hence each primitive has an interval, and a low end that
words alone can't bring to the top. A judge who sees neither address nor author may place the value
inside. `r` is the weighted geometric mean, floored and rescaled, so that one weak link bites. It
selects documents and is reported; no model is shown it.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.bundle import Stance
from heretix.evidence.policy.publisher import publisher_of, read_address
from heretix.evidence.text.fold import fold, words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from heretix.evidence.document import Document

MAX_CHARS: Final = 200_000  # Signals are enough long before this; a book must not take minutes


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
    date_confidence: float  # 0 without a date; 1 where the method that found it gave no confidence
    retracted: bool  # The source's own record says so


@dataclass(frozen=True, slots=True)
class Signal:
    """A kind of passage, and how much of it is enough."""

    name: str
    primitive: Primitive
    weight: float  # Share of the primitive; the shares of a primitive add up to 1
    enough: int
    pattern: re.Pattern[str] | None  # None for the date, which is no passage


@dataclass(frozen=True, slots=True)
class SignalReading:
    """One signal in one document."""

    signal: Signal
    count: int
    value: float  # From 0 to 1: the count over what is enough, at most 1

    @property
    def contribution(self) -> float:
        """The signal's part of its primitive."""
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
    """Take from `document` what signals get to see."""
    confidence = document.published_confidence
    certain = 1.0 if confidence is None else min(max(confidence, 0.0), 1.0)
    return Observation(
        title=document.title,
        text=document.text[:MAX_CHARS],
        date_confidence=0.0 if document.published is None else certain,
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


# Stances: declared or judged. Nothing is guessed from words.

DECLARED: Final = "declared"
"""Source, where it is the document's own record: `stance` in its front matter or JSON."""

_SCALE: Final = (Stance.REFUTES, Stance.NEUTRAL, Stance.SUPPORTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judge's reading of a document."""

    assessment: Assessment
    stance: Stance | None
    by: str  # The judge, as reports name it


DocumentJudge = Callable[[str, "Document"], Awaitable[Verdict | None]]
"""Reads a document for a claim; None if the judge said nothing that can be used."""


def read_declared_stance(document: Document, claim: str, *, given: bool = False) -> Stance | None:
    """The stance in a document's record, if it is one towards this claim. A record says so in
    `stance_on`. Documents that were `given` for the claim need not."""
    about = document.meta.get("stance_on", "")
    told, wanted = (fold(text).casefold().rstrip(". ") for text in (about, claim))
    if told != wanted and (about or not given):
        return None
    declared = document.meta.get("stance", "").strip().lower()
    return Stance(declared) if declared in {stance.value for stance in Stance} else None


def find_middle_stance(stances: Sequence[Stance]) -> Stance:
    """The median of several answers; what lies between two of them is neutral."""
    middle = statistics.median(_SCALE.index(stance) for stance in stances)
    return _SCALE[int(middle)] if middle in {0, 2} else Stance.NEUTRAL


WEIGHTS: Final[Mapping[Primitive, float]] = MappingProxyType(
    dict(zip(Primitive, (0.25, 0.25, 0.20, 0.15, 0.15), strict=True))
)
FLOOR: Final = 0.05
"""No primitive counts for less: a geometric mean would let one zero erase all the others."""
RETRACTION_CAP: Final = 0.1
JUDGE_CALLS: Final = 3  # The median of three: one odd answer doesn't place a value

LO_SCALE: Final = 0.8
"""Words alone reach this far: they can be written without the work that they speak of."""
HI_BASE: Final = 0.5
"""A text without any signal may still be this good, for all that can be told from it."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The five primitives, each from 0 to 1."""

    P: float
    H: float
    R: float
    E: float
    A: float

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"`{item.name}` must be from 0 to 1, got {value!r}")

    def __getitem__(self, primitive: Primitive) -> float:
        return float(getattr(self, primitive.name))


@dataclass(frozen=True, slots=True)
class Interval:
    """Range that the signals leave open for a primitive."""

    lo: float
    hi: float

    def place(self, share: float) -> float:
        """The value that lies `share` of the way up."""
        return min(max(self.lo + share * (self.hi - self.lo), self.lo), self.hi)


@dataclass(frozen=True, slots=True)
class PrimitiveExplanation:
    """One primitive of an assessment, taken apart."""

    primitive: Primitive
    weight: float
    interval: Interval
    judged: float | None  # Value that the judge put in the interval; None without a judge
    score: float
    factor: float  # Factor of the primitive in the mean: `max(score, .05) ** weight`
    signals: tuple[SignalReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Reliability of a document, with its grounds."""

    intervals: Mapping[Primitive, Interval]
    scores: Scores
    judged: Scores | None
    readings: tuple[SignalReading, ...]
    retracted: bool
    english: bool
    """The signals could read the text. If not, the upper ends are 1: nothing is known."""

    @property
    def r(self) -> float:
        """Reliability, from 0 to 1."""
        return reliability(self.scores)

    def explain(self) -> tuple[PrimitiveExplanation, ...]:
        """Explain each primitive by its signals."""
        return tuple(
            PrimitiveExplanation(
                primitive,
                weight,
                self.intervals[primitive],
                None if self.judged is None else self.judged[primitive],
                self.scores[primitive],
                max(self.scores[primitive], FLOOR) ** weight,
                tuple(found for found in self.readings if found.signal.primitive == primitive),
            )
            for primitive, weight in WEIGHTS.items()
        )

    def record(self) -> dict[str, Any]:
        """The assessment for a bundle, rounded so that one platform's last bit isn't another's."""
        parts = {
            primitive.name: {
                "lo": round(interval.lo, 6),
                "hi": round(interval.hi, 6),
                "score": round(self.scores[primitive], 6),
            }
            for primitive, interval in self.intervals.items()
        }
        judged, retracted = self.judged is not None, self.retracted
        return {"r": round(self.r, 6), "parts": parts, "judged": judged, "retracted": retracted}


@dataclass(frozen=True, slots=True)
class BlindedDocument:
    """A document as a judge sees it: neither address, nor publisher, nor author."""

    title: str
    text: str
    published: date | None


def reliability(scores: Scores) -> float:
    """`r = (g - .05) / .95`, where `g` is the product of `max(s_i, .05) ** w_i`."""
    g = math.exp(math.fsum(w * math.log(max(scores[p], FLOOR)) for p, w in WEIGHTS.items()))
    return min(max((g - FLOOR) / (1.0 - FLOOR), 0.0), 1.0)


def reliability_ends(parts: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
    """Least and greatest reliability that a record's parts leave open."""
    lo, hi = (Scores(*(parts[p.name][end] for p in Primitive)) for end in ("lo", "hi"))
    return reliability(lo), reliability(hi)


def assess(document: Document) -> Assessment:
    """Assess `document` by its signals alone: every primitive is at its low end."""
    seen = observe(document)
    readings = read_signals(seen)
    # By its record, its title, or a sentence about itself; a report of another's retraction isn't.
    retracted = (
        seen.retracted
        or _RETRACTED_TITLE.search(seen.title) is not None
        or _RETRACTED_TEXT.search(fold(seen.text)) is not None
    )
    # In a few words nobody can tell, and it makes no difference.
    found = words(seen.text[:20_000])
    english = len(found) < _ENGLISH_MIN_WORDS or (
        sum(word in _ENGLISH for word in found) >= _ENGLISH_SHARE * len(found)
    )
    intervals = {}
    for primitive in Primitive:
        shown = sum(r.contribution for r in readings if r.signal.primitive == primitive)
        shown = min(shown, 1.0)
        lo, hi = LO_SCALE * shown, HI_BASE + (1.0 - HI_BASE) * shown if english else 1.0
        if retracted and primitive in {Primitive.P, Primitive.A}:
            lo, hi = min(lo, RETRACTION_CAP), min(hi, RETRACTION_CAP)
        intervals[primitive] = Interval(lo, hi)
    return Assessment(
        intervals=intervals,
        scores=Scores(*(interval.lo for interval in intervals.values())),
        judged=None,
        readings=readings,
        retracted=retracted,
        english=english,
    )


def place_scores(found: Assessment, answers: Sequence[Scores]) -> Assessment:
    """An assessment with the median of a judge's answers placing each value in its interval."""
    judged = Scores(*(statistics.median(a[primitive] for a in answers) for primitive in Primitive))
    scores = Scores(*(found.intervals[p].place(judged[p]) for p in Primitive))
    return replace(found, scores=scores, judged=judged)


_ADDRESS: Final = re.compile(
    r"(?:https?://|www\.)\S+|\b10\.\d{4,9}/\S+|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|\b(?:[a-z0-9-]+\.){1,4}(?:com|org|net|gov|edu|int|info|io|co|uk|de|fr|eu|ca|au)\b(?:/\S*)?",
    re.IGNORECASE,
)
_BYLINE: Final = re.compile(
    r"^[ \t]*(?:[Ww]ritten )?(?:[Bb]y|BY):? +[A-Z][\w.'-]+"
    r"(?: +(?:and |& )?[A-Z][\w.'-]+){1,5}[ \t]*,?[ \t]*$",
    re.MULTILINE,
)
_MIN_NAME: Final = 3


def blind(document: Document) -> BlindedDocument:
    """`document` without what tells where it comes from. Addresses, bylines, the author's name and
    the publisher's name are replaced. A text can give its origin away in other words; no rule takes
    those out."""
    # Whole names first, then surnames.
    names = re.split(r"\s*(?:,|;|&|\band\b)\s*", document.author or "")
    whole = [name for name in names if sum(map(str.isalnum, name)) >= _MIN_NAME]
    surnames = [name.split()[-1] for name in whole if len(name.split()) > 1]
    authors = whole + [name for name in surnames if sum(map(str.isalnum, name)) >= _MIN_NAME]
    patterns = [(_ADDRESS, "[link]"), (_BYLINE, "[author]")]
    patterns += [(_name_pattern(name), "[author]") for name in authors]
    address = read_address(document.url)
    label = publisher_of(address).partition(".")[0] if address else ""
    if len(label) >= _MIN_NAME and not label.isdigit():
        patterns.append((_name_pattern(label), "[publisher]"))
    title, text = document.title, document.text
    for pattern, replacement in patterns:
        title, text = pattern.sub(replacement, title), pattern.sub(replacement, text)
    return BlindedDocument(title, text, document.published)


def _name_pattern(name: str) -> re.Pattern[str]:
    """`name` with a capital, in any case and spacing: `theguardian` is also "The Guardian"."""
    letters = r"[\s.-]{0,2}".join(re.escape(letter) for letter in re.sub(r"[\s.-]+", "", name))
    return re.compile(rf"\b(?![a-z])(?i:{letters})\b")
