"""What a request will take, told before anything is called: questions, calls, cost and time."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import InsufficientEvidenceError, MissingKeyError
from heretix.measurement.description import plan_content
from heretix.people.audit import iso
from heretix.providers.catalog import IN_PROCESS, require_key
from heretix.providers.registry import open_provider
from heretix.store.jobs import mean_latency_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heretix.evidence.bundle import Shortfall
    from heretix.jobs.request import MeasureRequest
    from heretix.measurement.measurement import Estimate, Measurement
    from heretix.providers.catalog import ModelId
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["JobPlan", "Lacking", "plan_request"]

_AT_A_TIME: Final = 8
"""Calls in flight that a plan reckons with. Many providers allow more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """A claim and a lens that can't be measured: there is too little evidence."""

    claim: str
    shortfall: Shortfall


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a job would do."""

    estimate: Estimate
    duration_s: float | None
    """None where nothing is known to go by."""
    duration_basis: str
    plans: tuple[dict[str, Any], ...]
    """The first plan of each model and lens, as JSON, with the full text of what is asked."""
    models: tuple[str, ...]
    demonstration: tuple[str, ...]
    """Models among them whose numbers aren't beliefs worth quoting."""
    unsent: tuple[str, ...]
    """Options that a model doesn't accept, and that aren't sent, each in a sentence."""
    lacking: tuple[Lacking, ...]
    """Lenses without enough evidence."""
    missing_keys: tuple[str, ...] = ()
    """What has to be set before it can be started here."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What won't be as asked, in sentences."""
        told = (f"{found.claim[:60]}: {found.shortfall}" for found in self.lacking)
        return (*self.unsent, *told)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"notes": self.notes}


def plan_request(
    request: MeasureRequest, store: Store, settings: Settings, *, calls: bool, keys: bool = False
) -> JobPlan:
    """Plan without calling a model. Call it from a thread that has no event loop.

    With `keys`, those that are missing here are told: whoever measures needs them.
    """
    # Imported as needed: a server answers before anybody plans.
    from heretix.jobs.measuring import asked, gathered, with_bundles

    measurement = asked(request, settings, budget_usd=request.budget_usd, calls=calls)
    bundles = gathered(request, settings, stamp=iso(time.time()))
    measurement = with_bundles(measurement, request, bundles)
    estimate = measurement.estimate(store)
    duration_s, basis = _duration(measurement, estimate, store)
    return JobPlan(
        estimate=estimate,
        duration_s=duration_s,
        duration_basis=basis,
        plans=tuple(_first_plans(measurement)),
        models=tuple(model.identity for model in measurement.models),
        demonstration=tuple(
            model.identity
            for model in measurement.models
            if model.is_demonstration or model.is_made_up
        ),
        unsent=tuple(
            f"{model} doesn't accept `{name}`; it isn't sent"
            for model in measurement.models
            for name in measurement.ignored_options(model)
        ),
        lacking=tuple(
            Lacking(claim=claim, shortfall=found.bundle.shortfall)
            for (claim, _), found in bundles.items()
            if isinstance(found, InsufficientEvidenceError)
        ),
        missing_keys=tuple(_missing_keys(measurement)) if keys else (),
    )


def _first_plans(measurement: Measurement) -> Iterator[dict[str, Any]]:
    for model in measurement.models:
        seen: set[str] = set()
        for claim, lens in measurement.pairs():
            if lens not in seen:
                seen.add(lens)
                yield {"lens": lens, **plan_content(measurement.plan(claim, model, lens))}


def _missing_keys(measurement: Measurement) -> Iterator[str]:
    for model in measurement.models:
        try:
            require_key(model, measurement.settings)
        except MissingKeyError:
            yield (
                f"`{model}` needs a key: set {model.endpoint.key_variable} where this server runs "
                "and start it again, or choose a model that needs none"
            )


def _duration(
    measurement: Measurement, estimate: Estimate, store: Store
) -> tuple[float | None, str]:
    """Models are asked side by side: the slowest decides."""
    if not estimate.to_call:
        return 0.0, "everything is stored already"
    calls = estimate.to_call / len(measurement.models)
    longest, basis = 0.0, ""
    for model in measurement.models:
        with store.reading() as connection:
            latency_ms = mean_latency_ms(connection, model.identity)
        if latency_ms is None:
            return None, f"{model} hasn't been asked here yet, so its speed isn't known"
        at_a_time = _at_a_time(model, measurement)
        needed = calls * latency_ms / 1000 / at_a_time
        if needed >= longest:
            longest = needed
            basis = f"{at_a_time} calls at a time, {latency_ms:,.0f} ms each as in its latest runs"
    return longest, basis


def _at_a_time(model: ModelId, measurement: Measurement) -> int:
    if model.endpoint.kind not in IN_PROCESS:
        return _AT_A_TIME
    return min(_AT_A_TIME, open_provider(model, measurement.settings).max_concurrency)
