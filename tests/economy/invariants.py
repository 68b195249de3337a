"""What must hold of any ledger, checked the plain way: replay every transfer and compare."""

from __future__ import annotations

from collections import defaultdict

from heretix.economy.ledger import (
    Breach,
    Code,
    Draft,
    check_balances,
    check_parties,
    verify,
)


def replay(transfers):
    """Balances that follow from the transfers alone."""
    balances = defaultdict(int)
    for transfer in transfers:
        balances[transfer.debit] -= transfer.amount
        balances[transfer.credit] += transfer.amount
    return dict(balances)


def broken_replay(transfers, balances):
    """The chain verifies, and replaying it gives the balances."""
    yield from verify(transfers).breaches
    replayed = replay(transfers)
    for name in sorted(replayed.keys() | balances.keys()):
        expected, kept = replayed.get(name, 0), balances.get(name, 0)
        if expected != kept:
            yield Breach("replay", name, f"the chain gives {expected}, the balance is {kept}")


def breaches(*, accounts, balances, episodes, transfers):
    """Everything that doesn't hold of a ledger; empty when all is well."""
    chain = tuple(transfers)
    return (
        *check_balances(accounts, balances, episodes),
        *(breach for transfer in chain for breach in check_parties(accounts, transfer)),
        *broken_replay(chain, balances),
    )


def reversal(transfer):
    """The draft that undoes a transfer. Its id follows from the transfer's: undone once at most."""
    return Draft(
        id=f"reverse:{transfer.id}",
        debit=transfer.credit,
        credit=transfer.debit,
        amount=transfer.amount,
        currency=transfer.currency,
        code=Code.REVERSAL,
        episode=transfer.episode,
    )
