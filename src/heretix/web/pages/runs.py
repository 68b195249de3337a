"""A measured claim: belief, evidence, wordings, samples; and several runs side by side."""

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Role
from heretix.core.errors import NoEstimateError, RecordError
from heretix.core.lenses import LENSES, RPL
from heretix.measurement.record import SCHEMA, Artifact, RunRecord
from heretix.store import ExecutionSummary, RunSummary
from heretix.store.runs import (
    find_record,
    latest_finished,
    select_executions,
    select_latest_execution,
    select_runs,
    select_runs_of_claim,
)
from heretix.web.auth import require, require_role
from heretix.web.state import App, AppState, app_state
from heretix.web.templating import fragment, fresh, page

if TYPE_CHECKING:
    from heretix.measurement.verify import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """The surroundings of a run."""

    vector: tuple[RunSummary, ...]
    """The latest run of each lens, of the same model; the one in focus stands for its lens."""
    variants: tuple[RunSummary, ...]  # experiments on those lenses
    others: tuple[RunSummary, ...]  # the same claim in other models, and other recipes of this one

    @property
    def prior(self) -> float | None:
        """Find the raw prior, where it was measured."""
        return next((run.prob_true_rpl for run in self.vector if run.lens == RPL), None)

    @property
    def key(self) -> tuple[str, ...]:
        """Name what everything between the lenses follows from."""
        return tuple(run.execution_id for run in (*self.vector, *self.variants))


def claim_view(app: AppState, record: RunRecord) -> ClaimView:
    """Find everything measured of the claim of `record`, in one look-up."""
    found = app.store.read(select_runs_of_claim, record.claim)
    variant = record.evidence.variant if record.evidence else None
    latest: dict[str, RunSummary] = {}
    rest: list[RunSummary] = []
    # The run in focus is looked at first, then the others of its model, the latest first.
    for run in sorted(found, key=lambda run: run.run_id != record.run_id):
        mine = run.model == record.model and run.variant is None
        if mine and run.prob_true_rpl is not None and run.lens not in latest:
            latest[run.lens] = run
        elif run.variant is None and run.run_id != record.run_id:
            rest.append(run)
    # a variant belongs to the lens whose bundle it changed.
    bundles = {run.bundle_id for run in latest.values() if run.bundle_id}
    variants = [
        run
        for run in found
        if run.variant and run.model == record.model and run.bundle_id in bundles
    ]
    if variant is not None:
        rest = [run for run in rest if run.run_id != record.run_id]
    return ClaimView(
        vector=tuple(latest[lens] for lens in LENSES if lens in latest),
        variants=tuple(variants),
        others=tuple(rest),
    )


def vector_artifact(app: AppState, view: ClaimView) -> Artifact:
    """Join the lenses of a claim and what lies between them, as `heretix lens` would write it."""

    def join() -> Artifact:
        from heretix.measurement.vector import compare_variants, lens_record, metrics_by_model

        runs = [app.cache.record(run.execution_id) for run in (*view.vector, *view.variants)]
        plain, claim = runs[: len(view.vector)], runs[0].claim
        publishers = _publishers(app, plain)
        experiments = compare_variants(runs, claim) if view.variants else []
        return Artifact(
            schema=SCHEMA,
            runs=runs,
            lenses=[lens_record(run) for run in plain],
            metrics=metrics_by_model(runs, claim, publishers),
            experiments=experiments or None,
            bundles=[app.cache.bundle(bundle_id).to_json() for bundle_id in publishers] or None,
        )

    return app.cache.artifacts.get(view.key, join)


def _publishers(app: AppState, runs: Sequence[RunRecord]) -> dict[str, Mapping[str, int]]:
    """Count items by publisher, for the bundles that are stored."""
    counts: dict[str, Mapping[str, int]] = {}
    for bundle_id in (run.evidence.bundle_id for run in runs if run.evidence):
        # a record from elsewhere can name a bundle that isn't here; it counts no sources.
        with suppress(RecordError):
            if bundle_id is not None:
                counts[bundle_id] = app.cache.bundle(bundle_id).publishers
    return counts


router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])

_EXECUTION = re.compile(r"exec-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUN = re.compile(r"heretix-[a-z]+-[0-9a-f]{12}")
_MOMENT = 200_000  # characters of a record whose page takes a few milliseconds to make
_EXECUTIONS = 100  # of a run, the newest: more than its page shows, and read in a millisecond
_OF_RUN = {"bootstrap": "bootstrap_distribution", "forest": "template_forest"}
_OF_VECTOR = {  # Charts by their names in addresses: the functions that draw them
    "controls": "evidence_controls",
    "influence": "document_influence",
    "vector": "belief_vector",
}
_FOR_A_DAY = "private, max-age=86400"

Ref = Annotated[str, Path(max_length=120)]


async def run(request: Request) -> Response:
    """Show the page of a claim, with one run of it in focus. A plain route, for it is asked for
    most: what the framework does for other endpoints before it calls them would be some 7% of the
    time that this page takes."""
    await require_role(request, Role.READER)
    app, ref = app_state(request), request.path_params["ref"]
    if app.store.is_file:
        async with app.render_lock:
            if (answer := _light(request, ref)) is not None:
                return answer
    return await run_in_threadpool(_run, request, ref)


router.add_route("/runs/{ref}", run, methods=["GET"])


@router.get("/runs/{ref}/samples")
def samples(request: Request, app: App, ref: Ref) -> Response:
    """Show every attempt, with the answer as the model gave it."""
    execution_id, is_whole = _resolve(app, ref)
    if not is_whole:
        return RedirectResponse(f"/runs/{execution_id}/samples", 303)
    record = app.cache.record(execution_id)
    groups: dict[int, list[Any]] = {}
    for sample in record.samples:
        groups.setdefault(sample.paraphrase_idx, []).append(sample)
    return page(request, "samples.html", run=record, groups=sorted(groups.items()))


@router.get("/runs/{ref}/verification")
def verification(request: Request, app: App, ref: Ref) -> Response:
    """Derive everything in the record again, and say whether it agrees."""
    from heretix.measurement.verify import verify_run

    execution_id, is_whole = _resolve(app, ref)
    if not is_whole:
        return RedirectResponse(f"/runs/{execution_id}/verification", 303)
    record = app.cache.record(execution_id)
    # The stored text is verified as it stands; it can't change, so neither can the finding.
    found = app.cache.values.get(("verification", execution_id), lambda: verify_run(record))
    return page(request, "verification.html", run=record, found=found)


@router.get("/runs/{ref}/artifact.json")
def artifact(request: Request, app: App, ref: Ref) -> Response:
    """Send the artifact of the run, to keep and to verify elsewhere."""
    from heretix.measurement.record import artifact_json

    execution_id, _ = _resolve(app, ref)
    text = artifact_json(Artifact.of([app.cache.record(execution_id)]))
    response = fresh(request, text.encode("utf-8", "replace"), "application/json")
    response.headers["content-disposition"] = f'attachment; filename="{execution_id}.json"'
    return response


@router.get("/runs/{ref}/charts/{name}.json")
def chart(
    request: Request, app: App, ref: Ref, name: Annotated[str, Path(max_length=20)]
) -> Response:
    """Send a chart of the run, as the script that draws it reads it."""
    record = app.cache.record(_resolve(app, ref)[0])
    if name in _OF_RUN:
        if record.diagnostics is None:
            raise HTTPException(404, f"`{record.execution_id}` has no estimate to draw")
        key = ("chart", name, record.execution_id)
        return _send_chart(request, key, _FOR_A_DAY, lambda: (_OF_RUN[name], record))
    if name not in _OF_VECTOR:
        raise HTTPException(404, f"`{name}` isn't a chart of a run")
    view = claim_view(app, record)
    return _send_chart(
        request,
        ("chart", name, view.key),
        "private, no-cache",
        lambda: (_OF_VECTOR[name], vector_artifact(app, view), record.model),
    )


def _send_chart(
    request: Request, key: Hashable, cache_control: str, plan: Callable[[], tuple[Any, ...]]
) -> Response:
    """Send a chart from the cache; `plan` names the function that draws it, and of what."""

    def draw() -> bytes:
        from heretix.report import charts
        from heretix.web.templating import page_chart

        name, *given = plan()
        return page_chart(getattr(charts, name)(*given))

    content = app_state(request).cache.values.get(key, draw)
    assert isinstance(content, bytes)
    return fresh(request, content, "application/json", cache_control=cache_control)


def _light(request: Request, ref: str) -> Response | None:
    """Make the page, if it takes no more than a moment; None where others would have to wait."""
    app = app_state(request)
    with app.store.snapshot():
        executions = (
            app.store.read(select_executions, ref, limit=_EXECUTIONS) if _RUN.fullmatch(ref) else []
        )
        if len(executions) == _EXECUTIONS:
            # Which one finished last may stand behind these; to find it takes all of them.
            return None
        latest = latest_finished(executions)
        execution_id = latest.execution_id if latest else ref
        if not _EXECUTION.fullmatch(execution_id):
            return None
        record = app.cache.short_record(execution_id, _MOMENT)
        if record is None:
            return None
        view = claim_view(app, record)
        if len(view.vector) > 1 and ("between", view.key) not in app.cache.values:
            return None
        executions = executions or app.store.read(
            select_executions, record.run_id, limit=_EXECUTIONS
        )
    return _page(request, record, view, executions)


def _run(request: Request, ref: str) -> Response:
    app = app_state(request)
    with app.store.snapshot():
        execution_id, is_whole = _resolve(app, ref)
        if not is_whole:
            return RedirectResponse(f"/runs/{execution_id}", 303)
        record = app.cache.record(execution_id)
        view = claim_view(app, record)
        executions = app.store.read(select_executions, record.run_id, limit=_EXECUTIONS)
    return _page(request, record, view, executions)


def _page(
    request: Request, record: RunRecord, view: ClaimView, executions: Sequence[ExecutionSummary]
) -> Response:
    app = app_state(request)
    kept, between = app.cache.values, None
    if len(view.vector) > 1:
        between = kept.get(("between", view.key), lambda: _between(app, record, view))
    return page(
        request,
        "run.html",
        run=record,
        view=view,
        body=kept.get(("run", record.execution_id), lambda: _body(record)),
        between=between,
        executions=executions,
    )


def _resolve(app: AppState, ref: str) -> tuple[str, bool]:
    """Find the execution that `ref` means, and if `ref` is its whole id or that of its run."""
    if _EXECUTION.fullmatch(ref):
        return ref, True
    if _RUN.fullmatch(ref) and (latest := app.store.read(select_latest_execution, ref)) is not None:
        return latest, True
    return app.store.read(find_record, ref).execution_id, False


def _body(record: RunRecord) -> Markup:
    options = json.dumps(record.options.model_dump(exclude_none=True), ensure_ascii=False)
    return fragment("_run_body.html", run=record, charts=_charts_at(record), options=options)


def _between(app: AppState, record: RunRecord, view: ClaimView) -> Markup:
    artifact = vector_artifact(app, view)
    experiments = artifact.experiments or []
    left_out = [found.variant.startswith("without:") for found in experiments]
    wanted = {"influence": any(left_out), "controls": not all(left_out)}
    return fragment(
        "_between.html",
        metrics=(artifact.metrics or {}).get(record.model),
        experiments=experiments,
        drawn={name for name, there in wanted.items() if there},
        charts=_charts_at(record),
    )


def _charts_at(record: RunRecord) -> str:
    return f"/runs/{record.execution_id}/charts/"


# Several runs side by side: models, lenses, or one recipe over time.

MOST = 12
_COMPARED = {"comparison": "model_comparison", "drift": "drift"}


@router.get("/compare")
def compare_runs(
    request: Request,
    app: App,
    ref: Annotated[list[str] | None, Query(max_length=40)] = None,
    drift: Annotated[str | None, Query(max_length=120)] = None,
) -> Response:
    """Show the runs asked for; the first is what the others are compared with."""
    refs = [part for part in ref or [] if part.strip()]
    if drift:
        executions = app.store.read(select_executions, drift)
        finished = [one.execution_id for one in executions if one.status == "ok"]
        if not finished:
            raise RecordError(f"`{drift}` has no finished execution; `/search` lists what there is")
        # The newest ones, the oldest of them first.
        refs = finished[:MOST][::-1]
    if not refs:
        latest = app.store.read(select_runs, whole=True)
        return page(request, "compare.html", runs=[], lines=[], drawn=(), query="", latest=latest)
    runs = _find_records(app, refs)
    ids = tuple(run.execution_id for run in runs)
    return page(
        request,
        "compare.html",
        runs=runs,
        lines=app.cache.values.get(("compare", ids), lambda: _compare(runs)),
        drawn=_drawn(_measured(runs)),
        query=urlencode([("ref", one) for one in ids]),
        latest=[],
    )


@router.get("/compare/{name}.json")
def comparison_chart(
    request: Request,
    app: App,
    name: Annotated[str, Path(max_length=20)],
    ref: Annotated[list[str], Query(max_length=40)],
) -> Response:
    """Send a chart of these runs, as the script that draws it reads it."""
    runs = _find_records(app, ref)
    if name not in _drawn(_measured(runs)):
        raise HTTPException(404, f"`{name}` isn't a chart of these runs")
    key = ("compare", name, tuple(run.execution_id for run in runs))
    return _send_chart(request, key, _FOR_A_DAY, lambda: (_COMPARED[name], _measured(runs)))


def _find_records(app: AppState, refs: list[str]) -> list[RunRecord]:
    if len(refs) > MOST:
        raise RecordError(f"`ref` can name at most {MOST} runs at once, got {len(refs)}")
    ids = dict.fromkeys(app.store.read(find_record, one).execution_id for one in refs)
    return [app.cache.record(execution_id) for execution_id in ids]


def _compare(runs: list[RunRecord]) -> "list[tuple[RunRecord, Comparison | str]]":
    """Compare each run with the first: the difference, or why there is none."""
    from heretix.measurement.verify import compare

    first, *others = runs
    lines: list[tuple[RunRecord, Comparison | str]] = []
    for run in others:
        try:
            lines.append((run, compare(first, run)))
        except NoEstimateError as exc:
            lines.append((run, str(exc)))
    return lines


def _measured(runs: list[RunRecord]) -> list[RunRecord]:
    return [run for run in runs if run.status == "ok"]


def _drawn(measured: list[RunRecord]) -> set[str]:
    """Name the charts that there is something for."""
    again = len(measured) > 1 and len({run.run_id for run in measured}) == 1
    wanted = {"comparison": bool(measured), "drift": again}
    return {name for name, there in wanted.items() if there}
