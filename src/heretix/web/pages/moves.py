"""Moves of an episode as forms: bets, evidence, disputes, and what operators do."""

import base64
import secrets
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final
from urllib.parse import quote as quoted

from fastapi import APIRouter, Form, Query
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Person, Role
from heretix.core import errors
from heretix.economy.episode.challenges import SECRET_BYTES
from heretix.economy.episode.secret_file import Secret, dump_secret, load_secret
from heretix.economy.episode.state import Direction
from heretix.economy.judging.workflow import PRACTICE_JUDGES, PRACTICE_MODELS
from heretix.economy.ledger import parse_amount
from heretix.economy.market import MAX_POOL, Side
from heretix.economy.moves import MOVES, REVEAL, Move, reach_ppm, reveal_fields
from heretix.web.auth import CurrentVisit, Explorer, Visit, require
from heretix.web.forms import EpisodeForm, EvidenceForm, read_uploaded_text
from heretix.web.moves import (
    EpisodeId,
    find_episode,
    make_move,
    read_form,
    submit_draft,
    submit_move,
)
from heretix.web.pages.episodes import episode_page, purse_of
from heretix.web.state import App, AppState, app_state
from heretix.web.templating import money, page

router = APIRouter(include_in_schema=False)

Key = Annotated[str, Form(min_length=8, max_length=100, pattern=r"^[!-~]+$")]

_KEPT_OF_QUOTE: Final = 99, 100
"""A bet still stands when others moved the price by one part in a hundred."""
_NOT_KEPT: Final = {"cache-control": "no-store"}


def add_form(move: Move) -> None:
    """Add the address that the form of a move is sent to."""

    async def send(
        request: Request, app: App, visit: CurrentVisit, episode_id: EpisodeId, key: Key = ""
    ) -> Response:
        person, data = visit.person, await request.form()
        assert person is not None, "moves have a role"

        def make() -> Response:
            """Make the move or begin its measurement; lead to what came of it or is against it."""
            show = _PROBLEM_PAGES.get(move.name, episode_page)
            try:
                given = read_form(move, data, find_episode(app, episode_id).terms.currency)
                show = partial(show, **given) if move.name in _PROBLEM_PAGES else show
                if move.plan is not None:
                    job = submit_move(app, visit, move, episode_id, given, key)
                    return RedirectResponse(f"/jobs/{job.id}", 303)
                made = make_move(app, visit, move, episode_id, given, f"web {key}")
            except (errors.QuotaError, errors.RecordError):
                raise
            except errors.UsageError as exc:
                return show(request, person, episode_id, problem=exc)
            return RedirectResponse(f"/episodes/{episode_id}{move.anchor.format(made)}", 303)

        return await run_in_threadpool(make)

    if move.keyed:
        # The key has no default then: the framework asks for it.
        send.__defaults__ = None
    router.add_api_route(
        f"/episodes/{{episode_id}}/{move.name}",
        send,
        methods=["POST"],
        dependencies=[require(Role(move.role))],
    )


@router.post("/profile/join")
def join(
    app: App,
    person: Explorer,
    visit: CurrentVisit,
    episode: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Open a purse of play money; who has one keeps it as it is. Then back to the episode."""
    app.exchange.ensure_house()
    joined = purse_of(app, person, "PLAY") is not None
    app.exchange.join(person.name)
    if not joined:
        app.people.audit.write("exchange.join", by=person, address=visit.address)
    return RedirectResponse(f"/episodes/{quoted(episode, safe='')}" if episode else "/profile", 303)


@router.get("/episodes/{episode_id}/quote")
def quote(
    request: Request,
    episode_id: EpisodeId,
    person: Explorer,
    side: Annotated[Side, Query()],
    amount: Annotated[str, Query(max_length=30)] = "",
) -> Response:
    """Show what a bet would buy at this moment, and what it can come to."""
    return _quote(request, person, episode_id, side=side, amount=amount)


def _quote(
    request: Request,
    person: Person,
    episode_id: str,
    *,
    side: Side | None = None,
    amount: int | str = 0,
    problem: errors.HeretixError | None = None,
    **_: object,
) -> Response:
    """Show a bet, also one that was refused, as it would be taken now."""
    app = app_state(request)
    if side is None:
        return episode_page(request, person, episode_id, problem=problem)
    try:
        with app.store.snapshot():
            found = find_episode(app, episode_id)
            if isinstance(amount, str):
                currency = found.terms.currency
                amount = parse_amount(amount, currency, name="amount", most=MAX_POOL)
            offer = app.exchange.quote(episode_id, side, amount)
            typical = app.exchange.typical_rate()
            purse = purse_of(app, person, found.terms.currency)
    except errors.RecordError:
        raise
    except errors.UsageError as exc:
        # Not even a quote can be had: the market is closed, or that is no amount.
        return episode_page(request, person, episode_id, problem=problem or exc)
    return page(
        request,
        "quote.html",
        problem=problem,
        episode=found,
        currency=found.terms.currency,
        quote=offer,
        typical=typical,
        price_now=found.market.price(side) if found.market else None,
        min_shares=offer.shares * _KEPT_OF_QUOTE[0] // _KEPT_OF_QUOTE[1],
        purse=purse,
        key=secrets.token_urlsafe(18),
    )


_PROBLEM_PAGES: Final[dict[str, Callable[..., Response]]] = {"stake": _quote}
"""Pages that show why a move was refused, where that isn't the episode's."""


# The secret that seals evidence is drawn here, handed to its owner in a file, and kept nowhere: the
# commitment is all that comes back until its owner brings the file to reveal it.


@router.get("/episodes/{episode_id}/challenge")
def challenge(request: Request, episode_id: EpisodeId, person: Explorer) -> Response:
    """Show the form for evidence."""
    return _form(request, person, episode_id, EvidenceForm())


@router.post("/episodes/{episode_id}/challenge")
async def seal(request: Request, episode_id: EpisodeId, person: Explorer) -> Response:
    """Seal the evidence, and hand the secret over. Nothing is staked, and nothing kept."""
    try:
        async with request.form() as data:
            form = await EvidenceForm.from_data(data)
    except errors.UsageError as exc:
        return await run_in_threadpool(_form, request, person, episode_id, EvidenceForm(), exc)
    return await run_in_threadpool(_seal, request, person, episode_id, form)


@router.get("/episodes/{episode_id}/reveal", dependencies=[require(Role.EXPLORER)])
def reveal_form(request: Request, episode_id: EpisodeId) -> Response:
    """Show the form for the reveal file."""
    return _reveal_form(request, episode_id)


@router.post("/episodes/{episode_id}/reveal", dependencies=[require(Role.EXPLORER)])
async def reveal(
    request: Request, app: App, episode_id: EpisodeId, visit: CurrentVisit
) -> Response:
    """Show what a commitment of one's own hid."""
    try:
        async with request.form() as data:
            part, pasted = data.get("file"), data.get("pasted")
            if isinstance(part, UploadFile) and part.filename:
                text = await read_uploaded_text(part)
            elif isinstance(pasted, str) and pasted.strip():
                text = pasted
            else:
                missing = "`file` is missing: choose the reveal file, or paste what is in it"
                raise errors.ConfigError(missing)
    except errors.UsageError as exc:
        return await run_in_threadpool(_reveal_form, request, episode_id, exc)
    return await run_in_threadpool(_reveal, request, app, visit, episode_id, text)


def _form(
    request: Request,
    person: Person,
    episode_id: str,
    form: EvidenceForm,
    problem: errors.HeretixError | None = None,
) -> Response:
    app = app_state(request)
    with app.store.snapshot():
        found = find_episode(app, episode_id)
        least = app.actor(person.name).least_challenge(found)
        purse = purse_of(app, person, found.terms.currency)
    return page(
        request,
        "challenge.html",
        headers=_NOT_KEPT,
        problem=problem,
        episode=found,
        currency=found.terms.currency,
        form=form,
        least=least,
        purse=purse,
    )


def _seal(request: Request, person: Person, episode_id: str, form: EvidenceForm) -> Response:
    app = app_state(request)
    found = find_episode(app, episode_id)
    currency = found.terms.currency
    try:
        least = app.actor(person.name).least_challenge(found)
        amount = form.amount(least, currency)
        if amount < least:
            raise errors.UsageError(
                f"`stake` must be at least {money(least, currency)}, got {form.stake}"
            )
        direction = Direction.DOWN if form.direction == "down" else Direction.UP
        bundle, shown = form.make_bundle(found.terms.claim)
    except (errors.UsageError, errors.InsufficientEvidenceError) as exc:
        return _form(request, person, episode_id, form, exc)
    nonce = secrets.token_bytes(SECRET_BYTES)
    secret = Secret(
        episode=episode_id,
        number=None,
        person=person.name,
        nonce=nonce,
        direction=direction,
        bundle=bundle,
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
        least=least,
        shown=shown,
        reach_ppm=reach_ppm(found, amount, direction),
        commitment=secret.commitment(person.name, currency),
        file_name=f"reveal-{episode_id}-{bundle.bundle_id[:8]}.json",
        file_text=text,
        file_base64=base64.b64encode(text.encode()).decode(),
        key=secrets.token_urlsafe(18),
        purse=purse_of(app, person, currency),
    )


def _reveal_form(
    request: Request, episode_id: str, problem: errors.HeretixError | None = None
) -> Response:
    found = find_episode(app_state(request), episode_id)
    return page(request, "reveal.html", headers=_NOT_KEPT, problem=problem, episode=found)


def _reveal(request: Request, app: AppState, visit: Visit, episode_id: str, text: str) -> Response:
    found = find_episode(app, episode_id)
    try:
        secret = load_secret(text)
        if secret.episode != episode_id:
            raise errors.UsageError(f"`{secret.episode}` is the episode that this file belongs to")
        given = reveal_fields(secret, found, visit.name)
        made = make_move(app, visit, REVEAL, episode_id, given, "")
    except errors.RecordError as exc:
        return _reveal_form(request, episode_id, errors.ConfigError(str(exc)))
    except errors.UsageError as exc:
        return _reveal_form(request, episode_id, exc)
    return RedirectResponse(f"/episodes/{episode_id}{REVEAL.anchor.format(made)}", 303)


@router.get("/episodes/new", dependencies=[require(Role.OPERATOR)])
def new(request: Request) -> Response:
    """Show the form of a new episode."""
    return _proposal_form(request, EpisodeForm.from_query(request.query_params))


@router.post("/episodes/new", dependencies=[require(Role.OPERATOR)])
async def propose(request: Request, app: App, visit: CurrentVisit, key: Key) -> Response:
    """Have c₀ measured; then the episode is written down and, unless told not to, opened."""
    form = EpisodeForm.from_data(await request.form())

    def submit() -> Response:
        opens = not form.draft_only
        try:
            job = submit_draft(app, visit, form.proposal(), opens=opens, key=key)
        except (errors.UsageError, errors.RecordError) as exc:
            return _proposal_form(request, form, exc)
        return RedirectResponse(f"/jobs/{job.id}", 303)

    return await run_in_threadpool(submit)


def _proposal_form(
    request: Request, form: EpisodeForm, problem: errors.HeretixError | None = None
) -> Response:
    return page(
        request,
        "episode_new.html",
        problem=problem,
        form=form,
        practice_models=PRACTICE_MODELS,
        practice_judges=PRACTICE_JUDGES,
        key=secrets.token_urlsafe(18),
    )


for _move in MOVES:
    # a reveal has a form of its own: its fields come in a file.
    if _move is not REVEAL:
        add_form(_move)
