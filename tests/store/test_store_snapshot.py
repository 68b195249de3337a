"""Several look-ups as one: they share a transaction, and only as long as they are told to."""

from __future__ import annotations

import threading

from store_builders import execution_id, start

from heretix.store import Store
from heretix.store.runs import count_runs, find_execution, select_runs, start_executions


def test_look_ups_inside_share_one_connection(store: Store):
    """Whatever is read inside is read over the connection that is held."""
    with store.snapshot(), store.reading() as first, store.reading() as second:
        assert first is second
        assert store.read(count_runs) == 0


def test_afterwards_everybody_has_a_connection_of_their_own_again(store: Store):
    """What was written meanwhile is seen as soon as the block is over."""
    with store.snapshot():
        assert store.read(count_runs) == 0
    store.write(start_executions, [start()])
    assert store.read(count_runs) == 1
    with store.snapshot():
        assert store.read(find_execution, execution_id(1)).execution_id == execution_id(1)


def test_other_threads_have_connections_of_their_own(store: Store):
    """The one that is held belongs to the thread that holds it."""
    found = []

    def look() -> None:
        with store.reading() as connection:
            found.append(connection)

    with store.snapshot(), store.reading() as held:
        other = threading.Thread(target=look)
        other.start()
        other.join()
        assert found != [held]


def test_parts_of_something_else_are_left_out_on_request(store: Store):
    """Runs of experiments and episodes don't bury the others."""
    part = {"run_id": "heretix-hel-0123456789ab", "lens": "HEL", "variant": "without:E01"}
    store.write(start_executions, [start(), start(2, **part)])
    assert len(store.read(select_runs)) == 2
    assert [run.variant for run in store.read(select_runs, whole=True)] == [None]
