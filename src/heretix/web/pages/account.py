"""Signing in and out, and what belongs to one person: tokens and the password."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import IssuedToken, Person, Role
from heretix.core.errors import AccessError, AccountError, SignInError, TooManyRequestsError
from heretix.web.auth import CurrentVisit, Reader, Visit
from heretix.web.problems import status_of
from heretix.web.state import App, app_state
from heretix.web.templating import page

router = APIRouter(include_in_schema=False)


@router.get("/sign-in")
def sign_in_page(
    request: Request,
    visit: CurrentVisit,
    to: Annotated[str, Query(alias="next", max_length=2000)] = "/",
) -> Response:
    """Show the form."""
    if visit.is_local:
        return RedirectResponse("/", 303)
    return page(request, "sign_in.html", next=_keep_inside(to), name="", problem=None)


@router.post("/sign-in")
def sign_in(
    request: Request,
    app: App,
    visit: CurrentVisit,
    name: Annotated[str, Form(max_length=200)],
    password: Annotated[str, Form(max_length=2000)],
    to: Annotated[str, Form(alias="next", max_length=2000)] = "/",
) -> Response:
    """Open a session: always a new one, so that nobody can have planted it."""
    before = visit.session.token if visit.session else None
    try:
        session = app.people.sign_in(name, password, address=visit.address, replacing=before)
    except (SignInError, TooManyRequestsError) as exc:
        return page(
            request,
            "sign_in.html",
            status=status_of(exc),
            next=_keep_inside(to),
            name=name,
            problem=exc,
        )
    response = RedirectResponse(_keep_inside(to), 303)
    visit.open_session(response, session)
    return response


@router.post("/sign-out")
def sign_out(app: App, visit: CurrentVisit) -> Response:
    """End the session, here and in the store."""
    if visit.session is not None:
        app.people.sessions.close(visit.session.token)
    # Pages that the browser has kept would still show them to the next person at this screen.
    response = RedirectResponse("/sign-in", 303, headers={"clear-site-data": '"cache"'})
    visit.close_session(response)
    return response


@router.get("/account")
def account(request: Request, person: Reader) -> Response:
    """Show who one is here, what one may use, and one's tokens."""
    return _account(request, person)


@router.post("/account/tokens")
def issue_token(
    request: Request,
    app: App,
    person: Reader,
    visit: CurrentVisit,
    label: Annotated[str, Form(max_length=100)],
    role: Annotated[str, Form(max_length=20)] = "",
    days: Annotated[str, Form(max_length=6)] = "",
) -> Response:
    """Make a token; it is shown this once."""
    _require_session(visit)
    try:
        wanted = Role(role) if role else None
        expires_in_s = 86_400 * float(days) if days.strip() else None
    except ValueError as exc:
        raise AccountError(f"`role` or `days` isn't one: {exc}") from exc
    given: dict[str, Any] = {"label": label, "role": wanted, "expires_in_s": expires_in_s}
    issued = app.people.tokens.issue(person, **given, by=person, address=visit.address)
    return _account(request, person, issued=issued)


@router.post("/account/tokens/{token_id}/revoke")
def revoke_token(
    app: App, person: Reader, visit: CurrentVisit, token_id: Annotated[str, Path(max_length=80)]
) -> Response:
    """Make a token worthless."""
    _require_session(visit)
    app.people.tokens.revoke(token_id, by=person, address=visit.address)
    return RedirectResponse("/account", 303)


@router.post("/account/password")
def change_password(
    request: Request,
    app: App,
    person: Reader,
    visit: CurrentVisit,
    old: Annotated[str, Form(max_length=2000)],
    new: Annotated[str, Form(max_length=2000)],
) -> Response:
    """Set another password; all sessions end, this one too."""
    _require_session(visit)
    try:
        app.people.change_password(person, old, new, address=visit.address)
    except (SignInError, AccountError, TooManyRequestsError) as exc:
        # The session is fine; it is the old password that isn't.
        return _account(request, person, problem=str(exc), status=422)
    response = RedirectResponse("/sign-in", 303)
    visit.close_session(response)
    return response


def _account(
    request: Request,
    person: Person,
    *,
    issued: IssuedToken | None = None,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    app = app_state(request)
    with app.store.snapshot():
        tokens = [] if person.is_local else app.people.tokens.list(person.id)
        usage = app.jobs.usage(person)
    return page(
        request,
        "account.html",
        status=status,
        headers={"cache-control": "no-store"},
        person=person,
        tokens=tokens,
        now=time.time(),
        usage=usage,
        issued=issued,
        problem=problem,
    )


def _require_session(visit: Visit) -> None:
    """Refuse tokens, which mustn't make tokens: a finder could keep the account for ever."""
    if visit.is_local:
        raise AccessError(
            "a server without accounts has no tokens and passwords; "
            "`heretix users add NAME --role operator` makes the first account"
        )
    if visit.session is None:
        raise AccessError("tokens and passwords are changed in a browser, after signing in")


def _keep_inside(target: str) -> str:
    """Keep the way on within this server: no sign-in may lead anybody to another one."""
    plain = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if plain and target.isprintable() and "\\" not in target else "/"
