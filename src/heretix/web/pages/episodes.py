"""Episodes: the list, and everything there is to know of one."""

import json
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Person, Role
from heretix.core.errors import HeretixError
from heretix.economy.audit import verify_episode
from heretix.economy.episode.state import (
    ENDED,
    Challenge,
    Episode,
    Fate,
    State,
    kept_positions,
)
from heretix.economy.exchange import EpisodeSnapshot, StoredMeasurement
from heretix.economy.judging.inputs import recheck
from heretix.economy.ledger import CURRENCIES, Transfer, user_account
from heretix.economy.market import Position, Side
from heretix.economy.moves import DISPUTE, MOVES, Move
from heretix.economy.rewards import explain
from heretix.web.auth import require
from heretix.web.dependencies import App, EpisodeId, Reader
from heretix.web.moves import read_episode
from heretix.web.state import AppState, app_state
from heretix.web.templating import fresh, page, page_chart

# An episode as its page shows it: where it stands, what can be done now, and who got what.

Mark = Literal["done", "now", "ahead"]
_WAITING: Final = frozenset({Fate.COMMITTED, Fate.REVEALED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """One point of an episode's life."""

    label: str
    at_ms: int | None
    """None while it hasn't happened and has no fixed time."""
    not_before_ms: int | None
    """The earliest that it can happen, as long as it hasn't."""
    mark: Mark
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextMove:
    """What an operator can do next."""

    name: str
    label: str
    why: str
    from_ms: int | None = None
    """When its time comes, if it hasn't yet."""

    @property
    def definition(self) -> Move:
        """The move, with its fields."""
        return next(move for move in MOVES if move.name == self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One side of a market."""

    side: Side
    stakes: int
    bets: int
    house: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Doable:
    """What somebody can do in an episode at this moment."""

    bet: bool
    commit: bool
    reveal: tuple[Challenge, ...]
    """One's own commitments that are still to be revealed."""
    dispute: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What an account put into an episode, and what it got back."""

    account: str
    paid: int
    got: int

    @property
    def net(self) -> int:
        """What came of it."""
        return self.got - self.paid


def pending(episode: Episode) -> list[Challenge]:
    """Challenges that are left to judge."""
    return [challenge for challenge in episode.challenges if challenge.fate in _WAITING]


def pools(episode: Episode, positions: Sequence[Position]) -> list[Pool]:
    """The two sides, with the stakes that count."""
    kept = kept_positions(episode, positions)
    found = []
    for side in Side:
        own = [position for position in kept if position.side is side]
        house = [position for position in own if position.house]
        found.append(
            Pool(
                side=side,
                stakes=sum(position.stake for position in own),
                bets=len(own) - len(house),
                house=sum(position.stake for position in house),
            )
        )
    return found


def doable(episode: Episode, person: str | None, now_ms: int) -> Doable:
    """What a person can do now; the exchange has the last word."""
    terms, now = episode.terms, max(now_ms, episode.clock_ms)
    taking = episode.state in {State.OPEN, State.CHALLENGE} and now <= terms.close_until_ms
    begun = episode.state is State.CHALLENGE or (
        episode.state is State.OPEN and now >= terms.challenge_from_ms
    )
    own = None if person is None else user_account(person, terms.currency).id
    revealing = episode.state is State.CHALLENGE and now <= terms.freeze_at_ms
    return Doable(
        bet=taking,
        commit=taking and begun,
        reveal=tuple(
            challenge
            for challenge in episode.challenges
            if revealing and challenge.account == own and challenge.fate is Fate.COMMITTED
        ),
        dispute=_disputable(episode, now),
    )


def next_move(episode: Episode, positions: Sequence[Position], now_ms: int) -> NextMove | None:
    """What an operator does next; None when nothing is left to do."""
    now = max(now_ms, episode.clock_ms)
    move: NextMove | None = None
    match episode.state:
        case State.DRAFT if now <= episode.terms.challenge_from_ms:
            move = NextMove(name="open", label="Open it", why=_WHY["open"])
        case State.OPEN:
            due = _later(episode.terms.challenge_from_ms, now)
            label = "Let evidence be committed"
            move = NextMove(name="begin", label=label, why=_WHY["begin"], from_ms=due)
        case State.CHALLENGE:
            due = _later(episode.terms.freeze_at_ms, now)
            move = NextMove(name="freeze", label="Freeze it", why=_WHY["freeze"], from_ms=due)
        case State.FROZEN:
            move = _frozen_move(episode, positions, now)
        case State.DISPUTED if episode.disputes[-1].upheld is None:
            label = "Rule on the dispute"
            move = NextMove(name="rule", label=label, why=_WHY["rule"])
        case State.MEASURED | State.DISPUTED:
            most = episode.terms.parameters.dispute_rounds
            ruled = len(episode.disputes) >= most
            due = None if ruled else _later(_dispute_end(episode), now)
            move = NextMove(name="settle", label="Settle it", why=_WHY["settle"], from_ms=due)
    return move


def timeline(
    episode: Episode,
    positions: Sequence[Position],
    told: Sequence[StoredMeasurement],
    now_ms: int,
) -> list[Milestone]:
    """The life of an episode, what was and what is to come."""
    terms, now = episode.terms, max(now_ms, episode.clock_ms)
    rules = terms.parameters
    first = next((item.at_ms for item in told if item.stage == "first"), None)
    frozen, measured = episode.frozen_ms, episode.measured_ms
    freeze = frozen or terms.freeze_at_ms
    second = freeze + rules.durability_ms
    disputed = (measured or second) + rules.dispute_window_ms
    ended = episode.clock_ms if episode.state in ENDED else None
    points: list[tuple[str, int | None, int | None, bool, str]] = [
        ("Opened", positions[0].at_ms if positions else None, None, bool(positions), ""),
        ("Evidence from", terms.challenge_from_ms, None, now >= terms.challenge_from_ms, ""),
        ("The close may fall from", terms.close_from_ms, None, now >= terms.close_from_ms, ""),
        (
            "Bets and commitments until",
            terms.close_until_ms,
            None,
            now >= terms.close_until_ms,
            "what comes after the effective close is given back",
        ),
        ("Reveals until", terms.freeze_at_ms, None, now >= terms.freeze_at_ms, ""),
        ("Frozen", frozen, freeze, frozen is not None, "the close and the judges are drawn"),
        ("First measurement", first, freeze, first is not None, "once every challenge is judged"),
        ("Second measurement", measured, second, measured is not None, "does the change last?"),
        (
            "Disputes until",
            None if measured is None else disputed,
            disputed,
            measured is not None and now >= disputed,
            "",
        ),
        ("Void" if episode.state is State.VOID else "Settled", ended, disputed, bool(ended), ""),
    ]
    current = next((n for n, point in enumerate(points) if not point[3]), len(points))
    return [
        Milestone(
            label=label,
            at_ms=at_ms,
            not_before_ms=not_before_ms if at_ms is None else None,
            mark="done" if done else "now" if number == current else "ahead",
            note=note,
        )
        for number, (label, at_ms, not_before_ms, done, note) in enumerate(points)
    ]


def flows(transfers: Iterable[Transfer]) -> list[Flow]:
    """Sum what each account put in and got back, from an episode's transfers; all is 0."""
    paid: defaultdict[str, int] = defaultdict(int)
    got: defaultdict[str, int] = defaultdict(int)
    for transfer in transfers:
        paid[transfer.debit] += transfer.amount
        got[transfer.credit] += transfer.amount
    found = [
        Flow(account=account, paid=paid[account], got=got[account])
        for account in paid.keys() | got.keys()
    ]
    return sorted(found, key=lambda flow: (not flow.account.startswith("user:"), flow.account))


def _frozen_move(episode: Episode, positions: Sequence[Position], now: int) -> NextMove:
    left = len(pending(episode))
    if left:
        label = f"Judge {left} challenge{'s' if left > 1 else ''}"
        return NextMove(name="judge", label=label, why=_WHY["judge"])
    kept = kept_positions(episode, positions)
    if {position.side for position in kept if not position.house} != set(Side):
        return NextMove(name="measure", label="Conclude it", why=_WHY["conclude"])
    if not episode.measurements:
        return NextMove(name="measure", label="Measure the judges", why=_WHY["first"])
    assert episode.frozen_ms is not None
    due = _later(episode.frozen_ms + episode.terms.parameters.durability_ms, now)
    return NextMove(
        name="measure",
        label="Measure the judges again",
        why=_WHY["second"],
        from_ms=due,
    )


def _later(at_ms: int, now: int) -> int | None:
    return at_ms if now < at_ms else None


def _dispute_end(episode: Episode) -> int:
    assert episode.measured_ms is not None
    return episode.measured_ms + episode.terms.parameters.dispute_window_ms


def _disputable(episode: Episode, now: int) -> bool:
    if episode.state not in {State.MEASURED, State.DISPUTED}:
        return False
    if episode.disputes and episode.disputes[-1].upheld is None:
        return False
    rounds_left = len(episode.disputes) < episode.terms.parameters.dispute_rounds
    return rounds_left and now < _dispute_end(episode)


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


# Episodes: the list, and everything there is to know of one.

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])


_PAGE: Final = 25
_SHOWN: Final = 200
"""Bets and payments that the page shows; the record has all of them."""
_ALL: Final = 2**31


@router.get("/episodes")
def episodes(
    request: Request,
    app: App,
    person: Reader,
    state: Annotated[State | None, Query()] = None,
    start: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """Episodes, the newest first."""
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
    app = app_state(request)
    # One transaction, and the snapshot first: on PostgreSQL it fixes the moment that all see.
    with app.store.snapshot():
        snapshot = read_episode(app.exchange.snapshot, episode_id)
        found, positions = snapshot.episode, snapshot.positions
        purse = purse_of(app, person, found.terms.currency)
        job = app.jobs.moving(episode_id)
        paid = _paid(app, snapshot)
    now_ms = app.clock.now_ms()
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
        pools=pools(found, positions),
        can=doable(found, person.name, now_ms),
        move=next_move(found, positions, now_ms),
        job=job,
        timeline=timeline(found, positions, snapshot.measurements, now_ms),
        told=snapshot.measurements,
        now_ms=now_ms,
        dispute=DISPUTE,
        key=secrets.token_urlsafe(18),
        ended=found.state in ENDED,
        mine=next((flow for flow in paid["flows"] if flow.account == account), None),
        **paid,
    )


@router.get("/episodes/{episode_id}/{name}.json")
def chart(request: Request, app: App, episode_id: EpisodeId, name: str) -> Response:
    """A chart of an episode, or its whole record."""
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
        kept = kept_positions(found, snapshot.positions)
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
    """What somebody has to spend; None for who hasn't joined yet."""
    account = user_account(person.name, currency).id
    held = app.exchange.balances(person=person.name, currency=currency)
    return next((item.balance for item in held if item.account.id == account), None)


def _paid(app: AppState, snapshot: EpisodeSnapshot) -> dict[str, Any]:
    """Collect what was paid to whom and why; how it ended, once it has."""
    found, settlement = snapshot.episode, snapshot.settlement
    book = settlement.rewards if settlement else None
    entries = app.exchange.history(episode=found.id, limit=_ALL) if settlement else []
    return {
        "statements": snapshot.statements,
        "settlement": settlement,
        "rewards": tuple((item, explain(item)) for item in (book.rewards if book else ())),
        "flows": flows(entry.transfer for entry in entries),
        "pots": [] if found.state is State.DRAFT else app.exchange.balances(episode=found.id),
    }
