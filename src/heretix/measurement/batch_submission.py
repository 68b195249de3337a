"""From a measurement to batches at providers: what isn't stored yet is submitted, at half price."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from heretix.errors import BudgetReachedError, ConfigError, ProviderError, UnconfirmedError
from heretix.measurement.batch import utc_text
from heretix.measurement.execution import Execution, begin, finish
from heretix.measurement.runner import Observer, Silence
from heretix.providers.catalog import ModelId, Options, sent_options
from heretix.providers.prices import cost_micros
from heretix.store.batches import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from heretix.measurement.batch import BatchDesk
    from heretix.measurement.measurement import Measurement
    from heretix.plan import Plan
    from heretix.providers.batch import BatchLimits

__all__ = ["Submission", "submit"]

_PLANS_AHEAD: Final = 64


@dataclass(slots=True)
class Submission:
    """What was submitted."""

    batches: list[str] = field(default_factory=list)
    """Batches that the providers took."""
    requests: int = 0
    """Samples in them."""
    elsewhere: int = 0
    """Samples that other batches or live runs are getting already."""
    executions: int = 0
    """Executions that wait for samples."""
    finished: int = 0
    """Executions that needed none."""


async def submit(
    desk: BatchDesk,
    measurement: Measurement,
    *,
    observer: Observer | None = None,
    limits: BatchLimits | None = None,
) -> Submission:
    """Submit what a measurement lacks. Runs that lack nothing get their records at once.

    `limits` makes batches smaller than the providers' own limits do. Raises what ended it early:
    batches that were taken stay, and the same measurement submitted again sends only the rest.
    """
    if measurement.config.lenses != ("RPL",):
        # A plan is made again from what the store has of it, which is no evidence yet.
        raise ConfigError(
            f"`lenses` must be RPL in a batch, got {', '.join(measurement.config.lenses)}; "
            "measure the others without `--batch`"
        )
    submission = Submission()
    submitters = [
        _Submitter(desk, measurement, model, submission, observer or Silence(), limits)
        for model in measurement.models
    ]
    _check_budget(desk, measurement)
    # What a crash left behind comes first: its samples are either on their way or free again.
    for batch in desk.batches.open_ones():
        if batch.state == "submitting":
            await desk.look(batch)
    measurement.register_bank(desk.store)
    for submitter in submitters:
        await submitter.run()
    return submission


def _check_budget(desk: BatchDesk, measurement: Measurement) -> None:
    """A batch can't be stopped by what it has cost so far: its most must fit."""
    budget_usd = measurement.config.budget_usd
    if budget_usd is None:
        return
    most_usd = 0.0
    for model in measurement.models:
        price = desk.price_of(model)
        if price is None:
            raise ConfigError(
                f"`budget_usd` can't be kept: the batch price of {model} isn't known; "
                "put it into a table of yours and name that with HERETIX_PRICES"
            )
        share = replace(measurement, models=(model,)).estimate(desk.store)
        most_usd += cost_micros(price, share.tokens_in, share.tokens_out_max) / 1e6
    if most_usd > budget_usd:
        raise BudgetReachedError(
            f"`budget_usd` must cover the most that the batches may cost, ${most_usd:.4f}, "
            f"got {budget_usd:g}; allow more, or lower `max_output_tokens`. Nothing was submitted"
        )


class _Draft:
    """A batch that is being filled."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.wanted: list[tuple[str, str]] = []
        self.executions: dict[str, Execution] = {}
        self._size_bytes = 0

    def has_room(self, entry: bytes, limits: BatchLimits) -> bool:
        size = self._size_bytes + len(entry) + 1
        return len(self.entries) < limits.requests and size <= limits.size_bytes

    def add(self, execution: Execution, key: str, entry: bytes) -> None:
        if key not in self.entries:
            self.entries[key] = entry
            self._size_bytes += len(entry) + 1
        self.wanted.append((execution.execution_id, key))
        self.executions[execution.execution_id] = execution


class _Submitter:
    """Submits the plans of one model: a batch has one model only."""

    def __init__(
        self,
        desk: BatchDesk,
        measurement: Measurement,
        model: ModelId,
        submission: Submission,
        observer: Observer,
        limits: BatchLimits | None,
    ) -> None:
        self._desk = desk
        self._measurement = measurement
        self._model = model
        self._submission = submission
        self._observer = observer
        self._use_cache = not measurement.settings.no_cache
        self._base_url = sent_options(model, Options(base_url=measurement.config.base_url)).base_url
        self._provider = desk.provider(model, self._base_url)
        self._limits = limits or self._provider.limits
        self._draft = _Draft()

    async def run(self) -> None:
        price = self._desk.price_of(self._model)
        for plans in _chunks(self._measurement.plans(self._model)):
            executions = await asyncio.to_thread(
                begin, self._desk.store, plans, use_cache=self._use_cache, price=price
            )
            complete = [execution for execution in executions if execution.complete]
            for execution in executions:
                self._observer.planned(execution.plan, len(execution.held))
                await self._take_up(execution)
            await self._finish(complete)
        await self._send()

    async def _take_up(self, execution: Execution) -> None:
        missing = execution.missing
        self._submission.executions += bool(missing)
        for planned in missing:
            entry = self._provider.encode(planned.cache_key, execution.plan.request(planned))
            if self._draft.entries and not self._draft.has_room(entry, self._limits):
                await self._send()
            self._draft.add(execution, planned.cache_key, entry)

    async def _send(self) -> None:
        """Write the draft down, submit it, and write down that it was taken."""
        draft, self._draft = self._draft, _Draft()
        if not draft.entries:
            return
        desk, now = self._desk, utc_text(self._desk.now)
        batch = Batch(
            batch_id=f"batch-{uuid.uuid4()}",
            provider=self._model.provider,
            model=self._model.identity,
            base_url=self._base_url,
            provider_batch_id=None,
            state="submitting",
            requests=len(draft.entries),
            submitted_at=now,
            updated_at=now,
        )
        async with desk.holding(batch.batch_id):
            drawn = await asyncio.to_thread(
                desk.batches.draw, batch, draft.wanted, use_cache=self._use_cache
            )
            self._submission.elsewhere += drawn.elsewhere
            if drawn.owned:
                entries = [draft.entries[key] for key in draft.entries if key in drawn.owned]
                name = await self._deliver(batch, entries)
                desk.batches.confirm(batch.batch_id, name, now=utc_text(desk.now))
                self._submission.batches.append(batch.batch_id)
                self._submission.requests += len(entries)
        for execution_id, key in draft.wanted:
            if key in drawn.stored:
                draft.executions[execution_id].reuse(drawn.stored[key])
        late = [e for e in draft.executions.values() if e.complete]
        self._submission.executions -= len(late)
        await self._finish(late)

    async def _deliver(self, batch: Batch, entries: Sequence[bytes]) -> str:
        """Submit until the provider has it, or said no, or can't be asked."""
        desk, provider = self._desk, self._provider
        failures = 0
        while True:
            try:
                return await desk.patiently(lambda: provider.submit(batch.batch_id, entries))
            except UnconfirmedError as exc:
                failures += 1
                name = await self._look_for(batch, len(entries), exc)
                if name is not None:
                    return name
                if failures >= desk.retry.attempts:
                    raise self._refused(batch, exc) from exc
                await asyncio.sleep(desk.retry.wait_s(failures, exc))
            except ProviderError as exc:
                raise self._refused(batch, exc) from exc

    async def _look_for(self, batch: Batch, size: int, failure: UnconfirmedError) -> str | None:
        """The name of a batch that was made all the same; None when the provider said no, and
        has none.

        Anything else is left as it is, for `heretix batch status` to find out.
        """
        desk, provider = self._desk, self._provider
        since = datetime.fromisoformat(batch.submitted_at)
        known = desk.batches.known_ids(batch.provider)
        try:
            sightings = await desk.patiently(
                lambda: provider.find(batch.batch_id, size=size, since=since)
            )
        except ProviderError:
            raise self._unclear(batch, failure) from failure
        fresh = [s for s in sightings if s.provider_batch_id not in known]
        certain = next((s.provider_batch_id for s in fresh if s.certain), None)
        answered = failure.status is not None and failure.status >= 400
        if certain is None and (fresh or not answered):
            raise self._unclear(batch, failure) from failure
        return certain

    def _refused(self, batch: Batch, exc: ProviderError) -> ProviderError:
        """Free the samples of a batch that wasn't taken, and say so."""
        desk = self._desk
        desk.batches.abandon(batch.batch_id, note=str(exc), now=utc_text(desk.now))
        taken = len(self._submission.batches)
        kept = f"{taken} batches were taken before; " if taken else ""
        message = f"{exc}. {kept}the same command submits the rest"
        return _like(exc, message)

    def _unclear(self, batch: Batch, exc: UnconfirmedError) -> ProviderError:
        """Leave a batch unconfirmed, and say how to find out."""
        desk = self._desk
        desk.batches.remark(batch.batch_id, note=f"not confirmed: {exc}", now=utc_text(desk.now))
        return UnconfirmedError(
            f"{exc}. Whether `{batch.batch_id}` was taken isn't known; `heretix batch status` "
            "finds out, and until then nothing in it is sent again",
            status=exc.status,
        )

    async def _finish(self, executions: Sequence[Execution]) -> None:
        if executions:
            records = await asyncio.to_thread(finish, self._desk.store, executions)
            for record in records:
                self._observer.finished(record)
            self._submission.finished += len(records)


def _like(exc: ProviderError, message: str) -> ProviderError:
    """An error of the same kind with other words."""
    return type(exc)(message, status=exc.status)


def _chunks(plans: Iterable[Plan]) -> Iterator[list[Plan]]:
    iterator = iter(plans)
    while chunk := list(islice(iterator, _PLANS_AHEAD)):
        yield chunk
