"""What pages read again and again: records by execution, and what follows from them.

A finished execution never changes, so whatever is made of its id alone may be kept. Shelves are
bounded; the least recently used goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from heretix.evidence.bundlefile import load_bundle
from heretix.measurement.record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from heretix.evidence.bundle import Bundle
    from heretix.measurement.record import Artifact
    from heretix.store import Store

__all__ = ["Kept", "Shelf"]

_T = TypeVar("_T")


class Kept(Generic[_T]):
    """At most so many values. Threads may share one; two may make the same value, once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, _T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The value of a key, made when it isn't kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)


class Shelf:
    """Records and bundles of one store, read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: Kept[RunRecord] = Kept(128)
        self._bundles: Kept[Bundle] = Kept(64)
        self.kept: Kept[object] = Kept(512)
        """Whatever else follows from ids: rendered pieces of pages, charts, verifications."""
        self.artifacts: Kept[Artifact] = Kept(16)
        """Lenses with what lies between them. They hold whole records, so few are kept."""

    def record(self, execution_id: str) -> RunRecord:
        """The record of an execution, by its whole id."""
        return self._records.get(
            execution_id,
            lambda: RunRecord.model_validate_json(self._store.record(execution_id).record_json),
        )

    def record_of_most(self, execution_id: str, characters: int) -> RunRecord | None:
        """The same, unless its text is longer than that: then None, and it isn't taken apart."""
        if execution_id in self._records:
            return self.record(execution_id)
        text = self._store.record(execution_id).record_json
        if len(text) > characters:
            return None
        return self._records.get(execution_id, lambda: RunRecord.model_validate_json(text))

    def bundle(self, bundle_id: str) -> Bundle:
        """A stored bundle, checked, by its whole id."""
        return self._bundles.get(
            bundle_id, lambda: load_bundle(self._store.bundle(bundle_id), bundle_id)
        )
