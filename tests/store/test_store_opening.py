"""Opening a store: every way to name one, and every way it can go wrong."""

from __future__ import annotations

import sqlite3
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, make_url, text
from store_builders import RUN_ID, key, sample, start
from store_processes import open_store, run_together

from heretix.core.errors import ConfigError, RecordError, StoreError
from heretix.store import Store
from heretix.store.runs import select_runs, start_executions
from heretix.store.samples import save_samples, select_answers
from heretix.store.schema import HEAD, metadata

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_a_path_or_a_url_names_a_file(tmp_path: Path, form: str):
    """The directory and the file are made, and the store is called by its path."""
    path = tmp_path / "new" / "deep" / "heretix.sqlite"
    with Store.open(form.format(path)) as store:
        store.write(start_executions, [start()])
        assert store.name == str(path)
    assert path.exists()


@pytest.mark.parametrize("name", ["100%.sqlite", "what?.sqlite", "a#b.sqlite", "wäre gut 🧪.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str):
    """A path is a path, not a URL with parts."""
    Store.open(str(tmp_path / name)).close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store that is open doesn't move when the process changes its directory."""
    monkeypatch.chdir(tmp_path)
    with Store.open("runs/heretix.sqlite") as store:
        monkeypatch.chdir("/")
        store.write(start_executions, [start()])
        assert store.name == "runs/heretix.sqlite"
    with Store.open(str(tmp_path / "runs" / "heretix.sqlite"), create=False) as store:
        assert [run.run_id for run in store.read(select_runs)] == [RUN_ID]


@pytest.mark.postgres
@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql", "postgres"])
def test_postgresql_is_spoken_to_by_psycopg(empty_postgres_url: str, scheme: str):
    """The URL that every PostgreSQL tool takes works as it is."""
    url = empty_postgres_url.replace("postgresql", scheme, 1)
    with Store.open(url) as store:
        store.write(start_executions, [start()])
        assert [run.run_id for run in store.read(select_runs)] == [RUN_ID]


def test_opening_again_changes_nothing(empty_url: str):
    """What was stored is there the next time."""
    with Store.open(empty_url) as store:
        store.write(start_executions, [start()])
        store.write(save_samples, [sample(1)])
    with Store.open(empty_url, create=False) as store:
        assert store.read(select_answers, [key(1)]) == {key(1): sample(1)}


@pytest.mark.parametrize("attempt", range(3))
def test_processes_may_open_a_new_store_at_once(empty_url: str, attempt: int):
    """Whoever comes first makes the tables, and the others find them."""
    assert run_together(open_store, [(empty_url,)] * 4) == [0] * 4
    with Store.open(empty_url, create=False) as store, store.reading() as connection:
        assert connection.scalars(text("SELECT version_num FROM alembic_version")).all() == [HEAD]


def test_sqlite_is_set_up_as_it_should_be(tmp_path: Path):
    """Readers beside a writer, keys that are checked, and patience with other processes."""
    with (
        Store.open(str(tmp_path / "heretix.sqlite")) as store,
        store.reading() as connection,
    ):
        pragmas = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas]
    assert values == ["wal", 1, 10_000, 1]


def test_a_writing_transaction_takes_the_lock_at_once(tmp_path: Path):
    """Nobody can slip in between a transaction's first read and its first write."""
    path = tmp_path / "heretix.sqlite"
    with Store.open(str(path)) as store:
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        with store.writing(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        with store.reading() as connection:
            connection.execute(text("SELECT * FROM runs"))
            other.execute("BEGIN IMMEDIATE")
        other.close()


def test_a_missing_file_is_not_made_to_read_from_it(tmp_path: Path):
    """Asking about measurements where there are none makes nothing and says what to do."""
    path = tmp_path / "runs" / "heretix.sqlite"
    with pytest.raises(RecordError, match=r"nothing was measured here yet; run `heretix run`"):
        Store.open(str(path), create=False)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_not_filled_to_read_from_it(empty_url: str, tmp_path: Path):
    """The same for a database that is there and holds nothing."""
    (tmp_path / "heretix.sqlite").touch()
    with pytest.raises(RecordError, match="nothing was measured here yet"):
        Store.open(empty_url, create=False)
    assert (tmp_path / "heretix.sqlite").stat().st_size == 0
    # Nothing was locked or left half made, either.
    Store.open(empty_url).close()


def test_a_store_of_a_newer_heretix_is_left_alone(store_url: str):
    """Older code doesn't guess what newer tables mean."""
    with Store.open(store_url) as store, store.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"made by a newer Heretix \(schema 9999, .*upgrade"):
        Store.open(store_url)


def test_another_programs_database_is_left_alone(empty_url: str):
    """A `runs` table that Heretix didn't make isn't touched."""
    with Store.open(empty_url) as store, store.writing() as connection:
        metadata.drop_all(connection)
        connection.execute(text("CREATE TABLE runs (distance INTEGER)"))
    with pytest.raises(StoreError, match="belongs to another program: it has a table `runs`"):
        Store.open(empty_url)


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path):
    """A text file named by mistake is refused and stays what it was."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)
    with pytest.raises(StoreError, match=r"notes.txt` isn't a Heretix store; choose another path"):
        Store.open(str(path))
    assert path.read_text() == "not a database " * 100


def test_a_directory_is_no_store(tmp_path: Path):
    """A directory can't be opened, and the message says so."""
    with pytest.raises(StoreError, match=r"can't be opened; check that it is a file"):
        Store.open(str(tmp_path))


def test_a_file_in_place_of_the_directory_is_reported(tmp_path: Path):
    """The directory can't be made where a file is."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match=r"can't be made: .*; choose another path"):
        Store.open(str(tmp_path / "runs" / "heretix.sqlite"))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory"])
def test_a_database_in_memory_is_refused(url: str):
    """A store that forgets everything isn't one."""
    with pytest.raises(ConfigError, match="must be a file, got a database in memory"):
        Store.open(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:s3cret@h/db", "must be SQLite or PostgreSQL, got mysql://"),
        ("postgresql+asyncpg://u:s3cret@h/db", r"got postgresql\+asyncpg://"),
        ("postgresql://u:s3cret@h:port/db", "must be a path or a database URL"),
        ("  ", "must name a store, got nothing"),
    ],
)
def test_other_addresses_are_refused_without_repeating_secrets(url: str, message: str):
    """The message says what is possible, and never what the password is."""
    with pytest.raises(ConfigError, match=message) as caught:
        Store.open(url)
    assert "s3cret" not in str(caught.value)
    assert "runs/heretix.sqlite" in str(caught.value)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@127.0.0.1:1/db",
        "postgresql://u@127.0.0.1:1/db?password=s3cret&sslpassword=s3cret",
    ],
)
def test_a_server_that_is_away_is_named_without_its_password(url: str):
    """The message names the address, the remedy and no secret."""
    with pytest.raises(StoreError, match=r"127.0.0.1:1/db.*can't be reached") as caught:
        Store.open(url)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in str(caught.value.__cause__)


@pytest.mark.postgres
def test_a_missing_postgresql_database_says_how_to_make_one(empty_postgres_url: str):
    """The server is there, the database isn't: `createdb` is the remedy."""
    url = make_url(empty_postgres_url).set(database="nowhere")
    with pytest.raises(StoreError, match=r'createdb.*database "nowhere" does not exist'):
        Store.open(url.render_as_string(hide_password=False))


def test_a_missing_driver_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    """PostgreSQL is an extra; who asks for it without it learns how to install it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"uv sync --extra postgres.*'\.\[postgres\]'"):
        Store.open("postgresql://u:s3cret@h/db")


def test_a_read_only_store_can_be_read(tmp_path: Path):
    """Reading needs no right to write; writing says what is missing."""
    path = tmp_path / "heretix.sqlite"
    with Store.open(str(path)) as store:
        store.write(start_executions, [start()])
        store.write(save_samples, [sample(1)])
    with Store.open(f"sqlite:///file:{path}?mode=ro&uri=true", create=False) as store:
        assert store.read(select_answers, [key(1)]) == {key(1): sample(1)}
        with pytest.raises(StoreError, match="can't be written to; check who may write"):
            store.write(save_samples, [sample(2)])


def test_tables_are_made_once_for_all(empty_url: str):
    """A new store has every table of the schema and nothing else."""
    with Store.open(empty_url) as store, store.reading() as connection:
        tables = set(inspect(connection).get_table_names())
    assert tables == set(metadata.tables)
