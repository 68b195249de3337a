"""Sessions: a browser that is signed in, known by a random token that only it has."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from heretix.errors import AccessError, SignInError
from heretix.people.audit import note
from heretix.people.person import Person
from heretix.people.secret import hashed, new_secret
from heretix.store import people as rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.store import Store

__all__ = ["IDLE_S", "LIFETIME_S", "Session", "Sessions"]

IDLE_S: Final = 24 * 3600.0
"""A session that wasn't used for so long is over."""
LIFETIME_S: Final = 14 * 24 * 3600.0
"""However much it is used, a session is over after so long."""
_TOUCH_S: Final = 60.0
"""A page view is no reason to write; one a minute is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Somebody who is signed in."""

    token: str = field(repr=False)
    """Goes into the cookie, and nowhere else."""
    person: Person
    created_at: float
    expires_at: float

    @property
    def csrf(self) -> str:
        """What a form has to send along. It follows from the token, so nothing more is kept."""
        return hashlib.sha256(b"heretix csrf\x00" + self.token.encode()).hexdigest()

    def check_csrf(self, value: str | None) -> None:
        """Raise unless the form came from a page of this session."""
        if value is None or not hmac.compare_digest(
            value.encode("utf-8", "surrogatepass"), self.csrf.encode()
        ):
            raise AccessError(
                "`csrf` doesn't belong to this session; load the page again and send it once more"
            )


class Sessions:
    """The sessions of one store."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        *,
        idle_s: float = IDLE_S,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._idle_s = idle_s
        self._lifetime_s = lifetime_s

    def open(
        self, person: Person, *, address: str | None = None, replacing: str | None = None
    ) -> Session:
        """Sign a person in. The token is always new, and the one it replaces is worth nothing."""
        now = self._clock()
        session = Session(
            token=new_secret(), person=person, created_at=now, expires_at=now + self._lifetime_s
        )
        with self._store.writing() as connection:
            if replacing is not None:
                rows.delete_session(connection, hashed(replacing))
            rows.prune_sessions(connection, now=now)
            rows.insert_session(
                connection,
                {
                    "token_sha256": hashed(session.token),
                    "person_id": person.id,
                    "created_at": now,
                    "seen_at": now,
                    "expires_at": session.expires_at,
                    "address": address,
                },
            )
            note(connection, now, "session.open", by=person, address=address)
        return session

    def find(self, token: str, *, used: bool = True) -> Session:
        """The session of a token; one that is over, or whose person is disabled, is refused.

        It lasts longer for being `used`.
        """
        now = self._clock()
        sha256 = hashed(token)
        with self._store.reading() as connection:
            row = rows.session_and_person(connection, sha256)
        if row is None or now >= row["expires_at"] or now >= row["seen_at"] + self._idle_s:
            raise SignInError("the session is over; sign in again")
        person = Person.of(row)
        if not person.active:
            raise SignInError("the account is disabled; ask an operator")
        if used and now - row["seen_at"] >= _TOUCH_S:
            with self._store.writing() as connection:
                rows.touch_session(connection, sha256, now)
        return Session(
            token=token,
            person=person,
            created_at=row["opened_at"],
            expires_at=row["expires_at"],
        )

    def close(self, token: str, *, address: str | None = None) -> None:
        """Sign out. A session that is gone already is no error."""
        with self._store.writing() as connection:
            person_id = rows.delete_session(connection, hashed(token))
            row = rows.person_by_id(connection, person_id) if person_id else None
            if row is not None:
                note(connection, self._clock(), "session.close", by=Person.of(row), address=address)

    def close_all(self, person_id: str, *, keep: str | None = None) -> int:
        """End all sessions of a person, but for that of the token `keep`; how many there were."""
        with self._store.writing() as connection:
            return rows.delete_sessions(
                connection, person_id, keep=hashed(keep) if keep is not None else None
            )
