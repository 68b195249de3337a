"""What answers did with the evidence: which items they named, and whether their quotes are real."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.folding import find_quote, fold
from heretix.measurement.record import EvidenceRecord, ShownItemRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heretix.plan import Evidence

__all__ = ["TRUSTED_RATE", "evidence_record"]

TRUSTED_RATE: Final = 0.9
"""Below this share of verified quotes, a lens isn't trusted: the model made sources up."""
_QUOTE_WORDS: Final = 3
"""A word or two stand in a document by chance: they show nothing of it."""
_QUOTE_LETTERS: Final = 12
"""In scripts without letter case, most of which put no spaces between words."""


def evidence_record(
    evidence: Evidence | None, answers: Sequence[str | None]
) -> EvidenceRecord | None:
    """What was shown, and what compliant answers did with it; None for the raw prior."""
    if evidence is None:
        return None
    texts = {item.id: item.text for item in evidence.items}
    quotes = [quote for answer in answers for quote in _quotes(answer)]
    verified = sum(quote is not None and _stands_in(texts, *quote) for quote in quotes)
    used = Counter(name for answer in answers for name in _used(answer))
    rate = verified / len(quotes) if quotes else None
    frame = evidence.frame
    return EvidenceRecord(
        frame_version=frame.version,
        system=frame.system,
        user_template=frame.user_template,
        no_documents=frame.no_documents,
        clauses=dict(frame.clauses),
        bundle_id=evidence.bundle_id,
        variant=evidence.variant,
        order=None if evidence.order is None else list(evidence.order),
        items=[ShownItemRecord(id=item.id, text=item.text) for item in evidence.items],
        quotes_given=len(quotes),
        quotes_verified=verified,
        verified_quote_rate=rate,
        trusted=None if rate is None else rate >= TRUSTED_RATE,
        used={item.id: used[item.id] for item in evidence.items},
    )


def _stands_in(texts: dict[str, str], name: str, quote: str) -> bool:
    text = texts.get(name)
    if text is None or not quote.strip() or find_quote(text, quote) is None:
        return False
    # An item that is shorter than any quote must be can still be quoted.
    return _tells(quote) or not _tells(text)


def _tells(text: str) -> bool:
    """Long enough to show that the document was read."""
    folded = fold(text)
    uncased = sum(unicodedata.category(char) == "Lo" for char in folded)
    return len(folded.split()) >= _QUOTE_WORDS or uncased >= _QUOTE_LETTERS


def _quotes(answer: str | None) -> Iterator[tuple[str, str] | None]:
    """The quotes of an answer; None for each that isn't an id and a text."""
    given = _value(answer, "quotes")
    for quote in given if isinstance(given, list) else [given] if given is not None else []:
        name, text = (quote.get("id"), quote.get("text")) if isinstance(quote, dict) else (0, 0)
        yield (name, text) if isinstance(name, str) and isinstance(text, str) else None


def _used(answer: str | None) -> set[str]:
    given = _value(answer, "used")
    return {name for name in given if isinstance(name, str)} if isinstance(given, list) else set()


def _value(answer: str | None, key: str) -> Any:
    """A part of an answer. The rule of compliance only asks for `prob_true`; the rest may lack."""
    return json.loads(answer or "{}").get(key)
