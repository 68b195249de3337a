"""Adaptive precision: measure, look at the gates, and ask for more only where they don't pass.

The order is more templates, then more slots, then more replicates, because wordings differ more
than repeats do. The frozen estimator is untouched: each step is an ordinary plan that reuses the
samples of the one before, and the rule that chose its size is recorded beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from heretix.belief.estimator import is_stable_width
from heretix.core.errors import ConfigError
from heretix.plan import OpenExecution, Plan, Precision, PrecisionStep, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heretix.config import RunConfig
    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Observer
    from heretix.measurement.service import Measurement
    from heretix.plan import Evidence
    from heretix.providers.catalog import ModelId

_SLOTS_A_TEMPLATE: Final = 3
"""More than this many slots of a template become more replicates of each."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a plan."""

    K: int
    R: int
    T: int

    @property
    def N(self) -> int:
        """Attempts."""
        return self.K * self.R


def next_shape(shape: Shape, templates: int) -> Shape:
    """The next larger plan: more templates, then more slots, then more replicates."""
    slots = -(-shape.K // shape.T)
    if templates > shape.T:
        T = min(templates, 2 * shape.T)
        return Shape(K=T * slots, R=shape.R, T=T)
    if slots < _SLOTS_A_TEMPLATE:
        return Shape(K=shape.T * (slots + 1), R=shape.R, T=shape.T)
    return Shape(K=shape.K, R=shape.R + 1, T=shape.T)


def find_unmet_gates(rule: Precision, ci_width: float | None, compliance: float) -> tuple[str, ...]:
    """The gates that a result doesn't pass; without an estimate there is nothing to pass with."""
    if ci_width is None:
        return ("estimate",)
    gates = (
        ("ci_width", ci_width <= rule.until_width),
        ("is_stable", is_stable_width(ci_width)),
        ("rpl_compliance_rate", compliance >= rule.min_compliance),
    )
    return tuple(name for name, passed in gates if not passed)


MIN_COMPLIANCE: Final = 0.9
DEFAULT_MAX_SAMPLES: Final = 256


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Inputs of a plan, without its prompts: thousands of these may wait."""

    order: int
    claim: str
    claim_id: str | None
    columns: tuple[tuple[str, Any], ...]
    model: ModelId
    evidence: Evidence | None
    template_include: tuple[int, ...] | None
    pool_size: int


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that ended and lacks something: its execution goes on with a larger one."""

    recipe: _Recipe
    begun: OpenExecution
    taken: tuple[PrecisionStep, ...]
    """All steps so far; the last one is this."""
    failed: int

    @property
    def shape(self) -> Shape:
        last = self.taken[-1]
        return Shape(last.K, last.R, last.T)


class Escalation:
    """Watches a run, and has executions go on, larger, until their gates pass.

    One round measures all claims; the next one those whose gates didn't pass, and so on. Whoever
    watches sees one execution a claim, which grows, and one record.
    """

    def __init__(self, measurement: Measurement, observer: Observer) -> None:
        self._measurement = measurement
        self._observer = observer
        self._rule = stopping_rule(measurement.config)
        self._under_way: dict[tuple[str, str | None], _Recipe] = {}
        """By run and the claim's own id, which two claims of the same text differ by."""
        self._open: dict[str, _Step] = {}
        """By execution: what has to go on."""
        self.on_sampled = observer.on_sampled
        self.on_shared = observer.on_shared
        self.on_extended = observer.on_extended
        self.on_heard = observer.on_heard

    def on_planned(self, plan: Plan, cached: int) -> None:
        """Note what a plan was made from: its record will say whether a larger one is needed."""
        order = len(self._under_way)
        self._under_way[plan.run_id, plan.claim_id] = _recipe_of(plan, order)
        if plan.precision is None or plan.precision.begun is None:
            self._observer.on_planned(plan, cached)
            return
        before = self._open[plan.precision.begun.execution_id]
        # What the step before had is counted already; what failed in it is called for again.
        more, had = plan.N - before.shape.N + before.failed, before.shape.N - before.failed
        self._observer.on_extended(plan, more, cached - had)

    def on_finished(self, record: RunRecord) -> None:
        """Pass on the record that ends an execution; of any other note what its plan needs next."""
        taken = record.precision
        assert taken is not None, "an adaptive measurement's records say so"
        self._open.pop(record.execution_id, None)
        if taken.stopped is not None:
            self._observer.on_finished(record)
            return
        self._open[record.execution_id] = _Step(
            recipe=self._under_way[record.run_id, record.claim_id],
            begun=OpenExecution(record.execution_id, record.started_at),
            taken=tuple(taken.steps),
            failed=record.usage.failed,
        )

    def plan_first(self, model: ModelId) -> Iterator[Plan]:
        """The plans of the first round: the sizes that were asked for."""
        for plan in self._measurement.plans(model):
            yield replace(plan, precision=self._rule)

    def plan_largest(self, model: ModelId) -> Iterator[Plan]:
        """The plans that it comes to if no gate passes."""
        for plan in self._measurement.plans(model):
            shape = Shape(plan.K, plan.R, plan.T)
            shape = largest_shape(shape, plan.pool_size, self._rule.max_samples)
            yield self._make(_recipe_of(plan, 0), shape, self._rule)

    def plan_next_round(self) -> dict[ModelId, Iterator[Plan]]:
        """The plans of the next round, made as they are needed; none when all is measured."""
        self._under_way = {}
        return {
            model: (
                self._plan(step, next_shape(step.shape, step.recipe.pool_size), step.taken)
                for step in steps
            )
            for model, steps in self._steps().items()
        }

    def plan_interrupted(self) -> dict[ModelId, Iterator[Plan]]:
        """The plans that open executions end with, when no larger step can: those of the last."""
        return {
            model: (self._plan(step, step.shape, step.taken[:-1], last=True) for step in steps)
            for model, steps in self._steps().items()
        }

    def _steps(self) -> dict[ModelId, list[_Step]]:
        found: dict[ModelId, list[_Step]] = {}
        for step in sorted(self._open.values(), key=lambda step: step.recipe.order):
            found.setdefault(step.recipe.model, []).append(step)
        return found

    def _plan(
        self, step: _Step, shape: Shape, taken: tuple[PrecisionStep, ...], *, last: bool = False
    ) -> Plan:
        rule = replace(self._rule, steps=taken, begun=step.begun, interrupted=last)
        return self._make(step.recipe, shape, rule)

    def _make(self, recipe: _Recipe, shape: Shape, rule: Precision) -> Plan:
        changed = asdict(shape) | {"template_include": recipe.template_include}
        return make_plan(
            recipe.claim,
            recipe.model,
            self._measurement.bank,
            self._measurement.config.model_copy(update=changed),
            claim_id=recipe.claim_id,
            columns=recipe.columns,
            env_seed=self._measurement.settings.rpl_seed,
            evidence=recipe.evidence,
            precision=rule,
        )


def _recipe_of(plan: Plan, order: int) -> _Recipe:
    return _Recipe(
        order=order,
        claim=plan.claim,
        claim_id=plan.claim_id,
        columns=plan.columns,
        model=plan.model,
        evidence=plan.evidence,
        template_include=plan.template_include,
        pool_size=plan.pool_size,
    )


def stopping_rule(config: RunConfig) -> Precision:
    """The rule that a configuration with `until_width` asks for."""
    assert config.until_width is not None, "only adaptive measurements escalate"
    first = config.K * config.R
    if config.max_samples is not None and config.max_samples < first:
        raise ConfigError(
            f"`max_samples` must be at least the {first} samples (K×R) that a measurement begins "
            f"with, got {config.max_samples}; raise it, or lower K or R"
        )
    return Precision(
        until_width=config.until_width,
        min_compliance=MIN_COMPLIANCE,
        max_samples=config.max_samples or max(DEFAULT_MAX_SAMPLES, first),
    )


def largest_shape(shape: Shape, templates: int, max_samples: int) -> Shape:
    """The last step that `max_samples` allows."""
    while max_samples >= (larger := next_shape(shape, templates)).N:
        shape = larger
    return shape
