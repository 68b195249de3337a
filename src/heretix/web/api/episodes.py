"""Episodes over HTTP: terms, market, evidence, settlement, and every move."""

import inspect
from typing import Annotated, Any, Final, Self

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Role
from heretix.core.canonical import canonical_json, encode
from heretix.core.lenses import HEL, SHOWN_AS
from heretix.economy.audit import verify_episode
from heretix.economy.episode.state import (
    HOUR_MS,
    Direction,
    Episode,
    Fate,
    Ground,
    Parameters,
    State,
)
from heretix.economy.exchange import StoredStatement, TypicalRate
from heretix.economy.judging.workflow import DAY_MS, PRACTICE_JUDGES, PRACTICE_MODELS, Proposal
from heretix.economy.ledger import Code
from heretix.economy.market import MAX_POOL, Quote, Side, price_ppm
from heretix.economy.moves import MOVES, Move
from heretix.economy.sentences import Surface, sentence
from heretix.web.api import resource
from heretix.web.api.jobs import BEGUN, JobView
from heretix.web.auth import Costly, CurrentVisit, Explorer
from heretix.web.moves import (
    EpisodeId,
    body_model,
    find_episode,
    make_move,
    read_episode,
    submit_draft,
    submit_move,
)
from heretix.web.problems import refusals
from heretix.web.state import App
from heretix.web.templating import send_with_etag

# Moments are milliseconds since 1970, beliefs parts per million, amounts whole minor units.


class MarketView(resource.View):
    """Holdings of a market: money, and micro-shares of each side."""

    money: int
    heretic: int
    orthodox: int


class PositionView(resource.View):
    """One bet."""

    number: int
    account: str
    side: Side
    stake: int
    shares: int  # in micro-shares
    at_ms: int
    house: bool  # the seed, which is the house's own money


class ChallengeView(resource.View):
    """Evidence on its way: a commitment, then what it hid, then a ruling."""

    number: int
    account: str
    direction: Direction | None  # sealed until the reveal
    commitment: str
    stake: int
    least: int  # of it, what is lost if it fails
    at_ms: int
    bundle_sha256: str | None
    fate: Fate


class StepView(resource.View):
    """One accepted piece of evidence, and how far it moved the credited path."""

    number: int
    account: str
    evidence: str
    c_from_ppm: int
    c_to_ppm: int
    bond: int


class DisputeView(resource.View):
    """A claim that the measurement is wrong, with money behind it."""

    round: int
    account: str
    ground: Ground
    bond: int
    at_ms: int
    upheld: bool | None


class EpisodeLine(resource.View):
    """One line of a list of episodes."""

    id: str
    claim: str
    currency: str
    state: State
    market: MarketView | None
    position_count: int
    clock_ms: int
    close_ms: int | None
    created_ms: int
    updated_ms: int


class HeldPositionView(resource.View):
    """A bet of one's own, and the episode it is in."""

    episode: str
    claim: str
    state: State
    position: PositionView
    late: bool  # it came after the effective close, so that it was given back


class ReasonView(resource.View):
    """Reason why money moved: a code, its parameters, and what it came from."""

    code: str
    parameters: dict[str, int | str]
    because: "ReasonView | None"


class ExplainedView(resource.View):
    """Lines of a payment: to whom, how much and why, as data and in words."""

    transfer: str
    account: str
    amount: int
    code: Code
    reason: ReasonView
    text: str


class StatementView(resource.View):
    """Statement of one move: each line that it paid, explained."""

    group: str
    move: str
    lines: list[ExplainedView]
    at_ms: int


class EpisodeView(resource.View):
    """An episode, as it stands."""

    id: str
    state: State
    terms: dict[str, Any]
    terms_hash: str | None
    belief_ppm: int
    market: MarketView | None
    heretic_ppm: int | None  # the probability of a Heretic win that the market's price implies
    position_count: int
    clock_ms: int
    close_ms: int | None
    frozen_ms: int | None
    measured_ms: int | None
    seed: str | None  # in hex, once the freeze has revealed it
    judges: list[str]
    challenges: list[ChallengeView]
    steps: list[StepView]
    measurements: list[dict[str, Any]]
    disputes: list[DisputeView]

    @classmethod
    def of(cls, episode: Episode) -> "EpisodeView":
        """Show an episode as anybody may see it."""
        told, market = encode(episode), episode.market
        heretic_ppm = None if market is None else price_ppm(market.probability(Side.HERETIC))
        same = {name: told[name] for name in cls.model_fields if name in told}
        return cls(belief_ppm=episode.belief_ppm, heretic_ppm=heretic_ppm, **same)


class QuoteView(BaseModel):
    """Quote of a bet: what it buys now, and what it can come to."""

    side: Side
    stake: int
    shares: int  # in micro-shares; what `min_shares` may ask for
    average_price_ppm: int
    marginal_price_ppm: int
    implied_ppm: int
    tau_max_ppm: int
    fee_ppm: int
    floor: int  # the least gain, before the fee, if the side wins at the full rate
    floor_after_fee: int
    typical_rate_ppm: int | None  # median of the latest episodes that a side won; None: none yet
    typical_gain: int | None  # the least gain at that rate, after the fee
    worst_case: int  # the most that it can lose

    @classmethod
    def of(cls, offer: Quote, typical: TypicalRate | None) -> "QuoteView":
        """Show a quote in whole numbers."""
        as_is = ("side", "stake", "shares", "tau_max_ppm", "fee_ppm", "worst_case")
        return cls(
            **{name: getattr(offer, name) for name in as_is},
            average_price_ppm=price_ppm(offer.average_price),
            marginal_price_ppm=price_ppm(offer.marginal_price),
            implied_ppm=price_ppm(offer.probability),
            floor=offer.floor(offer.tau_max_ppm),
            floor_after_fee=offer.floor_after_fee(offer.tau_max_ppm),
            typical_rate_ppm=typical.rate_ppm if typical else None,
            typical_gain=offer.floor_after_fee(typical.rate_ppm) if typical else None,
        )


class BreachView(resource.View):
    """A rule that doesn't hold, and of what."""

    rule: str
    subject: str
    detail: str


class EpisodeAuditView(resource.View):
    """Tell whether an episode follows from its own record."""

    ok: bool
    breaches: list[BreachView]


class LeastStake(BaseModel):
    """Least stake of a challenge."""

    amount: int


router = resource.make_read_router("episodes")
changes = resource.make_write_router("episodes")


@router.get("/episodes")
def list_episodes(
    app: App,
    state: Annotated[State | None, Query()] = None,
    limit: resource.Limit = 50,
    cursor: resource.Cursor = None,
) -> resource.Page[EpisodeLine]:
    """Episodes, the newest first."""
    (start,) = resource.read_cursor(cursor, int) or (0,)
    found = app.exchange.episodes(state=state, limit=limit + 1, offset=start)
    return resource.page_of(found, limit, lambda _: (start + limit,), EpisodeLine.model_validate)


@router.get("/episodes/{episode_id}")
def get_episode(app: App, episode_id: EpisodeId) -> EpisodeView:
    """An episode: terms, market, evidence, measurements, disputes."""
    return EpisodeView.of(find_episode(app, episode_id))


@router.get("/episodes/{episode_id}/positions")
def list_positions(
    app: App, episode_id: EpisodeId, limit: resource.Limit = 100, cursor: resource.Cursor = None
) -> resource.Page[PositionView]:
    """An episode's bets, in their order; who made each is in its account's id."""
    (start,) = resource.read_cursor(cursor, int) or (0,)
    found = read_episode(
        lambda found: app.exchange.positions_from(found, start, limit=limit + 1), episode_id
    )
    # Bets are numbered in their order, and none is ever dropped.
    return resource.page_of(
        found, limit, lambda last: (last.number + 1,), PositionView.model_validate
    )


@router.get("/episodes/{episode_id}/statements")
def list_statements(
    app: App, episode_id: EpisodeId, limit: resource.Limit = 100, cursor: resource.Cursor = None
) -> resource.Page[StatementView]:
    """Statements: what each move paid to whom, and why, line by line."""
    found = read_episode(app.exchange.episode, episode_id)
    surface = Surface(found.terms.currency)

    def view(statement: StoredStatement) -> StatementView:
        lines = [
            {**encode(line), "text": sentence(line.reason, surface)} for line in statement.lines
        ]
        return StatementView.model_validate({**encode(statement), "lines": lines})

    statements = app.exchange.statements(episode_id)
    return resource.slice_of(statements, view, limit=limit, cursor=cursor)


@router.get(
    "/episodes/{episode_id}/record", response_model=dict[str, Any], responses=resource.NOT_CHANGED
)
def get_episode_record(
    request: Request,
    app: App,
    episode_id: EpisodeId,
    against: Annotated[
        int | None,
        Query(ge=1, le=resource.MAX_SEQ, description="Event of a head to prove the record for."),
    ] = None,
) -> Response:
    """Everything that is needed to redo an episode elsewhere: its events, and proofs for the heads
    that are published now.

    Its ETag changes with every move, of other episodes too: the newest proof is of all events."""
    found = read_episode(lambda of: app.exchange.record(of, against=against), episode_id)
    text = canonical_json(found)
    return send_with_etag(request, text.encode("utf-8", "backslashreplace"), "application/json")


@router.get("/episodes/{episode_id}/verify", dependencies=[Costly])
def audit_episode(app: App, episode_id: EpisodeId) -> EpisodeAuditView:
    """Redo an episode from its record, and say where it differs."""
    record = read_episode(app.exchange.record, episode_id)
    return EpisodeAuditView.model_validate(verify_episode(record))


@router.get("/episodes/{episode_id}/quote")
def quote_stake(
    app: App,
    episode_id: EpisodeId,
    side: Side,
    amount: Annotated[int, Query(ge=1, le=MAX_POOL, description="Whole minor units.")],
) -> QuoteView:
    """Quote of a bet: what it buys now, and what it can come to."""
    offer = read_episode(lambda found: app.exchange.quote(found, side, amount), episode_id)
    return QuoteView.of(offer, app.exchange.typical_rate())


@router.get("/episodes/{episode_id}/least-challenge")
def least_challenge(app: App, episode_id: EpisodeId, person: Explorer) -> LeastStake:
    """Least stake of a challenge by the caller: less for a good record."""
    least = app.actor(person.name).least_challenge(find_episode(app, episode_id))
    return LeastStake(amount=least)


operations = resource.make_write_router("operations", role=Role.OPERATOR)
_VIEWS: Final[dict[str, Any]] = {
    "challenge": ChallengeView,
    "dispute": DisputeView,
    "episode": EpisodeView,
    "position": PositionView,
}


def add_operation(move: Move) -> None:
    """Add the operation of a move to the API."""

    def operate(
        app: App, visit: CurrentVisit, episode_id: EpisodeId, key: resource.Key, given: Any = None
    ) -> Any:
        fields = given if given is not None or not move.schema else body_model(move)()
        values = fields.model_dump() if fields else {}
        if move.plan is not None:
            return JobView.of(submit_move(app, visit, move, episode_id, values, f"api {key}"))
        # Among the keys of the exchange, which are as long as those of the API.
        own_key = key if len(key) > 196 else f"api {key}"
        made = make_move(app, visit, move, episode_id, values, own_key)
        return EpisodeView.of(made) if isinstance(made, Episode) else made

    needed = any(field.required for field in move.fields)
    parameters = dict(inspect.signature(operate).parameters)
    given = parameters.pop("given")
    if move.schema:
        body = body_model(move)
        given = given.replace(annotation=body if needed else body | None)
        parameters["given"] = given.replace(default=inspect.Parameter.empty) if needed else given
    operate.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    measured = move.plan is not None
    (operations if move.role == "operator" else changes).add_api_route(
        f"/episodes/{{episode_id}}/{move.path or move.name}",
        operate,
        methods=["POST"],
        name=move.operation,
        description=move.help,
        summary=move.operation.replace("_", " ").title(),
        status_code=202 if measured else 200 if move.returns == "episode" else 201,
        response_model=JobView if measured else _VIEWS[move.returns],
        responses=BEGUN if measured else None,
    )


for _move in MOVES:
    add_operation(_move)


Model = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9][!-~]*$", strict=True)]
Span = Annotated[int, Field(ge=0, le=3650 * DAY_MS, strict=True, description="Milliseconds.")]


class ProposalGiven(BaseModel):
    """An episode to be. Without models, planted ones play: to learn the game without a key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: str = Field(min_length=1, max_length=2_000)
    models: list[Model] = Field(default=list(PRACTICE_MODELS), min_length=1, max_length=8)
    judge_pool: list[Model] = Field(default=list(PRACTICE_JUDGES), min_length=3, max_length=64)
    lens: str = Field(default=HEL, pattern=SHOWN_AS)
    bank: str = Field(default="rpl_v1", pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)
    K: int = Field(default=16, ge=1, le=64, strict=True)
    R: int = Field(default=2, ge=1, le=32, strict=True)
    T: int = Field(default=16, ge=1, le=64, strict=True)
    B: int = Field(default=5_000, ge=100, le=100_000, strict=True)
    judges: int = Field(default=5, ge=3, le=64, strict=True)
    seed_stake: int = Field(default=100_000, ge=1, le=MAX_POOL, strict=True)
    seed_heretic_ppm: int = Field(default=500_000, ge=1, le=999_999, strict=True)
    challenge_after_ms: Span = 0
    challenge_for_ms: Span = 7 * DAY_MS
    candle_ms: Span = DAY_MS
    reveal_for_ms: Span = DAY_MS
    durability_ms: Span = 7 * DAY_MS
    dispute_window_ms: Span = 48 * HOUR_MS
    draft_only: bool = Field(default=False, description="Written down, but not opened yet.")

    @field_validator("models", "judge_pool")
    @classmethod
    def _refuse_paths(cls, models: list[str]) -> list[str]:
        for name in models:
            if name.startswith("local:") and ("/" in name or "\\" in name):
                raise ValueError(f"must name a local model by its name, got {name!r}: no path")
        return models

    @model_validator(mode="after")
    def _check_candle(self) -> Self:
        if self.candle_ms > self.challenge_for_ms:
            raise ValueError("`candle_ms` must not be longer than `challenge_for_ms`")
        return self

    def proposal(self) -> Proposal:
        """Make of it what the economy takes."""
        rules = ("judges", "durability_ms", "dispute_window_ms")
        given = {name: getattr(self, name) for name in type(self).model_fields}
        parameters = Parameters(**{name: given.pop(name) for name in rules})
        del given["draft_only"]
        given |= {"models": tuple(self.models), "judge_pool": tuple(self.judge_pool)}
        return Proposal(**given, parameters=parameters)


@operations.post("/episodes", status_code=202, responses=BEGUN | refusals(404))
def create_episode(
    given: ProposalGiven, app: App, visit: CurrentVisit, key: resource.Key
) -> JobView:
    """Have measured what the models believe now, then fix the terms and, unless told not to, open
    it. The job says how far that is, and which episode came of it."""
    opens = not given.draft_only
    return JobView.of(submit_draft(app, visit, given.proposal(), opens=opens, key=f"api {key}"))
