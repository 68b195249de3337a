"""Episodes as an exchange plays them: each move is asked of the rules and written whole.

A repeated move gives the first result again; what the rules refuse changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from heretix.economy import challenge as challenges
from heretix.economy import dispute as disputes
from heretix.economy import lifecycle
from heretix.economy.accounts import Escrow, escrow_account, user_account
from heretix.economy.codec import dumps, encode
from heretix.economy.commitment import SECRET_BYTES, evidence_commitment, seed_commitment
from heretix.economy.docket import ENDED, Filed, position_in
from heretix.economy.episode import (
    Denial,
    Denied,
    Fate,
    Moved,
    State,
    draft_episode,
    draft_id,
)
from heretix.economy.exploration import failure_rate, min_stake
from heretix.economy.holdings import credits_left
from heretix.economy.ledger import Status
from heretix.economy.money import require_whole
from heretix.economy.records import Source
from heretix.economy.transfers import client_group
from heretix.economy.treasury import Treasury, house_accounts, require_currency
from heretix.errors import RefusedError
from heretix.store import episodes, ledger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from heretix.economy.challenge import Evidence
    from heretix.economy.episode import Challenge, Dispute, Episode, Ground
    from heretix.economy.journal import Journal
    from heretix.economy.judging import Direction
    from heretix.economy.market import Position, Side
    from heretix.economy.outcome import Measurement
    from heretix.economy.terms import Terms

__all__ = ["UNDRAWN", "Proceedings"]

UNDRAWN: Final = "0" * 64
"""What terms have in place of a commitment until a draft draws the secret."""


class Proceedings(Treasury):
    """The moves of episodes. Each returns what it brought about, as it stands then."""

    def draft(self, terms: Terms, *, c0: Source | None = None, key: str | None = None) -> str:
        """Write an episode down, and draw its secret: the id that it goes by.

        The commitment in `terms` is replaced by one to that secret. `c0` says where the belief
        that the terms start from was measured. Under the same `key` again, it is the episode that
        was written first.
        """
        require_currency(terms.currency)
        secret = self._entropy(SECRET_BYTES)
        episode_id = f"ep-{self._entropy(6).hex()}" if key is None else draft_id(key)
        drawn = replace(terms, seed_commitment=seed_commitment(secret))
        filed = Filed(episode=draft_episode(episode_id, drawn), secret=secret)
        with self._turn() as journal:
            if key is not None and episodes.episode_row(journal.connection, episode_id) is not None:
                return episode_id
            self._docket.file(journal.connection, filed, at_ms=journal.at_ms)
            if c0 is not None:
                _keep(journal, episode_id, "c0", {"c0_ppm": terms.c0_ppm}, c0)
        return episode_id

    def open(self, episode_id: str) -> Episode:
        """Fix the terms; escrow the house's seed and the budget for rewards."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            if filed.episode.state is not State.DRAFT:
                return filed.episode
            currency = filed.episode.terms.currency
            pots = (escrow_account(episode_id, pot, currency) for pot in Escrow)
            journal.add_accounts((*house_accounts(currency), *pots))
            moved = lifecycle.open_episode(filed.episode, at_ms=journal.at_ms)
            return self._take(journal, filed, moved, "open")

    def begin_challenge(self, episode_id: str) -> Episode:
        """From now on evidence can be committed."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            if filed.episode.state not in {State.DRAFT, State.OPEN}:
                return filed.episode
            moved = lifecycle.begin_challenge(filed.episode, at_ms=journal.at_ms)
            return self._take(journal, filed, moved, "begin_challenge")

    def stake(
        self,
        episode_id: str,
        person: str,
        side: Side,
        amount: int,
        *,
        min_shares: int,
        key: str,
    ) -> Position:
        """Bet on a side; refused if it would buy fewer than `min_shares` micro-shares."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            account = self._account(filed, person)
            request = {
                "move": "stake",
                "episode": episode_id,
                "side": side.value,
                "amount": amount,
                "min_shares": require_whole("min_shares", min_shares),
            }
            earlier = journal.earlier(client_group(account, key), request)
            if earlier is not None:
                number = earlier["subject"]
                rows = episodes.positions_of(journal.connection, episode_id, number=number)
                return position_in(rows[0])
            moved = lifecycle.stake(
                filed.episode,
                key=key,
                account=account,
                side=side,
                amount=amount,
                min_shares=min_shares,
                at_ms=journal.at_ms,
            )
            number = filed.episode.position_count
            self._take(journal, filed, moved, "stake", request=request, subject=number)
            assert isinstance(moved, Moved)
            return moved.positions[0]

    def min_stake(self, episode_id: str, person: str, *, compute_cost: int = 0) -> int:
        """What a challenge by this person must stake now."""
        with self._store.reading() as connection:
            filed = self._docket.load(connection, episode_id)
            return self._min_stake(connection, filed, person, compute_cost)

    def commit(
        self,
        episode_id: str,
        person: str,
        *,
        direction: Direction,
        commitment: str,
        amount: int,
        key: str,
        compute_cost: int = 0,
    ) -> Challenge:
        """Commit to evidence without showing it."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            account = self._account(filed, person)
            request = {
                "move": "commit",
                "episode": episode_id,
                "direction": direction.value,
                "commitment": commitment,
                "amount": amount,
            }
            earlier = journal.earlier(client_group(account, key), request)
            if earlier is not None:
                return filed.episode.challenges[int(earlier["subject"])]
            moved = challenges.commit(
                filed.episode,
                key=key,
                account=account,
                direction=direction,
                commitment=commitment,
                stake=amount,
                min_stake=self._min_stake(journal.connection, filed, person, compute_cost),
                at_ms=journal.at_ms,
            )
            number = len(filed.episode.challenges)
            after = self._take(journal, filed, moved, "commit", request=request, subject=number)
            return after.challenges[number]

    def reveal(
        self, episode_id: str, number: int, person: str, *, nonce: bytes, bundle_sha256: str
    ) -> Challenge:
        """Show what a commitment hid."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            account = self._account(filed, person)
            known = dict(enumerate(filed.episode.challenges)).get(number)
            if (
                known is not None
                and (known.account, known.bundle_sha256) == (account, bundle_sha256)
                and known.commitment == evidence_commitment(nonce, bundle_sha256, account)
            ):
                return known
            moved = challenges.reveal(
                filed.episode,
                number,
                account=account,
                nonce=nonce,
                bundle_sha256=bundle_sha256,
                at_ms=journal.at_ms,
            )
            return self._take(journal, filed, moved, "reveal").challenges[number]

    def freeze(self, episode_id: str) -> Episode:
        """Reveal the secret, draw the close and the judges, give late stakes back."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            if filed.episode.frozen_ms is not None:
                return filed.episode
            moved = lifecycle.freeze(
                filed.episode,
                seed=filed.secret,
                positions=self._docket.positions(journal.connection, episode_id),
                at_ms=journal.at_ms,
            )
            return self._take(journal, filed, moved, "freeze")

    def judge_challenge(
        self,
        episode_id: str,
        number: int,
        evidence: Evidence | None,
        *,
        source: Source | None = None,
    ) -> Episode:
        """Let a challenge move the credited path, or charge it for the attempt."""
        told = encode(evidence)
        request = {"move": "judge", "episode": episode_id, "number": number, "evidence": told}
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            if journal.earlier(f"challenge:{episode_id}:{number}", request) is not None:
                return filed.episode
            moved = challenges.judge_challenge(
                filed.episode,
                number,
                evidence=evidence,
                positions=self._docket.positions(journal.connection, episode_id),
                at_ms=journal.at_ms,
            )
            after = self._take(journal, filed, moved, "judge", request=request, subject=number)
            _keep(journal, episode_id, f"gate:{number}", {"evidence": told}, source)
            _remember_attempt(journal, after, number)
            return after

    def measure(
        self,
        episode_id: str,
        measurement: Measurement,
        *,
        stage: Literal["first", "second"],
        source: Source | None = None,
    ) -> Episode:
        """Take a judging measurement: at the freeze, and again after the durability window."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            told = encode(measurement)
            known = episodes.measurements_of(journal.connection, episode_id, stage=stage)
            if known:
                return _same_measurement(filed.episode, known[0]["measurement_json"], told, stage)
            if stage == "second" and not filed.episode.measurements:
                raise _refused(episode_id, Denied(Denial.OUT_OF_ORDER, "measure first at first"))
            moved = lifecycle.measure(
                filed.episode,
                measurement,
                positions=self._docket.positions(journal.connection, episode_id),
                at_ms=journal.at_ms,
            )
            after = self._take(journal, filed, moved, "measure")
            _keep(journal, episode_id, stage, told, source)
            return after

    def conclude_unmeasured(self, episode_id: str) -> Episode:
        """Without outside stakes on both sides there is nothing to measure for."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            if filed.episode.measured_ms is not None and not filed.episode.measurements:
                return filed.episode
            moved = lifecycle.conclude_unmeasured(
                filed.episode,
                positions=self._docket.positions(journal.connection, episode_id),
                at_ms=journal.at_ms,
            )
            return self._take(journal, filed, moved, "conclude")

    def dispute(
        self, episode_id: str, person: str, *, ground: Ground, bond: int, key: str
    ) -> Dispute:
        """Put a bond against the result, and have more judges drawn."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            account = self._account(filed, person)
            request = {
                "move": "dispute",
                "episode": episode_id,
                "ground": ground.value,
                "bond": bond,
            }
            earlier = journal.earlier(client_group(account, key), request)
            if earlier is not None:
                return filed.episode.disputes[int(earlier["subject"])]
            moved = disputes.raise_dispute(
                filed.episode,
                key=key,
                account=account,
                ground=ground,
                bond=bond,
                at_ms=journal.at_ms,
            )
            number = len(filed.episode.disputes)
            after = self._take(journal, filed, moved, "dispute", request=request, subject=number)
            return after.disputes[number]

    def rule(
        self,
        episode_id: str,
        *,
        ground_confirmed: bool,
        measurements: tuple[Measurement, Measurement],
        source: Source | None = None,
    ) -> Episode:
        """Let the larger panel's measurements stand."""
        told = {"ground_confirmed": ground_confirmed, "measurements": encode(measurements)}
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            round_ = len(filed.episode.disputes)
            request = {"move": "rule", "episode": episode_id, "round": round_} | told
            if journal.earlier(f"dispute:{episode_id}:{round_}", request) is not None:
                return filed.episode
            moved = disputes.rule_on_dispute(
                filed.episode,
                ground_confirmed=ground_confirmed,
                measurements=measurements,
                positions=self._docket.positions(journal.connection, episode_id),
                at_ms=journal.at_ms,
            )
            after = self._take(journal, filed, moved, "rule", request=request, subject=round_)
            _keep(journal, episode_id, f"round:{round_}", told, source)
            return after

    def close(self, episode_id: str) -> Episode:
        """Settle, or void: once, whoever asks and however often."""
        with self._turn() as journal:
            filed = self._load(journal, episode_id)
            if filed.episode.state in ENDED:
                return filed.episode
            moved = lifecycle.close_episode(
                filed.episode,
                positions=self._docket.positions(journal.connection, episode_id),
                at_ms=journal.at_ms,
            )
            after = self._take(journal, filed, moved, "settle")
            assert isinstance(moved, Moved)
            _remember_rewards(journal, moved)
            return after

    def _load(self, journal: Journal, episode_id: str) -> Filed:
        return self._docket.load(journal.connection, episode_id)

    def _account(self, filed: Filed, person: str) -> str:
        return user_account(person, filed.episode.terms.currency).id

    def _min_stake(
        self, connection: Connection, filed: Filed, person: str, compute_cost: int
    ) -> int:
        rules = filed.episode.terms.parameters.stakes
        attempts = episodes.attempts_of(
            connection, self._account(filed, person), limit=rules.recent_attempts
        )
        return min_stake(
            compute_cost=compute_cost,
            # As they are worth now: nobody stakes less because decay wasn't posted.
            credits_held=credits_left(
                connection,
                person,
                at_ms=self._clock.now_ms(),
                half_life_days=filed.episode.terms.parameters.credits.half_life_days,
            ),
            failure_rate_ppm=failure_rate(attempts, rules),
            rules=rules,
        )

    def _take(
        self,
        journal: Journal,
        filed: Filed,
        result: Moved | Denied,
        move: str,
        *,
        request: Mapping[str, Any] | None = None,
        subject: int | None = None,
    ) -> Episode:
        """Write down everything that a rule returned."""
        before = filed.episode
        if isinstance(result, Denied):
            raise _refused(before.id, result)
        connection, group = journal.connection, result.group
        applied = None
        if group is not None:
            applied = journal.judge(group, episodes={before.id: filed.is_open})
        with ledger.together(connection):
            if group is not None and applied is not None:
                asked = request or {"move": move, "episode": before.id}
                journal.enter(
                    group, applied, move=move, request=asked, lines=result.lines, subject=subject
                )
            self._docket.add_positions(connection, before.id, result.positions)
            self._docket.update(connection, before, result.episode, at_ms=journal.at_ms)
        return result.episode


def _refused(episode_id: str, denied: Denied) -> RefusedError:
    return RefusedError(
        f"`{episode_id}` refused the move ({denied.denial.value}): {denied.detail}",
        status=denied.denial.value,
    )


def _same_measurement(episode: Episode, known: str, told: object, stage: str) -> Episode:
    if known != dumps(told):
        raise RefusedError(
            f"`{episode.id}` has its {stage} measurement, and this is another; "
            "what was measured stands, unless it is disputed",
            status=Status.ID_CONFLICT.value,
        )
    return episode


def _keep(
    journal: Journal, episode_id: str, stage: str, told: object, source: Source | None
) -> None:
    """Keep what an episode was told beside where it came from."""
    source = source or Source()
    episodes.insert_measurement(
        journal.connection,
        {
            "episode_id": episode_id,
            "stage": stage,
            "measurement_json": dumps(told),
            "executions_json": dumps(source.executions),
            "bundle_id": source.bundle_id,
            "at_ms": journal.at_ms,
        },
    )


def _remember_attempt(journal: Journal, episode: Episode, number: int) -> None:
    judged = episode.challenges[number]
    row = {
        "episode_id": episode.id,
        "kind": "attempt",
        "number": number,
        "account": judged.account,
        "passed": judged.fate is Fate.ACCEPTED,
        "amount": None,
        "scale": None,
        "at_ms": journal.at_ms,
    }
    episodes.insert_reputation_events(journal.connection, [row])


def _remember_rewards(journal: Journal, moved: Moved) -> None:
    assert moved.settlement is not None
    book = moved.settlement.rewards
    rows = [
        {
            "episode_id": moved.episode.id,
            "kind": "reward",
            "number": item.step.number,
            "account": item.step.account,
            "passed": None,
            "amount": item.amount,
            "scale": item.scale,
            "at_ms": journal.at_ms,
        }
        for item in (() if book is None else book.rewards)
    ]
    episodes.insert_reputation_events(journal.connection, rows)
