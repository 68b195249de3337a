"""The schema: new stores are made from it, older ones are migrated to it, on both databases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from schema_baseline import make_baseline
from sqlalchemy import Connection, inspect, select, text
from store_builders import key, sample, start
from store_processes import run_together, upgrade_store

from heretix.core.errors import StoreError
from heretix.store import Store, db
from heretix.store.db import MIGRATIONS, Location, make_engine
from heretix.store.runs import start_executions
from heretix.store.samples import save_samples, select_answers
from heretix.store.schema import CHAINS_START, HEAD, chains, metadata

_VERSION = text("SELECT version_num FROM alembic_version")
_NEXT = """
from alembic import op
import sqlalchemy as sa

revision, down_revision, branch_labels, depends_on = "0002", "0001", None, None


def upgrade():
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("mood", sa.String, nullable=False, server_default="calm"))
        table.alter_column("claim", type_=sa.String)
"""


def test_the_newest_migration_is_the_head_that_the_code_knows():
    """The shortcut that spares importing Alembic must not lie."""
    config = Config()
    config.set_main_option("script_location", MIGRATIONS)
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_a_new_store_agrees_with_the_schema(store: Store):
    """Alembic finds nothing to add, drop or change."""
    assert differences(store) == []


def test_a_forgotten_migration_would_be_noticed(store: Store):
    """The comparison above can fail: a column that nothing made is seen."""
    with store.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE runs DROP COLUMN sampler_json")
    assert differences(store) == ["add_column"]


def test_a_store_that_began_at_the_baseline_equals_a_new_one(empty_url: str):
    """Column by column, key by key, name by name, once its migrations have run."""
    begin_at_baseline(empty_url)
    with Store.open(empty_url, create=False) as store, store.writing() as connection:
        migrated = description(connection)
        assert connection.scalars(_VERSION).all() == [HEAD]
        assert tuple(connection.execute(select(chains)).mappings()) == CHAINS_START
        metadata.drop_all(connection)
        metadata.create_all(connection)
        assert migrated == description(connection)


def test_an_older_store_is_brought_up_to_date(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Opening it runs the migrations that it lacks, once, and keeps its rows."""
    fill(store_url)
    release(tmp_path, monkeypatch, _NEXT)
    for _ in range(2):
        with Store.open(store_url, create=False) as store:
            assert store.read(select_answers, [key(1)]) == {key(1): sample(1)}
            with store.reading() as connection:
                assert connection.scalars(text("SELECT mood FROM runs")).all() == ["calm"]
                assert connection.scalars(_VERSION).all() == ["0002"]


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All of it or nothing: what ran before the failure is undone."""
    fill(store_url)
    release(tmp_path, monkeypatch, f"{_NEXT}    op.execute('SELECT * FROM nowhere')\n")
    with pytest.raises(StoreError, match="nowhere"):
        Store.open(store_url)
    monkeypatch.undo()
    with Store.open(store_url) as store:
        assert store.read(select_answers, [key(1)]) == {key(1): sample(1)}
        assert differences(store) == []


@pytest.mark.parametrize("attempt", range(2))
def test_processes_may_bring_an_older_store_up_to_date_at_once(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: int
):
    """Whoever comes first migrates, and the others find it done."""
    fill(store_url)
    folder = release(tmp_path, monkeypatch, _NEXT)
    assert run_together(upgrade_store, [(store_url, folder)] * 3) == [0] * 3


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


def description(connection: Connection) -> dict[str, Any]:
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


def differences(store: Store) -> list[str]:
    """Whatever Alembic would change to make the tables those of the schema."""
    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [change[0] for change in compare_metadata(context, metadata)]


def begin_at_baseline(url: str) -> None:
    """Make a store as the first version of the schema had it."""
    engine = make_engine(Location.parse(url), busy_timeout_ms=1000)
    with engine.begin() as connection:
        make_baseline(connection)
    engine.dispose()


def fill(url: str) -> None:
    """Put a run and a sample into a store."""
    with Store.open(url) as store:
        store.write(start_executions, [start()])
        store.write(save_samples, [sample(1)])


def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, migration: str) -> str:
    """Let this process know a schema 0002 that comes from `migration`."""
    import heretix.store.migrations

    folder = tmp_path / "migrations"
    shutil.copytree(Path(heretix.store.migrations.__path__[0]), folder)
    (folder / "versions" / "0002_next.py").write_text(migration, encoding="utf-8")
    monkeypatch.setattr(db, "MIGRATIONS", str(folder))
    monkeypatch.setattr(db, "HEAD", "0002")
    return str(folder)
