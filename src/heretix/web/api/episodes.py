"""Episodes over HTTP: terms, market, evidence, settlement, and every move."""

from typing import Annotated, Any, Self

from fastapi import Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Person, Role
from heretix.core.canonical import canonical_json, encode
from heretix.core.errors import RecordError, UsageError
from heretix.core.lenses import HEL, SHOWING
from heretix.economy.audit import verify_episode
from heretix.economy.episode.challenges import SECRET_BYTES, evidence_commitment
from heretix.economy.episode.state import HOUR_MS, Episode, Fate, Ground, Parameters, State
from heretix.economy.judging.gate import Direction
from heretix.economy.judging.panel import objection
from heretix.economy.judging.workflow import DAY_MS, PRACTICE_JUDGES, PRACTICE_MODELS, Proposal
from heretix.economy.ledger import Code, user_account
from heretix.economy.market import MAX_POOL, Market, Quote, Side, price_ppm
from heretix.evidence.bundle import Bundle, dump_bundle, read_bundle
from heretix.web.api.jobs import BEGUN, JobView
from heretix.web.api.resource import (
    MAX_SEQ,
    NOT_CHANGED,
    Cursor,
    Key,
    Limit,
    Page,
    cursor_of,
    read_cursor,
    resource,
    slice_of,
    writes,
)
from heretix.web.auth import VisitNow, require
from heretix.web.moves import Beginning, begun, exchange_of, hearing_cost, known_episode, note_move
from heretix.web.state import desk_of
from heretix.web.templating import fresh

# Episodes as the API shows them. Moments are milliseconds since 1970, beliefs parts per million,
# amounts whole minor units.


class _View(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class MarketView(_View):
    """What a market holds: money, and micro-shares of each side."""

    money: int
    heretic: int
    orthodox: int


class PositionView(_View):
    """One bet."""

    number: int
    account: str
    side: Side
    stake: int
    shares: int
    """In micro-shares."""
    at_ms: int
    house: bool
    """The seed, which is the house's own money."""


class ChallengeView(_View):
    """Evidence on its way: a commitment, then what it hid, then a ruling."""

    number: int
    account: str
    direction: Direction
    commitment: str
    stake: int
    at_ms: int
    positions_before: int
    bundle_sha256: str | None
    fate: Fate


class StepView(_View):
    """One accepted piece of evidence, and how far it moved the credited path."""

    number: int
    account: str
    evidence: str
    c_from_ppm: int
    c_wanted_ppm: int
    c_to_ppm: int
    bond: int


class DisputeView(_View):
    """A claim that the measurement is wrong, with money behind it."""

    round: int
    account: str
    ground: Ground
    bond: int
    at_ms: int
    upheld: bool | None


class EpisodeLine(_View):
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


class HeldPositionView(_View):
    """A bet of one's own, and the episode it is in."""

    episode: str
    claim: str
    state: State
    position: PositionView
    late: bool
    """It came after the effective close, so that it was given back."""


class ExplainedView(_View):
    """Who received what, and why."""

    transfer: str
    account: str
    amount: int
    code: Code
    text: str


class StatementView(_View):
    """What one move paid, each line explained."""

    group: str
    move: str
    lines: list[ExplainedView]
    at_ms: int


class EpisodeView(_View):
    """An episode, as it stands."""

    id: str
    state: State
    terms: dict[str, Any]
    terms_hash: str | None
    belief_ppm: int
    market: MarketView | None
    heretic_ppm: int | None
    """The probability of a Heretic win that the market's price implies."""
    position_count: int
    clock_ms: int
    close_ms: int | None
    frozen_ms: int | None
    measured_ms: int | None
    seed: str | None
    """In hex, once the freeze has revealed it."""
    judges: list[str]
    challenges: list[ChallengeView]
    steps: list[StepView]
    measurements: list[dict[str, Any]]
    disputes: list[DisputeView]

    @classmethod
    def of(cls, episode: Episode) -> "EpisodeView":
        """An episode as anybody may see it."""
        told = encode(episode)
        return cls(
            belief_ppm=episode.belief_ppm,
            heretic_ppm=_implied(episode.market),
            **{name: told[name] for name in cls.model_fields if name in told},
        )


class QuoteView(BaseModel):
    """What a bet would buy now, and what it can come to."""

    side: Side
    stake: int
    shares: int
    """In micro-shares; what `min_shares` may ask for."""
    average_price_ppm: int
    marginal_price_ppm: int
    implied_ppm: int
    tau_max_ppm: int
    fee_ppm: int
    floor: int
    """The least gain, before the fee, if the side wins at the full rate."""
    floor_after_fee: int
    worst_case: int
    """The most that it can lose."""

    @classmethod
    def of(cls, offer: Quote) -> "QuoteView":
        """A quote in whole numbers."""
        return cls(
            side=offer.side,
            stake=offer.stake,
            shares=offer.shares,
            average_price_ppm=price_ppm(offer.average_price),
            marginal_price_ppm=price_ppm(offer.marginal_price),
            implied_ppm=price_ppm(offer.probability),
            tau_max_ppm=offer.tau_max_ppm,
            fee_ppm=offer.fee_ppm,
            floor=offer.floor(offer.tau_max_ppm),
            floor_after_fee=offer.floor_after_fee(offer.tau_max_ppm),
            worst_case=offer.worst_case,
        )


class BreachView(_View):
    """A rule that doesn't hold, and of what."""

    rule: str
    subject: str
    detail: str


class EpisodeAuditView(BaseModel):
    """Whether an episode follows from its own record."""

    ok: bool
    breaches: list[BreachView]


class LeastStake(BaseModel):
    """What must be put behind a challenge, at least."""

    amount: int


def _implied(market: Market | None) -> int | None:
    return None if market is None else price_ppm(market.probability(Side.HERETIC))


# Episodes: terms, market, evidence, settlement, and the moves that people make as themselves.

router = resource("episodes")
changes = writes("episodes")

EpisodeId = Annotated[str, Path(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)]
Explorer = Annotated[Person, require(Role.EXPLORER)]
Amount = Annotated[int, Field(ge=1, le=MAX_POOL, strict=True, description="Whole minor units.")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StakeGiven(_Given):
    """A bet."""

    side: Side
    amount: Amount
    min_shares: int = Field(
        ge=0, le=MAX_SEQ, strict=True, description="Refused if it would buy fewer micro-shares."
    )


class ChallengeGiven(_Given):
    """A commitment to evidence, which isn't shown yet."""

    direction: Direction
    commitment: Sha256 = Field(description="sha256(nonce ‖ bundle hash ‖ account id).")
    amount: Amount


class RevealGiven(_Given):
    """What a commitment hid."""

    challenge: int = Field(ge=0, le=1_000_000, strict=True)
    nonce: str = Field(pattern=rf"^[0-9a-f]{{{2 * SECRET_BYTES}}}$", description="In hex.")
    bundle_sha256: Sha256
    bundle: dict[str, Any] | None = Field(
        default=None, description="The bundle itself, unless the server has it."
    )


class DisputeGiven(_Given):
    """A bond against a result."""

    ground: Ground
    bond: Amount


@router.get("/episodes")
def list_episodes(
    request: Request,
    state: Annotated[State | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[EpisodeLine]:
    """Episodes, the newest first."""
    start = (read_cursor(cursor, int) or (0,))[0]
    exchange = exchange_of(desk_of(request))
    found = exchange.episodes(state=state, limit=limit + 1, offset=start)
    more = len(found) > limit
    return Page(
        items=[EpisodeLine.model_validate(line) for line in found[:limit]],
        next=cursor_of(start + limit) if more else None,
    )


@router.get("/episodes/{episode_id}")
def get_episode(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """An episode: terms, market, evidence, measurements, disputes."""
    return EpisodeView.of(known_episode(desk_of(request), episode_id))


@router.get("/episodes/{episode_id}/positions")
def list_positions(
    request: Request, episode_id: EpisodeId, limit: Limit = 100, cursor: Cursor = None
) -> Page[PositionView]:
    """An episode's bets, in their order; who made each is in its account's id."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    found = exchange_of(desk).positions(episode_id)
    return slice_of(found, PositionView.model_validate, limit=limit, cursor=cursor)


@router.get("/episodes/{episode_id}/statements")
def list_statements(
    request: Request, episode_id: EpisodeId, limit: Limit = 100, cursor: Cursor = None
) -> Page[StatementView]:
    """What each move paid to whom, and why, line by line."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    found = exchange_of(desk).statements(episode_id)
    return slice_of(found, StatementView.model_validate, limit=limit, cursor=cursor)


@router.get("/episodes/{episode_id}/record", response_model=dict[str, Any], responses=NOT_CHANGED)
def get_episode_record(request: Request, episode_id: EpisodeId) -> Response:
    """Everything that is needed to redo an episode elsewhere. Its ETag changes with every move."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    text = canonical_json(exchange_of(desk).record(episode_id))
    return fresh(request, text.encode("utf-8", "backslashreplace"), "application/json")


@router.get("/episodes/{episode_id}/verify")
def audit_episode(request: Request, episode_id: EpisodeId) -> EpisodeAuditView:
    """Redo an episode from its record, and say where it differs."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    found = verify_episode(exchange_of(desk).record(episode_id))
    breaches = [BreachView.model_validate(breach) for breach in found.breaches]
    return EpisodeAuditView(ok=found.ok, breaches=breaches)


@router.get("/episodes/{episode_id}/quote")
def quote_stake(
    request: Request,
    episode_id: EpisodeId,
    side: Side,
    amount: Annotated[int, Query(ge=1, le=MAX_POOL, description="Whole minor units.")],
) -> QuoteView:
    """What a bet would buy now, and what it can come to."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    return QuoteView.of(exchange_of(desk).quote(episode_id, side, amount))


@router.get("/episodes/{episode_id}/least-challenge")
def least_challenge(request: Request, episode_id: EpisodeId, person: Explorer) -> LeastStake:
    """What a challenge by whoever asks must stake now: less for who has a good record."""
    desk = desk_of(request)
    cost = hearing_cost(desk, known_episode(desk, episode_id))
    least = exchange_of(desk).min_stake(episode_id, person.name, compute_cost=cost)
    return LeastStake(amount=least)


@changes.post("/episodes/{episode_id}/stakes", status_code=201)
def stake(
    request: Request, episode_id: EpisodeId, given: StakeGiven, key: Key, person: Explorer
) -> PositionView:
    """Bet on a side, as oneself. Who has no account yet gets one with a starting purse."""
    desk = desk_of(request)
    exchange = exchange_of(desk)
    exchange.join(person.name, known_episode(desk, episode_id).terms.currency)
    taken = exchange.stake(
        episode_id,
        person.name,
        given.side,
        given.amount,
        min_shares=given.min_shares,
        key=_own(key),
    )
    note_move(request, "stake", episode_id)
    return PositionView.model_validate(taken)


@changes.post("/episodes/{episode_id}/challenges", status_code=201)
def challenge(
    request: Request, episode_id: EpisodeId, given: ChallengeGiven, key: Key, person: Explorer
) -> ChallengeView:
    """Commit to evidence without showing it."""
    desk = desk_of(request)
    exchange, episode = exchange_of(desk), begun(desk, episode_id)
    exchange.join(person.name, episode.terms.currency)
    taken = exchange.commit(
        episode_id,
        person.name,
        direction=given.direction,
        commitment=given.commitment,
        amount=given.amount,
        key=_own(key),
        compute_cost=hearing_cost(desk, episode),
    )
    note_move(request, "commit", episode_id)
    return ChallengeView.model_validate(taken)


@changes.post("/episodes/{episode_id}/reveals", status_code=201)
def reveal(
    request: Request, episode_id: EpisodeId, given: RevealGiven, person: Explorer
) -> ChallengeView:
    """Show what a commitment of one's own hid."""
    desk = desk_of(request)
    episode, nonce = known_episode(desk, episode_id), bytes.fromhex(given.nonce)
    account = user_account(person.name, episode.terms.currency).id
    commitment = evidence_commitment(nonce, given.bundle_sha256, account)
    if given.bundle is not None:
        bundle = _bundle_of(given.bundle, given.bundle_sha256, episode.terms.claim)
        # The bundle first: a revealed challenge must find its evidence when it is judged. But
        # only what was committed to; the exchange refuses the rest.
        if commitment in {challenge.commitment for challenge in episode.challenges}:
            text = dump_bundle(bundle)
            desk.store.save_bundle(bundle.bundle_id, bundle.claim, bundle.lens, text)
    shown = exchange_of(desk).reveal(
        episode_id,
        given.challenge,
        person.name,
        nonce=nonce,
        bundle_sha256=given.bundle_sha256,
    )
    note_move(request, "reveal", episode_id)
    return ChallengeView.model_validate(shown)


@changes.post("/episodes/{episode_id}/disputes", status_code=201)
def dispute(
    request: Request, episode_id: EpisodeId, given: DisputeGiven, key: Key, person: Explorer
) -> DisputeView:
    """Put a bond against the result, and have more judges drawn."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    raised = exchange_of(desk).dispute(
        episode_id, person.name, ground=given.ground, bond=given.bond, key=_own(key)
    )
    note_move(request, "dispute", episode_id)
    return DisputeView.model_validate(raised)


def _own(key: str) -> str:
    """A key among those of the exchange, which are as long as those of the API."""
    return key if len(key) > 196 else f"api {key}"


def _bundle_of(given: dict[str, Any], sha256: str, claim: str) -> Bundle:
    try:
        bundle = read_bundle(given)
    except RecordError as exc:
        raise UsageError(str(exc)) from exc
    if bundle.bundle_id != sha256:
        raise UsageError(f"`bundle` is {bundle.bundle_id}, not the {sha256} that is revealed")
    if (refused := objection(bundle, claim)) is not None:
        raise UsageError(f"`bundle` can't be brought as evidence: {refused}")
    return bundle


# What operators do with episodes: draft, open, freeze, have them judged and measured, settle.

operations = writes("proceedings", role=Role.OPERATOR)

Operator = Annotated[Person, require(Role.OPERATOR)]
Model = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9][!-~]*$", strict=True)]
Span = Annotated[int, Field(ge=0, le=3650 * DAY_MS, strict=True, description="Milliseconds.")]


async def _beginning(request: Request, key: Key, person: Operator, visit: VisitNow) -> Beginning:
    return Beginning(desk=desk_of(request), person=person, key=f"api {key}", address=visit.address)


BeginningNow = Annotated[Beginning, Depends(_beginning)]


class _ProceedingsGiven(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProposalGiven(_ProceedingsGiven):
    """An episode to be. Without models, planted ones play: to learn the game without a key."""

    claim: str = Field(min_length=1, max_length=2_000)
    models: list[Model] = Field(default=list(PRACTICE_MODELS), min_length=1, max_length=8)
    judge_pool: list[Model] = Field(default=list(PRACTICE_JUDGES), min_length=3, max_length=64)
    lens: str = Field(default=HEL, pattern=rf"^({'|'.join(SHOWING)})(@[0-9a-f]{{64}})?$")
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
        """As the economy has it."""
        apart = {"judges", "durability_ms", "dispute_window_ms", "draft_only"}
        same: dict[str, Any] = {
            name: getattr(self, name) for name in type(self).model_fields if name not in apart
        }
        same |= {"models": tuple(self.models), "judge_pool": tuple(self.judge_pool)}
        return Proposal(
            **same,
            parameters=Parameters(
                judges=self.judges,
                durability_ms=self.durability_ms,
                dispute_window_ms=self.dispute_window_ms,
            ),
        )


class Finality(_ProceedingsGiven):
    """Whether failed calls count."""

    final: bool = Field(
        default=False, description="Models that can't be reached count as missing, for good."
    )


class Ruling(Finality):
    """How a dispute is to be ruled on."""

    ground_confirmed: bool | None = Field(
        default=None, description="Null: a recomputation is made, and says."
    )


@operations.post("/episodes", status_code=202, responses=BEGUN)
def create_episode(given: ProposalGiven, beginning: BeginningNow) -> JobView:
    """Have measured what the models believe now, then fix the terms and, unless told not to, open
    it. The job says how far that is, and which episode came of it."""
    return JobView.of(beginning.draft(given.proposal(), opens=not given.draft_only))


@operations.post("/episodes/{episode_id}/open")
def open_episode(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """Fix the terms of a draft; the house's seed and the budget for rewards are set aside."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    exchange_of(desk).ensure_house()
    exchange_of(desk).open(episode_id)
    return _moved(request, "open", begun(desk, episode_id))


@operations.post("/episodes/{episode_id}/begin")
def begin_challenges(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """From now on evidence can be committed, once its time has come."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    return _moved(request, "begin", exchange_of(desk).begin_challenge(episode_id))


@operations.post("/episodes/{episode_id}/freeze")
def freeze_episode(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """Reveal the secret, draw the close and the judges, give late stakes back."""
    desk = desk_of(request)
    begun(desk, episode_id)
    return _moved(request, "freeze", exchange_of(desk).freeze(episode_id))


@operations.post("/episodes/{episode_id}/judge", status_code=202, responses=BEGUN)
def judge_challenges(
    episode_id: EpisodeId, beginning: BeginningNow, given: Finality | None = None
) -> JobView:
    """Have every challenge that is left measured, in their order."""
    return JobView.of(beginning.judging(episode_id, final=bool(given and given.final)))


@operations.post("/episodes/{episode_id}/measure", status_code=202, responses=BEGUN)
def measure_episode(
    episode_id: EpisodeId, beginning: BeginningNow, given: Finality | None = None
) -> JobView:
    """Have the judges measured: at the freeze, and again when the durability window is over."""
    return JobView.of(beginning.measuring(episode_id, final=bool(given and given.final)))


@operations.post("/episodes/{episode_id}/rule", status_code=202, responses=BEGUN)
def rule_on_dispute(
    episode_id: EpisodeId, beginning: BeginningNow, given: Ruling | None = None
) -> JobView:
    """Have the larger panel measure, and rule on the dispute."""
    given = given or Ruling()
    job = beginning.ruling(episode_id, confirmed=given.ground_confirmed, final=given.final)
    return JobView.of(job)


@operations.post("/episodes/{episode_id}/settle")
def settle_episode(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """Pay everybody what is due, or give everything back where the episode is void."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    return _moved(request, "settle", exchange_of(desk).close(episode_id))


def _moved(request: Request, move: str, found: Episode) -> EpisodeView:
    """The episode after a move that was made at once."""
    note_move(request, move, found.id)
    return EpisodeView.of(found)
