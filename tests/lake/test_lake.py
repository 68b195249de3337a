"""Lakes: what is written comes back as it was, whoever is killed, and nothing is paid for twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from lakes import CLAIMS
from sqlalchemy import func, select, update

import heretix
from heretix.core.errors import (
    ConfigError,
    MissingPartError,
    RecordError,
    StoreBusyError,
    StoreError,
)
from heretix.lake import write as writing
from heretix.lake.files import Lake, Manifest, Part
from heretix.lake.query import query
from heretix.lake.read import LakeReader
from heretix.lake.tables import KEY_BYTES, pack
from heretix.lake.verify import verify_lake
from heretix.lake.write import END_OF_TIME, compact_lake, compact_store, write_lake
from heretix.measurement.record import Artifact, RunRecord, artifact_json
from heretix.measurement.verify import parse_artifacts, verify_artifact
from heretix.providers.mock import MockProvider
from heretix.store import Store
from heretix.store.runs import find_record, select_executions, select_runs
from heretix.store.samples import save_samples, select_answers, select_samples
from heretix.store.schema import (
    archived_samples,
    execution_samples,
    executions,
    results,
    samples,
)

OPTIONS = {"K": 4, "R": 2, "T": 4, "B": 200}


def records_of(db):
    """Every record of a store, by execution, as its JSON."""
    with Store.open(db) as store:
        with store.reading() as connection:
            names = list(connection.scalars(select(executions.c.execution_id)))
        return {name: store.read(find_record, name).record_json for name in names}


def counts(db):
    """Rows of the tables that compaction is about."""
    with Store.open(db) as store, store.reading() as connection:
        return {
            table.name: connection.scalar(select(func.count()).select_from(table))
            for table in (samples, execution_samples, archived_samples)
        }


def written(db, lake):
    with Store.open(db) as store:
        return write_lake(store, lake)


def moved(db, lake, **options):
    with Store.open(db) as store:
        return compact_store(store, lake, before=END_OF_TIME, **options)


@pytest.fixture
def no_calls(monkeypatch):
    """Whoever calls the provider has lost."""

    async def refuse(*_):
        raise AssertionError("a sample was paid for twice")

    monkeypatch.setattr(MockProvider, "ask", refuse)


def test_records_come_back_as_they_were_and_verify(measured, lake):
    """Byte for byte, from the lake alone; spoilt, failed and reused samples included."""
    records = records_of(measured)
    done = written(measured, lake)
    assert (done.executions, done.skipped) == (len(records), {})
    Path(measured).unlink()
    reader = LakeReader(lake)
    rows = list(reader.runs())
    assert {row["execution_id"] for row in rows} == records.keys()
    assert all(row["record_json"] is None for row in rows)
    for row in rows:
        record = reader.rebuild(row)
        assert record == RunRecord.model_validate_json(records[record.execution_id])
        (artifact,) = parse_artifacts(artifact_json(Artifact.of([record])), source="lake")
        assert all(found.ok for found in verify_artifact(artifact))


def test_an_answer_is_written_once(measured, lake):
    """Runs that share samples share their rows, and writing again writes nothing."""
    done = written(measured, lake)
    with Store.open(measured) as store, store.reading() as connection:
        stored = connection.scalar(select(func.count()).select_from(samples))
    assert done.samples == stored == sum(file.rows for file in lake.manifest().of("samples"))
    again = written(measured, lake)
    assert (again.executions, again.samples, again.files) == (0, 0, 0)


def test_what_was_measured_since_is_appended(measured, lake):
    """With the answers that it shares with what is there already."""
    written(measured, lake)
    before = lake.manifest()
    heretix.measure(CLAIMS[0], model="mock:a", store=measured, **{**OPTIONS, "K": 16, "T": 16})
    done = written(measured, lake)
    assert done.executions == 1
    assert done.samples == 32 - 16, "half of them stand in the lake"
    assert {file.path for file in before.files} < {file.path for file in lake.manifest().files}
    assert verify_lake(lake, records=True).ok


def test_every_answer_to_a_key_is_kept(measured, lake, monkeypatch):
    """A rerun without the cache gives other answers; each record has its own, whoever is first."""
    written(measured, lake)
    monkeypatch.setenv("HERETIX_RPL_NO_CACHE", "1")
    text = '{"prob_true": 0.125}'
    ask = MockProvider.ask

    async def changed(self, request):
        from dataclasses import replace

        return replace(await ask(self, request), text=text)

    monkeypatch.setattr(MockProvider, "ask", changed)
    heretix.measure(CLAIMS[0], model="mock:a", store=measured, **OPTIONS)
    assert written(measured, lake).samples == 8
    assert verify_lake(lake, records=True).ok
    monkeypatch.delenv("HERETIX_RPL_NO_CACHE")
    moved(measured, lake)
    belief = heretix.measure(CLAIMS[0], model="mock:a", store=measured, **OPTIONS)
    assert {sample.raw_answer for sample in belief.record.samples} == {text}, "the latest"
    assert belief.record.usage.called == 0


def test_a_record_that_cannot_be_made_again_is_kept_whole(measured, lake):
    """Made by another version, say: what it says stays as it is."""
    strange = None
    with Store.open(measured) as store, store.writing() as connection:
        row = connection.execute(select(results)).first()
        record = RunRecord.model_validate_json(row.record_json)
        changed = record.aggregates.model_copy(update={"stability_score": 0.123})
        strange = record.model_copy(update={"aggregates": changed}).model_dump_json()
        connection.execute(
            update(results)
            .where(results.c.execution_id == row.execution_id)
            .values(record_json=strange)
        )
    moved(measured, lake)
    with Store.open(measured) as store:
        found = store.read(find_record, record.execution_id).record_json
    assert json.loads(found) == json.loads(strange)


def test_whatever_a_model_wrote_is_kept(measured_template, tmp_path, lake, monkeypatch):
    """NUL, the escape character itself, a newline."""
    db = str(tmp_path / "new.sqlite")
    text = "é \x00 \x1a0041 \n"
    ask = MockProvider.ask

    async def odd(self, request):
        from dataclasses import replace

        return replace(await ask(self, request), text=text, response_id=text, fingerprint=text)

    monkeypatch.setattr(MockProvider, "ask", odd)
    with Store.open(db):
        pass
    belief = heretix.measure("A claim.", model="mock:a", store=db, **OPTIONS)
    assert belief.record.status == "no_estimate"
    moved(db, lake)
    with Store.open(db) as store:
        found = RunRecord.model_validate_json(
            store.read(find_record, belief.record.execution_id).record_json
        )
    assert found == belief.record


# Stores made smaller.


def test_a_rerun_after_compaction_calls_nobody_and_says_the_same(measured, lake, no_calls):
    """Equal beliefs from equal samples; the database holds none of them."""
    before = records_of(measured)
    with Store.open(measured) as store:
        summaries = store.read(select_runs, limit=100)
    done = moved(measured, lake)
    after = counts(measured)
    assert done.moved_executions == len(before)
    assert done.moved_samples == after["archived_samples"]
    assert after["execution_samples"] == 0
    with Store.open(measured) as store, store.reading() as connection:
        left = list(connection.scalars(select(samples.c.error)))
    assert all(error is not None for error in left), "failures are no answers: they stay"
    assert records_of(measured) == before
    with Store.open(measured) as store:
        assert store.read(select_runs, limit=100) == summaries
    beliefs = heretix.measure_many(CLAIMS, models=["mock:a"], store=measured, **OPTIONS)
    originals = {
        record["claim"]: record
        for record in map(json.loads, before.values())
        if record["model"] == "mock:a" and record["sampling"]["K"] == 4
    }
    for belief in beliefs:
        original = originals[belief.claim]
        assert belief.record.usage.called == 0
        assert belief.record.aggregates.prob_true_rpl == original["aggregates"]["prob_true_rpl"]
        ours = belief.record.model_dump(mode="json")["samples"]
        assert [{**one, "from_cache": False} for one in ours] == original["samples"]


def test_a_failure_hides_no_answer_that_was_moved(measured, lake):
    """A rerun without the cache that came to nothing: what was paid for is still found."""
    moved(measured, lake)
    with Store.open(measured) as store:
        with store.reading() as connection:
            keys = [row.hex() for row in connection.scalars(select(archived_samples.c.cache_key))]
        answers = store.read(select_answers, keys)
        assert len(answers) == len(keys)
        nothing = {"raw_answer": None, "prob_true": None, "logit": None, "noncompliance": None}
        failures = [replace(one, error="refused", **nothing) for one in answers.values()]
        store.write(save_samples, failures)
        assert store.read(select_samples, keys) == answers == store.read(select_answers, keys)


@pytest.mark.postgres
def test_a_server_is_compacted_likewise(postgres_url, lake, no_calls, monkeypatch):
    """Links to samples that moved away are left out; those to samples that stay are kept."""
    monkeypatch.undo()
    heretix.measure_many(CLAIMS[:3], models=["mock:a"], store=postgres_url, **OPTIONS)
    before = records_of(postgres_url)
    moved(postgres_url, lake)
    assert counts(postgres_url) == {
        "samples": 0,
        "execution_samples": 0,
        "archived_samples": 3 * 8,
    }
    assert records_of(postgres_url) == before
    wider = {**OPTIONS, "K": 8, "T": 8}
    belief = heretix.measure(CLAIMS[0], model="mock:a", store=postgres_url, **wider)
    assert belief.record.usage.from_cache == 8
    assert counts(postgres_url)["execution_samples"] == belief.record.usage.called == 8
    moved(postgres_url, lake)
    assert counts(postgres_url)["samples"] == 0


def test_only_old_executions_are_moved(measured, lake):
    """A sample stays that a younger execution is linked with."""
    with Store.open(measured) as store, store.writing() as connection:
        old = list(connection.scalars(select(results.c.execution_id)))[:4]
        connection.execute(
            update(results)
            .where(results.c.execution_id.in_(old))
            .values(finished_at="2026-01-01T00:00:00.000Z")
        )
    before = counts(measured)
    with Store.open(measured) as store:
        done = compact_store(store, lake, before="2026-02-01T00:00:00.000Z")
    # The record says when it ended; the table's column, by which it is chosen, was set back.
    assert done.moved_executions == 4
    after = counts(measured)
    assert after["samples"] == before["samples"] - done.moved_samples
    with Store.open(measured) as store, store.reading() as connection:
        linked = connection.execute(
            select(execution_samples.c.cache_key)
            .outerjoin(samples, samples.c.cache_key == execution_samples.c.cache_key)
            .where(samples.c.cache_key.is_(None))
        ).all()
    assert linked == []
    again = moved(measured, lake)
    assert again.moved_executions == 14 - 4
    assert counts(measured)["execution_samples"] == 0


def test_a_sample_that_was_archived_meanwhile_needs_no_link(measured, lake, monkeypatch):
    """The store is compacted while an execution is between its last sample and its record."""
    from heretix.measurement import execution as executing

    finish = executing.finish
    done = []

    def compact_first(store, ready):
        done.append(compact_store(store, lake, before=END_OF_TIME))
        return finish(store, ready)

    monkeypatch.setattr("heretix.measurement.runner.finish", compact_first)
    belief = heretix.measure(CLAIMS[0], model="mock:a", store=measured, **OPTIONS)
    assert belief.record.usage.from_cache == 8
    assert done[0].moved_executions == 14


def test_without_its_lake_a_store_says_so_and_pays_for_nothing(measured, lake, no_calls):
    """An error that names the lake; brought back, moved elsewhere, it goes on."""
    moved(measured, lake)
    elsewhere = Path(lake.location).rename(Path(lake.location).with_name("elsewhere"))
    with pytest.raises(StoreError, match="paid for again"):
        heretix.measure(CLAIMS[0], model="mock:a", store=measured, **OPTIONS)
    with Store.open(measured) as store, pytest.raises(StoreError, match="HERETIX_LAKE"):
        store.read(find_record, _any_execution(store))
    os.environ["HERETIX_LAKE"] = str(elsewhere)
    try:
        belief = heretix.measure(CLAIMS[0], model="mock:a", store=measured, **OPTIONS)
    finally:
        del os.environ["HERETIX_LAKE"]
    assert belief.record.usage.called == 0


def _any_execution(store):
    (run,) = store.read(select_runs, limit=1)
    return store.read(select_executions, run.run_id)[0].execution_id


def test_a_changed_file_is_found_and_never_believed(measured, lake):
    """`verify` names it; a page whose checksum is wrong isn't read."""
    moved(measured, lake)
    file = max(lake.manifest().of("samples"), key=lambda one: one.rows)
    path = Path(lake.location) / file.path
    content = bytearray(path.read_bytes())
    content[KEY_BYTES * 2 + 40] ^= 1
    path.write_bytes(bytes(content))
    found = verify_lake(lake)
    assert found.problems == {file.path: "was changed after it was written"}
    with pytest.raises(StoreError):
        records_of(measured)
    path.unlink()
    assert verify_lake(lake).problems == {file.path: "is missing"}


# One writer; whoever is killed leaves the old manifest.


def test_a_lake_has_one_writer(measured, lake):
    """The second is told; readers aren't held up."""
    written(measured, lake)
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with Lake(lake.location).writing():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    try:
        with pytest.raises(StoreBusyError, match="one writer"):
            written(measured, lake)
        assert verify_lake(lake).ok
    finally:
        leave.set()
        thread.join()
    assert written(measured, lake).executions == 0


def test_a_manifest_that_somebody_else_replaced_is_left_alone(lake):
    """Where there is no lock that can be trusted, the count of changes tells."""
    first = Manifest(lake_id="one").change()
    lake.commit(Manifest(lake_id="one"), first)
    lake.commit(first, first.change())
    with pytest.raises(StoreBusyError, match="another writer"):
        lake.commit(first, first.change())


@pytest.mark.parametrize("point", ["seal", "commit"])
def test_a_killed_writer_leaves_the_old_manifest_valid(measured, lake, point):
    """Killed with files written and no manifest, or half a manifest; the same command goes on."""
    written(measured, lake)
    before = lake.manifest()
    heretix.measure("Another claim.", model="mock:a", store=measured, **OPTIONS)
    code = f"""
import os, signal, sys
from pathlib import Path
from heretix.lake import files
from heretix.lake.files import Lake
from heretix.lake.write import write_lake
from heretix.store import Store
if {point!r} == "commit":
    # The new manifest lies beside the old one, and is about to take its place.
    Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL) if "manifest" in self.name else os.replace(self, target)
else:
    seal = Lake.seal
    def killed(self, *a):
        seal(self, *a)
        os.kill(os.getpid(), signal.SIGKILL)
    Lake.seal = killed
with Store.open({measured!r}) as store:
    write_lake(store, Lake({lake.location!r}))
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert lake.manifest() == before
    found = verify_lake(lake, records=True)
    assert found.ok
    assert found.unlisted, "what it wrote is there, and counts for nothing"
    done = written(measured, lake)
    assert (done.executions, done.samples) == (1, 8)
    compact_lake(lake)
    found = verify_lake(lake, records=True)
    assert (found.ok, found.unlisted) == (True, ())


@pytest.mark.parametrize("point", ["written", "moved"])
def test_a_killed_compaction_goes_on(measured, lake, point, no_calls):
    """In the lake and in the database, or half of them moved: nothing is lost or counted twice."""
    before = records_of(measured)
    code = f"""
import os, signal
from heretix.lake import write
from heretix.store import Store
from heretix.lake.files import Lake
write._PAGE = 5
move = write.archive_executions
def killed(connection, moved):
    if {point!r} == "written":
        os.kill(os.getpid(), signal.SIGKILL)
    killed.times = getattr(killed, "times", 0) + 1
    if killed.times == 2:
        move(connection, moved)
        os.kill(os.getpid(), signal.SIGKILL)
    return move(connection, moved)
write.archive_executions = killed
with Store.open({measured!r}) as store:
    write.compact_store(store, Lake({lake.location!r}), before="9999")
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert records_of(measured) == before
    done = moved(measured, lake)
    assert done.executions == 0, "all are in the lake already"
    assert done.moved_executions == 14 - (5 if point == "moved" else 0)
    assert records_of(measured) == before
    assert (
        heretix.measure(CLAIMS[3], model="mock:a", store=measured, **OPTIONS).record.usage.called
        == 0
    )


# Files.


def test_small_files_are_merged(measured, lake, monkeypatch):
    """Rows, records and look-ups stay as they are, for a reader of the old manifest too."""
    for claim in CLAIMS[:3]:
        heretix.measure(claim, model="mock:c", store=measured, **OPTIONS)
        written(measured, lake)
    moved(measured, lake)
    old = LakeReader(lake)
    before, rows = lake.manifest(), query(lake, "SELECT * FROM samples ORDER BY ALL")
    done = compact_lake(lake)
    after = lake.manifest()
    assert done.files
    assert len(after.files) < len(before.files)
    assert query(lake, "SELECT * FROM samples ORDER BY ALL") == rows
    assert verify_lake(lake, records=True).ok
    assert lake.list() == {file.path for file in after.files}
    part = Part(model="mock:c", bank=after.files[0].part.bank, date=after.files[0].part.date)
    name = next(row["execution_id"] for row in LakeReader(lake).runs() if row["model"] == "mock:c")
    assert RunRecord.model_validate_json(old.read_record(part.path, name)).model == "mock:c"
    monkeypatch.setattr(writing, "_SMALL_ROWS", 0)
    assert compact_lake(lake).files == 0


def test_a_manifest_changed_by_hand_is_refused(measured, lake):
    """A file taken out of it would be samples paid for again."""
    written(measured, lake)
    path = Path(lake.location) / "manifest.json"
    content = json.loads(path.read_text())
    content["files"].pop()
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match="was changed after it was written"):
        lake.manifest()


def test_a_part_is_named_by_what_its_rows_share():
    """Any model's name makes a path, and is read from it again."""
    part = Part(model="openai:a/b=c d%?é", bank="rpl_v1", date="2026-11-18")
    assert Part.parse(part.path) == part
    assert part.path.count("/") == 2


def test_places_that_are_no_lake_are_refused(tmp_path):
    """No name, another scheme, keys in an address, an empty folder."""
    for text in ("", "gs://bucket/x", "s3://key:secret@bucket/x"):
        with pytest.raises(ConfigError, match="lake"):
            Lake(text)
    with pytest.raises(RecordError, match="heretix lake write"):
        Lake(str(tmp_path)).require_manifest()


def test_without_the_extra_commands_say_what_to_install(monkeypatch, tmp_path):
    """The user can put it right: exit code 2."""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPartError, match="uv sync --extra lake") as caught:
        Lake(str(tmp_path))
    assert caught.value.exit_code == 2


# SQL.


def test_the_views_agree_with_the_store(measured, lake):
    """Counts, means, log-odds and keys as the database has them."""
    written(measured, lake)
    found = query(
        lake,
        "SELECT cache_key, prob_true, logit, compliant, model FROM samples ORDER BY cache_key",
    ).to_pylist()
    with Store.open(measured) as store, store.reading() as connection:
        rows = connection.execute(select(samples).order_by(samples.c.cache_key)).all()
    assert [one["cache_key"] for one in found] == [row.cache_key[: 2 * KEY_BYTES] for row in rows]
    assert [one["prob_true"] for one in found] == [row.prob_true for row in rows]
    assert [one["logit"] for one in found] == [
        row.logit if row.logit is None else pytest.approx(row.logit, rel=1e-12) for row in rows
    ]
    (models,) = query(lake, "SELECT sum(executions), sum(called) FROM models").to_pylist()
    assert list(models.values()) == [14, len(rows)]
    claims = query(lake, "SELECT claim, executions FROM claims ORDER BY claim").to_pylist()
    assert claims == [{"claim": c, "executions": 3 if c in CLAIMS[:2] else 2} for c in CLAIMS]
    sums = query(
        lake, "SELECT sha256 FROM runs JOIN samples USING (run_id) GROUP BY 1 HAVING count(*) > 0"
    )
    assert {len(one["sha256"]) for one in sums.to_pylist()} == {64}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{path}')",
        "SELECT * FROM read_text('{path}')",
        "SELECT * FROM '{path}'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
        "COPY (SELECT 1) TO '{path}'",
        "ATTACH '{path}.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW samples",
        "SELECT * FROM lake",
        "SELECT 1; SELECT 2",
        "SELEC 1",
        "",
    ],
)
def test_a_query_reaches_nothing_but_the_views(measured, lake, tmp_path, sql):
    """No file, no network, no setting, no variable of this program; one SELECT."""
    written(measured, lake)
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="one SELECT over the views"):
        query(lake, sql.format(path=secret))
    assert secret.read_text() == "a,b\n1,2\n"
    assert not Path(f"{secret}.db").exists()


def test_an_empty_lake_has_its_views(tmp_path, sqlite_template, lake):
    """Nothing was measured: no rows, and no error."""
    path = shutil.copy(sqlite_template, tmp_path / "empty.sqlite")
    written(str(path), lake)
    for view in ("samples", "runs", "claims", "models"):
        assert query(lake, f"SELECT * FROM {view}").num_rows == 0


# Rows.


def test_a_lens_is_made_again_with_its_documents(tmp_path, lake):
    """Bundles, frames and quotes: all of it follows from what the row keeps."""
    db = str(tmp_path / "heretix.sqlite")
    vector = heretix.measure(
        "Daylight saving time reduces electricity use.",
        model="mock:a",
        lenses="RPL,NUL,MEL",
        store=db,
        **OPTIONS,
    )
    moved(db, lake)
    found = {row: json.loads(text) for row, text in records_of(db).items()}
    for belief in vector.beliefs.values():
        assert found[belief.record.execution_id] == belief.record.model_dump(mode="json")
    assert all(row["record_json"] is None for row in LakeReader(lake).runs())


def test_what_does_not_follow_from_its_answer_is_left_in_the_store(measured, lake):
    """A row that couldn't say what the record says isn't written, and the reason told."""
    with Store.open(measured) as store, store.writing() as connection:
        row = connection.execute(select(results)).first()
        text = row.record_json.replace('"json_valid":true', '"json_valid":false')
        connection.execute(
            update(results)
            .where(results.c.execution_id == row.execution_id)
            .values(record_json=text)
        )
    done = moved(measured, lake)
    assert list(done.skipped) == [row.execution_id]
    assert done.moved_executions == 13
    with pytest.raises(RecordError, match="doesn't follow"):
        pack(RunRecord.model_validate_json(text))
