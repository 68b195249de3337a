"""The exchange when things break: a crash between any two writes, many processes, kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from exchange_processes import count_points, run_together, settle_and_die
from exchanging import H, O, Table, everything, nonce_of
from playing import PURSE, make_measurement, sha
from sqlalchemy import event

from heretix.core.clock import ManualClock
from heretix.core.errors import RefusedError
from heretix.economy.audit import verify_episode
from heretix.economy.episode.challenges import evidence_commitment
from heretix.economy.episode.settlement import PAYMENTS_AT_ONCE, settle
from heretix.economy.episode.state import Direction, Ground, State
from heretix.economy.exchange import Exchange
from heretix.economy.ledger import split_group
from heretix.store import Store
from processes import PROCESSES

KILLS = int(os.environ.get("HERETIX_KILLS", "200"))
BETS = 150


class Crash(Exception):  # noqa: N818
    """Stands for the end of a process."""


class Crasher:
    """Raises before the nth statement or commit of a store."""

    def __init__(self, store: Store) -> None:
        self.left = 0
        event.listen(store._engine, "before_cursor_execute", self.count)
        event.listen(store._engine, "commit", self.count)

    def count(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


def moves(table: Table):
    """Every move of an episode, in order, each as something that can be tried again."""
    exchange, id_ = table.exchange, table.id
    nonces = {name: nonce_of(name, name) for name in ("cat", "dan")}

    def commit(name):
        way, account = Direction.UP, f"user:{name}:PLAY"
        commitment = evidence_commitment(nonces[name], sha(name), way, account)
        return exchange.commit(id_, name, commitment=commitment, amount=60_000, key="c")

    def reveal(name, number):
        return table.reveal(number, name, nonces[name], sha(name))

    def rule():
        again = make_measurement(table.episode.judges, shift="0.9")
        return exchange.rule(id_, ground_confirmed=False, measurements=(again, again))

    ground = Ground.ARTIFACT_FRAUD
    yield lambda: exchange.join("eve", purse=500)
    yield lambda: exchange.issue("eve", 70, key="i")
    yield lambda: exchange.open(id_)
    table.at(1_000)
    yield lambda: exchange.begin_challenge(id_)
    table.at(2_000)
    yield lambda: table.bet("ann", H, 5_000, key="a")
    yield lambda: table.bet("bob", O, 3_000, key="b")
    yield lambda: commit("cat")
    yield lambda: commit("dan")
    table.at(10_000)
    yield lambda: table.bet("dan", O, 700, key="late")
    table.at(10_500)
    yield lambda: reveal("cat", 0)
    table.at(11_000)
    yield lambda: exchange.freeze(id_)
    yield lambda: table.judge(0)
    yield lambda: table.judge(1, None)
    yield lambda: table.measure("first")
    table.at(11_000 + table.episode.terms.parameters.durability_ms)
    yield lambda: table.measure("second")
    yield lambda: exchange.dispute(id_, "ann", ground=ground, bond=1_000, key="d")
    yield rule
    table.wait_out()
    yield lambda: exchange.close(id_)


def test_a_crash_between_any_two_writes_leaves_nothing_half_done(table):
    """Every move crashes before each of its statements and its commit; then it is done once."""
    crasher, crashes = Crasher(table.store), 0
    for move in moves(table):
        before = everything(table.store)
        for nth in range(1, 100):
            crasher.left = nth
            try:
                move()
            except Crash:
                crashes += 1
                crasher.left = 0
                assert everything(table.store) == before
            else:
                break
        crasher.left = 0
        after = everything(table.store)
        assert after != before
        # The reply may have been lost: asking again writes nothing.
        move()
        assert everything(table.store) == after
    assert crashes > 100
    assert table.episode.state is State.SETTLED
    assert table.exchange.verify().ok
    assert verify_episode(table.exchange.record(table.id)).ok


def crowd(table: Table, bets: int) -> None:
    """An episode of so many bets and one piece of evidence, up to its settlement."""
    table.start()
    table.at(2_000)
    table.challenge("cat", "evidence")
    for number in range(bets):
        table.bet(("ann", "bob")[number % 2], (H, O)[number % 2], 100 + number)
    table.freeze()
    table.judge(0)
    table.measure("first")
    table.measure("second")
    table.wait_out()


@pytest.mark.soak
def test_a_long_settlement_is_made_in_parts(table):
    """Each in a turn of its own. Between them the money is where it must be, others bet, nobody can
    act on the episode, at any time; and whoever asks next goes on with the part that is missing."""
    crowd(table, 2 * PAYMENTS_AT_ONCE)
    before, episode, exchange = table.episode, table.id, table.exchange
    group = settle(before, exchange.positions(episode)).group
    *parts, last = split_group(group, PAYMENTS_AT_ONCE)
    assert len(parts) == 2
    assert [draft for part in (*parts, last) for draft in part.drafts] == [*group.drafts]
    due = table.clock.now_ms()
    names = ("challenge_from_ms", "close_from_ms", "close_until_ms", "freeze_at_ms")
    later = dict.fromkeys(names, due + 1_000)
    other = exchange.draft(replace(before.terms, claim="bees sleep", **later))
    exchange.open(other)
    # A clock that was turned back gives nobody another chance.
    earlier = Exchange(table.store, clock=ManualClock(before.measured_ms))
    for done, part in enumerate(parts, start=1):
        with pytest.raises(Crash), monkeyed(exchange, after=done):
            exchange.close(episode)
        assert exchange.verify().breaches == ()
        assert exchange.history(group=part.id, limit=1)
        assert verify_episode(exchange.record(episode)).ok
        assert table.episode.state is State.MEASURED
        exchange.stake(other, "ann", H, 10, min_shares=0, key=f"between {done}")
        with pytest.raises(RefusedError) as refused:
            earlier.dispute(episode, "dan", ground=Ground.ARTIFACT_FRAUD, bond=9_000, key="d")
        assert refused.value.status == "too_late"
        with pytest.raises(RefusedError):
            table.bet("dan", H, 10)
    assert exchange.close(episode).state is State.SETTLED
    written = exchange.history(episode=episode, limit=10_000)
    paid = [e.transfer for e in written if e.transfer.group.startswith("settle:")]
    assert [t.id for t in paid[::-1]] == [draft.id for draft in group.drafts]
    assert exchange.verify().breaches == ()
    record = exchange.record(episode)
    assert verify_episode(record).ok
    # Nor is a part of it found elsewhere than where the rules put it.
    moved = json.loads(json.dumps(record))
    line = next(s for s in moved["statements"] if s["group"] == parts[0].id)
    line["lines"] = line["lines"][1:]
    assert not verify_episode(moved).ok
    again = exchange.verify().last_hash
    exchange.close(episode)
    assert exchange.verify().last_hash == again


@contextlib.contextmanager
def monkeyed(exchange: Exchange, *, after: int):
    """Let a process end when so many parts of a settlement are paid, whoever paid them."""
    pay = exchange._pay

    def die(found, moved, part, **last):
        if part.id.endswith(f":{after}") or part.closes:
            raise Crash
        return pay(found, moved, part, **last)

    exchange._pay = die
    try:
        yield
    finally:
        exchange._pay = pay


def test_two_settle_at_once(table):
    """Two that go through the parts side by side pay each of them once."""
    crowd(table, PAYMENTS_AT_ONCE + 10)
    exchanges = [Exchange(table.store, clock=table.clock) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda exchange: exchange.close(table.id), exchanges))
    assert {episode.state for episode in ended} == {State.SETTLED}
    assert table.exchange.verify().breaches == ()
    assert verify_episode(table.exchange.record(table.id)).ok


def test_a_crashed_draft_is_no_episode(table):
    """Nothing of it is listed, and the next one is whole."""
    crasher = Crasher(table.store)
    before = everything(table.store)
    for nth in (2, 3, 4):
        crasher.left = nth
        with pytest.raises(Crash):
            table.exchange.draft(table.episode.terms, c0=None if nth == 4 else _source())
        crasher.left = 0
        assert everything(table.store) == before


def _source():
    from heretix.economy.exchange import Source

    return Source(executions=("e",))


def test_two_processes_bet_on_one_market(store_url):
    """No bet is lost or doubled, no money appears, and the chain is one chain."""
    with Store.open(store_url) as store:
        table = Table(store)
        table.start()
    people = ("ann", "bob")
    exits = run_together([(store_url, table.id, name, BETS) for name in people])
    assert exits == [0, 0]
    with Store.open(store_url) as store:
        exchange = Exchange(store, clock=ManualClock(2_000))
        report = exchange.verify()
        assert report.breaches == ()
        held = exchange.positions(table.id)
        assert [position.number for position in held] == list(range(2 + 2 * BETS))
        counts = Counter(position.account for position in held[2:])
        assert counts == {f"user:{name}:PLAY": BETS for name in people}
        staked = sum(10 + number for number in range(BETS))
        assert [exchange.balance(name) for name in people] == [PURSE - staked] * 2
        assert sum(holding.balance for holding in exchange.balances()) == 0
        ids = [entry.transfer.id for entry in exchange.history(limit=10_000)]
        assert len(set(ids)) == len(ids) == report.count
        assert verify_episode(exchange.record(table.id)).ok


def test_threads_share_one_exchange(table):
    """As a web service's do: every bet counts, none twice."""
    table.start()
    people = ("ann", "bob", "cat", "dan")

    def bet(name):
        return [table.bet(name, H, 10, key=f"{name}-{number // 2}") for number in range(40)]

    with ThreadPoolExecutor(len(people)) as pool:
        results = list(pool.map(bet, people))
    numbers = [position.number for positions in results for position in positions]
    assert set(numbers) == set(range(2, 82))
    assert Counter(Counter(numbers).values()) == {2: 80}
    assert table.exchange.verify().ok


def build_ready(url: str) -> tuple[str, int]:
    """An episode of many bets that only has to be closed: its id, and when."""
    with Store.open(url) as store:
        table = Table(store)
        table.start()
        table.at(2_000)
        for number in range(40):
            for name, side in (("ann", H), ("bob", O)):
                table.bet(name, side, 100 + number)
        table.challenge("cat", "evidence")
        table.freeze()
        table.judge(0)
        table.measure("first")
        table.measure("second")
        table.wait_out()
        return table.id, table.clock.now_ms()


@pytest.fixture
def dying():
    """A process that settles and dies in children of its own, as often as it is told to."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=settle_and_die, args=(theirs,))
    process.start()
    yield ours
    ours.send(None)
    process.join()


def settled_hash(url: str, episode: str, at_ms: int) -> str:
    """Finish a settlement, check everything, and say how the ledger ends."""
    with Store.open(url) as store:
        exchange = Exchange(store, clock=ManualClock(at_ms))
        assert exchange.close(episode).state is State.SETTLED
        report = exchange.verify()
        assert report.breaches == ()
        return report.last_hash


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [16, pytest.param(KILLS, marks=pytest.mark.soak)])
def test_kill_9_at_any_point_of_a_settlement(tmp_path, sqlite_template, dying, kills):
    """After each death the episode is settled or not at all; finishing it ends the same ledger."""
    ready = shutil.copy(sqlite_template, tmp_path / "ready.sqlite")
    episode, at_ms = build_ready(str(ready))
    undisturbed = shutil.copy(ready, tmp_path / "undisturbed.sqlite")
    points, ticks = count_points(str(undisturbed), episode, at_ms)
    expected = settled_hash(str(undisturbed), episode, at_ms)
    found: Counter[tuple[str, bool, bool]] = Counter()
    for number in range(kills):
        way = ("instruction", "between", "timer", "instruction")[number % 4]
        path = shutil.copy(ready, tmp_path / "dying.sqlite")
        # Every point between two statements in turn, from the last on: the one after the commit is
        # always among them. Instructions are spread over all there are; the timer is chance.
        place = {"between": points - number // 4 % points, "instruction": 1 + number * 7 % ticks}
        dying.send((str(path), episode, at_ms, way, place.get(way, number)))
        died = dying.recv()
        assert died in {0, -signal.SIGKILL, -signal.SIGALRM}, died
        assert died == -signal.SIGKILL or way == "timer"
        with Store.open(str(path)) as store:
            exchange = Exchange(store, clock=ManualClock(at_ms))
            report = exchange.verify()
            assert report.breaches == ()
            settled = exchange.episode(episode).state is State.SETTLED
            assert settled == (report.last_hash == expected)
            assert bool(exchange.history(group=f"settle:{episode}", limit=1)) == settled
            assert exchange.close(episode).state is State.SETTLED
            assert exchange.verify().last_hash == expected
        found[(way, died != 0, settled)] += 1
        for rest in tmp_path.glob("dying.sqlite*"):
            rest.unlink()
    # The points must not all lie on one side, or the test shows nothing: of those between two
    # statements just the last is past the commit, and of instructions none.
    last = -(-(kills // 4) // points)
    assert found[("between", True, True)] == last
    assert found[("between", True, False)] == kills // 4 - last > 0
    assert found[("instruction", True, False)] == kills // 2


@pytest.mark.postgres
@pytest.mark.soak
def test_kill_9_between_statements_on_postgresql(postgres_server, postgres_template, dying):
    """The server forgets a transaction whose client is gone."""
    with postgres_server.database(postgres_template) as ready_url:
        episode, at_ms = build_ready(ready_url)
        template = urlsplit(ready_url).path.removeprefix("/")
        with postgres_server.database(template) as url:
            points, _ = count_points(url, episode, at_ms)
            expected = settled_hash(url, episode, at_ms)
        with postgres_server.database(template) as url:
            deaths = 0
            # What dies before its commit leaves the database as it was, for the next to try.
            for point in range(1, points + 1):
                dying.send((url, episode, at_ms, "between", point))
                died = dying.recv()
                assert died in {0, -signal.SIGKILL}, died
                deaths += died != 0
                with Store.open(url) as store:
                    exchange = Exchange(store, clock=ManualClock(at_ms))
                    report = exchange.verify()
                    assert report.breaches == ()
                    settled = exchange.episode(episode).state is State.SETTLED
                    assert settled == (report.last_hash == expected)
                if settled and deaths > 3:
                    break
            assert deaths > 3
            assert settled_hash(url, episode, at_ms) == expected
