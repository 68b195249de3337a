"""Leases on samples that are about to be called for, and how many calls a sample took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what live sampling needs."""
    count_attempts()
    create_leases()


def count_attempts() -> None:
    """Samples made before this took one call each, as far as anybody knows."""
    op.add_column("samples", sa.Column("attempts", sa.Integer, nullable=False, server_default="1"))


def create_leases() -> None:
    """One row a sample that somebody is about to pay for."""
    op.create_table(
        "leases",
        sa.Column("cache_key", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("cache_key", name="pk_leases"),
    )
    op.create_index("ix_leases_owner", "leases", ["owner"])
