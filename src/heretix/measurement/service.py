"""The measuring service: gather what lenses show, keep it, run, assemble.

The library, the command line, jobs and the panels of episodes measure through it, so that the same
request gives the same records wherever it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heretix.core.errors import InsufficientEvidenceError
from heretix.core.lenses import RPL, needs_documents
from heretix.measurement.runner import Observer, Silence
from heretix.providers.registry import open_provider

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heretix.evidence.bundle import Bundle
    from heretix.evidence.document import Document
    from heretix.measurement.gather import Bundles
    from heretix.measurement.measurement import Measurement
    from heretix.measurement.record import Artifact, RunRecord
    from heretix.measurement.runner import Runner
    from heretix.plan import Plan
    from heretix.providers.registry import Opener
    from heretix.sample import Sample
    from heretix.store import Store

RunName = tuple[str, str, str, str | None]
"""A run within a measurement: claim, model, lens, and the variant that an experiment made."""


async def gather_evidence(
    measurement: Measurement,
    *,
    documents: Sequence[Document] | None = None,
    bundles: Sequence[Bundle] = (),
) -> Measurement:
    """Gather what the lenses of a measurement show; one without enough is marked, not measured.

    `documents` are the user's own, if they were read already; a lens and claim that one of
    `bundles` is for shows that bundle, and nothing is searched for it.
    """
    config = measurement.config
    if not needs_documents(config.lenses):
        return measurement
    # Imported as needed: the raw prior is measured without any of it.
    from heretix.measurement.gather import gather_bundles

    found: Bundles = {(bundle.claim, bundle.lens): _checked(bundle) for bundle in bundles}
    lenses = [
        lens
        for lens in config.lenses
        if any((claim.text, lens) not in found for claim in measurement.claims)
    ]
    gathered = await gather_bundles(
        measurement.claims, lenses, config.evidence, measurement.settings, documents=documents
    )
    return replace(measurement, bundles={**gathered, **found})


def _checked(bundle: Bundle) -> Bundle | InsufficientEvidenceError:
    try:
        bundle.require_sufficient()
    except InsufficientEvidenceError as exc:
        return exc
    return bundle


def require_evidence(measurement: Measurement) -> None:
    """Raise `InsufficientEvidenceError` if lenses need documents and none of them has enough."""
    found = measurement.bundles.values()
    lacking = [one for one in found if isinstance(one, InsufficientEvidenceError)]
    if lacking and len(lacking) == len(found):
        said = "\n".join(dict.fromkeys(str(one) for one in lacking))
        raise InsufficientEvidenceError(said, bundle=lacking[0].bundle)


def keep_bundles(store: Store, measurement: Measurement) -> None:
    """Store the bundles of a measurement, before anything is measured with them."""
    if not measurement.bundles:
        return
    from heretix.evidence.bundle import dump_bundle
    from heretix.store.documents import save_bundle

    for found in (*measurement.bundles.values(), *measurement.other_bundles):
        # What is too little to be measured with is kept too: it says what was left out, and why.
        bundle = found.bundle if isinstance(found, InsufficientEvidenceError) else found
        if bundle is not None:
            text = dump_bundle(bundle)
            store.write(save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, text)


class Results:
    """Records of a measurement by name; an observer that passes every event on to another.

    The store has the records: they stay in memory only with `keep_records`.
    """

    def __init__(self, observer: Observer | None = None, *, keep_records: bool = False) -> None:
        self.executions: dict[RunName, str] = {}
        self.records: dict[RunName, RunRecord] = {}
        self._observer: Observer = observer or Silence()
        self._keep_records = keep_records
        self._failed: dict[RunName, bool] = {}
        """What has no estimate, and whether that is because every call failed."""

    def planned(self, plan: Plan, cached: int) -> None:
        """Pass it on."""
        self._observer.planned(plan, cached)

    def sampled(self, plan: Plan, sample: Sample) -> None:
        """Pass it on."""
        self._observer.sampled(plan, sample)

    def shared(self, plan: Plan, sample: Sample) -> None:
        """Pass it on."""
        self._observer.shared(plan, sample)

    def finished(self, record: RunRecord) -> None:
        """Keep the record's name; of several steps towards a precision the last one counts."""
        variant = record.evidence.variant if record.evidence else None
        name = (record.claim, record.model, record.lens, variant)
        self.executions[name] = record.execution_id
        if self._keep_records:
            self.records[name] = record
        self._failed.pop(name, None)
        if record.status != "ok":
            self._failed[name] = record.usage.failed == record.usage.attempted
        self._observer.finished(record)

    @property
    def without_estimate(self) -> int:
        """Runs that have no estimate."""
        return len(self._failed)

    @property
    def all_failed(self) -> bool:
        """Nothing was measured, because every call of every run failed."""
        return bool(self.executions) and sum(self._failed.values()) == len(self.executions)


async def measure(
    measurement: Measurement,
    store: Store,
    results: Results,
    *,
    runner: Runner | None = None,
    opener: Opener = open_provider,
) -> None:
    """Keep the evidence, then measure everything; records reach the store and `results`."""
    keep_bundles(store, measurement)
    runner = runner or measurement.runner(store, observer=results)
    await measurement.run(store, runner=runner, opener=opener)


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Artifacts of a measurement, one a claim, read from the store in the claims' order."""

    measurement: Measurement
    executions: Mapping[RunName, str]
    store: Store

    def __iter__(self) -> Iterator[Artifact]:
        from heretix.measurement.assemble import assemble

        for claim in self.measurement.claims:
            runs = [
                self._record(self.executions[name])
                for name in run_names(self.measurement, claim.text)
                if name in self.executions
            ]
            if runs:
                yield assemble(self.measurement, claim, runs)

    def _record(self, execution_id: str) -> RunRecord:
        from heretix.measurement.record import RunRecord
        from heretix.store.runs import find_record

        return RunRecord.model_validate_json(self.store.read(find_record, execution_id).record_json)


def run_names(measurement: Measurement, claim: str) -> Iterator[RunName]:
    """Names of the runs of a claim, in the order of its artifact."""
    shown: list[tuple[str, str | None]] = [(lens, None) for lens in measurement.config.lenses]
    shown += [(e.lens, e.variant) for c, e in measurement.variants if c.text == claim]
    for model in measurement.models:
        yield from ((claim, model.identity, lens, variant) for lens, variant in shown)
    if measurement.negation is not None:
        negation = measurement.negation.text
        yield from ((negation, model.identity, RPL, None) for model in measurement.models)
