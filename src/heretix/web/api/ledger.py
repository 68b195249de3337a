"""The ledger and the exploration track: who holds what, every transfer, whether it adds up,
everybody's standing, and credits for findings."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from heretix.config import MAX_CLAIM_CHARS, check_claim
from heretix.core.lenses import LensCode
from heretix.economy.exchange import Entry, Holding
from heretix.economy.exploration import NoCredit
from heretix.economy.exploration_service import Standing
from heretix.economy.ledger import AccountKind, Code
from heretix.web.api import resource
from heretix.web.api.episodes import BreachView
from heretix.web.auth import Costly, Explorer
from heretix.web.moves import read_episode
from heretix.web.problems import refusals
from heretix.web.state import App

router = resource.make_read_router("ledger")
exploration = resource.make_write_router("exploration")


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


class LedgerView(resource.View):
    """Outcome of reading the chains: how many transfers, and the hash that they, or the events of
    the one episode, end in."""

    ok: bool
    count: int
    last_hash: str
    breaches: list[BreachView]


@router.get("/ledger/transfers")
def list_transfers(
    app: App,
    account: resource.Text = None,
    episode: resource.Text = None,
    group: resource.Text = None,
    limit: resource.Limit = 50,
    cursor: resource.Cursor = None,
) -> resource.Page[TransferView]:
    """Transfers that fit everything that is given, the newest first."""
    (before,) = resource.read_cursor(cursor, int) or (None,)
    found = app.exchange.history(
        account=account, episode=episode, group=group, limit=limit + 1, before_seq=before
    )
    fields = [name for name in TransferView.model_fields if name != "at_ms"]

    def show(entry: Entry) -> TransferView:
        same = {name: getattr(entry.transfer, name) for name in fields}
        return TransferView(at_ms=entry.at_ms, **same)

    return resource.page_of(found, limit, lambda entry: (entry.transfer.seq,), show)


@router.get("/ledger/balances")
def list_balances(
    app: App,
    person: resource.Text = None,
    episode: resource.Text = None,
    currency: Annotated[Literal["PLAY", "XC"] | None, Query()] = None,
    limit: resource.Limit = 100,
    cursor: resource.Cursor = None,
) -> resource.Page[HoldingView]:
    """Accounts and what they hold, by id."""
    (start,) = resource.read_cursor(cursor, int) or (0,)
    found = app.exchange.balances(
        person=person, episode=episode, currency=currency, limit=limit + 1, offset=start
    )

    def show(holding: Holding) -> HoldingView:
        account = holding.account
        same = {name: getattr(account, name) for name in ("kind", "currency", "episode")}
        held = {"person": holding.person, "balance": holding.balance}
        return HoldingView(account=account.id, **same, **held)

    return resource.page_of(found, limit, lambda _: (start + limit,), show)


@router.get("/ledger/verify", dependencies=[Costly], responses=refusals(404))
def verify_ledger(app: App, episode: resource.Text = None) -> LedgerView:
    """Read all chains from their beginning, or an episode's alone, and hold everything that is kept
    against them."""
    if episode is None:
        return LedgerView.model_validate(app.exchange.verify())
    report = read_episode(lambda of: app.exchange.verify(episode=of), episode)
    return LedgerView.model_validate(report)


@router.get("/leaderboard", dependencies=[Costly])
def list_standings(
    app: App, limit: resource.Limit = 50, cursor: resource.Cursor = None
) -> resource.Page[Standing]:
    """Everybody who explored or challenged: by reputation, then by credits."""
    found = app.exploration.leaderboard(limit=None)
    return resource.slice_of(found, lambda standing: standing, limit=limit, cursor=cursor)


class CreditGiven(BaseModel):
    """A claim measured with and without evidence; model and lens where there are several."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: str = Field(min_length=1, max_length=MAX_CLAIM_CHARS)
    model: str | None = Field(default=None, max_length=200)
    lens: LensCode | None = None


class CreditView(BaseModel):
    """Reward of a finding, in whole minor units of XC."""

    claim: str
    model: str
    lens: str
    executions: tuple[str, str] = Field(description="Of the evidence lens, then of the raw prior.")
    found: int = Field(description="What it is worth by itself.")
    amount: int
    reason: NoCredit | None = Field(description="Why that isn't all of what was found.")
    balance: int


@exploration.post("/exploration/credits", responses=refusals(404))
def claim_credits(app: App, given: CreditGiven, person: Explorer) -> CreditView:
    """Claim the credits of a finding of `/anomalies`. A claim is credited once, to whoever asks
    first."""
    found = app.exploration.credit(
        person.name,
        check_claim(given.claim),
        model=given.model,
        lens=given.lens,
        # Planted beliefs are for practice, and practice is alone.
        simulated=person.is_local,
    )
    same = {name: getattr(found.finding, name) for name in ("claim", "model", "lens", "executions")}
    earned = {name: getattr(found.crediting, name) for name in ("found", "amount", "reason")}
    return CreditView(**same, **earned, balance=found.balance)
