"""Verify a lake: every file against the manifest and, if wanted, every record against itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heretix.core.canonical import sha256_hex
from heretix.core.errors import HeretixError
from heretix.lake.read import LakeReader
from heretix.measurement.verify import verify_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.lake.files import File, Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeVerification:
    """Result of verifying a lake."""

    lake: str
    lake_id: str
    generation: int
    files: int
    rows: int
    bytes: int
    records: int
    """Records that were made again; none unless asked for."""
    problems: dict[str, str] = field(default_factory=dict)
    """By file or execution: what is wrong with it."""
    unlisted: tuple[str, ...] = ()
    """Files that no manifest names: a writer was killed. Nobody reads them."""

    @property
    def ok(self) -> bool:
        """Tell whether everything is as it was written."""
        return not self.problems


def verify_lake(
    lake: Lake,
    *,
    records: bool = False,
    progress: Callable[[str, int], None] = lambda _what, _count: None,
) -> LakeVerification:
    """Hash every file; with `records`, also make every record again and verify it."""
    manifest = lake.require_manifest()
    problems: dict[str, str] = {}
    for number, file in enumerate(manifest.files, 1):
        if (problem := _problem(lake, file)) is not None:
            problems[file.path] = problem
        progress("files hashed", number)
    made = 0
    if records and not problems:
        reader = LakeReader(lake)
        for row in reader.runs():
            made += 1
            try:
                found = verify_run(reader.rebuild(row))
            except HeretixError as exc:
                problems[row["execution_id"]] = str(exc)
            else:
                if not found.ok:
                    first = found.differences[0]
                    problems[row["execution_id"]] = f"`{first.path}` doesn't follow from the rest"
            progress("records made again", made)
    return LakeVerification(
        lake=lake.location,
        lake_id=manifest.lake_id,
        generation=manifest.generation,
        files=len(manifest.files),
        rows=sum(file.rows for file in manifest.files),
        bytes=sum(file.bytes for file in manifest.files),
        records=made,
        problems=problems,
        unlisted=tuple(sorted(lake.list() - {file.path for file in manifest.files})),
    )


def _problem(lake: Lake, file: File) -> str | None:
    content = lake.read(file.path)
    if content is None:
        return "is missing"
    if len(content) != file.bytes:
        return f"must have {file.bytes:,} bytes, got {len(content):,}"
    return None if sha256_hex(content) == file.sha256 else "was changed after it was written"
