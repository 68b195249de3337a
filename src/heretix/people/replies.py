"""Replies to writes: whoever sends the same write again, with the same key, gets the same reply."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.errors import ConflictError, UsageError
from heretix.store import idempotency as rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.store import Store

__all__ = ["KEPT_S", "MAX_KEY_CHARS", "Replies", "StoredReply", "check_key"]

KEPT_S: Final = 24 * 3600.0
"""Replies are kept for a day; nobody tries again for longer."""
MAX_KEY_CHARS: Final = 200
_ABANDONED_S: Final = 120.0
"""A write that has no reply after so long died with its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """A reply as it was sent."""

    status: int
    response_json: str


class Replies:
    """The replies of one store, by scope (who asked, and for what) and key."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def begin(self, scope: str, key: str, body: bytes) -> StoredReply | None:
        """None: the write is yours to do, then `finish` or `abandon` it. Else the reply it got."""
        check_key(key)
        now = self._clock()
        sha256 = hashlib.sha256(body).hexdigest()
        row = {"scope": scope, "key": key, "body_sha256": sha256, "begun_at": now}
        with self._store.writing() as connection:
            rows.prune_replies(connection, before=now - KEPT_S)
            if rows.begin_reply(connection, row):
                return None
            known = rows.reply(connection, scope, key)
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
            rows.drop_reply(connection, scope, key)
            rows.begin_reply(connection, row)
        return None

    def finish(self, scope: str, key: str, *, status: int, response_json: str) -> None:
        """Keep the reply."""
        with self._store.writing() as connection:
            rows.finish_reply(connection, scope, key, status=status, response_json=response_json)

    def abandon(self, scope: str, key: str) -> None:
        """The write came to nothing: the same key may try again."""
        with self._store.writing() as connection:
            rows.drop_reply(connection, scope, key)


def check_key(key: str) -> str:
    """A key for a write, as a caller may choose one."""
    if not 1 <= len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise UsageError(
            f"`key` must be 1 to {MAX_KEY_CHARS} printable ASCII characters, such as a UUID, "
            f"got {key[:60]!r}"
        )
    return key
