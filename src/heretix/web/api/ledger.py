"""The ledger: who holds what, every transfer, whether it adds up, and everybody's standing."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel

from heretix.economy.exchange import Entry, Holding
from heretix.economy.exploration_service import Standing
from heretix.economy.ledger import AccountKind, Code
from heretix.web.api.episodes import BreachView
from heretix.web.api.resource import (
    Cursor,
    Limit,
    Page,
    Text,
    View,
    page_of,
    read_cursor,
    resource,
    slice_of,
)
from heretix.web.state import App

router = resource("ledger")


class TransferView(BaseModel):
    """One transfer, as the chain holds it. Amounts are whole minor units."""

    seq: int
    id: str
    debit: str
    credit: str
    amount: int
    currency: str
    code: Code
    episode: str | None
    group: str
    body_hash: str
    prev_hash: str
    hash: str
    at_ms: int


class HoldingView(BaseModel):
    """An account, and what it holds."""

    account: str
    kind: AccountKind
    currency: str
    episode: str | None
    person: str | None
    balance: int


class LedgerView(View):
    """What reading the whole chain showed."""

    ok: bool
    count: int
    last_hash: str
    breaches: list[BreachView]


@router.get("/ledger/transfers")
def list_transfers(
    app: App,
    account: Text = None,
    episode: Text = None,
    group: Text = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[TransferView]:
    """Transfers that fit everything that is given, the newest first."""
    (before,) = read_cursor(cursor, int) or (None,)
    found = app.exchange.history(
        account=account, episode=episode, group=group, limit=limit + 1, before_seq=before
    )
    fields = [name for name in TransferView.model_fields if name != "at_ms"]

    def show(entry: Entry) -> TransferView:
        same = {name: getattr(entry.transfer, name) for name in fields}
        return TransferView(at_ms=entry.at_ms, **same)

    return page_of(found, limit, lambda entry: (entry.transfer.seq,), show)


@router.get("/ledger/balances")
def list_balances(
    app: App,
    person: Text = None,
    episode: Text = None,
    currency: Annotated[Literal["PLAY", "XC"] | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[HoldingView]:
    """Accounts and what they hold, by id."""
    (start,) = read_cursor(cursor, int) or (0,)
    found = app.exchange.balances(
        person=person, episode=episode, currency=currency, limit=limit + 1, offset=start
    )

    def show(holding: Holding) -> HoldingView:
        account = holding.account
        same = {name: getattr(account, name) for name in ("kind", "currency", "episode")}
        held = {"person": holding.person, "balance": holding.balance}
        return HoldingView(account=account.id, **same, **held)

    return page_of(found, limit, lambda _: (start + limit,), show)


@router.get("/ledger/verify")
def verify_ledger(app: App) -> LedgerView:
    """Read the chain from its first transfer, and hold everything that is kept against it."""
    return LedgerView.model_validate(app.exchange.verify())


@router.get("/leaderboard")
def list_standings(app: App, limit: Limit = 50, cursor: Cursor = None) -> Page[Standing]:
    """Everybody who explored or challenged: by reputation, then by credits."""
    found = app.exploration.leaderboard(limit=None)
    return slice_of(found, lambda standing: standing, limit=limit, cursor=cursor)
