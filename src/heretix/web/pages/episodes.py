"""Episodes: the list, and everything there is to know of one."""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Person, Role
from heretix.core.errors import HeretixError
from heretix.economy.audit import verify_episode
from heretix.economy.episode.moves import DueStep, find_due
from heretix.economy.episode.settlement import summarize
from heretix.economy.episode.state import ENDED, Episode, Fate, State
from heretix.economy.exchange import LISTED, EpisodeSnapshot, EpisodeSummary, Tally
from heretix.economy.ledger import PPM, user_account
from heretix.economy.market import Position, Side
from heretix.economy.moves import DISPUTE, MOVES
from heretix.economy.rewards import explain
from heretix.report.figures import Line, Mark, axis, dumbbell, timeline
from heretix.report.share import share_episode
from heretix.web.auth import Costly, Reader, require
from heretix.web.moves import EpisodeId, read_episode
from heretix.web.state import App, AppState, app_state
from heretix.web.templating import page, send_with_etag

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
    "conclude": "On one side nobody but the house has a stake, and no evidence was accepted, so "
    "there is nothing to measure for: everything will be given back.",
    "first": "Models that took no part are asked without and with all accepted evidence.",
    "second": "The same judges again, after the durability window: only what lasts counts.",
    "rule": "A larger panel of judges is asked, twice; its word stands.",
    "settle": "Everybody is paid, once, line by line.",
}

_DUE: Final[Mapping[DueStep, str]] = {
    "begin": "evidence can be committed",
    "freeze": "the freeze, which draws the close and the judges",
    "judge": "challenges are judged",
    "conclude": "it is concluded, since there is nothing to measure for",
    "first": "the judges are measured",
    "second": "the judges are measured again",
    "rule": "the dispute is ruled on",
    "settle": "the settlement",
}


def find_options(episode: Episode, person: str, now: int) -> dict[str, Any]:
    """Find what a person can do now; the exchange has the last word."""
    terms, state = episode.terms, episode.state
    taking = state in {State.OPEN, State.CHALLENGE} and now <= terms.close_until_ms
    begun = state is State.CHALLENGE or (state is State.OPEN and now >= terms.challenge_from_ms)
    own = user_account(person, terms.currency).id
    revealing = state is State.CHALLENGE and terms.close_until_ms < now <= terms.freeze_at_ms
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
    pending = [challenge for challenge in episode.challenges if not challenge.is_judged]
    # By hand a dispute can be ruled on at once, whatever its ground.
    found = find_due(episode, positions)
    step: str
    if found is not None:
        step, due = found.step, 0 if found.step == "rule" else found.at_ms
    elif episode.state is State.DRAFT and now <= episode.terms.challenge_from_ms:
        step, due = "open", 0
    else:
        return None
    name, label = _STEPS[step]
    return {
        "name": name,
        "label": label.format(len(pending), "s" if len(pending) > 1 else ""),
        "why": _WHY[step],
        "from_ms": due if now < due else None,
        "definition": next(move for move in MOVES if move.name == name),
    }


def find_next_due(
    episode: Episode, positions: Sequence[Position], now: int
) -> dict[str, Any] | None:
    """Find what workers do next by themselves, and from when, unless that is now."""
    due = find_due(episode, positions)
    if due is None:
        return None
    return {"label": _DUE[due.step], "at_ms": due.at_ms if now < due.at_ms else None}


def make_timeline(snapshot: EpisodeSnapshot, now: int) -> list[dict[str, Any]]:
    """Tell the life of an episode: the moment of each point, or the earliest that it can be."""
    episode, told = snapshot.episode, snapshot.measurements
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
        ("Opened", opened := snapshot.opened_ms, None, opened is not None, ""),
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


def _dispute_end(episode: Episode) -> int:
    assert episode.measured_ms is not None
    return episode.measured_ms + episode.terms.parameters.dispute_window_ms


router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])
_PAGE: Final = 25


@router.get("/episodes")
def episodes(
    request: Request,
    app: App,
    person: Reader,
    state: Annotated[State | None, Query()] = None,
    start: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """List episodes, the newest first."""
    with app.store.snapshot():
        found = app.exchange.episodes(state=state, limit=_PAGE + 1, offset=start)
        ended = _tell_ended(app, found[:_PAGE])
    return page(
        request,
        "episodes.html",
        episodes=found[:_PAGE],
        ended=ended,
        sides=tuple(Side),
        states=tuple(State),
        state=state,
        start=start,
        after=start + _PAGE if len(found) > _PAGE else None,
        page_size=_PAGE,
        person=person,
    )


def _tell_ended(app: AppState, found: Sequence[EpisodeSummary]) -> dict[str, str]:
    """Say of episodes that are over how they ended, which never changes."""

    def tell(episode_id: str) -> str:
        return share_episode(*read_episode(app.exchange.outcome, episode_id)).sentence

    return {
        item.id: str(app.cache.values.get(("ended", item.id), partial(tell, item.id)))
        for item in found
        if item.state in ENDED
    }


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
        snapshot = read_episode(partial(app.exchange.snapshot, person=person.name), episode_id)
        found, outsiders = snapshot.episode, snapshot.outsiders
        purse = purse_of(app, person, found.terms.currency)
        job = app.jobs.find_moving(episode_id)
        settlement, drafted = snapshot.settlement, found.state is State.DRAFT
        pots = [] if drafted else app.exchange.balances(episode=episode_id)
    outcome, book = (settlement.outcome, settlement.rewards) if settlement else (None, None)
    now_ms = app.clock.now_ms()
    now = max(now_ms, found.clock_ms)
    options = find_options(found, person.name, now)
    return page(
        request,
        "episode.html",
        problem=problem,
        episode=found,
        terms=found.terms,
        market_drawn=draw_market(snapshot.tally),
        path_drawn=draw_path(found),
        said=share_episode(found, outcome).sentence,
        person=person,
        purse=purse,
        account=user_account(person.name, found.terms.currency).id,
        own=snapshot.own,
        took=next((position for position in snapshot.own if position.number == took), None),
        positions=snapshot.latest,
        shown=LISTED,
        tally=snapshot.tally,
        can=options,
        move=find_next_move(found, outsiders, now),
        next=find_next_due(found, outsiders, now),
        forfeit=sum(min(c.least, c.stake) for c in options["reveal"]),
        job=job,
        timeline=make_timeline(snapshot, now),
        told=snapshot.measurements,
        now_ms=now_ms,
        dispute=DISPUTE,
        key=secrets.token_urlsafe(18),
        ended=found.state in ENDED,
        mine=snapshot.own_sum,
        statements=snapshot.statements,
        settlement=settlement,
        lines=snapshot.lines,
        short=summarize(found, settlement) if settlement else (),
        rewards=tuple((item, explain(item)) for item in (book.rewards if book else ())),
        pots=pots,
    )


@router.get("/episodes/{episode_id}/record.json")
def record(request: Request, app: App, episode_id: EpisodeId) -> Response:
    """Send the whole record of an episode, to verify it elsewhere."""
    whole = read_episode(app.exchange.record, episode_id)
    content = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    response = send_with_etag(request, content.encode(), "application/json")
    response.headers["content-disposition"] = f'attachment; filename="{episode_id}.json"'
    return response


def draw_market(tally: Tally) -> Markup:
    """Draw the probability that the market implied, from the house's seed on."""
    points: list[tuple[datetime, float, tuple[float, float]]] = []
    for at_ms, market in tally.course:
        implied = float(market.probability(Side.HERETIC))
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        points.append((at, implied, (implied, implied)))
    return timeline([Line(label="the belief goes up", lens="heretic", points=points)])


def draw_path(episode: Episode) -> Markup:
    """Draw the credited belief: where it began, and where each accepted step took it."""
    path = [episode.terms.c0_ppm, *(step.c_to_ppm for step in episode.steps)]
    marks = [
        Mark(label=f"step {number}" if number else "first", prob=ppm / PPM, ci=(ppm / PPM,) * 2)
        for number, ppm in enumerate(path)
    ]
    return dumbbell(marks) + axis() if len(marks) > 1 else Markup("")


@router.get("/episodes/{episode_id}/verification", dependencies=[Costly])
def verification(request: Request, app: App, episode_id: EpisodeId) -> Response:
    """Redo the episode from its record, and its measurements from their samples."""
    from heretix.economy.judging.inputs import recheck

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
