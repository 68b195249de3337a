"""What operators do with episodes: propose, open, freeze, have them judged and measured, settle."""

import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Form, Path
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from heretix.economy.clerk import Clerk
from heretix.economy.clock import HeldClock
from heretix.economy.exchange import Exchange
from heretix.economy.panel import Panel
from heretix.economy.proposal import PRACTICE_JUDGES, PRACTICE_MODELS, Proposal
from heretix.errors import HeretixError, RefusedError, UsageError
from heretix.measurement.tally import Tally
from heretix.people import Person, Role
from heretix.web.api.floor import clerk_of, clock_of, exchange_of, known_episode
from heretix.web.desk import Desk, desk_of
from heretix.web.episodeform import EpisodeForm
from heretix.web.identity import VisitNow, require
from heretix.web.moneytext import readable
from heretix.web.pages.bets import Key
from heretix.web.pages.challenges import begun
from heretix.web.pages.episodes import EpisodeId, episode_page
from heretix.web.problems import status_of
from heretix.web.templating import page

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[require(Role.OPERATOR)])

Operator = Annotated[Person, require(Role.OPERATOR)]
Final_ = Annotated[str, Form(alias="final", max_length=10)]
ErrandId = Annotated[str, Path(max_length=40)]


@router.get("/episodes/new")
def new(request: Request) -> Response:
    """The form of a new episode."""
    return _form(request, EpisodeForm.asked(request.query_params))


@router.post("/episodes/new")
async def propose(request: Request, person: Operator, key: Key) -> Response:
    """Have c₀ measured; then the episode is written down and, unless told not to, opened."""
    form = EpisodeForm.sent(await request.form())
    return await run_in_threadpool(_proposed, request, person, form, key)


@router.get("/episodes/errands/{errand_id}")
def errand(request: Request, errand_id: ErrandId) -> Response:
    """A measurement under way."""
    return page(request, "errand.html", errand=desk_of(request).errands.get(errand_id))


@router.get("/episodes/errands/{errand_id}/progress")
def errand_progress(request: Request, errand_id: ErrandId) -> Response:
    """How far it is, for the page's script."""
    found = desk_of(request).errands.get(errand_id)
    return JSONResponse(found.as_dict(), headers={"cache-control": "no-store"})


@router.post("/episodes/{episode_id}/open")
def open_episode(
    request: Request, episode_id: EpisodeId, person: Operator, visit: VisitNow
) -> Response:
    """Fix the terms of a draft."""

    def do(desk: Desk) -> None:
        exchange_of(desk).ensure_house()
        exchange_of(desk).open(episode_id)
        begun(desk, episode_id)

    return _moved(request, person, visit.address, episode_id, "open", do)


@router.post("/episodes/{episode_id}/begin")
def begin(request: Request, episode_id: EpisodeId, person: Operator, visit: VisitNow) -> Response:
    """Let evidence be committed."""

    def do(desk: Desk) -> None:
        exchange_of(desk).begin_challenge(episode_id)

    return _moved(request, person, visit.address, episode_id, "begin", do)


@router.post("/episodes/{episode_id}/freeze")
def freeze(request: Request, episode_id: EpisodeId, person: Operator, visit: VisitNow) -> Response:
    """Draw the close and the judges."""

    def do(desk: Desk) -> None:
        begun(desk, episode_id)
        exchange_of(desk).freeze(episode_id)

    return _moved(request, person, visit.address, episode_id, "freeze", do)


@router.post("/episodes/{episode_id}/settle")
def settle(request: Request, episode_id: EpisodeId, person: Operator, visit: VisitNow) -> Response:
    """Pay everybody, once."""

    def do(desk: Desk) -> None:
        exchange_of(desk).close(episode_id)

    return _moved(request, person, visit.address, episode_id, "settle", do)


@router.post("/episodes/{episode_id}/judge")
def judge(
    request: Request, episode_id: EpisodeId, person: Operator, key: Key, final: Final_ = ""
) -> Response:
    """Have every challenge that is left measured, in their order."""
    desk = desk_of(request)
    found = known_episode(desk, episode_id)
    left = len(clerk_of(desk).pending(found))
    terms = found.terms

    async def work(clerk: Clerk) -> None:
        while await clerk.judge_next(episode_id, final=bool(final)) is not None:
            pass

    samples = 2 * terms.K * terms.R * len(terms.models) * left
    return _sent(request, person, episode_id, "Judging challenges", samples, work, key)


@router.post("/episodes/{episode_id}/measure")
def measure(
    request: Request, episode_id: EpisodeId, person: Operator, key: Key, final: Final_ = ""
) -> Response:
    """Have the judges measured, or conclude without: whichever is due."""
    desk = desk_of(request)
    found = known_episode(desk, episode_id)
    try:
        stage = clerk_of(desk).next_stage(episode_id)
    except RefusedError as exc:
        return episode_page(request, person, episode_id, problem=readable(exc))
    samples = 2 * found.terms.K * found.terms.R * len(found.judges) if stage else 0

    async def work(clerk: Clerk) -> None:
        await clerk.measure(episode_id, final=bool(final))

    title = f"The {stage} measurement of the judges" if stage else "Concluding without measurement"
    return _sent(request, person, episode_id, title, samples, work, key)


@router.post("/episodes/{episode_id}/rule")
def rule(
    request: Request,
    episode_id: EpisodeId,
    person: Operator,
    key: Key,
    confirmed: Annotated[str, Form(pattern=r"^(|yes|no)$")] = "",
    final: Final_ = "",
) -> Response:
    """Have the larger panel measure, and let its word stand."""
    found = known_episode(desk_of(request), episode_id)
    ground = {"": None, "yes": True, "no": False}[confirmed]

    async def work(clerk: Clerk) -> None:
        await clerk.rule(episode_id, ground_confirmed=ground, final=bool(final))

    samples = 4 * found.terms.K * found.terms.R * len(found.judges)
    return _sent(request, person, episode_id, "The larger panel measures", samples, work, key)


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


def _proposed(request: Request, person: Person, form: EpisodeForm, key: str) -> Response:
    desk = desk_of(request)
    try:
        proposal = form.proposal()
        # Terms that can't be are found before anything is measured.
        proposal.terms(c0_ppm=500_000, at_ms=0, settings=desk.settings)
    except UsageError as exc:
        return _form(request, form, exc)
    exchange_of(desk).ensure_house()

    async def work(tally: Tally) -> str:
        return await _drafted(desk, proposal, tally, opens=not form.draft_only)

    sent = desk.errands.start(
        work,
        key=f"{person.id} {key}",
        title="Measuring what the models believe now",
        subject=proposal.claim,
        samples=proposal.K * proposal.R * len(proposal.models),
    )
    desk.people.audit.write("episode.draft", by=person)
    return RedirectResponse(f"/episodes/errands/{sent.id}", 303)


async def _drafted(desk: Desk, proposal: Proposal, tally: Tally, *, opens: bool) -> str:
    drafted = await _clerk(desk, tally).draft(proposal)
    if opens:
        # Terms count from the moment they were written: that is when it opens, too.
        Exchange(desk.store, clock=HeldClock(drafted.at_ms)).open(drafted.episode)
        begun(desk, drafted.episode)
    return f"/episodes/{drafted.episode}"


def _clerk(desk: Desk, tally: Tally) -> Clerk:
    return Clerk(
        desk.store,
        exchange_of(desk),
        Panel(desk.store, desk.settings, observer=tally),
        clock=clock_of(desk),
        settings=desk.settings,
    )


def _sent(
    request: Request,
    person: Person,
    episode_id: str,
    title: str,
    samples: int,
    do: Callable[[Clerk], Awaitable[None]],
    key: str,
) -> Response:
    """Send somebody to have it measured, and show how far that is."""
    desk = desk_of(request)
    found = known_episode(desk, episode_id)

    async def work(tally: Tally) -> str:
        try:
            await do(_clerk(desk, tally))
        except RefusedError as exc:
            raise readable(exc) from exc
        return f"/episodes/{episode_id}"

    errand = desk.errands.start(
        work,
        key=f"{person.id} {episode_id} {key}",
        title=title,
        subject=found.terms.claim,
        samples=samples,
        episode=episode_id,
    )
    desk.people.audit.write("episode.measure", by=person, subject=episode_id)
    return RedirectResponse(f"/episodes/errands/{errand.id}", 303)


def _moved(
    request: Request,
    person: Person,
    address: str | None,
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
    desk.people.audit.write(f"episode.{move}", by=person, subject=episode_id, address=address)
    return RedirectResponse(f"/episodes/{episode_id}", 303)
