"""The tables of people and jobs: accounts, sessions, tokens, the audit log, and what to measure.

Moments that are compared are seconds since 1970; those that are shown are ISO 8601. Whoever owns
something is named by id and not by a foreign key: the one person of a store without accounts has
no row.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    UniqueConstraint,
)

from heretix.store.schema import AnyText, metadata

__all__ = [
    "attempts",
    "audit",
    "idempotency",
    "job_runs",
    "jobs",
    "people",
    "sessions",
    "tokens",
]

# SQLite numbers rows by itself only if their key is called INTEGER; it holds 64 bits.
_SEQ: Final = BigInteger().with_variant(Integer, "sqlite")

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
