"""From a claim to the bundles of its lenses: search, classify, judge, select; alike for every lens.
Documents are dropped by class, date, readability, nonce and injection, reliability floor,
near-duplicates, limit per publisher and diverse choice, each with its reason. Selection is a
function of its inputs: the same candidates in any order give the same bundle."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from heretix.core.canonical import sha256_text
from heretix.core.errors import InsufficientEvidenceError, ServerError
from heretix.core.lenses import LENSES, SEARCHED, SEL, Limits
from heretix.evidence.bundle import Bundle, Dropped, DropReason, Item, PolicyRef, Stance
from heretix.evidence.policy.policy import (
    Classification,
    Policy,
    SourceClass,
    admitted,
    classify_provided,
)
from heretix.evidence.policy.publisher import NO_PUBLISHER
from heretix.evidence.reliability import DECLARED, Assessment, assess, declared_stance
from heretix.evidence.text.excerpt import Excerpt, content_words, cut_excerpt
from heretix.evidence.text.fold import cluster, fold, jaccard
from heretix.evidence.text.injection import InjectionKind, plain_text, screen

if TYPE_CHECKING:
    from heretix.evidence.document import Document
    from heretix.evidence.reliability import DocumentJudge, Verdict
    from heretix.evidence.search import Hit, Search

_HITS: Final = 40
_JUDGED_AT_ONCE: Final = 8
_RANK_OFFSET: Final = 60
"""Reciprocal rank fusion: rank n in a query adds 1/(60 + n) (Cormack et al., SIGIR 2009)."""
_MERIT_SHARE: Final = 0.7
"""Of a document's worth in the choice; the rest is its unlikeness to what is already chosen
(maximal marginal relevance, Carbonell and Goldstein, SIGIR 1998)."""
_REASONS: Final = {reason: place for place, reason in enumerate(DropReason)}

_COPIED: Final = (  # Fields that an item takes from its document as they stand
    *("doc_id", "url", "title", "published", "published_method", "published_confidence"),
    *("retrieved_at", "raw_sha256"),
)

Gathered = Mapping[str, Bundle | InsufficientEvidenceError]
"""By lens: a bundle, or why there is none."""
_Objection = tuple[DropReason, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """A search and the rules for what it finds."""

    search: Search
    policy: Policy
    as_of: date | None = None
    strict_dates: bool = False
    flagged: bool = False  # Let sources known for made-up stories into HEL
    judge: DocumentJudge | None = None
    """Grades the documents that could be chosen, and says what they make of the claim."""
    any_word: bool = False
    """The search finds what shares any word with the query, as a local corpus does: then
    candidates must share more than a third of the claim's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A document that a search found, or a user gave, with what is known about it."""

    document: Document
    classification: Classification
    ranks: Mapping[str, int] = field(default_factory=dict)
    """The rank, from 1, that each query gave it."""
    stance: Stance | None = None
    stance_by: str | None = None
    assessment: Assessment | None = None  # A judged one; None assesses by signals alone

    @property
    def doc_id(self) -> str:
        """The document's id."""
        return self.document.doc_id

    @property
    def relevance(self) -> float:
        """Fuse the ranks that the queries gave the document."""
        return fsum(1.0 / (_RANK_OFFSET + rank) for rank in self.ranks.values())

    @property
    def publisher(self) -> str:
        """The key of the address; of a document without one, what its source declared."""
        key = self.classification.publisher
        declared = self.document.meta.get("publisher", "").strip()
        return f"declared:{fold(declared).casefold()}" if key == NO_PUBLISHER and declared else key


async def retrieve(claim: str, how: Retrieval, lenses: Sequence[str] = SEARCHED) -> Gathered:
    """The bundles of the lenses whose documents are searched for. One search serves all of them;
    the lens only decides which classes are let in."""
    # One for the claim, one against it, one that takes no side.
    queries = {
        "neutral": claim,
        "affirm": f"{claim} evidence confirms true",
        "negate": f"{claim} evidence refutes false",
    }
    hits = {
        name: await how.search.search(query, _HITS, as_of=how.as_of)
        for name, query in queries.items()
    }
    about = content_words(claim) if how.any_word else frozenset()
    answers = {
        name: [d for hit in found if (d := hit.document) is not None and _concerns(d, about)]
        for name, found in hits.items()
    }
    classes = {
        document.doc_id: how.policy.classify(_vouched_url(document))
        for found in answers.values()
        for document in found
    }
    dropped = _drop_hits((hit for found in hits.values() for hit in found), classes, how)
    candidates = await _judge_candidates(claim, gather(answers, classes), how, lenses)
    bundles: dict[str, Bundle | InsufficientEvidenceError] = {}
    for lens in lenses:
        try:
            bundles[lens] = select(
                candidates,
                claim=claim,
                lens=lens,
                policy=how.policy,
                queries=queries,
                admits=admitted(lens, flagged=how.flagged),
                as_of=how.as_of,
                strict_dates=how.strict_dates,
                dropped=dropped,
            )
        except InsufficientEvidenceError as exc:
            bundles[lens] = exc
    return bundles


def retrieve_provided(
    claim: str, documents: Sequence[Document], verdicts: Mapping[str, Verdict] | None = None
) -> Bundle | InsufficientEvidenceError:
    """The bundle of exactly the documents that the user gave; `verdicts` are by `doc_id`."""
    found = [Candidate(document=d, classification=classify_provided(d.url)) for d in documents]
    verdicts = verdicts or {}
    candidates = [_inform(c, claim, verdicts.get(c.doc_id), given=True) for c in found]
    try:
        return select(candidates, claim=claim, lens=SEL)
    except InsufficientEvidenceError as exc:
        return exc


async def judge_all(
    judge: DocumentJudge, claim: str, documents: Sequence[Document]
) -> dict[str, Verdict]:
    """The judge's verdicts by `doc_id`, a few at a time; `ServerError` if there is none at all."""
    slots = asyncio.Semaphore(_JUDGED_AT_ONCE)

    async def one(document: Document) -> Verdict | None:
        async with slots:
            return await judge(claim, document)

    answers = await asyncio.gather(*map(one, documents))
    pairs = zip(documents, answers, strict=True)
    verdicts = {document.doc_id: verdict for document, verdict in pairs if verdict is not None}
    if documents and not verdicts:
        raise ServerError("`judge` gave no grades for any document; choose another model")
    return verdicts


async def _judge_candidates(
    claim: str, candidates: Sequence[Candidate], how: Retrieval, lenses: Sequence[str]
) -> list[Candidate]:
    """Candidates with what is known of their stance; the most relevant ones judged, if asked for. A
    judge reads three times as many documents as a bundle holds, of those that a lens lets in:
    others have little chance to be chosen, and every reading costs."""
    verdicts: dict[str, Verdict] = {}
    if how.judge is not None:
        read: dict[str, Document] = {}
        for lens in lenses:
            classes = admitted(lens, flagged=how.flagged)
            fitting = [c for c in candidates if c.classification.cls in classes]
            fitting.sort(key=lambda c: (-c.relevance, c.doc_id))
            read |= {c.doc_id: c.document for c in fitting[: 3 * LENSES[lens].limits.k]}
        verdicts = await judge_all(how.judge, claim, list(read.values()))
    return [_inform(c, claim, verdicts.get(c.doc_id)) for c in candidates]


def _inform(
    candidate: Candidate, claim: str, verdict: Verdict | None, *, given: bool = False
) -> Candidate:
    """Add a judge's verdict or, without one, the stance that the document's record declares."""
    if verdict is not None:
        by = verdict.by if verdict.stance is not None else None
        found = verdict.assessment
        return replace(candidate, assessment=found, stance=verdict.stance, stance_by=by)
    stance = declared_stance(candidate.document, claim, given=given)
    return candidate if stance is None else replace(candidate, stance=stance, stance_by=DECLARED)


def _vouched_url(document: Document) -> str | None:
    """A document's address, unless it is only the document that says so. A saved page can name any
    address as its own; taken at its word, a file could make itself canonical."""
    return None if document.meta.get("url_by") == "page" else document.url


def _concerns(document: Document, about: frozenset[str]) -> bool:
    """The document holds more than a third of the words that say what the claim is about. Endings
    don't matter: a word is there if one begins with it and is two letters longer at most, so that
    "dogs" and "caused" are found in a text about a dog and its causes."""
    held = content_words(f"{document.title} {document.text}")
    starts = {word[:end] for word in held for end in range(max(3, len(word) - 2), len(word))}
    stems = (word[:-1] if len(word) > 3 and word[-1] in "sd" else word for word in about)
    return not about or 3 * sum(stem in held or stem in starts for stem in stems) > len(about)


def _drop_hits(
    hits: Iterable[Hit], candidates: Mapping[str, Classification], how: Retrieval
) -> list[Dropped]:
    """Drop what was found and is no candidate, each once: without a text, or off topic."""
    dropped: dict[str, Dropped] = {}
    for hit in hits:
        document = hit.document
        doc_id = document.doc_id if document else sha256_text(hit.url or hit.title)[:16]
        if doc_id in candidates or doc_id in dropped:
            continue
        source = how.policy.classify(_vouched_url(document) if document else hit.url)
        dropped[doc_id] = Dropped(
            doc_id=doc_id,
            url=hit.url,
            title=hit.title,
            publisher=source.publisher,
            cls=source.cls,
            reason=DropReason.OFF_TOPIC if document else DropReason.UNREAD,
            params={},
        )
    return list(dropped.values())


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
    `nonce`, documents that hold it are refused: they could forge the marks between items. `dropped`
    are those that never became candidates."""
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
    bundle = Bundle(
        claim=claim,
        lens=lens,
        as_of=as_of,
        strict_dates=strict_dates,
        policy=PolicyRef(
            version=policy.version if policy else None, sha256=policy.sha256 if policy else None
        ),
        queries=dict(queries or {}),
        limits=limits,
        items=tuple(entry.item(number) for number, entry in enumerate(chosen, start=1)),
        dropped=tuple(sorted(run.dropped, key=lambda d: (_REASONS[d.reason], d.doc_id))),
    )
    bundle.require_sufficient()
    return bundle


@dataclass(frozen=True, slots=True)
class _Entry:
    """A candidate that was read, on its way into the bundle."""

    candidate: Candidate
    assessment: Assessment
    excerpt: Excerpt
    injected: frozenset[InjectionKind]
    n_copies: int = 1

    @property
    def doc_id(self) -> str:
        return self.candidate.doc_id

    @property
    def passage(self) -> str:
        return self.candidate.document.text[self.excerpt.start : self.excerpt.end]

    def item(self, number: int) -> Item:
        candidate, excerpt = self.candidate, self.excerpt
        document, source, text = candidate.document, candidate.classification, self.passage
        quote = document.text[excerpt.quote.start : excerpt.quote.end]
        return Item(
            id=f"E{number:02d}",
            **{name: getattr(document, name) for name in _COPIED},
            publisher=candidate.publisher,
            cls=source.cls,
            rule_id=source.rule_id,
            text=text,
            text_start=excerpt.start,
            text_end=excerpt.end,
            quote=quote,
            quote_start=excerpt.quote.start - excerpt.start,
            quote_end=excerpt.quote.end - excerpt.start,
            document_sha256=document.text_sha256,
            text_sha256=sha256_text(text),
            quote_sha256=sha256_text(quote),
            reliability=self.assessment.record(),
            stance=candidate.stance,
            stance_by=candidate.stance_by,
            n_copies=self.n_copies,
            flags=self._flags(),
        )

    def _flags(self) -> tuple[str, ...]:
        document = self.candidate.document
        flags = {
            "undated": document.published is None,
            "no_publisher": self.candidate.publisher == NO_PUBLISHER,
            # The page itself says where it comes from: nobody has checked.
            "claimed_url": document.meta.get("url_by") == "page",
            "cut": self.excerpt.cut,
            "not_english": not self.assessment.english,
            "retracted": self.assessment.retracted,
            **{f"injection:{kind.value}": True for kind in self.injected},
        }
        return tuple(sorted(name for name, present in flags.items() if present))


@dataclass(kw_only=True)
class _Selection:
    """One selection, and what it has dropped so far."""

    claim: str
    limits: Limits
    admits: frozenset[SourceClass]
    as_of: date | None
    strict_dates: bool
    nonce: str | None
    dropped: list[Dropped]

    def choose(self, candidates: Sequence[Candidate]) -> list[_Entry]:
        twins = [d for d, n in Counter(c.doc_id for c in candidates).items() if n > 1]
        if twins:
            raise ValueError(f"`doc_id` must be unique among candidates, got {twins[0]!r} twice")
        entries = [entry for c in candidates if (entry := self._admit(c))]
        if self.limits.exact:
            self._drop_over_budget(entries[self.limits.k :])
            return entries[: self.limits.k]
        entries = self._collapse_copies(entries)
        # The mean of relevance, the best being 1, and reliability.
        relevance = {e.doc_id: e.candidate.relevance for e in entries}
        top = max(relevance.values(), default=0.0) or 1.0
        merits = {e.doc_id: (relevance[e.doc_id] / top + e.assessment.r) / 2.0 for e in entries}
        return self._choose_diverse(self._cap_publishers(entries, merits), merits)

    def _admit(self, candidate: Candidate) -> _Entry | None:
        """Check a candidate by itself; None where it is dropped."""
        objection = self._object_to_source(candidate)
        if objection is None:
            entry = self._read(candidate)
            if entry is None:
                objection = DropReason.UNREADABLE, {}
            else:
                objection = self._object_to_text(entry)
            if objection is None:
                return entry
        self._drop(candidate, *objection)
        return None

    def _read(self, candidate: Candidate) -> _Entry | None:
        document = candidate.document
        chars = self.limits.chars_per_item
        excerpt = cut_excerpt(document.text, about=self.claim, max_chars=chars)
        if excerpt is None:
            return None
        # As it stands and as it is shown: undoing escapes and marks can put an order together.
        shown = (document.title, document.text[excerpt.start : excerpt.end])
        texts = (document.title, document.text, *map(plain_text, shown))
        injected = frozenset(flag.kind for text in texts for flag in screen(text))
        return _Entry(candidate, candidate.assessment or assess(document), excerpt, injected)

    def _object_to_source(self, candidate: Candidate) -> _Objection | None:
        cls, published = candidate.classification.cls, candidate.document.published
        if cls not in self.admits:
            return DropReason.WRONG_CLASS, {"cls": cls.value}
        # Without `as_of`, dates decide nothing and none is asked for.
        if self.as_of is None or self.limits.exact:
            return None
        if published is not None and published > self.as_of:
            return DropReason.AFTER_AS_OF, {"published": published.isoformat()}
        return (DropReason.UNDATED, {}) if published is None and self.strict_dates else None

    def _object_to_text(self, entry: _Entry) -> _Objection | None:
        document, floor = entry.candidate.document, self.limits.floor
        if self.nonce and (self.nonce in document.text or self.nonce in document.title):
            return DropReason.HOLDS_NONCE, {}
        if entry.injected and not self.limits.exact:
            return DropReason.INJECTION, {"kinds": sorted(kind.value for kind in entry.injected)}
        if floor is not None and entry.assessment.r < floor:
            return DropReason.BELOW_FLOOR, {"r": round(entry.assessment.r, 6), "floor": floor}
        return None

    def _collapse_copies(self, entries: Sequence[_Entry]) -> list[_Entry]:
        """One document of each cluster of near-duplicates, the earliest."""
        documents = [entry.candidate.document for entry in entries]

        def earliest(place: int) -> tuple[date, str, str]:
            found = documents[place]
            return found.published or date.max, found.retrieved_at, found.doc_id

        kept = []
        for first, *copies in cluster([found.text for found in documents], earliest=earliest):
            for copy in copies:
                params = {"of": documents[first].doc_id}
                self._drop(entries[copy].candidate, DropReason.DUPLICATE, params)
            kept.append(replace(entries[first], n_copies=1 + len(copies)))
        return kept

    def _cap_publishers(
        self, entries: Sequence[_Entry], merits: Mapping[str, float]
    ) -> Sequence[_Entry]:
        """The best of each publisher, as many as the limit says."""
        cap = self.limits.per_publisher
        if cap is None:
            return entries
        counts: Counter[str] = Counter()
        kept = []
        for entry in sorted(entries, key=lambda e: (-merits[e.doc_id], e.doc_id)):
            publisher = entry.candidate.publisher
            counts[publisher] += 1
            if counts[publisher] <= cap:
                kept.append(entry)
            else:
                params = {"cap": cap, "publisher": publisher}
                self._drop(entry.candidate, DropReason.PUBLISHER_CAP, params)
        return kept

    def _choose_diverse(
        self, entries: Sequence[_Entry], merits: Mapping[str, float]
    ) -> list[_Entry]:
        """Choose one by one: good, and unlike what is already chosen."""
        topics = {entry.doc_id: content_words(entry.passage) for entry in entries}
        likeness = dict.fromkeys(topics, 0.0)
        left = {entry.doc_id: entry for entry in entries}
        chosen: list[_Entry] = []

        def cost(doc_id: str) -> tuple[float, str]:
            return (1.0 - _MERIT_SHARE) * likeness[doc_id] - _MERIT_SHARE * merits[doc_id], doc_id

        while left and len(chosen) < self.limits.k:
            best = min(left, key=cost)
            chosen.append(left.pop(best))
            for doc_id in left:
                likeness[doc_id] = max(likeness[doc_id], jaccard(topics[doc_id], topics[best]))
        self._drop_over_budget(left.values())
        return chosen

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
                publisher=candidate.publisher,
                cls=candidate.classification.cls,
                reason=reason,
                params=params,
            )
        )
