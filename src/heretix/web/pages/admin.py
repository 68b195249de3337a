"""Running the place from the browser: people, quotas, the audit log, and what is set up here."""

import time
from pathlib import Path as FilePath
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Path, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Person, Quotas, Role
from heretix.accounts.audit import note
from heretix.core.errors import AccountError, HeretixError, UsageError
from heretix.store.budgets import STORE_BUDGET, cap_budget, delete_budget, select_budget
from heretix.store.jobs import count_by_worker
from heretix.web.auth import CurrentVisit, Operator
from heretix.web.state import App, AppState, app_state
from heretix.web.templating import page

router = APIRouter(include_in_schema=False)
Name = Annotated[str, Path(max_length=80)]
Field = Annotated[str, Form(max_length=200)]
_LOG = 60
_BUDGET: Final = "HERETIX_BUDGET_USD"
_MOST_MICROS: Final = 10**15
_TABLES = ("runs", "executions", "samples", "transfers")


@router.get("/admin")
def admin(
    request: Request,
    person: Operator,
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    who: Annotated[str, Query(max_length=80)] = "",
) -> Response:
    """Show who is here, what they may use and did, and what this place is made of."""
    return _admin(request, person, before=before, who=who)


@router.post("/admin/people")
def add_person(
    request: Request,
    app: App,
    person: Operator,
    visit: CurrentVisit,
    name: Field,
    role: Field = "reader",
    password: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Make an account; a fresh explorer has daily limits."""
    try:
        wanted = Role.parse(role)
        if not app.people.count() and (wanted is not Role.OPERATOR or not password):
            raise AccountError(
                "`role` of the first account must be operator, with a password: from then on "
                "nobody comes in without an account"
            )
        app.people.add(
            name.strip(),
            role=wanted,
            password=password or None,
            by=person,
            address=visit.address,
        )
    except UsageError as exc:
        return _admin(request, person, problem=exc, typed={"name": name, "role": role})
    return RedirectResponse("/admin#people", 303)


@router.post("/admin/people/{name}")
def change_person(
    request: Request,
    app: App,
    person: Operator,
    visit: CurrentVisit,
    name: Name,
    role: Field = "",
    jobs_per_day: Field = "",
    running_jobs: Field = "",
    usd_per_day: Field = "",
    active: Field = "",
) -> Response:
    """Change what somebody may do and use; whoever is disabled is shut out at once."""
    by: dict[str, Any] = {"by": person, "address": visit.address}
    try:
        found = app.people.find(name)
        quotas = Quotas(
            jobs_per_day=_number("jobs_per_day", jobs_per_day),
            running_jobs=_number("running_jobs", running_jobs),
            usd_micros_per_day=_number("usd_per_day", usd_per_day, 1_000_000),
        )
        if role and (wanted := Role.parse(role)) is not found.role:
            app.people.set_role(found.name, wanted, **by)
        if quotas != found.quotas:
            app.people.set_quotas(found.name, quotas, **by)
        if bool(active) is not found.active:
            change = app.people.activate if active else app.people.deactivate
            change(found.name, **by)
    except HeretixError as exc:
        return _admin(request, person, problem=exc)
    return RedirectResponse("/admin#people", 303)


@router.post("/admin/tokens/{token_id}/revoke")
def revoke_token(app: App, person: Operator, visit: CurrentVisit, token_id: Name) -> Response:
    """Make somebody's token worthless."""
    app.people.tokens.revoke(token_id, by=person, address=visit.address)
    return RedirectResponse("/admin#tokens", 303)


@router.post("/admin/budget")
def set_budget(
    request: Request, app: App, person: Operator, visit: CurrentVisit, usd: Field = ""
) -> Response:
    """Cap what everything on this store may cost together; empty takes the cap away."""
    try:
        if app.settings.env.get(_BUDGET):
            raise UsageError(f"`usd` is set by {_BUDGET} where this server runs; change it there")
        cap = _number("usd", usd, 1_000_000)
        if cap is not None and not 0 < cap <= _MOST_MICROS:
            raise UsageError(f"`usd` must be dollars above 0, at most a billion, got {usd!r}")
        with app.store.writing() as connection:
            if cap is None:
                delete_budget(connection, STORE_BUDGET)
            else:
                cap_budget(connection, STORE_BUDGET, cap)
            what, about = "budget.set" if cap else "budget.remove", usd.strip() or None
            note(connection, time.time(), what, by=person, subject=about, address=visit.address)
    except UsageError as exc:
        return _admin(request, person, problem=exc)
    return RedirectResponse("/admin#budget", 303)


def _admin(
    request: Request,
    person: Person,
    *,
    before: int | None = None,
    who: str = "",
    problem: HeretixError | None = None,
    typed: dict[str, str] | None = None,
) -> Response:
    app = app_state(request)
    with app.store.snapshot():
        people = app.people.list(limit=500)
        log = app.people.audit.entries(before=before, limit=_LOG + 1, who=who or None)
        jobs = [job for job in app.jobs.list(by=person, limit=100) if not job.state.ended]
        uses = {one.id: app.jobs.usage(one) for one in people}
        now, names = time.time(), {one.id: one.name for one in people}
        tokens = [
            (one, names.get(one.person_id, one.person_id))
            for one in app.people.tokens.list()
            if not one.revoked_at and not one.has_expired(now)
        ]
        workers = app.store.read(count_by_worker)
        budget = app.store.read(select_budget, STORE_BUDGET)
    return page(
        request,
        "admin.html",
        headers={"cache-control": "no-store"},
        people=people,
        uses=uses,
        roles=list(Role),
        log=log[:_LOG],
        older=log[_LOG - 1].seq if len(log) > _LOG else None,
        who=who,
        jobs=jobs,
        tokens=tokens,
        workers=workers,
        budget=budget,
        budget_set_by=_BUDGET if app.settings.env.get(_BUDGET) else "",
        tables=_TABLES,
        problem=problem,
        typed=typed or {"name": "", "role": str(Role.EXPLORER if people else Role.OPERATOR)},
        **_place(app),
    )


def _place(app: AppState) -> dict[str, Any]:
    """Tell what this server is made of: corpora, plug-ins, providers."""
    from heretix.core.plugins import SWITCH, find_plugins, is_switched_off
    from heretix.measurement.gather import corpora_folder

    return {
        "corpora": _corpora(corpora_folder(app.settings)),
        "plugins": find_plugins(),
        "plugins_off": SWITCH if is_switched_off() else "",
        "allowed": app.settings.explorer_providers,
        "places": app.costly,
    }


def _corpora(folder: FilePath) -> list[tuple[str, int | None]]:
    """List the corpora with how many documents each holds; None where it can't be read."""
    from heretix.evidence.sources.corpus import Corpus, corpus_path, find_corpora

    found: list[tuple[str, int | None]] = []
    for name in find_corpora(folder):
        try:
            with Corpus.open(corpus_path(folder, name), create=False) as corpus:
                found.append((name, corpus.stats().documents))
        except HeretixError:
            found.append((name, None))
    return found


def _number(name: str, text: str, scale: int = 1) -> int | None:
    """Read a limit; empty is none."""
    if not text.strip():
        return None
    try:
        return round(float(text) * scale)
    except (ValueError, OverflowError) as exc:
        raise AccountError(
            f"`{name}` must be a number or empty for no limit, got {text!r}"
        ) from exc
