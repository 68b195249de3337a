"""Batches at providers, and the samples that executions wait for from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what batches need."""
    create_batches()
    create_batch_samples()


def create_batches() -> None:
    """One row a batch, written before it is submitted."""
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.String, nullable=False),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("base_url", sa.Text),
        sa.Column("provider_batch_id", sa.String),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("requests", sa.Integer, nullable=False),
        sa.Column("submitted_at", sa.String, nullable=False),
        sa.Column("updated_at", sa.String, nullable=False),
        sa.Column("expires_at", sa.String),
        sa.Column("note", sa.Text),
        sa.PrimaryKeyConstraint("batch_id", name="pk_batches"),
        sa.UniqueConstraint(
            "provider", "provider_batch_id", name="uq_batches_provider_provider_batch_id"
        ),
        sa.CheckConstraint(
            "state IN ('submitting', 'submitted', 'collected', 'abandoned')",
            name=op.f("ck_batches_state"),
        ),
    )
    op.create_index("ix_batches_state", "batches", ["state"])


def create_batch_samples() -> None:
    """One row a sample that an execution waits for."""
    op.create_table(
        "batch_samples",
        sa.Column("execution_id", sa.String, nullable=False),
        sa.Column("cache_key", sa.String, nullable=False),
        sa.Column("batch_id", sa.String),
        sa.Column("owned", sa.Boolean, nullable=False),
        sa.Column("collected_at", sa.String),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("execution_id", "cache_key", name="pk_batch_samples"),
        sa.ForeignKeyConstraint(
            ["execution_id"], ["executions.execution_id"], name="fk_batch_samples_execution_id"
        ),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.batch_id"], name="fk_batch_samples_batch_id"
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_batch_samples_batch_id", "batch_samples", ["batch_id"])
