"""The start, the search, the anomaly feed, and how the numbers are made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Role
from heretix.core.canonical import sha256_text
from heretix.core.errors import ConfigError, HeretixError, NoEstimateError
from heretix.core.lenses import LENSES, RPL, SHOWING
from heretix.report.figures import Mark, Scale, belief_mark
from heretix.report.findings import belief_finding, feed_finding
from heretix.report.words import PLACEBO
from heretix.store.runs import (
    ClaimSummary,
    RunFilter,
    RunSummary,
    select_claims_page,
    select_runs,
    select_runs_of_claim,
    select_runs_of_claims,
)
from heretix.web.api.resource import cursor_of, read_cursor
from heretix.web.auth import require
from heretix.web.pages.runs import (
    DIGEST,
    ClaimView,
    between_of,
    claim_view,
    focus_of,
    mark_of,
)
from heretix.web.state import Anomalies, App, AppState
from heretix.web.templating import model_label, page

if TYPE_CHECKING:
    from heretix.measurement.anomalies import Anomaly
    from heretix.measurement.record import RunRecord

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])


@router.get("/method")
def method(
    request: Request, app: App, answers: Annotated[str, Query(max_length=4000)] = ""
) -> Response:
    """Show how the numbers are made, with answers of the reader's own if they like."""
    # Imported where it is used: no other page does the mathematics itself.
    from heretix.report.method import DEFAULT_ANSWERS, LensExample, WorkedExample, parse_answers

    problem: HeretixError | None = None
    given: tuple[tuple[float, ...], ...] = DEFAULT_ANSWERS
    try:
        if answers.strip():
            given = parse_answers(answers)
        example = app.cache.values.get(("example", given), lambda: WorkedExample.of(given))
    except (ConfigError, NoEstimateError) as exc:
        problem, given = exc, DEFAULT_ANSWERS
        example = WorkedExample.of(given)
    lenses = app.cache.values.get("lens example", lambda: LensExample.from_answers(DEFAULT_ANSWERS))
    typed = answers or "\n".join(" ".join(f"{p:g}" for p in line) for line in given)
    return page(
        request, "method.html", example=example, lenses=lenses, typed=typed, problem=problem
    )


@router.get("/help")
def guide(request: Request) -> Response:
    """Show where things are, and what to do when something isn't right."""
    return page(request, "help.html")


PAGE_SIZE = 25
_CLAIMS = 10
_EVERY = 100_000
_LOOKED_AT = 80  # runs among which the latest claims are looked for
_RUNS = 200  # of a claim, that are looked at for its row


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """A claim in a list: the belief of one model, and where documents took it."""

    claim: str
    digest: str
    model: str
    lens: str | None  # The one that took it furthest; None where nothing was shown
    marks: tuple[Mark, ...]
    updated_at: str
    placebo: str | None = None  # What moved it; None while that is being worked out
    execution_id: str = ""  # Of the first mark
    models: int = 1  # That were asked
    lenses: int = 1

    @property
    def wide(self) -> bool:
        """True where one of the beliefs depends on the wording."""
        return any(mark.wide for mark in self.marks)


@router.get("/")
def home(request: Request, app: App) -> Response:
    """Show what was found, what is latest, and where to begin."""
    with app.store.snapshot():
        latest = app.store.read(select_runs, limit=_LOOKED_AT, whole=True)
        claims = list(dict.fromkeys(run.claim for run in latest))[:_CLAIMS]
        found = app.store.read(select_runs_of_claims, claims)
        anomalies = app.anomalies.read()
        rows = [
            replace(row, placebo=_placebo(row, anomalies))
            for claim in claims
            if (row := row_of(claim, found))
        ]
        rows = [_add_leading_interval(app, row) for row in rows]
        hero = _hero(app, anomalies, found, rows)
    return page(
        request,
        "home.html",
        total=len(latest),
        rows=rows,
        scale=Scale.of(mark.prob for row in rows for mark in row.marks),
        anomalies=anomalies,
        hero=hero,
        marks_of=anomaly_marks,
    )


def anomaly_marks(anomaly: "Anomaly") -> tuple[str, tuple[Mark, ...]]:
    """Return the lens that took a belief furthest from the raw prior, and both as marks."""
    prior = anomaly.beliefs[RPL]
    shown = [lens for lens in SHOWING if lens in anomaly.beliefs]
    lens = max(shown, key=lambda one: abs(anomaly.beliefs[one][0] - prior[0]))
    after = anomaly.beliefs[lens]
    return lens, (
        Mark(label="without documents", prob=prior[0], ci=prior[1:]),
        Mark(label=f"with {LENSES[lens].label} documents", prob=after[0], ci=after[1:], lens=lens),
    )


def row_of(claim: str, found: Sequence[RunSummary]) -> ClaimRow | None:
    """Choose what stands for a claim: its latest model, and the lens that took it furthest."""
    runs = [run for run in found if run.claim == claim]
    focus = focus_of(runs)
    if focus is None:
        return None
    latest: dict[str, RunSummary] = {}
    for run in runs:
        if run.model == focus.model and run.variant is None and run.prob_true_rpl is not None:
            latest.setdefault(run.lens, run)
    prior = latest.get(RPL, focus)
    shown = [latest[lens] for lens in SHOWING if lens in latest]
    here = prior.prob_true_rpl or 0.0
    after = max(shown, key=lambda run: abs((run.prob_true_rpl or 0.0) - here), default=None)
    marks = [mark_of(prior, "without documents" if prior.lens == RPL else LENSES[prior.lens].label)]
    if after is not None and after is not prior:
        marks.append(mark_of(after, f"with {LENSES[after.lens].label} documents"))
    return ClaimRow(
        claim=claim,
        digest=sha256_text(claim)[:DIGEST],
        model=focus.model,
        lens=after.lens if after else None,
        marks=tuple(marks),
        updated_at=max(run.updated_at for run in runs),
        execution_id=prior.execution_id,
    )


def _add_leading_interval(app: AppState, row: ClaimRow) -> ClaimRow:
    """Give a belief that stands alone the interval that its sentence begins with: by Student's t,
    where that alone says that the wording decides. Summaries hold the published one only."""
    if len(row.marks) != 1 or row.wide:
        return row
    (mark,) = row.marks
    ends = app.cache.find_leading_interval(row.execution_id)
    return replace(row, marks=(replace(mark, ci=ends),)) if ends else row


def _placebo(row: ClaimRow, anomalies: Anomalies) -> str | None:
    """Say what moved a belief: the documents, or any text of their length."""
    if row.lens is None:
        return None
    for one in anomalies.found:
        if (one.claim, one.model) == (row.claim, row.model) and row.lens in one.placebo:
            return PLACEBO[one.placebo[row.lens]]
    return PLACEBO["unchecked"] if anomalies.complete else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hero:
    """The one finding that stands first."""

    claim: str
    digest: str
    sentence: str
    marks: tuple[Mark, ...]


def _hero(
    app: AppState, anomalies: Anomalies, found: Sequence[RunSummary], rows: Sequence[ClaimRow]
) -> Hero | None:
    """Choose the finding that stands first: the strongest anomaly, or else the latest claim."""
    # What somebody may quote comes first, where there is any; then a movement before a belief.
    several: Sequence[Anomaly | ClaimRow] = anomalies.listed or [
        *(row for row in rows if row.lens),
        *(row for row in rows if not row.lens),
    ]
    first = min(several, key=lambda one: bool(model_label(one.model)), default=None)
    if first is None:
        return None
    claim, model = first.claim, first.model
    if anomalies.listed:
        found = app.store.read(select_runs_of_claim, claim)
    focus = focus_of([run for run in found if run.claim == claim], model)
    if focus is None:
        return None
    record = app.cache.record(focus.execution_id)
    view = claim_view(app, record)
    between = between_of(app, record, view)
    finding = (between and between.finding) or belief_finding(record)
    return Hero(
        claim=claim,
        digest=sha256_text(claim)[:DIGEST],
        sentence=finding.sentence,
        marks=picture_of(record, view),
    )


def picture_of(record: "RunRecord", view: ClaimView) -> tuple[Mark, ...]:
    """Choose the picture beside a claim's sentence: the belief, and where documents took it."""
    row = row_of(record.claim, [run for run in view.found if run.model == record.model])
    alone = belief_mark(record)
    if (row and len(row.marks) > 1) or alone is None:
        return row.marks if row else ()
    return (alone,)


@router.get("/search")
def search(
    request: Request,
    app: App,
    q: Annotated[str, Query(max_length=500)] = "",
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> Response:
    """Find claims with these words, or measured by a model or in a run whose name has them."""
    words = q.strip()
    with app.store.snapshot():
        # One more than is shown says whether there is another page, for less than counting.
        claims = app.store.read(
            select_claims_page,
            search=None,
            wanted=RunFilter(search=words or None),
            limit=PAGE_SIZE + 1,
            after=read_cursor(cursor, str, str),
            # Parts of experiments and episodes would bury the rest; their ids find them.
            whole=not words.startswith("heretix-"),
        )
        shown, more = claims[:PAGE_SIZE], len(claims) > PAGE_SIZE
        texts = [one.claim for one in shown]
        found = app.store.read(select_runs_of_claims, texts, limit=PAGE_SIZE * _RUNS)
        rows = [_add_leading_interval(app, _choose_row(one, found, words)) for one in shown]
    last = shown[-1] if more else None
    return page(
        request,
        "search.html",
        q=q,
        rows=rows,
        scale=Scale.of(mark.prob for row in rows for mark in row.marks),
        first=_address(q) if cursor else None,
        after=_address(q, cursor_of(last.updated_at, last.claim_sha256)) if last else None,
    )


def _choose_row(one: ClaimSummary, found: Sequence[RunSummary], words: str) -> ClaimRow:
    """Choose what stands for a claim among those found: what has the words, if its text hasn't."""
    runs = [run for run in found if run.claim == one.claim]
    low = words.lower()
    named = [run for run in runs if low in run.model.lower() or low in run.run_id]
    row = row_of(one.claim, named) or row_of(one.claim, runs)
    row = row or ClaimRow(
        claim=one.claim,
        digest=sha256_text(one.claim)[:DIGEST],
        model="",
        lens=None,
        marks=(),
        updated_at=one.updated_at,
    )
    whole = [run for run in runs if run.variant is None]
    return replace(
        row,
        models=len({run.model for run in whole}),
        lenses=len({run.lens for run in whole}),
    )


@router.get("/claims")
def claim(
    app: App,
    text: Annotated[str, Query(max_length=10_000)] = "",
    model: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    """Lead to a claim by its words, to measuring it if nobody has, without words to the list."""
    wanted = text.strip()
    if not wanted:
        return RedirectResponse("/search", 303)
    if focus_of(app.store.read(select_runs_of_claim, wanted)) is None:
        return RedirectResponse(f"/measure?{urlencode({'claim': wanted})}", 303)
    query = f"?{urlencode({'model': model})}" if model else ""
    return RedirectResponse(f"/claims/{sha256_text(wanted)[:DIGEST]}{query}", 303)


@router.get("/all")
def list_claims(request: Request, app: App) -> Response:
    """List every claim, for a published site, which has no server to search it."""
    if not app.published:
        return RedirectResponse("/search", 303)
    found = app.store.read(select_claims_page, search=None, limit=_EVERY, after=None)
    return page(request, "all.html", claims=found)


@router.get("/anomalies")
def anomalies(request: Request, app: App) -> Response:
    """Show where evidence moves a model most, and what didn't pass."""
    found = app.anomalies.read()
    return page(
        request,
        "anomalies.html",
        anomalies=found,
        marks_of=anomaly_marks,
        finding=feed_finding(found.found),
    )


def _address(q: str, cursor: str = "") -> str:
    given = {name: text for name, text in (("q", q), ("cursor", cursor)) if text}
    return f"/search?{urlencode(given)}" if given else "/search"
