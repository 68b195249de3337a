"""Bets: a purse to begin with, what a bet would buy, and the bet itself."""

import secrets
from typing import Annotated, Final
from urllib.parse import quote as quoted

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.economy.market import MAX_POOL, MICRO, Side
from heretix.economy.refusal import readable
from heretix.errors import HeretixError, RefusedError, UsageError
from heretix.people import Person, Role
from heretix.web.api.floor import exchange_of, known_episode, note_move
from heretix.web.desk import desk_of
from heretix.web.identity import VisitNow, require
from heretix.web.moneytext import amount_of
from heretix.web.pages.episodes import EpisodeId, episode_page, purse_of
from heretix.web.problems import status_of
from heretix.web.templating import page

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

Explorer = Annotated[Person, require(Role.EXPLORER)]
Key = Annotated[str, Form(min_length=8, max_length=100, pattern=r"^[!-~]+$")]

_KEPT_OF_QUOTE: Final = 99, 100
"""A bet still stands when others moved the price by one part in a hundred."""


@router.post("/profile/join")
def join(
    request: Request,
    person: Explorer,
    visit: VisitNow,
    episode: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Open a purse of play money; who has one keeps it as it is. Then back to the episode."""
    desk = desk_of(request)
    exchange = exchange_of(desk)
    exchange.ensure_house()
    joined = purse_of(desk, person, "PLAY") is not None
    exchange.join(person.name)
    if not joined:
        desk.people.audit.write("exchange.join", by=person, address=visit.address)
    return RedirectResponse(f"/episodes/{quoted(episode, safe='')}" if episode else "/profile", 303)


@router.get("/episodes/{episode_id}/quote")
def quote(
    request: Request,
    episode_id: EpisodeId,
    person: Explorer,
    side: Annotated[Side, Query()],
    amount: Annotated[str, Query(max_length=30)] = "",
) -> Response:
    """What a bet would buy at this moment, and what it can come to."""
    currency = known_episode(desk_of(request), episode_id).terms.currency
    try:
        stake = amount_of("amount", amount, currency)
        return _quote(request, person, episode_id, side, stake)
    except RefusedError as exc:
        return episode_page(request, person, episode_id, problem=readable(exc))
    except UsageError as exc:
        return episode_page(request, person, episode_id, problem=exc)


@router.post("/episodes/{episode_id}/stake")
def stake(
    request: Request,
    episode_id: EpisodeId,
    person: Explorer,
    side: Annotated[Side, Form()],
    amount: Annotated[int, Form(ge=1, le=MAX_POOL)],
    min_shares: Annotated[int, Form(ge=0, le=MAX_POOL * MICRO)],
    key: Key,
) -> Response:
    """Bet as oneself. Sent twice, or again after a reload, it is one bet."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    try:
        taken = exchange_of(desk).stake(
            episode_id, person.name, side, amount, min_shares=min_shares, key=f"web {key}"
        )
    except RefusedError as exc:
        problem = readable(exc)
        try:
            return _quote(request, person, episode_id, side, amount, problem=problem)
        except RefusedError:
            # Not even a quote can be had: the market is closed.
            return episode_page(request, person, episode_id, problem=problem)
    note_move(request, "stake", episode_id)
    return RedirectResponse(f"/episodes/{episode_id}?took={taken.number}#your-bets", 303)


def _quote(
    request: Request,
    person: Person,
    episode_id: str,
    side: Side,
    amount: int,
    *,
    problem: HeretixError | None = None,
) -> Response:
    desk = desk_of(request)
    found = known_episode(desk, episode_id)
    offer = exchange_of(desk).quote(episode_id, side, amount)
    return page(
        request,
        "quote.html",
        status=status_of(problem) if problem else 200,
        problem=problem,
        episode=found,
        currency=found.terms.currency,
        quote=offer,
        price_now=found.market.price(side) if found.market else None,
        min_shares=offer.shares * _KEPT_OF_QUOTE[0] // _KEPT_OF_QUOTE[1],
        purse=purse_of(desk, person, found.terms.currency),
        key=secrets.token_urlsafe(18),
    )
