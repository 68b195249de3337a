"""The exchange around episodes: one's own profile, the leaderboard, the ledger and its chain."""

from contextlib import suppress
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Person, Role
from heretix.config import check_claim
from heretix.core.errors import ConfigError, HeretixError, RecordError, RefusedError, UsageError
from heretix.core.lenses import EARNING
from heretix.economy.exchange import STARTING_PURSE, Exchange
from heretix.economy.exploration_service import Credited
from heretix.economy.heads import Head, dump_head, find_key
from heretix.economy.ledger import user_account
from heretix.web.auth import Costly, Explorer, Reader, require
from heretix.web.pages.episodes import purse_of
from heretix.web.state import App, AppState, app_state
from heretix.web.templating import page, send_with_etag

router = APIRouter(include_in_schema=False)  # Heads are for everybody, the rest is for readers
_READERS: Final = [require(Role.READER)]

Filter = Annotated[str, Query(max_length=300)]

_ENTRIES: Final = 50
_UNSIGNED: Final = (
    "no head is signed here: nothing was written yet, or this server has no key; "
    "`heretix ledger head` on its machine makes one"
)


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


@router.get("/leaderboard", dependencies=[*_READERS, Costly])
def leaderboard(request: Request, app: App, person: Reader) -> Response:
    """Rank everybody who challenged or explored, by what lasted."""
    standings = app.exploration.leaderboard(limit=50)
    return page(request, "leaderboard.html", standings=standings, person=person)


@router.get("/ledger", dependencies=_READERS)
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
    with app.store.snapshot():
        found = exchange.history(
            account=account or None,
            episode=episode or None,
            group=group or None,
            limit=_ENTRIES + 1,
            before_seq=before,
        )
        newest = exchange.history(limit=1)
        held = _read_balances(exchange, account, episode)
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
        held=held,
    )


@router.get("/ledger/heads")
def heads(request: Request, app: App) -> Response:
    """Publish the latest heads of the chain, signed: to anybody, for they are to be kept."""
    return page(request, "heads.html", heads=_sign_heads(app))


@router.get("/ledger/head.json")
def newest_head(request: Request, app: App) -> Response:
    """Send the newest head as the file that `heretix ledger verify --against` reads."""
    found = _sign_heads(app, limit=1)
    if not found:
        raise RecordError(_UNSIGNED)
    response = send_with_etag(request, dump_head(found[0]).encode(), "application/json")
    response.headers["content-disposition"] = 'attachment; filename="head.json"'
    return response


def _sign_heads(app: AppState, *, limit: int = 10) -> list[Head]:
    key_file = find_key(app.settings.env)
    return [] if key_file is None else app.exchange.heads(key_file, limit=limit)


@router.get("/ledger/verification", dependencies=_READERS)
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
    with app.store.snapshot():
        entries = exchange.history(account=account, limit=30)
        held: dict[str, Any] = {
            "purse": purse_of(app, person, "PLAY"),
            "positions": exchange.positions_of(person.name),
            "reasons": exchange.reasons(e.transfer.group for e in entries if e.transfer.episode),
            "standing": app.exploration.standing(person.name),
        }
    return page(
        request,
        "profile.html",
        problem=problem,
        credited=credited,
        person=person,
        account=account,
        starting=STARTING_PURSE,
        entries=entries,
        **held,
    )


def _read_balances(exchange: Exchange, account: str, episode: str) -> list[tuple[str, int, str]]:
    """Read the accounts that were asked for, what is in them, and in which currency."""
    if account:
        with suppress(RefusedError):
            return [(account, exchange.balance(account), account.rpartition(":")[2])]
        return []
    pots = exchange.balances(episode=episode) if episode else []
    return [(pot.account.id, pot.balance, pot.account.currency) for pot in pots]
