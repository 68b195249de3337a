"""Authentication: sessions, tokens, the local operator, and protection against forged requests."""

import hmac
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from fastapi import Depends
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import LOCAL, Person, Role, Session
from heretix.core.canonical import sha256_hex
from heretix.core.errors import AccessError, SignInError, StoreError

if TYPE_CHECKING:
    from heretix.web.state import AppState

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SESSION: Final = "heretix_session"
_VISITOR: Final = "heretix_visitor"
_OF_BROWSERS: Final = ("origin", "referer", "cookie", "sec-fetch-site", "sec-fetch-mode")
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")


@dataclass(slots=True, kw_only=True)
class Visit:
    """One request's visitor."""

    person: Person | None
    via: Literal["local", "session", "token", "nobody"]
    address: str | None  # the network address, for the audit log and the rate limits
    secure: bool
    session: Session | None = None
    stale: bool = False  # it came with a session that has ended; the cookie is to be forgotten
    secret: str | None = field(default=None, repr=False)  # the token that a program brought
    visitor: str | None = field(default=None, repr=False)
    """A cookie of no meaning that ties the forms of somebody without a session to the browser."""
    _given: str | None = field(default=None, repr=False)
    """The visitor's cookie, to be set: it was made for this response."""

    @property
    def is_local(self) -> bool:
        """The operator of a server without accounts."""
        return self.via == "local"

    @property
    def name(self) -> str:
        """The name of the person; nobody has none."""
        return self.person.name if self.person else ""

    def may(self, role: str) -> bool:
        """The person has this role or a higher one."""
        return self.person is not None and self.person.role >= Role(role)

    @property
    def csrf(self) -> str:
        """The token that a form of this visitor's must bring back."""
        if self.session is not None:
            return self.session.csrf
        if self.visitor is None:
            self.visitor = self._given = secrets.token_urlsafe(24)
        return sha256_hex(f"heretix-form {self.visitor}".encode())

    def csrf_field(self) -> Markup:
        """The token, as a form carries it."""
        return Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, self.csrf)

    def check_csrf(self, value: str | None) -> None:
        """Refuse a write that wasn't made by a form of this visitor's."""
        if self.session is not None:
            self.session.check_csrf(value)
            return
        known = self.csrf if self.visitor is not None and self._given is None else None
        given = (value or "").encode("utf-8", "surrogatepass")
        if known is None or not hmac.compare_digest(known.encode(), given):
            raise AccessError(
                "the form doesn't belong to this visit: it is too old, or was made elsewhere; "
                "load the page again and send it once more"
            )

    def set_cookies(self, response: Response) -> None:
        """Set the cookies that this visit needs, and drop those that mean nothing any more."""
        if self._given is not None:
            self.set_cookie(response, _VISITOR, self._given)
        if self.stale:
            self.close_session(response)

    def open_session(self, response: Response, session: Session) -> None:
        """Hand a session to the browser."""
        self.set_cookie(response, _SESSION, session.token)

    def close_session(self, response: Response) -> None:
        """Take the session back from the browser."""
        response.delete_cookie(self.cookie_name(_SESSION), secure=self.secure)

    def set_cookie(self, response: Response, name: str, value: str) -> None:
        """Set a cookie that scripts can't read and other sites can't send."""
        response.set_cookie(
            self.cookie_name(name), value, httponly=True, samesite="lax", secure=self.secure
        )

    def cookie_name(self, name: str) -> str:
        """With https, a name that no other host and no plain connection can set."""
        return f"__Host-{name}" if self.secure else name


def visit_of(request: Request) -> Visit:
    """The visit that `identify_visitor` found."""
    visit: Visit = request.state.visit
    return visit


async def identify_visitor(request: Request) -> Visit:
    """Find out who asks. A write must also be meant: see `_refuse_forgery`. Runs before every
    endpoint, whether it asks who is there or not."""
    known: Visit | None = getattr(request.state, "visit", None)
    if known is not None:
        return known
    app: AppState = request.app.state.heretix
    try:
        visit = await _identify(request, app)
    except SignInError:
        # Whoever tries tokens is slowed down as anybody else is.
        _limit(request, app, _place(request))
        raise
    request.state.visit = visit
    if not visit.is_local:
        _limit(request, app, visit.person.id if visit.person else _place(request))
    if request.method not in _SAFE and visit.via != "token":
        await _refuse_forgery(request, visit)
    return visit


def _limit(request: Request, app: "AppState", who: str) -> None:
    """Count a request, and have its answer tell what is left."""
    if app.limiter is None:
        return
    try:
        app.limiter.check(who)
    finally:
        request.state.allowance = app.limiter.look(who)


CurrentVisit = Annotated[Visit, Depends(identify_visitor)]  # the visit, as an endpoint asks for it


def require(role: Role) -> Any:
    """A dependency that lets in people with this role or a higher one, and gives the person."""

    async def authorize(visit: CurrentVisit) -> Person:
        return _authorize(visit, role)

    return Depends(authorize)


Reader = Annotated[Person, require(Role.READER)]
Explorer = Annotated[Person, require(Role.EXPLORER)]
Operator = Annotated[Person, require(Role.OPERATOR)]


async def _hold_place(request: Request, visit: CurrentVisit) -> AsyncIterator[None]:
    """Hold one of the places for costly work until the answer has been sent."""
    app: AppState = request.app.state.heretix
    person = visit.person.id if visit.person else _place(request)
    async with app.costly.turn(person):
        yield


Costly = Depends(_hold_place)  # of a route whose answer takes long or much


async def require_role(request: Request, role: Role) -> Person:
    """Identify who asks and require a role, for a plain route without dependencies."""
    return _authorize(await identify_visitor(request), role)


def _authorize(visit: Visit, role: Role) -> Person:
    if visit.person is None:
        raise SignInError(
            "this is for people with an account: sign in, or send a token (docs/api.md)"
        )
    visit.person.require(role)
    return visit.person


async def _identify(request: Request, app: "AppState") -> Visit:
    secure = request.url.scheme == "https"
    address = request.client.host if request.client else None
    visit = Visit(person=None, via="nobody", address=address, secure=secure)
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        visit.secret, visit.via = secret.strip(), "token"
        visit.person = await run_in_threadpool(app.people.tokens.verify, visit.secret)
        return visit
    if app.published:
        from heretix.web.publish import READER

        visit.person = READER
        return visit
    visit.visitor = request.cookies.get(visit.cookie_name(_VISITOR)) or None
    if not await app.has_accounts():
        visit.person, visit.via = LOCAL, "local"
        return visit
    token = request.cookies.get(visit.cookie_name(_SESSION))
    if not token:
        return visit
    try:
        session = await run_in_threadpool(app.people.sessions.find, token)
    except SignInError:
        visit.stale = True
        return visit
    visit.session, visit.person, visit.via = session, session.person, "session"
    return visit


async def is_still_admitted(visit: Visit, app: "AppState") -> bool:
    """Say whether a visitor would be let in again, in the role they came in."""
    # To be looked at is no use: a page that was left open doesn't keep its session alive.
    sessions, tokens = app.people.sessions, app.people.tokens
    try:
        if visit.is_local:
            return not await app.has_accounts()
        if visit.session is not None:
            token = visit.session.token
            person = (await run_in_threadpool(sessions.find, token, used=False)).person
        elif visit.secret is not None:
            person = await run_in_threadpool(tokens.verify, visit.secret, used=False)
        else:
            return False
    except SignInError:
        return False
    except StoreError:
        # Nobody was shut out: the database is away for a moment.
        return True
    return visit.person is not None and person.role is visit.person.role


async def _refuse_forgery(request: Request, visit: Visit) -> None:
    """Refuse a write that a page elsewhere made this browser send. It must come from this origin
    and bring the token of a form. Programs have neither pages nor cookies, so on a server without
    accounts they need no token: what a browser sends always says that a browser sent it."""
    if not _is_same_origin(request.headers):
        raise AccessError("a page of another site can't write here; open this server's own page")
    browsed = any(name in request.headers for name in _OF_BROWSERS)
    if visit.is_local and request.url.path.startswith("/api/") and not browsed:
        return
    value = request.headers.get(CSRF_HEADER)
    if value is None and request.headers.get("content-type", "").startswith(_FORMS):
        given = (await request.form()).get(CSRF_FIELD)
        value = given if isinstance(given, str) else None
    visit.check_csrf(value)


def _is_same_origin(headers: Headers) -> bool:
    """Say whether a request comes from a page of this server, or from no page at all. Browsers send
    `Origin` with every write, and say by `Sec-Fetch-Site` where it came from."""
    origin = headers.get("origin")
    if origin is not None:
        try:
            place = urlsplit(origin).netloc.lower()
        except ValueError:
            return False
        # An origin that isn't any, such as `null`, is no page of this server.
        if not place or place != headers.get("host", "").lower():
            return False
    return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


def _place(request: Request) -> str:
    """Name the source of requests from somebody unknown, to count them by."""
    return f"address {request.client.host if request.client else None}"
