"""Episodes: terms, market, evidence, settlement, and the moves that people make as themselves."""

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from heretix.economy.accounts import user_account
from heretix.economy.audit import verify_episode
from heretix.economy.commitment import SECRET_BYTES, evidence_commitment
from heretix.economy.episode import Ground, State
from heretix.economy.exhibit import objection
from heretix.economy.judging import Direction
from heretix.economy.market import MAX_POOL, Side
from heretix.errors import RecordError, UsageError
from heretix.evidence.bundle import Bundle
from heretix.evidence.bundlefile import dump_bundle, read_bundle
from heretix.people import Person, Role
from heretix.plan import canonical_json
from heretix.web.api.episode_views import (
    BreachView,
    ChallengeView,
    DisputeView,
    EpisodeAuditView,
    EpisodeLine,
    EpisodeView,
    LeastStake,
    PositionView,
    QuoteView,
    StatementView,
)
from heretix.web.api.floor import begun, exchange_of, hearing_cost, known_episode, note_move
from heretix.web.api.resource import (
    MAX_SEQ,
    NOT_CHANGED,
    Cursor,
    Limit,
    Page,
    cursor_of,
    desk_of,
    read_cursor,
    resource,
    slice_of,
)
from heretix.web.api.writing import Key, writes
from heretix.web.identity import require
from heretix.web.templating import fresh

__all__ = ["EpisodeId", "changes", "router"]

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
