"""Episodes on both databases: from draft to settlement, every move written whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from exchanging import H, O, Table, everything, nonce_of
from playing import GATE_FAILED, GATE_PASSED_DOWN, PURSE, make_measurement, make_terms, sha

from heretix.core.canonical import sha256_hex
from heretix.core.errors import ConfigError, RecordError, RefusedError, UsageError
from heretix.economy.audit import verify_episode
from heretix.economy.episode.challenges import commit, evidence_commitment, seed_commitment
from heretix.economy.episode.settlement import VoidReason, settle, summarize_accounts
from heretix.economy.episode.state import Direction, Fate, Ground, State
from heretix.economy.exchange import Exchange, Source, tally_bets
from heretix.economy.market import MarketResult, Side, market_of
from heretix.store import economy as queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.exchange import Tally
    from heretix.economy.market import Position


def status(action) -> str:
    """What an action is refused with."""
    with pytest.raises(RefusedError) as caught:
        action()
    return caught.value.status


LATER = {
    name: 10**12 + n
    for n, name in enumerate(
        ("challenge_from_ms", "close_from_ms", "close_until_ms", "freeze_at_ms")
    )
}
"""Times of an episode that begins when others have ended."""


def profit(table: Table, *names: str) -> int:
    """What people have gained or lost since they joined."""
    return sum(table.exchange.balance(name) - PURSE for name in names)


def check_recalled(table: Table) -> None:
    """Hold what a page is given, from sums and stored statements, against all of the bets."""
    exchange = table.exchange
    found, positions = exchange.snapshot(table.id, person="ann"), exchange.positions(table.id)
    kept, worked = found.episode.select_positions(positions), settle(found.episode, positions)
    told, market = found.settlement, worked.market
    assert (told.outcome, told.rewards) == (worked.outcome, worked.rewards)
    assert told.market == MarketResult(
        winner=market.winner,
        tau_ppm=market.tau_ppm,
        transfer=market.transfer,
        given_up=sum(line.paid for line in market.lines),
        fees=market.fees,
        dust=market.dust,
    )
    assert told.market.gained == sum(line.gain for line in market.lines)
    assert found.lines == market.lines
    assert (found.latest, found.opened_ms) == (positions, positions[0].at_ms)
    assert found.own == [p for p in positions if p.account == "user:ann:PLAY"]
    check_pools(found.tally, kept)
    entries = exchange.history(episode=table.id, limit=1_000)
    moved = [entry.transfer for entry in entries]
    accounting = found.tally.accounting
    assert accounting.came == summarize_accounts(moved)
    for one in (*accounting.sums, found.own_sum):
        assert one.paid == sum(t.amount for t in moved if t.debit == one.account)
        assert one.got == sum(t.amount for t in moved if t.credit == one.account)
    assert found.own_sum in accounting.sums
    assert (accounting.net, accounting.unbalanced) == (0, 0)


def check_pools(tally: Tally, kept: Sequence[Position]) -> None:
    """Hold the sums of both sides, and the end of the market's course, against the bets."""
    for pool in tally.pools:
        own = [p for p in kept if p.side is pool.side]
        assert pool.stakes == sum(p.stake for p in own)
        assert pool.bets == sum(not p.house for p in own)
        assert pool.house == sum(p.stake for p in own if p.house)
    assert tally.course[0] == (kept[0].at_ms, market_of(kept[:2]))
    assert tally.course[-1] == (kept[-1].at_ms, market_of(kept))


def test_long_lists_of_an_episode_are_cut_and_its_sums_are_not(table, monkeypatch):
    """Of a page that lists three: the last bets, points of the course, and the whole sums."""
    monkeypatch.setattr("heretix.economy.exchange.LISTED", 3)
    table.start()
    table.at(2_000)
    for number in range(11):
        table.bet(("ann", "bob", "cat", "dan")[number % 4], list(Side)[number % 3 % 2], 500)
    found, positions = table.exchange.snapshot(table.id), table.exchange.positions(table.id)
    assert found.latest == positions[-3:]
    assert (found.own, found.own_sum, found.settlement) == ([], None, None)
    # After the seed, then after 5, 10 and all 11 bets.
    ends = (2, 7, 12, 13)
    course = tuple((positions[n - 1].at_ms, market_of(positions[:n])) for n in ends)
    assert found.tally.course == course
    check_pools(found.tally, positions)
    table.freeze()
    table.measure("first")
    table.measure("second")
    measured = table.exchange.episode(table.id)
    table.at(measured.measured_ms + measured.terms.parameters.dispute_window_ms)
    table.close()
    ended = table.exchange.snapshot(table.id)
    worked = settle(ended.episode, positions)
    assert ended.lines == worked.market.lines[:3]
    assert ended.statements[-1].lines == worked.group.lines[:3]
    accounting = ended.tally.accounting
    assert (accounting.people, accounting.net) == (4, 0)
    people = [one.account for one in accounting.sums if one.account.startswith("user:")]
    assert people == ["user:ann:PLAY", "user:bob:PLAY", "user:cat:PLAY"]
    assert len(accounting.came) == len(accounting.sums)


def test_the_sums_of_an_episode_are_written_as_it_ends(table, monkeypatch):
    """No page makes them again, and whoever verifies does: in parts, and for all that was paid."""
    monkeypatch.setattr("heretix.economy.exchange.PAYMENTS_AT_ONCE", 3)
    table.ready()
    assert table.store.read(queries.ended_episodes) == []
    table.close()
    assert table.store.read(queries.ended_episodes) == [table.id]
    settling = [s for s in table.exchange.statements(table.id) if s.move == "settle"]
    assert len(settling) > 2
    with monkeypatch.context() as patched:
        for name in ("sum_positions", "sum_flows_of_episode", "sum_given_up"):
            patched.delattr(queries, name)
        told = Exchange(table.store, clock=table.clock).snapshot(table.id, person="ann").tally
    with table.store.reading() as connection:
        ended, outcome = table.exchange.outcome(table.id)
        assert told == tally_bets(connection, ended, outcome)
    assert table.exchange.verify().ok


def test_sums_that_are_chained_and_wrong_are_found(table):
    """Somebody who writes an event of their own, too: sums are held against what they sum up."""
    table.ready()
    table.close()
    text = table.store.read(queries.tally_json, table.id)
    values = {"tally_json": text.replace('"fees":', '"fees":1', 1)}
    assert values["tally_json"] != text
    with table.exchange.transaction() as transaction:
        queries.update_episode(transaction.connection, table.id, values)
        transaction.record("episodes", [{"episode_id": table.id} | values])
    report = table.exchange.verify()
    assert [(breach.rule, breach.subject) for breach in report.breaches] == [("sums", table.id)]


def test_a_whole_episode_settles(table):
    """Heretic wins, the late bet came back, the challenge that failed paid, nothing is left."""
    table.ready()
    episode = table.close()
    assert episode.state is State.SETTLED
    assert table.exchange.verify().ok
    assert all(h.balance == 0 for h in table.exchange.balances(episode=table.id))
    assert profit(table, "ann") > 0 > profit(table, "dan")
    assert profit(table, "cat") > 0
    assert table.exchange.snapshot(table.id).settlement.outcome.winner is H
    worked = settle(episode, table.exchange.positions(table.id))
    assert table.exchange.statements(table.id)[-1].lines == worked.group.lines
    check_recalled(table)


def test_the_moves_are_told_in_their_order(table):
    """Each statement names its move, and adds up to what was paid."""
    table.ready()
    assert table.exchange.snapshot(table.id).settlement is None
    table.close()
    statements = table.exchange.statements(table.id)
    # A page has them but for those of bets and commitments; each line is found by its group, too.
    shown = table.exchange.snapshot(table.id).statements
    assert shown == [s for s in statements if s.move not in ("stake", "commit")]
    reasons = table.exchange.reasons(s.group for s in statements)
    assert reasons == {line.transfer: line.reason for s in statements for line in s.lines}
    assert table.exchange.reasons(["none"]) == {}
    assert [s.move for s in statements] == [
        "open",
        "stake",
        "stake",
        "commit",
        "commit",
        "stake",
        "freeze",
        "judge",
        "judge",
        "settle",
    ]
    for statement in statements:
        transfers = [e.transfer for e in table.exchange.history(group=statement.group)][::-1]
        assert [(line.transfer, line.amount) for line in statement.lines] == [
            (transfer.id, transfer.amount) for transfer in transfers
        ]


def test_what_an_episode_was_told_is_kept_with_its_source(table):
    """The starting belief, the gates and both measurements, with the executions behind them."""
    table.ready()
    told = table.exchange.measurements(table.id)
    assert [item.stage for item in told] == ["c0", "gate:0", "gate:1", "first", "second"]
    assert told[0].record == {"c0_ppm": 500_000}
    assert told[0].source == Source(executions=("exec-c0",))
    assert told[1].source == Source(executions=("exec-gate",), bundle_id="bundle-0")
    assert told[3].source.executions == ("exec-first",)
    assert told[3].record["p_up_ppm"] == 990_000


def test_every_move_can_be_repeated(table):
    """Right after itself, each move gives the same result and writes nothing."""
    exchange, id_ = table.exchange, table.id

    def twice(action):
        first = action()
        before = everything(table.store)
        assert action() == first
        assert everything(table.store) == before
        return first

    twice(lambda: exchange.open(id_))
    table.at(1_000)
    twice(lambda: exchange.begin_challenge(id_))
    table.at(2_000)
    twice(lambda: table.bet("ann", H, 5_000, key="a"))
    twice(lambda: table.bet("bob", O, 5_000, key="b"))
    nonce = nonce_of("cat", "e")
    commitment = evidence_commitment(nonce, sha("e"), Direction.UP, "user:cat:PLAY")
    asked = {"commitment": commitment, "amount": 60_000, "key": "c"}
    twice(lambda: exchange.commit(id_, "cat", **asked))
    table.at(10_500)
    twice(lambda: table.reveal(0, "cat", nonce, sha("e")))
    table.at(11_000)
    twice(lambda: exchange.freeze(id_))
    twice(lambda: table.judge(0))
    twice(lambda: table.measure("first"))
    twice(lambda: table.measure("second"))
    dispute = {"ground": Ground.ARTIFACT_FRAUD, "bond": 1_000, "key": "d"}
    twice(lambda: exchange.dispute(id_, "dan", **dispute))
    again = make_measurement(table.episode.judges, shift="0.9")
    ruling = {"ground_confirmed": False, "measurements": (again, again)}
    twice(lambda: exchange.rule(id_, **ruling))
    table.wait_out()
    twice(lambda: exchange.close(id_))
    assert exchange.verify().ok


def test_moves_out_of_their_order_are_refused(table):
    """A later move before an earlier one changes nothing."""
    exchange, id_ = table.exchange, table.id
    before = everything(table.store)
    assert status(lambda: exchange.begin_challenge(id_)) == "wrong_state"
    assert status(lambda: exchange.freeze(id_)) == "wrong_state"
    assert status(lambda: exchange.close(id_)) == "wrong_state"
    assert status(lambda: exchange.conclude_unmeasured(id_)) == "wrong_state"
    assert status(lambda: table.judge(0)) == "wrong_state"
    assert status(lambda: table.challenge("ann", "e")) == "wrong_state"
    measurement = make_measurement(("judge-00",))
    assert status(lambda: exchange.measure(id_, measurement, stage="first")) == "wrong_state"
    assert status(lambda: exchange.measure(id_, measurement, stage="second")) == "out_of_order"
    ground = Ground.ARTIFACT_FRAUD
    assert (
        status(lambda: exchange.dispute(id_, "ann", ground=ground, bond=9_999, key="k"))
        == "wrong_state"
    )
    both = (measurement, measurement)
    assert (
        status(lambda: exchange.rule(id_, ground_confirmed=True, measurements=both))
        == "wrong_state"
    )
    assert everything(table.store) == before


def test_moves_come_in_their_time(table):
    """Too early and too late are refusals of their own."""
    exchange, id_ = table.exchange, table.id
    exchange.open(id_)
    assert status(lambda: exchange.begin_challenge(id_)) == "too_early"
    table.at(1_000)
    exchange.begin_challenge(id_)
    assert status(lambda: exchange.freeze(id_)) == "too_early"
    table.bet("ann", H, 100)
    table.bet("bob", O, 100)
    table.freeze()
    table.measure("first")
    measurement = make_measurement(table.episode.judges, shift="0.5")
    assert status(lambda: exchange.measure(id_, measurement, stage="second")) == "too_early"
    table.measure("second")
    assert status(lambda: exchange.close(id_)) == "too_early"
    table.wait_out()
    assert exchange.close(id_).state is State.SETTLED
    late = exchange.draft(make_terms(claim="another"))
    assert status(lambda: exchange.open(late)) == "too_late"


def test_an_episode_that_does_not_exist_is_refused(table):
    """Whatever is asked of it."""
    exchange = table.exchange
    for action in (
        exchange.open,
        exchange.begin_challenge,
        exchange.freeze,
        exchange.close,
        exchange.conclude_unmeasured,
        exchange.episode,
        exchange.positions,
        exchange.statements,
        exchange.measurements,
        exchange.snapshot,
        exchange.record,
    ):
        assert status(lambda action=action: action("ep-none")) == "unknown_episode"


def test_the_secret_is_shown_by_the_freeze_and_not_before(table):
    """No record, export or summary has it; then everybody can check it against the terms."""
    with table.store.reading() as connection:
        row = queries.select_episode(connection, table.id)
    secret = row["secret"]
    assert seed_commitment(bytes.fromhex(secret)) == table.episode.terms.seed_commitment
    table.start()
    table.bet("ann", H, 100)
    for shown in (
        table.exchange.record(table.id),
        list(table.exchange.export()),
        table.exchange.episodes(),
        table.exchange.statements(table.id),
        table.episode,
    ):
        assert secret not in repr(shown)
        assert repr(bytes.fromhex(secret)) not in repr(shown)
    table.freeze()
    assert table.exchange.record(table.id)["episode"]["seed"] == secret


def test_each_draft_draws_a_secret_of_its_own(table):
    """Terms that are used twice make two episodes that nobody can foretell from each other."""
    other = table.exchange.episode(table.exchange.draft(make_terms()))
    assert other.id != table.id
    assert other.terms.seed_commitment != table.episode.terms.seed_commitment


def test_an_unknown_currency_is_refused(table):
    """A currency is data, and this one isn't there."""
    with pytest.raises(UsageError, match="`currency` must be one of"):
        table.exchange.draft(make_terms(currency="EUR"))


def test_a_seed_that_is_too_small_is_refused_at_open(table):
    """And the draft stays a draft."""
    small = table.exchange.draft(make_terms(seed_stake=1))
    with pytest.raises(ConfigError, match="`stake` must be large enough"):
        table.exchange.open(small)
    assert table.exchange.episode(small).state is State.DRAFT


def test_a_house_without_money_opens_nothing(store):
    """The ledger refuses the seed, and with it the whole move."""
    table = Table(store, seed_stake=2 * 10**9)
    before = everything(store)
    assert status(lambda: table.exchange.open(table.id)) == "insufficient_funds"
    assert everything(store) == before


def test_one_episode_of_a_claim_is_open_at_a_time(table):
    """Folded: case, spacing and a last dot make no other claim. When it has ended, another may."""
    again = make_terms(claim="  Tin Whiskers  short circuits. ", **LATER)
    second, third = (table.exchange.draft(again) for _ in range(2))
    table.start()
    assert status(lambda: table.exchange.open(second)) == "claim_taken"
    assert table.exchange.claim_standing(again.claim).open_episode == table.id
    table.freeze()
    table.exchange.conclude_unmeasured(table.id)
    table.wait_out()
    table.close()
    assert table.exchange.open(second).state is State.OPEN
    assert status(lambda: table.exchange.open(third)) == "claim_taken"


def test_evidence_that_was_paid_stands_on_the_side_before(table):
    """A later episode of the claim must name it in its terms, so that it earns nothing twice."""
    stale = table.exchange.draft(make_terms(**LATER))
    table.ready()
    table.close()
    paid = table.exchange.claim_standing(table.episode.terms.claim).paid
    assert paid == (sha("evidence"),)
    assert status(lambda: table.exchange.open(stale)) == "terms_stale"
    later = table.exchange.draft(make_terms(paid=paid, **LATER))
    assert table.exchange.open(later).terms.paid == paid


def test_without_stakes_on_both_sides_everything_goes_back(table):
    """Nobody but the house bet on one side: void, unmeasured."""
    table.start()
    table.bet("ann", H, 5_000)
    table.freeze()
    table.exchange.conclude_unmeasured(table.id)
    assert table.exchange.conclude_unmeasured(table.id).state is State.MEASURED
    table.wait_out()
    assert table.close().state is State.VOID
    assert table.exchange.snapshot(table.id).settlement.outcome.void is VoidReason.NO_OUTSIDE_STAKE
    check_recalled(table)
    assert profit(table, "ann") == 0
    assert table.exchange.verify().ok


def test_with_stakes_on_both_sides_it_must_be_measured(table):
    """Concluding without a measurement is no way out."""
    table.start()
    table.bet("ann", H, 100)
    table.bet("bob", O, 100)
    table.freeze()
    assert status(lambda: table.exchange.conclude_unmeasured(table.id)) == "not_void"


def test_a_cached_sample_voids(table):
    """The first measurement is enough to know: no second is waited for."""
    table.start()
    table.bet("ann", H, 100)
    table.bet("bob", O, 100)
    table.freeze()
    judges = table.episode.judges
    whole = make_measurement(judges)
    cached = replace(
        whole, readings=(replace(whole.readings[0], from_cache=1), *whole.readings[1:])
    )
    table.exchange.measure(table.id, cached, stage="first")
    assert table.episode.state is State.MEASURED
    table.wait_out()
    assert table.close().state is State.VOID


def test_a_measurement_is_not_exchanged_for_another(table):
    """What was measured stands."""
    table.start()
    table.bet("ann", H, 100)
    table.bet("bob", O, 100)
    table.freeze()
    table.measure("first")
    assert status(lambda: table.measure("first", shift="0.1")) == "id_conflict"


def test_a_ruling_on_a_challenge_is_not_exchanged_for_another(table):
    """It is judged once; the same ruling again is no matter."""
    table.start()
    table.bet("ann", H, 100)
    table.challenge("cat", "e")
    table.freeze()
    table.judge(0, GATE_FAILED)
    assert status(lambda: table.judge(0)) == "id_conflict"
    assert table.judge(0, GATE_FAILED).challenges[0].fate is Fate.FAILED


def test_a_wrong_reveal_is_refused(table):
    """Other evidence, another nonce, another person, another challenge."""
    table.start()
    nonce = nonce_of("cat", "e")
    commitment = evidence_commitment(nonce, sha("e"), Direction.UP, "user:cat:PLAY")
    asked = {"commitment": commitment, "amount": 5_000, "key": "c"}
    table.exchange.commit(table.id, "cat", **asked)
    assert status(lambda: table.reveal(0, "cat", nonce, sha("e"))) == "too_early"
    table.at(10_500)
    for number, person, nonce_, bundle, expected in (
        (0, "cat", nonce, "other", "wrong_reveal"),
        (0, "cat", nonce_of("cat", "x"), "e", "wrong_reveal"),
        (0, "dan", nonce, "e", "wrong_reveal"),
        (1, "cat", nonce, "e", "unknown_challenge"),
        (-1, "cat", nonce, "e", "unknown_challenge"),
    ):
        shown = (number, person, nonce_, sha(bundle))
        assert status(lambda shown=shown: table.reveal(*shown)) == expected
    down = (0, "cat", nonce, sha("e"), Direction.DOWN)
    assert status(lambda: table.reveal(*down)) == "wrong_reveal"
    assert table.episode.challenges[0].fate is Fate.COMMITTED


def test_a_failed_challenge_makes_the_next_stake_larger_than_a_passed_one(table):
    """Attempts are remembered across episodes; a fresh account starts at the maximum."""
    fresh = table.exchange.min_stake(table.id, "cat")
    table.start()
    table.bet("ann", H, 100)
    table.challenge("cat", "good")
    table.challenge("dan", "bad")
    table.freeze()
    table.judge(0)
    table.judge(1, GATE_FAILED)
    assert table.exchange.min_stake(table.id, "cat") < fresh
    assert table.exchange.min_stake(table.id, "dan") == fresh
    assert table.exchange.min_stake(table.id, "dan", compute_cost=10**6) == 10**6


def test_a_stake_below_the_least_is_refused(table):
    """The least is worked out inside the move."""
    table.start()
    least = table.exchange.min_stake(table.id, "cat")
    assert status(lambda: table.challenge("cat", "e", amount=least - 1)) == "stake_too_small"
    assert table.challenge("cat", "e", amount=least).stake == least


def test_rewards_are_remembered_for_the_reputation(table):
    """Who earned what at which scale, and which attempts passed."""
    from heretix.store.schema import reputation_events

    table.ready()
    table.close()
    with table.store.reading() as connection:
        rows = connection.execute(
            reputation_events.select().order_by(
                reputation_events.c.kind, reputation_events.c.number
            )
        ).all()
    assert [(r.kind, r.number, r.account, r.passed) for r in rows] == [
        ("attempt", 0, "user:cat:PLAY", True),
        ("attempt", 1, "user:dan:PLAY", False),
        ("reward", 0, "user:cat:PLAY", None),
    ]
    reward = table.exchange.snapshot(table.id).settlement.rewards.rewards[0]
    assert (rows[2].amount, rows[2].scale) == (reward.amount, reward.scale)


def test_a_dispute_that_changes_the_result_gets_its_bond_back(table):
    """The larger panel says otherwise: its word stands, twice at most."""
    table.ready_to_dispute()
    before = table.exchange.balance("dan")
    dispute = table.exchange.dispute(
        table.id, "dan", ground=Ground.ARTIFACT_FRAUD, bond=1_000, key="d"
    )
    assert (dispute.round, dispute.upheld) == (1, None)
    assert status(table.close) == "dispute_pending"
    judges = table.episode.judges
    assert len(judges) == 11
    down = make_measurement(judges, shift="-0.8", p_up_ppm=10_000)
    table.exchange.rule(table.id, ground_confirmed=False, measurements=(down, down))
    assert table.episode.disputes[0].upheld is True
    table.wait_out()
    table.close()
    assert table.exchange.balance("dan") == before
    assert table.exchange.snapshot(table.id).settlement.outcome.winner is O
    check_recalled(table)
    assert table.exchange.verify().ok


def test_a_dispute_that_changes_nothing_pays_for_the_panel(table):
    """The bond goes to operations; a second round costs twice as much, and is the last."""
    table.ready_to_dispute()
    exchange = table.exchange
    for round_ in (1, 2):
        exchange.dispute(
            table.id,
            "dan",
            ground=Ground.WRONG_LENS_OR_MODEL,
            bond=1_000 * round_,
            key=f"d{round_}",
        )
        same = make_measurement(table.episode.judges)
        exchange.rule(table.id, ground_confirmed=False, measurements=(same, same))
    third = {"ground": Ground.ARTIFACT_FRAUD, "bond": 1_000, "key": "d3"}
    assert status(lambda: exchange.dispute(table.id, "dan", **third)) == "no_rounds_left"
    assert [m.stage for m in exchange.measurements(table.id)][-2:] == ["round:1", "round:2"]
    assert table.close().state is State.SETTLED
    assert exchange.balance("operations:PLAY") == 3_000
    assert exchange.verify().ok


def test_a_ruling_on_a_dispute_is_not_exchanged_for_another(table):
    """The panel has spoken."""
    table.ready_to_dispute()
    ground = Ground.ARTIFACT_FRAUD
    table.exchange.dispute(table.id, "dan", ground=ground, bond=1_000, key="d")
    same = make_measurement(table.episode.judges)
    table.exchange.rule(table.id, ground_confirmed=False, measurements=(same, same))
    assert (
        status(
            lambda: table.exchange.rule(table.id, ground_confirmed=True, measurements=(same, same))
        )
        == "id_conflict"
    )


def test_a_challenge_down_moves_the_path_down(table):
    """Directions are kept through the store."""
    table.start()
    table.bet("ann", H, 100)
    table.challenge("cat", "e", direction=Direction.DOWN)
    table.freeze()
    episode = table.judge(0, GATE_PASSED_DOWN, 400_000)
    assert episode.belief_ppm < 500_000
    assert table.episode == episode


def test_episodes_are_listed_by_state_and_page(table):
    """The newest first, without decoding any."""
    table.clock.hold(500)
    others = [table.exchange.draft(make_terms(claim=f"claim {n}")) for n in range(3)]
    table.exchange.open(others[0])
    listed = table.exchange.episodes()
    assert {item.id for item in listed[:3]} == set(others)
    assert listed[3].id == table.id
    assert [item.id for item in table.exchange.episodes(state=State.OPEN)] == [others[0]]
    (open_one,) = table.exchange.episodes(state=State.OPEN)
    assert (open_one.claim, open_one.market.money) == ("claim 0", 10_000)
    pages = [table.exchange.episodes(limit=1, offset=n)[0] for n in range(4)]
    assert pages == listed
    assert table.exchange.episodes(state=State.VOID) == []


def test_terms_that_were_changed_in_the_store_stop_every_move(table):
    """The hash of the open says so, and no money moves."""
    from sqlalchemy import text

    table.start()
    table.bet("ann", H, 100)
    with table.store.writing() as connection:
        old = queries.select_record_json(connection, table.id)
        new = old.replace('"fee_ppm":200000', '"fee_ppm":100000')
        assert new != old
        connection.execute(
            text("UPDATE episodes SET record_json = :new, record_sha256 = :sha"),
            {"new": new, "sha": sha256_hex(new.encode())},
        )
    assert status(lambda: table.bet("ann", H, 100)) == "terms_changed"
    assert status(table.freeze) == "terms_changed"


def test_a_record_that_was_changed_in_the_store_is_not_read(table):
    """Its hash stands beside it, and nobody plays on with something else."""
    from sqlalchemy import text

    table.start()
    with table.store.writing() as connection:
        connection.execute(text("UPDATE episodes SET record_json = replace(record_json, '5', '6')"))
    fresh = Exchange(table.store, clock=table.clock)
    with pytest.raises(RecordError, match="was changed from outside"):
        fresh.episode(table.id)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE challenges SET stake = stake + 1 WHERE number = 1",
        "DELETE FROM challenges WHERE number = 0",
        "DELETE FROM challenges WHERE number = 2",
    ],
)
def test_challenges_that_were_changed_in_the_store_are_not_read(table, change):
    """Neither one that was edited nor the others where one is missing."""
    from sqlalchemy import text

    table.start()
    for name in ("cat", "dan", "ann"):
        table.challenge(name, "evidence")
    with table.store.writing() as connection:
        connection.execute(text(change))
    fresh = Exchange(table.store, clock=table.clock)
    with pytest.raises(RecordError, match="changed from outside"):
        fresh.episode(table.id)


def test_a_commitment_leaves_those_before_it_alone(table):
    """Its work stays the same few statements: no record, and of the challenges the last one."""
    from sqlalchemy import event

    table.start()
    for number in range(3):
        table.challenge("cat", f"earlier {number}")
    asked = []
    event.listen(
        table.store._engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: asked.append(statement),
    )
    table.challenge("cat", "evidence")
    assert not any("record_json" in statement for statement in asked)
    named = [statement.split()[0] for statement in asked if "challenges " in statement]
    assert sorted(named) == ["INSERT", "SELECT"], asked
    with table.store.reading() as connection:
        last = max(queries.stream_events(connection), key=lambda it: it["seq"])
    (row,) = json.loads(last["rows_json"])["challenges"]
    assert (row["number"], row["event_seq"]) == (3, last["seq"])


def test_two_exchanges_see_each_others_challenges(table):
    """What one remembers is brought up to date by what another wrote, in any order."""
    table.start()
    other = Exchange(table.store, clock=table.clock)
    for number in range(3):
        table.challenge("cat", f"evidence {number}")
        assert other.episode(table.id) == table.episode
        mine, table.exchange = table.exchange, other
        table.challenge("dan", f"noise {number}")
        table.exchange = mine
        assert other.episode(table.id) == table.episode
    table.freeze()
    assert other.episode(table.id) == table.episode
    table.judge(0)
    fresh = Exchange(table.store, clock=table.clock)
    assert fresh.episode(table.id) == other.episode(table.id) == table.episode
    assert [c.number for c in table.episode.challenges] == list(range(6))
    assert verify_episode(fresh.record(table.id)).ok
    assert fresh.verify().ok


def test_a_challenge_that_was_rolled_back_is_not_remembered(table):
    """Another takes its number and its place in the chain, and that is what is read."""
    table.start()
    table.challenge("cat", "evidence")
    given = {"key": "gone", "commitment": sha("x"), "amount": 60_000, "least": 1}

    def write_and_fail():
        with table.exchange.move("commit", table.id, "dan") as move:
            move.find_earlier("gone", {}, subject=1)
            move.make(commit, account=move.account, **given)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert len(table.episode.challenges) == 1
    table.challenge("ann", "other")
    assert [c.account for c in table.episode.challenges] == ["user:cat:PLAY", "user:ann:PLAY"]
    assert table.exchange.verify().ok


def test_the_newest_episode_is_the_one_written_last(table):
    """Whatever a clock was held at in between, and when two fall on one moment."""
    from heretix.core.clock import ManualClock

    terms = table.episode.terms
    for at_ms in (5_000_000, 10, 10, 5_000_000, 0):
        workflow = Exchange(table.store, clock=ManualClock(at_ms))
        last = workflow.draft(terms)
        assert table.exchange.episodes(limit=1)[0].id == last


def test_the_secret_is_in_no_message(table):
    """A record of the store that ends up in a log doesn't show it."""
    with table.store.reading() as connection:
        secret = queries.select_episode(connection, table.id)["secret"]
        stored = table.exchange._episodes.load(connection, table.id)
    assert secret not in repr(stored)
    assert repr(bytes.fromhex(secret)) not in repr(stored)


def test_a_claim_may_hold_any_character(store):
    """NUL, quotes and emoji come back as they were."""
    claim = "tin ‘whiskers’ \x00 \U0001f9ea"
    table = Table(store, claim=claim)
    table.start()
    assert table.episode.terms.claim == claim
    assert table.exchange.episodes()[0].claim == claim


def test_the_times_of_transfers_follow_the_chain(table):
    """The clock is read by whoever has the turn."""
    table.ready()
    table.close()
    with table.store.reading() as connection:
        times = [row["at_ms"] for row in queries.stream_transfers(connection)]
    assert times == sorted(times)


def test_a_reveal_is_repeated_with_its_own_nonce_only(table):
    """Once shown, the same words again are the same reveal; another nonce is a wrong one."""
    table.start()
    nonce = nonce_of("cat", "e")
    commitment = evidence_commitment(nonce, sha("e"), Direction.UP, "user:cat:PLAY")
    table.exchange.commit(table.id, "cat", commitment=commitment, amount=5_000, key="c")
    table.at(10_500)
    shown = table.reveal(0, "cat", nonce, sha("e"))
    assert table.reveal(0, "cat", nonce, sha("e")) == shown
    other = nonce_of("cat", "x")
    assert status(lambda: table.reveal(0, "cat", other, sha("e"))) == "wrong_reveal"


def test_the_typical_rate_is_that_of_episodes_that_a_side_won(table):
    """The lower median; held, void and one-sided episodes have no rate, and none is made up."""
    exchange, rates = table.exchange, []
    assert exchange.typical_rate() is None
    for number, shift in enumerate(("0.4", "1.5", None, "0.9")):
        if number:
            table.clock.advance(1)
            begin = table.clock.now_ms() + 1_000
            times = {
                "challenge_from_ms": begin,
                "close_from_ms": begin + 7_000,
                "close_until_ms": begin + 9_000,
                "freeze_at_ms": begin + 10_000,
            }
            table.id = exchange.draft(make_terms(claim=f"claim {number}", **times))
        exchange.open(table.id)
        table.bet("ann", H, 5_000)
        if shift is not None:
            table.bet("bob", O, 3_000)
        terms = table.episode.terms
        table.at(terms.challenge_from_ms).begin_challenge(table.id)
        table.at(terms.freeze_at_ms).freeze(table.id)
        if shift is None:
            exchange.conclude_unmeasured(table.id)
        else:
            table.measure("first", shift=shift)
            table.measure("second", shift=shift)
        table.wait_out()
        table.close()
        outcome = exchange.snapshot(table.id).settlement.outcome
        rates += [outcome.tau_ppm] if outcome.winner else []
        middle = sorted(rates)[(len(rates) - 1) // 2]
        typical = exchange.typical_rate()
        assert (typical.rate_ppm, typical.episodes) == (middle, len(rates))
    assert len(rates) == 3
    assert len(set(rates)) == 3
