"""Which execution a run stands for: one rule, whoever asks and however."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from store_builders import RUN_ID, execution_id, result, start

from heretix.store import Store
from heretix.store.runs import (
    find_record,
    finish_executions,
    latest_finished,
    select_executions,
    select_latest_execution,
    select_record,
    start_executions,
)

MOMENTS = [f"2026-11-01T00:00:00.00{n}Z" for n in range(3)]

executions = st.tuples(
    st.sampled_from(MOMENTS),
    st.none() | st.tuples(st.sampled_from(MOMENTS), st.sampled_from(["ok", "no_estimate"])),
)
"""When one began; and when it ended, and how, if it has. Few moments, so that many are the same."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A store, and numbers of runs that it has nothing of yet."""
    with Store.open(str(tmp_path_factory.mktemp("latest") / "s.sqlite")) as store:
        yield store, itertools.count()


@given(history=st.lists(executions, min_size=1, max_size=6))
@example(history=[(MOMENTS[0], (MOMENTS[1], "ok"))] * 3)
@example(history=[(MOMENTS[2], (MOMENTS[2], "ok")), (MOMENTS[0], (MOMENTS[2], "no_estimate"))])
@example(history=[(MOMENTS[2], None), (MOMENTS[0], (MOMENTS[0], "ok"))])
def test_every_way_to_ask_gives_the_same_execution(stored, history):
    """The one that finished last, and of those of one moment the one with the greatest id."""
    store, numbers = stored
    number = next(numbers)
    run_id = f"{RUN_ID[:-12]}{number:012x}"
    named = {n: number * 100 + n for n in range(len(history))}
    store.write(
        start_executions,
        [start(named[n], created_at=at, run_id=run_id) for n, (at, _) in enumerate(history)],
    )
    for n, (_, end) in enumerate(history):
        if end is not None:
            ended = result(named[n], finished_at=end[0], status=end[1], run_id=run_id)
            store.write(finish_executions, [ended])
    finished = [(end[0], execution_id(named[n])) for n, (_, end) in enumerate(history) if end]
    expected = max(finished, default=(None, None))[1]

    found = latest_finished(store.read(select_executions, run_id))
    assert (found and found.execution_id) == expected
    assert store.read(select_latest_execution, run_id) == expected
    with store.reading() as connection:
        exact = select_record(connection, run_id)
    assert (exact and exact.execution_id) == expected
    if expected is not None:
        assert store.read(find_record, run_id).execution_id == expected
