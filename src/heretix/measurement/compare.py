"""Two runs against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.belief.paired import Difference, paired_difference, unpaired_difference
from heretix.measurement.vector import logits_by_stem

if TYPE_CHECKING:
    from heretix.measurement.record import RunRecord

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two beliefs, B minus A."""

    a: str
    b: str
    paired: bool
    difference: Difference


def compare(a: RunRecord, b: RunRecord) -> Comparison:
    """Paired by template when the banks agree: what the wordings share then cancels out."""
    shared = set(logits_by_stem(a)) & set(logits_by_stem(b))
    paired = a.prompts.bank_sha256 == b.prompts.bank_sha256 and len(shared) >= 2
    difference = (paired_difference if paired else unpaired_difference)(
        logits_by_stem(a),
        logits_by_stem(b),
        B=a.aggregation.B,
        center=a.aggregation.center,
        trim=a.aggregation.trim,
        seed=a.aggregation.bootstrap_seed ^ b.aggregation.bootstrap_seed,
    )
    return Comparison(a.execution_id, b.execution_id, paired, difference)
