"""Canonical JSON, its SHA-256, and records read from it: one spelling per value."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Hashable, Mapping
from decimal import Decimal
from enum import StrEnum
from functools import cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

from heretix.core.errors import RecordError

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

_HEX: Final = frozenset("0123456789abcdef")
_PLAIN: Final = frozenset({str, int, bool, type(None)})
"""Types of most that records hold, which JSON takes as they are."""


# Made once: `json.dumps` would make another for each text.
_ENCODER: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical_json(value: object) -> str:
    """Write JSON with sorted keys, no spaces and no NaN: equal values give equal text."""
    return _ENCODER.encode(value)


def exact_json(value: object) -> str:
    """Write canonical JSON of text, integers, booleans, null, lists and maps; refuse floats.

    Money and what is hashed with it must have one spelling in every language.
    """
    _require_exact(value, "record")
    return canonical_json(value)


def sha256_hex(data: bytes) -> str:
    """Hash bytes by SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_text(text: str) -> str:
    """Hash `text` in UTF-8 by SHA-256, in hex.

    Half a surrogate pair can't be encoded; `surrogatepass` keeps such a text hashable.
    """
    return sha256_hex(text.encode("utf-8", "surrogatepass"))


def sha256_json(value: object) -> str:
    """Hash the canonical JSON of `value`."""
    return sha256_text(canonical_json(value))


def spell(value: object) -> str:
    """Write exact JSON, the faster for text and integers: what a hash by the hundred thousand is
    put together from."""
    kind = type(value)
    if kind is str:
        return encode_basestring(value)  # type: ignore[arg-type]
    return str(value) if kind is int else exact_json(value)


def digest(value: object) -> str:
    """Hash the canonical JSON of a record that holds no floats."""
    return sha256_hex(exact_json(value).encode())


def hash_parts(*parts: str | int) -> bytes:
    """Hash parts that JSON keeps apart, whatever they hold."""
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def uniform(*parts: str | int) -> float:
    """Draw a number strictly between 0 and 1, decided by `parts` alone."""
    return ((int.from_bytes(hash_parts(*parts)[:8], "big") >> 11) + 0.5) / 2**53


def normal(*parts: str | int) -> float:
    """Draw from the standard normal distribution, decided by `parts` alone."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(uniform(*parts))


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
            if type(item) not in _PLAIN:
                _require_exact(item, f"{path}[{index}]")
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise RecordError(f"`{path}` must have text keys, got {key!r}")
            if type(item) not in _PLAIN:
                _require_exact(item, f"{path}.{key}")
        return
    raise RecordError(
        f"`{path}` must be text, an integer, a boolean, null, a list or a map, got "
        f"{type(value).__name__}; write other numbers as text, so that they have one spelling"
    )


# Records as JSON and back, exactly: a `Decimal` is written as its digits, bytes in hex.


class Record:
    """Base of the dataclasses that `decode` reads: strict types, no unknown fields."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, object]] = {
        "strict": True,
        "extra": "forbid",
        "val_json_bytes": "hex",
    }


def encode(value: object) -> Any:
    """Return a record as what JSON can hold."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, str | int):
        return value.value if isinstance(value, StrEnum) else value
    if isinstance(value, Decimal | bytes):
        return value.hex() if isinstance(value, bytes) else str(value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    return {name: encode(getattr(value, name)) for name in _field_names(kind)}


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    assert dataclasses.is_dataclass(kind), f"no way to write a {kind.__name__}"
    return tuple(field.name for field in dataclasses.fields(kind))


def encode_json(value: object) -> str:
    """Return a record in the one spelling that is hashed."""
    return exact_json(encode(value))


def decode(kind: type[T], data: object, path: str = "record") -> T:
    """Read the record of a kind that `data` spells; anything else is a `RecordError`.

    Every field must be there, in the spelling that `encode` gives it.
    """
    return decode_json(kind, json.dumps(data), path)


def decode_json(kind: type[T], text: str, path: str = "record") -> T:
    """Read the record of a kind that a JSON text spells."""
    from pydantic import ValidationError

    try:
        record: T = _adapter(kind).validate_json(text)  # type: ignore[arg-type]
    except ValidationError as exc:
        raise _unreadable(exc, path) from exc
    # A field that was left out would have its default, and a number could be spelt in many ways.
    data = json.loads(text)
    strange = _difference(encode(record), data, path)
    if strange is not None:
        raise RecordError(f"{strange}; restore the record")
    return record


@cache
def _adapter(kind: Hashable) -> Any:
    from pydantic import TypeAdapter

    # A record brings its own configuration, and pydantic takes no other beside it.
    config = None if dataclasses.is_dataclass(kind) else cast("Any", Record.__pydantic_config__)
    return TypeAdapter(cast("type[Any]", kind), config=config)


_WANTED: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "decimal_type": "an exact number",
    "decimal_parsing": "an exact number",
}


def _unreadable(error: ValidationError, path: str) -> RecordError:
    """Name the first problem that pydantic found, and where."""
    first = error.errors(include_url=False, include_context=False)[0]
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    kind, got = first["type"], first["input"]
    if kind in {"missing", "unexpected_keyword_argument"}:
        owner, _, name = path.rpartition(".")
        problem = "is missing" if kind == "missing" else "isn't one of its fields"
        return RecordError(f"`{owner}` can't be read: {name!r} {problem}; restore the record")
    if kind == "json_invalid":
        return RecordError(f"`{path}` must be JSON, got {str(got)[:40]!r} ({first['msg']})")
    wanted = _WANTED.get(kind) or first["msg"].removeprefix("Input should be ")
    return RecordError(f"`{path}` must be {wanted}, got {got!r}; restore the record")


def _difference(written: Any, read: Any, path: str) -> str | None:
    """Say where a text differs from the spelling of the record that was read from it."""
    if type(written) is not type(read):
        return f"`{path}` must be spelt {written!r}, got {read!r}"
    if isinstance(written, dict):
        for name in sorted(written.keys() | read.keys()):
            if name not in read:
                return f"`{path}` can't be read: {name!r} is missing"
            found = _difference(written.get(name), read[name], f"{path}.{name}")
            if found is not None:
                return found
        return None
    if isinstance(written, list):
        pairs = enumerate(zip(written, read, strict=True))
        found_at = (_difference(a, b, f"{path}[{n}]") for n, (a, b) in pairs)
        return next((found for found in found_at if found is not None), None)
    return None if written == read else f"`{path}` must be spelt {written!r}, got {read!r}"
