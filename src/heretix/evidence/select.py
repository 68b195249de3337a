"""From candidates to a bundle: the same steps for every lens, and a reason for every drop.

Class, date, readable, nonce and injection, reliability floor, near-duplicates, limit per publisher,
diverse choice. Everything here is a function of its inputs: the same candidates in any order give
the same bundle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import date
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from heretix.core.canonical import sha256_text
from heretix.core.lenses import LENSES, Limits
from heretix.evidence.bundle import Bundle, Dropped, DropReason, Item, PolicyRef, Stance
from heretix.evidence.policy.policy import SourceClass, admitted
from heretix.evidence.policy.publisher import NO_PUBLISHER
from heretix.evidence.reliability import Assessment, assess
from heretix.evidence.text.duplicates import cluster, jaccard
from heretix.evidence.text.excerpt import Excerpt, content_words, cut_excerpt
from heretix.evidence.text.fold import fold
from heretix.evidence.text.injection import InjectionKind, plain_text, screen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heretix.evidence.document import Document
    from heretix.evidence.policy.policy import Classification, Policy

_RANK_OFFSET: Final = 60
"""Reciprocal rank fusion: rank n in a query adds 1/(60 + n) (Cormack et al., SIGIR 2009)."""
_MERIT_SHARE: Final = 0.7
"""Of a document's worth in the choice; the rest is its unlikeness to what is already chosen
(maximal marginal relevance, Carbonell and Goldstein, SIGIR 1998)."""


_Objection = tuple[DropReason, "Mapping[str, Any]"]
_REASONS: Final = {reason: place for place, reason in enumerate(DropReason)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A document that a search found, or a user gave, with what is known about it."""

    document: Document
    classification: Classification
    ranks: Mapping[str, int] = field(default_factory=dict)
    """The rank, from 1, that each query gave it."""
    quote: str | None = None
    """A passage that must be shown, if it stands in the text."""
    stance: Stance | None = None
    stance_by: str | None = None
    assessment: Assessment | None = None
    """A judged one; None assesses by signals alone."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A candidate on its way."""

    candidate: Candidate
    assessment: Assessment
    excerpt: Excerpt
    injected: frozenset[InjectionKind]
    n_copies: int = 1

    @property
    def document(self) -> Document:
        return self.candidate.document

    @property
    def publisher(self) -> str:
        return _publisher(self.candidate)


def gather(
    answers: Mapping[str, Iterable[Document]], classifications: Mapping[str, Classification]
) -> list[Candidate]:
    """One candidate a document, with its rank in each query's answer; keyed by `doc_id`."""
    ranks: dict[str, dict[str, int]] = {}
    documents: dict[str, Document] = {}
    for query, found in answers.items():
        for rank, document in enumerate(found, start=1):
            documents.setdefault(document.doc_id, document)
            ranks.setdefault(document.doc_id, {}).setdefault(query, rank)
    return [
        Candidate(document=document, classification=classifications[doc_id], ranks=ranks[doc_id])
        for doc_id, document in documents.items()
    ]


def select(
    candidates: Iterable[Candidate],
    *,
    claim: str,
    lens: str,
    policy: Policy | None = None,
    queries: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    admits: frozenset[SourceClass] | None = None,
    as_of: date | None = None,
    strict_dates: bool = False,
    nonce: str | None = None,
    dropped: Iterable[Dropped] = (),
) -> Bundle:
    """The bundle of `lens` for `claim`; `InsufficientEvidenceError` if too few items are left.

    `admits` are the classes that the lens lets in, by default those of its definition. With a
    `nonce`, documents that hold it are refused: they could forge the marks between items.
    `dropped` are those that never became candidates.
    """
    limits = limits or LENSES[lens].limits
    run = _Selection(
        claim=claim,
        limits=limits,
        admits=admits or admitted(lens),
        as_of=as_of,
        strict_dates=strict_dates,
        nonce=nonce,
        dropped=list(dropped),
    )
    chosen = run.choose(list(candidates))
    items = (_item(number, entry) for number, entry in enumerate(chosen, start=1))
    bundle = Bundle(
        claim=claim,
        lens=lens,
        as_of=as_of,
        strict_dates=strict_dates,
        policy=PolicyRef(
            version=None if policy is None else policy.version,
            sha256=None if policy is None else policy.sha256,
        ),
        queries=dict(queries or {}),
        limits=limits,
        items=tuple(items),
        dropped=tuple(sorted(run.dropped, key=lambda d: (_REASONS[d.reason], d.doc_id))),
    )
    bundle.require_sufficient()
    return bundle


@dataclass(kw_only=True)
class _Selection:
    """One selection, and what it has dropped so far."""

    claim: str
    limits: Limits
    admits: frozenset[SourceClass]
    as_of: date | None
    strict_dates: bool
    nonce: str | None
    dropped: list[Dropped] = field(default_factory=list)

    def choose(self, candidates: Sequence[Candidate]) -> list[_Entry]:
        twins = [d for d, n in Counter(c.document.doc_id for c in candidates).items() if n > 1]
        if twins:
            raise ValueError(f"`doc_id` must be unique among candidates, got {twins[0]!r} twice")
        entries = [entry for c in candidates if (entry := self._admitted(c))]
        if self.limits.exact:
            return self._within_budget(entries)
        entries = self._collapsed(entries)
        merits = _merits(entries)
        entries = self._capped(entries, merits)
        return self._diverse(entries, merits)

    def _admitted(self, candidate: Candidate) -> _Entry | None:
        """Check a candidate by itself; None where it is dropped."""
        objection = self._objection_to_source(candidate)
        if objection is None:
            entry = self._read(candidate)
            objection = (
                (DropReason.UNREADABLE, {}) if entry is None else self._objection_to_text(entry)
            )
            if objection is None:
                return entry
        self._drop(candidate, *objection)
        return None

    def _read(self, candidate: Candidate) -> _Entry | None:
        document = candidate.document
        excerpt = cut_excerpt(
            document.text,
            about=self.claim,
            quote=candidate.quote,
            max_chars=self.limits.chars_per_item,
        )
        if excerpt is None:
            return None
        # As it stands and as it is shown: undoing escapes and marks can put an order together.
        shown = (document.title, document.text[excerpt.start : excerpt.end])
        texts = (document.title, document.text, *map(plain_text, shown))
        injected = frozenset(flag.kind for text in texts for flag in screen(text))
        return _Entry(candidate, candidate.assessment or assess(document), excerpt, injected)

    def _objection_to_source(self, candidate: Candidate) -> _Objection | None:
        cls, published = candidate.classification.cls, candidate.document.published
        if cls not in self.admits:
            return DropReason.WRONG_CLASS, {"cls": cls.value}
        # Without `as_of`, dates decide nothing and none is asked for.
        if self.as_of is None or self.limits.exact:
            return None
        if published is not None and published > self.as_of:
            return DropReason.AFTER_AS_OF, {"published": published.isoformat()}
        if published is None and self.strict_dates:
            return DropReason.UNDATED, {}
        return None

    def _objection_to_text(self, entry: _Entry) -> _Objection | None:
        document, floor = entry.document, self.limits.floor
        if self.nonce and (self.nonce in document.text or self.nonce in document.title):
            return DropReason.HOLDS_NONCE, {}
        if entry.injected and not self.limits.exact:
            return DropReason.INJECTION, {"kinds": sorted(kind.value for kind in entry.injected)}
        if floor is not None and entry.assessment.r < floor:
            return DropReason.BELOW_FLOOR, {"r": round(entry.assessment.r, 6), "floor": floor}
        return None

    def _collapsed(self, entries: Sequence[_Entry]) -> list[_Entry]:
        """One document of each cluster of near-duplicates, the earliest."""

        def earliest(place: int) -> tuple[date, str, str]:
            document = entries[place].document
            return document.published or date.max, document.retrieved_at, document.doc_id

        kept = []
        for found in cluster([entry.document.text for entry in entries], earliest=earliest):
            entry = entries[found.kept]
            for copy in found.copies:
                params = {"of": entry.document.doc_id}
                self._drop(entries[copy].candidate, DropReason.DUPLICATE, params)
            kept.append(replace(entry, n_copies=found.n_copies))
        return kept

    def _capped(self, entries: Sequence[_Entry], merits: Mapping[str, float]) -> list[_Entry]:
        """The best of each publisher, as many as the limit says."""
        cap = self.limits.per_publisher
        if cap is None:
            return list(entries)
        counts: Counter[str] = Counter()
        kept = []
        for entry in sorted(entries, key=lambda e: (-merits[e.document.doc_id], e.document.doc_id)):
            counts[entry.publisher] += 1
            if counts[entry.publisher] <= cap:
                kept.append(entry)
            else:
                params = {"cap": cap, "publisher": entry.publisher}
                self._drop(entry.candidate, DropReason.PUBLISHER_CAP, params)
        return kept

    def _diverse(self, entries: Sequence[_Entry], merits: Mapping[str, float]) -> list[_Entry]:
        """Choose one by one: good, and unlike what is already chosen."""
        topics = {e.document.doc_id: content_words(_passage(e)) for e in entries}
        likeness = dict.fromkeys(topics, 0.0)
        left = {entry.document.doc_id: entry for entry in entries}
        chosen: list[_Entry] = []
        while left and len(chosen) < self.limits.k:
            best = min(
                left,
                key=lambda d: (
                    (1.0 - _MERIT_SHARE) * likeness[d] - _MERIT_SHARE * merits[d],
                    d,
                ),
            )
            chosen.append(left.pop(best))
            for doc_id in left:
                likeness[doc_id] = max(likeness[doc_id], jaccard(topics[doc_id], topics[best]))
        self._drop_over_budget(left.values())
        return chosen

    def _within_budget(self, entries: Sequence[_Entry]) -> list[_Entry]:
        self._drop_over_budget(entries[self.limits.k :])
        return list(entries[: self.limits.k])

    def _drop_over_budget(self, entries: Iterable[_Entry]) -> None:
        limits = {"k": self.limits.k, "chars_per_item": self.limits.chars_per_item}
        for entry in entries:
            self._drop(entry.candidate, DropReason.OVER_BUDGET, limits)

    def _drop(self, candidate: Candidate, reason: DropReason, params: Mapping[str, Any]) -> None:
        document = candidate.document
        self.dropped.append(
            Dropped(
                doc_id=document.doc_id,
                url=document.url,
                title=document.title,
                publisher=_publisher(candidate),
                cls=candidate.classification.cls,
                reason=reason,
                params=params,
            )
        )


def relevance_of(candidate: Candidate) -> float:
    """Fuse the ranks that the queries gave a document."""
    return fsum(1.0 / (_RANK_OFFSET + rank) for rank in candidate.ranks.values())


def _merits(entries: Sequence[_Entry]) -> dict[str, float]:
    """The mean of relevance, the best being 1, and reliability."""
    relevance = {e.document.doc_id: relevance_of(e.candidate) for e in entries}
    top = max(relevance.values(), default=0.0) or 1.0
    return {
        e.document.doc_id: (relevance[e.document.doc_id] / top + e.assessment.r) / 2.0
        for e in entries
    }


def _publisher(candidate: Candidate) -> str:
    """The key of the address; of a document without one, what its source declared."""
    key = candidate.classification.publisher
    declared = candidate.document.meta.get("publisher", "").strip()
    return f"declared:{fold(declared).casefold()}" if key == NO_PUBLISHER and declared else key


def _passage(entry: _Entry) -> str:
    return entry.document.text[entry.excerpt.start : entry.excerpt.end]


def _flags(entry: _Entry, quote: str) -> tuple[str, ...]:
    document, asked = entry.document, entry.candidate.quote
    flags = {
        "undated": document.published is None,
        "no_publisher": entry.publisher == NO_PUBLISHER,
        # The page itself says where it comes from: nobody has checked.
        "claimed_url": document.meta.get("url_by") == "page",
        "cut": entry.excerpt.cut,
        "quote_not_found": asked is not None and fold(asked) != fold(quote),
        "not_english": not entry.assessment.english,
        "retracted": entry.assessment.retracted,
        **{f"injection:{kind.value}": True for kind in entry.injected},
    }
    return tuple(sorted(name for name, present in flags.items() if present))


def _item(number: int, entry: _Entry) -> Item:
    document, excerpt = entry.document, entry.excerpt
    classification = entry.candidate.classification
    text = _passage(entry)
    quote = document.text[excerpt.quote.start : excerpt.quote.end]
    return Item(
        id=f"E{number:02d}",
        doc_id=document.doc_id,
        url=document.url,
        title=document.title,
        publisher=entry.publisher,
        cls=classification.cls,
        rule_id=classification.rule_id,
        published=document.published,
        published_method=document.published_method,
        published_confidence=document.published_confidence,
        retrieved_at=document.retrieved_at,
        text=text,
        text_start=excerpt.start,
        text_end=excerpt.end,
        quote=quote,
        quote_start=excerpt.quote.start - excerpt.start,
        quote_end=excerpt.quote.end - excerpt.start,
        raw_sha256=document.raw_sha256,
        document_sha256=document.text_sha256,
        text_sha256=sha256_text(text),
        quote_sha256=sha256_text(quote),
        reliability=entry.assessment.record(),
        stance=entry.candidate.stance,
        stance_by=entry.candidate.stance_by,
        n_copies=entry.n_copies,
        flags=_flags(entry, quote),
    )
