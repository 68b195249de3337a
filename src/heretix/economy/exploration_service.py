"""Exploration service: credits for stored findings, their decay, and everybody's standing."""

from __future__ import annotations

import decimal
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

from heretix.core.canonical import encode_json
from heretix.core.errors import RecordError, UsageError
from heretix.core.lenses import EARNING, RPL
from heretix.economy import exploration as rules
from heretix.economy.exchange import DAY_MS, claim_id_of, day_of, read_grants
from heretix.economy.ledger import XC, AccountKind, house_account, user_account
from heretix.economy.rewards import to_ppm
from heretix.measurement.anomalies import find_anomalies
from heretix.measurement.record import RunRecord
from heretix.store import economy as queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, RowMapping

    from heretix.economy.exchange import Exchange, LedgerTransaction
    from heretix.measurement.anomalies import Anomaly

    Rows: TypeAlias = Sequence[RowMapping]

_PLANTED: Final = ("mock:", "sim:")
_WEEK_DAYS: Final = 7
_EVER: Final = (-(2**63), 2**63)
_TOUCHING: Final = ('"reputation_events"', f'"{XC.code}"')
"""Words in the rows of events that change a standing; credits are granted by a transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Two measurements of one claim by one model: an evidence lens and the raw prior lie apart."""

    claim: str
    model: str
    lens: str
    evidence: rules.Interval
    prior: rules.Interval
    executions: tuple[str, str]
    """Of the evidence lens, then of the raw prior."""

    @property
    def simulated(self) -> bool:
        """A finding whose numbers were planted: good for practice, and no discovery."""
        return self.model.startswith(_PLANTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """A finding, and what it earned."""

    person: str
    finding: Finding
    crediting: rules.Crediting
    balance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """Amount that decay took from one person."""

    person: str
    amount: int
    balance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One person, as the leaderboard shows them."""

    person: str
    reputation_ppm: int
    rewards: int
    """Settled rewards that the reputation follows from."""
    attempts: int
    passed: int
    failure_rate_ppm: int
    credits: int
    granted: int
    """Credits before decay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """An anomaly, and whether its claim was credited already."""

    anomaly: Anomaly
    credited_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A standing that was worked out, what from, and the moments in which it stays as it is."""

    standing: Standing
    events: Rows
    grants: Rows
    from_ms: int
    until_ms: int
    """The moment that one of its rewards is a day older."""


class ExplorationService:
    """Credit findings and decay credits on an exchange, one transaction a move."""

    def __init__(
        self,
        exchange: Exchange,
        *,
        credits_: rules.CreditRules | None = None,
        stakes: rules.StakeRules | None = None,
    ) -> None:
        self._exchange = exchange
        self._store = exchange.store
        self._credits = credits_ or rules.CreditRules()
        self._stakes = stakes or rules.StakeRules()
        # The leaderboard by name, as of an event of the chain.
        self._ranked: tuple[int, Mapping[str, _Ranked]] | None = None

    def credit(
        self,
        person: str,
        claim: str,
        *,
        model: str | None = None,
        lens: str | None = None,
        simulated: bool = False,
    ) -> Credited:
        """Credit a stored finding: what its two intervals are apart at least. Once per claim.

        With `simulated`, planted models count too; that is for practice.
        """
        from heretix.measurement.verify import verify_run

        user_account(person, XC.code)  # A name that can't hold credits is refused before any work.
        records = self._store.read(queries.select_claim_records, claim)
        runs = [RunRecord.model_validate_json(text) for text in records]
        finding = _choose_finding(_read_findings(runs), claim, model=model, lens=lens)
        if finding.simulated and not simulated:
            raise UsageError(
                f"`{finding.model}` is simulated: its beliefs were planted, and earn nothing; "
                "measure with a model, or practise with --simulated"
            )
        for run in runs:
            if run.execution_id in finding.executions and not verify_run(run).ok:
                raise RecordError(
                    f"`{run.execution_id}` must follow from its own samples, and doesn't; "
                    "`heretix verify` says where, and measuring again gives a sound one"
                )
        claim_id = claim_id_of(claim)
        with self._exchange.transaction() as transaction:
            connection = transaction.connection
            day = day_of(read_grants(connection, person), transaction.at_ms)
            crediting = rules.credit(
                finding.evidence,
                finding.prior,
                claim_credited=queries.select_grant(connection, claim_id) is not None,
                credited_this_week=queries.sum_credited_in_week(
                    connection, person, day // _WEEK_DAYS
                ),
                rules=self._credits,
            )
            if crediting.amount > 0:
                _grant(transaction, person, claim_id, finding, crediting, day=day)
            balance = queries.select_people(connection).get(person, 0)
        return Credited(person=person, finding=finding, crediting=crediting, balance=balance)

    def decay(self) -> list[Burn]:
        """Burn what has decayed by today, for everybody. On the same day again: nothing."""
        burns = []
        with self._exchange.transaction() as transaction:
            connection = transaction.connection
            for person, balance in sorted(queries.select_people(connection).items()):
                grants = read_grants(connection, person)
                today = day_of(grants, transaction.at_ms)
                due = rules.burn_due(
                    grants,
                    burnt=sum(grant.amount for grant in grants) - balance,
                    today=today,
                    half_life_days=self._credits.half_life_days,
                )
                group = rules.burn_group(person, today, due)
                if due > 0 and queries.select_statement(connection, group.id) is None:
                    transaction.post(group, move="decay", request={"day": today, "amount": due})
                    burns.append(Burn(person=person, amount=due, balance=balance - due))
        return burns

    def standing(self, person: str) -> Standing:
        """Return one person's standing today."""
        now_ms = self._exchange.clock.now_ms()
        with self._store.reading() as connection:
            events = queries.select_reputation_rows(connection, person=person)
            grants = queries.select_grants(connection, person=person)
            return self._standing(person, events, grants, queries.select_people(connection), now_ms)

    def leaderboard(self, *, limit: int | None = 20) -> list[Standing]:
        """List everybody who explored or challenged: by reputation, then by credits.

        It is kept up to date: what has been worked out before is read and worked out again only
        for people whom an event has touched since, or one of whose rewards is a day older.
        """
        now_ms = self._exchange.clock.now_ms()
        with self._store.reading() as connection:
            seq = queries.select_last_event(connection)
            last, ranked = self._ranked or (0, {})
            if not last or last > seq:
                last, ranked = 0, self._rank_all(connection, now_ms)
            elif last < seq:
                ranked = {**ranked, **self._rank_touched(connection, last, now_ms)}
        aged = {
            name: self._rank(one.events, one.grants, name, one.standing.credits, now_ms)
            for name, one in ranked.items()
            if not one.from_ms <= now_ms < one.until_ms
        }
        if last < seq or aged:
            ranked = {**ranked, **aged}
            self._ranked = seq, ranked
        found = [one.standing for one in ranked.values()]
        found.sort(key=lambda s: (-s.reputation_ppm, -s.credits, s.person))
        return found[:limit]

    def _rank_all(self, connection: Connection, now_ms: int) -> dict[str, _Ranked]:
        """Rank everybody from the tables."""
        # Sorted out once: looking through everything for each person would take their product.
        events_of = _group_by_person(queries.select_reputation_rows(connection))
        grants_of = _group_by_person(queries.select_grants(connection))
        balances = queries.select_people(connection)
        ranked = {}
        for name in events_of.keys() | grants_of.keys():
            events, grants = events_of.get(name, ()), grants_of.get(name, ())
            ranked[name] = self._rank(events, grants, name, balances.get(name, 0), now_ms)
        return ranked

    def _rank_touched(self, connection: Connection, seq: int, now_ms: int) -> dict[str, _Ranked]:
        """Rank whomever events after one touch: by attempts, rewards, or money of credits."""
        touched: set[str] = set()
        for text in queries.select_event_rows_after(connection, seq, _TOUCHING):
            tables = json.loads(text)
            touched |= {row["account"] for row in tables.get("reputation_events", ())}
            for row in tables.get("transfers", ()):
                touched |= {row["debit"], row["credit"]} if row["currency"] == XC.code else set()
        owners = {
            row["person"] for row in queries.select_accounts_by_id(connection, touched).values()
        }
        ranked = {}
        balances = queries.select_people(connection) if owners else {}
        for name in owners - {None}:
            events = queries.select_reputation_rows(connection, person=name)
            grants = queries.select_grants(connection, person=name)
            if events or grants:
                ranked[name] = self._rank(events, grants, name, balances.get(name, 0), now_ms)
        return ranked

    def _rank(self, events: Rows, grants: Rows, name: str, credits_: int, now_ms: int) -> _Ranked:
        """Work out a standing, and for how long it stays as it is."""
        # Rewards age in whole days, each from its own moment on.
        rewarded = [row["at_ms"] for row in events if row["kind"] == "reward"]
        turns = [(at_ms, max(0, now_ms - at_ms) // DAY_MS) for at_ms in rewarded]
        return _Ranked(
            standing=self._standing(name, events, grants, {name: credits_}, now_ms),
            events=events,
            grants=grants,
            from_ms=max((at + days * DAY_MS for at, days in turns if days), default=_EVER[0]),
            until_ms=min((at + (days + 1) * DAY_MS for at, days in turns), default=_EVER[1]),
        )

    def prospects(self, *, limit: int = 20) -> list[Prospect]:
        """List the anomaly feed, with whose claim each is already."""
        listed = [anomaly for anomaly in find_anomalies(self._store) if anomaly.listed][:limit]
        taken = self.find_credited([anomaly.claim for anomaly in listed])
        return [Prospect(anomaly=one, credited_to=taken.get(one.claim)) for one in listed]

    def find_credited(self, claims: Iterable[str]) -> dict[str, str]:
        """Find who was credited with each of these claims, where somebody was."""
        with self._store.reading() as connection:
            found = {one: queries.select_grant(connection, claim_id_of(one)) for one in set(claims)}
        return {claim: grant["person"] for claim, grant in found.items() if grant is not None}

    def _standing(
        self, person: str, own: Rows, grants: Rows, balances: Mapping[str, int], now_ms: int
    ) -> Standing:
        """Work out the standing of a person from what is their own."""
        rewards = [
            rules.PastReward(
                amount=row["amount"],
                scale=row["scale"],
                age_days=max(0, now_ms - row["at_ms"]) // DAY_MS,
            )
            for row in own
            if row["kind"] == "reward"
        ]
        attempts = [bool(row["passed"]) for row in own if row["kind"] == "attempt"]
        return Standing(
            person=person,
            reputation_ppm=rules.reputation(rewards, self._credits),
            rewards=len(rewards),
            attempts=len(attempts),
            passed=sum(attempts),
            failure_rate_ppm=rules.failure_rate(attempts, self._stakes),
            credits=balances.get(person, 0),
            granted=sum(row["amount"] for row in grants),
        )


def _group_by_person(rows: Rows) -> dict[str, list[RowMapping]]:
    """Sort rows out by person, each in their order."""
    found: dict[str, list[RowMapping]] = {}
    for row in rows:
        found.setdefault(row["person"], []).append(row)
    return found


def _read_findings(records: Sequence[RunRecord]) -> list[Finding]:
    """Find what stored records of one claim hold; the latest of each model and lens."""
    runs = {(run.model, run.lens): run for run in records}
    return [
        Finding(
            claim=run.claim,
            model=model,
            lens=lens,
            evidence=_interval(run),
            prior=_interval(runs[model, RPL]),
            executions=(run.execution_id, runs[model, RPL].execution_id),
        )
        for (model, lens), run in sorted(runs.items(), key=lambda item: item[0])
        if lens in EARNING and (model, RPL) in runs
    ]


def _choose_finding(
    findings: Sequence[Finding], claim: str, *, model: str | None, lens: str | None
) -> Finding:
    """Choose the finding that is meant. A claim is credited once, so nobody guesses for a user."""
    fitting = [
        finding
        for finding in findings
        if model in {None, finding.model} and (lens or finding.lens).upper() == finding.lens
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed = "; ".join(f"--model {f.model} --lens {f.lens}" for f in fitting)
        raise UsageError(f"`{claim}` was measured in several ways; name one: {listed}")
    raise RecordError(
        f"`{claim}` has no raw prior and evidence lens ({' or '.join(EARNING)}) of the same model "
        "here; `heretix lens` measures them"
    )


def _interval(run: RunRecord) -> rules.Interval:
    """The 95% interval, rounded outwards: rounding never makes a gap."""
    assert run.aggregates.ci95 is not None, "only records with an estimate are looked at"
    lo, hi = (Decimal(repr(end)) for end in run.aggregates.ci95)
    trusted = run.evidence is None or run.evidence.trusted is not False
    return rules.Interval(
        lo_ppm=to_ppm(lo, rounding=decimal.ROUND_FLOOR),
        hi_ppm=to_ppm(hi, rounding=decimal.ROUND_CEILING),
        stable=bool(run.aggregates.is_stable) and trusted,
    )


def _grant(
    transaction: LedgerTransaction,
    person: str,
    claim_id: str,
    finding: Finding,
    crediting: rules.Crediting,
    *,
    day: int,
) -> None:
    transaction.add_accounts([house_account(AccountKind.ISSUANCE, XC.code)])
    transaction.add_accounts([user_account(person, XC.code)], person=person)
    group = rules.credit_group(person, claim_id, crediting.amount)
    transaction.post(group, move="credit", request={"claim_id": claim_id, "person": person})
    row = {
        "claim_id": claim_id,
        "claim": finding.claim,
        "person": person,
        "amount": crediting.amount,
        "found": crediting.found,
        "day": day,
        "week": day // _WEEK_DAYS,
        "evidence_json": encode_json(finding),
        "at_ms": transaction.at_ms,
    }
    queries.add_grant(transaction.connection, row)
    transaction.record("exploration_grants", [row])
