"""Money and the ledger: currencies, accounts, transfers, the hash chain, refusals, invariants.

Money is whole minor units of a currency; a share of it is parts per million. The direction of
every rounding is in the name of the function that does it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from dataclasses import dataclass, field, replace
from decimal import Decimal, DecimalException
from enum import StrEnum
from itertools import compress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from heretix.core.canonical import Record, digest, sha256_hex, sha256_text, spell
from heretix.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PPM: Final = 1_000_000
"""Parts per million: the unit of every rate, belief and probability here."""
MAX_AMOUNT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Currency:
    """A currency is data: nothing in the rules depends on which one it is."""

    code: str
    exponent: int
    """Minor units are 10^-exponent of the unit that people see."""
    transferable: bool
    """Tell whether it may move other than from and to the account that issues it."""


PLAY: Final = Currency(code="PLAY", exponent=2, transferable=True)
XC: Final = Currency(code="XC", exponent=0, transferable=False)
"""Exploration credits: earned and burnt, never sent, never cash."""
CURRENCIES: Final[Mapping[str, Currency]] = MappingProxyType({c.code: c for c in (PLAY, XC)})


class Shared(NamedTuple):
    """An amount shared out in whole units, and the dust that was left."""

    parts: tuple[int, ...]
    dust: int


def is_whole(value: object) -> bool:
    """Tell whether `value` is an integer; `True` is not money."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_whole(
    name: str, value: int, *, least: int = 0, most: int = MAX_AMOUNT, ppm: bool = False
) -> int:
    """Check that `value` is an integer within bounds, and return it."""
    if not is_whole(value) or not least <= value <= most:
        unit = " of parts per million" if ppm else ""
        hint = "" if ppm else "; money is counted in minor units"
        raise UsageError(
            f"`{name}` must be a whole number{unit} from {least} to {most}, got {value!r}{hint}"
        )
    return value


def require_ppm(name: str, value: int, *, least: int = 0, most: int = PPM) -> int:
    """Check that `value` is a number of parts per million within bounds, and return it."""
    return require_whole(name, value, least=least, most=most, ppm=True)


def ceil_div(numerator: int, denominator: int) -> int:
    """Divide and round up; the denominator is positive."""
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


_WITH_THOUSANDS: Final = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")


def require_currency(code: str) -> Currency:
    """Check that there is such a currency, and return it."""
    if code not in CURRENCIES:
        raise UsageError(f"`currency` must be one of {', '.join(sorted(CURRENCIES))}, got {code!r}")
    return CURRENCIES[code]


def parse_amount(
    text: str, currency: str = "PLAY", *, name: str = "amount", most: int = MAX_AMOUNT
) -> int:
    """Read an amount as people write it, in minor units.

    Commas part thousands, as they do where amounts are shown; one that stands elsewhere may be
    meant as a decimal point, and 1,5 mustn't become 15.
    """
    exponent = require_currency(currency).exponent
    written = text.strip()
    try:
        if "," in written and not _WITH_THOUSANDS.fullmatch(written):
            raise DecimalException
        minor = Decimal(written.replace(",", "")).scaleb(exponent)
        # Compared before it is spelt out: 1e999999999 is short as it is written, and only so.
        if not (minor.is_finite() and 0 < minor <= most and minor == int(minor)):
            raise DecimalException
    except DecimalException as exc:
        raise UsageError(
            f"`{name}` must be above 0 with at most {exponent} decimals, and at most "
            f"{most // 10**exponent}, got {text[:40]!r}"
        ) from exc
    return int(minor)


# Accounts. An id says what an account is, so that a ledger line can be read by itself:
# `user:ada:PLAY`, `escrow:ep-7:stake:PLAY`, `operations:PLAY`.

MAX_NAME: Final = 64
"""Characters of a name: an index holds ids, and a table shows them."""


class AccountKind(StrEnum):
    """Purpose of an account."""

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
    """Source and sink of a currency: the one kind that may be below zero."""


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


def house_accounts(currency: str) -> list[Account]:
    """The operator's accounts in a currency."""
    ours = (kind for kind in AccountKind if kind not in {AccountKind.USER, AccountKind.ESCROW})
    return [house_account(kind, currency) for kind in ours]


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
    """Reason why money moved."""

    ISSUE = "issue"
    BURN = "burn"
    SEED = "seed"
    BUDGET = "budget"
    STAKE = "stake"
    LATE_STAKE_REFUND = "late_stake_refund"
    CHALLENGE = "challenge"
    CHALLENGE_REFUND = "challenge_refund"
    CHALLENGE_FEE = "challenge_fee"
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


_CORRECTING: Final = frozenset({Code.REVERSAL, Code.CORRECTION})
"""Codes that put right something already written, even in a finished episode."""


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
    lines: tuple[Explained, ...] = ()
    """One for each draft, where they are explained."""
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


# Hashes of canonical JSON that is put together here: a bet takes several, and `digest` takes each
# three times as long.


def body_hash(transfer: Draft | Transfer, group: str) -> str:
    """Hash of what is asked for, without the key it is asked under."""
    return _hash(
        f'{{"amount":{spell(transfer.amount)},"code":{spell(transfer.code.value)},'
        f'"credit":{spell(transfer.credit)},"currency":{spell(transfer.currency)},'
        f'"debit":{spell(transfer.debit)},"episode":{spell(transfer.episode)},'
        f'"group":{spell(group)}}}'
    )


def _hash(text: str) -> str:
    return sha256_hex(text.encode())


def plain_group(
    id_: str,
    transfers: Iterable[tuple[str, str, int]],
    currency: str,
    code: Code,
    *,
    reason: str | None = None,
) -> Group:
    """A group outside episodes: who gives, who receives, how much; with a reason, a line each."""
    drafts = tuple(
        Draft(
            id=f"{id_}/{n}", debit=debit, credit=credit, amount=amount, currency=currency, code=code
        )
        for n, (debit, credit, amount) in enumerate(transfers)
    )
    lines = tuple(
        Explained.of(draft, Reason.of(reason, amount=draft.amount, currency=currency))
        for draft in drafts
        if reason is not None
    )
    return Group(id=id_, drafts=drafts, lines=lines)


def split_group(group: Group, size: int) -> tuple[Group, ...]:
    """Split a group into parts of at most `size` drafts, for a move that is too long for one turn.

    The last part has the group's own id and closes what it closes, so that the whole is there when
    that is; the others are numbered. The same group always has the same parts.
    """
    count = max(1, ceil_div(len(group.drafts), size))
    parts = [
        replace(
            group,
            id=f"{group.id}:{n}",
            drafts=group.drafts[n * size : (n + 1) * size],
            lines=group.lines[n * size : (n + 1) * size],
            closes=None,
        )
        for n in range(count)
    ]
    return (*parts[:-1], replace(parts[-1], id=group.id, closes=group.closes))


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
    """Reason why something happened, as data; `sentences` says it in words."""

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

    @classmethod
    def of(cls, draft: Draft, reason: Reason) -> Explained:
        """Explain a draft to who receives it."""
        amount, code = draft.amount, draft.code
        return cls(transfer=draft.id, account=draft.credit, amount=amount, code=code, reason=reason)


class Statement:
    """Collect the transfers of one group. Ids follow from the group's, in order."""

    def __init__(self, group: str, *, episode: str, currency: str, mark: str | None = None) -> None:
        self._group, self._episode, self._currency = group, episode, currency
        # A mark stands in every id, so that the chain, which covers ids, commits to it.
        self._prefix = group if mark is None else f"{group}/{mark}"
        self._drafts: list[Draft] = []
        self._lines: list[Explained] = []

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
        self._lines.append(Explained.of(draft, reason))

    def group(self, *, closes: bool = False) -> Group | None:
        """The group, or None when no money moves."""
        if not self._drafts:
            return None
        return Group(
            id=self._group,
            drafts=tuple(self._drafts),
            lines=tuple(self._lines),
            closes=self._episode if closes else None,
        )


# The hash chain: each transfer carries the hash of the one before it. A line that is changed,
# dropped, added or moved breaks every hash after it.

GENESIS: Final = "0" * 64
"""Hash before the first transfer."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that doesn't hold, and of what."""

    rule: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """Outcome of reading a whole ledger."""

    count: int
    last_hash: str
    breaches: tuple[Breach, ...]

    @property
    def ok(self) -> bool:
        return not self.breaches


# Events: each is in one chain, an episode's or that of all else, and carries the hash of the one
# before it there. The root goes through all of them, and a tree stands over the ends of the chains.


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Record):
    """Rows that one move wrote, in their place in a chain of events."""

    chain: str
    number: int
    """Place in that chain, from 1."""
    move: str
    rows_json: str
    """Rows by table; of a row that is written again, its key and what changes."""
    at_ms: int
    prev_hash: str

    def hash(self) -> str:
        """Hash of the event, all of it."""
        rows = sha256_text(self.rows_json)
        return _hash(
            f"[{spell(self.chain)},{spell(self.number)},{spell(self.move)},{spell(rows)},"
            f"{spell(self.at_ms)},{spell(self.prev_hash)}]"
        )


def root_hash(*, seq: int, event: str, prev_root: str) -> str:
    """Hash of an event's place among all, of the event, and of the root before it."""
    return _hash(f"[{spell(seq)},{spell(event)},{spell(prev_root)}]")


def episode_of(row: Mapping[str, Any]) -> str | None:
    """Name the episode that a row of the economy belongs to; None if it belongs to none."""
    found: str | None = row.get("episode_id", row.get("episode"))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProof(Record):
    """End of a chain as of one event, and what leads from there to the top of the tree over
    all chains."""

    seq: int
    """Place of that event among all."""
    number: int
    """Last event of the chain then."""
    path: tuple[str, ...]
    """Neighbours from the leaf up."""
    top: str

    def top_of(self, chain: str, hash_: str) -> str:
        """Top of the tree if the chain ended in an event of this hash."""
        found = _leaf(chain, self.number, hash_)
        for neighbour in self.path:
            found = _join(found, neighbour)
        return _top(self.seq, found)


class ChainTree:
    """Merkle tree over the ends of all chains of events as of one event."""

    def __init__(self, seq: int, ends: Mapping[str, tuple[int, str]]) -> None:
        self.seq, self._ends = seq, ends
        self._leaves = {chain: place for place, chain in enumerate(sorted(ends))}
        level = [_leaf(chain, *ends[chain]) for chain in self._leaves]
        self._levels = [level]
        while len(level) > 1:
            pairs = (level[place : place + 2] for place in range(0, len(level), 2))
            level = [_join(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
            self._levels.append(level)

    @property
    def top(self) -> str:
        """Hash over all ends and the place of the event."""
        return _top(self.seq, *self._levels[-1])

    def prove(self, chain: str) -> ChainProof:
        """Prove where a chain ended that had begun."""
        place, path = self._leaves[chain], []
        for level in self._levels[:-1]:
            if (neighbour := place ^ 1) < len(level):
                path.append(level[neighbour])
            place //= 2
        number, _ = self._ends[chain]
        return ChainProof(seq=self.seq, number=number, path=tuple(path), top=self.top)


def _leaf(chain: str, number: int, hash_: str) -> str:
    return digest([chain, number, hash_])


def _join(one: str, other: str) -> str:
    # The lesser first, so that a path needs no sides. No leaf or top reads like this: both are
    # hashes of lists.
    return sha256_text(one + other if one < other else other + one)


def _top(seq: int, *joined: str) -> str:
    return digest([seq, *joined])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventChain(Record):
    """Chain of an episode: its events, the hash that it ends in, and proofs of where it ended as of
    some events of the whole ledger."""

    events: tuple[Event, ...]
    hash: str
    proofs: tuple[ChainProof, ...]


def transfer_hash(*, id_: str, body: str, seq: int, prev_hash: str) -> str:
    """Hash of a transfer in its place."""
    return _hash(
        f'{{"body_hash":{spell(body)},"id":{spell(id_)},"prev_hash":{spell(prev_hash)},'
        f'"seq":{spell(seq)}}}'
    )


def link(group: Group, *, last_seq: int, last_hash: str) -> tuple[Transfer, ...]:
    """Give a group's drafts their places at the end of the chain."""
    transfers = []
    for seq, draft in enumerate(group.drafts, start=last_seq + 1):
        body = body_hash(draft, group.id)
        hash_ = transfer_hash(id_=draft.id, body=body, seq=seq, prev_hash=last_hash)
        own = {name: getattr(draft, name) for name in Draft.__slots__}
        transfer = Transfer(
            **own, body_hash=body, group=group.id, seq=seq, prev_hash=last_hash, hash=hash_
        )
        transfers.append(transfer)
        last_hash = hash_
    return tuple(transfers)


def verify(transfers: Iterable[Transfer]) -> LedgerReport:
    """Re-derive every hash from the first transfer on, and name whatever doesn't fit."""
    breaches: list[Breach] = []
    ids: set[str] = set()
    finished_groups: set[str | None] = set()
    count, last_hash, group = 0, GENESIS, None
    for transfer in transfers:
        count += 1
        id_, body, seq, prev = transfer.id, transfer.body_hash, transfer.seq, transfer.prev_hash
        hash_ = transfer_hash(id_=id_, body=body, seq=seq, prev_hash=prev)
        broken_up = transfer.group != group and transfer.group in finished_groups
        faults = (
            seq != count,
            prev != last_hash,
            body != body_hash(transfer, transfer.group),
            transfer.hash != hash_,
            transfer.amount <= 0,
            id_ in ids,
            broken_up,
        )
        if transfer.group != group:
            finished_groups.add(group)
        if any(faults):
            details = (
                f"place {seq} stands where place {count} belongs",
                "doesn't follow the transfer before it",
                "the body differs from its hash",
                "the hash differs from what it covers",
                f"the amount is {transfer.amount}, not above zero",
                "this id stands twice",
                f"group {transfer.group!r} is broken up by other transfers",
            )
            breaches.extend(Breach("chain", id_, detail) for detail in compress(details, faults))
        ids.add(transfer.id)
        last_hash, group = transfer.hash, transfer.group
    return LedgerReport(count=count, last_hash=last_hash, breaches=tuple(breaches))


# `apply` decides about one group from what the group touches; a database loads just that, asks, and
# writes what comes back in the same transaction. `Ledger` does so in memory.


class Status(StrEnum):
    """Status of a group. Declared in order of precedence: the first that fits is given."""

    EMPTY_GROUP = "empty_group"
    DUPLICATE_ID = "duplicate_id"
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


_RANK: Final = {status: rank for rank, status in enumerate(Status)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """State that a group is judged by. A database fills it with just what the group touches."""

    accounts: dict[str, Account] = field(default_factory=dict)
    """Those it names and, when it closes an episode, that episode's pots."""
    balances: dict[str, int] = field(default_factory=dict)
    by_id: dict[str, Transfer] = field(default_factory=dict)
    by_group: dict[str, tuple[Transfer, ...]] = field(default_factory=dict)
    episodes: dict[str, bool] = field(default_factory=dict)
    """Tell whether each episode is open."""
    last_seq: int = 0
    last_hash: str = GENESIS


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A group that stands in the ledger: written now, or found there."""

    status: Status
    transfers: tuple[Transfer, ...]
    balances: Mapping[str, int]
    """New balances of the accounts it touched; empty when it had been applied before."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A group of which nothing was written, and the draft that brought it about."""

    status: Status
    draft_index: int | None
    reason: Reason


def apply(state: LedgerState, group: Group) -> Applied | Refused:
    """Judge a group and say what to write: the first status, in order of precedence, that any
    draft meets. Changes nothing."""
    earlier = state.by_group.get(group.id, ())
    for check in (_check_identity, _check_parties, _check_episodes):
        found = min(check(state, group), key=lambda item: _RANK[item.status], default=None)
        if found is not None and found.status is Status.ALREADY_APPLIED:
            return Applied(status=found.status, transfers=earlier, balances={})
        if found is not None:
            return found
    held = _follow_funds(state, group)
    if isinstance(held, Refused):
        return held
    return Applied(
        status=Status.APPLIED,
        transfers=link(group, last_seq=state.last_seq, last_hash=state.last_hash),
        balances=held,
    )


class Ledger:
    """A ledger in memory, for simulations and as the model of a stored one."""

    def __init__(self) -> None:
        self.state = LedgerState()

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The chain, from the first transfer on."""
        return tuple(self.state.by_id.values())

    def balance(self, account: str) -> int:
        """Balance of an account; an unknown one holds nothing."""
        return self.state.balances.get(account, 0)

    def add_account(self, account: Account) -> None:
        """Make an account known. Adding the same one again changes nothing."""
        if self.state.accounts.setdefault(account.id, account) != account:
            raise UsageError(
                f"`{account.id}` is the id of another account; give this one an id of its own"
            )

    def open_episode(self, episode: str) -> None:
        """Let money move under an episode's name. One that has ended can't be opened again."""
        if not self.state.episodes.setdefault(episode, True):
            raise UsageError(f"`{episode}` has ended; open a new episode")

    def post(self, group: Group) -> Applied | Refused:
        """Apply a group, or refuse all of it."""
        state = self.state
        result = apply(state, group)
        if isinstance(result, Applied) and result.status is Status.APPLIED:
            last = result.transfers[-1]
            state.by_id.update((transfer.id, transfer) for transfer in result.transfers)
            state.by_group[group.id] = result.transfers
            state.balances.update(result.balances)
            if group.closes is not None:
                state.episodes[group.closes] = False
            self.state = replace(state, last_seq=last.seq, last_hash=last.hash)
        return result


def _refuse(status: Status, draft_index: int | None, **parameters: int | str) -> Refused:
    return Refused(status, draft_index, Reason(status.value, parameters))


def _check_identity(state: LedgerState, group: Group) -> Iterator[Refused]:
    """Retries come first: a group that was applied stays applied, whatever happened since."""
    if not group.drafts:
        yield _refuse(Status.EMPTY_GROUP, None, group=group.id)
        return
    seen = {transfer.id: transfer.body_hash for transfer in state.by_group.get(group.id, ())}
    first_at: dict[str, int] = {}
    for index, draft in enumerate(group.drafts):
        if draft.id in state.by_id:
            seen[draft.id] = state.by_id[draft.id].body_hash
        if first_at.setdefault(draft.id, index) != index:
            yield _refuse(Status.DUPLICATE_ID, index, id=draft.id)
    if not seen:
        return
    for index, draft in enumerate(group.drafts):
        if seen.get(draft.id) != body_hash(draft, group.id):
            yield _refuse(Status.ID_CONFLICT, index, id=draft.id)
    if len(seen) > len(first_at):
        yield Refused(Status.ID_CONFLICT, None, Reason.of("group_conflict", group=group.id))
    yield _refuse(Status.ALREADY_APPLIED, None, group=group.id)


def _check_parties(state: LedgerState, group: Group) -> Iterator[Refused]:
    for index, draft in enumerate(group.drafts):
        if draft.amount <= 0:
            yield _refuse(Status.AMOUNT_NOT_POSITIVE, index, amount=draft.amount)
        elif draft.amount > MAX_AMOUNT:
            yield _refuse(Status.AMOUNT_TOO_LARGE, index, most=MAX_AMOUNT, amount=draft.amount)
        if draft.debit == draft.credit:
            yield _refuse(Status.SAME_ACCOUNT, index, account=draft.debit)
        missing = [name for name in (draft.debit, draft.credit) if name not in state.accounts]
        if missing:
            yield _refuse(Status.UNKNOWN_ACCOUNT, index, account=missing[0])
            continue
        debit, credit = state.accounts[draft.debit], state.accounts[draft.credit]
        currency = CURRENCIES.get(draft.currency)
        if currency is None or {debit.currency, credit.currency} != {draft.currency}:
            named = {"debit": debit.currency, "credit": credit.currency}
            yield _refuse(Status.CURRENCY_MISMATCH, index, currency=draft.currency, **named)
        elif not currency.transferable and not (debit.may_be_negative or credit.may_be_negative):
            yield _refuse(Status.NOT_TRANSFERABLE, index, currency=draft.currency)


def _check_episodes(state: LedgerState, group: Group) -> Iterator[Refused]:
    closes = group.closes
    if closes is not None and closes not in state.episodes:
        yield _refuse(Status.UNKNOWN_EPISODE, None, episode=closes)
    elif closes is not None and not state.episodes[closes]:
        yield _refuse(Status.CLOSED_EPISODE, None, episode=closes)
    for index, draft in enumerate(group.drafts):
        episode = str(draft.episode)
        if draft.episode is not None and draft.episode not in state.episodes:
            yield _refuse(Status.UNKNOWN_EPISODE, index, episode=episode)
            continue
        for name in (draft.debit, draft.credit):
            account = state.accounts[name]
            if account.kind is AccountKind.ESCROW and account.episode != draft.episode:
                named = {"account": name, "owner": str(account.episode), "episode": episode}
                yield _refuse(Status.WRONG_EPISODE, index, **named)
        closed = draft.episode is not None and not state.episodes[draft.episode]
        if closed and draft.code not in _CORRECTING:
            yield _refuse(Status.CLOSED_EPISODE, index, episode=episode)


def _follow_funds(state: LedgerState, group: Group) -> dict[str, int] | Refused:
    """Follow the money draft by draft to the balances after it: no account dips below zero on the
    way, either, and pots of an episode that has ended are left empty."""
    held: dict[str, int] = {}
    too_large: Refused | None = None
    for index, draft in enumerate(group.drafts):
        for name, change in ((draft.debit, -draft.amount), (draft.credit, draft.amount)):
            held[name] = held.get(name, state.balances.get(name, 0)) + change
        if held[draft.debit] < 0 and not state.accounts[draft.debit].may_be_negative:
            return _refuse(
                Status.INSUFFICIENT_FUNDS,
                index,
                account=draft.debit,
                had=held[draft.debit] + draft.amount,
                wanted=draft.amount,
                currency=draft.currency,
            )
        if max(held[draft.credit], -held[draft.debit]) > MAX_AMOUNT:
            too_large = too_large or _refuse(Status.BALANCE_TOO_LARGE, index, most=MAX_AMOUNT)
    if too_large is not None:
        return too_large
    touched = [state.accounts[name] for name in held]
    ended = [a for a in touched if a.episode is not None and not state.episodes[a.episode]]
    if group.closes is not None:
        ended = [a for a in state.accounts.values() if a.episode == group.closes] + ended
    for account in ended:
        left = held.get(account.id, state.balances.get(account.id, 0))
        if left:
            named = {"account": account.id, "currency": account.currency}
            return _refuse(Status.ESCROW_NOT_EMPTY, None, left=left, **named)
    return held


# What must hold of a ledger at every moment; each rule says which account breaks it.


def check_balances(
    accounts: Mapping[str, Account], balances: Mapping[str, int], episodes: Mapping[str, bool]
) -> Iterator[Breach]:
    """The balances of each currency add up to zero, nobody but the issuer is below it, and the
    pots of an episode that has ended are empty."""
    sums: defaultdict[str, int] = defaultdict(int)
    for name, balance in balances.items():
        account = accounts[name]
        sums[account.currency] += balance
        if balance < 0 and not account.may_be_negative:
            yield Breach("no_overdraft", name, f"the balance is {balance}")
        if balance and account.episode is not None and not episodes.get(account.episode, True):
            yield Breach("empty_escrow", name, f"{balance} is left after the episode ended")
    for currency, total in sums.items():
        if total:
            yield Breach("zero_sum", currency, f"the balances add up to {total}, not to 0")


def find_misnamed_accounts(owned: Iterable[tuple[Account, str | None]]) -> Iterator[Breach]:
    """An account is what its id says: one that is called an issuer's could owe without end."""
    for account, person in owned:
        # Whatever stands there now: an id that was emptied has no parts.
        parts = account.id.split(":")
        kind, inner, currency = parts[0], parts[1:-1], parts[-1]
        episode = inner[0] if kind == AccountKind.ESCROW and len(inner) == 2 else None
        holder = inner[0] if kind == AccountKind.USER and len(inner) == 1 else None
        said = (kind, currency, episode, holder)
        kept = (account.kind.value, account.currency, account.episode, person)
        if said != kept:
            yield Breach("account", account.id, f"is kept as {kept}, its id says {said}")


def check_parties(accounts: Mapping[str, Account], transfer: Transfer) -> Iterator[Breach]:
    """A transfer is between accounts that there are, and takes and gives one currency."""
    named = (transfer.debit, transfer.credit)
    debit, credit = map(accounts.get, named)
    if debit is None or credit is None:
        strangers = (name for name in named if name not in accounts)
        yield Breach("known_accounts", transfer.id, f"no account {min(strangers)!r}")
    elif not transfer.currency == debit.currency == credit.currency:
        ends = sorted({debit.currency, credit.currency})
        yield Breach("one_currency", transfer.id, f"{transfer.currency} between {ends}")


def check_stakes(escrow: str, balance: int, total: int) -> Iterator[Breach]:
    """The stake pot of an episode holds exactly its open positions."""
    if balance != total:
        yield Breach("stakes", escrow, f"holds {balance}, the open positions are {total}")
