"""Bundles from outside: every hash and span is checked before a word is believed."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heretix.errors import RecordError
from heretix.evidence.bundle import (
    BUNDLE_SCHEMA,
    Bundle,
    Dropped,
    DropReason,
    Item,
    Limits,
    Stance,
)
from heretix.evidence.rules import SourceClass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

__all__ = ["bundle_in_file", "dump_bundle", "load_bundle", "read_bundle"]

_KEYS = (
    "bundle_id",
    "schema",
    "claim",
    "lens",
    "as_of",
    "strict_dates",
    "policy",
    "queries",
    "limits",
    "items",
    "dropped",
)
_ENUMS: Mapping[str, type[StrEnum]] = {
    "cls": SourceClass,
    "stance": Stance,
    "reason": DropReason,
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float | None": (int, float, type(None)),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "date | None": (str, type(None)),
    "Mapping[str, Any]": (dict,),
    "tuple[str, ...]": (list,),
    "SourceClass": (str,),
    "Stance | None": (str, type(None)),
    "DropReason": (str,),
}

_OPTIONAL = frozenset({"stance_by"})
"""Fields that are left out where there is nothing to say."""

T = TypeVar("T", Item, Dropped, Limits)


def dump_bundle(bundle: Bundle) -> str:
    """The bundle as a file's text."""
    return json.dumps(bundle.to_json(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def load_bundle(text: str, source: str = "the bundle") -> Bundle:
    """The bundle in a file's text; `source` is what messages call it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise RecordError(
            f"`{source}` isn't JSON ({exc}); "
            "give a bundle that `heretix evidence build --out` wrote"
        ) from exc
    return read_bundle(value, source)


def bundle_in_file(ref: str) -> Bundle | None:
    """The bundle in the file that `ref` names; None where it can't be meant as a file's name."""
    path = Path(ref)
    if not (path.is_file() or ref.endswith(".json")):
        return None
    try:
        return load_bundle(path.read_text(encoding="utf-8"), ref)
    except OSError as exc:
        raise RecordError(f"`{ref}` can't be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise RecordError(
            f"`{ref}` isn't UTF-8 text; give a bundle that `heretix evidence build --out` wrote"
        ) from exc


def read_bundle(value: object, source: str = "the bundle") -> Bundle:
    """The bundle in JSON values, refused if anything in it was changed."""
    try:
        bundle, said = _bundle(value)
    except _Malformed as exc:
        raise RecordError(f"`{source}` isn't a bundle: {exc}") from exc
    for number, item in enumerate(bundle.items, start=1):
        flaw = item.flaw()
        if item.id != f"E{number:02d}":
            flaw = f"`id` must be E{number:02d}, got {item.id!r}"
        if flaw is not None:
            raise RecordError(f"`{source}` was changed: item {item.id}: {flaw}")
    if bundle.bundle_id != said:
        raise RecordError(
            f"`{source}` was changed: `bundle_id` says {said}, its content gives {bundle.bundle_id}"
        )
    return bundle


class _Malformed(Exception):  # noqa: N818 - control flow inside this module
    pass


def _bundle(value: object) -> tuple[Bundle, str]:
    data = _keys(value, _KEYS, "the bundle")
    if data["schema"] != BUNDLE_SCHEMA:
        raise _Malformed(f"`schema` must be {BUNDLE_SCHEMA!r}, got {data['schema']!r}")
    policy = _keys(data["policy"], ("version", "sha256"), "`policy`")
    queries = data["queries"]
    if not isinstance(queries, dict) or not all(isinstance(q, str) for q in queries.values()):
        raise _Malformed("`queries` must map names to texts")
    for name in ("items", "dropped"):
        if not isinstance(data[name], list):
            raise _Malformed(f"`{name}` must be a list")
    for name, value_type in (("claim", str), ("lens", str), ("strict_dates", bool)):
        if not isinstance(data[name], value_type):
            raise _Malformed(f"`{name}` must be {value_type.__name__}, got {data[name]!r}")
    for name in ("version", "sha256"):
        if not isinstance(policy[name], str | None):
            raise _Malformed(f"`policy.{name}` must be text or null, got {policy[name]!r}")
    bundle = Bundle(
        claim=data["claim"],
        lens=data["lens"],
        as_of=_day("as_of", data["as_of"]),
        strict_dates=data["strict_dates"],
        policy_version=policy["version"],
        policy_sha256=policy["sha256"],
        queries=queries,
        limits=_record(Limits, data["limits"], "limits"),
        items=tuple(_record(Item, item, "items") for item in data["items"]),
        dropped=tuple(_record(Dropped, item, "dropped") for item in data["dropped"]),
    )
    return bundle, str(data["bundle_id"])


def _keys(value: object, known: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Malformed(f"{what} must be an object")
    missing = [key for key in known if key not in value]
    unknown = [key for key in value if key not in known]
    if missing or unknown:
        raise _Malformed(f"{what} lacks {missing} and has unknown {unknown}")
    return value


def _record(kind: type[T], value: object, what: str) -> T:
    names = tuple(field.name for field in fields(kind))
    optional = {field.name: field.default for field in fields(kind) if field.name in _OPTIONAL}
    data = _keys({**optional, **value} if isinstance(value, dict) else value, names, f"`{what}`")
    made: dict[str, Any] = {}
    for field in fields(kind):
        given = data[field.name]
        allowed = _TYPES[str(field.type)]
        # A bool is an int to Python, and not to anyone else.
        if not isinstance(given, allowed) or (isinstance(given, bool) and bool not in allowed):
            raise _Malformed(f"`{what}`: `{field.name}` must be {field.type}, got {given!r}")
        made[field.name] = _converted(field.name, str(field.type), given)
    try:
        return kind(**made)
    except ValueError as exc:
        raise _Malformed(f"`{what}`: {exc}") from exc


def _converted(name: str, annotation: str, given: Any) -> object:
    if given is None:
        return None
    if annotation.startswith("date"):
        return _day(name, given)
    if annotation == "tuple[str, ...]":
        if not all(isinstance(part, str) for part in given):
            raise _Malformed(f"`{name}` must hold texts")
        return tuple(given)
    if name in _ENUMS:
        try:
            return _ENUMS[name](given)
        except ValueError as exc:
            raise _Malformed(f"`{name}`: {exc}") from exc
    return given


def _day(name: str, given: object) -> date | None:
    if given is None:
        return None
    try:
        return date.fromisoformat(str(given))
    except ValueError as exc:
        raise _Malformed(f"`{name}` must be a day like 2026-11-15, got {given!r}") from exc
