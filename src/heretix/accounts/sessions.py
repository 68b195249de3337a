"""Sessions and tokens: the proofs that browsers and programs bring of whom they ask for."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from heretix.accounts.audit import Repository, note
from heretix.accounts.person import Person, Role
from heretix.core.canonical import sha256_hex, sha256_text
from heretix.core.clock import utc_text
from heretix.core.errors import AccessError, AccountError, RecordError, SignInError
from heretix.store import accounts as rows

if TYPE_CHECKING:
    from collections.abc import Mapping


# Sessions and tokens are 256 random bits that are handed out once; the store has their plain hash,
# since nobody can guess them.
_SECRET_BYTES: Final = 32
IDLE_S: Final = 24 * 3600.0  # a session that wasn't used for so long is over
LIFETIME_S: Final = 14 * 24 * 3600.0  # however much it is used, a session is over after so long
_TOUCH_S: Final = 60.0  # a page view, or a call, is no reason to write; one a minute is


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A person who is signed in."""

    token: str = field(repr=False)  # goes into the cookie, and nowhere else
    person: Person
    created_at: float
    expires_at: float

    @property
    def csrf(self) -> str:
        """Derive what a form has to send along from the token, so nothing more is kept."""
        return sha256_hex(b"heretix csrf\x00" + self.token.encode())

    def check_csrf(self, value: str | None) -> None:
        """Raise unless the form came from a page of this session."""
        if value is None or not hmac.compare_digest(
            value.encode("utf-8", "surrogatepass"), self.csrf.encode()
        ):
            raise AccessError(
                "`csrf` doesn't belong to this session; load the page again and send it once more"
            )


class Sessions(Repository):
    """The sessions of one store."""

    def open(
        self, person: Person, *, address: str | None = None, replacing: str | None = None
    ) -> Session:
        """Sign a person in. The token is always new, and the one it replaces is worth nothing."""
        now = self._clock()
        session = Session(
            token=secrets.token_urlsafe(_SECRET_BYTES),
            person=person,
            created_at=now,
            expires_at=now + LIFETIME_S,
        )
        with self._store.writing() as connection:
            if replacing is not None:
                rows.delete_session(connection, sha256_text(replacing))
            rows.delete_expired_sessions(connection, now=now)
            row = {"person_id": person.id, "created_at": now, "seen_at": now, "address": address}
            row |= {"token_sha256": sha256_text(session.token), "expires_at": session.expires_at}
            rows.insert_session(connection, row)
            note(connection, now, "session.open", by=person, address=address)
        return session

    def find(self, token: str, *, used: bool = True) -> Session:
        """Find the session of a token; one that is over, or whose person is disabled, is refused.

        It lasts longer for being `used`.
        """
        now = self._clock()
        sha256 = sha256_text(token)
        row = self._store.read(rows.select_session, sha256)
        if row is None or now >= row["expires_at"] or now >= row["seen_at"] + IDLE_S:
            raise SignInError("the session is over; sign in again")
        person = Person.of(row)
        if not person.active:
            raise SignInError("the account is disabled; ask an operator")
        if used and now - row["seen_at"] >= _TOUCH_S:
            self._store.write(rows.update_session_seen, sha256, now)
        opened_at, expires_at = row["opened_at"], row["expires_at"]
        return Session(token=token, person=person, created_at=opened_at, expires_at=expires_at)

    def close(self, token: str, *, address: str | None = None) -> None:
        """Sign out. A session that is gone already is no error."""
        with self._store.writing() as connection:
            person_id = rows.delete_session(connection, sha256_text(token))
            row = rows.select_person(connection, person_id) if person_id else None
            if row is not None:
                note(connection, self._clock(), "session.close", by=Person.of(row), address=address)


PREFIX: Final = "htx_"  # lets people, and programs that look for leaked secrets, see what it is
_MAX_LABEL_CHARS: Final = 80
_LONGEST_S: Final = 3650 * 86_400.0
_WRONG: Final = "the token isn't known, or was revoked; `heretix users tokens` makes another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The facts of a token; the token itself isn't known."""

    id: str
    person_id: str
    label: str
    role: Role
    created_at: str
    expires_at: float | None
    last_used_at: float | None
    revoked_at: str | None

    @property
    def ends(self) -> str | None:
        """Tell when it is over by itself; None: never."""
        return None if self.expires_at is None else utc_text(self.expires_at)

    def has_expired(self, now: float) -> bool:
        """Tell that it is over by itself, revoked or not."""
        return self.expires_at is not None and now >= self.expires_at

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Token:
        """Read a row of `tokens`."""
        return cls(
            id=row["token_id"],
            role=Role(row["role"]),
            **{name: row[name] for name in cls.__slots__ if name not in {"id", "role"}},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token, at the one moment when its text is known."""

    secret: str = field(repr=False)
    token: Token


class Tokens(Repository):
    """The tokens of one store."""

    def issue(
        self,
        person: Person,
        *,
        label: str,
        role: Role | None = None,
        expires_in_s: float | None = None,
        by: Person | None = None,
        address: str | None = None,
    ) -> IssuedToken:
        """Make a token that may do what `role` may, which is no more than the person may."""
        if person.is_local:
            raise AccountError("`local` needs no token: there are no accounts here to tell apart")
        if role is not None and role > person.role:
            raise AccessError(
                f"`role` of a token must not be above {person.role.value}, got {role.value}"
            )
        label = label.strip()
        if not 1 <= len(label) <= _MAX_LABEL_CHARS or not label.isprintable():
            raise AccountError(
                f"`label` must be 1 to {_MAX_LABEL_CHARS} printable characters; say what it is for"
            )
        # Written so that what isn't a number is refused, too: it would never be over.
        if expires_in_s is not None and not 0 < expires_in_s <= _LONGEST_S:
            raise AccountError(
                f"`expires_in_s` must be more than 0 and at most {_LONGEST_S:,.0f} (ten years), "
                f"got {expires_in_s}; leave it out for a token that doesn't expire"
            )
        now = self._clock()
        secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        row = {
            "token_id": f"token-{secrets.token_hex(6)}",
            "person_id": person.id,
            "label": label,
            "role": (role or person.role).value,
            "created_at": utc_text(now),
            "expires_at": None if expires_in_s is None else now + expires_in_s,
        }
        token = Token.of({**row, "last_used_at": None, "revoked_at": None})
        with self._store.writing() as connection:
            rows.insert_token(connection, {**row, "token_sha256": sha256_text(secret)})
            note(connection, now, "token.issue", by=by or person, subject=token.id, address=address)
        return IssuedToken(secret=secret, token=token)

    def verify(self, secret: str, *, used: bool = True) -> Person:
        """Find whom a token speaks for, with the lower of the two roles; note that it is `used`."""
        if not secret.startswith(PREFIX):
            raise SignInError(_WRONG)
        now = self._clock()
        row = self._store.read(rows.select_token_with_person, sha256_text(secret))
        if row is None or row["revoked_at"] is not None:
            raise SignInError(_WRONG)
        if row["expires_at"] is not None and now >= row["expires_at"]:
            raise SignInError("the token has expired; `heretix users tokens` makes another")
        person = Person.of(row)
        if not person.active:
            raise SignInError("the account is disabled; ask an operator")
        if used and now - (row["last_used_at"] or 0.0) >= _TOUCH_S:
            self._store.write(rows.update_token, row["token_id"], {"last_used_at": now})
        return replace(person, role=min(person.role, Role(row["token_role"])))

    def list(self, person_id: str | None = None) -> list[Token]:
        """List tokens, the newest first: of one person, or of all."""
        return [Token.of(row) for row in self._store.read(rows.select_tokens, person_id)]

    def revoke(self, token_id: str, *, by: Person, address: str | None = None) -> Token:
        """End a token: its owner may, and an operator. One that has ended is left as it is."""
        now = self._clock()
        with self._store.writing() as connection:
            row = rows.select_token(connection, token_id)
            # Somebody else's token looks as if it didn't exist.
            if row is None or (row["person_id"] != by.id and by.role < Role.OPERATOR):
                raise RecordError(f"`{token_id}` names no token of yours")
            ended = {"revoked_at": row["revoked_at"] or utc_text(now)}
            if row["revoked_at"] is None:
                rows.update_token(connection, token_id, ended)
                note(connection, now, "token.revoke", by=by, subject=token_id, address=address)
        return Token.of({**row, **ended})
