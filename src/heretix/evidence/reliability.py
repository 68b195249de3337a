"""Reliability of a document, blind to prestige: five primitives, one number.

Signals give each primitive an interval; a judge who sees neither address nor author may place the
value inside, and without one it is the low end. `r` is their weighted geometric mean, floored and
rescaled, so that one weak link bites. It selects documents and is reported; no model is shown it.
"""

from __future__ import annotations

import asyncio
import math
import re
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.address import read_address
from heretix.evidence.publisher import publisher_of
from heretix.evidence.signals import (
    Primitive,
    SignalReading,
    observe,
    read_signals,
    reads_english,
    says_retracted,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from heretix.evidence.document import Document

__all__ = [
    "WEIGHTS",
    "Assessment",
    "BlindedDocument",
    "Interval",
    "Judge",
    "PrimitiveExplanation",
    "Scores",
    "assess",
    "assess_with_judge",
    "blind",
    "placed",
    "reliability",
]

WEIGHTS: Final[Mapping[Primitive, float]] = MappingProxyType(
    {
        Primitive.P: 0.25,
        Primitive.H: 0.25,
        Primitive.R: 0.20,
        Primitive.E: 0.15,
        Primitive.A: 0.15,
    }
)
FLOOR: Final = 0.05
"""No primitive counts for less: a geometric mean would let one zero erase all the others."""
RETRACTION_CAP: Final = 0.1
JUDGE_CALLS: Final = 3
"""The median of three: one odd answer doesn't place a value."""

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
    """What the signals leave open about a primitive."""

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
    judged: float | None
    """Where the judge put it in the interval; None without a judge."""
    score: float
    factor: float
    """What the primitive multiplies into the mean: `max(score, .05) ** weight`."""
    signals: tuple[SignalReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """How far a document can be relied on, and why."""

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
        """Each primitive with its signals."""
        return tuple(
            PrimitiveExplanation(
                primitive,
                WEIGHTS[primitive],
                self.intervals[primitive],
                None if self.judged is None else self.judged[primitive],
                self.scores[primitive],
                max(self.scores[primitive], FLOOR) ** WEIGHTS[primitive],
                tuple(
                    reading for reading in self.readings if reading.signal.primitive == primitive
                ),
            )
            for primitive in Primitive
        )

    def record(self) -> dict[str, Any]:
        """The assessment for a bundle, rounded so that one platform's last bit isn't another's."""
        parts = {
            primitive.name: {
                "lo": round(self.intervals[primitive].lo, 6),
                "hi": round(self.intervals[primitive].hi, 6),
                "score": round(self.scores[primitive], 6),
            }
            for primitive in Primitive
        }
        return {
            "r": round(self.r, 6),
            "parts": parts,
            "judged": self.judged is not None,
            "retracted": self.retracted,
        }


@dataclass(frozen=True, slots=True)
class BlindedDocument:
    """What a judge sees: neither address, nor publisher, nor author."""

    title: str
    text: str
    published: date | None


Judge = Callable[[BlindedDocument], Awaitable[Scores]]
"""Gives each primitive a value from 0 to 1: how far up its interval the document belongs."""


def reliability(scores: Scores) -> float:
    """`r = (g - .05) / .95`, where `g` is the product of `max(s_i, .05) ** w_i`."""
    g = math.exp(math.fsum(w * math.log(max(scores[p], FLOOR)) for p, w in WEIGHTS.items()))
    return min(max((g - FLOOR) / (1.0 - FLOOR), 0.0), 1.0)


def assess(document: Document) -> Assessment:
    """Assess `document` by its signals alone: every primitive is at its low end."""
    seen = observe(document)
    readings = read_signals(seen)
    retracted, english = says_retracted(seen), reads_english(seen)
    intervals = {
        primitive: _interval(primitive, readings, retracted=retracted, english=english)
        for primitive in Primitive
    }
    return Assessment(
        intervals=intervals,
        scores=Scores(*(intervals[primitive].lo for primitive in Primitive)),
        judged=None,
        readings=readings,
        retracted=retracted,
        english=english,
    )


async def assess_with_judge(
    document: Document, judge: Judge, *, calls: int = JUDGE_CALLS
) -> Assessment:
    """Assess `document`, with the median of a blinded judge's answers placing each value."""
    if calls < 1:
        raise ValueError(f"`calls` must be at least 1, got {calls}")
    blinded = blind(document)
    return placed(assess(document), await asyncio.gather(*(judge(blinded) for _ in range(calls))))


def placed(found: Assessment, answers: Sequence[Scores]) -> Assessment:
    """An assessment with the median of a judge's answers placing each value in its interval."""
    judged = Scores(*(statistics.median(a[primitive] for a in answers) for primitive in Primitive))
    scores = Scores(*(found.intervals[p].place(judged[p]) for p in Primitive))
    return replace(found, scores=scores, judged=judged)


def _interval(
    primitive: Primitive, readings: tuple[SignalReading, ...], *, retracted: bool, english: bool
) -> Interval:
    shown = sum(r.contribution for r in readings if r.signal.primitive == primitive)
    shown = min(shown, 1.0)
    lo = LO_SCALE * shown
    hi = HI_BASE + (1.0 - HI_BASE) * shown if english else 1.0
    if retracted and primitive in {Primitive.P, Primitive.A}:
        lo, hi = min(lo, RETRACTION_CAP), min(hi, RETRACTION_CAP)
    return Interval(lo, hi)


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
    """`document` without what tells where it comes from.

    Addresses, bylines, the author's name and the publisher's name are replaced. A text can give its
    origin away in other words; no rule takes those out.
    """
    patterns = [(_ADDRESS, "[link]"), (_BYLINE, "[author]")]
    patterns += [(_name_pattern(name), "[author]") for name in _author_names(document.author)]
    patterns += [(_name_pattern(name), "[publisher]") for name in _publisher_names(document.url)]
    title, text = document.title, document.text
    for pattern, replacement in patterns:
        title, text = pattern.sub(replacement, title), pattern.sub(replacement, text)
    return BlindedDocument(title, text, document.published)


def _author_names(author: str | None) -> list[str]:
    """Whole names first, then surnames."""
    names = re.split(r"\s*(?:,|;|&|\band\b)\s*", author or "")
    whole = [name for name in names if sum(map(str.isalnum, name)) >= _MIN_NAME]
    surnames = [name.split()[-1] for name in whole if len(name.split()) > 1]
    return whole + [name for name in surnames if sum(map(str.isalnum, name)) >= _MIN_NAME]


def _publisher_names(url: str | None) -> list[str]:
    address = None if url is None else read_address(url)
    if address is None:
        return []
    label = publisher_of(address).partition(".")[0]
    return [label] if len(label) >= _MIN_NAME and not label.isdigit() else []


def _name_pattern(name: str) -> re.Pattern[str]:
    """`name` with a capital, in any case and spacing: `theguardian` is also "The Guardian"."""
    letters = r"[\s.-]{0,2}".join(re.escape(letter) for letter in re.sub(r"[\s.-]+", "", name))
    return re.compile(rf"\b(?![a-z])(?i:{letters})\b")
