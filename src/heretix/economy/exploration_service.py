"""Exploration service: credits for stored findings, their decay, and everybody's standing."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

from heretix.core.canonical import encode_json, sha256_hex
from heretix.core.errors import RecordError, UsageError
from heretix.core.lenses import EARNING, RPL
from heretix.economy import exploration as rules
from heretix.economy.exchange import DAY_MS, day_of, read_grants
from heretix.economy.ledger import XC, AccountKind, house_account, user_account
from heretix.economy.rewards import to_ppm
from heretix.evidence.text.fold import fold
from heretix.measurement.anomalies import find_anomalies
from heretix.measurement.record import RunRecord
from heretix.measurement.verify import verify_run
from heretix.store import economy as queries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import RowMapping

    from heretix.economy.exchange import Exchange, LedgerTransaction
    from heretix.measurement.anomalies import Anomaly

    Rows: TypeAlias = Sequence[RowMapping]

_PLANTED: Final = ("mock:", "sim:")
_WEEK_DAYS: Final = 7


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
        """Its numbers were planted: good for practice, and no discovery."""
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


def claim_id_of(claim: str) -> str:
    """Key that a claim is credited under: its words, whatever case, spacing or last dot."""
    return sha256_hex(fold(claim).casefold().strip(" .!?").encode())


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
        user_account(person, XC.code)  # A name that can't hold credits is refused before any work.
        records = self._store.read(queries.claim_records, claim)
        runs = [RunRecord.model_validate_json(text) for text in records]
        finding = _choose_finding(_findings_in(runs), claim, model=model, lens=lens)
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
                claim_credited=queries.grant_of(connection, claim_id) is not None,
                credited_this_week=queries.credited_in_week(connection, person, day // _WEEK_DAYS),
                rules=self._credits,
            )
            if crediting.amount > 0:
                _grant(transaction, person, claim_id, finding, crediting, day=day)
            balance = queries.people(connection).get(person, 0)
        return Credited(person=person, finding=finding, crediting=crediting, balance=balance)

    def decay(self) -> list[Burn]:
        """Burn what has decayed by today, for everybody. On the same day again: nothing."""
        burns = []
        with self._exchange.transaction() as transaction:
            connection = transaction.connection
            for person, balance in sorted(queries.people(connection).items()):
                grants = read_grants(connection, person)
                today = day_of(grants, transaction.at_ms)
                due = rules.burn_due(
                    grants,
                    burnt=sum(grant.amount for grant in grants) - balance,
                    today=today,
                    half_life_days=self._credits.half_life_days,
                )
                group = rules.burn_group(person, today, due)
                if due > 0 and queries.statement(connection, group.id) is None:
                    transaction.post(group, move="decay", request={"day": today, "amount": due})
                    burns.append(Burn(person=person, amount=due, balance=balance - due))
        return burns

    def standing(self, person: str) -> Standing:
        """Return one person's standing today."""
        with self._store.reading() as connection:
            events = queries.events(connection, person=person)
            grants = queries.grants(connection, person=person)
            return self._standing(person, events, grants, queries.people(connection))

    def leaderboard(self, *, limit: int | None = 20) -> list[Standing]:
        """List everybody who explored or challenged: by reputation, then by credits."""
        with self._store.reading() as connection:
            events = queries.events(connection)
            grants = queries.grants(connection)
            balances = queries.people(connection)
        names = {row["person"] for row in (*events, *grants)}
        found = [self._standing(name, events, grants, balances) for name in names]
        found.sort(key=lambda s: (-s.reputation_ppm, -s.credits, s.person))
        return found[:limit]

    def prospects(self, *, limit: int = 20) -> list[Prospect]:
        """List the anomaly feed, with whose claim each is already."""
        listed = [anomaly for anomaly in find_anomalies(self._store) if anomaly.listed]
        found = []
        with self._store.reading() as connection:
            for anomaly in listed[:limit]:
                grant = queries.grant_of(connection, claim_id_of(anomaly.claim))
                taken = None if grant is None else grant["person"]
                found.append(Prospect(anomaly=anomaly, credited_to=taken))
        return found

    def _standing(
        self, person: str, events: Rows, grants: Rows, balances: Mapping[str, int]
    ) -> Standing:
        now_ms = self._exchange.clock.now_ms()
        own = [row for row in events if row["person"] == person]
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
            granted=sum(row["amount"] for row in grants if row["person"] == person),
        )


def _findings_in(records: Sequence[RunRecord]) -> list[Finding]:
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
        f"`{claim}` has no raw prior and evidence lens (HEL or SEL) of the same model here; "
        "`heretix lens` measures them"
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
    queries.add_grant(
        transaction.connection,
        {
            "claim_id": claim_id,
            "claim": finding.claim,
            "person": person,
            "amount": crediting.amount,
            "found": crediting.found,
            "day": day,
            "week": day // _WEEK_DAYS,
            "evidence_json": encode_json(finding),
            "at_ms": transaction.at_ms,
        },
    )
