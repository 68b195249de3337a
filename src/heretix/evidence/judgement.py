"""What a document says of a claim: as its keeper declared it, or as a blinded judge reads it.

Nothing is guessed from words. A document that nobody has judged has no stance.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.evidence.bundle import Stance
from heretix.evidence.folding import fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.evidence.document import Document
    from heretix.evidence.reliability import Assessment

__all__ = ["DECLARED", "DocumentJudge", "Verdict", "declared_stance", "middle_stance"]

DECLARED: Final = "declared"
"""Who says so, where it is the document's own record: `stance` in its front matter or JSON."""

_SCALE: Final = (Stance.REFUTES, Stance.NEUTRAL, Stance.SUPPORTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a judge made of a document."""

    assessment: Assessment
    stance: Stance | None
    by: str
    """The judge, as reports name it."""


DocumentJudge = Callable[[str, "Document"], Awaitable[Verdict | None]]
"""Reads a document for a claim; None if the judge said nothing that can be used."""


def declared_stance(document: Document, claim: str, *, given: bool = False) -> Stance | None:
    """The stance in a document's record, if it is one towards this claim.

    A record says so in `stance_on`. Documents that were `given` for the claim need not.
    """
    about = document.meta.get("stance_on", "")
    if _plain(about) != _plain(claim) and (about or not given):
        return None
    declared = document.meta.get("stance", "").strip().lower()
    return Stance(declared) if declared in {stance.value for stance in Stance} else None


def middle_stance(stances: Sequence[Stance]) -> Stance:
    """The median of several answers; what lies between two of them is neutral."""
    middle = statistics.median(_SCALE.index(stance) for stance in stances)
    return _SCALE[int(middle)] if middle in {0, 2} else Stance.NEUTRAL


def _plain(claim: str) -> str:
    return fold(claim).casefold().rstrip(". ")
