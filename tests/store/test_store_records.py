"""Runs, executions, results and banks: what is written when, and what is never overwritten."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import StatementError
from store_builders import (
    LATER,
    LATEST,
    NOW,
    RUN_ID,
    aggregates,
    execution_id,
    key,
    result,
    run,
    sample,
    start,
)

from heretix.core.errors import BankError, RecordError, StoreError
from heretix.store import ExecutionSummary, RunSummary, Store
from heretix.store.runs import (
    find_record,
    finish_executions,
    register_bank,
    select_executions,
    select_latest_execution,
    select_record,
    select_runs,
    select_runs_of_claim,
    start_executions,
)
from heretix.store.samples import save_samples, select_answers
from heretix.store.schema import execution_samples, executions, prompts, results, runs, samples

if TYPE_CHECKING:
    from sqlalchemy import Table

EARLIEST = "2026-11-15T19:00:00.000Z"


def rows(store: Store, table: Table) -> list[dict[str, Any]]:
    """Everything in a table, by primary key."""
    with store.reading() as connection:
        statement = select(table).order_by(*table.primary_key.columns)
        return [dict(row) for row in connection.execute(statement).mappings()]


def test_a_run_exists_from_its_first_start_without_numbers(store: Store):
    """Samples can hang on it, and nothing is invented meanwhile."""
    store.write(start_executions, [start()])
    assert rows(store, runs) == [
        dict.fromkeys(aggregates())
        | run()
        | {
            "config_json": '{"K":8}',
            "execution_id": execution_id(1),
            "created_at": NOW,
            "updated_at": NOW,
            "claim_sha256": hashlib.sha256(run()["claim"].encode()).hexdigest(),
        }
    ]


def test_a_finished_run_has_its_summary(started: Store):
    """The end replaces the row, and keeps when it was made."""
    started.write(finish_executions, [result(T=4, cache_hit_rate=0.5)])
    assert rows(started, runs) == [
        run(T=4)
        | aggregates(cache_hit_rate=0.5)
        | {
            "execution_id": execution_id(1),
            "created_at": NOW,
            "updated_at": LATER,
            "claim_sha256": hashlib.sha256(run()["claim"].encode()).hexdigest(),
        }
    ]


def test_a_record_is_read_by_its_whole_id(started: Store):
    """By that alone; what has no record isn't found, and a run without one has no latest."""
    assert started.read(select_record, execution_id(1)) is None
    assert started.read(select_latest_execution, run()["run_id"]) is None
    started.write(finish_executions, [result(1)])
    found = started.read(select_record, execution_id(1))
    assert found is not None
    assert found.run_id == run()["run_id"]
    assert started.read(select_latest_execution, run()["run_id"]) == execution_id(1)
    assert started.read(select_record, execution_id(1)[:-1]) is None


def test_runs_are_found_by_their_claim(store: Store):
    """Word for word, the latest first, and nothing that only looks like it."""
    other = {"run_id": "heretix-rpl-ffffffffffff", "claim": run()["claim"] + " "}
    store.write(start_executions, [start(), start(2, **other)])
    (found,) = store.read(select_runs_of_claim, run()["claim"])
    assert found.run_id == run()["run_id"]
    assert store.read(select_runs_of_claim, "something else") == []


def test_a_rerun_replaces_the_summary_only_at_its_end(started: Store):
    """While it runs, and if it dies, the earlier number stands."""
    started.write(finish_executions, [result(1)])
    before = rows(started, runs)
    started.write(start_executions, [start(2, created_at=LATER, T=4)])
    assert rows(started, runs) == before
    started.write(finish_executions, [result(2, finished_at=LATEST, T=4, prob_true_rpl=0.9)])
    (row,) = rows(started, runs)
    assert (row["T"], row["prob_true_rpl"], row["execution_id"]) == (4, 0.9, execution_id(2))
    assert (row["created_at"], row["updated_at"]) == (NOW, LATEST)


@pytest.mark.parametrize("status", ["no_estimate", "interrupted"])
def test_a_rerun_that_came_to_nothing_spares_the_number(started: Store, status: str):
    """An unusable rerun is on record, and the run keeps its good summary."""
    started.write(finish_executions, [result(1)])
    before = rows(started, runs)
    started.write(start_executions, [start(2)])
    started.write(finish_executions, [result(2, status=status)])
    assert rows(started, runs) == before
    assert [row["status"] for row in rows(started, results)].count(status) == 1


@pytest.mark.parametrize("status", ["no_estimate", "interrupted"])
def test_a_run_without_a_number_says_what_it_has(started: Store, status: str):
    """A first execution that came to nothing is shown until a good one replaces it."""
    started.write(finish_executions, [result(1, status=status)])
    (row,) = rows(started, runs)
    assert (row["prob_true_rpl"], row["rpl_compliance_rate"]) == (None, 0.0)
    started.write(start_executions, [start(2)])
    started.write(finish_executions, [result(2, finished_at=LATEST)])
    (row,) = rows(started, runs)
    assert (row["prob_true_rpl"], row["execution_id"]) == (0.24, execution_id(2))


def test_executions_and_results_are_kept_side_by_side(started: Store):
    """A rerun adds rows; those of the first execution stay to the letter."""
    started.write(finish_executions, [result(1)])
    before = rows(started, executions) + rows(started, results)
    started.write(start_executions, [start(2, created_at=LATER)])
    started.write(finish_executions, [result(2, finished_at=LATEST)])
    after = rows(started, executions) + rows(started, results)
    assert len(after) == 4
    assert all(row in after for row in before)


def test_an_execution_finishes_once(started: Store):
    """A second end is refused whole, and the first stands."""
    started.write(save_samples, [sample(1)])
    started.write(finish_executions, [result(1)])
    before = rows(started, runs) + rows(started, results)
    with pytest.raises(StoreError, match="refused a statement"):
        started.write(finish_executions, [result(1, prob_true_rpl=0.9, samples=((key(1), False),))])
    assert rows(started, runs) + rows(started, results) == before
    assert rows(started, execution_samples) == []


def test_the_samples_used_are_written_down(started: Store):
    """Each execution knows which samples it used and which came from the cache."""
    started.write(save_samples, [sample(1), sample(2)])
    started.write(finish_executions, [result(1, samples=((key(1), False), (key(2), True)))])
    assert {row["cache_key"]: row["from_cache"] for row in rows(started, execution_samples)} == {
        key(1): False,
        key(2): True,
    }


def test_a_sample_served_from_the_cache_shows_the_run_that_used_it_last(started: Store):
    """Asking `samples` for a run that was served from another's samples finds them."""
    started.write(save_samples, [sample(1), sample(2)])
    started.write(finish_executions, [result(1, samples=((key(1), False), (key(2), False)))])
    other = "heretix-rpl-ffffffffffff"
    started.write(start_executions, [start(2, run_id=other, K=4)])
    started.write(finish_executions, [result(2, run_id=other, samples=((key(1), True),))])
    assert {row["cache_key"]: row["run_id"] for row in rows(started, samples)} == {
        key(1): other,
        key(2): RUN_ID,
    }
    # Everything else about the sample is as it was.
    assert started.read(select_answers, [key(1)])[key(1)] == sample(1, run_id=other)


def test_a_result_needs_its_samples_in_the_store(started: Store):
    """A record never names a sample that isn't stored; nothing of it is kept then."""
    with pytest.raises(StoreError):
        started.write(finish_executions, [result(1, samples=((key(1), False),))])
    assert rows(started, results) == []
    assert rows(started, runs)[0]["prob_true_rpl"] is None


def test_many_executions_start_and_finish_together(store: Store):
    """A batch of claims is one transaction each way; a recipe may stand in it twice."""
    ids = [f"heretix-rpl-{number:012x}" for number in range(50)]
    store.write(start_executions, [start(n, run_id=ids[n % 50]) for n in range(51)])
    store.write(
        finish_executions, [result(n, run_id=ids[n % 50], prob_true_rpl=n / 100) for n in range(51)]
    )
    assert len(rows(store, executions)) == len(rows(store, results)) == 51
    summary = {row["run_id"]: row["prob_true_rpl"] for row in rows(store, runs)}
    assert summary == {run_id: n / 100 for n, run_id in enumerate(ids)} | {ids[0]: 0.5}


def test_starting_or_finishing_nothing_is_fine(store: Store):
    """Empty batches leave no trace."""
    store.write(start_executions, [])
    store.write(finish_executions, [])
    assert store.read(select_runs) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prob": 0.5}, "may only have columns of `runs`, got prob"),
        ({"execution_id": "exec-1"}, "may only have columns of `runs`, got execution_id"),
    ],
)
def test_unknown_columns_are_refused(store: Store, changes: dict[str, Any], message: str):
    """A column that the table doesn't have is a mistake in the program."""
    with pytest.raises(ValueError, match=message):
        store.write(start_executions, [start(**changes)])


def test_a_summary_must_be_complete(started: Store):
    """A column left out would silently keep the value of an earlier execution."""
    incomplete = result()
    incomplete.run.pop("ci_lo")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="must have every column of its row, lacks ci_lo"):
        started.write(finish_executions, [incomplete])


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64 - 1, "10572428983809627848"])
def test_seeds_are_exact(store: Store, seed: int | str):
    """A seed of 64 bits comes back to the last digit."""
    store.write(start_executions, [start(seed=seed, bootstrap_seed=seed)])
    (summary,) = store.read(select_runs)
    assert (summary.seed, summary.bootstrap_seed) == (int(seed), int(seed))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(store: Store, seed: int):
    """Such a seed would not be the one that NumPy was given."""
    with pytest.raises(StatementError, match=r"from 0 to 2\^64-1"):
        store.write(start_executions, [start(seed=seed)])


def test_runs_are_listed_latest_first(store: Store):
    """By their latest result, whole, in pages."""
    ids = [f"heretix-rpl-{number:012x}" for number in range(3)]
    store.write(start_executions, [start(n, run_id=ids[n], created_at=EARLIEST) for n in range(3)])
    store.write(finish_executions, [result(1, run_id=ids[1], finished_at=LATEST)])
    store.write(finish_executions, [result(0, run_id=ids[0], finished_at=LATER)])
    assert [found.run_id for found in store.read(select_runs)] == [ids[1], ids[0], ids[2]]
    assert [found.run_id for found in store.read(select_runs, limit=1, offset=1)] == [ids[0]]
    expected = run(run_id=ids[1]) | aggregates()
    del expected["sampler_json"], expected["config_json"], expected["counts_by_template_json"]
    assert store.read(select_runs, limit=1) == [
        RunSummary(**expected, execution_id=execution_id(1), created_at=EARLIEST, updated_at=LATEST)
    ]


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("TARIFFS", {"a"}),
        ("größe", {"b"}),
        ("GRÖSSE", set()),
        ("österREICH", {"b"}),
        ("100%", {"c"}),
        ("0%0", set()),
        ("_", {"c"}),
        ("claude", {"c"}),
        ("rpl-00000000000b", {"b"}),
        ("", {"a", "b", "c"}),
        (None, {"a", "b", "c"}),
    ],
)
def test_runs_are_searched_in_any_case(store: Store, search: str | None, found: set[str]):
    """Claims, models and ids are searched; `%` and `_` mean themselves."""
    claims = {"a": "Tariffs don't help.", "b": "Größe zählt in Österreich.", "c": "snake_case 100%"}
    store.write(
        start_executions,
        [
            start(
                number,
                run_id=f"heretix-rpl-00000000000{name}",
                claim=claim,
                model="claude-sonnet-5-5" if name == "c" else "gpt-5",
            )
            for number, (name, claim) in enumerate(claims.items())
        ],
    )
    assert {row.run_id[-1] for row in store.read(select_runs, search=search)} == found


def test_executions_of_a_run_are_listed_newest_first(started: Store):
    """Those that never ended say so by having no status."""
    started.write(finish_executions, [result(1)])
    started.write(start_executions, [start(2, created_at=LATEST)])
    assert started.read(select_executions, RUN_ID) == [
        ExecutionSummary(
            execution_id=execution_id(2),
            run_id=RUN_ID,
            created_at=LATEST,
            status=None,
            finished_at=None,
        ),
        ExecutionSummary(
            execution_id=execution_id(1),
            run_id=RUN_ID,
            created_at=NOW,
            status="ok",
            finished_at=LATER,
        ),
    ]
    assert started.read(select_executions, "heretix-rpl-unknown") == []


@pytest.fixture
def measured(store: Store) -> Store:
    """Two runs of similar name; the first was executed twice, and started a third time."""
    other = "heretix-rpl-0123ffffffff"
    store.write(start_executions, [start(1), start(2), start(3), start(4, run_id=other)])
    store.write(finish_executions, [result(2, finished_at=LATEST, status="no_estimate")])
    store.write(finish_executions, [result(1, finished_at=LATER), result(4, run_id=other)])
    return store


@pytest.mark.parametrize(
    ("ref", "number"),
    [
        (RUN_ID, 2),
        ("heretix-rpl-01234", 2),
        ("01234", 2),
        ("0123f", 4),
        (" HERETIX-RPL-0123F ", 4),
        (execution_id(1), 1),
        (execution_id(1)[:11], 1),
        (execution_id(1).removeprefix("exec-")[:6], 1),
        (execution_id(2).removeprefix("exec-"), 2),
    ],
)
def test_a_reference_finds_its_record(measured: Store, ref: str, number: int):
    """Full or shortened, with its prefix or without; a run means its latest finished execution."""
    found = measured.read(find_record, ref)
    assert found.execution_id == execution_id(number)
    assert found.record_json == result(number).record_json
    assert found.status == ("no_estimate" if number == 2 else "ok")


@pytest.mark.parametrize("ref", ["heretix-rpl-0123", "0123", "heretix"])
def test_a_reference_that_fits_several_lists_them(measured: Store, ref: str):
    """The message names the candidates and asks for more."""
    pattern = rf"`{ref}` fits {RUN_ID}, heretix-rpl-0123ffffffff; give more characters"
    with pytest.raises(RecordError, match=pattern):
        measured.read(find_record, ref)


def test_a_bare_reference_may_fit_a_run_and_an_execution(store: Store):
    """Then neither is guessed."""
    digits = execution_id(1).removeprefix("exec-")[:6]
    store.write(start_executions, [start(1, run_id=f"heretix-rpl-{digits}000000")])
    with pytest.raises(RecordError, match=f"fits heretix-rpl-{digits}000000, exec-{digits}"):
        store.read(find_record, digits)


def test_a_long_list_of_candidates_is_cut(store: Store):
    """A message stays readable however many runs there are."""
    store.write(start_executions, [start(n, run_id=f"heretix-rpl-{n:012x}") for n in range(20)])
    with pytest.raises(RecordError, match=r"heretix-rpl-000000000004 and others; give more"):
        store.read(find_record, "heretix-rpl-0")


@pytest.mark.parametrize(
    "ref", ["heretix-rpl-9", "exec-x", "zebra", "%-01234", "_", "heretix_rpl-01234", "💥"]
)
def test_an_unknown_reference_says_where_to_look(measured: Store, ref: str):
    """Wildcards of the database mean nothing here."""
    with pytest.raises(RecordError, match=r"names no run and no execution; `heretix runs` lists"):
        measured.read(find_record, ref)


def test_no_reference_at_all_is_refused(store: Store):
    """An empty reference would fit everything."""
    with pytest.raises(RecordError, match="must name a run or an execution"):
        store.read(find_record, "  ")


@pytest.mark.parametrize("ref", [execution_id(1), RUN_ID])
def test_an_execution_without_an_end_has_no_record(started: Store, ref: str):
    """It runs still, or was killed: the message says that its samples are kept."""
    with pytest.raises(RecordError, match=rf"`{ref}` has no record: .* run it again"):
        started.read(find_record, ref)


def test_any_claim_and_any_record_is_kept(store: Store):
    """Claims and records come back to the letter, characters that databases dislike included."""
    claim = 'NUL \x00, half \ud83d, "quotes", {braces} | pipes\nand lines'
    record = {"execution_id": execution_id(1), "claim": claim}
    store.write(start_executions, [start(claim=claim)])
    store.write(finish_executions, [replace(result(claim=claim), record_json=str(record))])
    assert store.read(select_runs)[0].claim == claim
    assert store.read(find_record, RUN_ID).record_json == str(record)


BANK: dict[str, Any] = {
    "prompt_version": "rpl_v1_2026-11-15",
    "bank_sha256": "ab" * 32,
    "source": "rpl_v1",
    "system": "Answer in JSON.",
    "user_template": "{PARAPHRASE}",
    "paraphrases": ("Is it true that {CLAIM}", "Wäre es wahr: {CLAIM} 🧪"),
}


def test_a_bank_is_registered_once(store: Store):
    """The same text again changes nothing, wherever it comes from."""
    register_bank(store, **BANK)
    before = rows(store, prompts)
    register_bank(store, **BANK)
    register_bank(store, **BANK | {"source": "copy.yaml"})
    assert rows(store, prompts) == before
    assert before[0]["paraphrases_json"] == (
        '["Is it true that {CLAIM}", "Wäre es wahr: {CLAIM} 🧪"]'
    )


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"system": "Answer."}, "system"),
        ({"user_template": "{PARAPHRASE}!"}, "user_template"),
        ({"paraphrases": BANK["paraphrases"][::-1]}, "paraphrases"),
        ({"system": "", "paraphrases": ()}, "system, paraphrases"),
    ],
)
def test_other_text_under_one_version_is_refused(store: Store, changes: dict[str, Any], where: str):
    """Both banks are named, and what to do about it."""
    register_bank(store, **BANK)
    before = rows(store, prompts)
    message = (
        r"`version` rpl_v1_2026-11-15 of bank `mine.yaml` is taken: this store has it from bank "
        rf"`rpl_v1`, with other text in {where}; bump `version` in `mine.yaml`"
    )
    with pytest.raises(BankError, match=message):
        register_bank(store, **BANK | {"source": "mine.yaml"} | changes)
    assert rows(store, prompts) == before
