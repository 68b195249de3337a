"""From a claim to the bundles of its lenses: search, classify, select. The same for every lens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.errors import InsufficientEvidenceError
from heretix.evidence.bundle import Bundle
from heretix.evidence.policy import classify_provided
from heretix.evidence.rules import admitted
from heretix.evidence.selection import Candidate, gather, select

if TYPE_CHECKING:
    from datetime import date

    from heretix.evidence.document import Document
    from heretix.evidence.policy import Policy
    from heretix.evidence.search import Search

__all__ = ["SEARCHED", "Gathered", "Retrieval", "queries_of", "retrieve", "retrieve_provided"]

SEARCHED: Final = ("MEL", "HEL")
"""Lenses whose documents are searched for."""
_HITS: Final = 40

Gathered = Mapping[str, Bundle | InsufficientEvidenceError]
"""By lens: a bundle, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """How documents are looked for."""

    search: Search
    policy: Policy
    as_of: date | None = None
    strict_dates: bool = False
    flagged: bool = False
    """Let sources known for made-up stories into HEL."""


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
    answers = {name: await _documents(how, query) for name, query in queries.items()}
    found = {document.doc_id: document for documents in answers.values() for document in documents}
    classes = {
        doc_id: how.policy.classify(_vouched(document)) for doc_id, document in found.items()
    }
    candidates = gather(answers, classes)
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
            )
        except InsufficientEvidenceError as exc:
            bundles[lens] = exc
    return bundles


def retrieve_provided(claim: str, documents: Sequence[Document]) -> Gathered:
    """The bundle of exactly the documents that the user gave."""
    candidates = [
        Candidate(document=document, classification=classify_provided(document.url))
        for document in documents
    ]
    try:
        return {"SEL": select(candidates, claim=claim, lens="SEL")}
    except InsufficientEvidenceError as exc:
        return {"SEL": exc}


def _vouched(document: Document) -> str | None:
    """A document's address, unless it is only the document that says so.

    A saved page can name any address as its own; taken at its word, a file could make itself
    canonical.
    """
    return None if document.meta.get("url_by") == "page" else document.url


async def _documents(how: Retrieval, query: str) -> list[Document]:
    hits = await how.search.search(query, _HITS, as_of=how.as_of)
    return [hit.document for hit in hits if hit.document is not None]
