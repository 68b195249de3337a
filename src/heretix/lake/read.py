"""Look-ups in a lake: answers by their keys, and records made again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from heretix.core.canonical import canonical_json
from heretix.core.errors import RecordError, StoreError
from heretix.core.settings import Settings
from heretix.lake.files import Lake, Part, load
from heretix.lake.tables import (
    KEY_BYTES,
    plan_of,
    prefix_of,
    read_refs,
    unbind_run,
    unpack,
    unpack_sample,
)
from heretix.measurement.record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from heretix.lake.files import File, Manifest
    from heretix.lake.tables import Row
    from heretix.plan import PlannedSample
    from heretix.sample import Sample

_T = TypeVar("_T")

_INDEXED: Final = 8_000_000
"""Keys that are kept in memory, 12 bytes each; files that weren't used for longest are dropped."""
_GROUPS: Final = 8
"""Row groups that are kept decoded: the claims of one look-up stand near each other."""


@dataclass(frozen=True, slots=True)
class _Index:
    """Index of the keys of a file: the first eight bytes of each, sorted, and its row."""

    starts: NDArray[np.uint64]
    rows: NDArray[np.int32]

    def find(self, prefixes: Sequence[bytes]) -> list[int]:
        """The rows whose keys may be among these, in their order in the file."""
        starts = np.array([int.from_bytes(one[:8], "big") for one in prefixes], dtype=np.uint64)
        first = np.searchsorted(self.starts, starts, "left")
        last = np.searchsorted(self.starts, starts, "right")
        hits = [self.rows[a:b] for a, b in zip(first, last, strict=True) if a < b]
        return sorted(set(np.concatenate(hits).tolist())) if hits else []


class LakeReader:
    """Reads a lake for several threads. What it has opened it keeps for the next look-up."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._manifest: Manifest = lake.require_manifest()
        self._lock = threading.RLock()
        self._files: dict[str, Any] = {}
        self._indexes: OrderedDict[str, _Index] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], Any] = OrderedDict()

    @property
    def manifest(self) -> Manifest:
        """The manifest that is read from."""
        return self._manifest

    def read_answers(self, part: str, wanted: Mapping[str, str]) -> dict[str, Sample]:
        """Read answers by key from a part, the latest of each; all of them must be there."""
        with self._lock:
            found = self._retry_fresh(
                lambda: self._answers(part, wanted), lambda found: len(found) == len(wanted)
            )
        if lacking := wanted.keys() - found.keys():
            raise StoreError(
                f"`{self.lake.location}` lacks {len(lacking)} samples that were moved to it, "
                f"{min(lacking)} for one; restore a copy of {part}, or they would be paid for again"
            )
        return found

    def read_record(self, part: str, execution_id: str) -> str:
        """Make a record again, as canonical JSON; one that isn't as it was is an error."""
        with self._lock:
            row = self._retry_fresh(
                lambda: self._run(part, execution_id), lambda row: row is not None
            )
            if row is None:
                raise StoreError(
                    f"`{self.lake.location}` lacks the record of {execution_id}, which was moved "
                    f"to it; restore a copy of {part}"
                )
            if row["record_json"] is not None:
                return str(row["record_json"])
            record = self._retry_fresh(lambda: self.rebuild(row), lambda _: True)
            return canonical_json(record.model_dump(mode="json"))

    def rebuild(self, row: Row) -> RunRecord:
        """Make a record again from its row and its samples, and check that it is the same."""
        if row["record_json"] is not None:
            return RunRecord.model_validate_json(row["record_json"])
        plan = plan_of(row)
        wanted: dict[str, list[tuple[PlannedSample, int]]] = {}
        for planned, (day, version) in zip(
            plan.samples, read_refs(row, len(plan.samples)), strict=True
        ):
            wanted.setdefault(day, []).append((planned, version))
        found: dict[str, Sample] = {}
        for day, samples in wanted.items():
            part = Part(model=row["model"], bank=row["bank"], date=day)
            rows = self.find(part, [prefix_of(planned.cache_key) for planned, _ in samples])
            for planned, version in samples:
                for one in rows.get(prefix_of(planned.cache_key), ()):
                    if one["version"] == version:
                        key = planned.cache_key
                        found[key] = unpack_sample(one, key, planned.prompt_sha256)
        if len(found) == len(plan.samples):
            record = unpack(row, plan, found)
            if bytes.fromhex(record.sha256) == row["sha256"]:
                return record
        raise RecordError(
            f"`{row['execution_id']}` can't be made again from `{self.lake.location}`; "
            "`heretix lake verify` says which file was changed"
        )

    def find_record(self, ref: str) -> RunRecord:
        """Make the record of an execution again that a full or shortened id means."""
        wanted = ref.strip().lower()
        wanted = wanted if wanted.startswith("exec-") else f"exec-{wanted}"
        fitting = [row for row in self.runs() if row["execution_id"].startswith(wanted)]
        if len(fitting) != 1:
            found = f"{len(fitting)} executions" if fitting else "no execution"
            raise RecordError(f"`{ref}` names {found} in `{self.lake.location}`; give a whole id")
        return self.rebuild(fitting[0])

    def find(self, part: Part, prefixes: Sequence[bytes]) -> dict[bytes, list[Row]]:
        """Read every version of samples that a part holds, by the bytes of their keys."""
        with self._lock:
            return self._versions(self._list_part(part.path, "samples"), prefixes)

    def refresh(self, manifest: Manifest | None = None) -> None:
        """Read the manifest again."""
        self._manifest = manifest or self.lake.require_manifest()
        there = {file.path for file in self._manifest.files}
        for kept in (self._files, self._indexes):
            for path in kept.keys() - there:
                del kept[path]
        for place in [place for place in self._groups if place[0] not in there]:
            del self._groups[place]

    def runs(self) -> Iterator[Row]:
        """Read the rows of all executions."""
        for file in self._manifest.of("runs"):
            opened = self._open(file)
            for number in range(opened.num_row_groups):
                for row in opened.read_row_group(number).to_pylist():
                    yield unbind_run(row)
            self._files.pop(file.path, None)

    def execution_ids(self) -> dict[str, Part]:
        """Read which executions the lake holds, and in which part."""
        found: dict[str, Part] = {}
        for file in self._manifest.of("runs"):
            names = self._open(file).read(columns=["execution_id"])["execution_id"]
            found |= dict.fromkeys(names.to_pylist(), file.part)
            self._files.pop(file.path, None)
        return found

    def _retry_fresh(self, look: Callable[[], _T], done: Callable[[_T], bool]) -> _T:
        """Look, and once more with a fresh manifest: files may have been merged since."""
        try:
            found = look()
            if done(found):
                return found
        except StoreError:
            pass
        self.refresh()
        return look()

    def _answers(self, part: str, wanted: Mapping[str, str]) -> dict[str, Sample]:
        keys = {prefix_of(key): key for key in wanted}
        found: dict[str, Sample] = {}
        for prefix, versions in self._versions(
            self._list_part(part, "samples"), list(keys)
        ).items():
            answers = [row for row in versions if row["error"] is None]
            if answers:
                latest, key = max(answers, key=lambda row: row["created_at"]), keys[prefix]
                found[key] = unpack_sample(latest, key, wanted[key])
        return found

    def _run(self, part: str, execution_id: str) -> Row | None:
        compute = load("pyarrow.compute")
        for file in self._list_part(part, "runs"):
            opened = self._open(file)
            names = opened.read(columns=["execution_id"])["execution_id"]
            at = compute.index(names, execution_id).as_py()
            if at >= 0:
                group, offset = _group_of(opened, at)
                (row,) = self._group(file, group).slice(offset, 1).to_pylist()
                return unbind_run(row)
        return None

    def _list_part(self, part: str, table: str) -> list[File]:
        start = f"{table}/{part}/"
        return [file for file in self._manifest.files if file.path.startswith(start)]

    def _versions(self, files: Iterable[File], prefixes: Sequence[bytes]) -> dict[bytes, list[Row]]:
        found: dict[bytes, list[Row]] = {}
        for file in files:
            for row in self._rows(file, self._index(file).find(prefixes)):
                found.setdefault(row["cache_key"], []).append(row)
        # Keys that begin alike were read too.
        return {prefix: found[prefix] for prefix in prefixes if prefix in found}

    def _rows(self, file: File, numbers: Sequence[int]) -> Iterator[Row]:
        by_group: dict[int, list[int]] = {}
        for number in numbers:
            group, offset = _group_of(self._open(file), number)
            by_group.setdefault(group, []).append(offset)
        for group, offsets in by_group.items():
            yield from self._group(file, group).take(offsets).to_pylist()

    def _open(self, file: File) -> Any:
        if file.path not in self._files:
            parquet = load("pyarrow.parquet")
            self._files[file.path] = parquet.ParquetFile(
                self.lake.open(file.path), page_checksum_verification=True, pre_buffer=True
            )
        return self._files[file.path]

    def _group(self, file: File, number: int) -> Any:
        place = (file.path, number)
        if place not in self._groups:
            self._groups[place] = self._read(lambda: self._open(file).read_row_group(number))
            while len(self._groups) > _GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(place)
        return self._groups[place]

    def _index(self, file: File) -> _Index:
        if file.path not in self._indexes:
            column = self._read(lambda: self._open(file).read(columns=["cache_key"])["cache_key"])
            self._indexes[file.path] = _make_index(column)
            while sum(len(one.rows) for one in self._indexes.values()) > _INDEXED and (
                len(self._indexes) > 1
            ):
                self._files.pop(self._indexes.popitem(last=False)[0], None)
        self._indexes.move_to_end(file.path)
        return self._indexes[file.path]

    def _read(self, work: Any) -> Any:
        try:
            return work()
        except OSError as exc:
            raise StoreError(
                f"`{self.lake.location}` has a damaged file: {str(exc).partition(chr(10))[0]}; "
                "`heretix lake verify` says which, restore a copy of it"
            ) from exc


def _make_index(column: Any) -> _Index:
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=np.uint8)[
            chunk.offset * KEY_BYTES : (chunk.offset + len(chunk)) * KEY_BYTES
        ].reshape(-1, KEY_BYTES)[:, :8]
        for chunk in column.chunks
        if len(chunk)
    ]
    joined = np.ascontiguousarray(np.concatenate(chunks)) if chunks else np.zeros((0, 8), np.uint8)
    starts = joined.view(">u8").reshape(-1).astype(np.uint64)
    order = np.argsort(starts, kind="stable").astype(np.int32)
    return _Index(starts[order], order)


def _group_of(opened: Any, row: int) -> tuple[int, int]:
    for number in range(opened.num_row_groups):
        rows = opened.metadata.row_group(number).num_rows
        if row < rows:
            return number, row
        row -= rows
    raise IndexError(row)


@cache
def _reader(location: str) -> LakeReader:
    return LakeReader(Lake(location))


def open_lake(lake_id: str, location: str) -> LakeReader:
    """Open the lake that samples were moved to: where HERETIX_LAKE says, if it is that one."""
    elsewhere = Settings.from_env().lake
    for place in filter(None, (elsewhere, location)):
        try:
            reader = _reader(place)
        except RecordError:
            continue
        if reader.manifest.lake_id == lake_id:
            return reader
    raise StoreError(
        f"`{location}` isn't the lake any more that samples were moved to; set HERETIX_LAKE to "
        "where it is now, or they would be paid for again"
    )
