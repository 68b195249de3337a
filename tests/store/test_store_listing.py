"""Pages of runs, claims and samples, and records by exact id, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from store_builders import LATER, LATEST, NOW, execution_id, key, result, sample, start

from heretix.store import Store
from heretix.store.runs import (
    RunFilter,
    find_record,
    finish_executions,
    select_claims_page,
    select_record,
    select_run,
    select_run_rows,
    select_runs_page,
    select_sample_rows,
    start_executions,
)
from heretix.store.samples import save_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

CLAIMS = ("Tea.", "Coffee.", "Tea.", "100%_sure.")


RUNS = tuple(f"heretix-rpl-{number:012x}" for number in range(4))


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """Four runs of three claims, two of them at the same moment."""
    moments = (NOW, LATER, LATER, LATEST)
    with Store.open(store_url) as opened:
        for number, (claim, at) in enumerate(zip(CLAIMS, moments, strict=True)):
            begun = start(number, created_at=at, run_id=RUNS[number], claim=claim)
            opened.write(start_executions, [begun])
        yield opened


def test_pages_of_runs_join_without_a_gap(store: Store) -> None:
    """The latest first; runs of the same moment by id."""
    seen, after = [], None
    with store.reading() as connection:
        while page := select_runs_page(connection, RunFilter(), limit=1, after=after):
            seen.append(page[0].run_id)
            after = (page[0].updated_at, page[0].run_id)
    assert seen == [RUNS[3], RUNS[1], RUNS[2], RUNS[0]]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (RunFilter(search="TEA"), {0, 2}),
        (RunFilter(search="%"), {3}),
        (RunFilter(search="_"), {3}),
        (RunFilter(claim="Tea."), {0, 2}),
        (RunFilter(claim="tea."), set()),
        (RunFilter(model="gpt-5", lens="RPL"), {0, 1, 2, 3}),
        (RunFilter(lens="HEL"), set()),
        (RunFilter(search="' OR 1=1 --"), set()),
    ],
)
def test_filters_hold_together(store: Store, wanted: RunFilter, found: set[int]) -> None:
    """In both orders, and whatever is searched for."""
    expected = {RUNS[number] for number in found}
    with store.reading() as connection:
        latest = select_runs_page(connection, wanted, limit=10, after=None)
        by_id = select_run_rows(connection, wanted, limit=10, after=None)
    assert {summary.run_id for summary in latest} == expected
    assert [row["run_id"] for row in by_id] == sorted(expected)


def test_claims_are_grouped_and_paged(store: Store) -> None:
    """One line a claim, the one measured last first."""
    seen, after = [], None
    with store.reading() as connection:
        while page := select_claims_page(connection, search=None, limit=1, after=after):
            seen.append((page[0].claim, page[0].runs, page[0].models))
            after = (page[0].updated_at, page[0].claim_sha256)
        (tea,) = select_claims_page(connection, search="tea", limit=5, after=None)
    assert seen[0] == ("100%_sure.", 1, 1)
    assert sorted(seen) == [("100%_sure.", 1, 1), ("Coffee.", 1, 1), ("Tea.", 2, 1)]
    assert (tea.runs, tea.updated_at) == (2, LATER)


def test_samples_are_paged_by_key(store: Store) -> None:
    """All of them, or those of a run."""
    store.write(save_samples, [sample(n, run_id=RUNS[n % 2]) for n in range(5)])
    seen, after = [], None
    with store.reading() as connection:
        while page := select_sample_rows(connection, run_id=None, limit=2, after=after):
            seen += [row["cache_key"] for row in page]
            after = seen[-1]
        own = select_sample_rows(connection, run_id=RUNS[1], limit=10, after=None)
    assert seen == sorted(key(n) for n in range(5))
    assert {row["cache_key"] for row in own} == {key(1), key(3)}


def test_a_record_is_found_by_a_whole_id_only(store: Store) -> None:
    """A run stands for its latest finished execution."""
    begun = [start(n, run_id=RUNS[0], claim="Tea.") for n in (10, 11)]
    store.write(start_executions, begun)
    for number, at in ((11, LATEST), (10, LATER)):
        ended = result(number, finished_at=at, run_id=RUNS[0], claim="Tea.")
        store.write(finish_executions, [ended])
    with store.reading() as connection:
        by_run = select_record(connection, RUNS[0])
        by_execution = select_record(connection, execution_id(10))
        assert by_run is not None
        assert by_execution is not None
        assert by_run.execution_id == execution_id(11)
        assert by_execution.record_json == store.read(find_record, execution_id(10)).record_json
        assert select_record(connection, execution_id(10)[:-1]) is None
        assert select_record(connection, RUNS[1]) is None
        summary = select_run(connection, RUNS[0])
        assert summary is not None
        assert summary.claim == "Tea."
        assert select_run(connection, "heretix-none") is None
