"""People and jobs: accounts, sessions, tokens, the audit log, and measurements to make."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_ROLE = "role IN ('reader', 'explorer', 'operator')"


def upgrade() -> None:
    """Add what accounts and jobs need."""
    create_people()
    create_sessions()
    create_tokens()
    create_attempts()
    create_audit()
    create_idempotency()
    create_jobs()
    create_job_runs()


def create_people() -> None:
    """One row an account."""
    op.create_table(
        "people",
        sa.Column("person_id", sa.String, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("folded_name", sa.Text, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("password_hash", sa.String),
        sa.Column("jobs_per_day", sa.Integer),
        sa.Column("running_jobs", sa.Integer),
        sa.Column("usd_micros_per_day", sa.BigInteger),
        sa.Column("created_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("person_id", name="pk_people"),
        sa.UniqueConstraint("folded_name", name="uq_people_folded_name"),
        sa.CheckConstraint(_ROLE, name=op.f("ck_people_role")),
    )


def create_sessions() -> None:
    """One row a browser that is signed in."""
    op.create_table(
        "sessions",
        sa.Column("token_sha256", sa.String, nullable=False),
        sa.Column("person_id", sa.String, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("address", sa.Text),
        sa.PrimaryKeyConstraint("token_sha256", name="pk_sessions"),
        sa.ForeignKeyConstraint(["person_id"], ["people.person_id"], name="fk_sessions_person_id"),
    )
    op.create_index("ix_sessions_person_id", "sessions", ["person_id"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])


def create_tokens() -> None:
    """One row a token for programs."""
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.String, nullable=False),
        sa.Column("token_sha256", sa.String, nullable=False),
        sa.Column("person_id", sa.String, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("created_at", sa.String, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("last_used_at", sa.Double),
        sa.Column("revoked_at", sa.String),
        sa.PrimaryKeyConstraint("token_id", name="pk_tokens"),
        sa.UniqueConstraint("token_sha256", name="uq_tokens_token_sha256"),
        sa.ForeignKeyConstraint(["person_id"], ["people.person_id"], name="fk_tokens_person_id"),
        sa.CheckConstraint(_ROLE, name=op.f("ck_tokens_role")),
    )
    op.create_index("ix_tokens_person_id", "tokens", ["person_id"])


def create_attempts() -> None:
    """How often signing in was tried lately."""
    op.create_table(
        "attempts",
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_attempts"),
    )
    op.create_index("ix_attempts_since", "attempts", ["since"])


def create_audit() -> None:
    """Who did what."""
    op.create_table(
        "audit",
        sa.Column("seq", _SEQ, nullable=False),
        sa.Column("at", sa.String, nullable=False),
        sa.Column("person_id", sa.String),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("what", sa.String, nullable=False),
        sa.Column("subject", sa.Text),
        sa.Column("address", sa.Text),
        sa.PrimaryKeyConstraint("seq", name="pk_audit"),
    )
    op.create_index("ix_audit_who", "audit", ["who"])
    op.create_index("ix_audit_what", "audit", ["what"])


def create_idempotency() -> None:
    """Answers to writes that may come again."""
    op.create_table(
        "idempotency",
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("body_sha256", sa.String, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("response_json", sa.Text),
        sa.Column("begun_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_begun_at", "idempotency", ["begun_at"])


def create_jobs() -> None:
    """One row a measurement to make."""
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("owner_id", sa.String, nullable=False),
        sa.Column("owner_name", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("request_json", sa.Text, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("progress_json", sa.Text, nullable=False),
        sa.Column("bundles_json", sa.Text),
        sa.Column("budget_micros", sa.BigInteger),
        sa.Column("spent_micros", sa.BigInteger),
        sa.Column("day", sa.String, nullable=False),
        sa.Column("worker", sa.String),
        sa.Column("lease_until", sa.Double),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("losses", sa.Integer, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("error_kind", sa.String),
        sa.Column("created_at", sa.String, nullable=False),
        sa.Column("updated_at", sa.String, nullable=False),
        sa.Column("started_at", sa.String),
        sa.Column("finished_at", sa.String),
        sa.PrimaryKeyConstraint("job_id", name="pk_jobs"),
        sa.UniqueConstraint("owner_id", "key", name="uq_jobs_owner_id_key"),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled')",
            name=op.f("ck_jobs_state"),
        ),
    )
    op.create_index("ix_jobs_state_created_at", "jobs", ["state", "created_at"])
    op.create_index("ix_jobs_owner_id_day", "jobs", ["owner_id", "day"])
    op.create_index("ix_jobs_created_at_job_id", "jobs", ["created_at", "job_id"])


def create_job_runs() -> None:
    """What a job has measured so far."""
    op.create_table(
        "job_runs",
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("execution_id", sa.String, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("lens", sa.String, nullable=False),
        sa.Column("variant", sa.String),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("prob_true", sa.Double),
        sa.Column("ci_lo", sa.Double),
        sa.Column("ci_hi", sa.Double),
        sa.Column("reason", sa.Text),
        sa.Column("finished_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "run_id", name="pk_job_runs"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_job_runs_job_id"),
    )
