"""Retrieval of a claim's bundles: search, read, classify, judge, select; alike for every
lens. Documents are ranked by how their best passage fits the claim, in words and in meaning, and
dropped by subject, class, date, readability, nonce and injection, reliability floor,
near-duplicates, limit per publisher and diverse choice, each with its reason. Selection is a
function of its inputs: the same candidates in any order give the same bundle."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import combinations
from math import fsum, log
from typing import TYPE_CHECKING, Any, Final, Unpack

from heretix.core.canonical import sha256_text
from heretix.core.errors import InsufficientEvidenceError, ServerError
from heretix.core.lenses import LENSES, SEARCHED, SEL, Limits
from heretix.evidence.bundle import Bundle, Dropped, DropReason, Item, PolicyRef, Stance
from heretix.evidence.policy.policy import (
    Classification,
    Policy,
    SourceClass,
    classify_provided,
    list_admitted_classes,
)
from heretix.evidence.policy.publisher import NO_PUBLISHER, host_of
from heretix.evidence.reliability import DECLARED, Assessment, assess, read_declared_stance
from heretix.evidence.text.excerpt import Excerpt, cut_excerpts, find_content_words, is_readable
from heretix.evidence.text.fold import cluster, fold, jaccard
from heretix.evidence.text.injection import InjectionKind, plain_text, screen

if TYPE_CHECKING:
    from collections.abc import Collection

    from heretix.evidence.document import Document
    from heretix.evidence.embedding import Encoder
    from heretix.evidence.reliability import DocumentJudge, Verdict
    from heretix.evidence.search import Filters, Hit, Search

_HITS: Final = 40
_HITS_OF_WORDS: Final = 300
"""A search for any word finds a lot, what is meant among it: looking far down costs little."""
_JUDGED_AT_ONCE: Final = 8
_MAX_INCLUDED: Final = 300
"""Domains that a search is asked to keep to; where a class has more, others are shut out."""

# What a document is worth: closeness in meaning (from about 0 to 1), less `_RANK_WEIGHT` for every
# e-fold of its rank by words, plus a little for reliability. The scale knows nothing of the claim's
# length, nor of what else was found. Chosen by looking at the shared data (bench/recall.py).
_RANK_WEIGHT: Final = 0.04
_TYPICAL: Final = 0.4  # Closeness where nothing could read the text
_RELIABILITY_WEIGHT: Final = 0.02
_LIKENESS_WEIGHT: Final = 0.25
"""Worth that a document loses for words that it shares with a chosen one, beyond a fifth of both
(maximal marginal relevance, Carbonell and Goldstein, SIGIR 1998): less is the subject's."""
_LIKENESS_FROM: Final = 0.2
_UNRELATED: Final = 0.1
"""Closeness below which a passage speaks of something else, whatever words it shares."""
_RELATED: Final = 0.2
"""Closeness from which a passage is about the claim without a word of it."""
_READ_CHARS: Final = 90_000
"""Passages that are read for their meaning, best by words first; for long ones a few seconds."""
_PASSAGES: Final = 3
_SAME: Final = 0.95
"""Closeness of passages that say the same in other words."""
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
    """The search finds what shares any word with the query, as a local corpus does: then it is
    asked for more, and what has nothing to do with the claim is dropped."""
    encoder: Encoder | None = None
    """Reads passages for their meaning; without one, words decide."""
    queries: Mapping[str, str] = field(default_factory=dict)
    """Further queries by name, beside those for, against and about the claim."""
    limits: Limits | None = None  # Of every bundle; None takes each lens's own


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
    excerpt: Excerpt | None = None  # The passage that fits the claim best; None cuts one by words
    closeness: float | None = None  # In meaning, of passage and claim; None if nothing read it
    vector: Any = field(default=None, compare=False, repr=False)  # The passage's meaning

    @property
    def doc_id(self) -> str:
        """The document's id."""
        return self.document.doc_id

    @property
    def relevance(self) -> float:
        """Closeness to the claim, less what the rank by words takes away. The ranks of other
        queries than the claim itself count for half: their words aren't the claim's."""
        own = self.ranks.get("neutral", 0)
        others = [2 * rank for query, rank in self.ranks.items() if query != "neutral"]
        rank = min([own, *others] if own else others, default=1)
        close = _TYPICAL if self.closeness is None else self.closeness
        return round(close - _RANK_WEIGHT * log(rank), 4)

    @property
    def fused(self) -> float:
        """Fuse the ranks that the queries gave the document: each rank n adds 1/(60 + n)
        (Cormack et al., SIGIR 2009)."""
        return fsum(1.0 / (60 + rank) for rank in self.ranks.values())

    @property
    def passage(self) -> str:
        """The text that a model would be shown."""
        place = self.excerpt
        return self.document.text[place.start : place.end] if place else self.document.text

    @property
    def publisher(self) -> str:
        """The key of the address; of a document without one, what its source declared."""
        key = self.classification.publisher
        declared = self.document.meta.get("publisher", "").strip()
        return f"declared:{fold(declared).casefold()}" if key == NO_PUBLISHER and declared else key


async def retrieve(claim: str, how: Retrieval, lenses: Sequence[str] = SEARCHED) -> Gathered:
    """The bundles of the lenses whose documents are searched for. One search serves all of them,
    and each searches for its own classes where that left it few."""
    # One for the claim, one against it, one that takes no side.
    queries = {
        "neutral": claim,
        "affirm": f"{claim} evidence confirms true",
        "negate": f"{claim} evidence refutes false",
        **how.queries,
    }
    found = _SearchResults(how)
    for name, query in queries.items():
        deep = how.any_word and name == "neutral"
        await found.ask(name, query, _HITS_OF_WORDS if deep else _HITS, as_of=how.as_of)
    limits = {lens: how.limits or LENSES[lens].limits for lens in lenses}
    for lens, limit in limits.items():
        await found.ask_for_classes(
            claim, list_admitted_classes(lens, flagged=how.flagged), 3 * limit.k
        )
    if how.as_of is not None:
        # What came later is no candidate, and is told of.
        hits = await how.search.search(claim, _HITS)
        found.later += [h for h in hits if h.published is not None and h.published > how.as_of]
    chars = max(limit.chars_per_item for limit in limits.values())
    read = read_passages(claim, found.candidates(), how.encoder, max_chars=chars)
    related = _keep_related((claim, *how.queries.values()), read) if how.any_word else read
    dropped = found.list_dropped({candidate.doc_id for candidate in related})
    candidates = await _judge_candidates(claim, related, how, lenses)
    bundles: dict[str, Bundle | InsufficientEvidenceError] = {}
    for lens in lenses:
        try:
            bundles[lens] = select(
                candidates,
                claim=claim,
                lens=lens,
                policy=how.policy,
                queries=queries,
                limits=limits[lens],
                admits=list_admitted_classes(lens, flagged=how.flagged),
                as_of=how.as_of,
                strict_dates=how.strict_dates,
                dropped=dropped,
            )
        except InsufficientEvidenceError as exc:
            bundles[lens] = exc
    return bundles


@dataclass
class _SearchResults:
    """All hits of the searches for one claim."""

    how: Retrieval
    hits: dict[str, list[Hit]] = field(default_factory=dict)  # By query
    later: list[Hit] = field(default_factory=list)  # Published after the day that was asked for
    classes: dict[str, Classification] = field(default_factory=dict)  # By document

    async def ask(self, name: str, query: str, k: int, **filters: Unpack[Filters]) -> None:
        """Search, behind what the query found before."""
        known = self.hits.setdefault(name, [])
        for hit in await self.how.search.search(query, k, **filters):
            known.append(hit)
            if hit.document is not None:
                source = self.how.policy.classify(_find_vouched_url(hit.document))
                self.classes.setdefault(hit.document.doc_id, source)

    async def ask_for_classes(
        self, claim: str, classes: frozenset[SourceClass], plenty: int
    ) -> None:
        """Search for documents of these classes, unless there are plenty: among the domains that
        the policy names for them or, if those are too many, outside of others' that were found."""
        fitting = [found for found in self.classes.values() if found.cls in classes]
        if len(fitting) >= plenty:
            return
        named = _domains_of(self.how.policy, classes)
        day = self.how.as_of
        if 0 < len(named) <= _MAX_INCLUDED:
            await self.ask("neutral", claim, _HITS, as_of=day, include=named)
        every = [hit for found in self.hits.values() for hit in found]
        fits = {host_of(hit.url): self.how.policy.classify(hit.url).cls in classes for hit in every}
        for hit in every:
            if hit.document and self.classes[hit.document.doc_id].cls in classes:
                fits[host_of(hit.url)] = True
        others = tuple(sorted(host for host, fit in fits.items() if host and not fit))
        if others:
            await self.ask("neutral", claim, _HITS, as_of=day, exclude=others)

    def candidates(self) -> list[Candidate]:
        """The documents that were found, once each."""
        answers = {
            name: [hit.document for hit in found if hit.document is not None]
            for name, found in self.hits.items()
        }
        return gather(answers, self.classes)

    def list_dropped(self, candidates: Collection[str]) -> list[Dropped]:
        """List what was found and is no candidate, each once: unread, too late, or off topic."""
        found: dict[str, Dropped] = {}
        for hit in (*(hit for hits in self.hits.values() for hit in hits), *self.later):
            document = hit.document
            doc_id = document.doc_id if document else sha256_text(hit.url or hit.title)[:16]
            if doc_id in candidates or doc_id in found:
                continue
            source = self.how.policy.classify(_find_vouched_url(document) if document else hit.url)
            reason, params = (DropReason.OFF_TOPIC if document else DropReason.UNREAD), {}
            if doc_id not in self.classes and hit in self.later and hit.published is not None:
                reason = DropReason.AFTER_AS_OF
                params = {"published": hit.published.isoformat()}
            found[doc_id] = Dropped(
                doc_id=doc_id,
                url=hit.url,
                title=hit.title,
                publisher=source.publisher,
                cls=source.cls,
                reason=reason,
                params=params,
            )
        return list(found.values())


def _domains_of(policy: Policy, classes: frozenset[SourceClass]) -> tuple[str, ...]:
    """The domains that a policy names whole for these classes."""
    entries = (entry for rule in policy.rules for entry in rule.entries)
    return tuple(sorted({e.host for e in entries if e.cls in classes and not e.prefix}))


def read_passages(
    claim: str, candidates: Sequence[Candidate], encoder: Encoder | None, *, max_chars: int
) -> list[Candidate]:
    """Candidates with the passage that fits the claim best: by words or, with an encoder, by what
    they mean. What fits best by words is read first, until that takes too long."""
    ordered = sorted(candidates, key=lambda c: (-c.relevance, c.doc_id))
    places = [
        cut_excerpts(c.document.text, about=claim, max_chars=max_chars, most=_PASSAGES)
        for c in ordered
    ]
    if encoder is None or not is_readable(claim):
        return [
            replace(c, excerpt=next(iter(p), None)) for c, p in zip(ordered, places, strict=True)
        ]
    wanted: list[tuple[int, Excerpt]] = []
    # The best passage of each document before the second of any.
    turns = (
        (n, place[turn])
        for turn in range(_PASSAGES)
        for n, place in enumerate(places)
        if turn < len(place)
    )
    left = _READ_CHARS
    for n, place in turns:
        left -= place.end - place.start
        if left < 0:
            break
        if is_readable(ordered[n].document.text[place.start : place.end]):
            wanted.append((n, place))
    texts = [ordered[n].document.text[place.start : place.end] for n, place in wanted]
    vectors = encoder.encode([claim, *texts])
    best: dict[int, tuple[float, Excerpt, Any]] = {}
    for (n, place), vector in zip(wanted, vectors[1:], strict=True):
        # Rounded: the last bits differ between machines, and order shouldn't.
        close = round(float(vector @ vectors[0]), 3)
        if n not in best or close > best[n][0]:
            best[n] = close, place, vector
    made = []
    for n, candidate in enumerate(ordered):
        if n in best:
            close, place, vector = best[n]
            made.append(replace(candidate, excerpt=place, closeness=close, vector=vector))
        else:
            made.append(replace(candidate, excerpt=next(iter(places[n]), None)))
    return made


def _keep_related(texts: Sequence[str], candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that aren't clearly about something else than the claim, or than a query that a
    model wrote for it: the other side has words of its own. Two of a text's words are enough,
    however many it has (one of a text of one or two), or one that few of the documents hold; none
    is needed where a passage is close in meaning. A text of nothing but little words is held
    against nothing."""
    fitting: set[str] = set()
    rare = len(candidates) // 50
    for text in texts:
        about = find_content_words(text)
        shared = [_list_shared_words(about, candidate) for candidate in candidates]
        counts = Counter(word for found in shared for word in found)
        for candidate, found in zip(candidates, shared, strict=True):
            weight = sum(2 if counts[word] <= rare else 1 for word in found)
            if not about or weight >= (1 if len(about) < 3 else 2):
                fitting.add(candidate.doc_id)
    kept = []
    for candidate in candidates:
        enough, close = candidate.doc_id in fitting, candidate.closeness
        if enough if close is None else close >= (_UNRELATED if enough else _RELATED):
            kept.append(candidate)
    return kept


def _list_shared_words(about: frozenset[str], candidate: Candidate) -> list[str]:
    """The claim's words that a document's title or passage holds. Endings don't matter: a word is
    there if one begins with it and is two letters longer at most, so that "dogs" and "caused" are
    found in a text about a dog and its causes."""
    held = find_content_words(f"{candidate.document.title} {candidate.passage}")
    starts = {word[:end] for word in held for end in range(max(3, len(word) - 2), len(word))}
    stems = {word: word[:-1] if len(word) > 3 and word[-1] in "sd" else word for word in about}
    return [word for word, stem in stems.items() if stem in held or stem in starts]


def retrieve_provided(
    claim: str, documents: Sequence[Document], verdicts: Mapping[str, Verdict] | None = None
) -> Bundle | InsufficientEvidenceError:
    """The bundle of exactly the documents that the user gave; `verdicts` are by `doc_id`."""
    found = [Candidate(document=d, classification=classify_provided(d.url)) for d in documents]
    verdicts = verdicts or {}
    candidates = [_add_verdict(c, claim, verdicts.get(c.doc_id), given=True) for c in found]
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
            classes = list_admitted_classes(lens, flagged=how.flagged)
            fitting = [c for c in candidates if c.classification.cls in classes]
            fitting.sort(key=lambda c: (-c.relevance, c.doc_id))
            read |= {c.doc_id: c.document for c in fitting[: 3 * LENSES[lens].limits.k]}
        verdicts = await judge_all(how.judge, claim, list(read.values()))
    return [_add_verdict(c, claim, verdicts.get(c.doc_id)) for c in candidates]


def _add_verdict(
    candidate: Candidate, claim: str, verdict: Verdict | None, *, given: bool = False
) -> Candidate:
    """Add a judge's verdict or, without one, the stance that the document's record declares."""
    if verdict is not None:
        by = verdict.by if verdict.stance is not None else None
        found = verdict.assessment
        return replace(candidate, assessment=found, stance=verdict.stance, stance_by=by)
    stance = read_declared_stance(candidate.document, claim, given=given)
    return candidate if stance is None else replace(candidate, stance=stance, stance_by=DECLARED)


def _find_vouched_url(document: Document) -> str | None:
    """A document's address, unless it is only the document that says so. A saved page can name any
    address as its own; taken at its word, a file could make itself canonical."""
    return None if document.meta.get("url_by") == "page" else document.url


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
        admits=admits or list_admitted_classes(lens),
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
            # Somebody wrote what readers wouldn't see; it was dropped from the text.
            "hidden_text": document.meta.get("hidden_text") == "true",
            "not_english": not self.assessment.english,
            "retracted": self.assessment.retracted,
            **{f"injection:{kind.value}": True for kind in self.injected},
        }
        return tuple(sorted(name for name, present in flags.items() if present))


def _diversify(
    entries: Sequence[_Entry], merits: Mapping[str, float], weight: float, beyond: float = 0.0
) -> list[_Entry]:
    """Order entries one by one: good, and unlike what stands before."""
    topics = {entry.doc_id: find_content_words(entry.passage) for entry in entries}
    likeness = dict.fromkeys(topics, 0.0)
    left = {entry.doc_id: entry for entry in entries}
    ordered: list[_Entry] = []

    def cost(doc_id: str) -> tuple[float, str]:
        return weight * max(likeness[doc_id] - beyond, 0.0) - merits[doc_id], doc_id

    while left:
        best = min(left, key=cost)
        ordered.append(left.pop(best))
        for doc_id in left:
            likeness[doc_id] = max(likeness[doc_id], jaccard(topics[doc_id], topics[best]))
    return ordered


def _present(chosen: Sequence[_Entry]) -> list[_Entry]:
    """Number the chosen as the first build did, whatever they are chosen by since: the same
    documents make the same prompts, and records keep their identities. Places rotate over wordings,
    so that none of them is better than another."""
    fused = {e.doc_id: e.candidate.fused for e in chosen}
    top = max(fused.values(), default=0.0) or 1.0
    merits = {e.doc_id: (fused[e.doc_id] / top + e.assessment.r) / 2.0 for e in chosen}
    return _diversify(chosen, merits, 3.0 / 7.0)


_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_TURNS: Final = re.compile(r"\b(?:not?|never|none|nor|without|cannot|\w+n't)\b", re.IGNORECASE)


def _pair_same_meaning(entries: Sequence[_Entry]) -> list[tuple[int, int]]:
    """Pairs whose passages say the same in other words. Those that differ in a number, in a "not"
    or in a stance may say the opposite, however close: they are no copies."""
    read = [n for n, entry in enumerate(entries) if entry.candidate.vector is not None]
    told = {
        n: (
            frozenset(_NUMBER.findall(entries[n].passage)),
            len(_TURNS.findall(entries[n].passage)),
            entries[n].candidate.stance,
        )
        for n in read
    }
    return [
        (a, b)
        for a, b in combinations(read, 2)
        if told[a] == told[b]
        and float(entries[a].candidate.vector @ entries[b].candidate.vector) >= _SAME
    ]


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
        merits = {
            e.doc_id: e.candidate.relevance + _RELIABILITY_WEIGHT * e.assessment.r for e in entries
        }
        kept = self._cap_publishers(entries, merits)
        ordered = _diversify(kept, merits, _LIKENESS_WEIGHT, _LIKENESS_FROM)
        self._drop_over_budget(ordered[self.limits.k :])
        return _present(ordered[: self.limits.k])

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
        excerpt, chars = candidate.excerpt, self.limits.chars_per_item
        if excerpt is None or excerpt.end - excerpt.start > chars:
            found = cut_excerpts(document.text, about=self.claim, max_chars=chars, most=1)
            if not found:
                return None
            excerpt = found[0]
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
        texts = [found.text for found in documents]
        links = _pair_same_meaning(entries)
        for first, *copies in cluster(texts, earliest=earliest, links=links):
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
