"""Attempts to sign in: counted in the store, so that all servers on it agree, and limited."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from heretix.errors import TooManyRequestsError
from heretix.people.person import folded
from heretix.store import people as rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.store import Store

__all__ = ["WINDOW_S", "Attempts"]

WINDOW_S: Final = 900.0
_BOTH: Final = 10
"""Failures of one name from one address: somebody tries passwords."""
_ADDRESS: Final = 100
"""Failures from one address: somebody tries names, or an office shares it."""
_NAME: Final = 200
"""Failures of one name from anywhere. High, since it locks out the person, too."""


class Attempts:
    """Counts before the password is checked: attempts made at the same moment all count."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    def begin(self, name: str, address: str | None) -> None:
        """Count an attempt; raise when there were too many lately."""
        now = self._clock()
        limits = _limits(name, address)
        with self._store.writing() as connection:
            counted = rows.count_attempts(connection, limits, now=now, window_s=WINDOW_S)
        waits = [
            since + WINDOW_S - now
            for subject, (count, since) in counted.items()
            if count > limits[subject]
        ]
        if waits:
            wait_s = max(1.0, *waits)
            raise TooManyRequestsError(
                "signing in failed too often; try again in "
                f"{max(1, round(wait_s / 60))} min, or ask an operator",
                retry_after_s=wait_s,
            )

    def succeeded(self, name: str, address: str | None) -> None:
        """Forget the failures of this name from here; the attempt itself was none."""
        both, *others = _limits(name, address)
        with self._store.writing() as connection:
            rows.forget_attempts(
                connection, cleared=[both], forgiven=others, before=self._clock() - WINDOW_S
            )


def _limits(name: str, address: str | None) -> dict[str, int]:
    """The counts that an attempt adds to, the one of name and address first."""
    who, place = folded(name), address or ""
    limits = {_subject("both", who, place): _BOTH, _subject("name", who): _NAME}
    if address is not None:
        limits[_subject("address", place)] = _ADDRESS
    return limits


def _subject(*parts: str) -> str:
    # Hashed: what was typed as a name may be a password, and may be long.
    return hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
