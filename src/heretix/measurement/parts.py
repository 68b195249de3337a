"""A measurement in parts, on the nodes of a cluster: one model and some hundred claims each.

A part is measured by the same service as everything else, against the same store, whose leases,
rates and budgets hold for all. What comes back is counts, and the names of executions: records are
the store's. A part that is begun again, because its node died, finds in the store what it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heretix.core.clock import utc_now
from heretix.core.errors import (
    BatchPendingError,
    ConfigError,
    HeretixError,
    ModelError,
    RecordError,
    StoppedError,
)
from heretix.core.event_loop import run_in_thread
from heretix.core.settings import Settings
from heretix.measurement.health import Check, State
from heretix.measurement.runner import Counts, Tally, make_stopped_error
from heretix.measurement.service import Results
from heretix.providers.catalog import ModelId, endpoints, resolve_model
from heretix.providers.local import SharedModels
from heretix.store import Store
from heretix.store.runs import find_record
from heretix.store.samples import release_all_leases
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from heretix.cluster.engine import Ended, Engine, Placement
    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Retry, Runner
    from heretix.measurement.service import Measurement

_CLAIMS: Final = range(200, 1001)
"""Claims of a part: enough to be worth a process, few enough for all nodes to end together."""
_LOCAL_CLAIMS: Final = range(10, 101)
"""Of a part for an embedded model, which answers a few calls a second."""
_PARTS_PER_CPU: Final = 4
_SURVEY_S: Final = 60.0
_STEP_S: Final = 0.3
_TELL_S: Final = 0.4
_DROP_S: Final = 5.0
"""Time for parts to end in when their calls in flight are to be dropped."""
_ACCOUNT: Final = (
    *("calls", "tokens_in", "tokens_out", "cut_off", "presumed_micros", "untold"),
    "spooled",
)
"""Counts that stay true of an attempt whose node died; the others are of the latest attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Claims and models that one process is to measure."""

    measurement: Measurement
    """Of one model. Its settings hold nothing of the environment: keys stay where they are."""
    caps: Mapping[str, int]
    retry: Retry
    prices: str | None
    """The text of a table of the user's own."""
    version: str = VERSION

    @property
    def model(self) -> ModelId:
        return self.measurement.models[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a part."""

    executions: tuple[str, ...]
    counts: Counts
    error: HeretixError | None


# Where the parts are made, and waited for.


async def measure_in_parts(measurement: Measurement, store: Store, runner: Runner) -> None:
    """Measure on the cluster that the configuration names; records reach the runner's observer."""
    from heretix.cluster import engine

    assert measurement.config.on is not None, "only who asks for a cluster gets one"
    runner.observer.on_heard(Counts(doing="connecting to the cluster"))
    async with contextlib.AsyncExitStack() as stack:
        connection = engine.connected(measurement.config.on)
        cluster = await run_in_thread(connection.__enter__)
        stack.callback(connection.__exit__, None, None, None)
        if store.is_file and len(cluster.nodes) > 1:
            raise ConfigError(
                f"`db` {store.name} is a file of one machine, and the cluster has "
                f"{len(cluster.nodes)} nodes; give a PostgreSQL that all of them reach (--db)"
            )
        whole = _PartScheduler(measurement, store, runner, cluster)
        placement = cluster.place(f"{__name__}:measure_part", whole.parts(), whole.homes())
        stack.callback(placement.close)
        await whole.watch(placement)
    if whole.reason is not None:
        raise whole.reason


class _PartScheduler:
    """All parts of a measurement."""

    def __init__(
        self, measurement: Measurement, store: Store, runner: Runner, cluster: Engine
    ) -> None:
        self._store = store
        self._runner = runner
        self._cpus = max(1, int(sum(node.cpus for node in cluster.nodes)))
        settings = measurement.settings
        prices = settings.prices_file
        self._prices = prices.read_text(encoding="utf-8-sig") if prices is not None else None
        since = runner.since or (None if runner.use_cache else utc_now())
        # What has a path is of this machine; what has a key is a secret, and nodes have their own.
        db = str(Path(settings.db).resolve()) if store.is_file else settings.db
        settings = replace(settings, db=db, env={}, models_dir=None, prices_file=None, on=None)
        config = measurement.config.model_copy(update={"on": None, "budget_usd": None})
        measurement = replace(measurement, config=config, settings=settings, since=since)
        self._measurement = replace(measurement, rows=(), spent=None)
        self._models: dict[int, ModelId] = {}
        """Models by the numbers that parts have, in the order in which they were made."""
        self._told: dict[tuple[int, str], Counts] = {}
        self._latest: dict[int, str] = {}
        self._over: set[int] = set()
        self._failed: dict[ModelId, HeretixError] = {}
        self.reason: HeretixError | None = None
        """Error that kept a model's parts from being measured, if any."""

    def parts(self) -> Iterator[Part]:
        """Parts that any process can measure."""
        models = [one for one in self._measurement.models if one.provider != "local"]
        return self._parts(models, _CLAIMS)

    def homes(self) -> Iterator[Part]:
        """Parts for an embedded model, which stays loaded on each node."""
        models = [one for one in self._measurement.models if one.provider == "local"]
        return self._parts(models, _LOCAL_CLAIMS)

    def _parts(self, models: Sequence[ModelId], sizes: range) -> Iterator[Part]:
        whole = self._measurement
        fair = math.ceil(len(whole.claims) / (_PARTS_PER_CPU * self._cpus))
        size = min(max(fair, sizes[0]), sizes[-1])
        for begin in range(0, len(whole.claims), size):
            claims = whole.claims[begin : begin + size]
            texts = {claim.text for claim in claims}
            for model in models:
                if model in self._failed:
                    continue
                part = replace(
                    whole,
                    claims=claims,
                    models=(model,),
                    bundles={key: b for key, b in whole.bundles.items() if key[0] in texts},
                    variants=tuple(one for one in whole.variants if one[0].text in texts),
                    siblings=tuple(one for one in whole.siblings if one[0].text in texts),
                    other_bundles=(),
                    negation=whole.negation if begin == 0 else None,
                )
                runner = self._runner
                yield Part(
                    measurement=part, caps=runner.caps, retry=runner.retry, prices=self._prices
                )

    async def watch(self, placement: Placement) -> None:
        """Wait for all parts. When the run is asked to stop, they let their calls come home."""
        told = False
        try:
            while (step := await run_in_thread(placement.step, _STEP_S)) is not None:
                await self._take(step.ended, step.told, placement.width)
                if self._runner.stopped and not told:
                    told = True
                    placement.stop()
        except asyncio.CancelledError:
            placement.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DROP_S):
                    while (step := await run_in_thread(placement.step, _STEP_S)) is not None:
                        await self._take(step.ended, step.told, placement.width)
            raise
        if self._runner.stopped:
            self.reason = make_stopped_error()
        if spooled := sum(counts.spooled for counts in self._told.values()):
            self._runner.tell(
                f"{spooled:,} answers are kept on nodes, since the store couldn't take them; the "
                "next part that one of those measures brings them in"
            )

    async def _take(
        self, ended: Sequence[Ended], told: Mapping[tuple[int, str], Any], nodes: int
    ) -> None:
        for (number, attempt), (model, counts) in told.items():
            self._note(number, attempt, model, counts)
        for one in ended:
            if one.error is not None:
                raise one.error
            model, outcome = one.result
            self._note(one.number, one.attempt, model, outcome.counts)
            self._over.add(one.number)
            if outcome.error is not None:
                self.reason = self.reason or outcome.error
                if not isinstance(outcome.error, BatchPendingError | StoppedError):
                    # As in one process: the next call would fail alike, and other models go on.
                    self._failed[model] = outcome.error
            for name in outcome.executions:
                self._runner.observer.on_finished(await run_in_thread(self._record, name))
        self._tell(nodes)

    def _record(self, name: str) -> RunRecord:
        from heretix.measurement.record import RunRecord

        return RunRecord.model_validate_json(self._store.read(find_record, name).record_json)

    def _note(self, number: int, attempt: str, model: ModelId, counts: Counts) -> None:
        late = self._latest.get(number) != attempt and (number, attempt) in self._told
        if late or number in self._over:
            return
        self._latest[number], self._models[number] = attempt, model
        self._told[number, attempt] = counts

    def _tell(self, nodes: int) -> None:
        """Tell the runner and its observer how far all parts are together."""
        latest = [counts for (n, a), counts in self._told.items() if self._latest[n] == a]
        names = [field.name for field in fields(Counts) if field.name != "doing"]
        sums = {name: sum(getattr(one, name) for one in latest) for name in names}
        for name in _ACCOUNT:
            sums[name] = sum(getattr(one, name) for one in self._told.values())
        tokens: dict[ModelId, tuple[int, int]] = {}
        for (number, _), counts in self._told.items():
            read, written = tokens.get(self._models[number], (0, 0))
            both = read + counts.tokens_in, written + counts.tokens_out
            tokens[self._models[number]] = both
        self._runner.elsewhere = sums["in_flight"], sums["window"]
        self._runner.spending.take_remote_counts(
            tokens,
            calls=sums["calls"],
            untold=sums["untold"] > 0,
            cut_off=sums["cut_off"],
            presumed_micros=sums["presumed_micros"],
        )
        doing = f"measuring on {nodes} node{'' if nodes == 1 else 's'}"
        self._runner.observer.on_heard(Counts(**sums, doing=doing))


# What a cluster lacks, node by node.


def examine_cluster(settings: Settings, on: str) -> list[Check]:
    """Look at a cluster: reachable, the same versions everywhere, one store for all nodes."""
    try:
        from heretix.cluster import engine

        with engine.connected(on) as cluster:
            here = engine.versions()
            db = settings.db if "://" in settings.db else str(Path(settings.db).resolve())
            found = cluster.survey(f"{__name__}:examine_node", db, timeout_s=_SURVEY_S)
    except HeretixError as exc:
        return [Check("cluster", State.BAD, str(exc))]
    cpus = sum(node.cpus for node, _, _ in found)
    nodes = f"{len(found)} node{'' if len(found) == 1 else 's'}, {cpus:g} processors"
    checks = [Check("cluster", State.OK, f"{on}: {nodes}; here {_name_versions(here)}")]
    if "://" not in settings.db and len(found) > 1:
        file = f"{settings.db} is a file of one machine, and there are {len(found)} nodes"
        remedy = "share a PostgreSQL: HERETIX_DB=postgresql+psycopg://…, or --db"
        checks.append(Check("cluster store", State.BAD, file, remedy))
    for node, told, lost in found:
        checks.append(_judge_node(f"node {node.name}", here, told, lost))
    return checks


def _judge_node(name: str, here: Mapping[str, str], told: Any, lost: str | None) -> Check:
    if lost is not None:
        return Check(name, State.BAD, lost, "see the node's logs; `pip list` there has heretix?")
    versions, trouble, is_set = told
    differing = [part for part, version in here.items() if versions[part] != version]
    if differing:
        remedy = f"install the same {' and '.join(differing)} on all nodes and here"
        return Check(name, State.BAD, _name_versions(versions), remedy)
    if trouble is not None:
        remedy = "the address must reach the store from every node, not only from here"
        return Check(name, State.BAD, f"no store: {trouble}", remedy)
    keys = f"keys: {', '.join(is_set)}" if is_set else "no key is set"
    return Check(name, State.OK, f"the same versions, reaches the store; {keys}")


def _name_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


# What runs on a node.


def examine_node(db: str) -> tuple[dict[str, str], str | None, list[str]]:
    """Look around on a node: versions, what keeps it from the store, and which keys it has."""
    from heretix.cluster.engine import versions

    trouble = None
    try:
        with Store.open(db, create=False) as store:
            store.write(release_all_leases, "doctor")
    except RecordError:
        trouble = None if "://" not in db else f"{db.partition('@')[2]} holds nothing yet"
    except HeretixError as exc:
        trouble = str(exc)
    variables = {endpoint.key_variable for endpoint in endpoints().values()} - {None}
    env = Settings.from_env().env
    return versions(), trouble, sorted(str(name) for name in variables if env.get(str(name)))


_homes: Final[dict[ModelId, tuple[SharedModels, Any]]] = {}
"""Embedded models that this process has loaded, each with one user too many: it stays."""


async def measure_part(part: Part, tell: Callable[[Any], bool]) -> tuple[ModelId, Outcome]:
    """Measure a part, and tell how it goes; what keeps it from its end is in the outcome."""
    planned = part.measurement.attempts
    tally = Tally(planned, lambda _: None, math.inf)
    results = Results(tally)
    error: HeretixError | None = None
    try:
        with contextlib.ExitStack() as stack:
            measurement = _localise(part, stack)
            store = stack.enter_context(Store.open(measurement.settings.db))
            runner = measurement.runner(store, observer=results, retry=part.retry, caps=part.caps)
            tally.runner = runner
            measuring = asyncio.create_task(
                measurement.run(store, runner=runner, opener=_models(measurement).open)
            )
            told = lambda: tell((part.model, _counts(tally, planned)))  # noqa: E731
            await _supervise(measuring, runner, told)
    except HeretixError as exc:
        error = exc
    counts = replace(_counts(tally, planned), in_flight=0, window=0)
    return part.model, Outcome(tuple(results.executions.values()), counts, error)


def _counts(tally: Tally, planned: int) -> Counts:
    told = tally.as_dict()
    same = ("done", "cached", "failed", "in_flight", "window")
    counts: dict[str, Any] = {name: told[name] for name in same}
    if tally.runner is not None:
        spending = tally.runner.spending
        counts |= spending.totals | {
            "more": tally.total - planned,
            "cut_off": spending.cut_off,
            "presumed_micros": spending.presumed_micros,
            "untold": int(spending.spent_usd is None),
            "spooled": tally.runner.spooled,
        }
    return Counts(**counts)


async def _supervise(
    measuring: asyncio.Task[None], runner: Runner, told_to_stop: Callable[[], bool]
) -> None:
    """Tell now and then how a part goes, and have it stop when that is wanted."""
    while not measuring.done():
        await asyncio.wait({measuring}, timeout=_TELL_S)
        if await run_in_thread(told_to_stop) and not runner.stopped:
            runner.stop()
    await measuring


def _localise(part: Part, stack: contextlib.ExitStack) -> Measurement:
    """The measurement, with the keys and models of this machine."""
    if part.version != VERSION:
        raise ConfigError(
            f"`heretix` is {VERSION} on a node and {part.version} where the run was started; "
            "install the same everywhere (`heretix doctor --on` compares)"
        )
    asked, here = part.measurement.settings, Settings.from_env()
    env = {name: value for name, value in here.env.items() if name != "HERETIX_BUDGET_USD"}
    settings = replace(asked, env=env, models_dir=here.models_dir)
    if part.prices is not None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = replace(settings, prices_file=folder / "prices.yaml")
        (folder / "prices.yaml").write_text(part.prices, encoding="utf-8")
    model = part.model
    if model.provider == "local":
        there = model.file is not None and Path(model.file).is_file()
        found = resolve_model(f"local:{model.file if there else model.name}", settings)
        if found != model:
            raise ModelError(f"`{model}` is another file on a node ({found}); copy it there")
        model = found
    return replace(part.measurement, settings=settings, models=(model,))


def _models(measurement: Measurement) -> SharedModels:
    model = measurement.models[0]
    if model.provider != "local":
        return SharedModels()
    if model not in _homes:
        shared = SharedModels()
        kept = shared.open(model, measurement.settings, options=measurement.config.options)
        _homes[model] = shared, kept
    return _homes[model][0]
