"""Accounts and the ledger as an exchange keeps them: who holds what, and whether it adds up."""

from __future__ import annotations

import contextlib
import secrets
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from heretix.economy.accounts import (
    Account,
    AccountKind,
    Escrow,
    escrow_account,
    house_account,
    user_account,
)
from heretix.economy.canon import canonical_json
from heretix.economy.chain import verify
from heretix.economy.docket import Docket
from heretix.economy.invariants import (
    Breach,
    crossed_currencies,
    leftover_escrows,
    misnamed_accounts,
    overdrafts,
    stake_mismatch,
    unbalanced_currencies,
)
from heretix.economy.journal import Journal, account_of, transfer_of
from heretix.economy.ledger import Status
from heretix.economy.money import CURRENCIES, Currency, require_whole
from heretix.economy.records import Entry, Holding, LedgerReport
from heretix.economy.statement import Explained
from heretix.economy.transfers import Code, Draft, Group, Transfer, client_group
from heretix.errors import RecordError, RefusedError, UsageError
from heretix.store import episodes, ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import Connection, RowMapping

    from heretix.economy.clock import Clock
    from heretix.store import Store

__all__ = [
    "HOUSE_PURSE",
    "STARTING_PURSE",
    "Treasury",
    "account_id",
    "house_accounts",
    "require_currency",
]

STARTING_PURSE: Final = 1_000_000
"""What a person starts with: 10,000.00 in play money."""
HOUSE_PURSE: Final = 1_000_000_000
"""What the house has to seed markets with, and the fund to pay rewards from."""
_PAGE: Final = 1_000
_Record = TypeVar("_Record")


class Treasury:
    """Accounts in a store. Everything that a move writes is written in one transaction.

    People are called by their names. Where an account may be meant as well, `who` is a name, or
    an account's id, which has colons where a name can't.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._docket = Docket()

    def ensure_house(self, currency: str = "PLAY", *, purse: int = HOUSE_PURSE) -> None:
        """Make the operator's accounts; the house and the fund are given a purse each, once."""
        require_whole("purse", purse)
        to = (AccountKind.HOUSE, AccountKind.EPC_FUND)
        wanted = require_currency(currency)
        group = f"found:{currency}"
        # Whoever only looks mustn't have to wait for a writer, nor be one.
        with self._store.reading() as connection:
            if ledger.statement(connection, group) is not None:
                return
        with self._turn() as journal:
            journal.add_accounts(house_accounts(currency))
            if not wanted.transferable or ledger.statement(journal.connection, group) is not None:
                return
            self._issue(
                journal, group, {house_account(kind, currency).id: purse for kind in to}, currency
            )

    def join(self, name: str, currency: str = "PLAY", *, purse: int | None = None) -> Holding:
        """Give a person an account with a starting purse. Who has one keeps it as it is."""
        account, wanted = user_account(name, currency), require_currency(currency)
        start = (STARTING_PURSE if wanted.transferable else 0) if purse is None else purse
        require_whole("purse", start)
        with self._turn() as journal:
            if account.id not in ledger.accounts_by_id(journal.connection, [account.id]):
                journal.add_accounts(house_accounts(currency))
                journal.add_accounts([account], person=name)
                self._issue(journal, f"join:{account.id}", {account.id: start}, currency)
            row = ledger.accounts_by_id(journal.connection, [account.id])[account.id]
        return _holding(row)

    def issue(
        self, who: str, amount: int, *, key: str, currency: str = "PLAY"
    ) -> tuple[Transfer, ...]:
        """Make money and give it to a person or to one of the operator's accounts."""
        account = account_id(who, currency)
        mint = house_account(AccountKind.ISSUANCE, require_currency(currency).code)
        draft = Draft(
            id=f"{client_group(mint.id, key)}/0",
            debit=mint.id,
            credit=account,
            amount=amount,
            currency=currency,
            code=Code.ISSUE,
        )
        group = Group(id=client_group(mint.id, key), drafts=(draft,))
        with self._turn() as journal:
            request = _issue_request({account: amount})
            return journal.post(group, move="issue", request=request, lines=_issued(group))

    def balance(self, who: str, currency: str = "PLAY") -> int:
        """What a person or an account holds; an unknown one is refused."""
        wanted = account_id(who, currency)
        with self._store.reading() as connection:
            row = ledger.accounts_by_id(connection, [wanted]).get(wanted)
        if row is None:
            raise RefusedError(
                f"`{who}` must have an account in {currency}, and has none; join first",
                status=Status.UNKNOWN_ACCOUNT.value,
            )
        return int(row["balance"])

    def balances(
        self,
        *,
        person: str | None = None,
        episode: str | None = None,
        currency: str | None = None,
        limit: int = _PAGE,
        offset: int = 0,
    ) -> list[Holding]:
        """Accounts that fit everything that is given, by id."""
        if currency is not None:
            require_currency(currency)
        with self._store.reading() as connection:
            rows = ledger.account_rows(
                connection,
                person=person,
                episode=episode,
                currency=currency,
                limit=require_whole("limit", limit),
                offset=require_whole("offset", offset),
            )
        return [_holding(row) for row in rows]

    def history(
        self,
        *,
        account: str | None = None,
        episode: str | None = None,
        group: str | None = None,
        limit: int = 50,
        before_seq: int | None = None,
    ) -> list[Entry]:
        """Transfers that fit everything that is given, the newest first."""
        with self._store.reading() as connection:
            rows = ledger.history(
                connection,
                account=account,
                episode=episode,
                group=group,
                limit=require_whole("limit", limit),
                before_seq=before_seq,
            )
        return [Entry(transfer=transfer_of(row), at_ms=row["at_ms"]) for row in rows]

    def export(self, *, after_seq: int = 0) -> Iterator[str]:
        """Transfers in the order of the chain, one line of JSON each, as of one moment."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            for row in ledger.stream_transfers(connection, after_seq=after_seq):
                yield canonical_json(dict(row))

    def verify(self) -> LedgerReport:
        """Read the chain from its first transfer, and hold everything that is kept against it."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            return _verify(connection)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Journal]:
        """A writer's turn: a transaction that has the end of the chain."""
        with self._store.writing() as connection:
            yield Journal(connection, self._clock)

    def _issue(
        self, journal: Journal, group_id: str, amounts: Mapping[str, int], currency: str
    ) -> None:
        """Issue purses under an id of their own; nothing is written for nothing."""
        mint = house_account(AccountKind.ISSUANCE, currency).id
        drafts = tuple(
            Draft(
                id=f"{group_id}/{number}",
                debit=mint,
                credit=account,
                amount=amount,
                currency=currency,
                code=Code.ISSUE,
            )
            for number, (account, amount) in enumerate(amounts.items())
            if amount
        )
        if drafts:
            group = Group(id=group_id, drafts=drafts)
            journal.post(group, move="issue", request=_issue_request(amounts), lines=_issued(group))


def require_currency(code: str) -> Currency:
    """Check that there is such a currency, and return it."""
    if code not in CURRENCIES:
        raise UsageError(f"`currency` must be one of {', '.join(sorted(CURRENCIES))}, got {code!r}")
    return CURRENCIES[code]


def account_id(who: str, currency: str) -> str:
    """The id of a person's account, or the id that was given."""
    return who if ":" in who else user_account(who, currency).id


def house_accounts(currency: str) -> tuple[Account, ...]:
    """The operator's accounts in a currency."""
    ours = (kind for kind in AccountKind if kind not in {AccountKind.USER, AccountKind.ESCROW})
    return tuple(house_account(kind, currency) for kind in ours)


def _holding(row: RowMapping) -> Holding:
    return Holding(account=account_of(row), balance=row["balance"], person=row["person"])


def _issue_request(amounts: Mapping[str, int]) -> dict[str, Any]:
    return {"move": "issue", "amounts": dict(amounts)}


def _issued(group: Group) -> tuple[Explained, ...]:
    return tuple(
        Explained(
            transfer=draft.id,
            account=draft.credit,
            amount=draft.amount,
            code=draft.code,
            text=f"issued {draft.amount} {draft.currency}",
        )
        for draft in group.drafts
    )


def _verify(connection: Connection) -> LedgerReport:
    breaches: list[Breach] = []
    holdings = list(_read(_holding, ledger.account_rows(connection), breaches))
    accounts = {holding.account.id: holding.account for holding in holdings}
    balances = {holding.account.id: holding.balance for holding in holdings}
    breaches.extend(misnamed_accounts((h.account, h.person) for h in holdings))
    replayed: defaultdict[str, int] = defaultdict(int)
    first_seqs: dict[str, int] = {}

    def passing() -> Iterator[Transfer]:
        # One pass, whatever the length: replayed and checked on the way to being verified.
        for transfer in _read(transfer_of, ledger.stream_transfers(connection), breaches):
            replayed[transfer.debit] -= transfer.amount
            replayed[transfer.credit] += transfer.amount
            first_seqs.setdefault(transfer.group, transfer.seq)
            strangers = {transfer.debit, transfer.credit} - accounts.keys()
            if strangers:
                detail = f"no account {min(strangers)!r}"
                breaches.append(Breach("known_accounts", transfer.id, detail))
            else:
                breaches.extend(crossed_currencies(accounts, [transfer]))
            yield transfer

    chain = verify(passing())
    breaches.extend(Breach("chain", fault.id, fault.detail) for fault in chain.faults)
    end = ledger.chain_end(connection)
    if (end["last_seq"], end["last_hash"]) != (chain.count, chain.last_hash):
        detail = f"{chain.count} transfers end in {chain.last_hash}, not {end['last_seq']} in "
        breaches.append(Breach("chain_end", "chain", f"{detail}{end['last_hash']}"))
    for name in sorted(replayed.keys() | balances.keys()):
        expected, kept = replayed.get(name, 0), balances.get(name, 0)
        if expected != kept:
            detail = f"the chain gives {expected}, the balance is {kept}"
            breaches.append(Breach("replay", name, detail))
    breaches.extend(_statement_breaches(connection, first_seqs))
    open_ = episodes.episodes_open(connection)
    breaches.extend(unbalanced_currencies(accounts, balances))
    breaches.extend(overdrafts(accounts, balances))
    breaches.extend(leftover_escrows(accounts, balances, open_))
    breaches.extend(_stake_breaches(connection, balances))
    return LedgerReport(count=chain.count, last_hash=chain.last_hash, breaches=tuple(breaches))


def _read(
    record_of: Callable[[RowMapping], _Record], rows: Iterable[RowMapping], breaches: list[Breach]
) -> Iterator[_Record]:
    """The records in rows; one that no rule could have written is named and left out."""
    for row in rows:
        try:
            record = record_of(row)
        except RecordError as exc:
            breaches.append(Breach("words", row["id"], str(exc)))
            continue
        yield record


def _statement_breaches(connection: Connection, first_seqs: Mapping[str, int]) -> Iterator[Breach]:
    """Every group has the statement that keeps its key from being used again, and no other has."""
    told = ledger.statement_seqs(connection)
    for group in sorted(told.keys() | first_seqs.keys()):
        if told.get(group) != first_seqs.get(group):
            detail = f"begins at {first_seqs.get(group)}, its statement says {told.get(group)}"
            yield Breach("statements", group, detail)


def _stake_breaches(connection: Connection, balances: Mapping[str, int]) -> Iterator[Breach]:
    """The stake pot of each open episode holds its bets, and its market counts them."""
    for row in episodes.open_stakes(connection):
        pot = escrow_account(row["episode_id"], Escrow.STAKE, row["currency"]).id
        total = int(row["market_money_held"])
        yield from stake_mismatch(pot, balances.get(pot, 0), [total])
        for name in ("market_money", "market_heretic", "market_orthodox"):
            held = int(row[f"{name}_held"])
            if (row[name] or 0) != held:
                detail = f"`{name}` counts {row[name]}, the open positions come to {held}"
                yield Breach("market", row["episode_id"], detail)
