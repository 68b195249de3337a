"""Money and the ledger: currencies, accounts, transfers, the hash chain, refusals, invariants.

Money is whole minor units of a currency; a share of it is parts per million. The direction of
every rounding is in the name of the function that does it.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import Record, digest
from heretix.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PPM: Final = 1_000_000
"""Parts per million: the unit of every rate, belief and probability here."""
MAX_AMOUNT: Final = 2**63 - 1
"""What a database's 64-bit integer holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Currency:
    """A currency is data: nothing in the rules depends on which one it is."""

    code: str
    exponent: int
    """Minor units are 10^-exponent of the unit that people see."""
    transferable: bool
    """Whether it may move other than from and to the account that issues it."""


PLAY: Final = Currency(code="PLAY", exponent=2, transferable=True)
XC: Final = Currency(code="XC", exponent=0, transferable=False)
"""Exploration credits: earned and burnt, never sent, never cash."""
CURRENCIES: Final[Mapping[str, Currency]] = MappingProxyType({c.code: c for c in (PLAY, XC)})


@dataclass(frozen=True, slots=True)
class Shared:
    """An amount shared out in whole units, and the dust that was left."""

    parts: tuple[int, ...]
    dust: int


def is_whole(value: object) -> bool:
    """Whether `value` is an integer; `True` is not money."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_whole(name: str, value: int, *, least: int = 0, most: int = MAX_AMOUNT) -> int:
    """Check that `value` is an integer within bounds, and return it."""
    if not is_whole(value) or not least <= value <= most:
        raise UsageError(
            f"`{name}` must be a whole number from {least} to {most}, got {value!r}; "
            "money is counted in minor units"
        )
    return value


def require_ppm(name: str, value: int, *, least: int = 0, most: int = PPM) -> int:
    """Check that `value` is a number of parts per million within bounds, and return it."""
    if not is_whole(value) or not least <= value <= most:
        raise UsageError(
            f"`{name}` must be a whole number of parts per million from {least} to {most}, "
            f"got {value!r}"
        )
    return value


def ceil_div(numerator: int, denominator: int) -> int:
    """Quotient rounded up; the denominator is positive."""
    return -(-numerator // denominator)


def ceil_part(amount: int, ppm: int) -> int:
    """A share of an amount, rounded up: what someone pays."""
    return ceil_div(amount * ppm, PPM)


def floor_part(amount: int, ppm: int) -> int:
    """A share of an amount, rounded down: what someone is paid."""
    return amount * ppm // PPM


def share_out(total: int, weights: Sequence[int]) -> Shared:
    """Share `total` in proportion to non-negative weights, each part rounded down.

    The dust is smaller than the number of positive weights. With no weight at all nothing
    can be shared, and the whole is left.
    """
    whole = sum(weights)
    if whole == 0:
        return Shared(tuple(0 for _ in weights), total)
    parts = tuple(total * weight // whole for weight in weights)
    return Shared(parts, total - sum(parts))


def format_amount(amount: int, currency: Currency) -> str:
    """An amount as people read it: `-12.05 PLAY`."""
    sign = "-" if amount < 0 else ""
    units, minor = divmod(abs(amount), 10**currency.exponent)
    tail = f".{minor:0{currency.exponent}d}" if currency.exponent else ""
    return f"{sign}{units:,}{tail} {currency.code}"


# Accounts: who can hold money, and who may owe it.
# An account's id says what it is, so that a ledger line can be read by itself:
# `user:ada:PLAY`, `escrow:ep-7:stake:PLAY`, `operations:PLAY`.

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


# Transfers: one amount from one account to another, in groups that stand or fall together.

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
class Transfer(Record):
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


# A statement: a group of transfers in the making, each with the sentence that explains it.


@dataclass(frozen=True, slots=True)
class Reason(Record):
    """Why something happened, as data; `sentences` says it in words."""

    code: str
    parameters: dict[str, int | str] = field(default_factory=dict)
    """Amounts in minor units, moments in milliseconds, shares in parts per million."""
    because: Reason | None = None

    @classmethod
    def of(cls, code: str, because: Reason | None = None, **parameters: int | str) -> Reason:
        """Make a reason from its parameters by name."""
        return cls(code, parameters, because)

    def __str__(self) -> str:
        named = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        because = "" if self.because is None else f": {self.because}"
        return f"{self.code}({named}){because}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Record):
    """One line for people: who receives what, and why."""

    transfer: str
    account: str
    amount: int
    code: Code
    reason: Reason


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

    def move(self, debit: str, credit: str, amount: int, code: Code, reason: Reason) -> None:
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
            Explained(transfer=draft.id, account=credit, amount=amount, code=code, reason=reason)
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


# The hash chain: each transfer carries the hash of the one before it.
#
# A line that is changed, dropped, added or moved breaks every hash after it.

GENESIS: Final = "0" * 64
"""What the first transfer has in place of a predecessor's hash."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a chain."""

    seq: int
    id: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What reading a whole chain showed."""

    count: int
    last_hash: str
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Nothing was wrong."""
        return not self.faults


def transfer_hash(*, id_: str, body: str, seq: int, prev_hash: str) -> str:
    """Hash of a transfer in its place."""
    return digest({"body_hash": body, "id": id_, "prev_hash": prev_hash, "seq": seq})


def link(group: Group, *, last_seq: int, last_hash: str) -> tuple[Transfer, ...]:
    """Give a group's drafts their places at the end of the chain."""
    transfers = []
    for seq, draft in enumerate(group.drafts, start=last_seq + 1):
        body = body_hash(draft, group.id)
        hash_ = transfer_hash(id_=draft.id, body=body, seq=seq, prev_hash=last_hash)
        transfer = Transfer(
            **{name: getattr(draft, name) for name in Draft.__slots__},
            body_hash=body,
            group=group.id,
            seq=seq,
            prev_hash=last_hash,
            hash=hash_,
        )
        transfers.append(transfer)
        last_hash = hash_
    return tuple(transfers)


def verify(transfers: Iterable[Transfer]) -> Verification:
    """Re-derive every hash from the first transfer on, and name whatever doesn't fit."""
    faults: list[Fault] = []
    ids: set[str] = set()
    finished_groups: set[str] = set()
    count, last_hash, group = 0, GENESIS, None
    for transfer in transfers:
        count += 1
        faults.extend(
            Fault(transfer.seq, transfer.id, detail)
            for detail in _faults_of(transfer, seq=count, prev_hash=last_hash)
        )
        if transfer.id in ids:
            faults.append(Fault(transfer.seq, transfer.id, "this id stands twice"))
        if transfer.group != group:
            if transfer.group in finished_groups:
                detail = f"group {transfer.group!r} is broken up by other transfers"
                faults.append(Fault(transfer.seq, transfer.id, detail))
            if group is not None:
                finished_groups.add(group)
        ids.add(transfer.id)
        last_hash, group = transfer.hash, transfer.group
    return Verification(count=count, last_hash=last_hash, faults=tuple(faults))


def _faults_of(transfer: Transfer, *, seq: int, prev_hash: str) -> Iterator[str]:
    if transfer.seq != seq:
        yield f"place {transfer.seq} stands where place {seq} belongs"
    if transfer.prev_hash != prev_hash:
        yield "doesn't follow the transfer before it"
    if transfer.body_hash != body_hash(transfer, transfer.group):
        yield "the body differs from its hash"
    expected = transfer_hash(
        id_=transfer.id,
        body=transfer.body_hash,
        seq=transfer.seq,
        prev_hash=transfer.prev_hash,
    )
    if transfer.hash != expected:
        yield "the hash differs from what it covers"
    if transfer.amount <= 0:
        yield f"the amount is {transfer.amount}, not above zero"


# `judge` decides about one group from what the group touches; a database loads just that, asks,
# and writes what `link` returns in the same transaction. `Ledger` does the same in memory.


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status, and the draft that brought it about."""

    status: Status
    draft_index: int | None
    reason: Reason


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
        yield _verdict(Status.EMPTY_GROUP, None, group=case.group.id)
        return
    first_at: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        if first_at.setdefault(draft.id, index) != index:
            yield _verdict(Status.DUPLICATE_ID, index, id=draft.id)
    if not case.seen:
        return
    for index, draft in enumerate(drafts):
        if case.seen.get(draft.id) != body_hash(draft, case.group.id):
            yield _verdict(Status.ID_CONFLICT, index, id=draft.id)
    if len(case.seen) > len(first_at):
        reason = Reason.of("group_conflict", group=case.group.id)
        yield Verdict(Status.ID_CONFLICT, None, reason)
    yield _verdict(Status.ALREADY_APPLIED, None, group=case.group.id)


def _amounts(case: _Case) -> Iterator[Verdict]:
    for index, draft in enumerate(case.group.drafts):
        if draft.amount <= 0:
            yield _verdict(Status.AMOUNT_NOT_POSITIVE, index, amount=draft.amount)
        elif draft.amount > MAX_AMOUNT:
            yield _verdict(Status.AMOUNT_TOO_LARGE, index, most=MAX_AMOUNT, amount=draft.amount)


def _parties(case: _Case) -> Iterator[Verdict]:
    for index, draft in enumerate(case.group.drafts):
        if draft.debit == draft.credit:
            yield _verdict(Status.SAME_ACCOUNT, index, account=draft.debit)
        missing = [name for name in (draft.debit, draft.credit) if name not in case.accounts]
        if missing:
            yield _verdict(Status.UNKNOWN_ACCOUNT, index, account=missing[0])
            continue
        debit, credit = case.accounts[draft.debit], case.accounts[draft.credit]
        currency = case.currencies.get(draft.currency)
        if currency is None or {debit.currency, credit.currency} != {draft.currency}:
            named = {"debit": debit.currency, "credit": credit.currency}
            yield _verdict(Status.CURRENCY_MISMATCH, index, currency=draft.currency, **named)
        elif not currency.transferable and not (debit.may_be_negative or credit.may_be_negative):
            yield _verdict(Status.NOT_TRANSFERABLE, index, currency=draft.currency)


def _episodes(case: _Case) -> Iterator[Verdict]:
    closes = case.group.closes
    if closes is not None and closes not in case.episodes:
        yield _verdict(Status.UNKNOWN_EPISODE, None, episode=closes)
    elif closes is not None and not case.episodes[closes]:
        yield _verdict(Status.CLOSED_EPISODE, None, episode=closes)
    for index, draft in enumerate(case.group.drafts):
        if draft.episode is not None and draft.episode not in case.episodes:
            yield _verdict(Status.UNKNOWN_EPISODE, index, episode=draft.episode)
            continue
        for name in (draft.debit, draft.credit):
            account = case.accounts[name]
            if account.kind is AccountKind.ESCROW and account.episode != draft.episode:
                yield _verdict(
                    Status.WRONG_EPISODE,
                    index,
                    account=name,
                    owner=str(account.episode),
                    episode=str(draft.episode),
                )
        closed = draft.episode is not None and not case.episodes[draft.episode]
        if closed and not draft.code.corrects:
            yield _verdict(Status.CLOSED_EPISODE, index, episode=str(draft.episode))


def _funds(case: _Case) -> Verdict:
    """Follow the money draft by draft: no account dips below zero on the way, either."""
    held: dict[str, int] = {}
    too_large: Verdict | None = None
    for index, draft in enumerate(case.group.drafts):
        for name, change in ((draft.debit, -draft.amount), (draft.credit, draft.amount)):
            held[name] = held.get(name, case.balances.get(name, 0)) + change
        if held[draft.debit] < 0 and not case.accounts[draft.debit].may_be_negative:
            return _verdict(
                Status.INSUFFICIENT_FUNDS,
                index,
                account=draft.debit,
                had=held[draft.debit] + draft.amount,
                wanted=draft.amount,
                currency=draft.currency,
            )
        if max(held[draft.credit], -held[draft.debit]) > MAX_AMOUNT:
            too_large = too_large or _verdict(Status.BALANCE_TOO_LARGE, index, most=MAX_AMOUNT)
    if too_large is not None:
        return too_large
    for name in _pots_to_empty(case, held):
        left = held.get(name, case.balances.get(name, 0))
        if left != 0:
            currency = case.accounts[name].currency
            return _verdict(
                Status.ESCROW_NOT_EMPTY, None, account=name, left=left, currency=currency
            )
    return _verdict(Status.APPLIED, None)


def _verdict(status: Status, draft_index: int | None, **parameters: int | str) -> Verdict:
    return Verdict(status, draft_index, Reason(status.value, parameters))


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


# What must hold of a ledger at every moment; each rule says which account breaks it.


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


def stake_mismatch(escrow: str, balance: int, stakes: Iterable[int]) -> Iterator[Breach]:
    """The stake pot of an episode holds exactly its open positions."""
    total = sum(stakes)
    if balance != total:
        yield Breach("stakes", escrow, f"holds {balance}, the open positions are {total}")
