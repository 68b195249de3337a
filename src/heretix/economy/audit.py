"""Audit an episode: redo it from its record, with the same rules and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from heretix.core.canonical import canonical_json, decode
from heretix.core.errors import RecordError, UsageError
from heretix.economy import ledger
from heretix.economy.episode import state
from heretix.economy.episode.challenges import (
    BroughtEvidence,
    draw_judges,
    evidence_commitment,
    judge_challenge,
)
from heretix.economy.episode.moves import freeze, open_episode, rule_on_dispute
from heretix.economy.episode.settlement import PAYMENTS_AT_ONCE, Measurement, Outcome, settle
from heretix.economy.market import Market, Position, buy

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = "heretix-episode/5"
_PARTS: Final = ("positions", "transfers", "statements", "measurements")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeAudit:
    """Outcome of redoing an episode."""

    episode: state.Episode
    outcome: Outcome | None
    """As worked out again; None before the episode has ended."""
    breaches: tuple[ledger.Breach, ...]
    chain: ledger.EventChain

    @property
    def ok(self) -> bool:
        return not self.breaches


@dataclass(slots=True, kw_only=True)
class _Recomputation:
    """A record, and what has been worked out from it so far."""

    episode: state.Episode
    positions: tuple[Position, ...]
    transfers: tuple[ledger.Transfer, ...]
    lines: Mapping[str, tuple[ledger.Explained, ...]]
    """By group."""
    told: Mapping[str, Any]
    """Measurements that the episode was told, by stage."""
    chain: ledger.EventChain
    groups: dict[str, ledger.Group] = field(default_factory=dict)
    """Groups that the rules ask for."""
    asked: Counter[tuple[str, str, int, ledger.Code]] = field(default_factory=Counter)
    """Transfers that people asked for, under keys of their own."""
    breaches: list[ledger.Breach] = field(default_factory=list)
    outcome: Outcome | None = None

    @property
    def settles(self) -> bool:
        """Tell whether anything was paid by the settlement."""
        return self.episode.state in state.ENDED or f"settle:{self.episode.id}:0" in self.lines

    def breach(self, rule: str, subject: str, detail: str) -> None:
        self.breaches.append(ledger.Breach(rule, subject, detail))

    def expect(self, rule: str, subject: str, kept: object, redone: object) -> None:
        if kept != redone:
            self.breach(rule, subject, f"the record says {kept}, the rules give {redone}")

    def ask(self, account: str, pot: ledger.Escrow, amount: int, code: ledger.Code) -> None:
        to = ledger.escrow_account(self.episode.id, pot, self.episode.terms.currency).id
        self.asked[(account, to, amount, code)] += 1

    def take(self, rule: str, result: state.Moved | state.Denied) -> state.Moved | None:
        """Expect what a move pays; None if the rules refuse it."""
        if isinstance(result, state.Denied):
            self.breach(rule, self.episode.id, f"{result.denial.value}: {result.reason}")
            return None
        self.pay(result.group)
        return result

    def pay(self, group: ledger.Group | None) -> None:
        if group is not None:
            self.groups[group.id] = group
            self.expect("lines", group.id, self.lines.get(group.id), group.lines)

    def audit(self) -> EpisodeAudit:
        found = tuple(self.breaches)
        return EpisodeAudit(
            episode=self.episode,
            outcome=self.outcome,
            breaches=found,
            chain=self.chain,
        )


def verify_episode(record: Mapping[str, Any]) -> EpisodeAudit:
    """Work everything out again from an episode's record, and name whatever doesn't follow.

    Anyone who has the record can do it; no store is needed, and nobody has to be believed. What
    isn't a record at all is a `RecordError`. One that was made up as a whole is found by
    `heads.prove`.
    """
    redoing = _read(record)
    episode = redoing.episode
    _check_chain(redoing, record)
    if episode.state is state.State.DRAFT:
        if redoing.positions or redoing.transfers:
            redoing.breach("draft", episode.id, "money moved before it opened")
        return redoing.audit()
    if not episode.terms_intact:
        redoing.breach("terms", episode.id, "the terms aren't those that were hashed at open")
        return redoing.audit()
    try:
        _redo(redoing)
    except UsageError as exc:
        redoing.breach("rules", episode.id, str(exc))
    for check in (_compare_transfers, _check_order, _check_times, _check_lines):
        check(redoing)
    return redoing.audit()


def _read(record: Mapping[str, Any]) -> _Recomputation:
    if record.get("format") != FORMAT:
        raise RecordError(
            f"`format` must be {FORMAT!r}, got {record.get('format')!r}; "
            "export the episode again with this version"
        )
    parts = {}
    for name in _PARTS:
        if not isinstance(record.get(name), list):
            raise RecordError(f"`{name}` must be a list, got {record.get(name)!r}")
        parts[name] = record[name]
    try:
        lines = {
            decode(str, item["group"], f"statement {n}"): decode(
                tuple[ledger.Explained, ...], item["lines"], f"statement {n}"
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
    unknown = sorted(record.keys() - {"format", "episode", "chain", *_PARTS})
    if unknown:
        raise RecordError(f"`{unknown[0]}` isn't part of an episode's record; export it again")
    episode = decode(state.Episode, record.get("episode"), "episode")
    chain = decode(ledger.EventChain, record.get("chain"), "chain")
    if not chain.events:
        raise RecordError("`chain` must hold the events of the episode, got none; export it again")
    positions = decode(tuple[Position, ...], parts["positions"], "positions")
    transfers = decode(tuple[ledger.Transfer, ...], parts["transfers"], "transfers")
    _require_amounts(episode, positions)
    return _Recomputation(
        episode=episode,
        positions=positions,
        transfers=transfers,
        lines=lines,
        told=told,
        chain=chain,
    )


def _require_amounts(episode: state.Episode, positions: tuple[Position, ...]) -> None:
    """No rule asks for less than nothing."""
    amounts = {
        "stake": (*positions, *episode.challenges),
        "shares": positions,
        "bond": (*episode.steps, *episode.disputes),
    }
    for name, holders in amounts.items():
        least = min((getattr(holder, name) for holder in holders), default=1)
        if least < 1:
            raise RecordError(f"`{name}` must be above 0, got {least}; restore the record")


def _check_chain(redoing: _Recomputation, record: Mapping[str, Any]) -> None:
    """The events are the episode's chain from its first, lead to the top of the tree in each proof,
    and give every part of the record as it stands there."""
    chain, hashes = redoing.chain, [ledger.GENESIS]
    for number, event in enumerate(chain.events, start=1):
        linked = (event.chain, event.number, event.prev_hash)
        redoing.expect("chain", f"event {number}", linked, (redoing.episode.id, number, hashes[-1]))
        hashes.append(event.hash())
    redoing.expect("chain", "end", chain.hash, hashes[-1])
    for proof, after in zip(chain.proofs, (*chain.proofs[1:], None), strict=True):
        place = f"event {proof.seq} of all"
        if not 1 <= proof.number < len(hashes):
            redoing.breach("proof", place, f"the chain has no event {proof.number}")
            continue
        top = proof.top_of(redoing.episode.id, hashes[proof.number])
        redoing.expect("proof", place, proof.top, top)
        if after is not None and (after.seq <= proof.seq or after.number < proof.number):
            redoing.breach("proof", place, "another proof follows that should come before it")
    try:
        told = _replay(redoing.episode.id, chain)
        for name in ("episode", *_PARTS):
            if _is_different(record[name], told[name]):
                redoing.breach("chain", name, _find_difference(record[name], told[name]))
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        redoing.breach("chain", redoing.episode.id, f"its events can't be read ({exc!r})")


def _replay(episode_id: str, chain: ledger.EventChain) -> dict[str, Any]:
    """Read the parts of a record from the rows that the episode's events wrote, in their order."""
    row: dict[str, Any] = {}
    challenges: dict[int, dict[str, Any]] = {}
    parts: dict[str, list[Any]] = {name: [] for name in _PARTS}
    for event in chain.events:
        own = json.loads(event.rows_json)
        if any(ledger.episode_of(it) != episode_id for rows in own.values() for it in rows):
            raise ValueError(f"event {event.number} has a row of another's")
        for written in own.get("episodes", ()):
            row |= written
        for kept in own.get("positions", ()):
            parts["positions"].append({k: v for k, v in kept.items() if k != "episode_id"})
        for kept in own.get("challenges", ()):
            aside = {"episode_id", "event_seq", "sha256"}
            challenges[kept["number"]] = {k: v for k, v in kept.items() if k not in aside}
        for kept in own.get("transfers", ()):
            moved = {k: v for k, v in kept.items() if k not in {"group_id", "at_ms"}}
            parts["transfers"].append(moved | {"group": kept["group_id"]})
        for kept in own.get("statements", ()):
            told = {"group": kept["group_id"], "move": kept["move"], "at_ms": kept["at_ms"]}
            parts["statements"].append(told | {"lines": json.loads(kept["lines_json"])})
        for kept in own.get("episode_measurements", ()):
            source = {"executions": json.loads(kept["executions_json"])}
            parts["measurements"].append(
                {
                    "stage": kept["stage"],
                    "record": json.loads(kept["measurement_json"]),
                    "source": source | {"bundle_id": kept["bundle_id"]},
                    "at_ms": kept["at_ms"],
                }
            )
    market = {name: row[f"market_{name}"] for name in ("money", "heretic", "orthodox")}
    episode = json.loads(row["record_json"]) | {
        "market": None if market["money"] is None else market,
        "position_count": row["position_count"],
        "clock_ms": row["clock_ms"],
        "challenges": [challenges[number] for number in sorted(challenges)],
    }
    return {"episode": episode, **parts}


def _find_difference(kept: Any, told: Any) -> str:
    """Name the first thing in which a part of the record isn't what the events tell."""
    if isinstance(kept, list):
        if len(kept) != len(told):
            return f"the record has {len(kept)}, the events tell {len(told)}"
        number = next(
            n for n, pair in enumerate(zip(kept, told, strict=True)) if _is_different(*pair)
        )
        return f"number {number}: {_find_difference(kept[number], told[number])}"
    absent = object()
    found = {name: (kept.get(name, absent), told.get(name, absent)) for name in kept | told}
    names = [name for name, pair in found.items() if absent in pair or _is_different(*pair)]
    return f"{', '.join(names)} isn't what the events tell"


def _is_different(one: Any, other: Any) -> bool:
    return canonical_json(one) != canonical_json(other)


def _redo(redoing: _Recomputation) -> None:
    episode = redoing.episode
    if "c0" in redoing.told:
        told = redoing.told["c0"]
        redoing.expect("c0", episode.id, told, {"c0_ppm": episode.terms.c0_ppm})
    market = _redo_bets(redoing)
    pot, code = ledger.Escrow.CHALLENGE, ledger.Code.CHALLENGE
    for challenge in episode.challenges:
        redoing.ask(challenge.account, pot, challenge.stake, code)
        _redo_commitment(redoing, challenge)
    if episode.frozen_ms is None:
        redoing.expect("market", episode.id, episode.market, market)
        return
    frozen = None if market is None else _redo_freeze(redoing, market)
    if frozen is None:
        return
    redoing.expect("market", episode.id, episode.market, frozen.market)
    judged = _redo_challenges(redoing, frozen)
    redoing.expect("challenges", episode.id, episode.challenges, judged.challenges)
    redoing.expect("steps", episode.id, episode.steps, judged.steps)
    _redo_measurements(redoing, judged)
    if not redoing.settles:
        return
    result = settle(episode, redoing.positions)
    parts = ledger.split_group(result.group, PAYMENTS_AT_ONCE)
    if episode.state in state.ENDED:
        redoing.outcome = result.outcome
        ended = state.State.SETTLED if result.outcome.void is None else state.State.VOID
        redoing.expect("state", episode.id, episode.state, ended)
    else:
        # Under way: some parts are paid, and never the last, which ends the episode.
        parts = tuple(part for part in parts[:-1] if part.id in redoing.lines)
    for part in parts:
        redoing.pay(part)


def _redo_bets(redoing: _Recomputation) -> Market | None:
    """Take the house's seed and every bet again, in their order."""
    episode, positions = redoing.episode, redoing.positions
    redoing.expect("positions", episode.id, episode.position_count, len(positions))
    if not positions:
        redoing.breach("seed", episode.id, "the house's seed is missing")
        return None
    draft = state.draft_episode(episode.id, episode.terms)
    opened = redoing.take("open", open_episode(draft, at_ms=positions[0].at_ms))
    if opened is None or opened.episode.market is None:
        return None
    redoing.expect("seed", episode.id, positions[:2], opened.positions)
    market = opened.episode.market
    last_ms = positions[0].at_ms
    for number, kept in enumerate(positions[2:], start=2):
        bought = buy(market, kept.side, kept.stake, min_shares=0)
        if isinstance(bought, ledger.Reason):
            redoing.breach("bet", f"{episode.id}#{number}", str(bought))
            return None
        redone = replace(kept, number=number, shares=bought.shares, house=False)
        redoing.expect("bet", f"{episode.id}#{number}", kept, redone)
        if not last_ms <= kept.at_ms <= episode.terms.close_until_ms:
            detail = f"taken at {kept.at_ms}, after one at {last_ms}"
            redoing.breach("bet", f"{episode.id}#{number}", detail)
        redoing.ask(kept.account, ledger.Escrow.STAKE, kept.stake, ledger.Code.STAKE)
        market, last_ms = bought.after, kept.at_ms
    return market


def _redo_commitment(redoing: _Recomputation, challenge: state.Challenge) -> None:
    """Evidence that was revealed is what had been committed to, by the same account."""
    subject = f"{redoing.episode.id}!{challenge.number}"
    if challenge.stake < challenge.least:
        detail = f"staked {challenge.stake}, at least {challenge.least} was asked for"
        redoing.breach("least", subject, detail)
    if (challenge.bundle_sha256, challenge.nonce, challenge.direction) == (None, None, None):
        return
    nonce, bundle, way = challenge.nonce or b"", challenge.bundle_sha256 or "", challenge.direction
    if way is None:
        redoing.breach("commitment", subject, "evidence was shown, and no direction")
        return
    try:
        found = evidence_commitment(nonce, bundle, way, challenge.account)
    except UsageError as exc:
        found = str(exc)
    redoing.expect("commitment", subject, challenge.commitment, found)


def _redo_freeze(redoing: _Recomputation, market: Market) -> state.Episode | None:
    """Draw the close and the judges again from the seed that was committed to."""
    episode = redoing.episode
    assert episode.frozen_ms is not None
    unjudged = tuple(
        replace(c, fate=state.Fate.COMMITTED if c.bundle_sha256 is None else state.Fate.REVEALED)
        for c in episode.challenges
    )
    before = replace(
        state.draft_episode(episode.id, episode.terms),
        state=state.State.CHALLENGE,
        terms_hash=episode.terms_hash,
        market=market,
        position_count=episode.position_count,
        challenges=unjudged,
    )
    seed, positions = episode.seed or b"", redoing.positions
    result = freeze(before, seed=seed, positions=positions, at_ms=episode.frozen_ms)
    moved = redoing.take("freeze", result)
    if moved is None:
        return None
    redoing.expect("close", episode.id, episode.close_ms, moved.episode.close_ms)
    return moved.episode


def _redo_challenges(redoing: _Recomputation, episode: state.Episode) -> state.Episode:
    """Judge again what was judged, by what the lens was said to have shown."""
    for challenge, frozen in zip(redoing.episode.challenges, episode.challenges, strict=True):
        # The freeze gave some back, and the others wait for their turn.
        if frozen.is_judged or not challenge.is_judged:
            continue
        stage = f"gate:{challenge.number}"
        told = redoing.told.get(stage)
        if not isinstance(told, dict) or "evidence" not in told:
            redoing.breach("evidence", stage, "the record doesn't say what the lens showed")
            return episode
        evidence = decode(BroughtEvidence | None, told["evidence"], stage)  # type: ignore[arg-type]
        result = judge_challenge(episode, 0, number=challenge.number, evidence=evidence)
        moved = redoing.take("challenge", result)
        if moved is None:
            return episode
        episode = moved.episode
    return episode


def _redo_measurements(redoing: _Recomputation, judged: state.Episode) -> None:
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
        redoing.ask(dispute.account, ledger.Escrow.DISPUTE, dispute.bond, ledger.Code.DISPUTE)
        assert judged.seed is not None
        count, pool = 2 * episode.terms.parameters.judges + 1, episode.terms.hold_outs
        judges = draw_judges(judged.seed, episode.id, pool, count=count, round_=dispute.round)
        if dispute.upheld is None:
            break
        before = replace(
            judged,
            state=state.State.DISPUTED,
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


def _redo_ruling(
    redoing: _Recomputation, before: state.Episode, stage: str
) -> state.Episode | None:
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


def _compare_transfers(redoing: _Recomputation) -> None:
    """Every transfer was asked for, and everything that was asked for is there."""
    written: dict[str, list[ledger.Transfer]] = {}
    asked: Counter[tuple[str, str, int, ledger.Code]] = Counter()
    currency = redoing.episode.terms.currency
    for transfer in redoing.transfers:
        body = ledger.body_hash(transfer, transfer.group)
        redoing.expect("body_hash", transfer.id, transfer.body_hash, body)
        hash_ = ledger.transfer_hash(
            id_=transfer.id, body=body, seq=transfer.seq, prev_hash=transfer.prev_hash
        )
        redoing.expect("hash", transfer.id, transfer.hash, hash_)
        redoing.expect("currency", transfer.id, transfer.currency, currency)
        redoing.expect("episode", transfer.id, transfer.episode, redoing.episode.id)
        if transfer.group.startswith(f"by:{transfer.debit}:"):
            asked[(transfer.debit, transfer.credit, transfer.amount, transfer.code)] += 1
        else:
            written.setdefault(transfer.group, []).append(transfer)
    for item in sorted((asked - redoing.asked).keys() | (redoing.asked - asked).keys()):
        redoing.expect("transfers", "/".join(map(str, item)), asked[item], redoing.asked[item])
    for name in sorted(written.keys() | redoing.groups.keys()):
        drafts = redoing.groups[name].drafts if name in redoing.groups else ()
        kept = [(transfer.id, transfer.body_hash) for transfer in written.get(name, ())]
        redone = [(draft.id, ledger.body_hash(draft, name)) for draft in drafts]
        redoing.expect("transfers", name, kept, redone)


def _check_order(redoing: _Recomputation) -> None:
    """Bets, challenges and disputes stand in the chain as the record tells them: whose stake came
    before the close decides who is paid."""
    episode, positions = redoing.episode, redoing.positions
    told = {
        ledger.Code.STAKE: [(p.account, p.stake, p.at_ms) for p in positions[2:]],
        ledger.Code.CHALLENGE: [(c.account, c.stake, c.at_ms) for c in episode.challenges],
        ledger.Code.DISPUTE: [(d.account, d.bond, d.at_ms) for d in episode.disputes],
    }
    met = dict.fromkeys(told, 0)
    last_ms = positions[0].at_ms if positions else 0
    chain = sorted(redoing.transfers, key=lambda transfer: transfer.seq)
    for transfer in (transfer for transfer in chain if transfer.code in told):
        number, name = met[transfer.code], f"{transfer.code.value} {met[transfer.code]}"
        met[transfer.code] += 1
        if number >= len(told[transfer.code]):
            redoing.breach("order", transfer.id, f"there is no {name}")
            continue
        account, amount, at_ms = told[transfer.code][number]
        if (account, amount) != (transfer.debit, transfer.amount):
            redoing.breach("order", transfer.id, f"{name} is {amount} by {account} in the record")
        if at_ms < last_ms:
            redoing.breach("order", transfer.id, f"{name} at {at_ms} follows a move at {last_ms}")
        last_ms = max(last_ms, at_ms)


def _check_times(redoing: _Recomputation) -> None:
    """Check that nothing happened before it could."""
    episode, terms = redoing.episode, redoing.episode.terms
    frozen, measured, parameters = episode.frozen_ms, episode.measured_ms, terms.parameters
    window = (terms.challenge_from_ms, terms.close_until_ms)
    for number, challenge in enumerate(episode.challenges):
        if challenge.number != number or not window[0] <= challenge.at_ms <= window[1]:
            detail = f"number {challenge.number} at {challenge.at_ms} isn't within {window}"
            redoing.breach("times", f"challenge {number}", detail)
    for dispute in episode.disputes:
        if not (frozen or 0) <= dispute.at_ms <= episode.clock_ms:
            detail = f"at {dispute.at_ms}, not from {frozen} to {episode.clock_ms}"
            redoing.breach("times", f"dispute {dispute.round}", detail)
    ended = episode.state in state.ENDED
    known = ended or episode.state in {state.State.MEASURED, state.State.DISPUTED}
    if (measured is not None) != known:
        detail = f"{episode.state.value}, and measured at {measured}"
        redoing.breach("times", episode.id, detail)
        return
    if frozen is None or measured is None:
        return
    due = frozen + (parameters.durability_ms if len(episode.measurements) == 2 else 0)
    if measured < due:
        redoing.breach("times", episode.id, f"measured at {measured}, which was due at {due}")
    open_rounds = len(episode.disputes) < parameters.dispute_rounds
    last = measured + (parameters.dispute_window_ms if redoing.settles and open_rounds else 0)
    if episode.clock_ms < last:
        detail = f"its last move was at {episode.clock_ms}, which could not be before {last}"
        redoing.breach("times", episode.id, detail)


def _check_lines(redoing: _Recomputation) -> None:
    """Every transfer is explained by one line, which says the same of it."""
    told: dict[str, list[tuple[str, str, int, ledger.Code]]] = {}
    for transfer in redoing.transfers:
        row = (transfer.id, transfer.credit, transfer.amount, transfer.code)
        told.setdefault(transfer.group, []).append(row)
    for group in sorted(told.keys() | redoing.lines.keys()):
        lines = redoing.lines.get(group, ())
        if [(it.transfer, it.account, it.amount, it.code) for it in lines] != told.get(group, []):
            redoing.breach("lines", group, "the statement doesn't say what was transferred")
