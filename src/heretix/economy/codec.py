"""Records of the economy as JSON and back, exactly: nothing is rounded, guessed or left out.

A `Decimal` is written as its digits, bytes in hex. What is read must have every field of the
record, each of its type, and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Hashable, Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from heretix.core.canonical import exact_json
from heretix.core.errors import RecordError
from heretix.economy.episode.settlement import Measurement
from heretix.economy.episode.state import Parameters, Terms
from heretix.economy.money import is_whole
from heretix.economy.rewards import Step

__all__ = ["decode", "dumps", "encode", "loads"]

T = TypeVar("T")

# Rules import some records for the type checker only; here their names must mean something.
_NAMES = {record.__name__: record for record in (Measurement, Parameters, Step, Terms)}


def encode(value: object) -> Any:
    """A record as what JSON can hold."""
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Decimal | bytes):
        return value.hex() if isinstance(value, bytes) else str(value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    assert dataclasses.is_dataclass(value), f"no way to write a {type(value).__name__}"
    return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}


def decode(kind: type[T], data: object, path: str = "record") -> T:
    """The record of a kind that `data` spells; anything else is a `RecordError`."""
    return cast("T", _decode(kind, data, path))


def dumps(value: object) -> str:
    """A record in the one spelling that is hashed."""
    return exact_json(encode(value))


def loads(kind: type[T], text: str, path: str = "record") -> T:
    """The record of a kind that a JSON text spells."""
    try:
        data = json.loads(text)
    except ValueError as exc:
        raise RecordError(f"`{path}` must be JSON, got {text[:40]!r} ({exc})") from exc
    return decode(kind, data, path)


def _decode(kind: Any, data: object, path: str) -> object:
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        (some,) = (option for option in get_args(kind) if option is not type(None))
        return None if data is None else _decode(some, data, path)
    if origin is tuple:
        if not isinstance(data, list):
            raise _wrong(path, "a list", data)
        item, *_ = get_args(kind)
        return tuple(_decode(item, part, f"{path}[{n}]") for n, part in enumerate(data))
    if dataclasses.is_dataclass(kind):
        return _decode_record(cast("type[Any]", kind), data, path)
    if kind is int:
        if not is_whole(data):
            raise _wrong(path, "a whole number", data)
        return data
    if kind is bool:
        if not isinstance(data, bool):
            raise _wrong(path, "true or false", data)
        return data
    if not isinstance(data, str):
        raise _wrong(path, "text", data)
    return data if kind is str else _decode_text(kind, data, path)


def _decode_text(kind: Any, text: str, path: str) -> object:
    """What is spelt as text: bytes, exact numbers, and one of several words."""
    try:
        if kind is bytes:
            return bytes.fromhex(text)
        assert issubclass(kind, Decimal | StrEnum), kind
        return kind(text)
    except (ValueError, InvalidOperation) as exc:
        raise _wrong(path, f"a {kind.__name__}", text) from exc


def _decode_record(kind: type[Any], data: object, path: str) -> object:
    if not isinstance(data, dict):
        raise _wrong(path, f"the fields of a {kind.__name__}", data)
    hints = _hints(cast("Hashable", kind))
    strange = sorted(hints.keys() ^ data.keys())
    if strange:
        problem = "is missing" if strange[0] in hints else "isn't one of its fields"
        raise RecordError(f"`{path}` must be a {kind.__name__}, but {strange[0]!r} {problem}")
    return kind(
        **{name: _decode(hint, data[name], f"{path}.{name}") for name, hint in hints.items()}
    )


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    record = cast("type[Any]", kind)
    hints = get_type_hints(record, localns=_NAMES)
    return {field.name: hints[field.name] for field in dataclasses.fields(record)}


def _wrong(path: str, wanted: str, got: object) -> RecordError:
    return RecordError(f"`{path}` must be {wanted}, got {got!r}; restore the record")
