"""Accounts: who can hold money, and who may owe it.

An account holds one currency. Its id says what it is, so that a ledger line can be read by
itself: `user:ada:PLAY`, `escrow:ep-7:stake:PLAY`, `operations:PLAY`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from heretix.errors import UsageError

__all__ = ["Account", "AccountKind", "Escrow", "escrow_account", "house_account", "user_account"]


MAX_NAME: Final = 64
"""Characters of a name: an index holds ids, and a table shows them."""


class AccountKind(StrEnum):
    """What an account is for."""

    USER = "user"
    ESCROW = "escrow"
    """Money that an episode holds until it ends."""
    HOUSE = "house"
    """Seeds markets."""
    OPERATIONS = "operations"
    """Takes what attempts and rejected disputes cost."""
    PLATFORM = "platform"
    EPC_FUND = "epc_fund"
    """Pays for durable updates."""
    ROUNDING = "rounding"
    """Takes the dust."""
    ISSUANCE = "issuance"
    """Where a currency comes from and goes to: the one kind that may be below zero."""


class Escrow(StrEnum):
    """The pots of an episode."""

    STAKE = "stake"
    CHALLENGE = "challenge"
    BOND = "bond"
    BUDGET = "budget"
    DISPUTE = "dispute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One holder of one currency."""

    id: str
    kind: AccountKind
    currency: str
    episode: str | None = None
    """The episode whose pot this is; only an escrow has one."""

    @property
    def may_be_negative(self) -> bool:
        """Whether the account may owe: everyone else can only spend what they have."""
        return self.kind is AccountKind.ISSUANCE


def user_account(name: str, currency: str) -> Account:
    """The account of a person or an agent."""
    _require_name("name", name)
    return Account(id=f"user:{name}:{currency}", kind=AccountKind.USER, currency=currency)


def house_account(kind: AccountKind, currency: str) -> Account:
    """An account of the operator's: there is one of each kind for each currency."""
    if kind in {AccountKind.USER, AccountKind.ESCROW}:
        raise UsageError(f"`kind` must be one of the operator's accounts, got {kind.value!r}")
    return Account(id=f"{kind.value}:{currency}", kind=kind, currency=currency)


def escrow_account(episode: str, pot: Escrow, currency: str) -> Account:
    """One pot of one episode."""
    _require_name("episode", episode)
    return Account(
        id=f"escrow:{episode}:{pot.value}:{currency}",
        kind=AccountKind.ESCROW,
        currency=currency,
        episode=episode,
    )


def _require_name(name: str, value: str) -> None:
    # A colon would let one name spell another account's id.
    if not value or ":" in value or not value.isprintable():
        raise UsageError(
            f"`{name}` must be printable text without a colon, got {value[:MAX_NAME]!r}; "
            "choose another name"
        )
    if len(value) > MAX_NAME:
        raise UsageError(
            f"`{name}` must have at most {MAX_NAME} characters, got {len(value)}; choose another"
        )
    # Two spellings that look the same would be two accounts, one of them an impostor's.
    plain = " ".join(unicodedata.normalize("NFC", value).split())
    if value != plain:
        raise UsageError(
            f"`{name}` must have single spaces, none at its ends, and composed letters, got "
            f"{value!r}; write it as {plain!r}"
        )
