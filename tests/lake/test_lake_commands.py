"""`heretix lake`, `heretix store` and `heretix export`, as a user types them."""

from __future__ import annotations

import csv
import io
import json
import sys
from types import SimpleNamespace

import pytest
from lakes import CLAIMS
from typer.testing import CliRunner

import heretix as library
from heretix.cli.app import app
from heretix.core.errors import HeretixError


@pytest.fixture
def heretix(measured, tmp_path, monkeypatch):
    """Run a command on the store and the lake of this test."""
    monkeypatch.setenv("HERETIX_DB", measured)
    monkeypatch.setenv("HERETIX_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args):
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        if isinstance(result.exception, HeretixError):
            return SimpleNamespace(
                code=result.exception.exit_code, out="", err=str(result.exception)
            )
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)

    return run


def test_from_a_store_to_an_answer(heretix, tmp_path):
    """Write, verify, ask, compact, export, verify the artifact: each ends with 0."""
    done = json.loads(heretix("lake", "write", "--json").out)
    assert (done["executions"], done["skipped"]) == (14, {})
    assert "new files" in heretix("lake", "write").out
    assert json.loads(heretix("lake", "verify", "--records", "--json").out)["ok"]
    assert "verified" in heretix("lake", "verify").out
    rows = json.loads(
        heretix("lake", "query", "SELECT model, count(*) AS n FROM runs GROUP BY 1", "--json").out
    )
    assert sum(row["n"] for row in rows) == 14
    assert "mock:a" in heretix("lake", "query", "SELECT model, executions FROM models").out
    assert heretix("lake", "compact").code == 0
    (name,) = json.loads(
        heretix(
            "lake",
            "query",
            "SELECT execution_id FROM runs WHERE model = 'mock:a' LIMIT 1",
            "--json",
        ).out
    )
    out = tmp_path / "artifact.json"
    assert heretix("lake", "export", name["execution_id"], "--out", out).code == 0
    assert heretix("verify", out).code == 0


def test_a_store_is_compacted_by_age(heretix):
    """Nothing is a day old yet; with 0s everything is, and shows and verifies as before."""
    nothing = json.loads(heretix("store", "compact", "--older-than", "1d", "--json").out)
    assert (nothing["moved_executions"], nothing["freed_bytes"]) == (0, 0)
    (run,) = json.loads(heretix("runs", "--json", "-n", "1").out)
    shown = heretix("show", run["run_id"], "--json").out
    done = json.loads(heretix("store", "compact", "--older-than", "0s", "--json").out)
    assert done["moved_executions"] == 14
    assert done["freed_bytes"] > 0
    assert heretix("show", run["run_id"], "--json").out == shown
    assert heretix("verify", run["run_id"]).code == 0
    assert heretix("store", "compact", "--older-than", "soon").code == 2


def test_a_changed_lake_ends_with_1(heretix, tmp_path):
    """Measured, but not usable as it is."""
    heretix("lake", "write")
    file = next((tmp_path / "lake").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    found = heretix("lake", "verify")
    assert found.code == 1
    assert "bytes, got" in found.out


def test_a_users_mistake_ends_with_2(heretix, tmp_path, monkeypatch):
    """No lake named, none there, no SELECT, an unknown execution, a missing extra."""
    for arguments in (
        ["lake", "verify", tmp_path / "nothing"],
        ["lake", "query", "SELECT 1", "--lake", tmp_path / "nothing"],
        ["lake", "export", "exec-0", "--out", tmp_path / "x.json"],
        ["lake", "write", "ftp://somewhere/x"],
        ["lake", "query", "SELECT 1", "--out", tmp_path / "x.xlsx"],
    ):
        assert heretix(*arguments).code == 2, arguments
    heretix("lake", "write")
    assert heretix("lake", "query", "DROP TABLE runs").code == 2
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "uv sync --extra lake" in heretix("lake", "query", "SELECT 1").err
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for arguments in (["lake", "write"], ["store", "compact"]):
        found = heretix(*arguments)
        assert (found.code, "uv sync --extra lake" in found.err) == (2, True)
    monkeypatch.delenv("HERETIX_LAKE")
    assert "HERETIX_LAKE" in heretix("lake", "verify").err


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_an_answer_is_written_to_a_file(heretix, tmp_path, ending):
    """In every format of `heretix export`."""
    import pyarrow.parquet

    heretix("lake", "write")
    out = tmp_path / f"runs.{ending}"
    sql = "SELECT claim, prob_true, finished_at FROM runs ORDER BY claim, model, finished_at"
    assert heretix("lake", "query", sql, "--out", out).code == 0
    if ending == "parquet":
        claims = pyarrow.parquet.read_table(out)["claim"].to_pylist()
    elif ending == "csv":
        claims = [
            row["claim"] for row in csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
        ]
    else:
        claims = [
            json.loads(line)["claim"] for line in out.read_text(encoding="utf-8").splitlines()
        ]
    assert len(claims) == 14
    assert set(claims) == set(CLAIMS)


def test_history_is_exported_the_same_before_and_after_compaction(heretix, tmp_path, measured):
    """One row an execution, with what the user calls the claim, calls, tokens and cost."""
    file = tmp_path / "claims.jsonl"
    own = '{"id": "c-1", "topic": "tea", "year": 1662, "claim": "Tea is made of leaves."}\n'
    file.write_text(own, encoding="utf-8")
    assert (
        heretix("run", "--claims-file", file, "-m", "mock:a", "--out", tmp_path / "o.jsonl").code
        == 0
    )
    before = heretix("export", "executions").out
    rows = [json.loads(line) for line in before.splitlines()]
    assert len(rows) == 15
    (own,) = [row for row in rows if row["claim_id"] == "c-1"]
    assert (own["called"], own["cost_usd"], own["status"]) == (16, 0.0, "ok")
    assert json.loads(own["columns_json"]) == {"topic": "tea", "year": 1662}
    (record,) = library.load(tmp_path / "o.jsonl")
    assert own["prob_true_rpl"] == record.prob
    heretix("store", "compact", "--older-than", "0s")
    assert heretix("export", "executions").out == before
    out = tmp_path / "executions.csv"
    heretix("export", "executions", "--out", out)
    table = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    assert [row["execution_id"] for row in table] == [row["execution_id"] for row in rows]
    assert [row["ci_lo"] for row in table] == [
        "" if row["ci_lo"] is None else repr(row["ci_lo"]) for row in rows
    ]
    runs = [json.loads(line) for line in heretix("export", "runs", "leaves").out.splitlines()]
    assert [row["claim_id"] for row in runs] == ["c-1"]


def test_an_adaptive_run_with_a_price_is_made_again(heretix, tmp_path, measured):
    """Its steps, its stopping rule and what it cost follow from what the row keeps."""
    from heretix.lake.files import Lake
    from heretix.lake.read import LakeReader

    heretix("run", "Tea is made of leaves.", "-m", "mock:a", "--until-width", "0.2", "--seed", "7")
    done = json.loads(heretix("store", "compact", "--older-than", "0s", "--json").out)
    assert done["skipped"] == {}
    rows = list(LakeReader(Lake(str(tmp_path / "lake"))).runs())
    assert {row["seed"] for row in rows} == {None, 7}
    assert all(row["record_json"] is None for row in rows)
    assert any(json.loads(row["inputs_json"])["precision"] for row in rows)
    assert heretix("lake", "verify", "--records").code == 0
