"""Baseline: `heretix.store.db` makes a new store from the schema and stamps it with this version.

The next migration has `down_revision = "0001"`. Alembic never runs this one.
"""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
