"""Replies in the database: answers to calls that are no samples, so that none is paid for twice."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from heretix.store.db import KEYS_PER_STATEMENT, chunked, conflict_insert
from heretix.store.samples import release_leases, save_late
from heretix.store.schema import replies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from heretix.sample import Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """One reply, under the hash of all that was asked."""

    cache_key: str
    model: str
    text: str
    finish: Finish
    provider_model_id: str | None
    response_id: str | None
    tokens_in: int | None
    tokens_out: int | None
    created_at: str

    @property
    def failed(self) -> bool:
        """False: a call that failed is no reply, and is asked again."""
        return False


_FIELDS: Final = tuple(field.name for field in fields(StoredReply))
_VALUES: Final = attrgetter(*_FIELDS)


def select_replies(connection: Connection, cache_keys: Sequence[str]) -> dict[str, StoredReply]:
    """Read the replies that are known already, by `cache_key`."""
    wanted = select(*(replies.c[name] for name in _FIELDS))
    return {
        row.cache_key: StoredReply(**dict(zip(_FIELDS, row, strict=True)))
        for chunk in chunked(cache_keys, KEYS_PER_STATEMENT)
        for row in connection.execute(wanted.where(replies.c.cache_key.in_(chunk)))
    }


def save_replies(
    connection: Connection,
    batch: Sequence[StoredReply],
    *,
    owner: str | None = None,
    replace: bool = True,
) -> dict[str, StoredReply]:
    """Keep replies, all or none, and end `owner`'s leases on them in the same transaction.

    With `replace` a newer one takes the place of an older one; else the first stays, and the late
    one is kept as paid for in vain. Returns those that stayed, by key. Saving twice is saving once.
    """
    if not batch:
        return {}
    ordered = sorted(batch, key=lambda one: one.cache_key)
    keys = [one.cache_key for one in ordered]
    insert = conflict_insert(connection.dialect.name, replies)
    newer = insert.on_conflict_do_update(
        index_elements=[replies.c.cache_key],
        set_={name: insert.excluded[name] for name in _FIELDS if name != "cache_key"},
        where=insert.excluded.created_at > replies.c.created_at,
    )
    rows = [dict(zip(_FIELDS, _VALUES(one), strict=True)) for one in ordered]
    connection.execute(newer if replace else insert.on_conflict_do_nothing(), rows)
    found = {} if replace else select_replies(connection, keys)
    late = [one for one in ordered if found.get(one.cache_key, one) != one]
    save_late(connection, late, owner)
    if owner is not None:
        release_leases(connection, keys, owner)
    return {one.cache_key: found[one.cache_key] for one in late}
