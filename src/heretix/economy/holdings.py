"""Exploration credits as a person holds them: what was granted, by day, less what has decayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heretix.economy.accounts import user_account
from heretix.economy.exploration import Grant, remaining
from heretix.economy.money import XC
from heretix.store import exploration, ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

__all__ = ["DAY_MS", "credits_left", "day_of", "grants_of"]

DAY_MS: Final = 86_400_000


def grants_of(connection: Connection, person: str) -> list[Grant]:
    """What a person was credited with, oldest first."""
    rows = exploration.grants(connection, person=person)
    return [Grant(amount=row["amount"], day=row["day"]) for row in rows]


def day_of(grants: Sequence[Grant], at_ms: int) -> int:
    """The day of a moment; never before a day on which the person was credited.

    A clock that is held earlier would open the cap of a week that is over, and undo decay.
    """
    return max([grant.day for grant in grants] + [at_ms // DAY_MS])


def credits_left(connection: Connection, person: str, *, at_ms: int, half_life_days: int) -> int:
    """What a person's credits are worth at a moment, whether or not decay was posted yet."""
    account = user_account(person, XC.code).id
    row = ledger.accounts_by_id(connection, [account]).get(account)
    if row is None:
        return 0
    grants = grants_of(connection, person)
    today = day_of(grants, at_ms)
    left = remaining(grants, today=today, half_life_days=half_life_days)
    return min(int(row["balance"]), left)
