"""Settlement: what the judges found, who wins at what rate, and who is paid what.

A pure function of the record, so that anyone can redo it. Its group's id follows from the
episode's, so the ledger lets it happen once at most.
"""

from __future__ import annotations

import decimal
from collections import Counter, defaultdict
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import Record
from heretix.core.errors import RecordError, UsageError
from heretix.economy import ledger
from heretix.economy import rewards as scoring
from heretix.economy.ledger import PPM, AccountKind, Code, Escrow, Reason
from heretix.economy.market import MarketResult, MarketSettlement, Position, Side, settle_market
from heretix.economy.rewards import CONTEXT, require_finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heretix.economy.episode.state import Dispute, Episode, Parameters

MIN_JUDGES: Final = 3
"""With fewer, one judge at any value could move the median anywhere."""
PAYMENTS_AT_ONCE: Final = 500
"""Transfers of a settlement in one transaction: who waits for its end waits for no more of them.
Records of episodes are redone in the same parts, so this is a number of the rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeShift:
    """One hold-out judge, in log-odds, without and with the evidence."""

    model: str
    before: Decimal
    after: Decimal


class VoidReason(StrEnum):
    """Reason why an episode gives everything back, in order of precedence."""

    NO_OUTSIDE_STAKE = "no_outside_stake"
    """On one side there was nobody but the house, and no evidence to measure for."""
    CACHED_SAMPLE = "cached_sample"
    MODEL_CHANGED = "model_changed"
    LOW_COMPLIANCE = "low_compliance"
    MISSING_QUORUM = "missing_quorum"
    NO_ESTIMATE = "no_estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReading(Record):
    """One judge in one measurement: log-odds without and with the evidence."""

    model: str
    provider_model_ids: tuple[str, ...]
    before: Decimal | None
    after: Decimal | None
    attempted: int
    compliant: int
    from_cache: int

    def __post_init__(self) -> None:
        ledger.require_whole("attempted", self.attempted, least=1)
        ledger.require_whole("compliant", self.compliant, most=self.attempted)
        ledger.require_whole("from_cache", self.from_cache, most=self.attempted)
        for name, value in (("before", self.before), ("after", self.after)):
            if value is not None:
                require_finite(f"{self.model}.{name}", value)

    @property
    def shift(self) -> JudgeShift | None:
        if self.before is None or self.after is None:
            return None
        return JudgeShift(model=self.model, before=self.before, after=self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Record):
    """One judging measurement: the judges, and their paired difference taken together."""

    readings: tuple[JudgeReading, ...]
    p_up_ppm: int | None
    """Share of replicas in which the judges went up; None without an estimate."""
    shift_lo: Decimal | None
    shift_hi: Decimal | None
    """The 95% interval of the judges' median shift, in log-odds."""

    def __post_init__(self) -> None:
        if self.p_up_ppm is not None:
            ledger.require_ppm("p_up_ppm", self.p_up_ppm)
        for name, value in (("shift_lo", self.shift_lo), ("shift_hi", self.shift_hi)):
            if value is not None:
                require_finite(name, value)
        models = [reading.model for reading in self.readings]
        if len(set(models)) != len(models):
            raise UsageError("`readings` must hold each judge once, got one twice")

    @property
    def shifts(self) -> tuple[JudgeShift, ...]:
        return tuple(r.shift for r in self.readings if r.shift is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End of an episode. Held: no winner, no reason to void."""

    winner: Side | None
    tau_ppm: int
    q_ppm: int | None
    """The durable belief; None when void."""
    nearest_ppm: int | None
    """The end of its interval nearest to c₀, which sets the rate."""
    void: VoidReason | None
    one_sided: bool = False
    """True where only the house was on one side: the market alone is void."""
    moved: Side | None = None
    """The side that the judges showed to be right, whether or not there is a market to settle."""

    @property
    def held(self) -> bool:
        """Measured, and neither side could show that it was right."""
        return self.moved is None and self.void is None


# The durable belief q is what models that took no part came to believe, as a shift: where they
# started from doesn't matter.


def shift_belief(c0_ppm: int, shift: Decimal) -> int:
    """The belief that lies `shift` log-odds from c₀."""
    scoring.require_belief("c0", c0_ppm)
    return scoring.belief_at(CONTEXT.add(scoring.log_odds(c0_ppm), require_finite("shift", shift)))


def target_belief(c0_ppm: int, judges: Sequence[JudgeShift]) -> int:
    """Difference in differences: logit q = logit c₀ + median over judges of (after - before).

    A judge's constant leaning cancels; one judge at any value moves the median no further
    than the others' spread. Judges are held within [1%, 99%] first: nearer to certainty a hair
    of probability is a mile of log-odds.
    """
    if len(judges) < MIN_JUDGES:
        raise UsageError(
            f"`judges` must be at least {MIN_JUDGES}, got {len(judges)}; without a quorum the "
            "episode is void"
        )
    shifts = [
        CONTEXT.subtract(
            scoring.clip_log_odds(require_finite(f"{judge.model}.after", judge.after)),
            scoring.clip_log_odds(require_finite(f"{judge.model}.before", judge.before)),
        )
        for judge in judges
    ]
    return shift_belief(c0_ppm, scoring.median(shifts))


def durable_belief(c0_ppm: int, first_ppm: int, second_ppm: int) -> int:
    """q is the one of q₁ and q₂ nearer to c₀, and c₀ itself when they lie on different sides of it:
    what fades isn't paid."""
    low, high = sorted((first_ppm, second_ppm))
    return min(max(c0_ppm, low), high)


def is_one_sided(positions: Sequence[Position]) -> bool:
    """Tell whether on one side there is nobody but the house."""
    return {position.side for position in positions if not position.house} != set(Side)


def find_void_reason(
    measurements: Sequence[Measurement], *, parameters: Parameters
) -> VoidReason | None:
    """The first reason to void that the measurements so far give."""
    readings = [reading for measurement in measurements for reading in measurement.readings]
    served: dict[str, set[str]] = {}
    for reading in readings:
        served.setdefault(reading.model, set()).update(reading.provider_model_ids)
    low = [
        sum(reading.compliant for reading in m.readings) * PPM
        < sum(reading.attempted for reading in m.readings) * parameters.min_compliance_ppm
        for m in measurements
    ]
    found = {
        VoidReason.CACHED_SAMPLE: any(reading.from_cache for reading in readings),
        VoidReason.MODEL_CHANGED: any(len(ids) > 1 for ids in served.values()),
        VoidReason.LOW_COMPLIANCE: any(low),
        VoidReason.MISSING_QUORUM: any(len(m.shifts) < parameters.quorum for m in measurements),
        VoidReason.NO_ESTIMATE: any(
            None in (m.p_up_ppm, m.shift_lo, m.shift_hi) for m in measurements
        ),
    }
    return next((reason for reason in found if found[reason]), None)


def decide(
    c0_ppm: int,
    measurements: Sequence[Measurement],
    *,
    positions: Sequence[Position],
    parameters: Parameters,
) -> Outcome:
    """Heretic (Orthodox) wins if both measurements are sure that the judges went up (down)."""
    one_sided = is_one_sided(positions)
    void = find_void_reason(measurements, parameters=parameters)
    if void is None and one_sided and len(measurements) < 2:
        void = VoidReason.NO_OUTSIDE_STAKE
    if void is not None:
        return Outcome(winner=None, tau_ppm=0, q_ppm=None, nearest_ppm=None, void=void)
    if len(measurements) != 2:
        raise UsageError(
            f"`measurements` must be two, at the freeze and after the durability window, got "
            f"{len(measurements)}; measure again when the window has passed"
        )
    first, second = (target_belief(c0_ppm, found.shifts) for found in measurements)
    q_ppm = durable_belief(c0_ppm, first, second)
    sure = [found.p_up_ppm for found in measurements if found.p_up_ppm is not None]
    if min(sure) >= parameters.win_ppm:
        winner = Side.HERETIC
    elif max(sure) <= PPM - parameters.win_ppm:
        winner = Side.ORTHODOX
    else:
        return Outcome(
            winner=None,
            tau_ppm=0,
            q_ppm=q_ppm,
            nearest_ppm=None,
            void=None,
            one_sided=one_sided,
        )
    nearest = _nearest_end(c0_ppm, measurements, winner)
    rate = transfer_rate(nearest, c0_ppm, parameters.tau_max_ppm)
    return Outcome(
        winner=None if one_sided else winner,
        tau_ppm=0 if one_sided else rate,
        q_ppm=q_ppm,
        nearest_ppm=nearest,
        void=None,
        one_sided=one_sided,
        moved=winner,
    )


def transfer_rate(nearest_ppm: int, c0_ppm: int, tau_max_ppm: int) -> int:
    """τ = τ_max·min(1, KL(q‖c₀)/ln 2), in parts per million, rounded down."""
    nats = scoring.divergence(nearest_ppm, c0_ppm)
    share = min(CONTEXT.divide(nats, scoring.LN2), Decimal(1))
    rate = CONTEXT.multiply(Decimal(tau_max_ppm), share)
    return int(rate.to_integral_value(rounding=decimal.ROUND_FLOOR))


def _nearest_end(c0_ppm: int, measurements: Sequence[Measurement], winner: Side) -> int:
    """The end nearest to c₀ of either measurement's interval.

    An interval that reaches c₀, or lies on the loser's side of it, gives c₀ itself: rate 0.
    """
    up = winner is Side.HERETIC
    ends = [found.shift_lo if up else found.shift_hi for found in measurements]
    found = [shift_belief(c0_ppm, end) for end in ends if end is not None]
    return max(min(found), c0_ppm) if up else min(max(found), c0_ppm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of an episode in sums: told without going through its bets."""

    outcome: Outcome
    market: MarketResult
    rewards: scoring.RewardBook | None
    """None when void: then bonds and budget go back whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement(Result):
    """Group of transfers that pays an outcome, each line explained."""

    market: MarketSettlement
    group: ledger.Group


def require_terms(episode: Episode) -> None:
    """Refuse a record whose terms aren't those it opened with."""
    if not episode.terms_intact:
        raise RecordError(
            f"`terms` of episode {episode.id!r} must be those it opened with, "
            f"{episode.terms_hash}, got {episode.terms.hash()}; restore the record"
        )


def score_steps(episode: Episode, outcome: Outcome) -> scoring.RewardBook | None:
    """Work out what the steps of the credited path are paid; None when void."""
    if outcome.q_ppm is None:
        return None
    terms = episode.terms
    scale = terms.parameters.reward_scale
    return scoring.settle_rewards(
        episode.steps, scale=scale, c0_ppm=terms.c0_ppm, q_ppm=outcome.q_ppm
    )


def settle(episode: Episode, positions: Sequence[Position]) -> Settlement:
    """Work out a settlement. The same record always gives the same transfers."""
    parameters = episode.terms.parameters
    require_terms(episode)
    outcome, counted = episode.decide(positions), episode.select_positions(positions)
    market = settle_market(counted, outcome.winner, outcome.tau_ppm, fee_ppm=parameters.fee_ppm)
    rewards = score_steps(episode, outcome)
    statement = episode.statement(f"settle:{episode.id}")
    _pay_stakes(statement, outcome, market, parameters.platform_ppm)
    _pay_rewards(statement, episode, rewards)
    if episode.disputes:
        pay_bond(statement, episode.disputes[-1], overturned_by=None)
    group = statement.group(closes=True)
    assert group is not None, "the seed is always there to be given back"
    return Settlement(outcome=outcome, market=market, rewards=rewards, group=group)


def _pay_stakes(
    statement: ledger.Statement, outcome: Outcome, market: MarketSettlement, platform_ppm: int
) -> None:
    pot = statement.pot(Escrow.STAKE)
    code = Code.STAKE_REFUND if market.winner is None else Code.PAYOUT
    for line in market.lines:
        position = line.position
        told = {"number": position.number, "stake": position.stake, "side": position.side.value}
        ended = {**told, "rate_ppm": market.tau_ppm, "receives": line.receives}
        if outcome.void is not None or outcome.one_sided:
            void = outcome.void or VoidReason.NO_OUTSIDE_STAKE
            reason = Reason("bet_void", {**told, "void": void.value})
        elif line.won is None:
            reason = Reason("bet_held", told)
        elif not line.won:
            reason = Reason("bet_lost", {**ended, "paid": line.paid})
        else:
            won = {"gain": line.gain, "transfer": market.transfer, "fee": line.fee}
            reason = Reason("bet_won", {**ended, **won})
        statement.move(pot, position.account, line.receives, code, reason)
    fees, platform = market.fees, ledger.floor_part(market.fees, platform_ppm)
    for kind, amount, code, reason in (
        (AccountKind.PLATFORM, platform, Code.FEE, Reason.of("fee_platform", fees=fees)),
        (AccountKind.EPC_FUND, fees - platform, Code.FEE, Reason.of("fee_fund", fees=fees)),
        (AccountKind.ROUNDING, market.dust, Code.DUST, Reason("gains_dust")),
    ):
        statement.move(pot, statement.house(kind), amount, code, reason)


def pay_bond(
    statement: ledger.Statement, dispute: Dispute, *, overturned_by: Dispute | None
) -> None:
    """Pay out the bond of a dispute, once its successor or the end has shown whether it lasts.

    A dispute that was upheld has its bond back, and one that wasn't has lost it to operations, for
    the panel; but a successor that is upheld is paid with it either way.
    """
    to, code = statement.house(AccountKind.OPERATIONS), Code.DISPUTE_LOST
    reason = Reason.of("dispute_lost", round=dispute.round)
    if overturned_by is not None:
        to, code = overturned_by.account, Code.DISPUTE_RETURN
        reason = Reason.of("dispute_won", round=overturned_by.round, lost=dispute.round)
    elif dispute.upheld:
        to, code = dispute.account, Code.DISPUTE_RETURN
        reason = Reason.of("dispute_upheld", round=dispute.round)
    statement.move(statement.pot(Escrow.DISPUTE), to, dispute.bond, code, reason)


def _pay_rewards(
    statement: ledger.Statement, episode: Episode, rewards: scoring.RewardBook | None
) -> None:
    bonds, pot = statement.pot(Escrow.BOND), statement.pot(Escrow.BUDGET)
    fund = statement.house(AccountKind.EPC_FUND)
    if rewards is None:
        for step in episode.steps:
            reason = Reason.of("bond_void", number=step.number)
            statement.move(bonds, step.account, step.bond, Code.BOND_RETURN, reason)
        left = scoring.budget(episode.terms.parameters.reward_scale, episode.terms.c0_ppm)
        statement.move(pot, fund, left, Code.BUDGET_RETURN, Reason("budget_void"))
        return
    # What steps lost comes in before what steps earned goes out, so the pot never runs short.
    for item in rewards.rewards:
        reason = Reason.of("step_away", number=item.step.number)
        statement.move(bonds, pot, max(0, -item.amount), Code.CLAWBACK, reason)
    for item in rewards.rewards:
        step, lost = item.step, max(0, -item.amount)
        reason = Reason.of("bond_returned", number=step.number, bond=step.bond, lost=lost)
        statement.move(bonds, step.account, step.bond - lost, Code.BOND_RETURN, reason)
        reason = Reason.of("step_towards", number=step.number, amount=item.amount)
        statement.move(pot, step.account, max(0, item.amount), Code.REWARD, reason)
    statement.move(pot, fund, rewards.budget_left, Code.BUDGET_RETURN, Reason("budget_left"))


# An episode in short: the path, what the judges found, the rate, and who came to what by what.

_FROM_EVIDENCE: Final = frozenset(
    {
        Code.BUDGET,
        Code.BUDGET_RETURN,
        Code.CHALLENGE,
        Code.CHALLENGE_REFUND,
        Code.CHALLENGE_FEE,
        Code.BOND,
        Code.BOND_RETURN,
        Code.CLAWBACK,
        Code.REWARD,
    }
)
_FROM_DISPUTES: Final = frozenset({Code.DISPUTE, Code.DISPUTE_RETURN, Code.DISPUTE_LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Transfers of an episode with the same accounts and code, summed."""

    debit: str
    credit: str
    code: Code
    amount: int


def summarize(episode: Episode, settlement: Result) -> tuple[Reason, ...]:
    """Explain a settlement from its beginning: each number that it rests on, in the order in which
    one follows from another."""
    c0_ppm, outcome = episode.terms.c0_ppm, settlement.outcome
    said = [Reason.of("summary_start", c0_ppm=c0_ppm)]
    for step in episode.steps:
        path = {"number": step.number, "from_ppm": step.c_from_ppm, "to_ppm": step.c_to_ppm}
        said.append(Reason("summary_step", {"account": step.account, **path}))
    if not episode.steps:
        said.append(Reason("summary_no_step"))
    if outcome.void is not None:
        return (*said, Reason.of("summary_void", void=outcome.void.value))
    first, second = (target_belief(c0_ppm, found.shifts) for found in episode.measurements)
    for code, q_ppm, found in zip(
        ("summary_first", "summary_second"), (first, second), episode.measurements, strict=True
    ):
        p_up = {"p_up_ppm": found.p_up_ppm or 0}
        said.append(Reason(code, {"judges": len(found.shifts), "q_ppm": q_ppm, **p_up}))
    said += _summarize_outcome(episode, outcome, first, second)
    market, rewards = settlement.market, settlement.rewards
    if market.winner is not None:
        platform = ledger.floor_part(market.fees, episode.terms.parameters.platform_ppm)
        shared = {"given_up": market.given_up, "gained": market.gained, "dust": market.dust}
        fees = {"fees": market.fees, "platform": platform, "fund": market.fees - platform}
        said += [Reason("summary_market", dict(shared)), Reason("summary_fees", dict(fees))]
    assert rewards is not None, "void alone has none"
    paid = sum(max(0, item.amount) for item in rewards.rewards)
    lost = sum(max(0, -item.amount) for item in rewards.rewards)
    budget = {"budget": rewards.budget, "left": rewards.budget_left, "paid": paid, "lost": lost}
    return (*said, Reason("summary_budget", dict(budget)))


def _summarize_outcome(
    episode: Episode, outcome: Outcome, first_ppm: int, second_ppm: int
) -> list[Reason]:
    """Explain q, who won, and the rate."""
    c0_ppm, rules = episode.terms.c0_ppm, episode.terms.parameters
    q_ppm = outcome.q_ppm
    assert q_ppm is not None, "it was measured"
    code = "summary_durable" if q_ppm in {first_ppm, second_ppm} else "summary_undone"
    said = [Reason.of(code, q_ppm=q_ppm)]
    least, most = rules.win_ppm, PPM - rules.win_ppm
    if outcome.moved is None:
        said.append(Reason.of("summary_held", least_ppm=least, most_ppm=most))
    else:
        up = outcome.moved is Side.HERETIC
        code, bound = ("summary_up", least) if up else ("summary_down", most)
        said.append(Reason.of(code, bound_ppm=bound))
    if outcome.one_sided:
        said.append(Reason("summary_one_sided"))
    elif outcome.nearest_ppm is not None:
        nats = scoring.divergence(outcome.nearest_ppm, c0_ppm)
        rate = {"tau_ppm": outcome.tau_ppm, "most_ppm": rules.tau_max_ppm}
        distance = {"nearest_ppm": outcome.nearest_ppm, "c0_ppm": c0_ppm, **rate}
        said.append(Reason("summary_rate", {"nats": f"{nats:.6f}", **distance}))
    return said


def summarize_accounts(transfers: Iterable[ledger.Transfer | Flow]) -> tuple[Reason, ...]:
    """Sum what each account came to in an episode by bets, evidence and disputes: people first,
    those who gained most before the others. Pots are left out: they end empty."""
    came: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for moved in transfers:
        by = "bets"
        if moved.code in _FROM_EVIDENCE:
            by = "evidence"
        elif moved.code in _FROM_DISPUTES:
            by = "disputes"
        came[moved.debit][by] -= moved.amount
        came[moved.credit][by] += moved.amount
    people_first = sorted(
        (account for account in came if not account.startswith("escrow:")),
        key=lambda one: (not one.startswith("user:"), -came[one].total(), one),
    )
    return tuple(
        Reason.of(
            "summary_account",
            account=account,
            total=came[account].total(),
            bets=came[account]["bets"],
            evidence=came[account]["evidence"],
            disputes=came[account]["disputes"],
        )
        for account in people_first
    )
