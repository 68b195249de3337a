"""Run the migrations for Alembic, on the connection and in the transaction it is given."""

from __future__ import annotations

from alembic import context

from heretix.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite alters few things in place; Alembic then rebuilds the table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
