"""Who asks: their role, quotas, tokens and account. Nobody is shown anybody else's."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request

from heretix.accounts import Person, Quotas, Role
from heretix.accounts.sessions import Token
from heretix.economy.exploration_service import Standing
from heretix.economy.ledger import PLAY
from heretix.web.api.episodes import HeldPositionView
from heretix.web.api.resource import Cursor, Limit, Page, resource, slice_of
from heretix.web.auth import VisitNow, require
from heretix.web.moves import exchange_of, track_of
from heretix.web.state import desk_of

__all__ = ["router"]

router = resource("people")


class Used(BaseModel):
    """What somebody has used of their quotas. Jobs under way count with all they may spend."""

    model_config = ConfigDict(from_attributes=True)

    jobs_today: int
    active_jobs: int
    usd_micros_today: int


class Me(BaseModel):
    """Whoever asks."""

    name: str
    role: Role
    via: Literal["local", "session", "token"]
    quotas: Quotas
    usage: Used
    balance: int | None
    """Play money, in minor units; null before the first move in the economy."""
    standing: Standing


class TokenView(BaseModel):
    """A token of one's own, without its secret: that was shown once, when it was made."""

    id: str
    label: str
    role: Role
    created_at: str
    expires_at: float | None
    last_used_at: float | None
    revoked_at: str | None


@router.get("/people/me")
def get_me(
    request: Request, person: Annotated[Person, require(Role.READER)], visit: VisitNow
) -> Me:
    """Who asks, what they may do, and what they have used of their quotas."""
    assert visit.via != "nobody", "a person was required"
    desk = desk_of(request)
    held = exchange_of(desk).balances(person=person.name, currency=PLAY.code, limit=1)
    return Me(
        name=person.name,
        role=person.role,
        via=visit.via,
        quotas=person.quotas,
        usage=Used.model_validate(desk.jobs.usage(person)),
        balance=held[0].balance if held else None,
        standing=track_of(desk).standing(person.name),
    )


@router.get("/people/me/tokens")
def list_my_tokens(
    request: Request,
    person: Annotated[Person, require(Role.READER)],
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[TokenView]:
    """The tokens of whoever asks, the newest first."""
    found = desk_of(request).people.tokens.list(person.id)
    return slice_of(found, _shown, limit=limit, cursor=cursor, newest_first=True)


@router.get("/people/me/positions")
def list_my_positions(
    request: Request,
    person: Annotated[Person, require(Role.READER)],
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[HeldPositionView]:
    """The bets of whoever asks, the newest first."""
    found = exchange_of(desk_of(request)).positions_of(person.name)
    show = HeldPositionView.model_validate
    return slice_of(found, show, limit=limit, cursor=cursor, newest_first=True)


def _shown(token: Token) -> TokenView:
    return TokenView(**{name: getattr(token, name) for name in TokenView.model_fields})
