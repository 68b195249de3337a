"""A statement: a group of transfers in the making, each with the sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass

from heretix.economy.accounts import AccountKind, Escrow, escrow_account, house_account
from heretix.economy.transfers import Code, Draft, Group

__all__ = ["Explained", "Statement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One line for people: who receives what, and why."""

    transfer: str
    account: str
    amount: int
    code: Code
    text: str


class Statement:
    """Collects the transfers of one group. Ids follow from the group's, in order."""

    def __init__(self, group: str, *, episode: str, currency: str, mark: str | None = None) -> None:
        self._group = group
        # A mark stands in every id, so that the chain, which covers ids, commits to it.
        self._prefix = group if mark is None else f"{group}/{mark}"
        self._episode = episode
        self._currency = currency
        self._drafts: list[Draft] = []
        self._lines: list[Explained] = []

    @property
    def lines(self) -> tuple[Explained, ...]:
        """The explanations, in the order of the transfers."""
        return tuple(self._lines)

    def pot(self, pot: Escrow) -> str:
        """The id of one of the episode's pots."""
        return escrow_account(self._episode, pot, self._currency).id

    def house(self, kind: AccountKind) -> str:
        """The id of one of the operator's accounts."""
        return house_account(kind, self._currency).id

    def move(self, debit: str, credit: str, amount: int, code: Code, text: str) -> None:
        """Add a transfer; nothing is written for an amount of zero."""
        assert amount >= 0, f"{code}: {amount}"
        if amount == 0:
            return
        draft = Draft(
            id=f"{self._prefix}/{len(self._drafts)}",
            debit=debit,
            credit=credit,
            amount=amount,
            currency=self._currency,
            code=code,
            episode=self._episode,
        )
        self._drafts.append(draft)
        self._lines.append(
            Explained(transfer=draft.id, account=credit, amount=amount, code=code, text=text)
        )

    def group(self, *, closes: bool = False) -> Group | None:
        """The group, or None when no money moves."""
        if not self._drafts:
            return None
        return Group(
            id=self._group,
            drafts=tuple(self._drafts),
            closes=self._episode if closes else None,
        )
