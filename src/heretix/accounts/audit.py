"""The audit log: who did what, to what, when and from where. Entries are only ever added."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.core.clock import utc_text
from heretix.store import accounts as rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from heretix.accounts.person import Person
    from heretix.store import Store

_MOST: Final = 1000

REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("heretix_request_id", default=None)
"""Id of the request that is being answered, which entries name; None outside a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One thing that somebody did."""

    seq: int
    at: str
    who: str
    what: str  # a noun and a verb, as `job.submit`
    subject: str | None
    address: str | None
    request_id: str | None


class Repository:
    """Rows of one store, by a clock that gives seconds since 1970."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock


class Audit(Repository):
    """The log of one store."""

    def write(self, what: str, *, by: Person | None, **about: str | None) -> None:
        """Add an entry; see `note`."""
        self._store.write(note, self._clock(), what, by=by, **about)

    def entries(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        who: str | None = None,
        what: str | None = None,
    ) -> list[AuditEntry]:
        """List entries, the newest first; `before` is the `seq` at which the last page ended."""
        found = self._store.read(
            rows.select_audit_entries,
            before=before,
            limit=max(1, min(limit, _MOST)),
            who=who,
            what=what,
        )
        return [AuditEntry(**{name: row[name] for name in AuditEntry.__slots__}) for row in found]


def note(
    connection: Connection,
    now: float,
    what: str,
    *,
    by: Person | None,
    subject: str | None = None,
    address: str | None = None,
) -> None:
    """Add an entry in the transaction that does what it tells of: both happen, or neither."""
    rows.insert_audit_entry(
        connection,
        {
            "at": utc_text(now),
            "person_id": by.id if by else None,
            "who": by.name if by else "nobody",
            "what": what,
            "subject": subject,
            "address": address,
            "request_id": REQUEST_ID.get(),
        },
    )
