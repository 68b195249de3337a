"""Sharing a claim, a panel or an episode: card, report, table, citation, and a page to embed."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Path
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Role
from heretix.core.lenses import LENSES, NUL, SHOWING
from heretix.report.figures import belief_mark
from heretix.report.findings import belief_finding, short_model
from heretix.report.share import (
    ShareCard,
    card_png,
    card_svg,
    cite_bibtex,
    share_episode,
    share_panel,
    table_csv,
    write_share_html,
)
from heretix.store.panels import select_panel
from heretix.store.runs import select_runs_of_digest
from heretix.web.auth import Costly, require
from heretix.web.middleware import CSP
from heretix.web.moves import read_episode
from heretix.web.pages.runs import (
    DIGEST,
    between_of,
    claim_view,
    focus_of,
    mark_of,
)
from heretix.web.state import App, AppState
from heretix.web.templating import address_of, page, send_with_etag

if TYPE_CHECKING:
    from heretix.report.figures import Mark

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])

Kind = Literal["claims", "panels", "episodes"]
What = Literal["card.png", "card.svg", "data.csv", "cite.bib", "report.html"]
Key = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,80}$")]
_MEDIA: dict[str, str] = {
    "card.png": "image/png",
    "card.svg": "image/svg+xml",
    "data.csv": "text/csv; charset=utf-8",
    "cite.bib": "application/x-bibtex",
    "report.html": "text/html",
}
_ALONE = CSP.replace("script-src 'self'; style-src 'self'", "style-src 'unsafe-inline'")
_FRAMED = CSP.replace("frame-ancestors 'none'", "frame-ancestors *")
_CLAIM_COLUMNS = (
    *("claim", "model", "lens", "variant", "prob_true_rpl", "ci_lo", "ci_hi", "is_stable"),
    *("K", "R", "T", "run_id", "execution_id", "updated_at"),
)


def find_shared(app: AppState, kind: Kind, key: str) -> ShareCard:
    """Find what can be shared under an address, as of one moment."""
    with app.store.snapshot():
        if kind == "panels":
            if app.store.read(select_panel, key) is None:
                raise HTTPException(404, f"`{key}` isn't a panel of this store")
            from heretix.studies.panel import read_panel

            return share_panel(read_panel(app.store, key))
        if kind == "episodes":
            found = read_episode(app.exchange.outcome, key)
            return share_episode(*found, app.exchange.positions(key))
        return share_claim(app, key)


def share_claim(app: AppState, digest: str) -> ShareCard:
    """Make what can be shared of a claim: the finding of the model that was shown most."""
    runs = app.store.read(select_runs_of_digest, digest) if len(digest) >= DIGEST else []
    focus = focus_of(runs)
    if focus is None:
        raise HTTPException(404, f"`{digest}` isn't a claim that was measured here")
    record = app.cache.record(focus.execution_id)
    view = claim_view(app, record)
    between = between_of(app, record, view)
    finding = (between and between.finding) or belief_finding(record)
    sampling = record.sampling
    rows: list[tuple[str, tuple[Mark, ...]]] = []
    for row in view.rows:
        cells = [row.cells[lens] for lens in view.lenses if lens in row.cells and lens != NUL]
        first = cells[0]
        shown = [run for run in cells[1:] if LENSES[run.lens].needs_documents] or [first]
        for run in shown:
            marks = [mark_of(first, LENSES[first.lens].label)]
            if run is first and run.run_id == record.run_id and (mark := belief_mark(record)):
                marks = [mark]
            if run is not first:
                marks.append(mark_of(run, LENSES[run.lens].label))
            name = row.name if run is first else f"{row.name}, {LENSES[run.lens].label}"
            rows.append((name, tuple(marks)))
    checked = between.placebo if between else {}
    note = ", ".join(f"{LENSES[lens].label} {said}" for lens, said in checked.items())
    others = any(row.model != record.model and row.cells.keys() & set(SHOWING) for row in view.rows)
    elsewhere = "; what moved the others stands on their pages" if others else ""
    return ShareCard(
        kind="claim",
        key=digest[:DIGEST],
        about=record.claim,
        sentence=finding.sentence,
        rows=tuple(rows),
        measured_at=max(run.updated_at for run in runs),
        facts=(
            ("model", record.model),
            ("wordings", f"{sampling.T} (K = {sampling.K}, R = {sampling.R})"),
            ("bank", record.prompt_version),
            ("record", record.execution_id),
            ("sha256", record.sha256),
        ),
        columns=_CLAIM_COLUMNS,
        table=tuple(
            {name: getattr(run, name) for name in _CLAIM_COLUMNS}
            for run in view.found
            if run.prob_true_rpl is not None
        ),
        note=f"{short_model(record.model)}: {note}{elsewhere}" if note else "",
    )


@router.get("/share/{kind}/{key}/{what}", dependencies=[Costly])
async def share(request: Request, app: App, kind: Kind, key: Key, what: What) -> Response:
    """Send a card, a report, the numbers or a citation."""

    def make() -> bytes:
        shared = find_shared(app, kind, key)
        address = address_of(request, shared.path)
        if what == "card.png":
            # Drawn once: it is asked for by everybody who is shown the address.
            made = app.cache.values.get(("card", card_svg(shared)), lambda: card_png(shared))
            assert isinstance(made, bytes)
            return made
        if what == "data.csv":
            return table_csv(shared)
        texts = {
            "card.svg": card_svg,
            "report.html": lambda s: write_share_html(s, address=address),
        }
        text = texts[what](shared) if what in texts else cite_bibtex(shared, address)
        return text.encode("utf-8", "replace")

    content = await asyncio.to_thread(make)
    response = send_with_etag(request, content, _MEDIA[what])
    if what in {"report.html", "card.png"}:
        # The file has its style inside; for a picture the browser makes a page with one.
        response.headers["content-security-policy"] = _ALONE
    if what in {"data.csv", "cite.bib"}:
        name = f"heretix-{kind.removesuffix('s')}-{key}.{what.rpartition('.')[2]}"
        response.headers["content-disposition"] = f'attachment; filename="{name}"'
    return response


@router.get("/embed/{kind}/{key}")
def embed(request: Request, app: App, kind: Kind, key: Key) -> Response:
    """Show the finding and its picture alone, for a frame on another page."""
    shared = find_shared(app, kind, key)
    return page(request, "embed.html", shared=shared, headers={"content-security-policy": _FRAMED})
