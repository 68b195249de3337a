"""Writing a lake: what a store has measured, appended; small files merged; stores made smaller."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import sha256_hex
from heretix.core.clock import utc_text
from heretix.core.errors import RecordError
from heretix.lake.files import ROWS_PER_GROUP, PartWriter, load, open_writer
from heretix.lake.read import LakeReader
from heretix.lake.tables import pack, part_of, prefix_of, schema_of, summary_of, write_refs
from heretix.measurement.record import RunRecord
from heretix.store.archive import (
    ArchivedExecution,
    Place,
    archive_executions,
    select_finished_before,
)
from heretix.store.db import chunked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heretix.lake.files import File, Lake, Manifest, Part
    from heretix.lake.tables import Packed, Row
    from heretix.measurement.record import SampleRecord
    from heretix.store import Store

_PAGE: Final = 200
"""Executions that are read, or moved, in one transaction."""
_COMMIT_ROWS: Final = 100_000
"""Samples after which the manifest is brought up to date, so that a kill loses no more; until then
they are in memory, about a kilobyte each."""
_FILE_ROWS: Final = 1_000_000
"""Rows of a merged file, at the most: it is made in memory."""
_SMALL_ROWS: Final = _FILE_ROWS // 4
"""Files with fewer rows are merged."""
END_OF_TIME: Final = "9999"


@dataclass(slots=True, kw_only=True)
class Written:
    """Result of a command that writes to a lake."""

    lake: str
    executions: int = 0
    samples: int = 0
    files: int = 0
    bytes: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    """Executions that stay where they are, with the reason."""


def write_lake(
    store: Store,
    lake: Lake,
    *,
    before: str = END_OF_TIME,
    progress: Callable[[str, int], None] = lambda _what, _count: None,
) -> Written:
    """Append every execution that finished before a moment, and that the lake doesn't have."""
    done = Written(lake=lake.location)
    with lake.writing() as begun:
        new = begun.generation == 0
        appending = _Appender(lake, _commit(lake, begun, begun.change()) if new else begun)
        for record in _records(store, before):
            if record.execution_id in appending.executions:
                continue
            try:
                packed = pack(record)
            except RecordError as exc:
                done.skipped[record.execution_id] = str(exc)
                continue
            done.samples += appending.append(packed)
            done.executions += 1
            progress("samples written", done.samples)
            if appending.rows >= _COMMIT_ROWS:
                _count(done, appending.commit())
        _count(done, appending.commit())
    return done


def _count(done: Written, files: list[File]) -> None:
    done.files += len(files)
    done.bytes += sum(file.bytes for file in files)


def _commit(lake: Lake, before: Manifest, after: Manifest) -> Manifest:
    lake.commit(before, after)
    return after


def _records(store: Store, before: str) -> Iterator[RunRecord]:
    after = ("", "")
    while True:
        page = store.read(select_finished_before, before, after=after, limit=_PAGE)
        for _, _, text in page:
            yield RunRecord.model_validate_json(text)
        if len(page) < _PAGE:
            return
        after = (page[-1][0], page[-1][1])


class _Appender:
    """Rows on their way into a lake, each answer once."""

    def __init__(self, lake: Lake, manifest: Manifest) -> None:
        self._lake = lake
        self._manifest = manifest
        self._reader = LakeReader(lake)
        self.executions = self._reader.execution_ids()
        self._writers: dict[tuple[str, Part], PartWriter] = {}
        self._fresh: dict[tuple[Part, bytes], list[Row]] = {}
        """Samples that are on their way."""
        self.rows = 0

    def append(self, packed: Packed) -> int:
        """Take an execution; returns how many of its samples the lake didn't have."""
        versions = self._versions(packed)
        refs: list[tuple[str, int]] = []
        new = 0
        for part, row in packed.samples:
            there = versions.setdefault((part, row["cache_key"]), [])
            same = next((one for one in there if _same_answer(one, row)), None)
            if same is None:
                same = {**row, "version": len(there)}
                there.append(same)
                self._fresh.setdefault((part, row["cache_key"]), []).append(same)
                self._add("samples", part, same)
                new += 1
            refs.append((part.date, same["version"]))
        run = {**packed.run, "refs": write_refs(packed.part.date, refs)}
        self._add("runs", packed.part, run)
        self.executions[run["execution_id"]] = packed.part
        self.rows += new
        return new

    def _versions(self, packed: Packed) -> dict[tuple[Part, bytes], list[Row]]:
        """Samples under the same keys, in the lake or on their way."""
        wanted: dict[Part, list[bytes]] = {}
        for part, row in packed.samples:
            wanted.setdefault(part, []).append(row["cache_key"])
        return {
            (part, prefix): [*found.get(prefix, ()), *self._fresh.get((part, prefix), ())]
            for part, prefixes in wanted.items()
            for found in [self._reader.find(part, prefixes)]
            for prefix in prefixes
        }

    def _add(self, table: str, part: Part, row: Row) -> None:
        writer = self._writers.get((table, part))
        if writer is None:
            writer = self._writers[table, part] = PartWriter(table, part, schema_of(table))
        writer.add(row)

    def commit(self) -> list[File]:
        """Seal the files and name them in the manifest."""
        if not self._writers:
            return []
        files = [writer.seal(self._lake) for writer in self._writers.values()]
        self._manifest = _commit(self._lake, self._manifest, self._manifest.change(add=files))
        self._reader.refresh(self._manifest)
        self._writers, self._fresh, self.rows = {}, {}, 0
        return files


def _same_answer(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in one if name not in {"run_id", "version"})


# Stores made smaller.


@dataclass(slots=True, kw_only=True)
class Moved(Written):
    """Result of moving samples out of a store."""

    moved_executions: int = 0
    moved_samples: int = 0


def compact_store(
    store: Store,
    lake: Lake,
    *,
    before: str,
    progress: Callable[[str, int], None] = lambda _what, _count: None,
) -> Moved:
    """Move executions that finished before a moment from a store to a lake.

    They are in the lake, named by its manifest, before the database forgets anything; killed at any
    moment, the same command goes on.
    """
    written = write_lake(store, lake, before=before, progress=progress)
    done = Moved(
        lake=lake.location,
        executions=written.executions,
        samples=written.samples,
        files=written.files,
        bytes=written.bytes,
        skipped=written.skipped,
    )
    reader = LakeReader(lake)
    held = reader.execution_ids()
    there = (record for record in _records(store, before) if record.execution_id in held)
    for page in chunked(there, _PAGE):
        moved = [_describe_archived(reader, record, held[record.execution_id]) for record in page]
        done.moved_samples += store.write(archive_executions, moved)
        done.moved_executions += len(moved)
        progress("samples moved", done.moved_samples)
    return done


def _describe_archived(reader: LakeReader, record: RunRecord, part: Part) -> ArchivedExecution:
    """Make what the database keeps of an execution, once every answer was seen in the lake."""

    def place(of: Part) -> Place:
        return Place(lake_id=reader.manifest.lake_id, location=reader.lake.location, part=of.path)

    answers: dict[Part, list[SampleRecord]] = {}
    for sample in record.samples:
        if sample.error is None:
            answers.setdefault(part_of(record, sample.created_at), []).append(sample)
    return ArchivedExecution(
        execution_id=record.execution_id,
        place=place(part),
        summary=summary_of(record),
        cache_keys=[sample.cache_key for sample in record.samples],
        answers=[
            (sample.cache_key, sample.prompt_sha256, sample.created_at, place(where))
            for where, samples in answers.items()
            for found in [reader.find(where, [prefix_of(one.cache_key) for one in samples])]
            for sample in samples
            if _is_latest(sample, found.get(prefix_of(sample.cache_key), ()))
        ],
    )


def _is_latest(sample: SampleRecord, versions: Sequence[Row]) -> bool:
    """Tell that a look-up in the lake would give this answer."""
    times = [row["created_at"] for row in versions if row["error"] is None]
    return bool(times) and utc_text(max(times)) == sample.created_at


# Small files merged.


def compact_lake(
    lake: Lake, *, progress: Callable[[str, int], None] = lambda _what, _count: None
) -> Written:
    """Merge the small files of each part, and delete what no manifest names."""
    done = Written(lake=lake.location)
    lake.require_manifest()
    with lake.writing() as begun:
        manifest = begun
        parts: dict[tuple[str, Part], list[File]] = {}
        for file in manifest.files:
            if file.rows < _SMALL_ROWS:
                parts.setdefault((file.table, file.part), []).append(file)
        for (table, part), files in _group_small_files(parts):
            merged = _merge(lake, table, part, files)
            manifest = _commit(lake, manifest, manifest.change(add=[merged], remove=files))
            _count(done, [merged])
            progress("files merged", done.files)
        named = {file.path for file in manifest.files}
        for path in lake.list() - named:
            lake.delete(path)
    return done


def _group_small_files(
    parts: dict[tuple[str, Part], list[File]],
) -> Iterator[tuple[tuple[str, Part], list[File]]]:
    """Gather small files of a part into groups that one file can hold."""
    for place, files in parts.items():
        group: list[File] = []
        for file in files:
            if group and sum(one.rows for one in group) + file.rows > _FILE_ROWS:
                if len(group) > 1:
                    yield place, group
                group = []
            group.append(file)
        if len(group) > 1:
            yield place, group


def _merge(lake: Lake, table: str, part: Part, files: Sequence[File]) -> File:
    arrow, parquet = load("pyarrow"), load("pyarrow.parquet")
    schema = schema_of(table)
    time = "created_at" if table == "samples" else "finished_at"
    tables = []
    for file in files:
        content = lake.read(file.path)
        if content is None or sha256_hex(content) != file.sha256:
            raise RecordError(f"`{file.path}` was changed after it was written; restore a copy")
        tables.append(parquet.read_table(io.BytesIO(content), schema=schema))
    tables.sort(key=lambda one: str(one[time][0]))
    sink = io.BytesIO()
    with open_writer(sink, schema) as writer:
        writer.write_table(arrow.concat_tables(tables), row_group_size=ROWS_PER_GROUP)
    return lake.seal(table, part, sink.getvalue(), sum(file.rows for file in files))
