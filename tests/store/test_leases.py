"""Leases: whoever has one may pay, nobody else does, and none outlives its owner."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lease_processes import claim_and_wait, claim_bit_by_bit
from sqlalchemy import event
from store_builders import key, sample
from store_processes import run_together

from heretix.core.errors import StoreError
from heretix.store import SampleWriter, Store, new_owner
from heretix.store import samples as leases
from heretix.store.samples import (
    claim_leases,
    extend_leases,
    release_all_leases,
    release_leases,
    save_samples,
    select_answers,
)
from processes import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = [key(number) for number in range(10)]
BOOT = Path("/proc/sys/kernel/random/boot_id")
ELSEWHERE = "another.example:boot:pid/1/1/000000000000"


@pytest.fixture
def impatient(store_url: str) -> Iterator[Store]:
    """The store of the test, opened by somebody who doesn't wait for locks."""
    with Store.open(store_url, busy_timeout_ms=50) as store:
        yield store


@contextlib.contextmanager
def counted(store: Store, happening: str) -> Iterator[list[object]]:
    """What of a kind the store's database does meanwhile."""
    seen: list[object] = []

    def note(*arguments: object) -> None:
        seen.append(arguments)

    event.listen(store._engine, happening, note)
    yield seen
    event.remove(store._engine, happening, note)


def as_if(*, machine: str | None = None, pid: int | None = None, started: str | None = None) -> str:
    """An owner like this process, but for what is given."""
    mine = new_owner().split("/")
    return "/".join((machine or mine[0], str(pid or mine[1]), started or mine[2], "0" * 12))


def test_a_key_is_leased_once(store: Store) -> None:
    """Free keys are taken; held ones aren't, by another owner or by the same one."""
    one, other = new_owner(), new_owner()
    assert store.write(claim_leases, KEYS[:6], one) == set(KEYS[:6])
    assert store.write(claim_leases, KEYS[4:], other) == set(KEYS[6:])
    assert store.write(claim_leases, KEYS, one) == set()


def test_a_key_named_twice_is_leased_once_and_nothing_asks_for_nothing(store: Store) -> None:
    """What is asked for may hold repeats, or be empty."""
    assert store.write(claim_leases, [KEYS[0], KEYS[0]], new_owner()) == {KEYS[0]}
    assert store.write(claim_leases, [], new_owner()) == set()


def test_a_lease_is_given_back_by_its_owner_only(store: Store) -> None:
    """Others can't end it, and what is given back can be had at once."""
    one, other = new_owner(), new_owner()
    store.write(claim_leases, KEYS, one)
    store.write(release_leases, KEYS, other)
    store.write(release_all_leases, other)
    assert store.write(claim_leases, KEYS, other) == set()
    store.write(release_leases, KEYS[:3], one)
    assert store.write(claim_leases, KEYS, other) == set(KEYS[:3])
    store.write(release_all_leases, one)
    assert store.write(claim_leases, KEYS, other) == set(KEYS[3:])


def test_a_lease_ends_when_its_time_is_over(store: Store) -> None:
    """An owner elsewhere that isn't heard of any more loses what it held."""
    store.write(claim_leases, KEYS[:4], ELSEWHERE, lease_s=-1.0)
    store.write(claim_leases, KEYS[4:], ELSEWHERE)
    assert store.write(claim_leases, KEYS, new_owner()) == set(KEYS[:4])


def test_an_owner_that_is_heard_of_keeps_its_leases(store: Store) -> None:
    """Extending covers all that an owner holds, and nothing of others."""
    store.write(claim_leases, KEYS[:4], ELSEWHERE, lease_s=-1.0)
    store.write(claim_leases, KEYS[4:], f"{ELSEWHERE}-too", lease_s=-1.0)
    store.write(extend_leases, ELSEWHERE)
    assert store.write(claim_leases, KEYS, new_owner()) == set(KEYS[4:])


def test_who_lost_a_lease_does_not_end_that_of_the_next(started: Store) -> None:
    """A late answer is saved; the lease that somebody else took meanwhile stays theirs."""
    late, next_one = new_owner(), new_owner()
    started.write(claim_leases, KEYS[:2], late, lease_s=-1.0)
    started.write(claim_leases, KEYS[:2], next_one)
    started.write(save_samples, [sample(0)], owner=late)
    started.write(extend_leases, late)
    started.write(release_all_leases, late)
    assert started.write(claim_leases, KEYS[:2], new_owner()) == set()


def test_a_killed_process_loses_its_leases_at_once_and_a_living_one_does_not(
    store: Store, store_url: str
) -> None:
    """Nobody waits a minute for a process that is known to be dead."""
    killed, living = (start_child(store_url, keys) for keys in (KEYS[:5], KEYS[5:]))
    assert store.write(claim_leases, KEYS, new_owner()) == set()
    killed.kill()
    wait([killed.sentinel])
    assert store.write(claim_leases, KEYS, new_owner()) == set(KEYS[:5])
    living.kill()
    living.join()
    killed.join()


def start_child(url: str, keys: list[str]) -> PROCESSES.Process:
    """A process that holds leases on `keys`."""
    here, there = PROCESSES.Pipe(duplex=False)
    child = PROCESSES.Process(target=claim_and_wait, args=(url, keys, there))
    child.start()
    assert here.recv() == set(keys)
    return child


def test_a_process_that_ended_and_was_not_reaped_yet_is_gone(store: Store) -> None:
    """A zombie makes no calls."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    owner = as_if(pid=child.pid, started=leases._read_start(child.pid))
    store.write(claim_leases, KEYS, owner)
    assert store.write(claim_leases, KEYS, new_owner()) == set()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert store.write(claim_leases, KEYS, new_owner()) == set(KEYS)
    child.communicate()


def test_a_number_that_another_process_was_given_later_protects_nothing(store: Store) -> None:
    """The owner had this process's number, and began at another time: it is gone."""
    store.write(claim_leases, KEYS, as_if(started="1"))
    assert store.write(claim_leases, KEYS, new_owner()) == set(KEYS)


@pytest.mark.skipif(not BOOT.exists(), reason="the kernel doesn't tell its starts apart here")
@pytest.mark.parametrize("mark", [BOOT.read_text().strip() if BOOT.exists() else "", "pid:["])
def test_a_machine_of_the_same_name_is_another_machine(store: Store, mark: str) -> None:
    """Containers and clones share names: nobody there can be told to be gone from here."""
    here = new_owner().split("/")[0]
    there = here.replace(mark, "other")
    assert here != there
    assert here.split(":")[0] == there.split(":")[0]
    store.write(claim_leases, KEYS, as_if(machine=there, pid=2**22 + 1))
    assert store.write(claim_leases, KEYS, new_owner()) == set()


def test_a_process_that_cannot_be_looked_at_is_not_taken_for_dead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel hides when others began, a living process keeps its leases."""
    owner = new_owner()
    monkeypatch.setattr(leases.Path, "read_text", hidden)
    store.write(claim_leases, KEYS, owner)
    assert store.write(claim_leases, KEYS, new_owner()) == set()
    assert leases.is_gone(as_if(pid=2**22 + 1))


def hidden(*_: object, **__: object) -> str:
    """What reading another user's file does on some machines."""
    raise PermissionError


def test_a_sample_and_the_end_of_its_lease_are_one_transaction(started: Store) -> None:
    """Nobody can look at a moment when a sample is neither stored nor spoken for."""
    owner = new_owner()
    started.write(claim_leases, KEYS, owner)
    with counted(started, "commit") as commits:
        started.write(save_samples, [sample(0), sample(1)], owner=owner)
    assert len(commits) == 1
    assert set(started.read(select_answers, KEYS)) == set(KEYS[:2])
    assert started.write(claim_leases, KEYS, new_owner()) == set(KEYS[:2])


def test_a_sample_that_was_not_saved_is_still_spoken_for(started: Store) -> None:
    """All of a batch is kept or none, its leases included."""
    owner = new_owner()
    started.write(claim_leases, KEYS, owner)
    with pytest.raises(StoreError):
        started.write(save_samples, [sample(0), sample(1, run_id="no such run")], owner=owner)
    assert not started.read(select_answers, KEYS)
    assert started.write(claim_leases, KEYS, new_owner()) == set()


async def test_the_writer_ends_the_leases_of_its_owner(started: Store) -> None:
    """And of nobody else."""
    owner, other = new_owner(), new_owner()
    started.write(claim_leases, KEYS[:5], owner)
    started.write(claim_leases, KEYS[5:], other)
    async with SampleWriter(started, owner=owner) as writer:
        for number in (0, 1, 5):
            await writer.put(sample(number))
    assert started.write(claim_leases, KEYS, new_owner()) == set(KEYS[:2])


def test_processes_that_want_the_same_keys_share_them_out(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """Each key goes to exactly one, even while leases of a dead process are being ended."""
    keys = [key(number) for number in range(3000)]
    store.write(claim_leases, keys[::3], as_if(started="1"))
    store.write(claim_leases, keys[1::3], ELSEWHERE, lease_s=-1.0)
    outs = [tmp_path / str(number) for number in range(4)]
    codes = run_together(
        claim_bit_by_bit, [(store_url, keys, seed, str(out)) for seed, out in enumerate(outs)]
    )
    taken = [line for out in outs for line in out.read_text().split()]
    assert codes == [0, 0, 0, 0]
    assert sorted(taken) == sorted(keys)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_extending_waits_for_nobody(store: Store, impatient: Store) -> None:
    """Two that wait for each other's leases would end a run: one of them must not wait at all."""
    owner = new_owner()
    store.write(claim_leases, KEYS, owner)
    with store.writing() as connection:
        release_leases(connection, KEYS[:1], owner)
        impatient.write(extend_leases, owner, lease_s=1000.0)
    with store.reading() as connection:
        ends = connection.execute(leases.leases.select()).mappings().all()
    assert {row["cache_key"] for row in ends} == set(KEYS[1:])
    assert all(row["expires_at"] > time.time() + 500 for row in ends)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_claiming_leaves_leases_that_are_being_ended_to_whoever_ends_them(
    store: Store, impatient: Store
) -> None:
    """Two that clear up after a dead process don't get into each other's way."""
    store.write(claim_leases, KEYS, as_if(started="1"))
    with store.writing() as connection:
        mine = claim_leases(connection, KEYS[:1], new_owner())
        theirs = impatient.write(claim_leases, KEYS, new_owner())
    assert mine == {KEYS[0]}
    assert theirs == set(KEYS[1:])


def test_claiming_takes_statements_in_proportion(store: Store) -> None:
    """Twice the keys take twice the work, whether they are free or held."""

    def statements(count: int, owner: str) -> int:
        with counted(store, "before_cursor_execute") as seen:
            store.write(claim_leases, [key(number) for number in range(count)], owner)
        return len(seen)

    one, other = new_owner(), new_owner()
    free = statements(2000, one)
    store.write(release_all_leases, one)
    assert free < 20
    assert statements(4000, one) <= 2 * free
    held = statements(2000, other)
    assert held < 20
    assert statements(4000, other) <= 2 * held
