"""The schema: every table, written down once for SQLite and PostgreSQL."""

from __future__ import annotations

import re
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

from heretix.sample import Finish, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Dialect
    from sqlalchemy.schema import SchemaItem

HEAD: Final = "0001"
"""The version that a new store is made with. Whoever changes a table once a version was released
adds a migration and counts this on; a test holds migrated and new stores equal."""
ROOT, TRANSFERS, COMMON = "root", "transfers", "common"
"""Chains that every store has: all events in their order, all transfers, and the events of what
belongs to no episode."""
CHAINS_START: Final = tuple(
    {"name": name, "number": 0, "hash": "0" * 64} for name in (COMMON, ROOT, TRANSFERS)
)
"""Rows of `chains` in a new store: writers lock the root's, so it must exist."""

_ESCAPE: Final = "\x1a"
_UNSTORABLE: Final = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED: Final = re.compile("\x1a([0-9a-f]{4})")


class AnyText(TypeDecorator[str]):
    """Text of any origin: whatever a model wrote can be stored and comes back as it was.

    PostgreSQL refuses NUL, and no database takes half a surrogate pair, though both can come out
    of a provider's JSON. Such a character is kept as U+001A (the control character that means
    "substitute") and four hex digits; everything else is stored as it is.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or _UNSTORABLE.search(value) is None:
            return value
        return _UNSTORABLE.sub(lambda found: f"{_ESCAPE}{ord(found[0]):04x}", value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or _ESCAPE not in value:
            return value
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)


class Unsigned64(TypeDecorator[int]):
    """An integer from 0 to 2^64-1, kept as decimal digits.

    BIGINT ends at 2^63-1, and SQLite turns a larger NUMERIC into a rounded float. Digits are exact
    in both databases and read the same in a shell as in the artifact.
    """

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: int | str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        number = int(value)
        if not 0 <= number < 2**64:
            raise ValueError(f"a seed must be a whole number from 0 to 2^64-1, got {value}")
        return str(number)

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value)


class Word(TypeDecorator[StrEnum]):
    """A member of an enumeration, kept as its text."""

    impl = String
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        return None if value is None else self.kind(value)


metadata: Final = MetaData(
    naming_convention={
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)


def _table(name: str, *items: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *items, **options)


def _required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


schema_version: Final = _table(
    "alembic_version",
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""One row: the migration that the store is at, in the words of Alembic, which updates it."""

runs: Final = _table(
    "runs",
    Column("run_id", String, primary_key=True),
    *_required(AnyText, "claim"),
    *_required(String, "model", "provider", "prompt_version"),
    Column("lens", String, nullable=False, server_default="RPL"),
    *_optional(String, "bundle_id", "variant"),
    *_required(Integer, "K", "R", "T", "B"),
    *_optional(Unsigned64, "seed", "bootstrap_seed"),
    *_optional(Double, "prob_true_rpl", "ci_lo", "ci_hi", "ci_width", "stability_score"),
    *_optional(String, "stability_band"),
    *_optional(Boolean, "is_stable"),
    *_optional(
        Double, "template_iqr_logit", "imbalance_ratio", "rpl_compliance_rate", "cache_hit_rate"
    ),
    *_optional(AnyText, "counts_by_template_json", "sampler_json"),
    *_required(AnyText, "config_json"),
    # The execution that the row speaks of. Not a foreign key: `executions` already points here.
    *_required(String, "execution_id", "created_at", "updated_at"),
    Column("claim_sha256", String, nullable=False, server_default=""),
    Index(None, "updated_at"),
    Index(None, "claim_sha256", "updated_at"),
)
"""One row a recipe: the latest summary. It exists from the first start on, without numbers."""

_NUMBERS: Final = {int: Integer, float: Double, bool: Boolean}


def _sample_columns() -> Iterator[Column[Any]]:
    hints = get_type_hints(Sample)
    # Keys first; the rest in the order of the record.
    for field in sorted(fields(Sample), key=lambda one: one.name not in {"cache_key", "run_id"}):
        kind, *none = get_args(hints[field.name]) or (hints[field.name],)
        column: Any = _NUMBERS.get(kind)
        if column is None and issubclass(kind, StrEnum):
            column = Word(kind)
        elif column is None:
            # What may be missing is another's text; the rest are names of ours.
            column = AnyText if none else String
        yield Column(field.name, column, nullable=bool(none))


samples: Final = _table(
    "samples",
    *_sample_columns(),
    PrimaryKeyConstraint("cache_key"),
    ForeignKeyConstraint(["run_id"], [runs.c.run_id]),
    Index(None, "run_id"),
)
"""One row a `cache_key`: a column for each field of `heretix.sample.Sample`, under its name."""

executions: Final = _table(
    "executions",
    Column("execution_id", String, primary_key=True),
    Column("run_id", ForeignKey(runs.c.run_id), nullable=False),
    *_required(AnyText, "claim"),
    *_required(String, "model"),
    *_required(AnyText, "config_json"),
    *_required(String, "created_at"),
    Index(None, "run_id", "created_at"),
)
"""One row an invocation, written when it starts. One that grows towards a precision moves on to its
larger recipe; once there is a result, the row never changes."""

results: Final = _table(
    "results",
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    *_required(String, "status", "finished_at"),
    *_required(AnyText, "record_json"),
    CheckConstraint("status IN ('ok', 'no_estimate', 'interrupted')", name="status"),
)
"""End of an execution, written once. An execution without one is running, or was killed."""

execution_samples: Final = _table(
    "execution_samples",
    # The sample comes first: whoever deletes one has to find its links.
    Column("cache_key", ForeignKey(samples.c.cache_key), primary_key=True),
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    *_required(Boolean, "from_cache"),
    # Nothing but its key and one bit: the key alone is the table.
    sqlite_with_rowid=False,
)
"""Samples that an execution used, and whether it had to ask for them."""

archives: Final = _table(
    "archives",
    Column("archive_id", Integer, primary_key=True),
    *_required(String, "lake_id", "location", "part"),
    UniqueConstraint("lake_id", "part"),
)
"""Parts of lakes that samples and records were moved to: which lake, where it was, which part."""

archived_samples: Final = _table(
    "archived_samples",
    Column("cache_key", LargeBinary(32), primary_key=True),
    # What a sample says that its row in the lake doesn't: there it follows from the recipe.
    *_required(LargeBinary(32), "prompt_sha256"),
    Column("archive_id", ForeignKey(archives.c.archive_id), nullable=False),
    sqlite_with_rowid=False,
)
"""Answers that were moved to a lake. They are paid for: a look-up that finds one here reads it
there, and fails when it can't. A row of `samples` under the same key is newer, and comes first."""

archived_records: Final = _table(
    "archived_records",
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    Column("archive_id", ForeignKey(archives.c.archive_id), nullable=False),
    *_required(AnyText, "summary_json"),
)
"""Executions whose record was moved to a lake (their `record_json` is empty), with what lists and
accounts need of it."""

prompts: Final = _table(
    "prompts",
    Column("prompt_version", String, primary_key=True),
    *_required(String, "bank_sha256"),
    *_required(AnyText, "source", "system", "user_template", "paraphrases_json"),
    *_required(String, "created_at"),
)
"""The text behind each prompt version, so that one version never means two texts."""

bundles: Final = _table(
    "bundles",
    Column("bundle_id", String, primary_key=True),
    *_required(AnyText, "claim"),
    *_required(String, "lens"),
    *_required(AnyText, "bundle_json"),
    *_required(String, "created_at"),
)
"""Bundles that evidence lenses showed, content-addressed: a row never changes."""

leases: Final = _table(
    "leases",
    Column("cache_key", String, primary_key=True),
    *_required(String, "owner"),
    *_required(Double, "expires_at"),
    Index(None, "owner"),
)
"""Samples and replies that somebody is about to pay for. `expires_at` is in seconds since 1970, by
the database's clock and by no machine's."""

late_samples: Final = Table(
    "late_samples",
    metadata,
    Column("cache_key", String, primary_key=True),
    Column("owner", String, primary_key=True),
    Column("created_at", String, primary_key=True),
    *_optional(String, "run_id"),
    *_optional(AnyText, "response_id"),
    *_optional(Integer, "tokens_in", "tokens_out"),
)
"""Answers that were paid for in vain: another had come first, and the first one stays. `owner` is
who paid; a reply is of no run."""

replies: Final = _table(
    "replies",
    Column("cache_key", String, primary_key=True),
    *_required(String, "model"),
    *_required(AnyText, "text"),
    Column("finish", Word(Finish), nullable=False),
    *_optional(AnyText, "provider_model_id", "response_id"),
    *_optional(Integer, "tokens_in", "tokens_out"),
    *_required(String, "created_at"),
)
"""Answers to calls that are no samples: of judges, readers of stances, writers of queries and of
forms. `cache_key` is the hash of model and request."""

budgets: Final = _table(
    "budgets",
    Column("budget_id", String, primary_key=True),
    *_required(BigInteger, "cap_micros", "spent_micros", "presumed_micros", "held_micros"),
)
"""Budgets of runs, jobs and the whole store, in millionths of a dollar. `spent + held` never
exceeds the cap; `presumed` is the part of what was spent that nobody told."""

holds: Final = _table(
    "holds",
    Column("budget_id", ForeignKey(budgets.c.budget_id), primary_key=True),
    Column("owner", String, primary_key=True),
    *_required(BigInteger, "held_micros"),
    *_required(Boolean, "lapsed"),
    *_required(Double, "expires_at"),
    *_optional(String, "stroke"),
    *_optional(BigInteger, "granted_micros"),
    Index(None, "owner"),
)
"""Money that a process has set aside for its calls. `lapsed`: it vanished, and what it held
counts as spent. `stroke` names the last change, and `granted_micros` is what it brought."""

rates: Final = _table(
    "rates",
    Column("rate_id", String, primary_key=True),
    *_required(Double, "request_at", "token_at", "paused_until"),
    *_optional(BigInteger, "rpm", "tpm"),
)
"""When the next call of a model and key may be made, by requests and by tokens, for all processes:
in seconds since 1970 by the database's clock. `rpm` and `tpm` are limits that its provider told."""

batches: Final = _table(
    "batches",
    Column("batch_id", String, primary_key=True),
    *_required(String, "provider", "model"),
    *_optional(AnyText, "base_url"),
    *_optional(String, "provider_batch_id"),
    *_required(String, "state"),
    *_required(Integer, "requests"),
    *_required(String, "submitted_at", "updated_at"),
    *_optional(String, "expires_at", "submission_id"),
    *_optional(AnyText, "note"),
    UniqueConstraint("provider", "provider_batch_id"),
    CheckConstraint("state IN ('submitting', 'submitted', 'collected', 'abandoned')", name="state"),
    Index(None, "state"),
)
"""One row a batch at a provider, written before it is submitted. `base_url` is null at home."""

batch_samples: Final = _table(
    "batch_samples",
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    Column("cache_key", String, primary_key=True),
    Column("batch_id", ForeignKey(batches.c.batch_id)),
    *_required(Boolean, "owned"),
    *_optional(String, "collected_at"),
    *_optional(AnyText, "error"),
    Index(None, "batch_id"),
    sqlite_with_rowid=False,
)
"""The samples that executions wait for, and the batch that brings each: their own (`owned`),
one that was submitted before, or none when a live run was asking for it already. A failed request
keeps its `error` here, since an older answer may stand in `samples`."""


# The economy: money is 64-bit integers of minor units, moments are milliseconds since 1970, as
# the rules count them.

# SQLite keeps a table in the order of its key, and numbers its rows by itself, only if the key is
# called INTEGER; it holds 64 bits.
_SEQ: Final = BigInteger().with_variant(Integer, "sqlite")

chains: Final = _table(
    "chains",
    Column("name", String, primary_key=True),
    *_required(BigInteger, "number"),
    *_required(String, "hash"),
)
"""The end of each chain: those of `CHAINS_START`, and one an episode, named by its id. Every writer
locks the root's first."""

events: Final = _table(
    "events",
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    *_required(String, "chain"),
    *_required(BigInteger, "number"),
    *_required(String, "move"),
    *_required(AnyText, "rows_json"),
    *_required(BigInteger, "at_ms"),
    # Of the event before it in its chain, and its own.
    *_required(String, "prev_hash", "hash"),
    # Hash of the place, the event, and the root before it.
    *_required(String, "root"),
    Index(None, "chain", "seq"),
)
"""Events: each holds the rows that a move wrote, by table, and has its number in the chain of its
episode and its place among all. The economy's other tables are views of them."""

accounts: Final = _table(
    "accounts",
    Column("id", String, primary_key=True),
    *_required(String, "kind", "currency"),
    *_optional(String, "episode", "person"),
    *_required(BigInteger, "balance", "created_ms"),
    Index(None, "episode"),
    Index(None, "person"),
)
"""Accounts and their balances. `person` is the name behind a user's account."""

transfers: Final = _table(
    "transfers",
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    *_required(String, "id", "body_hash"),
    Column("debit", ForeignKey(accounts.c.id), nullable=False),
    Column("credit", ForeignKey(accounts.c.id), nullable=False),
    *_required(BigInteger, "amount"),
    *_required(String, "currency", "code"),
    *_optional(String, "episode"),
    *_required(String, "group_id", "prev_hash", "hash"),
    *_required(BigInteger, "at_ms"),
    CheckConstraint("amount > 0", name="amount"),
    Index(None, "id", unique=True),
    Index(None, "group_id"),
    Index(None, "debit", "seq"),
    Index(None, "credit", "seq"),
    Index(None, "episode", "seq"),
)
"""The chain. A row is written once and never changes."""

episodes: Final = _table(
    "episodes",
    Column("episode_id", String, primary_key=True),
    *_required(AnyText, "claim"),
    *_required(String, "claim_id", "currency", "state"),
    *_required(Boolean, "is_open"),
    *_optional(String, "terms_hash"),
    # What a bet changes stands in columns, and challenges are rows; `record_json` is everything
    # else, so that neither a bet nor a commitment reads or writes it. The hash lets a reader keep
    # what it has decoded.
    *_optional(BigInteger, "market_money", "market_heretic", "market_orthodox"),
    *_required(Integer, "position_count"),
    # The event that changed a challenge last, or 0: a reader keeps those it has read up to it.
    *_required(BigInteger, "challenges_seq", "clock_ms"),
    *_optional(BigInteger, "close_ms"),
    *_required(AnyText, "record_json"),
    *_required(String, "record_sha256"),
    # The seed that the close and the judges are drawn from, in hex. Nothing shows it before the
    # freeze; then it is part of `record_json`.
    *_required(String, "secret"),
    # Sums over bets and transfers, written with the last payment: a page reads them, and
    # verification works them out again.
    *_optional(AnyText, "tally_json"),
    *_required(BigInteger, "created_ms", "updated_ms"),
    Index(None, "created_ms"),
    Index(None, "state", "created_ms"),
    Index(None, "claim_id"),
)
"""One row an episode, as its last move left it. `is_open`: its pots may still hold money.
`claim_id` is the hash of the folded claim: one episode of each is open at a time."""

positions: Final = _table(
    "positions",
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("account", ForeignKey(accounts.c.id), nullable=False),
    *_required(String, "side"),
    *_required(BigInteger, "stake", "shares", "at_ms"),
    *_required(Boolean, "house"),
    Index(None, "account"),
    CheckConstraint("side IN ('heretic', 'orthodox')", name="side"),
)
"""One row a bet. `shares` are micro-shares, which a market's limit keeps within 64 bits."""

challenges: Final = _table(
    "challenges",
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("account", ForeignKey(accounts.c.id), nullable=False),
    *_required(String, "commitment"),
    *_required(BigInteger, "stake", "least", "at_ms"),
    # What was committed to, from the reveal on.
    *_optional(String, "direction", "bundle_sha256", "nonce"),
    *_required(String, "fate"),
    # The event that wrote the row last, and a hash of the rest of it, which a reader checks.
    *_required(BigInteger, "event_seq"),
    *_required(String, "sha256"),
    Index(None, "episode_id", "event_seq"),
)
"""One row a challenge: a commitment inserts one, its reveal and its ruling update it."""

statements: Final = _table(
    "statements",
    Column("group_id", String, primary_key=True),
    *_optional(String, "episode_id"),
    *_required(String, "move"),
    # What was asked for under the key, and which bet, challenge or dispute came of it: enough
    # to answer a retry with the first result, or to refuse a key used for something else.
    *_required(String, "request_hash"),
    *_optional(Integer, "subject"),
    *_required(AnyText, "lines_json"),
    *_required(BigInteger, "first_seq", "at_ms"),
    Index(None, "episode_id", "first_seq"),
)
"""One row a group of transfers: the move that asked for it, and a sentence for each transfer."""

episode_measurements: Final = _table(
    "episode_measurements",
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("stage", String, primary_key=True),
    *_required(AnyText, "measurement_json", "executions_json"),
    *_optional(String, "bundle_id"),
    *_required(BigInteger, "at_ms"),
)
"""Result of a measurement for an episode, and the executions that it came from.

`stage` is `c0`, `gate:N` for challenge N, `first`, `second`, or `round:N` for dispute N."""

exploration_grants: Final = _table(
    "exploration_grants",
    Column("claim_id", String, primary_key=True),
    *_required(AnyText, "claim"),
    *_required(String, "person"),
    *_required(BigInteger, "amount", "found"),
    *_required(Integer, "day", "week"),
    *_required(AnyText, "evidence_json"),
    *_required(BigInteger, "at_ms"),
    Index(None, "person", "week"),
)
"""Credits by claim: a claim is credited once. Days and weeks are counted from 1970."""

reputation_events: Final = _table(
    "reputation_events",
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("kind", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_required(String, "account"),
    *_optional(Boolean, "passed"),
    *_optional(BigInteger, "amount", "scale"),
    *_required(BigInteger, "at_ms"),
    Index(None, "account", "at_ms"),
    CheckConstraint("kind IN ('attempt', 'reward')", name="kind"),
)
"""Inputs of a person's standing: attempts, passed or not, and settled rewards."""


# People and jobs: moments that are compared are seconds since 1970; those that are shown are
# ISO 8601. An owner is named by id and not by a foreign key: the one person of a store without
# accounts has no row.

people: Final = _table(
    "people",
    Column("person_id", String, primary_key=True),
    *_required(AnyText, "name", "folded_name"),
    *_required(String, "role"),
    *_required(Boolean, "active"),
    *_optional(String, "password_hash"),
    *_optional(Integer, "jobs_per_day", "running_jobs"),
    *_optional(BigInteger, "usd_micros_per_day"),
    *_required(String, "created_at"),
    UniqueConstraint("folded_name"),
    CheckConstraint("role IN ('reader', 'explorer', 'operator')", name="role"),
)
"""One row an account. `folded_name` is the name without case and compatibility forms."""

sessions: Final = _table(
    "sessions",
    Column("token_sha256", String, primary_key=True),
    Column("person_id", ForeignKey(people.c.person_id), nullable=False),
    *_required(Double, "created_at", "seen_at", "expires_at"),
    *_optional(AnyText, "address"),
    Index(None, "person_id"),
    Index(None, "expires_at"),
)
"""One row a browser that is signed in; its token isn't kept, only the hash."""

tokens: Final = _table(
    "tokens",
    Column("token_id", String, primary_key=True),
    *_required(String, "token_sha256"),
    Column("person_id", ForeignKey(people.c.person_id), nullable=False),
    *_required(AnyText, "label"),
    *_required(String, "role", "created_at"),
    *_optional(Double, "expires_at", "last_used_at"),
    *_optional(String, "revoked_at"),
    UniqueConstraint("token_sha256"),
    CheckConstraint("role IN ('reader', 'explorer', 'operator')", name="role"),
    Index(None, "person_id"),
)
"""One row a token for programs. A revoked one stays, so that the log can be understood."""

attempts: Final = _table(
    "attempts",
    Column("subject", AnyText, primary_key=True),
    *_required(Integer, "count"),
    *_required(Double, "since"),
    Index(None, "since"),
)
"""Recent attempts to sign in, by name, by address, and by both."""

audit: Final = _table(
    "audit",
    Column("seq", _SEQ, primary_key=True),
    *_required(String, "at"),
    *_optional(String, "person_id"),
    *_required(AnyText, "who"),
    *_required(String, "what"),
    *_optional(AnyText, "subject", "address"),
    *_optional(String, "request_id"),  # of the answer that told of it
    Index(None, "who"),
    Index(None, "what"),
)
"""The audit log. Rows are only ever added."""

idempotency: Final = _table(
    "idempotency",
    Column("scope", AnyText, primary_key=True),
    Column("key", AnyText, primary_key=True),
    *_required(String, "body_sha256"),
    *_optional(Integer, "status"),
    *_optional(AnyText, "response_json"),
    *_required(Double, "begun_at"),
    Index(None, "begun_at"),
)
"""Answers to writes, so that the same write again gets the same answer. No status: under way."""

jobs: Final = _table(
    "jobs",
    Column("job_id", String, primary_key=True),
    *_required(String, "owner_id"),
    *_required(AnyText, "owner_name"),
    *_optional(AnyText, "key"),
    *_required(AnyText, "request_json"),
    *_required(String, "state"),
    *_required(Boolean, "cancel_requested"),
    *_required(Integer, "revision"),
    *_required(AnyText, "progress_json"),
    *_optional(AnyText, "bundles_json"),
    *_optional(BigInteger, "budget_micros", "spent_micros"),
    *_required(String, "day"),
    *_optional(String, "worker"),
    *_optional(Double, "lease_until"),
    *_required(Integer, "attempt", "losses"),
    *_optional(AnyText, "error"),
    *_optional(String, "error_kind"),
    *_required(String, "created_at", "updated_at"),
    *_optional(String, "started_at", "finished_at"),
    UniqueConstraint("owner_id", "key"),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="state"),
    Index(None, "state", "created_at"),
    Index(None, "owner_id", "day"),
    Index(None, "created_at", "job_id"),
)
"""One row a measurement to make. `revision` grows with every change that a watcher would see;
`day` is the one whose quotas it counts against; `losses` counts workers that vanished with it."""

job_runs: Final = _table(
    "job_runs",
    Column("job_id", ForeignKey(jobs.c.job_id), primary_key=True),
    Column("run_id", String, primary_key=True),
    *_required(String, "execution_id"),
    *_required(AnyText, "claim"),
    *_required(String, "model", "lens"),
    *_optional(String, "variant"),
    *_required(String, "status"),
    *_optional(Double, "prob_true", "ci_lo", "ci_hi"),
    *_optional(AnyText, "reason"),
    *_required(String, "finished_at"),
)
"""Records of a job so far, by recipe: the latest execution of each."""

panels: Final = _table(
    "panels",
    Column("panel", String, primary_key=True),
    *_required(AnyText, "fixed_json", "bundles_json"),
    *_required(String, "created_at"),
)
"""A panel by name: what all of its waves are measured with, which never changes."""

waves: Final = _table(
    "waves",
    Column("panel", ForeignKey(panels.c.panel), primary_key=True),
    Column("wave", Integer, primary_key=True),
    *_required(String, "started_at"),
    *_optional(String, "finished_at"),
)
"""Waves of panels, from 0 on. Answers older than `started_at` are no part of one."""

wave_runs: Final = _table(
    "wave_runs",
    Column("panel", String, primary_key=True),
    Column("wave", Integer, primary_key=True),
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    *_required(AnyText, "claim"),
    *_required(String, "model", "lens"),
    *_optional(Double, "prob_true", "ci_lo", "ci_hi"),
    *_required(AnyText, "cells_json", "beside_json", "served_json"),
    *_required(Integer, "attempted", "answered"),
    *_required(String, "finished_at"),
    ForeignKeyConstraint(["panel", "wave"], [waves.c.panel, waves.c.wave]),
)
"""Summary of a wave's records by claim, model and lens: `cells_json` has the mean log-odds of
each wording, or null; `beside_json` what stands beside the belief in its record, or null. The
records hold the answers themselves."""
