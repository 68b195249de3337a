"""From batches that have ended to stored samples and records.

Collecting can be done as often as one likes: a sample is stored once, a record written once, and
what an interruption left undone is done the next time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from heretix.errors import (
    CallTimeoutError,
    HeretixError,
    ProviderError,
    RecordError,
    RejectedError,
    RetryableError,
    ServerError,
    StoreBusyError,
    UsageError,
)
from heretix.measurement.execution import Execution, finish, make_sample, utc_now
from heretix.measurement.replan import bank_of, replan
from heretix.measurement.runner import Observer, Silence
from heretix.providers.base import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heretix.measurement.batch import BatchDesk, BatchView
    from heretix.plan import Plan, PlannedSample
    from heretix.prompts.bank import Bank
    from heretix.providers.batch import BatchState
    from heretix.sample import Sample
    from heretix.store.batches import Batch, OwnSample, WaitingExecution

__all__ = ["Collection", "collect"]

_SAVED_TOGETHER: Final = 500
_FINISHED_TOGETHER: Final = 64
_PLANS_KEPT: Final = 2048
_FINISHING: Final = "batch-records"
"""Held while records are written, so that two processes don't write the same one."""


@dataclass(slots=True)
class Collection:
    """What was collected."""

    views: list[BatchView] = field(default_factory=list)
    """Every batch that was looked at, as it is now."""
    finished: int = 0
    """Executions that got their records."""
    waiting: int = 0
    """Executions that no batch brings any more samples: a live run was getting the ones that they
    lack, or their submission was cut short."""
    troubles: list[HeretixError] = field(default_factory=list)
    """Why some executions couldn't be finished."""

    @property
    def open(self) -> list[BatchView]:
        """Batches of which something may still come."""
        return [view for view in self.views if view.batch.is_open]


async def collect(
    desk: BatchDesk,
    batches: Sequence[Batch],
    *,
    observer: Observer | None = None,
    every_s: float | None = None,
) -> Collection:
    """Store what has come, and write the records that it completes.

    With `every_s`, the open ones are asked about so often until all have ended; a provider that
    can't be reached for a while doesn't end that, one that refuses does.
    """
    observer = observer or Silence()
    collection = Collection()
    over: dict[str, BatchView] = {}
    plans = _Plans(desk)
    left = list(batches)
    while True:
        views = [await _collect(desk, batch, plans, observer) for batch in left]
        over.update((view.batch.batch_id, view) for view in views)
        await _finish_ready(desk, plans, observer, collection)
        left = [view.batch for view in views if _is_worth_waiting_for(view)]
        if every_s is None or not left:
            break
        await asyncio.sleep(every_s)
    collection.views = list(over.values())
    return collection


def _is_worth_waiting_for(view: BatchView) -> bool:
    passing = view.trouble is None or isinstance(view.trouble, RetryableError | StoreBusyError)
    return view.batch.is_open and passing


async def _collect(desk: BatchDesk, batch: Batch, plans: _Plans, observer: Observer) -> BatchView:
    view = await desk.look(batch)
    if view.state is None or not view.state.ended or view.batch.state != "submitted":
        return view
    try:
        async with desk.holding(batch.batch_id):
            batch = desk.batches.find(batch.batch_id)
            # Another process may have been quicker.
            if batch.state == "submitted":
                await _Collector(desk, batch, view.state, plans, observer).run()
    except (ProviderError, UsageError, StoreBusyError) as exc:
        return desk.view(desk.batches.find(batch.batch_id), state=view.state, trouble=exc)
    return desk.view(desk.batches.find(batch.batch_id), state=view.state)


class _Collector:
    """Stores the results of one batch that has ended."""

    def __init__(
        self, desk: BatchDesk, batch: Batch, state: BatchState, plans: _Plans, observer: Observer
    ) -> None:
        self._desk = desk
        self._batch = batch
        self._state = state
        self._plans = plans
        self._observer = observer
        self._strays = 0
        begun = datetime.fromisoformat(batch.submitted_at)
        ended = state.ended_at or desk.now
        self._latency_ms = max(0, round((ended - begun).total_seconds() * 1000))

    async def run(self) -> None:
        """Store every result; a request without one is stored as failed."""
        desk, batch_id = self._desk, self._batch.batch_id
        missing: ProviderError = _missing(self._batch, self._state)
        try:
            await desk.patiently(self._read)
        except RejectedError as exc:
            # The batch itself is known, as its state was told just now.
            if exc.status != 404:
                raise
            missing = ServerError(f"`{self._batch.provider}` no longer has the results: {exc}")
        left = desk.batches.pending(batch_id)
        keys = sorted(left)
        for start in range(0, len(keys), _SAVED_TOGETHER):
            chunk = keys[start : start + _SAVED_TOGETHER]
            await self._save([(left[key], key, missing) for key in chunk])
        note = f"{self._strays:,} lines of its results made no sense" if self._strays else None
        desk.batches.close(batch_id, note=note, now=utc_now())

    async def _read(self) -> None:
        desk = self._desk
        assert self._batch.provider_batch_id is not None
        pending = desk.batches.pending(self._batch.batch_id)
        keys = desk.batches.keys(self._batch.batch_id)
        arrived: list[tuple[str, str, Reply | ProviderError]] = []
        seen = self._strays = 0
        provider = desk.provider_of(self._batch)
        async with contextlib.aclosing(provider.results(self._batch.provider_batch_id)) as results:
            async for result in results:
                seen += 1
                key = result.custom_id
                self._strays += key not in keys
                if key is None or key not in pending:
                    continue
                arrived.append((pending.pop(key), key, result.outcome))
                if len(arrived) >= _SAVED_TOGETHER:
                    await self._save(arrived)
                    arrived = []
        await self._save(arrived)
        counts = self._state.counts
        if counts is not None and seen < counts.succeeded:
            raise ServerError(
                f"`{self._batch.provider}` must send {counts.succeeded:,} results of "
                f"`{self._batch.batch_id}`, got {seen:,}; collect it again later"
            )

    async def _save(self, arrived: Sequence[tuple[str, str, Reply | ProviderError]]) -> None:
        if not arrived:
            return
        await self._plans.load([execution_id for execution_id, _, _ in arrived])
        made = []
        for execution_id, key, outcome in arrived:
            plan, planned = self._plans.sample(execution_id, key)
            made.append((plan, execution_id, self._make(plan, planned, outcome)))
        saved = [(execution_id, sample) for _, execution_id, sample in made]
        await asyncio.to_thread(self._desk.batches.save, self._batch.batch_id, saved)
        for plan, _, sample in made:
            self._observer.sampled(plan, sample)

    def _make(self, plan: Plan, planned: PlannedSample, outcome: Reply | ProviderError) -> Sample:
        reply, error = None, None
        if isinstance(outcome, Reply):
            reply = replace(outcome, temperature=plan.options.temperature)
        else:
            error = f"{type(outcome).__name__}: {outcome}"
        return make_sample(
            plan,
            planned,
            reply=reply,
            error=error,
            attempts=1,
            # Until the batch ended: no provider tells how long a request of it took.
            latency_ms=self._latency_ms,
            created_at=utc_now(),
        )


def _missing(batch: Batch, state: BatchState) -> ProviderError:
    """Why a request of a batch that has ended has no result."""
    if state.problem is not None:
        return ServerError(state.problem)
    if state.status == "expired":
        return CallTimeoutError(f"`{batch.provider}` didn't get to it before the batch expired")
    return ServerError(f"`{batch.provider}` ended the batch ({state.status}) without a result")


class _Plans:
    """Plans of executions, made again as they are needed, and not kept without bound."""

    def __init__(self, desk: BatchDesk) -> None:
        self._desk = desk
        self._banks: dict[str, Bank] = {}
        self._kept: OrderedDict[str, tuple[Plan, dict[str, PlannedSample]]] = OrderedDict()

    async def load(self, execution_ids: Sequence[str]) -> None:
        """Make plans ready. More than are kept may be asked for at once."""
        wanted = list(dict.fromkeys(execution_ids))
        missing = [name for name in wanted if name not in self._kept]
        if missing:
            rows = await asyncio.to_thread(self._desk.batches.executions, missing)
            for name in missing:
                plan = self.plan(rows[name])
                self._kept[name] = (plan, {s.cache_key: s for s in plan.samples})
        for name in wanted:
            self._kept.move_to_end(name)
        while len(self._kept) > max(_PLANS_KEPT, len(wanted)):
            self._kept.popitem(last=False)

    def sample(self, execution_id: str, key: str) -> tuple[Plan, PlannedSample]:
        """A planned sample of a plan that was loaded."""
        plan, samples = self._kept[execution_id]
        return plan, samples[key]

    def plan(self, execution: WaitingExecution) -> Plan:
        """The plan of an execution."""
        if execution.execution_id in self._kept:
            return self._kept[execution.execution_id][0]
        version = _prompt_version(execution)
        if version not in self._banks:
            row = self._desk.store.bank(version)
            assert row is not None, "a bank is registered before anything is submitted with it"
            self._banks[version] = bank_of(row)
        return replan(execution.config_json, self._banks[version])


def _prompt_version(execution: WaitingExecution) -> str:
    version: str = json.loads(execution.config_json)["prompt_version"]
    return version


async def _finish_ready(
    desk: BatchDesk, plans: _Plans, observer: Observer, collection: Collection
) -> None:
    """Write the records of executions that have all their samples."""
    collection.waiting, collection.troubles = 0, []
    try:
        async with desk.holding(_FINISHING):
            for names in _chunks(await asyncio.to_thread(desk.batches.ready)):
                rebuilt = await asyncio.to_thread(_rebuild, desk, plans, names, collection)
                complete = [execution for execution in rebuilt if execution.complete]
                collection.waiting += len(rebuilt) - len(complete)
                records = await asyncio.to_thread(finish, desk.store, complete) if complete else []
                collection.finished += len(records)
                for record in records:
                    observer.finished(record)
    except StoreBusyError as exc:
        # The other process writes the records, or leaves them for the next collection.
        collection.troubles.append(exc)


def _rebuild(
    desk: BatchDesk, plans: _Plans, names: Sequence[str], collection: Collection
) -> list[Execution]:
    """Executions with the samples that the store has for them."""
    rows, own = desk.batches.executions(names), desk.batches.own_samples(names)
    rebuilt = []
    for name in names:
        try:
            plan = plans.plan(rows[name])
        except RecordError as exc:
            collection.troubles.append(exc)
            continue
        rebuilt.append(
            Execution(plan, name, rows[name].created_at, price=desk.price_of(plan.model))
        )
    keys = [sample.cache_key for execution in rebuilt for sample in execution.plan.samples]
    stored = desk.batches.stored(keys)
    for execution in rebuilt:
        for planned in execution.plan.samples:
            sample = stored.get(planned.cache_key)
            mine = own.get((execution.execution_id, planned.cache_key))
            if mine is not None and mine.error is not None:
                execution.held[planned.cache_key] = _failed(execution, planned, mine, sample)
            elif mine is not None and sample is not None:
                execution.held[planned.cache_key] = sample
            elif sample is not None:
                execution.reuse(sample)
    return rebuilt


def _failed(
    execution: Execution, planned: PlannedSample, mine: OwnSample, stored: Sample | None
) -> Sample:
    """A request that failed. Where the store has an older answer, it kept that instead."""
    if stored is not None and stored.failed:
        return stored
    assert mine.collected_at is not None
    begun, ended = (datetime.fromisoformat(t) for t in (execution.started_at, mine.collected_at))
    return make_sample(
        execution.plan,
        planned,
        reply=None,
        error=mine.error,
        attempts=1,
        latency_ms=max(0, round((ended - begun).total_seconds() * 1000)),
        created_at=mine.collected_at,
    )


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _FINISHED_TOGETHER):
        yield names[start : start + _FINISHED_TOGETHER]
