"""Canonical JSON and its SHA-256: one spelling per value, so equal values have equal hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from heretix.core.errors import RecordError

# One spelling per record, and its hash. A float has no place in either.

_HEX = frozenset("0123456789abcdef")


def exact_json(value: object) -> str:
    """JSON with sorted keys and no spaces; only text, integers, booleans, null, lists, maps."""
    _require_exact(value, "record")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """SHA-256, in hex, of a record's canonical JSON."""
    return sha256_hex(exact_json(value).encode())


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


# One spelling per value and one digest per spelling, for everything that is content-addressed.


def sha256_text(text: str) -> str:
    """SHA-256 of `text` in UTF-8, as hexadecimal digits.

    Half a surrogate pair can't be encoded; `surrogatepass` keeps such a text hashable.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def canonical_json(value: object) -> str:
    """JSON with sorted keys, no spaces and no NaN: equal values give equal text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def sha256_json(value: object) -> str:
    """SHA-256 of the canonical JSON of `value`."""
    return sha256_text(canonical_json(value))
