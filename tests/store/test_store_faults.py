"""When the database can't: locked, full, damaged, gone. Each says what to do."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from store_builders import key, result, sample, start
from store_processes import run_together, save_again_and_again

from heretix.core.errors import StoreBusyError, StoreError, StoreFullError, UsageError
from heretix.store import Store
from heretix.store.runs import (
    find_record,
    finish_executions,
    select_executions,
    select_runs,
    start_executions,
)
from heretix.store.samples import save_samples, select_answers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(sqlite_template: Path, tmp_path: Path) -> Path:
    """A file with one execution begun in it."""
    path = tmp_path / "heretix.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(path)) as store:
        store.write(start_executions, [start()])
    return path


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Another connection that lets nobody write."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


def test_a_locked_file_is_waited_for_and_then_reported(path: Path):
    """Reading goes on beside the lock; writing says who is in the way; later all is well."""
    with Store.open(str(path), busy_timeout_ms=20) as store:
        with exclusive_lock(path):
            assert store.read(select_answers, [key(1)]) == {}
            with pytest.raises(StoreBusyError, match=r"heretix.sqlite` is locked .*; wait for it"):
                store.write(save_samples, [sample(1)])
        store.write(save_samples, [sample(1)])
        assert store.read(select_answers, [key(1)]) == {key(1): sample(1)}


def test_a_new_file_that_is_locked_is_reported(tmp_path: Path):
    """Making a store waits for its turn as well."""
    path = tmp_path / "heretix.sqlite"
    with exclusive_lock(path), pytest.raises(StoreBusyError):
        Store.open(str(path), busy_timeout_ms=20)
    Store.open(str(path)).close()


def test_a_transaction_inside_another_fails_rather_than_hangs(path: Path):
    """SQLite has one writer: a thread that waits for itself is told so."""
    with (
        Store.open(str(path), busy_timeout_ms=20) as store,
        store.writing(),
        pytest.raises(StoreBusyError),
    ):
        store.write(save_samples, [sample(1)])


def test_a_full_disk_keeps_what_was_stored(path: Path):
    """The batch that doesn't fit is refused whole, and the store goes on when there is room."""
    with Store.open(str(path)) as store:
        store.write(save_samples, [sample(1)])
        limit = "PRAGMA max_page_count = {}"
        with store.reading() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(limit.format(pages + 2))
        large = [sample(number, raw_answer="x" * 10_000) for number in range(2, 20)]
        with pytest.raises(StoreFullError, match="has no space left; free some"):
            store.write(save_samples, large)
        assert store.read(select_answers, [key(n) for n in range(20)]) == {key(1): sample(1)}
        with store.reading() as connection:
            connection.exec_driver_sql(limit.format(2**30))
        store.write(save_samples, large)
        assert len(store.read(select_answers, [key(n) for n in range(20)])) == 19


def test_a_damaged_file_is_reported(path: Path):
    """Overwritten pages come out as a message, not as a traceback of another library."""
    with Store.open(str(path)) as store:
        store.write(save_samples, [sample(number) for number in range(200)])
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged; restore a copy"):
        _read_everything(path)


def test_messages_hold_no_data(started: Store):
    """What models wrote doesn't end up in logs through an error message."""
    with pytest.raises(StoreError) as caught:
        started.write(save_samples, [sample(1, run_id="unknown", raw_answer="private")])
    assert "private" not in str(caught.value)
    assert "private" not in str(caught.value.__cause__)


def test_half_a_character_is_refused_in_our_words(started: Store):
    """What a shell hands over needn't be text; looking for it is the user's mistake, not ours."""
    with pytest.raises(UsageError, match=r"half a character .* got U\+DCFF at position 1; type it"):
        started.read(find_record, "a\udcffb")


def test_store_errors_cross_process_boundaries(started: Store):
    """A worker's error is readable where the work was asked for."""
    with pytest.raises(StoreError) as caught:
        started.write(save_samples, [sample(1, run_id="unknown")])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.postgres
def test_a_locked_table_is_waited_for_and_then_reported(postgres_url: str):
    """PostgreSQL waits as long as SQLite does, not for ever."""
    with Store.open(postgres_url) as other, Store.open(postgres_url, busy_timeout_ms=20) as store:
        store.write(start_executions, [start()])
        with other.writing() as connection:
            connection.execute(text("LOCK TABLE samples"))
            with pytest.raises(StoreBusyError, match="is locked by another process; wait for it"):
                store.write(save_samples, [sample(1)])
        store.write(save_samples, [sample(1)])
        assert store.read(select_answers, [key(1)]) == {key(1): sample(1)}


@pytest.mark.postgres
def test_a_lost_connection_is_replaced(postgres_url: str):
    """The transaction that was cut says so; the next finds a new connection."""
    with Store.open(postgres_url) as other, Store.open(postgres_url) as store:
        store.write(start_executions, [start()])
        with pytest.raises(StoreError, match="broke the connection; run the command again"):
            _be_cut_off(store, other)
        store.write(save_samples, [sample(1)])
        assert store.read(select_answers, [key(1)]) == {key(1): sample(1)}


@pytest.mark.postgres
def test_a_server_that_restarted_is_no_trouble(postgres_url: str):
    """Connections that died while nobody used them are replaced without a word."""
    with Store.open(postgres_url) as other, Store.open(postgres_url) as store:
        store.write(start_executions, [start()])
        with other.writing() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        store.write(save_samples, [sample(1)])
        assert store.read(select_answers, [key(1)]) == {key(1): sample(1)}


@pytest.mark.postgres
def test_a_user_without_rights_is_told_so(postgres_url: str):
    """A store that may only be read can be read."""
    with Store.open(postgres_url) as store, store.writing() as connection:
        connection.execute(text("DROP ROLE IF EXISTS reader"))
        connection.execute(text("CREATE ROLE reader LOGIN"))
        connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"))
    with Store.open(postgres_url.replace("postgres:@", "reader@")) as store:
        assert store.read(select_runs) == []
        with pytest.raises(StoreError, match="refused access; check the user"):
            store.write(start_executions, [start()])
    with Store.open(postgres_url) as store, store.writing() as connection:
        connection.execute(text("DROP OWNED BY reader"))
        connection.execute(text("DROP ROLE reader"))


def test_processes_that_save_the_same_samples_never_deadlock(started: Store, store_url: str):
    """Whatever order they come in, they are written in one: there is no deadlock."""
    numbers = list(range(100))
    orders = [(store_url, numbers), (store_url, numbers[::-1]), (store_url, numbers[50:])]
    assert run_together(save_again_and_again, orders) == [0, 0, 0]
    assert started.read(select_answers, [key(number) for number in numbers]).keys() == {
        key(number) for number in numbers
    }


def test_an_error_ends_its_transaction(started: Store):
    """After a refusal the store works on, and nothing of the refused part is there."""
    with pytest.raises(StoreError):
        started.write(finish_executions, [result(1), result(99)])
    assert started.read(select_executions, start().run["run_id"])[0].status is None
    started.write(finish_executions, [result(1)])
    assert started.read(select_executions, start().run["run_id"])[0].status == "ok"


def _be_cut_off(store: Store, other: Store) -> None:
    with store.writing() as connection:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        with other.reading() as killer:
            killer.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        connection.execute(text("SELECT 1"))


def _read_everything(path: Path) -> None:
    with Store.open(str(path)) as store:
        store.read(select_answers, [key(number) for number in range(200)])
