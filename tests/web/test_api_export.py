"""Tables for other tools, from the API and from the command line: the same rows either way."""

import csv
import io
import json
import sys

import pyarrow.parquet as parquet
import pytest
from apiserver import CLAIMS, served
from sqlalchemy import update
from typer.testing import CliRunner

from heretix.cli.app import app
from heretix.report import export as exporting
from heretix.store import Store
from heretix.store.schema import samples

TABLES = ("runs", "executions", "samples", "transfers")


@pytest.fixture(scope="module")
def api(tmp_path_factory, sqlite_template):
    with served(tmp_path_factory.mktemp("export"), sqlite_template) as found:
        opened = found.post("/episodes", {"claim": "A b c.", "B": 200}, key="one")
        found.outcome(opened).raise_for_status()
        yield found


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_row_is_exported_in_both_formats(api):
    """JSON Lines and Parquet hold the same, to the last digit."""
    for table in TABLES:
        rows = lines(api.get(f"/export/{table}.jsonl").text)
        found = parquet.read_table(io.BytesIO(api.get(f"/export/{table}.parquet").content))
        assert rows, table
        assert found.to_pylist() == rows, table
    assert {row["claim"] for row in lines(api.get("/export/runs.jsonl").text)} >= set(CLAIMS)


def test_csv_holds_the_same_as_text(api):
    """A header, and what is missing left empty; every number reads back to the last digit."""
    for table in TABLES:
        rows = lines(api.get(f"/export/{table}.jsonl").text)
        answer = api.get(f"/export/{table}.csv")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        found = list(csv.DictReader(io.StringIO(answer.text)))
        assert found == [
            {name: "" if value is None else str(value) for name, value in row.items()}
            for row in rows
        ]


def test_a_table_longer_than_a_page_is_exported_whole(api, monkeypatch):
    """Pages join without a gap and without a row twice."""
    whole = {table: api.get(f"/export/{table}.jsonl").text for table in TABLES}
    monkeypatch.setattr(exporting, "_PAGE", 3)
    monkeypatch.setattr(exporting, "_RECORDS_PAGE", 2)
    for table in TABLES:
        assert api.get(f"/export/{table}.jsonl").text == whole[table]
        found = parquet.read_table(io.BytesIO(api.get(f"/export/{table}.parquet").content))
        assert found.to_pylist() == lines(whole[table])


def test_some_rows_can_be_chosen(api):
    """Runs by text, samples by run, transfers by episode."""
    tea = lines(api.get("/export/runs.jsonl", params={"only": "TEA"}).text)
    assert [row["claim"] for row in tea] == [CLAIMS[1]]
    own = lines(api.get("/export/samples.jsonl", params={"only": tea[0]["run_id"]}).text)
    assert len(own) == 16
    assert {row["run_id"] for row in own} == {tea[0]["run_id"]}
    episode = api.get("/episodes").json()["items"][0]["id"]
    moved = lines(api.get("/export/transfers.jsonl", params={"only": episode}).text)
    assert {row["episode"] for row in moved} == {episode}
    assert api.get("/export/samples.jsonl", params={"only": "nothing"}).status_code == 404


def test_an_unknown_table_or_format_is_refused(api):
    """With a problem document, as everything is."""
    for name in ("people.jsonl", "tokens.parquet", "runs.xlsx", "runs"):
        answer = api.get(f"/export/{name}")
        assert answer.status_code in {404, 422}, name
        assert answer.headers["content-type"] == "application/problem+json"


def test_without_pyarrow_parquet_says_what_to_install(api, monkeypatch):
    """JSON Lines goes on working."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = api.get("/export/runs.parquet")
    assert answer.status_code == 501
    assert "uv sync --extra parquet" in answer.json()["detail"]
    assert api.get("/export/runs.jsonl").status_code == 200


def test_whatever_a_model_wrote_can_be_exported(tmp_path, sqlite_template):
    """Half a surrogate pair is escaped in JSON, and spelt out where there is no escape."""
    with served(tmp_path, sqlite_template, claims=CLAIMS[:1]) as api:
        with api.store.writing() as connection:
            connection.execute(update(samples).values(raw_answer="\ud800 é \x00"))
        rows = lines(api.get("/export/samples.jsonl").text)
        assert {row["raw_answer"] for row in rows} == {"\ud800 é \x00"}
        found = parquet.read_table(io.BytesIO(api.get("/export/samples.parquet").content))
        assert set(found["raw_answer"].to_pylist()) == {"\\ud800 é \x00"}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_the_command_writes_the_same_files(api, tmp_path, ending):
    """`heretix export` and the API share the code."""
    db = api.store.name
    for table in TABLES:
        path = tmp_path / f"{table}.{ending}"
        done = CliRunner().invoke(app, ["export", table, "--out", str(path), "--db", db])
        assert done.exit_code == 0, done.output
        sent = api.get(f"/export/{table}.{ending}").content
        if ending != "parquet":
            assert path.read_bytes() == sent
        else:
            assert parquet.read_table(path) == parquet.read_table(io.BytesIO(sent))


def test_the_command_prints_lines_without_a_file(api):
    """For pipes; a text chooses."""
    done = CliRunner().invoke(app, ["export", "runs", "tea", "--db", api.store.name])
    assert [row["claim"] for row in lines(done.stdout)] == [CLAIMS[1]]


def test_a_mistake_leaves_no_file(api, tmp_path):
    """Another ending, an unknown run, a place that can't be written, a store that isn't there."""
    name = api.store.name
    for arguments in (
        ["runs", "--out", str(tmp_path / "x.xlsx"), "--db", name],
        ["samples", "nothing", "--out", str(tmp_path / "x.jsonl"), "--db", name],
        ["runs", "--out", str(tmp_path / "x.jsonl"), "--db", str(tmp_path / "none.sqlite")],
    ):
        done = CliRunner().invoke(app, ["export", *arguments])
        assert done.exception is not None
        assert done.exception.exit_code == 2, arguments
    assert list(tmp_path.iterdir()) == []


def test_an_empty_store_gives_empty_tables(tmp_path, sqlite_template):
    """A Parquet file without rows still has its columns."""
    import shutil

    path = shutil.copy(sqlite_template, tmp_path / "empty.sqlite")
    with Store.open(str(path)) as store:
        assert b"".join(exporting.export(store, "runs", "jsonl")) == b""
        found = parquet.read_table(io.BytesIO(b"".join(exporting.export(store, "runs", "parquet"))))
    assert found.num_rows == 0
    assert "prob_true_rpl" in found.column_names
