"""Bets on a stored market: quoted, taken once, refused whole."""

from __future__ import annotations

import random

import pytest
from exchanging import H, O, everything
from playing import PURSE, make_terms

from heretix.core.errors import RefusedError, UsageError
from heretix.economy.audit import verify_episode
from heretix.economy.market import MAX_POOL, market_of


@pytest.fixture
def open_table(table):
    """An episode that takes bets and challenges."""
    table.start()
    return table


def status(action) -> str:
    """What an action is refused with."""
    with pytest.raises(RefusedError) as caught:
        action()
    return caught.value.status


def test_a_bet_buys_what_was_quoted(open_table):
    """Shares, money and the market are those of the quote."""
    quote = open_table.exchange.quote(open_table.id, H, 500)
    position = open_table.exchange.stake(
        open_table.id, "ann", H, 500, min_shares=quote.shares, key="k"
    )
    assert (position.number, position.account) == (2, "user:ann:PLAY")
    assert (position.side, position.stake, position.shares) == (H, 500, quote.shares)
    assert open_table.episode.market == quote.after
    assert market_of(open_table.exchange.positions(open_table.id)) == quote.after
    assert open_table.exchange.balance("ann") == PURSE - 500


def test_a_moved_price_is_refused(open_table):
    """`min_shares` holds the quote to its word."""
    quote = open_table.exchange.quote(open_table.id, H, 500)
    open_table.bet("bob", H, 5_000)
    before = everything(open_table.store)
    with pytest.raises(RefusedError, match="too_few_shares") as caught:
        open_table.exchange.stake(open_table.id, "ann", H, 500, min_shares=quote.shares, key="k")
    assert caught.value.status == "bet_refused"
    assert everything(open_table.store) == before
    assert open_table.bet("ann", H, 500, key="k").shares < quote.shares


def test_a_retry_gives_the_first_result_and_writes_nothing(open_table):
    """However the market has moved since, even after the episode took no more bets."""
    first = open_table.bet("ann", H, 500, key="k")
    open_table.bet("bob", O, 100)
    before = everything(open_table.store)
    assert open_table.bet("ann", H, 500, key="k") == first
    assert everything(open_table.store) == before
    open_table.freeze()
    assert open_table.bet("ann", H, 500, key="k") == first


@pytest.mark.parametrize(
    "change",
    [{"side": O}, {"amount": 501}, {"min_shares": 1}],
    ids=["side", "amount", "min_shares"],
)
def test_a_key_means_one_request(open_table, change):
    """The same key for anything else is refused, and the first bet stands."""
    asked = {"side": H, "amount": 500, "min_shares": 0}
    open_table.exchange.stake(open_table.id, "ann", **asked, key="k")
    before = everything(open_table.store)
    other = asked | change
    with pytest.raises(RefusedError, match=r"^this key was used before") as refusal:
        open_table.exchange.stake(open_table.id, "ann", **other, key="k")
    assert refusal.value.status == "id_conflict"
    assert everything(open_table.store) == before


def test_a_key_for_a_bet_is_not_one_for_a_challenge(open_table):
    """One key, one move, whatever the kind."""
    open_table.bet("ann", H, 500, key="key-0")
    assert status(lambda: open_table.challenge("ann", "evidence")) == "id_conflict"


def test_keys_are_each_persons_own(open_table):
    """Two people may choose the same one."""
    ours = [open_table.bet(name, H, 500, key="k") for name in ("ann", "bob")]
    assert [position.number for position in ours] == [2, 3]


def test_a_key_in_another_episode_is_taken(open_table):
    """A person's keys are theirs across episodes."""
    open_table.bet("ann", H, 500, key="k")
    other = open_table.exchange.draft(make_terms(claim="another"))
    open_table.clock.hold(1_000)
    open_table.exchange.open(other)
    stake = open_table.exchange.stake
    assert status(lambda: stake(other, "ann", H, 500, min_shares=0, key="k")) == "id_conflict"


def test_duplicate_and_reordered_requests_come_to_the_same(open_table):
    """Each bet counts once, whatever order and however often it arrives."""
    bets = [(name, side, 10 + n) for n in range(5) for name in ("ann", "bob") for side in (H, O)]
    requests = [(f"k{n}", bet) for n, bet in enumerate(bets)] * 3
    random.Random(7).shuffle(requests)
    results = {}
    for key, (name, side, amount) in requests:
        position = open_table.bet(name, side, amount, key=key)
        assert results.setdefault((name, key), position) == position
    held = open_table.exchange.positions(open_table.id)[2:]
    assert len(held) == len(bets)
    assert sorted((p.account, p.side, p.stake) for p in held) == sorted(
        (f"user:{name}:PLAY", side, amount) for name, side, amount in bets
    )
    assert open_table.exchange.verify().ok


def test_bets_are_refused_with_their_reasons(table):
    """Unknown, too early, too poor, too late, over: each has its status."""
    assert status(lambda: table.bet("ann", H, 1)) == "wrong_state"
    assert status(lambda: table.exchange.quote(table.id, H, 1)) == "wrong_state"
    table.start()
    assert status(lambda: table.bet("zoe", H, 1)) == "unknown_account"
    assert status(lambda: table.bet("ann", H, PURSE + 1)) == "insufficient_funds"
    assert status(lambda: table.bet("ann", H, 0)) == "bet_refused"
    assert status(lambda: table.bet("ann", H, -5)) == "bet_refused"
    assert status(lambda: table.bet("ann", H, 2**62)) == "bet_refused"
    stake = table.exchange.stake
    assert status(lambda: stake("ep-0", "ann", H, 1, min_shares=0, key="k")) == "unknown_episode"
    with pytest.raises(UsageError, match="`min_shares` must be a whole number"):
        stake(table.id, "ann", H, 1, min_shares=-1, key="k")
    with pytest.raises(UsageError, match="`amount` must be a whole number"):
        stake(table.id, "ann", H, 1.5, min_shares=0, key="k")
    table.at(10_001)
    assert status(lambda: table.bet("ann", H, 1)) == "too_late"
    table.freeze()
    assert status(lambda: table.bet("ann", H, 1)) == "wrong_state"
    assert table.exchange.verify().ok


def test_a_quote_changes_nothing(open_table):
    """Asking is free."""
    before = everything(open_table.store)
    open_table.exchange.quote(open_table.id, O, 1_000)
    assert everything(open_table.store) == before


def test_a_persons_bets_are_listed_with_their_episodes(table):
    """The newest first; one that came after the close is marked."""
    table.ready()
    (late, early) = table.exchange.positions_of("dan"), table.exchange.positions_of("ann")
    assert [(h.episode, h.position.stake, h.late) for h in late] == [(table.id, 700, True)]
    assert [(h.position.stake, h.late) for h in early] == [(5_000, False)]
    assert early[0].claim == table.episode.terms.claim
    assert early[0].state == "measured"
    assert table.exchange.positions_of("zoe") == []


def test_a_bet_reads_no_record_once_it_is_known(open_table):
    """However long an episode's record is, a bet's work stays the same few statements."""
    from sqlalchemy import event

    open_table.bet("ann", H, 1)
    seen = []
    event.listen(
        open_table.store._engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: seen.append(statement),
    )
    open_table.bet("ann", H, 1)
    asked = [s for s in seen if s.split()[0] in {"SELECT", "INSERT", "UPDATE"}]
    assert not any("record_json" in statement for statement in asked)
    assert len(asked) == 11, asked


def test_the_largest_pool_fits_the_store(table):
    """Money, shares and their sums stay within 64 bits, and one unit more is refused."""
    table.start()
    left = MAX_POOL - table.episode.market.money
    table.exchange.issue("ann", MAX_POOL, key="big")
    half = left // 2
    table.bet("ann", H, half)
    table.bet("ann", O, left - half - 1)
    assert status(lambda: table.bet("ann", H, 2)) == "bet_refused"
    table.bet("ann", H, 1)
    assert table.episode.market.money == MAX_POOL
    assert table.exchange.verify().ok
    assert verify_episode(table.exchange.record(table.id)).ok
