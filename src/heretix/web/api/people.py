"""People: who asks, with quotas, tokens and bets of one's own, and for operators all accounts.

What lets somebody in is made in the browser or at the machine: a token, which somebody may find,
makes no account, no password, no role and no token.
"""

from typing import Annotated, Final, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from heretix.accounts import Person, Quotas, Role
from heretix.accounts.person import MAX_NAME_CHARS
from heretix.economy.exploration_service import Standing
from heretix.economy.ledger import PLAY
from heretix.web.api.episodes import HeldPositionView
from heretix.web.api.resource import (
    Cursor,
    Limit,
    Page,
    Ref,
    View,
    make_read_router,
    make_write_router,
    page_of,
    read_cursor,
    slice_of,
)
from heretix.web.auth import CurrentVisit, Operator, Reader
from heretix.web.state import App, AppState

router = make_read_router("people")
changes = make_write_router("people", role=Role.READER)
accounts = make_read_router("accounts", role=Role.OPERATOR)
limits = make_write_router("accounts", role=Role.OPERATOR)
MOST: Final = 10**9


class Used(View):
    """Use of a person's quotas. Jobs under way count with all they may spend."""

    jobs_today: int
    active_jobs: int
    usd_micros_today: int


class Me(BaseModel):
    """Person who asks."""

    name: str
    role: Role
    via: Literal["local", "session", "token"]
    quotas: Quotas
    usage: Used
    balance: int | None  # play money, in minor units; null before the first move in the economy
    standing: Standing


class TokenView(View):
    """A token of one's own, without its secret: that was shown once, when it was made."""

    id: str
    label: str
    role: Role
    created_at: str
    expires_at: float | None
    last_used_at: float | None
    revoked_at: str | None


@router.get("/people/me")
def get_me(app: App, person: Reader, visit: CurrentVisit) -> Me:
    """The caller, what they may do, and what they have used of their quotas."""
    assert visit.via != "nobody", "a person was required"
    held = app.exchange.balances(person=person.name, currency=PLAY.code, limit=1)
    return Me(
        name=person.name,
        role=person.role,
        via=visit.via,
        quotas=person.quotas,
        usage=Used.model_validate(app.jobs.usage(person)),
        balance=held[0].balance if held else None,
        standing=app.exploration.standing(person.name),
    )


@router.get("/people/me/tokens")
def list_my_tokens(
    app: App, person: Reader, limit: Limit = 100, cursor: Cursor = None
) -> Page[TokenView]:
    """The tokens of whoever asks, the newest first."""
    found = app.people.tokens.list(person.id)
    show = TokenView.model_validate
    return slice_of(found, show, limit=limit, cursor=cursor, newest_first=True)


@router.get("/people/me/positions")
def list_my_positions(
    app: App, person: Reader, limit: Limit = 100, cursor: Cursor = None
) -> Page[HeldPositionView]:
    """The bets of whoever asks, the newest first."""
    found = app.exchange.positions_of(person.name)
    show = HeldPositionView.model_validate
    return slice_of(found, show, limit=limit, cursor=cursor, newest_first=True)


@changes.post("/tokens/{token_id}/revoke")
def revoke_token(app: App, person: Reader, visit: CurrentVisit, token_id: Ref) -> TokenView:
    """Make a token worthless: one of one's own, this very one too; an operator's, anybody's."""
    found = app.people.tokens.revoke(token_id, by=person, address=visit.address)
    return TokenView.model_validate(found)


class AccountView(View):
    """An account, as operators see it."""

    name: str
    role: Role
    active: bool
    created_at: str
    has_password: bool
    quotas: Quotas
    usage: Used

    @classmethod
    def of(cls, app: AppState, person: Person) -> "AccountView":
        """An account with what it has used."""
        same = {name: getattr(person, name) for name in cls.model_fields if name != "usage"}
        return cls(**same, usage=Used.model_validate(app.jobs.usage(person)))


class LimitsGiven(BaseModel):
    """Limits on what a person may use; null is none."""

    model_config = ConfigDict(extra="forbid", strict=True)

    jobs_per_day: Annotated[int, Field(ge=0, le=MOST)] | None
    running_jobs: Annotated[int, Field(ge=0, le=MOST)] | None
    usd_micros_per_day: Annotated[int, Field(ge=0, le=MOST)] | None


Name = Annotated[str, Path(max_length=MAX_NAME_CHARS, description="As it is written, in any case.")]


@accounts.get("/accounts")
def list_accounts(app: App, limit: Limit = 100, cursor: Cursor = None) -> Page[AccountView]:
    """Everybody with an account, by name."""
    (after,) = read_cursor(cursor, str) or ("",)
    found = app.people.list(limit=limit + 1, after=after)
    return page_of(found, limit, lambda one: (one.name,), lambda one: AccountView.of(app, one))


@accounts.get("/accounts/{name}")
def get_account(app: App, name: Name) -> AccountView:
    """One account, and what it has used of its limits today."""
    return AccountView.of(app, app.people.find(name))


@accounts.get("/accounts/{name}/tokens")
def list_tokens(app: App, name: Name, limit: Limit = 100, cursor: Cursor = None) -> Page[TokenView]:
    """Tokens of an account without their secrets, the newest first."""
    found = app.people.tokens.list(app.people.find(name).id)
    show = TokenView.model_validate
    return slice_of(found, show, limit=limit, cursor=cursor, newest_first=True)


@limits.post("/accounts/{name}/limits")
def set_limits(
    app: App, name: Name, given: LimitsGiven, person: Operator, visit: CurrentVisit
) -> AccountView:
    """Say what somebody may use, from now on."""
    quotas = Quotas(**given.model_dump())
    return AccountView.of(
        app, app.people.set_quotas(name, quotas, by=person, address=visit.address)
    )


@limits.post("/accounts/{name}/disable")
def disable_account(app: App, name: Name, person: Operator, visit: CurrentVisit) -> AccountView:
    """Shut somebody out, sessions, tokens and jobs included; the browser lets them in again."""
    return AccountView.of(app, app.people.deactivate(name, by=person, address=visit.address))
