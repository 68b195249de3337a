"""Live sampling and lenses: leases, attempts, the lens of a run, and bundles of evidence."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what live sampling and lenses need."""
    count_attempts()
    create_leases()
    name_lenses()
    create_bundles()


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


def name_lenses() -> None:
    """Runs made before this were of the raw prior."""
    op.add_column("runs", sa.Column("lens", sa.String, nullable=False, server_default="RPL"))
    op.add_column("runs", sa.Column("bundle_id", sa.String))
    op.add_column("runs", sa.Column("variant", sa.String))


def create_bundles() -> None:
    """What evidence lenses showed."""
    op.create_table(
        "bundles",
        sa.Column("bundle_id", sa.String, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("lens", sa.String, nullable=False),
        sa.Column("bundle_json", sa.Text, nullable=False),
        sa.Column("created_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("bundle_id", name="pk_bundles"),
    )
