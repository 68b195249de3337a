"""Limits on requests, and replies that are given again for the same idempotency key."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.core.canonical import sha256_hex
from heretix.core.errors import ConflictError, TooManyRequestsError, UsageError
from heretix.store import accounts as rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Requests that a person or address may still make at this moment."""

    limit: float
    remaining: float
    reset_s: float
    """Seconds until all of it is there again."""


class RateLimiter:
    """A token bucket for each person or address: it fills at `per_s` and holds `burst`.

    Only keys that asked lately are kept; a bucket that is left alone is full again anyway.
    """

    def __init__(
        self,
        *,
        per_s: float,
        burst: float,
        clock: Callable[[], float] = time.monotonic,
        max_keys: int = 10_000,
    ) -> None:
        if per_s <= 0 or burst <= 0 or max_keys < 1:
            raise ValueError(f"rates must be above 0, got per_s={per_s}, burst={burst}")
        self._per_s, self._burst, self._max_keys = per_s, burst, max_keys
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Level of each bucket, and when; the one used last stands last."""
        self._lock = threading.Lock()

    def take(self, key: str, cost: float = 1.0) -> float:
        """Take `cost` out of a bucket. 0 when it was there, else the seconds until it will be."""
        with self._lock:
            now = self._clock()
            level, then = self._buckets.pop(key, (self._burst, now))
            level = min(self._burst, level + (now - then) * self._per_s)
            enough = level >= cost
            self._buckets[key] = (level - cost if enough else level, now)
            if len(self._buckets) > self._max_keys:
                self._buckets.popitem(last=False)
        return 0.0 if enough else (cost - level) / self._per_s

    def look(self, key: str) -> Allowance:
        """Tell what is left in a bucket, and take nothing."""
        with self._lock:
            now = self._clock()
            level, then = self._buckets.get(key, (self._burst, now))
        level = min(self._burst, level + (now - then) * self._per_s)
        reset_s = (self._burst - level) / self._per_s
        return Allowance(limit=self._burst, remaining=level, reset_s=reset_s)

    def check(self, key: str, cost: float = 1.0) -> None:
        """Take, or raise and say when to come back."""
        wait_s = self.take(key, cost)
        if wait_s:
            raise TooManyRequestsError(
                f"too many requests in a short time; try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )


KEPT_S: Final = 24 * 3600.0  # replies are kept for a day; nobody tries again for longer
MAX_KEY_CHARS: Final = 200
_ABANDONED_S: Final = 120.0  # a write that has no reply after so long died with its process


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """A reply as it was sent."""

    status: int
    response_json: str


class Replies:
    """Idempotent replies: a write that is sent again, with the same key, gets the same reply.

    They are kept by scope (who asked, and for what) and key.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    def begin(self, scope: str, key: str, body: bytes) -> StoredReply | None:
        """Take a write to do, then `finish` or `abandon` it (None), or get the reply it got."""
        check_key(key)
        now = self._clock()
        sha256 = sha256_hex(body)
        row = {"scope": scope, "key": key, "body_sha256": sha256, "begun_at": now}
        with self._store.writing() as connection:
            rows.delete_replies_before(connection, before=now - KEPT_S)
            if rows.insert_reply(connection, row):
                return None
            known = rows.select_reply(connection, scope, key)
            if known is None:
                raise ConflictError(f"`{key}` was given up this moment; send the request again")
            if known["body_sha256"] != sha256:
                raise ConflictError(
                    f"`{key}` was used for another request; choose a new key for a new one"
                )
            if known["status"] is not None:
                return StoredReply(status=known["status"], response_json=known["response_json"])
            if now - known["begun_at"] < _ABANDONED_S:
                raise ConflictError(f"`{key}` is being worked on; ask again in a moment")
            rows.delete_open_reply(connection, scope, key)
            rows.insert_reply(connection, row)
        return None

    def finish(self, scope: str, key: str, *, status: int, response_json: str) -> None:
        """Keep the reply."""
        self._store.write(rows.update_reply, scope, key, status=status, response_json=response_json)

    def abandon(self, scope: str, key: str) -> None:
        """Give a write up that came to nothing: the same key may try again."""
        self._store.write(rows.delete_open_reply, scope, key)


def check_key(key: str) -> str:
    """Check the key of a write that a caller chose."""
    if not 1 <= len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise UsageError(
            f"`key` must be 1 to {MAX_KEY_CHARS} printable ASCII characters, such as a UUID, "
            f"got {key[:60]!r}"
        )
    return key
