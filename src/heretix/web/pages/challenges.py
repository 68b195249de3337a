"""Evidence against a belief: sealed, committed to, revealed; and disputes of a result.

The secret that seals evidence is drawn here, handed to its owner in a file, and kept nowhere: the
commitment is all that comes back until its owner brings the file to reveal it.
"""

import base64
import secrets
from typing import Annotated, Final

from fastapi import APIRouter, Form
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.economy.commitment import SECRET_BYTES
from heretix.economy.episode import Episode, Ground
from heretix.economy.exhibit import objection
from heretix.economy.information import BELIEF_MAX, BELIEF_MIN
from heretix.economy.judging import Direction
from heretix.economy.market import MAX_POOL
from heretix.economy.refusal import readable
from heretix.economy.rewards import farthest
from heretix.economy.sealed import Secret, dump_secret, load_secret, sealed_number
from heretix.errors import (
    ConfigError,
    HeretixError,
    InsufficientEvidenceError,
    RecordError,
    RefusedError,
    UsageError,
)
from heretix.evidence.bundlefile import dump_bundle
from heretix.people import Person, Role
from heretix.web.api.floor import begun, exchange_of, hearing_cost, known_episode, note_move
from heretix.web.broughtevidence import EvidenceForm, uploaded_text
from heretix.web.desk import Desk, desk_of
from heretix.web.identity import require
from heretix.web.moneytext import amount_of, money
from heretix.web.pages.bets import Key
from heretix.web.pages.episodes import EpisodeId, episode_page, purse_of
from heretix.web.problems import status_of
from heretix.web.templating import page

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[require(Role.EXPLORER)])

Explorer = Annotated[Person, require(Role.EXPLORER)]
Commitment = Annotated[str, Form(pattern=r"^[0-9a-f]{64}$")]

_NOT_KEPT: Final = {"cache-control": "no-store"}


@router.get("/episodes/{episode_id}/challenge")
def challenge(request: Request, episode_id: EpisodeId, person: Explorer) -> Response:
    """The form for evidence."""
    return _form(request, person, episode_id, EvidenceForm().padded())


@router.post("/episodes/{episode_id}/challenge")
async def seal(request: Request, episode_id: EpisodeId, person: Explorer) -> Response:
    """Seal the evidence, and hand the secret over. Nothing is staked, and nothing kept."""
    try:
        async with request.form() as data:
            form = await EvidenceForm.sent(data)
    except UsageError as exc:
        empty = EvidenceForm().padded()
        return await run_in_threadpool(_form, request, person, episode_id, empty, exc)
    return await run_in_threadpool(_sealed, request, person, episode_id, form)


@router.post("/episodes/{episode_id}/commit")
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


@router.get("/episodes/{episode_id}/reveal")
def reveal_form(request: Request, episode_id: EpisodeId) -> Response:
    """The form for the reveal file."""
    return _reveal(request, episode_id)


@router.post("/episodes/{episode_id}/reveal")
async def reveal(request: Request, episode_id: EpisodeId, person: Explorer) -> Response:
    """Show what a commitment of one's own hid."""
    try:
        async with request.form() as data:
            text = await _file_text(data)
    except UsageError as exc:
        return await run_in_threadpool(_reveal, request, episode_id, exc)
    return await run_in_threadpool(_revealed, request, person, episode_id, text)


@router.post("/episodes/{episode_id}/dispute")
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
        number = sealed_number(secret, found, person.name)
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
