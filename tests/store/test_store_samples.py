"""Samples: what goes in comes out, and an answer is never lost to a failure."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite
from store_builders import LATER, RUN_ID, failed, key, paid_in_vain, run, sample, start

from heretix.core.errors import StoreError
from heretix.sample import Noncompliance, Sample
from heretix.store import Store
from heretix.store.runs import start_executions
from heretix.store.samples import save_samples, select_answers
from heretix.store.schema import AnyText, samples

if TYPE_CHECKING:
    from pathlib import Path

DIALECT = sqlite.dialect()
TEXTS = {
    "empty": "",
    "unicode": "Ünïcödé — 真実 ﷽",
    "emoji": "👩‍👩‍👧‍👦🧪",
    "long": "answer " * 1429,
    "lines": "a\r\nb\n\tc\u2028d\x0b",
    "quotes": """'"`;--\\ %s :name ? {CLAIM} $1""",
    "nul": "before\x00after",
    "half a pair": "lone \ud83d and \udca9 halves",
    "the escape itself": "\x1a\x1a0000 \x1azzzz",
    "escape and nul": "\x1a\x00",
}


def test_every_field_of_a_sample_has_its_column():
    """A field without a column would be lost without a word."""
    assert {column.name for column in samples.columns} == {field.name for field in fields(Sample)}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_any_text_comes_back_as_it_was(started: Store, text: str):
    """What a model wrote is kept to the letter on both databases."""
    written = sample(1, raw_answer=text, provider_model_id=text, response_id=text, fingerprint=text)
    lost = failed(2, error=text)
    started.write(save_samples, [written, lost])
    assert started.read(select_answers, [key(1), key(2)]) == {key(1): written}
    with started.reading() as connection:
        stored = connection.scalar(
            samples.select().with_only_columns(samples.c.error).where(samples.c.cache_key == key(2))
        )
    assert stored == text


@given(st.text(st.characters()))
@example("\x1a0000")
@example("\x1a\x1a001a\x00")
@example("\ud83d\ude00 \ud83d")
def test_escaping_is_exact(text: str):
    """Whatever the text, it is stored as valid text without NUL and read back as it was."""
    column = AnyText()
    kept = column.process_bind_param(text, DIALECT)
    assert kept is not None
    assert "\x00" not in kept
    assert kept.encode().decode() == kept
    assert column.process_result_value(kept, DIALECT) == text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prob_true": 0.1 + 0.2, "logit": -1e-300, "temperature": 0.7},
        {"prob_true": 0.0, "logit": -13.815509557963773},
        {"tokens_in": 2**31 - 1, "tokens_out": 0, "latency_ms": 0},
        {"response_id": None, "fingerprint": None, "provider_model_id": None},
        *(
            {"noncompliance": reason, "prob_true": None, "logit": None, "json_valid": False}
            for reason in Noncompliance
        ),
    ],
    ids=str,
)
def test_fields_round_trip_exactly(started: Store, changes: dict[str, object]):
    """Floats to the last bit, None as None, and each field with the type it had."""
    written = sample(**changes)
    started.write(save_samples, [written])
    read = started.read(select_answers, [key(0)])[key(0)]
    assert read == written
    assert [type(getattr(read, f.name)) for f in fields(Sample)] == [
        type(getattr(written, f.name)) for f in fields(Sample)
    ]


ANSWER = sample(prob_true=0.25)
OTHER_ANSWER = sample(prob_true=0.75, created_at=LATER)
FAILURE = failed(error="first")
OTHER_FAILURE = failed(error="second", created_at=LATER)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (ANSWER, OTHER_ANSWER, OTHER_ANSWER),
        (ANSWER, FAILURE, ANSWER),
        (FAILURE, ANSWER, ANSWER),
        (FAILURE, OTHER_FAILURE, OTHER_FAILURE),
    ],
    ids=["answer replaces", "failure spares", "answer heals", "failure updates"],
)
@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
def test_what_replaces_what(
    started: Store, first: Sample, second: Sample, kept: Sample, together: bool
):
    """A new answer replaces; a failure replaces only a failure."""
    for batch in [[first, second]] if together else [[first], [second]]:
        started.write(save_samples, batch)
    with started.reading() as connection:
        row = connection.execute(samples.select()).mappings().one()
    assert (row["prob_true"], row["error"], row["created_at"]) == (
        kept.prob_true,
        kept.error,
        kept.created_at,
    )


def test_a_failed_sample_is_no_answer(started: Store):
    """A failed call is stored, and asked again next time."""
    started.write(save_samples, [failed(1), sample(2)])
    assert started.read(select_answers, [key(1), key(2)]).keys() == {key(2)}


def test_a_late_answer_was_paid_for_in_vain_and_a_late_failure_was_not(started: Store):
    """Whoever came first stays, and is told; a call that failed brought nothing to pay for."""
    first = sample(1)
    started.write(save_samples, [first])
    assert started.write(save_samples, [failed(1)], owner="me", replace=False) == {key(1): first}
    assert started.read(paid_in_vain) == []
    late = sample(1, created_at=LATER)
    assert started.write(save_samples, [late], owner="me", replace=False) == {key(1): first}
    assert started.read(paid_in_vain) == [key(1)]


def test_many_keys_are_looked_up_in_pieces(started: Store):
    """More keys than one statement takes; unknown and repeated ones do no harm."""
    written = [sample(number) for number in range(1203)]
    started.write(save_samples, written)
    keys = [key(number) for number in range(1300)]
    assert started.read(select_answers, keys + keys[:10]) == {s.cache_key: s for s in written}
    assert started.read(select_answers, []) == {}


def test_a_batch_is_kept_whole_or_not_at_all(started: Store):
    """One sample that the database refuses takes its batch with it."""
    with pytest.raises(StoreError, match="refused a statement"):
        started.write(save_samples, [sample(1), sample(2, run_id="heretix-rpl-unknown"), sample(3)])
    assert started.read(select_answers, [key(1), key(2), key(3)]) == {}


def test_saving_nothing_is_fine(started: Store):
    """An empty batch asks nothing of the database."""
    started.write(save_samples, [])


def test_threads_may_share_a_store(started: Store):
    """Several threads write and read at once, and nothing is lost or refused."""

    def work(first: int) -> int:
        found = 0
        for number in range(first, first + 200, 20):
            started.write(save_samples, [sample(n) for n in range(number, number + 20)])
            found += len(started.read(select_answers, [key(n) for n in range(number, number + 20)]))
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(0, 800, 200))) == [200] * 4
    assert len(started.read(select_answers, [key(n) for n in range(800)])) == 800


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 shell")
def test_the_documented_shell_command_works(tmp_path: Path):
    """What the guide tells people to type shows their samples, booleans as 1 and 0."""
    path = tmp_path / "heretix.sqlite"
    with Store.open(str(path)) as store:
        store.write(start_executions, [start()])
        store.write(save_samples, [sample(1), failed(2)])
    query = (
        "SELECT run_id, prompt_sha256, paraphrase_idx, replicate_idx, prob_true, logit, json_valid "
        f"FROM samples WHERE run_id='{RUN_ID}' LIMIT 5;"
    )
    shown = subprocess.run(
        ["sqlite3", "-header", "-csv", str(path), query], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    sha = sample().prompt_sha256
    assert sorted(shown, reverse=True) == [
        "run_id,prompt_sha256,paraphrase_idx,replicate_idx,prob_true,logit,json_valid",
        f"{RUN_ID},{sha},2,0,,,0",
        f"{RUN_ID},{sha},1,0,0.25,-1.09861228866811,1",
    ]


def test_a_sample_needs_its_run(store: Store):
    """Samples hang on a run that was started."""
    with pytest.raises(StoreError):
        store.write(save_samples, [sample()])
    store.write(start_executions, [start()])
    store.write(save_samples, [sample()])
    assert run()["run_id"] == store.read(select_answers, [key(0)])[key(0)].run_id
