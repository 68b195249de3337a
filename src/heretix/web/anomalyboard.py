"""The anomaly feed as pages show it: found by the measurement's own rule, kept until lenses change.

Ranking reads every record that a lens is part of, which takes seconds on a large store. It is done
beside the pages: whoever asks meanwhile sees what was found last.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from heretix.measurement.anomalies import Anomaly
    from heretix.store import Store

__all__ = ["Anomalies", "AnomalyBoard"]

_REST: Final = 20.0
"""Ranking rests for so many times as long as it took: it never takes more than a twentieth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomalies:
    """What is known at this moment."""

    found: tuple[Anomaly, ...]
    """All claims with evidence lenses, the strongest first; `listed` says which pass."""
    complete: bool
    """False while something newer is being worked out."""

    @property
    def listed(self) -> tuple[Anomaly, ...]:
        """Those that pass the gates and the control of false discoveries."""
        return tuple(anomaly for anomaly in self.found if anomaly.listed)


class AnomalyBoard:
    """One store's feed."""

    def __init__(self, store: Store, *, wait_s: float = 0.3) -> None:
        self._store = store
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._found: tuple[Anomaly, ...] = ()
        self._of: str | None = None
        """The newest change of the store that `_found` knows of."""
        self._rested_at = 0.0
        self._work: threading.Thread | None = None

    def look(self) -> Anomalies:
        """The feed; a short while is waited for one that is being made."""
        latest = self._store.runs(limit=1)
        state = latest[0].updated_at if latest else ""
        with self._lock:
            if state == self._of:
                return Anomalies(found=self._found, complete=True)
            if self._work is None and time.monotonic() >= self._rested_at:
                self._work = threading.Thread(target=self._find, args=(state,), daemon=True)
                self._work.start()
            work = self._work
        if work is not None:
            work.join(self._wait_s)
        with self._lock:
            return Anomalies(found=self._found, complete=self._of == state)

    def _find(self, state: str) -> None:
        # Imported where it is used: the mathematics behind it would keep the first page waiting.
        from heretix.measurement.anomalies import find_anomalies

        began = time.monotonic()
        try:
            found = tuple(find_anomalies(self._store))
            with self._lock:
                self._found, self._of = found, state
        finally:
            with self._lock:
                ended = time.monotonic()
                self._rested_at = ended + _REST * (ended - began)
                self._work = None
