"""Challenges: evidence is committed by hash, revealed, and judged in the order of commitment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import Record, require_sha256, sha256_hex
from heretix.core.errors import UsageError
from heretix.economy.episode.state import (
    Challenge,
    Denial,
    Denied,
    Episode,
    Fate,
    Moved,
    State,
    deny,
    not_allowed,
)
from heretix.economy.judging.gate import Direction, GateReading, pass_gate
from heretix.economy.ledger import (
    AccountKind,
    Code,
    Escrow,
    Reason,
    ceil_part,
    client_group,
    require_ppm,
    share_out,
)
from heretix.economy.rewards import Step, take_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.economy.ledger import Statement
    from heretix.economy.market import Position

# Commitments: a hash now, what it hides later.
#
# Evidence is committed together with the account that found it, so that a copied commitment is
# of no use to anyone else. The close and the judges are drawn from one secret, committed at
# open, so that nobody can choose them afterwards.

SECRET_BYTES: Final = 32


def evidence_commitment(nonce: bytes, bundle_sha256: str, account: str) -> str:
    """sha256(nonce ‖ bundle hash ‖ account); the first two have a fixed length."""
    _require_secret("nonce", nonce)
    bundle = bytes.fromhex(require_sha256("bundle_sha256", bundle_sha256))
    return sha256_hex(nonce + bundle + account.encode())


def seed_commitment(seed: bytes) -> str:
    """The hash of a secret seed."""
    return sha256_hex(_require_secret("seed", seed))


def matches_seed(commitment: str, seed: bytes) -> bool:
    """Whether this is the seed that was committed to."""
    return len(seed) == SECRET_BYTES and sha256_hex(seed) == commitment


def draw_close(seed: bytes, episode: str, *, from_ms: int, until_ms: int) -> int:
    """The effective close: any millisecond from the first to the last, each as likely."""
    number = int.from_bytes(_draw(seed, "close", episode), "big")
    return from_ms + number % (until_ms - from_ms + 1)


def draw_judges(
    seed: bytes, episode: str, pool: Sequence[str], *, count: int, round_: int = 0
) -> tuple[str, ...]:
    """`count` of the pool, or all of it when it is smaller; each round draws anew.

    The pool is ranked by hash, so the draw doesn't depend on the order it is given in.
    """
    ranked = sorted(pool, key=lambda model: _draw(seed, "judge", episode, str(round_), model))
    return tuple(ranked[:count])


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


# Judging waits for the freeze, when every reveal is in: only then is it known who was first.


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtEvidence(Record):
    """What the lens made of a revealed bundle, on top of what was accepted before it."""

    gate: GateReading
    belief_ppm: int
    """The lens with the evidence."""


def commit(
    episode: Episode,
    *,
    key: str,
    account: str,
    direction: Direction,
    commitment: str,
    stake: int,
    min_stake: int,
    at_ms: int,
) -> Moved | Denied:
    """Commit to evidence without showing it. The stake pays for the attempt if it fails."""
    require_sha256("commitment", commitment)
    denied = not_allowed(episode, State.CHALLENGE)
    if denied:
        return denied
    at = max(at_ms, episode.clock_ms)
    if at > episode.terms.close_until_ms:
        until = episode.terms.close_until_ms
        return deny(Denial.TOO_LATE, "challenges_ended", at_ms=until, now_ms=at)
    if stake < max(1, min_stake):
        return deny(Denial.STAKE_TOO_SMALL, least=min_stake, got=stake)
    # Someone else's copy is let in: it can't be revealed, and refusing would let a copy that
    # arrives first shut out the one it was copied from.
    if any((c.account, c.commitment) == (account, commitment) for c in episode.challenges):
        return deny(Denial.COMMITMENT_TAKEN)
    challenge = Challenge(
        number=len(episode.challenges),
        account=account,
        direction=direction,
        commitment=commitment,
        stake=stake,
        at_ms=at,
        positions_before=episode.position_count,
    )
    statement = episode.statement(client_group(account, key))
    reason = Reason.of("challenge", number=challenge.number, stake=stake, direction=direction.value)
    statement.move(account, statement.pot(Escrow.CHALLENGE), stake, Code.CHALLENGE, reason)
    after = replace(episode, challenges=(*episode.challenges, challenge), clock_ms=at)
    return Moved(episode=after, group=statement.group(), lines=statement.lines)


def reveal(
    episode: Episode,
    number: int,
    *,
    account: str,
    nonce: bytes,
    bundle_sha256: str,
    at_ms: int,
) -> Moved | Denied:
    """Show what a commitment hid."""
    denied = not_allowed(episode, State.CHALLENGE) or _unknown(episode, number)
    if denied:
        return denied
    at = max(at_ms, episode.clock_ms)
    if at > episode.terms.freeze_at_ms:
        until = episode.terms.freeze_at_ms
        return deny(Denial.TOO_LATE, "reveals_ended", at_ms=until, now_ms=at)
    challenge = episode.challenges[number]
    if challenge.fate is not Fate.COMMITTED:
        fate = challenge.fate.value
        return deny(Denial.WRONG_REVEAL, "not_hidden", number=number, fate=fate)
    if account != challenge.account or challenge.commitment != evidence_commitment(
        nonce, bundle_sha256, account
    ):
        return deny(Denial.WRONG_REVEAL)
    revealed = replace(challenge, bundle_sha256=bundle_sha256, nonce=nonce, fate=Fate.REVEALED)
    return Moved(episode=replace(_with(episode, revealed), clock_ms=at))


def is_duplicate(episode: Episode, challenge: Challenge) -> bool:
    """Whether an earlier commitment brought the same bundle. The earlier one wins."""
    return any(
        earlier.bundle_sha256 == challenge.bundle_sha256
        for earlier in episode.challenges[: challenge.number]
        if earlier.bundle_sha256 is not None
    )


def judge_challenge(
    episode: Episode,
    number: int,
    *,
    evidence: BroughtEvidence | None,
    positions: Sequence[Position],
    at_ms: int,
) -> Moved | Denied:
    """Let a challenge move the credited path, or charge it for the attempt.

    Without evidence to look at, unrevealed or a copy of an earlier bundle, it has failed.
    """
    denied = not_allowed(episode, State.FROZEN) or _unknown(episode, number)
    if denied:
        return denied
    challenge = episode.challenges[number]
    pending = [c for c in episode.challenges if c.fate in {Fate.COMMITTED, Fate.REVEALED}]
    if not pending or pending[0] != challenge:
        return deny(Denial.OUT_OF_ORDER, "not_earliest", number=number)
    at = max(at_ms, episode.clock_ms)
    statement = episode.statement(f"challenge:{episode.id}:{number}")
    failure = _failure(episode, challenge, evidence)
    if failure is not None:
        _charge(statement, episode, challenge, positions, failure)
        after = _with(episode, replace(challenge, fate=Fate.FAILED))
    else:
        assert evidence is not None
        step = _step(episode, challenge, evidence)
        statement.move(
            statement.pot(Escrow.CHALLENGE),
            statement.pot(Escrow.BOND),
            challenge.stake,
            Code.BOND,
            Reason.of("challenge_passed", number=number, step=step.number),
        )
        accepted = _with(episode, replace(challenge, fate=Fate.ACCEPTED))
        after = replace(accepted, steps=(*episode.steps, step))
    return Moved(
        episode=replace(after, clock_ms=at), group=statement.group(), lines=statement.lines
    )


def _failure(
    episode: Episode, challenge: Challenge, evidence: BroughtEvidence | None
) -> Reason | None:
    """Find why a challenge fails; None if it passes."""
    if challenge.bundle_sha256 is None:
        return Reason("never_revealed")
    if is_duplicate(episode, challenge):
        return Reason("same_evidence")
    if evidence is None:
        return Reason("not_measured")
    return pass_gate(evidence.gate, challenge.direction, episode.terms.parameters.gate).reason


def _step(episode: Episode, challenge: Challenge, evidence: BroughtEvidence) -> Step:
    """The move of the path: only ever the way that was declared."""
    start = episode.belief_ppm
    require_ppm("belief_ppm", evidence.belief_ppm)
    choose = max if challenge.direction is Direction.UP else min
    assert challenge.bundle_sha256 is not None
    return take_step(
        number=len(episode.steps),
        account=challenge.account,
        evidence=challenge.bundle_sha256,
        scale=episode.terms.parameters.reward_scale,
        c_from_ppm=start,
        c_wanted_ppm=choose(start, evidence.belief_ppm),
        bond=challenge.stake,
    )


def _charge(
    statement: Statement,
    episode: Episode,
    challenge: Challenge,
    positions: Sequence[Position],
    failure: Reason,
) -> None:
    """Operations take their part; the rest goes to those who held the side it attacked."""
    pot, number = statement.pot(Escrow.CHALLENGE), challenge.number
    fee = ceil_part(challenge.stake, episode.terms.parameters.challenge_fee_ppm)
    operations = statement.house(AccountKind.OPERATIONS)
    reason = Reason.of("challenge_failed", failure, number=number)
    statement.move(pot, operations, fee, Code.CHALLENGE_FEE, reason)
    holders = [
        p
        for p in positions
        if p.side is challenge.incumbent and p.number < challenge.positions_before
    ]
    shared = share_out(challenge.stake - fee, [p.stake for p in holders])
    for position, amount in zip(holders, shared.parts, strict=True):
        reason = Reason.of(
            "challenge_yield", number=number, bet=position.number, stake=position.stake
        )
        statement.move(pot, position.account, amount, Code.RESILIENCE_YIELD, reason)
    rounding = statement.house(AccountKind.ROUNDING)
    reason = Reason.of("challenge_dust", number=number)
    statement.move(pot, rounding, shared.dust, Code.DUST, reason)


def _unknown(episode: Episode, number: int) -> Denied | None:
    if 0 <= number < len(episode.challenges):
        return None
    return deny(Denial.UNKNOWN_CHALLENGE, number=number)


def _with(episode: Episode, challenge: Challenge) -> Episode:
    number = challenge.number
    before, after = episode.challenges[:number], episode.challenges[number + 1 :]
    return replace(episode, challenges=(*before, challenge, *after))
