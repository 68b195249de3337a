"""The exchange: accounts, markets and episodes on a store, each move in one transaction."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from heretix.core.canonical import encode, encode_json, exact_json
from heretix.core.errors import RefusedError, UsageError
from heretix.economy.audit import FORMAT
from heretix.economy.episode import challenges, disputes, moves
from heretix.economy.episode.challenges import SECRET_BYTES, evidence_commitment, seed_commitment
from heretix.economy.episode.settlement import settle
from heretix.economy.episode.state import (
    ENDED,
    Denial,
    Denied,
    Fate,
    Moved,
    State,
    deny,
    draft_episode,
    draft_id,
    settlement_record,
)
from heretix.economy.exploration import failure_rate, min_stake
from heretix.economy.exploration_service import credits_left
from heretix.economy.ledger import (
    CURRENCIES,
    Account,
    AccountKind,
    Code,
    Currency,
    Draft,
    Escrow,
    Explained,
    Group,
    Reason,
    Status,
    Transfer,
    client_group,
    escrow_account,
    house_account,
    require_whole,
    user_account,
)
from heretix.economy.market import quote
from heretix.economy.repository import (
    Entry,
    EpisodeRepository,
    EpisodeSnapshot,
    EpisodeSummary,
    HeldPosition,
    Holding,
    LedgerReport,
    LedgerTransaction,
    Source,
    StoredEpisode,
    StoredMeasurement,
    StoredStatement,
    read_held_position,
    read_holding,
    read_measurements,
    read_position,
    read_statements,
    read_summary,
    read_transfer,
    verify_ledger,
)
from heretix.economy.sentences import refuse_move
from heretix.store import episodes, ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy import Connection

    from heretix.core.clock import Clock
    from heretix.economy.episode.challenges import BroughtEvidence
    from heretix.economy.episode.settlement import Measurement, Settlement
    from heretix.economy.episode.state import Challenge, Dispute, Episode, Ground, Terms
    from heretix.economy.judging.gate import Direction
    from heretix.economy.market import Position, Quote, Side
    from heretix.store import Store

STARTING_PURSE: Final = 1_000_000
"""What a person starts with: 10,000.00 in play money."""
HOUSE_PURSE: Final = 1_000_000_000
"""What the house has to seed markets with, and the fund to pay rewards from."""
UNDRAWN: Final = "0" * 64
"""What terms have in place of a commitment until a draft draws the secret."""


class Exchange:
    """Accounts, markets and episodes in a store. Threads and processes may share one store.

    Everything that a move writes is written in one transaction. A repeated move gives the first
    result again; what the rules refuse changes nothing. People are called by their names. Where an
    account may be meant as well, `who` is a name, or an account's id, which has colons where a
    name can't.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._episodes = EpisodeRepository()

    # Accounts and the ledger.

    def ensure_house(self, currency: str = "PLAY", *, purse: int = HOUSE_PURSE) -> None:
        """Make the operator's accounts; the house and the fund are given a purse each, once."""
        require_whole("purse", purse)
        wanted = require_currency(currency)
        group = f"found:{currency}"
        # Whoever only looks mustn't have to wait for a writer, nor be one.
        with self._store.reading() as connection:
            if ledger.statement(connection, group) is not None:
                return
        with self._transaction() as transaction:
            transaction.add_accounts(house_accounts(currency))
            known = ledger.statement(transaction.connection, group) is not None
            if purse and wanted.transferable and not known:
                to = (AccountKind.HOUSE, AccountKind.EPC_FUND)
                amounts = {house_account(kind, currency).id: purse for kind in to}
                _issue(transaction, group, amounts, currency)

    def join(self, name: str, currency: str = "PLAY", *, purse: int | None = None) -> Holding:
        """Give a person an account with a starting purse. Who has one keeps it as it is."""
        account, wanted = user_account(name, currency), require_currency(currency)
        start = (STARTING_PURSE if wanted.transferable else 0) if purse is None else purse
        require_whole("purse", start)
        with self._transaction() as transaction:
            if account.id not in ledger.accounts_by_id(transaction.connection, [account.id]):
                transaction.add_accounts(house_accounts(currency))
                transaction.add_accounts([account], person=name)
                if start:
                    _issue(transaction, f"join:{account.id}", {account.id: start}, currency)
            row = ledger.accounts_by_id(transaction.connection, [account.id])[account.id]
        return read_holding(row)

    def issue(
        self, who: str, amount: int, *, key: str, currency: str = "PLAY"
    ) -> tuple[Transfer, ...]:
        """Make money and give it to a person or to one of the operator's accounts."""
        mint = house_account(AccountKind.ISSUANCE, require_currency(currency).code)
        group, account = client_group(mint.id, key), account_id(who, currency)
        with self._transaction() as transaction:
            return _issue(transaction, group, {account: amount}, currency)

    def balance(self, who: str, currency: str = "PLAY") -> int:
        """Return what a person or an account holds; an unknown one is refused."""
        wanted = account_id(who, currency)
        with self._store.reading() as connection:
            row = ledger.accounts_by_id(connection, [wanted]).get(wanted)
        if row is None:
            raise RefusedError(
                f"`{who}` must have an account in {currency}, and has none; join first",
                status=Status.UNKNOWN_ACCOUNT.value,
            )
        return int(row["balance"])

    def balances(
        self,
        *,
        person: str | None = None,
        episode: str | None = None,
        currency: str | None = None,
        limit: int = 1_000,
        offset: int = 0,
    ) -> list[Holding]:
        """List accounts that fit everything that is given, by id."""
        if currency is not None:
            require_currency(currency)
        with self._store.reading() as connection:
            rows = ledger.account_rows(
                connection,
                person=person,
                episode=episode,
                currency=currency,
                limit=require_whole("limit", limit),
                offset=require_whole("offset", offset),
            )
        return [read_holding(row) for row in rows]

    def history(
        self,
        *,
        account: str | None = None,
        episode: str | None = None,
        group: str | None = None,
        limit: int = 50,
        before_seq: int | None = None,
    ) -> list[Entry]:
        """List transfers that fit everything that is given, the newest first."""
        with self._store.reading() as connection:
            rows = ledger.history(
                connection,
                account=account,
                episode=episode,
                group=group,
                limit=require_whole("limit", limit),
                before_seq=before_seq,
            )
        return [Entry(transfer=read_transfer(row), at_ms=row["at_ms"]) for row in rows]

    def export(self, *, after_seq: int = 0) -> Iterator[str]:
        """Yield transfers in the order of the chain, one line of JSON each, as of one moment."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            for row in ledger.stream_transfers(connection, after_seq=after_seq):
                yield exact_json(dict(row))

    def verify(self) -> LedgerReport:
        """Read the chain from its first transfer, and hold everything that is kept against it."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            return verify_ledger(connection)

    # Moves of an episode. Each returns what it brought about, as it stands then.

    def draft(self, terms: Terms, *, c0: Source | None = None, key: str | None = None) -> str:
        """Write an episode down, draw its secret, and return the id that it goes by.

        The commitment in `terms` is replaced by one to that secret. `c0` says where the belief
        that the terms start from was measured. Under the same `key` again, it is the episode that
        was written first.
        """
        require_currency(terms.currency)
        secret = self._entropy(SECRET_BYTES)
        episode_id = f"ep-{self._entropy(6).hex()}" if key is None else draft_id(key)
        drawn = replace(terms, seed_commitment=seed_commitment(secret))
        stored = StoredEpisode(episode=draft_episode(episode_id, drawn), secret=secret)
        with self._transaction() as transaction:
            connection = transaction.connection
            if key is not None and episodes.episode_row(connection, episode_id) is not None:
                return episode_id
            self._episodes.insert(connection, stored, at_ms=transaction.at_ms)
            if c0 is not None:
                _keep(transaction, episode_id, "c0", {"c0_ppm": terms.c0_ppm}, c0)
        return episode_id

    def open(self, episode_id: str) -> Episode:
        """Fix the terms; escrow the house's seed and the budget for rewards."""
        with self._move(episode_id) as move:
            if move.episode.state is not State.DRAFT:
                return move.episode
            currency = move.episode.terms.currency
            pots = (escrow_account(episode_id, pot, currency) for pot in Escrow)
            move.transaction.add_accounts((*house_accounts(currency), *pots))
            return move.make("open", moves.open_episode(move.episode, at_ms=move.at_ms)).episode

    def begin_challenge(self, episode_id: str) -> Episode:
        """Let evidence be committed from now on."""
        with self._move(episode_id) as move:
            if move.episode.state not in {State.DRAFT, State.OPEN}:
                return move.episode
            result = moves.begin_challenge(move.episode, at_ms=move.at_ms)
            return move.make("begin_challenge", result).episode

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
        require_whole("min_shares", min_shares)
        with self._move(episode_id) as move:
            account = move.account_of(person)
            number, moved = move.make_once(
                "stake",
                client_group(account, key),
                {"side": side.value, "amount": amount, "min_shares": min_shares},
                lambda: moves.stake(
                    move.episode,
                    key=key,
                    account=account,
                    side=side,
                    amount=amount,
                    min_shares=min_shares,
                    at_ms=move.at_ms,
                ),
                subject=move.episode.position_count,
            )
            return move.position(number) if moved is None else moved.positions[0]

    def min_stake(self, episode_id: str, person: str, *, compute_cost: int = 0) -> int:
        """Return what a challenge by this person must stake now."""
        with self._store.reading() as connection:
            episode = self._episodes.load(connection, episode_id).episode
            return self._min_stake(connection, episode, person, compute_cost)

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
        with self._move(episode_id) as move:
            account = move.account_of(person)
            number, _ = move.make_once(
                "commit",
                client_group(account, key),
                {"direction": direction.value, "commitment": commitment, "amount": amount},
                lambda: challenges.commit(
                    move.episode,
                    key=key,
                    account=account,
                    direction=direction,
                    commitment=commitment,
                    stake=amount,
                    min_stake=self._min_stake(
                        move.transaction.connection, move.episode, person, compute_cost
                    ),
                    at_ms=move.at_ms,
                ),
                subject=len(move.episode.challenges),
            )
            return move.episode.challenges[number]

    def reveal(
        self, episode_id: str, number: int, person: str, *, nonce: bytes, bundle_sha256: str
    ) -> Challenge:
        """Show what a commitment hid."""
        with self._move(episode_id) as move:
            account = move.account_of(person)
            known = dict(enumerate(move.episode.challenges)).get(number)
            if (
                known is not None
                and (known.account, known.bundle_sha256) == (account, bundle_sha256)
                and known.commitment == evidence_commitment(nonce, bundle_sha256, account)
            ):
                return known
            result = challenges.reveal(
                move.episode,
                number,
                account=account,
                nonce=nonce,
                bundle_sha256=bundle_sha256,
                at_ms=move.at_ms,
            )
            return move.make("reveal", result).episode.challenges[number]

    def freeze(self, episode_id: str) -> Episode:
        """Reveal the secret, draw the close and the judges, give late stakes back."""
        with self._move(episode_id) as move:
            if move.episode.frozen_ms is not None:
                return move.episode
            result = moves.freeze(
                move.episode, seed=move.secret, positions=move.positions(), at_ms=move.at_ms
            )
            return move.make("freeze", result).episode

    def judge_challenge(
        self,
        episode_id: str,
        number: int,
        evidence: BroughtEvidence | None,
        *,
        source: Source | None = None,
    ) -> Episode:
        """Let a challenge move the credited path, or charge it for the attempt."""
        told = encode(evidence)
        with self._move(episode_id) as move:
            _, moved = move.make_once(
                "judge",
                f"challenge:{episode_id}:{number}",
                {"number": number, "evidence": told},
                lambda: challenges.judge_challenge(
                    move.episode,
                    number,
                    evidence=evidence,
                    positions=move.positions(),
                    at_ms=move.at_ms,
                ),
                subject=number,
            )
            if moved is not None:
                _keep(move.transaction, episode_id, f"gate:{number}", {"evidence": told}, source)
                judged = moved.episode.challenges[number]
                attempt = {"passed": judged.fate is Fate.ACCEPTED, "amount": None, "scale": None}
                move.remember("attempt", [(number, judged.account, attempt)])
            return move.episode

    def measure(
        self,
        episode_id: str,
        measurement: Measurement,
        *,
        stage: Literal["first", "second"],
        source: Source | None = None,
    ) -> Episode:
        """Take a judging measurement: at the freeze, and again after the durability window."""
        told = encode(measurement)
        with self._move(episode_id) as move:
            known = episodes.measurements_of(move.transaction.connection, episode_id, stage=stage)
            if known:
                _require_same(episode_id, known[0]["measurement_json"], told, stage)
                return move.episode
            if stage == "second" and not move.episode.measurements:
                raise move.refuse(deny(Denial.OUT_OF_ORDER, "first_not_measured"))
            result = moves.measure(
                move.episode, measurement, positions=move.positions(), at_ms=move.at_ms
            )
            move.make("measure", result)
            _keep(move.transaction, episode_id, stage, told, source)
            return move.episode

    def conclude_unmeasured(self, episode_id: str) -> Episode:
        """End the measuring where outside stakes on both sides are lacking: nobody needs it."""
        with self._move(episode_id) as move:
            if move.episode.measured_ms is not None and not move.episode.measurements:
                return move.episode
            result = moves.conclude_unmeasured(
                move.episode, positions=move.positions(), at_ms=move.at_ms
            )
            return move.make("conclude", result).episode

    def dispute(
        self, episode_id: str, person: str, *, ground: Ground, bond: int, key: str
    ) -> Dispute:
        """Put a bond against the result, and have more judges drawn."""
        with self._move(episode_id) as move:
            account = move.account_of(person)
            number, _ = move.make_once(
                "dispute",
                client_group(account, key),
                {"ground": ground.value, "bond": bond},
                lambda: disputes.raise_dispute(
                    move.episode,
                    key=key,
                    account=account,
                    ground=ground,
                    bond=bond,
                    at_ms=move.at_ms,
                ),
                subject=len(move.episode.disputes),
            )
            return move.episode.disputes[number]

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
        with self._move(episode_id) as move:
            round_ = len(move.episode.disputes)
            _, moved = move.make_once(
                "rule",
                f"dispute:{episode_id}:{round_}",
                {"round": round_} | told,
                lambda: disputes.rule_on_dispute(
                    move.episode,
                    ground_confirmed=ground_confirmed,
                    measurements=measurements,
                    positions=move.positions(),
                    at_ms=move.at_ms,
                ),
                subject=round_,
            )
            if moved is not None:
                _keep(move.transaction, episode_id, f"round:{round_}", told, source)
            return move.episode

    def close(self, episode_id: str) -> Episode:
        """Settle, or void: once, whoever asks and however often."""
        with self._move(episode_id) as move:
            if move.episode.state in ENDED:
                return move.episode
            result = moves.close_episode(move.episode, positions=move.positions(), at_ms=move.at_ms)
            settlement = move.make("settle", result).settlement
            assert settlement is not None
            rewards = () if settlement.rewards is None else settlement.rewards.rewards
            earned = [
                (r.step.number, r.step.account, {"amount": r.amount, "scale": r.scale})
                for r in rewards
            ]
            move.remember("reward", [(n, who, {"passed": None, **it}) for n, who, it in earned])
            return move.episode

    # Questions.

    def quote(self, episode_id: str, side: Side, amount: int) -> Quote:
        """Return what a bet would buy now, and what it can come to."""
        episode = self.episode(episode_id)
        if episode.market is None or episode.state not in {State.OPEN, State.CHALLENGE}:
            raise RefusedError(
                f"`{episode_id}` must be open or challenge to be bet on, "
                f"it is {episode.state.value}",
                status=Denial.WRONG_STATE.value,
            )
        parameters = episode.terms.parameters
        return quote(
            episode.market,
            side,
            amount,
            tau_max_ppm=parameters.tau_max_ppm,
            fee_ppm=parameters.fee_ppm,
        )

    def episode(self, episode_id: str) -> Episode:
        """Return an episode as it stands."""
        with self._store.reading() as connection:
            return self._episodes.load(connection, episode_id).episode

    def snapshot(self, episode_id: str) -> EpisodeSnapshot:
        """Read all of an episode that a page shows, as of one moment."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            episode = self._episodes.load(connection, episode_id).episode
            positions = self._episodes.positions(connection, episode_id)
            return EpisodeSnapshot(
                episode=episode,
                positions=positions,
                statements=read_statements(connection, episode_id),
                measurements=read_measurements(connection, episode_id),
                settlement=_settlement(episode, positions),
            )

    def knows(self, episode_id: str) -> bool:
        """Say whether there is an episode of this id."""
        with self._store.reading() as connection:
            return episodes.episode_row(connection, episode_id) is not None

    def episodes(
        self, *, state: State | None = None, limit: int = 20, offset: int = 0
    ) -> list[EpisodeSummary]:
        """List episodes, the newest first."""
        with self._store.reading() as connection:
            rows = episodes.episode_summaries(
                connection,
                state=None if state is None else state.value,
                limit=require_whole("limit", limit),
                offset=require_whole("offset", offset),
            )
        return [read_summary(row) for row in rows]

    def positions(self, episode_id: str) -> list[Position]:
        """List an episode's bets, in their order."""
        with self._store.reading() as connection:
            self._episodes.load(connection, episode_id)
            return self._episodes.positions(connection, episode_id)

    def positions_of(self, person: str, *, currency: str = "PLAY") -> list[HeldPosition]:
        """List a person's bets, the newest first."""
        with self._store.reading() as connection:
            rows = episodes.positions_by_account(connection, account_id(person, currency))
        return [read_held_position(row) for row in rows]

    def statements(self, episode_id: str) -> list[StoredStatement]:
        """List what each move of an episode paid to whom, and why."""
        with self._store.reading() as connection:
            self._episodes.load(connection, episode_id)
            return read_statements(connection, episode_id)

    def measurements(self, episode_id: str) -> list[StoredMeasurement]:
        """List what an episode was told, and the executions that it came from."""
        with self._store.reading() as connection:
            self._episodes.load(connection, episode_id)
            return read_measurements(connection, episode_id)

    def settlement(self, episode_id: str) -> Settlement | None:
        """Work out anew how an episode ended, from what is kept; None before it has."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            episode = self._episodes.load(connection, episode_id).episode
            return _settlement(episode, self._episodes.positions(connection, episode_id))

    def record(self, episode_id: str) -> dict[str, Any]:
        """Return everything that is needed to redo an episode elsewhere (`audit.verify_episode`).

        The seed is part of it once the freeze has revealed it, and not before.
        """
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            episode = self._episodes.load(connection, episode_id).episode
            rows = ledger.stream_transfers(connection, episode=episode_id)
            return {
                "format": FORMAT,
                "episode": encode(episode),
                "positions": encode(self._episodes.positions(connection, episode_id)),
                "transfers": [encode(read_transfer(row)) for row in rows],
                "statements": encode(read_statements(connection, episode_id)),
                "measurements": encode(read_measurements(connection, episode_id)),
            }

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[LedgerTransaction]:
        with self._store.writing() as connection:
            yield LedgerTransaction(connection, self._clock)

    @contextlib.contextmanager
    def _move(self, episode_id: str) -> Iterator[_Move]:
        with self._transaction() as transaction:
            yield _Move(transaction, self._episodes, episode_id)

    def _min_stake(
        self, connection: Connection, episode: Episode, person: str, compute_cost: int
    ) -> int:
        parameters = episode.terms.parameters
        rules, account = parameters.stakes, user_account(person, episode.terms.currency).id
        attempts = episodes.attempts_of(connection, account, limit=rules.recent_attempts)
        return min_stake(
            compute_cost=compute_cost,
            # As they are worth now: nobody stakes less because decay wasn't posted.
            credits_held=credits_left(
                connection,
                person,
                at_ms=self._clock.now_ms(),
                half_life_days=parameters.credits.half_life_days,
            ),
            failure_rate_ppm=failure_rate(attempts, rules),
            rules=rules,
        )


class _Move:
    """One episode inside one transaction: ask the rules, write down what they return."""

    def __init__(
        self, transaction: LedgerTransaction, repository: EpisodeRepository, episode_id: str
    ) -> None:
        self.transaction = transaction
        self.at_ms = transaction.at_ms
        self._repository = repository
        stored = repository.load(transaction.connection, episode_id)
        self.episode = stored.episode
        self.secret = stored.secret

    def account_of(self, person: str) -> str:
        """Return the id of a person's account in the episode's currency."""
        return user_account(person, self.episode.terms.currency).id

    def positions(self) -> list[Position]:
        """List the episode's bets, in their order."""
        return self._repository.positions(self.transaction.connection, self.episode.id)

    def position(self, number: int) -> Position:
        """Return the bet with a number."""
        connection = self.transaction.connection
        return read_position(episodes.positions_of(connection, self.episode.id, number=number)[0])

    def refuse(self, denied: Denied) -> RefusedError:
        """Return the error that tells of a refused move."""
        currency = self.episode.terms.currency
        return refuse_move(self.episode.id, denied.denial.value, denied.reason, currency)

    def make(
        self,
        name: str,
        result: Moved | Denied,
        *,
        request: Mapping[str, Any] | None = None,
        subject: int | None = None,
    ) -> Moved:
        """Write down everything that a rule returned, or raise its refusal."""
        before, transaction = self.episode, self.transaction
        if isinstance(result, Denied):
            raise self.refuse(result)
        connection, group, applied = transaction.connection, result.group, None
        if group is not None:
            applied = transaction.judge(group, episodes={before.id: before.state not in ENDED})
        with ledger.together(connection):
            if group is not None and applied is not None:
                asked = request or {"move": name, "episode": before.id}
                transaction.enter(
                    group, applied, move=name, request=asked, lines=result.lines, subject=subject
                )
            self._repository.add_positions(connection, before.id, result.positions)
            self._repository.update(connection, before, result.episode, at_ms=self.at_ms)
        self.episode = result.episode
        return result

    def make_once(
        self,
        name: str,
        group: str,
        asked: Mapping[str, Any],
        rule: Callable[[], Moved | Denied],
        *,
        subject: int,
    ) -> tuple[int, Moved | None]:
        """Make a move under its group's id, unless the same one was made under it before.

        Returns the number of what it made (then or now), and the move if it was made now.
        """
        request = {"move": name, "episode": self.episode.id, **asked}
        earlier = self.transaction.find_earlier(group, request)
        if earlier is not None:
            return int(earlier["subject"]), None
        return subject, self.make(name, rule(), request=request, subject=subject)

    def remember(self, kind: str, found: list[tuple[int, str, dict[str, Any]]]) -> None:
        """Keep what people's standing follows from: attempts and rewards, by number and account."""
        own = {"episode_id": self.episode.id, "kind": kind, "at_ms": self.at_ms}
        episodes.insert_reputation_events(
            self.transaction.connection,
            [{"number": n, "account": account, **own, **event} for n, account, event in found],
        )


def require_currency(code: str) -> Currency:
    """Check that there is such a currency, and return it."""
    if code not in CURRENCIES:
        raise UsageError(f"`currency` must be one of {', '.join(sorted(CURRENCIES))}, got {code!r}")
    return CURRENCIES[code]


def account_id(who: str, currency: str) -> str:
    """Return the id of a person's account, or the id that was given."""
    return who if ":" in who else user_account(who, currency).id


def house_accounts(currency: str) -> tuple[Account, ...]:
    """Return the operator's accounts in a currency."""
    ours = (kind for kind in AccountKind if kind not in {AccountKind.USER, AccountKind.ESCROW})
    return tuple(house_account(kind, currency) for kind in ours)


def _issue(
    transaction: LedgerTransaction, group_id: str, amounts: Mapping[str, int], currency: str
) -> tuple[Transfer, ...]:
    """Issue money to accounts, under an id of its own."""
    mint = house_account(AccountKind.ISSUANCE, currency).id
    drafts = tuple(
        Draft(
            id=f"{group_id}/{number}",
            debit=mint,
            credit=account,
            amount=amount,
            currency=currency,
            code=Code.ISSUE,
        )
        for number, (account, amount) in enumerate(amounts.items())
    )
    lines = tuple(
        Explained(
            transfer=draft.id,
            account=draft.credit,
            amount=draft.amount,
            code=draft.code,
            reason=Reason.of("issued", amount=draft.amount, currency=draft.currency),
        )
        for draft in drafts
    )
    return transaction.post(
        Group(id=group_id, drafts=drafts),
        move="issue",
        request={"move": "issue", "amounts": dict(amounts)},
        lines=lines,
    )


def _settlement(episode: Episode, positions: list[Position]) -> Settlement | None:
    return settle(settlement_record(episode, positions)) if episode.state in ENDED else None


def _require_same(episode_id: str, known: str, told: object, stage: str) -> None:
    if known != encode_json(told):
        raise RefusedError(
            f"`{episode_id}` has its {stage} measurement, and this is another; "
            "what was measured stands, unless it is disputed",
            status=Status.ID_CONFLICT.value,
        )


def _keep(
    transaction: LedgerTransaction, episode_id: str, stage: str, told: object, source: Source | None
) -> None:
    """Keep what an episode was told beside where it came from."""
    source = source or Source()
    episodes.insert_measurement(
        transaction.connection,
        {
            "episode_id": episode_id,
            "stage": stage,
            "measurement_json": encode_json(told),
            "executions_json": encode_json(source.executions),
            "bundle_id": source.bundle_id,
            "at_ms": transaction.at_ms,
        },
    )
