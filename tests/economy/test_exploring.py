"""The exploration track on a store: credits from measurements, decay, standing, the feed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from exchanging import Table
from panel_bench import CLAIM, PAPER, REPLY, bundle_of
from playing import SEED, make_terms
from sqlalchemy import event, insert

from heretix.config import RunConfig
from heretix.core.clock import ManualClock
from heretix.core.errors import RecordError, UsageError
from heretix.core.settings import Settings
from heretix.economy.episode.state import draft_episode
from heretix.economy.exchange import EpisodeRepository, Exchange, LedgerTransaction, claim_id_of
from heretix.economy.exploration import CreditRules, NoCredit
from heretix.economy.exploration_service import DAY_MS, ExplorationService
from heretix.economy.ledger import user_account
from heretix.evidence.bundle import dump_bundle
from heretix.measurement.service import prepare
from heretix.store import Store
from heretix.store.bundles import save_bundle
from heretix.store.schema import reputation_events, results

pytestmark = pytest.mark.either

MONDAY = 20_003 * DAY_MS
"""The first day of a week, as weeks are counted from 1970."""
MOVED = "sim:moved?sel=-2"


@pytest.fixture
def store(store_url):
    with Store.open(store_url) as store:
        yield store


@pytest.fixture
def clock():
    return ManualClock(MONDAY)


def measured(store, *, claim=CLAIM, model=MOVED, **size):
    """Measure a claim's raw prior and what two documents make of it."""
    bundle = bundle_of(PAPER, REPLY, claim=claim)
    store.write(save_bundle, bundle.bundle_id, claim, "SEL", dump_bundle(bundle))
    config = RunConfig.parse(
        {"models": (model,), "K": 16, "T": 16, "B": 500, "lenses": ("RPL", "SEL"), **size}
    )
    request = prepare(config, Settings(), claims=[claim], bundles={(claim, "SEL"): bundle})
    asyncio.run(request.run(store))


def test_a_stored_finding_earns_what_its_intervals_are_apart(store, clock):
    """Credits follow from the two records, and are on the ledger."""
    measured(store)
    track = ExplorationService(Exchange(store, clock=clock))
    credited = track.credit("ada", CLAIM, simulated=True)
    assert credited.finding.lens == "SEL"
    assert credited.finding.evidence.hi_ppm < credited.finding.prior.lo_ppm
    assert credited.crediting.reason is None
    assert credited.balance == credited.crediting.amount > 0
    standing = track.standing("ada")
    assert (standing.credits, standing.granted) == (credited.balance, credited.balance)


def test_a_claim_is_credited_once_whoever_asks(store, clock):
    """Another person, another model or another spelling of the claim earns nothing more."""
    measured(store)
    measured(store, model="sim:other?sel=-2.5")
    shouted = CLAIM.upper().rstrip(".") + " ."
    measured(store, claim=shouted)
    track = ExplorationService(Exchange(store, clock=clock))
    assert track.credit("ada", CLAIM, model=MOVED, simulated=True).crediting.amount > 0
    for claim, model in ((CLAIM, "sim:other?sel=-2.5"), (shouted, MOVED)):
        again = track.credit("bob", claim, model=model, simulated=True)
        assert again.crediting.reason is NoCredit.CLAIM_CREDITED
        assert again.balance == 0


def test_overlapping_and_unstable_intervals_earn_nothing(store, clock):
    """What could be chance, or isn't steady, is no finding; the claim stays open to others."""
    measured(store, model="sim:still?sel=0")
    track = ExplorationService(Exchange(store, clock=clock))
    still = track.credit("ada", CLAIM, simulated=True)
    assert still.crediting.reason is NoCredit.INTERVALS_OVERLAP
    wild = "sim:wild?sel=-3&template_sd=2.5"
    measured(store, model=wild)
    unstable = track.credit("ada", CLAIM, model=wild, simulated=True)
    assert unstable.crediting.reason is NoCredit.UNSTABLE_LENS
    measured(store)
    assert track.credit("ada", CLAIM, model=MOVED, simulated=True).crediting.amount > 0


def test_credits_of_a_week_are_capped(store, clock):
    """The cap holds over claims; the next week begins anew."""
    claims = [f"{CLAIM[:-1]}, case {n}." for n in range(3)]
    for claim in claims:
        measured(store, claim=claim)
    track = ExplorationService(Exchange(store, clock=clock), credits_=CreditRules(weekly_cap=500))
    amounts = []
    for claim in claims[:2]:
        amounts.append(track.credit("ada", claim, simulated=True).crediting)
    assert sum(crediting.amount for crediting in amounts) == 500
    assert amounts[1].reason is NoCredit.WEEKLY_CAP
    clock.advance(7 * DAY_MS)
    assert track.credit("ada", claims[2], simulated=True).crediting.amount > 0


def test_a_clock_held_earlier_opens_no_earlier_week(store, clock):
    """The cap is that of the week in which a person was credited last."""
    claims = [f"{CLAIM[:-1]}, case {n}." for n in range(2)]
    for claim in claims:
        measured(store, claim=claim)
    rules = CreditRules(weekly_cap=100)
    now = ExplorationService(Exchange(store, clock=clock), credits_=rules)
    assert now.credit("ada", claims[0], simulated=True).crediting.amount == 100
    earlier = ExplorationService(
        Exchange(store, clock=ManualClock(MONDAY - 7 * DAY_MS)), credits_=rules
    )
    assert earlier.credit("ada", claims[1], simulated=True).crediting.amount == 0


def test_one_persons_clock_holds_up_nobodys_decay(store, clock):
    """Neither a grant that lies ahead, nor one that came after a day was burnt."""
    claims = [f"{CLAIM[:-1]}, case {n}." for n in range(3)]
    for claim in claims:
        measured(store, claim=claim)
    track = ExplorationService(Exchange(store, clock=clock))
    ahead = ExplorationService(Exchange(store, clock=ManualClock(MONDAY + 400 * DAY_MS)))
    ahead.credit("ada", claims[0], simulated=True)
    track.credit("bob", claims[1], simulated=True)
    assert track.decay() == []
    clock.advance(90 * DAY_MS)
    assert [burn.person for burn in track.decay()] == ["bob"]
    late = ExplorationService(Exchange(store, clock=ManualClock(MONDAY + 30 * DAY_MS)))
    late.credit("bob", claims[2], simulated=True)
    assert track.decay() == []
    clock.advance(DAY_MS)
    assert [burn.person for burn in track.decay()] == ["bob"]


def test_decay_is_posted_as_burns_once_a_day(store, clock):
    """After one half-life half is left; burning daily or once comes to the same balance."""
    measured(store)
    track = ExplorationService(Exchange(store, clock=clock))
    granted = track.credit("ada", CLAIM, simulated=True).balance
    assert track.decay() == []
    clock.advance(45 * DAY_MS)
    (first,) = track.decay()
    assert first.amount > 0
    assert track.decay() == []
    clock.advance(45 * DAY_MS)
    track.decay()
    assert track.standing("ada").credits == granted // 2
    clock.advance(10_000 * DAY_MS)
    track.decay()
    assert track.standing("ada").credits == 0


def test_a_stake_counts_credits_as_they_are_worth_now(store, clock):
    """Nobody stakes less because decay wasn't posted yet; posting it changes nothing."""
    measured(store)
    track, exchange = ExplorationService(Exchange(store, clock=clock)), Exchange(store, clock=clock)
    exchange.ensure_house()
    episode = exchange.draft(make_terms())
    fresh = exchange.min_stake(episode, "ada")
    track.credit("ada", CLAIM, simulated=True)
    credited = exchange.min_stake(episode, "ada")
    clock.advance(90 * DAY_MS)
    later = exchange.min_stake(episode, "ada")
    assert credited < later < fresh
    track.decay()
    assert exchange.min_stake(episode, "ada") == later


def test_simulated_models_are_for_practice(store, clock):
    """Planted beliefs earn nothing unless somebody asks for practice."""
    measured(store)
    with pytest.raises(UsageError, match="--simulated"):
        ExplorationService(Exchange(store, clock=clock)).credit("ada", CLAIM)


def test_a_finding_must_be_named_and_be_there(store, clock):
    """Several findings must be told apart; without one there is nothing to credit."""
    track = ExplorationService(Exchange(store, clock=clock))
    with pytest.raises(RecordError, match="heretix lens"):
        track.credit("ada", CLAIM)
    measured(store)
    measured(store, model="sim:other?sel=-2")
    with pytest.raises(UsageError, match="name one"):
        track.credit("ada", CLAIM, simulated=True)
    with pytest.raises(RecordError):
        track.credit("ada", CLAIM, lens="HEL", simulated=True)
    with pytest.raises(UsageError, match="`name`"):
        track.credit("a:b", CLAIM)


def test_a_changed_record_earns_nothing(store, clock):
    """An interval that doesn't follow from its samples is found before it is paid for."""
    measured(store)
    with store.writing() as connection:
        for row in connection.execute(results.select()).mappings().all():
            record = json.loads(row["record_json"])
            record["aggregates"]["ci95"] = [0.01, 0.02]
            change = results.update().where(results.c.execution_id == row["execution_id"])
            connection.execute(change.values(record_json=json.dumps(record)))
    with pytest.raises(RecordError, match="must follow from its own samples"):
        ExplorationService(Exchange(store, clock=clock)).credit("ada", CLAIM, simulated=True)


def add_events(store, clock, *rows):
    """An episode, and what it says about people: (name, kind, number, passed, amount, at_ms)."""
    terms = make_terms()
    episode = replace(draft_episode("ep-1", terms), terms_hash=terms.hash())
    with store.writing() as connection:
        transaction = LedgerTransaction(connection, clock)
        EpisodeRepository().insert(transaction, episode, secret=SEED)
        for name in {row[0] for row in rows}:
            transaction.add_accounts([user_account(name, "PLAY")], person=name)
        for name, kind, number, passed, amount, at_ms in rows:
            event = {
                "episode_id": "ep-1",
                "kind": kind,
                "number": number,
                "account": user_account(name, "PLAY").id,
                "passed": passed,
                "amount": amount,
                "scale": None if amount is None else 100_000,
                "at_ms": at_ms,
            }
            connection.execute(insert(reputation_events), event)


def test_reputation_shrinks_and_fades_and_ranks(store, clock):
    """One reward counts an eleventh; half a year halves it; losses rank below nothing."""
    add_events(
        store,
        clock,
        ("ada", "attempt", 0, True, None, MONDAY),
        ("ada", "reward", 0, None, 110_000, MONDAY),
        ("bob", "attempt", 1, False, None, MONDAY),
        ("bob", "reward", 1, None, -55_000, MONDAY),
    )
    track = ExplorationService(Exchange(store, clock=clock))
    board = track.leaderboard()
    assert [standing.person for standing in board] == ["ada", "bob"]
    assert board[0].reputation_ppm == 100_000
    assert board[1].reputation_ppm < 0
    assert (board[0].passed, board[0].attempts) == (1, 1)
    assert board[0].failure_rate_ppm == 950_000
    assert track.leaderboard(limit=1) == board[:1]
    clock.advance(180 * DAY_MS)
    assert track.standing("ada").reputation_ppm == 50_000
    assert track.standing("nobody").reputation_ppm == 0


def test_a_leaderboard_that_is_kept_is_the_one_from_the_tables(store):
    """After every move, on the next day and under a clock that is held earlier."""
    table = Table(store)
    kept = ExplorationService(table.exchange)

    def check():
        board = kept.leaderboard(limit=None)
        assert board == ExplorationService(table.exchange).leaderboard(limit=None)
        assert all(kept.standing(standing.person) == standing for standing in board)
        return board

    assert check() == []
    table.ready()
    assert [standing.attempts for standing in check()] == [1, 1]
    table.close()
    rewarded = {standing.person: standing.reputation_ppm for standing in check()}
    measured(store)
    granted = kept.credit("ada", CLAIM, simulated=True).balance
    assert {s.person: s.credits for s in check()}["ada"] == granted > 0
    now_ms = table.clock.now_ms()
    for days in (1, 90, 400):
        table.at(now_ms + days * DAY_MS - 1)
        check()
        table.at(now_ms + days * DAY_MS)
        faded = {standing.person: standing.reputation_ppm for standing in check()}
        assert abs(faded["cat"]) < abs(rewarded["cat"])
    kept.decay()
    assert {s.person: s.credits for s in check()}["ada"] < granted
    table.exchange.clock = ManualClock(now_ms)
    assert {s.person: s.reputation_ppm for s in check()}["cat"] == rewarded["cat"]


def test_a_leaderboard_with_nothing_new_reads_one_row(store):
    """The end of the chain; a bet, which touches nobody's standing, adds the events since."""
    table = Table(store)
    kept = ExplorationService(table.exchange)
    table.ready()
    board = kept.leaderboard()
    assert len(board) == 2
    asked = []
    event.listen(
        store._engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: asked.append(statement),
    )

    def tables_read():
        asked.clear()
        assert kept.leaderboard() == board
        return [s.split("FROM ")[1].split()[0] for s in asked if s.startswith("SELECT")]

    assert tables_read() == ["chains"]
    table.exchange.issue("ann", 10, key="more")
    assert tables_read() == ["chains", "events"]
    assert tables_read() == ["chains"]


def test_claims_are_told_apart_by_their_words_alone():
    """Case, spaces and the last dot make no other claim; another word does."""
    assert claim_id_of(" Tin  whiskers grow. ") == claim_id_of("tin whiskers GROW")
    assert claim_id_of("Tin whiskers grow") != claim_id_of("Tin whiskers shrink")
