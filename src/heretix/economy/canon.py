"""One spelling per record, and its hash. A float has no place in either."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from heretix.errors import RecordError

__all__ = ["canonical_json", "digest", "require_sha256", "sha256_hex"]

_HEX = frozenset("0123456789abcdef")


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces; only text, integers, booleans, null, lists, maps."""
    _require_exact(value, "record")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """SHA-256, in hex, of a record's canonical JSON."""
    return sha256_hex(canonical_json(value).encode())


def sha256_hex(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def require_sha256(name: str, value: str) -> str:
    """Check that `value` is a SHA-256 in lower-case hex, and return it."""
    if len(value) != 64 or not _HEX.issuperset(value):
        raise RecordError(f"`{name}` must be 64 lower-case hex digits, got {value!r}")
    return value


def _require_exact(value: object, path: str) -> None:
    if value is None or isinstance(value, str | int):
        return
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _require_exact(item, f"{path}[{index}]")
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise RecordError(f"`{path}` must have text keys, got {key!r}")
            _require_exact(item, f"{path}.{key}")
        return
    raise RecordError(
        f"`{path}` must be text, an integer, a boolean, null, a list or a map, got "
        f"{type(value).__name__}; write other numbers as text, so that they have one spelling"
    )
