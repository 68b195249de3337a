"""The exchange around episodes: one's own profile, the leaderboard, the ledger and its chain."""

from contextlib import suppress
from typing import Annotated, Final

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Person, Role
from heretix.config import check_claim
from heretix.core.errors import ConfigError, HeretixError, RecordError, RefusedError, UsageError
from heretix.core.lenses import EARNING
from heretix.economy.exchange import STARTING_PURSE, Exchange
from heretix.economy.exploration_service import Credited
from heretix.economy.ledger import user_account
from heretix.web.auth import Explorer, Reader, require
from heretix.web.pages.episodes import purse_of
from heretix.web.state import App, app_state
from heretix.web.templating import page

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])

Filter = Annotated[str, Query(max_length=300)]

_ENTRIES: Final = 50


@router.get("/profile")
def profile(request: Request, person: Reader) -> Response:
    """Show what one has, holds, earned and is known for. Nobody's but one's own."""
    return _profile(request, person)


@router.post("/profile/credit")
def credit(
    request: Request,
    app: App,
    person: Explorer,
    claim: Annotated[str, Form(max_length=10_000)],
    model: Annotated[str, Form(max_length=200)] = "",
    lens: Annotated[str, Form(pattern=rf"^(|{'|'.join(EARNING)})$")] = "",
) -> Response:
    """Claim the credits of a finding. A claim is credited once, to whoever asks first."""
    try:
        found = app.exploration.credit(
            person.name,
            check_claim(claim),
            model=model.strip() or None,
            lens=lens or None,
            # Planted beliefs are for practice, and practice is alone.
            simulated=person.is_local,
        )
    except RecordError as exc:
        return _profile(request, person, problem=ConfigError(str(exc)))
    except UsageError as exc:
        return _profile(request, person, problem=exc)
    return _profile(request, person, credited=found)


@router.get("/leaderboard")
def leaderboard(request: Request, app: App, person: Reader) -> Response:
    """Rank everybody who challenged or explored, by what lasted."""
    standings = app.exploration.leaderboard(limit=50)
    return page(request, "leaderboard.html", standings=standings, person=person)


@router.get("/ledger")
def ledger(
    request: Request,
    app: App,
    account: Filter = "",
    episode: Filter = "",
    group: Filter = "",
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> Response:
    """List every transfer, the newest first, with the hash that ties it to the one before."""
    exchange = app.exchange
    for text in (account, episode, group):
        # No account, episode or group has characters that can't be seen.
        if not text.isprintable():
            raise UsageError(f"`filter` must be printable text, got {text!r}")
    account, episode, group = account.strip(), episode.strip(), group.strip()
    if account and ":" not in account:
        account = user_account(account, "PLAY").id
    found = exchange.history(
        account=account or None,
        episode=episode or None,
        group=group or None,
        limit=_ENTRIES + 1,
        before_seq=before,
    )
    newest = exchange.history(limit=1)
    return page(
        request,
        "ledger.html",
        entries=found[:_ENTRIES],
        older=found[_ENTRIES - 1].transfer.seq if len(found) > _ENTRIES else None,
        before=before,
        end=newest[0].transfer if newest else None,
        account=account,
        episode=episode,
        group=group,
        held=_held(exchange, account, episode),
    )


@router.get("/ledger/verification")
def verification(request: Request, app: App) -> Response:
    """Replay every transfer from the first, and hold every balance against it."""
    return page(request, "ledger_verification.html", report=app.exchange.verify())


def _profile(
    request: Request,
    person: Person,
    *,
    problem: HeretixError | None = None,
    credited: Credited | None = None,
) -> Response:
    app = app_state(request)
    exchange = app.exchange
    account = user_account(person.name, "PLAY").id
    entries = exchange.history(account=account, limit=30)
    return page(
        request,
        "profile.html",
        problem=problem,
        credited=credited,
        person=person,
        account=account,
        purse=purse_of(app, person, "PLAY"),
        starting=STARTING_PURSE,
        positions=exchange.positions_of(person.name),
        entries=entries,
        reasons={
            line.transfer: line.reason
            for name in sorted({entry.transfer.episode or "" for entry in entries} - {""})
            for statement in exchange.statements(name)
            for line in statement.lines
        },
        standing=app.exploration.standing(person.name),
    )


def _held(exchange: Exchange, account: str, episode: str) -> list[tuple[str, int, str]]:
    """Read the accounts that were asked for, what is in them, and in which currency."""
    if account:
        with suppress(RefusedError):
            return [(account, exchange.balance(account), account.rpartition(":")[2])]
        return []
    pots = exchange.balances(episode=episode) if episode else []
    return [(pot.account.id, pot.balance, pot.account.currency) for pot in pots]
