"""A measured claim: belief, evidence, wordings, samples; and several runs side by side."""

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter, Path, Query
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Role
from heretix.core.canonical import sha256_text
from heretix.core.errors import NoEstimateError, RecordError
from heretix.core.lenses import LENSES, NUL, RPL, SHOWING
from heretix.measurement.record import SCHEMA, Artifact, RunRecord
from heretix.report.figures import Line, Mark, Scale, belief_mark, timeline
from heretix.report.findings import (
    Finding,
    belief_finding,
    comparison_finding,
    headline,
    tell_apart,
)
from heretix.report.words import PLACEBO
from heretix.store import ExecutionSummary, RunSummary
from heretix.store.runs import (
    find_record,
    latest_finished,
    select_executions,
    select_latest_execution,
    select_runs,
    select_runs_of_claim,
    select_runs_of_digest,
)
from heretix.web.auth import Costly, require, require_role
from heretix.web.state import App, AppState, app_state
from heretix.web.templating import fragment, page, send_with_etag

if TYPE_CHECKING:
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.verify import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """Beliefs of one model by one read-out: its latest run under each lens."""

    model: str
    name: str  # Short, and unlike those of other rows
    readout: str
    cells: Mapping[str, RunSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """Measurements of a claim, around the run in focus."""

    vector: tuple[RunSummary, ...]
    """The latest run of each lens, of the same model; the one in focus stands for its lens."""
    variants: tuple[RunSummary, ...]  # experiments on those lenses
    rows: tuple[MatrixRow, ...]  # all models, the one in focus first
    others: tuple[RunSummary, ...]  # whatever has no place in the matrix: earlier runs, recipes
    found: tuple[RunSummary, ...]  # all of it, the latest first

    @property
    def prior(self) -> RunSummary | None:
        """Find the raw prior, where it was measured."""
        return next((run for run in self.vector if run.lens == RPL), None)

    @property
    def lenses(self) -> list[str]:
        """List the lenses that any model was shown."""
        return [lens for lens in LENSES if any(lens in row.cells for row in self.rows)]

    @property
    def key(self) -> tuple[str, ...]:
        """Name what everything between the lenses follows from."""
        return tuple(run.execution_id for run in (*self.vector, *self.variants))

    @property
    def scale(self) -> Scale:
        """Choose the axis of the page: one for all beliefs."""
        return Scale.of(run.prob_true_rpl for row in self.rows for run in row.cells.values())


def claim_view(app: AppState, record: RunRecord) -> ClaimView:
    """Find everything measured of the claim of `record`, in one look-up."""
    return view_of(app.store.read(select_runs_of_claim, record.claim), record)


def view_of(found: Sequence[RunSummary], record: RunRecord) -> ClaimView:
    """Arrange the runs of a claim around one of them."""
    variant = record.evidence.variant if record.evidence else None
    latest: dict[str, RunSummary] = {}
    cells: dict[tuple[str, str], dict[str, RunSummary]] = {}
    rest: list[RunSummary] = []
    # The run in focus is looked at first, then the others of its model, the latest first.
    for run in sorted(
        found, key=lambda run: (run.run_id != record.run_id, run.model != record.model)
    ):
        readout = (run.variant or _READOUT).partition(_READOUT)
        if readout[0]:
            continue  # an experiment
        row = cells.setdefault((run.model, readout[2]), {})
        if run.prob_true_rpl is not None and run.lens not in row:
            row[run.lens] = run
            if run.model == record.model and not readout[2]:
                latest[run.lens] = run
        elif run.run_id != record.run_id:
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
    names = tell_apart(model for model, _ in cells)
    return ClaimView(
        vector=tuple(latest[lens] for lens in LENSES if lens in latest),
        variants=tuple(variants),
        rows=tuple(
            MatrixRow(model=model, name=names[model], readout=readout, cells=row)
            for (model, readout), row in cells.items()
            if row
        ),
        others=tuple(rest),
        found=tuple(found),
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
_READOUT = "readout:"
_LINES = 8
_TO_CHOOSE = 40  # measurements, to compare some of them
DIGEST = 16
"""Characters of a claim's hash in its address."""
MOST = 12

Ref = Annotated[str, Path(max_length=120)]
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{16,64}$")]


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


@router.get("/runs/{ref}/verification", dependencies=[Costly])
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

    with app.store.snapshot():
        execution_id, _ = _resolve(app, ref)
        record = app.cache.record(execution_id)
    text = artifact_json(Artifact.of([record]))
    response = send_with_etag(request, text.encode("utf-8", "replace"), "application/json")
    response.headers["content-disposition"] = f'attachment; filename="{execution_id}.json"'
    return response


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
        if len(executions) > 1 and _key_of_time(record, executions) not in app.cache.values:
            return None
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


@router.get("/claims/{digest}")
def claim(
    request: Request,
    app: App,
    digest: Digest,
    model: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    """Show the page of a claim, with the raw prior of a model in focus."""
    with app.store.snapshot():
        focus = focus_of(app.store.read(select_runs_of_digest, digest), model)
        if focus is None:
            raise HTTPException(404, f"`{digest}` isn't a claim that was measured here")
        record = app.cache.record(focus.execution_id)
        executions = app.store.read(select_executions, record.run_id, limit=_EXECUTIONS)
        return _page(request, record, claim_view(app, record), executions)


def focus_of(found: Sequence[RunSummary], model: str = "") -> RunSummary | None:
    """Pick the run that stands for a claim: the raw prior of the model asked for, or of one that
    was shown evidence, the latest first."""
    measured = [run for run in found if run.prob_true_rpl is not None and run.variant is None]
    shown = {run.model for run in measured if run.lens in SHOWING}
    measured.sort(key=lambda run: (run.model != model, run.model not in shown, run.lens != RPL))
    return measured[0] if measured else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Difference between the lenses of a model: a finding, its picture, and the rest as markup."""

    finding: Finding | None
    moves: Mapping[str, tuple[Mark, ...]]
    """By lens that shows documents: the belief without them, with them, and with the sham's."""
    placebo: Mapping[str, str]
    """By lens: what moved it, the documents or any text."""
    body: Markup


def between_of(app: AppState, record: RunRecord, view: ClaimView) -> Between | None:
    """Make what lies between the lenses; None where there is one only."""
    if len(view.vector) < 2:
        return None
    made = app.cache.values.get(("between", view.key), lambda: _between(app, record, view))
    assert isinstance(made, Between)
    return made


def _page(
    request: Request, record: RunRecord, view: ClaimView, executions: Sequence[ExecutionSummary]
) -> Response:
    app = app_state(request)
    kept, between = app.cache.values, between_of(app, record, view)
    variant = record.evidence.variant if record.evidence else None

    def overview() -> Markup:
        over_time = None
        if len(executions) > 1 or len(view.found) > sum(len(row.cells) for row in view.rows):
            again = kept.get(
                _key_of_time(record, executions), lambda: _read_earlier(app, executions)
            )
            over_time = _draw_over_time(view, {} if variant else {record.lens: again})
        return fragment(
            "_overview.html",
            run=record,
            view=view,
            moves=between.moves if between else None,
            alone=belief_mark(record),
            placebo=between.placebo if between else {},
            leads=_leads(app, record, view),
            over_time=over_time,
            executions=len(executions),
            published=app.published,
        )

    everything = (
        *(run.execution_id for run in view.found),
        *(one.execution_id for one in executions[:MOST]),
    )
    finding = between.finding if between and not variant and not record.readout else None
    return page(
        request,
        "run.html",
        run=record,
        view=view,
        scale=view.scale,
        digest=sha256_text(record.claim)[:DIGEST],
        title=finding or belief_finding(record),
        overview=kept.get(("overview", record.run_id, everything, app.published), overview),
        body=kept.get(("run", record.execution_id), lambda: _body(record)),
        between=between,
        executions=executions,
    )


def _leads(
    app: AppState, record: RunRecord, view: ClaimView
) -> dict[str, tuple[float, float] | None]:
    """Find the intervals that lead the matrix as they lead a sentence, by execution. By Student's
    t they are known of the model in focus alone, whose records are at hand."""
    cells = [run for row in view.rows for run in row.cells.values()]
    at_hand = {record.execution_id, *(run.execution_id for run in view.vector)}
    return {
        run.execution_id: app.cache.find_leading_interval(run.execution_id)
        if run.execution_id in at_hand
        else (run.ci_lo, run.ci_hi)
        for run in cells
        if run.ci_lo is not None
        and run.ci_hi is not None
        and (not run.is_stable or run.execution_id in at_hand)
    }


def _key_of_time(record: RunRecord, executions: Sequence[ExecutionSummary]) -> Hashable:
    return "time", record.run_id, tuple(one.execution_id for one in executions[:MOST])


_Points = list[tuple[datetime, float, tuple[float, float]]]


def _read_earlier(app: AppState, executions: Sequence[ExecutionSummary]) -> _Points:
    """Read what earlier executions of a recipe gave, the latest dozen of them."""
    if len(executions) < 2:
        return []
    ids = [one.execution_id for one in executions if one.status == "ok"][:MOST]
    records = [app.cache.record(execution_id) for execution_id in ids]
    return [
        (datetime.fromisoformat(one.finished_at), one.aggregates.prob_true_rpl, one.aggregates.ci95)
        for one in records
        if one.aggregates.prob_true_rpl is not None and one.aggregates.ci95 is not None
    ]


def _draw_over_time(view: ClaimView, again: Mapping[str, Any]) -> tuple[list[Line], Markup] | None:
    """Draw the beliefs that were measured more than once, those of the model in focus first."""
    often: dict[tuple[str, str, str], _Points] = {}
    for run in view.found:
        if run.prob_true_rpl is not None and run.ci_lo is not None and run.ci_hi is not None:
            point = (
                datetime.fromisoformat(run.updated_at),
                run.prob_true_rpl,
                (run.ci_lo, run.ci_hi),
            )
            often.setdefault((run.model, run.variant or "", run.lens), []).append(point)
    lines: list[Line] = []
    for row in view.rows:
        variant = _READOUT + row.readout if row.readout else ""
        for lens in row.cells:
            points = often.get((row.model, variant, lens), [])
            if row is view.rows[0]:
                points = list({*points, *again.get(lens, ())})
            if len(points) > 1:
                label = f"{row.name}, {LENSES[lens].name}"
                lines.append(Line(label=label, lens=lens, points=points))
    drawn = timeline(lines[:_LINES], view.scale)
    return (lines[:_LINES], drawn) if drawn else None


def _resolve(app: AppState, ref: str) -> tuple[str, bool]:
    """Find the execution that `ref` means, and if `ref` is its whole id or that of its run."""
    if _EXECUTION.fullmatch(ref):
        return ref, True
    if _RUN.fullmatch(ref) and (latest := app.store.read(select_latest_execution, ref)) is not None:
        return latest, True
    return app.store.read(find_record, ref).execution_id, False


def _body(record: RunRecord) -> Markup:
    options = json.dumps(record.options.model_dump(exclude_none=True), ensure_ascii=False)
    return fragment("_run_body.html", run=record, options=options)


def _between(app: AppState, record: RunRecord, view: ClaimView) -> Between:
    artifact = vector_artifact(app, view)
    moves: dict[str, tuple[Mark, ...]] = {}
    if (prior := view.prior) is not None:
        for run in view.vector:
            if run.lens in SHOWING:
                sham = next(
                    (v for v in view.variants if (v.lens, v.variant) == (run.lens, "sham")), None
                )
                moves[run.lens] = tuple(
                    mark_of(one, label)
                    for one, label in (
                        (prior, "without documents"),
                        *([(sham, "with irrelevant text")] if sham else []),
                        (run, f"with {LENSES[run.lens].label} documents"),
                    )
                    if one.prob_true_rpl is not None
                )
    metrics = (artifact.metrics or {}).get(record.model)
    beside = metrics.beside if metrics else None
    return Between(
        finding=headline(artifact, record.model),
        moves=moves,
        placebo={
            lens: PLACEBO[
                beside.find_cause(lens) if beside and lens in beside.placebo else "unchecked"
            ]
            for lens in moves
        },
        body=fragment(
            "_between.html",
            metrics=metrics,
            experiments=artifact.experiments or [],
            bundles=[_load_stored_bundle(app, run) for run in view.vector if run.bundle_id],
        ),
    )


def mark_of(run: RunSummary, label: str) -> Mark:
    """Make the mark of a run on a figure; irrelevant text stands in the colour of none."""
    assert run.prob_true_rpl is not None
    assert run.ci_lo is not None
    assert run.ci_hi is not None
    lens = NUL if run.variant == "sham" else run.lens
    return Mark(label=label, prob=run.prob_true_rpl, ci=(run.ci_lo, run.ci_hi), lens=lens)


def _load_stored_bundle(app: AppState, run: RunSummary) -> tuple[RunSummary, "Bundle | None"]:
    """Load the bundle that a run was shown; a record from elsewhere can name one not here."""
    with suppress(RecordError):
        return run, app.cache.bundle(str(run.bundle_id))
    return run, None


# Several runs side by side: models, lenses, or one recipe over time.


@router.get("/compare")
def compare_runs(
    request: Request,
    app: App,
    ref: Annotated[list[str] | None, Query(max_length=40)] = None,
    drift: Annotated[str | None, Query(max_length=120)] = None,
    q: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    """Show the runs asked for, the first being what the others are compared with; or runs to choose
    from, the latest that have the words `q`."""
    refs = [part for part in ref or [] if part.strip()]
    if drift:
        executions = app.store.read(select_executions, drift)
        finished = [one.execution_id for one in executions if one.status == "ok"]
        if not finished:
            raise RecordError(f"`{drift}` has no finished execution; `/search` lists what there is")
        # The newest ones, the oldest of them first.
        refs = finished[:MOST][::-1]
    if not refs:
        words = q.strip()
        latest = app.store.read(
            select_runs,
            limit=_TO_CHOOSE,
            search=words or None,
            whole=not words.startswith("heretix-"),
        )
        return page(request, "compare.html", runs=[], lines=[], over_time=None, latest=latest, q=q)
    runs = _find_records(app, refs)
    ids = tuple(run.execution_id for run in runs)
    kept = app.cache.values.get(("compare", ids), lambda: _compare(runs))
    lines = cast("list[tuple[RunRecord, Comparison | str]]", kept)
    return page(
        request,
        "compare.html",
        runs=runs,
        lines=lines,
        finding=comparison_finding(runs, lines),
        over_time=_drift(runs),
        scale=Scale.of(run.aggregates.prob_true_rpl for run in runs),
        latest=[],
    )


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


def _drift(runs: list[RunRecord]) -> Markup | None:
    """Draw one recipe over time; None where the runs are of several."""
    if len({run.run_id for run in runs}) != 1:
        return None
    points = [
        (datetime.fromisoformat(run.finished_at), run.aggregates.prob_true_rpl, run.aggregates.ci95)
        for run in runs
        if run.aggregates.prob_true_rpl is not None and run.aggregates.ci95 is not None
    ]
    line = Line(label=runs[0].model, lens=runs[0].lens, points=points)
    return timeline([line], Scale.of(prob for _, prob, _ in points)) or None
