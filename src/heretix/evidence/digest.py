"""One spelling per value and one digest per spelling, for everything that is content-addressed."""

from __future__ import annotations

import hashlib
import json

__all__ = ["canonical_json", "sha256_json", "sha256_text"]


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
