"""The history of the schema, run by Alembic. A migration is never edited once it was released."""
