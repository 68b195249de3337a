"""Transfers: one amount from one account to another, in groups that stand or fall together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from heretix.economy.canon import digest
from heretix.economy.money import is_whole
from heretix.errors import UsageError

__all__ = ["Code", "Draft", "Group", "Transfer", "body_hash", "client_group", "reversal"]

MAX_KEY = 200


class Code(StrEnum):
    """Why money moved."""

    ISSUE = "issue"
    BURN = "burn"
    SEED = "seed"
    BUDGET = "budget"
    STAKE = "stake"
    LATE_STAKE_REFUND = "late_stake_refund"
    CHALLENGE = "challenge"
    CHALLENGE_REFUND = "challenge_refund"
    CHALLENGE_FEE = "challenge_fee"
    RESILIENCE_YIELD = "resilience_yield"
    BOND = "bond"
    BOND_RETURN = "bond_return"
    CLAWBACK = "clawback"
    REWARD = "reward"
    BUDGET_RETURN = "budget_return"
    PAYOUT = "payout"
    STAKE_REFUND = "stake_refund"
    FEE = "fee"
    DUST = "dust"
    DISPUTE = "dispute"
    DISPUTE_RETURN = "dispute_return"
    DISPUTE_LOST = "dispute_lost"
    REVERSAL = "reversal"
    CORRECTION = "correction"

    @property
    def corrects(self) -> bool:
        """Whether it puts right something already written, even in a finished episode."""
        return self in {Code.REVERSAL, Code.CORRECTION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A transfer that is asked for. `debit` gives, `credit` receives."""

    id: str
    """The client's idempotency key: chosen once, sent again on a retry."""
    debit: str
    credit: str
    amount: int
    currency: str
    code: Code
    episode: str | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.amount):
            raise UsageError(
                f"`amount` must be a whole number of minor units, got {self.amount!r}; "
                "round it on purpose before it comes near the ledger"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Drafts that are applied all together, in order, or not at all."""

    id: str
    drafts: tuple[Draft, ...]
    closes: str | None = None
    """The episode that ends with this group: its pots must then be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A transfer that was written. Nothing about it ever changes."""

    id: str
    body_hash: str
    debit: str
    credit: str
    amount: int
    currency: str
    code: Code
    episode: str | None
    group: str
    seq: int
    """Place in the chain, from 1."""
    prev_hash: str
    hash: str


def body_hash(transfer: Draft | Transfer, group: str) -> str:
    """Hash of what is asked for, without the key it is asked under."""
    return digest(
        {
            "amount": transfer.amount,
            "code": transfer.code.value,
            "credit": transfer.credit,
            "currency": transfer.currency,
            "debit": transfer.debit,
            "episode": transfer.episode,
            "group": group,
        }
    )


def client_group(account: str, key: str) -> str:
    """The id of a group that a client asked for under an idempotency key of its own.

    Keys live under the account that chose them: nobody can take another's key, nor the id
    under which an episode will settle.
    """
    if not key or len(key) > MAX_KEY or not key.isprintable():
        raise UsageError(
            f"`key` must be printable text of 1 to {MAX_KEY} characters, got {key!r}; "
            "a random UUID serves well"
        )
    return f"by:{account}:{key}"


def reversal(transfer: Transfer) -> Draft:
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
