"""An episode's life: its states, commitments, freeze, measurements, disputes and settlement."""

from __future__ import annotations

import itertools

import pytest
from playing import (
    GATE_FAILED,
    GATE_PASSED,
    GATE_PASSED_DOWN,
    SEED,
    H,
    O,
    Play,
    denial,
    make_measurement,
    make_terms,
    sha,
)

from heretix.core.errors import ConfigError
from heretix.economy.episode.challenges import draw_close, find_failure, reveal
from heretix.economy.episode.moves import measure
from heretix.economy.episode.settlement import VoidReason, summarize, summarize_accounts
from heretix.economy.episode.state import (
    HOUR_MS,
    TRANSITIONS,
    Denial,
    Direction,
    Fate,
    Moved,
    State,
)
from heretix.economy.ledger import AccountKind, Escrow, Status
from heretix.economy.market import Side
from heretix.economy.rewards import budget
from heretix.economy.sentences import sentence

CLOSE = draw_close(SEED, "ep-1", from_ms=8_000, until_ms=10_000)


def test_the_states_are_those_of_the_specification():
    """draft → open → challenge → frozen → measured → (disputed) → settled | void."""
    allowed = {(a, b) for a, b in itertools.product(State, State) if b in TRANSITIONS[a]}
    line = [State.DRAFT, State.OPEN, State.CHALLENGE, State.FROZEN, State.MEASURED]
    ends = itertools.product([State.MEASURED, State.DISPUTED], [State.SETTLED, State.VOID])
    assert allowed == {*itertools.pairwise(line), (State.MEASURED, State.DISPUTED), *ends}
    assert set(TRANSITIONS) == set(State)


def moves(play):
    """Every move there is, by name."""
    return {
        "open": play.open,
        "begin": play.begin,
        "bet": lambda: play.bet("ann", H, 10),
        "commit": lambda: play.commit("ann", "x"),
        "reveal": lambda: take_reveal(play),
        "freeze": play.freeze,
        "judge": lambda: play.judge(0),
        "measure": play.measure,
        "conclude": play.conclude,
        "dispute": lambda: play.dispute("ann"),
        "rule": play.rule,
        "close": play.close,
    }


def take_reveal(play):
    return play.take(
        reveal(
            play.episode,
            number=0,
            account=play.user("ann"),
            nonce=SEED,
            bundle_sha256=sha("x"),
            direction=Direction.UP,
            at_ms=0,
        )
    )


ALLOWED = {
    State.DRAFT: {"open"},
    State.OPEN: {"begin", "bet"},
    State.CHALLENGE: {"bet", "commit", "reveal", "freeze"},
    State.FROZEN: {"judge", "measure", "conclude"},
    State.MEASURED: {"dispute", "close"},
    State.DISPUTED: {"dispute", "rule", "close"},
    State.SETTLED: set(),
    State.VOID: set(),
}


def in_state(state):
    """An episode brought to a state by its own moves."""
    play = Play()
    steps = {
        State.OPEN: [play.open],
        State.CHALLENGE: [play.begin],
        State.FROZEN: [
            lambda: play.bet("ann", H, 900),
            lambda: play.bet("bob", O, 900),
            play.freeze,
        ],
        State.MEASURED: [play.measure, play.measure],
        State.DISPUTED: [lambda: play.dispute("cat")],
        State.SETTLED: [play.rule, play.close],
    }
    if state is State.VOID:
        play.start()
        play.freeze()
        play.conclude()
        play.close()
        return play
    for target in list(State)[1 : list(State).index(state) + 1]:
        for step in steps[target]:
            assert isinstance(step(), Moved)
    return play


@pytest.mark.parametrize("state", State)
def test_a_move_out_of_its_state_is_refused(state):
    """In each state, exactly the moves that belong to it get past the first question."""
    past = set()
    for name in ALLOWED[State.DRAFT] | set(moves(Play())):
        play = in_state(state)
        assert play.episode.state is state
        result = moves(play)[name]()
        if isinstance(result, Moved) or result.denial is not Denial.WRONG_STATE:
            past.add(name)
    assert past == ALLOWED[state]


def test_opening_escrows_the_seed_and_the_budget():
    """The house's stake and the most that rewards can come to are set aside."""
    play = Play()
    play.open()
    assert play.pot(Escrow.STAKE) == 10_000
    assert play.pot(Escrow.BUDGET) == budget(100_000, 500_000) == 63_716
    assert play.episode.terms_hash == play.terms.hash()
    assert [p.house for p in play.positions] == [True, True]


def test_an_episode_is_not_opened_when_it_should_have_begun():
    """The seed must lie before every close that could be drawn."""
    assert denial(Play().open(at_ms=1_001)) is Denial.TOO_LATE


def test_time_guards_each_phase(play):
    """Too early and too late are refused, and a clock that runs backwards doesn't help."""
    fresh = Play()
    fresh.open()
    assert denial(fresh.begin(at_ms=999)) is Denial.TOO_EARLY
    assert denial(play.freeze(at_ms=10_999)) is Denial.TOO_EARLY
    assert isinstance(play.bet("ann", H, 10, at_ms=10_000), Moved)
    assert denial(play.bet("ann", H, 10, at_ms=10_001)) is Denial.TOO_LATE
    assert denial(play.commit("ann", "x", at_ms=10_001)) is Denial.TOO_LATE
    play.bet("ann", H, 10, at_ms=0)
    assert play.positions[-1].at_ms == 10_000
    play.commit("ann", "x", at_ms=10_000)
    assert denial(play.reveal(0, at_ms=11_001)) is Denial.TOO_LATE


def test_a_bet_needs_its_shares_and_its_money(play):
    """A price that moved, or an empty purse, leaves everything as it was."""
    before = (play.episode, len(play.ledger.transfers))
    assert denial(play.bet("ann", H, 100, min_shares=10**12)) is Denial.BET_REFUSED
    assert denial(play.bet("ann", H, 0)) is Denial.BET_REFUSED
    with pytest.raises(AssertionError, match="INSUFFICIENT_FUNDS"):
        play.bet("ann", H, 10**9)
    assert (play.episode, len(play.ledger.transfers)) == before


def test_stakes_after_the_drawn_close_are_refunded_exactly(play):
    """The market that is settled is the one at the close, to the last share."""
    play.bet("cat", H, 777, at_ms=CLOSE)
    at_close = play.episode.market
    play.commit("cat", "just in time", at_ms=CLOSE)
    play.bet("dan", O, 5_555, at_ms=CLOSE + 1)
    play.commit("dan", "late", at_ms=CLOSE + 1)
    assert play.profit("dan") == -6_555
    play.freeze()
    assert play.profit("dan") == 0
    assert play.episode.close_ms == CLOSE
    assert play.episode.market == at_close
    assert [c.fate for c in play.episode.challenges] == [Fate.COMMITTED, Fate.LATE]
    assert play.profit("cat") == -1_777


def test_the_freeze_needs_the_committed_seed(play):
    """Nobody can choose another close or other judges afterwards."""
    assert denial(play.freeze(seed=bytes(32))) is Denial.WRONG_SEED
    assert isinstance(play.freeze(), Moved)
    assert len(play.episode.judges) == 5
    assert not set(play.episode.judges) & set(play.terms.models)


def test_models_of_the_lens_never_judge():
    """A model that took part is taken out of the pool before the draw."""
    pool = tuple(f"judge-{n:02d}" for n in range(12))
    play = Play(make_terms(models=pool[:1], judge_pool=pool))
    play.start()
    play.freeze()
    assert set(play.episode.judges) <= set(pool[1:])
    # The panel of a dispute is 2J+1.
    with pytest.raises(ConfigError, match="must hold 11 models that take no part"):
        make_terms(models=pool[:2], judge_pool=pool)
    with pytest.raises(ConfigError, match="at most 5 counted for each provider"):
        make_terms(judge_pool=(*(f"big:m{n}" for n in range(20)), *pool[:5]))


def test_a_reveal_must_match_its_commitment(play):
    """Another bundle, nonce or account is refused, and so is a second reveal."""
    play.commit("cat", "study")
    account, nonce, bundle, way = play.nonces[0]
    options = {"account": account, "nonce": nonce, "bundle_sha256": bundle, "direction": way}
    options["at_ms"] = 10_500
    for wrong in (
        {"bundle_sha256": sha("other")},
        {"nonce": bytes(32)},
        {"account": play.user("dan")},
        {"direction": Direction.DOWN},
    ):
        assert denial(reveal(play.episode, number=0, **(options | wrong))) is Denial.WRONG_REVEAL
    assert denial(reveal(play.episode, number=1, **options)) is Denial.UNKNOWN_CHALLENGE
    assert isinstance(play.reveal(0), Moved)
    assert denial(play.reveal(0)) is Denial.WRONG_REVEAL


def test_a_challenge_must_stake_enough_and_be_new(play):
    """Below the minimum, or the same commitment again, is refused."""
    assert denial(play.commit("cat", "x", amount=999, min_stake=1_000)) is Denial.STAKE_TOO_SMALL
    assert denial(play.commit("cat", "x", amount=0, min_stake=0)) is Denial.STAKE_TOO_SMALL
    assert isinstance(play.commit("cat", "x"), Moved)
    assert denial(play.commit("cat", "x")) is Denial.COMMITMENT_TAKEN


def test_a_failed_challenge_forfeits_the_least_stake_alone(play):
    """⌈30%⌉ of it to operations, the rest to the fund; what was staked beyond comes back."""
    play.challenge("cat", "noise", amount=9_000, min_stake=1_001)
    play.freeze()
    fund = play.ledger.balance(play.house(AccountKind.EPC_FUND))
    moved = play.judge(0, GATE_FAILED)
    assert [line.amount for line in moved.group.lines] == [301, 700, 7_999]
    assert play.ledger.balance(play.house(AccountKind.OPERATIONS)) == 301
    assert play.ledger.balance(play.house(AccountKind.EPC_FUND)) == fund + 700
    assert play.profit("cat") == -1_001
    assert (play.profit("ann"), play.profit("bob")) == (-5_000, -3_000)
    assert play.pot(Escrow.CHALLENGE) == 0


def test_an_accepted_challenge_moves_the_path_and_is_bonded(play):
    """Its stake becomes the bond of the whole move."""
    play.challenge("cat", "study", amount=90_000)
    play.challenge("dan", "reply", amount=91_000, direction=Direction.DOWN)
    play.freeze()
    play.judge(0, GATE_PASSED, 700_000)
    play.judge(1, GATE_PASSED_DOWN, 450_000)
    assert [(s.c_from_ppm, s.c_to_ppm) for s in play.episode.steps] == [
        (500_000, 700_000),
        (700_000, 450_000),
    ]
    assert play.pot(Escrow.BOND) == 181_000
    assert play.episode.belief_ppm == 450_000


def test_a_stake_that_does_not_cover_the_move_comes_back_whole(play):
    """Nobody goes half of the way: the rest of it would be paid to whoever comes next."""
    play.challenge("cat", "study", amount=20_000)
    play.challenge("dan", "the same, found by another", amount=90_000)
    play.freeze()
    moved = play.judge(0, GATE_PASSED, 800_000)
    assert play.episode.challenges[0].fate is Fate.SHORT
    assert play.profit("cat") == 0
    assert "had to be 902.43, it was 200.00" in sentence(moved.group.lines[0].reason)
    assert play.episode.steps == ()
    play.judge(1, GATE_PASSED, 700_000)
    assert play.episode.belief_ppm == 700_000


def test_the_path_moves_only_the_way_that_was_declared(play):
    """A lens that stands below the path can't make evidence for up move it down."""
    play.challenge("cat", "study", amount=90_000)
    play.challenge("dan", "more", amount=90_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 700_000)
    play.judge(1, GATE_PASSED, 650_000)
    assert play.episode.steps[1].c_to_ppm == play.episode.steps[1].c_from_ppm == 700_000


def test_challenges_are_judged_in_the_order_of_their_commitments(play):
    """The later one has to wait, and nothing is measured before all are judged."""
    play.commit("cat", "first")
    play.challenge("dan", "second")
    play.freeze()
    assert denial(play.judge(1)) is Denial.OUT_OF_ORDER
    assert denial(play.measure()) is Denial.OUT_OF_ORDER
    assert denial(play.conclude()) is Denial.OUT_OF_ORDER
    assert denial(play.judge(7)) is Denial.UNKNOWN_CHALLENGE
    play.judge(0, None)
    assert play.episode.challenges[0].fate is Fate.FAILED
    play.judge(1)
    assert denial(play.judge(1)) is Denial.OUT_OF_ORDER


def test_evidence_that_cannot_be_measured_fails(play):
    """Revealed, but without a reading: the attempt is charged."""
    play.challenge("cat", "blank")
    play.freeze()
    moved = play.judge(0, None)
    assert "could not be measured" in sentence(moved.group.lines[0].reason)


def test_only_drawn_judges_can_measure(play):
    """A reading by anyone else is refused."""
    play.freeze()
    foreign = make_measurement(("gpt-5",))
    result = measure(play.episode, measurement=foreign, at_ms=11_000)
    assert denial(result) is Denial.WRONG_JUDGES


def test_the_second_measurement_waits_for_the_durability_window(play):
    """Bonds stay locked until then."""
    play.freeze()
    play.measure(at_ms=11_000)
    week = 7 * 24 * HOUR_MS
    assert denial(play.measure(at_ms=11_000 + week - 1)) is Denial.TOO_EARLY
    assert play.episode.state is State.FROZEN
    play.measure(at_ms=11_000 + week)
    assert play.episode.state is State.MEASURED


def test_a_settlement_pays_stakes_rewards_and_fees(play):
    """Every line of a whole episode, worked out from its parts."""
    play.challenge("cat", "study", amount=60_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    moved = play.finish()
    result = moved.settlement
    assert play.episode.state is State.SETTLED
    assert result.outcome.winner is Side.HERETIC
    assert result.outcome.q_ppm == 689_974
    ann = next(line for line in result.market.lines if line.position.account == play.user("ann"))
    assert play.profit("ann") == ann.gain - ann.fee > 0
    assert play.profit("bob") == -result.market.lines[3].paid < 0
    assert play.profit("cat") == result.rewards.rewards[0].amount > 0
    assert all(play.pot(pot) == 0 for pot in Escrow)
    fees = result.market.fees
    assert play.ledger.balance(play.house(AccountKind.PLATFORM)) == fees // 2
    assert [line.transfer for line in moved.group.lines] == [t.id for t in moved.group.drafts]


def test_every_settled_line_is_explained(play):
    """A user reads what was staked, what happened and what comes back."""
    play.challenge("cat", "study", amount=60_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    moved = play.finish()
    lines = {line.account: sentence(line.reason) for line in moved.group.lines}
    earned = moved.settlement.rewards.rewards[0].amount
    assert lines[play.user("ann")].startswith("bet 2: 50.00 on heretic; won at a rate of")
    assert lines[play.user("bob")].startswith("bet 3: 30.00 on orthodox; lost at a rate of")
    towards = f"step 0 moved towards the durable belief by {earned / 100:,.2f}"
    assert lines[play.user("cat")] == towards


def shortly(play, moved):
    """The episode in short, by code; what accounts came to, as sentences."""
    found = summarize(play.episode, moved.settlement)
    own = [t for t in play.ledger.transfers if t.episode == play.episode.id]
    came = summarize_accounts(own)
    return {line.code: sentence(line) for line in found}, came


def test_an_episode_is_told_in_short(play):
    """The path, q₁, q₂, q, the rate with its distance, and who came to what by what."""
    play.challenge("cat", "study", amount=60_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    play.measure(shift="1.2")
    play.measure(shift="0.8")
    moved = play.close()
    said, came = shortly(play, moved)
    market, outcome = moved.settlement.market, moved.settlement.outcome
    assert said["summary_start"] == "The belief was c₀ = 50.0000% when the episode opened."
    assert "user:cat:PLAY: accepted evidence moved" in said["summary_step"]
    assert "from 50.0000% to 65.0000%" in said["summary_step"]
    assert said["summary_first"].startswith("q₁ = 76.8525% at the freeze")
    assert said["summary_second"].startswith("q₂ = 68.9974% after the durability window, from 5 ")
    assert "q = 68.9974%, the one of q₁ and q₂ that is nearer to c₀" in said["summary_durable"]
    assert "P(up) was at least 97.5% both times" in said["summary_up"]
    assert f"KL({outcome.nearest_ppm / 1e4:.4f}%‖50.0000%) = 0.030" in said["summary_rate"]
    assert f"= {outcome.tau_ppm / 1e4:.4f}%".rstrip("0%") in said["summary_rate"]
    gained = sum(line.gain for line in market.lines)
    assert f"gained {gained / 100:.2f} of it" in said["summary_market"]
    assert f"Winners paid {market.fees / 100:.2f}" in said["summary_fees"]
    assert f"{moved.settlement.rewards.budget_left / 100:.2f} went back" in said["summary_budget"]
    total = {line.parameters["account"]: line.parameters for line in came}
    for name in ("ann", "bob", "cat"):
        assert total[play.user(name)]["total"] == play.profit(name)
    assert total[play.user("ann")]["bets"] == play.profit("ann")
    assert total[play.user("cat")]["evidence"] == play.profit("cat")
    assert sum(line["total"] for line in total.values()) == 0
    assert not any(account.startswith("escrow:") for account in total)
    gained = f"{play.profit('cat') / 100:,.2f}"
    assert sentence(next(one for one in came if "cat" in str(one))) == (
        f"user:cat:PLAY came to +{gained}: 0.00 by bets, +{gained} by evidence, 0.00 by disputes."
    )


@pytest.mark.parametrize(
    ("first", "second", "codes"),
    [
        ({"shift": "0.4", "p_up_ppm": 900_000}, {}, {"summary_durable", "summary_held"}),
        ({"shift": "0.4"}, {"shift": "-0.4"}, {"summary_undone", "summary_up"}),
        (
            {"shift": "-0.4", "p_up_ppm": 10_000},
            {"shift": "-0.4", "p_up_ppm": 10_000},
            {"summary_durable", "summary_down", "summary_rate"},
        ),
    ],
    ids=["held", "undone", "down"],
)
def test_each_end_of_an_episode_has_its_words(play, first, second, codes):
    """Held, undone and lost to orthodox are told as what they are; a rate only where one is."""
    play.freeze()
    play.measure(**first)
    play.measure(**second)
    said, _ = shortly(play, play.close())
    assert codes <= said.keys()
    assert "summary_no_step" in said
    assert ("summary_rate" in said) == ("summary_held" not in said)


def test_a_void_episode_is_told_in_short(play):
    """Nothing was measured that counts, so no q is told of."""
    play.freeze()
    play.measure(p_up_ppm=None)
    said, came = shortly(play, play.close())
    assert said["summary_void"] == "Void (no estimate): everything came back whole."
    assert {"summary_first", "summary_budget"}.isdisjoint(said)
    assert {line.parameters["total"] for line in came} == {0}


def test_a_market_that_is_void_alone_is_told_in_short():
    """Evidence is judged and paid where nobody bet on one side, and both is said."""
    play = Play()
    play.start()
    play.challenge("cat", "study", amount=60_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    said, _ = shortly(play, play.finish())
    assert {"summary_one_sided", "summary_up", "summary_budget"} <= said.keys()
    assert {"summary_rate", "summary_market"}.isdisjoint(said)


def test_a_clawback_comes_out_of_the_bond(play):
    """A step away from the durable belief pays into the budget that others earn from."""
    play.challenge("cat", "hype", amount=90_000)
    play.challenge("dan", "reply", amount=200_000, direction=Direction.DOWN)
    play.freeze()
    play.judge(0, GATE_PASSED, 700_000)
    play.judge(1, GATE_PASSED_DOWN, 400_000)
    moved = play.finish(shift="-0.4", p_up_ppm=10_000, margin="0.1")
    hype, reply = moved.settlement.rewards.rewards
    assert hype.amount < 0 < reply.amount
    assert play.profit("cat") == hype.amount
    assert play.profit("dan") == reply.amount
    total = hype.amount + reply.amount
    assert moved.settlement.rewards.budget_left == 63_716 - total


def test_a_held_episode_gives_stakes_back_and_still_pays_rewards(play):
    """No side won the market; what evidence did to the belief is paid all the same."""
    play.challenge("cat", "study", amount=60_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 600_000)
    moved = play.finish(shift="0.4", p_up_ppm=900_000)
    assert moved.settlement.outcome.held
    assert play.episode.state is State.SETTLED
    assert play.profit("ann", "bob") == 0
    assert play.profit("cat") > 0


def test_a_void_episode_gives_everything_back(play):
    """Stakes and bonds come back whole; the attempt that failed stays charged."""
    play.challenge("cat", "study", amount=60_000)
    play.challenge("dan", "noise", amount=1_000)
    play.freeze()
    play.judge(0, GATE_PASSED, 650_000)
    play.judge(1, GATE_FAILED)
    paid = play.profit("dan")
    play.measure(p_up_ppm=None)
    assert play.episode.state is State.MEASURED
    moved = play.close()
    assert moved.settlement.outcome.void is VoidReason.NO_ESTIMATE
    assert play.episode.state is State.VOID
    assert play.profit("cat") == 0
    assert play.profit("dan") == paid == -1_000
    assert play.profit("ann", "bob") == 0
    assert all("comes back whole" in sentence(line.reason) for line in moved.group.lines)


def test_without_outside_stakes_and_evidence_an_episode_is_void_unmeasured():
    """One-sided money has nothing to win; two-sided money, or evidence, must be measured."""
    play = Play()
    play.start()
    play.bet("ann", H, 500)
    play.bet("bob", O, 500, at_ms=10_000)
    play.freeze()
    assert play.conclude().episode.state is State.MEASURED
    assert play.close().settlement.outcome.void is VoidReason.NO_OUTSIDE_STAKE
    assert play.profit("ann", "bob") == 0
    both = in_state(State.FROZEN)
    assert denial(both.conclude()) is Denial.NOT_VOID


def test_a_duplicate_is_known_by_its_bundle(play):
    """An unrevealed challenge is no precedent."""
    play.commit("ann", "hidden")
    play.challenge("cat", "study")
    play.challenge("dan", "study")
    play.freeze()
    first, second, third = play.episode.challenges
    assert find_failure(play.episode, second) is None
    assert find_failure(play.episode, third).code == "same_evidence"
    assert first.bundle_sha256 is None


def test_settling_again_is_the_same_group(play):
    """A retry of the settlement is answered by the ledger with the first result."""
    play.freeze()
    play.measure()
    play.measure()
    before = play.episode
    moved = play.close()
    play.episode = before
    again = play.close()
    assert again.group == moved.group
    assert play.ledger.post(moved.group).status is Status.ALREADY_APPLIED
