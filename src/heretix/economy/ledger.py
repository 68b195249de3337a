"""The ledger's rules: what is refused, in which order, and what is written otherwise.

`judge` decides about one group from what the group touches; a database loads just that, asks,
and writes what `link` returns in the same transaction. `Ledger` does the same in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from heretix.economy.accounts import Account, AccountKind
from heretix.economy.chain import GENESIS, link
from heretix.economy.money import CURRENCIES, MAX_AMOUNT, Currency, format_amount
from heretix.economy.transfers import Group, Transfer, body_hash
from heretix.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Applied", "Ledger", "LedgerState", "Refused", "Status", "Verdict", "apply", "judge"]


class Status(StrEnum):
    """What becomes of a group. Declared in order of precedence: the first that fits is given."""

    EMPTY_GROUP = "empty_group"
    DUPLICATE_ID = "duplicate_id"
    """One id twice within the group."""
    ID_CONFLICT = "id_conflict"
    """A key that was used before, with another body."""
    ALREADY_APPLIED = "already_applied"
    """The same keys and bodies as before: the first result again. Nothing is written."""
    AMOUNT_NOT_POSITIVE = "amount_not_positive"
    AMOUNT_TOO_LARGE = "amount_too_large"
    SAME_ACCOUNT = "same_account"
    UNKNOWN_ACCOUNT = "unknown_account"
    CURRENCY_MISMATCH = "currency_mismatch"
    NOT_TRANSFERABLE = "not_transferable"
    UNKNOWN_EPISODE = "unknown_episode"
    WRONG_EPISODE = "wrong_episode"
    """An escrow's money moved under another episode's name."""
    CLOSED_EPISODE = "closed_episode"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    BALANCE_TOO_LARGE = "balance_too_large"
    ESCROW_NOT_EMPTY = "escrow_not_empty"
    """The group leaves money in the pots of an episode that has ended."""
    APPLIED = "applied"

    @property
    def http_status(self) -> int:
        """What a web service answers."""
        return _HTTP.get(self, 422)


_HTTP: Final[Mapping[Status, int]] = {
    Status.APPLIED: 200,
    Status.ALREADY_APPLIED: 200,
    Status.UNKNOWN_ACCOUNT: 404,
    Status.UNKNOWN_EPISODE: 404,
    Status.ID_CONFLICT: 409,
    Status.CLOSED_EPISODE: 409,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status, and the draft that brought it about."""

    status: Status
    draft_index: int | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What a group is judged by. A database fills it with just what the group touches."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    balances: Mapping[str, int] = field(default_factory=dict)
    by_id: Mapping[str, Transfer] = field(default_factory=dict)
    by_group: Mapping[str, tuple[Transfer, ...]] = field(default_factory=dict)
    episodes: Mapping[str, bool] = field(default_factory=dict)
    """Whether each episode is open."""
    last_seq: int = 0
    last_hash: str = GENESIS


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A group that stands in the ledger: written now, or found there."""

    status: Status
    transfers: tuple[Transfer, ...]
    balances: Mapping[str, int]
    """New balances of the accounts it touched; empty when it had been applied before."""
    closes: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A group of which nothing was written."""

    verdict: Verdict

    @property
    def status(self) -> Status:
        """Why."""
        return self.verdict.status


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One group with everything that bears on it."""

    group: Group
    accounts: Mapping[str, Account]
    balances: Mapping[str, int]
    seen: Mapping[str, str]
    episodes: Mapping[str, bool]
    currencies: Mapping[str, Currency]


def judge(
    group: Group,
    *,
    accounts: Mapping[str, Account],
    balances: Mapping[str, int],
    seen: Mapping[str, str],
    episodes: Mapping[str, bool],
    currencies: Mapping[str, Currency] = CURRENCIES,
) -> Verdict:
    """Decide about a group: the first status, in order of precedence, that any draft meets.

    Args:
        group: What is asked for.
        accounts: Every account it names and, when it closes an episode, that episode's pots.
        balances: Their balances; one that is missing is 0.
        seen: Body hash by transfer id of every written transfer that has one of the group's
            ids, or stands in a group of the same id.
        episodes: For every episode it names, whether it is open.
        currencies: The currencies there are.
    """
    case = _Case(
        group=group,
        accounts=accounts,
        balances=balances,
        seen=seen,
        episodes=episodes,
        currencies=currencies,
    )
    for verdicts in (_identity(case), _amounts(case), _parties(case), _episodes(case)):
        found = list(verdicts)
        if found:
            return min(found, key=lambda verdict: _RANK[verdict.status])
    return _funds(case)


def apply(
    state: LedgerState, group: Group, *, currencies: Mapping[str, Currency] = CURRENCIES
) -> Applied | Refused:
    """Judge a group and say what to write. Changes nothing."""
    earlier = state.by_group.get(group.id, ())
    seen = {transfer.id: transfer.body_hash for transfer in earlier}
    for draft in group.drafts:
        if draft.id in state.by_id:
            seen[draft.id] = state.by_id[draft.id].body_hash
    verdict = judge(
        group,
        accounts=state.accounts,
        balances=state.balances,
        seen=seen,
        episodes=state.episodes,
        currencies=currencies,
    )
    if verdict.status is Status.ALREADY_APPLIED:
        return Applied(status=verdict.status, transfers=earlier, balances={})
    if verdict.status is not Status.APPLIED:
        return Refused(verdict)
    return Applied(
        status=verdict.status,
        transfers=link(group, last_seq=state.last_seq, last_hash=state.last_hash),
        balances=_after(group, state.balances),
        closes=group.closes,
    )


class Ledger:
    """A ledger in memory, for simulations and as the model of a stored one."""

    def __init__(self, currencies: Mapping[str, Currency] = CURRENCIES) -> None:
        self._currencies = currencies
        self._accounts: dict[str, Account] = {}
        self._balances: dict[str, int] = {}
        self._by_id: dict[str, Transfer] = {}
        self._by_group: dict[str, tuple[Transfer, ...]] = {}
        self._episodes: dict[str, bool] = {}
        self._transfers: list[Transfer] = []

    @property
    def state(self) -> LedgerState:
        """A view of what stands now; it follows later writes."""
        return LedgerState(
            accounts=self._accounts,
            balances=self._balances,
            by_id=self._by_id,
            by_group=self._by_group,
            episodes=self._episodes,
            last_seq=len(self._transfers),
            last_hash=self._transfers[-1].hash if self._transfers else GENESIS,
        )

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The chain, from the first transfer on."""
        return tuple(self._transfers)

    def balance(self, account: str) -> int:
        """What an account holds; an unknown one holds nothing."""
        return self._balances.get(account, 0)

    def add_account(self, account: Account) -> None:
        """Make an account known. Adding the same one again changes nothing."""
        if self._accounts.setdefault(account.id, account) != account:
            raise UsageError(
                f"`{account.id}` is the id of another account; give this one an id of its own"
            )

    def open_episode(self, episode: str) -> None:
        """Let money move under an episode's name. One that has ended can't be opened again."""
        if not self._episodes.setdefault(episode, True):
            raise UsageError(f"`{episode}` has ended; open a new episode")

    def post(self, group: Group) -> Applied | Refused:
        """Apply a group, or refuse all of it."""
        result = apply(self.state, group, currencies=self._currencies)
        if isinstance(result, Applied) and result.status is Status.APPLIED:
            self._transfers.extend(result.transfers)
            self._by_id.update((transfer.id, transfer) for transfer in result.transfers)
            self._by_group[group.id] = result.transfers
            self._balances.update(result.balances)
            if result.closes is not None:
                self._episodes[result.closes] = False
        return result


def _identity(case: _Case) -> Iterator[Verdict]:
    """Retries come first: a group that was applied stays applied, whatever happened since."""
    drafts = case.group.drafts
    if not drafts:
        yield Verdict(Status.EMPTY_GROUP, None, f"group {case.group.id!r} holds no transfer")
        return
    first_at: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        if first_at.setdefault(draft.id, index) != index:
            yield Verdict(Status.DUPLICATE_ID, index, f"id {draft.id!r} stands twice")
    if not case.seen:
        return
    for index, draft in enumerate(drafts):
        if case.seen.get(draft.id) != body_hash(draft, case.group.id):
            detail = f"id {draft.id!r} or its group was used before with another body"
            yield Verdict(Status.ID_CONFLICT, index, detail)
    if len(case.seen) > len(first_at):
        detail = f"group {case.group.id!r} was used before with other transfers"
        yield Verdict(Status.ID_CONFLICT, None, detail)
    yield Verdict(Status.ALREADY_APPLIED, None, f"group {case.group.id!r} was applied before")


def _amounts(case: _Case) -> Iterator[Verdict]:
    for index, draft in enumerate(case.group.drafts):
        if draft.amount <= 0:
            detail = f"an amount must be above 0, got {draft.amount}"
            yield Verdict(Status.AMOUNT_NOT_POSITIVE, index, detail)
        elif draft.amount > MAX_AMOUNT:
            detail = f"an amount must be at most {MAX_AMOUNT}, got {draft.amount}"
            yield Verdict(Status.AMOUNT_TOO_LARGE, index, detail)


def _parties(case: _Case) -> Iterator[Verdict]:
    for index, draft in enumerate(case.group.drafts):
        if draft.debit == draft.credit:
            detail = f"{draft.debit!r} can't pay itself"
            yield Verdict(Status.SAME_ACCOUNT, index, detail)
        missing = [name for name in (draft.debit, draft.credit) if name not in case.accounts]
        if missing:
            yield Verdict(Status.UNKNOWN_ACCOUNT, index, f"no account {missing[0]!r}")
            continue
        debit, credit = case.accounts[draft.debit], case.accounts[draft.credit]
        currency = case.currencies.get(draft.currency)
        if currency is None or {debit.currency, credit.currency} != {draft.currency}:
            detail = (
                f"{draft.currency} can't move from an account in {debit.currency} "
                f"to one in {credit.currency}"
            )
            yield Verdict(Status.CURRENCY_MISMATCH, index, detail)
        elif not currency.transferable and not (debit.may_be_negative or credit.may_be_negative):
            detail = f"{draft.currency} can only be issued and burnt"
            yield Verdict(Status.NOT_TRANSFERABLE, index, detail)


def _episodes(case: _Case) -> Iterator[Verdict]:
    closes = case.group.closes
    if closes is not None and closes not in case.episodes:
        yield Verdict(Status.UNKNOWN_EPISODE, None, f"no episode {closes!r}")
    elif closes is not None and not case.episodes[closes]:
        yield Verdict(Status.CLOSED_EPISODE, None, f"episode {closes!r} has ended")
    for index, draft in enumerate(case.group.drafts):
        if draft.episode is not None and draft.episode not in case.episodes:
            yield Verdict(Status.UNKNOWN_EPISODE, index, f"no episode {draft.episode!r}")
            continue
        for name in (draft.debit, draft.credit):
            account = case.accounts[name]
            if account.kind is AccountKind.ESCROW and account.episode != draft.episode:
                detail = f"{name!r} belongs to {account.episode!r}, not to {draft.episode!r}"
                yield Verdict(Status.WRONG_EPISODE, index, detail)
        closed = draft.episode is not None and not case.episodes[draft.episode]
        if closed and not draft.code.corrects:
            yield Verdict(Status.CLOSED_EPISODE, index, f"episode {draft.episode!r} has ended")


def _funds(case: _Case) -> Verdict:
    """Follow the money draft by draft: no account dips below zero on the way, either."""
    held: dict[str, int] = {}
    too_large: Verdict | None = None
    for index, draft in enumerate(case.group.drafts):
        for name, change in ((draft.debit, -draft.amount), (draft.credit, draft.amount)):
            held[name] = held.get(name, case.balances.get(name, 0)) + change
        if held[draft.debit] < 0 and not case.accounts[draft.debit].may_be_negative:
            currency = case.currencies[draft.currency]
            had = format_amount(held[draft.debit] + draft.amount, currency)
            wanted = format_amount(draft.amount, currency)
            detail = f"{draft.debit!r} has {had} left and would need {wanted}"
            return Verdict(Status.INSUFFICIENT_FUNDS, index, detail)
        if max(held[draft.credit], -held[draft.debit]) > MAX_AMOUNT:
            detail = f"a balance must stay within {MAX_AMOUNT} either way"
            too_large = too_large or Verdict(Status.BALANCE_TOO_LARGE, index, detail)
    if too_large is not None:
        return too_large
    for name in _pots_to_empty(case, held):
        left = held.get(name, case.balances.get(name, 0))
        if left != 0:
            return Verdict(Status.ESCROW_NOT_EMPTY, None, f"{name!r} would be left with {left}")
    return Verdict(Status.APPLIED, None, "applied")


def _pots_to_empty(case: _Case, touched: Mapping[str, int]) -> Iterator[str]:
    """Pots that must hold nothing once the group stands."""
    closes = case.group.closes
    if closes is not None:
        yield from (account.id for account in case.accounts.values() if account.episode == closes)
    for name in touched:
        episode = case.accounts[name].episode
        if episode is not None and not case.episodes[episode]:
            yield name


def _after(group: Group, balances: Mapping[str, int]) -> dict[str, int]:
    after: dict[str, int] = {}
    for draft in group.drafts:
        for name, change in ((draft.debit, -draft.amount), (draft.credit, draft.amount)):
            after[name] = after.get(name, balances.get(name, 0)) + change
    return after


_RANK: Final = {status: rank for rank, status in enumerate(Status)}
