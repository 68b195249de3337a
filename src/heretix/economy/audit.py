"""Audit an episode: redo it from its record, with the same rules and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from heretix.core.canonical import decode
from heretix.core.errors import RecordError, UsageError
from heretix.economy.episode.challenges import (
    BroughtEvidence,
    draw_judges,
    evidence_commitment,
    judge_challenge,
)
from heretix.economy.episode.disputes import rule_on_dispute
from heretix.economy.episode.moves import freeze, open_episode
from heretix.economy.episode.settlement import Measurement, Outcome, settle
from heretix.economy.episode.state import (
    Challenge,
    Denied,
    Episode,
    Fate,
    Moved,
    State,
    draft_episode,
    settlement_record,
)
from heretix.economy.ledger import (
    Breach,
    Code,
    Escrow,
    Explained,
    Group,
    Transfer,
    body_hash,
    escrow_account,
    transfer_hash,
)
from heretix.economy.market import Bought, Market, Position, buy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The order and the times of an episode's moves, held against the order of its transfers.
#
# What a bet, a challenge or a dispute came after decides who is paid: who held a side before it was
# attacked, and whose stake came before the close. The chain keeps that order, so it can be checked.


def order_breaches(
    episode: Episode, positions: Sequence[Position], transfers: Sequence[Transfer]
) -> Iterator[Breach]:
    """Bets, challenges and disputes stand in the chain as the record tells them."""
    bets = positions[2:]
    told = {
        Code.STAKE: [(p.account, p.stake, p.at_ms) for p in bets],
        Code.CHALLENGE: [(c.account, c.stake, c.at_ms) for c in episode.challenges],
        Code.DISPUTE: [(d.account, d.bond, d.at_ms) for d in episode.disputes],
    }
    met = dict.fromkeys(told, 0)
    last_ms = positions[0].at_ms if positions else 0
    for transfer in sorted(transfers, key=lambda transfer: transfer.seq):
        if transfer.code not in told:
            continue
        number = met[transfer.code]
        met[transfer.code] += 1
        if number >= len(told[transfer.code]):
            yield Breach("order", transfer.id, f"there is no {transfer.code.value} {number}")
            continue
        account, amount, at_ms = told[transfer.code][number]
        if (account, amount) != (transfer.debit, transfer.amount):
            detail = f"{transfer.code.value} {number} is {amount} by {account} in the record"
            yield Breach("order", transfer.id, detail)
        if at_ms < last_ms:
            detail = f"{transfer.code.value} {number} at {at_ms} follows a move at {last_ms}"
            yield Breach("order", transfer.id, detail)
        last_ms = max(last_ms, at_ms)
        if transfer.code is Code.CHALLENGE:
            before, taken = episode.challenges[number].positions_before, met[Code.STAKE] + 2
            if before != taken:
                detail = f"{taken} bets came before challenge {number}, the record says {before}"
                yield Breach("order", transfer.id, detail)


def time_breaches(episode: Episode) -> Iterator[Breach]:
    """Nothing happened before it could."""
    terms, frozen, measured = episode.terms, episode.frozen_ms, episode.measured_ms
    window = (terms.challenge_from_ms, terms.close_until_ms)
    for number, challenge in enumerate(episode.challenges):
        if challenge.number != number or not window[0] <= challenge.at_ms <= window[1]:
            detail = f"number {challenge.number} at {challenge.at_ms} isn't within {window}"
            yield Breach("times", f"challenge {number}", detail)
    for dispute in episode.disputes:
        if not (frozen or 0) <= dispute.at_ms <= episode.clock_ms:
            detail = f"at {dispute.at_ms}, not from {frozen} to {episode.clock_ms}"
            yield Breach("times", f"dispute {dispute.round}", detail)
    ended = episode.state in {State.SETTLED, State.VOID}
    if (measured is not None) != (ended or episode.state in {State.MEASURED, State.DISPUTED}):
        yield Breach("times", episode.id, f"{episode.state.value}, and measured at {measured}")
        return
    if frozen is None or measured is None:
        return
    parameters = terms.parameters
    due = frozen + (parameters.durability_ms if len(episode.measurements) == 2 else 0)
    if measured < due:
        yield Breach("times", episode.id, f"measured at {measured}, which was due at {due}")
    open_rounds = len(episode.disputes) < parameters.dispute_rounds
    last = measured + (parameters.dispute_window_ms if ended and open_rounds else 0)
    if episode.clock_ms < last:
        detail = f"its last move was at {episode.clock_ms}, which could not be before {last}"
        yield Breach("times", episode.id, detail)


def line_breaches(
    transfers: Sequence[Transfer], lines: Mapping[str, Sequence[Explained]]
) -> Iterator[Breach]:
    """Every transfer is explained by one line, which says the same of it."""
    told: dict[str, list[tuple[str, str, int, Code]]] = {}
    for transfer in transfers:
        row = (transfer.id, transfer.credit, transfer.amount, transfer.code)
        told.setdefault(transfer.group, []).append(row)
    for group in sorted(told.keys() | lines.keys()):
        said = [
            (line.transfer, line.account, line.amount, line.code) for line in lines.get(group, ())
        ]
        if said != told.get(group, []):
            yield Breach("lines", group, "the statement doesn't say what was transferred")


# Redoing an episode from its record: the same rules, and nothing but what the record says.
#
# Anyone who has the record can do it; no store is needed, and nobody has to be believed.

FORMAT: Final = "heretix-episode/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeAudit:
    """What redoing an episode showed."""

    episode: Episode
    outcome: Outcome | None
    """As worked out again; None before the episode has ended."""
    breaches: tuple[Breach, ...]

    @property
    def ok(self) -> bool:
        """The record follows from the rules, every transfer of it."""
        return not self.breaches


@dataclass(slots=True, kw_only=True)
class _Redoing:
    """A record, and what has been worked out from it so far."""

    episode: Episode
    positions: tuple[Position, ...]
    transfers: tuple[Transfer, ...]
    lines: Mapping[str, tuple[Explained, ...]]
    """By group."""
    told: Mapping[str, Any]
    """What the episode was told, by stage."""
    groups: dict[str, Group] = field(default_factory=dict)
    """Groups that the rules ask for."""
    asked: Counter[tuple[str, str, int, Code]] = field(default_factory=Counter)
    """Transfers that people asked for, under keys of their own."""
    breaches: list[Breach] = field(default_factory=list)
    outcome: Outcome | None = None

    def breach(self, rule: str, subject: str, detail: str) -> None:
        self.breaches.append(Breach(rule, subject, detail))

    def expect(self, rule: str, subject: str, kept: object, redone: object) -> None:
        if kept != redone:
            self.breach(rule, subject, f"the record says {kept}, the rules give {redone}")

    def ask(self, account: str, pot: Escrow, amount: int, code: Code) -> None:
        to = escrow_account(self.episode.id, pot, self.episode.terms.currency).id
        self.asked[(account, to, amount, code)] += 1

    def take(self, rule: str, result: Moved | Denied) -> Moved | None:
        """Expect what a move pays; None if the rules refuse it."""
        if isinstance(result, Denied):
            self.breach(rule, self.episode.id, f"{result.denial.value}: {result.reason}")
            return None
        self.pay(result.group, result.lines)
        return result

    def pay(self, group: Group | None, lines: Sequence[Explained]) -> None:
        if group is not None:
            self.groups[group.id] = group
            self.expect("lines", group.id, self.lines.get(group.id), tuple(lines))


def verify_episode(record: Mapping[str, Any]) -> EpisodeAudit:
    """Work everything out again from an episode's record, and name whatever doesn't follow.

    What isn't a record at all is a `RecordError`.
    """
    redoing = _read(record)
    episode = redoing.episode
    if episode.state is State.DRAFT:
        if redoing.positions or redoing.transfers:
            redoing.breach("draft", episode.id, "money moved before it opened")
        return _audited(redoing)
    if not episode.terms_intact:
        redoing.breach("terms", episode.id, "the terms aren't those that were hashed at open")
        return _audited(redoing)
    try:
        _redo(redoing)
    except UsageError as exc:
        redoing.breach("rules", episode.id, str(exc))
    _compare_transfers(redoing)
    redoing.breaches += order_breaches(episode, redoing.positions, redoing.transfers)
    redoing.breaches += time_breaches(episode)
    redoing.breaches += line_breaches(redoing.transfers, redoing.lines)
    return _audited(redoing)


def _read(record: Mapping[str, Any]) -> _Redoing:
    if record.get("format") != FORMAT:
        raise RecordError(
            f"`format` must be {FORMAT!r}, got {record.get('format')!r}; "
            "export the episode again with this version"
        )
    parts = {}
    for name in ("positions", "transfers", "statements", "measurements"):
        if not isinstance(record.get(name), list):
            raise RecordError(f"`{name}` must be a list, got {record.get(name)!r}")
        parts[name] = record[name]
    try:
        lines = {
            decode(str, item["group"], f"statement {n}"): decode(
                tuple[Explained, ...], item["lines"], f"statement {n}"
            )
            for n, item in enumerate(parts["statements"])
        }
        told = {item["stage"]: item["record"] for item in parts["measurements"]}
    except (KeyError, TypeError) as exc:
        raise RecordError(f"`statements` and `measurements` must be whole ({exc!r})") from exc
    # Of two that go by one name, only one would be looked at.
    for name, found in (("statements", lines), ("measurements", told)):
        if len(found) != len(parts[name]):
            raise RecordError(f"`{name}` must tell each thing once, got one twice")
    return _counted(
        _Redoing(
            episode=decode(Episode, record.get("episode"), "episode"),
            positions=decode(tuple[Position, ...], parts["positions"], "positions"),
            transfers=decode(tuple[Transfer, ...], parts["transfers"], "transfers"),
            lines=lines,
            told=told,
        )
    )


def _counted(redoing: _Redoing) -> _Redoing:
    """The same, if every amount in it is one: no rule asks for less than nothing."""
    episode = redoing.episode
    amounts = {
        "stake": (*redoing.positions, *episode.challenges),
        "shares": redoing.positions,
        "bond": (*episode.steps, *episode.disputes),
    }
    for name, holders in amounts.items():
        for holder in holders:
            if getattr(holder, name) < 1:
                raise RecordError(
                    f"`{name}` must be above 0, got {getattr(holder, name)}; restore the record"
                )
    return redoing


def _audited(redoing: _Redoing) -> EpisodeAudit:
    return EpisodeAudit(
        episode=redoing.episode, outcome=redoing.outcome, breaches=tuple(redoing.breaches)
    )


def _redo(redoing: _Redoing) -> None:
    episode = redoing.episode
    if "c0" in redoing.told:
        told = redoing.told["c0"]
        redoing.expect("c0", episode.id, told, {"c0_ppm": episode.terms.c0_ppm})
    market = _redo_bets(redoing)
    for challenge in episode.challenges:
        redoing.ask(challenge.account, Escrow.CHALLENGE, challenge.stake, Code.CHALLENGE)
        _redo_commitment(redoing, challenge)
    if episode.frozen_ms is None:
        redoing.expect("market", episode.id, episode.market, market)
        return
    frozen = _redo_freeze(redoing)
    if frozen is None:
        return
    redoing.expect("market", episode.id, episode.market, frozen.market)
    judged = _redo_challenges(redoing, frozen)
    redoing.expect("challenges", episode.id, episode.challenges, judged.challenges)
    redoing.expect("steps", episode.id, episode.steps, judged.steps)
    _redo_measurements(redoing, judged)
    if episode.state in {State.SETTLED, State.VOID}:
        _redo_settlement(redoing)


def _redo_bets(redoing: _Redoing) -> Market | None:
    """Take the house's seed and every bet again, in their order."""
    episode, positions = redoing.episode, redoing.positions
    redoing.expect("positions", episode.id, episode.position_count, len(positions))
    if not positions:
        redoing.breach("seed", episode.id, "the house's seed is missing")
        return None
    draft = draft_episode(episode.id, episode.terms)
    opened = redoing.take("open", open_episode(draft, at_ms=positions[0].at_ms))
    if opened is None or opened.episode.market is None:
        return None
    redoing.expect("seed", episode.id, positions[:2], opened.positions)
    market = opened.episode.market
    last_ms = positions[0].at_ms
    for number, kept in enumerate(positions[2:], start=2):
        bought = buy(market, kept.side, kept.stake, min_shares=0)
        if not isinstance(bought, Bought):
            redoing.breach("bet", f"{episode.id}#{number}", str(bought.reason))
            return None
        redone = replace(kept, number=number, shares=bought.quote.shares, house=False)
        redoing.expect("bet", f"{episode.id}#{number}", kept, redone)
        if not last_ms <= kept.at_ms <= episode.terms.close_until_ms:
            detail = f"taken at {kept.at_ms}, after one at {last_ms}"
            redoing.breach("bet", f"{episode.id}#{number}", detail)
        redoing.ask(kept.account, Escrow.STAKE, kept.stake, Code.STAKE)
        market, last_ms = bought.market, kept.at_ms
    return market


def _redo_commitment(redoing: _Redoing, challenge: Challenge) -> None:
    """Evidence that was revealed is what had been committed to, by the same account."""
    if challenge.bundle_sha256 is None and challenge.nonce is None:
        return
    nonce, bundle = challenge.nonce or b"", challenge.bundle_sha256 or ""
    try:
        found = evidence_commitment(nonce, bundle, challenge.account)
    except UsageError as exc:
        found = str(exc)
    subject = f"{redoing.episode.id}!{challenge.number}"
    redoing.expect("commitment", subject, challenge.commitment, found)


def _redo_freeze(redoing: _Redoing) -> Episode | None:
    """Draw the close and the judges again from the seed that was committed to."""
    episode = redoing.episode
    assert episode.frozen_ms is not None
    before = replace(
        episode,
        state=State.CHALLENGE,
        clock_ms=0,
        close_ms=None,
        frozen_ms=None,
        seed=None,
        judges=(),
        challenges=tuple(_unjudged(challenge) for challenge in episode.challenges),
        steps=(),
        measurements=(),
        measured_ms=None,
        disputes=(),
    )
    result = freeze(
        before, seed=episode.seed or b"", positions=redoing.positions, at_ms=episode.frozen_ms
    )
    moved = redoing.take("freeze", result)
    if moved is None:
        return None
    redoing.expect("close", episode.id, episode.close_ms, moved.episode.close_ms)
    return moved.episode


def _unjudged(challenge: Challenge) -> Challenge:
    revealed = challenge.bundle_sha256 is not None
    return replace(challenge, fate=Fate.REVEALED if revealed else Fate.COMMITTED)


def _redo_challenges(redoing: _Redoing, episode: Episode) -> Episode:
    """Judge again what was judged, by what the lens was said to have shown."""
    for challenge in redoing.episode.challenges:
        if challenge.fate not in {Fate.ACCEPTED, Fate.FAILED}:
            continue
        stage = f"gate:{challenge.number}"
        told = redoing.told.get(stage)
        if not isinstance(told, dict) or "evidence" not in told:
            redoing.breach("evidence", stage, "the record doesn't say what the lens showed")
            return episode
        evidence = decode(BroughtEvidence | None, told["evidence"], stage)  # type: ignore[arg-type]
        result = judge_challenge(
            episode, challenge.number, evidence=evidence, positions=redoing.positions, at_ms=0
        )
        moved = redoing.take("challenge", result)
        if moved is None:
            return episode
        episode = moved.episode
    return episode


def _redo_measurements(redoing: _Redoing, judged: Episode) -> None:
    """Follow what was measured through the disputes: the last panel's word stands."""
    episode, told = redoing.episode, redoing.told
    measurements = tuple(
        decode(Measurement, told[stage], stage) for stage in ("first", "second") if stage in told
    )
    judges = judged.judges
    for stage, measurement in zip(("first", "second"), measurements, strict=False):
        strangers = {reading.model for reading in measurement.readings} - set(judges)
        if strangers:
            redoing.breach("judges", stage, f"{min(strangers)!r} was measured and not drawn")
    for dispute in episode.disputes:
        redoing.ask(dispute.account, Escrow.DISPUTE, dispute.bond, Code.DISPUTE)
        assert judged.seed is not None
        judges = draw_judges(
            judged.seed,
            episode.id,
            episode.terms.hold_outs,
            count=2 * episode.terms.parameters.judges + 1,
            round_=dispute.round,
        )
        if dispute.upheld is None:
            break
        before = replace(
            judged,
            state=State.DISPUTED,
            judges=judges,
            measurements=measurements,
            disputes=(*episode.disputes[: dispute.round - 1], replace(dispute, upheld=None)),
        )
        ruled = _redo_ruling(redoing, before, f"round:{dispute.round}")
        if ruled is None:
            return
        redoing.expect("dispute", f"round {dispute.round}", dispute, ruled.disputes[-1])
        measurements = ruled.measurements
    redoing.expect("judges", episode.id, episode.judges, judges)
    redoing.expect("measurements", episode.id, episode.measurements, measurements)


def _redo_ruling(redoing: _Redoing, before: Episode, stage: str) -> Episode | None:
    told = redoing.told.get(stage)
    if not isinstance(told, dict) or not {"ground_confirmed", "measurements"} <= told.keys():
        redoing.breach("dispute", stage, "the record doesn't say what the panel measured")
        return None
    again = decode(tuple[Measurement, ...], told["measurements"], stage)
    if len(again) != 2:
        redoing.breach("dispute", stage, f"a panel measures twice, not {len(again)} times")
        return None
    result = rule_on_dispute(
        before,
        ground_confirmed=bool(told["ground_confirmed"]),
        measurements=(again[0], again[1]),
        positions=redoing.positions,
        at_ms=0,
    )
    moved = redoing.take("dispute", result)
    return None if moved is None else moved.episode


def _redo_settlement(redoing: _Redoing) -> None:
    episode = redoing.episode
    result = settle(settlement_record(episode, redoing.positions))
    redoing.outcome = result.outcome
    ended = State.SETTLED if result.outcome.void is None else State.VOID
    redoing.expect("state", episode.id, episode.state, ended)
    redoing.pay(result.group, result.lines)


def _compare_transfers(redoing: _Redoing) -> None:
    """Every transfer was asked for, and everything that was asked for is there."""
    written: dict[str, list[Transfer]] = {}
    asked: Counter[tuple[str, str, int, Code]] = Counter()
    currency = redoing.episode.terms.currency
    for transfer in redoing.transfers:
        _compare_hashes(redoing, transfer)
        redoing.expect("currency", transfer.id, transfer.currency, currency)
        redoing.expect("episode", transfer.id, transfer.episode, redoing.episode.id)
        if transfer.group.startswith(f"by:{transfer.debit}:"):
            asked[(transfer.debit, transfer.credit, transfer.amount, transfer.code)] += 1
        else:
            written.setdefault(transfer.group, []).append(transfer)
    for item in sorted((asked - redoing.asked).keys() | (redoing.asked - asked).keys()):
        redoing.expect("transfers", "/".join(map(str, item)), asked[item], redoing.asked[item])
    for name in sorted(written.keys() | redoing.groups.keys()):
        group = redoing.groups.get(name)
        drafts = () if group is None else group.drafts
        redoing.expect(
            "transfers",
            name,
            [(transfer.id, transfer.body_hash) for transfer in written.get(name, ())],
            [(draft.id, body_hash(draft, name)) for draft in drafts],
        )


def _compare_hashes(redoing: _Redoing, transfer: Transfer) -> None:
    body = body_hash(transfer, transfer.group)
    redoing.expect("body_hash", transfer.id, transfer.body_hash, body)
    hash_ = transfer_hash(
        id_=transfer.id, body=body, seq=transfer.seq, prev_hash=transfer.prev_hash
    )
    redoing.expect("hash", transfer.id, transfer.hash, hash_)
