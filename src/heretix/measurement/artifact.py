"""Artifacts as files: written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from heretix.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heretix.measurement.record import Artifact

__all__ = ["artifact_json", "check_target", "write_artifact", "write_lines"]


def artifact_json(artifact: Artifact, *, indent: int | None = 2) -> str:
    """An artifact as JSON text."""
    # Fields of the lenses are left out of artifacts that have none.
    content = artifact.model_dump(mode="json", by_alias=True)
    for name in ("claim", "lenses", "bundles", "metrics", "experiments"):
        if content[name] is None:
            del content[name]
    return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)


def check_target(path: Path, *, lines: bool) -> None:
    """Refuse, before any call is paid for, a place that can't be written."""
    if lines and path.suffix.lower() not in {".jsonl", ".ndjson"}:
        raise ConfigError(
            f"`--out` must end in .jsonl for a file of claims (one artifact a line), "
            f"got {path.name!r}"
        )
    if path.is_dir():
        raise ConfigError(f"`--out` must be a file, got the directory {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"`--out` {path}: {exc.strerror}") from exc
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ConfigError(f"`--out` {path} can't be written: permission denied")


def write_artifact(path: Path, artifact: Artifact) -> None:
    """Write one artifact."""
    _write(path, [artifact_json(artifact)])


def write_lines(path: Path, artifacts: Iterable[Artifact]) -> None:
    """Write artifacts one a line."""
    _write(path, (artifact_json(artifact, indent=None) for artifact in artifacts))


def _write(path: Path, texts: Iterable[str]) -> None:
    """Write beside the target and move into place: a reader sees the old file or the new one."""
    if path.exists() and not path.is_file():
        # A pipe or a device can't be replaced; it is written to as it is.
        _write_to(path, texts)
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(descriptor)
    temporary = Path(name)
    try:
        _write_to(temporary, texts)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _write_to(path: Path, texts: Iterable[str]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            for text in texts:
                file.write(text + "\n")
    except OSError as exc:
        raise RecordError(f"`{path.name}` can't be written: {exc.strerror}") from exc
