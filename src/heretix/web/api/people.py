"""The caller: role, quotas, tokens and account. Nobody is shown anybody else's."""

from typing import Literal

from pydantic import BaseModel

from heretix.accounts import Quotas, Role
from heretix.economy.exploration_service import Standing
from heretix.economy.ledger import PLAY
from heretix.web.api.episodes import HeldPositionView
from heretix.web.api.resource import Cursor, Limit, Page, View, reads, slice_of
from heretix.web.auth import CurrentVisit, Reader
from heretix.web.state import App

router = reads("people")


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
