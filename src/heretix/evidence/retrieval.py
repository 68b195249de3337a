"""From a claim to the bundles of its lenses: search, classify, select. The same for every lens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import sha256_text
from heretix.core.errors import InsufficientEvidenceError, ServerError
from heretix.core.lenses import LENSES, SEARCHED, SEL
from heretix.evidence.bundle import Bundle, Dropped, DropReason
from heretix.evidence.policy.policy import admitted, classify_provided
from heretix.evidence.reliability import DECLARED, declared_stance
from heretix.evidence.select import Candidate, gather, relevance_of, select
from heretix.evidence.text.excerpt import content_words

if TYPE_CHECKING:
    from datetime import date

    from heretix.evidence.document import Document
    from heretix.evidence.policy.policy import Policy
    from heretix.evidence.reliability import DocumentJudge, Verdict
    from heretix.evidence.search.base import Hit, Search


_HITS: Final = 40
_JUDGED_AT_ONCE: Final = 8

Gathered = Mapping[str, Bundle | InsufficientEvidenceError]
"""By lens: a bundle, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """A search and the rules for what it finds."""

    search: Search
    policy: Policy
    as_of: date | None = None
    strict_dates: bool = False
    flagged: bool = False
    """Let sources known for made-up stories into HEL."""
    judge: DocumentJudge | None = None
    """Grades the documents that could be chosen, and says what they make of the claim."""
    any_word: bool = False
    """The search finds what shares any word with the query, as a local corpus does: then
    candidates must share more than a third of the claim's words."""


def queries_of(claim: str) -> dict[str, str]:
    """Three questions about a claim: one for it, one against it, one that takes no side."""
    return {
        "neutral": claim,
        "affirm": f"{claim} evidence confirms true",
        "negate": f"{claim} evidence refutes false",
    }


async def retrieve(claim: str, how: Retrieval, lenses: Sequence[str] = SEARCHED) -> Gathered:
    """The bundles of the lenses whose documents are searched for.

    One search serves all of them; the lens only decides which classes are let in.
    """
    queries = queries_of(claim)
    hits = {
        name: await how.search.search(query, _HITS, as_of=how.as_of)
        for name, query in queries.items()
    }
    about = content_words(claim) if how.any_word else frozenset()
    answers = {
        name: [d for hit in found if (d := hit.document) is not None and _concerns(d, about)]
        for name, found in hits.items()
    }
    documents = {document.doc_id: document for found in answers.values() for document in found}
    classes = {
        doc_id: how.policy.classify(_vouched(document)) for doc_id, document in documents.items()
    }
    dropped = _never_candidates((hit for found in hits.values() for hit in found), documents, how)
    candidates = await _judged(claim, gather(answers, classes), how, lenses)
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
    candidates = [
        _informed(
            Candidate(document=document, classification=classify_provided(document.url)),
            claim,
            (verdicts or {}).get(document.doc_id),
            given=True,
        )
        for document in documents
    ]
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


async def _judged(
    claim: str, candidates: Sequence[Candidate], how: Retrieval, lenses: Sequence[str]
) -> list[Candidate]:
    """Candidates with what is known of their stance; the most relevant ones judged, if asked for.

    A judge reads three times as many documents as a bundle holds, of those that a lens lets in:
    others have little chance to be chosen, and every reading costs.
    """
    verdicts: dict[str, Verdict] = {}
    if how.judge is not None:
        read: dict[str, Document] = {}
        for lens in lenses:
            classes = admitted(lens, flagged=how.flagged)
            fitting = [c for c in candidates if c.classification.cls in classes]
            fitting.sort(key=lambda c: (-relevance_of(c), c.document.doc_id))
            chosen = fitting[: 3 * LENSES[lens].limits.k]
            read |= {c.document.doc_id: c.document for c in chosen}
        verdicts = await judge_all(how.judge, claim, list(read.values()))
    return [_informed(c, claim, verdicts.get(c.document.doc_id)) for c in candidates]


def _informed(
    candidate: Candidate, claim: str, verdict: Verdict | None, *, given: bool = False
) -> Candidate:
    """The candidate with a judge's verdict or, without one, the stance that its record declares."""
    if verdict is not None:
        by = verdict.by if verdict.stance is not None else None
        return replace(
            candidate, assessment=verdict.assessment, stance=verdict.stance, stance_by=by
        )
    stance = declared_stance(candidate.document, claim, given=given)
    return candidate if stance is None else replace(candidate, stance=stance, stance_by=DECLARED)


def _vouched(document: Document) -> str | None:
    """A document's address, unless it is only the document that says so.

    A saved page can name any address as its own; taken at its word, a file could make itself
    canonical.
    """
    return None if document.meta.get("url_by") == "page" else document.url


def _concerns(document: Document, about: frozenset[str]) -> bool:
    """The document holds more than a third of the words that say what the claim is about.

    Endings don't matter: a word is there if one begins with it and is two letters longer at most,
    so that "dogs" and "caused" are found in a text about a dog and its causes.
    """
    held = content_words(f"{document.title} {document.text}")
    starts = {word[:end] for word in held for end in range(max(3, len(word) - 2), len(word))}
    known = held | starts
    shared = [word for word in about if _without_ending(word) in known]
    return not about or 3 * len(shared) > len(about)


def _without_ending(word: str) -> str:
    return word[:-1] if len(word) > 3 and word[-1] in "sd" else word


def _never_candidates(
    hits: Iterable[Hit], candidates: Mapping[str, Document], how: Retrieval
) -> list[Dropped]:
    """Drop what was found and is no candidate, each once: without a text, or off topic."""
    dropped: dict[str, Dropped] = {}
    for hit in hits:
        document = hit.document
        doc_id = document.doc_id if document else sha256_text(hit.url or hit.title)[:16]
        if doc_id in candidates or doc_id in dropped:
            continue
        source = how.policy.classify(_vouched(document) if document else hit.url)
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
