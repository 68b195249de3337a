"""Episodes: the list, and everything there is to know of one."""

import json
import secrets
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from heretix.economy.accounts import user_account
from heretix.economy.audit import verify_episode
from heretix.economy.dispute import dispute_bond
from heretix.economy.docket import ENDED
from heretix.economy.episode import Episode, Ground, State, kept_positions
from heretix.economy.market import Side
from heretix.economy.money import CURRENCIES
from heretix.economy.recheck import recheck
from heretix.economy.rewards import explain
from heretix.errors import HeretixError
from heretix.people import Person, Role
from heretix.web.api.floor import clock_of, exchange_of, known_episode
from heretix.web.charts import page_chart
from heretix.web.desk import Desk, desk_of
from heretix.web.episodeview import doable, flows, next_move, pools, timeline
from heretix.web.identity import require
from heretix.web.problems import status_of
from heretix.web.templating import fresh, page

__all__ = ["EpisodeId", "episode_page", "purse_of", "router"]

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])

Reader = Annotated[Person, require(Role.READER)]
EpisodeId = Annotated[str, Path(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)]

_PAGE: Final = 25
_SHOWN: Final = 200
"""Bets and payments that the page shows; the record has all of them."""


@router.get("/episodes")
def episodes(
    request: Request,
    person: Reader,
    state: Annotated[State | None, Query()] = None,
    start: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """Episodes, the newest first."""
    desk = desk_of(request)
    found = exchange_of(desk).episodes(state=state, limit=_PAGE + 1, offset=start)
    return page(
        request,
        "episodes.html",
        episodes=found[:_PAGE],
        sides=tuple(Side),
        states=tuple(State),
        state=state,
        start=start,
        after=start + _PAGE if len(found) > _PAGE else None,
        page_size=_PAGE,
        person=person,
    )


@router.get("/episodes/{episode_id}")
def episode(
    request: Request,
    episode_id: EpisodeId,
    person: Reader,
    took: Annotated[int | None, Query(ge=0, le=2**31)] = None,
) -> Response:
    """One episode."""
    return episode_page(request, person, episode_id, took=took)


def episode_page(
    request: Request,
    person: Person,
    episode_id: str,
    *,
    took: int | None = None,
    problem: HeretixError | None = None,
) -> Response:
    """An episode as it stands now, for whoever looks; with what went wrong, if something did."""
    desk = desk_of(request)
    exchange = exchange_of(desk)
    found = known_episode(desk, episode_id)
    now_ms = clock_of(desk).now_ms()
    positions, told = exchange.positions(episode_id), exchange.measurements(episode_id)
    account = user_account(person.name, found.terms.currency).id
    own = [position for position in positions if position.account == account]
    staked = found.market.money if found.market else 0
    paid = _paid(desk, found)
    return page(
        request,
        "episode.html",
        status=status_of(problem) if problem else 200,
        problem=problem,
        episode=found,
        terms=found.terms,
        person=person,
        purse=purse_of(desk, person, found.terms.currency),
        own=own,
        took=next((position for position in own if position.number == took), None),
        positions=positions,
        shown=_SHOWN,
        pools=pools(found, positions),
        can=doable(found, person.name, now_ms),
        move=next_move(found, positions, now_ms),
        job=desk.jobs.moving(episode_id),
        timeline=timeline(found, positions, told, now_ms),
        told=told,
        now_ms=now_ms,
        grounds=tuple(Ground),
        bond=dispute_bond(staked, found.terms.parameters),
        key=secrets.token_urlsafe(18),
        ended=found.state in ENDED,
        mine=next((flow for flow in paid["flows"] if flow.account == account), None),
        **paid,
    )


@router.get("/episodes/{episode_id}/{name}.json")
def chart(request: Request, episode_id: EpisodeId, name: str) -> Response:
    """A chart of an episode, or its whole record."""
    from heretix.report.charts import credited_path, market_history

    desk = desk_of(request)
    found = known_episode(desk, episode_id)
    exchange = exchange_of(desk)
    if name == "record":
        content = json.dumps(exchange.record(episode_id), indent=2, ensure_ascii=False) + "\n"
        response = fresh(request, content.encode(), "application/json")
        response.headers["content-disposition"] = f'attachment; filename="{found.id}.json"'
        return response
    if name == "market" and found.market is not None:
        # Like the pools beside it: what came after the close was given back.
        kept = kept_positions(found, exchange.positions(episode_id))
        made = market_history(kept, currency=CURRENCIES[found.terms.currency])
    elif name == "path":
        settlement = exchange.settlement(episode_id)
        made = credited_path(found, settlement.outcome if settlement else None)
    else:
        raise HTTPException(404, f"`{name}` isn't a chart of this episode")
    return fresh(request, page_chart(made), "application/json")


@router.get("/episodes/{episode_id}/verification")
def verification(request: Request, episode_id: EpisodeId) -> Response:
    """Redo the episode from its record, and its measurements from their samples."""
    desk = desk_of(request)
    found = known_episode(desk, episode_id)
    exchange = exchange_of(desk)
    record = exchange.record(episode_id)
    again = recheck(desk.store, found, exchange.measurements(episode_id))
    audit = verify_episode(record)
    return page(
        request,
        "episode_verification.html",
        episode=found,
        audit=audit,
        again=again,
        ok=audit.ok and all(item.ok for item in again),
        transfers=len(record["transfers"]),
        bets=len(record["positions"]),
    )


def purse_of(desk: Desk, person: Person, currency: str) -> int | None:
    """What somebody has to spend; None for who hasn't joined yet."""
    account = user_account(person.name, currency).id
    held = exchange_of(desk).balances(person=person.name, currency=currency)
    return next((item.balance for item in held if item.account.id == account), None)


def _paid(desk: Desk, found: Episode) -> dict[str, Any]:
    """What was paid to whom and why; how it ended, once it has."""
    exchange = exchange_of(desk)
    if found.state is State.DRAFT:
        return {"statements": [], "settlement": None, "rewards": (), "flows": [], "pots": []}
    settlement = exchange.settlement(found.id)
    book = settlement.rewards if settlement else None
    return {
        "statements": exchange.statements(found.id),
        "settlement": settlement,
        "rewards": tuple((item, explain(item)) for item in (book.rewards if book else ())),
        "flows": flows(exchange.record(found.id)) if settlement else [],
        "pots": exchange.balances(episode=found.id),
    }
