"""The writing thread: nothing put is lost, nothing blocks, and trouble is heard of."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event
from store_builders import key, sample, start
from store_processes import keys_up_to, write_until_killed

from heretix.core.errors import HeretixError, StoreBusyError, StoreError
from heretix.store import SampleWriter, Store
from heretix.store.runs import start_executions
from heretix.store.samples import save_samples, select_answers
from processes import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = 10


@pytest.fixture
def impatient(sqlite_template: Path, tmp_path: Path) -> Iterator[Store]:
    """A SQLite store that gives up on locks at once."""
    path = tmp_path / "heretix.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(path), busy_timeout_ms=1) as store:
        store.write(start_executions, [start()])
        yield store


@pytest.fixture
def patient(impatient: Store) -> Iterator[Store]:
    """The same store, opened by somebody who waits."""
    with Store.open(impatient.name) as store:
        yield store


@contextlib.contextmanager
def locked(store: Store) -> Iterator[None]:
    """Hold the store's lock from outside."""
    with contextlib.closing(sqlite3.connect(store.name, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def put_and_raise(store: Store, error: BaseException) -> None:
    """A block that puts a sample and ends badly."""
    async with SampleWriter(store) as writer:
        await writer.put(sample(1))
        raise error


async def put_and_flush(store: Store) -> None:
    """A block that puts a sample and makes sure of it."""
    async with SampleWriter(store) as writer:
        await writer.put(sample(1))
        await writer.flush()


async def test_what_was_put_is_stored_after_a_flush(started: Store):
    """A flush returns when everything put before it is committed."""
    async with SampleWriter(started) as writer:
        for number in range(100):
            await writer.put(sample(number))
        await writer.flush()
        assert started.read(select_answers, keys_up_to(100)) == {
            key(n): sample(n) for n in range(100)
        }
        assert writer.unsaved == ()


async def test_closing_stores_what_is_left(started: Store):
    """Leaving the block commits; closing twice is fine; nothing put is fine."""
    writer = SampleWriter(started)
    for number in range(10):
        await writer.put(sample(number))
    await writer.aclose()
    await writer.aclose()
    assert len(started.read(select_answers, keys_up_to(10))) == 10
    async with SampleWriter(started) as unused:
        await unused.flush()


async def test_a_body_that_fails_keeps_what_it_had(started: Store):
    """Samples that arrived before an error, or a cancellation, are committed all the same."""
    with pytest.raises(asyncio.CancelledError):
        await put_and_raise(started, asyncio.CancelledError())
    assert started.read(select_answers, [key(1)]) == {key(1): sample(1)}


async def test_samples_that_arrive_together_are_committed_together(impatient: Store):
    """While one transaction runs the next one fills: far fewer commits than samples."""
    commits = []
    event.listen(impatient._engine, "commit", commits.append)
    async with SampleWriter(impatient, capacity=10_000) as writer:
        await asyncio.gather(*(writer.put(sample(number)) for number in range(1000)))
    assert len(impatient.read(select_answers, keys_up_to(1000))) == 1000
    assert 1 <= len(commits) < 500


async def test_an_idle_writer_commits_at_once(started: Store):
    """A sample doesn't wait for others: it is stored without a flush and without more samples."""
    async with SampleWriter(started) as writer:
        await writer.put(sample(1))
        # There is nothing to wait on: the point is that nobody asks for the commit.
        while writer.unsaved:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert started.read(select_answers, [key(1)]) == {key(1): sample(1)}


async def test_the_event_loop_goes_on_while_the_store_waits(patient: Store):
    """With the database locked, `put` returns and other tasks run; a full queue waits its turn."""
    store = patient
    async with SampleWriter(store, capacity=3) as writer:
        with locked(store):
            for number in range(3):
                await writer.put(sample(number))
            waiting = asyncio.create_task(writer.put(sample(3)))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            assert store.read(select_answers, keys_up_to(4)) == {}
        await waiting
        await writer.flush()
        assert len(store.read(select_answers, keys_up_to(4))) == 4


async def test_a_cancelled_put_loses_nothing(patient: Store):
    """A sample is taken before its caller waits, so that an interrupt doesn't throw it away."""
    store = patient
    async with SampleWriter(store, capacity=1) as writer:
        with locked(store):
            await writer.put(sample(0))
            waiting = asyncio.create_task(writer.put(sample(1)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    assert store.read(select_answers, keys_up_to(2)).keys() == {key(0), key(1)}


async def test_a_failure_is_raised_from_then_on(impatient: Store):
    """No sample is accepted that wouldn't be kept, and those that weren't kept can be had."""
    heard: list[HeretixError] = []
    writer = SampleWriter(impatient, on_error=heard.append)
    with locked(impatient):
        await writer.put(sample(1))
        with pytest.raises(StoreBusyError):
            await writer.flush()
    with pytest.raises(StoreBusyError):
        await writer.put(sample(2))
    with pytest.raises(StoreBusyError):
        await writer.flush()
    with pytest.raises(StoreBusyError):
        await writer.aclose()
    assert writer.unsaved == (sample(1),)
    assert [type(error) for error in heard] == [StoreBusyError]
    impatient.write(save_samples, writer.unsaved)


async def test_everybody_who_waits_hears_of_a_failure(impatient: Store):
    """Producers held back by a full queue are let go with the error."""
    writer = SampleWriter(impatient, capacity=1)
    with locked(impatient):
        outcomes = await asyncio.gather(
            *(writer.put(sample(number)) for number in range(5)), return_exceptions=True
        )
    assert {type(outcome) for outcome in outcomes[1:]} == {StoreBusyError}
    assert len(writer.unsaved) == 5
    with pytest.raises(StoreBusyError):
        await writer.aclose()


async def test_a_failure_on_the_way_out_is_raised(impatient: Store):
    """A block that ends well but whose samples weren't stored didn't end well."""
    with locked(impatient), pytest.raises(StoreBusyError):
        async with SampleWriter(impatient) as writer:
            await writer.put(sample(1))


async def test_a_failure_beside_another_error_is_a_note_on_it(impatient: Store):
    """What ended the block is raised; that samples were lost isn't forgotten."""
    with locked(impatient), pytest.raises(KeyError) as caught:
        await put_and_raise(impatient, KeyError())
    assert "1 samples weren't stored: `" in caught.value.__notes__[0]


async def test_an_error_that_is_the_failure_needs_no_note(impatient: Store):
    """It would say the same thing twice."""
    with locked(impatient), pytest.raises(StoreBusyError) as caught:
        await put_and_flush(impatient)
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_mistake_in_the_program_leaves_nobody_waiting(started: Store):
    """Something that is no sample ends the thread; the caller is told rather than left to hang."""
    writer = SampleWriter(started)
    no_sample: Any = "no sample"
    await writer.put(no_sample)
    with pytest.raises(StoreError, match="ended by a mistake in Heretix"):
        await writer.flush()
    assert writer.unsaved == (no_sample,)


async def test_a_closed_writer_takes_nothing(started: Store):
    """A late sample is refused aloud."""
    writer = SampleWriter(started)
    await writer.put(sample(1))
    await writer.aclose()
    with pytest.raises(RuntimeError, match="`put` after `aclose`"):
        await writer.put(sample(2))


def test_a_queue_has_room_for_one_at_least(started: Store):
    """No room at all would wait for ever."""
    with pytest.raises(ValueError, match="`capacity` must be at least 1, got 0"):
        SampleWriter(started, capacity=0)


def test_a_process_that_is_killed_keeps_what_was_committed(tmp_path: Path):
    """`kill -9` at any moment: the file is sound and has every sample reported as stored."""
    path = tmp_path / "heretix.sqlite"
    with Store.open(str(path)) as store:
        store.write(start_executions, [start()])
    chance = random.Random(20261115)
    for _ in range(KILLS):
        reports, sender = PROCESSES.Pipe(duplex=False)
        child = PROCESSES.Process(target=write_until_killed, args=(str(path), sender))
        child.start()
        sender.close()
        committed = 0
        for _ in range(chance.randrange(1, 30)):
            committed = reports.recv()
        child.kill()
        child.join()
        with contextlib.suppress(EOFError, OSError):
            while True:
                committed = reports.recv()
        reports.close()
        with Store.open(str(path), create=False) as store:
            assert len(store.read(select_answers, keys_up_to(committed))) == committed
            with store.reading() as connection:
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            with store.writing() as connection:
                connection.exec_driver_sql("DELETE FROM samples")
