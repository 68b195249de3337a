"""What operators do with episodes: propose, open, freeze, have them judged and measured, settle."""

import secrets
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Form
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.economy.proposal import PRACTICE_JUDGES, PRACTICE_MODELS
from heretix.economy.refusal import readable
from heretix.errors import ConflictError, HeretixError, RecordError, RefusedError, UsageError
from heretix.jobs import Job
from heretix.people import Person, Role
from heretix.web.api.floor import begun, exchange_of, known_episode, note_move
from heretix.web.desk import Desk, desk_of
from heretix.web.episodeform import EpisodeForm
from heretix.web.identity import VisitNow, require
from heretix.web.pages.bets import Key
from heretix.web.pages.episodes import EpisodeId, episode_page
from heretix.web.problems import status_of
from heretix.web.proceedings import Beginning
from heretix.web.templating import page

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[require(Role.OPERATOR)])

Operator = Annotated[Person, require(Role.OPERATOR)]
Final_ = Annotated[str, Form(alias="final", max_length=10)]


async def _beginning(request: Request, key: Key, person: Operator, visit: VisitNow) -> Beginning:
    return Beginning(desk=desk_of(request), person=person, key=key, address=visit.address)


BeginningNow = Annotated[Beginning, Depends(_beginning)]


@router.get("/episodes/new")
def new(request: Request) -> Response:
    """The form of a new episode."""
    return _form(request, EpisodeForm.asked(request.query_params))


@router.post("/episodes/new")
async def propose(request: Request, beginning: BeginningNow) -> Response:
    """Have c₀ measured; then the episode is written down and, unless told not to, opened."""
    form = EpisodeForm.sent(await request.form())
    return await run_in_threadpool(_proposed, request, beginning, form)


@router.post("/episodes/{episode_id}/open")
def open_episode(request: Request, episode_id: EpisodeId, person: Operator) -> Response:
    """Fix the terms of a draft."""

    def do(desk: Desk) -> None:
        exchange_of(desk).ensure_house()
        exchange_of(desk).open(episode_id)
        begun(desk, episode_id)

    return _moved(request, person, episode_id, "open", do)


@router.post("/episodes/{episode_id}/begin")
def begin(request: Request, episode_id: EpisodeId, person: Operator) -> Response:
    """Let evidence be committed."""

    def do(desk: Desk) -> None:
        exchange_of(desk).begin_challenge(episode_id)

    return _moved(request, person, episode_id, "begin", do)


@router.post("/episodes/{episode_id}/freeze")
def freeze(request: Request, episode_id: EpisodeId, person: Operator) -> Response:
    """Draw the close and the judges."""

    def do(desk: Desk) -> None:
        begun(desk, episode_id)
        exchange_of(desk).freeze(episode_id)

    return _moved(request, person, episode_id, "freeze", do)


@router.post("/episodes/{episode_id}/settle")
def settle(request: Request, episode_id: EpisodeId, person: Operator) -> Response:
    """Pay everybody, once."""

    def do(desk: Desk) -> None:
        exchange_of(desk).close(episode_id)

    return _moved(request, person, episode_id, "settle", do)


@router.post("/episodes/{episode_id}/judge")
def judge(
    request: Request, episode_id: EpisodeId, beginning: BeginningNow, final: Final_ = ""
) -> Response:
    """Have every challenge that is left measured, in their order."""
    return _sent(
        request, beginning, episode_id, lambda: beginning.judging(episode_id, final=bool(final))
    )


@router.post("/episodes/{episode_id}/measure")
def measure(
    request: Request, episode_id: EpisodeId, beginning: BeginningNow, final: Final_ = ""
) -> Response:
    """Have the judges measured, or conclude without: whichever is due."""
    return _sent(
        request, beginning, episode_id, lambda: beginning.measuring(episode_id, final=bool(final))
    )


@router.post("/episodes/{episode_id}/rule")
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


def _form(request: Request, form: EpisodeForm, problem: HeretixError | None = None) -> Response:
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
        return _form(request, form, exc)
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
