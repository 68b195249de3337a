"""Runs are found by their claim: claims are too long to be indexed, their digests aren't."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_AT_ONCE = 1000


def upgrade() -> None:
    """Add the digest of the claim, for the runs that are there too."""
    op.add_column("runs", sa.Column("claim_sha256", sa.String, nullable=False, server_default=""))
    digest_claims()
    op.create_index("ix_runs_claim_sha256_updated_at", "runs", ["claim_sha256", "updated_at"])


def digest_claims() -> None:
    """What `heretix.store.executions` writes from now on."""
    connection = op.get_bind()
    runs = sa.table("runs", sa.column("run_id"), sa.column("claim"), sa.column("claim_sha256"))
    change = (
        sa.update(runs)
        .where(runs.c.run_id == sa.bindparam("of_run_id"))
        .values(claim_sha256=sa.bindparam("digest"))
    )
    found = connection.execute(sa.select(runs.c.run_id, runs.c.claim)).all()
    for start in range(0, len(found), _AT_ONCE):
        rows = [
            {"of_run_id": run_id, "digest": hashlib.sha256(claim.encode()).hexdigest()}
            for run_id, claim in found[start : start + _AT_ONCE]
        ]
        connection.execute(change, rows)
