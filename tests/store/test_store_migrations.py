"""Migrations and schema say the same on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from heretix.store import Store
from heretix.store.db import Location, alembic_config, make_engine
from heretix.store.schema import HEAD, metadata

if TYPE_CHECKING:
    from pathlib import Path


OLD_RUN = """
    INSERT INTO runs (run_id, claim, model, provider, prompt_version, "K", "R", "T", "B",
                      config_json, execution_id, created_at, updated_at)
    VALUES ('run', 'claim', 'gpt-5', 'openai', 'v1', 8, 2, 8, 5000, '{}', 'exec', 'then', 'then')
"""
OLD_SAMPLE = """
    INSERT INTO samples (cache_key, run_id, prompt_sha256, paraphrase_idx, replicate_idx,
                         json_valid, raw_answer, latency_ms, created_at)
    VALUES ('key', 'run', 'sha', 0, 0, true, '{}', 1, 'then')
"""


def test_the_newest_migration_is_the_head_that_the_code_knows(store: Store):
    """The shortcut that spares importing Alembic must not lie."""
    with store.reading() as connection:
        script = ScriptDirectory.from_config(alembic_config(connection))
    assert script.get_heads() == [HEAD]


def test_models_and_migrations_agree(store: Store):
    """Alembic finds nothing to add, drop or change in a migrated store."""
    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_a_forgotten_migration_would_be_noticed(store: Store):
    """The comparison above can fail: a column that no migration made is seen."""
    with store.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE runs DROP COLUMN sampler_json")
    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert [change[0] for change in compare_metadata(context, metadata)] == ["add_column"]


def test_migrated_tables_equal_tables_made_from_the_models(store: Store):
    """Column by column, key by key, name by name."""
    with store.writing() as connection:
        migrated = _description(connection)
        metadata.drop_all(connection)
        metadata.create_all(connection)
        made = _description(connection)
    assert migrated == made


def test_every_older_store_is_brought_up_to_date(empty_url: str):
    """Whichever migration a store stopped at, opening it ends at the newest, rows kept."""
    location = Location.parse(empty_url)
    engine = make_engine(location, busy_timeout_ms=1000)
    with engine.begin() as connection:
        config = alembic_config(connection)
        first = ScriptDirectory.from_config(config).get_base()
        assert first is not None
        command.upgrade(config, first)
        connection.execute(text(OLD_RUN))
        connection.execute(text(OLD_SAMPLE))
    engine.dispose()
    with Store.open(empty_url, create=False) as store:
        assert store.cached(["key"])["key"].raw_answer == "{}"
        with store.reading() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []


def test_ids_are_not_looked_up_by_scanning(tmp_path: Path):
    """The look-ups that grow with the store use an index."""
    questions = {
        "SELECT * FROM samples WHERE run_id = ''": "ix_samples_run_id",
        "SELECT * FROM executions WHERE run_id = '' ORDER BY created_at DESC": (
            "ix_executions_run_id_created_at"
        ),
        "SELECT * FROM runs ORDER BY updated_at DESC LIMIT 20": "ix_runs_updated_at",
        "SELECT * FROM runs WHERE claim_sha256 = '' ORDER BY updated_at DESC": (
            "ix_runs_claim_sha256_updated_at"
        ),
        "SELECT * FROM samples WHERE cache_key IN ('a', 'b')": "sqlite_autoindex_samples_1",
    }
    with (
        Store.open(str(tmp_path / "heretix.sqlite")) as store,
        store.reading() as connection,
    ):
        for question, index in questions.items():
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {question}").all()
            assert any(index in row.detail for row in plan), (question, plan)


def _description(connection: Connection) -> dict[str, Any]:
    """Everything that the database says of each table, types as text."""
    inspector = inspect(connection)
    return {
        name: {
            # By name: a column that was added later stands last.
            "columns": {
                column["name"]: column | {"type": str(column["type"])}
                for column in inspector.get_columns(name)
            },
            "pk": inspector.get_pk_constraint(name),
            "fk": sorted(map(str, inspector.get_foreign_keys(name))),
            "ix": sorted(map(str, inspector.get_indexes(name))),
            "ck": sorted(map(str, inspector.get_check_constraints(name))),
            "options": inspector.get_table_options(name),
        }
        for name in metadata.tables
    }
