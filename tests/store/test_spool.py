"""The spool: what was paid for is kept on disk until the store has it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from store_builders import key, paid_in_vain, sample, start
from store_processes import keys_up_to

from heretix.core.errors import ConfigError, StoreAwayError, StoreBusyError
from heretix.store import SampleWriter, Store, db
from heretix.store import spool as spools
from heretix.store.db import RetryPolicy
from heretix.store.runs import start_executions
from heretix.store.samples import save_samples, select_answers
from heretix.store.spool import Spool, drain_spools
from processes import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection

_LOST = StoreAwayError("`s` broke the connection")


@pytest.fixture(autouse=True)
def no_spools(spool_folder: Path) -> None:
    """Begin without spools: a PostgreSQL database is used again, and may have been left with some."""
    for left in spool_folder.iterdir():
        left.unlink()


@pytest.fixture
def impatient(sqlite_template: Path, tmp_path: Path) -> Iterator[Store]:
    """A SQLite store that gives up on locks at once."""
    path = tmp_path / "heretix.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(path), busy_timeout_ms=1) as store:
        store.write(start_executions, [start()])
        yield store


@contextlib.contextmanager
def locked(store: Store) -> Iterator[None]:
    """Hold the store's lock from outside."""
    with contextlib.closing(sqlite3.connect(store.name, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def spool_and_die(url: str, count: int, stored: int, newer: bool) -> None:
    """In a process of its own: keep answers, store some, and end without a word."""
    with Store.open(url) as store:
        spool = Spool(store, replace=newer)
        for number in range(count):
            spool.append(sample(number))
        store.write(save_samples, [sample(number) for number in range(stored)])
        spool.mark(stored)
        os._exit(0)


def die(url: str, count: int, stored: int = 0, *, newer: bool = False) -> None:
    """Have a process end with answers in its spool."""
    child = PROCESSES.Process(target=spool_and_die, args=(url, count, stored, newer))
    child.start()
    child.join()
    assert child.exitcode == 0


def test_what_a_process_left_is_brought_in_once(started: Store, store_url: str):
    """The next one stores it, and the files are gone."""
    die(store_url, 20, stored=8)
    assert len(started.spools) == 1
    assert drain_spools(started) == 12
    assert started.read(select_answers, keys_up_to(20)) == {key(n): sample(n) for n in range(20)}
    assert (started.spools, drain_spools(started)) == ([], 0)
    assert started.read(paid_in_vain) == []


def test_a_spool_whose_process_is_there_is_left_alone(started: Store):
    """It will store what it has by itself."""
    spool = Spool(started, replace=False)
    spool.append(sample(1))
    assert drain_spools(started) == 0
    assert (len(started.spools), spool.count) == (1, 1)
    spool.mark(1)
    spool.close()
    assert started.spools == []


@pytest.mark.parametrize("newer", [False, True])
def test_answers_of_an_owner_that_is_there_are_stored_and_left_to_it(started: Store, newer: bool):
    """Read beside it, up to a line that isn't all written; that it saves them again is nothing."""
    spool = Spool(started, replace=newer, owner="paused")
    for number in range(4):
        spool.append(sample(number))
    started.write(save_samples, [sample(0)])
    spool.mark(1)
    (path,) = started.spools
    path.write_bytes(path.read_bytes() + b'["torn')
    assert drain_spools(started, {"another"}) == 0
    assert drain_spools(started, {"paused", "another"}) == 3
    assert drain_spools(started, None) == 0
    assert started.read(select_answers, keys_up_to(5)) == {key(n): sample(n) for n in range(4)}
    batch = [sample(number) for number in range(1, 4)]
    assert started.write(save_samples, batch, owner="paused", replace=newer) == {}
    assert (started.read(paid_in_vain), spool.count, started.spools) == ([], 3, [path])
    spool.mark(4)
    spool.close()
    assert started.spools == []


def test_an_owners_file_is_found_whatever_address_it_has_for_the_server(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Only that of an owner is read and locked, whose store this is."""
    monkeypatch.setenv("HERETIX_SPOOL", str(tmp_path))
    with Store.open(postgres_url) as store:
        store.write(start_executions, [start()])
        for number, owner in enumerate(("paused", "another")):
            Spool(store, replace=False, owner=owner).append(sample(number))
        for path in store.spools:
            path.rename(path.with_name(path.name.replace("spool-", "spool-0")))
        assert (store.spools, len(store.spools_beside)) == ([], 2)
        assert drain_spools(store) == drain_spools(store, None) == 0
        assert drain_spools(store, {"paused"}) == 1
        assert store.read(select_answers, keys_up_to(2)) == {key(0): sample(0)}


def test_a_file_that_was_found_before_it_was_locked_is_made_again(
    started: Store, monkeypatch: pytest.MonkeyPatch
):
    """Whoever brings in what others left takes an empty file for one of them."""
    take, tries = spools._is_locked_by_us, []

    def be_late(path: Path, number: int) -> bool:
        if not tries:
            tries.append(path)
            assert drain_spools(started) == 0
        return take(path, number)

    monkeypatch.setattr(spools, "_is_locked_by_us", be_late)
    spool = Spool(started, replace=False)
    spool.append(sample(1))
    assert started.spools != tries
    spool.close()
    assert drain_spools(started) == 1


def test_an_answer_of_somebody_else_stays(started: Store, store_url: str):
    """What was paid for in vain is counted, and replaces nothing."""
    die(store_url, 2)
    first = replace(sample(1), raw_answer='{"prob_true": 0.01}', prob_true=0.01)
    started.write(save_samples, [first])
    assert drain_spools(started) == 1
    assert started.read(select_answers, [key(1)]) == {key(1): first}
    assert started.read(paid_in_vain) == [key(1)]


def test_answers_of_a_run_without_the_cache_replace_older_ones_only(started: Store, store_url: str):
    """As they would have if their process had lived."""
    die(store_url, 2, newer=True)
    old = replace(sample(0), created_at="2001-01-01T00:00:00.000Z", response_id="old")
    new = replace(sample(1), created_at="2101-01-01T00:00:00.000Z", response_id="new")
    started.write(save_samples, [old, new])
    assert drain_spools(started) == 1
    assert started.read(select_answers, keys_up_to(2)) == {key(0): sample(0), key(1): new}


def test_a_torn_line_costs_that_answer_and_no_other(started: Store, store_url: str):
    """The machine may end in the middle of one."""
    die(store_url, 3)
    (path,) = started.spools
    path.write_bytes(path.read_bytes()[:-20])
    assert drain_spools(started) == 2
    assert started.spools == []


async def test_a_writer_keeps_in_the_spool_what_isnt_stored(impatient: Store):
    """With the store locked answers are on disk; when it is free they are stored, and not twice."""
    spool = Spool(impatient, replace=False)
    patience = RetryPolicy(lambda _: None)
    async with SampleWriter(impatient.with_retries(patience), spool=spool) as writer:
        with locked(impatient):
            for number in range(5):
                await writer.put(sample(number))
            (path,) = impatient.spools
            assert path.read_bytes().count(b"\n") == 1 + 5
        await writer.flush()
        assert spool.count == 0
    spool.close()
    assert impatient.spools == []
    assert len(impatient.read(select_answers, keys_up_to(5))) == 5


async def test_after_a_failure_answers_are_still_taken(impatient: Store):
    """Calls in flight come home to the spool when the store is given up."""
    spool, patience = Spool(impatient, replace=False), RetryPolicy(lambda _: None)
    writer = SampleWriter(impatient.with_retries(patience), spool=spool)
    with locked(impatient):
        await writer.put(sample(1))
        patience.give_up()
        with pytest.raises(StoreBusyError):
            await writer.flush()
        await writer.put(sample(2))
        with pytest.raises(StoreBusyError):
            await writer.aclose()
    assert len(writer.unsaved) == spool.count == 2
    spool.close()
    assert drain_spools(impatient) == 2


def test_files_are_followed_by_others(started: Store, monkeypatch: pytest.MonkeyPatch):
    """A long run's spool stays small: what the store has is deleted."""
    monkeypatch.setattr("heretix.store.spool._FILE_BYTES", 2000)
    spool = Spool(started, replace=False)
    for number in range(30):
        spool.append(sample(number))
    files = len(started.spools)
    spool.mark(25)
    assert len(started.spools) < files > 3
    assert spool.count == 5
    spool.close()
    assert drain_spools(started) == 5


def test_a_store_that_comes_back_was_waited_for():
    """What people should know is told twice: that it is away, and that it is back."""
    told, attempts = [], iter([_LOST, _LOST, None])

    def attempt() -> str:
        if (trouble := next(attempts)) is not None:
            raise trouble
        return "done"

    patience = RetryPolicy(told.append)
    assert patience.retry(attempt, None) == "done"  # type: ignore[arg-type]
    assert [text.split(":")[0].split(" after")[0] for text in told] == [
        "waiting for the store",
        "the store is back",
    ]


@contextlib.contextmanager
def looked_at(store: Store) -> Iterator[tuple[Store, Callable[[], None], list[str]]]:
    """A patient store that nobody watches but the test; a look at it, and what is told."""
    told: list[str] = []
    patience = RetryPolicy(told.append)
    outage = patience._outage
    outage._watching = True
    yield store.with_retries(patience), lambda: outage._look(dict(outage._under_way)), told


def test_what_this_process_is_busy_with_is_no_silence_of_the_store(started: Store):
    """Neither work amid a transaction, nor a wait for the turn of another thread."""
    with looked_at(started) as (store, look, told):

        def work(connection: Connection) -> None:
            select_answers(connection, [key(1)])
            for _ in range(20):
                look()

        store.read(work)
        store.write(work)
        if started.is_file:
            with ThreadPoolExecutor() as threads, started.writing() as connection:
                waiting = threads.submit(store.write, work)
                while not store._patience._outage._under_way:
                    time.sleep(0.001)
                work(connection)
            waiting.result()
    assert told == []


def test_a_store_that_blocks_is_told_of(store_url: str, started: Store):
    """So many looks all saw the same statement wait; and again when it is back."""
    with (
        Store.open(store_url, busy_timeout_ms=120_000) as other,
        looked_at(other) as (store, look, told),
        ThreadPoolExecutor() as threads,
    ):
        with started.writing() as connection:
            save_samples(connection, [sample(1)])
            waiting = threads.submit(store.write, save_samples, [sample(1)])
            looks = 0
            while not told:
                look()
                looks += 1
        waiting.result()
    assert looks > db._SILENT_LOOKS
    assert [text.split(";")[0].split(" after")[0] for text in told] == [
        "waiting for the store: it hasn't answered for 5 s",
        "the store is back",
    ]


async def test_whoever_gives_up_waits_no_longer():
    """Also one that began to wait before; another's patience isn't touched."""

    def attempt() -> None:
        raise _LOST

    patience = RetryPolicy(lambda _: None)
    other = patience.fork()
    waiting = asyncio.create_task(asyncio.to_thread(other.retry, attempt, None))  # type: ignore[arg-type]
    other.give_up()
    with pytest.raises(StoreAwayError):
        await waiting
    assert not patience._over.is_set()


def test_a_server_needs_a_folder_of_this_machine(postgres_url: str, tmp_path, monkeypatch):
    """It is refused before anything is paid for that couldn't be kept."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HERETIX_SPOOL", str(tmp_path / "file" / "folder"))
    with Store.open(postgres_url) as store, pytest.raises(ConfigError, match="HERETIX_SPOOL"):
        Spool(store, replace=False)
