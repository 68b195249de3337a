"""Redoing an episode from its record alone: what is true passes, what was changed is named."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace

import pytest
from exchanging import H, O, Table
from playing import GATE_FAILED, make_measurement, sha

from heretix.core.canonical import decode, encode
from heretix.core.errors import RecordError
from heretix.economy.audit import FORMAT, verify_episode
from heretix.economy.episode.state import Episode, Ground
from heretix.economy.market import Side
from heretix.store import Store

pytestmark = pytest.mark.either


@pytest.fixture(scope="module")
def module_table(sqlite_template, tmp_path_factory):
    """An exchange on SQLite: what is audited is text, whatever it was kept in."""
    path = shutil.copy(sqlite_template, tmp_path_factory.mktemp("audit") / "heretix.sqlite")
    with Store.open(str(path)) as store:
        yield Table(store)


@pytest.fixture(scope="module")
def settled(module_table):
    """The record of an episode that had bets, late bets, challenges and a dispute."""
    table = module_table
    table.start()
    table.at(2_000)
    table.bet("ann", H, 5_000)
    table.bet("bob", O, 3_000)
    table.challenge("cat", "evidence")
    table.challenge("dan", "noise")
    table.at(10_000)
    table.bet("dan", O, 700)
    table.freeze()
    table.judge(0)
    table.judge(1, GATE_FAILED)
    table.measure("first")
    table.measure("second")
    table.exchange.dispute(
        table.id, "bob", ground=Ground.RECOMPUTATION_MISMATCH, bond=1_000, key="d"
    )
    again = make_measurement(table.episode.judges, shift="0.9")
    table.exchange.rule(table.id, ground_confirmed=True, measurements=(again, again))
    table.wait_out()
    table.close()
    return json.dumps(table.exchange.record(table.id))


@pytest.fixture
def record(settled):
    """A copy to change."""
    return json.loads(settled)


def test_a_settlement_can_be_redone_from_its_record(record):
    """Through JSON, and without a store."""
    audit = verify_episode(record)
    assert audit.breaches == ()
    assert audit.outcome.winner is Side.HERETIC
    assert audit.episode.state == "settled"


def test_an_episode_can_be_redone_at_every_stage(table):
    """Whatever has happened so far follows from the rules."""

    def check():
        audit = verify_episode(json.loads(json.dumps(table.exchange.record(table.id))))
        assert audit.breaches == ()
        return audit

    assert check().outcome is None
    table.start()
    check()
    table.at(2_000)
    table.bet("ann", H, 5_000)
    table.bet("bob", O, 3_000)
    table.challenge("cat", "evidence")
    table.challenge("dan", "evidence")
    check()
    table.at(10_000)
    table.bet("dan", O, 700)
    check()
    table.freeze()
    check()
    table.judge(0)
    check()
    table.judge(1)
    check()
    table.measure("first")
    check()
    table.measure("second")
    check()
    ground = Ground.ARTIFACT_FRAUD
    table.exchange.dispute(table.id, "dan", ground=ground, bond=1_000, key="d")
    check()
    down = make_measurement(table.episode.judges, shift="-0.8", p_up_ppm=10_000)
    table.exchange.rule(table.id, ground_confirmed=False, measurements=(down, down))
    check()
    table.wait_out()
    table.close()
    assert check().outcome.winner is O


def test_a_challenge_whose_bond_was_too_small_is_redone(table):
    """It passed and was given back whole, which its statement and the record both tell."""
    table.start()
    table.challenge("cat", "evidence", amount=20_000)
    table.challenge("dan", "more", amount=90_000)
    table.freeze()
    table.judge(0, belief_ppm=800_000)
    table.judge(1)
    record = table.exchange.record(table.id)
    assert [c["fate"] for c in record["episode"]["challenges"]] == ["short", "accepted"]
    assert verify_episode(record).breaches == ()
    record["episode"]["challenges"][0]["fate"] = "failed"
    assert {it.rule for it in verify_episode(record).breaches} == {"chain", "challenges"}


def test_a_void_episode_can_be_redone(table):
    """Everything went back, and the record shows why."""
    table.start()
    table.bet("ann", H, 5_000)
    table.freeze()
    table.exchange.conclude_unmeasured(table.id)
    table.wait_out()
    table.close()
    audit = verify_episode(table.exchange.record(table.id))
    assert audit.breaches == ()
    assert audit.outcome.void == "no_outside_stake"


def _of_group(record, group):
    return next(t for t in record["transfers"] if t["group"].startswith(group))


def _drop_last_transfer(record):
    record["transfers"].pop()


def _add_transfer(record):
    record["transfers"].append(copy.deepcopy(record["transfers"][-1]))


def _change_payout(record):
    _of_group(record, "settle:")["amount"] += 1


def _redirect_payout(record):
    _of_group(record, "settle:")["credit"] = "user:dan:PLAY"


def _change_stake(record):
    record["positions"][2]["stake"] += 1


def _change_shares(record):
    record["positions"][2]["shares"] += 1


def _change_side(record):
    record["positions"][2]["side"] = "orthodox"


def _drop_position(record):
    record["positions"].pop()


def _drop_all_positions(record):
    record["positions"].clear()


def _backdate_late_bet(record):
    record["positions"][-1]["at_ms"] = 1_500


def _postdate_last_bet(record):
    close = record["episode"]["terms"]["close_until_ms"]
    record["positions"][-1]["at_ms"] = close + 1


def _call_a_bet_the_houses(record):
    record["positions"][2]["house"] = True


def _change_terms(record):
    record["episode"]["terms"]["parameters"]["fee_ppm"] = 0


def _change_terms_with_their_hash(record):
    changed = decode(Episode, record["episode"])
    terms = replace(changed.terms, parameters=replace(changed.terms.parameters, fee_ppm=0))
    record["episode"] |= encode(replace(changed, terms=terms, terms_hash=terms.hash()))


def _change_least(record):
    record["episode"]["challenges"][0]["least"] = 10**6


def _change_direction(record):
    record["episode"]["challenges"][0]["direction"] = "down"


def _change_time_of_challenge(record):
    record["episode"]["challenges"][0]["at_ms"] = 1_000


def _change_number_of_challenge(record):
    record["episode"]["challenges"][1]["number"] = 0


def _change_order_of_bets(record):
    stakes = [t for t in record["transfers"] if t["code"] == "stake"]
    stakes[0]["seq"], stakes[1]["seq"] = stakes[1]["seq"], stakes[0]["seq"]


def _change_end_of_measuring(record):
    record["episode"]["measured_ms"] = record["episode"]["frozen_ms"]


def _drop_end_of_measuring(record):
    record["episode"]["measured_ms"] = None


def _change_last_move(record):
    record["episode"]["clock_ms"] = record["episode"]["measured_ms"] - 1


def _change_told_c0(record):
    record["measurements"][0]["record"]["c0_ppm"] += 1


def _change_judge_of_the_first_measurement(record):
    told = next(m for m in record["measurements"] if m["stage"] == "first")
    told["record"]["readings"][0]["model"] = "friend"


def _change_time_of_dispute(record):
    record["episode"]["disputes"][0]["at_ms"] = record["episode"]["clock_ms"] + 1


def _change_line_of_a_bet(record):
    statement = next(s for s in record["statements"] if s["move"] == "stake")
    statement["lines"][0]["amount"] += 1


def _drop_statement_of_a_bet(record):
    record["statements"] = [s for s in record["statements"] if s["move"] != "stake"]


def _change_measurement(record):
    record["episode"]["measurements"][0]["p_up_ppm"] = 1


def _change_told_measurement(record):
    told = next(m for m in record["measurements"] if m["stage"] == "round:1")
    told["record"]["measurements"][0]["p_up_ppm"] = 1


def _drop_told_ruling(record):
    record["measurements"] = [m for m in record["measurements"] if m["stage"] != "round:1"]


def _change_gate(record):
    told = next(m for m in record["measurements"] if m["stage"] == "gate:1")
    told["record"]["evidence"]["gate"]["p_up_ppm"] = 990_000


def _drop_gate(record):
    record["measurements"] = [m for m in record["measurements"] if m["stage"] != "gate:0"]


def _change_step(record):
    record["episode"]["steps"][0]["c_to_ppm"] += 1


def _change_bundle(record):
    record["episode"]["challenges"][1]["bundle_sha256"] = sha("evidence")


def _change_nonce(record):
    record["episode"]["challenges"][0]["nonce"] = "00" * 32


def _drop_nonce(record):
    record["episode"]["challenges"][0]["nonce"] = None


def _change_seed(record):
    record["episode"]["seed"] = "00" * 32


def _change_close(record):
    record["episode"]["close_ms"] += 1


def _change_judges(record):
    record["episode"]["judges"].pop()


def _change_market(record):
    record["episode"]["market"]["money"] += 1


def _change_state(record):
    record["episode"]["state"] = "void"


def _change_upheld(record):
    record["episode"]["disputes"][0]["upheld"] = False


def _change_bond(record):
    record["episode"]["disputes"][0]["bond"] += 1


def _change_hash(record):
    record["transfers"][0]["hash"] = "0" * 64


def _change_body_hash(record):
    record["transfers"][0]["body_hash"] = "0" * 64


def _change_line(record):
    record["statements"][-1]["lines"][0]["reason"]["code"] = "budget_left"


def _change_currency(record):
    record["transfers"][0]["currency"] = "XC"


NEGATIVE = {
    "number": 0,
    "account": "house:PLAY",
    "side": "heretic",
    "stake": -5,
    "shares": 1,
    "at_ms": 0,
    "house": True,
}
_KINDS = ("_add_", "_backdate_", "_call_", "_change_", "_drop_", "_postdate_", "_redirect_")
TAMPERINGS = {
    name.removeprefix("_"): tamper
    for name, tamper in list(globals().items())
    if name.startswith(_KINDS)
}


@pytest.mark.parametrize("name", sorted(TAMPERINGS))
def test_whatever_was_changed_is_found(record, name):
    """One thing at a time: money, bets, terms, measurements, draws, words."""
    TAMPERINGS[name](record)
    audit = verify_episode(record)
    assert not audit.ok
    assert all(breach.detail for breach in audit.breaches)


def test_money_before_the_opening_is_found(module_table, record):
    """A draft has neither bets nor transfers."""
    draft = module_table.exchange.record(module_table.exchange.draft(module_table.episode.terms))
    assert verify_episode(draft).ok
    assert not verify_episode(draft | {"positions": record["positions"]}).ok


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": "other"}, f"`format` must be '{FORMAT}', got 'other'"),
        ({"positions": None}, "`positions` must be a list"),
        ({"transfers": {}}, "`transfers` must be a list"),
        ({"episode": None}, "`episode` must be an object"),
        ({"statements": [{}]}, "must be whole"),
        ({"measurements": ["x"]}, "must be whole"),
        (
            {"statements": 2 * [{"group": "g", "lines": []}]},
            "`statements` must tell each thing once",
        ),
        ({"statements": [{"group": 5, "lines": []}]}, "`statement 0` must be text"),
        ({"measurements": 2 * [{"stage": "c0", "record": {}}]}, "must tell each thing once"),
        ({"positions": [NEGATIVE]}, "`stake` must be above 0, got -5"),
    ],
)
def test_what_is_no_record_is_refused(record, change, complaint):
    """It isn't called a breach: there is nothing to redo."""
    with pytest.raises(RecordError) as caught:
        verify_episode(record | change)
    assert complaint in str(caught.value)
