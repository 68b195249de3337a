"""Beliefs and tables as data frames, in three libraries."""

from __future__ import annotations

import sys

import pytest

import heretix
from heretix.core.errors import ConfigError, MissingPartError

CLAIMS = ["Tea is made of leaves.", "Coffee beans are seeds, “so they say”.\n" + "very " * 40]
OPTIONS = {"K": 4, "R": 2, "T": 4, "B": 200}
KINDS = ("pandas", "polars", "arrow")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with two claims, and a third that came to nothing."""
    path = str(tmp_path_factory.mktemp("frames") / "heretix.sqlite")
    heretix.measure_many(CLAIMS, models=["mock:a"], store=path, **OPTIONS)
    heretix.measure(CLAIMS[0], model="mock:b?not_json=1", store=path, **OPTIONS)
    return path


@pytest.fixture(scope="module")
def beliefs(store):
    """Those beliefs."""
    sound = heretix.measure_many(CLAIMS, models=["mock:a"], store=store, **OPTIONS)
    return [*sound, heretix.measure(CLAIMS[0], model="mock:b?not_json=1", store=store, **OPTIONS)]


def rows_of(frame, kind):
    """The rows of a frame, with None for what is missing."""
    if kind == "arrow":
        return frame.to_pylist()
    if kind == "polars":
        return frame.to_dicts()
    import pyarrow as pa

    return pa.Table.from_pandas(frame, preserve_index=False).to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_beliefs_give_a_row_each(beliefs, kind):
    """The row of `to_dict`, in the order given; a missing number is missing."""
    assert rows_of(heretix.frame(beliefs, as_=kind), kind) == [b.to_dict() for b in beliefs]
    assert rows_of(heretix.frame(beliefs[0], as_=kind), kind) == [beliefs[0].to_dict()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_belief_gives_its_samples(beliefs, kind):
    """One row a sample, in the plan's order."""
    belief = beliefs[0]
    rows = rows_of(belief.to_frame(as_=kind), kind)
    assert [row["cache_key"] for row in rows] == [s.cache_key for s in belief.record.samples]
    assert [row["prob_true"] for row in rows] == [s.prob_true for s in belief.record.samples]
    assert {(row["claim"], row["model"], row["run_id"]) for row in rows} == {
        (belief.claim, belief.model, belief.record.run_id)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_those_of_the_export(store, kind):
    """Runs, executions and samples of a store, all or some."""
    import json

    from heretix.report.export import export
    from heretix.store import Store

    for table in ("runs", "executions", "samples"):
        with Store.open(store) as opened:
            lines = b"".join(export(opened, table, "jsonl")).decode().splitlines()
        assert rows_of(heretix.frame(table, store=store, as_=kind), kind) == [
            json.loads(line) for line in lines
        ]
    assert len(heretix.frame("runs", store=store, only="seeds", as_=kind)) == 1


def test_a_row_says_what_the_belief_says(beliefs):
    """And why there is none, where there is none."""
    row = beliefs[0].to_dict()
    assert (row["prob"], row["ci_lo"], row["ci_hi"]) == (beliefs[0].prob, *beliefs[0].ci)
    assert (row["K"], row["R"], row["T"], row["N"], row["calls"]) == (4, 2, 4, 8, 0)
    nothing = beliefs[2].to_dict()
    assert (nothing["prob"], nothing["ci_lo"], nothing["status"]) == (None, None, "no_estimate")
    assert nothing["reason"]


def test_a_belief_is_shown_in_one_line(beliefs):
    """Whatever the claim holds, and however long it is."""
    for belief in beliefs:
        assert len(repr(belief).splitlines()) == 1
        assert len(repr(belief)) < 250
    assert repr(beliefs[0]).startswith("Belief('Tea is made of leaves.', model='mock:a', lens=RPL")
    assert f"prob={beliefs[0].prob:.3f}" in repr(beliefs[0])
    assert "no estimate" in repr(beliefs[2])


def test_a_vector_is_shown_in_one_line_and_gives_a_row_a_lens(tmp_path):
    """With the number of each lens."""
    vector = heretix.measure(
        "Daylight saving time reduces electricity use.",
        model="mock:a",
        lenses="RPL,NUL",
        store=str(tmp_path / "heretix.sqlite"),
        **OPTIONS,
    )
    vectors = [vector]
    assert len(repr(vector).splitlines()) == 1
    frame = heretix.frame(vectors, as_="arrow")
    assert frame["lens"].to_pylist() == ["RPL", "NUL"]
    assert f"NUL={vector['NUL'].prob:.3f}" in repr(vector)


def test_mistakes_are_told(beliefs, store, monkeypatch):
    """Another library, another table, one that isn't installed."""
    with pytest.raises(ConfigError, match="`as_` must be one of pandas, polars, arrow"):
        heretix.frame(beliefs, as_="spark")
    with pytest.raises(ConfigError, match="`table` must be one of"):
        heretix.frame("people", store=store)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingPartError, match="pip install polars"):
        heretix.frame(beliefs, as_="polars")
