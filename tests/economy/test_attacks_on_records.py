"""Attacks on what is written: changed terms, retries, crashes, stolen keys."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from playing import (
    GATE_PASSED,
    H,
    O,
    Play,
    denial,
    make_measurement,
    started,
)

from heretix.core.errors import RecordError
from heretix.economy.episode.moves import stake
from heretix.economy.episode.settlement import settle
from heretix.economy.episode.state import Denial, Parameters, State
from heretix.economy.ledger import Draft, Escrow, Group, Status


@pytest.mark.parametrize(
    "changes",
    [
        {"claim": "another claim"},
        {"c0_ppm": 400_000},
        {"judge_pool": tuple(f"friend-{n}" for n in range(11))},
        {"close_until_ms": 8_000},
        {"parameters": Parameters(fee_ppm=0)},
    ],
)
def test_attack_terms_changed_after_open(changes):
    """From the opening on every move is refused under other terms, and offline it shows."""
    play = started(("ann", H, 900), ("bob", O, 900))
    honest = play.episode
    play.episode = replace(honest, terms=replace(honest.terms, **changes))
    for result in (play.bet("cat", H, 5), play.commit("cat", "x"), play.freeze()):
        assert denial(result) is Denial.TERMS_CHANGED
    play.episode = honest
    play.freeze()
    play.measure()
    play.measure()
    measured = play.episode
    play.episode = replace(measured, terms=replace(measured.terms, **changes))
    assert denial(play.close()) is Denial.TERMS_CHANGED
    with pytest.raises(RecordError, match="must be those it opened with"):
        settle(play.episode, play.positions)


def test_attack_double_settle():
    """A second settlement is answered with the first, and another body is a conflict."""
    play = started(("ann", H, 90_000), ("bob", O, 90_000))
    play.freeze()
    play.measure()
    play.measure()
    measured = play.episode
    moved = play.close()
    chain, balances = play.ledger.transfers, dict(play.ledger.state.balances)
    assert play.ledger.post(moved.group).status is Status.ALREADY_APPLIED
    opposite = make_measurement(measured.judges, shift="-0.8", p_up_ppm=0)
    forged = settle(replace(measured, measurements=(opposite, opposite)), play.positions)
    # It follows from the episode alone, so that a second settlement can't have another.
    assert forged.group.id == moved.group.id == f"settle:{play.episode.id}"
    assert play.ledger.post(forged.group).status is Status.ID_CONFLICT
    assert denial(play.close()) is Denial.WRONG_STATE
    assert (play.ledger.transfers, dict(play.ledger.state.balances)) == (chain, balances)


def test_attack_retry():
    """The same bet sent three times is one bet in the ledger."""
    play = started()
    moved = play.bet("ann", H, 700)
    for _ in range(2):
        assert play.ledger.post(moved.group).status is Status.ALREADY_APPLIED
    assert play.profit("ann") == -700
    assert play.pot(Escrow.STAKE) == 10_700


def test_attack_key_squatting():
    """A client can't occupy the id under which an episode will settle."""
    play = started(("ann", H, 90_000), ("bob", O, 90_000))
    squat = stake(
        play.episode,
        key="settle:ep-1",
        account=play.user("cat"),
        side=H,
        amount=5,
        min_shares=0,
        at_ms=2_000,
    )
    play.take(squat)
    play.freeze()
    play.finish()
    assert play.episode.state is State.SETTLED


def test_attack_crash_between_any_two_writes():
    """Cut off after any group, the chain verifies and finishing gives the same last hash."""
    whole = started(("ann", H, 5_000), ("bob", O, 3_000))
    whole.challenge("cat", "study", amount=60_000)
    whole.freeze()
    whole.judge(0, GATE_PASSED, 650_000)
    whole.finish()
    final = whole.ledger.state.last_hash
    groups = []
    for transfer in whole.ledger.transfers:
        if transfer.group not in groups:
            groups.append(transfer.group)
    drafts = {name: [t for t in whole.ledger.transfers if t.group == name] for name in groups}

    def rebuilt(name):
        lines = tuple(
            Draft(
                id=t.id,
                debit=t.debit,
                credit=t.credit,
                amount=t.amount,
                currency=t.currency,
                code=t.code,
                episode=t.episode,
            )
            for t in drafts[name]
        )
        return Group(id=name, drafts=lines, closes="ep-1" if name.startswith("settle") else None)

    issued = sum(name.startswith("issue") for name in groups)
    for crash in range(issued, len(groups)):
        again = Play(users=("ann", "bob", "cat", "dan"))
        for name in groups[issued:crash]:
            assert again.ledger.post(rebuilt(name)).status is Status.APPLIED
        # After the restart nobody knows how far it got: everything is sent once more.
        for name in groups:
            again.ledger.post(rebuilt(name))
        assert again.ledger.state.last_hash == final
        assert again.ledger.transfers == whole.ledger.transfers


def test_attack_replaying_the_settlement_offline():
    """The same record always gives the same transfers, in whatever order it is worked out."""
    rng = random.Random(11)
    play = started(
        *((name, rng.choice((H, O)), rng.randrange(1, 9_999)) for name in ["ann", "bob"] * 5)
    )
    play.freeze()
    moved = play.finish()
    assert settle(play.episode, play.positions).group == moved.group
