"""Adaptive precision: measure, look at the gates, and ask for more only where they don't pass.

The order is more templates, then more slots, then more replicates, because wordings differ more
than repeats do. The frozen estimator is untouched: each step is an ordinary plan that reuses the
samples of the one before, and the rule that chose its size is recorded beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from heretix.measurement.gates import Shape, next_shape
from heretix.plan import Plan, Precision, PrecisionStep, selectable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heretix.measurement.measurement import Measurement
    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Observer
    from heretix.providers.catalog import ModelId

__all__ = ["Escalation"]

MIN_COMPLIANCE: Final = 0.9
DEFAULT_MAX_SAMPLES: Final = 256


class Escalation:
    """Watches a run, and gathers what has to be measured again, larger.

    One round measures all claims; the next one those whose gates didn't pass, and so on.
    """

    def __init__(self, measurement: Measurement, observer: Observer) -> None:
        config = measurement.config
        assert config.until_width is not None, "only adaptive measurements escalate"
        self._measurement = measurement
        self._observer = observer
        self._rule = Precision(
            until_width=config.until_width,
            min_compliance=MIN_COMPLIANCE,
            max_samples=config.max_samples or DEFAULT_MAX_SAMPLES,
        )
        self._templates = len(selectable(measurement.bank, config))
        self._rounds: dict[ModelId, list[tuple[int, str, Shape, Precision]]] = {}
        self._index = {claim.text: number for number, claim in enumerate(measurement.claims)}
        self.planned = observer.planned
        self.sampled = observer.sampled
        self.shared = observer.shared

    def finished(self, record: RunRecord) -> None:
        """Pass a record on, and note what its plan needs next."""
        self._observer.finished(record)
        steps = record.precision
        assert steps is not None, "an adaptive measurement's records say so"
        if steps.stopped is not None:
            return
        done = Shape(record.sampling.K, record.sampling.R, record.sampling.T)
        model = next(m for m in self._measurement.models if m.identity == record.model)
        taken = tuple(
            PrecisionStep(
                K=step.K,
                R=step.R,
                T=step.T,
                ci_width=step.ci_width,
                rpl_compliance_rate=step.rpl_compliance_rate,
                unmet=tuple(step.unmet),
            )
            for step in steps.steps
        )
        self._rounds.setdefault(model, []).append(
            (
                self._index[record.claim],
                record.lens,
                next_shape(done, self._templates),
                replace(self._rule, steps=taken),
            )
        )

    def first(self, model: ModelId) -> Iterator[Plan]:
        """The plans of the first round: the sizes that were asked for."""
        for plan in self._measurement.plans(model):
            yield replace(plan, precision=self._rule)

    def next_round(self) -> dict[ModelId, list[Plan]]:
        """The plans of the next round; none when all is measured."""
        rounds, self._rounds = self._rounds, {}
        return {
            model: [self._plan(model, *entry) for entry in sorted(entries, key=lambda e: e[:2])]
            for model, entries in rounds.items()
        }

    def _plan(self, model: ModelId, index: int, lens: str, shape: Shape, rule: Precision) -> Plan:
        size = {"K": shape.K, "R": shape.R, "T": shape.T}
        return self._measurement.plan(
            self._measurement.claims[index],
            model,
            lens,
            config=self._measurement.config.model_copy(update=size),
            precision=rule,
        )
