"""Accounts and the ledger on both databases: who holds what, and whether it adds up."""

from __future__ import annotations

import itertools
import json

import pytest
from exchanging import PEOPLE, H, Table, everything
from playing import PURSE
from sqlalchemy import text

from heretix.core.clock import ManualClock
from heretix.core.errors import RecordError, RefusedError, UsageError
from heretix.economy.exchange import HOUSE_PURSE, STARTING_PURSE, Exchange

pytestmark = pytest.mark.either


@pytest.fixture
def exchange(store) -> Exchange:
    """An exchange with nobody at it."""
    return Exchange(store, clock=ManualClock(1_000))


def refusal(action) -> str:
    """The status that an action is refused with."""
    with pytest.raises(RefusedError) as caught:
        action()
    assert caught.value.status in str(caught.value) or "`" in str(caught.value)
    return caught.value.status


def test_an_empty_ledger_verifies(exchange):
    """No transfer, no breach; the chain ends where it begins."""
    report = exchange.verify()
    assert (report.ok, report.count, report.last_hash) == (True, 0, "0" * 64)


def test_the_house_is_founded_once(exchange):
    """Its accounts exist, seeds and rewards have money, and asking again changes nothing."""
    exchange.ensure_house()
    before = exchange.balances()
    exchange.ensure_house()
    exchange.ensure_house(purse=5)
    assert exchange.balances() == before
    assert {h.account.id: h.balance for h in before} == {
        "epc_fund:PLAY": HOUSE_PURSE,
        "house:PLAY": HOUSE_PURSE,
        "issuance:PLAY": -2 * HOUSE_PURSE,
        "operations:PLAY": 0,
        "platform:PLAY": 0,
        "rounding:PLAY": 0,
    }
    assert exchange.verify().ok


def test_a_currency_that_cannot_be_sent_has_no_purses(exchange):
    """Exploration credits are earned, never given."""
    exchange.ensure_house("XC")
    assert exchange.join("ann", "XC").balance == 0
    assert all(holding.balance == 0 for holding in exchange.balances(currency="XC"))


def test_a_person_joins_once(exchange):
    """The purse is theirs once, however often and with whatever purse they join."""
    assert exchange.join("ann").balance == STARTING_PURSE
    assert exchange.join("ann").balance == STARTING_PURSE
    assert exchange.join("ann", purse=7).balance == STARTING_PURSE
    assert exchange.join("bob", purse=0).balance == 0
    assert exchange.join("bob").balance == 0
    assert [h.person for h in exchange.balances(person="ann")] == ["ann"]


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "user:ann:PLAY"])
def test_a_name_cannot_spell_an_account(exchange, name):
    """A colon would let one name be another's account."""
    with pytest.raises(UsageError, match="`name` must be printable text without a colon"):
        exchange.join(name)


def test_money_is_issued_under_a_key(exchange):
    """The same request gives the first transfer again, another one is refused."""
    exchange.join("ann", purse=0)
    first = exchange.issue("ann", 50, key="k")
    assert exchange.issue("ann", 50, key="k") == first
    assert refusal(lambda: exchange.issue("ann", 51, key="k")) == "id_conflict"
    assert refusal(lambda: exchange.issue("house:PLAY", 50, key="k")) == "id_conflict"
    assert exchange.balance("ann") == exchange.balance("user:ann:PLAY") == 50
    exchange.issue("house:PLAY", 3, key="other")
    assert exchange.balance("house:PLAY") == 3


def test_money_is_not_issued_to_nobody(exchange):
    """Nor in nothing, nor in a currency there isn't."""
    exchange.join("ann")
    assert refusal(lambda: exchange.issue("zoe", 1, key="k")) == "unknown_account"
    assert refusal(lambda: exchange.issue("ann", 0, key="k")) == "amount_not_positive"
    assert refusal(lambda: exchange.issue("ann", 2**63, key="k")) == "amount_too_large"
    assert refusal(lambda: exchange.issue("issuance:PLAY", 1, key="k")) == "same_account"
    assert refusal(lambda: exchange.balance("zoe")) == "unknown_account"
    with pytest.raises(UsageError, match="`currency` must be one of PLAY, XC, got 'EUR'"):
        exchange.issue("ann", 1, key="k", currency="EUR")
    with pytest.raises(UsageError, match="`key` must be printable"):
        exchange.issue("ann", 1, key="")


def test_a_pot_takes_no_issued_money(table):
    """What an episode holds follows from its moves alone."""
    table.start()
    pot = f"escrow:{table.id}:stake:PLAY"
    assert refusal(lambda: table.exchange.issue(pot, 1, key="k")) == "wrong_episode"


def test_history_pages_backwards(table):
    """The newest first; `before_seq` goes on where a page ended."""
    table.start()
    for amount in (10, 20, 30):
        table.bet("ann", H, amount)
    account = "user:ann:PLAY"
    whole = table.exchange.history(account=account)
    assert [entry.transfer.amount for entry in whole] == [30, 20, 10, PURSE]
    first = table.exchange.history(account=account, limit=2)
    rest = table.exchange.history(account=account, before_seq=first[-1].transfer.seq)
    assert first + rest == whole
    of_episode = table.exchange.history(episode=table.id)
    assert {entry.transfer.episode for entry in of_episode} == {table.id}
    assert len(of_episode) == 5
    (bet,) = table.exchange.history(group=whole[0].transfer.group)
    assert (bet, bet.at_ms) == (whole[0], 1_000)


def test_export_is_the_chain_line_by_line(table):
    """Each line is one transfer; a later line can be fetched by itself."""
    table.start()
    table.bet("ann", H, 10)
    lines = [json.loads(line) for line in table.exchange.export()]
    report = table.exchange.verify()
    assert [line["seq"] for line in lines] == list(range(1, report.count + 1))
    assert lines[-1]["hash"] == report.last_hash
    assert all(b["prev_hash"] == a["hash"] for a, b in itertools.pairwise(lines))
    (last,) = table.exchange.export(after_seq=report.count - 1)
    assert json.loads(last) == lines[-1]
    assert "secret" not in last


def test_balances_can_be_asked_by_episode_and_page(table):
    """The pots of an episode; or everybody, a few at a time."""
    table.start()
    pots = table.exchange.balances(episode=table.id)
    assert [h.account.id.split(":")[2] for h in pots] == sorted(
        ["bond", "budget", "challenge", "dispute", "stake"]
    )
    whole = table.exchange.balances()
    assert [table.exchange.balances(limit=1, offset=n)[0] for n in range(3)] == whole[:3]
    assert sum(holding.balance for holding in whole) == 0
    assert {h.person for h in whole if h.person} == set(PEOPLE)


TAMPERINGS = {
    "chain": "UPDATE transfers SET amount = amount + 1 WHERE seq = 4",
    "replay": "UPDATE accounts SET balance = balance + 1 WHERE id = 'user:ann:PLAY'",
    "zero_sum": "UPDATE accounts SET balance = balance + 1 WHERE id = 'user:ann:PLAY'",
    "no_overdraft": "UPDATE accounts SET balance = -1 WHERE id = 'user:bob:PLAY'",
    "chain_end": "UPDATE chains SET number = number + 1 WHERE name = 'transfers'",
    "stakes": "UPDATE positions SET stake = stake + 1 WHERE number = 2",
    "market": "UPDATE episodes SET market_money = market_money + 1",
    "empty_escrow": "UPDATE episodes SET is_open = false",
    "one_currency": "UPDATE accounts SET currency = 'XC' WHERE id = 'user:bob:PLAY'",
    "account": "UPDATE accounts SET kind = 'issuance' WHERE id = 'user:ann:PLAY'",
    "account: person": "UPDATE accounts SET person = 'bob' WHERE id = 'user:ann:PLAY'",
    "account: episode": "UPDATE accounts SET episode = 'other' WHERE id LIKE 'escrow:%stake%'",
    "market: shares": "UPDATE positions SET shares = shares + 1 WHERE number = 2",
    "market: side": "UPDATE positions SET side = 'orthodox' WHERE number = 2",
    "statements": "DELETE FROM statements WHERE move = 'stake'",
    "statements: place": "UPDATE statements SET first_seq = first_seq - 1 WHERE move = 'stake'",
}


@pytest.mark.parametrize("rule", TAMPERINGS)
def test_every_kind_of_tampering_is_found(table, rule):
    """A row that was changed behind the exchange's back is named by the rule it breaks."""
    table.start()
    table.bet("ann", H, 10)
    assert table.exchange.verify().ok
    with table.store.writing() as connection:
        connection.execute(text(TAMPERINGS[rule]))
    report = table.exchange.verify()
    assert not report.ok
    assert rule.partition(":")[0] in {breach.rule for breach in report.breaches}


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE transfers SET code = 'present' WHERE seq = 2",
        "UPDATE accounts SET kind = 'friend' WHERE id = 'user:ann:PLAY'",
    ],
)
def test_words_that_no_rule_knows_are_found(table, tampering):
    """They are named like any other change; whoever only lists is told as well."""
    with table.store.writing() as connection:
        connection.execute(text(tampering))
    assert "words" in {breach.rule for breach in table.exchange.verify().breaches}
    with pytest.raises(RecordError, match="was changed from outside"):
        (table.exchange.history(), table.exchange.balances())


def test_looking_writes_nothing_once_the_house_is_founded(table):
    """Whoever only looks doesn't wait for those who write."""
    with table.store.writing():
        table.exchange.ensure_house()


@pytest.mark.parametrize("seq", [1, 3, "last"])
def test_a_dropped_transfer_is_found(table, seq):
    """The first, one in the middle, and the last."""
    table.start()
    table.bet("ann", H, 10)
    seq = table.exchange.verify().count if seq == "last" else seq
    with table.store.writing() as connection:
        connection.execute(text("DELETE FROM transfers WHERE seq = :seq"), {"seq": seq})
    assert {"chain", "chain_end"} & {b.rule for b in table.exchange.verify().breaches}


def test_a_refusal_writes_nothing(table):
    """Not an account, not a statement, not the clock."""
    table.start()
    before = everything(table.store)
    assert refusal(lambda: table.bet("ann", H, PURSE + 1)) == "insufficient_funds"
    assert refusal(lambda: table.bet("zoe", H, 1)) == "unknown_account"
    assert refusal(lambda: table.exchange.issue("zoe", 1, key="k")) == "unknown_account"
    assert everything(table.store) == before


def test_two_exchanges_on_one_store_see_each_other(store):
    """What one remembers of an episode is never out of date."""
    table = Table(store)
    other = Exchange(store, clock=table.clock)
    table.start()
    assert other.episode(table.id) == table.episode
    table.bet("ann", H, 10)
    other.stake(table.id, "bob", H, 20, min_shares=0, key="k")
    table.challenge("cat", "evidence")
    assert other.episode(table.id) == table.episode
    assert len(other.episode(table.id).challenges) == 1
    assert [p.stake for p in table.exchange.positions(table.id)][2:] == [10, 20]
