"""Did a run show what its bundle holds? Every item, in every experiment, against the bundle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.evidence.selection import LIMITS
from heretix.measurement.lenses import evidence_of
from heretix.measurement.variants import canary, under_policy, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.evidence.bundle import Bundle
    from heretix.measurement.record import EvidenceRecord, RunRecord
    from heretix.plan import Evidence

__all__ = ["Difference", "shown_differences", "sufficiency_differences"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where the record and what follows from it don't agree."""

    path: str
    recorded: object
    derived: object


def sufficiency_differences(
    path: str, bundle: Bundle, runs: Sequence[RunRecord], claim: str
) -> Iterator[Difference]:
    """Where a bundle was called too small, or large enough, by a rule of its own.

    A record can't show what a search didn't find; it can show that what is said to be too little
    is, and that nothing was measured with it.
    """
    if bundle.claim != claim:
        yield Difference(f"{path}.claim", bundle.claim, claim)
    limits = LIMITS.get(bundle.lens)
    if limits is None or bundle.limits.min_items != limits.min_items:
        needed = None if limits is None else limits.min_items
        yield Difference(f"{path}.limits.min_items", bundle.limits.min_items, needed)
    measured = [
        run.execution_id
        for run in runs
        if run.evidence and run.lens == bundle.lens and run.evidence.bundle_id is not None
    ]
    if not bundle.sufficient and measured:
        yield Difference(f"{path}.items", f"measured in {measured[0]}", "too few to be measured")


def shown_differences(
    run: RunRecord, bundles: Mapping[str, Bundle], runs: Sequence[RunRecord]
) -> Iterator[Difference]:
    """Where a run showed something else than its bundle, or names a bundle that isn't here."""
    shown = run.evidence
    if shown is None or (shown.bundle_id is None and run.lens == "NUL" and not shown.items):
        return
    path = f"{run.execution_id}.evidence"
    bundle = bundles.get(shown.bundle_id or "")
    if bundle is None:
        yield Difference(f"{path}.bundle_id", shown.bundle_id, "no bundle of that id is here")
        return
    if (bundle.lens, bundle.claim) != (run.lens, run.claim):
        yield Difference(f"{path}.bundle_id", f"{run.lens} of this claim", bundle.lens)
        return
    whole = {
        other.evidence.bundle_id
        for other in runs
        if other.evidence and other.lens == run.lens and other.evidence.variant is None
    }
    of_another_policy = (shown.variant or "").startswith("policy:")
    if not of_another_policy and shown.bundle_id not in whole:
        yield Difference(f"{path}.bundle_id", shown.bundle_id, "not what the lens showed whole")
    yield from _item_differences(path, shown, bundle)


def _item_differences(path: str, shown: EvidenceRecord, bundle: Bundle) -> Iterator[Difference]:
    items = [(item.id, item.text) for item in shown.items]
    if shown.variant == "sham":
        # The texts are the package's; what the bundle decides is how many and how long.
        lengths = {item.id: len(item.text) for item in _as_is(bundle).items}
        if [name for name, _ in items] != list(lengths) or any(
            len(text) > lengths[name] for name, text in items
        ):
            yield Difference(f"{path}.items", "as recorded", "as many, and none longer")
        return
    expected = _expected(shown.variant, bundle)
    if expected is None:
        yield Difference(f"{path}.variant", shown.variant, "no experiment on this bundle")
        return
    if items != [(item.id, item.text) for item in expected.items]:
        yield Difference(f"{path}.items", "as recorded", f"{shown.variant or 'the bundle'}")
    if (None if shown.order is None else tuple(shown.order)) != expected.order:
        yield Difference(f"{path}.order", shown.order, expected.order)


def _expected(variant: str | None, bundle: Bundle) -> Evidence | None:
    """What the experiment called `variant` shows of a bundle; None if there is no such one."""
    if variant is None:
        return _as_is(bundle)
    if variant == "canary":
        return canary(bundle)
    kind, _, name = variant.partition(":")
    made = None
    if kind == "without" and any(name in {item.id, item.publisher} for item in bundle.items):
        made = without(bundle, name)
    elif kind == "policy":
        made = under_policy(bundle)
    return made if made is not None and made.variant == variant else None


def _as_is(bundle: Bundle) -> Evidence:
    evidence = evidence_of(bundle.lens, bundle)
    assert evidence is not None, "a bundle belongs to an evidence lens"
    return evidence
