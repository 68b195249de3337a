"""The schema: every table, written down once for SQLite and PostgreSQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

if TYPE_CHECKING:
    from sqlalchemy import Dialect

HEAD: Final = "0001"
"""The version that a new store is made with. Whoever changes a table once a version was released
adds a migration and counts this on; a test holds migrated and new stores equal."""
CHAIN_START: Final = {"id": 1, "last_seq": 0, "last_hash": "0" * 64}
"""The one row of `chain` in a new store: writers lock it, so it must exist."""

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
        """Escape what a database can't hold."""
        if value is None or _UNSTORABLE.search(value) is None:
            return value
        return _UNSTORABLE.sub(lambda found: f"{_ESCAPE}{ord(found[0]):04x}", value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Give the text back as it was."""
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
        """Write the digits, of an integer or of a string of them."""
        if value is None:
            return None
        number = int(value)
        if not 0 <= number < 2**64:
            raise ValueError(f"a seed must be a whole number from 0 to 2^64-1, got {value}")
        return str(number)

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        """Read the digits."""
        return None if value is None else int(value)


metadata: Final = MetaData(
    naming_convention={
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

schema_version: Final = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""One row: the migration that the store is at, in the words of Alembic, which updates it."""

runs: Final = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("claim", AnyText, nullable=False),
    Column("model", String, nullable=False),
    Column("provider", String, nullable=False),
    Column("prompt_version", String, nullable=False),
    Column("lens", String, nullable=False, server_default="RPL"),
    Column("bundle_id", String),
    Column("variant", String),
    Column("K", Integer, nullable=False),
    Column("R", Integer, nullable=False),
    Column("T", Integer, nullable=False),
    Column("B", Integer, nullable=False),
    Column("seed", Unsigned64),
    Column("bootstrap_seed", Unsigned64),
    Column("prob_true_rpl", Double),
    Column("ci_lo", Double),
    Column("ci_hi", Double),
    Column("ci_width", Double),
    Column("stability_score", Double),
    Column("stability_band", String),
    Column("is_stable", Boolean),
    Column("template_iqr_logit", Double),
    Column("imbalance_ratio", Double),
    Column("rpl_compliance_rate", Double),
    Column("cache_hit_rate", Double),
    Column("counts_by_template_json", AnyText),
    Column("sampler_json", AnyText),
    Column("config_json", AnyText, nullable=False),
    # The execution that the row speaks of. Not a foreign key: `executions` already points here.
    Column("execution_id", String, nullable=False),
    Column("created_at", String, nullable=False),
    Column("updated_at", String, nullable=False),
    Column("claim_sha256", String, nullable=False, server_default=""),
    Index(None, "updated_at"),
    Index(None, "claim_sha256", "updated_at"),
)
"""One row a recipe: the latest summary. It exists from the first start on, without numbers."""

samples: Final = Table(
    "samples",
    metadata,
    Column("cache_key", String, primary_key=True),
    Column("run_id", ForeignKey(runs.c.run_id), nullable=False),
    Column("prompt_sha256", String, nullable=False),
    Column("paraphrase_idx", Integer, nullable=False),
    Column("replicate_idx", Integer, nullable=False),
    Column("prob_true", Double),
    Column("logit", Double),
    Column("json_valid", Boolean, nullable=False),
    Column("noncompliance", String),
    Column("raw_answer", AnyText),
    Column("error", AnyText),
    Column("provider_model_id", AnyText),
    Column("response_id", AnyText),
    Column("fingerprint", AnyText),
    Column("tokens_in", Integer),
    Column("tokens_out", Integer),
    Column("temperature", Double),
    Column("attempts", Integer, nullable=False, server_default="1"),
    Column("latency_ms", Integer, nullable=False),
    Column("created_at", String, nullable=False),
    Index(None, "run_id"),
)
"""One row a `cache_key`: the fields of `heretix.sample.Sample`, under their names."""

executions: Final = Table(
    "executions",
    metadata,
    Column("execution_id", String, primary_key=True),
    Column("run_id", ForeignKey(runs.c.run_id), nullable=False),
    Column("claim", AnyText, nullable=False),
    Column("model", String, nullable=False),
    Column("config_json", AnyText, nullable=False),
    Column("created_at", String, nullable=False),
    Index(None, "run_id", "created_at"),
)
"""One row an invocation, written when it starts and never updated."""

results: Final = Table(
    "results",
    metadata,
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    Column("status", String, nullable=False),
    Column("finished_at", String, nullable=False),
    Column("record_json", AnyText, nullable=False),
    CheckConstraint("status IN ('ok', 'no_estimate', 'interrupted')", name="status"),
)
"""How an execution ended, written once. An execution without one is running, or was killed."""

execution_samples: Final = Table(
    "execution_samples",
    metadata,
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    Column("cache_key", ForeignKey(samples.c.cache_key), primary_key=True),
    Column("from_cache", Boolean, nullable=False),
    # Nothing but its key and one bit: the key alone is the table.
    sqlite_with_rowid=False,
)
"""Which samples an execution used, and which of them it didn't have to ask for."""

prompts: Final = Table(
    "prompts",
    metadata,
    Column("prompt_version", String, primary_key=True),
    Column("bank_sha256", String, nullable=False),
    Column("source", AnyText, nullable=False),
    Column("system", AnyText, nullable=False),
    Column("user_template", AnyText, nullable=False),
    Column("paraphrases_json", AnyText, nullable=False),
    Column("created_at", String, nullable=False),
)
"""The text behind each prompt version, so that one version never means two texts."""

bundles: Final = Table(
    "bundles",
    metadata,
    Column("bundle_id", String, primary_key=True),
    Column("claim", AnyText, nullable=False),
    Column("lens", String, nullable=False),
    Column("bundle_json", AnyText, nullable=False),
    Column("created_at", String, nullable=False),
)
"""What evidence lenses showed, content-addressed: a row never changes."""

leases: Final = Table(
    "leases",
    metadata,
    Column("cache_key", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index(None, "owner"),
)
"""Samples that somebody is about to pay for. `expires_at` counts seconds since 1970."""


batches: Final = Table(
    "batches",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("provider", String, nullable=False),
    Column("model", String, nullable=False),
    Column("base_url", AnyText),
    Column("provider_batch_id", String),
    Column("state", String, nullable=False),
    Column("requests", Integer, nullable=False),
    Column("submitted_at", String, nullable=False),
    Column("updated_at", String, nullable=False),
    Column("expires_at", String),
    Column("note", AnyText),
    UniqueConstraint("provider", "provider_batch_id"),
    CheckConstraint("state IN ('submitting', 'submitted', 'collected', 'abandoned')", name="state"),
    Index(None, "state"),
)
"""One row a batch at a provider, written before it is submitted. `base_url` is null at home."""

batch_samples: Final = Table(
    "batch_samples",
    metadata,
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    Column("cache_key", String, primary_key=True),
    Column("batch_id", ForeignKey(batches.c.batch_id)),
    Column("owned", Boolean, nullable=False),
    Column("collected_at", String),
    Column("error", AnyText),
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

chain: Final = Table(
    "chain",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("last_hash", String, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)
"""The end of the chain, in one row (`CHAIN_START`). Every writer locks it first."""

accounts: Final = Table(
    "accounts",
    metadata,
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("currency", String, nullable=False),
    Column("episode", String),
    Column("person", String),
    Column("balance", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Index(None, "episode"),
    Index(None, "person"),
)
"""Who can hold money, and what they hold. `person` is the name behind a user's account."""

transfers: Final = Table(
    "transfers",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    Column("id", String, nullable=False),
    Column("body_hash", String, nullable=False),
    Column("debit", ForeignKey(accounts.c.id), nullable=False),
    Column("credit", ForeignKey(accounts.c.id), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("code", String, nullable=False),
    Column("episode", String),
    Column("group_id", String, nullable=False),
    Column("prev_hash", String, nullable=False),
    Column("hash", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    CheckConstraint("amount > 0", name="amount"),
    Index(None, "id", unique=True),
    Index(None, "group_id"),
    Index(None, "debit", "seq"),
    Index(None, "credit", "seq"),
    Index(None, "episode", "seq"),
)
"""The chain. A row is written once and never changes."""

episodes: Final = Table(
    "episodes",
    metadata,
    Column("episode_id", String, primary_key=True),
    Column("claim", AnyText, nullable=False),
    Column("currency", String, nullable=False),
    Column("state", String, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("terms_hash", String),
    # What a bet changes stands in columns; `record_json` is everything else, so that a bet
    # neither reads nor writes it. The hash lets a reader keep what it has decoded.
    Column("market_money", BigInteger),
    Column("market_heretic", BigInteger),
    Column("market_orthodox", BigInteger),
    Column("position_count", Integer, nullable=False),
    Column("clock_ms", BigInteger, nullable=False),
    Column("close_ms", BigInteger),
    Column("record_json", AnyText, nullable=False),
    Column("record_sha256", String, nullable=False),
    # The seed that the close and the judges are drawn from, in hex. Nothing shows it before the
    # freeze; then it is part of `record_json`.
    Column("secret", String, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Index(None, "created_ms"),
    Index(None, "state", "created_ms"),
)
"""One row an episode, as its last move left it. `is_open`: its pots may still hold money."""

positions: Final = Table(
    "positions",
    metadata,
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("account", ForeignKey(accounts.c.id), nullable=False),
    Column("side", String, nullable=False),
    Column("stake", BigInteger, nullable=False),
    Column("shares", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("house", Boolean, nullable=False),
    Index(None, "account"),
    CheckConstraint("side IN ('heretic', 'orthodox')", name="side"),
)
"""One row a bet. `shares` are micro-shares, which a market's limit keeps within 64 bits."""

statements: Final = Table(
    "statements",
    metadata,
    Column("group_id", String, primary_key=True),
    Column("episode_id", String),
    Column("move", String, nullable=False),
    # What was asked for under the key, and which bet, challenge or dispute came of it: enough
    # to answer a retry with the first result, or to refuse a key used for something else.
    Column("request_hash", String, nullable=False),
    Column("subject", Integer),
    Column("lines_json", AnyText, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "episode_id", "first_seq"),
)
"""One row a group of transfers: the move that asked for it, and a sentence for each transfer."""

episode_measurements: Final = Table(
    "episode_measurements",
    metadata,
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("stage", String, primary_key=True),
    Column("measurement_json", AnyText, nullable=False),
    Column("executions_json", AnyText, nullable=False),
    Column("bundle_id", String),
    Column("at_ms", BigInteger, nullable=False),
)
"""What an episode was told by a measurement, and the executions that it came from.

`stage` is `c0`, `gate:N` for challenge N, `first`, `second`, or `round:N` for dispute N."""

exploration_grants: Final = Table(
    "exploration_grants",
    metadata,
    Column("claim_id", String, primary_key=True),
    Column("claim", AnyText, nullable=False),
    Column("person", String, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("found", BigInteger, nullable=False),
    Column("day", Integer, nullable=False),
    Column("week", Integer, nullable=False),
    Column("evidence_json", AnyText, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "person", "week"),
)
"""Credits by claim: a claim is credited once. Days and weeks are counted from 1970."""

reputation_events: Final = Table(
    "reputation_events",
    metadata,
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("kind", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("account", String, nullable=False),
    Column("passed", Boolean),
    Column("amount", BigInteger),
    Column("scale", BigInteger),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "account", "at_ms"),
    CheckConstraint("kind IN ('attempt', 'reward')", name="kind"),
)
"""What a person's standing follows from: attempts, passed or not, and settled rewards."""


# People and jobs: moments that are compared are seconds since 1970; those that are shown are
# ISO 8601. An owner is named by id and not by a foreign key: the one person of a store without
# accounts has no row.

people: Final = Table(
    "people",
    metadata,
    Column("person_id", String, primary_key=True),
    Column("name", AnyText, nullable=False),
    Column("folded_name", AnyText, nullable=False),
    Column("role", String, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("password_hash", String),
    Column("jobs_per_day", Integer),
    Column("running_jobs", Integer),
    Column("usd_micros_per_day", BigInteger),
    Column("created_at", String, nullable=False),
    UniqueConstraint("folded_name"),
    CheckConstraint("role IN ('reader', 'explorer', 'operator')", name="role"),
)
"""One row an account. `folded_name` is the name without case and compatibility forms."""

sessions: Final = Table(
    "sessions",
    metadata,
    Column("token_sha256", String, primary_key=True),
    Column("person_id", ForeignKey(people.c.person_id), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("address", AnyText),
    Index(None, "person_id"),
    Index(None, "expires_at"),
)
"""One row a browser that is signed in; its token isn't kept, only the hash."""

tokens: Final = Table(
    "tokens",
    metadata,
    Column("token_id", String, primary_key=True),
    Column("token_sha256", String, nullable=False),
    Column("person_id", ForeignKey(people.c.person_id), nullable=False),
    Column("label", AnyText, nullable=False),
    Column("role", String, nullable=False),
    Column("created_at", String, nullable=False),
    Column("expires_at", Double),
    Column("last_used_at", Double),
    Column("revoked_at", String),
    UniqueConstraint("token_sha256"),
    CheckConstraint("role IN ('reader', 'explorer', 'operator')", name="role"),
    Index(None, "person_id"),
)
"""One row a token for programs. A revoked one stays, so that the log can be understood."""

attempts: Final = Table(
    "attempts",
    metadata,
    Column("subject", AnyText, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("since", Double, nullable=False),
    Index(None, "since"),
)
"""How often signing in was tried lately, by name, by address, and by both."""

audit: Final = Table(
    "audit",
    metadata,
    Column("seq", _SEQ, primary_key=True),
    Column("at", String, nullable=False),
    Column("person_id", String),
    Column("who", AnyText, nullable=False),
    Column("what", String, nullable=False),
    Column("subject", AnyText),
    Column("address", AnyText),
    Index(None, "who"),
    Index(None, "what"),
)
"""Who did what. Rows are only ever added."""

idempotency: Final = Table(
    "idempotency",
    metadata,
    Column("scope", AnyText, primary_key=True),
    Column("key", AnyText, primary_key=True),
    Column("body_sha256", String, nullable=False),
    Column("status", Integer),
    Column("response_json", AnyText),
    Column("begun_at", Double, nullable=False),
    Index(None, "begun_at"),
)
"""Answers to writes, so that the same write again gets the same answer. No status: under way."""

jobs: Final = Table(
    "jobs",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("owner_id", String, nullable=False),
    Column("owner_name", AnyText, nullable=False),
    Column("key", AnyText),
    Column("request_json", AnyText, nullable=False),
    Column("state", String, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("progress_json", AnyText, nullable=False),
    Column("bundles_json", AnyText),
    Column("budget_micros", BigInteger),
    Column("spent_micros", BigInteger),
    Column("day", String, nullable=False),
    Column("worker", String),
    Column("lease_until", Double),
    Column("attempt", Integer, nullable=False),
    Column("losses", Integer, nullable=False),
    Column("error", AnyText),
    Column("error_kind", String),
    Column("created_at", String, nullable=False),
    Column("updated_at", String, nullable=False),
    Column("started_at", String),
    Column("finished_at", String),
    UniqueConstraint("owner_id", "key"),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="state"),
    Index(None, "state", "created_at"),
    Index(None, "owner_id", "day"),
    Index(None, "created_at", "job_id"),
)
"""One row a measurement to make. `revision` grows with every change that a watcher would see;
`day` is the one whose quotas it counts against; `losses` counts workers that vanished with it."""

job_runs: Final = Table(
    "job_runs",
    metadata,
    Column("job_id", ForeignKey(jobs.c.job_id), primary_key=True),
    Column("run_id", String, primary_key=True),
    Column("execution_id", String, nullable=False),
    Column("claim", AnyText, nullable=False),
    Column("model", String, nullable=False),
    Column("lens", String, nullable=False),
    Column("variant", String),
    Column("status", String, nullable=False),
    Column("prob_true", Double),
    Column("ci_lo", Double),
    Column("ci_hi", Double),
    Column("reason", AnyText),
    Column("finished_at", String, nullable=False),
)
"""What a job has measured so far, by recipe: the latest execution of each."""
