"""Jobs: planned, submitted within quotas, watched, cancelled, resumed. Workers do the rest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from heretix.accounts import LOCAL, Person, Role
from heretix.accounts.audit import note
from heretix.accounts.limits import check_key
from heretix.config import Claim
from heretix.core.clock import utc_text
from heretix.core.errors import (
    ConfigError,
    ConflictError,
    InsufficientEvidenceError,
    MissingKeyError,
    QuotaError,
    RecordError,
    StoreError,
)
from heretix.evidence.bundle import load_bundle
from heretix.evidence.sources.extract import clean_text, make_document, read_stated_fields
from heretix.jobs.job import EpisodeRequest, Job, JobRun, JobState, Progress
from heretix.providers.catalog import open_provider, require_key
from heretix.store import jobs as rows
from heretix.store.accounts import select_person
from heretix.store.bundles import find_bundle
from heretix.store.runs import find_record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from heretix.core.settings import Settings
    from heretix.evidence.bundle import Bundle, Shortfall
    from heretix.evidence.document import Document
    from heretix.jobs.job import MeasureRequest, Request
    from heretix.measurement.gather import Bundles
    from heretix.measurement.record import Artifact
    from heretix.measurement.service import Measurement
    from heretix.plan import Estimate
    from heretix.providers.catalog import ModelId
    from heretix.store import Store

_log: Final = logging.getLogger(__name__)

# From a request to the measurement that it asks for, with its evidence. What measures is imported
# where it is asked: pages that only look at jobs shouldn't wait for it.
#
# What a lens shows is gathered once a job and kept: a worker that takes over shows the same
# documents, so nothing that was answered is asked again.


def make_measurement(
    request: MeasureRequest, settings: Settings, *, budget_usd: float | None, calls: bool = True
) -> Measurement:
    """The measurement that a request stands for, without its evidence yet."""
    from heretix.measurement.service import prepare

    config = request.config(settings, budget_usd=budget_usd)
    measurement = prepare(config, settings, claims=request.claims, calls=calls)
    negation = Claim(request.negation) if request.negation is not None else None
    return replace(measurement, negation=negation)


def add_experiments(measurement: Measurement, request: MeasureRequest) -> Measurement:
    """Add the experiments that a request wants on the evidence of its measurement."""
    from heretix.measurement.experiments import Experiments, plan_experiments

    experiments = Experiments(
        **{name: getattr(request, name) for name in ("influence", "canary", "swap", "sham")}
    )
    return plan_experiments(measurement, experiments)


def gather(measurement: Measurement, request: MeasureRequest, *, stamp: str) -> Measurement:
    """Gather what the lenses show. Takes a while: call it from a thread that has no event loop."""
    from heretix.measurement.service import gather_evidence

    documents: dict[str, Document] = {}
    for given in request.documents:
        text = clean_text(given.text)
        found = read_stated_fields(given.model_dump(mode="json"), text=text)
        made = make_document(found, raw=text.encode(), url=given.url, retrieved_at=stamp)
        documents.setdefault(made.doc_id, made)
    gathering = gather_evidence(measurement, documents=list(documents.values()))
    return asyncio.run(gathering)


def name_bundles(bundles: Bundles) -> str:
    """Bundles that the lenses of a job show, as it remembers them."""
    named = []
    for (claim, lens), found in bundles.items():
        lacking, bundle = None, found
        if isinstance(found, InsufficientEvidenceError):
            lacking, bundle = str(found), found.bundle
        bundle_id = getattr(bundle, "bundle_id", None)
        named.append({"claim": claim, "lens": lens, "bundle_id": bundle_id, "lacking": lacking})
    return json.dumps(named, ensure_ascii=False)


def load_bundles(store: Store, bundles_json: str) -> Bundles:
    """Read what the lenses of a job show, as it was kept."""
    bundles: Bundles = {}
    for entry in json.loads(bundles_json):
        bundle_id, lacking = entry["bundle_id"], entry["lacking"]
        bundle = load_bundle(store.read(find_bundle, bundle_id)) if bundle_id is not None else None
        found: Bundle | InsufficientEvidenceError | None = bundle
        if lacking is not None:
            found = InsufficientEvidenceError(lacking, bundle=bundle)
        assert found is not None, "a bundle, or why there is none"
        bundles[entry["claim"], entry["lens"]] = found
    return bundles


# What a request will take, told before anything is called: questions, calls, cost and time.

_AT_A_TIME: Final = 8
"""Calls in flight that a plan reckons with. Many providers allow more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingEvidence:
    """A claim and a lens that can't be measured: there is too little evidence."""

    claim: str
    shortfall: Shortfall


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """Plan of a job."""

    estimate: Estimate
    duration_s: float | None
    duration_basis: str
    plans: tuple[dict[str, Any], ...]
    """The first plan of each model and lens, as JSON, with the full text of what is asked."""
    models: tuple[str, ...]
    demonstration: tuple[str, ...]
    """Models among them whose numbers aren't beliefs worth quoting."""
    unsent: tuple[str, ...]
    """Options that a model doesn't accept, and that aren't sent, each in a sentence."""
    lacking: tuple[MissingEvidence, ...]
    missing_keys: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings of what won't be as asked, in sentences."""
        told = (f"{found.claim[:60]}: {found.shortfall}" for found in self.lacking)
        return (*self.unsent, *told)

    def as_dict(self) -> dict[str, Any]:
        lacking = tuple(
            {"claim": f.claim, "shortfall": f.shortfall.to_json() | {"remedy": f.shortfall.remedy}}
            for f in self.lacking
        )
        return asdict(self) | {"notes": self.notes, "lacking": lacking}


def plan_request(
    request: MeasureRequest, store: Store, settings: Settings, *, calls: bool, keys: bool = False
) -> JobPlan:
    """Plan without calling a model. Call it from a thread that has no event loop.

    With `keys`, those that are missing here are told: whoever measures needs them.
    """
    from heretix.measurement.service import plan_content

    measurement = make_measurement(request, settings, budget_usd=request.budget_usd, calls=calls)
    measurement = gather(measurement, request, stamp=utc_text(time.time()))
    measurement = add_experiments(measurement, request)
    estimate = measurement.estimate(store)
    first: dict[str, Claim] = {}
    for claim, lens in measurement.pairs():
        first.setdefault(lens, claim)
    duration_s, basis = _estimate_duration(measurement, estimate, store)
    return JobPlan(
        estimate=estimate,
        duration_s=duration_s,
        duration_basis=basis,
        plans=tuple(
            {"lens": lens, **plan_content(measurement.plan(claim, model, lens))}
            for model in measurement.models
            for lens, claim in first.items()
        ),
        models=tuple(model.identity for model in measurement.models),
        demonstration=tuple(
            m.identity for m in measurement.models if m.is_demonstration or m.is_made_up
        ),
        unsent=tuple(
            f"{model} doesn't accept `{name}`; it isn't sent"
            for model in measurement.models
            for name in measurement.list_ignored_options(model)
        ),
        lacking=tuple(
            MissingEvidence(claim=claim, shortfall=found.bundle.shortfall)
            for (claim, _), found in measurement.bundles.items()
            if isinstance(found, InsufficientEvidenceError)
        ),
        missing_keys=tuple(_find_missing_keys(measurement)) if keys else (),
    )


def _find_missing_keys(measurement: Measurement) -> Iterator[str]:
    for model in measurement.models:
        try:
            require_key(model, measurement.settings)
        except MissingKeyError:
            yield (
                f"`{model}` needs a key: set {model.endpoint.key_variable} where this server runs "
                "and start it again, or choose a model that needs none"
            )


def _estimate_duration(
    measurement: Measurement, estimate: Estimate, store: Store
) -> tuple[float | None, str]:
    """Models are asked side by side: the slowest decides."""
    if not estimate.to_call:
        return 0.0, "everything is stored already"
    calls = estimate.to_call / len(measurement.models)
    longest, basis = 0.0, ""
    for model in measurement.models:
        latency_ms = store.read(rows.select_mean_latency_ms, model.identity)
        if latency_ms is None:
            return None, f"{model} hasn't been asked here yet, so its speed isn't known"
        at_a_time = _AT_A_TIME
        if model.endpoint.in_process:
            provider = open_provider(model, measurement.settings)
            at_a_time = min(_AT_A_TIME, provider.max_concurrency)
        needed = calls * latency_ms / 1000 / at_a_time
        if needed >= longest:
            longest = needed
            basis = f"{at_a_time} calls at a time, {latency_ms:,.0f} ms each as in its latest runs"
    return longest, basis


# Jobs: submitted within quotas, looked at, cancelled, resumed. Workers do the rest.

_MOST: Final = 500
_MOST_USD: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Use of a person's quotas. Jobs under way count with all they may spend."""

    jobs_today: int
    active_jobs: int
    usd_micros_today: int


class Jobs:
    """The jobs of one store.

    With `check_keys=False`, keys and corpora are expected where the workers are, and not here.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        check_keys: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._settings = store, settings
        self._check_keys, self._clock = check_keys, clock

    def plan(self, request: MeasureRequest) -> JobPlan:
        """Estimate what a request will take. Call it from a thread that has no event loop."""
        return plan_request(
            request, self._store, self._settings, calls=False, keys=self._check_keys
        )

    def submit(
        self, owner: Person, request: Request, *, key: str | None = None, address: str | None = None
    ) -> Job:
        """Queue a request. The same key and request again give the same job.

        Whoever has a daily limit and names no budget sets aside all that is left of the day.
        Episodes are for operators, and are moved by one job at a time; whether the rules allow
        the move is for the caller to ask first, and for the worker to find out.
        """
        owner.require(_role_for(request))
        if key is not None:
            check_key(key)
        models = self._check_models(request)
        self._check_allowed(owner, models)
        wanted = None if isinstance(request, EpisodeRequest) else _micros(request.budget_usd)
        with self._store.writing() as connection:
            owner = _reload(connection, owner, _role_for(request))
            _lock_episode(connection, request)
            known = rows.select_job_by_key(connection, owner.id, key) if key is not None else None
            if known is not None:
                return _require_same(known, request)
            _require_free(connection, request)
            row = self._row(owner, request, key)
            row["budget_micros"] = self._budget(connection, owner, row["day"], wanted, models)
            if not rows.insert_job(connection, row):
                # Only whoever has no account, and no row to wait for, can be overtaken here.
                assert key is not None
                found = rows.select_job_by_key(connection, owner.id, key)
                assert found is not None
                return _require_same(found, request)
            now = self._clock()
            note(connection, now, "job.submit", by=owner, subject=row["job_id"], address=address)
            if isinstance(request, EpisodeRequest):
                what = "episode.draft" if request.move == "draft" else "episode.measure"
                note(connection, now, what, by=owner, subject=request.episode, address=address)
        return Job.of(row)

    def find_by_key(self, owner: Person, key: str) -> Job | None:
        """The job that an owner submitted under a key."""
        row = self._store.read(rows.select_job_by_key, owner.id, key)
        return None if row is None else Job.of(row)

    def find_moving(self, episode_id: str) -> Job | None:
        """The job that moves an episode on, if one is under way."""
        row = self._store.read(rows.select_job_of_episode, episode_id)
        return None if row is None else Job.of(row)

    def get(self, job_id: str, *, by: Person) -> Job:
        """A job of one's own; operators see all."""
        return Job.of(self._store.read(_select_visible, job_id, by))

    def cancel(self, job_id: str, *, by: Person, address: str | None = None) -> Job:
        """Stop a job: at once while it waits, within a second while it runs."""
        now = self._clock()
        with self._store.writing() as connection:
            row = _select_visible(connection, job_id, by, lock=True)
            state = JobState(row["state"])
            if state.ended:
                raise ConflictError(f"`{job_id}` is {state.value} already; nothing is left to stop")
            values: dict[str, Any] = {"cancel_requested": True, "updated_at": utc_text(now)}
            if state is JobState.QUEUED:
                values |= {"cancel_requested": False, "finished_at": utc_text(now)}
                values["state"] = JobState.CANCELLED.value
            rows.update_job(connection, job_id, values)
            note(connection, now, "job.cancel", by=by, subject=job_id, address=address)
            return Job.of(_select_visible(connection, job_id, by))

    def resume(
        self,
        job_id: str,
        *,
        by: Person,
        budget_usd: float | None = None,
        address: str | None = None,
    ) -> Job:
        """Go on with a job that failed or was cancelled: only what is missing is asked for."""
        request = self.get(job_id, by=by).request
        by.require(_role_for(request))
        now = self._clock()
        models = self._check_models(request)
        with self._store.writing() as connection:
            row = _select_visible(connection, job_id, by)
            # The person first, then the job, as `submit` does: no two wait for each other.
            # A job counts against its owner's quotas, whoever resumes it.
            if row["owner_id"] == by.id:
                owner = _reload(connection, by, _role_for(request))
            else:
                found = select_person(connection, row["owner_id"], lock=True)
                owner = LOCAL if found is None else Person.of(found)
            row = _select_visible(connection, job_id, by, lock=True)
            state = JobState(row["state"])
            if state not in {JobState.FAILED, JobState.CANCELLED}:
                raise ConflictError(f"`{job_id}` is {state.value}; there is nothing to resume")
            _lock_episode(connection, request)
            _require_free(connection, request)
            # All that it has cost counts again, on this day: rather too much than too little.
            day = utc_text(now)[:10]
            values = {
                "state": JobState.QUEUED.value,
                "cancel_requested": False,
                "budget_micros": self._budget(
                    connection, owner, day, _choose_budget(row, budget_usd), models, job_id
                ),
                "day": day,
                "losses": 0,
                "error": None,
                "error_kind": None,
                "finished_at": None,
                "progress_json": Progress().as_json(),
                "updated_at": utc_text(now),
            }
            rows.update_job(connection, job_id, values)
            note(connection, now, "job.resume", by=by, subject=job_id, address=address)
            return Job.of(_select_visible(connection, job_id, by))

    def delete(self, job_id: str, *, by: Person, address: str | None = None) -> None:
        """Forget a job that has ended. What it measured stays, and so does what it cost today."""
        now = self._clock()
        with self._store.writing() as connection:
            row = _select_visible(connection, job_id, by, lock=True)
            if not JobState(row["state"]).ended:
                raise ConflictError(f"`{job_id}` is {row['state']}; cancel it first")
            if row["day"] == utc_text(now)[:10] and by.role < Role.OPERATOR:
                raise ConflictError(
                    f"`{job_id}` counts against today's quotas; it can be deleted tomorrow"
                )
            rows.delete_job(connection, job_id)
            note(connection, now, "job.delete", by=by, subject=job_id, address=address)

    def usage(self, person: Person) -> Usage:
        """Use of a person's quotas today."""
        found = self._store.read(rows.count_use, person.id, utc_text(self._clock())[:10])
        return Usage(jobs_today=found[0], active_jobs=found[1], usd_micros_today=found[2])

    def runs(self, job_id: str, *, by: Person) -> list[JobRun]:
        """Records of a job so far: of each claim, model and lens the last."""
        with self._store.reading() as connection:
            _select_visible(connection, job_id, by)
            found = [JobRun.of(row) for row in rows.select_job_runs(connection, job_id)]
        return list({(r.claim, r.model, r.lens, r.variant): r for r in found}.values())

    def artifacts(self, job_id: str, *, by: Person) -> Iterator[Artifact]:
        """The artifacts of what a job has measured so far, one a claim."""
        from heretix.measurement.record import RunRecord
        from heretix.measurement.service import assemble

        row = self._store.read(_select_visible, job_id, by)
        request = Job.of(row).request
        if isinstance(request, EpisodeRequest):
            # The episode's own record has what was measured for it.
            return
        measurement = make_measurement(request, self._settings, budget_usd=None, calls=False)
        bundles = load_bundles(self._store, row["bundles_json"]) if row["bundles_json"] else {}
        measurement = add_experiments(replace(measurement, bundles=bundles), request)
        by_claim: dict[str, list[str]] = {}
        for run in self.runs(job_id, by=by):
            of = request.claims[0] if run.claim == request.negation else run.claim
            by_claim.setdefault(of, []).append(run.execution_id)
        for claim in measurement.claims:
            if executions := by_claim.get(claim.text):
                stored = (self._store.read(find_record, name) for name in executions)
                records = [RunRecord.model_validate_json(one.record_json) for one in stored]
                yield assemble(measurement, claim, records)

    def list(
        self,
        *,
        by: Person,
        owner: str | None = None,
        state: JobState | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[Job]:
        """One's own jobs, the newest first; operators see all, or those of the id `owner`."""
        if by.role < Role.OPERATOR:
            owner = by.id
        found = self._store.read(
            rows.select_jobs,
            owner_id=owner,
            state=state.value if state else None,
            limit=max(1, min(limit, _MOST)),
            before=before,
        )
        return [Job.of(row) for row in found]

    def _check_models(self, request: Request) -> tuple[ModelId, ...]:
        """The models that will be asked; what can't work is refused at once."""
        if isinstance(request, EpisodeRequest):
            from heretix.providers.catalog import resolve_model

            return tuple(resolve_model(name, self._settings) for name in request.models)
        # Imported as needed, here and above: a server answers before anybody submits.
        from heretix.evidence.demo import DEMO_CORPUS
        from heretix.evidence.sources.corpus import corpus_path
        from heretix.measurement.gather import corpora_folder
        from heretix.providers.catalog import Spending, load_prices

        budget_usd, settings = request.budget_usd, self._settings
        measurement = make_measurement(
            request, settings, budget_usd=budget_usd, calls=self._check_keys
        )
        # It refuses a budget that can't be kept, since a price isn't known.
        Spending(load_prices(settings), measurement.models, budget_usd=budget_usd)
        corpus = request.corpus
        if self._check_keys and request.shows_evidence and corpus not in {None, DEMO_CORPUS}:
            assert corpus is not None
            if not corpus_path(corpora_folder(settings), corpus).exists():
                raise ConfigError(f"`corpus` {corpus!r} doesn't exist here; leave it out, or ask")
        return measurement.models

    def _row(self, owner: Person, request: Request, key: str | None) -> dict[str, Any]:
        stamp = utc_text(self._clock())
        missing = ("budget_micros", "error", "error_kind", "started_at", "finished_at")
        return dict.fromkeys(missing) | {
            "job_id": f"job-{uuid.uuid4()}",
            "owner_id": owner.id,
            "owner_name": owner.name,
            "key": key,
            "request_json": request.canonical,
            "state": JobState.QUEUED.value,
            "cancel_requested": False,
            "revision": 1,
            "progress_json": Progress().as_json(),
            "spent_micros": 0,
            "day": stamp[:10],
            "attempt": 0,
            "losses": 0,
            "created_at": stamp,
            "updated_at": stamp,
        }

    def _budget(
        self,
        connection: Connection,
        owner: Person,
        day: str,
        wanted: int | None,
        models: Sequence[ModelId],
        job_id: str | None = None,
    ) -> int | None:
        """Budget of a job, if its owner's quotas let it run at all."""
        jobs_today, active, micros = rows.count_use(connection, owner.id, day, without=job_id)
        quotas = owner.quotas
        if quotas.jobs_per_day is not None and jobs_today >= quotas.jobs_per_day:
            raise QuotaError(
                f"`{owner.name}` may submit {quotas.jobs_per_day:,} jobs a day (UTC), and did; "
                "wait for tomorrow, or ask an operator for more"
            )
        if quotas.running_jobs is not None and active >= quotas.running_jobs:
            raise QuotaError(
                f"`{owner.name}` may have {quotas.running_jobs:,} jobs at a time, and has; "
                "wait for one to end, or cancel one"
            )
        limit = quotas.usd_micros_per_day
        if limit is None or not self._is_billed(models, owner):
            return wanted
        left = max(0, limit - micros)
        if left == 0 or (wanted is not None and wanted > left):
            raise QuotaError(
                f"`{owner.name}` may spend {_dollars(limit)} a day (UTC), and {_dollars(left)} "
                "of it is left; give a `budget_usd` within that, or ask an operator for more"
            )
        return left if wanted is None else wanted

    def _check_allowed(self, owner: Person, models: Sequence[ModelId]) -> None:
        """Refuse providers that the operator keeps from explorers."""
        allowed = self._settings.explorer_providers
        if allowed is None or owner.role >= Role.OPERATOR:
            return
        refused = [model for model in models if model.provider not in allowed]
        if refused:
            raise QuotaError(
                f"`{refused[0]}` isn't for explorers here: they may use the providers "
                f"{', '.join(allowed) or 'of none'}; choose another model, or ask an operator"
            )

    def find_queue_place(self, job: Job) -> int:
        """Count the jobs that wait longer than this one, and it."""
        return self._store.read(rows.count_waiting, job.created_at) + 1

    def _is_billed(self, models: Sequence[ModelId], owner: Person) -> bool:
        """Tell whether asking models costs money; refused when nobody can tell how much."""
        from heretix.providers.catalog import load_prices

        prices = load_prices(self._settings)
        found = {model: prices.find(model) for model in models}
        unknown = [model for model, price in found.items() if price is None]
        if unknown:
            raise QuotaError(
                f"`{owner.name}` has a daily limit, which can't be kept with {unknown[0]}: "
                "its price isn't known"
            )
        return not all(price is not None and price.is_free for price in found.values())


def _role_for(request: Request) -> Role:
    return Role.OPERATOR if isinstance(request, EpisodeRequest) else Role.EXPLORER


def _lock_episode(connection: Connection, request: Request) -> None:
    """Keep others from beginning to move the same episode."""
    if isinstance(request, EpisodeRequest) and request.episode is not None:
        rows.lock_episode(connection, request.episode)


def _require_free(connection: Connection, request: Request) -> None:
    """Refuse to move an episode that another job has in hand."""
    if not isinstance(request, EpisodeRequest) or request.episode is None:
        return
    row = rows.select_job_of_episode(connection, request.episode)
    if row is not None:
        job = Job.of(row)
        raise ConflictError(
            f"`{request.episode}` is in the hands of the job `{job.id}` ({job.state.value}: "
            f"{job.title}); wait for its end or cancel it, then look at the episode"
        )


def _choose_budget(row: dict[str, Any], budget_usd: float | None) -> int | None:
    """The budget of a job that is resumed; the old one will do while something is left of it."""
    budget: int | None = row["budget_micros"] if budget_usd is None else _micros(budget_usd)
    spent: int | None = row["spent_micros"]
    # It stops before a call that may cost more than is left.
    stopped = row["error_kind"] == "BudgetReachedError" and budget == row["budget_micros"]
    if budget is not None and (stopped or spent is None or spent >= budget):
        raise QuotaError(
            f"`{row['job_id']}` has used up its budget of {_dollars(budget)}; "
            "give a larger `budget_usd`"
        )
    return budget


def _reload(connection: Connection, person: Person, role: Role) -> Person:
    """The person as the store has them now; nobody else submits for them in the meantime."""
    if person.is_local:
        return person
    row = select_person(connection, person.id, lock=True)
    if row is None:
        raise RecordError(f"`{person.name}` has no account any more")
    current = Person.of(row)
    current.require(role)
    return current


def _select_visible(
    connection: Connection, job_id: str, by: Person, *, lock: bool = False
) -> dict[str, Any]:
    """Read a job that `by` may see; that of somebody else looks as if it didn't exist."""
    row = rows.select_job(connection, job_id, lock=lock)
    if row is None or (row["owner_id"] != by.id and by.role < Role.OPERATOR):
        raise RecordError(f"`{job_id[:60]}` names no job of yours; `heretix jobs list` shows them")
    return row


def _require_same(row: dict[str, Any], request: Request) -> Job:
    """The job that was submitted before, if it is the same request."""
    if row["request_json"] != request.canonical:
        raise ConflictError(
            f"`{row['key']}` was used for another request; choose a new key for a new one"
        )
    return Job.of(row)


def _micros(usd: float | None) -> int | None:
    if usd is None:
        return None
    if not 0 < usd <= _MOST_USD:
        raise ConfigError(f"`budget_usd` must be more than 0 and at most {_MOST_USD:,}, got {usd}")
    return max(1, round(usd * 1e6))


def _dollars(micros: int) -> str:
    return f"${micros / 1e6:,.2f}" if micros >= 10_000 else f"${micros / 1e6:,.6f}"


# The feed: how jobs are doing, as it happens, for any number of watchers. One reader a process
# asks the store about all watched jobs at once; a watcher costs no query. A watcher that is slow
# misses steps in between, never the end.

POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """A change of a job."""

    job_id: str
    seq: int
    """Grows; whoever has seen up to here asks for what comes after."""
    state: JobState
    progress: Progress
    error: str | None

    @property
    def ended(self) -> bool:
        """Tell whether nothing will come after it."""
        return self.state.ended

    def as_dict(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "seq": self.seq,
            "state": self.state.value,
            "ended": self.ended,
            "progress": self.progress.as_dict(),
            "error": self.error,
        }


@dataclass(slots=True, eq=False)
class _Watcher:
    """Subscriber to the events of one job. Only the newest is kept."""

    news: JobEvent | None = None
    gone: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, event: JobEvent | None) -> None:
        # The last news stay: somebody who hasn't seen them yet still does, and then it is over.
        self.news, self.gone = event or self.news, event is None
        self.ready.set()


class Feed:
    """News of jobs, within one event loop. Who may see a job is for the caller to know."""

    def __init__(self, store: Store, *, poll_s: float = POLL_S) -> None:
        self._store = store
        self._poll_s = poll_s
        self._watchers: defaultdict[str, set[_Watcher]] = defaultdict(set)
        self._known: dict[str, JobEvent] = {}
        self._more = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def follow(self, job_id: str, *, after: int = 0) -> AsyncGenerator[JobEvent, None]:
        """News after `after`, the present state first, until the job ends or is deleted."""
        watcher = _Watcher()
        if job_id in self._known:
            watcher.tell(self._known[job_id])
        self._watchers[job_id].add(watcher)
        self._more.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            while True:
                await watcher.ready.wait()
                watcher.ready.clear()
                event = watcher.news
                if event is not None and event.seq > after:
                    after = event.seq
                    yield event
                # More may have come while the reader of this stream was busy.
                if (watcher.gone and watcher.news is event) or (event and event.ended):
                    return
        finally:
            self._watchers[job_id].discard(watcher)
            if not self._watchers[job_id]:
                del self._watchers[job_id]
                self._known.pop(job_id, None)

    async def aclose(self) -> None:
        """End all streams."""
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.tell(None)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        """Ask the store, again and again, while anybody watches."""
        while self._watchers:
            self._more.clear()
            wanted = list(self._watchers)
            try:
                found = await asyncio.to_thread(self._store.read, rows.select_revisions, wanted)
            except StoreError as exc:
                # Watchers are told when it is back; a stream that breaks off only comes again.
                _log.warning("jobs couldn't be watched: %s", exc)
            else:
                watched = (row for row in found if row["job_id"] in self._watchers)
                events = {row["job_id"]: self._event(row) for row in watched}
                self._tell({job_id: events.get(job_id) for job_id in wanted})
            # Until it is time to ask again, or somebody wants to know of another job.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._more.wait()

    def _tell(self, events: dict[str, JobEvent | None]) -> None:
        for job_id, event in events.items():
            for watcher in self._watchers.get(job_id, ()):
                if watcher.news is not event or event is None:
                    watcher.tell(event)

    def _event(self, row: dict[str, Any]) -> JobEvent:
        """The event in a row; the one that is known already while nothing has changed."""
        known = self._known.get(row["job_id"])
        if known is not None and known.seq == row["revision"]:
            return known
        event = JobEvent(
            job_id=row["job_id"],
            seq=row["revision"],
            state=JobState(row["state"]),
            progress=Progress.of_json(row["progress_json"]),
            error=row["error"],
        )
        self._known[event.job_id] = event
        return event
