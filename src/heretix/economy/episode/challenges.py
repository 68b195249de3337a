"""Challenges: evidence is committed by hash, revealed, and judged in the order of commitment."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import Record, require_sha256, sha256_hex
from heretix.core.errors import UsageError
from heretix.economy import ledger
from heretix.economy.episode import state
from heretix.economy.rewards import take_step

if TYPE_CHECKING:
    from collections.abc import Sequence


# Commitments: a hash now, what it hides later.
#
# Evidence is committed together with the account that found it, so that a copied commitment is
# of no use to anyone else. The close and the judges are drawn from one secret, committed at
# open, so that nobody can choose them afterwards.

SECRET_BYTES: Final = 32


def evidence_commitment(
    nonce: bytes, bundle_sha256: str, direction: state.Direction, account: str
) -> str:
    """sha256(nonce ‖ bundle hash ‖ direction ‖ ":" ‖ account); the first two have a fixed length,
    and a direction has no colon."""
    _require_secret("nonce", nonce)
    bundle = bytes.fromhex(require_sha256("bundle_sha256", bundle_sha256))
    return sha256_hex(nonce + bundle + f"{direction.value}:{account}".encode())


def seed_commitment(seed: bytes) -> str:
    """The hash of a secret seed."""
    return sha256_hex(_require_secret("seed", seed))


def matches_seed(commitment: str, seed: bytes) -> bool:
    """Tell whether this is the seed that was committed to."""
    return len(seed) == SECRET_BYTES and sha256_hex(seed) == commitment


def draw_close(seed: bytes, episode: str, *, from_ms: int, until_ms: int) -> int:
    """The effective close: any millisecond from the first to the last, each as likely."""
    number = int.from_bytes(_draw(seed, "close", episode), "big")
    return from_ms + number % (until_ms - from_ms + 1)


def draw_judges(
    seed: bytes, episode: str, pool: Sequence[str], *, count: int, round_: int = 0
) -> tuple[str, ...]:
    """`count` of the pool, or what there is when it is smaller; each round draws anew, and no
    provider gets a majority.

    The pool is ranked by hash, so the draw doesn't depend on the order it is given in.
    """
    ranked = sorted(pool, key=lambda model: _draw(seed, "judge", episode, str(round_), model))
    drawn: list[str] = []
    houses: Counter[str] = Counter()
    for model in ranked:
        house = state.provider_of(model)
        if len(drawn) < count and houses[house] < state.provider_limit(count):
            drawn.append(model)
            houses[house] += 1
    return tuple(drawn)


def _draw(seed: bytes, *labels: str) -> bytes:
    """A hash for one purpose. Lengths keep two lists of labels from reading the same."""
    message = b"".join(
        len(text).to_bytes(4, "big") + text for text in (label.encode() for label in labels)
    )
    return hashlib.sha256(_require_secret("seed", seed) + message).digest()


def _require_secret(name: str, value: bytes) -> bytes:
    if len(value) != SECRET_BYTES:
        raise UsageError(
            f"`{name}` must be {SECRET_BYTES} bytes, got {len(value)}; draw it from a secure "
            "source of randomness"
        )
    return value


# Judging waits for the freeze, when every reveal is in: only then is it known who was first. The
# gate that evidence must pass looks at the lens with and without it.


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReading(Record):
    """The lens with the evidence less the lens without, paired by template."""

    p_up_ppm: int
    """Share of bootstrap replicas in which the belief went up."""
    p_over_placebo_ppm: int
    """The same against irrelevant text of the same length, instead of no text."""
    slots: int
    ci_width_ppm: int
    """Width of the difference's 95% interval, in probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtEvidence(Record):
    """Belief of the lens after a revealed bundle, on top of what was accepted before it."""

    gate: GateReading
    belief_ppm: int
    """The lens with the evidence."""


def find_gate_failure(
    reading: GateReading, direction: state.Direction, rules: state.GateRules
) -> ledger.Reason | None:
    """Find why evidence didn't move the lens the way it was declared to; None if it did."""
    ledger.require_ppm("p_up_ppm", reading.p_up_ppm)
    ledger.require_ppm("p_over_placebo_ppm", reading.p_over_placebo_ppm)
    ledger.require_ppm("ci_width_ppm", reading.ci_width_ppm)
    ledger.require_whole("slots", reading.slots)
    up = direction is state.Direction.UP
    sure, over = (
        share if up else ledger.PPM - share
        for share in (reading.p_up_ppm, reading.p_over_placebo_ppm)
    )
    if reading.slots < rules.min_slots:
        return ledger.Reason.of("too_few_slots", least=rules.min_slots, got=reading.slots)
    if reading.ci_width_ppm > rules.max_width_ppm:
        width, most = reading.ci_width_ppm, rules.max_width_ppm
        return ledger.Reason.of("interval_too_wide", most_ppm=most, got_ppm=width)
    if sure < rules.direction_ppm:
        shares = {"least_ppm": rules.direction_ppm, "got_ppm": sure}
        return ledger.Reason("direction_uncertain", {"direction": direction.value, **shares})
    if over < rules.direction_ppm:
        shares = {"least_ppm": rules.direction_ppm, "got_ppm": over}
        return ledger.Reason("placebo", {"direction": direction.value, **shares})
    return None


def commit(
    episode: state.Episode,
    at_ms: int,
    *,
    key: str,
    account: str,
    commitment: str,
    amount: int,
    least: int,
) -> state.Moved | state.Denied:
    """Commit to evidence and to its direction without showing either. The least stake pays for the
    attempt if it fails."""
    require_sha256("commitment", commitment)
    if denied := state.find_denial(episode, state.State.CHALLENGE):
        return denied
    at, until = max(at_ms, episode.clock_ms), episode.terms.close_until_ms
    if at > until:
        return state.deny(state.Denial.TOO_LATE, "challenges_ended", at_ms=until, now_ms=at)
    if amount < max(1, least):
        return state.deny(state.Denial.STAKE_TOO_SMALL, least=least, got=amount)
    # Someone else's copy is let in: it can't be revealed, and refusing would let a copy that
    # arrives first shut out the one it was copied from.
    if any((c.account, c.commitment) == (account, commitment) for c in episode.challenges):
        return state.deny(state.Denial.COMMITMENT_TAKEN)
    challenge = state.Challenge(
        number=len(episode.challenges),
        account=account,
        commitment=commitment,
        stake=amount,
        least=max(1, least),
        at_ms=at,
    )
    statement = episode.statement(ledger.client_group(account, key))
    reason = ledger.Reason.of(
        "challenge", number=challenge.number, stake=amount, least=challenge.least
    )
    statement.move(
        account, statement.pot(ledger.Escrow.CHALLENGE), amount, ledger.Code.CHALLENGE, reason
    )
    after = replace(episode, challenges=(*episode.challenges, challenge), clock_ms=at)
    return state.Moved(episode=after, group=statement.group())


def reveal(
    episode: state.Episode,
    at_ms: int,
    *,
    number: int,
    account: str,
    nonce: bytes,
    bundle_sha256: str,
    direction: state.Direction,
) -> state.Moved | state.Denied:
    """Show what a commitment hid, now that no bet can be made on it any more."""
    if denied := state.find_denial(episode, state.State.CHALLENGE) or _deny_unknown(
        episode, number
    ):
        return denied
    at, until = max(at_ms, episode.clock_ms), episode.terms.freeze_at_ms
    if at <= (close := episode.terms.close_until_ms):
        return state.deny(state.Denial.TOO_EARLY, "reveals_begin", at_ms=close, now_ms=at)
    if at > until:
        return state.deny(state.Denial.TOO_LATE, "reveals_ended", at_ms=until, now_ms=at)
    challenge = episode.challenges[number]
    if challenge.fate is not state.Fate.COMMITTED:
        fate = challenge.fate.value
        return state.deny(state.Denial.WRONG_REVEAL, "not_hidden", number=number, fate=fate)
    if account != challenge.account or challenge.commitment != evidence_commitment(
        nonce, bundle_sha256, direction, account
    ):
        return state.deny(state.Denial.WRONG_REVEAL)
    revealed = replace(
        challenge,
        direction=direction,
        bundle_sha256=bundle_sha256,
        nonce=nonce,
        fate=state.Fate.REVEALED,
    )
    return state.Moved(episode=replace(_replace_challenge(episode, revealed), clock_ms=at))


def find_failure(episode: state.Episode, challenge: state.Challenge) -> ledger.Reason | None:
    """Find why a challenge fails before anything is measured: of two that brought the same bundle,
    the earlier commitment wins."""
    if challenge.bundle_sha256 is None:
        return ledger.Reason("never_revealed")
    earlier = episode.challenges[: challenge.number]
    brought = {other.bundle_sha256 for other in earlier}
    return ledger.Reason("same_evidence") if challenge.bundle_sha256 in brought else None


def judge_challenge(
    episode: state.Episode,
    at_ms: int,
    *,
    number: int,
    evidence: BroughtEvidence | None,
) -> state.Moved | state.Denied:
    """Let a challenge move the credited path, or charge it for the attempt.

    Without evidence to look at, unrevealed or a copy of an earlier bundle, it has failed.
    """
    if denied := state.find_denial(episode, state.State.FROZEN) or _deny_unknown(episode, number):
        return denied
    challenge, parameters = episode.challenges[number], episode.terms.parameters
    if next((c for c in episode.challenges if not c.is_judged), None) != challenge:
        return state.deny(state.Denial.OUT_OF_ORDER, "not_earliest", number=number)
    at = max(at_ms, episode.clock_ms)
    statement = episode.statement(f"challenge:{episode.id}:{number}")
    failure = find_failure(episode, challenge)
    if failure is None and evidence is None:
        failure = ledger.Reason("not_measured")
    if failure is None and evidence is not None and challenge.direction is not None:
        failure = find_gate_failure(evidence.gate, challenge.direction, parameters.gate)
    if failure is not None:
        _charge(statement, episode, challenge, failure)
        after = _replace_challenge(episode, replace(challenge, fate=state.Fate.FAILED))
    else:
        assert evidence is not None
        assert challenge.bundle_sha256 is not None
        ledger.require_ppm("belief_ppm", evidence.belief_ppm)
        # The path only ever moves the way that was declared.
        choose = max if challenge.direction is state.Direction.UP else min
        step = take_step(
            number=len(episode.steps),
            account=challenge.account,
            evidence=challenge.bundle_sha256,
            scale=parameters.reward_scale,
            c_from_ppm=episode.belief_ppm,
            c_to_ppm=choose(episode.belief_ppm, evidence.belief_ppm),
            bond=challenge.stake,
        )
        if isinstance(step, ledger.Reason):
            # A part of the way would leave the rest of it to whoever comes next.
            pot, code = statement.pot(ledger.Escrow.CHALLENGE), ledger.Code.CHALLENGE_REFUND
            reason = ledger.Reason.of("challenge_short", step, number=number)
            statement.move(pot, challenge.account, challenge.stake, code, reason)
            given_back = _replace_challenge(episode, replace(challenge, fate=state.Fate.SHORT))
            return state.Moved(episode=replace(given_back, clock_ms=at), group=statement.group())
        pot, bonds = statement.pot(ledger.Escrow.CHALLENGE), statement.pot(ledger.Escrow.BOND)
        reason = ledger.Reason.of("challenge_passed", number=number, step=step.number)
        statement.move(pot, bonds, challenge.stake, ledger.Code.BOND, reason)
        accepted = _replace_challenge(episode, replace(challenge, fate=state.Fate.ACCEPTED))
        after = replace(accepted, steps=(*episode.steps, step))
    return state.Moved(episode=replace(after, clock_ms=at), group=statement.group())


def _charge(
    statement: ledger.Statement,
    episode: state.Episode,
    challenge: state.Challenge,
    failure: ledger.Reason,
) -> None:
    """The least stake is forfeited: operations take their part, the fund the rest. What was staked
    beyond it comes back, and nobody who holds a bet is paid: else empty challenges would pay."""
    pot, number = statement.pot(ledger.Escrow.CHALLENGE), challenge.number
    forfeit = min(challenge.least, challenge.stake)
    fee = ledger.ceil_part(forfeit, episode.terms.parameters.challenge_fee_ppm)
    operations = statement.house(ledger.AccountKind.OPERATIONS)
    reason = ledger.Reason.of("challenge_failed", failure, number=number, forfeit=forfeit)
    statement.move(pot, operations, fee, ledger.Code.CHALLENGE_FEE, reason)
    fund = statement.house(ledger.AccountKind.EPC_FUND)
    reason = ledger.Reason.of("challenge_fund", number=number, forfeit=forfeit)
    statement.move(pot, fund, forfeit - fee, ledger.Code.CHALLENGE_FEE, reason)
    rest = challenge.stake - forfeit
    reason = ledger.Reason.of("challenge_rest", number=number, stake=challenge.stake)
    statement.move(pot, challenge.account, rest, ledger.Code.CHALLENGE_REFUND, reason)


def _deny_unknown(episode: state.Episode, number: int) -> state.Denied | None:
    if 0 <= number < len(episode.challenges):
        return None
    return state.deny(state.Denial.UNKNOWN_CHALLENGE, number=number)


def _replace_challenge(episode: state.Episode, challenge: state.Challenge) -> state.Episode:
    number = challenge.number
    before, after = episode.challenges[:number], episode.challenges[number + 1 :]
    return replace(episode, challenges=(*before, challenge, *after))
