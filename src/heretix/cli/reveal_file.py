"""The file that a challenger keeps between committing and revealing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from heretix.economy.sealed import Secret, dump_secret, load_secret
from heretix.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Secret", "read_secret", "write_secret"]


def write_secret(path: Path, secret: Secret) -> None:
    """Write the file so that only its owner can read it. One that exists is kept as it is."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(dump_secret(secret))
    except FileExistsError as exc:
        raise RecordError(
            f"`{path}` exists; a reveal file is never overwritten: choose another"
        ) from exc
    except OSError as exc:
        raise RecordError(f"`{path}` can't be written: {exc.strerror}") from exc


def read_secret(path: Path) -> Secret:
    """Read the file; every hash of its bundle is checked."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise RecordError(f"`{path}` can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise RecordError(
            f"`{path}` isn't UTF-8 text; give what `heretix episode challenge` wrote"
        ) from exc
    return load_secret(text, str(path))
