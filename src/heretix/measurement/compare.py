"""Two runs against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.belief.paired import Difference, paired_difference, unpaired_difference

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
    shared = set(_logits(a)) & set(_logits(b))
    paired = a.prompts.bank_sha256 == b.prompts.bank_sha256 and len(shared) >= 2
    difference = (paired_difference if paired else unpaired_difference)(
        _logits(a),
        _logits(b),
        B=a.aggregation.B,
        center=a.aggregation.center,
        trim=a.aggregation.trim,
        seed=a.aggregation.bootstrap_seed ^ b.aggregation.bootstrap_seed,
    )
    return Comparison(a.execution_id, b.execution_id, paired, difference)


def _logits(run: RunRecord) -> dict[str, list[float]]:
    """Compliant log-odds by template index."""
    logits: dict[str, list[float]] = {}
    for sample in run.samples:
        if sample.compliant and sample.logit is not None:
            logits.setdefault(f"{sample.paraphrase_idx:03d}", []).append(sample.logit)
    return logits
