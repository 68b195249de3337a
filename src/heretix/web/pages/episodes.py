"""Episodes: the list, and everything there is to know of one."""

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Person, Role
from heretix.core.errors import HeretixError
from heretix.economy.audit import verify_episode
from heretix.economy.episode.state import ENDED, Episode, Fate, State
from heretix.economy.exchange import StoredMeasurement
from heretix.economy.judging.inputs import recheck
from heretix.economy.ledger import CURRENCIES, Transfer, user_account
from heretix.economy.market import Position, Side
from heretix.economy.moves import DISPUTE, MOVES
from heretix.economy.rewards import explain
from heretix.web.auth import Reader, require
from heretix.web.moves import EpisodeId, read_episode
from heretix.web.state import App, AppState, app_state
from heretix.web.templating import fresh, page, page_chart

_STEPS: Final = {  # Steps of an operator: the name of the move, and the label of its button
    "open": ("open", "Open it"),
    "begin": ("begin", "Let evidence be committed"),
    "freeze": ("freeze", "Freeze it"),
    "judge": ("judge", "Judge {} challenge{}"),
    "conclude": ("measure", "Conclude it"),
    "first": ("measure", "Measure the judges"),
    "second": ("measure", "Measure the judges again"),
    "rule": ("rule", "Rule on the dispute"),
    "settle": ("settle", "Settle it"),
}
_WHY: Final[Mapping[str, str]] = {
    "open": "The terms are hashed and can't change any more; the house stakes its seed and the "
    "budget for rewards is set aside.",
    "begin": "From then on people can commit to evidence; bets are taken already.",
    "freeze": "The secret that was committed to at open is revealed. The close and the judges are "
    "drawn from it; what came after the close is given back whole.",
    "judge": "The models of the lens are asked without and with each piece of evidence, in the "
    "order of commitment.",
    "conclude": "On one side nobody but the house has a stake, so there is nothing to measure "
    "for: everything will be given back.",
    "first": "Models that took no part are asked without and with all accepted evidence.",
    "second": "The same judges again, after the durability window: only what lasts counts.",
    "rule": "A larger panel of judges is asked, twice; its word stands.",
    "settle": "Everybody is paid, once, line by line.",
}


def find_pools(episode: Episode, positions: Sequence[Position]) -> list[dict[str, Any]]:
    """Sum the two sides, with the stakes that count."""
    kept = episode.select_positions(positions)
    found = []
    for side in Side:
        own = [position for position in kept if position.side is side]
        house = [position.stake for position in own if position.house]
        stakes, bets = sum(position.stake for position in own), len(own) - len(house)
        found.append({"side": side, "stakes": stakes, "bets": bets, "house": sum(house)})
    return found


def find_options(episode: Episode, person: str, now: int) -> dict[str, Any]:
    """Find what a person can do now; the exchange has the last word."""
    terms, state = episode.terms, episode.state
    taking = state in {State.OPEN, State.CHALLENGE} and now <= terms.close_until_ms
    begun = state is State.CHALLENGE or (state is State.OPEN and now >= terms.challenge_from_ms)
    own = user_account(person, terms.currency).id
    revealing = state is State.CHALLENGE and now <= terms.freeze_at_ms
    last = episode.disputes[-1] if episode.disputes else None
    return {
        "bet": taking,
        "commit": taking and begun,
        "reveal": [
            challenge
            for challenge in episode.challenges
            if revealing and challenge.account == own and challenge.fate is Fate.COMMITTED
        ],
        "dispute": state in {State.MEASURED, State.DISPUTED}
        and not (last and last.upheld is None)
        and len(episode.disputes) < terms.parameters.dispute_rounds
        and now < _dispute_end(episode),
    }


def find_next_move(
    episode: Episode, positions: Sequence[Position], now: int
) -> dict[str, Any] | None:
    """Find what an operator does next, and from when; None when nothing is left to do."""
    terms, rules = episode.terms, episode.terms.parameters
    pending = [c for c in episode.challenges if c.fate in {Fate.COMMITTED, Fate.REVEALED}]
    kept = episode.select_positions(positions)
    due = 0
    match episode.state:
        case State.DRAFT if now <= terms.challenge_from_ms:
            step = "open"
        case State.OPEN:
            step, due = "begin", terms.challenge_from_ms
        case State.CHALLENGE:
            step, due = "freeze", terms.freeze_at_ms
        case State.FROZEN if pending:
            step = "judge"
        case State.FROZEN if {p.side for p in kept if not p.house} != set(Side):
            step = "conclude"
        case State.FROZEN if not episode.measurements:
            step = "first"
        case State.FROZEN:
            assert episode.frozen_ms is not None
            step, due = "second", episode.frozen_ms + rules.durability_ms
        case State.DISPUTED if episode.disputes[-1].upheld is None:
            step = "rule"
        case State.MEASURED | State.DISPUTED:
            ruled = len(episode.disputes) >= rules.dispute_rounds
            step, due = "settle", 0 if ruled else _dispute_end(episode)
        case _:
            return None
    name, label = _STEPS[step]
    return {
        "name": name,
        "label": label.format(len(pending), "s" if len(pending) > 1 else ""),
        "why": _WHY[step],
        "from_ms": due if now < due else None,
        "definition": next(move for move in MOVES if move.name == name),
    }


def make_timeline(
    episode: Episode, positions: Sequence[Position], told: Sequence[StoredMeasurement], now: int
) -> list[dict[str, Any]]:
    """Tell the life of an episode: the moment of each point, or the earliest that it can be."""
    terms, rules = episode.terms, episode.terms.parameters
    first = next((item.at_ms for item in told if item.stage == "first"), None)
    frozen, measured = episode.frozen_ms, episode.measured_ms
    freeze = frozen or terms.freeze_at_ms
    second = freeze + rules.durability_ms
    disputed = (measured or second) + rules.dispute_window_ms
    until = None if measured is None else disputed
    ended = episode.clock_ms if episode.state in ENDED else None
    late = "what comes after the effective close is given back"
    points: list[tuple[str, int | None, int | None, bool, str]] = [
        ("Opened", positions[0].at_ms if positions else None, None, bool(positions), ""),
        ("Evidence from", terms.challenge_from_ms, None, now >= terms.challenge_from_ms, ""),
        ("The close may fall from", terms.close_from_ms, None, now >= terms.close_from_ms, ""),
        ("Bets and commitments until", at := terms.close_until_ms, None, now >= at, late),
        ("Reveals until", terms.freeze_at_ms, None, now >= terms.freeze_at_ms, ""),
        ("Frozen", frozen, freeze, frozen is not None, "the close and the judges are drawn"),
        ("First measurement", first, freeze, first is not None, "once every challenge is judged"),
        ("Second measurement", measured, second, measured is not None, "does the change last?"),
        ("Disputes until", until, disputed, until is not None and now >= until, ""),
        ("Void" if episode.state is State.VOID else "Settled", ended, disputed, bool(ended), ""),
    ]
    current = next((n for n, point in enumerate(points) if not point[3]), len(points))
    return [
        {
            "label": label,
            "at_ms": at_ms,
            "not_before_ms": not_before_ms if at_ms is None else None,
            "mark": "done" if done else "now" if number == current else "ahead",
            "note": note,
        }
        for number, (label, at_ms, not_before_ms, done, note) in enumerate(points)
    ]


def sum_flows(transfers: Iterable[Transfer]) -> list[dict[str, Any]]:
    """Sum what each account put in and got back, from an episode's transfers; all is 0."""
    paid: Counter[str] = Counter()
    got: Counter[str] = Counter()
    for transfer in transfers:
        paid[transfer.debit] += transfer.amount
        got[transfer.credit] += transfer.amount
    people_first = sorted(paid.keys() | got.keys(), key=lambda a: (not a.startswith("user:"), a))
    return [
        {"account": one, "paid": paid[one], "got": got[one], "net": got[one] - paid[one]}
        for one in people_first
    ]


def _dispute_end(episode: Episode) -> int:
    assert episode.measured_ms is not None
    return episode.measured_ms + episode.terms.parameters.dispute_window_ms


router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])
_PAGE: Final = 25
_SHOWN: Final = 200  # bets and payments that the page shows; the record has all of them
_ALL: Final = 2**31


@router.get("/episodes")
def episodes(
    request: Request,
    app: App,
    person: Reader,
    state: Annotated[State | None, Query()] = None,
    start: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """List episodes, the newest first."""
    found = app.exchange.episodes(state=state, limit=_PAGE + 1, offset=start)
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
    """Show one episode."""
    return episode_page(request, person, episode_id, took=took)


def episode_page(
    request: Request,
    person: Person,
    episode_id: str,
    *,
    took: int | None = None,
    problem: HeretixError | None = None,
) -> Response:
    """Show an episode as it stands now, with what went wrong, if something did."""
    app = app_state(request)
    # One transaction, and the snapshot first: on PostgreSQL it fixes the moment that all see.
    with app.store.snapshot():
        snapshot = read_episode(app.exchange.snapshot, episode_id)
        found, positions = snapshot.episode, snapshot.positions
        purse = purse_of(app, person, found.terms.currency)
        job = app.jobs.moving(episode_id)
        settlement, drafted = snapshot.settlement, found.state is State.DRAFT
        entries = app.exchange.history(episode=episode_id, limit=_ALL) if settlement else []
        pots = [] if drafted else app.exchange.balances(episode=episode_id)
    flows = sum_flows(entry.transfer for entry in entries)
    book = settlement.rewards if settlement else None
    now_ms = app.clock.now_ms()
    now = max(now_ms, found.clock_ms)
    account = user_account(person.name, found.terms.currency).id
    own = [position for position in positions if position.account == account]
    return page(
        request,
        "episode.html",
        problem=problem,
        episode=found,
        terms=found.terms,
        person=person,
        purse=purse,
        own=own,
        took=next((position for position in own if position.number == took), None),
        positions=positions,
        shown=_SHOWN,
        pools=find_pools(found, positions),
        can=find_options(found, person.name, now),
        move=find_next_move(found, positions, now),
        job=job,
        timeline=make_timeline(found, positions, snapshot.measurements, now),
        told=snapshot.measurements,
        now_ms=now_ms,
        dispute=DISPUTE,
        key=secrets.token_urlsafe(18),
        ended=found.state in ENDED,
        mine=next((flow for flow in flows if flow["account"] == account), None),
        statements=snapshot.statements,
        settlement=settlement,
        rewards=tuple((item, explain(item)) for item in (book.rewards if book else ())),
        flows=flows,
        pots=pots,
    )


@router.get("/episodes/{episode_id}/{name}.json")
def chart(request: Request, app: App, episode_id: EpisodeId, name: str) -> Response:
    """Send a chart of an episode, or its whole record."""
    from heretix.report.charts import credited_path, market_history

    if name == "record":
        record = read_episode(app.exchange.record, episode_id)
        content = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        response = fresh(request, content.encode(), "application/json")
        response.headers["content-disposition"] = f'attachment; filename="{episode_id}.json"'
        return response
    snapshot = read_episode(app.exchange.snapshot, episode_id)
    found = snapshot.episode
    if name == "market" and found.market is not None:
        # Like the pools beside it: what came after the close was given back.
        kept = found.select_positions(snapshot.positions)
        made = market_history(kept, currency=CURRENCIES[found.terms.currency])
    elif name == "path":
        made = credited_path(found, snapshot.settlement.outcome if snapshot.settlement else None)
    else:
        raise HTTPException(404, f"`{name}` isn't a chart of this episode")
    return fresh(request, page_chart(made), "application/json")


@router.get("/episodes/{episode_id}/verification")
def verification(request: Request, app: App, episode_id: EpisodeId) -> Response:
    """Redo the episode from its record, and its measurements from their samples."""
    with app.store.snapshot():
        record = read_episode(app.exchange.record, episode_id)
        found, told = app.exchange.episode(episode_id), app.exchange.measurements(episode_id)
    again = recheck(app.store, found, told)
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


def purse_of(app: AppState, person: Person, currency: str) -> int | None:
    """Read what somebody has to spend; None for who hasn't joined yet."""
    account = user_account(person.name, currency).id
    held = app.exchange.balances(person=person.name, currency=currency)
    return next((item.balance for item in held if item.account.id == account), None)
