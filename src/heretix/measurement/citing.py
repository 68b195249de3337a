"""What answers did with the evidence: which items they named, and whether their quotes are real."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.folding import find_quote
from heretix.measurement.record import EvidenceRecord, ShownItemRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heretix.plan import Evidence

__all__ = ["TRUSTED_RATE", "evidence_record"]

TRUSTED_RATE: Final = 0.9
"""Below this share of verified quotes, a lens isn't trusted: the model made sources up."""


def evidence_record(
    evidence: Evidence | None, answers: Sequence[str | None]
) -> EvidenceRecord | None:
    """What was shown, and what compliant answers did with it; None for the raw prior."""
    if evidence is None:
        return None
    texts = {item.id: item.text for item in evidence.items}
    quotes = [quote for answer in answers for quote in _quotes(answer)]
    verified = sum(_stands_in(texts, *quote) for quote in quotes)
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
        items=[ShownItemRecord(id=item.id, text=item.text) for item in evidence.items],
        quotes_given=len(quotes),
        quotes_verified=verified,
        verified_quote_rate=rate,
        trusted=None if rate is None else rate >= TRUSTED_RATE,
        used={item.id: used[item.id] for item in evidence.items},
    )


def _stands_in(texts: dict[str, str], name: str, quote: str) -> bool:
    return bool(quote.strip()) and name in texts and find_quote(texts[name], quote) is not None


def _quotes(answer: str | None) -> Iterator[tuple[str, str]]:
    for quote in _list(answer, "quotes"):
        if isinstance(quote, dict):
            name, text = quote.get("id"), quote.get("text")
            if isinstance(name, str) and isinstance(text, str):
                yield name, text


def _used(answer: str | None) -> set[str]:
    return {name for name in _list(answer, "used") if isinstance(name, str)}


def _list(answer: str | None, key: str) -> list[Any]:
    """A list in an answer. The rule of compliance only asks for `prob_true`; the rest may lack."""
    value = json.loads(answer or "{}").get(key)
    return value if isinstance(value, list) else []
