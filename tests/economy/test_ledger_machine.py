"""The ledger against a model that keeps nothing but a list of what was applied."""

from __future__ import annotations

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from invariants import breaches
from playing import MACHINE_TIMEOUT_S, economy_settings

from heretix.economy.ledger import (
    AccountKind,
    Applied,
    Code,
    Draft,
    Escrow,
    Group,
    Ledger,
    Status,
    escrow_account,
    house_account,
    user_account,
)

pytestmark = pytest.mark.timeout(MACHINE_TIMEOUT_S)

EPISODES = ("e0", "e1")
ACCOUNTS = [
    *(house_account(AccountKind.ISSUANCE, c) for c in ("PLAY", "XC")),
    *(user_account(n, c) for n in ("ann", "bob") for c in ("PLAY", "XC")),
    *(escrow_account(e, Escrow.STAKE, "PLAY") for e in EPISODES),
]
BY_ID = {account.id: account for account in ACCOUNTS}
GHOST = "user:ghost:PLAY"

names = st.sampled_from([*BY_ID, GHOST])
drafts = st.builds(
    Draft,
    id=st.sampled_from([f"t{n}" for n in range(40)]),
    debit=names,
    credit=names,
    amount=st.integers(-1, 30),
    currency=st.sampled_from(["PLAY", "PLAY", "PLAY", "XC", "EUR"]),
    code=st.sampled_from([Code.STAKE, Code.PAYOUT, Code.CORRECTION]),
    episode=st.sampled_from([None, None, *EPISODES, "e9"]),
)
groups = st.builds(
    Group,
    id=st.sampled_from([f"g{n}" for n in range(30)]),
    drafts=st.lists(drafts, max_size=3).map(tuple),
    closes=st.sampled_from([None] * 8 + [*EPISODES]),
)


class Model:
    """An independent account of the same rules: recomputes everything from its list."""

    def __init__(self):
        self.log: list[tuple[Group, Draft]] = []
        self.ended: set[str] = set()

    def balance(self, name, extra=()):
        moves = [d for _, d in self.log] + list(extra)
        return sum(d.amount * ((d.credit == name) - (d.debit == name)) for d in moves)

    def expected(self, group):
        """What the ledger must say."""
        ids = [d.id for d in group.drafts]
        if not ids:
            return Status.EMPTY_GROUP
        if len(set(ids)) < len(ids):
            return Status.DUPLICATE_ID
        touched = [(g, d) for g, d in self.log if g.id == group.id or d.id in ids]
        if touched:
            same = {(g.id, d) for g, d in touched} == {(group.id, d) for d in group.drafts}
            return Status.ALREADY_APPLIED if same else Status.ID_CONFLICT
        fits = {status for d in group.drafts for status in self.faults(d)}
        fits |= self.closing(group.closes)
        order = list(Status)
        return min(fits, key=order.index) if fits else self.money(group)

    def faults(self, d):
        if d.amount < 1:
            yield Status.AMOUNT_NOT_POSITIVE
        if d.debit == d.credit:
            yield Status.SAME_ACCOUNT
        if GHOST in (d.debit, d.credit):
            yield Status.UNKNOWN_ACCOUNT
            return
        ends = [d.debit.rsplit(":", 1)[1], d.credit.rsplit(":", 1)[1]]
        if d.currency == "EUR" or ends != [d.currency] * 2:
            yield Status.CURRENCY_MISMATCH
        elif d.currency == "XC" and "issuance" not in d.debit + d.credit:
            yield Status.NOT_TRANSFERABLE
        if d.episode == "e9":
            yield Status.UNKNOWN_EPISODE
            return
        if any(
            n.startswith("escrow") and n.split(":")[1] != d.episode for n in (d.debit, d.credit)
        ):
            yield Status.WRONG_EPISODE
        if d.episode in self.ended and d.code is not Code.CORRECTION:
            yield Status.CLOSED_EPISODE

    def closing(self, episode):
        return {Status.CLOSED_EPISODE} if episode in self.ended else set()

    def money(self, group):
        for n in range(1, len(group.drafts) + 1):
            done = group.drafts[:n]
            poor = [a for a in BY_ID if "issuance" not in a and self.balance(a, done) < 0]
            if poor:
                return Status.INSUFFICIENT_FUNDS
        for episode in {group.closes, *self.ended} - {None}:
            if self.balance(f"escrow:{episode}:stake:PLAY", group.drafts):
                return Status.ESCROW_NOT_EMPTY
        return Status.APPLIED


class LedgerMachine(RuleBasedStateMachine):
    """Posts new, repeated and altered groups; the model says what must become of each."""

    def __init__(self):
        super().__init__()
        self.ledger, self.model = Ledger(), Model()
        self.results: dict[str, tuple] = {}
        self.posted: list[Group] = []

    @initialize()
    def accounts(self):
        for account in ACCOUNTS:
            self.ledger.add_account(account)
        for episode in EPISODES:
            self.ledger.open_episode(episode)
        for name in ("ann", "bob"):
            for currency in ("PLAY", "XC"):
                self.issue(10**7, f"user:{name}:{currency}", 50)

    def post(self, group):
        expected = self.model.expected(group)
        before = self.ledger.transfers
        result = self.ledger.post(group)
        assert result.status is expected, (result, expected)
        event(expected.value)
        if expected is Status.APPLIED:
            self.model.log += [(group, d) for d in group.drafts]
            self.results[group.id] = result.transfers
            self.posted.append(group)
            if group.closes:
                self.model.ended.add(group.closes)
            assert self.ledger.transfers == before + result.transfers
        else:
            assert self.ledger.transfers == before
        if expected is Status.ALREADY_APPLIED:
            assert isinstance(result, Applied)
            assert result.transfers == self.results[group.id]

    @rule(group=groups)
    def post_anything(self, group):
        self.post(group)

    @rule(
        number=st.integers(0, 10**6),
        name=st.sampled_from([a for a in BY_ID if "escrow" not in a and "issuance" not in a]),
        amount=st.integers(1, 100),
    )
    def issue(self, number, name, amount):
        currency = name.rsplit(":", 1)[1]
        key = f"issue-{number}-{name}"
        move = Draft(
            id=key,
            debit=f"issuance:{currency}",
            credit=name,
            amount=amount,
            currency=currency,
            code=Code.ISSUE,
        )
        self.post(Group(id=key, drafts=(move,)))

    @rule(
        number=st.integers(0, 10**6),
        name=st.sampled_from(["ann", "bob"]),
        episode=st.sampled_from(EPISODES),
        amount=st.integers(1, 40),
        back=st.booleans(),
    )
    def stake_or_pay(self, number, name, episode, amount, back):
        ends = [f"user:{name}:PLAY", f"escrow:{episode}:stake:PLAY"]
        debit, credit = reversed(ends) if back else ends
        key = f"stake-{number}"
        move = Draft(
            id=key,
            debit=debit,
            credit=credit,
            amount=amount,
            currency="PLAY",
            code=Code.STAKE,
            episode=episode,
        )
        self.post(Group(id=key, drafts=(move,)))

    @rule(
        number=st.integers(0, 10**6),
        currency=st.sampled_from(["PLAY", "XC"]),
        amounts=st.lists(st.integers(1, 30), min_size=1, max_size=3),
        episode=st.sampled_from([None, *EPISODES]),
        code=st.sampled_from([Code.PAYOUT, Code.CORRECTION]),
        closes=st.sampled_from([None, None, *EPISODES]),
    )
    def send(self, number, currency, amounts, episode, code, closes):
        ends = [f"user:ann:{currency}", f"user:bob:{currency}"]
        moves = tuple(
            Draft(
                id=f"send-{number}-{n}",
                debit=ends[n % 2],
                credit=ends[1 - n % 2],
                amount=amount,
                currency=currency,
                code=code,
                episode=episode,
            )
            for n, amount in enumerate(amounts)
        )
        self.post(Group(id=f"send-{number}", drafts=moves, closes=closes))

    @rule(number=st.integers(0, 10**6), episode=st.sampled_from(EPISODES), right=st.booleans())
    def correct(self, number, episode, right):
        pot, key = f"escrow:{episode}:stake:PLAY", f"correct-{number}"
        ends = [("user:ann:PLAY", pot), (pot, "user:bob:PLAY")]
        moves = tuple(
            Draft(
                id=f"{key}-{n}",
                debit=debit,
                credit=credit,
                amount=1,
                currency="PLAY",
                code=Code.CORRECTION,
                episode=episode,
            )
            for n, (debit, credit) in enumerate(ends[: 1 + right])
        )
        self.post(Group(id=key, drafts=moves))

    @rule(data=st.data())
    def retry(self, data):
        if self.posted:
            self.post(data.draw(st.sampled_from(self.posted)))

    @rule(data=st.data(), amount=st.integers(1, 5))
    def retry_altered(self, data, amount):
        if self.posted:
            group = data.draw(st.sampled_from(self.posted))
            first, *rest = group.drafts
            altered = Draft(
                id=first.id,
                debit=first.debit,
                credit=first.credit,
                amount=first.amount + amount,
                currency=first.currency,
                code=first.code,
                episode=first.episode,
            )
            self.post(Group(id=group.id, drafts=(altered, *rest), closes=group.closes))

    @rule(episode=st.sampled_from(EPISODES))
    def end(self, episode):
        left = self.model.balance(f"escrow:{episode}:stake:PLAY")
        if left:
            move = Draft(
                id=f"end-{episode}",
                debit=f"escrow:{episode}:stake:PLAY",
                credit="user:ann:PLAY",
                amount=left,
                currency="PLAY",
                code=Code.PAYOUT,
                episode=episode,
            )
            self.post(Group(id=f"end-{episode}", drafts=(move,), closes=episode))

    @invariant()
    def balances_are_the_models(self):
        for name in BY_ID:
            assert self.ledger.balance(name) == self.model.balance(name)

    def teardown(self):
        state = self.ledger.state
        assert not breaches(
            accounts=state.accounts,
            balances=state.balances,
            episodes=state.episodes,
            transfers=self.ledger.transfers,
        )


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = economy_settings()
