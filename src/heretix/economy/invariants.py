"""What must hold of a ledger at every moment; each rule says which account breaks it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heretix.economy.accounts import AccountKind
from heretix.economy.chain import replay, verify

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from heretix.economy.accounts import Account
    from heretix.economy.transfers import Transfer

__all__ = [
    "Breach",
    "breaches",
    "broken_replay",
    "crossed_currencies",
    "leftover_escrows",
    "misnamed_accounts",
    "overdrafts",
    "stake_mismatch",
    "unbalanced_currencies",
]


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that doesn't hold, and of what."""

    rule: str
    subject: str
    detail: str


def unbalanced_currencies(
    accounts: Mapping[str, Account], balances: Mapping[str, int]
) -> Iterator[Breach]:
    """The balances of each currency add up to zero."""
    sums: defaultdict[str, int] = defaultdict(int)
    for name, balance in balances.items():
        sums[accounts[name].currency] += balance
    for currency, total in sums.items():
        if total:
            yield Breach("zero_sum", currency, f"the balances add up to {total}, not to 0")


def misnamed_accounts(owned: Iterable[tuple[Account, str | None]]) -> Iterator[Breach]:
    """An account is what its id says: one that is called an issuer's could owe without end."""
    for account, person in owned:
        kind, *inner, currency = account.id.split(":")
        pot = kind == AccountKind.ESCROW
        said = (
            kind,
            currency,
            inner[0] if pot and len(inner) == 2 else None,
            inner[0] if kind == AccountKind.USER and len(inner) == 1 else None,
        )
        kept = (account.kind.value, account.currency, account.episode, person)
        if said != kept:
            yield Breach("account", account.id, f"is kept as {kept}, its id says {said}")


def overdrafts(accounts: Mapping[str, Account], balances: Mapping[str, int]) -> Iterator[Breach]:
    """Nobody but the issuer is below zero."""
    for name, balance in balances.items():
        if balance < 0 and not accounts[name].may_be_negative:
            yield Breach("no_overdraft", name, f"the balance is {balance}")


def leftover_escrows(
    accounts: Mapping[str, Account], balances: Mapping[str, int], episodes: Mapping[str, bool]
) -> Iterator[Breach]:
    """The pots of an episode that has ended are empty."""
    for account in accounts.values():
        ended = account.episode is not None and not episodes.get(account.episode, True)
        left = balances.get(account.id, 0)
        if ended and left:
            yield Breach("empty_escrow", account.id, f"{left} is left after the episode ended")


def crossed_currencies(
    accounts: Mapping[str, Account], transfers: Iterable[Transfer]
) -> Iterator[Breach]:
    """No transfer takes one currency and gives another."""
    for transfer in transfers:
        ends = {accounts[transfer.debit].currency, accounts[transfer.credit].currency}
        if ends != {transfer.currency}:
            yield Breach("one_currency", transfer.id, f"{transfer.currency} between {sorted(ends)}")


def broken_replay(transfers: Iterable[Transfer], balances: Mapping[str, int]) -> Iterator[Breach]:
    """The chain verifies, and replaying it gives the balances."""
    chain = tuple(transfers)
    for fault in verify(chain).faults:
        yield Breach("chain", fault.id, fault.detail)
    replayed = replay(chain)
    for name in sorted(replayed.keys() | balances.keys()):
        expected, kept = replayed.get(name, 0), balances.get(name, 0)
        if expected != kept:
            yield Breach("replay", name, f"the chain gives {expected}, the balance is {kept}")


def stake_mismatch(escrow: str, balance: int, stakes: Iterable[int]) -> Iterator[Breach]:
    """The stake pot of an episode holds exactly its open positions."""
    total = sum(stakes)
    if balance != total:
        yield Breach("stakes", escrow, f"holds {balance}, the open positions are {total}")


def breaches(
    *,
    accounts: Mapping[str, Account],
    balances: Mapping[str, int],
    episodes: Mapping[str, bool],
    transfers: Iterable[Transfer],
) -> tuple[Breach, ...]:
    """Everything that doesn't hold of a ledger; empty when all is well."""
    chain = tuple(transfers)
    return (
        *unbalanced_currencies(accounts, balances),
        *overdrafts(accounts, balances),
        *leftover_escrows(accounts, balances, episodes),
        *crossed_currencies(accounts, chain),
        *broken_replay(chain, balances),
    )
