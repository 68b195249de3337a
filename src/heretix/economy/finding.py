"""A finding: a claim on which an evidence lens and the raw prior of one model lie apart."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from heretix.economy.canon import sha256_hex
from heretix.economy.exploration import Interval
from heretix.economy.information import to_ppm
from heretix.errors import RecordError, UsageError
from heretix.evidence.folding import fold
from heretix.measurement.record import RunRecord
from heretix.measurement.verify import verify_run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Finding", "choose_finding", "claim_id_of", "findings_in"]

EARNING_LENSES: Final = ("HEL", "SEL")
_PLANTED: Final = ("mock:", "sim:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Two measurements of one claim by one model."""

    claim: str
    model: str
    lens: str
    evidence: Interval
    prior: Interval
    executions: tuple[str, str]
    """Of the evidence lens, then of the raw prior."""

    @property
    def simulated(self) -> bool:
        """Its numbers were planted: good for practice, and no discovery."""
        return self.model.startswith(_PLANTED)


def claim_id_of(claim: str) -> str:
    """What a claim is credited under: its words, whatever their case, spacing or last dot."""
    return sha256_hex(fold(claim).casefold().strip(" .!?").encode())


def findings_in(records: Sequence[str]) -> list[Finding]:
    """What stored records of one claim hold; the latest of each model and lens."""
    runs: dict[tuple[str, str], RunRecord] = {}
    for text in records:
        run = RunRecord.model_validate_json(text)
        runs[run.model, run.lens] = run
    return [
        Finding(
            claim=run.claim,
            model=model,
            lens=lens,
            evidence=_interval(run),
            prior=_interval(runs[model, "RPL"]),
            executions=(run.execution_id, runs[model, "RPL"].execution_id),
        )
        for (model, lens), run in sorted(runs.items())
        if lens in EARNING_LENSES and (model, "RPL") in runs
    ]


def choose_finding(
    findings: Sequence[Finding], claim: str, *, model: str | None, lens: str | None
) -> Finding:
    """The one finding that is meant. A claim is credited once, so nobody chooses for the user."""
    fitting = [
        finding
        for finding in findings
        if model in {None, finding.model} and (lens or finding.lens).upper() == finding.lens
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed = "; ".join(f"--model {f.model} --lens {f.lens}" for f in fitting)
        raise UsageError(f"`{claim}` was measured in several ways; name one: {listed}")
    raise RecordError(
        f"`{claim}` has no raw prior and evidence lens (HEL or SEL) of the same model here; "
        "`heretix lens` measures them"
    )


def require_verified(records: Sequence[str], finding: Finding) -> None:
    """Refuse a finding whose records don't follow from their own samples."""
    for text in records:
        run = RunRecord.model_validate_json(text)
        if run.execution_id in finding.executions and not verify_run(run).ok:
            raise RecordError(
                f"`{run.execution_id}` must follow from its own samples, and doesn't; "
                "`heretix verify` says where, and measuring again gives a sound one"
            )


def _interval(run: RunRecord) -> Interval:
    """The 95% interval, rounded outwards: rounding never makes a gap."""
    assert run.aggregates.ci95 is not None, "only records with an estimate are looked at"
    lo, hi = (Decimal(repr(end)) for end in run.aggregates.ci95)
    trusted = run.evidence is None or run.evidence.trusted is not False
    return Interval(
        lo_ppm=to_ppm(lo, rounding=decimal.ROUND_FLOOR),
        hi_ppm=to_ppm(hi, rounding=decimal.ROUND_CEILING),
        stable=bool(run.aggregates.is_stable) and trusted,
    )
