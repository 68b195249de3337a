"""Moves of an episode as forms: bets, evidence, disputes, and what operators do."""

import base64
import secrets
from collections.abc import Callable
from typing import Annotated, Final
from urllib.parse import quote as quoted

from fastapi import APIRouter, Depends, Form, Query
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Person, Role
from heretix.core.errors import (
    ConfigError,
    ConflictError,
    HeretixError,
    InsufficientEvidenceError,
    RecordError,
    RefusedError,
    UsageError,
)
from heretix.economy.episode.challenges import SECRET_BYTES
from heretix.economy.episode.sealed_file import Secret, dump_secret, find_commitment, load_secret
from heretix.economy.episode.state import Episode, Ground
from heretix.economy.exchange import readable
from heretix.economy.judging.gate import Direction
from heretix.economy.judging.panel import objection
from heretix.economy.judging.workflow import PRACTICE_JUDGES, PRACTICE_MODELS
from heretix.economy.market import MAX_POOL, MICRO, Side
from heretix.economy.rewards import BELIEF_MAX, BELIEF_MIN, farthest
from heretix.evidence.bundle import dump_bundle
from heretix.jobs import Job
from heretix.web.auth import VisitNow, require
from heretix.web.forms import EpisodeForm, EvidenceForm, uploaded_text
from heretix.web.moves import Beginning, begun, exchange_of, hearing_cost, known_episode, note_move
from heretix.web.pages.episodes import EpisodeId, episode_page, purse_of
from heretix.web.problems import status_of
from heretix.web.state import Desk, desk_of
from heretix.web.templating import amount_of, money, page

# Bets: a purse to begin with, what a bet would buy, and the bet itself.

bets = APIRouter(include_in_schema=False)

Explorer = Annotated[Person, require(Role.EXPLORER)]
Key = Annotated[str, Form(min_length=8, max_length=100, pattern=r"^[!-~]+$")]

_KEPT_OF_QUOTE: Final = 99, 100
"""A bet still stands when others moved the price by one part in a hundred."""


@bets.post("/profile/join")
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


@bets.get("/episodes/{episode_id}/quote")
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


@bets.post("/episodes/{episode_id}/stake")
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


# Evidence against a belief: sealed, committed to, revealed; and disputes of a result.
#
# The secret that seals evidence is drawn here, handed to its owner in a file, and kept nowhere: the
# commitment is all that comes back until its owner brings the file to reveal it.

challenges = APIRouter(include_in_schema=False, dependencies=[require(Role.EXPLORER)])

Commitment = Annotated[str, Form(pattern=r"^[0-9a-f]{64}$")]

_NOT_KEPT: Final = {"cache-control": "no-store"}


@challenges.get("/episodes/{episode_id}/challenge")
def challenge(request: Request, episode_id: EpisodeId, person: Explorer) -> Response:
    """The form for evidence."""
    return _form(request, person, episode_id, EvidenceForm().padded())


@challenges.post("/episodes/{episode_id}/challenge")
async def seal(request: Request, episode_id: EpisodeId, person: Explorer) -> Response:
    """Seal the evidence, and hand the secret over. Nothing is staked, and nothing kept."""
    try:
        async with request.form() as data:
            form = await EvidenceForm.sent(data)
    except UsageError as exc:
        empty = EvidenceForm().padded()
        return await run_in_threadpool(_form, request, person, episode_id, empty, exc)
    return await run_in_threadpool(_sealed, request, person, episode_id, form)


@challenges.post("/episodes/{episode_id}/commit")
def commit(
    request: Request,
    episode_id: EpisodeId,
    person: Explorer,
    direction: Annotated[Direction, Form()],
    commitment: Commitment,
    amount: Annotated[int, Form(ge=1, le=MAX_POOL)],
    key: Key,
    saved: Annotated[str, Form(max_length=10)] = "",
) -> Response:
    """Commit to sealed evidence, as oneself. Sent twice, it is one challenge."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    try:
        if not saved:
            raise ConfigError(
                "`saved` must be ticked: without the reveal file the stake is lost; "
                "go back and save it first"
            )
        found = begun(desk, episode_id)
        taken = exchange_of(desk).commit(
            episode_id,
            person.name,
            direction=direction,
            commitment=commitment,
            amount=amount,
            key=f"web {key}",
            compute_cost=hearing_cost(desk, found),
        )
    except RefusedError as exc:
        return episode_page(request, person, episode_id, problem=readable(exc))
    except UsageError as exc:
        return episode_page(request, person, episode_id, problem=exc)
    note_move(request, "commit", episode_id)
    return RedirectResponse(f"/episodes/{episode_id}#challenge-{taken.number}", 303)


@challenges.get("/episodes/{episode_id}/reveal")
def reveal_form(request: Request, episode_id: EpisodeId) -> Response:
    """The form for the reveal file."""
    return _reveal(request, episode_id)


@challenges.post("/episodes/{episode_id}/reveal")
async def reveal(request: Request, episode_id: EpisodeId, person: Explorer) -> Response:
    """Show what a commitment of one's own hid."""
    try:
        async with request.form() as data:
            text = await _file_text(data)
    except UsageError as exc:
        return await run_in_threadpool(_reveal, request, episode_id, exc)
    return await run_in_threadpool(_revealed, request, person, episode_id, text)


@challenges.post("/episodes/{episode_id}/dispute")
def dispute(
    request: Request,
    episode_id: EpisodeId,
    person: Explorer,
    ground: Annotated[Ground, Form()],
    bond: Annotated[str, Form(max_length=30)],
    key: Key,
) -> Response:
    """Put a bond against the result, and have more judges drawn."""
    desk = desk_of(request)
    currency = known_episode(desk, episode_id).terms.currency
    try:
        exchange_of(desk).dispute(
            episode_id,
            person.name,
            ground=ground,
            bond=amount_of("bond", bond, currency),
            key=f"web {key}",
        )
    except RefusedError as exc:
        return episode_page(request, person, episode_id, problem=readable(exc))
    except UsageError as exc:
        return episode_page(request, person, episode_id, problem=exc)
    note_move(request, "dispute", episode_id)
    return RedirectResponse(f"/episodes/{episode_id}#disputes", 303)


def _form(
    request: Request,
    person: Person,
    episode_id: str,
    form: EvidenceForm,
    problem: HeretixError | None = None,
) -> Response:
    desk = desk_of(request)
    found = known_episode(desk, episode_id)
    return page(
        request,
        "challenge.html",
        status=status_of(problem) if problem else 200,
        headers=_NOT_KEPT,
        problem=problem,
        episode=found,
        currency=found.terms.currency,
        form=form,
        least=_least(desk, found, person),
        purse=purse_of(desk, person, found.terms.currency),
    )


def _sealed(request: Request, person: Person, episode_id: str, form: EvidenceForm) -> Response:
    desk = desk_of(request)
    found = known_episode(desk, episode_id)
    currency = found.terms.currency
    try:
        least = _least(desk, found, person)
        amount = form.amount(least, currency)
        if amount < least:
            raise UsageError(f"`stake` must be at least {money(least, currency)}, got {form.stake}")
        direction = Direction.DOWN if form.direction == "down" else Direction.UP
        brought = form.bring(found.terms.claim)
    except (UsageError, InsufficientEvidenceError) as exc:
        return _form(request, person, episode_id, form, exc)
    nonce = secrets.token_bytes(SECRET_BYTES)
    secret = Secret(
        episode=episode_id, number=None, person=person.name, nonce=nonce, bundle=brought.bundle
    )
    text = dump_secret(secret)
    return page(
        request,
        "challenge_sealed.html",
        headers=_NOT_KEPT,
        episode=found,
        currency=currency,
        direction=direction,
        amount=amount,
        brought=brought,
        reach_ppm=_reach(found, amount, direction),
        commitment=secret.commitment(person.name, currency),
        file_name=f"reveal-{episode_id}-{brought.bundle.bundle_id[:8]}.json",
        file_text=text,
        file_base64=base64.b64encode(text.encode()).decode(),
        key=secrets.token_urlsafe(18),
        purse=purse_of(desk, person, currency),
    )


def _reveal(request: Request, episode_id: str, problem: HeretixError | None = None) -> Response:
    desk = desk_of(request)
    return page(
        request,
        "reveal.html",
        status=status_of(problem) if problem else 200,
        headers=_NOT_KEPT,
        problem=problem,
        episode=known_episode(desk, episode_id),
    )


def _revealed(request: Request, person: Person, episode_id: str, text: str) -> Response:
    desk = desk_of(request)
    found = known_episode(desk, episode_id)
    try:
        secret = load_secret(text)
        if secret.episode != episode_id:
            raise UsageError(f"`{secret.episode}` is the episode that this file belongs to")
        number = find_commitment(secret, found, person.name)
        bundle = secret.bundle
        if (refused := objection(bundle, found.terms.claim)) is not None:
            raise UsageError(f"`evidence` can't be brought: {refused}")
        # The bundle first: a revealed challenge must find its evidence when it is judged.
        desk.store.save_bundle(bundle.bundle_id, bundle.claim, bundle.lens, dump_bundle(bundle))
        exchange_of(desk).reveal(
            episode_id, number, person.name, nonce=secret.nonce, bundle_sha256=bundle.bundle_id
        )
    except RefusedError as exc:
        return _reveal(request, episode_id, readable(exc))
    except RecordError as exc:
        return _reveal(request, episode_id, ConfigError(str(exc)))
    except UsageError as exc:
        return _reveal(request, episode_id, exc)
    note_move(request, "reveal", episode_id)
    return RedirectResponse(f"/episodes/{episode_id}#challenge-{number}", 303)


async def _file_text(data: FormData) -> str:
    part = data.get("file")
    if isinstance(part, UploadFile) and part.filename:
        return await uploaded_text(part)
    pasted = data.get("pasted")
    if isinstance(pasted, str) and pasted.strip():
        return pasted
    raise ConfigError("`file` is missing: choose the reveal file, or paste what is in it")


def _least(desk: Desk, found: Episode, person: Person) -> int:
    cost = hearing_cost(desk, found)
    return exchange_of(desk).min_stake(found.id, person.name, compute_cost=cost)


def _reach(found: Episode, stake: int, direction: Direction) -> int:
    """How far the credited belief can move on a stake."""
    end = BELIEF_MIN if direction is Direction.DOWN else BELIEF_MAX
    return farthest(found.terms.parameters.reward_scale, found.belief_ppm, end, stake)


# What operators do with episodes: propose, open, freeze, have them judged and measured, settle.

operations = APIRouter(include_in_schema=False, dependencies=[require(Role.OPERATOR)])

Operator = Annotated[Person, require(Role.OPERATOR)]
Final_ = Annotated[str, Form(alias="final", max_length=10)]


async def _beginning(request: Request, key: Key, person: Operator, visit: VisitNow) -> Beginning:
    return Beginning(desk=desk_of(request), person=person, key=key, address=visit.address)


BeginningNow = Annotated[Beginning, Depends(_beginning)]


@operations.get("/episodes/new")
def new(request: Request) -> Response:
    """The form of a new episode."""
    return _proceedings_form(request, EpisodeForm.asked(request.query_params))


@operations.post("/episodes/new")
async def propose(request: Request, beginning: BeginningNow) -> Response:
    """Have c₀ measured; then the episode is written down and, unless told not to, opened."""
    form = EpisodeForm.sent(await request.form())
    return await run_in_threadpool(_proposed, request, beginning, form)


@operations.post("/episodes/{episode_id}/open")
def open_episode(request: Request, episode_id: EpisodeId, person: Operator) -> Response:
    """Fix the terms of a draft."""

    def do(desk: Desk) -> None:
        exchange_of(desk).ensure_house()
        exchange_of(desk).open(episode_id)
        begun(desk, episode_id)

    return _moved(request, person, episode_id, "open", do)


@operations.post("/episodes/{episode_id}/begin")
def begin(request: Request, episode_id: EpisodeId, person: Operator) -> Response:
    """Let evidence be committed."""

    def do(desk: Desk) -> None:
        exchange_of(desk).begin_challenge(episode_id)

    return _moved(request, person, episode_id, "begin", do)


@operations.post("/episodes/{episode_id}/freeze")
def freeze(request: Request, episode_id: EpisodeId, person: Operator) -> Response:
    """Draw the close and the judges."""

    def do(desk: Desk) -> None:
        begun(desk, episode_id)
        exchange_of(desk).freeze(episode_id)

    return _moved(request, person, episode_id, "freeze", do)


@operations.post("/episodes/{episode_id}/settle")
def settle(request: Request, episode_id: EpisodeId, person: Operator) -> Response:
    """Pay everybody, once."""

    def do(desk: Desk) -> None:
        exchange_of(desk).close(episode_id)

    return _moved(request, person, episode_id, "settle", do)


@operations.post("/episodes/{episode_id}/judge")
def judge(
    request: Request, episode_id: EpisodeId, beginning: BeginningNow, final: Final_ = ""
) -> Response:
    """Have every challenge that is left measured, in their order."""
    return _sent(
        request, beginning, episode_id, lambda: beginning.judging(episode_id, final=bool(final))
    )


@operations.post("/episodes/{episode_id}/measure")
def measure(
    request: Request, episode_id: EpisodeId, beginning: BeginningNow, final: Final_ = ""
) -> Response:
    """Have the judges measured, or conclude without: whichever is due."""
    return _sent(
        request, beginning, episode_id, lambda: beginning.measuring(episode_id, final=bool(final))
    )


@operations.post("/episodes/{episode_id}/rule")
def rule(
    request: Request,
    episode_id: EpisodeId,
    beginning: BeginningNow,
    confirmed: Annotated[str, Form(pattern=r"^(|yes|no)$")] = "",
    final: Final_ = "",
) -> Response:
    """Have the larger panel measure, and let its word stand."""
    ground = {"": None, "yes": True, "no": False}[confirmed]

    def begin() -> Job:
        return beginning.ruling(episode_id, confirmed=ground, final=bool(final))

    return _sent(request, beginning, episode_id, begin)


def _proceedings_form(
    request: Request, form: EpisodeForm, problem: HeretixError | None = None
) -> Response:
    return page(
        request,
        "episode_new.html",
        status=status_of(problem) if problem else 200,
        problem=problem,
        form=form,
        practice_models=PRACTICE_MODELS,
        practice_judges=PRACTICE_JUDGES,
        key=secrets.token_urlsafe(18),
    )


def _proposed(request: Request, beginning: Beginning, form: EpisodeForm) -> Response:
    try:
        job = beginning.draft(form.proposal(), opens=not form.draft_only)
    except (UsageError, RecordError) as exc:
        return _proceedings_form(request, form, exc)
    return RedirectResponse(f"/jobs/{job.id}", 303)


def _sent(
    request: Request, beginning: Beginning, episode_id: str, begin: Callable[[], Job]
) -> Response:
    """Have it measured, and show how far that is; or what stands against it."""
    try:
        job = begin()
    except RefusedError as exc:
        return episode_page(request, beginning.person, episode_id, problem=readable(exc))
    except ConflictError as exc:
        return episode_page(request, beginning.person, episode_id, problem=exc)
    return RedirectResponse(f"/jobs/{job.id}", 303)


def _moved(
    request: Request,
    person: Person,
    episode_id: str,
    move: str,
    do: Callable[[Desk], None],
) -> Response:
    """Make a move at once, and show the episode as it stands then."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    try:
        do(desk)
    except RefusedError as exc:
        return episode_page(request, person, episode_id, problem=readable(exc))
    note_move(request, move, episode_id)
    return RedirectResponse(f"/episodes/{episode_id}", 303)
