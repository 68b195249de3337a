"""The exchange: the economy's rules on a store, each move in one transaction."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from heretix.core.canonical import exact_json
from heretix.core.errors import RecordError, RefusedError, UsageError
from heretix.economy.audit import FORMAT
from heretix.economy.codec import decode, dumps, encode
from heretix.economy.episode import challenges, disputes, lifecycle
from heretix.economy.episode.challenges import SECRET_BYTES, evidence_commitment, seed_commitment
from heretix.economy.episode.settlement import settle
from heretix.economy.episode.state import (
    Denial,
    Denied,
    Fate,
    Moved,
    State,
    draft_episode,
    draft_id,
    settlement_record,
)
from heretix.economy.exploration import failure_rate, min_stake
from heretix.economy.exploration_service import credits_left
from heretix.economy.ledger import (
    Account,
    AccountKind,
    Breach,
    Code,
    Draft,
    Escrow,
    Explained,
    Group,
    Status,
    Transfer,
    client_group,
    crossed_currencies,
    escrow_account,
    house_account,
    leftover_escrows,
    misnamed_accounts,
    overdrafts,
    stake_mismatch,
    unbalanced_currencies,
    user_account,
    verify,
)
from heretix.economy.market import quote
from heretix.economy.money import CURRENCIES, Currency, require_whole
from heretix.economy.repository import (
    ENDED,
    Docket,
    Entry,
    EpisodeSummary,
    Filed,
    HeldPosition,
    Holding,
    Journal,
    LedgerReport,
    Source,
    StoredMeasurement,
    StoredStatement,
    account_of,
    market_in,
    position_in,
    transfer_of,
)
from heretix.store import episodes, ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import Connection, RowMapping

    from heretix.core.clock import Clock
    from heretix.economy.episode.challenges import BroughtEvidence
    from heretix.economy.episode.settlement import Measurement, Settlement
    from heretix.economy.episode.state import Challenge, Dispute, Episode, Ground, Terms
    from heretix.economy.judging.gate import Direction
    from heretix.economy.market import Position, Quote, Side
    from heretix.store import Store

# Accounts and the ledger as an exchange keeps them: who holds what, and whether it adds up.

STARTING_PURSE: Final = 1_000_000
"""What a person starts with: 10,000.00 in play money."""
HOUSE_PURSE: Final = 1_000_000_000
"""What the house has to seed markets with, and the fund to pay rewards from."""
_PAGE: Final = 1_000
_Record = TypeVar("_Record")


class Treasury:
    """Accounts in a store. Everything that a move writes is written in one transaction.

    People are called by their names. Where an account may be meant as well, `who` is a name, or
    an account's id, which has colons where a name can't.
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
        self._docket = Docket()

    def ensure_house(self, currency: str = "PLAY", *, purse: int = HOUSE_PURSE) -> None:
        """Make the operator's accounts; the house and the fund are given a purse each, once."""
        require_whole("purse", purse)
        to = (AccountKind.HOUSE, AccountKind.EPC_FUND)
        wanted = require_currency(currency)
        group = f"found:{currency}"
        # Whoever only looks mustn't have to wait for a writer, nor be one.
        with self._store.reading() as connection:
            if ledger.statement(connection, group) is not None:
                return
        with self._turn() as journal:
            journal.add_accounts(house_accounts(currency))
            if not wanted.transferable or ledger.statement(journal.connection, group) is not None:
                return
            self._issue(
                journal, group, {house_account(kind, currency).id: purse for kind in to}, currency
            )

    def join(self, name: str, currency: str = "PLAY", *, purse: int | None = None) -> Holding:
        """Give a person an account with a starting purse. Who has one keeps it as it is."""
        account, wanted = user_account(name, currency), require_currency(currency)
        start = (STARTING_PURSE if wanted.transferable else 0) if purse is None else purse
        require_whole("purse", start)
        with self._turn() as journal:
            if account.id not in ledger.accounts_by_id(journal.connection, [account.id]):
                journal.add_accounts(house_accounts(currency))
                journal.add_accounts([account], person=name)
                self._issue(journal, f"join:{account.id}", {account.id: start}, currency)
            row = ledger.accounts_by_id(journal.connection, [account.id])[account.id]
        return _holding(row)

    def issue(
        self, who: str, amount: int, *, key: str, currency: str = "PLAY"
    ) -> tuple[Transfer, ...]:
        """Make money and give it to a person or to one of the operator's accounts."""
        account = account_id(who, currency)
        mint = house_account(AccountKind.ISSUANCE, require_currency(currency).code)
        draft = Draft(
            id=f"{client_group(mint.id, key)}/0",
            debit=mint.id,
            credit=account,
            amount=amount,
            currency=currency,
            code=Code.ISSUE,
        )
        group = Group(id=client_group(mint.id, key), drafts=(draft,))
        with self._turn() as journal:
            request = _issue_request({account: amount})
            return journal.post(group, move="issue", request=request, lines=_issued(group))

    def balance(self, who: str, currency: str = "PLAY") -> int:
        """What a person or an account holds; an unknown one is refused."""
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
        limit: int = _PAGE,
        offset: int = 0,
    ) -> list[Holding]:
        """Accounts that fit everything that is given, by id."""
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
        return [_holding(row) for row in rows]

    def history(
        self,
        *,
        account: str | None = None,
        episode: str | None = None,
        group: str | None = None,
        limit: int = 50,
        before_seq: int | None = None,
    ) -> list[Entry]:
        """Transfers that fit everything that is given, the newest first."""
        with self._store.reading() as connection:
            rows = ledger.history(
                connection,
                account=account,
                episode=episode,
                group=group,
                limit=require_whole("limit", limit),
                before_seq=before_seq,
            )
        return [Entry(transfer=transfer_of(row), at_ms=row["at_ms"]) for row in rows]

    def export(self, *, after_seq: int = 0) -> Iterator[str]:
        """Transfers in the order of the chain, one line of JSON each, as of one moment."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            for row in ledger.stream_transfers(connection, after_seq=after_seq):
                yield exact_json(dict(row))

    def verify(self) -> LedgerReport:
        """Read the chain from its first transfer, and hold everything that is kept against it."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            return _verify(connection)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Journal]:
        """A writer's turn: a transaction that has the end of the chain."""
        with self._store.writing() as connection:
            yield Journal(connection, self._clock)

    def _issue(
        self, journal: Journal, group_id: str, amounts: Mapping[str, int], currency: str
    ) -> None:
        """Issue purses under an id of their own; nothing is written for nothing."""
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
            if amount
        )
        if drafts:
            group = Group(id=group_id, drafts=drafts)
            journal.post(group, move="issue", request=_issue_request(amounts), lines=_issued(group))


def require_currency(code: str) -> Currency:
    """Check that there is such a currency, and return it."""
    if code not in CURRENCIES:
        raise UsageError(f"`currency` must be one of {', '.join(sorted(CURRENCIES))}, got {code!r}")
    return CURRENCIES[code]


def account_id(who: str, currency: str) -> str:
    """The id of a person's account, or the id that was given."""
    return who if ":" in who else user_account(who, currency).id


def house_accounts(currency: str) -> tuple[Account, ...]:
    """The operator's accounts in a currency."""
    ours = (kind for kind in AccountKind if kind not in {AccountKind.USER, AccountKind.ESCROW})
    return tuple(house_account(kind, currency) for kind in ours)


def _holding(row: RowMapping) -> Holding:
    return Holding(account=account_of(row), balance=row["balance"], person=row["person"])


def _issue_request(amounts: Mapping[str, int]) -> dict[str, Any]:
    return {"move": "issue", "amounts": dict(amounts)}


def _issued(group: Group) -> tuple[Explained, ...]:
    return tuple(
        Explained(
            transfer=draft.id,
            account=draft.credit,
            amount=draft.amount,
            code=draft.code,
            text=f"issued {draft.amount} {draft.currency}",
        )
        for draft in group.drafts
    )


def _verify(connection: Connection) -> LedgerReport:
    breaches: list[Breach] = []
    holdings = list(_read(_holding, ledger.account_rows(connection), breaches))
    accounts = {holding.account.id: holding.account for holding in holdings}
    balances = {holding.account.id: holding.balance for holding in holdings}
    breaches.extend(misnamed_accounts((h.account, h.person) for h in holdings))
    replayed: defaultdict[str, int] = defaultdict(int)
    first_seqs: dict[str, int] = {}

    def passing() -> Iterator[Transfer]:
        # One pass, whatever the length: replayed and checked on the way to being verified.
        for transfer in _read(transfer_of, ledger.stream_transfers(connection), breaches):
            replayed[transfer.debit] -= transfer.amount
            replayed[transfer.credit] += transfer.amount
            first_seqs.setdefault(transfer.group, transfer.seq)
            strangers = {transfer.debit, transfer.credit} - accounts.keys()
            if strangers:
                detail = f"no account {min(strangers)!r}"
                breaches.append(Breach("known_accounts", transfer.id, detail))
            else:
                breaches.extend(crossed_currencies(accounts, [transfer]))
            yield transfer

    chain = verify(passing())
    breaches.extend(Breach("chain", fault.id, fault.detail) for fault in chain.faults)
    end = ledger.chain_end(connection)
    if (end["last_seq"], end["last_hash"]) != (chain.count, chain.last_hash):
        detail = f"{chain.count} transfers end in {chain.last_hash}, not {end['last_seq']} in "
        breaches.append(Breach("chain_end", "chain", f"{detail}{end['last_hash']}"))
    for name in sorted(replayed.keys() | balances.keys()):
        expected, kept = replayed.get(name, 0), balances.get(name, 0)
        if expected != kept:
            detail = f"the chain gives {expected}, the balance is {kept}"
            breaches.append(Breach("replay", name, detail))
    breaches.extend(_statement_breaches(connection, first_seqs))
    open_ = episodes.episodes_open(connection)
    breaches.extend(unbalanced_currencies(accounts, balances))
    breaches.extend(overdrafts(accounts, balances))
    breaches.extend(leftover_escrows(accounts, balances, open_))
    breaches.extend(_stake_breaches(connection, balances))
    return LedgerReport(count=chain.count, last_hash=chain.last_hash, breaches=tuple(breaches))


def _read(
    record_of: Callable[[RowMapping], _Record], rows: Iterable[RowMapping], breaches: list[Breach]
) -> Iterator[_Record]:
    """The records in rows; one that no rule could have written is named and left out."""
    for row in rows:
        try:
            record = record_of(row)
        except RecordError as exc:
            breaches.append(Breach("words", row["id"], str(exc)))
            continue
        yield record


def _statement_breaches(connection: Connection, first_seqs: Mapping[str, int]) -> Iterator[Breach]:
    """Every group has the statement that keeps its key from being used again, and no other has."""
    told = ledger.statement_seqs(connection)
    for group in sorted(told.keys() | first_seqs.keys()):
        if told.get(group) != first_seqs.get(group):
            detail = f"begins at {first_seqs.get(group)}, its statement says {told.get(group)}"
            yield Breach("statements", group, detail)


def _stake_breaches(connection: Connection, balances: Mapping[str, int]) -> Iterator[Breach]:
    """The stake pot of each open episode holds its bets, and its market counts them."""
    for row in episodes.open_stakes(connection):
        pot = escrow_account(row["episode_id"], Escrow.STAKE, row["currency"]).id
        total = int(row["market_money_held"])
        yield from stake_mismatch(pot, balances.get(pot, 0), [total])
        for name in ("market_money", "market_heretic", "market_orthodox"):
            held = int(row[f"{name}_held"])
            if (row[name] or 0) != held:
                detail = f"`{name}` counts {row[name]}, the open positions come to {held}"
                yield Breach("market", row["episode_id"], detail)


# Episodes as an exchange plays them: each move is asked of the rules and written whole.
#
# A repeated move gives the first result again; what the rules refuse changes nothing.

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
        evidence: BroughtEvidence | None,
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


# The exchange: the economy's rules on a store, each move in one transaction.

_EXCHANGE_PAGE: Final = 20


class Exchange(Proceedings):
    """Accounts, markets and episodes in a store. Threads and processes may share one store."""

    def quote(self, episode_id: str, side: Side, amount: int) -> Quote:
        """What a bet would buy now, and what it can come to."""
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
        """An episode as it stands."""
        with self._store.reading() as connection:
            return self._docket.load(connection, episode_id).episode

    def knows(self, episode_id: str) -> bool:
        """Whether there is an episode of this id."""
        with self._store.reading() as connection:
            return episodes.episode_row(connection, episode_id) is not None

    def episodes(
        self, *, state: State | None = None, limit: int = _EXCHANGE_PAGE, offset: int = 0
    ) -> list[EpisodeSummary]:
        """Episodes, the newest first."""
        with self._store.reading() as connection:
            rows = episodes.episode_summaries(
                connection,
                state=None if state is None else state.value,
                limit=require_whole("limit", limit),
                offset=require_whole("offset", offset),
            )
        return [_summary(row) for row in rows]

    def positions(self, episode_id: str) -> list[Position]:
        """An episode's bets, in their order."""
        with self._store.reading() as connection:
            self._docket.load(connection, episode_id)
            return self._docket.positions(connection, episode_id)

    def positions_of(self, person: str, *, currency: str = "PLAY") -> list[HeldPosition]:
        """A person's bets, the newest first."""
        with self._store.reading() as connection:
            rows = episodes.positions_by_account(connection, account_id(person, currency))
        return [_held(row) for row in rows]

    def statements(self, episode_id: str) -> list[StoredStatement]:
        """What each move of an episode paid to whom, and why."""
        with self._store.reading() as connection:
            self._docket.load(connection, episode_id)
            return _statements(connection, episode_id)

    def measurements(self, episode_id: str) -> list[StoredMeasurement]:
        """What an episode was told, and the executions that it came from."""
        with self._store.reading() as connection:
            self._docket.load(connection, episode_id)
            return _measurements(connection, episode_id)

    def settlement(self, episode_id: str) -> Settlement | None:
        """How an episode ended, worked out anew from what is kept; None before it has."""
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            episode = self._docket.load(connection, episode_id).episode
            if episode.state not in ENDED:
                return None
            return settle(
                settlement_record(episode, self._docket.positions(connection, episode_id))
            )

    def record(self, episode_id: str) -> dict[str, Any]:
        """Everything that is needed to redo an episode elsewhere: see `audit.verify_episode`.

        The seed is part of it once the freeze has revealed it, and not before.
        """
        with self._store.reading() as connection:
            ledger.freeze_view(connection)
            episode = self._docket.load(connection, episode_id).episode
            rows = ledger.stream_transfers(connection, episode=episode_id)
            return {
                "format": FORMAT,
                "episode": encode(episode),
                "positions": encode(self._docket.positions(connection, episode_id)),
                "transfers": [encode(transfer_of(row)) for row in rows],
                "statements": encode(_statements(connection, episode_id)),
                "measurements": encode(_measurements(connection, episode_id)),
            }


def _summary(row: RowMapping) -> EpisodeSummary:
    return EpisodeSummary(
        id=row["episode_id"],
        claim=row["claim"],
        currency=row["currency"],
        state=State(row["state"]),
        market=market_in(row),
        position_count=row["position_count"],
        clock_ms=row["clock_ms"],
        close_ms=row["close_ms"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
    )


def _held(row: RowMapping) -> HeldPosition:
    close = row["close_ms"]
    return HeldPosition(
        episode=row["episode_id"],
        claim=row["claim"],
        state=State(row["state"]),
        position=position_in(row),
        late=close is not None and row["at_ms"] > close,
    )


def _statements(connection: Connection, episode_id: str) -> list[StoredStatement]:
    return [
        StoredStatement(
            group=row["group_id"],
            move=row["move"],
            lines=decode(tuple[Explained, ...], json.loads(row["lines_json"]), row["group_id"]),
            at_ms=row["at_ms"],
        )
        for row in episodes.statements_of(connection, episode_id)
    ]


def _measurements(connection: Connection, episode_id: str) -> list[StoredMeasurement]:
    told = [
        StoredMeasurement(
            stage=row["stage"],
            record=json.loads(row["measurement_json"]),
            source=Source(
                executions=tuple(json.loads(row["executions_json"])), bundle_id=row["bundle_id"]
            ),
            at_ms=row["at_ms"],
        )
        for row in episodes.measurements_of(connection, episode_id)
    ]
    # Several stages can fall on one moment of a held clock; their own order settles it.
    return sorted(told, key=lambda item: (_rank(item.stage), item.at_ms))


def _rank(stage: str) -> tuple[int, int]:
    name, _, number = stage.partition(":")
    return ("c0", "gate", "first", "second", "round").index(name), int(number or 0)


# Refusals as people read them.

# After the words that moments follow: an amount may have as many digits.
_MOMENT: Final = re.compile(r"(?:(?<=\bat )|(?<=\bis )|(?<=\buntil ))1\d{12}(?![\w.])")


def readable(error: RefusedError) -> RefusedError:
    """A refusal with its moments as people write them; rules count milliseconds."""

    def said(found: re.Match[str]) -> str:
        moment = datetime.fromtimestamp(int(found[0]) / 1000, UTC)
        return moment.strftime("%Y-%m-%d %H:%M:%S UTC")

    return RefusedError(_MOMENT.sub(said, str(error)), status=error.status)
