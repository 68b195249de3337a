"""The file that a challenger keeps between committing and revealing: nonce and evidence.

Until the reveal nobody else may have it. It holds all that the reveal needs; losing it loses the
stake.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import RecordError
from heretix.evidence.bundlefile import read_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from heretix.evidence.bundle import Bundle

__all__ = ["Secret", "read_secret", "write_secret"]

FORMAT: Final = "heretix-reveal/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """What a commitment hides, and where it was made."""

    episode: str
    number: int | None
    """The challenge's number; None until the commitment was taken."""
    person: str
    nonce: bytes
    bundle: Bundle


def write_secret(path: Path, secret: Secret) -> None:
    """Write the file so that only its owner can read it."""
    content = {
        "format": FORMAT,
        "episode": secret.episode,
        "number": secret.number,
        "person": secret.person,
        "nonce": secret.nonce.hex(),
        "bundle": secret.bundle.to_json(),
    }
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, indent=2)
            file.write("\n")
    except OSError as exc:
        raise RecordError(f"`{path}` can't be written: {exc.strerror}") from exc


def read_secret(path: Path) -> Secret:
    """Read the file; every hash of its bundle is checked."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise RecordError(f"`{path}` can't be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise RecordError(f"`{path}` isn't JSON: {exc}") from exc
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RecordError(
            f"`{path}` must be what `heretix episode challenge` wrote ({FORMAT}); it isn't"
        )
    try:
        number = content["number"]
        return Secret(
            episode=str(content["episode"]),
            number=None if number is None else int(number),
            person=str(content["person"]),
            nonce=bytes.fromhex(content["nonce"]),
            bundle=read_bundle(content["bundle"], str(path)),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise RecordError(f"`{path}` lacks {exc}; it was changed or cut off") from exc
