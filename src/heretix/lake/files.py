"""A lake's files: sealed Parquet behind a manifest, changed by one writer at a time.

A file never changes once it is written, and counts once the manifest names it with its SHA-256.
The manifest is replaced as a whole: whoever is killed leaves the old one, and files that nobody
reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from heretix.core.canonical import canonical_json, sha256_hex
from heretix.core.errors import (
    ConfigError,
    MissingPartError,
    RecordError,
    StoreBusyError,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

SCHEMA: Final = "heretix-lake/1"
MANIFEST: Final = "manifest.json"
LOCK: Final = "writer.lock"
ROWS_PER_GROUP: Final = 16_384
"""Rows that are read together: a look-up decodes one group for the claims that stand in it."""
_LOCK_S: Final = 3600.0
"""Life of a lock in S3 whose writer was killed; one on a disk ends with its process."""
_REMEDY: Final = "give a folder or s3://BUCKET/PREFIX, as an argument, --lake or HERETIX_LAKE"


def load(name: str, extra: str = "lake") -> ModuleType:
    """Import a library of an extra, or say how to install it."""
    try:
        return import_module(name)
    except ImportError as exc:
        library = name.partition(".")[0]
        raise MissingPartError(
            f"`heretix {extra}` needs {library}, which isn't installed: `uv sync --extra {extra}`, "
            f"or `pip install '.[{extra}]'` in the clone"
        ) from exc


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Part:
    """A partition: what its rows have in common."""

    model: str
    bank: str
    date: str
    """The day, in UTC, that samples were made or executions finished."""

    @property
    def path(self) -> str:
        """The part as a path, which tools for Parquet read as columns."""
        values = (("model", self.model), ("bank", self.bank), ("date", self.date))
        return "/".join(f"{name}={quote(value, safe='')}" for name, value in values)

    @classmethod
    def parse(cls, path: str) -> Part:
        """Read a path that `path` gave."""
        pairs = (piece.partition("=") for piece in path.split("/"))
        return cls(**{name: unquote(value) for name, _, value in pairs})


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A sealed file, as the manifest names it."""

    path: str
    sha256: str
    bytes: int
    rows: int

    @property
    def table(self) -> str:
        """`samples` or `runs`."""
        return self.path.partition("/")[0]

    @property
    def part(self) -> Part:
        """The partition that it belongs to."""
        return Part.parse(self.path.partition("/")[2].rpartition("/")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Every file of a lake."""

    lake_id: str
    generation: int = 0
    """Counts the changes."""
    files: tuple[File, ...] = field(default=())

    def of(self, table: str) -> list[File]:
        """The files of a table."""
        return [file for file in self.files if file.table == table]

    def change(self, *, add: Iterable[File] = (), remove: Iterable[File] = ()) -> Manifest:
        """The manifest that follows this one."""
        gone = {file.path for file in remove}
        kept = {file.path: file for file in self.files if file.path not in gone}
        kept |= {file.path: file for file in add}
        files = tuple(sorted(kept.values(), key=lambda file: file.path))
        return replace(self, generation=self.generation + 1, files=files)

    def to_json(self) -> bytes:
        """The manifest with a hash of itself."""
        content = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(
            {**content, "sha256": sha256_hex(canonical_json(content).encode())}, indent=1
        ).encode()

    @classmethod
    def from_json(cls, text: bytes, name: str) -> Manifest:
        """Read a manifest; one that was changed by hand is refused."""
        try:
            content = json.loads(text)
            digest = content.pop("sha256")
            if content["schema"] != SCHEMA:
                raise RecordError(f"`{name}` must be {SCHEMA!r}, got {content['schema']!r}")
            if digest != sha256_hex(canonical_json(content).encode()):
                raise RecordError(f"`{name}` was changed after it was written; restore a copy")
            files = tuple(File(**file) for file in content["files"])
            return cls(lake_id=content["lake_id"], generation=content["generation"], files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise RecordError(f"`{name}` isn't the manifest of a lake ({exc}); {_REMEDY}") from exc


class Lake:
    """A lake on a disk or in S3. Paths are relative to it."""

    def __init__(self, location: str) -> None:
        if not location.strip():
            raise ConfigError(f"`lake` must name a lake, got nothing; {_REMEDY}")
        self._remote = "://" in location
        if self._remote:
            _check_url(location)
        self.location = location if self._remote else str(Path(location).expanduser().absolute())
        load("pyarrow.parquet")

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """Arrow's file system, and the lake's path in it."""
        fs = load("pyarrow.fs")
        if self._remote:
            with self._faults():
                system, root = fs.FileSystem.from_uri(self.location)
            return system, str(root).rstrip("/")
        return fs.LocalFileSystem(), self.location

    def path(self, name: str) -> str:
        """A file's path in `filesystem`."""
        return f"{self._opened[1]}/{name}"

    @property
    def filesystem(self) -> Any:
        """Arrow's file system."""
        return self._opened[0]

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            reason = exc.strerror or str(exc).partition("\n")[0]
            raise StoreError(
                f"`{self.location}` can't be read or written: {reason}; check that it is there "
                "and that you may use it"
            ) from exc

    # Files.

    def read(self, name: str) -> bytes | None:
        """A whole file; None where there is none."""
        with self._faults():
            try:
                with self.filesystem.open_input_file(self.path(name)) as file:
                    content: bytes = file.read()
            except FileNotFoundError:
                return None
        return content

    def open(self, name: str) -> Any:
        """A file for reading here and there."""
        with self._faults():
            return self.filesystem.open_input_file(self.path(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a file as a whole: others see the old one, or all of the new one."""
        with self._faults():
            if self._remote:
                with self.filesystem.open_output_stream(self.path(name)) as stream:
                    stream.write(content)
                return
            target = Path(self.path(name))
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
            try:
                with temporary.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
                _sync_folder(target.parent)
            finally:
                temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Delete a file; one that is gone already is no trouble."""
        with self._faults(), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(name))

    def list(self) -> set[str]:
        """Every Parquet file that is there, named in the manifest or not."""
        fs = load("pyarrow.fs")
        selector = fs.FileSelector(self._opened[1], recursive=True, allow_not_found=True)
        with self._faults():
            infos = self.filesystem.get_file_info(selector)
        start = len(self._opened[1]) + 1
        return {info.path[start:] for info in infos if info.path.endswith((".parquet", ".tmp"))}

    def seal(self, table: str, part: Part, content: bytes, rows: int) -> File:
        """Write a file under its hash. It counts when a manifest names it."""
        digest = hashlib.sha256(content).hexdigest()
        path = f"{table}/{part.path}/{digest[:16]}.parquet"
        self.write(path, content)
        return File(path=path, sha256=digest, bytes=len(content), rows=rows)

    # The manifest.

    def manifest(self) -> Manifest | None:
        """The manifest; None where there is no lake."""
        text = self.read(MANIFEST)
        return None if text is None else Manifest.from_json(text, f"{self.location}/{MANIFEST}")

    def require_manifest(self) -> Manifest:
        """The manifest, of a lake that must be there."""
        found = self.manifest()
        if found is None:
            raise RecordError(
                f"`{self.location}` holds no lake; `heretix lake write {self.location}` makes one"
            )
        return found

    def commit(self, before: Manifest, after: Manifest) -> None:
        """Replace the manifest, unless somebody else did."""
        now = self.manifest()
        if now is not None and (now.lake_id, now.generation) != (before.lake_id, before.generation):
            raise StoreBusyError(
                f"`{self.location}` was changed by another writer meanwhile; run the command again"
            )
        self.write(MANIFEST, after.to_json())

    @contextlib.contextmanager
    def writing(self) -> Iterator[Manifest]:
        """Lock the lake, and give its manifest; a new one where there is none yet."""
        with self._remote_lock() if self._remote else self._local_lock():
            yield self.manifest() or Manifest(lake_id=str(uuid.uuid4()))

    @contextlib.contextmanager
    def _local_lock(self) -> Iterator[None]:
        import fcntl

        with self._faults():
            Path(self.location).mkdir(parents=True, exist_ok=True)
            file = (Path(self.location) / LOCK).open("a")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise self._busy() from exc
            yield

    @contextlib.contextmanager
    def _remote_lock(self) -> Iterator[None]:
        # S3 has no lock that ends with a process. This one keeps a second compactor away that
        # is started by mistake; `commit` looks again before it replaces anything.
        held = self.read(LOCK)
        if held is not None and float(json.loads(held)["expires_at"]) > time.time():
            raise self._busy()
        token = uuid.uuid4().hex
        mine = json.dumps({"owner": token, "expires_at": time.time() + _LOCK_S}).encode()
        self.write(LOCK, mine)
        if self.read(LOCK) != mine:
            raise self._busy()
        try:
            yield
        finally:
            self.delete(LOCK)

    def _busy(self) -> StoreBusyError:
        return StoreBusyError(
            f"`{self.location}` is being written by another process; a lake has one writer: wait "
            f"for it, or delete {LOCK} if it is gone"
        )


class PartWriter:
    """Rows of one table and part, on their way into a file."""

    def __init__(self, table: str, part: Part, schema: Any) -> None:
        self.table, self.part, self._schema = table, part, schema
        self._sink = io.BytesIO()
        self._writer = open_writer(self._sink, schema)
        self._pending: list[dict[str, Any]] = []
        self.rows = 0

    def add(self, row: dict[str, Any]) -> None:
        """Take a row."""
        self._pending.append(row)
        self.rows += 1
        if len(self._pending) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            arrow = load("pyarrow")
            self._writer.write_table(arrow.Table.from_pylist(self._pending, schema=self._schema))
            self._pending = []

    def seal(self, lake: Lake) -> File:
        """Write the file."""
        self._flush()
        self._writer.close()
        return lake.seal(self.table, self.part, self._sink.getvalue(), self.rows)


def open_writer(sink: Any, schema: Any) -> Any:
    """A Parquet writer with the lake's settings: zstd, checksums, dictionaries where they pay."""
    plain = {"cache_key", "sha256", "created_at", "started_at", "finished_at", "response_id"}
    names = [name for name in schema.names if name not in plain]
    times = {"created_at", "started_at", "finished_at"} & set(schema.names)
    return load("pyarrow.parquet").ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=names,
        column_encoding=dict.fromkeys(times, "DELTA_BINARY_PACKED") or None,
        write_statistics=sorted(times),
        write_page_checksum=True,
        store_schema=False,
    )


def _check_url(location: str) -> None:
    scheme, host, *_ = urlsplit(location)
    if scheme != "s3":
        raise ConfigError(f"`lake` must be a folder or s3://…, got {scheme}://…; {_REMEDY}")
    if "@" in host:
        # Where it is is written into the store, and shown.
        raise ConfigError(
            "`lake` must hold no keys; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
