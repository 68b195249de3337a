"""The ledger's rules: refusals in order, groups that stand or fall together, the hash chain."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import breaches, replay, reversal
from playing import economy_settings

from heretix.core.canonical import digest, sha256_text
from heretix.core.errors import RecordError, UsageError
from heretix.economy.ledger import (
    GENESIS,
    MAX_AMOUNT,
    AccountKind,
    Applied,
    Code,
    Draft,
    Escrow,
    Event,
    Group,
    Ledger,
    LedgerState,
    Refused,
    Status,
    apply,
    body_hash,
    check_balances,
    check_stakes,
    client_group,
    escrow_account,
    house_account,
    link,
    root_hash,
    transfer_hash,
    user_account,
    verify,
)

ANN, BOB = user_account("ann", "PLAY"), user_account("bob", "PLAY")
MINT = house_account(AccountKind.ISSUANCE, "PLAY")
POT = escrow_account("ep-1", Escrow.STAKE, "PLAY")
OTHER_POT = escrow_account("ep-2", Escrow.STAKE, "PLAY")
ANN_XC, BOB_XC = user_account("ann", "XC"), user_account("bob", "XC")
MINT_XC = house_account(AccountKind.ISSUANCE, "XC")


def draft(id_="t1", debit=ANN, credit=BOB, amount=10, **options):
    options = {"currency": "PLAY", "code": Code.CORRECTION} | options
    return Draft(id=id_, debit=debit.id, credit=credit.id, amount=amount, **options)


def group(*drafts, id_="g1", closes=None):
    return Group(id=id_, drafts=drafts, closes=closes)


@pytest.fixture
def ledger():
    """Ann has 100; two episodes, of which the second has ended."""
    ledger = Ledger()
    for account in (ANN, BOB, MINT, POT, OTHER_POT, ANN_XC, BOB_XC, MINT_XC):
        ledger.add_account(account)
    ledger.open_episode("ep-1")
    ledger.open_episode("ep-2")
    fund = draft("fund", MINT, ANN, 100, code=Code.ISSUE)
    passing = [
        draft("in", ANN, OTHER_POT, 1, episode="ep-2"),
        draft("out", OTHER_POT, ANN, 1, episode="ep-2"),
    ]
    assert ledger.post(group(fund, id_="fund")).status is Status.APPLIED
    assert ledger.post(group(*passing, id_="end", closes="ep-2")).status is Status.APPLIED
    return ledger


def status_of(ledger, *drafts, **options):
    before = (ledger.transfers, dict(ledger.state.balances))
    result = ledger.post(group(*drafts, **options))
    if isinstance(result, Refused):
        assert (ledger.transfers, dict(ledger.state.balances)) == before
    return result.status


def test_a_transfer_moves_money_from_debit_to_credit(ledger):
    """The debit gives and the credit receives."""
    result = ledger.post(group(draft(amount=30)))
    assert isinstance(result, Applied)
    assert result.balances == {ANN.id: 70, BOB.id: 30}
    assert (ledger.balance(ANN.id), ledger.balance(BOB.id), ledger.balance(MINT.id)) == (
        70,
        30,
        -100,
    )


REFUSALS = [
    (Status.EMPTY_GROUP, []),
    (Status.DUPLICATE_ID, [draft("a"), draft("a", amount=0)]),
    (Status.ID_CONFLICT, [draft("fund", amount=0)]),
    (Status.AMOUNT_NOT_POSITIVE, [draft(amount=MAX_AMOUNT + 1), draft("b", amount=0)]),
    (Status.AMOUNT_NOT_POSITIVE, [draft(amount=-5)]),
    (Status.AMOUNT_TOO_LARGE, [draft(credit=ANN, amount=MAX_AMOUNT + 1)]),
    (Status.SAME_ACCOUNT, [draft(credit=user_account("eve", "PLAY")), draft("b", credit=ANN)]),
    (Status.UNKNOWN_ACCOUNT, [draft(credit=BOB_XC), draft("b", user_account("eve", "PLAY"))]),
    (
        Status.CURRENCY_MISMATCH,
        [draft("b", ANN_XC, BOB_XC, currency="XC"), draft(credit=BOB_XC)],
    ),
    (Status.CURRENCY_MISMATCH, [draft(currency="EUR")]),
    (Status.NOT_TRANSFERABLE, [draft("b", ANN_XC, BOB_XC, currency="XC", episode="ep-9")]),
    (Status.UNKNOWN_EPISODE, [draft(credit=POT), draft("b", episode="ep-9")]),
    (Status.WRONG_EPISODE, [draft("b", code=Code.STAKE, episode="ep-2"), draft(credit=POT)]),
    (Status.CLOSED_EPISODE, [draft(amount=500), draft("b", code=Code.STAKE, episode="ep-2")]),
    (Status.INSUFFICIENT_FUNDS, [draft("b", MINT, BOB, MAX_AMOUNT), draft(amount=101)]),
    (Status.BALANCE_TOO_LARGE, [draft("b", MINT, BOB, MAX_AMOUNT)]),
    (Status.ESCROW_NOT_EMPTY, [draft("b", ANN, OTHER_POT, 5, episode="ep-2")]),
]


@pytest.mark.parametrize(("status", "drafts"), REFUSALS)
def test_the_first_refusal_in_order_is_given_and_nothing_is_written(ledger, status, drafts):
    """Each case also breaks a later rule, in a draft that comes first; the earlier rule wins."""
    assert status_of(ledger, *drafts) is status


def test_the_cases_above_follow_the_declared_order():
    """Precedence is the order in which the statuses are declared."""
    order = list(Status)
    ranks = [order.index(status) for status, _ in REFUSALS]
    assert ranks == sorted(ranks)
    told = {status for status, _ in REFUSALS} | {Status.ALREADY_APPLIED, Status.APPLIED}
    assert told == set(order)


def test_the_same_key_and_body_gives_the_first_result_again(ledger):
    """A retry writes nothing and returns what was written, even after the episode has ended."""
    first = ledger.post(group(draft()))
    count = len(ledger.transfers)
    again = ledger.post(group(draft()))
    assert isinstance(again, Applied)
    assert again.status is Status.ALREADY_APPLIED
    assert again.transfers == first.transfers
    assert len(ledger.transfers) == count
    ended = [
        draft("in", ANN, OTHER_POT, 1, episode="ep-2"),
        draft("out", OTHER_POT, ANN, 1, episode="ep-2"),
    ]
    assert status_of(ledger, *ended, id_="end", closes="ep-2") is Status.ALREADY_APPLIED


def test_a_retry_is_recognised_when_the_money_is_gone(ledger):
    """A key that was applied is answered before funds are looked at."""
    assert status_of(ledger, draft(amount=100)) is Status.APPLIED
    assert status_of(ledger, draft(amount=100)) is Status.ALREADY_APPLIED
    assert ledger.balance(ANN.id) == 0


@pytest.mark.parametrize(
    "again",
    [
        group(draft("a", amount=11), draft("b")),
        group(draft("a")),
        group(draft("a"), draft("b"), draft("c")),
        group(draft("c"), draft("d")),
        group(draft("a"), draft("b"), id_="g2"),
        group(draft("a", episode="ep-1"), draft("b")),
    ],
)
def test_the_same_key_with_another_body_is_a_conflict(ledger, again):
    """A changed amount, a missing or added line, or another group under a used key: 409."""
    assert status_of(ledger, draft("a"), draft("b")) is Status.APPLIED
    assert status_of(ledger, *again.drafts, id_=again.id) is Status.ID_CONFLICT


def test_a_group_is_all_or_nothing(ledger):
    """The last line's refusal undoes the first."""
    assert status_of(ledger, draft("a", amount=60), draft("b", amount=60)) is (
        Status.INSUFFICIENT_FUNDS
    )
    assert ledger.balance(BOB.id) == 0


def test_no_account_dips_below_zero_within_a_group(ledger):
    """Money must have arrived before it is spent, line by line."""
    arrives, leaves = draft("a", ANN, BOB, 50), draft("b", BOB, ANN, 20)
    assert status_of(ledger, leaves, arrives) is Status.INSUFFICIENT_FUNDS
    assert status_of(ledger, arrives, leaves) is Status.APPLIED


def test_an_amount_is_never_a_float():
    """A draft with a float, or a boolean, can't be made."""
    for amount in (1.0, True):
        with pytest.raises(UsageError, match="whole number of minor units"):
            draft(amount=amount)


def test_an_episode_ends_only_with_empty_pots(ledger):
    """The group that closes an episode must pay out all of every pot."""
    ledger.post(group(draft("s", ANN, POT, 10, episode="ep-1"), id_="stake"))
    part = draft("p", POT, ANN, 9, episode="ep-1")
    rest = draft("r", POT, ANN, 1, episode="ep-1")
    assert status_of(ledger, part, closes="ep-1") is Status.ESCROW_NOT_EMPTY
    assert status_of(ledger, part, rest, closes="ep-1") is Status.APPLIED
    late = draft("l", ANN, POT, 1, code=Code.STAKE, episode="ep-1")
    assert status_of(ledger, late, id_="late") is Status.CLOSED_EPISODE
    assert status_of(ledger, draft("x"), id_="again", closes="ep-1") is Status.CLOSED_EPISODE
    assert status_of(ledger, draft("x"), id_="never", closes="ep-9") is Status.UNKNOWN_EPISODE
    with pytest.raises(UsageError, match="has ended"):
        ledger.open_episode("ep-1")


def test_a_correction_reverses_and_writes_anew(ledger):
    """A line of a finished episode is put right by its reversal and a new line, pots empty."""
    paid = next(t for t in ledger.transfers if t.id == "out")
    undo = reversal(paid)
    right = draft("right", OTHER_POT, BOB, 1, episode="ep-2")
    assert status_of(ledger, undo, id_="half") is Status.ESCROW_NOT_EMPTY
    assert status_of(ledger, undo, right, id_="fix") is Status.APPLIED
    assert (ledger.balance(ANN.id), ledger.balance(BOB.id)) == (99, 1)
    assert status_of(ledger, reversal(paid), id_="twice") is Status.ID_CONFLICT


def test_credits_of_exploration_can_only_be_issued_and_burnt(ledger):
    """XC moves between a user and the issuer, never between users."""
    assert status_of(ledger, draft("i", MINT_XC, ANN_XC, 9, currency="XC")) is Status.APPLIED
    send = draft("s", ANN_XC, BOB_XC, 1, currency="XC")
    assert status_of(ledger, send, id_="send") is Status.NOT_TRANSFERABLE
    burn = draft("b", ANN_XC, MINT_XC, 4, currency="XC", code=Code.BURN)
    assert status_of(ledger, burn, id_="burn") is Status.APPLIED
    assert ledger.balance(ANN_XC.id) == 5


def test_apply_changes_nothing():
    """The rule itself is pure: it says what to write and leaves the state alone."""
    state = LedgerState(accounts={MINT.id: MINT, ANN.id: ANN})
    issue = group(draft("i", MINT, ANN, 5, code=Code.ISSUE))
    first, second = apply(state, issue), apply(state, issue)
    assert first == second
    assert isinstance(first, Applied)
    assert first.transfers[0].prev_hash == GENESIS
    assert state == LedgerState(accounts={MINT.id: MINT, ANN.id: ANN})


def test_an_account_id_names_one_account(ledger):
    """Adding an account again is harmless; another under the same id is refused."""
    ledger.add_account(ANN)
    with pytest.raises(UsageError, match="another account"):
        ledger.add_account(dataclasses.replace(ANN, kind=AccountKind.ISSUANCE))


@pytest.mark.parametrize("name", ["", "a:b", "a\nb"])
def test_a_name_cannot_spell_another_account(name):
    """A colon or a line break in a name is refused."""
    with pytest.raises(UsageError, match="without a colon"):
        user_account(name, "PLAY")
    with pytest.raises(UsageError, match="operator"):
        house_account(AccountKind.USER, "PLAY")


@pytest.mark.parametrize("name", [" ann", "ann ", "an  n", "Zoe\u0308", "n" * 65])
def test_a_name_cannot_pass_for_another(name):
    """What looks the same is one account; what is too long to be shown or indexed is none."""
    with pytest.raises(UsageError, match="must have"):
        user_account(name, "PLAY")


@pytest.mark.parametrize("name", ["Zo\u00eb", "an n", "名前", "n" * 64, "<b>&", "😀"])
def test_a_name_may_be_in_any_script(name):
    """Composed, printable, and without a colon: that is all."""
    assert user_account(name, "PLAY").id == f"user:{name}:PLAY"


def test_a_clients_key_lives_under_its_account():
    """Two accounts may choose the same key, and none can take an episode's."""
    assert client_group(ANN.id, "k") != client_group(BOB.id, "k")
    assert not client_group(ANN.id, "settle:ep-1").startswith("settle:")
    for key in ("", "x" * 201, "a\x00"):
        with pytest.raises(UsageError, match="`key`"):
            client_group(ANN.id, key)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", 99),
        ("debit", BOB.id),
        ("credit", MINT.id),
        ("code", Code.FEE),
        ("currency", "XC"),
        ("episode", None),
        ("group", "other"),
        ("id", "other"),
        ("seq", 7),
        ("prev_hash", "1" * 64),
        ("body_hash", "1" * 64),
        ("hash", "1" * 64),
    ],
)
def test_the_chain_shows_any_change(ledger, field, value):
    """No field of a written transfer can be altered without a fault."""
    chain = ledger.transfers
    assert verify(chain).ok
    for index in range(len(chain)):
        if getattr(chain[index], field) == value:
            continue
        forged = dataclasses.replace(chain[index], **{field: value})
        assert not verify((*chain[:index], forged, *chain[index + 1 :])).ok


def test_a_forger_would_have_to_rewrite_everything_after(ledger):
    """A changed transfer with all of its own hashes made anew no longer fits the next one."""
    chain = ledger.transfers
    (forged,) = link(
        group(draft("fund", MINT, ANN, 999), id_="fund"), last_seq=0, last_hash=GENESIS
    )
    assert verify([forged]).ok
    found = verify((forged, *chain[1:])).breaches
    assert [(breach.subject, breach.detail) for breach in found] == [
        (chain[1].id, "doesn't follow the transfer before it")
    ]


def test_a_chain_begins_at_one_and_has_each_id_once():
    """Consistent hashes don't excuse a chain without its start, or an id used again."""
    issue = group(draft("i", MINT, ANN, 1))
    late = link(issue, last_seq=5, last_hash=GENESIS)
    assert [breach.detail for breach in verify(late).breaches] == [
        "place 6 stands where place 1 belongs"
    ]
    first = link(issue, last_seq=0, last_hash=GENESIS)
    again = link(group(draft("i", MINT, ANN, 1), id_="g2"), last_seq=1, last_hash=first[0].hash)
    assert [breach.detail for breach in verify(first + again).breaches] == ["this id stands twice"]


def test_the_chain_shows_what_is_dropped_added_or_moved(ledger):
    """Transfers can't be left out, put in twice or exchanged."""
    ledger.post(group(draft()))
    chain = ledger.transfers
    assert not verify(chain[1:]).ok
    assert not verify((*chain, chain[-1])).ok
    assert not verify((chain[1], chain[0], *chain[2:])).ok
    assert verify(()).ok


def test_a_group_must_stand_together_in_the_chain():
    """Transfers of one group with another's in between are a fault, however well hashed."""
    chain, last = [], GENESIS
    for n, id_ in enumerate(["a", "b", "a"]):
        (transfer,) = link(group(draft(f"t{n}", MINT, ANN, 1), id_=id_), last_seq=n, last_hash=last)
        chain.append(transfer)
        last = transfer.hash
    assert [breach.detail for breach in verify(chain).breaches] == [
        "group 'a' is broken up by other transfers"
    ]


def test_each_invariant_names_its_breach():
    """A ledger that was tampered with breaks the rule that watches over it."""
    accounts = {account.id: account for account in (ANN, BOB, POT)}
    found = check_balances(accounts, {ANN.id: 5, BOB.id: -4}, {})
    assert [(b.rule, b.subject) for b in found] == [("no_overdraft", BOB.id), ("zero_sum", "PLAY")]
    found = check_balances(accounts, {ANN.id: -3, POT.id: 3}, {"ep-1": False})
    assert [(b.rule, b.subject) for b in found] == [
        ("no_overdraft", ANN.id),
        ("empty_escrow", POT.id),
    ]
    found = check_balances(accounts, {ANN.id: -3, POT.id: 3}, {"ep-1": True})
    assert [b.rule for b in found] == ["no_overdraft"]
    assert [b.detail for b in check_stakes("pot", 9, 8)] == ["holds 9, the open positions are 8"]
    chain = link(group(draft(currency="XC")), last_seq=0, last_hash=GENESIS)
    rules = {
        b.rule
        for b in breaches(
            accounts=accounts, balances={ANN.id: -9, BOB.id: 9}, episodes={}, transfers=chain
        )
    }
    assert rules == {"no_overdraft", "one_currency", "replay"}


_TEXT = st.text(st.characters(exclude_categories=("Cs",)))


@economy_settings(max_examples=100)
@given(_TEXT, _TEXT, st.none() | _TEXT, st.integers())
def test_what_is_hashed_is_the_digest_of_a_record(text, other, episode, number):
    """Though it is spelt out by hand, whatever quotes and line ends it holds."""
    asked = {
        "amount": number,
        "code": "stake",
        "credit": other,
        "currency": "PLAY",
        "debit": text,
        "episode": episode,
    }
    one = Draft(id="t", **asked | {"code": Code.STAKE})
    assert body_hash(one, other) == digest(asked | {"group": other})
    place = {"id": text, "prev_hash": other, "seq": number}
    found = transfer_hash(id_=text, body=other, seq=number, prev_hash=other)
    assert found == digest(place | {"body_hash": other})
    event = Event(
        chain=text, number=number, move=other, rows_json=text, at_ms=number, prev_hash=other
    )
    rows = sha256_text(text)
    assert event.hash() == digest([text, number, other, rows, number, other])
    assert root_hash(seq=number, event=text, prev_root=other) == digest([number, text, other])


@pytest.mark.parametrize("wrong", [1.0, b"t"])
def test_nothing_inexact_is_hashed(wrong):
    """Other numbers could be spelt in many ways."""
    with pytest.raises(RecordError, match="`record` must be text, an integer"):
        root_hash(seq=wrong, event="", prev_root="")


@economy_settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 60)), max_size=30))
def test_replaying_the_chain_gives_the_balances(moves):
    """Whatever was posted or refused, balances follow from the chain alone."""
    ledger, accounts = Ledger(), (MINT, ANN, BOB)
    for account in accounts:
        ledger.add_account(account)
    for n, (debit, credit, amount) in enumerate(moves):
        move = draft(f"t{n}", accounts[debit], accounts[credit], amount)
        ledger.post(group(move, id_=f"g{n}"))
    state = ledger.state
    assert replay(ledger.transfers) == dict(state.balances)
    assert not breaches(
        accounts=state.accounts,
        balances=state.balances,
        episodes=state.episodes,
        transfers=ledger.transfers,
    )
