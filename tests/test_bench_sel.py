"""The bench of SEL: pairs from one evidence, moves counted the right way, nothing asked twice."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "bench" / "sel.py"
_spec = importlib.util.spec_from_file_location("bench_sel", SCRIPT)
bench = sys.modules["bench_sel"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


def rows():
    """Two pairs, a claim that stands alone, and a pair whose evidence is too long to be shown."""
    for text, *sides in (
        ("Bees fly by day in all eleven gardens.", "Bees fly by day.", "Bees fly by night."),
        ("Salt melted the ice within an hour.", "Salt melts ice.", "Salt keeps ice."),
        ("Copper conducts.", "Copper conducts."),
        ("Long. " * 200, "It is long.", "It is short."),
    ):
        for claim, stance in zip(sides, bench.SIDES, strict=False):
            yield {"claim": claim, "evidence": text, "stance": stance}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows())), encoding="utf-8")
    return path


def test_only_whole_pairs_are_drawn(data):
    cases = bench.draw(data, 24)
    assert {case.claim for case in cases} == {
        *("Bees fly by day.", "Bees fly by night.", "Salt melts ice.", "Salt keeps ice.")
    }
    assert sorted(case.side for case in cases[:2]) == [-1, 1]
    assert bench.draw(data, 2) == cases[:2]


def test_moves_count_the_right_way_and_nothing_is_asked_twice(data, tmp_path, monkeypatch, capsys):
    """A model that any document moves up is right for the supported claim of each pair alone."""
    store = str(tmp_path / "sel.sqlite")
    model = "sim:m?sel=2&any_text=0"
    monkeypatch.setattr(
        sys, "argv", ["sel.py", "--data", str(data), "--model", model, "--db", store, "--json"]
    )
    assert bench.main() == 0
    first = json.loads(capsys.readouterr().out)
    assert first["evidence"]["right"] == first["claims"] // 2 == 2
    assert first["quotes_verified"] == first["quotes_given"] > 0
    assert {"pair", "placebo"} <= first["moves"][0].keys()
    assert first.pop("calls_made_now") == 4 * 24
    assert bench.main() == 0
    assert json.loads(capsys.readouterr().out) == first | {"calls_made_now": 0}
